//! Which objects are rewritten, and when: those loaded with the program at start, every other when it is mapped executable.
//!
//! Each object is rewritten by its plan, which is looked for by build-id, or by the file's identity where there is none. Most
//! objects have nothing to rewrite, which is known from one file ([`cache::Plain`]). An object that is mapped later is looked at
//! as a file, before the program is told where it lies: no thread can be executing it. Only private maps that cannot be written to are
//! rewritten: not code that programs make themselves.

use crate::environment;
use crate::lock::Guarded;
use crate::number::*;
use crate::patch::area::{self, Run};
use crate::patch::{Outcome, apply};
use crate::plan::cache::{self, CachePath, Key, Plain};
use crate::plan::image::Image;
use crate::plan::{Site, build};
use crate::prepared::{self, Applied};
use crate::raw::{is_error, syscall, syscall6};
use core::ffi::{c_char, c_int, c_void};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};
use std::borrow::Cow;

#[repr(C)]
struct ObjectInformation {
    address: usize,
    name: *const c_char,
    headers: *const u8,
    header_count: u16,
}

unsafe extern "C" {
    fn dl_iterate_phdr(
        callback: unsafe extern "C" fn(*const ObjectInformation, usize, *mut c_void) -> c_int,
        data: *mut c_void,
    ) -> c_int;
    fn __errno_location() -> *mut c_int;
}

/// Files larger than this are not looked into.
const FILE_BYTES_MAX: usize = 1 << 30;

/// Rewritten objects that can go away again, and their slots. Used while an object that was mapped later is rewritten.
static REWRITTEN: Guarded<Rewritten> = Guarded::new();
type Rewritten = Vec<(Range<usize>, Run)>;
static REPORT: AtomicBool = AtomicBool::new(false);

/// Takes the lock so that a forked child finds it free, or releases it.
pub(crate) fn around_fork(before: bool) {
    REWRITTEN.around_fork(before);
}

/// Rewrites what was loaded with the program. False, with nothing rewritten, if its threads are not the C library's.
///
/// # Safety
/// As for [`crate::start::start`].
#[unsafe(link_section = ".text.hot.gannet")]
pub(crate) unsafe fn rewrite_loaded(environment: *const *const u8) -> bool {
    let mut objects: Vec<(String, Image)> = Vec::with_capacity(6);
    // SAFETY: the callback gets the vector it is made for.
    unsafe { dl_iterate_phdr(collect, (&raw mut objects).cast()) };
    if objects.first().is_some_and(|(_, program)| program.has_foreign_threads()) {
        return false;
    }
    let c_library = __errno_location as *const () as usize;
    // SAFETY: the caller's promise.
    let report = unsafe { environment::variable(environment, "GANNET_RUN_REPORT") }.is_some();
    REPORT.store(report, Ordering::Relaxed);
    let directory = environment::settings().and_then(environment::Settings::cache);
    let plain = directory.map(Plain::load).unwrap_or_default();
    area::initialise();
    let holds = |image: &Image, address: usize| image.is_text(address.wrapping_sub(image.bias));
    for (name, image) in &objects {
        let file = name.rsplit('/').next().unwrap_or(name);
        if holds(image, area::own_area().0) {
            crate::entry::left::note_own_text(text_of(image).unwrap_or(0..usize::MAX));
            continue;
        }
        if file.starts_with("linux-vdso") {
            continue;
        }
        let is_base = file.starts_with("ld-linux") || holds(image, c_library);
        let build_id = image.build_id();
        let mut preparable = build_id.filter(|_| is_base).zip(directory);
        if let Some((id, directory)) = preparable {
            // SAFETY: one thread runs, inside our library.
            match unsafe { prepared::apply(directory, image, &id, name) } {
                Applied::Done(outcome) => {
                    if report {
                        show(name, &[], outcome, "prepared copy");
                    }
                    continue;
                }
                Applied::Missing => {}
                Applied::Unmappable => preparable = None,
            }
        }
        let Some(key) = build_id.or_else(|| key_of_path(name)) else { continue };
        if plain.holds(&key) {
            continue;
        }
        let (sites, from_cache) = plan_of(image, &key, directory);
        let source = if from_cache { "cached plan" } else { "new plan" };
        if let Some((id, directory)) = preparable
            && prepared::make(directory, image, &id, name, &sites)
            // SAFETY: as above.
            && let Applied::Done(outcome) = unsafe { prepared::apply(directory, image, &id, name) }
        {
            if report {
                show(name, &sites, outcome, source);
            }
            continue;
        }
        // SAFETY: one thread runs, inside our library; the plan was made for this key and every site is compared.
        let outcome = unsafe { rewrite(image, &sites, !is_base, &mut Vec::new()) };
        let outcome = outcome.map_or(Outcome::default(), |(outcome, _)| outcome);
        if report && !sites.is_empty() {
            show(name, &sites, outcome, source);
        }
        if let (Cow::Borrowed(sites), true) = (sites, from_cache) {
            // SAFETY: loaded for this object, and no longer used.
            unsafe { cache::unload(sites) };
        }
    }
    true
}

/// Rewrites an object whose plan is known.
///
/// # Safety
/// As for [`apply`].
unsafe fn rewrite(
    image: &Image,
    sites: &[Site],
    full_vectors: bool,
    rewritten: &mut Rewritten,
) -> Option<(Outcome, Run)> {
    let count = sites.iter().filter(|site| site.window != 0).count();
    let text = text_of(image)?;
    if count == 0 {
        return None;
    }
    // What lay here before is gone, and its slots are free.
    let stale = rewritten
        .iter()
        .position(|(range, run)| range.start < text.end && text.start < range.end && run.suits(count, &text));
    let mut run = match stale {
        Some(index) => rewritten.swap_remove(index).1.reuse()?,
        None => area::take(count, text)?,
    };
    // SAFETY: the caller's promise.
    let outcome = unsafe { apply(image, sites, &mut run, full_vectors) };
    run.close();
    Some((outcome, run))
}

/// Where the text of an object is.
#[unsafe(link_section = ".text.hot.gannet")]
fn text_of(image: &Image) -> Option<Range<usize>> {
    let parts = || image.segments().iter().filter(|segment| segment.executable && !segment.writable);
    let start = parts().map(|segment| segment.start).min()?;
    let end = parts().map(|segment| segment.start + segment.length).max()?;
    Some(image.bias.wrapping_add(start)..image.bias.wrapping_add(end))
}

/// A plan, from the cache or made now.
fn plan_of(image: &Image, key: &Key, directory: Option<&CachePath>) -> (Cow<'static, [Site]>, bool) {
    if let Some(directory) = directory
        && let Some(sites) = cache::load(directory, key)
    {
        return (sites.into(), true);
    }
    let sites = build::build(image).map_or_else(Vec::new, |built| built.sites);
    if let Some(directory) = directory {
        if sites.is_empty() {
            Plain::note(directory, key);
        } else {
            cache::store(directory, key, &sites);
        }
    }
    (sites.into(), false)
}

/// The key of an object without a build-id.
fn key_of_path(name: &str) -> Option<Key> {
    let path = format!("{}\0", if name.is_empty() { "/proc/self/exe" } else { name });
    let mut status = [0u64; 18];
    // SAFETY: a path that ends in zero, and room for struct stat.
    let result = unsafe { syscall(STAT, [path.as_ptr() as usize, status.as_mut_ptr() as usize]) };
    (result == 0).then(|| cache::key_of_file(&status))
}

/// Whether an `mmap` with these arguments maps code from a file.
pub(crate) fn concerns(arguments: &[usize; 6]) -> bool {
    const PROT_WRITE: usize = 2;
    const PROT_EXECUTE: usize = 4;
    const MAP_TYPE: usize = 0xf;
    const MAP_PRIVATE: usize = 2;
    const MAP_ANONYMOUS: usize = 0x20;
    let [_, _, protection, flags, ..] = *arguments;
    protection & (PROT_EXECUTE | PROT_WRITE) == PROT_EXECUTE
        && flags & MAP_TYPE == MAP_PRIVATE
        && flags & MAP_ANONYMOUS == 0
}

/// What an `mmap` that [`concerns`] us came to, `None` if it is still to be made. The content of a volume's file is
/// `content`. Makes the call, and rewrites what was mapped.
pub(crate) fn mapped(arguments: &[usize; 6], result: Option<isize>, content: Option<Vec<u8>>) -> isize {
    // SAFETY: the program's call.
    let result = result.unwrap_or_else(|| unsafe { syscall6(MMAP, *arguments) });
    if is_error(result) {
        return result;
    }
    let [_, length, _, _, descriptor, offset] = *arguments;
    let directory = environment::settings().and_then(environment::Settings::cache);
    let mapped = Mapped { address: result as usize, length, offset };
    match content {
        Some(content) => {
            // SAFETY: the bytes live until the call is over.
            if let Some(image) = unsafe { Image::from_file(&content) } {
                let key = image.build_id().unwrap_or_else(|| cache::key_of(&content));
                mapped.rewrite(&image, &key, directory, descriptor);
            }
        }
        None => with_file(descriptor, |content, status| {
            // SAFETY: mapped until the call is over; who cuts a program's text meanwhile stops that program anyway.
            if let Some(image) = unsafe { Image::from_file(content) } {
                let key = image.build_id().unwrap_or_else(|| cache::key_of_file(status));
                mapped.rewrite(&image, &key, directory, descriptor);
            }
        }),
    }
    result
}

/// A piece of a file that was just mapped executable.
struct Mapped {
    address: usize,
    length: usize,
    offset: usize,
}

impl Mapped {
    fn rewrite(&self, file: &Image, key: &Key, directory: Option<&CachePath>, descriptor: usize) {
        const PAGE_BYTES: usize = 4096;
        let is_this = |segment: &&crate::plan::image::Segment| {
            segment.executable && segment.file_offset & !(PAGE_BYTES - 1) == self.offset
        };
        let Some(segment) = file.segments().iter().find(is_this) else { return };
        if directory.map(Plain::load).is_some_and(|plain| plain.holds(key)) {
            return;
        }
        let mut segment = *segment;
        let skipped = segment.file_offset - self.offset;
        segment.length = segment.length.min(self.length.saturating_sub(skipped));
        let bias = (self.address + skipped).wrapping_sub(segment.start);
        let image = Image::of_segment(bias, segment);
        let (sites, from_cache) = plan_of(file, key, directory);
        let outcome = REWRITTEN.with(|rewritten| {
            // SAFETY: the program does not know yet that the object is mapped; every site is compared.
            let outcome = unsafe { rewrite(&image, &sites, true, rewritten) };
            if let (Some((_, run)), Some(text)) = (outcome, text_of(&image)) {
                rewritten.push((text, run));
            }
            outcome
        });
        if REPORT.load(Ordering::Relaxed) && !sites.is_empty() {
            let outcome = outcome.map_or(Outcome::default(), |(outcome, _)| outcome);
            show(
                &format!("descriptor {descriptor} at {:#x}", self.address),
                &sites,
                outcome,
                if from_cache { "cached plan" } else { "new plan" },
            );
        }
    }
}

/// Looks at a whole file of the host.
fn with_file(descriptor: usize, look: impl FnOnce(&[u8], &[u64; 18])) {
    const PROT_READ: usize = 1;
    const MAP_PRIVATE: usize = 2;
    let mut status = [0u64; 18];
    // SAFETY: room for struct stat; a new map.
    let view = unsafe {
        if is_error(syscall(FSTAT, [descriptor, status.as_mut_ptr() as usize])) {
            return;
        }
        let size = status[6] as usize;
        if status[3] as u32 & 0o170000 != 0o100000 || !(64..FILE_BYTES_MAX).contains(&size) {
            return;
        }
        syscall(MMAP, [0, size, PROT_READ, MAP_PRIVATE, descriptor, 0])
    };
    if is_error(view) {
        return;
    }
    let size = status[6] as usize;
    // SAFETY: mapped just now, unmapped when nothing refers to it any more.
    unsafe {
        look(core::slice::from_raw_parts(view as *const u8, size), &status);
        syscall(MUNMAP, [view as usize, size]);
    }
}

/// Tells on standard error what was rewritten, for `GANNET_RUN_REPORT`.
fn show(name: &str, sites: &[Site], outcome: Outcome, source: &str) {
    use std::fmt::Write;
    let name = if name.is_empty() { "the program" } else { name };
    let mut text = String::new();
    let _ = writeln!(text, "gannet: {name}: {} rewritten, {} left, {source}", outcome.patched, outcome.left);
    for site in sites.iter().filter(|site| site.window == 0) {
        let _ = writeln!(text, "gannet:   left at {:#x} (system call {})", site.start, site.number);
    }
    // SAFETY: writes our own bytes.
    unsafe { syscall(WRITE, [2, text.as_ptr() as usize, text.len()]) };
}

#[unsafe(link_section = ".text.hot.gannet")]
unsafe extern "C" fn collect(information: *const ObjectInformation, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid description, and the data that was given to it.
    unsafe {
        let information = &*information;
        let objects = &mut *data.cast::<Vec<(String, Image)>>();
        let headers = core::slice::from_raw_parts(information.headers, information.header_count as usize * 56);
        let name = core::ffi::CStr::from_ptr(information.name).to_string_lossy().into_owned();
        objects.push((name, Image::from_program_headers(information.address, headers)));
    }
    0
}
