//! FIFOs of a volume, and what they have in common with Unix sockets ([`super::sockets`]): processes meet there, which only the kernel
//! can do.
//!
//! For each there is a pipe or socket of the kernel's under `/dev/shm`, named by the volume's identity and the inode, for the
//! processes of one user. The program's own instruction opens or connects to it, as that may wait for the other end.

use super::call::{Answer, CWD, Call};
use super::{credentials, users};
use crate::dispatch::Outcome;
use crate::number::*;
use crate::raw::{is_error, syscall};
use crate::thread::PathScratch;
use gannet_vfs::namespace::OpenFlags;
use gannet_vfs::{Errno, FileType, Found, NodeId};

/// The kernel's name for an inode of a volume, ending in zero.
pub(super) fn name_of(call: &Call<'_>, mount: usize, node: NodeId, kind: &str) -> Result<String, Errno> {
    let identity = call.front.file_system(mount)?.identity();
    let user = credentials::effective().user;
    Ok(format!("/dev/shm/gannet-{kind}-{user}-{identity:x}-{}-{}\0", node.number, node.generation))
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
    if let Ok(name) = name_of(call, mount, node, kind) {
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
    const S_IFMT: u32 = 0o170000;
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
    // Another user must not be able to have made it.
    let mut status = [0u64; 18];
    // SAFETY: a path that ends in zero, and room for struct stat.
    let known = unsafe { syscall(LSTAT, [address, status.as_mut_ptr() as usize]) };
    let owner = (status[3] >> 32) as u32;
    let user = users::user_seen(credentials::effective().user);
    if is_error(known) || (status[3] as u32) & S_IFMT != S_IFIFO || owner != user.id || user.is_shared {
        return Err(Errno::ACCESS);
    }
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
    let name = core::str::from_utf8(path.strip_prefix(b"/dev/shm/gannet-fifo-")?).ok()?;
    let mut parts = name.split('-').skip(1);
    let identity = u64::from_str_radix(parts.next()?, 16).ok()?;
    let node = NodeId::new(parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let is_it = |mount: &usize| call.front.file_system(*mount).is_ok_and(|fs| fs.identity() == identity);
    (0..call.front.mounts.len()).find(is_it).map(|mount| (mount, node))
}
