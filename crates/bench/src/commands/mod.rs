//! The commands, one file each: which cells they measure, and what needs a way of its own.

pub(crate) mod latency;
pub(crate) mod threads;
