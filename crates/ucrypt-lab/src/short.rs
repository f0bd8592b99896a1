//! Where ucrypt falls short: every comparison of adaptive dispatch and of served volumes, and which of
//! the losses are more than chance.

use ucrypt_engine::PolicyKind;

use serde::Serialize;

use crate::analysis::{OF_RAW_MIN, Rounds, Spread, base_of, ratio, ratio_of, speed};
use crate::catalogue::{Cell, Description, Method};
use crate::certainty::{chance, threshold};
use crate::contender::Contender;
use crate::ours::{Build, Server};
use crate::sample::Sample;

/// A cell in which ucrypt is worse than something else.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Shortfall {
    /// The experiment.
    pub experiment: &'static str,
    /// The cell.
    pub cell: String,
    /// Which of ucrypt's.
    pub ours: Contender,
    /// Worse than this.
    pub other: Contender,
    /// What was compared.
    pub what: &'static str,
    /// Throughput over the other's; of latencies, the other's over ours. Less than 1 is worse.
    pub ratio: Spread,
    /// The probability of such a difference, or a larger one, if there is none; none in virtual time
    /// and of fewer than three rounds.
    pub chance: Option<f64>,
    /// Whether it is more than chance, among all comparisons of the run (see
    /// [`certainty`](crate::certainty)).
    pub is_certain: bool,
}

/// The comparisons of a run.
#[derive(Debug, Default)]
pub(crate) struct Short {
    shortfalls: Vec<Shortfall>,
    /// Of all comparisons, those without a loss among them.
    chances: Vec<f64>,
    compared: usize,
    telling: usize,
}

/// What came of the comparisons.
#[derive(Debug)]
pub(crate) struct Found {
    /// First what is certain, the worst first.
    pub(crate) shortfalls: Vec<Shortfall>,
    /// Pairs of contenders that were compared.
    pub(crate) compared: usize,
    /// Those compared often enough to exclude chance.
    pub(crate) telling: usize,
}

/// What is compared: its name, its value of a sample, of which more is better and which not every
/// sample has, and the part of it below which two values are the same: distributions are kept in
/// classes.
type Merit = (&'static str, fn(&Sample) -> Option<f64>, f64);

/// The inverse of a latency, where requests were timed.
fn timed(sample: &Sample, us: f64) -> Option<f64> {
    (sample.has_latencies() && us > 0.0).then(|| 1.0 / us)
}

/// Width of the classes of a distribution: fio has 64 to an octave, ours are narrower.
const CLASS: f64 = 1.0 / 64.0;

/// A mean latency follows from the throughput where clients keep their depth: it is listed where the
/// throughput is not.
const MERITS: [Merit; 3] = [
    (SPEED, |sample| Some(speed(sample)), 0.0),
    (MEAN, |sample| timed(sample, sample.mean_us), 0.0),
    ("p99 latency", |sample| timed(sample, sample.p99()?), CLASS),
];

const SPEED: &str = "speed";
const MEAN: &str = "mean latency";

/// The least ratio that adaptive dispatch or a served volume of ours should have; `None` if the two are
/// not compared. Adaptive dispatch is measured by the base and by every fixed policy in its place, a
/// served volume by its image, by the programs of others and by another build, too.
fn least(ours: Contender, other: Contender, method: Method) -> Option<f64> {
    use Contender::{Ours, Ucrypt, UcryptLoopExt4};
    use PolicyKind::{Adaptive, Fixed};

    let is_same_place = match (ours, other) {
        (UcryptLoopExt4, _) => return (other == base_of(ours, method)).then_some(OF_RAW_MIN),
        (Ucrypt(Adaptive), _) if other.is_peer() => return None,
        (Ucrypt(Adaptive), Ucrypt(Fixed(_))) => true,
        (Ucrypt(Adaptive), _) => false,
        (Ours(server), Ours(another)) if server.is_usual() => {
            let is_before = another == Server { build: Build::Before, ..server };
            is_before || matches!(another.policy, Fixed(_)) && server.is_like(&another)
        }
        (Ours(server), _) => {
            if !server.is_usual() {
                return None;
            }
            false
        }
        _ => return None,
    };
    if other == base_of(ours, method) {
        return Some(OF_RAW_MIN);
    }
    (is_same_place || other.is_peer()).then_some(1.0)
}

impl Short {
    /// Compares the contenders of a cell. `is_virtual`: it was measured in virtual time, which gives the same figure each
    /// time.
    pub(crate) fn add(
        &mut self,
        description: &'static Description,
        cell: &Cell,
        all: &[(Contender, Rounds<'_>)],
        is_virtual: bool,
    ) {
        let pairs = all.iter().flat_map(|ours| all.iter().map(move |other| (ours, other)));
        for ((ours, rounds), (other, others)) in pairs {
            let Some(least) = least(*ours, *other, description.method) else { continue };
            let Some(speed) = ratio(rounds, others) else { continue };
            let is_slower = speed.median < least;
            let mut is_telling = is_virtual;
            for (what, merit, class) in MERITS {
                let Some(ratio) = ratio_of(rounds, others, merit) else { continue };
                let values: Vec<_> = rounds
                    .iter()
                    .filter_map(|(round, sample)| {
                        Some((merit(sample)?, merit(others.get(round)?)?))
                    })
                    .collect();
                let chance = chance(&values, least * (1.0 - class)).filter(|_| !is_virtual);
                self.chances.extend(chance);
                is_telling |= chance.is_some();
                // Within a class, nobody knows which of the two is less.
                if ratio.median >= least * (1.0 - class) || (what == MEAN && is_slower) {
                    continue;
                }
                self.shortfalls.push(Shortfall {
                    experiment: description.name,
                    cell: cell.name.clone(),
                    ours: *ours,
                    other: *other,
                    what,
                    ratio,
                    chance,
                    is_certain: is_virtual,
                });
            }
            self.compared += 1;
            self.telling += usize::from(is_telling);
        }
    }

    /// What is certain, now that all comparisons are known.
    pub(crate) fn found(self) -> Found {
        let Self { mut shortfalls, chances, compared, telling } = self;
        let limit = threshold(&chances);
        for short in &mut shortfalls {
            short.is_certain |= short.chance.is_some_and(|chance| chance <= limit);
        }
        shortfalls.sort_by(|a, b| {
            let certain = b.is_certain.cmp(&a.is_certain);
            certain.then(a.ratio.median.total_cmp(&b.ratio.median))
        });
        Found { shortfalls, compared, telling }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{Scale, by_name};

    #[test]
    fn what_is_certain_comes_first_however_small_it_is_and_whatever_it_is_measured_by() {
        let description = by_name("workqueues").expect("an experiment");
        let cell = description.cells(Scale::Quick).remove(0);
        let of = |name: &str, speeds: [f64; 5]| {
            let sample = |mb_s| Sample { mb_s, seconds: 1.0, ..Sample::default() };
            (name.parse::<Contender>().expect("a contender"), speeds.map(sample))
        };
        let all = [
            of("raw", [104.0, 104.5, 105.0, 104.2, 104.8]),
            of("ucrypt", [100.0, 100.2, 99.8, 100.1, 99.9]),
            of("ucrypt:inline", [101.0, 101.1, 100.9, 101.3, 100.8]),
            of("ucrypt:unbound", [300.0, 40.0, 310.0, 50.0, 290.0]),
            of("ucrypt:merge", [98.0, 97.0, 98.5, 98.2, 97.9]),
            of("file", [100.0; 5]),
            of("ucrypt-fuse", [80.0, 80.5, 81.0, 79.9, 80.2]),
            of("nbdkit", [82.0, 82.4, 83.0, 81.7, 82.1]),
        ];
        let rounds: Vec<_> = all
            .iter()
            .map(|(of, samples)| (*of, (0..).zip(samples).collect::<Rounds<'_>>()))
            .collect();
        let mut short = Short::default();
        short.add(description, &cell, &rounds, false);
        let found = short.found().shortfalls;
        let rows: Vec<_> = found
            .iter()
            .map(|it| (it.ours.to_string(), it.other.to_string(), it.is_certain))
            .collect();
        let row = |ours: &str, other: &str, certain| (ours.to_owned(), other.to_owned(), certain);
        let expected = [
            row("ucrypt-fuse", "file", true),
            row("ucrypt", "raw", true),
            row("ucrypt-fuse", "nbdkit", true),
            row("ucrypt", "ucrypt:inline", true),
            row("ucrypt", "ucrypt:unbound", false),
        ];
        assert_eq!(rows, expected, "{found:?}");
    }

    #[test]
    fn served_volumes_are_compared_with_fixed_policies_and_latencies_count() {
        let named = |name: &str| name.parse::<Contender>().expect("a contender");
        let of = |ours, other| least(named(ours), named(other), Method::Load);
        for (ours, other, expected) in [
            ("ucrypt", "raw", Some(OF_RAW_MIN)),
            ("ucrypt", "ucrypt:inline", Some(1.0)),
            ("ucrypt", "ucrypt", None),
            ("ucrypt", "nbdkit", None),
            ("ucrypt-loop-ext4", "loop-ext4", Some(OF_RAW_MIN)),
            ("ucrypt-loop-ext4", "nbdkit", None),
            ("ucrypt-loop", "loop-ext4", None),
            ("ucrypt-fuse", "file", Some(OF_RAW_MIN)),
            ("ucrypt-fuse", "ucrypt-fuse:inline", Some(1.0)),
            ("ucrypt-nbd", "ucrypt-nbd:unbound", Some(1.0)),
            ("ucrypt-loop", "ucrypt-loop:merge", Some(1.0)),
            ("ucrypt-fuse", "ucrypt-nbd:inline", None),
            ("ucrypt-nbd", "dm-crypt", Some(1.0)),
            ("ucrypt-nbd:inline", "ucrypt-nbd:unbound", None),
            ("raw", "ucrypt", None),
        ] {
            assert_eq!(of(ours, other), expected, "{ours}, {other}");
        }
        let cell = by_name("workqueues").expect("an experiment").cells(Scale::Quick).remove(0);
        let sample = |mb_s, mean_us, p99_us| Sample {
            mb_s,
            mean_us,
            p99_us,
            requests: 300,
            ..Sample::default()
        };
        let listed = |ours: Sample, other: Sample| {
            let rounds = |sample| (0..3).map(|round| (round, sample)).collect();
            let all = [(named("ucrypt"), rounds(&ours)), (named("ucrypt:inline"), rounds(&other))];
            let mut short = Short::default();
            short.add(by_name("workqueues").expect("an experiment"), &cell, &all, false);
            let found = short.found();
            assert_eq!((found.compared, found.telling), (1, 1));
            found.shortfalls.into_iter().map(|it| (it.what, it.ratio.median)).collect::<Vec<_>>()
        };
        let base = sample(100.0, 10.0, 20.0);
        assert_eq!(listed(base.clone(), base.clone()), []);
        assert_eq!(listed(sample(100.0, 10.0, 40.0), base.clone()), [("p99 latency", 0.5)]);
        assert_eq!(listed(sample(100.0, 20.0, 20.0), base.clone()), [("mean latency", 0.5)]);
        // A distribution does not tell two values of one class apart, nor of two that touch.
        assert_eq!(listed(sample(100.0, 10.0, 20.2), base.clone()), []);
        assert_eq!(
            listed(sample(100.0, 10.1, 20.0), base.clone()).len(),
            1,
            "a mean has no classes"
        );
        // The mean says the same as the speed.
        assert_eq!(listed(sample(50.0, 20.0, 20.0), base.clone()), [("speed", 0.5)]);
        assert_eq!(listed(sample(100.0, 0.0, 0.0), base.clone()), []);
        // One of the two is the longest request or two.
        assert_eq!(listed(Sample { requests: 299, ..sample(100.0, 10.0, 40.0) }, base), []);
    }
}
