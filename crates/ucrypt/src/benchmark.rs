//! `benchmark`: the speed of ciphers and key derivations on this machine, in memory only.
//!
//! The action and its options are cryptsetup's. Each cipher is measured in both directions, on one
//! CPU and on all of them, next to `memcpy`, which no cipher can beat. All arguments are checked
//! before the first measurement. Results are shown as they come.

mod ciphers;
mod cores;
mod kdfs;
mod measure;
mod processor;
mod report;
mod table;

use std::time::Duration;

use ucrypt_sector::Kernel;

use crate::failure::Failure;
use crate::luks::check_bits;
use crate::size;
use ciphers::Ciphers;
use cores::Cores;
use kdfs::Kdfs;
use measure::memcpy;
use report::{Report, Settings};

/// Arguments of `benchmark`.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchmarkArgs {
    /// Measure this cipher, mode and IV; may be given several times [default: a set of all ciphers]
    #[arg(short = 'c', long, value_name = "SPEC")]
    cipher: Vec<String>,
    /// Length of the key in bits [default: 256, and 512 for XTS]
    #[arg(short = 's', long, value_name = "BITS")]
    key_size: Option<usize>,
    /// Bytes that are encrypted as one [default: 512 and 4096]
    #[arg(long, value_name = "BYTES")]
    sector_size: Option<u32>,
    /// Where a cipher has several kernels, run vaes-avx512, vaes-avx2, aes-ni, armv8-aes or portable [default: the fastest]
    #[arg(long, value_name = "NAME", value_parser = kernel)]
    kernel: Option<Kernel>,
    /// Bytes that a call encrypts
    #[arg(long, value_name = "BYTES", value_parser = size::parse, default_value = "64K")]
    buffer_size: u64,
    /// Measure this key derivation function: pbkdf2, argon2i, argon2id [default: all]
    #[arg(long, value_name = "NAME")]
    pbkdf: Option<String>,
    /// Measure PBKDF2 with this hash [default: a set of common ones]
    #[arg(short = 'h', long, value_name = "NAME")]
    hash: Option<String>,
    /// Time that a key derivation may take, in milliseconds
    #[arg(short = 'i', long, value_name = "MS", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    iter_time: u64,
    /// Most memory for Argon2
    #[arg(long, value_name = "KIB", default_value_t = 1024 * 1024)]
    pbkdf_memory: u32,
    /// Most parallel threads for Argon2
    #[arg(long, value_name = "THREADS", default_value_t = 4)]
    pbkdf_parallel: u32,
    /// Time for each figure, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    time: u64,
    /// Print JSON: speeds in bytes per second
    #[arg(long)]
    json: bool,
}

impl BenchmarkArgs {
    /// Whether the user named a cipher.
    fn names_cipher(&self) -> bool {
        !self.cipher.is_empty()
    }

    fn names_kdf(&self) -> bool {
        self.pbkdf.is_some() || self.hash.is_some()
    }

    fn check(&self) -> Result<(), Failure> {
        let named = self.names_cipher() || self.names_kdf();
        if self.key_size.is_some() && !named {
            return Err(Failure::wrong(
                "--key-size goes with what has this key: add --cipher, --pbkdf or --hash",
            ));
        }
        self.key_size.map_or(Ok(()), |bits| check_bits("--key-size", bits))?;
        let range = ciphers::SECTOR_MAX..=ciphers::BUFFER_MAX;
        let fits = range.contains(&self.buffer_size);
        if !fits || !self.buffer_size.is_multiple_of(ciphers::SECTOR_MAX) {
            return Err(Failure::wrong(format!(
                "--buffer-size {} is no multiple of 4096 from 4096 to 64M",
                self.buffer_size
            )));
        }
        Ok(())
    }
}

/// Finds a kernel by its name.
fn kernel(name: &str) -> Result<Kernel, String> {
    let known = || Kernel::ALL.iter().copied();
    known().find(|kernel| kernel.name() == name).ok_or_else(|| {
        let names: Vec<_> = known().map(Kernel::name).collect();
        format!("known are {}", names.join(", "))
    })
}

/// Carries out `benchmark`.
pub(crate) fn run(args: &BenchmarkArgs) -> Result<(), Failure> {
    args.check()?;
    let all = !args.names_cipher() && !args.names_kdf();
    let kdfs = if all || args.names_kdf() { Kdfs::new(args)? } else { Kdfs::none() };
    let ciphers = if all || args.names_cipher() { Ciphers::new(args)? } else { Ciphers::none() };
    let time = Duration::from_millis(args.time);
    let settings = Settings {
        buffer_bytes: args.buffer_size,
        time,
        kernel: args.kernel.unwrap_or_else(Kernel::best),
    };
    let mut report = Report::new(args.json, settings, ciphers.name_len());
    kdfs.measure(time, &mut report)?;
    if !ciphers.is_empty() {
        let cores = Cores::start(args.buffer_size as usize)?;
        report.begin_ciphers(&cores)?;
        report.memcpy(memcpy(&cores, time)?)?;
        ciphers.measure(&cores, time, &mut report)?;
    }
    report.end()
}
