//! Decisions of `adaptive`, given measurements that the tests make up.

use ucrypt_dispatch::{
    BackendTraits, Bounds, Configured, Environment, Fixed, IoKind, Machine, Op, Output, Policies,
    PolicyKind, Request, Target, Urgency,
};

mod common;

use common::{DISK, Shipped, WORKERS, WRITE, bounds, offload, request, started};

/// Transfers of up to 1 MiB.
fn large_transfers() -> Bounds {
    Bounds { transfer_sectors_max: 2048, zeroes_sectors_max: 4096, ..bounds() }
}

/// A machine with `adaptive`, calibrated to a cipher of 1 ns per byte and a wake latency of 5 us.
fn adaptive(backend: BackendTraits) -> Shipped {
    let bounds = Bounds { requests_max: 64, chunks_max: 64, ..large_transfers() };
    let mut machine = Machine::new(bounds, Configured::new(PolicyKind::Adaptive), backend);
    machine.policy_mut().estimates_mut().calibrated(1 << 20, 1 << 20);
    machine.policy_mut().estimates_mut().wake_latency(0, 5000);
    machine
}

/// The targets of all pending transforms. Inline transforms are done at once.
fn targets(machine: &mut Shipped, around: Environment) -> Vec<Target> {
    let mut targets = Vec::new();
    machine.plan(0, around);
    while let Some(output) = machine.next_output() {
        if let Output::Transform { chunk, target } = output {
            targets.push(target);
            offload(machine, chunk, target, 0);
            if target == Target::Inline {
                machine.cipher_done(chunk, Ok(()), None, 0);
            }
        }
    }
    targets
}

#[test]
fn a_lone_request_is_offloaded_from_where_a_worker_is_sooner_done() {
    let write = |sectors, around| {
        let mut machine = adaptive(DISK);
        machine.request(request(WRITE, 2000, sectors)).unwrap();
        targets(&mut machine, around)
    };
    // Chunks of about sqrt(c * k) = 12 KiB. The first one inline: a worker would finish it later.
    let spread = write(256, WORKERS);
    assert!(spread.len() > 2 && spread.contains(&Target::Inline), "{spread:?}");
    assert!(
        spread.contains(&Target::Offload) || spread.contains(&Target::OffloadAwake),
        "{spread:?}"
    );
    assert_eq!(write(8, WORKERS), [Target::Inline], "4 KiB take less than a wake-up");
    let alone = write(256, Environment::default());
    assert!(alone.iter().all(|&target| target == Target::Inline), "nobody is there: {alone:?}");
}

#[test]
fn a_worker_whose_core_sleeps_deeply_is_not_woken_for_what_takes_less() {
    let mut machine = adaptive(DISK);
    machine.policy_mut().estimates_mut().wake_latency(u64::MAX, 400_000);
    // 64 KiB of cipher take 64 us.
    let mut offloads_at = |now_ns, urgency| {
        let write = request(WRITE, 2000, 128);
        machine.request(Request { urgency, ..write }).unwrap();
        let (mut offloads, mut reads_clock) = (false, false);
        machine.plan(now_ns, WORKERS);
        while let Some(output) = machine.next_output() {
            match output {
                Output::Transform { chunk, target } => {
                    if target != Target::Inline {
                        offloads = true;
                        offload(&mut machine, chunk, target, now_ns);
                    }
                    machine.cipher_done(chunk, Ok(()), Some(1000), now_ns);
                }
                Output::SubmitIo { chunk, .. } => machine.io_done(chunk, Ok(()), now_ns),
                Output::Finish { result, .. } => assert_eq!(result, Ok(())),
                other => panic!("nothing fails, nothing is mapped: {other:?}"),
            }
            reads_clock = machine.needs_time();
        }
        (offloads, reads_clock)
    };
    let ms = |ms: u64| 1_000_000 * ms;
    assert_eq!(offloads_at(ms(1), Urgency::Normal), (false, false), "no worker was ever awake");
    assert_eq!(offloads_at(ms(2), Urgency::Background), (true, true));
    let soon = ms(2) + 50_000;
    assert_eq!(offloads_at(soon, Urgency::Normal), (true, true), "its core sleeps lightly");
    assert_eq!(offloads_at(ms(9), Urgency::Normal), (false, false), "it sleeps deeply again");
}

#[test]
fn the_wake_latency_that_was_applied_is_told_and_is_not_always_the_first_one() {
    let applied = |sectors, slept_ns: Option<u64>| {
        let mut machine = adaptive(DISK);
        if let Some(slept_ns) = slept_ns {
            machine.policy_mut().estimates_mut().wake_latency(slept_ns, 70_000);
        }
        machine.request(request(WRITE, 2000, sectors)).unwrap();
        targets(&mut machine, WORKERS);
        machine.policy().wake_latency_applied_ns()
    };
    // No worker has had a chunk yet.
    assert_eq!(applied(128, Some(u64::MAX)), Some(70_000.0));
    assert_eq!(applied(128, None), Some(5000.0), "none measured: that after a shorter sleep");
    let mut machine = Machine::new(bounds(), Configured::new(PolicyKind::Adaptive), DISK);
    machine.policy_mut().estimates_mut().calibrated(1 << 20, 1 << 10);
    machine.request(request(WRITE, 2000, 8)).unwrap();
    assert_eq!(targets(&mut machine, WORKERS), [Target::Inline]);
    let applied = machine.policy().wake_latency_applied_ns();
    assert_eq!(applied, None, "4 ns of cipher are not worth the enqueue cost");
    machine.policy_mut().estimates_mut().calibrated(1 << 20, 1 << 24);
    machine.request(request(WRITE, 4000, 128)).unwrap();
    targets(&mut machine, WORKERS);
    let applied = machine.policy().wake_latency_applied_ns();
    assert_eq!(applied, None, "what stands in for a measurement is told by nobody as one");
}

/// Whether any transform goes to a worker. Reads are answered at once.
fn offloads(machine: &mut Shipped, around: Environment) -> bool {
    machine.plan(0, around);
    let mut targets = Vec::new();
    while let Some(output) = machine.next_output() {
        match output {
            Output::SubmitIo { chunk, kind: IoKind::Read } => machine.io_done(chunk, Ok(()), 0),
            Output::Transform { chunk, target } => {
                offload(machine, chunk, target, 0);
                targets.push(target);
            }
            Output::EncryptMapped { .. } => targets.push(Target::Inline),
            _ => {}
        }
    }
    assert!(!targets.is_empty());
    targets.into_iter().any(|target| target != Target::Inline)
}

#[test]
fn what_costs_more_to_fetch_from_a_workers_cache_than_the_cipher_stays_here() {
    let on_worker = |op, copied, penalty_ns| {
        let mut machine = adaptive(BackendTraits { copies: copied, ..DISK });
        machine.policy_mut().estimates_mut().set_copy_penalty(1 << 20, penalty_ns);
        machine.request(request(op, 2000, 2048)).unwrap();
        offloads(&mut machine, Environment { reads_in_place: !copied, ..WORKERS })
    };
    let (little, much) = (1 << 17, 1 << 21);
    for op in [Op::Read, WRITE] {
        assert!(on_worker(op, true, little) && !on_worker(op, true, much), "{op:?}");
        assert!(on_worker(op, false, much), "{op:?}: the client or the device fetches it itself");
    }
}

#[test]
fn what_a_worker_leaves_to_be_written_must_be_worth_it_where_this_thread_encrypts_in_place() {
    let on_worker = |op, mapped, copy_ns| {
        let mut machine = adaptive(BackendTraits { synchronous: true, mapped, ..DISK });
        machine.policy_mut().estimates_mut().set_copy(1 << 20, copy_ns);
        for index in 0..4 {
            machine.request(request(op, 2000 * index + 2000, 1024)).unwrap();
        }
        offloads(&mut machine, WORKERS)
    };
    assert!(on_worker(WRITE, true, 1 << 17) && !on_worker(WRITE, true, 1 << 20));
    assert!(on_worker(WRITE, false, 1 << 20), "it is written in any case");
    assert!(on_worker(Op::Read, true, 1 << 20), "reads are not written");
}

/// Lengths in sectors of the chunks of each request, with `depth` requests in flight together.
fn lengths(op: Op, sectors: u64, depth: u64) -> Vec<Vec<u64>> {
    let mut machine = adaptive(DISK);
    // The assumed cost of one more operation equals the cipher time of 8 KiB.
    (0..200).for_each(|_| machine.policy_mut().estimates_mut().calibrated(8192, 1500));
    for index in 0..depth {
        machine.request(request(op, 2000 + 5000 * index, sectors)).unwrap();
    }
    let mut lengths = vec![Vec::new(); depth as usize];
    let mut chunks: Vec<_> = started(&mut machine).into_iter().map(|(_, parts)| parts).collect();
    // Encryption may begin with any chunk.
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
    // The last chunk overlaps with nothing: at 1 ns per byte it takes little more than an operation.
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
fn a_read_is_split_into_pages_next_to_where_the_sum_is_least() {
    // One operation costs as much as 8 KiB of cipher: the best split (examples/bound.rs).
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
    let policies =
        Policies { reads: PolicyKind::Adaptive, writes: Fixed::Unbound { sorted: true }.into() };
    let bounds = large_transfers();
    let mut machine: Shipped = Machine::new(bounds, Configured::new(policies), DISK);
    machine.policy_mut().estimates_mut().calibrated(1 << 20, 1 << 20);
    machine.policy_mut().estimates_mut().wake_latency(0, 5000);
    let (mut now_ns, mut reads, mut kept_reads) = (0, 0, 0);
    for round in 0..2000 {
        machine.request(request(Op::Read, 2000, 32)).unwrap();
        machine.request(request(WRITE, 4000, 32)).unwrap();
        let mut offloaded = Vec::new();
        while machine.in_flight() > 0 {
            machine.plan(now_ns, WORKERS);
            while let Some(output) = machine.next_output() {
                match output {
                    Output::SubmitIo { chunk, .. } => machine.io_done(chunk, Ok(()), now_ns),
                    Output::Transform { chunk, target } => {
                        let write = machine.op(chunk) == Some(WRITE);
                        reads += u64::from(!write);
                        assert!(!write || target == Target::Offload, "round {round}");
                        if target == Target::Inline {
                            assert!(!offloaded.is_empty(), "round {round}: the write goes first");
                            kept_reads += 1;
                            now_ns += 16_000;
                            machine.cipher_done(chunk, Ok(()), Some(16_000), now_ns);
                        } else {
                            machine.offloaded(chunk, target, now_ns, now_ns);
                            offloaded.push((chunk, write));
                        }
                    }
                    Output::Finish { result, .. } => assert_eq!(result, Ok(())),
                    other => panic!("nothing fails, nothing is mapped: {other:?}"),
                }
            }
            for (chunk, write) in offloaded.drain(..) {
                // Offloading pays off for writes and not for reads.
                now_ns += if write { 1000 } else { 60_000 };
                machine.cipher_done(chunk, Ok(()), Some(16_000), now_ns);
            }
        }
    }
    let explored = machine.policy().explored();
    assert!(kept_reads > reads / 2, "{kept_reads} of {reads}: {explored:?}");
    assert!(
        explored.all_inline > 0 && explored.all_inline <= kept_reads,
        "{kept_reads} of {reads}: {explored:?}"
    );
    assert!(
        explored.all_offload > 0 && explored.all_offload <= reads - kept_reads,
        "{kept_reads}: {explored:?}"
    );
}

/// Serves requests one chunk at a time until all have ended. `ns_of` gives the time of a chunk from its request's
/// urgency and its target, of which the cipher is said to take 16 us. Returns the time at the end.
fn serve(
    machine: &mut Shipped,
    requests: &[Request],
    mut now_ns: u64,
    mut ns_of: impl FnMut(Urgency, Target) -> u64,
) -> u64 {
    for &request in requests {
        machine.request(request).unwrap();
    }
    while machine.in_flight() > 0 {
        machine.plan(now_ns, WORKERS);
        while let Some(output) = machine.next_output() {
            match output {
                Output::SubmitIo { chunk, .. } => machine.io_done(chunk, Ok(()), now_ns),
                Output::Transform { chunk, target } => {
                    let sector = machine.parts(chunk)[0].sector;
                    let of = requests.iter().rfind(|request| request.sector <= sector).unwrap();
                    offload(machine, chunk, target, now_ns);
                    now_ns += ns_of(of.urgency, target);
                    machine.cipher_done(chunk, Ok(()), Some(16_000), now_ns);
                }
                Output::Finish { result, .. } => assert_eq!(result, Ok(())),
                other => panic!("nothing fails, nothing is mapped: {other:?}"),
            }
        }
    }
    now_ns
}

/// Regression: all chunks of the time in which an arm was tried counted as its own.
#[test]
fn what_is_placed_by_its_urgency_does_not_count_as_explored() {
    let mut machine = adaptive(DISK);
    let reads = [(2000, Urgency::Normal), (5000, Urgency::Background), (8000, Urgency::Urgent)]
        .map(|(sector, urgency)| Request { urgency, ..request(Op::Read, sector, 32) });
    let (mut now_ns, mut inline, mut offloaded) = (0, 0, 0);
    for _ in 0..2000 {
        now_ns = serve(&mut machine, &reads, now_ns, |urgency, target| {
            let here = target == Target::Inline;
            if urgency == Urgency::Normal {
                (inline, offloaded) = (inline + u64::from(here), offloaded + u64::from(!here));
            }
            if here { 16_000 } else { 20_000 }
        });
    }
    let explored = machine.policy().explored();
    assert!(explored.all_inline > 0 && explored.all_offload > 0, "{explored:?}");
    let counted = (explored.all_inline <= inline, explored.all_offload <= offloaded);
    assert_eq!(counted, (true, true), "{inline} inline, {offloaded} offloaded: {explored:?}");
}

#[test]
fn a_line_longer_than_a_wake_up_takes_goes_to_workers() {
    let busy = |sectors, around| {
        let mut machine = adaptive(DISK);
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
    let asleep = Environment { idle_workers: 0, ..WORKERS };
    assert_eq!(busy(8, asleep), [Target::Inline; 16], "all workers are busy for others");
    assert_eq!(busy(8, Environment::default()), [Target::Inline; 16], "there are none");
}

#[test]
fn a_worker_that_has_most_of_what_is_in_flight_is_given_no_more() {
    let mut machine = adaptive(DISK);
    for index in 0..48 {
        machine.request(request(WRITE, 2000 + 500 * index, 32)).unwrap();
    }
    // One worker, which is awake once it has a chunk.
    let around = Environment { workers: 1, idle_workers: 1, reads_in_place: false };
    let targets = targets(&mut machine, around);
    let inline = targets.iter().filter(|&&target| target == Target::Inline).count();
    let offloaded = targets.len() - inline;
    assert_eq!(targets[0], Target::Offload, "{targets:?}");
    assert!((30..40).contains(&offloaded), "two thirds of 48: {offloaded}");
    // The worker gets the first chunks; the rest is transformed inline.
    assert!(targets[..offloaded].iter().all(|&target| target != Target::Inline), "{targets:?}");
}

#[test]
fn what_is_polled_for_is_never_offloaded_and_what_nobody_waits_for_always() {
    let targets_of = |urgency, around| {
        let mut machine = adaptive(DISK);
        for index in 0..16 {
            for sectors in [8, 256] {
                let write = request(WRITE, 3000 + 5000 * index + sectors, sectors);
                machine.request(Request { urgency, ..write }).unwrap();
            }
        }
        targets(&mut machine, around)
    };
    let asleep = Environment { idle_workers: 0, ..WORKERS };
    for around in [WORKERS, asleep] {
        let urgent = targets_of(Urgency::Urgent, around);
        assert!(urgent.len() >= 32 && urgent.iter().all(|&target| target == Target::Inline));
        let background = targets_of(Urgency::Background, around);
        assert!(
            background.len() >= 32 && background.iter().all(|&target| target == Target::Offload)
        );
    }
    let nobody = targets_of(Urgency::Background, Environment::default());
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
    assert_eq!(chunks(4, DISK), 4, "each keeps the device busy");
    assert!((8..=16).contains(&chunks(32, DISK)), "{}", chunks(32, DISK));
    let hdd = BackendTraits { rotational: true, ..DISK };
    assert_eq!((chunks(4, hdd), chunks(16, hdd)), (1, 1));
}

#[test]
fn without_a_cipher_a_read_is_one_operation() {
    for sectors in [8, 128, 2048] {
        let bounds = Bounds { requests_max: 64, chunks_max: 64, ..large_transfers() };
        let mut machine = Machine::new(bounds, Configured::new(PolicyKind::Adaptive), DISK);
        machine.policy_mut().estimates_mut().calibrated(1 << 20, 0);
        machine.request(request(Op::Read, 2000, sectors)).unwrap();
        let chunks = started(&mut machine);
        assert_eq!(chunks.len(), 1, "{chunks:?}");
        assert_eq!(chunks[0].1[0].sectors, sectors);
    }
}
