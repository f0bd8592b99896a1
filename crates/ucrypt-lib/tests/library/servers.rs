//! Volumes that are served, seen by other programs.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::process::Stdio;

use ucrypt_lib::{OpenOptions, ServeError};

use crate::images::{Image, KEY, passes, random, tool};

const SIZE: usize = 3 << 20;

#[test]
fn nbd_clients_read_and_write_the_volume_until_the_server_is_stopped() {
    let image = Image::new(SIZE as u64);
    let volume = image.open();
    let (data, socket) = (random(1, SIZE), image.dir.path().join("a socket"));
    volume.write_at(0, &data).expect("written");
    let server = volume.serve_nbd(&socket).expect("served");
    let again = volume.serve_nbd(&socket);
    assert!(matches!(again, Err(ServeError::InUse(_))), "{again:?}");
    let copy = image.dir.path().join("copy");
    passes(tool("nbdcopy", "libnbd-bin").arg(server.uri()).arg(&copy));
    assert!(fs::read(&copy).expect("a copy") == data);
    let other = random(2, SIZE);
    fs::write(&copy, &other).expect("written");
    passes(tool("nbdcopy", "libnbd-bin").arg("--flush").arg(&copy).arg(server.uri()));
    let mut seen = vec![0; SIZE];
    volume.read_exact_at(0, &mut seen).expect("read");
    assert!(seen == other, "what a client has written");
    drop(volume);
    assert!(OpenOptions::new().open(&image.path, KEY).is_err(), "the server has the image");
    server.stop().expect("flushed");
    assert!(!socket.exists());
    image.open().read_exact_at(0, &mut seen).expect("read");
    assert!(seen == other, "after the end");
}

#[test]
fn a_served_file_is_the_volume_until_it_is_stopped() {
    let image = Image::new(SIZE as u64);
    let volume = image.open();
    let (data, path) = (random(3, SIZE), image.dir.path().join("disk"));
    volume.write_at(0, &data).expect("written");
    let served = volume.serve_file(&path).expect("FUSE: apt-get install fuse3");
    assert_eq!(served.path(), path);
    assert!(fs::read(&path).expect("read") == data);
    let file = File::options().write(true).open(&path).expect("opened");
    file.write_all_at(b"by a program", 5000).expect("written");
    drop(file);
    let mut seen = [0; 12];
    volume.read_exact_at(5000, &mut seen).expect("read");
    assert_eq!(&seen, b"by a program");
    assert!(!served.has_ended());
    served.stop().expect("flushed");
    assert!(!path.exists());
    let missing = volume.serve_file(image.dir.path().join("no/such/place"));
    assert!(matches!(missing, Err(ServeError::System(_))), "{missing:?}");
}

#[test]
fn a_served_file_that_a_program_has_open_is_ended_by_its_stop_all_the_same() {
    let image = Image::new(SIZE as u64);
    let (volume, path) = (image.open(), image.dir.path().join("disk"));
    let served = volume.serve_file(&path).expect("FUSE: apt-get install fuse3");
    let file = File::options().read(true).write(true).open(&path).expect("opened");
    file.write_all_at(b"before", 0).expect("written");
    served.stop().expect("flushed");
    drop(volume);
    assert!(file.write_all_at(b"behind", 0).is_err(), "written behind the back of the flush");
    assert!(!path.exists());
    let mut seen = [0; 6];
    image.open().read_exact_at(0, &mut seen).expect("read");
    assert_eq!(&seen, b"before");
}

/// Whatever begins a mount namespace, such as a container, gets a copy of the mount, and keeps it.
#[test]
fn a_served_file_ends_although_another_mount_namespace_has_a_copy_of_it() {
    let image = Image::new(SIZE as u64);
    let (volume, path) = (image.open(), image.dir.path().join("disk"));
    // A place that is removed takes its mounts with it; this one stays.
    File::create(&path).expect("an empty file");
    let served = volume.serve_file(&path).expect("FUSE: apt-get install fuse3");
    let mut container = tool("unshare", "util-linux");
    let script = "echo; read -r _; ! cat \"$1\" 2>&1";
    container.args(["--map-root-user", "--mount", "sh", "-c", script, "sh"]).arg(&path);
    container.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut container = container.spawn().expect("a container");
    let said = container.stdout.as_mut().expect("its output").read_exact(&mut [0]);
    said.expect("it has begun");
    served.stop().expect("ended and flushed");
    drop(volume);
    image.open();
    drop(container.stdin.take());
    assert!(container.wait().expect("waited").success(), "the copy reads as if it were served");
}

#[test]
fn a_served_file_whose_directory_was_renamed_is_unmounted_where_it_is() {
    let image = Image::new(SIZE as u64);
    let (volume, dir) = (image.open(), image.dir.path().join("here"));
    fs::create_dir(&dir).expect("a directory");
    let served = volume.serve_file(dir.join("disk")).expect("FUSE: apt-get install fuse3");
    let there = image.dir.path().join("there");
    fs::rename(&dir, &there).expect("renamed");
    served.stop().expect("stopped");
    assert_eq!(fs::read_dir(&there).expect("a directory").count(), 0, "something is left");
}

#[test]
fn the_stop_of_a_served_file_that_cannot_be_unmounted_is_an_error() {
    let image = Image::new(SIZE as u64);
    let (volume, disk) = (image.open(), image.dir.path().join("disk"));
    let served = volume.serve_file(&disk).expect("FUSE: apt-get install fuse3");
    let other = image.dir.path().join("other");
    fs::write(&other, "something else").expect("written");
    passes(tool("mount", "mount").arg("--bind").arg(&other).arg(&disk));
    let stopped = served.stop();
    passes(tool("umount", "mount").arg(&disk));
    let ended = fs::read(&disk);
    passes(tool("umount", "mount").arg("--lazy").arg(&disk));
    assert!(
        matches!(&stopped, Err(ServeError::System(text)) if text.contains("stays mounted")),
        "{stopped:?}"
    );
    assert!(ended.is_err(), "it is served all the same");
}
