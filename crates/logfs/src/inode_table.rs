//! The inode table as it grows: chunks of slots are made where a number's is not there yet, and where no room is left for one,
//! numbers are looked for that have a slot.
//!
//! May touch: the inode map and what it leads to, under the chunk lock; the pools, for blocks and numbers.

use crate::format::{BLOCK_BYTES, slot};
use crate::ops::{Op, shared_error};
use crate::places::{CONTROL_CHUNK_LOCK, CONTROL_FREE_SLOTS};
use crate::space::Held;
use crate::storage;
use gannet_shm::Ordering;
use gannet_vfs::{Errno, Error, Result};

/// Blocks of the inode table that are made at a time, if they are to be had: as many chunks as these hold.
pub(crate) const CHUNKS_AT_ONCE: u64 = 16;

impl<'s> Op<'s> {
    /// A free number in any chunk of the inode table that exists: for a volume without room for another chunk. The search
    /// begins where the last one, of whichever thread, ended: the table of a large volume has millions of chunks.
    #[cold]
    #[inline(never)]
    pub(crate) fn take_number_with_slot(&self) -> Result<Option<Held>> {
        let (disk, numbers) = (self.disk(), self.core.space.inodes(self)?);
        let (slots, chunks) = (disk.geometry().slots_per_chunk(), disk.geometry().chunks);
        let hint = self.thread.word(self.core.places.control(CONTROL_FREE_SLOTS)).map_err(shared_error)?;
        let search = || -> Result<Option<Held>> {
            let first = hint.load(Ordering::Relaxed) % chunks.max(1);
            for chunk in (first..chunks).chain(0..first) {
                if disk.chunk_block(chunk)?.is_some()
                    && let Some(number) =
                        numbers.allocate_within(&self.thread, chunk * slots, slots).map_err(storage::error)?
                {
                    if chunk != first {
                        hint.store(chunk, Ordering::Relaxed);
                    }
                    return Ok(Some(number));
                }
            }
            Ok(None)
        };
        match search()? {
            None if self.release_numbers()? => search(),
            found => Ok(found),
        }
    }

    /// Where an inode's slot stands on the medium, in bytes; its chunk of the inode table is made if it is not there yet.
    #[inline(always)]
    pub(crate) fn ensure_slot(&self, inode: u32) -> Result<u64> {
        let lock_at = self.core.places.control(CONTROL_CHUNK_LOCK);
        // Whoever makes it has the lock until it is durable: seen before, it could be lost with what is made in it.
        if let Some(at) = self.disk().slot_at(inode)?
            && self.thread.read_begin(lock_at).map_err(shared_error)?.is_some()
        {
            return Ok(at);
        }
        self.make_slot(inode)
    }

    #[cold]
    #[inline(never)]
    fn make_slot(&self, inode: u32) -> Result<u64> {
        let disk = self.disk();
        let (chunk, _) = disk.geometry().slot_of(inode as u64);
        let lock = self.take(self.core.places.control(CONTROL_CHUNK_LOCK))?;
        if disk.chunk_block(chunk)?.is_none() {
            self.make_chunks(chunk)?;
        }
        lock.unlock();
        self.slot_word(inode, 0)
    }

    /// Makes a chunk, and as many of those that follow it as there is room for in one run: two fences for all.
    fn make_chunks(&self, first: u64) -> Result<()> {
        let disk = self.disk();
        let geometry = disk.geometry();
        let length = geometry.chunk_blocks;
        let mut wanted = 1;
        while wanted * length < CHUNKS_AT_ONCE
            && first + wanted < geometry.chunks
            && disk.chunk_block(first + wanted)?.is_none()
        {
            wanted += 1;
        }
        // A few blocks are always to be had: one chunk will do.
        let held = match self.allocate_blocks((wanted * length) as u32, None) {
            Ok(held) if held.extent().count as u64 >= length => held,
            Ok(held) => {
                self.release_held(held)?;
                self.allocate_run(length as u32)?
            }
            Err(error) => return Err(error),
        };
        let block = held.extent().start;
        let made = (held.extent().count as u64 / length).min(wanted);
        let mut zeros = disk.begin();
        zeros.zero(block * BLOCK_BYTES, made * length * BLOCK_BYTES)?;
        // Unnoticed [fence]: recovery frees slots that do not prove themselves, whatever the blocks held before. It need not have to.
        let _ = zeros.fence();
        let mut commit = disk.begin();
        for index in 0..made {
            let (chunk, place) = (first + index, block + index * length);
            commit.store(geometry.map_word_at(chunk), slot::encode_map_word(disk.key(), chunk, place))?;
        }
        let _ = commit.fence();
        let space = self.core.space.blocks(self)?;
        space.keep_first(&self.thread, held, (made * length) as u32).map_err(storage::error)
    }

    /// `count` blocks in one run: where the free space is in pieces, wherever one is found.
    fn allocate_run(&self, count: u32) -> Result<Held> {
        match self.allocate_blocks(count, None) {
            Ok(held) if held.extent().count >= count => return Ok(held),
            Ok(held) => self.release_held(held)?,
            Err(error) => return Err(error),
        }
        let search = || self.core.space.blocks(self)?.allocate_run(&self.thread, count).map_err(storage::error);
        // What was given up can be what a run lacks.
        search()
            .or_else(|error| if self.empty_limbo()? | self.take_others_limbo()? { search() } else { Err(error) })
            .map_err(|error| match error.errno() {
                Errno::NOSPC => Error::because(Errno::NOSPC, "no run of free blocks is long enough for more inodes"),
                _ => error,
            })
    }
}
