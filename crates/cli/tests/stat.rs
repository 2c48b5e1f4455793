//! `gannet stat`: figures for programs, and the page on a terminal; `gannet run --stats`.

mod injected;

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A volume that the test itself has open, in which something has been done.
struct Used {
    directory: tempfile::TempDir,
    _volume: std::sync::Arc<gannet_logfs::LogFs>,
}

impl Used {
    fn new() -> Self {
        let memory = Path::new("/dev/shm");
        let directory = if memory.is_dir() { tempfile::TempDir::new_in(memory) } else { tempfile::TempDir::new() };
        let directory = directory.unwrap();
        let path = directory.path().join("volume");
        let made = Command::new(env!("CARGO_BIN_EXE_gannet")).arg("mkfs").arg(&path).args(["--size", "4M"]).output();
        assert!(made.unwrap().status.success());
        let volume = gannet_open::open_volume(&path, gannet_open::Options::default()).unwrap();
        let new = gannet_vfs::NewNode::regular(0o644, gannet_vfs::Owner::default());
        let name = gannet_vfs::Name::new(b"file").unwrap();
        gannet_vfs::FileSystem::create(&*volume, gannet_vfs::FileSystem::root(&*volume), name, &new).unwrap();
        Self { directory, _volume: volume }
    }

    fn path(&self) -> String {
        self.directory.path().join("volume").to_str().unwrap().to_owned()
    }

    /// A process that has the volume open and maps a file at a path that is no text, until its standard input ends.
    fn user_with_odd_maps(&self) -> Running {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--nocapture", "--exact", "maps_an_odd_path_when_told"]).env("GANNET_TEST_ODD", self.path());
        let mut running = Running(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
        let mut lines = BufReader::new(running.0.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().ends_with("it is mapped")));
        running
    }
}

/// Ends what would go on for ever.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn figures_for_programs_once_and_each_second() {
    let used = Used::new();
    let once = Command::new(env!("CARGO_BIN_EXE_gannet")).args(["stat", "--json", &used.path()]).output().unwrap();
    let figures: Value = serde_json::from_slice(&once.stdout).unwrap();
    assert!(figures["changes"].as_u64().unwrap() >= 1, "{figures}");
    assert_eq!(figures["participants"].as_array().unwrap().len(), 1, "{figures}");
    let created = figures["operations"].as_array().unwrap().iter().find(|one| one["name"] == "create").unwrap();
    assert!(created["calls"] == 1 && created["p50_ns"].as_u64().unwrap() > 0, "{created}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_gannet"));
    command.args(["stat", "--watch", "--json", &used.path()]).stdout(Stdio::piped());
    let mut running = Running(command.spawn().unwrap());
    let lines = BufReader::new(running.0.stdout.take().unwrap()).lines();
    for line in lines.take(2) {
        let figures: Value = serde_json::from_str(&line.unwrap()).unwrap();
        assert!(figures["blocks_free"].as_u64().unwrap() > 0);
    }
}

#[test]
fn a_page_on_a_terminal_ends_with_a_key() {
    let used = Used::new();
    // script(1) gives it a terminal.
    let mut command = Command::new("script");
    command.args(["-qec", &format!("{} stat --watch {}", env!("CARGO_BIN_EXE_gannet"), used.path()), "/dev/null"]);
    command.env("TERM", "xterm").stdin(Stdio::piped()).stdout(Stdio::piped());
    let Ok(child) = command.spawn() else { return eprintln!("skipped: there is no script(1)") };
    let mut running = Running(child);
    let mut keys = running.0.stdin.take().unwrap();
    let mut output = running.0.stdout.take().unwrap();
    let mut seen = String::new();
    let mut piece = [0; 4096];
    // The second page has figures of a second, and the first begins with the other screen.
    while seen.matches("open by 1").count() < 2 {
        let count = output.read(&mut piece).unwrap();
        assert!(count > 0, "it ended by itself: {seen}");
        seen += &String::from_utf8_lossy(&piece[..count]);
    }
    keys.write_all(b"q").unwrap();
    output.read_to_string(&mut seen).unwrap();
    assert!(running.0.wait().unwrap().success(), "{seen}");
    for part in ["\x1b[?1049h", "each second", "fences", "free of", "q: quit", "\x1b[?1049l"] {
        assert!(seen.contains(part), "{part:?} in {seen}");
    }
}

fn gannet_json(arguments: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_gannet")).args(arguments).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{arguments:?}: {output:?}"))
}

/// By the program's default, so that whoever waits for it sees the signal.
#[test]
fn a_signal_ends_it_and_its_last_user_closes_the_volume() {
    use rustix::process::{Pid, Signal, kill_process};
    use std::os::unix::process::ExitStatusExt;
    for (signal, json) in
        [(Signal::INT, false), (Signal::TERM, false), (Signal::HUP, false), (Signal::QUIT, false), (Signal::INT, true)]
    {
        let Used { directory, _volume: volume } = Used::new();
        let path = directory.path().join("volume").to_str().unwrap().to_owned();
        // Without a core file.
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -c 0; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_gannet"), "stat", "--watch", &path]);
        command.args(json.then_some("--json")).stdout(Stdio::piped());
        let mut running = Running(command.spawn().unwrap());
        let mut lines = BufReader::new(running.0.stdout.take().unwrap()).lines();
        lines.next().unwrap().unwrap();
        drop(volume);
        kill_process(Pid::from_child(&running.0), signal).unwrap();
        assert_eq!(running.0.wait().unwrap().signal(), Some(signal.as_raw()));
        let about = gannet_json(&["info", "--json", &path]);
        assert_eq!(about["closed_cleanly"], true, "{signal:?}: {about}");
    }
}

#[test]
fn ignored_signals_stay_so() {
    use rustix::process::{Pid, Signal, kill_process};
    let used = Used::new();
    let mut command = Command::new("nohup");
    command.args([env!("CARGO_BIN_EXE_gannet"), "stat", "--watch", "--json", &used.path()]);
    let mut running = Running(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(running.0.stdout.take().unwrap()).lines();
    lines.next().unwrap().unwrap();
    kill_process(Pid::from_child(&running.0), Signal::HUP).unwrap();
    // As many as come in a pipe before it could be noticed, and more.
    assert!((0..3).all(|_| lines.next().is_some_and(|line| line.is_ok())));
}

#[test]
fn a_signal_gives_the_terminal_back() {
    use rustix::process::{Pid, Signal, kill_process};
    let used = Used::new();
    let mut command = Command::new("script");
    let program = env!("CARGO_BIN_EXE_gannet");
    command.args(["-qec", &format!("ulimit -c 0; exec {program} stat --watch {}", used.path()), "/dev/null"]);
    command.env("TERM", "xterm").stdin(Stdio::piped()).stdout(Stdio::piped());
    let Ok(child) = command.spawn() else { return eprintln!("skipped: there is no script(1)") };
    let mut running = Running(child);
    let mut output = running.0.stdout.take().unwrap();
    let (mut seen, mut piece) = (String::new(), [0; 4096]);
    while !seen.contains("q: quit") {
        let count = output.read(&mut piece).unwrap();
        assert!(count > 0, "it ended by itself: {seen}");
        seen += &String::from_utf8_lossy(&piece[..count]);
    }
    let about = gannet_json(&["info", "--json", &used.path()]);
    let mut pids = about["participants"].as_array().unwrap().iter().map(|one| one["pid"].as_u64().unwrap());
    let other = pids.find(|&pid| pid != u64::from(std::process::id())).unwrap_or_else(|| panic!("{about}"));
    kill_process(Pid::from_raw(other as i32).unwrap(), Signal::QUIT).unwrap();
    output.read_to_string(&mut seen).unwrap();
    assert!(seen.contains("\x1b[?25h\x1b[?1049l"), "{seen}");
}

/// A lock of the volume's shared state: what excludes two writes to the same part of a file.
fn data_lock(volume: &gannet_logfs::LogFs) -> gannet_shm::ArenaOffset {
    volume.session().arena().region("stripes").unwrap().start
}

/// The other process of the test below: holds a lock and is stopped. Not told to, it does nothing.
#[test]
fn holds_a_lock_when_told() {
    let Some(path) = std::env::var_os("GANNET_TEST_HOLD") else { return };
    let volume = gannet_open::open_volume(Path::new(&path), gannet_open::Options::default()).unwrap();
    let thread = volume.session().thread().unwrap();
    let guard = thread.lock(data_lock(&volume)).unwrap();
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP).unwrap();
    // It is not certain that this thread is stopped at once; it goes no further than here.
    std::io::stdin().read_to_string(&mut String::new()).unwrap();
    guard.unlock();
}

#[test]
fn who_is_waited_for_is_named() {
    use rustix::process::{Pid, Signal, kill_process};
    let used = Used::new();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "holds_a_lock_when_told"]).env("GANNET_TEST_HOLD", used.path());
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    let mut holder = Running(command.spawn().unwrap());
    let pid = holder.0.id();
    let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let begun = std::time::Instant::now();
    while state().rsplit(')').next().unwrap().trim_start().as_bytes()[0] != b'T' {
        assert!(begun.elapsed().as_secs() < 120, "it does not stop: {}", state());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    // By itself, so that it is not waited for where the test fails.
    let volume = used._volume.clone();
    let waiter =
        std::thread::spawn(move || volume.session().thread().unwrap().lock(data_lock(&volume)).unwrap().unlock());
    for what in ["stat", "info"] {
        let waiting = first_who_waits(&used, what, 120);
        assert_eq!(
            (&waiting["holder"]["pid"], &waiting["holder"]["stopped"]),
            (&pid.into(), &true.into()),
            "{what}: {waiting}"
        );
        assert_eq!(waiting["waiter"]["pid"], std::process::id(), "{what}: {waiting}");
        assert_eq!(waiting["lock"], "the data of a file", "{what}: {waiting}");
        // Who waits does not while it looks again whether the holder lives.
        let line = (0..1000).find_map(|_| {
            let text = told(&used, &[what]);
            text.lines().find(|line| line.trim_start().starts_with("waiting")).map(str::to_owned)
        });
        let line = line.unwrap_or_else(|| panic!("{what} names no waiter"));
        assert!(line.contains("held by thread ") && line.contains(&format!(" of {pid} ")), "{line}");
        assert!(line.ends_with("(stopped)"), "{line}");
    }
    drop(holder.0.stdin.take());
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::CONT).unwrap();
    waiter.join().unwrap();
    assert!(holder.0.wait().unwrap().success());
}

/// What the command says of the volume.
fn told(used: &Used, arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_gannet")).args(arguments).arg(used.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// What `stat` or `info` says of the first who waits for a lock, once somebody does: within so many seconds.
#[track_caller]
fn first_who_waits(used: &Used, what: &str, seconds: u64) -> Value {
    let begun = std::time::Instant::now();
    loop {
        assert!(begun.elapsed().as_secs() < seconds, "{what}: nobody waits");
        let figures: Value = serde_json::from_str(&told(used, &[what, "--json"])).unwrap();
        if let Some(one) = figures["waiting"].as_array().unwrap().first() {
            return one.clone();
        }
    }
}

/// Who waits for a lock on a file waits for a program: `stat` and `info` name both.
#[test]
fn who_waits_for_a_lock_on_a_file_is_named() {
    use gannet_vfs::shared::{AccessMode, LockOwner, LockRange, LockRequest};
    use gannet_vfs::{FileSystem, Name};
    let used = Used::new();
    let volume = used._volume.clone();
    let node = volume.lookup(volume.root(), Name::new(b"file").unwrap()).unwrap().node;
    let process = std::process::id();
    let request = move |volume: &gannet_logfs::LogFs| {
        let open = volume.shared().open(volume, node, AccessMode::READ | AccessMode::WRITE, 0).unwrap();
        LockRequest { node, owner: LockOwner::Flock(open), exclusive: Some(true), range: LockRange::ALL, process }
    };
    let held = request(&volume);
    volume.shared().try_lock(&*volume, &held).unwrap();
    let waits = {
        let volume = volume.clone();
        std::thread::spawn(move || {
            let wanted = request(&volume);
            volume.shared().lock(&*volume, &wanted, &mut || false).unwrap();
        })
    };
    let lock = format!("a lock on inode {}", node.number);
    for what in ["stat", "info"] {
        let waiting = first_who_waits(&used, what, 60);
        assert_eq!((&waiting["waiter"]["pid"], &waiting["holder"]["pid"]), (&process.into(), &process.into()));
        assert_eq!(waiting["lock"], lock.as_str(), "{waiting}");
        let text = told(&used, &[what]);
        let line = text.lines().find(|line| line.trim_start().starts_with("waiting"));
        assert!(line.is_some_and(|line| line.contains(&format!("for {lock}, held by {process} "))), "{text}");
    }
    volume.shared().try_lock(&*volume, &LockRequest { exclusive: None, ..held }).unwrap();
    waits.join().unwrap();
    assert_eq!(volume.shared().lock_waits().unwrap(), []);
}

/// Who waits for a lock on a file waits for a program, which `info` names.
#[test]
fn who_holds_locks_on_files_is_named() {
    use gannet_vfs::shared::{AccessMode, LockOwner, LockRange, LockRequest};
    use gannet_vfs::{FileSystem, Name};
    let used = Used::new();
    let volume = &*used._volume;
    let node = volume.lookup(volume.root(), Name::new(b"file").unwrap()).unwrap().node;
    let shared = volume.shared();
    let open = shared.open(volume, node, AccessMode::READ | AccessMode::WRITE, 0).unwrap();
    let process = std::process::id();
    let locks = [
        (LockOwner::Flock(open), true, LockRange::ALL),
        (shared.process_owner().unwrap(), false, LockRange::new(5, 10).unwrap()),
    ];
    for (owner, exclusive, range) in locks {
        let request = LockRequest { node, owner, exclusive: Some(exclusive), range, process };
        shared.try_lock(volume, &request).unwrap();
    }
    let info = |more: &[&str]| {
        let output =
            Command::new(env!("CARGO_BIN_EXE_gannet")).args(["info", &used.path()]).args(more).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let text = info(&[]);
    let of = |what: &str| {
        let found = text.lines().find(|line| line.trim_start().starts_with("locked") && line.contains(what));
        found.unwrap_or_else(|| panic!("{what:?}: {text}")).to_owned()
    };
    let held = of(&format!("inode {}: exclusive flock, held for ", node.number));
    assert!(held.contains(&format!(" ms by {process} ")), "{held}");
    of(&format!("inode {}, bytes 5 to 14: shared record lock of a process, held for ", node.number));
    let figures: Value = serde_json::from_str(&info(&["--json"])).unwrap();
    let locked = figures["locked"].as_array().unwrap();
    assert_eq!(locked.len(), 2, "{locked:?}");
    for one in locked {
        let (is_flock, ms) = (one["kind"] == "flock", one["held_ms"].as_u64().unwrap());
        assert_eq!((&one["inode"], &one["pid"]), (&node.number.into(), &process.into()), "{one}");
        assert_eq!(one["ended"], false, "{one}");
        assert_eq!((&one["exclusive"], one["last_byte"].is_null()), (&is_flock.into(), is_flock), "{one}");
        assert!(ms < 3_600_000, "since it was taken, not since 1970: {one}");
    }
}

/// The other process of the test below. Not told to, it does nothing.
#[test]
fn maps_an_odd_path_when_told() {
    use std::os::unix::ffi::OsStrExt;
    let Some(path) = std::env::var_os("GANNET_TEST_ODD") else { return };
    let path = Path::new(&path);
    let _volume = gannet_open::open_volume(path, gannet_open::Options::default()).unwrap();
    let odd = path.with_file_name(std::ffi::OsStr::from_bytes(b"odd\xff"));
    std::fs::write(&odd, [0; 4096]).unwrap();
    let _mapped = gannet_media::Medium::open(&odd, gannet_media::OpenOptions::default()).unwrap();
    println!("it is mapped");
    std::io::stdin().read_to_string(&mut String::new()).unwrap();
}

/// It is told of a process's maps whether its number means the same here: of any bytes in them, and where they cannot be seen, nothing is said.
#[test]
fn a_pid_namespace_is_called_another_only_where_it_is() {
    let used = Used::new();
    let user = used.user_with_odd_maps();
    let pid = user.0.id();
    let line = |text: &str| text.lines().find(|line| line.contains(&format!("in use by {pid} "))).unwrap().to_owned();
    let text = told(&used, &["info"]);
    assert!(!line(&text).contains("namespace"), "{text}");
    let figures: Value = serde_json::from_str(&told(&used, &["info", "--json"])).unwrap();
    let users = figures["participants"].as_array().unwrap();
    assert!(users.len() == 2 && users.iter().all(|one| one["same_pid_namespace"] == true), "{figures}");
    let in_namespaces = |flags: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(flags).args([env!("CARGO_BIN_EXE_gannet"), "info", &used.path()]);
        let output = command.output().ok().filter(|output| output.status.success())?;
        String::from_utf8(output.stdout).ok().filter(|text| text.contains("in use by"))
    };
    match in_namespaces(&["-Ur"]) {
        Some(text) => assert!(line(&text).ends_with("(whether of this PID namespace cannot be seen)"), "{text}"),
        None => eprintln!("left out: no user namespaces here"),
    }
    // With the /proc of the namespace outside, and with its own.
    for (flags, words) in [(&["-pf"][..], "cannot be seen)"), (&["-pf", "--mount-proc"], "(another PID namespace)")] {
        match in_namespaces(flags) {
            Some(text) => assert!(line(&text).ends_with(words), "{text}"),
            None => eprintln!("left out: it takes root"),
        }
    }
}

/// A lock stays while somebody has the file open that took it, and that need not be the process that did.
#[test]
fn a_lock_whose_taker_has_ended_is_said() {
    use gannet_vfs::shared::{AccessMode, LockOwner, LockRange, LockRequest};
    use gannet_vfs::{FileSystem, Name};
    let used = Used::new();
    let volume = &*used._volume;
    let node = volume.lookup(volume.root(), Name::new(b"file").unwrap()).unwrap().node;
    let open = volume.shared().open(volume, node, AccessMode::READ | AccessMode::WRITE, 0).unwrap();
    let mut ended = Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    let (owner, process) = (LockOwner::Flock(open), ended.id());
    let request = LockRequest { node, owner, exclusive: Some(true), range: LockRange::ALL, process };
    volume.shared().try_lock(volume, &request).unwrap();
    let text = told(&used, &["info"]);
    let own = std::process::id();
    let wanted = format!(" ms by {process}, which has ended; the file that it had open is open in {own} ");
    assert!(text.lines().any(|line| line.trim_start().starts_with("locked") && line.contains(&wanted)), "{text}");
    let figures: Value = serde_json::from_str(&told(&used, &["info", "--json"])).unwrap();
    assert_eq!((&figures["locked"][0]["pid"], &figures["locked"][0]["ended"]), (&process.into(), &true.into()));
    assert_eq!(figures["locked"][0]["open_in"].as_array().map(Vec::len), Some(1), "only it, and not who looks");
    assert_eq!(figures["locked"][0]["open_in"][0]["pid"], own);
}

#[test]
fn what_a_program_did_is_told_at_its_end() {
    injected::build_library();
    let directory = tempfile::TempDir::new().unwrap();
    let volume = directory.path().join("volume").to_str().unwrap().to_owned();
    let gannet = |arguments: &[&str]| {
        let mut command = Command::new("timeout");
        command.args(["-s", "KILL", "600", env!("CARGO_BIN_EXE_gannet")]).args(arguments).output().unwrap()
    };
    assert!(gannet(&["mkfs", &volume, "--size", "8M"]).status.success());
    let script = "for n in 1 2 3; do echo $n > /gannet/f$n; done; cat /gannet/f*";
    let output = gannet(&["run", "--stats", &volume, "--", "sh", "-c", script]);
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"1\n2\n3\n"[..]), "{output:?}");
    let told = String::from_utf8(output.stderr).unwrap();
    let calls = |name: &str| {
        let line = told.lines().find(|line| line.trim_start().starts_with(name)).unwrap_or_else(|| panic!("{told}"));
        let words: Vec<_> = line.split_whitespace().collect();
        // A time for the median.
        assert!(["ns", "µs", "ms", "s"].contains(&words[3]), "{told}");
        words[1].parse::<u64>().unwrap()
    };
    assert_eq!((calls("create"), calls("write")), (3, 3), "{told}");
    assert!(calls("read") >= 3 && told.contains("written 6 B") && told.contains(" fences"), "{told}");
    // Who only looks, and leaves last, closes the volume.
    let about = gannet(&["info", "--json", &volume]);
    let about: Value = serde_json::from_slice(&about.stdout).unwrap();
    assert_eq!(about["closed_cleanly"], true, "{about}");
}

/// What is written with `O_SYNC`, `O_DSYNC`, `RWF_SYNC` or `RWF_DSYNC` is synced where that is something to do, and nowhere else.
#[test]
fn synced_writes_sync_a_volume_on_a_disk() {
    injected::build_library();
    let memory = Used::new().directory;
    let disk = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for (directory, wanted) in [(&memory, 0), (&disk, 5)] {
        let volume = directory.path().join("synced").to_str().unwrap().to_owned();
        let gannet = |arguments: &[&str]| Command::new(env!("CARGO_BIN_EXE_gannet")).args(arguments).output().unwrap();
        assert!(gannet(&["mkfs", &volume, "--size", "4M"]).status.success());
        if wanted > 0 && !gannet_json(&["info", "--json", &volume]).to_string().contains("file on a disk") {
            return eprintln!("skipped: {} is not on a disk", env!("CARGO_TARGET_TMPDIR"));
        }
        let syncs = |command: &[&str]| {
            let output = gannet(&[&["run", "--stats", &volume, "--"], command].concat());
            let told = String::from_utf8(output.stderr).unwrap();
            assert!(output.status.success(), "{told}");
            let line = told.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            line.filter(|line| line.first() == Some(&"sync")).map(|line| line[1].parse::<u64>().unwrap()).sum::<u64>()
        };
        let dd =
            |flag: &str| syncs(&["dd", "if=/dev/zero", "of=/gannet/file", "bs=4096", "count=5", "status=none", flag]);
        assert_eq!(
            ["conv=notrunc", "oflag=sync", "oflag=dsync", "oflag=append,dsync"].map(dd),
            [0, wanted, wanted, wanted]
        );
        let python = |flag: &str| {
            let text = format!(
                "import os\nf = os.open('/gannet/file', os.O_WRONLY)\nfor i in range(5): os.pwritev(f, [b'x'], i, {flag})"
            );
            syncs(&["python3", "-c", &text])
        };
        if Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success()) {
            assert_eq!(["0", "os.RWF_DSYNC", "os.RWF_SYNC"].map(python), [0, wanted, wanted]);
        }
    }
}
