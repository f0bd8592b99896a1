//! Notices a stalled run, and reports what every thread waits for.

use std::fmt::Write;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A run without progress for this long hangs.
const LIMIT: Duration = Duration::from_secs(10);

/// How often to check.
const LOOK: Duration = Duration::from_millis(200);

/// The progress of one client.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Completed steps.
    steps: AtomicU64,
    /// The current step.
    doing: Mutex<String>,
}

impl Progress {
    /// The next step begins; the last one is done.
    pub(crate) fn begin(&self, what: String) {
        self.steps.fetch_add(1, Ordering::Relaxed);
        *self.doing.lock().unwrap_or_else(PoisonError::into_inner) = what;
    }
}

/// Watches until it is dropped.
#[derive(Debug)]
pub(crate) struct Watchdog {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// If no client makes progress, reports what the clients and the threads of these `processes`
    /// wait for, and calls `end`, which must make the clients fail.
    pub(crate) fn start(
        clients: Vec<Arc<Progress>>,
        processes: Vec<i32>,
        end: impl FnOnce() + Send + 'static,
    ) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let is_over = ended.clone();
        let watch = move || {
            let sum = || clients.iter().map(|one| one.steps.load(Ordering::Relaxed)).sum::<u64>();
            let (mut last, mut since) = (sum(), Instant::now());
            while !is_over.load(Ordering::Acquire) {
                thread::sleep(LOOK);
                let now = sum();
                if now != last {
                    (last, since) = (now, Instant::now());
                } else if since.elapsed() > LIMIT {
                    println!("nothing gets on for {LIMIT:?}:\n{}", report(&clients, &processes));
                    return end();
                }
            }
        };
        Self { ended, thread: Some(thread::spawn(watch)) }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // Its report is printed already.
            let _ = thread.join();
        }
    }
}

fn report(clients: &[Arc<Progress>], processes: &[i32]) -> String {
    let mut text = String::new();
    for (number, client) in clients.iter().enumerate() {
        let doing = client.doing.lock().unwrap_or_else(PoisonError::into_inner);
        let steps = client.steps.load(Ordering::Relaxed);
        let _ = writeln!(text, "client {number}, step {steps}: {doing}");
    }
    for process in processes.iter().copied().chain([std::process::id().cast_signed()]) {
        let tasks = fs::read_dir(format!("/proc/{process}/task"));
        for task in tasks.into_iter().flatten().filter_map(Result::ok) {
            let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
            let _ = writeln!(
                text,
                "process {process}, thread {}: in {}, system call {}\n{}",
                read("comm").trim(),
                read("wchan").trim(),
                read("syscall").trim(),
                read("stack").trim_end()
            );
        }
    }
    text
}
