//! `mount` and `umount`: a volume and its file system in one command, as root and as a user.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::held_exec::nobody_hangs;
use crate::image::{Image, LUKS2_512, PASSPHRASE};
use crate::namespace::script;
use crate::process::{limited, run, tool};
use crate::scratch::{Scratch, UCRYPT};

const LEN: u64 = 16 << 20;

/// The user `nobody`, whose ID is the same on every Linux.
const NOBODY: u32 = 65534;

/// A volume that holds an empty ext4 file system.
fn with_file_system(scratch: &Scratch) -> Image {
    let image = Image::by_cryptsetup(scratch, LUKS2_512, LEN);
    let system = scratch.sparse("system", LEN);
    run(tool("mkfs.ext4", "e2fsprogs").arg("-q").arg(&system), b"").passes();
    let content = fs::read(&system).expect("read");
    run(&mut image.ucrypt(scratch, "write"), &content).passes();
    fs::remove_file(system).expect("removed");
    image
}

/// A script in which `ucrypt` is the command, `$name` a name that no other test has, and `refused CODE WORD
/// COMMAND` a command that fails with this code and a message with this word.
fn root_script(scratch: &Scratch, text: &str) -> Command {
    let text = format!(
        "ucrypt() {{ {UCRYPT} \"$@\"; }}
         name={}
         refused() {{
             code=$1 word=$2 status=0; shift 2
             \"$@\" 2>said || status=$?
             cat said >&2
             [ $status = $code ]; grep -q -- \"$word\" said
         }}
         {text}",
        scratch.unique()
    );
    let mut command = script(scratch, &text, &[] as &[&str]);
    command.env("XDG_RUNTIME_DIR", scratch.path("run"));
    command
}

#[track_caller]
fn nothing_is_left(scratch: &Scratch) {
    scratch.processes().into_iter().for_each(|process| scratch.await_end(process));
    assert!(scratch.device().symlink_metadata().is_err(), "the link is left");
    let left: Vec<_> = fs::read_dir(scratch.runtime("")).expect("a directory").collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn root_mounts_uses_and_unmounts_a_volume_each_by_one_command() {
    let scratch = Scratch::new();
    with_file_system(&scratch);
    let text = "
        ucrypt mount --key-file passphrase --name $name image m
        [ \"$(findmnt -n -o FSTYPE m)\" = ext4 ]
        [ \"$(stat -c %i m)\" = 2 ]
        head -c 100000 /dev/urandom >data
        cp data m/data
        ucrypt status --json $name | grep -q \"\\\"mounted\\\": \\\"$PWD/m\\\"\"
        ucrypt status $name | grep -q \"mounted: *$PWD/m\"
        refused 5 'mounted at' ucrypt mount $name m
        ucrypt umount m
        ! mountpoint -q m
        [ -z \"$(ucrypt list)\" ]
        # Only to read, and by the name.
        ucrypt mount -o ro,noatime --key-file passphrase --name $name image m
        cmp data m/data
        ! touch m/new
        findmnt -n -o OPTIONS m | grep -q noatime
        ucrypt umount $name
        [ -z \"$(ucrypt list)\" ]";
    run(&mut root_script(&scratch, text), b"").passes();
    nothing_is_left(&scratch);
}

/// The server was gone, so nobody said that anything had failed.
#[test]
fn a_server_that_is_killed_while_its_file_system_is_unmounted_is_no_success() {
    let scratch = Scratch::new();
    with_file_system(&scratch);
    let text = "
        umount=$(command -v umount)
        mkdir bin
        printf '#!/bin/sh\npkill -KILL -f \"serve-in-background.* %s$\"\nexec %s \"$@\"\n' $name $umount >bin/umount
        chmod +x bin/umount
        ucrypt open --as loop --key-file passphrase image $name
        ucrypt mount $name m
        PATH=$PWD/bin:$PATH refused 4 'has ended meanwhile' ucrypt umount m
        $umount m || true
        ucrypt close $name || true";
    run(&mut root_script(&scratch, text), b"").passes();
    nothing_is_left(&scratch);
}

/// Two may unmount it at the same time, and the first one closes it.
#[test]
fn a_volume_that_somebody_else_closes_meanwhile_is_unmounted_with_success() {
    let scratch = Scratch::new();
    with_file_system(&scratch);
    let text = format!(
        "umount=$(command -v umount)
        mkdir bin
        printf '#!/bin/sh\\n%s \"$@\" && {UCRYPT} close %s\\n' $umount $name >bin/umount
        chmod +x bin/umount
        ucrypt mount --key-file passphrase --name $name image m
        PATH=$PWD/bin:$PATH ucrypt umount m
        ! mountpoint -q m"
    );
    run(&mut root_script(&scratch, &text), b"").passes();
    nothing_is_left(&scratch);
}

/// Nobody was told how the programs had ended that it started, and what had succeeded was undone, or left.
#[test]
fn a_caller_that_ignores_the_ends_of_its_children_mounts_and_unmounts() {
    let scratch = Scratch::new();
    with_file_system(&scratch);
    let text = format!(
        "env --ignore-signal=CHLD {UCRYPT} mount --key-file passphrase --name $name image m
        mountpoint m
        env --ignore-signal=CHLD {UCRYPT} umount m
        [ -z \"$(ucrypt list)\" ]"
    );
    run(&mut root_script(&scratch, &text), b"").passes();
    nothing_is_left(&scratch);
}

/// A file system without rights of its own, such as FAT, gets them from the umask of who mounts it.
#[test]
fn a_file_system_is_mounted_under_the_callers_umask() {
    let scratch = Scratch::new();
    with_file_system(&scratch);
    let text = "
        mount=$(command -v mount)
        mkdir bin
        printf '#!/bin/sh\numask >told\nexec %s \"$@\"\n' $mount >bin/mount
        chmod +x bin/mount
        umask 022
        PATH=$PWD/bin:$PATH ucrypt mount --key-file passphrase --name $name image m
        [ $(cat told) = 0022 ]
        ucrypt umount m";
    run(&mut root_script(&scratch, text), b"").passes();
    nothing_is_left(&scratch);
}

#[test]
fn the_name_is_made_of_the_images_and_is_its_own() {
    let scratch = Scratch::new();
    let image = with_file_system(&scratch);
    let own = scratch.path(&scratch.unique());
    fs::copy(&image.path, scratch.path(&format!("{}.copy", scratch.unique()))).expect("copied");
    fs::rename(&image.path, &own).expect("renamed");
    fs::create_dir_all(scratch.path("elsewhere")).expect("made");
    let text = "
        mkdir n; mv $name.copy elsewhere/$name
        ucrypt mount --json --key-file passphrase $name m | grep -q \"\\\"name\\\":\\\"$name\\\"\"
        ucrypt mount --json --key-file passphrase elsewhere/$name n | grep -q \"$name-2\"
        ucrypt umount n m
        [ -z \"$(ucrypt list)\" ]";
    run(&mut root_script(&scratch, text), b"").passes();
    nothing_is_left(&scratch);
}

#[test]
fn a_mount_that_fails_leaves_no_volume_open_and_says_why() {
    let scratch = Scratch::new();
    Image::by_cryptsetup(&scratch, LUKS2_512, LEN);
    let text = "
        # What is wrong with the directory is said before a key is looked for.
        refused 1 'cannot mount at' ucrypt mount --key-file /no/key --name $name image none
        refused 1 'no directory' ucrypt mount --key-file /no/key --name $name image image
        refused 1 'cannot read --key-file' ucrypt mount --key-file /no/key --name $name image m
        printf wrong >wrong
        refused 2 'no keyslot' ucrypt mount --key-file wrong --name $name image m
        refused 4 'no file system' ucrypt mount --key-file passphrase --name $name image m
        refused 4 'cannot mount' ucrypt mount --key-file passphrase --fstype ext4 --name $name image m
        refused 1 '--backend' ucrypt mount --backend mem:1M --name $name image m
        refused 1 'possible values: ublk, loop, fuse' ucrypt mount --key-file /no/key --as nbd --name $name image m
        refused 4 'nothing is mounted' ucrypt umount m
        mount -t tmpfs other m
        refused 4 'no volume of yours' ucrypt umount m
        [ -z \"$(ucrypt list)\" ]";
    run(&mut root_script(&scratch, text), b"").passes();
    nothing_is_left(&scratch);
}

#[test]
fn a_volume_that_is_in_use_stays_mounted_and_its_users_are_named() {
    let scratch = Scratch::new();
    with_file_system(&scratch);
    let text = "
        ucrypt mount --key-file passphrase --name $name image m
        echo kept >m/file
        (cd m; exec sleep 600) &
        user=$!
        trap \"kill $user || true\" EXIT
        until [ \"$(readlink /proc/$user/cwd)\" = $PWD/m ]; do :; done
        refused 5 \"sleep (process $user)\" ucrypt umount m
        [ \"$(cat m/file)\" = kept ]
        kill $user; wait $user || true
        exec 3<m/file
        refused 5 'in use' ucrypt umount $name
        exec 3<&-
        mkdir m/sub; mount -t tmpfs none m/sub
        refused 5 \"mounted on it: $PWD/m/sub\" ucrypt umount m
        umount m/sub
        ucrypt umount m";
    run(&mut root_script(&scratch, text), b"").passes();
    nothing_is_left(&scratch);
}

#[test]
fn what_was_open_before_stays_open() {
    let scratch = Scratch::new();
    with_file_system(&scratch);
    let text = "
        mkdir n
        ucrypt open --key-file passphrase --as loop image $name
        refused 1 'has no effect' ucrypt mount --key-file passphrase $name m
        refused 4 'cannot mount' ucrypt mount --fstype xfs $name m
        ucrypt status $name
        ucrypt mount $name m
        ucrypt mount /dev/ucrypt/$name n
        ucrypt umount n
        echo kept >m/file
        ucrypt umount m 2>said
        grep -q 'stays open' said
        ucrypt status $name
        ucrypt close $name
        # One that mount has opened ends with the last of its mounts.
        ucrypt mount --key-file passphrase --name $name image m
        ucrypt mount $name n
        ucrypt umount m
        [ \"$(cat n/file)\" = kept ]
        ucrypt umount n
        [ -z \"$(ucrypt list)\" ]";
    run(&mut root_script(&scratch, text), b"").passes();
    nothing_is_left(&scratch);
}

/// Opens a volume with a file system, whose image has no room for what is written to it.
const ON_SMALL: &str = "
        mkdir small; mount -t tmpfs -o size=24m none small
        truncate -s 80M small/image
        ucrypt luksFormat -q --pbkdf pbkdf2 --pbkdf-force-iterations 1000 --key-file passphrase small/image
        ucrypt open --key-file passphrase --as loop small/image $name
        mkfs.ext4 -q /dev/ucrypt/$name";

#[test]
fn what_cannot_be_stored_is_not_unmounted_with_success() {
    let scratch = Scratch::new();
    scratch.file("passphrase", PASSPHRASE);
    let text = "
        ucrypt close $name
        ucrypt mount --key-file passphrase --name $name small/image m
        head -c 30000000 /dev/urandom >m/data
        refused 4 'cannot be stored' ucrypt umount m
        mountpoint -q m
        # Somebody has been told, and the kernel has given it up: also where there is room now, it is gone.
        mount -o remount,size=100m small
        refused 4 'closed, but [1-9][0-9]* requests had failed' ucrypt umount m
        ! mountpoint -q m && ! ucrypt status $name";
    run(&mut root_script(&scratch, &[ON_SMALL, text].concat()), b"").passes();
}

#[test]
fn what_a_volume_that_closes_with_its_last_user_could_not_store_is_told() {
    let scratch = Scratch::new();
    scratch.file("passphrase", PASSPHRASE);
    // As above, but `close --deferred` has taken the name away.
    let text = "
        mount /dev/ucrypt/$name m
        head -c 30000000 /dev/urandom >m/data
        ucrypt close --deferred $name
        refused 4 'cannot be stored' ucrypt umount m
        mountpoint -q m
        mount -o remount,size=100m small
        refused 4 'unmounted, but [1-9][0-9]* requests had failed' ucrypt umount m
        while ucrypt status $name; do sleep 0.05; done";
    run(&mut root_script(&scratch, &[ON_SMALL, text].concat()), b"").passes();
}

#[test]
fn an_interrupted_mount_leaves_no_volume_open() {
    let scratch = Scratch::new();
    let image = with_file_system(&scratch);
    fs::create_dir(scratch.path("bin")).expect("made");
    fs::create_dir(scratch.path("m")).expect("made");
    // It waits until the test interrupts it.
    let slow = format!("#!/bin/sh\n: >{}\nexec sleep 600\n", scratch.path("started").display());
    scratch.file("slow", slow.as_bytes());
    let mount = scratch.program("bin/mount", scratch.path("slow"));
    fs::set_permissions(mount, Permissions::from_mode(0o755)).expect("set");
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", scratch.path("bin").display());
    let mut command = scratch.ucrypt_child(&["mount", "--key-file"]);
    command.arg(&image.key).args(["--name", &scratch.unique(), "--as", "loop"]);
    command.arg(&image.path).arg(scratch.path("m")).env("PATH", path);
    command.stdin(Stdio::null()).stderr(Stdio::piped()).process_group(0);
    let child = command.spawn().expect("ucrypt starts");
    scratch.await_file("started");
    kill_process_group(Pid::from_child(&child), Signal::INT).expect("a signal");
    let output = child.wait_with_output().expect("waited");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("interrupted"), "{said}");
    assert_eq!(run(&mut scratch.ucrypt(&["list"]), b"").text(), "");
    nothing_is_left(&scratch);
}

/// `nohup` has what it starts ignore SIGHUP, and a shell without job control SIGINT.
#[test]
fn a_mount_that_is_to_ignore_a_signal_is_not_interrupted_by_it() {
    let scratch = Scratch::new();
    let image = with_file_system(&scratch);
    fs::create_dir(scratch.path("bin")).expect("made");
    fs::create_dir(scratch.path("m")).expect("made");
    // It mounts nothing, when the test says so.
    let slow = format!(
        "#!/bin/sh\n: >{0}/started\nuntil [ -e {0}/go ]; do sleep 0.02; done\n",
        scratch.path("").display()
    );
    scratch.file("slow", slow.as_bytes());
    let mount = scratch.program("bin/mount", scratch.path("slow"));
    fs::set_permissions(mount, Permissions::from_mode(0o755)).expect("set");
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", scratch.path("bin").display());
    let mut command = limited("env");
    command.args(["--ignore-signal=HUP,INT", UCRYPT, "mount", "--key-file"]);
    command.arg(&image.key).args(["--name", &scratch.unique(), "--as", "loop"]);
    command.arg(&image.path).arg(scratch.path("m")).env("PATH", path);
    command.env("XDG_RUNTIME_DIR", scratch.path("run"));
    command.stdin(Stdio::null()).stderr(Stdio::piped()).process_group(0);
    let child = command.spawn().expect("it starts");
    scratch.await_file("started");
    for signal in [Signal::HUP, Signal::INT] {
        kill_process_group(Pid::from_child(&child), signal).expect("a signal");
    }
    scratch.file("go", b"");
    let output = child.wait_with_output().expect("waited");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    run(scratch.ucrypt(&["close"]).arg(scratch.unique()), b"").passes();
    nothing_is_left(&scratch);
}

/// A directory of `nobody` with a volume that holds a file system, and a copy of the command.
fn scratch_of_nobody() -> Scratch {
    let scratch = Scratch::new();
    with_file_system(&scratch);
    scratch.program("ucrypt", UCRYPT);
    fs::create_dir(scratch.path("m")).expect("made");
    for entry in fs::read_dir(scratch.path("")).expect("a directory") {
        chown(entry.expect("an entry").path(), Some(NOBODY), Some(NOBODY)).expect("given away");
    }
    chown(scratch.path(""), Some(NOBODY), Some(NOBODY)).expect("given away");
    fs::set_permissions(scratch.path(""), Permissions::from_mode(0o755)).expect("set");
    scratch
}

/// A script of `nobody`, who may use FUSE as under udev; `before` is run by root.
fn nobodys_script(scratch: &Scratch, before: &str, text: &str) -> Command {
    let mut command = limited("unshare");
    command.args(["--mount", "--propagation", "private", "--", "sh", "-euc"]);
    command.arg(format!(
        "cd {dir}
         mkdir nodes; mount -t tmpfs nodes nodes; mknod -m 666 nodes/fuse c 10 229
         mount --bind nodes/fuse /dev/fuse
         {before}
         exec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups sh -euc '
             refused() {{
                 code=$1 word=$2 status=0; shift 2
                 \"$@\" 2>said || status=$?
                 cat said >&2
                 [ $status = $code ]; grep -q -- \"$word\" said
             }}
             {text}'",
        dir = scratch.path("").display()
    ));
    command.env("XDG_RUNTIME_DIR", scratch.path("run"));
    command
}

#[test]
fn a_user_mounts_a_volume_by_a_file_system_in_user_space() {
    let _quiet = nobody_hangs();
    tool("fuse2fs", "fuse2fs");
    let scratch = scratch_of_nobody();
    let text = "
        ./ucrypt mount --key-file passphrase --name image image m
        mountpoint -q m
        head -c 1000000 /dev/urandom >data
        cp data m/data; mkdir m/sub; echo kept >m/sub/file
        ./ucrypt status image | grep -q fuse
        (cd m; exec sleep 600) &
        user=$!
        trap \"kill $user || true\" EXIT
        until [ \"$(readlink /proc/$user/cwd)\" = $PWD/m ]; do :; done
        refused 5 \"sleep (process $user)\" ./ucrypt umount m
        kill $user; wait $user || true
        ./ucrypt umount m
        ! mountpoint -q m
        [ -z \"$(./ucrypt list)\" ]
        # What was written is in the volume, whole.
        ./ucrypt read --key-file passphrase image >content
        /usr/sbin/e2fsck -fn content >&2
        ./ucrypt mount -o ro --key-file passphrase --name again image m
        cmp data m/data; [ \"$(cat m/sub/file)\" = kept ]
        ! touch m/new
        ./ucrypt umount again
        [ -z \"$(./ucrypt list)\" ]
        # Who kept the file system is gone, and with it what it had not written.
        ./ucrypt mount --key-file passphrase --name image image m
        for program in /proc/[0-9]*; do
            [ \"$(cat $program/comm 2>/dev/null)\" = fuse2fs ] || continue
            ! grep -q -a -F \"$PWD\" $program/cmdline || kill -KILL ${program#/proc/}
        done
        until ! ls m; do :; done
        refused 4 \"had ended before\" ./ucrypt umount m
        [ -z \"$(./ucrypt list)\" ]";
    run(&mut nobodys_script(&scratch, "", text), b"").passes();
    nothing_is_left(&scratch);
}

#[test]
fn a_user_without_a_file_system_in_user_space_is_told_its_package_before_a_passphrase() {
    let scratch = scratch_of_nobody();
    // A program is hidden by what is no program.
    let before = "for program in fuse2fs lklfuse squashfuse; do
            file=$(command -v $program) || continue
            mount --bind /dev/null $file
        done";
    let text = "
        refused 4 \"apt-get install fuse2fs\" ./ucrypt mount --key-file /no/key image m
        refused 4 \"apt-get install fuse2fs\" ./ucrypt mount --key-file /no/key --fstype ext3 image m
        refused 2 \"run as root\\|no permission\" ./ucrypt mount --key-file /no/key --as loop image m
        ./ucrypt doctor | grep \"^  mount  *no .*apt-get install fuse2fs\"
        [ -z \"$(./ucrypt list)\" ]";
    run(&mut nobodys_script(&scratch, before, text), b"").passes();
    nothing_is_left(&scratch);
}

#[test]
fn a_passphrase_that_an_agent_asks_for_opens_the_volume() {
    let scratch = Scratch::new();
    let image = with_file_system(&scratch);
    fs::create_dir(scratch.path("bin")).expect("made");
    let passphrase = String::from_utf8_lossy(PASSPHRASE);
    // The first answer is wrong, as if by a typing mistake.
    let agent = format!(
        "#!/bin/sh\necho \"$@\" >>{asked}\nif [ $(wc -l <{asked}) = 1 ]; then echo wrong; else echo \
         '{passphrase}'; fi\n",
        asked = scratch.path("asked").display()
    );
    scratch.file("agent", agent.as_bytes());
    let agent = scratch.program("bin/systemd-ask-password", scratch.path("agent"));
    fs::set_permissions(agent, Permissions::from_mode(0o755)).expect("set");
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", scratch.path("bin").display());
    let mut open = scratch.ucrypt(&["open", "--ask-password", "--test-passphrase"]);
    run(open.arg(&image.path).env("PATH", &path), b"").passes();
    let asked = fs::read_to_string(scratch.path("asked")).expect("asked");
    assert_eq!(asked.lines().count(), 2, "{asked}");
    assert!(asked.contains("Enter passphrase for") && !asked.contains(&*passphrase), "{asked}");
    let mut both =
        scratch.ucrypt(&["open", "--ask-password", "--key-file", "x", "--test-passphrase"]);
    run(both.arg(&image.path), b"").exits(1);
}

/// The kernel would wait for the key, and nothing can end who waits for the kernel.
#[test]
fn a_suspended_volume_is_neither_mounted_nor_unmounted_and_nobody_waits_for_its_key() {
    let scratch = Scratch::new();
    with_file_system(&scratch);
    let text = "
        ucrypt mount --as loop --key-file passphrase --name $name image m
        head -c 1000000 /dev/urandom >data
        cp data m/data
        ucrypt luksSuspend $name
        refused 5 luksResume ucrypt umount m
        refused 5 luksResume ucrypt umount $name
        ucrypt luksResume --key-file passphrase $name
        cmp data m/data
        ucrypt umount m
        ucrypt open --as loop --key-file passphrase image $name
        ucrypt luksSuspend $name
        refused 5 luksResume ucrypt mount $name m
        ucrypt luksResume --key-file passphrase $name
        ucrypt mount $name m
        cmp data m/data
        ucrypt umount m
        ucrypt close $name";
    run(&mut root_script(&scratch, text), b"").passes();
    nothing_is_left(&scratch);
}

#[test]
fn what_others_have_mounted_over_a_volume_stays() {
    let scratch = Scratch::new();
    with_file_system(&scratch);
    let text = "
        ucrypt mount --as loop --key-file passphrase --name $name image m
        mount -t tmpfs something m
        echo precious >m/file
        refused 5 'something is mounted over it' ucrypt umount $name
        [ \"$(cat m/file)\" = precious ]
        umount m
        ucrypt umount $name";
    run(&mut root_script(&scratch, text), b"").passes();
    nothing_is_left(&scratch);
}

#[test]
fn a_volume_that_closes_with_its_last_user_is_unmounted_as_others_are() {
    let scratch = Scratch::new();
    with_file_system(&scratch);
    let text = "
        ucrypt mount --as loop --key-file passphrase --name $name image m
        echo kept >m/file
        ucrypt close --deferred $name
        ucrypt luksSuspend $name
        ucrypt list | grep suspended
        refused 5 luksResume ucrypt umount m
        ucrypt luksResume --key-file passphrase $name
        ucrypt umount m
        while ucrypt list | grep $name; do sleep 0.05; done
        ucrypt mount --as loop --key-file passphrase --name $name image m
        [ \"$(cat m/file)\" = kept ]
        ucrypt umount m";
    run(&mut root_script(&scratch, text), b"").passes();
    nothing_is_left(&scratch);
}

#[test]
fn nobody_waits_for_a_server_that_stands_still_to_unmount_its_volume() {
    let scratch = Scratch::new();
    with_file_system(&scratch);
    let text = "
        ucrypt mount --as loop --key-file passphrase --name $name image m
        echo kept >m/file
        server=$(ucrypt status --json $name | sed -n 's/ *\"pid\": \\([0-9]*\\).*/\\1/p')
        kill -STOP $server
        trap \"kill -CONT $server || true\" EXIT
        refused 4 'does not answer' ucrypt umount m
        # By its device, too: it is not taken for an image, from which nobody could read.
        mkdir other
        refused 4 'does not answer' ucrypt mount /dev/ucrypt/$name other
        refused 4 'does not answer' ucrypt umount /dev/ucrypt/$name
        kill -CONT $server
        [ \"$(cat m/file)\" = kept ]
        ucrypt umount m";
    run(&mut root_script(&scratch, text), b"").passes();
    nothing_is_left(&scratch);
}

#[test]
fn volumes_are_mounted_and_unmounted_where_there_is_no_directory_for_temporary_files() {
    let scratch = Scratch::new();
    with_file_system(&scratch);
    let text = "
        export TMPDIR=/no/such/directory
        ucrypt mount --key-file passphrase --name $name image m
        ucrypt umount m
        refused 4 'wrong fs type\\|unknown filesystem' \
            ucrypt mount --fstype xfs --key-file passphrase --name $name image m
        [ -z \"$(ucrypt list)\" ]";
    run(&mut root_script(&scratch, text), b"").passes();
    nothing_is_left(&scratch);
}

#[test]
fn a_link_to_a_mounted_directory_is_unmounted_wherever_it_leads_through() {
    let scratch = Scratch::new();
    with_file_system(&scratch);
    let text = "
        mkdir -p d/deep; ln -s ../../m d/deep/link; ln -s deep/link d/link; ln -s loop loop
        for place in d/deep/link d/link ./d/deep/../link; do
            ucrypt mount --key-file passphrase --name $name image m
            ucrypt umount $place
            ! mountpoint -q m
        done
        refused 4 'nothing is mounted at loop' ucrypt umount loop";
    run(&mut root_script(&scratch, text), b"").passes();
    nothing_is_left(&scratch);
}

/// The log of XFS has room, and the places of what it describes have none: the kernel finds that out
/// while it unmounts, and says nothing.
#[test]
fn what_the_kernel_could_not_store_while_it_unmounted_is_told() {
    tool("mkfs.xfs", "xfsprogs");
    let scratch = Scratch::new();
    scratch.file("passphrase", PASSPHRASE);
    let text = "
        mkdir small; mount -t tmpfs -o size=160m none small
        truncate -s 400M small/image
        ucrypt luksFormat -q --pbkdf pbkdf2 --pbkdf-force-iterations 1000 --key-file passphrase small/image
        ucrypt open --key-file passphrase --as loop small/image $name
        mkfs.xfs -q /dev/ucrypt/$name
        ucrypt close $name
        fill() {
            mkdir m/$1
            seq -f m/$1/d%g 60 | xargs mkdir
            for directory in m/$1/*; do seq -f $directory/f%g 40 | xargs touch; done
            head -c 300M /dev/zero >small/fill 2>/dev/null || true
        }
        ucrypt mount --key-file passphrase --name $name small/image m
        fill one
        refused 4 'what was written last may be missing' ucrypt umount m
        grep -q 'is closed, but' said
        [ -z \"$(ucrypt list)\" ]
        # The same if the volume stays open.
        rm small/fill
        ucrypt open --key-file passphrase --as loop small/image $name
        ucrypt mount $name m
        fill two
        refused 4 'is unmounted, but' ucrypt umount m
        ucrypt close $name || true";
    run(&mut root_script(&scratch, text), b"").passes();
}

#[test]
fn mounts_of_images_of_one_name_at_the_same_time_get_a_name_each() {
    let scratch = Scratch::new();
    let image = with_file_system(&scratch);
    let name = scratch.unique();
    for dir in ["a", "b", "c"] {
        fs::create_dir(scratch.path(dir)).expect("made");
        fs::copy(&image.path, scratch.path(&format!("{dir}/{name}"))).expect("copied");
    }
    let text = "
        mkdir ma mb mc
        for round in 1 2 3; do
            mounts=
            for dir in a b c; do
                ucrypt mount --key-file passphrase $dir/$name m$dir &
                mounts=\"$mounts $!\"
            done
            for mount in $mounts; do wait $mount; done
            [ $(ucrypt list | grep -c \"^$(echo $name | cut -c -10)\") = 3 ]
            ucrypt umount ma mb mc
            [ -z \"$(ucrypt list)\" ]
        done";
    run(&mut root_script(&scratch, text), b"").passes();
    nothing_is_left(&scratch);
}

/// `fuse2fs` writes the path into its own options, in which a comma ends one.
#[test]
fn a_name_that_file_systems_in_user_space_take_for_options_is_refused_before_a_passphrase() {
    tool("fuse2fs", "fuse2fs");
    let scratch = scratch_of_nobody();
    let text = "
        refused 1 \"cannot mount\" ./ucrypt mount --key-file /no/key --name a,ro image m
        ./ucrypt open --as fuse --key-file passphrase image a,ro
        refused 1 \"cannot mount\" ./ucrypt mount a,ro m
        ! mountpoint -q m
        ./ucrypt close a,ro
        # What has to be escaped in the table of mounts has not to be here.
        ./ucrypt mount --key-file passphrase --name \"a b\" image m
        ./ucrypt umount m
        [ -z \"$(./ucrypt list)\" ]";
    run(&mut nobodys_script(&scratch, "", text), b"").passes();
    nothing_is_left(&scratch);
}

#[test]
fn a_device_that_has_the_number_of_a_killed_servers_is_another_volumes() {
    let scratch = Scratch::new();
    let image = with_file_system(&scratch);
    fs::copy(&image.path, scratch.path("other")).expect("copied");
    let text = "
        mkdir n
        ucrypt mount --as loop --key-file passphrase --name $name image m
        server=$(ucrypt status --json $name | sed -n 's/ *\"pid\": \\([0-9]*\\).*/\\1/p')
        kill -KILL $server
        while [ -e /proc/$server ]; do :; done
        umount m; losetup -d \"$(readlink /dev/ucrypt/$name)\"
        ucrypt mount --as loop --key-file passphrase --name $name-2 other n
        # Mostly it is so by itself.
        ln -sfn \"$(readlink /dev/ucrypt/$name-2)\" /dev/ucrypt/$name
        echo kept >n/file
        ucrypt umount n
        [ ! -e /dev/ucrypt/$name-2 ]
        ucrypt mount --as loop --key-file passphrase --name $name-2 other n
        ln -sfn \"$(readlink /dev/ucrypt/$name-2)\" /dev/ucrypt/$name
        refused 4 'was killed' ucrypt umount $name
        [ \"$(cat n/file)\" = kept ]
        ucrypt umount n
        [ -z \"$(ucrypt list)\" ]";
    run(&mut root_script(&scratch, text), b"").passes();
    nothing_is_left(&scratch);
}

#[test]
fn a_volume_that_is_open_to_read_is_not_mounted_with_rw() {
    let scratch = Scratch::new();
    with_file_system(&scratch);
    let text = "
        ucrypt open --readonly --as loop --key-file passphrase image $name
        refused 1 'for reading only' ucrypt mount -o rw $name m
        ucrypt mount $name m
        ucrypt umount m
        ucrypt close $name";
    run(&mut root_script(&scratch, text), b"").passes();
    nothing_is_left(&scratch);
}

/// It is a mount, too, and the advice to unmount it would have ended the export.
#[test]
fn umount_of_the_path_of_a_served_file_closes_the_volume_that_nobody_has_mounted() {
    let scratch = Scratch::new();
    let image = scratch.sparse("image", 1 << 20).display().to_string();
    for in_its_directory in [false, true] {
        let open = ["open", "--cipher", "none", "--as", "fuse", &image, "volume"];
        let path = run(&mut scratch.ucrypt(&open), b"").text();
        let place = if in_its_directory { "volume" } else { path.trim() };
        let mut umount = scratch.ucrypt(&["umount", place]);
        run(umount.current_dir(scratch.runtime("")), b"").passes();
        assert_eq!(run(&mut scratch.ucrypt(&["list"]), b"").text(), "");
    }
}
