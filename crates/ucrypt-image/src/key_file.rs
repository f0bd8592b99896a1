//! Secrets out of files, read into memory that is wiped; no other buffer holds them on the way.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use rustix::termios::isatty;
use zeroize::Zeroizing;

use crate::error::Error;

/// Longest key file, or passphrase on standard input, in bytes, as in cryptsetup. Whoever says how many bytes
/// it has may have more, up to 4 GiB.
pub const KEY_FILE_MAX: u64 = 8 << 20;

/// Longest part of a key file, in bytes: `--keyfile-size` of cryptsetup has 32 bits.
const SIZE_MAX: u64 = u32::MAX as u64;

/// A secret in memory that is wiped.
pub type Secret = Zeroizing<Vec<u8>>;

/// Which bytes of a source are the passphrase.
#[derive(Debug, Clone, Copy)]
pub struct Part {
    /// Bytes in front of it.
    pub offset: u64,
    /// Exactly this many bytes; up to the end if `None` or 0.
    pub size: Option<u64>,
    /// Whether a newline also ends the passphrase.
    pub line: bool,
}

impl Part {
    /// Reads it from a file, a device or a pipe. `what` says in messages what it is, as in "the key file".
    pub fn of_file(self, path: &Path, what: &str) -> Result<Secret, Error> {
        let name = format!("{what} {}", path.display());
        let failed = failed(&name);
        let mut file = File::open(path).map_err(failed)?;
        if isatty(&file) {
            // It would show what is typed, and take the newline for a part of it.
            return Err(Error::Key(format!(
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
            return Err(Error::Key(format!("nothing to read in {name}: it has no passphrase")));
        }
        Ok(key)
    }

    /// Skips the bytes in front of it; `name` is for messages.
    pub fn skip(self, source: &mut impl Read, name: &str) -> Result<(), Error> {
        skip(source, self.offset).map_err(failed(name))
    }

    /// Reads from the current position. Also returns whether a newline ended the input.
    pub fn read(self, source: &mut impl Read, name: &str) -> Result<(Secret, bool), Error> {
        let size = self.size.filter(|size| *size > 0);
        let too_long = || {
            Error::Key(format!(
                "{name} is longer than a key may be, {KEY_FILE_MAX} bytes; say how many of them \
                 are the passphrase with --keyfile-size, or the volume key with --key-size"
            ))
        };
        if size.is_some_and(|size| size > SIZE_MAX) {
            return Err(Error::Key(format!(
                "--keyfile-size is above what a passphrase may have, {SIZE_MAX} bytes"
            )));
        }
        let limit = size.unwrap_or(KEY_FILE_MAX + 1);
        let read = if self.line { read_line(source, limit) } else { read_all(source, limit) };
        let (key, newline) = read.map_err(failed(name))?;
        match size {
            None if key.len() as u64 > KEY_FILE_MAX => Err(too_long()),
            Some(size) if (key.len() as u64) < size => {
                Err(Error::Key(format!("{name} has only {} of {size} bytes", key.len())))
            }
            _ => Ok((key, newline)),
        }
    }
}

/// The error of something that cannot be read.
fn failed(name: &str) -> impl Fn(io::Error) -> Error + Copy + '_ {
    move |error| Error::Key(format!("cannot read {name}: {error}"))
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
        grow(&mut key, got)?;
        key.extend_from_slice(&chunk[..got]);
    }
    Ok((key, false))
}

/// Reads to the first newline or the end, but at most `limit` bytes. Reads byte by byte, because
/// the data after the newline is for other readers.
pub fn read_line(source: &mut impl Read, limit: u64) -> io::Result<(Secret, bool)> {
    let mut line = Zeroizing::new(Vec::new());
    let mut byte = Zeroizing::new([0]);
    while (line.len() as u64) < limit {
        match source.read(&mut *byte) {
            Ok(0) => break,
            Ok(_) if byte[0] == b'\n' => return Ok((line, true)),
            Ok(_) => {
                grow(&mut line, 1)?;
                line.push(byte[0]);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok((line, false))
}

/// Makes room for `more` bytes; the old memory is wiped, which `Vec` alone would not do.
fn grow(key: &mut Secret, more: usize) -> io::Result<()> {
    if key.capacity() - key.len() < more {
        let room = (key.len() + more).next_power_of_two().max(512);
        let mut larger = Zeroizing::new(Vec::new());
        larger.try_reserve_exact(room).map_err(|_| io::ErrorKind::OutOfMemory)?;
        larger.extend_from_slice(key);
        *key = larger;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(part: Part, source: &[u8]) -> Result<(Vec<u8>, bool), Error> {
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
            let longer = vec![7; KEY_FILE_MAX as usize + 1];
            let error = read(part, &longer).unwrap_err();
            assert!(error.to_string().contains("longer"), "{error}");
            let sized = Part { size: Some(longer.len() as u64), ..part };
            assert_eq!(read(sized, &longer).unwrap().0, longer);
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
            let error = read(sized(part, size), b"0123\n").unwrap_err();
            assert!(matches!(error, Error::Key(_)), "{part:?} {size}");
        }
    }

    #[test]
    fn a_key_file_is_cut_by_offset_and_size_and_must_be_long_enough() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        std::fs::write(&path, b"0123456789").unwrap();
        let part = |offset, size| Part { offset, size, line: false }.of_file(&path, "the key file");
        assert_eq!(*part(0, None).unwrap(), b"0123456789");
        assert_eq!(*part(3, Some(4)).unwrap(), b"3456");
        assert!(matches!(part(3, Some(8)), Err(Error::Key(_))));
        assert!(matches!(part(11, None), Err(Error::Key(_))));
        assert!(matches!(part(0, Some(1 << 40)), Err(Error::Key(_))));
    }

    #[test]
    fn a_device_that_gives_nothing_is_no_empty_passphrase() {
        let error = ALL.of_file(Path::new("/dev/null"), "the key file").unwrap_err();
        assert!(error.to_string().contains("nothing to read"), "{error}");
    }
}
