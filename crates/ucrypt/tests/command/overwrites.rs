//! What is read or kept is not overwritten by the same command: key files, images, headers.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::image::{DATA, Image, Kind, LUKS2, PASSPHRASE};
use crate::process::{cryptsetup, python, run, tool};
use crate::scratch::{Scratch, UCRYPT};

const CHEAP: [&str; 5] = ["-q", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];

fn hard_link(of: &Path, link: PathBuf) -> PathBuf {
    fs::hard_link(of, &link).expect("a link");
    link
}

fn soft_link(of: &Path, link: PathBuf) -> PathBuf {
    symlink(of, &link).expect("a link");
    link
}

#[test]
fn a_new_header_does_not_overwrite_the_key_that_it_is_made_with() {
    let scratch = Scratch::new();
    let image = Image::blank(&scratch, LUKS2, DATA);
    let before = image.bytes();
    let key = scratch.file("key", PASSPHRASE);
    let volume_key = scratch.file("volume key", &[7; 64]);
    let (hard, soft) =
        (hard_link(&key, scratch.path("hard")), soft_link(&key, scratch.path("soft")));
    let (header, missing) = (scratch.path("header"), scratch.path("missing"));
    // The header, and the options and the arguments with the key.
    let rows: [(&Path, &[&Path], &[&Path]); 8] = [
        (&key, &["--key-file".as_ref(), &key], &[]),
        (&key, &[], &[&key]),
        (&hard, &["-d".as_ref(), &key], &[]),
        (&soft, &["-d".as_ref(), &key], &[]),
        (&key, &["-d".as_ref(), &soft], &[]),
        (&volume_key, &["--volume-key-file".as_ref(), &volume_key], &[]),
        (&header, &["-d".as_ref(), &image.path], &[]),
        // Neither is there yet.
        (&missing, &["-d".as_ref(), &missing], &[]),
    ];
    for (header, options, arguments) in rows {
        let mut format = scratch.ucrypt(&["luksFormat"]);
        format.args(CHEAP).arg("--header").arg(header).args(options);
        let said = run(format.arg(&image.path).args(arguments), PASSPHRASE).refuses(1);
        assert!(said.contains("would be overwritten"), "{header:?} {options:?}: {said}");
    }
    assert!(fs::read(&key).expect("read") == PASSPHRASE);
    assert!(fs::read(&volume_key).expect("read") == [7; 64]);
    assert!(!header.exists() && !missing.exists() && image.bytes() == before);
    let mut format = scratch.ucrypt(&["luksFormat"]);
    format.args(CHEAP).arg("--header").arg(&header).arg("--key-file").arg(&key);
    run(format.arg(&image.path), b"").exits(0);
    let mut test = cryptsetup();
    test.args(["open", "--test-passphrase", "--header"]).arg(&header).arg("--key-file").arg(&key);
    run(test.arg(&image.path), b"").exits(0);
}

/// The passphrase would be another one as soon as the header has changed, and after a rotation no key would be left.
#[test]
fn a_header_is_not_the_new_key_file_of_its_own_change() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let soft = soft_link(&image.path, scratch.path("soft"));
    let header = scratch.path("header");
    fs::copy(&image.path, &header).expect("copied");
    let before = image.bytes();
    for action in ["luksAddKey", "luksChangeKey", "luksRotateKey"] {
        for (file, place) in [(&image.path, None), (&soft, None), (&header, Some(&header))] {
            let mut act = scratch.ucrypt(&[action]);
            act.args(CHEAP).args(["--new-keyfile-size", "64", "--new-keyfile"]).arg(file);
            act.args(place.iter().flat_map(|place| ["--header".as_ref(), place.as_os_str()]));
            let said = run(act.args(image.with_key()), b"").refuses(1);
            assert!(said.contains("would be overwritten"), "{action} {file:?}: {said}");
        }
    }
    assert!(image.bytes() == before && fs::read(&header).expect("read") == before);
}

#[test]
fn the_image_by_another_name_is_no_detached_header() {
    let scratch = Scratch::new();
    let image = Image::blank(&scratch, LUKS2, DATA);
    let hard = hard_link(&image.path, scratch.path("hard"));
    let soft = soft_link(&image.path, scratch.path("soft"));
    for header in [&image.path, &hard, &soft] {
        let mut format = scratch.ucrypt(&["luksFormat"]);
        format.args(CHEAP).arg("--header").arg(header);
        run(format.arg(&image.path), PASSPHRASE).exits(0);
        let mut dump = cryptsetup();
        let shown = run(dump.arg("luksDump").arg(&image.path), b"").text();
        // In front of the data, and not over it.
        assert!(shown.contains("offset: 16777216 [bytes]"), "{header:?}: {shown}");
        fs::write(&image.path, vec![0; (LUKS2.data_offset() + DATA) as usize]).expect("written");
    }
}

#[test]
fn files_that_actions_make_replace_none_that_is_there() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let mut token = cryptsetup();
    token.args(["token", "add", "--token-id", "0", "--key-description", "x"]);
    run(token.arg(&image.path), b"").exits(0);
    let before = image.bytes();
    for file in [&image.path, &image.key] {
        for line in [
            &["luksHeaderBackup", "--header-backup-file"][..],
            &["convert", "-q", "--type", "luks1", "--header-backup-file"],
            &["luksDump", "-q", "--dump-volume-key", "--volume-key-file"],
            &["token", "export", "--token-id", "0", "--json-file"],
        ] {
            let mut act = scratch.ucrypt(line);
            act.arg(file);
            if line[0] == "luksDump" {
                act.arg("--key-file").arg(&image.key);
            }
            let ran = run(act.arg(&image.path), b"");
            assert_eq!(ran.code(), Some(1), "{line:?} {file:?}: {}", ran.stderr);
            assert!(image.bytes() == before, "{line:?} has written to the image");
            assert!(fs::read(&image.key).expect("read") == PASSPHRASE, "{line:?}");
        }
    }
}

#[test]
fn a_log_is_no_part_of_a_volume_and_no_disk() {
    const DETACHED: Kind = Kind { detached: true, ..LUKS2 };
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, DETACHED, DATA);
    let header = image.header.clone().expect("a header");
    let files = [&image.path, &header, &image.key];
    let before = files.map(|file| fs::read(file).expect("read"));
    let link = hard_link(&image.path, scratch.path("link"));
    let socket = format!("unix:{}", scratch.path("socket").display());
    let mut disk = tool("losetup", "mount");
    let device = run(disk.args(["--find", "--show"]).arg(&image.path), b"").text();
    let device = Path::new(device.trim_end());
    let lines = [&["serve", "--nbd", &socket][..], &["open", "--as", "nbd"]];
    for log in files.map(PathBuf::as_path).into_iter().chain([link.as_path(), device]) {
        for line in lines {
            let mut act = scratch.ucrypt(line);
            act.arg("--log")
                .arg(log)
                .arg("--header")
                .arg(&header)
                .arg("--key-file")
                .arg(&image.key);
            act.arg(&image.path).args((line[0] == "open").then_some("volume"));
            let code = if log == device { 4 } else { 1 };
            let said = run(&mut act, b"").refuses(code);
            assert!(said.contains("log"), "{line:?} {log:?}: {said}");
        }
    }
    run(tool("losetup", "mount").arg("--detach").arg(device), b"").passes();
    assert!(files.map(|file| fs::read(file).expect("read")) == before);
    assert_eq!(scratch.processes(), []);
}

/// The file of a header is made when there is something to be written.
#[test]
fn who_gives_up_at_a_prompt_leaves_no_empty_header() {
    let scratch = Scratch::new();
    let image = Image::blank(&scratch, LUKS2, DATA);
    let header = scratch.path("header");
    let before = image.bytes();
    // "YES" and a newline, then Ctrl-C or a signal: at the question, and at the passphrase.
    for (answers, ended) in [
        ("5945530a,03", "-2"),
        ("5945530a,kill15", "-15"),
        ("5945530a,5945530a,03", "1"),
        ("5945530a,5945530a,kill15", "-15"),
        ("5945530a,5945530a,kill9", "-9"),
        ("5945530a,5945530a,04", "1"),
    ] {
        let mut terminal = python(include_str!("scripts/job.py"), "pty", "python3");
        terminal.arg(answers).args([UCRYPT, "luksFormat", "--header"]).arg(&header);
        let shown = run(terminal.arg(&image.path), b"").text();
        assert!(shown.contains("does not exist and will be created"), "{shown}");
        assert!(shown.contains(&format!("ended with {ended} ")), "{answers}: {shown}");
        assert!(!header.exists(), "{answers}: an empty header is left");
        // One that was there stays.
        fs::write(&header, b"").expect("written");
        let mut terminal = python(include_str!("scripts/job.py"), "pty", "python3");
        let answers = answers.strip_prefix("5945530a,").expect("a first answer");
        terminal.arg(answers).args([UCRYPT, "luksFormat", "--header"]).arg(&header);
        let shown = run(terminal.arg(&image.path), b"").text();
        assert!(shown.contains(&format!("ended with {ended} ")), "{answers}: {shown}");
        fs::remove_file(&header).expect("it is there");
    }
    assert!(image.bytes() == before);
}
