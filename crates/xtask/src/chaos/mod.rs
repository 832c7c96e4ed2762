//! `chaos`: real processes, killed, stopped, cut off and lied to, while clients judge every answer.
//!
//! ```text
//!   kinds ── what can happen        dice, schedule ── what happens, from the seed
//!   net ──── hosts, one namespace each      proxy, flood ── what no packet filter can do
//!   fleet ── masters, nodes (server), etcd  client ── `mooncrate-bench verify`, and what it says
//!   fault ── begin, hold, end       leg ── a fleet from its start to its end
//!   report ─ table, file, verdict
//! ```
//!
//! A run has a leg with one master and one with three on etcd. A leg is a row of rounds. A round begins
//! one to three faults on different processes, ends each after its time, and then waits until every client
//! works again without trouble; that wait has a bound. At the end of a leg clients stop, every key is
//! removed, and the master's books must show that nothing leaked.
//!
//! What must stay true: the schedule follows from the seed and the kinds, never from the clock; no crate
//! of ours is linked; a process that ends unasked fails the run.

mod client;
mod dice;
mod etcd;
mod fault;
mod fleet;
mod flood;
mod kinds;
mod leg;
mod net;
mod options;
mod proxy;
mod report;
mod schedule;
mod server;

use anyhow::{Context, Result};
use dice::now;
use fleet::{Fleet, Programs, host_names};
use kinds::Means;
use net::Net;
use options::Options;
use report::{Leg, Report};
use rustix::process::{getpriority_process, setpriority_process};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How much a run goes before others of the machine, where that is permitted: calls are timed.
const BEFORE_OTHERS: i32 = 5;

/// Runs it all; whether it passed.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Result<bool> {
    let Some(options) = Options::parse(arguments)? else {
        print!("{}", options::MENU);
        return Ok(true);
    };
    flood::raise_limit();
    let folder = match &options.programs {
        Some(folder) => std::fs::canonicalize(folder).with_context(|| folder.clone())?,
        None => build(root)?,
    };
    let programs =
        Programs { mooncrate: folder.join("mooncrate"), bench: folder.join("mooncrate-bench") };
    go_before_others();
    let lacks = if options.namespaces { net::lacks() } else { None };
    if let Some(why) = &lacks {
        println!("no network namespaces here: {why}; only faults that need none are injected");
    }
    let private = options.namespaces && lacks.is_none();
    if server::faketime().is_none() {
        println!("libfaketime is not installed: no faults of the wall clock");
    }
    let folder = std::env::temp_dir().join(format!("mooncrate-chaos-{}", std::process::id()));
    println!("seed {}, logs in {}", options.seed, folder.display());
    let mut report = Report {
        command: options.command(),
        seed: options.seed,
        private,
        marks: options.marks(private),
        legs: Vec::new(),
        failed: None,
    };
    for (masters, time) in options.legs(etcd::installed())? {
        let folder = folder.join(format!("masters-{masters}"));
        match walk(&options, &programs, &folder, private, masters, time) {
            Ok(Some(leg)) => report.legs.push(leg),
            Ok(None) => {}
            // The figures of what went well are worth printing, and so is the line that repeats it.
            Err(error) => report.failed = Some(format!("{error:#}")),
        }
        if !report.findings().is_empty() {
            break;
        }
    }
    println!("\n{}", report.text());
    if let Some(path) = &options.report {
        std::fs::write(path, serde_json::to_string_pretty(&report.json())?)
            .with_context(|| format!("writing {path}"))?;
        println!("written to {path}");
    }
    let passed = report.failures().is_empty();
    if passed && !options.keep {
        let _ = std::fs::remove_dir_all(&folder);
    } else {
        println!("the logs of all processes are in {}", folder.display());
    }
    Ok(passed)
}

/// One leg, with so many masters; `None` if none of the kinds that were asked for can happen in it.
fn walk(
    options: &Options,
    programs: &Programs,
    folder: &Path,
    private: bool,
    masters: usize,
    time: Duration,
) -> Result<Option<Leg>> {
    let means = Means {
        private,
        clock: server::faketime().is_some(),
        several: masters > 1,
        alone: masters == 1,
        long: options.long(),
    };
    let kinds = kinds::choose(&options.kinds, means)?;
    if kinds.is_empty() {
        return Ok(None);
    }
    println!("{masters} master{}, {} kinds", if masters > 1 { "s" } else { "" }, kinds.len());
    std::fs::create_dir_all(folder)?;
    let names = host_names(masters);
    let net = if private { Net::private(&names)? } else { Net::loopback(&names) };
    let mut fleet = Fleet::start(net, programs.clone(), folder, options.seed, masters)?;
    let began = now();
    let happened = leg::torment(&mut fleet, &kinds, time, options.seed)?;
    let seconds = began.elapsed().as_secs();
    Ok(Some(leg::finish(fleet, happened, seconds)))
}

/// A busy machine makes calls late that nobody hung: where it is permitted, this process and those that
/// it starts go before others.
fn go_before_others() {
    if let Ok(priority) = getpriority_process(None) {
        let _ = setpriority_process(None, priority - BEFORE_OTHERS);
    }
}

/// Builds the programs that are run, as they ship; where they are.
fn build(root: &Path) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = std::process::Command::new(cargo)
        .args(["build", "--release", "-q", "-p", "mooncrate-cli", "-p", "mooncrate-bench"])
        .current_dir(root)
        .status()
        .context("starting cargo build")?;
    anyhow::ensure!(status.success(), "the programs do not build");
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    Ok(root.join(target).join("release"))
}
