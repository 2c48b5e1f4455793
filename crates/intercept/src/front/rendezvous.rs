//! FIFOs and Unix sockets of a volume: where processes meet, which only the kernel can do.
//!
//! For each there is a pipe or socket of the kernel's under `/dev/shm`, named by the volume's identity and the inode, for the
//! processes of one user. The program's own instruction opens or connects to it, as that may wait for the other end.

use super::call::{Answer, CWD, Call};
use super::credentials;
use super::paths::{AT_FDCWD, Target};
use crate::dispatch::Outcome;
use crate::memory;
use crate::number::*;
use crate::raw::{is_error, syscall};
use crate::thread::PathScratch;
use gannet_vfs::namespace::{Access, LastMode, Namespace, OpenFlags, ResolveFlags};
use gannet_vfs::{Errno, FileType, Found, NodeId};

/// The kernel's name for an inode of a volume, ending in zero.
fn name_of(call: &Call<'_>, mount: usize, node: NodeId, kind: &str) -> Result<String, Errno> {
    let identity = call.front.file_system(mount)?.statistics().map_err(|error| error.errno())?.identity;
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
    if is_error(known) || (status[3] as u32) & S_IFMT != S_IFIFO || owner != credentials::effective().user {
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
    let is_it = |mount: &usize| {
        call.front.file_system(*mount).is_ok_and(|fs| fs.statistics().is_ok_and(|all| all.identity == identity))
    };
    (0..call.front.mounts.len()).find(is_it).map(|mount| (mount, node))
}

const AF_UNIX: u16 = 1;
/// `struct sockaddr_un`, and a zero byte behind the longest path.
const ADDRESS_BYTES: usize = 110;

/// A Unix address with a path, or `None` for any other address.
fn unix_address(address: usize, length: usize) -> Option<[u8; ADDRESS_BYTES + 1]> {
    let mut bytes = [0u8; ADDRESS_BYTES + 1];
    let length = length as u32 as usize;
    if !(3..=ADDRESS_BYTES).contains(&length) || memory::read_bytes(address, &mut bytes[..length]).is_err() {
        return None;
    }
    // A zero first: an abstract name, which is no path.
    (u16::from_le_bytes([bytes[0], bytes[1]]) == AF_UNIX && bytes[2] != 0).then_some(bytes)
}

/// Writes the kernel's address for a socket of a volume; returns its length.
fn put_address(room: &mut [u8], name: &str) -> Result<usize, Errno> {
    let length = 2 + name.len();
    let room = room.get_mut(..length).filter(|_| length <= ADDRESS_BYTES).ok_or(Errno::NAMETOOLONG)?;
    room[..2].copy_from_slice(&AF_UNIX.to_le_bytes());
    room[2..].copy_from_slice(name.as_bytes());
    Ok(length)
}

/// `bind`: makes the socket's inode and binds the kernel's socket.
pub(crate) fn bind(call: &Call<'_>, scratch: &mut PathScratch) -> Answer {
    let [descriptor, address, length, ..] = call.arguments;
    if call.is_ours(descriptor) {
        // The kernel knows that it is no socket.
        return Ok(Outcome::Pass);
    }
    let Some(given) = unix_address(address, length) else { return Ok(Outcome::Pass) };
    let path = &raw const given[2] as usize;
    let none = ResolveFlags::empty();
    let (mount, place) = match call.front.resolve(call.table(), AT_FDCWD, path, LastMode::Parent, none, scratch)? {
        Target::Host => return Ok(Outcome::Pass),
        Target::Place(mount, place) => (mount, place),
        Target::HostPath(_) | Target::Descriptor(_) => return Err(Errno::ADDRNOTAVAIL),
    };
    let namespace = Namespace::new(call.front.file_system(mount)?, credentials::effective());
    let node = namespace.make(&place, FileType::Socket, 0o777, 0, b"").map_err(|error| match error.errno() {
        Errno::EXIST => Errno::ADDRINUSE,
        errno => errno,
    })?;
    let bound = name_of(call, mount, node, "socket").and_then(|name| {
        let mut kernel_address = [0u8; ADDRESS_BYTES];
        let length = put_address(&mut kernel_address, &name)?;
        // SAFETY: a path that ends in zero, and an address of that length.
        let result = unsafe {
            syscall(UNLINK, [name.as_ptr() as usize]);
            syscall(BIND, [descriptor, kernel_address.as_ptr() as usize, length])
        };
        if is_error(result) { Err(Errno::from_raw_os_error(-result as i32)) } else { Ok(Outcome::Done(0)) }
    });
    if bound.is_err() {
        let _ = namespace.unlink(&place);
    }
    bound
}

/// `connect` to a socket of a volume.
pub(crate) fn connect(call: &mut Call<'_>, first: &mut PathScratch, second: &mut PathScratch) -> Answer {
    let [descriptor, address, length, ..] = call.arguments;
    if call.is_ours(descriptor) {
        // The kernel knows that it is no socket.
        return Ok(Outcome::Pass);
    }
    let Some(given) = unix_address(address, length) else { return Ok(Outcome::Pass) };
    let path = &raw const given[2] as usize;
    let none = ResolveFlags::empty();
    let (mount, node) = match call.front.resolve(call.table(), AT_FDCWD, path, LastMode::Follow, none, first)? {
        Target::Host => return Ok(Outcome::Pass),
        Target::Place(mount, place) => {
            let found = place.existing().map_err(|error| error.errno())?;
            if found.file_type != FileType::Socket {
                return Err(Errno::CONNREFUSED);
            }
            (mount, found.node)
        }
        Target::HostPath(_) | Target::Descriptor(_) => return Err(Errno::CONNREFUSED),
    };
    let namespace = Namespace::new(call.front.file_system(mount)?, credentials::effective());
    namespace.check_access(node, Access::WRITE).map_err(|error| error.errno())?;
    let name = name_of(call, mount, node, "socket")?;
    let length = put_address(&mut second.host, &name)?;
    call.passed = Some((CONNECT, [descriptor, second.host.as_ptr() as usize, length, 0, 0, 0]));
    Ok(Outcome::Pass)
}
