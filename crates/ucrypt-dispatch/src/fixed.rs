//! Fixed policies: dm-crypt's, with the flags that choose them there, and two rules that other systems set
//! by hand.
//!
//! | policy | where it comes from |
//! |---|---|
//! | `inline` | dm-crypt with `no_read_workqueue` and `no_write_workqueue` |
//! | `same-cpu` | dm-crypt with `same_cpu_crypt` |
//! | `unbound` | dm-crypt's default: work queues on any CPU, writes sorted |
//! | `same-cpu,unsorted`, `unbound,unsorted` | the same with `submit_from_crypt_cpus` |
//! | `merge` | request-based dm-crypt (proposed in 2015): neighbours become one before the cipher |
//! | `inline-8k-idle` | Crucible: up to 8 KiB inline while workers have nothing, else offloaded |
//! | `inline-8k-free` | dm-verity (`try_verify_in_tasklet`): up to 8 KiB inline unless the thread has other work |

use crate::policy::{Context, Policy, Split, Target, Work};
use crate::tuning::{DM_CRYPT_SPLIT_SECTORS, SHORT_BYTES_MAX};

/// A fixed policy; see the module's comment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fixed {
    /// Every chunk on the thread where its request arrived.
    Inline,
    /// Every chunk on a worker of the same core.
    SameCpu {
        /// Writes leave in the order in which they came.
        sorted: bool,
    },
    /// Every chunk on any worker.
    Unbound {
        /// Writes leave in the order in which they came.
        sorted: bool,
    },
    /// Adjacent requests are joined into one chunk, then inline.
    Merge,
    /// Short chunks inline while workers have no chunk of this queue.
    ShortIfIdle,
    /// Short chunks inline unless this thread has other chunks to transform.
    ShortIfFree,
}

impl Fixed {
    /// All fixed policies.
    pub const ALL: [Self; 8] = [
        Self::Inline,
        Self::SameCpu { sorted: true },
        Self::SameCpu { sorted: false },
        Self::Unbound { sorted: true },
        Self::Unbound { sorted: false },
        Self::Merge,
        Self::ShortIfIdle,
        Self::ShortIfFree,
    ];

    /// The name used on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::SameCpu { sorted: true } => "same-cpu",
            Self::SameCpu { sorted: false } => "same-cpu,unsorted",
            Self::Unbound { sorted: true } => "unbound",
            Self::Unbound { sorted: false } => "unbound,unsorted",
            Self::Merge => "merge",
            Self::ShortIfIdle => "inline-8k-idle",
            Self::ShortIfFree => "inline-8k-free",
        }
    }

    /// Whether any chunk may go to a worker.
    pub fn uses_workers(self) -> bool {
        !matches!(self, Self::Inline | Self::Merge)
    }
}

impl Policy for Fixed {
    fn split(&self, _: &Context<'_>) -> Split {
        let whole = Split {
            chunk_sectors: u64::MAX,
            ordered: true,
            join_requests: 1,
            join_sectors: u64::MAX,
        };
        match *self {
            Self::Inline | Self::ShortIfIdle | Self::ShortIfFree => whole,
            Self::SameCpu { sorted } | Self::Unbound { sorted } => {
                Split { chunk_sectors: DM_CRYPT_SPLIT_SECTORS, ordered: sorted, ..whole }
            }
            Self::Merge => Split { join_requests: u32::MAX, ..whole },
        }
    }

    fn target(&self, _: &Context<'_>, work: &Work) -> Target {
        let short_if = |rule: bool| {
            if rule && work.bytes <= SHORT_BYTES_MAX { Target::Inline } else { Target::Offload }
        };
        match self {
            Self::Inline | Self::Merge => Target::Inline,
            Self::SameCpu { .. } => Target::SameCore,
            Self::Unbound { .. } => Target::Offload,
            Self::ShortIfIdle => short_if(work.offloaded_bytes == 0),
            Self::ShortIfFree => short_if(work.ahead_bytes == 0),
        }
    }

    fn looks_ahead(&self) -> bool {
        matches!(self, Self::ShortIfIdle | Self::ShortIfFree)
    }
}
