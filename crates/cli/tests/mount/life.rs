//! The life of mounts of volumes: kills, volumes that are cut, times of access, whom set-user-id programs count for.

use crate::oracle::tick;
use crate::{Bench, eventually, gannet, hindrance, with_transports};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) fn words(path: &Path) -> String {
    let table = fs::read_to_string("/proc/thread-self/mounts").unwrap();
    let line = table.lines().find(|line| line.split(' ').nth(1) == path.to_str());
    line.and_then(|line| line.split(' ').nth(3)).unwrap_or_default().to_owned()
}

pub(crate) fn unmount(path: &Path) {
    eventually("unmounted", || rustix::mount::unmount(path, rustix::mount::UnmountFlags::empty()).is_ok());
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
