//! Something that is timed: in rounds, all calls together and then some one by one, with what the medium was made to do.

use crate::thread_nanoseconds;
use gannet_media::Counters;
use std::time::Instant;

/// Calls of most subjects in a round.
pub(crate) const CALLS: u32 = 4000;
/// A call that takes longer is looked at: was the thread off its processor meanwhile?
const SLOW_NS: u64 = 1500;
/// Single calls that are timed, in all rounds together: enough for one in ten thousand.
const TIMED_CALLS: u32 = 60_000;
/// What a subject is asked to do.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Step {
    Begin,
    Call,
    End,
}

/// Something that is timed.
pub(crate) struct Subject<'a> {
    pub(crate) name: &'static str,
    step: Box<dyn FnMut(Step) + 'a>,
    calls: u32,
    nanoseconds: Vec<f64>,
    singles: Vec<u64>,
    counters: Counters,
    calls_counted: u64,
}

pub(crate) fn subject<'a>(name: &'static str, calls: u32, step: impl FnMut(Step) + 'a) -> Subject<'a> {
    let (nanoseconds, singles) = (Vec::new(), Vec::new());
    Subject { name, step: Box::new(step), calls, nanoseconds, singles, counters: Counters::default(), calls_counted: 0 }
}

/// A subject that has nothing to prepare.
pub(crate) fn simple<'a>(name: &'static str, calls: u32, mut call: impl FnMut() + 'a) -> Subject<'a> {
    subject(name, calls, move |step| {
        if step == Step::Call {
            call();
        }
    })
}

impl Subject<'_> {
    /// One round: all calls together, then counted, then some one by one.
    pub(crate) fn round(&mut self, rounds: usize) {
        (self.step)(Step::Begin);
        let before = gannet_media::counters_thread();
        let began = thread_nanoseconds();
        for _ in 0..self.calls {
            (self.step)(Step::Call);
        }
        self.nanoseconds.push((thread_nanoseconds() - began) as f64 / f64::from(self.calls));
        let after = gannet_media::counters_thread();
        self.counters.fences += after.fences - before.fences;
        self.counters.lines_flushed += after.lines_flushed - before.lines_flushed;
        self.counters.lines_streamed += after.lines_streamed - before.lines_streamed;
        self.counters.bytes_stored += after.bytes_stored - before.bytes_stored;
        self.calls_counted += u64::from(self.calls);
        let singles = TIMED_CALLS * self.calls / CALLS / rounds as u32;
        let (mut wall, mut processor) = (Instant::now(), thread_nanoseconds());
        for _ in 0..singles {
            let began = Instant::now();
            (self.step)(Step::Call);
            let mut took = began.elapsed().as_nanos() as u64;
            if took > SLOW_NS {
                // What the thread spent off its processor since the last look is not the call's.
                let (wall_now, processor_now) = (Instant::now(), thread_nanoseconds());
                let off = ((wall_now - wall).as_nanos() as u64).saturating_sub(processor_now - processor);
                took = took.saturating_sub(if off > SLOW_NS { off } else { 0 });
                (wall, processor) = (wall_now, processor_now);
            }
            self.singles.push(took);
        }
        (self.step)(Step::End);
    }

    /// One line of the table.
    pub(crate) fn print(&mut self) {
        self.nanoseconds.sort_by(f64::total_cmp);
        self.singles.sort_unstable();
        let median = self.nanoseconds[self.nanoseconds.len() / 2];
        let single = |part: f64| {
            let last = self.singles.len().saturating_sub(1);
            self.singles.get((last as f64 * part) as usize).copied().unwrap_or(0)
        };
        let each = |count: u64| count as f64 / self.calls_counted as f64;
        println!(
            "{:<42} {median:>8.0} {:>8} {:>8} {:>8} {:>5.1} {:>7.2} {:>8.2} {:>8.2} {:>9.0}",
            self.name,
            single(0.5),
            single(0.99),
            single(0.9999),
            single(0.9999) as f64 / single(0.5).max(1) as f64,
            each(self.counters.fences),
            each(self.counters.lines_streamed),
            each(self.counters.lines_flushed),
            each(self.counters.bytes_stored)
        );
    }
}
