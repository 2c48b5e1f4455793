//! A help for volume guards: whether a volume is open in an arena that is not ours: another
//! container's `/dev/shm`, another user's.
//!
//! Each participant keeps a shared lock on one byte of the volume itself, by the open file
//! through which it maps the volume: so the lock lasts as long as the map, whatever happens to
//! the descriptor. The first participant of a new arena asks for the byte alone, and is refused
//! while anybody, in whatever arena, has the volume mapped.
//! (A forked child inherits map and lock: to other arenas the volume stays busy until it ends.)
//!
//! On an overlay file system (overlayfs) a map is one of the file below, and the lock goes with the
//! descriptor, which a program may close (under `gannet run` and in mounts it is kept). So who asks
//! there whether a volume is open looks for participants of its arenas as well (`volume_is_open`).
//! Of arenas that may not be opened, other users', and of those in another `/dev/shm`, the
//! descriptor alone tells.

use crate::error::{Error, Result};
use crate::file::{VolumeIdentity, lies_on_overlay};
use crate::{leftovers, sys};
use rustix::fd::AsFd;

/// Far behind the end of any volume: locks need no byte behind them.
const BYTE: u64 = i64::MAX as u64 - 1;

/// For [`VolumeGuard::first`](crate::VolumeGuard::first): `false` if somebody has the volume open,
/// in an arena that is not this one. `volume` must be open for writing; keep it open, or mapped.
pub fn claim_volume_first(volume: impl AsFd) -> Result<bool> {
    let doing = "lock the volume";
    if !sys::lock_bytes_try(&volume, BYTE, 1).map_err(Error::system(doing))? {
        return Ok(false);
    }
    // Shared from now on. The gate keeps others of this arena out meanwhile; of two arenas that
    // claim at once, one or both are refused.
    sys::share_bytes_try(&volume, BYTE, 1).map_err(Error::system(doing))
}

/// For [`VolumeGuard::joined`](crate::VolumeGuard::joined): joins the others' claim. `false` only
/// if somebody is claiming it for another arena.
pub fn claim_volume_shared(volume: impl AsFd) -> Result<bool> {
    sys::share_bytes_try(&volume, BYTE, 1).map_err(Error::system("lock the volume"))
}

/// Gives up whatever claim was made through this open file, if any.
pub fn unclaim_volume(volume: impl AsFd) -> Result<()> {
    sys::unlock_bytes(&volume, BYTE, 1).map_err(Error::system("unlock the volume"))
}

/// Whether somebody has the volume claimed, in whatever arena, by another open file than this one. `volume` need not be open
/// for writing.
pub fn volume_is_claimed(volume: impl AsFd) -> Result<bool> {
    sys::bytes_locked_by_others(&volume, BYTE, 1).map_err(Error::system("look for locks of the volume"))
}

/// For who is in no arena of the volume: whether somebody has it open. Its claim says so, and where that can have been lost, who lives in the
/// arenas of its file that this process may open.
pub fn volume_is_open(volume: impl AsFd) -> Result<bool> {
    Ok(volume_is_claimed(&volume)? || (lies_on_overlay(rustix::fs::fstatfs(&volume)) && is_open_in_an_arena(volume)?))
}

pub(crate) fn is_open_in_an_arena(volume: impl AsFd) -> Result<bool> {
    let status = rustix::fs::fstat(volume).map_err(Error::system("examine the volume"))?;
    Ok(leftovers::somebody_lives(VolumeIdentity::nonce_of(status.st_dev, status.st_ino)))
}
