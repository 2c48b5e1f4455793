//! State shared by the processes that have a volume open: an arena of words, who takes part, who
//! lives, robust locks, and what each thread has in hand.
//!
//! Knows nothing of files or media. `docs/parts/shm.md` has the protocol and its reasons.
//!
//! | room | what is in it |
//! | --- | --- |
//! | `facade` | the atomics: real, counted by tests, or a model checker's |
//! | `layout`, `arena` | where things stand; the mapping and its checked words |
//! | `file`, `participant`, `session`, `attach`, `join`, `fork` | the arena's file and gate; who has it open; attach, detach, fork |
//! | `descriptor`, `opened` | descriptors of arenas' files, which the program may close, and no forked child may keep |
//! | `meeting` | a user's directory of meeting places |
//! | `leftovers` | what killed processes left behind: arenas without a volume, meeting places |
//! | `caching` | one who is alone may let others remember; who joins recalls it |
//! | `volume_lock` | a help for guards: is the volume open in another arena? |
//! | `slot`, `thread`, `life` | a thread's record; finding it; the kernel's mark of death |
//! | `lock_word`, `lock`, `hand`, `reap` | taking locks, having things in hand, settling the dead |
//! | `report` | who waits for whom |
//! | `slab_word`, `slab` | type-stable objects |
//! | `testing` | abandoning a thread after any store, letting it pause |

pub mod facade;
mod lock_word;
mod slab_word;

mod arena;
mod attach;
mod caching;
mod descriptor;
mod detach;
mod error;
mod file;
mod fork;
mod hand;
mod join;
mod layout;
mod leftovers;
mod life;
mod lock;
mod meeting;
mod opened;
mod participant;
mod private;
mod reap;
mod report;
mod session;
mod slab;
mod slot;
mod sys;
#[cfg(any(test, feature = "abandon"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod thread;
mod user;
mod volume_lock;

pub use crate::arena::Arena;
pub use crate::caching::{CachingState, CachingTerms};
pub use crate::descriptor::share_descriptors;
pub use crate::error::{Error, Result};
pub use crate::facade::{Ordering, Word, Word32, fence};
pub use crate::file::{ARENA_DIRECTORY, VolumeIdentity};
pub use crate::fork::{ActingChild, ExecTicket, ForkTicket};
pub use crate::hand::{Hand, HandContent};
pub use crate::layout::{ArenaLayout, ArenaOffset, PARTICIPANTS_DEFAULT, Region, THREADS_DEFAULT, THREADS_MAX};
pub use crate::leftovers::{remove_leftovers, remove_leftovers_of};
pub use crate::lock::{Guard, GuardSet, SLEEP_MAX, wait_for_one_word};
pub use crate::meeting::{existing_meeting_directory, meeting_directory};
pub use crate::opened::close_inherited;
pub use crate::participant::{ParticipantId, ParticipantInfo};
pub use crate::reap::{DeadThread, GoneParticipant, ReapStage, Reaped, Reaper};
pub use crate::report::{LockCounters, ThreadInfo, Waiting};
pub use crate::session::{ArenaIdentity, Detached, Session, VolumeGuard};
pub use crate::slab::{
    AfterDeath, Held, HeldByDead, Recent, SLAB_HEAD_BYTES, SLAB_OBJECTS_MAX, Share, Slab, SlabReaper, SlabRef,
};
pub use crate::slot::{HANDS_MAX, LOCKS_MAX};
pub use crate::thread::Thread;
pub use crate::user::{Seen, Translation, group_of_process, stands_for_several, translate_users, user_of_process};
pub use crate::volume_lock::{
    claim_volume_first, claim_volume_shared, unclaim_volume, volume_is_claimed, volume_is_open,
};
