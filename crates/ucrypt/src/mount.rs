//! `mount` and `umount`: a volume and the file system on it, in one command.
//!
//! Where the volume is served as a device, the kernel's file system is mounted. Where it is served as a
//! file, a file system in user space (FUSE) opens that file. A mount that fails, or is interrupted, leaves
//! no volume open that was not open before.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use rustix::fs::{Access, access};
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::available;
use crate::background::{self, OpenArgs, Served, as_option};
use crate::ending::may_end;
use crate::failure::{Ended, Failure};
use crate::log::LogArgs;
use crate::metrics::MetricsArgs;
use crate::programs;
use crate::progress::Waiting;
use crate::runtime::RuntimePaths;
use crate::stdio::{announce, say_line, say_verbose};
use crate::terminal::leave_signals;
use crate::volume::VolumeArgs;

mod fuse;
mod holders;
mod kernel;
pub(crate) mod table;

use table::Mount;

/// The hidden action that runs the server.
pub(crate) const SERVER_ACTION: &str = "mount-in-background";

/// How long a file system in user space may take to write what it holds after it was unmounted.
const WRITING_PATIENCE: Duration = Duration::from_secs(600);

/// How long another `mount` may take to start its server before it is not waited for: a name may be taken
/// twice then, and one of the two servers does not start.
const TURN_PATIENCE: Duration = Duration::from_secs(10);

/// Most volumes of one image name that get a name by themselves.
const NAMES_MAX: u32 = 99;

/// Most links in a row that are followed, as in the kernel.
const LINKS_MAX: usize = 40;

/// Longest name that is made of a file name, in bytes: a number has room behind it.
const STEM_MAX: usize = 60;

/// Arguments of `mount`.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "ucrypt mount [OPTIONS] IMAGE DIR\n       ucrypt mount [OPTIONS] NAME DIR",
    mut_arg("data_offset", |arg| arg.short(None::<char>)),
)]
pub(crate) struct MountArgs {
    /// The image: a file or a block device; or the name of an open volume
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// The directory to mount at
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Options for the file system, as mount(8) or the FUSE file system takes them; ro also opens the
    /// volume for reading only
    #[arg(short = 'o', long, value_name = "OPTIONS", value_delimiter = ',')]
    options: Vec<String>,
    /// The kind of file system, if it is not found by looking
    #[arg(long, value_name = "KIND")]
    fstype: Option<String>,
    /// A name for the open volume [default: made of the image's name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// How the volume is served; without it, the first of ublk, loop and fuse that this system permits
    #[arg(long = "as", value_parser = mountable())]
    served: Option<Served>,
    /// If the server dies, let the requests of the ublk device wait until the volume is opened again
    #[arg(long)]
    ublk_wait: bool,
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

/// The exports that can be mounted: a client of NBD makes a disk of its own.
fn mountable() -> impl TypedValueParser<Value = Served> {
    let exports = Served::value_variants().iter().filter(|export| **export != Served::Nbd);
    PossibleValuesParser::new(exports.filter_map(Served::to_possible_value))
        .try_map(|name| Served::from_str(&name, false))
}

/// Arguments of `umount`.
#[derive(Debug, clap::Args)]
pub(crate) struct UmountArgs {
    /// Directories where volumes are mounted, or names of volumes
    #[arg(value_name = "DIR|NAME", required = true)]
    places: Vec<PathBuf>,
}

/// What is mounted, and where.
struct Wanted<'a> {
    dir: PathBuf,
    fstype: Option<&'a str>,
    /// Without `rw` and `defaults`, and with `ro` if nothing is to be written.
    options: Vec<&'a str>,
}

impl MountArgs {
    fn is_readonly(&self) -> bool {
        let ro = self.options.iter().rev().find(|option| ["ro", "rw"].contains(&option.as_str()));
        ro.map_or(self.volume.is_readonly(), |option| option == "ro")
    }

    /// What `open` does with these arguments.
    fn open_args(&self, name: &str) -> OpenArgs {
        let volume = self.volume.clone();
        let volume = if self.is_readonly() { volume.for_reading() } else { volume };
        OpenArgs::new(
            (&self.image, name),
            self.served,
            (self.log.clone(), self.metrics.clone(), self.ublk_wait),
            volume,
        )
    }

    fn wanted(&self) -> Result<Wanted<'_>, Failure> {
        if self.volume.is_readonly() && !self.is_readonly() {
            return Err(Failure::wrong(
                "--readonly and -o rw exclude each other; leave one of them out",
            ));
        }
        let (dir, is_readonly) = (mount_point(&self.dir)?, self.is_readonly());
        let given = self.options.iter().map(String::as_str);
        let given = given.filter(|it| !["", "ro", "rw", "defaults"].contains(it));
        let options = is_readonly.then_some("ro").into_iter().chain(given).collect();
        Ok(Wanted { dir, fstype: self.fstype.as_deref(), options })
    }
}

/// The directory to mount at, by the path that the kernel shows.
fn mount_point(dir: &Path) -> Result<PathBuf, Failure> {
    let refused = |error| Failure::wrong(format!("cannot mount at {}: {error}", dir.display()));
    let found = fs::canonicalize(dir).map_err(refused)?;
    if !found.is_dir() {
        return Err(Failure::wrong(format!(
            "cannot mount at {}: it is no directory",
            dir.display()
        )));
    }
    let top = Mount::at(&table::read()?, &found).cloned();
    if let Some((mount, volume)) = top.and_then(|mount| volume_of(&mount).map(|it| (mount, it))) {
        return Err(Failure::busy(format!(
            "{} is mounted at {} already; ucrypt umount ends it",
            volume.name(),
            mount.place.display()
        )));
    }
    Ok(found)
}

/// The open volume that `image` names, if it names one and no image.
pub(crate) fn open_volume(image: &Path) -> Option<RuntimePaths> {
    let text = image.to_str()?;
    let paths = RuntimePaths::of_open(text).ok()?;
    let is_own = text != paths.name();
    ((is_own || !image.exists()) && background::is_open(&paths)).then_some(paths)
}

/// The open volume under a mount.
fn volume_of(mount: &Mount) -> Option<RuntimePaths> {
    volumes().into_iter().find(|paths| mount.is_of(paths))
}

fn volumes() -> Vec<RuntimePaths> {
    RuntimePaths::all().unwrap_or_default()
}

/// What mounts volumes of users who are not root here; the error says how to get it.
pub(crate) fn without_root() -> Result<String, String> {
    fuse::installed()
}

pub(crate) fn mount(args: &MountArgs) -> Result<(), Failure> {
    if args.volume.has_backend() {
        return Err(Failure::wrong(
            "a new --backend has no file system to mount; use open and mkfs",
        ));
    }
    let wanted = args.wanted()?;
    if let Some(paths) = open_volume(&args.image) {
        return mount_open(args, &paths, wanted);
    }
    let (name, turn) = match &args.name {
        Some(name) => (name.clone(), None),
        None => free_name(&args.image)?,
    };
    let open = args.open_args(&name);
    let (served, why) = open.choose();
    check_can_mount(served, why, &wanted)?;
    if served == Served::Fuse {
        fuse::check_file(&RuntimePaths::of(&name)?.file())?;
    }
    let paths = open.check(served)?;
    let mut added: Vec<OsString> = Vec::new();
    if args.served.is_none() {
        added.push(as_option(served));
    }
    drop(turn);
    let key = background::unlock(&open)?;
    // Not earlier: at a prompt, and during the key derivation, there is nothing to undo.
    let interrupt = Interrupt::catch()?;
    let mut turn = None;
    let mut paths = paths;
    if args.name.is_none() {
        // Another `mount` may have taken the name meanwhile.
        let (name, until_served) = free_name(&args.image)?;
        turn = until_served;
        paths = RuntimePaths::of(&name)?;
        added.push(format!("--name={name}").into());
    }
    let device = background::start_to_mount((SERVER_ACTION, &added), &key)?;
    drop((turn, key));
    let interrupted = || {
        if interrupt.came() {
            return Err(Failure::wrong("interrupted; nothing is mounted"));
        }
        Ok(())
    };
    let mounted =
        interrupted().and_then(|()| mount_device(&device, &wanted)).and_then(|()| interrupted());
    if let Err(failure) = mounted {
        let failure = interrupted().err().unwrap_or(failure);
        return Err(match undo(&paths, &wanted.dir) {
            Ok(()) => failure,
            Err(kept) => {
                let stays = background::is_open(&paths);
                let stays = if stays { "the volume stays open: " } else { "" };
                Failure { message: format!("{failure}; {stays}{kept}"), ..failure }
            }
        });
    }
    tell(args, &paths, &device, &wanted)
}

/// Mounts a volume that is open already, and leaves it open whatever happens.
fn mount_open(args: &MountArgs, paths: &RuntimePaths, wanted: Wanted<'_>) -> Result<(), Failure> {
    let name = paths.name();
    if args.name.is_some() {
        return Err(Failure::wrong(format!(
            "{name} is open already, under this name; leave --name out"
        )));
    }
    let status = background::ask_status(paths)?;
    has_key(name, &status)?;
    let device = status["device"].as_str().unwrap_or_default();
    let mut options = wanted.options;
    if status["volume"]["read_only"] == true && !options.contains(&"ro") {
        if args.options.iter().any(|option| option == "rw") {
            return Err(Failure::wrong(format!(
                "{name} is open for reading only; leave rw out, or close it and open it without --readonly"
            )));
        }
        options.insert(0, "ro");
    }
    let wanted = Wanted { options, ..wanted };
    mount_device(device, &wanted)?;
    tell(args, paths, device, &wanted)
}

/// Refuses a suspended volume: the kernel would wait for its key, and nothing can end this process then.
fn has_key(name: &str, status: &serde_json::Value) -> Result<(), Failure> {
    if background::has_key(status) {
        return Ok(());
    }
    Err(Failure::busy(format!(
        "{name} is suspended; ucrypt luksResume {name} gives it its key again"
    )))
}

/// Unmounts what a mount has left that did not succeed, and closes the volume.
fn undo(paths: &RuntimePaths, dir: &Path) -> Result<(), Failure> {
    // A helper that is ended may have mounted all the same.
    if let Some(mount) = Mount::at(&table::read()?, dir).filter(|mount| mount.is_of(paths)) {
        unmount(mount, true)?;
    }
    await_file_system(paths, background::status_of(paths).as_ref());
    background::close_named(paths.name())
}

fn tell(
    args: &MountArgs,
    paths: &RuntimePaths,
    device: &str,
    wanted: &Wanted<'_>,
) -> Result<(), Failure> {
    let dir = wanted.dir.display().to_string();
    say_verbose(format_args!("{} is open as {device} and mounted at {dir}.", paths.name()));
    if args.json {
        return announce(json!({ "name": paths.name(), "device": device, "dir": dir }));
    }
    Ok(())
}

/// Refuses what cannot be mounted, before a passphrase is asked for.
fn check_can_mount(
    served: Served,
    why: Option<String>,
    wanted: &Wanted<'_>,
) -> Result<(), Failure> {
    match served {
        Served::Ublk | Served::Loop => kernel::check(),
        Served::Fuse => {
            if access(&wanted.dir, Access::WRITE_OK).is_err() {
                return Err(Failure::denied(format!(
                    "cannot mount at {}: you may not write there",
                    wanted.dir.display()
                )));
            }
            fuse::check(wanted.fstype)
        }
        Served::Nbd => {
            let why = why.unwrap_or_default();
            Err(Failure::denied(format!("{why}; what is served --as nbd cannot be mounted")))
        }
    }
}

/// Mounts a device or a served file.
fn mount_device(device: &str, wanted: &Wanted<'_>) -> Result<(), Failure> {
    let path = Path::new(device);
    if device.starts_with("/dev/ucrypt/") {
        kernel::mount(path, wanted)
    } else if path.is_absolute() {
        fuse::mount(path, wanted)
    } else {
        Err(Failure::wrong(format!(
            "{device} is neither a device nor a file; it cannot be mounted"
        )))
    }
}

/// A name for the volume of this image that no other volume has. Another `mount` waits for its own as long as
/// the turn is not dropped.
fn free_name(image: &Path) -> Result<(String, Option<File>), Failure> {
    let stem = stem(image);
    let paths = RuntimePaths::of(&stem)?;
    paths.prepare()?;
    let turn = paths.turn(TURN_PATIENCE);
    let names = (1..=NAMES_MAX).map(|number| match number {
        1 => stem.clone(),
        number => format!("{stem}-{number}"),
    });
    for name in names {
        if !background::is_taken(&RuntimePaths::of(&name)?) {
            return Ok((name, turn));
        }
    }
    Err(Failure::busy(format!("{NAMES_MAX} volumes are open under the name {stem}; use --name")))
}

/// The file name of an image, made fit for a volume, a mount option and a unit.
fn stem(image: &Path) -> String {
    let name = image.file_name().unwrap_or_default().to_string_lossy();
    let fit = |c: char| if c.is_alphanumeric() || "._-+".contains(c) { c } else { '_' };
    let mut name: String = name.chars().map(fit).skip_while(|c| ['.', '-'].contains(c)).collect();
    while name.len() > STEM_MAX {
        name.pop();
    }
    if name.is_empty() { "volume".into() } else { name }
}

/// The server of a volume that is mounted.
pub(crate) fn serve(args: &MountArgs) -> Result<(), Failure> {
    let name = args.name.as_deref().ok_or_else(|| Failure::wrong("the server needs --name"))?;
    // Nothing below is asked: a file system may already be mounted there.
    let dir = std::path::absolute(&args.dir).unwrap_or_else(|_| args.dir.clone());
    let dir = fs::canonicalize(&dir).unwrap_or(dir);
    background::serve_mounted(&args.open_args(name), Some(dir))
}

pub(crate) fn umount(args: &UmountArgs) -> Result<(), Failure> {
    let mut ended = Ended::default();
    for place in &args.places {
        ended.keep(umount_one(place));
    }
    ended.result()
}

fn umount_one(place: &Path) -> Result<(), Failure> {
    let mounts = table::read()?;
    let named = place.to_str().map(RuntimePaths::of_open).transpose();
    let (open, elsewhere) = match named {
        Ok(named) => (named.filter(background::is_open), None),
        Err(failure) => (None, Some(failure).filter(Failure::is_busy)),
    };
    // What is mounted at the path of a served file is the volume itself.
    let is_volume = open
        .as_ref()
        .is_some_and(|paths| std::path::absolute(place).is_ok_and(|place| place == paths.file()));
    if let Some(mount) = mount_at(&mounts, place).filter(|_| !is_volume) {
        let Some(paths) = volume_of(&mount) else {
            if let Some(status) = background::closing_volume_with(&mount.source) {
                return unmount_closing(&mount, &status);
            }
            return Err(Failure::device(format!(
                "{} is no volume of yours: {} is mounted there; umount ends it",
                place.display(),
                mount.source.display()
            )));
        };
        return unmount_and_close(&paths, &[mount]);
    }
    let Some(paths) = open else {
        let unknown = || {
            Failure::device(format!(
                "nothing is mounted at {0}, and no open volume has the name {0}; ucrypt list shows \
                 those that are open",
                place.display()
            ))
        };
        return Err(elsewhere.unwrap_or_else(unknown));
    };
    // What was mounted last may be mounted on what was mounted first.
    let of_it: Vec<_> = mounts.into_iter().filter(|mount| mount.is_of(&paths)).rev().collect();
    unmount_and_close(&paths, &of_it)
}

/// The mount that is on top at a path. A directory whose server is dead is not looked at, but links to it
/// are followed.
fn mount_at(mounts: &[Mount], place: &Path) -> Option<Mount> {
    let mut place = std::path::absolute(place).ok()?;
    for _ in 0..LINKS_MAX {
        if let Some(mount) = Mount::at(mounts, &place) {
            return Some(mount.clone());
        }
        place = fs::canonicalize(place.parent()?).ok()?.join(place.file_name()?);
        if let Some(mount) = Mount::at(mounts, &place) {
            return Some(mount.clone());
        }
        let target = fs::read_link(&place).ok()?;
        place = place.parent()?.join(target);
    }
    None
}

/// Unmounts a volume that ends by itself with its last user.
fn unmount_closing(mount: &Mount, status: &serde_json::Value) -> Result<(), Failure> {
    let name = status["name"].as_str().unwrap_or_default();
    has_key(name, status)?;
    let paths = RuntimePaths::of(name)?;
    // Once it has ended, the name may be another volume's.
    let status = || background::status_of(&paths).filter(background::is_about_to_close);
    // Nobody will ask later what failed before.
    let failed = || failures(&status()?, 0);
    // Its server, which counts what fails, may be gone as soon as it is unmounted.
    kernel::sync(&mount.place)?;
    let while_written = failed();
    unmount(mount, true)?;
    match failed().or(while_written) {
        Some(failed) => Err(missing(name, "unmounted", &failed)),
        None => Ok(()),
    }
}

/// The failure of an `umount` of which not everything was stored.
fn missing(name: &str, what: &str, failed: &str) -> Failure {
    Failure::device(format!(
        "{name} is {what}, but {failed}: what was written last may be missing; check the file system"
    ))
}

/// Unmounts, and closes the volume if `mount` has opened it and nothing else is mounted of it, or if
/// nothing of it was mounted.
fn unmount_and_close(paths: &RuntimePaths, mounts: &[Mount]) -> Result<(), Failure> {
    let name = paths.name();
    let status = background::status_of(paths);
    match &status {
        _ if mounts.is_empty() => {}
        Some(status) => has_key(name, status)?,
        // The kernel would wait for it.
        None if background::is_served(paths) => {
            return Err(Failure::device(format!(
                "the server of {name} does not answer, without which nothing can be stored; nothing was \
                 unmounted"
            )));
        }
        None => {}
    }
    let in_user_space = mounts.iter().any(Mount::is_fuse);
    let was_killed = in_user_space && status.is_some() && {
        let users = background::users_of_file(paths, status.as_ref());
        let may_be_there = || !users.unseen.is_empty() && !mounts.iter().any(fuse::is_dead);
        fuse::among(&users.seen).is_none() && !may_be_there()
    };
    for mount in mounts {
        unmount(mount, status.is_some())?;
    }
    let left = table::read()?.into_iter().find(|mount| mount.is_of(paths));
    let by_mount = status.as_ref().is_none_or(|status| status["mounted"].is_string());
    let stays = if let Some(left) = left.filter(|_| !mounts.is_empty()) {
        Some(format!("because it is mounted at {}, too", left.place.display()))
    } else {
        if in_user_space || mounts.is_empty() {
            await_file_system(paths, status.as_ref());
        }
        let stays = !mounts.is_empty() && !by_mount;
        stays.then(|| format!("as it was before; ucrypt close {name} closes it"))
    };
    // Of failures before it was unmounted the kernel has told whoever asked first, and gives up what was to be
    // written: who closes the volume with this is told, too. Of one that stays open, others may have mounted it.
    let before = status.as_ref().filter(|_| !in_user_space && stays.is_some()).map_or(0, errors);
    if before > 0 && !mounts.is_empty() {
        say_line(format_args!(
            "{before} requests of {name} had failed before it was unmounted; check the file system, if nobody \
             has done so since"
        ));
    }
    let after = background::ask_status(paths);
    let failed = match after {
        Ok(status) => failures(&status, before),
        Err(failure) if failure.is_gone => None,
        // One that closes ends with its last user, who may have been this mount.
        Err(_) => status
            .as_ref()
            .filter(|status| !background::is_about_to_close(status))
            .map(|_| "its server has ended meanwhile, or does not answer".to_owned()),
    };
    let closed = match &stays {
        Some(why) => {
            say_line(format_args!("{name} stays open, {why}"));
            Ok(())
        }
        // Somebody else may have closed it meanwhile.
        None => background::close_named(name)
            .or_else(|failure| if failure.is_gone { Ok(()) } else { Err(failure) }),
    };
    let failed = if was_killed {
        Some("the program that kept its file system had ended before".into())
    } else {
        // What failed before a file system in user space was mounted, nobody has counted.
        let since = if in_user_space && !by_mount { " since it was opened" } else { "" };
        failed.filter(|_| !mounts.is_empty()).map(|failed| format!("{failed}{since}"))
    };
    let Some(failed) = failed else { return closed };
    let is_closed = stays.is_none() && closed.is_ok();
    // That something is missing matters more than why the volume is not closed.
    if let Err(failure) = closed {
        say_line(failure);
    }
    Err(missing(name, if is_closed { "closed" } else { "unmounted" }, &failed))
}

/// Requests of a volume that have failed.
fn errors(status: &serde_json::Value) -> u64 {
    status["counters"]["errors"].as_u64().unwrap_or(0)
}

/// What failed after there were `before` failures.
fn failures(status: &serde_json::Value, before: u64) -> Option<String> {
    let count = errors(status).checked_sub(before).filter(|count| *count > 0)?;
    let error = status["counters"]["last_error"].as_str().unwrap_or("an error");
    Some(format!("{count} requests had failed ({error})"))
}

/// Waits until a file system in user space has written what it holds: it does so after it was unmounted.
fn await_file_system(paths: &RuntimePaths, status: Option<&serde_json::Value>) {
    let deadline = Instant::now() + WRITING_PATIENCE;
    let mut pause = Duration::from_millis(5);
    let mut waiting = None;
    while Instant::now() < deadline {
        let users = background::users_of_file(paths, status);
        let Some(program) = fuse::among(&users.seen) else { return };
        waiting.get_or_insert_with(|| Waiting::begin(&format!("{program} writes what it holds")));
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(200));
    }
}

/// Whether a mount is what the kernel would unmount at its place; `false` if it is not there any more.
///
/// # Errors
/// Something is mounted over it.
fn is_on_top(mount: &Mount) -> Result<bool, Failure> {
    let mounts = table::read()?;
    if !mounts.contains(mount) {
        return Ok(false);
    }
    match Mount::at(&mounts, &mount.place).filter(|top| *top != mount) {
        None => Ok(true),
        Some(top) => Err(Failure::busy(format!(
            "{} is in use ({} is mounted over it); unmount that first",
            mount.place.display(),
            top.source.display()
        ))),
    }
}

/// Writes back what the file system holds, and unmounts it.
fn unmount(mount: &Mount, is_served: bool) -> Result<(), Failure> {
    let place = mount.place.display();
    if !is_on_top(mount)? {
        return Ok(());
    }
    if !mount.is_fuse() && is_served {
        // The kernel unmounts also what it could not write. That may take long, and somebody else may
        // unmount it meanwhile.
        kernel::sync(&mount.place)?;
        if !is_on_top(mount)? {
            return Ok(());
        }
    }
    let by_helper = mount.is_fuse() && !rustix::process::geteuid().is_root();
    let mut command = if by_helper {
        let helper = programs::find("fusermount3").or_else(|| programs::find("fusermount"));
        let helper = helper.ok_or_else(|| {
            Failure::device(
                "fusermount3, which unmounts for users, is missing: apt-get install fuse3",
            )
        })?;
        let mut command = Command::new(helper);
        command.arg("-u");
        command
    } else {
        Command::new(kernel::program("umount")?)
    };
    let failed = |error| Failure::device(format!("cannot unmount {place}: {error}"));
    let ran = programs::run(command.arg("--").arg(&mount.place)).map_err(failed)?;
    if ran.status.success() || !table::read()?.contains(mount) {
        return Ok(());
    }
    let holders = holders::of(mount);
    if !holders.seen.is_empty() || ran.said.contains("busy") {
        let by = if holders.are_none() {
            " (by a program that cannot be seen from here)".into()
        } else {
            holders.by()
        };
        return Err(Failure::busy(format!("{place} is in use{by}; end or leave it first")));
    }
    if !by_helper && !available::may_mount() {
        let is_root = rustix::process::geteuid().is_root();
        let remedy = if is_root { "this needs CAP_SYS_ADMIN" } else { "run as root" };
        return Err(Failure::denied(format!("cannot unmount {place}: {}; {remedy}", ran.said)));
    }
    Err(Failure::device(format!("cannot unmount {place}: {}", ran.said)))
}

/// Signals that ask for an end while there is something to undo. The second one ends at once.
struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    fn catch() -> Result<Self, Failure> {
        let came = Arc::new(AtomicBool::new(false));
        let failed = |error| Failure::device(format!("cannot wait for signals: {error}"));
        for signal in [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|it| may_end(*it)) {
            flag::register_conditional_shutdown(signal, 1, came.clone()).map_err(failed)?;
            flag::register(signal, came.clone()).map_err(failed)?;
        }
        leave_signals();
        Ok(Self(came))
    }

    fn came(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_made_of_the_images() {
        for (image, name) in [
            ("/srv/disk.img", "disk.img"),
            ("/dev/sdb1", "sdb1"),
            ("/srv/.hidden", "hidden"),
            ("/srv/two words, and a comma", "two_words__and_a_comma"),
            ("/srv/--", "volume"),
            ("/", "volume"),
        ] {
            assert_eq!(stem(Path::new(image)), name);
            assert!(RuntimePaths::of(&stem(Path::new(image))).is_ok());
        }
        let long = "ä".repeat(100);
        assert_eq!(stem(Path::new(&long)).len(), STEM_MAX);
    }
}
