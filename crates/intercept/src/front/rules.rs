//! Opening by rules: `openat2`, whose rules say where a walk may not go, and `open_tree`. What the kernel refuses whatever the path, it refuses itself.

use super::call::{Answer, AtForm, Call, refuse_path};
use super::names::open_with;
use super::status::{AT_EMPTY_PATH, AT_SYMLINK_NOFOLLOW, empty_of};
use crate::dispatch::Outcome;
use crate::memory;
use crate::number::*;
use crate::thread::PathScratch;
use gannet_vfs::Errno;
use gannet_vfs::namespace::{OpenFlags, ResolveFlags};

/// `openat2`.
pub(crate) fn open2(call: &mut Call<'_>, scratch: &mut PathScratch, pipe: &mut PathScratch) -> Answer {
    let [_, _, how, size, ..] = call.arguments;
    let mut words = [0u64; 3];
    if size < 24 || memory::read_value(how, &mut words).is_err() {
        return Ok(Outcome::Pass);
    }
    const RESOLVE_CACHED: u64 = 0x20;
    let Some(resolve) = ResolveFlags::from_bits(words[2] & !RESOLVE_CACHED) else { return Ok(Outcome::Pass) };
    // What the kernel refuses whatever the path, it refuses itself.
    const BENEATH_AND_IN_ROOT: u64 = 0x18;
    const CREATE_OR_TMPFILE: u64 = 0o100 | 0o20000000;
    const FLAGS: u64 = 0o3 | 0o37777700;
    let mode_is_wrong = words[1] != 0 && (words[0] & CREATE_OR_TMPFILE == 0 || words[1] & !0o7777 != 0);
    let both = words[2] & BENEATH_AND_IN_ROOT == BENEATH_AND_IN_ROOT;
    const O_PATH: u64 = 0o10000000;
    const WITH_O_PATH: u64 = O_PATH | 0o200000 | 0o400000 | 0o2000000;
    let flags_are_wrong = words[0] & !FLAGS != 0 || words[0] & O_PATH != 0 && words[0] & !WITH_O_PATH != 0;
    // A cache makes no files and cuts none: the kernel says EAGAIN.
    const CHANGES: u64 = CREATE_OR_TMPFILE | 0o1000;
    let waits = words[2] & RESOLVE_CACHED != 0 && words[0] & CHANGES != 0;
    let both = both || !resolve.is_empty() && is_refused_at_once(call.arguments[1], resolve);
    if resolve.bits() > 0xff || both || mode_is_wrong || flags_are_wrong || waits || has_more(how, size)? {
        return Ok(Outcome::Pass);
    }
    let at = AtForm::new(OPENAT2, call.arguments);
    open_with(call, at, OpenFlags::from_bits_retain(words[0] as u32), words[1] as u32, resolve, scratch, pipe)
}

/// Whether rules forbid the very beginning of a path: its root, or the links of `/proc` that lead to descriptors.
#[cold]
fn is_refused_at_once(address: usize, resolve: ResolveFlags) -> bool {
    let mut room = [0u8; 4096];
    let Ok(path) = memory::read_string(address, &mut room) else { return false };
    let of_links = ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
    path.first() == Some(&b'/') && resolve.contains(ResolveFlags::BENEATH)
        || path.starts_with(b"/proc/self/") && resolve.intersects(of_links)
}

/// `open_tree`: without a clone of the mount it is an open with `O_PATH`.
pub(crate) fn open_tree(call: &mut Call<'_>, scratch: &mut PathScratch, pipe: &mut PathScratch) -> Answer {
    const CLONE: usize = 1;
    const CLOSE_ON_EXEC: usize = 0o2000000;
    const RECURSIVE: usize = 0x8000;
    const NO_AUTOMOUNT: usize = 0x800;
    let [directory, path, flags, ..] = call.arguments;
    let flags = flags as u32 as usize;
    let known = CLONE | CLOSE_ON_EXEC | RECURSIVE | NO_AUTOMOUNT | AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW;
    if flags & !known != 0 || flags & (RECURSIVE | CLONE) == RECURSIVE {
        return Ok(Outcome::Pass);
    }
    if flags & CLONE != 0 {
        let unsupported = |errno| if errno == Errno::NOSYS { Errno::OPNOTSUPP } else { errno };
        return refuse_path(call, directory, path, scratch).map_err(unsupported);
    }
    let mut open_flags = OpenFlags::PATH;
    open_flags.set(OpenFlags::CLOEXEC, flags & CLOSE_ON_EXEC != 0);
    open_flags.set(OpenFlags::NOFOLLOW, flags & AT_SYMLINK_NOFOLLOW != 0);
    let at = AtForm::new(OPEN_TREE, [directory, path, flags, 0, 0, 0]);
    open_with(call, at, open_flags, 0, empty_of(flags), scratch, pipe)
}

/// Whether a structure of a later kernel holds anything that is not known here.
fn has_more(address: usize, size: usize) -> Result<bool, Errno> {
    const KNOWN_BYTES: usize = 24;
    const BYTES_MAX: usize = 4096;
    let mut rest = [0u8; BYTES_MAX];
    let rest = rest.get_mut(..size - KNOWN_BYTES).ok_or(Errno::TOOBIG)?;
    memory::read_bytes(address + KNOWN_BYTES, rest).map_err(|_| Errno::FAULT)?;
    Ok(rest.iter().any(|byte| *byte != 0))
}
