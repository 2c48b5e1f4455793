//! Mounts of the mount on which owners are mapped, as containers use them.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::{Outcome, Server, Skipped, Test, eventually, unmount};

pub(crate) const TESTS: &[Test] = &[Test { name: "owners_can_be_mapped", body: owners_can_be_mapped, every_way: true }];

/// User and group 0 of the file system are this one on the mapped mount, and so on for as many more.
const FIRST: u32 = 100_000;
const COUNT: u32 = 1000;

/// `struct mount_attr`.
#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// A user namespace that maps owners so.
fn user_namespace() -> Result<OwnedFd, Skipped> {
    let mut holder = Command::new("cat");
    holder.stdin(Stdio::piped()).stdout(Stdio::piped());
    // SAFETY: unshare(2) only, between fork and exec.
    unsafe {
        holder.pre_exec(|| match libc::unshare(libc::CLONE_NEWUSER) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let mut child = holder.spawn().map_err(|error| Skipped(format!("no user namespaces: {error}")))?;
    for map in ["uid_map", "gid_map"] {
        fs::write(format!("/proc/{}/{map}", child.id()), format!("0 {FIRST} {COUNT}\n"))
            .map_err(|error| Skipped(format!("{map}: {error}")))?;
    }
    let namespace = File::open(format!("/proc/{}/ns/user", child.id())).expect("its namespace");
    drop(child.stdin.take());
    let _ = child.wait();
    Ok(namespace.into())
}

/// Mounts `from` once more on `to`, with owners mapped.
fn mount_mapped(from: &Path, to: &Path, namespace: &OwnedFd) -> Result<(), std::io::Error> {
    let path = |path: &Path| CString::new(path.as_os_str().as_bytes()).unwrap();
    let (from, to) = (path(from), path(to));
    let checked = |result: libc::c_long| if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(result) };
    let attributes = MountAttributes {
        set: 0x0010_0000, // MOUNT_ATTR_IDMAP
        clear: 0,
        propagation: 0,
        user_namespace: namespace.as_raw_fd() as u64,
    };
    const EMPTY_PATH: libc::c_int = libc::AT_EMPTY_PATH;
    // SAFETY: system calls on strings and a structure that live until they return; the descriptor is new and ours.
    unsafe {
        let tree = checked(libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, from.as_ptr(), 1 | libc::O_CLOEXEC))?;
        let tree = OwnedFd::from_raw_fd(tree as i32);
        let size_bytes = size_of::<MountAttributes>();
        let (at, none) = (tree.as_raw_fd(), c"".as_ptr());
        checked(libc::syscall(libc::SYS_mount_setattr, at, none, EMPTY_PATH, &raw const attributes, size_bytes))?;
        checked(libc::syscall(libc::SYS_move_mount, at, none, libc::AT_FDCWD, to.as_ptr(), 4))?;
    }
    Ok(())
}

/// Runs a shell command as a user with a group of the same number.
fn shell_as(user: u32, command: &str, directory: &Path) -> bool {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).current_dir(directory).uid(user).gid(user).stderr(Stdio::null());
    shell.status().expect("sh").success()
}

fn owners_can_be_mapped(way: &str) -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return Err(Skipped("only root can do this".into()));
    }
    let namespace = user_namespace()?;
    let server = Server::start(&format!("{way},allow_other"));
    let mapped = tempfile::tempdir().unwrap();
    fs::set_permissions(mapped.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(server.path(), fs::Permissions::from_mode(0o777)).unwrap();
    if let Err(error) = mount_mapped(&server.path(), mapped.path(), &namespace) {
        server.end();
        return Err(Skipped(format!("this kernel does not map owners of FUSE mounts: {error}")));
    }
    let owner = |path: &Path| {
        let metadata = fs::symlink_metadata(path).unwrap();
        (metadata.uid(), metadata.gid())
    };
    let (here, there) = (|name: &str| server.at(name), |name: &str| mapped.path().join(name));
    fs::write(here("roots"), "a").unwrap();
    assert_eq!((owner(&here("roots")), owner(&there("roots"))), ((0, 0), (FIRST, FIRST)));

    // Whatever is made belongs to its maker, mapped back.
    let user = FIRST + 5;
    let makes =
        "echo b > file && mkdir directory && ln -s file link && mkfifo fifo && ln file second && mv second third";
    assert!(shell_as(user, makes, mapped.path()));
    for name in ["file", "directory", "link", "fifo", "third"] {
        assert_eq!((owner(&here(name)), owner(&there(name))), ((5, 5), (user, user)), "{name}");
    }
    assert!(!shell_as(5, "echo > unmapped", mapped.path()), "who has no number in the file system makes nothing");
    assert!(!shell_as(user + 1, "echo >> file", mapped.path()) && !shell_as(5, "echo >> file", mapped.path()));
    assert!(shell_as(5, "echo >> file", &server.path()), "not mapped here");
    std::os::unix::fs::chown(there("file"), Some(FIRST + 7), Some(FIRST + 8)).unwrap();
    assert_eq!(owner(&here("file")), (7, 8));

    // Set-id bits: root's changes keep them, others' do not, though requests say no more who calls.
    let mode = |name: &str| fs::metadata(here(name)).unwrap().mode() & 0o7777;
    fs::set_permissions(there("file"), fs::Permissions::from_mode(0o6777)).unwrap();
    let file = fs::OpenOptions::new().write(true).open(there("file")).unwrap();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 8192).unwrap();
    drop(file);
    assert_eq!(mode("file"), 0o6777);
    assert!(shell_as(user, "fallocate -l 16384 file", mapped.path()));
    assert_eq!(mode("file"), 0o777);
    // Set-group-id without execution stays for the group's members: of the group that the file system knows.
    fs::set_permissions(there("file"), fs::Permissions::from_mode(0o2666)).unwrap();
    assert!(shell_as(user, "echo >> file", mapped.path()));
    assert_eq!(mode("file"), 0o666);

    let set = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(there("file"), "trusted.secret", b"1", set).unwrap();
    let names = |file: std::path::PathBuf| {
        let mut names = vec![0u8; 100];
        let count = rustix::fs::listxattr(file, &mut names).unwrap();
        names.truncate(count);
        names
    };
    assert_eq!(names(there("file")), b"trusted.secret\0");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: changes the users of this thread alone, which ends with the test of them.
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) }, 0);
            assert_eq!(names(there("file")), b"", "for root's eyes only");
        });
    });

    eventually("the mapped mount is gone", || unmount(mapped.path(), false).is_ok());
    server.end();
    Ok(())
}
