//! The order of an append's pieces, which the kernel may send all at once.
//!
//! The kernel keeps the file locked from the first piece to the last, and numbers them from what it takes for the end. No piece says where
//! its call began, and others move the end without the kernel's knowing. So what lies behind the end, and not where the last one ended by
//! the kernel's reckoning, waits for those before it. Touches no data.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use gannet_vfs::{Errno, Error, NodeId, Result};

use super::Dispatcher;
use super::callers::Caller;
use super::direct::Origin;
use crate::protocol::constants::InitFlags;

/// The first of the pieces that are known waits so long for one before it, from when something last changed. Only what others have cut, or
/// one that failed unseen, lets it wait for nothing.
pub(super) const PATIENCE: Duration = Duration::from_millis(250);
/// It waits no longer than so many times that, however much changes.
const PATIENCES_MAX: u32 = 20;
const PAUSE: Duration = Duration::from_micros(50);
/// For so long a piece that failed has those behind it fail: they are on their way, or wait for room.
const FAILURE_HOLDS: Duration = Duration::from_secs(3);

/// What is known of appends to one file.
#[derive(Default)]
pub(super) struct Appends {
    /// Where the pieces begin that wait or are being stored, and their serial numbers.
    in_hand: BTreeSet<(u64, u64)>,
    /// How often anything here changed.
    changes: u64,
    /// Where the last one ended by the kernel's reckoning.
    appended_to: u64,
    failed: Option<Failed>,
}

/// Pieces of a call of which one failed.
struct Failed {
    origin: Origin,
    /// Where the first begins that failed; the others begin behind that, up to the end.
    start: u64,
    end: u64,
    errno: Errno,
    since: Instant,
}

/// What a piece has to do.
enum Turn {
    Go,
    Fail(Errno),
    /// Wait, and whether none that is known comes before it; how often anything has changed.
    Wait {
        is_first: bool,
        changes: u64,
    },
}

impl Appends {
    fn begin(&mut self, offset_bytes: u64) -> (u64, u64) {
        self.changes += 1;
        let place = (offset_bytes, self.changes);
        self.in_hand.insert(place);
        place
    }

    fn end(&mut self, place: (u64, u64)) {
        self.changes += 1;
        self.in_hand.remove(&place);
    }

    fn turn(&mut self, place: (u64, u64), origin: Origin, length_bytes: u64) -> Turn {
        let offset = place.0;
        if let Some(failed) = &mut self.failed
            && failed.origin == origin
            && (failed.start + 1..=failed.end).contains(&offset)
            && failed.since.elapsed() < FAILURE_HOLDS
        {
            failed.end = failed.end.max(offset + length_bytes);
            failed.since = Instant::now();
            self.changes += 1;
            return Turn::Fail(failed.errno);
        }
        if self.appended_to == offset {
            return Turn::Go;
        }
        Turn::Wait { is_first: self.in_hand.first() == Some(&place), changes: self.changes }
    }

    fn stored(&mut self, end_bytes: u64) {
        self.changes += 1;
        self.appended_to = end_bytes;
        self.failed = None;
    }

    fn failed(&mut self, origin: Origin, start: u64, end: u64, errno: Errno) {
        self.changes += 1;
        let end = match &self.failed {
            // Tried again in vain: those behind it wait for it still.
            Some(failed) if failed.origin == origin && failed.start == start => failed.end.max(end),
            _ => end,
        };
        self.failed = Some(Failed { origin, start, end, errno, since: Instant::now() });
    }

    /// A size is set: what comes then is of other calls.
    pub(super) fn size_is_set(&mut self) {
        self.changes += 1;
        self.failed = None;
    }

    /// The same after another request of a thread.
    pub(super) fn is_over(&mut self, thread: u32) {
        if self.failed.as_ref().is_some_and(|failed| failed.origin.thread == thread) {
            self.size_is_set();
        }
    }
}

/// A piece that waits or is being stored. Dropping it lets others go on.
pub(super) struct Piece<'a> {
    dispatcher: &'a Dispatcher,
    id: u64,
    origin: Origin,
    offset_bytes: u64,
    length_bytes: u64,
    place: Option<(u64, u64)>,
}

impl Piece<'_> {
    fn with<T>(&self, note: impl FnOnce(&mut Appends) -> T) -> Option<T> {
        self.dispatcher.nodes.with_direct(self.id, |writes| note(&mut writes.appends))
    }

    /// So much of it is stored; the rest of its call fails if that is not all.
    pub(super) fn stored(&self, count_bytes: u64) {
        let (start, end) = (self.offset_bytes + count_bytes, self.offset_bytes + self.length_bytes);
        self.with(|appends| {
            appends.stored(start);
            if start < end {
                appends.failed(self.origin, start, end, Errno::NOSPC);
            }
        });
    }

    /// So the rest of its call fails.
    pub(super) fn failed(&self, errno: Errno) {
        let (start, end) = (self.offset_bytes, self.offset_bytes + self.length_bytes);
        self.with(|appends| appends.failed(self.origin, start, end, errno));
    }
}

impl Drop for Piece<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.with(|appends| appends.end(place));
        }
    }
}

impl Dispatcher {
    /// Before a piece of an append is stored: waits until those before it are. Fails if one of them did.
    pub(super) fn await_append(
        &self,
        caller: &Caller<'_>,
        node: NodeId,
        offset_bytes: u64,
        length_bytes: u64,
    ) -> Result<Piece<'_>> {
        let origin = caller.origin();
        let id = caller.header.node;
        let mut piece = Piece { dispatcher: self, id, origin, offset_bytes, length_bytes, place: None };
        if !self.agreed(InitFlags::ASYNC_DIO) {
            return Ok(piece);
        }
        piece.place = piece.with(|appends| appends.begin(offset_bytes));
        let Some(place) = piece.place else { return Ok(piece) };
        let mut looked = false;
        let patience = self.direct.patience();
        let begin = Instant::now();
        let (mut before, mut since) = (None, begin);
        while let Some(turn) = piece.with(|appends| appends.turn(place, origin, length_bytes)) {
            let (is_first, changes) = match turn {
                Turn::Go => break,
                Turn::Fail(errno) => return Err(Error::new(errno)),
                Turn::Wait { is_first, changes } => (is_first, changes),
            };
            let size_bytes = self.file_system.attributes(node)?.size_bytes;
            if offset_bytes <= size_bytes {
                break;
            }
            if !std::mem::replace(&mut looked, true) && self.waits_for_pieces(caller) == Some(true) {
                break;
            }
            if before != Some((size_bytes, changes)) {
                (before, since) = (Some((size_bytes, changes)), Instant::now());
            }
            // Never while one before it is known: that goes on, or fails.
            if is_first && (since.elapsed() >= patience || begin.elapsed() >= patience * PATIENCES_MAX) {
                break;
            }
            std::thread::sleep(PAUSE);
        }
        Ok(piece)
    }
}
