//! What must be so when all who used a volume are gone.

use super::Volume;
use gannet_logfs::{CheckOptions, Outcome};
use gannet_media::{Medium, OpenOptions};
use std::process::Command;
use std::time::{Duration, Instant};

/// Nobody uses a description or has a lock any more, once the dead are settled; and the closed volume is sound.
#[track_caller]
pub(crate) fn nothing_is_left(volume: Volume, what: &str) {
    let fs = volume.file_system();
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        fs.shared().reap(&*fs).expect("reaping");
        let left = (fs.shared().descriptions().expect("a count"), fs.shared().records().expect("a count"));
        if left == (0, 0) {
            break;
        }
        // Orphans of killed processes end by themselves.
        assert!(Instant::now() < deadline, "{what}: {left:?} descriptions and lock records are left");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(fs);
    is_sound(volume, what);
}

/// The closed volume is sound, and once it was closed nothing is left to repair.
#[track_caller]
fn is_sound(mut volume: Volume, what: &str) {
    volume.alone();
    let medium = Medium::open(&volume.path(), OpenOptions::default()).expect("the volume's file");
    let options = CheckOptions { repair: true, threads: 1 };
    let report = gannet_logfs::check(&medium, options, &mut |_| ()).expect("a check");
    assert!(matches!(report.outcome, Outcome::Sound) && report.findings.is_empty(), "{what}: {report:?}");
}

/// A command, yet to be named, in the volume's directory, with so many seconds until it is killed.
pub(crate) fn in_directory(volume: &Volume, seconds: u32) -> Command {
    let mut command = volume.command_with_time("sh", seconds);
    command.args(["-c", "cd /gannet && exec \"$@\"", "sh"]);
    command
}
