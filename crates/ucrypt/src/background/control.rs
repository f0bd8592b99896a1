//! The control socket: a request is one line of JSON, and so is its answer.
//!
//! Two checks decide who may ask: the mode of the socket, and the user at the other end. Who passes a
//! key on checks the user at the other end too: the runtime directory may be another user's.
//!
//! This file is the side of who asks; `clients` is the server's.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use ucrypt_backend::{Peer, is_this_user, kernel_table};
use ucrypt_luks::KEY_LEN_MAX;

use super::name_lock;
use crate::ending::END_LIMIT;
use crate::events::Event;
use crate::failure::{Failure, remedy};
use crate::passphrase::Secret;
use crate::progress::Waiting;
use crate::runtime::RuntimePaths;

mod clients;

pub(super) use clients::reply;

/// How long a server may take to answer a status request.
pub(super) const STATUS_PATIENCE: Duration = Duration::from_secs(30);

/// How long a server that has hung up may take to remove its files.
const END_PATIENCE: Duration = Duration::from_secs(30);

/// How often to look at a server that has not answered. One that has just been killed needs a moment to go.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// SIGKILL in a set of signals of /proc/PID/status.
const KILL: u64 = 1 << 8;

/// Length of the queue of clients that wait to be accepted.
const BACKLOG: i32 = 64;

/// The state of a volume that is open and not about to be closed.
pub(super) const OPEN: &str = "open";

/// A request to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Request {
    Status,
    Close,
    CloseDeferred,
    /// Resize to a length in bytes, or without one to the length that `open` would choose now.
    Resize {
        bytes: Option<u64>,
    },
    /// Finish what is under way, then wipe the key.
    Suspend,
    /// Take the key back. It follows, so many bytes, after the server has said that it waits for it:
    /// it is in no buffer of a parser.
    Resume {
        key_len: u32,
    },
}

/// Longest answer in bytes: far more than the status of a volume with a queue for each of many cores.
const ANSWER_MAX: u64 = 16 << 20;

/// Sends a request to the server of a name, and returns the answer.
pub(super) fn ask(paths: &RuntimePaths, request: Request) -> Result<Value, Failure> {
    let name = paths.name();
    let stream = connect(paths, STATUS_PATIENCE)?;
    let patience = if request == Request::Status { STATUS_PATIENCE } else { 2 * END_LIMIT };
    let _waiting = match request {
        Request::Close => Some(Waiting::begin(&format!("closing {name}: flushing the image"))),
        Request::Suspend => Some(Waiting::begin(&format!("suspending {name}"))),
        Request::Resize { .. } => Some(Waiting::begin(&format!("resizing {name}"))),
        _ => None,
    };
    answered(paths, exchange(stream, request, patience))
}

/// As [`ask`] for the status, from a server that answers in this time; `None` if the volume is closed just now.
pub(super) fn status_within(
    paths: &RuntimePaths,
    patience: Duration,
) -> Result<Option<Value>, Failure> {
    let stream = match connect(paths, patience) {
        Err(_) if !paths.are_in_use() => return Ok(None),
        stream => stream?,
    };
    match exchange(stream, Request::Status, patience) {
        Ok(None) if is_gone(paths, patience) => Ok(None),
        Ok(None) => Err(ended(paths)),
        answer => answered(paths, answer).map(Some),
    }
}

/// As [`ask`] for the status, but only of a server of this user, as [`resume`] needs one.
pub(super) fn own_status(paths: &RuntimePaths) -> Result<Value, Failure> {
    let stream = connect_to_own(paths)?;
    answered(paths, exchange(stream, Request::Status, STATUS_PATIENCE))
}

/// Sends a volume key to the server of a suspended volume, and returns the answer.
///
/// # Errors
/// Code 2 if the server is another user's, root included: it does not get the key. The same if no key
/// has this length.
pub(super) fn resume(paths: &RuntimePaths, key: &[u8]) -> Result<Value, Failure> {
    if !is_key_len(key.len()) {
        return Err(ucrypt_luks::Error::WrongVolumeKey.into());
    }
    let mut stream = connect_to_own(paths)?;
    let hand_over = || {
        let request = Request::Resume { key_len: key.len() as u32 };
        let asked = exchange(stream.try_clone()?, request, STATUS_PATIENCE)?;
        if asked.as_ref().is_none_or(|asked| asked.get("error").is_some()) {
            return Ok(asked);
        }
        stream.write_all(key)?;
        receive_answer(stream)
    };
    answered(paths, hand_over())
}

fn answered(paths: &RuntimePaths, answer: io::Result<Option<Value>>) -> Result<Value, Failure> {
    let name = paths.name();
    let answer = answer.map_err(|error| {
        Failure::device(format!("the server of {name} does not answer: {error}; its log says more"))
    })?;
    answer.ok_or_else(|| {
        // Somebody else has closed it, and it had nothing to say.
        if is_gone(paths, END_PATIENCE) {
            return Failure::gone(format!("{name} is not open any more: it was closed meanwhile"));
        }
        ended(paths)
    })
}

fn ended(paths: &RuntimePaths) -> Failure {
    let name = paths.name();
    Failure::device(format!("the server of {name} has ended meanwhile; its log says why"))
}

/// Whether nothing is left of a volume whose server ends just now. A log that says why it ended stays.
fn is_gone(paths: &RuntimePaths, patience: Duration) -> bool {
    let deadline = Instant::now() + patience.min(END_PATIENCE);
    // It holds the name until its files are removed, whoever keeps it from its processor.
    while name_lock::is_held(paths) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    !paths.are_in_use() && !paths.log().exists()
}

/// Connects to a server, which has to have room for one more client within `patience`.
///
/// # Errors
/// Code 2 if somebody else listens there, such as in a directory of `/tmp` that is another user's: what it says of a
/// volume would be believed. Root may ask whom it likes.
fn connect(paths: &RuntimePaths, patience: Duration) -> Result<UnixStream, Failure> {
    let stream = connect_to_any(paths, patience)?;
    // Where this user has no number of its own (in a user namespace), as many as have none are trusted so far, as by the
    // server; not with a key.
    let user = rustix::process::geteuid();
    if !user.is_root() {
        check_is_own(paths, &stream, |server| server == user.as_raw())?;
    }
    Ok(stream)
}

fn connect_to_any(paths: &RuntimePaths, patience: Duration) -> Result<UnixStream, Failure> {
    let name = paths.name();
    let deadline = Instant::now() + patience;
    let connected = loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let connected = connected(&paths.socket(), left);
        let is_missing =
            connected.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        // Who holds the name starts, and listens soon, or has ended but for the last moment.
        if !is_missing || !name_lock::is_held(paths) {
            break connected;
        }
        if left.is_zero() {
            return Err(Failure::device(format!(
                "the server of {name} does not answer: it starts, or is about to end; try again"
            )));
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    connected.map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => Failure::device(format!(
            "the server of {name} does not answer: it stands still, and too many clients wait for it"
        )),
        io::ErrorKind::PermissionDenied => Failure::denied(format!(
            "{name} is another user's ({}: {error})",
            paths.socket().display()
        )),
        io::ErrorKind::NotFound => {
            Failure::gone(format!("{name} is not open; ucrypt open IMAGE {name} opens it"))
        }
        _ => Failure::device(format!(
            "the server of {name} was killed; ucrypt close {name} removes what it left"
        )),
    })
}

/// A connection to the socket at a path. Fails with `WouldBlock` if it takes longer than `patience`: a
/// server that stands still accepts nobody, and the kernel lets only so many clients wait for it.
fn connected(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let stream = UnixStream::from(socket);
    // It limits connecting, too (unix(7)).
    stream.set_write_timeout(Some(patience.max(Duration::from_millis(1))))?;
    let address = SocketAddrUnix::new(path)?;
    rustix::io::retry_on_intr(|| rustix::net::connect(&stream, &address))?;
    Ok(stream)
}

/// As [`connect`], but only to a server of this user.
fn connect_to_own(paths: &RuntimePaths) -> Result<UnixStream, Failure> {
    let stream = connect_to_any(paths, STATUS_PATIENCE)?;
    check_is_own(paths, &stream, is_this_user)?;
    Ok(stream)
}

/// Refuses a server of another user.
fn check_is_own(
    paths: &RuntimePaths,
    stream: &UnixStream,
    is_own: impl Fn(u32) -> bool,
) -> Result<(), Failure> {
    let failed =
        |error| Failure::device(format!("cannot ask who serves {}: {error}", paths.name()));
    let server = Peer::of(stream).map_err(failed)?.user;
    if is_own(server) {
        return Ok(());
    }
    Err(Failure::denied(format!(
        "{} is served by user {}, who is not to be trusted with your keys and data; set XDG_RUNTIME_DIR to your \
         own directory, or become that user",
        paths.socket().display(),
        server
    )))
}

/// Whether somebody listens on the socket of a name, or stands still there.
pub(super) fn is_heard(paths: &RuntimePaths, patience: Duration) -> bool {
    connected(&paths.socket(), patience)
        .map_or_else(|error| error.kind() == io::ErrorKind::WouldBlock, |_| true)
}

/// Whether a server answers in time. The socket of a killed server takes connections until the last of
/// its threads has ended.
pub(super) fn is_answered(paths: &RuntimePaths, patience: Duration) -> bool {
    let stream = connected(&paths.socket(), patience);
    let answer = stream.and_then(|stream| exchange(stream, Request::Status, patience));
    matches!(answer, Ok(Some(_)))
}

/// Exchanges a request for an answer. Returns `None` if the server ended without an answer.
fn exchange(
    mut stream: UnixStream,
    request: Request,
    patience: Duration,
) -> io::Result<Option<Value>> {
    stream.set_read_timeout(Some(patience.max(Duration::from_millis(1))))?;
    let server = Peer::of(&stream)?.process;
    let line = serde_json::to_string(&request)?;
    // A server that refuses this client has sent its reason and hung up.
    match writeln!(stream, "{line}") {
        Err(error) if !has_hung_up(&error) => return Err(error),
        _ => {}
    }
    await_answer(&stream, patience, server)?;
    let mut answer = receive_answer(stream)?;
    // The server tells its number in its own PID namespace, where another process may have it here.
    if let Some(number) = answer.as_mut().and_then(|answer| answer.pointer_mut("/server/pid")) {
        *number = json!(server);
    }
    Ok(answer)
}

/// Waits until the server has answered or hung up. A killed server whose image does not answer stays, with its socket:
/// it is not waited for.
fn await_answer(stream: &UnixStream, patience: Duration, server: Option<u32>) -> io::Result<()> {
    let deadline = Instant::now() + patience;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let wait = Timespec::try_from(left.min(LOOK_EVERY)).ok();
        let mut awaited = [PollFd::new(stream, PollFlags::IN)];
        match poll(&mut awaited, wait.as_ref()) {
            Ok(0) if left.is_zero() => return Err(io::ErrorKind::WouldBlock.into()),
            Ok(0) if server.is_some_and(is_dying) => {
                return Err(io::Error::other("it was killed, and its image keeps it from its end"));
            }
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether a process exits, or will as soon as what it waits for lets it.
fn is_dying(process: u32) -> bool {
    let status = kernel_table(format!("/proc/{process}/status")).unwrap_or_default();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let is_killed = |name: &str| {
        let pending = field(name).and_then(|mask| u64::from_str_radix(mask, 16).ok());
        pending.is_some_and(|mask| mask & KILL != 0)
    };
    field("State:").is_some_and(|state| state.starts_with('Z'))
        || is_killed("SigPnd:")
        || is_killed("ShdPnd:")
}

fn receive_answer(stream: UnixStream) -> io::Result<Option<Value>> {
    let mut answer = String::new();
    match BufReader::new(stream.take(ANSWER_MAX)).read_line(&mut answer) {
        Err(error) if has_hung_up(&error) => Ok(None),
        Err(error) => Err(error),
        Ok(0) => Ok(None),
        Ok(_) => Ok(Some(serde_json::from_str(&answer)?)),
    }
}

fn has_hung_up(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// A request, and the stream for its answer.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) request: Request,
    pub(super) stream: UnixStream,
    /// The key that came with [`Request::Resume`].
    pub(super) key: Key,
}

/// A volume key on its way; empty with all other requests.
pub(super) struct Key(pub(super) Secret);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// Listens on the control socket, and delivers each request.
pub(super) fn start(paths: &RuntimePaths, sender: Sender<Event<Asked>>) -> Result<(), Failure> {
    let failed = |error| {
        let socket = paths.socket();
        Failure::device(format!("cannot listen on {}: {error}{}", socket.display(), remedy(&error)))
    };
    let listener = private_socket(&paths.socket()).map_err(failed)?;
    std::thread::Builder::new()
        .name("control".into())
        .spawn(move || clients::serve(&listener, &sender))
        .map_err(failed)?;
    Ok(())
}

/// Creates a socket for this user only, from its first moment on.
fn private_socket(path: &Path) -> io::Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    rustix::io::ioctl_fionbio(&socket, true)?;
    Ok(socket.into())
}

/// Whether a volume key may have so many bytes.
fn is_key_len(len: usize) -> bool {
    (1..=KEY_LEN_MAX).contains(&len)
}

/// The answer to a request: `done`, or the failure.
pub(super) fn answer(result: &Result<(), Failure>, done: &str) -> Value {
    match result {
        Ok(()) => json!({ done: true }),
        Err(failure) => refusal(failure),
    }
}

pub(super) fn refusal(failure: &Failure) -> Value {
    json!({ "error": failure.message, "code": failure.code })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_socket_is_for_its_user_whatever_the_umask() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = private_socket(&path).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let _client = UnixStream::connect(&path).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        assert!(clients::may_ask(&accepted));
    }

    #[test]
    fn a_server_that_hangs_up_has_ended() {
        let (client, server) = UnixStream::pair().unwrap();
        drop(server);
        assert_eq!(exchange(client, Request::Status, STATUS_PATIENCE).unwrap(), None);
        let (client, server) = UnixStream::pair().unwrap();
        reply(server, &json!({ "closed": true }));
        assert_eq!(
            exchange(client, Request::Close, STATUS_PATIENCE).unwrap(),
            Some(json!({ "closed": true }))
        );
    }

    #[test]
    fn a_server_that_stands_still_keeps_nobody_waiting_for_its_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let _stands_still = private_socket(&path).unwrap();
        let moment = Duration::from_millis(10);
        // Who fits into the queue is connected, and who does not is told.
        let mut waiting = Vec::new();
        let refused = loop {
            match connected(&path, moment) {
                Ok(stream) if waiting.len() < 1000 => waiting.push(stream),
                Ok(_) => panic!("the queue has no end"),
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock, "{refused}");
        let missing = connected(&dir.path().join("none"), moment).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
