//! Passphrases and key files, read as cryptsetup reads them.
//!
//! - `--key-file F`: all bytes of F, newlines included, from `--keyfile-offset` on, or
//!   `--keyfile-size` of them; F is no terminal;
//! - `--key-file -`: the same bytes of standard input;
//! - no key file: standard input up to the first newline or its end, cut in the same way;
//! - standard input is a terminal, with or without `--key-file -`: a prompt;
//! - `--key-description NAME`: the key of this name in the kernel's keyring;
//! - standard input is data for the volume: a prompt on the controlling terminal;
//! - `--ask-password`: an agent of systemd asks, wherever a person is.
//!
//! Everything is read into memory that is wiped; no other buffer holds it on the way.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use subtle::ConstantTimeEq;

pub(crate) use ucrypt_image::key_file::Secret;
use ucrypt_image::key_file::{KEY_FILE_MAX, Part, read_line};

use crate::agent::Agent;
use crate::failure::Failure;
use crate::keyring::user_key;
use crate::stdio::{Stdin, say};
use crate::terminal::Terminal;

/// Where a passphrase comes from.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct KeyArgs {
    /// Read the passphrase from a file; `-` is standard input
    #[arg(short = 'd', long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// Use only this many bytes of the key file or of standard input
    #[arg(short = 'l', long, value_name = "BYTES")]
    pub(crate) keyfile_size: Option<u64>,
    /// Skip this many bytes of the key file or of standard input
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub(crate) keyfile_offset: u64,
    /// Use the passphrase that the kernel's keyring holds under this name
    #[arg(long, value_name = "NAME", conflicts_with_all = ["key_file", "keyfile_size", "keyfile_offset"])]
    pub(crate) key_description: Option<String>,
    /// Wait this long for a passphrase at a terminal; 0 for ever
    #[arg(short = 't', long, value_name = "SECONDS", default_value_t = 0)]
    pub(crate) timeout: u64,
    /// Standard input is data for the volume and supplies no passphrase
    #[arg(skip)]
    pub(crate) stdin_is_data: bool,
    /// A person types the passphrase twice
    #[arg(skip)]
    pub(crate) verify: bool,
    /// An agent of systemd asks for the passphrase
    #[arg(skip)]
    pub(crate) by_agent: bool,
    /// What the key file is in messages, if it does not come from --key-file
    #[arg(skip)]
    pub(crate) file_is: Option<&'static str>,
}

/// As [`KeyArgs`], for an action whose `-y` has a person type the passphrase twice.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct VerifiedKeyArgs {
    #[command(flatten)]
    key: KeyArgs,
    /// Ask for the passphrase twice
    #[arg(short = 'y', long)]
    verify_passphrase: bool,
}

impl VerifiedKeyArgs {
    /// With this key file, if the user names no other.
    pub(crate) fn or_file(mut self, file: Option<&Path>) -> Self {
        self.key = self.key.or_file(file);
        self
    }

    /// Where the passphrase comes from; see [`KeyArgs::verified`].
    pub(crate) fn key(&self, quiet: bool) -> KeyArgs {
        self.key.verified(self.verify_passphrase, quiet)
    }
}

/// Where a passphrase is read from.
#[derive(Debug)]
pub(crate) enum Source<'a> {
    /// A person types it.
    Terminal(Terminal),
    /// A person types it for an agent.
    Agent(Agent),
    /// A line of standard input.
    Line(Stdin),
    /// Standard input, newlines included.
    Stdin(Stdin),
    File(&'a Path),
    /// The key of this name in the kernel's keyring.
    Keyring(&'a str),
}

impl KeyArgs {
    /// With the key file that is an argument, if the user names no other.
    pub(crate) fn or_file(mut self, file: Option<&Path>) -> Self {
        if let (None, Some(file)) = (&self.key_file, file) {
            self.key_file = Some(file.into());
            self.file_is = Some("the key file");
        }
        self
    }

    /// Finds out where the passphrase comes from. Reads nothing yet.
    pub(crate) fn source(&self) -> Result<Source<'_>, Failure> {
        if let Some(description) = &self.key_description {
            return Ok(Source::Keyring(description));
        }
        let file = self.key_file.as_deref();
        let named = file.filter(|file| file.as_os_str() != "-");
        if let Some(file) = named {
            return Ok(Source::File(file));
        }
        if self.by_agent {
            self.check_typed()?;
            return Ok(Source::Agent(Agent::find()?));
        }
        if self.stdin_is_data {
            return self.source_beside_data();
        }
        if let Some(terminal) = Terminal::of_stdin() {
            self.check_typed()?;
            return Ok(Source::Terminal(terminal));
        }
        let Some(stdin) = Stdin::get() else {
            return Err(Failure::wrong(
                "standard input is closed, no passphrase can be read from it; use --key-file",
            ));
        };
        Ok(if file.is_some() { Source::Stdin(stdin) } else { Source::Line(stdin) })
    }

    /// Refuses options that have no effect on what a person types.
    fn check_typed(&self) -> Result<(), Failure> {
        if self.keyfile_size.is_some() || self.keyfile_offset > 0 {
            return Err(Failure::wrong(
                "--keyfile-size and --keyfile-offset have no effect on what is typed; leave them out, \
                 or use --key-file",
            ));
        }
        Ok(())
    }

    /// As [`KeyArgs::source`] if standard input is data for the volume.
    fn source_beside_data(&self) -> Result<Source<'_>, Failure> {
        if self.key_file.is_some() {
            return Err(Failure::wrong(
                "standard input is the data; give the passphrase in another file",
            ));
        }
        Terminal::controlling().map(Source::Terminal).ok_or_else(|| {
            Failure::wrong(
                "standard input is the data, and there is no terminal to ask for the passphrase; \
                 use --key-file",
            )
        })
    }

    /// Reads the passphrase. `prompt` has no colon.
    pub(crate) fn read(&self, prompt: &str) -> Result<Secret, Failure> {
        self.read_from(self.source()?, prompt, self.keyfile_size)
    }

    /// Reads `size` bytes of a source, or up to its end.
    pub(crate) fn read_from(
        &self,
        source: Source<'_>,
        prompt: &str,
        size: Option<u64>,
    ) -> Result<Secret, Failure> {
        let part = Part { offset: self.keyfile_offset, size, line: false };
        match source {
            Source::Terminal(terminal) => {
                let limit = Some(self.timeout).filter(|seconds| *seconds > 0);
                let limit = limit.map(Duration::from_secs);
                let passphrase = terminal.ask(prompt, limit)?;
                if self.verify {
                    let again = terminal.ask("Verify passphrase", limit)?;
                    if !bool::from(again.ct_eq(&passphrase)) {
                        return Err(Failure::denied("the passphrases do not match"));
                    }
                }
                Ok(passphrase)
            }
            Source::Agent(agent) => agent.ask(prompt, self.timeout),
            Source::Line(stdin) => of_stdin(Part { line: true, ..part }, stdin),
            Source::Stdin(stdin) => of_stdin(part, stdin),
            Source::File(path) => Ok(part.of_file(path, self.file_is.unwrap_or("--key-file"))?),
            Source::Keyring(description) => user_key(description).map_err(Failure::wrong),
        }
    }

    /// As [`KeyArgs::read`], but `None` if standard input has nothing to read.
    pub(crate) fn read_if_any(&self, prompt: &str) -> Result<Option<Secret>, Failure> {
        let part = Part { offset: self.keyfile_offset, size: self.keyfile_size, line: false };
        match self.source() {
            Ok(Source::Line(stdin)) => of_stdin_if_any(Part { line: true, ..part }, stdin),
            Ok(Source::Stdin(stdin)) => of_stdin_if_any(part, stdin),
            Err(_) if Stdin::get().is_none() => Ok(None),
            _ => self.read(prompt).map(Some),
        }
    }

    /// With a person asked twice, if that is `wanted`. Warns, unless `quiet`, if it has no effect: nobody
    /// types.
    pub(crate) fn verified(&self, wanted: bool, quiet: bool) -> Self {
        if wanted && !quiet && !self.is_interactive() {
            say("WARNING: The --verify-passphrase option is being ignored.\n");
        }
        Self { verify: wanted, ..self.clone() }
    }

    /// As [`KeyArgs::read`], but asks a person twice.
    pub(crate) fn read_verified(&self, prompt: &str) -> Result<Secret, Failure> {
        Self { verify: true, ..self.clone() }.read(prompt)
    }

    /// The failure to open the header in `place` with `passphrase`, which was read from here.
    pub(crate) fn failure(
        &self,
        error: ucrypt_luks::Error,
        place: &Path,
        passphrase: &[u8],
    ) -> Failure {
        if !matches!(error, ucrypt_luks::Error::WrongPassphrase { .. }) {
            return error.into();
        }
        let place = place.display();
        let remedy = match self.source() {
            Ok(Source::File(file)) if passphrase.ends_with(b"\n") => format!(
                "the line break at the end of {} is a part of it: write the file without one (printf %s)",
                file.display()
            ),
            Ok(Source::Terminal(_) | Source::Agent(_)) => {
                format!(
                    "look at the keyboard layout and capitals; ucrypt luksDump {place} shows the keyslots"
                )
            }
            _ => format!("ucrypt luksDump {place} shows the keyslots"),
        };
        Failure::denied(format!("{place}: {error}; {remedy}"))
    }

    /// Whether a person types the passphrase, and may mistype it.
    pub(crate) fn is_interactive(&self) -> bool {
        matches!(self.source(), Ok(Source::Terminal(_) | Source::Agent(_)))
    }
}

/// Reads a table line, which contains a key; `-` is standard input.
pub(crate) fn read_table_line(path: &Path) -> Result<Secret, Failure> {
    let line = Part { offset: 0, size: None, line: true };
    if path.as_os_str() != "-" {
        return Ok(line.of_file(path, "--table-file")?);
    }
    of_stdin(line, Stdin::get().ok_or_else(|| Failure::wrong("standard input is closed"))?)
}

/// Reads the first `size` bytes of a file that holds a volume key, or all of them.
pub(crate) fn read_volume_key(path: &Path, size: Option<u64>) -> Result<Secret, Failure> {
    Ok(Part { offset: 0, size, line: false }.of_file(path, "--volume-key-file")?)
}

/// Reads a passphrase that another program prints and ends with a newline.
pub(crate) fn read_printed(source: &mut impl Read) -> io::Result<Secret> {
    read_line(source, KEY_FILE_MAX).map(|(line, _)| line)
}

/// Reads a part of standard input, which must have one.
fn of_stdin(part: Part, stdin: Stdin) -> Result<Secret, Failure> {
    of_stdin_if_any(part, stdin)?
        .ok_or_else(|| Failure::wrong("nothing to read on standard input: it has no passphrase"))
}

/// Reads a part of standard input; `None` if there is nothing.
fn of_stdin_if_any(part: Part, mut stdin: Stdin) -> Result<Option<Secret>, Failure> {
    const NAME: &str = "standard input";
    part.skip(&mut stdin, NAME)?;
    let (key, newline) = part.read(&mut stdin, NAME)?;
    Ok(if key.is_empty() && !newline { None } else { Some(key) })
}
