//! The ciphers of a volume, which can be taken away from all threads at once.
//!
//! Every transform reads the ciphers, and a suspended volume must not have them anywhere. So each
//! thread reads them under a lock that hardly any other thread uses: there are [`SHARDS`] of them,
//! each on cache lines of its own. Taking the ciphers away takes every lock once; the last
//! reference drops the ciphers, which wipes them. Whoever comes later finds none, and fails.
//!
//! Ciphers leave parts of the key on the stacks of the threads that run them. So they run far down the stack,
//! and a thread scrubs that part before it sleeps ([`scrub_own_stack`]): when the ciphers are taken away, all
//! threads sleep or soon will.

use std::cell::Cell;
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use ucrypt_sector::{SectorCipher, scrub_stack};

/// Number of locks; more cost memory, 128 bytes each.
const SHARDS: usize = 64;

/// Bytes of stack between whoever runs a cipher and the cipher. Hardly anything else comes that far down: values of
/// which parts are not initialised take what lies on the stack along, and may move to the heap.
const GAP_BYTES: usize = 32 << 10;

/// Bytes of this gap that need not be scrubbed: where a thread scrubs, it may have more of its stack in use than
/// where it ran a cipher, but not as much as the rest of the gap.
const SKIPPED_BYTES: usize = GAP_BYTES - (2 << 10);

/// Bytes of stack of a call without a buffer.
const CALL_BYTES: usize = 256;

/// By segment; `None`: not encrypted.
type Ciphers = Vec<Option<SectorCipher>>;

pub(crate) struct Keys {
    shards: Box<[Shard]>,
}

#[repr(align(128))]
struct Shard(RwLock<Option<Arc<Ciphers>>>);

static NEXT_SHARD: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The shard of this thread; `usize::MAX`: not chosen yet.
    static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
    /// What ciphers have used of this thread's stack since it was last scrubbed.
    static USED: Cell<Used> = const { Cell::new(Used::NOTHING) };
}

/// A part of a stack, by addresses: it is used from its end to its start.
#[derive(Clone, Copy)]
struct Used {
    start: usize,
    end: usize,
}

impl Used {
    const NOTHING: Self = Self { start: usize::MAX, end: 0 };
}

/// Scrubs the part of this thread's stack that ciphers have used since the last call.
#[inline]
pub(crate) fn scrub_own_stack() {
    let used = USED.replace(Used::NOTHING);
    if used.end > 0 {
        scrub(used);
    }
}

#[cold]
#[inline(never)]
fn scrub(used: Used) {
    if !further_down::<SKIPPED_BYTES, _>(|| scrub_from_here(used)) {
        scrub_from_here(used);
    }
}

/// Scrubs the rest of the stack down to the start of this part. Returns false, and does nothing, if the stack is
/// in use beyond the end of this part.
#[inline(never)]
fn scrub_from_here(used: Used) -> bool {
    let here = stack_address();
    if here < used.end {
        return false;
    }
    match here - used.start {
        0..=0x1400 => scrub_stack::<0x1400>(),
        0x1401..=0x2000 => scrub_stack::<0x2000>(),
        0x2001..=0x4000 => scrub_stack::<0x4000>(),
        0x4001..=0x6000 => scrub_stack::<0x6000>(),
        _ => scrub_stack::<0xd000>(),
    }
    true
}

/// Where the stack of this thread ends now, or less than [`CALL_BYTES`] above or below.
#[inline]
fn stack_address() -> usize {
    let here = 0_u8;
    ptr::from_ref(black_box(&here)).addr()
}

/// Calls `work` so many bytes further down the stack.
#[inline(never)]
fn further_down<const BYTES: usize, T>(work: impl FnOnce() -> T) -> T {
    let gap = MaybeUninit::<[u8; BYTES]>::uninit();
    black_box(&gap);
    work()
}

/// Runs a cipher, and notes what it may use of the stack.
// Never part of its caller, whose gap may lie below its other variables.
#[inline(never)]
fn run_noted<T>(cipher: &SectorCipher, run: impl FnOnce(&SectorCipher) -> T) -> T {
    let (here, used) = (stack_address(), USED.get());
    USED.set(Used {
        start: used.start.min(here - CALL_BYTES - cipher.stack_bytes()),
        end: used.end.max(here + CALL_BYTES),
    });
    run(cipher)
}

fn own_shard() -> usize {
    let known = SHARD.get();
    if known < SHARDS {
        return known;
    }
    let chosen = NEXT_SHARD.fetch_add(1, Ordering::Relaxed) % SHARDS;
    SHARD.set(chosen);
    chosen
}

impl Keys {
    pub(crate) fn new(ciphers: Ciphers) -> Self {
        let ciphers = Arc::new(ciphers);
        Self { shards: (0..SHARDS).map(|_| Shard(RwLock::new(Some(ciphers.clone())))).collect() }
    }

    /// Calls `with` with the cipher of an encrypted segment; `None` if it was taken away.
    pub(crate) fn with<T>(
        &self,
        segment: usize,
        with: impl FnOnce(&SectorCipher) -> T,
    ) -> Option<T> {
        let shard = &self.shards[own_shard()].0;
        let ciphers = shard.read().unwrap_or_else(PoisonError::into_inner);
        let cipher = ciphers.as_ref()?[segment].as_ref()?;
        Some(further_down::<GAP_BYTES, _>(|| run_noted(cipher, with)))
    }

    /// Replaces the ciphers in every shard; `None` takes them away. Waits for transforms under way.
    /// When it returns, the old ciphers are wiped.
    pub(crate) fn replace(&self, ciphers: Option<Ciphers>) {
        let ciphers = ciphers.map(Arc::new);
        for Shard(shard) in &self.shards {
            shard.write().unwrap_or_else(PoisonError::into_inner).clone_from(&ciphers);
        }
    }
}
