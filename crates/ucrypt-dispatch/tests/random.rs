//! The machine's contract, tested with random requests, answers in any order, errors and cancels.

use std::cell::RefCell;
use std::collections::HashMap;

use fastrand::Rng;
use ucrypt_dispatch::policy::{Context, Policy, Split, Work};
use ucrypt_dispatch::{
    BackendTraits, ChunkId, Configured, Fixed, IoKind, Machine, Op, Output, Part, PolicyKind,
    Request, RequestId, Stats, Target,
};

mod common;

use common::{BORDERS, CANCELLED, DISK, FAILED, WORKERS, ZEROES_CHUNKS, bounds, request};

/// A request as the world around the machine sees it.
#[derive(Debug)]
struct Seen {
    request: Request,
    /// Sectors that the backend answered with success, and sectors that were transformed.
    stored: u64,
    transformed: u64,
    /// Number of the request, in order of acceptance.
    number: usize,
    /// By sector: whether it is in a chunk.
    begun: Vec<bool>,
    failed: bool,
    cancelled: bool,
}

impl Seen {
    /// Whether all of the request is done.
    fn is_done(&self) -> bool {
        let transforms = !matches!(self.request.op, Op::Flush | Op::Discard);
        let sectors = self.request.sectors;
        (self.stored, self.transformed) == (sectors, if transforms { sectors } else { 0 })
    }
}

/// A chunk being transformed.
struct Transform {
    chunk: ChunkId,
    parts: Vec<Part>,
    /// It may be encrypted directly to where the backend keeps it.
    to_mapping: bool,
    /// Workers were handed it.
    offloaded: bool,
}

/// Which writes leave in the order in which they arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    All,
    /// All where the backend needs it, elsewhere those that continue another one.
    WhereNeeded,
    None,
}

/// Plays engine and backend for a machine, and checks every output.
struct World<P> {
    machine: Machine<u32, P>,
    /// Writes leave in order.
    sorted: bool,
    random: Rng,
    now: u64,
    seen: HashMap<RequestId, Seen>,
    transforms: Vec<Transform>,
    stores: Vec<(ChunkId, Vec<Part>)>,
    /// Reads whose ciphertext lies in a mapping.
    in_mapping: Vec<ChunkId>,
    mapped: usize,
    /// The write that left last: its request's number, and its sector.
    left: (usize, u64),
    accepted: usize,
    finished: usize,
    refused: usize,
    joined: usize,
    cancelled: usize,
    dropped: usize,
    again: usize,
    /// Where chunks were transformed.
    placed: Stats,
}

impl<P: Policy> World<P> {
    fn new(policy: P, order: Order, seed: u64) -> Self {
        let zoned = seed.is_multiple_of(5);
        let backend = BackendTraits { mapped: seed.is_multiple_of(3), zoned, ..DISK };
        Self {
            machine: Machine::new(bounds(), policy, backend),
            sorted: order == Order::All || (order == Order::WhereNeeded && zoned),
            random: Rng::with_seed(seed),
            now: 0,
            seen: HashMap::new(),
            transforms: Vec::new(),
            stores: Vec::new(),
            in_mapping: Vec::new(),
            mapped: 0,
            left: (0, 0),
            accepted: 0,
            finished: 0,
            refused: 0,
            joined: 0,
            cancelled: 0,
            dropped: 0,
            again: 0,
            placed: Stats::default(),
        }
    }

    fn ask(&mut self) {
        let fua = self.random.bool();
        let op = match self.random.u64(..7) {
            0 | 1 => Op::Read,
            2 | 3 => Op::Write { fua },
            4 => Op::EncryptZeroes { fua },
            5 => Op::Flush,
            _ => Op::Discard,
        };
        let sectors = if op == Op::Flush { 0 } else { self.random.u64(..120) + 1 };
        let sector = if op == Op::Flush { 0 } else { self.random.u64(..1200) };
        // Sometimes a row of small neighbours, which may be joined.
        let (count, sectors) =
            if op != Op::Flush && self.random.u64(..4) == 0 { (3, 2) } else { (1, sectors) };
        for index in 0..count {
            self.ask_for(request(op, sector + index * sectors, sectors));
        }
    }

    fn ask_for(&mut self, request: Request) {
        let Some(id) = self.machine.request(request) else {
            assert_eq!(self.machine.in_flight(), 8, "refused though not full");
            self.refused += 1;
            return;
        };
        self.accepted += 1;
        let (number, begun) = (self.accepted, vec![false; request.sectors as usize]);
        let (failed, cancelled) = (false, false);
        let seen = Seen { request, stored: 0, transformed: 0, number, begun, failed, cancelled };
        assert!(self.seen.insert(id, seen).is_none(), "an id names two requests");
    }

    /// Cancels a random request in flight.
    fn cancel(&mut self) {
        let ids = (0..8).filter_map(|index| self.machine.request_at(index)).collect::<Vec<_>>();
        assert_eq!(ids.len(), self.seen.len());
        let Some(&id) = ids.get(self.random.usize(..8)) else { return };
        self.seen.get_mut(&id).expect("a request in flight").cancelled = true;
        self.cancelled += 1;
        self.machine.cancel(id, CANCELLED);
    }

    /// Carries out up to `most` outputs of the machine.
    fn take_outputs(&mut self, most: u64) {
        self.machine.plan(self.now, WORKERS);
        for _ in 0..most {
            let Some(output) = self.machine.next_output() else { return };
            match output {
                Output::Transform { chunk, target } => {
                    self.transform(chunk, target, false);
                }
                Output::DecryptMapped { chunk, target } => {
                    let at = self.in_mapping.iter().position(|mapped| *mapped == chunk);
                    self.in_mapping.swap_remove(at.expect("a mapped read"));
                    assert_eq!(self.machine.op(chunk), Some(Op::Read));
                    self.transform(chunk, target, false);
                }
                Output::EncryptMapped { chunk } => {
                    self.transform(chunk, Target::Inline, true);
                }
                Output::SubmitIo { chunk, kind } => {
                    let parts = self.machine.parts(chunk).to_vec();
                    let op = self.machine.op(chunk).expect("a chunk under way");
                    if self.machine.retried_after(chunk).is_some() {
                        assert_eq!(parts.len(), 1, "each by itself");
                        assert!(kind != IoKind::Write { fua: true });
                        self.again += 1;
                        self.stores.push((chunk, parts));
                        continue;
                    }
                    assert_eq!(kind, IoKind::from(op));
                    if matches!(kind, IoKind::Write { .. }) {
                        self.check_order(op, parts[0]);
                    } else {
                        self.check_start(op, &parts);
                    }
                    self.stores.push((chunk, parts));
                }
                Output::Drop { chunk } => {
                    assert!(self.machine.parts(chunk).is_empty(), "its id is free");
                    self.in_mapping.retain(|mapped| *mapped != chunk);
                    self.dropped += 1;
                }
                Output::Finish { request, result } => self.check_finish(request, result),
            }
            assert!(self.transforms.len() + self.stores.len() <= 12, "more chunks than allowed");
            self.check_zeroes();
        }
    }

    fn transform(&mut self, chunk: ChunkId, target: Target, to_mapping: bool) {
        let parts = self.machine.parts(chunk).to_vec();
        let op = self.machine.op(chunk).expect("a chunk under way");
        if op != Op::Read {
            self.check_start(op, &parts);
            assert!(!self.in_mapping.contains(&chunk), "no output for a mapped read");
        }
        // Sometimes workers have no room.
        let offloaded = target != Target::Inline && self.random.u64(..4) > 0;
        if offloaded {
            self.machine.offloaded(chunk, target, self.now, self.now);
        }
        self.transforms.push(Transform { chunk, parts, to_mapping, offloaded });
    }

    /// Checks that the chunks of zeroes under way fit their memory.
    fn check_zeroes(&self) {
        let is_zeroes =
            |chunk: &&ChunkId| matches!(self.machine.op(**chunk), Some(Op::EncryptZeroes { .. }));
        let transformed = self.transforms.iter().map(|transform| &transform.chunk);
        let stored = self.stores.iter().map(|(chunk, _)| chunk);
        let zeroes = transformed.chain(stored).filter(is_zeroes).count() as u64;
        assert!(zeroes <= ZEROES_CHUNKS, "{zeroes} chunks of zeroes are under way");
    }

    /// Checks that a starting chunk has new, adjacent sectors of its requests, within the bounds.
    fn check_start(&mut self, op: Op, parts: &[Part]) {
        let (first, last) = (parts[0].sector, parts[parts.len() - 1]);
        let end = last.sector + last.sectors;
        let mut at = first;
        let vain =
            |part: &Part| self.seen[&part.request].failed || self.seen[&part.request].cancelled;
        assert!(!parts.iter().all(vain), "a chunk was started after an error or a cancel");
        for part in parts {
            let seen = self.seen.get_mut(&part.request).expect("a part of an unknown request");
            assert_eq!(seen.request.op, op);
            assert_eq!(part.sector, at, "parts do not follow");
            at += part.sectors;
            let from = (part.sector - seen.request.sector) as usize;
            for begun in &mut seen.begun[from..from + part.sectors as usize] {
                assert!(!std::mem::replace(begun, true), "a sector is in two chunks");
            }
        }
        let moves_data = !matches!(op, Op::Discard | Op::Flush);
        assert!(!moves_data || end - first <= 16, "a transfer that is too large");
        let inside = first + 1..end.max(first + 1);
        assert!(!BORDERS.iter().any(|border| inside.contains(border)), "a border was crossed");
        self.joined += parts.len() - 1;
    }

    /// Checks that a write leaves after all earlier ones, where the policy keeps order. Requests
    /// joined to an earlier one leave before their turn; zeroes let others pass.
    fn check_order(&mut self, op: Op, first: Part) {
        if !self.sorted || matches!(op, Op::EncryptZeroes { .. }) {
            return;
        }
        let place = (self.seen[&first.request].number, first.sector);
        assert!(place > self.left, "a write overtook another");
        self.left = place;
    }

    fn check_finish(&mut self, id: RequestId, result: Result<(), u32>) {
        let seen = self.seen.remove(&id).expect("a request finished twice");
        self.finished += 1;
        let open = |(_, parts): &(ChunkId, Vec<Part>)| parts.iter().any(|part| part.request == id);
        let transforms =
            |transform: &Transform| transform.parts.iter().any(|part| part.request == id);
        assert!(!self.transforms.iter().any(transforms), "finished while it is transformed");
        assert!(!self.stores.iter().any(open), "finished while the backend has it");
        match result {
            // A request that is already done is not cancelled.
            Ok(()) => assert!(seen.is_done() && !seen.failed, "{seen:?}"),
            Err(FAILED) => assert!(seen.failed, "{seen:?}"),
            Err(error) => assert_eq!((error, seen.cancelled), (CANCELLED, true), "{seen:?}"),
        }
    }

    /// Answers a random transform or operation under way.
    fn answer(&mut self) {
        let choices = self.transforms.len() + self.stores.len();
        if choices == 0 {
            return;
        }
        self.now += self.random.u64(..10_000);
        let pick = self.random.usize(..choices);
        if pick < self.transforms.len() {
            self.answer_transform(pick);
        } else {
            self.answer_io(pick - self.transforms.len());
        }
    }

    fn answer_transform(&mut self, pick: usize) {
        let Transform { chunk, parts, to_mapping, offloaded } = self.transforms.swap_remove(pick);
        let taken_back = offloaded && self.random.u64(..4) == 0;
        if taken_back {
            self.machine.taken_back(chunk);
        }
        let Stats { inline, offloaded: by_workers, taken_back: all_taken_back, .. } =
            &mut self.placed;
        *(if offloaded && !taken_back { by_workers } else { inline }) += 1;
        *all_taken_back += u64::from(taken_back);
        let fails = self.random.u64(..40) == 0;
        let result = if fails { Err(FAILED) } else { Ok(()) };
        let spent_ns = (self.random.u64(..4) > 0).then(|| self.random.u64(..5000));
        let again = fails && self.machine.will_retry(chunk);
        let is_mapped = to_mapping && self.random.bool();
        if is_mapped {
            self.mapped += 1;
            let op = self.machine.op(chunk).expect("a chunk under way");
            self.check_order(op, parts[0]);
        }
        for part in parts {
            let seen = self.seen.get_mut(&part.request).expect("a request in flight");
            if again {
                // The part is submitted to the backend once more.
                seen.stored -= part.sectors;
                continue;
            }
            seen.failed |= fails;
            seen.transformed += part.sectors;
            seen.stored += if is_mapped { part.sectors } else { 0 };
        }
        if is_mapped {
            self.machine.mapped_done(chunk, result, spent_ns, self.now);
        } else {
            self.machine.cipher_done(chunk, result, spent_ns, self.now);
        }
    }

    fn answer_io(&mut self, pick: usize) {
        let (chunk, parts) = self.stores.swap_remove(pick);
        let op = self.machine.op(chunk).expect("a chunk under way");
        let is_mapped = op == Op::Read && self.random.u64(..3) == 0;
        let fails = !is_mapped && self.random.u64(..40) == 0;
        let again = fails && self.machine.will_retry(chunk);
        let asked_flush = self.machine.asks_flush(chunk);
        // The write could be written, but not durably.
        let lost = !fails
            && self.machine.retried_after(chunk).is_some()
            && matches!(op, Op::Write { fua: true } | Op::EncryptZeroes { fua: true });
        for part in parts {
            let seen = self.seen.get_mut(&part.request).expect("a request in flight");
            if !again && !asked_flush {
                seen.failed |= fails || lost;
                seen.stored += part.sectors;
            }
        }
        if is_mapped {
            self.mapped += 1;
            self.in_mapping.push(chunk);
            self.machine.io_mapped(chunk, self.now);
        } else {
            self.machine.io_done(chunk, if fails { Err(FAILED) } else { Ok(()) }, self.now);
        }
    }
}

/// A policy with random answers: keeping the contract is the machine's task.
#[derive(Debug)]
struct Whim(RefCell<Rng>);

impl Policy for Whim {
    fn split(&self, _: &Context<'_>) -> Split {
        let mut random = self.0.borrow_mut();
        let mut any = |of: &[u64]| of[random.usize(..of.len())];
        Split {
            chunk_sectors: any(&[0, 1, 7, 16, 100, u64::MAX]),
            ordered: true,
            join_requests: any(&[0, 1, 2, 5, 1000]) as u32,
            join_sectors: any(&[0, 3, 8, u64::MAX]),
        }
    }

    fn target(&self, _: &Context<'_>, _: &Work) -> Target {
        let targets = [Target::Inline, Target::SameCore, Target::Offload, Target::OffloadAwake];
        targets[self.0.borrow_mut().usize(..4)]
    }
}

/// Runs random requests through a machine, once for each of a hundred seeds. `joins`: neighbours
/// are joined.
fn run<P: Policy>(name: &str, order: Order, joins: bool, policy: impl Fn(u64) -> P) {
    let (mut refused, mut joined, mut cancelled, mut dropped) = (0, 0, 0, 0);
    let (mut again, mut mapped) = (0, 0);
    for seed in 1..=100 {
        let mut world = World::new(policy(seed), order, seed * 0x9e37_79b9);
        // Short chunks take more steps.
        for step in 0.. {
            if step >= 400 && world.accepted > 50 {
                break;
            }
            assert!(step < 10_000, "{name} seed {seed}: {} requests accepted", world.accepted);
            if world.random.u64(..3) == 0 {
                world.ask();
            }
            if seed % 2 == 0 && world.random.u64(..8) == 0 {
                world.cancel();
            }
            let most = [1, 3, u64::MAX][world.random.usize(..3)];
            world.take_outputs(most);
            world.answer();
        }
        for _ in 0..100_000 {
            world.take_outputs(u64::MAX);
            if world.machine.in_flight() == 0 {
                break;
            }
            world.answer();
        }
        let Stats { inline, offloaded, taken_back, .. } = world.placed;
        let stats = world.machine.stats();
        let counted = (stats.inline, stats.offloaded, stats.taken_back);
        assert_eq!(counted, (inline, offloaded, taken_back), "{name} seed {seed}");
        let ended = (world.accepted, world.seen.len());
        assert_eq!(ended, (world.finished, 0), "{name} seed {seed}: a request never ended");
        refused += world.refused;
        joined += world.joined;
        cancelled += world.cancelled;
        dropped += world.dropped;
        again += world.again;
        mapped += world.mapped;
    }
    assert!(cancelled > 500 && dropped > 50, "{name}: {cancelled} cancels, {dropped} drops");
    assert!(refused > 0, "{name}: the bound was never reached");
    assert!(again > 10, "{name}: {again} parts were submitted again");
    assert!(mapped > 100, "{name}: {mapped} chunks were mapped");
    assert_eq!(joined > 0, joins, "{name}: {joined} neighbours were joined");
}

#[test]
fn every_request_ends_once_whatever_the_order_of_answers_errors_and_cancels() {
    for kind in PolicyKind::ALL {
        let unsorted = [Fixed::SameCpu { sorted: false }, Fixed::Unbound { sorted: false }];
        let order = match kind {
            PolicyKind::Adaptive => Order::WhereNeeded,
            _ if unsorted.map(PolicyKind::from).contains(&kind) => Order::None,
            PolicyKind::Fixed(_) => Order::All,
        };
        let joins = [PolicyKind::Adaptive, Fixed::Merge.into()].contains(&kind);
        run(kind.name(), order, joins, |_| Configured::new(kind));
    }
}

#[test]
fn every_request_ends_once_whatever_the_policy_answers() {
    run("whim", Order::All, true, |seed| Whim(RefCell::new(Rng::with_seed(seed))));
}
