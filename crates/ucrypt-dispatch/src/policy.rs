//! The policies: three questions about a request, answered from numbers only. Into how many
//! chunks, where is each encrypted, and what may leave before what.
//!
//! The static ones are dm-crypt's, with the flags that choose them there:
//!
//! | policy | dm-crypt |
//! |---|---|
//! | `inline` | `no_read_workqueue` and `no_write_workqueue` |
//! | `same-cpu` | `same_cpu_crypt` |
//! | `unbound` | the default: work queues on any CPU, writes sorted |
//! | `same-cpu,unsorted`, `unbound,unsorted` | the same with `submit_from_crypt_cpus` |
//! | `merge` | request-based dm-crypt (proposed in 2015): neighbours become one before the cipher |

use std::fmt;
use std::str::FromStr;

use crate::around::{Device, Surroundings};
use crate::explorer::Arm;
use crate::learn::Learned;
use crate::request::{Op, Urgency};

/// Where a chunk is encrypted or decrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// On the thread that has the request, at once.
    Inline,
    /// On a worker that runs on the same core.
    SameCore,
    /// On whichever worker is free, and one is woken for it if any sleeps.
    Offload,
    /// On a worker that is awake, when it gets there: none is woken unless all sleep.
    OffloadAwake,
}

/// How requests are dispatched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Policy {
    /// Decide for each request from what was measured.
    #[default]
    Adaptive,
    /// Every chunk where its request arrived.
    Inline,
    /// Every chunk by a worker on the same core.
    SameCpu {
        /// Writes leave in the order in which they came.
        sorted: bool,
    },
    /// Every chunk by any worker.
    Unbound {
        /// Writes leave in the order in which they came.
        sorted: bool,
    },
    /// Neighbours become one, then inline.
    Merge,
}

impl Policy {
    /// Every policy there is.
    pub const ALL: [Self; 7] = [
        Self::Adaptive,
        Self::Inline,
        Self::SameCpu { sorted: true },
        Self::SameCpu { sorted: false },
        Self::Unbound { sorted: true },
        Self::Unbound { sorted: false },
        Self::Merge,
    ];

    /// The name used on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Adaptive => "adaptive",
            Self::Inline => "inline",
            Self::SameCpu { sorted: true } => "same-cpu",
            Self::SameCpu { sorted: false } => "same-cpu,unsorted",
            Self::Unbound { sorted: true } => "unbound",
            Self::Unbound { sorted: false } => "unbound,unsorted",
            Self::Merge => "merge",
        }
    }

    /// Whether any chunk may go to a worker.
    pub fn uses_workers(self) -> bool {
        !matches!(self, Self::Inline | Self::Merge)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|policy| policy.name() == text);
        known.ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|policy| policy.name()).collect();
            format!("'{text}' is no dispatch policy; there are {}", names.join(", "))
        })
    }
}

/// The policies of a queue: dm-crypt's flags tell reads and writes apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Policies {
    /// For reads.
    pub reads: Policy,
    /// For everything else.
    pub writes: Policy,
}

impl From<Policy> for Policies {
    fn from(policy: Policy) -> Self {
        Self { reads: policy, writes: policy }
    }
}

impl Policies {
    /// Whether any chunk may go to a worker.
    pub fn uses_workers(self) -> bool {
        self.reads.uses_workers() || self.writes.uses_workers()
    }

    /// Whether everything is decided from what is measured.
    pub(crate) fn are_adaptive(self) -> bool {
        self == Policy::Adaptive.into()
    }

    /// Whether anything is decided from what is measured.
    pub(crate) fn adapts(self) -> bool {
        self.reads == Policy::Adaptive || self.writes == Policy::Adaptive
    }

    /// The policy for an operation.
    pub(crate) fn of(self, op: Op) -> Policy {
        if op == Op::Read { self.reads } else { self.writes }
    }
}

impl fmt::Display for Policies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.reads == self.writes {
            return self.reads.fmt(f);
        }
        write!(f, "{} for reads, {} for writes", self.reads, self.writes)
    }
}

/// A policy's answer for one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Largest chunk, in 512-byte sectors.
    pub(crate) chunk_sectors: u64,
    /// Most chunks of the request that may be under way at once.
    pub(crate) window: u32,
    /// Writes leave in the order in which they came.
    pub(crate) ordered: bool,
    /// Most neighbours that may travel as one if they wait together: requests, and sectors.
    pub(crate) join_max: (u32, u64),
}

/// Everything that a decision may depend on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Situation<'a> {
    pub(crate) op: Op,
    /// Length of the request in 512-byte sectors.
    pub(crate) sectors: u64,
    /// Those of them that are in no chunk yet.
    pub(crate) left_sectors: u64,
    pub(crate) urgency: Urgency,
    /// Requests in flight, this one included.
    pub(crate) depth: u32,
    pub(crate) transfer_sectors_max: u64,
    pub(crate) device: &'a Device,
    pub(crate) surroundings: &'a Surroundings,
    pub(crate) learned: &'a Learned,
    /// The arm that decides.
    pub(crate) arm: Arm,
}

/// Chunks of a write of zeroes under way at once: it owns no buffer of its own size, so each
/// chunk borrows one from the queue, which others need too.
const ZEROES_WINDOW: u32 = 2;

/// dm-crypt splits requests at this length since 2024 (`max_read_size`, `max_write_size`).
const SPLIT_SECTORS: u64 = 256;

/// Adaptive's chunks are multiples of this: what caches and devices like.
const PAGE_BYTES: u64 = 4096;

/// The crypt work that there is when a chunk is to be placed, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work {
    /// Of the chunk.
    pub(crate) bytes: u64,
    /// Of the others that this thread does before it.
    pub(crate) ahead_bytes: u64,
    /// Of those that this queue has handed to workers.
    pub(crate) handed_bytes: u64,
    /// Workers that have one of them, or had one a moment ago and do not sleep yet.
    pub(crate) awake: u32,
    /// See [`Line::waited_ns`](crate::line::Line::waited_ns).
    pub(crate) waited_ns: f64,
}

impl Policy {
    /// Into how many chunks, and in which order they may leave.
    pub(crate) fn plan(self, situation: &Situation<'_>) -> Plan {
        let whole = situation.transfer_sectors_max;
        let plan = |chunk_sectors: u64, ordered| Plan {
            chunk_sectors: chunk_sectors.min(whole).max(1),
            window: match situation.op {
                Op::EncryptZeroes { .. } => ZEROES_WINDOW,
                _ => u32::MAX,
            },
            ordered,
            join_max: (1, 0),
        };
        match self {
            Self::Inline => plan(whole, true),
            Self::SameCpu { sorted } | Self::Unbound { sorted } => plan(SPLIT_SECTORS, sorted),
            Self::Merge => Plan { join_max: (u32::MAX, whole), ..plan(whole, true) },
            Self::Adaptive => {
                let (requests, joined_bytes) = situation.join();
                #[expect(clippy::cast_sign_loss, reason = "positive numbers of bytes")]
                let (bytes, joined) = (situation.chunk_bytes() as u64, joined_bytes as u64);
                let join_max = (requests, (joined / 512).min(whole));
                let pages = bytes.div_ceil(PAGE_BYTES);
                Plan { join_max, ..plan(pages * (PAGE_BYTES / 512), true) }
            }
        }
    }

    /// Where a chunk is crypted.
    pub(crate) fn target(self, situation: &Situation<'_>, work: &Work) -> Target {
        match self {
            Self::Inline | Self::Merge => Target::Inline,
            Self::SameCpu { .. } => Target::SameCore,
            Self::Unbound { .. } => Target::Offload,
            Self::Adaptive => situation.adaptive_target(work),
        }
    }
}

/// How often was decided what, since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Requests that became one chunk of their own.
    pub whole: u64,
    /// Requests that were cut.
    pub cut: u64,
    /// Requests that travelled together with a neighbour.
    pub joined: u64,
    /// Chunks crypted where they were.
    pub inline: u64,
    /// Chunks handed to a worker.
    pub offloaded: u64,
    /// Chunks crypted where they were whatever the estimates said, because that was seen to be faster,
    /// or to see whether it is.
    pub all_inline: u64,
    /// The same for chunks that all went to workers.
    pub all_offload: u64,
    /// Chunks of requests that were split less, or joined longer, than the estimates said, for that reason.
    pub coarse: u64,
}

impl std::iter::Sum for Tally {
    fn sum<I: Iterator<Item = Self>>(tallies: I) -> Self {
        tallies.fold(Self::default(), |sum, of| Self {
            whole: sum.whole + of.whole,
            cut: sum.cut + of.cut,
            joined: sum.joined + of.joined,
            inline: sum.inline + of.inline,
            offloaded: sum.offloaded + of.offloaded,
            all_inline: sum.all_inline + of.all_inline,
            all_offload: sum.all_offload + of.all_offload,
            coarse: sum.coarse + of.coarse,
        })
    }
}
