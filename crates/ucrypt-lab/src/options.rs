//! Options that narrow a grid or change its costs.
//!
//! `--cores 2,16`, `--device hdd`, `--block 4096,65536`, `--depth 1,32`, `--pattern randread`,
//! `--cipher-ns 0.9` (per byte), `--queues 4`, `--requests 60000` (at least, of a job), `--wake-ns`,
//! `--calibration exact|off|missing`, `--seed`, `--model` (the costs of the engine over a device model
//! instead of a device) and `--quick`.

use std::str::FromStr;

use ucrypt_backend::model::Profile;

use crate::Pattern;
use crate::grid::Grid;
use crate::world::Costs;

/// Parses one option, with its value from `words`. Returns whether the option is known.
///
/// # Errors
/// A message about an invalid value.
pub fn take(
    grid: &mut Grid,
    option: &str,
    words: &mut impl Iterator<Item = String>,
) -> Result<bool, String> {
    match option {
        "--quick" => *grid = Grid::quick(),
        "--model" => grid.costs = Costs::MODEL,
        "--cores" => grid.cores = list(&value(option, words)?)?,
        "--device" => grid.devices = names(&value(option, words)?, Profile::by_name)?,
        "--block" => grid.blocks = list(&value(option, words)?)?,
        "--depth" => grid.depths = list(&value(option, words)?)?,
        "--pattern" => grid.patterns = names(&value(option, words)?, pattern)?,
        "--cipher-ns" => grid.cipher.ns_per_byte = number(option, words)?,
        "--queues" => grid.queues = number(option, words)?,
        "--wake-ns" => grid.costs.wake = number(option, words)?,
        "--calibration" => grid.calibration = value(option, words)?.parse()?,
        "--requests" => grid.requests_min = number(option, words)?,
        "--seed" => grid.seed = number(option, words)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// The value of an option.
///
/// # Errors
/// If there is none.
pub fn value(option: &str, words: &mut impl Iterator<Item = String>) -> Result<String, String> {
    words.next().ok_or_else(|| format!("{option} needs a value"))
}

/// The number that follows an option.
///
/// # Errors
/// If there is none, or it is no number.
pub fn number<T: FromStr>(
    option: &str,
    words: &mut impl Iterator<Item = String>,
) -> Result<T, String> {
    let word = value(option, words)?;
    word.parse().map_err(|_| format!("{option} needs a number, not '{word}'"))
}

fn list<T: FromStr>(text: &str) -> Result<Vec<T>, String> {
    let parse = |word: &str| word.parse().map_err(|_| format!("'{word}' is no such value"));
    text.split(',').map(parse).collect()
}

fn names<T>(text: &str, find: impl Fn(&str) -> Option<T>) -> Result<Vec<T>, String> {
    let find = |word| find(word).ok_or_else(|| format!("'{word}' is not known"));
    text.split(',').map(find).collect()
}

fn pattern(name: &str) -> Option<Pattern> {
    Pattern::ALL.into_iter().find(|pattern| pattern.name() == name)
}
