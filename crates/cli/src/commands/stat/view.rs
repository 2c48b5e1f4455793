//! The page of `gannet stat --watch`: rates with their last minutes, how long operations took, space, who has the volume open.

use super::look::{Look, User};
use crate::failure::in_one_line;
use crate::output::{size_text, time_text};
use gannet_logfs::{OperationCounters, VolumeCounters};
use std::collections::VecDeque;
use std::path::PathBuf;

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const HISTORY_MAX: usize = 512;
/// Latencies are those of so many seconds.
const LATENCY_SECONDS: usize = 10;
/// Powers of two of nanoseconds that the histogram of latencies shows: 64 ns to 16 ms.
const OCTAVES: std::ops::Range<u32> = 6..24;

/// What a row shows.
struct Measure {
    name: &'static str,
    of: fn(&VolumeCounters) -> u64,
    /// Bytes, not a number of something.
    is_size: bool,
}

const MEASURES: [Measure; 8] = [
    Measure { name: "reads", of: |counters| counters.reads, is_size: false },
    Measure { name: "read", of: |counters| counters.bytes_read, is_size: true },
    Measure { name: "writes", of: |counters| counters.writes, is_size: false },
    Measure { name: "written", of: |counters| counters.bytes_written, is_size: true },
    Measure { name: "changes", of: |counters| counters.changes, is_size: false },
    Measure { name: "stored", of: |counters| counters.bytes_stored, is_size: true },
    Measure { name: "fences", of: |counters| counters.fences, is_size: false },
    Measure { name: "lock waits", of: |counters| counters.lock_waits, is_size: false },
];

/// The page and what it remembers.
pub(super) struct View {
    title: String,
    /// The volume's file, which somebody may remove meanwhile.
    path: PathBuf,
    coloured: bool,
    last: Look,
    /// Of each measure what it was each second.
    history: Vec<VecDeque<f64>>,
    /// What had been done by operation at the last looks.
    operations: VecDeque<Vec<OperationCounters>>,
}

/// A number for people.
fn count_text(value: f64) -> String {
    match value {
        v if v < 9_999.5 => format!("{v:.0}"),
        v if v < 999_500.0 => format!("{:.1} k", v / 1e3),
        v if v < 999.5e6 => format!("{:.2} M", v / 1e6),
        v => format!("{:.2} G", v / 1e9),
    }
}

/// Values as bars of eight heights, the greatest of them full.
pub(super) fn sparkline(values: impl Iterator<Item = f64> + Clone) -> String {
    let most = values.clone().fold(0.0_f64, f64::max);
    values
        .map(|value| match value {
            v if v <= 0.0 || most <= 0.0 => ' ',
            v => BARS[((v / most * 8.0).ceil() as usize).clamp(1, 8) - 1],
        })
        .collect()
}

/// A bar of a width, filled to a share.
fn gauge(share: f64, width: usize) -> String {
    let filled = (share.clamp(0.0, 1.0) * width as f64).round() as usize;
    format!("{}{}", "█".repeat(filled), "░".repeat(width - filled))
}

fn bold(text: &str) -> String {
    format!("\x1b[1m{text}\x1b[0m")
}

fn faint(text: &str) -> String {
    format!("\x1b[2m{text}\x1b[0m")
}

/// A line with its colours (or without), cut where the terminal ends: a longer one would push the others down.
fn fitted(line: &str, columns: usize, coloured: bool) -> String {
    let (mut text, mut shown, mut in_escape) = (String::new(), 0, false);
    for letter in line.chars() {
        let is_mark = in_escape || letter == '\x1b';
        in_escape = is_mark && letter != 'm';
        if is_mark && coloured {
            text.push(letter);
        } else if !is_mark {
            shown += 1;
            if shown <= columns {
                text.push(letter);
            }
        }
    }
    text
}

fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        text.to_owned()
    } else {
        text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
    }
}

impl View {
    pub(super) fn new(title: String, path: PathBuf, coloured: bool, first: Look) -> Self {
        let operations = VecDeque::from([first.operations.clone()]);
        let history = MEASURES.iter().map(|_| VecDeque::new()).collect();
        Self { title, path, coloured, last: first, history, operations }
    }

    /// A second later.
    pub(super) fn next(&mut self, now: Look) {
        for (measure, history) in MEASURES.iter().zip(&mut self.history) {
            history.push_back(now.rate(&self.last, measure.of));
            if history.len() > HISTORY_MAX {
                history.pop_front();
            }
        }
        self.operations.push_back(now.operations.clone());
        if self.operations.len() > LATENCY_SECONDS + 1 {
            self.operations.pop_front();
        }
        self.last = now;
    }

    /// The page's lines, for a terminal of so many columns and rows.
    pub(super) fn page(&self, (columns, rows): (usize, usize)) -> Vec<String> {
        let mut lines = vec![bold(&cut(&format!("gannet stat  {}", self.title), columns)), String::new()];
        self.rates(&mut lines, columns);
        lines.push(String::new());
        self.latencies(&mut lines, columns, rows);
        self.space(&mut lines, columns);
        lines.push(String::new());
        self.users(&mut lines, columns);
        // The last line says how to get out, whatever has to go for it.
        lines.truncate(rows.saturating_sub(1));
        lines.push(faint("q: quit"));
        lines.iter().map(|line| fitted(line, columns, self.coloured)).collect()
    }

    fn rates(&self, lines: &mut Vec<String>, columns: usize) {
        let width = columns.saturating_sub(46).clamp(8, HISTORY_MAX);
        let heading =
            format!("{:<11}{:>13}  {:<width$}  {:>12}", "", "each second", format!("last {width} s"), "in all");
        lines.push(faint(&cut(&heading, columns)));
        for (measure, history) in MEASURES.iter().zip(&self.history) {
            let text = |value: f64| if measure.is_size { size_text(value as u64) } else { count_text(value) };
            let now = history.back().map_or_else(|| "…".into(), |&value| text(value));
            let bars = sparkline(history.iter().copied().skip(history.len().saturating_sub(width)));
            // The newest to the right.
            let pad = " ".repeat(width.saturating_sub(bars.chars().count()));
            let total = text((measure.of)(&self.last.counters) as f64);
            lines.push(format!(
                "{:<11}{:>13}  {pad}\x1b[36m{bars}\x1b[0m  {total:>12}",
                measure.name,
                bold_right(&now, 13)
            ));
        }
    }

    /// The operations called most lately: how often, how long they took.
    fn latencies(&self, lines: &mut Vec<String>, columns: usize, rows: usize) {
        let Some(earlier) = self.operations.front() else { return };
        let mut grown: Vec<OperationCounters> =
            self.last.operations.iter().zip(earlier).map(|(now, before)| now.since(before)).collect();
        grown.retain(|one| one.calls > 0);
        if grown.is_empty() {
            return;
        }
        grown.sort_by_key(|one| std::cmp::Reverse(one.calls));
        let seconds = self.operations.len().saturating_sub(1).max(1);
        let heading = format!(
            "{:<11}{:>13}{:>11}{:>11}   64 ns{:>w$}",
            format!("last {seconds} s"),
            "each second",
            "p50",
            "p99",
            "16 ms",
            w = OCTAVES.len() - 5
        );
        lines.push(faint(&cut(&heading, columns)));
        // The rest of the page needs twenty lines.
        for one in grown.iter().take(rows.saturating_sub(20).clamp(3, 8)) {
            let quantile = |share| one.quantile_ns(share).map_or_else(|| "-".into(), time_text);
            // What is shorter or longer than the axis belongs to its ends.
            let octave = |power: u32| match power {
                6 => (2..=6).map(|power| one.octave(power)).sum(),
                23 => (23..34).map(|power| one.octave(power)).sum(),
                power => one.octave(power),
            };
            let bars = sparkline(OCTAVES.map(|power| octave(power) as f64));
            lines.push(format!(
                "{:<11}{:>13}{:>11}{:>11}   \x1b[35m{bars}\x1b[0m",
                one.operation.name(),
                count_text(one.calls as f64 / seconds as f64),
                quantile(0.5),
                quantile(0.99)
            ));
        }
        lines.push(String::new());
    }

    fn space(&self, lines: &mut Vec<String>, columns: usize) {
        let width = columns.saturating_sub(46).clamp(8, 60);
        let (look, space) = (&self.last, &self.last.space);
        let used = look.size_bytes().saturating_sub(look.free_bytes());
        let mut line = |name: &str, part: f64, whole: f64, text: String| {
            let share = if whole > 0.0 { part / whole } else { 0.0 };
            let colour = if share > 0.9 { "\x1b[31m" } else { "\x1b[32m" };
            lines.push(format!("{name:<11}{colour}{}\x1b[0m {:>3.0} %  {text}", gauge(share, width), share * 100.0));
        };
        line(
            "space",
            used as f64,
            look.size_bytes() as f64,
            format!("{} free of {}", size_text(look.free_bytes()), size_text(look.size_bytes())),
        );
        let inodes = space.inodes.saturating_sub(space.inodes_free);
        line("inodes", inodes as f64, space.inodes as f64, format!("{} used", count_text(inodes as f64)));
        let [_, indexes, indexes_max] = look.memory;
        line("indexes", indexes as f64, indexes_max as f64, format!("{} of shared memory", size_text(look.memory[0])));
    }

    fn users(&self, lines: &mut Vec<String>, columns: usize) {
        let look = &self.last;
        let name = |user: &User| in_one_line(&format!("{} {}", user.name, user.pid));
        let names: Vec<String> = look.users.iter().map(name).collect();
        let who =
            if names.is_empty() { "nobody else".into() } else { format!("{}: {}", names.len(), names.join(", ")) };
        lines.push(cut(&format!("open by {who}"), columns));
        if !self.path.exists() {
            lines.push("\x1b[33mits file was removed: the last who has it open takes it along\x1b[0m".into());
        }
        for waiting in &look.waiting {
            lines.push(format!("\x1b[33m{}\x1b[0m", cut(&in_one_line(&waiting.text()), columns)));
        }
        if look.counters.takeovers > 0 {
            lines.push(cut(&format!("{} dead threads settled", look.counters.takeovers), columns));
        }
    }
}

/// Bold, to the right of a width that the marks do not count for.
fn bold_right(text: &str, width: usize) -> String {
    let pad = " ".repeat(width.saturating_sub(text.chars().count()));
    format!("{pad}{}", bold(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_where_the_terminal_does() {
        let line = "ab\x1b[1mcd\x1b[0mef";
        assert_eq!(fitted(line, 3, true), "ab\x1b[1mc\x1b[0m");
        assert_eq!(fitted(line, 80, true), line);
        assert_eq!(fitted(line, 5, false), "abcde");
    }

    #[test]
    fn bars_are_as_high_as_values_are_great() {
        assert_eq!(sparkline([0.0, 1.0, 4.0, 8.0].into_iter()), " ▁▄█");
        assert_eq!(sparkline([0.0, 0.0].into_iter()), "  ");
        assert_eq!((gauge(0.5, 4), gauge(2.0, 2), gauge(-1.0, 2)), ("██░░".into(), "██".into(), "░░".into()));
        assert_eq!((cut("abc", 3), cut("abcd", 3)), ("abc".into(), "ab…".into()));
        assert_eq!([12.0, 12_345.0, 1.5e6].map(count_text), ["12", "12.3 k", "1.50 M"]);
    }
}
