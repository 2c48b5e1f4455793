//! The calls: made up at random, made on the kernel and on the namespace.

use crate::actors::Random;
use std::os::fd::{AsFd, OwnedFd};

use gannet_vfs::namespace::{Access, LastMode, Namespace, Place, ResolveFlags};
use gannet_vfs::{Errno, Error, FileType, RenameFlags, Time, TimeChange, XattrMode};
use rustix::fs::{self as kernel, AtFlags, Mode, OFlags};

#[derive(Clone, Debug)]
pub(crate) enum Call {
    Open(String, OFlags, u32),
    Mkdir(String, u32),
    Mknod(String, u32),
    Symlink(String, String),
    Link(String, String),
    Unlink(String),
    Rmdir(String),
    Rename(String, String, u32),
    Chmod(String, u32),
    Chown(String, Option<u32>, Option<u32>),
    Truncate(String, u64),
    Access(String, u32),
    Times(String, u32),
    SetXattr(String, usize),
    RemoveXattr(String, usize),
    GetXattr(String, usize),
    SetList(String, bool, u64),
}

pub(crate) const XATTRS: [&str; 4] = ["user.x", "trusted.x", "security.x", "system.x"];

impl Call {
    pub(crate) fn random(r: &mut Random) -> Self {
        let mode = |r: &mut Random| r.pick(&[0o644, 0o600, 0o666, 0o777, 0o4755, 0o2755, 0o2644, 0o060, 0o400, 0o070]);
        let directory_mode =
            |r: &mut Random| r.pick(&[0o755, 0o700, 0o777, 0o1777, 0o2777, 0o711, 0o733, 0o555, 0o070]);
        match r.below(100) {
            0..30 => {
                let mut flags = r.pick(&[OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR]);
                for flag in [OFlags::CREATE, OFlags::CREATE, OFlags::EXCL, OFlags::TRUNC, OFlags::APPEND] {
                    if r.below(3) == 0 {
                        flags |= flag;
                    }
                }
                for flag in [OFlags::DIRECTORY, OFlags::NOFOLLOW, OFlags::PATH, OFlags::NOATIME, OFlags::TMPFILE] {
                    if r.below(8) == 0 {
                        flags |= flag;
                    }
                }
                Self::Open(r.path(), flags, mode(r))
            }
            30..42 => Self::Mkdir(r.path(), directory_mode(r)),
            42..44 => Self::Mknod(r.path(), mode(r)),
            44..50 => Self::Symlink(r.path(), r.path()),
            50..55 => Self::Link(r.path(), r.path()),
            55..59 => Self::Unlink(r.path()),
            59..62 => Self::Rmdir(r.path()),
            62..70 => Self::Rename(r.path(), r.path(), r.pick(&[0, 0, 0, 1, 2, 3])),
            70..76 => Self::Chmod(r.path(), if r.below(2) == 0 { mode(r) } else { directory_mode(r) }),
            76..84 => {
                let id = |r: &mut Random| r.pick(&[None, Some(0), Some(1000), Some(1001)]);
                let group = |r: &mut Random| r.pick(&[None, Some(100), Some(101), Some(200), Some(201)]);
                Self::Chown(r.path(), id(r), group(r))
            }
            84..86 => Self::Truncate(r.path(), r.below(10_000)),
            86..90 => Self::Access(r.path(), r.below(8) as u32),
            90..92 => Self::Times(r.path(), r.below(3) as u32),
            92..94 => Self::SetXattr(r.path(), r.below(4) as usize),
            94..95 => Self::RemoveXattr(r.path(), r.below(4) as usize),
            95..97 => Self::GetXattr(r.path(), r.below(4) as usize),
            _ => Self::SetList(r.path(), r.below(2) == 0, r.next()),
        }
    }

    pub(crate) fn paths(&self) -> (&str, Option<&str>) {
        match self {
            Self::Open(path, ..)
            | Self::Mkdir(path, ..)
            | Self::Mknod(path, ..)
            | Self::Symlink(path, _)
            | Self::Unlink(path)
            | Self::Rmdir(path)
            | Self::Chmod(path, ..)
            | Self::Chown(path, ..)
            | Self::Truncate(path, ..)
            | Self::Access(path, ..)
            | Self::Times(path, ..)
            | Self::SetXattr(path, ..)
            | Self::RemoveXattr(path, ..)
            | Self::GetXattr(path, ..)
            | Self::SetList(path, ..) => (path, None),
            Self::Link(from, to) | Self::Rename(from, to, _) => (from, Some(to)),
        }
    }

    /// How the first and second path are walked.
    pub(crate) fn modes(&self) -> Result<(LastMode, LastMode, ResolveFlags), Error> {
        let mut rules = ResolveFlags::empty();
        let first = match self {
            Self::Open(_, flags, _) => {
                let (mode, flags) = Namespace::open_mode(*flags)?;
                rules = flags;
                mode
            }
            Self::Link(..) => LastMode::NoFollow,
            Self::Mkdir(..) | Self::Mknod(..) | Self::Symlink(..) | Self::Unlink(..) => LastMode::Parent,
            Self::Rmdir(..) => LastMode::Parent,
            Self::Rename(_, _, flags) => {
                Namespace::rename_flags(*flags)?;
                LastMode::Parent
            }
            _ => LastMode::Follow,
        };
        Ok((first, LastMode::Parent, rules))
    }

    /// What the kernel says. Umask 0, since that belongs to the process, not the thread.
    pub(crate) fn on_kernel(&self, at: &OwnedFd) -> Result<u64, Errno> {
        let at = at.as_fd();
        let path_fd = |path: &str| kernel::openat(at, path, OFlags::PATH, Mode::empty());
        // There is no setxattrat before Linux 6.13; a descriptor's magic link leads to the same inode.
        let through = |path: &str, call: &dyn Fn(String) -> Result<u64, Errno>| -> Result<u64, Errno> {
            let fd = path_fd(path)?;
            call(format!("/proc/thread-self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd)))
        };
        let mode = |bits: &u32| Mode::from_raw_mode(*bits);
        match self {
            Self::Open(path, flags, bits) => {
                // Pipes must not block here. That nobody reads one is said after all that the namespace checks.
                match kernel::openat(at, path.as_str(), *flags | OFlags::NONBLOCK, mode(bits)) {
                    Ok(_) | Err(Errno::NXIO) => Ok(0),
                    Err(errno) => Err(errno),
                }
            }
            Self::Mkdir(path, bits) => kernel::mkdirat(at, path.as_str(), mode(bits)).map(|()| 0),
            Self::Mknod(path, bits) => {
                kernel::mknodat(at, path.as_str(), kernel::FileType::Fifo, mode(bits), 0).map(|()| 0)
            }
            Self::Symlink(path, target) => kernel::symlinkat(target.as_str(), at, path.as_str()).map(|()| 0),
            Self::Link(from, to) => kernel::linkat(at, from.as_str(), at, to.as_str(), AtFlags::empty()).map(|()| 0),
            Self::Unlink(path) => kernel::unlinkat(at, path.as_str(), AtFlags::empty()).map(|()| 0),
            Self::Rmdir(path) => kernel::unlinkat(at, path.as_str(), AtFlags::REMOVEDIR).map(|()| 0),
            Self::Rename(from, to, flags) => {
                let flags = kernel::RenameFlags::from_bits_retain(*flags);
                kernel::renameat_with(at, from.as_str(), at, to.as_str(), flags).map(|()| 0)
            }
            Self::Chmod(path, bits) => kernel::chmodat(at, path.as_str(), mode(bits), AtFlags::empty()).map(|()| 0),
            Self::Chown(path, user, group) => {
                let user = user.map(rustix::process::Uid::from_raw);
                let group = group.map(rustix::process::Gid::from_raw);
                kernel::chownat(at, path.as_str(), user, group, AtFlags::empty()).map(|()| 0)
            }
            Self::Truncate(path, size) => {
                // There is no truncateat; a directory and a pipe are told by their type.
                let fd = path_fd(path)?;
                match kernel::FileType::from_raw_mode(kernel::fstat(&fd)?.st_mode) {
                    kernel::FileType::Directory => return Err(Errno::ISDIR),
                    kernel::FileType::RegularFile => {}
                    _ => return Err(Errno::INVAL),
                }
                let fd = kernel::openat(at, path.as_str(), OFlags::WRONLY, Mode::empty())?;
                kernel::ftruncate(fd, *size).map(|()| 0)
            }
            Self::Access(path, bits) => {
                let access = kernel::Access::from_bits_retain(*bits);
                kernel::accessat(at, path.as_str(), access, AtFlags::empty()).map(|()| 0)
            }
            Self::Times(path, kind) => {
                let time = |now| kernel::Timespec {
                    tv_sec: 77,
                    tv_nsec: if now { kernel::UTIME_NOW } else { kernel::UTIME_OMIT },
                };
                let set = kernel::Timespec { tv_sec: 77, tv_nsec: 5 };
                let times = match kind {
                    0 => kernel::Timestamps { last_access: time(true), last_modification: time(true) },
                    1 => kernel::Timestamps { last_access: set, last_modification: set },
                    2 => kernel::Timestamps { last_access: time(true), last_modification: time(false) },
                    _ => kernel::Timestamps { last_access: time(false), last_modification: time(false) },
                };
                kernel::utimensat(at, path.as_str(), &times, AtFlags::empty()).map(|()| 0)
            }
            Self::SetXattr(path, index) => {
                let flags = kernel::XattrFlags::empty();
                through(path, &|path| kernel::setxattr(path, XATTRS[*index], b"v", flags).map(|()| 0))
            }
            Self::RemoveXattr(path, index) => {
                through(path, &|path| kernel::removexattr(path, XATTRS[*index]).map(|()| 0))
            }
            Self::GetXattr(path, index) => {
                let get = |path| kernel::getxattr(path, XATTRS[*index], &mut [0_u8; 16]).map(|length| length as u64);
                through(path, &get)
            }
            Self::SetList(path, default, seed) => {
                let (name, value) = (list_name(*default), list_of(*seed));
                let flags = kernel::XattrFlags::empty();
                through(path, &|path| kernel::setxattr(path, name, &value, flags).map(|()| 0))
            }
        }
    }

    pub(crate) fn on_namespace(
        &self,
        view: &Namespace<'_, '_>,
        first: &Place<'_>,
        second: Option<&Place<'_>>,
    ) -> Result<u64, Error> {
        let second = || second.expect("the call has two paths");
        match self {
            Self::Open(_, flags, mode) => view.open(first, *flags, *mode).map(|_| 0),
            Self::Mkdir(_, mode) => view.make(first, FileType::Directory, *mode, 0, &[]).map(|_| 0),
            Self::Mknod(_, mode) => view.make(first, FileType::Fifo, *mode, 0, &[]).map(|_| 0),
            Self::Symlink(_, target) => view.make(first, FileType::Symlink, 0, 0, target.as_bytes()).map(|_| 0),
            Self::Link(..) => view.link(first.existing()?.node, second()).map(|()| 0),
            Self::Unlink(_) => view.unlink(first).map(|_| 0),
            Self::Rmdir(_) => view.remove_directory(first).map(|_| 0),
            Self::Rename(_, _, flags) => {
                view.rename(first, second(), RenameFlags::from_bits_retain(*flags)).map(|()| 0)
            }
            Self::Chmod(_, mode) => view.set_mode(first.existing()?.node, *mode).map(|_| 0),
            Self::Chown(_, user, group) => view.set_owner(first.existing()?.node, *user, *group).map(|_| 0),
            Self::Truncate(_, size) => view.truncate(first.existing()?.node, *size).map(|()| 0),
            Self::Access(_, bits) => {
                view.check_access(first.existing()?.node, Access::from_bits_retain(*bits)).map(|()| 0)
            }
            Self::Times(_, kind) => {
                let set = TimeChange::Set(Time::from_parts(77, 5));
                let (accessed, modified) = match kind {
                    0 => (TimeChange::Now, TimeChange::Now),
                    1 => (set, set),
                    2 => (TimeChange::Now, TimeChange::Keep),
                    _ => (TimeChange::Keep, TimeChange::Keep),
                };
                view.set_times(first.existing()?.node, accessed, modified).map(|()| 0)
            }
            Self::SetXattr(_, index) => {
                view.set_xattr(first.existing()?.node, XATTRS[*index].as_bytes(), b"v", XattrMode::Any).map(|()| 0)
            }
            Self::RemoveXattr(_, index) => {
                view.remove_xattr(first.existing()?.node, XATTRS[*index].as_bytes()).map(|()| 0)
            }
            Self::GetXattr(_, index) => {
                let mut room = [0; 16];
                view.xattr(first.existing()?.node, XATTRS[*index].as_bytes(), &mut room).map(|length| length as u64)
            }
            Self::SetList(_, default, seed) => {
                let (name, value) = (list_name(*default), list_of(*seed));
                view.set_xattr(first.existing()?.node, name.as_bytes(), &value, XattrMode::Any).map(|()| 0)
            }
        }
    }
}

pub(crate) fn list_name(default: bool) -> &'static str {
    if default { "system.posix_acl_default" } else { "system.posix_acl_access" }
}

/// A valid access control list, or one without entries, which removes what is there.
pub(crate) fn list_of(seed: u64) -> Vec<u8> {
    let mut r = Random(seed);
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    if r.below(5) == 0 {
        return bytes;
    }
    let mut entry = |tag: u16, permissions: u64, id: u32| {
        bytes.extend(tag.to_le_bytes());
        bytes.extend((permissions as u16).to_le_bytes());
        bytes.extend(id.to_le_bytes());
    };
    let named = r.below(3) > 0;
    entry(1, r.below(8), u32::MAX);
    if named {
        entry(2, r.below(8), 1000);
        if r.below(2) == 0 {
            entry(2, r.below(8), 1001);
        }
    }
    entry(4, r.below(8), u32::MAX);
    if named {
        entry(8, r.below(8), 200);
        entry(8, r.below(8), 201);
    }
    if named || r.below(2) == 0 {
        entry(16, r.below(8), u32::MAX);
    }
    entry(32, r.below(8), u32::MAX);
    bytes
}
