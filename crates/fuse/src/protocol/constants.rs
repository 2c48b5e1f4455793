//! Numbers of the kernel's FUSE protocol, 7.31 to 7.45: opcodes, flags, and the sizes of its structures.
//!
//! Names follow the protocol's, so that they can be looked up in `linux/fuse.h`.

// The flags are documented there; repeating it here would only age.
#![allow(missing_docs)]

/// The only major version there is.
pub const MAJOR: u32 = 7;
/// The oldest minor version served.
pub const MINOR_MIN: u32 = 31;
/// The newest minor version known.
pub const MINOR_MAX: u32 = 45;
/// The kernel's number for the root directory.
pub const ROOT_ID: u64 = 1;

/// Bytes of the header before every request.
pub const IN_HEADER_BYTES: usize = 40;
/// Bytes of the header before every reply.
pub const OUT_HEADER_BYTES: usize = 16;
/// Bytes of `fuse_attr`.
pub const ATTR_BYTES: usize = 88;
/// Bytes of `fuse_entry_out`.
pub const ENTRY_BYTES: usize = 128;
/// Bytes of `fuse_init_out`.
pub const INIT_OUT_BYTES: usize = 64;
/// Bytes of `fuse_dirent` before the name.
pub const DIRENT_BYTES: usize = 24;

macro_rules! opcodes {
    ($($name:ident = $value:literal),* $(,)?) => {
        /// What a request asks for.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u32)]
            pub enum Opcode { $($name = $value),* }

        impl Opcode {
            /// All opcodes known here.
            pub const ALL: &[Opcode] = &[$(Opcode::$name),*];

            /// From the number in a request's header.
            pub const fn from_number(number: u32) -> Option<Self> {
                match number {
                    $($value => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

opcodes! {
    Lookup = 1, Forget = 2, GetAttr = 3, SetAttr = 4, ReadLink = 5, Symlink = 6, MkNod = 8, MkDir = 9, Unlink = 10,
    RmDir = 11, Rename = 12, Link = 13, Open = 14, Read = 15, Write = 16, StatFs = 17, Release = 18, FSync = 20,
    SetXattr = 21, GetXattr = 22, ListXattr = 23, RemoveXattr = 24, Flush = 25, Init = 26, OpenDir = 27, ReadDir = 28,
    ReleaseDir = 29, FSyncDir = 30, GetLk = 31, SetLk = 32, SetLkW = 33, Access = 34, Create = 35, Interrupt = 36,
    BMap = 37, Destroy = 38, Ioctl = 39, Poll = 40, NotifyReply = 41, BatchForget = 42, FAllocate = 43,
    ReadDirPlus = 44, Rename2 = 45, LSeek = 46, CopyFileRange = 47, SyncFs = 50, TmpFile = 51, StatX = 52,
    CopyFileRange64 = 53,
}

bitflags::bitflags! {
    /// What the kernel offers and the server accepts at INIT (`flags | flags2 << 32`).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct InitFlags: u64 {
        const ASYNC_READ = 1 << 0;
        const POSIX_LOCKS = 1 << 1;
        const ATOMIC_O_TRUNC = 1 << 3;
        const EXPORT_SUPPORT = 1 << 4;
        const BIG_WRITES = 1 << 5;
        const DONT_MASK = 1 << 6;
        const SPLICE_WRITE = 1 << 7;
        const SPLICE_MOVE = 1 << 8;
        const SPLICE_READ = 1 << 9;
        const FLOCK_LOCKS = 1 << 10;
        const HAS_IOCTL_DIR = 1 << 11;
        const AUTO_INVAL_DATA = 1 << 12;
        const DO_READDIRPLUS = 1 << 13;
        const READDIRPLUS_AUTO = 1 << 14;
        const ASYNC_DIO = 1 << 15;
        const WRITEBACK_CACHE = 1 << 16;
        const NO_OPEN_SUPPORT = 1 << 17;
        const PARALLEL_DIROPS = 1 << 18;
        const HANDLE_KILLPRIV = 1 << 19;
        const POSIX_ACL = 1 << 20;
        const ABORT_ERROR = 1 << 21;
        const MAX_PAGES = 1 << 22;
        const CACHE_SYMLINKS = 1 << 23;
        const NO_OPENDIR_SUPPORT = 1 << 24;
        const EXPLICIT_INVAL_DATA = 1 << 25;
        const SUBMOUNTS = 1 << 27;
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        const SETXATTR_EXT = 1 << 29;
        const INIT_EXT = 1 << 30;
        const SECURITY_CTX = 1 << 32;
        const CREATE_SUPP_GROUP = 1 << 34;
        const HAS_EXPIRE_ONLY = 1 << 35;
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        const PASSTHROUGH = 1 << 37;
        const NO_EXPORT_SUPPORT = 1 << 38;
        const HAS_RESEND = 1 << 39;
        const ALLOW_IDMAP = 1 << 40;
        const OVER_IO_URING = 1 << 41;
        const REQUEST_TIMEOUT = 1 << 42;
    }

    /// How the kernel shall treat an open file.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct OpenReplyFlags: u32 {
        const DIRECT_IO = 1 << 0;
        const KEEP_CACHE = 1 << 1;
        const NONSEEKABLE = 1 << 2;
        const CACHE_DIR = 1 << 3;
        const STREAM = 1 << 4;
        const NOFLUSH = 1 << 5;
        const PARALLEL_DIRECT_WRITES = 1 << 6;
    }

    /// Which fields of a SETATTR request count.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct SetAttrValid: u32 {
        const MODE = 1 << 0;
        const UID = 1 << 1;
        const GID = 1 << 2;
        const SIZE = 1 << 3;
        const ATIME = 1 << 4;
        const MTIME = 1 << 5;
        const FH = 1 << 6;
        const ATIME_NOW = 1 << 7;
        const MTIME_NOW = 1 << 8;
        const LOCKOWNER = 1 << 9;
        const CTIME = 1 << 10;
        const KILL_SUIDGID = 1 << 11;
    }

    /// Flags of a WRITE request.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct WriteRequestFlags: u32 {
        const CACHE = 1 << 0;
        const LOCKOWNER = 1 << 1;
        const KILL_SUIDGID = 1 << 2;
    }
}

/// GETATTR: asked for by an open file, which is about to be read or written.
pub const GETATTR_FH: u32 = 1;
/// OPEN and CREATE: the opener lacks CAP_FSETID and truncates.
pub const OPEN_KILL_SUIDGID: u32 = 1;
/// SETXATTR: the setter of an access ACL loses set-group-id.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1;
/// FSYNC: data only.
pub const FSYNC_FDATASYNC: u32 = 1;
/// Locks: `flock`, not `fcntl`.
pub const LK_FLOCK: u32 = 1;
/// RELEASE: drop `flock` locks.
pub const RELEASE_FLOCK_UNLOCK: u32 = 2;
/// IOCTL: the caller is a 32-bit program.
pub const IOCTL_32BIT: u32 = 1 << 3;
