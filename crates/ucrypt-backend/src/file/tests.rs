//! The same tests for the three ways to carry operations out.

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use io_uring::{opcode, types};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::{FileBackend, IoMethod, OpenError, OpenOptions, lock, threads};
use crate::{Backend, Buf, Done, Errno, Io, Pool, Queue, memory, total_len};

const PAGE: usize = 4096;

/// An image of `len` zero bytes on the file system of the temporary directory.
fn image(dir: &Path, len: u64) -> std::path::PathBuf {
    let path = dir.join("image");
    std::fs::File::create(&path).unwrap().set_len(len).unwrap();
    path
}

fn open(path: &Path) -> FileBackend {
    FileBackend::open(path, OpenOptions::default()).unwrap()
}

fn threaded(path: &Path) -> FileBackend {
    let mut backend = open(path);
    let error = std::io::Error::from(std::io::ErrorKind::Unsupported);
    backend.method = IoMethod::Threads(threads::Threads::new(&backend.files, Some(&error)));
    backend
}

fn direct(path: &Path) -> FileBackend {
    FileBackend::open(path, OpenOptions { direct: true, ..OpenOptions::default() }).unwrap()
}

/// A way to use an image, and what opens it so.
type Way = (&'static str, fn(&Path) -> FileBackend);

/// The ways to use a file of a disk.
const FILE_WAYS: [Way; 3] =
    [("as chosen for a file", open), ("threads", threaded), ("direct", direct)];

/// Each way, over an image of `len` bytes.
fn every_way(len: u64, prove: impl Fn(&str, &FileBackend)) {
    let dir = tempfile::tempdir().unwrap();
    for (way, open) in FILE_WAYS {
        prove(way, &open(&image(dir.path(), len)));
    }
    prove("memory", &memory(len).unwrap());
}

/// Polls, and sleeps on the queue's descriptor, like a caller that also waits for other things.
fn sleep_until_answered(queue: &mut dyn Queue, way: &str) -> Done {
    let patience = Timespec { tv_sec: 30, tv_nsec: 0 };
    let mut done = Vec::new();
    loop {
        queue.poll(&mut done).unwrap();
        if let Some(done) = done.pop() {
            return done;
        }
        let fd = queue.fd().expect("it does not answer at once");
        let woken = poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&patience));
        assert_eq!(woken, Ok(1), "{way}: nobody is woken, and nothing is answered");
    }
}

/// Waits until nothing is under way.
fn drain(queue: &mut dyn Queue, count: usize) -> Vec<Done> {
    let mut done = Vec::new();
    while done.len() < count {
        queue.wait(&mut done).unwrap();
    }
    done.sort_by_key(|done| done.token);
    done
}

/// Carries out one operation alone.
fn result_of(queue: &mut dyn Queue, io: Io) -> Result<(), Errno> {
    queue.submit(io);
    drain(queue, 1)[0].result
}

fn buf(pool: &Pool, len: usize, fill: u8) -> Buf {
    let mut buf = pool.alloc(len).unwrap();
    buf.fill(fill);
    buf
}

#[test]
fn what_is_written_reads_back_at_any_alignment() {
    every_way(1 << 20, |way, backend| {
        let pool = Pool::new(1 << 20).unwrap();
        let mut queue = backend.queue(8).unwrap();
        let places = [(0, PAGE), (PAGE as u64, 512), (70_001, 3), (131_072, 65_536)];
        for (token, &(offset, len)) in places.iter().enumerate() {
            let bufs = vec![buf(&pool, len, token as u8 + 1)];
            queue.submit(Io::Write { token: token as u64, offset, bufs, fua: token == 1 });
        }
        for done in drain(queue.as_mut(), places.len()) {
            assert_eq!(done.result, Ok(()), "{way}");
        }
        for (token, &(offset, len)) in places.iter().enumerate() {
            let bufs = vec![pool.alloc(len).unwrap()];
            queue.submit(Io::Read { token: token as u64, offset, bufs });
        }
        for done in drain(queue.as_mut(), places.len()) {
            let buf = &done.bufs[0];
            assert_eq!((done.result, buf.len()), (Ok(()), places[done.token as usize].1), "{way}");
            assert!(buf.iter().all(|&byte| byte == done.token as u8 + 1), "{way} {}", done.token);
        }
    });
}

#[test]
fn several_buffers_are_one_operation_in_their_order() {
    every_way(1 << 20, |way, backend| {
        let pool = Pool::new(1 << 20).unwrap();
        let mut queue = backend.queue(2).unwrap();
        let lens = [PAGE, 512, 3, 70_000];
        let bufs = lens.iter().zip(1..).map(|(&len, fill)| buf(&pool, len, fill)).collect();
        queue.submit(Io::Write { token: 0, offset: 100, bufs, fua: false });
        assert_eq!(drain(queue.as_mut(), 1)[0].result, Ok(()), "{way}");
        let bufs = [PAGE + 512, 70_003].map(|len| pool.alloc(len).unwrap()).into();
        queue.submit(Io::Read { token: 1, offset: 100, bufs });
        let done = drain(queue.as_mut(), 1).remove(0);
        assert_eq!((done.result, done.bufs.len()), (Ok(()), 2), "{way}");
        let read: Vec<u8> = done.bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
        let expected = lens.iter().zip(1u8..).flat_map(|(&len, fill)| vec![fill; len]);
        assert!(read.into_iter().eq(expected), "{way}");
    });
}

#[test]
fn a_read_beyond_the_end_of_the_file_is_an_error() {
    every_way(8192, |way, backend| {
        let pool = Pool::new(1 << 16).unwrap();
        let mut queue = backend.queue(2).unwrap();
        queue.submit(Io::Read { token: 7, offset: 4096, bufs: vec![pool.alloc(8192).unwrap()] });
        let done = drain(queue.as_mut(), 1).remove(0);
        assert_eq!((done.token, done.result), (7, Err(Errno::IO)), "{way}");
        assert_eq!(total_len(&done.bufs), 8192, "{way}");
    });
}

/// How many pages of a range of a file are in the page cache.
#[expect(unsafe_code, reason = "mincore(2) looks at a mapping")]
fn cached_pages(path: &Path, range: std::ops::Range<usize>) -> usize {
    let file = std::fs::File::open(path).unwrap();
    let len = usize::try_from(file.metadata().unwrap().len()).unwrap();
    // SAFETY: a number is asked for.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap();
    let mut pages = vec![0_u8; len.div_ceil(page)];
    // SAFETY: a new mapping, which nobody reads; `pages` has a byte for each of its pages.
    unsafe {
        let protection = libc::PROT_READ;
        let start = std::ptr::null_mut();
        let map = libc::mmap(start, len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(map, libc::MAP_FAILED);
        assert_eq!(libc::mincore(map, len, pages.as_mut_ptr()), 0);
        assert_eq!(libc::munmap(map, len), 0);
    }
    pages[range.start / page..range.end.div_ceil(page)].iter().filter(|page| *page & 1 == 1).count()
}

/// Regression: the kernel keeps pages of which only a part is to be dropped, so what was written
/// was compared with the cache.
#[test]
fn what_is_forgotten_is_read_from_the_disk_again_whatever_its_place() {
    const LEN: usize = 4 << 20;
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), LEN as u64);
    let backend = open(&path);
    if matches!(backend.method, IoMethod::AtOnce) {
        println!("not checked: {} is in memory", path.display());
        return;
    }
    let mut random = fastrand::Rng::with_seed(31);
    let mut places = vec![(0, 592), (0, 512), (512, 3584), (4096, 128_000), (LEN - 1, 1)];
    for _ in 0..20 {
        let offset = random.usize(..LEN);
        places.push((offset, random.usize(1..=(LEN - offset).min(300_000))));
    }
    for (offset, len) in places {
        // All of it is cached, in pages and folios of any size.
        std::fs::write(&path, vec![7; LEN]).unwrap();
        backend.write_all_at(offset as u64, &vec![8; len]).unwrap();
        backend.sync().unwrap();
        let cached = || cached_pages(&path, offset..offset + len);
        assert!(cached() > 0, "{len} bytes at {offset}: nothing was cached");
        backend.forget_cached(offset as u64, len as u64);
        assert_eq!(cached(), 0, "pages of {len} bytes at {offset}");
    }
    backend.forget_cached(u64::MAX - 5, 3);
    backend.forget_cached(0, u64::MAX);
}

/// Regression: the rest of a partial operation stayed in the queue and reached the kernel only at
/// the next poll, which a caller woken by the descriptor never makes.
#[test]
fn what_the_kernel_does_in_part_goes_on_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), 0);
    let pool = Pool::new(16 << 20).unwrap();
    for (way, open) in FILE_WAYS {
        image(dir.path(), 2 << 20);
        let backend = open(&path);
        let mut queue = backend.queue(4).unwrap();
        // More buffers than the kernel takes in one operation.
        let many = || (0..3000).map(|_| buf(&pool, 512, 7)).collect::<Vec<_>>();
        queue.submit(Io::Write { token: 1, offset: 4096, bufs: many(), fua: false });
        assert_eq!(sleep_until_answered(&mut *queue, way).result, Ok(()), "{way}");
        queue.submit(Io::Read { token: 2, offset: 4096, bufs: many() });
        assert_eq!(sleep_until_answered(&mut *queue, way).result, Ok(()), "{way}");
        // A file that is cut off within the range read.
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_len(512 << 10).unwrap();
        queue.submit(Io::Read { token: 3, offset: 0, bufs: vec![buf(&pool, 1 << 20, 0)] });
        assert_eq!(sleep_until_answered(&mut *queue, way).result, Err(Errno::IO), "{way}");
    }
}

/// Each way to use a file that may be cut off, with the path of an image.
fn every_file(prove: impl Fn(&str, &Path, fn(&Path) -> FileBackend)) {
    let dir = tempfile::tempdir().unwrap();
    for (way, open) in FILE_WAYS {
        prove(way, &dir.path().join("image"), open);
    }
    let in_memory = tempfile::tempdir_in("/dev/shm").unwrap();
    prove("in memory", &in_memory.path().join("image"), open);
}

/// The length of an image, and the one to which it is cut off.
const LEN: u64 = 1 << 20;
const CUT: u64 = 256 << 10;

fn set_len(path: &Path, len: u64) {
    std::fs::File::options().write(true).open(path).and_then(|it| it.set_len(len)).unwrap();
}

/// Regression: a write behind the end made a file that had been cut off grow again, and what was cut off read as zeroes.
#[test]
fn a_file_that_is_cut_off_does_not_grow_again_and_its_flushes_fail() {
    let pool = Pool::new(1 << 20).unwrap();
    every_file(|way, path, open| {
        // What is done first after the cut.
        for first in ["write", "read", "flush", "zeroes"] {
            image(path.parent().unwrap(), LEN);
            let backend = open(path);
            let mut queue = backend.queue(4).unwrap();
            let mut act = |io: &str, offset: u64| {
                let bufs = vec![buf(&pool, PAGE, 7)];
                let io = match io {
                    "write" => Io::Write { token: 1, offset, bufs, fua: false },
                    "read" => Io::Read { token: 1, offset, bufs },
                    "zeroes" => Io::WriteZeroes { token: 1, offset, len: PAGE as u64 },
                    "discard" => Io::Discard { token: 1, offset, len: PAGE as u64 },
                    _ => Io::Flush { token: 1 },
                };
                result_of(queue.as_mut(), io)
            };
            let end = LEN - PAGE as u64;
            assert_eq!((act("write", 0), act("write", end)), (Ok(()), Ok(())));
            set_len(path, CUT);
            assert_eq!(act(first, end), Err(Errno::IO), "{way}: {first}");
            assert_eq!(std::fs::metadata(path).unwrap().len(), CUT, "{way}: {first}");
            // Who makes it long again has not brought back what it held.
            set_len(path, LEN);
            for io in ["read", "write", "zeroes", "discard"] {
                assert_eq!(
                    act(io, CUT),
                    Err(Errno::IO),
                    "{way}: {first}, then {io} of the lost part"
                );
                assert_eq!(act(io, 0), Ok(()), "{way}: {first}, then {io} of what is left");
            }
            assert_eq!(act("flush", 0), Err(Errno::IO), "{way}: {first}");
        }
    });
}

/// Regression: zeroes did not count as written, so the next flush said that they were safe.
#[test]
fn zeroes_that_are_cut_off_before_they_are_flushed_fail_the_flush() {
    every_file(|way, path, open| {
        let backend = open(&image(path.parent().unwrap(), LEN));
        let mut queue = backend.queue(4).unwrap();
        let mut act = |io| result_of(queue.as_mut(), io);
        let (offset, len) = (LEN - PAGE as u64, PAGE as u64);
        assert_eq!(act(Io::WriteZeroes { token: 1, offset, len }), Ok(()), "{way}");
        set_len(path, CUT);
        assert_eq!(act(Io::Flush { token: 1 }), Err(Errno::IO), "{way}");
    });
}

#[test]
fn a_file_that_is_cut_off_behind_a_volume_that_was_made_smaller_is_whole() {
    let pool = Pool::new(1 << 20).unwrap();
    every_file(|way, path, open| {
        let backend = open(&image(path.parent().unwrap(), LEN));
        let mut queue = backend.queue(4).unwrap();
        let mut act = |io| result_of(queue.as_mut(), io);
        let write =
            |offset| Io::Write { token: 1, offset, bufs: vec![buf(&pool, PAGE, 7)], fua: false };
        assert_eq!(act(write(LEN - PAGE as u64)), Ok(()), "{way}");
        assert_eq!(act(Io::Flush { token: 1 }), Ok(()), "{way}");
        set_len(path, CUT);
        assert_eq!((act(write(0)), act(Io::Flush { token: 1 })), (Ok(()), Ok(())), "{way}");
    });
}

/// Regression: two flushes that overlapped forgot nothing, and a write was answered after the flush of a volume that
/// was made smaller had begun. Both made a loss of what nobody needs any more.
#[test]
fn what_lies_behind_the_end_in_use_is_no_loss_however_flushes_overlap() {
    let pool = Pool::new(1 << 20).unwrap();
    every_file(|way, path, open| {
        for in_time in [true, false] {
            let backend = open(&image(path.parent().unwrap(), LEN));
            let (cut, file) = (&backend.files.cut, backend.files.buffered.as_fd());
            let mut queue = backend.queue(4).unwrap();
            let mut act = |io| result_of(queue.as_mut(), io);
            let (offset, bufs) = (LEN - PAGE as u64, vec![buf(&pool, PAGE, 7)]);
            let write = Io::Write { token: 1, offset, bufs, fua: false };
            let of_a_client = cut.begin_flush();
            if in_time {
                assert_eq!(act(write), Ok(()), "{way}");
                assert_eq!(act(Io::Flush { token: 1 }), Ok(()), "{way}");
            } else {
                let of_the_resize = cut.begin_flush();
                assert_eq!(act(write), Ok(()), "{way}");
                assert_eq!(cut.end_flush(of_the_resize, file, Ok(())), Ok(()), "{way}");
            }
            backend.use_until(CUT);
            set_len(path, CUT);
            assert_eq!(cut.end_flush(of_a_client, file, Ok(())), Ok(()), "{way}, {in_time}");
            assert_eq!(act(Io::Flush { token: 1 }), Ok(()), "{way}, {in_time}");
            // Larger again: what is behind the end counts again.
            set_len(path, LEN);
            backend.use_until(LEN);
            let bufs = vec![buf(&pool, PAGE, 7)];
            assert_eq!(act(Io::Write { token: 1, offset, bufs, fua: false }), Ok(()), "{way}");
            set_len(path, CUT);
            assert_eq!(act(Io::Flush { token: 1 }), Err(Errno::IO), "{way}, {in_time}");
        }
    });
}

/// Regression: the end of a flush, or of a durable write elsewhere, made the watch forget what it had not covered.
#[test]
fn what_is_answered_while_a_flush_is_under_way_is_covered_by_the_next_one() {
    let dir = tempfile::tempdir().unwrap();
    let pool = Pool::new(1 << 20).unwrap();
    for (way, open) in [FILE_WAYS[0], FILE_WAYS[2]] {
        let durable = Io::Write { token: 1, offset: 0, bufs: vec![buf(&pool, PAGE, 7)], fua: true };
        for ended in [Io::Flush { token: 1 }, durable] {
            let path = image(dir.path(), LEN);
            let backend = open(&path);
            if !matches!(backend.method, IoMethod::Uring) {
                println!("not checked: {way} answers before anybody waits");
                return;
            }
            let [mut one, mut other] = [(); 2].map(|()| backend.queue(4).unwrap());
            let (offset, bufs) = (LEN - PAGE as u64, vec![buf(&pool, PAGE, 7)]);
            // Nothing is answered before the queue is asked.
            one.submit(Io::Write { token: 1, offset, bufs, fua: false });
            assert_eq!(result_of(other.as_mut(), ended), Ok(()), "{way}");
            assert_eq!(drain(one.as_mut(), 1)[0].result, Ok(()), "{way}");
            set_len(&path, CUT);
            let flushed = result_of(other.as_mut(), Io::Flush { token: 1 });
            assert_eq!(flushed, Err(Errno::IO), "{way}");
        }
    }
}

/// Regression: nobody watched a file in memory.
#[test]
fn what_is_written_in_place_and_cut_off_fails_the_flush_and_is_not_read_as_zeroes() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = image(dir.path(), LEN);
    let backend = open(&path);
    let (mut queue, map) = (backend.queue(4).unwrap(), backend.map().unwrap());
    // Of the unit whose presence is known.
    let end = LEN - LEN / 16;
    let fill = |offset| {
        map.write(offset, LEN as usize / 16, &mut |_, bytes| {
            bytes.fill(7);
            Ok(())
        })
    };
    assert_eq!((fill(0), fill(end)), (Some(Ok(())), Some(Ok(()))));
    set_len(&path, CUT);
    assert_eq!(result_of(queue.as_mut(), Io::Flush { token: 1 }), Err(Errno::IO));
    set_len(&path, LEN);
    assert!(map.at_hand(0, PAGE) && !map.at_hand(end, PAGE));
    assert!(map.read(0, PAGE, &mut |_, _| Ok(())).is_some());
    assert!(map.read(end, PAGE, &mut |_, _| Ok(())).is_none() && fill(end).is_none());
    assert_eq!(map.read_exact(end, &mut [0; PAGE]), Err(Errno::IO));
}

#[test]
fn discarded_and_zeroed_ranges_read_as_zeroes_and_are_holes() {
    every_way(1 << 20, |way, backend| {
        let pool = Pool::new(2 << 20).unwrap();
        let mut queue = backend.queue(2).unwrap();
        queue.submit(Io::Write {
            token: 0,
            offset: 0,
            bufs: vec![buf(&pool, 1 << 20, 9)],
            fua: true,
        });
        drain(queue.as_mut(), 1);
        queue.submit(Io::Discard { token: 1, offset: 65536, len: 65536 });
        queue.submit(Io::WriteZeroes { token: 2, offset: 262_144, len: 4096 });
        let done = drain(queue.as_mut(), 2);
        assert!(done.iter().all(|done| done.result.is_ok()), "{way}");
        queue.submit(Io::Flush { token: 3 });
        assert_eq!(drain(queue.as_mut(), 1)[0].result, Ok(()), "{way}");
        for (offset, fill) in [(0, 9), (65536, 0), (131_071, 9), (262_144, 0), (266_240, 9)] {
            let len = if offset == 131_071 { 1 } else { 512 };
            let offset = if offset == 131_071 { 131_072 } else { offset };
            queue.submit(Io::Read { token: 4, offset, bufs: vec![pool.alloc(len).unwrap()] });
            let done = drain(queue.as_mut(), 1).remove(0);
            assert!(done.bufs[0].iter().all(|&byte| byte == fill), "{way} at {offset}");
        }
        let extents = backend.extents(0, 1 << 20, 16);
        assert_eq!(extents.iter().map(|extent| extent.len).sum::<u64>(), 1 << 20, "{way}");
        assert!(extents.iter().any(|extent| extent.hole && extent.len == 65536), "{way}");
    });
}

/// A device with blocks of 4096 bytes refuses smaller discards, and a volume has sectors of 512.
#[test]
fn discards_of_less_than_a_block_are_cut_to_whole_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), 1 << 20);
    for way in ["as chosen for a file", "threads"] {
        let mut backend = open(&path);
        Arc::get_mut(&mut backend.files).expect("nobody else has it").punch_align = 4096;
        if way == "threads" {
            let error = std::io::Error::from(std::io::ErrorKind::Unsupported);
            backend.method = IoMethod::Threads(threads::Threads::new(&backend.files, Some(&error)));
        }
        backend.write_all_at(0, &vec![9; 65536]).unwrap();
        let mut queue = backend.queue(4).unwrap();
        let places = [(512, 16384), (40_960, 512), (45_568, 1024), (u64::MAX - 100, 100)];
        for (token, (offset, len)) in places.into_iter().enumerate() {
            queue.submit(Io::Discard { token: token as u64, offset, len });
        }
        let done = drain(queue.as_mut(), places.len());
        assert!(done.iter().all(|done| done.result.is_ok()), "{way}: {done:?}");
        let mut bytes = vec![0; 65536];
        backend.read_exact_at(0, &mut bytes).unwrap();
        for (at, byte) in bytes.into_iter().enumerate() {
            let gone = (4096..16384).contains(&at);
            assert_eq!(byte, if gone { 0 } else { 9 }, "{way}: byte {at}");
        }
    }
}

/// A device that zeroes nothing by itself was asked all the same: it refused, and the kernel had dropped
/// its cache of the range before, with what was written there.
#[test]
fn zeroes_and_discards_that_are_refused_leave_what_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), 1 << 20);
    for way in ["as chosen for a file", "threads"] {
        let mut backend = open(&path);
        Arc::get_mut(&mut backend.files).expect("nobody else has it").punches = false;
        if way == "threads" {
            let error = std::io::Error::from(std::io::ErrorKind::Unsupported);
            backend.method = IoMethod::Threads(threads::Threads::new(&backend.files, Some(&error)));
        }
        backend.write_all_at(0, &vec![9; 65536]).unwrap();
        let mut queue = backend.queue(4).unwrap();
        queue.submit(Io::WriteZeroes { token: 0, offset: 0, len: 4096 });
        queue.submit(Io::Discard { token: 1, offset: 8192, len: 4096 });
        for done in drain(queue.as_mut(), 2) {
            assert_eq!(done.result, Err(Errno::OPNOTSUPP), "{way}, {}", done.token);
        }
        let mut bytes = vec![0; 65536];
        backend.read_exact_at(0, &mut bytes).unwrap();
        assert!(bytes.into_iter().all(|byte| byte == 9), "{way}");
    }
}

#[test]
fn many_operations_under_way_are_each_answered_once() {
    every_way(1 << 20, |way, backend| {
        let pool = Pool::new(1 << 20).unwrap();
        let mut queue = backend.queue(32).unwrap();
        let (mut next, mut seen, mut done) = (0u64, vec![false; 1000], Vec::new());
        while seen.contains(&false) {
            while queue.room() > 0 && next < 1000 {
                let bufs = vec![pool.alloc(PAGE).unwrap()];
                queue.submit(Io::Read { token: next, offset: next % 200 * PAGE as u64, bufs });
                next += 1;
            }
            queue.wait(&mut done).unwrap();
            for done in done.drain(..) {
                assert!(!std::mem::replace(&mut seen[done.token as usize], true), "{way}: twice");
                assert_eq!(done.result, Ok(()), "{way}");
            }
        }
    });
}

#[test]
fn dropping_a_queue_waits_for_what_is_under_way() {
    every_way(1 << 20, |way, backend| {
        let pool = Pool::new(1 << 20).unwrap();
        let mut queue = backend.queue(16).unwrap();
        for token in 0..16 {
            let bufs = vec![buf(&pool, PAGE, 5)];
            queue.submit(Io::Write { token, offset: token * PAGE as u64, bufs, fua: false });
        }
        let mut done = Vec::new();
        queue.poll(&mut done).unwrap();
        drop((queue, done));
        assert!(pool.alloc(1 << 20).is_some(), "{way}: a buffer is still held");
        let mut byte = [0];
        for token in 0..16 {
            backend.read_exact_at(token * PAGE as u64, &mut byte).unwrap();
            assert_eq!(byte, [5], "{way}: write {token} was lost");
        }
    });
}

#[test]
fn a_second_writer_is_refused_and_a_second_reader_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), 4096);
    let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
    let writer = open(&path);
    for options in [OpenOptions::default(), read_only] {
        let refused = FileBackend::open(&path, options).err().expect("refused");
        assert!(matches!(refused, OpenError::Locked { .. }), "{refused}");
    }
    let unlocked = OpenOptions { unlocked: true, ..read_only };
    FileBackend::open(&path, unlocked).expect("the header can still be looked at");
    drop(writer);
    let reader = FileBackend::open(&path, read_only).unwrap();
    FileBackend::open(&path, read_only).expect("readers share");
    let refused = FileBackend::open(&path, OpenOptions::default()).err().expect("refused");
    assert!(refused.is_busy());
    drop(reader);
    open(&path);
}

#[test]
fn a_closed_image_is_free_although_a_child_has_its_open_file_and_a_child_closes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), 4096);
    for direct in [false, true] {
        let writer = FileBackend::open(&path, OpenOptions { direct, ..OpenOptions::default() });
        let writer = writer.unwrap();
        // A fork gives a child the same open file.
        let childs = writer.files.buffered.as_fd().try_clone_to_owned().unwrap();
        // What the child does with its copy of the lock.
        drop(lock::Locked::of(childs.try_clone().unwrap(), rustix::process::Pid::INIT));
        let refused = FileBackend::open(&path, OpenOptions::default()).err().expect("refused");
        assert!(matches!(refused, OpenError::Locked { .. }), "the child has given it free");
        drop(writer);
        open(&path);
        drop(childs);
    }
}

/// Set in a process of its own, in which descriptors are few: the image.
const FEW_DESCRIPTORS: &str = "UCRYPT_BACKEND_TEST_FEW_DESCRIPTORS";

#[test]
fn without_descriptors_by_which_losses_are_told_there_is_no_image_and_no_queue() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    let Some(path) = std::env::var_os(FEW_DESCRIPTORS) else {
        let dir = tempfile::tempdir().unwrap();
        let path = image(dir.path(), 1 << 20);
        let mut other = std::process::Command::new(std::env::current_exe().unwrap());
        let name = "without_descriptors_by_which_losses_are_told_there_is_no_image_and_no_queue";
        other.args(["--exact", &format!("file::tests::{name}"), "--nocapture"]);
        let output = other.env(FEW_DESCRIPTORS, path).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        return;
    };
    let maximum = getrlimit(Resource::Nofile).maximum;
    // Descriptors are given out from the lowest free number on.
    let allow = |spare: i32| {
        setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
        let free = std::fs::File::open("/dev/null").unwrap().as_raw_fd();
        let current = Some(u64::try_from(free + spare).unwrap());
        setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    };
    let mut opened = 0;
    for spare in 0..8 {
        allow(spare);
        let Ok(backend) = FileBackend::open(Path::new(&path), OpenOptions::default()) else {
            continue;
        };
        opened += 1;
        assert!(backend.limits().synchronous || backend.files.losses.watches(), "{spare} spare");
    }
    assert!(opened > 0, "eight descriptors are enough for an image");
    allow(100);
    let backend = threaded(Path::new(&path));
    allow(0);
    assert!(backend.queue(8).is_err(), "its flushes would be told what another queue's are not");
    allow(100);
    backend.queue(8).expect("there are descriptors again");
}

#[test]
fn who_only_looks_gets_an_image_in_use_and_keeps_writers_from_one_that_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), 4096);
    let looking = OpenOptions { read_only: true, shared: true, ..OpenOptions::default() };
    let writer = open(&path);
    assert!(FileBackend::open(&path, looking).unwrap().is_in_use());
    // `shared` does not apply to openers that may write.
    let writing = OpenOptions { read_only: false, ..looking };
    assert!(FileBackend::open(&path, writing).err().expect("refused").is_busy());
    drop(writer);
    let reader = FileBackend::open(&path, looking).unwrap();
    assert!(!reader.is_in_use());
    assert!(FileBackend::open(&path, writing).err().expect("refused").is_busy());
    drop(reader);
    open(&path);
}

#[test]
fn what_is_no_disk_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let refused =
        FileBackend::open(dir.path(), OpenOptions { read_only: true, ..OpenOptions::default() });
    let text = refused.err().expect("refused").to_string();
    assert!(text.contains("is a directory"), "{text}");
    let missing = FileBackend::open(&dir.path().join("missing"), OpenOptions::default());
    let text = missing.err().expect("refused").to_string();
    assert!(text.contains("No such file"), "{text}");
}

#[test]
fn registered_and_other_memory_serve_one_queue() {
    let dir = tempfile::tempdir().unwrap();
    let backend = direct(&image(dir.path(), 1 << 20));
    let pools = [Pool::new(1 << 20).unwrap(), Pool::new(1 << 20).unwrap()];
    let mut queue = backend.queue(8).unwrap();
    let expected = matches!(backend.method, IoMethod::Uring) && backend.files.direct.is_some();
    assert_eq!(queue.register(&pools[0]), expected);
    assert!(!queue.register(&pools[1]), "one pool only");
    // From either pool, aligned for direct I/O and not, alone and in pieces.
    let places = [(0, PAGE), (PAGE, PAGE), (20_000, 300), (70_001, 3), (131_072, 65_536)];
    for fua in [false, true] {
        for (token, &(offset, len)) in places.iter().enumerate() {
            let fill = token as u8 + 1 + 100 * u8::from(fua);
            let mut whole = buf(&pools[token % 2], len, fill);
            let rest = whole.split_off(len / 2);
            let bufs = if token == 4 {
                vec![whole, rest]
            } else {
                whole.join(rest).unwrap();
                vec![whole]
            };
            queue.submit(Io::Write { token: token as u64, offset: offset as u64, bufs, fua });
        }
        assert!(drain(queue.as_mut(), places.len()).iter().all(|done| done.result.is_ok()));
        for pool in &pools {
            for (token, &(offset, len)) in places.iter().enumerate() {
                let bufs = vec![buf(pool, len, 0xee)];
                queue.submit(Io::Read { token: token as u64, offset: offset as u64, bufs });
            }
            for done in drain(queue.as_mut(), places.len()) {
                let fill = done.token as u8 + 1 + 100 * u8::from(fua);
                assert_eq!(done.result, Ok(()));
                assert!(done.bufs[0].iter().all(|&byte| byte == fill), "{}", done.token);
            }
        }
    }
    // The pools are dropped first: their memory outlives the ring all the same.
    drop(pools);
    drop(queue);
}

/// Found by the random client on a block device: transfers between memory that is not aligned and
/// whole blocks went through the page cache. A page that was read into it while a direct write was
/// under way was what later reads saw, and took the write back when it was written.
#[test]
fn memory_that_is_not_aligned_does_not_bring_the_page_cache_into_direct_io() {
    let dir = tempfile::tempdir().unwrap();
    // The file ends within a block.
    let len = (1 << 20) + 300;
    let error = std::io::Error::from(std::io::ErrorKind::Unsupported);
    for threads in [false, true] {
        let mut backend = direct(&image(dir.path(), len));
        if threads {
            backend.method = IoMethod::Threads(threads::Threads::new(&backend.files, Some(&error)));
        }
        let pool = Pool::new(4 << 20).unwrap();
        let mut queue = backend.queue(8).unwrap();
        let odd = |len: usize, fill: u8| {
            let mut buf = buf(&pool, len + PAGE, fill);
            buf.advance(7);
            buf.truncate(len);
            buf
        };
        let split = |len: usize, fill: u8| {
            let mut whole = odd(len, fill);
            let rest = whole.split_off(len / 3);
            vec![whole, rest]
        };
        let writes = [(0, PAGE), (5 * PAGE, 65_536), (512 << 10, 512 << 10)];
        for fua in [false, true] {
            let fill = |token: usize| token as u8 + 1 + 100 * u8::from(fua);
            for (token, &(offset, len)) in writes.iter().enumerate() {
                let (token, offset) = (token as u64, offset as u64);
                let bufs = split(len, fill(token as usize));
                queue.submit(Io::Write { token, offset, bufs, fua });
            }
            for done in drain(queue.as_mut(), writes.len()) {
                assert_eq!(done.result, Ok(()), "{threads}, {}", done.token);
                let fill = fill(done.token as usize);
                let kept = done.bufs.iter().all(|buf| buf.iter().all(|&byte| byte == fill));
                assert!(kept, "a write changed its data");
            }
            // Whole blocks and parts, one of them up to the end of the file.
            let reads = [
                (0, PAGE, fill(0)),
                (100, 300, fill(0)),
                (6 * PAGE - 1, 10_000, fill(1)),
                (512 << 10, 512 << 10, fill(2)),
                (1 << 20, 300, 0),
                ((1 << 20) + 299, 1, 0),
            ];
            for (token, &(offset, len, _)) in reads.iter().enumerate() {
                let (token, offset) = (token as u64, offset as u64);
                queue.submit(Io::Read { token, offset, bufs: split(len, 0xee) });
            }
            for done in drain(queue.as_mut(), reads.len()) {
                let (offset, len, fill) = reads[done.token as usize];
                assert_eq!(done.result, Ok(()), "{threads}, {offset}");
                assert_eq!(total_len(&done.bufs), len);
                let is_read = done.bufs.iter().all(|buf| buf.iter().all(|&byte| byte == fill));
                assert!(is_read, "{threads}, {offset}");
            }
        }
        let beyond = Io::Read { token: 0, offset: 1 << 20, bufs: split(301, 0) };
        queue.submit(beyond);
        assert_eq!(drain(queue.as_mut(), 1)[0].result, Err(Errno::IO), "beyond the end");
        if backend.files.direct.is_none() {
            println!("not checked: {} has no direct I/O", dir.path().display());
            return;
        }
        let cached = cached_pages(&dir.path().join("image"), 0..1 << 20);
        assert_eq!(cached, 0, "pages in the page cache, by threads: {threads}");
    }
}

#[test]
#[expect(unsafe_code, reason = "an entry names a descriptor")]
fn a_watched_descriptor_that_becomes_readable_before_the_wait_ends_it() {
    every_way(1 << 20, |way, backend| {
        let mut queue = backend.queue(4).unwrap();
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let (waker, never) = (eventfd(0, flags).unwrap(), eventfd(0, flags).unwrap());
        let never = Arc::new(never);
        let Some(mut ring) = queue.shared_ring() else { return };
        // Something else is under way, as an export's entries always are.
        let poll = opcode::PollAdd::new(types::Fd(never.as_raw_fd()), 1).build().user_data(1);
        // SAFETY: `never` is open until the entry has completed.
        unsafe { ring.push(poll) };
        assert!(ring.watch(waker.as_fd()).unwrap());
        let mut done = Vec::new();
        queue.poll(&mut done).unwrap();
        // The kernel posts the completion before the write returns.
        rustix::io::write(&waker, &1u64.to_ne_bytes()).unwrap();
        let (told, ended) = std::sync::mpsc::channel::<()>();
        let other = never.clone();
        let watchdog = std::thread::spawn(move || {
            let late = ended.recv_timeout(Duration::from_secs(10)).is_err();
            rustix::io::write(&*other, &1u64.to_ne_bytes()).unwrap();
            late
        });
        queue.wait(&mut done).unwrap();
        told.send(()).unwrap();
        assert!(!watchdog.join().unwrap(), "{way}: the wait missed it");
        while queue.shared_ring().unwrap().next().is_none() {
            queue.wait(&mut done).unwrap();
        }
    });
}
