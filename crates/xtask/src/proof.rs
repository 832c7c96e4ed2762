//! `docs/proof.md`: one table of claims, commands and last figures, whose cells are short enough to be read as a table.

use crate::tree::File;

const PAGE: &str = "docs/proof.md";
const HEADER: &str = "| claim | command | last figure |";
/// Characters of a cell.
const CELL_MAX: usize = 160;

/// Judges the page.
pub(crate) fn check(files: &[File], findings: &mut Vec<String>) {
    let Some(page) = files.iter().find(|file| file.path == PAGE) else { return };
    let rows = page.text.lines().enumerate().filter(|(_, line)| line.starts_with('|'));
    let mut rows = rows.map(|(at, line)| (at + 1, line)).peekable();
    if rows.peek().is_none_or(|(_, line)| *line != HEADER) {
        findings.push(format!("{PAGE}: its table begins with `{HEADER}`"));
    }
    let mut last = None;
    for (number, row) in rows {
        if last.is_some_and(|last| last + 1 != number) {
            findings.push(format!("{PAGE}:{number}: a second table; the page has one"));
        }
        last = Some(number);
        let cells = cells(row);
        if cells.len() != 3 || cells.iter().any(|cell| cell.is_empty()) {
            findings.push(format!("{PAGE}:{number}: a row is a claim, a command and a figure"));
        }
        for cell in cells.iter().filter(|cell| cell.chars().count() > CELL_MAX) {
            let (count, begins) = (cell.chars().count(), cell.chars().take(30).collect::<String>());
            findings.push(format!(
                "{PAGE}:{number}: the cell `{begins}…` has {count} characters, at most {CELL_MAX}; \
                 explain it on the page that it belongs to"
            ));
        }
    }
}

fn cells(row: &str) -> Vec<&str> {
    let inside = row.strip_prefix('|').unwrap_or(row);
    inside.strip_suffix('|').unwrap_or(inside).split('|').map(str::trim).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(rows: &str) -> Vec<String> {
        let text = format!("# Proof\n\n{HEADER}\n|---|---|---|\n{rows}");
        let mut findings = Vec::new();
        check(&[File { path: PAGE.into(), text }], &mut findings);
        findings
    }

    #[test]
    fn short_cells_pass() {
        let full = "é".repeat(CELL_MAX);
        let rows =
            format!("| it works | `./dev test` | 3 tests; A, 351dde8 |\n| {full} | b | c |\n");
        assert_eq!(findings(&rows), Vec::<String>::new());
    }

    #[test]
    fn long_cells_missing_cells_and_second_tables_are_found() {
        let long = "x".repeat(CELL_MAX + 1);
        let found = findings(&format!("| a | b | c |\n| a | b | {long} |\n"));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("docs/proof.md:6: the cell `xxx"), "{found:?}");
        assert!(found[0].contains("161 characters, at most 160"), "{found:?}");
        for row in ["| a | b |\n", "| a | | c |\n", "| a | b | c | d |\n"] {
            assert!(findings(row)[0].contains("a claim, a command and a figure"), "{row}");
        }
        let two = findings("| a | b | c |\n\ntext\n| a | b | c |\n");
        assert!(two[0].starts_with("docs/proof.md:8: a second table"), "{two:?}");
        let page = File { path: PAGE.into(), text: "text alone\n".into() };
        let mut found = Vec::new();
        check(&[page], &mut found);
        assert!(found[0].contains("begins with"), "{found:?}");
    }
}
