//! [`DataHash`]: the 64-bit hash over a write's data that is computed inside the copy loop.
//!
//! For: recognising, after a crash, data that did not reach the medium before the entry that refers to it. Not a defence
//! against somebody who chooses the data. `docs/parts/media.md` defines it exactly; this file is the reference (scalar) and
//! the frame; [`crate::kernels`] has the vector loops, which give the same sums.

use crate::kernels;

/// Bytes per stripe; also a cache line, so that a copy loop can hash the lines it stores.
pub(crate) const STRIPE_BYTES: usize = 64;

/// What the keys rise by from stripe to stripe: odd, from the golden ratio. The assembly has its own copy.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// Keys of the first stripe before the seed is mixed in, and secrets of the end: digits of pi.
const SECRETS: [u64; 24] = [
    0x243F_6A88_85A3_08D3,
    0x1319_8A2E_0370_7344,
    0xA409_3822_299F_31D0,
    0x082E_FA98_EC4E_6C89,
    0x4528_21E6_38D0_1377,
    0xBE54_66CF_34E9_0C6C,
    0xC0AC_29B7_C97C_50DD,
    0x3F84_D5B5_B547_0917,
    0x9216_D5D9_8979_FB1B,
    0xD131_0BA6_98DF_B5AC,
    0x2FFD_72DB_D01A_DFB7,
    0xB8E1_AFED_6A26_7E96,
    0xBA7C_9045_F12C_7F99,
    0x24A1_9947_B391_6CF7,
    0x0801_F2E2_858E_FC16,
    0x6369_20D8_7157_4E69,
    0xA458_FEA3_F493_3D7E,
    0x0D95_748F_728E_B658,
    0x718B_CD58_8215_4AEE,
    0x7B54_A41D_C25A_59B5,
    0x9C30_D539_2AF2_6013,
    0xC5D1_B023_2860_85F0,
    0xCA41_7918_B8DB_38EF,
    0x8E79_DCB0_603A_180E,
];

/// The state of the eight lanes. Layout known to the assembly.
#[repr(C, align(64))]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lanes {
    sums: [u64; 8],
    sums_of_sums: [u64; 8],
    keys: [u64; 8],
}

impl Lanes {
    /// One stripe, as the definition says.
    fn stripe_scalar(&mut self, stripe: &[u8; STRIPE_BYTES]) {
        let mut words = [0; 8];
        for (word, bytes) in words.iter_mut().zip(stripe.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let word = |lane: usize| words[lane];
        for lane in 0..8 {
            let keyed = word(lane) ^ self.keys[lane];
            let product = (keyed & 0xFFFF_FFFF).wrapping_mul(keyed >> 32);
            self.sums[lane] = self.sums[lane].wrapping_add(word(lane ^ 1)).wrapping_add(product);
            self.sums_of_sums[lane] = self.sums_of_sums[lane].wrapping_add(self.sums[lane]);
            self.keys[lane] = self.keys[lane].wrapping_add(STEP);
        }
    }
}

/// A hash over a sequence of bytes, the same however the sequence is split into calls.
#[derive(Clone, Debug)]
pub struct DataHash {
    lanes: Lanes,
    /// The bytes of the stripe that is not complete; zeros behind them.
    pending: [u8; STRIPE_BYTES],
    /// Bytes so far, the phase included.
    position: u64,
    seed: u64,
    phase: u64,
}

impl DataHash {
    /// The hash of nothing yet, keyed by `seed`.
    #[must_use]
    pub fn new(seed: u64) -> DataHash {
        DataHash::with_phase(seed, 0)
    }

    /// As [`DataHash::new`], for a sequence whose first byte will lie `phase % 64` bytes into a line of the medium. Then
    /// stripes and lines coincide and copies hash at full speed; with another phase they are right but slower. Different
    /// phases give different hashes.
    #[must_use]
    pub fn with_phase(seed: u64, phase: u64) -> DataHash {
        let phase = phase % STRIPE_BYTES as u64;
        let mut keys = [0; 8];
        for (lane, key) in keys.iter_mut().enumerate() {
            *key = SECRETS[lane] ^ seed.rotate_left(lane as u32 * 8);
        }
        DataHash {
            lanes: Lanes { sums: [0; 8], sums_of_sums: [0; 8], keys },
            pending: [0; STRIPE_BYTES],
            position: phase,
            seed,
            phase,
        }
    }

    /// Number of bytes hashed so far.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.position - self.phase
    }

    /// How far into a stripe the next byte falls, 0..64.
    #[inline]
    pub(crate) fn offset_in_stripe(&self) -> usize {
        (self.position % STRIPE_BYTES as u64) as usize
    }

    /// Appends `bytes`.
    pub fn update(&mut self, mut bytes: &[u8]) {
        let offset = self.offset_in_stripe();
        if offset != 0 {
            let (head, rest) = bytes.split_at(bytes.len().min(STRIPE_BYTES - offset));
            self.append_pending(head);
            bytes = rest;
        }
        let lines = bytes.len() / STRIPE_BYTES;
        if lines != 0 {
            // SAFETY: `bytes` holds that many lines, private to us.
            let left =
                unsafe { (kernels::kernels().hash)(std::ptr::null_mut(), bytes.as_ptr(), lines, &mut self.lanes) };
            debug_assert_eq!(left, 0);
            self.position += (lines * STRIPE_BYTES) as u64;
            bytes = &bytes[lines * STRIPE_BYTES..];
        }
        if !bytes.is_empty() {
            self.append_pending(bytes);
        }
    }

    /// Appends bytes that do not reach beyond the current stripe.
    fn append_pending(&mut self, bytes: &[u8]) {
        let offset = self.offset_in_stripe();
        self.pending[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.append_prepared(bytes.len());
    }

    /// Appends `count` zeros.
    pub fn update_zeros(&mut self, mut count: u64) {
        #[repr(align(64))]
        struct Zeros([u8; 1024]);
        static ZEROS: Zeros = Zeros([0; 1024]);
        let offset = self.offset_in_stripe() as u64;
        if offset != 0 {
            // The zeros are there already.
            let step = count.min(STRIPE_BYTES as u64 - offset);
            self.append_prepared(step as usize);
            count -= step;
        }
        while count >= STRIPE_BYTES as u64 {
            let step = count.min(ZEROS.0.len() as u64) / STRIPE_BYTES as u64 * STRIPE_BYTES as u64;
            self.update(&ZEROS.0[..step as usize]);
            count -= step;
        }
        self.position += count;
    }

    /// Writes the bytes that will follow the whole stripes which a copy loop is about to append: less than a stripe.
    #[inline]
    pub(crate) fn prepare(&mut self, bytes: &[u8]) {
        debug_assert_eq!(self.offset_in_stripe(), 0);
        self.pending[..bytes.len()].copy_from_slice(bytes);
    }

    /// Appends `count` bytes that stand in the current stripe already.
    #[inline]
    pub(crate) fn append_prepared(&mut self, count: usize) {
        self.position += count as u64;
        if count != 0 && self.offset_in_stripe() == 0 {
            self.complete();
        }
    }

    /// Takes the complete pending stripe in.
    fn complete(&mut self) {
        // SAFETY: one private line.
        unsafe { (kernels::kernels().hash)(std::ptr::null_mut(), self.pending.as_ptr(), 1, &mut self.lanes) };
        self.pending = [0; STRIPE_BYTES];
    }

    /// The lanes, for a copy loop that hashes whole lines at a stripe boundary. It must call [`DataHash::advanced`] after.
    #[inline]
    pub(crate) fn lanes(&mut self) -> *mut Lanes {
        debug_assert_eq!(self.offset_in_stripe(), 0);
        &raw mut self.lanes
    }

    /// Notes that a copy loop has hashed `lines` whole lines.
    #[inline]
    pub(crate) fn advanced(&mut self, lines: usize) {
        self.position += (lines * STRIPE_BYTES) as u64;
    }

    /// The hash of the sequence so far; more can be appended afterwards.
    #[must_use]
    pub fn value(&self) -> u64 {
        if self.offset_in_stripe() == 0 {
            return self.finish(&self.lanes, self.length());
        }
        let mut lanes = self.lanes.clone();
        // Word by word: a vector load of bytes just written would wait for all stores before them (see `transfer`).
        lanes.stripe_scalar(&self.pending);
        self.finish(&lanes, self.length())
    }

    /// Makes one word of the lanes.
    fn finish(&self, lanes: &Lanes, length: u64) -> u64 {
        let fold = |left: u64, right: u64| {
            let product = u128::from(left) * u128::from(right);
            product as u64 ^ (product >> 64) as u64
        };
        let mut hash = fold(length ^ SECRETS[0], (self.seed ^ SECRETS[1]).wrapping_add(self.phase));
        for lane in 0..8 {
            let (sum, sum_of_sums) = (lanes.sums[lane], lanes.sums_of_sums[lane]);
            hash = hash.wrapping_add(fold(sum ^ SECRETS[8 + lane], sum_of_sums ^ SECRETS[16 + lane]));
        }
        // The finalizer of MurmurHash3: every bit of the sum reaches every bit of the result.
        hash = (hash ^ (hash >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
        hash = (hash ^ (hash >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
        hash ^ (hash >> 33)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, on a whole sequence at once.
    fn reference(seed: u64, phase: usize, bytes: &[u8]) -> u64 {
        let mut hash = DataHash::with_phase(seed, phase as u64);
        let mut padded = vec![0; phase];
        padded.extend_from_slice(bytes);
        padded.resize(padded.len().next_multiple_of(STRIPE_BYTES), 0);
        let stripes = if phase + bytes.len() == 0 { &[][..] } else { &padded[..] };
        for stripe in stripes.chunks_exact(STRIPE_BYTES) {
            hash.lanes.stripe_scalar(stripe.try_into().unwrap());
        }
        hash.finish(&hash.lanes, bytes.len() as u64)
    }

    fn bytes(count: usize, mut seed: u64) -> Vec<u8> {
        (0..count)
            .map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (seed >> 56) as u8
            })
            .collect()
    }

    #[test]
    fn vector_loops_equal_the_definition() {
        for kernels in kernels::executable() {
            for lines in 0..20 {
                for misalignment in [0, 1, 17] {
                    let data = bytes(lines * STRIPE_BYTES + misalignment, 3);
                    let data = &data[misalignment..];
                    let mut expected = DataHash::new(99).lanes;
                    for stripe in data.chunks_exact(STRIPE_BYTES) {
                        expected.stripe_scalar(stripe.try_into().unwrap());
                    }
                    let mut to = vec![Line([0; 64]); lines + 1];
                    for routine in [kernels.hash, kernels.copy_hashed, kernels.copy_cached_hashed, kernels.copy] {
                        let mut lanes = DataHash::new(99).lanes;
                        // SAFETY: there are so many lines on both sides, and the target is aligned.
                        let left = unsafe { routine(to.as_mut_ptr().cast(), data.as_ptr(), lines, &mut lanes) };
                        crate::processor::store_fence();
                        assert_eq!(left, 0);
                        if routine as usize != kernels.hash as usize {
                            assert_eq!(to.iter().flat_map(|line| line.0).take(lines * 64).collect::<Vec<_>>(), data);
                            assert!(to[lines].0.iter().all(|&byte| byte == 0));
                            to.fill(Line([0; 64]));
                        }
                        if routine as usize != kernels.copy as usize {
                            assert_eq!(lanes, expected, "{}", kernels.name);
                        }
                    }
                }
            }
        }
    }

    #[repr(align(64))]
    #[derive(Clone)]
    struct Line([u8; 64]);

    #[test]
    fn independent_of_the_split() {
        for length in 0..300 {
            let data = bytes(length, length as u64);
            for phase in [0, 1, 8, 63] {
                let expected = reference(5, phase, &data);
                for cut in 0..=length {
                    let mut hash = DataHash::with_phase(5, phase as u64);
                    hash.update(&data[..cut]);
                    hash.update(&data[cut..]);
                    assert_eq!(hash.value(), expected, "length {length} phase {phase} cut {cut}");
                    assert_eq!(hash.length(), length as u64);
                }
                let mut hash = DataHash::with_phase(5, phase as u64);
                for byte in &data {
                    hash.update(std::slice::from_ref(byte));
                }
                assert_eq!(hash.value(), expected);
            }
        }
    }

    #[test]
    fn zeros_are_bytes() {
        for (before, zeros, after) in [(0, 1, 0), (5, 4091, 100), (64, 64, 64), (0, 5000, 1), (4000, 96, 0)] {
            let (head, tail) = (bytes(before, 1), bytes(after, 2));
            let mut hash = DataHash::new(1);
            hash.update(&head);
            hash.update_zeros(zeros as u64);
            hash.update(&tail);
            let flat = [head, vec![0; zeros], tail].concat();
            assert_eq!(hash.value(), reference(1, 0, &flat));
        }
    }

    #[test]
    fn notices_stale_words_swapped_lines_lengths_and_seeds() {
        let value = |data: &[u8]| reference(7, 0, data);
        for base in [vec![0; 4096], vec![0xFF; 4096], bytes(4096, 9), b"abcdefgh".repeat(512)] {
            let expected = value(&base);
            let mut seen = std::collections::HashSet::from([expected]);
            for word in 0..512 {
                for stale in [[0; 8], [0xFF; 8], [1, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0, 0x80]] {
                    let mut data = base.clone();
                    data[word * 8..word * 8 + 8].copy_from_slice(&stale);
                    if data != base {
                        assert!(seen.insert(value(&data)), "word {word} stale {stale:?}");
                    }
                }
                for bit in 0..64 {
                    let mut data = base.clone();
                    data[word * 8 + bit / 8] ^= 1 << (bit % 8);
                    let hash = value(&data);
                    assert_ne!(hash, expected, "word {word} bit {bit}");
                }
            }
            // Every pair of lines swapped, of lines that differ in one bit only among them.
            let mut data = base.clone();
            for line in 0..64 {
                data[line * 64 + 20] ^= (line as u8) << 1;
            }
            let expected = value(&data);
            for first in 0..64 {
                for second in first + 1..64 {
                    let mut swapped = data.clone();
                    swapped.copy_within(first * 64..first * 64 + 64, second * 64);
                    swapped[first * 64..first * 64 + 64].copy_from_slice(&data[second * 64..second * 64 + 64]);
                    assert_eq!(value(&swapped) == expected, swapped == data, "lines {first} and {second}");
                }
            }
        }
        let mut seen = std::collections::HashSet::new();
        for length in 0..1000 {
            assert!(seen.insert(value(&vec![0; length])), "zeros of length {length}");
        }
        for seed in 0..1000 {
            assert!(seen.insert(reference(seed + 100, 0, &[0; 64])));
        }
        assert_ne!(reference(7, 0, &[1; 64]), reference(7, 8, &[1; 64]));
    }

    /// The format depends on these values: they must never change.
    #[test]
    fn known_values() {
        let values = [
            DataHash::new(0).value(),
            reference(0, 0, &[0]),
            reference(1, 0, b"gannet"),
            reference(2, 13, &(0..=255).collect::<Vec<u8>>()),
        ];
        assert_eq!(
            values,
            [0x07A9_FBB8_D7E0_1AB8, 0xC902_B085_0B7A_6E1F, 0x2710_D23B_3D2E_332C, 0xC75C_0329_4A6D_163A]
        );
    }
}
