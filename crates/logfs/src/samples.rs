//! How often each operation was called, and how long it took: every call is counted by its thread, in words of its own; of
//! calls one in 64 is timed, the first 64 of a thread all, each standing for as many as it was chosen from. What it costs is a load and a store, and two
//! looks at the clock in 64 calls; `scripts/sampling-cost` measures it.
//!
//! Times are of the engine alone: what a front end adds is not in them. They are added to histograms in the arena, a few for all
//! threads, after the operation's last fence.

use crate::ops::Op;
use crate::places::{COUNTER_WORDS, LIMBO_AT, LIMBO_WORDS, Places};
use gannet_shm::{ArenaOffset, Ordering};
use gannet_vfs::Result;

/// Where in a thread's words the calls begin.
const CALLS_AT: u64 = LIMBO_AT + LIMBO_WORDS;
/// Of so many calls one is timed.
const ONE_IN: u64 = 64;
/// Sets of histograms, one for each operation, so that threads seldom meet on a line. What a thread adds to lies together.
const STRIPES: u64 = 8;
/// Buckets: four for each power of two, of nanoseconds.
const BUCKETS: usize = 128;
/// Bytes of the region.
pub(crate) const BYTES: u64 = Operation::ALL.len() as u64 * STRIPES * BUCKETS as u64 * 8;
const _: () = assert!(CALLS_AT + Operation::ALL.len() as u64 <= COUNTER_WORDS);

/// A kind of calls, as users of the file system see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A name is looked up in a directory.
    Lookup,
    /// Attributes are read.
    Examine,
    /// Data is read.
    Read,
    /// Data is written.
    Write,
    /// Data is synced.
    Sync,
    /// A file, directory, or link is made.
    Create,
    /// A name is removed.
    Remove,
    /// A name is changed.
    Rename,
    /// Attributes are changed, extended ones included.
    Change,
    /// Space is allocated, freed or shared.
    Allocate,
    /// A directory is listed.
    List,
    /// A file is mapped or unmapped.
    Map,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Lookup,
        Self::Examine,
        Self::Read,
        Self::Write,
        Self::Sync,
        Self::Create,
        Self::Remove,
        Self::Rename,
        Self::Change,
        Self::Allocate,
        Self::List,
        Self::Map,
    ];

    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lookup => "lookup",
            Self::Examine => "stat",
            Self::Read => "read",
            Self::Write => "write",
            Self::Sync => "sync",
            Self::Create => "create",
            Self::Remove => "remove",
            Self::Rename => "rename",
            Self::Change => "change",
            Self::Allocate => "allocate",
            Self::List => "list",
            Self::Map => "map",
        }
    }
}

/// The histograms that the thread of a slot adds to.
pub(crate) fn of_slot(places: &Places, slot: u32) -> ArenaOffset {
    let stripe = u64::from(slot) % STRIPES;
    places.samples.start.add(stripe * Operation::ALL.len() as u64 * BUCKETS as u64 * 8)
}

fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

/// The bucket of a time.
fn bucket(nanoseconds: u64) -> usize {
    let power = nanoseconds.max(4).ilog2();
    let quarter = (nanoseconds.max(4) >> (power - 2)) & 3;
    ((power as usize - 2) * 4 + quarter as usize).min(BUCKETS - 1)
}

/// Where a bucket begins, in nanoseconds.
fn bucket_ns(bucket: usize) -> u64 {
    let (power, quarter) = (bucket / 4 + 2, bucket as u64 % 4);
    (4 + quarter) << (power - 2)
}

impl Op<'_> {
    /// Runs a call of an operation: counts it, and times some.
    // What a call that is not timed pays is a load, a store and two tests: nothing of the timing lives while it runs.
    #[inline(always)]
    pub(crate) fn counted<T>(&self, operation: Operation, run: impl FnOnce(&Self) -> T) -> T {
        if !cfg!(feature = "unsampled")
            && let Some(word) = self.counters.get(CALLS_AT as usize + operation as usize)
        {
            let calls = word.load(Ordering::Relaxed);
            word.store(calls.wrapping_add(1), Ordering::Relaxed);
            if calls.is_multiple_of(ONE_IN) || calls < ONE_IN {
                return self.timed(operation, if calls < ONE_IN { 1 } else { ONE_IN }, run);
            }
        }
        run(self)
    }

    /// Runs a call that stands for `weight` calls, and notes how long it took.
    #[cold]
    #[inline(never)]
    fn timed<T>(&self, operation: Operation, weight: u64, run: impl FnOnce(&Self) -> T) -> T {
        let begun_ns = now_ns();
        let outcome = run(self);
        let took_ns = now_ns().saturating_sub(begun_ns);
        let histogram = of_slot(&self.core.places, self.thread.slot()).add(operation as u64 * BUCKETS as u64 * 8);
        let at = histogram.add(bucket(took_ns) as u64 * 8);
        if let Ok([word]) = self.thread.arena().words(at, 1) {
            word.fetch_add(weight, Ordering::Relaxed);
        }
        outcome
    }

    /// What all threads have done.
    pub(crate) fn operations(&self) -> Result<Vec<OperationCounters>> {
        let places = &self.core.places;
        let arena = self.thread.arena();
        let threads = self.counters_of_all()?;
        let samples = arena.words(places.samples.start, BYTES / 8).map_err(crate::ops::shared_error)?;
        let one = |operation: Operation| {
            let words = threads.iter().skip(CALLS_AT as usize + operation as usize).step_by(COUNTER_WORDS as usize);
            let mut counters = OperationCounters::none(operation);
            counters.calls = words.fold(0_u64, |sum, word| sum.wrapping_add(word.load(Ordering::Relaxed)));
            for stripe in samples.chunks_exact(Operation::ALL.len() * BUCKETS) {
                let words = stripe.iter().skip(operation as usize * BUCKETS);
                for (sum, word) in counters.buckets.iter_mut().zip(words) {
                    *sum = sum.wrapping_add(word.load(Ordering::Relaxed));
                }
            }
            counters
        };
        Ok(Operation::ALL.into_iter().map(one).collect())
    }
}

/// What was done of one operation, and how long it took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationCounters {
    /// The operation.
    pub operation: Operation,
    /// Calls.
    pub calls: u64,
    buckets: [u64; BUCKETS],
}

impl OperationCounters {
    fn none(operation: Operation) -> Self {
        Self { operation, calls: 0, buckets: [0; BUCKETS] }
    }

    /// What was done since an earlier look at the same operation.
    pub fn since(&self, earlier: &Self) -> Self {
        let mut grown = Self { calls: self.calls.wrapping_sub(earlier.calls), ..self.clone() };
        for (bucket, before) in grown.buckets.iter_mut().zip(&earlier.buckets) {
            *bucket = bucket.wrapping_sub(*before);
        }
        grown
    }

    /// Calls that the samples stand for.
    fn sampled(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The time that a share of the calls stays below, to an eighth, in nanoseconds; `None` if none was timed, or too few to tell.
    pub fn quantile_ns(&self, share: f64) -> Option<u64> {
        let sampled = self.sampled();
        if sampled == 0 || sampled as f64 * (1.0 - share) < 1.0 && share > 0.5 {
            return None;
        }
        let rank = (sampled as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0_u64;
        let found = self.buckets.iter().position(|count| {
            seen = seen.saturating_add(*count);
            seen >= rank
        })?;
        // The middle of the bucket.
        Some(u64::midpoint(bucket_ns(found), bucket_ns(found + 1)))
    }

    /// How many calls took less than twice as long as `1 << power` nanoseconds, but no less than that.
    pub fn octave(&self, power: u32) -> u64 {
        let first = (power as usize).saturating_sub(2) * 4;
        self.buckets.iter().skip(first).take(4).fold(0, |sum, count| sum.saturating_add(*count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_quarters_of_powers_of_two() {
        assert_eq!((bucket(0), bucket(4), bucket(5), bucket(7), bucket(8)), (0, 0, 1, 3, 4));
        for nanoseconds in [4, 9, 100, 1023, 1024, 1_000_000, 12_345_678_901] {
            let found = bucket(nanoseconds);
            assert!(bucket_ns(found) <= nanoseconds && nanoseconds < bucket_ns(found + 1), "{nanoseconds}: {found}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_and_differences() {
        let mut counters = OperationCounters::none(Operation::Read);
        assert_eq!(counters.quantile_ns(0.5), None);
        let before = counters.clone();
        counters.calls = 200;
        counters.buckets[bucket(100)] = 198;
        counters.buckets[bucket(10_000)] = 2;
        let grown = counters.since(&before);
        assert_eq!(grown, counters);
        assert!((96..128).contains(&grown.quantile_ns(0.5).unwrap()));
        assert!((96..128).contains(&grown.quantile_ns(0.99).unwrap()));
        assert_eq!(grown.quantile_ns(0.9999), None, "200 samples cannot tell");
        assert_eq!((grown.octave(6), grown.octave(13), grown.octave(7)), (198, 2, 0));
        assert_eq!(grown.since(&counters).calls, 0);
    }
}
