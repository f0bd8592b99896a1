//! The clients in their handshake and the clients that are served: their bounds, and whether the
//! server can stop taking more.
//!
//! Clients that have not finished their handshake have places of their own. When those are taken,
//! the client that has been there longest is cut off, so that silent sockets keep nobody out.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, shutdown};

/// The clients of a listener.
pub(super) struct Clients {
    lists: Mutex<Lists>,
    served_max: usize,
    greeted_max: usize,
}

#[derive(Default)]
struct Lists {
    /// Clients in their handshake, the oldest first.
    greeted: VecDeque<Client>,
    served: Vec<Client>,
    /// No more clients are admitted.
    closed: bool,
}

struct Client {
    number: u64,
    /// Weak, so that the socket closes as soon as its thread is done with it and the client sees
    /// the end at once.
    socket: Weak<OwnedFd>,
}

impl Client {
    /// Whether it has not hung up.
    fn stays(&self) -> bool {
        self.socket.upgrade().is_some_and(|socket| {
            let mut fds = [PollFd::new(&socket, PollFlags::RDHUP)];
            matches!(poll(&mut fds, Some(&Timespec::default())), Ok(0))
        })
    }
}

/// A client's place while the client is served.
pub(super) struct Admission<'a> {
    clients: &'a Clients,
    number: u64,
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        self.clients.lists().served.retain(|client| client.number != self.number);
    }
}

impl Clients {
    pub(super) fn new(served_max: usize, greeted_max: usize) -> Self {
        Self { lists: Mutex::default(), served_max, greeted_max: greeted_max.max(1) }
    }

    /// Registers a client that begins its handshake. Returns the client that was cut off for it, if
    /// any.
    pub(super) fn greet(&self, number: u64, socket: &Arc<OwnedFd>) -> Option<u64> {
        let mut lists = self.lists();
        let full = lists.greeted.len() >= self.greeted_max;
        let gone = full.then(|| lists.greeted.pop_front()).flatten();
        if let Some(gone) = &gone {
            cut(gone, Shutdown::Both);
        }
        lists.greeted.push_back(Client { number, socket: Arc::downgrade(socket) });
        gone.map(|gone| gone.number)
    }

    /// Whether all places of served clients are taken.
    pub(super) fn is_full(&self) -> bool {
        self.lists().served.len() >= self.served_max
    }

    /// Gives a place to a client that has finished its handshake. `None`: the client was cut off,
    /// all places are taken, or no more clients are admitted.
    pub(super) fn admit(&self, number: u64) -> Option<Admission<'_>> {
        let mut lists = self.lists();
        let at = lists.greeted.iter().position(|client| client.number == number)?;
        let client = lists.greeted.remove(at)?;
        if lists.closed || lists.served.len() >= self.served_max {
            return None;
        }
        lists.served.push(client);
        Some(Admission { clients: self, number })
    }

    /// Removes a client from the handshakes, if it is there.
    pub(super) fn forget(&self, number: u64) {
        self.lists().greeted.retain(|client| client.number != number);
    }

    /// Admits no more clients from now on, if none is served. Returns whether none is served.
    pub(super) fn close_if_empty(&self) -> bool {
        let mut lists = self.lists();
        lists.closed |= lists.served.is_empty();
        lists.served.is_empty()
    }

    /// Admits no more clients from now on, if all that are served have hung up. Returns whether they
    /// have.
    pub(super) fn close_if_gone(&self) -> bool {
        let mut lists = self.lists();
        let gone = !lists.served.iter().any(Client::stays);
        lists.closed |= gone;
        gone
    }

    /// Admits clients again.
    pub(super) fn reopen(&self) {
        self.lists().closed = false;
    }

    /// Admits no more clients.
    pub(super) fn close(&self) {
        self.lists().closed = true;
    }

    pub(super) fn are_gone(&self) -> bool {
        let lists = self.lists();
        lists.closed && lists.served.is_empty()
    }

    /// Number of clients that are served, and of those that have hung up while the volume had not
    /// answered all their requests.
    pub(super) fn served(&self) -> usize {
        self.lists().served.len()
    }

    /// Number of clients that are served and have not hung up.
    pub(super) fn count(&self) -> usize {
        self.lists().served.iter().filter(|client| client.stays()).count()
    }

    /// Ends all handshakes, and takes nothing more from served clients. `may_sleep`: a client's thread may
    /// sleep in a receive, and is woken.
    pub(super) fn hang_up(&self, may_sleep: bool) {
        let lists = self.lists();
        if may_sleep {
            lists.served.iter().for_each(|client| cut(client, Shutdown::Read));
        }
        lists.greeted.iter().for_each(|client| cut(client, Shutdown::Both));
    }

    fn lists(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn cut(client: &Client, how: Shutdown) {
    if let Some(socket) = client.socket.upgrade() {
        // Fails if the client is gone already, which is fine.
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
        let clients = Clients::new(2, 2);
        let sockets: Vec<_> = (0..4).map(|_| socket()).collect();
        assert_eq!(clients.greet(0, &sockets[0].0), None);
        let place = clients.admit(0).expect("a place");
        assert_eq!(clients.greet(1, &sockets[1].0), None);
        assert_eq!(clients.greet(2, &sockets[2].0), None);
        assert_eq!(clients.greet(3, &sockets[3].0), Some(1));
        assert!(clients.admit(1).is_none(), "it had to go");
        assert!(clients.admit(2).is_some() && !clients.is_full());
        assert!(!clients.close_if_empty() && clients.count() == 1);
        drop(place);
        assert!(clients.close_if_empty() && clients.are_gone());
        assert!(clients.admit(3).is_none(), "closed");
    }

    #[test]
    fn a_client_that_has_hung_up_uses_nothing() {
        let clients = Clients::new(2, 2);
        let (ours, theirs) = socket();
        clients.greet(1, &ours);
        let _place = clients.admit(1).expect("a place");
        assert_eq!(clients.count(), 1);
        assert!(!clients.close_if_gone());
        drop(theirs);
        assert_eq!(clients.count(), 0);
        assert!(!clients.close_if_empty(), "what it asked for may not be done");
        let (late, _theirs) = socket();
        assert!(clients.close_if_gone());
        clients.greet(2, &late);
        assert!(clients.admit(2).is_none(), "closed");
        clients.reopen();
        clients.greet(3, &late);
        assert!(clients.admit(3).is_some());
    }
}
