//! The life of mounts of volumes: kills, mount(8)'s helper, whom set-user-id programs count for, errors.

use crate::oracle::tick;
use crate::{Bench, eventually, gannet, hindrance, with_transports};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) fn words(path: &Path) -> String {
    let table = fs::read_to_string("/proc/thread-self/mounts").unwrap();
    let line = table.lines().find(|line| line.split(' ').nth(1) == path.to_str());
    line.and_then(|line| line.split(' ').nth(3)).unwrap_or_default().to_owned()
}

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

pub(crate) fn unmount(path: &Path) {
    eventually("unmounted", || rustix::mount::unmount(path, rustix::mount::UnmountFlags::empty()).is_ok());
}

pub(crate) fn one_line(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(!output.status.success() && text.lines().count() == 1 && text.starts_with("gannet: "), "{output:?}");
    text
}

#[test]
fn a_volume_can_be_checked_and_made_anew_at_once_after_umount() {
    // The server closes the volume when umount(2) has returned.
    with_transports(|transport| {
        for _ in 0..10 {
            let bench = Bench::new();
            let mut server = bench.mount(&format!("transport={transport}"));
            fs::write(bench.on("file"), [1; 100_000]).unwrap();
            unmount(&bench.at());
            let checked = gannet(["fsck".as_ref(), "--repair".as_ref(), bench.volume().as_os_str()]);
            assert_eq!(checked.status.code(), Some(0), "{checked:?}");
            assert!(server.child.wait().unwrap().success());
            let mut server = bench.mount(&format!("transport={transport},cache=writeback"));
            fs::write(bench.on("file"), [2; 1_000_000]).unwrap();
            unmount(&bench.at());
            // This one needs the volume for itself, and waits for it.
            let mut next = bench.mount(&format!("transport={transport},cache=writeback"));
            assert!(fs::read(bench.on("file")).unwrap() == [2; 1_000_000]);
            assert!(server.child.wait().unwrap().success());
            unmount(&bench.at());
            let made = gannet(
                ["mkfs", "--force", "--size=64M"].map(OsStr::new).into_iter().chain([bench.volume().as_os_str()]),
            );
            assert!(made.status.success(), "{made:?}");
            assert!(next.child.wait().unwrap().success());
        }
    });
}

#[test]
fn a_server_outlives_its_volumes_being_cut() {
    with_transports(|transport| {
        let bench = Bench::new();
        let mut server = bench.mount(&format!("transport={transport},cache=coherent"));
        let file = bench.at().join("file");
        fs::write(&file, vec![7; 8 << 20]).unwrap();
        fs::File::options().write(true).open(bench.volume()).unwrap().set_len(4096).unwrap();
        assert_eq!(fs::read(&file).unwrap_err().raw_os_error(), Some(libc::EIO));
        assert_eq!(fs::write(bench.at().join("other"), "x").unwrap_err().raw_os_error(), Some(libc::EIO));
        assert!(server.child.try_wait().unwrap().is_none(), "it serves on");
        unmount(&bench.at());
        assert!(server.child.wait().unwrap().code().is_some(), "no signal ended it");
    });
}

#[test]
fn what_was_acknowledged_outlives_a_killed_server() {
    with_transports(|transport| {
        for cache in ["automatic", "coherent", "exclusive"] {
            let bench = Bench::new();
            let options = format!("transport={transport},cache={cache}");
            for round in 0..3 {
                let server = bench.mount(&options);
                let (path, volume) = (bench.at(), bench.volume());
                let progress = Arc::new(AtomicUsize::new(0));
                let seen = Arc::clone(&progress);
                let killer = std::thread::spawn(move || {
                    while seen.load(Ordering::Relaxed) < 20 {
                        std::thread::sleep(std::time::Duration::from_millis(1));
                    }
                    std::thread::sleep(std::time::Duration::from_millis(10 + round * 40));
                    server.kill();
                });
                // Each name is written down when its file is: until the calls fail.
                let (mut done, mut undecided) = (Vec::new(), None);
                for number in 0.. {
                    let name = format!("{round}-{number}");
                    let content = name.repeat(1 + number % 700);
                    let write = || -> std::io::Result<()> {
                        fs::write(path.join("new"), &content)?;
                        fs::rename(path.join("new"), path.join(&name))
                    };
                    if write().is_err() {
                        break;
                    }
                    done.push((name, content));
                    progress.store(done.len(), Ordering::Relaxed);
                    if number % 3 == 2 {
                        match fs::remove_file(path.join(&done[number - 1].0)) {
                            Ok(()) => done[number - 1].1.clear(),
                            // Nobody was told whether it is gone.
                            Err(_) => undecided = Some(number - 1),
                        }
                    }
                }
                // Should it have failed by itself.
                progress.store(usize::MAX, Ordering::Relaxed);
                killer.join().unwrap();
                assert!(done.len() >= 20, "it failed before the server was killed");
                // The dead mount is replaced.
                let server = bench.mount(&options);
                for (number, (name, content)) in done.iter().enumerate() {
                    let found = fs::read_to_string(path.join(name));
                    match content.is_empty() {
                        true => assert!(found.is_err(), "{name} came back"),
                        false if found.is_err() && undecided == Some(number) => {}
                        false => assert_eq!(found.as_ref().ok(), Some(content), "{name}"),
                    }
                }
                done.iter().for_each(|(name, _)| _ = fs::remove_file(path.join(name)));
                server.end();
                assert!(volume.exists());
                bench.check();
            }
        }
    });
}

#[test]
fn each_read_moves_the_access_time_if_asked() {
    with_transports(|transport| {
        for (words, moves) in [("strictatime", true), ("relatime", false), ("noatime", false)] {
            let bench = Bench::new();
            let server = bench.mount(&format!("transport={transport},{words}"));
            fs::write(bench.on("file"), "content").unwrap();
            let read = || {
                tick();
                assert_eq!(fs::read(bench.on("file")).unwrap(), b"content");
                fs::metadata(bench.on("file")).unwrap().accessed().unwrap()
            };
            let first = read();
            assert_eq!(read() > first, moves, "{words}");
            std::os::unix::fs::symlink("file", bench.on("link")).unwrap();
            let follow = || {
                tick();
                assert_eq!(fs::read_link(bench.on("link")).unwrap().as_os_str(), "file");
                fs::symlink_metadata(bench.on("link")).unwrap().accessed().unwrap()
            };
            let first = follow();
            assert_eq!(follow() > first, moves, "{words}: a link");
            server.end();
        }
    });
}

#[test]
fn directories_keep_their_access_times_if_asked() {
    with_transports(|transport| {
        for (words, moves) in [("strictatime", true), ("strictatime,nodiratime", false)] {
            let bench = Bench::new();
            let server = bench.mount(&format!("transport={transport},{words}"));
            fs::create_dir(bench.on("directory")).unwrap();
            let list = || {
                tick();
                assert_eq!(fs::read_dir(bench.on("directory")).unwrap().count(), 0);
                fs::metadata(bench.on("directory")).unwrap().accessed().unwrap()
            };
            let first = list();
            assert_eq!(list() > first, moves, "{words}");
            server.end();
        }
    });
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
    // mount.fuse3 calls the program by its own name.
    let by_fuse3 = gannet([bench.volume().as_os_str(), bench.at().as_os_str(), "-o".as_ref(), "rw,dev,suid".as_ref()]);
    assert!(by_fuse3.status.success(), "{by_fuse3:?}");
    assert!(!words(&bench.at()).contains("nosuid"));
    eventually("unmounted", || rustix::mount::unmount(bench.at(), rustix::mount::UnmountFlags::empty()).is_ok());
    bench.check();
}

/// A reader cannot close what a writer has left to it. The next one recovers that first, as it may write to the volume.
#[test]
fn a_reader_that_was_the_last_keeps_no_reader_out() {
    if let Some(why) = hindrance() {
        return eprintln!("skipped: {why}");
    }
    let bench = Bench::new();
    let mut writer = bench.shell();
    writer.does("echo kept > /gannet/file");
    let reader = bench.mount("ro");
    writer.end();
    assert_eq!(fs::read_to_string(bench.on("file")).unwrap(), "kept\n");
    reader.end();
    let reader = bench.mount("ro");
    assert_eq!(fs::read_to_string(bench.on("file")).unwrap(), "kept\n");
    reader.end();
    bench.check();
}

#[test]
fn set_user_id_counts_only_where_root_alone_writes_the_volume() {
    if let Some(why) = hindrance() {
        return eprintln!("skipped: {why}");
    }
    let bench = Bench::new();
    let volume = bench.volume();
    let refused = |what: &str| {
        for word in ["suid", "dev"] {
            let complaint = bench.try_mount(word).map(drop).unwrap_err();
            assert!(complaint.contains("only root can write") && complaint.contains(what), "{complaint}");
        }
        assert_eq!(words(&bench.at()), "");
    };
    fs::set_permissions(&volume, fs::Permissions::from_mode(0o602)).unwrap();
    refused("volume can be written by others");
    fs::set_permissions(&volume, fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::chown(&volume, Some(1234), None).unwrap();
    refused("volume belongs to user 1234");
    std::os::unix::fs::chown(&volume, Some(0), Some(0)).unwrap();
    fs::set_permissions(bench.directory.path(), fs::Permissions::from_mode(0o757)).unwrap();
    refused("can be written by others");
    fs::set_permissions(bench.directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let server = bench.mount("suid,dev,allow_other");
    let shown = words(&bench.at());
    assert!(!shown.contains("nosuid") && !shown.contains("nodev"), "{shown}");
    server.end();
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

/// `execve` closes files while it holds what the kernel takes to show the process in `/proc`: a server that looks there must not be the one
/// that the closes wait for.
#[test]
fn programs_that_close_files_of_the_mount_as_they_begin() {
    with_transports(|transport| {
        let bench = Bench::new();
        let server = bench.mount(&format!("transport={transport}"));
        let files: Vec<File> =
            (0..60).map(|number| File::create(bench.at().join(number.to_string())).unwrap()).collect();
        // In a thread: who begins the program waits until it has begun.
        let programs = std::thread::spawn(|| {
            for _ in 0..60 {
                assert!(Command::new("true").status().unwrap().success());
            }
        });
        eventually("programs begin and end", || programs.is_finished());
        programs.join().unwrap();
        drop(files);
        server.end();
    });
}
