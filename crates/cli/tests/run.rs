//! `gannet run`: a program sees the volume, its exit code is the command's, and the volume is closed when it ends.

use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;

/// Runs the command, for a minute at most.
fn gannet(arguments: &[&str]) -> Output {
    Command::new("timeout").args(["600", env!("CARGO_BIN_EXE_gannet")]).args(arguments).output().unwrap()
}

/// Builds the library that is injected, beside the command: no dependency of it, so cargo does not.
fn build_library() {
    let directory = Path::new(env!("CARGO_BIN_EXE_gannet")).parent().unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "-p", "gannet-preload"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    if directory.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.status().unwrap().success());
}

#[test]
fn a_program_sees_the_volume() {
    build_library();
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("volume");
    let volume = path.to_str().unwrap();
    assert!(gannet(&["mkfs", volume, "--size", "4M"]).status.success());

    let script = "cd /gannet && echo hello > file && mkdir d && mv file d && cat d/file && exit 3";
    let output = gannet(&["run", volume, "--", "sh", "-c", script]);
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(3), &b"hello\n"[..]), "{output:?}");
    assert!(!Path::new("/gannet").exists(), "nobody else sees it");
    let output = gannet(&["run", &format!("{volume}:/some/where"), "--", "cat", "/some/where/d/file"]);
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"hello\n"[..]), "{output:?}");
    let output = gannet(&["fsck", volume]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("sound; 1 files, 2 directories"), "{output:?}");

    for (arguments, code) in
        [(["run", volume, "--", "/nonexistent/program"], 127), (["run", "/nonexistent/volume", "--", "true"], 1)]
    {
        let output = gannet(&arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), errors.lines().count()), (Some(code), 1), "{arguments:?}: {errors}");
        assert!(errors.starts_with("gannet: /nonexistent/"), "{errors}");
    }
}

/// Runs `script` in a shell under `gannet run` of `volume`, with `$G` as the command; what it says.
fn shell(volume: &str, script: &str) -> String {
    let program = env!("CARGO_BIN_EXE_gannet");
    let output = gannet(&["run", volume, "--", "sh", "-c", &format!("G={program}; {script}")]);
    assert!(output.status.success(), "{script}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn below_another_run_its_volumes_are_added() {
    build_library();
    let directory = TempDir::new().unwrap();
    let [first, second] = ["first", "second"].map(|name| directory.path().join(name).to_str().unwrap().to_owned());
    for volume in [&first, &second] {
        assert!(gannet(&["mkfs", volume, "--size", "4M"]).status.success());
    }
    // At another place: both are seen. What was open, and the working directory, go on.
    let script = format!(
        "cd /gannet; exec 5> open; echo one > who; echo -n a >&5
         $G run {second}:/other -- sh -c 'echo two > /other/who; cat who /other/who; echo -n b >&5; pwd'
         cat open; test -e /other || echo only below"
    );
    assert_eq!(shell(&first, &script), "one\ntwo\n/gannet\nabonly below\n");
    // At the same place: the inner one is seen, also by a program with an empty environment; the outer one again when it has ended.
    let script = format!(
        "$G run {second} -- sh -c 'cat /gannet/who; env -i sh -c \"cat /gannet/who; echo 2 > /gannet/new\"'; cat /gannet/who; ls /gannet
         $G run {second} -- $G run {first} -- $G run {second}:/gannet/deeper -- cat /gannet/who /gannet/deeper/new"
    );
    assert_eq!(shell(&first, &script), "two\ntwo\none\nopen\nwho\none\n2\n");
    for volume in [&first, &second] {
        assert!(gannet(&["fsck", volume]).status.success());
    }
}

#[test]
fn a_limit_of_file_sizes_is_an_error_and_not_a_signal() {
    build_library();
    let directory = TempDir::new().unwrap();
    let volume = directory.path().join("volume").to_str().unwrap().to_owned();
    let limited = |arguments: &str| {
        let script = format!("ulimit -f 8; exec {} {arguments}", env!("CARGO_BIN_EXE_gannet"));
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), errors.lines().count()), (Some(1), 1), "{arguments}: {errors}");
        assert!(errors.contains("ulimit -f"), "{errors}");
    };
    limited(&format!("mkfs {volume} --size 4M"));
    assert!(!Path::new(&volume).exists());
    assert!(gannet(&["mkfs", &volume, "--size", "4M"]).status.success());
    limited(&format!("run {volume} -- true"));
    // Inside the volume it is the program's business, as everywhere.
    let script = "ulimit -f 8; dd if=/dev/zero of=/gannet/z bs=1k count=20 2>/dev/null; echo $?; stat -c %s /gannet/z";
    assert_eq!(shell(&volume, script), "153\n4096\n");
}
