//! What the main thread of a server waits for. While nothing happens it sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use ucrypt_engine::Volume;

/// How often to look at what tells nobody: users that are to go, and a ublk device that is detached.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The same after a thread of an export has said that it is about to end, and for how long. After that,
/// for a machine that stands still meanwhile, at [`LOOK_EVERY`] for a minute.
const SOON: Duration = Duration::from_millis(10);
const SOON_FOR: Duration = Duration::from_secs(1);
const LATER_FOR: Duration = Duration::from_secs(60);

/// Something that happened.
#[derive(Debug)]
pub(crate) enum Event<A> {
    /// Somebody asks something of the server.
    Asked(A),
    /// A termination signal.
    Signal(i32),
    /// A request failed, or an export may have ended.
    Look,
}

/// The events of a server.
pub(crate) struct Events<A> {
    receiver: Receiver<Event<A>>,
    sender: Sender<Event<A>>,
    /// A [`Event::Look`] is on its way. One is enough, however many requests fail.
    looks: Arc<AtomicBool>,
    /// When the last [`Event::Look`] came.
    looked: Option<Instant>,
}

impl<A: Send + 'static> Events<A> {
    pub(crate) fn new() -> Self {
        let (sender, receiver) = mpsc::channel();
        Self { receiver, sender, looks: Arc::default(), looked: None }
    }

    /// For those who deliver events.
    pub(crate) fn sender(&self) -> Sender<Event<A>> {
        self.sender.clone()
    }

    /// Delivers what the volume tells.
    pub(crate) fn listen(&self, volume: &Volume) {
        let (sender, looks) = (self.sender.clone(), self.looks.clone());
        volume.listen(move || {
            if !looks.swap(true, Ordering::SeqCst) {
                let _ = sender.send(Event::Look);
            }
        });
    }

    /// Waits for the next event; `None` if it is time to look without one: at `due`, or soon if
    /// `looks` says that something may change of which nobody tells.
    pub(crate) fn next(&mut self, looks: bool, due: Option<Instant>) -> Option<Event<A>> {
        let now = Instant::now();
        let told = self.looked.map(|looked| now.saturating_duration_since(looked));
        let soon = match told {
            Some(ago) if ago < SOON_FOR => Some(SOON),
            Some(ago) if ago < LATER_FOR => Some(LOOK_EVERY),
            _ => None,
        };
        let every = looks.then_some(LOOK_EVERY);
        let due = due.map(|due| due.saturating_duration_since(now));
        let event = match [soon, every, due].into_iter().flatten().min() {
            Some(timeout) => self.receiver.recv_timeout(timeout),
            None => self.receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        // `sender` keeps the channel connected.
        let event = event.ok()?;
        if let Event::Look = event {
            // While every request fails, this thread does not take a core.
            std::thread::sleep(told.map_or(Duration::ZERO, |ago| SOON.saturating_sub(ago)));
            // Before the caller looks: what happens from now on gives another event.
            self.looks.swap(false, Ordering::SeqCst);
            self.looked = Some(Instant::now());
        }
        Some(event)
    }

    /// What is asked until `patience` is over, and has been asked already.
    pub(crate) fn asked(&mut self, patience: Duration) -> impl Iterator<Item = A> {
        let until = Instant::now() + patience;
        let event = move || {
            self.receiver.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
        };
        std::iter::from_fn(event).filter_map(|event| match event {
            Event::Asked(asked) => Some(asked),
            Event::Signal(_) | Event::Look => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use ucrypt_engine::VolumeOptions;

    use super::*;

    #[test]
    fn many_failures_are_one_event_and_the_next_one_is_another() {
        let memory = Arc::new(ucrypt_backend::memory(1 << 20).expect("memory"));
        let volume = Volume::raw(memory, VolumeOptions::default()).expect("a volume");
        let mut events = Events::<()>::new();
        events.listen(&volume);
        for _ in 0..2 {
            for _ in 0..1000 {
                volume.tell();
            }
            assert!(matches!(events.next(false, None), Some(Event::Look)));
            // The export's thread is about to end: looked for soon.
            let before = Instant::now();
            assert!(events.next(false, None).is_none());
            assert!(before.elapsed() >= SOON);
        }
    }

    #[test]
    fn it_is_looked_when_it_is_due_or_something_may_change_untold() {
        let mut events = Events::<()>::new();
        assert!(events.next(true, None).is_none());
        assert!(events.next(false, Some(Instant::now())).is_none());
        events.sender().send(Event::Signal(15)).expect("it listens");
        assert!(matches!(events.next(false, None), Some(Event::Signal(15))));
    }
}
