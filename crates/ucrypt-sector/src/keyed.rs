//! Turns a specification and a key into modes and IV generators.

use zeroize::Zeroizing;

use crate::{
    Cipher, CipherSpec, IvMode, Kernel, Mode,
    block::{BlockCipher, block_cipher},
    iv::{Eboiv, Elephant, IvGenerator, Lmk, TCW_WHITENING, Tcw},
    mode::{Adiantum, Cbc, Ctr, Ecb, Hctr2, Identity, Lrw, Pcbc, SectorMode, Xts},
};

/// The mode and the IV generator of one key.
pub(crate) struct Keyed {
    pub(crate) mode: Box<dyn SectorMode>,
    pub(crate) iv: IvGenerator,
}

/// Splits a volume key into the keys of the mode (one, or several used in turn) and the part that
/// the IV takes. `None` if the volume key is too short.
pub(crate) fn cut<'a>(spec: &CipherSpec, key: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let count = spec.key_count();
    // As in dm-crypt's `crypt_ctr_ivmode`, the part for the IV comes last.
    let extra_len = match spec.iv() {
        IvMode::Lmk if !key.len().is_multiple_of(count) => key.len() / (count + 1),
        IvMode::Tcw => spec.iv_len() + TCW_WHITENING,
        IvMode::Elephant => key.len() / 2,
        _ => 0,
    };
    key.split_at_checked(key.len().checked_sub(extra_len)?)
}

/// The keys in a volume key: one for all sectors, or several that the sectors use in turn. `None`
/// if a part has a length that is not accepted.
// Never part of its caller, which scrubs the stack below itself.
#[inline(never)]
pub(crate) fn keys(
    spec: &CipherSpec,
    kernel: Kernel,
    key: &[u8],
    sector_size: u32,
) -> Option<Vec<Keyed>> {
    let count = spec.key_count();
    let (keys, extra) = cut(spec, key)?;
    if keys.is_empty() && !spec.is_null() {
        return None;
    }
    let len = keys.len() / count;
    (0..count)
        .map(|index| {
            let part = Part { spec, kernel, key: &keys[index * len..][..len] };
            // Eboiv always uses the first key.
            let first = Part { key: &keys[..len], ..part };
            part.with_iv(first, extra, sector_size)
        })
        .collect()
}

/// One key with its specification and kernel.
#[derive(Clone, Copy)]
struct Part<'a> {
    spec: &'a CipherSpec,
    kernel: Kernel,
    key: &'a [u8],
}

impl Part<'_> {
    fn with_iv(self, first: Self, extra: &[u8], sector_size: u32) -> Option<Keyed> {
        let eboiv = || {
            // Eboiv encrypts one block at a time, which only the portable modes can.
            let mode = Self { kernel: Kernel::Portable, ..first }.mode()?;
            Some(Eboiv { mode, sector_size })
        };
        let inner = self.mode()?;
        let iv = match self.spec.iv() {
            IvMode::Null => IvGenerator::Null,
            IvMode::Plain => IvGenerator::Plain,
            IvMode::Plain64 => IvGenerator::Plain64,
            IvMode::Plain64Be => IvGenerator::Plain64Be,
            IvMode::Benbi => IvGenerator::Benbi { shift: 9 - self.spec.block_len().ilog2() },
            IvMode::Essiv(hash) => IvGenerator::Essiv(self.block_cipher(&hash.digest(self.key))?),
            IvMode::Eboiv => IvGenerator::Eboiv(eboiv()?),
            IvMode::Lmk => {
                let seed = extra.first_chunk().map(|seed| Zeroizing::new(*seed));
                // A seed that is present but too short is refused.
                if seed.is_none() && !extra.is_empty() {
                    return None;
                }
                return Some(around(Box::new(Lmk { inner, seed })));
            }
            IvMode::Tcw => {
                let (iv_seed, whitening) = extra.split_last_chunk()?;
                let iv_seed = Zeroizing::new(iv_seed.to_vec());
                let whitening = Zeroizing::new(*whitening);
                return Some(around(Box::new(Tcw { inner, iv_seed, whitening })));
            }
            IvMode::Elephant => {
                let sector_key = block_cipher(Cipher::Aes, self.kernel, extra)?;
                return Some(around(Box::new(Elephant { inner, iv: eboiv()?, sector_key })));
            }
        };
        Some(Keyed { mode: inner, iv })
    }

    fn mode(self) -> Option<Box<dyn SectorMode>> {
        let key = self.key;
        let halves = key.split_at(key.len() / 2);
        Some(match (self.spec.cipher(), self.spec.mode()) {
            (Cipher::Null, _) => Box::new(Identity),
            (Cipher::Aes, Mode::Xts) => self.kernel.xts(halves.0, halves.1)?,
            (Cipher::Aes, Mode::Cbc) => self.kernel.cbc(key)?,
            (_, Mode::Xts) => Box::new(Xts {
                data: self.block_cipher(halves.0)?,
                tweak: self.block_cipher(halves.1)?,
            }),
            (_, Mode::Cbc) => Box::new(Cbc(self.block_cipher(key)?)),
            (_, Mode::Ecb) => Box::new(Ecb(self.block_cipher(key)?)),
            (_, Mode::Ctr) => Box::new(Ctr(self.block_cipher(key)?)),
            (_, Mode::Pcbc) => Box::new(Pcbc(self.block_cipher(key)?)),
            (_, Mode::Lrw) => {
                let (key, tweak_key) = key.split_last_chunk()?;
                Box::new(Lrw::new(self.block_cipher(key)?, *tweak_key))
            }
            (cipher, Mode::Adiantum) => Box::new(Adiantum::new(cipher, self.kernel, key)?),
            (_, Mode::Hctr2) => Box::new(Hctr2::new(self.block_cipher(key)?)),
        })
    }

    fn block_cipher(self, key: &[u8]) -> Option<Box<dyn BlockCipher>> {
        block_cipher(self.spec.cipher(), self.kernel, key)
    }
}

/// Wraps a mode that makes its IV itself, from the plain sector number.
fn around(mode: Box<dyn SectorMode>) -> Keyed {
    Keyed { mode, iv: IvGenerator::Plain64 }
}
