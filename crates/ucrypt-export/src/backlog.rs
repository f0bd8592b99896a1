//! The backlog of every server: requests for which the engine has no room wait in order.

use std::collections::VecDeque;

/// A thread that hands requests to an engine queue.
pub(crate) trait Submitter {
    /// A request that can be submitted again.
    type Request;

    /// The requests that wait for room, in order of arrival.
    fn backlog(&mut self) -> &mut VecDeque<Self::Request>;

    /// Submits a request or answers it.
    ///
    /// # Errors
    /// Returns the request if it has to wait, because the engine has no room now.
    fn offer(&mut self, request: Self::Request) -> Result<(), Self::Request>;

    /// Whether something is in flight whose completion makes room.
    fn awaits_room(&self) -> bool;

    /// Answers a request for which there will never be room: nothing is in flight that could free
    /// any.
    fn give_up(&mut self, request: Self::Request);

    /// Submits a request, or queues it behind those that wait.
    fn submit(&mut self, request: Self::Request) {
        if !self.backlog().is_empty() {
            self.backlog().push_back(request);
        } else if let Some(request) = offer(self, request) {
            self.backlog().push_front(request);
        }
    }

    /// Submits waiting requests as long as there is room. Returns whether it took any off the
    /// backlog.
    fn submit_waiting(&mut self) -> bool {
        let mut any = false;
        while let Some(request) = self.backlog().pop_front() {
            if let Some(request) = offer(self, request) {
                self.backlog().push_front(request);
                break;
            }
            any = true;
        }
        any
    }
}

/// Offers a request. Returns it if it has to wait; gives it up if there will never be room.
fn offer<S: Submitter + ?Sized>(server: &mut S, request: S::Request) -> Option<S::Request> {
    let request = server.offer(request).err()?;
    if server.awaits_room() {
        return Some(request);
    }
    server.give_up(request);
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server whose engine has this much room, and what each of them was given.
    #[derive(Default)]
    struct Server {
        backlog: VecDeque<u32>,
        room: usize,
        under_way: Vec<u32>,
        given_up: Vec<u32>,
    }

    impl Submitter for Server {
        type Request = u32;

        fn backlog(&mut self) -> &mut VecDeque<u32> {
            &mut self.backlog
        }

        fn offer(&mut self, request: u32) -> Result<(), u32> {
            if self.under_way.len() == self.room {
                return Err(request);
            }
            self.under_way.push(request);
            Ok(())
        }

        fn awaits_room(&self) -> bool {
            !self.under_way.is_empty()
        }

        fn give_up(&mut self, request: u32) {
            self.given_up.push(request);
        }
    }

    #[test]
    fn what_finds_no_room_waits_in_line_and_nobody_overtakes_it() {
        let mut server = Server { room: 2, ..Server::default() };
        for request in 0..5 {
            server.submit(request);
        }
        assert_eq!((&server.under_way[..], server.backlog.len()), (&[0, 1][..], 3));
        assert!(!server.submit_waiting(), "there is no room yet");
        server.under_way.remove(0);
        server.submit(5);
        assert_eq!(server.under_way, [1], "those that wait come first");
        assert!(server.submit_waiting());
        assert_eq!((server.under_way, server.backlog), (vec![1, 2], VecDeque::from([3, 4, 5])));
    }

    #[test]
    fn what_will_never_find_room_is_answered() {
        let mut server = Server::default();
        server.submit(1);
        assert_eq!((server.given_up, server.backlog.len()), (vec![1], 0));
        let mut server = Server { backlog: VecDeque::from([1, 2]), ..Server::default() };
        assert!(server.submit_waiting());
        assert_eq!(server.given_up, [1, 2]);
    }
}
