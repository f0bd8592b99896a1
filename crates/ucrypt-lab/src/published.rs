//! The published measurements, as data. `published/README.md` says who measured what, where and
//! when; the files hold the figures as they were printed.

use std::str::FromStr;

/// The table of sources.
pub const SOURCES: &str = include_str!("../published/README.md");

/// One file of `published/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// The name of the file.
    pub file: &'static str,
    text: &'static str,
}

macro_rules! tables {
    ($($name:ident = $file:literal;)*) => {
        $(
            #[doc = concat!("`", $file, "`")]
            pub const $name: Table =
                Table { file: $file, text: include_str!(concat!("../published/", $file)) };
        )*
        /// All tables.
        pub const ALL: &[Table] = &[$($name),*];
    };
}

tables! {
    BLOCK_SIZES_2015 = "block_sizes_2015.csv";
    INSTANT_2020 = "instant_2020.csv";
    KERNEL_TREE_2011 = "kernel_tree_2011.csv";
    LATENCY_2011 = "latency_2011.csv";
    LUKS_OTHER_2017 = "luks_other_2017.csv";
    LUKS_SWEEP_2017 = "luks_sweep_2017.csv";
    MANY_DRIVES_2020 = "many_drives_2020.csv";
    PARALLEL_2013 = "parallel_2013.csv";
    REQUEST_BASED_2015 = "request_based_2015.csv";
    WORKQUEUES_2020 = "workqueues_2020.csv";
}

/// A published figure that no run shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeftOut {
    /// The name of the file.
    pub file: &'static str,
    /// The column.
    pub column: &'static str,
    /// What stands there, or a part of a note.
    pub text: &'static str,
    /// Why nothing shows it.
    pub why: &'static str,
}

/// The published figures that no run shows.
pub const LEFT_OUT: &[LeftOut] = &[
    LeftOut {
        file: "parallel_2013.csv",
        column: "note",
        text: "50 % slower than one worker",
        why: "a model of a disk with the scheduler deadline is missing, and a run has none to choose",
    },
    LeftOut {
        file: "parallel_2013.csv",
        column: "note",
        text: "8 times slower than one worker",
        why: "in virtual time only (lab sim sorted-writes)",
    },
    LeftOut {
        file: "parallel_2013.csv",
        column: "note",
        text: "no slowdown",
        why: "no figure; the rows of the RAID-0 show it",
    },
    LeftOut {
        file: "many_drives_2020.csv",
        column: "note",
        text: "p99 about 3 times lower",
        why: "a ratio without its figures; the table of many-drives shows p99 by policy",
    },
    LeftOut {
        file: "many_drives_2020.csv",
        column: "note",
        text: "30 % lower",
        why: "a ratio without its figures, of writes alone; many-drives times reads and writes together",
    },
];

/// One row of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    header: csv::StringRecord,
    fields: csv::StringRecord,
}

impl Row {
    /// The text in a column; empty if the file has no such column or nothing stands there.
    pub fn text(&self, column: &str) -> &str {
        let at = self.header.iter().position(|name| name == column);
        at.and_then(|at| self.fields.get(at)).unwrap_or_default()
    }

    /// The columns of the file, with what stands there.
    pub fn columns(&self) -> impl Iterator<Item = (&str, &str)> {
        self.header.iter().zip(self.fields.iter())
    }

    /// The number in a column, if one stands there.
    pub fn number<T: FromStr>(&self, column: &str) -> Option<T> {
        self.text(column).parse().ok()
    }
}

impl Table {
    /// All rows, in the order of the file.
    ///
    /// # Panics
    /// If the file is not what `csv` reads; a test reads all of them.
    pub fn rows(self) -> Vec<Row> {
        let mut reader = csv::Reader::from_reader(self.text.as_bytes());
        let header = reader.headers().expect("a header").clone();
        let rows = reader.into_records().map(|fields| fields.expect("a row"));
        rows.map(|fields| Row { header: header.clone(), fields }).collect()
    }

    /// The row of [`SOURCES`] about this file: who, when, where; and the hardware.
    pub fn source(self) -> (&'static str, &'static str) {
        let line = SOURCES.lines().find(|line| line.contains(self.file)).unwrap_or_default();
        let mut cells = line.split('|').skip(2).map(str::trim);
        (cells.next().unwrap_or_default(), cells.next().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_is_read_and_has_a_source() {
        for table in ALL {
            assert!(!table.rows().is_empty(), "{}", table.file);
            let (who, _) = table.source();
            assert!(!who.is_empty(), "{} has no source", table.file);
        }
        let sweep = LUKS_SWEEP_2017.rows();
        assert_eq!(sweep.len(), 38);
        assert_eq!(sweep[8].number::<f64>("luks"), Some(327.0));
        // A field with commas in quotes.
        let drives = MANY_DRIVES_2020.rows();
        assert!(drives[3].text("workload").contains("34 % write (1 MiB)"));
    }
}
