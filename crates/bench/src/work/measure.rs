//! Calls in a loop, and what they take: by the clock, of the processor's time, and one by one.

use super::protocol::{Limit, Measurement};
use hdrhistogram::Histogram;
use std::io;
use std::time::{Duration, Instant};

/// Three significant digits, up to a minute.
const LONGEST_NS: u64 = 60_000_000_000;

/// The calls of one worker.
pub struct Member<'a> {
    call: Box<dyn FnMut(u64) -> io::Result<()> + 'a>,
    renew: Box<dyn FnMut(u64) -> io::Result<()> + 'a>,
    series: u64,
    per_call: u64,
}

impl<'a> Member<'a> {
    /// Calls that can go on for ever. `call` gets a running number.
    pub fn new(call: impl FnMut(u64) -> io::Result<()> + 'a) -> Self {
        Self { call: Box::new(call), renew: Box::new(|_| Ok(())), series: u64::MAX, per_call: 1 }
    }

    /// After `series` calls, numbered from 0, `renew` is called with how many there were, and makes what they used up
    /// or left behind as it was; also once before the first, with 0, and after the last. It is not measured.
    pub fn series(mut self, series: u64, renew: impl FnMut(u64) -> io::Result<()> + 'a) -> Self {
        self.series = series.max(1);
        self.renew = Box::new(renew);
        self
    }

    /// A call is so many operations.
    pub fn operations_per_call(mut self, operations: u64) -> Self {
        self.per_call = operations.max(1);
        self
    }
}

/// The thread's time on a processor, its system calls included: what other programs take meanwhile does not count.
fn thread_cpu_ns() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

/// What one worker has measured.
struct Tally {
    operations: u64,
    wall_ns: f64,
    cpu_ns: f64,
    histogram: Histogram<u64>,
}

/// Measures until the limit is reached.
pub fn measure(member: &mut Member<'_>, limit: Limit) -> io::Result<Measurement> {
    let histogram = Histogram::new_with_max(LONGEST_NS, 3).map_err(io::Error::other)?;
    let mut tally = Tally { operations: 0, wall_ns: 0.0, cpu_ns: 0.0, histogram };
    (member.renew)(0)?;
    let mut at = 0;
    match limit {
        Limit::Calls { calls, milliseconds_max } => {
            let bound = Duration::from_millis(milliseconds_max);
            at = tally.whole(member, at, calls, bound)?;
            at = tally.singly(member, at, calls, bound, false)?;
        }
        Limit::Milliseconds(milliseconds) => {
            at = tally.singly(member, at, u64::MAX, Duration::from_millis(milliseconds), true)?;
        }
    }
    (member.renew)(at)?;
    let operations = tally.operations as f64;
    Ok(Measurement {
        operations: tally.operations,
        wall_ns: tally.wall_ns,
        cpu_ns: tally.cpu_ns,
        rate: if tally.wall_ns > 0.0 { operations / tally.wall_ns * 1e9 } else { 0.0 },
        histogram: tally.histogram.iter_recorded().map(|one| (one.value_iterated_to(), one.count_at_value())).collect(),
    })
}

impl Tally {
    /// Calls in pieces between two looks at the clock; returns where the series is.
    fn whole(&mut self, member: &mut Member<'_>, mut at: u64, calls: u64, bound: Duration) -> io::Result<u64> {
        const PIECE: u64 = 256;
        let begun = Instant::now();
        let mut left = calls;
        // Nobody knows yet how long one takes: the pieces grow.
        let mut piece = 1;
        while left > 0 && begun.elapsed() < bound {
            if at == member.series {
                (member.renew)(at)?;
                at = 0;
            }
            let count = piece.min(left).min(member.series - at);
            let (wall, cpu) = (Instant::now(), thread_cpu_ns());
            for index in at..at + count {
                (member.call)(index)?;
            }
            self.cpu_ns += thread_cpu_ns() - cpu;
            self.wall_ns += wall.elapsed().as_nanos() as f64;
            self.operations += count * member.per_call;
            (at, left) = (at + count, left - count);
            piece = (piece * 4).min(PIECE.max(left));
            if begun.elapsed() * 8 > bound {
                piece = piece.min(count);
            }
        }
        Ok(at)
    }

    /// Calls with a look at the clock behind each; returns where the series is. `sums` says whether these are what the rate
    /// and the processor's time are of.
    fn singly(
        &mut self,
        member: &mut Member<'_>,
        mut at: u64,
        calls: u64,
        bound: Duration,
        sums: bool,
    ) -> io::Result<u64> {
        let begun = Instant::now();
        let mut left = calls;
        let mut enough = false;
        while left > 0 && !enough {
            if at == member.series {
                (member.renew)(at)?;
                at = 0;
            }
            let cpu = thread_cpu_ns();
            let began = Instant::now();
            let mut last = began;
            let mut count = 0;
            for index in at..at + left.min(member.series - at) {
                (member.call)(index)?;
                let now = Instant::now();
                let each = (now - last).as_nanos() as u64 / member.per_call;
                self.histogram.saturating_record(each);
                last = now;
                count += 1;
                if last - begun >= bound {
                    enough = true;
                    break;
                }
            }
            if sums {
                self.cpu_ns += thread_cpu_ns() - cpu;
                self.wall_ns += (last - began).as_nanos() as f64;
                self.operations += count * member.per_call;
            }
            (at, left) = (at + count, left - count);
        }
        Ok(at)
    }
}

/// Makes calls of one series, at most `calls`, between two callbacks, and returns how many operations they were.
pub fn count(
    member: &mut Member<'_>,
    calls: u64,
    before: impl FnOnce() -> io::Result<()>,
    after: impl FnOnce(u64) -> io::Result<()>,
) -> io::Result<()> {
    (member.renew)(0)?;
    let calls = calls.min(member.series);
    before()?;
    for index in 0..calls {
        (member.call)(index)?;
    }
    after(calls * member.per_call)?;
    (member.renew)(calls)
}

/// Adds what another worker has measured beside.
pub fn merge(into: &mut Measurement, other: Measurement) {
    into.operations += other.operations;
    into.wall_ns += other.wall_ns;
    into.cpu_ns += other.cpu_ns;
    into.rate += other.rate;
    into.histogram.extend(other.histogram);
    into.histogram.sort_unstable();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn series_are_renewed_and_counted() {
        let (next, renewed) = (Cell::new(0), Cell::new(0));
        let call = |index| {
            assert_eq!(index, next.get(), "numbers run from 0 in each series");
            next.set(next.get() + 1);
            Ok(())
        };
        let renew = |done| {
            assert_eq!(done, next.get());
            next.set(0);
            renewed.set(renewed.get() + 1);
            Ok(())
        };
        let mut member = Member::new(call).series(7, renew).operations_per_call(3);
        let limit = Limit::Calls { calls: 100, milliseconds_max: 10_000 };
        let measured = measure(&mut member, limit).unwrap();
        assert_eq!(measured.operations, 300);
        assert_eq!(measured.histogram.iter().map(|one| one.1).sum::<u64>(), 100);
        // Before the first, after each full series of the 200 calls, after the last.
        assert_eq!(renewed.get(), 1 + 200 / 7 + 1);
    }

    #[test]
    fn time_bounds_the_calls() {
        let mut member = Member::new(|_| {
            std::thread::sleep(Duration::from_millis(2));
            Ok(())
        });
        let begun = Instant::now();
        let measured = measure(&mut member, Limit::Calls { calls: 1_000_000, milliseconds_max: 20 }).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(200), "{:?}", begun.elapsed());
        assert!(measured.operations > 0 && measured.wall_ns / measured.operations as f64 >= 2e6);
        assert!(measured.cpu_ns < measured.wall_ns);
        let measured = measure(&mut member, Limit::Milliseconds(20)).unwrap();
        assert!(measured.rate > 1.0 && measured.rate <= 500.0, "{}", measured.rate);
    }
}
