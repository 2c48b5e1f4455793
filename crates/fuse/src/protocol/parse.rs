//! Requests from bytes, without copying data.
//!
//! A request has three parts: the header, the operation's structure, and the payload (names, data). `/dev/fuse` delivers
//! them one after the other ([`Request::parse_contiguous`]), the ring in two buffers ([`Request::parse_split`]). Every
//! access is bounds-checked; nothing is trusted to end where it should.

use super::constants::{GETATTR_FH, IN_HEADER_BYTES, InitFlags, Opcode, SetAttrValid, WriteRequestFlags};
use super::request::{
    BulkOperation, ForgetList, Header, InitRequest, IoctlInput, LockRequest, Operation, Request, SetAttrRequest,
};
use super::wire::{Malformed, split_string, u32_at, u64_at};

/// The bytes of an operation's structure, the first argument. `setxattr_extended` and `minor` are what was negotiated.
fn structure_bytes(opcode: Opcode, setxattr_extended: bool, available_bytes: usize) -> usize {
    match opcode {
        Opcode::Lookup | Opcode::ReadLink | Opcode::Symlink | Opcode::Unlink | Opcode::RmDir | Opcode::StatFs => 0,
        Opcode::RemoveXattr | Opcode::Destroy | Opcode::NotifyReply => 0,
        Opcode::Forget | Opcode::MkDir | Opcode::Rename | Opcode::Link | Opcode::BatchForget => 8,
        Opcode::Open | Opcode::OpenDir | Opcode::Access | Opcode::Interrupt | Opcode::SyncFs => 8,
        Opcode::GetXattr | Opcode::ListXattr => 8,
        Opcode::SetXattr if setxattr_extended => 16,
        Opcode::SetXattr => 8,
        Opcode::GetAttr | Opcode::MkNod | Opcode::Create | Opcode::TmpFile | Opcode::Rename2 => 16,
        Opcode::FSync | Opcode::FSyncDir | Opcode::BMap => 16,
        Opcode::Flush | Opcode::Release | Opcode::ReleaseDir | Opcode::StatX | Opcode::Poll | Opcode::LSeek => 24,
        Opcode::FAllocate | Opcode::Ioctl => 32,
        Opcode::Read | Opcode::Write | Opcode::ReadDir | Opcode::ReadDirPlus => 40,
        Opcode::GetLk | Opcode::SetLk | Opcode::SetLkW => 48,
        Opcode::CopyFileRange | Opcode::CopyFileRange64 => 56,
        Opcode::SetAttr => 88,
        // Before 7.36 the structure had 16 bytes, since then 64.
        Opcode::Init => available_bytes.min(64),
    }
}

impl<'a> Request<'a> {
    /// Parses a request as `/dev/fuse` delivers it.
    pub fn parse_contiguous(bytes: &'a [u8], setxattr_extended: bool) -> Result<Self, Malformed> {
        let header = Header::parse(bytes)?;
        if header.length_bytes as usize != bytes.len() {
            return Err(Malformed);
        }
        let rest = &bytes[IN_HEADER_BYTES..];
        let Some(opcode) = Opcode::from_number(header.opcode) else { return Ok(Self { header, operation: None }) };
        let length_bytes = structure_bytes(opcode, setxattr_extended, rest.len());
        let (structure, payload) = rest.split_at_checked(length_bytes).ok_or(Malformed)?;
        Self::parse_parts(header, opcode, structure, payload, setxattr_extended)
    }

    /// Parses a request as the ring delivers it: its header, the operation's structure (with undefined bytes behind it), and
    /// the payload.
    pub fn parse_split(header: Header, structure: &'a [u8], payload: &'a [u8]) -> Result<Self, Malformed> {
        let Some(opcode) = Opcode::from_number(header.opcode) else { return Ok(Self { header, operation: None }) };
        let structure = structure.get(..structure_bytes(opcode, true, structure.len())).ok_or(Malformed)?;
        Self::parse_parts(header, opcode, structure, payload, true)
    }

    fn parse_parts(
        header: Header,
        opcode: Opcode,
        fields: &'a [u8],
        payload: &'a [u8],
        setxattr_extended: bool,
    ) -> Result<Self, Malformed> {
        let payload_bytes = payload.len().checked_sub(header.extension_bytes).ok_or(Malformed)?;
        let payload = &payload[..payload_bytes];
        let word = |offset_bytes| u32_at(fields, offset_bytes);
        let long = |offset_bytes| u64_at(fields, offset_bytes);
        let name = || Ok(split_string(payload)?.0);
        let two_names = || -> Result<(&'a [u8], &'a [u8]), Malformed> {
            let (first, rest) = split_string(payload)?;
            Ok((first, split_string(rest)?.0))
        };
        let lock = || -> Result<LockRequest, Malformed> {
            Ok(LockRequest {
                handle: long(0)?,
                owner: long(8)?,
                start: long(16)?,
                end: long(24)?,
                kind: word(32)?,
                process: word(36)?,
                flags: word(40)?,
            })
        };
        let operation = match opcode {
            Opcode::Init => Operation::Init(parse_init(fields)?),
            Opcode::Destroy => Operation::Destroy,
            Opcode::Lookup => Operation::Lookup { name: name()? },
            Opcode::Forget => Operation::Forget { count: long(0)? },
            Opcode::BatchForget => {
                let wanted_bytes = (word(0)? as usize).checked_mul(16).ok_or(Malformed)?;
                Operation::BatchForget { entries: ForgetList(payload.get(..wanted_bytes).ok_or(Malformed)?) }
            }
            Opcode::GetAttr => Operation::GetAttr { by_file: word(0)? & GETATTR_FH != 0 },
            Opcode::StatX => Operation::StatX { flags: word(16)?, mask: word(20)? },
            Opcode::SetAttr => Operation::SetAttr(SetAttrRequest {
                valid: SetAttrValid::from_bits_retain(word(0)?),
                handle: long(8)?,
                size_bytes: long(16)?,
                accessed: (long(32)? as i64, word(56)?),
                modified: (long(40)? as i64, word(60)?),
                mode: word(68)?,
                user: word(76)?,
                group: word(80)?,
            }),
            Opcode::ReadLink => Operation::Bulk(BulkOperation::ReadLink),
            Opcode::Symlink => {
                let (name, target) = two_names()?;
                Operation::Symlink { name, target }
            }
            Opcode::MkNod => Operation::MakeNode { name: name()?, mode: word(0)?, device: word(4)?, umask: word(8)? },
            Opcode::MkDir => Operation::MakeDirectory { name: name()?, mode: word(0)?, umask: word(4)? },
            Opcode::Unlink => Operation::Unlink { name: name()? },
            Opcode::RmDir => Operation::RemoveDirectory { name: name()? },
            Opcode::Rename => {
                let (from, to) = two_names()?;
                Operation::Rename { from, to_directory: long(0)?, to, flags: 0 }
            }
            Opcode::Rename2 => {
                let (from, to) = two_names()?;
                Operation::Rename { from, to_directory: long(0)?, to, flags: word(8)? }
            }
            Opcode::Link => Operation::Link { node: long(0)?, name: name()? },
            Opcode::Open => Operation::Open { flags: word(0)?, open_flags: word(4)? },
            Opcode::Create => Operation::Create {
                name: name()?,
                flags: word(0)?,
                mode: word(4)?,
                umask: word(8)?,
                open_flags: word(12)?,
            },
            Opcode::TmpFile => Operation::TmpFile { flags: word(0)?, mode: word(4)?, umask: word(8)? },
            Opcode::Read => Operation::Bulk(BulkOperation::Read {
                handle: long(0)?,
                offset_bytes: long(8)?,
                size_bytes: word(16)?,
                open_flags: word(32)?,
            }),
            Opcode::ReadDir | Opcode::ReadDirPlus => Operation::Bulk(BulkOperation::ReadDirectory {
                handle: long(0)?,
                cookie: long(8)?,
                size_bytes: word(16)?,
                plus: opcode == Opcode::ReadDirPlus,
            }),
            Opcode::Write => Operation::Write {
                handle: long(0)?,
                offset_bytes: long(8)?,
                write_flags: WriteRequestFlags::from_bits_retain(word(20)?),
                open_flags: word(32)?,
                data: payload.get(..word(16)? as usize).ok_or(Malformed)?,
            },
            Opcode::StatFs => Operation::StatFs,
            Opcode::Release => Operation::Release {
                handle: long(0)?,
                flags: word(8)?,
                release_flags: word(12)?,
                lock_owner: long(16)?,
            },
            Opcode::ReleaseDir => Operation::ReleaseDirectory { handle: long(0)? },
            Opcode::FSync => Operation::FSync { flags: word(8)? },
            Opcode::FSyncDir => Operation::FSyncDirectory { flags: word(8)? },
            Opcode::SetXattr => {
                let (name, rest) = split_string(payload)?;
                Operation::SetXattr {
                    name,
                    value: rest.get(..word(0)? as usize).ok_or(Malformed)?,
                    flags: word(4)?,
                    set_flags: if setxattr_extended { word(8)? } else { 0 },
                }
            }
            Opcode::GetXattr => Operation::GetXattr { size_bytes: word(0)?, name: name()? },
            Opcode::ListXattr => Operation::Bulk(BulkOperation::ListXattr { size_bytes: word(0)? }),
            Opcode::RemoveXattr => Operation::RemoveXattr { name: name()? },
            Opcode::Flush => Operation::Flush { handle: long(0)?, lock_owner: long(16)? },
            Opcode::OpenDir => Operation::OpenDirectory { flags: word(0)? },
            Opcode::GetLk => Operation::GetLock(lock()?),
            Opcode::SetLk => Operation::SetLock { lock: lock()?, wait: false },
            Opcode::SetLkW => Operation::SetLock { lock: lock()?, wait: true },
            Opcode::Access => Operation::Access { mask: word(0)? },
            Opcode::Interrupt => Operation::Interrupt { unique: long(0)? },
            Opcode::FAllocate => {
                Operation::Allocate { offset_bytes: long(8)?, length_bytes: long(16)?, mode: word(24)? }
            }
            Opcode::LSeek => Operation::Seek { offset_bytes: long(8)?, whence: word(16)? },
            Opcode::CopyFileRange | Opcode::CopyFileRange64 => Operation::CopyRange {
                offset_bytes: long(8)?,
                to_node: long(16)?,
                to_offset_bytes: long(32)?,
                length_bytes: long(40)?,
                wide: opcode == Opcode::CopyFileRange64,
            },
            Opcode::SyncFs => Operation::SyncFileSystem,
            Opcode::Ioctl => {
                let in_bytes = word(24)?;
                let given = payload.get(..in_bytes as usize).ok_or(Malformed)?;
                let mut input = IoctlInput { bytes: [0; 32], length_bytes: given.len().min(32) };
                input.bytes[..input.length_bytes].copy_from_slice(&given[..input.length_bytes]);
                Operation::Bulk(BulkOperation::Ioctl {
                    flags: word(8)?,
                    command: word(12)?,
                    input,
                    in_bytes,
                    out_bytes: word(28)?,
                })
            }
            Opcode::BMap | Opcode::Poll | Opcode::NotifyReply => Operation::Unserved,
        };
        Ok(Self { header, operation: Some(operation) })
    }
}

fn parse_init(fields: &[u8]) -> Result<InitRequest, Malformed> {
    let low = u64::from(u32_at(fields, 12)?);
    let extended = low & InitFlags::INIT_EXT.bits() != 0 && fields.len() >= 20;
    let high = if extended { u64::from(u32_at(fields, 16)?) } else { 0 };
    Ok(InitRequest {
        major: u32_at(fields, 0)?,
        minor: u32_at(fields, 4)?,
        readahead_bytes_max: u32_at(fields, 8)?,
        flags: InitFlags::from_bits_retain(low | high << 32),
    })
}
