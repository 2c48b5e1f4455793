//! Runs of set bits in the words of one group, found without a look at each of them.
//!
//! Pure. A bit of `x & x >> n` is set where both it and the one `n` further are; so with each step the runs that a mask stands for
//! get longer, twice as long at first, and then by what is left of the length (as binary lifting does).

use super::GROUP_BLOCKS;
use super::layout::GROUP_WORDS;

type Bits = [u64; GROUP_WORDS];

/// 512 is the longest run, so that there are runs of at least 1, 2, 4, ... 512.
const POWERS: usize = GROUP_BLOCKS.ilog2() as usize + 1;

/// The first run of `most` bits, or else the first of the longest: where it begins, and how long it is, `most` at most.
pub(super) fn longest(bits: &Bits, most: usize) -> Option<(usize, usize)> {
    let mut found = first(bits)?;
    // Where runs of at least 1, 2, 4, ... begin.
    let mut powers = [*bits; POWERS];
    let mut top = 0;
    while 2 << top <= most && top + 1 < POWERS {
        let longer = both(&powers[top], &powers[top], 1 << top);
        let Some(at) = first(&longer) else { break };
        (found, top) = (at, top + 1);
        powers[top] = longer;
    }
    let (mut runs, mut length) = (powers[top], 1 << top);
    for (power, begins) in powers.iter().enumerate().take(top).rev() {
        if length + (1 << power) <= most {
            let longer = both(&runs, begins, length);
            if let Some(at) = first(&longer) {
                (found, runs, length) = (at, longer, length + (1 << power));
            }
        }
    }
    Some((found, length.min(most)))
}

/// Where `one` is set, and `other` so many bits further.
#[inline(always)]
fn both(one: &Bits, other: &Bits, further: usize) -> Bits {
    let (words, bits) = (further / 64, further % 64);
    let word = |index: usize| other.get(index).copied().unwrap_or(0);
    core::array::from_fn(|index| {
        let low = word(index + words) >> bits;
        let high = if bits == 0 { 0 } else { word(index + words + 1) << (64 - bits) };
        one[index] & (low | high)
    })
}

#[inline(always)]
fn first(bits: &Bits) -> Option<usize> {
    let word = bits.iter().position(|word| *word != 0)?;
    Some(word * 64 + bits[word].trailing_zeros() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bit by bit.
    fn by_walking(bits: &Bits, most: usize) -> Option<(usize, usize)> {
        let is_set = |at: usize| at < 64 * GROUP_WORDS && bits[at / 64] >> (at % 64) & 1 == 1;
        let mut best = None;
        for at in (0..64 * GROUP_WORDS).filter(|&at| is_set(at) && (at == 0 || !is_set(at - 1))) {
            let length = (at..).take(most).take_while(|&at| is_set(at)).count();
            if length > best.map_or(0, |(_, longest)| longest) {
                best = Some((at, length));
            }
        }
        best
    }

    #[test]
    fn runs_are_those_that_are_found_bit_by_bit() {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33 << 32 | state >> 32
        };
        for round in 0..20_000u64 {
            let mut bits: Bits = core::array::from_fn(|_| match round % 5 {
                0 => next(),
                1 => next() | next() | next(),
                2 => next() & next() & next(),
                3 => u64::MAX << (next() % 64),
                _ => 0,
            });
            for _ in 0..next() % 4 {
                // A longer run somewhere.
                let (start, length) = (next() % 512, next() % 300);
                (start..(start + length).min(512)).for_each(|at| bits[at as usize / 64] |= 1 << (at % 64));
            }
            for most in [1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 33, 63, 64, 65, 100, 128, 255, 256, 300, 511, 512, 9000] {
                assert_eq!(longest(&bits, most), by_walking(&bits, most), "{bits:x?}, {most}");
            }
        }
        assert_eq!(longest(&[u64::MAX; 8], 512), Some((0, 512)));
        assert_eq!(longest(&[0; 8], 1), None);
    }
}
