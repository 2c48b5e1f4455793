//! Which of the possible images of a crash point to look at: all if there are few, else those that find most.

/// How many images to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashPolicy {
    /// Crash before every event instead of only before every fence (and at the end of the range). The images before a fence
    /// include those of all events since the fence before, so this matters only where not all of them are looked at.
    pub every_event: bool,
    /// Look at every possible image of a crash point if there are at most so many.
    pub combinations_max: u64,
    /// Otherwise look at none, all, each line alone, all but each line; at up to so many cuts within a line, with nothing and
    /// with everything of the other lines;
    pub cuts_max: u32,
    /// and at so many random ones.
    pub samples: u32,
    /// Where the random ones start: the same seed gives the same images.
    pub seed: u64,
    /// Let each word be old or new by itself, not only each line a prefix: stricter than the processors' promise.
    pub words_in_any_order: bool,
}

impl Default for CrashPolicy {
    /// Up to 256 combinations, 32 cuts, 32 samples.
    fn default() -> CrashPolicy {
        CrashPolicy {
            every_event: false,
            combinations_max: 256,
            cuts_max: 32,
            samples: 32,
            seed: 0,
            words_in_any_order: false,
        }
    }
}

impl CrashPolicy {
    /// Every possible image, however many.
    #[must_use]
    pub fn exhaustive() -> CrashPolicy {
        CrashPolicy { combinations_max: u64::MAX, ..CrashPolicy::default() }
    }

    /// A handful for each crash point: for long workloads.
    #[must_use]
    pub fn sparse(seed: u64) -> CrashPolicy {
        CrashPolicy { combinations_max: 16, cuts_max: 4, samples: 4, seed, ..CrashPolicy::default() }
    }
}

/// A small generator (splitmix64): reproducible, no more is asked of it.
#[derive(Clone, Debug)]
pub(super) struct Random(pub(super) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        value ^ (value >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }
}

/// Calls `visit` with the number of surviving stores for each unit (line or word): `events[unit]` are the indices of its
/// stores. Where `last_complete` is given, that unit is always complete: the other images were looked at before.
pub(super) fn choose(
    events: &[Vec<usize>],
    last_complete: Option<usize>,
    policy: &CrashPolicy,
    random: &mut Random,
    mut visit: impl FnMut(&[usize]),
) {
    let sizes: Vec<usize> = events.iter().map(Vec::len).collect();
    let least = |unit: usize| if last_complete == Some(unit) { sizes[unit] } else { 0 };
    let none: Vec<usize> = (0..sizes.len()).map(least).collect();
    let combinations = (0..sizes.len())
        .try_fold(1u64, |product, unit| product.checked_mul((sizes[unit] - least(unit)) as u64 + 1))
        .unwrap_or(u64::MAX);
    if combinations <= policy.combinations_max {
        let mut choice = none;
        loop {
            visit(&choice);
            // Counts up, the first unit fastest.
            let Some(unit) = (0..sizes.len()).find(|&unit| choice[unit] < sizes[unit]) else { return };
            choice[unit] += 1;
            for (lower, count) in choice.iter_mut().enumerate().take(unit) {
                *count = least(lower);
            }
        }
    }
    visit(&none);
    visit(&sizes);
    for unit in (0..sizes.len()).filter(|&unit| last_complete != Some(unit)) {
        for (base, count) in [(&none, sizes[unit]), (&sizes, 0)] {
            let mut choice = base.clone();
            choice[unit] = count;
            visit(&choice);
        }
    }
    let cut_units = (0..sizes.len()).filter(|&unit| last_complete != Some(unit));
    let mut cuts: Vec<(usize, usize)> =
        cut_units.flat_map(|unit| (1..sizes[unit]).map(move |count| (unit, count))).collect();
    for taken in 0..cuts.len().min(policy.cuts_max as usize) {
        let other = taken + random.below((cuts.len() - taken) as u64) as usize;
        cuts.swap(taken, other);
        let (unit, count) = cuts[taken];
        for base in [&none, &sizes] {
            let mut choice = base.clone();
            choice[unit] = count;
            visit(&choice);
        }
    }
    let mut all_events: Vec<usize> = events.iter().flatten().copied().collect();
    all_events.sort_unstable();
    for _ in 0..policy.samples {
        let style = random.below(4);
        let until = all_events.get(random.below(all_events.len() as u64) as usize).copied().unwrap_or(0);
        let choice: Vec<usize> = (0..sizes.len())
            .map(|unit| {
                let count = match style {
                    // Everything up to a moment, nothing after it.
                    0 => events[unit].partition_point(|&event| event <= until),
                    // Most lines complete or missing.
                    1 => sizes[unit] * random.below(2) as usize,
                    // Nearly all complete.
                    2 if random.below(8) != 0 => sizes[unit],
                    _ => random.below(sizes[unit] as u64 + 1) as usize,
                };
                count.max(least(unit))
            })
            .collect();
        visit(&choice);
    }
}
