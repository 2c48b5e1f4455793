//! Immutable and append-only files and directories: what each call says of them.
//!
//! What a descriptor from before the flag still may differs between the kernel's file systems; noted is only what it may not.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, IFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps};

use super::{Notes, Scenario, errno, io};

pub(super) const SCENARIOS: &[Scenario] = &[
    ("unchangeable_files", unchangeable_files),
    ("unchangeable_directories", unchangeable_directories),
    ("flags_of_others", flags_of_others),
];

const FLAGS: [(&str, IFlags); 2] = [("immutable", IFlags::IMMUTABLE), ("append-only", IFlags::APPEND)];

fn flag(path: &Path, flags: IFlags) -> rustix::io::Result<()> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
    // What else the file system has set (extents, for example) stays.
    let others = rustix::fs::ioctl_getflags(&file)? - IFlags::IMMUTABLE - IFlags::APPEND;
    rustix::fs::ioctl_setflags(&file, others | flags)
}

fn set_times(path: &Path, nanoseconds: i64) -> rustix::io::Result<()> {
    let time = Timespec { tv_sec: 1_000_000_000, tv_nsec: nanoseconds as _ };
    rustix::fs::utimensat(CWD, path, &Timestamps { last_access: time, last_modification: time }, AtFlags::empty())
}

fn exchange(a: &Path, b: &Path) -> rustix::io::Result<()> {
    rustix::fs::renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE)
}

/// What can be done to a file.
fn change_file(at: &Path, what: &str, before: &File) -> Result<(), rustix::io::Errno> {
    let (path, other) = (at.join("file"), at.join("other"));
    let write = |open: &mut fs::OpenOptions| io(open.open(&path).and_then(|file| file.write_at(b"more", 0)));
    let allocate = |mode: u32| errno(rustix::fs::fallocate(before, FallocateFlags::from_bits_retain(mode), 0, 100));
    match what {
        "read" => io(fs::read(&path)),
        "write" => write(File::options().write(true)),
        "append" => write(File::options().append(true)),
        "open with O_TRUNC" => io(File::create(&path)),
        "open with O_TRUNC to append" => {
            let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::TRUNC;
            errno(rustix::fs::open(&path, flags, Mode::empty()))
        }
        "cut" => io(before.set_len(1)),
        "grow" => io(before.set_len(100_000)),
        "chmod" => io(fs::set_permissions(&path, fs::Permissions::from_mode(0o600))),
        "chown" => io(std::os::unix::fs::chown(&path, Some(5), Some(5))),
        "touch" => set_times(&path, rustix::fs::UTIME_NOW as _),
        "set times" => set_times(&path, 5),
        "set an attribute" => errno(rustix::fs::setxattr(&path, "user.a", b"1", rustix::fs::XattrFlags::empty())),
        "remove an attribute" => errno(rustix::fs::removexattr(&path, "user.b")),
        "set a list" => {
            let list = [
                2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 4, 0, 4, 0, 255, 255, 255, 255, 32, 0, 4, 0, 255, 255, 255,
                255,
            ];
            errno(rustix::fs::setxattr(&path, "system.posix_acl_access", &list, rustix::fs::XattrFlags::empty()))
        }
        "allocate" => allocate(0),
        "allocate behind" => allocate(1),
        "punch" => allocate(3),
        "zero" => allocate(0x10),
        "copy to" => {
            let source = File::open(&other).unwrap();
            errno(rustix::fs::copy_file_range(&source, Some(&mut 0), before, Some(&mut 0), 3))
        }
        "link" => io(fs::hard_link(&path, at.join("link"))),
        "rename" => io(fs::rename(&path, at.join("renamed"))),
        "replace" => io(fs::rename(&other, &path)),
        "exchange" => exchange(&path, &other),
        _ => io(fs::remove_file(&path)),
    }
}

fn unchangeable_files(at: &Path, notes: &mut Notes) {
    let path = at.join("file");
    for (name, flags) in FLAGS {
        for what in [
            "read",
            "write",
            "append",
            "open with O_TRUNC",
            "open with O_TRUNC to append",
            "cut",
            "grow",
            "chmod",
            "chown",
            "touch",
            "set times",
            "set an attribute",
            "remove an attribute",
            "set a list",
            "allocate",
            "allocate behind",
            "punch",
            "zero",
            "copy to",
            "link",
            "rename",
            "replace",
            "exchange",
            "unlink",
        ] {
            fs::write(&path, "content").unwrap();
            fs::write(at.join("other"), "other").unwrap();
            rustix::fs::setxattr(&path, "user.b", b"1", rustix::fs::XattrFlags::empty()).unwrap();
            let before = File::options().read(true).write(true).open(&path).unwrap();
            if flag(&path, flags).is_err() {
                return;
            }
            notes.note(format!("{what}: {name}"), change_file(at, what, &before));
            drop(before);
            for left in ["file", "other", "link", "renamed"] {
                let left = at.join(left);
                let _ = flag(&left, IFlags::empty());
                let _ = fs::remove_file(left);
            }
        }
    }
    // What was refused when it was written back is told to whoever syncs next: here, and to nobody else.
    let _ = rustix::fs::syncfs(File::open(at).unwrap());
}

/// What can be done to a directory and in it.
fn change_directory(at: &Path, what: &str) -> Result<(), rustix::io::Errno> {
    let (directory, other) = (at.join("dir"), at.join("other"));
    match what {
        "read" => io(fs::read_dir(&directory)),
        "create" => io(File::create(directory.join("new"))),
        "create what is there" => io(File::create_new(directory.join("file"))),
        "mkdir" => io(fs::create_dir(directory.join("new"))),
        "symlink" => io(symlink("x", directory.join("new"))),
        "mkfifo" => errno(rustix::fs::mknodat(CWD, directory.join("new"), FileType::Fifo, Mode::RUSR, 0)),
        "link into" => io(fs::hard_link(&other, directory.join("new"))),
        "unnamed" => errno(rustix::fs::open(&directory, OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR)),
        "rename into" => io(fs::rename(&other, directory.join("new"))),
        "rename out" => io(fs::rename(directory.join("file"), at.join("out"))),
        "rename within" => io(fs::rename(directory.join("file"), directory.join("new"))),
        "replace within" => io(fs::rename(&other, directory.join("file"))),
        "exchange" => exchange(&other, &directory.join("file")),
        "unlink within" => io(fs::remove_file(directory.join("file"))),
        "unlink what is missing" => io(fs::remove_file(directory.join("missing"))),
        "rmdir within" => io(fs::remove_dir(directory.join("below"))),
        "write within" => io(fs::write(directory.join("file"), "changed")),
        "chmod" => io(fs::set_permissions(&directory, fs::Permissions::from_mode(0o700))),
        "touch" => set_times(&directory, rustix::fs::UTIME_NOW as _),
        "set times" => set_times(&directory, 5),
        "set an attribute" => errno(rustix::fs::setxattr(&directory, "user.a", b"1", rustix::fs::XattrFlags::empty())),
        "rename" => io(fs::rename(&directory, at.join("renamed"))),
        _ => io(fs::remove_dir(&directory)),
    }
}

fn unchangeable_directories(at: &Path, notes: &mut Notes) {
    let directory = at.join("dir");
    for (name, flags) in FLAGS {
        for what in [
            "read",
            "create",
            "create what is there",
            "mkdir",
            "symlink",
            "mkfifo",
            "link into",
            "unnamed",
            "rename into",
            "rename out",
            "rename within",
            "replace within",
            "exchange",
            "unlink within",
            "unlink what is missing",
            "rmdir within",
            "write within",
            "chmod",
            "touch",
            "set times",
            "set an attribute",
            "rename",
            "rmdir",
        ] {
            fs::create_dir_all(directory.join("below")).unwrap();
            fs::write(directory.join("file"), "content").unwrap();
            fs::write(at.join("other"), "other").unwrap();
            if flag(&directory, flags).is_err() {
                return;
            }
            notes.note(format!("{what}: {name}"), change_directory(at, what));
            for left in ["dir", "renamed"] {
                let _ = flag(&at.join(left), IFlags::empty());
                let _ = fs::remove_dir_all(at.join(left));
            }
            for left in ["other", "out"] {
                let _ = fs::remove_file(at.join(left));
            }
        }
    }
}

/// Who does not own a file changes no flag of it, whatever number the call has; nor does anybody by that of 32-bit programs.
fn flags_of_others(at: &Path, notes: &mut Notes) {
    // FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR, and FS_IOC32_SETFLAGS.
    const CALLS: [u32; 3] = [0x4008_6602, 0x401c_5820, 0x4004_6602];
    let path = at.join("file");
    fs::write(&path, "root's").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let set = |call: u32| {
        let file = File::open(&path).unwrap();
        // Append-only.
        let mut argument = [if call == 0x401c_5820 { 0x10u64 } else { 0x20 }, 0, 0, 0];
        // SAFETY: the argument is longer than what any of these commands takes.
        match unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&file), call as _, argument.as_mut_ptr()) } {
            0 => Ok(()),
            _ => io(Err::<(), _>(std::io::Error::last_os_error())),
        }
    };
    for call in CALLS {
        notes.note(format!("{call:x}"), super::as_user(65_534, 65_534, || set(call)));
        notes.note(format!("appends only after {call:x}"), has_append(&path));
    }
    notes.note("the owner by the number of 32-bit programs", set(CALLS[2]));
    notes.note("appends only after that", has_append(&path));
    let _ = flag(&path, IFlags::empty());
}

fn has_append(path: &Path) -> bool {
    rustix::fs::ioctl_getflags(File::open(path).unwrap()).is_ok_and(|flags| flags.contains(IFlags::APPEND))
}
