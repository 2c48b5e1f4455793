//! How every function of the header runs.

use crate::error;
use crate::volume::Volume;
use gannet_vfs::{Errno, Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs one call on a handle. Returns what `work` returns, or a negative errno value, noted for `gannet_error_text`.
///
/// # Safety
/// `volume` is `NULL` or a handle that is not detached before this returns.
#[inline]
pub(crate) unsafe fn run(call: &'static str, volume: *const Volume, work: impl FnOnce(&Volume) -> Result<i64>) -> i64 {
    // SAFETY: the caller's promise.
    let Some(volume) = (unsafe { volume.as_ref() }) else {
        return error::note(call, Error::because(Errno::INVAL, "the volume's handle is NULL"));
    };
    // The volume's own state is behind locks that do not mind, and a file system leaves nothing half done that others see.
    let result = catch_unwind(AssertUnwindSafe(|| work(volume)))
        .unwrap_or_else(|_| Err(Error::because(Errno::IO, "a mistake in libgannet, described on standard error")));
    match result {
        Ok(value) => value,
        Err(error) => error::note(call, error),
    }
}

/// [`run`] for calls that return 0 or an error.
///
/// # Safety
/// As for [`run`].
#[inline]
pub(crate) unsafe fn run_plain(
    call: &'static str,
    volume: *const Volume,
    work: impl FnOnce(&Volume) -> Result<()>,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { run(call, volume, |volume| work(volume).map(|()| 0)) as i32 }
}
