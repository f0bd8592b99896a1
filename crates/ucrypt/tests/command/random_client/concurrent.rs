//! Many concurrent direct I/O transfers on the same bytes of a served file or loop device, from
//! several descriptors. Uses the test kit's client, which knows what a read beside a write may
//! find.

use ucrypt_testkit::disk::transfers_at_once;
use ucrypt_testkit::{Plan, Shape, Whole};

use super::client::Target;
use super::{DEVICE, FILE, Run, TRANSPORTS, seeds};
use crate::fuse;
use crate::image::{Image, LUKS2, LUKS2_512};
use crate::process::run;
use crate::scratch::Scratch;

/// Longest transfers in bytes, by io_uring and by read. The kernel may cut longer ones in the middle
/// of sectors, where there are more cores or less memory than usual; two concurrent ones then leave
/// sectors of both.
const BY_RING: u64 = 64 << 10;
const BY_READ: u64 = 512 << 10;
const DEVICE_TRANSFER_MAX: u64 = 4 << 20;

fn go(what: Run<'_>, transfer_max: u64, seed: u64) {
    println!("UCRYPT_SEED={seed}, at once, of {what:?}");
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, what.kind, what.len);
    let served = what.serve(&scratch, &image);
    let sector = u64::from(what.kind.sector);
    let grain = match what.target {
        Target::File => 1,
        Target::Device { .. } => sector,
    };
    let shape = Shape { transfer_max, grain, ..Shape::everything(what.len) };
    let whole = Whole::cached(sector);
    let plan = Plan { operations: what.steps, sector, whole, ..Plan::new(seed, shape) };
    let mut client = transfers_at_once(&served.path(&scratch), plan);
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
            // Where the kernel has no rings, requests are no shorter for having asked for them.
            let ring = options == TRANSPORTS[0] && fuse::kernel_has_rings();
            let most = if ring { BY_RING } else { BY_READ };
            let file = Run { options, steps: 400, ..FILE };
            go(file, most, seed);
            go(Run { kind: LUKS2_512, len: (3 << 20) + 512, ..file }, most, seed);
        }
    }
}

#[test]
fn transfers_at_once_on_the_same_bytes_of_a_loop_device_find_what_may_be_there() {
    for seed in seeds(50..53) {
        for kind in [LUKS2, LUKS2_512] {
            go(Run { kind, steps: 400, ..DEVICE }, DEVICE_TRANSFER_MAX, seed);
        }
    }
}
