//! `convert`, done by this command and by cryptsetup on copies of one image: the headers are the
//! same in every field, and so is the key material.

mod luks;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use luks::both::{Both, LUKS1, LUKS2};
use luks::{CHEAP, Scratch, Terminal, UCRYPT, code, good, run, stderr, text, ucrypt};
use ucrypt_luks::{Header, to_luks1, to_luks2};

/// All that cryptsetup shows of a header, and the key material of each keyslot. Only the number of
/// changes may differ.
fn everything(image: &Path) -> (Vec<String>, Vec<(u32, Vec<u8>)>) {
    let dump = run("cryptsetup", &["luksDump", text(image)], b"");
    let shown = good(&dump);
    let lines = shown.lines().filter(|line| !line.contains("Epoch") && !line.contains(text(image)));
    let mut lines: Vec<String> = lines.map(str::to_owned).collect();
    let json = run("cryptsetup", &["luksDump", "--dump-json-metadata", text(image)], b"");
    if code(&json) == 0 {
        let json: serde_json::Value = serde_json::from_str(&good(&json)).unwrap();
        lines.push(json.to_string());
    }
    let bytes = fs::read(image).unwrap();
    let area = |number: u32, start: u64, len: u64| {
        (number, bytes[start as usize..(start + len) as usize].to_vec())
    };
    let areas = match Header::read(&bytes).unwrap().0 {
        Header::Luks1(header) => {
            let len = u64::from(header.key_bytes) * 4000;
            let active = header.active_keyslots().into_iter();
            active.map(|n| area(n, header.keyslots[n as usize].material_start(), len)).collect()
        }
        Header::Luks2(header) => {
            let keyslots = header.metadata.keyslots.iter();
            keyslots.map(|(n, slot)| area(*n, slot.area.offset, slot.area.size)).collect()
        }
    };
    (lines, areas)
}

fn data(image: &Path) -> Vec<u8> {
    let bytes = fs::read(image).unwrap();
    let offset = Header::read(&bytes).unwrap().0.data_offset();
    bytes[offset as usize..].to_vec()
}

/// Converts both images and compares them.
fn convert(both: &Both, to: &str) {
    let before = data(&both.ours);
    both.does(&["convert", "-q", "--type", to, "IMAGE"], b"");
    assert_eq!(everything(&both.ours), everything(&both.theirs), "{to}");
    assert!(data(&both.ours) == before && data(&both.theirs) == before, "{to}: the data changed");
}

fn add(both: &Both, number: &str, passphrase: &str) {
    // One program makes it: the keyslots of both images have to be the same.
    let input = format!("one\n{passphrase}");
    let args = [&["luksAddKey", "-S", number], CHEAP, &[text(&both.ours)]].concat();
    good(&run("cryptsetup", &args, input.as_bytes()));
    fs::copy(&both.ours, &both.theirs).unwrap();
}

#[test]
fn a_conversion_leaves_what_cryptsetups_leaves_both_ways() {
    for kind in [
        LUKS1,
        &["--type", "luks1", "--key-size", "512", "--hash", "sha512"],
        &["--type", "luks1", "--cipher", "aes-cbc-essiv:sha256", "--key-size", "128"],
    ] {
        for more in [&[][..], &[("3", "three")], &[("1", "two"), ("7", "eight")]] {
            let both = Both::new(kind);
            let mut right = vec!["one"];
            for (number, passphrase) in more {
                add(&both, number, passphrase);
                right.push(passphrase);
            }
            convert(&both, "luks2");
            both.opens(&right, &["wrong"]);
            // What was converted can be changed.
            let hash = if kind.contains(&"sha512") { "sha512" } else { "sha256" };
            let add = [&["luksAddKey", "-S", "5", "--hash", hash], CHEAP, &["IMAGE"]].concat();
            both.does(&add, b"one\nfive");
            both.opens(&["five"], &[]);
            fs::copy(&both.ours, &both.theirs).unwrap();
            convert(&both, "luks1");
            right.push("five");
            both.opens(&right, &["wrong"]);
            both.does(&["luksKillSlot", "-q", "IMAGE", "0"], b"");
            fs::copy(&both.ours, &both.theirs).unwrap();
            convert(&both, "luks2");
            right.remove(0);
            both.opens(&right, &["one"]);
        }
    }
}

#[test]
fn a_volume_that_was_made_as_luks2_becomes_luks1_as_with_cryptsetup() {
    let sector = [LUKS2, &["--sector-size", "512"]].concat();
    for more in [&[][..], &[("3", "three"), ("1", "two")]] {
        let both = Both::new(&sector);
        let mut right = vec!["one"];
        for (number, passphrase) in more {
            add(&both, number, passphrase);
            right.push(passphrase);
        }
        convert(&both, "luks1");
        both.opens(&right, &["wrong"]);
        convert(&both, "luks2");
        both.opens(&right, &["wrong"]);
    }
}

#[test]
fn what_cryptsetup_refuses_to_convert_is_refused_by_name_and_nothing_changes() {
    let sector = [LUKS2, &["--sector-size", "512"]].concat();
    let small = ["--type", "luks2", "--luks2-keyslots-size", "1M", "--offset", "8192"];
    let small = [&small[..], &["--sector-size", "512"]].concat();
    let tight = ["--type", "luks1", "--key-size", "512", "--align-payload", "8"];
    let (five, unbound) = ("--pbkdf-force-iterations=5", ["--unbound", "--key-size", "256"]);
    let argon2 = ["--pbkdf", "argon2id", five, "--pbkdf-memory", "32", "--pbkdf-parallel", "1"];
    let key = [&["luksAddKey", "-q"], &argon2[..], &["IMAGE"]].concat();
    let other_hash = [&["luksAddKey", "-q", "--hash", "sha512"], CHEAP, &["IMAGE"]].concat();
    let late = [&["luksAddKey", "-q", "-S", "9"], CHEAP, &["IMAGE"]].concat();
    let unbound = [&["luksAddKey", "-q"], &unbound[..], CHEAP, &["IMAGE"]].concat();
    let token = ["token", "add", "--key-description", "x", "IMAGE"];
    let cipher = ["--keyslot-cipher", "aes-cbc-plain64", "--keyslot-key-size", "256"];
    let cipher = [&["luksAddKey", "-q"], &cipher[..], CHEAP, &["IMAGE"]].concat();
    let larger = [LUKS2, &["--sector-size", "4096"]].concat();
    for (kind, change, to, words) in [
        (&sector[..], &key[..], "luks1", "keyslot 1 uses argon2id"),
        (&sector, &other_hash, "luks1", "keyslot 1 uses the hash sha512"),
        (&sector, &late, "luks1", "keyslot 9"),
        (&sector, &token, "luks1", "tokens"),
        (&sector, &cipher, "luks1", "aes-cbc-plain64"),
        (&larger, &[], "luks1", "sector size is 4096"),
        (&small, &[], "luks1", "no room for the eight keyslots"),
        (&tight, &[], "luks2", "not enough space"),
        // cryptsetup keeps an unbound keyslot out by its digest.
        (&sector, &unbound, "luks1", "is unbound"),
    ] {
        let both = Both::new(kind);
        if !change.is_empty() {
            let place = |word: &&str| {
                if *word == "IMAGE" { text(&both.ours).to_owned() } else { (*word).into() }
            };
            let args: Vec<String> = change.iter().map(place).collect();
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            good(&run("cryptsetup", &args, b"one\ntwo"));
            fs::copy(&both.ours, &both.theirs).unwrap();
        }
        let before = fs::read(&both.ours).unwrap();
        let [ours, theirs] = both.act(&["convert", "-q", "--type", to, "IMAGE"], b"");
        assert_eq!(code(&ours), 1, "{words}: {} / {}", stderr(&ours), stderr(&theirs));
        assert!(stderr(&ours).contains(words), "{words}: {}", stderr(&ours));
        assert!(fs::read(&both.ours).unwrap() == before, "{words}");
    }
    let both = Both::new(LUKS1);
    assert_eq!(code(&both.act(&["convert", "-q", "IMAGE"], b"")[0]), 1);
    assert_eq!(code(&both.act(&["convert", "-q", "--type", "plain", "IMAGE"], b"")[0]), 1);
}

/// An interrupted conversion that is run again may find that everything is done.
#[test]
fn a_header_that_has_the_version_already_is_no_error_and_nothing_is_written() {
    for (kind, to) in [(LUKS1, "luks1"), (LUKS2, "luks2")] {
        let both = Both::new(kind);
        let before = fs::read(&both.ours).unwrap();
        let ran = ucrypt(&["convert", "-q", "--type", to, text(&both.ours)], b"");
        good(&ran);
        assert!(stderr(&ran).contains(&format!("is {to} already")), "{}", stderr(&ran));
        assert!(fs::read(&both.ours).unwrap() == before);
    }
}

/// The image after each of the writes of a conversion.
fn interruptions(image: &Path, to: &str) -> Vec<Vec<u8>> {
    let mut bytes = fs::read(image).unwrap();
    let mut random = |buf: &mut [u8]| {
        fastrand::fill(buf);
        Ok(())
    };
    let conversion = match Header::read(&bytes).unwrap() {
        (Header::Luks1(header), _) => to_luks2(&header, &bytes, &mut random).unwrap(),
        (Header::Luks2(header), _) => to_luks1(&header, None, &bytes, &mut random).unwrap(),
    };
    assert!(conversion.survives && conversion.header.format().name() == to);
    let after = |write: &ucrypt_luks::Write| {
        let at = write.offset as usize;
        bytes[at..at + write.bytes.len()].copy_from_slice(&write.bytes);
        bytes.clone()
    };
    conversion.writes.iter().map(after).collect()
}

#[test]
fn cryptsetup_opens_what_an_interruption_leaves_and_the_next_conversion_comes_to_the_end() {
    let both = Both::new(LUKS1);
    add(&both, "3", "three");
    for to in ["luks2", "luks1"] {
        let images = interruptions(&both.ours, to);
        assert!(images.len() > 8, "{to}: {}", images.len());
        for (number, image) in images.iter().enumerate() {
            for passphrase in ["one", "three"] {
                // cryptsetup may repair the image.
                fs::write(&both.theirs, image).unwrap();
                let test = ["open", "--test-passphrase", text(&both.theirs)];
                let ran = run("cryptsetup", &test, passphrase.as_bytes());
                assert_eq!(code(&ran), 0, "{to}, after write {number}: {}", stderr(&ran));
            }
            fs::write(&both.theirs, image).unwrap();
            let is = ["isLuks", "--type", to, text(&both.theirs)];
            good(&ucrypt(&["convert", "-q", "--type", to, text(&both.theirs)], b""));
            good(&run("cryptsetup", &is, b""));
            if to == "luks1" {
                let after = fs::read(&both.theirs).unwrap();
                assert_ne!(after[0x4000..0x4006], *b"SKUL\xba\xbe", "after write {number}");
            }
            let test = ["open", "--test-passphrase", text(&both.theirs)];
            good(&run("cryptsetup", &test, b"three"));
        }
        good(&ucrypt(&["convert", "-q", "--type", to, text(&both.ours)], b""));
    }
}

#[test]
fn a_volume_in_use_is_not_converted() {
    let both = Both::new(LUKS1);
    let before = fs::read(&both.ours).unwrap();
    let options = ucrypt_backend::OpenOptions::default();
    let user = ucrypt_backend::FileBackend::open(&both.ours, options).unwrap();
    let args = ["convert", "-q", "--type", "luks2", text(&both.ours)];
    let ran = ucrypt(&args, b"");
    assert_eq!(code(&ran), 5, "{}", stderr(&ran));
    drop(user);
    assert!(fs::read(&both.ours).unwrap() == before);
    good(&ucrypt(&args, b""));
}

fn detached(kind: &str) -> (Scratch, PathBuf, PathBuf) {
    let scratch = Scratch::new();
    let (image, place) = (scratch.make("data", 1 << 20), scratch.make("header", 4 << 20));
    let size = if kind == "luks2" {
        &["--luks2-keyslots-size", "3M", "--sector-size", "512"]
    } else {
        &[][..]
    };
    let format = ["luksFormat", "-q", "--type", kind, "--header", text(&place), text(&image)];
    good(&run("cryptsetup", &[&format, size, CHEAP].concat(), b"one"));
    (scratch, image, place)
}

#[test]
fn detached_headers_are_converted_and_keep_others_from_the_data_meanwhile() {
    for (kind, to) in [("luks1", "luks2"), ("luks2", "luks1")] {
        let (scratch, image, place) = detached(kind);
        let theirs = scratch.path("theirs");
        fs::copy(&place, &theirs).unwrap();
        let line = |header| ["convert", "-q", "--type", to, "--header", header, text(&image)];
        let ours = line(text(&place));
        let options = ucrypt_backend::OpenOptions::default();
        let user = ucrypt_backend::FileBackend::open(&image, options).unwrap();
        assert_eq!(code(&ucrypt(&ours, b"")), 5);
        drop(user);
        let before = fs::read(&image).unwrap();
        good(&ucrypt(&ours, b""));
        good(&run("cryptsetup", &line(text(&theirs)), b""));
        assert_eq!(everything(&place), everything(&theirs), "{kind}");
        assert!(fs::read(&image).unwrap() == before);
        let open = ["open", "--test-passphrase", "--header", text(&place), text(&image)];
        good(&ucrypt(&open, b"one"));
        good(&run("cryptsetup", &open, b"one"));
    }
}

/// A file that ends with its keyslots has to grow.
#[test]
fn the_file_of_a_detached_header_grows_for_its_conversion_as_with_cryptsetup() {
    for maker in [UCRYPT, "cryptsetup"] {
        for bits in ["256", "512"] {
            let scratch = Scratch::new();
            let (image, ours) = (scratch.make("data", 1 << 20), scratch.path("ours"));
            let theirs = scratch.path("theirs");
            let format = ["luksFormat", "-q", "--type", "luks1", "--key-size", bits];
            let at = ["--header", text(&ours), text(&image)];
            good(&run(maker, &[&format[..], CHEAP, &at].concat(), b"one"));
            fs::copy(&ours, &theirs).unwrap();
            for (program, place) in [(UCRYPT, &ours), ("cryptsetup", &theirs)] {
                let convert = ["convert", "-q", "--type", "luks2", "--header", text(place)];
                good(&run(program, &[&convert[..], &[text(&image)]].concat(), b""));
            }
            assert_eq!(everything(&ours), everything(&theirs), "{maker} {bits}");
            let len = |path: &Path| fs::metadata(path).unwrap().len();
            assert_eq!(len(&ours), len(&theirs), "{maker} {bits}");
            for program in [UCRYPT, "cryptsetup"] {
                good(&run(program, &[&["open", "--test-passphrase"], &at[..]].concat(), b"one"));
            }
        }
    }
}

/// The header of an image with data, whose backup is converted: behind it lies nothing, whatever it says
/// about the data.
#[test]
fn the_backup_of_a_header_grows_for_its_conversion_as_with_cryptsetup() {
    for (bits, align) in [("256", "4096"), ("512", "4096"), ("512", "8192")] {
        for with_image in [true, false] {
            let scratch = Scratch::new();
            let image = scratch.make("data", 5 << 20);
            let format = ["luksFormat", "-q", "--type", "luks1", "--key-size", bits, text(&image)];
            let aligned = ["--align-payload", align];
            good(&run("cryptsetup", &[&format[..], CHEAP, &aligned].concat(), b"one"));
            let before = fs::read(&image).unwrap();
            let len = |path: &Path| fs::metadata(path).unwrap().len();
            let places = [(UCRYPT, "ours"), ("cryptsetup", "theirs")].map(|(program, name)| {
                let place = scratch.path(name);
                let file = ["--header-backup-file", text(&place), text(&image)];
                good(&ucrypt(&[&["luksHeaderBackup"], &file[..]].concat(), b""));
                let short = len(&place);
                // Where it cannot grow, the message does not say that data begins there.
                let bytes = fs::read(&place).unwrap();
                let (Header::Luks1(header), _) = Header::read(&bytes).unwrap() else { panic!() };
                let error = to_luks2(&header, &bytes, &mut |_| Ok(())).unwrap_err().to_string();
                assert!(error.contains(&format!("its file ends at byte {short}")), "{error}");
                let at = ["--header", text(&place), text(&image)];
                let at = if with_image { &at[..] } else { &at[1..2] };
                let convert = [&["convert", "-q", "--type", "luks2"], at].concat();
                let ran = run(program, &convert, b"");
                assert_eq!(code(&ran), 0, "{program} {bits} {with_image}: {}", stderr(&ran));
                assert!(len(&place) > short, "{program}");
                place
            });
            let [ours, theirs] = &places;
            let [(shown, areas), (their_shown, their_areas)] =
                [everything(ours), everything(theirs)];
            assert_eq!(shown, their_shown, "{bits} {with_image}");
            assert!(areas == their_areas, "{bits} {with_image}");
            assert_eq!(len(ours), len(theirs), "{bits} {with_image}");
            assert!(fs::read(&image).unwrap() == before);
            let open = ["open", "--test-passphrase", "--header", text(ours), text(&image)];
            for program in [UCRYPT, "cryptsetup"] {
                good(&run(program, &open, b"one"));
            }
        }
    }
}

#[test]
fn without_room_for_a_second_copy_a_backup_is_required_and_brings_everything_back() {
    let both = Both::new(&["--type", "luks1", "--key-size", "512"]);
    let numbers: Vec<String> = (1..8).map(|number| number.to_string()).collect();
    for number in &numbers {
        add(&both, number, &format!("passphrase {number}"));
    }
    let image = text(&both.ours);
    let before = fs::read(&both.ours).unwrap();
    for to in ["luks2", "luks1"] {
        let old = fs::read(&both.ours).unwrap();
        let convert = ["convert", "-q", "--type", to, image];
        let ran = ucrypt(&convert, b"");
        assert_eq!(code(&ran), 1, "{}", stderr(&ran));
        assert!(stderr(&ran).contains("--header-backup-file"), "{}", stderr(&ran));
        assert!(fs::read(&both.ours).unwrap() == old, "{to}");
        let backup = both.scratch.path(to);
        let with_backup = [&convert[..], &["--header-backup-file", text(&backup)]].concat();
        good(&ucrypt(&with_backup, b""));
        good(&run("cryptsetup", &["convert", "-q", "--type", to, text(&both.theirs)], b""));
        assert_eq!(everything(&both.ours), everything(&both.theirs), "{to}");
        both.opens(&["one", "passphrase 1", "passphrase 7"], &["wrong"]);
        // The backup is that of the header before, and it fits.
        let restore = ["luksHeaderRestore", "-q", "--header-backup-file", text(&backup), image];
        good(&ucrypt(&restore, b""));
        let kind = if to == "luks2" { "luks1" } else { "luks2" };
        good(&ucrypt(&["isLuks", "--type", kind, image], b""));
        good(&ucrypt(&["open", "--test-passphrase", image], b"passphrase 7"));
        // An existing backup is not overwritten, and nothing is converted.
        let ran = ucrypt(&with_backup, b"");
        assert!(code(&ran) == 1 && stderr(&ran).contains("already exists"), "{}", stderr(&ran));
        good(&ucrypt(&["isLuks", "--type", kind, image], b""));
        fs::remove_file(&backup).unwrap();
        good(&ucrypt(&with_backup, b""));
    }
    assert!(fs::read(&both.ours).unwrap()[..592] == before[..592]);
}

/// Whoever owns the directory could make the file of another user longer, or convert another file.
#[test]
fn a_file_that_has_taken_the_name_of_a_header_at_the_question_neither_grows_nor_is_converted() {
    let scratch = Scratch::new();
    let (image, place) = (scratch.make("data", 1 << 20), scratch.path("header"));
    let format = ["luksFormat", "-q", "--type", "luks1", "--header", text(&place), text(&image)];
    good(&ucrypt(&[&format[..], CHEAP].concat(), b"one"));
    let (precious, moved) = (scratch.path("precious"), scratch.path("moved"));
    fs::copy(&place, &precious).unwrap();
    let before = fs::read(&place).unwrap();
    let convert = ["convert", "--type", "luks2", "--header", text(&place), text(&image)];
    let mut terminal = Terminal::start(&convert);
    terminal.expect(" (Type 'yes' in capital letters): ", "");
    fs::rename(&place, &moved).unwrap();
    symlink(&precious, &place).unwrap();
    terminal.answer("YES\n");
    let (code, said) = terminal.end();
    assert_eq!(code, 5, "{said}");
    assert!(fs::read(&precious).unwrap() == before);
    assert!(fs::read(&moved).unwrap() == before);
}

#[test]
fn a_person_is_asked_and_told_what_is_lost() {
    let both = Both::new(&[LUKS2, &["--sector-size", "512", "--label", "l"]].concat());
    let image = text(&both.ours);
    let before = fs::read(&both.ours).unwrap();
    let convert = ["convert", "--type", "luks1", image];
    let mut terminal = Terminal::start(&convert);
    terminal.expect("This is lost: the label.", "no\n");
    assert_eq!(terminal.end().0, 2);
    assert!(fs::read(&both.ours).unwrap() == before);
    let mut terminal = Terminal::start(&convert);
    terminal.expect("Are you sure? (Type 'yes' in capital letters): ", "YES\n");
    assert_eq!(terminal.end().0, 0);
    good(&ucrypt(&["isLuks", "--type", "luks1", image], b""));
}
