//! Being called by `mount.fuse3`, as `mount -t fuse.gannet` does where nobody has installed the helper.
//!
//! It calls the program by its own name, with `suid` and `dev` among the options whenever their opposites were not given.

use crate::life::{unmount, words};
use crate::{Bench, gannet, hindrance};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::{Command, Output};

const FUSE3: &str = "/sbin/mount.fuse3";

/// Calls the program as `mount.fuse3` does.
fn as_fuse3(bench: &Bench, options: &str) -> Output {
    gannet([bench.volume().as_os_str(), bench.at().as_os_str(), OsStr::new("-o"), options.as_ref()])
}

/// The same by the program itself, if it is installed.
fn by_fuse3(bench: &Bench, options: &str) -> Option<Output> {
    let mut what = OsString::from(env!("CARGO_BIN_EXE_gannet"));
    what.push("#");
    what.push(bench.volume());
    let mut command = Command::new(FUSE3);
    command.arg(what).arg(bench.at()).args(["-o", options]);
    Path::new(FUSE3).exists().then(|| command.output().expect("it runs"))
}

fn is_without_rights(bench: &Bench, mounted: &Output) {
    assert!(mounted.status.success(), "{mounted:?}");
    let shown = words(&bench.at());
    assert!(shown.starts_with("rw,nosuid,nodev,"), "{shown}");
    unmount(&bench.at());
}

#[test]
fn what_it_adds_by_itself_gives_no_rights() {
    if let Some(why) = hindrance() {
        return eprintln!("skipped: {why}");
    }
    let bench = Bench::new();
    is_without_rights(&bench, &as_fuse3(&bench, "rw,dev,suid"));
    by_fuse3(&bench, "rw").iter().for_each(|mounted| is_without_rights(&bench, mounted));
    // And asks for none: a user's volume can be mounted.
    std::os::unix::fs::chown(bench.volume(), Some(1234), None).unwrap();
    is_without_rights(&bench, &as_fuse3(&bench, "rw,dev,suid"));
    by_fuse3(&bench, "rw").iter().for_each(|mounted| is_without_rights(&bench, mounted));
}

#[test]
fn who_asks_for_rights_gets_them() {
    if let Some(why) = hindrance() {
        return eprintln!("skipped: {why}");
    }
    let bench = Bench::new();
    for mounted in
        [Some(as_fuse3(&bench, "rw,dev,suid,allow_suid,allow_dev")), by_fuse3(&bench, "allow_suid,allow_dev")]
    {
        let Some(mounted) = mounted else { continue };
        assert!(mounted.status.success(), "{mounted:?}");
        let shown = words(&bench.at());
        assert!(!shown.contains("nosuid") && !shown.contains("nodev"), "{shown}");
        unmount(&bench.at());
    }
    bench.check();
}
