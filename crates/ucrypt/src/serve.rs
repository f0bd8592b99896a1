//! `serve`: serves a volume in the foreground on one or more exports.

use std::collections::HashSet;
use std::convert::Infallible;
use std::fmt::Display;
use std::num::ParseIntError;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use ucrypt_engine::Volume;
use ucrypt_export::UnixSocket;
use ucrypt_export::fuse::{
    Abort, FuseError, FuseExport, FuseOptions, InUse, Preference, Transport,
};
use ucrypt_export::loop_device::LoopExport;
use ucrypt_export::nbd::{Address, Server, ServerConfig, ServerError};
use ucrypt_export::ublk::{OnDeath, Recover, UblkExport, UblkOptions};
use ucrypt_export::vhost_user;

use crate::available;
use crate::ending::{END_LIMIT, Ending, LastFlush, SIGNAL_LIMIT, Step, Troubles, Watchdog};
use crate::events::{Event, Events};
use crate::failure::Failure;
use crate::log::{self, Level, LogArgs, event};
use crate::metrics::{self, MetricsArgs};
use crate::notify::Notifier;
use crate::stdio::{announce, say_line};
use crate::users::{self, Place, Users};
use crate::volume::{KeySource, MEMORY, Opened, VolumeArgs};

/// Bytes of buffer memory with FUSE over `io_uring`, which keeps a buffer for each request that it may
/// take.
const RINGS_MEMORY: usize = 24 << 20;

/// How long requests of guests may take at the end. Shorter than [`SIGNAL_LIMIT`], so that there is time
/// for the last flush.
const GUESTS_PATIENCE: Duration = Duration::from_secs(20);

/// Arguments of `serve`.
#[derive(Debug, clap::Args)]
#[command(override_usage = "ucrypt serve [OPTIONS] EXPORT... IMAGE\n       \
    ucrypt serve [OPTIONS] EXPORT... --backend KIND:SIZE")]
pub(crate) struct ServeArgs {
    /// The image: a file or a block device; not with --backend
    image: Option<PathBuf>,
    /// Print the exports as JSON, one object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    exports: ExportArgs,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    metrics: MetricsArgs,
    #[command(flatten)]
    volume: VolumeArgs,
}

/// How a volume is served.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Exports (EXPORT, at least one)")]
pub(crate) struct ExportArgs {
    /// Serve NBD on unix:PATH or tcp:HOST:PORT (loopback), or on the socket that systemd passes on
    /// (systemd); may be given several times
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) nbd: Vec<Address>,
    /// Over TCP, serve every user of this machine; else only the server's own and root
    #[arg(long, requires = "nbd")]
    pub(crate) nbd_any_user: bool,
    /// Serve a virtual machine's disk (vhost-user-blk) on a Unix socket at this path; may be given
    /// several times
    #[arg(long, value_name = "PATH")]
    pub(crate) vhost_user: Vec<PathBuf>,
    /// Serve a file at this path; may be given several times
    #[arg(long, value_name = "FILE")]
    pub(crate) fuse: Vec<PathBuf>,
    /// How the file's requests come: classic, io_uring where the kernel allows it (faster one at a time, slower at
    /// depth), or auto, which is classic
    #[arg(long, value_name = "TRANSPORT", default_value_t, requires = "fuse")]
    pub(crate) fuse_transport: Preference,
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
    /// Bytes of buffer memory, if the user names no size.
    fn memory(&self) -> usize {
        let wants_rings = self.fuse_transport == Preference::Only(Transport::Ring);
        if wants_rings && !self.fuse.is_empty() { RINGS_MEMORY } else { MEMORY }
    }

    fn count(&self) -> usize {
        let ublk = usize::from(self.ublk.is_wanted());
        self.nbd.len() + self.vhost_user.len() + self.fuse.len() + ublk
    }
}

/// The exports of one volume, running.
pub(crate) struct Exports {
    volume: Arc<Volume>,
    pub(crate) nbd: Vec<Server>,
    vhost_user: Vec<vhost_user::Server>,
    pub(crate) fuse: Vec<FuseExport>,
    pub(crate) loop_device: Option<LoopExport>,
    pub(crate) ublk: Option<UblkExport>,
}

impl Exports {
    /// Starts the FUSE, NBD and vhost-user exports that `args` names. If one fails, those already
    /// started end.
    pub(crate) fn start(opened: &Opened, args: &ExportArgs) -> Result<Self, Failure> {
        let volume = &opened.volume;
        let mut exports = Self {
            volume: volume.clone(),
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
            let config = ServerConfig {
                any_user: args.nbd_any_user,
                report: Arc::new(tell_of_trouble),
                visits: Some(Arc::new(tell_of_visit)),
                ..ServerConfig::default()
            };
            exports.nbd.push(Server::start(volume.clone(), address, config)?);
        }
        for path in &args.vhost_user {
            let config = vhost_user::ServerConfig {
                serial: opened.facts.serial(),
                report: Arc::new(tell_of_trouble),
                visits: Some(Arc::new(tell_of_visit)),
                patience: GUESTS_PATIENCE,
            };
            exports.vhost_user.push(vhost_user::Server::start(volume.clone(), path, &config)?);
        }
        Ok(exports)
    }

    /// The start has succeeded: from now on a device that was taken over ends with its export, too.
    pub(crate) fn own(&mut self) {
        self.ublk.iter_mut().for_each(UblkExport::own);
    }

    /// Whether every export has been ended from outside.
    pub(crate) fn have_ended(&self) -> bool {
        self.nbd.iter().all(Server::has_ended)
            && self.vhost_user.is_empty()
            && self.have_kernels_ended()
    }

    /// The export of the volume, for `status`.
    pub(crate) fn facts(&self) -> Value {
        if let Some(export) = self.fuse.first() {
            let InUse { transport, reason } = export.transport();
            let (transport, reason) = (transport.to_string(), reason.to_string());
            let (major, minor) = export.number();
            return json!({
                "kind": "fuse",
                "transport": transport,
                "transport_reason": reason,
                // Under any name, also once it has none.
                "file_system": [major, minor],
            });
        }
        if let Some(export) = &self.loop_device {
            // The driver's requests do not come by rings.
            let (transport, node) = (Transport::Classic.to_string(), export.path().display());
            return json!({ "kind": "loop", "transport": transport, "node": node.to_string() });
        }
        json!({ "kind": if self.ublk.is_some() { "ublk" } else { "nbd" } })
    }

    /// Refuses a resize that an export could not follow.
    pub(crate) fn check_resizable(&self) -> Result<(), Failure> {
        if self.loop_device.iter().any(LoopExport::is_held) {
            return Err(Failure::busy(
                "a refused close is being taken back, behind requests that wait for the image; try again",
            ));
        }
        match self.ublk {
            None => Ok(()),
            Some(_) => Err(Failure::device(
                "a ublk device keeps its size; close it, and open it again (or use --as loop)",
            )),
        }
    }

    /// Tells the kernel that the volume was resized. New NBD connections see the new size. Call the
    /// function in a thread of its own: it may have to wait for requests under way.
    pub(crate) fn size_taker(&self) -> impl FnOnce() -> Result<(), Failure> + Send + use<> {
        let files: Vec<_> = self.fuse.iter().map(FuseExport::size_taker).collect();
        let device = self.loop_device.as_ref().map(LoopExport::size_taker);
        let failed = |error| Failure::device(format!("the file does not take the size: {error}"));
        move || {
            files.into_iter().try_for_each(|take| take().map_err(failed))?;
            device.map_or(Ok(()), |take| Ok(take()?))
        }
    }

    /// Stops the exports that nobody uses: no file system or other device is on top, no program has
    /// a served file or loop device open, and no NBD client is connected. A stopped export takes no
    /// new users. Returns whether all are stopped.
    pub(crate) fn try_stop(&mut self) -> bool {
        let connected = self.nbd.iter().filter(|server| !server.try_stop()).count();
        self.try_stop_kernels() && connected == 0
    }

    /// As [`Exports::try_stop`], for the kernel's exports (FUSE, loop, ublk) only. The kernel may
    /// still hold data that their users have written, to a mounted file system or a mapped file.
    /// NBD clients and guests know that data they have not sent is not written.
    ///
    /// A request that waits for the key of a suspended volume has a user, seen or not. The kernel is
    /// then not asked to stop anything: it would wait for that request, and this thread, which takes
    /// the key back, for the kernel.
    pub(crate) fn try_stop_kernels(&mut self) -> bool {
        if self.has_kernels() && self.volume.has_waiting() {
            return false;
        }
        // Try every export, so that none gets new users while another still has its last.
        let files = FuseExport::try_stop_all(&mut self.fuse);
        // Who can be seen is looked for first: asking the loop driver, which knows of all, stops the requests of its
        // users for a moment, and a ublk device does not tell who has it open.
        let loops = self.loop_device.iter_mut().map(|export| {
            (export.has_ended() || users::of(&[Place::Device(export.path())]).seen.is_empty())
                && export.try_stop(|| self.volume.has_waiting())
        });
        let ublk = self.ublk.iter_mut().map(|export| {
            // Should a request come now, it must not wait for a key while the kernel waits for it.
            let stops = || {
                if self.volume.is_halted() {
                    self.volume.abandon();
                }
            };
            (export.is_stopped()
                || export.is_dead()
                || users::of(&[Place::Device(export.path())]).are_none())
                && export.try_stop(stops)
        });
        loops.chain(ublk).filter(|stopped| !stopped).count() == 0 && files
    }

    /// Whether there are exports whose requests come through the kernel.
    fn has_kernels(&self) -> bool {
        !self.fuse.is_empty() || self.loop_device.is_some() || self.ublk.is_some()
    }

    /// Whether the kernel's exports were ended from outside.
    pub(crate) fn have_kernels_ended(&self) -> bool {
        self.fuse.iter().all(FuseExport::has_ended)
            && self.loop_device.as_ref().is_none_or(LoopExport::has_ended)
            && self.ublk.iter().all(|export| {
                let has_users = || {
                    self.volume.has_waiting()
                        || !users::of(&[Place::Device(export.path())]).are_none()
                };
                export.has_ended() && (export.is_dead() || !has_users())
            })
    }

    /// Parts with exports that were ended from outside, while others go on, and says so.
    ///
    /// # Errors
    /// The first of them was not ended properly.
    fn part_with_ended(&mut self) -> Result<(), Failure> {
        let mut result = Ok(());
        let mut told = |path: PathBuf, stopped: Result<(), Failure>| {
            let what = format!("{} has ended; the other exports go on", path.display());
            event(Level::Warning, "export-ended", what);
            if let Err(error) = &stopped {
                event(Level::Error, "export-ended", error);
            }
            if result.is_ok() {
                result = stopped;
            }
        };
        for export in self.fuse.extract_if(.., |export| export.has_ended()) {
            told(export.path().to_owned(), export.stop().map_err(Failure::from));
        }
        if let Some(export) = self.ublk.take_if(|export| export.is_dead()) {
            told(export.path().to_owned(), export.stop().map_err(Failure::from));
        }
        result
    }

    /// Counts the clients of those exports whose clients can be counted.
    pub(crate) fn clients(&self) -> Vec<metrics::Clients> {
        let nbd = self
            .nbd
            .iter()
            .map(|server| metrics::Clients { export: "nbd", count: Box::new(server.watch()) });
        let guests = self.vhost_user.iter().map(|server| metrics::Clients {
            export: "vhost-user",
            count: Box::new(server.watch()),
        });
        nbd.chain(guests).collect()
    }

    /// The kinds of the exports, one after the other.
    pub(crate) fn kinds(&self) -> String {
        let kinds = [
            ("nbd", !self.nbd.is_empty()),
            ("vhost-user", !self.vhost_user.is_empty()),
            ("fuse", !self.fuse.is_empty()),
            ("loop", self.loop_device.is_some()),
            ("ublk", self.ublk.is_some()),
        ];
        let there = kinds.into_iter().filter(|(_, is_there)| *is_there).map(|(kind, _)| kind);
        there.collect::<Vec<_>>().join(",")
    }

    /// NBD clients that are connected.
    pub(crate) fn nbd_clients(&self) -> usize {
        self.nbd.iter().map(Server::clients).sum()
    }

    /// Detaches the exports: present users go on, and an export ends with its last user. After a failure
    /// some may be detached and others not; it may be tried again.
    pub(crate) fn detach(&self) -> Result<(), Failure> {
        self.fuse.iter().try_for_each(FuseExport::detach)?;
        self.loop_device.iter().try_for_each(LoopExport::detach)?;
        // These cannot fail, so they come last.
        self.ublk.iter().for_each(UblkExport::detach);
        self.nbd.iter().for_each(Server::detach);
        Ok(())
    }

    /// What fails the requests of those who use the kernel's exports.
    pub(crate) fn aborts(&self) -> Vec<Abort> {
        let files = self.fuse.iter().filter_map(FuseExport::abort);
        files.chain(self.loop_device.iter().filter_map(LoopExport::abort)).collect()
    }

    /// The users of the exports, as far as they can be seen.
    pub(crate) fn users(&self) -> Users {
        // The numbers of those that have ended are others'.
        let files = self.fuse.iter().filter(|export| export.is_connected());
        let files = files.map(|export| Place::File(export.path(), Some(export.number())));
        let loops = self.loop_device.iter().filter(|export| !export.has_ended());
        let ublk = self.ublk.iter().filter(|export| !export.is_stopped());
        let devices = loops.map(LoopExport::path).chain(ublk.map(UblkExport::path));
        let places: Vec<_> = files.chain(devices.map(Place::Device)).collect();
        let mut users = users::of(&places);
        let out_of_reach = self.fuse.iter().filter(|export| export.is_out_of_reach());
        users.seen.extend(out_of_reach.map(|export| {
            let path = export.path().display();
            format!("what is mounted over {path}, or where it was moved to")
        }));
        match self.nbd_clients() {
            0 => {}
            1 => users.seen.push("an NBD client".into()),
            count => users.seen.push(format!("{count} NBD clients")),
        }
        users
    }

    /// Takes no more users if only NBD clients can have been there, and all of them have gone. Returns
    /// whether that is so. A request that came from the kernel has a user for as long as it waits,
    /// even if nobody can be seen.
    pub(crate) fn close_if_gone(&self) -> bool {
        !self.has_kernels() && self.nbd.iter().all(Server::close_if_gone)
    }

    /// Takes [`Exports::close_if_gone`] back.
    pub(crate) fn reopen(&self) {
        self.nbd.iter().for_each(Server::reopen);
    }

    /// Clients that are gone while the image has not answered all their requests.
    pub(crate) fn unanswered_clients(&self) -> usize {
        self.nbd.iter().map(Server::unanswered_clients).sum()
    }

    /// Stops all exports; they finish accepted requests first. Fails if a served file or device had
    /// become unusable before.
    ///
    /// NBD clients have some seconds for their last replies, guests for their requests, programs for files
    /// that they have open, which who sent a signal may not wait for. So they all have them at the same
    /// time, and what is acknowledged by then is flushed meanwhile: should the time of the end run out,
    /// it is durable all the same.
    pub(crate) fn stop(mut self, last_flush: &mut LastFlush) -> Result<(), Failure> {
        self.nbd.iter().for_each(Server::stop);
        self.vhost_user.iter().for_each(vhost_user::Server::stop);
        self.fuse.iter_mut().for_each(FuseExport::begin_to_stop);
        if !(self.nbd.is_empty() && self.vhost_user.is_empty() && self.fuse.is_empty()) {
            // If this fails, so does the last flush.
            let _ = last_flush.run();
        }
        self.nbd.into_iter().for_each(Server::shutdown);
        self.vhost_user.into_iter().for_each(vhost_user::Server::shutdown);
        // What goes on ends with this process; who used it was named before.
        let fuse = self.fuse.into_iter().map(FuseExport::stop).map(|stopped| match stopped {
            Err(error @ FuseError::GoesOn { .. }) => {
                event(Level::Warning, "goes-on", error);
                Ok(())
            }
            stopped => stopped,
        });
        let fuse: Vec<_> = fuse.collect();
        let loops: Vec<_> = self.loop_device.into_iter().map(LoopExport::stop).collect();
        let ublk: Vec<_> = self.ublk.into_iter().map(UblkExport::stop).collect();
        fuse.into_iter().collect::<Result<(), _>>()?;
        loops.into_iter().collect::<Result<(), _>>()?;
        Ok(ublk.into_iter().collect::<Result<(), _>>()?)
    }
}

pub(crate) fn run(args: &ServeArgs) -> Result<(), Failure> {
    let notifier = Notifier::of_service();
    serve(args, &notifier).inspect_err(|failure| notifier.failed(failure))
}

fn serve(args: &ServeArgs, notifier: &Notifier) -> Result<(), Failure> {
    if args.exports.count() == 0 {
        return Err(Failure::wrong(
            "name at least one export: --nbd ADDRESS, --vhost-user PATH, --fuse FILE or --ublk",
        ));
    }
    // Check before asking for a passphrase.
    args.exports.check()?;
    args.metrics.check()?;
    args.log.check(args.volume.files(args.image.as_deref()))?;
    let name = args.name();
    let log = args.log.open(log::To::Stderr, &name)?;
    let memory = args.exports.memory();
    let volume = args.volume.clone().for_serving(memory, args.exports.count());
    let opened = volume.open(args.image.as_deref(), KeySource::Arguments)?;
    raise_descriptor_limit();
    // Not earlier: until there is something to end, a signal ends the process.
    let events = Events::<Infallible>::new();
    let watchdog = Watchdog::of_signals(events.sender())?;
    events.listen(&opened.volume);
    let last_flush = LastFlush::prepare(&opened.volume)?;
    let metrics = args.metrics.listen()?;
    let mut exports = Exports::start(&opened, &args.exports)?;
    exports.ublk = args.exports.ublk.start(&opened)?;
    watchdog.aborts(exports.aborts());
    let serve =
        |bound: metrics::Bound| bound.serve(&name, &exports.kinds(), &opened, exports.clients());
    let metrics = metrics.map(serve).transpose()?;
    exports.own();
    log.install();
    announce_all(&exports, args.json);
    notifier.ready(&format!("serves {}", opened.facts.image));
    if let Some(metrics) = &metrics {
        announce_one(args.json, "metrics", "place", metrics.place());
    }
    event(Level::Info, "serves", format_args!("serves {name}"));
    let served = serve_on((events, &watchdog), &opened, exports, last_flush, notifier);
    drop(metrics);
    match &served {
        Ok(()) => event(Level::Info, "ended", format_args!("{name} has ended")),
        Err(failure) => event(Level::Error, "ended", failure),
    }
    log::finish().map_err(|error| Failure::device(format!("cannot close the log: {error}")))?;
    // What went to standard error need not be said there twice.
    let was_said = args.log.is_stderr();
    served.map_err(|failure| {
        notifier.failed(&failure);
        Failure { message: if was_said { String::new() } else { failure.message }, ..failure }
    })
}

/// Lets this process have as many descriptors as it may: the 64 rings of one guest take 832, and the usual soft
/// limit, which is for programs that use select(2), is 1024.
pub(crate) fn raise_descriptor_limit() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    // Should it be refused, fewer guests and clients are served at a time.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// Serves until a signal comes or all exports were ended from outside, then ends.
fn serve_on(
    (mut events, watchdog): (Events<Infallible>, &Watchdog),
    opened: &Opened,
    mut exports: Exports,
    mut last_flush: LastFlush,
    notifier: &Notifier,
) -> Result<(), Failure> {
    let mut heartbeat = notifier.heartbeat();
    let mut troubles = Troubles::default();
    let mut ending: Option<Ending> = None;
    let mut due = heartbeat.beat(notifier, &opened.volume);
    let mut parted = Ok(());
    let left = loop {
        match events.next(ending.is_some(), due) {
            Some(Event::Signal(signal)) if ending.is_some() => {
                if let Some(ending) = &mut ending
                    && ending.is_asked_again(signal)
                {
                    break Some(ending.left("the volume"));
                }
            }
            Some(Event::Signal(signal)) => ending = Some(Ending::by(signal)),
            Some(Event::Look) | None => {}
        }
        let beat = heartbeat.beat(notifier, &opened.volume);
        due = troubles.look(opened).into_iter().chain(beat).min();
        if exports.have_ended() {
            break None;
        }
        // During the end the exports are stopped one by one.
        if ending.is_none() {
            parted = parted.and(exports.part_with_ended());
        }
        match ending.as_mut().map(|ending| ending.step(&mut exports, "the volume", false)) {
            None | Some(Step::Wait) => {}
            Some(Step::Unused) => break None,
            Some(Step::InUse(failure)) => break Some(failure),
        }
    };
    notifier.stopping();
    let limit = if ending.is_some() { SIGNAL_LIMIT } else { END_LIMIT };
    watchdog.begin_end(limit, |_| {});
    let stopped = exports.stop(&mut last_flush);
    troubles.tell(opened);
    let flushed = last_flush.run();
    watchdog.end_users();
    flushed.and(stopped).and(parted)?;
    left.map_or(Ok(()), Err)
}

impl ServeArgs {
    /// What the volume is called in the log and in metrics: the name of its image.
    fn name(&self) -> String {
        let name = self.image.as_deref().and_then(Path::file_name);
        name.map_or_else(|| "volume".into(), |name| name.to_string_lossy().into_owned())
    }
}

fn tell_of_trouble(line: &str) {
    event(Level::Warning, "client", line);
}

fn tell_of_visit(line: &str) {
    event(Level::Info, "client", line);
}

impl ExportArgs {
    /// Refuses exports that this system lacks or does not permit to this user, and places that cannot
    /// be had.
    fn check(&self) -> Result<(), Failure> {
        if !self.fuse.is_empty() {
            available::fuse()?;
        }
        if self.ublk.is_wanted() {
            available::ublk()?;
        }
        self.check_named_once()?;
        self.fuse.iter().try_for_each(|path| FuseExport::check(path))?;
        self.vhost_user.iter().try_for_each(|path| UnixSocket::check(path))?;
        self.nbd.iter().try_for_each(Address::check).map_err(ServerError::from)?;
        Ok(())
    }

    /// Refuses one place for two exports: each of them could have it. Port 0 is another one each time.
    fn check_named_once(&self) -> Result<(), Failure> {
        let mut named = HashSet::new();
        let sockets = self.nbd.iter().filter_map(|address| match address {
            Address::Unix(path) => Some(path.clone()),
            Address::Tcp(place) if place.ends_with(":0") => None,
            Address::Tcp(_) | Address::Service => Some(address.to_string().into()),
        });
        let files = self.fuse.iter().chain(&self.vhost_user).cloned();
        for path in files.chain(sockets) {
            if !named.insert(std::path::absolute(&path).unwrap_or_else(|_| path.clone())) {
                let path = path.display();
                return Err(Failure::wrong(format!(
                    "{path} is named for two exports; leave one out"
                )));
            }
        }
        Ok(())
    }
}

/// Prints where something can be reached.
fn announce_one(json: bool, kind: &str, key: &str, place: &str) {
    if json {
        say(json!({ "export": kind, key: place }));
    } else {
        say(format_args!("{kind}: {place}"));
    }
}

/// Prints a line. The exports go on, whether or not that is possible.
fn say(line: impl Display) {
    announce(line).unwrap_or_else(say_line);
}

/// Prints where the volume can be reached, one line for each export.
fn announce_all(exports: &Exports, json: bool) {
    let line = |kind: &str, key: &str, place: &str| announce_one(json, kind, key, place);
    for server in &exports.nbd {
        line("nbd", "uri", server.uri());
    }
    for server in &exports.vhost_user {
        line("vhost-user", "path", &server.path().display().to_string());
    }
    for export in &exports.fuse {
        let (path, transport) = (export.path().display(), export.transport().transport.to_string());
        if json {
            let path = path.to_string();
            say(json!({ "export": "fuse", "path": path, "transport": transport }));
        } else {
            say(format_args!("fuse: {path}"));
        }
    }
    if let Some(export) = &exports.ublk {
        line("ublk", "path", &export.path().display().to_string());
    }
}
