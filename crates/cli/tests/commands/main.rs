//! The command from outside: what it prints, what it refuses, its exit codes.

mod repair;
mod system;
mod users;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

struct Bench {
    directory: TempDir,
}

impl Bench {
    /// A directory in memory, where volumes are made as fast as can be.
    fn new() -> Self {
        let shared_memory = Path::new("/dev/shm");
        let directory = if shared_memory.is_dir() { TempDir::new_in(shared_memory) } else { TempDir::new() };
        Self { directory: directory.unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn volume(&self) -> PathBuf {
        let path = self.path("volume");
        let output = gannet(&["mkfs", path.to_str().unwrap(), "--size", "4M", "--label", "bench"]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        path
    }
}

fn gannet(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gannet")).args(arguments).output().unwrap()
}

/// Requires failure with this code and one line on stderr, which it returns.
fn failure(arguments: &[&str], code: i32) -> String {
    let output = gannet(arguments);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.starts_with("gannet: "), "{errors}");
    errors
}

fn success(arguments: &[&str]) -> String {
    let output = gannet(arguments);
    assert_eq!((output.status.code(), &output.stderr[..]), (Some(0), &b""[..]), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_volume_is_made_described_checked_and_dumped() {
    let bench = Bench::new();
    let path = bench.volume();
    let volume = path.to_str().unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 4 << 20);
    let info = success(&["info", volume]);
    for part in ["\"bench\"", "4 MiB", "closed cleanly", "survives", "in place", "1 of 1023 inodes"] {
        assert!(info.contains(part), "{part} in {info}");
    }
    let json = success(&["info", volume, "--json"]);
    for part in ["\"label\": \"bench\"", "\"size_bytes\": 4194304", "\"closed_cleanly\": true"] {
        assert!(json.contains(part), "{part} in {json}");
    }
    assert!(success(&["fsck", volume]).contains("sound; 0 files, 1 directories"));
    assert!(success(&["fsck", "--json", volume]).contains("\"outcome\": \"sound\""));
    let unchecked = gannet(&["fsck", "--json", "/dev/null"]);
    let said: serde_json::Value = serde_json::from_slice(&unchecked.stdout).unwrap();
    assert_eq!((unchecked.status.code(), said["outcome"].as_str()), (Some(8), Some("unchecked")));
    assert!(String::from_utf8(unchecked.stderr).unwrap().contains(said["error"].as_str().unwrap()), "{said}");
    assert!(success(&["dump", volume]).contains("label \"bench\""));
    assert!(success(&["dump", volume, "/"]).contains("slot of inode 1"));
    assert!(failure(&["dump", volume, "/missing"], 1).contains("there is no /missing on it"));
    assert!(failure(&["dump", volume, "777777"], 1).contains("there is no 777777 on it"));
}

#[test]
fn what_is_there_of_format_processor_and_kernel_is_named() {
    let bench = Bench::new();
    let path = bench.volume();
    let volume = path.to_str().unwrap();
    let info = success(&["info", volume]);
    let line = |name: &str| {
        let found = info.lines().find(|line| line.trim_start().starts_with(name));
        found.unwrap_or_else(|| panic!("no {name} in {info}")).to_owned()
    };
    assert!(line("features").contains("incompatible: small chunks"), "{info}");
    let json: serde_json::Value = serde_json::from_str(&success(&["info", "--json", volume])).unwrap();
    assert_eq!(json["feature_names"]["incompatible"], serde_json::json!(["small chunks"]), "{json}");
    assert!(success(&["dump", volume]).contains("incompatible 0x8 (small chunks)"));
    let flags = fs::read_to_string("/proc/cpuinfo").unwrap();
    let flags: Vec<&str> = flags.lines().find(|line| line.starts_with("flags")).unwrap().split_whitespace().collect();
    // What the system has enabled, as the kernel tells it.
    for (ours, theirs) in [("clwb", "clwb"), ("clflushopt", "clflushopt"), ("avx2", "avx2"), ("pkeys", "ospke")] {
        let told = json["processor_features"].as_array().unwrap().iter().find(|one| one["name"] == ours).unwrap();
        assert_eq!(told["usable"], flags.contains(&theirs), "{told}");
        let there = line("processor").split([' ', ',']).any(|word| word == ours);
        assert!(there == flags.contains(&theirs) && there != info.contains(&format!("no {ours}")), "{info}");
    }
    let kernel = json["kernel_features"].as_array().unwrap();
    for name in ["MADV_COLLAPSE", "pidfs", "FUSE over io_uring", "pidfd_open", "memfd_create"] {
        let told = kernel.iter().find(|one| one["name"] == name).unwrap_or_else(|| panic!("no {name} in {json}"));
        assert_eq!(told["usable"] == true, line("kernel").contains(name), "{info}");
        assert_eq!(told["usable"] == false, info.contains(&format!("no {name} (")), "{info}");
    }
}

#[test]
fn a_volume_over_several_files_is_made_described_and_checked() {
    let bench = Bench::new();
    let paths = ["one", "two", "three"].map(|name| bench.path(name).to_str().unwrap().to_owned());
    let [one, two, three] = paths.each_ref();
    let (second, third) = (format!("{two}:6M"), format!("{three}:2M"));
    let made = success(&["mkfs", one, "--size", "4M", "--and", &second, "--and", &third]);
    assert!(made.contains("volume of 12 MiB") && made.contains("3 media: memory (tmpfs)"), "{made}");
    assert_eq!(fs::metadata(two).unwrap().len(), 6 << 20);
    let info = success(&["info", one]);
    for (number, path) in (1..).zip(&paths) {
        assert!(info.contains(&format!("medium {number}")) && info.contains(path), "{info}");
    }
    let json = success(&["info", "--json", one]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let media = json["media"].as_array().unwrap();
    assert_eq!(media.iter().map(|one| one["size_bytes"].as_u64().unwrap() >> 20).collect::<Vec<_>>(), [4, 6, 2]);
    assert_eq!(media[2]["file"].as_str().unwrap(), three);
    let checked = success(&["fsck", one]);
    assert!(checked.contains("medium 3 is a memory (tmpfs)") && checked.contains("sound"), "{checked}");
    let dumped = success(&["dump", one]);
    assert!(dumped.contains("medium 2 in blocks 1024 to 2559") && dumped.contains(": two"), "{dumped}");
    // Neither of them is overwritten by accident.
    for path in [one, two] {
        assert!(failure(&["mkfs", path, "--size", "4M"], 1).contains("of a volume already; --force") || path == one);
    }
    assert!(failure(&["mkfs", one, "--size", "4M", "--and", &third], 1).contains("a volume already; --force"));
    // One that is not there is named.
    fs::rename(two, bench.path("elsewhere")).unwrap();
    for command in ["info", "fsck", "dump"] {
        let code = if command == "fsck" { 8 } else { 1 };
        let said = failure(&[command, one], code);
        assert!(said.contains("its medium 2 of 3") && said.contains(two) && said.contains("is not there"), "{said}");
    }
    std::os::unix::fs::symlink(bench.path("elsewhere"), two).unwrap();
    assert!(success(&["fsck", one]).contains("sound"));
    // A damaged header is found and repaired.
    let file = fs::File::options().write(true).open(two).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0; 64], 0).unwrap();
    let output = gannet(&["fsck", one]);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("the header of medium 2 is damaged"), "{output:?}");
    assert_eq!(gannet(&["fsck", "--repair", one]).status.code(), Some(1));
    assert!(success(&["fsck", one]).contains("sound"));
}

#[test]
fn volumes_over_files_that_cannot_be_are_not_made() {
    let bench = Bench::new();
    let path = |name: &str| bench.path(name).to_str().unwrap().to_owned();
    let (one, two) = (path("one"), path("two"));
    let refused = |further: &[&str], code: i32| {
        let further = further.iter().flat_map(|file| ["--and", file]);
        let arguments: Vec<&str> = ["mkfs", &one, "--size", "4M"].into_iter().chain(further).collect();
        let said = failure(&arguments, code);
        let left: Vec<_> = fs::read_dir(bench.directory.path()).unwrap().collect();
        assert!(left.is_empty(), "{left:?} after {said}");
        said
    };
    assert!(refused(&[&two], 2).contains(&format!("Say --and {two}:4G")));
    assert!(refused(&[&format!("{two}:1M")], 2).contains("each file of several has 2 MiB at least"));
    let odd = refused(&[&format!("{two}:5M")], 2);
    assert!(odd.contains("multiple of 2 MiB, and 5 MiB is none: 4 MiB, or 6 MiB?"), "{odd}");
    assert!(refused(&[&format!("{one}:4M")], 2).contains("is named twice"));
    assert!(
        refused(&[&format!("{two}:4M"), &format!("{}/./two:4M", bench.directory.path().display())], 2)
            .contains("twice")
    );
    assert!(refused(&[&format!("{two}:4M"), "/nonexistent/file:4M"], 1).contains("/nonexistent/file"));
    fs::write(&one, "").unwrap();
    fs::hard_link(&one, &two).unwrap();
    let arguments = ["mkfs", &one, "--force", "--size", "4M", "--and", &format!("{two}:4M")];
    assert!(failure(&arguments, 2).contains("is named twice"), "two names of one file");
    for path in [&one, &two] {
        assert_eq!(fs::metadata(path).unwrap().len(), 0);
        fs::remove_file(path).unwrap();
    }
    let many: Vec<String> = (0..8).map(|number| format!("{two}{number}:2M")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert!(refused(&many, 1).contains("at most 8 media"));
}

#[test]
fn what_is_there_is_not_overwritten() {
    let bench = Bench::new();
    let path = bench.volume();
    let volume = path.to_str().unwrap();
    let before = fs::read(&path).unwrap();
    assert!(failure(&["mkfs", volume, "--size", "2M"], 1).contains("a volume already; --force"));
    assert_eq!(fs::read(&path).unwrap(), before);
    success(&["mkfs", volume, "--size", "2M", "--force", "--data", "cow"]);
    assert!(success(&["info", volume]).contains("copy-on-write"));

    let file = bench.path("file");
    fs::write(&file, "precious").unwrap();
    assert!(failure(&["mkfs", file.to_str().unwrap(), "--size", "2M"], 1).contains("not empty; --force"));
    assert_eq!(fs::read(&file).unwrap(), b"precious");
    fs::write(&file, "").unwrap();
    success(&["mkfs", file.to_str().unwrap(), "--size", "2M"]);
    let directory = bench.directory.path().to_str().unwrap();
    assert!(failure(&["mkfs", directory, "--size", "2M", "--force"], 1).contains("is a directory"));
}

#[test]
fn a_path_with_line_feeds_and_escapes_is_said_in_one_line() {
    let error = failure(&["info", "/no\nsuch\u{1b}[31m"], 1);
    assert!(error.contains("/no\\nsuch\\u{1b}[31m: "), "{error}");
    let error = failure(&["fsck", "--repair", "/"], 8);
    assert!(error.contains("a directory cannot hold a volume"), "{error}");
    let bench = Bench::new();
    let path = |name: &str| bench.path(name).to_str().unwrap().to_owned();
    let (one, two) = (path("a\nb\u{1b}[31m"), path("c\nd\u{1b}[31m"));
    let further = format!("{two}:2M");
    let (made, info) = (success(&["mkfs", &one, "--size", "2M", "--and", &further]), success(&["info", &one]));
    for said in [made, success(&["fsck", &one])] {
        assert!(said.contains("a\\nb\\u{1b}[31m: ") && !said.contains('\u{1b}'), "{said}");
    }
    assert!(info.starts_with(&format!("{}: ", one.escape_default())) && !info.contains('\u{1b}'), "{info}");
    assert!(info.lines().any(|line| line.contains("medium 2") && line.contains("c\\nd\\u{1b}[31m")), "{info}");
}

#[test]
fn wrong_usage_is_said_in_one_line() {
    let bench = Bench::new();
    let path = bench.path("new");
    let volume = path.to_str().unwrap();
    assert!(failure(&["mkfs", volume], 2).contains("--size 4G"));
    assert!(failure(&["mkfs", volume, "--size", "4X"], 2).contains("use K, M, G or T"));
    assert!(failure(&["mkfs", volume, "--size", "64K"], 2).contains("between 1 MiB and 16 TiB"));
    assert!(failure(&["mkfs", volume, "--size", "2M", "--label", &"x".repeat(65)], 2).contains("64 bytes"));
    assert!(failure(&["mkfs", volume, "--size", "15T"], 1).contains(volume), "there is no room for it");
    assert!(!path.exists());
    assert!(failure(&["fsck"], 16).contains("<VOLUME>"));
    assert!(failure(&["nonsense"], 2).contains("nonsense"));
    assert!(failure(&["run", volume, "--at", "here", "--", "true"], 2).contains("absolute"));
    assert!(failure(&["mount", volume, "/tmp", "-o", "nonsense"], 2).contains("nonsense"));
}

#[test]
fn what_is_no_volume_is_said() {
    let bench = Bench::new();
    let path = bench.path("zeros");
    fs::write(&path, vec![0; 2 << 20]).unwrap();
    let zeros = path.to_str().unwrap();
    for (command, code) in [("info", 1), ("dump", 1), ("fsck", 8)] {
        assert!(failure(&[command, zeros], code).contains("no Gannet volume"));
        assert!(failure(&[command, "/nonexistent/volume"], code).contains("/nonexistent/volume"));
    }
}

/// Nobody writes to it: whoever opened it as a file would wait for ever.
#[test]
fn a_fifo_is_refused_at_once() {
    let bench = Bench::new();
    let path = bench.path("fifo");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    let fifo = path.to_str().unwrap();
    for (command, code) in [("info", 1), ("dump", 1), ("stat", 1), ("fsck", 8)] {
        let output =
            Command::new("timeout").args(["20", env!("CARGO_BIN_EXE_gannet"), command, fifo]).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{command}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("a pipe cannot hold a volume"), "{output:?}");
    }
    let mut mkfs = Command::new("timeout");
    mkfs.args(["20", env!("CARGO_BIN_EXE_gannet"), "mkfs", fifo, "--size", "2M"]);
    assert_eq!(mkfs.output().unwrap().status.code(), Some(1));
}

#[test]
fn a_volume_without_write_permission_is_checked() {
    use std::os::unix::fs::PermissionsExt;
    let bench = Bench::new();
    let path = bench.volume();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
    assert!(success(&["fsck", path.to_str().unwrap()]).contains("sound"));
    assert!(success(&["info", path.to_str().unwrap()]).contains("closed cleanly"));
}

#[test]
fn documents_are_made() {
    let bench = Bench::new();
    let directory = bench.directory.path().to_str().unwrap();
    success(&["man", directory]);
    for page in ["gannet.1", "gannet-mkfs.1", "gannet-fsck.1", "gannet-run.1"] {
        let text = fs::read_to_string(bench.path(page)).unwrap();
        assert!(text.contains(".SH NAME"), "{page}");
    }
    // How a command is called is said with the values of its options.
    for (page, words) in [
        ("gannet-mkfs.1", "[\\fB\\-s\\fR|\\fB\\-\\-size\\fR \\fISIZE\\fR]"),
        ("gannet-mkfs.1", "[\\fB\\-\\-and\\fR \\fIFILE[:SIZE]\\fR]"),
        ("gannet-fsck.1", "[\\fB\\-\\-give\\-up\\fR \\fIFILE\\fR] [\\fB\\-\\-json\\fR]"),
    ] {
        let text = fs::read_to_string(bench.path(page)).unwrap();
        assert!(text.contains(words), "{words} in {text}");
    }
    assert!(success(&["completion", "bash"]).contains("_gannet"));
    assert!(failure(&["man", "/nonexistent"], 1).contains("/nonexistent"));
}
