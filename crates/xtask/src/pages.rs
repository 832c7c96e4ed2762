//! Pages below `docs/`: each stands in `docs/README.md`, so that a reader finds it.
//!
//! The index has one line for each page. Decision records have an index of their own, which `records` compares with
//! them; here the link to that index is enough.

use crate::links::targets;
use crate::tree::File;

const FOLDER: &str = "docs/";
const INDEX: &str = "docs/README.md";
const DECISIONS: &str = "docs/decisions/";

/// Compares the pages with their index.
pub(crate) fn check(files: &[File], findings: &mut Vec<String>) {
    let index = files.iter().find(|file| file.path == INDEX);
    let linked: Vec<(usize, &str)> = index.map(|index| targets(&index.text)).unwrap_or_default();
    for file in files.iter().filter(|file| file.ends_with("md") && file.path != INDEX) {
        let Some(name) = file.path.strip_prefix(FOLDER) else { continue };
        let is_record = file.path.starts_with(DECISIONS) && name != "decisions/README.md";
        let is_linked = linked.iter().any(|(_, target)| *target == name);
        if !is_record && !is_linked {
            findings.push(format!("{}: is missing in {INDEX}; add a line with a link", file.path));
        }
    }
    for (at, (line, target)) in linked.iter().enumerate() {
        if linked[..at].iter().any(|(_, earlier)| earlier == target) {
            findings.push(format!("{INDEX}:{line}: `{target}` has a line already"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let file =
            |(path, text): &(&str, &str)| File { path: (*path).into(), text: (*text).into() };
        let files: Vec<File> = files.iter().map(file).collect();
        let mut findings = Vec::new();
        check(&files, &mut findings);
        findings
    }

    #[test]
    fn pages_in_the_index_pass() {
        let index = "[a](a.md)\n[b](flows/b.md)\n[c](decisions/README.md)\n[front](../README.md)\n";
        let found = findings(&[
            ("docs/README.md", index),
            ("docs/a.md", ""),
            ("docs/flows/b.md", ""),
            ("docs/decisions/README.md", ""),
            ("docs/decisions/0001-word.md", ""),
            ("docs/plot.svg", ""),
            ("README.md", ""),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn a_page_that_is_not_in_the_index_is_found() {
        let missing = "docs/a.md: is missing in docs/README.md; add a line with a link";
        assert_eq!(findings(&[("docs/a.md", "")]), [missing]);
        assert_eq!(findings(&[("docs/README.md", "`a.md`"), ("docs/a.md", "")]), [missing]);
        let twice = findings(&[("docs/README.md", "[a](a.md)\n[a](a.md)\n"), ("docs/a.md", "")]);
        assert_eq!(twice, ["docs/README.md:2: `a.md` has a line already"]);
    }
}
