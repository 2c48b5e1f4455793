//! PostgreSQL, which refuses to work for root: then everything is done as the user postgres, on a volume that is that user's.

use crate::bench::Bench;
use crate::commands::apps::{lacks, rate};
use crate::commands::programs::{Ran, run as run_program, shell};
use crate::model::Table;
use crate::statistics::spread;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

const NAME: &str = "PostgreSQL, pgbench";
const USER: &str = "postgres";

/// `$1` is a directory, `$2` seconds, `$3` a directory of the host for the socket, `$4` the one with the programs, `$5` rounds.
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
round=0
while [ $round -lt "$5" ]; do
    "$4/pgbench" -h "$3" -p 5999 -U bench -c 1 -T "$2" bench 2> /dev/null | sed -n 's/^tps = \([0-9.]*\).*/\1/p'
    round=$((round + 1))
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
    /bin/sh -c "$8" bench /volume/bench "$9" "$directory/host" "${10}" "${11}""#;

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
    for (done, name) in (0..).zip(names) {
        bench.progress(&format!("apps: {NAME}"), done, names.len() as u64);
        match once(bench, name, owner, &host, &programs) {
            Ok(rates) => {
                let row = bench.row(NAME, name, spread(&rates));
                table.rows.push(row);
            }
            Err(why) => bench.skip(format!("apps: {NAME}, {name}"), why),
        }
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

/// Transactions per second of each round.
fn once(
    bench: &mut Bench<'_>,
    name: &str,
    owner: Option<(u32, u32)>,
    host: &Path,
    programs: &Path,
) -> Result<Vec<f64>, String> {
    let keeper = bench.keeper.clone();
    let (host, programs) = (host.to_string_lossy().into_owned(), programs.to_string_lossy().into_owned());
    let (seconds, rounds) = ("1", if bench.settings.quick { "1" } else { "3" });
    let arguments = [seconds, &host, &programs, rounds];
    let rates = |ran: &Ran| ran.output.lines().map(|line| rate(line, NAME)).collect::<Result<Vec<_>, _>>();
    let Some((user, group)) = owner else {
        let script = format!("mkdir -p \"$1\"\n{SCRIPT}");
        return rates(&shell(bench, name, &script, &arguments, "")?);
    };
    let is_run = bench.peer(name).is_some_and(|peer| peer.is_run());
    if !is_run {
        let directory = bench.peer(name).ok_or("not ready")?.directory().join("postgresql");
        std::fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
        chown(&directory, Some(user), Some(group)).map_err(|error| error.to_string())?;
        let mut command = Command::new("runuser");
        command.args(["-u", USER, "--", "/bin/sh", "-c", SCRIPT, "bench"]).arg(&directory).args(arguments);
        let ran = run_program(command, "", &keeper);
        let _ = std::fs::remove_dir_all(&directory);
        return rates(&ran?);
    }
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
    command.arg(&bench.settings.gannet).args([USER, kind, data, SCRIPT]).args([seconds, &programs, rounds]);
    let outcome = run_program(command, "", &keeper).and_then(|ran| rates(&ran));
    let _ = std::fs::remove_dir_all(directory);
    outcome
}
