//! Making simulated media.

use std::fs::File;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};

use super::record::{Recorder, Simulation};
use crate::held::HeldFile;
use crate::medium::{Backing, LINE_BYTES, Medium, MediumKind, PersistMode};

/// Media are multiples of it, and the page cache writes it back as a whole.
const PAGE_BYTES: u64 = 4096;

impl Medium {
    /// Simulated persistent memory of `length` zero bytes, a multiple of 4096.
    ///
    /// # Panics
    /// If the length is no such multiple, or there is no memory.
    #[must_use]
    pub fn simulated(length: u64) -> (Medium, Simulation) {
        simulated(length, LINE_BYTES, None)
    }

    /// A simulated file of `length` zero bytes on a disk file system: pages of 4096 bytes are written back at any moment and in
    /// any order, and are certain only after [`Medium::sync`]; flush and fence mean nothing. A crash image holds, per page,
    /// any prefix of its stores since its last sync.
    ///
    /// # Panics
    /// As for [`Medium::simulated`].
    #[must_use]
    pub fn simulated_page_cache(length: u64) -> (Medium, Simulation) {
        simulated(length, PAGE_BYTES, None)
    }

    /// Simulated persistent memory that holds `image` durably.
    ///
    /// # Panics
    /// If its length is no multiple of 4096, or there is no memory.
    #[must_use]
    pub fn simulated_from_image(image: &[u8]) -> (Medium, Simulation) {
        simulated_from_image(image, LINE_BYTES)
    }

    /// As [`Medium::simulated_from_image`], with a file behind it, so that it can be mapped. What is stored through a map is not
    /// recorded; to do as a program does that has it mapped, use [`Medium::store_cached`].
    ///
    /// # Panics
    /// As for [`Medium::simulated_from_image`], and if there can be no such file.
    #[must_use]
    pub fn simulated_with_file(image: &[u8]) -> (Medium, Simulation) {
        let file = memfd_create("simulated", MemfdFlags::CLOEXEC).expect("a file in memory");
        ftruncate(&file, image.len() as u64).expect("room for a simulated medium");
        let (medium, simulation) = simulated(image.len() as u64, LINE_BYTES, Some(File::from(file)));
        fill(&simulation, image);
        (medium, simulation)
    }
}

/// A simulated medium that is written back in units of that size, with an image.
pub(super) fn simulated_from_image(image: &[u8], unit_bytes: u64) -> (Medium, Simulation) {
    let (medium, simulation) = simulated(image.len() as u64, unit_bytes, None);
    fill(&simulation, image);
    (medium, simulation)
}

/// Puts an image on a medium that holds zeros.
fn fill(simulation: &Simulation, image: &[u8]) {
    for (number, word) in image.chunks_exact(8).enumerate() {
        let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
        if word != 0 {
            simulation.recorder.word(number as u64).store(word, Ordering::Relaxed);
        }
    }
}

/// A simulated medium that is written back in units of that size, in a file if there is one.
fn simulated(length: u64, unit_bytes: u64, file: Option<File>) -> (Medium, Simulation) {
    assert!(length.is_multiple_of(PAGE_BYTES) && length > 0, "a simulated medium of {length} bytes");
    let bytes = usize::try_from(length).expect("addressable");
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let base = match &file {
        // SAFETY: a new map at an address of the kernel's choice.
        None => unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, MapFlags::PRIVATE) },
        // SAFETY: as above.
        Some(file) => unsafe { mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, file, 0) },
    }
    .expect("memory for a simulated medium");
    let base = NonNull::new(base.cast::<u8>()).expect("not null");
    let recorder = Arc::new(Recorder::new(base, length, unit_bytes));
    let (kind, mode) = if recorder.is_page_cache() {
        (MediumKind::SimulatedDiskFile, PersistMode::Plain)
    } else {
        (MediumKind::Simulated, PersistMode::Persistent)
    };
    let held = |file| {
        let status = fstat(&file).expect("an open file");
        HeldFile::new(file, &status)
    };
    let file = file.map(held);
    let backing = Backing { reserved: base, reserved_bytes: bytes, file, kind, members: Vec::new() };
    let medium = Medium::assemble(backing, base, length, true, mode, Some(Arc::clone(&recorder)));
    (medium.clone(), Simulation { medium, recorder, walker: Arc::default(), tracked: Arc::default() })
}
