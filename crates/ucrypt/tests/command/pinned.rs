//! `--header-digest` and `--strict`: headers of images that somebody else can change at any time.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};

use crate::image::{DATA, Image, LUKS1, LUKS2, PASSPHRASE};
use crate::process::{cryptsetup, run, tool};
use crate::scratch::Scratch;
use crate::server::await_that;

fn digest(scratch: &Scratch, path: &Path) -> String {
    let text = run(scratch.ucrypt(&["luksDump", "--header-digest"]).arg(path), b"").text();
    text.trim_end().to_owned()
}

#[test]
fn the_digest_is_that_of_the_first_bytes_and_of_cryptsetups_backup() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let backup = scratch.path("backup");
    let mut save = cryptsetup();
    save.args(["luksHeaderBackup", "--header-backup-file"]).arg(&backup);
    run(save.arg(&image.path), b"").passes();
    let sum = run(tool("sha256sum", "coreutils").arg(&backup), b"").text();
    let (hex, _) = sum.split_once(' ').expect("a digest and a name");
    assert_eq!(digest(&scratch, &image.path), format!("sha256:{hex}"));
    assert_eq!(digest(&scratch, &backup), format!("sha256:{hex}"));
}

#[test]
fn only_the_pinned_header_is_opened_by_every_action() {
    for kind in [LUKS1, LUKS2] {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, kind, DATA);
        let pinned = digest(&scratch, &image.path);
        let with = |action: &[&str], digest: &str| {
            let mut command = scratch.ucrypt(action);
            command.args(["--header-digest", digest, "--strict"]).arg(&image.path);
            command
        };
        let read = run(scratch.ucrypt(&["read"]).arg(&image.path), PASSPHRASE).passes();
        assert!(run(&mut with(&["read"], &pinned), PASSPHRASE).passes() == read);
        run(&mut with(&["open", "--test-passphrase"], &pinned), PASSPHRASE).passes();
        run(with(&["open", "--as", "nbd"], &pinned).arg("volume"), PASSPHRASE).passes();
        run(&mut scratch.ucrypt(&["close", "volume"]), b"").passes();
        run(&mut with(&["write", "--key-file", &image.key.display().to_string()], &pinned), b"x")
            .passes();
        // Another header: cryptsetup adds a key. The passphrase still is the right one.
        let mut add = cryptsetup();
        add.args(["luksAddKey", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"]);
        run(add.arg(&image.path), &[PASSPHRASE, b"\nanother"].concat()).passes();
        let now = digest(&scratch, &image.path);
        assert_ne!(now, pinned);
        for action in [&["read"][..], &["open", "--test-passphrase"], &["write"]] {
            let said = run(&mut with(action, &pinned), PASSPHRASE).refuses(4);
            assert!(said.contains(&now) && said.contains(&pinned), "{said}");
        }
        let mut serve = with(&["serve", "--nbd"], &pinned);
        serve.args([&format!("unix:{}", scratch.path("s").display()), "--header-digest", &pinned]);
        run(&mut serve, PASSPHRASE).exits(1);
        run(&mut with(&["read"], &now), PASSPHRASE).passes();
    }
}

/// Storing flags would make another header of the pinned one.
#[test]
fn no_flags_are_stored_in_a_pinned_header() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let (pinned, before) = (digest(&scratch, &image.path), image.bytes());
    let mut open = scratch.ucrypt(&["open", "--as", "nbd", "--header-digest", &pinned]);
    open.args(["--persistent", "--allow-discards"]).arg(&image.path).arg("volume");
    run(&mut open, PASSPHRASE).exits(1);
    assert!(image.bytes() == before);
}

#[test]
fn a_suspended_volume_takes_its_key_back_only_from_the_pinned_header() {
    for kind in [LUKS1, LUKS2] {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, kind, DATA);
        let pinned = digest(&scratch, &image.path);
        let before = image.bytes();
        let mut open = scratch.ucrypt(&["open", "--as", "nbd", "--header-digest", &pinned]);
        run(open.args(image.with_key()).arg("volume"), b"").passes();
        run(&mut scratch.ucrypt(&["luksSuspend", "volume"]), b"").passes();
        // Another header, as somebody else may put it there: the passphrase still opens it.
        let mut add = cryptsetup();
        add.args(["luksAddKey", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"]);
        run(add.arg(&image.path), &[PASSPHRASE, b"\nanother"].concat()).passes();
        let now = digest(&scratch, &image.path);
        assert_ne!(now, pinned);
        let resume = || scratch.ucrypt(&["luksResume", "volume"]);
        // Before a passphrase is read.
        for options in [&[][..], &["--key-file", "/no/such/key"]] {
            let said = run(resume().args(options), PASSPHRASE).refuses(4);
            assert!(said.contains(&now) && said.contains(&pinned), "{said}");
        }
        fs::write(&image.path, &before).expect("the header is back");
        run(&mut resume(), PASSPHRASE).passes();
        run(&mut scratch.ucrypt(&["close", "volume"]), b"").passes();
    }
}

/// A file that answers the second read of any of its sectors with another header: nbdkit below
/// nbdfuse, with a script that counts the reads.
struct Changing {
    child: Child,
    file: std::path::PathBuf,
}

impl Changing {
    fn start(scratch: &Scratch, first: &Path, later: &Path) -> Self {
        let file = scratch.file("changing", b"");
        let seen = scratch.path("seen");
        fs::create_dir(&seen).expect("a directory");
        let len = fs::metadata(first).expect("an image").len();
        // Each request covers whole blocks of 4096 bytes; the first byte decides.
        let pread = format!(
            "pread=if mkdir {seen}/$4 2>/dev/null; then f={first}; else f={later}; fi; \
             dd if=$f iflag=skip_bytes,count_bytes skip=$4 count=$3 status=none",
            seen = seen.display(),
            first = first.display(),
            later = later.display()
        );
        let mut fuse = tool("nbdfuse", "libnbd-bin");
        fuse.arg(&file).args(["--command", "nbdkit", "-s", "--exit-with-parent", "eval"]);
        fuse.arg(format!("get_size=echo {len}")).arg(pread);
        let child = fuse.stdin(Stdio::null()).spawn().expect("nbdfuse starts");
        await_that("the changing file is there", || {
            fs::metadata(&file).is_ok_and(|found| found.len() == len)
        });
        Self { child, file }
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        let _ = run(tool("fusermount3", "fuse3").arg("-u").arg(&self.file), b"");
        let _ = self.child.wait();
    }
}

#[test]
fn a_header_that_changes_after_it_was_read_is_not_looked_at_again() {
    let scratch = Scratch::new();
    let small = ["--luks2-metadata-size", "16k", "--luks2-keyslots-size", "256k"];
    let [good, evil] = ["good", "evil"].map(|name| {
        let path = scratch.sparse(name, 2 << 20);
        let mut format = cryptsetup();
        format.args(["luksFormat", "-q", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"]);
        run(format.args(small).args(["--offset", "2048"]).arg(&path), PASSPHRASE).passes();
        path
    });
    let pinned = digest(&scratch, &good);
    let changing = Changing::start(&scratch, &good, &evil);
    // Direct: the page cache would answer the second read.
    let mut test = scratch.ucrypt(&["open", "--test-passphrase", "--header-digest", &pinned]);
    run(test.arg(&changing.file), PASSPHRASE).passes();
    let seen = fs::read_dir(scratch.path("seen")).expect("a directory").count();
    assert!(seen > 0, "the image was not read through the changing file");
    // Whoever reads again now gets the other header.
    let mut test = scratch.ucrypt(&["open", "--test-passphrase", "--header-digest", &pinned]);
    let again = run(test.arg(&changing.file), PASSPHRASE);
    assert_eq!(again.code(), Some(4), "{}", again.stderr);
}

#[test]
fn what_luks_format_does_not_make_is_refused_strictly() {
    let scratch = Scratch::new();
    let format = |options: &[&str]| {
        let path = scratch.sparse(&format!("image{}", options.len()), 20 << 20);
        // cryptsetup has no null cipher where there is no device mapper.
        let mut format = scratch.ucrypt(&["luksFormat", "-q"]);
        format.args(["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"]);
        run(format.args(options).arg(&path), PASSPHRASE).passes();
        path
    };
    let test = |options: &[&str], path: &Path, input: &[u8]| {
        let mut test = scratch.ucrypt(&["open", "--test-passphrase"]);
        run(test.args(options).arg(path), input)
    };
    let null = format(&["-c", "cipher_null-ecb", "-s", "256"]);
    test(&[], &null, PASSPHRASE).passes();
    let said = test(&["--strict"], &null, PASSPHRASE).refuses(1);
    assert!(said.contains("null cipher"), "{said}");
    let plain = format(&[]);
    test(&["--strict"], &plain, PASSPHRASE).passes();
    let mut flags = scratch.ucrypt(&["token", "add", "--key-description", "x"]);
    run(flags.arg(&plain), b"").passes();
    test(&["--strict"], &plain, PASSPHRASE).passes();
}
