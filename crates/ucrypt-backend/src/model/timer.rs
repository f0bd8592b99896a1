//! Waiting for a moment of the monotonic clock, accurate to a few microseconds.
//!
//! A sleep ends 20 to 45 us late on small virtual machines. So the sleep is set to end [`SPIN_NS`]
//! early, and the rest is spun. The same holds for a caller that waits in poll(2) for the timer's
//! descriptor: the descriptor becomes readable that much early and stays so, and the loop around
//! poll(2) spins.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, epoll, eventfd, poll};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

use crate::Errno;

/// How long before the moment a sleep is set to end.
const SPIN_NS: u64 = 60_000;

const SECOND_NS: u64 = 1_000_000_000;

/// The monotonic clock.
pub(super) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * SECOND_NS + now.tv_nsec.cast_unsigned()
}

/// A descriptor that becomes readable shortly before a time.
pub(super) struct Timer {
    /// Readable when one of the other two is.
    either: OwnedFd,
    alarm: OwnedFd,
    /// When the alarm goes off; `None` while it is off. It is not postponed, so it may go off once
    /// for nothing.
    set: Option<u64>,
    /// Readable while the moment is near. The alarm would be readable too, but a timer set to the
    /// past takes 10 us to go off.
    near: OwnedFd,
    is_near: bool,
}

impl Timer {
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let alarm = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let near = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let either = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for fd in [&alarm, &near] {
            epoll::add(&either, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        Ok(Self { either, alarm, set: None, near, is_near: false })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.either.as_fd()
    }

    /// Makes the descriptor readable shortly before `due`, or not at all.
    pub(super) fn announce(&mut self, due: Option<u64>, now: u64) -> io::Result<()> {
        let early = due.map(|due| due.saturating_sub(SPIN_NS));
        self.say_near(early.is_some_and(|early| early <= now))?;
        let went_off = self.set.is_some_and(|set| set <= now);
        match early {
            Some(early) if early > now && (went_off || self.set.is_none_or(|set| set > early)) => {
                self.set_alarm(Some(early))
            }
            None if went_off => self.set_alarm(None),
            // Readable already, or soon enough.
            _ => Ok(()),
        }
    }

    /// Whether the descriptor is readable now, because the moment is near.
    pub(super) fn is_near(&self) -> bool {
        self.is_near
    }

    fn say_near(&mut self, is_near: bool) -> io::Result<()> {
        match (self.is_near, is_near) {
            (false, true) => {
                rustix::io::write(&self.near, &1u64.to_ne_bytes())?;
            }
            (true, false) => {
                rustix::io::read(&self.near, &mut [0; 8])?;
            }
            _ => {}
        }
        self.is_near = is_near;
        Ok(())
    }

    fn set_alarm(&mut self, at: Option<u64>) -> io::Result<()> {
        // Zero turns it off.
        let at_ns = at.unwrap_or(0);
        let value = Timespec {
            tv_sec: (at_ns / SECOND_NS).cast_signed(),
            tv_nsec: (at_ns % SECOND_NS).cast_signed(),
        };
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = Itimerspec { it_interval: zero, it_value: value };
        timerfd_settime(&self.alarm, TimerfdTimerFlags::ABSTIME, &spec)?;
        self.set = at;
        Ok(())
    }

    /// Waits until `due`. A signal during the sleep ends it early.
    pub(super) fn wait(&mut self, due: u64) -> io::Result<()> {
        loop {
            let now = now_ns();
            if due.saturating_sub(now) <= SPIN_NS {
                break;
            }
            self.announce(Some(due), now)?;
            match poll(&mut [PollFd::new(&self.either, PollFlags::IN)], None) {
                Ok(_) => {}
                Err(Errno::INTR) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        while now_ns() < due {
            // Yield the core: a thread that waits for a real device would leave it, too.
            std::thread::yield_now();
        }
        Ok(())
    }
}
