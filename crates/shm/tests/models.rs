//! The lock word, its optimistic readers and the slab's state word in a model checker, which runs
//! all interleavings and weak-memory outcomes of a few threads. The same files as the crate's are
//! built here, over words of the checker's.
//!
//! The checker remembers only the last access to a word, so a thread's own load hides the race of its
//! swap with an earlier load of another thread: the models therefore enter behind that load
//! (`try_acquire_from`), with the value it would have found, and retry from what the swap found.
//!
//! Each model also has a twin with a fault seeded (a fence or an order left out), which must fail:
//! else the model would prove nothing.

#[allow(dead_code, reason = "the models take what they need of it")]
#[path = "../src/lock_word.rs"]
mod lock_word;
#[allow(dead_code, reason = "the models take what they need of it")]
#[path = "../src/slab_word.rs"]
mod slab_word;

/// What both are built on.
mod facade {
    pub(crate) use loom::sync::atomic::{Ordering, fence};

    /// A word of the checker's.
    pub(crate) struct Word(loom::sync::atomic::AtomicU64);

    impl Word {
        pub(crate) fn new(value: u64) -> Self {
            Self(loom::sync::atomic::AtomicU64::new(value))
        }

        pub(crate) fn load(&self, order: Ordering) -> u64 {
            self.0.load(order)
        }

        pub(crate) fn store(&self, value: u64, order: Ordering) {
            self.0.store(value, order);
        }

        pub(crate) fn compare_exchange(
            &self,
            expected: u64,
            value: u64,
            success: Ordering,
            failure: Ordering,
        ) -> Result<u64, u64> {
            self.0.compare_exchange(expected, value, success, failure)
        }
    }
}

use facade::{Ordering, Word, fence};
use loom::sync::Arc;
use loom::thread;

struct Shared {
    lock: Word,
    left: Word,
    right: Word,
    intents: [Word; 2],
}

impl Shared {
    fn new() -> Arc<Self> {
        let word = || Word::new(0);
        Arc::new(Self { lock: word(), left: word(), right: word(), intents: [word(), word()] })
    }

    fn acquire(&self, slot: u32) -> u64 {
        self.intents[slot as usize].store(1, Ordering::Relaxed);
        let mut found = 0;
        loop {
            match lock_word::try_acquire_from(&self.lock, found, slot) {
                Ok(held) => return held,
                // Owned: what it will be once it is released.
                Err(value) if value & 1 == 1 => {
                    found = lock_word::released(value);
                    thread::yield_now();
                }
                Err(value) => found = value,
            }
        }
    }

    fn step(&self) {
        self.left.store(self.left.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.right.store(self.right.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

/// Runs a model that must fail.
fn noticed(model: impl Fn() + Sync + Send + 'static) {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| loom::model(model)));
    assert!(result.is_err(), "the seeded fault went unnoticed");
}

#[test]
fn holders_exclude_each_other_and_see_each_others_stores() {
    loom::model(|| {
        let shared = Shared::new();
        let other = shared.clone();
        let thread = thread::spawn(move || {
            let held = other.acquire(1);
            other.step();
            lock_word::release(&other.lock, held);
        });
        let held = shared.acquire(0);
        shared.step();
        lock_word::release(&shared.lock, held);
        thread.join().unwrap();
        assert_eq!(shared.left.load(Ordering::Relaxed), 2);
        assert_eq!(shared.right.load(Ordering::Relaxed), 2);
        assert_eq!(shared.lock.load(Ordering::Relaxed), 4);
    });
}

#[test]
fn a_relaxed_release_is_noticed() {
    noticed(|| {
        let shared = Shared::new();
        let other = shared.clone();
        let thread = thread::spawn(move || {
            let held = other.acquire(1);
            other.step();
            other.lock.store(lock_word::released(held), Ordering::Relaxed);
        });
        let held = shared.acquire(0);
        shared.step();
        lock_word::release(&shared.lock, held);
        thread.join().unwrap();
        assert_eq!(shared.left.load(Ordering::Relaxed), 2);
    });
}

/// One writer, one reader that validates; `acquire` and `validate` as given.
fn reader_model(acquire: fn(&Word, u64) -> u64, validate: fn(&Word, u64) -> bool) {
    let shared = Shared::new();
    let other = shared.clone();
    let thread = thread::spawn(move || {
        let mut value = 0;
        for step in 1..=2 {
            let held = acquire(&other.lock, value);
            other.left.store(step, Ordering::Relaxed);
            other.right.store(step, Ordering::Relaxed);
            lock_word::release(&other.lock, held);
            value = lock_word::released(held);
        }
    });
    if let Some(sequence) = lock_word::read_begin(&shared.lock) {
        let left = shared.left.load(Ordering::Relaxed);
        let right = shared.right.load(Ordering::Relaxed);
        if validate(&shared.lock, sequence) {
            assert_eq!(left, right, "torn");
        }
    }
    thread.join().unwrap();
}

fn acquire(word: &Word, found: u64) -> u64 {
    lock_word::try_acquire_from(word, found, 1).unwrap()
}

fn acquire_without_fence(word: &Word, found: u64) -> u64 {
    let held = lock_word::taken_by(found, 1);
    word.compare_exchange(found, held, Ordering::AcqRel, Ordering::Relaxed).unwrap();
    held
}

fn validate_without_fence(word: &Word, sequence: u64) -> bool {
    word.load(Ordering::Relaxed) == sequence
}

#[test]
fn a_validated_read_is_never_torn() {
    loom::model(|| {
        reader_model(acquire, lock_word::read_validate);
    });
}

#[test]
fn a_missing_release_fence_is_noticed() {
    noticed(|| reader_model(acquire_without_fence, lock_word::read_validate));
}

#[test]
fn a_missing_acquire_fence_is_noticed() {
    noticed(|| reader_model(acquire, validate_without_fence));
}

/// Who sees an owner in the lock word sees that owner's intent.
fn intent_model(intent_first: bool) {
    let shared = Shared::new();
    let other = shared.clone();
    let thread = thread::spawn(move || {
        if intent_first {
            other.acquire(1);
        } else {
            lock_word::try_acquire_from(&other.lock, 0, 1).unwrap();
            other.intents[1].store(1, Ordering::Relaxed);
        }
        // And dies here.
    });
    let value = shared.lock.load(Ordering::Acquire);
    if lock_word::owner(value) == Some(1) {
        assert_eq!(shared.intents[1].load(Ordering::Relaxed), 1, "locked for ever");
    }
    thread.join().unwrap();
}

#[test]
fn an_owner_always_has_an_intent() {
    loom::model(|| intent_model(true));
}

#[test]
fn an_intent_stored_too_late_is_noticed() {
    noticed(|| intent_model(false));
}

#[test]
fn a_slab_object_has_one_holder_and_its_content_follows_it() {
    loom::model(|| {
        let shared = Shared::new();
        let workers: Vec<_> = (0..2)
            .map(|slot| {
                let shared = shared.clone();
                thread::spawn(move || {
                    let Some(generation) = slab_word::take_from(&shared.lock, 0, slot) else { return false };
                    shared.left.store(u64::from(slot) + 10, Ordering::Relaxed);
                    slab_word::publish(&shared.lock, generation);
                    true
                })
            })
            .collect();
        // A reader who finds it live finds what was stored before it was published.
        let value = shared.lock.load(Ordering::Acquire);
        if slab_word::is_live(value, 0) {
            assert!(shared.left.load(Ordering::Relaxed) >= 10);
        }
        let taken = workers.into_iter().map(|worker| worker.join().unwrap()).filter(|taken| *taken).count();
        assert_eq!(taken, 1);
    });
}

/// Two threads want to take a live object apart while a third reads it.
fn retire_model(retire: fn(&Word, u32, u64) -> bool) {
    let shared = Shared::new();
    let generation = slab_word::take(&shared.lock, 0).unwrap();
    shared.left.store(10, Ordering::Relaxed);
    slab_word::publish(&shared.lock, generation);
    let workers: Vec<_> = (0..2)
        .map(|slot| {
            let shared = shared.clone();
            thread::spawn(move || {
                if !retire(&shared.lock, slot, generation) {
                    return false;
                }
                shared.left.store(99, Ordering::Relaxed);
                assert!(slab_word::free(&shared.lock, slot));
                true
            })
        })
        .collect();
    let content = shared.left.load(Ordering::Relaxed);
    fence(Ordering::Acquire);
    if slab_word::is_live(shared.lock.load(Ordering::Relaxed), generation) {
        assert_eq!(content, 10, "content of another time");
    }
    let retired = workers.into_iter().map(|worker| worker.join().unwrap()).filter(|retired| *retired).count();
    assert_eq!(retired, 1);
    assert!(slab_word::is_free(shared.lock.load(Ordering::Relaxed)));
    assert_eq!(slab_word::generation(shared.lock.load(Ordering::Relaxed)), generation + 1);
}

#[test]
fn a_slab_object_is_retired_once_and_readers_of_the_old_generation_notice() {
    loom::model(|| retire_model(slab_word::retire));
}

#[test]
fn retiring_without_a_fence_is_noticed() {
    noticed(|| retire_model(slab_word::swap_to_retiring));
}
