//! The columns that the figures of an experiment have, besides speed and runs: the page and the
//! Markdown document show the same.

use ucrypt_engine::PolicyKind;

use crate::analysis::{CellFigures, Experiment, Figure, Spread, find};
use crate::catalogue::{EXPORTS, Method};
use crate::contender::Contender;
use crate::modes::{modes, slices_max};
use crate::text::{figure, optional, range};

/// A column: its name, and its text for a figure of a cell.
pub(crate) type Column = (&'static str, fn(&CellFigures, &Figure) -> String);

const MEAN: Column = ("mean µs", |_, of| optional(of.mean_us));
const P99: Column = ("p99 µs", |_, of| optional(of.p99_us));
const ADDED: Column =
    ("added µs (quartiles)", |_, of| of.added_us.map_or_else(String::new, range));
const OF_RAW: Column = ("of raw", |_, of| ratio(of.ratio));

/// The columns of an experiment.
pub(crate) fn columns(experiment: &Experiment) -> Vec<Column> {
    let mut columns: Vec<Column> = match experiment.description.method {
        Method::Added => vec![MEAN, P99, ADDED, OF_RAW],
        // A file system's requests are the kernel's, and nobody times them.
        Method::Tree => vec![
            ("of loop", |_, of| ratio(of.ratio)),
            ("of ucrypt-loop-none", |_, of| ratio(of.of_none)),
            ("MB written", |_, of| value(of.device.map(|it| it.bytes as f64 / 1e6))),
            ("writes", |_, of| text(of.device.map(|it| it.writes))),
            ("KiB a write", |_, of| value(of.device.map(|it| it.kib_a_write()))),
            ("merged", |_, of| text(of.device.map(|it| it.merges))),
            ("writes below", |_, of| text(of.below.map(|it| it.writes))),
            ("busy s", |_, of| value(of.device.map(|it| it.busy_ms as f64 / 1000.0))),
        ],
        _ => vec![MEAN, P99, OF_RAW],
    };
    match experiment.description.method {
        Method::Order => columns.extend::<[Column; 2]>([
            ("continued", |_, of| {
                let share = of.order.map(|order| order.continued_share() * 100.0);
                share.map_or_else(String::new, |share| format!("{share:.0} %"))
            }),
            ("KiB a write", |_, of| value(of.order.map(|it| it.kib_a_write()))),
        ]),
        Method::Slices => columns.push(("modes at MB/s", |_, of| {
            let modes = modes(&of.slices_mb_s);
            modes.iter().map(|mode| format!("{mode:.0}")).collect::<Vec<_>>().join("; ")
        })),
        _ => {}
    }
    if experiment.name == EXPORTS {
        columns.push(("added µs (quartiles)", ADDED.1));
        columns.push(("processor µs: client + server + rest", |_, of| {
            of.processor.map_or_else(String::new, |it| {
                let parts = [it.client_us, it.server_us, it.rest_us];
                parts.map(|us| format!("{us:.1}")).join(" + ")
            })
        }));
    }
    if experiment.name == HEAT_MAP {
        columns.push(("of best", |cell, of| two(of_best(cell, of, SPEED))));
        columns.push(("best p99 over its", |cell, of| two(of_best(cell, of, TAIL))));
    }
    columns
}

/// The experiment that compares with the best policy of each cell.
pub(crate) const HEAT_MAP: &str = "heat-map";

/// What policies are compared by: more is better.
pub(crate) type Merit = fn(&Figure) -> Option<f64>;

/// Throughput.
pub(crate) const SPEED: Merit = |of| Some(of.mb_s.median);

/// The inverse of the 99th percentile.
pub(crate) const TAIL: Merit = |of| of.p99_us.map(|p99| 1.0 / p99.median.max(1e-9));

/// The heat maps: title, and what is compared.
pub(crate) const HEAT_MAPS: [(&str, Merit); 2] = [
    ("Throughput over that of the cell's best policy", SPEED),
    ("p99 latency of the cell's best policy over this one's", TAIL),
];

/// A policy's merit over that of the cell's best policy; `None` for other contenders.
pub(crate) fn of_best(cell: &CellFigures, of: &Figure, merit: Merit) -> Option<f64> {
    let is_policy = |of: &Figure| matches!(of.contender, Contender::Ucrypt(_));
    let all = cell.figures.iter().filter(|it| is_policy(it)).filter_map(merit);
    let best = all.fold(0.0, f64::max);
    let value = Some(of).filter(|of| is_policy(of)).and_then(merit)?;
    (best > 0.0).then(|| value / best)
}

/// The name of a policy among policies.
pub(crate) fn policy_name(contender: Contender) -> String {
    match contender {
        Contender::Ucrypt(PolicyKind::Adaptive) => "adaptive".into(),
        other => other.to_string().replace("ucrypt:", ""),
    }
}

/// Speeds of slices, sorted into bins.
pub(crate) struct Bins {
    /// The middle of each bin in MB/s; of the last one where it begins.
    pub(crate) names: Vec<String>,
    /// By figure of the cell: the share of its slices in each bin, in percent.
    pub(crate) shares: Vec<Vec<f64>>,
}

impl Bins {
    const COUNT: usize = 24;

    /// Of the slices of a cell; `None` if it has none.
    pub(crate) fn of(cell: &CellFigures) -> Option<Self> {
        let all = cell.figures.iter().flat_map(|figure| figure.slices_mb_s.iter().copied());
        let max = slices_max(&all.collect::<Vec<_>>());
        if max <= 0.0 {
            return None;
        }
        let width = max / Self::COUNT as f64;
        let names = (0..Self::COUNT).map(|bin| match bin + 1 {
            Self::COUNT => format!("≥ {}", figure(bin as f64 * width)),
            _ => figure((bin as f64 + 0.5) * width),
        });
        let shares = cell.figures.iter().map(|figure| {
            let mut shares = vec![0.0; Self::COUNT];
            for value in &figure.slices_mb_s {
                #[expect(clippy::cast_sign_loss, reason = "speeds are not negative")]
                let bin = (value / width) as usize;
                shares[bin.min(Self::COUNT - 1)] += 100.0 / figure.slices_mb_s.len() as f64;
            }
            shares
        });
        Some(Self { names: names.collect(), shares: shares.collect() })
    }
}

/// Shares of requests of which a latency distribution is shown.
pub(crate) const SHARES: [f64; 8] = [0.01, 0.1, 0.5, 0.8, 0.9, 0.95, 0.99, 0.999];

/// The latency of a share of requests in microseconds, in the round with the median throughput.
pub(crate) fn quantile(of: &Figure, share: f64) -> Option<f64> {
    let found = of.quantiles.iter().find(|(at, _)| (at - share).abs() < 1e-9);
    found.map(|(_, us)| *us)
}

/// The cells of which the latency distribution is shown: the first, the middle and the last one.
pub(crate) fn distributions(experiment: &Experiment) -> Vec<&CellFigures> {
    let cells = &experiment.cells;
    let count = cells.len();
    match count {
        _ if experiment.name == HEAT_MAP => Vec::new(),
        0..=3 => cells.iter().collect(),
        _ => [0, count / 2, count - 1].map(|at| &cells[at]).into(),
    }
}

/// The policies of an experiment, in their order.
pub(crate) fn policies(experiment: &Experiment) -> Vec<Contender> {
    let mut all = Vec::new();
    for figure in experiment.cells.iter().flat_map(|cell| &cell.figures) {
        if matches!(figure.contender, Contender::Ucrypt(_)) && !all.contains(&figure.contender) {
            all.push(figure.contender);
        }
    }
    all
}

/// By policy, its merit over that of the cell's best.
pub(crate) fn heats(cell: &CellFigures, of: &[Contender], merit: Merit) -> Vec<Option<f64>> {
    let heat = |policy: &Contender| of_best(cell, find(cell, *policy)?, merit);
    of.iter().map(heat).collect()
}

fn ratio(spread: Option<Spread>) -> String {
    two(spread.map(|spread| spread.median))
}

fn two(ratio: Option<f64>) -> String {
    ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"))
}

fn value(value: Option<f64>) -> String {
    value.map_or_else(String::new, figure)
}

fn text(count: Option<u64>) -> String {
    count.map_or_else(String::new, |count| count.to_string())
}
