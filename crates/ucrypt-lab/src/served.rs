//! The contenders that are processes: servers over scratch images, and loop devices.
//!
//! All images hold the same random bytes: raw, and as the data of a LUKS1 volume (aes-xts-plain64,
//! 512 bits, sectors of 512 bytes), which is what all peers open but gocryptfs, which has a format of
//! its own and holds them in a file. Some servers of ours take a LUKS2 volume with sectors of 4096 bytes. Servers are started anew for each
//! measurement, with their defaults. A server that answers nothing is killed.
//!
//! On a block device there is one image for all: each has the device for itself in its turn, and the same bytes of it. The
//! turn of who reads a LUKS header begins with that header being written to the start of the device, where the turn of
//! who reads none may write data.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise};
use rustix::mount::{FsOpenFlags, UnmountFlags, fsopen, unmount};
use tempfile::TempDir;
use ucrypt_backend::{FileBackend, OpenOptions};
use ucrypt_export::loop_device::{self, LoopError};

use crate::bounded::{self, Work};
use crate::contender::Contender;
use crate::dd;
use crate::fio::{self, Address};
use crate::held::Held;
use crate::load::{self, INTERRUPTED, Load, PATIENCE, Place, SLOW_BYTES_S};
use crate::mounted;
use crate::nbd_client::NbdClient;
use crate::ours::{Build, Image, Server, Way};
use crate::process::{self, Running};
use crate::sample::{Own, Sample, Watch};
use crate::shell;
use crate::target;

/// How long a server may take to start.
const START_LIMIT: Duration = Duration::from_secs(60);

/// How long a device may stay in use after its measurement: a file system that was mounted when
/// the run was interrupted is written back and unmounted first.
const CLOSE_LIMIT: Duration = Duration::from_secs(90);

/// How long writing the file in gocryptfs may take.
const FILL_LIMIT: Duration = Duration::from_secs(600);

/// What gocryptfs encrypts.
const CIPHER_DIR: &str = "encrypted";

/// How often a device that is in use is closed again.
const CLOSE_EVERY: Duration = Duration::from_millis(100);

/// The exit code of `ucrypt close` for a volume that is in use.
const IN_USE: i32 = 5;

/// The action of ucrypt's servers, on their command lines.
const SERVER_ACTION: &[u8] = b"serve-in-background";

/// Short programs that must not be interrupted: what they have attached would stay.
static TO_THE_END: AtomicBool = AtomicBool::new(false);

/// Where the offset of the data stands in a LUKS1 header: big endian, in 512-byte sectors (LUKS1
/// On-Disk Format Specification, table 1).
const PAYLOAD_OFFSET_AT: u64 = 104;

/// What makes the load on served contenders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Generator {
    /// fio.
    Fio,
    /// dd.
    Dd,
    /// This program.
    BuiltIn,
}

/// What could not be ended or removed. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Left(Arc<Mutex<Vec<(PathBuf, String)>>>);

impl Left {
    /// Notes something that still needs the directory `dir`.
    fn note(&self, dir: &Path, what: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((dir.into(), what));
    }

    fn needs(&self, dir: &Path) -> bool {
        let left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        left.iter().any(|(of, _)| of == dir)
    }

    /// Whether anything is left.
    pub fn any(&self) -> bool {
        !self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// What is left, with the command that ends it. Empty afterwards.
    pub fn take(&self) -> Vec<String> {
        let left = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        left.into_iter().map(|(_, what)| what).collect()
    }
}

/// What is said of a contender that has no direct I/O, where the others have. gocryptfs drops `O_DIRECT`
/// for its encrypted files: its blocks are not aligned to those of a disk.
pub(crate) const THROUGH_CACHE: &str = "its files through the page cache";

/// Room for the header of the LUKS1 image.
const HEADER_BYTES: u64 = 4 << 20;

/// Where the data of the LUKS2 image begins, in bytes: where cryptsetup begins them.
const LUKS2_DATA_BYTES: u64 = target::HEADER_BYTES;

/// Bytes of the files of headers beside a block device: one of LUKS1 and one of LUKS2, which are made with some data
/// behind them.
pub(crate) const HEADERS_BYTES: u64 = 24 << 20;

/// Bytes of the images of these contenders for `len` bytes of data.
pub(crate) fn bytes_of_images(len: u64, contenders: &[Contender]) -> u64 {
    let mut more = 0u64;
    if contenders.contains(&Contender::Gocryptfs) {
        // It adds 32 bytes to each block of 4096, and some files of its own.
        more = more.saturating_add(len + len / 128 + (1 << 20));
    }
    let mut ours = contenders.iter().filter_map(|it| it.ours());
    if ours.any(|server| server.image == Image::Sectors4096) {
        more = more.saturating_add(LUKS2_DATA_BYTES + len);
    }
    (2 * len).saturating_add(HEADER_BYTES).saturating_add(more)
}

/// Is told how many bytes have been written, of how many.
pub type Filling<'a> = &'a dyn Fn(u64, u64);

/// How images are made and served.
#[derive(Clone, Copy)]
pub struct Service<'a> {
    /// The command `ucrypt`.
    pub ucrypt: &'a Path,
    /// Another build of it, to compare with.
    pub before: Option<&'a Path>,
    /// They are on a disk: whoever can, goes past the page cache.
    pub direct: bool,
    /// What makes the load.
    pub generator: Generator,
    /// Gets what cannot be ended.
    pub left: &'a Left,
    /// What the user can do if there is no room.
    pub remedy: &'a str,
    /// The target of the run, if it is to be served itself where it is a block device.
    pub device: Option<&'a Held>,
}

/// Scratch images on one storage; removed when dropped, unless a server still needs them.
pub struct Images {
    dir: TempDir,
    ucrypt: PathBuf,
    before: Option<PathBuf>,
    len: u64,
    direct: bool,
    generator: Generator,
    left: Left,
    /// Is served instead of images, which are its headers then.
    device: Option<(PathBuf, File)>,
}

impl Drop for Images {
    fn drop(&mut self) {
        // It holds the control socket by which what is left can be closed.
        if self.left.needs(self.dir.path()) {
            self.dir.disable_cleanup(true);
        }
    }
}

/// Writes the same random MiB over `len` bytes at `offset`. `done` gets the bytes written.
fn fill(
    mut file: &File,
    (offset, len): (u64, u64),
    stop: &AtomicBool,
    done: &AtomicU64,
) -> io::Result<()> {
    let mut data = vec![0; 1 << 20];
    fastrand::Rng::with_seed(1).fill(&mut data);
    file.seek(SeekFrom::Start(offset))?;
    for mib in 0..len >> 20 {
        if stop.load(Ordering::Relaxed) {
            return Err(io::Error::new(io::ErrorKind::Interrupted, INTERRUPTED));
        }
        file.write_all(&data)?;
        done.store((mib + 1) << 20, Ordering::Relaxed);
    }
    Ok(())
}

impl Images {
    /// Makes images of `len` bytes in a directory of their own in `parent`. `progress` is told of the bytes.
    ///
    /// # Errors
    /// If there is no room, a program fails, or `stop` is set.
    pub fn make(
        parent: &Path,
        len: u64,
        service: Service<'_>,
        (stop, progress): (&AtomicBool, Filling<'_>),
    ) -> io::Result<Self> {
        let device = service.device.map(Held::block_device).transpose()?.flatten();
        if device.is_none() {
            target::room(parent, bytes_of_images(len, &[]), service.remedy)?;
        }
        let dir = tempfile::Builder::new().prefix("ucrypt-lab-").tempdir_in(parent)?;
        let Service { ucrypt, before, direct, generator, left, .. } = service;
        let (ucrypt, before, left) = (ucrypt.into(), before.map(Into::into), left.clone());
        let images = Self { dir, ucrypt, before, len, direct, generator, left, device };
        fs::write(images.path("passphrase"), "the passphrase of scratch images")?;
        File::create(images.path("luks.img"))?.set_len(HEADER_BYTES + images.len_beside())?;
        let mut format = program(&images.ucrypt);
        format
            .args(["luksFormat", "-q", "--type", "luks1", "--cipher", "aes-xts-plain64"])
            .args(["--key-size", "512", "--hash", "sha256", "--pbkdf-force-iterations", "1000"])
            .arg("--key-file")
            .arg(images.path("passphrase"))
            .arg(images.path("luks.img"));
        process::run(&mut format, images.dir.path(), START_LIMIT, stop)?;
        let luks = File::options().read(true).write(true).open(images.path("luks.img"))?;
        let mut field = [0; 4];
        luks.read_exact_at(&mut field, PAYLOAD_OFFSET_AT)?;
        let data = u64::from(u32::from_be_bytes(field)) * 512;
        if data > HEADER_BYTES {
            return Err(io::Error::other(
                "the header of the scratch image is longer than expected",
            ));
        }
        if let Some((_, device)) = &images.device {
            luks.set_len(data)?;
            let all = LUKS2_DATA_BYTES + len;
            images.fill(device, (0, all), (stop, progress))?;
            return Ok(images);
        }
        luks.set_len(data + len)?;
        images.fill(&luks, (data, len), (stop, &|done, all| progress(done, 2 * all)))?;
        let raw = File::create(images.path("raw.img"))?;
        images.fill(&raw, (0, len), (stop, &|done, all| progress(all + done, 2 * all)))?;
        Ok(images)
    }

    /// Bytes of data in the file of an image. For a device the file is its header, which is made with some data behind
    /// it.
    fn len_beside(&self) -> u64 {
        if self.device.is_some() { 1 << 20 } else { self.len }
    }

    /// What is served without a cipher.
    fn raw(&self) -> PathBuf {
        self.device.as_ref().map_or_else(|| self.path("raw.img"), |(device, _)| device.clone())
    }

    /// The LUKS1 image.
    fn luks(&self) -> PathBuf {
        self.device.as_ref().map_or_else(|| self.path("luks.img"), |(device, _)| device.clone())
    }

    /// On a device, writes the header that a contender reads to its start.
    ///
    /// # Errors
    /// Those of writing, or `stop` is set.
    pub(crate) fn prepare(&self, contender: Contender, stop: &AtomicBool) -> io::Result<()> {
        let Some((_, device)) = &self.device else { return Ok(()) };
        let below = contender.below_file_system().unwrap_or(contender);
        let image = match below.ours() {
            Some(server) => server.image,
            None if below.is_peer() => Image::Sectors512,
            None => Image::Plain,
        };
        let header = match image {
            Image::Plain => return Ok(()),
            Image::Sectors512 => self.path("luks.img"),
            Image::Sectors4096 => self.luks2(stop)?,
        };
        let bytes = fs::read(header)?;
        let len = bytes.len() as u64;
        self.write(device, len, (stop, &|| ()), move |device, _| device.write_all_at(&bytes, 0))
    }

    /// The build that a server of ours is of.
    fn build(&self, build: Build) -> io::Result<&Path> {
        let before = || io::Error::other("no other build was named (--before)");
        match build {
            Build::This => Ok(&self.ucrypt),
            Build::Before | Build::Control => self.before.as_deref().ok_or_else(before),
        }
    }

    /// An image that a server of ours takes. That with sectors of 4096 bytes is made for the first of them.
    fn image(&self, image: Image, stop: &AtomicBool) -> io::Result<PathBuf> {
        match image {
            Image::Plain => Ok(self.raw()),
            Image::Sectors512 => Ok(self.luks()),
            Image::Sectors4096 => {
                let path = self.luks2(stop)?;
                Ok(self.device.as_ref().map_or(path, |(device, _)| device.clone()))
            }
        }
    }

    /// The LUKS2 image, or its header for a device. It is made once.
    fn luks2(&self, stop: &AtomicBool) -> io::Result<PathBuf> {
        let path = self.path("luks2.img");
        if fs::metadata(&path).is_ok() {
            return Ok(path);
        }
        let bytes = LUKS2_DATA_BYTES + self.len_beside();
        target::room(self.dir.path(), bytes, "use a smaller --size")?;
        // Under its own name when it is whole.
        let unfinished = self.path("luks2.img.new");
        File::create(&unfinished)?.set_len(bytes)?;
        let mut format = program(&self.ucrypt);
        format
            .args(["luksFormat", "-q", "--type", "luks2", "--cipher", "aes-xts-plain64"])
            .args(["--key-size", "512", "--sector-size", "4096", "--pbkdf", "pbkdf2"])
            .args(["--pbkdf-force-iterations", "1000", "--offset"])
            .arg((LUKS2_DATA_BYTES / 512).to_string())
            .arg("--key-file")
            .arg(self.path("passphrase"))
            .arg(&unfinished);
        process::run(&mut format, self.dir.path(), START_LIMIT, stop)?;
        let file = File::options().read(true).write(true).open(&unfinished)?;
        if self.device.is_some() {
            file.set_len(LUKS2_DATA_BYTES)?;
        } else {
            self.fill(&file, (LUKS2_DATA_BYTES, self.len), (stop, &|_, _| {}))?;
        }
        fs::rename(unfinished, &path)?;
        Ok(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn fill(
        &self,
        file: &File,
        (offset, len): (u64, u64),
        (stop, progress): (&AtomicBool, Filling<'_>),
    ) -> io::Result<()> {
        let done = Arc::new(AtomicU64::new(0));
        let written = done.clone();
        let look = || progress(done.load(Ordering::Relaxed), len);
        self.write(file, len, (stop, &look), move |file, stop| {
            fill(file, (offset, len), stop, &written)
        })
    }

    /// Writes `len` bytes, to a file or a device that may never answer, and takes them out of the page cache: a
    /// contender without direct I/O would read them from there.
    fn write(
        &self,
        file: &File,
        len: u64,
        (stop, look): (&AtomicBool, &dyn Fn()),
        write: impl FnOnce(&File, &AtomicBool) -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let failed = |error: io::Error| {
            let place = self.device.as_ref().map_or(self.dir.path(), |(device, _)| device);
            let place = place.display();
            io::Error::new(error.kind(), format!("cannot write to {place}: {error}"))
        };
        // Few disks write a file as slowly as that.
        let limit = PATIENCE + Duration::from_secs(4 * len / SLOW_BYTES_S);
        let file = file.try_clone()?;
        let work: Work<()> = Box::new(move |stop| {
            write(&file, stop)?;
            file.sync_all()?;
            Ok(fadvise(&file, 0, None, Advice::DontNeed)?)
        });
        bounded::carry_out(vec![work], limit, stop, look).map_err(failed)?;
        Ok(())
    }

    /// Serves the images by a contender, measures a load on it, and ends it.
    ///
    /// # Errors
    /// If the contender or the load fails, or `stop` is set.
    pub fn run(
        &self,
        contender: Contender,
        load: Load<'_>,
        stop: &AtomicBool,
    ) -> io::Result<Sample> {
        if contender.below_file_system().is_some() {
            return mounted::run(self, contender, load, stop);
        }
        let served = self.serve(contender, stop)?;
        let (server, timed) = (served.own.server, load.times);
        // Measured once, before the watch begins.
        let startup_s = if self.generator == Generator::Fio { fio::startup_s() } else { None };
        let mut watch = Watch::start(served.own.clone());
        let sample = match self.generator {
            Generator::Fio => {
                // A load that is tried again, for longer, is watched from then on.
                let mut begin = || watch = Watch::start(served.own.clone());
                let place = (self.dir.path(), server);
                fio::run_watched(&served.address, load, place, stop, &mut begin)?
            }
            Generator::Dd => dd::run(&served.address, load, (self.dir.path(), server), stop)?,
            Generator::BuiltIn => process::guarded(server, load.limit(), stop, || {
                load::run(&place(&served.address, self.len, false)?, load, stop)
            })?,
        };
        let load = if contender == Contender::Gocryptfs && self.direct {
            format!("{}; {THROUGH_CACHE}", sample.load)
        } else {
            sample.load
        };
        let processor = startup_s.and_then(|startup_s| {
            // Nothing is counted before the ramp is over, but it takes time like the rest.
            let ramp = timed.ramp.as_secs_f64() / timed.measured.as_secs_f64().max(1e-9);
            watch.processor(sample.requests as f64 * (1.0 + ramp), startup_s)
        });
        Ok(Sample { disturbance: watch.end(), processor, load, ..sample })
    }

    /// Starts a contender.
    fn serve(&self, contender: Contender, stop: &AtomicBool) -> io::Result<Served> {
        if contender == Contender::File {
            let address = Address::Path(self.raw());
            return Ok(Served { address, own: Own::default(), _end: End::Nothing });
        }
        if contender.is_device() {
            return self.attach(contender, stop);
        }
        let is_dir = contender == Contender::Gocryptfs;
        let ours = contender.ours();
        let fuse = is_dir
            || matches!(contender, Contender::QemuStorageDaemon | Contender::Copy(Way::Fuse))
            || ours.is_some_and(|it| it.way == Way::Fuse);
        let place = self.path(match (is_dir, fuse) {
            (true, _) => "files",
            (_, true) => "served",
            _ => "socket",
        });
        if is_dir {
            self.make_cipher_dir(stop)?;
            fs::create_dir_all(&place)?;
        } else if fuse {
            File::create(&place)?;
        }
        let mut command = match ours {
            Some(server) => self.server(server, &place, stop)?,
            None => self.command(contender, &place)?,
        };
        let server = Running::start(&mut command, &self.path("server.log"), ours.is_some())?;
        let pid = Some(server.pid());
        let ready = match (ours, is_dir, fuse) {
            (Some(_), ..) => Ready::Says,
            (_, true, _) => Ready::Mounts,
            (.., true) => Ready::Grows(self.len),
            _ => Ready::Listens,
        };
        let served = started(server, (&place, fuse), ready, stop)?;
        let address = if is_dir {
            let file = place.join("data");
            process::guarded(pid, FILL_LIMIT, stop, || self.fill_once(&file, stop))?;
            Address::Path(file)
        } else if fuse {
            Address::Path(place)
        } else {
            Address::Nbd(place)
        };
        let own = Own { server: pid, ..Own::default() };
        Ok(Served { address, own, _end: End::Server(served) })
    }

    /// Makes what gocryptfs serves, once.
    fn make_cipher_dir(&self, stop: &AtomicBool) -> io::Result<()> {
        let dir = self.path(CIPHER_DIR);
        if dir.join("gocryptfs.conf").exists() {
            return Ok(());
        }
        // Its file is as long as each of the images.
        target::room(self.dir.path(), self.len, "use a smaller --size")?;
        fs::create_dir_all(&dir)?;
        let mut init = process::program("gocryptfs");
        // The least cost of a key derivation.
        init.args(["-init", "-q", "-scryptn", "10", "-passfile"]);
        init.arg(self.path("passphrase")).arg(dir);
        process::run(&mut init, self.dir.path(), START_LIMIT, stop)
    }

    /// Writes the file in gocryptfs, once.
    fn fill_once(&self, path: &Path, stop: &AtomicBool) -> io::Result<()> {
        if fs::metadata(path).is_ok_and(|found| found.len() == self.len) {
            return Ok(());
        }
        let file = File::create(path)?;
        self.fill(&file, (0, self.len), (stop, &|_, _| {}))
    }

    fn command(&self, contender: Contender, place: &Path) -> io::Result<Command> {
        let (raw, luks) = (self.raw(), self.luks());
        // QEMU's driver of files refuses devices.
        let driver = if self.device.is_some() { "host_device" } else { "file" };
        let key = self.path("passphrase");
        // QEMU's options end at a comma that is not doubled.
        let qemu = |path: &Path| path.display().to_string().replace(',', ",,");
        let (qemu_luks, qemu_key) = (qemu(&luks), qemu(&key));
        let words = match contender {
            Contender::QemuStorageDaemon => {
                let direct = if self.direct { ",cache.direct=on,aio=native" } else { "" };
                vec![
                    "qemu-storage-daemon".into(),
                    "--object".into(),
                    format!("secret,id=key,file={qemu_key}"),
                    "--blockdev".into(),
                    format!("driver={driver},node-name=file,filename={qemu_luks}{direct}"),
                    "--blockdev".into(),
                    "driver=luks,node-name=luks,file=file,key-secret=key".into(),
                    "--export".into(),
                    format!(
                        "type=fuse,id=export,node-name=luks,mountpoint={},writable=on",
                        qemu(place)
                    ),
                ]
            }
            Contender::QemuNbd => {
                let direct = if self.direct { ",file.cache.direct=on,file.aio=native" } else { "" };
                vec![
                    "qemu-nbd".into(),
                    "--object".into(),
                    format!("secret,id=key,file={qemu_key}"),
                    "--image-opts".into(),
                    format!(
                        "driver=luks,key-secret=key,file.driver={driver},file.filename={qemu_luks}{direct}"
                    ),
                    "--persistent".into(),
                    "--shared=32".into(),
                    format!("--socket={}", place.display()),
                ]
            }
            Contender::Copy(way) => return Ok(self.copying(way, place)),
            Contender::Nbdkit => {
                let mut words: Vec<String> =
                    ["nbdkit", "--foreground", "--exit-with-parent", "--unix"]
                        .map(Into::into)
                        .into();
                words.extend([place.display().to_string(), "--filter=luks".into(), "file".into()]);
                words.push(luks.display().to_string());
                if self.direct {
                    // It has no direct I/O, but drops what it has read and written from the cache.
                    words.push("cache=none".into());
                }
                words.push(format!("passphrase=+{}", key.display()));
                words
            }
            Contender::Gocryptfs => {
                // In the foreground: in the background it is nobody's child.
                let mut words: Vec<String> =
                    ["gocryptfs", "-q", "-fg", "-passfile"].map(Into::into).into();
                words.extend(
                    [key, self.path(CIPHER_DIR), place.into()]
                        .map(|path| path.display().to_string()),
                );
                words
            }
            other => {
                let raw = raw.display();
                return Err(io::Error::other(format!("{other} does not serve {raw}")));
            }
        };
        let mut command = process::program(&words[0]);
        command.args(&words[1..]);
        Ok(command)
    }

    /// An action of ucrypt on the image of a server.
    fn ucrypt(&self, action: &str, server: Server, stop: &AtomicBool) -> io::Result<Command> {
        let mut command = program(self.build(server.build)?);
        command.arg(action).arg(self.image(server.image, stop)?);
        if server.image == Image::Plain {
            command.args(["--cipher", "none"]);
        } else {
            command.arg("--key-file").arg(self.path("passphrase"));
        }
        command.args(["--dispatch", server.policy.name()]);
        if self.direct {
            command.arg("--direct");
        }
        Ok(command)
    }

    /// A server of ours that is no device.
    fn server(&self, server: Server, place: &Path, stop: &AtomicBool) -> io::Result<Command> {
        let mut command = self.ucrypt("serve", server, stop)?;
        if server.way == Way::Fuse {
            command.arg("--fuse").arg(place);
            if let Some(transport) = server.transport {
                command.arg(format!("--fuse-transport={transport}"));
            }
        } else {
            command.arg("--nbd").arg(format!("unix:{}", place.display()));
        }
        Ok(command)
    }

    /// A server that only copies.
    fn copying(&self, way: Way, place: &Path) -> Command {
        let mut command = program(&self.ucrypt);
        command.args(["lab", "copy", if way == Way::Nbd { "nbd" } else { "fuse" }]);
        command.arg(self.raw()).arg(place);
        command
    }

    /// Attaches a loop device.
    fn attach(&self, contender: Contender, stop: &AtomicBool) -> io::Result<Served> {
        let (device, own, end) = self.attached(contender, self.raw(), stop)?;
        Ok(Served { address: Address::Path(device), own, _end: end })
    }

    /// Attaches a loop device of a contender; `raw` is the image that is not encrypted. Returns its
    /// path, and what serves it.
    fn attached(
        &self,
        contender: Contender,
        raw: PathBuf,
        stop: &AtomicBool,
    ) -> io::Result<(PathBuf, Own, End)> {
        if contender.is_dm_crypt() {
            return self.mapped(contender == Contender::DmCryptInline, stop);
        }
        if contender == Contender::Copy(Way::Loop) {
            let place = self.path("served");
            File::create(&place)?;
            let mut command = self.copying(Way::Fuse, &place);
            let server = Running::start(&mut command, &self.path("server.log"), false)?;
            let pid = server.pid();
            let served = started(server, (&place, true), Ready::Grows(self.len), stop)?;
            let below = Some(Box::new(End::Server(served)));
            // Without direct I/O, a loop device carries requests out one by one; ours never does.
            let (device, own, end) = self.looped(place, (below, true), stop)?;
            return Ok((device, Own { server: Some(pid), ..own }, end));
        }
        if contender == Contender::Loop {
            return self.looped(raw, (None, self.direct), stop);
        }
        let (dir, left) = (self.dir.path(), self.left.clone());
        // The name of a device is the whole machine's.
        let unique = dir.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        let Some(server) = contender.ours() else {
            return Err(io::Error::other(format!("{contender} is no device")));
        };
        let mut open = self.ucrypt("open", server, stop)?;
        open.arg(&unique).args(["--as", server.way.name()]).env("XDG_RUNTIME_DIR", dir);
        let ucrypt = self.build(server.build)?.to_owned();
        // If this fails half-way, dropping `end` closes what is open.
        let end = End::Ucrypt { ucrypt, name: unique.clone(), runtime: dir.into(), left };
        let said = process::output(&mut open, dir, START_LIMIT, stop)?;
        let device = PathBuf::from(said.lines().last().unwrap_or_default().trim());
        let loop_device = if server.way == Way::Loop { Some(loop_name(&device)?) } else { None };
        let own = Own { server: server_of(&unique), loop_device, mapped: None };
        Ok((device, own, end))
    }

    /// Attaches the kernel's loop device to a file.
    fn looped(
        &self,
        raw: PathBuf,
        (below, direct): (Option<Box<End>>, bool),
        stop: &AtomicBool,
    ) -> io::Result<(PathBuf, Own, End)> {
        let (dir, left) = (self.dir.path(), self.left.clone());
        let mut losetup = process::program("losetup");
        losetup.args(["--find", "--show"]);
        if direct {
            losetup.arg("--direct-io=on");
        }
        losetup.arg(&raw);
        let known = loops_over(&raw);
        let end = End::Losetup { image: raw, known, dir: dir.into(), left, _below: below };
        let said = process::output(&mut losetup, dir, START_LIMIT, &TO_THE_END)?;
        if stop.load(Ordering::Relaxed) {
            return Err(io::Error::new(io::ErrorKind::Interrupted, INTERRUPTED));
        }
        let device = PathBuf::from(said.lines().last().unwrap_or_default().trim());
        let name = loop_name(&device)?;
        if direct && attribute(&name, "loop/dio").as_deref() == Some("0") {
            return Err(io::Error::other(format!(
                "the kernel gives {name} no direct I/O on {}: it would measure the page cache",
                dir.display()
            )));
        }
        Ok((device, Own { loop_device: Some(name), ..Own::default() }, end))
    }

    /// Opens the LUKS image by the kernel's dm-crypt: over a loop device, or on the block device itself.
    fn mapped(&self, inline: bool, stop: &AtomicBool) -> io::Result<(PathBuf, Own, End)> {
        let dir = self.dir.path();
        let (below, own, end) = match &self.device {
            Some((device, _)) => (device.clone(), Own::default(), End::Nothing),
            None => self.attached(Contender::Loop, self.luks(), stop)?,
        };
        // The name of a device is the whole machine's.
        let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut open = cryptsetup();
        open.args(["open", "-q", "--type", "luks1", "--key-file"]).arg(self.path("passphrase"));
        if inline {
            open.args(["--perf-no_read_workqueue", "--perf-no_write_workqueue"]);
        }
        open.arg(below).arg(&name);
        let (left, dir) = (self.left.clone(), dir.to_owned());
        let end =
            End::Mapping { name: name.clone(), dir: dir.clone(), left, _below: Box::new(end) };
        process::run(&mut open, &dir, START_LIMIT, &TO_THE_END)?;
        if stop.load(Ordering::Relaxed) {
            return Err(io::Error::new(io::ErrorKind::Interrupted, INTERRUPTED));
        }
        let device = Path::new("/dev/mapper").join(name);
        let number = fs::metadata(&device)?.rdev();
        let number = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
        Ok((device, Own { mapped: Some(number), ..own }, end))
    }

    /// Bytes of the data in each image.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Attaches a loop device for a file system. Returns its path, what serves
    /// it, and what ends it when dropped.
    pub(crate) fn device(
        &self,
        contender: Contender,
        stop: &AtomicBool,
    ) -> io::Result<(PathBuf, Own, impl Drop + use<>)> {
        self.attached(contender, self.raw(), stop)
    }

    /// The directory of the images.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }
}

/// The command `ucrypt`, under its own name where it is started as /proc/self/exe.
fn program(ucrypt: &Path) -> Command {
    let mut command = Command::new(ucrypt);
    command.arg0("ucrypt");
    command
}

/// `cryptsetup`, which waits for no udev where there is none.
fn cryptsetup() -> Command {
    let mut command = process::program("cryptsetup");
    if !Path::new("/run/udev/control").exists() {
        command.env("DM_DISABLE_UDEV", "1");
    }
    command
}

/// Why this process can mount nothing; `None` if it can.
pub(crate) fn no_mounts() -> Option<String> {
    static WHY: LazyLock<Option<String>> = LazyLock::new(|| {
        let error = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC).err()?;
        Some(format!("it mounts a file, which needs root and CAP_SYS_ADMIN ({error})"))
    });
    WHY.clone()
}

/// Why this process can attach no block device and mount nothing, with the remedy; `None` if it can. That is
/// tried: root of a container may lack the right. Says the same as long as this process lives.
pub(crate) fn no_block_devices() -> Option<String> {
    static WHY: LazyLock<Option<String>> = LazyLock::new(|| {
        // A mount is needed for ucrypt's own loop devices, too.
        let mount = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC);
        let denied = "it attaches a loop device, which needs root and CAP_SYS_ADMIN";
        match (mount, loop_device::check()) {
            (Err(_), _) | (_, Err(LoopError::Permission)) => Some(denied.to_owned()),
            (Ok(_), Ok(())) => None,
            (_, Err(LoopError::Missing)) => Some(
                "this system has no loop devices (/dev/loop-control is missing): modprobe loop"
                    .into(),
            ),
            (_, Err(LoopError::NoneFree(error))) => Some(format!(
                "there is no free loop device: {error}: losetup -d frees one that losetup --list shows"
            )),
            (_, Err(LoopError::Attach { device, error })) => {
                Some(format!("cannot attach {}: {error}: make its node (mknod)", device.display()))
            }
            (_, Err(error)) => Some(error.to_string()),
        }
    });
    WHY.clone()
}

/// Why the kernel's dm-crypt takes no part, with the remedy; `None` if it does.
pub(crate) fn no_device_mapper() -> Option<String> {
    let error = File::options().read(true).write(true).open("/dev/mapper/control").err()?;
    Some(format!(
        "this system has no device-mapper (/dev/mapper/control: {error}): modprobe dm_crypt, or, in a \
         container, run the lab on its host or in a virtual machine"
    ))
}

/// The process that serves an open volume, by its command line: one that hangs answers no question.
fn server_of(name: &str) -> Option<u32> {
    let serves = |entry: fs::DirEntry| {
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let mut words = line.split(|byte| *byte == 0);
        let is_it =
            words.any(|word| word == SERVER_ACTION) && words.any(|it| it == name.as_bytes());
        if is_it { entry.file_name().to_str()?.parse().ok() } else { None }
    };
    fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok).find_map(serves)
}

/// The kernel's name of a loop device.
fn loop_name(device: &Path) -> io::Result<String> {
    let real = fs::canonicalize(device)?;
    Ok(real.file_name().unwrap_or_default().to_string_lossy().into_owned())
}

/// An attribute of a block device (kernel: `Documentation/ABI/testing/sysfs-block`).
fn attribute(name: &str, attribute: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/sys/block/{name}/{attribute}")).ok()?;
    Some(text.trim_end_matches('\n').to_owned())
}

/// The loop devices over a file.
fn loops_over(image: &Path) -> Vec<PathBuf> {
    let Some(image) = fs::canonicalize(image).ok().and_then(|it| it.to_str().map(str::to_owned))
    else {
        return Vec::new();
    };
    let over = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let is_it = attribute(&name, "loop/backing_file")? == image;
        is_it.then(|| Path::new("/dev").join(name))
    };
    fs::read_dir("/sys/block")
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
        .filter_map(over)
        .collect()
}

/// A contender that can be reached. Dropping it ends it.
struct Served {
    address: Address,
    own: Own,
    _end: End,
}

/// How a server tells that it is ready.
#[derive(Clone, Copy)]
enum Ready {
    /// ucrypt says so: a line on its standard output.
    Says,
    /// Something is mounted at its place.
    Mounts,
    /// The file at its place has this length.
    Grows(u64),
    /// Its socket accepts connections.
    Listens,
}

/// Waits until a server is ready. It is ended if it does not become so.
fn started(
    mut server: Running,
    (place, fuse): (&Path, bool),
    ready: Ready,
    stop: &AtomicBool,
) -> io::Result<Serving> {
    let stdout = server.stdout();
    let pid = Some(server.pid());
    let mut served = Serving { process: Some(server), place: place.into(), fuse };
    // The line comes on a pipe that a thread reads.
    let (said, hears) = std::sync::mpsc::channel();
    let reader = stdout.map(|mut stdout| {
        std::thread::spawn(move || {
            let mut byte = [0];
            let _ = said.send(stdout.read(&mut byte).is_ok_and(|read| read > 0));
            // Read to the end, so that the server is never stopped by a full pipe.
            let _ = io::copy(&mut stdout, &mut io::sink());
        })
    });
    drop(reader);
    let is_ready = || -> io::Result<bool> {
        let server = served.process.as_mut().expect("it is taken when dropped");
        if !server.is_alive() {
            return Err(server.failure("does not start"));
        }
        match ready {
            Ready::Says => Ok(hears.try_recv().is_ok_and(|ready| ready)),
            Ready::Mounts => Ok(is_mounted(place)),
            Ready::Grows(len) => Ok(fs::metadata(place)?.len() >= len),
            Ready::Listens => Ok(UnixStream::connect(place).is_ok()),
        }
    };
    // The question itself waits if the server hangs with its file system mounted.
    process::guarded(pid, START_LIMIT, stop, || process::wait_until(START_LIMIT, stop, is_ready))?;
    Ok(served)
}

/// An image served by ucrypt on one of its ways. Dropping it ends it.
pub(crate) struct Exported {
    address: Address,
    own: Own,
    len: u64,
    _end: End,
}

impl Exported {
    /// Serves `image` as a volume of `len` bytes, which the options `words` describe, in a directory
    /// for the lab alone.
    ///
    /// # Errors
    /// If the server does not start, or `stop` is set.
    pub(crate) fn start(
        (ucrypt, way): (&Path, Way),
        (image, words, len): (&Path, &[String], u64),
        (dir, left): (&Path, &Left),
        stop: &AtomicBool,
    ) -> io::Result<Self> {
        let mut command = program(ucrypt);
        if matches!(way, Way::Loop | Way::Ublk) {
            // The name of a device is the whole machine's.
            let name = dir.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
            command.args(["open", "--as", way.name()]).args(words).arg("--").arg(image).arg(&name);
            command.env("XDG_RUNTIME_DIR", dir);
            // If this fails half-way, dropping `end` closes what is open.
            let (ucrypt, left, runtime) = (ucrypt.into(), left.clone(), dir.into());
            let end = End::Ucrypt { ucrypt, name: name.clone(), runtime, left };
            let said = process::output(&mut command, dir, START_LIMIT, stop)?;
            let device = PathBuf::from(said.lines().last().unwrap_or_default().trim());
            let loop_device = if way == Way::Loop { Some(loop_name(&device)?) } else { None };
            let own = Own { server: server_of(&name), loop_device, mapped: None };
            return Ok(Self { address: Address::Path(device), own, len, _end: end });
        }
        let is_file = way == Way::Fuse;
        let place = dir.join(if is_file { "served" } else { "socket" });
        command.arg("serve").args(words);
        if is_file {
            File::create(&place)?;
            command.arg("--fuse").arg(&place);
        } else {
            command.arg("--nbd").arg(format!("unix:{}", place.display()));
        }
        command.arg("--").arg(image);
        let server = Running::start(&mut command, &dir.join("server.log"), true)?;
        let own = Own { server: Some(server.pid()), ..Own::default() };
        let end = End::Server(started(server, (&place, is_file), Ready::Says, stop)?);
        let address = if is_file { Address::Path(place) } else { Address::Nbd(place) };
        Ok(Self { address, own, len, _end: end })
    }

    /// Measures a load on it. A server that hangs is killed.
    ///
    /// # Errors
    /// If the load fails, or `stop` is set.
    pub(crate) fn run(&self, load: Load<'_>, stop: &AtomicBool) -> io::Result<Sample> {
        let watch = Watch::start(self.own.clone());
        let sample = process::guarded(self.own.server, load.limit(), stop, || {
            load::run(&place(&self.address, self.len, true)?, load, stop)
        })?;
        Ok(Sample { disturbance: watch.end(), ..sample })
    }
}

/// An address, for the built-in generator.
fn place(address: &Address, len: u64, read_only: bool) -> io::Result<Place> {
    Ok(Place::Raw(match address {
        Address::Path(path) => {
            let options =
                OpenOptions { direct: true, unlocked: true, read_only, ..OpenOptions::default() };
            Arc::new(FileBackend::open(path, options).map_err(io::Error::other)?)
        }
        Address::Nbd(socket) => Arc::new(NbdClient::new(socket, len)),
    }))
}

/// How a contender ends.
enum End {
    Nothing,
    Server(#[expect(dead_code, reason = "dropped")] Serving),
    /// What is below ends after it.
    Losetup {
        image: PathBuf,
        /// Loop devices that others had over it before.
        known: Vec<PathBuf>,
        dir: PathBuf,
        left: Left,
        _below: Option<Box<End>>,
    },
    Ucrypt {
        ucrypt: PathBuf,
        name: String,
        runtime: PathBuf,
        left: Left,
    },
    /// What is below ends after it.
    Mapping {
        name: String,
        dir: PathBuf,
        left: Left,
        _below: Box<End>,
    },
}

/// Tries to end something until that succeeds, for a limited time. Returns whether it did.
fn insist(limit: Duration, mut end: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    while !end() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(CLOSE_EVERY);
    }
    true
}

/// Closes a volume of ucrypt, which may be in use for a `limited` time. Kills a server that has not
/// answered for the time `grace`.
///
/// # Errors
/// What is left: a server that does not end, or else its users.
fn close(
    ucrypt: &Path,
    name: &str,
    runtime: &Path,
    (limit, grace): (Duration, Duration),
) -> Result<(), Option<u32>> {
    let socket = runtime.join(format!("ucrypt/.{name}.sock"));
    let mut answered = Instant::now();
    let mut hangs = None;
    let is_closed = || {
        let mut close = program(ucrypt);
        close.arg("close").arg(name).env("XDG_RUNTIME_DIR", runtime);
        let code = process::ended(&mut close).and_then(|status| status.code());
        let is_answer = matches!(code, Some(0 | IN_USE));
        if is_answer {
            answered = Instant::now();
        }
        let server = server_of(name);
        hangs = server.filter(|_| !is_answer);
        match hangs {
            Some(server) if answered.elapsed() >= grace => process::kill(server),
            _ => {}
        }
        // It fails, too, if there is nothing to close, or after it has removed what a killed server
        // had left.
        server.is_none() && (code == Some(0) || fs::symlink_metadata(&socket).is_err())
    };
    if insist(limit, is_closed) { Ok(()) } else { Err(hangs) }
}

impl Drop for End {
    fn drop(&mut self) {
        match &*self {
            Self::Nothing | Self::Server(_) => {}
            Self::Mapping { name, dir, left, .. } => {
                let device = Path::new("/dev/mapper").join(name);
                let close = || {
                    let is_there = fs::symlink_metadata(&device).is_ok();
                    !is_there || process::succeeds(cryptsetup().arg("close").arg(name))
                };
                if !insist(CLOSE_LIMIT, close) {
                    left.note(
                        dir,
                        format!(
                            "{} is still in use; end its users, then: cryptsetup close {name}",
                            device.display()
                        ),
                    );
                }
            }
            Self::Losetup { image, known, dir, left, .. } => {
                let ours = || loops_over(image).into_iter().filter(|it| !known.contains(it));
                // A device in use is detached when its last user has gone.
                let detach = || {
                    for device in ours() {
                        process::succeeds(process::program("losetup").arg("--detach").arg(device));
                    }
                    ours().next().is_none()
                };
                if !insist(CLOSE_LIMIT, detach) {
                    for device in ours() {
                        let device = device.display();
                        left.note(dir, format!(
                            "{device} over {} is still in use; end its users, then: losetup --detach \
                             {device}, and remove {}",
                            image.display(),
                            shell::path(dir)
                        ));
                    }
                }
            }
            Self::Ucrypt { ucrypt, name, runtime, left } => {
                let limits = (CLOSE_LIMIT, process::GRACE);
                if let Err(hangs) = close(ucrypt, name, runtime, limits) {
                    let dir = shell::path(runtime);
                    let first = match hangs {
                        Some(server) => format!(
                            "the server of /dev/ucrypt/{name} does not answer; kill -KILL {server}, then"
                        ),
                        None => format!("/dev/ucrypt/{name} is still in use; end its users, then"),
                    };
                    left.note(
                        runtime,
                        format!(
                            "{first}: XDG_RUNTIME_DIR={dir} ucrypt close {name}, and remove {dir}"
                        ),
                    );
                }
            }
        }
    }
}

/// A server process, and what it leaves behind if it is killed.
struct Serving {
    process: Option<Running>,
    place: PathBuf,
    fuse: bool,
}

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.process.take());
        if self.fuse && is_mounted(&self.place) {
            // Ours took its mount away itself, unless it was killed. Root needs no program.
            if unmount(&self.place, UnmountFlags::DETACH).is_err() {
                let mut unmount = process::program("fusermount3");
                process::succeeds(unmount.args(["-u", "-z"]).arg(&self.place));
            }
        }
        // The next server makes it again.
        let _ = fs::remove_file(&self.place);
    }
}

fn is_mounted(place: &Path) -> bool {
    let mounts = fs::read("/proc/self/mounts").unwrap_or_default();
    is_listed(&mounts, place)
}

/// Whether a place is in the kernel's table of mounts.
fn is_listed(mounts: &[u8], place: &Path) -> bool {
    let mut lines = mounts.split(|byte| *byte == b'\n');
    lines.any(|line| {
        let field = line.split(|byte| *byte == b' ').nth(1);
        field.is_some_and(|field| decoded(field) == place.as_os_str().as_bytes())
    })
}

/// A field of that table: the kernel writes blanks and backslashes as `\ooo` (getmntent(3)).
fn decoded(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, behind)) = rest.split_first() {
        let octal = behind.get(..3).filter(|_| *first == b'\\').and_then(|digits| {
            digits.iter().try_fold(0u8, |value, digit| {
                let digit = digit.checked_sub(b'0').filter(|digit| *digit < 8)?;
                value.checked_mul(8)?.checked_add(digit)
            })
        });
        if let Some(byte) = octal {
            bytes.push(byte);
            rest = &behind[3..];
        } else {
            bytes.push(*first);
            rest = behind;
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn images(parent: &Path) -> Images {
        let dir = tempfile::Builder::new().tempdir_in(parent).expect("a directory");
        let ucrypt = PathBuf::from("ucrypt");
        let (generator, left) = (Generator::BuiltIn, Left::default());
        let (before, device) = (None, None);
        Images { dir, ucrypt, before, len: 1 << 20, direct: true, generator, left, device }
    }

    #[test]
    fn commas_in_paths_are_doubled_in_qemus_options() {
        let dir = tempfile::tempdir().expect("a directory");
        let parent = dir.path().join("a,b");
        fs::create_dir(&parent).expect("a directory");
        let images = images(&parent);
        let place = images.path("socket");
        for contender in [Contender::QemuStorageDaemon, Contender::QemuNbd] {
            let command = images.command(contender, &place).expect("a command");
            let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
            let with_paths: Vec<_> = words.iter().filter(|word| word.contains("/a,")).collect();
            assert!(with_paths.len() >= 2, "{words:?}");
            for word in with_paths {
                // A plain option is no list.
                let is_list = !word.starts_with("--");
                assert_eq!(word.contains("/a,,b/"), is_list, "{word}");
                // Nothing but the path has two commas.
                assert!(!word.replace("/a,,b/", "").contains(",,"), "{word}");
            }
        }
    }

    #[test]
    fn a_mounted_place_is_found_whatever_its_name_is() {
        let table = b"fuse /a\\040b\\134c fuse rw 0 0\nproc /proc proc rw 0 0\n";
        for (place, listed) in [("/a b\\c", true), ("/proc", true), ("/a", false), ("rw", false)] {
            assert_eq!(is_listed(table, Path::new(place)), listed, "{place}");
        }
        assert_eq!(decoded(b"\\04"), b"\\04");
        assert_eq!(decoded(b"\\999"), b"\\999");
    }

    #[test]
    fn images_stay_as_long_as_something_that_is_left_needs_them() {
        let parent = tempfile::tempdir().expect("a directory");
        for left in [false, true] {
            let images = images(parent.path());
            let dir = images.dir().to_owned();
            let all = images.left.clone();
            if left {
                all.note(&dir, "a device".into());
            }
            drop(images);
            assert_eq!(dir.exists(), left);
            assert_eq!(all.take().len(), usize::from(left));
            assert!(all.take().is_empty());
        }
    }

    #[test]
    fn a_server_that_answers_nothing_is_killed_and_one_in_use_is_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let runtime = dir.path();
        let name = runtime.file_name().expect("a name").to_str().expect("text");
        // Written by another process: nobody here has it open when it is started.
        let script = "printf '#!/bin/sh\nexit 5\n' >in-use; chmod +x in-use";
        assert!(process::succeeds(Command::new("sh").args(["-c", script]).current_dir(runtime)));
        let in_use = runtime.join("in-use");
        let no_answer = Path::new("/bin/false");
        let mut server = Command::new("sh");
        let words = ["-c", "read -r word", "ucrypt", "serve-in-background", "--as=loop", name];
        let server = server.args(words).stdin(std::process::Stdio::piped());
        let mut server = server.spawn().expect("it starts");
        let (now, later) = (Duration::ZERO, Duration::from_secs(60));
        let pid = Some(server.id());
        assert!(insist(later, || server_of(name) == pid), "it is not found");
        assert_eq!(close(&in_use, name, runtime, (now, now)), Err(None));
        assert_eq!(close(no_answer, name, runtime, (now, later)), Err(pid));
        assert!(server.try_wait().expect("asked").is_none(), "it was killed");
        assert_eq!(close(no_answer, name, runtime, (later, now)), Ok(()));
        assert!(!server.wait().expect("ended").success());
    }

    #[test]
    fn what_is_in_use_is_closed_again_and_again_for_a_limited_time() {
        let mut tries = 0;
        assert!(insist(Duration::from_secs(60), || {
            tries += 1;
            tries == 3
        }));
        assert_eq!(tries, 3);
        assert!(!insist(Duration::ZERO, || false));
    }
}
