//! `kill -9` of a server under load, over each export.

use crate::image::{Image, Kind, LUKS1, LUKS2, LUKS2_512};
use crate::load::{Disk, Load, volume_len};
use crate::nbd_client::NbdClient;
use crate::process::run;
use crate::scratch::Scratch;
use crate::server::{On, Server};

const WRITERS: u64 = 4;

/// Disks for a load, half of them over each export that the server has.
pub(crate) fn disks(server: &Server, on: On) -> Vec<Disk> {
    let over_nbd = || Disk::Nbd(NbdClient::connect(server.socket()).expect("connected"));
    let over_fuse = || Disk::Fuse(server.open());
    let disk = |number: u64| match on {
        On::Nbd => over_nbd(),
        On::Both if number.is_multiple_of(2) => over_nbd(),
        On::Fuse | On::Both => over_fuse(),
    };
    (0..WRITERS).map(disk).collect()
}

/// An image for a load.
pub(crate) fn image(scratch: &Scratch, kind: Kind) -> Image {
    Image::by_cryptsetup(scratch, kind, volume_len(WRITERS))
}

/// Kills the server at several moments, and goes on with the same image each time.
fn acknowledged_writes_survive(kind: Kind, on: On, seed: u64) {
    let scratch = Scratch::new();
    let image = image(&scratch, kind);
    for (round, writes) in (0..).zip([40, 117, 350]) {
        let server = Server::start(&scratch, on, &image.with_key());
        let load = Load::start(seed + round, disks(&server, on));
        load.await_writes(writes);
        server.kill();
        for mount in scratch.mounts() {
            rustix::mount::unmount(mount, rustix::mount::UnmountFlags::DETACH).expect("unmounted");
        }
        load.check(&run(&mut image.ucrypt(&scratch, "read"), b"").passes());
    }
}

#[test]
fn acknowledged_writes_survive_a_killed_server_over_nbd() {
    acknowledged_writes_survive(LUKS2, On::Nbd, 100);
    acknowledged_writes_survive(LUKS1, On::Nbd, 200);
}

#[test]
fn acknowledged_writes_survive_a_killed_server_over_fuse() {
    acknowledged_writes_survive(LUKS2, On::Fuse, 300);
    acknowledged_writes_survive(LUKS2_512, On::Fuse, 400);
}

#[test]
fn acknowledged_writes_survive_a_killed_server_with_both_exports() {
    acknowledged_writes_survive(LUKS2, On::Both, 500);
}
