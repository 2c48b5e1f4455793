//! Simulated persistent memory: records every store, flush and fence, and yields the images a crash could leave.

mod record;

pub(crate) use record::Recorder;
pub use record::Simulation;
