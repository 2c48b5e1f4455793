//! A volume's structures for people: what it is, in a few numbers, and what stands on it, entry by entry.
//!
//! Only reads, trusts nothing, and needs nobody's permission but the reader's: it works beside those who have the volume
//! open, and shows what stands on the medium at that instant.

mod describe;
mod print;

#[cfg(test)]
mod tests;

pub use describe::{Description, describe};
pub use print::{Target, dump};
