//! Loads: words, metadata copied out, data copied to callers, data hashed in place.
//!
//! No reference to the medium is made. A load may race with another process's store; the caller validates (sequence
//! counter, checksum) and retries.

use gannet_usermem::{Destination, copy};

use crate::error::AccessError;
use crate::hash::{DataHash, STRIPE_BYTES};
use crate::kernels::kernels;
use crate::medium::Medium;
use crate::offset::MediumOffset;

/// Stripes that are hashed at once where a fault is not the end: a page.
const STRIPES_AT_ONCE: usize = 4096 / STRIPE_BYTES;

impl Medium {
    /// Loads the word at `at`, a multiple of eight, at once and with acquire ordering.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`], [`AccessError::Misaligned`], [`AccessError::MediumFault`].
    #[inline]
    pub fn load_u64(&self, at: MediumOffset) -> Result<u64, AccessError> {
        if !at.is_aligned(8) {
            return Err(AccessError::Misaligned { at });
        }
        let address = self.readable(at, 8)?;
        // SAFETY: inside the map. The load is one instruction in a routine that the compiler cannot see into, and loads are
        // not reordered by the processor: later accesses stay behind it.
        unsafe { copy::load_u64(address.addr()) }.or_else(|_| self.zero_where_unreadable(at).map(|()| 0))
    }

    /// Copies metadata out.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`], [`AccessError::MediumFault`].
    #[inline]
    pub fn read(&self, at: MediumOffset, bytes: &mut [u8]) -> Result<(), AccessError> {
        let from = self.readable(at, bytes.len() as u64)?;
        // SAFETY: the source is inside the map, the target is exclusively ours, and they cannot overlap.
        unsafe { copy::copy(bytes.as_mut_ptr(), from, bytes.len()) }
            .or_else(|fault| self.read_what_can_be(at, bytes, fault.copied))
    }

    /// Copies `count` bytes to a caller and advances it past them.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`]; [`AccessError::UserFault`], also if there is not room enough; or
    /// [`AccessError::MediumFault`]: the caller then stands after the bytes that were copied.
    // Inlined as far as one range needs it.
    #[inline(always)]
    pub fn read_to_user(&self, at: MediumOffset, to: &mut Destination<'_>, count: usize) -> Result<(), AccessError> {
        let from = self.readable(at, count as u64)?;
        let part = to.next_contiguous();
        if part.length() >= count && count != 0 {
            // SAFETY: as in `read_to_parts`.
            let copied = unsafe { copy::copy(part.address() as *mut u8, from, count) };
            let done = copied.map_or_else(|fault| fault.copied, |()| count);
            to.advance(done);
            return copied.map_err(|_| self.read_fault(at, done));
        }
        self.read_to_parts(at, from, to, count)
    }

    #[inline(never)]
    fn read_to_parts(
        &self,
        at: MediumOffset,
        from: *const u8,
        to: &mut Destination<'_>,
        count: usize,
    ) -> Result<(), AccessError> {
        let mut done = 0;
        while done < count {
            let part = to.next_contiguous().truncated(count - done);
            if part.is_empty() {
                return Err(AccessError::UserFault { copied: done });
            }
            // SAFETY: the source is inside the map; the target was promised when the destination was built. Should they
            // overlap, because the caller mapped the volume, bytes are read before or after they change.
            let copied = unsafe { copy::copy(part.address() as *mut u8, from.add(done), part.length()) };
            let step = copied.map_or_else(|fault| fault.copied, |()| part.length());
            to.advance(step);
            done += step;
            if copied.is_err() {
                return Err(self.read_fault(at, done));
            }
        }
        Ok(())
    }

    /// After a fault `done` bytes into a copy from `at`: the medium's, if it cannot be loaded there, else the caller's.
    #[cold]
    fn read_fault(&self, at: MediumOffset, done: usize) -> AccessError {
        let place = at.plus(done as u64);
        let fault = AccessError::MediumFault { at: place, copied: done };
        let Ok(from) = self.readable(place, 1) else { return fault };
        // SAFETY: the source is inside the map, the target is exclusively ours.
        match unsafe { copy::copy([0_u8].as_mut_ptr(), from, 1) } {
            Ok(()) => AccessError::UserFault { copied: done },
            Err(_) => fault,
        }
    }

    /// Appends `length` bytes of the medium to `hash`.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`]; [`AccessError::MediumFault`], with an unspecified hash.
    pub fn hash_into(&self, at: MediumOffset, length: u64, hash: &mut DataHash) -> Result<(), AccessError> {
        let from = self.readable(at, length)?;
        let length = length as usize;
        let mut done = 0;
        while done < length {
            let lines = (length - done) / STRIPE_BYTES;
            if lines != 0 && hash.offset_in_stripe() == 0 {
                // Where a fault is not the end, what was hashed up to it can be taken back.
                let before = self.unreadable.as_ref().map(|_| hash.clone());
                let lines = if before.is_some() { lines.min(STRIPES_AT_ONCE) } else { lines };
                // SAFETY: that many lines are inside the map.
                let left = unsafe { (kernels().hash)(std::ptr::null_mut(), from.add(done), lines, hash.lanes()) };
                hash.advanced(lines - left);
                if left != 0 {
                    let Some(before) = before else {
                        done += (lines - left) * STRIPE_BYTES;
                        return Err(AccessError::MediumFault { at: at.plus(done as u64), copied: done });
                    };
                    *hash = before;
                    let mut bounce = [0; STRIPES_AT_ONCE * STRIPE_BYTES];
                    let bounce = &mut bounce[..lines * STRIPE_BYTES];
                    self.read_what_can_be(at.plus(done as u64), bounce, 0).map_err(|error| error.after(done))?;
                    hash.update(bounce);
                }
                done += lines * STRIPE_BYTES;
                continue;
            }
            let mut bounce = [0; STRIPE_BYTES];
            let step = (length - done).min(STRIPE_BYTES - hash.offset_in_stripe());
            self.read(at.plus(done as u64), &mut bounce[..step])?;
            hash.update(&bounce[..step]);
            done += step;
        }
        Ok(())
    }

    /// The [`DataHash`] of `length` bytes of the medium, with phase zero.
    ///
    /// # Errors
    /// As for [`Medium::hash_into`].
    pub fn hash(&self, seed: u64, at: MediumOffset, length: u64) -> Result<u64, AccessError> {
        let mut hash = DataHash::new(seed);
        self.hash_into(at, length, &mut hash)?;
        Ok(hash.value())
    }
}
