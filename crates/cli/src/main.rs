//! run: the `mooncrate` command.
//!
//! ```text
//!   args ──► config ──► cmd ──► render
//!   typed    layered    done    printed
//! ```
//!
//! What must stay true: stdout holds what was asked for and nothing else; an error is one sentence
//! with the next step, on stderr; nothing listens where other machines reach it unless the operator
//! says so; a server that is asked to stop has stopped within seconds.
//!
//! Deliberately absent: logic. This crate parses, composes and prints; what a store does is in the
//! crates below.
#![forbid(unsafe_code)]

mod args;
mod cmd;
mod config;
mod failure;
mod listen;
mod logs;
mod progress;
mod render;
mod screen;

use args::{Arguments, Command, ServerFlags};
use clap::Parser;
use config::{Layers, Settings};
use failure::Failure;
use render::Output;
use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let out = Output { json: arguments.common.json };
    match run(&arguments, out) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            out.failure(&failure);
            failure.exit.into()
        }
    }
}

fn run(arguments: &Arguments, out: Output) -> Result<(), Failure> {
    let file = arguments.common.config.clone();
    let layers = Layers::read(file, std::env::vars_os(), arguments.given())?;
    let runtime_dir = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty());
    let settings = Settings::new(&layers, runtime_dir.map(PathBuf::from).as_deref());
    let serve = |role, flags: &ServerFlags| {
        if flags.print_config {
            return out.config(&layers);
        }
        logs::start(settings.log.as_deref(), "info");
        cmd::serve::run(role, &settings, out)
    };
    let quiet = || logs::start(settings.log.as_deref(), "warn");
    match &arguments.command {
        Command::Serve(serving) => serve(cmd::serve::Role::Both, &serving.server),
        Command::Master(alone) => serve(cmd::serve::Role::Master, &alone.server),
        Command::Node(alone) => serve(cmd::serve::Role::Node, &alone.server),
        Command::Token(token) => cmd::token::run(&token.action, &settings, out),
        other => {
            quiet();
            cmd::ask(other, &settings, out)
        }
    }
}
