//! Volumes in memory files, which have no name but that of a descriptor.

use super::{gannet, refuses, run, says, text};
use std::os::fd::AsRawFd;

/// An empty memory file of this process, and a path to it.
fn memory_file() -> (std::fs::File, String) {
    let file = rustix::fs::memfd_create("test-volume", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    (std::fs::File::from(file), path)
}

#[test]
fn a_memory_file_holds_a_volume() {
    let (file, path) = memory_file();
    let made = run(&["mkfs", &path, "--size", "8M", "--label", "nameless"]);
    assert!(made.status.success(), "{made:?}");
    assert_eq!(file.metadata().unwrap().len(), 8 << 20);
    says(&["run", &path, "--", "sh", "-c", "echo one > /gannet/file; sh -c 'cat /gannet/file'"], 0, "one");
    says(&["run", &path, "--", "sh", "-c", "echo two >> /gannet/file; cat /gannet/file"], 0, "one\ntwo");
    let about = run(&["info", &path]);
    let told = text(&about.stdout);
    assert!(told.contains("\"nameless\"") && told.contains("closed cleanly") && told.contains("memory"), "{about:?}");
    for told in [&told, &text(&made.stdout)] {
        assert!(told.contains("survives  as long as somebody has it open"), "{told}");
    }
    let json = run(&["info", &path, "--json"]);
    let json = text(&json.stdout);
    assert_eq!(json.matches("\"survives\": \"as long as somebody has it open").count(), 2, "{json}");
    assert!(text(&run(&["fsck", &path]).stdout).contains("sound; 1 files, 1 directories"));
    assert!(run(&["dump", &path, "/file"]).status.success());
    // Two at once find each other.
    let both = format!("exec 9<>/gannet/file; {} run {path}:/other -- cat /other/file", env!("CARGO_BIN_EXE_gannet"));
    says(&["run", &path, "--", "sh", "-c", &both], 0, "one\ntwo");
    // It is not overwritten by accident; when it is, in place.
    assert!(refuses(&["mkfs", &path, "--size", "4M"], 1).contains("a volume already; --force"));
    assert!(run(&["mkfs", &path, "--size", "4M", "--force"]).status.success());
    assert_eq!(file.metadata().unwrap().len(), 4 << 20);
    says(&["run", &path, "--", "sh", "-c", "ls /gannet | wc -l"], 0, "0");
    let again = run(&["mkfs", &path, "--size", "4M", "--force"]);
    assert!(again.status.success(), "{again:?}");
}

#[test]
fn a_descriptor_of_the_shell_names_a_volume() {
    let (_file, path) = memory_file();
    // The program has no descriptor 9 of its own, and its children neither.
    for place in ["/dev/fd/9", "/proc/self/fd/9"] {
        let program = env!("CARGO_BIN_EXE_gannet");
        let script = format!(
            "exec 9<>{path}; {program} mkfs {place} --size 4M --force >/dev/null && \
             {program} run {place} -- sh -c 'exec 9>&-; echo hello > /gannet/f; cat /gannet/f' && {program} fsck {place}"
        );
        // The library is built by asking for the command.
        drop(gannet());
        let output = std::process::Command::new("timeout").args(["300", "bash", "-c", &script]).output().unwrap();
        let said = text(&output.stdout);
        assert!(output.status.success() && said.starts_with("hello\n") && said.contains("sound"), "{output:?}");
    }
}
