//! For how long tasks waited for processors, storage and memory during a measurement, and how many there were
//! (kernel: `Documentation/accounting/psi.rst`; `/proc/loadavg`).
//!
//! The measurement's own threads are among them: they wait for each other and for the storage that is measured. So
//! these figures mark nothing by themselves. They stand beside a measurement that steal or other processes mark.

use std::fs;

use serde::{Deserialize, Serialize};

/// What the kernel counts; each absent where it does not (before Linux 4.20, or with `psi=0`).
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pressure {
    /// Share of the time in which some task waited for a processor, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f64>,
    /// In which some task waited for storage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io: Option<f64>,
    /// In which some task waited for memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<f64>,
    /// The load average of the last minute, at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load: Option<f64>,
}

/// Microseconds since the machine was started in which some task waited: for a processor, storage, memory.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Waited([Option<u64>; 3]);

impl Waited {
    /// Until now.
    pub(crate) fn now() -> Self {
        Self(["cpu", "io", "memory"].map(|name| {
            total_us(&fs::read_to_string(format!("/proc/pressure/{name}")).unwrap_or_default())
        }))
    }

    /// As shares of the `elapsed_us` since then.
    pub(crate) fn until(&self, now: &Self, elapsed_us: f64) -> Pressure {
        let share = |at: usize| {
            let waited_us = now.0[at]?.saturating_sub(self.0[at]?);
            Some((waited_us as f64 / elapsed_us.max(1.0)).min(1.0))
        };
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split(' ').next().and_then(|word| word.parse().ok());
        Pressure { cpu: share(0), io: share(1), memory: share(2), load }
    }
}

/// The total of the line `some`.
fn total_us(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with("some "))?;
    line.split(' ').find_map(|word| word.strip_prefix("total="))?.parse().ok()
}

impl Pressure {
    /// The larger of each of both.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        let larger = |a: Option<f64>, b: Option<f64>| a.into_iter().chain(b).reduce(f64::max);
        Self {
            cpu: larger(self.cpu, other.cpu),
            io: larger(self.io, other.io),
            memory: larger(self.memory, other.memory),
            load: larger(self.load, other.load),
        }
    }

    /// In words; `None` if the kernel counts nothing.
    pub fn describe(&self) -> Option<String> {
        let shares = [("processors", self.cpu), ("storage", self.io), ("memory", self.memory)];
        let shares = shares.into_iter();
        let shares = shares.filter_map(|(of, share)| Some(format!("{of} {:.0} %", share? * 100.0)));
        let waited = shares.collect::<Vec<_>>().join(", ");
        let waited = (!waited.is_empty()).then(|| format!("waited for {waited}"));
        let load = self.load.map(|load| format!("load {load:.1}"));
        let all: Vec<_> = [waited, load].into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pressure_is_the_part_of_the_time_in_which_some_task_waited() {
        let text = "some avg10=0.00 avg60=1.00 avg300=0.10 total=700\nfull avg10=0.00 total=300\n";
        assert_eq!(
            (total_us(text), total_us("full total=3"), total_us("")),
            (Some(700), None, None)
        );
        let before = Waited([Some(700), Some(5), None]);
        let now = Waited([Some(950), Some(2), Some(9)]);
        let seen = before.until(&now, 1000.0);
        assert_eq!((seen.cpu, seen.io, seen.memory), (Some(0.25), Some(0.0), None));
        // A clock may be late.
        assert_eq!(before.until(&now, 100.0).cpu, Some(1.0));
        let other = Pressure { cpu: Some(0.5), memory: Some(0.125), ..Pressure::default() };
        let most = Pressure { load: Some(2.0), ..seen }.max(other);
        let expected = (Some(0.5), Some(0.0), Some(0.125), Some(2.0));
        assert_eq!((most.cpu, most.io, most.memory, most.load), expected);
        let said = most.describe().expect("something");
        assert_eq!(said, "waited for processors 50 %, storage 0 %, memory 12 %, load 2.0");
        assert_eq!(Pressure::default().describe(), None);
    }

    #[test]
    fn the_kernel_is_asked_for_what_it_counts() {
        let has = |name: &str| fs::metadata(format!("/proc/pressure/{name}")).is_ok();
        let before = Waited::now();
        let seen = before.until(&Waited::now(), 1e6);
        assert!(seen.load.is_some());
        for (name, share) in [("cpu", seen.cpu), ("io", seen.io), ("memory", seen.memory)] {
            // A file may be there and not be readable: psi=0.
            let is_readable = fs::read_to_string(format!("/proc/pressure/{name}")).is_ok();
            assert_eq!(share.is_some(), has(name) && is_readable, "{name}");
        }
    }
}
