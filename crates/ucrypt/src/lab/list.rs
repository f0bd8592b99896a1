//! `lab list`.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::json;
use ucrypt_lab::catalogue::{self, Description, Scale};

use super::run::{defaults, duration};
use crate::failure::Failure;
use crate::stdio;

/// Arguments of `lab list`.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How long an experiment takes in memory, with everything that is installed.
fn time(description: &Description, scale: Scale) -> Result<Duration, Failure> {
    defaults(vec![description.name.into()], scale).estimate().map_err(Failure::wrong)
}

pub(super) fn run(args: &ListArgs) -> Result<(), Failure> {
    let mut text = String::new();
    let mut all = Vec::new();
    for description in catalogue::ALL {
        let full = time(description, Scale::Full)?;
        let quick = time(description, Scale::Quick)?;
        let files: Vec<_> = description.tables.iter().map(|table| table.file).collect();
        if args.json {
            let source = |table: &ucrypt_lab::published::Table| {
                let (who, hardware) = table.source();
                json!({ "file": table.file, "source": who, "hardware": hardware })
            };
            all.push(json!({
                "name": description.name,
                "question": description.question,
                "shows": description.shows,
                "needs": description.needs,
                "against": description.against,
                "published": description.tables.iter().map(source).collect::<Vec<_>>(),
                "cells": description.cells(Scale::Full).len(),
                "seconds": full.as_secs(),
                "quick_seconds": quick.as_secs(),
            }));
            continue;
        }
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{}\n  {}\n  shows    {}\n  repeats  {}\n  needs    {}\n  takes    about {}; with --quick {}\n",
            description.name,
            description.question,
            description.shows,
            if files.is_empty() { "nothing that was published".into() } else { files.join(", ") },
            description.needs,
            duration(full),
            duration(quick),
        );
    }
    if args.json { stdio::print_line(serde_json::Value::from(all)) } else { stdio::print(&text) }
}
