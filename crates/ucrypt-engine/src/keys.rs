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
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use ucrypt_sector::{SectorCipher, scrub_stack};

/// Number of locks; more cost memory, 128 bytes each.
const SHARDS: usize = 64;

/// Bytes of stack between whoever runs a cipher and the cipher. Nothing else comes that far down: values of which
/// parts are not initialised take what lies on the stack along, and may move to the heap.
const GAP_BYTES: usize = 8 << 10;

/// Bytes of stack, at most, that a thread has more or less in use when it scrubs than when it runs a cipher.
const CALLS_BYTES: usize = 2 << 10;

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
    /// Bytes of this thread's stack that ciphers have used since they were last scrubbed; 0: none has run.
    static USED: Cell<usize> = const { Cell::new(0) };
}

/// Scrubs the part of this thread's stack that ciphers have used since the last call.
#[inline]
pub(crate) fn scrub_own_stack() {
    let used = USED.replace(0);
    if used > 0 {
        scrub(used);
    }
}

#[cold]
#[inline(never)]
fn scrub(used: usize) {
    let gap = MaybeUninit::<[u8; GAP_BYTES - CALLS_BYTES]>::uninit();
    black_box(&gap);
    match used {
        ..=4096 => scrub_stack::<{ 4096 + 2 * CALLS_BYTES }>(),
        _ => scrub_stack::<{ (16 << 10) + 2 * CALLS_BYTES }>(),
    }
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

/// Runs a cipher [`GAP_BYTES`] further down the stack.
#[inline(never)]
fn run_below<T>(run: impl FnOnce() -> T) -> T {
    let gap = MaybeUninit::<[u8; GAP_BYTES]>::uninit();
    black_box(&gap);
    run()
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
        USED.set(USED.get().max(cipher.stack_bytes()));
        Some(run_below(|| with(cipher)))
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
