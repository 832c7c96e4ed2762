//! The table of figures, for the terminal and as Markdown.

use crate::timer::{Time, WARM_UPS};
use mooncrate_gpu::Gpu;
use std::fmt::Write;

/// One measured operation.
#[derive(Debug)]
pub(crate) struct Figure {
    /// What was done.
    pub(crate) name: String,
    /// `hot`: one set of buffers, partly in the L2 cache; `rotating`: six sets.
    pub(crate) mode: &'static str,
    /// Ranks, and tokens of each.
    pub(crate) of: (u32, u64),
    /// Bytes that a round reads and writes.
    pub(crate) bytes: u64,
    /// Microseconds per round.
    pub(crate) time: Time,
    /// The same bytes at the rate of one large copy, and two barriers, in microseconds.
    pub(crate) floor: Option<f64>,
    /// What it should take at most, in microseconds.
    pub(crate) goal: Option<f64>,
}

/// All figures of a run.
#[derive(Debug)]
pub(crate) struct Report {
    machine: String,
    figures: Vec<Figure>,
    notes: Vec<String>,
    failed: Vec<String>,
}

impl Report {
    /// An empty one for this GPU.
    pub(crate) fn new(gpu: &Gpu, commit: Option<&str>) -> Self {
        let (major, minor) = gpu.compute_capability();
        let driver = gpu.driver_version();
        let machine = format!(
            "{}: {} SMs, {} MiB, compute capability {major}.{minor}, CUDA {}.{} by its driver; commit {}",
            gpu.name(),
            gpu.sm_count(),
            gpu.memory_bytes() >> 20,
            driver / 1000,
            driver % 1000 / 10,
            commit.unwrap_or("not given"),
        );
        Self { machine, figures: Vec::new(), notes: Vec::new(), failed: Vec::new() }
    }

    /// Takes the result of one measurement, and goes on whatever it was.
    pub(crate) fn add(&mut self, name: &str, figure: Result<Figure, String>) {
        match figure {
            Ok(figure) => {
                let (median, mode) = (figure.time.median, figure.mode);
                println!("{}, {mode}, {:?}: {median:.2} µs", figure.name, figure.of);
                self.figures.push(figure);
            }
            Err(error) => {
                println!("FAILED {name}: {error}");
                self.failed.push(format!("{name}: {error}"));
            }
        }
    }

    /// A sentence below the table.
    pub(crate) fn note(&mut self, text: String) {
        println!("{text}");
        self.notes.push(text);
    }

    /// How many measurements failed.
    pub(crate) fn failures(&self) -> usize {
        self.failed.len()
    }

    /// The table, as Markdown, with the conditions it was made under.
    pub(crate) fn markdown(&self) -> String {
        let mut text = format!(
            "{}\n\nAll ranks on one GPU, in one process, a stream each, no MPS. Graphs of many rounds with all ranks \
             inside, median of replays after {WARM_UPS} warm-ups, per round. Error words read after each row, \
             and the output of the first set compared with the dense reference; rows of dispatch alone make none. hot: one set of buffers; rotating: six sets. A short round \
             is dispatch, two waits in one kernel and combine, with results already in place: it leaves out pack, return, a \
             second kernel that waits and a fence, which a full path has. GB/s counts reads and writes. The floor is \
             the same bytes at the rate of one large copy, and two barriers; a hot row may be below it, because \
             the cache holds a part of its bytes.\n\n",
            self.machine
        );
        text.push_str(
            "| operation | mode | ranks × tokens | MB | µs | least to most | GB/s | floor, µs | goal, µs |\n",
        );
        text.push_str("|---|---|---|---|---|---|---|---|---|\n");
        for figure in &self.figures {
            let Time { median, least, most } = figure.time;
            let floor = figure.floor.map_or("–".into(), |floor| format!("{floor:.2}"));
            let goal = figure.goal.map_or("–".into(), |goal| {
                format!("{goal:.1}{}", if median <= goal { ", met" } else { ", MISSED" })
            });
            let (name, mode, (ranks, tokens)) = (&figure.name, figure.mode, figure.of);
            let (size, rate) = (megabytes(figure.bytes), megabytes(figure.bytes) * 1e3 / median);
            let _ = writeln!(
                text,
                "| {name} | {mode} | {ranks} × {tokens} | {size:.2} | {median:.2} | {least:.2} to {most:.2} | \
                 {rate:.0} | {floor} | {goal} |"
            );
        }
        for note in &self.notes {
            let _ = writeln!(text, "\n{note}");
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
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}
