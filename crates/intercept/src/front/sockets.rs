//! Unix sockets of a volume: each is an inode there, and a socket of the kernel's that stands for it ([`super::rendezvous`]).

use super::call::{Answer, Call, done};
use super::credentials;
use super::paths::{AT_FDCWD, Target};
use super::rendezvous::{name_of, open_to_user, socket_of};
use crate::dispatch::Outcome;
use crate::memory;
use crate::number::*;
use crate::raw::{is_error, syscall, syscall6};
use crate::thread::PathScratch;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use gannet_vfs::namespace::{Access, LastMode, Namespace, ResolveFlags};
use gannet_vfs::{Errno, FileType};
use xxhash_rust::xxh3::xxh3_64;

const AF_UNIX: u16 = 1;
/// `struct sockaddr_un`, and a zero byte behind the longest path.
const ADDRESS_BYTES: usize = 110;
/// Where the path is in it.
const PATH_AT: usize = 2;

/// A Unix address with a path, ending in zero bytes.
struct Given([u8; ADDRESS_BYTES + 1]);

impl Given {
    /// The address that a program names, or `None` for any other address than a path.
    fn read(address: usize, length: usize) -> Option<Given> {
        let mut bytes = [0u8; ADDRESS_BYTES + 1];
        let length = length as u32 as usize;
        if !(PATH_AT + 1..=ADDRESS_BYTES).contains(&length)
            || memory::read_bytes(address, &mut bytes[..length]).is_err()
        {
            return None;
        }
        // A zero first: an abstract name, which is no path.
        (u16::from_le_bytes([bytes[0], bytes[1]]) == AF_UNIX && bytes[PATH_AT] != 0).then_some(Given(bytes))
    }

    /// The path, without its zero byte.
    fn path(&self) -> &[u8] {
        self.0[PATH_AT..].split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

/// Writes the kernel's address for a socket of a volume; returns its length.
fn put_address(room: &mut [u8], name: &str) -> Result<usize, Errno> {
    let length = PATH_AT + name.len();
    let room = room.get_mut(..length).filter(|_| length <= ADDRESS_BYTES).ok_or(Errno::NAMETOOLONG)?;
    room[..PATH_AT].copy_from_slice(&AF_UNIX.to_le_bytes());
    room[PATH_AT..].copy_from_slice(name.as_bytes());
    Ok(length)
}

/// `bind`: makes the socket's inode and binds the kernel's socket.
pub(crate) fn bind(call: &Call<'_>, scratch: &mut PathScratch) -> Answer {
    let [descriptor, address, length, ..] = call.arguments;
    if call.is_ours(descriptor) {
        // The kernel knows that it is no socket.
        return Ok(Outcome::Pass);
    }
    let Some(given) = Given::read(address, length) else { return Ok(Outcome::Pass) };
    let path = given.path().as_ptr() as usize;
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
        if is_error(result) {
            return Err(Errno::from_raw_os_error(-result as i32));
        }
        open_to_user(&name);
        remember(&name, given.path());
        Ok(Outcome::Done(0))
    });
    if bound.is_err() {
        let _ = namespace.unlink(&place);
    }
    bound
}

/// The kernel's address, put into `room`, of the socket of a volume that an address leads to; `None` if that is the host's.
pub(super) fn address_of(
    call: &Call<'_>,
    address: usize,
    length: usize,
    scratch: &mut PathScratch,
    room: &mut [u8],
) -> Result<Option<usize>, Errno> {
    let Some(given) = Given::read(address, length) else { return Ok(None) };
    let path = given.path().as_ptr() as usize;
    let none = ResolveFlags::empty();
    let (mount, node) = match call.front.resolve(call.table(), AT_FDCWD, path, LastMode::Follow, none, scratch)? {
        Target::Host => return Ok(None),
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
    let name = socket_of(call, mount, node)?;
    let length = put_address(room, &name)?;
    if recall(name.trim_end_matches('\0').as_bytes()).is_none() {
        // It is known by what it was bound to; where another process did that, by this.
        remember(&name, given.path());
    }
    Ok(Some(length))
}

/// `connect`, to a socket of a volume, and `sendto`: the program's own instruction makes the call with the kernel's address.
pub(crate) fn to_address(call: &mut Call<'_>, first: &mut PathScratch, second: &mut PathScratch) -> Answer {
    let position = if call.number == CONNECT { 1 } else { 4 };
    let (address, length) = (call.arguments[position], call.arguments[position + 1]);
    // Of ours the kernel knows that it is no socket.
    if !call.is_ours(call.arguments[0])
        && let Some(length) = address_of(call, address, length, first, &mut second.host)?
    {
        let mut arguments = call.arguments;
        (arguments[position], arguments[position + 1]) = (second.host.as_ptr() as usize, length);
        call.passed = Some((call.number, arguments));
    }
    Ok(Outcome::Pass)
}

/// `getsockname`, `getpeername`: of a socket of a volume what this process bound or connected to, as it was named.
pub(crate) fn name(call: &Call<'_>) -> Answer {
    let [descriptor, address, length_at, ..] = call.arguments;
    if !ANY.load(Ordering::Relaxed) {
        return Ok(Outcome::Pass);
    }
    let (mut whole, mut length) = ([0u8; ADDRESS_BYTES], ADDRESS_BYTES as u32);
    let arguments = [descriptor, whole.as_mut_ptr() as usize, &raw mut length as usize, 0, 0, 0];
    // SAFETY: the program's call, with an address of our own and its length.
    let result = unsafe { syscall6(call.number, arguments) };
    let kernel = if result == 0 { Given::read(whole.as_ptr() as usize, length as usize) } else { None };
    let Some((given, bytes)) = kernel.and_then(|kernel| recall(kernel.path())) else { return Ok(Outcome::Pass) };
    let mut room = 0u32;
    memory::read_value(length_at, &mut room).map_err(|_| Errno::FAULT)?;
    let room = usize::try_from(room as i32).map_err(|_| Errno::INVAL)?;
    let mut named = [0u8; ADDRESS_BYTES];
    named[..PATH_AT].copy_from_slice(&AF_UNIX.to_le_bytes());
    named[PATH_AT..PATH_AT + bytes].copy_from_slice(&given[..bytes]);
    // As the kernel has it: with a zero byte behind the path, and of its whole length told.
    let length = PATH_AT + bytes + 1;
    memory::write_bytes(address, &named[..length.min(room)]).map_err(|_| Errno::FAULT)?;
    memory::write_value(length_at, &(length as u32)).map_err(|_| Errno::FAULT)?;
    done(0)
}

const PATH_BYTES: usize = 112;
const KNOWN_COUNT: usize = 64;

/// What a socket of the kernel's was named by. Odd in `sequence`: being written, in a process that died or was forked meanwhile for ever.
struct Known {
    sequence: AtomicU32,
    bytes: AtomicU32,
    /// Hash of the kernel's name.
    key: AtomicU64,
    path: [AtomicU64; PATH_BYTES / 8],
}

#[unsafe(link_section = ".bss.gannet_large")]
static KNOWN: [Known; KNOWN_COUNT] = [const {
    Known {
        sequence: AtomicU32::new(0),
        bytes: AtomicU32::new(0),
        key: AtomicU64::new(0),
        path: [const { AtomicU64::new(0) }; PATH_BYTES / 8],
    }
}; KNOWN_COUNT];

/// Whether there is any.
static ANY: AtomicBool = AtomicBool::new(false);

/// Where a name may stand, the likeliest place first.
fn places_of(key: u64) -> impl Iterator<Item = &'static Known> {
    (0..KNOWN_COUNT).map(move |step| &KNOWN[(key as usize).wrapping_add(step) % KNOWN_COUNT])
}

/// Notes what a socket was named by. Where there are too many, one of the others is forgotten.
fn remember(name: &str, path: &[u8]) {
    let key = xxh3_64(name.trim_end_matches('\0').as_bytes());
    let is_place =
        |slot: &&Known| slot.key.load(Ordering::Relaxed) == key || slot.sequence.load(Ordering::Relaxed) == 0;
    let Some(slot) = places_of(key).find(is_place).or_else(|| places_of(key).next()) else { return };
    let mut all = [0u8; PATH_BYTES];
    let Some(room) = all.get_mut(..path.len()) else { return };
    room.copy_from_slice(path);
    let before = slot.sequence.load(Ordering::Relaxed);
    let odd = before.wrapping_add(1);
    if before % 2 == 1 || slot.sequence.compare_exchange(before, odd, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return;
    }
    fence(Ordering::Release);
    slot.key.store(key, Ordering::Relaxed);
    slot.bytes.store(path.len() as u32, Ordering::Relaxed);
    for (word, bytes) in slot.path.iter().zip(all.as_chunks().0) {
        word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
    }
    slot.sequence.store(odd.wrapping_add(1), Ordering::Release);
    ANY.store(true, Ordering::Relaxed);
}

/// What a socket of the kernel's was named by, and how many bytes that is.
fn recall(name: &[u8]) -> Option<([u8; PATH_BYTES], usize)> {
    let key = xxh3_64(name);
    let mut used = places_of(key).take_while(|slot| slot.sequence.load(Ordering::Relaxed) != 0);
    let slot = used.find(|slot| slot.key.load(Ordering::Relaxed) == key)?;
    let before = slot.sequence.load(Ordering::Acquire);
    let mut all = [0u8; PATH_BYTES];
    for (word, bytes) in slot.path.iter().zip(all.as_chunks_mut().0) {
        *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
    }
    let (found, bytes) = (slot.key.load(Ordering::Relaxed), slot.bytes.load(Ordering::Relaxed) as usize);
    fence(Ordering::Acquire);
    let same = before % 2 == 0 && before != 0 && slot.sequence.load(Ordering::Relaxed) == before;
    (same && found == key && bytes < ADDRESS_BYTES - PATH_AT).then_some((all, bytes))
}
