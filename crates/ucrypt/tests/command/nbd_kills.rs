//! `kill -9` of an NBD server under the test kit's random client. The client goes on with the next
//! server and checks it for everything that was acknowledged before.
//!
//! `UCRYPT_KILLS=N` sets how often each server is killed, `UCRYPT_SEED=N` repeats a run.

use std::time::Duration;

use ucrypt_testkit::given::number;
use ucrypt_testkit::nbd::{NbdOptions, NbdPort};
use ucrypt_testkit::{Client, Initial, Plan, Port, Random, Shape, Watchdog, Whole};

use crate::image::{Image, Kind, LUKS2, LUKS2_512};
use crate::process::run;
use crate::scratch::Scratch;
use crate::server::{On, Server};

const LEN: u64 = 16 << 20;

const CONNECTIONS: u64 = 4;

fn serve(scratch: &Scratch, image: &Image, options: &[&str]) -> Server {
    let mut line = image.with_key();
    line.extend(["--allow-discards"].iter().chain(options).map(Into::into));
    Server::start(scratch, On::Nbd, &line)
}

fn connect(server: &Server) -> Vec<Box<dyn Port>> {
    let port = |index: u64| {
        let options = NbdOptions { structured: index.is_multiple_of(2), unsent_max: 4 << 20 };
        let port = NbdPort::connect(server.socket(), options).expect("a connection");
        Box::new(port) as Box<dyn Port>
    };
    (0..CONNECTIONS).map(port).collect()
}

/// An acknowledged write is there, flushed or not, because the kernel outlives the server. Of a
/// write without a reply, each sector is old or new.
fn everything_acknowledged_survives(kind: Kind, options: &[&str]) {
    let seed = number("UCRYPT_SEED", kind.sector.into());
    println!("UCRYPT_SEED={seed}");
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, kind, LEN);
    // Now every byte is known.
    run(&mut image.ucrypt(&scratch, "write"), &vec![0; LEN as usize]).passes();
    let shape = Shape { mix: [25, 50, 12, 3, 10], ..Shape::everything(LEN) };
    let plan = Plan {
        initial: Initial::Zeroes,
        sector: kind.sector.into(),
        whole: Whole::cached(512),
        operations: u64::MAX,
        depth: 32,
        watchdog: Watchdog::Time(Duration::from_secs(60)),
        ..Plan::new(seed, shape)
    };
    let mut client = Client::new(plan, CONNECTIONS as usize);
    let mut random = Random::new(seed);
    for round in 0..number("UCRYPT_KILLS", 3) {
        let passes = |failure| panic!("round {round}: {failure}");
        let server = serve(&scratch, &image, options);
        let mut ports = connect(&server);
        client.read_all(&mut ports).unwrap_or_else(passes);
        for _ in 0..random.below(600) {
            client.step(&mut ports).unwrap_or_else(passes);
        }
        server.kill();
        client.lose(&mut ports).unwrap_or_else(passes);
    }
    let server = serve(&scratch, &image, &[]);
    client.read_all(&mut connect(&server)).unwrap_or_else(|failure| panic!("{failure}"));
    server.terminate();
}

#[test]
fn what_was_acknowledged_is_there_after_each_kill_of_an_nbd_server() {
    everything_acknowledged_survives(LUKS2_512, &[]);
    everything_acknowledged_survives(LUKS2, &[]);
}

#[test]
fn what_was_acknowledged_is_there_after_each_kill_of_an_nbd_server_with_direct_io() {
    everything_acknowledged_survives(LUKS2, &["--direct"]);
}
