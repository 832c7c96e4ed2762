//! prove: house rules that a machine can check, run by `cargo xtask <check>`, and the supervisor of the
//! process tests (`chaos`).
//!
//! It reads the tree and `cargo metadata` and links no crate of ours: a rule must not depend on
//! what it judges. Each finding is one line, `place: what is wrong and what to do`.
//!
//! Deliberately absent: fixing anything, and rules that clippy or rustfmt already know.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a command line tool talks to its terminal")]

mod chaos;
mod codes;
mod front;
mod layers;
mod links;
mod metadata;
mod pages;
mod proof;
mod records;
mod runtime;
mod tidy;
mod tree;
mod walk;

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const MENU: &str = "\
usage: cargo xtask <check>

  layers   dependencies of our crates point down the table, never up or sideways
  tidy     file openings and lengths, unfinished marks, unsafe code, links, decision records,
           codes of invariants, manifests, the index of docs/, the programs of the README,
           the cells of docs/proof.md, the walks of ARCHITECTURE.md
  chaos    real processes under faults; `cargo xtask chaos --help`
";

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
    if let ["chaos", arguments @ ..] = &wanted[..] {
        return chaos(arguments);
    }
    let findings = match wanted[..] {
        ["layers"] => root().and_then(|root| layers::check(&root)),
        ["tidy"] => root().and_then(|root| tidy::check(&root)),
        ["help" | "-h" | "--help"] => {
            print!("{MENU}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprint!("{MENU}");
            return ExitCode::from(2);
        }
    };
    match findings {
        Ok(findings) if findings.is_empty() => {
            println!("{}: nothing to mend", wanted[0]);
            ExitCode::SUCCESS
        }
        Ok(findings) => {
            for finding in &findings {
                println!("{finding}");
            }
            eprintln!("{}: {} to mend", wanted[0], findings.len());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{} could not run: {error:#}", wanted[0]);
            ExitCode::from(2)
        }
    }
}

fn chaos(arguments: &[&str]) -> ExitCode {
    match root().and_then(|root| chaos::run(&root, arguments)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("chaos could not go on: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// The workspace: the nearest folder above this crate's manifest, or above the current folder when
/// the binary is run by hand, that has a `crates` folder.
fn root() -> Result<PathBuf> {
    let start = match std::env::var_os("CARGO_MANIFEST_DIR") {
        Some(manifest) => PathBuf::from(manifest),
        None => std::env::current_dir().context("the current folder")?,
    };
    match start.ancestors().find(|folder| folder.join("crates").is_dir()) {
        Some(root) => Ok(root.to_owned()),
        None => bail!("no workspace around {}", Path::new(&start).display()),
    }
}
