//! Chooses the ciphers to measure: those named, or a set that contains every cipher.

use std::sync::Arc;
use std::time::Duration;

use ucrypt_sector::{
    Cipher, CipherSpec, Kernel, KeyError, Mode, SectorCipher, SectorOptions, SpecError,
};

use super::BenchmarkArgs;
use super::cores::{Cores, Job};
use super::measure::speeds;
use super::report::{CipherRow, Report};
use crate::failure::Failure;

/// Largest sector in bytes; a buffer is a multiple of it.
pub(super) const SECTOR_MAX: u64 = 4096;

/// Largest buffer in bytes; every CPU gets two.
pub(super) const BUFFER_MAX: u64 = 64 << 20;

/// Sector sizes to measure without `--sector-size`.
const SECTOR_SIZES: [u32; 2] = [512, 4096];

/// Specifications to measure if none is named, with the key length in bits: first those that
/// volumes use, then every other cipher and mode for disks.
const DEFAULT_SET: &[(&str, usize)] = &[
    ("aes-xts-plain64", 256),
    ("aes-xts-plain64", 512),
    ("aes-cbc-essiv:sha256", 256),
    ("serpent-xts-plain64", 512),
    ("twofish-xts-plain64", 512),
    ("camellia-xts-plain64", 512),
    ("aria-xts-plain64", 512),
    ("sm4-xts-plain64", 256),
    ("cast6-xts-plain64", 512),
    ("cast5-cbc-plain64", 128),
    ("blowfish-cbc-plain64", 256),
    ("des3_ede-cbc-plain64", 192),
    ("aes-lrw-benbi", 384),
    ("aes-hctr2-plain64", 256),
    ("xchacha12,aes-adiantum-plain64", 256),
    ("xchacha20,aes-adiantum-plain64", 256),
];

/// Ciphers with their keys, ready to run.
pub(super) struct Ciphers(Vec<Keyed>);

/// A specification with a key, ready for each sector size.
struct Keyed {
    spec: CipherSpec,
    key_bits: usize,
    kernel: &'static str,
    by_sector_size: Vec<Arc<SectorCipher>>,
}

impl Ciphers {
    /// The empty set.
    pub(super) fn none() -> Self {
        Self(Vec::new())
    }

    /// Sets the keys, which refuses what cannot be measured.
    pub(super) fn new(args: &BenchmarkArgs) -> Result<Self, Failure> {
        let named = args.cipher.iter().map(|text| (text.as_str(), args.key_size));
        let default = DEFAULT_SET.iter().map(|(text, bits)| (*text, Some(*bits)));
        let wanted: Vec<_> = if args.names_cipher() { named.collect() } else { default.collect() };
        let keyed = |(text, bits)| Keyed::new(text, bits, args);
        Ok(Self(wanted.into_iter().map(keyed).collect::<Result<_, _>>()?))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Length of the longest specification.
    pub(super) fn name_len(&self) -> usize {
        self.0.iter().map(|keyed| keyed.spec.to_string().len()).max().unwrap_or(0)
    }

    /// Measures one specification after the other.
    pub(super) fn measure(
        &self,
        cores: &Cores,
        time: Duration,
        report: &mut Report,
    ) -> Result<(), Failure> {
        for keyed in &self.0 {
            let jobs: Vec<Job> = keyed.by_sector_size.iter().flat_map(jobs).collect();
            let speeds = speeds(cores, &jobs, time)?;
            // `jobs` makes two for each sector size.
            for (cipher, pair) in keyed.by_sector_size.iter().zip(speeds.as_chunks().0) {
                let [encrypt, decrypt] = *pair;
                report.cipher(&CipherRow {
                    cipher: keyed.spec.to_string(),
                    key_bits: keyed.key_bits,
                    sector_bytes: cipher.sector_size(),
                    kernel: keyed.kernel,
                    encrypt,
                    decrypt,
                })?;
            }
        }
        Ok(())
    }
}

/// Encryption and decryption of whole buffers.
fn jobs(cipher: &Arc<SectorCipher>) -> [Job; 2] {
    let (encrypt, decrypt) = (cipher.clone(), cipher.clone());
    [
        Arc::new(move |src, dst| encrypt.encrypt(0, src, dst)),
        Arc::new(move |src, dst| decrypt.decrypt(0, src, dst)),
    ]
}

impl Keyed {
    fn new(text: &str, key_bits: Option<usize>, args: &BenchmarkArgs) -> Result<Self, Failure> {
        let spec = parse(text).map_err(Failure::wrong)?;
        let key_bits = key_bits.unwrap_or_else(|| default_key_bits(&spec));
        let accepted = spec.key_sizes();
        if !accepted.contains(key_bits / 8) {
            return Err(Failure::wrong(format!(
                "--key-size: {spec} takes keys of {} bits, not of {key_bits}",
                accepted.in_bits()
            )));
        }
        // Any key will do, as long as no two parts of it are alike.
        let key: Vec<u8> = (0..key_bits / 8).map(|at| (at ^ (at >> 8)) as u8).collect();
        let kernel = args.kernel.unwrap_or_else(Kernel::best);
        let mut by_sector_size = Vec::new();
        for sector_size in args.sector_size.map_or(SECTOR_SIZES.to_vec(), |size| vec![size]) {
            let options = SectorOptions { sector_size, ..SectorOptions::default() };
            match SectorCipher::with_kernel(&spec, &key, options, kernel) {
                Ok(cipher) => by_sector_size.push(Arc::new(cipher)),
                // An IV for 512-byte sectors only is an error only if another size was asked for.
                Err(KeyError::SectorSizeOfIv { .. }) if args.sector_size.is_none() => {}
                Err(error) => return Err(Failure::wrong(error)),
            }
        }
        let kernel = kernel_name(spec.cipher(), kernel);
        Ok(Self { spec, key_bits, kernel, by_sector_size })
    }
}

/// Parses a specification. A missing IV, which cryptsetup's benchmark allows, becomes `plain64`.
fn parse(text: &str) -> Result<CipherSpec, SpecError> {
    let error = match text.parse() {
        Err(error @ SpecError::Form { .. }) => error,
        done => return done,
    };
    match format!("{text}-plain64").parse() {
        Err(SpecError::Form { .. } | SpecError::Unknown { .. }) => Err(error),
        done => done,
    }
}

/// The default of `luksFormat`, or the longest key if the cipher does not take that.
fn default_key_bits(spec: &CipherSpec) -> usize {
    let bits = if spec.mode() == Mode::Xts { 512 } else { 256 };
    let sizes = spec.key_sizes();
    if sizes.contains(bits / 8) { bits } else { 8 * sizes.iter().next_back().unwrap_or(0) }
}

/// The kernel that runs `cipher` if `kernel` is asked for.
fn kernel_name(cipher: Cipher, kernel: Kernel) -> &'static str {
    match cipher {
        Cipher::Null => "none",
        _ if kernel.is_for(cipher) => kernel.name(),
        _ => Kernel::Portable.name(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_set_has_every_cipher_that_encrypts() {
        let set: Vec<CipherSpec> =
            DEFAULT_SET.iter().map(|(text, _)| text.parse().unwrap()).collect();
        for cipher in Cipher::ALL {
            let there = set.iter().any(|spec| spec.cipher() == *cipher);
            assert_eq!(there, *cipher != Cipher::Null, "{cipher}");
        }
    }

    #[test]
    fn every_key_of_the_default_set_fits() {
        for (text, bits) in DEFAULT_SET {
            let spec: CipherSpec = text.parse().unwrap();
            assert!(spec.key_sizes().contains(bits / 8), "{text} with {bits} bits");
        }
    }

    #[test]
    fn a_missing_iv_is_plain64_and_other_errors_stay() {
        assert_eq!(parse("aes-xts").unwrap().to_string(), "aes-xts-plain64");
        assert_eq!(parse("capi:cbc(aes)").unwrap().to_string(), "capi:cbc(aes)-plain64");
        assert_eq!(parse("aes").unwrap().to_string(), "aes");
        assert!(matches!(parse("cast5-xts"), Err(SpecError::Combination { .. })));
        for bad in ["rot13-xts", "aes-foo", "aes-cbc-foo", "aes:3-cbc-plain64", "aes(", ""] {
            let direct: Result<CipherSpec, _> = bad.parse();
            assert_eq!(parse(bad), direct, "{bad}");
            assert!(direct.is_err(), "{bad}");
        }
    }

    #[test]
    fn keys_are_as_long_as_volumes_have_them() {
        for (text, bits) in [
            ("aes-xts-plain64", 512),
            ("aes-cbc-plain64", 256),
            ("des3_ede-cbc-plain64", 192),
            ("sm4-xts-plain64", 256),
            ("aes-cbc-tcw", 512),
        ] {
            assert_eq!(default_key_bits(&text.parse().unwrap()), bits, "{text}");
        }
    }
}
