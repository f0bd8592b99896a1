//! The rings of a device: what the front end has said about each, and the thread of those that
//! run.
//!
//! A ring runs when the front end has given it a place and a kick, has enabled it, and its place is
//! in the guest's memory. Whatever changes while it runs, the map of the memory included, its thread
//! ends first, with all its requests answered, and a new one starts where that has stopped; only calls
//! change under a running thread.
//!
//! A ring that is not in the memory is parked: it starts when it is in a later map. So is one with
//! a request whose data lies in a region that was just removed, because a front end changes a region
//! by removing and adding it.
//!
//! Threads are waited for as long as it takes, because nothing may touch the guest's memory behind
//! the answer to a front end that takes it back; but once the server is to stop, only for
//! [`DeviceState::patience`]. What has not ended by then is left behind and said.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use rustix::event::{EventfdFlags, eventfd};

use super::event;
use super::inflight::Inflight;
use super::memory::GuestMap;
use super::ring::{DeviceState, Ended, Ring, Setup, StartError, Why};
use super::shared::{AtEnd, Shared};
use super::split::Place;

/// One ring. Dropping it stops it.
pub(super) struct RingSlot {
    index: usize,
    place: Place,
    kick: Option<File>,
    enabled: bool,
    /// It makes no sense, and starts again only when the front end sets it up anew.
    broken: bool,
    shared: Arc<Shared>,
    device: Arc<DeviceState>,
    running: Option<Running>,
}

struct Running {
    thread: JoinHandle<Ended>,
    /// Readable when the thread is at its end.
    ended: OwnedFd,
}

/// What the rings of a connection are started with.
pub(super) struct Surroundings<'a> {
    pub(super) map: &'a Arc<GuestMap>,
    pub(super) inflight: Option<&'a Inflight>,
    pub(super) event_idx: bool,
}

impl RingSlot {
    pub(super) fn new(index: usize, device: Arc<DeviceState>) -> io::Result<Self> {
        Ok(Self {
            index,
            place: Place::default(),
            kick: None,
            enabled: false,
            broken: false,
            shared: Arc::new(Shared::new()?),
            device,
            running: None,
        })
    }

    /// Changes what only a ring that stands still can change.
    pub(super) fn change(
        &mut self,
        surroundings: &Surroundings<'_>,
        change: impl FnOnce(&mut Place),
    ) -> io::Result<()> {
        self.pause()?;
        change(&mut self.place);
        self.start_anew(surroundings)
    }

    pub(super) fn enable(
        &mut self,
        surroundings: &Surroundings<'_>,
        enabled: bool,
    ) -> io::Result<()> {
        if self.enabled == enabled {
            return Ok(());
        }
        self.pause()?;
        self.enabled = enabled;
        self.start_anew(surroundings)
    }

    /// Where requests are announced from now on; starts the ring.
    pub(super) fn set_kick(
        &mut self,
        surroundings: &Surroundings<'_>,
        kick: Option<File>,
    ) -> io::Result<()> {
        let Some(kick) = kick else {
            let polling = "rings without a kick, which would have to be polled, are not served";
            return Err(io::Error::new(io::ErrorKind::Unsupported, polling));
        };
        event::check(&kick)?;
        self.pause()?;
        self.kick = Some(kick);
        self.start_anew(surroundings)
    }

    pub(super) fn set_call(&self, call: Option<File>) -> io::Result<()> {
        self.shared.set_call(call)
    }

    pub(super) fn set_error(&self, error: Option<File>) -> io::Result<()> {
        self.shared.set_error(error)
    }

    /// Stops the ring for good, until there is a new kick. Returns the next request to be taken.
    pub(super) fn stop(&mut self) -> io::Result<u16> {
        self.pause()?;
        self.kick = None;
        Ok(self.place.base)
    }

    /// Asks the thread to stop, without waiting for that.
    pub(super) fn ask_to_stop(&self) {
        self.shared.stop(true);
    }

    /// Ends the thread when every request is answered.
    ///
    /// # Errors
    /// `TimedOut`: the server is to stop, and requests have not ended in time. The ring is never
    /// started again.
    pub(super) fn pause(&mut self) -> io::Result<()> {
        let Some(Running { thread, ended }) = self.running.take() else { return Ok(()) };
        self.shared.stop(true);
        if !self.device.await_end(ended.as_fd()) {
            let (index, left) = (self.index, self.shared.under_way());
            let reason =
                format!("vhost-user ring {index}: {left} requests did not end, not waited for");
            (self.device.report)(&reason);
            // The thread keeps what it uses, and ends with the process at the latest.
            (self.kick, self.broken) = (None, true);
            return Err(io::Error::new(io::ErrorKind::TimedOut, reason));
        }
        match thread.join() {
            Ok(Ended { base, why }) => {
                self.place.base = base;
                self.broken = why == Why::Broken;
            }
            // It has said so. Where it stood nobody knows.
            Err(_) => self.broken = true,
        }
        Ok(())
    }

    /// Starts the ring if it can run.
    ///
    /// # Errors
    /// It is not in the guest's memory, or the system's.
    fn start_anew(&mut self, surroundings: &Surroundings<'_>) -> io::Result<()> {
        self.broken = false;
        self.start(surroundings).map_err(io::Error::from)
    }

    /// Goes on where the ring was paused, if it can run in this map.
    pub(super) fn go_on(&mut self, surroundings: &Surroundings<'_>) -> io::Result<()> {
        if self.broken || self.running.is_some() {
            return Ok(());
        }
        match self.start(surroundings) {
            Ok(()) | Err(StartError::NotThere(_)) => Ok(()),
            Err(StartError::Io(error)) => Err(error),
        }
    }

    fn start(&mut self, surroundings: &Surroundings<'_>) -> Result<(), StartError> {
        let Some(kick) = self.kick.as_ref().filter(|_| self.enabled) else { return Ok(()) };
        let Surroundings { map, inflight, event_idx } = *surroundings;
        let ring_size = self.place.size;
        let ring = Ring::new(Setup {
            index: self.index,
            place: self.place,
            map: map.clone(),
            kick: kick.try_clone()?,
            event_idx,
            track: inflight.and_then(|area| area.ring(self.index, ring_size)),
            shared: self.shared.clone(),
            device: self.device.clone(),
        })?;
        let ended = eventfd(0, EventfdFlags::CLOEXEC).map_err(io::Error::from)?;
        let at_end = AtEnd(ended.try_clone()?);
        self.shared.stop(false);
        let name = format!("vhost-user-{}", self.index);
        let thread = thread::Builder::new().name(name).spawn(move || {
            let _at_end = at_end;
            ring.run()
        })?;
        self.running = Some(Running { thread, ended });
        Ok(())
    }
}

impl Drop for RingSlot {
    fn drop(&mut self) {
        // What did not end has been reported.
        let _ = self.pause();
    }
}
