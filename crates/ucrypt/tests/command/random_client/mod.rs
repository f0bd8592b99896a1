//! A seeded client that does everything a program may do with a served file or disk, in any order,
//! and compares it byte for byte with a model in memory. A program that does one thing after the
//! other knows exactly what the file must hold and what each system call must return.
//!
//! [`operation`] generates the operations, [`client`] carries them out, [`model`] holds the
//! expected content, [`watchdog`] notices a stalled run. [`concurrent`] runs many transfers on the
//! same bytes at once. `UCRYPT_SEED=N` repeats a run of one seed.

mod client;
mod concurrent;
mod model;
mod operation;
mod watchdog;

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::process::{Pid, Signal, kill_process};
use ucrypt_testkit::Random;

use crate::image::{Image, Kind, LUKS2, LUKS2_512};
use crate::process::run;
use crate::scratch::Scratch;
use crate::server::{On, Server};
use client::{Client, Target};
use model::Model;
use operation::Generator;
use watchdog::{Progress, Watchdog};

/// The parameters of one run.
#[derive(Debug, Clone, Copy)]
struct Run<'a> {
    kind: Kind,
    /// Length of the volume in bytes.
    len: u64,
    target: Target,
    /// Options of `serve` for a file, of `open` for a device.
    options: &'a [&'a str],
    /// Number of concurrent clients, each with a part of the volume.
    clients: u64,
    /// Parts begin at multiples of this.
    part_unit: u64,
    /// Whether the file is also mapped. The kernel writes whole pages through a mapping, so parts
    /// must not share one then.
    mapping: bool,
    /// Operations of each client.
    steps: u64,
}

/// The seeds to try: `UCRYPT_SEED` if set, else those given.
fn seeds(all: Range<u64>) -> Vec<u64> {
    match std::env::var("UCRYPT_SEED") {
        Ok(seed) => vec![seed.parse().expect("UCRYPT_SEED is a number")],
        Err(_) => all.collect(),
    }
}

impl Run<'_> {
    fn go(&self, seed: u64) {
        println!("UCRYPT_SEED={seed} of {self:?}");
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, self.kind, self.len);
        let served = self.serve(&scratch, &image);
        let path = served.path(&scratch);
        let parts = self.parts(seed);
        let progress: Vec<Arc<Progress>> = parts.iter().map(|_| Arc::default()).collect();
        let server = scratch.processes();
        let numbers = server.iter().map(|pid| pid.as_raw_nonzero().get()).collect();
        let watchdog = Watchdog::start(progress.clone(), numbers, move || end(server));
        let models: Vec<Model> = std::thread::scope(|scope| {
            let running: Vec<_> = parts
                .iter()
                .zip(&progress)
                .zip(0..)
                .map(|((part, progress), number)| {
                    let (path, scratch) = (&path, &scratch);
                    let go = move || self.client(seed, number, part, path, scratch, progress);
                    scope.spawn(go)
                })
                .collect();
            running.into_iter().map(|one| one.join().expect("a client is content")).collect()
        });
        drop(watchdog);
        served.end(&scratch);
        // The image holds the same content.
        let now = run(&mut image.ucrypt(&scratch, "read"), b"").passes();
        for (model, part) in models.iter().zip(parts) {
            let found = &now[part.start as usize..part.end as usize];
            assert_eq!(model.difference(part.start, found), None, "in the image");
        }
    }

    fn serve(&self, scratch: &Scratch, image: &Image) -> Served {
        if self.target == Target::File {
            let mut line = image.with_key();
            line.extend(self.options.iter().map(Into::into));
            return Served::File(Server::start(scratch, On::Fuse, &line));
        }
        let mut open = image.ucrypt(scratch, "open");
        open.arg(scratch.unique()).args(["--as", "loop"]).args(self.options);
        run(&mut open, b"").passes();
        Served::Device
    }

    /// Parts of random lengths.
    fn parts(&self, seed: u64) -> Vec<Range<u64>> {
        let mut random = Random::new(seed);
        let mean = self.len / self.clients;
        let mut start = 0;
        let mut parts = Vec::new();
        for number in 1..self.clients {
            let border = number * mean - mean / 4 + random.below(mean / 2);
            let border = border / self.part_unit * self.part_unit;
            parts.push(start..border);
            start = border;
        }
        parts.push(start..self.len);
        parts
    }

    fn client(
        &self,
        seed: u64,
        number: u64,
        part: &Range<u64>,
        path: &Path,
        scratch: &Scratch,
        progress: &Progress,
    ) -> Model {
        let seed = seed ^ number << 32;
        let sent = scratch.path(&format!("sent-{number}"));
        let abilities = self.target.abilities(self.kind.sector.into(), self.mapping);
        let mut generator = Generator::new(seed, part.clone(), self.len, abilities);
        let (target, mapping) = (self.target, self.mapping);
        let mut client = Client::open(target, path, self.len, part.clone(), mapping, &sent, seed);
        for _ in 0..self.steps {
            client.step(generator.next(), progress);
        }
        client.check_all(part.clone(), progress)
    }
}

/// A volume while it is served.
enum Served {
    File(Server),
    Device,
}

impl Served {
    fn path(&self, scratch: &Scratch) -> PathBuf {
        match self {
            Self::File(server) => server.file().into(),
            Self::Device => scratch.device(),
        }
    }

    #[track_caller]
    fn end(self, scratch: &Scratch) {
        match self {
            Self::File(server) => server.terminate(),
            Self::Device => {
                run(scratch.ucrypt(&["close"]).arg(scratch.unique()), b"").passes();
            }
        }
    }
}

/// Makes everything fail that waits for these servers, by killing them.
fn end(servers: Vec<Pid>) {
    for server in servers {
        // It may have ended.
        let _ = kill_process(server, Signal::KILL);
    }
}

const FILE: Run<'_> = Run {
    kind: LUKS2,
    len: 12 << 20,
    target: Target::File,
    options: &[],
    clients: 1,
    part_unit: 1,
    mapping: false,
    steps: 500,
};

/// The first falls back to the second if the kernel lacks it.
const TRANSPORTS: [&[&str]; 2] = [&["--fuse-transport=io_uring"], &["--fuse-transport=classic"]];

#[test]
fn one_program_with_several_descriptors_and_a_mapping_finds_what_it_wrote() {
    for seed in seeds(0..2) {
        for options in TRANSPORTS {
            Run { mapping: true, options, ..FILE }.go(seed);
            let len = (3 << 20) + 512;
            Run { mapping: true, kind: LUKS2_512, len, options, ..FILE }.go(seed);
        }
    }
}

#[test]
fn programs_with_neighbouring_parts_of_a_file_find_what_they_wrote() {
    for seed in seeds(10..12) {
        for options in TRANSPORTS {
            let four = Run { clients: 4, steps: 250, options, ..FILE };
            four.go(seed);
            Run { mapping: true, part_unit: 64 << 10, ..four }.go(seed);
        }
    }
}

const DEVICE: Run<'_> = Run { target: Target::Device { discards: false }, ..FILE };

#[test]
fn one_program_with_several_descriptors_of_a_loop_device_finds_what_it_wrote() {
    for seed in seeds(20..22) {
        for kind in [LUKS2, LUKS2_512] {
            Run { kind, mapping: true, ..DEVICE }.go(seed);
            let target = Target::Device { discards: true };
            Run { kind, target, options: &["--allow-discards"], steps: 250, ..DEVICE }.go(seed);
        }
    }
}

#[test]
fn programs_with_neighbouring_parts_of_a_loop_device_find_what_they_wrote() {
    for seed in seeds(30..32) {
        Run { clients: 4, steps: 250, part_unit: 64 << 10, ..DEVICE }.go(seed);
    }
}

/// A model that can't tell wrong bytes from right ones would pass everything.
#[test]
fn the_model_tells_wrong_bytes_from_right_ones() {
    let mut model = Model::new(100, &[1; 50]);
    assert_eq!(model.difference(100, &[1; 50]), None);
    model.write(110, &[2; 5]);
    model.zero(115, 5);
    model.forget(120, 5);
    model.copy(108, 140, 10);
    let mut right = [1; 50];
    right[10..15].fill(2);
    right[15..25].fill(0);
    right[42..47].fill(2);
    right[47..50].fill(0);
    assert_eq!(model.difference(100, &right), None);
    for index in 0..50 {
        let mut wrong = right;
        wrong[index] ^= 128;
        assert_eq!(model.difference(100, &wrong).is_some(), !(20..25).contains(&index), "{index}");
    }
}

#[test]
fn a_seed_repeats_its_operations_and_keeps_to_its_part() {
    let abilities = Target::File.abilities(512, true);
    let generator = || Generator::new(7, 1000..9000, 20_000, abilities);
    let (mut first, mut second) = (generator(), generator());
    for _ in 0..2000 {
        let operation = first.next();
        assert_eq!(operation, second.next());
        if let operation::Operation::Write { at, len, .. } = operation {
            assert!(at >= 1000 && len > 0 && at + len as u64 <= 9000, "{operation:?}");
        }
    }
}

/// Every thread of a stalled run is named with what it waits for.
#[test]
fn a_run_in_which_nothing_gets_on_is_ended() {
    let (said, heard) = std::sync::mpsc::channel();
    let progress = Arc::new(Progress::default());
    progress.begin("nothing at all".into());
    let watchdog =
        Watchdog::start(vec![progress], Vec::new(), move || said.send(()).expect("it is heard"));
    heard.recv_timeout(std::time::Duration::from_secs(60)).expect("it is ended");
    drop(watchdog);
    assert!(fs::metadata("/proc/self/task").is_ok());
}
