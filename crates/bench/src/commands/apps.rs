//! `bench apps`: databases as the distribution has them, unchanged, each synced at every transaction (unless said otherwise).

use crate::bench::Bench;
use crate::commands::programs::{installed, shell};
use crate::commands::{postgresql, programs};
use crate::model::{Cost, Table, Unit};
use crate::statistics::spread;

/// A program, and a script that measures it: `$1` is a fresh directory, `$2` how many, `$3` a directory of the host. It prints
/// operations per second, or nothing if they are to be told from how long it runs.
struct App {
    name: &'static str,
    programs: &'static [&'static str],
    package: &'static str,
    script: &'static str,
    /// How many: in memory, through a server, on a disk, in a quick run.
    counts: [u32; 4],
    input: fn(u32) -> String,
}

const SQLITE: &str = "rm -rf \"$1\" && mkdir -p \"$1\" && sqlite3 \"$1/database\" > /dev/null && rm -r \"$1\"";

fn sqlite(mode: &str, count: u32) -> String {
    let mut text = format!(
        "pragma journal_mode = {mode};\npragma synchronous = full;\ncreate table t(a integer primary key, b);\n"
    );
    for index in 0..count {
        text += &format!(
            "insert into t values({index}, 'a hundred bytes of a row, as benchmarks of key-value stores have them, nothing of which repeats {index}');\n"
        );
    }
    text
}

const REDIS: &str = r#"rm -rf "$1" && mkdir -p "$1" && cd "$1"
redis-server --port 0 --unixsocket "$3/redis" --dir "$1" --save '' --appendonly yes --appendfsync always > "$3/redis.log" 2>&1 &
server=$!
tries=0
until redis-cli -s "$3/redis" ping > /dev/null 2>&1; do
    tries=$((tries + 1)); [ $tries -lt 200 ] || { tail -n 1 "$3/redis.log" >&2; exit 1; }
    sleep 0.02
done
redis-benchmark -s "$3/redis" -t set -n "$2" -c 1 --csv | sed -n 's/^"SET","\([0-9.]*\)".*/\1/p'
kill $server
wait $server || true
cd / && rm -r "$1""#;

/// A fill by `db_bench` with `--sync=` as given.
macro_rules! rocksdb {
    ($sync:literal) => {
        concat!(
            r#"rm -rf "$1" && mkdir -p "$1"
db_bench --benchmarks=filluniquerandom --db="$1/db" --num="$2" --value_size=100 --sync="#,
            $sync,
            r#" --compression_type=none 2> /dev/null |
    sed -n 's/^filluniquerandom.* \([0-9]*\) ops\/sec.*/\1/p'
rm -r "$1""#
        )
    };
}

/// Inserts in one journal mode.
const fn sqlite_app(name: &'static str, input: fn(u32) -> String) -> App {
    App { name, programs: &["sqlite3"], package: "sqlite3", script: SQLITE, counts: [2000, 500, 200, 50], input }
}

const APPS: &[App] = &[
    sqlite_app("SQLite insert, journal delete", |count| sqlite("delete", count)),
    sqlite_app("SQLite insert, journal truncate", |count| sqlite("truncate", count)),
    sqlite_app("SQLite insert, journal persist", |count| sqlite("persist", count)),
    sqlite_app("SQLite insert, journal WAL", |count| sqlite("wal", count)),
    App {
        name: "Redis set, fsync always",
        programs: &["redis-server", "redis-benchmark", "redis-cli"],
        package: "redis-server",
        script: REDIS,
        counts: [20_000, 5000, 1000, 200],
        input: |_| String::new(),
    },
    App {
        name: "RocksDB fill, WAL synced",
        programs: &["db_bench"],
        package: "rocksdb-tools",
        script: rocksdb!("1"),
        counts: [20_000, 5000, 1000, 200],
        input: |_| String::new(),
    },
    App {
        name: "RocksDB fill, WAL not synced",
        programs: &["db_bench"],
        package: "rocksdb-tools",
        script: rocksdb!("0"),
        counts: [100_000, 20_000, 100_000, 1000],
        input: |_| String::new(),
    },
];

/// Measures.
pub(crate) fn run(bench: &mut Bench<'_>) -> Vec<Table> {
    let quick = bench.settings.quick;
    let wanted: &[&str] = if quick {
        &["gannet", "gannet-pmem", "tmpfs"]
    } else {
        &[
            "gannet",
            "gannet-pmem",
            "gannet-pmem-cow",
            "gannet-dax",
            "gannet-mount",
            "gannet-mount-ring",
            "gannet-mount-shared",
            "tmpfs",
            "libfuse",
            "ext4-dax",
            "xfs-dax",
            "ext4",
            "xfs",
            "disk",
        ]
    };
    let names = bench.ready(wanted);
    let rounds = if quick { 1 } else { bench.settings.rounds.min(3) };
    let mut table = Table {
        command: "apps",
        title: "Unmodified programs".into(),
        notes: vec![
            "one client, each operation a transaction of its own, synced unless said otherwise; fewer of them through servers and on disks"
                .into(),
        ],
        unit: Unit::Rate,
        x_name: None,
        rows: Vec::new(),
    };
    let host = bench.memory_directory().join("host");
    if let Err(why) = std::fs::create_dir_all(&host) {
        bench.skip("apps", format!("{}: {why}", host.display()));
        return vec![table];
    }
    for app in APPS {
        if let Some(missing) = app.programs.iter().find(|program| installed(program).is_none()) {
            bench.skip(format!("apps: {}", app.name), format!("{missing} is not installed (package {})", app.package));
            continue;
        }
        measure(bench, &mut table, app, &names, rounds, &host.to_string_lossy());
    }
    // Making a database takes its time: of a quick run one peer shows that it works.
    postgresql::run(bench, &mut table, if quick { &names[..names.len().min(1)] } else { &names }, &host);
    vec![table]
}

fn measure(bench: &mut Bench<'_>, table: &mut Table, app: &App, names: &[String], rounds: u32, host: &str) {
    let mut found: Vec<(Vec<f64>, Option<Cost>)> = vec![Default::default(); names.len()];
    let total = u64::from(rounds) * names.len() as u64;
    for round in 0..rounds {
        for (index, name) in names.iter().enumerate() {
            bench.progress(&format!("apps: {}", app.name), u64::from(round) * names.len() as u64 + index as u64, total);
            let on_disk = bench.facts.iter().any(|facts| facts.name == *name && facts.survives.starts_with("power"));
            let served = name.starts_with("gannet-mount") || name == "libfuse";
            let count = app.counts[match (bench.settings.quick, served, on_disk) {
                (true, ..) => 3,
                (_, true, _) => 1,
                (_, _, true) => 2,
                _ => 0,
            }];
            match once(bench, app, name, count, host) {
                Ok((rate, cost)) => {
                    found[index].0.push(rate);
                    found[index].1 = cost;
                }
                Err(why) => bench.skip(format!("apps: {}, {name}", app.name), why),
            }
        }
    }
    for (name, (rates, cost)) in names.iter().zip(found).filter(|(_, (rates, _))| !rates.is_empty()) {
        let mut row = bench.row(app.name, name, spread(&rates));
        row.cost = cost;
        table.rows.push(row);
    }
}

/// Operations per second, and what each cost the medium.
fn once(bench: &mut Bench<'_>, app: &App, name: &str, count: u32, host: &str) -> Result<(f64, Option<Cost>), String> {
    let workload = bench.settings.workload.clone();
    let peer = bench.peer(name).ok_or("not ready")?;
    // Keeps the volume open, so that its counters last.
    peer.worker(&workload)?;
    let counters = peer.counters();
    let before = counters.as_ref().map(|counters| counters.now());
    let ran = shell(bench, name, app.script, &[&count.to_string(), host], &(app.input)(count))?;
    let after = counters.as_ref().map(|counters| counters.now());
    let cost = before.zip(after).map(|(before, after)| {
        let each = |before: u64, after: u64| after.wrapping_sub(before) as f64 / f64::from(count);
        Cost {
            fences: each(before.fences, after.fences),
            lines: each(before.lines, after.lines),
            bytes: each(before.bytes_stored, after.bytes_stored),
        }
    });
    // SQLite says none: it follows from how long it ran.
    let rate = if ran.output.trim().is_empty() && app.name.starts_with("SQLite") {
        f64::from(count) / ran.wall_ns * 1e9
    } else {
        rate(&ran.output, app.name)?
    };
    Ok((rate, cost))
}

/// The rate that a program has said.
pub(crate) fn rate(said: &str, app: &str) -> Result<f64, String> {
    said.trim().parse().map_err(|_| format!("{app}: no rate in what it printed: \"{said}\""))
}

/// Whether all of some programs are there; else the first that is not.
pub(crate) fn lacks<'a>(programs: &[&'a str]) -> Option<&'a str> {
    programs.iter().copied().find(|program| programs::installed(program).is_none())
}
