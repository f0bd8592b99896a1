//! Advice on one volume: what it loses beside its drive, where, what to change, and the measured gain
//! of each change.
//!
//! Nothing is written to the volume, and no passphrase is needed: its sectors are read and decrypted
//! under a key that is thrown away, which takes as long as under its own. Every change is measured
//! beside the present state, in interleaved rounds. Gains of writes are measured on a scratch file, if
//! the user gives a place for one, and are not claimed otherwise.

use std::fmt::Write as _;

use serde::Serialize;

use crate::analysis::Spread;
use crate::text::figure;

mod drive;
mod measure;

pub use drive::Drive;
pub use measure::{LUKS2, Plan, Subject, advise};

/// A gain below this is none: it is said that the change makes no difference.
pub const GAIN_MIN: f64 = 1.05;

/// What is found out about a volume.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Advice {
    /// The volume in one line.
    pub volume: String,
    /// Its drive.
    pub drive: Drive,
    /// What each load gets.
    pub loads: Vec<Line>,
    /// What each way to the volume leaves of it.
    pub ways: Vec<WayLine>,
    /// What to change, the largest gain first.
    pub findings: Vec<Finding>,
    /// What was looked at and needs no change.
    pub fine: Vec<String>,
    /// What was not measured, and why.
    pub not_measured: Vec<String>,
    /// Measurements that the host or other processes disturbed, and all.
    pub disturbed: (usize, usize),
}

/// A load: the drive, the volume without its cipher, and the volume.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Line {
    /// The load.
    pub load: String,
    /// The drive alone, MB/s.
    pub drive_mb_s: Spread,
    /// The engine without a cipher, MB/s.
    pub without_cipher_mb_s: Option<Spread>,
    /// The volume, MB/s.
    pub volume_mb_s: Spread,
    /// The volume over the drive.
    pub left: Spread,
    /// What the volume adds to the mean latency, µs.
    pub added_us: Spread,
}

/// A way on which programs reach the volume.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WayLine {
    /// As `open --as` names it.
    pub way: &'static str,
    /// The load.
    pub load: String,
    /// MB/s.
    pub mb_s: Spread,
    /// Over the volume without a way.
    pub left: Spread,
}

/// Something to change.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// A name for scripts.
    pub id: &'static str,
    /// What is lost, and where.
    pub what: String,
    /// What to do.
    pub change: String,
    /// What it gains; none if it cannot be measured without writing or another system.
    pub gain: Option<Gain>,
}

/// A measured gain.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Gain {
    /// The load in which it is largest.
    pub load: String,
    /// The figure before and after.
    pub before: f64,
    /// See `before`.
    pub after: f64,
    /// Their unit.
    pub unit: &'static str,
    /// How many times better.
    pub times: Spread,
}

fn spread(spread: &Spread, digits: usize) -> String {
    format!("{:.digits$} to {:.digits$}", spread.low, spread.high)
}

impl Gain {
    fn text(&self) -> String {
        let range = match self.times.count {
            0 | 1 => String::new(),
            _ if self.times.is_wide() => {
                format!(" ({}: a wide spread, measure again)", spread(&self.times, 2))
            }
            _ => format!(" ({})", spread(&self.times, 2)),
        };
        format!(
            "{}: {} {unit} to {} {unit}, {:.2} times as good{range}",
            self.load,
            figure(self.before),
            figure(self.after),
            self.times.median,
            unit = self.unit
        )
    }
}

/// Where the largest part of what is lost goes, in words.
fn share(line: &Line) -> Option<String> {
    let without = line.without_cipher_mb_s?;
    // A wide spread tells nothing of the parts.
    if line.left.median >= 0.97 || line.left.is_wide() {
        return None;
    }
    let time = |mb_s: f64| 1.0 / mb_s.max(1e-9);
    let lost = time(line.volume_mb_s.median) - time(line.drive_mb_s.median);
    let cipher = time(line.volume_mb_s.median) - time(without.median);
    let percent = (100.0 * cipher / lost.max(1e-12)).clamp(0.0, 100.0);
    Some(format!("{percent:.0} % of the loss is the cipher"))
}

impl Advice {
    /// Puts the largest gain first; what has none measured comes last.
    pub fn sort(&mut self) {
        let gain = |finding: &Finding| finding.gain.as_ref().map_or(0.0, |it| it.times.median);
        self.findings.sort_by(|a, b| gain(b).total_cmp(&gain(a)));
    }

    /// In plain words.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}\n{}\n", self.volume, self.drive.describe());
        let (disturbed, all) = self.disturbed;
        if disturbed * 10 > all {
            let _ = writeln!(
                text,
                "{disturbed} of {all} measurements were disturbed by the host or by other processes: \
                 repeat this on a quiet machine before you rely on it.\n"
            );
        }
        self.tables(&mut text);
        if self.findings.is_empty() {
            text.push_str("Nothing was found that a change would make faster.\n");
        }
        for (at, finding) in self.findings.iter().enumerate() {
            let _ = writeln!(text, "{}. {}", at + 1, finding.what);
            let _ = writeln!(text, "   to do:  {}", finding.change);
            let gain = finding.gain.as_ref().map_or_else(|| "not measured".into(), Gain::text);
            let _ = writeln!(text, "   gain:   {gain}");
        }
        for (title, list) in
            [("Needs no change:", &self.fine), ("Not measured:", &self.not_measured)]
        {
            if !list.is_empty() {
                let _ = writeln!(text, "\n{title}");
            }
            for line in list {
                let _ = writeln!(text, "- {line}");
            }
        }
        text
    }

    fn tables(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "{:<42} {:>9} {:>14} {:>9} {:>6} {:>10}",
            "MB/s", "drive", "without cipher", "volume", "left", "added µs"
        );
        for line in &self.loads {
            let without = line.without_cipher_mb_s.map_or_else(String::new, |it| figure(it.median));
            let share = share(line).map_or_else(String::new, |share| format!("  {share}"));
            let wide = if line.left.is_wide() { "  wide spread" } else { "" };
            let _ = writeln!(
                text,
                "{:<42} {:>9} {without:>14} {:>9} {:>4.0} % {:>10}{share}{wide}",
                line.load,
                figure(line.drive_mb_s.median),
                figure(line.volume_mb_s.median),
                100.0 * line.left.median,
                figure(line.added_us.median),
            );
        }
        text.push('\n');
        if self.ways.is_empty() {
            return;
        }
        let _ = writeln!(text, "{:<42} {:>9} {:>9} {:>6}", "the way to it", "", "MB/s", "left");
        for line in &self.ways {
            let wide = if line.left.is_wide() { "  wide spread" } else { "" };
            let _ = writeln!(
                text,
                "{:<42} {:>9} {:>9} {:>4.0} %{wide}",
                line.load,
                line.way,
                figure(line.mb_s.median),
                100.0 * line.left.median
            );
        }
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(id: &'static str, times: Option<f64>) -> Finding {
        let gain = times.map(|times| Gain {
            load: "4 KiB".into(),
            before: 10.0,
            after: 10.0 * times,
            unit: "MB/s",
            times: Spread::of([times]).expect("a value"),
        });
        Finding { id, what: format!("{id} is slow."), change: "change it".into(), gain }
    }

    #[test]
    fn the_largest_gain_comes_first_and_what_was_not_measured_last() {
        let findings = vec![finding("a", None), finding("b", Some(1.2)), finding("c", Some(3.0))];
        let of = |value| Spread::of([value, value, value]).expect("values");
        let line = Line {
            load: "4 KiB, one at a time".into(),
            drive_mb_s: of(100.0),
            without_cipher_mb_s: Some(of(80.0)),
            volume_mb_s: of(50.0),
            left: of(0.5),
            added_us: of(40.0),
        };
        let mut advice = Advice {
            volume: "disk.img: luks2".into(),
            drive: Drive::default(),
            loads: vec![line],
            ways: Vec::new(),
            findings,
            fine: vec!["the sectors".into()],
            not_measured: vec!["ublk".into()],
            disturbed: (2, 10),
        };
        advice.sort();
        let order: Vec<_> = advice.findings.iter().map(|it| it.id).collect();
        assert_eq!(order, ["c", "b", "a"]);
        let text = advice.text();
        // 20 µs a KB of which 7.5 are the cipher's.
        assert!(text.contains("75 % of the loss is the cipher"), "{text}");
        assert!(text.contains("2 of 10 measurements were disturbed"), "{text}");
        assert!(text.contains("10.0 MB/s to 30.0 MB/s, 3.00 times as good"), "{text}");
        assert!(text.find("c is slow") < text.find("a is slow"), "{text}");
        advice.findings.clear();
        assert!(advice.text().contains("Nothing was found"));
        serde_json::to_string(&advice).expect("JSON");
    }
}
