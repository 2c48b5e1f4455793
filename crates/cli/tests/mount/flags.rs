//! Flags of mounts: what a remount keeps, what is understood, and where `suid` and `dev` may be given.

use crate::life::unmount;
use crate::started::{helper, one_line};
use crate::{Bench, hindrance};
use rustix::fs::{OFlags, StatVfsMountFlags as Flags};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

const NOSYMFOLLOW: u64 = 0x2000;

fn flags(path: &Path) -> Flags {
    rustix::fs::statvfs(path).expect("it answers").f_flag
}

/// A mount that goes with this.
struct Unmounted(PathBuf);

impl Drop for Unmounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// Mounts, or remounts, as mount(8) asks for it.
fn asks(bench: &Bench, at: &Path, words: &str) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gannet"));
    command.args(["mount", "-o", words]).arg(bench.volume()).arg(at).output().expect("it runs")
}

#[test]
fn a_remount_changes_what_it_names_and_nothing_else() {
    if let Some(why) = hindrance() {
        return eprintln!("skipped: {why}");
    }
    let bench = Bench::new();
    let at = bench.at();
    let does = |at: &Path, words: &str| {
        let done = asks(&bench, at, words);
        assert!(done.status.success(), "{words}: {done:?}");
    };
    let kept = Flags::NOSUID | Flags::NODEV | Flags::NOEXEC;
    does(&at, "noexec");
    assert!(flags(&at).contains(kept));
    does(&at, "remount,ro");
    assert!(flags(&at).contains(kept | Flags::RDONLY), "{:?}", flags(&at));
    does(&at, "remount,exec");
    assert!(flags(&at).contains(Flags::RDONLY) && !flags(&at).contains(Flags::NOEXEC), "{:?}", flags(&at));
    does(&at, "remount,rw,noexec");
    assert!(flags(&at).contains(kept) && !flags(&at).contains(Flags::RDONLY), "{:?}", flags(&at));
    // Somewhere else in the table of mounts is a name that is no text.
    let strange = bench.directory.path().join(OsStr::from_bytes(b"bad\xff"));
    fs::create_dir(&strange).unwrap();
    rustix::mount::mount("none", &strange, "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
    let strange = Unmounted(strange);
    does(&at, "remount,ro");
    assert!(flags(&at).contains(kept | Flags::RDONLY), "{:?}", flags(&at));
    drop(strange);
    unmount(&at);
    // And names that the table writes otherwise.
    for name in ["odd\\dir", "with\nline", "with blank\ttab"] {
        let odd = bench.directory.path().join(name);
        fs::create_dir(&odd).unwrap();
        let _unmounted = Unmounted(odd.clone());
        does(&odd, "");
        does(&odd, "remount,ro");
        assert!(flags(&odd).contains(Flags::NOSUID | Flags::NODEV | Flags::RDONLY), "{name:?}: {:?}", flags(&odd));
        unmount(&odd);
    }
    bench.check();
}

#[test]
fn access_times_are_what_they_were_mounted_with() {
    if let Some(why) = hindrance() {
        return eprintln!("skipped: {why}");
    }
    let bench = Bench::new();
    for (first, same, other) in [
        ("relatime", "ro,relatime", "noatime"),
        ("noatime", "ro,noatime", "relatime"),
        ("nodiratime", "ro,nodiratime", "diratime"),
        ("relatime", "ro,diratime", "nodiratime"),
    ] {
        assert!(helper(&bench, &bench.volume(), &["-o", first]).status.success());
        let before = flags(&bench.at());
        let refused = helper(&bench, &bench.volume(), &["-o", &format!("remount,ro,{other}")]);
        assert!(one_line(&refused).contains("access times"));
        assert_eq!(flags(&bench.at()), before, "nothing else is changed, either");
        let done = helper(&bench, &bench.volume(), &["-o", &format!("remount,{same}")]);
        assert!(done.status.success(), "{done:?}");
        assert_eq!(flags(&bench.at()), before | Flags::RDONLY);
        unmount(&bench.at());
    }
    bench.check();
}

#[test]
fn links_can_be_left_alone() {
    if let Some(why) = hindrance() {
        return eprintln!("skipped: {why}");
    }
    let bench = Bench::new();
    assert!(asks(&bench, &bench.at(), "nosymfollow,mand,iversion").status.success());
    let _unmounted = Unmounted(bench.at());
    if flags(&bench.at()).bits() & NOSYMFOLLOW == 0 {
        return eprintln!("skipped: this kernel follows all links");
    }
    fs::write(bench.on("file"), "x").unwrap();
    symlink("file", bench.on("link")).unwrap();
    assert_eq!(fs::read_link(bench.on("link")).unwrap(), Path::new("file"));
    let open = || rustix::fs::open(bench.on("link"), OFlags::RDONLY, rustix::fs::Mode::empty()).map(drop);
    assert_eq!(open(), Err(rustix::io::Errno::LOOP));
    assert!(asks(&bench, &bench.at(), "remount,ro").status.success());
    assert_eq!(open(), Err(rustix::io::Errno::LOOP));
    assert!(asks(&bench, &bench.at(), "remount,rw,symfollow").status.success());
    assert_eq!(open(), Ok(()));
    unmount(&bench.at());
    bench.check();
}

#[test]
fn set_user_id_does_not_count_where_a_group_or_a_link_lets_others_in() {
    if let Some(why) = hindrance() {
        return eprintln!("skipped: {why}");
    }
    let bench = Bench::new();
    let (volume, here) = (bench.volume(), bench.directory.path());
    let mode = |path: &Path, mode: u32| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let try_mount = |volume: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gannet"));
        command.args(["mount", "-o", "suid"]).arg(volume).arg(bench.at()).output().unwrap()
    };
    let refused = |path: &Path, what: &str| {
        let complaint = one_line(&try_mount(path));
        assert!(complaint.contains("only root can write") && complaint.contains(what), "{complaint}");
    };
    // Members of root's group; and whoever an access list names, for whom the group's bits are the most.
    mode(&volume, 0o620);
    refused(&volume, "volume can be written by others");
    mode(&volume, 0o600);
    let list = [
        [2, 0, 0, 0, 1, 0, 6, 0].as_slice(),
        &[0xff, 0xff, 0xff, 0xff, 2, 0, 6, 0],
        &[0xfe, 0xff, 0, 0, 4, 0, 0, 0],
        &[0xff, 0xff, 0xff, 0xff, 16, 0, 6, 0],
        &[0xff, 0xff, 0xff, 0xff, 32, 0, 0, 0, 0xff, 0xff, 0xff, 0xff],
    ]
    .concat();
    match rustix::fs::setxattr(&volume, "system.posix_acl_access", &list, rustix::fs::XattrFlags::empty()) {
        Ok(()) => refused(&volume, "volume can be written by others"),
        Err(errno) => eprintln!("skipped: access lists: {errno}"),
    }
    let _ = rustix::fs::removexattr(&volume, "system.posix_acl_access");
    mode(&volume, 0o600);
    mode(here, 0o770);
    refused(&volume, "can be written by others");
    mode(here, 0o700);
    // Links that others can put in place of root's.
    let theirs = here.join("theirs");
    fs::create_dir(&theirs).unwrap();
    symlink("../volume", theirs.join("link")).unwrap();
    std::os::unix::fs::chown(&theirs, Some(1234), None).unwrap();
    refused(&theirs.join("link"), "theirs belongs to user 1234");
    symlink("theirs/link", here.join("further")).unwrap();
    refused(&here.join("further"), "theirs belongs to user 1234");
    symlink("itself", here.join("itself")).unwrap();
    assert!(one_line(&try_mount(&here.join("itself"))).contains("symbolic links"));
    // Root's own in root's directories are as good as names.
    symlink("volume", here.join("link")).unwrap();
    let mounted = try_mount(&here.join("link"));
    assert!(mounted.status.success(), "{mounted:?}");
    assert!(!flags(&bench.at()).contains(Flags::NOSUID));
    unmount(&bench.at());
    bench.check();
}
