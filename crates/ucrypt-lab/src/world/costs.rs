//! What everything but the cipher and the disk costs.

use ucrypt_backend::{Io, total_len};
use ucrypt_engine::{Calibration, CipherModel};

/// What everything but the cipher and the disk costs a core, or delays, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Costs {
    /// To accept a request of a client.
    pub accept: u64,
    /// To answer a request to its client.
    pub finish: u64,
    /// One round of a queue's loop, beside what it takes in.
    pub round: u64,
    /// To stage one operation for the backend.
    pub submit: u64,
    /// For the thread that has submitted one, if it moves the data itself while the device takes its
    /// time; `None` if the device does.
    pub copy: Option<Copying>,
    /// Picoseconds a byte for the client of a read to copy what it has got, on the queue's thread.
    pub take_ps_per_byte: u64,
    /// The call that hands what is staged to the kernel; `None` if each operation begins when it is
    /// submitted.
    pub enter: Option<u64>,
    /// To take one answer of the backend.
    pub answer: u64,
    /// To put a crypt job into the workers' queue, and to take its result from there.
    pub enqueue: u64,
    /// Picoseconds a byte that copying takes longer when another core has transformed it; the engine
    /// measures it when a volume is opened.
    pub carry_ps_per_byte: u64,
    /// To wake a sleeping thread, for the one that wakes it.
    pub wake_call: u64,
    /// From the call until a sleeping thread runs on a free core.
    pub wake: u64,
    /// From the device's answer until a sleeping queue runs on a free core.
    pub interrupt: u64,
    /// How long a worker without work, and a queue that may hear from one, spins before it sleeps.
    pub spin: u64,
    /// Until one that spins sees what has come.
    pub spin_wake: u64,
    /// For a thread to go to sleep, and to find out what has woken it.
    pub sleep: u64,
    /// For a core to change from one thread to another.
    pub switch: u64,
}

/// What it costs to move the data of an operation: nanoseconds a call, picoseconds a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copying {
    /// Of reads.
    pub read: (u64, u64),
    /// Of writes: page by page, each with its locks.
    pub write: (u64, u64),
}

impl Costs {
    /// What is the same over every backend. Fitted to `examples/real.rs` over `null`, on two virtual
    /// cores of an Intel Xeon (Granite Rapids).
    const ENGINE: Self = Self {
        accept: 80,
        finish: 80,
        round: 250,
        submit: 60,
        copy: None,
        take_ps_per_byte: 0,
        enter: None,
        answer: 50,
        enqueue: 200,
        carry_ps_per_byte: 78,
        wake_call: 1_500,
        wake: 5_000,
        interrupt: 0,
        spin: 2_500,
        spin_wake: 150,
        sleep: 1_000,
        switch: 1_500,
    };

    /// The engine over a device, through a ring.
    pub const DEVICE: Self = Self { enter: Some(400), interrupt: 3_000, ..Self::ENGINE };

    /// The engine over a device model: memory, which the thread that submits copies, and answers
    /// for which the queue spins. Fitted as above; a virtual machine's host has to be asked to wake a
    /// core.
    pub const MODEL: Self = Self {
        copy: Some(Copying { read: (180, 130), write: (950, 200) }),
        take_ps_per_byte: 60,
        wake_call: 2_500,
        wake: 12_000,
        ..Self::ENGINE
    };

    /// Nanoseconds more to copy so many bytes that another core has in its cache.
    pub(crate) fn carry_ns(&self, bytes: u64) -> u64 {
        bytes * self.carry_ps_per_byte / 1000
    }

    /// Nanoseconds to answer a request that reads so many bytes, `carried` of which another core has
    /// decrypted.
    pub(crate) fn finish_ns(&self, bytes: u64, carried: u64) -> u64 {
        self.finish + bytes * self.take_ps_per_byte / 1000 + self.carry_ns(carried)
    }

    /// Nanoseconds to copy what an operation moves.
    pub(super) fn copy_ns(&self, io: &Io) -> u64 {
        let Some(copy) = self.copy else { return 0 };
        let ((call, ps_per_byte), bufs) = match io {
            Io::Read { bufs, .. } => (copy.read, bufs),
            Io::Write { bufs, .. } => (copy.write, bufs),
            _ => return 0,
        };
        call + total_len(bufs) as u64 * ps_per_byte / 1000
    }

    /// What the engine would measure of these costs, with that cipher.
    pub(crate) fn calibration(&self, cipher: &CipherModel) -> Calibration {
        const BYTES: u64 = 64 << 10;
        #[expect(clippy::cast_sign_loss, reason = "a rate is positive")]
        let cipher_ns = (BYTES as f64 * cipher.ns_per_byte) as u64 + cipher.ns_per_call;
        Calibration {
            cipher: Some(cipher_ns),
            wake_latency: Some(self.wake_call + self.wake + 2 * self.enqueue),
            wake_cost: Some(self.wake_call),
            enqueue_cost: Some(2 * self.enqueue),
            copy_penalty: Some(self.carry_ns(BYTES)),
            copy: None,
        }
    }
}

impl Default for Costs {
    fn default() -> Self {
        Self::DEVICE
    }
}
