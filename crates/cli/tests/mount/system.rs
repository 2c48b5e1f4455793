//! Mounts as the system makes them: from fstab, by ordinary users, as units; and what the kernel does not pass on.

use crate::{Bench, alone, gannet, hindrance, with_transports};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// mount(8) with a table of its own, in a mount namespace where the helper is installed over the real directory.
#[test]
fn a_line_of_fstab_mounts() {
    if let Some(why) = hindrance() {
        return eprintln!("skipped: {why}");
    }
    const NOT_HERE: i32 = 77;
    let script = r#"
        sbin=$(readlink -f /sbin)
        mkdir up work && mount -t overlay overlay -o lowerdir=$sbin,upperdir=$PWD/up,workdir=$PWD/work $sbin || exit 77
        set -ex
        [ -e /sbin/mount.fuse.gannet ] || "$1" mount --install-helper
        echo "$PWD/volume $PWD/mnt fuse.gannet allow_other,nofail,noatime,x-systemd.automount,cache=coherent 0 0" > fstab
        mount -a -T fstab
        grep "$PWD/mnt fuse.gannet rw,nosuid,nodev,noatime,.*allow_other" /proc/self/mounts
        echo content > mnt/file
        mount -a -T fstab
        [ $(grep -c "$PWD/mnt fuse" /proc/self/mounts) = 1 ]
        mount -o remount,ro -T fstab mnt
        ! echo more > mnt/file
        umount mnt
        mount -T fstab $PWD/mnt
        [ $(cat mnt/file) = content ]
        # The server dies: the line mounts again.
        pid=$("$1" info --json volume | grep -o '"pid": [0-9]*' | head -n 1 | cut -d' ' -f2)
        kill -9 $pid
        # Nobody may wait for it: a zombie is gone, too.
        while grep -q '^State:[[:space:]]*[^ZX[:space:]]' /proc/$pid/status 2> /dev/null; do sleep 0.01; done
        mount -t fuse.gannet $PWD/volume $PWD/mnt -o noexec
        [ $(cat mnt/file) = content ]
        umount mnt
    "#;
    let bench = Bench::new();
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_gannet")]);
    match shell.current_dir(bench.directory.path()).output() {
        Err(error) => return eprintln!("skipped: unshare: {error}"),
        Ok(output) if output.status.code() == Some(NOT_HERE) => {
            return eprintln!("skipped: no overlay over /sbin: {output:?}");
        }
        Ok(output) => assert!(output.status.success(), "{output:?}"),
    }
    bench.check();
}

#[test]
fn an_ordinary_user_mounts_a_volume_of_their_own() {
    const USER: u32 = 65_534;
    if fs::metadata("/dev/shm").is_ok_and(|shm| shm.permissions().mode() & 0o002 == 0) {
        return eprintln!("skipped: /dev/shm is closed to ordinary users here");
    }
    with_transports(|transport| {
        let bench = Bench::new();
        let here = bench.directory.path();
        fs::remove_file(bench.volume()).unwrap();
        for path in [here, &bench.at()] {
            std::os::unix::fs::chown(path, Some(USER), Some(USER)).unwrap();
        }
        // Where the user may run it: the build directory may be closed to others.
        let program = here.join("gannet");
        // By a process of its own: what another test starts meanwhile would have this one's descriptor for a moment, and the program be busy.
        assert!(Command::new("cp").arg(env!("CARGO_BIN_EXE_gannet")).arg(&program).status().unwrap().success());
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let as_user =
            |arguments: &[&OsStr]| Command::new(&program).args(arguments).uid(USER).gid(USER).current_dir("/").output();
        match as_user(&[OsStr::new("mkfs"), bench.volume().as_os_str(), OsStr::new("--size=64M")]) {
            Ok(made) => assert!(made.status.success(), "{made:?}"),
            Err(error) => return eprintln!("skipped: other users run nothing here: {error}"),
        }
        let options = format!("transport={transport}");
        let [volume, at] = [bench.volume(), bench.at()];
        let mount = [OsStr::new("mount"), OsStr::new("-o"), options.as_ref(), volume.as_os_str(), at.as_os_str()];
        let mounted = as_user(&mount).unwrap();
        if !mounted.status.success() {
            let why = String::from_utf8_lossy(&mounted.stderr).into_owned();
            assert_eq!(why.lines().count(), 1, "{why}");
            assert!(why.contains("fusermount3") || why.contains("/dev/fuse"), "{why}");
            return eprintln!("skipped: {why}");
        }
        let as_shell = |line: &str| {
            let output = Command::new("sh").args(["-c", line]).uid(USER).gid(USER).current_dir(here).output().unwrap();
            assert!(output.status.success(), "{line}: {output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        assert_eq!(as_shell("echo mine > mnt/file; stat -c %u mnt/file; cat mnt/file"), format!("{USER}\nmine\n"));
        assert!(as_shell("grep fuse.gannet /proc/self/mounts").contains("nosuid,nodev"));
        assert!(fs::metadata(bench.on("file")).is_err(), "not even root, without allow_other");
        // Another of theirs is refused what only root may say; in one line.
        let refused =
            as_user(&[OsStr::new("mount"), OsStr::new("-o"), "suid".as_ref(), volume.as_os_str(), at.as_os_str()]);
        let refused = refused.unwrap();
        assert!(!refused.status.success());
        assert_eq!(String::from_utf8_lossy(&refused.stderr).lines().count(), 1, "{refused:?}");
        as_shell("fusermount3 -u mnt");
        let checked = as_user(&[OsStr::new("fsck"), bench.volume().as_os_str()]).unwrap();
        assert_eq!(checked.status.code(), Some(0), "{checked:?}");
    });
}

#[test]
fn the_units_are_understood() {
    let directory = tempfile::tempdir().unwrap();
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/systemd");
    let service = fs::read_to_string(units.join("gannet@.service")).unwrap();
    assert!(service.contains("ExecStart=/usr/bin/gannet mount "));
    let service = service.replace("/usr/bin/gannet", env!("CARGO_BIN_EXE_gannet"));
    fs::write(directory.path().join("gannet@volume.service"), service).unwrap();
    fs::copy(units.join("srv-volume.mount"), directory.path().join("srv-volume.mount")).unwrap();
    for unit in ["gannet@volume.service", "srv-volume.mount"] {
        let mut verify = Command::new("systemd-analyze");
        verify.args(["verify", "--man=no"]).arg(directory.path().join(unit));
        match verify.output() {
            Err(_) => return eprintln!("skipped: systemd-analyze is not installed"),
            Ok(output) => assert!(output.status.success(), "{unit}: {output:?}"),
        }
    }
}

/// `sendfile` reads through the page cache also where reads pass it by: fresh at each open.
#[test]
fn sendfile_from_a_file_opened_now_is_fresh() {
    with_transports(|transport| {
        for cache in ["coherent", "automatic"] {
            let bench = Bench::new();
            let server = bench.mount(&format!("transport={transport},cache={cache}"));
            let send = || {
                let (read, write) = rustix::pipe::pipe().unwrap();
                let file = File::open(bench.on("file")).unwrap();
                rustix::fs::sendfile(&write, &file, Some(&mut 0), 4096).unwrap();
                drop(write);
                let mut text = String::new();
                File::from(read).read_to_string(&mut text).unwrap();
                text
            };
            fs::write(bench.on("file"), "0\n").unwrap();
            assert_eq!(send(), "0\n");
            let mut shell = bench.shell();
            for step in 1..50 {
                shell.does(&format!("echo {step} > /gannet/file"));
                assert_eq!(send(), format!("{step}\n"), "{cache}");
            }
            shell.end();
            server.end();
        }
    });
}

/// What FUSE has no request for fails as it does on file systems that lack it, and changes nothing.
#[test]
fn what_cannot_be_passed_on_is_refused_cleanly() {
    const FIFREEZE: u64 = 0xc004_5877;
    const FITHAW: u64 = 0xc004_5878;
    const FITRIM: u64 = 0xc018_5879;
    const FICLONE: u64 = 0x4004_9409;
    const FIDEDUPERANGE: u64 = 0xc018_9436;
    const FIEMAP: u64 = 0xc020_660b;
    const BLKGETSIZE: u64 = 0x1260;
    with_transports(|transport| {
        let bench = Bench::new();
        let server = bench.mount(&format!("transport={transport}"));
        fs::write(bench.on("file"), "content").unwrap();
        fs::write(bench.on("other"), "content").unwrap();
        let (file, other) = (File::open(bench.on("file")).unwrap(), File::create(bench.on("other")).unwrap());
        for command in [FIFREEZE, FITHAW, FITRIM, FICLONE, FIDEDUPERANGE, FIEMAP, BLKGETSIZE, 0x1234_5678] {
            let mut argument = [0u64; 64];
            // SAFETY: the argument is longer than what any of these commands takes or gives.
            let answer = unsafe {
                match command {
                    FICLONE => libc::ioctl(other.as_raw_fd(), command as _, file.as_raw_fd()),
                    _ => libc::ioctl(file.as_raw_fd(), command as _, argument.as_mut_ptr()),
                }
            };
            let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
            assert_eq!(answer, -1, "{command:x}");
            let clean = [libc::EOPNOTSUPP, libc::ENOTTY, libc::EINVAL, libc::ENOSYS];
            assert!(clean.contains(&errno), "{command:x}: {errno}");
        }
        assert_eq!(fs::read_to_string(bench.on("file")).unwrap(), "content");
        drop((file, other));
        server.end();
        bench.check();
    });
}

/// A queue of the ring is served on its core, where its memory is.
#[test]
fn threads_of_the_ring_stay_on_their_cores() {
    with_transports(|transport| {
        let bench = Bench::new();
        let server = bench.mount(&format!("transport={transport}"));
        let mut found = 0;
        for thread in fs::read_dir(format!("/proc/{}/task", server.child.id())).unwrap() {
            let thread = thread.unwrap().path();
            let name = fs::read_to_string(thread.join("comm")).unwrap();
            let Some(core) = name.trim().strip_prefix("fuse-ring-") else { continue };
            let status = fs::read_to_string(thread.join("status")).unwrap();
            let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
            let online = fs::read_to_string(format!("/sys/devices/system/cpu/cpu{core}/online"));
            if online.is_ok_and(|online| online.trim() == "0") {
                continue;
            }
            assert_eq!(allowed, core);
            found += 1;
        }
        assert_eq!(found > 0, transport == "ring");
        server.end();
    });
}

/// A mount that shall turn the ring on does so where it may, and says why where it cannot.
#[test]
fn the_ring_is_turned_on_when_told_to() {
    if let Some(why) = hindrance() {
        return eprintln!("skipped: {why}");
    }
    // The others would take the ring for something that stays.
    let _alone = alone();
    let bench = Bench::new();
    let info = gannet([OsStr::new("info"), bench.volume().as_os_str()]);
    let says_no = String::from_utf8_lossy(&info.stdout).contains("FUSE over io_uring");
    const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
    let before = fs::read_to_string(SWITCH);
    match bench.try_mount("transport=ring,enable_ring") {
        Ok(server) => {
            let now = fs::read_to_string(SWITCH).unwrap();
            fs::write(SWITCH, before.unwrap().trim()).unwrap();
            assert_eq!(now.trim(), "Y");
            server.end();
        }
        Err(complaint) => {
            assert!(says_no, "{complaint}");
            assert_eq!(complaint.lines().count(), 1, "{complaint}");
            assert!(complaint.contains("FUSE over io_uring is not available: "), "{complaint}");
        }
    }
    bench.mount("transport=classic,enable_ring").end();
}

/// What a handle of NFS's kind says of a file holds for the next server, too; of a removed one it never holds again.
#[test]
fn handles_outlive_the_server() {
    #[repr(C)]
    struct Handle {
        head: libc::file_handle,
        bytes: [u8; 128],
    }
    let of = |path: &Path| {
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: the structure is plain numbers, all pointers lead to live variables of the sizes that it says.
        unsafe {
            let mut handle: Handle = std::mem::zeroed();
            handle.head.handle_bytes = 128;
            let got = libc::name_to_handle_at(libc::AT_FDCWD, name.as_ptr(), &mut handle.head, &mut 0, 0);
            assert_eq!(got, 0, "{}", std::io::Error::last_os_error());
            handle
        }
    };
    let open = |at: &Path, handle: &mut Handle| {
        let mount = File::open(at).unwrap();
        // SAFETY: the handle is live; the descriptor is nobody else's.
        unsafe {
            match libc::open_by_handle_at(mount.as_raw_fd(), &mut handle.head, libc::O_RDONLY) {
                -1 => Err(std::io::Error::last_os_error().raw_os_error()),
                descriptor => Ok(<File as std::os::fd::FromRawFd>::from_raw_fd(descriptor)),
            }
        }
    };
    with_transports(|transport| {
        for cache in ["automatic", "exclusive"] {
            let bench = Bench::new();
            let options = format!("transport={transport},cache={cache}");
            let server = bench.mount(&options);
            fs::create_dir_all(bench.on("d/e")).unwrap();
            fs::write(bench.on("d/file"), "by handle").unwrap();
            let (mut directory, mut file) = (of(&bench.on("d/e")), of(&bench.on("d/file")));
            server.end();
            let server = bench.mount(&options);
            assert!(open(&bench.at(), &mut directory).unwrap().metadata().unwrap().is_dir());
            assert_eq!(std::io::read_to_string(open(&bench.at(), &mut file).unwrap()).unwrap(), "by handle");
            fs::remove_dir_all(bench.on("d")).unwrap();
            server.end();
            let server = bench.mount(&options);
            for index in 0..50 {
                fs::write(bench.on(&format!("another{index}")), "").unwrap();
            }
            for handle in [&mut directory, &mut file] {
                assert_eq!(open(&bench.at(), handle).map(drop), Err(Some(libc::ESTALE)));
            }
            server.end();
        }
    });
}
