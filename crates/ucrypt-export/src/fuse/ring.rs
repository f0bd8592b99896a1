//! A thread that takes requests from the kernel's FUSE rings (Linux 6.14,
//! `Documentation/filesystems/fuse-io-uring.rst`).
//!
//! The kernel keeps a queue of requests for each possible core. A server gives each queue entries:
//! a page for heads and a payload, by address. A request arrives as the completion of an entry,
//! with its head and data in the entry. One command hands over the answer in the entry and makes
//! the entry wait for the next request. The commands go through the engine queue's ring, so one
//! system call submits answers and new work for the backend, and takes the completions of both.
//!
//! Reads are decrypted in the entry's payload, writes are encrypted out of it.
//!
//! Contract:
//! - The kernel owns an entry from the command to its completion; then we own it until the next
//!   command.
//! - The kernel uses no ring before every queue has an entry. If it refuses one, it goes on by
//!   `/dev/fuse` alone; the other entries then wait for ever, which costs nothing.
//! - When the engine's queue breaks, the thread aborts the connection: all users get errors at once.
//! - An error as completion ends an entry: the file is no longer mounted. The thread ends when all
//!   its entries have ended.

#![expect(unsafe_code, reason = "the kernel gets the entries' memory by address")]

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;

use io_uring::squeue::Entry128;
use io_uring::{opcode, types};
use ucrypt_engine::{Buf, Done, Errno, Io, Queue, QueueConfig, Rejected};

use super::abi::{self, ANSWER_LEN, Body, Request, ring};
use super::abort::abort;
use super::device::Device;
use super::file::{Outcome, Success, VolumeFile};
use crate::backlog::Submitter;

/// Bytes of an entry's page. It holds the kernel's structure and, at `VECTORS_AT`, the two vectors
/// that name the entry's memory.
const PAGE_BYTES: usize = 4096;
const VECTORS_AT: usize = 1024;

/// Bytes to read and write before the answers leave: the first clients go on while the thread works
/// on the rest, and decrypted data is still in the cache when the kernel copies it.
const ROUND_BYTES: usize = 256 << 10;

/// Requests of the largest length whose ciphertext a queue has memory for, beside the entries.
pub(super) const WORK_REQUESTS: usize = 1;

/// One entry that the kernel fills with requests.
struct Entry {
    /// Number of the kernel's queue that the entry belongs to.
    queue: u16,
    /// The page for heads.
    page: Buf,
    /// Keeps the payload's memory; its bytes are only used through [`Entry::payload`].
    memory: Arc<Buf>,
    start: NonNull<u8>,
    unique: u64,
    commit: u64,
    success: Success,
}

// SAFETY: `start` points into `memory`, which may be sent to and used on any thread.
unsafe impl Send for Entry {}

impl Entry {
    fn new(queue: u16, request_max: usize, engine: &mut Queue) -> Option<Self> {
        let mut page = engine.alloc(PAGE_BYTES)?;
        page.fill(0);
        let mut memory = engine.alloc(request_max)?;
        let start = NonNull::new(memory.as_mut_ptr())?;
        let head_len = ring::HEADS_LEN as u64;
        let vectors = [page.as_ptr() as u64, head_len, start.as_ptr() as u64, request_max as u64];
        for (place, word) in page[VECTORS_AT..].chunks_exact_mut(8).zip(vectors) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        let memory = Arc::new(memory);
        Some(Self { queue, page, memory, start, unique: 0, commit: 0, success: Success::Nothing })
    }

    /// The first `len` bytes of the payload. Only one such buffer may exist at a time, and only
    /// while we own the entry.
    fn payload(&self, len: usize) -> Buf {
        assert!(len <= self.memory.len());
        // SAFETY: `memory` keeps the bytes mapped, is itself never dereferenced, and is a whole
        // allocation of this entry.
        unsafe { Buf::foreign(self.memory.clone(), self.start, len) }
    }

    /// Puts a structure into the payload; returns its length.
    fn put(&self, body: &Body) -> usize {
        let len = body.bytes().len();
        self.payload(len).copy_from_slice(body.bytes());
        len
    }
}

pub(super) struct Ring {
    file: Arc<VolumeFile>,
    // Before `device`: its ring holds commands that name the descriptor by its number.
    queue: Queue,
    device: Device,
    entries: Vec<Entry>,
    /// Number of entries that have not ended.
    live: usize,
    /// Bytes of the reads and writes of this round of the loop.
    round_bytes: usize,
    /// Requests for which the engine had no room, by entry.
    backlog: VecDeque<(usize, Outcome)>,
    /// Hands one payload to the engine; kept to avoid an allocation for each request.
    pieces: Vec<Buf>,
}

impl Ring {
    /// Creates a thread's share: `each` entries in every one of the kernel's `queues`, for requests
    /// of up to `request_max` bytes.
    ///
    /// # Errors
    /// The system's, where io_uring is missing or forbidden.
    pub(super) fn new(
        file: Arc<VolumeFile>,
        device: Device,
        queues: &[u16],
        each: usize,
        request_max: usize,
    ) -> io::Result<Self> {
        let count = each * queues.len();
        // Runs of pages are powers of two: the pages of heads need a run of their own.
        let heads = (count * PAGE_BYTES).next_multiple_of(request_max);
        let memory = heads + (count + WORK_REQUESTS) * request_max;
        let config = QueueConfig { memory, request_max: 2 * request_max, depth: count as u32 };
        let mut queue = file.volume.queue_with_ring(config, count as u32)?;
        let mut entries = Vec::with_capacity(count);
        for &number in queues {
            for _ in 0..each {
                entries.push(Entry::new(number, request_max, &mut queue).ok_or(Errno::NOMEM)?);
            }
        }
        Ok(Self {
            file,
            queue,
            device,
            live: count,
            round_bytes: 0,
            backlog: VecDeque::with_capacity(count),
            pieces: Vec::with_capacity(1),
            entries,
        })
    }

    /// Gives the kernel all entries, from the thread that will serve them. Returns whether it
    /// takes them.
    pub(super) fn register(&mut self) -> bool {
        for index in 0..self.entries.len() {
            self.command(index, ring::REGISTER, 0);
        }
        // All entries are alike: if there is a problem, the kernel reports it at once.
        let submitted = self.queue.poll().is_ok();
        self.take_completions();
        submitted && self.live == self.entries.len()
    }

    /// Serves until the file is no longer mounted.
    pub(super) fn run(mut self) {
        while self.live > 0 || self.queue.in_flight() > 0 {
            self.submit_waiting();
            self.take_completions();
            // Either submits the answers of the last round, too. A lone request so takes two system
            // calls: one that hands it to the backend and sleeps until it is done, and one that answers
            // it and sleeps until the next one comes.
            let more = self.round_bytes >= ROUND_BYTES;
            let went_on = if more { self.queue.poll() } else { self.queue.wait() };
            if went_on.is_err() {
                // Without a ring there is no way to answer any more. If the connection cannot be
                // aborted, its requests wait until the file is unmounted.
                let _ = abort(&self.device);
                return;
            }
            self.answer_done();
        }
    }

    /// Hands an entry to the kernel.
    fn command(&mut self, index: usize, operation: u32, commit: u64) {
        let Entry { queue, page, .. } = &self.entries[index];
        let vectors = &page[VECTORS_AT..];
        let entry = opcode::UringCmd80::new(types::Fd(self.device.as_raw_fd()), operation)
            .cmd(ring::command(commit, *queue))
            .addr(Some(vectors.as_ptr() as u64))
            .build();
        let entry = with_length(entry, 2).user_data(index as u64);
        let Some(mut ring) = self.queue.ring() else { return };
        // SAFETY: the vectors lie in the entry's page, and name it and its payload. Until the
        // completion nobody here uses either, and `drop` leaks them if there is none.
        unsafe { ring.push(entry) };
    }

    /// Takes requests and ended entries, up to the bytes of a round.
    fn take_completions(&mut self) {
        self.round_bytes = 0;
        while self.round_bytes < ROUND_BYTES
            && let Some(completion) = self.queue.ring().and_then(|mut ring| ring.next())
        {
            if completion.result < 0 {
                self.live -= 1;
            } else if let Ok(index) = usize::try_from(completion.user_data) {
                self.take_request(index);
            }
        }
    }

    fn take_request(&mut self, index: usize) {
        let entry = &mut self.entries[index];
        let Some(request) = ring::parse(&entry.page) else {
            // The answer must repeat what the kernel has just written to identify the entry:
            // without that, the entry is lost.
            self.live -= 1;
            return;
        };
        let ring::Arrived { head, arguments, commit, payload } = request;
        (entry.unique, entry.commit) = (head.unique, commit);
        let outcome = match Request::parse(head.opcode, arguments) {
            // Only the loop driver's writes are searched for zeroes, and they do not come by rings.
            Ok(request) => self.file.take(request, payload, || false),
            Err(error) => Outcome::Now(Err(error)),
        };
        if let Outcome::Read { len, .. } | Outcome::Write { len, .. } = outcome {
            self.round_bytes += len;
        }
        self.submit((index, outcome));
    }

    /// Answers what the engine has completed.
    fn answer_done(&mut self) {
        while let Some(Done { tag, result, .. }) = self.queue.next_done() {
            let index = tag as usize;
            let entry = &self.entries[index];
            let result = result.and_then(|()| match entry.success {
                Success::Nothing => Ok(0),
                Success::Data(len) => Ok(len),
                Success::Written(len) => Ok(entry.put(&Body::written(len))),
                Success::Refused => Err(Errno::OPNOTSUPP),
            });
            self.answer(index, result);
        }
    }

    /// Answers a request, with an error or that many bytes of the payload, and makes its entry
    /// wait for the next one.
    fn answer(&mut self, index: usize, result: Result<usize, Errno>) {
        let entry = &mut self.entries[index];
        let (error, len) = match result {
            Ok(len) => (None, len),
            Err(error) => (Some(error), 0),
        };
        let head: [u8; ANSWER_LEN] = abi::answer_head(entry.unique, error, len);
        ring::put_answer(&mut entry.page, &head, len);
        let commit = entry.commit;
        self.command(index, ring::COMMIT_AND_FETCH, commit);
    }
}

impl Submitter for Ring {
    type Request = (usize, Outcome);

    fn backlog(&mut self) -> &mut VecDeque<Self::Request> {
        &mut self.backlog
    }

    fn offer(&mut self, (index, outcome): Self::Request) -> Result<(), Self::Request> {
        let (entry, tag) = (&mut self.entries[index], index as u64);
        let (result, again) = match outcome {
            Outcome::Silent => {
                // The entry has to go back anyhow.
                self.answer(index, Ok(0));
                return Ok(());
            }
            Outcome::Now(result) => {
                let result = result.map(|body| entry.put(&body));
                self.answer(index, result);
                return Ok(());
            }
            Outcome::Read { offset, len } => {
                entry.success = Success::Data(len);
                self.pieces.push(entry.payload(len));
                let read = self.queue.submit(tag, Io::read_into(offset, &mut self.pieces));
                (read.map_err(|rejected| rejected.errno()), Outcome::Read { offset, len })
            }
            Outcome::Write { offset, len, fua } => {
                entry.success = Success::Written(len as u32);
                self.pieces.push(entry.payload(len));
                let io = Io::write_scattered(offset, &mut self.pieces, fua);
                let written = self.queue.submit(tag, io).map_err(|rejected| rejected.errno());
                (written, Outcome::Write { offset, len, fua })
            }
            Outcome::Do { io, refuse } => {
                entry.success = if refuse { Success::Refused } else { Success::Nothing };
                match self.queue.submit(tag, io) {
                    Err(Rejected::Busy(io)) => (Err(None), Outcome::Do { io, refuse }),
                    result => (result.map_err(|rejected| rejected.errno()), Outcome::Silent),
                }
            }
        };
        self.pieces.clear();
        match result {
            Ok(()) => {}
            Err(Some(error)) => self.answer(index, Err(error)),
            Err(None) => return Err((index, again)),
        }
        Ok(())
    }

    fn awaits_room(&self) -> bool {
        self.queue.in_flight() > 0
    }

    fn give_up(&mut self, (index, _): Self::Request) {
        self.queue.given_up();
        self.answer(index, Err(Errno::NOMEM));
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.queue.ring().is_some_and(|ring| ring.under_way() > 0) {
            // The kernel still has the entries' addresses, even if it has no reason to use them.
            std::mem::forget(std::mem::take(&mut self.entries));
        }
    }
}

/// Sets the length field of a command, here the number of vectors, for which there is no builder.
fn with_length(entry: Entry128, len: u32) -> Entry128 {
    /// Of `struct io_uring_sqe`, in bytes.
    const LEN_AT: usize = 24;
    // SAFETY: an entry is plain data of 128 bytes.
    let mut bytes = unsafe { std::mem::transmute::<Entry128, [u8; 128]>(entry) };
    bytes[LEN_AT..LEN_AT + 4].copy_from_slice(&len.to_ne_bytes());
    // SAFETY: as above; every length is a valid one.
    unsafe { std::mem::transmute::<[u8; 128], Entry128>(bytes) }
}
