//! The command on volumes that somebody has open, or had open when he was killed.

use crate::{Bench, failure, gannet, success};
use std::fs;
use std::path::Path;
use std::process::Command;

#[test]
fn a_volume_that_is_open_is_left_alone() {
    let bench = Bench::new();
    let path = bench.volume();
    let volume = path.to_str().unwrap();
    let open = gannet_open::open(&path, gannet_open::Options::default()).unwrap();
    let node = open.create(
        open.root(),
        gannet_vfs::Name::new(b"file").unwrap(),
        &gannet_vfs::NewNode::regular(0o600, gannet_vfs::Owner::default()),
    );
    node.unwrap();
    let info = success(&["info", volume]);
    assert!(info.contains("state     open") && info.contains(&format!("in use by {}", std::process::id())), "{info}");
    assert!(info.contains("2 of 1023 inodes"), "{info}");
    assert!(success(&["fsck", volume]).starts_with("somebody has the volume open"));
    assert!(failure(&["fsck", "--repair", volume], 8).contains("somebody has the volume open"));
    assert!(failure(&["mkfs", "--force", "--size", "2M", volume], 1).contains("somebody has this volume open"));
    drop(open);
    let info = success(&["info", volume]);
    assert!(info.contains("closed cleanly") && info.contains("2 of 1023 inodes"), "{info}");
    assert!(success(&["fsck", volume]).contains("sound; 1 files"));
}

/// Ends another thread's work, also where the test fails: it is waited for.
struct StopAtEnd<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

#[test]
fn beside_a_writer_nothing_is_called_damaged() {
    let bench = Bench::new();
    let path = bench.volume();
    let volume = path.to_str().unwrap();
    let open = gannet_open::open(&path, gannet_open::Options::default()).unwrap();
    let name = |text: &'static str| gannet_vfs::Name::new(text.as_bytes()).unwrap();
    let owner = gannet_vfs::Owner::default();
    let directory = open.create(open.root(), name("directory"), &gannet_vfs::NewNode::directory(0o700, owner)).unwrap();
    let checked = |code: &[i32]| {
        let output = gannet(&["fsck", "--json", volume]);
        let said = String::from_utf8(output.stdout).unwrap();
        let found = output.status.code().unwrap();
        assert!(code.contains(&found), "{found}: {said}");
        let outcome = match found {
            0 => "sound",
            4 => "damaged",
            _ => "undecided",
        };
        assert!(said.contains(&format!("\"outcome\": \"{outcome}\"")), "{found}: {said}");
    };
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let root = open.root();
                for (from, to) in [(root, directory), (directory, root)] {
                    open.create(from, name("file"), &gannet_vfs::NewNode::regular(0o600, owner)).unwrap();
                    open.rename(from, name("file"), to, name("moved"), gannet_vfs::RenameFlags::empty()).unwrap();
                    open.remove(to, name("moved"), gannet_vfs::RemoveKind::NonDirectory).unwrap();
                }
            }
        });
        for _ in 0..12 {
            checked(&[0, 8]);
        }
    });
    // What is there each time is told, and is no verdict either until they are gone.
    let length = fs::metadata(&path).unwrap().len();
    let file = fs::File::options().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xDD; 64], length - 4096).unwrap();
    let output = gannet(&["fsck", volume]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(8), "{said}");
    assert!(said.contains("there is no verdict") && said.contains("replica of the superblock"), "{said}");
    drop(open);
    checked(&[4]);
}

#[test]
fn a_volume_that_was_not_closed_is_recovered_by_repair() {
    let bench = Bench::new();
    let path = bench.volume();
    let volume = path.to_str().unwrap();
    let open = gannet_open::open(&path, gannet_open::Options::default()).unwrap();
    let copy = bench.path("copy");
    fs::copy(&path, &copy).unwrap();
    drop(open);
    let copy = copy.to_str().unwrap();
    assert!(success(&["info", copy]).contains("not closed cleanly"));
    assert!(success(&["fsck", copy]).contains("the next use recovers it, or --repair"));
    assert!(success(&["fsck", "--repair", copy]).contains("and was recovered"));
    assert!(success(&["info", copy]).contains("closed cleanly"));
    assert!(success(&["fsck", volume]).contains("sound"));
}

const USER_OF: &str = "GANNET_TEST_COMMANDS_USER_OF";

/// A process that has a volume open; nothing in any other run of the tests.
#[test]
fn user_of_a_volume() {
    let Some(volume) = std::env::var_os(USER_OF) else { return };
    let _open = gannet_open::open_volume(Path::new(&volume), gannet_open::Options::default()).unwrap();
    loop {
        std::thread::sleep(std::time::Duration::from_secs(3600));
    }
}

/// A process that goes on until it is killed: at the end of what it is for, also where a test fails.
struct KilledAtEnd(std::process::Child);

impl Drop for KilledAtEnd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whoever has it open cannot be asked where his shared state is elsewhere: that it is open is said all the same, and not that it crashed.
#[test]
fn a_volume_that_is_open_elsewhere_is_said_to_be_open() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("left out: it takes root");
    }
    // Not where the other /dev/shm hides it.
    let directory = tempfile::TempDir::new().unwrap();
    let path = directory.path().join("volume");
    let volume = path.to_str().unwrap();
    success(&["mkfs", volume, "--size", "4M"]);
    let from_elsewhere = |option: &str| {
        let script = "mount -t tmpfs none /dev/shm && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_gannet"), "info", option, volume]);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let figures = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    assert_eq!(figures(&success(&["info", "--json", volume]))["open"], false);
    let open = gannet_open::open(&path, gannet_open::Options::default()).unwrap();
    let here = figures(&success(&["info", "--json", volume]));
    assert!(here["open"] == true && here["participants"].is_array(), "{here}");
    let there = figures(&from_elsewhere("--json"));
    assert!(there["open"] == true && there["participants"].is_null() && there["free_bytes"].is_null(), "{there}");
    let text = from_elsewhere("--");
    for words in ["used      not known: who has it open cannot be asked", "by whom cannot be found out"] {
        assert!(text.contains(words), "{words} in {text}");
    }
    drop(open);
}

/// Nobody comes back to what killed users left of a volume that is repaired, or that another takes the place of.
#[test]
fn what_killed_users_left_goes_with_a_repair_and_with_a_new_volume() {
    use std::os::unix::fs::MetadataExt;
    let bench = Bench::new();
    let path = bench.volume();
    let volume = path.to_str().unwrap();
    let arenas = || {
        let file = fs::metadata(&path).unwrap();
        let nonce = format!("-{:016x}", file.dev().rotate_left(32) ^ file.ino());
        let names = fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("gannet-") && name.ends_with(&nonce)).count()
    };
    for last in [&["fsck", "--repair", volume][..], &["mkfs", volume, "--size", "4M", "--force"]] {
        let mut user = Command::new(std::env::current_exe().unwrap());
        user.args(["--exact", "users::user_of_a_volume"]).env(USER_OF, volume).stdout(std::process::Stdio::null());
        let user = KilledAtEnd(user.spawn().unwrap());
        let began = std::time::Instant::now();
        while arenas() == 0 {
            assert!(began.elapsed().as_secs() < 120, "nobody opened the volume");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        drop(user);
        assert_eq!(arenas(), 1, "a killed user leaves it");
        success(last);
        assert_eq!(arenas(), 0, "{last:?}");
    }
}
