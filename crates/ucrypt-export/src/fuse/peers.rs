//! What the threads of a connection know of each other.
//!
//! A thread with a request in flight has to be woken by its completion, and somebody has to be woken
//! by the next request. While requests come one at a time, these may be different threads: one
//! sleeps for its completion only, and leaves the requests to the others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One thread of a connection.
pub(super) struct Peer {
    /// Threads that have not left the requests to others: each of them takes what is there before
    /// it sleeps, and is then woken by a request, or by a completion if it has no room for one.
    attentive: Arc<AtomicUsize>,
}

impl Peer {
    /// The threads of a connection.
    pub(super) fn all(count: usize) -> impl Iterator<Item = Self> {
        let attentive = Arc::new(AtomicUsize::new(count));
        (0..count).map(move |_| Self { attentive: attentive.clone() })
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
    fn somebody_always_takes_the_requests() {
        let mut peers: Vec<Peer> = Peer::all(3).collect();
        let (one, others) = peers.split_first().expect("three");
        let left = one.leave(|| {
            others[0].leave(|| assert_eq!(others[1].leave(|| ()), None, "the last one")).is_some()
        });
        assert_eq!(left, Some(true));
        assert_eq!(one.leave(|| ()), Some(()), "they are back");
        peers.truncate(1);
        assert_eq!(peers[0].leave(|| ()), None, "the others have ended");
    }
}
