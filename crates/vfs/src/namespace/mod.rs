//! Paths and permissions, for callers that have no kernel to do them.
//!
//! For: front ends inside a program (interception, the library). It calls the file system through the trait only, keeps
//! no state between calls but what a [`PathBuffer`] holds, and allocates nothing. The rules are Linux's, errno by errno.
//!
//! A call on a path is two steps: [`Walker::resolve`] turns a path into a [`Place`] or says that it [left](Left) the
//! volume; a method of [`Namespace`] then does the work there, permission checks included. Checks look at the inode as it is
//! a moment before the operation; the operation itself is the file system's and atomic.
//!
//! | file | what |
//! | --- | --- |
//! | `credentials.rs` | who asks |
//! | `user_namespace.rs` | ids and capabilities of user namespaces |
//! | `walk.rs` | path to place |
//! | `path_cache.rs` | what a thread keeps of earlier walks |
//! | `access.rs` | may they |
//! | `access_list.rs` | POSIX ACLs: format, check, inheritance |
//! | `stored_list.rs` | access lists of inodes and the permission bits that stand for them, told and set together |
//! | `file_capability.rs` | capabilities of programs: format, and when they fall |
//! | `open.rs`, `names.rs`, `attributes.rs`, `xattrs.rs`, `sharing.rs` | the operations |
//!
//! Of what the kernel does by administrator's setting, `protected_hardlinks` is always on (as distributions set it);
//! `protected_symlinks`, `protected_regular` and `protected_fifos` are not done.

mod access;
mod access_list;
mod attributes;
mod credentials;
mod file_capability;
mod names;
mod open;
mod path_cache;
mod sharing;
mod stored_list;
mod user_namespace;
mod walk;
mod xattrs;

pub use access::Access;
pub use access_list::{ACCESS_LIST_ENTRIES_MAX, AccessList};
pub use credentials::{Capabilities, Credentials};
pub use open::{OpenFlags, Opened};
pub use sharing::SHARED_COPY_BYTES_MIN;
pub use user_namespace::{IdMap, IdRange, UserNamespace};
pub use walk::{Boundary, Last, LastMode, Left, PATH_BYTES_MAX, PathBuffer, Place, Resolution, ResolveFlags, Walker};

use crate::FileSystem;

/// The operations of a file system as a process sees them: with permissions.
#[derive(Clone, Copy)]
pub struct Namespace<'f, 'c> {
    fs: &'f dyn FileSystem,
    who: Credentials<'c>,
}

impl<'f, 'c> Namespace<'f, 'c> {
    /// The view that `who` has of `fs`.
    pub const fn new(fs: &'f dyn FileSystem, who: Credentials<'c>) -> Self {
        Self { fs, who }
    }

    /// The file system.
    pub const fn fs(&self) -> &'f dyn FileSystem {
        self.fs
    }

    /// Who asks.
    pub const fn credentials(&self) -> &Credentials<'c> {
        &self.who
    }
}
