//! Simulated persistent memory: records every store, flush and fence, and yields the images a crash could leave.
//!
//! The model. Each store of a word (eight aligned bytes; shorter stores are merged into their word) is an event, in the
//! order in which threads executed them. A cache line may be written back at any moment by itself, so after a crash it holds
//! its contents as of some moment since the last one that is certain: **per line, any prefix of its stores, independently of
//! all other lines**. Certain is what a line held when a thread flushed it (or stored to it past the cache), once *that
//! thread* has executed a fence. Words never tear.
//!
//! The simulated page cache is the same with pages in place of lines and a sync in place of flush and fence.
//!
//! | file | concern |
//! | --- | --- |
//! | `record` | applying and recording stores; where they come from; leaving some out |
//! | `build` | making simulated media |
//! | `abandon` | stopping a thread after its n-th store |
//! | `pending` | what is certain and what is not after some events |
//! | `crash` | going through the images at crash points |
//! | `poison` | memory that is gone |
//! | `choices` | which of the possible images to look at |

mod abandon;
mod build;
mod choices;
mod crash;
mod pending;
mod poison;
mod record;

pub use abandon::{Abandoned, Stopped, is_abandoned};
pub use choices::CrashPolicy;
pub use crash::{Crash, CrashCount};
pub use pending::{MixedLine, PendingLine};
pub(crate) use record::Recorder;
pub use record::{Simulation, Site, SiteKind, Skip};
