//! The random client on a disk of the guest. Scenarios start it there.

use std::path::Path;

use ucrypt_testkit::disk::transfers_at_once;
use ucrypt_testkit::{Plan, Shape, Whole};

/// Bytes used, from the beginning of the disk.
const LEN: u64 = 16 << 20;
const TRANSFER_MAX: u64 = 1 << 20;

fn given(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("the scenario sets {name}"))
}

#[test]
#[ignore = "is run in the guest, by the scenarios `random` and `disks`"]
fn transfers_at_once_on_the_same_bytes_of_a_disk_find_what_may_be_there() {
    let (disk, sector) = (given("UCRYPT_DISK"), given("UCRYPT_SECTOR").parse().expect("bytes"));
    let seed = given("UCRYPT_SEED").parse().expect("a number");
    let shape = Shape { transfer_max: TRANSFER_MAX, grain: sector, ..Shape::everything(LEN) };
    // Images of the scenario `random` are in memory; the other's are only better.
    let whole = Whole::mapped();
    transfers_at_once(
        Path::new(&disk),
        Plan { operations: 600, sector, whole, ..Plan::new(seed, shape) },
    );
}
