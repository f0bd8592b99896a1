//! The contenders that run in this process: a target, and the engine over it.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ucrypt_backend::{Backend, Pool, memory};
use ucrypt_engine::{PolicyKind, Segment, Volume, VolumeOptions};

use crate::bounded::{self, Work};
use crate::catalogue::Method;
use crate::contender::Contender;
use crate::counting::Counting;
use crate::load::{self, INTERRUPTED, Load, PATIENCE, Place, SLOW_BYTES_S};
use crate::real::cipher;
use crate::sample::{Own, Sample, Watch};

/// The cipher of all volumes of the lab.
pub const CIPHER: &str = "aes-xts-plain64";

/// The contenders of one experiment over one target. Volumes stay open from cell to cell, as a
/// disk's do: adaptive dispatch has learned what it learns.
pub struct Bench {
    target: Arc<dyn Backend>,
    counting: Option<Arc<Counting>>,
    memory: Option<Arc<dyn Backend>>,
    len: u64,
    null_cipher: bool,
    volumes: HashMap<Contender, Arc<Volume>>,
}

impl Bench {
    /// Over the first `len` bytes of a target.
    pub fn new(target: Arc<dyn Backend>, len: u64, method: Method) -> Self {
        let counting = (method == Method::Order).then(|| Arc::new(Counting::new(target.clone())));
        let null_cipher = method == Method::Slices;
        Self { target, counting, memory: None, len, null_cipher, volumes: HashMap::new() }
    }

    /// Writes every byte of the target once, so that nothing is measured that is not there yet.
    ///
    /// # Errors
    /// If a write fails, or `stop` is set.
    pub fn fill(&self, stop: &AtomicBool, progress: &dyn Fn(u64, u64)) -> io::Result<()> {
        fill(&self.target, self.len, stop, progress)
    }

    /// Measures a contender of this process.
    ///
    /// # Errors
    /// If a request fails, a volume cannot be opened, or `stop` is set.
    pub fn run(
        &mut self,
        contender: Contender,
        load: Load<'_>,
        stop: &AtomicBool,
    ) -> io::Result<Sample> {
        let place = self.place(contender, stop)?;
        if let Some(counting) = &self.counting {
            counting.take();
        }
        let watch = Watch::start(Own::default());
        let sample = load::run(&place, load, stop)?;
        let order = self.counting.as_ref().map(|counting| counting.take());
        let order = order.filter(|order| order.writes > 0 && contender != Contender::Memory);
        Ok(Sample { disturbance: watch.end(), order, ..sample })
    }

    /// The target as contenders see it.
    fn seen(&self) -> Arc<dyn Backend> {
        match &self.counting {
            Some(counting) => counting.clone(),
            None => self.target.clone(),
        }
    }

    fn place(&mut self, contender: Contender, stop: &AtomicBool) -> io::Result<Place> {
        let policy = match contender {
            Contender::Ucrypt(policy) => policy,
            Contender::Null => PolicyKind::Adaptive,
            Contender::Memory => {
                if self.memory.is_none() {
                    let backend: Arc<dyn Backend> = Arc::new(memory(self.len)?);
                    fill(&backend, self.len, stop, &|_, _| {})?;
                    self.memory = Some(backend);
                }
                return Ok(Place::Raw(self.memory.clone().unwrap_or_else(|| self.seen())));
            }
            _ => return Ok(Place::Raw(self.seen())),
        };
        if let Some(volume) = self.volumes.get(&contender) {
            return Ok(Place::Engine(volume.clone()));
        }
        let null = self.null_cipher || contender == Contender::Null;
        let spec = if null { "cipher_null-ecb" } else { CIPHER };
        let segment = Segment { len: self.len, backend_offset: 0, cipher: Some(cipher(spec)?) };
        let options = VolumeOptions { policies: policy.into(), ..VolumeOptions::default() };
        let volume = Volume::new(self.seen(), vec![segment], options).map_err(io::Error::other)?;
        let volume = Arc::new(volume);
        self.volumes.insert(contender, volume.clone());
        Ok(Place::Engine(volume))
    }
}

/// Writes random bytes, the same for each MiB, over the first `len` bytes.
fn fill(
    backend: &Arc<dyn Backend>,
    len: u64,
    stop: &AtomicBool,
    progress: &dyn Fn(u64, u64),
) -> io::Result<()> {
    // Few devices write a file as slowly as that from its start to its end.
    let limit = PATIENCE + Duration::from_secs(4 * len / SLOW_BYTES_S);
    let done = Arc::new(AtomicU64::new(0));
    let (backend, written) = (backend.clone(), done.clone());
    let work: Work<()> = Box::new(move |stop| write_all(backend.as_ref(), len, stop, &written));
    let look = || progress(done.load(Ordering::Relaxed).min(len), len);
    bounded::carry_out(vec![work], limit, stop, &look).map(drop)
}

/// See [`fill`]. `done` gets the bytes that were begun.
fn write_all(
    backend: &dyn Backend,
    len: u64,
    stop: &AtomicBool,
    done: &AtomicU64,
) -> io::Result<()> {
    const PIECE: u64 = 1 << 20;
    const DEPTH: u32 = 8;
    let mut queue = backend.queue(DEPTH)?;
    let pool = Pool::new(DEPTH as usize * PIECE as usize)?;
    let mut free: Vec<_> = (0..DEPTH).filter_map(|_| pool.alloc(PIECE as usize)).collect();
    let mut random = fastrand::Rng::with_seed(1);
    for buf in &mut free {
        random.fill(buf);
    }
    let (mut next, mut answers) = (0, Vec::new());
    while next < len || free.len() < DEPTH as usize {
        if stop.load(Ordering::Relaxed) {
            return Err(io::Error::new(io::ErrorKind::Interrupted, INTERRUPTED));
        }
        while next < len
            && let Some(mut buf) = free.pop()
        {
            buf.truncate((len - next).min(PIECE) as usize);
            let bufs = vec![buf];
            queue.submit(ucrypt_backend::Io::Write { token: next, offset: next, bufs, fua: false });
            next += PIECE;
        }
        queue.wait(&mut answers)?;
        for answer in answers.drain(..) {
            answer.result?;
            free.extend(answer.bufs);
        }
        done.store(next, Ordering::Relaxed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{Scale, by_name};
    use crate::load::Times;

    #[test]
    fn every_contender_of_this_process_measures_and_the_order_of_writes_is_counted() {
        let len = 16 << 20;
        let go = AtomicBool::new(false);
        let description = by_name("sorted-writes").expect("an experiment");
        let cell = &description.cells(Scale::Quick)[0];
        let target = Arc::new(memory(len).expect("memory"));
        let mut bench = Bench::new(target, len, description.method);
        bench.fill(&go, &|done, all| assert!(done <= all)).expect("filled");
        let times = Times { ramp: Duration::ZERO, measured: Duration::ZERO };
        let requests = Some(64);
        let load = Load { cell, region_bytes: len, times, slices: false, seed: 1, requests };
        let contenders =
            crate::contender::list(&format!("raw,null,{}", description.against.join(",")));
        for contender in contenders.expect("contenders") {
            let sample = bench.run(contender, load, &go).expect("a run");
            let order = sample.order.expect("counted");
            assert_eq!(order.bytes, 64 * cell.block_bytes, "{contender}");
            let sorted = !contender.to_string().ends_with("unsorted");
            // The first write continues nothing, and the second lap begins again.
            let breaks = order.writes - order.continued;
            assert!(!sorted || breaks <= 2, "{contender}: {breaks} breaks of {}", order.writes);
        }
        let sample = bench.run(Contender::Memory, load, &go).expect("a run");
        assert!(sample.order.is_none() && sample.requests == 64);
    }
}
