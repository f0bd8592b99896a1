//! The rings of a device: what the front end has said about each, and the threads of those that
//! run.
//!
//! A ring runs when the front end has given it a place and a kick, has enabled it, and its place is
//! in the guest's memory. Before anything changes, the map of the memory included, the ring's thread
//! answers all its requests and ends; a new thread starts where that one stopped. Only calls change
//! under a running thread.
//!
//! A ring outside the memory is parked: it starts when it lies in a later map. So is a ring with a
//! request whose data lies in a region that was just removed, because a front end changes a region
//! by removing and adding it.
//!
//! The device waits for threads as long as it takes, because nothing may touch the guest's memory
//! once it has answered a front end that takes the memory back. Only when the server is to stop does
//! the wait end after [`DeviceState::patience`]; threads that still run are left behind and
//! reported.

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
use super::ring_control::{AtEnd, RingControl};
use super::split::RingLayout;

/// One ring. Dropping it stops it.
pub(super) struct RingSlot {
    index: usize,
    layout: RingLayout,
    kick: Option<File>,
    enabled: bool,
    /// The ring is broken, and starts again only when the front end sets it up anew.
    broken: bool,
    control: Arc<RingControl>,
    device: Arc<DeviceState>,
    running: Option<Running>,
}

struct Running {
    thread: JoinHandle<Ended>,
    /// Readable when the thread has ended.
    ended: OwnedFd,
}

/// What to start the rings of a connection with.
pub(super) struct Surroundings<'a> {
    pub(super) map: &'a Arc<GuestMap>,
    pub(super) inflight: Option<&'a Inflight>,
    pub(super) event_idx: bool,
}

impl RingSlot {
    pub(super) fn new(index: usize, device: Arc<DeviceState>) -> io::Result<Self> {
        Ok(Self {
            index,
            layout: RingLayout::default(),
            kick: None,
            enabled: false,
            broken: false,
            control: Arc::new(RingControl::new()?),
            device,
            running: None,
        })
    }

    /// Changes the ring's layout while no thread runs.
    pub(super) fn change(
        &mut self,
        surroundings: &Surroundings<'_>,
        change: impl FnOnce(&mut RingLayout),
    ) -> io::Result<()> {
        self.pause()?;
        change(&mut self.layout);
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

    /// Sets the event that announces requests; starts the ring.
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
        self.control.set_call(call)
    }

    pub(super) fn set_error(&self, error: Option<File>) -> io::Result<()> {
        self.control.set_error(error)
    }

    /// Stops the ring until it gets a new kick. Returns the next request to be taken.
    pub(super) fn stop(&mut self) -> io::Result<u16> {
        self.pause()?;
        self.kick = None;
        Ok(self.layout.base)
    }

    /// Asks the thread to stop, without waiting for its end.
    pub(super) fn ask_to_stop(&self) {
        self.control.stop(true);
    }

    /// Ends the thread when every request is answered.
    ///
    /// # Errors
    /// `TimedOut`: the server is to stop, and requests have not completed in time. The ring never
    /// starts again.
    pub(super) fn pause(&mut self) -> io::Result<()> {
        let Some(Running { thread, ended }) = self.running.take() else { return Ok(()) };
        self.control.stop(true);
        if !self.device.await_end(ended.as_fd()) {
            let (index, left) = (self.index, self.control.under_way());
            let reason =
                format!("vhost-user ring {index}: {left} requests did not end, not waited for");
            (self.device.report)(&reason);
            // The thread keeps what it uses, and ends with the process at the latest.
            (self.kick, self.broken) = (None, true);
            return Err(io::Error::new(io::ErrorKind::TimedOut, reason));
        }
        match thread.join() {
            Ok(Ended { base, why }) => {
                self.layout.base = base;
                self.broken = why == Why::Broken;
            }
            // The thread panicked, which it has printed. Its position in the ring is unknown.
            Err(_) => self.broken = true,
        }
        Ok(())
    }

    /// Starts the ring if it can run.
    ///
    /// # Errors
    /// The ring is not in the guest's memory, or an error of the system.
    fn start_anew(&mut self, surroundings: &Surroundings<'_>) -> io::Result<()> {
        self.broken = false;
        self.start(surroundings).map_err(io::Error::from)
    }

    /// Goes on where the ring was paused, if the ring can run in this map.
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
        let ring_size = self.layout.size;
        let ring = Ring::new(Setup {
            index: self.index,
            layout: self.layout,
            map: map.clone(),
            kick: kick.try_clone()?,
            event_idx,
            track: inflight.and_then(|area| area.ring(self.index, ring_size)),
            control: self.control.clone(),
            device: self.device.clone(),
        })?;
        let ended = eventfd(0, EventfdFlags::CLOEXEC).map_err(io::Error::from)?;
        let at_end = AtEnd(ended.try_clone()?);
        self.control.stop(false);
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
        // `pause` has reported a thread that did not end.
        let _ = self.pause();
    }
}
