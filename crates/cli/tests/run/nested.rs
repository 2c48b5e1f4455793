//! `gannet run` below `gannet run`, and below limits.

use crate::{Place, refuses, run, says, text};
use std::process::Command;

/// The command as the shells below find it.
const PROGRAM: &str = env!("CARGO_BIN_EXE_gannet");

#[test]
fn below_another_run_its_volumes_are_added() {
    let place = Place::new();
    let (first, second) = (place.volume("first"), place.volume("second"));
    // At another place: both are seen. What was open, and the working directory, go on.
    let script = format!(
        "cd /gannet; exec 5> open; echo one > who; echo -n a >&5
         {PROGRAM} run {second}:/other -- sh -c 'echo two > /other/who; cat who /other/who; echo -n b >&5; pwd'
         cat open; test -e /other || echo only below"
    );
    says(&["run", &first, "--", "sh", "-c", &script], 0, "one\ntwo\n/gannet\nabonly below");
    // At the same place: the inner one is seen, also by a program with an empty environment; the outer one again when it has ended.
    let script = format!(
        "{PROGRAM} run {second} -- sh -c 'cat /gannet/who; env -i sh -c \"cat /gannet/who; echo 2 > /gannet/new\"'
         cat /gannet/who; ls /gannet
         {PROGRAM} run {second} -- {PROGRAM} run {first} -- {PROGRAM} run {second}:/gannet/deeper -- cat /gannet/who /gannet/deeper/new"
    );
    says(&["run", &first, "--", "sh", "-c", &script], 0, "two\ntwo\none\nopen\nwho\none\n2");
    for volume in [&first, &second] {
        assert!(run(&["fsck", volume]).status.success());
    }
}

/// The first program is started by a process that sees no volume: what is needed of one to start it is there all the same.
#[test]
fn the_command_is_found_as_commands_below_are() {
    let place = Place::new();
    let volume = place.volume("volume");
    let (script, link) = (place.path("script"), place.path("link"));
    std::fs::write(&script, "#!/gannet/bin/hello line\n").unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink("/gannet/bin", &link).unwrap();
    says(&["run", &volume, "--", "sh", "-c", "mkdir /gannet/bin; cp /bin/echo /gannet/bin/hello"], 0, "");
    let script = script.to_str().unwrap();
    says(&["run", &volume, "--", script, "more"], 0, &format!("line {script} more"));
    says(&["run", &volume, "--", link.join("hello").to_str().unwrap(), "linked"], 0, "linked");
    let path = format!("/gannet/bin:{}", std::env::var("PATH").unwrap());
    let output =
        Command::new(PROGRAM).args(["run", &volume, "--", "hello", "found"]).env("PATH", path).output().unwrap();
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), "found"), "{output:?}");
    assert!(refuses(&["run", &volume, "--", "nothing-there"], 127).contains("nothing-there"));
}

#[test]
fn a_limit_of_file_sizes_is_an_error_and_not_a_signal() {
    let place = Place::new();
    let (volume, missing) = (place.volume("volume"), place.path("missing"));
    let missing = missing.to_str().unwrap();
    for arguments in [&["mkfs", missing, "--size", "4M"][..], &["run", &volume, "--", "true"]] {
        let output = Command::new("sh")
            .args(["-c", "ulimit -f 8; exec \"$@\"", "sh", PROGRAM])
            .args(arguments)
            .output()
            .unwrap();
        let errors = text(&output.stderr);
        assert_eq!((output.status.code(), errors.lines().count()), (Some(1), 1), "{arguments:?}: {output:?}");
        assert!(errors.contains("ulimit -f"), "{errors}");
    }
    assert!(refuses(&["info", missing], 1).contains("No such file"));
    // Inside the volume it is the program's business, as everywhere. The shell complains of the signal that its child died by.
    let script = "ulimit -f 8; dd if=/dev/zero of=/gannet/z bs=1k count=20; echo $?; stat -c %s /gannet/z";
    let output = run(&["run", &volume, "--", "sh", "-c", script]);
    assert_eq!(text(&output.stdout), "153\n4096", "{output:?}");
}

/// With few descriptors what `gannet run` has open stands as high as it may.
#[test]
fn few_descriptors_are_the_programs() {
    let place = Place::new();
    let volume = place.volume("volume");
    let inner = "exec 3> f; echo three >&3; exec 3>&-; echo g > g; cat f g";
    for limit in [512, 300, 64] {
        let script = format!("ulimit -n {limit}; cd /gannet; exec sh -c '{inner}'");
        says(&["run", &volume, "--", "sh", "-c", &script], 0, "three\ng");
    }
    assert!(run(&["fsck", &volume]).status.success());
}

/// Who sees another `/dev/shm` than the one where the shared state is has nothing to complain of when it ends.
#[test]
fn another_shared_memory_is_no_hindrance_to_an_end() {
    let place = Place::new();
    let volume = place.volume("volume");
    let hides = "mount -t tmpfs none /dev/shm";
    let tried = Command::new("unshare").args(["-rm", "sh", "-c", hides]).output();
    if !tried.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: nothing can be mounted in a namespace here (unshare -rm)");
        return;
    }
    let script = format!("cd /gannet; echo one > f; unshare -rm sh -c 'cat f; {hides}; exec true'; cat f");
    says(&["run", &volume, "--", "sh", "-c", &script], 0, "one\none");
    assert!(run(&["fsck", &volume]).status.success());
}
