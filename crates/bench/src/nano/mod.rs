//! The conformance list of the GPU-resident cache: the same checks on every backend, with real processes.
//!
//! This program starts itself once for each rank. Every rank does every check, and says how it went; the
//! list at the end counts a check as passed if every rank said so.

mod checks;
mod deaths;
mod races;
mod rank;

use crate::render::{note, say};
use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use mooncrate::nano::NanoBackend;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Check the GPU-resident cache: the same list on every backend
#[derive(Args, Clone, Debug)]
pub(crate) struct NanoArgs {
    /// What the heaps are made of
    #[arg(long, value_enum, default_value_t = Backend::Cpu)]
    pub(crate) backend: Backend,
    /// How many ranks
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u8).range(2..=8))]
    pub(crate) world: u8,
    /// Reads of each rank in the race of gets against evictions
    #[arg(long, default_value_t = 2_000)]
    pub(crate) reads: u64,
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

/// What the heaps are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backend {
    /// Host memory, one process per rank
    Cpu,
    /// One GPU, all ranks in one process, a stream each
    CudaVirtual,
    /// One GPU, one process per rank; several processes on one GPU need MPS
    CudaIpc,
}

impl Backend {
    fn of_nano(self) -> NanoBackend {
        match self {
            Self::Cpu => NanoBackend::Host,
            Self::CudaVirtual | Self::CudaIpc => NanoBackend::Cuda { ordinal: 0 },
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::CudaVirtual => "cuda-virtual",
            Self::CudaIpc => "cuda-ipc",
        }
    }
}

/// Parts of the list that need a group of their own: somebody dies in the last two.
const PARTS: [&str; 4] = ["checks", "sealed", "writer-dies", "reader-dies"];
/// What a rank says about a check begins with this.
const SAYS: &str = "check ";

/// Runs the list, or one rank of it.
pub(crate) fn run(args: &NanoArgs) -> Result<bool> {
    if args.rank.is_some() {
        return rank::run(args).map(|()| true);
    }
    let mut said: BTreeMap<String, Vec<String>> = BTreeMap::new();
    // Nobody dies on a GPU: under MPS that could end the other ranks, too.
    let parts = if args.backend == Backend::Cpu { &PARTS[..] } else { &PARTS[..2] };
    let processes = if args.backend == Backend::CudaVirtual { 1 } else { args.world };
    for part in parts {
        let dir = tempfile::tempdir().context("a place to meet")?;
        let ranks: Vec<Child> = (0..processes)
            .map(|rank| start(args, part, dir.path(), rank))
            .collect::<Result<_>>()?;
        for (rank, child) in ranks.into_iter().enumerate() {
            hear(&mut said, part, rank, child)?;
        }
    }
    let mut failed = 0;
    for (check, errors) in &said {
        say(&format!("{} {check}", if errors.is_empty() { "passed" } else { "FAILED" }))?;
        for error in errors {
            say(&format!("       {error}"))?;
        }
        failed += usize::from(!errors.is_empty());
    }
    let (passed, all) = (said.len() - failed, said.len());
    say(&format!(
        "{passed} of {all} checks passed: {}, {} ranks",
        args.backend.name(),
        args.world
    ))?;
    if failed > 0 {
        note(&format!(
            "repeat with: mooncrate-bench nano --backend {} --world {} --seed {} --reads {}",
            args.backend.name(),
            args.world,
            args.seed,
            args.reads
        ));
    }
    Ok(failed == 0 && all > 0)
}

fn start(args: &NanoArgs, part: &str, dir: &Path, rank: u8) -> Result<Child> {
    let program = std::env::current_exe().context("finding this program")?;
    Command::new(program)
        .args(["nano", "--backend", args.backend.name(), "--part", part])
        .args(["--world", &args.world.to_string(), "--rank", &rank.to_string()])
        .args(["--reads", &args.reads.to_string(), "--seed", &args.seed.to_string()])
        .arg("--path")
        .arg(dir.join("meet"))
        .stdout(Stdio::piped())
        .spawn()
        .context("starting a rank")
}

/// Takes down what a rank said: `check NAME`, or `check NAME: what went wrong`.
fn hear(
    said: &mut BTreeMap<String, Vec<String>>,
    part: &str,
    rank: usize,
    child: Child,
) -> Result<()> {
    let output = child.wait_with_output().context("waiting for a rank")?;
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Some(check) = line.strip_prefix(SAYS) else { continue };
        let (name, error) = check.split_once(": ").map_or((check, None), |(a, b)| (a, Some(b)));
        let errors = said.entry(format!("{part}: {name}")).or_default();
        errors.extend(error.map(str::to_owned));
    }
    if !output.status.success() && !deaths::dies(part, rank) {
        let end = said.entry(format!("{part}: ends in order")).or_default();
        end.push(format!("rank {rank}: {}", output.status));
    }
    Ok(())
}
