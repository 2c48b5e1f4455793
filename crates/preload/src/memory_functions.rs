//! `memcpy` and its kin are the C library's own, whoever else defines them: an interposed one (a sanitizer's, a library of the program's own) must
//! not run inside of the program's system calls, on stacks and memory that it knows nothing of. The thread sanitizer's took the engine's shared
//! memory for the program's and reported races in it.
//!
//! The names are defined here, for this library only, and go on to what [`bind`] found in the C library. Before that, and should it find nothing,
//! there are plain ones.

use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicPtr, Ordering};

/// Where a function is.
type Place = AtomicPtr<()>;

static MEMCPY: Place = Place::new(copy as *mut ());
static MEMMOVE: Place = Place::new(copy_either_way as *mut ());
static MEMSET: Place = Place::new(fill as *mut ());
static MEMCMP: Place = Place::new(compare as *mut ());
static BCMP: Place = Place::new(compare as *mut ());
static STRLEN: Place = Place::new(length as *mut ());

macro_rules! goes_on {
    ($($name:literal to $place:ident),*) => {
        $(global_asm!(
            ".pushsection .text.way.gannet_memory, \"ax\", @progbits",
            ".p2align 4",
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!(".type ", $name, ", @function"),
            concat!($name, ": jmp qword ptr [rip + {place}]"),
            concat!(".size ", $name, ", . - ", $name),
            ".popsection",
            place = sym $place,
        );)*
    };
}
goes_on!("memcpy" to MEMCPY, "memmove" to MEMMOVE, "memset" to MEMSET, "memcmp" to MEMCMP, "bcmp" to BCMP, "strlen" to STRLEN);

/// Looks the functions up in the C library.
///
/// # Safety
/// As for [`gannet_intercept::c_library_function`].
#[unsafe(link_section = ".text.way.gannet")]
pub(crate) unsafe fn bind() {
    let all: [(&[u8], &Place); 6] = [
        (b"memcpy", &MEMCPY),
        (b"memmove", &MEMMOVE),
        (b"memset", &MEMSET),
        (b"memcmp", &MEMCMP),
        (b"bcmp", &BCMP),
        (b"strlen", &STRLEN),
    ];
    for (name, place) in all {
        // SAFETY: the caller's promise.
        if let Some(function) = unsafe { gannet_intercept::c_library_function(name) } {
            place.store(function.cast_mut(), Ordering::Relaxed);
        }
    }
}

// What follows is written so that the compiler cannot take it for the function that it stands for.

unsafe extern "C" fn copy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    // SAFETY: as the caller of `memcpy` promises.
    unsafe {
        asm!("rep movsb", inout("rcx") count => _, inout("rdi") to => _, inout("rsi") from => _, options(nostack, preserves_flags))
    };
    to
}

unsafe extern "C" fn copy_either_way(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    if to.addr().wrapping_sub(from.addr()) >= count {
        // SAFETY: a copy from the front does not come upon what it has written.
        return unsafe { copy(to, from, count) };
    }
    // SAFETY: as the caller of `memmove` promises; there is a byte at least. The direction is put back.
    unsafe {
        let (last_to, last_from) = (to.add(count - 1), from.add(count - 1));
        asm!("std", "rep movsb", "cld", inout("rcx") count => _, inout("rdi") last_to => _, inout("rsi") last_from => _, options(nostack));
    }
    to
}

unsafe extern "C" fn fill(to: *mut u8, byte: i32, count: usize) -> *mut u8 {
    // SAFETY: as the caller of `memset` promises.
    unsafe {
        asm!("rep stosb", inout("rcx") count => _, inout("rdi") to => _, in("al") byte as u8, options(nostack, preserves_flags))
    };
    to
}

unsafe extern "C" fn compare(one: *const u8, other: *const u8, count: usize) -> i32 {
    for index in 0..count {
        // SAFETY: as the caller of `memcmp` promises.
        let (one, other) = unsafe { (one.add(index).read_volatile(), other.add(index).read_volatile()) };
        if one != other {
            return i32::from(one) - i32::from(other);
        }
    }
    0
}

unsafe extern "C" fn length(text: *const u8) -> usize {
    let mut count = 0;
    // SAFETY: as the caller of `strlen` promises.
    while unsafe { text.add(count).read_volatile() } != 0 {
        count += 1;
    }
    count
}
