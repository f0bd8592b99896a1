//! Shows results: lines as they come, or JSON at the end.
//!
//! With `--json`, the lines go to standard error as a sign of progress, on a terminal only.

use std::io::IsTerminal;
use std::time::Duration;

use serde_json::{Value, json};
use ucrypt_luks::Kdf;
use ucrypt_sector::Kernel;

use super::cores::Cores;
use super::measure::{Speed, slice};
use super::processor::Processor;
use super::table::{Table, cpus_text, digits};
use crate::failure::Failure;
use crate::stdio::{print_line, say};

/// The arguments that affect every figure.
pub(super) struct Settings {
    /// Bytes that a call encrypts.
    pub(super) buffer_bytes: u64,
    /// Time for each figure.
    pub(super) time: Duration,
    /// The kernel for the ciphers that have kernels.
    pub(super) kernel: Kernel,
}

/// A cipher, a sector size and their speeds.
pub(super) struct CipherRow {
    pub(super) cipher: String,
    pub(super) key_bits: usize,
    pub(super) sector_bytes: u32,
    pub(super) kernel: &'static str,
    pub(super) encrypt: Speed,
    pub(super) decrypt: Speed,
}

/// Collects and shows the results.
pub(super) struct Report {
    json: bool,
    processor: Processor,
    settings: Settings,
    table: Table,
    cpus: Value,
    kdfs: Vec<Value>,
    memcpy: Value,
    ciphers: Vec<Value>,
}

impl Report {
    /// `name_len` is the length of the longest specification that will come.
    pub(super) fn new(json: bool, settings: Settings, name_len: usize) -> Self {
        let processor = Processor::read();
        let table = Table::new(name_len, processor.tsc_mhz.is_some());
        Self {
            json,
            processor,
            settings,
            table,
            cpus: Value::Null,
            kdfs: Vec::new(),
            memcpy: Value::Null,
            ciphers: Vec::new(),
        }
    }

    /// Reports the speed of PBKDF2 with `hash`, in cryptsetup's words.
    pub(super) fn pbkdf2(
        &mut self,
        hash: &str,
        iterations_per_s: f64,
        key_bits: usize,
    ) -> Result<(), Failure> {
        self.kdfs.push(json!({
            "kdf": "pbkdf2",
            "hash": hash,
            "key_bits": key_bits,
            "iterations_per_s": whole(iterations_per_s),
        }));
        self.line(&format!(
            "PBKDF2-{hash:<11} {iterations_per_s:>8.0} iterations per second for {key_bits}-bit key"
        ))
    }

    /// Reports the costs at which Argon2 takes `target`, in cryptsetup's words.
    pub(super) fn argon2(
        &mut self,
        kdf: &Kdf,
        key_bits: usize,
        target: Duration,
    ) -> Result<(), Failure> {
        let (Kdf::Argon2 { time, memory_kib, lanes, .. }, name) = (kdf, kdf.name()) else {
            return Ok(());
        };
        let target_ms = target.as_millis() as u64;
        self.kdfs.push(json!({
            "kdf": name,
            "key_bits": key_bits,
            "iterations": time,
            "memory_kib": memory_kib,
            "threads": lanes,
            "iter_time_ms": target_ms,
        }));
        self.line(&format!(
            "{name:<18} {time:>8} iterations, {memory_kib} memory, {lanes} parallel threads (CPUs) \
             for {key_bits}-bit key (requested {target_ms} ms time)"
        ))
    }

    /// Prints the conditions of the figures that follow, and the head of their table.
    pub(super) fn begin_ciphers(&mut self, cores: &Cores) -> Result<(), Failure> {
        let count = cores.count();
        self.cpus = json!({ "count": count, "one_core": cores.first_cpu() });
        let model = self.processor.model.as_deref().unwrap_or("a processor without a name");
        let one = match cores.first_cpu() {
            Some(cpu) => format!("one core is CPU {cpu}"),
            None => "threads could not be pinned".to_owned(),
        };
        let Settings { buffer_bytes, time, kernel } = &self.settings;
        let mut lines = vec![
            format!("# {model}, {}, {one}", cpus_text(count)),
            format!("# kernel {kernel}; this processor runs {}", kernels().join(", ")),
            format!(
                "# {buffer_bytes} bytes from memory to memory per call; {time:?} for each figure, \
                 the median of slices of {:?}",
                slice(*time)
            ),
        ];
        if let Some(mhz) = self.processor.tsc_mhz {
            lines.push(format!(
                "# c/B are cycles per byte of the time stamp counter ({mhz:.2} MHz); the core's \
                 own clock may differ"
            ));
        }
        lines.extend(self.table.head(count));
        lines.iter().try_for_each(|line| self.line(line))
    }

    /// Reports the speed of copying, which has only one direction.
    pub(super) fn memcpy(&mut self, speed: Speed) -> Result<(), Failure> {
        self.memcpy = self.json(speed);
        let [gb, cycles, all] = self.cells(speed);
        let [none, name] = ["", "memcpy"].map(str::to_owned);
        let none = || none.clone();
        let (one, all) = ([gb, cycles, none(), none()], [all, none()]);
        self.row([name, none(), none(), none()], one, all)
    }

    /// Reports the speed of a cipher.
    pub(super) fn cipher(&mut self, row: &CipherRow) -> Result<(), Failure> {
        self.ciphers.push(json!({
            "cipher": row.cipher,
            "key_bits": row.key_bits,
            "sector_bytes": row.sector_bytes,
            "kernel": row.kernel,
            "encrypt": self.json(row.encrypt),
            "decrypt": self.json(row.decrypt),
        }));
        let (key, sector) = (row.key_bits.to_string(), row.sector_bytes.to_string());
        let [encrypt, encrypt_cycles, encrypt_all] = self.cells(row.encrypt);
        let [decrypt, decrypt_cycles, decrypt_all] = self.cells(row.decrypt);
        self.row(
            [row.cipher.clone(), key, sector, row.kernel.to_owned()],
            [encrypt, encrypt_cycles, decrypt, decrypt_cycles],
            [encrypt_all, decrypt_all],
        )
    }

    /// Prints the JSON, if it was asked for.
    pub(super) fn end(self) -> Result<(), Failure> {
        if !self.json {
            return Ok(());
        }
        let document = json!({
            "processor": self.processor.model,
            "tsc_mhz": self.processor.tsc_mhz,
            "cpus": self.cpus,
            "kernel": self.settings.kernel.name(),
            "kernels": kernels(),
            "buffer_bytes": self.settings.buffer_bytes,
            "time_ms": self.settings.time.as_millis() as u64,
            "kdfs": self.kdfs,
            "memcpy": self.memcpy,
            "ciphers": self.ciphers,
        });
        print_line(format_args!("{document:#}"))
    }

    /// Prints a line of the table: labels, figures of one CPU, figures of all.
    fn row(&self, labels: [String; 4], one: [String; 4], all: [String; 2]) -> Result<(), Failure> {
        let [name, key, sector, kernel] = labels;
        let [encrypt, encrypt_cycles, decrypt, decrypt_cycles] = one;
        let [encrypt_all, decrypt_all] = all;
        self.line(&self.table.line(&[
            name,
            key,
            sector,
            kernel,
            encrypt,
            encrypt_cycles,
            decrypt,
            decrypt_cycles,
            encrypt_all,
            decrypt_all,
        ]))
    }

    /// GB/s and cycles per byte on one CPU, GB/s on all.
    fn cells(&self, speed: Speed) -> [String; 3] {
        let gb = |bytes_per_s: f64| digits(bytes_per_s / 1e9);
        let cycles = self.cycles(speed).map(digits);
        [gb(speed.one_core), cycles.unwrap_or_default(), gb(speed.all_cores)]
    }

    fn json(&self, speed: Speed) -> Value {
        json!({
            "one_core_bytes_per_s": whole(speed.one_core),
            "one_core_tsc_cycles_per_byte": self.cycles(speed),
            "all_cores_bytes_per_s": whole(speed.all_cores),
        })
    }

    /// Cycles of the time stamp counter per byte, where there is one.
    fn cycles(&self, speed: Speed) -> Option<f64> {
        self.processor.tsc_mhz.map(|mhz| mhz * 1e6 / speed.one_core)
    }

    fn line(&self, line: &str) -> Result<(), Failure> {
        if !self.json {
            print_line(line)
        } else if std::io::stderr().is_terminal() {
            say(&format!("{line}\n"));
            Ok(())
        } else {
            Ok(())
        }
    }
}

/// The kernels of this processor, the fastest first.
fn kernels() -> Vec<&'static str> {
    let available = Kernel::ALL.iter().filter(|kernel| kernel.is_available());
    available.map(|kernel| kernel.name()).collect()
}

/// A positive number without its fraction.
#[expect(clippy::cast_sign_loss, reason = "at least 1")]
fn whole(value: f64) -> u64 {
    value.round().max(1.0) as u64
}
