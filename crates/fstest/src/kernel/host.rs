//! The kernel's side: a directory on tmpfs.

use super::rows::Act::{
    ChangeMode, ChangeOwner, Create, Directory, Fifo, Link, List, Now, Past, Read, ReadLink, RemoveDirectory,
    RemoveXattr, Rename, SetXattr, Symlink, Truncate, Unlink, Write,
};
use super::rows::{Act, XATTR};
use super::{Look, Side};
use crate::rig::tick;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use gannet_vfs::{Errno, FileType, Owner, Result, Time};
use rustix::fs::{self as host, AtFlags, Mode, OFlags, RawDir, StatxFlags, Timespec, Timestamps};

pub(super) struct Kernel {
    pub(super) root: PathBuf,
    pub(super) kept: BTreeMap<u64, OwnedFd>,
}

impl Kernel {
    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn open(&self, path: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        host::open(self.at(path), flags | OFlags::CLOEXEC, Mode::empty())
    }
}

pub(super) fn time(seconds: i64, nanoseconds: u32) -> Time {
    Time::from_parts(seconds, nanoseconds)
}

impl Side for Kernel {
    fn act(&mut self, act: Act) -> Result<()> {
        let error = |errno: rustix::io::Errno| gannet_vfs::Error::new(Errno::from_raw_os_error(errno.raw_os_error()));
        let done = || -> rustix::io::Result<()> {
            match act {
                Create(path, mode) => {
                    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                    host::open(self.at(path), flags, Mode::from_raw_mode(mode)).map(drop)
                }
                Directory(path) => host::mkdir(self.at(path), Mode::from_raw_mode(0o755)),
                Symlink(path) => host::symlink("target", self.at(path)),
                Fifo(path) => {
                    host::mknodat(host::CWD, self.at(path), host::FileType::Fifo, Mode::from_raw_mode(0o600), 0)
                }
                Link(from, to) => host::link(self.at(from), self.at(to)),
                Unlink(path) => host::unlink(self.at(path)),
                RemoveDirectory(path) => host::rmdir(self.at(path)),
                Rename(from, to, flags) => {
                    let flags = host::RenameFlags::from_bits_retain(flags.bits());
                    host::renameat_with(host::CWD, self.at(from), host::CWD, self.at(to), flags)
                }
                Write(path, offset, length) => {
                    rustix::io::pwrite(self.open(path, OFlags::WRONLY)?, &vec![7; length], offset).map(drop)
                }
                Truncate(path, size) => host::ftruncate(self.open(path, OFlags::WRONLY)?, size),
                ChangeMode(path, mode) => host::chmod(self.at(path), Mode::from_raw_mode(mode)),
                ChangeOwner(path, user, group) => {
                    let user = user.map(rustix::fs::Uid::from_raw);
                    let group = group.map(rustix::fs::Gid::from_raw);
                    host::chownat(host::CWD, self.at(path), user, group, AtFlags::SYMLINK_NOFOLLOW)
                }
                Now(path) | Past(path) => {
                    let nanoseconds = if matches!(act, Now(_)) { host::UTIME_NOW } else { 5 };
                    let stamp = Timespec { tv_sec: 1_000_000, tv_nsec: nanoseconds };
                    let times = Timestamps { last_access: stamp, last_modification: stamp };
                    host::utimensat(host::CWD, self.at(path), &times, AtFlags::SYMLINK_NOFOLLOW)
                }
                SetXattr(path) => host::lsetxattr(self.at(path), XATTR, b"value", host::XattrFlags::empty()),
                RemoveXattr(path) => host::lremovexattr(self.at(path), XATTR),
                Read(path, length) => {
                    rustix::io::pread(self.open(path, OFlags::RDONLY)?, &mut vec![0; length][..], 0).map(drop)
                }
                List(path) => {
                    let directory = self.open(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
                    let mut buffer = vec![core::mem::MaybeUninit::uninit(); 8192];
                    let mut entries = RawDir::new(directory, &mut buffer);
                    while entries.next().transpose()?.is_some() {}
                    Ok(())
                }
                ReadLink(path) => host::readlink(self.at(path), Vec::new()).map(drop),
            }
        };
        done().map_err(error)
    }

    fn names(&mut self, path: &str) -> Vec<String> {
        // Without moving access times.
        let directory = self.open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOATIME).expect("a directory");
        let mut buffer = vec![core::mem::MaybeUninit::uninit(); 8192];
        let mut entries = RawDir::new(directory, &mut buffer);
        let mut names = Vec::new();
        while let Some(entry) = entries.next() {
            let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        names.sort();
        names
    }

    fn keep(&mut self, path: &str) -> u64 {
        let opened = self.open(path, OFlags::PATH | OFlags::NOFOLLOW).expect("an inode");
        let number = host::fstat(&opened).expect("stat").st_ino;
        self.kept.entry(number).or_insert(opened);
        number
    }

    fn look(&self, number: u64) -> Look {
        let all = host::statx(self.kept[&number].as_fd(), "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS);
        let all = all.expect("statx");
        let kind = FileType::from_bits((all.stx_mode >> 12) as u8).expect("a type");
        let size = if kind == FileType::Directory { 0 } else { all.stx_size };
        let owner = Owner { user: all.stx_uid, group: all.stx_gid };
        Look {
            accessed: time(all.stx_atime.tv_sec, all.stx_atime.tv_nsec),
            modified: time(all.stx_mtime.tv_sec, all.stx_mtime.tv_nsec),
            changed: time(all.stx_ctime.tv_sec, all.stx_ctime.tv_nsec),
            rest: (kind, u32::from(all.stx_mode) & 0o7777, u64::from(all.stx_nlink), owner, size),
        }
    }

    fn tick(&self) {
        tick();
    }
}
