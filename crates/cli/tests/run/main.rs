//! `gannet run`: where a program sees the volumes, what is refused and how.

mod data;
mod ends;
#[path = "../injected/mod.rs"]
mod injected;
mod library;
mod memory_file;
mod moved;
mod nested;
mod not_started;
mod terminal;
mod users;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

pub(crate) use injected::build_library;

/// The command, killed after some minutes: what hangs is a failure, not a hang of the tests.
fn gannet() -> Command {
    build_library();
    let mut command = Command::new("timeout");
    command.args(["--foreground", "-s", "KILL", "300", env!("CARGO_BIN_EXE_gannet")]).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    gannet().args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap().trim_end()
}

/// It must end with this code and have said this, and nothing on standard error.
#[track_caller]
fn says(arguments: &[&str], code: i32, wanted: &str) {
    let output = run(arguments);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(code), wanted), "{arguments:?}: {output:?}");
    assert!(output.stderr.is_empty(), "{arguments:?}: {output:?}");
}

/// It must fail with this code and one line, which it returns.
#[track_caller]
fn refuses(arguments: &[&str], code: i32) -> String {
    let output = run(arguments);
    let errors = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!((output.status.code(), errors.lines().count()), (Some(code), 1), "{arguments:?}: {output:?}");
    assert!(errors.starts_with("gannet: ") && output.stdout.is_empty(), "{arguments:?}: {output:?}");
    errors
}

/// A directory in memory with volumes in it.
struct Place {
    directory: TempDir,
}

impl Place {
    fn new() -> Place {
        let shared_memory = Path::new("/dev/shm");
        let directory = if shared_memory.is_dir() { TempDir::new_in(shared_memory) } else { TempDir::new() };
        Place { directory: directory.unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn volume(&self, name: &str) -> String {
        let path = self.path(name).to_str().unwrap().to_owned();
        assert!(run(&["mkfs", &path, "--size", "8M"]).status.success());
        path
    }
}

#[test]
fn a_program_sees_the_volume() {
    let place = Place::new();
    let volume = place.volume("volume");
    let script = "cd /gannet && echo hello > file && mkdir d && mv file d && cat d/file && exit 3";
    says(&["run", &volume, "--", "sh", "-c", script], 3, "hello");
    assert!(!Path::new("/gannet").exists(), "nobody else sees it");
    says(&["run", &format!("{volume}:/some/where"), "--", "cat", "/some/where/d/file"], 0, "hello");
    says(&["run", &format!("{volume}:/some/where/"), "--", "sh", "-c", "cd /some/where/d/..; pwd"], 0, "/some/where");
    let output = run(&["fsck", &volume]);
    assert!(text(&output.stdout).contains("sound; 1 files, 2 directories"), "{output:?}");
}

#[test]
fn several_volumes_and_where_they_are() {
    let place = Place::new();
    let (one, two, three) = (place.volume("one"), place.volume("two"), place.volume("three"));
    let others = [format!("{two}:/two"), format!("{three}:/deep/three")];
    let arguments = [
        "run",
        &one,
        "-v",
        &others[0],
        "--volume",
        &others[1],
        "--",
        "sh",
        "-c",
        "echo a > /gannet/f; cp /gannet/f /two/g; cp /two/g /deep/three/h; ls /gannet /two; cat /deep/three/h; mv /two/g /gannet/moved && ls /gannet",
    ];
    says(&arguments, 0, "/gannet:\nf\n\n/two:\ng\na\nf\nmoved");
    // Relative paths of volumes are of the directory where the command starts, whatever the program's is.
    let mut command = gannet();
    command.current_dir(place.directory.path()).args(["run", "one", "-v", "two:/two", "--directory", "/", "--"]);
    let output = command
        .args(["sh", "-c", "pwd; cd /tmp; cat /gannet/f; ls /two; cd /; exec cat /gannet/moved"])
        .output()
        .unwrap();
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), "/\na\na"), "{output:?}");
    says(&["run", &one, "--directory", "/gannet", "--", "ls"], 0, "f\nmoved");
    // A program of the volume.
    says(&["run", &one, "--", "cp", "/bin/echo", "/gannet/own"], 0, "");
    says(&["run", &one, "--", "/gannet/own", "from within"], 0, "from within");
    says(&["run", &one, "--arena-max", "64M", "--", "true"], 0, "");
    // One place below another's is a directory of its own.
    let inside = format!("{two}:/gannet/inside");
    says(
        &[
            "run",
            &one,
            "-v",
            &inside,
            "--",
            "sh",
            "-c",
            "echo b > /gannet/inside/x; ls /gannet/inside; cd /gannet/inside; pwd; cat x",
        ],
        0,
        "x\n/gannet/inside\nb",
    );
}

/// Programs tell files apart by device and inode, PostgreSQL those of other processes: each volume is a device of its own, and the same one
/// wherever it is.
#[test]
fn volumes_are_devices() {
    let place = Place::new();
    let (one, two) = (place.volume("one"), place.volume("two"));
    let device = |volume: &str, at: &str| {
        let mounted = format!("{volume}:{at}");
        let output = run(&["run", &mounted, "--", "stat", "-c", "%d", at]);
        text(&output.stdout).parse::<u64>().unwrap_or_else(|_| panic!("{output:?}"))
    };
    let both = [device(&one, "/gannet"), device(&two, "/gannet")];
    assert_ne!(both[0], both[1]);
    assert_eq!(device(&one, "/elsewhere"), both[0]);
    let second = format!("{two}:/two");
    let numbers = format!("{}\n{}", both[0], both[1]);
    says(&["run", &one, "-v", &second, "--", "stat", "-c", "%d", "/gannet", "/two"], 0, &numbers);
    // The same one twice is two, since no name leads from one to the other.
    let again = format!("{one}:/again");
    let output = run(&["run", &one, "-v", &again, "--", "stat", "-c", "%d", "/gannet", "/again"]);
    let numbers: Vec<_> = text(&output.stdout).lines().collect();
    assert!(numbers.len() == 2 && numbers[0] != numbers[1], "{output:?}");
}

#[test]
fn a_volume_in_memory() {
    says(&["run", "memory:", "--", "sh", "-c", "cd /gannet; echo x > f; read y < f; echo $y"], 0, "x");
    says(
        &[
            "run",
            "memory:/here",
            "--",
            "python3",
            "-c",
            "open('/here/f', 'w').write('x'); print(open('/here/f').read())",
        ],
        0,
        "x",
    );
    for size in ["0", "+5", "99999999999999"] {
        let line = refuses(&["run", &format!("memory:{size}"), "--", "true"], 1);
        assert!(line.contains(&format!("memory:{size}: ")) && line.contains("SIZE in MiB"), "{line}");
    }
}

#[test]
fn what_cannot_be_started_is_said() {
    let place = Place::new();
    let volume = place.volume("volume");
    let plain = place.path("plain");
    std::fs::write(&plain, "text").unwrap();
    let not_found = ["/nonexistent/program", "no-such-program-anywhere"];
    for program in not_found {
        let line = refuses(&["run", &volume, "--", program], 127);
        assert!(line.starts_with(&format!("gannet: {program}: No such file or directory")), "{line}");
    }
    for program in [plain.to_str().unwrap(), place.directory.path().to_str().unwrap()] {
        let line = refuses(&["run", &volume, "--", program], 126);
        assert!(line.starts_with(&format!("gannet: {program}: Permission denied")), "{line}");
    }
    // The command line.
    for (arguments, part) in [
        (vec!["run"], "VOLUME"),
        (vec!["run", &volume, "-v", "nowhere", "--", "true"], "nowhere: expected VOLUME:PATH"),
        (vec!["run", &volume, "--at", "relative", "--", "true"], "must be an absolute path"),
        (vec!["run", &volume, "-v", &format!("{volume}:/gannet"), "--", "true"], "two volumes cannot be at one place"),
        (vec!["run", &volume, "--arena-max", "much", "--", "true"], "much"),
        (vec!["run", &volume, "--no-such-option", "--", "true"], "--no-such-option"),
    ] {
        let line = refuses(&arguments, 2);
        assert!(line.contains(part), "{line}");
    }
}

#[test]
fn volumes_that_cannot_be_opened_are_named() {
    let place = Place::new();
    let none = place.path("none");
    let line = refuses(&["run", none.to_str().unwrap(), "--", "true"], 1);
    assert!(line.contains("none: ") && line.contains("No such file or directory"), "{line}");
    let zeros = place.path("zeros");
    std::fs::write(&zeros, vec![0u8; 1 << 20]).unwrap();
    let line = refuses(&["run", zeros.to_str().unwrap(), "--", "true"], 1);
    assert!(line.contains("zeros: ") && line.contains("no Gannet volume; `gannet mkfs` makes one"), "{line}");
    let line = refuses(&["run", place.directory.path().to_str().unwrap(), "--", "true"], 1);
    assert!(line.contains(place.directory.path().to_str().unwrap()), "{line}");
    // A damaged superblock: both copies of what it says of itself.
    let volume = place.volume("volume");
    let mut bytes = std::fs::read(&volume).unwrap();
    for at in (0..bytes.len()).step_by(512) {
        bytes[at] ^= 0x55;
    }
    std::fs::write(&volume, bytes).unwrap();
    let line = refuses(&["run", &volume, "--", "true"], 1);
    assert!(line.contains("volume: "), "{line}");
    // No permission: as an ordinary user, where the tests are root's.
    let sound = place.volume("sound");
    let is_root = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()) == 0;
    if is_root {
        std::fs::set_permissions(place.directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let copy = place.path("gannet");
        std::fs::copy(env!("CARGO_BIN_EXE_gannet"), &copy).unwrap();
        let library = Path::new(env!("CARGO_BIN_EXE_gannet")).parent().unwrap().join("libgannet_preload.so");
        std::fs::copy(library, place.path("libgannet_preload.so")).unwrap();
        std::fs::set_permissions(&sound, std::fs::Permissions::from_mode(0o600)).unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(copy);
        let output = command.args(["run", &sound, "--", "true"]).output().unwrap();
        let line = text(&output.stderr);
        assert_eq!((output.status.code(), line.lines().count()), (Some(1), 1), "{output:?}");
        assert!(
            line.starts_with("gannet: ")
                && line.contains("sound: ")
                && line.contains("you may not read it; its owner can let you"),
            "{line}"
        );
        // Nothing can be written below it.
        let script = r#"mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && exec "$2" run "$3" -- true"#;
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script, "sh"]).arg(place.directory.path()).arg(env!("CARGO_BIN_EXE_gannet"));
        let output = command.arg(&sound).output().unwrap();
        let line = text(&output.stderr);
        // Where not even root may mount, that is not tried.
        let is_tried = !line.contains("mount: ") && !line.contains("unshare: ");
        assert!(
            !is_tried || line.contains("sound: ") && line.contains("mounted read-only; mount that writable"),
            "{line}"
        );
    }
}

#[test]
fn a_volume_that_is_cut_under_its_users_ends_none_of_them() {
    let place = Place::new();
    let volume = place.volume("v");
    // The command itself has the volume open as well, and closes it at the end.
    let cut = format!(
        "echo here > /gannet/file; exec 5< /gannet/file; truncate -s 0 {volume}; read line <&5 2> /dev/null; echo $? $line"
    );
    let output = run(&["run", &volume, "--", "bash", "-c", &cut]);
    assert_eq!((output.status.code(), text(&output.stdout).trim_end()), (Some(0), "1"), "{output:?}");
    let errors = text(&output.stderr);
    let told = errors.lines().last().unwrap_or_default();
    let whole = told.contains(&volume) && told.contains("could not be closed") && told.contains("made shorter");
    assert!(whole && told.contains("`gannet fsck`"), "{errors}");
}

#[test]
fn a_copy_that_is_put_back_under_programs_is_what_the_next_ones_find() {
    let place = Place::new();
    let (volume, copy) = (place.volume("v"), place.path("copy"));
    says(&["run", &volume, "--", "sh", "-c", "head -c 300000 /dev/zero > /gannet/a; echo small > /gannet/c"], 0, "");
    std::fs::copy(&volume, &copy).unwrap();
    // What is started then must not take part.
    let restore = format!("rm /gannet/a; cp {} {volume}; ls /gannet", copy.display());
    let output = run(&["run", &volume, "--", "sh", "-c", &restore]);
    assert!(text(&output.stdout).is_empty() && !output.status.success(), "{output:?}");
    let fsck = run(&["fsck", &volume]);
    assert!(fsck.status.success(), "{fsck:?}");
    let append =
        "head -c 400000 /dev/zero | tr '\\0' x >> /gannet/c; tr -d '\\0' < /gannet/a | wc -c; wc -c < /gannet/a";
    says(&["run", &volume, "--", "sh", "-c", append], 0, "0\n300000");
    let fsck = run(&["fsck", &volume]);
    assert!(fsck.status.success(), "{fsck:?}");
}

#[test]
fn a_volume_that_is_mounted_for_itself() {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("left out: no /dev/fuse");
        return;
    }
    let place = Place::new();
    let volume = place.volume("volume");
    let point = place.path("point");
    std::fs::create_dir(&point).unwrap();
    let point = point.to_str().unwrap();
    let output = run(&["mount", &volume, point, "-o", "cache=exclusive"]);
    if !output.status.success() {
        eprintln!("left out: cannot mount here: {output:?}");
        return;
    }
    let line = refuses(&["run", &volume, "--", "true"], 1);
    assert!(line.contains("mounted for itself") && line.contains("unmount it first"), "{line}");
    let unmounted = Command::new("sh").args(["-c", "umount \"$0\" || fusermount3 -u \"$0\"", point]).status();
    assert!(unmounted.unwrap().success());
}

#[test]
fn programs_that_will_not_see_it_are_named_and_run() {
    let place = Place::new();
    let volume = place.volume("volume");
    let (source, program) = (place.path("s.c"), place.path("static"));
    std::fs::write(&source, "#include <stdio.h>\nint main(void) { puts(\"runs\"); return 4; }\n").unwrap();
    let built = Command::new("cc").args(["-static", "-o"]).arg(&program).arg(&source).output();
    if !built.as_ref().is_ok_and(|output| output.status.success()) {
        eprintln!("left out: no static C library: {built:?}");
        return;
    }
    let program = program.to_str().unwrap();
    let warns = |output: &Output, why: &str| {
        let line = text(&output.stderr);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(4), "runs"), "{output:?}");
        assert!(line.lines().count() == 1 && line.starts_with(&format!("gannet: {program}: {why}")), "{line}");
        assert!(line.contains("gannet mount"), "{line}");
    };
    warns(&run(&["run", &volume, "--", program]), "statically linked");
    // Below it, with its environment and without.
    for script in
        ["\"$0\"", "exec \"$0\"", "env -i \"$0\"", "(cd /gannet; \"$0\")", "cp \"$0\" /gannet/s 2>/dev/null; \"$0\""]
    {
        warns(&run(&["run", &volume, "--", "sh", "-c", script, program]), "statically linked");
    }
    let is_root = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()) == 0;
    let dynamic = Command::new("cc").arg("-o").arg(program).arg(&source).status().unwrap();
    assert!(dynamic.success());
    if is_root {
        let owned = Command::new("chown").args(["65534", program]).status().unwrap();
        assert!(owned.success());
        std::fs::set_permissions(program, std::fs::Permissions::from_mode(0o4755)).unwrap();
        warns(&run(&["run", &volume, "--", program]), "set-user-id");
        warns(&run(&["run", &volume, "--", "sh", "-c", "\"$0\"", program]), "set-user-id");
    }
}

#[test]
fn closed_standard_descriptors_stay_closed() {
    let place = Place::new();
    let volume = place.volume("volume");
    build_library();
    for (command, what) in [
        ("sh -c 'echo x 2>&3'", "3>&2 2>/dev/null >&-"),
        ("cat", "2>/dev/null <&-"),
        ("sh -c 'echo x >&2; test $? = 0'", "2>&-"),
        ("sh -c 'cd /; echo x; cat; ls -l /proc/self/fd/ | grep -c null'", "2>/dev/null <&-"),
        ("sh -c 'ls /proc/self/fd | wc -w'", "<&- 2>&-"),
    ] {
        let ends = |command: String| Command::new("bash").args(["-c", &command]).output().unwrap();
        let plain = ends(format!("{command} {what}"));
        let program = env!("CARGO_BIN_EXE_gannet");
        let ours = ends(format!("timeout --foreground -s KILL 300 {program} run {volume} -- {command} {what}"));
        assert_eq!(
            (ours.status.code(), text(&ours.stdout)),
            (plain.status.code(), text(&plain.stdout)),
            "{command} {what}"
        );
    }
}

#[test]
fn a_library_of_another_build_is_not_injected() {
    let directory = TempDir::new_in("/dev/shm").unwrap();
    let volume = directory.path().join("volume");
    let volume = volume.to_str().unwrap();
    assert!(run(&["mkfs", volume, "--size", "16M"]).status.success());
    let theirs = Path::new(env!("CARGO_BIN_EXE_gannet")).parent().unwrap().join("libgannet_preload.so");
    let mut bytes = std::fs::read(theirs).unwrap();
    let copy = directory.path().join("libgannet_preload.so");
    let started = |bytes: &[u8]| {
        std::fs::write(&copy, bytes).unwrap();
        gannet().args(["run", volume, "--", "true"]).env("GANNET_LIBRARY", &copy).output().unwrap()
    };
    assert!(started(&bytes).status.success());
    let note = bytes.windows(8).position(|name| name == b"Gannet\0\0").unwrap() + 8;
    // Another number; no number; no library.
    bytes[note] = if bytes[note] == b'0' { b'1' } else { b'0' };
    let another = bytes.clone();
    bytes[note - 8..note].fill(0);
    for bytes in [&another[..], &bytes[..], b"#!/bin/sh"] {
        let output = started(bytes);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(said.contains("of another build than this command") && said.lines().count() == 1, "{said}");
    }
}
