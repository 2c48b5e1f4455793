//! `libgannet`: volumes for programs in C and everything that can call C.
//!
//! For: programs that use a volume without interception or mount, at the price of a function call. It knows `vfs` and the
//! composition root `open`, nothing below. `include/gannet.h` is made from the functions of this crate and their comments.
//!
//! Every function runs in [`call::run`]: it checks the handle, turns errors into negative errno values, keeps the last error of
//! the thread for `gannet_error_text`, and lets no panic into the caller. Memory of the caller is touched through
//! [`memory`] only.
//!
//! | file | what |
//! | --- | --- |
//! | `volume.rs`, `table.rs`, `credentials.rs` | a handle: file system, descriptors, who asks |
//! | `call.rs`, `error.rs`, `memory.rs`, `path.rs` | what every call needs |
//! | `fork.rs` | a forked child goes on with what its parent had open |
//! | `attach.rs` | attach, detach, credentials, the text of an error |
//! | `descriptors.rs`, `data.rs`, `vectors.rs`, `space.rs`, `sharing.rs`, `names.rs`, `attributes.rs`, `relative.rs`, `flags.rs`, `xattrs.rs`, `directory.rs`, `locks.rs` | the calls |
//! | `extents.rs`, `maps.rs` | the calls without a copy |
//!
//! **Order of locks**: the list of volumes, then a volume's table, then its maps; all before any lock of a file system.

#![deny(missing_docs)]

pub mod attach;
pub mod attributes;
mod call;
mod cancel;
mod credentials;
pub mod data;
pub mod descriptors;
pub mod directory;
mod error;
pub mod extents;
pub mod flags;
mod fork;
pub mod locks;
pub mod maps;
mod memory;
pub mod names;
mod path;
mod place;
pub mod relative;
pub mod sharing;
pub mod space;
mod table;
pub mod vectors;
mod volume;
pub mod xattrs;

pub use volume::Volume;
