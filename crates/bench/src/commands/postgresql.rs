//! PostgreSQL, which refuses to work for root: then everything is done as the user postgres, on a volume that is that user's.
//!
//! Each file system has a server of its own, which waits while the others are measured: so they are compared in turns.

use crate::bench::Bench;
use crate::commands::apps::{lacks, rate};
use crate::commands::programs::Conversation;
use crate::model::Table;
use crate::statistics::spread;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

const NAME: &str = "PostgreSQL, pgbench";
const USER: &str = "postgres";
const ROUNDS: u32 = 7;

/// `$1` is a directory, `$2` seconds, `$3` a directory of the host for the socket, `$4` the one with the programs. Says when it is
/// ready; then for each line that it is told it prints a rate.
const SCRIPT: &str = r#"set -e
rm -rf "$1/pg"
"$4/initdb" -D "$1/pg" -A trust -N -U bench > /dev/null
"$4/postgres" -D "$1/pg" -k "$3" -p 5999 -c listen_addresses='' > "$3/postgresql.log" 2>&1 &
server=$!
trap 'kill -INT $server 2> /dev/null && wait $server; rm -rf "$1/pg"' EXIT
tries=0
until "$4/pg_isready" -q -h "$3" -p 5999; do
    tries=$((tries + 1)); [ $tries -lt 600 ] && kill -0 $server || { tail -n 1 "$3/postgresql.log" >&2; exit 1; }
    sleep 0.05
done
"$4/createdb" -h "$3" -p 5999 -U bench bench
"$4/pgbench" -h "$3" -p 5999 -U bench -i -q -s 1 bench > /dev/null 2>&1
echo ready
while read -r line; do
    "$4/pgbench" -h "$3" -p 5999 -U bench -c 1 -T "$2" bench < /dev/null 2> /dev/null \
        | sed -n 's/^tps = \([0-9.]*\).*/\1/p'
done"#;

/// For root: a volume that is the user's, as is a directory on it, and the script on it as that user. `$1` says whether memory (`$2`)
/// has to be mounted first; `$3` is the volume's directory, then come the command, the user, two options of mkfs, the script and its
/// arguments.
const AS_USER: &str = r#"set -e
[ -z "$1" ] || mount -t tmpfs -o mode=1777 gannet-bench "$2"
directory=$3 gannet=$4 user=$5
mkdir -p "$directory/host"
"$gannet" mkfs "$directory/volume" --size 512M "$6" "$7" > /dev/null
chown -R "$user" "$directory"
"$gannet" run "$directory/volume:/volume" -- /bin/sh -c 'mkdir /volume/bench && chown "$1" /volume/bench' bench "$user"
runuser -u "$user" -- "$gannet" run "$directory/volume:/volume" -- \
    /bin/sh -c "$8" bench /volume/bench "$9" "$directory/host" "${10}""#;

/// Measures.
pub(super) fn run(bench: &mut Bench<'_>, table: &mut Table, names: &[String], host: &Path) {
    let Some(programs) = programs() else {
        bench.skip(format!("apps: {NAME}"), "initdb is not installed (package postgresql)");
        return;
    };
    let is_root = rustix::process::geteuid().is_root();
    let owner = if is_root { user(USER) } else { None };
    if is_root && (owner.is_none() || lacks(&["runuser"]).is_some()) {
        bench.skip(format!("apps: {NAME}"), "it refuses to work for root, and there is no user postgres");
        return;
    }
    let host = host.join("postgresql");
    let made = std::fs::create_dir_all(&host)
        .and_then(|()| owner.map_or(Ok(()), |(user, group)| chown(&host, Some(user), Some(group))));
    if let Err(why) = made {
        bench.skip(format!("apps: {NAME}"), why.to_string());
        return;
    }
    // A second each, of which some are disturbed.
    let rounds = if bench.settings.quick { 1 } else { ROUNDS };
    let mut servers = Vec::new();
    for (done, name) in names.iter().enumerate() {
        bench.progress(&format!("apps: {NAME}, {name}"), done as u64, names.len() as u64);
        match start(bench, name, owner, &host.join(done.to_string()), &programs) {
            Ok(server) => servers.push((name, server, Vec::new())),
            Err(why) => bench.skip(format!("apps: {NAME}, {name}"), why),
        }
    }
    let total = u64::from(rounds) * servers.len() as u64;
    for round in 0..rounds {
        let mut still = Vec::with_capacity(servers.len());
        for (name, mut server, mut rates) in servers {
            bench.progress(
                &format!("apps: {NAME}"),
                u64::from(round) * (total / u64::from(rounds)) + still.len() as u64,
                total,
            );
            let said = server.talk.as_mut().ok_or(String::from("it has ended")).and_then(Conversation::ask);
            match said.and_then(|line| rate(line.trim(), NAME)) {
                Ok(found) => {
                    rates.push(found);
                    still.push((name, server, rates));
                }
                Err(why) => bench.skip(format!("apps: {NAME}, {name}"), why),
            }
        }
        servers = still;
    }
    for (name, _, rates) in &servers {
        let row = bench.row(NAME, name, spread(rates));
        table.rows.push(row);
    }
}

/// Where the newest server's programs are: distributions keep them out of the way.
fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
    let all = versions.map(|version| version.path().join("bin")).filter(|path| path.join("initdb").is_file());
    all.max()
}

/// A user's and a group's number.
fn user(name: &str) -> Option<(u32, u32)> {
    let text = std::fs::read_to_string("/etc/passwd").ok()?;
    let line = text.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut numbers = line.split(':').skip(2).filter_map(|field| field.parse().ok());
    Some((numbers.next()?, numbers.next()?))
}

/// A server that waits to be measured.
struct Server {
    /// Ended before its directory goes.
    talk: Option<Conversation>,
    directory: Option<PathBuf>,
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.talk.take());
        if let Some(directory) = &self.directory {
            let _ = std::fs::remove_dir_all(directory);
        }
    }
}

/// Starts a server of a peer's, with its socket in `host`.
fn start(
    bench: &mut Bench<'_>,
    name: &str,
    owner: Option<(u32, u32)>,
    host: &Path,
    programs: &Path,
) -> Result<Server, String> {
    let made = |path: &Path| {
        let made = std::fs::create_dir_all(path);
        let made = made.and_then(|()| owner.map_or(Ok(()), |(user, group)| chown(path, Some(user), Some(group))));
        made.map_err(|error| format!("{}: {error}", path.display()))
    };
    made(host)?;
    let (host, programs) = (host.to_string_lossy().into_owned(), programs.to_string_lossy().into_owned());
    let seconds = "1";
    let is_run = bench.peer(name).is_some_and(|peer| peer.is_run());
    let (command, directory) = if owner.is_none() {
        let peer = bench.peer(name).ok_or("not ready")?;
        let directory = peer.directory().join(format!("postgresql-{}", std::process::id()));
        let mut command = peer.command(Path::new("/bin/sh"));
        command.args(["-c", &format!("mkdir -p \"$1\"\n{SCRIPT}"), "bench"]).arg(directory);
        command.args([seconds, &host, &programs]);
        (command, None)
    } else if is_run {
        let directory = bench.medium_directory().join(format!("{name}-postgresql"));
        let memory = &bench.settings.memory;
        // Whose volume it is must also be able to make what is shared. Where /dev/shm is root's alone, it gets one of its own.
        let is_open = std::fs::metadata(memory).is_ok_and(|about| about.mode() & 0o002 != 0);
        let mut command = Command::new(if is_open { "/bin/sh" } else { "unshare" });
        if !is_open {
            command.args(["--mount", "--propagation", "private", "/bin/sh"]);
        }
        let kind = if name == "gannet" || name == "gannet-dax" { "--data=inplace" } else { "--emulate-pmem" };
        let data = if name.ends_with("cow") { "--data=cow" } else { "--label=bench" };
        command.args(["-c", AS_USER, "bench"]).arg(if is_open { "" } else { "own" }).arg(memory).arg(&directory);
        command.arg(&bench.settings.gannet).args([USER, kind, data, SCRIPT, seconds, &programs]);
        (command, Some(directory))
    } else {
        let directory = bench.peer(name).ok_or("not ready")?.directory().join("postgresql");
        made(&directory)?;
        let mut command = Command::new("runuser");
        command.args(["-u", USER, "--", "/bin/sh", "-c", SCRIPT, "bench"]).arg(&directory);
        command.args([seconds, &host, &programs]);
        (command, Some(directory))
    };
    let mut server = Server { talk: None, directory };
    let talk = server.talk.insert(Conversation::begin(command, &bench.keeper)?);
    match talk.hear()?.trim() {
        "ready" => Ok(server),
        other => Err(format!("it says {other:?} instead of being ready")),
    }
}
