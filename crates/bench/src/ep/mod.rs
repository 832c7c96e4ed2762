//! The conformance list of the expert exchange: the same checks on every backend, with real processes.
//!
//! This program starts itself once for each rank, or once for all of them where they share a process. Every
//! process does every check, and says how it went; a check counts as passed if every process said so.

mod checks;
mod deaths;
mod figures;
mod team;

use crate::nano::Backend;
use crate::render::{note, say};
use anyhow::{Context, Result};
use clap::Args;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Check the expert exchange: the same list on every backend
#[derive(Args, Clone, Debug)]
pub(crate) struct EpArgs {
    /// What the heaps are made of
    #[arg(long, value_enum, default_value_t = Backend::Cpu)]
    pub(crate) backend: Backend,
    /// How many ranks
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u8).range(2..=8))]
    pub(crate) world: u8,
    /// Layers that are compared with the dense reference
    #[arg(long, default_value_t = 1_000)]
    pub(crate) steps: u64,
    /// The seed of everything that is drawn
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Be this rank: started by this program itself
    #[arg(long, hide = true)]
    pub(crate) rank: Option<u8>,
    /// Meet there: said by this program itself
    #[arg(long, hide = true)]
    pub(crate) path: Option<std::path::PathBuf>,
    /// Which part of the list: said by this program itself
    #[arg(long, hide = true)]
    pub(crate) part: Option<String>,
}

/// Parts of the list that need a group of their own: another shape, or somebody who dies or stops.
const PARTS: [&str; 8] = [
    "figures",
    "checks",
    "fp8",
    "no-room",
    "deepseek-v3",
    "rank-leaves",
    "rank-killed",
    "rank-stopped",
];
/// What a process says about a check begins with this.
const SAYS: &str = "check ";
/// And how long something took, in microseconds, with this.
const FIGURE: &str = "figure ";

/// Runs the list, or one process of it.
pub(crate) fn run(args: &EpArgs) -> Result<bool> {
    if args.rank.is_some() {
        return checks::run(args).map(|()| true);
    }
    let mut said = Said::default();
    // Nobody dies on a GPU: under MPS that could end the other ranks, too.
    let parts = if args.backend == Backend::Cpu { &PARTS[1..] } else { &PARTS[..6] };
    let processes = if args.backend == Backend::CudaVirtual { 1 } else { args.world };
    for part in parts {
        let dir = tempfile::tempdir().context("a place to meet")?;
        let mut ranks: Vec<Child> = (0..processes)
            .map(|rank| start(args, part, dir.path(), rank))
            .collect::<Result<_>>()?;
        let victim = deaths::VICTIM;
        // A rank that was stopped never ends by itself, so it comes last, and is killed then.
        let stopped = (*part == "rank-stopped").then(|| ranks.remove(victim));
        for (at, child) in ranks.into_iter().enumerate() {
            let rank = if stopped.is_some() && at >= victim { at + 1 } else { at };
            hear(&mut said, part, rank, child)?;
        }
        if let Some(mut stopped) = stopped {
            stopped.kill().context("ending the rank that was stopped")?;
            stopped.wait().context("waiting for the rank that was stopped")?;
        }
    }
    sum_up(args, &said)
}

/// What the processes said: what is wrong with each check, and what each figure was on each of them.
#[derive(Default)]
struct Said {
    checks: BTreeMap<String, Vec<String>>,
    figures: BTreeMap<String, Vec<f64>>,
}

fn sum_up(args: &EpArgs, said: &Said) -> Result<bool> {
    for (name, micros) in &said.figures {
        let slowest = micros.iter().copied().fold(0.0, f64::max);
        say(&format!("{name}: {slowest:.1} µs on the slowest of {} processes", micros.len()))?;
    }
    let said = &said.checks;
    let mut failed = 0;
    for (check, errors) in said {
        say(&format!("{} {check}", if errors.is_empty() { "passed" } else { "FAILED" }))?;
        for error in errors {
            say(&format!("       {error}"))?;
        }
        failed += usize::from(!errors.is_empty());
    }
    let (passed, all) = (said.len() - failed, said.len());
    let (backend, world) = (args.backend.name(), args.world);
    say(&format!("{passed} of {all} checks passed: {backend}, {world} ranks"))?;
    if failed > 0 {
        let EpArgs { steps, seed, .. } = args;
        note(&format!(
            "repeat with: mooncrate-bench ep --backend {backend} --world {world} --steps {steps} --seed {seed}"
        ));
    }
    Ok(failed == 0 && all > 0)
}

fn start(args: &EpArgs, part: &str, dir: &Path, rank: u8) -> Result<Child> {
    let program = std::env::current_exe().context("finding this program")?;
    Command::new(program)
        .args(["ep", "--backend", args.backend.name(), "--part", part])
        .args(["--world", &args.world.to_string(), "--rank", &rank.to_string()])
        .args(["--steps", &args.steps.to_string(), "--seed", &args.seed.to_string()])
        .arg("--path")
        .arg(dir.join("meet"))
        .env("CUDA_DEVICE_MAX_CONNECTIONS", queues(args.backend))
        .env("CUDA_MODULE_LOADING", "EAGER")
        .stdout(Stdio::piped())
        .spawn()
        .context("starting a rank")
}

/// Queues of the GPU for a process. Streams that share one would wait for each other; processes under MPS share
/// them all, and have one stream each.
fn queues(backend: Backend) -> &'static str {
    match backend {
        Backend::CudaVirtual => "32",
        Backend::Cpu | Backend::CudaIpc => "2",
    }
}

/// Takes down what a process said: `check NAME`, or `check NAME: what went wrong`, or `figure NAME: MICROSECONDS`.
fn hear(said: &mut Said, part: &str, rank: usize, child: Child) -> Result<()> {
    let output = child.wait_with_output().context("waiting for a rank")?;
    let Said { checks: said, figures } = said;
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        if let Some((name, micros)) = line.strip_prefix(FIGURE).and_then(|it| it.split_once(": ")) {
            figures.entry(name.to_owned()).or_default().push(micros.parse().context("a figure")?);
        }
        let Some(check) = line.strip_prefix(SAYS) else { continue };
        let (name, error) = check.split_once(": ").map_or((check, None), |(a, b)| (a, Some(b)));
        let errors = said.entry(format!("{part}: {name}")).or_default();
        errors.extend(error.map(str::to_owned));
    }
    let killed = part == "rank-killed" && rank == deaths::VICTIM;
    if !output.status.success() && !killed {
        let end = said.entry(format!("{part}: ends in order")).or_default();
        end.push(format!("rank {rank}: {}", output.status));
    }
    Ok(())
}
