//! The flags of inodes that `chattr` and `file_getattr` are about (immutable, append-only, no dump, …), by descriptor and by path.

use super::call::{Answer, AtForm, Call, done};
use super::credentials;
use super::status::{AT_EMPTY_PATH, AT_SYMLINK_NOFOLLOW, empty_of, has_unknown, is_pathless, mode_of, name_directory};
use crate::dispatch::Outcome;
use crate::memory;
use crate::number::FILE_SETATTR;
use crate::thread::PathScratch;
use gannet_vfs::namespace::Namespace;
use gannet_vfs::{Errno, FileSystem, FileType, InodeFlags, NodeId};

/// Flags, extent size hints, extents, project: without padding.
const STRUCTURE_BYTES: usize = 24;
const PAGE_BYTES: usize = 4096;

/// Sets the flags to what `change` makes of those that are there.
pub(super) fn set(
    fs: &dyn FileSystem,
    node: NodeId,
    change: impl FnOnce(InodeFlags) -> gannet_vfs::Result<InodeFlags>,
) -> Answer {
    let now = fs.permissions(node).map_err(|error| error.errno())?.flags;
    let wanted = change(now).map_err(|error| error.errno())?;
    Namespace::new(fs, credentials::effective()).set_flags(node, wanted).map_err(|error| error.errno())?;
    done(0)
}

/// Of which files the flags can be asked for: as on the kernel's file systems.
fn check_type(file_type: FileType) -> Result<(), Errno> {
    if matches!(file_type, FileType::Regular | FileType::Directory) { Ok(()) } else { Err(Errno::OPNOTSUPP) }
}

/// `file_getattr`, `file_setattr`: directory, path, structure, its size, flags.
pub(crate) fn by_path(call: &Call<'_>, scratch: &mut PathScratch) -> Answer {
    let [directory, path, address, size, flags, _] = call.arguments;
    if has_unknown(flags, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) || !(STRUCTURE_BYTES..=PAGE_BYTES).contains(&size) {
        return Ok(Outcome::Pass);
    }
    let sets = call.number == FILE_SETATTR;
    let wanted = if sets { Some(read(address, size)?) } else { None };
    let work = |fs: &dyn FileSystem, node, file_type| match wanted {
        Some(wanted) => {
            check_type(file_type)?;
            set(fs, node, |now| now.with_extended(wanted))
        }
        None => {
            check_type(file_type)?;
            let all = fs.attributes(node).map_err(|error| error.errno())?;
            let mut bytes = vec![0u8; size];
            bytes[..8].copy_from_slice(&u64::from(all.flags.extended()).to_le_bytes());
            memory::write_bytes(address, &bytes).map_err(|_| Errno::FAULT)?;
            done(0)
        }
    };
    let mut first = 1u8;
    let is_empty = path == 0 || memory::read_value(path, &mut first).is_ok() && first == 0;
    if flags & AT_EMPTY_PATH != 0
        && is_empty
        && let Some(file) = call.open_file(directory)
    {
        super::data::check_not_path(&file)?;
        return work(call.file_system(&file)?, file.node, file.file_type);
    }
    let mut at = AtForm::new(call.number, call.arguments);
    if is_pathless(&at, flags) {
        return call.by_host_descriptor(directory);
    }
    name_directory(&mut at, flags);
    call.at_path(at, mode_of(flags), empty_of(flags), scratch, |namespace, _, place| {
        let found = place.existing().map_err(|error| error.errno())?;
        work(namespace.fs(), found.node, found.file_type)
    })
}

/// The `FS_XFLAG_*` that there are.
const XFLAGS_KNOWN: u32 = 0x8001_fffb;

/// The flags in a structure, as `fsx_xflags`. Extent size hints and project ids have no meaning here: none or an error.
fn read(address: usize, size: usize) -> Result<u32, Errno> {
    let mut bytes = vec![0u8; size];
    memory::read_bytes(address, &mut bytes).map_err(|_| Errno::FAULT)?;
    let (about, more) = bytes.split_at(STRUCTURE_BYTES);
    if more.iter().any(|byte| *byte != 0) {
        return Err(Errno::TOOBIG);
    }
    let (head, rest) = about.split_at(8);
    let flags = u64::from_le_bytes(head.try_into().map_err(|_| Errno::INVAL)?);
    let flags = u32::try_from(flags).ok().filter(|flags| flags & !XFLAGS_KNOWN == 0).ok_or(Errno::INVAL)?;
    // Flags that mean nothing here are refused before the path is looked at, as the kernel does.
    InodeFlags::empty().with_extended(flags).map_err(|error| error.errno())?;
    if rest.iter().all(|byte| *byte == 0) { Ok(flags) } else { Err(Errno::OPNOTSUPP) }
}
