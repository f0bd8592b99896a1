//! Images that cryptsetup makes, and programs that judge.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;
use ucrypt_lib::{FormatOptions, Key, KeyDerivation, OpenOptions, Volume};

pub(crate) const PASSPHRASE: &[u8] = b"correct horse battery staple";
pub(crate) const KEY: Key<'static> = Key::Passphrase(PASSPHRASE);

/// An image in a directory of its own.
pub(crate) struct Image {
    pub(crate) dir: TempDir,
    pub(crate) path: PathBuf,
}

impl Image {
    /// An image without a header, which has `data` bytes behind 16 MiB.
    pub(crate) fn blank(data: u64) -> Self {
        let dir = tempfile::Builder::new().prefix("ucrypt-lib-").tempdir().expect("a directory");
        let path = dir.path().join("image");
        File::create(&path).and_then(|file| file.set_len((16 << 20) + data)).expect("an image");
        Self { dir, path }
    }

    /// A LUKS2 volume of this many bytes.
    pub(crate) fn new(data: u64) -> Self {
        let image = Self::blank(data);
        quick().format(&image.path, KEY).expect("formatted");
        image
    }

    /// A volume that cryptsetup makes with further options.
    pub(crate) fn by_cryptsetup(data: u64, options: &[&str]) -> Self {
        let image = Self::blank(data);
        let key = image.file("key", PASSPHRASE);
        let mut format = tool("cryptsetup", "cryptsetup-bin");
        format.args(["luksFormat", "--batch-mode", "--pbkdf-force-iterations", "1000"]);
        format.args(["--pbkdf", "pbkdf2"]).args(options).arg("--key-file").arg(key);
        passes(format.arg(&image.path));
        image
    }

    pub(crate) fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, content).expect("written");
        path
    }

    pub(crate) fn open(&self) -> Volume {
        OpenOptions::new().open(&self.path, KEY).expect("it opens")
    }

    /// The volume key, by cryptsetup.
    pub(crate) fn volume_key(&self) -> PathBuf {
        let (key, out) = (self.file("key", PASSPHRASE), self.dir.path().join("volume-key"));
        let _ = fs::remove_file(&out);
        let mut dump = tool("cryptsetup", "cryptsetup-bin");
        dump.args(["luksDump", "--dump-volume-key", "--batch-mode", "--key-file"]).arg(key);
        passes(dump.arg("--volume-key-file").arg(&out).arg(&self.path));
        out
    }

    /// What is behind `offset` in the image, as Python's `cryptography` decrypts it.
    pub(crate) fn decrypted(&self, cipher: &str, offset: u64, sector: u32) -> Vec<u8> {
        let script =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../ucrypt/tests/command/scripts/decrypt.py");
        let mut python = tool("/usr/bin/python3", "python3 python3-cryptography");
        python.arg(script).arg(&self.path).arg(self.volume_key()).arg(cipher);
        passes(python.args([offset.to_string(), sector.to_string()])).stdout
    }
}

/// A header that costs nothing to open.
pub(crate) fn quick() -> FormatOptions {
    FormatOptions::new().key_derivation(KeyDerivation::pbkdf2().iterations(1000))
}

/// A program of a package.
pub(crate) fn tool(program: &str, package: &str) -> Command {
    let places = ["/usr/bin", "/usr/sbin", "/sbin", "/bin", "/usr/local/bin"];
    let is_there = Path::new(program).is_absolute() && Path::new(program).exists()
        || places.iter().any(|place| Path::new(place).join(program).exists());
    assert!(is_there, "{program} is missing: apt-get install {package}");
    Command::new(program)
}

/// Runs a program that has to succeed.
#[track_caller]
pub(crate) fn passes(command: &mut Command) -> Output {
    let output = command.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {said}", output.status);
    output
}

/// `len` random bytes.
pub(crate) fn random(seed: u64, len: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut bytes = vec![0; len];
    random.fill(&mut bytes);
    bytes
}
