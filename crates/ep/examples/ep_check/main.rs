//! `mooncrate-ep-check`: how fast an exchange of eight ranks is on one GPU, beside its floor: the same bytes
//! at the rate of a large copy, and two barriers.
//!
//! `./dev gpu` runs it after the tests. All ranks share one GPU here, each with a stream of its own: what crosses
//! no link is not a figure of a link. Figures come from graphs of at least 60 rounds with all ranks inside: three
//! replays to warm up, then the median of 25, divided by the rounds. The error word of every rank is read
//! afterwards, and the outputs of the first set, spoilt before, are compared with the dense reference, or the
//! figure does not count. Speed is reported and never decides whether the run passes.

#![expect(clippy::print_stdout, reason = "a program that prints figures")]

mod experts;
mod figures;
mod report;
mod team;
mod timer;

use mooncrate_gpu::Gpu;
use report::Report;
use std::process::ExitCode;

const USAGE: &str = "usage: mooncrate-ep-check [--report FILE] [--commit TEXT] [--quick]";

/// What the command line asks for.
#[derive(Debug, Default)]
struct Options {
    /// Where the table goes, as Markdown.
    report: Option<String>,
    /// Which commit the program was built from.
    commit: Option<String>,
    /// A small shape and few replays: shows that everything runs, also on the emulator.
    quick: bool,
}

fn options(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options::default();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} wants a value; {USAGE}"));
        match argument.as_str() {
            "--report" => options.report = Some(value()?),
            "--commit" => options.commit = Some(value()?),
            "--quick" => options.quick = true,
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
            eprintln!("mooncrate-ep-check: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether every figure is of a right result.
fn run(options: &Options) -> Result<bool, String> {
    let gpu = Gpu::open(0).map_err(|error| error.to_string())?;
    let mut report = Report::new(&gpu, options.commit.as_deref());
    figures::all(&gpu, &mut report, options.quick);
    report.print();
    if let Some(path) = &options.report {
        std::fs::write(path, report.markdown()).map_err(|error| format!("{path}: {error}"))?;
        println!("written to {path}");
    }
    Ok(report.failures() == 0)
}
