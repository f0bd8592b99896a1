//! Passphrases and key files, read as cryptsetup reads them.
//!
//! - `--key-file F`: all bytes of F, newlines included, cut by `--keyfile-offset` and
//!   `--keyfile-size`; `-` is standard input to its end.
//! - no key file, standard input is a terminal: a prompt, without echo, up to the newline;
//! - no key file, standard input is something else: up to the first newline, or the end;
//! - no key file, standard input is data for the volume: a prompt on the controlling terminal.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::termios::{LocalModes, OptionalActions, Termios, isatty, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

use crate::failure::Failure;

/// Longest passphrase at a prompt or on a line of standard input, in bytes, as in cryptsetup.
const PASSPHRASE_MAX: usize = 512;

/// Longest key file, in bytes, as in cryptsetup.
const KEY_FILE_MAX: u64 = 8 << 20;

/// A secret in memory that is wiped.
pub(crate) type Secret = Zeroizing<Vec<u8>>;

/// Where a passphrase comes from.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct KeyArgs {
    /// Read the passphrase from a file; `-` is standard input
    #[arg(short = 'd', long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// Use only this many bytes of the key file
    #[arg(short = 'l', long, value_name = "BYTES")]
    pub(crate) keyfile_size: Option<u64>,
    /// Skip this many bytes of the key file
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub(crate) keyfile_offset: u64,
    /// Standard input is data, in which no passphrase is looked for
    #[arg(skip)]
    pub(crate) stdin_is_data: bool,
}

impl KeyArgs {
    /// Reads the passphrase; `prompt` without the colon.
    pub(crate) fn read(&self, prompt: &str) -> Result<Secret, Failure> {
        if let Some(path) = &self.key_file {
            if self.stdin_is_data && path.as_os_str() == "-" {
                return Err(Failure::wrong(
                    "standard input is the data; give the passphrase in another file",
                ));
            }
            return read_key_file(path, self.keyfile_offset, self.keyfile_size);
        }
        if let Some(terminal) = self.terminal() {
            return ask(prompt, terminal);
        }
        if self.stdin_is_data {
            return Err(Failure::wrong(
                "standard input is the data, and there is no terminal to ask for the passphrase; \
                 use --key-file",
            ));
        }
        let failed = |error| Failure::wrong(format!("cannot read the passphrase: {error}"));
        read_line(&mut io::stdin().lock(), PASSPHRASE_MAX).map_err(failed)
    }

    /// Where a person is to be asked.
    fn terminal(&self) -> Option<File> {
        if self.stdin_is_data {
            return File::options().read(true).write(true).open("/dev/tty").ok();
        }
        let stdin = io::stdin();
        isatty(&stdin).then(|| stdin.as_fd().try_clone_to_owned().ok().map(File::from))?
    }

    /// As [`KeyArgs::read`]; at a prompt, asks twice and compares.
    pub(crate) fn read_verified(&self, prompt: &str) -> Result<Secret, Failure> {
        let first = self.read(prompt)?;
        if self.is_interactive() && *self.read("Verify passphrase")? != *first {
            return Err(Failure::denied("the passphrases do not match"));
        }
        Ok(first)
    }

    /// Whether a person types the passphrase, and may mistype it.
    pub(crate) fn is_interactive(&self) -> bool {
        self.key_file.is_none() && self.terminal().is_some()
    }
}

/// Reads a key file as `--key-file` names it: all of it, or `size` bytes from `offset`.
pub(crate) fn read_key_file(
    path: &Path,
    offset: u64,
    size: Option<u64>,
) -> Result<Secret, Failure> {
    let failed = |error: io::Error| {
        Failure::wrong(format!("cannot read key file {}: {error}", path.display()))
    };
    if size.is_some_and(|size| size > KEY_FILE_MAX) {
        return Err(Failure::wrong(format!("a key file has at most {KEY_FILE_MAX} bytes")));
    }
    let mut source: Box<dyn Read> = if path.as_os_str() == "-" {
        let mut stdin = io::stdin().lock();
        skip(&mut stdin, offset).map_err(failed)?;
        Box::new(stdin)
    } else {
        let mut file = File::open(path).map_err(failed)?;
        // Pipes cannot seek.
        if file.seek(SeekFrom::Start(offset)).is_err() {
            skip(&mut file, offset).map_err(failed)?;
        }
        Box::new(file)
    };
    let limit = size.unwrap_or(KEY_FILE_MAX);
    let key = read_bounded(&mut source, limit).map_err(failed)?;
    let more = size.is_none() && source.read(&mut [0]).map_err(failed)? > 0;
    if more {
        return Err(Failure::wrong(format!(
            "key file {} is longer than {KEY_FILE_MAX} bytes; use --keyfile-size",
            path.display()
        )));
    }
    if size.is_some_and(|size| (key.len() as u64) < size) {
        return Err(Failure::wrong(format!(
            "key file {} has only {} bytes",
            path.display(),
            key.len()
        )));
    }
    Ok(key)
}

fn skip(source: &mut impl Read, count: u64) -> io::Result<()> {
    let skipped = io::copy(&mut source.by_ref().take(count), &mut io::sink())?;
    if skipped < count { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}

/// Reads at most `limit` bytes without leaving copies in memory that was given back.
fn read_bounded(source: &mut impl Read, limit: u64) -> io::Result<Secret> {
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
    Ok(key)
}

/// Makes room for `more` bytes; the old memory is wiped, which `Vec` alone would not do.
fn grow(key: &mut Secret, more: usize) {
    if key.capacity() - key.len() < more {
        let mut larger = Zeroizing::new(Vec::with_capacity((key.len() + more).next_power_of_two()));
        larger.extend_from_slice(key);
        *key = larger;
    }
}

fn read_line(source: &mut impl Read, limit: usize) -> io::Result<Secret> {
    let mut line = Zeroizing::new(Vec::with_capacity(limit));
    let mut byte = Zeroizing::new([0]);
    while line.len() < limit {
        match source.read(&mut *byte) {
            Ok(0) => break,
            Ok(_) if byte[0] == b'\n' => break,
            Ok(_) => line.push(byte[0]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(line)
}

/// Asks on the terminal, without echo.
fn ask(prompt: &str, mut terminal: File) -> Result<Secret, Failure> {
    let failed =
        |error: io::Error| Failure::wrong(format!("cannot read from the terminal: {error}"));
    let typed = {
        // Quiet before the prompt: who answers at once must not see it echoed.
        let _quiet = Quiet::new(&terminal).map_err(failed)?;
        eprint!("{prompt}: ");
        io::stderr().flush().map_err(failed)?;
        type_line(&mut terminal).map_err(failed)
    };
    eprintln!();
    typed?.ok_or_else(|| Failure::wrong("interrupted"))
}

/// The line as it is typed; `None` if Ctrl-C ended it. The terminal does no editing of its own
/// then, because Ctrl-C must give the echo back before the program ends.
fn type_line(source: &mut impl Read) -> io::Result<Option<Secret>> {
    let mut line = Zeroizing::new(Vec::with_capacity(PASSPHRASE_MAX));
    let mut byte = Zeroizing::new([0]);
    loop {
        match source.read(&mut *byte) {
            Ok(0) => return Ok(Some(line)),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
        match byte[0] {
            b'\n' | b'\r' | 4 => return Ok(Some(line)),
            3 => return Ok(None),
            8 | 127 => drop(line.pop()),
            21 => line.clear(),
            typed if line.len() < PASSPHRASE_MAX => line.push(typed),
            _ => return Err(io::Error::other(format!("longer than {PASSPHRASE_MAX} bytes"))),
        }
    }
}

/// The terminal without echo, until dropped.
struct Quiet(File, Termios);

impl Quiet {
    fn new(terminal: &File) -> io::Result<Self> {
        let terminal = terminal.try_clone()?;
        let before = tcgetattr(&terminal)?;
        let mut quiet = before.clone();
        quiet.local_modes -= LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG;
        tcsetattr(&terminal, OptionalActions::Flush, &quiet)?;
        Ok(Self(terminal, before))
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        // Nothing better can be done if the terminal is gone.
        let _ = tcsetattr(&self.0, OptionalActions::Flush, &self.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_ends_at_its_newline_and_a_key_file_does_not() {
        assert_eq!(*read_line(&mut &b"one\ntwo"[..], 512).unwrap(), b"one");
        assert_eq!(*read_line(&mut &b"no newline"[..], 512).unwrap(), b"no newline");
        assert_eq!(*read_bounded(&mut &b"one\ntwo"[..], 100).unwrap(), b"one\ntwo");
        let long = vec![7; 20_000];
        assert_eq!(*read_bounded(&mut &long[..], 1 << 20).unwrap(), long);
        assert_eq!(read_bounded(&mut &long[..], 10_000).unwrap().len(), 10_000);
    }

    #[test]
    fn typing_can_be_corrected_and_interrupted() {
        let typed = |keys: &[u8]| type_line(&mut &keys[..]).unwrap().map(|line| line.to_vec());
        assert_eq!(typed(b"abd\x7fc\n"), Some(b"abc".to_vec()));
        assert_eq!(typed(b"wrong\x15right\n"), Some(b"right".to_vec()));
        assert_eq!(typed(b"secret\x03"), None);
    }

    #[test]
    fn a_key_file_is_cut_by_offset_and_size_and_must_be_long_enough() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        std::fs::write(&path, b"0123456789").unwrap();
        assert_eq!(*read_key_file(&path, 0, None).unwrap(), b"0123456789");
        assert_eq!(*read_key_file(&path, 3, Some(4)).unwrap(), b"3456");
        assert_eq!(read_key_file(&path, 3, Some(8)).unwrap_err().code, 1);
        assert_eq!(read_key_file(&path, 0, Some(1 << 40)).unwrap_err().code, 1);
    }
}
