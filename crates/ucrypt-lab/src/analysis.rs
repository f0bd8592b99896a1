//! From measurements to figures: medians, spreads, ratios and verdicts.
//!
//! A ratio is taken round by round, because the rounds are interleaved and the machine's mood is
//! the same within one; its median is shown with its quartiles.

use std::collections::BTreeMap;

use serde::Serialize;
use ucrypt_engine::PolicyKind;

use crate::beside::{Beside, beside};
use crate::catalogue::{Cell, Description, Medium, Method, by_name};
use crate::contender::Contender;
use crate::ours::{Image, Server, Way};
use crate::pressure::Pressure;
use crate::runner::{Extent, extent};
use crate::sample::{Device, Order, Processor, Sample};
use crate::short::{Found, Short, Shortfall};
use crate::sim::VIRTUAL_TIME;
use crate::store::{About, Kept, Record};
use crate::target::Target;
use crate::verdict;

/// A median and its quartiles.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Spread {
    /// First quartile.
    pub low: f64,
    /// Median.
    pub median: f64,
    /// Third quartile.
    pub high: f64,
    /// Values.
    pub count: usize,
}

/// A spread above this part of its median is too wide to trust the median.
pub const WIDE: f64 = 0.15;

/// Adaptive dispatch falls short of raw below this ratio.
pub const OF_RAW_MIN: f64 = 0.97;

impl Spread {
    /// Of these values; `None` if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let last = values.len().checked_sub(1)?;
        let at = |share: f64| {
            let place = share * last as f64;
            #[expect(clippy::cast_sign_loss, reason = "a share is not negative")]
            let below = place.floor() as usize;
            let above = (below + 1).min(last);
            values[below] + (values[above] - values[below]) * (place - below as f64)
        };
        Some(Self { low: at(0.25), median: at(0.5), high: at(0.75), count: values.len() })
    }

    /// Whether the quartiles are too far apart, or there is only one value.
    pub fn is_wide(&self) -> bool {
        self.count < 2 || self.high - self.low > WIDE * self.median.abs()
    }
}

/// A contender in a cell.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// The contender.
    pub contender: Contender,
    /// MB/s.
    pub mb_s: Spread,
    /// Mean latency, µs, where requests were timed.
    pub mean_us: Option<Spread>,
    /// 99th percentile, µs, where enough requests were timed.
    pub p99_us: Option<Spread>,
    /// Requests under way by Little's law, where they are far from those that the load keeps: then
    /// speed or latency is wrong.
    pub in_flight: Option<f64>,
    /// Throughput over that of the contender's base, if that was measured; for file systems, the
    /// base's run time over its own.
    pub ratio: Option<Spread>,
    /// As `ratio`, over the same device of ours without a cipher; only for file systems.
    pub of_none: Option<Spread>,
    /// Mean latency less that of the base, µs.
    pub added_us: Option<Spread>,
    /// Seconds measured, in each round.
    pub seconds: Spread,
    /// Seconds measured in all rounds.
    pub seconds_all: f64,
    /// Rounds that the host or other processes disturbed.
    pub disturbed: usize,
    /// Largest share of the processors' time that the host took in a round.
    pub steal_max: f64,
    /// Largest share that other processes took in a round.
    pub others_max: f64,
    /// Of the disturbed rounds, the longest that tasks waited.
    pub pressure_max: Pressure,
    /// What made the load.
    pub load: String,
    /// Processor time of a request, µs, of load, server and all else together.
    pub processor_us: Option<Spread>,
    /// The medians of its parts.
    pub processor: Option<Processor>,
    /// Quantiles, the median of each over the rounds.
    pub quantiles: Vec<(f64, f64)>,
    /// Slices of all rounds, MB/s.
    pub slices_mb_s: Vec<f64>,
    /// Writes that reached the backend, all rounds.
    pub order: Option<Order>,
    /// What the device did, in the round with the median run time.
    pub device: Option<Device>,
    /// What the device below dm-crypt did, in the same round.
    pub below: Option<Device>,
}

/// A cell with all its contenders.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CellFigures {
    /// The cell, with what was published about it.
    pub cell: Cell,
    /// In the order of the run.
    pub figures: Vec<Figure>,
}

/// One experiment.
#[derive(Debug, Clone, Serialize)]
pub struct Experiment {
    /// Its name.
    pub name: &'static str,
    #[serde(skip)]
    /// Its description.
    pub description: &'static Description,
    /// What it ran on.
    pub on: String,
    /// Its cells, in their order.
    pub cells: Vec<CellFigures>,
    /// What was published about them, and the same here.
    pub beside: Vec<Beside>,
    /// What was left out or failed, and why.
    pub notes: Vec<String>,
    /// In one sentence or two.
    pub verdict: String,
}

/// A whole run.
#[derive(Debug, Clone, Serialize)]
pub struct Analysis {
    /// What was asked for, and where.
    pub about: About,
    /// The experiments that have results.
    pub experiments: Vec<Experiment>,
    /// Where ucrypt falls short: first what is certain, the worst first.
    pub shortfalls: Vec<Shortfall>,
    /// Pairs of contenders that were compared for that.
    pub compared: usize,
    /// Those of them that were compared often enough to exclude chance.
    pub telling: usize,
    /// What is not in the figures although it was to be, in sentences.
    pub gaps: Vec<String>,
}

/// The value that ratios are taken of: throughput, or for file systems the inverse of the run time.
pub(crate) fn speed(sample: &Sample) -> f64 {
    if sample.device.is_some() { 1.0 / sample.seconds.max(1e-9) } else { sample.mb_s }
}

/// The samples of a contender in a cell, by round.
pub(crate) type Rounds<'a> = BTreeMap<u32, &'a Sample>;

/// The ratio of two contenders' speeds, round by round.
pub(crate) fn ratio(ours: &Rounds<'_>, other: &Rounds<'_>) -> Option<Spread> {
    ratio_of(ours, other, |sample| Some(speed(sample)))
}

/// The ratio of two contenders, round by round.
pub(crate) fn ratio_of(
    ours: &Rounds<'_>,
    other: &Rounds<'_>,
    merit: fn(&Sample) -> Option<f64>,
) -> Option<Spread> {
    Spread::of(ours.iter().filter_map(|(round, sample)| {
        let base = merit(other.get(round)?)?;
        (base > 0.0).then(|| Some(merit(sample)? / base))?
    }))
}

/// The contender that a figure is compared with.
pub(crate) fn base_of(contender: Contender, method: Method) -> Contender {
    match (method, contender) {
        (Method::Tree, _) => Contender::Loop,
        (_, contender) => contender.base(),
    }
}

impl Experiment {
    /// How much was measured, and how long, as a sentence.
    pub fn measured(&self) -> String {
        let figures = || self.cells.iter().flat_map(|cell| &cell.figures);
        let count: usize = figures().map(|it| it.seconds.count).sum();
        let seconds: f64 = figures().map(|it| it.seconds_all).sum();
        let is_virtual = figures().any(|it| it.load == VIRTUAL_TIME);
        let of = if is_virtual { " of virtual time" } else { "" };
        format!("{count} measurements, {}{of} in all.", crate::text::seconds(seconds))
    }
}

impl Analysis {
    /// Measurements that were disturbed, and all measurements.
    pub fn disturbed(&self) -> (usize, usize) {
        let figures = self.experiments.iter().flat_map(|it| &it.cells).flat_map(|it| &it.figures);
        figures.fold((0, 0), |(disturbed, all), figure| {
            (disturbed + figure.disturbed, all + figure.seconds.count)
        })
    }

    /// The warning about a run that was disturbed, or has gaps; `None` if hardly any measurement was, and it
    /// has none.
    pub fn warning(&self) -> Option<String> {
        let mut sentences = self.gaps.clone();
        let (disturbed, all) = self.disturbed();
        if disturbed * 10 > all {
            sentences.push(format!(
                "{disturbed} of {all} measurements were disturbed by the host or by other processes: \
                 repeat the run on a quiet machine before you rely on it."
            ));
        }
        (!sentences.is_empty()).then(|| sentences.join(" "))
    }

    /// Of what is kept of a run.
    pub fn of(kept: Kept) -> Self {
        let Kept { about, records, unknown } = kept;
        let mut analysis = Self::new(about, &records);
        if unknown > 0 {
            analysis.gaps.push(format!(
                "{unknown} lines of the results are no measurements that this version knows, and are \
                 left out: use the version that made them."
            ));
        }
        analysis
    }

    /// Of the records of a run.
    pub fn new(about: About, records: &[Record]) -> Self {
        let gaps = gaps(&about, records);
        let mut experiments = Vec::new();
        let mut short = Short::default();
        for name in &about.settings.experiments {
            let Some(description) = by_name(name) else { continue };
            let of_it: Vec<&Record> =
                records.iter().filter(|record| record.experiment == *name).collect();
            if let Some(experiment) = one(description, &about, &of_it, &mut short) {
                experiments.push(experiment);
            }
        }
        let Found { shortfalls, compared, telling } = short.found();
        Self { about, experiments, shortfalls, compared, telling, gaps }
    }

    /// Why the list of shortfalls is empty; `None` if it is not.
    pub fn none_short(&self) -> Option<String> {
        if !self.shortfalls.is_empty() {
            return None;
        }
        Some(if self.compared == 0 {
            "Unknown: nothing was compared in this run. Adaptive dispatch is compared with raw and \
             with fixed policies, a served volume also with its image and with programs of others."
                .into()
        } else {
            let chance = self.chance().map_or_else(String::new, |chance| format!(" {chance}"));
            format!("Nowhere (pairs compared: {}).{chance}", self.compared)
        })
    }

    /// That pairs were compared too seldom to exclude chance; `None` if none was.
    pub fn chance(&self) -> Option<String> {
        let seldom = self.compared.saturating_sub(self.telling);
        (seldom > 0).then(|| {
            format!(
                "{seldom} of {} pairs were compared in fewer than three rounds, of which nothing is \
                 certain.",
                self.compared
            )
        })
    }
}

/// What is not in the figures of a run although it was to be.
fn gaps(about: &About, records: &[Record]) -> Vec<String> {
    let mut gaps = Vec::new();
    let unknown: Vec<_> =
        about.settings.experiments.iter().filter(|name| by_name(name).is_none()).collect();
    if !unknown.is_empty() {
        let names = unknown.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
        gaps.push(format!(
            "This version knows no experiment called {names}, which is left out: use the version that \
             made the run."
        ));
    }
    let Extent { planned, missing, failed, untouched } = extent(about, records);
    if missing > 0 {
        gaps.push(format!(
            "{missing} of {planned} measurements were not made: the run was interrupted, or goes on."
        ));
    }
    if !untouched.is_empty() {
        gaps.push(format!("Nothing was measured of: {}.", untouched.join(", ")));
    }
    if failed > 0 {
        gaps.push(format!(
            "In {failed} cells a contender has failed, and is compared with nothing there: see the notes."
        ));
    }
    gaps
}

fn one(
    description: &'static Description,
    about: &About,
    records: &[&Record],
    found: &mut Short,
) -> Option<Experiment> {
    let mut cells = Vec::new();
    for cell in description.cells(about.settings.scale) {
        let mut by_contender: Vec<(Contender, Rounds<'_>)> = Vec::new();
        for record in records.iter().filter(|record| record.cell == cell.name) {
            let Some(sample) = &record.sample else { continue };
            let known = by_contender.iter().position(|(of, _)| *of == record.contender);
            let at = known.unwrap_or_else(|| {
                by_contender.push((record.contender, Rounds::new()));
                by_contender.len() - 1
            });
            by_contender[at].1.insert(record.round, sample);
        }
        if by_contender.is_empty() {
            continue;
        }
        // The rounds begin with another contender each.
        by_contender.sort_by_key(|(contender, _)| place(*contender));
        let of = |contender| {
            by_contender.iter().find(|(it, _)| *it == contender).map(|(_, rounds)| rounds)
        };
        let figures = by_contender.iter().filter_map(|(contender, rounds)| {
            let base = of(base_of(*contender, description.method));
            let figure = figure(*contender, rounds, base)?;
            let none = of(Contender::Ours(Server::new(Way::Loop).plain()))
                .filter(|_| description.method == Method::Tree);
            let of_none = none.and_then(|none| ratio(rounds, none));
            let in_flight = in_flight(&cell, rounds).filter(|_| description.has_target());
            Some(Figure { in_flight, of_none, ..figure })
        });
        let is_virtual = description.method == Method::Drives || about.simulated.is_some();
        found.add(description, &cell, &by_contender, is_virtual);
        cells.push(CellFigures { figures: figures.collect(), cell });
    }
    let mut notes: Vec<String> = about
        .left_out
        .iter()
        .filter(|left| left.experiment == description.name)
        .map(|left| format!("{} is left out: {}", left.what, left.why))
        .collect();
    for record in records {
        if let Some(error) = &record.error {
            notes.push(format!("{} failed at {}: {error}", record.contender, record.cell));
        }
    }
    if cells.is_empty() && notes.is_empty() {
        return None;
    }
    notes.extend(without_p99(&cells));
    let verdict = verdict::of(description, &cells);
    let on = match description.method {
        _ if about.simulated.is_some() => {
            let machine = about.simulated.as_deref().unwrap_or_default();
            format!("virtual time, on a model of {machine}")
        }
        Method::Tree => {
            format!("loop devices over images in {}", about.settings.tree_dir().display())
        }
        Method::Drives => "virtual time, on a model of a machine".into(),
        _ => about.settings.on_for(description).to_string(),
    };
    let beside = beside(&cells, description.method, medium(about, description));
    Some(Experiment { name: description.name, description, on, cells, beside, notes, verdict })
}

/// What the target of an experiment has its data on.
fn medium(about: &About, description: &Description) -> Medium {
    match about.settings.on_for(description) {
        Target::Zero => Medium::Zero,
        Target::Model(_) => Medium::Disk,
        _ if about.storage.direct || about.storage.cached => Medium::Disk,
        _ => Medium::Memory,
    }
}

/// How far requests under way by Little's law may be from those that the load keeps, as a part of
/// them. A client that is late with its next request keeps some fewer.
const IN_FLIGHT_MAX: f64 = 0.25;

/// Requests under way by Little's law, median of the rounds, if they are much fewer or more than the
/// load keeps.
fn in_flight(cell: &Cell, rounds: &Rounds<'_>) -> Option<f64> {
    let kept = f64::from(cell.depth.max(1)) * f64::from(cell.jobs.max(1));
    let seen = rounds.values().filter_map(|sample| {
        // Requests that were begun before the measurement, or ended after it, count as a whole or not
        // at all.
        let edges = 2.0 * kept / sample.requests.max(1) as f64;
        Some((sample.in_flight(cell.block_bytes)?, edges))
    });
    let (seen, edges): (Vec<f64>, Vec<f64>) = seen.unzip();
    let (seen, edges) = (Spread::of(seen)?.median, Spread::of(edges)?.median);
    ((seen / kept - 1.0).abs() > IN_FLIGHT_MAX + edges).then_some(seen)
}

/// That figures have no p99, and why; `None` if all have one that were timed.
fn without_p99(cells: &[CellFigures]) -> Option<String> {
    let lacks = |cell: &&CellFigures| {
        cell.figures.iter().any(|it| it.mean_us.is_some() && it.p99_us.is_none())
    };
    let names: Vec<_> = cells.iter().filter(lacks).map(|cell| cell.cell.name.as_str()).collect();
    (!names.is_empty()).then(|| {
        format!(
            "p99 is absent where fewer than 300 requests were timed, of which it would be the longest two \
             or three: some figures of {}. A longer --time gives it.",
            names.join(", ")
        )
    })
}

/// Ceilings first, then ucrypt, then others.
fn place(contender: Contender) -> (u8, String) {
    let group = match contender {
        Contender::Memory => 0,
        Contender::Raw => 1,
        Contender::Null => 2,
        Contender::Ucrypt(PolicyKind::Adaptive) => 3,
        Contender::Ucrypt(_) => 4,
        Contender::File => 5,
        Contender::Loop | Contender::Copy(_) => 6,
        Contender::Ours(server) if server.image == Image::Plain => 7,
        Contender::Ours(_) => 8,
        _ => 9,
    };
    (group, contender.to_string())
}

/// Medians over the rounds of the quantiles that they tell, as of all other figures.
fn quantiles(rounds: &Rounds<'_>) -> Vec<(f64, f64)> {
    let mut all: Vec<(f64, Vec<f64>)> = Vec::new();
    for (share, us) in rounds.values().flat_map(|sample| sample.known_quantiles()) {
        match all.iter_mut().find(|(known, _)| (known - share).abs() < 1e-9) {
            Some((_, values)) => values.push(us),
            None => all.push((share, vec![us])),
        }
    }
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let median = |(share, values)| Some((share, Spread::of(values)?.median));
    all.into_iter().filter_map(median).collect()
}

fn figure(contender: Contender, rounds: &Rounds<'_>, base: Option<&Rounds<'_>>) -> Option<Figure> {
    let spread = |of: fn(&Sample) -> f64| Spread::of(rounds.values().map(|sample| of(sample)));
    let latency = |of: fn(&Sample) -> Option<f64>| {
        Spread::of(rounds.values().filter_map(|sample| of(sample)))
    };
    let most = |of: fn(&Sample) -> f64| rounds.values().map(|it| of(it)).fold(0.0, f64::max);
    let mb_s = spread(|sample| sample.mb_s)?;
    // The round whose figure is shown: of file systems the run time.
    let shown = |sample: &Sample| match sample.device {
        Some(_) => sample.seconds,
        None => sample.mb_s,
    };
    let median = Spread::of(rounds.values().map(|sample| shown(sample)))?.median;
    let distance = |sample: &Sample| (shown(sample) - median).abs();
    let middle = rounds.values().min_by(|a, b| distance(a).total_cmp(&distance(b)))?;
    let added = base.and_then(|base| {
        Spread::of(rounds.iter().filter_map(|(round, sample)| {
            let base = base.get(round)?;
            let timed = sample.has_latencies() && base.has_latencies();
            timed.then_some(sample.mean_us - base.mean_us)
        }))
    });
    let processors = || rounds.values().filter_map(|sample| sample.processor);
    let part =
        |of: fn(Processor) -> f64| Spread::of(processors().map(of)).map_or(0.0, |it| it.median);
    let orders = rounds.values().filter_map(|sample| sample.order);
    let order = orders.reduce(|a, b| Order {
        writes: a.writes.saturating_add(b.writes),
        bytes: a.bytes.saturating_add(b.bytes),
        continued: a.continued.saturating_add(b.continued),
    });
    Some(Figure {
        contender,
        mb_s,
        mean_us: latency(|sample| sample.has_latencies().then_some(sample.mean_us)),
        p99_us: latency(Sample::p99),
        in_flight: None,
        ratio: base.and_then(|base| ratio(rounds, base)),
        processor_us: Spread::of(processors().map(|it| it.all_us())),
        processor: Spread::of(processors().map(|it| it.client_us)).map(|client| Processor {
            client_us: client.median,
            server_us: part(|it| it.server_us),
            rest_us: part(|it| it.rest_us),
        }),
        of_none: None,
        added_us: added,
        seconds: spread(|sample| sample.seconds)?,
        seconds_all: rounds.values().map(|sample| sample.seconds).sum(),
        disturbed: rounds.values().filter(|sample| sample.disturbance.is_marked()).count(),
        steal_max: most(|sample| sample.disturbance.steal),
        others_max: most(|sample| sample.disturbance.others),
        pressure_max: rounds
            .values()
            .filter(|sample| sample.disturbance.is_marked())
            .map(|sample| sample.disturbance.pressure)
            .fold(Pressure::default(), Pressure::max),
        load: middle.load.clone(),
        quantiles: quantiles(rounds),
        slices_mb_s: rounds.values().flat_map(|sample| sample.slices_mb_s.clone()).collect(),
        order,
        device: middle.device,
        below: middle.below,
    })
}

/// The figure of a contender in a cell.
pub(crate) fn find(cell: &CellFigures, contender: Contender) -> Option<&Figure> {
    cell.figures.iter().find(|figure| figure.contender == contender)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Scale;
    use crate::served::Generator;
    use crate::store::Settings;

    #[test]
    fn quartiles_are_between_the_values_and_one_value_is_no_spread() {
        let spread = Spread::of([4.0, 1.0, 3.0, 2.0, 5.0, f64::NAN]).unwrap();
        assert_eq!((spread.low, spread.median, spread.high, spread.count), (2.0, 3.0, 4.0, 5));
        assert!(spread.is_wide());
        assert!(!Spread::of([100.0, 101.0, 99.0]).unwrap().is_wide());
        assert!(Spread::of([1.0]).unwrap().is_wide());
        assert_eq!(Spread::of([]), None);
    }

    /// The analysis of one cell of an experiment, of these contenders with these speeds.
    fn of(experiment: &str, rounds: u32, speeds: &[(&str, f64)]) -> Analysis {
        let settings = Settings {
            experiments: vec![experiment.into()],
            on: Target::Memory,
            against: None,
            rounds,
            scale: Scale::Quick,
            len: 1 << 27,
            time_ms: 10,
            added_on_zero: false,
            before: None,
            generator: Generator::BuiltIn,
            command: String::new(),
        };
        let records = records(&settings, speeds);
        Analysis::new(About::invented(settings), &records)
    }

    /// Records of the first cell of the first experiment.
    fn records(settings: &Settings, speeds: &[(&str, f64)]) -> Vec<Record> {
        let experiment = settings.experiments[0].as_str();
        let description = by_name(experiment).expect("an experiment");
        let cell = &description.cells(Scale::Quick)[0];
        let is_tree = description.method == Method::Tree;
        let records = speeds.iter().flat_map(|(contender, mb_s)| {
            (0..settings.rounds).map(move |round| Record {
                experiment: experiment.into(),
                cell: cell.name.clone(),
                contender: contender.parse().expect("a contender"),
                round,
                sample: Some(Sample {
                    mb_s: *mb_s,
                    seconds: 100.0 / mb_s,
                    device: is_tree.then(Device::default),
                    mean_us: if is_tree { 0.0 } else { 7.0 },
                    ..Sample::default()
                }),
                error: None,
            })
        });
        records.collect()
    }

    #[test]
    fn what_is_added_stands_beside_a_zero_device_and_where_it_is_nothing_that_is_said() {
        // All have the same latency.
        let same = of("added-latency", 3, &[("raw", 100.0), ("ucrypt", 100.0)]);
        let experiment = &same.experiments[0];
        assert!(experiment.verdict.contains("0.0 µs at 4k"), "{}", experiment.verdict);
        assert!(
            experiment.verdict.ends_with("raw takes as long or longer."),
            "{}",
            experiment.verdict
        );
        let label = |of: &Analysis| of.experiments[0].beside[0].label.clone();
        assert!(label(&same).ends_with("(on a zero device; here memory)"), "{}", label(&same));
        let mut about = same.about.clone();
        about.settings.added_on_zero = true;
        let zero = Analysis::new(
            about,
            &records(&same.about.settings, &[("raw", 100.0), ("ucrypt", 100.0)]),
        );
        assert_eq!(zero.experiments[0].on, "zero");
        assert!(!label(&zero).contains("here"), "{}", label(&zero));
    }

    #[test]
    fn nothing_compared_is_no_success() {
        let nothing = of("instant", 3, &[("raw", 100.0), ("ucrypt:unbound", 50.0)]);
        assert_eq!((nothing.compared, nothing.shortfalls.len()), (0, 0));
        assert!(nothing.none_short().expect("empty").contains("nothing was compared"));
        let good = of("instant", 3, &[("raw", 100.0), ("ucrypt", 99.0)]);
        assert_eq!((good.compared, good.shortfalls.len()), (1, 0));
        assert!(good.none_short().expect("empty").contains("Nowhere"));
        let bad = of("instant", 3, &[("raw", 100.0), ("ucrypt", 90.0)]);
        assert!(bad.none_short().is_none() && bad.shortfalls[0].is_certain);
    }

    #[test]
    fn what_a_run_lacks_is_said_and_chance_is_no_success() {
        let good = of("instant", 2, &[("raw", 100.0), ("ucrypt", 99.0)]);
        let said = good.none_short().expect("empty");
        assert!(said.contains("1 of 1 pairs") && said.contains("nothing is certain"), "{said}");
        let settled = of("instant", 3, &[("raw", 100.0), ("ucrypt", 99.0)]);
        assert_eq!((settled.telling, settled.chance()), (1, None));

        let cells = by_name("instant").expect("an experiment").cells(Scale::Quick);
        let mut about = settled.about.clone();
        about.settings.experiments.push("to-come".into());
        let record = |cell: &Cell, round, ok: bool| Record {
            experiment: "instant".into(),
            cell: cell.name.clone(),
            contender: Contender::Raw,
            round,
            sample: ok.then(|| Sample { mb_s: 1.0, seconds: 1.0, ..Sample::default() }),
            error: (!ok).then(|| "it failed".into()),
        };
        let all: Vec<_> =
            cells.iter().flat_map(|cell| (0..3).map(|round| record(cell, round, true))).collect();
        let said = Analysis::new(about.clone(), &all).gaps;
        assert!(said.len() == 1 && said[0].contains("to-come"), "{said:?}");
        about.settings.experiments.truncate(1);
        assert_eq!(Analysis::new(about.clone(), &all).warning(), None);
        let part = Analysis::new(about.clone(), &all[..all.len() - 2]);
        let said = part.warning().expect("a part");
        assert!(said.contains(&format!("2 of {} measurements", all.len())), "{said}");
        let mut failed = all[..all.len() - 3].to_vec();
        failed.push(record(&cells[cells.len() - 1], 0, false));
        let said = Analysis::new(about.clone(), &failed).warning().expect("a failure");
        assert!(said.contains("In 1 cells") && !said.contains("not made"), "{said}");
        let kept = Kept { about, records: all, unknown: 4 };
        assert!(Analysis::of(kept).warning().is_some_and(|said| said.contains("4 lines")));
    }

    #[test]
    fn a_loss_in_virtual_time_is_certain_and_one_that_was_measured_once_is_not() {
        let speeds = [("ucrypt", 90.0), ("ucrypt:inline", 100.0)];
        assert!(of("many-drives", 1, &speeds).shortfalls[0].is_certain);
        assert!(!of("workqueues", 1, &speeds).shortfalls[0].is_certain);
        assert!(of("workqueues", 3, &speeds).shortfalls[0].is_certain);
    }

    #[test]
    fn figures_that_contradict_each_other_are_named_and_few_requests_have_no_p99() {
        let cell = by_name("workqueues").expect("an experiment").cells(Scale::Quick).remove(0);
        let kept = f64::from(cell.depth * cell.jobs);
        let speed = 100.0;
        let sample = |share: f64, requests| Sample {
            mb_s: speed,
            mean_us: share * kept * cell.block_bytes as f64 / speed,
            requests,
            seconds: 1.0,
            ..Sample::default()
        };
        let seen = |share, requests| {
            let sample = sample(share, requests);
            in_flight(&cell, &(0..3).map(|round| (round, &sample)).collect())
        };
        assert_eq!((seen(1.0, 1_000_000), seen(0.8, 1_000_000)), (None, None));
        let wrong = seen(0.5, 1_000_000).expect("half");
        assert!((wrong / kept - 0.5).abs() < 1e-9, "{wrong} of {kept}");
        assert!(seen(1.5, 1_000_000).is_some());
        // As many requests as are under way tell nothing.
        assert_eq!(seen(0.5, u64::from(cell.depth * cell.jobs)), None);

        let sample = sample(0.5, 250);
        let rounds = (0..3).map(|round| (round, &sample)).collect();
        let figure = figure(Contender::Raw, &rounds, None).expect("a figure");
        let figures = vec![Figure { in_flight: Some(wrong), ..figure }];
        assert!(crate::text::doubts(&figures[0]).contains("Little"), "{:?}", figures[0]);
        assert!(figures[0].p99_us.is_none());
        let name = cell.name.clone();
        let note = without_p99(&[CellFigures { cell, figures }]).expect("a note");
        assert!(note.contains("300 requests") && note.contains(&name), "{note}");
    }

    #[test]
    fn what_a_file_system_wrote_is_shown_of_the_round_whose_time_is_shown() {
        let sample = |seconds, writes, mb_s| Sample {
            seconds,
            mb_s,
            device: Some(Device { writes, ..Device::default() }),
            ..Sample::default()
        };
        // The round with the median time has the least speed.
        let samples = [sample(1.0, 10, 2.0), sample(2.0, 20, 1.0), sample(3.0, 30, 3.0)];
        let rounds = (0..).zip(&samples).collect();
        let figure = figure(Contender::Loop, &rounds, None).expect("a figure");
        assert_eq!((figure.seconds.median, figure.device.map(|it| it.writes)), (2.0, Some(20)));
    }

    #[test]
    fn servers_are_ranked_by_what_they_leave_of_the_image_and_ceilings_are_not() {
        let speeds = [
            ("file", 100.0),
            ("copy-nbd", 95.0),
            ("ucrypt-nbd-none", 93.0),
            ("qemu-nbd", 50.0),
            ("ucrypt-nbd", 90.0),
            ("before-nbd", 99.0),
        ];
        let analysis = of("exports", 3, &speeds);
        let verdict = &analysis.experiments[0].verdict;
        assert!(verdict.contains("before-nbd 0.99, ucrypt-nbd 0.90, qemu-nbd 0.50."), "{verdict}");
        // Ours is compared with the image and with another build of its kind, and not with a ceiling.
        let others: Vec<_> = analysis
            .shortfalls
            .iter()
            .map(|it| (it.ours.to_string(), it.other.to_string()))
            .collect();
        let pair = |other: &str| ("ucrypt-nbd".to_owned(), other.to_owned());
        assert!(
            others.contains(&pair("file")) && others.contains(&pair("before-nbd")),
            "{others:?}"
        );
        assert!(
            others.iter().all(|(ours, other)| ours == "ucrypt-nbd" && other != "copy-nbd"),
            "{others:?}"
        );
    }

    #[test]
    fn file_systems_are_compared_with_the_kernels_loop_device_and_have_no_latencies() {
        let speeds = [("loop", 100.0), ("ucrypt-loop-none", 80.0), ("ucrypt-loop", 40.0)];
        let tree = of("kernel-tree", 3, &speeds);
        let experiment = &tree.experiments[0];
        let figure = find(&experiment.cells[0], "ucrypt-loop".parse().unwrap()).expect("a figure");
        assert!((figure.ratio.expect("a ratio").median - 0.4).abs() < 1e-9);
        assert!((figure.of_none.expect("a ratio").median - 0.5).abs() < 1e-9);
        assert!(figure.mean_us.is_none() && figure.p99_us.is_none());
        assert_eq!(tree.shortfalls[0].other, Contender::Loop);
        assert!(experiment.verdict.contains("ext4 2.50 (2.00 by the cipher alone)"));
        assert!(experiment.on.contains("/dev/shm"), "{}", experiment.on);
        assert!(
            of("many-drives", 1, &[("ucrypt", 1.0)]).experiments[0].on.contains("virtual time")
        );
    }
}
