//! What a file system is, for those who write one and for those who call one.
//!
//! The room holds the trait ([`FileSystem`]), its types and its errors. Front ends know this crate
//! and nothing below it; file systems know nothing above it. It may depend on `shm` (open file
//! descriptions are objects of the arena) and on `usermem` (a caller's bytes), on nothing else.

#![forbid(unsafe_code)]

mod attributes;
mod error;
mod file_system;
mod name;
pub mod namespace;
mod node;
mod requests;
pub mod shared;

pub use attributes::{
    AttributeChange, Attributes, FileType, InodeFlags, ModeChange, Owner, Permissions, Statistics, Time, TimeChange,
};
pub use error::{Error, Result};
pub use file_system::{FileSystem, Held, MayRemove, NewNodeOf};
pub use gannet_usermem as usermem;
pub use name::{NAME_BYTES_MAX, Name};
pub use node::NodeId;
pub use requests::{
    AllocateMode, DirectoryEntry, Extent, ExtentKind, Found, MapAccess, MapToken, MappedExtent, NewNode, RemoveKind,
    RenameFlags, SeekTarget, SyncScope, WriteFlags, WritePosition, Written, XattrMode,
};
pub use rustix::io::Errno;
