//! The program `mooncrate`. What it does is in the library beside it, which the Python package runs too.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    mooncrate_cli::main_from(std::env::args_os()).into()
}
