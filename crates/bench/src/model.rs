//! What a run of `gannet bench` finds: the rows, the machine, the settings. `docs/bench.schema.json` describes its JSON.

use serde::Serialize;

/// A whole run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Always "gannet-bench".
    pub format: &'static str,
    /// What the reader of the JSON must know of to understand it; fields that it does not know it may ignore.
    pub features: Vec<&'static str>,
    /// Version of Gannet.
    pub version: &'static str,
    /// Seconds since 1970 at the end.
    pub time_s: u64,
    /// The machine.
    pub machine: Machine,
    /// How it was measured.
    pub settings: Settings,
    /// What was measured.
    pub peers: Vec<PeerFacts>,
    /// What makes the figures worse than they could be.
    pub warnings: Vec<String>,
    /// What was left out, and why.
    pub skipped: Vec<Skipped>,
    /// How long it took, by command.
    pub took: Vec<Took>,
    /// The figures.
    pub tables: Vec<Table>,
}

/// How long one command's tables took.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Took {
    /// The command.
    pub command: String,
    /// Seconds, with making ready what was needed first for it.
    pub seconds: f64,
}

/// The machine that measured.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Model of the processor.
    pub processor: String,
    /// Processors that may be used.
    pub processors: u32,
    /// Whether it is a virtual machine.
    pub virtual_machine: bool,
    /// NUMA nodes.
    pub nodes: u32,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Version of the kernel.
    pub kernel: String,
    /// Name of the distribution.
    pub distribution: String,
    /// The clock that the kernel uses.
    pub clock: String,
    /// Frequency governor, if there is one.
    pub governor: Option<String>,
    /// What tmpfs gets huge pages for: `/sys/kernel/mm/transparent_hugepage/shmem_enabled`.
    pub huge_pages: String,
    /// Load (of one minute) at the beginning.
    pub load: f64,
}

/// How it was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// The command line, as it can be given again.
    pub command: String,
    /// Whether it was the small run.
    pub quick: bool,
    /// Rounds, of which the median is taken.
    pub rounds: u32,
    /// What is given as spread.
    pub spread: &'static str,
    /// Size of each volume in bytes.
    pub volume_bytes: u64,
    /// Bytes that data operations choose from.
    pub span_bytes: u64,
}

/// A file system that was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PeerFacts {
    /// Short name, as the rows have it.
    pub name: String,
    /// What it is.
    pub about: String,
    /// Data mode: "in place", "copy-on-write", or what the file system does.
    pub data: String,
    /// What the bytes are on.
    pub medium: String,
    /// What an acknowledged (synced) operation survives.
    pub survives: String,
}

/// Something left out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Skipped {
    /// What.
    pub what: String,
    /// Why.
    pub why: String,
}

/// What a row's value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Unit {
    /// Nanoseconds per operation: less is better.
    #[serde(rename = "ns")]
    Nanoseconds,
    /// Operations per second: more is better.
    #[serde(rename = "operations/s")]
    Rate,
    /// Millions of bytes per second: more is better.
    #[serde(rename = "MB/s")]
    Bandwidth,
}

/// The operation of a table's last row where the others are its parts.
pub(crate) const WHOLE: &str = "all";

/// A table.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// The command that made it.
    pub command: &'static str,
    /// What it shows.
    pub title: String,
    /// What one must know to read it.
    pub notes: Vec<String>,
    /// Unit of the values.
    pub unit: Unit,
    /// What `x` is, where rows have one.
    pub x_name: Option<&'static str>,
    /// The rows.
    pub rows: Vec<Row>,
}

/// A figure.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What was done.
    pub operation: String,
    /// By whom: the name of a peer; "floor" for the machine's own limit, "driver" for measuring nothing.
    pub peer: String,
    /// The peer's data mode.
    pub data: String,
    /// The peer's medium.
    pub medium: String,
    /// What an acknowledged operation survives.
    pub survives: String,
    /// Where on the table's axis.
    pub x: Option<f64>,
    /// Threads or processes.
    pub workers: u32,
    /// Whether they were processes.
    pub processes: bool,
    /// The value, in the table's unit.
    pub value: Spread,
    /// Processor time of an operation in nanoseconds, the kernel's included.
    pub cpu_ns: Option<Spread>,
    /// Time of an operation less that of the empty driver, in nanoseconds.
    pub net_ns: Option<f64>,
    /// Times of single operations.
    pub latency: Option<Latency>,
    /// What an operation costs the medium.
    pub cost: Option<Cost>,
}

/// A figure of several rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Median of the rounds.
    pub median: f64,
    /// Median absolute deviation from it.
    pub deviation: f64,
    /// Rounds.
    pub rounds: u32,
}

/// Times of single operations over all rounds, in nanoseconds; a quantile is left out where the samples cannot tell it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// How many operations were timed.
    pub samples: u64,
    /// Mean.
    pub mean_ns: f64,
    /// Half are shorter.
    pub p50_ns: Option<f64>,
    /// 99 of 100 are shorter.
    pub p99_ns: Option<f64>,
    /// 9,999 of 10,000 are shorter.
    pub p9999_ns: Option<f64>,
    /// The longest.
    pub max_ns: f64,
}

/// What an operation costs the medium, from the volume's counters: this carries over to other machines.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// Fences.
    pub fences: f64,
    /// Lines flushed, or stored past the cache.
    pub lines: f64,
    /// Bytes stored.
    pub bytes: f64,
}
