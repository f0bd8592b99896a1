//! What an experiment shows, in a sentence or two.

use ucrypt_engine::PolicyKind;

use crate::analysis::{CellFigures, Figure, OF_RAW_MIN, Spread, find};
use crate::catalogue::{Description, EXPORTS, Method, size_name};
use crate::contender::Contender;
use crate::modes::modes;
use crate::ours::{Server, Way};
use crate::sim::drives::ceiling_gb_s;

const ADAPTIVE: Contender = Contender::Ucrypt(PolicyKind::Adaptive);

/// The verdict on an experiment.
pub(crate) fn of(description: &Description, cells: &[CellFigures]) -> String {
    if description.name == EXPORTS {
        return exports(cells);
    }
    let ratios: Vec<(&str, f64)> = cells
        .iter()
        .filter_map(|cell| Some((cell.cell.name.as_str(), find(cell, ADAPTIVE)?.ratio?.median)))
        .collect();
    let worst = ratios.iter().min_by(|a, b| a.1.total_cmp(&b.1));
    let none = || match cells {
        [] => "Nothing was measured.".to_owned(),
        _ => "Adaptive dispatch took no part, or was not compared.".to_owned(),
    };
    match description.method {
        Method::Load => {
            let Some((at, least)) = worst else { return none() };
            let middle = Spread::of(ratios.iter().map(|(_, ratio)| *ratio)).unwrap_or_default();
            format!(
                "Adaptive reaches {:.2} of raw (median of {} cells), at worst {least:.2} ({at}). {}",
                middle.median,
                ratios.len(),
                against_fixed(cells)
            )
        }
        Method::Added => {
            let added: Vec<(f64, String)> = cells
                .iter()
                .filter_map(|cell| {
                    let added = find(cell, ADAPTIVE)?.added_us?.median;
                    let size = size_name(cell.cell.block_bytes);
                    Some((added, format!("{added:.1} µs at {size}")))
                })
                .collect();
            if added.is_empty() {
                return none();
            }
            let nothing = added.iter().any(|(us, _)| *us <= 0.0);
            let nothing = if nothing {
                " Where that is not above 0, raw takes as long or longer."
            } else {
                ""
            };
            let all: Vec<_> = added.into_iter().map(|(_, text)| text).collect();
            format!("Adaptive adds {}.{nothing}", all.join(", "))
        }
        Method::Slices => {
            let seen: Vec<String> = cells
                .iter()
                .flat_map(|cell| &cell.figures)
                .filter(|figure| matches!(figure.contender, Contender::Ucrypt(_)))
                .map(|figure| {
                    let modes = modes(&figure.slices_mb_s);
                    let places: Vec<_> = modes.iter().map(|mode| format!("{mode:.0}")).collect();
                    match places.len() {
                        0 => format!("{}: too few slices to tell", figure.contender),
                        1 => format!("{}: one mode at {} MB/s", figure.contender, places[0]),
                        n => format!(
                            "{}: {n} modes, at {} MB/s",
                            figure.contender,
                            places.join(", ")
                        ),
                    }
                })
                .collect();
            if seen.is_empty() { none() } else { format!("{}.", seen.join("; ")) }
        }
        Method::Order => {
            let seen: Vec<String> = cells
                .iter()
                .take(1)
                .flat_map(|cell| &cell.figures)
                .filter_map(|figure| {
                    let order = figure.order?;
                    let share = order.continued_share() * 100.0;
                    Some(format!("{} {share:.0} %", figure.contender))
                })
                .collect();
            if seen.is_empty() {
                none()
            } else {
                format!("Writes that continue the one before: {}.", seen.join(", "))
            }
        }
        Method::Tree => tree_verdict(cells).unwrap_or_else(none),
        Method::Drives => drives(cells).unwrap_or_else(none),
    }
}

/// Adaptive on many drives, below its ceiling.
fn drives(cells: &[CellFigures]) -> Option<String> {
    let seen = cells.iter().filter_map(|cell| {
        let figure = find(cell, ADAPTIVE)?;
        Some(format!("{}: {:.1} GB/s", cell.cell.name, figure.mb_s.median / 1000.0))
    });
    let seen = seen.collect::<Vec<_>>().join("; ");
    (!seen.is_empty()).then(|| {
        format!(
            "Adaptive, in virtual time: {seen}; the ceiling is the cipher of all cores, {:.1} GB/s. {}",
            ceiling_gb_s(),
            against_fixed(cells)
        )
    })
}

/// What each server leaves of the image's speed, and what it adds to a lone request.
fn exports(cells: &[CellFigures]) -> String {
    // What users choose from: with a cipher.
    let chosen = |of: &&Figure| of.contender.is_served() && of.contender.encrypts();
    let mut left: Vec<(f64, Contender)> = Vec::new();
    for figure in cells.iter().flat_map(|cell| &cell.figures).filter(chosen) {
        if left.iter().any(|(_, known)| *known == figure.contender) {
            continue;
        }
        let of_it = cells.iter().filter_map(|cell| find(cell, figure.contender)?.ratio);
        let middle = Spread::of(of_it.map(|ratio| ratio.median));
        left.extend(middle.map(|middle| (middle.median, figure.contender)));
    }
    if left.is_empty() {
        return if cells.is_empty() { "Nothing was measured." } else { "No server took part." }
            .into();
    }
    left.sort_by(|a, b| b.0.total_cmp(&a.0));
    let all: Vec<_> = left.iter().map(|(ratio, name)| format!("{name} {ratio:.2}")).collect();
    let said = format!("Of the image's speed (median of its cells): {}.", all.join(", "));
    let lone = cells.iter().find(|cell| cell.cell.depth == 1 && cell.cell.jobs == 1);
    if let Some(lone) = lone {
        let added = |of: &Figure| Some(format!("{} {:.0}", of.contender, of.added_us?.median));
        let with = |of: &&Figure| {
            chosen(of) || matches!(of.contender, Contender::Copy(_) | Contender::Loop)
        };
        let all: Vec<_> = lone.figures.iter().filter(with).filter_map(added).collect();
        if !all.is_empty() {
            let name = &lone.cell.name;
            return format!(
                "{said} To the latency of a lone request ({name}) they add, in µs: {}.",
                all.join(", ")
            );
        }
    }
    said
}

/// What encryption costs file systems; `None` if ours did not run on any.
fn tree_verdict(cells: &[CellFigures]) -> Option<String> {
    let ours = Contender::Ours(Server::new(Way::Loop));
    let times = |ratio: Spread| 1.0 / ratio.median.max(1e-9);
    let of_cell = |cell: &CellFigures| {
        let figure = find(cell, ours)?;
        let cipher = figure.of_none.map_or_else(String::new, |ratio| {
            format!(" ({:.2} by the cipher alone)", times(ratio))
        });
        let kernel = find(cell, Contender::DmCrypt).and_then(|it| it.ratio);
        let kernel = kernel.map_or_else(String::new, |ratio| {
            format!(" (the kernel's dm-crypt {:.2})", times(ratio))
        });
        Some(format!("{} {:.2}{cipher}{kernel}", cell.cell.name, times(figure.ratio?)))
    };
    let seen: Vec<String> = cells.iter().filter_map(of_cell).collect();
    let seen = (!seen.is_empty()).then(|| seen.join(", "))?;
    Some(format!("Run time over that on the kernel's loop device, not encrypted: {seen}."))
}

/// In how many cells adaptive is as fast as the fastest fixed policy of that cell.
fn against_fixed(cells: &[CellFigures]) -> String {
    let (mut all, mut good) = (0, 0);
    for cell in cells {
        let fixed = cell
            .figures
            .iter()
            .filter(|figure| matches!(figure.contender, Contender::Ucrypt(PolicyKind::Fixed(_))));
        let best = fixed.map(|figure| figure.mb_s.median).fold(0.0, f64::max);
        let Some(ours) = find(cell, ADAPTIVE).filter(|_| best > 0.0) else { continue };
        all += 1;
        good += u32::from(ours.mb_s.median >= OF_RAW_MIN * best);
    }
    if all == 0 {
        return String::new();
    }
    format!("It is within 3 % of the best fixed policy, or better, in {good} of {all} cells.")
}
