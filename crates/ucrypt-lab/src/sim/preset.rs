//! An experiment of `lab run` in virtual time, on a model of a published machine: every policy in every cell, also
//! where nothing was published, as of the heat map.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use ucrypt_engine::{CipherModel, Fixed, PolicyKind};

use super::drives;
use super::history::{
    BEAGLEBONE, BLOCK_MAX, Changes, Load, NO_CIPHER, OPTANE, Preset, Progress, SSD, job,
};
use crate::catalogue::{Cell, Description, Method, Scale};
use crate::contender::Contender;
use crate::sample::Sample;
use crate::served::Generator;
use crate::store::{About, LeftOut, Machine, Record, Settings};
use crate::target::{LEN_MAX, Storage, Target};
use crate::world::Stalls;
use crate::{Job, Report};

/// 2020: two processors with 40 cores, here with one of the drives that take no time. See `many-drives`.
const XEON: Preset = Preset {
    device: "null",
    cores: drives::CORES,
    cipher: drives::CIPHER,
    stalls: Stalls { per_mille: 0, max_ns: 0 },
};

/// Name, what it is, and the machine.
const PRESETS: [(&str, &str, Preset); 4] = [
    ("beaglebone2015", "the BeagleBone of 2015 with its SD card and engine", BEAGLEBONE),
    ("ssd2017", "the desktop of 2017 with a SATA SSD", SSD),
    ("optane2020", "the machine of 2020 with an Optane drive", OPTANE),
    ("xeon2020", "the dual Xeon of 2020 with a drive that takes no time", XEON),
];

/// The names of the published machines.
pub fn names() -> impl Iterator<Item = &'static str> {
    PRESETS.iter().map(|(name, ..)| *name)
}

/// Whether an experiment is of loads that can be simulated: neither servers, file systems, nor slices of real time.
pub fn takes(description: &Description) -> bool {
    let is_load = matches!(description.method, Method::Load | Method::Added);
    is_load && policies(description).next().is_some()
}

/// The policies that an experiment compares.
fn policies(description: &Description) -> impl Iterator<Item = Contender> {
    let named = description.against.iter().filter_map(|name| name.parse().ok());
    named.filter(|it| matches!(it, Contender::Ucrypt(_)))
}

/// What is simulated.
#[derive(Debug, Clone)]
pub struct Asked<'a> {
    /// Name of the machine.
    pub preset: &'a str,
    /// The experiments; each is one that [`takes`] takes.
    pub experiments: &'a [&'static Description],
    /// Their cells.
    pub scale: Scale,
    /// What is different from the published machine.
    pub changes: Changes,
    /// The version of the command, and its command line.
    pub command: (&'a str, &'a str),
}

/// One load of a simulation.
type Turn = (&'static Description, Cell, Contender);

impl Asked<'_> {
    fn preset(&self) -> io::Result<&'static (&'static str, &'static str, Preset)> {
        let unknown = || io::Error::other(format!("no machine is called '{}'", self.preset));
        PRESETS.iter().find(|(name, ..)| *name == self.preset).ok_or_else(unknown)
    }

    /// The description of the run, which [`Asked::run`] carries out.
    ///
    /// # Errors
    /// If no machine has the name.
    pub fn about(&self) -> io::Result<About> {
        let (_, what, preset) = self.preset()?;
        let experiments = self.experiments;
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let (version, command) = self.command;
        let changes = self.changes.describe().map(|changes| format!(", changed: {changes}"));
        let simulated = format!("{what}{}", changes.unwrap_or_default());
        let settings = Settings {
            experiments: experiments.iter().map(|it| it.name.to_owned()).collect(),
            on: Target::Model(preset.device.into()),
            against: None,
            rounds: 1,
            scale: self.scale,
            len: LEN_MAX,
            time_ms: 1,
            added_on_zero: false,
            generator: Generator::BuiltIn,
            before: None,
            command: command.into(),
        };
        let machine = Machine {
            processor: format!("a model of {simulated}"),
            cores: self.changes.cores(preset.cores) as usize,
            kernel: "none (virtual time)".into(),
            versions: vec![("ucrypt".into(), version.into())],
            ..Machine::default()
        };
        let storage = Storage {
            direct: false,
            cached: false,
            mapped: false,
            block_bytes: crate::experiment::SECTOR_BYTES,
            device: None,
        };
        let cells = |it: &&'static Description| {
            it.cells(self.scale).into_iter().map(|cell| (it.name, cell))
        };
        let long =
            experiments.iter().flat_map(cells).filter(|(_, cell)| cell.block_bytes > BLOCK_MAX);
        let left_out = long.map(|(experiment, cell)| LeftOut {
            experiment: experiment.into(),
            what: cell.name,
            why: "no request longer than 32 MiB is simulated".into(),
        });
        let contenders = experiments.iter().map(|it| {
            let all = [Contender::Raw, Contender::Null].into_iter().chain(policies(it));
            (it.name.to_owned(), all.collect())
        });
        Ok(About {
            settings,
            machine,
            storage,
            started_s: since.map_or(0, |since| since.as_secs()),
            left_out: left_out.collect(),
            contenders: contenders.collect(),
            simulated: Some(simulated),
        })
    }

    fn turns(&self, about: &About) -> Vec<Turn> {
        let mut turns = Vec::new();
        for description in self.experiments {
            let cells = description.cells(self.scale).into_iter();
            for cell in cells.filter(|cell| cell.block_bytes <= BLOCK_MAX) {
                let all = about.contenders.get(description.name).into_iter().flatten();
                turns.extend(all.map(|contender| (*description, cell.clone(), *contender)));
            }
        }
        turns
    }

    /// Simulates every contender in every cell, and hands each result to `keep`. Returns whether it came to the end.
    ///
    /// # Errors
    /// Those of `keep`, or no machine has the name.
    pub fn run(
        &self,
        about: &About,
        keep: &mut dyn FnMut(Record) -> io::Result<()>,
        (stop, progress): (&AtomicBool, Progress<'_>),
    ) -> io::Result<bool> {
        let (.., preset) = self.preset()?;
        let turns = self.turns(about);
        let load = |cell: &Cell| {
            let job = job(cell.pattern, cell.block_bytes, cell.depth);
            // Of these, the 300 are measured that a p99 takes.
            Load { job: Job { requests: job.requests * 3 / 2, ..job }, queues: cell.jobs }
        };
        let all: f64 = turns.iter().map(|(_, cell, _)| load(cell).work()).sum();
        let mut done = 0.0;
        for (description, cell, contender) in turns {
            let load = load(&cell);
            progress(&format!("{}: {contender}, {}", description.name, cell.name), done / all);
            done += load.work();
            let (policy, cipher) = on(contender, preset.cipher);
            let preset = Preset { cipher, ..*preset };
            let ran = preset.run(&self.changes, load, policy, stop);
            if stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
            let (sample, error) = match ran {
                Ok(report) => (Some(sample(&report)), None),
                Err(error) => (None, Some(error.to_string())),
            };
            let (experiment, cell) = (description.name.to_owned(), cell.name);
            keep(Record { experiment, cell, contender, round: 0, sample, error })?;
        }
        Ok(true)
    }
}

/// The policy and the cipher that stand for a contender.
fn on(contender: Contender, cipher: CipherModel) -> (PolicyKind, CipherModel) {
    match contender {
        Contender::Ucrypt(policy) => (policy, cipher),
        Contender::Null => (PolicyKind::Adaptive, NO_CIPHER),
        _ => (Fixed::Inline.into(), NO_CIPHER),
    }
}

/// Latencies of one direction, or the larger ones of both.
fn sample(report: &Report) -> Sample {
    let (reads, writes) = (report.reads, report.writes);
    let us = |ns: u64| ns as f64 / 1000.0;
    let count = reads.count + writes.count;
    let mean_ns = (reads.mean_ns * reads.count as f64 + writes.mean_ns * writes.count as f64)
        / count.max(1) as f64;
    Sample {
        mb_s: report.mb_s,
        mean_us: mean_ns / 1000.0,
        p50_us: us(reads.p50_ns.max(writes.p50_ns)),
        p99_us: us(report.p99_ns()),
        requests: count,
        seconds: report.end_ns as f64 / 1e9,
        load: super::VIRTUAL_TIME.into(),
        ..Sample::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::Analysis;
    use crate::catalogue::{ALL, by_name};

    #[test]
    fn a_published_machine_has_every_policy_of_an_experiment_in_every_cell() {
        let go = AtomicBool::new(false);
        let description = by_name("heat-map").expect("an experiment");
        let asked = Asked {
            preset: "optane2020",
            experiments: &[description],
            scale: Scale::Quick,
            changes: Changes::default(),
            command: ("1", "ucrypt lab sim"),
        };
        let about = asked.about().expect("a machine");
        assert!(about.simulated.as_ref().is_some_and(|it| it.contains("Optane")), "{about:?}");
        let (mut records, shares) = (Vec::new(), std::cell::RefCell::new(Vec::new()));
        let mut keep = |record| {
            records.push(record);
            Ok(())
        };
        let progress = |_: &str, share| shares.borrow_mut().push(share);
        assert!(asked.run(&about, &mut keep, (&go, &progress)).expect("it runs"));
        let cells = description.cells(Scale::Quick).len();
        assert_eq!(records.len(), cells * (description.against.len() + 2));
        assert!(shares.into_inner().is_sorted());
        let analysis = Analysis::new(about, &records);
        assert!(analysis.gaps.is_empty(), "{:?}", analysis.gaps);
        let experiment = &analysis.experiments[0];
        assert!(experiment.on.contains("virtual time"), "{}", experiment.on);
        for figure in experiment.cells.iter().flat_map(|cell| &cell.figures) {
            assert!(figure.mb_s.median > 0.0 && figure.p99_us.is_some(), "{figure:?}");
            assert_eq!(crate::text::doubts(figure), "", "there is no chance in virtual time");
        }
        // Chance excludes nothing there.
        assert_eq!(analysis.compared, analysis.telling);
        assert!(analysis.shortfalls.iter().all(|short| short.is_certain));
        // Stopped, it keeps nothing more.
        go.store(true, Ordering::Relaxed);
        let mut keep = |_| Err(io::Error::other("it was stopped"));
        let about = asked.about().expect("a machine");
        assert!(!asked.run(&about, &mut keep, (&go, &|_, _| {})).expect("it stops"));
    }

    #[test]
    fn experiments_without_policies_or_loads_do_not_run_on_a_published_machine() {
        let taken = ALL.iter().filter(|it| takes(it)).map(|it| it.name).collect::<Vec<_>>();
        let loads = ["block-sweep", "workqueues", "heat-map", "added-latency", "other-ssd"];
        assert_eq!(taken, [&loads[..], &["request-merge"]].concat());
        for preset in names() {
            let asked = Asked {
                preset,
                experiments: &[],
                scale: Scale::Full,
                changes: Changes::default(),
                command: ("", ""),
            };
            assert!(asked.about().is_ok(), "{preset}");
        }
    }
}
