//! The listener: accepts clients, bounds their number, and ends all connections.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with, sockopt};
use ucrypt_backend::is_this_user;
use ucrypt_engine::{QueueConfig, Volume, WRITE_UNIT_MAX};

use super::address::{Address, AddressError, Listener};
use super::clients::{Admission, Clients};
use super::connection::{Connection, ConnectionError, Means, Service};
use super::handshake::{Export, Handshake};
use super::negotiate::negotiate;
use super::peer;
use super::protocol::{PAYLOAD_BYTES_MAX, STRING_BYTES_MAX, transmission_flag};
use super::request::Terms;
use crate::memory;
use crate::seldom::{Seldom, SeldomByUser, and_before};
use crate::stop::Stop;
use crate::visits::{Admitted, Report, Visits};

/// Send buffer of a Unix socket in bytes; the system may grant less.
const SEND_BUFFER: usize = 1 << 20;
/// How long to wait when the system has no descriptor or memory for a client.
const ACCEPT_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Most clients in their handshake at one time.
const HANDSHAKES_MAX: usize = 32;

/// How a volume is served.
#[derive(Clone)]
pub struct ServerConfig {
    /// Name of the export; clients may use the empty name as well. At most 4096 bytes.
    pub export_name: String,
    /// A line for a human, shown by clients that list exports. At most 4096 bytes.
    pub description: String,
    /// Most clients that are served at one time; the server tells further ones so and turns them
    /// away. Another 32 may be in their handshake; beyond that, the one that has been there longest
    /// is cut off.
    pub connections_max: usize,
    /// How long a client may take to negotiate.
    pub handshake_timeout: Duration,
    /// Over TCP, serve every user of this machine; otherwise only the user of this process and
    /// root.
    pub any_user: bool,
    /// Is told of clients that fail.
    pub report: Report,
    /// Is told of clients that are served and of their end, in at most 20 lines a minute.
    pub visits: Option<Report>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            export_name: String::new(),
            description: String::new(),
            connections_max: 32,
            handshake_timeout: Duration::from_secs(20),
            any_user: false,
            report: Arc::new(|_| {}),
            visits: None,
        }
    }
}

/// Most requests of a connection in the engine. A client with more in flight, or with more than there
/// is memory for, waits.
const DEPTH: u32 = 128;

/// Most bytes of a connection's own buffer memory.
const MEMORY_BYTES_MAX: usize = 1 << 20;

/// Bytes of the longest request, with its whole first and last unit.
const REQUEST_BYTES_MAX: usize = PAYLOAD_BYTES_MAX as usize + 2 * WRITE_UNIT_MAX as usize;

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address cannot be used.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A string that the protocol cannot carry.
    #[error("the {0} is longer than 4096 bytes")]
    TooLong(&'static str),
    /// The system refused a thread or a descriptor.
    #[error("cannot start the NBD server: {0}")]
    Start(#[from] io::Error),
}

/// A volume being served on one address. Dropping it is [`shutdown`](Self::shutdown).
pub struct Server {
    uri: String,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens on `address` and serves `volume` from threads of its own.
    pub fn start(
        volume: Arc<Volume>,
        address: &Address,
        config: ServerConfig,
    ) -> Result<Self, ServerError> {
        if config.export_name.len() > STRING_BYTES_MAX {
            return Err(ServerError::TooLong("export name"));
        }
        if config.description.len() > STRING_BYTES_MAX {
            return Err(ServerError::TooLong("description"));
        }
        let listener = Listener::open(address)?;
        let uri = listener.uri.clone();
        let clients = Clients::new(config.connections_max, HANDSHAKES_MAX);
        let is_tcp = listener.is_tcp();
        let (stop, no_more) = (Stop::new()?, Stop::new()?);
        let lines = Lines::default();
        let (admitted, visits) = (AtomicU64::new(0), Visits::default());
        let shared =
            Shared { volume, config, stop, no_more, clients, is_tcp, lines, admitted, visits };
        let shared = Arc::new(shared);
        let acceptor = Acceptor { shared: shared.clone(), clients: Vec::new(), number: 0 };
        let acceptor = thread::Builder::new()
            .name("nbd-accept".into())
            .spawn(move || acceptor.run(listener))?;
        Ok(Self { uri, shared, acceptor: Some(acceptor) })
    }

    /// The volume's NBD URI for clients, with the actual port if the server chose it.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// Clients that are being served and have not hung up.
    pub fn clients(&self) -> usize {
        self.shared.clients.count()
    }

    /// Has the clients counted whenever it is called, also after the server has ended.
    pub fn watch(&self) -> impl Fn() -> Admitted + Send + Sync + use<> {
        let shared = self.shared.clone();
        move || Admitted {
            now: shared.clients.served() as u64,
            since_start: shared.admitted.load(Ordering::Relaxed),
        }
    }

    /// Clients that have hung up while the volume had not answered all their requests.
    pub fn unanswered_clients(&self) -> usize {
        self.shared.clients.served().saturating_sub(self.clients())
    }

    /// Takes no more clients from now on, if none is being served. Returns whether that is the
    /// case.
    pub fn try_stop(&self) -> bool {
        let stopped = self.shared.clients.close_if_empty();
        if stopped {
            self.shared.no_more.set();
        }
        stopped
    }

    /// Takes no more clients from now on, if all that were being served have hung up. Returns whether
    /// they have. What they asked for may not be done yet.
    pub fn close_if_gone(&self) -> bool {
        self.shared.clients.close_if_gone()
    }

    /// Takes [`Server::close_if_gone`] back.
    pub fn reopen(&self) {
        self.shared.clients.reopen();
    }

    /// Takes no more clients; those that are being served go on. The server ends with the last of
    /// them.
    pub fn detach(&self) {
        self.shared.clients.close();
        self.shared.no_more.set();
    }

    /// Whether the server takes no more clients and the last one has gone.
    pub fn has_ended(&self) -> bool {
        self.shared.clients.are_gone()
    }

    /// Takes no more clients and no more requests, and returns at once. Requests that were taken
    /// are still completed; clients have 5 s to take the replies.
    pub fn stop(&self) {
        self.shared.stop.set();
        self.shared.no_more.set();
    }

    /// [`Server::stop`]; completes every request that was taken, and
    /// returns when the last connection is closed. It flushes nothing beyond that.
    pub fn shutdown(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stop();
        if let Some(acceptor) = self.acceptor.take() {
            // A panic of the thread has been printed already and leaves nothing to do.
            let _ = acceptor.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// What clients are told about the volume.
fn export(volume: &Volume, config: &ServerConfig) -> Export {
    let info = volume.info();
    let mut flags = transmission_flag::HAS_FLAGS
        | transmission_flag::SEND_FLUSH
        | transmission_flag::CAN_MULTI_CONN;
    if info.read_only {
        flags |= transmission_flag::READ_ONLY;
    } else {
        flags |= transmission_flag::SEND_FUA
            | transmission_flag::SEND_WRITE_ZEROES
            | transmission_flag::SEND_FAST_ZERO;
        if info.discard {
            flags |= transmission_flag::SEND_TRIM;
        }
    }
    Export {
        name: config.export_name.clone(),
        description: config.description.clone(),
        size: info.len,
        flags,
        block_min: 1,
        block_preferred: info.preferred_io.clamp(4096, PAYLOAD_BYTES_MAX).next_power_of_two(),
        block_max: PAYLOAD_BYTES_MAX,
    }
}

/// State shared by all connections.
struct Shared {
    volume: Arc<Volume>,
    config: ServerConfig,
    /// Set when no more requests are taken.
    stop: Stop,
    /// Set when no more clients are taken.
    no_more: Stop,
    clients: Clients,
    is_tcp: bool,
    lines: Lines,
    /// Clients that have been served so far.
    admitted: AtomicU64,
    visits: Visits,
}

impl Shared {
    /// Reports a line of a kind unless it `passes`, with the number of those kept back before.
    fn report(&self, passes: Option<u64>, line: impl FnOnce() -> String) {
        if let Some(kept_back) = passes {
            (self.config.report)(&(line() + &and_before(kept_back)));
        }
    }
}

/// The lines that clients could fill the log with, by kind.
#[derive(Default)]
struct Lines {
    cannot_accept: Seldom,
    no_thread: Seldom,
    foreign: SeldomByUser,
    full: Seldom,
    cut_off: Seldom,
    violation: Seldom,
    timeout: Seldom,
    queue: Seldom,
    socket: Seldom,
}

impl Lines {
    /// The kind of line that tells of this failure.
    fn of(&self, error: &ConnectionError) -> &Seldom {
        match error {
            ConnectionError::Violation(_) => &self.violation,
            ConnectionError::HandshakeTimeout(_) => &self.timeout,
            ConnectionError::Queue(_) => &self.queue,
            ConnectionError::Socket(_) => &self.socket,
        }
    }
}

struct Client {
    number: u64,
    thread: JoinHandle<()>,
}

/// The thread that accepts.
struct Acceptor {
    shared: Arc<Shared>,
    clients: Vec<Client>,
    /// Number of clients so far, which names the last one in reports.
    number: u64,
}

impl Acceptor {
    fn run(mut self, listener: Listener) {
        while !self.shared.no_more.is_set() {
            match accept_with(&listener, SocketFlags::CLOEXEC) {
                Ok(socket) => self.welcome(socket),
                Err(Errno::AGAIN) => self.wait(Some(&listener)),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => {
                    self.cannot_accept(error);
                    self.wait(None);
                }
            }
        }
        // This also removes the socket's file.
        drop(listener);
        // Waits without a timeout: dropping the server sets `stop` at the latest.
        let stop = PollFd::new(&self.shared.stop, PollFlags::IN);
        while !self.shared.stop.is_set() {
            let _ = poll(&mut [stop.clone()], None);
        }
        self.shared.clients.hang_up(!self.shared.is_tcp);
        for client in self.clients.drain(..) {
            let _ = client.thread.join();
        }
    }

    /// Sleeps until there is a client or no more are taken; without a listener, only for a moment.
    fn wait(&self, listener: Option<&Listener>) {
        let mut fds = vec![PollFd::new(&self.shared.no_more, PollFlags::IN)];
        let timeout = if listener.is_none() { Some(&ACCEPT_PAUSE) } else { None };
        fds.extend(listener.map(|listener| PollFd::new(listener, PollFlags::IN)));
        // Whatever this returns, the caller looks at both again.
        let _ = poll(&mut fds, timeout);
    }

    /// Reports, now and then, that no client can be accepted: the descriptors or the memory are used
    /// up, which may last.
    fn cannot_accept(&self, error: Errno) {
        let passes = self.shared.lines.cannot_accept.passes(Instant::now());
        let error = io::Error::from(error);
        self.shared.report(passes, || format!("cannot accept an NBD client: {error}"));
    }

    fn welcome(&mut self, socket: OwnedFd) {
        self.clients.retain(|client| !client.thread.is_finished());
        self.number += 1;
        let number = self.number;
        let shared = Arc::clone(&self.shared);
        tune(&socket, shared.is_tcp);
        let socket = Arc::new(socket);
        if let Some(gone) = shared.clients.greet(number, &socket) {
            shared.report(shared.lines.cut_off.passes(Instant::now()), || {
                format!("NBD client {gone} cut off: it did not negotiate, and others wait")
            });
            // Its thread has nothing more to wait for. Joining it here bounds the number of threads
            // by the number of places.
            if let Some(at) = self.clients.iter().position(|client| client.number == gone) {
                let _ = self.clients.swap_remove(at).thread.join();
            }
        }
        let spawned = thread::Builder::new().name(format!("nbd-{number}")).spawn(move || {
            if let Err(error) = serve(&socket, number, &shared) {
                let passes = shared.lines.of(&error).passes(Instant::now());
                shared.report(passes, || format!("NBD client {number}: {error}"));
            }
            shared.clients.forget(number);
        });
        match spawned {
            Ok(thread) => self.clients.push(Client { number, thread }),
            Err(error) => {
                self.shared.clients.forget(number);
                let passes = self.shared.lines.no_thread.passes(Instant::now());
                self.shared.report(passes, || {
                    format!("NBD client {number} turned away: no thread: {error}")
                });
            }
        }
    }
}

/// Sets options that make the socket faster; it works without them, so failures do not matter.
fn tune(socket: &OwnedFd, tcp: bool) {
    if tcp {
        let _ = sockopt::set_tcp_nodelay(socket, true);
    } else {
        let _ = sockopt::set_socket_send_buffer_size(socket, SEND_BUFFER);
    }
}

/// Serves one client, from the greeting to the end.
fn serve(socket: &OwnedFd, number: u64, shared: &Shared) -> Result<(), ConnectionError> {
    let Shared { volume, config, stop, clients, .. } = shared;
    // The volume may have been resized since the last connection.
    let export = &export(volume, config);
    let timeout = config.handshake_timeout;
    if let Some(Refused { why, passes }) = refusal(socket, shared)? {
        shared.report(passes, || format!("NBD client {number} turned away: {why}"));
        // What else is wrong with it does not matter, and must not hide the faults of others.
        let _ =
            negotiate(socket.as_fd(), Handshake::refusing(export, why), timeout, stop, || false);
        return Ok(());
    }
    let mut admission: Option<Admission<'_>> = None;
    let mut means = None;
    let memory = memory::each(volume, config.connections_max, MEMORY_BYTES_MAX);
    let queue = QueueConfig { memory, request_max: REQUEST_BYTES_MAX, depth: DEPTH };
    // A client that was told that it is served must not fail for want of a descriptor.
    let admit = || {
        admission = clients.admit(number);
        means = admission.is_some().then(|| Means::new(volume, queue));
        matches!(means, Some(Ok(_)))
    };
    let negotiated = negotiate(socket.as_fd(), Handshake::new(export), timeout, stop, admit)?;
    let means = means.transpose().map_err(ConnectionError::Queue)?;
    let (Some(negotiated), Some(means)) = (negotiated, means) else { return Ok(()) };
    let service = Service {
        volume: Arc::clone(volume),
        means,
        terms: Terms {
            size: export.size,
            flags: negotiated.transmission_flags(export),
            block_status: negotiated.block_status,
            fast_zero: volume.info().fast_write_zeroes,
        },
        structured: negotiated.structured,
        depth: DEPTH,
        is_tcp: shared.is_tcp,
    };
    shared.admitted.fetch_add(1, Ordering::Relaxed);
    let visit = |what: &str| {
        if let Some(tell) = &config.visits {
            shared.visits.tell(&**tell, || format!("NBD client {number} {what}"));
        }
    };
    visit("has connected");
    let served = Connection::new(socket, stop, service).run();
    visit("has gone");
    served
}

/// A client that is not served.
struct Refused {
    why: String,
    /// Whether to report it; see [`Seldom::passes`].
    passes: Option<u64>,
}

/// Why a client is not served; `None` if it is.
fn refusal(socket: &OwnedFd, shared: &Shared) -> io::Result<Option<Refused>> {
    let Shared { config, lines, .. } = shared;
    let now = Instant::now();
    if shared.is_tcp && !config.any_user {
        let own = rustix::process::geteuid().as_raw();
        let user = peer::user(socket.as_fd())?;
        let why = match user {
            Some(user) if is_this_user(user) || user == 0 => None,
            // As all users without a number in this user namespace.
            Some(user) if user == own => Some("it cannot be told which user it is of".into()),
            Some(user) => Some(format!(
                "it is of user {user}, and this server serves user {own} and root only \
                 (--nbd-any-user lets every user of this machine in)"
            )),
            None => Some("it cannot be told which user it is of".into()),
        };
        if let Some(why) = why {
            return Ok(Some(Refused { why, passes: lines.foreign.passes(user, now) }));
        }
    }
    Ok(shared.clients.is_full().then(|| {
        let most = config.connections_max;
        let why = format!("{most} clients are connected, which is the most");
        Refused { why, passes: lines.full.passes(now) }
    }))
}
