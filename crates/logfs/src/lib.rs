//! The log-structured persistent-memory file system.
//!
//! ```text
//! format            every bit on the medium; nothing else
//! disk, log         slots, pages and entries on a medium: checked loads, stores that a fence makes durable
//! replay, file_map  what entries mean
//! survey, scan      an inode read; the whole volume read once by several threads (used, holders: what comes of it)
//! halves, recover   what was in flight decided; what a crash leaves put in order
//! mkfs, check, dump tools that need no arena
//! places, record    the arena: where things stand, what is known of each inode
//! index, space      trees of names and blocks; free blocks and inode numbers
//! ops               one operation of one thread: locks, optimistic reads
//! shares            blocks that several files refer to
//! load, append      an inode from its log into the arena; an entry into its log
//! mapped            which files are mapped, and what stores through maps may have changed
//! newborn, inode_table
//!                   an inode in the making; the table of all inodes as it grows
//! names, create, remove, rename, attributes, xattrs, read, write (write_entry, write_copy), resize, clone, unshare, map, sync
//!                   the operations
//! collect, limbo    logs kept short; what is free after the next fence
//! counters, samples what has been done, for people
//! reap, attach, volume_guard, adopt
//!                   the dead settled; the volume opened and closed, or gone on with where all were killed
//! opening           a volume's media opened, and why one cannot be
//! volume, file_system
//!                   a volume that is open; all of it behind the trait
//! ```

#![forbid(unsafe_code)]

mod adopt;
mod aftermath;
mod append;
mod attach;
mod attributes;
mod bits;
mod check;
mod clone;
mod closing;
mod collect;
mod copy_ahead;
mod counters;
mod create;
mod dangling;
mod disk;
mod dump;
mod file_map;
mod file_system;
mod format;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod halves;
mod holders;
mod holes;
#[doc(hidden)]
pub mod index;
mod inode_table;
mod limbo;
mod load;
mod log;
mod map;
mod mapped;
mod mkfs;
mod names;
mod newborn;
mod opening;
mod ops;
mod overwrite;
mod pause;
mod places;
mod read;
mod reap;
mod record;
mod recount;
mod recover;
mod remove;
mod rename;
mod rename_room;
mod renew;
mod replay;
mod resize;
mod samples;
mod scan;
mod settling;
mod shares;
#[doc(hidden)]
pub mod space;
mod span;
mod storage;
mod survey;
mod sync;
mod unshare;
mod used;
mod volume;
mod volume_guard;
mod whole_map;
mod write;
mod write_copy;
mod write_end;
mod write_entry;
mod xattrs;
mod zero;

pub use attach::{AccessTimes, AttachOptions, is_left_open, remove_left_open};
pub use check::{CheckOptions, CheckProgress, CheckReport, Finding, Outcome, Severity, check, check_giving_up};
pub use counters::VolumeCounters;
pub use dump::{Description, Target as DumpTarget, describe, dump};
pub use mkfs::{FurtherOptions, MakeOptions, make, make_spanning};
pub use opening::{OpenError, open_medium, open_medium_to_check};
pub use ops::{NoUsers, Users};
pub use recount::Recounted;
pub use recover::RecoveryReport;
pub use samples::{Operation, OperationCounters};
pub use span::holds;
pub use volume::{LogFs, SharedMemory};
