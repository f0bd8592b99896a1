//! `doctor`: what this system lacks for each export, for speed and for secrecy, and how to get it.

use std::fs;

use serde_json::json;
use ucrypt_backend::Ring;

use crate::available;
use crate::background;
use crate::failure::Failure;
use crate::memory;
use crate::mount;
use crate::stdio;

/// Arguments of `doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Something that was looked at.
struct Finding {
    name: &'static str,
    /// What is there; otherwise what is lacking, with its remedy.
    found: Result<String, String>,
}

impl Finding {
    fn json(&self) -> serde_json::Value {
        json!({
            "name": self.name,
            "available": self.found.is_ok(),
            "detail": self.found.as_ref().ok().filter(|detail| !detail.is_empty()),
            "lacking": self.found.as_ref().err(),
        })
    }

    fn line(&self) -> String {
        let (word, text) = match &self.found {
            Ok(text) => ("yes", text),
            Err(text) => ("no", text),
        };
        let line = format!("  {:<16}{word:<5}{text}", self.name);
        format!("{}\n", line.trim_end())
    }
}

pub(crate) fn run(args: &DoctorArgs) -> Result<(), Failure> {
    // A socket needs nothing of the system.
    let exports: Vec<_> = available::exports()
        .chain([("vhost-user-blk", None)])
        .map(|(name, lacking)| Finding { name, found: lacking.map_or(Ok(String::new()), Err) })
        .collect();
    let system = [
        Finding { name: "mount", found: mount::without_root() },
        Finding { name: "io_uring", found: io_uring() },
        Finding {
            name: "AES",
            found: aes(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
        },
        Finding { name: "locked memory", found: locked_memory() },
        Finding { name: "Argon2", found: argon2() },
    ];
    let chosen = background::usual_export();
    if args.json {
        let list = |findings: &[Finding]| findings.iter().map(Finding::json).collect::<Vec<_>>();
        let shown = json!({
            "open_serves": chosen,
            "exports": list(&exports),
            "system": list(&system),
        });
        return stdio::print_line(format_args!("{shown:#}"));
    }
    let mut text = format!("ucrypt open serves a volume by {chosen} here.\nExports:\n");
    text.extend(exports.iter().map(Finding::line));
    text.push_str("System:\n");
    text.extend(system.iter().map(Finding::line));
    stdio::print(&text)
}

fn io_uring() -> Result<String, String> {
    match Ring::new(1).map(|mut ring| ring.shared_ring().is_some()) {
        Ok(true) => Ok(String::new()),
        Ok(false) => {
            Err("the kernel is too old for ublk and FUSE over io_uring (Linux 5.19)".into())
        }
        Err(error) => Err(format!(
            "{error}; threads take its place, which are slower: sysctl kernel.io_uring_disabled=0, or \
             permit io_uring_setup in the seccomp profile"
        )),
    }
}

/// The processor's instructions for AES.
fn aes(cpuinfo: &str) -> Result<String, String> {
    let flags = |line: &str| line.starts_with("flags") || line.starts_with("Features");
    let line = cpuinfo.lines().find(|line| flags(line)).unwrap_or_default();
    let has = |flag: &str| line.split_whitespace().any(|word| word == flag);
    if !has("aes") {
        let text = "the processor has no instructions for AES: aes-xts is slow; luksFormat --cipher \
                    xchacha20,aes-adiantum-plain64 is faster";
        return Err(text.into());
    }
    Ok(["vaes", "avx512f"].into_iter().filter(|flag| has(flag)).collect::<Vec<_>>().join(", "))
}

/// Whether keys can be kept out of swap.
fn locked_memory() -> Result<String, String> {
    if ucrypt_backend::may_lock_all() {
        return Ok("keys and data stay out of swap".into());
    }
    Err("memory with keys and data can be swapped out: ulimit -l unlimited (LimitMEMLOCK=infinity, \
         or CAP_IPC_LOCK), or encrypt the swap"
        .into())
}

/// The memory that a new keyslot may take.
fn argon2() -> Result<String, String> {
    match memory::bound_kib() {
        Some(kib) if kib < 1 << 20 => Err(format!(
            "new keyslots get at most {} MiB, half of what this container has: raise its limit (--memory, or \
             MemoryMax= of a unit), or use --pbkdf pbkdf2",
            kib >> 10
        )),
        _ => Ok(String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processors_instructions_for_aes_are_told() {
        assert_eq!(aes("flags\t\t: fpu aes avx512f vaes\n"), Ok("vaes, avx512f".into()));
        assert_eq!(aes("Features\t: fp asimd aes pmull\n"), Ok(String::new()));
        for without in ["flags\t\t: fpu avx\n", "model name\t: aes\n", ""] {
            assert!(aes(without).is_err_and(|text| text.contains("adiantum")), "{without}");
        }
    }

    #[test]
    fn a_line_says_yes_or_why_not() {
        let finding = |found| Finding { name: "loop", found }.line();
        assert_eq!(finding(Ok(String::new())), "  loop            yes\n");
        assert_eq!(finding(Err("why: remedy".into())), "  loop            no   why: remedy\n");
    }
}
