//! `serve`: a volume in the foreground, on as many exports as are asked for.

use std::num::ParseIntError;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use ucrypt_engine::{Op, QueueConfig, Volume};
use ucrypt_export::fuse::{FuseExport, FuseOptions, Transport};
use ucrypt_export::loop_device::LoopExport;
use ucrypt_export::nbd::{Address, Server, ServerConfig};
use ucrypt_export::ublk::{OnDeath, Recover, UblkExport, UblkOptions};
use ucrypt_export::vhost_user;

use crate::failure::Failure;
use crate::stdio::{announce, say_line};
use crate::volume::{KeySource, Opened, VolumeArgs};

/// How often it is checked whether an export was ended from outside.
const CHECK_EVERY: Duration = Duration::from_millis(500);

/// Arguments of `serve`.
#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// The image: a file or a block device
    image: Option<PathBuf>,
    /// Print the exports as JSON, one object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    exports: ExportArgs,
    #[command(flatten)]
    volume: VolumeArgs,
}

/// How a volume is served.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Exports")]
pub(crate) struct ExportArgs {
    /// Serve NBD on unix:PATH or tcp:HOST:PORT (loopback); may be given several times
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) nbd: Vec<Address>,
    /// Serve a virtual machine's disk (vhost-user-blk) on a Unix socket at this path; may be given
    /// several times
    #[arg(long, value_name = "PATH")]
    pub(crate) vhost_user: Vec<PathBuf>,
    /// Serve a file at this path; may be given several times
    #[arg(long, value_name = "FILE")]
    pub(crate) fuse: Vec<PathBuf>,
    /// How the file's requests come, where the kernel allows it: io_uring or classic
    #[arg(long, value_name = "TRANSPORT", default_value_t, requires = "fuse")]
    pub(crate) fuse_transport: Transport,
    #[command(flatten)]
    pub(crate) ublk: UblkArgs,
}

/// How a volume is served as a block device by ublk.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct UblkArgs {
    /// Serve a block device, /dev/ublkbN; without a number the first that is free
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "any")]
    ublk: Option<DeviceNumber>,
    /// If the server dies, let the requests of the device wait for a new one
    #[arg(long, requires = "ublk")]
    ublk_wait: bool,
    /// Take over /dev/ublkbN, whose server died
    #[arg(long, value_name = "N", conflicts_with = "ublk")]
    ublk_recover: Option<u32>,
}

/// Which number a new device gets.
#[derive(Debug, Clone, Copy)]
enum DeviceNumber {
    FirstFree,
    Exactly(u32),
}

impl FromStr for DeviceNumber {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        if text == "any" { Ok(Self::FirstFree) } else { text.parse().map(Self::Exactly) }
    }
}

impl UblkArgs {
    fn is_wanted(&self) -> bool {
        self.ublk.is_some() || self.ublk_recover.is_some()
    }

    /// Starts the device, if one is asked for.
    fn start(&self, opened: &Opened) -> Result<Option<UblkExport>, Failure> {
        if !self.is_wanted() {
            return Ok(None);
        }
        let options = UblkOptions {
            number: match self.ublk {
                Some(DeviceNumber::Exactly(number)) => Some(number),
                Some(DeviceNumber::FirstFree) | None => None,
            },
            on_death: if self.ublk_wait { OnDeath::Wait } else { OnDeath::Fail },
            recover: self.ublk_recover.map_or(Recover::No, Recover::Device),
            identity: opened.facts.identity(),
        };
        Ok(Some(UblkExport::start(&opened.volume, &options)?))
    }
}

impl ExportArgs {
    fn count(&self) -> usize {
        let ublk = usize::from(self.ublk.is_wanted());
        self.nbd.len() + self.vhost_user.len() + self.fuse.len() + ublk
    }
}

/// The exports of one volume, running.
pub(crate) struct Exports {
    pub(crate) nbd: Vec<Server>,
    vhost_user: Vec<vhost_user::Server>,
    pub(crate) fuse: Vec<FuseExport>,
    pub(crate) loop_device: Option<LoopExport>,
    pub(crate) ublk: Option<UblkExport>,
}

impl Exports {
    /// Starts what is asked for; what was started ends again if one of them fails.
    pub(crate) fn start(opened: &Opened, args: &ExportArgs) -> Result<Self, Failure> {
        let volume = &opened.volume;
        let mut exports = Self {
            nbd: Vec::new(),
            vhost_user: Vec::new(),
            fuse: Vec::new(),
            loop_device: None,
            ublk: None,
        };
        let options = FuseOptions { transport: args.fuse_transport, others: args.count() > 1 };
        for path in &args.fuse {
            exports.fuse.push(FuseExport::start(volume, path, options)?);
        }
        for address in &args.nbd {
            let server = Server::start(volume.clone(), address, ServerConfig::default());
            exports.nbd.push(server?);
        }
        for path in &args.vhost_user {
            let report = Arc::new(|line: &str| say_line(line));
            let serial = opened.facts.serial();
            let config = vhost_user::ServerConfig { serial, report, ..Default::default() };
            exports.vhost_user.push(vhost_user::Server::start(volume.clone(), path, &config)?);
        }
        Ok(exports)
    }

    /// Whether every export that there was has been ended from outside.
    pub(crate) fn have_ended(&self) -> bool {
        self.nbd.is_empty()
            && self.vhost_user.is_empty()
            && self.fuse.iter().all(FuseExport::has_ended)
            && self.loop_device.as_ref().is_none_or(LoopExport::has_ended)
            && self.ublk.iter().all(UblkExport::has_ended)
    }

    /// What the volume is served as, for `status`.
    pub(crate) fn facts(&self) -> Value {
        let by = |kind: &str, transport: Transport| json!({ "kind": kind, "transport": transport.to_string() });
        if let Some(export) = self.fuse.first() {
            return by("fuse", export.transport());
        }
        if let Some(export) = &self.loop_device {
            return by("loop", export.transport());
        }
        json!({ "kind": if self.ublk.is_some() { "ublk" } else { "nbd" } })
    }

    /// Refuses a resize that an export could not follow.
    pub(crate) fn check_resizable(&self) -> Result<(), Failure> {
        match self.ublk {
            None => Ok(()),
            Some(_) => Err(Failure::device(
                "a ublk device keeps its size; close it, and open it again (or use --as loop)",
            )),
        }
    }

    /// Tells the kernel that the volume was resized. Over NBD, new connections see it.
    pub(crate) fn take_size(&self) -> Result<(), Failure> {
        let failed = |error| Failure::device(format!("the file does not take the size: {error}"));
        self.fuse.iter().try_for_each(FuseExport::take_size).map_err(failed)?;
        self.loop_device.iter().try_for_each(LoopExport::take_size)?;
        Ok(())
    }

    /// Ends all of them unless a program has a served file or device open. Returns whether it did.
    pub(crate) fn try_stop(&mut self) -> bool {
        let unused = self.fuse.iter_mut().all(FuseExport::try_stop)
            && self.loop_device.as_mut().is_none_or(LoopExport::try_stop)
            && self.ublk.iter_mut().all(UblkExport::try_stop);
        if !unused {
            return false;
        }
        self.nbd.drain(..).for_each(Server::shutdown);
        self.vhost_user.drain(..).for_each(vhost_user::Server::shutdown);
        true
    }

    /// Takes the names away: who has a served file or device open keeps it, nobody else gets at it.
    pub(crate) fn detach(&mut self) {
        self.fuse.iter().for_each(FuseExport::detach);
        self.loop_device.iter().for_each(LoopExport::detach);
        self.ublk.iter().for_each(UblkExport::detach);
        self.nbd.drain(..).for_each(Server::shutdown);
        self.vhost_user.drain(..).for_each(vhost_user::Server::shutdown);
    }

    /// Ends all of them. Accepted requests are finished first. Fails if one could not be used any
    /// more before.
    pub(crate) fn stop(self) -> Result<(), Failure> {
        self.nbd.into_iter().for_each(Server::shutdown);
        self.vhost_user.into_iter().for_each(vhost_user::Server::shutdown);
        let fuse: Vec<_> = self.fuse.into_iter().map(FuseExport::stop).collect();
        self.loop_device.into_iter().for_each(LoopExport::stop);
        self.ublk.into_iter().for_each(UblkExport::stop);
        Ok(fuse.into_iter().collect::<Result<(), _>>()?)
    }
}

pub(crate) fn run(args: &ServeArgs) -> Result<(), Failure> {
    if args.exports.count() == 0 {
        return Err(Failure::wrong(
            "name at least one export: --nbd ADDRESS, --vhost-user PATH, --fuse FILE or --ublk",
        ));
    }
    let opened = args.volume.open(args.image.as_deref(), KeySource::Arguments)?;
    // Not before: until there is something to end, a signal ends the process.
    let stop = signals()?;
    let mut exports = Exports::start(&opened, &args.exports)?;
    exports.ublk = args.exports.ublk.start(&opened)?;
    announce_all(&exports, args.json);
    while let Err(RecvTimeoutError::Timeout) = stop.recv_timeout(CHECK_EVERY) {
        if exports.have_ended() {
            break;
        }
    }
    let stopped = exports.stop();
    flush(&opened.volume).and(stopped)
}

/// Says, on one line each, where the volume can be reached.
fn announce_all(exports: &Exports, json: bool) {
    // The exports serve on, whether or not that can be told.
    let say = |line: String| announce(line).unwrap_or_else(say_line);
    let line = |kind: &str, key: &str, place: &str| {
        if json {
            say(json!({ "export": kind, key: place }).to_string());
        } else {
            say(format!("{kind}: {place}"));
        }
    };
    for server in &exports.nbd {
        line("nbd", "uri", server.uri());
    }
    for server in &exports.vhost_user {
        line("vhost-user", "path", &server.path().display().to_string());
    }
    for export in &exports.fuse {
        let (path, transport) = (export.path().display(), export.transport().to_string());
        if json {
            let path = path.to_string();
            say(json!({ "export": "fuse", "path": path, "transport": transport }).to_string());
        } else {
            say(format!("fuse: {path}"));
        }
    }
    if let Some(export) = &exports.ublk {
        line("ublk", "path", &export.path().display().to_string());
    }
}

/// Delivers the signals that ask for an end. From now on they do nothing by themselves: whatever
/// takes long has to look for them.
pub(crate) fn signals() -> Result<Receiver<i32>, Failure> {
    let failed = |error| Failure::device(format!("cannot wait for signals: {error}"));
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(failed)?;
    let (send, receive) = mpsc::channel();
    let wait = move || {
        for signal in signals.forever() {
            if send.send(signal).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait).map_err(failed)?;
    Ok(receive)
}

/// Makes everything durable that was acknowledged.
pub(crate) fn flush(volume: &Arc<Volume>) -> Result<(), Failure> {
    if volume.info().read_only {
        return Ok(());
    }
    let failed = |error: &dyn std::fmt::Display| {
        Failure::device(format!("the last flush failed, recent writes may be lost: {error}"))
    };
    let config = QueueConfig { memory: 4096, depth: 1 };
    let mut queue = volume.queue(config).map_err(|error| failed(&error))?;
    queue.submit(0, Op::Flush).map_err(|_| failed(&"the queue is full"))?;
    queue.wait().map_err(|error| failed(&error))?;
    match queue.next_done() {
        Some(done) => done.result.map_err(|error| failed(&error)),
        None => Err(failed(&"no answer")),
    }
}
