//! prove: every figure beside its floor, measured in the same run on the same machine.
//!
//! ```text
//!   args ─► paths    put and get in the same process, on the same host, over TCP  │ floor: plain
//!           control  control calls, 1 and 8 threads, 1 and 128 keys               │ memcpy, plain
//!           index    the catalog alone: memory per object, cost per call by size  │ sockets, or
//!           growth   control calls on a small and on a large master               │ the smallest
//!           nodes    control calls as nodes grow in number; what idle ones take    │ size, or
//!           scale    clients and nodes over TCP; small gets beside large ones     │ number
//!           rebuild  a killed master learns its index again                       │
//!           drain    a node is emptied while readers run                          │
//!           failover three masters on etcd lose their leader (a table of its own)
//!           copy     the checksummed copy; floors: the plain programs alone       │
//!           tls      what tokens, grants and encryption cost                      │ open
//!           ssd      disks and what is kept on them                               │ fio
//!              │
//!   measure ── rounds of floor and subject in turn ─► report ─► render (text, JSON, Markdown)
//!   peer    ── this program once more, as a server or as the other end of a plain program
//!   cores   ── who runs where         neighbours ── who else ran meanwhile
//!   verify  ── no figures: a workload that judges every answer, for others to torment; kill_one
//!              torments it once, by itself
//!   tier    ── a server with a disk: filled, evicted from, slowed down; every answer judged
//!   doors   ── callers with a credential at every port, while others crowd it
//!   nano    ── the conformance list of the GPU-resident cache, on every backend
//!   ep      ── the same of the expert exchange
//!   reads   ── whether what is read most stays: hot values, values of a disk, a trace
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
mod doors;
mod drain;
mod effort;
mod ep;
mod failover;
mod fleet;
mod floors;
mod growth;
mod index;
mod kill_one;
mod machine;
mod measure;
mod nano;
mod neighbours;
mod nodes;
mod paths;
mod peer;
mod plain;
mod reads;
mod rebuild;
mod render;
mod report;
mod scale;
mod servers;
mod ssd;
mod tier;
mod tls;
mod verify;
mod workload;

use anyhow::Result;
use args::{Arguments, Command};
use clap::Parser;
use effort::Effort;
use machine::Machine;
use neighbours::Moment;
use report::{Report, Table};
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Err(error) = arguments.check_files() {
        render::note(&format!("{error}"));
        return ExitCode::FAILURE;
    }
    let proof = match &arguments.command {
        Some(Command::Verify(wanted)) => Some(verify::run(wanted)),
        Some(Command::Clear(wanted)) => Some(verify::clear::run(wanted)),
        Some(Command::Leaders(wanted)) => Some(verify::leaders::run(wanted)),
        Some(Command::KillOne(wanted)) => Some(kill_one::run(wanted)),
        Some(Command::Tier(wanted)) => Some(tier::run(wanted)),
        Some(Command::Doors(wanted)) => Some(doors::run(wanted)),
        Some(Command::Reads(wanted)) => Some(reads::run(wanted)),
        Some(Command::Nano(wanted)) => Some(nano::run(wanted)),
        Some(Command::Ep(wanted)) => Some(ep::run(wanted)),
        _ => None,
    };
    let ran = match proof {
        Some(Ok(false)) => return ExitCode::FAILURE,
        Some(proof) => proof.map(|_| ()),
        None => run(&arguments),
    };
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            render::note(&format!("the bench could not go on: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// What this program does as a peer of another bench, and what has a table of its own; `None`: neither is asked for.
fn serve(command: &Command) -> Option<Result<()>> {
    Some(match command {
        Command::ServeForBench { bytes, security, tls } => {
            peer::serve_cluster(*bytes, security.as_deref(), *tls)
        }
        Command::StateMasterForBench { listen, state } => {
            rebuild::serve_master(listen.clone(), state.clone())
        }
        Command::NodeForBench(node) => rebuild::serve_node(node),
        Command::MasterForBench { objects } => growth::serve_master(*objects),
        Command::FloorForBench { bytes } => plain::serve(*bytes),
        Command::PlainMasterForBench => nodes::serve_master(),
        Command::NodesForBench { master, count, folder } => {
            nodes::serve_nodes(master, *count, folder)
        }
        Command::Failover { rounds } => failover::run(*rounds),
        Command::DrainNodeForBench { name, master, bytes, folder } => {
            drain::serve_node(name, master, *bytes, folder)
        }
        _ => return None,
    })
}

fn run(arguments: &Arguments) -> Result<()> {
    let effort = Effort::of(arguments)?;
    let command = arguments.command.as_ref().unwrap_or(&Command::All);
    if let Some(served) = serve(command) {
        return served;
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
        Command::Index => [index::run(&effort)?, growth::run(&effort)?].concat(),
        Command::Floors => floors::run(&effort)?,
        Command::Copy => copy::run(&effort)?,
        Command::Scale => scale::run(&effort)?,
        Command::Nodes { counts, idle } => {
            nodes::run(&effort, counts, Duration::try_from_secs_f64(*idle)?)?
        }
        &Command::Rebuild { objects, nodes, rounds } => {
            rebuild::run(rebuild::Task { objects, nodes, rounds: rounds as usize })?
        }
        Command::Tls => tls::run(&effort)?,
        Command::Ssd { directory } => ssd::run(&effort, directory)?,
        Command::Drain { bytes, value, readers } => {
            let load = drain::Load { bytes: bytes.0, value: value.0, readers: *readers };
            drain::run(&effort, load)?
        }
        Command::ServeForBench { .. }
        | Command::Failover { .. }
        | Command::StateMasterForBench { .. }
        | Command::NodeForBench(_)
        | Command::MasterForBench { .. }
        | Command::FloorForBench { .. }
        | Command::PlainMasterForBench
        | Command::NodesForBench { .. }
        | Command::Verify(_)
        | Command::Clear(_)
        | Command::Leaders(_)
        | Command::KillOne(_)
        | Command::Tier(_)
        | Command::Doors(_)
        | Command::Reads(_)
        | Command::Nano(_)
        | Command::Ep(_)
        | Command::DrainNodeForBench { .. } => unreachable!("answered above"),
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
