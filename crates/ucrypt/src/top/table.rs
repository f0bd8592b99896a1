//! The table of `top`: figures from two answers of each server, in the order and the columns that fit.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde_json::Value;

use super::keys::Key;
use crate::background::{Answers, clean, columns, cut_end, duration, per_second, state};
use crate::size::human;

/// What decides the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(super) enum Sort {
    Name,
    State,
    Read,
    #[default]
    Write,
    Requests,
    Queue,
    ReadLatency,
    WriteLatency,
    Cipher,
    Errors,
}

/// Lines above and below the volumes.
const FRAME: usize = 4;

/// The narrowest and the widest column of names.
const NAME_MIN: usize = 14;
const NAME_MAX: usize = 64;

/// A column: its heading, its width, whether it holds numbers, and what it is sorted by.
struct Column {
    head: &'static str,
    width: usize,
    is_number: bool,
    sort: Option<Sort>,
    cell: fn(&Row) -> String,
}

/// The columns after the name, the most important first. Further ones are shown where there is room.
const COLUMNS: &[Column] = &[
    Column {
        head: "STATE",
        width: 8,
        is_number: false,
        sort: Some(Sort::State),
        cell: |row| row.state.clone(),
    },
    Column {
        head: "READ/s",
        width: 7,
        is_number: true,
        sort: Some(Sort::Read),
        cell: |row| human(row.read),
    },
    Column {
        head: "WRITE/s",
        width: 8,
        is_number: true,
        sort: Some(Sort::Write),
        cell: |row| human(row.write),
    },
    Column {
        head: "REQ/s",
        width: 6,
        is_number: true,
        sort: Some(Sort::Requests),
        cell: |row| count(row.requests),
    },
    Column {
        head: "QUEUE",
        width: 6,
        is_number: true,
        sort: Some(Sort::Queue),
        cell: |row| row.queue.to_string(),
    },
    Column {
        head: "R-LAT",
        width: 6,
        is_number: true,
        sort: Some(Sort::ReadLatency),
        cell: |row| time(row.read_ns),
    },
    Column {
        head: "W-LAT",
        width: 6,
        is_number: true,
        sort: Some(Sort::WriteLatency),
        cell: |row| time(row.write_ns),
    },
    Column {
        head: "CPU%",
        width: 5,
        is_number: true,
        sort: Some(Sort::Cipher),
        cell: |row| share(row.cipher),
    },
    Column {
        head: "ERR",
        width: 5,
        is_number: true,
        sort: Some(Sort::Errors),
        cell: |row| count(row.errors),
    },
    Column {
        head: "EXPORT",
        width: 6,
        is_number: false,
        sort: None,
        cell: |row| row.export.clone(),
    },
    Column {
        head: "OFFL%",
        width: 5,
        is_number: true,
        sort: None,
        cell: |row| row.offloaded.map_or_else(none, share),
    },
    Column { head: "MEM", width: 6, is_number: true, sort: None, cell: |row| human(row.memory) },
    Column {
        head: "UP",
        width: 10,
        is_number: false,
        sort: None,
        cell: |row| row.up.map_or_else(none, duration),
    },
    Column { head: "SIZE", width: 6, is_number: true, sort: None, cell: |row| human(row.size) },
    Column {
        head: "TYPE",
        width: 5,
        is_number: false,
        sort: None,
        cell: |row| row.kind.to_uppercase(),
    },
    Column {
        head: "CIPHER",
        width: 20,
        is_number: false,
        sort: None,
        cell: |row| row.volume_cipher.clone(),
    },
    Column {
        head: "DEVICE",
        width: 48,
        is_number: false,
        sort: None,
        cell: |row| row.device.clone(),
    },
];

/// The figures of a volume.
#[derive(Debug, Clone, Default)]
struct Row {
    name: String,
    state: String,
    /// Bytes and requests per second.
    read: u64,
    write: u64,
    requests: u64,
    /// Requests in flight.
    queue: u64,
    /// Mean latencies in nanoseconds, if there were requests that were timed.
    read_ns: Option<f64>,
    write_ns: Option<f64>,
    /// Share of one core that the cipher took.
    cipher: f64,
    /// Requests that failed since the volume was opened.
    errors: u64,
    export: String,
    /// Share of the chunks that workers transformed.
    offloaded: Option<f64>,
    memory: u64,
    /// In seconds.
    up: Option<u64>,
    size: u64,
    kind: String,
    volume_cipher: String,
    device: String,
}

impl Row {
    fn of(name: &str, now: &Value, before: Option<(&Value, Duration)>) -> Self {
        let text = |value: &Value| clean(value.as_str().unwrap_or_default());
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        // The figures of a server that was started anew begin at 0 again.
        let before = before.filter(|(then, _)| then["server"]["pid"] == now["server"]["pid"]);
        let since = |group: &str, key: &str| {
            before.map_or(0, |(then, _)| {
                number(&now[group][key]).saturating_sub(number(&then[group][key]))
            })
        };
        let time = before.map_or(Duration::from_secs(1), |(_, time)| time);
        let latency = |key: &str| {
            let (then, _) = before?;
            let since = |of: &str| {
                let at = |status: &Value| number(&status["activity"][key][of]);
                at(now).saturating_sub(at(then)) as f64
            };
            let samples = since("samples");
            (samples > 0.0).then(|| since("ns") / samples)
        };
        let counted = |key: &str| per_second(since("counters", key), time);
        let (inline, offloaded) =
            (since("activity", "chunks_inline"), since("activity", "chunks_offloaded"));
        let (all, offloaded) = (inline + offloaded, offloaded as f64);
        let cipher_ns = since("activity", "cipher_ns") as f64;
        Self {
            name: clean(name),
            state: clean(state(now)),
            read: counted("read_bytes"),
            write: counted("written_bytes"),
            requests: ["reads", "writes", "flushes", "discards"].into_iter().map(counted).sum(),
            queue: number(&now["activity"]["in_flight"]),
            read_ns: latency("read_latency"),
            write_ns: latency("write_latency"),
            cipher: cipher_ns / 1e9 / time.as_secs_f64().max(1e-3),
            errors: number(&now["counters"]["errors"]),
            export: text(&now["export"]["kind"]),
            offloaded: (all > 0).then(|| offloaded / all as f64),
            memory: number(&now["server"]["memory_bytes"]),
            up: now["server"]["uptime_seconds"].as_u64(),
            size: number(&now["volume"]["size"]),
            kind: text(&now["volume"]["type"]),
            volume_cipher: text(&now["volume"]["cipher"]),
            device: text(&now["device"]),
        }
    }

    /// The row of a server that does not answer, and why.
    fn dead(name: &str, why: &str) -> Self {
        Self { name: clean(name), state: "dead".into(), device: clean(why), ..Self::default() }
    }

    /// By what the volumes are sorted: the larger figure first, names and states from A on.
    fn compare(&self, other: &Self, sort: Sort) -> Ordering {
        let larger = |figure: fn(&Self) -> f64| figure(other).total_cmp(&figure(self));
        match sort {
            Sort::Name => Ordering::Equal,
            Sort::State => self.state.cmp(&other.state),
            Sort::Read => larger(|row| row.read as f64),
            Sort::Write => larger(|row| row.write as f64),
            Sort::Requests => larger(|row| row.requests as f64),
            Sort::Queue => larger(|row| row.queue as f64),
            Sort::ReadLatency => larger(|row| row.read_ns.unwrap_or(-1.0)),
            Sort::WriteLatency => larger(|row| row.write_ns.unwrap_or(-1.0)),
            Sort::Cipher => larger(|row| row.cipher),
            Sort::Errors => larger(|row| row.errors as f64),
        }
        .then_with(|| self.name.cmp(&other.name))
    }
}

/// The table, with what the user has chosen.
pub(super) struct Table {
    rows: Vec<Row>,
    /// The last answers, and when they were given; `None` before the first.
    last: Option<(Instant, HashMap<String, Value>)>,
    sort: Sort,
    is_reversed: bool,
    /// The first volume that is shown.
    first: usize,
}

impl Table {
    pub(super) fn new(sort: Sort) -> Self {
        Self { rows: Vec::new(), last: None, sort, is_reversed: false, first: 0 }
    }

    /// Takes the answers of all servers.
    pub(super) fn take(&mut self, at: Instant, volumes: Answers) {
        let last = self.last.take();
        let before = |name: &str| {
            let (then, answers) = last.as_ref()?;
            Some((answers.get(name)?, at.saturating_duration_since(*then)))
        };
        self.rows = volumes
            .iter()
            .map(|(name, answer)| match answer {
                Ok(now) => Row::of(name, now, before(name)),
                Err(why) => Row::dead(name, why),
            })
            .collect();
        let answered = volumes.into_iter().filter_map(|(name, answer)| Some((name, answer.ok()?)));
        self.last = Some((at, answered.collect()));
        self.order();
    }

    fn order(&mut self) {
        let (sort, is_reversed) = (self.sort, self.is_reversed);
        self.rows.sort_by(|one, other| {
            let order = one.compare(other, sort);
            if is_reversed { order.reverse() } else { order }
        });
    }

    /// Carries out a key, on a screen of so many lines.
    pub(super) fn key(&mut self, key: Key, lines: usize) {
        let page = lines.saturating_sub(FRAME).max(1);
        let last = self.rows.len().saturating_sub(page);
        self.first = match key {
            Key::Up => self.first.saturating_sub(1),
            Key::Down => self.first + 1,
            Key::PageUp => self.first.saturating_sub(page),
            Key::PageDown => self.first + page,
            Key::First => 0,
            Key::Last => last,
            _ => self.first,
        }
        .min(last);
        let sorts = Sort::value_variants();
        let at = sorts.iter().position(|sort| *sort == self.sort).unwrap_or(0);
        match key {
            Key::Left => self.sort = sorts[at.saturating_sub(1)],
            Key::Right => self.sort = sorts[(at + 1).min(sorts.len() - 1)],
            Key::Reverse => self.is_reversed = !self.is_reversed,
            _ => return,
        }
        self.order();
    }

    /// The lines of a screen of this size: no more lines, and none longer.
    pub(super) fn lines(&mut self, width: u16, height: u16) -> Vec<String> {
        let (width, height) = (usize::from(width), usize::from(height));
        let page = height.saturating_sub(FRAME);
        self.first = self.first.min(self.rows.len().saturating_sub(page));
        let (shown, name_width) = columns_for(width);
        let head = |name: &str, sort: Option<Sort>| {
            let mark = if self.is_reversed { "^" } else { "*" };
            if sort == Some(self.sort) { format!("{name}{mark}") } else { name.to_owned() }
        };
        let line = |name: String, cell: &dyn Fn(&Column) -> String| {
            let mut line = fill(&name, name_width, false);
            for column in &shown {
                line += " ";
                line += &fill(&cell(column), column.width, column.is_number);
            }
            cut_end(&line, width)
        };
        let heading =
            line(head("NAME", Some(Sort::Name)), &|column| head(column.head, column.sort));
        let mut lines = vec![cut_end(&self.summary(), width), String::new()];
        lines.push(format!("\x1b[7m{heading}\x1b[0m"));
        let rows = self.rows.iter().skip(self.first).take(page);
        lines.extend(rows.map(|row| {
            line(row.name.clone(), &|column| {
                // What was never measured is not zero.
                let is_shown = row.state != "dead" || matches!(column.head, "STATE" | "DEVICE");
                if is_shown { (column.cell)(row) } else { none() }
            })
        }));
        lines.resize(height.saturating_sub(1).max(lines.len()), String::new());
        let below = self.rows.len().saturating_sub(self.first + page);
        let more = if below > 0 { format!("{below} more below; ") } else { String::new() };
        let keys = "q quit  arrows: sort, scroll  r reverse  space now";
        lines.push(cut_end(&format!("{more}{keys}"), width));
        lines.truncate(height);
        lines
    }

    fn summary(&self) -> String {
        let sum = |of: fn(&Row) -> u64| self.rows.iter().map(of).sum::<u64>();
        match (&self.last, self.rows.len()) {
            (None, _) => "ucrypt top: looking".into(),
            (_, 0) => "ucrypt top: no volume is open".into(),
            (_, volumes) => format!(
                "ucrypt top: {volumes} open, {}/s read, {}/s written, {} requests/s",
                human(sum(|row| row.read)),
                human(sum(|row| row.write)),
                count(sum(|row| row.requests))
            ),
        }
    }
}

/// The columns that fit into a width, and the width of the names, which takes what is left.
fn columns_for(width: usize) -> (Vec<&'static Column>, usize) {
    let mut left = width.saturating_sub(NAME_MIN);
    let mut shown = Vec::new();
    for column in COLUMNS {
        if column.width >= left {
            break;
        }
        left -= column.width + 1;
        shown.push(column);
    }
    let taken: usize = shown.iter().map(|column| column.width + 1).sum();
    (shown, width.saturating_sub(taken).clamp(1, NAME_MAX))
}

/// A cell of exactly this width.
fn fill(text: &str, width: usize, is_number: bool) -> String {
    let text = cut_end(text, width);
    let space = " ".repeat(width.saturating_sub(columns(&text)));
    if is_number { space + &text } else { text + &space }
}

fn none() -> String {
    "-".into()
}

/// A number in at most five characters.
fn count(number: u64) -> String {
    match number {
        0..100_000 => number.to_string(),
        100_000..10_000_000 => format!("{}k", number / 1000),
        _ => format!("{}M", number / 1_000_000),
    }
}

fn time(ns: Option<f64>) -> String {
    match ns {
        None => none(),
        Some(ns) if ns < 999.5 => format!("{ns:.0}ns"),
        Some(ns) if ns < 9_995.0 => format!("{:.1}µs", ns / 1e3),
        Some(ns) if ns < 999_500.0 => format!("{:.0}µs", ns / 1e3),
        Some(ns) if ns < 9.995e6 => format!("{:.1}ms", ns / 1e6),
        Some(ns) if ns < 999.5e6 => format!("{:.0}ms", ns / 1e6),
        Some(ns) => format!("{:.1}s", ns / 1e9),
    }
}

/// A share in per cent. Workers may take more than one core.
fn share(share: f64) -> String {
    format!("{:.0}", share * 100.0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(pid: u32, written: u64, in_flight: u64) -> Value {
        json!({
            "active": true, "state": "open", "device": "/dev/ucrypt/x",
            "volume": { "type": "luks2", "cipher": "aes-xts-plain64", "size": 1_u64 << 30 },
            "counters": { "reads": 1, "read_bytes": 0, "writes": written / 4096,
                "written_bytes": written, "flushes": 0, "discards": 0, "errors": 3 },
            "activity": { "in_flight": in_flight, "chunks_inline": written / 4096,
                "chunks_offloaded": 0, "cipher_ns": written,
                "write_latency": { "samples": written / 4096, "ns": written / 4096 * 50_000 } },
            "server": { "pid": pid, "memory_bytes": 1 << 20, "uptime_seconds": 61 },
            "export": { "kind": "loop" },
        })
    }

    fn table(volumes: &[(&str, Value, Value)]) -> Table {
        let (mut table, now) = (Table::new(Sort::Write), Instant::now());
        let all = |second: bool| {
            let of = |(name, one, two): &(&str, Value, Value)| {
                ((*name).to_owned(), Ok(if second { two.clone() } else { one.clone() }))
            };
            volumes.iter().map(of).collect::<Vec<_>>()
        };
        table.take(now, all(false));
        table.take(now + Duration::from_secs(2), all(true));
        table
    }

    #[test]
    fn every_screen_is_filled_and_never_passed() {
        let names: Vec<_> = (0..60).map(|at| format!("volume-ä-with-a-long-name-{at}")).collect();
        let volumes: Vec<_> =
            names.iter().map(|name| (name.as_str(), answer(1, 0, 0), answer(1, 8192, 1))).collect();
        let mut table = table(&volumes);
        for (width, height) in [(80, 24), (200, 50), (1, 1), (40, 5), (20, 3), (500, 200)] {
            let lines = table.lines(width, height);
            assert_eq!(lines.len(), usize::from(height));
            for line in &lines {
                assert!(columns(line) <= usize::from(width), "{width}: {line:?}");
            }
        }
        let lines = table.lines(80, 24);
        assert!(lines[2].contains("W-LAT") && lines[2].contains("ERR"), "{lines:?}");
        assert!(lines[23].contains("40 more below") && lines[23].contains("q quit"), "{lines:?}");
        let wide = table.lines(200, 50);
        assert!(wide[2].contains("DEVICE") && wide[3].contains("/dev/ucrypt/x"), "{wide:?}");
    }

    #[test]
    fn rates_are_differences_of_two_answers_of_the_same_server() {
        let mut table = table(&[
            ("busy", answer(1, 0, 0), answer(1, 8 << 20, 7)),
            ("anew", answer(2, 8 << 30, 0), answer(3, 4096, 0)),
        ]);
        let lines = table.lines(200, 24);
        let cells: Vec<_> = lines[3].split_whitespace().collect();
        // 8 MiB in 2 s, in requests of 4 KiB that took 50 µs.
        assert_eq!(cells[..9], ["busy", "open", "0", "4M", "1024", "7", "-", "50µs", "0"]);
        let cells: Vec<_> = lines[4].split_whitespace().collect();
        assert_eq!(cells[..5], ["anew", "open", "0", "0", "0"]);
        assert!(
            lines[0].contains("2 open, 0/s read, 4M/s written, 1024 requests/s"),
            "{}",
            lines[0]
        );
    }

    #[test]
    fn keys_choose_the_order_and_the_part_that_is_shown() {
        let mut table = table(&[
            ("a", answer(1, 0, 0), answer(1, 4096, 0)),
            ("b", answer(1, 0, 0), answer(1, 1 << 20, 0)),
            ("c", answer(1, 0, 0), answer(1, 0, 9)),
        ]);
        let order = |table: &mut Table| {
            let lines = table.lines(80, 24);
            lines[3..6].iter().map(|line| line[..1].to_owned()).collect::<String>()
        };
        assert_eq!(order(&mut table), "bac");
        table.key(Key::Reverse, 24);
        assert_eq!(order(&mut table), "cab");
        table.key(Key::Reverse, 24);
        for _ in 0..2 {
            table.key(Key::Right, 24);
        }
        assert_eq!(order(&mut table), "cab", "by the queue");
        for _ in 0..20 {
            table.key(Key::Left, 24);
        }
        assert_eq!(order(&mut table), "abc");
        table.key(Key::Down, 5);
        assert!(table.lines(80, 5)[3].starts_with('b'));
        table.key(Key::PageDown, 5);
        table.key(Key::Down, 5);
        assert!(table.lines(80, 5)[3].starts_with('c'));
        table.key(Key::First, 5);
        assert!(table.lines(80, 5)[3].starts_with('a'));
    }

    #[test]
    fn who_does_not_answer_is_shown_with_the_reason_and_controls_no_terminal() {
        let mut table = Table::new(Sort::Name);
        let why = Err("was killed\x1b[2J".to_owned());
        table.take(Instant::now(), vec![("gone".into(), why)]);
        let lines = table.lines(250, 24);
        assert!(lines[3].contains("dead") && lines[3].contains("was killed?[2J"), "{lines:?}");
        assert!(!lines[3].contains('\x1b'));
        // An answer without anything in it.
        table.take(Instant::now(), vec![("odd".into(), Ok(Value::Null))]);
        assert_eq!(table.lines(80, 24).len(), 24);
    }

    #[test]
    fn figures_are_short() {
        for (ns, text) in [(120.0, "120ns"), (9_994.0, "10.0µs"), (123e3, "123µs"), (2.5e9, "2.5s")]
        {
            assert_eq!(time(Some(ns)), text);
        }
        assert_eq!([count(99_999), count(123_456), count(50_000_000)], ["99999", "123k", "50M"]);
    }
}
