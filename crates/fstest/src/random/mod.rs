//! Random operations on a file system and on the [`crate::model`], compared.
//!
//! An operation depends on the seed and its own index only, never on what happened before: it speaks of paths over a small
//! alphabet, which exist or not. So any subset of a failing run is a run of its own, and [`check`] drops operations
//! while the failure stays, then prints what is left.

mod apply;
mod operation;

use std::panic::{AssertUnwindSafe, catch_unwind};

use gannet_vfs::FileSystem;

pub use apply::Pair;
pub use operation::{Operation, Place, Random, Target};

use crate::Features;

/// What is tested: a file system that can be taken away and brought back.
pub trait Subject {
    /// The file system as it is now.
    fn fs(&self) -> &dyn FileSystem;

    /// Takes it away and brings it back (remount, or crash and recovery of a durable state); nothing may be lost. Nobody uses
    /// an inode meanwhile. Does nothing by default.
    fn remount(&mut self) {}

    /// Checks what cannot be seen through the trait (fsck, leaks). Does nothing by default.
    fn verify(&mut self) {}
}

/// A subject that has nothing but its file system.
impl<F: FileSystem> Subject for F {
    fn fs(&self) -> &dyn FileSystem {
        self
    }
}

/// How a run goes.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The operations' seed.
    pub seed: u64,
    /// How many operations.
    pub operations: u64,
    /// The whole tree is compared after so many operations, and at the end.
    pub compare_every: u64,
    /// The subject is remounted after so many operations; 0 for never.
    pub remount_every: u64,
    /// What the file system offers; operations that need more are left out.
    pub features: Features,
}

impl Plan {
    /// Compares every 50 operations, never remounts, expects all features.
    pub fn new(seed: u64, operations: u64) -> Self {
        Self { seed, operations, compare_every: 50, remount_every: 0, features: Features::all() }
    }
}

/// Runs the operations with these indexes.
fn run(plan: &Plan, indexes: &[u64], subject: &mut dyn Subject) {
    let mut pair = Pair::new(subject.fs());
    for &index in indexes {
        let operation = Operation::of(plan.seed, index);
        if plan.features.contains(operation.needs()) {
            pair.apply(subject.fs(), &operation);
        }
        let is_turn = |every: u64| every > 0 && index % every == every - 1;
        if is_turn(plan.remount_every) {
            pair.release_all(subject.fs());
            subject.remount();
            subject.verify();
            pair.compare(subject.fs());
        } else if is_turn(plan.compare_every) {
            pair.compare(subject.fs());
        }
    }
    pair.release_all(subject.fs());
    pair.compare(subject.fs());
    subject.verify();
}

/// Runs a plan on a new subject.
///
/// # Panics
/// Where file system and model differ, after printing the fewest operations found that show it.
pub fn check<S: Subject>(plan: &Plan, make: &dyn Fn() -> S) {
    let attempt = |indexes: &[u64]| catch_unwind(AssertUnwindSafe(|| run(plan, indexes, &mut make()))).is_ok();
    let mut indexes: Vec<u64> = (0..plan.operations).collect();
    if attempt(&indexes) {
        return;
    }
    let mut step = indexes.len().div_ceil(2);
    while step > 0 {
        let mut at = 0;
        while at < indexes.len() {
            let mut fewer = indexes.clone();
            fewer.drain(at..(at + step).min(indexes.len()));
            if attempt(&fewer) {
                at += step;
            } else {
                indexes = fewer;
            }
        }
        step /= 2;
    }
    println!("{plan:?} fails with these operations alone:");
    for &index in &indexes {
        println!("  {index}: {:?}", Operation::of(plan.seed, index));
    }
    run(plan, &indexes, &mut make());
    panic!("the failure of {plan:?} did not repeat");
}
