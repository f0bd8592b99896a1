//! The machine's contract, tested with random requests, answers in any order, errors and cancels.

use std::cell::RefCell;
use std::collections::HashMap;

use fastrand::Rng;
use ucrypt_dispatch::policy::{Context, Policy, Split, Work};
use ucrypt_dispatch::{
    BackendTraits, Bounds, ChunkId, Configured, Fixed, IoKind, Machine, Op, Output, Part,
    PolicyKind, Request, RequestId, Target,
};

mod common;

use common::{
    BORDERS, DISK, WORKERS, WRITE, ZEROES_CHUNKS, bounds, machine, request, started, told,
};

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

/// The errors of backend failures and of cancels.
const FAILED: u32 = 7;
const CANCELLED: u32 = 8;

/// A chunk being transformed.
struct Transform {
    chunk: ChunkId,
    parts: Vec<Part>,
    /// It may be encrypted directly to where the backend keeps it.
    to_mapping: bool,
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
        if target != Target::Inline && self.random.u64(..4) > 0 {
            self.machine.offloaded(chunk, target, self.now, self.now);
        }
        self.transforms.push(Transform { chunk, parts, to_mapping });
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
        let Transform { chunk, parts, to_mapping } = self.transforms.swap_remove(pick);
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
        // The write could be written, but not durably.
        let lost = !fails
            && self.machine.retried_after(chunk).is_some()
            && matches!(op, Op::Write { fua: true } | Op::EncryptZeroes { fua: true });
        for part in parts {
            let seen = self.seen.get_mut(&part.request).expect("a request in flight");
            if !again {
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

#[test]
fn writes_leave_in_the_order_in_which_they_came() {
    for policy in [Fixed::Inline, Fixed::Unbound { sorted: true }] {
        let mut machine = machine(policy);
        for sector in [500, 0, 300] {
            machine.request(request(WRITE, sector, 40)).unwrap();
        }
        let mut transforms = started(&mut machine);
        assert_eq!(transforms.len(), 9);
        // The last chunk is encrypted first.
        let mut left = Vec::new();
        while let Some((chunk, _)) = transforms.pop() {
            machine.cipher_done(chunk, Ok(()), None, 0);
            let leave = started(&mut machine);
            left.extend(leave.iter().map(|(_, parts)| parts[0].sector));
        }
        assert_eq!(left, [500, 516, 532, 0, 16, 32, 300, 316, 332], "{policy:?}");
    }
}

#[test]
fn adaptive_keeps_the_order_of_sequential_writes_and_of_all_where_the_backend_needs_it() {
    // The first four may begin sequences; of the others, those are random that follow only such.
    let sectors = [500, 0, 300, 700, 900, 40, 508, 60, 308];
    for (zoned, rotational) in [(false, false), (true, false), (false, true)] {
        let backend = BackendTraits { zoned, rotational, ..DISK };
        let policy = Configured::new(PolicyKind::Adaptive);
        let bounds = Bounds { requests_max: 16, chunks_max: 16, ..bounds() };
        let mut machine = Machine::new(bounds, policy, backend);
        let mut transforms = Vec::new();
        for sector in sectors {
            machine.request(request(WRITE, sector, 8)).unwrap();
            transforms.extend(started(&mut machine));
        }
        // The last one is encrypted first.
        let mut left = Vec::new();
        while let Some((chunk, _)) = transforms.pop() {
            machine.cipher_done(chunk, Ok(()), None, 0);
            let leave = started(&mut machine);
            left.extend(leave.iter().map(|(_, parts)| parts[0].sector));
        }
        if zoned || rotational {
            assert_eq!(left, sectors, "{backend:?}");
        } else {
            assert_eq!(left, [40, 900, 500, 0, 300, 700, 508, 60, 308], "{backend:?}");
        }
    }
}

/// A machine over a backend with mappings.
fn mapped(policy: Fixed) -> common::Shipped {
    let backend = BackendTraits { synchronous: true, mapped: true, ..DISK };
    Machine::new(bounds(), Configured::new(policy), backend)
}

#[test]
fn only_a_write_that_leaves_next_is_encrypted_to_the_mapping() {
    let mut machine = mapped(Fixed::Inline);
    for sector in [500, 0, 300] {
        machine.request(request(WRITE, sector, 16)).unwrap();
    }
    let mut chunks = Vec::new();
    machine.plan(0, WORKERS);
    while let Some(output) = machine.next_output() {
        chunks.push(match output {
            Output::EncryptMapped { chunk } => (chunk, true),
            Output::Transform { chunk, target: Target::Inline } => (chunk, false),
            other => panic!("{other:?}"),
        });
    }
    // No chunk is done yet: only the first one leaves next.
    assert_eq!(chunks.iter().map(|&(_, mapped)| mapped).collect::<Vec<_>>(), [true, false, false]);
    machine.cipher_done(chunks[1].0, Ok(()), None, 0);
    assert!(told(&mut machine).is_empty(), "its turn has not come");
    machine.mapped_done(chunks[0].0, Ok(()), None, 0);
    assert_eq!(told(&mut machine), ["finish Ok(())", "submit 0"]);
    machine.cipher_done(chunks[2].0, Ok(()), None, 0);
    assert_eq!(told(&mut machine), ["submit 300"]);

    // The others were submitted: the next write leaves next again.
    machine.request(request(WRITE, 600, 8)).unwrap();
    assert_eq!(told(&mut machine), ["encrypt mapped 600"]);
}

#[test]
fn a_read_that_lies_in_the_mapping_is_decrypted_from_there() {
    let mut machine = mapped(Fixed::Inline);
    machine.request(request(Op::Read, 700, 8)).unwrap();
    let (chunk, _) = started(&mut machine).remove(0);
    machine.io_mapped(chunk, 0);
    assert_eq!(told(&mut machine), ["decrypt mapped 700"]);
    machine.cipher_done(chunk, Ok(()), None, 0);
    assert_eq!(told(&mut machine), ["finish Ok(())"]);
}

/// A durable write to a mapping may fail although its data is there: an earlier flush of the volume
/// failed.
#[test]
fn a_write_to_the_mapping_that_does_not_count_fails_and_lets_the_next_one_leave() {
    let mut machine = mapped(Fixed::Inline);
    for sector in [500, 0] {
        machine.request(request(Op::Write { fua: true }, sector, 8)).unwrap();
    }
    machine.plan(0, WORKERS);
    let Some(Output::EncryptMapped { chunk }) = machine.next_output() else { panic!("the first") };
    machine.mapped_done(chunk, Err(FAILED), None, 0);
    assert_eq!(told(&mut machine), ["finish Err(7)", "encrypt mapped 0"]);
}

#[test]
fn a_long_write_of_zeroes_lets_others_pass() {
    let mut machine = machine(Fixed::Inline);
    let zeroes = Op::EncryptZeroes { fua: false };
    machine.request(request(zeroes, 2000, 1_000_000)).unwrap();
    let read = machine.request(request(Op::Read, 0, 8)).unwrap();
    let started = started(&mut machine);
    assert!(started.iter().any(|(_, parts)| parts[0].request == read), "it waits behind zeroes");
    assert!(started.len() < 12, "the zeroes took every chunk");
}

/// A1 of the audit: chunks that held the memory which others needed waited behind them for ever.
#[test]
fn concurrent_writes_of_zeroes_start_only_with_memory_and_in_turn() {
    let mut machine = machine(Fixed::Unbound { sorted: true });
    let zeroes = Op::EncryptZeroes { fua: false };
    let ids: Vec<_> = (0..6)
        .map(|index| machine.request(request(zeroes, 2000 + 100 * index, 32)).unwrap())
        .collect();
    let mut transforms = started(&mut machine);
    let of = |chunks: &[(ChunkId, Vec<Part>)]| {
        chunks.iter().map(|(_, parts)| parts[0].request).collect::<Vec<_>>()
    };
    assert_eq!(of(&transforms), [ids[0], ids[0], ids[1]]);
    // The last chunk is encrypted first, which frees nothing: it leaves after the others.
    let (last, _) = transforms.pop().unwrap();
    machine.cipher_done(last, Ok(()), None, 0);
    assert!(started(&mut machine).is_empty());
    let mut order = Vec::new();
    while let Some((chunk, parts)) = (!transforms.is_empty()).then(|| transforms.remove(0)) {
        machine.cipher_done(chunk, Ok(()), None, 0);
        order.push(parts[0].request);
        for (stored, _) in started(&mut machine) {
            machine.io_done(stored, Ok(()), 0);
        }
        transforms.extend(started(&mut machine));
    }
    assert_eq!(machine.in_flight(), 0, "all of them end");
    let first_of = |id| order.iter().position(|each| *each == id);
    assert!(ids[2..].is_sorted_by_key(|id| first_of(*id)), "first come first served: {order:?}");
}

/// A14 of the audit: joined requests shared one error.
#[test]
fn the_error_of_a_joined_chunk_reaches_the_request_with_the_bad_sector_alone() {
    for op in [Op::Read, WRITE] {
        for bad in 0..4 {
            let mut machine = machine(Fixed::Merge);
            let ids =
                [200, 204, 208, 212].map(|sector| machine.request(request(op, sector, 4)).unwrap());
            let (chunk, parts) = started(&mut machine).remove(0);
            assert_eq!(parts.len(), 4);
            if op == WRITE {
                machine.cipher_done(chunk, Ok(()), None, 0);
                assert_eq!(started(&mut machine).len(), 1);
            }
            assert!(machine.will_retry(chunk));
            machine.io_done(chunk, Err(FAILED), 0);
            let mut ended = Vec::new();
            while let Some(output) = machine.next_output() {
                match output {
                    Output::SubmitIo { chunk, .. } => {
                        let [part] = machine.parts(chunk) else { panic!("each by itself") };
                        assert!(!machine.will_retry(chunk), "not for ever");
                        let fails = part.request == ids[bad];
                        machine.io_done(chunk, if fails { Err(FAILED) } else { Ok(()) }, 0);
                    }
                    Output::Transform { chunk, .. } => machine.cipher_done(chunk, Ok(()), None, 0),
                    Output::Finish { request, result } => ended.push((request, result)),
                    other => panic!("all are wanted, none is mapped: {other:?}"),
                }
            }
            let results = |index| if index == bad { Err(FAILED) } else { Ok(()) };
            let expected: Vec<_> = (0..4).map(|index| (ids[index], results(index))).collect();
            assert_eq!(ended, expected, "{op:?}");
        }
    }
}

#[test]
fn a_durable_write_that_can_only_be_written_fails_and_shares_its_chunk_with_nobody() {
    for op in [Op::Write { fua: true }, Op::EncryptZeroes { fua: true }] {
        for can_be_written in [true, false] {
            let mut machine = machine(Fixed::Merge);
            let [id, _] = [200, 204].map(|sector| machine.request(request(op, sector, 4)).unwrap());
            let chunks = started(&mut machine);
            assert_eq!(chunks.len(), 2, "not joined");
            for (chunk, _) in &chunks {
                machine.cipher_done(*chunk, Ok(()), None, 0);
            }
            assert_eq!(told(&mut machine), ["submit 200", "submit 204"]);
            machine.io_done(chunks[0].0, Err(FAILED), 0);
            assert_eq!(machine.retried_after(chunks[0].0), Some(FAILED));
            let again = Output::SubmitIo { chunk: chunks[0].0, kind: IoKind::Write { fua: false } };
            assert_eq!(machine.next_output(), Some(again));
            machine.io_done(chunks[0].0, if can_be_written { Ok(()) } else { Err(9) }, 0);
            let result = Err(if can_be_written { FAILED } else { 9 });
            assert_eq!(machine.next_output(), Some(Output::Finish { request: id, result }));
        }
    }
}

#[test]
fn a_durable_write_to_a_zone_is_submitted_once() {
    let backend = BackendTraits { zoned: true, ..DISK };
    let mut machine = Machine::new(bounds(), Configured::new(Fixed::Inline), backend);
    let id = machine.request(request(Op::Write { fua: true }, 200, 4)).unwrap();
    let chunk = started(&mut machine)[0].0;
    machine.cipher_done(chunk, Ok(()), None, 0);
    assert_eq!(told(&mut machine), ["submit 200"]);
    assert!(!machine.will_retry(chunk));
    machine.io_done(chunk, Err(FAILED), 0);
    let ended = Output::Finish { request: id, result: Err(FAILED) };
    assert_eq!(machine.next_output(), Some(ended));
}

#[test]
fn a_full_machine_refuses_and_recovers() {
    let mut machine = machine(Fixed::Inline);
    for sector in 0..8 {
        assert!(machine.request(request(Op::Read, sector, 1)).is_some());
    }
    assert!(machine.is_full() && machine.request(request(Op::Read, 9, 1)).is_none());
    let (chunk, _) = started(&mut machine)[0];
    machine.io_done(chunk, Err(5), 0);
    // The id is free once `Finish` was taken.
    assert!(machine.request(request(Op::Read, 9, 1)).is_none());
    assert!(matches!(machine.next_output(), Some(Output::Finish { result: Err(5), .. })));
    assert!(machine.request(request(Op::Read, 9, 1)).is_some());
}

#[test]
fn neighbours_that_wait_together_travel_as_one_in_the_order_of_their_sectors() {
    let mut machine = machine(Fixed::Merge);
    for sector in [204, 200, 300, 208] {
        machine.request(request(Op::Read, sector, 4)).unwrap();
    }
    let started: Vec<Vec<u64>> = started(&mut machine)
        .iter()
        .map(|(_, parts)| parts.iter().map(|part| part.sector).collect())
        .collect();
    assert_eq!(started, [vec![204, 208], vec![200], vec![300]]);
}

#[test]
fn a_cancelled_request_that_nothing_was_done_for_ends_at_once() {
    let mut machine = machine(Fixed::Inline);
    let waits = machine.request(request(Op::Read, 200, 40)).unwrap();
    machine.cancel(waits, CANCELLED);
    machine.cancel(waits, FAILED);
    assert_eq!(told(&mut machine), ["finish Err(8)"]);
    let planned = machine.request(request(Op::Read, 200, 32)).unwrap();
    machine.plan(0, WORKERS);
    machine.cancel(planned, CANCELLED);
    assert_eq!(told(&mut machine), ["drop", "drop", "finish Err(8)"]);
    assert_eq!((machine.in_flight(), machine.request_at(planned.index())), (0, None));
}

#[test]
fn what_has_left_is_waited_for_and_what_is_done_stays_done() {
    let mut machine = machine(Fixed::Inline);
    let read = machine.request(request(Op::Read, 200, 16)).unwrap();
    let (chunk, _) = started(&mut machine)[0];
    machine.cancel(read, CANCELLED);
    assert!(told(&mut machine).is_empty(), "the backend has it");
    machine.io_done(chunk, Ok(()), 0);
    assert_eq!(told(&mut machine), ["drop", "finish Err(8)"], "nobody wants it decrypted");

    let flush = machine.request(request(Op::Flush, 0, 0)).unwrap();
    let (chunk, _) = started(&mut machine)[0];
    machine.io_done(chunk, Ok(()), 0);
    machine.cancel(flush, CANCELLED);
    assert_eq!(told(&mut machine), ["finish Ok(())"]);
}

#[test]
fn writes_behind_a_cancelled_one_leave_in_their_order() {
    let mut machine = machine(Fixed::Inline);
    let writes = [500, 0, 300]
        .map(|sector| machine.request(request(Op::Write { fua: false }, sector, 16)).unwrap());
    let transforms = started(&mut machine);
    let [first, second, third] = [0, 1, 2].map(|index: usize| transforms[index].0);
    machine.cipher_done(third, Ok(()), None, 0);
    machine.cipher_done(second, Ok(()), None, 0);
    machine.cancel(writes[1], CANCELLED);
    assert!(told(&mut machine).is_empty(), "their turn has not come");
    machine.cipher_done(first, Ok(()), None, 0);
    assert_eq!(told(&mut machine), ["submit 500", "drop", "submit 300", "finish Err(8)"]);
}

#[test]
fn what_travels_with_a_cancelled_request_arrives() {
    let mut machine = machine(Fixed::Merge);
    let ids = [200, 204].map(|sector| machine.request(request(Op::Read, sector, 4)).unwrap());
    let (chunk, parts) = started(&mut machine).remove(0);
    assert_eq!(parts.len(), 2);
    machine.cancel(ids[0], CANCELLED);
    machine.io_done(chunk, Ok(()), 0);
    assert_eq!(told(&mut machine), ["transform 200"]);
    machine.cipher_done(chunk, Ok(()), None, 0);
    assert_eq!(told(&mut machine), ["finish Err(8)", "finish Ok(())"]);
}

#[test]
fn the_order_does_not_grow_while_a_write_holds_others_up() {
    let mut machine = machine(Fixed::Inline);
    machine.request(request(WRITE, 0, 16)).unwrap();
    let (slow, _) = started(&mut machine)[0];
    for _ in 0..1000 {
        // The machine itself asserts that `order` is never longer than the number of chunks.
        let id = machine.request(request(WRITE, 500, 80)).unwrap();
        machine.plan(0, WORKERS);
        machine.cancel(id, CANCELLED);
        assert_eq!(told(&mut machine).last().unwrap(), "finish Err(8)");
    }
    machine.cipher_done(slow, Ok(()), None, 0);
    assert_eq!(told(&mut machine), ["submit 0"]);
}
