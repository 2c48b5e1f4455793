//! Whether the arena that killed processes left behind still belongs to the bytes of the volume: who adopts it goes on with what it
//! says, and would damage any others.
//!
//! The bytes can be older than the arena: a copy of the volume's file was put back. The arena names the volume by device and inode,
//! which stay, and times of the file tell nothing, since stores through maps change them, too. So two things are compared:
//!
//! * **A number** on the medium, beside the arena's identity, and in the arena: each adoption raises it in both. A copy that was made
//!   between two users, all of the former killed, has an older one.
//! * **What the arena knows of each log**: where it ends, and how many pages it has. A snapshot that was made while the volume was in
//!   use has the same number, but is older by at least an entry, a page, or an inode.
//!
//! Nothing is changed before both agree. May touch: the number; else it only looks.

use crate::disk::Disk;
use crate::format::entry::Owned;
use crate::format::slot::Slot;
use crate::format::state::{ADOPTIONS_AT, ARENA_AT, CLEAN_AT};
use crate::log;
use crate::ops::{for_each_backed_record, shared_error};
use crate::places::{CONTROL_ADOPTIONS, CONTROL_CLOSED, CONTROL_EPOCH, Places};
use crate::record::Record;
use gannet_shm::{ArenaIdentity, Ordering, Session, Word};
use gannet_vfs::{Error, Result};

/// An arena whose users were all killed, and the volume that it may belong to.
pub(crate) struct LeftBehind<'s> {
    disk: &'s Disk,
    session: &'s Session,
    arena: ArenaIdentity,
    places: Places,
}

impl<'s> LeftBehind<'s> {
    /// The caller is behind the arena's gate, and nobody has it open.
    pub(crate) fn of(disk: &'s Disk, session: &'s Session, arena: ArenaIdentity) -> Result<Self> {
        disk.refresh_epoch()?;
        Ok(Self { disk, session, arena, places: Places::of(session.arena(), disk.geometry())? })
    }

    fn control(&self, which: u64) -> Result<&'s Word> {
        self.session.word(self.places.control(which)).map_err(shared_error)
    }

    /// Whether the volume says that it is open in this arena: nobody else opened it since, nor recovered or repaired it.
    pub(crate) fn is_named(&self) -> Result<bool> {
        let disk = self.disk;
        let epoch = self.control(CONTROL_EPOCH)?.load(Ordering::Relaxed);
        Ok(disk.load(ARENA_AT)? == self.arena.0 && disk.load(CLEAN_AT)? == 0 && epoch == disk.epoch() as u64)
    }

    /// Whether the dead may have changed the volume: not if all who ever used this arena could only read.
    pub(crate) fn were_writers(&self) -> bool {
        self.session.had_writers()
    }

    /// For who joins living users: whether the volume is still what they opened, as far as the words say that opening and closing change. From the
    /// first who may write on it names this arena; as long as all of them only read it is closed just as the first of them found it.
    pub(crate) fn is_as_opened(&self) -> Result<bool> {
        if self.were_writers() {
            return self.is_named();
        }
        let (disk, known) = (self.disk, self.control(CONTROL_CLOSED)?.load(Ordering::Relaxed));
        let (named, clean) = (disk.load(ARENA_AT)?, disk.load(CLEAN_AT)?);
        let epoch = self.control(CONTROL_EPOCH)?.load(Ordering::Relaxed);
        // Who was killed while it joined readers to write may have named the arena, and may have said that the volume is open.
        let is_theirs = match named {
            0 => clean == known,
            _ => named == self.arena.0 && (clean == known || clean == 0),
        };
        Ok(is_theirs && epoch == disk.epoch() as u64)
    }

    /// Whether the volume is as those left it who used it last in this arena. Costs a slot and the last page of the log for each
    /// inode that was used, and a line for each page before it.
    pub(crate) fn fits(&self) -> Result<bool> {
        let known = self.control(CONTROL_ADOPTIONS)?.load(Ordering::Relaxed);
        let found = self.disk.load(ADOPTIONS_AT)?;
        // Who was killed between the two stores has done nothing else.
        if found != known && found != known.wrapping_add(1) {
            return Ok(false);
        }
        let records = &self.places.records;
        let words = self.session.arena().words(records.start, records.bytes / 8).map_err(shared_error)?;
        let mut outcome = Ok(true);
        for_each_backed_record(&self.places, words, &mut |inode, record| {
            if matches!(outcome, Ok(true)) {
                outcome = self.record_fits(inode, record);
            }
            Ok(())
        })?;
        match outcome {
            // What is damaged is not as they left it.
            Err(error) if error.errno() == gannet_vfs::Errno::UCLEAN => Ok(false),
            outcome => outcome,
        }
    }

    /// Whether an inode is what the arena knows of it. Of one in the hands of the dead, that it is not older.
    fn record_fits(&self, inode: u32, record: &Record<'_>) -> Result<bool> {
        let lock = self.session.word(self.places.record(inode)).map_err(shared_error)?;
        let is_locked = lock.load(Ordering::Relaxed) & 1 == 1;
        let is_known = record.knows_end();
        if !is_known && record.next_generation() == 0 {
            return Ok(true);
        }
        let generation = record.last_generation();
        match self.disk.slot(inode)? {
            Slot::Damaged => Err(Error::damaged("inode slot", inode as u64)),
            Slot::Used { generation: found, birth, .. } if is_known && found == generation => {
                let owned = Owned { key: self.disk.key(), inode, generation };
                let (tail, next_sequence, pages) = log::find_end(self.disk, owned, birth.head)?;
                if is_locked {
                    return Ok(next_sequence >= record.sequence());
                }
                Ok(tail.map(|tail| (tail.block, tail.line)) == record.tail()
                    && next_sequence == record.sequence()
                    && pages as u32 == record.log_use().0)
            }
            Slot::Used { generation: found, .. } => Ok(is_locked && found > generation),
            Slot::Free { generation: found } if is_known => Ok(is_locked && found > generation),
            Slot::Free { generation: found } => Ok(is_locked || found == record.next_generation()),
        }
    }

    /// Counts the adoption, durably, before anything of the dead is settled.
    pub(crate) fn count(&self) -> Result<()> {
        let known = self.control(CONTROL_ADOPTIONS)?;
        let found = self.disk.load(ADOPTIONS_AT)?;
        // One that was cut short is completed first: the arena is never more than one behind.
        // Unnoticed [word]: it takes one who was killed between the two stores.
        known.store(found, Ordering::Release);
        let mut commit = self.disk.begin();
        // Unmet: it takes a process that was killed, and a simulated medium is one process's. `restored` looks at what stands here.
        commit.store(ADOPTIONS_AT, found.wrapping_add(1))?;
        let _ = commit.fence(); // Unmet: as above.
        // Unnoticed [word]: the next one who adopts it completes it; that a copy of before is refused takes one who is killed behind this (`restored`).
        known.store(found.wrapping_add(1), Ordering::Release);
        Ok(())
    }
}
