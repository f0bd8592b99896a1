//! The machine's contract, case by case. `random.rs` tests it with random requests.

use ucrypt_dispatch::{
    BackendTraits, Bounds, ChunkId, Configured, Fixed, IoKind, Machine, Op, Output, Part,
    PolicyKind, Request, Target, Urgency,
};

mod common;

use common::{CANCELLED, DISK, FAILED, WORKERS, WRITE, bounds, machine, request, started, told};

/// Encrypts these chunks, the last one first. Returns the first sectors of writes in the order in
/// which they leave.
fn encrypted_backwards(
    machine: &mut common::Shipped,
    mut transforms: Vec<(ChunkId, Vec<Part>)>,
) -> Vec<u64> {
    let mut left = Vec::new();
    while let Some((chunk, _)) = transforms.pop() {
        machine.cipher_done(chunk, Ok(()), None, 0);
        left.extend(started(machine).iter().map(|(_, parts)| parts[0].sector));
    }
    left
}

#[test]
fn writes_leave_in_the_order_in_which_they_came() {
    for policy in [Fixed::Inline, Fixed::Unbound { sorted: true }] {
        let mut machine = machine(policy);
        for sector in [500, 0, 300] {
            machine.request(request(WRITE, sector, 40)).unwrap();
        }
        let transforms = started(&mut machine);
        assert_eq!(transforms.len(), 9);
        let left = encrypted_backwards(&mut machine, transforms);
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
        let left = encrypted_backwards(&mut machine, transforms);
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
            if !can_be_written {
                let flush = Output::SubmitIo { chunk: chunks[0].0, kind: IoKind::Flush };
                assert_eq!(machine.next_output(), Some(flush));
                assert!(machine.asks_flush(chunks[0].0));
                machine.io_done(
                    chunks[0].0,
                    if op == (Op::Write { fua: true }) { Ok(()) } else { Err(9) },
                    0,
                );
            }
            let result = Err(FAILED);
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
    assert!(machine.request(request(Op::Read, 9, 1)).is_none());
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

/// Regression: a request that somebody polls for went to a worker with the read-ahead before it.
#[test]
fn neighbours_that_are_not_equally_urgent_stay_apart() {
    let urgencies = [Urgency::Background, Urgency::Normal, Urgency::Normal, Urgency::Urgent];
    let mut machine = machine(Fixed::Merge);
    for (sector, urgency) in (200..).step_by(4).zip(urgencies) {
        machine.request(Request { urgency, ..request(Op::Read, sector, 4) }).unwrap();
    }
    let started: Vec<Vec<u64>> = started(&mut machine)
        .iter()
        .map(|(_, parts)| parts.iter().map(|part| part.sector).collect())
        .collect();
    assert_eq!(started, [vec![200], vec![204, 208], vec![212]]);
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
