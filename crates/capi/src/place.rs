//! A piece of the medium, mapped where the caller's map has it.
//!
//! The file system's descriptor of the medium is a number that the program can have closed (`closefrom`) and that leads to a file of
//! the program's since. What it leads to is looked at before and after it is used. Without it, the piece is mapped from the map of the
//! medium that the file system has: the kernel makes a second map of the same pages.

use crate::maps::PAGE_BYTES;
use gannet_vfs::usermem::copy;
use gannet_vfs::{Errno, Error, MappedExtent, Result};
use rustix::fs::fstat;
use rustix::mm::{
    MapFlags, MprotectFlags, MremapFlags, ProtFlags, mmap, mmap_anonymous, mprotect, mremap, mremap_fixed, munmap,
};
use std::ffi::c_void;
use std::os::fd::BorrowedFd;

/// For who needs the descriptor itself.
pub(crate) const CLOSED: Error =
    Error::because(Errno::BADF, "the program has closed this library's descriptor of the medium");

/// The descriptor of a piece, if it leads to the medium.
pub(crate) fn descriptor_of(extent: &MappedExtent) -> Option<BorrowedFd<'_>> {
    // SAFETY: used only to ask what it is, and for maps that are not kept unless it was the medium's before and after.
    let descriptor = unsafe { BorrowedFd::borrow_raw(extent.descriptor?) };
    let status = fstat(descriptor).ok()?;
    ((status.st_dev, status.st_ino) == extent.descriptor_file).then_some(descriptor)
}

/// Maps a piece of the medium at `to`.
///
/// # Safety
/// As many bytes at `to` as the piece has are the caller's to replace. Nobody loads or stores there before this returns.
pub(crate) unsafe fn map_piece(extent: &MappedExtent, to: *mut c_void, writable: bool) -> Result<()> {
    let length = usize::try_from(extent.length_bytes).map_err(|_| Error::new(Errno::NOMEM))?;
    let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
    if let Some(descriptor) = descriptor_of(extent) {
        let offset = extent.descriptor_offset_bytes;
        // SAFETY: the caller's promise.
        let mapped = unsafe { mmap(to, length, protection, MapFlags::SHARED | MapFlags::FIXED, descriptor, offset) };
        match mapped {
            Ok(_) if descriptor_of(extent).is_some() => return Ok(()),
            Err(error) if descriptor_of(extent).is_some() => return Err(error.into()),
            // Of another file, which nobody has touched.
            _ => {}
        }
    }
    // SAFETY: the caller's promise.
    unsafe { map_again(extent.address, to, length, writable) }
}

/// Behind the end of a file its last page holds zeros. Where something else is in the medium, which only those who write to the
/// volume could change, a copy of the page takes its place: `used` bytes, and zeros.
///
/// # Safety
/// A mapped page is at `page`. It is the caller's to replace, and nobody uses it before this returns.
pub(crate) unsafe fn hide_behind_end(page: *mut c_void, used: usize) -> Result<()> {
    const PAGE: usize = PAGE_BYTES as usize;
    let mut held = [0_u8; PAGE];
    // SAFETY: mapped; what cannot be read of it is noticed by the copy.
    let copied = unsafe { copy::copy(held.as_mut_ptr(), page.cast(), PAGE) };
    copied.map_err(|_| Error::because(Errno::IO, "the file's last page cannot be read"))?;
    if held[used..].iter().all(|byte| *byte == 0) {
        return Ok(());
    }
    held[used..].fill(0);
    // SAFETY: the caller's promise.
    unsafe {
        mmap_anonymous(page, PAGE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED)?;
        page.cast::<[u8; PAGE]>().write(held);
        mprotect(page, PAGE, MprotectFlags::READ)?;
    }
    Ok(())
}

/// Maps what is mapped at `from` once more, at `to`.
///
/// # Safety
/// As for [`map_piece`].
unsafe fn map_again(from: usize, to: *mut c_void, length: usize, writable: bool) -> Result<()> {
    if from == 0 || !from.is_multiple_of(PAGE_BYTES as usize) {
        return Err(CLOSED);
    }
    // In two steps: what is at `to` stays there if the kernel cannot do it (huge pages of hugetlbfs, a lack of addresses).
    // SAFETY: a length of 0 leaves what is at `from` and makes a second map of its pages, at an address of the kernel's choice.
    let again = unsafe { mremap(from as *mut c_void, 0, length, MremapFlags::MAYMOVE) };
    let again = again.map_err(|error| match error {
        rustix::io::Errno::NOMEM => Error::new(Errno::NOMEM),
        _ => CLOSED,
    })?;
    let placed = || -> rustix::io::Result<()> {
        // SAFETY: the map just made, which moves over what the caller has there.
        unsafe {
            if !writable {
                mprotect(again, length, MprotectFlags::READ)?;
            }
            mremap_fixed(again, length, length, MremapFlags::MAYMOVE, to)?;
        }
        Ok(())
    };
    placed().map_err(|error| {
        // SAFETY: the map made above, which has not moved.
        let _ = unsafe { munmap(again, length) };
        error.into()
    })
}
