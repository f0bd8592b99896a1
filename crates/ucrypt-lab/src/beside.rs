//! What was published, and the same here: every published figure of a cell with ours beside it.

use serde::Serialize;
use ucrypt_engine::PolicyKind;

use crate::analysis::{CellFigures, Figure, Spread};
use crate::catalogue::{Medium, Method, Published};
use crate::contender::Contender;
use crate::modes::modes;
use crate::ours::{Server, Way};

/// A published figure, and what stands for it here.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Beside {
    /// The cell.
    pub cell: String,
    /// What was measured, with its year; and that it was another medium than here, if it was.
    pub label: String,
    /// The contender that repeats it here.
    pub contender: &'static str,
    /// The unit of the three figures.
    pub unit: &'static str,
    /// As it was published.
    pub published: f64,
    /// Over the unencrypted figure of the same publication, if there is one.
    pub published_of_raw: Option<f64>,
    /// The contender that repeats it; none if it was not measured.
    pub here: Option<f64>,
    /// Over the unencrypted target here.
    pub here_of_raw: Option<f64>,
    /// Adaptive dispatch; none for unencrypted rows.
    pub adaptive: Option<f64>,
    /// Over the unencrypted target here.
    pub adaptive_of_raw: Option<f64>,
}

/// A figure that may have been published: its unit, where it stands in the publication, and here.
type Kind = (&'static str, fn(&Published) -> Option<f64>, fn(&Figure) -> Option<f64>);

fn median(spread: Option<Spread>) -> Option<f64> {
    spread.map(|spread| spread.median)
}

/// The figures of a method.
fn kinds(method: Method) -> &'static [Kind] {
    match method {
        Method::Added => &[("µs added", |it| it.mean_us, |it| median(it.added_us))],
        Method::Tree => &[
            (
                "times the run time",
                |it| it.slowdown,
                |it| it.ratio.map(|ratio| 1.0 / ratio.median.max(1e-9)),
            ),
            ("s", |it| it.seconds, |it| Some(it.seconds.median)),
            ("writes", |it| it.writes, |it| it.device.map(|device| device.writes as f64)),
            ("KiB a write", |it| it.kib_a_write, |it| it.device.map(|it| it.kib_a_write())),
            ("writes below", |it| it.writes_below, |it| it.below.map(|below| below.writes as f64)),
        ],
        Method::Slices => &[
            ("MB/s", |it| it.mb_s, |it| Some(it.mb_s.median)),
            (
                "MB/s, lower mode",
                |it| it.modes_mb_s.map(|(low, _)| low),
                |it| modes(&it.slices_mb_s).first().copied(),
            ),
            (
                "MB/s, upper mode",
                |it| it.modes_mb_s.map(|(_, high)| high),
                |it| modes(&it.slices_mb_s).last().copied(),
            ),
        ],
        _ => &[
            ("MB/s", |it| it.mb_s, |it| Some(it.mb_s.median)),
            ("µs, mean", |it| it.mean_us, |it| median(it.mean_us)),
            ("µs, p99", |it| it.p99_us, |it| median(it.p99_us)),
        ],
    }
}

/// The published figures of some cells, in their order, beside those of a run on `medium`.
pub(crate) fn beside(cells: &[CellFigures], method: Method, medium: Medium) -> Vec<Beside> {
    cells.iter().flat_map(|cell| of_cell(cell, method, medium)).collect()
}

/// Where a published figure was taken: what stands there for the unencrypted target and for adaptive
/// dispatch.
struct Place {
    raw: Contender,
    adaptive: Contender,
}

impl Place {
    /// File systems have one contender of ours, which is adaptive.
    fn of(it: &Published, method: Method) -> Self {
        let through = |contender: Contender| contender.below_file_system().is_some();
        if method == Method::Tree {
            Self { raw: Contender::Loop, adaptive: Contender::Ours(Server::new(Way::Loop)) }
        } else if it.contender.parse().is_ok_and(through) {
            Self { raw: Contender::LoopExt4, adaptive: Contender::UcryptLoopExt4 }
        } else {
            Self { raw: Contender::Raw, adaptive: Contender::Ucrypt(PolicyKind::Adaptive) }
        }
    }
}

fn of_cell(cell: &CellFigures, method: Method, medium: Medium) -> Vec<Beside> {
    let measured = |contender: Contender| cell.figures.iter().find(|it| it.contender == contender);
    let mut all = Vec::new();
    for (unit, published, here) in kinds(method) {
        // Published rows come in pairs of the same place: the raw one stands before the others.
        let mut raw = None;
        for it in &cell.cell.published {
            let place = Place::of(it, method);
            let base = measured(place.raw).and_then(here);
            let of_raw = |value: Option<f64>| {
                let (value, base) = value.zip(base)?;
                (base > 0.0).then(|| value / base)
            };
            let is_raw = it.contender.parse() == Ok(place.raw);
            let Some(figure) = published(it) else { continue };
            if is_raw {
                raw = Some(figure);
            }
            let ours = it.contender.parse().ok().and_then(measured).and_then(here);
            let adaptive = measured(place.adaptive).filter(|_| !is_raw).and_then(here);
            all.push(Beside {
                cell: cell.cell.name.clone(),
                label: match it.medium.filter(|its| *its != medium) {
                    Some(its) => format!("{} (on {its}; here {medium})", it.label),
                    None => it.label.into(),
                },
                contender: it.contender,
                unit,
                published: figure,
                published_of_raw: raw.filter(|_| !is_raw).map(|raw| figure / raw),
                here: ours,
                here_of_raw: of_raw(ours).filter(|_| !is_raw),
                adaptive,
                adaptive_of_raw: of_raw(adaptive),
            });
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{ALL, Scale};
    use crate::page::tests::analysis;

    #[test]
    fn figures_of_another_medium_are_labelled() {
        let analysis = analysis();
        let of = |name: &str| {
            analysis.experiments.iter().find(|it| it.name == name).expect("it ran").clone()
        };
        // The invented run is in memory.
        let other = of("other-ssd");
        let labels: Vec<_> = other.beside.iter().map(|it| it.label.as_str()).collect();
        assert!(labels.contains(&"LUKS on an SSD, 2017 (on a disk; here memory)"), "{labels:?}");
        assert!(labels.contains(&"LUKS on tmpfs, 2017"), "{labels:?}");
        let on_disk = beside(&other.cells, Method::Load, Medium::Disk);
        let labels: Vec<_> = on_disk.iter().map(|it| it.label.as_str()).collect();
        assert!(labels.contains(&"LUKS on an SSD, 2017"), "{labels:?}");
        assert!(labels.contains(&"LUKS on tmpfs, 2017 (on memory; here a disk)"), "{labels:?}");
    }

    #[test]
    fn every_published_figure_of_a_run_stands_beside_ours() {
        let analysis = analysis();
        for (experiment, description) in analysis.experiments.iter().zip(ALL) {
            let cells = description.cells(Scale::Quick);
            let figures = cells.iter().flat_map(|cell| &cell.published).map(|it| {
                let kinds = kinds(description.method).iter();
                kinds.filter(|(_, published, _)| published(it).is_some()).count()
            });
            assert_eq!(experiment.beside.len(), figures.sum::<usize>(), "{}", description.name);
            for it in &experiment.beside {
                // In this run everything was measured.
                assert!(it.here.is_some(), "{it:?}");
                let is_raw = ["raw", "loop-ext4"].contains(&it.contender);
                assert_eq!(it.adaptive.is_none(), is_raw, "{it:?}");
            }
        }
        let of = |name: &str, cell: &str, label: &str| {
            let found = analysis.experiments.iter().find(|it| it.name == name).expect("it ran");
            let mut rows = found.beside.iter().filter(|it| it.cell == cell && it.label == label);
            rows.next().expect("a row").clone()
        };
        let sweep = of("block-sweep", "4k read qd1", "LUKS on a device, 2017");
        let published = sweep.published_of_raw.expect("a ratio");
        assert!(published < 1.0 && published > 0.5, "{sweep:?}");
        // The invented run: raw has 1001 MB/s, adaptive half of it.
        assert!(sweep.adaptive_of_raw.is_some_and(|it| (it - 0.5).abs() < 0.01), "{sweep:?}");
        // Through a file system, over that without encryption: the last two of the invented run.
        let through = of("block-sweep", "4k read qd1", "LUKS, through a file system, 2017");
        assert!(through.published_of_raw.is_some_and(|it| it < 1.2), "{through:?}");
        assert_eq!(through.here_of_raw, through.adaptive_of_raw);
        assert!(through.here_of_raw.is_some_and(|it| (it - 5.0 / 6.0).abs() < 0.01), "{through:?}");
        let raw = of("block-sweep", "4k read qd1", "raw device, 2017");
        assert!(raw.here.is_some() && raw.here_of_raw.is_none(), "{raw:?}");
        // Of file systems the run time, over that without encryption.
        let cells: Vec<_> = analysis
            .experiments
            .iter()
            .find(|it| it.name == "kernel-tree")
            .map(|it| {
                let mut cells = it.cells.clone();
                cells[0].cell.published = vec![Published {
                    contender: "ucrypt-loop",
                    label: "2011",
                    slowdown: Some(1.4),
                    ..Published::default()
                }];
                cells
            })
            .expect("it ran");
        let tree = beside(&cells, Method::Tree, Medium::Memory);
        assert_eq!(tree.len(), 1);
        assert!(tree[0].unit.starts_with("times") && tree[0].here == tree[0].adaptive, "{tree:?}");
    }
}
