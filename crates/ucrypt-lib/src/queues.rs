//! The queues by which the threads of a program reach a volume.
//!
//! An engine's queue belongs to one thread at a time. A call borrows one, and gives it back with nothing
//! in flight. There are at most [`QUEUES_MAX`]; with all of them in use, a call waits.

use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, getpid};
use ucrypt_engine::{Queue, QueueConfig, Volume, WRITE_UNIT_MAX};
use ucrypt_image::transfer::{CHUNK, DEPTH, TransferError};

use crate::error::{IoError, io_error};

/// Most queues of a volume. More threads than that are seldom in calls at the same time, and if they
/// are, the disk has enough to do with these. Twice as many would take twice as much memory that
/// threads do not share.
const QUEUES_MAX: usize = 8;

/// Bytes of each queue's own memory, with which it gets on whatever the others do. Doubling it gains
/// nothing: long transfers take from the memory that all share.
const OWN_MEMORY: usize = 256 << 10;

/// Bytes of the longest request with its whole first and last unit.
const REQUEST_MAX: usize = CHUNK + 2 * WRITE_UNIT_MAX as usize;

const CONFIG: QueueConfig =
    QueueConfig { memory: OWN_MEMORY, request_max: REQUEST_MAX, depth: DEPTH };

pub(crate) struct Queues {
    volume: Arc<Volume>,
    opened_by: Pid,
    state: Mutex<State>,
    /// Told when a queue is given back, or one more may be made.
    freed: Condvar,
}

#[derive(Default)]
struct State {
    idle: Vec<Queue>,
    /// Those that are idle or lent.
    made: usize,
}

impl Queues {
    pub(crate) fn new(volume: Arc<Volume>) -> Self {
        let (state, freed) = (Mutex::default(), Condvar::new());
        Self { volume, opened_by: getpid(), state, freed }
    }

    /// The volume, unless this process is another one than that which has opened it: rings and threads
    /// are not shared with a child.
    pub(crate) fn volume(&self) -> Result<&Arc<Volume>, IoError> {
        if self.is_foreign() { Err(IoError::OtherProcess) } else { Ok(&self.volume) }
    }

    fn is_foreign(&self) -> bool {
        getpid() != self.opened_by
    }

    /// Calls `work` with a queue that has nothing in flight.
    pub(crate) fn with<T>(
        &self,
        work: impl FnOnce(&mut Queue) -> Result<T, TransferError>,
    ) -> Result<T, IoError> {
        let (place, mut queue) = self.lend()?;
        let result = work(&mut queue);
        if queue.in_flight() == 0 && !matches!(result, Err(TransferError::Broken(_))) {
            place.give_back(queue);
        } else {
            // Its end waits for what is under way. Only then may another queue take its place.
            drop(queue);
            drop(place);
        }
        result.map_err(io_error)
    }

    fn lend(&self) -> Result<(Place<'_>, Queue), IoError> {
        let volume = self.volume()?;
        let mut state = self.state();
        loop {
            if let Some(queue) = state.idle.pop() {
                return Ok((Place(Some(self)), queue));
            }
            if state.made < QUEUES_MAX {
                state.made += 1;
                drop(state);
                let error = match volume.queue(CONFIG) {
                    Ok(mut queue) => {
                        queue.set_clients_here(true);
                        return Ok((Place(Some(self)), queue));
                    }
                    Err(error) => error,
                };
                state = self.state();
                state.made -= 1;
                if state.made == 0 {
                    // Nobody is left who would give one to those who wait.
                    self.freed.notify_all();
                    return Err(IoError::NoRoom(error));
                }
                // Others have queues: one of them will do.
            }
            if state.idle.is_empty() {
                state = self.freed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        if self.is_foreign() {
            // The parent's rings are not ours to end, and its threads are not there to be waited for.
            let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
            mem::forget(mem::take(&mut state.idle));
            mem::forget(self.volume.clone());
        }
    }
}

/// The place of a lent queue among those that may be made. Dropping it makes room for another queue.
struct Place<'a>(Option<&'a Queues>);

impl Place<'_> {
    fn give_back(mut self, mut queue: Queue) {
        if let Some(queues) = self.0.take() {
            // No thread drives it now: it takes no core from workers.
            queue.rest();
            queues.state().idle.push(queue);
            queues.freed.notify_one();
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(queues) = self.0 {
            queues.state().made -= 1;
            queues.freed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use ucrypt_engine::{Io, Segment, VolumeOptions};

    use super::*;

    const LEN: u64 = 1 << 20;

    fn read(queue: &mut Queue) -> Result<(), TransferError> {
        queue.submit(0, Io::read(0, 4096)).expect("room");
        queue.wait().map_err(TransferError::Broken)?;
        assert_eq!(queue.next_done().expect("an answer").result, Ok(()));
        Ok(())
    }

    /// The workers that a thread may use after `threads` threads have used the volume at the same
    /// time.
    fn workers_after(threads: usize) -> u32 {
        let backend = Arc::new(ucrypt_backend::memory(LEN).expect("memory"));
        let cipher = Some(ucrypt_testkit::engine::aes(512));
        let segment = Segment { len: LEN, backend_offset: 0, cipher };
        let volume = Volume::new(backend, vec![segment], VolumeOptions::default());
        let volume = Arc::new(volume.expect("a volume"));
        let (queues, all_have_one) = (Queues::new(volume.clone()), Barrier::new(threads));
        let together = |queue: &mut Queue| {
            all_have_one.wait();
            read(queue)
        };
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| queues.with(together).expect("read"));
            }
        });
        // More than it takes until queues that sleep no longer count.
        for _ in 0..2000 {
            queues.with(read).expect("read");
        }
        let decisions = volume.decisions();
        let busiest = decisions.iter().max_by_key(|decided| decided.stats.whole);
        busiest.expect("a queue").workers
    }

    #[test]
    fn queues_that_were_given_back_take_no_core_from_workers() {
        assert_eq!(workers_after(QUEUES_MAX), workers_after(1));
    }
}
