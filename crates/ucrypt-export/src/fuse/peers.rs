//! What the threads of a connection know of each other.
//!
//! A thread with a request in flight has to be woken by its completion, and somebody has to be woken
//! by the next request. While requests come one at a time, these may be different threads: one
//! sleeps for its completion only, and leaves the requests to the others. If these find several at a time,
//! the first one learns it, and looks for more than one again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// One thread of a connection.
pub(super) struct Peer {
    /// Threads that have not left the requests to others: each of them takes what is there before
    /// it sleeps, and is then woken by a request, or by a completion if it has no room for one.
    attentive: Arc<AtomicUsize>,
    /// All threads' marks: others had several requests at a time since this one last looked.
    several: Arc<[AtomicBool]>,
    /// This thread's number.
    index: usize,
}

impl Peer {
    /// The threads of a connection.
    pub(super) fn all(count: usize) -> impl Iterator<Item = Self> {
        let attentive = Arc::new(AtomicUsize::new(count));
        let several: Arc<[_]> = (0..count).map(|_| AtomicBool::new(false)).collect();
        (0..count).map(move |index| Self {
            attentive: attentive.clone(),
            several: several.clone(),
            index,
        })
    }

    /// This thread has found several requests at a time.
    pub(super) fn has_several(&self) {
        for (index, mark) in self.several.iter().enumerate() {
            // Seldom written, so that threads do not take the memory from each other.
            if index != self.index && !mark.load(Ordering::Relaxed) {
                mark.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Whether another thread has, since this was last asked.
    pub(super) fn others_had_several(&self) -> bool {
        let mark = &self.several[self.index];
        mark.load(Ordering::Relaxed) && mark.swap(false, Ordering::Relaxed)
    }

    /// Runs `sleep` while this thread leaves the requests to the others; `None` if there is no
    /// other to leave them to.
    pub(super) fn leave<T>(&self, sleep: impl FnOnce() -> T) -> Option<T> {
        let leave = |attentive: usize| (attentive > 1).then(|| attentive - 1);
        self.attentive.fetch_update(Ordering::SeqCst, Ordering::SeqCst, leave).ok()?;
        let result = sleep();
        self.attentive.fetch_add(1, Ordering::SeqCst);
        Some(result)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.attentive.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn somebody_always_takes_the_requests_and_all_learn_of_several() {
        let mut peers: Vec<Peer> = Peer::all(3).collect();
        let (one, others) = peers.split_first().expect("three");
        let left = one.leave(|| {
            others[0].leave(|| assert_eq!(others[1].leave(|| ()), None, "the last one")).is_some()
        });
        assert_eq!(left, Some(true));
        assert_eq!(one.leave(|| ()), Some(()), "they are back");
        assert!(!peers[0].others_had_several());
        peers[0].has_several();
        assert!(!peers[0].others_had_several(), "only it itself");
        for other in &peers[1..] {
            assert!(other.others_had_several() && !other.others_had_several(), "once");
        }
        peers.truncate(1);
        assert_eq!(peers[0].leave(|| ()), None, "the others have ended");
    }
}
