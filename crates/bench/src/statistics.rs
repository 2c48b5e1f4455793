//! From rounds to one figure with its spread, and from histograms to quantiles.

use crate::model::{Latency, Spread};
use std::collections::BTreeMap;

/// The middle of some numbers; 0 of none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        count if count % 2 == 1 => sorted[count / 2],
        count => f64::midpoint(sorted[count / 2 - 1], sorted[count / 2]),
    }
}

/// Median and median absolute deviation from it.
pub(crate) fn spread(values: &[f64]) -> Spread {
    let middle = median(values);
    let distances: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
    Spread { median: middle, deviation: median(&distances), rounds: values.len() as u32 }
}

/// Quantiles of the times of all rounds together. One that so few samples cannot tell is left out.
pub(crate) fn latency(histograms: &[&[(u64, u64)]]) -> Option<Latency> {
    let mut counts = BTreeMap::new();
    for (value, count) in histograms.iter().copied().flatten() {
        *counts.entry(*value).or_insert(0_u64) += count;
    }
    let samples: u64 = counts.values().sum();
    if samples == 0 {
        return None;
    }
    let quantile = |quantile: f64| {
        // At least one sample is expected beyond it.
        if (samples as f64) * (1.0 - quantile) < 1.0 {
            return None;
        }
        let rank = (samples as f64 * quantile).ceil() as u64;
        let mut seen = 0;
        counts
            .iter()
            .find(|(_, count)| {
                seen += **count;
                seen >= rank
            })
            .map(|(value, _)| *value as f64)
    };
    let sum: f64 = counts.iter().map(|(value, count)| *value as f64 * *count as f64).sum();
    Some(Latency {
        samples,
        mean_ns: sum / samples as f64,
        p50_ns: quantile(0.5),
        p99_ns: quantile(0.99),
        p9999_ns: quantile(0.9999),
        max_ns: counts.last_key_value().map_or(0.0, |(value, _)| *value as f64),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_deviations() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        let one = spread(&[1.0, 2.0, 3.0, 4.0, 100.0]);
        assert_eq!((one.median, one.deviation, one.rounds), (3.0, 1.0, 5));
    }

    #[test]
    fn quantiles_need_samples() {
        assert!(latency(&[&[]]).is_none());
        let few = latency(&[&[(10, 50)], &[(20, 49), (1000, 1)]]).unwrap();
        assert_eq!((few.samples, few.p50_ns, few.p99_ns, few.p9999_ns), (100, Some(10.0), Some(20.0), None));
        assert_eq!(few.max_ns, 1000.0);
        let many = latency(&[&[(10, 99_998), (500, 12)]]).unwrap();
        assert_eq!((many.p99_ns, many.p9999_ns), (Some(10.0), Some(500.0)));
    }
}
