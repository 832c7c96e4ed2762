//! prove: every figure beside its floor, measured in the same run on the same machine.
//!
//! ```text
//!   args ─► paths    put and get in the same process, on the same host, over TCP  │ floor: plain
//!           control  control calls, 1 and 8 threads, 1 and 128 keys               │ memcpy, plain
//!           index    the catalog alone: memory per object, cost per call by size  │ sockets, or
//!           growth   control calls on a small and on a large master               │ the smallest
//!           copy     the checksummed copy; floors: the plain programs alone       │ size
//!           drain    a node is emptied while readers run                          │
//!              │
//!   measure ── rounds of floor and subject in turn ─► report ─► render (text, JSON, Markdown)
//!   peer    ── this program once more, as a server or as the other end of a plain program
//!   cores   ── who runs where         neighbours ── who else ran meanwhile
//! ```
//!
//! Local words: a **subject** is what is judged and a **floor** the best plain program that moves the
//! same bytes; a **lap** is one round of one of them; the **effort** says how long to try.
//!
//! What must stay true: floor and subject take turns, so that a noisy neighbour hits both; a row that
//! loses is printed like the others; no table without machine, commit and command; what came back
//! from a get is compared with what was put.
//!
//! Deliberately absent: unsafe code, tuning that a user would not have, and figures from elsewhere.
#![forbid(unsafe_code)]

mod args;
mod control;
mod copy;
mod cores;
mod drain;
mod effort;
mod fleet;
mod floors;
mod growth;
mod index;
mod machine;
mod measure;
mod neighbours;
mod paths;
mod peer;
mod plain;
mod render;
mod report;
mod workload;

use anyhow::Result;
use args::{Arguments, Command};
use clap::Parser;
use effort::Effort;
use machine::Machine;
use neighbours::Moment;
use report::{Report, Table};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            render::note(&format!("the bench could not go on: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let effort = Effort::of(arguments)?;
    let command = arguments.command.as_ref().unwrap_or(&Command::All);
    match command {
        Command::ServeForBench { bytes } => return peer::serve_cluster(*bytes),
        Command::MasterForBench { objects } => return growth::serve_master(*objects),
        Command::FloorForBench { bytes } => return plain::serve(*bytes),
        Command::NodeForBench { name, master, bytes, folder } => {
            return drain::serve_node(name, master, *bytes, folder.clone());
        }
        _ => {}
    }
    // Before the load of the bench itself shows in it.
    let machine = Machine::read();
    let before = Moment::now();
    let tables: Vec<Table> = match command {
        // The index first: it measures how this process grows, so the process should be new.
        Command::All => {
            let mut tables = index::run(&effort)?;
            tables.extend(growth::run(&effort)?);
            tables.extend(control::run(&effort)?);
            tables.extend(paths::run(&effort)?);
            tables
        }
        Command::Paths => paths::run(&effort)?,
        Command::Control => control::run(&effort)?,
        Command::Index => {
            let mut tables = index::run(&effort)?;
            tables.extend(growth::run(&effort)?);
            tables
        }
        Command::Floors => floors::run(&effort)?,
        Command::Copy => copy::run(&effort)?,
        Command::Drain { bytes, value, readers } => {
            let load = drain::Load { bytes: bytes.0, value: value.0, readers: *readers };
            drain::run(&effort, load)?
        }
        Command::ServeForBench { .. }
        | Command::MasterForBench { .. }
        | Command::FloorForBench { .. }
        | Command::NodeForBench { .. } => unreachable!("answered above"),
    };
    let others = Moment::now().zip(before).map(|(after, before)| after.others_since(before));
    let report = Report { machine, effort: effort.describe(), others, tables };
    render::print(&report)?;
    if let Some(path) = &arguments.json {
        render::save(path, &report.json_text()?)?;
    }
    if let Some(path) = &arguments.markdown {
        render::save(path, &report.markdown())?;
    }
    Ok(())
}
