//! Passphrases and key files, read as cryptsetup reads them.
//!
//! - `--key-file F`: all bytes of F, newlines included, from `--keyfile-offset` on, or
//!   `--keyfile-size` of them; F is no terminal;
//! - `--key-file -`: the same bytes of standard input;
//! - no key file: standard input up to the first newline or its end, cut in the same way;
//! - standard input is a terminal, with or without `--key-file -`: a prompt;
//! - standard input is data for the volume: a prompt on the controlling terminal;
//! - `--ask-password`: an agent of systemd asks, wherever a person is.
//!
//! Everything is read into memory that is wiped; no other buffer holds it on the way.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::termios::isatty;
use zeroize::Zeroizing;

use crate::agent::Agent;
use crate::failure::Failure;
use crate::stdio::Stdin;
use crate::terminal::Terminal;

/// Longest key file, or passphrase on standard input, in bytes, as in cryptsetup.
const KEY_FILE_MAX: u64 = 8 << 20;

/// A secret in memory that is wiped.
pub(crate) type Secret = Zeroizing<Vec<u8>>;

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
}

impl KeyArgs {
    /// Finds out where the passphrase comes from. Reads nothing yet.
    pub(crate) fn source(&self) -> Result<Source<'_>, Failure> {
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
                let first = terminal.ask(prompt, limit)?;
                if self.verify && *terminal.ask("Verify passphrase", limit)? != *first {
                    return Err(Failure::denied("the passphrases do not match"));
                }
                Ok(first)
            }
            Source::Agent(agent) => agent.ask(prompt, self.timeout),
            Source::Line(stdin) => Part { line: true, ..part }.of_stdin(stdin),
            Source::Stdin(stdin) => part.of_stdin(stdin),
            Source::File(path) => part.of_file(path),
        }
    }

    /// As [`KeyArgs::read`], but `None` if standard input has nothing to read.
    pub(crate) fn read_if_any(&self, prompt: &str) -> Result<Option<Secret>, Failure> {
        let part = Part { offset: self.keyfile_offset, size: self.keyfile_size, line: false };
        match self.source() {
            Ok(Source::Line(stdin)) => Part { line: true, ..part }.of_stdin_if_any(stdin),
            Ok(Source::Stdin(stdin)) => part.of_stdin_if_any(stdin),
            Err(_) if Stdin::get().is_none() => Ok(None),
            _ => self.read(prompt).map(Some),
        }
    }

    /// As [`KeyArgs::read`], but asks a person twice.
    pub(crate) fn read_verified(&self, prompt: &str) -> Result<Secret, Failure> {
        Self { verify: true, ..self.clone() }.read(prompt)
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
        return line.of_file(path);
    }
    line.of_stdin(Stdin::get().ok_or_else(|| Failure::wrong("standard input is closed"))?)
}

/// Reads the first `size` bytes of a file that holds a volume key, or all of them.
pub(crate) fn read_volume_key(path: &Path, size: Option<u64>) -> Result<Secret, Failure> {
    Part { offset: 0, size, line: false }.of_file(path)
}

/// Reads a passphrase that another program prints and ends with a newline.
pub(crate) fn read_printed(source: &mut impl Read) -> io::Result<Secret> {
    read_line(source, KEY_FILE_MAX).map(|(line, _)| line)
}

/// Which bytes of a source are the passphrase.
#[derive(Debug, Clone, Copy)]
struct Part {
    offset: u64,
    /// Exactly this many bytes; up to the end if `None` or 0.
    size: Option<u64>,
    /// Whether a newline also ends the passphrase.
    line: bool,
}

impl Part {
    fn of_stdin(self, stdin: Stdin) -> Result<Secret, Failure> {
        self.of_stdin_if_any(stdin)?.ok_or_else(|| {
            Failure::wrong("nothing to read on standard input: it has no passphrase")
        })
    }

    fn of_stdin_if_any(self, mut stdin: Stdin) -> Result<Option<Secret>, Failure> {
        let failed = failed("standard input");
        skip(&mut stdin, self.offset).map_err(failed)?;
        let (key, newline) = self.read(&mut stdin, "standard input")?;
        Ok(if key.is_empty() && !newline { None } else { Some(key) })
    }

    fn of_file(self, path: &Path) -> Result<Secret, Failure> {
        let name = format!("key file {}", path.display());
        let failed = failed(&name);
        let mut file = File::open(path).map_err(failed)?;
        if isatty(&file) {
            // It would show what is typed, and take the newline for a part of it.
            return Err(Failure::wrong(format!(
                "{name} is a terminal; leave --key-file out to be asked for the passphrase"
            )));
        }
        let metadata = file.metadata().map_err(failed)?;
        if metadata.is_file() {
            if self.offset > metadata.len() {
                return Err(failed(io::ErrorKind::UnexpectedEof.into()));
            }
            file.seek(SeekFrom::Start(self.offset)).map_err(failed)?;
        } else {
            skip(&mut file, self.offset).map_err(failed)?;
        }
        let (key, _) = self.read(&mut file, &name)?;
        // An empty file is an empty passphrase. A device or a pipe that gives nothing has failed.
        if key.is_empty() && !metadata.is_file() {
            return Err(Failure::wrong(format!("nothing to read in {name}: it has no passphrase")));
        }
        Ok(key)
    }

    /// Reads from the current position. Also returns whether a newline ended the input.
    fn read(self, source: &mut impl Read, name: &str) -> Result<(Secret, bool), Failure> {
        let size = self.size.filter(|size| *size > 0);
        let too_long = || {
            Failure::wrong(format!(
                "{name} is longer than a passphrase may be, {KEY_FILE_MAX} bytes; use \
                 --keyfile-size"
            ))
        };
        if size.is_some_and(|size| size > KEY_FILE_MAX) {
            return Err(Failure::wrong(format!(
                "--keyfile-size is above what a passphrase may have, {KEY_FILE_MAX} bytes"
            )));
        }
        let limit = size.unwrap_or(KEY_FILE_MAX + 1);
        let read = if self.line { read_line(source, limit) } else { read_all(source, limit) };
        let (key, newline) = read.map_err(failed(name))?;
        match size {
            None if key.len() as u64 > KEY_FILE_MAX => Err(too_long()),
            Some(size) if (key.len() as u64) < size => {
                Err(Failure::wrong(format!("{name} has only {} of {size} bytes", key.len())))
            }
            _ => Ok((key, newline)),
        }
    }
}

/// The failure to read something.
fn failed(name: &str) -> impl Fn(io::Error) -> Failure + Copy + '_ {
    move |error| Failure::wrong(format!("cannot read {name}: {error}"))
}

fn skip(source: &mut impl Read, count: u64) -> io::Result<()> {
    let mut left = count;
    let mut buf = Zeroizing::new([0; 4096]);
    while left > 0 {
        let want = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        match source.read(&mut buf[..want]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(got) => left -= got as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads to the end, but at most `limit` bytes.
fn read_all(source: &mut impl Read, limit: u64) -> io::Result<(Secret, bool)> {
    let mut key = Zeroizing::new(Vec::new());
    let mut chunk = Zeroizing::new([0; 4096]);
    while (key.len() as u64) < limit {
        let want = chunk.len().min((limit - key.len() as u64) as usize);
        let got = match source.read(&mut chunk[..want]) {
            Ok(0) => break,
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        grow(&mut key, got);
        key.extend_from_slice(&chunk[..got]);
    }
    Ok((key, false))
}

/// Reads to the first newline or the end, but at most `limit` bytes. Reads byte by byte, because
/// the data after the newline is for other readers.
fn read_line(source: &mut impl Read, limit: u64) -> io::Result<(Secret, bool)> {
    let mut line = Zeroizing::new(Vec::new());
    let mut byte = Zeroizing::new([0]);
    while (line.len() as u64) < limit {
        match source.read(&mut *byte) {
            Ok(0) => break,
            Ok(_) if byte[0] == b'\n' => return Ok((line, true)),
            Ok(_) => {
                grow(&mut line, 1);
                line.push(byte[0]);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok((line, false))
}

/// Makes room for `more` bytes; the old memory is wiped, which `Vec` alone would not do.
fn grow(key: &mut Secret, more: usize) {
    if key.capacity() - key.len() < more {
        let room = (key.len() + more).next_power_of_two().max(512);
        let mut larger = Zeroizing::new(Vec::with_capacity(room));
        larger.extend_from_slice(key);
        *key = larger;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(part: Part, source: &[u8]) -> Result<(Vec<u8>, bool), Failure> {
        part.read(&mut &*source, "source").map(|(key, newline)| (key.to_vec(), newline))
    }

    const ALL: Part = Part { offset: 0, size: None, line: false };
    const LINE: Part = Part { line: true, ..ALL };

    #[test]
    fn a_line_ends_at_its_newline_and_a_key_file_does_not() {
        assert_eq!(read(LINE, b"one\ntwo").unwrap(), (b"one".to_vec(), true));
        assert_eq!(read(LINE, b"no newline").unwrap(), (b"no newline".to_vec(), false));
        assert_eq!(read(ALL, b"one\ntwo").unwrap(), (b"one\ntwo".to_vec(), false));
        let mut rest = &b"one\ntwo"[..];
        LINE.read(&mut rest, "source").unwrap();
        assert_eq!(rest, b"two", "what is behind the newline is left to others");
    }

    #[test]
    fn no_passphrase_is_cut_without_a_word() {
        for part in [ALL, LINE] {
            for len in [511, 512, 513, 20_000, KEY_FILE_MAX as usize] {
                assert_eq!(read(part, &vec![7; len]).unwrap().0.len(), len);
            }
            let error = read(part, &vec![7; KEY_FILE_MAX as usize + 1]).unwrap_err();
            assert!(error.code == 1 && error.message.contains("longer"), "{error}");
        }
    }

    #[test]
    fn a_size_is_had_to_the_byte_or_refused() {
        let sized = |part: Part, size| Part { size: Some(size), ..part };
        assert_eq!(read(sized(LINE, 3), b"0123\n").unwrap().0, b"012");
        assert_eq!(read(sized(ALL, 3), b"0123\n").unwrap().0, b"012");
        // 0 is no limit, as in cryptsetup.
        assert_eq!(read(sized(ALL, 0), b"0123\n").unwrap().0, b"0123\n");
        for (part, size) in [(LINE, 5), (ALL, 6), (ALL, 1 << 40)] {
            assert_eq!(read(sized(part, size), b"0123\n").unwrap_err().code, 1, "{part:?} {size}");
        }
    }

    #[test]
    fn a_key_file_is_cut_by_offset_and_size_and_must_be_long_enough() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        std::fs::write(&path, b"0123456789").unwrap();
        let part = |offset, size| Part { offset, size, line: false }.of_file(&path);
        assert_eq!(*part(0, None).unwrap(), b"0123456789");
        assert_eq!(*part(3, Some(4)).unwrap(), b"3456");
        assert_eq!(part(3, Some(8)).unwrap_err().code, 1);
        assert_eq!(part(11, None).unwrap_err().code, 1);
        assert_eq!(part(0, Some(1 << 40)).unwrap_err().code, 1);
    }

    #[test]
    fn a_device_that_gives_nothing_is_no_empty_passphrase() {
        let error = ALL.of_file(Path::new("/dev/null")).unwrap_err();
        assert!(error.code == 1 && error.message.contains("nothing to read"), "{error}");
    }
}
