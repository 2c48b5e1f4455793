//! Every kind of store is right at every length and alignment, durable to the last byte, and costs the flushes it should.

use gannet_media::{DataHash, Medium, MediumOffset, Simulation, counters_reset};
use gannet_usermem::Source;

const ROOM_BYTES: u64 = 4096;

fn pattern(index: usize) -> u8 {
    (index * 11 + index / 256 + 1) as u8
}

/// Runs `store` for every length and alignment, on a medium full of 0xEE, and checks bytes, neighbours and durability.
fn every_shape(
    lengths: std::ops::RangeInclusive<usize>,
    expected: fn(usize) -> u8,
    store: impl Fn(&Medium, MediumOffset, usize),
) {
    let (medium, simulation) = Medium::simulated(ROOM_BYTES);
    let mut bytes = vec![0; ROOM_BYTES as usize];
    for alignment in 0..64 {
        for length in lengths.clone() {
            medium.write(MediumOffset(0), &[0xEE; 512]).unwrap();
            medium.fence();
            simulation.checkpoint();
            let at = 64 + alignment;
            store(&medium, MediumOffset(at as u64), length);
            medium.fence();
            assert!(simulation.pending_lines().is_empty(), "length {length} at {at}: not durable");
            medium.read(MediumOffset(0), &mut bytes).unwrap();
            for (index, &byte) in bytes[..512].iter().enumerate() {
                let value = if (at..at + length).contains(&index) { expected(index - at) } else { 0xEE };
                assert_eq!(byte, value, "length {length} at {at}, byte {index}");
            }
        }
    }
}

#[test]
fn metadata() {
    let data: Vec<u8> = (0..300).map(pattern).collect();
    every_shape(0..=260, pattern, |medium, at, length| medium.write(at, &data[..length]).unwrap());
}

#[test]
fn data_from_callers_in_pieces_with_a_hash() {
    let data: Vec<u8> = (0..300).map(pattern).collect();
    every_shape(0..=260, pattern, |medium, at, length| {
        // Pieces of every kind: empty, short, longer than a line.
        let cuts = [0, length / 7, length / 7, length / 2, length];
        let pieces: Vec<_> = cuts.windows(2).map(|pair| std::io::IoSlice::new(&data[pair[0]..pair[1]])).collect();
        let mut source = Source::from_io_slices(&pieces).unwrap();
        let phase = if length % 2 == 0 { at.0 } else { length as u64 };
        let mut hash = DataHash::with_phase(3, phase);
        medium.write_from_user_hashed(at, &mut source, length, &mut hash).unwrap();
        assert!(source.is_empty());
        let mut expected = DataHash::with_phase(3, phase);
        expected.update(&data[..length]);
        assert_eq!(hash.value(), expected.value());
        let mut recovered = DataHash::with_phase(3, phase);
        medium.hash_into(at, length as u64, &mut recovered).unwrap();
        assert_eq!(recovered.value(), expected.value());
    });
}

#[test]
fn zeros() {
    every_shape(0..=260, |_| 0, |medium, at, length| medium.zero(at, length as u64).unwrap());
}

#[test]
fn copies_within() {
    every_shape(0..=200, pattern, |medium, at, length| {
        let data: Vec<u8> = (0..300).map(pattern).collect();
        for from in [1024, 1024 + 13] {
            medium.write(MediumOffset(from), &data).unwrap();
            medium.fence();
            let mut hash = DataHash::new(1);
            medium.copy_within_hashed(MediumOffset(from), at, length as u64, &mut hash).unwrap();
            assert_eq!(hash.value(), medium.hash(1, MediumOffset(from), length as u64).unwrap());
        }
    });
}

#[test]
fn long_stores() {
    let (medium, simulation) = Medium::simulated(1 << 16);
    let data: Vec<u8> = (0..20_000).map(pattern).collect();
    for (at, length, phase) in [(0, 4096, 0), (5, 9000, 5), (64, 20_000, 1), (4032, 12_345, 0)] {
        let mut hash = DataHash::with_phase(9, phase);
        medium.zero_hashed(MediumOffset(at), 100, &mut hash).unwrap();
        let mut source = Source::from_slice(&data[..length]);
        medium.write_from_user_hashed(MediumOffset(at + 100), &mut source, length, &mut hash).unwrap();
        medium.zero_hashed(MediumOffset(at + 100 + length as u64), 5000, &mut hash).unwrap();
        medium.fence();
        assert!(simulation.pending_lines().is_empty());
        let mut recovered = DataHash::with_phase(9, phase);
        medium.hash_into(MediumOffset(at), 5100 + length as u64, &mut recovered).unwrap();
        assert_eq!(recovered.value(), hash.value());
        let mut flat = vec![0; 5100 + length];
        flat[100..100 + length].copy_from_slice(&data[..length]);
        let mut bytes = vec![1; flat.len()];
        medium.read(MediumOffset(at), &mut bytes).unwrap();
        assert!(bytes == flat);
    }
}

#[test]
fn costs() {
    let (medium, _simulation): (_, Simulation) = Medium::simulated(1 << 16);
    counters_reset();
    medium.write(MediumOffset(0), &[1; 64]).unwrap();
    medium.fence();
    let counted = counters_reset();
    assert_eq!((counted.fences, counted.lines_streamed, counted.lines_flushed, counted.bytes_stored), (1, 1, 0, 64));
    medium.write_from_user(MediumOffset(4096), &mut Source::from_slice(&[1; 4096]), 4096).unwrap();
    medium.store_u64(MediumOffset(8), 3).unwrap();
    medium.write(MediumOffset(130), &[1; 63]).unwrap();
    let counted = counters_reset();
    assert_eq!((counted.fences, counted.lines_streamed, counted.bytes_stored), (0, 64, 4096 + 8 + 63));
    // The word, and the two parts of lines.
    assert_eq!(counted.lines_flushed, 3);
}
