//! `lab`: the published measurements of dm-crypt, repeated on this machine.

mod advise;
mod copy;
mod list;
mod report;
mod run;
mod sim;

use crate::failure::Failure;

/// Arguments of `lab`.
#[derive(Debug, clap::Args)]
#[command(subcommand_value_name = "ACTION", subcommand_help_heading = "Actions")]
pub(crate) struct LabArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Show the experiments: what each asks, how long it takes, what it needs
    List(list::ListArgs),
    /// Carry experiments out, all of them if none is named
    Run(Box<run::RunArgs>),
    /// Repeat the published rows in virtual time, on models of the published machines
    Sim(sim::SimArgs),
    /// Say what one volume loses, where, what to change, and what that gains; nothing is written to it
    Advise(Box<advise::AdviseArgs>),
    /// Serve an image by doing nothing but copying, for a run's ceilings
    #[command(hide = true)]
    Copy(copy::CopyArgs),
    /// Make a page of a run
    Report(report::ReportArgs),
}

/// Carries out `lab`.
pub(crate) fn run(args: &LabArgs) -> Result<(), Failure> {
    match &args.action {
        Action::List(args) => list::run(args),
        Action::Run(args) => run::run(args),
        Action::Sim(args) => sim::run(args),
        Action::Advise(args) => advise::run(args),
        Action::Copy(args) => copy::run(args),
        Action::Report(args) => report::run(args),
    }
}
