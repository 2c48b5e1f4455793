//! Attributes: what `stat` says, and changing it.
//!
//! Three times have a word of their own on the medium, which operations elsewhere store without an entry in this inode's
//! log: writes in place, changes of the link count, accesses. They count where they are later than what the log says.

use crate::format::BLOCK_BYTES;
use crate::format::entry::{LoggedAttributes, Payload};
use crate::format::slot::{AT_ACCESSED, AT_CHANGED, AT_TOUCHED};
use crate::ops::{Locked, Op};
use crate::record::{Record, State};
use crate::write::coarse_now;
use gannet_vfs::{AttributeChange, Attributes, FileType, ModeChange, NodeId, Permissions, Result, Time, TimeChange};

/// Bytes of the buffer for an attributes entry.
pub(crate) const ATTRIBUTES_ENTRY_BYTES: usize = 128;

impl<'s> Op<'s> {
    /// What `stat` says.
    pub(crate) fn attributes(&self, node: NodeId) -> Result<Attributes> {
        self.read_record(node, |record, state| self.attributes_of(node.number as u32, record, state))
    }

    fn attributes_of(&self, inode: u32, record: &Record<'s>, state: State) -> Result<Attributes> {
        let slot = self.slot_word(inode, 0)?;
        let word = |at: u64| self.disk().load(slot + at).map(|word| word as i64);
        let (touched, changed_elsewhere, accessed) = (word(AT_TOUCHED)?, word(AT_CHANGED)?, word(AT_ACCESSED)?);
        let changed = record.changed();
        let is_directory = state.file_type == FileType::Directory;
        let size_bytes = if is_directory { record.entries() * 64 } else { record.size() };
        Ok(Attributes {
            node: NodeId::new(inode as u64, state.generation),
            file_type: state.file_type,
            mode: record.mode(),
            links: match (is_directory, record.parent()) {
                (false, _) => record.links(),
                (true, 0) => 0,
                (true, _) => 2 + record.links(),
            },
            owner: record.owner(),
            device: record.device(),
            size_bytes,
            sectors: record.blocks() * (BLOCK_BYTES / 512),
            block_bytes: BLOCK_BYTES as u32,
            flags: record.flags(),
            accessed: Time(if accessed > changed { accessed } else { record.accessed() }),
            modified: Time(if touched > changed { touched } else { record.modified() }),
            changed: Time(changed.max(touched).max(changed_elsewhere)),
            created: Time(record.created()),
        })
    }

    /// What a permission check needs.
    pub(crate) fn permissions(&self, node: NodeId) -> Result<Permissions> {
        self.read_record(node, |record, state| {
            Ok(Permissions {
                file_type: state.file_type,
                mode: record.mode(),
                owner: record.owner(),
                has_access_list: state.has_access_list,
                flags: record.flags(),
            })
        })
    }

    /// Changes attributes, all or none.
    pub(crate) fn set_attributes(&self, node: NodeId, change: &AttributeChange) -> Result<Attributes> {
        let locked = self.lock(node)?;
        if let Some(size_bytes) = change.size_bytes {
            self.regular(locked.state)?;
            self.resize(&locked, size_bytes)?;
        }
        let before = self.attributes_of(locked.inode, &locked.record, locked.state)?;
        let wanted = changed_attributes(&before, &locked.record.logged(), change);
        if let Some(logged) = wanted {
            self.append_attributes(&locked, &logged)?;
            self.collect_some(&locked)?;
        }
        let after = self.attributes_of(locked.inode, &locked.record, locked.state);
        locked.guard.unlock();
        after
    }

    /// Appends an entry with all attributes, and puts them into the record.
    pub(crate) fn append_attributes(&self, locked: &Locked<'s>, logged: &LoggedAttributes) -> Result<()> {
        // Later than every word that must no longer count.
        let slot = self.slot_word(locked.inode, 0)?;
        let words = [AT_TOUCHED, AT_CHANGED, AT_ACCESSED].map(|at| self.disk().load(slot + at));
        let mut time = locked.now();
        for word in words {
            let word = word? as i64;
            // A clock that was set back would let an old word override what is set now.
            time = time.max(word);
        }
        self.append(locked, time, &Payload::Attributes(*logged), &mut [0; ATTRIBUTES_ENTRY_BYTES])?;
        locked.record.set_logged(logged, time);
        Ok(())
    }
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
    let only_size = AttributeChange { size_bytes: change.size_bytes, ..Default::default() };
    if *change == only_size {
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
        modified: pick(change.modified, before.modified),
        accessed: pick(change.accessed, before.accessed),
    })
}
