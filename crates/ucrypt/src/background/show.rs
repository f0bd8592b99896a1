//! The output of `list` and `status`; `status` is laid out like cryptsetup's.
//!
//! Everything that a server tells is untrusted by whoever reads it: a missing value is shown as empty.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde_json::Value;

use crate::runtime::nbd_socket;
use crate::size;

/// States of an open volume that is about to be closed.
pub(super) const DEFERRED: &str = "deferred";
pub(super) const ENDING: &str = "ending";
pub(super) const CLOSING: &str = "closing";
/// State of a volume that has no key.
pub(super) const SUSPENDED: &str = "suspended";
/// State of a volume that finishes requests before it loses its key.
pub(super) const SUSPENDING: &str = "suspending";

/// Whether a volume with this status is about to be closed.
pub(super) fn is_closing(status: &Value) -> bool {
    matches!(status["state"].as_str(), Some(DEFERRED | ENDING | CLOSING))
}

/// Whether a volume with this status has no key, or is about to lose it.
pub(super) fn is_suspended(status: &Value) -> bool {
    status["suspended"] == true || matches!(status["state"].as_str(), Some(SUSPENDED | SUSPENDING))
}

/// The meaning of a failed flush.
pub(crate) const FLUSH_FAILED: &str = "acknowledged writes may be lost, and no flush succeeds any more: \
    look after the disk under the image, then close the volume and open it anew";

/// A column of `list` is cut to so many characters, unless there is room or `--wide`.
const NAME_WIDTH: usize = 20;

/// What an open volume is up to, in a word for tables.
pub(crate) fn state(status: &Value) -> &str {
    match status["state"].as_str() {
        // Acknowledged writes may be lost.
        _ if status["counters"]["flush_error"].is_string() => "failed",
        // Whoever uses it waits for its key.
        _ if status["suspended"] == true => SUSPENDED,
        _ if is_closing(status) => "closing",
        Some(state) => state,
        None => "open",
    }
}

/// The lines of `list`: one for each volume, cut to `width` columns if that is given. Exact sizes with
/// `bytes`.
pub(super) fn list(volumes: &[Value], width: Option<usize>, bytes: bool) -> String {
    if volumes.is_empty() {
        return String::new();
    }
    let text = |value: &Value| clean(value.as_str().unwrap_or_default());
    let row = |status: &Value| {
        let (name, volume) = (text(&status["name"]), &status["volume"]);
        if status["active"] != true {
            let dash = || "-".to_owned();
            return [name, dash(), dash(), dash(), "dead".into(), text(&status["error"])];
        }
        [
            name,
            text(&volume["type"]).to_uppercase(),
            Size::of(&volume["size"], bytes).to_string(),
            text(&status["export"]["kind"]),
            state(status).into(),
            // Of a URI, only the path tells volumes apart.
            nbd_socket(&text(&status["device"]))
                .map_or_else(|| text(&status["device"]), |path| clean(&path.display().to_string())),
        ]
    };
    let head = ["NAME", "TYPE", "SIZE", "EXPORT", "STATE", "DEVICE"].map(str::to_owned);
    let mut rows: Vec<_> = std::iter::once(head).chain(volumes.iter().map(row)).collect();
    if width.is_some() {
        for row in &mut rows {
            row[0] = cut_end(&row[0], NAME_WIDTH);
        }
    }
    let widths: [usize; 5] =
        std::array::from_fn(|at| rows.iter().map(|row| columns(&row[at])).max().unwrap_or(0));
    let before: usize = widths.iter().map(|width| width + 2).sum();
    let mut shown = String::new();
    for row in &rows {
        for (at, (cell, width)) in row.iter().zip(widths).enumerate() {
            let fill = " ".repeat(width - columns(cell));
            // Sizes are compared: to the right.
            let parts = if at == 2 { [fill.as_str(), cell] } else { [cell, fill.as_str()] };
            shown.extend(parts.into_iter().chain(["  "]));
        }
        let is_path = row[5].starts_with('/');
        shown += &match width.map(|width| width.saturating_sub(before).max(1)) {
            Some(room) if is_path => cut_start(&row[5], room),
            Some(room) => cut_end(&row[5], room),
            None => row[5].clone(),
        };
        shown.truncate(shown.trim_end().len());
        shown.push('\n');
    }
    shown
}

/// Text from elsewhere, for example the name of an image, which must not control the terminal.
pub(crate) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Columns that a text takes on a terminal.
pub(crate) fn columns(text: &str) -> usize {
    console::measure_text_width(text)
}

/// The beginning of a text, in so many columns.
pub(crate) fn cut_end(text: &str, room: usize) -> String {
    console::truncate_str(text, room, "…").into_owned()
}

/// The end of a text, in so many columns.
fn cut_start(text: &str, room: usize) -> String {
    if columns(text) <= room {
        return text.into();
    }
    let mut ends = text.char_indices().map(|(at, _)| &text[at..]);
    let end = ends.find(|end| columns(end) < room).unwrap_or_default();
    format!("…{end}")
}

/// A number of bytes: exact, or for people.
enum Size {
    Bytes(u64),
    Human(u64),
}

impl Size {
    fn of(value: &Value, exact: bool) -> Self {
        let bytes = value.as_u64().unwrap_or(0);
        if exact { Self::Bytes(bytes) } else { Self::Human(bytes) }
    }
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{bytes}"),
            Self::Human(bytes) => f.write_str(&size::human(*bytes)),
        }
    }
}

/// What `status` knows beside the server's answer.
pub(super) struct Around<'a> {
    /// A second answer, and how much later it was given.
    pub(super) later: Option<(&'a Value, Duration)>,
    /// Who uses the device or file, as far as this process sees.
    pub(super) users: &'a [String],
    /// Exact sizes.
    pub(super) bytes: bool,
}

/// The lines of `status`: as many as fit on a screen of 80x24, labelled as in cryptsetup where it has
/// them.
pub(super) fn status(first: &Value, around: &Around<'_>) -> String {
    let status = around.later.map_or(first, |(later, _)| later);
    let volume = &status["volume"];
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let size = |value: &Value| match Size::of(value, around.bytes) {
        Size::Bytes(bytes) => format!("{bytes} bytes"),
        human @ Size::Human(_) => human.to_string(),
    };
    let sectors = |value: &Value| value.as_u64().unwrap_or(0) / 512;
    let (export, server, counters) = (&status["export"], &status["server"], &status["counters"]);
    let mode = if volume["read_only"] == true { "readonly" } else { "read/write" };
    let discards = if volume["discards"] == true { ", discards allowed" } else { "" };
    let transport = export["transport"].as_str();
    let why = export["transport_reason"].as_str();
    let why = why.map_or_else(String::new, |why| format!(": {why}"));
    let transport = transport.map_or_else(String::new, |by| format!(" (FUSE, {by}{why})"));
    let mounted = status["mounted"].as_str();
    let mounted = mounted.map_or_else(String::new, |dir| format!(" (mounted: {dir})"));
    let memory = (size(&server["memory_bytes"]), size(&server["locked_bytes"]));
    let mut lines = vec![
        ("name", text(&status["name"]) + &mounted),
        ("type", text(&volume["type"]).to_uppercase()),
        ("cipher", text(&volume["cipher"])),
        ("keysize", format!("{} bits", volume["key_bits"])),
        ("device", text(&volume["image"]) + &way(volume)),
        ("sector size", text(&volume["sector_size"])),
        ("offset", format!("{} ({} sectors)", size(&volume["offset"]), sectors(&volume["offset"]))),
        ("size", format!("{} ({} sectors)", size(&volume["size"]), sectors(&volume["size"]))),
        ("mode", format!("{mode}{discards}")),
    ];
    if let Some(uuid) = volume["uuid"].as_str() {
        let keyslot = volume["keyslot"].as_u64();
        let keyslot = keyslot.map_or_else(String::new, |number| format!(" (keyslot {number})"));
        lines.push(("uuid", format!("{uuid}{keyslot}")));
    }
    lines.push(("export", text(&export["kind"]) + &transport));
    let clients = status["clients"].as_u64().unwrap_or(0);
    let unused =
        if export["kind"] == "nbd" { "no client is connected" } else { "nobody that can be seen" };
    lines.push(("users", users(around.users, clients).unwrap_or_else(|| unused.into())));
    let up = server["uptime_seconds"].as_u64().map(|seconds| format!(", up {}", duration(seconds)));
    let seen = server["pid"].as_u64().map(|pid| format!("PID {pid}"));
    let seen = seen.unwrap_or_else(|| "in another PID namespace".into());
    let memory = format!(", memory {}, {} locked", memory.0, memory.1);
    lines.push(("server", seen + &up.unwrap_or_default() + &memory));
    for (name, value) in [("log", &status["log"]), ("metrics", &status["metrics"])] {
        lines.extend(value.as_str().map(|value| (name, value.to_owned())));
    }
    lines.extend(around.later.map(|(later, after)| ("now", throughput(first, later, after))));
    lines.push(("requests", done(counters, &size)));
    if let Some(error) = counters["last_error"].as_str() {
        lines.push(("last error", error.into()));
    }
    if let Some(error) = counters["flush_error"].as_str() {
        lines.push(("flush error", format!("{error}; {FLUSH_FAILED}")));
    }
    lines.push(("dispatch", format!("{}. {}", text(&volume["dispatch"]), Why::of(status))));
    for note in server["notes"].as_array().into_iter().flatten() {
        lines.push(("note", text(note)));
    }
    if status["suspended"] == true {
        lines.push(("suspended", "requests wait; ucrypt luksResume gives the key back".into()));
    }
    let state = match status["state"].as_str() {
        Some(SUSPENDED) => " and is suspended",
        Some(SUSPENDING) => " and is being suspended",
        Some(DEFERRED) => ", and closes with its last user",
        Some(ENDING | CLOSING) => ", and waits for its last user to end",
        _ => "",
    };
    let mut shown = format!("{} is active{state}.\n", clean(&text(&status["device"])));
    for (name, value) in lines {
        // Writing to a string cannot fail.
        let _ = writeln!(shown, "  {:<13}{}", format!("{name}:"), clean(value.trim_end()));
    }
    shown
}

/// How the server reads the image. Its backend also tells the file, which stands before this.
fn way(volume: &Value) -> String {
    let backend = volume["backend"].as_str().unwrap_or_default();
    backend.rfind(" (").map_or_else(String::new, |at| backend[at..].to_owned())
}

/// What a volume has done, in one line.
fn done(counters: &Value, size: &dyn Fn(&Value) -> String) -> String {
    let count = |key: &str| counters[key].as_u64().unwrap_or(0);
    format!(
        "reads {} ({}), writes {} ({}), flushes {}, discards {}, errors {}",
        count("reads"),
        size(&counters["read_bytes"]),
        count("writes"),
        size(&counters["written_bytes"]),
        count("flushes"),
        count("discards"),
        count("errors"),
    )
}

/// Who uses a volume, if somebody does.
fn users(seen: &[String], clients: u64) -> Option<String> {
    let clients = match clients {
        0 => None,
        1 => Some("an NBD client".to_owned()),
        count => Some(format!("{count} NBD clients")),
    };
    let mut all: Vec<_> = seen.iter().take(3).cloned().chain(clients).collect();
    if seen.len() > 3 {
        all.push(format!("{} more", seen.len() - 3));
    }
    (!all.is_empty()).then(|| all.join(", "))
}

/// What was done between two answers of a server.
fn throughput(first: &Value, later: &Value, after: Duration) -> String {
    let rate = |key: &str| {
        let at = |status: &Value| status["counters"][key].as_u64().unwrap_or(0);
        per_second(at(later).saturating_sub(at(first)), after)
    };
    let requests = ["reads", "writes", "flushes", "discards"].map(rate).iter().sum::<u64>();
    format!(
        "{}/s read, {}/s written, {requests} requests/s",
        size::human(rate("read_bytes")),
        size::human(rate("written_bytes")),
    )
}

/// So many in this time, in a second.
pub(crate) fn per_second(count: u64, time: Duration) -> u64 {
    let per_second = u128::from(count) * 1000 / time.as_millis().max(1);
    u64::try_from(per_second).unwrap_or(u64::MAX)
}

/// A time in its two largest units.
pub(crate) fn duration(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    if days > 0 {
        format!("{days} d {} h", hours % 24)
    } else if hours > 0 {
        format!("{hours} h {} min", minutes % 60)
    } else if minutes > 0 {
        format!("{minutes} min {} s", seconds % 60)
    } else {
        format!("{seconds} s")
    }
}

const NOT_MEASURED: &str = "not measured yet";

/// Why chunks ran inline or on workers.
struct Why<'a> {
    policy: &'a str,
    /// All chunks, and those offloaded to workers.
    chunks: u64,
    offloaded: u64,
    /// Of the chunks of the queues that are there: the share that the explorer kept inline.
    explored_inline: f64,
    /// Workers that a queue might use.
    workers: f64,
    /// As the queues' last decisions applied it.
    wake_latency_ns: Option<f64>,
    enqueue_cost_ns: Option<f64>,
    /// Bytes that clients have read and written.
    read_bytes: f64,
    written_bytes: f64,
    /// Cipher time of a mean chunk.
    cipher_ns: f64,
    /// The queues have told what they decided and measured, which they do now and then.
    is_told: bool,
}

impl<'a> Why<'a> {
    /// In a sentence, why the chunks of a volume ran where they did.
    fn of(status: &'a Value) -> String {
        let queues = Queues::of(status);
        // All that stands here also counts what queues did that have ended, and what they have not told yet.
        let counted = |key: &str| status["counters"][key].as_u64().unwrap_or(0) as f64;
        let activity = &status["activity"];
        let by = |key: &str| activity[key].as_u64().unwrap_or_else(|| queues.sum(key));
        let (inline, offloaded) = (by("chunks_inline"), by("chunks_offloaded"));
        let (read_bytes, written_bytes) = (counted("read_bytes"), counted("written_bytes"));
        // What is not measured yet is taken for as fast as the other, as in decisions.
        let of = |key| queues.mean(key);
        let (decrypt, encrypt) = (of("decrypt_ns_per_byte"), of("encrypt_ns_per_byte"));
        let cipher_ns = decrypt.or(encrypt).unwrap_or(0.0) * read_bytes
            + encrypt.or(decrypt).unwrap_or(0.0) * written_bytes;
        let why = Self {
            policy: status["volume"]["dispatch"].as_str().unwrap_or("unknown"),
            chunks: inline + offloaded,
            offloaded,
            explored_inline: queues.sum("chunks_all_inline") as f64 / queues.chunks().max(1) as f64,
            workers: queues.mean("workers").unwrap_or(0.0),
            wake_latency_ns: queues.mean("wake_latency_applied_ns"),
            enqueue_cost_ns: queues.mean("enqueue_cost_ns"),
            read_bytes,
            written_bytes,
            cipher_ns: cipher_ns / (inline + offloaded).max(1) as f64,
            is_told: queues.chunks() > 0,
        };
        why.in_a_sentence()
    }

    fn in_a_sentence(&self) -> String {
        let share = |chunks: u64| chunks as f64 / self.chunks.max(1) as f64;
        let verb = match (self.read_bytes > 0.0, self.written_bytes > 0.0) {
            (true, true) => "encrypted and decrypted",
            (true, false) => "decrypted",
            (false, _) => "encrypted",
        };
        let inline = format!("is {verb} on the thread that receives it");
        let cipher_us = self.cipher_ns / 1000.0;
        let what = match share(self.offloaded) {
            _ if self.chunks == 0 => return "Nothing has been encrypted yet.\n".into(),
            share if share < 0.005 => format!("Everything {inline}"),
            share if share > 0.995 => format!("Everything is {verb} by workers"),
            share => format!("{:.0} % is {verb} by workers, the rest inline", share * 100.0),
        };
        if !self.is_told {
            return format!("{what}.\n");
        }
        let us = |ns: Option<f64>| ns.map(|ns| ns / 1000.0);
        let why = if self.policy != "adaptive" {
            format!("the policy is {}", self.policy)
        } else if share(self.offloaded) >= 0.005 {
            match us(self.enqueue_cost_ns) {
                Some(us) => format!(
                    "a chunk takes {cipher_us:.1} µs of cipher, giving it to a worker took \
                     {us:.1} µs at open"
                ),
                None => format!("a chunk takes {cipher_us:.1} µs of cipher"),
            }
        } else if self.explored_inline > 0.5 {
            "that was seen to be faster than what the estimates say".into()
        } else if self.workers < 0.5 {
            "no core is free for a worker".into()
        } else if let Some(wake_us) = us(self.wake_latency_ns) {
            format!(
                "waking another core takes {wake_us:.1} µs, a chunk {cipher_us:.1} µs of cipher"
            )
        } else if let Some(us) = us(self.enqueue_cost_ns) {
            format!(
                "a chunk takes {cipher_us:.1} µs of cipher, giving it to a worker took {us:.1} µs \
                 at open"
            )
        } else {
            "what a worker would cost is not measured yet".into()
        };
        format!("{what}: {why}.\n")
    }
}

/// The decisions of the queues in an answer of a server.
struct Queues<'a>(&'a [Value]);

impl<'a> Queues<'a> {
    fn of(status: &'a Value) -> Self {
        Self(status["queues"].as_array().map_or(&[][..], Vec::as_slice))
    }

    fn sum(&self, key: &str) -> u64 {
        self.0.iter().filter_map(|queue| queue[key].as_u64()).sum()
    }

    /// Those that have transformed something.
    fn used(&self) -> impl Iterator<Item = &'a Value> {
        let is_used =
            |queue: &&Value| queue["chunks_inline"] != 0 || queue["chunks_offloaded"] != 0;
        self.0.iter().filter(is_used)
    }

    fn mean(&self, key: &str) -> Option<f64> {
        let figures: Vec<f64> = self.used().filter_map(|queue| queue[key].as_f64()).collect();
        (!figures.is_empty()).then(|| figures.iter().sum::<f64>() / figures.len() as f64)
    }

    fn chunks(&self) -> u64 {
        self.sum("chunks_inline") + self.sum("chunks_offloaded")
    }
}

/// The lines of `status --dispatch`: what was decided, and the measurements behind it.
pub(super) fn dispatch(status: &Value) -> String {
    let queues = Queues::of(status);
    let sum = |key: &str| queues.sum(key);
    let mean = |key: &str| queues.mean(key);
    let used = || queues.used();
    let figure = |key: &str, digits: usize, unit: &str| {
        mean(key).map_or_else(|| NOT_MEASURED.into(), |figure| format!("{figure:.digits$} {unit}"))
    };
    let measured = |key: &str, digits: usize, unit: &str| {
        let samples: u64 = used().filter_map(|queue| queue["samples"][key].as_u64()).sum();
        match figure(key, digits, unit) {
            shown if samples > 0 => format!("{shown} ({samples} samples)"),
            shown => shown,
        }
    };
    let once = |key: &str, digits: usize, unit: &str| match figure(key, digits, unit) {
        shown if shown == NOT_MEASURED => shown,
        shown => format!("{shown} (measured once, at open)"),
    };
    let share = |key: &str, all: u64| {
        format!("{} ({:.1} %)", sum(key), sum(key) as f64 * 100.0 / all.max(1) as f64)
    };
    let requests = sum("requests_whole") + sum("requests_split") + sum("requests_joined");
    let chunks = queues.chunks();
    let applied = mean("wake_latency_applied_ns");
    let applied =
        applied.map_or_else(|| "none that was measured".into(), |ns| format!("{ns:.0} ns"));
    let operation = figure("operation_ns_assumed", 0, "ns");
    let lines = [
        ("policy", status["volume"]["dispatch"].as_str().unwrap_or("unknown").to_owned()),
        ("queues", format!("{} ({} used)", queues.0.len(), used().count())),
        ("decryption", measured("decrypt_ns_per_byte", 3, "ns per byte")),
        ("encryption", measured("encrypt_ns_per_byte", 3, "ns per byte")),
        ("decryption by workers", measured("worker_decrypt_ns_per_byte", 3, "ns per byte")),
        ("encryption by workers", measured("worker_encrypt_ns_per_byte", 3, "ns per byte")),
        ("wake latency", measured("wake_latency_ns", 0, "ns")),
        ("after 0.1 ms of sleep", measured("wake_latency_after_100us_ns", 0, "ns")),
        ("after 1 ms of sleep", measured("wake_latency_after_1ms_ns", 0, "ns")),
        ("wake latency applied", applied),
        ("wake cost", measured("wake_cost_ns", 0, "ns")),
        ("enqueue cost", once("enqueue_cost_ns", 0, "ns")),
        ("cross-core copy penalty", once("copy_penalty_ns_per_byte", 3, "ns per byte")),
        ("copy by the kernel", once("copy_ns_per_byte", 3, "ns per byte")),
        ("a write takes", write_time(used())),
        ("one more operation", format!("not measured, taken as {operation}")),
        ("workers at hand", figure("workers", 1, "a queue")),
        ("requests served whole", share("requests_whole", requests)),
        ("requests split", share("requests_split", requests)),
        ("requests joined", share("requests_joined", requests)),
        ("chunks inline", share("chunks_inline", chunks)),
        ("of these, taken back", share("chunks_taken_back", chunks)),
        ("chunks offloaded", share("chunks_offloaded", chunks)),
        ("explored, all inline", share("chunks_all_inline", chunks)),
        ("explored, all offloaded", share("chunks_all_offload", chunks)),
        ("explored, coarse", share("chunks_coarse", chunks)),
        ("explored, whole", share("chunks_whole", chunks)),
        ("waits for the disk", waiting(&status["polling"])),
    ];
    let mut shown = Why::of(status);
    for (name, value) in lines {
        // Writing to a string cannot fail.
        let _ = writeln!(shown, "  {:<26}{value}", format!("{name}:"));
    }
    shown
}

/// What writes of the length that was seen most often take.
fn write_time<'a>(queues: impl Iterator<Item = &'a Value>) -> String {
    let mut seen: BTreeMap<u64, (f64, u64)> = BTreeMap::new();
    for class in queues.filter_map(|queue| queue["writes"].as_array()).flatten() {
        let figures =
            (class["bytes_min"].as_u64(), class["ns"].as_f64(), class["samples"].as_u64());
        let (Some(bytes), Some(ns), Some(samples)) = figures else { continue };
        let (sum, count) = seen.entry(bytes).or_default();
        *sum += ns * samples as f64;
        *count += samples;
    }
    let most = seen.into_iter().max_by_key(|(_, (_, count))| *count);
    most.filter(|(_, (_, count))| *count > 0).map_or_else(
        || NOT_MEASURED.into(),
        |(bytes, (sum, count))| {
            let ns = sum / count as f64;
            format!("{ns:.0} ns from {} on ({count} samples)", size::human(bytes))
        },
    )
}

/// How the server waits for the disk while requests come one at a time, and why.
fn waiting(polling: &Value) -> String {
    let how = if polling["spins"] == true { "spinning" } else { "asleep" };
    if polling["poll"] != "auto" {
        return format!("{how} (--poll {})", polling["poll"].as_str().unwrap_or("off"));
    }
    match (polling["asleep_ns"].as_f64(), polling["spinning_ns"].as_f64()) {
        (Some(asleep), Some(spinning)) => {
            let (asleep, spinning) = (asleep / 1000.0, spinning / 1000.0);
            format!("{how} (a lone request takes {asleep:.0} µs asleep, {spinning:.0} spinning)")
        }
        _ => format!("{how} ({NOT_MEASURED})"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_sentence_says_where_and_why() {
        let said = |queue: Value, policy: &str| {
            let counters = json!({ "read_bytes": 4_096_000, "written_bytes": 0 });
            let volume = json!({ "dispatch": policy });
            let status = json!({ "queues": [queue], "counters": counters, "volume": volume });
            dispatch(&status).lines().next().unwrap_or_default().to_owned()
        };
        let queue = |offloaded: u64, workers: u32, all_inline: u64| {
            json!({
                "chunks_inline": 1000 - offloaded, "chunks_offloaded": offloaded,
                "chunks_all_inline": all_inline, "workers": workers,
                "wake_latency_ns": 2900.0, "wake_latency_applied_ns": 6100.0,
                "decrypt_ns_per_byte": 0.075, "enqueue_cost_ns": 400.0,
                "samples": { "wake_latency_ns": 9 },
            })
        };
        let inline = "Everything is decrypted on the thread that receives it";
        let reason = "waking another core takes 6.1 µs, a chunk 0.3 µs of cipher.";
        assert_eq!(said(queue(0, 1, 0), "adaptive"), format!("{inline}: {reason}"));
        let none = format!("{inline}: no core is free for a worker.");
        assert_eq!(said(queue(0, 0, 0), "adaptive"), none);
        assert!(said(queue(0, 1, 900), "adaptive").contains("seen to be faster"));
        let mut unmeasured = queue(0, 1, 0);
        for key in ["wake_latency_ns", "wake_latency_applied_ns", "enqueue_cost_ns"] {
            unmeasured[key] = Value::Null;
        }
        let none = format!("{inline}: what a worker would cost is not measured yet.");
        assert_eq!(said(unmeasured, "adaptive"), none);
        assert!(said(queue(1000, 1, 0), "unbound").ends_with("by workers: the policy is unbound."));
        assert!(said(queue(90, 1, 0), "adaptive").starts_with("9 % is decrypted by workers"));
    }

    /// Regression: the bytes of all queues were divided by the chunks of those that are still there, so a volume
    /// whose clients come and go seemed to take longer and longer for a chunk.
    #[test]
    fn what_a_chunk_takes_does_not_depend_on_how_many_queues_have_ended() {
        let said = |queue: Value| {
            Why::of(&json!({
                "activity": { "chunks_inline": 1_000_000, "chunks_offloaded": 0 },
                "counters": { "read_bytes": 4_096_000_000_u64, "written_bytes": 0 },
                "volume": { "dispatch": "adaptive" },
                "queues": [queue],
            }))
        };
        let mut queue = json!({
            "chunks_inline": 10, "chunks_offloaded": 0, "chunks_all_inline": 0, "workers": 1,
            "wake_latency_applied_ns": 6100.0, "encrypt_ns_per_byte": 0.075,
        });
        assert!(said(queue.clone()).ends_with(" takes 6.1 µs, a chunk 0.3 µs of cipher.\n"));
        queue["chunks_all_inline"] = 9.into();
        assert!(said(queue).contains("seen to be faster"));
    }

    #[test]
    fn what_was_done_is_told_before_the_queues_have_told_why() {
        let status = json!({
            "activity": { "chunks_inline": 7, "chunks_offloaded": 0 },
            "counters": { "read_bytes": 0, "written_bytes": 4096 },
            "queues": [{ "chunks_inline": 0, "chunks_offloaded": 0 }],
        });
        assert_eq!(Why::of(&status), "Everything is encrypted on the thread that receives it.\n");
    }

    #[test]
    fn a_list_has_the_width_of_the_screen_and_cuts_only_where_it_must() {
        let open = |name: &str, device: &str| {
            json!({
                "active": true, "name": name, "state": "open", "device": device,
                "volume": { "type": "luks2", "size": 3_u64 << 29 }, "export": { "kind": "fuse" },
            })
        };
        let long = "ä".repeat(30);
        let why = "the server of gone was killed; ucrypt close gone removes what it left";
        let volumes = [
            open("work", "/dev/ucrypt/work"),
            open(&long, &format!("/run/user/1000/ucrypt/{long}")),
            json!({ "active": false, "name": "gone", "error": why }),
        ];
        let cut = list(&volumes, Some(60), false);
        assert!(cut.lines().all(|line| columns(line) <= 60), "{cut}");
        let lines: Vec<Vec<_>> =
            cut.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["NAME", "TYPE", "SIZE", "EXPORT", "STATE", "DEVICE"]);
        assert_eq!(lines[1][..5], ["work", "LUKS2", "1.5G", "fuse", "open"]);
        let alone = list(&volumes[..1], Some(60), false);
        assert!(alone.trim_end().ends_with(" open   /dev/ucrypt/work"), "{alone}");
        assert!(lines[2][0].ends_with('…') && lines[2][5].starts_with('…'), "{cut}");
        assert!(lines[2][5].ends_with("ää") && lines[3][4] == "dead", "{cut}");
        let wide = list(&volumes, None, true);
        assert!(
            wide.contains(&long) && wide.contains(why) && wide.contains(" 1610612736 "),
            "{wide}"
        );
        let nbd = [open("work", "nbd+unix:///?socket=/run/user/1000/ucrypt/.work.nbd")];
        assert!(list(&nbd, None, false).ends_with(" /run/user/1000/ucrypt/.work.nbd\n"));
        let cut = list(&nbd, Some(60), false);
        assert!(cut.trim_end().ends_with("/.work.nbd") && cut.contains('…'), "{cut}");
        assert_eq!(list(&[], Some(60), false), "");
        assert_eq!([cut_start("abcdef", 6), cut_start("abcdef", 4)], ["abcdef", "…def"]);
    }

    #[test]
    fn a_status_with_everything_in_it_fits_a_screen_of_80x24() {
        let queue = json!({
            "chunks_inline": 910, "chunks_offloaded": 90, "workers": 1, "enqueue_cost_ns": 400.0,
        });
        let volume = json!({
            "type": "luks2", "cipher": "aes-xts-plain64", "key_bits": 512, "image": "/srv/work.img",
            "backend": "work.img (io_uring)", "sector_size": 4096, "offset": 16 << 20,
            "size": 3_u64 << 40, "read_only": false, "discards": true, "dispatch": "adaptive",
            "uuid": "4d9f2c4e-9a3f-4d0a-8f0e-1f2d3c4b5a69", "keyslot": 0,
        });
        // Those of a user without any right; see `resilience`.
        let notes = [
            "no protection at low memory: the server lacks CAP_SYS_RESOURCE",
            "no mount namespace of its own: the server lacks CAP_SYS_CHROOT",
            "memory is not locked, may be swapped: ulimit -l unlimited",
        ];
        let shown = json!({
            "device": "/run/user/1000/ucrypt/work", "name": "work", "mounted": "/home/user/work",
            "export": { "kind": "fuse", "transport": "classic", "transport_reason":
                "io_uring is off in the kernel" },
            "server": { "pid": 123_456, "uptime_seconds": 90_000, "memory_bytes": 15 << 20,
                "locked_bytes": 0, "notes": notes },
            "log": "/run/user/1000/ucrypt/.work.log", "metrics": "127.0.0.1:9100",
            "counters": { "reads": 12_345_678, "read_bytes": 99_u64 << 30, "writes": 1_234_567,
                "written_bytes": 9_u64 << 30, "flushes": 1234, "discards": 12, "errors": 0 },
            "volume": volume, "queues": [queue],
        });
        let later = Some((&shown, Duration::from_secs(1)));
        let users = ["fuse2fs (process 12345)".to_owned()];
        let text = status(&shown, &Around { later, users: &users, bytes: false });
        let rows: usize = text.lines().map(|line| columns(line).div_ceil(80).max(1)).sum();
        assert!(rows <= 24, "{rows} rows:\n{text}");
        assert!(text.contains("device:      /srv/work.img (io_uring)\n"), "{text}");
    }

    #[test]
    fn a_status_without_anything_in_it_is_shown() {
        let around = Around { later: None, users: &[], bytes: false };
        assert!(status(&Value::Null, &around).lines().count() > 10);
        let odd = json!({ "volume": { "image": "\x1b[2J\n" } });
        assert!(status(&odd, &around).contains("device:      ?[2J"), "{}", status(&odd, &around));
        let seen = ["a", "b", "c", "d", "e"].map(str::to_owned);
        assert_eq!(users(&seen, 2).as_deref(), Some("a, b, c, 2 NBD clients, 2 more"));
        assert_eq!(users(&[], 0), None);
        let nbd = json!({ "export": { "kind": "nbd" }, "clients": 0 });
        assert!(status(&nbd, &around).contains("users:       no client is connected\n"));
        assert_eq!(
            [duration(59), duration(3661), duration(90_000)],
            ["59 s", "1 h 1 min", "1 d 1 h"]
        );
    }

    #[test]
    fn the_way_to_wait_is_shown_with_its_reason() {
        let polling = |spins: bool, spinning_ns: Option<u64>| {
            waiting(&json!({
                "poll": "auto", "spins": spins, "asleep_ns": 104_000, "spinning_ns": spinning_ns,
            }))
        };
        assert_eq!(polling(false, None), "asleep (not measured yet)");
        let measured = "a lone request takes 104 µs asleep, 71 spinning";
        assert_eq!(polling(true, Some(71_000)), format!("spinning ({measured})"));
        assert_eq!(waiting(&json!({ "poll": "off", "spins": false })), "asleep (--poll off)");
    }

    #[test]
    fn a_volume_that_nobody_has_used_has_measured_nothing() {
        let unused = json!({ "chunks_inline": 0, "chunks_offloaded": 0, "wake_cost_ns": 9000 });
        let shown = dispatch(&json!({ "queues": [unused, unused] }));
        assert!(shown.contains("  queues:                   2 (0 used)\n"), "{shown}");
        assert!(shown.starts_with("Nothing has been encrypted yet.\n"), "{shown}");
        assert!(shown.contains("  wake cost:                not measured yet\n"), "{shown}");
        assert!(!shown.contains(" -0"), "{shown}");
    }
}
