//! What the driver asks of the workload program, and what it answers: one line of JSON each, over pipes.

use serde::{Deserialize, Serialize};

/// How much is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Limit {
    /// So many calls untimed in one piece, and as many timed one by one; fewer if they take longer than that.
    Calls {
        /// Calls of each kind.
        calls: u64,
        /// Bound on the time of each kind, in milliseconds.
        milliseconds_max: u64,
    },
    /// As many calls, each timed, as fit in so many milliseconds.
    Milliseconds(u64),
}

/// One measurement to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Name of the shape: what a call is.
    pub shape: String,
    /// Bytes of one read or write.
    pub size_bytes: u64,
    /// Bytes of the files read and written, of all workers together.
    pub span_bytes: u64,
    /// Number of files, for shapes that have many.
    pub files: u64,
    /// Threads or processes at work.
    pub workers: u32,
    /// Whether the workers are processes.
    pub processes: bool,
    /// How much each worker does.
    pub limit: Limit,
    /// Which of the worker processes is meant; none for the whole.
    pub member: Option<u32>,
}

/// What a measurement gave.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Operations done, over all workers; those timed one by one only if nothing else was.
    pub operations: u64,
    /// What they took by the clock, added up over workers, in nanoseconds.
    pub wall_ns: f64,
    /// What they took of processors' time, likewise.
    pub cpu_ns: f64,
    /// Operations per second, added up over workers.
    pub rate: f64,
    /// Times of single operations: nanoseconds and how often.
    pub histogram: Vec<(u64, u64)>,
}

/// A line to the workload program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Make ready what the job needs (files to read, for instance); answered by `Ready`.
    Prepare(Job),
    /// Measure; answered by `Measured`, by a member after `Ready` and `Go`.
    Measure(Job),
    /// Be ready for calls of the job's first series, as many as the limit has, by one worker, unmeasured; answered by `Ready`. After
    /// `Go` the calls are made, answered by `Measured`; after another `Go` what they left behind is removed, answered by `Ready`.
    /// So whoever asks can look at counters before and after exactly these calls.
    Count(Job),
    /// Begin.
    Go,
    /// Remove what the job's shape has made; answered by `Ready`.
    Clean(Job),
}

/// A line from the workload program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// Done, or ready to begin.
    Ready,
    /// What was measured.
    Measured(Measurement),
    /// An error, in one line.
    Failed(String),
}
