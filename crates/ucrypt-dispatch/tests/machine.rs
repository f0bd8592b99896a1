//! The machine's contract, under random requests, answers in any order, and errors.

use std::collections::HashMap;

use ucrypt_dispatch::{
    ChunkId, Limits, Machine, Op, Output, Policy, Request, RequestId, Span, StoreKind,
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
    Limits { requests_max: 8, chunks_max: 12, transfer_sectors_max: 16, borders: BORDERS.to_vec() }
}

/// What the world around a machine knows about a request.
#[derive(Debug)]
struct Seen {
    request: Request,
    /// Sectors that were stored with success, and that were crypted.
    stored: u64,
    crypted: u64,
    /// Where the next chunk must start.
    next: u64,
    failed: bool,
}

/// Plays engine and backend for a machine, and checks every output.
struct World {
    machine: Machine<u32>,
    random: Random,
    seen: HashMap<RequestId, Seen>,
    crypts: Vec<(ChunkId, Span)>,
    stores: Vec<(ChunkId, Span, StoreKind)>,
    accepted: usize,
    finished: usize,
    refused: usize,
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            machine: Machine::new(limits(), Policy::Inline),
            random: Random(seed),
            seen: HashMap::new(),
            crypts: Vec::new(),
            stores: Vec::new(),
            accepted: 0,
            finished: 0,
            refused: 0,
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
        let request = Request { op, sector, sectors };
        let Some(id) = self.machine.request(request) else {
            assert_eq!(self.machine.in_flight(), 8, "refused though not full");
            self.refused += 1;
            return;
        };
        let seen = Seen { request, stored: 0, crypted: 0, next: sector, failed: false };
        assert!(self.seen.insert(id, seen).is_none(), "an id names two requests");
        self.accepted += 1;
    }

    fn take_outputs(&mut self) {
        while let Some(output) = self.machine.next_output() {
            match output {
                Output::Crypt { chunk, span, .. } => {
                    self.check_start(span, |op| !matches!(op, Op::Read));
                    self.crypts.push((chunk, span));
                }
                Output::Store { chunk, span, kind } => {
                    self.check_start(span, |op| {
                        !matches!(op, Op::Write { .. } | Op::EncryptZeroes { .. })
                    });
                    self.check_kind(span, kind);
                    self.stores.push((chunk, span, kind));
                }
                Output::Finish { request, result } => self.check_finish(request, result),
            }
            assert!(self.crypts.len() + self.stores.len() <= 12, "more chunks than allowed");
        }
    }

    /// A chunk that starts must continue its request and stay within the bounds.
    fn check_start(&mut self, span: Span, starts: impl Fn(Op) -> bool) {
        let seen = self.seen.get_mut(&span.request).expect("a chunk of an unknown request");
        if !starts(seen.request.op) {
            return;
        }
        assert!(!seen.failed, "a chunk was started after an error");
        assert_eq!(span.sector, seen.next, "chunks do not follow each other");
        seen.next += span.sectors;
        assert!(seen.next <= seen.request.sector + seen.request.sectors);
        let moves_data = !matches!(seen.request.op, Op::Discard | Op::Flush);
        assert!(!moves_data || span.sectors <= 16, "a transfer that is too large");
        let inside = span.sector + 1..seen.next;
        assert!(!BORDERS.iter().any(|border| inside.contains(border)), "a border was crossed");
    }

    fn check_kind(&self, span: Span, kind: StoreKind) {
        let expected = match self.seen[&span.request].request.op {
            Op::Read => StoreKind::Read,
            Op::Write { fua } | Op::EncryptZeroes { fua } => StoreKind::Write { fua },
            Op::Flush => StoreKind::Flush,
            Op::Discard => StoreKind::Discard,
            Op::BackendZeroes => StoreKind::Zeroes,
        };
        assert_eq!(kind, expected);
    }

    fn check_finish(&mut self, id: RequestId, result: Result<(), u32>) {
        let seen = self.seen.remove(&id).expect("a request finished twice");
        self.finished += 1;
        let open = |span: &Span| span.request == id;
        assert!(!self.crypts.iter().any(|(_, span)| open(span)), "finished while crypting");
        assert!(!self.stores.iter().any(|(_, span, _)| open(span)), "finished while storing");
        assert_eq!(result.is_err(), seen.failed, "{seen:?}");
        if result.is_ok() {
            let sectors = seen.request.sectors;
            assert_eq!(seen.stored, sectors, "not all of it was stored");
            let crypts = !matches!(seen.request.op, Op::Flush | Op::Discard);
            assert_eq!(seen.crypted, if crypts { sectors } else { 0 });
        }
    }

    /// Answers one thing that is under way, whichever.
    fn answer(&mut self) {
        let choices = (self.crypts.len() + self.stores.len()) as u64;
        if choices == 0 {
            return;
        }
        let pick = self.random.below(choices) as usize;
        let fails = self.random.below(40) == 0;
        let result = if fails { Err(7) } else { Ok(()) };
        if pick < self.crypts.len() {
            let (chunk, span) = self.crypts.swap_remove(pick);
            let seen = self.seen.get_mut(&span.request).expect("a request in flight");
            seen.failed |= fails;
            seen.crypted += span.sectors;
            self.machine.crypted(chunk, result);
        } else {
            let (chunk, span, _) = self.stores.swap_remove(pick - self.crypts.len());
            let seen = self.seen.get_mut(&span.request).expect("a request in flight");
            seen.failed |= fails;
            seen.stored += span.sectors;
            self.machine.stored(chunk, result);
        }
    }
}

#[test]
fn every_request_ends_once_whatever_the_order_of_answers_and_errors() {
    let mut refused = 0;
    for seed in 1..=200 {
        let mut world = World::new(seed * 0x9e37_79b9);
        for _ in 0..400 {
            if world.random.below(3) == 0 {
                world.ask();
            }
            world.take_outputs();
            world.answer();
        }
        for _ in 0..100_000 {
            world.take_outputs();
            if world.machine.in_flight() == 0 {
                break;
            }
            world.answer();
        }
        assert_eq!(world.accepted, world.finished, "seed {seed}: a request never ended");
        assert!(world.seen.is_empty() && world.accepted > 50);
        refused += world.refused;
    }
    assert!(refused > 0, "the bound was never reached");
}

/// All outputs there are, without `Finish`.
fn spans(machine: &mut Machine<u32>) -> Vec<(ChunkId, Span)> {
    std::iter::from_fn(|| machine.next_output())
        .filter_map(|output| match output {
            Output::Crypt { chunk, span, .. } | Output::Store { chunk, span, .. } => {
                Some((chunk, span))
            }
            Output::Finish { .. } => None,
        })
        .collect()
}

#[test]
fn writes_leave_in_the_order_in_which_they_came() {
    let mut machine = Machine::<u32>::new(limits(), Policy::Inline);
    for sector in [500, 0, 300] {
        machine.request(Request { op: Op::Write { fua: false }, sector, sectors: 40 }).unwrap();
    }
    let mut left = Vec::new();
    // Each crypt is answered as it comes: the policy does the work on the spot.
    while let Some(output) = machine.next_output() {
        match output {
            Output::Crypt { chunk, .. } => machine.crypted(chunk, Ok(())),
            Output::Store { span, .. } => left.push(span.sector),
            Output::Finish { .. } => panic!("nothing was stored yet"),
        }
    }
    assert_eq!(left, [500, 516, 532, 0, 16, 32, 300, 316, 332]);
}

#[test]
fn a_long_write_of_zeroes_lets_others_pass() {
    let mut machine = Machine::new(limits(), Policy::Inline);
    let zeroes = Op::EncryptZeroes { fua: false };
    machine.request(Request { op: zeroes, sector: 2000, sectors: 1_000_000 }).unwrap();
    let read = machine.request(Request { op: Op::Read, sector: 0, sectors: 8 }).unwrap();
    let started = spans(&mut machine);
    assert!(started.iter().any(|(_, span)| span.request == read), "the read waits behind zeroes");
    assert!(started.len() < 12, "the zeroes took every chunk");
}

#[test]
fn a_full_machine_refuses_and_recovers() {
    let mut machine = Machine::<u32>::new(limits(), Policy::Inline);
    let read = |sector| Request { op: Op::Read, sector, sectors: 1 };
    for sector in 0..8 {
        assert!(machine.request(read(sector)).is_some());
    }
    assert!(machine.is_full() && machine.request(read(9)).is_none());
    let (chunk, _) = spans(&mut machine)[0];
    machine.stored(chunk, Err(5));
    // The id is free once the end has been told.
    assert!(machine.request(read(9)).is_none());
    assert!(matches!(machine.next_output(), Some(Output::Finish { result: Err(5), .. })));
    assert!(machine.request(read(9)).is_some());
}
