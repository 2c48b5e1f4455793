//! The offset that all users of a description share, and its status flags.
//!
//! `read` and `write` take the offset's lock, do their work at the offset they find, store the new one and release: so two of
//! them on one description never use the same offset. The lock is robust, the offset a single word: a kill leaves the old
//! offset or the new one.

use gannet_shm::{ArenaOffset, Guard, Ordering, Word};

use super::tables::description as at;
use super::{Description, Shared, error_of};
use crate::{Errno, Error, Result};

/// The offset of a description, held by the calling thread.
#[derive(Debug)]
#[must_use = "dropping it lets others at the offset"]
pub struct OffsetGuard<'s> {
    word: &'s Word,
    _guard: Guard<'s>,
}

impl OffsetGuard<'_> {
    /// The offset in bytes, or the cookie of a directory.
    #[inline]
    pub fn get(&self) -> u64 {
        self.word.load(Ordering::Relaxed)
    }

    /// Moves it.
    #[inline]
    pub fn set(&self, offset: u64) {
        self.word.store(offset, Ordering::Relaxed);
    }
}

impl Shared {
    fn object(&self, description: Description) -> Result<ArenaOffset> {
        self.tables.descriptions.object(description.0).map_err(error_of)
    }

    fn check_live(&self, description: Description) -> Result<()> {
        let live = self.tables.descriptions.is_live(self.session().arena(), description.0).map_err(error_of)?;
        if live { Ok(()) } else { Err(Error::because(Errno::BADF, "the open file description is gone")) }
    }

    /// Takes the offset of a description; waits while another thread has it. Before any lock of a file system. `EBADF` if
    /// the description is gone.
    pub fn offset(&self, description: Description) -> Result<OffsetGuard<'_>> {
        let object = self.object(description)?;
        let guard = self.thread()?.lock(object.add(at::OFFSET_LOCK)).map_err(error_of)?;
        self.check_live(description)?;
        let word = self.session().word(object.add(at::OFFSET)).map_err(error_of)?;
        Ok(OffsetGuard { word, _guard: guard })
    }

    /// Changes status flags (`F_SETFL`): those in `mask` become those in `flags`. Returns them as they are then.
    pub fn set_status(&self, description: Description, mask: u32, flags: u32) -> Result<u32> {
        self.check_live(description)?;
        let word = self.session().word(self.object(description)?.add(at::STATUS)).map_err(error_of)?;
        loop {
            let old = word.load(Ordering::Relaxed);
            let new = old & !u64::from(mask) | u64::from(flags & mask);
            if word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return Ok(new as u32);
            }
        }
    }
}
