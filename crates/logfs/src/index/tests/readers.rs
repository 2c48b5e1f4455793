//! Optimistic readers beside a writer: an answer that survives validation is right.

use super::super::IndexError;
use super::{Lab, Random, effort, mix};
use gannet_shm::{Ordering::*, Word, fence};
use std::time::{Duration, Instant};

/// The value a key has, whenever it is there.
fn value_of(key: u64) -> u64 {
    mix(key ^ 0x5eed)
}

/// One reader's attempt: `None` if it has to be repeated.
fn read<T>(sequence: &Word, work: impl FnOnce() -> Result<T, IndexError>) -> Option<Result<T, IndexError>> {
    let before = sequence.load(Acquire);
    if before & 1 == 1 {
        return None;
    }
    let answer = work();
    fence(Acquire);
    (sequence.load(Relaxed) == before).then_some(answer)
}

fn write(sequence: &Word, work: impl FnOnce()) {
    let before = sequence.load(Relaxed);
    sequence.store(before + 1, Relaxed);
    fence(Release);
    work();
    sequence.store(before + 2, Release);
}

#[test]
fn validated_answers_are_right() {
    // Two inodes fight for few nodes, so that nodes change owners under the readers.
    let lab = Lab::new(120);
    let sequences = [Word::new(0), Word::new(0), Word::new(0)];
    let end = Instant::now() + Duration::from_millis(300 * effort());
    let (lab, sequences) = (&lab, &sequences);
    let fixed = 7_000_000;
    std::thread::scope(|scope| {
        for owner in [1u32, 2] {
            scope.spawn(move || {
                let mut random = Random(u64::from(owner));
                let sequence = &sequences[owner as usize];
                while Instant::now() < end {
                    for _ in 0..200 {
                        let key = random.below(800) * 3;
                        write(sequence, || {
                            let tree = lab.tree(owner);
                            let added = match random.below(100) {
                                0 => {
                                    lab.drop_index(owner);
                                    let tree = lab.tree(owner);
                                    let mut nodes = tree.no_reservation().unwrap();
                                    tree.insert(fixed, value_of(fixed), &mut nodes).map(|_| ())
                                }
                                1..60 => tree
                                    .no_reservation()
                                    .and_then(|mut nodes| tree.insert(key, value_of(key), &mut nodes).map(|_| ())),
                                _ => tree.remove(key).map(|_| ()),
                            };
                            if added.is_err() {
                                assert_eq!(added, Err(IndexError::Full));
                                tree.clear();
                            }
                        });
                    }
                }
            });
        }
        for reader in 0..2u64 {
            scope.spawn(move || {
                let mut random = Random(77 + reader);
                let (mut validated, mut found) = (0u64, 0u64);
                while Instant::now() < end || validated == 0 {
                    for _ in 0..200 {
                        let owner = 1 + random.below(2) as u32;
                        let sequence = &sequences[owner as usize];
                        let key = random.below(2400);
                        let answer = read(sequence, || {
                            let tree = lab.tree(owner);
                            Ok((tree.get(key)?, tree.floor(key)?, tree.ceiling(key)?))
                        });
                        let Some(answer) = answer else { continue };
                        let (exact, floor, ceiling) = answer.expect("a validated read is never torn");
                        validated += 1;
                        found += u64::from(exact.is_some());
                        for (key, value) in exact.map(|value| (key, value)).into_iter().chain(floor).chain(ceiling) {
                            assert_eq!(value, value_of(key));
                        }
                        assert!(floor.is_none_or(|floor| floor.0 <= key));
                        assert!(ceiling.is_none_or(|ceiling| ceiling.0 >= key));
                        assert_eq!(exact.is_some(), floor.is_some_and(|floor| floor.0 == key));
                    }
                }
                assert!(found <= validated);
            });
        }
    });
    for owner in [1, 2] {
        lab.tree(owner).check().unwrap();
    }
}
