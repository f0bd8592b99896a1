//! Whether a difference between two contenders is more than chance.
//!
//! Each comparison of a table is a test of "ours is at least as good as it should be" against "ours
//! is worse", on the logarithms of the figures, since noise of a machine is a part of the figure. With
//! [`PAIRED_MIN`] rounds and more it is the paired t-test, which takes out what both contenders of a
//! round met; with fewer, Welch's t-test (Biometrika 34, 1947), which has more degrees of freedom.
//! A table of hundreds of rows has some that are far off by chance alone. So a row is certain only if
//! it is among those that Benjamini and Hochberg's procedure (J. R. Statist. Soc. B 57, 1995) keeps:
//! where nothing differs, at most [`WRONG`] of the tables have any certain row; elsewhere at most that
//! part of the certain rows is wrong, on average.

/// The part of wrong statements that is accepted. Doubled, one table in ten of a machine on which
/// nothing differs claims a difference.
pub const WRONG: f64 = 0.05;

/// Fewest rounds of which anything may be certain.
pub const ROUNDS_MIN: usize = 3;

/// Fewest rounds for a paired test: below, its degrees of freedom are too few to find anything.
pub const PAIRED_MIN: usize = 5;

/// Least standard deviation of a figure, as a part of it: rounds that agree to the last digit by
/// chance, or because a figure was rounded, have no smaller error than others.
const DEVIATION_MIN: f64 = 0.003;

/// The probability of a difference as large as this, or larger, where ours is `least` times the
/// other: small if ours is worse than that. Each pair is a round: ours, the other. `None` if there are
/// too few rounds.
pub fn chance(rounds: &[(f64, f64)], least: f64) -> Option<f64> {
    let usable = |(ours, other): &&(f64, f64)| *ours > 0.0 && *other > 0.0;
    let logs: Vec<(f64, f64)> = rounds
        .iter()
        .filter(usable)
        .map(|(ours, other)| (ours.ln(), (other * least).ln()))
        .filter(|(ours, other)| ours.is_finite() && other.is_finite())
        .collect();
    let count = logs.len();
    if count < ROUNDS_MIN {
        return None;
    }
    let n = count as f64;
    let floor = DEVIATION_MIN * DEVIATION_MIN;
    let (t, freedom) = if count >= PAIRED_MIN {
        let (mean, variance) = moments(logs.iter().map(|(ours, other)| ours - other));
        (-mean / (variance.max(2.0 * floor) / n).sqrt(), n - 1.0)
    } else {
        let (ours, its) = moments(logs.iter().map(|(ours, _)| *ours));
        let (other, others) = moments(logs.iter().map(|(_, other)| *other));
        let (its, others) = (its.max(floor) / n, others.max(floor) / n);
        let both = its + others;
        let freedom = both * both * (n - 1.0) / (its * its + others * others);
        ((other - ours) / both.sqrt(), freedom)
    };
    Some(above(t, freedom))
}

/// Mean and variance of a sample.
fn moments(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let (sum, count) = values.clone().fold((0.0, 0.0), |(sum, count), it| (sum + it, count + 1.0));
    let mean = sum / count;
    let squares: f64 = values.map(|value| (value - mean) * (value - mean)).sum();
    (mean, squares / (count - 1.0_f64).max(1.0))
}

/// The probability that Student's t with these degrees of freedom, at least 1, is above `t`.
///
/// With t = √f tan φ its density is proportional to cos φ to the power of f − 1, which is smooth: two
/// sums after Simpson give the tail, without a gamma function.
fn above(t: f64, freedom: f64) -> f64 {
    let upper = |t: f64| {
        let angle = (t / freedom.sqrt()).atan();
        let quarter = std::f64::consts::FRAC_PI_2;
        let density = |angle: f64| angle.cos().max(0.0).powf(freedom - 1.0);
        0.5 * integral(angle, quarter, density) / integral(0.0, quarter, density)
    };
    if t < 0.0 { 1.0 - upper(-t) } else { upper(t) }
}

fn integral(from: f64, to: f64, of: impl Fn(f64) -> f64) -> f64 {
    const STEPS: u32 = 512;
    let step = (to - from) / f64::from(STEPS);
    let inner = (1..STEPS).map(|at| {
        let weight = if at % 2 == 1 { 4.0 } else { 2.0 };
        weight * of(from + f64::from(at) * step)
    });
    (of(from) + inner.sum::<f64>() + of(to)) * step / 3.0
}

/// The largest probability that is still more than chance among these, all those of a table; 0 if
/// none is.
pub fn threshold(chances: &[f64]) -> f64 {
    let mut sorted = chances.to_vec();
    sorted.sort_by(f64::total_cmp);
    let all = sorted.len() as f64;
    let kept = sorted.iter().enumerate().rev();
    let kept = kept.map(|(at, chance)| (*chance, WRONG * (at as f64 + 1.0) / all));
    kept.into_iter().find(|(chance, limit)| chance <= limit).map_or(0.0, |(chance, _)| chance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tails_of_students_distribution_are_those_of_its_tables() {
        // E. S. Pearson, H. O. Hartley: Biometrika Tables for Statisticians, vol. 1, table 12.
        for (freedom, t, expected) in [
            (1.0, 1.0, 0.25),
            (1.0, 63.657, 0.005),
            (2.0, 4.303, 0.025),
            (4.0, 2.776, 0.025),
            (4.0, 8.610, 0.0005),
            (9.0, 1.833, 0.05),
            (30.0, 2.750, 0.005),
            (120.0, 1.980, 0.025),
        ] {
            let found = above(t, freedom);
            assert!((found / expected - 1.0).abs() < 0.005, "{freedom}, {t}: {found}");
            assert!((above(-t, freedom) + found - 1.0).abs() < 1e-9);
        }
        assert!((above(0.0, 3.5) - 0.5).abs() < 1e-9);
        // Two tests of a real table: between those of the degrees next to it.
        assert!(above(2.0, 2.5) < above(2.0, 2.0) && above(2.0, 2.5) > above(2.0, 3.0));
    }

    #[test]
    fn the_procedure_keeps_all_below_the_last_that_is_below_its_line() {
        // The example of Benjamini and Hochberg 1995: of 15 tests the procedure keeps 4.
        let published = [
            0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262,
            0.5719, 0.6528, 0.7590, 1.0,
        ];
        assert!((threshold(&published) - 0.0095).abs() < 1e-12);
        assert!(threshold(&[]).abs() < 1e-12 && threshold(&[0.2, 0.06]).abs() < 1e-12);
        assert!((threshold(&[0.05]) - 0.05).abs() < 1e-12);
    }

    #[test]
    fn too_few_rounds_and_figures_that_are_none_tell_nothing() {
        assert_eq!(chance(&[(1.0, 100.0), (1.0, 100.0)], 1.0), None);
        assert_eq!(chance(&[(0.0, 1.0), (1.0, f64::INFINITY), (1.0, 1.0), (1.0, 1.0)], 1.0), None);
        let equal = chance(&[(100.0, 100.0); 5], 1.0).expect("enough");
        assert!((equal - 0.5).abs() < 1e-9, "{equal}");
        // Rounded figures that agree have the error of others.
        let rounded = chance(&[(99.8, 100.0); 3], 1.0).expect("enough");
        assert!(rounded > WRONG, "{rounded}");
    }

    /// A figure with noise, of one kind or another.
    fn noisy(random: &mut fastrand::Rng, middle: f64, kind: usize) -> f64 {
        let normal = (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
        match kind {
            0 => middle * (1.0 + 0.02 * normal),
            1 => middle * (0.15 * normal).exp(),
            // Now and then something else takes the machine.
            _ if random.u32(..10) == 0 => middle * 0.5,
            _ => middle * (1.0 + 0.01 * normal),
        }
    }

    /// How many of `tables` tables have a certain row, and the part of the rows that are. Ours is
    /// `times` the other in the first `differing` of `rows` rows.
    fn certain(
        (tables, rows, rounds): (u32, usize, usize),
        (differing, times): (usize, f64),
        random: &mut fastrand::Rng,
    ) -> (u32, f64, u32) {
        let (mut wrong, mut found) = (0, 0);
        for table in 0..tables {
            let chances: Vec<f64> = (0..rows)
                .map(|row| {
                    let times = if row < differing { times } else { 1.0 };
                    let pairs: Vec<_> = (0..rounds)
                        .map(|_| {
                            // What both meet in a round.
                            let mood = 1.0 + 0.1 * random.f64();
                            let kind = table as usize % 3;
                            let ours = noisy(random, 100.0 * mood * times, kind);
                            (ours, noisy(random, 100.0 * mood, kind))
                        })
                        .collect();
                    chance(&pairs, 1.0).expect("enough rounds")
                })
                .collect();
            let limit = threshold(&chances);
            wrong += u32::from(chances[differing..].iter().any(|it| *it <= limit));
            found += chances[..differing].iter().filter(|it| **it <= limit).count() as u32;
        }
        let part = f64::from(found) / (f64::from(tables) * differing as f64).max(1.0);
        (wrong, part, found)
    }

    #[test]
    fn tables_of_equal_contenders_hardly_ever_have_a_certain_row() {
        let seed = 18;
        let mut random = fastrand::Rng::with_seed(seed);
        for (tables, rows, rounds) in [(1500, 40, 5), (1500, 40, 3), (600, 100, 10), (3000, 1, 5)] {
            let (wrong, ..) = certain((tables, rows, rounds), (0, 1.0), &mut random);
            let part = f64::from(wrong) / f64::from(tables);
            // 5 %, and twice the error of a count.
            let limit = WRONG + 2.0 * (WRONG * (1.0 - WRONG) / f64::from(tables)).sqrt();
            assert!(part <= limit, "seed {seed}: {part} of {tables} tables, {rounds} rounds");
        }
    }

    #[test]
    fn real_differences_are_found_and_few_of_the_others_are_called_so() {
        let seed = 19;
        let mut random = fastrand::Rng::with_seed(seed);
        // A tenth of 40 rows is 20 % slower; two of three tables have a noise of 2 % or outliers.
        for (rounds, least) in [(3, 0.4), (5, 0.4), (10, 0.6)] {
            let (_, part, _) = certain((300, 40, rounds), (4, 0.8), &mut random);
            assert!(part > least, "seed {seed}: {part} found in {rounds} rounds");
        }
        let pairs = [(90.0, 100.0), (91.0, 101.0), (89.0, 99.5), (90.5, 100.2), (90.0, 99.8)];
        let one = chance(&pairs, 1.0).expect("enough");
        assert!(one < 1e-4, "{one}");
        // Just above what is required.
        assert!(chance(&pairs, 0.9).expect("enough") > 0.5);
    }
}
