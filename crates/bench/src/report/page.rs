//! The page: one HTML file with the machine, the settings, plots and tables, which loads nothing from anywhere.

use super::plots::Plot;
use super::text::{
    columns, count, find, line_name, lines, machine, number, over_floor, size, time, took, unit_name, value, workers,
};
use crate::model::{Report, Table};

const STYLE: &str = "
body { font: 15px/1.5 system-ui, sans-serif; color: #20242a; background: #fff; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.25rem; margin-top: 2.5rem; border-top: 1px solid #e3e6ea; padding-top: 1.5rem }
svg { max-width: 100%; height: auto; display: block; margin: 1rem 0 }
table { border-collapse: collapse; font-size: 13px; margin: .75rem 0; display: block; overflow-x: auto }
th, td { padding: .2rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #eef0f3 }
th:first-child, td:first-child, .left td, .left th { text-align: left }
.left td { white-space: normal; vertical-align: top } .left td:first-child { white-space: nowrap } code { font-size: .95em }
th { font-weight: 600 } small, .faint { color: #6a7078 } summary { cursor: pointer; color: #1f5fb5 }
svg { border-radius: 6px; background: #fff }
.warning { background: #fff6e0; padding: .4rem .8rem; border-left: 3px solid #e0a400; margin: .3rem 0 }
@media (prefers-color-scheme: dark) {
  :root { color-scheme: dark } body { color: #d8dce2; background: #16191d } h2 { border-color: #2c3138 }
  th, td { border-color: #262b31 } small, .faint { color: #98a0aa } summary { color: #7fb2ff }
  .warning { background: #3a3013; border-color: #c79200 }
  svg { filter: invert(.89) hue-rotate(180deg) }
}
";

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Words in which what a user types stands between backticks.
fn prose(text: &str) -> String {
    let parts = text.split('`').enumerate();
    parts.map(|(at, part)| if at % 2 == 1 { format!("<code>{}</code>", escape(part)) } else { escape(part) }).collect()
}

/// A table of cells, the first line of which is a heading.
fn grid(cells: &[Vec<String>], class: &str) -> String {
    let mut text = format!("<table class=\"{class}\">\n");
    for (index, line) in cells.iter().enumerate() {
        let tag = if index == 0 { "th" } else { "td" };
        let row: String = line.iter().map(|cell| format!("<{tag}>{cell}</{tag}>")).collect();
        text += &format!("<tr>{row}</tr>\n");
    }
    text + "</table>\n"
}

fn matrix(table: &Table) -> String {
    let peers = columns(table);
    let mut cells =
        vec![std::iter::once(String::new()).chain(peers.iter().map(|peer| escape(peer))).collect::<Vec<_>>()];
    for (operation, x) in lines(table) {
        let mut line = vec![escape(&line_name(table, operation, x))];
        for peer in &peers {
            line.push(find(table, operation, x, peer).map_or_else(
                || "–".into(),
                |row| {
                    let middle = row.value.median;
                    let share = if middle > 0.0 { 100.0 * row.value.deviation / middle } else { 0.0 };
                    let spread =
                        if row.value.rounds > 1 { format!(" <small>±{share:.0}%</small>") } else { String::new() };
                    format!("{}{spread}", value(table.unit, middle))
                },
            ));
        }
        cells.push(line);
    }
    grid(&cells, "")
}

/// Everything that a row knows.
fn details(table: &Table) -> String {
    let heading = [
        "",
        "peer",
        "workers",
        "value",
        "mean",
        "p50",
        "p99",
        "p99.99",
        "max",
        "net",
        "net / floor",
        "cpu",
        "fences",
        "lines",
        "bytes",
        "data",
        "medium",
        "survives",
    ];
    let mut cells = vec![heading.map(str::to_owned).to_vec()];
    for row in &table.rows {
        let or_dash = |value: Option<f64>| value.map_or_else(|| "–".into(), time);
        let latency = row.latency.as_ref();
        let cost =
            |of: fn(&crate::model::Cost) -> f64| row.cost.as_ref().map_or_else(|| "–".into(), |cost| number(of(cost)));
        cells.push(vec![
            escape(&line_name(table, &row.operation, row.x)),
            escape(&row.peer),
            workers(row.workers, row.processes),
            value(table.unit, row.value.median),
            or_dash(latency.map(|latency| latency.mean_ns)),
            or_dash(latency.and_then(|latency| latency.p50_ns)),
            or_dash(latency.and_then(|latency| latency.p99_ns)),
            or_dash(latency.and_then(|latency| latency.p9999_ns)),
            or_dash(latency.map(|latency| latency.max_ns)),
            or_dash(row.net_ns),
            over_floor(table, row).map_or_else(|| "–".into(), number),
            or_dash(row.cpu_ns.map(|cpu| cpu.median)),
            cost(|cost| cost.fences),
            cost(|cost| cost.lines),
            cost(|cost| cost.bytes),
            escape(&row.data),
            escape(&row.medium),
            escape(&row.survives),
        ]);
    }
    format!("<details><summary>All figures</summary>\n{}</details>\n", grid(&cells, ""))
}

/// The page.
pub(super) fn page(report: &Report, plots: &[Plot]) -> String {
    let settings = &report.settings;
    let mut text = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width\">\n<title>gannet bench</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <h1>Gannet {} beside other file systems</h1>\n<p>Measured by <code>{}</code> on {}.<br>\nClock {}, governor {}, huge pages of tmpfs: {}, {} \
         NUMA node(s), load {:.1} at the beginning.<br>\n{} rounds in turn, medians, spread: {}. Volumes of {}, data \
         operations in files of {}.</p>\n",
        report.version,
        escape(&settings.command),
        escape(&machine(report)),
        escape(&report.machine.clock),
        escape(report.machine.governor.as_deref().unwrap_or("none")),
        escape(&report.machine.huge_pages),
        report.machine.nodes,
        report.machine.load,
        settings.rounds,
        settings.spread,
        size(settings.volume_bytes as f64),
        size(settings.span_bytes as f64),
    );
    for warning in &report.warnings {
        text += &format!("<p class=\"warning\">{}</p>\n", prose(warning));
    }
    let mut peers = vec![["peer", "what", "data", "medium", "survives"].map(str::to_owned).to_vec()];
    for peer in &report.peers {
        peers
            .push([&peer.name, &peer.about, &peer.data, &peer.medium, &peer.survives].map(|cell| prose(cell)).to_vec());
    }
    if let Some(summary) = plots.iter().find(|plot| plot.name == "summary") {
        text += &format!("<h2>In short</h2>\n{}\n", summary.svg);
    }
    text += "<h2>What was measured</h2>\n";
    text += &grid(&peers, "left");
    for (index, table) in report.tables.iter().enumerate() {
        text += &format!("<h2>{} <small>({})</small></h2>\n", escape(&table.title), unit_name(table.unit));
        for plot in plots.iter().filter(|plot| plot.table == index && plot.name != "summary") {
            text += &plot.svg;
            text.push('\n');
        }
        text += &format!(
            "<p class=\"faint\">{}</p>\n",
            table.notes.iter().map(|note| prose(note)).collect::<Vec<_>>().join("<br>\n")
        );
        text += &matrix(table);
        text += &details(table);
    }
    if !report.skipped.is_empty() {
        text += &format!("<h2>Skipped ({})</h2>\n<ul>\n", count(report.skipped.len() as f64));
        for skipped in &report.skipped {
            text += &format!("<li>{}: {}</li>\n", prose(&skipped.what), prose(&skipped.why));
        }
        text += "</ul>\n";
    }
    text += &format!("<p class=\"faint\">{}.</p>\n", escape(&took(report)));
    text + "</body>\n</html>\n"
}
