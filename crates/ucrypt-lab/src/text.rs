//! Results as tables for a terminal, as CSV and as rows of virtual time.

use std::fmt::Write as _;

use crate::analysis::{Analysis, CellFigures, Experiment, Figure, Spread};
use crate::catalogue::Method;

/// A figure with as many digits as it is worth.
pub fn figure(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0..100.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// The median of a figure that was not taken everywhere; empty where it was not.
pub fn optional(spread: Option<Spread>) -> String {
    spread.map_or_else(String::new, |spread| figure(spread.median))
}

/// What makes a figure doubtful, in a few words; empty if nothing does.
pub fn doubts(figure: &Figure) -> String {
    let mut doubts = Vec::new();
    if figure.seconds.count == 1 {
        doubts.push("one run".to_owned());
    } else if figure.mb_s.is_wide() {
        doubts.push("wide spread".to_owned());
    }
    if figure.disturbed > 0 {
        doubts.push(format!(
            "{} of {} disturbed (steal up to {:.0} %, others up to {:.0} %)",
            figure.disturbed,
            figure.seconds.count,
            figure.steal_max * 100.0,
            figure.others_max * 100.0
        ));
    }
    doubts.join(", ")
}

/// The published figure of a contender in a cell, and what it is.
pub fn published(cell: &CellFigures, figure_of: &Figure, method: Method) -> Vec<(String, String)> {
    let name = figure_of.contender.to_string();
    let stands = match name.as_str() {
        "file" => "raw".to_owned(),
        _ => name,
    };
    let of_it = cell.cell.published.iter().filter(|published| published.contender == stands);
    let text = |it: &crate::catalogue::Published| match method {
        Method::Added => it.mean_us.map(|us| format!("{} µs", figure(us))),
        Method::Tree => it.slowdown.map(|slowdown| format!("{slowdown:.2} times")),
        _ => it.mb_s.map(|mb_s| format!("{} MB/s", figure(mb_s))),
    };
    of_it.filter_map(|it| Some((it.label.to_owned(), text(it)?))).collect()
}

/// The tables of a run.
pub fn tables(analysis: &Analysis) -> String {
    let mut text = String::new();
    for experiment in &analysis.experiments {
        // Writing to a string cannot fail.
        let (name, on, verdict) = (experiment.name, &experiment.on, &experiment.verdict);
        let _ = writeln!(text, "{name} ({on})\n  {verdict}");
        table(&mut text, experiment);
        for note in &experiment.notes {
            let _ = writeln!(text, "  {note}");
        }
        text.push('\n');
    }
    if let Some(warning) = analysis.warning() {
        let _ = writeln!(text, "{warning}\n");
    }
    if let Some(why) = analysis.none_short() {
        let _ = writeln!(text, "where we fall short\n  {why}");
    } else {
        text.push_str("where we fall short\n");
        for short in &analysis.shortfalls {
            let doubt = if short.is_certain { "" } else { "  may be chance" };
            let _ = writeln!(
                text,
                "  {:<14} {:<30} {} is {:.2} of {} ({:.2} to {:.2}){doubt}",
                short.experiment,
                short.cell,
                short.ours,
                short.ratio.median,
                short.other,
                short.ratio.low,
                short.ratio.high
            );
        }
    }
    text
}

fn table(text: &mut String, experiment: &Experiment) {
    let is_tree = experiment.description.method == Method::Tree;
    let speed = if is_tree { "s" } else { "MB/s" };
    let _ = writeln!(
        text,
        "  {:<30} {:<24} {speed:>9} {:>17} {:>9} {:>9} {:>6}",
        "", "", "quartiles", "mean µs", "p99 µs", "ratio"
    );
    for cell in &experiment.cells {
        for (at, of) in cell.figures.iter().enumerate() {
            let name = if at == 0 { cell.cell.name.as_str() } else { "" };
            let spread = if is_tree { of.seconds } else { of.mb_s };
            let ratio = of.ratio.map_or_else(String::new, |ratio| format!("{:.2}", ratio.median));
            let _ = writeln!(
                text,
                "  {name:<30} {:<24} {:>9} {:>17} {:>9} {:>9} {ratio:>6}  {}",
                of.contender.to_string(),
                figure(spread.median),
                format!("{} to {}", figure(spread.low), figure(spread.high)),
                optional(of.mean_us),
                optional(of.p99_us),
                doubts(of)
            );
        }
    }
}

/// Every figure, as CSV.
///
/// # Errors
/// None but those of memory.
pub fn csv(analysis: &Analysis) -> Result<String, csv::Error> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record([
        "experiment",
        "cell",
        "block_bytes",
        "depth",
        "jobs",
        "contender",
        "runs",
        "disturbed",
        "steal_max",
        "others_max",
        "mb_s",
        "mb_s_low",
        "mb_s_high",
        "mean_us",
        "p99_us",
        "ratio",
        "ratio_low",
        "ratio_high",
        "ratio_of_none",
        "added_us",
        "seconds",
        "written_bytes",
        "load",
        "published",
        "published_figure",
    ])?;
    for experiment in &analysis.experiments {
        for cell in &experiment.cells {
            for of in &cell.figures {
                let optional =
                    |value: Option<f64>| value.map_or_else(String::new, |v| v.to_string());
                let published = published(cell, of, experiment.description.method);
                let join = |side: fn(&(String, String)) -> &String| {
                    published.iter().map(side).cloned().collect::<Vec<_>>().join("; ")
                };
                writer.write_record([
                    experiment.name.to_owned(),
                    cell.cell.name.clone(),
                    cell.cell.block_bytes.to_string(),
                    cell.cell.depth.to_string(),
                    cell.cell.jobs.to_string(),
                    of.contender.to_string(),
                    of.seconds.count.to_string(),
                    of.disturbed.to_string(),
                    of.steal_max.to_string(),
                    of.others_max.to_string(),
                    of.mb_s.median.to_string(),
                    of.mb_s.low.to_string(),
                    of.mb_s.high.to_string(),
                    optional(of.mean_us.map(|mean| mean.median)),
                    optional(of.p99_us.map(|p99| p99.median)),
                    optional(of.ratio.map(|ratio| ratio.median)),
                    optional(of.ratio.map(|ratio| ratio.low)),
                    optional(of.ratio.map(|ratio| ratio.high)),
                    optional(of.of_none.map(|ratio| ratio.median)),
                    optional(of.added_us.map(|added| added.median)),
                    of.seconds.median.to_string(),
                    of.device.map_or_else(String::new, |device| device.bytes.to_string()),
                    of.load.clone(),
                    join(|it| &it.0),
                    join(|it| &it.1),
                ])?;
            }
        }
    }
    let bytes = writer.into_inner().map_err(csv::IntoInnerError::into_error)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
