//! `doctor`: what this machine offers, why that matters here, and the command that changes it.
//!
//! ```text
//!   machine (files, calls) ──► checks: numbers in, a finding out ──► a table, or JSON
//! ```
//!
//! What must stay true: it changes nothing and needs no rights; what it cannot find out it says; only
//! what Mooncrate cannot run without makes it fail.

mod checks;
mod machine;
mod measured;

use crate::failure::Failure;
use crate::render::{Output, counted};
use machine::Machine;
use serde_json::{Value, json};
use std::path::PathBuf;

/// How good something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grade {
    /// As it should be.
    Ok,
    /// It works, and could work better.
    Better,
    /// It is not there.
    Missing,
}

impl Grade {
    const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Better => "could be better",
            Self::Missing => "missing",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// What it is.
    pub(crate) name: &'static str,
    /// How good.
    pub(crate) grade: Grade,
    /// What was found.
    pub(crate) found: String,
    /// Why it matters.
    pub(crate) why: &'static str,
    /// The command, or the step, that changes it; always there when it could be better.
    pub(crate) fix: Option<String>,
    /// Whether nothing works without it.
    pub(crate) required: bool,
}

/// Looks at everything.
pub(super) fn run(out: Output) -> Result<(), Failure> {
    let machine = Machine {
        root: PathBuf::from("/"),
        programs: std::env::var_os("PATH").unwrap_or_default(),
        libraries: std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default(),
    };
    let mut findings = checks::all(&machine);
    findings.extend(measured::all(&machine));
    out.doctor(&findings)?;
    let lacking = lacking(&findings);
    if lacking.is_empty() {
        return Ok(());
    }
    Err(Failure::failed(format!("mooncrate cannot run here without: {}", lacking.join(", "))))
}

fn lacking(findings: &[Finding]) -> Vec<&'static str> {
    let missing = findings.iter().filter(|one| one.required && one.grade == Grade::Missing);
    missing.map(|one| one.name).collect()
}

/// For programs.
pub(crate) fn json(findings: &[Finding]) -> Value {
    let rows = findings.iter().map(|one| {
        json!({
            "name": one.name,
            "grade": one.grade.word(),
            "found": one.found,
            "why": one.why,
            "fix": one.fix,
            "required": one.required,
        })
    });
    let fit = lacking(findings).is_empty();
    json!({ "fit": fit, "findings": rows.collect::<Vec<_>>() })
}

/// For people: a sentence, then what is not as it should be with its remedy, then the rest.
pub(crate) fn screen(findings: &[Finding]) -> String {
    let (good, rest): (Vec<&Finding>, Vec<&Finding>) =
        findings.iter().partition(|one| one.grade == Grade::Ok);
    let lacking = lacking(findings);
    let verdict = match lacking.as_slice() {
        [] if rest.is_empty() => "This machine has all that mooncrate can use.".to_owned(),
        [] => {
            let things = counted(rest.len() as u64, "thing");
            format!("This machine can run mooncrate; {things} could be better.")
        }
        names => format!("Mooncrate cannot run here without: {}.", names.join(", ")),
    };
    let mut lines = vec![verdict, String::new()];
    for one in rest {
        lines.push(format!("{:<16} {:<19} {}", one.grade.word(), one.name, one.found));
        lines.push(format!("{:<16} {}", "", one.why));
        if let Some(fix) = &one.fix {
            lines.push(format!("{:<16} -> {fix}", ""));
        }
        lines.push(String::new());
    }
    for one in good {
        lines.push(format!("{:<16} {:<19} {}", one.grade.word(), one.name, one.found));
    }
    lines.join("\n")
}

#[cfg(test)]
#[path = "doctor/tests.rs"]
mod tests;
