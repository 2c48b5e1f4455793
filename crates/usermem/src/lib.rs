//! Memory that belongs to a caller: addresses that may be bad, and copies that report a fault instead of crashing.
//!
//! For: the buffers that a program passes to `read` and `write`, which may be unmapped, read-only, or changed by other
//! threads while they are copied. May touch: the caller's memory, through the assembly routines behind [`copy`] and nothing
//! else; no Rust reference to it is ever made. Relies on: a handler for SIGSEGV and SIGBUS that consults [`fixup`]
//! ([`install_fault_handler`], or a front end's own); without one a bad address ends the process, as it does elsewhere.
//!
//! * [`UserSlice`]: one range of addresses.
//! * [`Source`], [`Destination`]: a list of ranges with a cursor, to copy from and to copy to.
//! * [`Fault`]: how far a copy got.
//! * [`MappedFile`]: a file mapped as programs do it, for measuring.
//! * [`processor`]: what kind of processor this is, where instructions are chosen by it.
//! * [`FaultRange`], [`register`], [`fixup`]: which instructions may fault, and where to go on when they do. Other crates
//!   with copy loops of their own (the media) register theirs.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("the fault-tolerant copies exist for x86-64 Linux only so far");

pub mod copy;
mod cursor;
mod fault;
mod mapped;
pub mod processor;
mod routines;
mod slice;

pub use copy::{CStringError, Fault};
pub use cursor::{Destination, Source};
pub use fault::{FaultRange, fixup, install_fault_handler, register};
pub use mapped::MappedFile;
pub use slice::UserSlice;
