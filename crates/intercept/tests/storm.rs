//! Everything that can go on at once in a process, and a tree of processes of which random ones are killed: seeded, and much longer
//! with `GANNET_LONG=1`. Afterwards nobody has anything open or locked, and the volume is sound.

mod common;

use common::{Volume, check, compile, compile_with, have, in_directory, nothing_is_left, on_host, run};
use std::process::Command;

fn is_long() -> bool {
    std::env::var_os("GANNET_LONG").is_some()
}

#[test]
fn everything_at_once() {
    let (_directory, plain) = compile("storm");
    // Cancelled threads clean up by destructors then, as C++ and Rust do.
    let (_other_directory, destructors) = compile_with("storm", &["-fexceptions"]);
    let (seeds, rounds) = if is_long() { (1..=40, "5000") } else { (1..=3, "250") };
    for seed in seeds {
        let volume = Volume::new(128);
        let mut command = volume.command_with_time("sh", if is_long() { 1800 } else { 240 });
        let program = if seed % 2 == 0 { &destructors } else { &plain };
        let script = "mkdir /gannet/work && cd /gannet/work && exec \"$@\"";
        command.args(["-c", script, "sh"]).arg(program).args([&seed.to_string(), rounds]);
        check(&run(&mut command), &format!("seed {seed}"), "ok");
        nothing_is_left(volume, &format!("seed {seed}"));
    }
}

#[test]
fn cancelled_threads_run_their_destructors() {
    let (_directory, program) = compile_with("cancel", &["-fexceptions"]);
    let volume = Volume::new(64);
    let mut command = in_directory(&volume, 240);
    command.arg(&program).arg(if is_long() { "2000" } else { "40" });
    check(&run(&mut command), "cancelled", "done");
    nothing_is_left(volume, "cancelled");
}

#[test]
fn signals_in_an_operation_reach_their_handlers() {
    let (_directory, program) = compile("deferred");
    let wanted = "information 0: lock 0, enough signals 1, wrong 0, action as set 1\n\
                  information 1: lock 0, enough signals 1, wrong 0, action as set 1\n";
    let volume = Volume::new(64);
    check(&run(in_directory(&volume, 120).arg(&program)), "in a volume", wanted);
    nothing_is_left(volume, "in a volume");
    let host = tempfile::Builder::new().prefix("gannet-storm-").tempdir_in("/dev/shm").expect("/dev/shm");
    let mut command = on_host(&program);
    check(&run(command.current_dir(host.path())), "on the host", wanted);
}

/// What the handler makes of the host's calls for the program, and waits in: a signal's handler makes it go on, leaves it, or cancels it.
#[test]
fn calls_that_wait_for_others_are_interrupted() {
    let (_directory, program) = compile("blocked");
    let host = tempfile::Builder::new().prefix("gannet-storm-").tempdir_in("/dev/shm").expect("/dev/shm");
    let plain = run(on_host(&program).current_dir(host.path()));
    assert!(plain.status.success(), "on the host: {plain:?}");
    let volume = Volume::new(64);
    let wanted = String::from_utf8_lossy(&plain.stdout);
    check(&run(in_directory(&volume, 60).arg(&program)), "in a volume", &wanted);
}

#[test]
fn a_message_without_room_for_descriptors_leaves_nothing() {
    if !have("python3") {
        return;
    }
    let script = "
import errno, os, resource, socket
ours, theirs = socket.socketpair()
file = os.open('file', os.O_CREAT | os.O_RDWR)
resource.setrlimit(resource.RLIMIT_NOFILE, (600, 600))
others = []
try:
    while True: others.append(os.open('/dev/null', os.O_RDONLY))
except OSError as error: assert error.errno == errno.EMFILE
try: socket.send_fds(ours, [b'x'], [file])
except OSError as error: print(errno.errorcode[error.errno])
for other in others: os.close(other)
socket.send_fds(ours, [b'y'], [file])
data, received, _, _ = socket.recv_fds(theirs, 1, 1)
os.write(received[0], b'through both')
print(data, os.pread(file, 20, 0))
";
    let volume = Volume::new(64);
    check(
        &run(in_directory(&volume, 120).args(["python3", "-c", script])),
        "in a volume",
        "EMFILE\nb'y' b'through both'\n",
    );
    nothing_is_left(volume, "messages");
}

/// A child that shares memory, and the end of a process with threads.
#[test]
fn threads_see_nothing_of_what_others_close() {
    let (_directory, program) = compile("together");
    for what in ["numbers", "end", "nested"] {
        let volume = Volume::new(64);
        check(&run(in_directory(&volume, 240).arg(&program).arg(what)), what, "ok");
        nothing_is_left(volume, what);
        let host = tempfile::Builder::new().prefix("gannet-storm-").tempdir_in("/dev/shm").expect("/dev/shm");
        check(&run(on_host(&program).arg(what).current_dir(host.path())), what, "ok");
    }
}

/// What runs in a process's memory beside it takes nothing away from it, however it ends.
#[test]
fn processes_beside_others_in_their_memory() {
    let (_directory, program) = compile("beside");
    let volume = Volume::new(64);
    check(&run(in_directory(&volume, 120).arg(&program).arg("ends")), "ends", "ok");
    nothing_is_left(volume, "ends");
    let host = tempfile::Builder::new().prefix("gannet-storm-").tempdir_in("/dev/shm").expect("/dev/shm");
    check(&run(on_host(&program).arg("ends").current_dir(host.path())), "ends", "ok");
}

/// Runs a program that kills in the volume's directory, told a seed and how many kills. `short` and `long`: seeds, kills, and the seconds
/// that a run may take.
#[track_caller]
fn kills(name: &str, volume_mb: u64, short: (u32, &str, u32), long: (u32, &str, u32), afterwards: fn(Volume, &str)) {
    let (_directory, program) = compile(name);
    let (seeds, kills, seconds) = if is_long() { long } else { short };
    for seed in 1..=seeds {
        let volume = Volume::new(volume_mb);
        check(
            &run(in_directory(&volume, seconds).arg(&program).args([&seed.to_string(), kills])),
            &format!("seed {seed}"),
            "ok",
        );
        afterwards(volume, &format!("seed {seed}"));
    }
}

#[test]
fn killed_in_a_tree() {
    kills("treekill", 128, (3, "30", 300), (40, "500", 3600), nothing_is_left);
}

#[test]
fn killed_while_a_child_shares_the_memory() {
    kills("orphan", 256, (1, "300", 240), (5, "5000", 1800), nothing_is_left);
}

#[test]
fn killed_with_threads_and_children() {
    kills("chaos", 256, (1, "80", 240), (20, "500", 1800), nothing_is_left);
}

/// What the programs demand, Linux's own file systems fulfil: otherwise they would demand too much.
#[test]
fn the_host_passes() {
    // The kernel appends page by page, and a kill may come between two: records of 128 bytes lie in one.
    let programs: [(&str, &[&str]); 4] = [
        ("storm", &["5", "250"]),
        ("treekill", &["5", "20", "128"]),
        ("orphan", &["5", "20"]),
        ("chaos", &["5", "20"]),
    ];
    for (name, arguments) in programs {
        let (_directory, program) = compile(name);
        let host = tempfile::Builder::new().prefix("gannet-storm-").tempdir_in("/dev/shm").expect("/dev/shm");
        let mut command = Command::new("timeout");
        command.args(["-s", "KILL", "240"]).arg(program).args(arguments).current_dir(host.path());
        check(&run(&mut command), name, "ok");
    }
}
