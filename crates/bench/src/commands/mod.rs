//! The commands, one file each: which cells they measure, and what needs a way of its own.

pub(crate) mod apps;
pub(crate) mod bandwidth;
pub(crate) mod exec;
pub(crate) mod files;
pub(crate) mod latency;
pub(crate) mod meta;
mod postgresql;
mod programs;
pub(crate) mod recovery;
pub(crate) mod threads;
