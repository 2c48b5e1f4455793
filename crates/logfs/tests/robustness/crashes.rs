//! Crashes in all sequences of one operation, and in samples of those of two and three.

use crate::enumeration::{Count, last_of};
use crate::operations::{Operation, all, populate};
use crate::volume::{Mode, image};
use crate::{Failures, Random, long};
use gannet_media::simulation::CrashPolicy;
use std::time::Instant;

fn singles(mode: Mode) {
    let began = Instant::now();
    let image = image(mode, |fs| populate(fs));
    let policy = if long() {
        CrashPolicy { combinations_max: 4096, ..CrashPolicy::default() }
    } else {
        CrashPolicy { combinations_max: 32, cuts_max: 8, samples: 8, ..CrashPolicy::default() }
    };
    let mut count = Count::default();
    let mut failed = Failures::default();
    for operation in &all(mode) {
        failed
            .catch(&operation.text, || count += last_of(&image, &[operation], &policy, if long() { 4 } else { 24 }, 0));
    }
    failed.conclude();
    count.print(&format!("one operation, {mode:?}"), began);
    assert!(count.images > 1000);
}

/// Lines that go past the cache promise less than others: of each, any words may survive, not only the first ones.
#[test]
fn words_of_a_line_in_any_order() {
    let began = Instant::now();
    let image = image(Mode::InPlace, |fs| populate(fs));
    let policy = CrashPolicy { words_in_any_order: true, samples: 32, ..CrashPolicy::sparse(11) };
    let mut count = Count::default();
    let mut failed = Failures::default();
    for operation in &all(Mode::InPlace) {
        failed.catch(&operation.text, || count += last_of(&image, &[operation], &policy, 64, 0));
    }
    failed.conclude();
    count.print("one operation, words in any order", began);
    assert!(count.images > 1000);
}

/// Which of the sequences are gone through, where not all are: `GANNET_RANGE=FROM-TO`, to go on with a long run, or to do a part of it.
fn range(chosen: usize) -> std::ops::Range<usize> {
    let Ok(text) = std::env::var("GANNET_RANGE") else { return 0..chosen };
    let parts = text.split_once('-').and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    let range: std::ops::Range<usize> = parts.expect("GANNET_RANGE=FROM-TO");
    range.start.min(chosen)..range.end.min(chosen)
}

/// Sequences of `length` operations; `sample` of them, or all.
fn sequences(mode: Mode, length: u32, sample: usize) {
    let began = Instant::now();
    let image = image(mode, |fs| populate(fs));
    let operations = all(mode);
    let mut count = Count::default();
    let total = operations.len().pow(length);
    let mut random = Random(length as u64 + mode as u64);
    let everything = long() && length == 2;
    let chosen = if everything { total } else { sample };
    let mut failed = Failures::default();
    let range = range(chosen);
    for index in 0..range.end {
        // Whatever the range, the same are drawn.
        let drawn = if everything { index } else { random.below(total) };
        if index < range.start {
            continue;
        }
        if index % 1000 == 999 {
            println!("{length} operations, {mode:?}: {} of {}", index + 1, range.end);
        }
        let mut rest = drawn;
        let sequence: Vec<&Operation> = (0..length)
            .map(|_| {
                let operation = &operations[rest % operations.len()];
                rest /= operations.len();
                operation
            })
            .collect();
        let text: Vec<&str> = sequence.iter().map(|operation| operation.text.as_str()).collect();
        failed.catch(&text.join("; "), || {
            count += last_of(&image, &sequence, &CrashPolicy::sparse(index as u64), 32, index as u64);
        });
    }
    failed.conclude();
    count.print(&format!("{length} operations, {mode:?}"), began);
    assert!(count.images > range.len() as u64);
}

#[test]
fn one_operation_in_place() {
    singles(Mode::InPlace);
}

#[test]
fn one_operation_copy_on_write() {
    singles(Mode::CopyOnWrite);
}

#[test]
fn two_operations_in_place() {
    sequences(Mode::InPlace, 2, 80);
}

#[test]
fn two_operations_copy_on_write() {
    sequences(Mode::CopyOnWrite, 2, 80);
}

/// Sequences in which something was wrong once that no short run draws.
#[test]
fn sequences_that_were_wrong_once() {
    let began = Instant::now();
    let mut count = Count::default();
    for mode in [Mode::InPlace, Mode::CopyOnWrite] {
        let image = image(mode, |fs| populate(fs));
        let operations = all(mode);
        // A file with blocks behind its end grows to before them as its owner changes: one entry says both, and leaves them.
        let first = operations.iter().find(|operation| operation.text == "allocate /b KeepSize 8192 8192");
        let first = first.expect("an operation that allocates behind the end");
        let is_second = |operation: &&Operation| {
            operation.text.starts_with("change /b ") && operation.text.contains("Some(6000), mode: Keep, user: Some(9)")
        };
        let second = operations.iter().find(is_second).expect("an operation that changes size and owner");
        count += last_of(&image, &[first, second], &CrashPolicy::default(), 4, 0);
    }
    count.print("sequences that were wrong once", began);
    assert!(count.images > 20);
}

#[test]
fn three_operations_in_place() {
    sequences(Mode::InPlace, 3, if long() { 20_000 } else { 50 });
}

#[test]
fn three_operations_copy_on_write() {
    sequences(Mode::CopyOnWrite, 3, if long() { 20_000 } else { 50 });
}
