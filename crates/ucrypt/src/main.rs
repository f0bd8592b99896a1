//! The `ucrypt` command: cryptsetup's actions, and volumes served as disks.
//!
//! Each action has its arguments and its entry function in a module. Messages go to standard error,
//! results to standard output. Exit codes are cryptsetup's (see `failure`).

#![forbid(unsafe_code)]
// The print macros panic if writing fails; `stdio` does not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod agent;
mod arguments;
mod available;
mod background;
mod benchmark;
mod demo;
mod doctor;
mod effects;
mod ending;
mod events;
mod failure;
mod help;
mod json_path;
mod keyring;
mod lab;
mod log;
mod luks;
mod maps;
mod memory;
mod metrics;
mod mount;
mod notify;
mod octal;
mod options;
mod pages;
mod passphrase;
mod processes;
mod programs;
mod progress;
mod runtime;
mod secrecy;
mod serve;
mod size;
mod stdio;
mod terminal;
mod token_unlock;
mod top;
mod transfer;
mod ucrypttab;
mod usage;
mod users;
mod volume;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;

use clap::error::ErrorKind;
use clap::{ArgAction, Command, CommandFactory, FromArgMatches, Parser, Subcommand};

use failure::Failure;
use options::Judged;
use signal_hook::consts::{SIGCHLD, SIGPIPE, SIGXFSZ};
use signal_hook::flag;
use ucrypt_image::{machine, user};

/// The version, the commit where it is known, the target of the compiler, and the features.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), env!("UCRYPT_BUILD"));

// Man pages have only the long help of what `-h` leaves out.
const NO_LOCKS: &str = "Take no lock against other changes of a header";
const ONLY_ARGUMENTS: &str = "Check the command line, and do nothing";

/// LUKS and dm-crypt volumes in user space, served as disks
#[derive(Debug, Parser)]
#[command(name = "ucrypt", version = VERSION, disable_help_flag = true)]
struct Cli {
    /// Print help: the options that most people need (-h), or all (--help)
    #[arg(short = '?', long, action = ArgAction::Help, global = true, help_heading = help::OF_ALL_HEADING)]
    help: Option<bool>,
    /// Say how the action ended
    #[arg(short = 'v', long, global = true, help_heading = help::OF_ALL_HEADING)]
    verbose: bool,
    /// As --verbose; key derivations say how they get their memory, too
    #[arg(long, alias = "debug-json", global = true, help_heading = help::OF_ALL_HEADING)]
    debug: bool,
    /// Take no lock against other changes of a header
    #[arg(long, global = true, hide_short_help = true, long_help = NO_LOCKS, help_heading = help::OF_ALL_HEADING)]
    disable_locks: bool,
    /// Check the command line, and do nothing
    #[arg(long, global = true, hide_short_help = true, long_help = ONLY_ARGUMENTS, help_heading = help::OF_ALL_HEADING)]
    test_args: bool,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Unlock a volume and leave it served in the background
    Open(background::OpenArgs),
    /// Flush and close an open volume
    #[command(
        visible_aliases = ["luksClose", "remove"],
        aliases = ["plainClose", "loopaesClose", "tcryptClose", "bitlkClose", "fvault2Close"]
    )]
    Close(background::CloseArgs),
    /// Show an open volume
    Status(background::StatusArgs),
    /// Show all open volumes
    List(background::ListArgs),
    /// Open a volume and mount the file system on it
    Mount(Box<mount::MountArgs>),
    /// Unmount the file system of a volume and close it
    Umount(mount::UmountArgs),
    /// Open volumes that /etc/ucrypttab describes
    Attach(ucrypttab::AttachArgs),
    /// Close volumes that /etc/ucrypttab describes
    Detach(ucrypttab::DetachArgs),
    /// Watch what all open volumes do
    Top(top::TopArgs),
    /// Give an open volume another size; by default its image's
    Resize(background::ResizeArgs),
    /// Take the key away from an open volume; its requests wait
    #[command(name = "luksSuspend")]
    LuksSuspend(background::SuspendArgs),
    /// Give a suspended volume its key again
    #[command(name = "luksResume")]
    LuksResume(background::ResumeArgs),
    /// Serve in the foreground: NBD, FUSE, ublk, vhost-user-blk
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
    /// Print or change the UUID of a LUKS header
    #[command(name = "luksUUID")]
    LuksUuid(luks::UuidArgs),
    /// Add a passphrase
    #[command(name = "luksAddKey")]
    LuksAddKey(Box<luks::AddKeyArgs>),
    /// Remove the keyslot that a passphrase opens
    #[command(name = "luksRemoveKey")]
    LuksRemoveKey(luks::RemoveKeyArgs),
    /// Replace a passphrase
    #[command(name = "luksChangeKey")]
    LuksChangeKey(Box<luks::ChangeKeyArgs>),
    /// Remove a keyslot by its number
    #[command(name = "luksKillSlot", visible_alias = "luksDelKey")]
    LuksKillSlot(luks::KillSlotArgs),
    /// Change the key derivation of a keyslot
    #[command(name = "luksConvertKey")]
    LuksConvertKey(Box<luks::ConvertKeyArgs>),
    /// Replace a passphrase, in steps that survive interruptions
    #[command(name = "luksRotateKey")]
    LuksRotateKey(Box<luks::RotateKeyArgs>),
    /// Set labels and the priority of keyslots
    #[command(visible_alias = "luksConfig")]
    Config(luks::ConfigArgs),
    /// Add, remove, import, export or unassign a token
    Token(luks::TokenArgs),
    /// Save the header and its keyslots in a file
    #[command(name = "luksHeaderBackup")]
    LuksHeaderBackup(luks::BackupArgs),
    /// Put a saved header back
    #[command(name = "luksHeaderRestore")]
    LuksHeaderRestore(luks::RestoreArgs),
    /// Convert a header between LUKS1 and LUKS2, in place
    Convert(luks::ConvertArgs),
    /// Write a damaged header copy again from the other one
    Repair(luks::WholeArgs),
    /// Destroy all keyslots
    #[command(visible_alias = "luksErase")]
    Erase(luks::WholeArgs),
    /// Measure ciphers and key derivations, in memory only
    Benchmark(benchmark::BenchmarkArgs),
    /// Show what each export lacks on this system, and the remedy
    Doctor(doctor::DoctorArgs),
    /// Make, serve and measure a volume in a scratch file
    Demo(demo::DemoArgs),
    /// Repeat the published measurements on this machine
    Lab(lab::LabArgs),
    /// Print a completion script for a shell
    Completions(pages::CompletionsArgs),
    /// Write the man pages
    #[command(name = "man-pages", hide = true)]
    ManPages(pages::ManPagesArgs),
    /// The server that `open` leaves behind
    #[command(name = background::SERVER_ACTION, hide = true)]
    Background(background::OpenArgs),
    /// The server that `mount` leaves behind
    #[command(name = mount::SERVER_ACTION, hide = true)]
    BackgroundMount(Box<mount::MountArgs>),
    /// Write units for systemd; it calls this at boot
    #[command(name = "systemd-generator", hide = true)]
    SystemdGenerator(ucrypttab::GeneratorArgs),
    /// Tell udev the name of a device; udev's rule calls this
    #[command(hide = true)]
    Udev(ucrypttab::UdevArgs),
}

fn main() -> ExitCode {
    if let Err(error) = arguments::hide_table() {
        stdio::say_line(format_args!("cannot take the table line off the command line: {error}"));
        return ExitCode::from(1);
    }
    secrecy::guard_process();
    // A limit on the size of files (`ulimit -f`) is an error of the write, not the end of a server. A handler,
    // which programs that are started do not inherit.
    let size_limit = flag::register(SIGXFSZ, Arc::default());
    if let Err(error) = size_limit {
        stdio::say_line(format_args!("cannot handle SIGXFSZ: {error}"));
    }
    // Who starts programs has to be told how they end, which an ignored SIGCHLD of the parent would prevent.
    if ending::is_ignored(SIGCHLD)
        && let Err(error) = flag::register(SIGCHLD, Arc::default())
    {
        stdio::say_line(format_args!("cannot handle SIGCHLD: {error}"));
    }
    if let Err(error) = terminal::end_by_signals_as_init() {
        stdio::say_line(format_args!("cannot handle signals: {error}"));
    }
    let judged = arguments::arguments().and_then(|judged| {
        arguments::check(&judged.words)?;
        Ok(judged)
    });
    let Judged { words, notes, warnings, usage, .. } = match judged {
        Ok(judged) => judged,
        Err(failure) => return exit(Err(failure), false),
    };
    if usage {
        return exit(stdio::print(&usage::usage(Cli::command(), &words)), false);
    }
    let given = std::iter::once("ucrypt".into()).chain(words.iter().cloned());
    let mut command = help::arranged(Cli::command());
    let parsed = command.try_get_matches_from_mut(given).and_then(|matches| {
        let cli = Cli::from_arg_matches(&matches)?;
        Ok((cli, matches))
    });
    let (cli, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return untaken(&error, &command, &words),
    };
    let sound = matches.subcommand().map_or(Ok(()), |(name, given)| effects::check(name, given));
    memory::guard(cli.debug);
    progress::show_derivations();
    // Only the action that the user called reports how it ended, not the server that `open` starts.
    let is_server = matches
        .subcommand_name()
        .is_some_and(|name| [background::SERVER_ACTION, mount::SERVER_ACTION].contains(&name));
    let verbose = (cli.verbose || cli.debug) && !is_server;
    if verbose {
        stdio::be_verbose();
    }
    if !is_server {
        notes.iter().for_each(stdio::say_verbose);
        warnings.iter().for_each(stdio::say_line);
    }
    if cli.disable_locks {
        luks::disable_locks();
    }
    if cli.test_args && !is_server {
        return exit(sound, verbose);
    }
    exit(sound.and_then(|()| run(cli.action)), verbose)
}

/// Handles a command line that runs no action. Prints help or version to standard output. Any other
/// parse error is a wrong parameter and goes to standard error.
fn untaken(error: &clap::Error, command: &Command, words: &[OsString]) -> ExitCode {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // If standard error is closed, nobody can be told.
        let _ = error.print();
        return ExitCode::from(1);
    }
    if error.use_stderr() {
        let words = words.iter().filter_map(|word| word.to_str());
        return exit(Err(Failure::wrong(usage::line(error, command, words))), false);
    }
    let text = error.render();
    let ansi = std::io::stdout().is_terminal();
    exit(stdio::print(&if ansi { text.ansi().to_string() } else { text.to_string() }), false)
}

/// Reports why an action failed and, with `verbose`, how it ended. Returns the exit code.
fn exit(ended: Result<(), Failure>, verbose: bool) -> ExitCode {
    let Err(failure) = ended else {
        if verbose {
            stdio::say("Command successful.\n");
        }
        return ExitCode::SUCCESS;
    };
    if failure.is_nobody_reads() {
        terminal::end_by(SIGPIPE);
    }
    if !failure.message.is_empty() {
        stdio::say_line(&failure);
    }
    if verbose {
        stdio::say(&format!("Command failed with code {}.\n", failure.code));
    }
    ExitCode::from(failure.code)
}

fn run(action: Action) -> Result<(), Failure> {
    match action {
        Action::Open(args) => background::open(&args),
        Action::Close(args) => background::close(&args),
        Action::Status(args) => background::status(&args),
        Action::List(args) => background::list(&args),
        Action::Mount(args) => mount::mount(&args),
        Action::Umount(args) => mount::umount(&args),
        Action::Attach(args) => ucrypttab::attach(&args),
        Action::Detach(args) => ucrypttab::detach(&args),
        Action::Top(args) => top::run(&args),
        Action::Resize(args) => background::resize(&args),
        Action::LuksSuspend(args) => background::suspend(&args),
        Action::LuksResume(args) => background::resume(&args),
        Action::Serve(args) => serve::run(&args),
        Action::Read(args) => transfer::read(&args),
        Action::Write(args) => transfer::write(&args),
        Action::LuksFormat(args) => luks::format(&args),
        Action::LuksDump(args) => luks::dump(&args),
        Action::IsLuks(args) => luks::is_luks(&args),
        Action::LuksUuid(args) => luks::uuid(&args),
        Action::LuksAddKey(args) => luks::add(&args),
        Action::LuksRemoveKey(args) => luks::remove(&args),
        Action::LuksChangeKey(args) => luks::change(&args),
        Action::LuksKillSlot(args) => luks::kill_slot(&args),
        Action::LuksConvertKey(args) => luks::convert_key(&args),
        Action::LuksRotateKey(args) => luks::rotate(&args),
        Action::Config(args) => luks::config(&args),
        Action::Token(args) => luks::token(&args),
        Action::LuksHeaderBackup(args) => luks::backup(&args),
        Action::LuksHeaderRestore(args) => luks::restore(&args),
        Action::Convert(args) => luks::convert(&args),
        Action::Repair(args) => luks::repair(&args),
        Action::Erase(args) => luks::erase(&args),
        Action::Benchmark(args) => benchmark::run(&args),
        Action::Doctor(args) => doctor::run(&args),
        Action::Demo(args) => demo::run(&args),
        Action::Lab(args) => lab::run(&args),
        Action::Completions(args) => pages::completions(&args, &help::arranged(Cli::command())),
        Action::ManPages(args) => pages::man_pages(&args, help::arranged(Cli::command())),
        Action::Background(args) => background::serve(&args),
        Action::BackgroundMount(args) => mount::serve(&args),
        Action::SystemdGenerator(args) => ucrypttab::generate(&args),
        Action::Udev(args) => ucrypttab::tell_udev(&args),
    }
}
