//! Where jobs wait for workers, and when a job wakes one.
//!
//! The pool of threads (`workers`) and the pool of a simulator are both made of this: rings, and the
//! rule when a job wakes a worker. They differ in what a worker is, how long it looks for work
//! before it sleeps, and which of several sleeping ones is woken.

use crossbeam_queue::ArrayQueue;

use crate::tuning::RING_JOBS_MAX;

/// Bounded rings of jobs: one for any worker, and lanes, each for one worker. They take no lock.
#[derive(Debug)]
pub struct JobRings<T> {
    shared: ArrayQueue<T>,
    lanes: Box<[ArrayQueue<T>]>,
}

impl<T> JobRings<T> {
    /// Empty rings, with this many lanes.
    pub fn new(lanes: usize) -> Self {
        Self {
            shared: ArrayQueue::new(RING_JOBS_MAX),
            lanes: (0..lanes).map(|_| ArrayQueue::new(RING_JOBS_MAX)).collect(),
        }
    }

    /// Adds a job for any worker.
    ///
    /// # Errors
    /// The job, if the ring is full: the queue does the work itself.
    pub fn push(&self, job: T) -> Result<(), T> {
        self.shared.push(job)
    }

    /// Adds a job for the worker with that lane.
    ///
    /// # Errors
    /// The job, if the lane is full or there is none.
    pub fn push_to(&self, lane: usize, job: T) -> Result<(), T> {
        match self.lanes.get(lane) {
            Some(lane) => lane.push(job),
            None => Err(job),
        }
    }

    /// Takes the oldest job for any worker.
    pub fn take(&self) -> Option<T> {
        self.shared.pop()
    }

    /// Takes the oldest job of a lane.
    pub fn take_from(&self, lane: usize) -> Option<T> {
        self.lanes.get(lane)?.pop()
    }

    /// Number of lanes.
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// Number of jobs for any worker.
    pub fn waiting(&self) -> usize {
        self.shared.len()
    }
}

/// Whether a job for any worker wakes one, if `idle` of `count` workers sleep: with `wakes` always,
/// otherwise only if all sleep, because an awake worker looks for jobs before it sleeps.
pub fn wakes_worker(wakes: bool, idle: u32, count: u32) -> bool {
    idle > 0 && (wakes || idle >= count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_ring_refuses_a_job_and_gives_jobs_out_in_their_order() {
        let rings = JobRings::new(1);
        for job in 0..RING_JOBS_MAX {
            assert_eq!((rings.push(job), rings.push_to(0, job)), (Ok(()), Ok(())));
        }
        assert_eq!(
            (rings.push(7), rings.push_to(0, 8), rings.push_to(1, 9)),
            (Err(7), Err(8), Err(9))
        );
        assert_eq!(rings.waiting(), RING_JOBS_MAX);
        for job in 0..RING_JOBS_MAX {
            assert_eq!((rings.take(), rings.take_from(0)), (Some(job), Some(job)));
        }
        assert_eq!((rings.take(), rings.take_from(0), rings.take_from(1)), (None, None, None));
    }

    #[test]
    fn a_job_wakes_nobody_who_is_awake_and_somebody_if_nobody_is() {
        assert!(!wakes_worker(true, 0, 4), "nobody sleeps");
        assert!(
            wakes_worker(true, 1, 4) && !wakes_worker(false, 1, 4) && !wakes_worker(false, 3, 4)
        );
        assert!(wakes_worker(false, 4, 4), "the job would wait for ever");
    }
}
