//! The table of cipher speeds: columns, widths and digits.

use std::fmt::Write as _;
use std::ops::Range;

/// Cells of a line: name, key, sector, kernel; encryption and decryption on one CPU, each with its
/// cycles; encryption and decryption on all.
pub(super) type Cells = [String; 10];

/// Indices of the cycles in [`Cells`].
const CYCLES: [usize; 2] = [5, 7];

/// Indices of the names in [`Cells`], which are left-aligned.
const NAMES: [usize; 2] = [0, 3];

/// The columns of the table.
pub(super) struct Table {
    widths: [usize; 10],
    /// Whether there is a counter for cycles.
    cycles: bool,
}

impl Table {
    /// A table whose longest name has `name_len` characters.
    pub(super) fn new(name_len: usize, cycles: bool) -> Self {
        Self { widths: [name_len.max(6), 4, 6, 11, 7, 5, 7, 5, 7, 7], cycles }
    }

    /// The two lines above the figures.
    pub(super) fn head(&self, cpus: usize) -> [String; 2] {
        let names = self.width(0..4);
        let (one, all) = (self.width(4..8), self.width(8..10));
        let (one_text, all_text) = ("one core", cpus_text(cpus));
        let groups = format!("{:names$} {one_text:^one$} {all_text:^all$}", "GB/s");
        let columns = [
            "", "key", "sector", "kernel", "encrypt", "c/B", "decrypt", "c/B", "encrypt", "decrypt",
        ];
        [groups.trim_end().to_owned(), self.line(&columns.map(str::to_owned))]
    }

    /// One line.
    pub(super) fn line(&self, cells: &Cells) -> String {
        let mut line = String::new();
        for (at, (cell, width)) in cells.iter().zip(self.widths).enumerate() {
            if !self.shows(at) {
                continue;
            }
            let space = if at == 0 { "" } else { " " };
            // Writing to a string cannot fail.
            let _ = if NAMES.contains(&at) {
                write!(line, "{space}{cell:<width$}")
            } else {
                write!(line, "{space}{cell:>width$}")
            };
        }
        line.trim_end().to_owned()
    }

    fn shows(&self, at: usize) -> bool {
        self.cycles || !CYCLES.contains(&at)
    }

    /// Width of neighbouring columns with the spaces between them.
    fn width(&self, columns: Range<usize>) -> usize {
        let shown = columns.filter(|at| self.shows(*at));
        shown.map(|at| self.widths[at] + 1).sum::<usize>().saturating_sub(1)
    }
}

/// `1 CPU`, `2 CPUs`.
pub(super) fn cpus_text(count: usize) -> String {
    format!("{count} CPU{}", if count == 1 { "" } else { "s" })
}

/// Formats a number with three digits, at most three of them after the point.
pub(super) fn digits(value: f64) -> String {
    let paths = match value {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        _ => 3,
    };
    format!("{value:.paths$}")
}

#[cfg(test)]
mod tests {
    use super::{Table, digits};

    #[test]
    fn numbers_have_three_digits() {
        let shown = [1234.5, 123.456, 12.345, 1.234_5, 0.012_345].map(digits);
        assert_eq!(shown, ["1234", "123", "12.3", "1.23", "0.012"]);
    }

    #[test]
    fn every_line_has_its_figures_below_the_head() {
        let cells = ["aes", "256", "4096", "aes-ni", "1.23", "0.50", "2.34", "0.40", "5.67", "8.9"];
        for cycles in [true, false] {
            let table = Table::new(10, cycles);
            let [_, head] = table.head(2);
            let line = table.line(&cells.map(str::to_owned));
            assert_eq!(head.len(), line.len(), "{head}\n{line}");
            assert_eq!(line.contains("0.50"), cycles, "{line}");
            let end = |text: &str, word: &str| text.find(word).map(|at| at + word.len());
            assert_eq!(end(&head, "encrypt"), end(&line, "1.23"), "{head}\n{line}");
            assert_eq!(head.find("kernel"), line.find("aes-ni"), "{head}\n{line}");
        }
    }
}
