//! The listener: one front end at a time, each served from its first message to its last.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{RecvFlags, Shutdown, SocketFlags, accept_with, recv, shutdown};
use ucrypt_engine::Volume;
use vhost::vhost_user::{BackendReqHandler, Error};

use super::device::Device;
use super::request::ID_LEN;
use super::ring::DeviceState;
use super::ring_control::AtEnd;
use crate::stop::Stop;
use crate::unix_socket::{SocketError, UnixSocket};
use crate::visits::{Admitted, Report, Visits};

/// How long to wait when the system has no descriptor or memory for a front end.
const ACCEPT_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// How often to look whether the rest of a message has come.
const PART_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// How long a front end may take to finish a message.
const MESSAGE_PATIENCE: Duration = Duration::from_secs(20);

/// Bytes of a message's header, whose last four are the length of its body (vhost-user.rst, "Message
/// Specification"), and most bytes of a body.
const HEADER: usize = 12;
const BODY_MAX: u32 = 0x1000;

/// How a volume is served.
#[derive(Clone)]
pub struct ServerConfig {
    /// The disk's serial number for the guest: at most 20 bytes of ASCII; the rest is cut off.
    pub serial: String,
    /// Is told of front ends and guests that break the rules, in at most 20 lines a minute, and of
    /// requests that do not end.
    pub report: Report,
    /// Is told of front ends that connect and leave, in at most 20 lines a minute.
    pub visits: Option<Report>,
    /// How long [`Server::shutdown`] waits for requests in flight. A front end can make it wait, for
    /// example by memory in a file system whose server does not answer, and so can the image.
    pub patience: Duration,
}

/// How much longer the server's thread may take than its rings.
const GRACE: Duration = Duration::from_secs(1);

impl Default for ServerConfig {
    fn default() -> Self {
        let patience = Duration::from_secs(30);
        Self { serial: "ucrypt".into(), report: Arc::new(|_| {}), visits: None, patience }
    }
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The path cannot be used.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The system refused a thread or a descriptor.
    #[error("cannot start the vhost-user server: {0}")]
    Start(#[from] io::Error),
}

/// A volume being served on one socket. Dropping it is [`shutdown`](Self::shutdown).
pub struct Server {
    path: PathBuf,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// State shared by the thread and its owner.
struct Shared {
    device: Arc<DeviceState>,
    /// The front end that is being served; used to end a blocking receive.
    client: Mutex<Option<OwnedFd>>,
    /// Readable when the thread has ended.
    ended: OwnedFd,
    /// Front ends that have connected so far.
    admitted: AtomicU64,
}

impl Server {
    /// Listens on a Unix socket at `path`, for this user only, and serves `volume` from threads
    /// of its own.
    pub fn start(
        volume: Arc<Volume>,
        path: &Path,
        config: &ServerConfig,
    ) -> Result<Self, ServerError> {
        let socket = UnixSocket::listen(path)?;
        let mut serial = [0; ID_LEN];
        let from = config.serial.bytes().filter(u8::is_ascii_graphic);
        serial.iter_mut().zip(from).for_each(|(to, from)| *to = from);
        let state = Arc::new(DeviceState {
            volume,
            serial,
            writeback: AtomicBool::new(false),
            report: config.report.clone(),
            complaints: Visits::default(),
            stop: Stop::new()?,
            patience: config.patience,
            deadline: OnceLock::new(),
        });
        let ended = eventfd(0, EventfdFlags::CLOEXEC).map_err(io::Error::from)?;
        let at_end = AtEnd(ended.try_clone()?);
        let shared = Arc::new(Shared {
            device: state.clone(),
            client: Mutex::default(),
            ended,
            admitted: AtomicU64::new(0),
        });
        let listener = Listener {
            socket,
            shared: shared.clone(),
            state,
            visits: Visits::default(),
            tell: config.visits.clone(),
        };
        let serve = move || {
            let _at_end = at_end;
            listener.run();
        };
        let thread = thread::Builder::new().name("vhost-user".into()).spawn(serve)?;
        Ok(Self { path: path.to_owned(), shared, thread: Some(thread) })
    }

    /// Where front ends connect.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Has the front ends counted whenever it is called, also after the server has ended.
    pub fn watch(&self) -> impl Fn() -> Admitted + Send + Sync + use<> {
        let shared = self.shared.clone();
        move || Admitted {
            now: u64::from(shared.client().is_some()),
            since_start: shared.admitted.load(Ordering::Relaxed),
        }
    }

    /// Takes no more front ends and no more requests, and returns at once. Requests that were taken
    /// are still completed.
    pub fn stop(&self) {
        self.shared.device.stop.set();
        if let Some(client) = &*self.shared.client() {
            // Fails if the front end is gone already, which is fine.
            let _ = shutdown(client, Shutdown::Both);
        }
    }

    /// [`Server::stop`]; completes every request that was taken, and
    /// returns when the connection is closed. It flushes nothing beyond that.
    ///
    /// Requests that take longer than [`ServerConfig::patience`] are reported and left behind, with
    /// the threads that wait for them.
    pub fn shutdown(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stop();
        let device = &self.shared.device;
        let Some(thread) = self.thread.take() else { return };
        // The thread reports rings that do not end in time.
        let ended = device.await_end(self.shared.ended.as_fd())
            || is_readable_within(self.shared.ended.as_fd(), GRACE);
        if ended {
            // A panic of the thread has been printed already and leaves nothing to do.
            let _ = thread.join();
        } else {
            (device.report)("vhost-user front end: the connection did not end, not waited for");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn client(&self) -> std::sync::MutexGuard<'_, Option<OwnedFd>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Listener {
    socket: UnixSocket,
    shared: Arc<Shared>,
    state: Arc<DeviceState>,
    visits: Visits,
    tell: Option<Report>,
}

impl Listener {
    fn run(self) {
        while !self.state.stop.is_set() {
            match self.accept() {
                Ok(client) => {
                    let number = self.shared.admitted.fetch_add(1, Ordering::Relaxed) + 1;
                    let visit = |what: &str| {
                        let line = || format!("vhost-user front end {number} {what}");
                        if let Some(tell) = &self.tell {
                            self.visits.tell(&**tell, line);
                        }
                    };
                    visit("has connected");
                    if let Err(error) = self.serve(client) {
                        self.state.complain(&format!("vhost-user front end: {error}"));
                    }
                    *self.shared.client() = None;
                    visit("has gone");
                }
                Err(Errno::AGAIN) => self.wait(None),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => {
                    let error = io::Error::from(error);
                    self.state.complain(&format!("cannot accept a vhost-user front end: {error}"));
                    self.wait(Some(&ACCEPT_PAUSE));
                }
            }
        }
    }

    fn accept(&self) -> Result<OwnedFd, Errno> {
        accept_with(&self.socket, SocketFlags::CLOEXEC)
    }

    /// Sleeps until there is a front end or the server is to stop; with a timeout, only the latter
    /// ends the sleep early.
    fn wait(&self, timeout: Option<&Timespec>) {
        let mut fds = vec![PollFd::new(&self.state.stop, PollFlags::IN)];
        if timeout.is_none() {
            fds.push(PollFd::new(&self.socket, PollFlags::IN));
        }
        // Whatever this returns, the caller looks at both again.
        let _ = poll(&mut fds, timeout);
    }

    /// Serves one front end until it leaves, breaks the protocol, or the server is to stop.
    fn serve(&self, client: OwnedFd) -> Result<(), String> {
        let stream = UnixStream::from(client);
        let other = stream.try_clone().map_err(|error| error.to_string())?;
        *self.shared.client() = Some(other.into());
        if self.state.stop.is_set() {
            return Ok(());
        }
        let device = Device::new(self.state.clone()).map_err(|error| error.to_string())?;
        let device = Arc::new(Mutex::new(device));
        let hang_up = stream.try_clone().map_err(|error| error.to_string())?;
        let mut messages = BackendReqHandler::from_stream(stream, device);
        while self.await_message(hang_up.as_fd())? {
            match messages.handle_request() {
                Ok(()) => {}
                Err(Error::Disconnected) => break,
                // A server that stops shuts the socket down.
                Err(_) if self.state.stop.is_set() => break,
                Err(error) => return Err(error.to_string()),
            }
        }
        // Dropping the device ends its rings, after every request is answered.
        Ok(())
    }

    /// Sleeps until the front end has sent a whole message or is gone; turns others away meanwhile.
    /// Returns false if the server is to stop.
    ///
    /// # Errors
    /// The front end does not finish its message.
    fn await_message(&self, client: BorrowedFd<'_>) -> Result<bool, String> {
        let (mut pause, mut begun) = (None, None);
        while !self.state.stop.is_set() {
            // The socket stays readable while a message is there in part.
            let (wanted, limit) = match begun {
                None => (PollFlags::IN, pause),
                Some(_) => (PollFlags::empty(), Some(&PART_PAUSE)),
            };
            let mut fds =
                vec![PollFd::new(&self.state.stop, PollFlags::IN), PollFd::new(&client, wanted)];
            if pause.take().is_none() {
                fds.push(PollFd::new(&self.socket, PollFlags::IN));
            }
            if poll(&mut fds, limit).is_err() {
                continue;
            }
            let is_gone = fds[1].revents().intersects(PollFlags::HUP | PollFlags::ERR);
            let has_sent = begun.is_some() || !fds[1].revents().is_empty();
            if is_gone || has_sent && has_message(client) {
                return Ok(true);
            }
            if has_sent {
                let begun = *begun.get_or_insert_with(Instant::now);
                if begun.elapsed() > MESSAGE_PATIENCE {
                    return Err("it does not finish a message".into());
                }
            }
            if fds.get(2).is_none_or(|others| others.revents().is_empty()) {
                continue;
            }
            match self.accept() {
                Ok(_) => {
                    let line = "another vhost-user front end turned away: one is connected already";
                    self.state.complain(line);
                }
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
                // The front end that waits keeps the socket readable.
                Err(_) => pause = Some(&ACCEPT_PAUSE),
            }
        }
        Ok(false)
    }
}

/// Whether a whole message has come, or something that will never be one.
fn has_message(client: BorrowedFd<'_>) -> bool {
    let mut header = [0; HEADER];
    match recv(client, &mut header, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((_, len)) if (1..HEADER).contains(&len) => false,
        Ok((_, HEADER)) => {
            let [.., a, b, c, d] = header;
            let body = u32::from_ne_bytes([a, b, c, d]);
            let there = ioctl_fionread(client).unwrap_or(u64::MAX);
            body > BODY_MAX || there >= HEADER as u64 + u64::from(body)
        }
        Err(Errno::AGAIN | Errno::INTR) => false,
        // The end of the connection.
        Ok(_) | Err(_) => true,
    }
}

fn is_readable_within(fd: BorrowedFd<'_>, time: Duration) -> bool {
    let until = Instant::now() + time;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).ok();
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], timeout.as_ref()) {
            Ok(count) => return count > 0,
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}
