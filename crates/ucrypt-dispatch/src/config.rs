//! Which policy a queue gets: adaptive or a fixed one, for reads and for writes.

use std::fmt;
use std::str::FromStr;

use crate::fixed::Fixed;
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
    pub(crate) fn adapt(self) -> bool {
        self.reads == PolicyKind::Adaptive || self.writes == PolicyKind::Adaptive
    }

    /// The policy for an operation.
    pub(crate) fn of(self, op: Op) -> PolicyKind {
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
