//! The disk: a device's timing, its content, and the faults of the plan.

use ucrypt_backend::model::Device;
use ucrypt_dispatch::{ChunkId, StoreKind};

use super::content::{Content, Piece};
use super::device::answer_ns;
use super::experiment::{Experiment, Faults};
use super::judge::Version;
use super::random::Random;

/// What an operation failed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The plan said so.
    Planned,
    /// The device does not take such an operation there.
    Refused,
    /// It did not fail: its client gave the request up.
    Cancelled,
}

/// An operation under way.
#[derive(Debug)]
struct Operation {
    queue: usize,
    chunk: ChunkId,
    kind: StoreKind,
    /// What is written, or where is read.
    pieces: Vec<Piece>,
    /// What a flush covers.
    mark: u64,
    /// What a read found, if it looked when it was submitted.
    found: Option<Vec<(u64, Version)>>,
    failure: Option<Failure>,
}

/// The disk's word on an operation.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) queue: usize,
    pub(crate) chunk: ChunkId,
    pub(crate) result: Result<(), Failure>,
    /// The sectors that a read found, in ascending order.
    pub(crate) found: Vec<(u64, Version)>,
}

/// See the module's comment.
pub(crate) struct Disk {
    device: Device,
    content: Content,
    faults: Faults,
    random: Random,
    operations: Vec<Option<Operation>>,
    free: Vec<usize>,
}

impl Disk {
    pub(crate) fn new(experiment: &Experiment) -> Self {
        Self {
            device: experiment.device.open(experiment.seed),
            content: Content::default(),
            faults: experiment.faults,
            random: Random::new(experiment.seed, 1),
            operations: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Starts an operation on `sectors` sectors from `sector`. `pieces` are its parts where
    /// contents are followed, empty otherwise. Returns its index and when it will be answered.
    pub(crate) fn submit(
        &mut self,
        now_ns: u64,
        (queue, chunk): (usize, ChunkId),
        kind: StoreKind,
        (sector, sectors): (u64, u64),
        pieces: Vec<Piece>,
    ) -> (usize, u64) {
        let bytes = (sector * 512, sectors * 512);
        let answered = answer_ns(&mut self.device, now_ns, kind, bytes);
        let mut failure = if answered.is_none() { Some(Failure::Refused) } else { None };
        let mut at = answered.unwrap_or(now_ns);
        if self.random.chance(self.faults.error) {
            failure = Some(Failure::Planned);
        }
        if self.random.chance(self.faults.delay) {
            at += self.random.below(self.faults.delay_max_ns + 1);
        }
        let early = kind == StoreKind::Read && !pieces.is_empty() && self.random.below(2) == 0;
        let found = early.then(|| self.look(&pieces));
        let mark = self.content.mark();
        let operation = Operation { queue, chunk, kind, pieces, mark, found, failure };
        let index = self.free.pop().unwrap_or_else(|| {
            self.operations.push(None);
            self.operations.len() - 1
        });
        self.operations[index] = Some(operation);
        (index, at)
    }

    /// The operation's time has come.
    pub(crate) fn complete(&mut self, index: usize) -> Answer {
        let operation = self.operations[index].take().expect("an operation under way");
        self.free.push(index);
        let Operation { queue, chunk, kind, pieces, mark, found, failure } = operation;
        let mut read = Vec::new();
        match kind {
            // A refused write leaves no trace.
            _ if failure == Some(Failure::Refused) => {}
            StoreKind::Read if failure.is_none() => {
                read = found.unwrap_or_else(|| self.look(&pieces));
            }
            StoreKind::Flush if failure.is_none() => self.content.flush(mark),
            StoreKind::Read | StoreKind::Flush => {}
            StoreKind::Write { fua } => self.change(&pieces, fua, failure),
            StoreKind::Discard | StoreKind::Zeroes => self.change(&pieces, false, failure),
        }
        Answer { queue, chunk, result: failure.map_or(Ok(()), Err), found: read }
    }

    fn change(&mut self, pieces: &[Piece], fua: bool, failure: Option<Failure>) {
        let torn = failure.map(|_| &mut self.random);
        self.content.write(pieces, fua, torn);
    }

    fn look(&self, pieces: &[Piece]) -> Vec<(u64, Version)> {
        let sectors = pieces.iter().flat_map(|piece| piece.sector..piece.sector + piece.sectors);
        sectors.map(|sector| (sector, self.content.read(sector))).collect()
    }

    /// The power fails: what is under way is never answered. The content is what the medium kept.
    pub(crate) fn crash(&mut self) -> &mut Content {
        let writes = self.operations.iter_mut().filter_map(Option::take);
        let writes = writes.filter(|operation| {
            !matches!(operation.kind, StoreKind::Read | StoreKind::Flush)
                && operation.failure != Some(Failure::Refused)
        });
        let in_flight: Vec<Piece> = writes.flat_map(|operation| operation.pieces).collect();
        self.free = (0..self.operations.len()).collect();
        self.content.crash(&in_flight, &mut self.random);
        &mut self.content
    }
}
