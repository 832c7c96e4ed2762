//! The table of figures, for the terminal and as Markdown.

use crate::timer::{LAUNCHES, REPLAYS, ROUNDS, Time, WARM_UPS};
use mooncrate_gpu::Gpu;
use std::fmt::Write;

/// One measured operation.
#[derive(Debug)]
pub(crate) struct Figure {
    /// What was done.
    pub(crate) name: String,
    /// `hot`: one set of buffers, partly in the L2 cache; `rotating`: as many sets as needed for 400 MB.
    pub(crate) mode: &'static str,
    /// Bytes of a round.
    pub(crate) bytes: u64,
    /// How often each of them crosses memory: 2 for a copy on the device, 1 for a look at it, or a link.
    pub(crate) passes: u64,
    /// Microseconds per round.
    pub(crate) time: Time,
    /// The plain copy of the same bytes in the same mode, where there is one.
    pub(crate) plain: Option<Time>,
    /// What it should take at most, in microseconds.
    pub(crate) goal: Option<f64>,
}

/// All figures of a run.
#[derive(Debug)]
pub(crate) struct Report {
    machine: String,
    figures: Vec<Figure>,
    failed: Vec<String>,
}

impl Report {
    /// An empty one for this GPU.
    pub(crate) fn new(gpu: &Gpu, commit: Option<&str>) -> Self {
        let (major, minor) = gpu.compute_capability();
        let driver = gpu.driver_version();
        let machine = format!(
            "{}: {} SMs, {} MiB, compute capability {major}.{minor}, CUDA {}.{} by its driver{}; commit {}",
            gpu.name(),
            gpu.sm_count(),
            gpu.memory_bytes() >> 20,
            driver / 1000,
            driver % 1000 / 10,
            kernel_driver().map_or(String::new(), |version| format!(" {version}")),
            commit.unwrap_or("not given"),
        );
        Self { machine, figures: Vec::new(), failed: Vec::new() }
    }

    /// Takes the result of one measurement, and goes on whatever it was.
    pub(crate) fn add(&mut self, name: &str, figure: Result<Figure, String>) {
        match figure {
            Ok(figure) => self.figures.push(figure),
            Err(error) => {
                println!("FAILED {name}: {error}");
                self.failed.push(format!("{name}: {error}"));
            }
        }
    }

    /// How many measurements failed.
    pub(crate) fn failures(&self) -> usize {
        self.failed.len()
    }

    /// The table, as Markdown, with the conditions it was made under.
    pub(crate) fn markdown(&self) -> String {
        let mut text = format!(
            "{}\n\nTwo ranks on one GPU. Graphs of at least {ROUNDS} rounds, median of {REPLAYS} replays after \
             {WARM_UPS} warm-ups; rows of single launches: median, least and 99th percentile of {LAUNCHES}, \
             by events around each. Stamped data, compared afterwards; one process, no MPS, programmatic \
             dependent launch; 256 threads per block. GB/s counts reads and writes on the device, and bytes \
             once for sums and between host and device.\n\n",
            self.machine
        );
        text.push_str(
            "| operation | mode | KiB | µs | least to most | GB/s | plain copy, µs | goal, µs |\n",
        );
        text.push_str("|---|---|---|---|---|---|---|---|\n");
        for figure in &self.figures {
            let Time { median, least, most } = figure.time;
            let plain = figure.plain.map_or("–".into(), |plain| format!("{:.2}", plain.median));
            let goal = figure.goal.map_or("–".into(), |goal| {
                format!("{goal:.1}{}", if median <= goal { ", met" } else { ", MISSED" })
            });
            let (name, mode, kib) = (&figure.name, figure.mode, figure.bytes >> 10);
            let rate = rate(figure);
            let _ = writeln!(
                text,
                "| {name} | {mode} | {kib} | {median:.2} | {least:.2} to {most:.2} | {rate:.0} | {plain} | {goal} |"
            );
        }
        for failure in &self.failed {
            let _ = writeln!(text, "\nFAILED {failure}");
        }
        text
    }

    /// The table in the terminal, last of all.
    pub(crate) fn print(&self) {
        println!("\n{}", self.markdown());
        println!("{} figures, {} failed", self.figures.len(), self.failed.len());
    }
}

#[expect(clippy::cast_precision_loss, reason = "figures are printed with three digits")]
fn rate(figure: &Figure) -> f64 {
    (figure.bytes * figure.passes) as f64 / figure.time.median / 1e3
}

/// The version of the kernel module, such as 580.95.05; CUDA itself tells only what it supports.
fn kernel_driver() -> Option<String> {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    let is_version =
        |word: &&str| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit());
    text.lines().next()?.split_whitespace().find(is_version).map(str::to_owned)
}
