//! Beginning and end of mounts: users, errors, death of the server.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use gannet_fuse::{MountError, MountOptions};
use gannet_memfs::{Limits, MemoryFs};
use gannet_vfs::Owner;
use rustix::io::Errno;

use crate::{Outcome, Server, Skipped, Test, content, eventually};

pub(crate) const TESTS: &[Test] = &[
    Test { name: "a_killed_server_means_errors_at_once", body: a_killed_server_means_errors_at_once, every_way: true },
    Test { name: "a_dead_mount_is_replaced", body: a_dead_mount_is_replaced, every_way: true },
    Test { name: "busy_mounts_stay", body: busy_mounts_stay, every_way: true },
    Test { name: "read_only_mounts_refuse_changes", body: read_only_mounts_refuse_changes, every_way: true },
    Test { name: "set_user_id_does_not_count", body: set_user_id_does_not_count, every_way: false },
    Test { name: "an_ordinary_user_can_mount", body: an_ordinary_user_can_mount, every_way: true },
    Test { name: "who_has_no_room_for_threads_mounts_nothing", body: who_has_no_room_mounts_nothing, every_way: true },
    Test { name: "files_can_seem_to_be_anyones", body: files_can_seem_to_be_anyones, every_way: true },
    Test { name: "errors_say_what_is_wrong", body: errors_say_what_is_wrong, every_way: false },
    Test { name: "a_process_can_unmount_its_own", body: a_process_can_unmount_its_own, every_way: true },
    Test {
        name: "who_waits_for_room_ends_with_the_mount",
        body: who_waits_for_room_ends_with_the_mount,
        every_way: false,
    },
    Test { name: "mounts_of_others_are_left_alone", body: mounts_of_others_are_left_alone, every_way: false },
    Test { name: "a_mount_is_found_where_it_is", body: a_mount_is_found_where_it_is, every_way: false },
];

fn a_killed_server_means_errors_at_once(way: &str) -> Outcome {
    let server = Server::start(way);
    fs::write(server.at("file"), "x").unwrap();
    let mut open = File::create(server.at("open")).unwrap();
    let path = server.path();
    let directory = server.kill();
    // Whoever comes while its ring is being taken down is told that the request was cancelled.
    eventually("nobody is there", || {
        let errno = Errno::from_io_error(&fs::metadata(&path).unwrap_err());
        assert!(
            matches!(errno, Some(Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED | Errno::INTR)),
            "{errno:?}"
        );
        matches!(errno, Some(Errno::NOTCONN | Errno::CONNABORTED))
    });
    assert!(open.write_all(b"y").and_then(|()| open.sync_all()).is_err());
    drop(open);
    crate::unmount(&path, true).unwrap();
    drop(directory);
    Ok(())
}

fn a_dead_mount_is_replaced(way: &str) -> Outcome {
    let directory = Server::start(way).kill();
    let server = Server::start_in(directory, way, None).unwrap_or_else(|complaint| panic!("{complaint}"));
    assert!(server.greeting.contains("is dead; it was unmounted"), "{}", server.greeting);
    fs::write(server.at("file"), "alive").unwrap();
    assert_eq!(content(&server.at("file")), b"alive");
    server.end();
    Ok(())
}

fn busy_mounts_stay(way: &str) -> Outcome {
    let server = Server::start(way);
    let file = File::create(server.at("file")).unwrap();
    assert!(crate::unmount(&server.path(), false).is_err());
    drop(file);
    server.end();
    Ok(())
}

fn read_only_mounts_refuse_changes(way: &str) -> Outcome {
    let server = Server::start(&format!("{way},ro"));
    let error = fs::write(server.at("file"), "x").unwrap_err();
    assert_eq!(Errno::from_io_error(&error), Some(Errno::ROFS));
    let error = fs::create_dir(server.at("d")).unwrap_err();
    assert_eq!(Errno::from_io_error(&error), Some(Errno::ROFS));
    server.end();
    Ok(())
}

/// The options that the kernel shows for a mount.
fn shown_options(path: &Path) -> String {
    let mounts = fs::read_to_string("/proc/thread-self/mounts").unwrap();
    let line = mounts.lines().find(|line| line.split(' ').nth(1) == path.to_str()).expect("it is mounted");
    let fields: Vec<&str> = line.split(' ').collect();
    format!("{} {} {}", fields[0], fields[2], fields[3])
}

fn set_user_id_does_not_count(way: &str) -> Outcome {
    let server = Server::start(&format!("{way},noatime,fsname=a volume"));
    let shown = shown_options(&server.path());
    for word in ["a\\040volume", "fuse.gannet", "nosuid", "nodev", "noatime", "default_permissions"] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    server.end();
    for (word, kind) in [("subtype=", "fuse"), ("subtype=a.b", "fuse.a.b")] {
        let server = Server::start(&format!("{way},fsname=v,{word}"));
        let shown = shown_options(&server.path());
        assert!(shown.starts_with(&format!("v {kind} ")), "{word}: {shown}");
        server.end();
    }
    Ok(())
}

fn an_ordinary_user_can_mount(way: &str) -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return Err(Skipped("the other tests run as an ordinary user already".into()));
    }
    let device = fs::metadata("/dev/fuse").unwrap();
    if std::os::unix::fs::MetadataExt::mode(&device) & 0o6 != 0o6 {
        return Err(Skipped("/dev/fuse is for root only here (chmod 666 /dev/fuse is usual)".into()));
    }
    let server = match Server::start_as(way, Some(65_534)) {
        Ok(server) => server,
        Err(complaint) if complaint.contains("not installed") => return Err(Skipped(complaint)),
        Err(complaint) => panic!("{complaint}"),
    };
    let shown = shown_options(&server.path());
    assert!(shown.contains("user_id=65534") && shown.contains("nosuid") && shown.contains("nodev"), "{shown}");
    let script = "echo mine > file && cat file && mkdir d && mv file d && rm -r d";
    use std::os::unix::process::CommandExt;
    let mut shell = std::process::Command::new("sh");
    let output =
        shell.args(["-c", script]).current_dir("/").uid(65_534).gid(65_534).current_dir(server.path()).output();
    // The directory is entered before the user changes, and root is not allowed in; then do it in the shell.
    let output = match output {
        Ok(output) => output,
        Err(_) => {
            let script = format!("cd {} && {script}", server.path().display());
            std::process::Command::new("sh").args(["-c", &script]).uid(65_534).gid(65_534).output().unwrap()
        }
    };
    assert_eq!(String::from_utf8_lossy(&output.stdout), "mine\n", "{output:?}");
    server.end();
    Ok(())
}

/// A user of the system who runs nothing, for limits count what the user runs anywhere.
fn idle_user() -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    let table = fs::read_to_string("/etc/passwd").ok()?;
    let users = table.lines().filter_map(|line| line.split(':').nth(2)?.parse::<u32>().ok());
    let processes = fs::read_dir("/proc").ok()?.filter_map(Result::ok);
    let busy: Vec<u32> = processes.filter_map(|entry| Some(entry.metadata().ok()?.uid())).collect();
    users.filter(|user| (1..1000).contains(user)).find(|user| !busy.contains(user))
}

fn who_has_no_room_mounts_nothing(way: &str) -> Outcome {
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::process::CommandExt;
    crate::special::root()?;
    if fs::metadata("/dev/fuse").unwrap().mode() & 0o6 != 0o6 {
        return Err(Skipped("/dev/fuse is for root only here (chmod 666 /dev/fuse is usual)".into()));
    }
    let user = idle_user().ok_or(Skipped("every user runs something".into()))?;
    let (mut refused, mut limit) = (0, 1);
    loop {
        let directory = tempfile::Builder::new().prefix("gannet-mount-").tempdir().unwrap();
        let target = directory.path().join("mnt");
        fs::create_dir(&target).unwrap();
        std::os::unix::fs::chown(&target, Some(user), None).unwrap();
        fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let mut command = std::process::Command::new(crate::program());
        command.arg("--serve").arg(&target).arg(format!("{way},threads=6")).uid(user).gid(user);
        let few = libc::rlimit { rlim_cur: limit, rlim_max: limit };
        // SAFETY: the call changes a limit of the child, and reads a structure that it has a copy of.
        unsafe { command.pre_exec(move || Ok(_ = libc::setrlimit(libc::RLIMIT_NPROC, &few))) };
        let mut server =
            command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null()).spawn().unwrap();
        let mut greeting = String::new();
        let mut said = std::io::BufReader::new(server.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut said, &mut greeting).unwrap();
        let mounts = fs::read_to_string("/proc/thread-self/mounts").unwrap();
        let is_mounted = mounts.lines().any(|line| line.split(' ').nth(1) == target.to_str());
        let serves = greeting.starts_with("ready");
        if is_mounted {
            crate::unmount(&target, true).unwrap();
        }
        server.wait().unwrap();
        if greeting.contains("not installed") {
            return Err(Skipped(greeting));
        }
        assert_eq!(is_mounted, serves, "with {limit} processes: {greeting}");
        if serves {
            break;
        }
        (refused, limit) = (refused + 1, limit + 1);
        assert!(limit < 100, "{greeting}");
    }
    assert!(refused > 3, "{refused}");
    Ok(())
}

fn files_can_seem_to_be_anyones(way: &str) -> Outcome {
    use std::os::unix::fs::MetadataExt;
    let server = Server::start(&format!("{way},uid=123,gid=456"));
    fs::write(server.at("file"), "x").unwrap();
    let metadata = fs::metadata(server.at("file")).unwrap();
    assert_eq!((metadata.uid(), metadata.gid()), (123, 456));
    server.end();
    Ok(())
}

pub(crate) fn memory() -> std::sync::Arc<MemoryFs> {
    std::sync::Arc::new(MemoryFs::new(Limits::default(), 0o755, Owner::default()).unwrap())
}

fn errors_say_what_is_wrong(_: &str) -> Outcome {
    let directory = tempfile::tempdir().unwrap();
    let mount = |path: &Path, options: &MountOptions| match gannet_fuse::serve(memory(), path, options) {
        Ok(_) => panic!("it mounted"),
        Err(error) => error,
    };
    let missing = directory.path().join("missing");
    let error = mount(&missing, &MountOptions::default());
    assert!(matches!(error, MountError::NoTarget(_)));
    assert_eq!(error.to_string(), format!("{}: there is no such directory to mount on", missing.display()));
    fs::write(&missing, "").unwrap();
    assert!(matches!(mount(&missing, &MountOptions::default()), MountError::NotADirectory(_)));
    Ok(())
}

fn a_process_can_unmount_its_own(way: &str) -> Outcome {
    let directory = tempfile::tempdir().unwrap();
    let mut options = MountOptions::default();
    options.parse(way).unwrap();
    let file_system = memory();
    let mounted = gannet_fuse::serve(file_system.clone(), directory.path(), &options).unwrap();
    fs::write(mounted.target().join("file"), "x").unwrap();
    fs::remove_file(mounted.target().join("file")).unwrap();
    let busy = File::open(mounted.target()).unwrap();
    assert!(matches!(mounted.unmount(), Err(MountError::Unmount(_, Errno::BUSY))));
    drop(busy);
    mounted.unmount().unwrap();
    assert_eq!(mounted.nodes_held(), 0);
    assert_eq!(gannet_vfs::FileSystem::shared(&*file_system).descriptions().unwrap(), 0, "nothing stays open");
    assert_eq!(gannet_vfs::FileSystem::shared(&*file_system).records().unwrap(), 0, "nothing stays locked");
    assert!(!directory.path().join("file").exists());
    // Dropping a mount unmounts it, also while it is in use.
    let mounted = gannet_fuse::serve(memory(), directory.path(), &options).unwrap();
    let busy = File::create(mounted.target().join("file")).unwrap();
    drop(mounted);
    assert!(!directory.path().join("file").exists());
    drop(busy);
    Ok(())
}

/// How many requests of mounts of this process wait.
fn threads_that_wait() -> usize {
    let waits =
        |task: &fs::DirEntry| fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name == "fuse-wait\n");
    fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok).filter(waits).count()
}

fn who_waits_for_room_ends_with_the_mount(_: &str) -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return Err(Skipped("only root may end a mount that is in use".into()));
    }
    for transport in ["classic", "ring"] {
        let directory = tempfile::tempdir().unwrap();
        let mut options = MountOptions::default();
        options.parse(&format!("transport={transport},cache=coherent")).unwrap();
        let limits = Limits { data_bytes: 8 << 20, ..Limits::default() };
        let file_system = std::sync::Arc::new(MemoryFs::new(limits, 0o755, Owner::default()).unwrap());
        let Ok(mounted) = gannet_fuse::serve(file_system.clone(), directory.path(), &options) else { continue };
        let path = |name: &str, index: u32| directory.path().join(format!("{name}-{index}"));
        let keep = |index| {
            fs::write(path("kept", index), vec![1; 1 << 20]).unwrap();
            let file = File::open(path("kept", index)).unwrap();
            fs::remove_file(path("kept", index)).unwrap();
            file
        };
        let kept: Vec<File> = (0..3).map(keep).collect();
        let fill = |index| {
            let mut file = File::create(path("fill", index)).unwrap();
            while file.write_all(&[2; 1 << 18]).is_ok() {}
        };
        std::thread::scope(|scope| {
            let fill = &fill;
            (0..4).for_each(|index| _ = scope.spawn(move || fill(index)));
            eventually("somebody waits", || threads_that_wait() > 0);
            // As `umount -f`: programs use it, so it stays where it is, without a server.
            let _ = rustix::mount::unmount(directory.path(), rustix::mount::UnmountFlags::FORCE);
            assert!(mounted.wait(), "{transport}: nobody works on the file system");
            assert_eq!(threads_that_wait(), 0, "{transport}");
        });
        assert_eq!(gannet_vfs::FileSystem::shared(&*file_system).descriptions().unwrap(), 0, "nothing stays open");
        drop(kept);
        crate::unmount(directory.path(), true).unwrap();
    }
    Ok(())
}

fn mounts_of_others_are_left_alone(_: &str) -> Outcome {
    let directory = tempfile::tempdir().unwrap();
    let serve = || gannet_fuse::serve(memory(), directory.path(), &MountOptions::default()).unwrap();
    let below = serve();
    let above = serve();
    fs::write(directory.path().join("file"), "kept").unwrap();
    assert!(matches!(below.unmount(), Err(MountError::Hidden(_))));
    assert!(matches!(below.unmount_lazily(), Err(MountError::Hidden(_))));
    assert_eq!(content(&directory.path().join("file")), b"kept");
    above.unmount().unwrap();
    assert!(!directory.path().join("file").exists());
    fs::write(directory.path().join("below"), "there").unwrap();
    below.unmount().unwrap();
    assert!(!directory.path().join("below").exists());
    // Nor is anything done where it is mounted no more.
    let other = serve();
    below.unmount().unwrap();
    below.unmount_lazily().unwrap();
    fs::write(directory.path().join("other"), "there").unwrap();
    other.unmount().unwrap();
    Ok(())
}

fn a_mount_is_found_where_it_is(_: &str) -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return Err(Skipped("only root moves mounts".into()));
    }
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let serve = || gannet_fuse::serve(memory(), &at("above/mnt"), &MountOptions::default()).unwrap();
    fs::create_dir_all(at("above/mnt")).unwrap();
    let mounted = serve();
    fs::write(at("above/mnt/file"), "x").unwrap();
    fs::rename(at("above"), at("a\\ \nb")).unwrap();
    assert!(at("a\\ \nb/mnt/file").exists());
    // Where it was, a link leads to another's mount.
    fs::create_dir_all(at("elsewhere/mnt")).unwrap();
    let another = gannet_fuse::serve(memory(), &at("elsewhere/mnt"), &MountOptions::default()).unwrap();
    fs::write(at("elsewhere/mnt/file"), "x").unwrap();
    std::os::unix::fs::symlink(at("elsewhere"), at("above")).unwrap();
    mounted.unmount().unwrap();
    assert!(!at("a\\ \nb/mnt/file").exists() && at("elsewhere/mnt/file").exists());
    another.unmount().unwrap();
    fs::remove_file(at("above")).unwrap();
    fs::rename(at("a\\ \nb"), at("above")).unwrap();
    let mounted = serve();
    fs::write(at("above/mnt/file"), "x").unwrap();
    rustix::mount::mount_move(at("above/mnt"), at("elsewhere")).unwrap();
    assert!(at("elsewhere/file").exists());
    mounted.unmount().unwrap();
    assert!(!at("elsewhere/file").exists());
    Ok(())
}
