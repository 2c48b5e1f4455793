//! The report as a page of Markdown (`README.md`): what a repository's front page takes its figures from, between two marks.

use super::plots::Plot;
use super::summary;
use super::text::{self, columns, find, line_name, lines, machine, unit_name, value};
use crate::model::{Report, Row, Table};

/// What is between these lines can be copied elsewhere; `scripts/refresh-results` does.
const BEGIN: &str = "<!-- the figures of gannet bench: begin -->";
const END: &str = "<!-- the figures of gannet bench: end -->";

/// Columns of the summary.
const COLUMNS: &[(&str, &str)] = &[
    ("gannet-pmem", "Gannet"),
    ("tmpfs", "tmpfs"),
    ("libfuse", "libfuse"),
    ("disk", "disk"),
    ("gannet-mount-ring", "Gannet mounted, io_uring"),
    ("gannet-mount", "Gannet mounted, /dev/fuse"),
];

fn line(cells: impl IntoIterator<Item = String>) -> String {
    let cells: Vec<String> = cells.into_iter().map(|cell| cell.replace('|', "\\|")).collect();
    format!("| {} |\n", cells.join(" | "))
}

/// A table, the first line of which is a heading.
fn grid(cells: Vec<Vec<String>>) -> String {
    let mut text = String::new();
    for (index, cells) in cells.into_iter().enumerate() {
        let count = cells.len();
        text += &line(cells);
        if index == 0 {
            text += &format!("| --- |{}\n", " ---: |".repeat(count.saturating_sub(1)));
        }
    }
    text
}

/// The few figures that say most.
fn figures(report: &Report) -> Option<String> {
    let cells = summary::cells(summary::table(report)?, COLUMNS, true);
    (cells.len() > 1).then(|| {
        format!(
            "{}\nOne thread of one unmodified program, in turn on each; medians of {} rounds, and in brackets how many times Gannet's that is. \
             {}. Volumes: {}: every flush and fence is executed.\n",
            grid(cells),
            report.settings.rounds,
            machine(report),
            report.peers.iter().find(|peer| peer.name == "gannet-pmem").map_or("", |peer| peer.medium.as_str()),
        )
    })
}

fn matrix(table: &Table) -> String {
    let peers: Vec<&str> = columns(table).into_iter().filter(|peer| *peer != "driver").collect();
    let mut cells = vec![vec![unit_name(table.unit).to_owned()]];
    cells[0].extend(peers.iter().map(|&peer| peer.to_owned()));
    for (operation, x) in lines(table) {
        let one = |row: &Row| {
            let share = 100.0 * row.value.deviation / row.value.median.max(f64::MIN_POSITIVE);
            let spread = if row.value.rounds > 1 { format!(" ±{share:.0}%") } else { String::new() };
            format!("{}{spread}", value(table.unit, row.value.median))
        };
        let values: Vec<String> =
            peers.iter().map(|peer| find(table, operation, x, peer).map_or_else(|| "–".into(), one)).collect();
        if values.iter().any(|value| value != "–") {
            cells.push(std::iter::once(line_name(table, operation, x)).chain(values).collect());
        }
    }
    grid(cells)
}

/// Tails, and what a call costs the medium, of the peer whose figures carry over best, or of all where there is none; folded.
fn tails(table: &Table) -> Option<String> {
    let cells = text::tails(table, false)?;
    let peer = cells.get(1).and_then(|line| line.get(1)).cloned().unwrap_or_default();
    let without = |line: Vec<String>| line.into_iter().enumerate().filter(|(at, _)| *at != 1).map(|(_, cell)| cell);
    let cells = cells.into_iter().map(|line| without(line).collect()).collect();
    Some(format!(
        "\n<details><summary>{peer}: tails, processor time, fences, lines and bytes of an operation</summary>\n\n{}\n</details>\n",
        grid(cells)
    ))
}

/// The page.
pub(super) fn page(report: &Report, plots: &[Plot]) -> String {
    let mut text = format!(
        "# Results\n\n`{}` wrote this page; `index.html` beside it has every figure of every peer, `results.json` the same for programs.\n\n{}.\n",
        report.settings.command,
        machine(report)
    );
    for warning in &report.warnings {
        text += &format!("* {warning}\n");
    }
    if let Some(figures) = figures(report) {
        text += &format!(
            "\n## In short\n\n![The same program on each file system](summary.svg)\n\n{BEGIN}\n{figures}{END}\n"
        );
    }
    text += "\n## What was measured\n\n| peer | what | data | medium | acknowledged operations survive |\n| --- | --- | --- | --- | --- |\n";
    for peer in &report.peers {
        text += &line([&peer.name, &peer.about, &peer.data, &peer.medium, &peer.survives].map(String::clone));
    }
    for (index, table) in report.tables.iter().enumerate() {
        text += &format!("\n## {}\n\n", table.title);
        for plot in plots.iter().filter(|plot| plot.table == index && plot.name != "summary") {
            text += &format!("![{}]({}.svg)\n\n", plot.name, plot.name);
        }
        text += &matrix(table);
        text += &table.notes.iter().map(|note| format!("\n* {note}")).collect::<String>();
        text.push('\n');
        text += &tails(table).unwrap_or_default();
    }
    text += &format!("\n{}.\n", text::took(report));
    if !report.skipped.is_empty() {
        text += "\n## Left out\n\n";
        for skipped in &report.skipped {
            text += &format!("* {}: {}\n", skipped.what, skipped.why);
        }
    }
    text
}
