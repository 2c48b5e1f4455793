//! [`DataHash`]: the 64-bit hash over a write's data that is computed inside the copy loop.
//!
//! For: recognising, after a crash, data that did not reach the medium before the entry that refers to it. Not a defence
//! against somebody who chooses the data. `docs/parts/media.md` defines it exactly; this file is the reference (scalar) and
//! the frame; [`crate::kernels`] has the vector loops, which give the same sums.

use crate::kernels;

/// Bytes per stripe; also a cache line, so that a copy loop can hash the lines it stores.
pub(crate) const STRIPE_BYTES: usize = 64;

/// What the keys rise by from stripe to stripe: odd, from the golden ratio.
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
    #[cfg(test)]
    fn stripe_scalar(&mut self, stripe: &[u8; STRIPE_BYTES]) {
        let word = |lane: usize| u64::from_le_bytes(stripe[lane * 8..lane * 8 + 8].try_into().unwrap());
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
        self.position += bytes.len() as u64;
        if offset + bytes.len() == STRIPE_BYTES {
            // SAFETY: one private line.
            unsafe { (kernels::kernels().hash)(std::ptr::null_mut(), self.pending.as_ptr(), 1, &mut self.lanes) };
            self.pending = [0; STRIPE_BYTES];
        }
    }

    /// Appends `count` zeros.
    pub fn update_zeros(&mut self, mut count: u64) {
        const ZEROS: [u8; 1024] = [0; 1024];
        while count > 0 {
            let step = count.min(ZEROS.len() as u64);
            self.update(&ZEROS[..step as usize]);
            count -= step;
        }
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
        let fold = |left: u64, right: u64| {
            let product = u128::from(left) * u128::from(right);
            product as u64 ^ (product >> 64) as u64
        };
        let mut lanes = self.lanes.clone();
        if self.offset_in_stripe() != 0 {
            // SAFETY: one private line.
            unsafe { (kernels::kernels().hash)(std::ptr::null_mut(), self.pending.as_ptr(), 1, &mut lanes) };
        }
        let mut hash = fold(self.length() ^ SECRETS[0], (self.seed ^ SECRETS[1]).wrapping_add(self.phase));
        for lane in 0..8 {
            hash = hash.wrapping_add(fold(
                lanes.sums[lane] ^ SECRETS[8 + lane],
                lanes.sums_of_sums[lane] ^ SECRETS[16 + lane],
            ));
        }
        // The finalizer of MurmurHash3: every bit of the sum reaches every bit of the result.
        hash = (hash ^ (hash >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
        hash = (hash ^ (hash >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
        hash ^ (hash >> 33)
    }
}
