//! `mooncrate-nano-check`: how fast the kernels of the cache are on this GPU, beside plain copies.
//!
//! `./dev gpu` runs it after the tests. Two ranks share one GPU here: what crosses no link is not a figure
//! of a link. Figures come from graphs of at least 60 rounds: three replays to warm up, then the median of
//! 25, divided by the rounds. Results are compared afterwards, or the figure does not count. Speed is
//! reported and never decides whether the run passes.

#![expect(clippy::print_stdout, reason = "a program that prints figures")]

mod figures;
mod host;
mod report;
mod timer;

use mooncrate_gpu::Gpu;
use report::Report;
use std::process::ExitCode;

const USAGE: &str = "usage: mooncrate-nano-check [--report FILE] [--commit TEXT]";

/// What the command line asks for.
#[derive(Debug, Default)]
struct Options {
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
            eprintln!("mooncrate-nano-check: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether every figure is of a right result.
fn run(options: &Options) -> Result<bool, String> {
    let gpu = Gpu::open(0).map_err(|error| error.to_string())?;
    let mut report = Report::new(&gpu, options.commit.as_deref());
    figures::all(&gpu, &mut report);
    host::all(&gpu, &mut report);
    report.print();
    if let Some(path) = &options.report {
        std::fs::write(path, report.markdown()).map_err(|error| format!("{path}: {error}"))?;
        println!("written to {path}");
    }
    Ok(report.failures() == 0)
}
