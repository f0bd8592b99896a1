//! `benchmark` as a process: what it measures, how it reports, what it refuses. The tests check
//! that figures are present and judge none.

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;
use ucrypt_sector::{Cipher, CipherSpec, EssivHash, Kernel, Mode};

/// The shortest time and the smallest buffer: this crate is tested without optimisation.
const QUICK: &[&str] = &["benchmark", "--time", "1", "--buffer-size", "4096"];
const CHEAP_ARGON2: &[&str] = &["--pbkdf-memory", "64", "--iter-time", "1"];

fn benchmark(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ucrypt"));
    command.args(QUICK).args(args).output().expect("ucrypt runs")
}

/// Standard output of a run that has to succeed.
#[track_caller]
fn text(args: &[&str]) -> String {
    let output = benchmark(args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {stderr}");
    assert_eq!(stderr, "", "{args:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[track_caller]
fn json(args: &[&str]) -> Value {
    let text = text(&[args, &["--json"]].concat());
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The message of a run that has to fail before it measures anything.
#[track_caller]
fn refused(args: &[&str]) -> String {
    let output = benchmark(args);
    let stderr = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(1), "{args:?}: {stderr}");
    assert!(output.stdout.is_empty(), "{args:?} measured something");
    stderr
}

#[track_caller]
fn assert_positive(value: &Value) {
    assert!(value.as_f64().is_some_and(|number| number > 0.0), "{value}");
}

/// The figures of a cipher or of memcpy in one direction.
#[track_caller]
fn assert_speed(speed: &Value, has_counter: bool) {
    assert_positive(&speed["one_core_bytes_per_s"]);
    assert_positive(&speed["all_cores_bytes_per_s"]);
    let cycles = &speed["one_core_tsc_cycles_per_byte"];
    if has_counter { assert_positive(cycles) } else { assert!(cycles.is_null(), "{cycles}") }
}

#[track_caller]
fn ciphers(document: &Value) -> Vec<(String, u64, u64)> {
    let number = |value: &Value| value.as_u64().expect("a number");
    let rows = document["ciphers"].as_array().expect("a list");
    let row = |row: &Value| {
        let name = row["cipher"].as_str().expect("a name").to_owned();
        (name, number(&row["key_bits"]), number(&row["sector_bytes"]))
    };
    rows.iter().map(row).collect()
}

#[test]
fn json_has_positive_figures_for_each_cipher_that_was_asked_for() {
    let document = json(&["-c", "aes-xts-plain64", "--cipher", "serpent-cbc-essiv:sha256"]);
    let expected = [
        ("aes-xts-plain64", 512, 512),
        ("aes-xts-plain64", 512, 4096),
        ("serpent-cbc-essiv:sha256", 256, 512),
        ("serpent-cbc-essiv:sha256", 256, 4096),
    ];
    assert_eq!(ciphers(&document), expected.map(|(name, key, size)| (name.to_owned(), key, size)));
    let has_counter = !document["tsc_mhz"].is_null();
    assert_speed(&document["memcpy"], has_counter);
    for row in document["ciphers"].as_array().unwrap() {
        assert_speed(&row["encrypt"], has_counter);
        assert_speed(&row["decrypt"], has_counter);
    }
    assert_positive(&document["cpus"]["count"]);
    assert_eq!(document["buffer_bytes"], 4096);
    assert_eq!(document["kdfs"].as_array().map(Vec::len), Some(0));
}

#[test]
fn key_sector_size_and_kernel_are_those_that_were_asked_for() {
    let args = ["-c", "aes-xts-plain64", "-s", "256", "--sector-size", "1024"];
    let document = json(&[&args[..], &["--kernel", "portable"]].concat());
    assert_eq!(ciphers(&document), [("aes-xts-plain64".to_owned(), 256, 1024)]);
    assert_eq!(document["kernel"], "portable");
    assert_eq!(document["ciphers"][0]["kernel"], "portable");
    let known = document["kernels"].as_array().unwrap();
    assert_eq!(known[0], Kernel::best().name());
    assert_eq!(*known.last().unwrap(), "portable");
}

#[test]
fn without_options_every_cipher_and_the_usual_kdfs_are_measured() {
    let document = json(CHEAP_ARGON2);
    let measured: Vec<CipherSpec> =
        ciphers(&document).iter().map(|(name, ..)| name.parse().unwrap()).collect();
    for cipher in Cipher::ALL.iter().filter(|cipher| **cipher != Cipher::Null) {
        assert!(measured.iter().any(|spec| spec.cipher() == *cipher), "{cipher} is missing");
    }
    let kdfs = document["kdfs"].as_array().unwrap();
    let names: Vec<_> = kdfs.iter().map(|kdf| (&kdf["kdf"], &kdf["hash"])).collect();
    for hash in ["sha1", "sha256", "sha512", "ripemd160", "whirlpool"] {
        assert!(names.contains(&(&"pbkdf2".into(), &hash.into())), "{hash} is missing");
    }
    for argon2 in ["argon2i", "argon2id"] {
        assert!(names.contains(&(&argon2.into(), &Value::Null)), "{argon2} is missing");
    }
}

#[test]
fn a_cipher_without_an_iv_is_measured_with_plain64_as_in_cryptsetup() {
    let document = json(&["-c", "aes-xts", "-s", "256", "--sector-size", "512"]);
    assert_eq!(ciphers(&document), [("aes-xts-plain64".to_owned(), 256, 512)]);
}

#[test]
fn an_iv_for_512_byte_sectors_is_measured_with_these() {
    let document = json(&["-c", "aes-cbc-tcw"]);
    assert_eq!(ciphers(&document), [("aes-cbc-tcw".to_owned(), 512, 512)]);
}

#[test]
fn pbkdf2_is_told_in_iterations_per_second_of_the_hash() {
    let document = json(&["--hash", "sha512", "-s", "512"]);
    let [kdf] = &document["kdfs"].as_array().unwrap()[..] else { panic!("{document}") };
    assert_eq!((&kdf["kdf"], &kdf["hash"]), (&"pbkdf2".into(), &"sha512".into()));
    assert_eq!(kdf["key_bits"], 512);
    assert_positive(&kdf["iterations_per_s"]);
    assert!(ciphers(&document).is_empty());
}

#[test]
fn argon2_is_told_with_costs_inside_the_limits_that_were_given() {
    let args = ["--pbkdf", "argon2id", "--pbkdf-parallel", "1"];
    let document = json(&[&args[..], CHEAP_ARGON2].concat());
    let [kdf] = &document["kdfs"].as_array().unwrap()[..] else { panic!("{document}") };
    assert_eq!(kdf["kdf"], "argon2id");
    assert!(kdf["iterations"].as_u64().unwrap() >= 4, "{kdf}");
    assert!((32..=64).contains(&kdf["memory_kib"].as_u64().unwrap()), "{kdf}");
    assert_eq!((&kdf["threads"], &kdf["iter_time_ms"]), (&1.into(), &1.into()));
}

#[test]
fn the_table_has_a_line_for_memcpy_and_one_for_each_sector_size() {
    let table = text(&["-c", "aes-cbc-essiv:sha256", "--hash", "sha256"]);
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("PBKDF2-sha256 "), "{table}");
    let at = |start: &str| lines.iter().filter(|line| line.starts_with(start)).count();
    assert_eq!(at("memcpy "), 1, "{table}");
    assert_eq!(at("aes-cbc-essiv:sha256 "), 2, "{table}");
    assert!(lines.last().unwrap().contains(Kernel::best().name()), "{table}");
}

#[test]
fn names_that_are_not_known_are_refused_by_name_with_those_that_are() {
    for (args, name, remedy) in [
        (["--cipher", "rot13-xts-plain64"], "rot13", "aes, serpent"),
        (["--cipher", "aes-rot-plain64"], "rot", "xts, cbc"),
        (["--cipher", "aes-xts-rot"], "rot", "plain64"),
        (["--pbkdf", "scrypt"], "scrypt", "argon2id"),
        (["--hash", "crc32"], "crc32", "sha256"),
        (["--kernel", "neon"], "neon", "portable"),
    ] {
        let message = refused(&args);
        assert!(message.contains(name) && message.contains(remedy), "{args:?}: {message}");
    }
}

#[test]
fn numbers_that_break_a_rule_are_refused_with_the_rule() {
    for (args, rule) in [
        ("-c aes-xts-plain64 -s 128", "256, 384 or 512 bits"),
        ("-c aes-xts-plain64 -s 0", "256, 384 or 512 bits"),
        ("-c aes-xts-plain64 -s 8888888888888888888", "256, 384 or 512 bits"),
        ("-c aes-xts-plain64 -s 257", "no multiple of 8 bits"),
        ("-c cast5-xts-plain64", "blocks of 16 bytes"),
        ("-s 256", "--cipher"),
        ("-c aes-xts-plain64 --sector-size 513", "512, 1024, 2048 or 4096"),
        ("-c aes-cbc-tcw --sector-size 4096", "512-byte sectors"),
        ("--hash sha256 -s 0", "8 to 8192 bits"),
        ("--hash sha256 -s 8200", "8 to 8192 bits"),
        ("--pbkdf argon2id --pbkdf-memory 31", "minimum is 32 kilobytes"),
        ("--pbkdf argon2id --pbkdf-memory 4194305", "maximum is 4194304 kilobytes"),
        ("--pbkdf argon2i --pbkdf-parallel 0", "threads cannot be zero"),
        ("--iter-time 0", "1..="),
    ] {
        let message = refused(&args.split_whitespace().collect::<Vec<_>>());
        assert!(message.contains(rule), "{args}: {message}");
    }
}

#[test]
fn a_buffer_that_is_no_whole_number_of_sectors_or_too_large_is_refused() {
    for size in ["0", "512", "5000", "65M", "16E", "99999999999999999999"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ucrypt"));
        let output = command.args(["benchmark", "--buffer-size", size]).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{size}: {message}");
        assert!(message.contains("--buffer-size"), "{size}: {message}");
    }
}

#[test]
fn the_page_about_ciphers_names_every_cipher_mode_and_hash() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/ciphers.md");
    let page = fs::read_to_string(path).unwrap();
    let ciphers = Cipher::ALL.iter().map(|cipher| cipher.name());
    let modes = Mode::ALL.iter().map(|mode| mode.name());
    let hashes = EssivHash::ALL.iter().map(|hash| hash.name());
    let kernels = Kernel::ALL.iter().map(|kernel| kernel.name());
    for name in ciphers.chain(modes).chain(hashes).chain(kernels) {
        assert!(page.contains(&format!("`{name}`")), "docs/ciphers.md does not name {name}");
    }
}
