//! Automatic caching: the kernel may remember while nobody else has the volume open.
//!
//! Whether it may is the claim of `vfs::shared` ([`gannet_vfs::shared::Shared::claim_caching`]), looked at for each reply that
//! says for how long something holds. All such times are short (a second at most), so a claim that ends is forgotten by
//! the kernel without being told, also when this server is stopped. What has no time, the pages of files that are open, is
//! dropped by notifications, and until they are closed each read of them asks first (GETATTR): the answer shows another time of
//! modification each time, and the kernel drops its pages for that.
//!
//! Replies that the kernel believes whatever happened since (of SETATTR and LINK) give attributes no time.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use gannet_vfs::shared::{CachingState, CachingTerms};
use gannet_vfs::{Attributes, Time};

use super::nodes::OpenMode;
use super::waiting::is_late;
use super::{CachePolicy, Dispatcher};
use crate::protocol::reply::Validity;

/// For how long the kernel believes what it was told on an automatic mount: at first, and when nobody has come for long. Who comes
/// then waits as long; so the longer nobody came, the longer it may be, and programs that come again and again wait little.
const LEASE_MS_MIN: u64 = 250;
const LEASE_MS_MAX: u64 = 1000;
/// The share of the time since caching began that whoever ends it may have to wait.
const LEASE_SHARE: u64 = 8;
/// How much longer it may take until the kernel stops: its clock has ticks, and begins with what it was told a little later.
const LEASE_SLACK_MS: u64 = 50;
/// For how long nobody else must have had the volume open before the kernel may remember again: programs come in bursts.
const ALONE_FOR: Duration = Duration::from_secs(1);
const O_DIRECT: u32 = 0o40000;
/// How often the watch looks around when nobody wakes it.
const WATCH: Duration = Duration::from_millis(250);
/// After so many files whose pages are dropped, the watch looks whether it is needed elsewhere.
const CLEANSE_BATCH: usize = 32;

/// What is told to the kernel unasked.
pub(crate) trait Kernel: Send + Sync {
    /// Has the kernel forget the attributes of an inode. Waits for nothing.
    fn forget_attributes(&self, id: u64);
    /// Has the kernel write back and drop all pages of a file. May wait for requests that other threads serve.
    fn drop_pages(&self, id: u64) {
        self.drop_range(id, 0..u64::MAX);
    }
    /// The same of a part of it.
    fn drop_range(&self, id: u64, bytes: Range<u64>);
    /// The same, but waits for nothing. False where it is left out, since there is too much of it.
    fn drop_later(&self, id: u64, bytes: Range<u64>) -> bool;
    /// Waits until all requests that are being served now have been answered; less if `give_up` says so.
    fn wait_for_answers(&self, give_up: &dyn Fn() -> bool);
}

/// The state of automatic caching on one mount.
#[derive(Default)]
pub(super) struct Caching {
    /// Counts the claims; tells which of them the kernel's pages are of.
    epoch: AtomicU32,
    /// When the claim was made, and when the last time that was given runs out, in milliseconds of the monotonic clock.
    began_ms: AtomicU64,
    leases_end_ms: AtomicU64,
    /// Makes times of modification that differ.
    strange_times: AtomicU32,
    /// Threads that serve; with the last the watch ends.
    serving: AtomicUsize,
    ended: AtomicBool,
    watch: Mutex<Option<Thread>>,
}

/// The lease when nobody has come for this long.
fn lease_after(alone_ms: u64, lease_ms_max: u64) -> u64 {
    (alone_ms / LEASE_SHARE).clamp(LEASE_MS_MIN, lease_ms_max)
}

/// Milliseconds of the monotonic clock, as of its last tick.
pub(super) fn now_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

impl Dispatcher {
    /// Whether the kernel may remember while nobody else has the volume open.
    pub(crate) fn automatic(&self) -> bool {
        self.policy.cache == CachePolicy::Automatic
    }

    /// The epoch, if the kernel may remember now what it is told.
    fn epoch(&self) -> Option<u32> {
        let may = self.automatic() && !is_late() && self.file_system.shared().caching_holds();
        may.then(|| self.caching.epoch.load(Ordering::SeqCst))
    }

    /// The longest lease. Whoever ends caching has no patience for more.
    fn lease_ms_max(&self) -> u64 {
        let patience_ms = self.policy.cache_deadline.as_millis() as u64;
        patience_ms.saturating_sub(LEASE_SLACK_MS).clamp(LEASE_MS_MIN, LEASE_MS_MAX)
    }

    /// Gives something a time; only while the claim holds.
    fn lease(&self) -> Validity {
        let (now_ms, caching) = (now_ms(), &self.caching);
        let alone_ms = now_ms.saturating_sub(caching.began_ms.load(Ordering::Relaxed));
        let lease_ms = lease_after(alone_ms, self.lease_ms_max());
        if caching.leases_end_ms.load(Ordering::Relaxed) < now_ms + lease_ms {
            caching.leases_end_ms.fetch_max(now_ms + lease_ms, Ordering::SeqCst);
        }
        Validity { seconds: lease_ms / 1000, nanoseconds: (lease_ms % 1000) as u32 * 1_000_000 }
    }

    /// For how long a name holds.
    pub(super) fn name_validity(&self) -> Validity {
        match self.policy.cache {
            CachePolicy::Exclusive { .. } => super::EXCLUSIVE,
            CachePolicy::Coherent => Validity::NONE,
            CachePolicy::Automatic if self.epoch().is_some() => self.lease(),
            CachePolicy::Automatic => Validity::NONE,
        }
    }

    /// For how long attributes hold, of the inode that the kernel knows as `id`.
    pub(super) fn attribute_validity(&self, id: u64) -> Validity {
        match self.policy.cache {
            CachePolicy::Automatic => match self.epoch() {
                Some(epoch) if !self.nodes.reads_old_pages(id, Some(epoch)) => self.lease(),
                _ => Validity::NONE,
            },
            _ => self.name_validity(),
        }
    }

    /// The same in a reply that the kernel believes even if it is older than what it knows.
    pub(super) fn unguarded_validity(&self) -> Validity {
        if self.automatic() { Validity::NONE } else { self.name_validity() }
    }

    /// An open file is about to be read through the kernel's pages, or written: if those pages may be wrong, it is shown a
    /// time of modification that it has not seen, and drops them.
    pub(super) fn refresh_pages(&self, id: u64, attributes: &mut Attributes) {
        if self.exclusive() || !self.nodes.reads_old_pages(id, self.epoch()) {
            return;
        }
        let truth = attributes.modified;
        let mut shown = truth;
        while shown == truth {
            shown = strange_time(truth, self.caching.strange_times.fetch_add(1, Ordering::Relaxed));
        }
        attributes.modified = shown;
    }

    /// Has the kernel ask for an inode's attributes again, after a request by which it does not expect them to change.
    pub(super) fn attributes_have_changed(&self, id: u64) {
        if self.policy.cache != CachePolicy::Coherent
            && let Some(kernel) = self.kernel.get()
        {
            kernel.forget_attributes(id);
        }
    }

    /// Notes an open file of an automatic mount; says how the kernel shall open it.
    pub(super) fn note_open(&self, id: u64, handle: u64, flags: u32) -> OpenMode {
        let mode = self.nodes.opened(id, self.epoch(), flags & O_DIRECT != 0);
        self.users.set_mode(handle, mode);
        mode
    }

    /// Notes an open file that goes through the kernel's pages in any case; says whether those are right.
    pub(super) fn note_cached_open(&self, id: u64, handle: u64) -> bool {
        self.users.set_mode(handle, OpenMode::Cached);
        self.nodes.opened_cached(id, self.epoch())
    }

    /// Lets the kernel remember if nobody else has the volume open.
    pub(crate) fn begin_caching(&self) -> bool {
        let next = self.caching.epoch.load(Ordering::SeqCst) % (u32::MAX - 1) + 1;
        self.caching.epoch.store(next, Ordering::SeqCst);
        self.caching.began_ms.store(now_ms(), Ordering::SeqCst);
        let lease = Duration::from_millis(self.lease_ms_max() + LEASE_SLACK_MS);
        let terms = CachingTerms::Revocable { deadline: self.policy.cache_deadline, lease };
        self.file_system.shared().claim_caching(terms).unwrap_or(false)
    }

    /// Watches who has the volume open, and lets the kernel remember or forget, until the mount ends.
    pub(crate) fn watch_caching(&self, kernel: &dyn Kernel) {
        *self.watch() = Some(std::thread::current());
        let shared = self.file_system.shared();
        let mut alone_since = None;
        while !self.caching.ended.load(Ordering::SeqCst) {
            match shared.caching_state() {
                CachingState::Holds => {
                    self.cleanse(kernel);
                    shared.wait_while_caching(WATCH);
                }
                CachingState::Recalled => {
                    self.answer_recall(kernel);
                    alone_since = None;
                }
                CachingState::None => {
                    if !shared.is_alone().unwrap_or(false) {
                        alone_since = None;
                    } else if alone_since.get_or_insert_with(Instant::now).elapsed() >= ALONE_FOR
                        && self.begin_caching()
                    {
                        continue;
                    }
                    std::thread::park_timeout(WATCH);
                }
            }
        }
        shared.give_up_caching();
    }

    /// Somebody wants to join. No new reply says that something holds, since that looks at the claim; those on their way must
    /// arrive and expire, pages must go.
    fn answer_recall(&self, kernel: &dyn Kernel) {
        let ended = || self.caching.ended.load(Ordering::SeqCst);
        kernel.wait_for_answers(&ended);
        for id in self.nodes.with_cached_opens() {
            if ended() {
                break;
            }
            kernel.drop_pages(id);
        }
        let end_ms = self.caching.leases_end_ms.load(Ordering::SeqCst) + LEASE_SLACK_MS;
        let left_ms = end_ms.saturating_sub(now_ms()).min(self.lease_ms_max() + LEASE_SLACK_MS);
        std::thread::sleep(Duration::from_millis(left_ms));
        self.file_system.shared().give_up_caching();
    }

    /// Files whose pages may be wrong can be read through them again when they were dropped.
    fn cleanse(&self, kernel: &dyn Kernel) {
        let Some(epoch) = self.epoch() else { return };
        for batch in self.nodes.to_cleanse(epoch).chunks(CLEANSE_BATCH) {
            if self.epoch() != Some(epoch) || self.caching.ended.load(Ordering::SeqCst) {
                return;
            }
            batch.iter().for_each(|&id| self.nodes.cleanse(id, epoch, || kernel.drop_pages(id)));
        }
    }

    fn watch(&self) -> std::sync::MutexGuard<'_, Option<Thread>> {
        self.caching.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread begins to serve.
    pub(crate) fn enter(&self) {
        self.caching.serving.fetch_add(1, Ordering::SeqCst);
    }

    /// A thread serves no more. With the last one everything ends that works for them.
    pub(crate) fn leave(&self) {
        if self.caching.serving.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.caching.ended.store(true, Ordering::SeqCst);
            self.file_system.shared().give_up_caching();
            if let Some(thread) = &*self.watch() {
                thread.unpark();
            }
        }
    }
}

/// A time that is shown instead of the true one: differs from it in its last four digits, and from those of the counts before.
fn strange_time(truth: Time, count: u32) -> Time {
    const SPAN_NS: i64 = 10_000;
    // The first and the last time that there is are a program's to set; none of those digits leads beyond.
    let near = truth.0.clamp(i64::MIN + SPAN_NS, i64::MAX - SPAN_NS);
    Time(near - near.rem_euclid(SPAN_NS) + i64::from(count) % SPAN_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_waits_for_a_share_of_the_time_that_nobody_came() {
        assert_eq!(lease_after(0, LEASE_MS_MAX), 250);
        assert_eq!(lease_after(2400, LEASE_MS_MAX), 300);
        assert_eq!(lease_after(8000, LEASE_MS_MAX), 1000);
        assert_eq!(lease_after(u64::MAX, LEASE_MS_MAX), 1000);
        assert_eq!(lease_after(u64::MAX, LEASE_MS_MIN), 250);
    }

    #[test]
    fn strange_times_are_near_and_there_are_many() {
        for truth in [i64::MIN, i64::MIN + 1, -1, 0, 1_700_000_000_123_456_789, i64::MAX] {
            let shown = (0..10_000).map(|count| strange_time(Time(truth), count).0);
            let shown: std::collections::HashSet<i64> = shown.collect();
            assert_eq!(shown.len(), 10_000);
            assert!(shown.iter().all(|shown| shown.abs_diff(truth) < 20_000), "{truth}");
        }
    }
}
