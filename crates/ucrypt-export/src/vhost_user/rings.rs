//! The rings of a device: what the front end has said about each, and the thread of those that
//! run.
//!
//! A ring runs when the front end has given it a place and a kick and has enabled it. Whatever
//! changes while it runs, its thread ends first, with all its requests answered, and a new one
//! starts where that has stopped; calls and memory change under a running thread.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use super::inflight::Inflight;
use super::memory::GuestMap;
use super::ring::{DeviceState, Ring, Setup};
use super::shared::{Shared, check_event};
use super::split::Place;

/// One ring. Dropping it stops it.
pub(super) struct RingSlot {
    index: usize,
    place: Place,
    kick: Option<File>,
    enabled: bool,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<u16>>,
}

/// What the rings of a connection are started with.
pub(super) struct Surroundings<'a> {
    pub(super) device: &'a Arc<DeviceState>,
    pub(super) inflight: Option<&'a Inflight>,
    pub(super) event_idx: bool,
}

impl RingSlot {
    pub(super) fn new(index: usize, map: Arc<GuestMap>) -> io::Result<Self> {
        let shared = Arc::new(Shared::new(map)?);
        let place = Place::default();
        Ok(Self { index, place, kick: None, enabled: false, shared, thread: None })
    }

    /// Changes what only a ring that stands still can change.
    pub(super) fn change(
        &mut self,
        surroundings: &Surroundings<'_>,
        change: impl FnOnce(&mut Place),
    ) -> io::Result<()> {
        self.pause();
        change(&mut self.place);
        self.start(surroundings)
    }

    pub(super) fn enable(
        &mut self,
        surroundings: &Surroundings<'_>,
        enabled: bool,
    ) -> io::Result<()> {
        if self.enabled == enabled {
            return Ok(());
        }
        self.pause();
        self.enabled = enabled;
        self.start(surroundings)
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
        check_event(&kick)?;
        self.pause();
        self.kick = Some(kick);
        self.start(surroundings)
    }

    pub(super) fn set_call(&self, call: Option<File>) -> io::Result<()> {
        call.iter().try_for_each(check_event)?;
        self.shared.set_call(call);
        Ok(())
    }

    pub(super) fn set_error(&self, error: Option<File>) -> io::Result<()> {
        error.iter().try_for_each(check_event)?;
        self.shared.set_error(error);
        Ok(())
    }

    pub(super) fn set_memory(&self, map: &Arc<GuestMap>) {
        self.shared.set_memory(map.clone());
    }

    /// Stops the ring for good, until there is a new kick. Returns the next request to be taken.
    pub(super) fn stop(&mut self) -> u16 {
        self.pause();
        self.kick = None;
        self.place.base
    }

    /// Asks the thread to stop, without waiting for that.
    pub(super) fn ask_to_stop(&self) {
        self.shared.stop(true);
    }

    /// Ends the thread when every request is answered.
    fn pause(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.shared.stop(true);
        // A thread that panicked has said so; the ring goes on where it began.
        if let Ok(base) = thread.join() {
            self.place.base = base;
        }
    }

    fn start(&mut self, surroundings: &Surroundings<'_>) -> io::Result<()> {
        let Some(kick) = self.kick.as_ref().filter(|_| self.enabled) else { return Ok(()) };
        let Surroundings { device, inflight, event_idx } = *surroundings;
        let ring_size = self.place.size;
        let ring = Ring::new(Setup {
            index: self.index,
            place: self.place,
            kick: kick.try_clone()?,
            event_idx,
            track: inflight.and_then(|area| area.ring(self.index, ring_size)),
            shared: self.shared.clone(),
            device: device.clone(),
        })?;
        self.shared.stop(false);
        let name = format!("vhost-user-{}", self.index);
        self.thread = Some(thread::Builder::new().name(name).spawn(move || ring.run())?);
        Ok(())
    }
}

impl Drop for RingSlot {
    fn drop(&mut self) {
        self.pause();
    }
}
