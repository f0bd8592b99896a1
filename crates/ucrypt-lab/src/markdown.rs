//! A run as Markdown: a document that stands beside others in a repository.

use std::fmt::Write as _;

use crate::analysis::{Analysis, CellFigures, Experiment, Figure};
use crate::catalogue::Method;
use crate::columns::{
    Bins, HEAT_MAP, HEAT_MAPS, SHARES, columns, distributions, heats, policies, policy_name,
    quantile,
};
use crate::page::date;
use crate::published;
use crate::short::Shortfall;
use crate::sim::history::{Short, Simulation};
use crate::store::About;
use crate::text::{below_one, doubts, figure, range};

/// Text as Markdown, on one line of a table: nothing in it is a mark.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\r' => escaped.push(' '),
            '\\' | '`' | '*' | '[' | ']' | '<' | '>' | '|' | '&' => {
                escaped.push('\\');
                escaped.push(c);
            }
            c => escaped.push(c),
        }
    }
    escaped
}

/// A line of code: no text ends it.
fn code(text: &str) -> String {
    text.replace(['\n', '\r'], " ").replace("```", "'''")
}

fn row(text: &mut String, cells: &[String]) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "| {} |", cells.join(" | "));
}

/// The head of a table. The first `words` columns hold words, the others figures.
fn head(text: &mut String, names: &[&str], words: usize) {
    let _ = writeln!(text, "\n| {} |", names.join(" | "));
    let marks = names.iter().enumerate().map(|(at, _)| if at < words { "---" } else { "---:" });
    let _ = writeln!(text, "|{}|", marks.collect::<Vec<_>>().join("|"));
}

fn ratio(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| format!("{value:.2}"))
}

fn value(value: Option<f64>) -> String {
    value.map_or_else(String::new, figure)
}

/// The document of a run, with a simulation if there is one.
pub fn markdown(analysis: &Analysis, simulated: Option<&Simulation>) -> String {
    let mut text = String::from("# Results\n");
    about(&mut text, analysis);
    shortfalls(&mut text, analysis, simulated);
    published_here(&mut text, analysis);
    left_out(&mut text);
    text.push_str("\n## Verdicts\n");
    for experiment in &analysis.experiments {
        let _ = writeln!(text, "- `{}`: {}", experiment.name, escape(&experiment.verdict));
    }
    for experiment in &analysis.experiments {
        figures(&mut text, experiment);
    }
    if let Some(simulated) = simulated {
        simulation(&mut text, simulated);
    }
    text
}

/// The document of a simulation alone.
pub fn of_simulation(simulated: &Simulation) -> String {
    let mut text = String::from("# Results in virtual time\n\n## Where we fall short\n");
    short_in_virtual_time(&mut text, simulated);
    simulation(&mut text, simulated);
    text
}

/// The machine of a run, and how it was measured.
fn here(text: &mut String, about: &About) {
    let (machine, settings) = (&about.machine, &about.settings);
    let _ = writeln!(
        text,
        "{}, {}, {} cores{}, {:.1} GiB of memory, Linux {}; on {}; {} interleaved rounds of {} ms. \
         Figures are medians.\n",
        date(about.started_s),
        escape(&machine.processor),
        machine.cores,
        if machine.virtual_machine { " of a virtual machine" } else { "" },
        machine.memory_bytes as f64 / f64::from(1 << 30),
        escape(&machine.kernel),
        escape(&settings.on.to_string()),
        settings.rounds,
        settings.time_ms
    );
}

fn about(text: &mut String, analysis: &Analysis) {
    let about = &analysis.about;
    let (machine, settings) = (&about.machine, &about.settings);
    if let Some(simulated) = &about.simulated {
        let date = date(about.started_s);
        let _ = writeln!(text, "{date}, in virtual time, on a model of {}.\n", escape(simulated));
    } else {
        here(text, about);
    }
    let versions = machine.versions.iter();
    let versions: Vec<_> =
        versions.map(|(name, version)| format!("{} {}", escape(name), escape(version))).collect();
    let _ = writeln!(text, "Versions: {}.\n", versions.join(", "));
    let _ = writeln!(text, "```sh\n{}\n```", code(&settings.command));
    if let Some(warning) = analysis.warning() {
        let _ = writeln!(text, "\n**{}**", escape(&warning));
    }
    if about.storage.cached {
        text.push_str(
            "\n**The file system has no direct I/O: the page cache was measured with it.**\n",
        );
    }
}

fn shortfalls(text: &mut String, analysis: &Analysis, simulated: Option<&Simulation>) {
    text.push_str("\n## Where we fall short\n");
    let (certain, chance): (Vec<_>, Vec<_>) =
        analysis.shortfalls.iter().partition(|short| short.is_certain);
    let table = |text: &mut String, rows: &[&Shortfall]| {
        head(text, &["experiment", "cell", "ours", "worse than", "in", "ratio", "quartiles"], 5);
        for short in rows {
            row(
                text,
                &[
                    short.experiment.into(),
                    escape(&short.cell),
                    short.ours.to_string(),
                    short.other.to_string(),
                    short.what.into(),
                    below_one(short.ratio.median),
                    format!("{:.2} to {:.2}", short.ratio.low, short.ratio.high),
                ],
            );
        }
    };
    let said = analysis.none_short().unwrap_or_else(|| {
        format!(
            "Of {} pairs compared, {} rows that are more than chance, and {} that may be chance.",
            analysis.compared,
            certain.len(),
            chance.len()
        )
    });
    let _ = writeln!(text, "{}", escape(&said));
    if !certain.is_empty() {
        table(text, &certain);
    }
    if let Some(simulated) = simulated {
        short_in_virtual_time(text, simulated);
    }
    if !chance.is_empty() {
        text.push_str("\nMay be chance:\n");
        table(text, &chance);
    }
}

fn short_in_virtual_time(text: &mut String, simulated: &Simulation) {
    let _ = writeln!(text, "\n{}", simulated.short());
    let all = simulated.shortfalls();
    if all.is_empty() {
        return;
    }
    let names = ["experiment", "row", "worse than", "unit", "its figure", "adaptive", "ratio"];
    head(text, &names, 4);
    for Short { row: it, other, figure: its, ratio } in all {
        row(
            text,
            &[
                escape(&it.experiment),
                escape(&it.row),
                escape(other),
                escape(&it.unit),
                figure(its),
                value(it.adaptive),
                below_one(ratio),
            ],
        );
    }
}

fn published_here(text: &mut String, analysis: &Analysis) {
    text.push_str(
        "\n## Published, and here\n\"Of raw\" is the figure over that of the unencrypted target: of the \
         same publication, and of this run. \"Here by\" names the contender that stands for what was \
         published. Published figures are of other machines.\n",
    );
    let repeats = |it: &&Experiment| !it.description.tables.is_empty();
    for experiment in analysis.experiments.iter().filter(repeats) {
        let _ = writeln!(text, "\n### {}", experiment.name);
        let _ = writeln!(text, "Here on {}.", escape(&experiment.on));
        for table in experiment.description.tables {
            let (who, hardware) = table.source();
            let _ = writeln!(text, "Published in `{}`: {who}; {hardware}.", table.file);
        }
        if experiment.beside.is_empty() {
            text.push_str("None of these rows was in this run.\n");
            continue;
        }
        let names = [
            "cell",
            "published",
            "unit",
            "published",
            "of raw",
            "here by",
            "here",
            "of raw",
            "adaptive",
            "of raw",
        ];
        head(text, &names, 3);
        for it in &experiment.beside {
            row(
                text,
                &[
                    escape(&it.cell),
                    escape(&it.label),
                    it.unit.into(),
                    figure(it.published),
                    ratio(it.published_of_raw),
                    it.contender.into(),
                    value(it.here),
                    ratio(it.here_of_raw),
                    value(it.adaptive),
                    ratio(it.adaptive_of_raw),
                ],
            );
        }
    }
}

/// Published figures that no run shows.
fn left_out(text: &mut String) {
    text.push_str("\nPublished figures that no run shows:\n");
    for left in published::LEFT_OUT {
        let line = format!("{}, {}: {}: {}", left.file, left.column, left.text, left.why);
        let _ = writeln!(text, "- {}", escape(&line));
    }
}

fn figures(text: &mut String, experiment: &Experiment) {
    let is_tree = experiment.description.method == Method::Tree;
    let speed = if is_tree { "s (quartiles)" } else { "MB/s (quartiles)" };
    let (name, question) = (experiment.name, escape(experiment.description.question));
    let _ = writeln!(text, "\n## {name}\n{question} {}", experiment.measured());
    let columns = columns(experiment);
    let mut names = vec!["cell", "contender", speed];
    names.extend(columns.iter().map(|(name, _)| *name));
    names.extend(["runs", "doubts"]);
    head(text, &names, 2);
    for cell in &experiment.cells {
        for (at, of) in cell.figures.iter().enumerate() {
            let mut cells = vec![
                if at == 0 { escape(&cell.cell.name) } else { String::new() },
                of.contender.to_string(),
                range(if is_tree { of.seconds } else { of.mb_s }),
            ];
            cells.extend(columns.iter().map(|(_, text)| text(cell, of)));
            cells.extend([of.seconds.count.to_string(), doubts(of)]);
            row(text, &cells);
        }
    }
    for (at, note) in experiment.notes.iter().enumerate() {
        let _ = writeln!(text, "{}- {}", if at == 0 { "\n" } else { "" }, escape(note));
    }
    if experiment.name == HEAT_MAP {
        heat_maps(text, experiment);
    }
    for cell in experiment.cells.iter().filter(|cell| Bins::of(cell).is_some()) {
        slices(text, cell);
    }
    for cell in distributions(experiment) {
        latencies(text, cell);
    }
}

fn heat_maps(text: &mut String, experiment: &Experiment) {
    let policies = policies(experiment);
    for (title, merit) in HEAT_MAPS {
        let _ = writeln!(text, "\n{title}:");
        let names: Vec<_> = policies.iter().map(|it| policy_name(*it)).collect();
        let mut head_names = vec!["cell"];
        head_names.extend(names.iter().map(String::as_str));
        head(text, &head_names, 1);
        for cell in &experiment.cells {
            let mut cells = vec![escape(&cell.cell.name)];
            cells.extend(heats(cell, &policies, merit).into_iter().map(ratio));
            row(text, &cells);
        }
    }
}

/// The distribution of the speeds of slices.
fn slices(text: &mut String, cell: &CellFigures) {
    let Some(bins) = Bins::of(cell) else { return };
    text.push_str("\nSlices of 10 ms by their speed, in % of the slices:\n");
    let names: Vec<_> = cell.figures.iter().map(|it| it.contender.to_string()).collect();
    let mut head_names = vec!["MB/s"];
    head_names.extend(names.iter().map(String::as_str));
    head(text, &head_names, 1);
    for (at, name) in bins.names.iter().enumerate() {
        let mut cells = vec![name.clone()];
        cells.extend(bins.shares.iter().map(|shares| format!("{:.1}", shares[at])));
        row(text, &cells);
    }
}

fn latencies(text: &mut String, cell: &CellFigures) {
    let timed = |of: &&Figure| !of.quantiles.is_empty();
    if !cell.figures.iter().any(|of| timed(&of)) {
        return;
    }
    let _ = writeln!(text, "\nLatency by percentile in µs, {}:", escape(&cell.cell.name));
    let names = SHARES.map(|share| format!("p{}", share * 100.0));
    let mut head_names = vec!["contender"];
    head_names.extend(names.iter().map(String::as_str));
    head(text, &head_names, 1);
    for of in cell.figures.iter().filter(timed) {
        let mut cells = vec![of.contender.to_string()];
        cells.extend(SHARES.map(|share| value(quantile(of, share))));
        row(text, &cells);
    }
}

fn simulation(text: &mut String, simulation: &Simulation) {
    let _ = writeln!(
        text,
        "\n## In virtual time, on the published machines\n{}",
        escape(&simulation.verdict())
    );
    if !simulation.command.is_empty() {
        let _ = writeln!(text, "\n```sh\n{}\n```", code(&simulation.command));
    }
    if let Some(changes) = simulation.changes.describe() {
        let _ = writeln!(text, "\n**The machines were changed: {}.**", escape(&changes));
    }
    if !simulation.checks.is_empty() {
        head(text, &["load on this machine", "", "MB/s here", "simulated", "error"], 2);
        for check in &simulation.checks {
            row(
                text,
                &[
                    escape(&check.load),
                    if check.fitted { "fitted".into() } else { String::new() },
                    figure(check.measured),
                    figure(check.simulated),
                    format!("{:+.0} %", check.error() * 100.0),
                ],
            );
        }
    }
    let names =
        ["experiment", "row", "policy", "unit", "", "published", "simulated", "error", "adaptive"];
    head(text, &names, 5);
    for it in &simulation.rows {
        row(
            text,
            &[
                escape(&it.experiment),
                escape(&it.row),
                escape(&it.policy),
                escape(&it.unit),
                if it.fitted { "fitted".into() } else { String::new() },
                figure(it.published),
                figure(it.simulated),
                it.error().map_or_else(String::new, |error| format!("{:+.0} %", error * 100.0)),
                value(it.adaptive),
            ],
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::tests::{analysis, simulated};

    #[test]
    fn the_document_begins_with_where_we_fall_short_and_has_every_table() {
        let analysis = analysis();
        let text = markdown(&analysis, Some(&simulated()));
        let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what} is missing"));
        assert!(at("## Where we fall short") < at("## Published, and here"));
        assert!(at("## Published, and here") < at("## Verdicts"));
        for experiment in &analysis.experiments {
            at(&format!("\n## {}\n", experiment.name));
            for table in experiment.description.tables {
                at(&format!("`{}`", table.file));
            }
        }
        // Every row of a table has the columns of its head.
        let mut columns = 0;
        for line in text.lines() {
            let bars = line.replace("\\|", "").matches('|').count();
            match (line.starts_with('|'), columns) {
                (true, 0) => columns = bars,
                (true, columns) => assert_eq!(bars, columns, "{line}"),
                (false, _) => columns = 0,
            }
        }
        // What the page shows of single experiments.
        for needed in [
            "continued",
            "MB written",
            "merged",
            "of best",
            "modes at MB/s",
            "added µs",
            "| ≥ ",
            "p99.9",
        ] {
            at(needed);
        }
        let alone = of_simulation(&simulated());
        assert!(alone.starts_with("# Results") && alone.contains("In virtual time"), "{alone}");
        // Texts of a file are text.
        let fences: Vec<&str> = text.split("```").collect();
        let prose: String = fences.iter().step_by(2).copied().collect();
        assert!(prose.contains("\\<b\\>row") && !prose.contains("<b>"), "hostile");
        // Both commands, in which there is nothing but text.
        assert!(fences.len() == 5 && fences[3].contains("<b>command</b>"), "{fences:?}");
    }
}
