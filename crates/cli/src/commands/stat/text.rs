//! Totals, lines and JSON.

use super::look::{Look, User};
use crate::output::{size_text, time_text};
use crate::waiting::Waiting;
use gannet_logfs::{OperationCounters, VolumeCounters};
use serde_json::{Value, json};

/// Above each twentieth line.
pub(super) const HEADING: &str = "  reads/s  writes/s changes/s     read/s  written/s   stored/s   fences/s    lines/s collected  takeovers       free\n";

fn participant(user: &User) -> Value {
    json!({ "pid": user.pid, "name": user.name, "same_pid_namespace": user.same_namespace })
}

/// What was done between two looks, a second apart.
pub(super) fn line(before: &Look, now: &Look) -> String {
    let grown = |of: fn(&VolumeCounters) -> u64| of(&now.counters).wrapping_sub(of(&before.counters));
    format!(
        "{:>9} {:>9} {:>9} {:>10} {:>10} {:>10} {:>10} {:>10} {:>9} {:>10} {:>10}\n",
        grown(|counters| counters.reads),
        grown(|counters| counters.writes),
        grown(|counters| counters.changes),
        size_text(grown(|counters| counters.bytes_read)),
        size_text(grown(|counters| counters.bytes_written)),
        size_text(grown(|counters| counters.bytes_stored)),
        grown(|counters| counters.fences),
        grown(|counters| counters.lines),
        grown(|counters| counters.pages_collected),
        grown(|counters| counters.takeovers),
        size_text(now.free_bytes()),
    )
}

/// Everything since the volume was opened.
pub(super) fn totals(now: &Look) -> String {
    let counters = &now.counters;
    let text = format!(
        "since the volume was opened\n  \
         reads      {}, {}\n  \
         writes     {}, {}\n  \
         changes    {} of names, attributes and space\n  \
         medium     {} stored, {} fences, {} lines\n  \
         collected  {} log pages\n  \
         takeovers  {} dead threads settled\n  \
         waits      {} for locks, {} of them asleep, {} ms\n  \
         indexes    {} dropped for want of memory\n  \
         free       {}\n",
        counters.reads,
        size_text(counters.bytes_read),
        counters.writes,
        size_text(counters.bytes_written),
        counters.changes,
        size_text(counters.bytes_stored),
        counters.fences,
        counters.lines,
        counters.pages_collected,
        counters.takeovers,
        counters.lock_waits,
        counters.lock_sleeps,
        counters.lock_slept_ns / 1_000_000,
        counters.indexes_dropped,
        size_text(now.free_bytes()),
    );
    let waiting: String = now.waiting.iter().map(|one| format!("  waiting    {}\n", one.text())).collect();
    format!("{text}{waiting}{}", operations(&now.operations))
}

/// A line for each operation that was called, the first of them a heading: how often, and how long it took.
pub(crate) fn operations(all: &[OperationCounters]) -> String {
    let quantile = |one: &OperationCounters, share| one.quantile_ns(share).map_or_else(|| "-".into(), time_text);
    let mut text = format!("  {:<10}{:>12}{:>11}{:>11}{:>11}\n", "operation", "calls", "p50", "p99", "p99.99");
    for one in all.iter().filter(|one| one.calls > 0) {
        let times = [0.5, 0.99, 0.9999].map(|share| format!("{:>11}", quantile(one, share)));
        text += &format!("  {:<10}{:>12}{}\n", one.operation.name(), one.calls, times.concat());
    }
    text
}

/// For programs.
pub(super) fn as_json(now: &Look) -> Value {
    let counters = &now.counters;
    json!({
        "reads": counters.reads,
        "bytes_read": counters.bytes_read,
        "writes": counters.writes,
        "bytes_written": counters.bytes_written,
        "changes": counters.changes,
        "fences": counters.fences,
        "lines": counters.lines,
        "bytes_stored": counters.bytes_stored,
        "pages_collected": counters.pages_collected,
        "takeovers": counters.takeovers,
        "operations": now.operations.iter().map(|one| json!({
            "name": one.operation.name(),
            "calls": one.calls,
            "p50_ns": one.quantile_ns(0.5),
            "p99_ns": one.quantile_ns(0.99),
            "p9999_ns": one.quantile_ns(0.9999),
        })).collect::<Vec<_>>(),
        "lock_waits": counters.lock_waits,
        "lock_sleeps": counters.lock_sleeps,
        "lock_slept_ns": counters.lock_slept_ns,
        "indexes_dropped": counters.indexes_dropped,
        "blocks": now.space.blocks,
        "blocks_free": now.space.blocks_free,
        "block_bytes": now.space.block_bytes,
        "inodes": now.space.inodes,
        "inodes_free": now.space.inodes_free,
        "shared_bytes": now.memory[0],
        "index_bytes": now.memory[1],
        "participants": now.users.iter().map(participant).collect::<Vec<_>>(),
        "waiting": now.waiting.iter().map(Waiting::as_json).collect::<Vec<_>>(),
    })
}
