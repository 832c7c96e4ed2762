//! `mooncrate-gpu-check`: how fast the kernels of the paged cache are on this GPU, beside plain copies.
//!
//! `./dev gpu` runs it after the tests. Every figure comes from a graph of 60 rounds: three replays to
//! warm up, then the median of 25, divided by the rounds. Results are compared afterwards, and the
//! kernels' count of refused entries must be 0, or the figure does not count. Speed is reported and
//! never decides whether the run passes.

#![expect(clippy::print_stdout, reason = "a program that prints figures")]

mod figures;
mod report;
mod timer;

use mooncrate_gpu::Gpu;
use report::Report;
use std::process::ExitCode;

const USAGE: &str = "usage: mooncrate-gpu-check [--probe] [--report FILE] [--commit TEXT]";

/// What the command line asks for.
#[derive(Debug, Default)]
struct Options {
    /// Only say whether there is a GPU.
    probe: bool,
    /// Where the table goes, as Markdown.
    report: Option<String>,
    /// Which commit the program was built from.
    commit: Option<String>,
}

fn options(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options::default();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} wants a value; {USAGE}"));
        match argument.as_str() {
            "--probe" => options.probe = true,
            "--report" => options.report = Some(value()?),
            "--commit" => options.commit = Some(value()?),
            _ => return Err(format!("unknown argument {argument}; {USAGE}")),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    match options(std::env::args().skip(1)).and_then(|options| run(&options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("mooncrate-gpu-check: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether every figure is of a right result.
fn run(options: &Options) -> Result<bool, String> {
    let gpu = Gpu::open(0).map_err(|error| error.to_string())?;
    let mut report = Report::new(&gpu, options.commit.as_deref());
    if options.probe {
        println!("{}", report.machine());
        return Ok(true);
    }
    figures::all(&gpu, &mut report);
    report.print();
    if let Some(path) = &options.report {
        std::fs::write(path, report.markdown()).map_err(|error| format!("{path}: {error}"))?;
        println!("written to {path}");
    }
    Ok(report.failures() == 0)
}
