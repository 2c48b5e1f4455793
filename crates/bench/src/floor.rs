//! The machine's own limits, measured beside: a copy to the medium with its fence, a copy from it, a fence, a compare-and-swap, a
//! system call. Nothing that is durable can cost less than the copy and a fence.

use crate::statistics::median;
use crate::work::shapes::Random;
use gannet_media::{CreateOptions, Medium, MediumOffset, OpenOptions};
use gannet_vfs::usermem::{Destination, Source};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Pieces that a round is measured in.
const PIECES: u32 = 40;

/// A limit and what it was measured to be.
pub(crate) struct Floor {
    /// The operation whose limit it is, as the rows have it.
    pub(crate) operation: &'static str,
    calls: u32,
    /// Touches the memory that is worked on.
    warm: Box<dyn FnMut()>,
    work: Box<dyn FnMut(u32)>,
    pub(crate) wall_ns: Vec<f64>,
    pub(crate) cpu_ns: Vec<f64>,
}

fn thread_cpu_ns() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

impl Floor {
    fn new(operation: &'static str, calls: u32, warm: impl FnMut() + 'static, work: impl FnMut(u32) + 'static) -> Self {
        let (warm, work) = (Box::new(warm), Box::new(work));
        Self { operation, calls, warm, work, wall_ns: Vec::new(), cpu_ns: Vec::new() }
    }

    /// Measures once more; the first time for warming up.
    pub(crate) fn round(&mut self, counts: bool) {
        // While others had their turn, the host of a virtual machine may have taken the memory back.
        (self.warm)();
        // In pieces, of which the middle counts: others that take the processor away do not show in it.
        let piece = self.calls.div_ceil(PIECES);
        let (mut wall_ns, mut cpu_ns) = (Vec::new(), Vec::new());
        for _ in 0..self.calls.div_ceil(piece) {
            let (cpu, wall) = (thread_cpu_ns(), Instant::now());
            (self.work)(piece);
            wall_ns.push(wall.elapsed().as_nanos() as f64 / f64::from(piece));
            cpu_ns.push((thread_cpu_ns() - cpu) / f64::from(piece));
        }
        if counts {
            self.wall_ns.push(median(&wall_ns));
            self.cpu_ns.push(median(&cpu_ns));
        }
    }
}

/// Places on a medium in an order that nothing foresees.
struct Places {
    random: Random,
    count: u64,
    size: u64,
}

impl Places {
    fn next(&mut self) -> MediumOffset {
        MediumOffset(self.random.below(self.count) * self.size)
    }
}

/// Memory on which persistence instructions are executed, with huge pages where the machine gives them.
fn medium(bytes: u64) -> Option<Medium> {
    let open = OpenOptions { emulate_persistence: true, ..OpenOptions::default() };
    let options = CreateOptions { open, ..CreateOptions::default() };
    let medium = Medium::create_in_memory("floor", bytes, options).ok()?;
    medium.zero(MediumOffset(0), bytes).ok()?;
    Some(medium)
}

/// Writes to all of a medium.
fn warmer(medium: &Medium, bytes: u64) -> impl FnMut() + use<> {
    let medium = medium.clone();
    move || {
        // Inside the medium: it cannot fail.
        let _ = medium.zero(MediumOffset(0), bytes);
    }
}

/// A copy to the medium, past the cache; with a fence.
fn copy_in(operation: &'static str, bytes: u64, size: u64, swap: bool, fence: bool) -> Option<Floor> {
    let medium = medium(bytes)?;
    let from = vec![3_u8; size as usize];
    let mut places = Places { random: Random::new(1), count: bytes / size, size };
    let word = AtomicU64::new(0);
    Some(Floor::new(operation, calls_of(size), warmer(&medium, bytes), move |count| {
        for _ in 0..count {
            if swap {
                word.fetch_add(1, Ordering::AcqRel);
            }
            // Inside the medium: it cannot fail.
            let _ = medium.write_from_user(places.next(), &mut Source::from_slice(&from), size as usize);
            if fence {
                medium.fence();
            }
        }
        medium.fence();
    }))
}

fn copy_out(operation: &'static str, bytes: u64, size: u64) -> Option<Floor> {
    let medium = medium(bytes)?;
    let mut into = vec![0_u8; size as usize];
    let mut places = Places { random: Random::new(2), count: bytes / size, size };
    Some(Floor::new(operation, calls_of(size), warmer(&medium, bytes), move |count| {
        for _ in 0..count {
            let _ = medium.read_to_user(places.next(), &mut Destination::from_slice(&mut into), size as usize);
        }
    }))
}

fn calls_of(size: u64) -> u32 {
    ((16 << 20) / size).clamp(4, 2000) as u32
}

/// The limits of the operations of `gannet bench latency`.
pub(crate) fn floors(bytes: u64) -> Vec<Floor> {
    let copies = [
        copy_in("append 64 B and fsync", bytes, 64, false, true),
        copy_in("append 4 KiB and fsync", bytes, 4096, false, true),
        copy_in("overwrite 4 KiB", bytes, 4096, false, true),
        copy_in("overwrite 1 MiB", bytes, 1 << 20, false, true),
        copy_out("read 4 KiB", bytes, 4096),
        copy_out("read 1 MiB", bytes, 1 << 20),
    ];
    copies.into_iter().flatten().chain([system_call()]).collect()
}

/// What the parts of a write cost at least: with a lock and a fence, with a fence, the copy alone.
pub(crate) fn parts(bytes: u64) -> Option<[Floor; 3]> {
    Some([
        copy_in("copy, fence and lock", bytes, 4096, true, true)?,
        copy_in("copy and fence", bytes, 4096, false, true)?,
        copy_in("copy", bytes, 4096, false, false)?,
    ])
}

fn system_call() -> Floor {
    let work = |count| {
        for _ in 0..count {
            std::hint::black_box(rustix::process::getppid());
        }
    };
    Floor::new("system call", 2000, || (), work)
}
