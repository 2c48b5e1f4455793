//! Which plots a report gets: lines over an axis for few operations, points for many.

use super::dots::{self, Dots};
use super::lines::{self, Lines};
use super::stack::{self, Stack};
use super::summary;
use super::text::{self, columns, lines as table_lines};
use crate::model::{Report, Row, Table, WHOLE};

/// Operations that get a plot with lines each; of more there are points.
const LINES_MAX: usize = 4;

/// Longest explanation of an operation that has room beside its name, in letters.
const ABOUT_MAX: usize = 56;

/// Peers of the plot that says most in least room.
const SUMMARY_PEERS: &[&str] =
    &["gannet-pmem", "gannet-mount-ring", "gannet-mount", "tmpfs", "libfuse", "disk", "floor"];

/// Those of them with figures beside the plot.
const BESIDE: &[(&str, &str)] =
    &[("gannet-pmem", "Gannet"), ("tmpfs", "tmpfs"), ("libfuse", "libfuse"), ("disk", "disk")];

/// A plot.
pub(super) struct Plot {
    /// Name of its file, without the suffix.
    pub(super) name: String,
    /// Index of its table.
    pub(super) table: usize,
    pub(super) svg: String,
}

/// All plots.
pub(super) fn of(report: &Report) -> Vec<Plot> {
    let below = format!(
        "median of {} rounds and their spread; {}, {} processors",
        report.settings.rounds, report.machine.processor, report.machine.processors
    );
    let mut plots = Vec::new();
    for (index, table) in report.tables.iter().enumerate() {
        // Names of files stay the same as long as the tables do.
        let same = report.tables[..index].iter().filter(|other| other.command == table.command).count();
        let name = if same == 0 { table.command.to_owned() } else { format!("{}-{}", table.command, same + 1) };
        plots.extend(of_table(table, &name, &below).into_iter().map(|(name, svg)| Plot { name, table: index, svg }));
        if table.command == "latency" && same == 0 {
            plots.extend(front(table, &below).map(|svg| Plot { name: "summary".into(), table: index, svg }));
        }
    }
    plots
}

/// The front page's.
fn front(table: &Table, below: &str) -> Option<String> {
    let rows: Vec<&Row> = table.rows.iter().filter(|row| SUMMARY_PEERS.contains(&row.peer.as_str())).collect();
    let has = |operation: &&str| rows.iter().any(|row| row.operation == **operation);
    let operations: Vec<&str> = summary::OPERATIONS.iter().copied().filter(has).collect();
    let labels = operations.iter().map(|&operation| operation.to_owned()).collect();
    let peers = SUMMARY_PEERS.iter().copied().filter(|peer| rows.iter().any(|row| row.peer == *peer)).collect();
    let title = "The time of one call: the same program on each file system".to_owned();
    let beside = BESIDE.iter().copied().filter(|(peer, _)| rows.iter().any(|row| row.peer == *peer)).collect();
    dots::draw(&Dots { title, below: below.into(), unit: table.unit, operations, labels, peers, rows, beside })
}

/// An operation's name, and what a note of the table says about it, where that is short.
fn label(table: &Table, operation: &str) -> String {
    let about = table.notes.iter().find_map(|note| note.strip_prefix(operation)?.strip_prefix(": "));
    let about = about.filter(|about| about.chars().count() <= ABOUT_MAX);
    about.map_or_else(|| operation.to_owned(), |about| format!("{operation}: {about}"))
}

fn of_table(table: &Table, name: &str, below: &str) -> Vec<(String, String)> {
    let measured = |row: &&Row| row.peer != "driver" && row.operation != "empty driver";
    let mut operations: Vec<&str> = Vec::new();
    for (operation, _) in table_lines(table) {
        let is_there = table.rows.iter().filter(measured).any(|row| row.operation == operation);
        if is_there && !operations.contains(&operation) {
            operations.push(operation);
        }
    }
    let peers: Vec<&str> = columns(table).into_iter().filter(|peer| *peer != "driver").collect();
    let labels = operations.iter().map(|operation| label(table, operation)).collect::<Vec<_>>();
    let Some(x_name) = table.x_name else {
        let rows = table.rows.iter().filter(measured).collect();
        if operations.last() == Some(&WHOLE) && peers.len() == 1 {
            let parts = table.rows.iter().filter(|row| row.operation != WHOLE);
            let parts = parts.map(|row| (row.operation.as_str(), row.value.median)).collect();
            let whole = table.rows.iter().find(|row| row.operation == WHOLE).map_or(0.0, |row| row.value.median);
            let stack = Stack { title: table.title.clone(), below: below.into(), unit: table.unit, parts, whole };
            return stack::draw(&stack).map(|svg| (name.to_owned(), svg)).into_iter().collect();
        }
        // Of one peer there is room for the figures themselves.
        let beside = if peers.len() == 1 { vec![(peers[0], "")] } else { Vec::new() };
        let (title, below) = (table.title.clone(), below.into());
        let dots = Dots { title, below, unit: table.unit, operations, labels, peers, rows, beside };
        return dots::draw(&dots).map(|svg| (name.to_owned(), svg)).into_iter().collect();
    };
    let single = peers.len() == 1;
    if operations.len() <= LINES_MAX && !single {
        let of = |operation: &&str| {
            let lines = peers
                .iter()
                .map(|peer| {
                    let rows = table.rows.iter().filter(|row| row.peer == *peer && row.operation == **operation);
                    (*peer, rows.collect::<Vec<_>>())
                })
                .filter(|(_, rows)| !rows.is_empty())
                .collect();
            let title = format!("{}: {operation}", table.title);
            let svg = lines::draw(&Lines { title, below: below.into(), unit: table.unit, x_name, lines })?;
            Some((format!("{name}-{}", operation.replace(' ', "-")), svg))
        };
        return operations.iter().filter_map(of).collect();
    }
    if single {
        // Of one peer the operations are the lines.
        let of = |operation: &&'_ str| table.rows.iter().filter(|row| row.operation == *operation).collect::<Vec<_>>();
        let lines = operations.iter().map(|operation| (*operation, of(operation))).collect();
        let plot = Lines { title: table.title.clone(), below: below.into(), unit: table.unit, x_name, lines };
        return lines::draw(&plot).map(|svg| (name.to_owned(), svg)).into_iter().collect();
    }
    // Too many operations for a plot each: points, where the axis begins and where it ends.
    let mut xs: Vec<f64> = table.rows.iter().filter_map(|row| row.x).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let ends = [xs.first(), xs.last().filter(|_| xs.len() > 1)];
    let of = |&x: &f64| {
        let rows: Vec<&Row> = table.rows.iter().filter(measured).filter(|row| row.x == Some(x)).collect();
        let title = table.title.strip_suffix(&format!(", {x_name}")).unwrap_or(&table.title);
        let title = format!("{title}, {}", text::at(table, x));
        let (operations, peers) = (operations.clone(), peers.clone());
        let below = below.into();
        let (unit, labels, beside) = (table.unit, labels.clone(), Vec::new());
        let svg = dots::draw(&Dots { title, below, unit, operations, labels, peers, rows, beside })?;
        Some((format!("{name}-at-{x}"), svg))
    };
    ends.into_iter().flatten().filter_map(of).collect()
}
