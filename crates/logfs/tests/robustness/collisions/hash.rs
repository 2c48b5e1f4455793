//! Names of a wanted hash.
//!
//! The hash is XXH3-64 with a seed that follows from the volume's key, which whoever makes a volume chooses. For names of eight
//! bytes it is a bijection and can be inverted step by step: each of the 2^17 values with the same upper 47 bits has one
//! name, and nearly all of those are names that a directory may hold. And for any name there is a key that gives it a wanted
//! hash. So these are collisions of the real hash; a directory's cookies prove that they are.

use gannet_vfs::Name;

/// A hash with nothing special about it.
pub(super) const HASH: u64 = 0x1234_5678_9ABC;
/// The bits of a hash that the index's key does not have.
pub(super) const DROPPED_BITS: u32 = 17;
/// The bits of a key below those of the hash: the rank.
pub(super) const RANK_BITS: u32 = 16;
/// The volume's key, where nothing else is said: see [`crate::volume::make_options`].
pub(super) const KEY: u64 = 0x0707_0707_0707_0707;

/// Two words of XXH3's secret, exclusive or: what names of four to eight bytes are mixed with.
const SECRET: u64 = 0x1cad_21f7_2c81_017c ^ 0xdb97_9083_e96d_d4de;
/// The seed of a volume's names is the key, mixed: FORMAT.md, "Checksums".
const NAME_TAG: u64 = 7u64.wrapping_mul(0x9E37_79B9_7F4A_7C15);
const MIX: u64 = 0xD6E8_FEB8_6659_FD93;
const AVALANCHE: u64 = 0x9FB2_1C65_1E98_DF25;

/// The number that a factor's multiplication is undone with.
const fn inverse(factor: u64) -> u64 {
    let (mut inverse, mut step) = (factor, 0);
    while step < 5 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(factor.wrapping_mul(inverse)));
        step += 1;
    }
    inverse
}

/// What `x` was before `x ^= x >> shift`, for a shift of at least 22.
const fn unshift(x: u64, shift: u32) -> u64 {
    x ^ x >> shift ^ if 2 * shift < 64 { x >> (2 * shift) } else { 0 }
}

const fn seed_of(key: u64) -> u64 {
    let mut seed = (key ^ NAME_TAG).wrapping_mul(MIX);
    seed = (seed ^ seed >> 32).wrapping_mul(MIX);
    seed ^ seed >> 29
}

const fn key_of(seed: u64) -> u64 {
    let seed = unshift(seed, 29).wrapping_mul(inverse(MIX));
    unshift(seed, 32).wrapping_mul(inverse(MIX)) ^ NAME_TAG
}

/// What eight bytes are mixed with, for a seed.
const fn flip_of(seed: u64) -> u64 {
    SECRET.wrapping_sub(seed ^ ((seed as u32).swap_bytes() as u64) << 32)
}

const fn seed_of_flip(flip: u64) -> u64 {
    let seed = SECRET.wrapping_sub(flip);
    seed ^ ((seed as u32).swap_bytes() as u64) << 32
}

/// What XXH3's last steps made `hash` from, for eight bytes.
fn before_avalanche(hash: u64) -> u64 {
    let x = unshift(hash, 28).wrapping_mul(inverse(AVALANCHE));
    // `x ^= (x >> 35) + 8` leaves the bits that it shifts as they are.
    let mut x = (x ^ ((x >> 35) + 8)).wrapping_mul(inverse(AVALANCHE));
    // Sixty-four times `x ^= rotl(x, 49) ^ rotl(x, 24)` is nothing, so the other 63 undo it.
    for _ in 0..63 {
        x ^= x.rotate_left(49) ^ x.rotate_left(24);
    }
    x
}

/// The two halves of eight bytes, as XXH3 takes them.
fn halves(bytes: [u8; 8]) -> u64 {
    u64::from_le_bytes(bytes).rotate_left(32)
}

/// The names of eight bytes that have this hash, but for what the index's key leaves out, on a volume with this key.
pub(super) fn colliding(key: u64, hash: u64) -> impl Iterator<Item = [u8; 8]> {
    let flip = flip_of(seed_of(key));
    (0..1 << DROPPED_BITS)
        .map(move |low| (before_avalanche(hash << DROPPED_BITS | low) ^ flip).rotate_left(32).to_le_bytes())
        .filter(|bytes| Name::new(bytes).is_ok())
}

/// The key of a volume on which a name has this hash.
pub(super) fn key_for(bytes: [u8; 8], hash: u64) -> u64 {
    key_of(seed_of_flip(before_avalanche(hash << DROPPED_BITS) ^ halves(bytes)))
}

/// Those that are text, and can be printed.
pub(super) fn texts(key: u64, hash: u64) -> Vec<String> {
    colliding(key, hash)
        .filter(|bytes| bytes.iter().all(u8::is_ascii_graphic))
        .map(|bytes| String::from_utf8(bytes.to_vec()).expect("text"))
        .collect()
}
