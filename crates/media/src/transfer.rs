//! Data from callers, zeros, and copies within the medium, hashed on the way if asked.
//!
//! Whole lines are copied straight from the caller. What does not fit (the parts of lines at both ends, pieces of an array
//! that end inside a line, a hash whose stripes do not coincide with lines) goes through a small private buffer, so that
//! the bytes hashed are the bytes stored, whatever the caller's other threads do to them meanwhile.

use std::mem::MaybeUninit;

use gannet_usermem::{Source, UserSlice, copy};

use crate::error::AccessError;
use crate::hash::DataHash;
use crate::medium::{LINE_BYTES, Medium};
use crate::offset::MediumOffset;
use crate::processor::prefetch_for_store;

const LINE: usize = LINE_BYTES as usize;

/// Bytes of the private buffer: a block of 4 KiB that starts anywhere in a line.
const BOUNCE_BYTES: usize = 4096 + LINE;

/// Aligned, so that loads of it never cross a line.
#[repr(align(64))]
struct Zeros([u8; 4096]);

static ZEROS: Zeros = Zeros([0; 4096]);

impl Medium {
    /// Stores `count` bytes from a caller and advances it past them. Durable after the next [`Medium::fence`].
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`], [`AccessError::ReadOnly`]: nothing was stored. [`AccessError::UserFault`], also if
    /// there are fewer bytes; [`AccessError::MediumFault`]: so many bytes were stored, and perhaps a few of those after
    /// them; the caller stands after the bytes counted.
    // Inlined as far as whole lines from one range need it: nearly all transfers are that.
    #[inline(always)]
    #[track_caller]
    pub fn write_from_user(&self, at: MediumOffset, from: &mut Source<'_>, count: usize) -> Result<(), AccessError> {
        let part = from.next_contiguous();
        if (at.0 | count as u64).is_multiple_of(LINE_BYTES) && part.length() >= count && self.recorder.is_none() {
            let to = self.writable(at, count as u64)?;
            // SAFETY: the range was just checked, and the part has so many bytes.
            let left = unsafe { self.store_lines(at, to, part.address() as *const u8, count / LINE, None, true) };
            from.advance(count - left * LINE);
            return if left == 0 { Ok(()) } else { Err(store_fault(at, count - left * LINE, from.next_contiguous())) };
        }
        self.transfer(at, from, count, None)
    }

    /// As [`Medium::write_from_user`], appending the bytes to `hash`, which is unspecified after an error.
    ///
    /// # Errors
    /// As for [`Medium::write_from_user`].
    // The same shortcut as there, where stripes and lines coincide.
    #[inline]
    #[track_caller]
    pub fn write_from_user_hashed(
        &self,
        at: MediumOffset,
        from: &mut Source<'_>,
        count: usize,
        hash: &mut DataHash,
    ) -> Result<(), AccessError> {
        let part = from.next_contiguous();
        let is_whole = (at.0 | count as u64).is_multiple_of(LINE_BYTES) && hash.offset_in_stripe() == 0;
        if is_whole && count > 0 && part.length() >= count && self.recorder.is_none() {
            let to = self.writable(at, count as u64)?;
            // SAFETY: the range was just checked, and the part has so many bytes.
            let left = unsafe { self.store_lines(at, to, part.address() as *const u8, count / LINE, Some(hash), true) };
            from.advance(count - left * LINE);
            return if left == 0 { Ok(()) } else { Err(store_fault(at, count - left * LINE, from.next_contiguous())) };
        }
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
    fn zero_with(&self, at: MediumOffset, length: u64, hash: Option<&mut DataHash>) -> Result<(), AccessError> {
        let to = self.writable(at, length)?;
        if let Some(hash) = hash {
            hash.update_zeros(length);
        }
        let mut done = 0;
        while done < length {
            // Steps end at whole lines.
            let step = (length - done).min(ZEROS.0.len() as u64 - (at.0 + done) % LINE_BYTES);
            // SAFETY: a part of the range that was just checked.
            unsafe { self.store_bytes(at.plus(done), to.add(done as usize), ZEROS.0.as_ptr(), step as usize) }
                .map_err(|error| match error {
                    AccessError::MediumFault { at, copied } => {
                        AccessError::MediumFault { at, copied: done as usize + copied }
                    }
                    other => other,
                })?;
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

    /// What is behind all of the above. The parts before the first and after the last whole line are fetched before the
    /// lines and stored after them, for two reasons. A line that is being written back delays those stored past the cache,
    /// but not the reverse. And stores past the cache queue up before all later ones: a load of what was just written in
    /// pieces of another size would wait for all of them.
    #[track_caller]
    fn transfer(
        &self,
        at: MediumOffset,
        from: &mut Source<'_>,
        count: usize,
        mut hash: Option<&mut DataHash>,
    ) -> Result<(), AccessError> {
        let to = self.writable(at, count as u64)?;
        let head = (at.0.wrapping_neg() % LINE_BYTES) as usize;
        let tail = count.saturating_sub(head) % LINE;
        let has_lines = count >= head + LINE;
        if head + tail == 0 || !has_lines || !in_phase(at, hash.as_deref()) || from.remaining() < count {
            // SAFETY: the range was just checked.
            return unsafe { self.transfer_from(0, at, to, from, count, hash) };
        }
        let (mut kept_head, mut kept_tail) = ([0; LINE], [0; LINE]);
        let mut end = from.clone();
        end.advance(count - tail);
        if end.read_into(&mut kept_tail[..tail]).is_err() {
            // In order, then, so that what is stored and counted is what comes before the fault.
            // SAFETY: the range was just checked.
            return unsafe { self.transfer_from(0, at, to, from, count, hash) };
        }
        if let Err(fault) = from.read_into(&mut kept_head[..head]) {
            // SAFETY: the range was just checked.
            unsafe { self.store_bytes(at, to, kept_head.as_ptr(), fault.copied) }?;
            return Err(fault.into());
        }
        if let Some(hash) = &mut hash {
            hash.update(&kept_head[..head]);
            hash.prepare(&kept_tail[..tail]);
        }
        // Their lines come into the cache while the others go past it.
        if head != 0 {
            prefetch_for_store(to);
        }
        if tail != 0 {
            prefetch_for_store(to.wrapping_add(count - tail));
        }
        // SAFETY: the range was just checked, and the head and the tail are parts of it.
        unsafe {
            let lines = self.transfer_from(head, at, to, from, count - tail, hash.as_deref_mut());
            self.store_bytes(at, to, kept_head.as_ptr(), head)?;
            lines?;
            if let Some(hash) = hash {
                hash.append_prepared(tail);
            }
            from.advance(tail);
            let tail_at = count - tail;
            self.store_bytes(at.plus(tail_at as u64), to.add(tail_at), kept_tail.as_ptr(), tail)
        }
    }

    /// The loop, beginning `done` bytes into the range.
    ///
    /// # Safety
    /// `to` is the address of `at`; the range is inside the medium and may be stored to.
    #[track_caller]
    unsafe fn transfer_from(
        &self,
        mut done: usize,
        at: MediumOffset,
        to: *mut u8,
        from: &mut Source<'_>,
        count: usize,
        mut hash: Option<&mut DataHash>,
    ) -> Result<(), AccessError> {
        while done < count {
            let here = at.plus(done as u64);
            let offset_in_line = (here.0 % LINE_BYTES) as usize;
            let part = from.next_contiguous().truncated(count - done);
            let in_phase = in_phase(here, hash.as_deref());
            if offset_in_line == 0 && in_phase && part.length() >= LINE {
                let lines = part.length() / LINE;
                // SAFETY: so many lines fit into the range, and into the part.
                let left = unsafe {
                    self.store_lines(here, to.add(done), part.address() as *const u8, lines, hash.as_deref_mut(), true)
                };
                done += (lines - left) * LINE;
                from.advance((lines - left) * LINE);
                if left != 0 {
                    return Err(store_fault(at, done, from.next_contiguous()));
                }
                continue;
            }
            // To the next line only, if direct copies can go on from there.
            let limit = if in_phase && part.length() > LINE { LINE } else { BOUNCE_BYTES };
            let step = (limit - offset_in_line).min(count - done);
            // SAFETY: `step` bytes at `here` are inside the range.
            let bounced = unsafe { self.bounce(here, to.add(done), from, step, hash.as_deref_mut()) };
            bounced.map_err(|error| error.after(done))?;
            done += step;
        }
        Ok(())
    }

    /// Stores up to `BOUNCE_BYTES` by way of a private buffer: all of them are fetched and hashed before the first store
    /// past the cache, which would hold up what is fetched after it.
    ///
    /// # Safety
    /// `to` is the address of `at`; the range is inside the medium and may be stored to.
    #[inline(never)]
    #[track_caller]
    unsafe fn bounce(
        &self,
        at: MediumOffset,
        to: *mut u8,
        from: &mut Source<'_>,
        count: usize,
        hash: Option<&mut DataHash>,
    ) -> Result<(), AccessError> {
        let mut buffer = [MaybeUninit::<u8>::uninit(); BOUNCE_BYTES];
        let fetched = from.read_into_uninit(&mut buffer[..count]);
        if let (Ok(bytes), Some(hash)) = (&fetched, hash) {
            hash.update(bytes);
        }
        let failed = fetched.err();
        // What was counted before a fault is stored, too.
        let stored = failed.map_or(count, |fault| fault.copied);
        // SAFETY: the caller's promise; so many bytes of the buffer are initialized.
        unsafe { self.store_bytes(at, to, buffer.as_ptr().cast(), stored) }?;
        failed.map_or(Ok(()), |fault| Err(fault.into()))
    }
}

/// Whether the stripes of a hash coincide with the lines of the medium at `at`.
fn in_phase(at: MediumOffset, hash: Option<&DataHash>) -> bool {
    hash.is_none_or(|hash| hash.offset_in_stripe() as u64 == at.0 % LINE_BYTES)
}

/// After a fault in a copy to `at`, `done` bytes into it and in the line of which `rest` is what is left to copy: the
/// caller's, if it cannot be loaded there, else the medium's. (The medium may be readable and still refuse a store.)
#[cold]
fn store_fault(at: MediumOffset, done: usize, rest: UserSlice) -> AccessError {
    let line = rest.truncated(LINE);
    // SAFETY: the bytes were promised readable where they are mapped, and were just read for the copy.
    let readable = |address| unsafe { copy::load_u8(address) }.is_ok();
    if !line.is_empty() && readable(line.address()) && readable(line.address() + line.length() - 1) {
        AccessError::MediumFault { at: at.plus(done as u64), copied: done }
    } else {
        AccessError::UserFault { copied: done }
    }
}
