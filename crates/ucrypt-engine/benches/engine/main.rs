//! What the engine costs beyond the cipher, and what encryption costs a disk.
//!
//! ```text
//! cargo bench -p ucrypt-engine --bench engine -- alone
//! cargo bench -p ucrypt-engine --bench engine -- cached
//! cargo bench -p ucrypt-engine --bench engine -- help
//! cargo bench -p ucrypt-engine --bench engine -- sweep
//! ```
//!
//! `alone`: one core, a backend that takes no time. `cached`: images in memory. `help`: a second
//! core for one client. `sweep`: a modelled SSD and a slowed cipher, the experiment of
//! `luks_sweep_2017`. Contenders take turns and every figure is a median of rounds, so that all
//! contenders see the same state of the machine; compare ratios, not absolute figures.

#![allow(clippy::cast_precision_loss, reason = "byte counts are far below 2^52")]

mod alone;
mod cached;
mod help;
mod stand;
mod sweep;

fn main() {
    let experiments: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    for experiment in &experiments {
        match experiment.as_str() {
            "alone" => alone::run(),
            "cached" => cached::run(),
            "help" => help::run(),
            "sweep" => sweep::run(),
            other => {
                eprintln!("'{other}' is no experiment; there are alone, cached, help, sweep");
                std::process::exit(2);
            }
        }
    }
    if experiments.is_empty() {
        eprintln!("name an experiment: alone, cached, help, sweep");
    }
}
