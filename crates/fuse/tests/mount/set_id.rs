//! Set-id bits that an ordinary user's changes drop: the kernel executes the file without them from then on, whatever it may remember.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FallocateFlags, StatxFlags, fallocate, statx};

use crate::oracle::as_user;
use crate::special::root;
use crate::{Outcome, Server, Skipped, Test};

pub(crate) const TESTS: &[Test] = &[
    Test { name: "programs_lose_their_bits_at_once", body: programs_lose_their_bits_at_once, every_way: true },
    Test { name: "bits_stay_for_who_changes_nothing", body: bits_stay_for_who_changes_nothing, every_way: true },
    Test { name: "root_elsewhere_is_not_privileged", body: root_elsewhere_is_not_privileged, every_way: true },
];

const USER: u32 = 12_345;
const PROGRAM: &str = "/usr/bin/id";
const BITS: u32 = 0o6777;

/// A page at a boundary of pages.
#[repr(align(4096))]
struct Page([u8; 4096]);

/// Makes the program anew, with the bits, and has the kernel know it.
fn install(path: &Path) {
    let _ = fs::remove_file(path);
    fs::copy(PROGRAM, path).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(BITS)).unwrap();
    assert_eq!(fs::metadata(path).unwrap().mode() & 0o7777, BITS);
    as_user(USER, USER, || assert_eq!(user_of(path), "0"));
}

/// As whom the program runs.
fn user_of(path: &Path) -> String {
    let output = Command::new(path).arg("-u").output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// The mode, of what there is about a file: the kernel may know that and not the rest. Without asking if it may.
fn mode(path: &Path, may_ask: bool) -> u32 {
    let how = if may_ask { AtFlags::empty() } else { AtFlags::STATX_DONT_SYNC };
    u32::from(statx(CWD, path, how, StatxFlags::MODE).unwrap().stx_mode) & 0o7777
}

/// Changes that leave the program one.
fn change(what: &str, path: &Path, page: &Page) {
    let other = File::open(PROGRAM).unwrap();
    let open = |flags| OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).unwrap();
    let file = open(0);
    let end = file.metadata().unwrap().len();
    match what {
        "write" => file.write_all_at(&page.0, 0).unwrap(),
        "append" => open(libc::O_APPEND).write_all_at(b"x", 0).unwrap(),
        "allocate" => fallocate(&file, FallocateFlags::empty(), 0, end + 5000).unwrap(),
        "allocate behind" => fallocate(&file, FallocateFlags::KEEP_SIZE, end, 5000).unwrap(),
        "punch" => fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, end, 5000).unwrap(),
        "zero" => fallocate(&file, FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, end, 5000).unwrap(),
        "copy" => {
            let from = File::open(path.with_file_name("copy")).unwrap();
            assert!(rustix::fs::copy_file_range(&from, None, &file, None, 8192).unwrap() > 0);
        }
        "sendfile" => assert!(rustix::fs::sendfile(&file, &other, None, 4096).unwrap() > 0),
        "splice" => {
            let (read, write) = rustix::pipe::pipe().unwrap();
            rustix::io::write(&write, &page.0[..100]).unwrap();
            let flags = rustix::pipe::SpliceFlags::empty();
            assert_eq!(rustix::pipe::splice(read.as_fd(), None, file.as_fd(), None, 100, flags).unwrap(), 100);
        }
        "cut" => file.set_len(end - 1).unwrap(),
        "grow" => file.set_len(end + 1).unwrap(),
        "cut by path" => {
            let path = CString::new(path.as_os_str().as_bytes()).unwrap();
            // SAFETY: the path ends with a zero, and the call takes no other memory.
            assert_eq!(unsafe { libc::truncate(path.as_ptr(), end as i64) }, 0);
        }
        _ => unreachable!(),
    }
}

fn programs_lose_their_bits_at_once(way: &str) -> Outcome {
    root()?;
    let server = Server::start(&format!("{way},allow_other,suid"));
    fs::set_permissions(server.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let path = server.at("program");
    let mut page = Page([0; 4096]);
    File::open(PROGRAM).unwrap().read_exact_at(&mut page.0, 0).unwrap();
    fs::copy(PROGRAM, server.at("copy")).unwrap();
    for what in [
        "write",
        "append",
        "allocate",
        "allocate behind",
        "punch",
        "zero",
        "copy",
        "sendfile",
        "splice",
        "cut",
        "grow",
        "cut by path",
    ] {
        install(&path);
        as_user(USER, USER, || {
            let before = File::open(&path).unwrap();
            change(what, &path, &page);
            assert_eq!(mode(&path, false), 0o777, "{what}: known before the change is answered");
            assert_eq!(user_of(format!("/proc/self/fd/{}", before.as_raw_fd()).as_ref()), USER.to_string(), "{what}");
            assert_eq!(mode(&path, true), 0o777, "{what}");
            assert_eq!(user_of(&path), USER.to_string(), "{what}");
        });
    }
    for opened_before in [false, true] {
        install(&path);
        // On an automatic mount past the page cache, if nobody has it open any more.
        std::thread::sleep(Duration::from_millis(50));
        let open = || OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
        let before = opened_before.then(|| {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
            let file = open();
            fs::set_permissions(&path, fs::Permissions::from_mode(BITS)).unwrap();
            file
        });
        as_user(USER, USER, || {
            let file = before.unwrap_or_else(open);
            assert_eq!(file.metadata().unwrap().mode() & 0o7777, BITS);
            file.write_all_at(&page.0, 0).unwrap();
            drop(file);
            if !opened_before {
                assert_eq!(mode(&path, false), 0o777, "written directly: known before it is answered");
            }
            assert_eq!(mode(&path, true), 0o777, "written directly");
            assert_eq!(user_of(&path), USER.to_string(), "written directly");
        });
    }
    server.end();
    Ok(())
}

/// With a `chown` of neither user nor group the kernel asks for what it asks for before a change, and has not checked who calls it.
fn bits_stay_for_who_changes_nothing(way: &str) -> Outcome {
    root()?;
    let server = Server::start(&format!("{way},allow_other"));
    fs::set_permissions(server.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = server.at("program");
    fs::write(&path, "x").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
    as_user(USER, USER, || {
        let _ = rustix::fs::chown(&path, None, None);
        let _ = rustix::fs::fchown(File::open(&path).unwrap(), None, None);
        assert!(OpenOptions::new().write(true).open(&path).is_err());
    });
    assert_eq!(mode(&path, true), 0o4755);
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o4755);
    server.end();
    Ok(())
}

/// Root of a user namespace of its own, where it has all capabilities, has none here, as elsewhere in the kernel.
fn root_elsewhere_is_not_privileged(way: &str) -> Outcome {
    root()?;
    let server = Server::start(way);
    let path = server.at("program");
    fs::write(&path, "x").unwrap();
    rustix::fs::setxattr(&path, "trusted.secret", b"1", rustix::fs::XattrFlags::CREATE).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the child makes system calls only, with a path that it has a copy of and a buffer of its own, and ends without a destructor.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above.
        unsafe {
            if libc::unshare(libc::CLONE_NEWUSER) != 0 {
                libc::_exit(77);
            }
            let mut names = [0 as libc::c_char; 100];
            if libc::listxattr(name.as_ptr(), names.as_mut_ptr(), names.len()) != 0 {
                libc::_exit(1);
            }
            let file = libc::open(name.as_ptr(), libc::O_WRONLY);
            libc::_exit(if libc::fallocate(file, 0, 0, 100) == 0 { 0 } else { 2 });
        }
    }
    assert!(child > 0, "fork: {}", std::io::Error::last_os_error());
    let mut status = 0;
    // SAFETY: the call stores one number.
    unsafe { libc::waitpid(child, &mut status, 0) };
    let outcome = if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -1 };
    if outcome == 77 {
        return Err(Skipped("no user namespaces here".into()));
    }
    assert_eq!(outcome, 0, "1: it saw what is the administrator's");
    assert_eq!(mode(&path, true), 0o777, "it loses the bits");
    server.end();
    Ok(())
}
