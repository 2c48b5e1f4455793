//! What killed processes left behind in the arenas' directory, and who removes it: whoever is the first or the last of any
//! volume, for all volumes of the same user.
//!
//! * An **arena** without participants is kept for the next who opens the volume; but not if the volume's file is gone
//!   (removed, replaced), says that it is open in another arena, or in none since somebody had found it his and was closing it in this one or all only read, or is not known
//!   for an hour.
//!   To remove one too many costs a recovery, nothing else; but where the volume says that it is closed, and nobody here was closing it, older
//!   content was put into it under the users of the arena, and only that the arena is there tells whoever opens it that they changed it since.
//!   Whoever has a volume alone removes all others of that file; root also other users'.
//! * **Meeting places**: the kernel's pipes and sockets that stand for FIFOs and sockets of a volume
//!   (`fifo-…`, `socket-…` in the directories of an arena, [`crate::meeting`]). They go with the arena: whoever ends or removes it takes them away, and
//!   who comes later what is of no arena that is there. Where one cannot be asked which it is (another user's), nothing is known to be of none.
//!
//! Touches names in [`ARENA_DIRECTORY`] and that directory that have exactly these forms and belong to the user. Errors are of no interest: what
//! cannot be removed now is tried again by the next.

use crate::file::{self, ARENA_DIRECTORY, ArenaPath};
use crate::meeting::MeetingName;
use crate::session::{
    ARENA_ID_AT, ArenaIdentity, CLOSING, MAGIC, MAGIC_AT, VOLUME_DEVICE_AT, VOLUME_INODE_AT, VOLUME_PATH_AT,
    VOLUME_PATH_BYTES_MAX, VOLUME_PATH_LENGTH_AT, VOLUME_WORD_PLACE_AT, WRITERS_AT,
};
use rustix::fd::AsFd;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, Stat};
use rustix::io::Errno;
use std::mem::MaybeUninit;

const UUID_DIGITS: usize = 32;
const NONCE_DIGITS: usize = 16;
const MEETING_KINDS: [&str; 2] = ["fifo-", "socket-"];
/// Age at which an arena that names no volume goes.
const NAMELESS_SECONDS: i64 = 3600;
/// Names looked at in one go; more are left to the next.
const NAMES_MAX: usize = 4096;

/// Removes arenas whose users were all killed and whose volume is gone or is not open in them, and meeting places of arenas that
/// are gone. Returns how many names were removed.
pub fn remove_leftovers() -> usize {
    remove(None, None)
}

/// Likewise, and all arenas without participants of the volume's file that has this nonce
/// ([`VolumeIdentity::nonce`](crate::VolumeIdentity)), other users' as far as this process may: for who knows that it is not open in
/// them. Another user's in a directory with the sticky bit is left alone; it harms nobody, since the volume names another or none.
pub fn remove_leftovers_of(nonce: u64) -> usize {
    remove(Some(nonce), None)
}

/// As [`remove_leftovers`], by who has ended an arena of the user's: its meeting places go in any case.
pub(crate) fn remove_leftovers_behind(ended: ArenaIdentity) -> usize {
    remove(None, Some(ended))
}

/// An arena that is gone, and whose it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Gone {
    uid: u32,
    arena: u64,
}

fn remove(nonce: Option<u64>, ended: Option<ArenaIdentity>) -> usize {
    let uid = crate::user::user_of_process();
    let is_arena = |name: &str| ArenaName::of(name).is_some_and(|arena| arena.uid == uid || nonce == Some(arena.nonce));
    // Others' are root's matter. Whoever may make names could hide one's own behind them else.
    let meeting_of = |name: &str| MeetingName::of(name).filter(|meeting| meeting.uid == uid || uid == 0);
    let Some(all) = names_of_directory(|name| is_arena(name) || meeting_of(name).is_some()) else { return 0 };
    let meetings: Vec<MeetingName> = all.iter().filter_map(|name| meeting_of(name)).collect();
    let mut gone: Vec<Gone> = ended.iter().map(|ended| Gone { uid, arena: ended.0 }).collect();
    let mut removed = 0;
    for name in &all {
        let Some(arena) = ArenaName::of(name) else { continue };
        let path = ArenaPath { path: format!("{ARENA_DIRECTORY}/{name}"), uid: arena.uid };
        if let Some(identity) = remove_arena(&path, nonce == Some(arena.nonce)) {
            removed += 1;
            gone.extend(identity.map(|identity| Gone { uid: arena.uid, arena: identity.0 }));
        }
    }
    removed + remove_meetings(uid, &meetings, &gone)
}

/// Whether somebody has an arena open of the volume's file that has this nonce, whichever user's, as far as this process may look.
pub(crate) fn somebody_lives(nonce: u64) -> bool {
    let is_its = |name: &str| ArenaName::of(name).is_some_and(|arena| arena.nonce == nonce);
    let lives = |name: &String| {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let arena = rustix::fs::open(format!("{ARENA_DIRECTORY}/{name}"), flags, Mode::empty());
        arena.is_ok_and(|arena| file::any_life(&arena).unwrap_or(false))
    };
    names_of_directory(is_its).is_some_and(|names| names.iter().any(lives))
}

/// Removes the meeting places of arenas that are gone.
fn remove_meetings(uid: u32, meetings: &[MeetingName], gone: &[Gone]) -> usize {
    if meetings.is_empty() {
        return 0;
    }
    // Listed behind the meeting places: an arena that had one then is among these, or gone.
    let Some(arenas) = names_of_directory(|name| ArenaName::of(name).is_some()) else { return 0 };
    let (mut there, mut all_are_known) = (Vec::new(), arenas.len() < NAMES_MAX);
    for name in &arenas {
        match identity_at(&format!("{ARENA_DIRECTORY}/{name}")) {
            Ok(identity) => there.push(identity.0),
            Err(Errno::NOENT) => {}
            Err(_) => all_are_known = false,
        }
    }
    let is_left = |meeting: &&MeetingName| is_left(meeting, uid, gone, &there, all_are_known);
    let is_place = |name: &str| MEETING_KINDS.iter().any(|kind| name.starts_with(kind));
    meetings.iter().filter(is_left).filter(|meeting| meeting.remove(is_place)).count()
}

/// Whether a meeting place is of an arena that is gone. What another user's arena said that it was is what that user wanted to be read: of what
/// is there it says nothing, nor of other users' places. Of the user's own, those too that dropped its rights have places of another's.
fn is_left(meeting: &MeetingName, uid: u32, gone: &[Gone], there: &[u64], all_are_known: bool) -> bool {
    let is_it = |gone: &Gone| gone.arena == meeting.arena && (gone.uid == meeting.uid || gone.uid == uid);
    !there.contains(&meeting.arena) && (all_are_known || gone.iter().any(is_it))
}

/// Which arena a file is. Nothing else of it is believed, and its gate not waited for.
fn identity_at(path: &str) -> Result<ArenaIdentity, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    identity_of(rustix::fs::open(path, flags, Mode::empty())?).ok_or(Errno::AGAIN)
}

/// Likewise, of an open one. One that is just being made has none yet.
pub(crate) fn identity_of(arena: impl AsFd) -> Option<ArenaIdentity> {
    let mut bytes = [0u8; 8];
    let is_read = read_exactly(&arena, ARENA_ID_AT, &mut bytes);
    Some(ArenaIdentity(u64::from_le_bytes(bytes))).filter(|identity| is_read && identity.0 != 0)
}

/// Names in [`ARENA_DIRECTORY`] that are wanted.
fn names_of_directory(is_wanted: impl Fn(&str) -> bool) -> Option<Vec<String>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(ARENA_DIRECTORY, flags, Mode::empty()).ok()?;
    Some(names(&directory, is_wanted))
}

/// Names in the directory that are wanted.
pub(crate) fn names(directory: impl AsFd, is_wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let mut buffer = [MaybeUninit::<u8>::uninit(); 8192];
    let mut entries = RawDir::new(directory, &mut buffer);
    let mut names = Vec::new();
    while let Some(Ok(entry)) = entries.next() {
        let Ok(name) = entry.file_name().to_str() else { continue };
        if names.len() < NAMES_MAX && is_wanted(name) {
            names.push(name.to_owned());
        }
    }
    names
}

/// An arena's name, `gannet-UID-UUID-NONCE`.
#[derive(Debug, PartialEq, Eq)]
struct ArenaName<'n> {
    uid: u32,
    uuid: &'n str,
    nonce: u64,
}

impl<'n> ArenaName<'n> {
    fn of(name: &'n str) -> Option<Self> {
        let (owner, rest) = name.strip_prefix("gannet-")?.split_once('-')?;
        let (uuid, nonce) = rest.split_once('-')?;
        let is_hex = |text: &str, digits| text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_hex(uuid, UUID_DIGITS) || !is_hex(nonce, NONCE_DIGITS) {
            return None;
        }
        let uid = owner.parse().ok().filter(|uid: &u32| uid.to_string() == owner)?;
        Some(Self { uid, uuid, nonce: u64::from_str_radix(nonce, 16).ok()? })
    }
}

/// Removes an arena if nobody has it open and its volume is gone, or known not to be open in it; then says which it was, if it said so.
fn remove_arena(path: &ArenaPath, is_known_stale: bool) -> Option<Option<ArenaIdentity>> {
    let gate = path.gate_if_open().ok()??;
    let is_dead = file::any_life(gate.fd()).is_ok_and(|alive| !alive) && path.leads_to(gate.fd()).unwrap_or(false);
    // What the arena says of its volume is asked of one's own alone: others could have any file opened by it.
    let is_stale = || is_known_stale || volume_is_gone(gate.fd()) || is_old_and_nameless(gate.fd());
    let is_removed = is_dead && is_stale() && path.unlink().is_ok();
    is_removed.then(|| identity_of(gate.fd()))
}

/// Whether an arena names no volume (an older version made it, or its maker died early) and nobody has touched it for long.
fn is_old_and_nameless(arena: impl AsFd + Copy) -> bool {
    let mut length = [0u8; 8];
    let nameless = read_exactly(arena, VOLUME_PATH_LENGTH_AT, &mut length) && length == [0; 8];
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec;
    nameless && rustix::fs::fstat(arena).is_ok_and(|status| now.saturating_sub(status.st_mtime) > NAMELESS_SECONDS)
}

/// Whether the volume that the arena's header names is no longer where it was, or says that it is open in another arena (it was opened by
/// others), or in none, and the last one here had found it his and was closing it, or all only read. In doubt it is there.
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
    let is_it =
        |status: &Stat| word(VOLUME_DEVICE_AT) == Some(status.st_dev) && word(VOLUME_INODE_AT) == Some(status.st_ino);
    match rustix::fs::statat(CWD, path.as_slice(), AtFlags::empty()) {
        Ok(status) if !is_it(&status) => return true,
        Ok(status) if FileType::from_raw_mode(status.st_mode) == FileType::RegularFile => {}
        Ok(_) => return false,
        Err(errno) => return matches!(errno, Errno::NOENT | Errno::NOTDIR),
    }
    let Some(word_at) = word(VOLUME_WORD_PLACE_AT).filter(|&at| at != 0) else { return false };
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let Ok(volume) = rustix::fs::open(path.as_slice(), flags, Mode::empty()) else { return false };
    let mut named = [0u8; 8];
    rustix::fs::fstat(&volume).is_ok_and(|status| is_it(&status))
        && read_exactly(&volume, word_at, &mut named)
        && match u64::from_le_bytes(named) {
            // That somebody acted for all is not enough: he may not have looked yet whether it is older content that says so.
            0 => [Some(0), Some(CLOSING)].contains(&word(WRITERS_AT)),
            other => word(ARENA_ID_AT) != Some(other),
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
        let parts = ArenaName { uid: 1000, uuid: "00112233445566778899aabbccddeeff", nonce: 0x0123_4567_89ab_cdef };
        assert_eq!(ArenaName::of(arena), Some(parts));
        let others =
            ["gannet-1000-volume", "gannet-100", "gannet-meet-1000-0123456789abcdef", &arena[..arena.len() - 1]];
        assert!(others.iter().all(|name| ArenaName::of(name).is_none()));
        assert_eq!(ArenaName::of(&arena.replace("-1000-", "-+1000-")), None);
    }

    /// What is known to be there, and what another user's arena that is gone said that it was, decide of directories.
    #[test]
    fn nobody_elses_arena_says_of_a_meeting_place_that_it_is_left() {
        let (root, user, other) = (0, 1000, 1001);
        let of = |uid| MeetingName { uid, arena: 5 };
        let gone = |uid| [Gone { uid, arena: 5 }];
        // Whatever is known of others, what is there is there.
        for (uid, known) in [(root, true), (user, false), (other, true)] {
            assert!(!is_left(&of(user), root, &gone(uid), &[5], known), "{uid}");
        }
        // Where not all can be asked: a planted one says nothing of others' places, and enough of its own user's.
        assert!(!is_left(&of(user), root, &gone(other), &[7], false));
        assert!(is_left(&of(other), root, &gone(other), &[7], false));
        assert!(is_left(&of(user), root, &gone(root), &[7], false));
        assert!(is_left(&of(user), user, &gone(user), &[], false) && !is_left(&of(user), user, &[], &[], false));
        assert!(is_left(&of(user), root, &[], &[7], true));
    }
}
