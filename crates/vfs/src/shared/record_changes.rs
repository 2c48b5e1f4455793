//! Changes of locks, each of which a kill can interrupt after any store.
//!
//! May touch: the records of one bucket, under its lock. A change of a range to a new type is:
//!
//! 1. where the range splits an older record, a copy of its right part is linked (it says what the older one says);
//! 2. a record of the new type with a higher sequence is linked: **from here on the change has happened**;
//! 3. older records of the owner are cut back to what the new one does not cover, and freed where nothing of them is left.
//!
//! Whoever takes over the bucket's lock from a dead thread repeats 3 ([`Tables::settle_records`]). Steps 1 and 2 need objects from the slab,
//! 3 does not, so it cannot fail for lack of room.
//!
//! One walk, as far as the range goes, finds who is in the way, what is to be done and where ([`Sight`]); a second one does 3, from the first
//! record that it concerns, if there is any.

use gannet_shm::{Ordering, Result, Share, SlabRef, Thread};

use super::file_locks::{LockRange, LockRequest};
use super::records::{Blocking, Groups, Record};
use super::tables::{Bucket, Chain, Tables};
use crate::Time;

/// What a walk finds that a change needs to know. Places are what stands before them in the chain.
struct Sight {
    /// Of the locks in the way the one that begins first.
    blocker: Option<Blocking>,
    /// The range, with neighbours of the same type that become part of the new record.
    whole: LockRange,
    /// The older record that the range splits.
    split: Option<Record>,
    /// The owner has just this lock already.
    is_there: bool,
    /// Where a record belongs that begins where the range does.
    at_start: u64,
    /// And one that begins where it ends.
    at_end: u64,
    /// Where the first of those neighbours stands that begin before the range.
    left: Option<u64>,
    /// Where the first record stands that is to be cut, or is void.
    first: Option<u64>,
}

impl Tables {
    /// Gives an owner a lock on a range, or takes it away, as `request` says; or tells which lock is in the way. Under the bucket's
    /// lock. Adds the groups of the records that do not say any more what they said. New records are of
    /// `share`. `Full` leaves everything as it was.
    pub(super) fn change_lock(
        &self,
        thread: &Thread<'_>,
        bucket: Bucket,
        request: &LockRequest,
        share: &Share,
        changed: &mut Groups,
    ) -> Result<Option<Blocking>> {
        let LockRequest { node, owner, exclusive: wanted, range, process } = *request;
        if range.start >= range.end {
            // Of no bytes: its record would be void from the start, and nobody's to free.
            return Ok(None);
        }
        let sight = self.look(thread, bucket, request)?;
        if sight.blocker.is_some() || sight.is_there {
            return Ok(sight.blocker);
        }
        let right = match sight.split {
            Some(record) => Some((self.records.allocate_from(thread, &self.recent_records, share)?, record)),
            None => None,
        };
        let new = match wanted {
            None => None,
            Some(exclusive) => match self.records.allocate_from(thread, &self.recent_records, share) {
                Ok(held) => Some((held, exclusive)),
                Err(error) => {
                    if let Some((held, _)) = right {
                        self.records.free_to(thread, &self.recent_records, held)?;
                    }
                    return Err(error);
                }
            },
        };
        if let Some((held, record)) = right {
            let range = LockRange { start: range.end, end: record.range.end };
            self.store_record(thread, held.at(), &Record { range, ..record })?;
            self.link_behind(thread, bucket, Chain::Records, sight.at_end, held.reference(), held.at())?;
            self.records.publish(thread, held)?;
        }
        let mut newest = None;
        if let Some((held, exclusive)) = new {
            let sequence = bucket.sequence(thread)?;
            let number = sequence.load(Ordering::Relaxed) + 1;
            sequence.store(number, Ordering::Relaxed);
            let since = Time::now().0;
            let record = Record { node, owner, exclusive, range: sight.whole, sequence: number, process, since };
            self.store_record(thread, held.at(), &record)?;
            let place = match sight.left {
                Some(left) => self.place_of(thread, bucket, left, sight.whole.start)?,
                None => sight.at_start,
            };
            self.link_behind(thread, bucket, Chain::Records, place, held.reference(), held.at())?;
            newest = Some(self.records.publish(thread, held)?);
        }
        if let Some(first) = sight.first {
            self.cut_back(thread, bucket, request, (first, sight.whole), newest, changed)?;
        }
        Ok(None)
    }

    fn look(&self, thread: &Thread<'_>, bucket: Bucket, request: &LockRequest) -> Result<Sight> {
        let LockRequest { node, owner, exclusive: wanted, range, .. } = *request;
        let mut sight = Sight {
            blocker: None,
            whole: range,
            split: None,
            is_there: false,
            at_start: 0,
            at_end: 0,
            left: None,
            first: None,
        };
        self.records_up_to(thread, bucket, (0, range.end), |reference, object, one| {
            let place = sight.at_end;
            sight.at_end = reference.word();
            if self.position(thread, object)? <= range.start {
                sight.at_start = reference.word();
            }
            let Some(one) = one else {
                sight.first.get_or_insert(place);
                return Ok(true);
            };
            if !one.touches(range) {
                return Ok(true);
            }
            let Some(record) = self.load_record(thread, object)?.filter(|record| record.node == node) else {
                return Ok(true);
            };
            if record.owner != owner {
                let is_earlier = sight.blocker.is_none_or(|blocker| one.start < blocker.by.range.start);
                if wanted.is_some_and(|exclusive| record.conflicts(&owner, exclusive, range))
                    && is_earlier
                    && self.owner_exists(thread, &record.owner)?
                {
                    sight.blocker = Some(Blocking { by: record.into(), record: reference });
                }
            } else if wanted == Some(record.exclusive) {
                sight.is_there |= one.start <= range.start && one.end >= range.end;
                sight.whole.start = sight.whole.start.min(one.start);
                sight.whole.end = sight.whole.end.max(one.end);
                sight.first.get_or_insert(place);
                if one.start < range.start {
                    sight.left.get_or_insert(place);
                }
            } else if one.overlaps(range) {
                sight.first.get_or_insert(place);
                if one.start < range.start && one.end > range.end {
                    sight.split = Some(record);
                }
            }
            Ok(true)
        })?;
        Ok(sight)
    }

    /// Where a record belongs that begins at `start`: there, or behind.
    fn place_of(&self, thread: &Thread<'_>, bucket: Bucket, mut place: u64, start: u64) -> Result<u64> {
        self.records_up_to(thread, bucket, (place, start), |reference, _, _| {
            place = reference.word();
            Ok(true)
        })?;
        Ok(place)
    }

    /// Takes from the owner's older records what lies in a range, from the place of the first of them on. Frees void records there.
    fn cut_back(
        &self,
        thread: &Thread<'_>,
        bucket: Bucket,
        request: &LockRequest,
        (first, whole): (u64, LockRange),
        newest: Option<SlabRef>,
        changed: &mut Groups,
    ) -> Result<()> {
        self.records_up_to(thread, bucket, (first, whole.end), |reference, object, one| {
            let is_void = match one {
                None => true,
                Some(one) if !one.overlaps(whole) || Some(reference) == newest => false,
                Some(one) => match self.load_record(thread, object)? {
                    Some(record) if (record.node, record.owner) == (request.node, request.owner) => {
                        *changed |= Self::group(reference).get();
                        self.cut(thread, object, one, whole)?
                    }
                    _ => false,
                },
            };
            if is_void {
                self.free_void(thread, bucket, reference)?;
            }
            Ok(true)
        })
    }
}
