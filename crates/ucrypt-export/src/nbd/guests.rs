//! Who is at the door and who is in: bounds, and whether the door can be closed.
//!
//! Clients that have not finished their handshake have places of their own. When those are taken, who
//! has stood there longest goes, so that sockets on which nothing is said keep nobody out.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, shutdown};

/// One of each listener.
pub(super) struct Guests {
    lists: Mutex<Lists>,
    served_max: usize,
    greeted_max: usize,
}

#[derive(Default)]
struct Lists {
    /// In the handshake, the oldest first.
    greeted: VecDeque<Guest>,
    served: Vec<Guest>,
    /// Nobody comes in any more.
    closed: bool,
}

struct Guest {
    number: u64,
    /// Gone as soon as its thread is done with it, so that the client sees the end at once.
    socket: Weak<OwnedFd>,
}

/// A client's place while it is served.
pub(super) struct Place<'a> {
    guests: &'a Guests,
    number: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.guests.lists().served.retain(|guest| guest.number != self.number);
    }
}

impl Guests {
    pub(super) fn new(served_max: usize, greeted_max: usize) -> Self {
        Self { lists: Mutex::default(), served_max, greeted_max: greeted_max.max(1) }
    }

    /// A client begins its handshake. Returns who had to go for it.
    pub(super) fn greet(&self, number: u64, socket: &Arc<OwnedFd>) -> Option<u64> {
        let mut lists = self.lists();
        let full = lists.greeted.len() >= self.greeted_max;
        let gone = full.then(|| lists.greeted.pop_front()).flatten();
        if let Some(gone) = &gone {
            cut(gone, Shutdown::Both);
        }
        lists.greeted.push_back(Guest { number, socket: Arc::downgrade(socket) });
        gone.map(|gone| gone.number)
    }

    /// Whether all places are taken of those who are served.
    pub(super) fn is_full(&self) -> bool {
        self.lists().served.len() >= self.served_max
    }

    /// A client has finished its handshake. `None`: it had to go, the places are taken, or nobody comes
    /// in any more.
    pub(super) fn admit(&self, number: u64) -> Option<Place<'_>> {
        let mut lists = self.lists();
        let at = lists.greeted.iter().position(|guest| guest.number == number)?;
        let guest = lists.greeted.remove(at)?;
        if lists.closed || lists.served.len() >= self.served_max {
            return None;
        }
        lists.served.push(guest);
        Some(Place { guests: self, number })
    }

    /// A client is no longer in its handshake, if it was.
    pub(super) fn forget(&self, number: u64) {
        self.lists().greeted.retain(|guest| guest.number != number);
    }

    /// Lets nobody in any more if nobody is in. Returns whether that is so.
    pub(super) fn close_if_empty(&self) -> bool {
        let mut lists = self.lists();
        lists.closed |= lists.served.is_empty();
        lists.served.is_empty()
    }

    /// Lets nobody in any more.
    pub(super) fn close(&self) {
        self.lists().closed = true;
    }

    pub(super) fn are_gone(&self) -> bool {
        let lists = self.lists();
        lists.closed && lists.served.is_empty()
    }

    /// Clients that are served and have not hung up.
    pub(super) fn count(&self) -> usize {
        let stays = |guest: &&Guest| {
            guest.socket.upgrade().is_some_and(|socket| {
                let mut fds = [PollFd::new(&socket, PollFlags::RDHUP)];
                matches!(poll(&mut fds, Some(&Timespec::default())), Ok(0))
            })
        };
        self.lists().served.iter().filter(stays).count()
    }

    /// Takes nothing more from those who are served, and ends all handshakes.
    pub(super) fn hang_up(&self) {
        let lists = self.lists();
        // Wakes a thread that sleeps in a receive.
        lists.served.iter().for_each(|guest| cut(guest, Shutdown::Read));
        lists.greeted.iter().for_each(|guest| cut(guest, Shutdown::Both));
    }

    fn lists(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn cut(guest: &Guest, how: Shutdown) {
    if let Some(socket) = guest.socket.upgrade() {
        // A client that is gone already is fine.
        let _ = shutdown(socket.as_fd(), how);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn socket() -> (Arc<OwnedFd>, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        (Arc::new(ours.into()), theirs)
    }

    #[test]
    fn the_oldest_in_the_handshake_goes_and_who_is_served_stays() {
        let guests = Guests::new(2, 2);
        let sockets: Vec<_> = (0..4).map(|_| socket()).collect();
        assert_eq!(guests.greet(0, &sockets[0].0), None);
        let place = guests.admit(0).expect("a place");
        assert_eq!(guests.greet(1, &sockets[1].0), None);
        assert_eq!(guests.greet(2, &sockets[2].0), None);
        assert_eq!(guests.greet(3, &sockets[3].0), Some(1));
        assert!(guests.admit(1).is_none(), "it had to go");
        assert!(guests.admit(2).is_some() && !guests.is_full());
        assert!(!guests.close_if_empty() && guests.count() == 1);
        drop(place);
        assert!(guests.close_if_empty() && guests.are_gone());
        assert!(guests.admit(3).is_none(), "closed");
    }

    #[test]
    fn a_client_that_has_hung_up_uses_nothing() {
        let guests = Guests::new(2, 2);
        let (ours, theirs) = socket();
        guests.greet(1, &ours);
        let _place = guests.admit(1).expect("a place");
        assert_eq!(guests.count(), 1);
        drop(theirs);
        assert_eq!(guests.count(), 0);
        assert!(!guests.close_if_empty(), "what it asked for may not be done");
    }
}
