//! Where processes of a volume meet, its FIFOs and sockets: other users of the machine do not come in between. `meeting.c` is run by root with a
//! `/dev/shm` of its own where every user may make files, as on an ordinary system.

mod common;

use common::{Volume, check, compile, is_root_who_can, run};
use std::process::Command;

const INSIDE: &str = "GANNET_TEST_INSIDE";
const SCRIPT: &str = "mount --make-rprivate / && mount -t tmpfs -o mode=1777 tmpfs /dev/shm || exit 77
exec \"$0\" --exact \"$1\" --nocapture";

/// Whether the test goes on here; else it was run with a `/dev/shm` of its own, or there is a reason, which was named, why it cannot be.
fn has_place_of_its_own(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    if !is_root_who_can("have a /dev/shm of its own") {
        return false;
    }
    let this = std::env::current_exe().expect("this test");
    let mut command = Command::new("unshare");
    let output = command.args(["--mount", "sh", "-c", SCRIPT]).arg(this).arg(test).env(INSIDE, "1").output();
    let output = output.expect("unshare, of util-linux");
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    if output.status.code() == Some(77) || err.contains("unshare failed") {
        eprintln!("left out: {test}: root may not mount here: {err}");
        return false;
    }
    assert!(output.status.success() && out.contains("1 passed"), "{}\n{out}\n{err}", output.status);
    false
}

const WANTED: &str = r#"socket: binds("s") = 0
socket: connects("s") = 0
socket: sends("s") = EPROTOTYPE
socket: connects(place) = EACCES
socket: unlink(place) = EACCES
socket: rename(place, "/dev/shm/away") = EACCES
socket: connects("s") = ECONNREFUSED
socket: connects("s") = 0
socket: connects("s") = EACCES
socket: sends("s") = EACCES
socket: binds("new") = EACCES
socket: unlink("new") = ENOENT
nobody there: connects("s") = ECONNREFUSED
nobody there: sends("s") = ECONNREFUSED
nobody there: mknod("made", S_IFSOCK | 0666, 0) = 0
nobody there: connects("made") = ECONNREFUSED
nobody there: unlink("s") = 0
another's: binds("theirs") = 0
another's: connects("theirs") = 0
another's: connects("theirs") = ECONNREFUSED
another's: chmod("theirs", 0) = 0
another's: connects("theirs") = ECONNREFUSED
another's: connects("theirs") = EACCES
another's: unlink("theirs") = 0
fifo: mkfifo("f", 0666) = 0
fifo: opens("f", O_RDWR) = 0
fifo: opens(place, O_RDWR) = EACCES
fifo: unlink(place) = EACCES
fifo: opens("f", O_RDWR) = EACCES
fifo: opens("f", O_RDWR) = 0
umask: binds("closed") = 0
umask: chmod("closed", 0666) = 0
umask: connects("closed") = 0
umask: mkfifo("own", 0666) = 0
umask: chmod("own", 0600) = 0
umask: opens("own", O_RDWR) = 0
umask: binds("hers") = 0
umask: connects("hers") = EACCES
umask: chmod("hers", 0600) = 0
umask: connects("hers") = 0
"#;

#[test]
fn another_user_does_not_take_the_place_of_a_socket_or_fifo() {
    if !has_place_of_its_own("another_user_does_not_take_the_place_of_a_socket_or_fifo") {
        return;
    }
    let (_directory, program) = compile("meeting");
    let volume = Volume::new(16);
    volume.script("mkdir /gannet/work", "");
    let output = run(volume.command(program.to_str().expect("UTF-8")).arg("/gannet/work"));
    check(&output, "meeting", WANTED);
    // All users' of the arena go with it, and nothing stays behind.
    drop(volume);
    let left = std::fs::read_dir("/dev/shm").expect("/dev/shm").flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Where nobody has met yet, no directory is made to remove something in it.
#[test]
fn who_removes_a_fifo_that_nobody_opened_makes_nothing() {
    if !has_place_of_its_own("who_removes_a_fifo_that_nobody_opened_makes_nothing") {
        return;
    }
    let volume = Volume::new(16);
    volume.script("mkfifo /gannet/f && rm /gannet/f && echo /dev/shm/gannet-meet-*", "/dev/shm/gannet-meet-*\n");
    volume.script(
        "mkfifo /gannet/f && (: <>/gannet/f) && rm /gannet/f && ls /dev/shm/gannet-meet-*/ && echo /dev/shm/*-meet-0",
        "/dev/shm/*-meet-0\n",
    );
}
