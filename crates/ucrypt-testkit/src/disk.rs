//! A port to a file or block device of this machine: system calls with direct I/O, made by several
//! threads to keep several in flight.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::io::ReadWriteFlags;
use ucrypt_backend::{Errno, Pool};

use crate::client::{Client, Plan, Watchdog};
use crate::model::Tag;
use crate::operation::{Kind, Operation, Shape};
use crate::port::{Completion, Port, Submitted};

/// Ports of [`transfers_at_once`], and the threads of each.
const PORTS: usize = 3;
const THREADS: usize = 4;

/// Runs a client of several ports, each with several threads, on the same bytes of the disk at
/// `path`. Of `plan`, the mix of operations, the longest write of zeroes, the depth and the watchdog
/// are replaced. Returns the client, whose model tells what the disk may hold now.
///
/// # Panics
/// If the disk can't be opened, or does not behave as a disk must.
pub fn transfers_at_once(path: &Path, plan: Plan) -> Client {
    let shape = Shape { mix: [35, 45, 10, 0, 10], zeroes_max: 4 << 20, ..plan.shape };
    let transfer_max = shape.transfer_max as usize;
    let watchdog = Watchdog::Time(Duration::from_secs(30));
    let mut client = Client::new(Plan { shape, depth: 2 * THREADS, watchdog, ..plan }, PORTS);
    let mut ports: Vec<Box<dyn Port>> = (0..PORTS)
        .map(|_| {
            let port = DiskPort::open(path, THREADS, transfer_max);
            Box::new(port.expect("it opens")) as Box<dyn Port>
        })
        .collect();
    let report = client.run(&mut ports).unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!((report.failed, report.refused), (0, 0), "requests that failed, or were refused");
    client
}

struct Job {
    tag: Tag,
    operation: Operation,
    data: Vec<u8>,
}

/// See the module's comment. Transfers have to be multiples of the disk's sectors. Discards are
/// refused, and nothing can be cancelled.
pub struct DiskPort {
    /// `None` when the port is dropped.
    jobs: Option<Sender<Job>>,
    answers: Receiver<Completion>,
    threads: Vec<JoinHandle<()>>,
    under_way: usize,
    transfer_max: usize,
}

impl DiskPort {
    /// Opens the disk for `threads` concurrent transfers of up to `transfer_max` bytes.
    ///
    /// # Errors
    /// If the disk can't be opened, or there is no memory.
    pub fn open(path: &Path, threads: usize, transfer_max: usize) -> io::Result<Self> {
        let (jobs, queue) = channel();
        let (answer, answers) = channel();
        let queue = Arc::new(Mutex::new(queue));
        let threads = (0..threads)
            .map(|_| {
                let flags = OFlags::DIRECT.bits().cast_signed();
                let mut options = OpenOptions::new();
                let file = options.read(true).write(true).custom_flags(flags).open(path)?;
                let memory = Pool::new(transfer_max)?;
                let (queue, answer) = (queue.clone(), answer.clone());
                Ok(std::thread::spawn(move || work(&file, &memory, &queue, &answer)))
            })
            .collect::<io::Result<Vec<_>>>()?;
        Ok(Self { jobs: Some(jobs), answers, threads, under_way: 0, transfer_max })
    }
}

/// Serves jobs until the port is dropped.
fn work(file: &File, memory: &Pool, queue: &Mutex<Receiver<Job>>, answer: &Sender<Completion>) {
    loop {
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Job { tag, operation, data }) = job else { return };
        let done = carry_out(file, memory, &operation, &data);
        let result = done
            .as_ref()
            .map(|_| ())
            .map_err(|error| Errno::from_io_error(error).unwrap_or(Errno::IO));
        // The port may be gone already, after a failure.
        let _ = answer.send(Completion { tag, result, data: done.ok().flatten() });
    }
}

fn carry_out(
    file: &File,
    memory: &Pool,
    operation: &Operation,
    data: &[u8],
) -> io::Result<Option<Vec<u8>>> {
    let Operation { kind, offset, len } = *operation;
    let buffer = |len: usize| memory.alloc(len).ok_or(io::ErrorKind::OutOfMemory);
    match kind {
        Kind::Read => {
            let mut buf = buffer(len as usize)?;
            file.read_exact_at(&mut buf, offset)?;
            return Ok(Some(buf.to_vec()));
        }
        Kind::Write { fua } => {
            let mut buf = buffer(data.len())?;
            buf.copy_from_slice(data);
            let mut written = 0;
            while written < buf.len() {
                let flags = if fua { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
                let rest = [io::IoSlice::new(&buf[written..])];
                match rustix::io::pwritev2(file, &rest, offset + written as u64, flags)? {
                    0 => return Err(io::ErrorKind::WriteZero.into()),
                    more => written += more,
                }
            }
        }
        Kind::WriteZeroes { fua } => {
            let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
            fallocate(file, flags, offset, len)?;
            if fua {
                file.sync_data()?;
            }
        }
        Kind::Flush => file.sync_data()?,
        Kind::Discard => return Err(Errno::OPNOTSUPP.into()),
    }
    Ok(None)
}

impl Port for DiskPort {
    fn submit(&mut self, tag: Tag, operation: &Operation, data: &[u8]) -> Submitted {
        let transfers = matches!(operation.kind, Kind::Read | Kind::Write { .. });
        let fits = !transfers || operation.len <= self.transfer_max as u64;
        if operation.kind == Kind::Discard || !fits {
            return Submitted::Refused;
        }
        let job = Job { tag, operation: *operation, data: data.to_vec() };
        match self.jobs.as_ref().map(|jobs| jobs.send(job)) {
            Some(Ok(())) => {
                self.under_way += 1;
                Submitted::Accepted
            }
            _ => Submitted::Refused,
        }
    }

    fn poll(&mut self, wait: bool, done: &mut Vec<Completion>) -> io::Result<()> {
        let before = done.len();
        if wait {
            match self.answers.recv_timeout(Duration::from_millis(20)) {
                Ok(completion) => done.push(completion),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(io::ErrorKind::BrokenPipe.into()),
            }
        }
        loop {
            match self.answers.try_recv() {
                Ok(completion) => done.push(completion),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Err(io::ErrorKind::BrokenPipe.into()),
            }
        }
        self.under_way -= done.len() - before;
        Ok(())
    }

    fn cancel(&mut self, _tag: Tag) {}

    fn describe(&self) -> String {
        format!("{} system calls are under way", self.under_way)
    }
}

impl Drop for DiskPort {
    fn drop(&mut self) {
        self.jobs = None;
        // A thread in a system call that does not return must not keep the test from failing.
        if self.under_way == 0 {
            for thread in self.threads.drain(..) {
                // The thread does not panic.
                let _ = thread.join();
            }
        }
    }
}
