//! Many transfers at once by direct I/O on the same bytes of a served file or loop device, from several
//! descriptors: the test kit's client, which knows what may be found beside a write.

use std::time::Duration;

use ucrypt_testkit::disk::DiskPort;
use ucrypt_testkit::{Client, Plan, Port, Shape, Watchdog, Whole};

use super::client::Target;
use super::{DEVICE, FILE, Run, TRANSPORTS, seeds};
use crate::image::{Image, LUKS2, LUKS2_512};
use crate::process::run;
use crate::scratch::Scratch;

/// Descriptors, and threads that use each.
const PORTS: usize = 3;
const THREADS: usize = 4;

/// Bytes of the longest transfer. Longer ones the kernel cuts in the middle of sectors.
const FILE_TRANSFER_MAX: u64 = 1 << 20;
const DEVICE_TRANSFER_MAX: u64 = 4 << 20;

fn go(what: Run<'_>, seed: u64) {
    println!("UCRYPT_SEED={seed}, at once, of {what:?}");
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, what.kind, what.len);
    let served = what.serve(&scratch, &image);
    let path = served.path(&scratch);
    let is_file = what.target == Target::File;
    let transfer_max = if is_file { FILE_TRANSFER_MAX } else { DEVICE_TRANSFER_MAX };
    let sector = u64::from(what.kind.sector);
    let shape = Shape {
        transfer_max,
        zeroes_max: 4 << 20,
        grain: if is_file { 1 } else { sector },
        mix: [35, 45, 10, 0, 10],
        ..Shape::everything(what.len)
    };
    let plan = Plan {
        operations: what.steps,
        depth: 2 * THREADS,
        sector,
        whole: Whole::cached(sector),
        watchdog: Watchdog::Time(Duration::from_secs(30)),
        ..Plan::new(seed, shape)
    };
    let mut ports: Vec<Box<dyn Port>> = (0..PORTS)
        .map(|_| {
            let port = DiskPort::open(&path, THREADS, transfer_max as usize);
            Box::new(port.expect("it opens")) as Box<dyn Port>
        })
        .collect();
    let mut client = Client::new(plan, PORTS);
    let report = client.run(&mut ports).unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!((report.failed, report.refused), (0, 0));
    drop(ports);
    served.end(&scratch);
    let now = run(&mut image.ucrypt(&scratch, "read"), b"").passes();
    if let Err(mismatch) = client.check_at_rest(0, &now) {
        panic!("in the image: {mismatch}");
    }
}

#[test]
fn transfers_at_once_on_the_same_bytes_of_a_file_find_what_may_be_there() {
    for seed in seeds(40..43) {
        for options in TRANSPORTS {
            go(Run { options, steps: 400, ..FILE }, seed);
            go(Run { kind: LUKS2_512, len: (3 << 20) + 512, options, steps: 400, ..FILE }, seed);
        }
    }
}

#[test]
fn transfers_at_once_on_the_same_bytes_of_a_loop_device_find_what_may_be_there() {
    for seed in seeds(50..53) {
        for kind in [LUKS2, LUKS2_512] {
            go(Run { kind, steps: 400, ..DEVICE }, seed);
        }
    }
}
