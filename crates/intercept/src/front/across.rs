//! Renames and links between a volume and the host end with EXDEV; what the kernel would find wrong before that is looked for here.

use super::call::Call;
use super::status::{AT_EMPTY_PATH, AT_SYMLINK_NOFOLLOW};
use crate::memory;
use crate::number::NEWFSTATAT;
use crate::raw::{is_error, syscall};
use gannet_vfs::namespace::{Last, Place};
use gannet_vfs::{Errno, FileSystem, FileType};

const AT_SYMLINK_FOLLOW: usize = 0x400;

fn look(directory: usize, path: usize, flags: usize) -> Result<(), Errno> {
    let mut status = [0u64; 18];
    // SAFETY: room for struct stat; the path is the program's, or one of ours that ends with a zero byte.
    let result = unsafe { syscall(NEWFSTATAT, [directory, path, status.as_mut_ptr() as usize, flags]) };
    if is_error(result) { Err(Errno::from_raw_os_error(-result as i32)) } else { Ok(()) }
}

/// What is not there for the kernel may be in a volume, behind a link of the host.
fn unless_in_volume(call: &Call<'_>, directory: usize, path: usize, found: Result<(), Errno>) -> Result<(), Errno> {
    match found {
        Err(Errno::NOENT) if call.front.through_links(call.table(), directory, path, false).is_some() => Ok(()),
        found => found,
    }
}

/// What a path of the host leads to, for a link with these flags: it must exist.
pub(super) fn check_host(call: &Call<'_>, directory: usize, path: usize, flags: usize) -> Result<(), Errno> {
    let nofollow = if flags & AT_SYMLINK_FOLLOW == 0 { AT_SYMLINK_NOFOLLOW } else { 0 };
    unless_in_volume(call, directory, path, look(directory, path, flags & AT_EMPTY_PATH | nofollow))
}

/// The directory that the last component of a path of the host is in: it must exist.
pub(super) fn check_host_parent(call: &Call<'_>, directory: usize, address: usize) -> Result<(), Errno> {
    let mut room = [0u8; 4096];
    let path = match memory::read_string(address, &mut room) {
        Ok([]) => return Err(Errno::NOENT),
        Ok(path) => path,
        Err(gannet_usermem::CStringError::TooLong) => return Err(Errno::NAMETOOLONG),
        Err(_) => return Err(Errno::FAULT),
    };
    let named = path.iter().rposition(|byte| *byte != b'/').map_or(&b""[..], |last| &path[..=last]);
    let end = named.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let mut parent = named[..end].to_vec();
    if path.first() == Some(&b'/') && parent.is_empty() {
        parent.push(b'/');
    }
    parent.extend_from_slice(b".\0");
    unless_in_volume(call, directory, address, look(directory, parent.as_ptr() as usize, 0))
}

/// A name of the host that a link is to make: its directory exists, and it does not.
pub(super) fn check_new_on_host(call: &Call<'_>, directory: usize, path: usize) -> Result<(), Errno> {
    check_host_parent(call, directory, path)?;
    if look(directory, path, AT_SYMLINK_NOFOLLOW).is_ok() { Err(Errno::EXIST) } else { Ok(()) }
}

/// The directory of a place must be one.
pub(super) fn check_parent(fs: &dyn FileSystem, place: &Place<'_>) -> Result<(), Errno> {
    let known = fs.permissions(place.directory).map_err(|error| error.errno())?;
    if known.file_type == FileType::Directory { Ok(()) } else { Err(Errno::NOTDIR) }
}

/// A place where a link is to be made: there is nothing.
pub(super) fn check_new(fs: &dyn FileSystem, place: &Place<'_>) -> Result<(), Errno> {
    check_parent(fs, place)?;
    match place.last {
        Last::Name(name) if fs.lookup(place.directory, name).is_err() => Ok(()),
        _ => Err(Errno::EXIST),
    }
}
