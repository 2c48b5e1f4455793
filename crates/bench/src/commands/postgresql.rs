//! PostgreSQL, which refuses to work for root: then everything is done as the user postgres, on a volume that is that user's.

use crate::bench::Bench;
use crate::commands::apps::{lacks, rate};
use crate::commands::programs::{run as run_program, shell};
use crate::model::Table;
use crate::peers::{Gannet, make_volume};
use crate::statistics::spread;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

const NAME: &str = "PostgreSQL, pgbench";
const USER: &str = "postgres";

/// `$1` is a directory, `$2` seconds, `$3` a directory of the host for the socket, `$4` the one with the programs.
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
"$4/pgbench" -h "$3" -p 5999 -U bench -c 1 -T "$2" bench 2> /dev/null | sed -n 's/^tps = \([0-9.]*\).*/\1/p'"#;

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
            Ok(found) => {
                let row = bench.row(NAME, name, spread(&[found]));
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

/// Transactions per second.
fn once(
    bench: &mut Bench<'_>,
    name: &str,
    owner: Option<(u32, u32)>,
    host: &Path,
    programs: &Path,
) -> Result<f64, String> {
    let keeper = bench.keeper.clone();
    let (host, programs) = (host.to_string_lossy().into_owned(), programs.to_string_lossy().into_owned());
    let arguments = ["5", &host, &programs];
    let Some((user, group)) = owner else {
        let script = format!("mkdir -p \"$1\"\n{SCRIPT}");
        return rate(&shell(bench, name, &script, &arguments, "")?, 0, NAME);
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
        return rate(&ran?, 0, NAME);
    }
    // The volume is the user's, and so is its root directory: made by that user.
    let directory = bench.medium_directory().join(format!("{name}-postgresql"));
    std::fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
    chown(&directory, Some(user), Some(group)).map_err(|error| error.to_string())?;
    let path = directory.join("volume");
    let kind = Gannet { emulated: name != "gannet", copy_on_write: name.ends_with("cow"), aged: false };
    let outcome = make_volume(bench, &path, 512 << 20, kind)
        .and_then(|()| chown(&path, Some(user), Some(group)).map_err(|error| error.to_string()))
        .and_then(|()| {
            // As root, to whom the root directory belongs now.
            let mut command = Command::new(&bench.settings.gannet);
            command.arg("run").arg(format!("{}:/volume", path.display()));
            command.args(["--", "/bin/sh", "-c", "mkdir /volume/bench && chown \"$1\" /volume/bench", "bench", USER]);
            run_program(command, "", &keeper).map(drop)
        })
        .and_then(|()| {
            let mut command = Command::new("runuser");
            command.args(["-u", USER, "--"]).arg(&bench.settings.gannet).arg("run");
            command.arg(format!("{}:/volume", path.display()));
            command.args(["--", "/bin/sh", "-c", SCRIPT, "bench", "/volume/bench"]).args(arguments);
            rate(&run_program(command, "", &keeper)?, 0, NAME)
        });
    let _ = std::fs::remove_dir_all(directory);
    outcome
}
