//! The recorder behind a simulated medium: applies each store and notes it.

use std::panic::Location;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::medium::{Backing, LINE_BYTES, Medium, MediumKind, PersistMode};

/// One thing that happened to the medium.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A word was stored.
    Store { word: u64, old: u64, new: u64 },
    /// All stores to a line so far are durable at the thread's next fence.
    Flush { thread: u32, line: u64 },
    /// A fence.
    Fence { thread: u32 },
}

/// Applies and records.
#[derive(Debug)]
pub(crate) struct Recorder {
    base: NonNull<u8>,
    events: Mutex<Vec<Event>>,
}

// SAFETY: the memory is accessed atomically, and lives as long as the medium that owns the recorder.
unsafe impl Send for Recorder {}
// SAFETY: as above.
unsafe impl Sync for Recorder {}

fn thread_number() -> u32 {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    thread_local! {
        static NUMBER: u32 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}

impl Recorder {
    pub(crate) fn store(&self, at: u64, bytes: &[u8], non_temporal: bool, _site: &'static Location<'static>) {
        let mut events = self.events.lock().unwrap();
        let mut done = 0;
        while done < bytes.len() {
            let place = at + done as u64;
            let offset = (place % 8) as usize;
            let step = (8 - offset).min(bytes.len() - done);
            // SAFETY: the medium checked the range; its memory is word-aligned.
            let word = unsafe { AtomicU64::from_ptr(self.base.as_ptr().add((place - offset as u64) as usize).cast()) };
            let old = word.load(Ordering::Acquire);
            let mut new = old.to_le_bytes();
            new[offset..offset + step].copy_from_slice(&bytes[done..done + step]);
            let new = u64::from_le_bytes(new);
            word.store(new, Ordering::Release);
            events.push(Event::Store { word: place / 8, old, new });
            done += step;
        }
        if non_temporal {
            drop(events);
            self.flush(at, bytes.len() as u64, _site);
        }
    }

    pub(crate) fn flush(&self, at: u64, length: u64, _site: &'static Location<'static>) {
        if length == 0 {
            return;
        }
        let thread = thread_number();
        let mut events = self.events.lock().unwrap();
        for line in at / LINE_BYTES..=(at + length - 1) / LINE_BYTES {
            events.push(Event::Flush { thread, line });
        }
    }

    pub(crate) fn fence(&self, _site: &'static Location<'static>) {
        self.events.lock().unwrap().push(Event::Fence { thread: thread_number() });
    }
}

/// Control of a simulated medium.
#[derive(Clone, Debug)]
pub struct Simulation {
    recorder: Arc<Recorder>,
}

impl Simulation {
    /// Number of events recorded.
    #[must_use]
    pub fn events_len(&self) -> usize {
        self.recorder.events.lock().unwrap().len()
    }
}

impl Medium {
    /// Simulated persistent memory of `length` zero bytes, a multiple of 4096.
    ///
    /// # Panics
    /// If the length is no such multiple, or there is no memory.
    #[must_use]
    pub fn simulated(length: u64) -> (Medium, Simulation) {
        assert!(length % 4096 == 0 && length > 0, "a simulated medium of {length} bytes");
        let bytes = usize::try_from(length).expect("addressable");
        // SAFETY: a new map at an address of the kernel's choice.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
                rustix::mm::MapFlags::PRIVATE,
            )
        }
        .expect("memory for a simulated medium");
        let base = NonNull::new(base.cast::<u8>()).expect("not null");
        let recorder = Arc::new(Recorder { base, events: Mutex::new(Vec::new()) });
        let backing = Backing { reserved: base, reserved_bytes: bytes, file: None, kind: MediumKind::Simulated };
        let medium =
            Medium::assemble(backing, base, length, true, PersistMode::Persistent, Some(Arc::clone(&recorder)));
        (medium, Simulation { recorder })
    }
}
