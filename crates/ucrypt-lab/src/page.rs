//! The page: one HTML file that needs nothing else, no network and no script.

use std::fmt::Write as _;
use std::time::Duration;

use crate::Pattern;
use crate::analysis::{Analysis, CellFigures, Experiment, Figure, OF_RAW_MIN, find};
use crate::catalogue::{Method, Scale, size_name};
use crate::columns::{
    Bins, HEAT_MAP, HEAT_MAPS, Merit, SHARES, columns, distributions, of_best, policies,
    policy_name, quantile,
};
use crate::contender::Contender;
use crate::published;
use crate::sim::history::{ERROR_MAX, Short, Simulation};
use crate::store::About;
use crate::target::Target;
use crate::text::{below_one, doubts, figure, published as published_of, range};

mod chart;

use chart::{COLOURS, Chart, DASHES, Kind, Look, Series};

/// Text as HTML.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

/// The style sheet, with the colours of the charts.
fn style() -> String {
    let mut style = include_str!("page/style.css").to_owned();
    // The last one is grey.
    for at in 0..=COLOURS {
        let colour = format!("var(--c{at})");
        // Writing to a string cannot fail.
        let _ = writeln!(
            style,
            "svg [stroke=\"#E000{at:02X}\"]{{stroke:{colour}}}svg [fill=\"#E000{at:02X}\"]{{fill:{colour}}}"
        );
        for (group, (dash, opacity)) in DASHES.iter().enumerate() {
            let _ = writeln!(
                style,
                "svg [stroke=\"#E01{group}{at:02X}\"]{{stroke:{colour};stroke-dasharray:{dash}}}\
                 svg [fill=\"#E01{group}{at:02X}\"]{{fill:{colour};fill-opacity:{opacity}}}"
            );
        }
    }
    style
}

/// The page up to its heading.
fn begin(heading: &str) -> String {
    let mut html =
        String::from("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    html.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">");
    html.push_str("<title>ucrypt lab</title>\n<style>\n");
    html.push_str(&style());
    // Writing to a string cannot fail.
    let _ = writeln!(html, "</style></head>\n<body>\n<h1>{heading}</h1>");
    html
}

/// The page of a simulation alone. No text of it is trusted.
pub fn of_simulation(simulated: &Simulation) -> String {
    let mut html = begin("What encryption costs in virtual time");
    html.push_str("<section id=\"short\"><h2>Where we fall short</h2>\n");
    short_in_virtual_time(&mut html, simulated);
    html.push_str("</section>\n");
    simulation(&mut html, simulated);
    html.push_str("</body></html>\n");
    html
}

/// The page of a run, with a simulation if there is one. No text of either is trusted: files may
/// have been changed.
pub fn html(analysis: &Analysis, simulated: Option<&Simulation>) -> String {
    let mut html = begin("What encryption costs here");
    let about = &analysis.about;
    let date = date(about.started_s);
    let machine = &about.machine;
    if let Some(simulated) = &about.simulated {
        let (simulated, cores) = (escape(simulated), machine.cores);
        let _ = writeln!(
            html,
            "<p class=\"soft\">{date} · in virtual time, on a model of {simulated} · {cores} cores</p>"
        );
    } else {
        html.push_str(&here(about, &date));
    }
    if let Some(warning) = analysis.warning() {
        let _ = writeln!(html, "<p class=\"verdict bad\">{}</p>", escape(&warning));
    }
    if about.storage.cached {
        let _ = writeln!(
            html,
            "<p class=\"verdict bad\">{}</p>",
            escape(&format!(
                "The file system of {} has no direct I/O: the page cache was measured with it.",
                about.settings.on
            ))
        );
    }
    shortfalls(&mut html, analysis, simulated);
    summary(&mut html, analysis);
    for experiment in &analysis.experiments {
        section(&mut html, experiment);
    }
    if let Some(simulated) = simulated {
        simulation(&mut html, simulated);
    }
    context(&mut html, analysis);
    html.push_str("</body></html>\n");
    html
}

/// The machine of a run, and how it was measured.
fn here(about: &About, date: &str) -> String {
    let machine = &about.machine;
    format!(
        "<p class=\"soft\">{date} · {} · {} cores{} · Linux {} · on {} · {} rounds of {} ms</p>\n",
        escape(&machine.processor),
        machine.cores,
        if machine.virtual_machine { ", virtual" } else { "" },
        escape(&machine.kernel),
        escape(&about.settings.on.to_string()),
        about.settings.rounds,
        about.settings.time_ms
    )
}

/// A day, from seconds since 1970 (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
pub(crate) fn date(seconds: u64) -> String {
    let days =
        i64::try_from(Duration::from_secs(seconds).as_secs() / 86_400).unwrap_or(0) + 719_468;
    let era = days.div_euclid(146_097);
    let day = days.rem_euclid(146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) =
        (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = year + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

fn shortfalls(html: &mut String, analysis: &Analysis, simulated: Option<&Simulation>) {
    html.push_str("<section id=\"short\"><h2>Where we fall short</h2>\n");
    let (certain, chance): (Vec<_>, Vec<_>) =
        analysis.shortfalls.iter().partition(|short| short.is_certain);
    if let Some(why) = analysis.none_short() {
        let class = if analysis.compared.min(analysis.telling) == 0 { "soft" } else { "good" };
        let _ = writeln!(html, "<p class=\"{class}\">{}</p>", escape(&why));
    } else if certain.is_empty() && analysis.chance().is_none() {
        html.push_str("<p class=\"good\">Nowhere beyond chance.</p>\n");
    }
    if let Some(chance) = analysis.chance().filter(|_| !analysis.shortfalls.is_empty()) {
        let _ = writeln!(html, "<p class=\"soft\">{chance}</p>");
    }
    let table = |html: &mut String, rows: &[&crate::short::Shortfall]| {
        html.push_str("<div class=\"table\"><table><thead><tr><th>experiment</th>");
        html.push_str("<th class=\"word\">cell</th><th class=\"word\">ours</th>");
        html.push_str("<th class=\"word\">worse than</th><th class=\"word\">in</th>");
        html.push_str("<th>ratio</th><th>quartiles</th>");
        html.push_str("</tr></thead><tbody>\n");
        for short in rows {
            let _ = writeln!(
                html,
                "<tr><td>{}</td><td class=\"word\">{}</td><td class=\"word\">{}</td>\
                 <td class=\"word\">{}</td><td class=\"word\">{}</td><td class=\"bad\">{}</td>\
                 <td>{:.2} to {:.2}</td></tr>",
                short.experiment,
                escape(&short.cell),
                short.ours,
                short.other,
                short.what,
                below_one(short.ratio.median),
                short.ratio.low,
                short.ratio.high
            );
        }
        html.push_str("</tbody></table></div>\n");
    };
    if !certain.is_empty() {
        table(html, &certain);
    }
    if let Some(simulated) = simulated {
        short_in_virtual_time(html, simulated);
    }
    if !chance.is_empty() {
        let _ = writeln!(
            html,
            "<h3>May be chance</h3><p class=\"soft\">In {} more rows the median is below, by no more than \
             chance explains among so many comparisons.</p>",
            chance.len()
        );
        table(html, &chance);
    }
    html.push_str("</section>\n");
}

fn short_in_virtual_time(html: &mut String, simulated: &Simulation) {
    let all = simulated.shortfalls();
    let class = if all.is_empty() { "good" } else { "soft" };
    let _ = writeln!(
        html,
        "<h3>In virtual time</h3><p class=\"{class}\">{}</p>",
        escape(&simulated.short())
    );
    if all.is_empty() {
        return;
    }
    html.push_str("<div class=\"table\"><table><thead><tr><th>experiment</th>");
    html.push_str(
        "<th class=\"word\">row</th><th class=\"word\">worse than</th><th>its figure</th>",
    );
    html.push_str(
        "<th>adaptive</th><th class=\"word\">unit</th><th>ratio</th></tr></thead><tbody>\n",
    );
    for Short { row, other, figure: its, ratio } in all {
        let _ = writeln!(
            html,
            "<tr><td>{}</td><td class=\"word\">{}</td><td class=\"word\">{}</td><td>{}</td>\
             <td>{}</td><td class=\"word\">{}</td><td class=\"bad\">{}</td></tr>",
            escape(&row.experiment),
            escape(&row.row),
            escape(other),
            figure(its),
            row.adaptive.map_or_else(String::new, figure),
            escape(&row.unit),
            below_one(ratio)
        );
    }
    html.push_str("</tbody></table></div>\n");
}

fn summary(html: &mut String, analysis: &Analysis) {
    html.push_str("<section id=\"summary\"><h2>Verdicts</h2>\n<div class=\"table\"><table>");
    html.push_str(
        "<thead><tr><th>experiment</th><th class=\"word\">verdict</th></tr></thead><tbody>",
    );
    for experiment in &analysis.experiments {
        let _ = writeln!(
            html,
            "<tr><td><a href=\"#{0}\">{0}</a></td><td class=\"long\">{1}</td></tr>",
            experiment.name,
            escape(&experiment.verdict)
        );
    }
    html.push_str("</tbody></table></div></section>\n");
}

fn section(html: &mut String, experiment: &Experiment) {
    let description = experiment.description;
    let _ = writeln!(
        html,
        "<section id=\"{0}\"><h2>{0}</h2>\n<p>{1}</p><p class=\"verdict\">{2}</p>\
         <p class=\"soft\">Where: {3}. {4}</p>",
        experiment.name,
        escape(description.question),
        escape(&experiment.verdict),
        escape(&experiment.on),
        experiment.measured()
    );
    for table in description.tables {
        let (who, hardware) = table.source();
        let source = format!("Published: {who}; {hardware}. ({})", table.file);
        let _ = writeln!(html, "<p class=\"soft\">{}</p>", escape(&source.replace('`', "")));
    }
    if experiment.name == HEAT_MAP {
        heat_maps(html, experiment);
    } else {
        charts(html, experiment);
    }
    if description.method == Method::Slices {
        slices(html, experiment);
    }
    latencies(html, experiment);
    published_here(html, experiment);
    figures(html, experiment);
    if !experiment.notes.is_empty() {
        html.push_str("<ul class=\"notes\">");
        for note in &experiment.notes {
            let _ = write!(html, "<li>{}</li>", escape(note));
        }
        html.push_str("</ul>\n");
    }
    html.push_str("</section>\n");
}

/// All contenders of an experiment, in their order.
fn contenders(experiment: &Experiment) -> Vec<Contender> {
    let mut all = Vec::new();
    for figure in experiment.cells.iter().flat_map(|cell| &cell.figures) {
        if !all.contains(&figure.contender) {
            all.push(figure.contender);
        }
    }
    all
}

/// The look of a contender: the same in every chart of an experiment.
fn look(experiment: &Experiment, contender: Contender) -> Look {
    let place = contenders(experiment).iter().position(|it| *it == contender);
    place.map_or(Look::NOBODY, Look::of)
}

/// A place on the x axis: what distinguishes the cells.
fn places(experiment: &Experiment) -> Vec<String> {
    let cells = &experiment.cells;
    let same = cells.iter().all(|of| {
        let (a, b) = (&of.cell, &cells[0].cell);
        (a.pattern, a.depth, a.jobs) == (b.pattern, b.depth, b.jobs)
    });
    let by_size = same && cells.len() > 1 && experiment.description.has_target();
    let name = |of: &CellFigures| {
        if by_size { size_name(of.cell.block_bytes) } else { short_name(&of.cell.name) }
    };
    cells.iter().map(name).collect()
}

/// A cell's name as far as there is room under a bar.
fn short_name(name: &str) -> String {
    const LEN: usize = 18;
    if name.chars().count() <= LEN {
        name.into()
    } else {
        name.chars().take(LEN - 1).chain(['…']).collect()
    }
}

/// The dash of the next published series of a colour.
fn dash(series: &[Series], look: Look) -> usize {
    let of_it = |of: &&Series| of.published.is_some() && of.look.colour == look.colour;
    series.iter().filter(of_it).count()
}

fn charts(html: &mut String, experiment: &Experiment) {
    let method = experiment.description.method;
    let (title, unit): (&str, &str) = match method {
        Method::Added => ("Latency added to the raw target", "µs, less is better"),
        Method::Tree => ("Run time", "s, less is better"),
        Method::Drives => ("Throughput in virtual time", "MB/s"),
        _ => ("Throughput", "MB/s"),
    };
    let value = |of: &Figure| match method {
        Method::Added => of.added_us.map(|added| added.median),
        Method::Tree => Some(of.seconds.median),
        _ => Some(of.mb_s.median),
    };
    let is_drawn = |contender: &Contender| method != Method::Added || !contender.is_ceiling();
    let measured = contenders(experiment).into_iter().filter(is_drawn);
    let mut series: Vec<Series> = measured
        .map(|contender| Series {
            label: contender.to_string(),
            published: None,
            look: look(experiment, contender),
            values: experiment.cells.iter().map(|cell| value(find(cell, contender)?)).collect(),
        })
        .collect();
    let mut labels: Vec<(&str, &str)> = Vec::new();
    for it in experiment.cells.iter().flat_map(|cell| &cell.cell.published) {
        if !labels.contains(&(it.contender, it.label)) {
            labels.push((it.contender, it.label));
        }
    }
    for (contender, label) in labels {
        let its = series.iter().find(|of| of.label == contender);
        let look = its.map_or(Look::NOBODY, |of| of.look);
        let values = experiment.cells.iter().map(|cell| {
            let it = cell
                .cell
                .published
                .iter()
                .find(|it| it.label == label && it.contender == contender)?;
            match method {
                Method::Added => it.mean_us,
                Method::Tree => it.seconds,
                _ => it.mb_s,
            }
        });
        series.push(Series {
            label: format!("published: {label}"),
            published: Some(dash(&series, look)),
            look,
            values: values.collect(),
        });
    }
    let places = places(experiment);
    // An axis begins at 0, or above it.
    let mut below: Vec<String> = Vec::new();
    for of in &series {
        for (place, value) in places.iter().zip(&of.values) {
            let not_above = value.filter(|value| *value <= 0.0);
            below.extend(not_above.map(|it| format!("{} at {place} ({it:.2})", of.label)));
        }
    }
    series.retain(|series| series.values.iter().any(Option::is_some));
    let values = || series.iter().flat_map(|it| &it.values).flatten().copied().filter(|v| *v > 0.0);
    let (least, most) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    let kind = Kind::of(places.len(), series.len());
    let log = most > 30.0 * least;
    let unit = if log { format!("{unit}, logarithmic") } else { unit.into() };
    html.push_str(&Chart { title, unit: &unit, places: places.clone(), series, kind, log }.html());
    if !below.is_empty() {
        let _ = writeln!(
            html,
            "<p class=\"soft\">Not in the chart, because not above 0: {}.</p>",
            escape(&below.join(", "))
        );
    }
    ratios(html, experiment, places);
}

/// Encrypted over raw, measured and published.
fn ratios(html: &mut String, experiment: &Experiment, places: Vec<String>) {
    if !matches!(experiment.description.method, Method::Load | Method::Order) {
        return;
    }
    let measured = contenders(experiment).into_iter().filter(|it| it.encrypts());
    let mut series: Vec<Series> = measured
        .map(|contender| Series {
            label: contender.to_string(),
            published: None,
            look: look(experiment, contender),
            values: experiment
                .cells
                .iter()
                .map(|cell| Some(find(cell, contender)?.ratio?.median))
                .collect(),
        })
        .collect();
    // Published rows come in pairs of the same place: the raw one stands before the encrypted one.
    let mut published: Vec<Series> = Vec::new();
    for (place, cell) in experiment.cells.iter().enumerate() {
        let mut raw = None;
        for it in &cell.cell.published {
            if ["raw", "loop-ext4"].contains(&it.contender) {
                raw = it.mb_s;
                continue;
            }
            let Some(ratio) = raw.zip(it.mb_s).map(|(raw, mb_s)| mb_s / raw) else { continue };
            let label = format!("published: {}", it.label);
            let known = published.iter().position(|series| series.label == label);
            let at = known.unwrap_or_else(|| {
                let like = series.iter().find(|of| of.label == it.contender);
                let look = like.map_or(Look::NOBODY, |of| of.look);
                let values = vec![None; places.len()];
                let dash = Some(dash(&published, look));
                published.push(Series { label, published: dash, look, values });
                published.len() - 1
            });
            published[at].values[place] = Some(ratio);
        }
    }
    series.extend(published);
    let kind = Kind::of(places.len(), series.len());
    let title = "Encrypted over raw";
    html.push_str(&Chart { title, unit: "ratio", places, series, kind, log: false }.html());
}

/// The distribution of the speeds of slices.
fn slices(html: &mut String, experiment: &Experiment) {
    for cell in &experiment.cells {
        let Some(bins) = Bins::of(cell) else { continue };
        let series = cell.figures.iter().zip(bins.shares).map(|(figure, shares)| Series {
            label: figure.contender.to_string(),
            published: None,
            look: look(experiment, figure.contender),
            values: shares.into_iter().map(Some).collect(),
        });
        let chart = Chart {
            title: "Slices of 10 ms by their speed in MB/s",
            unit: "% of the slices",
            series: series.collect(),
            places: bins.names,
            kind: Kind::Lines,
            log: false,
        };
        html.push_str(&chart.html());
    }
}

fn latencies(html: &mut String, experiment: &Experiment) {
    for cell in distributions(experiment) {
        let series = cell.figures.iter().map(|figure| Series {
            label: figure.contender.to_string(),
            published: None,
            look: look(experiment, figure.contender),
            values: SHARES.map(|share| quantile(figure, share)).into(),
        });
        let title = format!("Latency by percentile, {}", cell.cell.name);
        let chart = Chart {
            title: &title,
            unit: "µs, logarithmic",
            places: SHARES.iter().map(|share| format!("p{}", share * 100.0)).collect(),
            series: series.filter(|it: &Series| it.values.iter().any(Option::is_some)).collect(),
            kind: Kind::Lines,
            log: true,
        };
        html.push_str(&chart.html());
    }
}

/// The class of a ratio to the best.
fn heat(ratio: f64) -> &'static str {
    match ratio {
        OF_RAW_MIN.. => "h0",
        0.9.. => "h1",
        0.8.. => "h2",
        0.65.. => "h3",
        0.5.. => "h4",
        _ => "h5",
    }
}

/// The classes of [`heat`], with what they say.
const HEAT_KEY: [(f64, &str); 6] = [
    (1.0, "0.97 and more"),
    (0.93, "from 0.90"),
    (0.85, "from 0.80"),
    (0.7, "from 0.65"),
    (0.6, "from 0.50"),
    (0.4, "less"),
];

/// One map for each policy and direction: block sizes down, depths across.
fn heat_maps(html: &mut String, experiment: &Experiment) {
    let policies = policies(experiment);
    let directions = distinct(experiment, |cell| cell.cell.pattern);
    html.push_str("<ul class=\"legend heat\">");
    for (ratio, text) in HEAT_KEY {
        let _ = write!(html, "<li><span class=\"{}\"></span>{text}</li>", heat(ratio));
    }
    html.push_str("</ul>\n");
    for (title, merit) in HEAT_MAPS {
        for direction in &directions {
            let _ = writeln!(html, "<h3>{title}: {}</h3>\n<div class=\"maps\">", direction.name());
            for policy in &policies {
                heat_map(html, experiment, (*policy, *direction), merit);
            }
            html.push_str("</div>\n");
        }
    }
}

/// What the cells of an experiment have, in their order.
fn distinct<T: PartialEq>(experiment: &Experiment, of: fn(&CellFigures) -> T) -> Vec<T> {
    let mut all = Vec::new();
    for value in experiment.cells.iter().map(of) {
        if !all.contains(&value) {
            all.push(value);
        }
    }
    all
}

fn heat_map(
    html: &mut String,
    experiment: &Experiment,
    (policy, direction): (Contender, Pattern),
    merit: Merit,
) {
    let depths = distinct(experiment, |cell| cell.cell.depth);
    let _ = write!(
        html,
        "<table class=\"heat\"><caption>{}</caption><thead><tr><th>depth</th>",
        policy_name(policy)
    );
    for depth in &depths {
        let _ = write!(html, "<th>{depth}</th>");
    }
    html.push_str("</tr></thead><tbody>\n");
    for block in distinct(experiment, |cell| cell.cell.block_bytes) {
        let _ = write!(html, "<tr><th>{}</th>", size_name(block));
        for depth in &depths {
            let place = (direction, block, *depth);
            let is_it =
                |it: &&CellFigures| (it.cell.pattern, it.cell.block_bytes, it.cell.depth) == place;
            let found = experiment.cells.iter().find(is_it);
            let ratio = found.and_then(|cell| of_best(cell, find(cell, policy)?, merit));
            let _ = match ratio {
                Some(ratio) => write!(html, "<td class=\"{}\">{ratio:.2}</td>", heat(ratio)),
                None => write!(html, "<td></td>"),
            };
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody></table>\n");
}

/// Every published figure with ours beside it.
fn published_here(html: &mut String, experiment: &Experiment) {
    if experiment.beside.is_empty() {
        return;
    }
    html.push_str(
        "<h3>Published, and here</h3><p class=\"soft\">Of raw: over the unencrypted figure of ",
    );
    html.push_str(
        "the same publication, and of this run. Here: the contender that stands for what was ",
    );
    html.push_str("published, by its name. Published figures are of other machines.</p>");
    html.push_str("<div class=\"table\"><table><thead><tr><th>cell</th>");
    html.push_str(
        "<th class=\"word\">published</th><th class=\"word\">unit</th><th>published</th>",
    );
    html.push_str("<th>of raw</th><th class=\"word\">here by</th><th>here</th><th>of raw</th>");
    html.push_str("<th>adaptive</th><th>of raw</th>");
    html.push_str("</tr></thead><tbody>\n");
    let value = |value: Option<f64>| value.map_or_else(String::new, figure);
    let ratio = |ratio: Option<f64>| ratio.map_or_else(String::new, |it| format!("{it:.2}"));
    let mut last = "";
    for it in &experiment.beside {
        let is_first = it.cell != last;
        last = &it.cell;
        let _ = writeln!(
            html,
            "<tr{}><td>{}</td><td class=\"word\">{}</td><td class=\"word\">{}</td><td>{}</td>\
             <td>{}</td><td class=\"word\">{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            if is_first { " class=\"first\"" } else { "" },
            if is_first { escape(&it.cell) } else { String::new() },
            escape(&it.label),
            it.unit,
            figure(it.published),
            ratio(it.published_of_raw),
            it.contender,
            value(it.here),
            ratio(it.here_of_raw),
            value(it.adaptive),
            ratio(it.adaptive_of_raw)
        );
    }
    html.push_str("</tbody></table></div>\n<h3>All figures</h3>\n");
}

fn figures(html: &mut String, experiment: &Experiment) {
    let method = experiment.description.method;
    let speed = if method == Method::Tree { "s (quartiles)" } else { "MB/s (quartiles)" };
    let columns = columns(experiment);
    let names = columns.iter().map(|(name, _)| format!("<th>{name}</th>"));
    let _ = writeln!(
        html,
        "<div class=\"table\"><table><thead><tr><th>cell</th><th class=\"word\">contender</th>\
         <th>{speed}</th>{}<th>runs</th>\
         <th class=\"word\">published</th><th class=\"word\">doubts</th></tr></thead><tbody>",
        names.collect::<String>()
    );
    for cell in &experiment.cells {
        for (at, of) in cell.figures.iter().enumerate() {
            let class = if at == 0 { " class=\"first\"" } else { "" };
            let name = if at == 0 { escape(&cell.cell.name) } else { String::new() };
            let value = if method == Method::Tree { of.seconds } else { of.mb_s };
            let more = columns.iter().map(|(_, text)| format!("<td>{}</td>", text(cell, of)));
            let published = published_of(cell, of, method);
            let published: Vec<_> =
                published.iter().map(|(label, value)| format!("{value} ({label})")).collect();
            let _ = writeln!(
                html,
                "<tr{class}><td>{name}</td><td class=\"word\">{}</td><td>{}</td>{}\
                 <td>{}</td><td class=\"word\">{}</td><td class=\"doubts\">{}</td></tr>",
                escape(&of.contender.to_string()),
                range(value),
                more.collect::<String>(),
                of.seconds.count,
                escape(&published.join("; ")),
                escape(&doubts(of))
            );
        }
    }
    html.push_str("</tbody></table></div>\n");
}

fn simulation(html: &mut String, simulation: &Simulation) {
    html.push_str("<section id=\"sim\"><h2>In virtual time, on the published machines</h2>\n");
    html.push_str("<p>The engine of ucrypt ");
    html.push_str(&escape(&simulation.version));
    html.push_str(", over models of the published machines. The error says how far the simulated ");
    html.push_str("fixed policy is from what was published: the model is to be trusted where it ");
    html.push_str("is small. Rows marked fitted are those that a preset or its device model was ");
    html.push_str("fitted to: they are no test of it.");
    if simulation.scale == Scale::Quick {
        html.push_str(" Fewer rows and less virtual time (--quick).");
    }
    let class = if simulation.interrupted { "verdict bad" } else { "verdict" };
    let _ = writeln!(html, "</p><p class=\"{class}\">{}</p>", escape(&simulation.verdict()));
    if let Some(changes) = simulation.changes.describe() {
        let _ = writeln!(
            html,
            "<p class=\"verdict bad\">The machines were changed: {}. The published figures are not \
             of such machines.</p>",
            escape(&changes)
        );
    }
    if !simulation.command.is_empty() {
        let _ = writeln!(
            html,
            "<p class=\"soft\">To repeat it:</p><pre>{}</pre>",
            escape(&simulation.command)
        );
    }
    checks(html, simulation);
    html.push_str("<div class=\"table\"><table><thead><tr>");
    html.push_str("<th>experiment</th><th class=\"word\">row</th><th>published</th>");
    html.push_str("<th class=\"word\">fixed policy</th><th>simulated</th><th>error</th>");
    html.push_str("<th>adaptive</th><th class=\"word\">unit</th><th class=\"word\"></th>");
    html.push_str("</tr></thead><tbody>\n");
    for row in &simulation.rows {
        let error =
            row.error().map_or_else(String::new, |error| format!("{:+.0} %", error * 100.0));
        let class = if row.is_trusted() { "good" } else { "bad" };
        let _ = writeln!(
            html,
            "<tr><td>{}</td><td class=\"word\">{}</td><td>{}</td><td class=\"word\">{}</td>\
             <td>{}</td><td class=\"{class}\">{error}</td><td>{}</td><td class=\"word\">{}</td>\
             <td class=\"word\">{}</td></tr>",
            escape(&row.experiment),
            escape(&row.row),
            figure(row.published),
            escape(&row.policy),
            figure(row.simulated),
            row.adaptive.map_or_else(String::new, figure),
            escape(&row.unit),
            if row.fitted { "fitted" } else { "" }
        );
    }
    html.push_str("</tbody></table></div></section>\n");
}

/// How far a calibrated simulator agrees with the machine that was measured.
fn checks(html: &mut String, simulation: &Simulation) {
    if simulation.checks.is_empty() {
        return;
    }
    html.push_str(
        "<h3>The calibration, checked</h3><p class=\"soft\">Loads on the machine that was ",
    );
    html.push_str("measured, and the same in virtual time. A cost was taken from those marked ");
    html.push_str(
        "fitted.</p><div class=\"table\"><table><thead><tr><th>load</th><th>MB/s here</th>",
    );
    html.push_str("<th>simulated</th><th>error</th><th class=\"word\"></th></tr></thead><tbody>\n");
    for check in &simulation.checks {
        let error = check.error();
        let class = if error.abs() <= ERROR_MAX { "good" } else { "bad" };
        let _ = writeln!(
            html,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"{class}\">{:+.0} %</td>\
             <td class=\"word\">{}</td></tr>",
            escape(&check.load),
            figure(check.measured),
            figure(check.simulated),
            error * 100.0,
            if check.fitted { "fitted" } else { "" }
        );
    }
    html.push_str("</tbody></table></div>\n");
}

/// What the figures of a run depend on, apart from the machine.
fn conditions(analysis: &Analysis) -> Vec<String> {
    let about = &analysis.about;
    let storage = &about.storage;
    let mut lines = vec![format!(
        "The engine in this process has sectors of 4096 bytes. Servers open LUKS1 volumes with \
         sectors of 512 bytes, which all of them know but gocryptfs. The target has blocks of {} bytes.",
        storage.block_bytes
    )];
    if storage.mapped {
        lines.push(format!(
            "{} is mapped: the engine works in the mapping, where raw makes system calls. A ratio may \
             be above 1. (Of sorted-writes, all make system calls.)",
            about.settings.on
        ));
    }
    if storage.cached {
        lines.push(format!(
            "The file system of {} has no direct I/O: the page cache is between.",
            about.settings.on
        ));
    }
    if about.settings.added_on_zero {
        lines.push(
            "added-latency runs on zero, as what was published did: on any other target raw takes a time of \
             its own, and may take another way. --on names one."
                .into(),
        );
    }
    if about.settings.on == Target::Memory {
        lines.push("memory is no ceiling of its own here: it is raw.".into());
    }
    lines
}

fn context(html: &mut String, analysis: &Analysis) {
    let about = &analysis.about;
    let machine = &about.machine;
    html.push_str("<section id=\"machine\"><h2>The machine</h2>\n<dl>");
    let gib = machine.memory_bytes as f64 / f64::from(1 << 30);
    let mut entry = |name: &str, text: &str| {
        let _ = write!(html, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(text));
    };
    entry("processor", &format!("{}, {} cores", machine.processor, machine.cores));
    entry("memory", &format!("{gib:.1} GiB"));
    entry("kernel", &machine.kernel);
    let way = match (about.storage.direct, about.storage.cached) {
        (true, _) => ", past the page cache",
        (_, true) => ", through the page cache",
        _ => "",
    };
    entry("target", &format!("{}, {} MiB{way}", about.settings.on, about.settings.len >> 20));
    for (program, version) in &machine.versions {
        entry(program, version);
    }
    html.push_str("</dl>\n<h3>To repeat it</h3><pre>");
    html.push_str(&escape(&about.settings.command));
    html.push_str("</pre>\n<h3>How to read it</h3><ul class=\"notes\">");
    let lines = [
        "MB are 10^6 bytes. Figures are medians over interleaved rounds; ratios are taken round by round.",
        "raw, null and memory are ceilings: the target itself, the engine with the null cipher, memory alone. \
         Servers are compared with file, the image under the same load.",
        "ucrypt is the engine in this process, without an export: what the policies differ in.",
        "Where we fall short, a row is more than chance if a t-test of its rounds says so, corrected after \
         Benjamini and Hochberg for all comparisons of the run: on a machine on which nothing differs, one \
         run in twenty has such a row.",
        "p99 is shown of 300 requests and more, p99.9 of 3000: of fewer it is the longest two or three.",
        "Disturbed: the host took more than 2 % of the processors' time, or other processes more than 10 %. \
         Wide spread: the quartiles are more than 15 % of the median apart.",
    ];
    for line in lines.into_iter().map(str::to_owned).chain(conditions(analysis)) {
        let _ = write!(html, "<li>{}</li>", escape(&line));
    }
    html.push_str("</ul>\n<h3>Published tables</h3><ul class=\"notes\">");
    for table in published::ALL {
        let (who, _) = table.source();
        let _ = write!(html, "<li>{}: {}</li>", table.file, escape(&who.replace('`', "")));
    }
    html.push_str("</ul>\n<h3>Published figures that no run shows</h3><ul class=\"notes\">");
    for left in published::LEFT_OUT {
        let text = format!("{} ({}, {}): {}", left.text, left.file, left.column, left.why);
        let _ = write!(html, "<li>{}</li>", escape(&text));
    }
    html.push_str("</ul></section>\n");
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::catalogue::{ALL, EXPORTS};
    use crate::sample::{Device, Order, Processor, Sample};
    use crate::served::Generator;
    use crate::sim::calibrate::Check;
    use crate::sim::history::{Changes, Row};
    use crate::store::{LeftOut, Machine, Record, Settings};

    /// A run with invented figures in every experiment.
    pub(crate) fn analysis() -> Analysis {
        let experiments = ALL.iter().map(|it| it.name.to_owned()).collect();
        let settings = Settings {
            experiments,
            on: Target::Memory,
            against: None,
            rounds: 3,
            scale: Scale::Quick,
            len: 1 << 27,
            time_ms: 10,
            added_on_zero: false,
            before: None,
            generator: Generator::BuiltIn,
            command: "ucrypt lab run --quick '<&>'".into(),
        };
        let left_out = vec![LeftOut {
            experiment: "block-sweep".into(),
            what: "nbdkit".into(),
            why: "nbdkit is not installed".into(),
        }];
        let machine = Machine { cores: 2, processor: "A <processor>".into(), ..Machine::default() };
        let about = About { machine, left_out, ..About::invented(settings) };
        let mut records = Vec::new();
        for description in ALL {
            for cell in description.cells(Scale::Quick) {
                for (at, name) in ["raw"].iter().chain(description.against).enumerate() {
                    for round in 0..3 {
                        let mb_s = 1000.0 / (at as f64 + 1.0) + f64::from(round);
                        let sample = Sample {
                            mb_s,
                            mean_us: 1000.0 / mb_s,
                            p99_us: 3000.0 / mb_s,
                            requests: 3000,
                            seconds: 1.0 + at as f64,
                            quantiles: SHARES.map(|share| (share, share * 100.0)).into(),
                            slices_mb_s: (0..50).map(|it| f64::from(it % 5) + mb_s).collect(),
                            order: Some(Order { writes: 10, bytes: 40960, continued: 9 }),
                            device: (description.method == Method::Tree).then(Device::default),
                            below: (*name == "dm-crypt").then(Device::default),
                            processor: Some(Processor::default()),
                            load: "built-in".into(),
                            ..Sample::default()
                        };
                        records.push(Record {
                            experiment: description.name.into(),
                            cell: cell.name.clone(),
                            contender: name.parse().expect("a contender"),
                            round,
                            sample: Some(sample),
                            error: None,
                        });
                    }
                }
            }
        }
        Analysis::new(about, &records)
    }

    #[test]
    fn the_page_shows_every_experiment_and_needs_nothing_else() {
        let analysis = analysis();
        assert_eq!(analysis.experiments.len(), ALL.len());
        let page = html(&analysis, None);
        for description in ALL {
            assert!(page.contains(&format!("<section id=\"{}\">", description.name)));
        }
        for needed in [
            "id=\"short\"",
            "id=\"summary\"",
            "prefers-color-scheme: dark",
            "@media print",
            "max-width",
        ] {
            assert!(page.contains(needed), "{needed}");
        }
        for outside in ["src=", "url(", "<script", "<link", "@import", "href=\"http"] {
            assert!(!page.contains(outside), "{outside}");
        }
        // Hostile names are text.
        assert!(page.contains("&lt;processor&gt;") && !page.contains("A <processor>"));
        // Two published lines of one colour are told apart, in the chart and in its legend.
        for label in ["raw SSD, 2017", "another raw SSD, 2017"] {
            assert!(page.contains(&format!("published: {label}")), "{label}");
        }
        for looks in ["#E010", "#E011", "stroke-dasharray:6 4", "stroke-dasharray:1 4"] {
            assert!(page.contains(looks), "{looks}");
        }
        let count = |what: &str| page.matches(what).count();
        assert_eq!(count("<svg class=\"wide\""), count("<svg class=\"narrow\""));
        assert!(count("<svg class=\"wide\"") > 15, "{}", count("<svg class=\"wide\""));
        for tag in ["section", "table", "figure", "svg", "ul", "dl"] {
            let opened = count(&format!("<{tag}>")) + count(&format!("<{tag} "));
            assert_eq!(opened, count(&format!("</{tag}>")), "{tag}");
        }
        // Adaptive has half of raw's speed in this run: that stands first.
        assert!(page.find("id=\"short\"") < page.find("id=\"summary\""));
        assert!(analysis.shortfalls.iter().any(|short| short.is_certain));
        assert!(page.len() < 4 << 20, "{} bytes", page.len());
    }

    #[test]
    fn each_policy_has_a_heat_map_of_each_direction_by_block_size_and_depth() {
        let analysis = analysis();
        let page = html(&analysis, None);
        let at = page.find("<section id=\"heat-map\">").expect("the section");
        let section = page[at..].split("</section>").next().expect("its end");
        let maps: Vec<_> = section.split("<table class=\"heat\">").skip(1).collect();
        // Throughput and p99, reads and writes, nine policies.
        assert_eq!(maps.len(), 2 * 2 * 9);
        for map in &maps {
            let map = map.split("</table>").next().expect("its end");
            let rows: Vec<_> = map.split("<tr>").skip(1).collect();
            assert!(rows[0].contains("<th>1</th><th>8</th>"), "{map}");
            for (row, block) in rows[1..].iter().zip(["4k", "64k", "1m"]) {
                assert!(row.starts_with(&format!("<th>{block}</th>")), "{map}");
                assert_eq!(row.matches("<td class=\"h").count(), 2, "{map}");
            }
            assert_eq!(rows.len(), 4, "{map}");
        }
        // In this run, the first policy is the best and the last one far from it, in all cells.
        assert!(maps[0].starts_with("<caption>adaptive") && maps[0].matches("h0").count() == 6);
        assert!(maps[8].matches("h5").count() == 6, "{}", maps[8]);
        for (ratio, text) in HEAT_KEY {
            assert!(section.contains(&format!("<span class=\"{}\"></span>{text}", heat(ratio))));
        }
    }

    #[test]
    fn every_line_of_a_legend_has_a_look_of_its_own() {
        use std::collections::BTreeSet;
        let all = analysis();
        // As many contenders as root has with all programs, and published figures that nobody repeats.
        let mut many = all.clone();
        let mut none = all.clone();
        for cell in many.experiments.iter_mut().flat_map(|it| &mut it.cells) {
            for name in
                ["ucrypt-fuse", "ucrypt-nbd", "loop", "qemu-nbd", "nbdkit", "gocryptfs", "memory"]
            {
                let contender = name.parse().expect("a contender");
                cell.figures.retain(|figure| figure.contender != contender);
                cell.figures.push(Figure { contender, ..cell.figures[0].clone() });
            }
        }
        for cell in none.experiments.iter_mut().flat_map(|it| &mut it.cells) {
            cell.figures.truncate(1);
        }
        // Three of its contenders have no cipher, and are not compared.
        let mut exports = many.clone();
        exports.experiments.retain(|it| it.name == EXPORTS);
        many.experiments.retain(|it| it.name != EXPORTS);
        for (analysis, least, count) in
            [(&all, 2, 10), (&many, 10, 10), (&exports, 6, 2), (&none, 1, 10)]
        {
            let page = html(analysis, None);
            let legends: Vec<_> = page.split("<ul class=\"legend\">").skip(1).collect();
            assert!(legends.len() > count, "{}", legends.len());
            for legend in legends {
                let legend = legend.split("</ul>").next().expect("its end");
                let lines: Vec<_> = legend.split("<li>").skip(1).collect();
                let keys: BTreeSet<_> =
                    lines.iter().filter_map(|it| it.split("</svg>").next()).collect();
                assert_eq!(keys.len(), lines.len(), "{legend}");
                assert!(lines.len() >= least, "{legend}");
            }
        }
    }

    #[test]
    fn latencies_that_are_not_above_0_are_named_where_the_chart_leaves_them_out() {
        let mut analysis = analysis();
        let at =
            analysis.experiments.iter().position(|it| it.name == "added-latency").expect("it ran");
        assert!(!html(&analysis, None).contains("Not in the chart"));
        for of in &mut analysis.experiments[at].cells[0].figures {
            if of.contender == Contender::Ucrypt(ucrypt_engine::PolicyKind::Adaptive) {
                of.added_us = crate::analysis::Spread::of([-0.25]);
            }
        }
        let page = html(&analysis, None);
        assert!(page.contains("not above 0: ucrypt at 4k (-0.25)."), "{page}");
    }

    /// A simulation in which every text is hostile.
    pub(crate) fn simulated() -> Simulation {
        let hostile = |name: &str| format!("<b>{name}</b>'\"&");
        let row = |fitted| Row {
            experiment: hostile("experiment"),
            row: hostile("row"),
            unit: hostile("unit"),
            published: 1.0,
            policy: hostile("policy"),
            simulated: 2.0,
            adaptive: Some(if fitted { 3.0 } else { 1.0 }),
            raw: Some(0.5),
            fitted,
        };
        let changes = Changes { cores: Some(3), ..Changes::default() };
        let rows = vec![row(true), row(false)];
        let load = hostile("load");
        let checks = vec![Check { load, measured: 2.0, simulated: 3.0, fitted: true }];
        Simulation {
            version: hostile("version"),
            command: hostile("command"),
            scale: Scale::Quick,
            changes,
            rows,
            checks,
            failed: vec![hostile("failed")],
            interrupted: false,
        }
    }

    #[test]
    fn a_simulation_says_how_it_was_made_and_none_of_its_texts_is_taken_for_html() {
        let page = html(&analysis(), Some(&simulated()));
        let short = &page[page.find("id=\"short\"").expect("there")..];
        let short = &short[..short.find("</section>").expect("its end")];
        assert!(short.contains("in 1 of 2 rows") && short.contains(">0.50<"), "{short}");
        for needed in
            ["3 cores", "--quick", "rows that no preset was fitted to, 0 of 1.", ">fitted<"]
        {
            assert!(page.contains(needed), "{needed}");
        }
        for name in ["experiment", "row", "unit", "policy", "version", "command", "failed", "load"]
        {
            assert!(page.contains(&format!("&lt;b&gt;{name}&lt;/b&gt;&#39;&quot;&amp;")), "{name}");
        }
        assert!(!page.contains("<b>"));
        // Alone it is a page, too, and says if it is a part.
        let part = Simulation { interrupted: true, ..simulated() };
        let page = of_simulation(&part);
        assert!(page.contains("id=\"sim\"") && page.contains("id=\"short\""));
        assert!(page.contains("It was interrupted, and rows are missing") && !page.contains("<b>"));
        assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    }

    #[test]
    fn no_text_of_a_run_is_taken_for_html() {
        let mut analysis = analysis();
        let hostile = || "<b>hostile</b>".to_owned();
        analysis.about.settings.on = Target::File(hostile().into());
        analysis.about.settings.command = hostile();
        analysis.about.storage.cached = true;
        analysis.about.machine.kernel = hostile();
        analysis.about.machine.versions = vec![(hostile(), hostile())];
        for experiment in &mut analysis.experiments {
            experiment.on = hostile();
            experiment.notes = vec![hostile()];
            experiment.verdict = hostile();
            for figure in experiment.cells.iter_mut().flat_map(|cell| &mut cell.figures) {
                figure.load = hostile();
            }
        }
        let page = html(&analysis, None);
        assert!(page.contains("&lt;b&gt;hostile") && !page.contains("<b>"));
        assert!(page.contains("no direct I/O"));
    }

    #[test]
    fn the_page_says_what_the_figures_depend_on() {
        let mut analysis = analysis();
        let page = html(&analysis, None);
        for needed in ["works in the mapping", "sectors of 4096 bytes", "sectors of 512 bytes"] {
            assert!(page.contains(needed), "{needed}");
        }
        // Of file systems there are bytes, and no latencies of 0.
        let tree = &page[page.find("<section id=\"kernel-tree\"").expect("the section")..];
        let tree = &tree[..tree.find("</section>").expect("its end")];
        assert!(tree.contains("MB written") && tree.contains("/dev/shm"), "{tree}");
        assert!(!tree.contains("mean µs") && tree.contains("of ucrypt-loop-none"), "{tree}");
        let drives = &page[page.find("<section id=\"many-drives\"").expect("the section")..];
        assert!(drives.contains("Where: virtual time"));
        analysis.about.storage.mapped = false;
        assert!(!html(&analysis, None).contains("works in the mapping"));
        // Where nothing was compared, nothing is praised.
        (analysis.shortfalls, analysis.compared) = (Vec::new(), 0);
        let page = html(&analysis, None);
        assert!(page.contains("nothing was compared") && !page.contains("class=\"good\""));
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(951_782_400), "2000-02-29");
        assert_eq!(date(1_763_900_000), "2025-11-23");
    }
}
