//! `gannet bench`: each table at its smallest, so that none rots.

mod injected;

use injected::build_library as build;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Runs the command, for twenty minutes at most.
fn gannet(arguments: &[&str]) -> Output {
    Command::new("timeout").args(["1200", env!("CARGO_BIN_EXE_gannet")]).args(arguments).output().unwrap()
}

/// A report as the schema wants it.
fn valid(json: &[u8]) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/bench.schema.json");
    let schema: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).expect("a schema in JSON");
    let schema = jsonschema::validator_for(&schema).expect("a schema");
    let report: Value = serde_json::from_slice(json).expect("JSON");
    let errors: Vec<String> =
        schema.iter_errors(&report).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "{errors:#?}");
    // What is measured is one of what the report names.
    let known = |peer: &Value| {
        ["floor", "driver"].iter().any(|name| peer == name)
            || report["peers"].as_array().unwrap().iter().any(|one| one["name"] == *peer)
    };
    for table in report["tables"].as_array().unwrap() {
        let recovery = table["command"] == "recovery";
        assert!(table["rows"].as_array().unwrap().iter().all(|row| recovery || known(&row["peer"])), "{table}");
    }
    report
}

/// Runs a table and returns its report.
fn report(table: &str) -> Value {
    build();
    // All peers once; where there are many figures, those without which the others say nothing.
    let peers: &[&str] = if table == "latency" { &[] } else { &["--peers", "gannet,gannet-pmem,gannet-mount,tmpfs"] };
    let output = gannet(&[&["bench", table, "--quick", "--json"], peers].concat());
    assert!(output.status.success(), "{output:?}");
    let report = valid(&output.stdout);
    let rows = || report["tables"].as_array().unwrap().iter().flat_map(|table| table["rows"].as_array().unwrap());
    for peer in ["gannet", "gannet-pmem", "tmpfs"] {
        let mut of_peer = rows().filter(|row| row["peer"] == peer).peekable();
        assert!(of_peer.peek().is_some(), "{table}: nothing of {peer}; skipped: {}", report["skipped"]);
        // A part of something may be nothing.
        assert!(
            of_peer.all(|row| row["value"]["median"].as_f64().is_some_and(|value| value >= 0.0)),
            "{table}, {peer}"
        );
    }
    report
}

#[test]
fn latency() {
    let report = report("latency");
    let rows = report["tables"][0]["rows"].as_array().unwrap();
    let row = |operation: &str, peer: &str| {
        rows.iter()
            .find(|row| row["operation"] == operation && row["peer"] == peer)
            .unwrap_or_else(|| panic!("{operation}, {peer}"))
    };
    let write = row("overwrite 4 KiB", "gannet-pmem");
    assert_eq!(write["cost"]["fences"], 1.0, "{write}");
    // Now and then the time of modification, when the clock has ticked.
    assert!((4096.0..4104.0).contains(&write["cost"]["bytes"].as_f64().unwrap()), "{write}");
    assert!(write["latency"]["samples"].as_u64().unwrap() > 0 && write["cpu_ns"]["median"].as_f64().unwrap() > 0.0);
    assert_eq!(row("overwrite 4 KiB", "tmpfs")["cost"], Value::Null);
    for (operation, peer) in [("overwrite 4 KiB", "floor"), ("system call", "floor"), ("empty driver", "driver")] {
        assert!(row(operation, peer)["value"]["median"].as_f64().unwrap() > 0.0);
    }
    assert!(row("attach, others attached", "gannet")["value"]["median"].as_f64().unwrap() < 1e9);
    let parts: Vec<_> = report["tables"][1]["rows"].as_array().unwrap().iter().map(|row| &row["operation"]).collect();
    assert_eq!(parts, ["interception", "lookup and bookkeeping", "lock", "copy", "fence", "all"]);
}

#[test]
fn threads() {
    let report = report("threads");
    for table in report["tables"].as_array().unwrap() {
        let counts: Vec<_> = table["rows"].as_array().unwrap().iter().map(|row| row["x"].as_f64().unwrap()).collect();
        assert!(counts.contains(&1.0) && counts.contains(&2.0), "{counts:?}");
    }
}

#[test]
fn meta() {
    let report = report("meta");
    let rows = report["tables"][0]["rows"].as_array().unwrap();
    for shape in ["DWAL", "DWOM", "DRBH", "MRPM", "MRDM", "MWCM", "MWUL", "MWRM"] {
        assert!(rows.iter().any(|row| row["operation"] == shape && row["peer"] == "gannet"), "{shape}");
    }
}

#[test]
fn files() {
    let report = report("files");
    let rows = report["tables"][0]["rows"].as_array().unwrap();
    for mix in ["fileserver", "varmail", "webserver", "webproxy"] {
        let row = rows.iter().find(|row| row["operation"] == mix && row["peer"] == "gannet-pmem");
        assert!(row.is_some_and(|row| row["workers"] == 4), "{mix}; skipped: {}", report["skipped"]);
    }
}

#[test]
fn bandwidth() {
    let report = report("bandwidth");
    let rows = report["tables"][0]["rows"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["operation"] == "write random" && row["x"] == 1_048_576.0));
}

#[test]
fn exec() {
    let report = report("exec");
    assert_eq!(report["tables"][0]["rows"].as_array().unwrap().iter().filter(|row| row["peer"] == "gannet").count(), 2);
}

#[test]
fn apps() {
    build();
    let output = gannet(&["bench", "apps", "--quick", "--json"]);
    let report = valid(&output.stdout);
    // What is not installed is skipped and named; what is, works.
    let rows = report["tables"][0]["rows"].as_array().unwrap();
    for app in
        ["SQLite insert, journal WAL", "Redis set, fsync always", "RocksDB fill, WAL synced", "PostgreSQL, pgbench"]
    {
        let skipped = report["skipped"].as_array().unwrap();
        let lacks = skipped.iter().any(|one| {
            let why = one["why"].as_str().unwrap();
            one["what"] == format!("apps: {app}")
                && ["is not installed", "there is no user postgres"].iter().any(|reason| why.contains(reason))
        });
        let measured = rows.iter().any(|row| row["operation"] == app && row["peer"] == "gannet");
        assert!(measured != lacks, "{app}; skipped: {skipped:?}");
    }
}

#[test]
fn recovery() {
    build();
    let output = gannet(&["bench", "recovery", "--quick", "--json"]);
    let report = valid(&output.stdout);
    assert_eq!(report["skipped"], Value::Array(Vec::new()));
    for table in report["tables"].as_array().unwrap() {
        let rows = table["rows"].as_array().unwrap();
        for operation in ["closed cleanly", "killed", "machine crashed"] {
            assert_eq!(rows.iter().filter(|row| row["operation"] == operation).count(), 2, "{table}");
        }
    }
}

#[test]
fn a_report_needs_nothing_else() {
    build();
    let directory = tempfile::TempDir::new().unwrap();
    let path = directory.path().join("report");
    let output = gannet(&[
        "bench",
        "latency",
        "threads",
        "recovery",
        "--quick",
        "--peers",
        "gannet-pmem,tmpfs",
        "--report",
        path.to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("overwrite 4 KiB") && text.contains("survives") && text.contains("attach"), "{text}");
    valid(&std::fs::read(path.join("results.json")).unwrap());
    let page = std::fs::read_to_string(path.join("index.html")).unwrap();
    for reference in ["src=", "href=", "@import", "url("] {
        assert!(!page.contains(reference), "the page loads something: {reference}");
    }
    assert!(page.contains("<svg") && page.contains("All figures") && page.trim_end().ends_with("</html>"));
    // The page for repositories shows plots that are there, and the figures of the front page.
    let readme = std::fs::read_to_string(path.join("README.md")).unwrap();
    let shown: Vec<&str> = readme.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()).collect();
    assert!(shown.contains(&"summary.svg") && shown.iter().all(|file| path.join(file).is_file()), "{readme}");
    assert!(readme.contains("| overwrite 4 KiB |") && readme.contains("gannet bench latency threads recovery --quick"));
    for plot in ["summary", "latency", "latency-2", "threads-write-4-KiB", "recovery", "recovery-2"] {
        let svg = std::fs::read_to_string(path.join(format!("{plot}.svg"))).unwrap_or_else(|_| panic!("{plot}.svg"));
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>") && !svg.contains("NaN"), "{plot}");
    }
}

#[test]
fn an_aged_volume_has_room_for_what_is_measured() {
    build();
    let tables = ["bench", "latency", "threads", "--quick", "--workers", "8", "--peers", "gannet-aged", "--json"];
    let output = gannet(&tables);
    let report = valid(&output.stdout);
    assert_eq!(report["skipped"], Value::Array(Vec::new()));
    let tables = report["tables"].as_array().unwrap();
    let count =
        |table: &Value| table["rows"].as_array().unwrap().iter().filter(|row| row["peer"] == "gannet-aged").count();
    // Each operation and attaching; reads and writes by 1, 2, 4 and 8.
    assert_eq!(tables.iter().map(count).collect::<Vec<_>>(), [17, 8, 8], "{output:?}");
}

#[test]
fn a_summary_is_one_table() {
    build();
    let output = gannet(&["bench", "latency", "--quick", "--summary", "--peers", "gannet,tmpfs"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find(|line| line.starts_with("overwrite 4 KiB")).unwrap_or_else(|| panic!("{text}"));
    // A time of each, and how many times the first the second is.
    assert!(line.matches(" ns").count() + line.matches(" µs").count() == 2 && line.ends_with("×)"), "{text}");
    assert!(text.contains("gannet") && text.contains("tmpfs") && !text.contains("processor time"), "{text}");
}

#[test]
fn a_peer_that_no_table_measures_is_named() {
    build();
    let report = valid(&gannet(&["bench", "exec", "--quick", "--peers", "gannet-aged,tmpfs", "--json"]).stdout);
    let skipped = report["skipped"].as_array().unwrap();
    assert!(skipped.len() == 1 && skipped[0]["what"] == "gannet-aged", "{skipped:?}");
}

#[test]
fn wrong_wishes_are_one_line() {
    build();
    let output = gannet(&["bench", "latency", "--quick", "--peers", "nonsense"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && text.lines().count() == 1 && text.contains("nonsense"), "{output:?}");
    for words in [["--directory", "nonsense"], ["--rounds", "0"], ["--workers", "0"]] {
        let output = gannet(&[&["bench", "latency", "--quick"], &words[..]].concat());
        assert!(output.status.code() == Some(2), "{output:?}");
    }
    // What is not there is not made.
    for (option, value) in
        [("--directory", "x=/nonexistent/x"), ("--medium", "/nonexistent"), ("--disk", "/nonexistent")]
    {
        let output = gannet(&["bench", "latency", "--quick", "--peers", "tmpfs", option, value]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && text.lines().count() == 1, "{output:?}");
        assert!(text.contains("there is no such directory to measure in"), "{text}");
        assert!(!Path::new("/nonexistent").exists());
    }
    // Nor is anything measured that cannot be written then.
    let output = gannet(&["bench", "latency", "--quick", "--peers", "tmpfs", "--report", "/proc/nothing"]);
    assert!(output.status.code() == Some(1) && output.stdout.is_empty(), "{output:?}");
}

/// Ends what would go on for ever, should the test fail. By an interrupt, so that it cleans up.
struct Started(Option<Child>);

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = kill_process(Pid::from_child(&child), Signal::INT);
            drop((child.stdout.take(), child.stderr.take()));
            let _ = child.wait();
        }
    }
}

/// Whether this user can mount here.
fn may_mount() -> bool {
    let directory = tempfile::TempDir::new_in("/dev/shm").unwrap();
    let path = directory.path().to_str().unwrap();
    let may = gannet(&["mount", "--memory=8M", path]).status.success();
    let unmounted = || Command::new("sh").args(["-c", "umount \"$0\" || fusermount3 -u \"$0\"", path]).output();
    // Not at the first try: programs may look at the mount in passing.
    let gone = |_| {
        unmounted().is_ok_and(|output| output.status.success()) || {
            std::thread::sleep(Duration::from_millis(50));
            false
        }
    };
    assert!(!may || (0..600).any(gone), "{path} cannot be unmounted");
    may
}

/// Begins a run that takes for ever, and ends it with a signal once it is at work; returns what it said.
fn ended_by(signal: Signal) -> Output {
    build();
    let memory = tempfile::TempDir::new_in("/dev/shm").unwrap();
    let path = memory.path().to_str().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gannet"));
    command.args(["bench", "latency", "threads", "--rounds", "1000000", "--peers", "gannet,gannet-mount"]);
    command.args(["--volume-size", "64M", "--json", "--medium", path, "--disk", path]);
    let mut child = Started(Some(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()));
    let (process, id) = child.0.as_ref().map(|child| (Pid::from_child(child), child.id())).unwrap();
    let own = memory.path().join(format!("gannet-bench-{id}"));
    let is_mounted = || std::fs::read_to_string("/proc/self/mountinfo").unwrap().contains(path);
    let wait_for = |what: &str, seconds: u64, is_so: &dyn Fn() -> bool| {
        let deadline = Instant::now() + Duration::from_secs(seconds);
        while !is_so() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    wait_for("it begins", 300, &|| own.join("gannet-mount/mounted").exists());
    // Where nothing can be mounted there is one peer less.
    if may_mount() {
        wait_for("it measures", 300, &is_mounted);
    }
    kill_process(process, signal).unwrap();
    let output = child.0.take().unwrap().wait_with_output().unwrap();
    // Killed, it cannot wait for the process that cleans up.
    wait_for("all is removed", 300, &|| !own.exists() && !is_mounted());
    output
}

#[test]
fn an_interrupt_ends_a_run_in_order() {
    let output = ended_by(Signal::INT);
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let report = valid(&output.stdout);
    let skipped = report["skipped"].as_array().unwrap();
    assert!(skipped.iter().any(|one| one["why"] == "interrupted"), "{skipped:?}");
}

#[test]
fn a_killed_run_leaves_nothing_behind() {
    assert_eq!(ended_by(Signal::KILL).status.code(), None);
}
