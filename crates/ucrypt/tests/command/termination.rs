//! SIGTERM and SIGINT: a server ends when asked to, and everything it acknowledged stays.

use std::fs;

use crate::crash::{disks, image};
use crate::image::{DATA, Image, Kind, LUKS2, LUKS2_512};
use crate::load::Load;
use crate::namespace::script;
use crate::nbd_client::NbdClient;
use crate::process::run;
use crate::scratch::{Scratch, UCRYPT};
use crate::server::{On, Server};

fn acknowledged_writes_survive(kind: Kind, on: On, seed: u64) {
    let scratch = Scratch::new();
    let image = image(&scratch, kind);
    for (round, writes) in (0..).zip([25, 200]) {
        let server = Server::start(&scratch, on, &image.with_key());
        let load = Load::start(seed + round, disks(&server, on));
        load.await_writes(writes);
        if on == On::Nbd {
            server.terminate();
        } else {
            server.terminate_in_use();
        }
        assert!(scratch.mounts().is_empty(), "the mount is gone");
        assert!(!scratch.path("socket").exists() && !scratch.path("served").exists());
        load.check(&run(&mut image.ucrypt(&scratch, "read"), b"").passes());
    }
}

#[test]
fn acknowledged_writes_survive_sigterm_under_load_over_nbd() {
    acknowledged_writes_survive(LUKS2, On::Nbd, 600);
}

#[test]
fn acknowledged_writes_survive_sigterm_under_load_over_fuse() {
    acknowledged_writes_survive(LUKS2_512, On::Fuse, 700);
}

#[test]
fn acknowledged_writes_survive_sigterm_under_load_with_both_exports() {
    acknowledged_writes_survive(LUKS2, On::Both, 800);
}

#[test]
fn an_idle_server_ends_with_its_files_gone_and_says_nothing() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let server = Server::start(&scratch, On::Both, &image.with_key());
    drop(server.open());
    let _connected_and_idle = NbdClient::connect(server.socket()).expect("connected");
    assert_eq!(server.stderr(), "");
    server.terminate();
    let left: Vec<_> = fs::read_dir(scratch.path("")).expect("a directory").collect();
    // The image, the passphrase, the runtime directory, the server's standard error.
    assert_eq!(left.len(), 4, "{left:?}");
}

#[test]
fn a_server_whose_file_is_unmounted_by_others_ends() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let server = Server::start(&scratch, On::Fuse, &image.with_key());
    let file = server.open();
    std::os::unix::fs::FileExt::write_all_at(&file, b"kept", 5).expect("written");
    drop(file);
    let mut umount = crate::process::tool("fusermount3", "fuse3");
    run(umount.arg("-u").arg(server.file()), b"").passes();
    server.ends();
    let mut read = image.ucrypt(&scratch, "read");
    let read = run(read.args(["--offset", "5", "--length", "4"]), b"").passes();
    assert_eq!(read, b"kept");
}

/// A server that was started with a signal ignored serves on when it comes.
fn outlives(ignored: &str) {
    let scratch = Scratch::new();
    let text = "
        env --ignore-signal=$2 $1 serve --backend mem:1M --nbd unix:$PWD/socket >said &
        until grep -q nbd+unix said; do kill -0 $!; sleep 0.02; done
        kill -$2 $!
        sleep 0.3
        nbdinfo --size \"nbd+unix:///?socket=$PWD/socket\" >size
        kill -TERM $!
        wait $!";
    run(&mut script(&scratch, text, &[UCRYPT, ignored]), b"").passes();
    assert_eq!(fs::read_to_string(scratch.path("size")).expect("written"), "1048576\n");
}

#[test]
fn a_server_that_was_started_by_nohup_outlives_its_terminal() {
    outlives("HUP");
}

/// A shell without job control has what it starts in the background ignore SIGINT.
#[test]
fn a_server_that_was_started_with_sigint_ignored_outlives_the_interrupt_of_others() {
    outlives("INT");
}

/// The soft limit is of the shell that has started the server; its clients know nothing of it.
#[test]
fn a_limit_of_processor_time_ends_no_server_or_ends_it_in_order() {
    let scratch = Scratch::new();
    let text = "
        begin() {
            prlimit --cpu=$1 $2 serve --backend mem:1M --fuse $PWD/served >said 2>errors &
            until grep -q fuse: said; do kill -0 $!; sleep 0.02; done
            grep 'cpu time' /proc/$!/limits | tr -s ' ' >limits
        }
        begin 5: $1
        grep '^Max cpu time unlimited unlimited' limits
        # The kernel repeats it every second, which is no second signal of a person.
        exec 3<served
        kill -XCPU $!
        until grep -q 'waits for at most' errors; do kill -0 $!; sleep 0.02; done
        kill -XCPU $!
        sleep 0.3
        kill -0 $!
        exec 3<&-
        wait $!
        [ ! -e served ]
        # Before the hard limit, at which the kernel kills, there is time for the end.
        begin 1000:1000 $1
        grep '^Max cpu time 940 1000' limits
        kill -TERM $!
        wait $!
        begin 40:40 $1
        grep '^Max cpu time 20 40' limits
        kill -TERM $!
        wait $!";
    run(&mut script(&scratch, text, &[UCRYPT]), b"").passes();
}

/// The program of a container is the first process of its namespace, which the kernel spares signals that it does not
/// handle.
#[test]
fn a_signal_ends_the_first_process_of_a_container_before_it_serves_and_while_it_does() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    // SIGTERM is among the signals that it handles, as a bit of the fourth digit from the right.
    let text = "
        mkfifo key
        exec 3<>key
        inside() {
            unshare --pid --fork --kill-child env --default-signal=HUP,INT \"$@\" 3<&- >said &
            outer=$!
            until inner=$(cat /proc/$outer/task/$outer/children) && [ -n \"$inner\" ] &&
                grep -q 'SigCgt:.*[4-7c-f]...$' /proc/${inner% }/status; do
                kill -0 $outer
                sleep 0.02
            done
        }
        ends() { status=0; wait $outer || status=$?; [ $status = $1 ]; }
        # It waits for its key.
        for end in TERM:143 INT:130 HUP:129; do
            inside $1 serve --key-file key --nbd unix:$PWD/socket $2
            kill -${end%:*} $inner
            ends ${end#*:}
            [ ! -s said ]
        done
        inside $1 serve --backend mem:1M --nbd unix:$PWD/socket
        until grep -q nbd+unix said; do kill -0 $outer; sleep 0.02; done
        kill -TERM $inner
        ends 0
        [ ! -e socket ]
        # It asks for a passphrase.
        for end in TERM:143 INT:130 HUP:129; do
            rm -f typed
            script -qefc \"exec unshare --pid --fork --kill-child env --default-signal=HUP,INT \\
                $1 open --test-passphrase $2\" typed <key >/dev/null &
            outer=$!
            until grep -qsi 'enter passphrase' typed; do kill -0 $outer; sleep 0.02; done
            unshare=$(cat /proc/$outer/task/$outer/children)
            kill -${end%:*} $(cat /proc/${unshare% }/task/${unshare% }/children)
            ends ${end#*:}
        done
        # Nobody reads what it writes.
        { status=0; unshare --pid --fork $1 read --key-file $3 $2 || status=$?; echo $status >status; } | head -c 1 >first
        [ \"$(cat status)\" = 141 ]";
    let [path, key] = [&image.path, &image.key].map(|path| path.to_str().expect("text"));
    let arguments = [UCRYPT, path, key];
    run(&mut script(&scratch, text, &arguments), b"").passes();
}

/// The limit is of the shell that has opened the volume; its clients know nothing of it.
#[test]
fn a_limit_on_the_size_of_files_is_an_error_of_a_write_and_not_the_end_of_the_server() {
    let scratch = Scratch::new();
    let text = "
        truncate -s 64M image
        bash -c 'ulimit -f 20000; exec \"$0\" \"$@\"' $1 serve --cipher none --direct image \
            --nbd unix:$PWD/socket >said &
        until grep -q nbd+unix said; do kill -0 $!; sleep 0.02; done
        uri=\"nbd+unix:///?socket=$PWD/socket\"
        ! qemu-io -f raw -c 'write 40M 64k' \"$uri\"
        qemu-io -f raw -c 'write -P 7 1M 64k' -c 'read -P 7 1M 64k' \"$uri\"
        kill -TERM $!
        wait $! || :";
    let ran = run(&mut script(&scratch, text, &[UCRYPT]), b"").exits(0);
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(said.contains("read 65536/65536"), "{said} {}", ran.stderr);
}
