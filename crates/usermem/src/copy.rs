//! The fault-tolerant copies: together with their [`crate::routines`] the only code that touches a caller's memory.

use std::error::Error;
use std::fmt;

use crate::routines::{
    Loaded, gannet_usermem_copy, gannet_usermem_load8, gannet_usermem_load32, gannet_usermem_load64,
    gannet_usermem_store32, gannet_usermem_store64, gannet_usermem_zero,
};

pub use crate::routines::{allow_wide_registers, forbid_wide_registers, long_copies_at_once};

/// A copy met an address that is not mapped, or not writable, or whose memory is gone. `EFAULT` to a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Bytes that were copied before it, from the beginning and without gaps.
    pub copied: usize,
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "bad address after {} bytes", self.copied)
    }
}

impl Error for Fault {}

/// Copies `count` bytes; either side may be bad.
///
/// # Errors
/// [`Fault`] with the exact number of bytes copied.
///
/// # Safety
/// Where `from` is mapped, it may be read; where `to` is mapped, it may be overwritten. The ranges do not overlap.
#[inline]
pub unsafe fn copy(to: *mut u8, from: *const u8, count: usize) -> Result<(), Fault> {
    // SAFETY: the caller's promise.
    let left = unsafe { gannet_usermem_copy(to, from, count) };
    if left == 0 { Ok(()) } else { Err(Fault { copied: count - left }) }
}

/// Stores `count` zeros at an address that may be bad.
///
/// # Errors
/// [`Fault`] with the exact number of bytes stored.
///
/// # Safety
/// Where `to` is mapped, it may be overwritten.
#[inline]
pub unsafe fn zero(to: *mut u8, count: usize) -> Result<(), Fault> {
    // SAFETY: the caller's promise.
    let left = unsafe { gannet_usermem_zero(to, count) };
    if left == 0 { Ok(()) } else { Err(Fault { copied: count - left }) }
}

#[inline]
fn loaded(loaded: &Loaded) -> Result<u64, Fault> {
    if loaded.bad == 0 { Ok(loaded.value) } else { Err(Fault { copied: 0 }) }
}

/// Loads a byte.
///
/// # Errors
/// [`Fault`] if the address is bad.
///
/// # Safety
/// Where it is mapped, it may be read.
#[inline]
pub unsafe fn load_u8(address: usize) -> Result<u8, Fault> {
    // SAFETY: the caller's promise.
    loaded(&unsafe { gannet_usermem_load8(address) }).map(|value| value as u8)
}

/// Loads four bytes, at once if aligned.
///
/// # Errors
/// [`Fault`] if the address is bad.
///
/// # Safety
/// Where it is mapped, it may be read.
#[inline]
pub unsafe fn load_u32(address: usize) -> Result<u32, Fault> {
    // SAFETY: the caller's promise.
    loaded(&unsafe { gannet_usermem_load32(address) }).map(|value| value as u32)
}

/// Loads eight bytes, at once if aligned.
///
/// # Errors
/// [`Fault`] if the address is bad.
///
/// # Safety
/// Where it is mapped, it may be read.
#[inline]
pub unsafe fn load_u64(address: usize) -> Result<u64, Fault> {
    // SAFETY: the caller's promise.
    loaded(&unsafe { gannet_usermem_load64(address) })
}

/// Stores four bytes, at once if aligned.
///
/// # Errors
/// [`Fault`] if the address is bad.
///
/// # Safety
/// Where it is mapped, it may be overwritten.
#[inline]
pub unsafe fn store_u32(address: usize, value: u32) -> Result<(), Fault> {
    // SAFETY: the caller's promise.
    if unsafe { gannet_usermem_store32(address, value) } == 0 { Ok(()) } else { Err(Fault { copied: 0 }) }
}

/// Stores eight bytes, at once if aligned.
///
/// # Errors
/// [`Fault`] if the address is bad.
///
/// # Safety
/// Where it is mapped, it may be overwritten.
#[inline]
pub unsafe fn store_u64(address: usize, value: u64) -> Result<(), Fault> {
    // SAFETY: the caller's promise.
    if unsafe { gannet_usermem_store64(address, value) } == 0 { Ok(()) } else { Err(Fault { copied: 0 }) }
}

/// Why a string could not be copied in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CStringError {
    /// An address before its end is bad: `EFAULT`.
    Fault,
    /// It does not end within the buffer: `ENAMETOOLONG` for a path.
    TooLong,
}

/// Where the first zero byte is.
// Byte by byte, since a wider load of what was just copied by pieces that overlap would wait until they are stored; by fours, since
// the counting would cost more than the looking.
#[inline]
fn zero_in(bytes: &[u8]) -> Option<usize> {
    let (fours, rest) = bytes.as_chunks::<4>();
    for (index, four) in fours.iter().enumerate() {
        if four[0] == 0 {
            return Some(index * 4);
        }
        if four[1] == 0 {
            return Some(index * 4 + 1);
        }
        if four[2] == 0 {
            return Some(index * 4 + 2);
        }
        if four[3] == 0 {
            return Some(index * 4 + 3);
        }
    }
    rest.iter().position(|&byte| byte == 0).map(|at| fours.len() * 4 + at)
}

/// Copies a string that ends with a zero byte into `buffer` and returns it without that byte. Looks at no page beyond the
/// one in which the string ends.
///
/// # Errors
/// [`CStringError`].
///
/// # Safety
/// Where the string is mapped, it may be read.
pub unsafe fn read_c_string(address: usize, buffer: &mut [u8]) -> Result<&[u8], CStringError> {
    const CHUNK_BYTES: usize = 64;
    let mut done = 0;
    while done < buffer.len() {
        let at = address.wrapping_add(done);
        // Chunks end at multiples of their size, hence never cross a page.
        let step = (CHUNK_BYTES - at % CHUNK_BYTES).min(buffer.len() - done);
        // SAFETY: the target is inside `buffer`; reading the rest of a page that the string reaches is the caller's promise.
        unsafe { copy(buffer.as_mut_ptr().add(done), at as *const u8, step) }.map_err(|_| CStringError::Fault)?;
        if let Some(end) = zero_in(&buffer[done..done + step]) {
            return Ok(&buffer[..done + end]);
        }
        done += step;
    }
    Err(CStringError::TooLong)
}
