//! Users without root get a file, which the setuid helper mounts.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;

use ucrypt_testkit::Random;

use crate::image::{DATA, Image, Kind, LUKS2};
use crate::process::{limited, run, tool};
use crate::scratch::{Scratch, UCRYPT};

/// The user `nobody`, whose ID is the same on every Linux.
const NOBODY: u32 = 65534;

/// A directory of that user with an image, some data, and a copy of the command that the user may
/// run.
fn scratch_of_nobody() -> (Scratch, Image) {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    scratch.file("data", &Random::new(71).bytes(300_000));
    // Copy in another process: a child that another test starts meanwhile could inherit our
    // descriptor that is open for writing, and then the copy would be busy.
    run(tool("cp", "coreutils").arg(UCRYPT).arg(scratch.path("ucrypt")), b"").passes();
    for entry in fs::read_dir(scratch.path("")).expect("a directory") {
        let path = entry.expect("an entry").path();
        chown(path, Some(NOBODY), Some(NOBODY)).expect("given away");
    }
    chown(scratch.path(""), Some(NOBODY), Some(NOBODY)).expect("given away");
    fs::set_permissions(scratch.path(""), Permissions::from_mode(0o755)).expect("set");
    (scratch, image)
}

fn with_runtime(scratch: &Scratch, mut command: Command) -> Command {
    command.env("XDG_RUNTIME_DIR", scratch.path("run"));
    command
}

#[test]
fn a_user_opens_and_serves_a_file_through_the_helper() {
    // The helper that mounts for users; without it this test cannot work.
    tool("fusermount3", "fuse3");
    let (scratch, image) = scratch_of_nobody();
    let mut script = with_runtime(&scratch, limited("unshare"));
    script.args(["--mount", "--propagation", "private", "--", "sh", "-c"]);
    script.arg(include_str!("scripts/without_root.sh")).arg("sh").arg(scratch.path(""));
    run(script.args(image.with_key()), b"").passes();
    scratch.processes().into_iter().for_each(|process| scratch.await_end(process));
}

#[test]
fn a_user_is_refused_a_loop_device_and_told_the_next_best() {
    let (scratch, image) = scratch_of_nobody();
    let mut open = with_runtime(&scratch, limited("setpriv"));
    open.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(scratch.path("ucrypt"));
    open.arg("open").args(image.with_key()).args(["--as", "loop", "volume"]);
    let message = run(&mut open, b"").refuses(2);
    // The best alternative depends on who may use /dev/fuse here.
    let open = fs::metadata("/dev/fuse").is_ok_and(|it| it.permissions().mode() & 0o006 == 0o006);
    let next = if open { "--as fuse" } else { "--as nbd" };
    assert!(message.contains(next), "{message}");
}

/// `fusermount3` is there for these, and can do nothing.
#[test]
fn a_user_whom_the_helper_cannot_serve_has_a_socket() {
    const WITHOUT_NAME: &str = "1234567";
    tool("fusermount3", "fuse3");
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let program = scratch.program("ucrypt", UCRYPT);
    fs::set_permissions(scratch.path(""), Permissions::from_mode(0o755)).expect("set");
    for path in [&image.path, &image.key] {
        fs::set_permissions(path, Permissions::from_mode(0o666)).expect("set");
    }
    for (user, limits, why) in [
        (WITHOUT_NAME, "--bounding-set=+all", "users with a name"),
        ("65534", "--bounding-set=-sys_admin", "CAP_SYS_ADMIN"),
    ] {
        let runtime = scratch.path(&format!("run-{user}"));
        fs::create_dir(&runtime).expect("a directory");
        chown(&runtime, Some(user.parse().expect("a number")), None).expect("given away");
        let action = |words: &[&str]| {
            let mut command = limited("setpriv");
            command.args([&format!("--reuid={user}"), "--regid=65534", "--clear-groups", limits]);
            command.env("XDG_RUNTIME_DIR", &runtime).arg(&program).args(words);
            command
        };
        let message = run(action(&["open", "--as", "fuse"]).args(image.with_key()).arg("v"), b"");
        let message = message.refuses(2);
        assert!(message.contains(why) && message.contains("--as nbd"), "{message}");
        let opened = run(action(&["open"]).args(image.with_key()).arg("v"), b"").passes();
        let opened = String::from_utf8_lossy(&opened).into_owned();
        run(&mut action(&["close", "v"]), b"").passes();
        assert!(opened.starts_with("nbd+unix://"), "{opened}");
    }
}

#[test]
fn a_user_who_may_only_read_the_detached_header_writes_to_the_volume() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, Kind { detached: true, ..LUKS2 }, DATA);
    let program = scratch.program("ucrypt", UCRYPT);
    for path in [&scratch.path("run"), &scratch.path(""), &image.path, &image.key] {
        chown(path, Some(NOBODY), Some(NOBODY)).expect("given away");
    }
    fs::set_permissions(scratch.path(""), Permissions::from_mode(0o755)).expect("set");
    let header = image.header_path();
    let action = |action: &str, input: &[u8]| {
        let mut command = with_runtime(&scratch, limited("setpriv"));
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
        run(command.arg(action).args(image.with_key()), input)
    };
    fs::set_permissions(header, Permissions::from_mode(0o444)).expect("set");
    assert_eq!(action("write", b"data").exits(0).stderr, "");
    assert!(action("read", b"").passes().starts_with(b"data"));
    fs::set_permissions(header, Permissions::from_mode(0o000)).expect("set");
    let message = action("write", b"data").refuses(2);
    assert!(message.contains("ermission denied"), "{message}");
}

/// A directory into which a user may put files, and not see what others have put there.
#[test]
fn a_backup_in_a_directory_that_cannot_be_read_is_kept_and_no_failure() {
    let (scratch, image) = scratch_of_nobody();
    let inbox = scratch.path("inbox");
    fs::create_dir(&inbox).expect("a directory");
    chown(&inbox, Some(NOBODY), Some(NOBODY)).expect("given away");
    fs::set_permissions(&inbox, Permissions::from_mode(0o300)).expect("set");
    let backup = inbox.join("backup");
    let mut save = with_runtime(&scratch, limited("setpriv"));
    save.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(scratch.path("ucrypt"));
    save.args(["luksHeaderBackup", "--header-backup-file"]).arg(&backup).arg(&image.path);
    assert_eq!(run(&mut save, b"").exits(0).stderr, "");
    assert!(fs::metadata(&backup).is_ok_and(|found| found.len() > 0));
}
