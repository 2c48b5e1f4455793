//! What the medium alone costs on this machine: the floor under every figure of a file system above it.
//!
//! `cargo run --release -p gannet-media --example floor`. Works on a file in /dev/shm with huge pages where they can be had;
//! the persistence instructions are executed on ordinary memory (labelled emulated). Prints medians in nanoseconds.

use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use gannet_media::{CreateOptions, DataHash, Medium, MediumOffset, OpenOptions};
use gannet_usermem::{Destination, Source};

const LENGTH_BYTES: u64 = 512 << 20;
const BLOCK_BYTES: usize = 4096;
const ROUNDS: usize = 200;
const PER_ROUND: usize = 200;

/// What is measured, given a random number.
type Work<'a> = Box<dyn FnMut(u64) + 'a>;

/// Medians of interleaved rounds, so that drift of the machine hits all rows alike.
struct Bench<'a> {
    rows: Vec<(&'a str, Work<'a>)>,
}

impl<'a> Bench<'a> {
    fn row(&mut self, name: &'a str, work: impl FnMut(u64) + 'a) {
        self.rows.push((name, Box::new(work)));
    }

    fn run(mut self) {
        let mut samples = vec![Vec::new(); self.rows.len()];
        let mut random = 0x9E37_79B9_7F4A_7C15u64;
        for _ in 0..ROUNDS {
            for ((_, work), samples) in self.rows.iter_mut().zip(&mut samples) {
                let start = Instant::now();
                for _ in 0..PER_ROUND {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    work(random >> 24);
                }
                samples.push(start.elapsed().as_nanos() as f64 / PER_ROUND as f64);
            }
        }
        for ((name, _), samples) in self.rows.iter().zip(&mut samples) {
            samples.sort_by(f64::total_cmp);
            println!(
                "{name:<58} {:>8.1}   (p10 {:.1}, p90 {:.1})",
                samples[ROUNDS / 2],
                samples[ROUNDS / 10],
                samples[ROUNDS * 9 / 10]
            );
        }
    }
}

fn main() {
    let path = format!("/dev/shm/gannet-floor-{}", std::process::id());
    let path = Path::new(&path);
    let emulated = OpenOptions { emulate_persistence: true, ..OpenOptions::default() };
    let options = CreateOptions { open: emulated, ..CreateOptions::default() };
    let medium = Medium::create(path, LENGTH_BYTES, options, &mut |_| {}).expect("a medium in /dev/shm");
    let plain = Medium::open(path, OpenOptions::default()).expect("the same, plain");
    std::fs::remove_file(path).expect("removed");
    let pages = medium.page_report(1).expect("smaps");
    for at in (0..LENGTH_BYTES).step_by(4096) {
        medium.store_u64(MediumOffset(at), at).expect("in range");
        plain.load_u64(MediumOffset(at)).expect("in range");
    }
    println!(
        "{} KiB pages, {} copy loops, persistence {:?} (emulated); hot source or target, random places; ns",
        pages.usual_page_bytes() / 1024,
        medium.copy_loops(),
        medium.mode()
    );
    let source = vec![0x5Au8; BLOCK_BYTES + 64];
    let (medium, plain) = (&medium, &plain);
    let block = |random: u64| MediumOffset(random % (LENGTH_BYTES / 4096) * 4096);
    let line = |random: u64| MediumOffset(random % (LENGTH_BYTES / 64) * 64);
    let mut targets: Vec<Vec<u8>> = vec![vec![0u8; BLOCK_BYTES]; 4];
    let mut target = targets.iter_mut();
    let mut bench = Bench { rows: Vec::new() };
    bench.row("write 4 KiB + fence", |random| {
        medium.write_from_user(block(random), &mut Source::from_slice(&source[..BLOCK_BYTES]), BLOCK_BYTES).unwrap();
        medium.fence();
    });
    bench.row("write 4 KiB + hash + fence", |random| {
        let mut hash = DataHash::new(random);
        let mut from = Source::from_slice(&source[..BLOCK_BYTES]);
        medium.write_from_user_hashed(block(random), &mut from, BLOCK_BYTES, &mut hash).unwrap();
        black_box(hash.value());
        medium.fence();
    });
    bench.row("write 4 KiB + hash + line + fence (an append)", |random| {
        let mut hash = DataHash::new(random);
        let mut from = Source::from_slice(&source[..BLOCK_BYTES]);
        medium.write_from_user_hashed(block(random), &mut from, BLOCK_BYTES, &mut hash).unwrap();
        black_box(hash.value());
        medium.write(line(random >> 7), &source[..64]).unwrap();
        medium.fence();
    });
    bench.row("write 4 KiB, then a hot word + fence (an overwrite)", |random| {
        medium.write_from_user(block(random), &mut Source::from_slice(&source[..BLOCK_BYTES]), BLOCK_BYTES).unwrap();
        medium.store_u64(MediumOffset(4096 + random % 8 * 64), 1).unwrap();
        medium.fence();
    });
    bench.row("a hot word, then 4 KiB + fence (the wrong order)", |random| {
        medium.store_u64(MediumOffset(4096 + random % 8 * 64), 1).unwrap();
        medium.write_from_user(block(random), &mut Source::from_slice(&source[..BLOCK_BYTES]), BLOCK_BYTES).unwrap();
        medium.fence();
    });
    bench.row("write 4 KiB from an unaligned source + fence", |random| {
        medium
            .write_from_user(block(random), &mut Source::from_slice(&source[7..][..BLOCK_BYTES]), BLOCK_BYTES)
            .unwrap();
        medium.fence();
    });
    bench.row("write 4 KiB at an unaligned place + fence", |random| {
        let at = MediumOffset(block(random).0 % (LENGTH_BYTES - 8192) + 24);
        medium.write_from_user(at, &mut Source::from_slice(&source[..BLOCK_BYTES]), BLOCK_BYTES).unwrap();
        medium.fence();
    });
    bench.row("write 4 KiB at an unaligned place + hash in phase + fence", |random| {
        let mut hash = DataHash::with_phase(random, 24);
        let mut from = Source::from_slice(&source[..BLOCK_BYTES]);
        let at = MediumOffset(block(random).0 % (LENGTH_BYTES - 8192) + 24);
        medium.write_from_user_hashed(at, &mut from, BLOCK_BYTES, &mut hash).unwrap();
        black_box(hash.value());
        medium.fence();
    });
    bench.row("write 4 KiB at an unaligned place + hash off phase + fence", |random| {
        let mut hash = DataHash::new(random);
        let mut from = Source::from_slice(&source[..BLOCK_BYTES]);
        let at = MediumOffset(block(random).0 % (LENGTH_BYTES - 8192) + 24);
        medium.write_from_user_hashed(at, &mut from, BLOCK_BYTES, &mut hash).unwrap();
        black_box(hash.value());
        medium.fence();
    });
    bench.row("write 4 KiB, plain", |random| {
        plain.write_from_user(block(random), &mut Source::from_slice(&source[..BLOCK_BYTES]), BLOCK_BYTES).unwrap();
        plain.fence();
    });
    bench.row("write 4 KiB + hash, plain", |random| {
        let mut hash = DataHash::new(random);
        let mut from = Source::from_slice(&source[..BLOCK_BYTES]);
        plain.write_from_user_hashed(block(random), &mut from, BLOCK_BYTES, &mut hash).unwrap();
        black_box(hash.value());
        plain.fence();
    });
    bench.row("64 B line past the cache + fence", |random| {
        medium.write(line(random), &source[..64]).unwrap();
        medium.fence();
    });
    bench.row("64 B line by word, write-back + fence", |random| {
        let at = line(random);
        // All but the last word of a line: goes through the cache.
        medium.write(at, &source[..56]).unwrap();
        medium.fence();
    });
    bench.row("8 B word, write-back + fence, random places", |random| {
        medium.store_u64(line(random), 1).unwrap();
        medium.fence();
    });
    bench.row("8 B word, write-back + fence, the same place", |random| {
        medium.store_u64(MediumOffset(4096 + random % 8 * 64), 1).unwrap();
        medium.fence();
    });
    bench.row("64 B line, plain", |random| {
        plain.write(line(random), &source[..64]).unwrap();
        plain.fence();
    });
    let first = target.next().unwrap();
    bench.row("read 4 KiB", |random| {
        medium.read_to_user(block(random), &mut Destination::from_slice(first), BLOCK_BYTES).unwrap();
    });
    let second = target.next().unwrap();
    let base = {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let descriptor = medium.descriptor().expect("a file");
        // SAFETY: a new map of the file.
        let base = unsafe {
            mmap(std::ptr::null_mut(), LENGTH_BYTES as usize, ProtFlags::READ, MapFlags::SHARED, descriptor, 0)
        };
        base.expect("mapped").cast::<u8>()
    };
    for at in (0..LENGTH_BYTES).step_by(4096) {
        // SAFETY: inside the map.
        black_box(unsafe { base.add(at as usize).read_volatile() });
    }
    bench.row("memcpy 4 KiB out of a map, for comparison", |random| {
        // SAFETY: inside the map, which nobody writes to meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(base.add(block(random).0 as usize), second.as_mut_ptr(), BLOCK_BYTES) };
        black_box(&second);
    });
    let mut third = [0; 64];
    bench.row("read a 64 B line", |random| {
        medium.read(line(random), &mut third).unwrap();
        black_box(&third);
    });
    bench.row("hash 4 KiB in place", |random| {
        black_box(medium.hash(1, block(random), 4096).unwrap());
    });
    bench.row("load a word of the same line", |random| {
        black_box(medium.load_u64(MediumOffset(random % 8 * 8)).unwrap());
    });
    bench.run();
}
