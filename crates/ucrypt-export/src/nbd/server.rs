//! The listener: accepts clients, bounds their number, and ends them all.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags, accept_with, shutdown, sockopt};
use ucrypt_engine::{QueueConfig, Volume};

use super::address::{Address, AddressError, Listener};
use super::connection::{Connection, ConnectionError, Service};
use super::handshake::Export;
use super::negotiate::negotiate;
use super::protocol::{PAYLOAD_MAX, STRING_MAX, transmission_flag};
use super::request::Limits;
use crate::stop::Stop;

/// Bytes that a Unix socket may hold for its client; the system may grant less.
const SEND_BUFFER: usize = 1 << 20;
/// How long to wait when the system has no descriptor or memory for a client.
const ACCEPT_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Where a server reports what went wrong with a client: one line each, from any thread.
pub type Report = Arc<dyn Fn(&str) + Send + Sync>;

/// How a volume is served.
#[derive(Clone)]
pub struct ServerConfig {
    /// Name of the export; clients may use the empty name as well. At most 4096 bytes.
    pub export_name: String,
    /// A line for a human, shown by clients that list exports. At most 4096 bytes.
    pub description: String,
    /// Clients at one time; more are turned away.
    pub connections_max: usize,
    /// How long a client may take to negotiate.
    pub handshake_timeout: Duration,
    /// Bytes of buffers for each connection, at least 32 MiB.
    pub queue_memory: usize,
    /// Requests under way on each connection, at least 1; a client that sends more waits.
    pub queue_depth: u32,
    /// Told of clients that fail.
    pub report: Report,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            export_name: String::new(),
            description: String::new(),
            connections_max: 32,
            handshake_timeout: Duration::from_secs(60),
            queue_memory: 64 << 20,
            queue_depth: 128,
            report: Arc::new(|_| {}),
        }
    }
}

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
    stop: Arc<Stop>,
    acceptor: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens on `address` and serves `volume` from threads of its own.
    pub fn start(
        volume: Arc<Volume>,
        address: &Address,
        config: ServerConfig,
    ) -> Result<Self, ServerError> {
        if config.export_name.len() > STRING_MAX {
            return Err(ServerError::TooLong("export name"));
        }
        if config.description.len() > STRING_MAX {
            return Err(ServerError::TooLong("description"));
        }
        let listener = Listener::open(address)?;
        let uri = listener.uri.clone();
        let stop = Arc::new(Stop::new()?);
        let shared = Arc::new(Shared { volume, config, stop: Arc::clone(&stop) });
        let acceptor = Acceptor { listener, shared, clients: Vec::new(), number: 0 };
        let acceptor =
            thread::Builder::new().name("nbd-accept".into()).spawn(move || acceptor.run())?;
        Ok(Self { uri, stop, acceptor: Some(acceptor) })
    }

    /// Where clients find the volume, as an NBD URI; with the port if it was chosen here.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// Takes no more clients and no more requests, runs every request that was taken to its end,
    /// and returns when the last connection is closed. Nothing is flushed beyond that.
    pub fn shutdown(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stop.set();
        if let Some(acceptor) = self.acceptor.take() {
            // A panic there has been printed already and leaves nothing to do here.
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
        block_preferred: info.preferred_io.clamp(4096, PAYLOAD_MAX).next_power_of_two(),
        block_max: PAYLOAD_MAX,
    }
}

/// What all connections use.
struct Shared {
    volume: Arc<Volume>,
    config: ServerConfig,
    stop: Arc<Stop>,
}

struct Client {
    /// Gone as soon as the thread is done with it, so that the client sees the end at once.
    socket: Weak<OwnedFd>,
    thread: JoinHandle<()>,
}

/// The thread that accepts. It owns the clients, so nothing is shared but the order to stop.
struct Acceptor {
    listener: Listener,
    shared: Arc<Shared>,
    clients: Vec<Client>,
    /// Clients so far, the last one's name in reports.
    number: u64,
}

impl Acceptor {
    fn run(mut self) {
        while !self.shared.stop.is_set() {
            match accept_with(&self.listener, SocketFlags::CLOEXEC) {
                Ok(socket) => self.welcome(socket),
                Err(Errno::AGAIN) => self.wait(None),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => {
                    let error = io::Error::from(error);
                    (self.shared.config.report)(&format!("cannot accept an NBD client: {error}"));
                    self.wait(Some(&ACCEPT_PAUSE));
                }
            }
        }
        for client in &self.clients {
            if let Some(socket) = client.socket.upgrade() {
                // Wakes a thread that sleeps in a receive. A client that is gone already is fine.
                let _ = shutdown(&socket, Shutdown::Read);
            }
        }
        for client in self.clients.drain(..) {
            let _ = client.thread.join();
        }
    }

    /// Sleeps until there is a client or the order to stop; with a timeout, only for the latter.
    fn wait(&self, timeout: Option<&Timespec>) {
        let mut fds = vec![PollFd::new(&*self.shared.stop, PollFlags::IN)];
        if timeout.is_none() {
            fds.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        // Whatever it returns, the caller looks at both again.
        let _ = poll(&mut fds, timeout);
    }

    fn welcome(&mut self, socket: OwnedFd) {
        self.clients.retain(|client| !client.thread.is_finished());
        self.number += 1;
        let number = self.number;
        let shared = Arc::clone(&self.shared);
        if self.clients.len() >= shared.config.connections_max {
            let most = shared.config.connections_max;
            let line = format!("NBD client {number} turned away: {most} are connected already");
            return (shared.config.report)(&line);
        }
        tune(&socket, self.listener.is_tcp());
        let socket = Arc::new(socket);
        let weak = Arc::downgrade(&socket);
        let spawned = thread::Builder::new().name(format!("nbd-{number}")).spawn(move || {
            if let Err(error) = serve(&socket, &shared) {
                (shared.config.report)(&format!("NBD client {number}: {error}"));
            }
        });
        match spawned {
            Ok(thread) => self.clients.push(Client { socket: weak, thread }),
            Err(error) => {
                let line = format!("NBD client {number} turned away: no thread: {error}");
                (self.shared.config.report)(&line);
            }
        }
    }
}

/// Sets what makes the socket faster; it works without, so failures do not matter.
fn tune(socket: &OwnedFd, tcp: bool) {
    if tcp {
        let _ = sockopt::set_tcp_nodelay(socket, true);
    } else {
        let _ = sockopt::set_socket_send_buffer_size(socket, SEND_BUFFER);
    }
}

/// One client, from the greeting to the end.
fn serve(socket: &OwnedFd, shared: &Shared) -> Result<(), ConnectionError> {
    let Shared { volume, config, stop } = shared;
    // The volume may have been resized since the last connection.
    let export = &export(volume, config);
    let timeout = config.handshake_timeout;
    let Some(negotiated) = negotiate(socket.as_fd(), export, timeout, stop)? else {
        return Ok(());
    };
    let depth = config.queue_depth.max(1);
    let queue = QueueConfig { memory: config.queue_memory, depth };
    let service = Service {
        volume: Arc::clone(volume),
        queue: volume.queue(queue).map_err(ConnectionError::Queue)?,
        limits: Limits {
            size: export.size,
            flags: negotiated.transmission_flags(export),
            block_status: negotiated.block_status,
            fast_zero: volume.info().fast_write_zeroes,
        },
        structured: negotiated.structured,
        depth,
    };
    Connection::new(socket, stop, service).run()
}
