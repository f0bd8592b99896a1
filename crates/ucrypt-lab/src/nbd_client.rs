//! A small NBD client, as a backend: only what a load asks of a server.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use ucrypt_backend::{Backend, Done, Errno, Extent, Io, Limits, Queue, total_len};
use ucrypt_export::nbd::protocol;

/// A server on a Unix socket; each queue is a connection.
pub struct NbdClient {
    path: PathBuf,
    limits: Limits,
}

impl NbdClient {
    /// A client of the server at `path`, which serves `len` bytes.
    pub fn new(path: &Path, len: u64) -> Self {
        let limits = Limits {
            len,
            block: 512,
            write_unit: 512,
            transfer_max: 1 << 20,
            memory_align: 1,
            read_only: false,
            discard: false,
            rotational: false,
            synchronous: false,
            copies: true,
        };
        Self { path: path.into(), limits }
    }
}

impl Backend for NbdClient {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn use_until(&self, _end: u64) {}

    fn queue(&self, depth: u32) -> io::Result<Box<dyn Queue>> {
        let mut socket = UnixStream::connect(&self.path)?;
        negotiate(&mut socket)?;
        Ok(Box::new(Connection { socket, depth: depth as usize, waiting: HashMap::new() }))
    }

    fn extents(&self, _offset: u64, len: u64, _max: usize) -> Vec<Extent> {
        vec![Extent { len, hole: false }]
    }

    fn describe(&self) -> String {
        format!("NBD at {}", self.path.display())
    }

    fn len_now(&self) -> io::Result<u64> {
        Ok(self.limits.len)
    }

    fn map(&self) -> Option<std::sync::Arc<dyn ucrypt_backend::Map>> {
        None
    }

    fn zones(&self) -> Option<&dyn ucrypt_backend::Zones> {
        None
    }
}

/// Chooses the default export by the shortest negotiation.
fn negotiate(socket: &mut UnixStream) -> io::Result<()> {
    use protocol::{GREETING_MAGIC, OPTION_MAGIC, client_flag, option};
    let mut greeting = [0; 18];
    socket.read_exact(&mut greeting)?;
    let expected = [GREETING_MAGIC.to_be_bytes(), OPTION_MAGIC.to_be_bytes()].concat();
    if greeting[..16] != expected {
        return Err(io::Error::other("the server does not speak NBD"));
    }
    let mut hello = Vec::with_capacity(20);
    let flags = client_flag::FIXED_NEWSTYLE | client_flag::NO_ZEROES;
    hello.extend_from_slice(&flags.to_be_bytes());
    hello.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    hello.extend_from_slice(&option::EXPORT_NAME.to_be_bytes());
    hello.extend_from_slice(&0u32.to_be_bytes());
    socket.write_all(&hello)?;
    // Skip the size and the transmission flags, which are known already.
    socket.read_exact(&mut [0; 10])
}

/// One connection. Replies are read when somebody waits for them.
struct Connection {
    socket: UnixStream,
    depth: usize,
    waiting: HashMap<u64, Io>,
}

impl Connection {
    fn send(&mut self, io: &Io) -> io::Result<()> {
        use protocol::{REQUEST_LEN, REQUEST_MAGIC, command};
        let (kind, token, offset, len, payload) = match io {
            Io::Read { token, offset, bufs } => {
                (command::READ, token, *offset, total_len(bufs), None)
            }
            Io::Write { token, offset, bufs, .. } => {
                (command::WRITE, token, *offset, total_len(bufs), Some(bufs))
            }
            Io::Flush { token } => (command::FLUSH, token, 0, 0, None),
            Io::Discard { .. } | Io::WriteZeroes { .. } => {
                return Err(io::ErrorKind::Unsupported.into());
            }
        };
        let mut header = Vec::with_capacity(REQUEST_LEN);
        header.extend_from_slice(&REQUEST_MAGIC.to_be_bytes());
        header.extend_from_slice(&0u16.to_be_bytes());
        header.extend_from_slice(&kind.to_be_bytes());
        header.extend_from_slice(&token.to_be_bytes());
        header.extend_from_slice(&offset.to_be_bytes());
        header.extend_from_slice(&(len as u32).to_be_bytes());
        self.socket.write_all(&header)?;
        payload.into_iter().flatten().try_for_each(|buf| self.socket.write_all(buf))
    }

    fn receive(&mut self) -> io::Result<Done> {
        let mut header = [0; 16];
        self.socket.read_exact(&mut header)?;
        let (magic, error) = (protocol::get_u32(&header, 0), protocol::get_u32(&header, 4));
        let token = header.last_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        let io = self.waiting.remove(&token);
        let (Some(protocol::SIMPLE_REPLY_MAGIC), Some(error), Some(io)) = (magic, error, io) else {
            return Err(io::Error::other("the server sent what is no reply"));
        };
        let result = if error == 0 { Ok(()) } else { Err(Errno::IO) };
        let is_read = matches!(io, Io::Read { .. });
        let (_, mut bufs) = io.into_parts();
        if is_read && result.is_ok() {
            bufs.iter_mut().try_for_each(|buf| self.socket.read_exact(buf))?;
        }
        Ok(Done { token, result, bufs })
    }
}

impl Queue for Connection {
    fn room(&self) -> usize {
        self.depth - self.waiting.len()
    }

    fn submit(&mut self, io: Io) {
        let (Io::Read { token, .. }
        | Io::Write { token, .. }
        | Io::Flush { token }
        | Io::Discard { token, .. }
        | Io::WriteZeroes { token, .. }) = io;
        // A broken connection shows up in `wait`.
        let _ = self.send(&io);
        self.waiting.insert(token, io);
    }

    fn poll(&mut self, _done: &mut Vec<Done>) -> io::Result<()> {
        Ok(())
    }

    fn wait(&mut self, done: &mut Vec<Done>) -> io::Result<()> {
        if !self.waiting.is_empty() {
            done.push(self.receive()?);
        }
        Ok(())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn register(&mut self, _pool: &ucrypt_backend::Pool) -> bool {
        false
    }

    fn shared_ring(&mut self) -> Option<ucrypt_backend::SharedRing<'_>> {
        None
    }
}
