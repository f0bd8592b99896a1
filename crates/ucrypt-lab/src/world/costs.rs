//! The costs of everything but the cipher and the disk.

use ucrypt_backend::{Io, total_len};
use ucrypt_engine::{Calibration, CipherModel};

/// The costs of everything but the cipher and the disk: core time or delay, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Costs {
    /// To accept a request of a client.
    pub accept: u64,
    /// To answer a client's request.
    pub finish: u64,
    /// One round of a queue's loop, besides the work found in it.
    pub round: u64,
    /// To stage one operation for the backend.
    pub submit: u64,
    /// To copy an operation's data, if the submitting thread moves it itself during the device's
    /// time; `None` if the device does.
    pub copy: Option<Copying>,
    /// Picoseconds per byte for the client of a read to copy its data, on the queue's thread.
    pub take_ps_per_byte: u64,
    /// The call that submits staged operations to the kernel; `None` if each operation begins when
    /// it is submitted.
    pub enter: Option<u64>,
    /// To take one answer of the backend.
    pub answer: u64,
    /// To put a job into the workers' queue, or to take its result from there.
    pub enqueue: u64,
    /// Extra picoseconds per byte to copy data that another core has transformed; the engine
    /// measures this when a volume is opened.
    pub carry_ps_per_byte: u64,
    /// To wake a sleeping thread, for the waking thread.
    pub wake_call: u64,
    /// From the call until a sleeping thread runs on a free core.
    pub wake: u64,
    /// How much longer it takes if the thread has slept for a millisecond: the core sleeps deeper.
    pub wake_deep: u64,
    /// From the device's answer until a sleeping queue runs on a free core.
    pub interrupt: u64,
    /// How long a worker without work, or a queue that expects an answer from one, spins before it
    /// sleeps.
    pub spin: u64,
    /// Until a spinning thread notices new work.
    pub spin_wake: u64,
    /// For a thread to go to sleep, and to find out what woke it.
    pub sleep: u64,
    /// For a core to change from one thread to another.
    pub switch: u64,
}

/// Costs of moving an operation's data: nanoseconds per call, picoseconds per byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copying {
    /// For reads.
    pub read: (u64, u64),
    /// For writes: page by page, each with its locks.
    pub write: (u64, u64),
}

impl Costs {
    /// The costs common to all backends. Fitted to `examples/real.rs` over `null`, on two virtual
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
        wake_deep: 0,
        interrupt: 0,
        spin: 2_500,
        spin_wake: 150,
        sleep: 1_000,
        switch: 1_500,
    };

    /// The engine over a device, using a ring.
    pub const DEVICE: Self = Self { enter: Some(400), interrupt: 3_000, ..Self::ENGINE };

    /// The engine over a device model, which is memory: the submitting thread copies, and the queue
    /// spins for answers. Fitted as above; to wake a core, a virtual machine has to ask its host.
    pub const MODEL: Self = Self {
        copy: Some(Copying { read: (180, 130), write: (950, 200) }),
        take_ps_per_byte: 60,
        wake_call: 2_500,
        wake: 12_000,
        ..Self::ENGINE
    };

    /// Extra nanoseconds to copy `bytes` that another core has in its cache.
    pub(crate) fn carry_ns(&self, bytes: u64) -> u64 {
        bytes * self.carry_ps_per_byte / 1000
    }

    /// Nanoseconds to answer a read of `bytes`, `carried` of which another core has decrypted.
    pub(crate) fn finish_ns(&self, bytes: u64, carried: u64) -> u64 {
        self.finish + bytes * self.take_ps_per_byte / 1000 + self.carry_ns(carried)
    }

    /// Nanoseconds to copy the data of an operation.
    pub(super) fn copy_ns(&self, io: &Io) -> u64 {
        let Some(copy) = self.copy else { return 0 };
        let ((call, ps_per_byte), bufs) = match io {
            Io::Read { bufs, .. } => (copy.read, bufs),
            Io::Write { bufs, .. } => (copy.write, bufs),
            _ => return 0,
        };
        call + total_len(bufs) as u64 * ps_per_byte / 1000
    }

    /// The calibration that the engine would measure with these costs and that cipher.
    pub(crate) fn calibration(&self, cipher: &CipherModel) -> Calibration {
        const BYTES: u64 = 64 << 10;
        #[expect(clippy::cast_sign_loss, reason = "a rate is positive")]
        let cipher_ns = (BYTES as f64 * cipher.ns_per_byte) as u64 + cipher.ns_per_call;
        let wake_latency = self.wake_call + self.wake + 2 * self.enqueue;
        Calibration {
            cipher: Some(cipher_ns),
            wake_latency: Some(wake_latency),
            wake_latency_slept: Some(wake_latency + self.wake_deep),
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
