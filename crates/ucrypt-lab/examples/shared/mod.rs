//! What the programs that measure beside `ucrypt lab` have in common.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Whether the measurement is to end.
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Fails if a signal came: everything that is open is closed on the way out.
    pub(crate) fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) { Err("interrupted".into()) } else { Ok(()) }
    }
}

/// Measures until that is done, or a signal comes.
pub(crate) fn carry_out<A>(
    name: &str,
    asked: std::result::Result<A, String>,
    measure: fn(&A, &Stop) -> Result<()>,
) -> ExitCode {
    let measured = || {
        let asked = asked?;
        let stop = Stop(Arc::default());
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, stop.0.clone())?;
        }
        measure(&asked, &stop)
    };
    match measured() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    }
}
