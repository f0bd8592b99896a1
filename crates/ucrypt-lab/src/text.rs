//! Results as tables for a terminal, as CSV and as rows of virtual time.

use std::fmt::Write as _;

use crate::analysis::{Analysis, CellFigures, Experiment, Figure, Spread};
use crate::catalogue::{Method, Published};
use crate::columns::{SPEED, TAIL, of_best, quantile};
use crate::modes::modes;
use crate::served::THROUGH_CACHE;
use crate::sim::VIRTUAL_TIME;
use crate::sim::history::{Row, Short, Simulation};

/// A figure with as many digits as it is worth.
pub fn figure(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0..100.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// A ratio below 1, with so many digits that it is not written as 1.
pub fn below_one(ratio: f64) -> String {
    let digits = (2..9).find(|digits| format!("{ratio:.digits$}").starts_with('0')).unwrap_or(9);
    format!("{ratio:.digits$}")
}

/// The median of a figure that was not taken everywhere; empty where it was not.
pub fn optional(spread: Option<Spread>) -> String {
    spread.map_or_else(String::new, |spread| figure(spread.median))
}

/// Seconds, with their unit, or minutes.
pub fn seconds(seconds: f64) -> String {
    if seconds < 600.0 {
        format!("{} s", figure(seconds))
    } else {
        format!("{:.0} min", seconds / 60.0)
    }
}

/// A median with its quartiles.
pub fn range(spread: Spread) -> String {
    format!("{} ({} to {})", figure(spread.median), figure(spread.low), figure(spread.high))
}

/// What makes a figure doubtful, in a few words; empty if nothing does.
pub fn doubts(of: &Figure) -> String {
    let mut doubts = Vec::new();
    // There is no chance in virtual time.
    let is_virtual = of.load == VIRTUAL_TIME;
    if of.seconds.count == 1 && !is_virtual {
        doubts.push("one run".to_owned());
    } else if !is_virtual && (if of.device.is_some() { of.seconds } else { of.mb_s }).is_wide() {
        // The spread of what is shown: of kernel-tree the time.
        doubts.push("wide spread".to_owned());
    }
    if let Some(seen) = of.in_flight {
        doubts.push(format!(
            "mean latency times speed is {} requests under way, not those of the load (Little's law)",
            figure(seen)
        ));
    }
    if of.load.contains(THROUGH_CACHE) {
        doubts.push(THROUGH_CACHE.to_owned());
    }
    if of.disturbed > 0 {
        doubts.push(format!(
            "{} of {} disturbed (steal up to {:.0} %, others up to {:.0} %{})",
            of.disturbed,
            of.seconds.count,
            of.steal_max * 100.0,
            of.others_max * 100.0,
            of.pressure_max.describe().map_or_else(String::new, |waited| format!("; {waited}"))
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
    let with = |value: Option<f64>, unit: &str| value.map(|it| format!("{} {unit}", figure(it)));
    let text = |it: &Published| {
        let (low, high) = it.modes_mb_s.unzip();
        let all = match method {
            Method::Added => vec![with(it.mean_us, "µs")],
            Method::Tree => vec![
                it.slowdown.map(|slowdown| format!("{slowdown:.2} times")),
                with(it.seconds, "s"),
                it.writes.map(|writes| format!("{writes:.0} writes")),
                with(it.kib_a_write, "KiB a write"),
                it.writes_below.map(|writes| format!("{writes:.0} writes below")),
            ],
            _ => vec![
                with(it.mb_s, "MB/s"),
                with(low, "MB/s in the lower mode"),
                with(high, "MB/s in the upper mode"),
            ],
        };
        let all: Vec<_> = all.into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join(", "))
    };
    of_it.filter_map(|it| Some((it.label.to_owned(), text(it)?))).collect()
}

/// The tables of a run.
pub fn tables(analysis: &Analysis) -> String {
    let mut text = String::new();
    for experiment in &analysis.experiments {
        // Writing to a string cannot fail.
        let (name, on, verdict) = (experiment.name, &experiment.on, &experiment.verdict);
        let _ = writeln!(text, "{name} ({on})\n  {verdict}\n  {}", experiment.measured());
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
                "  {:<14} {:<30} {} is worse than {} in {}: {} ({:.2} to {:.2}){doubt}",
                short.experiment,
                short.cell,
                short.ours,
                short.other,
                short.what,
                below_one(short.ratio.median),
                short.ratio.low,
                short.ratio.high
            );
        }
    }
    text
}

/// Rows of a simulation in which adaptive is worse, for a terminal.
pub fn short_in_virtual_time(simulation: &Simulation) -> String {
    let mut text = format!("where we fall short\n  {}\n", simulation.short());
    for Short { row, other, figure: its, ratio } in simulation.shortfalls() {
        let _ = writeln!(
            text,
            "  {:<14} {:<46} {}: {other} {}, adaptive {} {}",
            row.experiment,
            row.row,
            below_one(ratio),
            figure(its),
            row.adaptive.map_or_else(String::new, figure),
            row.unit
        );
    }
    text
}

fn table(text: &mut String, experiment: &Experiment) {
    let method = experiment.description.method;
    let is_tree = method == Method::Tree;
    let speed = if is_tree { "s" } else { "MB/s" };
    // Of latencies added, what is asked for is the difference.
    let added = |of: &Figure| of.added_us.filter(|_| method == Method::Added);
    let _ = writeln!(
        text,
        "  {:<30} {:<24} {speed:>9} {:>17} {:>9} {:>9} {:>6} {:>4}{}",
        "",
        "",
        "quartiles",
        "mean µs",
        "p99 µs",
        "ratio",
        "runs",
        if method == Method::Added { "  added µs (quartiles)" } else { "" }
    );
    for cell in &experiment.cells {
        for (at, of) in cell.figures.iter().enumerate() {
            let name = if at == 0 { cell.cell.name.as_str() } else { "" };
            let spread = if is_tree { of.seconds } else { of.mb_s };
            let ratio = of.ratio.map_or_else(String::new, |ratio| format!("{:.2}", ratio.median));
            let _ = writeln!(
                text,
                "  {name:<30} {:<24} {:>9} {:>17} {:>9} {:>9} {ratio:>6} {:>4}{}  {}",
                of.contender.to_string(),
                figure(spread.median),
                format!("{} to {}", figure(spread.low), figure(spread.high)),
                optional(of.mean_us),
                optional(of.p99_us),
                of.seconds.count,
                added(of).map_or_else(String::new, |it| format!("  {}", range(it))),
                doubts(of)
            );
        }
    }
}

/// A row of the CSV file.
struct Line<'a> {
    experiment: &'a Experiment,
    cell: &'a CellFigures,
    of: &'a Figure,
}

/// A column of the CSV file; empty where nothing was measured.
type Field = (&'static str, fn(&Line<'_>) -> String);

fn exact<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

fn median(spread: Option<Spread>) -> String {
    exact(spread.map(|spread| spread.median))
}

fn list<T: ToString>(values: impl IntoIterator<Item = T>) -> String {
    values.into_iter().map(|value| value.to_string()).collect::<Vec<_>>().join("; ")
}

fn published_at(line: &Line<'_>) -> Vec<(String, String)> {
    published(line.cell, line.of, line.experiment.description.method)
}

const FIELDS: [Field; 53] = [
    ("experiment", |it| it.experiment.name.into()),
    ("cell", |it| it.cell.cell.name.clone()),
    ("block_bytes", |it| it.cell.cell.block_bytes.to_string()),
    ("depth", |it| it.cell.cell.depth.to_string()),
    ("jobs", |it| it.cell.cell.jobs.to_string()),
    ("contender", |it| it.of.contender.to_string()),
    ("runs", |it| it.of.seconds.count.to_string()),
    ("disturbed", |it| it.of.disturbed.to_string()),
    ("steal_max", |it| it.of.steal_max.to_string()),
    ("others_max", |it| it.of.others_max.to_string()),
    ("mb_s", |it| it.of.mb_s.median.to_string()),
    ("mb_s_low", |it| it.of.mb_s.low.to_string()),
    ("mb_s_high", |it| it.of.mb_s.high.to_string()),
    ("mean_us", |it| median(it.of.mean_us)),
    ("p1_us", |it| exact(quantile(it.of, 0.01))),
    ("p10_us", |it| exact(quantile(it.of, 0.1))),
    ("p50_us", |it| exact(quantile(it.of, 0.5))),
    ("p80_us", |it| exact(quantile(it.of, 0.8))),
    ("p90_us", |it| exact(quantile(it.of, 0.9))),
    ("p95_us", |it| exact(quantile(it.of, 0.95))),
    ("p99_us", |it| median(it.of.p99_us)),
    ("p999_us", |it| exact(quantile(it.of, 0.999))),
    ("ratio", |it| median(it.of.ratio)),
    ("ratio_low", |it| exact(it.of.ratio.map(|ratio| ratio.low))),
    ("ratio_high", |it| exact(it.of.ratio.map(|ratio| ratio.high))),
    ("ratio_of_none", |it| median(it.of.of_none)),
    ("ratio_of_best", |it| exact(of_best(it.cell, it.of, SPEED))),
    ("p99_best_over_its", |it| exact(of_best(it.cell, it.of, TAIL))),
    ("added_us", |it| median(it.of.added_us)),
    ("added_us_low", |it| exact(it.of.added_us.map(|added| added.low))),
    ("added_us_high", |it| exact(it.of.added_us.map(|added| added.high))),
    ("processor_us", |it| median(it.of.processor_us)),
    ("processor_client_us", |it| exact(it.of.processor.map(|it| it.client_us))),
    ("processor_server_us", |it| exact(it.of.processor.map(|it| it.server_us))),
    ("processor_rest_us", |it| exact(it.of.processor.map(|it| it.rest_us))),
    ("seconds", |it| it.of.seconds.median.to_string()),
    ("seconds_low", |it| it.of.seconds.low.to_string()),
    ("seconds_high", |it| it.of.seconds.high.to_string()),
    ("written_bytes", |it| exact(it.of.device.map(|it| it.bytes))),
    ("device_writes", |it| exact(it.of.device.map(|it| it.writes))),
    ("device_kib_a_write", |it| exact(it.of.device.map(|it| it.kib_a_write()))),
    ("device_merges", |it| exact(it.of.device.map(|it| it.merges))),
    ("device_busy_ms", |it| exact(it.of.device.map(|it| it.busy_ms))),
    ("below_writes", |it| exact(it.of.below.map(|it| it.writes))),
    ("below_kib_a_write", |it| exact(it.of.below.map(|it| it.kib_a_write()))),
    ("backend_writes", |it| exact(it.of.order.map(|it| it.writes))),
    ("backend_continued", |it| exact(it.of.order.map(|it| it.continued))),
    ("backend_kib_a_write", |it| exact(it.of.order.map(|it| it.kib_a_write()))),
    ("modes_mb_s", |it| list(modes(&it.of.slices_mb_s))),
    ("slices_mb_s", |it| list(&it.of.slices_mb_s)),
    ("load", |it| it.of.load.clone()),
    ("published", |it| list(published_at(it).into_iter().map(|(label, _)| label))),
    ("published_figure", |it| list(published_at(it).into_iter().map(|(_, figure)| figure))),
];

/// A column of the rows of a simulation.
type SimulatedField = (&'static str, fn(&Row) -> String);

/// Columns of the rows of a simulation, which have the experiment, the row and the policy in the
/// first columns as well.
const SIMULATED: [SimulatedField; 7] = [
    ("unit_in_virtual_time", |it| it.unit.clone()),
    ("published_in_virtual_time", |it| it.published.to_string()),
    ("simulated", |it| it.simulated.to_string()),
    ("simulation_error", |it| exact(it.error())),
    ("adaptive_simulated", |it| exact(it.adaptive)),
    ("raw_simulated", |it| exact(it.raw)),
    ("fitted", |it| it.fitted.to_string()),
];

/// Every figure, as CSV: those of a run, then those of a simulation.
///
/// # Errors
/// None but those of memory.
pub fn csv(
    analysis: Option<&Analysis>,
    simulation: Option<&Simulation>,
) -> Result<String, csv::Error> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let names = FIELDS.iter().map(|(name, _)| *name);
    writer.write_record(names.chain(SIMULATED.iter().map(|(name, _)| *name)))?;
    let none = || SIMULATED.iter().map(|_| String::new());
    for experiment in analysis.iter().flat_map(|analysis| &analysis.experiments) {
        for cell in &experiment.cells {
            for of in &cell.figures {
                let line = Line { experiment, cell, of };
                writer.write_record(FIELDS.iter().map(|(_, field)| field(&line)).chain(none()))?;
            }
        }
    }
    for row in simulation.iter().flat_map(|simulation| &simulation.rows) {
        let named = FIELDS.iter().map(|(name, _)| match *name {
            "experiment" => row.experiment.clone(),
            "cell" => row.row.clone(),
            "contender" => row.policy.clone(),
            "load" => IN_VIRTUAL_TIME.into(),
            _ => String::new(),
        });
        writer.write_record(named.chain(SIMULATED.iter().map(|(_, field)| field(row))))?;
    }
    let bytes = writer.into_inner().map_err(csv::IntoInnerError::into_error)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// What made the load of a simulated row.
const IN_VIRTUAL_TIME: &str = "virtual time";

/// A run and a simulation, as far as there are.
#[derive(Debug, serde::Serialize)]
struct Both<'a> {
    #[serde(flatten)]
    analysis: Option<&'a Analysis>,
    simulation: Option<&'a Simulation>,
}

/// Every figure, as JSON: the analysis of a run, with the `simulation` beside it.
///
/// # Errors
/// None but those of memory.
pub fn json(
    analysis: Option<&Analysis>,
    simulation: Option<&Simulation>,
) -> Result<String, serde_json::Error> {
    serde_json::to_string_pretty(&Both { analysis, simulation })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::tests::{analysis, simulated};
    use crate::pressure::Pressure;

    #[test]
    fn every_column_of_the_csv_file_has_a_value_somewhere() {
        let (analysis, simulated) = (analysis(), simulated());
        let text = csv(Some(&analysis), Some(&simulated)).expect("CSV");
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let names = reader.headers().expect("names").clone();
        let rows: Vec<_> = reader.records().map(|row| row.expect("a row")).collect();
        for (at, name) in names.iter().enumerate() {
            assert!(rows.iter().any(|row| !row[at].is_empty()), "{name} is always empty");
        }
        let of_simulation = rows.iter().filter(|row| row.iter().any(|it| it == IN_VIRTUAL_TIME));
        assert_eq!(of_simulation.count(), simulated.rows.len());
        let alone = csv(None, Some(&simulated)).expect("CSV");
        assert_eq!(alone.lines().count(), 1 + simulated.rows.len());
    }

    #[test]
    fn a_spread_that_is_too_wide_is_called_so_on_the_page_and_in_the_tables() {
        let mut analysis = analysis();
        let forms = |analysis: &Analysis| {
            let page = crate::page::html(analysis, None);
            let page = page.split("<section id=\"machine\"").next().unwrap_or_default().to_owned();
            let said = [tables(analysis), page, crate::markdown::markdown(analysis, None)];
            said.map(|text| text.matches("wide spread").count())
        };
        assert_eq!(forms(&analysis), [0; 3]);
        // Of what is shown: of kernel-tree the time.
        for experiment in &mut analysis.experiments {
            let is_tree = experiment.description.method == Method::Tree;
            let of = &mut experiment.cells[0].figures[0];
            let shown = if is_tree { &mut of.seconds } else { &mut of.mb_s };
            shown.high = shown.median * 1.2;
        }
        assert_eq!(forms(&analysis), [analysis.experiments.len(); 3]);
    }

    #[test]
    fn what_tasks_waited_for_stands_where_a_run_is_marked() {
        let mut analysis = analysis();
        let of = &mut analysis.experiments[0].cells[0].figures[0];
        of.pressure_max = Pressure { io: Some(0.5), load: Some(7.0), ..Pressure::default() };
        assert!(!doubts(of).contains("waited"), "nothing disturbed it");
        of.disturbed = 1;
        assert!(doubts(of).contains("waited for storage 50 %"), "{}", doubts(of));
        assert!(crate::page::html(&analysis, None).contains("load 7.0"));
    }

    #[test]
    fn who_goes_through_the_page_cache_where_others_do_not_is_named_at_its_row() {
        let mut analysis = analysis();
        let of = &mut analysis.experiments[0].cells[0].figures[0];
        assert!(!doubts(of).contains("page cache"), "{of:?}");
        of.load = format!("fio-3.33; {THROUGH_CACHE}");
        assert!(doubts(of).contains("its files through the page cache"), "{of:?}");
        assert!(crate::page::html(&analysis, None).contains(THROUGH_CACHE));
    }

    #[test]
    fn spreads_numbers_of_runs_and_the_time_stand_in_every_form() {
        let analysis = analysis();
        let terminal = tables(&analysis);
        let page = crate::page::html(&analysis, None);
        let markdown = crate::markdown::markdown(&analysis, None);
        for name in ["added-latency", "kernel-tree"] {
            let its = analysis.experiments.iter().find(|it| it.name == name).expect("it ran");
            let time = its.measured();
            let runs: usize =
                its.cells.iter().flat_map(|it| &it.figures).map(|it| it.seconds.count).sum();
            assert!(time.contains(&format!("{runs} measurements")), "{time}");
            let form = |text: &str, begin: &str, end: &str| {
                let from = text.split(begin).nth(1).unwrap_or_else(|| panic!("{begin} of {name}"));
                from.split(end).next().unwrap_or_default().to_owned()
            };
            for section in [
                form(&terminal, &format!("{name} ("), "\n\n"),
                form(&page, &format!("<section id=\"{name}\""), "</section>"),
                form(&markdown, &format!("\n## {name}\n"), "\n## "),
            ] {
                assert!(section.contains(&time), "{time}: {section}");
                assert!(section.contains("runs") && section.contains("quartiles"), "{section}");
                let is_added = name == "added-latency";
                assert_eq!(section.contains("added µs (quartiles)"), is_added, "{section}");
            }
        }
    }

    #[test]
    fn json_has_the_run_and_the_simulation() {
        let (analysis, simulated) = (analysis(), simulated());
        let of = |analysis, simulation| {
            let text = json(analysis, simulation).expect("JSON");
            let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            let experiments = value["experiments"].as_array().map(Vec::len);
            (experiments, value["simulation"]["rows"].as_array().map(Vec::len))
        };
        let all = Some(analysis.experiments.len());
        assert_eq!(of(Some(&analysis), Some(&simulated)), (all, Some(2)));
        assert_eq!(of(Some(&analysis), None), (all, None));
        assert_eq!(of(None, Some(&simulated)), (None, Some(2)));
    }
}
