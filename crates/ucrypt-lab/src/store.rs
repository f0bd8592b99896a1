//! The results of a run, in a directory: `run.json` says what was asked for and where, and
//! `results.jsonl` holds one measurement a line. A measurement is on the disk before the next one
//! begins, and a line that was cut off in a crash is left out.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File, Permissions};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::catalogue::{Scale, by_name};
use crate::contender::Contender;
use crate::process::first_line;
use crate::sample::Sample;
use crate::served::Generator;
use crate::target::{LEN_MAX, LEN_MIN, Storage, Target};
use crate::{dd, fio, process};

/// What a run was asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Names of experiments, in their order.
    pub experiments: Vec<String>,
    /// What they run on.
    pub on: Target,
    /// The contenders that the user named.
    pub against: Option<Vec<Contender>>,
    /// Interleaved rounds.
    pub rounds: u32,
    /// Cells.
    pub scale: Scale,
    /// Bytes of the target that are used.
    pub len: u64,
    /// Milliseconds of a measurement.
    pub time_ms: u64,
    /// No target was named: `added-latency` runs on `zero`, as what was published did, and the others on `on`.
    #[serde(default)]
    pub added_on_zero: bool,
    /// The load on served contenders.
    pub generator: Generator,
    /// Another build of ucrypt, the contenders `before-…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<OtherBuild>,
    /// The command line that asked for it.
    pub command: String,
}

/// Another build of ucrypt, to compare with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherBuild {
    /// The path of its command, from the root.
    pub command: PathBuf,
    /// What it says of itself.
    pub version: String,
}

impl OtherBuild {
    /// The build at a path.
    ///
    /// # Errors
    /// If there is none, or it is none of ucrypt, with the path.
    pub fn at(command: &Path) -> Result<Self, String> {
        let wrong = |why: &dyn std::fmt::Display| format!("{}: {why}", command.display());
        let path = fs::canonicalize(command).map_err(|error| wrong(&error))?;
        let said = first_line(std::process::Command::new(&path).arg("--version"));
        let said = said.filter(|said| said.starts_with("ucrypt "));
        let version = said.ok_or_else(|| wrong(&"this is no build of ucrypt"))?;
        Ok(Self { command: path, version })
    }
}

/// Most rounds, and longest measurement in milliseconds.
pub const ROUNDS_MAX: u32 = 1000;
/// See [`ROUNDS_MAX`].
pub const TIME_MS_MAX: u64 = 600_000;

impl Settings {
    /// Refuses settings that no command line gives: `run.json` may have been changed.
    ///
    /// # Errors
    /// Names the wrong value.
    pub fn check(&self) -> Result<(), String> {
        if let Some(name) = self.experiments.iter().find(|name| by_name(name).is_none()) {
            return Err(format!("no experiment is called '{name}'"));
        }
        if !(1..=ROUNDS_MAX).contains(&self.rounds) {
            return Err(format!("{} rounds are not from 1 to {ROUNDS_MAX}", self.rounds));
        }
        if !(1..=TIME_MS_MAX).contains(&self.time_ms) {
            return Err(format!("{} ms are not from 1 to {TIME_MS_MAX}", self.time_ms));
        }
        if self.len < LEN_MIN || self.len > LEN_MAX {
            return Err(format!("{} bytes are not from {LEN_MIN} to {LEN_MAX}", self.len));
        }
        Ok(())
    }
}

/// The machine of a run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// Processors that this process may use.
    pub cores: usize,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// The kernel's release.
    pub kernel: String,
    /// Whether it is a virtual machine, as far as the processor tells.
    pub virtual_machine: bool,
    /// Versions of the programs that may take part, by name.
    pub versions: Vec<(String, String)>,
}

/// Something that a run leaves out, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// The experiment.
    pub experiment: String,
    /// A contender or a cell.
    pub what: String,
    /// The reason, with the remedy.
    pub why: String,
}

/// `run.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// What was asked for.
    pub settings: Settings,
    /// Where.
    pub machine: Machine,
    /// What the target is.
    pub storage: Storage,
    /// Seconds since 1970 at the start.
    pub started_s: u64,
    /// What the run leaves out.
    pub left_out: Vec<LeftOut>,
    /// Who takes part, by experiment.
    #[serde(default)]
    pub contenders: BTreeMap<String, Vec<Contender>>,
    /// The machine of which a model was measured in virtual time (`lab sim --preset`); `None` of a run on this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulated: Option<String>,
}

#[cfg(test)]
impl About {
    /// Of an invented run in memory.
    pub(crate) fn invented(settings: Settings) -> Self {
        let target = crate::held::Held::take(&Target::Memory, 0).expect("memory");
        let (machine, storage) = (Machine::default(), target.storage().expect("memory"));
        let (left_out, contenders) = (Vec::new(), BTreeMap::new());
        let (started_s, simulated) = (1_763_900_000, None);
        Self { settings, machine, storage, started_s, left_out, contenders, simulated }
    }
}

/// One measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The experiment.
    pub experiment: String,
    /// The cell.
    pub cell: String,
    /// The contender.
    pub contender: Contender,
    /// The round, from 0.
    pub round: u32,
    /// The result; absent if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<Sample>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Identifies a measurement within a run.
pub type Key = (String, String, Contender, u32);

impl Record {
    fn key(&self) -> Key {
        (self.experiment.clone(), self.cell.clone(), self.contender, self.round)
    }
}

const ABOUT: &str = "run.json";
const RESULTS: &str = "results.jsonl";

/// The directory of a run, open for writing.
pub struct Store {
    dir: PathBuf,
    results: File,
    done: HashSet<Key>,
}

impl Store {
    /// A new run in `dir`, which is made if it is not there.
    ///
    /// # Errors
    /// If a run is there already, nothing can be written, or another process carries it out.
    pub fn create(dir: &Path, about: &About) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        if dir.join(ABOUT).exists() {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "it holds a run already; go on with --resume, or choose another directory",
            ));
        }
        // Measurements without the run that they belong to are nobody's to add to.
        let results = File::options().create_new(true).append(true).open(dir.join(RESULTS));
        let results = results.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => io::Error::new(
                io::ErrorKind::AlreadyExists,
                format!("it holds {RESULTS} without {ABOUT}; choose another directory"),
            ),
            _ => error,
        })?;
        lock(&results)?;
        let store = Self { dir: dir.into(), results, done: HashSet::new() };
        store.write_about(about).inspect_err(|_| {
            // Without it, they are in the way of the next run.
            let _ = fs::remove_file(dir.join(RESULTS));
        })?;
        Ok(store)
    }

    /// Goes on with the run in `dir`.
    ///
    /// # Errors
    /// If there is none, it cannot be read or written, or another process carries it out.
    pub fn resume(dir: &Path) -> io::Result<(Self, About)> {
        // What is no run stays as it is.
        let about = read(dir)?.about;
        about.settings.check().map_err(|error| invalid(format!("{ABOUT}: {error}")))?;
        if about.simulated.is_some() {
            return Err(invalid(
                "it holds a simulation; begin another one (lab sim --preset)".into(),
            ));
        }
        let path = dir.join(RESULTS);
        let mut results = File::options().create(true).append(true).open(&path)?;
        lock(&results)?;
        // From now on, nobody else adds to it.
        let Kept { about, records, .. } = read(dir)?;
        // A line that was cut off is ended, so that the next one stands alone.
        if !fs::read(&path)?.ends_with(b"\n") && fs::metadata(&path)?.len() > 0 {
            results.write_all(b"\n")?;
        }
        let done = records.iter().filter(|record| record.sample.is_some()).map(Record::key);
        Ok((Self { dir: dir.into(), results, done: done.collect() }, about))
    }

    /// Writes `run.json` anew.
    ///
    /// # Errors
    /// Those of writing.
    pub fn write_about(&self, about: &About) -> io::Result<()> {
        replace(&self.dir.join(ABOUT), &serde_json::to_vec_pretty(about)?)
    }

    /// Whether a measurement was made already.
    pub fn has(&self, key: &Key) -> bool {
        self.done.contains(key)
    }

    /// The measurements that were made already.
    pub fn done(&self) -> impl Iterator<Item = &Key> {
        self.done.iter()
    }

    /// Keeps a measurement.
    ///
    /// # Errors
    /// Those of writing; `FileTooLarge` if nobody could read so many results.
    pub fn add(&mut self, record: &Record) -> io::Result<()> {
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        if self.results.metadata()?.len() + line.len() as u64 > RESULTS_MAX {
            let what = format!(
                "the results are longer than {RESULTS_MAX} bytes; use less --time or --rounds"
            );
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
        }
        self.results.write_all(&line)?;
        self.results.sync_data()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // A program that is just being started has the open file, too, until it has begun.
        let _ = flock(&self.results, FlockOperation::Unlock);
    }
}

/// Writes a file as a whole: who reads it finds what it held before, or all of `content`, also if
/// writing fails or the program is killed. A symbolic link is replaced, not followed; what leads to no
/// file (a pipe, `/dev/stdout`) is written to.
///
/// # Errors
/// Those of writing.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    if fs::metadata(path).is_ok_and(|known| !known.is_file()) {
        return fs::write(path, content);
    }
    let known = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file);
    // As any new file, less the umask.
    let mode = known.map_or(0o666, |known| known.permissions().mode() & 0o777);
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut new = tempfile::Builder::new()
        .prefix(".ucrypt-lab-")
        .permissions(Permissions::from_mode(mode))
        .tempfile_in(dir)?;
    new.write_all(content)?;
    new.as_file().sync_all()?;
    new.persist(path)?;
    Ok(())
}

/// Longest `run.json` and `results.jsonl`, in bytes: they are read into memory.
const ABOUT_MAX: u64 = 16 << 20;
const RESULTS_MAX: u64 = 1 << 30;

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Of two processes that write to a run, each would disturb what the other one measures.
fn lock(results: &File) -> io::Result<()> {
    match flock(results, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Err(io::Error::new(
            io::ErrorKind::ResourceBusy,
            "another process carries this run out; wait for its end",
        )),
        // File systems without locks let everyone in.
        _ => Ok(()),
    }
}

/// Opens a file of a run to read it: at most `max` bytes, and no pipe, which might never end.
///
/// # Errors
/// It is not there, cannot be read, is longer, or is no file.
pub fn open(path: &Path, max: u64) -> io::Result<impl io::Read + use<>> {
    let no_wait = OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(no_wait).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(invalid(format!("{} is no file", path.display())));
    }
    if found.len() > max {
        return Err(invalid(format!("{} is longer than {max} bytes", path.display())));
    }
    // It may grow meanwhile.
    Ok(file.take(max))
}

/// What a directory holds of a run.
#[derive(Debug)]
pub struct Kept {
    /// `run.json`.
    pub about: About,
    /// The measurements.
    pub records: Vec<Record>,
    /// Lines that are whole, but no measurements of this version.
    pub unknown: usize,
}

/// Reads a run. Of a measurement that was made twice, the last one counts. A line that was cut off is left
/// out: its measurement is one that was not made.
///
/// # Errors
/// If there is no run in `dir`, or it is not readable.
pub fn read(dir: &Path) -> io::Result<Kept> {
    let about = open(&dir.join(ABOUT), ABOUT_MAX).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            io::Error::new(io::ErrorKind::NotFound, format!("there is no run in it (no {ABOUT})"))
        }
        _ => error,
    })?;
    let about = io::read_to_string(about)?;
    let about =
        serde_json::from_str(&about).map_err(|error| invalid(format!("{ABOUT}: {error}")))?;
    let mut records: Vec<Record> = Vec::new();
    let (mut places, mut unknown) = (std::collections::HashMap::new(), 0);
    let results = match open(&dir.join(RESULTS), RESULTS_MAX) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Kept { about, records, unknown });
        }
        Err(error) => return Err(error),
    };
    for line in BufReader::new(results).split(b'\n') {
        let record = match serde_json::from_slice::<Record>(&line?) {
            Ok(record) => record,
            Err(error) => {
                unknown += usize::from(error.is_data());
                continue;
            }
        };
        match places.entry(record.key()) {
            std::collections::hash_map::Entry::Occupied(at) => records[*at.get()] = record,
            std::collections::hash_map::Entry::Vacant(at) => {
                at.insert(records.len());
                records.push(record);
            }
        }
    }
    Ok(Kept { about, records, unknown })
}

/// Memory of the same machine, in parts of it: the kernel's own share differs from start to start.
const MEMORY_TOLERANCE: f64 = 0.02;

impl Machine {
    /// What distinguishes this machine, its ucrypt or one of these `programs` of others from those of
    /// an earlier part of a run; `None` if nothing does. Figures of two machines or builds do not
    /// belong into one run.
    pub fn difference(&self, earlier: &Self, programs: &[&str]) -> Option<String> {
        let said = |what: &str, then: &dyn std::fmt::Display, now: &dyn std::fmt::Display| {
            Some(format!("{what} was {then} when the run began and is {now} now"))
        };
        if self.processor != earlier.processor {
            return said("the processor", &earlier.processor, &self.processor);
        }
        if self.cores != earlier.cores {
            return said("the number of cores", &earlier.cores, &self.cores);
        }
        let memory = [self.memory_bytes, earlier.memory_bytes].map(|bytes| bytes as f64);
        if (memory[0] - memory[1]).abs() > MEMORY_TOLERANCE * memory[1] {
            return said("the memory in bytes", &earlier.memory_bytes, &self.memory_bytes);
        }
        if self.kernel != earlier.kernel {
            return said("the kernel", &earlier.kernel, &self.kernel);
        }
        if self.virtual_machine != earlier.virtual_machine {
            return said("a virtual machine", &earlier.virtual_machine, &self.virtual_machine);
        }
        let of = |machine: &Self, program: &str| {
            let found = machine.versions.iter().find(|(name, _)| name == program);
            found.map_or_else(|| "missing".to_owned(), |(_, version)| version.clone())
        };
        ["ucrypt"].iter().chain(programs).find_map(|name| {
            let (then, now) = (of(earlier, name), of(self, name));
            (then != now).then(|| said(name, &then, &now)).flatten()
        })
    }

    /// This machine, now. `ucrypt`: the version of the command, with its commit.
    pub fn this(ucrypt: &str) -> Self {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            let line = info.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kib =
            memory.lines().next().and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
        let mut versions = vec![("ucrypt".to_owned(), ucrypt.to_owned())];
        versions.extend(fio::version().map(|version| ("fio".to_owned(), version)));
        versions.extend(dd::version().map(|version| ("dd".to_owned(), version)));
        for (program, option) in [
            ("qemu-storage-daemon", "--version"),
            ("qemu-nbd", "--version"),
            ("nbdkit", "--version"),
            ("cryptsetup", "--version"),
            ("gocryptfs", "--version"),
            ("fusermount3", "--version"),
            ("losetup", "--version"),
            ("mkfs.ext4", "-V"),
            ("mkfs.xfs", "-V"),
            ("mkfs.btrfs", "-V"),
        ] {
            if process::is_installed(program) {
                let mut command = process::program(program);
                let version = first_line(command.arg(option)).or_else(|| {
                    // That of ext4 says it to its standard error.
                    let mut shell = process::program("sh");
                    shell.args(["-c", "exec \"$@\" 2>&1", "sh"]).arg(command.get_program());
                    first_line(shell.arg(option))
                });
                versions.extend(version.map(|version| (program.to_owned(), version)));
            }
        }
        Self {
            processor: field("model name").unwrap_or_else(|| std::env::consts::ARCH.into()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: kib.map_or(0, |kib: u64| kib << 10),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            virtual_machine: field("flags")
                .is_some_and(|it| it.split(' ').any(|f| f == "hypervisor")),
            versions,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about() -> About {
        let settings = Settings {
            experiments: vec!["instant".into()],
            on: Target::Memory,
            against: Some(vec![Contender::Raw]),
            rounds: 2,
            scale: Scale::Quick,
            len: 1 << 24,
            time_ms: 10,
            added_on_zero: false,
            before: None,
            generator: Generator::BuiltIn,
            command: "ucrypt lab run".into(),
        };
        About::invented(settings)
    }

    fn record(round: u32, mb_s: f64) -> Record {
        Record {
            experiment: "instant".into(),
            cell: "a cell".into(),
            contender: "ucrypt:unbound,unsorted".parse().unwrap(),
            round,
            sample: Some(Sample { mb_s, ..Sample::default() }),
            error: None,
        }
    }

    #[test]
    fn a_run_that_was_cut_off_goes_on_and_loses_only_the_torn_line() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("new/run");
        let mut store = Store::create(&place, &about()).unwrap();
        store.add(&record(0, 1.0)).unwrap();
        drop(store);
        assert!(Store::create(&place, &about()).is_err(), "a run is there already");
        let torn = serde_json::to_string(&record(1, 2.0)).unwrap();
        let mut results = File::options().append(true).open(place.join(RESULTS)).unwrap();
        results.write_all(&torn.as_bytes()[..torn.len() / 2]).unwrap();
        let (mut store, again) = Store::resume(&place).unwrap();
        assert_eq!(again, about());
        assert!(store.has(&record(0, 0.0).key()) && !store.has(&record(1, 0.0).key()));
        store.add(&record(1, 3.0)).unwrap();
        let records = read(&place).unwrap().records;
        assert_eq!(records, [record(0, 1.0), record(1, 3.0)]);
        assert!(read(dir.path()).is_err(), "no run");
    }

    #[test]
    fn a_run_that_cannot_be_described_leaves_nothing_in_its_directory() {
        use std::os::unix::ffi::OsStrExt as _;
        let dir = tempfile::tempdir().unwrap();
        let mut other = about();
        // JSON has no such names.
        let name = std::ffi::OsStr::from_bytes(b"/dev/\xff");
        other.settings.on = Target::Device(name.into());
        assert!(Store::create(dir.path(), &other).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        Store::create(dir.path(), &about()).expect("nothing is in its way");
    }

    #[test]
    fn lines_of_another_version_are_counted_and_a_torn_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = Store::create(dir.path(), &about()).unwrap();
        store.add(&record(0, 1.0)).unwrap();
        drop(store);
        let mut results = File::options().append(true).open(dir.path().join(RESULTS)).unwrap();
        let line = serde_json::to_string(&record(1, 2.0)).unwrap();
        let other = line.replace("ucrypt:unbound,unsorted", "a-server-to-come");
        assert_ne!(other, line);
        results.write_all(format!("{other}\n{}", &line[..line.len() / 2]).as_bytes()).unwrap();
        let kept = read(dir.path()).unwrap();
        assert_eq!((kept.records.len(), kept.unknown), (1, 1));
    }

    #[test]
    fn a_run_is_carried_out_by_one_process_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::create(dir.path(), &about()).unwrap();
        let busy = Store::resume(dir.path()).err().expect("refused");
        assert_eq!(busy.kind(), io::ErrorKind::ResourceBusy, "{busy}");
        read(dir.path()).expect("it can be looked at");
        // A program that is being started has the open file, too.
        let childs = store.results.try_clone().unwrap();
        drop(store);
        let (store, _) = Store::resume(dir.path()).unwrap();
        assert!(Store::resume(dir.path()).is_err());
        drop((store, childs));
    }

    #[test]
    fn what_is_no_file_is_refused_and_not_waited_for() {
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        for name in [ABOUT, RESULTS] {
            let dir = tempfile::tempdir().unwrap();
            drop(Store::create(dir.path(), &about()).unwrap());
            let path = dir.path().join(name);
            fs::remove_file(&path).unwrap();
            let pipe = rustix::fs::FileType::Fifo;
            rustix::fs::mknodat(rustix::fs::CWD, &path, pipe, mode, 0).unwrap();
            let refused = read(dir.path()).expect_err("a pipe").to_string();
            assert!(refused.contains("is no file"), "{refused}");
        }
    }

    #[test]
    fn measurements_without_their_run_are_not_added_to() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(RESULTS), "{}\n").unwrap();
        let refused = Store::create(dir.path(), &about()).err().expect("refused").to_string();
        assert!(refused.contains(RESULTS), "{refused}");
        assert_eq!(fs::read(dir.path().join(RESULTS)).unwrap(), b"{}\n");
        assert!(!dir.path().join(ABOUT).exists());
    }

    #[test]
    fn another_machine_another_build_and_another_program_that_takes_part_are_told_apart() {
        type Change = fn(&mut Machine);
        let machine = Machine {
            processor: "A processor".into(),
            cores: 2,
            memory_bytes: 8 << 30,
            kernel: "6.1".into(),
            virtual_machine: true,
            versions: vec![("ucrypt".into(), "0.1.0 (a)".into()), ("fio".into(), "fio-3".into())],
        };
        let programs = ["nbdkit", "fio"];
        assert_eq!(machine.difference(&machine, &programs), None);
        let restarted = Machine { memory_bytes: (8 << 30) - 4096, ..machine.clone() };
        assert_eq!(restarted.difference(&machine, &programs), None);
        let changes: [(&str, Change); 8] = [
            ("processor", |it| it.processor = "another".into()),
            ("cores", |it| it.cores = 3),
            ("memory", |it| it.memory_bytes = 4 << 30),
            ("kernel", |it| it.kernel = "6.2".into()),
            ("virtual machine", |it| it.virtual_machine = false),
            ("ucrypt", |it| it.versions[0].1 = "0.1.0 (b)".into()),
            ("fio", |it| it.versions.truncate(1)),
            ("nbdkit", |it| it.versions.push(("nbdkit".into(), "1".into()))),
        ];
        for (named, change) in changes {
            let mut other = machine.clone();
            change(&mut other);
            let difference = other.difference(&machine, &programs).expect("another one");
            assert!(difference.contains(named), "{named}: {difference}");
            // Programs that take no part may come and go.
            let difference = other.difference(&machine, &[]);
            assert_eq!(difference.is_none(), programs.contains(&named), "{named}: {difference:?}");
        }
        let this = Machine::this("0.1.0 (a commit)");
        assert_eq!(this.difference(&this, &programs), None);
        assert_eq!(this.versions[0], ("ucrypt".into(), "0.1.0 (a commit)".into()));
    }

    #[test]
    fn a_changed_run_is_refused_before_anything_is_done() {
        let dir = tempfile::tempdir().unwrap();
        let changes: [fn(&mut Settings); 5] = [
            |settings| settings.rounds = u32::MAX,
            |settings| settings.time_ms = 0,
            |settings| settings.len = 0,
            |settings| settings.len = u64::MAX,
            |settings| settings.experiments.push("no-such".into()),
        ];
        for (at, change) in changes.into_iter().enumerate() {
            let mut about = about();
            about.settings.check().expect("sound");
            change(&mut about.settings);
            let place = dir.path().join(at.to_string());
            Store::create(&place, &about).unwrap();
            assert!(Store::resume(&place).is_err(), "change {at}");
        }
    }

    #[test]
    fn a_link_of_the_run_leads_nobodys_page_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let (page, elsewhere) = (dir.path().join("report.html"), dir.path().join("elsewhere"));
        fs::write(&elsewhere, "kept").unwrap();
        std::os::unix::fs::symlink(&elsewhere, &page).unwrap();
        replace(&page, b"a page").unwrap();
        assert_eq!(fs::read(&elsewhere).unwrap(), b"kept");
        assert!(!page.is_symlink() && fs::read(&page).unwrap() == b"a page");
        fs::set_permissions(&page, Permissions::from_mode(0o640)).unwrap();
        replace(&page, b"another").unwrap();
        assert_eq!(page.metadata().unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "something is left");
    }
}
