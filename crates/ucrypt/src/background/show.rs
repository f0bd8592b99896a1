//! The output of `list` and `status`; `status` is laid out like cryptsetup's.

use std::fmt::Write as _;

use serde_json::Value;

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

/// The meaning of a failed flush.
pub(crate) const FLUSH_FAILED: &str = "acknowledged writes may be lost, and no flush succeeds any more: \
    look after the disk under the image, then close the volume and open it anew";

/// The lines of `list`: one for each volume.
pub(super) fn list(volumes: &[Value]) -> String {
    let line = |status: &Value| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let volume = &status["volume"];
        if status["active"] != true {
            let cells = ["", "", "", "", &text(&status["error"])].map(str::to_owned);
            return [vec![text(&status["name"])], cells.to_vec()].concat();
        }
        let bytes = volume["size"].as_u64().unwrap_or(0);
        vec![
            text(&status["name"]),
            match status["state"].as_str() {
                _ if is_closing(status) => "(closing)".into(),
                Some(state @ (SUSPENDED | SUSPENDING)) => {
                    format!("{} ({state})", text(&status["device"]))
                }
                _ => text(&status["device"]),
            },
            text(&volume["type"]).to_uppercase(),
            text(&volume["cipher"]),
            bytes.to_string(),
            text(&volume["image"]),
        ]
    };
    let head = ["NAME", "DEVICE", "TYPE", "CIPHER", "BYTES", "IMAGE"].map(str::to_owned).to_vec();
    let mut rows: Vec<_> = volumes.iter().map(line).collect();
    if rows.is_empty() {
        return String::new();
    }
    rows.insert(0, head);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<_> = (0..rows[0].len()).map(|column| width(column).unwrap_or(0)).collect();
    let mut shown = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        shown.push_str(line.trim_end());
        shown.push('\n');
    }
    shown
}

/// The lines of `status`.
pub(super) fn status(status: &Value) -> String {
    let volume = &status["volume"];
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let sectors = |value: &Value| format!("{} sectors", value.as_u64().unwrap_or(0) / 512);
    let mode = if volume["read_only"] == true { "readonly" } else { "read/write" };
    let mut lines = vec![
        ("type", text(&volume["type"]).to_uppercase()),
        ("cipher", text(&volume["cipher"])),
        ("keysize", format!("{} bits", volume["key_bits"])),
        ("device", text(&volume["image"])),
        ("backend", text(&volume["backend"])),
        ("sector size", text(&volume["sector_size"])),
        ("offset", sectors(&volume["offset"])),
        ("size", sectors(&volume["size"])),
        ("mode", mode.into()),
        ("discards", if volume["discards"] == true { "allowed" } else { "refused" }.into()),
        ("dispatch", text(&volume["dispatch"])),
    ];
    for (name, key) in [("uuid", "uuid"), ("keyslot", "keyslot")] {
        if !volume[key].is_null() {
            lines.push((name, text(&volume[key])));
        }
    }
    if let Some(dir) = status["mounted"].as_str() {
        lines.push(("mounted", dir.into()));
    }
    let export = &status["export"];
    let transport = match export["transport"].as_str() {
        Some(transport) => format!(" (FUSE, {transport})"),
        None => String::new(),
    };
    lines.push(("export", text(&export["kind"]) + &transport));
    let counters = &status["counters"];
    lines.push(("reads", format!("{} ({} bytes)", counters["reads"], counters["read_bytes"])));
    lines.push(("writes", format!("{} ({} bytes)", counters["writes"], counters["written_bytes"])));
    lines.push(("flushes", text(&counters["flushes"])));
    lines.push(("discarded", text(&counters["discards"])));
    lines.push(("errors", text(&counters["errors"])));
    if let Some(error) = counters["flush_error"].as_str() {
        lines.push(("flush failed", format!("{error}; {FLUSH_FAILED}")));
    }
    let server = &status["server"];
    let bytes = |key: &str| server[key].as_u64().unwrap_or(0);
    let mib = |key: &str| format!("{} MiB", bytes(key) >> 20);
    lines.push(("memory", format!("{}, {} locked", mib("memory_bytes"), mib("locked_bytes"))));
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
    let mut shown = format!("{} is active{state}.\n", text(&status["device"]));
    for (name, value) in lines {
        // Writing to a string cannot fail.
        let _ = writeln!(shown, "  {:<13}{value}", format!("{name}:"));
    }
    shown
}

const NOT_MEASURED: &str = "not measured yet";

/// Why chunks ran inline or on workers.
struct Why<'a> {
    policy: &'a str,
    /// All chunks, those offloaded to workers, and those that the explorer kept inline.
    chunks: u64,
    offloaded: u64,
    explored_inline: u64,
    /// Workers that a queue might use.
    workers: f64,
    wake_latency_ns: Option<f64>,
    enqueue_cost_ns: Option<f64>,
    /// Bytes that clients have read and written.
    read_bytes: f64,
    written_bytes: f64,
    /// Cipher time of a mean chunk.
    cipher_ns: f64,
}

impl Why<'_> {
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
            share => format!("{:.0} % is {verb} by workers, the rest {inline}", share * 100.0),
        };
        let us = |ns: Option<f64>| ns.map(|ns| ns / 1000.0);
        let why = if self.policy != "adaptive" {
            format!("the policy is {}", self.policy)
        } else if share(self.offloaded) >= 0.005 {
            match us(self.enqueue_cost_ns) {
                Some(us) => format!(
                    "a chunk takes {cipher_us:.1} µs of cipher, giving it to a worker {us:.1} µs"
                ),
                None => format!("a chunk takes {cipher_us:.1} µs of cipher"),
            }
        } else if share(self.explored_inline) > 0.5 {
            "that was seen to be faster than what the estimates say".into()
        } else if self.workers < 0.5 {
            "no core is free for a worker".into()
        } else if let Some(wake_us) = us(self.wake_latency_ns) {
            format!(
                "waking another core takes {wake_us:.1} µs, a chunk {cipher_us:.1} µs of cipher"
            )
        } else {
            "there are no workers".into()
        };
        format!("{what}: {why}.\n")
    }
}

/// The lines of `status --dispatch`: what was decided, and the measurements behind it.
pub(super) fn dispatch(status: &Value) -> String {
    let empty = Vec::new();
    let queues = status["queues"].as_array().unwrap_or(&empty);
    let sum = |key: &str| queues.iter().filter_map(|queue| queue[key].as_u64()).sum::<u64>();
    let used = || {
        queues.iter().filter(|queue| queue["chunks_inline"] != 0 || queue["chunks_offloaded"] != 0)
    };
    let mean = |key: &str| {
        let figures: Vec<f64> = used().filter_map(|queue| queue[key].as_f64()).collect();
        (!figures.is_empty()).then(|| figures.iter().sum::<f64>() / figures.len() as f64)
    };
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
    let share = |key: &str, all: u64| {
        format!("{} ({:.1} %)", sum(key), sum(key) as f64 * 100.0 / all.max(1) as f64)
    };
    let requests = sum("requests_whole") + sum("requests_split") + sum("requests_joined");
    let chunks = sum("chunks_inline") + sum("chunks_offloaded");
    let counters = &status["counters"];
    let counted = |key: &str| counters[key].as_u64().unwrap_or(0) as f64;
    let cipher_ns = |key: &str, bytes: &str| mean(key).unwrap_or(0.0) * counted(bytes);
    // Of a mean chunk.
    let cipher_ns = (cipher_ns("decrypt_ns_per_byte", "read_bytes")
        + cipher_ns("encrypt_ns_per_byte", "written_bytes"))
        / chunks.max(1) as f64;
    let lines = [
        ("policy", status["volume"]["dispatch"].as_str().unwrap_or("unknown").to_owned()),
        ("queues", format!("{} ({} used)", queues.len(), used().count())),
        ("decryption", measured("decrypt_ns_per_byte", 3, "ns per byte")),
        ("encryption", measured("encrypt_ns_per_byte", 3, "ns per byte")),
        ("decryption by workers", measured("worker_decrypt_ns_per_byte", 3, "ns per byte")),
        ("encryption by workers", measured("worker_encrypt_ns_per_byte", 3, "ns per byte")),
        ("wake latency", measured("wake_latency_ns", 0, "ns")),
        ("after 0.1 ms of sleep", measured("wake_latency_after_100us_ns", 0, "ns")),
        ("after 1 ms of sleep", measured("wake_latency_after_1ms_ns", 0, "ns")),
        ("wake cost", measured("wake_cost_ns", 0, "ns")),
        ("enqueue cost", measured("enqueue_cost_ns", 0, "ns")),
        ("cross-core copy penalty", measured("copy_penalty_ns_per_byte", 3, "ns per byte")),
        ("copy by the kernel", measured("copy_ns_per_byte", 3, "ns per byte")),
        ("one more operation", figure("operation_ns_assumed", 0, "ns (assumed)")),
        ("workers at hand", figure("workers", 1, "a queue")),
        ("requests served whole", share("requests_whole", requests)),
        ("requests split", share("requests_split", requests)),
        ("requests joined", share("requests_joined", requests)),
        ("chunks inline", share("chunks_inline", chunks)),
        ("chunks offloaded", share("chunks_offloaded", chunks)),
        ("explored, all inline", share("chunks_all_inline", chunks)),
        ("explored, all offloaded", share("chunks_all_offload", chunks)),
        ("explored, coarser", share("chunks_coarser", chunks)),
        ("explored, not split", share("chunks_not_split", chunks)),
        ("waits for the disk", waiting(&status["polling"])),
    ];
    let why = Why {
        policy: status["volume"]["dispatch"].as_str().unwrap_or("unknown"),
        chunks,
        offloaded: sum("chunks_offloaded"),
        explored_inline: sum("chunks_all_inline"),
        workers: mean("workers").unwrap_or(0.0),
        wake_latency_ns: mean("wake_latency_ns"),
        enqueue_cost_ns: mean("enqueue_cost_ns"),
        read_bytes: counted("read_bytes"),
        written_bytes: counted("written_bytes"),
        cipher_ns,
    };
    let mut shown = why.in_a_sentence();
    for (name, value) in lines {
        // Writing to a string cannot fail.
        let _ = writeln!(shown, "  {:<26}{value}", format!("{name}:"));
    }
    shown
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
                "chunks_all_inline": all_inline, "workers": workers, "wake_latency_ns": 6100.0,
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
        assert!(said(queue(1000, 1, 0), "unbound").ends_with("by workers: the policy is unbound."));
        assert!(said(queue(90, 1, 0), "adaptive").starts_with("9 % is decrypted by workers"));
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
