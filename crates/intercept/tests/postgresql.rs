//! PostgreSQL in a volume, all of it by one ordinary user: it refuses root. A cluster is made, used, killed in the midst of
//! transactions, recovers, and has every transaction that it confirmed.

mod common;

use common::ordinary::is_ordinary_user;
use common::{BUSY, Volume, check, run};
use std::path::PathBuf;

/// Where Debian puts the server's programs.
fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut found: Vec<PathBuf> = versions.filter_map(|entry| Some(entry.ok()?.path().join("bin"))).collect();
    found.retain(|directory| directory.join("initdb").is_file());
    found.sort();
    found.pop()
}

/// What it does; the same in a volume and on the host.
const SCRIPT: &str = r#"
D=$PWD/cluster S=$PWD
start() { pg_ctl -D $D -o "-c listen_addresses='' -k $S" -l log -w -t 120 start > started 2>&1; }
ask() { psql -h $S -At -d bench -c "$1"; }
lives() { case $(ps -o stat= -p $1) in ""|Z*) return 1;; esac; }
initdb -D $D -A trust --locale=C -E UTF8 > made 2>&1 && echo made || cat made
start && echo started || cat started log
createdb -h $S bench && pgbench -h $S -i -q -s 1 bench > /dev/null 2>&1 && echo filled
pgbench -h $S -c 4 -j 2 -t 25 bench 2>/dev/null | grep -o 'processed: .*'
ask 'create table log(n serial, client int, note text)'
echo 'insert into log(client, note) values (:client_id, repeat(md5(random()::text), 20));' > insert.sql
pgbench -h $S -n -c 4 -j 2 -T 600 -f insert.sql -l --log-prefix=acknowledged bench > bench.out 2>&1 & bench=$!
for i in $(seq 1000); do [ "$(ask 'select count(*) > 200 from log')" = t ] && break; sleep 0.1; done
master=$(head -1 $D/postmaster.pid); all="$master $(ps -o pid= --ppid $master)"
kill -9 $all; wait $bench; echo "benchmark ended with $?"
for p in $all; do while lives $p; do sleep 0.05; done; done
rm -f $D/postmaster.pid $S/.s.PGSQL.*
for i in $(seq 100); do start && break; sleep 0.2; done; [ "$(ask 'select 1')" = 1 ] && echo recovered || cat started log
acknowledged=$(cat acknowledged* | wc -l); found=$(ask 'select count(*) from log')
if [ $acknowledged -ge 150 ] && [ $found -ge $acknowledged ] && [ $found -le $((acknowledged + 8)) ]; then echo none lost; else echo "acknowledged $acknowledged, found $found"; fi
ask 'select count(*), sum(abalance) = (select sum(delta) from pgbench_history) from pgbench_accounts'
ask 'reindex database bench; vacuum full; select count(*) from pgbench_history'
pg_amcheck -h $S -d bench > amcheck 2>&1; ask 'checkpoint'
pg_ctl -D $D -m fast -w -t 120 stop > /dev/null && echo stopped
pg_controldata -D $D | grep -o 'state: .*'
"#;

#[test]
fn makes_uses_kills_and_recovers_a_cluster() {
    let Some(programs) = programs() else {
        eprintln!("left out: PostgreSQL (Debian's package postgresql) is not installed");
        return;
    };
    if !is_ordinary_user("makes_uses_kills_and_recovers_a_cluster") {
        return;
    }
    let volume = Volume::new(512);
    let script = format!("export PATH={}:$PATH LC_ALL=C HOME=$PWD\n{SCRIPT}", programs.display());
    let host = tempfile::Builder::new().prefix("gannet-pg-").tempdir_in("/dev/shm").expect("/dev/shm");
    let mut plain = std::process::Command::new("timeout");
    plain.args(["-s", "KILL", &(300 * BUSY).to_string(), "bash", "-c", &script]).current_dir(host.path());
    let plain = run(&mut plain);
    let inside = format!("mkdir /gannet/work && cd /gannet/work || exit 99\n{script}");
    let ours = run(volume.command_with_time("bash", 300).arg("-c").arg(inside));
    let wanted = String::from_utf8_lossy(&plain.stdout).into_owned();
    assert!(wanted.contains("none lost") && wanted.contains("shut down"), "on the host: {plain:?}");
    check(&ours, "PostgreSQL", &wanted);
}
