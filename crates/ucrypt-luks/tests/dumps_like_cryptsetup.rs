//! Compares `luksDump` of this crate and of cryptsetup, byte for byte, on the same images.

mod common;

use common::{CHEAP_ARGON2ID, CHEAP_PBKDF2, PASSPHRASE, Scratch, cryptsetup_ok, edit_json, text};
use ucrypt_luks::Header;

/// Compares all texts that both print.
fn check(scratch: &Scratch) -> String {
    let (image, path) = (scratch.bytes(), scratch.image());
    let (header, _) = Header::read(&image).unwrap();
    let path = text(&path);
    let dump = header.dump(path);
    assert_eq!(dump, cryptsetup_ok(&["luksDump", path], b""));

    let args = ["luksDump", "--dump-volume-key", "--batch-mode", "--key-file", "-", path];
    let theirs = cryptsetup_ok(&args, PASSPHRASE);
    let opened = header.open_volume_key(&image, PASSPHRASE, None).unwrap();
    assert_eq!(*header.dump_volume_key(path, &opened), theirs);

    if let Header::Luks2(header) = &header {
        let theirs = cryptsetup_ok(&["luksDump", "--dump-json-metadata", path], b"");
        assert_eq!(header.json.to_pretty(), theirs);
    }
    dump
}

#[test]
fn luks1() {
    for (cipher, bits) in [("aes-xts-plain64", "512"), ("aes-cbc-essiv:sha256", "128")] {
        let mut args = vec!["--type", "luks1", "--cipher", cipher, "--key-size", bits];
        args.extend(CHEAP_PBKDF2);
        let scratch = Scratch::formatted(&args);
        let path = scratch.image();
        let key_file = scratch.path("second");
        std::fs::write(&key_file, b"second").unwrap();
        let mut args = vec!["luksAddKey", "--key-file", "-", "--key-slot", "6"];
        args.extend(["--pbkdf-force-iterations", "1000", text(&path), text(&key_file)]);
        cryptsetup_ok(&args, PASSPHRASE);
        assert!(check(&scratch).contains("Key Slot 6: ENABLED"));
    }
}

#[test]
fn luks2_with_labels_tokens_priorities_and_an_unbound_keyslot() {
    for pbkdf in [CHEAP_PBKDF2, CHEAP_ARGON2ID] {
        let mut args = vec!["--type", "luks2", "--label", "a label", "--subsystem", "a subsystem"];
        args.extend(pbkdf);
        let scratch = Scratch::formatted(&args);
        let path = scratch.image();
        let path = text(&path);
        cryptsetup_ok(&["config", "--priority", "prefer", "--key-slot", "0", path], b"");
        let token = ["token", "add", "--key-description", "a key", "--key-slot", "0", path];
        cryptsetup_ok(&token, b"");
        let json = br#"{"type":"something","keyslots":[],"more":{"deep":[1,"x/y"]}}"#;
        cryptsetup_ok(&["token", "import", "--token-id", "7", path], json);
        let key_file = scratch.path("second");
        std::fs::write(&key_file, b"second").unwrap();
        let mut args = vec!["luksAddKey", "--batch-mode", "--unbound", "--key-size", "256"];
        args.extend(["--key-slot", "3", "--key-file", "-", path, text(&key_file)]);
        args.extend(pbkdf);
        cryptsetup_ok(&args, PASSPHRASE);
        cryptsetup_ok(&["config", "--priority", "ignore", "--key-slot", "3", path], b"");
        let dump = check(&scratch);
        for words in ["3: luks2 (unbound)", "preferred", "ignored", "a key", "7: something"] {
            assert!(dump.contains(words), "{words} is missing in\n{dump}");
        }
    }
}

#[test]
fn luks2_with_flags_and_a_segment_of_fixed_size() {
    let scratch = Scratch::formatted(CHEAP_PBKDF2);
    let mut image = scratch.bytes();
    let flags = r#""config":{"flags":["allow-discards","no-read-workqueue"],"#;
    edit_json(&mut image, r#""config":{"#, flags);
    edit_json(&mut image, r#""dynamic""#, r#""1048576""#);
    edit_json(&mut image, r#""iv_tweak":"0""#, r#""iv_tweak":"8""#);
    std::fs::write(scratch.image(), &image).unwrap();
    let dump = check(&scratch);
    assert!(dump.contains("allow-discards no-read-workqueue \n"), "{dump}");
    assert!(dump.contains("length: 1048576 [bytes]"), "{dump}");
}

#[test]
fn luks2_with_requirements_is_shown() {
    let scratch = Scratch::formatted(CHEAP_PBKDF2);
    let mut image = scratch.bytes();
    let requirements = r#""config":{"requirements":{"mandatory":["from-the-future"]},"#;
    edit_json(&mut image, r#""config":{"#, requirements);
    std::fs::write(scratch.image(), &image).unwrap();
    let path = scratch.image();
    let (header, _) = Header::read(&image).unwrap();
    assert_eq!(header.dump(text(&path)), cryptsetup_ok(&["luksDump", text(&path)], b""));
}

#[test]
fn the_json_form_says_what_the_text_says() {
    let mut args = vec!["--type", "luks2", "--sector-size", "512"];
    args.extend(CHEAP_ARGON2ID);
    let scratch = Scratch::formatted(&args);
    let (header, _) = Header::read(&scratch.bytes()).unwrap();
    let json: serde_json::Value = serde_json::from_str(&header.dump_json().to_compact()).unwrap();
    assert_eq!(json["type"], "luks2");
    assert_eq!(json["uuid"], header.uuid().to_string());
    assert_eq!(json["data_offset"], 16 << 20);
    assert_eq!(json["segments"][0]["cipher"], "aes-xts-plain64");
    assert_eq!(json["segments"][0]["size"], serde_json::Value::Null);
    assert_eq!(json["keyslots"][0]["kdf"]["memory_kib"], 32);
    assert_eq!(json["keyslots"][0]["digests"][0], 0);
    assert_eq!(json["digests"][0]["iterations"], 1000);

    let mut args = vec!["--type", "luks1"];
    args.extend(CHEAP_PBKDF2);
    let scratch = Scratch::formatted(&args);
    let (header, _) = Header::read(&scratch.bytes()).unwrap();
    let json: serde_json::Value = serde_json::from_str(&header.dump_json().to_compact()).unwrap();
    assert_eq!(json["type"], "luks1");
    assert_eq!(json["key_bits"], 512);
    assert_eq!(json["keyslots"][0]["active"], true);
    assert_eq!(json["keyslots"][7]["active"], false);
}
