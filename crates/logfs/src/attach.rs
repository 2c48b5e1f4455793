//! Opening and closing a volume: the first participant recovers it or finds its saved maps, the last one saves them (`closing`).
//!
//! When everybody was killed, the next one goes on with their arena if the volume still names it: then nothing needs recovery.
//!
//! An open volume names its arena in the state block, and every participant claims the volume itself: who finds it claimed
//! and no arena (another container's `/dev/shm`) is refused.

use crate::adopt::LeftBehind;
use crate::closing::{self, Closed};
use crate::disk::{Disk, read_superblock};
use crate::format::geometry::Geometry;
use crate::format::state::{ADOPTIONS_AT, ARENA_AT, CLEAN_AT, is_closed, is_repairing};
use crate::index::NODE_WORDS;
use crate::ops::{Core, Op, Users, shared_error};
use crate::places::{CONTROL_CLOSED, CONTROL_EPOCH, CONTROL_SUSPECTS, CONTROL_UNCERTAIN, Places, SUSPECTS_MAX};
use crate::reap::EngineReaper;
use crate::recover::{self, RecoveryReport};
use crate::shares::Shares;
use crate::span::open_together;
use crate::storage::Storage;
use gannet_shm::{ArenaIdentity, ArenaLayout, Ordering, ReapStage, Session, VolumeIdentity};
use gannet_vfs::shared::{Shared, SharedLimits};
use gannet_vfs::{Errno, Error, NodeId, Result, Time};
use std::sync::Arc;

/// When reading moves the time of access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessTimes {
    /// When it is not later than the times of modification and change, or a day old (`relatime`).
    #[default]
    Relative,
    /// Never (`noatime`).
    Never,
    /// With every read (`strictatime`).
    Always,
}

/// How a volume is opened.
pub struct AttachOptions {
    /// Bound on the memory of all indexes, in bytes; when it is used up the indexes not used for longest are dropped. Whoever
    /// opens the volume first decides, for all who join.
    pub index_bytes_max: u64,
    /// Data of files without a flag of their own is written copy-on-write, whatever the volume says; or in place; or as it says.
    pub copy_on_write: Option<bool>,
    /// When reading moves the time of access.
    pub access_times: AccessTimes,
    /// Threads that recovery may use; 0: as many as there are processors.
    pub threads: usize,
    /// Who has inodes open.
    pub users: Box<dyn Users>,
}

/// What is found in the volume's file is not what those opened who have the volume open.
pub(crate) const OTHER_CONTENT: Error =
    Error::because(Errno::UCLEAN, "other content was put into the volume's file while the volume was open");

const NODE_BYTES: u64 = NODE_WORDS as u64 * 8;
/// More than 512 GiB of indexes there cannot be: an arena has an end.
const INDEX_BYTES_MAX: u64 = 1 << 39;

/// The layout of the arena of a volume.
pub(crate) fn arena_layout(geometry: &Geometry, index_bytes_max: u64) -> ArenaLayout {
    // More than this a volume of this size never needs: two nodes for each inode.
    let useful = geometry.inodes().saturating_mul(2 * NODE_BYTES).saturating_add(4 << 20).min(INDEX_BYTES_MAX);
    let layout = Places::layout(geometry, index_bytes_max.clamp(64 * NODE_BYTES, useful));
    Shared::layout(Storage::layout(layout, geometry), &SharedLimits::default())
}

/// Puts the engine together over a session that has just been made.
pub(crate) fn assemble(disk: Disk, session: &Arc<Session>, options: AttachOptions) -> Result<(Arc<Core>, Arc<Shared>)> {
    let places = Places::of(session.arena(), disk.geometry())?;
    let space = Storage::of(session.arena(), disk.geometry())?.on(&disk);
    let copy_on_write = options.copy_on_write.unwrap_or(disk.superblock().copy_on_write);
    let shared = Shared::new(session.clone(), &SharedLimits::default())?;
    let (users, other_users) = (shared.inode_users(), Arc::from(options.users));
    let access_times = options.access_times;
    let writable = std::sync::OnceLock::new();
    let arena = arena_of(session);
    let core = Arc::new(Core { disk, places, space, copy_on_write, access_times, users, other_users, writable, arena });
    session.register_reaper(ReapStage::Medium, Arc::new(EngineReaper { core: core.clone() }));
    Ok((core, shared))
}

/// What the first participant does: the maps of free space, and the medium's note that the volume is open.
/// `trusts_maps`: what a clean detach left of them counts, if there was one.
pub(crate) fn open_first(
    core: &Core,
    session: &Session,
    arena: ArenaIdentity,
    threads: usize,
    trusts_maps: bool,
) -> Result<Option<RecoveryReport>> {
    let disk = &core.disk;
    disk.refresh_epoch()?;
    if is_repairing(disk.load(CLEAN_AT)?) {
        // Recovery would free what the repair can still give back.
        let half_done = "a repair of the volume was cut short; `gannet fsck --repair` goes on with it";
        return Err(Error::because(Errno::UCLEAN, half_done));
    }
    core.places.reserve(session.arena())?;
    core.space.reserve_controls(session.arena())?;
    let blocks = core.space.blocks_in(session.arena())?;
    let inodes = core.space.inodes_in(session.arena())?;
    let shares = Shares::of(&core.places, session.arena())?;
    if !disk.medium().is_read_only() {
        open_together(disk, opening_number(arena.0))?;
    }
    let closed = if trusts_maps { Closed::find(disk)? } else { None };
    let report = match closed {
        Some(closed) => {
            let clean = closed.summary.clean_word(disk.key());
            session.word(core.places.control(CONTROL_CLOSED)).map_err(shared_error)?.store(clean, Ordering::Relaxed);
            closed.leave(&blocks, &inodes);
            shares.load(&closed.shares)?;
            None
        }
        None => {
            recover::refuse_read_only(disk)?;
            core.space.reserve(session.arena())?;
            // Asked for only here: to know the number of processors takes a dozen system calls.
            let threads = match threads {
                0 => std::thread::available_parallelism().map_or(1, usize::from),
                threads => threads,
            };
            let recovered = recover::recover(disk, threads)?;
            blocks.load(recovered.blocks.words().map(|word| !word));
            inodes.load(recovered.inodes.words().map(|word| !word));
            shares.load(&recovered.shares)?;
            core.space.take_never_free(session.arena())?;
            Some(recovered.report)
        }
    };
    if !disk.medium().is_read_only() {
        session.note_writer();
        let mut commit = disk.begin();
        commit.store(CLEAN_AT, 0)?;
        // Unnoticed [flush]: what a power loss takes, it takes with the arena.
        commit.store(ARENA_AT, arena.0)?;
        // Unnoticed [store, flush]: only who adopts the arena asks for it, and these tests are alone with theirs (`handover` is not).
        commit.store(ADOPTIONS_AT, 0)?;
        let _ = commit.fence();
    }
    epoch_word(core, session)?.store(disk.epoch() as u64, Ordering::Relaxed);
    Ok(report)
}

/// What the medium names the arena by: a process's own has no identity.
pub(crate) fn arena_of(session: &Session) -> ArenaIdentity {
    match session.path() {
        Some(_) => session.arena_identity(),
        None => ArenaIdentity(1),
    }
}

/// A number that no other opening of a volume has.
pub(crate) fn opening_number(arena: u64) -> u64 {
    arena.rotate_left(32) ^ Time::now().0 as u64
}

fn epoch_word<'s>(core: &Core, session: &'s Session) -> Result<&'s gannet_shm::Word> {
    session.word(core.places.control(CONTROL_EPOCH)).map_err(shared_error)
}

/// Frees inodes without names whose users were killed: nobody can come back to them.
fn free_abandoned(core: &Core, session: &Session, shared: &Shared) -> Result<()> {
    let op = Op::begin(core, session.thread().map_err(shared_error)?)?;
    let mut outcome = Ok(());
    let mut free = |node: NodeId| {
        if outcome.is_ok() {
            outcome = op.retire(node);
        }
    };
    shared.forget_everybody(&mut free)?;
    let suspects = session.arena().words(core.places.control(CONTROL_SUSPECTS), SUSPECTS_MAX).map_err(shared_error)?;
    for suspect in suspects.iter().map(|word| word.load(Ordering::Relaxed)).filter(|&suspect| suspect != 0) {
        free(NodeId::new(suspect >> 32, suspect as u32));
    }
    outcome
}

/// What the last participant does: saves the maps, unless somebody died in a way that left doubt.
pub(crate) fn close_last(core: &Core, session: &Session, shared: Option<&Shared>) -> Result<()> {
    let disk = &core.disk;
    if disk.medium().is_read_only() {
        return Ok(());
    }
    // Of what cannot be examined nothing is known.
    if disk.medium().is_truncated() {
        return Err(Error::because(Errno::IO, "the volume's file was made shorter while the volume was open"));
    }
    if !LeftBehind::of(disk, session, arena_of(session))?.is_named()? {
        return Err(replaced(disk));
    }
    session.note_closing();
    let abandoned = shared.map_or(Ok(()), |shared| free_abandoned(core, session, shared));
    let op = Op::begin(core, session.thread().map_err(shared_error)?)?;
    op.write_back_left()?;
    op.empty_all_limbo()?;
    if !is_uncertain(core, session)? && abandoned.is_ok() {
        closing::save(core, session)?;
    }
    let mut commit = disk.begin();
    // Unnoticed [store, flush]: as where it was set.
    commit.store(ARENA_AT, 0)?;
    // With the word of `save`.
    let _ = commit.fence();
    sync(disk)
}

/// Whether somebody died inside an operation since all was counted: something may be free that does not count as free.
pub(crate) fn is_uncertain(core: &Core, session: &Session) -> Result<bool> {
    let word = session.word(core.places.control(CONTROL_UNCERTAIN)).map_err(shared_error)?;
    Ok(word.load(Ordering::Relaxed) != 0)
}

fn sync(disk: &Disk) -> Result<()> {
    disk.medium().sync().map_err(|_| Error::because(Errno::IO, "the volume's file cannot be synced"))
}

/// Other bytes are in the volume's file than were opened: a copy was put there meanwhile, of this volume or another. What the arena says is not
/// true of them, and what operations under way stored then may be in them: the next attach recovers them. Unless they are of a volume that
/// was not closed, which is recovered all the same, or used by somebody.
#[cold]
fn replaced(disk: &Disk) -> Error {
    let recovered_next = || -> Result<()> {
        let (superblock, named) = (read_superblock(disk.medium())?, disk.load(ARENA_AT)?);
        let is_closed = is_closed(disk.load(CLEAN_AT)?);
        if is_closed && (superblock.uuid == disk.superblock().uuid || named == 0) {
            let mut commit = disk.begin();
            commit.store(CLEAN_AT, 0)?; // Unmet: nobody but a test puts other bytes there.
            commit.store(ARENA_AT, 0)?; // Unmet: as above.
            let _ = commit.fence(); // Unmet: as above.
            sync(disk)?;
        }
        Ok(())
    };
    match recovered_next() {
        Ok(()) => OTHER_CONTENT,
        Err(error) => error,
    }
}

/// Whether all who had the volume on this medium open were killed, and the next can go on with their arena.
pub fn is_left_open(medium: &gannet_media::Medium) -> bool {
    let Ok(disk) = Disk::open(medium.clone()) else { return false };
    disk.load(ARENA_AT).is_ok_and(|arena| arena != 0) && Session::is_left_behind(identity(&disk)).unwrap_or(false)
}

/// Removes the arenas that killed users of this medium left behind, other users' as far as that is allowed: for who has repaired or
/// made a volume there, which is open in none of them. Returns how many.
pub fn remove_left_open(medium: &gannet_media::Medium) -> usize {
    gannet_shm::remove_leftovers_of(nonce(medium))
}

/// Which volume an arena belongs to: its identifier and the file that holds it, so that a copy has another.
pub(crate) fn identity(disk: &Disk) -> VolumeIdentity {
    VolumeIdentity { uuid: disk.superblock().uuid, nonce: nonce(disk.medium()) }
}

/// What tells a volume's file from others.
fn nonce(medium: &gannet_media::Medium) -> u64 {
    medium.identity().map_or(0, |file| VolumeIdentity::nonce_of(file.device, file.inode))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::geometry::{BLOCKS_MAX, BLOCKS_MIN};

    #[test]
    fn volumes_of_every_size_have_an_arena() {
        for blocks in [BLOCKS_MIN, BLOCKS_MIN + 1, 1 << 20, 1 << 31, BLOCKS_MAX - 1, BLOCKS_MAX] {
            for geometry in [Geometry::of(blocks), Geometry::with_large_chunks(blocks)] {
                for index_bytes_max in [0, 1 << 30, u64::MAX] {
                    let layout = arena_layout(&geometry.unwrap(), index_bytes_max);
                    assert!(layout.bytes().is_ok(), "{blocks} blocks, {index_bytes_max} bytes: {:?}", layout.bytes());
                }
            }
        }
    }
}
