//! All that is printed. Stdout holds the report, or the one line that a peer says; progress goes to
//! stderr.
#![expect(clippy::print_stdout, reason = "the only file that prints the report")]

use crate::report::{Report, Table};
use anyhow::{Context, Result};
use bytesize::ByteSize;
use comfy_table::{CellAlignment, presets};
use std::io::{self, Write};
use std::path::Path;

/// A number of bytes for people.
pub(crate) fn bytes(count: u64) -> String {
    ByteSize(count).display().iec().to_string()
}

/// A number of things for people: 10 k, 1 M.
pub(crate) fn count(things: u64) -> String {
    match things {
        n if n >= 1_000_000 && n.is_multiple_of(1_000_000) => format!("{} M", n / 1_000_000),
        n if n >= 1000 && n.is_multiple_of(1000) => format!("{} k", n / 1000),
        n => n.to_string(),
    }
}

/// The whole report.
pub(crate) fn print(report: &Report) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}.", report.effort)?;
    for table in &report.tables {
        writeln!(out, "\n== {}", table.title)?;
        writeln!(out, "{}", report.machine.line())?;
        for note in &table.notes {
            writeln!(out, "- {note}")?;
        }
        writeln!(out, "{}", shown(table))?;
    }
    writeln!(out, "\n{}", report.summary())?;
    Ok(())
}

fn shown(table: &Table) -> comfy_table::Table {
    let header = table.header();
    let mut shown = comfy_table::Table::new();
    shown.load_style(presets::NOTHING).set_header(header.clone()).add_rows(table.cells());
    for column in 1..header.len() {
        if let Some(column) = shown.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    shown
}

/// What a peer says when it is ready. Whoever started it reads this one line.
pub(crate) fn say(line: &str) -> Result<()> {
    println!("{line}");
    Ok(io::stdout().flush()?)
}

/// Progress and failures.
pub(crate) fn note(line: &str) {
    eprintln!("{line}");
}

/// Writes a file whole.
pub(crate) fn save(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_short() {
        assert_eq!(count(500), "500");
        assert_eq!(count(10_000), "10 k");
        assert_eq!(count(10_000_000), "10 M");
        assert_eq!(count(65_536), "65536");
        assert_eq!(bytes(4096), "4.0 KiB");
    }
}
