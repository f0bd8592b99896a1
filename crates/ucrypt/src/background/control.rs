//! The control socket: one line of JSON asks, one line of JSON answers.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use ucrypt_engine::Decisions;

use super::claim::Claim;
use super::link;
use super::resilience::Resilience;
use crate::failure::Failure;
use crate::runtime::Places;
use crate::serve::{Exports, flush};
use crate::volume::Opened;

/// Longest request, in bytes.
const REQUEST_MAX: u64 = 4096;

/// How long a client may take to send its request.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often signals and exports that ended from outside are looked for.
const CHECK_EVERY: Duration = Duration::from_millis(200);

/// What can be asked of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Request {
    Status,
    Close,
    CloseDeferred,
    /// To a length in bytes; without one, to the length that `open` would give it now.
    Resize {
        bytes: Option<u64>,
    },
}

/// Asks the server of a name.
pub(super) fn ask(places: &Places, request: Request) -> Result<Value, Failure> {
    let gone = || {
        let name = places.name();
        Failure::device(if places.socket().exists() {
            format!("the server of {name} was killed; ucrypt close {name} removes what it left")
        } else {
            format!("{name} is not open; ucrypt open IMAGE {name} opens it")
        })
    };
    let stream = UnixStream::connect(places.socket()).map_err(|_| gone())?;
    exchange(stream, request).map_err(|error| {
        Failure::device(format!("the server of {} does not answer: {error}", places.name()))
    })
}

fn exchange(mut stream: UnixStream, request: Request) -> io::Result<Value> {
    let line = serde_json::to_string(&request)?;
    writeln!(stream, "{line}")?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    Ok(serde_json::from_str(&answer)?)
}

/// The server's end of the socket.
pub(super) struct Server {
    places: Places,
    asked: Receiver<(Request, UnixStream)>,
}

impl Server {
    /// Listens.
    pub(super) fn start(places: &Places) -> Result<Self, Failure> {
        let failed = |error| {
            let socket = places.socket();
            Failure::device(format!("cannot listen on {}: {error}", socket.display()))
        };
        let listener = UnixListener::bind(places.socket()).map_err(failed)?;
        let (sender, asked) = mpsc::channel();
        std::thread::Builder::new()
            .name("control".into())
            .spawn(move || accept(&listener, &sender))
            .map_err(failed)?;
        Ok(Self { places: places.clone(), asked })
    }

    /// Answers until the volume is closed, a signal comes or all exports were ended from outside.
    pub(super) fn run(
        self,
        claim: Claim,
        mut opened: Opened,
        mut exports: Exports,
        resilience: &Resilience,
        device: &str,
        signals: &Receiver<i32>,
    ) -> Result<(), Failure> {
        let is_device = exports.loop_device.is_some();
        let mut closing = None;
        loop {
            match self.asked.recv_timeout(CHECK_EVERY) {
                Ok((Request::Status, stream)) => {
                    let mut status = status(&opened, device);
                    status["export"] = exports.facts();
                    status["server"] = resilience.status();
                    reply(stream, &status);
                }
                Ok((Request::Close, stream)) => {
                    if exports.try_stop() {
                        closing = Some(stream);
                        break;
                    }
                    let error = format!(
                        "{} is in use; unmount or close it first, or use --deferred",
                        self.places.name()
                    );
                    reply(stream, &json!({ "error": error, "code": 5 }));
                }
                Ok((Request::CloseDeferred, stream)) => {
                    exports.detach();
                    if is_device {
                        link::remove(self.places.name());
                    }
                    reply(stream, &json!({ "deferred": true }));
                }
                Ok((Request::Resize { bytes }, stream)) => {
                    reply(stream, &answer(&resize(&mut opened, &exports, bytes), "resized"));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if exports.have_ended() || signals.try_recv().is_ok() {
                break;
            }
        }
        let stopped = exports.stop();
        let flushed = flush(&opened.volume).and(stopped);
        // The image and the name are free before anyone is told so.
        drop(opened);
        if is_device {
            link::remove(self.places.name());
        }
        self.places.clean_up();
        drop(claim);
        if let Some(stream) = closing {
            reply(stream, &answer(&flushed, "closed"));
        }
        flushed
    }
}

fn accept(listener: &UnixListener, asked: &Sender<(Request, UnixStream)>) {
    for stream in listener.incoming().filter_map(Result::ok) {
        let Some(request) = receive(&stream) else { continue };
        if asked.send((request, stream)).is_err() {
            return;
        }
    }
}

/// Reads one request; anything else than a request is dropped.
fn receive(stream: &UnixStream) -> Option<Request> {
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let mut line = String::new();
    BufReader::new(stream.take(REQUEST_MAX)).read_line(&mut line).ok()?;
    serde_json::from_str(&line).ok()
}

fn reply(mut stream: UnixStream, answer: &Value) {
    // A client that has gone needs no answer.
    let _ = writeln!(stream, "{answer}");
}

/// The answer to something that was `done`, or was not.
fn answer(result: &Result<(), Failure>, done: &str) -> Value {
    match result {
        Ok(()) => json!({ done: true }),
        Err(failure) => json!({ "error": failure.message, "code": failure.code }),
    }
}

fn resize(opened: &mut Opened, exports: &Exports, bytes: Option<u64>) -> Result<(), Failure> {
    exports.check_resizable()?;
    let volume = &opened.volume;
    let failed = |error| Failure::device(format!("cannot tell the size of the image: {error}"));
    let len = match bytes.or(opened.fixed_len) {
        Some(len) => len,
        None => volume.len_max().map_err(failed)?,
    };
    volume.resize(len).map_err(Failure::wrong)?;
    opened.facts.size = len;
    exports.take_size()
}

/// Everything that can be said about the open volume.
fn status(opened: &Opened, device: &str) -> Value {
    let totals = opened.volume.totals();
    json!({
        "active": true,
        "device": device,
        "volume": opened.facts,
        "counters": {
            "reads": totals.reads,
            "read_bytes": totals.read_bytes,
            "writes": totals.writes,
            "written_bytes": totals.written_bytes,
            "flushes": totals.flushes,
            "discards": totals.discards,
            "errors": totals.errors,
        },
        "queues": opened.volume.decisions().iter().map(queue).collect::<Vec<_>>(),
    })
}

/// What one queue has decided, and from what.
fn queue(decisions: &Decisions) -> Value {
    let tally = decisions.tally;
    json!({
        "requests_whole": tally.whole,
        "requests_cut": tally.cut,
        "requests_joined": tally.joined,
        "chunks_here": tally.here,
        "chunks_handed": tally.handed,
        "chunks_kept_by_trial": tally.kept,
        "chunks_handed_by_trial": tally.given,
        "decrypt_ns_per_byte": decisions.decrypt_ns_per_byte,
        "encrypt_ns_per_byte": decisions.encrypt_ns_per_byte,
        "handover_ns": decisions.handover_ns,
        "wake_ns": decisions.wake_ns,
        "hand_ns": decisions.hand_ns,
        "carry_ns_per_byte": decisions.carry_ns_per_byte,
        "request_ns": decisions.request_ns,
        "workers": decisions.workers,
    })
}
