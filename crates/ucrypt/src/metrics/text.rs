//! The page: Prometheus's text format, version 0.0.4.

use std::fmt::{Display, Write as _};
use std::time::{SystemTime, UNIX_EPOCH};

use ucrypt_engine::meters::{
    DEPTH_BOUNDS_REQUESTS, Failed, Histogram, Kind, LATENCY_BOUNDS_NS, Latencies, Meters,
    SIZE_BOUNDS_BYTES, Transforms,
};

use super::{Clients, Subject};

/// Names of the size classes: the largest request in each.
const SIZES: [&str; SIZE_BOUNDS_BYTES.len() + 1] = ["4K", "16K", "64K", "256K", "larger"];

/// Appends the page.
pub(super) fn write(subject: &Subject, out: &mut String) {
    let mut page = Page { out, volume: escaped(&subject.name) };
    let (totals, meters) = (subject.volume.totals(), subject.volume.meters());
    about(&mut page, subject);
    page.family("requests_total", "counter", "Requests that were answered without an error.");
    for (direction, count) in [
        ("read", totals.reads),
        ("write", totals.writes),
        ("flush", totals.flushes),
        ("discard", totals.discards),
    ] {
        page.value("requests_total", &[("direction", direction)], count);
    }
    page.family("bytes_total", "counter", "Bytes of these requests, of the decrypted volume.");
    for (direction, bytes) in [("read", totals.read_bytes), ("write", totals.written_bytes)] {
        page.value("bytes_total", &[("direction", direction)], bytes);
    }
    latencies(&mut page, &meters);
    page.family("requests_in_flight", "gauge", "Requests that were not answered yet.");
    page.value("requests_in_flight", &[], meters.in_flight);
    page.family(
        "queue_depth",
        "histogram",
        "Requests in flight of one queue when a request arrived, itself included.",
    );
    page.histogram("queue_depth", &[], &DEPTH_BOUNDS_REQUESTS, &meters.depths, |value| {
        value.to_string()
    });
    transforms(&mut page, &meters);
    errors(&mut page, &meters);
    page.family(
        "flush_failed",
        "gauge",
        "1 after a failed flush: acknowledged writes may be lost, and no flush succeeds any more.",
    );
    page.value("flush_failed", &[], u8::from(subject.volume.flush_error().is_some()));
    clients(&mut page, subject);
}

fn about(page: &mut Page<'_>, subject: &Subject) {
    let facts = &subject.facts;
    page.family("volume_info", "gauge", "The volume; always 1.");
    let (sector_size, uuid) = (facts.sector_size.to_string(), facts.uuid.clone());
    let labels = [
        ("type", facts.r#type),
        ("cipher", facts.cipher.as_str()),
        ("sector_size", sector_size.as_str()),
        ("export", subject.export.as_str()),
        ("uuid", uuid.as_deref().unwrap_or_default()),
        ("version", crate::VERSION),
    ];
    page.value("volume_info", &labels, 1);
    page.family("volume_size_bytes", "gauge", "Length of the volume.");
    page.value("volume_size_bytes", &[], subject.volume.info().len);
    page.family("volume_suspended", "gauge", "1 while the volume has no key, and requests wait.");
    page.value("volume_suspended", &[], u8::from(subject.volume.is_halted()));
    page.family("start_time_seconds", "gauge", "When the server was ready, since 1970.");
    page.value("start_time_seconds", &[], since_1970(subject.started));
    page.family("memory_bytes", "gauge", "Memory of the server, as the kernel counts it.");
    page.value("memory_bytes", &[], crate::background::resident_bytes());
}

fn latencies(page: &mut Page<'_>, meters: &Meters) {
    page.family(
        "request_seconds",
        "histogram",
        "Time from when its queue takes a request to its answer, of a sample of the requests: one in 4, \
         or in 32 if the image is in memory.",
    );
    let mut write = |direction: &str, size: &str, latencies: &Latencies| {
        let labels = [("direction", direction), ("size", size)];
        page.histogram("request_seconds", &labels, &LATENCY_BOUNDS_NS, latencies, seconds);
    };
    for (direction, classes) in [("read", &meters.reads), ("write", &meters.writes)] {
        for (size, latencies) in SIZES.iter().zip(classes) {
            write(direction, size, latencies);
        }
    }
    write("flush", "", &meters.flushes);
    write("discard", "", &meters.discards);
}

fn transforms(page: &mut Page<'_>, meters: &Meters) {
    let places = [("inline", &meters.inline), ("worker", &meters.workers)];
    let mut both = |name, help, of: fn(&Transforms) -> [String; 2]| {
        page.family(name, "counter", help);
        for (place, transforms) in places {
            for (direction, value) in ["decrypt", "encrypt"].into_iter().zip(of(transforms)) {
                page.value(name, &[("direction", direction), ("place", place)], value);
            }
        }
    };
    both(
        "chunks_total",
        "Parts of requests that went through the cipher, on the thread that received them (inline) \
         or on a worker.",
        |it| [it.decrypted, it.encrypted].map(|count| count.to_string()),
    );
    both(
        "cipher_seconds_total",
        "Time spent in the cipher. Of short parts inline, one in 16 is timed and counts for all.",
        |it| [it.decrypt_ns, it.encrypt_ns].map(seconds),
    );
}

fn errors(page: &mut Page<'_>, meters: &Meters) {
    page.family("request_errors_total", "counter", "Requests that failed, by the image's error.");
    for kind in Kind::ALL {
        let direction = match kind {
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Flush => "flush",
            Kind::Discard => "discard",
        };
        let Failed { io, no_space, other } = meters.errors[kind as usize];
        for (error, count) in [("EIO", io), ("ENOSPC", no_space), ("other", other)] {
            let labels = [("direction", direction), ("error", error)];
            page.value("request_errors_total", &labels, count);
        }
    }
}

fn clients(page: &mut Page<'_>, subject: &Subject) {
    let of = |(number, it): (usize, &Clients)| (number.to_string(), it.export, (it.count)());
    let counts: Vec<_> = subject.clients.iter().enumerate().map(of).collect();
    page.family("connections", "gauge", "Clients of NBD and vhost-user that are served now.");
    for (number, export, count) in &counts {
        page.value("connections", &[("export", *export), ("number", number.as_str())], count.now);
    }
    page.family("connections_total", "counter", "Clients that have been served since the start.");
    for (number, export, count) in &counts {
        let labels = [("export", *export), ("number", number.as_str())];
        page.value("connections_total", &labels, count.since_start);
    }
}

fn seconds(ns: u64) -> String {
    (ns as f64 / 1e9).to_string()
}

fn since_1970(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// A label's value as the format has it.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

struct Page<'a> {
    out: &'a mut String,
    /// The volume's name, escaped: the first label of every value.
    volume: String,
}

// Writing to a string cannot fail.
impl Page<'_> {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.out, "# HELP ucrypt_{name} {help}\n# TYPE ucrypt_{name} {kind}");
    }

    fn value(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let _ = write!(self.out, "ucrypt_{name}{{volume=\"{}\"", self.volume);
        for (label, text) in labels.iter().filter(|(_, text)| !text.is_empty()) {
            let _ = write!(self.out, ",{label}=\"{}\"", escaped(text));
        }
        let _ = writeln!(self.out, "}} {value}");
    }

    /// `shown` turns a bound and the sum into the unit of the metric.
    fn histogram<const BUCKETS: usize>(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        bounds: &[u64],
        histogram: &Histogram<BUCKETS>,
        shown: fn(u64) -> String,
    ) {
        let bounds = bounds.iter().map(|bound| shown(*bound)).chain(["+Inf".to_owned()]);
        let mut count = 0;
        for (bound, bucket) in bounds.zip(histogram.buckets) {
            count += bucket;
            let labels = [labels, &[("le", bound.as_str())]].concat();
            self.value(&format!("{name}_bucket"), &labels, count);
        }
        self.value(&format!("{name}_sum"), labels, shown(histogram.sum));
        self.value(&format!("{name}_count"), labels, count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_add_up_and_labels_are_escaped() {
        let mut out = String::new();
        let mut page = Page { out: &mut out, volume: escaped("a\"b\\c") };
        let depths = Histogram { buckets: [1, 0, 2, 0, 0, 0, 0, 0, 4], sum: 9 };
        page.histogram("x", &[("size", "")], &DEPTH_BOUNDS_REQUESTS, &depths, |value| {
            value.to_string()
        });
        let lines: Vec<_> = out.lines().collect();
        assert_eq!(lines[0], r#"ucrypt_x_bucket{volume="a\"b\\c",le="1"} 1"#);
        assert_eq!(lines[2], r#"ucrypt_x_bucket{volume="a\"b\\c",le="4"} 3"#);
        assert_eq!(lines[8], r#"ucrypt_x_bucket{volume="a\"b\\c",le="+Inf"} 7"#);
        assert_eq!(
            lines[9..],
            [r#"ucrypt_x_sum{volume="a\"b\\c"} 9"#, r#"ucrypt_x_count{volume="a\"b\\c"} 7"#,]
        );
        assert_eq!(seconds(1_500), "0.0000015");
    }
}
