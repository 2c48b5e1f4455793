//! [`Source`] and [`Destination`]: lists of user ranges with a cursor.
//!
//! For: one `read` or `write` call's memory, on its way from a front end through a file system to the medium. Holds
//! addresses and a count, allocates nothing; the bytes are touched by [`crate::copy`] only.

use std::io::{IoSlice, IoSliceMut};
use std::marker::PhantomData;
use std::mem::MaybeUninit;

use crate::copy::{self, Fault};
use crate::slice::UserSlice;

/// Of a page that comes as a whole.
const PAGE_BYTES: usize = 4096;

/// The part that both directions share.
#[derive(Clone, Copy, Debug)]
struct Cursor<'a> {
    /// What is left of the current range.
    head: UserSlice,
    /// The ranges after it.
    rest: &'a [UserSlice],
    /// Bytes left in total: at most what `head` and `rest` hold.
    remaining: usize,
}

impl<'a> Cursor<'a> {
    fn single(slice: UserSlice) -> Cursor<'a> {
        Cursor { head: slice, rest: &[], remaining: slice.length() }
    }

    fn list(segments: &'a [UserSlice]) -> Option<Cursor<'a>> {
        let mut remaining = 0usize;
        for segment in segments {
            remaining = remaining.checked_add(segment.length())?;
        }
        if remaining > isize::MAX as usize {
            return None;
        }
        let mut cursor = Cursor { head: UserSlice::EMPTY, rest: segments, remaining };
        cursor.settle();
        Some(cursor)
    }

    /// Moves to the next range that has bytes.
    #[inline]
    fn settle(&mut self) {
        while self.head.is_empty() {
            let Some((first, rest)) = self.rest.split_first() else { return };
            self.head = *first;
            self.rest = rest;
        }
    }

    #[inline]
    fn contiguous(&self) -> UserSlice {
        self.head.truncated(self.remaining)
    }

    #[inline]
    fn advance(&mut self, count: usize) {
        let mut count = count.min(self.remaining);
        self.remaining -= count;
        loop {
            let step = count.min(self.head.length());
            self.head = self.head.skipped(step);
            count -= step;
            self.settle();
            if count == 0 {
                return;
            }
        }
    }

    #[inline]
    fn take(&mut self, count: usize) -> Cursor<'a> {
        let mut taken = *self;
        taken.remaining = count.min(self.remaining);
        self.advance(count);
        taken
    }
}

macro_rules! cursor_methods {
    ($name:ident) => {
        impl<'a> $name<'a> {
            /// No bytes.
            #[must_use]
            pub fn empty() -> $name<'a> {
                $name { cursor: Cursor::single(UserSlice::EMPTY), borrowed: PhantomData }
            }

            /// Bytes left.
            #[inline]
            #[must_use]
            pub fn remaining(&self) -> usize {
                self.cursor.remaining
            }

            /// Whether no byte is left.
            #[inline]
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.cursor.remaining == 0
            }

            /// The bytes up to the end of the current range: what one copy can handle. Empty only at the end.
            #[inline]
            #[must_use]
            pub fn next_contiguous(&self) -> UserSlice {
                self.cursor.contiguous()
            }

            /// Passes over `count` bytes, or to the end if there are fewer.
            #[inline]
            pub fn advance(&mut self, count: usize) {
                self.cursor.advance(count);
            }

            /// Splits the next `count` bytes (or fewer, if there are) off and advances past them.
            #[inline]
            #[must_use]
            pub fn take(&mut self, count: usize) -> $name<'a> {
                $name { cursor: self.cursor.take(count), borrowed: PhantomData }
            }

            /// Forgets what lies beyond the next `count` bytes.
            #[inline]
            pub fn truncate(&mut self, count: usize) {
                self.cursor.remaining = self.cursor.remaining.min(count);
            }
        }
    };
}

/// Bytes to be copied *from*: what a `write` is given. A clone remembers a position to come back to.
#[derive(Clone, Debug)]
pub struct Source<'a> {
    cursor: Cursor<'a>,
    borrowed: PhantomData<&'a [u8]>,
}

cursor_methods!(Source);

impl<'a> Source<'a> {
    /// One range that may be bad.
    ///
    /// # Safety
    /// During `'a` every mapped byte of the range may be read at any moment, whatever else the process does with it: it
    /// holds nothing that Rust code uses exclusively meanwhile. (Unmapped bytes are reported as a [`Fault`].)
    #[inline]
    #[must_use]
    pub unsafe fn from_user(slice: UserSlice) -> Source<'a> {
        Source { cursor: Cursor::single(slice.truncated(isize::MAX as usize)), borrowed: PhantomData }
    }

    /// Several ranges that may be bad, one after the other. `None` if they sum up to more than `isize::MAX` bytes, for
    /// which the system call is EINVAL. The array itself is private memory: a front end copies it in first.
    ///
    /// # Safety
    /// As for [`Source::from_user`], for each range.
    #[inline]
    #[must_use]
    pub unsafe fn from_user_segments(segments: &'a [UserSlice]) -> Option<Source<'a>> {
        Some(Source { cursor: Cursor::list(segments)?, borrowed: PhantomData })
    }

    /// Bytes of this program's own.
    #[inline]
    #[must_use]
    pub fn from_slice(bytes: &'a [u8]) -> Source<'a> {
        Source { cursor: Cursor::single(UserSlice::from_raw(bytes.as_ptr(), bytes.len())), borrowed: PhantomData }
    }

    /// Several slices, one after the other. `None` if they sum up to more than `isize::MAX` bytes.
    #[inline]
    #[must_use]
    pub fn from_io_slices(slices: &'a [IoSlice<'_>]) -> Option<Source<'a>> {
        // SAFETY: IoSlice is guaranteed to have the layout of struct iovec on Unix, which is that of UserSlice, and every
        // bit pattern of it is a valid UserSlice. The bytes are borrowed for at least `'a`.
        let segments = unsafe { std::slice::from_raw_parts(slices.as_ptr().cast::<UserSlice>(), slices.len()) };
        Some(Source { cursor: Cursor::list(segments)?, borrowed: PhantomData })
    }

    /// Touches each page of what is left, so that it is there when it is copied, most likely. Ends at the first that cannot be read: the copy says so.
    #[inline]
    pub fn fault_in(&self) {
        let mut left = self.cursor;
        while left.remaining > 0 {
            let piece = left.contiguous();
            let mut at = piece.address();
            loop {
                // SAFETY: whoever made this said that it may be read where it is mapped.
                if unsafe { copy::load_u8(at) }.is_err() {
                    return;
                }
                match (at | (PAGE_BYTES - 1)).checked_add(1) {
                    Some(next) if next - piece.address() < piece.length() => at = next,
                    _ => break,
                }
            }
            left.advance(piece.length());
        }
    }

    /// Fills `bytes` from the cursor and advances past them.
    ///
    /// # Errors
    /// [`Fault`] with the number of bytes copied, if an address was bad or fewer bytes than asked for remain; the cursor
    /// then stands after the copied bytes.
    pub fn read_into(&mut self, bytes: &mut [u8]) -> Result<(), Fault> {
        // SAFETY: `bytes` may be overwritten.
        unsafe { self.read_into_raw(bytes.as_mut_ptr(), bytes.len()) }
    }

    /// As [`Source::read_into`], for a buffer that holds nothing yet: returns it filled.
    ///
    /// # Errors
    /// As for [`Source::read_into`]; the bytes counted are initialized then, too.
    pub fn read_into_uninit<'b>(&mut self, bytes: &'b mut [MaybeUninit<u8>]) -> Result<&'b mut [u8], Fault> {
        // SAFETY: `bytes` may be overwritten; if all of them were, they are initialized.
        unsafe {
            self.read_into_raw(bytes.as_mut_ptr().cast(), bytes.len())?;
            Ok(std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len()))
        }
    }

    /// # Safety
    /// `length` bytes at `to` may be overwritten.
    unsafe fn read_into_raw(&mut self, to: *mut u8, length: usize) -> Result<(), Fault> {
        let mut done = 0;
        while done < length {
            let part = self.next_contiguous().truncated(length - done);
            if part.is_empty() {
                return Err(Fault { copied: done });
            }
            // SAFETY: the target is inside the range; the source was promised readable when the cursor was built.
            let copied = unsafe { copy::copy(to.add(done), part.address() as *const u8, part.length()) };
            let count = copied.map_or_else(|fault| fault.copied, |()| part.length());
            self.advance(count);
            done += count;
            copied.map_err(|_| Fault { copied: done })?;
        }
        Ok(())
    }
}

/// Bytes to be copied *to*: what a `read` is given. A clone remembers a position to come back to.
#[derive(Clone, Debug)]
pub struct Destination<'a> {
    cursor: Cursor<'a>,
    borrowed: PhantomData<&'a mut [u8]>,
}

cursor_methods!(Destination);

impl<'a> Destination<'a> {
    /// One range that may be bad.
    ///
    /// # Safety
    /// During `'a` every mapped byte of the range may be overwritten at any moment, whatever else the process does with
    /// it: it holds nothing that Rust code relies on meanwhile. (Unmapped or read-only bytes are reported as a [`Fault`].)
    #[inline]
    #[must_use]
    pub unsafe fn from_user(slice: UserSlice) -> Destination<'a> {
        Destination { cursor: Cursor::single(slice.truncated(isize::MAX as usize)), borrowed: PhantomData }
    }

    /// Several ranges that may be bad, one after the other. `None` if they sum up to more than `isize::MAX` bytes, for
    /// which the system call is EINVAL. The array itself is private memory: a front end copies it in first.
    ///
    /// # Safety
    /// As for [`Destination::from_user`], for each range.
    #[inline]
    #[must_use]
    pub unsafe fn from_user_segments(segments: &'a [UserSlice]) -> Option<Destination<'a>> {
        Some(Destination { cursor: Cursor::list(segments)?, borrowed: PhantomData })
    }

    /// Bytes of this program's own.
    #[inline]
    #[must_use]
    pub fn from_slice(bytes: &'a mut [u8]) -> Destination<'a> {
        Destination {
            cursor: Cursor::single(UserSlice::from_raw(bytes.as_mut_ptr(), bytes.len())),
            borrowed: PhantomData,
        }
    }

    /// Several slices, one after the other. `None` if they sum up to more than `isize::MAX` bytes.
    #[inline]
    #[must_use]
    pub fn from_io_slices(slices: &'a mut [IoSliceMut<'_>]) -> Option<Destination<'a>> {
        // SAFETY: IoSliceMut is guaranteed to have the layout of struct iovec on Unix, which is that of UserSlice, and
        // every bit pattern of it is a valid UserSlice. The bytes are borrowed exclusively for at least `'a`.
        let segments = unsafe { std::slice::from_raw_parts(slices.as_ptr().cast::<UserSlice>(), slices.len()) };
        Some(Destination { cursor: Cursor::list(segments)?, borrowed: PhantomData })
    }

    /// Copies `bytes` to the cursor and advances past them.
    ///
    /// # Errors
    /// [`Fault`] with the number of bytes copied, if an address was bad or there is not room for all of them; the cursor
    /// then stands after the copied bytes.
    pub fn write_from(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let mut done = 0;
        while done < bytes.len() {
            let part = self.next_contiguous().truncated(bytes.len() - done);
            if part.is_empty() {
                return Err(Fault { copied: done });
            }
            // SAFETY: the source is inside `bytes`; the target was promised writable when the cursor was built.
            let copied = unsafe { copy::copy(part.address() as *mut u8, bytes.as_ptr().add(done), part.length()) };
            let count = copied.map_or_else(|fault| fault.copied, |()| part.length());
            self.advance(count);
            done += count;
            copied.map_err(|_| Fault { copied: done })?;
        }
        Ok(())
    }

    /// Stores `count` zeros at the cursor and advances past them: what a read of a hole gives.
    ///
    /// # Errors
    /// As for [`Destination::write_from`].
    pub fn write_zeros(&mut self, count: usize) -> Result<(), Fault> {
        let mut done = 0;
        while done < count {
            let part = self.next_contiguous().truncated(count - done);
            if part.is_empty() {
                return Err(Fault { copied: done });
            }
            // SAFETY: the target was promised writable when the cursor was built.
            let zeroed = unsafe { copy::zero(part.address() as *mut u8, part.length()) };
            let step = zeroed.map_or_else(|fault| fault.copied, |()| part.length());
            self.advance(step);
            done += step;
            zeroed.map_err(|_| Fault { copied: done })?;
        }
        Ok(())
    }
}
