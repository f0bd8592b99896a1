//! As much of HTTP/1.1 as a program needs that fetches one page: one request a connection, one
//! connection at a time, and limits for everything that a client sends or leaves undone.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketFlags, accept_with, recv, send, shutdown};

/// Longest request in bytes, without a body.
const REQUEST_MAX: usize = 8 << 10;

/// How long a client may take to send its request and to take the answer: others wait meanwhile.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long to wait when the system has no descriptor or memory for a client.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Bytes that a page has room for, so that a later one allocates nothing.
const PAGE_CAPACITY: usize = 64 << 10;

/// Answers clients until `ended` is closed at its other end. `write` appends the page.
pub(super) fn serve(listener: &impl AsFd, ended: &impl AsFd, write: impl Fn(&mut String)) {
    serve_each(listener, ended, PATIENCE, write);
}

fn serve_each(
    listener: &impl AsFd,
    ended: &impl AsFd,
    patience: Duration,
    write: impl Fn(&mut String),
) {
    let mut page = String::with_capacity(PAGE_CAPACITY);
    while is_ready(listener, PollFlags::IN, ended, None) {
        match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(client) => {
                let client = Client { socket: client, ended, until: Instant::now() + patience };
                // A client that fails is gone, or will try again.
                let _ = client.answer(&mut page, &write);
            }
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
            Err(_) => {
                let _ = is_ready(ended, PollFlags::IN, ended, Some(ACCEPT_PAUSE));
            }
        }
    }
}

/// Waits for a descriptor; with a limit, no longer than that. Returns whether the caller may go on:
/// not if `ended` is closed.
fn is_ready(
    what: &impl AsFd,
    events: PollFlags,
    ended: &impl AsFd,
    limit: Option<Duration>,
) -> bool {
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    let mut fds = [PollFd::new(ended, PollFlags::IN), PollFd::new(what, events)];
    match poll(&mut fds, limit.as_ref()) {
        Ok(_) | Err(Errno::INTR) => fds[0].revents().is_empty(),
        Err(_) => false,
    }
}

struct Client<'a, E> {
    socket: OwnedFd,
    ended: &'a E,
    until: Instant,
}

/// What a client asks for.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Page,
    /// As `Page`, without the page itself.
    Head,
    /// The status line of a refusal.
    Wrong(&'static str),
}

impl<E: AsFd> Client<'_, E> {
    fn answer(&self, page: &mut String, write: &impl Fn(&mut String)) -> io::Result<()> {
        let asked = self.receive()?;
        page.clear();
        let status = match asked {
            Asked::Page | Asked::Head => {
                write(page);
                "200 OK"
            }
            Asked::Wrong(status) => {
                page.push_str("metrics are at /metrics\n");
                status
            }
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n",
            page.len()
        );
        self.send(head.as_bytes())?;
        if asked != Asked::Head {
            self.send(page.as_bytes())?;
        }
        Ok(shutdown(&self.socket, Shutdown::Write)?)
    }

    fn receive(&self) -> io::Result<Asked> {
        let mut request = [0; REQUEST_MAX];
        let mut len = 0;
        loop {
            if let Some(asked) = parse(&request[..len]) {
                return Ok(asked);
            }
            if len == request.len() {
                return Ok(Asked::Wrong("431 Request Header Fields Too Large"));
            }
            self.wait(PollFlags::IN)?;
            match recv(&self.socket, &mut request[len..], RecvFlags::empty()) {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((count, _)) => len += count,
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn send(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match send(&self.socket, bytes, SendFlags::NOSIGNAL) {
                Ok(count) => bytes = &bytes[count..],
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT)?,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Waits for the client, until its time is over or the server ends.
    fn wait(&self, events: PollFlags) -> io::Result<()> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() || !is_ready(&self.socket, events, self.ended, Some(left)) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }
}

/// Reads a request, once all of its header is there.
fn parse(request: &[u8]) -> Option<Asked> {
    let is_whole = request.windows(4).any(|end| end == b"\r\n\r\n")
        || request.windows(2).any(|end| end == b"\n\n");
    if !is_whole {
        return None;
    }
    let line = request.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii();
    let mut words = line.split(|byte| *byte == b' ');
    let words = [words.next(), words.next(), words.next(), words.next()];
    let [Some(method), Some(target), Some(version), None] = words else {
        return Some(Asked::Wrong("400 Bad Request"));
    };
    if !version.starts_with(b"HTTP/1.") {
        return Some(Asked::Wrong("505 HTTP Version Not Supported"));
    }
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    Some(match (method, path) {
        (b"GET", b"/metrics") => Asked::Page,
        (b"HEAD", b"/metrics") => Asked::Head,
        (b"GET" | b"HEAD", _) => Asked::Wrong("404 Not Found"),
        _ => Asked::Wrong("405 Method Not Allowed"),
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn requests_are_read_whole_and_wrong_ones_refused() {
        assert_eq!(parse(b"GET /metrics HTTP/1.1\r\nHost: x\r\n"), None);
        assert_eq!(parse(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"), Some(Asked::Page));
        assert_eq!(parse(b"GET /metrics?x=y HTTP/1.0\n\n"), Some(Asked::Page));
        assert_eq!(parse(b"HEAD /metrics HTTP/1.1\r\n\r\n"), Some(Asked::Head));
        for (request, status) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
            (b"GET /metrics/../x HTTP/1.1\r\n\r\n", "404"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
            (b"GET /metrics SPDY/3\r\n\r\n", "505"),
            (b"GET  /metrics HTTP/1.1\r\n\r\n", "400"),
            (b"GET\r\n\r\n", "400"),
            (b"\r\n\r\n", "400"),
            (b"\xff\xfe\x00\r\n\r\n", "400"),
        ] {
            match parse(request) {
                Some(Asked::Wrong(said)) => assert!(said.starts_with(status), "{request:?} {said}"),
                other => panic!("{request:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_client_that_says_nothing_keeps_nobody_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (ended, end) = io::pipe().unwrap();
        // Both are there before the server is.
        let silent = UnixStream::connect(&path).unwrap();
        let mut behind = UnixStream::connect(&path).unwrap();
        behind.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let server = std::thread::spawn(move || {
            serve(&listener, &ended, |page| page.push_str("a 1\n"));
        });
        let mut answer = String::new();
        behind.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("a 1\n"), "{answer}");
        drop((silent, end));
        server.join().unwrap();
    }

    #[test]
    fn clients_that_send_too_much_or_leave_keep_nobody_out_and_the_end_waits_for_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (ended, end) = io::pipe().unwrap();
        let (say, has_ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            // An end that waits for a client does not come.
            serve_each(&listener, &ended, Duration::from_hours(1), |page| page.push_str("a 1\n"));
            let _ = say.send(());
        });
        let ask = |request: &[u8]| {
            let mut client = UnixStream::connect(&path).unwrap();
            // It may be refused before all is sent.
            let _ = client.write_all(request);
            let mut answer = Vec::new();
            let _ = client.read_to_end(&mut answer);
            String::from_utf8(answer).unwrap()
        };
        drop(UnixStream::connect(&path).unwrap());
        assert!(ask(&[b'x'; REQUEST_MAX]).starts_with("HTTP/1.1 431 "));
        let page = ask(b"GET /metrics HTTP/1.1\r\n\r\n");
        assert!(
            page.starts_with("HTTP/1.1 200 OK\r\n") && page.ends_with("\r\n\r\na 1\n"),
            "{page}"
        );
        assert!(page.contains("Content-Length: 4\r\n"), "{page}");
        let head = ask(b"HEAD /metrics HTTP/1.1\r\n\r\n");
        assert!(head.contains("Content-Length: 4\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        let silent = UnixStream::connect(&path).unwrap();
        drop(end);
        has_ended.recv_timeout(Duration::from_mins(1)).expect("the end waits for a client");
        drop(silent);
    }
}
