//! Operations for which the kernel can start no thread, as at a container's limit of processes.
//!
//! The only test of its process, because it limits the threads of the process.

#![forbid(unsafe_code)]

use std::fs::File;
use std::thread;

use rustix::process::{Resource, Rlimit, Uid, geteuid, getrlimit, setrlimit};
use rustix::thread::set_thread_res_uid;
use ucrypt_backend::{Backend, Errno, FileBackend, Io, OpenOptions, Pool, Queue};

const LEN: u64 = 1 << 20;

fn run(queue: &mut dyn Queue, io: Io) -> Result<Vec<u8>, Errno> {
    queue.submit(io);
    let mut done = Vec::new();
    while done.is_empty() {
        queue.wait(&mut done).expect("a sound queue");
    }
    let done = done.remove(0);
    done.result.map(|()| done.bufs.iter().flat_map(|buf| buf.iter().copied()).collect())
}

/// Carries out an operation in a thread of its own while no other one can be started. (The kernel
/// keeps the first thread that it has started for a thread.)
fn run_alone(backend: &FileBackend, io: Io) -> Result<Vec<u8>, Errno> {
    let alone = || {
        let mut queue = backend.queue(8).expect("a queue");
        let limit = getrlimit(Resource::Nproc);
        // Root may start any number of threads, so this one becomes nobody's.
        if geteuid().is_root() {
            let nobody = Uid::from_raw(65534);
            set_thread_res_uid(nobody, nobody, nobody).expect("root may become nobody");
        }
        setrlimit(Resource::Nproc, Rlimit { current: Some(1), ..limit }).expect("a lower limit");
        assert!(thread::Builder::new().spawn(|| {}).is_err(), "there is room for a thread");
        let result = run(&mut *queue, io);
        setrlimit(Resource::Nproc, limit).expect("the limit as it was");
        result
    };
    thread::scope(|scope| scope.spawn(alone).join().expect("no panic"))
}

#[test]
fn where_no_thread_can_be_started_operations_are_carried_out_all_the_same() {
    // Not in memory: the target's directory is on a disk.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let path = dir.path().join("image");
    File::create(&path).and_then(|file| file.set_len(LEN)).expect("an image");
    for direct in [false, true] {
        let options = OpenOptions { direct, ..OpenOptions::default() };
        let backend = FileBackend::open(&path, options).expect("a backend");
        let pool = Pool::new(1 << 16).expect("memory");
        let filled = |byte| {
            let mut buf = pool.alloc(4096).expect("a page");
            buf.fill(byte);
            vec![buf]
        };
        let alone = |io| run_alone(&backend, io);
        let write = |offset, byte, fua| Io::Write { token: 0, offset, bufs: filled(byte), fua };
        let read = |offset| Io::Read { token: 0, offset, bufs: filled(0) };
        assert_eq!(alone(write(4096, 1, false)), Ok(vec![1; 4096]), "direct {direct}");
        assert_eq!(alone(write(8192, 2, true)), Ok(vec![2; 4096]), "direct {direct}");
        assert_eq!(alone(Io::Flush { token: 0 }), Ok(vec![]), "direct {direct}");
        assert_eq!(alone(read(4096)), Ok(vec![1; 4096]), "direct {direct}");
        assert_eq!(alone(read(8192)), Ok(vec![2; 4096]), "direct {direct}");
        let zeroes = Io::WriteZeroes { token: 0, offset: 4096, len: 4096 };
        assert_eq!(alone(zeroes), Ok(vec![]), "direct {direct}");
        assert_eq!(alone(read(4096)), Ok(vec![0; 4096]), "direct {direct}");
        assert_eq!(alone(Io::Discard { token: 0, offset: 8192, len: 4096 }), Ok(vec![]));
        assert_eq!(alone(read(8192)), Ok(vec![0; 4096]), "direct {direct}");
    }
}
