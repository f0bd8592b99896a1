//! `open`, `close`, `status`, `list` and `resize`: volumes whose server runs in the background.
//!
//! `open` unlocks in the foreground, where it can ask for a passphrase and the user sees errors. It
//! then starts the server as a separate process, passes it the volume key through a pipe, and waits
//! until the device is usable. The other actions reach the server by its control socket.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use ucrypt_backend::Inherited;
use zeroize::Zeroizing;

use crate::arguments::arguments;
use crate::ending::{LastFlush, Troubles, Watchdog};
use crate::events::Events;
use crate::failure::{Ended, Failure, remedy};
use crate::json_path::path_in;
use crate::log::{self, Level, Log, LogArgs, event};
use crate::luks::{has_to_store, store_flags};
use crate::metrics::{Bound, MetricsArgs};
use crate::notify::Notifier;
use crate::passphrase::Secret;
use crate::progress::Waiting;
use crate::runtime::RuntimePaths;
use crate::secrecy;
use crate::stdio::{announce, print, print_line, say_line};
use crate::users::{self, Place, Users};
use crate::volume::{KeySource, VolumeArgs};

mod control;
mod life;
mod link;
mod mounts;
mod name_lock;
mod resilience;
mod resize;
mod served;
mod show;
mod suspend;

pub(crate) use resilience::resident_bytes;
pub(crate) use served::Served;
pub(crate) use show::{FLUSH_FAILED, clean, columns, cut_end, duration, per_second, state};
pub(crate) use suspend::{ResumeArgs, SuspendArgs, resume, suspend};

use life::Life;
use name_lock::NameLock;
use resilience::Resilience;
use suspend::Suspension;

/// Where `attach` tells the server which table its volume is of.
pub(crate) const TABLE_VARIABLE: &str = "UCRYPT_ATTACHED_BY";

/// The hidden action that runs the server.
pub(crate) const SERVER_ACTION: &str = "serve-in-background";

/// The line that the server prints on standard output once the device is usable; the path follows.
const READY: &str = "ready ";

/// How long servers are waited for whose answer only makes a message clearer.
const LOOK_PATIENCE: Duration = Duration::from_secs(2);

/// How often [`close_patiently`] looks.
const LOOK_EVERY: Duration = Duration::from_millis(300);

/// Longest secret in bytes: a table line, which contains a key and a device path.
const SECRET_MAX: usize = 64 << 10;

/// The export that `open` chooses here if none is asked for.
pub(crate) fn usual_export() -> String {
    Served::best().0.name()
}

/// Arguments of `open`.
#[derive(Debug, clap::Args)]
#[command(override_usage = "ucrypt open [OPTIONS] IMAGE NAME\n       \
    ucrypt open [OPTIONS] --backend KIND:SIZE NAME\n       \
    ucrypt open [OPTIONS] --test-passphrase IMAGE")]
pub(crate) struct OpenArgs {
    /// The image: a file or a block device; not with --backend
    #[arg(value_name = "IMAGE", required = true)]
    first: PathBuf,
    /// A name for the open volume
    #[arg(value_name = "NAME")]
    second: Option<PathBuf>,
    /// How the volume is served; without it, the first of these that this system permits to this
    /// user (the devices only to root)
    #[arg(long = "as", value_enum)]
    served: Option<Served>,
    /// Let the kernel look for a partition table on the loop device
    #[arg(long)]
    partscan: bool,
    /// If the server dies, let the requests of the ublk device wait until the volume is opened again
    #[arg(long)]
    ublk_wait: bool,
    /// Serve the volume from this process until it is closed, for service managers; systemd is told when
    /// the device can be used. Messages go to standard error unless --log names something else
    #[arg(long, conflicts_with = "persistent")]
    foreground: bool,
    /// Only check that a passphrase or key opens the volume
    #[arg(long)]
    test_passphrase: bool,
    /// Accept the passphrase of an unbound keyslot, too
    #[arg(long, requires = "test_passphrase")]
    unbound: bool,
    /// Store the flags of this command line (--allow-discards, --perf-*) in the LUKS2 header, and no
    /// others; every later open uses them
    #[arg(long, conflicts_with_all = ["readonly", "header_digest"])]
    persistent: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    metrics: MetricsArgs,
    #[command(flatten)]
    volume: VolumeArgs,
}

/// Arguments of `close`.
#[derive(Debug, clap::Args)]
#[command(override_usage = "ucrypt close [OPTIONS] <NAME>...\n       ucrypt close [OPTIONS] --all")]
pub(crate) struct CloseArgs {
    /// Names of open volumes, or the paths of their devices
    #[arg(value_name = "NAME", required_unless_present = "all")]
    names: Vec<String>,
    /// Every open volume of this user
    #[arg(long, conflicts_with = "names")]
    all: bool,
    /// If it is in use, take the name away now and end when its last user does
    #[arg(long)]
    deferred: bool,
}

/// Arguments of `resize`.
#[derive(Debug, clap::Args)]
pub(crate) struct ResizeArgs {
    /// Name of the open volume, or the path of its device
    name: String,
    /// New size in 512-byte sectors; 0 for all of the image
    #[arg(short = 'b', long, value_name = "SECTORS", conflicts_with = "device_size")]
    size: Option<u64>,
    /// New size in bytes, or with a unit as in 10G
    #[arg(long, value_name = "BYTES", value_parser = crate::size::parse)]
    device_size: Option<u64>,
}

/// Arguments of `list`.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Show exact sizes, in bytes
    #[arg(long, conflicts_with = "json")]
    bytes: bool,
    /// Cut nothing; else the table has the terminal's width, or 60 columns
    #[arg(long, conflicts_with = "json")]
    wide: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `status`.
#[derive(Debug, clap::Args)]
pub(crate) struct StatusArgs {
    /// Name of the open volume, or the path of its device
    name: String,
    /// Show how requests were dispatched, and the measurements behind it
    #[arg(long)]
    dispatch: bool,
    /// Show exact sizes, in bytes
    #[arg(long, conflicts_with_all = ["json", "dispatch"])]
    bytes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn open(args: &OpenArgs) -> Result<(), Failure> {
    if args.test_passphrase {
        args.check_served(args.served)?;
        return args.volume.clone().test(args.image(), args.unbound);
    }
    let notifier = args.notifier();
    open_and_serve(args).inspect_err(|failure| notifier.failed(failure))
}

fn open_and_serve(args: &OpenArgs) -> Result<(), Failure> {
    let (served, why) = args.choose();
    let paths = args.check(served)?;
    if let Some(why) = why {
        say_line(format_args!("{why}; the volume is served --as {}", served.name()));
    }
    let flags = args.volume.flags().1;
    let stores_flags = args.persistent && has_to_store(args.header(), &flags)?;
    let key = args.volume.volume_key(args.image())?;
    let chosen = args.served.is_none().then_some(served);
    let added: Vec<_> = chosen.iter().map(|chosen| as_option(*chosen)).collect();
    let mut server = server(SERVER_ACTION, &added)?;
    if args.foreground {
        return Err(become_server(server, &key));
    }
    let device = start_server(&mut server, &key)?;
    if stores_flags {
        store_flags(args.header(), &flags).map_err(|failure| {
            failure.about(format_args!(
                "{} is open as {device}, but not its flags stored",
                paths.name()
            ))
        })?;
    }
    if args.json {
        announce(json!({ "name": paths.name(), "device": device }))
    } else {
        announce(&device)
    }
    .map_err(|failure| Failure {
        message: format!("{} is open as {device}, but {failure}", paths.name()),
        ..failure
    })
}

/// Unlocks a volume that is to be mounted. Returns what [`start_to_mount`] passes to the server.
pub(crate) fn unlock(args: &OpenArgs) -> Result<Secret, Failure> {
    args.volume.volume_key(args.image())
}

/// Starts the server of a volume that is to be mounted with the hidden action `action`, whose words are
/// those of this process after `added`. Returns the path of the device or file.
pub(crate) fn start_to_mount(
    (action, added): (&str, &[OsString]),
    key: &Secret,
) -> Result<String, Failure> {
    start_server(&mut server(action, added)?, key)
}

/// The option that chooses an export, for the server.
pub(crate) fn as_option(served: Served) -> OsString {
    format!("--as={}", served.name()).into()
}

impl OpenArgs {
    /// As `open` of this image under a name, without other options than these.
    pub(crate) fn new(
        (image, name): (&Path, &str),
        served: Option<Served>,
        (log, metrics, ublk_wait): (LogArgs, MetricsArgs, bool),
        volume: VolumeArgs,
    ) -> Self {
        Self {
            first: image.into(),
            second: Some(name.into()),
            served,
            partscan: false,
            ublk_wait,
            log,
            metrics,
            foreground: false,
            test_passphrase: false,
            unbound: false,
            persistent: false,
            json: false,
            volume,
        }
    }

    /// The export, and why it is not the usual one, if it is not.
    pub(crate) fn choose(&self) -> (Served, Option<String>) {
        self.served.map_or_else(Served::best, |served| (served, None))
    }

    /// Refuses what can be known to fail before a passphrase is asked for.
    pub(crate) fn check(&self, served: Served) -> Result<RuntimePaths, Failure> {
        self.check_served(Some(served))?;
        let paths = self.paths()?;
        paths.prepare()?;
        served.check()?;
        // Only a test: the server takes the name for good.
        drop(NameLock::take(&paths, served.is_device())?);
        self.log.check(self.volume.files(self.image()))?;
        self.metrics.check()?;
        Ok(paths)
    }

    /// The service manager, if this process is the service.
    fn notifier(&self) -> Notifier {
        if self.foreground { Notifier::of_service() } else { Notifier::default() }
    }

    /// The image; `None` if `--backend` replaces it.
    fn image(&self) -> Option<&Path> {
        (!self.volume.has_backend()).then_some(self.first.as_path())
    }

    /// Where the header is.
    fn header(&self) -> &Path {
        self.volume.flags().0.unwrap_or(&self.first)
    }

    fn paths(&self) -> Result<RuntimePaths, Failure> {
        let name = match (&self.second, self.volume.has_backend()) {
            (Some(_), true) => {
                return Err(Failure::wrong("--backend replaces the image: name only the volume"));
            }
            (None, true) => &self.first,
            (Some(name), false) => name,
            (None, false) => {
                return Err(Failure::wrong("a name is missing: ucrypt open IMAGE NAME"));
            }
        };
        let name = name.to_str().ok_or_else(|| Failure::wrong("a name is UTF-8 text"))?;
        RuntimePaths::of(name)
    }

    /// Refuses options that have no effect on the chosen export.
    fn check_served(&self, chosen: Option<Served>) -> Result<(), Failure> {
        let only = |given: bool, option, served: Served| {
            if given && chosen != Some(served) {
                let name = served.name();
                return Err(Failure::wrong(format!(
                    "{option} has an effect only with --as {name}"
                )));
            }
            Ok(())
        };
        only(self.partscan, "--partscan", Served::Loop)?;
        only(self.ublk_wait, "--ublk-wait", Served::Ublk)
    }

    /// What `open` has chosen, for its server.
    fn served(&self) -> Result<Served, Failure> {
        self.served.ok_or_else(|| Failure::wrong("the server needs --as"))
    }
}

/// The server, with the arguments of this process after those that are `added`.
fn server(action: &str, added: &[OsString]) -> Result<Command, Failure> {
    // Not the path of the program: the file may have been replaced during the passphrase prompt.
    let words = arguments()?.words;
    let mut server = Command::new("/proc/self/exe");
    server
        .arg0(std::env::args_os().next().unwrap_or_else(|| "ucrypt".into()))
        .arg(action)
        .args(added)
        .args(words.into_iter().skip(1))
        .env("RUST_MIN_STACK", resilience::THREAD_STACK)
        // Threads that serve requests allocate nothing: glibc need not keep memory for each.
        .env("MALLOC_ARENA_MAX", "1");
    Ok(server)
}

/// Becomes the server, which gets the key by a pipe and nothing else of the memory of this process.
/// Returns only if that fails.
fn become_server(mut server: Command, key: &Secret) -> Failure {
    let handed_over = || {
        let (read, mut written) = io::pipe()?;
        // Nobody reads yet: what does not fit must not be waited for.
        rustix::io::ioctl_fionbio(&written, true)?;
        written.write_all(key)?;
        Ok(read)
    };
    let error = match handed_over() {
        Ok(read) => server.stdin(Stdio::from(read)).exec(),
        Err(error) => error,
    };
    no_server(&error)
}

fn no_server(error: &io::Error) -> Failure {
    Failure::device(format!("cannot start the server: {error}{}", remedy(error)))
}

/// Starts the server, and waits until it is ready.
fn start_server(server: &mut Command, key: &Secret) -> Result<String, Failure> {
    let failed = |error| no_server(&error);
    let mut child = server.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // If the server ended already, its own message and exit code tell why.
        let _ = stdin.write_all(key);
    }
    let waiting = Waiting::begin("starting the server");
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).map_err(failed)?;
    }
    drop(waiting);
    if let Some(path) = line.trim_end_matches('\n').strip_prefix(READY) {
        return Ok(path.into());
    }
    Err(not_started(child.wait().map_err(failed)?))
}

/// Why the server has ended before it was ready.
fn not_started(status: ExitStatus) -> Failure {
    match (status.code(), status.signal()) {
        (Some(0), _) => Failure::device(
            "the server has ended before the volume was served; somebody else may have closed it",
        ),
        // The server has printed the cause on standard error, which it shares with this process.
        (Some(code), _) => Failure::with(u8::try_from(code).unwrap_or(4), ""),
        (None, Some(signal)) if signal == Signal::KILL.as_raw() => Failure::device(
            "the server was killed while it started: probably the memory was used up (dmesg says \
             so); free some, raise the limit of this container, or use --memory with less",
        ),
        (None, signal) => Failure::device(format!(
            "the server was ended by signal {} while it started; open the volume again",
            signal.unwrap_or_default()
        )),
    }
}

/// Runs the server process. It reports that it is ready only once the volume is served, so that
/// `open` can report earlier failures.
pub(crate) fn serve(args: &OpenArgs) -> Result<(), Failure> {
    serve_mounted(args, None)
}

/// As [`serve`]; `mounted`: the directory on which the volume is about to be mounted.
pub(crate) fn serve_mounted(args: &OpenArgs, mounted: Option<PathBuf>) -> Result<(), Failure> {
    let notifier = args.notifier();
    let life = start(args, mounted, &notifier).inspect_err(|failure| notifier.failed(failure))?;
    let (life, events) = life;
    let served = life.run(events, &notifier);
    // Report the failure before `finish`, which waits for the log. The log has it already.
    let served = served.map_err(|failure| {
        notifier.failed(&failure);
        Failure { message: String::new(), ..failure }
    });
    log::finish().map_err(|error| cannot_start(&error))?;
    served
}

fn cannot_start(error: &io::Error) -> Failure {
    Failure::device(format!("the server cannot start: {error}{}", remedy(error)))
}

/// Serves the volume, up to the moment at which it can be used.
fn start(
    args: &OpenArgs,
    mounted: Option<PathBuf>,
    notifier: &Notifier,
) -> Result<(Life, Events<control::Asked>), Failure> {
    let failed = |error| cannot_start(&error);
    if !args.foreground {
        // Fails only for the leader of a process group, which a child of `open` is not.
        let _ = rustix::process::setsid();
    }
    // Not the name of the file by which it was started, /proc/self/exe.
    let _ = rustix::thread::set_name(c"ucrypt");
    // A manager may pass something on.
    let inherited = if args.foreground { Inherited::default() } else { Inherited::take() };
    let mut resilience = Resilience::guard();
    secrecy::keep_files_private();
    let key = secret().map_err(failed)?;
    let events = Events::<control::Asked>::new();
    let watchdog = Watchdog::of_signals(events.sender())?;
    let (paths, served_as) = (args.paths()?, args.served()?);
    let claim = NameLock::take(&paths, served_as.is_device())?;
    // From here on, a failure removes the server's files.
    let failed_later = |_: &Failure| paths.clean_up();
    let usual_log = if args.foreground { log::To::Stderr } else { log::To::File(paths.log()) };
    let mut log = args.log.open(usual_log, paths.name())?;
    let metrics = args.metrics.listen()?;
    let memory = served_as.memory();
    let volume = args.volume.clone().for_serving(memory, 1);
    let opened = volume.open(args.image(), KeySource::Known(key));
    let opened = opened.inspect_err(failed_later)?;
    secrecy::scrub_stack();
    events.listen(&opened.volume);
    // The image is open, which may have been named by one of them, or by a path from this directory.
    drop(inherited);
    let left = rustix::process::chdir("/").map_err(|error| failed(error.into()));
    left.inspect_err(failed_later)?;
    if served_as.may_leave_mounts() {
        resilience.leave_mounts(&paths);
    }
    let last_flush = LastFlush::prepare(&opened.volume).inspect_err(failed_later)?;
    let started = served_as.start(&opened, &paths, args);
    let (mut exports, link, device) = started.inspect_err(failed_later)?;
    watchdog.aborts(exports.aborts());
    let serve =
        |bound: Bound| bound.serve(paths.name(), &exports.kinds(), &opened, exports.clients());
    let metrics = metrics.map(serve).transpose().inspect_err(failed_later)?;
    control::start(&paths, events.sender()).inspect_err(failed_later)?;
    resilience.lock_memory();
    let null = OpenOptions::new().read(true).write(true).open("/dev/null");
    let null = null.map_err(failed).inspect_err(failed_later)?;
    // If `open` has gone, the volume is still open, and `list` shows it.
    match (args.foreground, args.json) {
        (false, _) => announce(format_args!("{READY}{device}")),
        (true, false) => announce(&device),
        (true, true) => announce(json!({ "name": paths.name(), "device": device })),
    }
    .inspect_err(failed_later)?;
    detach(args.foreground, &null, &mut log).map_err(failed).inspect_err(failed_later)?;
    drop(null);
    exports.own();
    notifier.ready(&format!("serves {} as {device}", opened.facts.image));
    let log_place = log.to().describe();
    log.install();
    let image = &opened.facts.image;
    event(Level::Info, "opened", format_args!("opened {image} as {device}"));
    let life = Life {
        paths,
        claim,
        opened,
        exports,
        link,
        device,
        last_flush,
        resilience,
        suspension: Suspension::None,
        troubles: Troubles::default(),
        watchdog,
        resizing: None,
        heartbeat: notifier.heartbeat(),
        mounted,
        table: std::env::var_os(TABLE_VARIABLE).map(PathBuf::from),
        metrics,
        log: log_place,
        started: Instant::now(),
    };
    Ok((life, events))
}

/// Reads the secret that `open` passes on. Reads without a buffer, because nobody would wipe its
/// copy.
fn secret() -> io::Result<Secret> {
    let mut stdin = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut secret = Zeroizing::new(Vec::with_capacity(SECRET_MAX));
    let mut piece = Zeroizing::new([0; 4096]);
    loop {
        match stdin.read(&mut *piece) {
            Ok(0) => return Ok(secret),
            Ok(count) if secret.len() + count <= SECRET_MAX => {
                secret.extend_from_slice(&piece[..count]);
            }
            Ok(_) => return Err(io::Error::other("the key is too long")),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Detaches from standard input and, unless in the foreground, from the terminal.
fn detach(foreground: bool, null: &File, log: &mut Log) -> io::Result<()> {
    rustix::stdio::dup2_stdin(null)?;
    if !foreground {
        rustix::stdio::dup2_stdout(null)?;
    }
    log.take_stderr()
}

/// Closes every volume that can be closed. Each failure is said; the code of the first is the result. With `--all`, one that is closed meanwhile is none.
pub(crate) fn close(args: &CloseArgs) -> Result<(), Failure> {
    let mut left = args.names.clone();
    if args.all {
        left.extend(RuntimePaths::all()?.iter().map(|paths| paths.name().to_owned()));
    }
    let mut ended = Ended::default();
    while !left.is_empty() {
        // At once: one that does not answer keeps the others from nothing.
        let closed = at_once(&left, |name| close_one(name, args.deferred));
        let mut in_use = Vec::new();
        for (name, closed) in left.iter().zip(closed) {
            match closed {
                Ok(()) => {}
                Err(failure) if failure.is_gone && !args.names.contains(name) => {}
                Err(failure) if failure.is_busy() => in_use.push((name.clone(), failure)),
                Err(failure) => ended.keep(Err(failure)),
            }
        }
        // The user of one may have been another of them, whose image it is.
        let may_go_on = in_use.len() < left.len();
        left.clear();
        for (name, failure) in in_use {
            if may_go_on {
                left.push(name);
            } else {
                ended.keep(Err(failure));
            }
        }
    }
    ended.result()
}

fn close_one(name: &str, deferred: bool) -> Result<(), Failure> {
    let paths = RuntimePaths::of_open(name)?;
    let request = if deferred { control::Request::CloseDeferred } else { control::Request::Close };
    // First: of a server that ends just now, nobody else tells how it ends.
    let asked = control::ask(&paths, request);
    if asked.is_err() && has_remains(&paths) && clean_up_after_killed(&paths) {
        return Err(Failure::device(format!(
            "the server of {} was killed; what it left has been removed",
            paths.name()
        )));
    }
    // What is left in a directory of others is not removed, and why is more than that nobody answers.
    if asked.is_err() {
        paths.check()?;
    }
    said(&asked?)
}

/// Closes a volume, as `close` does.
pub(crate) fn close_named(name: &str) -> Result<(), Failure> {
    close_one(name, false)
}

/// As [`close_named`], but waits so long for the users of the volume to go.
pub(crate) fn close_patiently(name: &str, patience: Duration) -> Result<(), Failure> {
    // `None`: beyond all times.
    let deadline = Instant::now().checked_add(patience);
    let mut told = false;
    loop {
        let closed = close_one(name, false);
        let is_busy = closed.as_ref().is_err_and(Failure::is_busy);
        if !is_busy || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return closed;
        }
        if let (Err(failure), false) = (&closed, told) {
            say_line(format_args!("{failure}; waits for at most {} s", patience.as_secs()));
            told = true;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// The status of a volume, if its server lives and is this user's or this user is root.
pub(crate) fn status_of(paths: &RuntimePaths) -> Option<Value> {
    ask_status(paths).ok()
}

/// As [`status_of`], or why there is none.
pub(crate) fn ask_status(paths: &RuntimePaths) -> Result<Value, Failure> {
    control::ask(paths, control::Request::Status)
}

/// Whether a volume with this status has its key, and is not about to lose it.
pub(crate) fn has_key(status: &Value) -> bool {
    !show::is_suspended(status)
}

/// The names of open volumes whose links lead to this device. The link that a killed server has left may
/// lead to another one's device by now, and for a moment that of a server which ends.
pub(crate) fn names_of_device(device: &Path) -> Vec<String> {
    let mut names = link::names_of(device);
    names.retain(|name| link::is_its_own(name) && !name_lock::is_link_stale(name));
    names
}

/// The name of the volume with this device. Of the links that lead there, those of killed servers may mean
/// a device that had the number before; one whose device is still there is meant if there is no other.
pub(crate) fn name_of_device(device: &Path) -> Option<String> {
    let mut names = link::names_of(device);
    names.retain(|name| link::is_its_own(name));
    names.sort_by_key(|name| name_lock::is_link_stale(name));
    names.into_iter().next()
}

/// Whether the link of a volume leads to the device that its server attached, and not to the next one of its number.
pub(crate) fn has_its_device(paths: &RuntimePaths) -> bool {
    link::is_its_own(paths.name())
}

/// The users of a served file, as far as they can be seen. By its `status` it is known also when its name is gone.
pub(crate) fn users_of_file(paths: &RuntimePaths, status: Option<&Value>) -> Users {
    users::of(&[Place::File(&paths.file(), status.and_then(file_system_of))])
}

/// Major and minor number of the file system of a volume's file.
fn file_system_of(status: &Value) -> Option<(u32, u32)> {
    let number = |value: &Value| u32::try_from(value.as_u64()?).ok();
    let file_system = &status["export"]["file_system"];
    number(&file_system[0]).zip(number(&file_system[1]))
}

/// Whether a volume has this name, or another user's device.
pub(crate) fn is_taken(paths: &RuntimePaths) -> bool {
    has_remains(paths) || link::exists(paths.name())
}

/// Whether a volume of this name is open, or was left by a killed server.
pub(crate) fn is_open(paths: &RuntimePaths) -> bool {
    has_remains(paths)
}

/// Refuses `/dev/ucrypt/NAME` for a volume of this runtime directory that has the name, but another device or none.
pub(crate) fn check_device(paths: &RuntimePaths) -> Result<(), Failure> {
    let name = paths.name();
    let is_own = if is_served(paths) {
        // Who gets no answer does nothing to the volume.
        let status = control::status_within(paths, LOOK_PATIENCE).ok().flatten();
        status.is_none_or(|it| it["device"].as_str().map(Path::new) == Some(&link::path(name)))
    } else {
        !link::exists(name) || name_lock::is_link_stale(name)
    };
    if is_own { Ok(()) } else { Err(opened_elsewhere(paths)) }
}

/// The refusal to act on a volume whose server has another runtime directory.
pub(crate) fn opened_elsewhere(paths: &RuntimePaths) -> Failure {
    Failure::busy(format!(
        "/dev/ucrypt/{} was opened with another runtime directory than {}: set or unset XDG_RUNTIME_DIR as it was then \
         (services have none), or stop its service",
        paths.name(),
        paths.dir().display()
    ))
}

/// Whether the device of this name is that of a server with another runtime directory.
pub(crate) fn is_open_elsewhere(paths: &RuntimePaths) -> bool {
    !has_remains(paths) && link::exists(paths.name())
}

/// Whether a volume with this status is about to be closed.
pub(crate) fn is_about_to_close(status: &Value) -> bool {
    show::is_closing(status)
}

/// The name of the open volume of this user that has its data on `image`.
pub(crate) fn volume_of_image(image: &Path) -> Option<String> {
    let images = [std::path::absolute(image).ok(), fs::canonicalize(image).ok()];
    let volumes = statuses(LOOK_PATIENCE).ok()?.into_iter();
    let mut open = volumes.filter_map(|(name, answer)| Some((name, answer.ok()?)));
    // By their names: a file system with an image of another volume need not answer.
    let is_of_it = |status: &Value| {
        let open = path_in(&status["volume"], "image");
        images.iter().flatten().any(|image| open.as_ref() == Some(image))
    };
    open.find(|(_, status)| is_of_it(status)).map(|(name, _)| name)
}

/// The names of the volumes of this user that were opened by a line of this table, which may have changed since; and
/// of those whose servers do not answer, which may have been.
pub(crate) fn attached_by(table: &Path) -> Result<(Vec<String>, Vec<String>), Failure> {
    let table = std::path::absolute(table).unwrap_or_else(|_| table.into());
    let table = table.display().to_string();
    let is_of_it = |status: &Value| status["ucrypttab"].as_str() == Some(&table);
    let (mut attached, mut unknown) = (Vec::new(), Vec::new());
    for (name, answer) in statuses(control::STATUS_PATIENCE)? {
        match answer {
            Ok(status) if is_of_it(&status) => attached.push(name),
            Ok(_) => {}
            Err(_) => unknown.push(name),
        }
    }
    Ok((attached, unknown))
}

/// The status of a volume that is about to be closed and whose device node is `node`. Once its close is
/// deferred, no link leads there.
pub(crate) fn closing_volume_with(node: &Path) -> Option<Value> {
    let volumes = statuses(LOOK_PATIENCE).unwrap_or_default().into_iter();
    let mut answers = volumes.filter_map(|(_, answer)| answer.ok());
    answers.find(|status| {
        show::is_closing(status) && status["export"]["node"].as_str().map(Path::new) == Some(node)
    })
}

/// Whether a volume of this name has a server that lives.
pub(crate) fn is_served(paths: &RuntimePaths) -> bool {
    name_lock::is_held(paths)
}

/// Whether a server of this name, alive or killed, has left files or a link.
fn has_remains(paths: &RuntimePaths) -> bool {
    paths.are_in_use() || name_lock::is_link_stale(paths.name())
}

/// Removes what a killed server left. Returns whether there was something.
fn clean_up_after_killed(paths: &RuntimePaths) -> bool {
    // A live server holds its claim. One that has ended meanwhile leaves nothing.
    NameLock::take(paths, false).is_ok_and(|claim| claim.had_remains)
}

/// Turns the server's answer to a request into a result.
fn said(answer: &Value) -> Result<(), Failure> {
    match answer.get("error").and_then(Value::as_str) {
        None => Ok(()),
        Some(error) => {
            let code = answer.get("code").and_then(Value::as_u64);
            let code = code.and_then(|code| u8::try_from(code).ok()).unwrap_or(4);
            Err(Failure::with(code, error))
        }
    }
}

pub(crate) fn resize(args: &ResizeArgs) -> Result<(), Failure> {
    let paths = RuntimePaths::of_open(&args.name)?;
    let sectors = |sectors: u64| {
        sectors.checked_mul(512).ok_or_else(|| Failure::wrong("no disk is that large"))
    };
    let bytes = args.size.map(sectors).transpose()?.or(args.device_size);
    let request = control::Request::Resize { bytes: bytes.filter(|bytes| *bytes > 0) };
    said(&control::ask(&paths, request)?)
}

/// Columns of `list` where its output is no terminal, and the fewest.
const LIST_WIDTH: usize = 60;

fn list_width() -> usize {
    let terminal = rustix::termios::tcgetwinsize(rustix::stdio::stdout());
    terminal.map_or(LIST_WIDTH, |size| usize::from(size.ws_col)).max(LIST_WIDTH)
}

pub(crate) fn list(args: &ListArgs) -> Result<(), Failure> {
    let status = |(name, answer): (String, Result<Value, String>)| {
        let mut status = answer.unwrap_or_else(|error| {
            // As `status`: of a server that lives and does not answer, nothing is known.
            let is_served = RuntimePaths::of(&name).is_ok_and(|paths| is_served(&paths));
            json!({ "active": (!is_served).then_some(false), "error": error })
        });
        status["name"] = name.into();
        status
    };
    let volumes: Vec<Value> = statuses(control::STATUS_PATIENCE)?.into_iter().map(status).collect();
    if args.json {
        print_line(format_args!("{:#}", Value::from(volumes)))
    } else {
        let width = (!args.wide).then(list_width);
        print(&show::list(&volumes, width, args.bytes))
    }
}

pub(crate) fn status(args: &StatusArgs) -> Result<(), Failure> {
    let paths = RuntimePaths::of_open(&args.name)?;
    match control::ask(&paths, control::Request::Status) {
        Ok(status) if args.json => print_line(format_args!("{status:#}")),
        Ok(status) if args.dispatch => print(&show::dispatch(&status)),
        Ok(status) => show_status(&paths, &status, args.bytes),
        // It may have a mounted file system, or be another user's.
        Err(failure) if is_served(&paths) || failure.is_denied() => {
            if args.json {
                let (name, error) = (paths.name(), &failure.message);
                print_line(json!({ "name": name, "active": null, "error": error }))?;
            }
            Err(failure)
        }
        Err(failure) => {
            if args.json {
                print_line(json!({ "name": paths.name(), "active": false }))?;
            } else {
                print_line(format_args!("{} is inactive.", paths.file().display()))?;
            }
            Err(failure)
        }
    }
}

/// How long `status` looks at a volume to tell what it does now.
const LOOK: Duration = Duration::from_millis(300);

/// Prints the status of an open volume, with what it does now and who uses it.
fn show_status(paths: &RuntimePaths, first: &Value, bytes: bool) -> Result<(), Failure> {
    let begin = Instant::now();
    let users = users_of(first).names();
    std::thread::sleep(LOOK.saturating_sub(begin.elapsed()));
    // A volume that has ended meanwhile has a status all the same: the first one.
    let later = control::ask(paths, control::Request::Status).ok();
    let around = show::Around {
        later: later.as_ref().map(|later| (later, begin.elapsed())),
        users: &users,
        bytes,
    };
    print(&show::status(first, &around))
}

/// Who uses the device or file of an open volume, as far as this process sees.
fn users_of(status: &Value) -> Users {
    let path = Path::new(status["device"].as_str().unwrap_or_default());
    let number = |value: &Value| u32::try_from(value.as_u64()?).ok();
    let server = number(&status["server"]["pid"]).unwrap_or(0);
    if path.starts_with("/dev") {
        let device = path.canonicalize();
        return device
            .map_or_else(|_| Users::default(), |it| users::beside(&[Place::Device(&it)], server));
    }
    if !path.is_absolute() {
        return Users::default();
    }
    users::beside(&[Place::File(path, file_system_of(status))], server)
}

/// The status of volumes, by name; the failure of those whose server does not answer. One that is closed just now is
/// not among them.
pub(crate) type Answers = Vec<(String, Result<Value, String>)>;

/// Asks the servers of all open volumes of this user; each may take so long.
pub(crate) fn statuses(patience: Duration) -> Result<Answers, Failure> {
    let all = RuntimePaths::all()?;
    // One that hangs keeps the others from nothing.
    let answers = at_once(&all, |paths| {
        control::status_within(paths, patience).map_err(|failure| failure.message)
    });
    let names = all.iter().map(|paths| paths.name().to_owned());
    let answers = names.zip(answers).filter_map(|(name, answer)| Some((name, answer.transpose()?)));
    Ok(answers.collect())
}

/// Does the same with all of them at the same time, as far as there are threads. Returns the results in
/// their order.
fn at_once<T: Sync, R: Send>(all: &[T], act: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let act = &act;
    std::thread::scope(|scope| {
        let begin = |one| std::thread::Builder::new().spawn_scoped(scope, move || act(one));
        let begun: Vec<_> = all.iter().map(|one| (one, begin(one))).collect();
        let ended = begun.into_iter().map(|(one, thread)| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            // There may be no more threads: then one after the other.
            Err(_) => act(one),
        });
        ended.collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_ends_before_it_is_ready_has_a_reason() {
        let ended = |status: i32| not_started(ExitStatus::from_raw(status));
        // As wait(2) encodes them: a signal, or an exit code in the second byte.
        let killed = ended(9);
        assert!(killed.code == 4 && killed.message.contains("memory"), "{killed}");
        let aborted = ended(6);
        assert!(aborted.code == 4 && aborted.message.contains("signal 6"), "{aborted}");
        let silent = ended(0);
        assert!(silent.code == 4 && !silent.message.is_empty());
        let told = ended(2 << 8);
        assert!(told.code == 2 && told.message.is_empty(), "the server has said why");
    }
}
