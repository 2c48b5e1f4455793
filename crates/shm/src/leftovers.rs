//! What killed processes left behind in the arenas' directory, and who removes it: whoever is the first or the last of any
//! volume, for all volumes of the same user.
//!
//! * An **arena** without participants is kept for the next who opens the volume; but not if the volume's file is gone
//!   (removed, replaced), or not known for an hour. To remove one too many costs a recovery, nothing else.
//! * **Meeting places**: the kernel's pipes and sockets that stand for FIFOs and sockets of a volume
//!   (`gannet-fifo-UID-VOLUME-…`, `gannet-socket-…`). They go when no arena of their volume is left.
//!
//! Touches names in [`ARENA_DIRECTORY`] that have exactly these forms and belong to the user. Errors are of no interest: what
//! cannot be removed now is tried again by the next.

use crate::file::{self, ARENA_DIRECTORY, ArenaPath};
use crate::session::{
    MAGIC, MAGIC_AT, VOLUME_DEVICE_AT, VOLUME_INODE_AT, VOLUME_PATH_AT, VOLUME_PATH_BYTES_MAX, VOLUME_PATH_LENGTH_AT,
};
use rustix::fd::AsFd;
use rustix::fs::{CWD, Mode, OFlags, RawDir};
use rustix::io::Errno;
use std::mem::MaybeUninit;

const UUID_DIGITS: usize = 32;
const NONCE_DIGITS: usize = 16;
/// Digits of the identifier that a meeting place names, which are the first of the volume's UUID, backwards by bytes.
const VOLUME_DIGITS: usize = 16;
const MEETING_KINDS: [&str; 2] = ["gannet-fifo-", "gannet-socket-"];
/// Age at which an arena that names no volume goes.
const NAMELESS_SECONDS: i64 = 3600;
/// Names looked at in one go; more are left to the next.
const NAMES_MAX: usize = 4096;

/// Removes arenas whose users were all killed and whose volume is gone, and meeting places of volumes that nobody has open.
/// Returns how many names were removed.
pub fn remove_leftovers() -> usize {
    let uid = rustix::process::geteuid().as_raw();
    let Some(names) = names(uid) else { return 0 };
    let mut removed = 0;
    let mut volumes: Vec<String> = Vec::new();
    for name in &names {
        let Some(uuid) = uuid_of_arena(name, uid) else { continue };
        if remove_arena(&format!("{ARENA_DIRECTORY}/{name}"), uid) {
            removed += 1;
        } else {
            volumes.push(uuid.to_owned());
        }
    }
    for name in &names {
        if let Some(start) = volume_of_meeting_place(name, uid)
            && !volumes.iter().any(|uuid| uuid.starts_with(&start))
        {
            removed += usize::from(rustix::fs::unlink(format!("{ARENA_DIRECTORY}/{name}")).is_ok());
        }
    }
    removed
}

/// Names in the directory that can be ours.
fn names(uid: u32) -> Option<Vec<String>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(ARENA_DIRECTORY, flags, Mode::empty()).ok()?;
    let mut buffer = [MaybeUninit::<u8>::uninit(); 8192];
    let mut entries = RawDir::new(directory, &mut buffer);
    let mut names = Vec::new();
    while let Some(Ok(entry)) = entries.next() {
        let Ok(name) = entry.file_name().to_str() else { continue };
        let wanted = name.starts_with("gannet-")
            && (uuid_of_arena(name, uid).is_some() || volume_of_meeting_place(name, uid).is_some());
        if wanted && names.len() < NAMES_MAX {
            names.push(name.to_owned());
        }
    }
    Some(names)
}

/// The UUID in an arena's name, `gannet-UID-UUID-NONCE`.
fn uuid_of_arena(name: &str, uid: u32) -> Option<&str> {
    let rest = name.strip_prefix("gannet-")?.strip_prefix(&uid.to_string())?.strip_prefix('-')?;
    let (uuid, nonce) = rest.split_once('-')?;
    let is_hex = |text: &str, digits| text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_hex(uuid, UUID_DIGITS) && is_hex(nonce, NONCE_DIGITS)).then_some(uuid)
}

/// How the UUID of a meeting place's volume begins. Volumes without an identifier (in a process's memory) have no arena that
/// says whether anybody uses them.
fn volume_of_meeting_place(name: &str, uid: u32) -> Option<String> {
    let rest = MEETING_KINDS.iter().find_map(|kind| name.strip_prefix(kind))?;
    let rest = rest.strip_prefix(&uid.to_string())?.strip_prefix('-')?;
    let (volume, _) = rest.split_once('-')?;
    let identifier = u64::from_str_radix(volume, 16).ok().filter(|identifier| *identifier != 0)?;
    let start: String = identifier.to_le_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    debug_assert_eq!(start.len(), VOLUME_DIGITS);
    Some(start)
}

/// Removes an arena if nobody has it open and its volume is gone.
fn remove_arena(path: &str, uid: u32) -> bool {
    let path = ArenaPath { path: path.to_owned(), uid };
    let Ok(Some(gate)) = path.gate_if_open() else { return false };
    let is_dead = file::any_life(gate.fd()).is_ok_and(|alive| !alive) && path.leads_to(gate.fd()).unwrap_or(false);
    is_dead && (volume_is_gone(gate.fd()) || is_old_and_nameless(gate.fd())) && path.unlink().is_ok()
}

/// Whether an arena names no volume (an older version made it, or its maker died early) and nobody has touched it for long.
fn is_old_and_nameless(arena: impl AsFd + Copy) -> bool {
    let mut length = [0u8; 8];
    let nameless = read_exactly(arena, VOLUME_PATH_LENGTH_AT, &mut length) && length == [0; 8];
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec;
    nameless && rustix::fs::fstat(arena).is_ok_and(|status| now.saturating_sub(status.st_mtime) > NAMELESS_SECONDS)
}

/// Whether the volume that the arena's header names is no longer where it was. In doubt it is there.
fn volume_is_gone(arena: impl AsFd + Copy) -> bool {
    let word = |at: u64| {
        let mut bytes = [0u8; 8];
        read_exactly(arena, at, &mut bytes).then(|| u64::from_le_bytes(bytes))
    };
    let Some(length) = word(VOLUME_PATH_LENGTH_AT).filter(|length| (1..=VOLUME_PATH_BYTES_MAX).contains(length)) else {
        return false;
    };
    let mut path = vec![0u8; length as usize];
    if word(MAGIC_AT) != Some(MAGIC) || !read_exactly(arena, VOLUME_PATH_AT, &mut path) {
        return false;
    }
    match rustix::fs::statat(CWD, path, rustix::fs::AtFlags::empty()) {
        Ok(status) => word(VOLUME_DEVICE_AT) != Some(status.st_dev) || word(VOLUME_INODE_AT) != Some(status.st_ino),
        Err(errno) => matches!(errno, Errno::NOENT | Errno::NOTDIR),
    }
}

fn read_exactly(fd: impl AsFd, at: u64, bytes: &mut [u8]) -> bool {
    rustix::io::pread(fd, &mut *bytes, at) == Ok(bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_these_forms_are_ours() {
        let arena = "gannet-1000-00112233445566778899aabbccddeeff-0123456789abcdef";
        assert_eq!(uuid_of_arena(arena, 1000), Some("00112233445566778899aabbccddeeff"));
        let others = ["gannet-1000-volume", "gannet-100", "gannet-fifo-1000-1-2-3", &arena[..arena.len() - 1]];
        assert!(others.iter().all(|name| uuid_of_arena(name, 1000).is_none()));
        assert_eq!(uuid_of_arena(arena, 100), None);
        let fifo =
            format!("gannet-fifo-1000-{:x}-17-1", u64::from_le_bytes([0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77]));
        assert_eq!(volume_of_meeting_place(&fifo, 1000).as_deref(), Some(&arena[12..28]));
        for other in ["gannet-fifo-1000-0-17-1", "gannet-fifo-10-1-17-1", "gannet-fifo-1000-zz-1", arena] {
            assert_eq!(volume_of_meeting_place(other, 1000), None);
        }
    }
}
