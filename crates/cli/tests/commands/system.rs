//! What the command says where the system lacks something, or does it otherwise.

use crate::gannet;
use std::fs;
use std::process::{Command, Stdio};
use tempfile::TempDir;

const GANNET: &str = env!("CARGO_BIN_EXE_gannet");

/// What the system lacks is named with what to do about it.
#[test]
fn what_the_system_refuses_is_said_with_what_to_do() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    // On a disk: what is mounted on /dev/shm must not hide it.
    let home = TempDir::new().unwrap();
    let volume = home.path().join("volume").to_str().unwrap().to_owned();
    assert!(gannet(&["mkfs", &volume, "--size", "4M"]).status.success());
    let said = |script: &str| {
        let mut command = Command::new("unshare");
        let output = command.args(["-m", "sh", "-c", script, GANNET, &volume]).stdin(Stdio::null()).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(errors.lines().count(), 1, "{script}: {errors}");
        (output.status.code(), errors)
    };
    let set = "exec \"$0\" set --data cow \"$1\" /";
    for (change, words) in [
        (
            "mount -t tmpfs none /dev",
            "there is no directory /dev/shm for the shared state; make it and mount a tmpfs there",
        ),
        (
            "mount -t tmpfs none /dev && touch /dev/shm",
            "/dev/shm, for the shared state, is no directory; put one in its place",
        ),
        (
            "mount -t ramfs none /dev/shm",
            "the file system at /dev/shm cannot hold the shared state; mount a tmpfs there",
        ),
        (
            "mount -t tmpfs -o ro none /dev/shm",
            "/dev/shm, for the shared state, is mounted read-only; mount it writable (mount -o remount,rw",
        ),
    ] {
        let (code, errors) = said(&format!("{change} && {set}"));
        assert!(code == Some(1) && errors.contains(words) && errors.contains("volume: "), "{change}: {errors}");
    }
    let (_, errors) = said(&format!("ulimit -n 4; {set}"));
    assert!(errors.contains("volume: ") && errors.contains("close some, or raise the limit (ulimit -n)"), "{errors}");
    let change =
        |flag: &str| Command::new("chattr").args([flag, &volume]).status().is_ok_and(|status| status.success());
    if change("+i") {
        let outcomes = [said(set), said("exec \"$0\" mkfs --force --size 4M \"$1\"")];
        assert!(change("-i"));
        for (_, errors) in outcomes {
            assert!(errors.contains("made immutable") && errors.contains("chattr -i"), "{errors}");
        }
    }
    // ramfs is called by its name.
    let script = "mount -t ramfs none /mnt && \"$0\" mkfs /mnt/v --size 2M && exec \"$0\" info /mnt/v";
    let output = Command::new("unshare").args(["-m", "sh", "-c", script, GANNET]).output().unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(told.contains("medium    memory (ramfs)") && !told.contains("tmpfs"), "{told} {:?}", output.stderr);
}

/// A file system without fsync has nothing that a mere check would have written.
#[test]
fn a_check_asks_nothing_of_a_disk() {
    if !rustix::process::geteuid().is_root() || Command::new("mksquashfs").arg("-version").output().is_err() {
        return eprintln!("left out: it takes root and mksquashfs");
    }
    let home = TempDir::new().unwrap();
    let at = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    for name in ["from", "to"] {
        fs::create_dir(at(name)).unwrap();
    }
    assert!(gannet(&["mkfs", &at("from/volume"), "--size", "2M"]).status.success());
    let made = Command::new("mksquashfs").args([at("from"), at("image")]).stdout(Stdio::null()).status().unwrap();
    assert!(made.success());
    let script = "mount -o loop,ro \"$1\" \"$2\" || exit 77; exec \"$0\" fsck \"$2/volume\"";
    let mut command = Command::new("unshare");
    let output = command.args(["-m", "sh", "-c", script, GANNET, &at("image"), &at("to")]).output().unwrap();
    if output.status.code() == Some(77) {
        return eprintln!("left out: squashfs cannot be mounted here");
    }
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("sound"), "{output:?}");
}
