//! The modes of a distribution of speeds: whether a run has one speed or jumps between two.
//!
//! A histogram of noise has peaks and valleys too. So a valley counts only if chance hardly makes one
//! as deep: the sorted speeds are cut into `BLOCKS` blocks of as many slices each, and the width of
//! the widest block is taken over that of the narrowest block on either side of it, whichever of these
//! is wider. Where there is one mode, blocks get no wider towards it. The limits are those that a
//! uniform distribution exceeds in one of a hundred samples: of all distributions with one mode it has
//! the deepest valleys (as in J. A. Hartigan, P. M. Hartigan: The Dip Test of Unimodality, Annals of
//! Statistics 13, 1985).

/// Blocks of a sample. More find modes with fewer slices in them, and find less in small samples.
const BLOCKS: usize = 10;

/// Fewest slices in which modes are looked for.
const SLICES_MIN: usize = 5 * BLOCKS + 1;

/// Slices of a block, and the ratio of widths that chance exceeds in 1 % of samples (20,000 to 1000
/// samples of a uniform distribution each).
const LIMITS: [(f64, f64); 10] = [
    (5.0, 6.09),
    (7.0, 4.49),
    (10.0, 3.5),
    (15.0, 2.8),
    (20.0, 2.41),
    (30.0, 2.07),
    (50.0, 1.75),
    (100.0, 1.48),
    (200.0, 1.32),
    (500.0, 1.2),
];

/// However many slices there are, a valley has at most half the density of the modes beside it.
const DEPTH_MIN: f64 = 2.0;

/// Modes that are less than this apart are one: the rounds of a steady machine differ as much.
const APART_MIN: f64 = 1.1;

/// The speed up to which slices are sorted into bins: a little above that of nearly all of them.
/// Single slices are many times as fast where a machine was stopped and went on; they belong into
/// the last bin. 0 if there are no slices.
pub fn slices_max(values: &[f64]) -> f64 {
    /// Part of the slices that may be faster.
    const FASTER: f64 = 0.01;
    /// Above the fastest of the others.
    const MARGIN: f64 = 1.05;
    let mut values: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    #[expect(clippy::cast_sign_loss, reason = "a count is not negative")]
    let faster = (values.len() as f64 * FASTER).ceil() as usize;
    let at = values.len().saturating_sub(1 + faster);
    let most = values.get(at).map_or(0.0, |value| value * MARGIN);
    // Where nearly all slices are empty, the others are all there is.
    if most > 0.0 { most } else { values.last().copied().unwrap_or(0.0) }
}

/// The speeds around which slices gather, ascending; none if there are too few slices to tell.
pub fn modes(values: &[f64]) -> Vec<f64> {
    // A slice without a request is a pause of the machine, and no speed.
    let is_speed = |value: &f64| value.is_finite() && *value > 0.0;
    let mut sorted: Vec<f64> = values.iter().copied().filter(is_speed).collect();
    sorted.sort_by(f64::total_cmp);
    if sorted.len() < SLICES_MIN {
        return Vec::new();
    }
    spread_ties(&mut sorted);
    let mut found = Vec::new();
    split(&sorted, &mut found);
    found
}

/// Slices count whole requests, so that many have the same speed: spreads them evenly over the step
/// between two speeds. Otherwise every number of requests is a mode.
fn spread_ties(sorted: &mut [f64]) {
    let steps = sorted.windows(2).map(|pair| pair[1] - pair[0]).filter(|step| *step > 0.0);
    let step = steps.fold(f64::INFINITY, f64::min);
    if !step.is_finite() {
        return;
    }
    for same in sorted.chunk_by_mut(|a, b| a.total_cmp(b).is_eq()) {
        let count = same.len() as f64;
        for (at, value) in same.iter_mut().enumerate() {
            *value += step * ((at as f64 + 0.5) / count - 0.5);
        }
    }
}

/// Adds the modes of a sorted sample.
fn split(sorted: &[f64], found: &mut Vec<f64>) {
    let parts = valley(sorted).map(|at| sorted.split_at(at));
    match parts.filter(|(low, high)| densest(high) > APART_MIN * densest(low)) {
        Some((low, high)) => {
            split(low, found);
            split(high, found);
        }
        None => found.push(densest(sorted)),
    }
}

/// Where a sorted sample has a valley that is deeper than chance makes it.
fn valley(sorted: &[f64]) -> Option<usize> {
    if sorted.len() < SLICES_MIN {
        return None;
    }
    let len = (sorted.len() - 1) / BLOCKS;
    let widths: Vec<f64> =
        (0..BLOCKS).map(|block| sorted[(block + 1) * len] - sorted[block * len]).collect();
    let least = |widths: &[f64]| widths.iter().copied().fold(f64::INFINITY, f64::min);
    let depth = |block: usize| {
        let beside = least(&widths[..block]).max(least(&widths[block + 1..]));
        if beside > 0.0 { widths[block] / beside } else { 0.0 }
    };
    let (block, depth) =
        (1..BLOCKS - 1).map(|block| (block, depth(block))).max_by(|a, b| a.1.total_cmp(&b.1))?;
    // The widest step of the block.
    let (from, to) = (block * len, (block + 1) * len);
    let step = |at: &usize| sorted[*at] - sorted[*at - 1];
    let at = (from + 1..=to).max_by(|a, b| step(a).total_cmp(&step(b)))?;
    (depth > limit(len).max(DEPTH_MIN)).then_some(at)
}

/// The limit for blocks of `len` slices, between those of the table.
fn limit(len: usize) -> f64 {
    let len = len as f64;
    let above = LIMITS.iter().position(|(of, _)| *of >= len);
    match above {
        Some(0) => LIMITS[0].1,
        Some(at) => {
            let ((a, low), (b, high)) = (LIMITS[at - 1], LIMITS[at]);
            low * (high / low).powf((len / a).ln() / (b / a).ln())
        }
        None => LIMITS[LIMITS.len() - 1].1,
    }
}

/// The middle of the densest tenth of a sorted sample; 0 if it is empty.
fn densest(sorted: &[f64]) -> f64 {
    let len = (sorted.len() / BLOCKS).max(1).min(sorted.len().saturating_sub(1));
    let width = |at: &usize| sorted[*at + len] - sorted[*at];
    let narrowest = (0..sorted.len() - len).min_by(|a, b| width(a).total_cmp(&width(b)));
    narrowest.map_or_else(
        || sorted.first().copied().unwrap_or(0.0),
        |at| f64::midpoint(sorted[at], sorted[at + len]),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_outliers_do_not_hide_two_modes() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut slices: Vec<f64> = Vec::new();
        for middle in [80.0, 120.0] {
            slices.extend((0..200).map(|_| middle * (0.97 + 0.06 * random.f64())));
        }
        slices.push(90_000.0);
        let found = modes(&slices);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!((found[0] - 80.0).abs() < 8.0 && (found[1] - 120.0).abs() < 8.0, "{found:?}");
        assert!(slices_max(&[]).abs() < 1e-9 && slices_max(&[0.0, 0.0, 5.0]) > 4.0);
    }

    #[test]
    fn one_mode_and_two_modes_are_told_apart() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut around = |middle: f64, count: usize| -> Vec<f64> {
            (0..count).map(|_| middle * (0.97 + 0.06 * random.f64())).collect()
        };
        let one = around(100.0, 400);
        assert_eq!(modes(&one).len(), 1, "{:?}", modes(&one));
        let mut two = around(80.0, 200);
        two.extend(around(120.0, 200));
        let found = modes(&two);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!((found[0] - 80.0).abs() < 8.0 && (found[1] - 120.0).abs() < 8.0, "{found:?}");
        assert!(modes(&[]).is_empty() && modes(&[0.0; 100]).is_empty());
    }
    fn normal(random: &mut fastrand::Rng) -> f64 {
        (0..12).map(|_| random.f64()).sum::<f64>() - 6.0
    }

    /// A sample of one mode, of one kind or another.
    fn one_mode(random: &mut fastrand::Rng, kind: usize, count: usize) -> Vec<f64> {
        let mut drift = 0.0;
        let mut value = |at: usize| match kind {
            0 => 100.0 + 60.0 * random.f64(),
            1 => 100.0 + 5.0 * normal(random),
            2 => 100.0 - 10.0 * (1.0 - random.f64()).ln(),
            3 => 100.0 * (0.3 * normal(random)).exp(),
            // Each slice is much like the one before.
            4 => {
                drift = 0.9 * drift + 0.436 * normal(random);
                100.0 + 5.0 * drift
            }
            // Few requests to a slice, so that only some speeds are possible.
            5 => (10.0 + 2.0 * normal(random)).round() * 10.0,
            // Rounds that differ by some percent.
            6 => 100.0 + 4.0 * (at * 5 / count) as f64 / 4.0 + normal(random),
            // Others take the machine: often nothing moves.
            _ if random.u32(..4) == 0 => 0.0,
            _ => 100.0 + 5.0 * normal(random),
        };
        (0..count).map(|at| value(at).max(0.0)).collect()
    }

    #[test]
    fn noise_around_one_speed_is_one_mode() {
        const SAMPLES: u32 = 400;
        let seed = 9;
        let mut random = fastrand::Rng::with_seed(seed);
        for kind in 0..8 {
            for count in [84, 200, 490, 1500] {
                let is_wrong = |_: &u32| {
                    let found = modes(&one_mode(&mut random, kind, count));
                    found.len() != 1 || !(50.0..200.0).contains(&found[0])
                };
                let wrong = (0..SAMPLES).filter(is_wrong).count();
                let part = wrong as f64 / f64::from(SAMPLES);
                assert!(part < 0.05, "seed {seed}: {part} of kind {kind}, {count} slices");
            }
        }
    }

    #[test]
    fn speeds_that_jump_between_two_are_two_modes() {
        const SAMPLES: u32 = 200;
        let seed = 10;
        let mut random = fastrand::Rng::with_seed(seed);
        // As published: 80 and 120; slices, noise, chance to jump, part of the samples that is found.
        for (count, noise, jump, least) in
            [(84, 3.0, 0.5, 0.9), (490, 3.0, 0.05, 0.95), (490, 8.0, 0.5, 0.9)]
        {
            let mut found = 0;
            for _ in 0..SAMPLES {
                let mut is_high = false;
                let sample: Vec<f64> = (0..count)
                    .map(|_| {
                        is_high ^= random.f64() < jump;
                        (if is_high { 120.0 } else { 80.0 }) + noise * normal(&mut random)
                    })
                    .collect();
                let its = modes(&sample);
                let is_there = |at: f64| its.iter().any(|mode| (mode - at).abs() < 12.0);
                found += u32::from(its.len() == 2 && is_there(80.0) && is_there(120.0));
            }
            let part = f64::from(found) / f64::from(SAMPLES);
            assert!(part >= least, "seed {seed}: {part} of {count} slices, noise {noise}");
        }
    }
}
