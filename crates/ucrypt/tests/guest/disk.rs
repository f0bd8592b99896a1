//! The random client on a disk of the guest: it runs there, started by a scenario.

use std::path::Path;
use std::time::Duration;

use ucrypt_testkit::disk::DiskPort;
use ucrypt_testkit::{Client, Plan, Port, Shape, Watchdog, Whole};

/// Bytes from the disk's beginning that are used.
const LEN: u64 = 16 << 20;
const TRANSFER_MAX: u64 = 1 << 20;
/// Descriptors, and threads that use each.
const PORTS: usize = 3;
const THREADS: usize = 4;

fn given(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("the scenario sets {name}"))
}

#[test]
#[ignore = "is run in the guest, by the scenario `random`"]
fn transfers_at_once_on_the_same_bytes_of_a_disk_find_what_may_be_there() {
    let (disk, sector) = (given("UCRYPT_DISK"), given("UCRYPT_SECTOR").parse().expect("bytes"));
    let seed = given("UCRYPT_SEED").parse().expect("a number");
    let shape = Shape {
        transfer_max: TRANSFER_MAX,
        zeroes_max: 4 << 20,
        grain: sector,
        mix: [35, 45, 10, 0, 10],
        ..Shape::everything(LEN)
    };
    let plan = Plan {
        operations: 600,
        depth: 2 * THREADS,
        sector,
        // The image is in memory.
        whole: Whole::mapped(),
        watchdog: Watchdog::Time(Duration::from_secs(30)),
        ..Plan::new(seed, shape)
    };
    let mut ports: Vec<Box<dyn Port>> = (0..PORTS)
        .map(|_| {
            let port = DiskPort::open(Path::new(&disk), THREADS, TRANSFER_MAX as usize);
            Box::new(port.expect("it opens")) as Box<dyn Port>
        })
        .collect();
    let report = Client::new(plan, PORTS).run(&mut ports);
    let report = report.unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!((report.failed, report.refused), (0, 0));
}
