//! Compares ways to do the same work (*arms*) by the time that each takes, while the work goes on.
//!
//! The work is done in epochs, each by one arm. The arm with the shortest time per piece of work
//! continues. The others are tried again after a pause that doubles each time they lose. The result
//! of a trial is its best epoch, because stalls only lengthen one.

use crate::tuning::{
    BETTER_FACTOR, CLOSE_SHARE, DEAR_FACTOR, HOPELESS_FACTORS, PAUSE_EPOCHS, PAUSE_EPOCHS_FIRST,
    PAUSE_EPOCHS_MAX, PAUSE_EPOCHS_MIN, SLOW_FIRST_ONE_IN, SLOW_ONE_IN, TRIAL_EPOCHS, TRIAL_NS,
    WEIGHT_BETTER, WEIGHT_WORSE, WORSE_FACTOR_MAX,
};

/// Results of one arm.
#[derive(Debug, Clone, Copy, Default)]
struct Outcome {
    /// Moving average of the time per piece of work; 0: never tried.
    each_ns: f64,
    /// Epochs and nanoseconds of the arm since its last trial began.
    epochs: u32,
    spent_ns: u64,
    /// Epochs until the arm is tried again, and its base pause when it last lost; 0 if it did not
    /// lose.
    pause: u32,
    paused: u32,
}

impl Outcome {
    const NEVER: Self = Self { each_ns: 0.0, epochs: 0, spent_ns: 0, pause: 0, paused: 0 };

    fn add(&mut self, each_ns: f64, spent_ns: u64) {
        self.epochs = self.epochs.saturating_add(1);
        self.spent_ns = self.spent_ns.saturating_add(spent_ns);
        let was = self.each_ns;
        self.each_ns = match each_ns {
            first if self.epochs == 1 => first,
            any if self.epochs <= TRIAL_EPOCHS => any.min(was),
            better if better < was => was + (better - was) * WEIGHT_BETTER,
            worse => was + (worse.min(was * WORSE_FACTOR_MAX) - was) * WEIGHT_WORSE,
        };
    }

    /// The arm has lost against one that takes `best_ns`: sets its pause.
    fn lose(&mut self, best_ns: f64) {
        let behind = (self.each_ns / best_ns - 1.0).max(0.0);
        self.paused = match self.paused {
            0 if behind < CLOSE_SHARE => PAUSE_EPOCHS_FIRST,
            before => (2 * before).clamp(PAUSE_EPOCHS, PAUSE_EPOCHS_MAX),
        };
        #[expect(clippy::cast_sign_loss, reason = "no factor is negative")]
        let pause = (f64::from(self.paused) * (1.0 + DEAR_FACTOR * behind)) as u32;
        self.pause = pause;
    }
}

/// Results of every arm under one load, by the arm's number. The first arm is the default.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trials<const ARMS: usize> {
    outcomes: [Outcome; ARMS],
    best: usize,
    /// Nanoseconds of all epochs, and of those of other arms than the best.
    total_ns: u64,
    others_ns: u64,
    /// Nanoseconds of the last epoch.
    epoch_ns: u64,
}

impl<const ARMS: usize> Trials<ARMS> {
    /// Nothing was tried yet.
    pub(crate) const NEW: Self =
        Self { outcomes: [Outcome::NEVER; ARMS], best: 0, total_ns: 0, others_ns: 0, epoch_ns: 0 };

    /// Adds the result of an epoch: the time per piece of work, and in all.
    pub(crate) fn add(&mut self, arm: usize, each_ns: f64, spent_ns: u64) {
        self.outcomes[arm].add(each_ns, spent_ns);
        self.total_ns = self.total_ns.saturating_add(spent_ns);
        if arm != self.best {
            self.others_ns = self.others_ns.saturating_add(spent_ns);
        }
        self.epoch_ns = spent_ns;
    }

    /// Whether a trial of that arm would take too much of the time that there was so far.
    fn is_too_early(&self, arm: usize) -> bool {
        let is_first = self.outcomes[arm].each_ns == 0.0;
        let share = if is_first { SLOW_FIRST_ONE_IN } else { SLOW_ONE_IN };
        let others_ns = self.others_ns.saturating_add(self.epoch_ns);
        self.epoch_ns > TRIAL_NS && others_ns.saturating_mul(share) > self.total_ns
    }

    /// The arm does the same as the first one now: nothing to try.
    pub(crate) fn equate(&mut self, arm: usize) {
        self.outcomes[arm] = Outcome { pause: PAUSE_EPOCHS_MIN, paused: 0, ..self.outcomes[0] };
    }

    /// The arm cannot pay off now. It keeps its pause, because this may change often.
    pub(crate) fn suspend(&mut self, arm: usize) {
        let Outcome { pause, paused, .. } = self.outcomes[arm];
        let pause = pause.max(PAUSE_EPOCHS_MIN);
        self.outcomes[arm] = Outcome { pause, paused, ..Outcome::NEVER };
    }

    /// The arm of the next epoch, after one of `now`.
    pub(crate) fn next(&mut self, now: usize) -> usize {
        let each_ns = |arm: usize| match self.outcomes[arm].each_ns {
            0.0 => f64::INFINITY,
            ns if arm == self.best => ns * BETTER_FACTOR,
            ns => ns,
        };
        let best = (0..ARMS).min_by(|&a, &b| each_ns(a).total_cmp(&each_ns(b)));
        self.best = best.unwrap_or(now);
        let best_ns = self.outcomes[self.best].each_ns;
        let Outcome { each_ns, epochs, spent_ns, .. } = self.outcomes[now];
        let most = HOPELESS_FACTORS[(epochs as usize).clamp(1, HOPELESS_FACTORS.len()) - 1];
        let is_hopeless = each_ns > best_ns * most;
        if epochs < TRIAL_EPOCHS && spent_ns < TRIAL_NS && !is_hopeless {
            return now;
        }
        for (arm, outcome) in self.outcomes.iter_mut().enumerate() {
            outcome.pause = outcome.pause.saturating_sub(1);
            if arm == self.best {
                (outcome.pause, outcome.paused) = (0, 0);
            } else if outcome.each_ns > 0.0 && (arm == now || outcome.paused == 0) {
                outcome.lose(best_ns);
            }
        }
        let due = |arm: &usize| *arm != self.best && self.outcomes[*arm].pause == 0;
        let Some(due) = (0..ARMS).find(due).filter(|&arm| !self.is_too_early(arm)) else {
            return self.best;
        };
        let tried = &mut self.outcomes[due];
        (tried.epochs, tried.spent_ns) = (0, 0);
        due
    }

    /// Whether nothing was tried yet.
    #[cfg(test)]
    pub(crate) fn is_new(&self) -> bool {
        self.outcomes.iter().all(|outcome| outcome.each_ns == 0.0)
    }
}
