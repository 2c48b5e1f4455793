//! What must hold of a volume whatever happens to those who use it: crashes at every store, in recovery too; threads that
//! end anywhere; processes that are killed; many at once.
//!
//! Touches the crate through its public interface alone, on simulated media, memory and files under `/dev/shm`. Every run is
//! seeded and bounded to seconds; `GANNET_LONG=1` makes the same tests go through everything.
//!
//! | file | what |
//! | --- | --- |
//! | `volume` | making, opening and checking small volumes |
//! | `state` | what a whole tree looks like, and whether one is what a crash may leave |
//! | `operations` | the operations that the enumerations go through |
//! | `enumeration` | one workload, its crash images, each recovered, compared, checked and used |
//! | `churn` | logs that grow and are collected |
//! | `collisions` | names that share one hash |
//! | `crashes` | sequences of one, two and three operations |
//! | `remounts` | opening and closing |
//! | `spanning` | volumes over two media |
//! | `concurrency` | many threads at once |
//! | `histories` | what several processes are told that use one tree at once |
//! | `abandonment` | threads that end after any store |
//! | `readers` | who only reads, beside a writer that is killed |
//! | `remains` | what threads that ended, or operations that failed, leave where no name leads |
//! | `stopped` | others beside a writer that stands still |
//! | `kills` | processes that are killed |
//! | `clones` | clones of files that others write to, by processes that are killed |
//! | `leaks` | space that is lost with users that are killed |
//! | `large` | directories of very many entries |
//! | `bystander` | who goes on meanwhile, and how long that takes |
//! | `eviction` | trees far larger than the memory for their indexes |
//! | `followed` | indexes that are damaged where a change meets it behind its entry |
//! | `starved` | files whose indexes need more memory than there is |
//! | `handover` | volumes that everybody left by dying |
//! | `joining` | who joins and leaves: killed at it, and of several users |
//! | `restored` | the same, where older bytes were put back |
//! | `damaged_arena` | the same, where what the killed left in shared memory is damaged |
//! | `mutations` | stores, flushes and fences left out |
//! | `arena_mutations` | stores to shared memory left out where it is settled, built anew, opened, collected |

mod abandonment;
mod arena_mutations;
mod bystander;
mod churn;
mod clones;
mod collisions;
mod concurrency;
mod crashes;
mod damaged_arena;
mod enumeration;
mod eviction;
mod followed;
mod handover;
mod histories;
mod joining;
mod kills;
mod large;
mod leaks;
mod mutations;
mod operations;
mod readers;
mod recounts;
mod remains;
mod remounts;
mod restored;
mod side_by_side;
mod spanning;
mod starved;
mod state;
mod stopped;
mod volume;

use gannet_fstest::random::Random;

/// Whether the long campaigns are asked for.
fn long() -> bool {
    std::env::var_os("GANNET_LONG").is_some()
}

/// Workloads that failed, so that one run names them all.
#[derive(Default)]
struct Failures(Vec<String>);

impl Failures {
    /// Runs a workload.
    fn catch(&mut self, text: &str, run: impl FnOnce()) {
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err() {
            self.0.push(text.to_owned());
        }
    }

    /// Panics if any failed.
    fn conclude(self) {
        assert!(self.0.is_empty(), "{} workloads failed: {:#?}", self.0.len(), self.0);
    }
}
