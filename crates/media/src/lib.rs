//! Maps a volume; the only code that stores to it and executes flush and fence; simulated media for crash tests.
//!
//! For: file systems whose data and metadata lie in one mapped range of bytes. May touch: that range, and the file behind
//! it. Relies on `gannet_usermem` for callers' memory and for faults.
//!
//! The rules of a store: after it returns, others who map the volume see it; it is *durable* when the same thread has since
//! executed [`Medium::fence`]. What durable means depends on the medium ([`MediumKind`]); eight aligned bytes never tear.
//! Before the fence any part of what was stored may have become durable by itself: per cache line a prefix of its stores.
//!
//! | file | concern |
//! | --- | --- |
//! | `medium` | the handle, the bounds check, the ways in which stores become durable |
//! | `load`, `store`, `transfer` | reading; metadata stores, flush and fence; data from and to callers |
//! | `unreadable` | what cannot be read taken for zeros, for checks |
//! | `kernels`, `processor`, `hash` | copy loops; what the processor can do; the data hash |
//! | `open`, `create`, `identity`, `pages` | files: opening, reserving space, which file a path names, huge pages |
//! | `join`, `node` | several files as one medium; on which NUMA node each lies |
//! | `platform` | whether the machine flushes its caches when power fails |
//! | `counters` | what a thread has cost |
//! | `simulation` | the medium that records every store and yields the images a crash could leave |

mod counters;
mod create;
mod error;
mod features;
mod hash;
mod held;
mod identity;
mod join;
mod kernels;
mod load;
mod medium;
mod node;
mod offset;
mod open;
mod pages;
mod platform;
mod processor;
mod recent;
pub mod simulation;
mod store;
mod transfer;
mod unreadable;

pub use counters::{Counters, counters_reset, counters_thread};
pub use create::{Access, CreateOptions, CreateProgress, Creation};
pub use error::{AccessError, OpenError};
pub use features::{Features as ProcessorFeatures, features as processor_features};
pub use hash::DataHash;
pub use identity::FileIdentity;
pub use join::{MEMBER_UNIT_BYTES, MapSource, Member};
pub use medium::{Medium, MediumKind, PersistMode};
pub use node::{MachineNode, machine_nodes};
pub use offset::MediumOffset;
pub use open::{OpenOptions, is_dax_device};
pub use pages::PageReport;
pub use simulation::Simulation;
