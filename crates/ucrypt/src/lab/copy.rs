//! `lab copy`: the servers that only copy, which `lab run` starts.

use std::path::PathBuf;

use ucrypt_lab::copy_server;

use crate::failure::Failure;

/// Arguments of `lab copy`.
#[derive(Debug, clap::Args)]
pub(super) struct CopyArgs {
    #[arg(value_enum)]
    way: Way,
    image: PathBuf,
    /// The file to serve at, or the socket.
    place: PathBuf,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Way {
    Fuse,
    Nbd,
}

pub(super) fn run(args: &CopyArgs) -> Result<(), Failure> {
    let serve = match args.way {
        Way::Fuse => copy_server::by_fuse,
        Way::Nbd => copy_server::by_nbd,
    };
    let failed = |error| Failure::device(format!("{}: {error}", args.place.display()));
    serve(&args.image, &args.place).map_err(failed)
}
