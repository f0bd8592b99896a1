//! Helpers that the tests of this crate share.

#![allow(unreachable_pub, dead_code, reason = "shared by test binaries that each use a part")]

use std::sync::Arc;

use ucrypt_backend::{Backend, FileBackend, OpenOptions, memory};
use ucrypt_engine::{Io, PolicyKind, Queue, Segment, Volume, VolumeOptions};
use ucrypt_testkit::engine::aes;

/// A backend that carries out operations within `submit`, and one that uses io_uring.
pub fn backends(len: u64) -> Vec<(&'static str, Arc<dyn Backend>, Option<tempfile::TempDir>)> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::File::create(&path).unwrap().set_len(len).unwrap();
    let file = FileBackend::open(&path, OpenOptions::default()).unwrap();
    vec![("memory", Arc::new(memory(len).unwrap()), None), ("file", Arc::new(file), Some(dir))]
}

/// A volume of one encrypted segment, under the default policy.
pub fn volume(backend: Arc<dyn Backend>, offset: u64, len: u64, sector_size: u32) -> Arc<Volume> {
    volume_under(PolicyKind::default(), backend, offset, len, sector_size)
}

/// A volume of one encrypted segment.
pub fn volume_under(
    policy: PolicyKind,
    backend: Arc<dyn Backend>,
    offset: u64,
    len: u64,
    sector_size: u32,
) -> Arc<Volume> {
    let segment = Segment { len, backend_offset: offset, cipher: Some(aes(sector_size)) };
    let options =
        VolumeOptions { policies: policy.into(), workers: Some(3), ..VolumeOptions::default() };
    Arc::new(Volume::new(backend, vec![segment], options).unwrap())
}

/// Submits one operation and waits for it.
pub fn run(queue: &mut Queue, io: Io<'_>) -> ucrypt_engine::Done {
    queue.submit(42, io).unwrap();
    queue.wait().unwrap();
    let done = queue.next_done().expect("an answer");
    assert_eq!(done.tag, 42);
    done
}

/// Waits for all requests, with success. Allocates nothing.
#[track_caller]
pub fn drain(queue: &mut Queue) {
    while queue.in_flight() > 0 {
        queue.wait().unwrap();
        while let Some(done) = queue.next_done() {
            assert_eq!(done.result, Ok(()));
        }
    }
}

/// Writes borrowed bytes, with success.
pub fn write(queue: &mut Queue, offset: u64, data: &[u8]) {
    assert_eq!(run(queue, Io::write_borrowed(offset, data, false)).result, Ok(()));
}
