//! A dm-crypt table line, as `dmsetup` reads and shows it (Linux,
//! `Documentation/admin-guide/device-mapper/dm-crypt.rst`):
//!
//! ```text
//! 0 LENGTH crypt CIPHER KEY IV_OFFSET DEVICE OFFSET [#OPTIONS OPTION…]
//! ```

use std::collections::BTreeSet;

use zeroize::Zeroizing;

use crate::area::parse_cipher;
use crate::error::{Error, Result};
use crate::kdf::KEY_LEN_MAX;
use crate::plain::in_bytes;
use crate::volume::{Flag, Format, Segment, Unlocked};

/// A parsed table line.
#[derive(Debug)]
pub struct Table {
    /// The image or device that the line names.
    pub device: String,
    /// The volume: one segment of fixed length.
    pub unlocked: Unlocked,
}

/// The optional parameters of a table line.
struct Options {
    sector_size: u32,
    iv_large_sectors: bool,
    flags: BTreeSet<Flag>,
}

impl Table {
    /// Parses one line.
    pub fn parse(line: &str) -> Result<Self> {
        let words = Zeroizing::new(split(line));
        let [start, length, target, cipher, key, iv_offset, device, offset, options @ ..] =
            words.as_slice()
        else {
            return Err(Error::request(
                "a table line is: 0 LENGTH crypt CIPHER KEY IV_OFFSET DEVICE OFFSET [#OPTIONS …]",
            ));
        };
        if number("start", start)? != 0 {
            return Err(Error::request("the table has to start at sector 0, with one target"));
        }
        if target != "crypt" {
            return Err(Error::unsupported("device-mapper target", target));
        }
        let key = parse_key(key)?;
        let options = parse_options(options)?;
        let segment = Segment {
            offset: in_bytes("offset", number("offset", offset)?)?,
            length: Some(in_bytes("length", number("length", length)?)?),
            iv_tweak: number("IV offset", iv_offset)?,
            cipher: parse_cipher("table line", cipher)?,
            sector_size: options.sector_size,
            iv_large_sectors: options.iv_large_sectors,
        };
        segment.cipher(&key)?;
        let unit = u64::from(options.sector_size);
        if segment.length.is_none_or(|length| length == 0 || !length.is_multiple_of(unit)) {
            return Err(Error::request(format!("the length is not a multiple of {unit} bytes")));
        }
        let unlocked = Unlocked {
            format: Format::Plain,
            volume_key: key,
            segments: vec![segment],
            flags: options.flags,
            keyslot: None,
            uuid: None,
            label: None,
        };
        Ok(Self { device: device.clone(), unlocked })
    }
}

/// Splits at white space; a backslash takes the next character literally.
fn split(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = line.chars();
    while let Some(char) = chars.next() {
        match char {
            '\\' => word.get_or_insert_default().extend(chars.next()),
            space if space.is_whitespace() => words.extend(word.take()),
            // Allocated in full: a growing word would leave parts of the key in freed memory.
            other => word.get_or_insert_with(|| String::with_capacity(line.len())).push(other),
        }
    }
    words.extend(word);
    words
}

fn number(what: &str, text: &str) -> Result<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.then(|| text.parse().ok()).flatten();
    number
        .ok_or_else(|| Error::request(format!("the {what} \"{text}\" is not a number of sectors")))
}

/// Parses a key in hex; `-` stands for an empty key.
fn parse_key(text: &str) -> Result<Zeroizing<Vec<u8>>> {
    if text.starts_with(':') {
        // Do not repeat the reference in the error: it may be confidential.
        return Err(Error::unsupported("key", "in the kernel's keyring"));
    }
    let text = if text == "-" { "" } else { text };
    let bad = || Error::request("the key of the table line is not a whole number of hex bytes");
    if !text.len().is_multiple_of(2) || text.len() > 2 * KEY_LEN_MAX {
        return Err(bad());
    }
    let mut key = Zeroizing::new(Vec::with_capacity(text.len() / 2));
    for pair in text.as_bytes().chunks_exact(2) {
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let (high, low) = digit(pair[0]).zip(digit(pair[1])).ok_or_else(bad)?;
        key.push((high << 4 | low) as u8);
    }
    Ok(key)
}

fn parse_options(words: &[String]) -> Result<Options> {
    let mut options = Options { sector_size: 512, iv_large_sectors: false, flags: BTreeSet::new() };
    let Some((count, words)) = words.split_first() else { return Ok(options) };
    if number("option count", count)? != words.len() as u64 {
        let found = words.len();
        return Err(Error::request(format!(
            "the table line announces {count} options, has {found}"
        )));
    }
    for word in words {
        let (name, value) =
            word.split_once(':').map_or((word.as_str(), None), |(n, v)| (n, Some(v)));
        match (name, value) {
            ("sector_size", Some(size)) => {
                let size = number("sector size", size)?;
                options.sector_size = u32::try_from(size).unwrap_or(u32::MAX);
            }
            ("iv_large_sectors", None) => options.iv_large_sectors = true,
            (name, None) => {
                let flag = Flag::from_table_name(name);
                options.flags.insert(flag.ok_or_else(|| unknown_option(word))?);
            }
            _ => return Err(unknown_option(word)),
        }
    }
    Ok(options)
}

fn unknown_option(word: &str) -> Error {
    Error::unsupported("dm-crypt option", word)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

    fn problem(line: &str) -> String {
        Table::parse(line).unwrap_err().to_string()
    }

    #[test]
    fn a_line_with_every_option_is_understood() {
        let line = format!(
            "0 2097152 crypt aes-cbc-essiv:sha256 {KEY} 8 /dev/a\\ b 16 9 allow_discards \
             same_cpu_crypt submit_from_crypt_cpus no_read_workqueue no_write_workqueue \
             high_priority sector_size:4096 iv_large_sectors allow_discards"
        );
        let table = Table::parse(&line).unwrap();
        assert_eq!(table.device, "/dev/a b");
        let unlocked = &table.unlocked;
        assert_eq!(*unlocked.volume_key, (0..32).collect::<Vec<u8>>());
        let segment = &unlocked.segments[0];
        assert_eq!((segment.offset, segment.length), (8192, Some(1 << 30)));
        assert_eq!((segment.iv_tweak, segment.sector_size), (8, 4096));
        assert!(segment.iv_large_sectors);
        assert_eq!(unlocked.flags.len(), 6);
        assert!(unlocked.flags.contains(&Flag::NoWriteWorkqueue));
    }

    #[test]
    fn the_shortest_line_is_understood() {
        let table = Table::parse(&format!("0 8 crypt aes-xts-plain64 {KEY} 0 img 0")).unwrap();
        assert_eq!(table.unlocked.segments[0].length, Some(4096));
        assert!(table.unlocked.flags.is_empty());
        assert!(Table::parse("0 8 crypt cipher_null-ecb - 0 img 0").is_ok());
    }

    #[test]
    fn what_is_not_implemented_is_refused_by_name() {
        let with = |options: &str| format!("0 8 crypt aes-xts-plain64 {KEY} 0 img 0 {options}");
        for (line, words) in [
            (with("1 integrity:28:aead"), "\"integrity:28:aead\""),
            (with("1 integrity_key_size:32"), "\"integrity_key_size:32\""),
            (with("1 something_new"), "\"something_new\""),
            (with("1 allow_discards:1"), "\"allow_discards:1\""),
            (with("2 allow_discards"), "announces 2 options"),
            (with("0 allow_discards"), "announces 0 options"),
            (with("x"), "option count"),
            (with("1 sector_size:8192"), "8192"),
            ("0 8 linear img 0 0 0 0".to_owned(), "\"linear\""),
            ("0 8 crypt aes-xts-plain64 :32:logon:key 0 img 0".to_owned(), "keyring"),
            (format!("1 8 crypt aes-xts-plain64 {KEY} 0 img 0"), "start at sector 0"),
            (format!("0 0 crypt aes-xts-plain64 {KEY} 0 img 0"), "multiple of 512"),
            (format!("0 8 crypt aes-xts-plain64 {KEY}0 0 img 0"), "hex"),
            (format!("0 8 crypt aes-xts-plain64 {KEY}00 0 img 0"), "33"),
            (format!("0 8 crypt aes-xts-nothing {KEY} 0 img 0"), "nothing"),
            (format!("0 8 crypt aes-xts-plain64 {KEY} 0 img -1"), "\"-1\""),
            (format!("0 18446744073709551615 crypt aes-xts-plain64 {KEY} 0 img 0"), "2^64"),
            (String::new(), "a table line is"),
        ] {
            assert!(problem(&line).contains(words), "{line}: {}", problem(&line));
        }
    }
}
