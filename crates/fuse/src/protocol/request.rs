//! What the kernel can ask for. `parse.rs` makes these of bytes; they borrow names and data from there.

use super::constants::{IN_HEADER_BYTES, InitFlags, SetAttrValid, WriteRequestFlags};
use super::wire::{Malformed, u16_at, u32_at, u64_at};

/// Who asks, for what, about which inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Bytes of the whole request.
    pub length_bytes: u32,
    /// The operation's number.
    pub opcode: u32,
    /// Names the request; the reply carries it.
    pub unique: u64,
    /// The kernel's number of the inode.
    pub node: u64,
    /// The caller's file-system user id.
    pub user: u32,
    /// The caller's file-system group id.
    pub group: u32,
    /// The calling thread; 0 for the kernel itself.
    pub process: u32,
    /// Bytes of extensions at the end of the payload.
    pub extension_bytes: usize,
}

impl Header {
    /// Parses the 40 bytes before every request.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let bytes = bytes.get(..IN_HEADER_BYTES).ok_or(Malformed)?;
        Ok(Self {
            length_bytes: u32_at(bytes, 0)?,
            opcode: u32_at(bytes, 4)?,
            unique: u64_at(bytes, 8)?,
            node: u64_at(bytes, 16)?,
            user: u32_at(bytes, 24)?,
            group: u32_at(bytes, 28)?,
            process: u32_at(bytes, 32)?,
            extension_bytes: usize::from(u16_at(bytes, 36)?) * 8,
        })
    }
}

/// The kernel's half of the negotiation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InitRequest {
    /// Major version.
    pub major: u32,
    /// Minor version.
    pub minor: u32,
    /// Read-ahead the kernel would do, in bytes.
    pub readahead_bytes_max: u32,
    /// What it offers.
    pub flags: InitFlags,
}

/// SETATTR's fields; `valid` says which count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct SetAttrRequest {
    pub valid: SetAttrValid,
    pub handle: u64,
    pub size_bytes: u64,
    pub accessed: (i64, u32),
    pub modified: (i64, u32),
    pub mode: u32,
    pub user: u32,
    pub group: u32,
}

/// A record lock as requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockRequest {
    /// The open file.
    pub handle: u64,
    /// The kernel's name of the owner.
    pub owner: u64,
    /// First byte.
    pub start: u64,
    /// Last byte, inclusive; `i64::MAX` for "to the end".
    pub end: u64,
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub kind: u32,
    /// The owner's process.
    pub process: u32,
    /// `LK_FLOCK` for `flock`.
    pub flags: u32,
}

/// An operation and its arguments. Operations that answer with more than a fixed structure hold no borrowed bytes:
/// their reply may be written over the payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Operation<'a> {
    Init(InitRequest),
    Destroy,
    Lookup {
        name: &'a [u8],
    },
    Forget {
        count: u64,
    },
    BatchForget {
        entries: ForgetList<'a>,
    },
    GetAttr {
        /// An open file is about to be read or written.
        by_file: bool,
    },
    StatX {
        flags: u32,
        mask: u32,
    },
    SetAttr(SetAttrRequest),
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MakeNode {
        name: &'a [u8],
        mode: u32,
        device: u32,
        umask: u32,
    },
    MakeDirectory {
        name: &'a [u8],
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    RemoveDirectory {
        name: &'a [u8],
    },
    Rename {
        from: &'a [u8],
        to_directory: u64,
        to: &'a [u8],
        flags: u32,
    },
    Link {
        node: u64,
        name: &'a [u8],
    },
    Open {
        flags: u32,
        open_flags: u32,
    },
    Create {
        name: &'a [u8],
        flags: u32,
        mode: u32,
        umask: u32,
        open_flags: u32,
    },
    TmpFile {
        flags: u32,
        mode: u32,
        umask: u32,
    },
    Write {
        handle: u64,
        offset_bytes: u64,
        write_flags: WriteRequestFlags,
        open_flags: u32,
        data: &'a [u8],
    },
    StatFs,
    Release {
        handle: u64,
        flags: u32,
        release_flags: u32,
        lock_owner: u64,
    },
    FSync {
        flags: u32,
    },
    SetXattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: u32,
        set_flags: u32,
    },
    RemoveXattr {
        name: &'a [u8],
    },
    Flush {
        handle: u64,
        lock_owner: u64,
    },
    OpenDirectory {
        flags: u32,
    },
    ReleaseDirectory {
        handle: u64,
    },
    FSyncDirectory {
        flags: u32,
    },
    GetLock(LockRequest),
    SetLock {
        lock: LockRequest,
        wait: bool,
    },
    Access {
        mask: u32,
    },
    Interrupt {
        unique: u64,
    },
    Allocate {
        offset_bytes: u64,
        length_bytes: u64,
        mode: u32,
    },
    Seek {
        offset_bytes: u64,
        whence: u32,
    },
    CopyRange {
        offset_bytes: u64,
        to_node: u64,
        to_offset_bytes: u64,
        length_bytes: u64,
        wide: bool,
    },
    SyncFileSystem,
    /// Answers with a value, yet borrows its name from the payload: whoever writes the reply there copies the name first.
    GetXattr {
        size_bytes: u32,
        name: &'a [u8],
    },
    Bulk(BulkOperation),
    /// Known to the protocol, not served.
    Unserved,
}

/// An operation whose reply fills a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum BulkOperation {
    ReadLink,
    Read { handle: u64, offset_bytes: u64, size_bytes: u32, open_flags: u32 },
    ReadDirectory { handle: u64, cookie: u64, size_bytes: u32, plus: bool },
    ListXattr { size_bytes: u32 },
    Ioctl { flags: u32, command: u32, input: IoctlInput, in_bytes: u32, out_bytes: u32 },
}

/// The first bytes of an ioctl's argument: none that is served takes more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IoctlInput {
    /// The bytes; zeros behind [`IoctlInput::length_bytes`].
    pub bytes: [u8; 32],
    /// How many there are.
    pub length_bytes: usize,
}

/// BATCH_FORGET's list of (inode, count).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ForgetList<'a>(pub(super) &'a [u8]);

impl Iterator for ForgetList<'_> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<Self::Item> {
        let (first, rest) = self.0.split_first_chunk::<16>()?;
        self.0 = rest;
        Some((u64_at(first, 0).ok()?, u64_at(first, 8).ok()?))
    }
}

/// A parsed request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request<'a> {
    /// Who asks.
    pub header: Header,
    /// What is asked; `None` for an opcode unknown here.
    pub operation: Option<Operation<'a>>,
}
