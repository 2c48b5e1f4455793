//! Readers that take nothing: what they validate was never torn, on this machine's memory. (All
//! interleavings of smaller cases: `models`.)

use super::private;
use crate::Ordering;
use std::sync::atomic::{AtomicBool, Ordering as Plain};
use std::time::{Duration, Instant};

/// Ends the others' work, also where the test fails: they are waited for.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Plain::Relaxed);
    }
}

#[test]
fn what_is_validated_is_never_torn() {
    const WORDS: u64 = 64;
    let session = private(4096);
    let region = session.arena().region("test").unwrap();
    let (lock, data) = (region.at(0).unwrap(), region.at(64).unwrap());
    let run = Duration::from_millis(if std::env::var_os("GANNET_LONG").is_some() { 20_000 } else { 200 });
    // On one processor, readers and writers meet only where one of them is interrupted.
    let patience = run + Duration::from_secs(60);
    let stop = AtomicBool::new(false);
    let (mut valid, mut invalid) = (0u64, 0u64);
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        for _ in 0..2 {
            scope.spawn(|| {
                let thread = session.thread().unwrap();
                let words = session.arena().words(data, WORDS).unwrap();
                while !stop.load(Plain::Relaxed) {
                    let guard = thread.lock(lock).unwrap();
                    for word in words {
                        word.store(guard.sequence_after(), Ordering::Relaxed);
                    }
                    guard.unlock();
                    for _ in 0..200 {
                        std::hint::spin_loop();
                    }
                }
            });
        }
        let thread = session.thread().unwrap();
        let words = session.arena().words(data, WORDS).unwrap();
        let began = Instant::now();
        while began.elapsed() < run || (valid <= 100 || invalid == 0) && began.elapsed() < patience {
            let Some(sequence) = thread.read_begin(lock).unwrap() else { continue };
            let mut copy = [0u64; WORDS as usize];
            for (to, from) in copy.iter_mut().zip(words) {
                *to = from.load(Ordering::Relaxed);
            }
            if thread.read_validate(lock, sequence).unwrap() {
                assert!(copy.iter().all(|word| *word == sequence), "{sequence}: {copy:?}");
                valid += 1;
            } else {
                invalid += 1;
            }
        }
    });
    assert!(valid > 100 && invalid > 0, "the test saw no contention: {valid} {invalid}");
}
