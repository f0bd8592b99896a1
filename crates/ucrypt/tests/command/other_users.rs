//! The command under other users: root in a container, root of a user namespace, users without a
//! session, small limits, any umask. Each opens a volume, writes to it, closes it and finds the
//! data. What a user may not have is reported before a passphrase is asked for.

use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::image::{DATA, Image, LUKS2};
use crate::lifecycle::fits_a_screen;
use crate::namespace::{OWN_DEV, script};
use crate::nbd_client::NbdClient;
use crate::process::{limited, run, tool};
use crate::scratch::{Scratch, UCRYPT};

/// The capabilities that Docker leaves to root in a container, from its documentation ("Runtime
/// privilege and Linux capabilities").
pub(crate) const DOCKER: &str = "--bounding-set=-all,+chown,+dac_override,+fsetid,+fowner,+mknod,+net_raw,\
    +setgid,+setuid,+setfcap,+setpcap,+net_bind_service,+sys_chroot,+kill,+audit_write";

/// Clients that write at once.
const CLIENTS: usize = 4;

/// A user and how they run the command.
struct Somebody<'a> {
    scratch: &'a Scratch,
    /// The program, with its arguments, that runs the command.
    prefix: Vec<OsString>,
    runtime: Option<PathBuf>,
    ucrypt: PathBuf,
}

impl<'a> Somebody<'a> {
    fn new(scratch: &'a Scratch, prefix: &[&str]) -> Self {
        Self {
            scratch,
            prefix: prefix.iter().map(Into::into).collect(),
            runtime: Some(scratch.path("run")),
            ucrypt: UCRYPT.into(),
        }
    }

    /// A shell under these limits and this mask.
    fn shell(scratch: &'a Scratch, limits: &str) -> Self {
        Self::new(scratch, &["sh", "-euc", &format!("{limits}; exec \"$@\""), "sh"])
    }

    fn command(&self, action: &str) -> Command {
        let mut words = self.prefix.iter().cloned().chain([self.ucrypt.clone().into()]);
        let mut command = limited(words.next().expect("a program"));
        command.args(words).arg(action);
        match &self.runtime {
            Some(dir) => command.env("XDG_RUNTIME_DIR", dir),
            None => command.env_remove("XDG_RUNTIME_DIR"),
        };
        command
    }

    /// Opens over NBD, writes on several connections, reads the status, and closes. Returns the
    /// status.
    #[track_caller]
    fn opens_writes_and_closes(&self, image: &Image) -> Value {
        let mut open = self.command("open");
        let uri = run(open.args(image.with_key()).args(["volume", "--as", "nbd"]), b"").text();
        let socket = uri.trim().split_once("socket=").expect("a socket").1.to_owned();
        let data = |at: usize| vec![at as u8 + 1; 100_000];
        std::thread::scope(|scope| {
            for at in 0..CLIENTS {
                let socket = &socket;
                scope.spawn(move || {
                    let write = || {
                        let mut client = NbdClient::connect(socket.as_ref())?;
                        client.write(at as u64 * 100_000, &data(at))?;
                        client.flush()
                    };
                    let log = PathBuf::from(socket.replace(".nbd", ".log"));
                    let said = || fs::read_to_string(&log).unwrap_or_default();
                    write().unwrap_or_else(|error| panic!("client {at}: {error}: {}", said()));
                });
            }
        });
        let status = run(self.command("status").args(["--json", "volume"]), b"").passes();
        fits_a_screen(&run(self.command("status").arg("volume"), b"").text());
        let closed = run(self.command("close").arg("volume"), b"");
        assert_eq!(closed.stderr, "", "nothing was lost");
        closed.passes();
        let mut read = image.ucrypt(self.scratch, "read");
        let len = (CLIENTS * 100_000).to_string();
        let read = run(read.args(["--length", &len]), b"").passes();
        assert!(read == (0..CLIENTS).flat_map(data).collect::<Vec<_>>(), "what was written");
        serde_json::from_slice(&status).expect("JSON")
    }

    /// Opens the volume as a file, writes to it and closes it.
    #[track_caller]
    fn opens_a_file(&self, image: &Image) {
        use std::os::unix::fs::FileExt;
        let mut open = self.command("open");
        let path = run(open.args(image.with_key()).args(["file", "--as", "fuse"]), b"").text();
        let file = fs::File::options().write(true).open(path.trim()).expect("opened");
        file.write_all_at(b"a file", 0).expect("written");
        drop(file);
        run(self.command("close").arg("file"), b"").passes();
        let mut read = image.ucrypt(self.scratch, "read");
        assert_eq!(run(read.args(["--length", "6"]), b"").passes(), b"a file");
    }
}

fn notes(status: &Value) -> String {
    status["server"]["notes"].to_string()
}

#[track_caller]
fn locks_nothing_and_says_so(status: &Value) {
    assert!(notes(status).contains("memory is not locked"), "{}", notes(status));
    assert_eq!(status["server"]["locked_bytes"], 0);
}

#[test]
fn root_with_dockers_capabilities_and_limits() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let limits = "ulimit -l 8192; exec \"$@\"";
    let root = Somebody::new(&scratch, &["setpriv", DOCKER, "sh", "-euc", limits, "sh"]);
    let status = root.opens_writes_and_closes(&image);
    locks_nothing_and_says_so(&status);
    assert!(notes(&status).contains("CAP_SYS_ADMIN"), "{}", notes(&status));
    // No file and no device: both need CAP_SYS_ADMIN.
    for served in ["fuse", "loop"] {
        let mut open = root.command("open");
        open.arg(&image.path).args(["--key-file", "/no/such/key", "volume", "--as", served]);
        let message = run(&mut open, b"").refuses(2);
        assert!(message.contains("CAP_SYS_ADMIN") && message.contains("--as nbd"), "{message}");
    }
}

#[test]
fn root_with_dockers_capabilities_and_no_memory_to_lock() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let limits = "ulimit -l 64; exec \"$@\"";
    let root = Somebody::new(&scratch, &["setpriv", DOCKER, "sh", "-euc", limits, "sh"]);
    locks_nothing_and_says_so(&root.opens_writes_and_closes(&image));
}

#[test]
fn a_note_names_the_capability_that_keeps_a_server_in_its_users_mounts() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    for (without, lacking) in [("-sys_chroot", "CAP_SYS_CHROOT"), ("-sys_admin", "CAP_SYS_ADMIN")] {
        let root = Somebody::new(&scratch, &["setpriv", &format!("--bounding-set={without}")]);
        let notes = notes(&root.opens_writes_and_closes(&image));
        let expected = format!("no mount namespace of its own: the server lacks {lacking}");
        assert!(notes.contains(&expected), "{notes}");
    }
}

#[test]
fn root_without_any_capability() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let root = Somebody::new(&scratch, &["setpriv", "--bounding-set=-all"]);
    locks_nothing_and_says_so(&root.opens_writes_and_closes(&image));
}

#[test]
fn root_of_a_user_namespace() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let root = Somebody::new(&scratch, &["unshare", "--map-root-user"]);
    locks_nothing_and_says_so(&root.opens_writes_and_closes(&image));
    // This is not root of the machine: its default is a file, which it cannot mount.
    let mut open = root.command("open");
    let opened = run(open.args(image.with_key()).arg("volume"), b"").exits(0);
    assert!(opened.stdout.starts_with(b"nbd+unix:"), "{opened:?}");
    assert!(opened.stderr.contains("mount a file"), "{opened:?}");
    assert!(opened.stderr.contains("served --as nbd"), "{opened:?}");
    run(root.command("close").arg("volume"), b"").passes();
    // With a mount namespace of its own it can.
    let root = Somebody::new(&scratch, &["unshare", "--map-root-user", "--mount"]);
    locks_nothing_and_says_so(&root.opens_writes_and_closes(&image));
}

/// A server that could not leave the mounts of its user went on with the root of the mount namespace: it made its
/// sockets outside of the chroot.
#[test]
fn root_of_a_chroot_stays_in_it() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    fs::create_dir(scratch.path("root")).expect("a directory");
    fs::rename(&image.path, scratch.path("root/image")).expect("moved");
    fs::copy(scratch.path("passphrase"), scratch.path("root/passphrase")).expect("copied");
    // A root that is a mount point, too, and one that is none.
    for mounted in ["", "mount --bind root root"] {
        let text = format!(
            "{mounted}
            mkdir -p root/run root/proc root/dev
            for dir in bin sbin lib lib64 usr etc; do
                if [ -h /$dir ]; then ln -sfn $(readlink /$dir) root/$dir
                elif [ -d /$dir ]; then mkdir -p root/$dir; mount --rbind /$dir root/$dir; fi
            done
            mount -t proc none root/proc; mount --rbind /dev root/dev
            : >root/ucrypt; mount --bind $1 root/ucrypt
            XDG_RUNTIME_DIR=/run chroot root sh -euc '
                trap \"/ucrypt close work 2>/dev/null || true\" EXIT
                /ucrypt open --key-file passphrase --as nbd image work >/dev/null
                ls -A /run/ucrypt | sort
                /ucrypt status work --json
                /ucrypt close work'"
        );
        let said = run(&mut script(&scratch, &text, &[UCRYPT]), b"").text();
        let (files, status) = said.split_at(said.find('{').expect("a status"));
        assert_eq!(files, ".work.lock\n.work.log\n.work.nbd\n.work.sock\n", "{mounted}");
        let status: Value = serde_json::from_str(status).expect("JSON");
        let notes = status["server"]["notes"].to_string();
        assert!(notes.contains("no mount namespace of its own: it runs in a chroot"), "{notes}");
    }
}

#[test]
fn a_user_without_a_session() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    // Nobody else has this user ID, so nobody else has its runtime directory. A test that was killed may have left one.
    let number = unused_user();
    let places = Places(format!("/tmp/ucrypt-{number}").into());
    scratch.program("ucrypt", UCRYPT);
    for name in ["", "ucrypt", "image", "passphrase"] {
        chown(scratch.path(name), Some(number), Some(number)).expect("given away");
    }
    let (user, group) = (format!("--reuid={number}"), format!("--regid={number}"));
    let user = Somebody {
        runtime: None,
        ucrypt: scratch.path("ucrypt"),
        ..Somebody::new(&scratch, &["setpriv", &user, &group, "--clear-groups"])
    };
    locks_nothing_and_says_so(&user.opens_writes_and_closes(&image));
    let mode = fs::metadata(&places.0).expect("a directory").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    fs::remove_dir(&places.0).expect("nothing is left in it");
}

/// The number of a user who has no process, no account and no runtime directory: a random one.
pub(crate) fn unused_user() -> u32 {
    loop {
        let mut bytes = [0; 4];
        fs::File::open("/dev/urandom")
            .and_then(|mut it| it.read_exact(&mut bytes))
            .expect("random");
        let number = 1_000_000_000 + u32::from_ne_bytes(bytes) % 1_000_000_000;
        if !Path::new(&format!("/tmp/ucrypt-{number}")).exists() {
            return number;
        }
    }
}

/// The runtime directory of a user without a session, which is removed also if the test fails.
struct Places(PathBuf);

impl Drop for Places {
    fn drop(&mut self) {
        // The test removes it itself.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn under_a_memlock_limit_of_64_kib() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let root = Somebody::shell(&scratch, "ulimit -l 64");
    root.opens_writes_and_closes(&image);
    root.opens_a_file(&image);
    // The limit applies only to a process without CAP_IPC_LOCK.
    let limit = "ulimit -l 64; exec setpriv --bounding-set=-ipc_lock \"$@\"";
    let root = Somebody::new(&scratch, &["sh", "-euc", limit, "sh"]);
    locks_nothing_and_says_so(&root.opens_writes_and_closes(&image));
    root.opens_a_file(&image);
}

#[test]
fn under_a_limit_of_256_files() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let root = Somebody::shell(&scratch, "ulimit -n 256");
    root.opens_writes_and_closes(&image);
    root.opens_a_file(&image);
}

/// As many clients as the server accepts, and more.
#[test]
fn a_server_that_has_no_descriptors_left_still_flushes_and_closes() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let root = Somebody::shell(&scratch, "ulimit -n 56");
    let mut open = root.command("open");
    let uri = run(open.args(image.with_key()).args(["volume", "--as", "nbd"]), b"").text();
    let socket = PathBuf::from(uri.trim().split_once("socket=").expect("a socket").1);
    let mut first = NbdClient::connect(&socket).expect("connected");
    // A client that is not served gets no greeting, or is cut off.
    let silent: Vec<_> =
        (0..100).map(|_| std::os::unix::net::UnixStream::connect(&socket)).collect();
    first.write(0, b"to the end").expect("written");
    drop(first);
    let closed = run(root.command("close").arg("volume"), b"");
    assert_eq!(closed.stderr, "");
    closed.passes();
    drop(silent);
    let mut read = image.ucrypt(&scratch, "read");
    assert_eq!(run(read.args(["--length", "10"]), b"").passes(), b"to the end");
}

#[test]
fn a_server_of_guests_has_as_many_descriptors_as_its_hard_limit_allows() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let socket = scratch.path("guest");
    let text = "ulimit -Sn 300; ulimit -Hn 4000; ucrypt=$1 guest=$2; shift 2
        $ucrypt serve --vhost-user $guest \"$@\" >/dev/null & server=$!
        while [ ! -S $guest ] && kill -0 $server; do sleep 0.02; done
        grep '^Max open files' /proc/$server/limits; kill $server; wait $server";
    let mut shell = script::<&OsStr>(&scratch, text, &[UCRYPT.as_ref(), socket.as_ref()]);
    let limits = run(shell.args(image.with_key()), b"").text();
    let numbers: Vec<_> = limits.split_whitespace().skip(3).take(2).collect();
    assert_eq!(numbers, ["4000", "4000"], "the rings of two guests take more than 1024");
}

#[test]
fn with_a_umask_of_0() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let root = Somebody::shell(&scratch, "umask 0");
    root.opens_writes_and_closes(&image);
    root.opens_a_file(&image);
}

#[test]
fn with_a_umask_of_077() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let root = Somebody::shell(&scratch, "umask 077");
    root.opens_writes_and_closes(&image);
    root.opens_a_file(&image);
    let mut open = root.command("open");
    let name = scratch.unique();
    run(open.args(image.with_key()).args([&name, "--as", "loop"]), b"").passes();
    let mode = fs::metadata("/dev/ucrypt").expect("a directory").permissions().mode();
    run(root.command("close").arg(&name), b"").passes();
    assert_eq!(mode & 0o777, 0o755, "links are for all to read");
}

#[test]
fn what_cannot_be_had_is_named_before_the_passphrase_is_asked_for() {
    for (action, nodes, missing, remedy) in [
        // The next free loop device has no node here.
        ("open --as ublk", "fuse loop-control", "ublk-control", "--as fuse"),
        ("open --as loop", "fuse loop-control", "cannot attach", "--as fuse"),
        ("open --as ublk", "null", "ublk-control", "--as nbd"),
        ("open --as loop", "fuse", "loop-control", "--as fuse"),
        ("open --as loop", "null", "loop-control", "--as nbd"),
        ("open --as fuse", "loop-control", "/dev/fuse", "--as nbd"),
        ("serve --fuse served", "loop-control", "/dev/fuse", "--as nbd"),
        ("serve --ublk", "null", "ublk-control", "--as nbd"),
    ] {
        let scratch = Scratch::new();
        scratch.sparse("image", DATA);
        let name = if action.starts_with("open") { scratch.unique() } else { String::new() };
        let text =
            format!("{OWN_DEV}\nnodes {nodes}\n$1 {action} --key-file /no/such/key image {name}");
        let mut shell = script(&scratch, &text, &[UCRYPT]);
        let message = run(shell.env("XDG_RUNTIME_DIR", scratch.path("run")), b"").refuses(4);
        assert!(message.contains(missing) && message.contains(remedy), "{action}: {message}");
    }
}

#[test]
fn a_place_that_cannot_be_had_is_named_before_the_passphrase_is_asked_for() {
    let scratch = Scratch::new();
    scratch.sparse("image", DATA);
    fs::write(scratch.path("content"), "content").expect("written");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = format!("tcp:{}", taken.local_addr().expect("an address"));
    let long = format!("unix:{}", "x".repeat(200));
    for (arguments, code, cause) in [
        (&["--nbd", "unix:no/socket"][..], 4, "No such file"),
        (&["--nbd", "unix:/proc/self/socket"], 4, "No such file"),
        (&["--nbd", "unix:content"], 4, "not a socket"),
        (&["--nbd", &long], 4, "too long"),
        (&["--nbd", &taken], 4, "in use"),
        (&["--nbd", "tcp:192.0.2.1:10809"], 1, "not a loopback address"),
        (&["--nbd", "systemd"], 1, "no service manager"),
        (&["--vhost-user", "no/socket"], 4, "No such file"),
        (&["--vhost-user", "content"], 4, "not a socket"),
        (&["--fuse", "no/file"], 4, "No such file"),
        (&["--fuse", "content"], 4, "has content"),
        (&["--fuse", "."], 4, "no regular file"),
        (&["--fuse", "one", "--vhost-user", "one"], 1, "for two exports"),
        (&["--nbd", "unix:one", "--nbd", "unix:./one"], 1, "for two exports"),
        (&["--nbd", "tcp:127.0.0.1:9", "--nbd", "tcp:127.0.0.1:9"], 1, "for two exports"),
    ] {
        let mut serve = scratch.ucrypt(&["serve", "image", "--key-file", "/no/such/key"]);
        let message = run(serve.args(arguments).current_dir(scratch.path("")), b"").refuses(code);
        assert!(message.contains(cause), "{arguments:?}: {message}");
    }
    // Sockets that were passed on to the process that has started this one.
    let mut serve = scratch.ucrypt(&["serve", "image", "--key-file", "/no/such/key"]);
    serve.args(["--nbd", "systemd"]).env("LISTEN_FDS", "1").env("LISTEN_PID", "1");
    let message = run(serve.current_dir(scratch.path("")), b"").refuses(1);
    assert!(message.contains("no service manager"), "{message}");
    let mut left: Vec<_> = fs::read_dir(scratch.path("")).expect("read").flatten().collect();
    left.retain(|entry| {
        !["content", "image", "run"].map(OsString::from).contains(&entry.file_name())
    });
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(fs::read_to_string(scratch.path("content")).expect("read"), "content");
}

#[test]
fn open_chooses_what_can_be_had_and_says_why() {
    for (nodes, lacking, chosen) in [
        ("null", "loop-control", "nbd"),
        ("fuse", "loop-control", "fuse"),
        ("loop-control", "fuse", "nbd"),
        // The drivers are there, but the free loop device has no node, and ublk is another thing.
        ("fuse loop-control", "cannot attach", "fuse"),
        ("fuse loop-control null:ublk-control", "Linux 6.5 or newer can; cannot attach", "fuse"),
        // As the rules of a container do, a mount without devices forbids root the nodes on it.
        (
            "fuse loop-control; mount -o remount,nodev /dev
            for n in $(seq 0 63); do mknod /dev/loop$n b 7 $n; done",
            "allow this container to use it (--device /dev/loop",
            "fuse",
        ),
        ("fuse null:loop-control", "no free loop device", "fuse"),
    ] {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
        let text = format!(
            "{OWN_DEV}
            nodes {nodes}; ucrypt=$1; shift
            $ucrypt open \"$@\"; $ucrypt status --json volume; $ucrypt close volume"
        );
        let mut shell = script::<&OsStr>(&scratch, &text, &[UCRYPT.as_ref()]);
        shell.args(image.with_key()).arg("volume").env("XDG_RUNTIME_DIR", scratch.path("run"));
        let ran = run(&mut shell, b"").exits(0);
        assert!(ran.stderr.contains(lacking), "{nodes}: {ran:?}");
        assert!(ran.stderr.contains(&format!("served --as {chosen}\n")), "{nodes}: {ran:?}");
        let output = String::from_utf8_lossy(&ran.stdout);
        let (path, status) = output.split_once('\n').expect("a path and a status");
        let status: Value = serde_json::from_str(status).expect("JSON");
        assert!(status.to_string().contains(path), "{nodes}: {output}");
        assert_eq!(path.starts_with("nbd+unix:"), chosen == "nbd", "{nodes}: {path}");
        scratch.processes().into_iter().for_each(|process| scratch.await_end(process));
    }
}

#[test]
fn a_runtime_directory_with_a_path_too_long_for_a_socket_is_refused_before_the_passphrase() {
    let scratch = Scratch::new();
    scratch.sparse("image", DATA);
    let long = scratch.path(&"x".repeat(90));
    fs::create_dir(&long).expect("a directory");
    fs::set_permissions(&long, Permissions::from_mode(0o700)).expect("set");
    let mut open = tool("env", "coreutils");
    open.arg(format!("XDG_RUNTIME_DIR={}", long.display())).arg(UCRYPT);
    open.args(["open", "--key-file", "/no/such/key", "--as", "nbd"]);
    let message = run(open.arg(scratch.path("image")).arg("volume"), b"").refuses(1);
    assert!(message.contains("too long"), "{message}");
}
