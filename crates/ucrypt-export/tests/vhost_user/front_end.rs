//! A front end: the messages of the vhost-user protocol, right or wrong, and a guest's memory.

use std::fs::File;
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap, GuestRegionMmap};

/// Numbers of the protocol's messages.
pub(crate) mod message {
    pub(crate) const GET_FEATURES: u32 = 1;
    pub(crate) const SET_FEATURES: u32 = 2;
    pub(crate) const SET_OWNER: u32 = 3;
    pub(crate) const SET_MEM_TABLE: u32 = 5;
    pub(crate) const SET_VRING_NUM: u32 = 8;
    pub(crate) const SET_VRING_ADDR: u32 = 9;
    pub(crate) const SET_VRING_BASE: u32 = 10;
    pub(crate) const GET_VRING_BASE: u32 = 11;
    pub(crate) const SET_VRING_KICK: u32 = 12;
    pub(crate) const SET_VRING_CALL: u32 = 13;
    pub(crate) const SET_VRING_ERR: u32 = 14;
    pub(crate) const GET_PROTOCOL_FEATURES: u32 = 15;
    pub(crate) const SET_PROTOCOL_FEATURES: u32 = 16;
    pub(crate) const GET_QUEUE_NUM: u32 = 17;
    pub(crate) const SET_VRING_ENABLE: u32 = 18;
    pub(crate) const GET_CONFIG: u32 = 24;
    pub(crate) const SET_CONFIG: u32 = 25;
    pub(crate) const GET_INFLIGHT_FD: u32 = 31;
    pub(crate) const SET_INFLIGHT_FD: u32 = 32;
    pub(crate) const GET_MAX_MEM_SLOTS: u32 = 36;
    pub(crate) const ADD_MEM_REG: u32 = 37;
    pub(crate) const REM_MEM_REG: u32 = 38;
}

/// Bits of a message's flags: the protocol's version, and the wish for an answer.
const VERSION: u32 = 1;
const NEED_REPLY: u32 = 8;

/// Where the front end "has mapped" the guest's address 0.
pub(crate) const USER_BASE: u64 = 0x7f00_0000_0000;

/// Regions of the guest's memory: address and bytes. The second follows the first.
pub(crate) const REGIONS: [(u64, u64); 3] = [(0, 1 << 20), (1 << 20, 7 << 20), (1 << 32, 8 << 20)];

/// Memory of a guest, on the side of its front end.
pub(crate) struct Memory {
    pub(crate) map: GuestMemoryMmap,
    /// Address and bytes of each.
    pub(crate) regions: Vec<(u64, u64)>,
    pub(crate) files: Vec<File>,
}

impl Memory {
    pub(crate) fn new() -> Self {
        Self::with(&REGIONS)
    }

    pub(crate) fn with(regions: &[(u64, u64)]) -> Self {
        let (mut mapped, mut files) = (Vec::new(), Vec::new());
        for &(at, len) in regions {
            let file = memfd(len);
            let offset = FileOffset::new(file.try_clone().expect("a file"), 0);
            let region = GuestRegionMmap::from_range(GuestAddress(at), len as usize, Some(offset));
            mapped.push(region.expect("mapped"));
            files.push(file);
        }
        let map = GuestMemoryMmap::from_regions(mapped).expect("a map");
        Self { map, regions: regions.to_vec(), files }
    }
}

pub(crate) fn memfd(len: u64) -> File {
    let fd = memfd_create("guest", MemfdFlags::CLOEXEC).expect("a memfd");
    ftruncate(&fd, len).expect("as long as that");
    File::from(fd)
}

pub(crate) fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an event")
}

/// The connection.
pub(crate) struct FrontEnd {
    stream: UnixStream,
}

/// The server has closed the connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Closed;

impl FrontEnd {
    pub(crate) fn connect(path: &Path) -> Self {
        let stream = UnixStream::connect(path).expect("connected");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
        Self { stream }
    }

    /// Connects and negotiates all features but `without`.
    pub(crate) fn negotiated(path: &Path, without: u64) -> Self {
        let mut front_end = Self::connect(path);
        let features = front_end.ask_u64(message::GET_FEATURES) & !without;
        front_end.tell(message::SET_OWNER, &[]);
        let protocol = front_end.ask_u64(message::GET_PROTOCOL_FEATURES);
        front_end.tell(message::SET_PROTOCOL_FEATURES, &protocol.to_le_bytes());
        front_end.order(message::SET_FEATURES, &features.to_le_bytes(), &[]).expect("accepted");
        front_end
    }

    /// From now on sending fails where it would have to wait.
    pub(crate) fn set_nonblocking(&mut self) {
        self.stream.set_nonblocking(true).expect("a socket");
    }

    pub(crate) fn send_raw(&mut self, bytes: &[u8], fds: &[&dyn AsFd]) -> Result<(), Closed> {
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(40))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)), "room for descriptors");
        }
        let bytes = [IoSlice::new(bytes)];
        sendmsg(&self.stream, &bytes, &mut ancillary, SendFlags::NOSIGNAL)
            .map(drop)
            .map_err(|_| Closed)
    }

    /// Sends a message without waiting for anything.
    pub(crate) fn send(
        &mut self,
        code: u32,
        flags: u32,
        body: &[u8],
        fds: &[&dyn AsFd],
    ) -> Result<(), Closed> {
        let mut bytes = Vec::new();
        for word in [code, VERSION | flags, body.len() as u32] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(body);
        self.send_raw(&bytes, fds)
    }

    /// An answer's body.
    pub(crate) fn receive(&mut self) -> Result<Vec<u8>, Closed> {
        let mut header = [0; 12];
        self.stream.read_exact(&mut header).map_err(|_| Closed)?;
        let len = u32::from_le_bytes(header[8..].try_into().expect("four bytes"));
        let mut body = vec![0; len as usize];
        self.stream.read_exact(&mut body).map_err(|_| Closed)?;
        Ok(body)
    }

    /// A message that is not answered.
    pub(crate) fn tell(&mut self, code: u32, body: &[u8]) {
        self.send(code, 0, body, &[]).expect("sent");
    }

    /// A message whose success is acknowledged; fails if the server says so, or closes.
    pub(crate) fn order(
        &mut self,
        code: u32,
        body: &[u8],
        fds: &[&dyn AsFd],
    ) -> Result<(), Closed> {
        self.send(code, NEED_REPLY, body, fds)?;
        let answer = self.receive()?;
        if answer == [0; 8] { Ok(()) } else { Err(Closed) }
    }

    pub(crate) fn ask(&mut self, code: u32, body: &[u8]) -> Result<Vec<u8>, Closed> {
        self.send(code, 0, body, &[])?;
        self.receive()
    }

    pub(crate) fn ask_u64(&mut self, code: u32) -> u64 {
        let answer = self.ask(code, &[]).expect("an answer");
        u64::from_le_bytes(answer.try_into().expect("eight bytes"))
    }

    pub(crate) fn set_memory(&mut self, memory: &Memory) {
        let table: Vec<u64> =
            memory.regions.iter().flat_map(|&(at, len)| [at, len, USER_BASE + at, 0]).collect();
        let files: Vec<&dyn AsFd> = memory.files.iter().map(|file| file as &dyn AsFd).collect();
        self.set_table(memory.regions.len() as u32, &table, &files).expect("accepted");
    }

    /// `table`: address, length, front end's address and offset in the file of each region.
    pub(crate) fn set_table(
        &mut self,
        regions: u32,
        table: &[u64],
        files: &[&dyn AsFd],
    ) -> Result<(), Closed> {
        let mut body = [regions.to_le_bytes(), [0; 4]].concat();
        for word in table {
            body.extend(word.to_le_bytes());
        }
        self.order(message::SET_MEM_TABLE, &body, files)
    }

    /// Removes a region.
    pub(crate) fn remove_region(&mut self, memory: &Memory, number: usize) {
        let (at, len) = memory.regions[number];
        self.order(message::REM_MEM_REG, &region(at, len), &[]).expect("removed");
    }

    pub(crate) fn add_region(&mut self, memory: &Memory, number: usize) {
        let (at, len) = memory.regions[number];
        let file = &memory.files[number];
        self.order(message::ADD_MEM_REG, &region(at, len), &[file]).expect("added");
    }

    /// A message about a ring: the ring's number and one more word.
    pub(crate) fn ring_word(&mut self, code: u32, ring: u32, word: u32) -> Result<(), Closed> {
        self.order(code, &words(&[ring, word]), &[])
    }

    /// Tells where a ring is, by the guest's addresses.
    pub(crate) fn ring_addresses(
        &mut self,
        ring: u32,
        descriptors: u64,
        used: u64,
        available: u64,
    ) -> Result<(), Closed> {
        let mut body = words(&[ring, 0]);
        for at in [USER_BASE + descriptors, USER_BASE + used, USER_BASE + available, 0] {
            body.extend(at.to_le_bytes());
        }
        self.order(message::SET_VRING_ADDR, &body, &[])
    }

    /// A message with an event of a ring.
    pub(crate) fn ring_event(
        &mut self,
        code: u32,
        ring: u64,
        event: &dyn AsFd,
    ) -> Result<(), Closed> {
        self.order(code, &ring.to_le_bytes(), &[event])
    }

    /// Stops a ring. Returns where it has stopped.
    pub(crate) fn stop_ring(&mut self, ring: u32) -> Result<u32, Closed> {
        let answer = self.ask(message::GET_VRING_BASE, &words(&[ring, 0]))?;
        Ok(u32::from_le_bytes(answer[4..8].try_into().expect("four bytes")))
    }

    /// `len` bytes of the configuration space from `at`.
    pub(crate) fn config(&mut self, at: u32, len: u32) -> Result<Vec<u8>, Closed> {
        let mut body = words(&[at, len, 0]);
        body.resize(12 + len as usize, 0);
        let answer = self.ask(message::GET_CONFIG, &body)?;
        Ok(answer[12..].to_vec())
    }

    pub(crate) fn set_config(&mut self, at: u32, bytes: &[u8]) -> Result<(), Closed> {
        let mut body = words(&[at, bytes.len() as u32, 0]);
        body.extend(bytes);
        self.order(message::SET_CONFIG, &body, &[])
    }

    /// An area for requests in flight: its description, and the file.
    pub(crate) fn get_inflight(
        &mut self,
        rings: u16,
        size: u16,
    ) -> Result<(Vec<u8>, OwnedFd), Closed> {
        let mut body = vec![0; 16];
        body.extend(rings.to_le_bytes());
        body.extend(size.to_le_bytes());
        body.extend([0; 4]);
        self.send(message::GET_INFLIGHT_FD, 0, &body, &[])?;
        let mut header = [0; 12];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = rustix::net::RecvAncillaryBuffer::new(&mut space);
        let mut parts = [std::io::IoSliceMut::new(&mut header)];
        let flags = rustix::net::RecvFlags::CMSG_CLOEXEC;
        let got = rustix::net::recvmsg(&self.stream, &mut parts, &mut ancillary, flags);
        if got.map_or(0, |got| got.bytes) != 12 {
            return Err(Closed);
        }
        let fd = ancillary.drain().find_map(|message| match message {
            rustix::net::RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        let len = u32::from_le_bytes(header[8..].try_into().expect("four bytes"));
        let mut description = vec![0; len as usize];
        self.stream.read_exact(&mut description).map_err(|_| Closed)?;
        Ok((description, fd.expect("a file came along")))
    }
}

pub(crate) fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The description of one region, by the guest's address and its bytes.
fn region(at: u64, len: u64) -> Vec<u8> {
    let words = [0, at, len, USER_BASE + at, 0];
    words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect()
}
