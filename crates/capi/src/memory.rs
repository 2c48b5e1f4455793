//! The caller's memory: what is at its pointers is copied in and out, and a bad one is `EFAULT`.
//!
//! The promise that memory may be read or written is made once, by the function of the header that got the pointer; from
//! there on, values of these types are safe to use. No Rust reference to the caller's memory is ever made.

use gannet_vfs::usermem::{CStringError, UserSlice, copy};
use gannet_vfs::{Errno, Error, Result};
use std::ffi::c_char;
use std::mem::MaybeUninit;

const BAD: Error = Error::because(Errno::FAULT, "a pointer to memory that is not there");

/// Types that every bit pattern is a value of, and that may hold bytes of padding.
///
/// # Safety
/// Every bit pattern is a value.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: numbers.
unsafe impl Plain for u8 {}
// SAFETY: numbers.
unsafe impl Plain for u32 {}
// SAFETY: numbers.
unsafe impl Plain for u64 {}
// SAFETY: numbers.
unsafe impl Plain for i64 {}
// SAFETY: numbers.
unsafe impl Plain for usize {}
// SAFETY: numbers.
unsafe impl<const COUNT: usize> Plain for [u64; COUNT] {}
// SAFETY: an address and a length; the address is not used as a pointer of Rust.
unsafe impl Plain for libc::iovec {}
// SAFETY: numbers.
unsafe impl Plain for libc::flock {}
// SAFETY: numbers.
unsafe impl Plain for libc::timespec {}

/// An array of the caller's to read from.
pub(crate) struct Input<T>(*const T);

impl<T: Plain> Input<T> {
    /// # Safety
    /// What is mapped of the array may be read during the call.
    pub(crate) const unsafe fn new(pointer: *const T) -> Self {
        Self(pointer)
    }

    /// Whether it is `NULL`.
    pub(crate) const fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// The element at `index`.
    pub(crate) fn get(&self, index: usize) -> Result<T> {
        if self.0.is_null() {
            return Err(BAD);
        }
        let mut value = MaybeUninit::<T>::uninit();
        // SAFETY: reading was promised; the target has the size of `T`.
        unsafe { copy::copy(value.as_mut_ptr().cast(), self.0.wrapping_add(index).cast(), size_of::<T>()) }
            .map_err(|_| BAD)?;
        // SAFETY: all its bytes were written, and every bit pattern is a value.
        Ok(unsafe { value.assume_init() })
    }

    /// The first `count` elements.
    pub(crate) fn list(&self, count: usize) -> Result<Vec<T>> {
        (0..count).map(|index| self.get(index)).collect()
    }
}

impl Input<u8> {
    /// Copies `into.len()` bytes.
    pub(crate) fn read(&self, into: &mut [u8]) -> Result<()> {
        if into.is_empty() {
            return Ok(());
        }
        if self.0.is_null() {
            return Err(BAD);
        }
        // SAFETY: reading was promised; the target is `into`.
        unsafe { copy::copy(into.as_mut_ptr(), self.0, into.len()) }.map_err(|_| BAD)
    }
}

/// An array of the caller's to write to.
pub(crate) struct Output<T>(*mut T);

impl<T: Copy> Output<T> {
    /// # Safety
    /// What is mapped of the array may be written during the call.
    pub(crate) const unsafe fn new(pointer: *mut T) -> Self {
        Self(pointer)
    }

    /// Whether it is `NULL`.
    pub(crate) const fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Stores the element at `index`.
    pub(crate) fn set(&self, index: usize, value: &T) -> Result<()> {
        if self.0.is_null() {
            return Err(BAD);
        }
        // SAFETY: writing was promised; the source has the size of `T`.
        unsafe { copy::copy(self.0.wrapping_add(index).cast(), (&raw const *value).cast(), size_of::<T>()) }
            .map_err(|_| BAD)
    }

    /// Stores the only element.
    pub(crate) fn put(&self, value: &T) -> Result<()> {
        self.set(0, value)
    }
}

impl Output<u8> {
    /// Copies `bytes` there.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        if self.0.is_null() {
            return Err(BAD);
        }
        // SAFETY: writing was promised; the source is `bytes`.
        unsafe { copy::copy(self.0, bytes.as_ptr(), bytes.len()) }.map_err(|_| BAD)
    }
}

/// A string of the caller's that ends with a zero byte.
#[derive(Clone, Copy)]
pub(crate) struct Text(*const c_char);

impl Text {
    /// # Safety
    /// What is mapped of the string may be read during the call.
    pub(crate) const unsafe fn new(pointer: *const c_char) -> Self {
        Self(pointer)
    }

    /// Whether it is empty.
    pub(crate) fn is_empty(&self) -> Result<bool> {
        match self.read(&mut [0], Errno::NAMETOOLONG) {
            Ok(_) => Ok(true),
            Err(error) if error.errno() == Errno::NAMETOOLONG => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Copies it to `room`. `EFAULT`, and `too_long` if it does not end there.
    pub(crate) fn read<'r>(&self, room: &'r mut [u8], too_long: Errno) -> Result<&'r [u8]> {
        if self.0.is_null() {
            return Err(BAD);
        }
        // SAFETY: reading was promised.
        unsafe { copy::read_c_string(self.0.addr(), room) }.map_err(|error| match error {
            CStringError::Fault => BAD,
            CStringError::TooLong => Error::new(too_long),
        })
    }
}

/// A buffer of the caller's. `EFAULT` for `NULL` with a length, which needs no handler of signals.
pub(crate) fn buffer<T>(pointer: *const T, length_bytes: usize) -> Result<UserSlice> {
    if pointer.is_null() && length_bytes > 0 { Err(BAD) } else { Ok(UserSlice::from_raw(pointer, length_bytes)) }
}
