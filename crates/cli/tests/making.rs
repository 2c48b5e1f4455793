//! Making volumes where it is not easy, and what the commands say of odd input: one line, an exit code, and nothing left behind.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const GANNET: &str = env!("CARGO_BIN_EXE_gannet");
const LONG: Duration = Duration::from_secs(120);

fn directory() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() }.unwrap()
}

fn gannet(arguments: &[&str]) -> Output {
    Command::new("timeout").args(["-s", "KILL", "300", GANNET]).args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// It fails with this code and one line, which says this.
#[track_caller]
fn refused(arguments: &[&str], code: i32, words: &[&str]) {
    let output = gannet(arguments);
    let errors = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!((output.status.code(), errors.lines().count()), (Some(code), 1), "{arguments:?}: {output:?}");
    assert!(errors.starts_with("gannet: ") && output.stdout.is_empty(), "{arguments:?}: {output:?}");
    for word in words {
        assert!(errors.contains(word), "{word:?} in {errors}");
    }
}

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("left out: it takes root");
    }
    is_root
}

/// Whether a process has a file below `directory` open, with or without a name.
fn has_open(child: &Child, directory: &Path) -> bool {
    let entries = fs::read_dir(format!("/proc/{}/fd", child.id())).into_iter().flatten().flatten();
    entries.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|target| target.starts_with(directory))
}

fn names(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_killed_mkfs_leaves_nothing() {
    // Once while a new file is made, once while an old one is to be replaced.
    for replaces in [false, true] {
        let home = directory();
        let path = home.path().join("volume");
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < LONG, "it is always faster");
            if replaces {
                let old = ["mkfs", path.to_str().unwrap(), "--size", "2M", "--label", "old", "--force"];
                assert!(gannet(&old).status.success());
            }
            let mut mkfs = Command::new(GANNET);
            mkfs.arg("mkfs").arg(&path).args(["--size", "512M", "--force"]).stdout(Stdio::null());
            let mut child = mkfs.spawn().unwrap();
            while !has_open(&child, home.path()) && child.try_wait().unwrap().is_none() {
                std::thread::yield_now();
            }
            let _ = child.kill();
            if child.wait().unwrap().signal() == Some(9) {
                break;
            }
            // It was faster.
            fs::remove_file(&path).unwrap();
        }
        if replaces {
            assert_eq!(names(home.path()), std::slice::from_ref(&path));
            let about = gannet(&["info", path.to_str().unwrap()]);
            assert!(String::from_utf8_lossy(&about.stdout).contains("\"old\""), "{about:?}");
        } else {
            assert!(names(home.path()).is_empty(), "{:?}", names(home.path()));
        }
    }
}

/// Without /proc a file cannot be given its name at the end: it has one from the beginning, which an interrupt removes.
#[test]
fn an_interrupted_mkfs_removes_its_file_where_it_needs_a_name() {
    if !is_root() {
        return;
    }
    let home = directory();
    let path = home.path().join("volume");
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::TERM, rustix::process::Signal::HUP] {
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < LONG, "it is always faster");
            let script = format!("mount -t tmpfs none /proc && exec {GANNET} mkfs {} --size 1G", path.display());
            let mut command = Command::new("unshare");
            let mut child = command.args(["-m", "sh", "-c", &script]).stdout(Stdio::null()).spawn().unwrap();
            while !path.exists() && child.try_wait().unwrap().is_none() {
                std::thread::yield_now();
            }
            let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
            let _ = rustix::process::kill_process(pid, signal);
            let status = child.wait().unwrap();
            if status.code() == Some(128 + signal.as_raw()) {
                break;
            }
            assert!(status.success(), "{status}");
            fs::remove_file(&path).unwrap();
        }
        assert!(names(home.path()).is_empty(), "{:?}", names(home.path()));
    }
}

#[test]
fn links_that_lead_nowhere_are_named() {
    let home = directory();
    let at = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    std::os::unix::fs::symlink("nowhere", at("link")).unwrap();
    let (link, new) = (at("link"), at("new"));
    let words = ["link: is a symbolic link to nowhere, and nothing is there"];
    for (command, code) in [("info", 1), ("dump", 1), ("stat", 1), ("fsck", 8)] {
        refused(&[command, &link], code, &words);
    }
    refused(&["mkfs", &link, "--size", "4M"], 1, &words);
    refused(&["mkfs", &link, "--size", "4M", "--force"], 1, &words);
    refused(&["mkfs", &new, "--size", "4M", "--and", &format!("{link}:4M")], 1, &words);
    assert_eq!(names(home.path()), [PathBuf::from(&link)], "nothing is left of the first");
    // One that leads to itself is no link to nothing.
    std::os::unix::fs::symlink("circle", at("circle")).unwrap();
    for (command, code) in [("info", 1), ("fsck", 8)] {
        refused(
            &[command, &at("circle")],
            code,
            &["circle: cannot follow the symbolic link: it leads back to itself; "],
        );
    }
    refused(&["mkfs", &at("circle"), "--size", "4M"], 1, &["circle: cannot follow the symbolic link: it leads back"]);
    // One that leads somewhere stays, and what it leads to is replaced.
    fs::write(at("nowhere"), "").unwrap();
    assert!(gannet(&["mkfs", &link, "--size", "4M"]).status.success());
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink() && fs::metadata(at("nowhere")).unwrap().len() == 4 << 20);
}

#[test]
fn hugetlbfs_says_what_fits() {
    if !is_root() {
        return;
    }
    let home = TempDir::new().unwrap();
    let mounted = rustix::mount::mount("none", home.path(), "hugetlbfs", rustix::mount::MountFlags::empty(), None);
    if let Err(error) = mounted {
        return eprintln!("left out: hugetlbfs cannot be mounted: {error}");
    }
    let outcome = std::panic::catch_unwind(|| {
        let path = home.path().join("volume").to_str().unwrap().to_owned();
        let page_bytes = rustix::fs::statfs(home.path()).unwrap().f_bsize as u64;
        let odd = (page_bytes * 3 / 2).to_string();
        let pages = format!("huge pages of {page_bytes} bytes");
        refused(&["mkfs", &path, "--size", &odd], 1, &[&pages, "are free", "choose a size"]);
        assert!(names(home.path()).is_empty());
        // Pages of its own, given back behind.
        let switch = format!("/sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages", page_bytes / 1024);
        let count = || fs::read_to_string(&switch).unwrap().trim().parse::<u64>().unwrap();
        let before = count();
        let reserved = page_bytes == 2 << 20 && fs::write(&switch, (before + 4).to_string()).is_ok();
        if reserved && count() == before + 4 {
            let made = gannet(&["mkfs", &path, "--size", "8M"]);
            let about = gannet(&["info", &path]);
            let checked = gannet(&["fsck", &path]);
            let removed = fs::remove_file(&path);
            fs::write(&switch, before.to_string()).unwrap();
            assert!(made.status.success() && removed.is_ok() && checked.status.success(), "{made:?} {checked:?}");
            assert!(String::from_utf8_lossy(&about.stdout).contains("hugetlbfs"), "{about:?}");
        } else {
            eprintln!("left out: no huge pages can be reserved");
            let _ = fs::write(&switch, before.to_string());
        }
    });
    rustix::mount::unmount(home.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
    outcome.unwrap();
}

#[test]
fn odd_input_is_answered_with_one_line() {
    let home = directory();
    let at = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    let volume = at("volume");
    assert!(gannet(&["mkfs", &volume, "--size", "8M"]).status.success());
    fs::create_dir(at("directory")).unwrap();
    let file = |name: &str, bytes: u64| {
        fs::File::create(at(name)).unwrap().set_len(bytes).unwrap();
        at(name)
    };
    let (empty, one, odd) = (file("empty", 0), file("one", 1), file("odd", 5000));
    let (zeros, huge) = (file("zeros", 2 << 20), file("huge", 1 << 40));
    let cut = |name: &str, bytes: u64| {
        fs::copy(&volume, at(name)).unwrap();
        fs::File::options().write(true).open(at(name)).unwrap().set_len(bytes).unwrap();
        at(name)
    };
    let (half, page, torn) = (cut("half", 4 << 20), cut("page", 4096), cut("torn", (4 << 20) + 1));
    let below = format!("{volume}/x");
    for (command, code) in [("info", 1), ("stat", 1), ("dump", 1), ("fsck", 8)] {
        refused(&[command, &at("missing")], code, &["missing: ", "No such file", "gannet mkfs"]);
        refused(&[command, &below], code, &[&below, "Not a directory"]);
        refused(&[command, &at("directory")], code, &["a directory cannot hold a volume"]);
        refused(&[command, &empty], code, &["empty: ", "no volume was made in it"]);
        refused(&[command, &one], code, &["1 bytes", "not a multiple of 4096"]);
        refused(&[command, &odd], code, &["5000 bytes", "truncated"]);
        refused(&[command, &zeros], code, &["no Gannet volume", "gannet mkfs"]);
        refused(&[command, &huge], code, &["no Gannet volume"]);
        if command != "fsck" {
            refused(&[command, &half], code, &["larger than its medium", "put a whole copy in its place"]);
            refused(&[command, &page], code, &[&page, "`gannet fsck` says more"]);
        }
        refused(&[command, &torn], code, &["truncated"]);
        refused(&[command, "/dev/zero"], code, &["a character device other than device DAX"]);
        let usage = if command == "fsck" { 16 } else { 2 };
        refused(&[command], usage, &["<VOLUME>", "--help"]);
        refused(&[command, &volume, "a", "b"], usage, &["unexpected"]);
        refused(&[command, "--nonsense", &volume], usage, &["--nonsense"]);
    }
    // A check of what was cut comes to a verdict, which is that.
    for (cut, bytes) in [(&half, 4 << 20), (&page, 4096)] {
        for repair in [&[][..], &["--repair"]] {
            let output = gannet(&[&["fsck", cut], repair].concat());
            let said = String::from_utf8(output.stdout.clone()).unwrap();
            assert!(output.status.code() == Some(4) && output.stderr.is_empty(), "{output:?}");
            let words = [format!("cut from {} to {bytes} bytes", 8 << 20), "nothing else was checked".to_owned()];
            assert!(words.iter().all(|words| said.contains(words)) && !said.contains("cleanly"), "{said}");
        }
        let output = gannet(&["fsck", "--json", cut]);
        let figures: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(figures["outcome"] == "damaged" && figures["inodes"].is_null(), "{figures}");
        assert_eq!((&figures["blocks"], output.status.code()), (&2048.into(), Some(4)));
    }
    refused(&["stat", &volume], 1, &["nobody has it open", "gannet info"]);
    refused(&["dump", &volume, ""], 2, &["an inode's number, or a path"]);
    for what in ["/missing", "missing", "7777", "99999999999999999999", "/volume/x"] {
        refused(&["dump", &volume, what], 1, &[what, "an inode's number, or a path"]);
    }
    let new = at("new");
    for (size, words) in [
        ("0", "at least 1 MiB"),
        ("1", "between 1 MiB and 16 TiB"),
        ("-1", "is no size"),
        ("abc", "is no size"),
        ("4X", "is no unit"),
        ("17T", "between 1 MiB and 16 TiB"),
        ("99999999T", "more than any volume"),
    ] {
        refused(&["mkfs", &new, "--size", size], 2, &[words]);
    }
    refused(&["mkfs", &new, "--size", "15T"], 1, &["its file system has", "choose a smaller size"]);
    refused(&["mkfs", &new], 2, &["how large", "--size 4G"]);
    refused(&["mkfs", &new, "--size", "2M", "--label", &"ä".repeat(33)], 2, &["64 bytes", "66"]);
    refused(&["mkfs", &new, "--size", "2M", "--data", "journal"], 2, &["inplace, cow"]);
    refused(&["mkfs", &at("missing/new"), "--size", "2M"], 1, &["missing/new", "mkdir -p"]);
    refused(&["mkfs", "/dev/fd/999", "--size", "2M"], 1, &["/dev/fd/999: cannot create the file: "]);
    refused(&["mkfs", &at("directory"), "--size", "2M", "--force"], 1, &["is a directory; name a file"]);
    refused(&["mkfs", &at("directory/"), "--size", "2M", "--force"], 1, &["is a directory; name a file"]);
    for name in ["volume/", "nowhere/"] {
        refused(&["mkfs", &at(name), "--size", "2M"], 1, &[name, "leave the slash at the end out"]);
    }
    refused(&["mkfs", &at(&"n".repeat(300)), "--size", "2M"], 1, &["File name too long"]);
    assert!(!Path::new(&new).exists());
    // An odd size is rounded down.
    assert!(gannet(&["mkfs", &new, "--size", "2000000"]).status.success());
    assert_eq!(fs::metadata(&new).unwrap().len(), 2_000_000 / 4096 * 4096);
}

/// What is no text is refused by the name of its option.
#[test]
fn values_that_are_no_text_are_named() {
    use std::os::unix::ffi::OsStrExt;
    let (home, none) = (directory(), std::ffi::OsStr::from_bytes(b"a\xffb"));
    for (command, option) in [("mkfs", "--label"), ("mkfs", "--size"), ("mkfs", "--and"), ("mount", "--options")] {
        let output =
            Command::new(GANNET).arg(command).arg(home.path().join("v")).arg(option).arg(none).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), errors.lines().count()), (Some(2), 1), "{output:?}");
        assert!(errors.contains(option) && errors.contains("not UTF-8"), "{errors}");
    }
}

/// A volume that replaces a file belongs to whom that belonged; to its maker alone, who says so, where that is not for him to give.
#[test]
fn a_volume_is_whose_the_file_was() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let home = directory();
    let path = home.path().join("volume");
    let volume = path.to_str().unwrap();
    let access = || fs::metadata(&path).map(|is| (is.uid(), is.gid(), is.mode() & 0o7777)).unwrap();
    for force in [&[][..], &["--force"]] {
        let arguments = [&["mkfs", volume, "--size", "2M"], force].concat();
        fs::write(&path, if force.is_empty() { "" } else { "something" }).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o664)).unwrap();
        let owner = if is_root() { (65534, 65533) } else { (access().0, access().1) };
        std::os::unix::fs::chown(&path, Some(owner.0), Some(owner.1)).unwrap();
        let output = gannet(&arguments);
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        assert_eq!(access(), (owner.0, owner.1, 0o664));
    }
    if !is_root() {
        return;
    }
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let program = home.path().join("gannet");
    assert!(Command::new("cp").arg(GANNET).arg(&program).status().unwrap().success());
    std::os::unix::fs::chown(&path, Some(1), Some(1)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&program);
    let output = command.args(["mkfs", volume, "--size", "2M", "--force"]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.lines().count() == 1, "{output:?}");
    assert!(errors.contains("is yours now"), "{errors}");
    assert_eq!(access(), (65534, 65534, 0o600));
}

/// As another user, who may do nothing: `setpriv` is part of util-linux.
#[test]
fn who_may_not_is_told_so() {
    if !is_root() {
        return;
    }
    let home = directory();
    let volume = home.path().join("volume").to_str().unwrap().to_owned();
    assert!(gannet(&["mkfs", &volume, "--size", "2M"]).status.success());
    fs::set_permissions(home.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    // Where everybody can execute it.
    let program = home.path().join("gannet");
    // By a process of its own: what another test starts meanwhile would have this one's descriptor for a moment, and the program be busy.
    assert!(Command::new("cp").arg(GANNET).arg(&program).status().unwrap().success());
    let as_nobody = |arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--clear-groups"]).arg(&program).args(arguments).output().unwrap()
    };
    for (arguments, code, words) in [
        (&["info", &volume][..], 1, "you may not read it"),
        (&["stat", &volume], 1, "you may not read it"),
        (&["dump", &volume], 1, "you may not read it"),
        (&["fsck", &volume], 8, "you may not read it"),
        (&["mkfs", &format!("{volume}-2"), "--size", "2M"], 1, "its directory must be one that you may write to"),
    ] {
        let output = as_nobody(arguments);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), errors.lines().count()), (Some(code), 1), "{arguments:?}: {output:?}");
        assert!(errors.contains(words), "{errors}");
    }
}

/// Commands end when nobody reads on, and say so when the output cannot be written.
#[test]
fn readers_that_go_away_are_no_failure() {
    let home = directory();
    let volume = home.path().join("volume").to_str().unwrap().to_owned();
    assert!(gannet(&["mkfs", &volume, "--size", "4M"]).status.success());
    let open = gannet_open::open_volume(Path::new(&volume), gannet_open::Options::default()).unwrap();
    let shell = |line: String| {
        let output =
            Command::new("timeout").args(["-s", "KILL", "120", "bash", "-o", "pipefail", "-c", &line]).output();
        let output = output.unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for command in ["info", "info --json", "dump", "fsck", "stat", "stat --json", "stat --watch", "stat --watch --json"]
    {
        let (code, errors) = shell(format!("{GANNET} {command} {volume} | head -c 1 > /dev/null"));
        assert_eq!((code, errors.as_str()), (Some(0), ""), "{command}");
        let (code, errors) = shell(format!("{GANNET} {command} {volume} > /dev/full"));
        let expected = if command == "fsck" { 8 } else { 1 };
        assert_eq!((code, errors.lines().count()), (Some(expected), 1), "{command}: {errors}");
        assert!(errors.contains("No space left on device"), "{command}: {errors}");
        let (code, errors) = shell(format!("{GANNET} {command} {volume} >&-"));
        assert_eq!((code, errors.lines().count()), (Some(expected), 1), "{command}: {errors}");
        assert!(errors.contains("standard output: it is closed"), "{command}: {errors}");
    }
    for command in ["--help", "completion bash"] {
        let (code, errors) = shell(format!("{GANNET} {command} >&-"));
        assert_eq!((code, errors.as_str()), (Some(1), "gannet: standard output: it is closed\n"), "{command}");
    }
    // Who prints nothing does not need it.
    let pages = home.path().to_str().unwrap();
    assert_eq!(shell(format!("{GANNET} man {pages} >&-")), (Some(0), String::new()));
    let (code, errors) = shell(format!("{GANNET} --help > /dev/full"));
    assert_eq!((code, errors.lines().count()), (Some(1), 1), "{errors}");
    drop(open);
}

/// btrfs writes what was reserved elsewhere, for which there may be no space then, unless it is told not to.
#[test]
fn a_new_file_is_overwritten_in_place_on_btrfs() {
    if !is_root() {
        return;
    }
    const NOT_HERE: i32 = 77;
    let script = r#"
        truncate -s 256M disk && mkfs.btrfs -q disk && mkdir on && mount -o loop disk on || exit 77
        set -ex
        "$1" mkfs on/volume --size 64M
        lsattr on/volume | grep '^[^ ]*C'
        "$1" mkfs --force on/volume --size 32M
        lsattr on/volume | grep '^[^ ]*C'
        umount on
    "#;
    let home = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "sh", "-c", script, "sh", GANNET]).current_dir(home.path());
    match shell.output() {
        Err(error) => eprintln!("skipped: unshare: {error}"),
        Ok(output) if output.status.code() == Some(NOT_HERE) => eprintln!("skipped: no btrfs here: {output:?}"),
        Ok(output) => assert!(output.status.success(), "{output:?}"),
    }
}
