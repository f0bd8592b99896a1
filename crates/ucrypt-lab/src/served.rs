//! The contenders that are processes: servers over scratch images, and loop devices.
//!
//! All images hold the same random bytes: raw, and as the data of a LUKS1 volume (aes-xts-plain64,
//! 512 bits, sectors of 512 bytes), which is what all peers open. Servers are started anew for each
//! measurement, with their defaults.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use ucrypt_backend::{FileBackend, OpenOptions};
use ucrypt_engine::PolicyKind;

use crate::contender::Contender;
use crate::fio::{self, Address};
use crate::load::{self, INTERRUPTED, Load, Place};
use crate::nbd_client::NbdClient;
use crate::process::{self, Running};
use crate::sample::{Sample, Watch};

/// How long a server may take to start.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Where the offset of the data stands in a LUKS1 header: big endian, in 512-byte sectors (LUKS1
/// On-Disk Format Specification, table 1).
const PAYLOAD_OFFSET_AT: u64 = 104;

/// What makes the load on served contenders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Generator {
    /// fio.
    Fio,
    /// This program.
    BuiltIn,
}

/// Scratch images on one storage; removed when dropped.
pub struct Images {
    dir: TempDir,
    ucrypt: PathBuf,
    len: u64,
    /// They are on a disk: whoever can, goes past the page cache.
    direct: bool,
    generator: Generator,
}

impl Images {
    /// Makes images of `len` bytes in a directory of their own in `parent`. `ucrypt`: the command
    /// that serves them.
    ///
    /// # Errors
    /// If there is no room, a program fails, or `stop` is set.
    pub fn make(
        parent: &Path,
        len: u64,
        (ucrypt, direct): (&Path, bool),
        generator: Generator,
        stop: &AtomicBool,
    ) -> io::Result<Self> {
        crate::target::room(parent, 2 * len).map_err(io::Error::other)?;
        let dir = tempfile::Builder::new().prefix("ucrypt-lab-").tempdir_in(parent)?;
        let images = Self { dir, ucrypt: ucrypt.into(), len, direct, generator };
        fs::write(images.path("passphrase"), "the passphrase of scratch images")?;
        File::create(images.path("luks.img"))?.set_len(len + (4 << 20))?;
        let mut format = Command::new(ucrypt);
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
        if data > 4 << 20 {
            return Err(io::Error::other(
                "the header of the scratch image is longer than expected",
            ));
        }
        luks.set_len(data + len)?;
        images.fill(&luks, data, stop)?;
        images.fill(&File::create(images.path("raw.img"))?, 0, stop)?;
        Ok(images)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn fill(&self, mut file: &File, offset: u64, stop: &AtomicBool) -> io::Result<()> {
        let mut data = vec![0; 1 << 20];
        fastrand::Rng::with_seed(1).fill(&mut data);
        file.seek(SeekFrom::Start(offset))?;
        for _ in 0..self.len >> 20 {
            if stop.load(Ordering::Relaxed) {
                return Err(io::Error::new(io::ErrorKind::Interrupted, INTERRUPTED));
            }
            file.write_all(&data)?;
        }
        file.sync_all()
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
        let served = self.serve(contender, stop)?;
        let watch = Watch::start(served.pid);
        let sample = match self.generator {
            Generator::Fio => fio::run(&served.address, load, self.dir.path(), stop)?,
            Generator::BuiltIn => load::run(&self.place(&served.address)?, load, stop)?,
        };
        Ok(Sample { disturbance: watch.end(), ..sample })
    }

    /// The address for the built-in generator.
    fn place(&self, address: &Address) -> io::Result<Place> {
        Ok(Place::Raw(match address {
            Address::Path(path) => {
                let options =
                    OpenOptions { direct: true, unlocked: true, ..OpenOptions::default() };
                Arc::new(FileBackend::open(path, options).map_err(io::Error::other)?)
            }
            Address::Nbd(socket) => Arc::new(NbdClient::new(socket, self.len)),
        }))
    }

    /// Starts a contender.
    fn serve(&self, contender: Contender, stop: &AtomicBool) -> io::Result<Served> {
        if contender == Contender::File {
            let address = Address::Path(self.path("raw.img"));
            return Ok(Served { address, pid: None, _end: End::Nothing });
        }
        if contender.needs_root() {
            return self.attach(contender, stop);
        }
        let fuse = matches!(contender, Contender::UcryptFuse(_) | Contender::QemuStorageDaemon);
        let place = self.path(if fuse { "served" } else { "socket" });
        if fuse {
            File::create(&place)?;
        }
        let mut command = self.command(contender, &place)?;
        let is_ucrypt = matches!(contender, Contender::UcryptFuse(_) | Contender::UcryptNbd(_));
        let mut server = Running::start(&mut command, &self.path("server.log"), is_ucrypt)?;
        let mut stdout = server.stdout();
        let pid = Some(server.pid());
        let mut served = Server { process: Some(server), place: place.clone(), fuse };
        // ucrypt says when it is ready: a line, on a pipe that a thread reads.
        let (said, hears) = std::sync::mpsc::channel();
        let reader = stdout.take().map(|mut stdout| {
            std::thread::spawn(move || {
                let mut byte = [0];
                let _ = said.send(stdout.read(&mut byte).is_ok_and(|read| read > 0));
                // Read to the end, so that the server is never stopped by a full pipe.
                let _ = io::copy(&mut stdout, &mut io::sink());
            })
        });
        drop(reader);
        process::wait_until(START_LIMIT, stop, || {
            let server = served.process.as_mut().expect("it is taken when dropped");
            if !server.is_alive() {
                return Err(server.failure("does not start"));
            }
            if is_ucrypt {
                return Ok(hears.try_recv().is_ok_and(|ready| ready));
            }
            if fuse {
                return Ok(fs::metadata(&place)?.len() >= self.len);
            }
            Ok(UnixStream::connect(&place).is_ok())
        })?;
        let address = if fuse { Address::Path(place) } else { Address::Nbd(place) };
        Ok(Served { address, pid, _end: End::Server(served) })
    }

    fn command(&self, contender: Contender, place: &Path) -> io::Result<Command> {
        let (raw, luks) = (self.path("raw.img"), self.path("luks.img"));
        let key = self.path("passphrase");
        // QEMU's options end at a comma that is not doubled.
        let qemu = |path: &Path| path.display().to_string().replace(',', ",,");
        let (qemu_luks, qemu_key) = (qemu(&luks), qemu(&key));
        let words = match contender {
            Contender::UcryptFuse(policy) => {
                return Ok(self.ucrypt(&["serve", "--fuse", &place.display().to_string()], policy));
            }
            Contender::UcryptNbd(policy) => {
                return Ok(
                    self.ucrypt(&["serve", "--nbd", &format!("unix:{}", place.display())], policy)
                );
            }
            Contender::QemuStorageDaemon => {
                let direct = if self.direct { ",cache.direct=on,aio=native" } else { "" };
                vec![
                    "qemu-storage-daemon".into(),
                    "--object".into(),
                    format!("secret,id=key,file={qemu_key}"),
                    "--blockdev".into(),
                    format!("driver=file,node-name=file,filename={qemu_luks}{direct}"),
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
                        "driver=luks,key-secret=key,file.driver=file,file.filename={qemu_luks}{direct}"
                    ),
                    "--persistent".into(),
                    "--shared=32".into(),
                    format!("--socket={}", place.display()),
                ]
            }
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
            other => {
                let raw = raw.display();
                return Err(io::Error::other(format!("{other} does not serve {raw}")));
            }
        };
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        Ok(command)
    }

    /// `ucrypt` on the LUKS image.
    fn ucrypt(&self, words: &[&str], policy: PolicyKind) -> Command {
        let mut command = Command::new(&self.ucrypt);
        command.args(&words[..1]).arg(self.path("luks.img")).args(&words[1..]);
        command.arg("--key-file").arg(self.path("passphrase"));
        command.args(["--dispatch", policy.name()]);
        if self.direct {
            command.arg("--direct");
        }
        command
    }

    /// Attaches a loop device.
    fn attach(&self, contender: Contender, stop: &AtomicBool) -> io::Result<Served> {
        let (device, end) = self.attached(contender, self.path("raw.img"), stop)?;
        Ok(Served { address: Address::Path(device), pid: None, _end: end })
    }

    /// Attaches a loop device of a contender; `raw` is the image that is not encrypted.
    fn attached(
        &self,
        contender: Contender,
        raw: PathBuf,
        stop: &AtomicBool,
    ) -> io::Result<(PathBuf, End)> {
        let dir = self.dir.path();
        if contender == Contender::Loop {
            let mut losetup = Command::new("losetup");
            losetup.args(["--find", "--show"]);
            if self.direct {
                losetup.arg("--direct-io=on");
            }
            let device = process::output(losetup.arg(raw), dir, START_LIMIT, stop)?;
            let device = PathBuf::from(device.trim());
            return Ok((device.clone(), End::Losetup(device)));
        }
        // The name of a device is the whole machine's.
        let unique = dir.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        let mut open = if let Contender::UcryptLoop(policy) = contender {
            self.ucrypt(&["open", "--as", "loop"], policy)
        } else {
            let mut command = Command::new(&self.ucrypt);
            command.arg("open").arg(raw).args(["--as", "loop", "--cipher", "none"]);
            if self.direct {
                command.arg("--direct");
            }
            command
        };
        open.arg(&unique).env("XDG_RUNTIME_DIR", dir);
        let ucrypt = self.ucrypt.clone();
        let end = End::Ucrypt { ucrypt, name: unique, runtime: dir.into() };
        // If this fails half-way, dropping `end` closes what is open.
        let device = process::output(&mut open, dir, START_LIMIT, stop)?;
        Ok((PathBuf::from(device.lines().last().unwrap_or_default().trim()), end))
    }

    /// Attaches a loop device for the file systems of `kernel-tree`.
    pub(crate) fn device(
        &self,
        contender: Contender,
        stop: &AtomicBool,
    ) -> io::Result<(PathBuf, impl Drop + use<>)> {
        self.attached(contender, self.path("raw.img"), stop)
    }

    /// The directory of the images.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }
}

/// A contender that can be reached. Dropping it ends it.
struct Served {
    address: Address,
    pid: Option<u32>,
    _end: End,
}

/// How a contender ends.
enum End {
    Nothing,
    Server(#[expect(dead_code, reason = "dropped")] Server),
    Losetup(PathBuf),
    Ucrypt { ucrypt: PathBuf, name: String, runtime: PathBuf },
}

impl Drop for End {
    fn drop(&mut self) {
        // Nobody can be told of a failure here; the caller looks at what is left.
        match self {
            Self::Nothing | Self::Server(_) => {}
            Self::Losetup(device) => {
                process::succeeds(Command::new("losetup").arg("--detach").arg(device));
            }
            Self::Ucrypt { ucrypt, name, runtime } => {
                let mut close = Command::new(ucrypt);
                process::succeeds(close.arg("close").arg(name).env("XDG_RUNTIME_DIR", runtime));
            }
        }
    }
}

/// A server process, and what it leaves behind if it is killed.
struct Server {
    process: Option<Running>,
    place: PathBuf,
    fuse: bool,
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.take());
        if self.fuse && is_mounted(&self.place) {
            // It took its mount away itself, unless it was killed.
            process::succeeds(Command::new("fusermount3").args(["-u", "-z"]).arg(&self.place));
        }
        // The next server makes it again.
        let _ = fs::remove_file(&self.place);
    }
}

fn is_mounted(place: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(1) == place.to_str())
}
