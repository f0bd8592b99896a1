//! LUKS images of every kind under test, and their decryption by independent programs.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use ucrypt_testkit::Random;

use crate::process::{cryptsetup, python, run};
use crate::scratch::Scratch;

pub(crate) const PASSPHRASE: &[u8] = b"correct horse battery staple";

/// Bytes of data in an image, if a test needs no more.
pub(crate) const DATA: u64 = 1 << 20;

/// A kind of LUKS volume.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    /// luks1 or luks2
    pub(crate) version: u32,
    pub(crate) cipher: &'static str,
    pub(crate) key_bits: u32,
    pub(crate) sector: u32,
    pub(crate) pbkdf: &'static str,
    pub(crate) hash: &'static str,
    pub(crate) detached: bool,
}

const XTS: &str = "aes-xts-plain64";
const ESSIV: &str = "aes-cbc-essiv:sha256";

const fn luks1(cipher: &'static str, key_bits: u32, hash: &'static str) -> Kind {
    Kind { version: 1, cipher, key_bits, sector: 512, pbkdf: "pbkdf2", hash, detached: false }
}

const fn luks2(cipher: &'static str, key_bits: u32, sector: u32, pbkdf: &'static str) -> Kind {
    Kind { version: 2, cipher, key_bits, sector, pbkdf, hash: "sha256", detached: false }
}

pub(crate) const LUKS1: Kind = luks1(XTS, 512, "sha256");
pub(crate) const LUKS2: Kind = luks2(XTS, 512, 4096, "pbkdf2");
pub(crate) const LUKS2_ARGON2: Kind = luks2(XTS, 256, 512, "argon2id");
pub(crate) const LUKS2_512: Kind = luks2(XTS, 512, 512, "pbkdf2");

/// Both versions, all ciphers, key lengths, sector sizes, KDFs, hashes and places of the header.
pub(crate) const KINDS: [Kind; 15] = [
    luks1(XTS, 256, "sha1"),
    LUKS1,
    luks1(ESSIV, 128, "sha512"),
    luks1(ESSIV, 256, "ripemd160"),
    Kind { detached: true, ..luks1(XTS, 512, "whirlpool") },
    LUKS2_ARGON2,
    LUKS2_512,
    luks2(XTS, 256, 4096, "pbkdf2"),
    luks2(XTS, 512, 4096, "argon2id"),
    luks2(XTS, 512, 2048, "argon2i"),
    luks2(ESSIV, 128, 512, "pbkdf2"),
    luks2(ESSIV, 256, 512, "argon2id"),
    luks2(ESSIV, 256, 4096, "argon2id"),
    Kind { detached: true, ..luks2(XTS, 512, 4096, "argon2id") },
    Kind { detached: true, ..luks2(ESSIV, 256, 512, "pbkdf2") },
];

impl Kind {
    /// Where the data starts, in bytes.
    pub(crate) fn data_offset(self) -> u64 {
        match (self.detached, self.version) {
            (true, _) => 0,
            (false, 1) => 2 << 20,
            (false, _) => 16 << 20,
        }
    }

    /// `luksFormat` and its options, the same for cryptsetup and the command.
    pub(crate) fn format_arguments(self) -> Vec<String> {
        let mut line = vec!["luksFormat".into(), "--batch-mode".into()];
        let mut option = |name: &str, value: String| line.extend([format!("--{name}"), value]);
        option("type", format!("luks{}", self.version));
        option("cipher", self.cipher.into());
        option("key-size", self.key_bits.to_string());
        option("hash", self.hash.into());
        option("offset", (self.data_offset() / 512).to_string());
        option("pbkdf", self.pbkdf.into());
        if self.version == 2 {
            option("sector-size", self.sector.to_string());
        }
        if self.pbkdf == "pbkdf2" {
            option("pbkdf-force-iterations", "1000".into());
        } else {
            option("pbkdf-force-iterations", "4".into());
            option("pbkdf-memory", "64".into());
            option("pbkdf-parallel", "2".into());
        }
        line
    }
}

/// An image and its key.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) kind: Kind,
    pub(crate) path: PathBuf,
    pub(crate) header: Option<PathBuf>,
    /// A file with the passphrase, without a newline.
    pub(crate) key: PathBuf,
}

impl Image {
    /// An image of random bytes where the data will be; not formatted yet.
    pub(crate) fn blank(scratch: &Scratch, kind: Kind, data: u64) -> Self {
        let path = scratch.sparse("image", kind.data_offset() + data);
        let file = fs::File::options().write(true).open(&path).expect("the image");
        let bytes = Random::new(data).bytes(data.min(DATA) as usize);
        file.write_all_at(&bytes, kind.data_offset()).expect("random data");
        let header = kind.detached.then(|| scratch.path("header"));
        let key = scratch.file("passphrase", PASSPHRASE);
        Self { kind, path, header, key }
    }

    /// An image that cryptsetup made.
    pub(crate) fn by_cryptsetup(scratch: &Scratch, kind: Kind, data: u64) -> Self {
        let image = Self::blank(scratch, kind, data);
        let mut command = cryptsetup();
        command.args(kind.format_arguments()).arg("--key-file").arg(&image.key);
        run(command.args(image.arguments()), b"").passes();
        image
    }

    /// An image that the command made.
    pub(crate) fn by_ucrypt(scratch: &Scratch, kind: Kind, data: u64) -> Self {
        let image = Self::blank(scratch, kind, data);
        let mut command = scratch.ucrypt(&kind.format_arguments());
        command.arg("--key-file").arg(&image.key);
        run(command.args(image.arguments()), b"").passes();
        image
    }

    /// The image and where its header is: the end of a command line.
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        let mut line = vec![self.path.clone().into_os_string()];
        if let Some(header) = &self.header {
            line.extend(["--header".into(), header.clone().into_os_string()]);
        }
        line
    }

    /// [`Image::arguments`] with the key file.
    pub(crate) fn with_key(&self) -> Vec<OsString> {
        let mut line = self.arguments();
        line.extend(["--key-file".into(), self.key.clone().into_os_string()]);
        line
    }

    /// Where the header is.
    pub(crate) fn header_path(&self) -> &Path {
        self.header.as_deref().unwrap_or(&self.path)
    }

    /// Every byte of the image and of its detached header.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = fs::read(&self.path).expect("the image is read");
        if let Some(header) = &self.header {
            bytes.extend(fs::read(header).expect("the header is read"));
        }
        bytes
    }

    /// `ucrypt ACTION IMAGE --key-file …`
    pub(crate) fn ucrypt(&self, scratch: &Scratch, action: &str) -> Command {
        let mut command = scratch.ucrypt(&[action]);
        command.args(self.with_key());
        command
    }

    /// The plaintext as Python's `cryptography` package decrypts it, with the volume key from
    /// cryptsetup.
    pub(crate) fn decrypted_by_python(&self, scratch: &Scratch) -> Vec<u8> {
        let volume_key = scratch.path("volume-key");
        // cryptsetup writes the key to a new file only.
        let _ = fs::remove_file(&volume_key);
        let mut dump = cryptsetup();
        dump.args(["luksDump", "--dump-volume-key", "--batch-mode", "--key-file"]);
        dump.arg(&self.key).arg("--volume-key-file").arg(&volume_key);
        run(dump.arg(self.header_path()), b"").passes();
        let (offset, sector) = (self.kind.data_offset(), self.kind.sector);
        decrypt(&self.path, &volume_key, self.kind.cipher, &[offset, sector.into()])
    }
}

/// The plaintext as Python's `cryptography` package decrypts it. `numbers` are: the first byte in
/// the image; the bytes of an encryption sector; and for the IV, the number of the first 512-byte
/// sector and, if the IV counts other sectors, their bytes.
pub(crate) fn decrypt(image: &Path, key: &Path, cipher: &str, numbers: &[u64]) -> Vec<u8> {
    let script = include_str!("scripts/decrypt.py");
    let mut python = python(script, "cryptography", "python3-cryptography");
    python.args([image, key]).arg(cipher).args(numbers.iter().map(u64::to_string));
    run(&mut python, b"").passes()
}
