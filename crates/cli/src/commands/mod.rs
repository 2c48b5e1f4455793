//! The commands, one file each. Each returns the exit code, or why it failed.

pub(crate) mod bench;
pub(crate) mod documents;
pub(crate) mod dump;
pub(crate) mod fsck;
pub(crate) mod info;
mod kernel;
pub(crate) mod mkfs;
pub(crate) mod mount;
pub(crate) mod run;
pub(crate) mod set;
pub(crate) mod stat;
