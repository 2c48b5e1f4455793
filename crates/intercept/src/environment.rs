//! What a process under `gannet run` is told through its environment, and tells the programs it executes.
//!
//! | variable | content |
//! | --- | --- |
//! | `GANNET_RUN_LIBRARY` | path of the injected library |
//! | `GANNET_RUN_VOLUMES` | volume and place, volume and place…, separated by [`SEPARATOR`] |
//! | `GANNET_RUN_CACHE` | directory of the plans |
//! | `GANNET_RUN_PROGRAM` | the path of the program, if it is a volume's |
//! | `GANNET_RUN_DESCRIPTORS` | descriptors inherited through `execve`, see [`crate::front`] |
//!
//! `GANNET_RUN_VOLUMES` may be empty: then everything passes.

use crate::plan::cache::CachePath;
use core::sync::atomic::{AtomicPtr, Ordering};

/// Between the fields of `GANNET_RUN_VOLUMES`: the ASCII unit separator, which no sane path contains.
pub(crate) const SEPARATOR: u8 = 0x1f;

/// The settings of this process.
pub(crate) struct Settings {
    library: Vec<u8>,
    volumes: Vec<u8>,
    descriptors: Vec<u8>,
    program: Vec<u8>,
    cache: Option<CachePath>,
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
    /// What was inherited through `execve`.
    pub(crate) fn descriptors(&self) -> &[u8] {
        &self.descriptors
    }
    /// The path of the program that this process runs, empty if it is the host's.
    pub(crate) fn program(&self) -> &[u8] {
        &self.program
    }
    /// Bytes of all of it.
    pub(crate) fn total_bytes(&self) -> usize {
        self.library.len() * 2 + self.volumes.len() + self.descriptors.len() + 4096
    }
    /// Volume and place of each mount.
    pub(crate) fn mounts(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut fields = self.volumes.split(|byte| *byte == SEPARATOR);
        std::iter::from_fn(move || match (fields.next(), fields.next()) {
            (Some(volume), Some(place)) => Some((volume, place)),
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
        // SAFETY: as above.
        let text = unsafe { core::ffi::CStr::from_ptr(entry.cast()) }.to_bytes();
        if let Some(value) = text.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"=")) {
            return Some(value);
        }
        // SAFETY: not at the end yet.
        at = unsafe { at.add(1) };
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
        // SAFETY: the caller's promise.
        cache: CachePath::directory(|name| unsafe { variable(environment, name) }),
    };
    SETTINGS.store(Box::into_raw(Box::new(settings)), Ordering::Release);
    true
}
