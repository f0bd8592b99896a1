//! The options that say how a passphrase becomes a key.

use std::time::Duration;

use ucrypt_luks::{Cost, Format, Hash, Pbkdf, PbkdfKind};

use crate::failure::Failure;

/// Default limits of Argon2's memory and threads, as in cryptsetup.
const ARGON2_MEMORY_KIB: u32 = 1024 * 1024;
const ARGON2_LANES: u32 = 4;

/// How the passphrase becomes a key.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PbkdfArgs {
    /// Key derivation function: pbkdf2, argon2i, argon2id [default: argon2id, LUKS1 pbkdf2]
    #[arg(long, value_name = "NAME")]
    pbkdf: Option<String>,
    /// Time that unlocking may take on this machine, in milliseconds
    #[arg(short = 'i', long, value_name = "MS", default_value_t = 2000)]
    iter_time: u32,
    /// Most memory for Argon2; 0 for the default [default: 1048576]
    #[arg(long, value_name = "KIB")]
    pbkdf_memory: Option<u32>,
    /// Most parallel threads for Argon2; 0 for the default [default: 4]
    #[arg(long, value_name = "THREADS")]
    pbkdf_parallel: Option<u32>,
    /// Do not measure: use this many iterations, and the memory and threads as they are given
    #[arg(long, value_name = "COUNT", conflicts_with = "iter_time")]
    pbkdf_force_iterations: Option<u32>,
}

impl PbkdfArgs {
    /// The key derivation of a new keyslot.
    pub(super) fn pbkdf(&self, format: Format, hash: Hash) -> Result<Pbkdf, Failure> {
        let kind = match &self.pbkdf {
            Some(name) => PbkdfKind::from_name(name)?,
            None if format == Format::Luks1 => PbkdfKind::Pbkdf2,
            None => PbkdfKind::Argon2id,
        };
        let cost = match self.pbkdf_force_iterations {
            Some(forced) => Cost::Iterations(forced),
            None => Cost::Time(Duration::from_millis(self.iter_time.into())),
        };
        // 0 is the default, as in cryptsetup.
        let given = |number: Option<u32>| number.filter(|number| *number > 0);
        let memory_kib = given(self.pbkdf_memory).unwrap_or(ARGON2_MEMORY_KIB);
        let lanes = given(self.pbkdf_parallel).unwrap_or(ARGON2_LANES);
        Ok(Pbkdf { kind, hash, cost, memory_kib, lanes })
    }

    /// The options given that have no effect on `pbkdf`, but that cryptsetup accepts.
    pub(super) fn ignored(&self, pbkdf: &Pbkdf) -> Vec<&'static str> {
        let is_pbkdf2 = pbkdf.kind == PbkdfKind::Pbkdf2;
        let known = [
            (is_pbkdf2 && self.pbkdf_memory.is_some(), "--pbkdf-memory"),
            (is_pbkdf2 && self.pbkdf_parallel.is_some(), "--pbkdf-parallel"),
        ];
        known.into_iter().filter_map(|(ignored, option)| ignored.then_some(option)).collect()
    }
}
