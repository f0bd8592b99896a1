//! The key of a plain volume, checked with cryptsetup's own vectors. Also checks that no option is
//! without effect.

use std::collections::BTreeSet;
use std::path::Path;

use ucrypt_testkit::Random;

use crate::process::{Ran, run};
use crate::scratch::Scratch;

const LEN: usize = 64 << 10;

/// The key file of the vectors: 80 bytes, first a line, then bytes of all kinds.
const KEY_FILE: &[u8] = b"0123456789abcdef\n\x01\x00\x03\xff\xff\r\xff\xff\n\r \
2352j3rkjhadcfasc823rqaw7e1 3dq sdq3d 2dkjqw3h2=====";

/// How the passphrase is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// Standard input, as a line.
    Line(&'static [u8]),
    /// Standard input, with `--key-file -`.
    Dash(&'static [u8]),
    /// A key file with this content.
    File(&'static [u8]),
}
use By::{Dash, File, Line};

const A_33_B_44: &[u8] =
    b"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaabbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
const ZEROES: &[u8] = &[0; 256];
const DIGITS: &[u8] = b"0123456789abcdef";

/// Hash, key length in bits, passphrase, `--keyfile-size`, `--keyfile-offset`, and the key that
/// dm-crypt gets; an empty key means failure.
type Vector = (&'static str, u32, By, Option<u32>, Option<u32>, &'static str);

/// `tests/password-hash-test` of cryptsetup (commit ff364347), in its order. [`ZEROES`] stand for
/// /dev/zero.
#[rustfmt::skip]
const VECTORS: &[Vector] = &[
    ("ripemd160", 0, Line(b"xxx"), None, None, "aeb26d1f69eb6dddfb9381eed4d7299f091e99aa5d3ff06866d4ce9f620f7aca"),
    ("ripemd160", 256, Line(b"xxx"), None, None, "aeb26d1f69eb6dddfb9381eed4d7299f091e99aa5d3ff06866d4ce9f620f7aca"),
    ("ripemd160", 128, Line(b"xxx"), None, None, "aeb26d1f69eb6dddfb9381eed4d7299f"),
    ("sha1", 256, Line(b"xxx"), None, None, "b60d121b438a380c343d5ec3c2037564b82ffef30b1e0a6ad9af7a73aa91c197"),
    ("sha1", 128, Line(b"xxx"), None, None, "b60d121b438a380c343d5ec3c2037564"),
    ("sha256", 256, Line(b"xxx"), None, None, "cd2eb0837c9b4c962c22d2ff8b5441b7b45805887f051d39bf133b583baf6860"),
    ("sha256", 128, Line(b"xxx"), None, None, "cd2eb0837c9b4c962c22d2ff8b5441b7"),
    ("sha256", 0, Dash(b"xxx"), None, None, "cd2eb0837c9b4c962c22d2ff8b5441b7b45805887f051d39bf133b583baf6860"),
    ("sha256", 256, Dash(b"xxx\n"), None, None, "042aea10a0f14f2d391373599be69d53a75dde9951fc3d3cd10b6100aa7a9f24"),
    ("sha256", 128, Dash(A_33_B_44), None, None, "2a42b97084779dcedf2c66405c5d296c"),
    ("sha256", 256, Line(b"xxx"), None, None, "cd2eb0837c9b4c962c22d2ff8b5441b7b45805887f051d39bf133b583baf6860"),
    ("sha256", 0, Line(b"xxx\n"), None, None, "cd2eb0837c9b4c962c22d2ff8b5441b7b45805887f051d39bf133b583baf6860"),
    ("ripemd160", 256, File(ZEROES), None, None, "0000000000000000000000000000000000000000000000000000000000000000"),
    ("sha256", 256, File(ZEROES), None, None, "0000000000000000000000000000000000000000000000000000000000000000"),
    ("unknown*", 256, File(ZEROES), None, None, "0000000000000000000000000000000000000000000000000000000000000000"),
    ("sha256:20", 256, Line(b"xxx"), None, None, "cd2eb0837c9b4c962c22d2ff8b5441b7b4580588000000000000000000000000"),
    ("sha256:32", 256, Line(b"xxx"), None, None, "cd2eb0837c9b4c962c22d2ff8b5441b7b45805887f051d39bf133b583baf6860"),
    ("sha256:", 256, Line(b"xxx"), None, None, ""),
    ("sha256:xx", 256, Line(b"xxx"), None, None, ""),
    ("ripemd160", 256, File(KEY_FILE), None, None, "303132333435363738396162636465660a010003ffff0dffff0a0d2032333532"),
    ("sha256", 256, File(KEY_FILE), None, None, "303132333435363738396162636465660a010003ffff0dffff0a0d2032333532"),
    ("sha256", 128, File(KEY_FILE), None, None, "30313233343536373839616263646566"),
    ("sha256", 512, File(KEY_FILE), None, None, "303132333435363738396162636465660a010003ffff0dffff0a0d20323335326a33726b6a686164636661736338323372716177376531203364712073647133"),
    ("plain", 128, Line(ZEROES), Some(16), None, "00000000000000000000000000000000"),
    ("plain", 128, Line(ZEROES), Some(17), None, "00000000000000000000000000000000"),
    ("plain", 128, Line(KEY_FILE), Some(14), None, "30313233343536373839616263640000"),
    ("plain", 128, Dash(KEY_FILE), None, None, "30313233343536373839616263646566"),
    ("plain", 128, Dash(KEY_FILE), Some(14), None, "30313233343536373839616263646566"),
    ("sha256", 128, Dash(KEY_FILE), None, None, "f3b827c8a6f159ad8c8ed5bd5ab3f8c5"),
    ("sha256", 128, Dash(KEY_FILE), Some(0), None, "f3b827c8a6f159ad8c8ed5bd5ab3f8c5"),
    ("sha256", 128, Dash(KEY_FILE), Some(80), None, "f3b827c8a6f159ad8c8ed5bd5ab3f8c5"),
    ("sha256", 128, Dash(KEY_FILE), Some(14), None, "a82c9227cc54c7475620ce85ba1fca1e"),
    ("sha256", 128, Dash(KEY_FILE), Some(14), Some(2), "7df3f4a41a33805596be85c781cac3b4"),
    ("sha256", 128, Dash(KEY_FILE), Some(40), Some(40), "ebbe65a178e886ddbb778e0a5538db72"),
    ("plain", 256, Line(b"xxxxxxxx"), None, None, "7878787878787878000000000000000000000000000000000000000000000000"),
    ("plain:2", 256, Line(b"xxxxxxxx"), None, None, "7878000000000000000000000000000000000000000000000000000000000000"),
    ("plain:9", 256, Line(b"xxxxxxxx"), None, None, ""),
    ("sha256", 128, Line(KEY_FILE), Some(14), None, "a82c9227cc54c7475620ce85ba1fca1e"),
    ("sha256:14", 128, Line(KEY_FILE), Some(14), None, "a82c9227cc54c7475620ce85ba1f0000"),
    ("sha256", 128, Line(DIGITS), Some(16), None, "9f9f5111f7b27a781f1f1ddde5ebc2dd"),
    ("sha256", 128, Line(DIGITS), Some(4), None, "1be2e452b46d7a0d9656bbb1f768e824"),
    ("sha256", 128, Line(b"0123"), Some(4), None, "1be2e452b46d7a0d9656bbb1f768e824"),
    ("sha1", 256, Line(DIGITS), None, None, "fe5567e8d769550852182cdf69d74bb16dff8e295e4b6077d6d3fc73e7fe33b0"),
    ("sha224", 256, Line(DIGITS), None, None, "7330215f6741fd2bacbd3658681a70f65e2e90a02887989018974ce83775a568"),
    ("sha256", 256, Line(DIGITS), None, None, "9f9f5111f7b27a781f1f1ddde5ebc2dd2b796bfc7365c9c28b548e564176929f"),
    ("sha384", 256, Line(DIGITS), None, None, "fc6304023487cb6f85ac80e47817760c6b153c02da46c6429649e963b031e525"),
    ("sha512", 256, Line(DIGITS), None, None, "1c043fbe4bca7c7920dae536c680fd44c15d71ec12cd82a2a9491b0043b57f4d"),
    ("ripemd160", 256, Line(DIGITS), None, None, "edf4e38018cd71dd489b9c1e54b32054eb42dfad9fdcc22d629d756391a24982"),
    ("whirlpool", 256, Line(DIGITS), None, None, "b21fc274d47d79ba45f94d67077f0846f75a7acc1a4dc560eacca300179cc142"),
    ("sha3-224", 256, Line(DIGITS), None, None, "bbb7d56cc80a8c80e907f7d9240edc0be264aa173266b30918bc1065d59a9388"),
    ("sha3-256", 256, Line(DIGITS), None, None, "a5df4caae9fdb5dbacf667075b709a2f30a115c43168af332062b42d4b0da01f"),
    ("sha3-384", 256, Line(DIGITS), None, None, "56f351f754c418892eab4009e5f85c8d5436a591014503563e9395b895526413"),
    ("sha3-512", 256, Line(DIGITS), None, None, "59d06155d25dffdb982729de8dce9d7855ca094d8bab8124b347c40668477056"),
    ("sm3", 256, Line(DIGITS), None, None, "a34fdd8e843802b31a262dce5b1f501bed68ef81520de14b39657aecffaf8a86"),
    ("stribog512", 256, Line(DIGITS), None, None, "ab1284a64c2325c0ad52494e696df9aa9b92e701605a9a1258b58be08e8240ea"),
];

/// The plaintext of the image under a key that a table line names.
fn under_key(scratch: &Scratch, image: &Path, cipher: &str, key: &str) -> Vec<u8> {
    let line = format!("0 {} crypt {cipher} {key} 0 {} 0", LEN / 512, image.display());
    run(scratch.ucrypt(&["read", "--table", &line]).arg(image), b"").passes()
}

#[test]
fn the_key_is_the_one_that_cryptsetups_own_vectors_give() {
    let scratch = Scratch::new();
    let image = scratch.file("image", &Random::new(61).bytes(LEN));
    for vector @ (hash, bits, by, size, offset, key) in VECTORS {
        let cipher = if *bits > 256 { "aes-xts-plain" } else { "aes-cbc-essiv:sha256" };
        let mut read = scratch.ucrypt(&["read", "--type", "plain", "--cipher", cipher]);
        read.args(["--hash", hash, "--key-size", &bits.to_string()]);
        let mut option = |name: &str, value: &Option<u32>| {
            if let Some(value) = value {
                read.args([name, &value.to_string()]);
            }
        };
        option("--keyfile-size", size);
        option("--keyfile-offset", offset);
        let input = match by {
            Line(input) => input,
            Dash(input) => {
                read.args(["--key-file", "-"]);
                input
            }
            File(content) => {
                read.arg("--key-file").arg(scratch.file("key", content));
                &b""[..]
            }
        };
        let ran = run(read.arg(&image), input);
        if key.is_empty() {
            ran.refuses(1);
        } else {
            let found = ran.passes();
            assert!(found == under_key(&scratch, &image, cipher, key), "another key: {vector:?}");
        }
    }
}

/// Options that change how the action works, not its result.
const MANNERS: &[&str] = &[
    "ask-password",
    "help",
    "verbose",
    "debug",
    "batch-mode",
    "tries",
    "timeout",
    "readonly",
    "direct",
    "disable-keyring",
    "disable-locks",
    "test-args",
    "dispatch",
    "cipher-model",
    "perf-no_read_workqueue",
    "perf-no_write_workqueue",
    "perf-same_cpu_crypt",
    "perf-submit_from_crypt_cpus",
    "perf-high_priority",
];

const TABLE: &str = "0 128 crypt aes-xts-plain64 ffffffffffffffffffffffffffffffff00000000000000000000000000000000 0 x 0";

/// A value for every option of `read` that differs from the volume's value without it.
fn value(scratch: &Scratch, option: &str) -> Vec<String> {
    let file = |name: &str, content: &[u8]| vec![scratch.file(name, content).display().to_string()];
    let text = |value: &str| vec![value.to_owned()];
    match option {
        "allow-discards" | "strict" | "token-only" | "verify-passphrase" => Vec::new(),
        "header-digest" => text(&format!("sha256:{}", "5".repeat(64))),
        // Has an effect only beside another option.
        "iv-large-sectors" => ["--sector-size", "4096"].map(str::to_owned).to_vec(),
        "offset" | "key-size" => text("512"),
        "length" => text("1024"),
        "type" => text("luks2"),
        "key-file" => file("another-key", &Random::new(62).bytes(64)),
        "keyfile-size" => text("5"),
        "keyfile-offset" | "key-slot" | "token-id" => text("1"),
        "token-type" => text("luks2-keyring"),
        "key-description" | "volume-key-keyring" => text("no key of this name"),
        "volume-key-file" => file("volume-key", &Random::new(63).bytes(64)),
        "header" => file("header", b"no header"),
        "backend" => text("mem:64K"),
        "memory" => text("32M"),
        "poll" => text("off"),
        "cipher" => text("aes-cbc-plain64"),
        "hash" => text("sha512"),
        "data-offset" | "skip" => text("8"),
        "size" => text("64"),
        "sector-size" => text("4096"),
        "table" => text(TABLE),
        "table-file" => file("table", TABLE.as_bytes()),
        other => panic!("no value for --{other}: say one, so that its effect is tested"),
    }
}

fn options_of_read(scratch: &Scratch) -> BTreeSet<String> {
    let help = run(&mut scratch.ucrypt(&["read", "--help"]), b"").text();
    let long = |line: &str| {
        let (_, rest) = line.trim_start().strip_prefix('-').map(|_| line)?.split_once("--")?;
        let name = rest.split([' ', '=', '[']).next()?;
        (line.len() - line.trim_start().len() < 8).then(|| name.to_owned())
    };
    let options: BTreeSet<_> = help.lines().filter_map(long).collect();
    assert!(options.len() > 30 && options.contains("hash"), "{options:?}");
    options
}

#[test]
fn an_option_changes_what_is_read_or_is_refused_or_warned_of() {
    let scratch = Scratch::new();
    let image = scratch.file("image", &Random::new(64).bytes(LEN));
    let key = scratch.file("key", &Random::new(65).bytes(64)).display().to_string();
    let passphrase =
        b"passphrase\nand another line of it, and more than the key of 64 bytes takes\n";
    for given in [
        &["--type", "plain"][..],
        &["--type", "plain", "--key-file", "-"],
        &["--type", "plain", "--key-file", "-", "--hash", "plain"],
        &["--type", "plain", "--key-file", &key],
        &["--type", "plain", "--volume-key-file", &key],
        &["--cipher", "none"],
    ] {
        let read = |options: &[String]| -> Ran {
            let mut read = scratch.ucrypt(&["read"]);
            // Replace an option that is given already.
            run(read.args(given).args(options).arg(&image), passphrase)
        };
        let without = read(&[]).passes();
        for option in options_of_read(&scratch) {
            let is_given = given.contains(&&*format!("--{option}"));
            if MANNERS.contains(&option.as_str()) || is_given {
                continue;
            }
            let mut line = vec![format!("--{option}")];
            let value = value(&scratch, &option);
            let alone =
                if option == "iv-large-sectors" { read(&value).stdout } else { without.clone() };
            line.extend(value);
            let ran = read(&line);
            let refused = ran.code() != Some(0);
            let warned = ran.stderr.contains(&format!("--{option}"));
            assert!(
                refused || warned || ran.stdout != alone,
                "--{option} has no effect beside {given:?}, and nobody says so: {}",
                ran.stderr
            );
            assert!(!refused || ran.stdout.is_empty() && !ran.stderr.contains("panicked"));
        }
    }
}

#[test]
fn what_has_no_effect_is_refused_by_name_before_a_passphrase_is_read() {
    let scratch = Scratch::new();
    let image = scratch.file("image", &Random::new(66).bytes(LEN));
    for (line, words) in [
        (&["read", "--allow-discards"][..], "--allow-discards has no effect on read"),
        (&["write", "--allow-discards", "--type", "plain"], "no effect on write"),
        (&["read", "--memory", "32M"], "--memory has no effect on read"),
        (&["read", "--hash", "sha1"], "--hash describes a plain volume"),
        (&["read", "--data-offset", "8"], "--data-offset describes a plain volume"),
        (&["read", "--key-slot", "1", "--type", "plain"], "no effect on a plain volume"),
        (&["read", "--header", "x", "--type", "plain"], "no effect on a plain volume"),
        (&["read", "--key-file", "x", "--cipher", "none"], "without encryption"),
        (&["read", "--skip", "1", "--cipher", "none"], "without encryption"),
        (&["read", "--key-file", "x", "--volume-key-file", "y"], "beside --volume-key-file"),
        (&["read", "--token-only", "--volume-key-keyring", "y"], "beside --volume-key-keyring"),
        (&["read", "--type", "plain", "--volume-key-keyring", "y"], "no effect on a plain volume"),
        (&["read", "--type", "plain", "--iv-large-sectors"], "--sector-size above 512"),
        (&["open", "--test-passphrase", "--as", "nbd"], "--as has no effect on --test-passphrase"),
        (&["open", "--test-passphrase", "--type", "plain"], "needs a LUKS header"),
        (&["open", "--as", "fuse", "--partscan"], "only with --as loop"),
        (&["open", "--as", "nbd", "--ublk-wait"], "only with --as ublk"),
        (&["serve", "--nbd", "unix:x", "--fuse-transport", "classic"], "--fuse"),
        (&["luksDump", "--key-slot", "1"], "--dump-volume-key"),
        (&["luksDump", "--key-file", "x"], "--dump-volume-key"),
        (&["luksFormat", "-q", "--use-random", "--volume-key-file", "x"], "--volume-key-file"),
    ] {
        let mut command = scratch.ucrypt(line);
        // Standard input is empty: a command that read a passphrase would report that instead.
        let ran = run(command.arg(&image), b"").exits(1);
        assert!(ran.stderr.contains(words), "{line:?}: {}", ran.stderr);
        assert!(!ran.stderr.contains("nothing to read"), "{line:?}: {}", ran.stderr);
    }
}
