//! How requests are dispatched: `--dispatch`, and dm-crypt's flags for it.
//!
//! A flag counts wherever it stands: on the command line, in a table line or in a LUKS2 header.
//! `--dispatch` overrides all flags.

use std::collections::BTreeSet;

use ucrypt_engine::{CipherModel, Policies, PolicyKind, Poll};
pub(crate) use ucrypt_image::segments::policies as from_flags;
use ucrypt_luks::Flag;

/// The options for dispatch.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Dispatch")]
pub(crate) struct DispatchArgs {
    /// How requests are dispatched: adaptive, inline, same-cpu, unbound (these two also with ,unsorted),
    /// merge, inline-8k-idle, inline-8k-free [default: adaptive]
    #[arg(long, value_name = "POLICY")]
    dispatch: Option<PolicyKind>,
    /// Decrypt reads where they arrive
    #[arg(long = "perf-no_read_workqueue")]
    no_read_workqueue: bool,
    /// Encrypt writes where they arrive
    #[arg(long = "perf-no_write_workqueue")]
    no_write_workqueue: bool,
    /// Encrypt on the core of the request
    #[arg(long = "perf-same_cpu_crypt")]
    same_cpu_crypt: bool,
    /// Let writes leave unsorted
    #[arg(long = "perf-submit_from_crypt_cpus")]
    submit_from_crypt_cpus: bool,
    /// Accepted; workers have no priority of their own
    #[arg(long = "perf-high_priority")]
    high_priority: bool,
    /// Pretend that the cipher takes this long: nanoseconds a byte, and nanoseconds a call
    #[arg(long, value_name = "NS[,NS]", value_parser = parse_model)]
    pub(super) cipher_model: Option<CipherModel>,
    /// Whether to spin for the disk while requests come one at a time: auto if that is measured to be
    /// faster; off; or for at most this many microseconds [default: off]
    #[arg(long, value_name = "off|auto|MICROSECONDS", value_parser = parse_poll)]
    poll: Option<Poll>,
}

impl DispatchArgs {
    /// The policies that these options and the flags of the volume ask for.
    pub(super) fn policies(&self, volume: &BTreeSet<Flag>) -> Policies {
        if let Some(policy) = self.dispatch {
            return policy.into();
        }
        let mut flags = volume.clone();
        flags.extend(self.flags());
        from_flags(&flags)
    }

    pub(super) fn poll(&self) -> Poll {
        self.poll.unwrap_or(Poll::Off)
    }

    /// The flags on the command line.
    pub(super) fn flags(&self) -> impl Iterator<Item = Flag> {
        [
            (self.no_read_workqueue, Flag::NoReadWorkqueue),
            (self.no_write_workqueue, Flag::NoWriteWorkqueue),
            (self.same_cpu_crypt, Flag::SameCpuCrypt),
            (self.submit_from_crypt_cpus, Flag::SubmitFromCryptCpus),
            (self.high_priority, Flag::HighPriority),
        ]
        .into_iter()
        .filter_map(|(given, flag)| given.then_some(flag))
    }
}

/// The longest spin that can be asked for, in microseconds.
const SPIN_MAX_US: u64 = 10_000;

fn parse_poll(text: &str) -> Result<Poll, String> {
    match text {
        "off" => Ok(Poll::Off),
        "auto" => Ok(Poll::Auto),
        _ => match text.parse() {
            Ok(us @ 1..=SPIN_MAX_US) => Ok(Poll::Spin(us * 1000)),
            _ => Err(format!("'{text}' is none of off, auto, and 1 to {SPIN_MAX_US} microseconds")),
        },
    }
}

fn parse_model(text: &str) -> Result<CipherModel, String> {
    let (byte, call) = text.split_once(',').unwrap_or((text, "0"));
    let number = |text: &str| {
        let value: Option<f64> = text.trim().parse().ok();
        value
            .filter(|value| (0.0..=1e9).contains(value))
            .ok_or_else(|| format!("'{text}' is no number of nanoseconds"))
    };
    #[expect(clippy::cast_sign_loss, reason = "checked to lie between 0 and a second")]
    let ns_per_call = number(call)? as u64;
    Ok(CipherModel { ns_per_byte: number(byte)?, ns_per_call })
}

#[cfg(test)]
mod tests {
    use ucrypt_engine::Fixed;

    use super::*;

    #[test]
    fn dm_crypts_flags_are_the_policies_that_they_stand_for() {
        let policies = |flags: &[Flag]| from_flags(&flags.iter().copied().collect());
        assert_eq!(policies(&[]), PolicyKind::Adaptive.into());
        assert_eq!(
            policies(&[Flag::NoReadWorkqueue, Flag::NoWriteWorkqueue]),
            Fixed::Inline.into()
        );
        assert_eq!(
            policies(&[Flag::NoReadWorkqueue]),
            Policies { reads: Fixed::Inline.into(), writes: PolicyKind::Adaptive }
        );
        assert_eq!(policies(&[Flag::SameCpuCrypt]), Fixed::SameCpu { sorted: true }.into());
        assert_eq!(
            policies(&[Flag::SameCpuCrypt, Flag::SubmitFromCryptCpus, Flag::NoWriteWorkqueue]),
            Policies {
                reads: Fixed::SameCpu { sorted: false }.into(),
                writes: Fixed::Inline.into()
            }
        );
        assert_eq!(
            policies(&[Flag::SubmitFromCryptCpus, Flag::HighPriority]),
            Fixed::Unbound { sorted: false }.into()
        );
    }

    #[test]
    fn polling_is_off_automatic_or_a_time() {
        assert_eq!(parse_poll("off"), Ok(Poll::Off));
        assert_eq!(parse_poll("auto"), Ok(Poll::Auto));
        assert_eq!(parse_poll("50"), Ok(Poll::Spin(50_000)));
        for bad in ["", "on", "0", "-1", "10001", "5us", "1.5", "99999999999999999999"] {
            assert!(parse_poll(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_cipher_model_is_one_or_two_times() {
        let model = parse_model("0.9,500").unwrap();
        assert!((model.ns_per_byte - 0.9).abs() < 1e-9);
        assert_eq!(model.ns_per_call, 500);
        assert_eq!(parse_model("2").unwrap().ns_per_call, 0);
        for bad in ["", "x", "-1", "1,-2", "nan", "inf", "1,2,3"] {
            assert!(parse_model(bad).is_err(), "{bad}");
        }
    }
}
