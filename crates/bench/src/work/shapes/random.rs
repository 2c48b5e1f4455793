//! Numbers that look random and are the same in each run.

/// A linear congruential generator: cheaper than what it chooses between.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    /// A number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((u128::from(self.0) * u128::from(bound)) >> 64) as u64
    }

    /// A number from 0 up to, but not, 1.
    fn unit(&mut self) -> f64 {
        self.below(1 << 53) as f64 / (1_u64 << 53) as f64
    }

    /// A number of a gamma distribution with shape 1.5, which is filebench's for sizes and widths: half the square of a
    /// normal deviate has shape 0.5, an exponential one shape 1, and shapes add up.
    pub(super) fn gamma(&mut self, mean: f64) -> f64 {
        let uniform = 1.0 - self.unit();
        let normal = (-2.0 * uniform.ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos();
        let exponential = -(1.0 - self.unit()).ln();
        (normal * normal / 2.0 + exponential) / 1.5 * mean
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gamma_has_its_mean_and_variance() {
        let mut random = Random::new(1);
        let numbers: Vec<f64> = (0..200_000).map(|_| random.gamma(16384.0)).collect();
        let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
        let variance = numbers.iter().map(|number| (number - mean).powi(2)).sum::<f64>() / numbers.len() as f64;
        assert!((mean / 16384.0 - 1.0).abs() < 0.02, "{mean}");
        // The variance is the square of the mean divided by the shape.
        assert!((variance / (16384.0 * 16384.0 / 1.5) - 1.0).abs() < 0.05, "{variance}");
        assert!(numbers.iter().all(|&number| number >= 0.0));
    }

    #[test]
    fn numbers_stay_below_their_bound_and_reach_all_of_it() {
        let mut random = Random::new(7);
        let mut seen = [0; 10];
        (0..10_000).for_each(|_| seen[random.below(10) as usize] += 1);
        assert!(seen.iter().all(|&count| (800..1200).contains(&count)), "{seen:?}");
    }
}
