//! Cells of the grid in real time: the engine over a disk, driven in process.
//!
//! One thread is client and queue: it keeps the cell's depth in flight, as the simulator's clients
//! do, and serves its own requests. [`Bench::new`] takes a model for a disk, which is memory with
//! the model's timing, and slows the cipher down to the grid's: the run measures what the simulator
//! computes for the same cell, on the cores of this machine. [`Bench::over`] takes any backend.

use std::io;
use std::str::FromStr as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ucrypt_backend::Backend;
use ucrypt_backend::model::{ModelBackend, Profile};
use ucrypt_engine::{
    CipherModel, Io, PolicyKind, Queue, QueueConfig, Rejected, Segment, Stats, Volume,
    VolumeOptions,
};
use ucrypt_sector::{CipherSpec, SectorCipher, SectorOptions};

use crate::client::{Request, Requests};
use crate::experiment::SECTOR_BYTES;
use crate::{Job, Pattern};

/// Bytes of a disk, all of which are accessed. All are written before anything is measured, so that
/// the memory is allocated.
pub const DISK_BYTES: u64 = 512 << 20;

/// Bytes of buffers.
const MEMORY_BYTES: usize = 160 << 20;

/// The result of one run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Bytes per microsecond, i.e. MB/s.
    pub mb_s: f64,
    /// 99 % of the requests took at most this.
    pub p99_ns: u64,
    /// Decisions of the machine.
    pub stats: Stats,
}

/// A disk, and a volume on it for each policy.
pub struct Bench {
    volumes: Vec<(PolicyKind, Arc<Volume>)>,
    cipher: CipherModel,
}

impl Bench {
    /// A fresh disk of that model, with every byte written.
    ///
    /// # Errors
    /// If there is not enough memory, or a volume cannot be opened.
    pub fn new(device: &Profile, cipher: CipherModel, policies: &[PolicyKind]) -> io::Result<Self> {
        let backend = ModelBackend::new(device.name, DISK_BYTES).map_err(io::Error::other)?;
        Self::over(&(Arc::new(backend) as Arc<dyn Backend>), AES, Some(cipher), policies)
    }

    /// Volumes with the cipher `spec`, as in `aes-xts-plain64`, and a key of 64 bytes, over one
    /// backend of [`DISK_BYTES`]. Writes every byte.
    ///
    /// # Errors
    /// If a volume cannot be opened, or a write fails.
    pub fn over(
        backend: &Arc<dyn Backend>,
        spec: &str,
        model: Option<CipherModel>,
        policies: &[PolicyKind],
    ) -> io::Result<Self> {
        let volume = |&policy: &PolicyKind| -> io::Result<_> {
            let options = VolumeOptions {
                policies: policy.into(),
                cipher_model: model,
                ..VolumeOptions::default()
            };
            let segment =
                Segment { len: DISK_BYTES, backend_offset: 0, cipher: Some(cipher(spec)?) };
            let volume = Volume::new(backend.clone(), vec![segment], options);
            Ok((policy, Arc::new(volume.map_err(io::Error::other)?)))
        };
        let volumes = policies.iter().map(volume).collect::<io::Result<Vec<_>>>()?;
        let model = model.unwrap_or(CipherModel { ns_per_byte: 0.0, ns_per_call: 0 });
        let ns_per_byte = model.ns_per_byte.max(ns_per_byte(spec)?);
        let bench = Self { volumes, cipher: CipherModel { ns_per_byte, ..model } };
        bench.fill()?;
        Ok(bench)
    }

    /// The cipher of the volumes: the requested one, or this core's if that is slower.
    pub fn cipher(&self) -> CipherModel {
        self.cipher
    }

    /// Writes the whole disk once.
    fn fill(&self) -> io::Result<()> {
        let Some((_, volume)) = self.volumes.first() else { return Ok(()) };
        let block_bytes = 1 << 20;
        let job = Job {
            pattern: Pattern::Write,
            block_bytes,
            depth: 16,
            requests: DISK_BYTES / block_bytes,
            region_bytes: DISK_BYTES,
        };
        let mut run = Run::new(volume, job, 1)?;
        run.go(Duration::MAX)
    }

    /// Runs a job under a policy for `time`. The first half is not measured: a volume takes this
    /// long to see which cores are free. `seed` determines the offsets of random requests.
    ///
    /// # Errors
    /// If a request fails.
    ///
    /// # Panics
    /// If the bench was made without that policy.
    pub fn run(
        &self,
        policy: PolicyKind,
        job: Job,
        time: Duration,
        seed: u64,
    ) -> io::Result<Sample> {
        let volume = self.volumes.iter().find(|(of, _)| *of == policy);
        let (_, volume) = volume.expect("a policy of this bench");
        let mut run = Run::new(volume, Job { requests: u64::MAX, ..job }, seed)?;
        run.go(time / 2)?;
        run.latencies_ns.clear();
        run.go(time / 2)?;
        let stats = volume.decisions().first().map_or_else(Stats::default, |of| of.stats);
        Ok(run.sample(stats))
    }
}

/// The cipher of device models.
const AES: &str = "aes-xts-plain64";

/// A cipher with a fixed key that is not secret.
pub(crate) fn cipher(spec: &str) -> io::Result<SectorCipher> {
    let spec = CipherSpec::from_str(spec).map_err(io::Error::other)?;
    let key: Vec<u8> = (0..64).collect();
    let options =
        SectorOptions { sector_size: SECTOR_BYTES, iv_offset: 0, iv_large_sectors: false };
    SectorCipher::new(&spec, &key, options).map_err(io::Error::other)
}

/// Time of a cipher on this core, the fastest of a few rounds.
fn ns_per_byte(spec: &str) -> io::Result<f64> {
    const BYTES: usize = 64 << 10;
    const ROUNDS: u32 = 64;
    let (cipher, mut data) = (cipher(spec)?, vec![0; BYTES]);
    let rounds = (0..ROUNDS).map(|_| {
        let started = Instant::now();
        cipher.decrypt_in_place(0, &mut data).map(|()| started.elapsed())
    });
    let rounds = rounds.collect::<Result<Vec<_>, _>>().map_err(io::Error::other)?;
    let least = rounds.into_iter().min().unwrap_or_default();
    Ok(least.as_nanos() as f64 / BYTES as f64)
}

/// A queue and its clients.
struct Run {
    queue: Queue,
    requests: Requests,
    job: Job,
    /// When the request of each tag was sent.
    sent: Vec<Instant>,
    free: Vec<u64>,
    latencies_ns: Vec<u64>,
    /// The client's own memory, to which reads are copied.
    taken: Vec<u8>,
}

impl Run {
    fn new(volume: &Arc<Volume>, job: Job, seed: u64) -> io::Result<Self> {
        let mut queue = volume.queue(QueueConfig::new(MEMORY_BYTES, job.depth))?;
        queue.set_clients_here(true);
        Ok(Self {
            queue,
            requests: Requests::new(job, (0, 1), seed),
            job,
            sent: vec![Instant::now(); job.depth as usize],
            free: (0..u64::from(job.depth)).rev().collect(),
            latencies_ns: Vec::with_capacity(1 << 20),
            taken: vec![0; job.block_bytes as usize],
        })
    }

    /// Keeps the depth for `time`, or until the job is done.
    fn go(&mut self, time: Duration) -> io::Result<()> {
        let started = Instant::now();
        let mut now = started;
        loop {
            while let Some(tag) = self.free.pop() {
                let over = now - started >= time;
                let Some(request) = (!over).then(|| self.requests.next()).flatten() else {
                    self.free.push(tag);
                    break;
                };
                self.sent[tag as usize] = now;
                self.submit(tag, request)?;
            }
            if self.free.len() == self.job.depth as usize {
                return Ok(());
            }
            self.queue.wait()?;
            now = Instant::now();
            while let Some(done) = self.queue.next_done() {
                done.result?;
                // A client reads its data, from whichever cache it is in.
                if let Some(data) = &done.data {
                    self.taken[..data.len()].copy_from_slice(data);
                }
                let took = now - self.sent[done.tag as usize];
                self.latencies_ns.push(took.as_nanos() as u64);
                self.free.push(done.tag);
            }
        }
    }

    fn submit(&mut self, tag: u64, Request { is_read, offset }: Request) -> io::Result<()> {
        let len = self.job.block_bytes as usize;
        let op = if is_read {
            Io::read(offset, len)
        } else {
            let data = self.queue.alloc(len).ok_or_else(|| io::Error::other("too few buffers"))?;
            Io::write(offset, data, false)
        };
        let refused = |rejected: Rejected| io::Error::other(format!("{rejected:?}"));
        self.queue.submit(tag, op).map_err(refused)
    }

    /// The result, computed from the depth and the latencies as in the simulator (Little's law).
    fn sample(mut self, stats: Stats) -> Sample {
        let bytes = self.job.block_bytes * u64::from(self.job.depth);
        let sum: u64 = self.latencies_ns.iter().sum();
        let mb_s = bytes as f64 * 1000.0 * self.latencies_ns.len() as f64 / sum.max(1) as f64;
        self.latencies_ns.sort_unstable();
        let last = self.latencies_ns.len().saturating_sub(1);
        let p99_ns = self.latencies_ns.get(last * 99 / 100).copied().unwrap_or(0);
        Sample { mb_s, p99_ns, stats }
    }
}
