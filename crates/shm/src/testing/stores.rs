//! Seeded faults in shared memory: the stores to it that one line of the program makes are left out for a while. The same work
//! without a fault says which lines store.
//!
//! A store is of the line that called the method of [`Word`](crate::Word), or of the caller's where that is `#[track_caller]`. Only what the
//! calling thread does counts.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::panic::Location;
use std::time::{Duration, Instant};

/// A line of the program: file and number.
pub type Line = (&'static str, u32);

#[derive(Clone, Copy)]
enum Mode {
    Off,
    Collecting,
    LeavingOut(Line),
}

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::Off) };
    static MET: RefCell<BTreeSet<Line>> = const { RefCell::new(BTreeSet::new()) };
    static UNTIL: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Restores what was, however the work ends.
struct During(Mode);

impl During {
    fn begin(mode: Mode) -> Self {
        Self(MODE.replace(mode))
    }
}

impl Drop for During {
    fn drop(&mut self) {
        MODE.set(self.0);
    }
}

/// Does `work`, and returns the lines whose stores to shared memory it passed.
pub fn collect_stores<R>(work: impl FnOnce() -> R) -> (R, BTreeSet<Line>) {
    MET.take();
    let _during = During::begin(Mode::Collecting);
    let result = work();
    (result, MET.take())
}

/// Does `work` without the stores of a line. A compare-and-swap of it says that it stored if it found what it expected.
pub fn without_stores<R>(line: Line, work: impl FnOnce() -> R) -> R {
    let _during = During::begin(Mode::LeavingOut(line));
    work()
}

/// Does `work`, which panics at a load from shared memory if it takes longer than `at_most`: without a store it may go in a circle.
pub fn in_time<R>(at_most: Duration, work: impl FnOnce() -> R) -> R {
    struct Unbound;
    impl Drop for Unbound {
        fn drop(&mut self) {
            UNTIL.set(None);
        }
    }
    UNTIL.set(Instant::now().checked_add(at_most));
    let _unbound = Unbound;
    work()
}

/// Whether the store that `at` is about to make is to be left out.
#[inline]
pub(crate) fn is_left_out(at: &'static Location<'static>) -> bool {
    match MODE.get() {
        Mode::Off => false,
        mode => seeded(mode, at),
    }
}

#[cold]
fn seeded(mode: Mode, at: &'static Location<'static>) -> bool {
    match mode {
        Mode::Off => false,
        Mode::Collecting => {
            MET.with_borrow_mut(|met| met.insert((at.file(), at.line())));
            false
        }
        Mode::LeavingOut((file, line)) => at.line() == line && at.file() == file,
    }
}

/// Panics if the thread takes too long, once.
#[inline]
pub(crate) fn check_time() {
    if UNTIL.get().is_some_and(|until| until < Instant::now()) {
        UNTIL.set(None);
        panic!("it does not come to an end");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ordering, Word};

    #[track_caller]
    fn add(word: &Word) -> u64 {
        word.fetch_add(1, Ordering::Relaxed)
    }

    #[test]
    fn one_line_is_left_out() {
        let word = Word::new(0);
        let work = || {
            word.store(5, Ordering::Relaxed);
            let found = word.compare_exchange(5, 6, Ordering::Relaxed, Ordering::Relaxed);
            add(&word);
            (found, word.load(Ordering::Relaxed))
        };
        let (whole, met) = collect_stores(work);
        assert_eq!((whole, met.len()), ((Ok(5), 7), 3));
        let mut without = met.into_iter().map(|line| without_stores(line, work));
        assert_eq!(without.next(), Some((Err(7), 8)));
        assert_eq!(without.next(), Some((Ok(5), 6)));
        assert_eq!(without.next(), Some((Ok(5), 6)));
        assert_eq!(work(), (Ok(5), 7));
    }
}
