//! Looks at all processes. One that is about to run another program, or waits for a file system that does not answer,
//! keeps whoever reads its files in `/proc` waiting; a look passes over it after a while, and names it.

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ucrypt_backend::kernel_table;

/// How long to look at one process. Twice as much, and a look has time to pass over one process only.
const EACH: Duration = Duration::from_secs(1);

/// How many threads may wait for processes. Each keeps its stack until its process goes on.
const STUCK_MAX: usize = 8;

/// The processes that a thread waits for. No other thread looks at them.
struct Stuck(Mutex<BTreeSet<u32>>);

static STUCK: Stuck = Stuck::new();

impl Stuck {
    const fn new() -> Self {
        Self(Mutex::new(BTreeSet::new()))
    }

    fn set(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A process, which may have ended meanwhile.
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// Its directory in `/proc`.
    pub(crate) dir: PathBuf,
}

impl Process {
    fn new(pid: u32) -> Self {
        Self { pid, dir: Path::new("/proc").join(pid.to_string()) }
    }

    /// The name of its program, as the kernel shortens it. Reading it waits for nothing.
    pub(crate) fn command(&self) -> String {
        kernel_table(self.dir.join("comm")).unwrap_or_default().trim_end().into()
    }

    /// How messages name it.
    pub(crate) fn name(&self) -> String {
        format!("{} (process {})", self.command(), self.pid)
    }
}

/// How messages name a process, unless it has ended meanwhile.
pub(crate) fn name_if_there(pid: u32) -> Option<String> {
    let process = Process::new(pid);
    process.dir.exists().then(|| process.name())
}

/// What a look has found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Look<T> {
    pub(crate) found: Vec<T>,
    /// The processes that could not be looked at in time.
    pub(crate) unseen: Vec<u32>,
}

impl<T> Default for Look<T> {
    fn default() -> Self {
        Self { found: Vec::new(), unseen: Vec::new() }
    }
}

/// All processes but this one.
pub(crate) fn others() -> impl Iterator<Item = u32> {
    let all = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != std::process::id())
}

/// Visits these processes, one after the other, no longer than `until`.
pub(crate) fn look<T: Send + 'static>(
    processes: impl IntoIterator<Item = u32>,
    until: Instant,
    visit: impl Fn(&Process) -> Vec<T> + Send + Sync + 'static,
) -> Look<T> {
    look_at_each(&STUCK, processes, EACH, until, visit)
}

fn look_at_each<T: Send + 'static>(
    stuck: &'static Stuck,
    processes: impl IntoIterator<Item = u32>,
    each: Duration,
    until: Instant,
    visit: impl Fn(&Process) -> Vec<T> + Send + Sync + 'static,
) -> Look<T> {
    let tour = Arc::new(Tour {
        state: Mutex::new(State {
            left: processes.into_iter().collect(),
            at: None,
            turn: 0,
            has_ended: false,
            look: Look::default(),
        }),
        changed: Condvar::new(),
        stuck,
        visit: Box::new(visit),
    });
    if !tour.begin(0) {
        // There is no thread to have.
        tour.go(0);
    }
    tour.wait(each, until)
}

/// What is done with each process.
type Visit<T> = dyn Fn(&Process) -> Vec<T> + Send + Sync;

/// A look under way. One thread visits; who waits for it sends another one after it when it stays too long.
struct Tour<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    stuck: &'static Stuck,
    visit: Box<Visit<T>>,
}

struct State<T> {
    left: VecDeque<u32>,
    /// The process that is visited, and since when.
    at: Option<(u32, Instant)>,
    /// Which thread visits.
    turn: usize,
    has_ended: bool,
    look: Look<T>,
}

impl<T: Send + 'static> Tour<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a thread begins to visit.
    fn begin(self: &Arc<Self>, turn: usize) -> bool {
        let tour = self.clone();
        let thread = thread::Builder::new().name("users".into());
        thread.spawn(move || tour.go(turn)).is_ok()
    }

    fn go(&self, turn: usize) {
        let mut state = self.state();
        while let Some(pid) = state.left.pop_front() {
            if self.stuck.set().contains(&pid) {
                state.look.unseen.push(pid);
                continue;
            }
            state.at = Some((pid, Instant::now()));
            drop(state);
            let found = (self.visit)(&Process::new(pid));
            state = self.state();
            if state.turn != turn {
                // Others have gone on without it.
                self.stuck.set().remove(&pid);
                return;
            }
            state.at = None;
            state.look.found.extend(found);
        }
        state.has_ended = true;
        self.changed.notify_all();
    }

    fn wait(self: &Arc<Self>, each: Duration, until: Instant) -> Look<T> {
        let mut state = self.state();
        while !state.has_ended {
            let now = Instant::now();
            let since = state.at.map_or(now, |(_, since)| since);
            let over = until.min(since + each);
            if now < over {
                let woken = self.changed.wait_timeout(state, over - now);
                state = woken.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            state.turn += 1;
            let mut waiting = self.stuck.set();
            if let Some((pid, _)) = state.at.take() {
                waiting.insert(pid);
                state.look.unseen.push(pid);
            }
            let goes_on = now < until && waiting.len() < STUCK_MAX;
            drop(waiting);
            if !goes_on || !self.begin(state.turn) {
                let State { left, look, .. } = &mut *state;
                look.unseen.extend(left.drain(..));
                break;
            }
        }
        std::mem::take(&mut state.look)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::RwLock;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A minute, which no look in these tests takes.
    fn long() -> Instant {
        Instant::now() + Duration::from_mins(1)
    }

    /// Numbers that no process has.
    fn numbers(count: u32) -> impl Iterator<Item = u32> {
        (1..=count).map(|number| u32::MAX - number)
    }

    #[test]
    fn a_process_that_keeps_who_looks_waiting_is_passed_over_and_the_others_are_seen() {
        static STUCK: Stuck = Stuck::new();
        let bad: Vec<u32> = numbers(5).skip(1).take(2).collect();
        let gate = Arc::new(RwLock::new(()));
        let closed = gate.write().unwrap();
        let visits = Arc::new(AtomicUsize::new(0));
        let visit = {
            let (bad, gate, visits) = (bad.clone(), gate.clone(), visits.clone());
            move |process: &Process| {
                if bad.contains(&process.pid) {
                    visits.fetch_add(1, Ordering::SeqCst);
                    drop(gate.read());
                }
                vec![process.pid]
            }
        };
        let others: Vec<u32> = numbers(5).filter(|pid| !bad.contains(pid)).collect();
        for _ in 0..3 {
            // Who is kept from the processor for so long counts as one of the bad ones.
            let each = Duration::from_secs(5);
            let look = look_at_each(&STUCK, numbers(5), each, long(), visit.clone());
            assert_eq!(look, Look { found: others.clone(), unseen: bad.clone() });
        }
        assert_eq!(visits.load(Ordering::SeqCst), 2, "no second thread waits for a process");
        drop(closed);
        let until = long();
        while bad.iter().any(|pid| STUCK.set().contains(pid)) {
            assert!(Instant::now() < until, "the threads end");
            thread::sleep(Duration::from_millis(1));
        }
        let look = look_at_each(&STUCK, numbers(5), Duration::from_mins(1), long(), visit);
        assert_eq!(look, Look { found: numbers(5).collect(), unseen: vec![] });
    }

    #[test]
    fn a_look_ends_in_time_and_names_whom_it_has_not_seen() {
        static STUCK: Stuck = Stuck::new();
        let gate = Arc::new(RwLock::new(()));
        let closed = gate.write().unwrap();
        let visit = {
            let gate = gate.clone();
            move |process: &Process| {
                drop(gate.read());
                vec![process.pid]
            }
        };
        let until = Instant::now() + Duration::from_millis(50);
        let look = look_at_each(&STUCK, numbers(5), Duration::from_mins(1), until, visit);
        assert_eq!(look, Look { found: vec![], unseen: numbers(5).collect() });
        drop(closed);
    }

    #[test]
    fn processes_that_keep_who_looks_waiting_do_not_use_up_the_threads() {
        static STUCK: Stuck = Stuck::new();
        let gate = Arc::new(RwLock::new(()));
        let closed = gate.write().unwrap();
        let visits = Arc::new(AtomicUsize::new(0));
        let visit = {
            let (gate, visits) = (gate.clone(), visits.clone());
            move |process: &Process| {
                visits.fetch_add(1, Ordering::SeqCst);
                drop(gate.read());
                vec![process.pid]
            }
        };
        for _ in 0..2 {
            let each = Duration::from_millis(5);
            let look = look_at_each(&STUCK, numbers(100), each, long(), visit.clone());
            assert_eq!((look.found.len(), look.unseen.len()), (0, 100));
        }
        assert!(visits.load(Ordering::SeqCst) <= STUCK_MAX + 2, "{visits:?}");
        drop(closed);
    }

    #[test]
    fn all_processes_are_seen_but_this_one() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let look = look(others(), long(), |process| vec![process.pid]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(look.found.contains(&child.id()), "{look:?}");
        assert!(!look.found.contains(&std::process::id()));
    }
}
