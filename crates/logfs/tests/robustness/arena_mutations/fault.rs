//! A seeded fault: the stores to shared memory that one line makes are left out in a part of a workload. The same workloads without a
//! fault say which lines they pass there.

use gannet_shm::testing::{Line, collect_stores, without_stores};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// Where a fault may be: what settles, loads, opens, adopts, collects, and keeps what is given up. Beginnings of names below the sources.
const PARTS: [&str; 14] = [
    "reap/",
    "settling.rs",
    "load.rs",
    "whole_map.rs",
    "index/",
    "adopt.rs",
    "attach.rs",
    "recover.rs",
    "space/settle.rs",
    "space/saved.rs",
    "space/unread.rs",
    "aftermath.rs",
    "collect/",
    "limbo/",
];

/// The name below the sources of a line that may be left out.
pub(crate) fn name_of(line: Line) -> Option<(String, u32)> {
    let (_, file) = line.0.rsplit_once("logfs/src/")?;
    PARTS.iter().any(|part| file.starts_with(part)).then(|| (file.to_owned(), line.1))
}

/// What is done to a workload.
#[derive(Clone)]
pub(crate) enum Fault {
    /// Nothing; the lines that it passes are collected.
    Collect(Rc<RefCell<BTreeSet<Line>>>),
    /// A line is left out.
    LeftOut(Line),
}

impl Fault {
    /// Does `work` with the fault, on this thread.
    pub(crate) fn during<R>(&self, work: impl FnOnce() -> R) -> R {
        match self {
            Self::Collect(met) => {
                let (result, lines) = collect_stores(work);
                met.borrow_mut().extend(lines.into_iter().filter(|&line| name_of(line).is_some()));
                result
            }
            Self::LeftOut(line) => without_stores(*line, work),
        }
    }
}
