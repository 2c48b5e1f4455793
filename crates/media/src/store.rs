//! Stores of words and metadata, write-back, and the fence.
//!
//! Whole lines go past the cache, parts of lines through it and are written back at once: never both on one line in one
//! call. Everything is decided in [`Medium::store_bytes`], which the simulation sees too.

use std::panic::Location;
use std::sync::atomic::{Ordering, compiler_fence};

use gannet_usermem::copy;

use crate::counters::{count_fence, count_flushed, count_stored, count_streamed};
use crate::error::AccessError;
use crate::hash::DataHash;
use crate::kernels::kernels;
use crate::medium::{LINE_BYTES, Medium, PersistMode};
use crate::offset::MediumOffset;
use crate::processor::{prefetch_for_load, prefetch_for_store, store_fence, streams_into_cached_lines};
use crate::recent::note_written;

const LINE: usize = LINE_BYTES as usize;
/// From so many lines on a caller's data goes past the cache on a plain medium too: what it overwrites need not be fetched
/// first, which makes such a copy 1.3 times as fast at 4 KiB and twice as fast at 1 MiB. Data that is overwritten while it is
/// in the cache would lose by it: what a thread writes again soon ([`note_written`]) stays there, and metadata does.
const LINES_STREAMED_PLAIN: usize = 64;
/// Lines of metadata that one call stores through the cache where nothing has to be written back from it; more go past it.
const LINES_CACHED_MAX: usize = 4;

impl Medium {
    /// Stores the word at `at`, a multiple of eight, at once. Durable after the next [`Medium::fence`] of this thread.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`], [`AccessError::Misaligned`], [`AccessError::ReadOnly`], [`AccessError::MediumFault`].
    #[inline]
    #[track_caller]
    pub fn store_u64(&self, at: MediumOffset, value: u64) -> Result<(), AccessError> {
        if !at.is_aligned(8) {
            return Err(AccessError::Misaligned { at });
        }
        let address = self.writable(at, 8)?;
        if let Some(recorder) = &self.recorder {
            recorder.store(at.0, &value.to_le_bytes(), false, Location::caller());
            recorder.flush(at.0, 8, Location::caller());
            count_flushed(1);
        } else {
            let gone = AccessError::MediumFault { at, copied: 0 };
            // SAFETY: inside the map. The store is one instruction in a routine that the compiler cannot see into, and
            // stores through the cache are not reordered by the processor: earlier ones stay before it.
            unsafe { copy::store_u64(address.addr(), value) }.map_err(|_| gone)?;
            if self.needs_flush() {
                count_flushed(1);
                // SAFETY: inside the map.
                if unsafe { (self.write_back)(address, 1) } != 0 {
                    return Err(gone);
                }
            }
        }
        count_stored(8);
        Ok(())
    }

    /// Stores `bytes` at any alignment. Durable, to the last byte, after the next [`Medium::fence`] of this thread.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`], [`AccessError::ReadOnly`], [`AccessError::MediumFault`].
    #[inline]
    #[track_caller]
    pub fn write(&self, at: MediumOffset, bytes: &[u8]) -> Result<(), AccessError> {
        let to = self.writable(at, bytes.len() as u64)?;
        // SAFETY: the range was just checked, and `bytes` is readable.
        unsafe { self.store_bytes(at, to, bytes.as_ptr(), bytes.len()) }
    }

    /// Stores whole lines of metadata that were just put together in words: as [`Medium::write`], but word by word, so that
    /// nothing waits for the stores that put them together. They go past the cache where they would have to be written back from
    /// it: the fence waits less long for them, also if the lines are in the cache and are looked at again soon. Durable after
    /// the next [`Medium::fence`] of this thread.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`], [`AccessError::ReadOnly`], [`AccessError::MediumFault`]; [`AccessError::Misaligned`] if
    /// `at` or the length is no multiple of a line.
    #[inline]
    #[track_caller]
    pub fn write_lines(&self, at: MediumOffset, bytes: &[u8]) -> Result<(), AccessError> {
        let to = self.writable(at, bytes.len() as u64)?;
        if !at.is_aligned(LINE_BYTES) || !bytes.len().is_multiple_of(LINE) {
            return Err(AccessError::Misaligned { at });
        }
        let lines = bytes.len() / LINE;
        let streams = self.needs_flush() || lines > LINES_CACHED_MAX && self.mode() != PersistMode::Plain;
        // SAFETY: the range was just checked, and `bytes` is readable.
        let left = unsafe {
            if self.recorder.is_some() {
                self.record_words(at, bytes, streams)
            } else if streams {
                count_streamed(lines as u64);
                (kernels().copy_words)(to, bytes.as_ptr(), lines, std::ptr::null_mut())
            } else {
                count_stored(bytes.len() as u64);
                (kernels().copy_words_cached)(to, bytes.as_ptr(), lines, std::ptr::null_mut())
            }
        };
        if left != 0 {
            let copied = (lines - left) * LINE;
            return Err(AccessError::MediumFault { at: at.plus(copied as u64), copied });
        }
        Ok(())
    }

    /// `write_lines` on a simulated medium.
    #[cold]
    #[track_caller]
    fn record_words(&self, at: MediumOffset, bytes: &[u8], streams: bool) -> usize {
        let Some(recorder) = &self.recorder else { return bytes.len() / LINE };
        for (line, content) in bytes.as_chunks::<LINE>().0.iter().enumerate() {
            recorder.store(at.0 + (line * LINE) as u64, content, streams, Location::caller());
            if streams { count_streamed(1) } else { count_stored(LINE_BYTES) }
        }
        0
    }

    /// Stores two words of one line, which is written back once: as two calls of [`Medium::store_u64`].
    ///
    /// # Errors
    /// As for [`Medium::store_u64`]; [`AccessError::Misaligned`] also if they are not in one line.
    #[inline]
    #[track_caller]
    pub fn store_two(&self, first: (MediumOffset, u64), second: (MediumOffset, u64)) -> Result<(), AccessError> {
        self.store_two_cached(first, second)?;
        self.flush(first.0, 8)
    }

    /// As [`Medium::store_two`], but the line is not written back: see [`Medium::store_cached`].
    ///
    /// # Errors
    /// As for [`Medium::store_two`].
    #[inline]
    #[track_caller]
    pub fn store_two_cached(&self, first: (MediumOffset, u64), second: (MediumOffset, u64)) -> Result<(), AccessError> {
        let (at, and_at) = (first.0, second.0);
        if at.0 / LINE_BYTES != and_at.0 / LINE_BYTES {
            return Err(AccessError::Misaligned { at });
        }
        self.store_cached(at, first.1)?;
        self.store_cached(and_at, second.1)
    }

    /// As [`Medium::store_u64`], but the line is not written back: that is left to a later [`Medium::flush`] of it. A
    /// write-back delays the next locked instruction as long as a fence would take.
    ///
    /// # Errors
    /// As for [`Medium::store_u64`].
    #[inline]
    #[track_caller]
    pub fn store_cached(&self, at: MediumOffset, value: u64) -> Result<(), AccessError> {
        if !at.is_aligned(8) {
            return Err(AccessError::Misaligned { at });
        }
        let address = self.writable(at, 8)?;
        if let Some(recorder) = &self.recorder {
            recorder.store(at.0, &value.to_le_bytes(), false, Location::caller());
        } else {
            // SAFETY: inside the map; see `store_u64`.
            unsafe { copy::store_u64(address.addr(), value) }
                .map_err(|_| AccessError::MediumFault { at, copied: 0 })?;
        }
        count_stored(8);
        Ok(())
    }

    /// Asks for `lines` lines at `at` for [`Medium::write_lines`] soon, where that helps it: not on processors that must get rid of a line before it is stored past
    /// the cache. A hint.
    #[inline]
    pub fn expect_lines(&self, at: MediumOffset, lines: u64) {
        if !self.needs_flush() || streams_into_cached_lines() {
            (0..lines).for_each(|line| self.expect_store(at.plus(line * LINE_BYTES)));
        }
    }

    /// Asks for the line at `at` to come into the cache, to be stored to through it soon. A hint: wrong offsets are ignored.
    #[inline]
    pub fn expect_store(&self, at: MediumOffset) {
        if let Ok(address) = self.writable(at, 1)
            && self.recorder.is_none()
        {
            prefetch_for_store(address);
        }
    }

    /// Asks for the line at `at` to come into the cache, to be loaded soon. A hint: wrong offsets are ignored.
    #[inline]
    pub fn expect_load(&self, at: MediumOffset) {
        if let Ok(address) = self.readable(at, 1) {
            prefetch_for_load(address);
        }
    }

    /// Stores `length` private bytes: the part before the first whole line, whole lines, the rest.
    ///
    /// # Safety
    /// `to` is the address of `at`; the range is inside the medium and may be stored to; `from` is readable.
    #[track_caller]
    pub(crate) unsafe fn store_bytes(
        &self,
        at: MediumOffset,
        to: *mut u8,
        from: *const u8,
        length: usize,
    ) -> Result<(), AccessError> {
        let head = (at.0.wrapping_neg() as usize % LINE).min(length);
        let lines = (length - head) / LINE;
        let tail_at = head + lines * LINE;
        let fault = |copied: usize| AccessError::MediumFault { at: at.plus(copied as u64), copied };
        // SAFETY: all three parts are inside the range.
        unsafe {
            // The lines first: a line that is being written back delays those stored past the cache, but not the reverse.
            let lines_left = match lines {
                0 => 0,
                _ => self.store_lines(at.plus(head as u64), to.add(head), from.add(head), lines, None, false),
            };
            if head != 0 {
                let left = self.store_part(at, to, from, head);
                if left != 0 {
                    return Err(fault(head - left));
                }
            }
            if lines_left != 0 {
                return Err(fault(tail_at - lines_left * LINE));
            }
            if tail_at != length {
                let tail = length - tail_at;
                let left = self.store_part(at.plus(tail_at as u64), to.add(tail_at), from.add(tail_at), tail);
                if left != 0 {
                    return Err(fault(length - left));
                }
            }
        }
        Ok(())
    }

    /// Stores less than a line through the cache and writes the line back. Returns the bytes left after a fault.
    ///
    /// # Safety
    /// As for `store_bytes`, but `from` may be bad; the part does not cross a line.
    #[inline]
    #[track_caller]
    unsafe fn store_part(&self, at: MediumOffset, to: *mut u8, from: *const u8, length: usize) -> usize {
        debug_assert!(at.0 / LINE_BYTES == (at.0 + length as u64 - 1) / LINE_BYTES);
        if let Some(recorder) = &self.recorder {
            let mut private = [0; LINE];
            // SAFETY: a part is less than a line.
            let left = unsafe { copy::copy(private.as_mut_ptr(), from, length) }
                .map_or_else(|fault| length - fault.copied, |()| 0);
            recorder.store(at.0, &private[..length - left], false, Location::caller());
            recorder.flush(at.0, (length - left) as u64, Location::caller());
            count_flushed(1);
            count_stored((length - left) as u64);
            return left;
        }
        // SAFETY: the caller's promise.
        let left = unsafe { copy::copy(to, from, length) }.map_or_else(|fault| length - fault.copied, |()| 0);
        if self.needs_flush() && left != length {
            count_flushed(1);
            // SAFETY: inside the medium.
            if unsafe { (self.write_back)(to, 1) } != 0 {
                return length;
            }
        }
        count_stored((length - left) as u64);
        left
    }

    /// Stores whole lines, hashing them if asked, and returns the lines left after a fault. `is_data` is said of a caller's
    /// bytes, which are not looked at again so soon.
    ///
    /// # Safety
    /// As for `store_bytes`, but `from` may be bad; `at` is a multiple of a line; a hash stands at a stripe's start.
    #[inline]
    #[track_caller]
    pub(crate) unsafe fn store_lines(
        &self,
        at: MediumOffset,
        to: *mut u8,
        from: *const u8,
        lines: usize,
        hash: Option<&mut DataHash>,
        is_data: bool,
    ) -> usize {
        debug_assert!(at.is_aligned(LINE_BYTES));
        if self.recorder.is_some() {
            // SAFETY: the caller's promise.
            return unsafe { self.record_lines(at, from, lines, hash) };
        }
        let kernels = kernels();
        let plain = self.mode() == PersistMode::Plain;
        let streams = !plain || (is_data && lines >= LINES_STREAMED_PLAIN && !note_written(at, lines));
        // SAFETY: the caller's promise; the lanes are null only for routines that do not use them.
        let left = unsafe {
            match hash {
                Some(hash) => {
                    let routine = if streams { kernels.copy_hashed } else { kernels.copy_cached_hashed };
                    let left = routine(to, from, lines, hash.lanes());
                    hash.advanced(lines - left);
                    left
                }
                None if streams => (kernels.copy)(to, from, lines, std::ptr::null_mut()),
                None => match copy::copy(to, from, lines * LINE) {
                    Ok(()) => 0,
                    Err(fault) => lines - fault.copied / LINE,
                },
            }
        };
        if plain && streams {
            // Such stores are not in the order of others: whoever sees what is stored after them must see them.
            store_fence();
        }
        if streams {
            count_streamed((lines - left) as u64);
        } else {
            count_stored(((lines - left) * LINE) as u64);
        }
        left
    }

    /// `store_lines` on a simulated medium.
    ///
    /// # Safety
    /// `from` may be bad, but where it is mapped it may be read.
    #[cold]
    #[track_caller]
    unsafe fn record_lines(
        &self,
        at: MediumOffset,
        from: *const u8,
        lines: usize,
        mut hash: Option<&mut DataHash>,
    ) -> usize {
        let Some(recorder) = &self.recorder else { return lines };
        for line in 0..lines {
            let mut private = [0; LINE];
            // SAFETY: the caller's promise.
            if unsafe { copy::copy(private.as_mut_ptr(), from.add(line * LINE), LINE) }.is_err() {
                return lines - line;
            }
            if let Some(hash) = &mut hash {
                hash.update(&private);
            }
            recorder.store(at.0 + (line * LINE) as u64, &private, true, Location::caller());
            count_streamed(1);
        }
        0
    }

    /// Writes the lines of a range back, for bytes that were stored by other means: through a map, or by a process that
    /// died before its fence. Durable after the next [`Medium::fence`] of this thread.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`], [`AccessError::MediumFault`]. Allowed on a read-only medium, where it changes nothing.
    #[track_caller]
    pub fn flush(&self, at: MediumOffset, length: u64) -> Result<(), AccessError> {
        self.readable(at, length)?;
        if length == 0 {
            return Ok(());
        }
        if !self.needs_flush() {
            return Ok(());
        }
        let first = at.0 / LINE_BYTES;
        let last = (at.0 + length - 1) / LINE_BYTES;
        count_flushed(last - first + 1);
        if let Some(recorder) = &self.recorder {
            recorder.flush(at.0, length, Location::caller());
            return Ok(());
        }
        // SAFETY: each of these lines holds a byte of the range, which is inside the map.
        let left = unsafe {
            let lines = (last - first + 1) as usize;
            (self.write_back)(self.base().add((first * LINE_BYTES) as usize), lines)
        };
        if left != 0 {
            let at = MediumOffset((last + 1 - left as u64) * LINE_BYTES);
            return Err(AccessError::MediumFault { at, copied: 0 });
        }
        Ok(())
    }

    /// Makes everything that this thread has stored or flushed durable, to the degree the medium can.
    #[inline]
    #[track_caller]
    pub fn fence(&self) {
        count_fence();
        if let Some(recorder) = &self.recorder {
            recorder.fence(Location::caller());
        } else if self.mode() == PersistMode::Plain {
            // The processor makes plain stores visible in order; the compiler must too.
            compiler_fence(Ordering::SeqCst);
        } else {
            store_fence();
        }
    }
}
