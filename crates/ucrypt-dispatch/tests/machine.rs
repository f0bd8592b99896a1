//! The machine's contract, under random requests, answers in any order, errors and cancels.

use std::collections::HashMap;

use ucrypt_dispatch::{
    ChunkId, Device, Limits, Machine, Op, Output, Part, Policies, Policy, Request, RequestId,
    StoreKind, Surroundings, Target, Urgency, ZEROES_UNIT_SECTORS,
};

/// xorshift64: the same run for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

const BORDERS: [u64; 3] = [100, 1000, 1008];

fn limits() -> Limits {
    Limits {
        requests_max: 8,
        chunks_max: 12,
        transfer_sectors_max: 16,
        zeroes_sectors_max: ZEROES_CHUNKS * ZEROES_UNIT_SECTORS,
        sector_sectors: 1,
        borders: BORDERS.to_vec(),
    }
}

/// Chunks of zeroes for which there is memory: fewer than requests may ask for.
const ZEROES_CHUNKS: u64 = 3;

const DEVICE: Device =
    Device { synchronous: false, copies: false, in_place: false, rotational: false, depth_max: 12 };

const WORKERS: Surroundings = Surroundings { workers: 4, idle_workers: 2, reads_in_place: false };

fn request(op: Op, sector: u64, sectors: u64) -> Request {
    Request { op, sector, sectors, urgency: Urgency::Normal }
}

/// What the world around a machine knows about a request.
#[derive(Debug)]
struct Seen {
    request: Request,
    /// Sectors that were stored with success, and that were crypted.
    stored: u64,
    crypted: u64,
    /// Counts requests as they were accepted.
    number: usize,
    /// Which of its sectors are in a chunk.
    begun: Vec<bool>,
    failed: bool,
    cancelled: bool,
}

impl Seen {
    /// Whether there is nothing left to do for it.
    fn is_done(&self) -> bool {
        let crypts = !matches!(self.request.op, Op::Flush | Op::Discard);
        let sectors = self.request.sectors;
        (self.stored, self.crypted) == (sectors, if crypts { sectors } else { 0 })
    }
}

/// What the backend's failures and cancels are told as.
const FAILED: u32 = 7;
const CANCELLED: u32 = 8;

/// Plays engine and backend for a machine, and checks every output.
struct World {
    machine: Machine<u32>,
    policy: Policy,
    random: Random,
    now: u64,
    seen: HashMap<RequestId, Seen>,
    crypts: Vec<(ChunkId, Vec<Part>)>,
    stores: Vec<(ChunkId, Vec<Part>)>,
    /// Of the write that left last: its request's number, and its sector.
    left: (usize, u64),
    accepted: usize,
    finished: usize,
    refused: usize,
    joined: usize,
    cancelled: usize,
    dropped: usize,
    again: usize,
}

impl World {
    fn new(policy: Policy, seed: u64) -> Self {
        Self {
            machine: Machine::new(limits(), policy, DEVICE),
            policy,
            random: Random(seed),
            now: 0,
            seen: HashMap::new(),
            crypts: Vec::new(),
            stores: Vec::new(),
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
        let fua = self.random.below(2) == 0;
        let op = match self.random.below(7) {
            0 | 1 => Op::Read,
            2 | 3 => Op::Write { fua },
            4 => Op::EncryptZeroes { fua },
            5 => Op::Flush,
            _ => Op::Discard,
        };
        let sectors = if op == Op::Flush { 0 } else { self.random.below(120) + 1 };
        let sector = if op == Op::Flush { 0 } else { self.random.below(1200) };
        // Now and then a row of small neighbours, which may be joined.
        let (count, sectors) =
            if op != Op::Flush && self.random.below(4) == 0 { (3, 2) } else { (1, sectors) };
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
        let seen = Seen { request, stored: 0, crypted: 0, number, begun, failed, cancelled };
        assert!(self.seen.insert(id, seen).is_none(), "an id names two requests");
    }

    /// Cancels a request that is in flight, whichever.
    fn cancel(&mut self) {
        let ids = (0..8).filter_map(|index| self.machine.request_at(index)).collect::<Vec<_>>();
        assert_eq!(ids.len(), self.seen.len());
        let Some(&id) = ids.get(self.random.below(8) as usize) else { return };
        self.seen.get_mut(&id).expect("a request in flight").cancelled = true;
        self.cancelled += 1;
        self.machine.cancel(id, CANCELLED);
    }

    /// Carries out up to `most` of what the machine asks for.
    fn take_outputs(&mut self, most: u64) {
        self.machine.plan(self.now, WORKERS);
        for _ in 0..most {
            let Some(output) = self.machine.next_output() else { return };
            match output {
                Output::Crypt { chunk, .. } => {
                    let parts = self.machine.parts(chunk).to_vec();
                    let op = self.machine.op(chunk).expect("a chunk under way");
                    if op != Op::Read {
                        self.check_start(op, &parts);
                    }
                    self.crypts.push((chunk, parts));
                }
                Output::Store { chunk, kind } => {
                    let parts = self.machine.parts(chunk).to_vec();
                    let op = self.machine.op(chunk).expect("a chunk under way");
                    if self.machine.stored_again(chunk).is_some() {
                        assert_eq!(parts.len(), 1, "each by itself");
                        assert!(kind != StoreKind::Write { fua: true });
                        self.again += 1;
                        self.stores.push((chunk, parts));
                        continue;
                    }
                    assert_eq!(kind, StoreKind::from(op));
                    if matches!(kind, StoreKind::Write { .. }) {
                        self.check_order(op, parts[0]);
                    } else {
                        self.check_start(op, &parts);
                    }
                    self.stores.push((chunk, parts));
                }
                Output::Drop { chunk } => {
                    assert!(self.machine.parts(chunk).is_empty(), "its id is free");
                    self.dropped += 1;
                }
                Output::Finish { request, result } => self.check_finish(request, result),
            }
            assert!(self.crypts.len() + self.stores.len() <= 12, "more chunks than allowed");
            self.check_zeroes();
        }
    }

    /// No more chunks of zeroes may be under way than there is memory for.
    fn check_zeroes(&self) {
        let is_zeroes = |(chunk, _): &&(ChunkId, Vec<Part>)| {
            matches!(self.machine.op(*chunk), Some(Op::EncryptZeroes { .. }))
        };
        let zeroes = self.crypts.iter().chain(&self.stores).filter(is_zeroes).count() as u64;
        assert!(zeroes <= ZEROES_CHUNKS, "{zeroes} chunks of zeroes are under way");
    }

    /// A chunk that starts must be new sectors of its requests, adjacent, and within the bounds.
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

    /// A write must leave after all that came before it, where the policy keeps order. Requests that
    /// travel with an earlier one go before their turn; zeroes let others pass.
    fn check_order(&mut self, op: Op, first: Part) {
        let unsorted = matches!(
            self.policy,
            Policy::SameCpu { sorted: false } | Policy::Unbound { sorted: false }
        );
        if unsorted || matches!(op, Op::EncryptZeroes { .. }) {
            return;
        }
        let place = (self.seen[&first.request].number, first.sector);
        assert!(place > self.left, "{}: a write overtook another", self.policy);
        self.left = place;
    }

    fn check_finish(&mut self, id: RequestId, result: Result<(), u32>) {
        let seen = self.seen.remove(&id).expect("a request finished twice");
        self.finished += 1;
        let open = |(_, parts): &(ChunkId, Vec<Part>)| parts.iter().any(|part| part.request == id);
        assert!(!self.crypts.iter().any(open), "finished while crypting");
        assert!(!self.stores.iter().any(open), "finished while storing");
        match result {
            // What is done already is not cancelled.
            Ok(()) => assert!(seen.is_done() && !seen.failed, "{seen:?}"),
            Err(FAILED) => assert!(seen.failed, "{seen:?}"),
            Err(error) => assert_eq!((error, seen.cancelled), (CANCELLED, true), "{seen:?}"),
        }
    }

    /// Answers one thing that is under way, whichever.
    fn answer(&mut self) {
        let choices = (self.crypts.len() + self.stores.len()) as u64;
        if choices == 0 {
            return;
        }
        self.now += self.random.below(10_000);
        let pick = self.random.below(choices) as usize;
        let fails = self.random.below(40) == 0;
        let result = if fails { Err(FAILED) } else { Ok(()) };
        let crypt = pick < self.crypts.len();
        let (chunk, parts) = if crypt {
            self.crypts.swap_remove(pick)
        } else {
            self.stores.swap_remove(pick - self.crypts.len())
        };
        let again = fails && self.machine.tries_again(chunk);
        // A write that could be written, but not durably.
        let lost = !fails
            && !crypt
            && self.machine.stored_again(chunk).is_some()
            && matches!(
                self.machine.op(chunk),
                Some(Op::Write { fua: true } | Op::EncryptZeroes { fua: true })
            );
        for part in parts {
            let seen = self.seen.get_mut(&part.request).expect("a request in flight");
            if again {
                // It is stored once more if it was.
                seen.stored -= if crypt { part.sectors } else { 0 };
                continue;
            }
            seen.failed |= fails || lost;
            *(if crypt { &mut seen.crypted } else { &mut seen.stored }) += part.sectors;
        }
        if crypt {
            self.machine.crypted(chunk, result, Some(self.random.below(5000)), self.now);
        } else {
            self.machine.stored(chunk, result, self.now);
        }
    }
}

#[test]
fn every_request_ends_once_whatever_the_order_of_answers_errors_and_cancels() {
    for policy in Policy::ALL {
        let (mut refused, mut joined, mut cancelled, mut dropped) = (0, 0, 0, 0);
        let mut again = 0;
        for seed in 1..=100 {
            let mut world = World::new(policy, seed * 0x9e37_79b9);
            for _ in 0..400 {
                if world.random.below(3) == 0 {
                    world.ask();
                }
                if seed % 2 == 0 && world.random.below(8) == 0 {
                    world.cancel();
                }
                let most = [1, 3, u64::MAX][world.random.below(3) as usize];
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
            assert_eq!(ended, (world.finished, 0), "{policy} seed {seed}: a request never ended");
            assert!(world.accepted > 50);
            refused += world.refused;
            joined += world.joined;
            cancelled += world.cancelled;
            dropped += world.dropped;
            again += world.again;
        }
        assert!(cancelled > 500 && dropped > 50, "{policy}: {cancelled} cancels, {dropped} drops");
        assert!(refused > 0, "{policy}: the bound was never reached");
        assert!(again > 10, "{policy}: {again} parts were stored again");
        let joins = matches!(policy, Policy::Adaptive | Policy::Merge);
        assert_eq!(joined > 0, joins, "{policy}: {joined} neighbours were joined");
    }
}

/// Plans, and returns all outputs there are without `Finish`.
fn started(machine: &mut Machine<u32>) -> Vec<(ChunkId, Vec<Part>)> {
    machine.plan(0, WORKERS);
    let mut started = Vec::new();
    while let Some(output) = machine.next_output() {
        if let Output::Crypt { chunk, .. } | Output::Store { chunk, .. } = output {
            started.push((chunk, machine.parts(chunk).to_vec()));
        }
    }
    started
}

#[test]
fn writes_leave_in_the_order_in_which_they_came() {
    for policy in [Policy::Inline, Policy::Unbound { sorted: true }] {
        let mut machine = Machine::<u32>::new(limits(), policy, DEVICE);
        for sector in [500, 0, 300] {
            machine.request(request(Op::Write { fua: false }, sector, 40)).unwrap();
        }
        let mut crypts = started(&mut machine);
        assert_eq!(crypts.len(), 9);
        // The last is encrypted first.
        let mut left = Vec::new();
        while let Some((chunk, _)) = crypts.pop() {
            let next = machine.leaves_next(chunk);
            machine.crypted(chunk, Ok(()), None, 0);
            let leave = started(&mut machine);
            assert_eq!(next, leave.iter().any(|(left, _)| *left == chunk), "{policy}");
            assert!(!machine.leaves_next(chunk), "it has left, or waits for others");
            left.extend(leave.iter().map(|(_, parts)| parts[0].sector));
        }
        assert_eq!(left, [500, 516, 532, 0, 16, 32, 300, 316, 332], "{policy}");
    }
}

#[test]
fn without_order_every_write_leaves_next() {
    let policy = Policy::Unbound { sorted: false };
    let mut machine = Machine::<u32>::new(limits(), policy, DEVICE);
    for sector in [500, 0] {
        machine.request(request(Op::Write { fua: false }, sector, 40)).unwrap();
    }
    let crypts = started(&mut machine);
    assert!(crypts.len() > 2 && crypts.iter().all(|&(chunk, _)| machine.leaves_next(chunk)));
    let mut machine = Machine::<u32>::new(limits(), policy, DEVICE);
    machine.request(request(Op::Read, 500, 8)).unwrap();
    let (chunk, _) = started(&mut machine)[0];
    machine.stored(chunk, Ok(()), 0);
    assert!(!machine.leaves_next(chunk), "a read leaves for its client");
}

#[test]
fn a_long_write_of_zeroes_lets_others_pass() {
    let mut machine = Machine::<u32>::new(limits(), Policy::Inline, DEVICE);
    let zeroes = Op::EncryptZeroes { fua: false };
    machine.request(request(zeroes, 2000, 1_000_000)).unwrap();
    let read = machine.request(request(Op::Read, 0, 8)).unwrap();
    let started = started(&mut machine);
    assert!(started.iter().any(|(_, parts)| parts[0].request == read), "it waits behind zeroes");
    assert!(started.len() < 12, "the zeroes took every chunk");
}

/// A1 of the audit: chunks that took what others needed waited behind them for ever.
#[test]
fn concurrent_writes_of_zeroes_start_only_with_memory_and_in_turn() {
    let mut machine = Machine::<u32>::new(limits(), Policy::Unbound { sorted: true }, DEVICE);
    let zeroes = Op::EncryptZeroes { fua: false };
    let ids: Vec<_> = (0..6)
        .map(|index| machine.request(request(zeroes, 2000 + 100 * index, 32)).unwrap())
        .collect();
    let mut crypts = started(&mut machine);
    let of = |crypts: &[(ChunkId, Vec<Part>)]| {
        crypts.iter().map(|(_, parts)| parts[0].request).collect::<Vec<_>>()
    };
    assert_eq!(of(&crypts), [ids[0], ids[0], ids[1]]);
    // The last is encrypted first, which frees nothing: it leaves after the others.
    let (last, _) = crypts.pop().unwrap();
    machine.crypted(last, Ok(()), None, 0);
    assert!(started(&mut machine).is_empty());
    let mut order = Vec::new();
    while let Some((chunk, parts)) = (!crypts.is_empty()).then(|| crypts.remove(0)) {
        machine.crypted(chunk, Ok(()), None, 0);
        order.push(parts[0].request);
        for (stored, _) in started(&mut machine) {
            machine.stored(stored, Ok(()), 0);
        }
        crypts.extend(started(&mut machine));
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
            let mut machine = Machine::<u32>::new(limits(), Policy::Merge, DEVICE);
            let ids =
                [200, 204, 208, 212].map(|sector| machine.request(request(op, sector, 4)).unwrap());
            let (chunk, parts) = started(&mut machine).remove(0);
            assert_eq!(parts.len(), 4);
            if op == WRITE {
                machine.crypted(chunk, Ok(()), None, 0);
                assert_eq!(started(&mut machine).len(), 1);
            }
            assert!(machine.tries_again(chunk));
            machine.stored(chunk, Err(FAILED), 0);
            let mut ended = Vec::new();
            while let Some(output) = machine.next_output() {
                match output {
                    Output::Store { chunk, .. } => {
                        let [part] = machine.parts(chunk) else { panic!("each by itself") };
                        assert!(!machine.tries_again(chunk), "not for ever");
                        let fails = part.request == ids[bad];
                        machine.stored(chunk, if fails { Err(FAILED) } else { Ok(()) }, 0);
                    }
                    Output::Crypt { chunk, .. } => machine.crypted(chunk, Ok(()), None, 0),
                    Output::Finish { request, result } => ended.push((request, result)),
                    Output::Drop { .. } => panic!("all are wanted"),
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
            let mut machine = Machine::<u32>::new(limits(), Policy::Merge, DEVICE);
            let [id, _] = [200, 204].map(|sector| machine.request(request(op, sector, 4)).unwrap());
            let chunks = started(&mut machine);
            assert_eq!(chunks.len(), 2, "not joined");
            for (chunk, _) in &chunks {
                machine.crypted(*chunk, Ok(()), None, 0);
            }
            assert_eq!(told(&mut machine), ["store 200", "store 204"]);
            machine.stored(chunks[0].0, Err(FAILED), 0);
            assert_eq!(machine.stored_again(chunks[0].0), Some(FAILED));
            let again = Output::Store { chunk: chunks[0].0, kind: StoreKind::Write { fua: false } };
            assert_eq!(machine.next_output(), Some(again));
            machine.stored(chunks[0].0, if can_be_written { Ok(()) } else { Err(9) }, 0);
            let result = Err(if can_be_written { FAILED } else { 9 });
            assert_eq!(machine.next_output(), Some(Output::Finish { request: id, result }));
        }
    }
}

#[test]
fn a_full_machine_refuses_and_recovers() {
    let mut machine = Machine::<u32>::new(limits(), Policy::Inline, DEVICE);
    for sector in 0..8 {
        assert!(machine.request(request(Op::Read, sector, 1)).is_some());
    }
    assert!(machine.is_full() && machine.request(request(Op::Read, 9, 1)).is_none());
    let (chunk, _) = started(&mut machine)[0];
    machine.stored(chunk, Err(5), 0);
    // The id is free once the end has been told.
    assert!(machine.request(request(Op::Read, 9, 1)).is_none());
    assert!(matches!(machine.next_output(), Some(Output::Finish { result: Err(5), .. })));
    assert!(machine.request(request(Op::Read, 9, 1)).is_some());
}

#[test]
fn neighbours_that_wait_together_travel_as_one_in_the_order_of_their_sectors() {
    let mut machine = Machine::<u32>::new(limits(), Policy::Merge, DEVICE);
    for sector in [204, 200, 300, 208] {
        machine.request(request(Op::Read, sector, 4)).unwrap();
    }
    let started: Vec<Vec<u64>> = started(&mut machine)
        .iter()
        .map(|(_, parts)| parts.iter().map(|part| part.sector).collect())
        .collect();
    assert_eq!(started, [vec![204, 208], vec![200], vec![300]]);
}

/// Everything that the machine asks for now, as words with the first sector of its chunk.
fn told(machine: &mut Machine<u32>) -> Vec<String> {
    machine.plan(0, Surroundings::default());
    let mut told = Vec::new();
    while let Some(output) = machine.next_output() {
        let sector = |chunk| machine.parts(chunk)[0].sector;
        told.push(match output {
            Output::Crypt { chunk, .. } => format!("crypt {}", sector(chunk)),
            Output::Store { chunk, .. } => format!("store {}", sector(chunk)),
            Output::Drop { .. } => "drop".into(),
            Output::Finish { result, .. } => format!("finish {result:?}"),
        });
    }
    told
}

#[test]
fn a_cancelled_request_that_nothing_was_done_for_ends_at_once() {
    let mut machine = Machine::<u32>::new(limits(), Policy::Inline, DEVICE);
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
    let mut machine = Machine::<u32>::new(limits(), Policy::Inline, DEVICE);
    let read = machine.request(request(Op::Read, 200, 16)).unwrap();
    let (chunk, _) = started(&mut machine)[0];
    machine.cancel(read, CANCELLED);
    assert!(told(&mut machine).is_empty(), "the backend has it");
    machine.stored(chunk, Ok(()), 0);
    assert_eq!(told(&mut machine), ["drop", "finish Err(8)"], "nobody wants it decrypted");

    let flush = machine.request(request(Op::Flush, 0, 0)).unwrap();
    let (chunk, _) = started(&mut machine)[0];
    machine.stored(chunk, Ok(()), 0);
    machine.cancel(flush, CANCELLED);
    assert_eq!(told(&mut machine), ["finish Ok(())"]);
}

#[test]
fn writes_behind_a_cancelled_one_leave_in_their_order() {
    let mut machine = Machine::<u32>::new(limits(), Policy::Inline, DEVICE);
    let writes = [500, 0, 300]
        .map(|sector| machine.request(request(Op::Write { fua: false }, sector, 16)).unwrap());
    let crypts = started(&mut machine);
    let [first, second, third] = [0, 1, 2].map(|index: usize| crypts[index].0);
    machine.crypted(third, Ok(()), None, 0);
    machine.crypted(second, Ok(()), None, 0);
    machine.cancel(writes[1], CANCELLED);
    assert!(told(&mut machine).is_empty(), "their turn has not come");
    machine.crypted(first, Ok(()), None, 0);
    assert_eq!(told(&mut machine), ["store 500", "drop", "store 300", "finish Err(8)"]);
}

#[test]
fn what_travels_with_a_cancelled_request_arrives() {
    let mut machine = Machine::<u32>::new(limits(), Policy::Merge, DEVICE);
    let ids = [200, 204].map(|sector| machine.request(request(Op::Read, sector, 4)).unwrap());
    let (chunk, parts) = started(&mut machine).remove(0);
    assert_eq!(parts.len(), 2);
    machine.cancel(ids[0], CANCELLED);
    machine.stored(chunk, Ok(()), 0);
    assert_eq!(told(&mut machine), ["crypt 200"]);
    machine.crypted(chunk, Ok(()), None, 0);
    assert_eq!(told(&mut machine), ["finish Err(8)", "finish Ok(())"]);
}

#[test]
fn the_order_does_not_grow_while_a_write_holds_others_up() {
    let mut machine = Machine::<u32>::new(limits(), Policy::Inline, DEVICE);
    machine.request(request(WRITE, 0, 16)).unwrap();
    let (slow, _) = started(&mut machine)[0];
    for _ in 0..1000 {
        // The machine itself asserts that no more stands in order than there are chunks.
        let id = machine.request(request(WRITE, 500, 80)).unwrap();
        machine.plan(0, WORKERS);
        machine.cancel(id, CANCELLED);
        assert_eq!(told(&mut machine).last().unwrap(), "finish Err(8)");
    }
    machine.crypted(slow, Ok(()), None, 0);
    assert_eq!(told(&mut machine), ["store 0"]);
}

/// Transfers of up to 1 MiB.
fn large_transfers() -> Limits {
    Limits { transfer_sectors_max: 2048, zeroes_sectors_max: 4096, ..limits() }
}

/// A machine of adaptive that knows its cipher (1 ns a byte) and its hand-over (5 us).
fn adaptive(device: Device) -> Machine<u32> {
    let limits = Limits { requests_max: 64, chunks_max: 64, ..large_transfers() };
    let mut machine = Machine::new(limits, Policy::Adaptive, Device { depth_max: 64, ..device });
    machine.learned_mut().cipher(1 << 20, 1 << 20);
    machine.learned_mut().handover(5000);
    machine
}

/// Where each crypt that is asked for now is to be done. What is to be done here is done at once.
fn targets(machine: &mut Machine<u32>, around: Surroundings) -> Vec<Target> {
    let mut targets = Vec::new();
    machine.plan(0, around);
    while let Some(output) = machine.next_output() {
        if let Output::Crypt { chunk, target } = output {
            targets.push(target);
            if target == Target::Inline {
                machine.crypted(chunk, Ok(()), None, 0);
            }
        }
    }
    targets
}

const WRITE: Op = Op::Write { fua: false };

#[test]
fn a_lone_request_is_handed_on_from_where_a_worker_is_sooner_done() {
    let write = |sectors, around| {
        let mut machine = adaptive(DEVICE);
        machine.request(request(WRITE, 2000, sectors)).unwrap();
        targets(&mut machine, around)
    };
    // Chunks of about sqrt(c * k) = 12 KiB: the first one here, or a worker would have it later.
    let spread = write(256, WORKERS);
    assert!(spread.len() > 2 && spread.contains(&Target::Inline), "{spread:?}");
    assert!(
        spread.contains(&Target::Offload) || spread.contains(&Target::OffloadAwake),
        "{spread:?}"
    );
    assert_eq!(write(8, WORKERS), [Target::Inline], "4 KiB take less than a hand-over");
    let alone = write(256, Surroundings::default());
    assert!(alone.iter().all(|&target| target == Target::Inline), "nobody is there: {alone:?}");
}

/// Whether any crypt is to be done by a worker. Reads are answered at once.
fn hands_on(machine: &mut Machine<u32>, around: Surroundings) -> bool {
    machine.plan(0, around);
    let mut targets = Vec::new();
    while let Some(output) = machine.next_output() {
        match output {
            Output::Store { chunk, kind: StoreKind::Read } => machine.stored(chunk, Ok(()), 0),
            Output::Crypt { target, .. } => targets.push(target),
            _ => {}
        }
    }
    assert!(!targets.is_empty());
    targets.into_iter().any(|target| target != Target::Inline)
}

#[test]
fn what_costs_more_to_fetch_from_a_workers_cache_than_to_crypt_stays_here() {
    let on_worker = |op, copied, carry_ns| {
        let mut machine = adaptive(Device { copies: copied, ..DEVICE });
        machine.learned_mut().carry(1 << 20, carry_ns);
        machine.request(request(op, 2000, 2048)).unwrap();
        hands_on(&mut machine, Surroundings { reads_in_place: !copied, ..WORKERS })
    };
    let (little, much) = (1 << 17, 1 << 21);
    for op in [Op::Read, WRITE] {
        assert!(on_worker(op, true, little) && !on_worker(op, true, much), "{op:?}");
        assert!(on_worker(op, false, much), "{op:?}: the client or the device fetches it itself");
    }
}

#[test]
fn what_a_worker_leaves_to_be_written_must_be_worth_it_where_this_thread_encrypts_in_place() {
    let on_worker = |op, in_place, copy_ns| {
        let mut machine = adaptive(Device { synchronous: true, in_place, ..DEVICE });
        machine.learned_mut().copy(1 << 20, copy_ns);
        for index in 0..4 {
            machine.request(request(op, 2000 * index + 2000, 1024)).unwrap();
        }
        hands_on(&mut machine, WORKERS)
    };
    assert!(on_worker(WRITE, true, 1 << 17) && !on_worker(WRITE, true, 1 << 20));
    assert!(on_worker(WRITE, false, 1 << 20), "it is written in any case");
    assert!(on_worker(Op::Read, true, 1 << 20), "reads are not written");
}

/// Lengths of the chunks of each request, in sectors, of `depth` requests under way together.
fn lengths(op: Op, sectors: u64, depth: u64) -> Vec<Vec<u64>> {
    let mut machine = adaptive(DEVICE);
    // One more operation is assumed to cost as much as the cipher of 8 KiB.
    (0..200).for_each(|_| machine.learned_mut().cipher(8192, 1500));
    for index in 0..depth {
        machine.request(request(op, 2000 + 5000 * index, sectors)).unwrap();
    }
    let mut lengths = vec![Vec::new(); depth as usize];
    let mut chunks: Vec<_> = started(&mut machine).into_iter().map(|(_, parts)| parts).collect();
    // Encryption may begin with any of them.
    chunks.sort_by_key(|parts| parts[0].sector);
    for parts in chunks {
        lengths[(parts[0].sector - 2000) as usize / 5000].push(parts[0].sectors);
    }
    lengths
}

#[test]
fn the_chunks_of_a_read_get_shorter_and_fewer_where_others_are_in_flight() {
    let alone = &lengths(Op::Read, 128, 1)[0];
    assert_eq!(alone.iter().sum::<u64>(), 128);
    assert!(alone.len() > 2 && alone.is_sorted_by(|a, b| a > b), "{alone:?}");
    // What nothing overlaps with: at the cipher's 1 ns a byte little more than one operation.
    assert!(alone.last() <= Some(&16), "{alone:?}");
    let together = lengths(Op::Read, 128, 4);
    assert!(together.iter().all(|each| each.len() < alone.len()), "{together:?}");
    assert_eq!(lengths(Op::Read, 16, 1), [[16]], "the cipher takes no longer than an operation");
    let written = &lengths(WRITE, 128, 1)[0];
    let (rest, equal) = written.split_last().expect("chunks");
    assert!(equal.len() > 1 && equal.iter().all(|len| *len == written[0]), "{written:?}");
    assert!(*rest <= written[0], "{written:?}");
}

#[test]
fn a_read_is_cut_into_blocks_next_to_where_the_sum_is_least() {
    // One operation costs as much as 8 KiB of cipher: the best of all ways to cut (examples/bound.rs).
    for (blocks, best) in [(2, vec![2]), (4, vec![3, 1]), (8, vec![5, 2, 1])] {
        let sectors: Vec<u64> = best.iter().map(|blocks| 8 * blocks).collect();
        assert_eq!(lengths(Op::Read, 8 * blocks, 1), [sectors]);
    }
    for blocks in 1..=256 {
        let cut = lengths(Op::Read, 8 * blocks, 1).remove(0);
        assert_eq!(cut.iter().sum::<u64>(), 8 * blocks);
        assert!(cut.iter().all(|len| len.is_multiple_of(8)), "{cut:?}");
    }
}

#[test]
fn a_static_policy_for_one_direction_is_not_tried_and_does_not_wait_for_what_is() {
    let policies = Policies { reads: Policy::Adaptive, writes: Policy::Unbound { sorted: true } };
    let limits = large_transfers();
    let mut machine = Machine::<u32>::new(limits, policies, DEVICE);
    machine.learned_mut().cipher(1 << 20, 1 << 20);
    machine.learned_mut().handover(5000);
    let (mut now_ns, mut reads, mut kept_reads) = (0, 0, 0);
    for round in 0..2000 {
        machine.request(request(Op::Read, 2000, 32)).unwrap();
        machine.request(request(WRITE, 4000, 32)).unwrap();
        let mut handed = Vec::new();
        while machine.in_flight() > 0 {
            machine.plan(now_ns, WORKERS);
            while let Some(output) = machine.next_output() {
                match output {
                    Output::Store { chunk, .. } => machine.stored(chunk, Ok(()), now_ns),
                    Output::Crypt { chunk, target } => {
                        let write = machine.op(chunk) == Some(WRITE);
                        reads += u64::from(!write);
                        assert!(!write || target == Target::Offload, "round {round}");
                        if target == Target::Inline {
                            assert!(!handed.is_empty(), "round {round}: the write goes first");
                            kept_reads += 1;
                            now_ns += 16_000;
                            machine.crypted(chunk, Ok(()), Some(16_000), now_ns);
                        } else {
                            handed.push((chunk, write));
                        }
                    }
                    Output::Finish { result, .. } => assert_eq!(result, Ok(())),
                    Output::Drop { .. } => panic!("nothing fails"),
                }
            }
            for (chunk, write) in handed.drain(..) {
                // What reads are handed on for is not worth it.
                now_ns += if write { 1000 } else { 60_000 };
                machine.crypted(chunk, Ok(()), Some(16_000), now_ns);
            }
        }
    }
    let tally = machine.tally();
    assert!(kept_reads > reads / 2, "{kept_reads} of {reads}: {tally:?}");
    assert!(
        tally.all_inline > 0 && tally.all_inline <= kept_reads,
        "{kept_reads} of {reads}: {tally:?}"
    );
    assert!(
        tally.all_offload > 0 && tally.all_offload <= reads - kept_reads,
        "{kept_reads}: {tally:?}"
    );
}

#[test]
fn a_line_longer_than_a_hand_over_takes_goes_to_workers() {
    let busy = |sectors, around| {
        let mut machine = adaptive(DEVICE);
        for index in 0..16 {
            machine.request(request(WRITE, 2000 + 500 * index, sectors)).unwrap();
        }
        targets(&mut machine, around)
    };
    let small = busy(8, WORKERS);
    let woken =
        |targets: &[Target]| targets.iter().filter(|&&target| target == Target::Offload).count();
    assert_eq!((small.len(), woken(&small)), (16, 2), "both wait for less than the line takes");
    assert!(!small.contains(&Target::Inline), "{small:?}");
    let asleep = Surroundings { idle_workers: 0, ..WORKERS };
    assert_eq!(busy(8, asleep), [Target::Inline; 16], "all workers are busy for others");
    assert_eq!(busy(8, Surroundings::default()), [Target::Inline; 16], "there are none");
}

#[test]
fn what_is_polled_for_is_never_handed_on_and_what_nobody_waits_for_always() {
    let targets_of = |urgency, around| {
        let mut machine = adaptive(DEVICE);
        for index in 0..16 {
            for sectors in [8, 256] {
                let write = request(WRITE, 3000 + 5000 * index + sectors, sectors);
                machine.request(Request { urgency, ..write }).unwrap();
            }
        }
        targets(&mut machine, around)
    };
    let asleep = Surroundings { idle_workers: 0, ..WORKERS };
    for around in [WORKERS, asleep] {
        let urgent = targets_of(Urgency::Urgent, around);
        assert!(urgent.len() >= 32 && urgent.iter().all(|&target| target == Target::Inline));
        let background = targets_of(Urgency::Background, around);
        assert!(
            background.len() >= 32 && background.iter().all(|&target| target == Target::Offload)
        );
    }
    let nobody = targets_of(Urgency::Background, Surroundings::default());
    assert!(
        nobody.iter().all(|&target| target == Target::Inline),
        "a request never waits for nobody"
    );
}

#[test]
fn few_neighbours_stay_apart_many_are_joined_and_all_of_them_where_order_matters() {
    let chunks = |count: u64, device| {
        let mut machine = adaptive(device);
        for index in 0..count {
            machine.request(request(Op::Read, 2000 + 8 * index, 8)).unwrap();
        }
        started(&mut machine).len()
    };
    assert_eq!(chunks(4, DEVICE), 4, "each keeps the device busy");
    assert!((8..=16).contains(&chunks(32, DEVICE)), "{}", chunks(32, DEVICE));
    let hdd = Device { rotational: true, ..DEVICE };
    assert_eq!((chunks(4, hdd), chunks(16, hdd)), (1, 1));
}
