//! Names of inodes that outlive paths: `name_to_handle_at`, `open_by_handle_at`.
//!
//! A handle says which volume, which inode, and which generation of its number, so that it never leads to another file.

use super::call::{Answer, AtForm, Call, again, done};
use super::names::open_node;
use super::status::{AT_EMPTY_PATH, empty_of, has_unknown};
use super::{Front, credentials};
use crate::dispatch::Outcome;
use crate::memory;
use crate::number::NAME_TO_HANDLE_AT;
use crate::thread::PathScratch;
use gannet_vfs::namespace::{Capabilities, LastMode, OpenFlags};
use gannet_vfs::{Errno, FileType, Found, NodeId};

/// The kernel's bound on the bytes of a handle.
const HANDLE_BYTES_MAX: u32 = 128;
/// Bytes of ours: the volume's identity, the inode's number, its generation.
const HANDLE_BYTES: u32 = 20;
/// "GN"
const HANDLE_TYPE: u32 = 0x474e;
/// What `struct file_handle` has before the handle: how long it is, and its type.
const HEAD_BYTES: usize = 8;

/// `name_to_handle_at`.
pub(crate) fn name_to_handle(call: &Call<'_>, scratch: &mut PathScratch) -> Answer {
    const AT_HANDLE_MNT_ID_UNIQUE: usize = 1;
    const AT_HANDLE_FID: usize = 0x200;
    const AT_SYMLINK_FOLLOW: usize = 0x400;
    const AT_HANDLE_CONNECTABLE: usize = 2;
    let [_, _, handle, mount_number, flags, _] = call.arguments;
    let known = AT_HANDLE_MNT_ID_UNIQUE | AT_HANDLE_FID | AT_SYMLINK_FOLLOW | AT_EMPTY_PATH | AT_HANDLE_CONNECTABLE;
    let connects = flags & AT_HANDLE_CONNECTABLE != 0;
    if has_unknown(flags, known) || connects && flags & AT_HANDLE_FID != 0 {
        return Ok(Outcome::Pass);
    }
    let mode = if flags & AT_SYMLINK_FOLLOW != 0 { LastMode::Follow } else { LastMode::NoFollow };
    let at = AtForm::new(NAME_TO_HANDLE_AT, call.arguments);
    call.at_path(at, mode, empty_of(flags), scratch, |namespace, mount, place| {
        let node = place.existing().map_err(|error| error.errno())?.node;
        if connects {
            // Handles here do not say where a file is.
            return Err(Errno::OPNOTSUPP);
        }
        let mut room = 0u32;
        memory::read_value(handle, &mut room).map_err(|_| Errno::FAULT)?;
        if room > HANDLE_BYTES_MAX {
            return Err(Errno::INVAL);
        }
        let fits = room >= HANDLE_BYTES;
        let mut bytes = Vec::with_capacity(HEAD_BYTES + HANDLE_BYTES as usize);
        bytes.extend_from_slice(&HANDLE_BYTES.to_le_bytes());
        bytes.extend_from_slice(&HANDLE_TYPE.to_le_bytes());
        bytes.extend_from_slice(&namespace.fs().identity().to_le_bytes());
        bytes.extend_from_slice(&node.number.to_le_bytes());
        bytes.extend_from_slice(&node.generation.to_le_bytes());
        if !fits {
            bytes.truncate(HEAD_BYTES);
        }
        // The mounts of a process have the numbers of their places: the kernel knows none.
        let written = if flags & AT_HANDLE_MNT_ID_UNIQUE != 0 {
            memory::write_value(mount_number, &(mount as u64))
        } else {
            memory::write_value(mount_number, &(mount as i32))
        };
        written.and_then(|()| memory::write_bytes(handle, &bytes)).map_err(|_| Errno::FAULT)?;
        if fits { done(0) } else { Err(Errno::OVERFLOW) }
    })
}

/// `open_by_handle_at` by a descriptor of a volume, or while the working directory is in one.
pub(crate) fn open_by_handle(call: &mut Call<'_>, pipe: &mut PathScratch) -> Answer {
    let [descriptor, handle, flags, ..] = call.arguments;
    let mount = if descriptor as i32 == super::paths::AT_FDCWD {
        call.table().directory().map(|(mount, _)| mount)
    } else {
        call.open_file(descriptor).map(|file| file.mount)
    };
    let Some(mount) = mount else { return Ok(Outcome::Pass) };
    /// The type itself, and what the kernel notes beside it of handles that are connectable, and of directories.
    const TYPE_BITS: u32 = 0x3_ffff;
    let mut head = [0u32; 2];
    memory::read_value(handle, &mut head).map_err(|_| Errno::FAULT)?;
    if head[0] == 0 || head[0] > HANDLE_BYTES_MAX || head[1] & !TYPE_BITS != 0 {
        return Err(Errno::INVAL);
    }
    if let Some(file) = call.open_file(descriptor) {
        super::data::check_not_path(&file)?;
    }
    if !credentials::effective().may(Capabilities::DAC_READ_SEARCH) {
        return Err(Errno::PERM);
    }
    let mut bytes = [0u8; HANDLE_BYTES_MAX as usize];
    let bytes = &mut bytes[..head[0] as usize];
    memory::read_bytes(handle + HEAD_BYTES, bytes).map_err(|_| Errno::FAULT)?;
    let node = node_of(call.front, mount, head[1], bytes)?;
    again(|| {
        let fs = call.front.file_system(mount)?;
        let known = fs.attributes(node).map_err(|_| Errno::NOENT)?;
        let found = Found { node, file_type: known.file_type };
        let flags = OpenFlags::from_bits_retain(flags as u32);
        if flags.contains(OpenFlags::CREATE | OpenFlags::EXCL) && !flags.contains(OpenFlags::PATH) {
            return Err(Errno::EXIST);
        }
        if flags.contains(OpenFlags::CREATE)
            && !flags.contains(OpenFlags::PATH)
            && known.file_type == FileType::Directory
        {
            return Err(Errno::ISDIR);
        }
        open_node(call, mount, found, flags, pipe)
    })
    // There is nothing to walk anew: the inode is gone.
    .map_err(|errno| if errno == Errno::NOENT { Errno::STALE } else { errno })
}

/// The inode that a handle names, if it is one of this volume.
fn node_of(front: &Front, mount: usize, kind: u32, bytes: &[u8]) -> Result<NodeId, Errno> {
    let (Some((identity, rest)), HANDLE_TYPE) = (bytes.split_first_chunk::<8>(), kind) else {
        return Err(Errno::STALE);
    };
    let (Some((number, rest)), true) = (rest.split_first_chunk::<8>(), bytes.len() >= HANDLE_BYTES as usize) else {
        return Err(Errno::STALE);
    };
    let generation = rest.first_chunk::<4>().ok_or(Errno::STALE)?;
    let number = u64::from_le_bytes(*number);
    if u64::from_le_bytes(*identity) != front.file_system(mount)?.identity() || number == 0 {
        return Err(Errno::STALE);
    }
    Ok(NodeId::new(number, u32::from_le_bytes(*generation)))
}
