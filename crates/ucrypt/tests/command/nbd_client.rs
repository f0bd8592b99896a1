//! A minimal NBD client: one request at a time, no options. It lets a load know exactly what was
//! acknowledged before the server died.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

const IHAVEOPT: u64 = 0x4948_4156_454F_5054;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const OPTION_EXPORT_NAME: u32 = 1;
/// Fixed newstyle, no zeroes after the export's flags.
const CLIENT_FLAGS: u32 = 3;
const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;

#[derive(Debug)]
pub(crate) struct NbdClient {
    stream: UnixStream,
    handle: u64,
}

impl Drop for NbdClient {
    /// A child that another test starts holds the descriptor for a moment: closing it does not yet
    /// end the connection.
    fn drop(&mut self) {
        // Fails if the server has ended it.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl NbdClient {
    pub(crate) fn connect(socket: &Path) -> io::Result<Self> {
        let mut stream = UnixStream::connect(socket)?;
        // NBDMAGIC, IHAVEOPT, flags.
        stream.read_exact(&mut [0; 18])?;
        let mut hello = CLIENT_FLAGS.to_be_bytes().to_vec();
        hello.extend(IHAVEOPT.to_be_bytes());
        hello.extend(OPTION_EXPORT_NAME.to_be_bytes());
        hello.extend(0_u32.to_be_bytes());
        stream.write_all(&hello)?;
        // Size and flags.
        stream.read_exact(&mut [0; 10])?;
        Ok(Self { stream, handle: 0 })
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.request(WRITE, offset, data.len() as u32, data)
    }

    pub(crate) fn read(&mut self, offset: u64, len: u32) -> io::Result<Vec<u8>> {
        self.request(READ, offset, len, &[])?;
        let mut data = vec![0; len as usize];
        self.stream.read_exact(&mut data)?;
        Ok(data)
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.request(FLUSH, 0, 0, &[])
    }

    /// Asks for a write and does not wait for the answer.
    pub(crate) fn send_write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.send(WRITE, offset, data.len() as u32, data)
    }

    /// Asks for a flush and does not wait for the answer.
    pub(crate) fn send_flush(&mut self) -> io::Result<()> {
        self.send(FLUSH, 0, 0, &[])
    }

    /// Asks for data, and takes only the first byte of the answer.
    pub(crate) fn begin_read(&mut self, offset: u64, len: u32) -> io::Result<()> {
        self.send(READ, offset, len, &[])?;
        self.stream.read_exact(&mut [0])
    }

    /// Whether the server has closed the connection.
    pub(crate) fn is_over(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // An empty set still includes hang-ups.
        poll(&mut [PollFd::new(&self.stream, PollFlags::empty())], Some(&now)) != Ok(0)
    }

    fn send(&mut self, command: u16, offset: u64, len: u32, data: &[u8]) -> io::Result<()> {
        self.handle += 1;
        let mut request = REQUEST_MAGIC.to_be_bytes().to_vec();
        request.extend(0_u16.to_be_bytes());
        request.extend(command.to_be_bytes());
        request.extend(self.handle.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend(len.to_be_bytes());
        request.extend(data);
        self.stream.write_all(&request)
    }

    fn request(&mut self, command: u16, offset: u64, len: u32, data: &[u8]) -> io::Result<()> {
        self.send(command, offset, len, data)?;
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply)?;
        let (head, handle) = reply.split_at(8);
        let expected = [REPLY_MAGIC.to_be_bytes(), [0; 4]].concat();
        if head != expected || handle != self.handle.to_be_bytes() {
            return Err(io::Error::other(format!("the server answers {reply:x?}")));
        }
        Ok(())
    }
}
