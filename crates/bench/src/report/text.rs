//! Tables for a terminal: a matrix of operations and peers, and behind it the tails and what a call costs the medium.

use super::summary;
use crate::model::{Report, Row, Table, Unit};
use crate::peers;

/// A time for people, three digits.
pub(crate) fn time(nanoseconds: f64) -> String {
    match nanoseconds {
        n if n < 9.95 => format!("{n:.1} ns"),
        n if n < 999.5 => format!("{n:.0} ns"),
        n if n < 9_995.0 => format!("{:.2} µs", n / 1e3),
        n if n < 99_950.0 => format!("{:.1} µs", n / 1e3),
        n if n < 999_500.0 => format!("{:.0} µs", n / 1e3),
        n if n < 9.995e6 => format!("{:.2} ms", n / 1e6),
        n if n < 99.95e6 => format!("{:.1} ms", n / 1e6),
        n if n < 999.5e6 => format!("{:.0} ms", n / 1e6),
        n => format!("{:.2} s", n / 1e9),
    }
}

/// A number for people, three digits.
pub(crate) fn number(value: f64) -> String {
    match value {
        0.0 => "0".into(),
        v if v < 9.995 => format!("{v:.2}"),
        v if v < 99.95 => format!("{v:.1}"),
        v if v < 9_999.5 => format!("{v:.0}"),
        v if v < 99_950.0 => format!("{:.1} k", v / 1e3),
        v if v < 999_500.0 => format!("{:.0} k", v / 1e3),
        v if v < 9.995e6 => format!("{:.2} M", v / 1e6),
        v => format!("{:.1} M", v / 1e6),
    }
}

/// A value in its unit; the unit itself is in the table's heading.
pub(crate) fn value(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Nanoseconds => time(value),
        Unit::Rate | Unit::Bandwidth => number(value),
    }
}

pub(crate) fn unit_name(unit: Unit) -> &'static str {
    match unit {
        Unit::Nanoseconds => "time per operation, less is better",
        Unit::Rate => "operations per second, more is better",
        Unit::Bandwidth => "MB/s, more is better",
    }
}

/// Columns: peers in their usual order, then those that the user named.
pub(crate) fn columns(table: &Table) -> Vec<&str> {
    let mut all: Vec<&str> = Vec::new();
    for row in &table.rows {
        if !all.contains(&row.peer.as_str()) {
            all.push(&row.peer);
        }
    }
    let usual = |name: &str| peers::ALL.iter().position(|known| *known == name);
    // What is no file system comes last.
    all.sort_by_key(|name| match *name {
        "driver" => usize::MAX,
        "floor" => usize::MAX - 1,
        name => usual(name).unwrap_or(peers::ALL.len()),
    });
    all
}

/// Lines: operations, and where on the axis.
pub(crate) fn lines(table: &Table) -> Vec<(&str, Option<f64>)> {
    let mut all: Vec<(&str, Option<f64>)> = Vec::new();
    for row in &table.rows {
        if !all.contains(&(row.operation.as_str(), row.x)) {
            all.push((&row.operation, row.x));
        }
    }
    all
}

/// What a line is called.
pub(crate) fn line_name(table: &Table, operation: &str, x: Option<f64>) -> String {
    match (x, table.x_name) {
        (Some(x), Some(_)) => format!("{operation}, {}", at(table, x)),
        _ => operation.to_owned(),
    }
}

/// So many threads or processes.
pub(crate) fn workers(count: u32, processes: bool) -> String {
    match (count, processes) {
        (1, false) => "1 thread".into(),
        (1, true) => "1 process".into(),
        (_, false) => format!("{count} threads"),
        (_, true) => format!("{count} processes"),
    }
}

/// A place on a table's axis, with its unit.
pub(crate) fn at(table: &Table, x: f64) -> String {
    match table.x_name {
        Some("bytes") => size(x),
        Some(name @ ("threads" | "processes")) => workers(x as u32, name == "processes"),
        Some(name) => format!("{} {name}", count(x)),
        None => count(x),
    }
}

/// A count with its thousands apart.
pub(crate) fn count(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A size in powers of 1024.
pub(crate) fn size(bytes: f64) -> String {
    match bytes {
        b if b < 1024.0 => format!("{b:.0} B"),
        b if b < 1_048_576.0 => format!("{:.0} KiB", b / 1024.0),
        b if b < 1_073_741_824.0 => format!("{:.0} MiB", b / 1_048_576.0),
        b if b % 1_073_741_824.0 == 0.0 => format!("{:.0} GiB", b / 1_073_741_824.0),
        b => format!("{:.1} GiB", b / 1_073_741_824.0),
    }
}

pub(crate) fn find<'a>(table: &'a Table, operation: &str, x: Option<f64>, peer: &str) -> Option<&'a Row> {
    table.rows.iter().find(|row| row.operation == operation && row.x == x && row.peer == peer)
}

fn cell(unit: Unit, row: &Row) -> String {
    let middle = row.value.median;
    if row.value.rounds < 2 || middle <= 0.0 {
        return value(unit, middle);
    }
    format!("{} ±{:.0}%", value(unit, middle), 100.0 * row.value.deviation / middle)
}

/// Lines of cells, the first of which is a heading, in columns as wide as they must be; all but the first to the right.
pub(crate) fn grid(lines: &[Vec<String>]) -> String {
    aligned(lines, 1)
}

/// Likewise, with so many columns to the left.
fn aligned(lines: &[Vec<String>], left: usize) -> String {
    let count = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut text = String::new();
    for line in lines {
        let mut row = String::new();
        for (index, (cell, width)) in line.iter().zip(&widths).enumerate() {
            let pad = " ".repeat(width - cell.chars().count());
            match index {
                0 => row += &format!("{cell}{pad}"),
                _ if index < left => row += &format!("  {cell}{pad}"),
                _ => row += &format!("  {pad}{cell}"),
            }
        }
        text += row.trim_end();
        text.push('\n');
    }
    text
}

fn matrix(table: &Table) -> String {
    let peers = columns(table);
    let mut cells = vec![vec![String::new()]];
    cells[0].extend(peers.iter().map(|&peer| peer.to_owned()));
    for (operation, x) in lines(table) {
        let mut line = vec![line_name(table, operation, x)];
        for peer in &peers {
            line.push(find(table, operation, x, peer).map_or_else(|| "-".into(), |row| cell(table.unit, row)));
        }
        cells.push(line);
    }
    grid(&cells)
}

/// Processor time, where the value is the time by the clock.
fn processor(table: &Table) -> Option<String> {
    let peers = columns(table);
    let mut cells = vec![vec!["processor time".to_owned()]];
    cells[0].extend(peers.iter().map(|&peer| peer.to_owned()));
    for (operation, x) in lines(table) {
        let of = |peer: &&str| find(table, operation, x, peer).and_then(|row| row.cpu_ns).map(|cpu| cpu.median);
        if peers.iter().any(|peer| of(peer).is_some()) {
            let mut line = vec![line_name(table, operation, x)];
            line.extend(peers.iter().map(|peer| of(peer).map_or_else(|| "-".into(), time)));
            cells.push(line);
        }
    }
    (cells.len() > 1).then(|| grid(&cells))
}

/// The peer whose tails are shown without being asked for: those of persistent memory, where they are measured.
fn shown_always(table: &Table) -> Option<&str> {
    let is_there = |name: &&str| table.rows.iter().any(|row| row.peer == *name);
    ["gannet-dax", "gannet-pmem", "gannet"].into_iter().find(is_there)
}

/// How many times the machine's own limit, without what measuring takes.
pub(crate) fn over_floor(table: &Table, row: &Row) -> Option<f64> {
    let floor = find(table, &row.operation, row.x, "floor")?.value.median;
    row.net_ns.filter(|_| floor > 0.0 && row.peer != "floor").map(|net| net / floor)
}

/// Tails, and what a call costs the medium; of all peers, or of Gannet. Lines of cells, the first of which is a heading.
pub(crate) fn tails(table: &Table, all: bool) -> Option<Vec<Vec<String>>> {
    let heading = ["", "peer", "mean", "p50", "p99", "p99.99", "net", "net / floor", "cpu", "fences", "lines", "bytes"];
    let mut cells = vec![heading.map(str::to_owned).to_vec()];
    let only = shown_always(table);
    for (operation, x) in lines(table) {
        for row in table.rows.iter().filter(|row| row.operation == operation && row.x == x) {
            if !all && only.is_some_and(|only| only != row.peer) || row.latency.is_none() && row.cost.is_none() {
                continue;
            }
            let or_dash = |value: Option<f64>| value.map_or_else(|| "-".into(), time);
            let cost = |of: fn(&crate::model::Cost) -> f64| {
                row.cost.as_ref().map_or_else(|| "-".into(), |cost| number(of(cost)))
            };
            let latency = row.latency.as_ref();
            cells.push(vec![
                line_name(table, operation, x),
                row.peer.clone(),
                or_dash(latency.map(|latency| latency.mean_ns)),
                or_dash(latency.and_then(|latency| latency.p50_ns)),
                or_dash(latency.and_then(|latency| latency.p99_ns)),
                or_dash(latency.and_then(|latency| latency.p9999_ns)),
                or_dash(row.net_ns),
                over_floor(table, row).map_or_else(|| "-".into(), number),
                or_dash(row.cpu_ns.map(|cpu| cpu.median)),
                cost(|cost| cost.fences),
                cost(|cost| cost.lines),
                cost(|cost| cost.bytes),
            ]);
        }
    }
    (cells.len() > 1).then_some(cells)
}

/// The machine in one line.
pub(crate) fn machine(report: &Report) -> String {
    let machine = &report.machine;
    format!(
        "{}, {} processors{}, {} of memory, Linux {}, {}",
        machine.processor,
        machine.processors,
        if machine.virtual_machine { " (virtual)" } else { "" },
        size(machine.memory_bytes as f64),
        machine.kernel,
        machine.distribution,
    )
}

/// The few figures that say most, where the times of operations were measured: of Gannet and all others.
pub fn brief(report: &Report) -> Option<String> {
    let table = summary::table(report)?;
    let first = shown_always(table)?;
    let others = columns(table).into_iter().filter(|peer| ![first, "floor", "driver"].contains(peer));
    let peers: Vec<(&str, &str)> = std::iter::once(first).chain(others).map(|peer| (peer, peer)).collect();
    let mut text = format!(
        "{}, {} processors{}; one thread, {} rounds in turn; in brackets: how many times {first}\n",
        report.machine.processor,
        report.machine.processors,
        if report.machine.virtual_machine { " (virtual)" } else { "" },
        report.settings.rounds
    );
    for skipped in &report.skipped {
        text += &format!("skipped: {}: {}\n", skipped.what, skipped.why);
    }
    Some(text + "\n" + &grid(&summary::cells(table, &peers, false)))
}

/// How long it took, in one line.
pub(crate) fn took(report: &Report) -> String {
    let each: Vec<String> = report.took.iter().map(|one| format!("{} {:.0} s", one.command, one.seconds)).collect();
    let all: f64 = report.took.iter().map(|one| one.seconds).sum();
    format!("It took {:.0} s: {}", all, each.join(", "))
}

/// All of a report; the tails and the medium's cost of all peers if there shall be `details`, otherwise Gannet's.
pub fn text(report: &Report, details: bool) -> String {
    let mut text = format!("Gannet {}: {}\n", report.version, machine(report));
    let settings = &report.settings;
    text += &format!(
        "{} rounds in turn, median ± {}; volumes of {}, files of {}\n",
        settings.rounds,
        settings.spread,
        size(settings.volume_bytes as f64),
        size(settings.span_bytes as f64)
    );
    for warning in &report.warnings {
        text += &format!("warning: {warning}\n");
    }
    let mut peers = vec![vec!["peer".to_owned(), "what".to_owned(), "data".into(), "medium".into(), "survives".into()]];
    for peer in &report.peers {
        peers.push(vec![
            peer.name.clone(),
            peer.about.clone(),
            peer.data.clone(),
            peer.medium.clone(),
            peer.survives.clone(),
        ]);
    }
    text += &format!("\n{}", aligned(&peers, usize::MAX));
    for table in &report.tables {
        text += &format!("\n{} ({})\n", table.title, unit_name(table.unit));
        for note in &table.notes {
            text += &format!("  {note}\n");
        }
        text += &matrix(table);
        if table.unit == Unit::Nanoseconds
            && let Some(processor) = processor(table)
        {
            text += &format!("\n{processor}");
        }
        if let Some(tails) = tails(table, details) {
            text += &format!("\n{}", aligned(&tails, 2));
        }
    }
    if !report.skipped.is_empty() {
        text += "\nskipped\n";
        for skipped in &report.skipped {
            text += &format!("  {}: {}\n", skipped.what, skipped.why);
        }
    }
    text + &format!("\n{}\n", took(report))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        let times = [(1.25, "1.2 ns"), (312.4, "312 ns"), (1519.0, "1.52 µs"), (15_190.0, "15.2 µs"), (2e9, "2.00 s")];
        for (nanoseconds, text) in times {
            assert_eq!(time(nanoseconds), text);
        }
        for (value, text) in [(0.5, "0.50"), (42.0, "42.0"), (4200.0, "4200"), (42_000.0, "42.0 k"), (4.2e6, "4.20 M")]
        {
            assert_eq!(number(value), text);
        }
        assert_eq!((count(1_234_567.0), count(12.0)), ("1,234,567".into(), "12".into()));
        assert_eq!((size(64.0), size(65536.0), size(1_048_576.0)), ("64 B".into(), "64 KiB".into(), "1 MiB".into()));
    }

    #[test]
    fn grids_are_aligned() {
        let lines = [vec!["".into(), "µs".into()], vec!["a".into(), "100".into()]];
        assert_eq!(grid(&lines), "    µs\na  100\n");
    }
}
