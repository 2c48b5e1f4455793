//! The kernel's FUSE requests become calls on a file system.
//!
//! Four layers, each knowing only the one before it: `protocol` (bytes and their meaning, no I/O), `dispatch` (a request
//! becomes a call on [`gannet_vfs::FileSystem`]), `transport` (`/dev/fuse` or the ring; the only `unsafe` code), `mount`
//! (life and death of a mount). May depend on `vfs` and `usermem` only: any file system behind `vfs` can be served.
//!
//! [`serve`] mounts a file system; [`MountOptions`] says how.

mod dispatch;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod mount;
pub mod protocol;
mod transport;

pub use dispatch::CachePolicy;
pub use mount::{MountError, MountOptions, Mounted, serve};
pub use transport::{
    RingHindrance, Transport, enable_ring, panic_costs_one_request, ring_offered, standard_descriptors_closed,
    standard_output_was_closed,
};
