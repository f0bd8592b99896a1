//! The command: cryptsetup's verbs, and volumes served as disks.
//!
//! Every action is a module with its arguments and a `run`. Messages go to standard error, results
//! to standard output; exit codes are cryptsetup's (see `failure`).

#![forbid(unsafe_code)]

mod arguments;
mod available;
mod background;
mod benchmark;
mod demo;
mod ending;
mod failure;
mod luks;
mod machine;
mod passphrase;
mod runtime;
mod say;
mod secrecy;
mod serve;
mod size;
mod transfer;
mod user;
mod users;
mod volume;

use std::process::ExitCode;

use clap::{ArgAction, Parser, Subcommand};

use failure::Failure;

/// LUKS and dm-crypt volumes in user space, served as disks
#[derive(Debug, Parser)]
#[command(name = "ucrypt", version, disable_help_flag = true, disable_help_subcommand = true)]
struct Cli {
    /// Print help
    #[arg(short = '?', long, action = ArgAction::Help, global = true)]
    help: Option<bool>,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Unlock a volume and leave it served in the background
    Open(background::OpenArgs),
    /// Flush, detach and end the server of an open volume
    #[command(visible_aliases = ["luksClose", "remove"])]
    Close(background::CloseArgs),
    /// Show an open volume
    Status(background::StatusArgs),
    /// Show all open volumes
    List(background::ListArgs),
    /// Change the size of an open volume; to that of its image if none is given
    Resize(background::ResizeArgs),
    /// Serve a volume in the foreground: NBD, FUSE, ublk
    Serve(serve::ServeArgs),
    /// Write decrypted bytes to standard output
    Read(transfer::ReadArgs),
    /// Encrypt standard input into a volume
    Write(transfer::WriteArgs),
    /// Make a LUKS volume; everything on the image is lost
    #[command(name = "luksFormat")]
    LuksFormat(Box<luks::FormatArgs>),
    /// Show a LUKS header
    #[command(name = "luksDump")]
    LuksDump(luks::DumpArgs),
    /// Tell by the exit code whether an image has a LUKS header
    #[command(name = "isLuks")]
    IsLuks(luks::IsLuksArgs),
    /// Print the UUID of a LUKS header
    #[command(name = "luksUUID")]
    LuksUuid(luks::UuidArgs),
    /// Measure ciphers and key derivations, in memory only
    Benchmark(benchmark::BenchmarkArgs),
    /// Make, serve and measure a volume in a scratch file
    Demo(demo::DemoArgs),
    /// The server that `open` leaves behind
    #[command(name = background::SERVER_ACTION, hide = true)]
    Background(background::OpenArgs),
}

fn main() -> ExitCode {
    if let Err(error) = arguments::hide_table() {
        say::say(&format!("cannot take the table line off the command line: {error}"));
        return ExitCode::from(1);
    }
    let words = std::iter::once("ucrypt".into()).chain(arguments::arguments());
    let cli = match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are answers, everything else is a wrong parameter. A closed
            // standard output leaves nothing to tell.
            let _ = error.print();
            return ExitCode::from(u8::from(error.use_stderr()));
        }
    };
    secrecy::guard_process();
    match run(cli.action) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.message.is_empty() {
                eprintln!("ucrypt: {failure}");
            }
            ExitCode::from(failure.code)
        }
    }
}

fn run(action: Action) -> Result<(), Failure> {
    match action {
        Action::Open(args) => background::open(&args),
        Action::Close(args) => background::close(&args),
        Action::Status(args) => background::status(&args),
        Action::List(args) => background::list(&args),
        Action::Resize(args) => background::resize(&args),
        Action::Serve(args) => serve::run(&args),
        Action::Read(args) => transfer::read(&args),
        Action::Write(args) => transfer::write(&args),
        Action::LuksFormat(args) => luks::format(&args),
        Action::LuksDump(args) => luks::dump(&args),
        Action::IsLuks(args) => luks::is_luks(&args),
        Action::LuksUuid(args) => luks::uuid(&args),
        Action::Benchmark(args) => benchmark::run(&args),
        Action::Demo(args) => demo::run(&args),
        Action::Background(args) => background::serve(&args),
    }
}
