//! What each way to set a ring up is worth, one by one: random reads past the page cache.
//!
//! ```text
//! cargo bench -p ucrypt-backend --bench ring -- FILE [ROUNDS] [SECONDS]
//! ```
//!
//! FILE is a file or block device on a disk, of at least 1 MiB and written in full; it is only read. One thread
//! keeps 1, 4, 32 and 128 reads of 4 KiB in flight, and enters the kernel as the file backend does: all that
//! is new, then sleep until something is done. All ways take turns in every round, in random order. Printed are
//! reads a second and processor time (of the thread, and of the kernel in its calls) over those of the way that
//! the backend uses: median of the rounds, with quartiles.

#![expect(unsafe_code, reason = "the ring gets buffers by address")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, squeue, types};
use rustix::time::{ClockId, clock_gettime};

const LEN: usize = 4096;
const DEPTHS: [u32; 4] = [1, 4, 32, 128];

/// A way to set up and to use a ring.
#[derive(Clone, Copy, Default)]
struct Way {
    name: &'static str,
    coop: bool,
    single: bool,
    defer: bool,
    file: bool,
    buffers: bool,
}

/// The first is the backend's, as far as the buffers are not registered.
const WAYS: [Way; 8] = [
    Way { name: "`COOP_TASKRUN`", coop: true, ..PLAIN },
    Way { name: "no flags", ..PLAIN },
    Way { name: "`SINGLE_ISSUER`", single: true, ..PLAIN },
    Way { name: "`COOP_TASKRUN`, `SINGLE_ISSUER`", coop: true, single: true, ..PLAIN },
    Way { name: "`SINGLE_ISSUER`, `DEFER_TASKRUN`", single: true, defer: true, ..PLAIN },
    Way { name: "`COOP_TASKRUN`, registered file", coop: true, file: true, ..PLAIN },
    Way { name: "`COOP_TASKRUN`, registered buffers", coop: true, buffers: true, ..PLAIN },
    Way {
        name: "`SINGLE_ISSUER`, `DEFER_TASKRUN`, both registered",
        single: true,
        defer: true,
        file: true,
        buffers: true,
        ..PLAIN
    },
];
const PLAIN: Way =
    Way { name: "", coop: false, single: false, defer: false, file: false, buffers: false };

/// A page that a read goes to.
#[repr(align(4096))]
struct Page([u8; LEN]);

struct Reader<'a> {
    way: Way,
    ring: IoUring,
    file: &'a File,
    pages: Vec<Page>,
    places: u64,
}

impl<'a> Reader<'a> {
    fn new(way: Way, depth: u32, file: &'a File, len: u64) -> io::Result<Self> {
        let mut builder = IoUring::builder();
        if way.coop {
            builder.setup_coop_taskrun().setup_taskrun_flag();
        }
        if way.single {
            builder.setup_single_issuer();
        }
        if way.defer {
            builder.setup_defer_taskrun();
        }
        let ring = builder.build(depth)?;
        let mut pages: Vec<Page> = (0..depth).map(|_| Page([0; LEN])).collect();
        if way.file {
            ring.submitter().register_files(&[file.as_raw_fd()])?;
        }
        if way.buffers {
            let whole =
                libc::iovec { iov_base: pages.as_mut_ptr().cast(), iov_len: LEN * pages.len() };
            // SAFETY: the pages live as long as the ring, which waits for all reads.
            unsafe { ring.submitter().register_buffers(&[whole]) }?;
        }
        Ok(Self { way, ring, file, pages, places: len / LEN as u64 })
    }

    fn push(&mut self, index: usize) {
        let (to, offset) =
            (self.pages[index].0.as_mut_ptr(), fastrand::u64(..self.places) * LEN as u64);
        let (fd, fixed, len) = (types::Fd(self.file.as_raw_fd()), types::Fixed(0), LEN as u32);
        let entry: squeue::Entry = match (self.way.file, self.way.buffers) {
            (false, false) => opcode::Read::new(fd, to, len).offset(offset).build(),
            (true, false) => opcode::Read::new(fixed, to, len).offset(offset).build(),
            (false, true) => opcode::ReadFixed::new(fd, to, len, 0).offset(offset).build(),
            (true, true) => opcode::ReadFixed::new(fixed, to, len, 0).offset(offset).build(),
        };
        // SAFETY: `run` takes every completion before the pages go, or leaks them.
        unsafe { self.ring.submission().push(&entry.user_data(index as u64)) }
            .expect("the ring has room for the depth");
    }

    /// Keeps all pages busy for a while. Returns reads a second, and processor time of a read.
    fn run(mut self, time: Duration) -> io::Result<(f64, f64)> {
        let figures = self.keep_busy(time);
        if figures.is_err() {
            // The kernel may still write to them.
            std::mem::forget(std::mem::take(&mut self.pages));
        }
        figures
    }

    fn keep_busy(&mut self, time: Duration) -> io::Result<(f64, f64)> {
        for index in 0..self.pages.len() {
            self.push(index);
        }
        let (start, spent) = (Instant::now(), spent());
        let (mut done, mut under_way, mut free) = (0_u32, self.pages.len(), Vec::new());
        while under_way > 0 {
            self.ring.submit_and_wait(1)?;
            for completion in self.ring.completion() {
                match usize::try_from(completion.result()) {
                    Ok(LEN) => {}
                    Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Err(_) => return Err(io::Error::from_raw_os_error(-completion.result())),
                }
                free.push(completion.user_data() as usize);
            }
            under_way -= free.len();
            done += free.len() as u32;
            let goes_on = start.elapsed() < time;
            for index in free.drain(..).filter(|_| goes_on) {
                self.push(index);
                under_way += 1;
            }
        }
        let (took, spent) = (start.elapsed(), self::spent() - spent);
        Ok((f64::from(done) / took.as_secs_f64(), spent / f64::from(done)))
    }
}

/// Seconds of processor time of this process so far.
fn spent() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Median and quartiles of ratios.
fn shown(mut ratios: Vec<f64>) -> String {
    ratios.sort_by(f64::total_cmp);
    let at = |share: usize| ratios[(ratios.len() - 1) * share / 4];
    format!("{:.2} ({:.2}–{:.2})", at(2), at(1), at(3))
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let rounds: usize = words.get(1).map_or(15, |word| word.parse().expect("a number of rounds"));
    let seconds = words.get(2).map_or(0.4, |word| word.parse().expect("seconds"));
    let time = Duration::from_secs_f64(seconds);
    let Some(path) = words.first() else {
        eprintln!("usage: cargo bench -p ucrypt-backend --bench ring -- FILE [ROUNDS] [SECONDS]");
        std::process::exit(2);
    };
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(libc::O_DIRECT).open(path).expect("the file opens");
    let len = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0)).expect("it has an end");
    assert!(len >= 1 << 20, "the file is too short");
    // Where the file does not support what this measures, it fails here.
    let mut page = Box::new(Page([0; LEN]));
    file.read_exact_at(&mut page.0, 0).expect("a direct read of 4 KiB");

    println!("| | {} |", DEPTHS.map(|depth| format!("depth {depth}")).join(" | "));
    println!("|---|{}", "---:|".repeat(DEPTHS.len()));
    // By way and depth: reads a second and processor time of each round.
    let mut figures = vec![[const { Vec::<(f64, f64)>::new() }; DEPTHS.len()]; WAYS.len()];
    let mut refused = [false; WAYS.len()];
    for _ in 0..rounds {
        for (column, &depth) in DEPTHS.iter().enumerate() {
            let mut order: Vec<usize> = (0..WAYS.len()).collect();
            fastrand::shuffle(&mut order);
            for way in order {
                if refused[way] {
                    continue;
                }
                let reader = Reader::new(WAYS[way], depth, &file, len);
                match reader.and_then(|reader| reader.run(time)) {
                    Ok(figure) => figures[way][column].push(figure),
                    // A kernel that does not know the way, or too small a limit on locked memory.
                    Err(error) => {
                        eprintln!("{}: {error}", WAYS[way].name);
                        refused[way] = true;
                    }
                }
            }
        }
    }
    assert!(!refused[0], "the backend's own way works");
    for ((way, of_way), _) in
        WAYS.iter().zip(&figures).zip(refused).filter(|&(_, refused)| !refused)
    {
        let cells = of_way.iter().zip(&figures[0]).map(|(of_cell, base)| {
            let ratios = |pick: fn(&(f64, f64)) -> f64| {
                shown(of_cell.iter().zip(base).map(|(mine, its)| pick(mine) / pick(its)).collect())
            };
            format!("{}<br>{}", ratios(|figure| figure.0), ratios(|figure| figure.1))
        });
        println!("| {} | {} |", way.name, cells.collect::<Vec<_>>().join(" | "));
    }
    let middle = |of: fn(&(f64, f64)) -> f64, column: usize| {
        let mut all: Vec<f64> = figures[0][column].iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    let base: Vec<String> = (0..DEPTHS.len())
        .map(|column| {
            let (reads, spent) = (middle(|f| f.0, column), middle(|f| f.1, column));
            format!("{reads:.0} reads/s, {:.1} µs", spent * 1e6)
        })
        .collect();
    println!("\n{}: {}", WAYS[0].name, base.join("; "));
}
