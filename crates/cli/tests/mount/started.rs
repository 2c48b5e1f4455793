//! How a mount is started: by the command, in the background, by a service manager, by mount(8) as its helper; and what is said where it cannot be.

use crate::life::{unmount, words};
use crate::{Bench, eventually, gannet, hindrance};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

/// Calls the program as mount(8) does.
pub(crate) fn helper(bench: &Bench, volume: &Path, more: &[&str]) -> Output {
    let link = bench.directory.path().join("mount.fuse.gannet");
    if !link.exists() {
        let option = format!("--install-helper={}", bench.directory.path().display());
        let installed = gannet(["mount", &option].map(OsStr::new));
        assert!(installed.status.success(), "{installed:?}");
    }
    Command::new(link).arg(volume).arg(bench.at()).args(more).output().unwrap()
}

pub(crate) fn one_line(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(!output.status.success() && text.lines().count() == 1 && text.starts_with("gannet: "), "{output:?}");
    text
}

#[test]
fn mount_calls_it_as_its_helper() {
    if let Some(why) = hindrance() {
        return eprintln!("skipped: {why}");
    }
    let bench = Bench::new();
    let mounted = helper(&bench, &bench.volume(), &["-o", "rw,noatime,_netdev,nofail,x-systemd.automount,umask=027"]);
    assert!(mounted.status.success(), "{mounted:?}");
    // It answers when the helper ends.
    fs::write(bench.on("file"), "x").unwrap();
    assert_eq!(fs::metadata(bench.on("file")).unwrap().permissions().mode() & 0o7777, 0o750);
    let shown = words(&bench.at());
    assert!(shown.contains("noatime") && shown.contains("nosuid") && shown.contains("nodev"), "{shown}");
    let remounted = helper(&bench, &bench.volume(), &["-o", "remount,ro,suid,dev"]);
    assert!(remounted.status.success(), "{remounted:?}");
    let shown = words(&bench.at());
    assert!(shown.starts_with("ro,") && shown.contains("nosuid") && shown.contains("nodev"), "{shown}");
    assert!(fs::write(bench.on("file"), "y").is_err());
    // So mount(8) calls when only the directory was named: with what the kernel shows.
    let words_shown = format!("{shown},remount,rw").replacen("ro,", "", 1);
    let remounted = helper(&bench, &bench.volume(), &["-o", &words_shown]);
    assert!(remounted.status.success(), "{remounted:?}");
    assert!(words(&bench.at()).starts_with("rw,"));
    fs::write(bench.on("file"), "y").unwrap();
    unmount(&bench.at());
    // The command itself takes what mount(8) takes: options one by one, and `remount`.
    let by_command = |options: &[&str]| {
        let paths = [bench.volume().into_os_string(), bench.at().into_os_string()];
        let arguments = std::iter::once("mount").chain(options.iter().copied()).map(OsString::from).chain(paths);
        gannet(arguments.collect::<Vec<_>>().iter().map(OsString::as_os_str))
    };
    assert!(by_command(&["-o", "noatime", "-onoexec,allow_other"]).status.success());
    let shown = words(&bench.at());
    assert!(shown.contains("noatime") && shown.contains("noexec") && shown.contains("allow_other"), "{shown}");
    assert!(by_command(&["-o", "remount,ro"]).status.success());
    assert!(words(&bench.at()).starts_with("ro,"));
    unmount(&bench.at());
    // What was read-only from the start cannot be made writable.
    let mounted = helper(&bench, &bench.volume(), &["-o", "ro"]);
    assert!(mounted.status.success(), "{mounted:?}");
    let refused = helper(&bench, &bench.volume(), &["-o", "remount,rw"]);
    assert!(one_line(&refused).contains("opened the volume read-only"));
    assert!(words(&bench.at()).starts_with("ro,"));
    unmount(&bench.at());
    // Set-user-id programs that count still do after a remount that says nothing about them.
    let mounted = helper(&bench, &bench.volume(), &["-o", "allow_suid,allow_dev"]);
    if mounted.status.success() {
        assert!(helper(&bench, &bench.volume(), &["-o", "remount,ro"]).status.success());
        let shown = words(&bench.at());
        assert!(shown.starts_with("ro,") && !shown.contains("nosuid") && !shown.contains("nodev"), "{shown}");
        assert!(helper(&bench, &bench.volume(), &["-o", "remount,rw,nosuid"]).status.success());
        let shown = words(&bench.at());
        assert!(shown.contains("nosuid") && !shown.contains("nodev"), "{shown}");
        unmount(&bench.at());
    }
    // What fails has mount(8)'s codes, and one line.
    let failed = helper(&bench, Path::new("/nonexistent/volume"), &[]);
    assert!(one_line(&failed).contains("/nonexistent/volume"));
    assert_eq!(failed.status.code(), Some(32));
    let failed = helper(&bench, &bench.volume(), &["-o", "nonsense"]);
    assert!(one_line(&failed).contains("nonsense"));
    assert_eq!(failed.status.code(), Some(1));
    let sloppy = helper(&bench, &bench.volume(), &["-s", "-o", "nonsense,ro"]);
    assert!(sloppy.status.success() && words(&bench.at()).starts_with("ro,"), "{sloppy:?}");
    unmount(&bench.at());
    bench.check();
}

#[test]
fn a_service_manager_is_told_when_it_answers() {
    if let Some(why) = hindrance() {
        return eprintln!("skipped: {why}");
    }
    let bench = Bench::new();
    let path = bench.directory.path().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(std::time::Duration::from_secs(120))).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gannet"));
    command.args(["mount", "--foreground", "--memory=8M"]).arg(bench.at()).env("NOTIFY_SOCKET", &path);
    let mut child = command.stdout(std::process::Stdio::null()).spawn().unwrap();
    let mut message = [0; 500];
    let length = socket.recv(&mut message).unwrap();
    let message = String::from_utf8_lossy(&message[..length]).into_owned();
    assert!(message.starts_with("READY=1\n") && message.contains("memory:8 on "), "{message}");
    fs::write(bench.on("file"), "x").unwrap();
    let full = fs::write(bench.on("large"), vec![1; 9 << 20]).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    // Ended as a service manager does.
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(words(&bench.at()), "");
}

#[test]
fn in_the_background_it_needs_nobody() {
    if let Some(why) = hindrance() {
        return eprintln!("skipped: {why}");
    }
    let bench = Bench::new();
    let mounted = Command::new(env!("CARGO_BIN_EXE_gannet"))
        .args(["mount", "volume", "mnt"])
        .current_dir(bench.directory.path())
        .output()
        .unwrap();
    assert!(mounted.status.success(), "{mounted:?}");
    fs::write(bench.on("file"), "kept").unwrap();
    // Mounted over the mount: the volume is open, and that is said.
    let again = gannet([
        "mount".as_ref(),
        "-o".as_ref(),
        "cache=exclusive".as_ref(),
        bench.volume().as_os_str(),
        bench.at().as_os_str(),
    ]);
    assert!(one_line(&again).contains("others have the volume open"));
    unmount(&bench.at());
    assert_eq!(bench.run("cat /gannet/file"), "kept");
    // What the serving process has to say is said here.
    bench.mount("").kill();
    let mounted = gannet(["mount".as_ref(), bench.volume().as_os_str(), bench.at().as_os_str()]);
    let said = String::from_utf8_lossy(&mounted.stderr).into_owned();
    assert!(
        mounted.status.success() && said.contains("an earlier mount is dead") && said.lines().count() == 1,
        "{said}"
    );
    unmount(&bench.at());
    eventually("closed", || {
        let info = gannet(["info".as_ref(), bench.volume().as_os_str()]);
        String::from_utf8_lossy(&info.stdout).contains("closed cleanly")
    });
    bench.check();
}

#[test]
fn errors_are_one_line() {
    if let Some(why) = hindrance() {
        return eprintln!("skipped: {why}");
    }
    let bench = Bench::new();
    let mount = |arguments: &[&OsStr]| {
        let all: Vec<OsString> =
            ["mount".as_ref()].iter().chain(arguments).map(|word: &&OsStr| word.to_os_string()).collect();
        one_line(&gannet(all.iter().map(OsString::as_os_str)))
    };
    let (volume, at) = (bench.volume(), bench.at());
    let zeros = bench.directory.path().join("zeros");
    fs::write(&zeros, vec![0; 2 << 20]).unwrap();
    assert!(mount(&[zeros.as_os_str(), at.as_os_str()]).contains("no Gannet volume"));
    assert!(mount(&[volume.as_os_str(), zeros.as_os_str()]).contains("not a directory"));
    assert!(mount(&[volume.as_os_str(), "/nonexistent".as_ref()]).contains("no such directory"));
    assert!(mount(&[volume.as_os_str()]).contains("directory"));
    assert!(mount(&["--memory".as_ref(), volume.as_os_str(), at.as_os_str()]).contains("one directory"));
    // A full volume says so, and works on.
    let server = bench.mount("");
    let mut file = File::create(bench.on("large")).unwrap();
    let full = loop {
        if let Err(error) = file.write_all(&[7; 1 << 16]) {
            break error;
        }
    };
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    drop(file);
    fs::remove_file(bench.on("large")).unwrap();
    fs::write(bench.on("small"), vec![7; 1 << 20]).unwrap();
    server.end();
    bench.check();
    // Without the device, and without permission.
    let script = "mount -t tmpfs none /dev && exec \"$0\" mount --foreground --memory \"$1\"";
    let elsewhere = tempfile::TempDir::new_in("/tmp").unwrap();
    let program = env!("CARGO_BIN_EXE_gannet");
    let hidden = Command::new("unshare").args(["-m", "sh", "-c", script, program]).arg(elsewhere.path()).output();
    match hidden {
        Ok(output) => assert!(one_line(&output).contains("there is no /dev/fuse here"), "{output:?}"),
        Err(error) => eprintln!("skipped: without /dev/fuse: unshare: {error}"),
    }
    let mut ordinary = Command::new(env!("CARGO_BIN_EXE_gannet"));
    ordinary.args(["mount", "--memory"]).arg("/proc").uid(65_534).gid(65_534);
    match ordinary.output() {
        Ok(output) => _ = one_line(&output),
        Err(error) => eprintln!("skipped: an ordinary user cannot run this program: {error}"),
    }
}
