//! What lies behind the end of a mapped file: pages whose use is SIGBUS, until the file is longer.
//!
//! They are maps of an empty memory file, so that the kernel itself tells the program, and tells EFAULT to calls with such addresses.
//! There is one of them from the first need on; others are made of it without a descriptor (`mremap` of nothing).
//! A file that another process makes longer is seen at the first use: the signal's handler looks at the file once more.

use super::regions::{containing, placing};
use super::renew::renew_part;
use super::{MAP_SHARED, PAGE_BYTES, lazy};
use crate::front::call::Call;
use crate::number::*;
use crate::raw::{is_error, syscall};
use core::sync::atomic::{AtomicUsize, Ordering};
use gannet_vfs::FileSystem;

const PROT_READ_WRITE: usize = 3;

/// Where the first of these maps is; 0: there is none yet.
static ORIGINAL: AtomicUsize = AtomicUsize::new(0);

/// Makes the first map. 0 where that cannot be, for want of a descriptor or memory.
#[cold]
fn make_original() -> usize {
    const MFD_CLOEXEC: usize = 1;
    // SAFETY: a name that ends in zero; a map of our own; the descriptor just made.
    let made = unsafe {
        let file = syscall(MEMFD_CREATE, [c"gannet-end".as_ptr() as usize, MFD_CLOEXEC]);
        if is_error(file) {
            return 0;
        }
        let made = syscall(MMAP, [0, PAGE_BYTES, PROT_READ_WRITE, MAP_SHARED, file as usize, 0]);
        syscall(CLOSE, [file as usize]);
        made
    };
    if is_error(made) {
        return 0;
    }
    match ORIGINAL.compare_exchange(0, made as usize, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => made as usize,
        Err(others) => {
            // SAFETY: the map made above, which nobody knows.
            unsafe { syscall(MUNMAP, [made as usize, PAGE_BYTES]) };
            others
        }
    }
}

/// Puts pages that nothing is behind at `at`, over what is there. False where they cannot be had.
pub(super) fn put(at: usize, length: usize, protection: usize) -> bool {
    const MAYMOVE_FIXED: usize = 3;
    let original = match ORIGINAL.load(Ordering::Acquire) {
        0 => make_original(),
        original => original,
    };
    // SAFETY: of a length of nothing another map is made of the same file, inside the caller's reservation.
    original != 0
        && unsafe {
            !is_error(syscall(MREMAP, [original, 0, length, MAYMOVE_FIXED, at]))
                && (protection == PROT_READ_WRITE || !is_error(syscall(MPROTECT, [at, length, protection])))
        }
}

/// How many bytes of a range of a file, in whole pages, the file reaches.
pub(super) fn reached(fs: &dyn FileSystem, node: gannet_vfs::NodeId, offset: u64, length: usize) -> usize {
    let size = fs.attributes(node).map_or(u64::MAX, |all| all.size_bytes);
    let bytes = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
    bytes.checked_next_multiple_of(PAGE_BYTES).unwrap_or(usize::MAX).min(length)
}

/// A page was used that nothing was behind when it was mapped. True if the file reaches it by now: it is mapped then, and can be used.
pub(crate) fn used(call: &Call<'_>, address: usize) -> bool {
    if containing(address).is_none() {
        return lazy::used(call, address);
    }
    placing(|| {
        // Another thread may have made it anew meanwhile, or taken it away.
        let Some(part) = containing(address) else { return true };
        let Ok(fs) = call.front.file_system(part.mount) else { return false };
        let length = part.end - part.start;
        address - part.start < reached(fs, part.node, part.offset, length)
            && renew_part(call, fs, &part, part.protection).is_ok()
            // Where it was cut meanwhile, or has no blocks there.
            && containing(address).is_none()
    })
}
