//! Logarithmic axes: which values are labelled, and how.

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use std::ops::Range;

/// What an axis is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Steps {
    /// Powers of ten, and twice and five times these where there is room.
    Ten,
    /// Powers of two.
    Two,
}

/// A logarithmic axis.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    range: Range<f64>,
    steps: Steps,
}

impl Axis {
    /// Both ends are greater than 0.
    pub(super) fn new(range: Range<f64>, steps: Steps) -> Self {
        Self { range, steps }
    }

    /// Values to label, so many at most: those of the finest division that fits.
    pub(super) fn labels(&self, most: usize) -> Vec<f64> {
        let (low, high) = (self.range.start, self.range.end);
        let within = |of: &dyn Fn(i32) -> Vec<f64>, base: f64, every: i32| -> Vec<f64> {
            let first = (low.ln() / base.ln()).floor() as i32 - 1;
            let last = (high.ln() / base.ln()).ceil() as i32 + 1;
            let powers = (first..=last).filter(|power| power.rem_euclid(every) == 0);
            powers.flat_map(of).filter(|value| (low..=high).contains(value)).collect()
        };
        let base = if self.steps == Steps::Ten { 10.0_f64 } else { 2.0 };
        let power = |power: i32| vec![base.powi(power)];
        let fine = |power: i32| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(power)).to_vec();
        let finest = if self.steps == Steps::Ten { within(&fine, base, 1) } else { within(&power, base, 1) };
        let coarser = (1..64).map(|every| within(&power, base, every));
        std::iter::once(finest).chain(coarser).find(|values| values.len() <= most.max(2)).unwrap_or_default()
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = (value / self.range.start).ln() / (self.range.end / self.range.start).ln();
        limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        self.labels(hint.bold_points())
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Axis {
    fn format(value: &f64) -> String {
        value.to_string()
    }
}

/// A label of an axis: its digits that are no noughts behind the point, and its unit.
pub(super) fn short(text: &str) -> String {
    let (digits, unit) = text.split_once(' ').map_or((text, ""), |(digits, unit)| (digits, unit));
    let digits = if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits };
    // A thousand is 1 k, though elsewhere four digits are written out.
    match (digits.strip_suffix("000"), unit) {
        (Some(thousands), "") if !thousands.is_empty() => format!("{thousands} k"),
        (_, "") => digits.to_owned(),
        _ => format!("{digits} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_as_many_as_fit() {
        let labels = |range, steps, most| Axis::new(range, steps).labels(most);
        assert_eq!(labels(40.0..4000.0, Steps::Ten, 9), [50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0]);
        assert_eq!(labels(40.0..4000.0, Steps::Ten, 4), [100.0, 1000.0]);
        assert_eq!(labels(0.9..70.0, Steps::Two, 7), [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]);
        assert_eq!(labels(900.0..1.1e6, Steps::Two, 6), [1024.0, 4096.0, 16384.0, 65536.0, 262_144.0, 1_048_576.0]);
        assert_eq!(labels(0.9..1e9, Steps::Ten, 5), [1.0, 1e2, 1e4, 1e6, 1e8]);
    }

    #[test]
    fn values_are_where_they_belong() {
        let axis = Axis::new(1.0..100.0, Steps::Ten);
        assert_eq!([1.0, 10.0, 100.0].map(|value| axis.map(&value, (0, 200))), [0, 100, 200]);
        assert_eq!(axis.map(&10.0, (300, 100)), 200);
    }

    #[test]
    fn labels_have_no_noughts_behind_the_point() {
        let texts = ["1.00 µs", "10.0 k", "1000", "500", "2.50 M", "0.50", "2000"].map(short);
        assert_eq!(texts, ["1 µs", "10 k", "1 k", "500", "2.5 M", "0.5", "2 k"]);
    }
}
