//! Attributes: what `stat` says, and changing it.
//!
//! Three times have a word of their own on the medium, which operations elsewhere store without an entry in this inode's
//! log: writes in place, changes of the link count, accesses. They count unless the entry that set the time last is later.

use crate::attach::AccessTimes;
use crate::disk::access_error;
use crate::format::BLOCK_BYTES;
use crate::format::entry::{LoggedAttributes, Payload};
use crate::format::slot::{AT_ACCESSED, AT_CHANGED, AT_TOUCHED};
use crate::ops::{Core, Locked, Op, inode_number};
use crate::places::{RECORD_WORDS, RECORDS_BACKED_TOGETHER};
use crate::record::{Record, State};
use crate::write::coarse_now;
use gannet_media::MediumOffset;
use gannet_shm::{Arena, Ordering, Thread};
use gannet_vfs::{
    AttributeChange, Attributes, FileType, InodeFlags, ModeChange, NodeId, Permissions, Result, Time, TimeChange,
};

/// Bytes of the buffer for an attributes entry.
pub(crate) const ATTRIBUTES_ENTRY_BYTES: usize = 128;

/// How far an inode's last change may be ahead of the coarse clock, in nanoseconds, and still be followed: changes of attributes move
/// it by one each within a tick, and a clock is corrected by fractions of a second.
const AHEAD_NS_MAX: i64 = 1_000_000_000;

impl Locked<'_> {
    /// The time of a change of names in this directory: the present, `now`, or the directory's last change where that is ahead of it.
    /// But not where it is far ahead, as a clock that was set back leaves it: what is born with the change takes this time, and is
    /// not to be of the future.
    #[inline]
    pub(crate) fn time_of_names(&self, now: i64) -> i64 {
        let changed = self.record.changed();
        if changed.saturating_sub(now) <= AHEAD_NS_MAX { now.max(changed) } else { now }
    }
}

impl<'s> Op<'s> {
    /// What `stat` says.
    pub(crate) fn attributes(&self, node: NodeId) -> Result<Attributes> {
        self.read_record(node, |record, state| self.attributes_of(node.number as u32, record, state))
    }

    pub(crate) fn attributes_of(&self, inode: u32, record: &Record<'s>, state: State) -> Result<Attributes> {
        let slot = self.slot_word(inode, 0)?;
        let word = |at: u64| self.disk().load(slot + at).map(|word| word as i64);
        let (touched, changed_elsewhere, accessed) = (word(AT_TOUCHED)?, word(AT_CHANGED)?, word(AT_ACCESSED)?);
        let changed = record.changed();
        let is_directory = state.file_type == FileType::Directory;
        let size_bytes = if is_directory { record.entries().saturating_mul(64) } else { record.size() };
        Ok(Attributes {
            node: NodeId::new(inode as u64, state.generation),
            file_type: state.file_type,
            mode: record.mode(),
            links: match (is_directory, record.parent()) {
                (false, _) => record.links(),
                (true, 0) => 0,
                (true, _) => record.links().saturating_add(2),
            },
            owner: record.owner(),
            device: record.device(),
            size_bytes,
            sectors: record.blocks().saturating_mul(BLOCK_BYTES / 512),
            block_bytes: BLOCK_BYTES as u32,
            flags: record.flags(),
            accessed: Time(if accessed >= record.accessed_since() { accessed } else { record.accessed() }),
            modified: Time(if touched >= record.modified_since() { touched } else { record.modified() }),
            changed: Time(changed.max(touched).max(changed_elsewhere)),
            created: Time(record.created()),
        })
    }

    /// The attributes that a log begins with, when what was before is to be forgotten: as they are, whatever words say.
    pub(crate) fn snapshot(&self, locked: &Locked<'s>) -> Result<LoggedAttributes> {
        let all = self.attributes_of(locked.inode, &locked.record, locked.state)?;
        Ok(LoggedAttributes { modified: all.modified.0, accessed: all.accessed.0, ..locked.record.logged() })
    }

    /// Somebody reads: moves the time of access if the rules say so. One word, which the thread's next fence makes durable;
    /// what fails leaves the time as it is. Nothing shared is written while the time need not move.
    pub(crate) fn note_access(&self, node: NodeId) {
        if let Ok(record) = inode_number(node).and_then(|inode| self.record(inode)) {
            let _ = self.move_access_time(node, &record, coarse_now());
        }
    }

    #[cold]
    fn move_access_time(&self, node: NodeId, record: &Record<'s>, now: i64) -> Result<()> {
        const DAY: i64 = 86_400_000_000_000;
        if self.disk().medium().is_read_only() {
            return Ok(());
        }
        self.core.is_as_opened()?;
        let all = self.attributes(node)?;
        let latest = all.modified.0.max(all.changed.0);
        // Not before the last change of attributes, which may have set a time within this very tick of the clock.
        let now = now.max(record.accessed_since());
        if all.flags.contains(InodeFlags::NO_ACCESS_TIME) {
            record.set_access_fresh(now.saturating_add(DAY));
            return Ok(());
        }
        let mut accessed = all.accessed.0;
        let moves =
            self.core.access_times == AccessTimes::Always || accessed <= latest || now.saturating_sub(accessed) >= DAY;
        if moves && accessed != now {
            let at = self.slot_word(node.number as u32, AT_ACCESSED)?;
            self.disk().medium().store_u64(MediumOffset(at), now as u64).map_err(access_error)?;
            accessed = now;
        }
        if accessed > latest {
            record.set_access_fresh(accessed.saturating_add(DAY));
        }
        Ok(())
    }

    /// What a permission check needs.
    pub(crate) fn permissions(&self, node: NodeId) -> Result<Permissions> {
        self.read_record(node, |record, state| Ok(permissions_of(record, state)))
    }

    /// Changes attributes, all or none.
    pub(crate) fn set_attributes(&self, node: NodeId, change: &AttributeChange) -> Result<Attributes> {
        let locked = self.lock(node)?;
        if change.size_bytes.is_some() {
            self.regular(locked.state)?;
        }
        let before = self.attributes_of(locked.inode, &locked.record, locked.state)?;
        let wanted = changed_attributes(&before, &locked.record.logged(), change);
        match (change.size_bytes, &wanted) {
            (Some(size_bytes), wanted) => self.resize(&locked, size_bytes, wanted.as_ref())?,
            (None, Some(logged)) => self.append_attributes(&locked, logged)?,
            (None, None) => {}
        }
        self.collect_some(&locked);
        let after = self.attributes_of(locked.inode, &locked.record, locked.state);
        locked.guard.unlock();
        after
    }

    /// The present, later than every word that must no longer count once all attributes are logged.
    pub(crate) fn time_of_attributes(&self, locked: &Locked<'s>) -> Result<i64> {
        let slot = self.slot_word(locked.inode, 0)?;
        let words = [AT_TOUCHED, AT_CHANGED, AT_ACCESSED].map(|at| self.disk().load(slot + at));
        // A clock that was set back would let an old word override what is set now.
        words.into_iter().try_fold(locked.now(), |time, word| Ok(time.max((word? as i64).saturating_add(1))))
    }

    /// Appends an entry with all attributes, and puts them into the record.
    pub(crate) fn append_attributes(&self, locked: &Locked<'s>, logged: &LoggedAttributes) -> Result<()> {
        let time = self.time_of_attributes(locked)?;
        self.append(locked, time, &Payload::Attributes(*logged), &mut [0; ATTRIBUTES_ENTRY_BYTES])?;
        locked.record.set_logged(logged, time);
        Ok(())
    }
}

/// The words of an inode's record, where there is memory behind them: what has none must not be touched.
#[inline(always)]
fn backed_record<'s>(core: &Core, arena: &'s Arena, node: NodeId) -> Option<Record<'s>> {
    let places = &core.places;
    let inode = u32::try_from(node.number).ok()?;
    let record = places.record(inode);
    let group = node.number / RECORDS_BACKED_TOGETHER;
    let backed = places.has_record(inode)
        && arena
            .word(places.records.start.add(group / 64 * 8))
            .is_ok_and(|word| word.load(Ordering::Acquire) >> (group % 64) & 1 != 0);
    if backed { arena.words(record, RECORD_WORDS).ok().map(Record::new) } else { None }
}

/// Whether an access need not move the inode's time of access, as far as one word says so.
#[inline]
pub(crate) fn access_is_fresh(core: &Core, arena: &Arena, node: NodeId) -> bool {
    match core.access_times {
        AccessTimes::Never => true,
        AccessTimes::Always => false,
        AccessTimes::Relative => {
            backed_record(core, arena, node).is_some_and(|record| coarse_now() < record.access_fresh_until())
        }
    }
}

/// Whether the inode has a name: `true` is certain, for the moment. Who has just given up its last use under the lock that users are
/// counted under may rely on it: a remover takes the last name before it asks there for users, and frees what has none.
#[inline]
pub(crate) fn is_named(core: &Core, arena: &Arena, node: NodeId) -> bool {
    backed_record(core, arena, node).is_some_and(|record| match record.state() {
        Some(state) if state.generation == node.generation => match state.file_type {
            FileType::Directory => record.parent() != 0,
            _ => record.links() != 0,
        },
        _ => false,
    })
}

/// Whether the inode lives: `true` is certain, and stays so for who has become its user under the lock that users are counted
/// under. Who holds the inode's lock may be freeing it; who takes it later finds the user.
#[inline]
pub(crate) fn is_alive(core: &Core, thread: &Thread<'_>, node: NodeId) -> bool {
    let Some(record) = backed_record(core, thread.arena(), node) else { return false };
    matches!(thread.read_begin(core.places.record(node.number as u32)), Ok(Some(_)))
        && record.state().is_some_and(|state| state.generation == node.generation)
}

/// Whether the inode's stamp ([`Op::stamp`]) is still this one.
#[inline]
pub(crate) fn has_stamp(core: &Core, thread: &Thread<'_>, node: NodeId, stamp: u64) -> bool {
    let places = &core.places;
    u32::try_from(node.number).is_ok_and(|inode| {
        backed_record(core, thread.arena(), node).is_some()
            && matches!(thread.read_begin(places.record(inode)), Ok(Some(now)) if now == stamp)
    })
}

/// Whether the inode has set-id bits or capabilities, or may have: `false` is certain, for the moment. Of extended attributes only their number
/// is looked at.
#[inline]
pub(crate) fn may_have_privileges(core: &Core, arena: &Arena, node: NodeId) -> bool {
    let Some(record) = backed_record(core, arena, node) else { return true };
    let Some(state) = record.state().filter(|state| state.generation == node.generation) else { return true };
    record.mode() & 0o6000 != 0 || record.xattrs() > u64::from(state.has_access_list)
}

/// The attributes after a change, or `None` if there is nothing to log.
fn changed_attributes(
    before: &Attributes,
    logged: &LoggedAttributes,
    change: &AttributeChange,
) -> Option<LoggedAttributes> {
    let now = coarse_now();
    let pick = |change: TimeChange, old: Time| match change {
        TimeChange::Keep => old.0,
        TimeChange::Now => now,
        TimeChange::Set(time) => time.0,
    };
    // A change of nothing is a change all the same: `chown` of neither owner nor group.
    let only_size = AttributeChange { size_bytes: change.size_bytes, ..Default::default() };
    if *change == only_size && change.size_bytes.is_some() {
        return None;
    }
    let mode = match change.mode {
        ModeChange::Set(mode) => mode & 0o7777,
        ModeChange::Keep => before.mode,
        // On a directory the bits mean something else.
        ModeChange::DropSetId if before.file_type == FileType::Directory => before.mode,
        ModeChange::DropSetId => {
            let group = if before.mode & 0o010 != 0 { 0o2000 } else { 0 };
            before.mode & !(0o4000 | group)
        }
    };
    Some(LoggedAttributes {
        mode,
        flags: change.flags.unwrap_or(before.flags),
        owner: gannet_vfs::Owner {
            user: change.user.unwrap_or(before.owner.user),
            group: change.group.unwrap_or(before.owner.group),
        },
        size_bytes: logged.size_bytes,
        modified: match change.modified {
            // A new size is a change of the data.
            TimeChange::Keep if change.size_bytes.is_some() => now,
            modified => pick(modified, before.modified),
        },
        accessed: pick(change.accessed, before.accessed),
    })
}

/// What a permission check needs, of a record that is locked, or validated behind it.
pub(crate) fn permissions_of(record: &Record<'_>, state: State) -> Permissions {
    Permissions {
        file_type: state.file_type,
        mode: record.mode(),
        owner: record.owner(),
        has_access_list: state.has_access_list,
        flags: record.flags(),
    }
}
