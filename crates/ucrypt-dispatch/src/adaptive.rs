//! The policy of a queue. Where no fixed policy is set, it is adaptive: it decides by the
//! [cost model](crate::cost_model), or by the [explorer](crate::explorer) where that has measured
//! another way to be faster.
//!
//! The two combine as follows. The explorer says which arm serves the current requests. Under the
//! arms `Model`, `Coarse` and `Whole` the cost model decides, with the operation cost that the arm
//! gives it; the other arms offload nothing, or everything. The explorer compares only arms that may
//! differ.

use std::cell::Cell;

use crate::config::{Policies, PolicyKind};
use crate::cost_model::CostModel;
use crate::environment::{BackendTraits, Environment};
use crate::estimates::Estimates;
use crate::explorer::{Arm, Explorer};
use crate::policy::{
    CipherDone, Context, Policy, Shape, Split, Target, TransformedBy, WakeLatency, Work,
};
use crate::request::{Op, Urgency};
use crate::tuning::{CACHE_BYTES, OPERATION_NS, PAGE_BYTES, SPREAD_BYTES};

/// Chunks served by another arm than the cost model, either because that arm was measured to be
/// faster or to try it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Explored {
    /// All inline.
    pub all_inline: u64,
    /// All offloaded.
    pub all_offload: u64,
    /// Split less, or joined longer.
    pub coarse: u64,
    /// Not split at all.
    pub whole: u64,
}

impl std::iter::Sum for Explored {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, of| Self {
            all_inline: sum.all_inline + of.all_inline,
            all_offload: sum.all_offload + of.all_offload,
            coarse: sum.coarse + of.coarse,
            whole: sum.whole + of.whole,
        })
    }
}

/// The policy of a queue: for each direction a fixed one, or adaptive. It measures even if no
/// decision depends on the estimates, because the status shows them.
#[derive(Debug)]
pub struct Configured {
    policies: Policies,
    estimates: Estimates,
    explorer: Explorer,
    explored: Explored,
    /// Whether there is a choice: a worker to offload to, or a device that works in parallel with
    /// the cipher.
    explores: bool,
    /// There was a worker in the last round.
    has_workers: bool,
    wake_latency_applied_ns: Cell<Option<f64>>,
}

impl Configured {
    /// Creates the policy that `policies` names, with nothing measured.
    pub fn new(policies: impl Into<Policies>) -> Self {
        Self {
            policies: policies.into(),
            estimates: Estimates::default(),
            explorer: Explorer::new(),
            explored: Explored::default(),
            explores: false,
            has_workers: false,
            wake_latency_applied_ns: Cell::new(None),
        }
    }

    /// The estimates.
    pub fn estimates(&self) -> &Estimates {
        &self.estimates
    }

    /// The estimates, to add measurements from outside (a calibration).
    pub fn estimates_mut(&mut self) -> &mut Estimates {
        &mut self.estimates
    }

    /// The wake latency that the last decision applied that needed one, in nanoseconds; `None`
    /// before the first one, and while none is measured. It depends on how long the workers had
    /// slept, and is that of another sleep if theirs is not measured yet.
    pub fn wake_latency_applied_ns(&self) -> Option<f64> {
        self.wake_latency_applied_ns.get()
    }

    /// Chunks that the explorer decided.
    pub fn explored(&self) -> Explored {
        self.explored
    }

    fn model<'a>(&'a self, context: &'a Context<'a>) -> CostModel<'a> {
        CostModel {
            context,
            estimates: &self.estimates,
            operation_ns: OPERATION_NS * self.explorer.arm().operation_factor(),
            wake_latency_applied_ns: &self.wake_latency_applied_ns,
        }
    }

    fn chunk_bytes(&self, context: &Context<'_>) -> f64 {
        let request_bytes = context.sectors as f64 * 512.0;
        match self.explorer.arm() {
            Arm::AllInline if context.backend.synchronous => request_bytes.min(CACHE_BYTES),
            Arm::AllOffload if context.backend.synchronous => request_bytes.min(SPREAD_BYTES),
            _ => self.model(context).chunk_bytes(),
        }
    }
}

impl Policy for Configured {
    #[inline]
    fn split(&self, context: &Context<'_>) -> Split {
        if let PolicyKind::Fixed(fixed) = self.policies.of(context.op) {
            return fixed.split(context);
        }
        let (join_requests, join_bytes) = self.model(context).join();
        let pages = (self.chunk_bytes(context) / PAGE_BYTES).ceil();
        #[expect(clippy::cast_sign_loss, reason = "positive lengths")]
        let sectors = |bytes: f64| (bytes / 512.0) as u64;
        let chunk_sectors = sectors(pages * PAGE_BYTES);
        let BackendTraits { rotational, zoned, .. } = *context.backend;
        // A request whose chunks overtake those of earlier ones ends later.
        let ordered = rotational || zoned || context.sequential || chunk_sectors < context.sectors;
        Split { chunk_sectors, ordered, join_requests, join_sectors: sectors(join_bytes) }
    }

    #[inline]
    fn target(&self, context: &Context<'_>, work: &Work) -> Target {
        if let PolicyKind::Fixed(fixed) = self.policies.of(context.op) {
            return fixed.target(context, work);
        }
        match (context.urgency, self.explorer.arm()) {
            (Urgency::Urgent, _) => Target::Inline,
            _ if context.environment.workers == 0 => Target::Inline,
            (Urgency::Background, _) | (Urgency::Normal, Arm::AllOffload) => Target::Offload,
            (Urgency::Normal, Arm::AllInline) => Target::Inline,
            (Urgency::Normal, Arm::Model | Arm::Coarse | Arm::Whole) => {
                self.model(context).target(work)
            }
        }
    }

    fn looks_ahead(&self) -> bool {
        let Policies { reads, writes } = self.policies;
        // With two policies, one may offload a chunk that stands behind the other's.
        reads != writes
            || match reads {
                PolicyKind::Adaptive => self.explorer.arm() != Arm::AllInline,
                PolicyKind::Fixed(fixed) => fixed.looks_ahead(),
            }
    }

    fn needs_time(&self) -> bool {
        self.explorer.compares()
    }

    fn stamp(&self) -> u32 {
        self.explorer.changes()
    }

    #[inline]
    fn on_time(&mut self, now_ns: u64, in_flight: usize) {
        if self.explores {
            self.explorer.pass(now_ns, in_flight);
        }
    }

    #[inline]
    fn on_round(
        &mut self,
        now_ns: u64,
        in_flight: usize,
        backend: &BackendTraits,
        environment: &Environment,
    ) {
        let has_workers = environment.workers > 0;
        self.has_workers = has_workers;
        let explores = self.policies.adapt() && (has_workers || !backend.synchronous);
        // Where the clients take the workers' core now and then, each time is a new beginning. To go on
        // without a choice costs each short request 4 % over memory, and finds nothing there.
        if explores != self.explores {
            self.explores = explores;
            self.explorer.rest(now_ns, in_flight);
        }
        if explores {
            let estimates = &self.estimates;
            self.explorer.turn(|load| CostModel::may_gain(estimates, load, has_workers));
        }
    }

    fn on_split(&mut self, op: Op, shape: Shape, backend: &BackendTraits) {
        if !self.explores || self.policies.of(op) != PolicyKind::Adaptive {
            return;
        }
        match shape {
            // For a backend in memory, splitting serves the workers, whatever an operation costs.
            Shape::Split if !backend.synchronous => self.explorer.split(),
            Shape::Joined(_) => self.explorer.joined(),
            Shape::Whole | Shape::Split => {}
        }
    }

    fn on_placed(&mut self, op: Op, urgency: Urgency, offloaded: bool) {
        if self.policies.of(op) != PolicyKind::Adaptive {
            return;
        }
        // The others are placed alike under every arm.
        let is_placed_by_arm = urgency == Urgency::Normal && (self.has_workers || offloaded);
        match self.explorer.arm() {
            Arm::Coarse => self.explored.coarse += 1,
            Arm::Whole => self.explored.whole += 1,
            Arm::AllInline if is_placed_by_arm => self.explored.all_inline += 1,
            Arm::AllOffload if is_placed_by_arm => self.explored.all_offload += 1,
            Arm::Model | Arm::AllInline | Arm::AllOffload => {}
        }
        if offloaded && is_placed_by_arm {
            self.explorer.offloaded();
        }
    }

    fn on_wake(&mut self, spent_ns: u64) {
        self.estimates.wake_cost(spent_ns);
    }

    fn on_cipher_done(&mut self, done: &CipherDone) {
        let by_worker = done.by == TransformedBy::Worker;
        if let Some(spent_ns) = done.spent_ns
            // This thread is slower beside a working worker: such samples are left out.
            && (by_worker || !done.beside_workers)
        {
            self.estimates.cipher(done.op.is_write(), by_worker, done.bytes, spent_ns);
        }
        match done.wake_latency {
            Some(WakeLatency { slept_ns, ns }) if by_worker => {
                self.estimates.wake_latency(slept_ns, ns);
            }
            Some(WakeLatency { slept_ns, ns }) => self.estimates.wakes_later(slept_ns, ns),
            None => {}
        }
    }

    fn on_io_done(&mut self, op: Op, bytes: u64, spent_ns: u64) {
        if matches!(op, Op::Write { .. }) {
            self.estimates.write(bytes, spent_ns);
        }
    }

    #[inline]
    fn on_end(&mut self, op: Op, bytes: u64, succeeded: bool, stamp: u32) {
        if self.explores {
            // Ignore failed requests: what was done for them is unknown.
            self.explorer.end(if succeeded { op } else { Op::Flush }, bytes, stamp);
        }
    }
}
