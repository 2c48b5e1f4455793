//! Overwriting a file's data in place: bytes of mapped blocks inside of the file, under their stripe's lock, with one fence and no log entry.
//!
//! Relies on: whoever changes the map of a file to let those pass who write to what it takes away ([`Op::pass_stripes`]).

use crate::disk::access_error;
use crate::format::BLOCK_BYTES;
use crate::format::slot::AT_TOUCHED;
use crate::index::Mapping;
use crate::ops::{Locked, Op, index_error, inode_number, shared_error};
use crate::places::{STRIPE_BYTES, STRIPES};
use crate::read::left_of;
use crate::write::coarse_now;
use gannet_media::{AccessError, MediumOffset};
use gannet_vfs::usermem::Source;
use gannet_vfs::{Errno, Error, FileType, NodeId, Result};

/// Where an inode's slot says when it was last written in place, and what it will say.
#[derive(Clone, Copy)]
struct Touched {
    inode: u32,
    at: u64,
    now: u64,
}

impl<'s> Op<'s> {
    /// Overwrites what can be overwritten in place of the chunk at `at`; returns how much that was, 0 if the write must go
    /// another way.
    pub(crate) fn write_in_place(&self, node: NodeId, at: u64, from: &mut Source<'_>) -> Result<usize> {
        let inode = node.number as u32;
        let limit = (STRIPE_BYTES - at % STRIPE_BYTES).min(from.remaining() as u64);
        // A look, so that others do not take the stripe. It proves nothing: what counts is looked at again, below or there.
        let record = self.record(inode_number(node)?)?;
        if at >= record.size() || self.is_copy_on_write(record.flags(), record.maps()) {
            return Ok(0);
        }
        // Everything is looked up before the stripe is locked, and counts if the inode has not changed once it is: from then
        // on nobody's change of this part of the map ends before the stripe is released. Behind the swap that locks it there
        // is then nothing to wait for but the copy: what stands between the two is not overlapped with the stores of the
        // call before, which the swap waits for.
        let (found, sequence) = self.place_in_place(node, at, limit)?;
        let Some((medium_at, count)) = found else { return Ok(0) };
        let touched = self.touched(inode)?;
        let stripe = self.take(self.core.places.stripe(inode, at))?;
        let lock_at = self.core.places.record(inode);
        if self.thread.read_validate(lock_at, sequence).map_err(shared_error)? {
            let outcome = self.overwrite(touched, medium_at, count, from);
            stripe.unlock();
            return outcome;
        }
        let outcome = self.overwrite_changed(node, at, limit, from);
        stripe.unlock();
        outcome
    }

    /// Somebody was faster than the stripe was locked: now nobody can be.
    #[cold]
    #[inline(never)]
    fn overwrite_changed(&self, node: NodeId, at: u64, limit: u64, from: &mut Source<'_>) -> Result<usize> {
        match self.place_in_place(node, at, limit)?.0 {
            Some((medium_at, count)) => self.overwrite(self.touched(node.number as u32)?, medium_at, count, from),
            None => Ok(0),
        }
    }

    /// Where an inode's slot says when it was last written in place, and what it will say.
    #[inline]
    fn touched(&self, inode: u32) -> Result<Touched> {
        // Not before the last change of attributes, which may have set a time within this very tick of the clock.
        let now = coarse_now().max(self.record(inode)?.modified_since());
        Ok(Touched { inode, at: self.slot_word(inode, AT_TOUCHED)?, now: now as u64 })
    }

    #[inline(always)]
    fn overwrite(&self, touched: Touched, medium_at: u64, count: u64, from: &mut Source<'_>) -> Result<usize> {
        let Touched { inode, at: touched_at, now } = touched;
        let medium = self.disk().medium();
        let copied = medium.write_from_user(MediumOffset(medium_at), from, count as usize);
        let written = match copied {
            Ok(()) => count as usize,
            Err(AccessError::UserFault { copied }) => copied,
            Err(error) => return Err(access_error(error)),
        };
        if self.disk().load(touched_at)? != now {
            // Unnoticed [store]: a time, for which the conformance suite asks.
            medium.store_u64(MediumOffset(touched_at), now).map_err(access_error)?;
            self.record(inode)?.set_access_fresh(0);
        }
        medium.fence();
        if written == 0 { Err(Error::new(Errno::FAULT)) } else { Ok(written) }
    }

    /// Where on the medium the bytes at `at` can be overwritten, and how many of them; and the inode's sequence with which
    /// that holds. A stripe may be held: the inode's lock, which comes before stripes, must not be waited for.
    #[inline(always)]
    fn place_in_place(&self, node: NodeId, at: u64, limit: u64) -> Result<(Option<(u64, u64)>, u64)> {
        let inode = node.number as u32;
        let record = self.record(inode)?;
        let lock_at = self.core.places.record(inode);
        for _ in 0..4096 {
            let Some(sequence) = self.thread.read_begin(lock_at).map_err(shared_error)? else {
                core::hint::spin_loop();
                continue;
            };
            let sound = record
                .state()
                .is_some_and(|state| state.generation == node.generation && state.file_type == FileType::Regular);
            let place = if sound { self.in_place(inode, &record, at, limit) } else { Ok(None) };
            if self.thread.read_validate(lock_at, sequence).map_err(shared_error)? {
                return place.map(|place| (place, sequence));
            }
        }
        Ok((None, 0))
    }

    #[inline(always)]
    fn in_place(
        &self,
        inode: u32,
        record: &crate::record::Record<'s>,
        at: u64,
        limit: u64,
    ) -> Result<Option<(u64, u64)>> {
        let size = record.size();
        if at >= size || self.is_copy_on_write(record.flags(), record.maps()) {
            return Ok(None);
        }
        let limit = limit.min(size - at);
        if record.unsealed_start() < at + limit && at < record.unsealed_end() {
            return Ok(None);
        }
        Ok(match self.extents(inode, record).lookup(at / BLOCK_BYTES).map_err(index_error)? {
            Mapping::Hole { .. } | Mapping::Blocks { shared: true, .. } => None,
            Mapping::Blocks { block, count, .. } => {
                Some((block * BLOCK_BYTES + at % BLOCK_BYTES, left_of(count, at).min(limit)))
            }
        })
    }

    /// After sealing: the overwrite, with the inode's lock held, so that nothing can come between.
    pub(crate) fn retry_in_place(&self, locked: Locked<'s>, at: u64, from: &mut Source<'_>) -> Result<(u64, usize)> {
        let outcome = self.overwrite_sealed(&locked, at, from);
        locked.guard.unlock();
        outcome.map(|count| (at, count))
    }

    pub(crate) fn overwrite_sealed(&self, locked: &Locked<'s>, at: u64, from: &mut Source<'_>) -> Result<usize> {
        let limit = (STRIPE_BYTES - at % STRIPE_BYTES).min(from.remaining() as u64);
        let place = self.in_place(locked.inode, &locked.record, at, limit)?;
        let Some((medium_at, count)) = place else {
            return Err(Error::damaged("shared state: a sealed block cannot be written", locked.inode.into()));
        };
        let stripe = self.take(self.core.places.stripe(locked.inode, at))?;
        let outcome = self.overwrite(self.touched(locked.inode)?, medium_at, count, from);
        stripe.unlock();
        outcome
    }

    /// Waits for everybody who writes to these blocks of a file in place, and makes everybody who reads them look again.
    /// The map must have changed before.
    pub(crate) fn pass_stripes(&self, inode: u32, file_block: u64, count: u64) -> Result<()> {
        let from = file_block * BLOCK_BYTES / STRIPE_BYTES;
        let to = ((file_block + count) * BLOCK_BYTES).div_ceil(STRIPE_BYTES);
        if to - from > 4 * STRIPES {
            // So many that each is among them more than once.
            for stripe in 0..STRIPES {
                self.thread.lock(self.core.places.stripe_number(stripe)).map_err(shared_error)?.unlock();
            }
            return Ok(());
        }
        for stripe in from..to {
            let at = self.core.places.stripe(inode, stripe * STRIPE_BYTES);
            self.thread.lock(at).map_err(shared_error)?.unlock();
        }
        Ok(())
    }
}
