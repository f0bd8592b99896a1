//! `/etc/ucrypttab`: volumes that are opened at boot, in the form of crypttab(5). `attach` and `detach` open
//! and close them by their names; `systemd-generator` writes units that do so.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use crate::background::{self, Served};
use crate::failure::{Ended, Failure, tell};
use crate::notify::Notifier;
use crate::runtime::RuntimePaths;
use crate::stdio::{print, print_line, say_line, say_verbose};
use crate::user;

mod entry;
mod escape;
mod generator;
mod options;
mod udev;

pub(crate) use generator::{GeneratorArgs, generate};
pub(crate) use options::{Meaning, for_pages};
pub(crate) use udev::{UdevArgs, tell_udev};

use entry::{Entry, Line, Problem};
use options::NO_KEY;

/// Where the table is.
const TABLE: &str = "/etc/ucrypttab";

/// Longest table in bytes.
const TABLE_MAX: u64 = 1 << 20;

/// Arguments of `attach`.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "ucrypt attach [OPTIONS] <NAME>...\n       ucrypt attach [OPTIONS] --all\n       \
                      ucrypt attach --check"
)]
pub(crate) struct AttachArgs {
    /// Names of entries
    #[arg(value_name = "NAME", required_unless_present_any = ["all", "check"])]
    names: Vec<String>,
    /// Every entry that is not marked noauto
    #[arg(long, conflicts_with_all = ["names", "foreground"])]
    all: bool,
    /// Only read the table: show its entries, and what is wrong with it
    #[arg(long, conflicts_with_all = ["names", "all", "foreground"])]
    check: bool,
    /// Serve the volume from this process until it is closed; passphrases are asked for by systemd
    #[arg(long)]
    foreground: bool,
    /// Ask for passphrases by systemd-ask-password
    #[arg(long, conflicts_with = "check")]
    ask_password: bool,
    /// The table
    #[arg(long, value_name = "FILE", default_value = TABLE)]
    ucrypttab: PathBuf,
    /// Print JSON
    #[arg(long, requires = "check")]
    json: bool,
}

/// Arguments of `detach`.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "ucrypt detach [OPTIONS] <NAME>...\n       ucrypt detach [OPTIONS] --all"
)]
pub(crate) struct DetachArgs {
    /// Names of volumes
    #[arg(value_name = "NAME", required_unless_present = "all")]
    names: Vec<String>,
    /// Every entry of the table that is open, the last one first; then what was attached by lines that have gone
    #[arg(long, conflicts_with = "names")]
    all: bool,
    /// If a volume is in use, wait so long for its users to go
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    wait: u64,
    /// The table
    #[arg(long, value_name = "FILE", default_value = TABLE)]
    ucrypttab: PathBuf,
}

/// Reads a table for all of its volumes. The system's need not be there: then there are none.
fn read_all(path: &Path) -> Result<Vec<Line>, Failure> {
    let is_missing =
        || fs::symlink_metadata(path).is_err_and(|it| it.kind() == io::ErrorKind::NotFound);
    if path == Path::new(TABLE) && is_missing() {
        say_verbose(format_args!("there is no {}.", path.display()));
        return Ok(Vec::new());
    }
    read(path)
}

/// Reads a table.
fn read(path: &Path) -> Result<Vec<Line>, Failure> {
    let failed = |error| Failure::device(format!("cannot read {}: {error}", path.display()));
    let mut text = Vec::new();
    let file = fs::File::open(path).map_err(failed)?;
    file.take(TABLE_MAX + 1).read_to_end(&mut text).map_err(failed)?;
    if text.len() as u64 > TABLE_MAX {
        return Err(Failure::wrong(format!(
            "{} is longer than {TABLE_MAX} bytes; it is no table of volumes",
            path.display()
        )));
    }
    Ok(entry::parse(&text))
}

impl Problem {
    fn failure(&self, table: &Path) -> Failure {
        Failure::wrong(format!("{}:{}: {}", table.display(), self.line, self.message))
    }
}

/// The entry of a name.
fn find<'a>(lines: &'a [Line], name: &str, table: &Path) -> Result<&'a Entry, Failure> {
    // A wrong line stops no other, also of its own name.
    if let Some(entry) = lines.iter().flatten().find(|entry| entry.name == name) {
        return Ok(entry);
    }
    let mut problems = lines.iter().filter_map(|line| line.as_ref().err());
    if let Some(problem) = problems.find(|problem| problem.name.as_deref() == Some(name)) {
        return Err(problem.failure(table));
    }
    Err(Failure::wrong(format!(
        "{} has no entry {name}; ucrypt attach --check shows those it has",
        table.display()
    )))
}

pub(crate) fn attach(args: &AttachArgs) -> Result<(), Failure> {
    let notifier = if args.foreground { Notifier::of_service() } else { Notifier::default() };
    attach_all(args).inspect_err(|failure| notifier.failed(failure))
}

fn attach_all(args: &AttachArgs) -> Result<(), Failure> {
    let lines = if args.all { read_all(&args.ucrypttab) } else { read(&args.ucrypttab) }?;
    if args.check {
        return check(args, &lines);
    }
    if args.foreground {
        let [name] = &args.names[..] else {
            return Err(Failure::wrong("--foreground serves one volume; name one"));
        };
        return Err(become_open(args, find(&lines, name, &args.ucrypttab)?));
    }
    let mut ended = Ended::default();
    if !args.all {
        for name in &args.names {
            ended.keep(find(&lines, name, &args.ucrypttab).and_then(|entry| open(args, entry)));
        }
        return ended.result();
    }
    for line in &lines {
        match line {
            Ok(entry) if entry.options.noauto => {}
            Ok(entry) => match open(args, entry) {
                Err(failure) if entry.options.nofail => tell(&failure),
                opened => ended.keep(opened),
            },
            Err(problem) => ended.keep(Err(problem.failure(&args.ucrypttab))),
        }
    }
    ended.result()
}

/// Opens an entry that is not open. What a killed server has left is removed by `open`.
fn open(args: &AttachArgs, entry: &Entry) -> Result<(), Failure> {
    let paths = RuntimePaths::of(&entry.name)?;
    let status = background::status_of(&paths);
    if status.as_ref().is_some_and(background::is_about_to_close) {
        return Err(Failure::busy(format!(
            "{} is being closed, but still in use; it can be opened when its last user has gone",
            entry.name
        )));
    }
    if status.is_none() && background::is_served(&paths) {
        return Err(Failure::busy(format!(
            "the server of {} does not answer: it starts, stands still or is about to end",
            entry.name
        )));
    }
    if status.is_some() || background::is_open_elsewhere(&paths) {
        say_verbose(format_args!("{} is open already.", entry.name));
        return Ok(());
    }
    let failed = |error| Failure::device(format!("cannot open {}: {error}", entry.name));
    let ended = open_command(args, entry)?.status().map_err(failed)?;
    match ended.code() {
        Some(0) => Ok(()),
        // It has said why.
        Some(code) => Err(Failure::with(u8::try_from(code).unwrap_or(4), "")),
        None => Err(Failure::device(format!("the opening of {} was ended: {ended}", entry.name))),
    }
}

/// Becomes `open` of an entry. Returns only if that fails.
fn become_open(args: &AttachArgs, entry: &Entry) -> Failure {
    match open_command(args, entry) {
        Ok(mut command) => {
            let error = command.exec();
            Failure::device(format!("cannot open {}: {error}", entry.name))
        }
        Err(failure) => failure,
    }
}

/// The command that opens an entry.
fn open_command(args: &AttachArgs, entry: &Entry) -> Result<Command, Failure> {
    if args.foreground && entry.options.may_fall_back() {
        check_device(&entry.name)?;
    }
    let mut command = Command::new("/proc/self/exe");
    command.arg0(std::env::args_os().next().unwrap_or_else(|| "ucrypt".into())).arg("open");
    if args.foreground {
        command.arg("--foreground");
    }
    match &entry.key {
        Some(key) => {
            warn_of_readable(key);
            command.arg("--key-file").arg(key);
        }
        None if entry.options.asks_nobody && !entry.options.has_other_key => {
            return Err(Failure::wrong(format!("{}: headless: {NO_KEY}", entry.name)));
        }
        None if entry.options.asks_nobody => {}
        None if args.foreground || args.ask_password => {
            command.arg("--ask-password");
        }
        None => {}
    }
    // So that `detach --all` finds it when its line has gone or has another name.
    let table = std::path::absolute(&args.ucrypttab).unwrap_or_else(|_| args.ucrypttab.clone());
    command.env(background::TABLE_VARIABLE, table);
    command.args(&entry.options.words).arg(entry.source.find()?).arg(&entry.name);
    Ok(command)
}

/// Refuses to serve a volume as something else than a device where systemd has been told to wait for one: it would do
/// so for ever.
fn check_device(name: &str) -> Result<(), Failure> {
    let (best, why) = Served::best();
    if best.is_device() || !user::is_root() {
        return Ok(());
    }
    Err(Failure::device(format!(
        "{}: no device can be had, and who mounts /dev/ucrypt/{name} would wait for it; as={} in its line does \
         without",
        why.unwrap_or_default(),
        best.name()
    )))
}

/// Warns of a key that others can read.
fn warn_of_readable(key: &Path) {
    let Ok(found) = fs::metadata(key) else { return };
    let mode = found.permissions().mode() & 0o777;
    if found.is_file() && mode & 0o077 != 0 {
        say_line(format_args!(
            "the key file {0} is open to other users (mode {mode:o}): chmod 600 {0}",
            key.display()
        ));
    }
}

/// Shows what is in the table.
fn check(args: &AttachArgs, lines: &[Line]) -> Result<(), Failure> {
    let is_open = |name: &str| {
        RuntimePaths::of(name).is_ok_and(|paths| {
            background::is_served(&paths) || background::is_open_elsewhere(&paths)
        })
    };
    let problems = lines.iter().filter(|line| line.is_err()).count();
    if args.json {
        let shown: Vec<_> = lines
            .iter()
            .map(|line| match line {
                Ok(entry) => json!({
                    "line": entry.line,
                    "name": entry.name,
                    "device": entry.source.to_string(),
                    "key_file": entry.key.as_ref().map(|key| key.display().to_string()),
                    "noauto": entry.options.noauto,
                    "nofail": entry.options.nofail,
                    "open": is_open(&entry.name),
                    "notes": entry.options.notes,
                }),
                Err(problem) => json!({
                    "line": problem.line, "name": problem.name, "error": problem.message,
                }),
            })
            .collect();
        print_line(format_args!("{:#}", serde_json::Value::from(shown)))?;
    } else {
        // Writing to a string cannot fail.
        let mut text = String::new();
        for line in lines {
            match line {
                Ok(entry) => {
                    let state = if is_open(&entry.name) { "open" } else { "closed" };
                    let _ =
                        writeln!(text, "{}: {}: {}, {state}", entry.line, entry.name, entry.source);
                    for note in &entry.options.notes {
                        let _ = writeln!(text, "   {note}");
                    }
                }
                Err(problem) => {
                    let name = problem.name.as_deref().unwrap_or("?");
                    let _ = writeln!(text, "{}: {name}: WRONG: {}", problem.line, problem.message);
                }
            }
        }
        print(&text)?;
    }
    match problems {
        0 => Ok(()),
        1 => Err(Failure::wrong(format!("one line of {} is wrong", args.ucrypttab.display()))),
        count => {
            Err(Failure::wrong(format!("{count} lines of {} are wrong", args.ucrypttab.display())))
        }
    }
}

/// The names of the table, also those of wrong lines: they may have been right when the volumes were opened.
fn names(lines: Vec<Line>) -> Vec<String> {
    let mut names: Vec<_> = lines
        .into_iter()
        .filter_map(|line| match line {
            Ok(entry) => Some(entry.name),
            Err(problem) => problem.name,
        })
        .collect();
    names.dedup();
    names
}

pub(crate) fn detach(args: &DetachArgs) -> Result<(), Failure> {
    if !args.all {
        // What is open is closed by its name, whatever became of the table.
        let of_table = read(&args.ucrypttab).map(names).unwrap_or_default();
        let mut ended = Ended::default();
        detach_each(args, &args.names, &of_table, &mut ended);
        return ended.result();
    }
    let of_table = names(read_all(&args.ucrypttab)?);
    let (mut others, mut unknown) = background::attached_by(&args.ucrypttab)?;
    for names in [&mut others, &mut unknown] {
        names.retain(|name| !of_table.contains(name));
    }
    let mut ended = Ended::default();
    for name in unknown {
        let told = format!(
            "the server of {name} does not answer, so nobody knows whether {} had it opened; ucrypt close {name} \
             closes it",
            args.ucrypttab.display()
        );
        ended.keep(Err(Failure::device(told)));
    }
    let in_order: Vec<_> = of_table.iter().rev().cloned().collect();
    if others.is_empty() {
        detach_each(args, &in_order, &of_table, &mut ended);
        return ended.result();
    }
    // Nobody knows whose image is on whose volume any more: one that is in use waits for the others.
    let mut left = [in_order, others].concat();
    loop {
        let before = left.len();
        left.retain(|name| match detach_one(args, name, Duration::ZERO, &of_table) {
            Err(failure) if failure.is_busy() => true,
            closed => {
                ended.keep(closed);
                false
            }
        });
        if left.is_empty() || left.len() == before {
            break;
        }
    }
    detach_each(args, &left, &of_table, &mut ended);
    ended.result()
}

fn detach_each(args: &DetachArgs, names: &[String], of_table: &[String], ended: &mut Ended) {
    for name in names {
        ended.keep(detach_one(args, name, Duration::from_secs(args.wait), of_table));
    }
}

/// Closes a volume if it is open; waits so long for its users to go.
fn detach_one(
    args: &DetachArgs,
    name: &str,
    wait: Duration,
    of_table: &[String],
) -> Result<(), Failure> {
    let paths = RuntimePaths::of_open(name)?;
    if background::is_open_elsewhere(&paths) {
        return Err(background::opened_elsewhere(&paths));
    }
    if background::is_open(&paths) {
        let closed = background::close_patiently(name, wait);
        if !closed.as_ref().is_err_and(|failure| failure.is_gone) {
            return closed;
        }
    }
    // A service may have ended by itself, or somebody else has just closed it, so this is no error.
    if of_table.iter().any(|it| it == name) {
        say_verbose(format_args!("{name} is not open."));
    } else {
        say_line(format_args!(
            "{name} is not open, and {} has no entry {name}; ucrypt list shows what is open",
            args.ucrypttab.display()
        ));
    }
    Ok(())
}
