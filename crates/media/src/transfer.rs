//! Data from callers, zeros, and copies within the medium, hashed on the way if asked.
//!
//! Whole lines are copied straight from the caller. What does not fit (the parts of lines at both ends, pieces of an array
//! that end inside a line, a hash whose stripes do not coincide with lines) goes through a small private buffer, so that
//! the bytes hashed are the bytes stored, whatever the caller's other threads do to them meanwhile.

use gannet_usermem::{Source, UserSlice};

use crate::error::AccessError;
use crate::hash::DataHash;
use crate::load::BOUNCE_BYTES;
use crate::medium::{LINE_BYTES, Medium};
use crate::offset::MediumOffset;

const LINE: usize = LINE_BYTES as usize;

static ZEROS: [u8; 4096] = [0; 4096];

impl Medium {
    /// Stores `count` bytes from a caller and advances it past them. Durable after the next [`Medium::fence`].
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`], [`AccessError::ReadOnly`]: nothing was stored. [`AccessError::UserFault`], also if
    /// there are fewer bytes; [`AccessError::MediumFault`]: so many bytes were stored, and perhaps a few of those after
    /// them; the caller stands after the bytes counted.
    #[inline]
    #[track_caller]
    pub fn write_from_user(&self, at: MediumOffset, from: &mut Source<'_>, count: usize) -> Result<(), AccessError> {
        self.transfer(at, from, count, None)
    }

    /// As [`Medium::write_from_user`], appending the bytes to `hash`, which is unspecified after an error.
    ///
    /// # Errors
    /// As for [`Medium::write_from_user`].
    #[inline]
    #[track_caller]
    pub fn write_from_user_hashed(
        &self,
        at: MediumOffset,
        from: &mut Source<'_>,
        count: usize,
        hash: &mut DataHash,
    ) -> Result<(), AccessError> {
        self.transfer(at, from, count, Some(hash))
    }

    /// Stores `length` zeros. Durable after the next [`Medium::fence`].
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`], [`AccessError::ReadOnly`], [`AccessError::MediumFault`].
    #[track_caller]
    pub fn zero(&self, at: MediumOffset, length: u64) -> Result<(), AccessError> {
        self.zero_with(at, length, None)
    }

    /// As [`Medium::zero`], appending the zeros to `hash`.
    ///
    /// # Errors
    /// As for [`Medium::zero`].
    #[track_caller]
    pub fn zero_hashed(&self, at: MediumOffset, length: u64, hash: &mut DataHash) -> Result<(), AccessError> {
        self.zero_with(at, length, Some(hash))
    }

    #[track_caller]
    fn zero_with(&self, at: MediumOffset, length: u64, mut hash: Option<&mut DataHash>) -> Result<(), AccessError> {
        self.writable(at, length)?;
        let mut done = 0;
        while done < length {
            let step = (length - done).min(ZEROS.len() as u64);
            let mut zeros = Source::from_slice(&ZEROS[..step as usize]);
            self.transfer(at.plus(done), &mut zeros, step as usize, hash.as_deref_mut())?;
            done += step;
        }
        Ok(())
    }

    /// Copies `length` bytes from one place of the medium to another; the ranges do not overlap (if they do, the result is
    /// a mixture). Durable after the next [`Medium::fence`].
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`], [`AccessError::ReadOnly`], [`AccessError::MediumFault`].
    #[track_caller]
    pub fn copy_within(&self, from: MediumOffset, to: MediumOffset, length: u64) -> Result<(), AccessError> {
        self.copy_within_with(from, to, length, None)
    }

    /// As [`Medium::copy_within`], appending the bytes to `hash`.
    ///
    /// # Errors
    /// As for [`Medium::copy_within`].
    #[track_caller]
    pub fn copy_within_hashed(
        &self,
        from: MediumOffset,
        to: MediumOffset,
        length: u64,
        hash: &mut DataHash,
    ) -> Result<(), AccessError> {
        self.copy_within_with(from, to, length, Some(hash))
    }

    #[track_caller]
    fn copy_within_with(
        &self,
        from: MediumOffset,
        to: MediumOffset,
        length: u64,
        hash: Option<&mut DataHash>,
    ) -> Result<(), AccessError> {
        let address = self.readable(from, length)?;
        // SAFETY: the bytes are inside the map, and no reference to the medium exists.
        let mut source = unsafe { Source::from_user(UserSlice::from_raw(address, length as usize)) };
        self.transfer(to, &mut source, length as usize, hash).map_err(|error| match error {
            // The "caller" is the medium itself.
            AccessError::UserFault { copied } => AccessError::MediumFault { at: from.plus(copied as u64), copied },
            other => other,
        })
    }

    /// The one loop behind all of the above.
    #[track_caller]
    fn transfer(
        &self,
        at: MediumOffset,
        from: &mut Source<'_>,
        count: usize,
        mut hash: Option<&mut DataHash>,
    ) -> Result<(), AccessError> {
        let to = self.writable(at, count as u64)?;
        let mut done = 0;
        while done < count {
            let here = at.plus(done as u64);
            let offset_in_line = (here.0 % LINE_BYTES) as usize;
            let part = from.next_contiguous().truncated(count - done);
            let in_phase = hash.as_deref().is_none_or(|hash| hash.offset_in_stripe() == offset_in_line);
            if offset_in_line == 0 && in_phase && part.length() >= LINE {
                let lines = part.length() / LINE;
                // SAFETY: so many lines fit into the range that was checked, and into the part.
                let left = unsafe {
                    self.store_lines(here, to.add(done), part.address() as *const u8, lines, hash.as_deref_mut())
                };
                done += (lines - left) * LINE;
                from.advance((lines - left) * LINE);
                if left != 0 {
                    return Err(self.whose_fault(at, done));
                }
                continue;
            }
            let limit = if in_phase && part.length() > LINE { LINE } else { BOUNCE_BYTES };
            let step = (limit - offset_in_line).min(count - done);
            let mut bounce = [std::mem::MaybeUninit::<u8>::uninit(); BOUNCE_BYTES];
            let bounce =
                fill(&mut bounce, from, step).map_err(|copied| AccessError::UserFault { copied: done + copied })?;
            if let Some(hash) = &mut hash {
                hash.update(bounce);
            }
            // SAFETY: `step` bytes at `here` are inside the range that was checked.
            unsafe { self.store_bytes(here, to.add(done), bounce.as_ptr(), step) }.map_err(|error| match error {
                AccessError::MediumFault { at, copied } => AccessError::MediumFault { at, copied: done + copied },
                other => other,
            })?;
            done += step;
        }
        Ok(())
    }
}

/// Fills the first `count` bytes of a private buffer, or says how many could be read.
fn fill<'a>(
    buffer: &'a mut [std::mem::MaybeUninit<u8>; BOUNCE_BYTES],
    from: &mut Source<'_>,
    count: usize,
) -> Result<&'a [u8], usize> {
    for byte in &mut buffer[..count] {
        byte.write(0);
    }
    // SAFETY: these bytes were just written.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.as_mut_ptr().cast::<u8>(), count) };
    from.read_into(bytes).map_err(|fault| fault.copied)?;
    Ok(bytes)
}
