//! The dashboard for Grafana and the alerts for Prometheus ask for what `--metrics` serves.
//! `scripts/try-metrics` asks a real Prometheus.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::metrics::{Page, page};
use crate::scratch::Scratch;
use crate::server::{On, Server};

const DASHBOARD: &str = include_str!("../../../../contrib/grafana-dashboard.json");
const RULES: &str = include_str!("../../../../contrib/prometheus-rules.yml");

/// Labels that Prometheus adds to what it has scraped.
const OF_TARGETS: [&str; 2] = ["instance", "job"];

#[test]
fn the_dashboard_and_the_alerts_ask_only_for_metrics_labels_and_values_that_are_served() {
    let page = served();
    let alerts = alerts();
    assert!(alerts.len() >= 5, "{alerts:?}");
    for query in queries().iter().chain(&alerts) {
        let asked = selectors(&query.expression);
        for Selector { metric, matchers } in &asked {
            assert!(series_of(&page, metric).next().is_some(), "no {metric}: {query:?}");
            for (label, value) in matchers {
                let has = |series| {
                    OF_TARGETS.contains(&label.as_str()) || has_label(series, label, value)
                };
                let is_known = series_of(&page, metric).any(has);
                assert!(is_known, "{metric} has no {label} {value}: {query:?}");
            }
        }
        let grouped = grouped(&query.expression);
        for label in grouped.iter().chain(&query.shown) {
            let mut of_asked = asked.iter().flat_map(|it| series_of(&page, &it.metric));
            let is_known = OF_TARGETS.contains(&label.as_str())
                || of_asked.any(|series| has_label(series, label, ""));
            assert!(is_known, "no label {label}: {query:?}");
        }
        // An aggregation keeps only the labels that it names.
        if query.expression.contains(" by (") {
            let lost: Vec<_> = query.shown.iter().filter(|it| !grouped.contains(it)).collect();
            assert!(lost.is_empty(), "{lost:?} are gone: {query:?}");
        }
    }
}

#[test]
fn what_is_served_is_on_the_dashboard() {
    let queries = queries();
    let asked = queries.iter().flat_map(|it| selectors(&it.expression));
    let asked: BTreeSet<_> = asked.map(|it| family(&it.metric).to_owned()).collect();
    for series in served().series() {
        let family = family(name(series));
        assert!(asked.contains(family), "no panel asks for {family}");
    }
}

#[test]
fn panels_have_titles_and_places_of_their_own_and_a_unit() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let (mut titles, mut ids, mut cells) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for panel in panels {
        assert!(titles.insert(panel["title"].as_str().expect("a title")), "{panel}");
        assert!(ids.insert(panel["id"].as_u64().expect("a number")), "{panel}");
        let defaults = &panel["fieldConfig"]["defaults"];
        assert!(defaults["unit"].is_string() || panel["type"] == "table", "{panel}");
        // Graphs and tables say why they are empty.
        assert!(defaults["noValue"].is_string() || panel["type"] == "stat", "{panel}");
        let at = |side: &str| panel["gridPos"][side].as_u64().expect("a place");
        assert!(at("x") + at("w") <= 24, "{panel}");
        for x in at("x")..at("x") + at("w") {
            for y in at("y")..at("y") + at("h") {
                assert!(cells.insert((x, y)), "another panel is there: {panel}");
            }
        }
    }
}

/// A page of a server that has clients to count.
fn served() -> Page {
    let scratch = Scratch::new();
    let metrics = scratch.path("metrics");
    let place = format!("unix:{}", metrics.display());
    let server = Server::start(&scratch, On::Nbd, &["--backend", "mem:1M", "--metrics", &place]);
    let page = page(&metrics);
    server.terminate();
    page
}

fn series_of<'a>(page: &'a Page, metric: &'a str) -> impl Iterator<Item = &'a str> {
    page.series().filter(move |series| name(series) == metric)
}

fn name(series: &str) -> &str {
    series.split('{').next().unwrap_or_default()
}

/// The name without what is added to it in a histogram.
fn family(name: &str) -> &str {
    let suffixes = ["_bucket", "_sum", "_count"];
    suffixes.iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name)
}

/// Whether a series has the label, with a value that begins so.
fn has_label(series: &str, label: &str, value: &str) -> bool {
    ['{', ','].iter().any(|before| series.contains(&format!("{before}{label}=\"{value}")))
}

#[derive(Debug)]
struct Query {
    expression: String,
    /// The labels that its legend or its texts show.
    shown: Vec<String>,
}

/// What the dashboard's panels and variables ask for.
fn queries() -> Vec<Query> {
    let mut found = Vec::new();
    collect(&serde_json::from_str(DASHBOARD).expect("JSON"), &mut found);
    assert!(found.len() >= 20, "{found:?}");
    found
}

fn collect(of: &Value, found: &mut Vec<Query>) {
    match of {
        Value::Object(members) => {
            let legend = members.get("legendFormat").and_then(Value::as_str).unwrap_or_default();
            let shown = legend.split("{{").skip(1).filter_map(|it| it.split("}}").next());
            let shown: Vec<_> = shown.map(str::to_owned).collect();
            for (name, value) in members {
                match (name.as_str(), value) {
                    ("expr" | "query", Value::String(text)) => {
                        found.push(Query { expression: text.clone(), shown: shown.clone() });
                    }
                    _ => collect(value, found),
                }
            }
        }
        Value::Array(all) => all.iter().for_each(|one| collect(one, found)),
        _ => {}
    }
}

/// What the alerts ask for: YAML as far as that file needs it.
fn alerts() -> Vec<Query> {
    let alert = |text: &str| {
        let expression = text.split("expr:").nth(1).expect("an expression");
        let expression = expression.split("labels:").next().unwrap_or_default();
        let words: Vec<_> = expression.trim_start_matches(" >-").split_whitespace().collect();
        let shown = text.split("$labels.").skip(1).filter_map(|it| it.split(' ').next());
        Query { expression: words.join(" "), shown: shown.map(str::to_owned).collect() }
    };
    RULES.split("- alert:").skip(1).map(alert).collect()
}

/// A metric, and the labels that it is chosen by, with the values that they must have: those with the
/// quote behind them, and empty if the value is a pattern or a variable.
struct Selector {
    metric: String,
    matchers: Vec<(String, String)>,
}

fn selectors(expression: &str) -> Vec<Selector> {
    let starts = expression.match_indices("ucrypt_").map(|(at, _)| &expression[at..]);
    let selector = |text: &str| {
        let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let (metric, rest) = text.split_at(end.unwrap_or(text.len()));
        let inside = rest.strip_prefix('{').and_then(|rest| rest.split('}').next());
        let matchers = inside.unwrap_or_default().split(',').filter(|it| !it.is_empty());
        let matcher = |it: &str| {
            let (label, value) = it.split_once('=').expect("a matcher");
            let fixed = value.strip_prefix('"').filter(|_| !label.ends_with('!'));
            (label.trim_end_matches('!').to_owned(), fixed.unwrap_or_default().to_owned())
        };
        Selector { metric: metric.into(), matchers: matchers.map(matcher).collect() }
    };
    starts.map(selector).collect()
}

/// The labels that an expression groups or matches series by.
fn grouped(expression: &str) -> Vec<String> {
    let mut labels = Vec::new();
    for keyword in ["by (", "on (", "group_left ("] {
        for rest in expression.split(keyword).skip(1) {
            let list = rest.split(')').next().unwrap_or_default().split(',');
            labels.extend(list.map(|label| label.trim().to_owned()));
        }
    }
    labels
}
