//! The few figures that say most: the same program on each file system, a line for each operation, and by how much others differ from
//! Gannet.

use super::text::{count, find, number, time};
use crate::model::{Report, Row, Table};

/// Operations.
pub(super) const OPERATIONS: &[&str] = &[
    "overwrite 4 KiB",
    "append 4 KiB and fsync",
    "append 64 B and fsync",
    "read 4 KiB",
    "create, close and unlink",
    "open and close, five deep",
    "stat, five deep",
    "rename",
    "mkdir",
];

/// The table of the times of operations.
pub(super) fn table(report: &Report) -> Option<&Table> {
    report.tables.iter().find(|table| table.command == "latency")
}

/// How many times as long as Gannet another takes.
pub(super) fn times(gannet: &Row, other: &Row) -> Option<f64> {
    (gannet.value.median > 0.0).then(|| other.value.median / gannet.value.median)
}

/// A factor for people, two digits.
pub(super) fn factor(times: f64) -> String {
    match times {
        t if t < 9.95 => format!("{t:.1}×"),
        t if t < 99.5 => format!("{t:.0}×"),
        t => format!("{}×", count((t / 10.0).round() * 10.0)),
    }
}

/// Lines of cells, the first of which is a heading: for each operation the time of the first peer, and of the others their time and how
/// many times that it is. With the first peer's `tail` and fences, if that is wanted.
pub(super) fn cells(table: &Table, peers: &[(&str, &str)], tail: bool) -> Vec<Vec<String>> {
    let is_there = |peer: &str| table.rows.iter().any(|row| row.peer == peer);
    let peers: Vec<&(&str, &str)> = peers.iter().filter(|(peer, _)| is_there(peer)).collect();
    let Some(((first, called), others)) = peers.split_first() else { return Vec::new() };
    let mut heading = vec!["median time of one call".to_owned(), (*called).to_owned()];
    if tail {
        heading.extend(["its p99", "its fences"].map(str::to_owned));
    }
    heading.extend(others.iter().map(|(_, called)| (*called).to_owned()));
    let mut lines = vec![heading];
    for operation in OPERATIONS {
        let Some(gannet) = find(table, operation, None, first) else { continue };
        let mut line = vec![(*operation).to_owned(), time(gannet.value.median)];
        if tail {
            line.push(gannet.latency.and_then(|latency| latency.p99_ns).map_or_else(|| "–".into(), time));
            line.push(gannet.cost.map_or_else(|| "–".into(), |cost| number(cost.fences)));
        }
        line.extend(others.iter().map(|(peer, _)| {
            let Some(row) = find(table, operation, None, peer) else { return "–".into() };
            let behind = times(gannet, row).map_or_else(String::new, |times| format!(" ({})", factor(times)));
            time(row.value.median) + &behind
        }));
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_have_two_digits() {
        assert_eq!([0.88, 2.71, 24.2, 291.6, 1234.0].map(factor), ["0.9×", "2.7×", "24×", "290×", "1,230×"]);
    }
}
