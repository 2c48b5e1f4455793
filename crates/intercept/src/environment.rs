//! What a process under `gannet run` is told through its environment, and tells the programs it executes.
//!
//! | variable | content |
//! | --- | --- |
//! | `GANNET_RUN_LIBRARY` | path of the injected library |
//! | `GANNET_RUN_VOLUMES` | volume and place, volume and place…, separated by [`SEPARATOR`]; behind a volume can stand [`MANNER`] and how it is opened |
//! | `GANNET_RUN_CACHE` | directory of the plans |
//! | `GANNET_RUN_PROGRAM` | the path of the program, if it is a volume's |
//! | `GANNET_RUN_DESCRIPTORS` | descriptors inherited through `execve`, see [`crate::front`] |
//! | `GANNET_RUN_PRELOAD` | the program's own `LD_PRELOAD`, if some of that is a volume's and was put into memory files |
//! | `GANNET_RUN_USERS` | the user namespace that the tree was started in, and where the process is; see [`crate::front::users`] |
//! | `GANNET_RUN_EVEN` | nothing; there if the others of these and `LD_PRELOAD` are an odd number, see [`hide`] |
//!
//! `GANNET_RUN_VOLUMES` may be empty: then everything passes. The program itself sees none of these.

use crate::front::libraries;
use crate::library::{self, Root};
use crate::plan::cache::CachePath;
use core::sync::atomic::{AtomicPtr, Ordering};

/// Between the fields of `GANNET_RUN_VOLUMES`: the ASCII unit separator, which no sane path contains.
pub(crate) const SEPARATOR: u8 = 0x1f;
/// Between a volume and how it is opened: the ASCII record separator.
pub(crate) const MANNER: u8 = 0x1e;

/// The settings of this process.
pub(crate) struct Settings {
    library: Vec<u8>,
    volumes: Vec<u8>,
    descriptors: Vec<u8>,
    program: Vec<u8>,
    users: Vec<u8>,
    cache: Option<CachePath>,
    root: Root,
}

/// Written once, at start.
static SETTINGS: AtomicPtr<Settings> = AtomicPtr::new(core::ptr::null_mut());

impl Settings {
    /// Path of the injected library.
    pub(crate) fn library(&self) -> &[u8] {
        &self.library
    }
    /// The list of volumes as it is passed on.
    pub(crate) fn volumes(&self) -> &[u8] {
        &self.volumes
    }
    /// Directory of the plans, if there is one.
    pub(crate) fn cache(&self) -> Option<&CachePath> {
        self.cache.as_ref()
    }
    /// The root that this process began with.
    pub(crate) fn root(&self) -> Root {
        self.root
    }
    /// What was inherited through `execve`.
    pub(crate) fn descriptors(&self) -> &[u8] {
        &self.descriptors
    }
    /// The path of the program that this process runs, empty if it is the host's.
    pub(crate) fn program(&self) -> &[u8] {
        &self.program
    }
    /// What was told of user namespaces.
    pub(crate) fn users(&self) -> &[u8] {
        &self.users
    }
    /// Bytes of all of it.
    pub(crate) fn total_bytes(&self) -> usize {
        self.library.len() * 2 + self.volumes.len() + self.descriptors.len() + 4096
    }
    /// Volume and place of each mount, and how the volume is opened.
    pub(crate) fn mounts(&self) -> impl Iterator<Item = (&[u8], &[u8], &[u8])> {
        let mut fields = self.volumes.split(|byte| *byte == SEPARATOR);
        std::iter::from_fn(move || match (fields.next(), fields.next()) {
            (Some(volume), Some(place)) => {
                let end = volume.iter().position(|byte| *byte == MANNER);
                let manner = end.map_or(&[][..], |end| &volume[end + 1..]);
                Some((&volume[..end.unwrap_or(volume.len())], place, manner))
            }
            _ => None,
        })
    }
}

/// The settings, once [`initialise`] has found them.
pub(crate) fn settings() -> Option<&'static Settings> {
    // SAFETY: published once and never freed.
    unsafe { SETTINGS.load(Ordering::Acquire).as_ref() }
}

/// A variable's value in the environment at `environment`.
///
/// # Safety
/// `environment` must be the process's environment as the kernel made it.
#[unsafe(link_section = ".text.hot.gannet")]
pub(crate) unsafe fn variable(environment: *const *const u8, name: &str) -> Option<&'static [u8]> {
    let mut at = environment;
    loop {
        // SAFETY: the array ends with a null pointer, and its strings with a zero byte.
        let entry = unsafe { *at };
        if entry.is_null() {
            return None;
        }
        // Most differ in their first byte. SAFETY: as above; what is read is at most the byte that ends the string.
        let is_it = name.bytes().chain([b'=']).enumerate().all(|(index, byte)| unsafe { *entry.add(index) == byte });
        if is_it {
            // SAFETY: as above.
            return Some(unsafe { core::ffi::CStr::from_ptr(entry.add(name.len() + 1).cast()) }.to_bytes());
        }
        // SAFETY: not at the end yet.
        at = unsafe { at.add(1) };
    }
}

/// Whether an entry of the environment is one of ours, made anew for each program; `GANNET_RUN_REPORT` is the user's.
pub(crate) fn is_setting(entry: &[u8]) -> bool {
    entry.starts_with(b"GANNET_RUN_") && !entry.starts_with(b"GANNET_RUN_REPOR")
}

/// What the value of an `LD_PRELOAD` has beside `library` and what was preloaded for one program only, each part with a colon in front.
pub(crate) fn others_preloaded(value: &[u8], library: &[u8]) -> Vec<u8> {
    let mut others = Vec::with_capacity(value.len() + 1);
    for part in value.split(|byte| matches!(byte, b':' | b' ')) {
        if !part.is_empty() && part != library && !part.starts_with(libraries::PRELOAD_PREFIX) {
            others.push(b':');
            others.extend_from_slice(part);
        }
    }
    others
}

/// Takes what is ours out of the program's environment, as every `execve` puts it in again. The auxiliary vector must stay right
/// behind the end of the environment, where some programs look for it, and where it is, which the C library knows: entries of the
/// kind to be ignored fill the gap. They are two words each, so an even number of variables goes. What the kernel shows in
/// `/proc/PID/environ` stays.
///
/// # Safety
/// `environment` must be the process's environment as the kernel made it, and nobody else may use it meanwhile.
#[unsafe(link_section = ".text.hot.gannet")]
pub(crate) unsafe fn hide(environment: *mut *const u8) {
    const AT_NULL: usize = 0;
    const AT_IGNORE: usize = 1;
    const AT_PAGESZ: usize = 6;
    const AT_EXECFN: usize = 31;
    const AUXILIARY_MAX: usize = 64;
    let Some(settings) = settings() else { return };
    let mut kept: Vec<*const u8> = Vec::with_capacity(128);
    let mut hidden: Vec<*const u8> = Vec::with_capacity(8);
    // SAFETY: the caller's promise.
    let preload = unsafe { variable(environment, "GANNET_RUN_PRELOAD") };
    let mut count = 0;
    loop {
        // SAFETY: the array ends with a null pointer, and its strings with a zero byte.
        let entry = unsafe { *environment.add(count) };
        if entry.is_null() {
            break;
        }
        count += 1;
        // SAFETY: as above.
        let text = unsafe { core::ffi::CStr::from_ptr(entry.cast()) }.to_bytes();
        if is_setting(text) {
            hidden.push(entry);
        } else if let Some(value) = text.strip_prefix(b"LD_PRELOAD=") {
            let others = others_preloaded(value, settings.library());
            match preload.or(others.get(1..)) {
                None => hidden.push(entry),
                Some(visible) => {
                    let visible = [b"LD_PRELOAD=", visible, b"\0"].concat();
                    kept.push(Vec::leak(visible).as_ptr());
                }
            }
        } else {
            kept.push(entry);
        }
    }
    let mut is_followed = false;
    for index in 0..AUXILIARY_MAX {
        // SAFETY: the kernel put the auxiliary vector there, which ends with AT_NULL; it has the page size.
        let entry = unsafe { &mut *environment.add(count + 1 + index * 2).cast::<[usize; 2]>() };
        match entry[0] {
            AT_NULL => break,
            AT_PAGESZ => is_followed = true,
            // The kernel calls a program of a volume by the number of a descriptor.
            AT_EXECFN if is_followed && !settings.program.is_empty() => {
                entry[1] = Vec::leak([&settings.program[..], b"\0"].concat()).as_ptr() as usize;
            }
            _ => {}
        }
    }
    if !hidden.len().is_multiple_of(2) || !is_followed {
        return;
    }
    // SAFETY: as many words as there were.
    unsafe {
        core::ptr::copy_nonoverlapping(kept.as_ptr(), environment, kept.len());
        *environment.add(kept.len()) = core::ptr::null();
        for pair in 0..hidden.len() / 2 {
            let at = environment.add(kept.len() + 1 + pair * 2).cast::<usize>();
            *at = AT_IGNORE;
            *at.add(1) = 0;
        }
    }
}

/// Reads the settings. `false` if this process is not under `gannet run`.
///
/// # Safety
/// As for [`variable`].
#[unsafe(link_section = ".text.hot.gannet")]
pub(crate) unsafe fn initialise(environment: *const *const u8) -> bool {
    // SAFETY: the caller's promise.
    let value = |name| unsafe { variable(environment, name) }.map(<[u8]>::to_vec);
    let Some(library) = value("GANNET_RUN_LIBRARY") else { return false };
    let settings = Settings {
        library,
        volumes: value("GANNET_RUN_VOLUMES").unwrap_or_default(),
        descriptors: value("GANNET_RUN_DESCRIPTORS").unwrap_or_default(),
        program: value("GANNET_RUN_PROGRAM").unwrap_or_default(),
        users: value("GANNET_RUN_USERS").unwrap_or_default(),
        // SAFETY: the caller's promise.
        cache: CachePath::directory(|name| unsafe { variable(environment, name) }),
        root: library::root(),
    };
    SETTINGS.store(Box::into_raw(Box::new(settings)), Ordering::Release);
    true
}
