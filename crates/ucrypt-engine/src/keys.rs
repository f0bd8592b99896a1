//! The ciphers of a volume, which can be taken away from all threads at once.
//!
//! Every transform reads the ciphers, and a suspended volume must not have them anywhere. So each
//! thread reads them under a lock that hardly any other thread uses: there are [`SHARDS`] of them,
//! each on cache lines of its own. Taking the ciphers away takes every lock once; the last
//! reference drops the ciphers, which wipes them. Whoever comes later finds none, and fails. What
//! ciphers leave elsewhere is the subject of [`residue`].

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use ucrypt_sector::SectorCipher;

use crate::residue;

/// Number of locks; more cost memory, 128 bytes each.
const SHARDS: usize = 64;

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
        ciphers.as_ref()?[segment].as_ref().map(|cipher| residue::run(cipher, with))
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
