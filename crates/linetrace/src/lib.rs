//! Which cache lines of shared memory a piece of a program reads and writes: for tests and measurements only.
//!
//! Two operations run side by side without slowing each other exactly when neither writes a cache line that the other touches
//! (Clements et al., "The Scalable Commutativity Rule", SOSP 2013, find that with a machine emulator). Times show this badly on
//! few processors; here it is seen exactly, on one processor, for programs as they are compiled. The program is single-stepped
//! (`ptrace(2)`, `PTRACE_SINGLESTEP`), each instruction is decoded before it runs, and the addresses that it uses are followed
//! to the shared maps of `/proc/PID/maps`. A line is named by its file and its place there, so that processes can be compared.
//! Loads and stores inside system calls are not seen; the calls themselves are listed.
//!
//! Knows nothing of Gannet. `unsafe` only to stop at a mark, and to ask to be traced between fork and exec.
//!
//! | file | purpose |
//! | --- | --- |
//! | `lib.rs` | the marks in the traced program, what is found |
//! | `maps.rs` | addresses to lines of files |
//! | `access.rs` | an instruction's loads and stores |
//! | `tracee.rs` | the traced process |

mod access;
mod maps;
mod tracee;

use std::collections::BTreeMap;

pub use tracee::Tracee;

/// Bytes of a cache line.
pub const LINE_BYTES: u64 = 64;

/// A cache line of a file that is mapped shared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Line {
    /// The file, as `/proc/PID/maps` names it.
    pub file: std::sync::Arc<str>,
    /// Its place: the offset of its first byte there, in [`LINE_BYTES`].
    pub number: u64,
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at {:#x}", self.file, self.number * LINE_BYTES)
    }
}

/// What ran between two marks.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// How many instructions; each repetition of a repeated one counts.
    pub instructions: u64,
    /// Numbers of the system calls, in order.
    pub system_calls: Vec<u64>,
    /// Lines loaded from, each with the place of the first instruction that did it, as `addr2line` takes it.
    pub read: BTreeMap<Line, u64>,
    /// Lines stored to, also with what they already contained and by a compare-and-exchange that fails.
    pub written: BTreeMap<Line, u64>,
}

impl Trace {
    /// The lines that one of both writes and the other touches: what keeps them from running side by side. Each with the place
    /// of an instruction of the one and of the other.
    pub fn conflicts(&self, other: &Self) -> Vec<(Line, u64, u64)> {
        let touched = |trace: &Self, line: &Line| trace.written.get(line).or_else(|| trace.read.get(line)).copied();
        let mut found = BTreeMap::new();
        for (line, &place) in &self.written {
            if let Some(others) = touched(other, line) {
                found.insert(line.clone(), (place, others));
            }
        }
        for (line, &others) in &other.written {
            if let Some(place) = touched(self, line) {
                found.entry(line.clone()).or_insert((place, others));
            }
        }
        found.into_iter().map(|(line, (place, others))| (line, place, others)).collect()
    }
}

/// Runs `body` between two marks; for the traced program. Without a tracer this ends the process with `SIGTRAP`.
#[inline(never)]
pub fn traced<T>(body: impl FnOnce() -> T) -> T {
    mark();
    let outcome = body();
    mark();
    outcome
}

/// A breakpoint instruction, where the tracer begins and ends to look.
#[inline(always)]
fn mark() {
    // SAFETY: `int3` changes neither memory nor registers; the tracer lets the program go on behind it.
    unsafe { std::arch::asm!("int3") };
}
