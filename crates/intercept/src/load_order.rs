//! The loader's list of what is loaded: what the C library exports, found past whatever hides it, and where the injected library stands: last, as one that the program opened. The loader puts what is preloaded
//! first; but the address sanitizer's library refuses to run (with "ASan runtime does not come first") where another stands in front of it. Names are
//! looked up in another list, which stays.

use core::ffi::c_char;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

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

const DT_NULL: u64 = 0;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
const DT_VERSYM: u64 = 0x6fff_fff0;

/// A symbol of an object (`Elf64_Sym`).
#[repr(C)]
#[derive(Clone, Copy)]
struct Symbol {
    name: u32,
    information: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

/// The C library in the loader's list, once it was looked for.
static C_LIBRARY: AtomicPtr<LinkMap> = AtomicPtr::new(null_mut());

/// A function that the C library exports under this name, in its default version, whatever other libraries define under it.
///
/// # Safety
/// The loader must have relocated the C library. At the first call no other thread may load or unload anything.
#[unsafe(link_section = ".text.hot.gannet")]
pub unsafe fn c_library_function(name: &[u8]) -> Option<*const ()> {
    const IS_HIDDEN: u16 = 0x8000;
    const FUNCTION: u8 = 2;
    const INDIRECT_FUNCTION: u8 = 10;
    // SAFETY: the loader's list, as for `move_last`; an object's tables are as its dynamic section says, which the loader believed. The C
    // library is never unloaded.
    unsafe {
        let mut object = C_LIBRARY.load(Ordering::Relaxed);
        if object.is_null() {
            object = _r_debug.first;
            while !object.is_null() && !ends_with((*object).name.cast(), b"/libc.so.6") {
                object = (*object).next;
            }
            C_LIBRARY.store(object, Ordering::Relaxed);
        }
        let object = object.as_ref()?;
        let mut tables = [0usize; 4];
        let mut entry = object.dynamic.cast::<[u64; 2]>();
        while (*entry)[0] != DT_NULL {
            let [kind, value] = *entry;
            if let Some(table) =
                [DT_STRTAB, DT_SYMTAB, DT_GNU_HASH, DT_VERSYM].iter().position(|wanted| *wanted == kind)
            {
                // The loader has made addresses of them, as a rule.
                let value = value as usize;
                tables[table] = if value < object.address { value + object.address } else { value };
            }
            entry = entry.add(1);
        }
        if tables.contains(&0) {
            return None;
        }
        let [strings, symbols, hashes, versions] = tables;
        let (symbols, versions) = (symbols as *const Symbol, versions as *const u16);
        let hash = name.iter().fold(5381u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)));
        let [bucket_count, first, filter_words, _] = *(hashes as *const [u32; 4]);
        let buckets = (hashes + 16 + filter_words as usize * 8) as *const u32;
        let chain = buckets.add(bucket_count as usize);
        let mut index = *buckets.add((hash % bucket_count.max(1)) as usize);
        while index >= first {
            let found = *chain.add((index - first) as usize);
            let symbol = *symbols.add(index as usize);
            let is_it = found | 1 == hash | 1
                && symbol.section != 0
                && *versions.add(index as usize) & IS_HIDDEN == 0
                && is_text((strings + symbol.name as usize) as *const u8, name);
            if is_it {
                let address = (object.address + symbol.value as usize) as *const ();
                return match symbol.information & 15 {
                    FUNCTION => Some(address),
                    // The C library chooses one for this processor.
                    INDIRECT_FUNCTION => {
                        Some(core::mem::transmute::<*const (), extern "C" fn() -> *const ()>(address)())
                    }
                    _ => None,
                };
            }
            if found & 1 != 0 {
                return None;
            }
            index += 1;
        }
        None
    }
}

/// Whether a string that ends in zero is `wanted`.
unsafe fn is_text(text: *const u8, wanted: &[u8]) -> bool {
    // SAFETY: it is read up to its end at most.
    wanted.iter().enumerate().all(|(index, byte)| unsafe { *text.add(index) == *byte })
        && unsafe { *text.add(wanted.len()) == 0 }
}

/// Whether a string that ends in zero ends with `wanted`.
unsafe fn ends_with(text: *const u8, wanted: &[u8]) -> bool {
    let mut length = 0;
    // SAFETY: it is read up to its end at most.
    unsafe {
        while !text.is_null() && text.add(length).read_volatile() != 0 {
            length += 1;
        }
        length >= wanted.len() && is_text(text.add(length - wanted.len()), wanted)
    }
}
