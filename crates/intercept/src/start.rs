//! What happens when the injected library is loaded: before any other library's initialisers and before the program.

use crate::environment;
use crate::patch::area::Area;
use crate::patch::{Outcome, apply};
use crate::plan::image::Image;
use crate::plan::{Site, build, cache};
use crate::thread::set_busy;
use crate::{dispatch, front, signal};
use core::ffi::{c_char, c_int, c_void};

/// How the injected library opens a volume: the composition root above this crate.
pub type OpenVolume = fn(&[u8]) -> std::io::Result<std::sync::Arc<dyn gannet_vfs::FileSystem>>;

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

/// Starts the interception in this process, if the environment asks for it. Called once, by the initialiser of the injected library.
///
/// # Safety
/// `environment` must be the process's environment; no other thread may run.
pub unsafe fn start(environment: *const *const u8, open: OpenVolume) {
    set_busy(true);
    // SAFETY: the caller's promises.
    unsafe {
        if environment::initialise(environment) {
            dispatch::initialise();
            signal::initialise();
            front::initialise(open);
            if let Some(preload) = environment::variable(environment, "LD_PRELOAD") {
                front::libraries::close_preloaded(preload);
            }
            patch_loaded_objects(environment);
        }
    }
    set_busy(false);
}

/// Libraries with system calls of their own on descriptors. Their code may use all vector registers.
const OTHER_OBJECTS: &[&str] = &["libaio", "libpthread", "librt", "libgomp", "libnuma"];

/// Slots for the C library and the dynamic loader.
const SLOTS: usize = 1024;

/// Rewrites the C library, the dynamic loader, and [`OTHER_OBJECTS`].
///
/// # Safety
/// As for [`start`].
unsafe fn patch_loaded_objects(environment: *const *const u8) {
    let mut objects: Vec<(String, Image)> = Vec::new();
    // SAFETY: the callback gets the vector it is made for.
    unsafe { dl_iterate_phdr(collect, (&raw mut objects).cast()) };
    let c_library = __errno_location as *const () as usize;
    // SAFETY: the caller's promise.
    let variable = |name: &str| unsafe { environment::variable(environment, name) };
    let directory = environment::settings().and_then(environment::Settings::cache);
    let report = variable("GANNET_RUN_REPORT").is_some();
    let Some(mut area) = Area::own(SLOTS) else { return };
    for (name, image) in &objects {
        let holds = |address: usize| {
            image.segments().iter().any(|s| {
                let start = image.bias.wrapping_add(s.start);
                s.executable && (start..start + s.length).contains(&address)
            })
        };
        let file = name.rsplit('/').next().unwrap_or(name);
        let is_base = file.starts_with("ld-linux") || holds(c_library);
        if !is_base && !OTHER_OBJECTS.iter().any(|other| file.starts_with(other)) {
            continue;
        }
        let (sites, from_cache) = plan_of(image, directory);
        // SAFETY: one thread runs, inside our library; the plan was made for this build-id and every site is compared.
        let outcome = unsafe { apply(image, &sites, &mut area, !is_base) };
        if report {
            show(name, &sites, outcome, from_cache);
        }
    }
    area.close();
}

/// A plan, from the cache or made now.
pub(crate) fn plan_of(
    image: &Image,
    directory: Option<&cache::CachePath>,
) -> (std::borrow::Cow<'static, [Site]>, bool) {
    let id = image.build_id();
    if let (Some(id), Some(directory)) = (&id, directory)
        && let Some(sites) = cache::load(directory, id)
    {
        return (sites.into(), true);
    }
    let sites = build::build(image).map_or_else(Vec::new, |built| built.sites);
    if let (Some(id), Some(directory)) = (&id, directory) {
        cache::store(directory, id, &sites);
    }
    (sites.into(), false)
}

/// Tells on standard error what was rewritten, for `GANNET_RUN_REPORT`.
fn show(name: &str, sites: &[Site], outcome: Outcome, from_cache: bool) {
    use std::fmt::Write;
    let mut text = String::new();
    let source = if from_cache { "cached" } else { "new" };
    let _ = writeln!(text, "gannet: {name}: {} rewritten, {} left, {source} plan", outcome.patched, outcome.left);
    for site in sites.iter().filter(|site| site.window == 0) {
        let _ = writeln!(text, "gannet:   left at {:#x} (system call {})", site.start, site.number);
    }
    // SAFETY: writes our own bytes.
    unsafe { crate::raw::syscall(crate::number::WRITE, [2, text.as_ptr() as usize, text.len()]) };
}

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
