//! FIFOs of a volume, and what they have in common with Unix sockets ([`super::sockets`]): processes meet there, which only the kernel
//! can do.
//!
//! For each there is a pipe or socket of the kernel's in a directory under `/dev/shm`, named by the inode, for the processes of one user that share
//! an arena, whose directory it is ([`shm::meeting_directory`]): others could not be kept from names that everybody may make, and would be talked to.
//! The program's own instruction opens or connects to it, as that may wait for the other end.

use super::call::{Answer, CWD, Call};
use super::credentials;
use crate::dispatch::Outcome;
use crate::number::*;
use crate::raw::{is_error, syscall};
use crate::thread::PathScratch;
use gannet_vfs::namespace::OpenFlags;
use gannet_vfs::shared::shm;
use gannet_vfs::{Errno, FileSystem, FileType, Found, NodeId};

/// The kernel's name for an inode of a volume, ending in zero, in the directory of the effective user, which is made if need be.
pub(super) fn name_of(call: &Call<'_>, mount: usize, node: NodeId, kind: &str) -> Result<String, Errno> {
    name_in(call, mount, node, kind, shm::meeting_directory)
}

/// The same, where `directory_of` finds the directory.
fn name_in(
    call: &Call<'_>,
    mount: usize,
    node: NodeId,
    kind: &str,
    directory_of: fn(u32, shm::ArenaIdentity) -> Result<String, i32>,
) -> Result<String, Errno> {
    let arena = call.front.file_system(mount)?.shared().session().arena_identity();
    let directory = directory_of(credentials::effective().user, arena).map_err(Errno::from_raw_os_error)?;
    Ok(format!("{directory}/{kind}-{}-{}\0", node.number, node.generation))
}

/// The kernel's name of the socket that somebody of the effective user has bound to an inode. Nobody goes to another user's, not even root: what
/// stands there is that user's to say, whoever bound the inode.
pub(super) fn socket_of(call: &Call<'_>, mount: usize, node: NodeId) -> Result<String, Errno> {
    const SOCKET: u32 = 0o140000;
    let own = name_of(call, mount, node, "socket")?;
    match mode_of(&own) {
        Ok(mode) if mode & S_IFMT == SOCKET => Ok(own),
        // As where whoever bound it has gone.
        _ => Err(Errno::CONNREFUSED),
    }
}

const S_IFMT: u32 = 0o170000;

/// The mode of what is at a path, which ends in zero.
fn mode_of(path: &str) -> Result<u32, Errno> {
    debug_assert!(path.ends_with('\0'));
    let mut status = [0u64; 18];
    // SAFETY: a path that ends in zero, and room for struct stat.
    let result = unsafe { syscall(LSTAT, [path.as_ptr() as usize, status.as_mut_ptr() as usize]) };
    if is_error(result) {
        return Err(Errno::from_raw_os_error(-result as i32));
    }
    Ok(status[3] as u32)
}

/// Lets the user's processes use what was made under an uncommon umask: who may was decided by the mode of the volume's inode. The name
/// ends in zero.
pub(super) fn open_to_user(name: &str) {
    if mode_of(name).is_ok_and(|mode| mode & 0o600 != 0o600) {
        // SAFETY: a path that ends in zero, in a directory where only the user makes names.
        unsafe { syscall(CHMOD, [name.as_ptr() as usize, 0o600]) };
    }
}

/// A name of an inode was removed. If that is a FIFO or socket and has no other, the kernel's goes too, whichever process of the user
/// made it.
pub(crate) fn removed(call: &Call<'_>, mount: usize, removed: &Found) {
    let kind = match removed.file_type {
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
        _ => return,
    };
    let node = removed.node;
    let has_names = call.front.file_system(mount).and_then(|fs| fs.attributes(node).map_err(|error| error.errno()));
    if has_names.is_ok_and(|all| all.links > 0) {
        return;
    }
    // Where nobody has made one there is nothing to remove.
    if let Ok(name) = name_in(call, mount, node, kind, shm::existing_meeting_directory) {
        // SAFETY: a path that ends in zero.
        unsafe { syscall(UNLINK, [name.as_ptr() as usize]) };
    }
}

/// Opens the pipe that stands for a FIFO.
pub(crate) fn open_pipe(
    call: &mut Call<'_>,
    mount: usize,
    node: NodeId,
    flags: OpenFlags,
    room: &mut PathScratch,
) -> Answer {
    const S_IFIFO: u32 = 0o010000;
    const EEXIST: isize = -17;
    if flags.bits() & 3 == 3 {
        // A pipe has no end for that.
        return Err(Errno::INVAL);
    }
    let path = name_of(call, mount, node, "fifo")?;
    let room = room.host.get_mut(..path.len()).ok_or(Errno::NAMETOOLONG)?;
    room.copy_from_slice(path.as_bytes());
    let address = room.as_ptr() as usize;
    // SAFETY: a path that ends in zero.
    let made = unsafe { syscall(MKNOD, [address, (S_IFIFO | 0o600) as usize, 0]) };
    if is_error(made) && made != EEXIST {
        return Ok(Outcome::Done(made));
    }
    // What is in the directory is of the user, or of root.
    let mode = mode_of(&path)?;
    if mode & S_IFMT != S_IFIFO {
        return Err(Errno::ACCESS);
    }
    open_to_user(&path);
    let flags = flags & !(OpenFlags::CREATE | OpenFlags::EXCL | OpenFlags::TRUNC);
    call.passed = Some((OPENAT, [CWD, address, flags.bits() as usize, 0, 0, 0]));
    Ok(Outcome::Pass)
}

/// The FIFO of a volume that the pipe behind a descriptor stands for.
pub(crate) fn fifo_of(call: &Call<'_>, descriptor: i32) -> Option<(usize, NodeId)> {
    let mut path = Vec::new();
    if !super::paths::place_of_descriptor(descriptor, &mut path) {
        return None;
    }
    let path = path.strip_suffix(b" (deleted)").unwrap_or(&path);
    let (owners, name) = core::str::from_utf8(path.strip_prefix(b"/dev/shm/gannet-meet-")?).ok()?.split_once('/')?;
    let arena = u64::from_str_radix(owners.split_once('-')?.1, 16).ok().filter(|arena| *arena != 0)?;
    let mut parts = name.strip_prefix("fifo-")?.split('-');
    let node = NodeId::new(parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let is_its = |fs: &'static dyn FileSystem| fs.shared().session().arena_identity().0 == arena;
    let is_it = |mount: &usize| call.front.file_system(*mount).is_ok_and(is_its);
    (0..call.front.mounts.len()).find(is_it).map(|mount| (mount, node))
}
