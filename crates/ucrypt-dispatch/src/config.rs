//! The configured policy of a queue: adaptive or fixed, for reads and for writes.

use std::fmt;
use std::str::FromStr;

use crate::adaptive::{Adaptive, Explored};
use crate::environment::{BackendTraits, Environment};
use crate::estimates::Estimates;
use crate::fixed::Fixed;
use crate::policy::{CipherDone, Context, Placed, Policy, Shape, Split, Target, Work};
use crate::request::Op;

/// How requests of one direction are dispatched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PolicyKind {
    /// Decide for each request from what was measured.
    #[default]
    Adaptive,
    /// A fixed rule.
    Fixed(Fixed),
}

impl PolicyKind {
    /// All policies.
    pub const ALL: [Self; 1 + Fixed::ALL.len()] = {
        let mut all = [Self::Adaptive; 1 + Fixed::ALL.len()];
        let mut at = 0;
        while at < Fixed::ALL.len() {
            all[1 + at] = Self::Fixed(Fixed::ALL[at]);
            at += 1;
        }
        all
    };

    /// The name used on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Adaptive => "adaptive",
            Self::Fixed(fixed) => fixed.name(),
        }
    }

    /// Whether any chunk may go to a worker.
    pub fn uses_workers(self) -> bool {
        match self {
            Self::Adaptive => true,
            Self::Fixed(fixed) => fixed.uses_workers(),
        }
    }
}

impl From<Fixed> for PolicyKind {
    fn from(fixed: Fixed) -> Self {
        Self::Fixed(fixed)
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for PolicyKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|policy| policy.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name);
            format!("'{text}' is no dispatch policy; there are {}", names.join(", "))
        })
    }
}

/// The policies of a queue, reads and writes apart like dm-crypt's flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Policies {
    /// For reads.
    pub reads: PolicyKind,
    /// For everything else.
    pub writes: PolicyKind,
}

impl From<PolicyKind> for Policies {
    fn from(policy: PolicyKind) -> Self {
        Self { reads: policy, writes: policy }
    }
}

impl From<Fixed> for Policies {
    fn from(fixed: Fixed) -> Self {
        PolicyKind::from(fixed).into()
    }
}

impl Policies {
    /// Whether any chunk may go to a worker.
    pub fn uses_workers(self) -> bool {
        self.reads.uses_workers() || self.writes.uses_workers()
    }

    /// Whether any decision depends on measurements.
    fn adapt(self) -> bool {
        self.reads == PolicyKind::Adaptive || self.writes == PolicyKind::Adaptive
    }

    /// The policy for an operation.
    fn of(self, op: Op) -> PolicyKind {
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

/// The policy of a queue. It measures even if no decision depends on the estimates, because the
/// status shows them.
#[derive(Debug)]
pub struct Configured {
    policies: Policies,
    adaptive: Adaptive,
}

impl Configured {
    /// Creates the policy that `policies` names, with nothing measured.
    pub fn new(policies: impl Into<Policies>) -> Self {
        let policies = policies.into();
        Self { policies, adaptive: Adaptive::new(policies.adapt()) }
    }

    /// The estimates.
    pub fn estimates(&self) -> &Estimates {
        self.adaptive.estimates()
    }

    /// The estimates, to add measurements from outside (a calibration).
    pub fn estimates_mut(&mut self) -> &mut Estimates {
        self.adaptive.estimates_mut()
    }

    /// Chunks that the explorer decided.
    pub fn explored(&self) -> Explored {
        self.adaptive.explored()
    }
}

impl Policy for Configured {
    #[inline]
    fn split(&self, context: &Context<'_>) -> Split {
        match self.policies.of(context.op) {
            PolicyKind::Adaptive => self.adaptive.split(context),
            PolicyKind::Fixed(fixed) => fixed.split(context),
        }
    }

    #[inline]
    fn target(&self, context: &Context<'_>, work: &Work) -> Target {
        match self.policies.of(context.op) {
            PolicyKind::Adaptive => self.adaptive.target(context, work),
            PolicyKind::Fixed(fixed) => fixed.target(context, work),
        }
    }

    fn looks_ahead(&self) -> bool {
        let Policies { reads, writes } = self.policies;
        // With two policies, one may offload a chunk that stands behind the other's.
        reads != writes
            || match reads {
                PolicyKind::Adaptive => self.adaptive.looks_ahead(),
                PolicyKind::Fixed(fixed) => fixed.looks_ahead(),
            }
    }

    fn needs_time(&self) -> bool {
        self.adaptive.needs_time()
    }

    fn stamp(&self) -> u32 {
        self.adaptive.stamp()
    }

    #[inline]
    fn on_time(&mut self, now_ns: u64, in_flight: usize) {
        self.adaptive.on_time(now_ns, in_flight);
    }

    #[inline]
    fn on_round(
        &mut self,
        now_ns: u64,
        in_flight: usize,
        backend: &BackendTraits,
        environment: &Environment,
    ) {
        self.adaptive.on_round(now_ns, in_flight, backend, environment);
    }

    fn on_split(&mut self, op: Op, shape: Shape, backend: &BackendTraits) {
        if self.policies.of(op) == PolicyKind::Adaptive {
            self.adaptive.on_split(op, shape, backend);
        }
    }

    fn on_placed(&mut self, placed: &Placed) {
        if self.policies.of(placed.op) == PolicyKind::Adaptive {
            self.adaptive.on_placed(placed);
        }
    }

    fn on_wake(&mut self, spent_ns: u64) {
        self.adaptive.on_wake(spent_ns);
    }

    fn on_cipher_done(&mut self, done: &CipherDone) {
        self.adaptive.on_cipher_done(done);
    }

    fn on_io_done(&mut self, op: Op, bytes: u64, spent_ns: u64) {
        self.adaptive.on_io_done(op, bytes, spent_ns);
    }

    #[inline]
    fn on_end(&mut self, op: Op, bytes: u64, succeeded: bool, stamp: u32) {
        self.adaptive.on_end(op, bytes, succeeded, stamp);
    }
}
