//! `--metrics`: what Prometheus reads, and from where.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::image::{DATA, Image, LUKS2};
use crate::nbd_client::NbdClient;
use crate::process::run;
use crate::scratch::Scratch;
use crate::server::{On, PATIENCE, Server};

/// The answer to one request, without its head.
fn ask(mut stream: impl Read + Write, request: &str) -> String {
    stream.write_all(request.as_bytes()).expect("asked");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

pub(crate) fn page(socket: &Path) -> Page {
    let stream = UnixStream::connect(socket).expect("connected");
    let answer = ask(stream, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let (head, page) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}", page.len())), "{head}");
    Page::parse(page)
}

/// The values of a page, by name and labels as they stand there.
pub(crate) struct Page(BTreeMap<String, String>);

impl Page {
    /// Reads the text format as strictly as Prometheus does: every value follows the type of its
    /// family, and stands there once.
    fn parse(page: &str) -> Self {
        let (mut values, mut family) = (BTreeMap::new(), (String::new(), String::new()));
        let mut families = Vec::new();
        assert!(page.ends_with('\n'));
        for line in page.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                assert!(help.split(' ').count() > 3, "{line}");
                continue;
            }
            if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').expect("a type");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert!(!families.contains(&name.to_owned()), "{name} stands twice");
                families.push(name.to_owned());
                family = (name.to_owned(), kind.to_owned());
                continue;
            }
            let (series, value) = line.rsplit_once(' ').expect("a value");
            let name = series.split('{').next().expect("a name");
            let suffixes: &[_] =
                if family.1 == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            let expected = suffixes.iter().map(|suffix| format!("{}{suffix}", family.0));
            assert!(expected.into_iter().any(|expected| expected == name), "{line} in {family:?}");
            assert_eq!(family.1 == "counter", family.0.ends_with("_total"), "{line}");
            assert!(series.contains("{volume=\"") && series.ends_with("\"}"), "{line}");
            let number: f64 = value.parse().expect("a number");
            assert!(number.is_finite() && number >= 0.0, "{line}");
            let before = values.insert(series.to_owned(), value.to_owned());
            assert_eq!(before, None, "{series} stands twice");
        }
        Self(values)
    }

    /// Names with labels, such as `ucrypt_bytes_total{volume="work",direction="read"}`.
    pub(crate) fn series(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// A metric's values with all these labels.
    #[track_caller]
    fn values(&self, name: &str, labels: &[&str]) -> Vec<&str> {
        let is_asked = |series: &str| {
            series.split('{').next() == Some(name) && labels.iter().all(|it| series.contains(it))
        };
        let found = self.0.iter().filter(|(series, _)| is_asked(series));
        let found: Vec<_> = found.map(|(_, value)| value.as_str()).collect();
        assert!(!found.is_empty(), "no {name} with {labels:?}");
        found
    }

    /// The sum of values that are counts.
    #[track_caller]
    pub(crate) fn count(&self, name: &str, labels: &[&str]) -> u64 {
        let values = self.values(name, labels).into_iter();
        values.map(|value| value.parse::<u64>().expect("a count")).sum()
    }

    /// The sum of values that are times.
    #[track_caller]
    fn seconds(&self, name: &str, labels: &[&str]) -> f64 {
        let values = self.values(name, labels).into_iter();
        values.map(|value| value.parse::<f64>().expect("a time")).sum()
    }
}

#[test]
fn what_a_server_does_is_told_and_only_where_it_was_asked_to() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let metrics = scratch.path("metrics");
    let place = format!("unix:{}", metrics.display());
    let mut line = image.with_key();
    line.extend(["--metrics", &place].map(Into::into));
    let server = Server::start(&scratch, On::Nbd, &line);
    let before = page(&metrics);
    for name in ["ucrypt_requests_total", "ucrypt_bytes_total", "ucrypt_connections_total"] {
        assert_eq!(before.count(name, &[]), 0, "{name}");
    }
    let labels = ["type=\"luks2\"", "cipher=\"aes-xts-plain64\"", "export=\"nbd\"", "uuid=\""];
    assert_eq!(before.count("ucrypt_volume_info", &labels), 1);
    assert_eq!(before.count("ucrypt_volume_size_bytes", &[]), DATA);
    let mut client = NbdClient::connect(server.socket()).expect("connected");
    for at in 0..64 {
        client.write(at * 4096, &[7; 4096]).expect("written");
    }
    client.flush().expect("flushed");
    let during = page(&metrics);
    let written = ["direction=\"write\""];
    assert_eq!(during.count("ucrypt_requests_total", &written), 64);
    assert_eq!(during.count("ucrypt_bytes_total", &written), 64 * 4096);
    assert_eq!(during.count("ucrypt_requests_total", &["direction=\"flush\""]), 1);
    assert_eq!(during.count("ucrypt_connections", &["export=\"nbd\""]), 1);
    let small = ["direction=\"write\"", "size=\"4K\""];
    let timed = during.count("ucrypt_request_seconds_count", &small);
    assert!((1..=64).contains(&timed), "{timed}");
    assert!(during.seconds("ucrypt_request_seconds_sum", &small) > 0.0);
    let all = [small[0], small[1], "le=\"+Inf\""];
    assert_eq!(during.count("ucrypt_request_seconds_bucket", &all), timed);
    assert!(during.count("ucrypt_chunks_total", &["direction=\"encrypt\""]) >= 64);
    assert!(during.seconds("ucrypt_cipher_seconds_total", &["direction=\"encrypt\""]) > 0.0);
    assert!(during.count("ucrypt_queue_depth_count", &[]) >= 65);
    assert_eq!(during.count("ucrypt_request_errors_total", &[]), 0);
    assert_eq!(during.count("ucrypt_flush_failed", &[]), 0);
    assert!(during.count("ucrypt_memory_bytes", &[]) > 1_000_000);
    drop(client);
    let deadline = Instant::now() + PATIENCE;
    while page(&metrics).count("ucrypt_connections", &[]) > 0 {
        assert!(Instant::now() < deadline, "the client is still counted");
        std::thread::sleep(Duration::from_millis(5));
    }
    // What was counted stays.
    assert_eq!(page(&metrics).count("ucrypt_requests_total", &written), 64);
    assert_eq!(page(&metrics).count("ucrypt_connections_total", &[]), 1);
    let mode = std::os::unix::fs::MetadataExt::mode(&metrics.metadata().expect("a socket"));
    assert_eq!(mode & 0o777, 0o600);
    // A client that says nothing does not keep the server from its end.
    let _silent = UnixStream::connect(&metrics).expect("connected");
    server.terminate();
    assert!(!metrics.exists(), "the socket is left");
}

#[test]
fn requests_that_fail_are_counted_by_their_error() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let metrics = scratch.path("metrics");
    let place = format!("unix:{}", metrics.display());
    let mut line = image.with_key();
    line.extend(["--metrics", &place, "--readonly"].map(Into::into));
    let server = Server::start(&scratch, On::Nbd, &line);
    File::options().write(true).open(&image.path).and_then(|it| it.set_len(4096)).expect("cut");
    let mut client = NbdClient::connect(server.socket()).expect("connected");
    assert!(client.read(0, 4096).is_err());
    let page = page(&metrics);
    assert_eq!(page.count("ucrypt_request_errors_total", &["direction=\"read\""]), 1);
    assert_eq!(page.count("ucrypt_request_errors_total", &[]), 1);
    drop(client);
    server.terminate();
}

/// The server of `open` has mounts of its own, in which the socket may have no path.
#[test]
fn an_open_volume_has_metrics_under_its_name_until_it_is_closed() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let metrics = scratch.path("metrics");
    let place = format!("unix:{}", metrics.display());
    let mut open = image.ucrypt(&scratch, "open");
    run(open.args(["work", "--as", "nbd", "--metrics", &place]), b"").passes();
    let page = page(&metrics);
    assert_eq!(page.count("ucrypt_volume_info", &["volume=\"work\"", "export=\"nbd\""]), 1);
    let status = run(&mut scratch.ucrypt(&["status", "--json", "work"]), b"").passes();
    let status: Value = serde_json::from_slice(&status).expect("JSON");
    assert_eq!(status["metrics"], *place);
    // Another server does not take the socket away.
    let mut again = scratch.ucrypt(&["open", "--as", "nbd", "--backend", "mem:1M", "other"]);
    let refused = run(again.args(["--metrics", &place]), b"").refuses(5);
    assert!(refused.contains("in use by another server"), "{refused}");
    run(&mut scratch.ucrypt(&["close", "work"]), b"").passes();
    assert!(!metrics.exists(), "the socket is left");
}

#[test]
fn over_tcp_metrics_are_for_this_machine_unless_others_are_asked_for() {
    let scratch = Scratch::new();
    let serve = |place: &str| {
        let mut serve = scratch.ucrypt(&["serve", "--backend", "mem:1M", "--nbd"]);
        serve.arg(format!("unix:{}", scratch.path("nbd").display())).args(["--metrics", place]);
        serve
    };
    for beyond in ["0.0.0.0:0", "[::]:0", "192.0.2.1:9000"] {
        let refused = run(&mut serve(beyond), b"").refuses(1);
        assert!(refused.contains("--metrics-any-host"), "{refused}");
    }
    let wrong = run(&mut serve("nonsense"), b"").exits(1).stderr;
    assert!(wrong.contains("HOST:PORT"), "{wrong}");
    let mut open = scratch.ucrypt(&["open", "--as", "nbd", "--backend", "mem:1M", "work"]);
    // The path also lets the server be found if the test fails.
    let log = scratch.path("log");
    run(open.args(["--metrics", "127.0.0.1:0", "--log"]).arg(log), b"").passes();
    let status = run(&mut scratch.ucrypt(&["status", "--json", "work"]), b"").passes();
    let status: Value = serde_json::from_slice(&status).expect("JSON");
    let url = status["metrics"].as_str().expect("an URL").to_owned();
    let place = url.strip_prefix("http://").and_then(|url| url.strip_suffix("/metrics"));
    let connect = || TcpStream::connect(place.expect("an address")).expect("connected");
    let answer = ask(connect(), "GET /metrics HTTP/1.1\r\n\r\n");
    assert!(answer.contains("ucrypt_requests_total"), "{answer}");
    assert!(ask(connect(), "GET /other HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
    run(&mut scratch.ucrypt(&["close", "work"]), b"").passes();
}

#[test]
fn a_place_where_no_metrics_can_be_served_is_told_before_a_passphrase_is_asked_for() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().expect("an address").to_string();
    let file = scratch.file("file", b"mine");
    let file = format!("unix:{}", file.display());
    for (place, code) in [("unix:/no/such/directory/socket", 4), (&taken, 5), (&file, 4)] {
        for action in ["open", "serve"] {
            let mut command =
                scratch.ucrypt(&[action, "--key-file", "/no/key", "--metrics", place]);
            command.arg(&image.path);
            match action {
                "open" => command.args(["work", "--as", "nbd"]),
                _ => command.arg("--vhost-user").arg(scratch.path("guest")),
            };
            let refused = run(&mut command, b"").refuses(code);
            assert!(!refused.contains("--key-file"), "{refused}");
        }
    }
    assert_eq!(std::fs::read(scratch.path("file")).expect("read"), b"mine");
}
