//! The names of devices, for udev: its rule calls `ucrypt udev DEVICE`, and makes links and properties of what
//! that prints.

use std::path::PathBuf;

use crate::background;
use crate::failure::Failure;
use crate::stdio::print;

/// Arguments of `udev`.
#[derive(Debug, clap::Args)]
pub(crate) struct UdevArgs {
    /// The node of a block device
    device: PathBuf,
}

/// Whether udev takes a name. What it writes into a list, or takes for a pattern, it cannot take.
pub(super) fn takes(name: &str) -> bool {
    name.chars().all(|c| c.is_alphanumeric() || "._-+:@".contains(c))
}

/// Prints the name of the volume whose device this is, as a property; nothing if it is none of ours.
pub(crate) fn tell_udev(args: &UdevArgs) -> Result<(), Failure> {
    let names = background::names_of_device(&args.device);
    match names.iter().find(|name| takes(name)) {
        Some(name) => print(&format!("UCRYPT_NAME={name}\n")),
        None => Ok(()),
    }
}
