//! `open`, `close` and `status`: volumes whose server runs in the background.
//!
//! `open` unlocks in the foreground, where passphrases are asked for and errors are read. Then it
//! starts the server as a process of its own, hands it the volume key through a pipe, and waits
//! until the device can be used. The server is found again by its control socket.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use clap::ValueEnum;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use crate::arguments::arguments;
use crate::failure::Failure;
use crate::passphrase::Secret;
use crate::runtime::Places;
use crate::serve::{ExportArgs, Exports, signals};
use crate::volume::{KeySource, VolumeArgs};

mod control;
mod show;

/// The hidden action that is the server.
pub(crate) const SERVER_ACTION: &str = "serve-in-background";

/// What the server says on standard output once the device can be used; the path follows.
const READY: &str = "ready ";

/// Longest volume key, in bytes: loop-AES has 65 keys of 32.
const KEY_MAX: u64 = 4096;

/// Arguments of `open`.
#[derive(Debug, clap::Args)]
pub(crate) struct OpenArgs {
    /// The image: a file or a block device
    image: PathBuf,
    /// A name for the open volume
    #[arg(required_unless_present = "test_passphrase")]
    name: Option<String>,
    #[command(flatten)]
    volume: VolumeArgs,
    /// How the volume is served
    #[arg(long = "as", value_enum, default_value_t = Served::Fuse)]
    served: Served,
    /// Only check that a passphrase or key opens the volume
    #[arg(long)]
    test_passphrase: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `close`.
#[derive(Debug, clap::Args)]
pub(crate) struct CloseArgs {
    /// Name of the open volume
    name: String,
    /// If it is in use, take the name away now and end when its last user does
    #[arg(long)]
    deferred: bool,
}

/// Arguments of `status`.
#[derive(Debug, clap::Args)]
pub(crate) struct StatusArgs {
    /// Name of the open volume
    name: String,
    /// Show how requests were dispatched, and the measurements behind it
    #[arg(long)]
    dispatch: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Served {
    /// A file, for every program; no root needed
    Fuse,
    /// A Unix socket, for QEMU and NBD clients
    Nbd,
}

pub(crate) fn open(args: &OpenArgs) -> Result<(), Failure> {
    if args.test_passphrase {
        return args.volume.volume_key(&args.image).map(drop);
    }
    let places = args.places()?;
    places.prepare()?;
    control::claim(&places)?;
    let key = args.volume.volume_key(&args.image)?;
    let device = start_server(&key)?;
    if args.json {
        println!("{}", json!({ "name": places.name(), "device": device }));
    } else {
        println!("{device}");
    }
    Ok(())
}

impl OpenArgs {
    fn places(&self) -> Result<Places, Failure> {
        let name = self.name.as_ref().ok_or_else(|| Failure::wrong("a name is missing"))?;
        Places::of(name)
    }
}

/// Starts the server with the arguments of this process, and waits until it is ready.
fn start_server(key: &Secret) -> Result<String, Failure> {
    let failed = |error| Failure::device(format!("cannot start the server: {error}"));
    let mut child = Command::new(std::env::current_exe().map_err(failed)?)
        .arg(SERVER_ACTION)
        .args(arguments().into_iter().skip(1))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // If the server ended already, its own message and exit code tell why.
        let _ = stdin.write_all(key);
    }
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).map_err(failed)?;
    }
    if let Some(path) = line.trim_end_matches('\n').strip_prefix(READY) {
        return Ok(path.into());
    }
    let status = child.wait().map_err(failed)?;
    // The server has said why on standard error, which is ours too.
    let code = status.code().and_then(|code| u8::try_from(code).ok()).filter(|code| *code != 0);
    Err(Failure { code: code.unwrap_or(4), message: String::new() })
}

/// The server process: everything that can fail is done before it says that it is ready.
pub(crate) fn serve(args: &OpenArgs) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::device(format!("cannot start: {error}"));
    // Fails only for a process that leads a session already, which is as good.
    let _ = rustix::process::setsid();
    let mut key = Zeroizing::new(Vec::with_capacity(KEY_MAX as usize));
    std::io::stdin().take(KEY_MAX).read_to_end(&mut key).map_err(failed)?;
    let signals = signals()?;
    let places = args.places()?;
    let opened = args.volume.open(Some(&args.image), KeySource::Known(key))?;
    let wanted = match args.served {
        Served::Fuse => ExportArgs { fuse: vec![places.file()], ..ExportArgs::default() },
        Served::Nbd => {
            let nbd = vec![ucrypt_export::nbd::Address::Unix(places.nbd())];
            ExportArgs { nbd, ..ExportArgs::default() }
        }
    };
    let exports = Exports::start(&opened.volume, &wanted)?;
    let device = match exports.nbd.first() {
        Some(server) => server.uri().to_owned(),
        None => places.file().display().to_string(),
    };
    let control = control::Server::start(&places)?;
    println!("{READY}{device}");
    detach(&places).map_err(failed)?;
    control.run(opened, exports, &device, &signals)
}

/// Lets go of the terminal and of the directory that `open` was called in.
fn detach(places: &Places) -> std::io::Result<()> {
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    let log = OpenOptions::new().create(true).write(true).truncate(true).open(places.log())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&log)?;
    rustix::process::chdir("/")?;
    Ok(())
}

pub(crate) fn close(args: &CloseArgs) -> Result<(), Failure> {
    let places = Places::of(&args.name)?;
    let request =
        if args.deferred { control::Request::CloseDeferred } else { control::Request::Close };
    let answer = control::ask(&places, request)?;
    match answer.get("error").and_then(Value::as_str) {
        None => Ok(()),
        Some(error) => {
            let code = answer.get("code").and_then(Value::as_u64);
            let code = code.and_then(|code| u8::try_from(code).ok()).unwrap_or(4);
            Err(Failure { code, message: error.into() })
        }
    }
}

pub(crate) fn status(args: &StatusArgs) -> Result<(), Failure> {
    let places = Places::of(&args.name)?;
    match control::ask(&places, control::Request::Status) {
        Ok(status) if args.json => println!("{status:#}"),
        Ok(status) if args.dispatch => print!("{}", show::dispatch(&status)),
        Ok(status) => print!("{}", show::status(&status)),
        Err(failure) => {
            if args.json {
                println!("{}", json!({ "active": false }));
            } else {
                println!("{} is inactive.", places.file().display());
            }
            return Err(failure);
        }
    }
    Ok(())
}
