//! Users of an open volume over NBD: `close` sees them, and other users of the machine are kept
//! out.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::image::{DATA, Image, LUKS2};
use crate::nbd_client::NbdClient;
use crate::process::{Ran, run, tool};
use crate::scratch::Scratch;

fn open(scratch: &Scratch, image: &Image, name: &str, served: &str) -> Ran {
    run(image.ucrypt(scratch, "open").args([name, "--as", served]), b"")
}

/// Opens over NBD. Returns the socket for clients.
fn open_nbd(scratch: &Scratch, image: &Image) -> PathBuf {
    let uri = open(scratch, image, "volume", "nbd").text();
    uri.trim().split_once("socket=").expect("a socket").1.into()
}

fn close(scratch: &Scratch, arguments: &[&str]) -> Ran {
    run(scratch.ucrypt(&["close"]).args(arguments), b"")
}

fn state(scratch: &Scratch, name: &str) -> Value {
    let status = run(scratch.ucrypt(&["status", "--json"]).arg(name), b"").passes();
    let status: Value = serde_json::from_slice(&status).expect("JSON");
    status["state"].clone()
}

#[test]
fn close_says_in_use_while_an_nbd_client_is_connected() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let socket = open_nbd(&scratch, &image);
    let mut client = NbdClient::connect(&socket).expect("connected");
    // A client that sends nothing is no user.
    let _silent = UnixStream::connect(&socket).expect("connected");
    let message = close(&scratch, &["volume"]).refuses(5);
    assert!(message.contains("an NBD client"), "{message}");
    client.write(0, &[7; 4096]).expect("the volume goes on");
    drop(client);
    close(&scratch, &["volume"]).passes();
    let mut read = image.ucrypt(&scratch, "read");
    assert_eq!(run(read.args(["--length", "4096"]), b"").passes(), [7; 4096]);
}

#[test]
fn a_deferred_close_over_nbd_ends_with_the_last_client_and_not_before() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let socket = open_nbd(&scratch, &image);
    let mut client = NbdClient::connect(&socket).expect("connected");
    assert_eq!(state(&scratch, "volume"), "open");
    close(&scratch, &["--deferred", "volume"]).passes();
    client.write(0, &[8; 4096]).expect("the volume goes on");
    assert!(NbdClient::connect(&socket).is_err(), "nobody else comes in");
    assert_eq!(state(&scratch, "volume"), "deferred");
    let list = run(&mut scratch.ucrypt(&["list"]), b"").text();
    assert!(list.contains("closing"), "{list}");
    let message = open(&scratch, &image, "volume", "nbd").refuses(5);
    assert!(message.contains("being closed"), "{message}");
    close(&scratch, &["volume"]).refuses(5);
    client.write(4096, &[9; 4096]).expect("the volume goes on");
    let server = scratch.server();
    drop(client);
    scratch.await_end(server);
    let mut read = image.ucrypt(&scratch, "read");
    let read = run(read.args(["--length", "8192"]), b"").passes();
    assert_eq!(read, [[8; 4096], [9; 4096]].concat());
}

#[test]
fn a_volume_answers_to_the_uri_that_open_has_printed_and_to_the_path_of_its_socket() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    // Its path has characters that a URI writes otherwise.
    let uri = open(&scratch, &image, "two words", "nbd").text();
    let (uri, socket) = (uri.trim(), scratch.runtime(".two words.nbd"));
    assert!(uri.contains("%20"), "{uri}");
    for name in [uri, socket.to_str().expect("UTF-8"), "two words"] {
        assert_eq!(state(&scratch, name), "open", "{name}");
    }
    let list = run(&mut scratch.ucrypt(&["list"]), b"").text();
    assert!(list.trim_end().ends_with("/.two words.nbd"), "{list}");
    assert!(list.lines().all(|line| line.chars().count() <= 60), "{list}");
    let other = uri.replace("two%20words", "another");
    run(&mut scratch.ucrypt(&["status", &other]), b"").exits(4);
    let message = close(&scratch, &["nbd+unix:///?socket=/elsewhere"]).refuses(1);
    assert!(message.contains("of an open volume; ucrypt list shows"), "{message}");
    close(&scratch, &[uri]).passes();
    let again = open(&scratch, &image, "two words", "nbd").text();
    assert_eq!(again.trim(), uri);
    close(&scratch, &[socket.to_str().expect("UTF-8")]).passes();
}

#[test]
fn a_volume_named_as_the_socket_of_another_leaves_it_alone() {
    let (scratch, elsewhere) = (Scratch::new(), Scratch::new());
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let other = Image::by_cryptsetup(&elsewhere, LUKS2, DATA);
    let uri = open(&scratch, &image, "x", "nbd").text();
    for name in ["x.nbd", "x.sock", "x.lock", "x.log", "nbd"] {
        open(&scratch, &other, name, "fuse").passes();
        let mut nbdinfo = tool("nbdinfo", "libnbd-bin");
        run(nbdinfo.args(["--size", uri.trim()]), b"").passes();
        assert!(fs::metadata(scratch.runtime(name)).expect("served").is_file());
        close(&scratch, &[name]).passes();
        assert_eq!(state(&scratch, "x"), "open");
    }
    close(&scratch, &["x"]).passes();
}

/// `nbdinfo --size` as another user.
fn size_as_nobody(uri: &str) -> Ran {
    let mut nobody = tool("setpriv", "util-linux");
    nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups", "nbdinfo", "--size", uri]);
    run(&mut nobody, b"")
}

/// A server on TCP, killed when dropped, and its URI.
struct Tcp(std::process::Child, String);

impl Tcp {
    fn start(scratch: &Scratch, image: &Image, options: &[&str]) -> Self {
        use std::io::{BufRead, BufReader};
        let mut serve: Command = scratch.ucrypt_child(&["serve", "--nbd", "tcp:127.0.0.1:0"]);
        let log = fs::File::create(scratch.path("log")).expect("a log");
        serve.args(image.with_key()).args(options).stdout(Stdio::piped()).stderr(log);
        let mut child = serve.spawn().expect("started");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let uri = line.trim().strip_prefix("nbd: ").expect("an URI").to_owned();
        Self(child, uri)
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn over_tcp_other_users_are_told_that_they_are_not_served() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let server = Tcp::start(&scratch, &image, &[]);
    let refused = size_as_nobody(&server.1).exits(1);
    assert!(refused.stderr.contains("server policy"), "{}", refused.stderr);
    let mut own = tool("nbdinfo", "libnbd-bin");
    assert_eq!(run(own.args(["--size", &server.1]), b"").text().trim(), DATA.to_string());
    let log = fs::read_to_string(scratch.path("log")).expect("a log");
    assert!(log.contains("turned away: it is of user 65534"), "{log}");
    assert!(log.contains("--nbd-any-user"), "{log}");
    drop(server);

    let server = Tcp::start(&scratch, &image, &["--nbd-any-user"]);
    assert_eq!(size_as_nobody(&server.1).text().trim(), DATA.to_string());
}
