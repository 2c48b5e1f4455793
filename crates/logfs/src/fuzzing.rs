//! Entry points for fuzzers: bytes decide what is damaged, and nothing may panic, loop or reach outside. A fuzzer that is led by
//! coverage can call them (feature `fuzzing`); the tests of this crate call them with seeded bytes for a bounded time.
//!
//! Checksums stand in the way of bytes that were changed at random, so the bytes do not stand for an image or an arena, but for
//! a sequence of choices: where to change a sound one, how, and whether to make the checksum right again.

use crate::attach::AttachOptions;
use crate::check::tests::{build, fuzz, medium_of};
use crate::file_map::FileMap;
use crate::format::entry::{self, ENTRY_BYTES_MAX, Entry, Owned, claimed_lines};
use crate::format::{BLOCK_BYTES, Key, LINE_BYTES, get_u64, put_u64};
use crate::ops::NoUsers;
use crate::survey::Values;
use crate::volume::LogFs;
use gannet_media::{Medium, MediumOffset};
use gannet_shm::{ArenaOffset, Ordering, Region};
use std::sync::OnceLock;

/// Where choices come from: a seed, or a fuzzer's bytes, after whose end all choices are 0.
pub(crate) enum Choices<'a> {
    /// A generator.
    Seed(u64),
    /// What is left.
    Bytes(&'a [u8]),
}

impl Choices<'_> {
    fn bytes(&mut self, count: usize) -> u64 {
        match self {
            Self::Seed(state) => {
                *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                *state >> 32
            }
            Self::Bytes(bytes) => {
                let (taken, left) = bytes.split_at(count.min(bytes.len()));
                *bytes = left;
                taken.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
            }
        }
    }

    /// A number below another; as few bytes as will do.
    pub(crate) fn below(&mut self, below: u64) -> u64 {
        let count = if below <= 1 << 8 { 1 } else { 1 + (below - 1).ilog2() as usize / 8 };
        self.bytes(count) % below.max(1)
    }

    /// Any word.
    pub(crate) fn word(&mut self) -> u64 {
        match self {
            Self::Seed(state) => *state,
            Self::Bytes(_) => self.bytes(8),
        }
    }

    /// A number that is likely to mean something.
    pub(crate) fn number(&mut self) -> u64 {
        match self.below(8) {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << self.below(64),
            3 => self.below(200),
            4 => self.below(256) << 40 | self.below(256),
            5 => self.below(4),
            6 => (1 << 40) | self.below(256),
            _ => self.word(),
        }
    }

    /// Whether a fuzzer has said all.
    fn is_empty(&self) -> bool {
        matches!(self, Self::Bytes([]))
    }
}

/// Images of a volume with some of everything, closed and open.
fn images() -> &'static [Vec<u8>; 2] {
    static IMAGES: OnceLock<[Vec<u8>; 2]> = OnceLock::new();
    IMAGES.get_or_init(|| {
        let (builder, _) = build::populated();
        let clean = builder.image();
        builder.open_again();
        [clean, builder.image()]
    })
}

fn medium(image: &[u8]) -> Medium {
    thread_local! {
        static MEDIUM: Medium = medium_of(&images()[0]);
    }
    MEDIUM.with(|medium| {
        medium.write(MediumOffset(0), image).expect("the image");
        medium.clone()
    })
}

/// A volume damaged in up to sixteen places: checked, repaired, checked again, and used as it is.
///
/// # Panics
/// Where a check or a repair does not keep what it promises.
pub fn image(data: &[u8]) {
    static TARGETS: OnceLock<fuzz::Targets> = OnceLock::new();
    let targets = TARGETS.get_or_init(|| fuzz::targets(&build::populated().0));
    let mut choices = Choices::Bytes(data);
    let mut image = images()[choices.below(2) as usize].clone();
    for _ in 0..16 {
        if choices.is_empty() {
            break;
        }
        fuzz::mutate(&mut image, targets, &mut choices);
    }
    if let Err(what) = fuzz::exercise(&medium(&image), &mut [0; 4]) {
        panic!("{what}");
    }
    fuzz::use_volume(&medium(&image));
}

/// One log entry whose checksum is right: read, applied, and written again as it was read.
///
/// # Panics
/// Where what is written again reads otherwise.
pub fn entry(data: &[u8]) {
    let owned = Owned { key: Key(7), inode: 5, generation: 3 };
    let mut bytes = [0; BLOCK_BYTES as usize];
    let length = data.len().min(ENTRY_BYTES_MAX);
    bytes[..length].copy_from_slice(&data[..length]);
    let Some(lines) = claimed_lines(&bytes) else { return };
    let Some(claimed) = bytes.get_mut(..lines as usize * LINE_BYTES as usize) else { return };
    let checksum = owned.checksum(get_u64(claimed, 0), claimed);
    put_u64(claimed, 8, checksum);
    let Some(found) = Entry::decode(owned, &bytes) else { return };
    let (mut map, mut values) = (FileMap::default(), Values::default());
    for _ in 0..2 {
        map.apply(&found.payload);
        values.apply(&found.payload);
    }
    assert!(map.iter().count() < 10_000, "{:?}", found.payload);
    let mut again = [0; BLOCK_BYTES as usize];
    let written = entry::encode(owned, found.epoch, found.sequence, found.time, &found.payload, &mut again);
    let read = Entry::decode(owned, written).expect("what was written");
    assert_eq!((read.epoch, read.sequence, read.time), (found.epoch, found.sequence, found.time));
    assert_eq!(read.payload, found.payload);
}

/// Shared state damaged while a volume is in use: every operation ends, whatever it says.
///
/// What makes an operation wait for ever is left out: a lock that somebody alive has.
pub fn arena(data: &[u8]) {
    let mut choices = Choices::Bytes(data);
    damage_arena(&mut choices);
}

/// As [`arena`].
pub(crate) fn damage_arena(choices: &mut Choices<'_>) {
    const REGIONS: [&str; 11] = [
        "records",
        "nodes",
        "control",
        "stripes",
        "counters",
        "maps",
        "shares",
        "share groups",
        "blocks",
        "inodes",
        "samples",
    ];
    let options = AttachOptions {
        index_bytes_max: 1 << 20,
        copy_on_write: None,
        access_times: Default::default(),
        threads: 1,
        users: Box::new(NoUsers),
    };
    let fs = LogFs::open_private(medium(&images()[0]), options).expect("a sound volume");
    let arena = fs.session().arena();
    // Loads what there is.
    fuzz::walk_volume(&fs, &mut |_, _, _| ());
    let region = |name: &str| arena.region(name).expect("a region");
    let records = region("records");
    // The records' own beginning says which have memory; few inodes are in use.
    let used = |name: &str, region: &Region| match name {
        "records" => region.bytes.min(40 * 256 + 64),
        "nodes" => region.bytes.min(128 * 512),
        _ => region.bytes,
    };
    for _ in 0..1 + choices.below(16) {
        if choices.is_empty() {
            break;
        }
        let name = REGIONS[choices.below(REGIONS.len() as u64) as usize];
        let place = if name == "records" { records } else { region(name) };
        let word = choices.below(used(name, &place) / 8);
        let Ok(word) = arena.word(ArenaOffset::new(place.start.get() + word * 8)) else { continue };
        let old = word.load(Ordering::Relaxed);
        let new = match choices.below(4) {
            0 => old ^ 1 << choices.below(64),
            1 => old.wrapping_add(choices.below(256)).wrapping_sub(128),
            _ => choices.number(),
        };
        // `owner + 1:16 · sequence:48`: a lock of somebody who lives is waited for.
        let names_the_living = (1..=8).contains(&(new >> 48)) && new & 1 == 1;
        word.store(if names_the_living { new & !(0xFFFF << 48) } else { new }, Ordering::Relaxed);
    }
    fuzz::use_open_volume(&fs);
}

#[cfg(test)]
mod tests {
    use super::{Choices, arena, damage_arena, entry, image};
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::time::{Duration, Instant};

    /// How long an input may take before it counts as endless.
    const INPUT_TIME_MAX: Duration = Duration::from_secs(120);

    /// Inputs that fail before the rest is left out: each says something else.
    const FAILURES_MAX: usize = 20;

    /// Calls `run` with seeded bytes: `usual` times, `long` times with `GANNET_LONG`, from `GANNET_SEED` on.
    fn campaign(name: &str, usual: u64, long: u64, run: fn(u64)) {
        let count = if std::env::var_os("GANNET_LONG").is_some() { long } else { usual };
        let start: u64 = std::env::var("GANNET_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
        let began = Instant::now();
        let (say, hear) = channel();
        let worker = std::thread::spawn(move || {
            let mut failed = Vec::new();
            for seed in start..start + count {
                if say.send(seed).is_err() || failed.len() == FAILURES_MAX {
                    break;
                }
                if std::panic::catch_unwind(|| run(seed)).is_err() {
                    failed.push(seed);
                }
            }
            failed
        });
        let mut last = start;
        loop {
            match hear.recv_timeout(INPUT_TIME_MAX) {
                Ok(seed) => last = seed,
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("{name}: seed {last} does not come to an end"),
            }
        }
        let failed = worker.join().unwrap_or_else(|_| vec![last]);
        assert!(failed.is_empty(), "{name}: seeds {failed:?}");
        println!("{name}: {count} inputs, {:.1} s", began.elapsed().as_secs_f64());
    }

    fn bytes(seed: u64) -> Vec<u8> {
        let mut choices = Choices::Seed(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        (0..8 + choices.below(200)).map(|_| choices.below(256) as u8).collect()
    }

    #[test]
    fn damaged_shared_memory_is_survived() {
        campaign("arena", 400, 200_000, |seed| {
            damage_arena(&mut Choices::Seed(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)))
        });
    }

    #[test]
    fn inputs_of_fuzzers_are_survived() {
        campaign("image", 60, 100_000, |seed| image(&bytes(seed)));
        campaign("arena", 60, 100_000, |seed| arena(&bytes(seed)));
        campaign("entry", 5_000, 10_000_000, |seed| {
            let mut bytes = bytes(seed);
            // A kind that there is, and few lines.
            bytes[0] %= 14;
            bytes[2] = 1 + bytes[2] % 3;
            entry(&bytes);
        });
    }
}
