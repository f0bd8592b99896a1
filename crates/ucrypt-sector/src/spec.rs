//! The cipher specification of a dm-crypt table line or a LUKS header, parsed and checked.
//!
//! There are three notations: dm-crypt's own `cipher[:keycount]-mode-iv[:options]`, the kernel
//! crypto API's `capi:mode(cipher)-iv[:options]`, and the pair of strings that LUKS1 stores. Every
//! specification that parses is usable: the parser refuses invalid combinations.

use std::{borrow::Cow, fmt, str::FromStr};

use crate::{
    Cipher, IvMode, KeySizes, Mode, SpecError,
    iv::TCW_WHITENING,
    keyed::cut,
    mode::{BLOCK_MAX, WIDE_TWEAK},
};

/// A parsed cipher specification such as `aes-xts-plain64`, `aes-cbc-essiv:sha256`,
/// `cipher_null-ecb` or `capi:xts(aes)-plain64`.
///
/// Two specifications are equal if their text is equal. [`Display`](fmt::Display) writes the text
/// that was parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CipherSpec {
    text: String,
    cipher: Cipher,
    key_count: usize,
    mode: Mode,
    iv: IvMode,
}

/// Largest key count. loop-AES has 64 keys.
const KEYS_MAX: usize = 64;

impl CipherSpec {
    /// Parses the two strings of a LUKS1 header: `aes` and `xts-plain64`.
    pub fn from_parts(cipher_name: &str, cipher_mode: &str) -> Result<Self, SpecError> {
        if cipher_mode.is_empty() {
            return cipher_name.parse();
        }
        format!("{cipher_name}-{cipher_mode}").parse()
    }

    /// The first of the two strings that a LUKS1 header stores: `aes`.
    pub fn cipher_name(&self) -> &str {
        self.text.split_once('-').map_or(&self.text, |(cipher, _)| cipher)
    }

    /// The second of the two strings that a LUKS1 header stores: `xts-plain64`. Empty if the
    /// specification names only a cipher.
    pub fn cipher_mode(&self) -> &str {
        self.text.split_once('-').map_or("", |(_, mode)| mode)
    }

    /// The block cipher.
    pub fn cipher(&self) -> Cipher {
        self.cipher
    }

    /// The mode of operation over the blocks of a sector.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// How the IV is made.
    pub fn iv(&self) -> IvMode {
        self.iv
    }

    /// Whether this is `cipher_null`: no encryption. The key is ignored, whatever its length.
    pub fn is_null(&self) -> bool {
        self.cipher == Cipher::Null
    }

    /// Whether sectors may be larger than 512 bytes: not with the IVs `lmk` and `tcw`.
    pub fn takes_large_sectors(&self) -> bool {
        !matches!(self.iv, IvMode::Lmk | IvMode::Tcw)
    }

    /// How many keys the sectors use in turn: 1, or a higher power of two (`aes:64-…`).
    pub fn key_count(&self) -> usize {
        self.key_count
    }

    /// The key lengths that are accepted, in bytes. XTS takes two cipher keys, one after the
    /// other: `aes-xts-*` with 32 bytes is AES-128.
    pub fn key_sizes(&self) -> KeySizes {
        let count = self.key_count;
        let one = match self.mode {
            Mode::Xts => self.cipher.key_sizes().map(|len| 2 * len),
            Mode::Lrw => self.cipher.key_sizes().map(|len| len + 16),
            _ => self.cipher.key_sizes(),
        };
        match self.iv {
            // Version 3 adds a key. A length that is no multiple of the key count identifies it.
            IvMode::Lmk => {
                let seeded = one.iter().filter(|len| *len >= 16).map(|len| (count + 1) * len);
                let seeded = seeded.filter(|len| !len.is_multiple_of(count));
                KeySizes::new(one.iter().map(|len| count * len).chain(seeded).collect())
            }
            IvMode::Tcw => one.map(|len| count * len + self.iv_len() + TCW_WHITENING),
            // The diffuser takes an AES key of the same length.
            IvMode::Elephant => {
                let aes = Cipher::Aes.key_sizes();
                let halves = one.iter().map(|len| count * len).filter(|len| aes.contains(*len));
                KeySizes::new(halves.map(|len| 2 * len).collect())
            }
            _ => one.map(|len| count * len),
        }
    }

    /// The rule by which the kernel refuses `key` if weak keys are forbidden (FIPS mode).
    /// Otherwise the kernel accepts it, so that old volumes open. A new key should break no rule.
    pub fn weak_key_rule(&self, key: &[u8]) -> Option<&'static str> {
        let (keys, _) = cut(self, key)?;
        keys.chunks_exact((keys.len() / self.key_count).max(1)).find_map(|key| self.weakness(key))
    }

    /// As [`weak_key_rule`](Self::weak_key_rule), for one of several keys.
    fn weakness(&self, key: &[u8]) -> Option<&'static str> {
        if self.mode == Mode::Xts {
            let (data, tweak) = key.split_at(key.len() / 2);
            return (data == tweak).then_some("the two halves of an XTS key have to differ");
        }
        match key.as_chunks::<8>().0 {
            [k1, k2, k3, ..] if self.cipher == Cipher::Des3Ede && (k1 == k2 || k2 == k3) => {
                Some("the neighbouring keys of triple DES have to differ")
            }
            _ => None,
        }
    }

    /// Length of a sector's IV in bytes; 0 if there is none.
    pub(crate) fn iv_len(&self) -> usize {
        match self.mode {
            Mode::Ecb => 0,
            Mode::Cbc | Mode::Ctr | Mode::Pcbc => self.cipher.block_len(),
            Mode::Xts | Mode::Lrw => 16,
            Mode::Adiantum | Mode::Hctr2 => WIDE_TWEAK,
        }
    }

    /// The kernel's block size of the cipher and mode together, in bytes.
    pub(crate) fn block_len(&self) -> usize {
        if self.mode == Mode::Ctr { 1 } else { self.cipher.block_len() }
    }

    fn check(self) -> Result<Self, SpecError> {
        match self.broken_rule() {
            Some(rule) => Err(SpecError::Combination { spec: self.text, rule }),
            None => Ok(self),
        }
    }

    /// Why the parts cannot be combined, and what would be accepted.
    fn broken_rule(&self) -> Option<String> {
        let Self { cipher, mode, iv, .. } = *self;
        let of_adiantum = matches!(cipher, Cipher::XChaCha12Aes | Cipher::XChaCha20Aes);
        if of_adiantum != (mode == Mode::Adiantum) {
            return Some(
                "adiantum goes with xchacha12,aes or xchacha20,aes, and these with nothing else"
                    .to_owned(),
            );
        }
        if cipher == Cipher::Null && mode != Mode::Ecb {
            return Some(format!("{cipher} has the mode ecb only"));
        }
        let long_blocks = matches!(mode, Mode::Xts | Mode::Lrw | Mode::Hctr2);
        if long_blocks && cipher.block_len() != 16 {
            return Some(format!("{mode} wants blocks of 16 bytes, {cipher} has 8; use cbc"));
        }
        let wide = self.iv_len() > BLOCK_MAX;
        match iv {
            IvMode::Essiv(hash) => {
                let (len, sizes) = (hash.digest_len(), cipher.key_sizes());
                if !sizes.contains(len) {
                    return Some(format!(
                        "essiv takes the {len} bytes of {hash} as a key, and {cipher} takes \
                         {sizes}; use essiv:sha256"
                    ));
                }
                wide.then(|| {
                    format!("essiv makes IVs of a block, {mode} wants 32 bytes; use plain64")
                })
            }
            IvMode::Eboiv | IvMode::Elephant if self.block_len() != self.iv_len() => {
                Some(format!("{iv} wants a mode whose IV is one block, such as cbc"))
            }
            IvMode::Lmk if mode != Mode::Cbc => Some(
                "lmk corrects the first block of a sector, which only cbc lets it do".to_owned(),
            ),
            IvMode::Tcw if wide => {
                Some(format!("tcw makes IVs of 16 bytes at most, {mode} wants 32; use plain64"))
            }
            _ => None,
        }
    }
}

impl fmt::Display for CipherSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for CipherSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let parts = match text.strip_prefix("capi:") {
            Some(rest) => Parts::from_capi(text, rest)?,
            None => Parts::from_dm_crypt(text)?,
        };
        let cipher = Cipher::parse(parts.cipher)?;
        let mode = Mode::parse(parts.mode)?;
        let iv = match parts.iv {
            // ECB ignores the IV that is named, except that the kernel refuses essiv.
            Some(iv) if mode == Mode::Ecb && iv.split(':').next() == Some("essiv") => {
                let rule = "essiv encrypts an IV, and ecb has none; use cbc".to_owned();
                return Err(SpecError::Combination { spec: text.to_owned(), rule });
            }
            _ if mode == Mode::Ecb => IvMode::Null,
            Some(iv) => IvMode::parse(&iv)?,
            None => return Err(form(text, "an IV is missing after the mode")),
        };
        let key_count = match parts.key_count {
            Some(count) => parse_key_count(count)
                .ok_or_else(|| form(text, "the key count has to be a power of two up to 64"))?,
            // The capi notation has no key count, and loop-AES always has 64 keys.
            None if iv == IvMode::Lmk && parts.is_capi => KEYS_MAX,
            None => 1,
        };
        Self { text: text.to_owned(), cipher, key_count, mode, iv }.check()
    }
}

/// The names inside a specification.
struct Parts<'a> {
    cipher: &'a str,
    key_count: Option<&'a str>,
    mode: &'a str,
    iv: Option<Cow<'a, str>>,
    is_capi: bool,
}

impl<'a> Parts<'a> {
    /// `cipher[:keycount][-mode[-iv[:options]]]`
    fn from_dm_crypt(text: &'a str) -> Result<Self, SpecError> {
        if text.contains('(') {
            return Err(form(text, "parentheses need the prefix capi:"));
        }
        let mut parts = text.splitn(3, '-');
        let first = parts.next().unwrap_or_default();
        let (cipher, key_count) = match first.split_once(':') {
            Some((cipher, count)) => (cipher, Some(count)),
            None => (first, None),
        };
        let (mode, iv) = match (parts.next(), parts.next()) {
            // The original format of dm-crypt named only the cipher and meant CBC.
            (None | Some("plain"), None) if Cipher::parse(cipher) != Ok(Cipher::Null) => {
                ("cbc", Some("plain"))
            }
            (None, _) => ("ecb", None),
            (Some(mode), iv) => (mode, iv),
        };
        Ok(Self { cipher, key_count, mode, iv: iv.map(Cow::Borrowed), is_capi: false })
    }

    /// `mode(cipher)-iv[:options]`, with the prefix `capi:` already removed.
    fn from_capi(text: &'a str, rest: &'a str) -> Result<Self, SpecError> {
        let wanted = "capi: wants mode(cipher)-iv, such as capi:xts(aes)-plain64";
        let (algorithm, iv) = match rest.rsplit_once(")-") {
            Some((algorithm, iv)) => (algorithm, Some(iv)),
            None => (rest.strip_suffix(')').ok_or_else(|| form(text, wanted))?, None),
        };
        let (mode, cipher) = algorithm.split_once('(').ok_or_else(|| form(text, wanted))?;
        let parts =
            Self { cipher, key_count: None, mode, iv: iv.map(Cow::Borrowed), is_capi: true };
        if mode != "essiv" {
            return Ok(parts);
        }
        // essiv(mode(cipher),hash)-plain64 is another way to write mode(cipher)-essiv:hash.
        let inner = cipher.rsplit_once(',').and_then(|(inner, hash)| {
            let (mode, cipher) = inner.strip_suffix(')')?.split_once('(')?;
            let iv = Some(Cow::Owned(format!("essiv:{hash}")));
            (parts.iv.as_deref() == Some("plain64")).then_some(Self { cipher, mode, iv, ..parts })
        });
        inner.ok_or_else(|| form(text, "essiv wants (mode(cipher),hash)-plain64"))
    }
}

fn parse_key_count(text: &str) -> Option<usize> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let count: usize = text.parse().ok().filter(|_| digits)?;
    (count.is_power_of_two() && count <= KEYS_MAX).then_some(count)
}

fn form(spec: &str, reason: &'static str) -> SpecError {
    SpecError::Form { spec: spec.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use super::CipherSpec;
    use crate::{Cipher, IvMode, Mode, SpecError};

    fn parse(text: &str) -> CipherSpec {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn each_notation_names_the_same_parts() {
        for text in ["aes-xts-plain64", "capi:xts(aes)-plain64"] {
            let spec = parse(text);
            assert_eq!(
                (spec.cipher(), spec.mode(), spec.iv()),
                (Cipher::Aes, Mode::Xts, IvMode::Plain64)
            );
            assert_eq!(spec.to_string(), text);
            let again = CipherSpec::from_parts(spec.cipher_name(), spec.cipher_mode());
            assert_eq!(again, Ok(spec));
        }
    }

    #[test]
    fn capi_essiv_is_written_in_two_ways() {
        let spec = parse("capi:essiv(cbc(aes),sha256)-plain64");
        assert_eq!(spec.mode(), Mode::Cbc);
        assert!(matches!(spec.iv(), IvMode::Essiv(hash) if hash.name() == "sha256"));
        assert_eq!(parse("capi:cbc(aes)-essiv:sha256").iv(), spec.iv());
    }

    #[test]
    fn wide_blocks_are_named_as_the_kernel_names_them() {
        for text in ["xchacha12,aes-adiantum-plain64", "capi:adiantum(xchacha12,aes)-plain64"] {
            let spec = parse(text);
            assert_eq!((spec.cipher(), spec.mode()), (Cipher::XChaCha12Aes, Mode::Adiantum));
            assert_eq!(spec.key_sizes().to_string(), "32");
        }
        assert_eq!(parse("aes-hctr2-plain64").key_sizes().to_string(), "16, 24 or 32");
    }

    #[test]
    fn key_sizes_count_all_that_is_cut_from_a_key() {
        for (text, sizes) in [
            ("aes-lrw-benbi", "32, 40 or 48"),
            ("aes:2-xts-plain64", "64, 96 or 128"),
            ("aes:64-cbc-lmk", "1024, 1040, 1536, 1560, 2048 or 2080"),
            ("capi:cbc(aes)-lmk", "1024, 1040, 1536, 1560, 2048 or 2080"),
            ("aes-cbc-tcw", "48, 56 or 64"),
            ("blowfish-cbc-tcw", "28 to 80"),
            ("aes-cbc-elephant", "32, 48 or 64"),
            ("aes-xts-elephant", "64"),
            ("serpent-xts-plain64", "2 to 64 in steps of 2"),
        ] {
            assert_eq!(parse(text).key_sizes().to_string(), sizes, "{text}");
        }
    }

    #[test]
    fn weak_keys_are_told_by_their_rule() {
        let xts = parse("aes-xts-plain64");
        assert!(xts.weak_key_rule(&[7; 64]).is_some_and(|rule| rule.contains("XTS")));
        assert_eq!(xts.weak_key_rule(&(0..64).collect::<Vec<u8>>()), None);
        let des = parse("des3_ede-cbc-plain64");
        let keys = |a: u8, b: u8, c: u8| [[a; 8], [b; 8], [c; 8]].concat();
        assert!(des.weak_key_rule(&keys(1, 1, 2)).is_some_and(|rule| rule.contains("DES")));
        assert!(des.weak_key_rule(&keys(1, 2, 2)).is_some());
        assert_eq!(des.weak_key_rule(&keys(1, 2, 1)), None);
    }

    #[test]
    fn each_of_several_keys_has_to_be_a_good_one() {
        let xts = parse("aes:2-xts-plain64");
        let key = |parts: [u8; 4]| parts.map(|byte| [byte; 32]).concat();
        assert_eq!(xts.weak_key_rule(&key([1, 2, 1, 2])), None);
        assert!(xts.weak_key_rule(&key([1, 2, 3, 3])).is_some());
        // The part of the key that the IV takes does not belong to the XTS key.
        let elephant = parse("aes-xts-elephant");
        assert_eq!(elephant.weak_key_rule(&[[1; 16], [2; 16], [1; 16], [2; 16]].concat()), None);
        assert!(elephant.weak_key_rule(&[[1; 16], [1; 16], [2; 16], [3; 16]].concat()).is_some());
        // Invalid key lengths must not panic.
        for len in [0, 1, 65] {
            assert_eq!(elephant.weak_key_rule(&vec![0; len]), None);
        }
    }

    #[test]
    fn a_bare_cipher_means_cbc_plain_as_in_the_first_dm_crypt() {
        for text in ["aes", "aes-plain"] {
            let spec = parse(text);
            assert_eq!((spec.mode(), spec.iv()), (Mode::Cbc, IvMode::Plain));
        }
    }

    #[test]
    fn the_null_cipher_is_known_by_all_its_names() {
        for text in ["cipher_null-ecb", "cipher_null-ecb-null", "null", "cipher_null"] {
            assert!(parse(text).is_null(), "{text}");
        }
    }

    #[test]
    fn essiv_names_its_hash() {
        let spec = parse("aes-cbc-essiv:sha256");
        assert!(matches!(spec.iv(), IvMode::Essiv(hash) if hash.name() == "sha256"));
        assert_eq!(spec.key_sizes().to_string(), "16, 24 or 32");
    }

    #[test]
    fn xts_takes_two_keys() {
        assert_eq!(parse("aes-xts-plain").key_sizes().to_string(), "32, 48 or 64");
    }

    #[test]
    fn refusals_name_what_would_be_accepted() {
        for (text, words) in [
            ("aess-xts-plain64", "unknown cipher `aess`"),
            ("aes-xtc-plain64", "unknown mode `xtc`: known are xts, cbc"),
            ("aes:3-cbc-plain64", "a power of two up to 64"),
            ("aes:128-cbc-plain64", "a power of two up to 64"),
            ("aes:+2-cbc-plain64", "a power of two up to 64"),
            ("blowfish-xts-plain64", "xts wants blocks of 16 bytes, blowfish has 8"),
            ("aes-adiantum-plain64", "adiantum goes with xchacha12,aes"),
            ("xchacha20,aes-xts-plain64", "adiantum goes with xchacha12,aes"),
            ("aes-hctr2-essiv:sha256", "hctr2 wants 32 bytes"),
            ("aes-ecb-essiv:sha256", "ecb has none; use cbc"),
            ("capi:ecb(aes)-essiv:md5", "ecb has none; use cbc"),
            ("aes-lrw-lmk", "which only cbc lets it do"),
            ("aes-hctr2-tcw", "tcw makes IVs of 16 bytes at most"),
            ("aes-ctr-eboiv", "eboiv wants a mode whose IV is one block"),
            ("capi:essiv(cbc(aes))-plain64", "essiv wants (mode(cipher),hash)-plain64"),
            ("capi:essiv(cbc(aes),sha256)-plain", "essiv wants (mode(cipher),hash)-plain64"),
            ("capi:gcm(aes)-random", "unknown mode `gcm`"),
            ("aes-xts-plain65", "unknown IV `plain65`: known are null, plain"),
            ("aes-xts", "an IV is missing"),
            ("aes-cbc-essiv", "essiv:HASH"),
            ("aes-cbc-essiv:sha257", "unknown hash `sha257`"),
            ("aes-cbc-essiv:sha512", "the 64 bytes of sha512"),
            ("cipher_null-xts-plain64", "has the mode ecb only"),
            ("xts(aes)-plain64", "prefix capi:"),
            ("capi:xts-plain64", "capi: wants mode(cipher)-iv"),
            ("", "unknown cipher ``"),
        ] {
            let error = text.parse::<CipherSpec>().map_err(|error| error.to_string());
            assert!(error.as_ref().is_err_and(|e| e.contains(words)), "{text}: {error:?}");
        }
        assert!(matches!("-".parse::<CipherSpec>(), Err(SpecError::Unknown { .. })));
    }
}
