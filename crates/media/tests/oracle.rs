//! Random operations on media of every kind against plain vectors. `GANNET_LONG=1` runs a hundred times as many.

use std::io::{IoSlice, IoSliceMut};

use gannet_media::{CreateOptions, DataHash, Medium, MediumOffset, OpenOptions};
use gannet_usermem::{Destination, Source};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const LENGTH_BYTES: usize = 1 << 16;

/// A range of a random length, mostly short, at a random place.
fn range(random: &mut SmallRng) -> (usize, usize) {
    let bound = [8, 65, 300, 5000, 20_000][random.random_range(0..5)];
    let length = random.random_range(0..bound);
    (random.random_range(0..=LENGTH_BYTES - length), length)
}

/// Cuts `length` into up to five pieces.
fn cuts(random: &mut SmallRng, length: usize) -> Vec<usize> {
    let mut cuts: Vec<usize> = (0..random.random_range(0..5)).map(|_| random.random_range(0..=length)).collect();
    cuts.extend([0, length]);
    cuts.sort_unstable();
    cuts
}

fn hash_of(seed: u64, phase: u64, bytes: &[u8]) -> u64 {
    let mut hash = DataHash::with_phase(seed, phase);
    hash.update(bytes);
    hash.value()
}

fn step(medium: &Medium, oracle: &mut [u8], random: &mut SmallRng) {
    let (at, length) = range(random);
    let place = MediumOffset(at as u64);
    let phase = if random.random() { at as u64 } else { random.random_range(0..64) };
    let mut hash = DataHash::with_phase(5, phase);
    match random.random_range(0..9) {
        0 => {
            let data: Vec<u8> = (0..length).map(|_| random.random()).collect();
            medium.write(place, &data).unwrap();
            oracle[at..at + length].copy_from_slice(&data);
        }
        kind @ 1..=2 => {
            let data: Vec<u8> = (0..length).map(|_| random.random()).collect();
            let cuts = cuts(random, length);
            let pieces: Vec<_> = cuts.windows(2).map(|pair| IoSlice::new(&data[pair[0]..pair[1]])).collect();
            let mut source = Source::from_io_slices(&pieces).unwrap();
            if kind == 1 {
                medium.write_from_user(place, &mut source, length).unwrap();
            } else {
                medium.write_from_user_hashed(place, &mut source, length, &mut hash).unwrap();
                assert_eq!(hash.value(), hash_of(5, phase, &data));
            }
            assert!(source.is_empty());
            oracle[at..at + length].copy_from_slice(&data);
        }
        3 => {
            // Zeros, data, zeros in one hash, as a file system fills a block.
            let parts = [random.random_range(0..=length), random.random_range(0..=length)];
            let (first, second) = (parts[0].min(parts[1]), parts[0].max(parts[1]));
            let data: Vec<u8> = (first..second).map(|_| random.random()).collect();
            medium.zero_hashed(place, first as u64, &mut hash).unwrap();
            let mut source = Source::from_slice(&data);
            medium.write_from_user_hashed(place.plus(first as u64), &mut source, data.len(), &mut hash).unwrap();
            medium.zero_hashed(place.plus(second as u64), (length - second) as u64, &mut hash).unwrap();
            oracle[at..at + length].fill(0);
            oracle[at + first..at + second].copy_from_slice(&data);
            assert_eq!(hash.value(), hash_of(5, phase, &oracle[at..at + length]));
        }
        4 => {
            medium.zero(place, length as u64).unwrap();
            oracle[at..at + length].fill(0);
        }
        5 => {
            let from = random.random_range(0..=LENGTH_BYTES - length);
            if from + length <= at || at + length <= from {
                medium.copy_within_hashed(MediumOffset(from as u64), place, length as u64, &mut hash).unwrap();
                oracle.copy_within(from..from + length, at);
                assert_eq!(hash.value(), hash_of(5, phase, &oracle[at..at + length]));
            }
        }
        6 => {
            let value = random.random();
            let aligned = at.min(LENGTH_BYTES - 8) & !7;
            medium.store_u64(MediumOffset(aligned as u64), value).unwrap();
            oracle[aligned..aligned + 8].copy_from_slice(&value.to_le_bytes());
            assert_eq!(medium.load_u64(MediumOffset(aligned as u64)), Ok(value));
        }
        7 => {
            let mut back = vec![0xEE; length];
            let cuts = cuts(random, length);
            let mut rest = &mut back[..];
            let mut pieces = Vec::new();
            for pair in cuts.windows(2) {
                let (piece, next) = rest.split_at_mut(pair[1] - pair[0]);
                pieces.push(IoSliceMut::new(piece));
                rest = next;
            }
            let mut destination = Destination::from_io_slices(&mut pieces).unwrap();
            medium.read_to_user(place, &mut destination, length).unwrap();
            assert!(destination.is_empty());
            assert_eq!(back, oracle[at..at + length]);
        }
        _ => {
            medium.hash_into(place, length as u64, &mut hash).unwrap();
            assert_eq!(hash.value(), hash_of(5, phase, &oracle[at..at + length]));
        }
    }
}

fn run(medium: &Medium, steps: usize, check: impl Fn()) {
    for seed in 0..4 {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut oracle = vec![0; LENGTH_BYTES];
        medium.zero(MediumOffset(0), LENGTH_BYTES as u64).unwrap();
        for count in 0..steps {
            step(medium, &mut oracle, &mut random);
            if count % 50 == 0 {
                medium.fence();
                check();
                let mut bytes = vec![0; LENGTH_BYTES];
                medium.read(MediumOffset(0), &mut bytes).unwrap();
                assert!(bytes == oracle, "seed {seed}, step {count}");
            }
        }
    }
}

fn steps() -> usize {
    if std::env::var_os("GANNET_LONG").is_some() { 200_000 } else { 2000 }
}

#[test]
fn memory_plain_and_emulated() {
    for emulate_persistence in [false, true] {
        let open = OpenOptions { emulate_persistence, ..OpenOptions::default() };
        let options = CreateOptions { open, ..CreateOptions::default() };
        run(&Medium::create_in_memory("oracle", LENGTH_BYTES as u64, options).unwrap(), steps(), || {});
    }
}

#[test]
fn simulated() {
    let (medium, simulation) = Medium::simulated(LENGTH_BYTES as u64);
    run(&medium, steps() / 4, || {
        assert!(simulation.pending_lines().is_empty());
        simulation.checkpoint();
    });
}
