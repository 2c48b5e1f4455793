//! Plain values from and to the program's memory, whose addresses may be bad.
//!
//! NULL is known to be without a look: many calls take it for *none*, and a look would end a program that blocks SIGSEGV.

use gannet_usermem::{CStringError, Fault, copy};

/// A fault where there are bytes, and no address at all.
#[inline]
fn check(address: usize, bytes: usize) -> Result<(), Fault> {
    if address == 0 && bytes != 0 { Err(Fault { copied: 0 }) } else { Ok(()) }
}

/// Reads a value of plain bytes at `address`.
pub(crate) fn read_value<T: Plain>(address: usize, value: &mut T) -> Result<(), Fault> {
    check(address, size_of::<T>())?;
    // SAFETY: the target is ours and `T` may hold any bytes; the source may be bad, which the copy reports.
    unsafe { copy::copy((value as *mut T).cast(), address as *const u8, size_of::<T>()) }
}

/// Writes a value of plain bytes at `address`.
pub(crate) fn write_value<T: Plain>(address: usize, value: &T) -> Result<(), Fault> {
    check(address, size_of::<T>())?;
    // SAFETY: the source is ours; the target is memory the program named for the kernel to write to.
    unsafe { copy::copy(address as *mut u8, (value as *const T).cast(), size_of::<T>()) }
}

/// Writes bytes at `address`.
pub(crate) fn write_bytes(address: usize, bytes: &[u8]) -> Result<(), Fault> {
    check(address, bytes.len())?;
    // SAFETY: as for [`write_value`].
    unsafe { copy::copy(address as *mut u8, bytes.as_ptr(), bytes.len()) }
}

/// Reads bytes at `address`.
pub(crate) fn read_bytes(address: usize, bytes: &mut [u8]) -> Result<(), Fault> {
    check(address, bytes.len())?;
    // SAFETY: as for [`read_value`].
    unsafe { copy::copy(bytes.as_mut_ptr(), address as *const u8, bytes.len()) }
}

/// Reads the string at `address` into `buffer`, without its zero byte.
pub(crate) fn read_string(address: usize, buffer: &mut [u8]) -> Result<&[u8], CStringError> {
    check(address, 1).map_err(|_| CStringError::Fault)?;
    // SAFETY: reading the program's memory where it is mapped is what a system call does.
    unsafe { copy::read_c_string(address, buffer) }
}

/// Reads the string at `address` without its zero byte, however long the kernel lets one of an environment be.
pub(crate) fn read_long_string(address: usize) -> Result<Vec<u8>, CStringError> {
    /// As most are shorter.
    const SHORT_BYTES: usize = 4096;
    const STRING_BYTES_MAX: usize = 128 << 10;
    let mut buffer = vec![0u8; SHORT_BYTES];
    if read_string(address, &mut buffer) == Err(CStringError::TooLong) {
        buffer = vec![0u8; STRING_BYTES_MAX];
    }
    let length = read_string(address, &mut buffer)?.len();
    buffer.truncate(length);
    Ok(buffer)
}

/// Types of which any bytes are a value, without padding.
///
/// # Safety
/// Exactly that.
pub(crate) unsafe trait Plain: Copy {}
// SAFETY: integers.
unsafe impl Plain for u8 {}
// SAFETY: integers.
unsafe impl Plain for i32 {}
// SAFETY: integers.
unsafe impl Plain for u32 {}
// SAFETY: integers.
unsafe impl Plain for u64 {}
// SAFETY: integers.
unsafe impl Plain for i64 {}
// SAFETY: integers.
unsafe impl Plain for usize {}
// SAFETY: no padding between plain elements.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}
