//! What people read: standard output, sizes, progress.

use crate::failure::Failure;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];

/// Requires that there is a standard output. Where there was none, what is printed goes to `/dev/null` without an error.
pub(crate) fn check() -> Result<(), Failure> {
    match gannet_fuse::standard_output_was_closed() {
        true => Err(Failure::new("standard output: it is closed")),
        false => Ok(()),
    }
}

/// Prints text. A reader that went away is no failure.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    print_on(text).map(|_| ())
}

/// The same; whether there is still a reader, for who prints until he has seen enough.
pub(crate) fn print_on(text: &str) -> Result<bool, Failure> {
    check()?;
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::new(format_args!("standard output: {error}"))),
    }
}

/// A size for people.
pub(crate) fn size_text(bytes: u64) -> String {
    let mut unit = 0;
    while unit + 1 < UNITS.len() && bytes >> (10 * (unit + 1)) != 0 {
        unit += 1;
    }
    let whole = 1_u64 << (10 * unit);
    match (unit, bytes % whole) {
        (_, 0) => format!("{} {}", bytes / whole, UNITS[unit]),
        _ => format!("{:.1} {}", bytes as f64 / whole as f64, UNITS[unit]),
    }
}

/// A time for people, three digits.
pub(crate) fn time_text(nanoseconds: u64) -> String {
    match nanoseconds as f64 {
        n if n < 999.5 => format!("{n:.0} ns"),
        n if n < 9_995.0 => format!("{:.2} µs", n / 1e3),
        n if n < 99_950.0 => format!("{:.1} µs", n / 1e3),
        n if n < 999_500.0 => format!("{:.0} µs", n / 1e3),
        n if n < 9.995e6 => format!("{:.2} ms", n / 1e6),
        n if n < 999.5e6 => format!("{:.0} ms", n / 1e6),
        n => format!("{:.2} s", n / 1e9),
    }
}

/// A size in MiB from a command line: a plain number, or one with a suffix as [`parse_size`] has it.
pub(crate) fn parse_mebibytes(text: &str) -> Result<u64, String> {
    let mebibytes = match text.trim().parse() {
        Ok(mebibytes) => mebibytes,
        Err(_) => parse_size(text)? >> 20,
    };
    if mebibytes == 0 { Err(format!("\"{text}\" is less than one MiB")) } else { Ok(mebibytes) }
}

/// A size from a command line: a number with an optional suffix K, M, G or T, in powers of 1024.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    let suffix_at = trimmed.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(trimmed.len());
    let (number, suffix) = trimmed.split_at(suffix_at);
    if number.is_empty() {
        return Err(format!("\"{text}\" is no size, as 4G or 512M are"));
    }
    let shift = match suffix.trim().to_ascii_uppercase().trim_end_matches("IB").trim_end_matches('B') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        other => return Err(format!("\"{other}\" is no unit: use K, M, G or T")),
    };
    let bytes = match number.parse::<u64>() {
        Ok(number) => number.checked_mul(1 << shift),
        Err(_) => {
            let number: f64 = number.parse().map_err(|_| format!("\"{text}\" is no size, as 4G or 512M are"))?;
            let bytes = number * (1_u64 << shift) as f64;
            (bytes < 2_f64.powi(63)).then_some(bytes as u64)
        }
    };
    match bytes {
        None => Err(format!("{text} is more than any volume can have")),
        Some(0) => Err("a volume has at least 1 MiB".into()),
        Some(bytes) => Ok(bytes),
    }
}

/// Where there is no terminal, progress is a line so often.
const LINE_EVERY: Duration = Duration::from_secs(15);

/// Progress of what takes longer than a second: a bar on a terminal, else a line now and then.
pub(crate) struct Progress {
    bar: ProgressBar,
    begun: Instant,
    said: Instant,
    on_terminal: bool,
}

impl Progress {
    /// Nothing is shown yet. `style` is an indicatif template.
    pub(crate) fn new(style: &str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        let begun = Instant::now();
        Self { bar, begun, said: begun, on_terminal: io::stderr().is_terminal() }
    }

    /// So much is done of what.
    pub(crate) fn show(&mut self, what: &str, done: u64, total: u64) {
        if !self.on_terminal {
            if self.said.elapsed() >= LINE_EVERY {
                self.said = Instant::now();
                let seconds = self.begun.elapsed().as_secs();
                // Who does not listen misses nothing but this.
                let percent = done * 100 / total.max(1);
                let _ = writeln!(io::stderr(), "{:>3}:{:02}  {what}, {percent} %", seconds / 60, seconds % 60);
            }
            return;
        }
        if self.begun.elapsed() < Duration::from_secs(1) {
            return;
        }
        // Before it is drawn for the first time, all of it is there.
        self.bar.set_message(what.to_owned());
        self.bar.set_length(total);
        if self.bar.is_hidden() {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.set_position(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mebibytes_need_no_suffix() {
        for (text, mebibytes) in [("64", 64), ("64M", 64), ("2G", 2048), ("4096K", 4)] {
            assert_eq!(parse_mebibytes(text), Ok(mebibytes), "{text}");
        }
        assert!(parse_mebibytes("0").is_err() && parse_mebibytes("4K").is_err() && parse_mebibytes("much").is_err());
    }

    #[test]
    fn times_have_three_digits() {
        let times = [312, 1519, 15_190, 151_900, 1_519_000, 15_190_000, 2_000_000_000].map(time_text);
        assert_eq!(times, ["312 ns", "1.52 µs", "15.2 µs", "152 µs", "1.52 ms", "15 ms", "2.00 s"]);
    }

    #[test]
    fn sizes_are_read_and_written() {
        for (text, bytes, again) in [
            ("4G", 4 << 30, "4 GiB"),
            ("512m", 512 << 20, "512 MiB"),
            ("1.5G", 3 << 29, "1.5 GiB"),
            ("2TiB", 2 << 40, "2 TiB"),
            ("4096", 4096, "4 KiB"),
            ("100 KB", 100 << 10, "100 KiB"),
            ("1000", 1000, "1000 B"),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
            assert_eq!(size_text(bytes), again);
        }
        for bad in ["", "G", "4X", "-4G", "0", "99999999999T", "1e9", "4 4G", "1..5G"] {
            assert!(parse_size(bad).is_err(), "{bad}: {:?}", parse_size(bad));
        }
    }
}
