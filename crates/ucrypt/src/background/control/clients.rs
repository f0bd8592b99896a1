//! The clients of a control socket, as their server hears and answers them.
//!
//! One thread hears all of them, and waits for none: who sends nothing, or a part of a request, keeps
//! nobody else from being heard. What a client does not take at once of its answer is left to a thread
//! that serves only this client. Both have a limit in time and in number.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde_json::{Value, json};
use ucrypt_backend::Peer;
use zeroize::Zeroizing;

use super::{Asked, Key, Request, is_key_len, refusal};
use crate::events::Event;

/// Longest request in bytes, without a key.
const REQUEST_MAX: usize = 4096;

/// How long a client may take to send its request, and then to take the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Most clients that are heard at the same time. Others wait until one of these has sent its request, or
/// its time is over.
const CLIENTS_MAX: usize = 64;

/// Most clients that take their answers slowly; others get a part of theirs.
const SLOW_MAX: usize = 16;

/// How long to wait when the system has no descriptor or memory for a client.
const PAUSE: Duration = Duration::from_millis(50);

/// Hears the clients, and delivers each request.
pub(super) fn serve(listener: &UnixListener, sender: &Sender<Event<Asked>>) {
    let mut clients: Vec<Client> = Vec::new();
    loop {
        let now = Instant::now();
        clients.retain(|client| now < client.until);
        let Ok((is_called, has_said)) = wait(listener, &clients, now) else {
            std::thread::sleep(PAUSE);
            continue;
        };
        for (mut client, has_said) in std::mem::take(&mut clients).into_iter().zip(has_said) {
            match if has_said { client.receive() } else { Heard::Part } {
                Heard::Part => clients.push(client),
                Heard::Nothing => {}
                Heard::All(request, key) => {
                    let asked = Asked { request, stream: client.stream, key };
                    if sender.send(Event::Asked(asked)).is_err() {
                        return;
                    }
                }
            }
        }
        if is_called {
            match listener.accept() {
                Ok((stream, _)) => clients.extend(Client::admit(stream)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // The descriptors are used up; wait until some are free.
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    }
}

/// Waits until somebody calls or has said something, or the time of a client is over. Returns whether
/// somebody calls, and of each client whether there is something to hear.
fn wait(
    listener: &UnixListener,
    clients: &[Client],
    now: Instant,
) -> io::Result<(bool, Vec<bool>)> {
    let limit = clients.iter().map(|client| client.until.saturating_duration_since(now)).min();
    let limit = limit.map(|limit| Timespec::try_from(limit).unwrap_or_default());
    let mut fds = Vec::with_capacity(CLIENTS_MAX + 1);
    let calls = if clients.len() < CLIENTS_MAX { PollFlags::IN } else { PollFlags::empty() };
    fds.push(PollFd::new(listener, calls));
    fds.extend(clients.iter().map(|client| PollFd::new(&client.stream, PollFlags::IN)));
    match poll(&mut fds, limit.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
    let is_called = ready.next().unwrap_or(false);
    Ok((is_called, ready.collect()))
}

/// A client that has not sent all of its request.
struct Client {
    stream: UnixStream,
    until: Instant,
    said: Said,
}

/// What a client has sent.
enum Said {
    Line(Vec<u8>),
    /// All of its request, and so many bytes of the key.
    Key(Request, Zeroizing<Vec<u8>>, usize),
}

/// What has been heard of a client.
enum Heard {
    /// It has more to say.
    Part,
    /// It has gone, or says what no client would.
    Nothing,
    All(Request, Key),
}

impl Client {
    /// A client of this user or root. Tells others that they are not.
    fn admit(stream: UnixStream) -> Option<Self> {
        if !may_ask(&stream) {
            let error = "this volume is another user's";
            reply(stream, &json!({ "error": error, "code": 2 }));
            return None;
        }
        stream.set_nonblocking(true).ok()?;
        Some(Self { stream, until: Instant::now() + PATIENCE, said: Said::Line(Vec::new()) })
    }

    /// Takes what the client has sent.
    fn receive(&mut self) -> Heard {
        loop {
            let received = match &mut self.said {
                Said::Line(line) => {
                    let mut piece = [0; 512];
                    let count = (&self.stream).read(&mut piece);
                    count.inspect(|count| line.extend_from_slice(&piece[..*count]))
                }
                Said::Key(_, key, filled) => (&self.stream).read(&mut key[*filled..]),
            };
            let count = match received {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Heard::Part,
                Err(_) => return Heard::Nothing,
            };
            if let Some(heard) = self.heard(count) {
                return heard;
            }
        }
    }

    /// Looks at what was said after `count` more bytes; 0 at its end. `None` if there may be more.
    fn heard(&mut self, count: usize) -> Option<Heard> {
        match &mut self.said {
            Said::Line(line) => {
                let end = line.iter().position(|byte| *byte == b'\n');
                if end.is_none() && count > 0 && line.len() < REQUEST_MAX {
                    return None;
                }
                let line = &line[..end.unwrap_or(line.len())];
                let Ok(request) = serde_json::from_slice(line) else { return Some(Heard::Nothing) };
                let Request::Resume { key_len } = request else {
                    return Some(Heard::All(request, Key(Zeroizing::default())));
                };
                let Some(len) = usize::try_from(key_len).ok().filter(|len| is_key_len(*len)) else {
                    let failure = ucrypt_luks::Error::WrongVolumeKey.into();
                    // A client that has gone needs no answer.
                    let _ = writeln!(&self.stream, "{}", refusal(&failure));
                    return Some(Heard::Nothing);
                };
                // The key goes into no buffer of a parser, which nobody would wipe.
                self.said = Said::Key(request, Zeroizing::new(vec![0; len]), 0);
                let asked = writeln!(&self.stream, "{}", json!({ "waits_for": "key" }));
                asked.is_err().then_some(Heard::Nothing)
            }
            Said::Key(..) if count == 0 => Some(Heard::Nothing),
            Said::Key(request, key, filled) => {
                *filled += count;
                let is_whole = *filled == key.len();
                is_whole.then(|| Heard::All(*request, Key(std::mem::take(key))))
            }
        }
    }
}

/// Whether the peer runs as this user or as root. Its process need not be seen from here.
pub(super) fn may_ask(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid().as_raw();
    Peer::of(stream).is_ok_and(|peer| peer.user == own || peer.user == 0)
}

/// Sends an answer, and waits for nobody to take it.
pub(in crate::background) fn reply(stream: UnixStream, answer: &Value) {
    // In one piece: the kernel counts the pieces that wait for a client, however small they are.
    let answer = format!("{answer}\n").into_bytes();
    let sent = stream.set_nonblocking(true).and_then(|()| send(&stream, &answer));
    // A client that has gone needs no answer.
    if let Some(rest) = sent.ok().filter(|rest| !rest.is_empty()) {
        leave(stream, rest.to_vec());
    }
}

/// Sends as much as the client takes now. Returns the rest.
fn send<'a>(mut stream: &UnixStream, mut bytes: &'a [u8]) -> io::Result<&'a [u8]> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

/// Leaves the rest of an answer to a thread, unless there are too many of them.
fn leave(stream: UnixStream, rest: Vec<u8>) {
    static SLOW: AtomicUsize = AtomicUsize::new(0);
    let one_more = |slow: usize| (slow < SLOW_MAX).then_some(slow + 1);
    if SLOW.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more).is_err() {
        return;
    }
    let answer = move || {
        // A client that does not take it in time is given up.
        let _ = send_patiently(&stream, &rest);
        SLOW.fetch_sub(1, Ordering::SeqCst);
    };
    if std::thread::Builder::new().name("answer".into()).spawn(answer).is_err() {
        SLOW.fetch_sub(1, Ordering::SeqCst);
    }
}

fn send_patiently(stream: &UnixStream, mut rest: &[u8]) -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    loop {
        rest = send(stream, rest)?;
        let left = until.saturating_duration_since(Instant::now());
        if rest.is_empty() || left.is_zero() {
            return Ok(());
        }
        let left = Timespec::try_from(left).unwrap_or_default();
        match poll(&mut [PollFd::new(stream, PollFlags::OUT)], Some(&left)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufRead;
    use std::io::BufReader;

    use ucrypt_luks::KEY_LEN_MAX;

    use super::*;

    fn pair() -> (UnixStream, Client) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (ours, Client::admit(theirs).expect("this user's"))
    }

    fn line(stream: &UnixStream) -> Value {
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    #[test]
    fn a_request_may_come_in_pieces_and_what_is_none_is_dropped() {
        let (mut ours, mut client) = pair();
        assert!(matches!(client.receive(), Heard::Part));
        ours.write_all(b"\"sta").unwrap();
        assert!(matches!(client.receive(), Heard::Part));
        ours.write_all(b"tus\"\n").unwrap();
        assert!(matches!(client.receive(), Heard::All(Request::Status, _)));
        for wrong in [&b"\"stat\"\n"[..], b"\n", &[b'x'; REQUEST_MAX]] {
            let (mut ours, mut client) = pair();
            ours.write_all(wrong).unwrap();
            assert!(matches!(client.receive(), Heard::Nothing));
        }
        let (ours, mut client) = pair();
        drop(ours);
        assert!(matches!(client.receive(), Heard::Nothing));
    }

    #[test]
    fn a_key_that_no_volume_has_is_refused_and_not_waited_for() {
        let resume = |key_len: usize| {
            let (mut ours, client) = pair();
            let request = Request::Resume { key_len: u32::try_from(key_len).unwrap() };
            writeln!(ours, "{}", serde_json::to_string(&request).unwrap()).unwrap();
            (ours, client)
        };
        for key_len in [0, KEY_LEN_MAX + 1] {
            let (ours, mut client) = resume(key_len);
            assert!(matches!(client.receive(), Heard::Nothing));
            assert_eq!(line(&ours)["code"], 2);
        }
        let (mut ours, mut client) = resume(64);
        assert!(matches!(client.receive(), Heard::Part));
        assert_eq!(line(&ours)["waits_for"], "key");
        ours.write_all(&[7; 63]).unwrap();
        assert!(matches!(client.receive(), Heard::Part));
        ours.write_all(&[8]).unwrap();
        let Heard::All(Request::Resume { key_len: 64 }, Key(key)) = client.receive() else {
            panic!("a key");
        };
        assert_eq!((&key[..63], key[63]), (&[7; 63][..], 8));
    }

    #[test]
    fn an_answer_that_is_too_long_to_be_taken_at_once_is_whole_and_nobody_waits_for_its_reader() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let long = json!({ "long": "x".repeat(4 << 20) });
        // It would not return before somebody reads.
        reply(theirs, &long);
        assert_eq!(line(&ours), long);
    }
}
