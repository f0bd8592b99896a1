//! The status of an open volume, laid out as cryptsetup's.

use std::fmt::Write as _;

use serde_json::Value;

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
    let counters = &status["counters"];
    lines.push(("reads", format!("{} ({} bytes)", counters["reads"], counters["read_bytes"])));
    lines.push(("writes", format!("{} ({} bytes)", counters["writes"], counters["written_bytes"])));
    lines.push(("flushes", text(&counters["flushes"])));
    lines.push(("discarded", text(&counters["discards"])));
    lines.push(("errors", text(&counters["errors"])));
    let mut shown = format!("{} is active.\n", text(&status["device"]));
    for (name, value) in lines {
        // Writing to a string cannot fail.
        let _ = writeln!(shown, "  {:<13}{value}", format!("{name}:"));
    }
    shown
}
