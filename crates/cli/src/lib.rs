//! run: the `mooncrate` command, for the program of that name and for the Python package.
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

use args::{Arguments, Command, NodeAlone, ServerFlags};
use clap::Parser;
use config::{Layers, Settings};
use failure::Failure;
use render::Output;
use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;

/// Does what the arguments say; the first is the name of the program. The result is for the shell.
///
/// Once per process: it starts the log, and servers catch SIGINT and SIGTERM from then on.
pub fn main_from(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let all: Vec<OsString> = arguments.into_iter().collect();
    let program =
        all.first().map_or_else(|| "mooncrate".into(), |name| name.to_string_lossy().into_owned());
    let code = match Arguments::try_parse_from(all) {
        Ok(arguments) => {
            let out = Output { json: arguments.common.json };
            run(&arguments, &program, out).map_or_else(
                |failure| {
                    out.failure(&failure);
                    failure.exit as u8
                },
                |()| 0,
            )
        }
        // Help and version come this way too, with the exit code of something that went well.
        Err(said) => {
            // Nobody is left to tell when stdout or stderr is closed.
            let _ = said.print();
            u8::try_from(said.exit_code()).unwrap_or(u8::MAX)
        }
    };
    // A program in Rust does it when `main` ends; in a host of another language nobody would.
    let _ = std::io::stdout().flush();
    code
}

fn run(arguments: &Arguments, program: &str, out: Output) -> Result<(), Failure> {
    let file = arguments.common.config.clone();
    let layers = Layers::read(file, std::env::vars_os(), arguments.given())?;
    // A guard has the environment of its node, which has said it.
    let guards = matches!(arguments.command, Command::Node(NodeAlone { guard_of: Some(_), .. }));
    if let Some(words) = layers.warning().filter(|_| !guards) {
        out.warning(words);
    }
    let runtime_dir = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty());
    let settings = Settings::new(&layers, runtime_dir.map(PathBuf::from).as_deref());
    let serve = |role, flags: &ServerFlags| {
        if flags.print_config {
            return out.config(&layers);
        }
        logs::start(settings.log.as_deref(), "info");
        cmd::serve::run(role, &settings, program, out)
    };
    let quiet = || logs::start(settings.log.as_deref(), "warn");
    match &arguments.command {
        Command::Serve(serving) => serve(cmd::serve::Role::Both, &serving.server),
        Command::Master(alone) => serve(cmd::serve::Role::Master, &alone.server),
        Command::Node(NodeAlone { guard_of: Some(owner), .. }) => {
            cmd::serve::guard(*owner, &settings)
        }
        Command::Node(alone) => serve(cmd::serve::Role::Node, &alone.server),
        Command::Token(token) => cmd::token::run(&token.action, &settings, out),
        other => {
            quiet();
            cmd::ask(other, &settings, out)
        }
    }
}
