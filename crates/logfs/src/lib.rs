//! The log-structured persistent-memory file system.

#![forbid(unsafe_code)]
#![allow(dead_code)]

mod bits;
mod disk;
mod file_map;
mod format;
#[doc(hidden)]
pub mod index;
mod log;
mod mkfs;
mod recover;
mod replay;
#[doc(hidden)]
pub mod space;
mod survey;

pub use mkfs::{MakeOptions, make};
pub use recover::RecoveryReport;
