//! Where the injected library stands in the loader's list of what is loaded: last, as one that the program opened. The loader puts what is preloaded
//! first; but the address sanitizer's library refuses to run (with "ASan runtime does not come first") where another stands in front of it. Names are
//! looked up in another list, which stays.

use core::ffi::c_char;
use core::ptr::null_mut;

/// `struct link_map` (link.h): what debuggers may read of an object, which the loader keeps in a list.
#[repr(C)]
struct LinkMap {
    address: usize,
    name: *const c_char,
    dynamic: *const u8,
    next: *mut LinkMap,
    previous: *mut LinkMap,
}

/// The beginning of `struct r_debug` (link.h).
#[repr(C)]
struct Debug {
    version: i32,
    first: *mut LinkMap,
}

unsafe extern "C" {
    /// The loader's.
    static _r_debug: Debug;
    /// This library's dynamic section, which tells it in the list.
    static _DYNAMIC: u8;
}

/// Moves this library to the end of the list.
///
/// # Safety
/// No other thread may run, and the loader must be running the initialiser of this library: then nobody is in the list.
#[unsafe(link_section = ".text.hot.gannet")]
pub(crate) unsafe fn move_last() {
    // SAFETY: the list is the loader's own, nobody else is in it, and each of its pointers is null or leads to an object that is loaded. The
    // first is the program, which stays.
    unsafe {
        let is_this = |at: *mut LinkMap| (*at).dynamic == &raw const _DYNAMIC;
        let mut this = _r_debug.first;
        while !this.is_null() && !is_this(this) {
            this = (*this).next;
        }
        if this.is_null() || (*this).previous.is_null() || (*this).next.is_null() {
            return;
        }
        let (previous, next) = ((*this).previous, (*this).next);
        let mut last = next;
        while !(*last).next.is_null() {
            last = (*last).next;
        }
        (*previous).next = next;
        (*next).previous = previous;
        (*last).next = this;
        (*this).previous = last;
        (*this).next = null_mut();
    }
}
