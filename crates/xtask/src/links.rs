//! Links in Markdown lead to files that exist. The web and headings are not followed.

use crate::tree::File;
use std::path::Path;

/// Finds the links of one page that lead nowhere.
pub(crate) fn check(root: &Path, page: &File, findings: &mut Vec<String>) {
    let folder = Path::new(&page.path).parent().unwrap_or(Path::new(""));
    for (number, target) in targets(&page.text) {
        let path = target.split('#').next().unwrap_or("");
        if path.is_empty() {
            continue;
        }
        // Hosts that show Markdown take a leading slash as the root of the repository.
        let full = match path.strip_prefix('/') {
            Some(path) => root.join(path),
            None => root.join(folder).join(path),
        };
        if !full.exists() {
            findings.push(format!("{}:{number}: the link to `{target}` leads nowhere", page.path));
        }
    }
}

/// The links to files, with their lines, outside code.
pub(crate) fn targets(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut fence: Option<&str> = None;
    for (number, line) in (1..).zip(text.lines()) {
        let start = line.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|mark| start.starts_with(mark));
        match (fence, mark) {
            (None, Some(_)) => fence = mark,
            (Some(open), Some(close)) if open == close => fence = None,
            (Some(_), _) => {}
            (None, None) => {
                let parts = outside_code(line);
                found.extend(parts.into_iter().filter(|t| is_file(t)).map(|t| (number, t)));
            }
        }
    }
    found
}

/// The targets of `[text](target)` and `[text]: target` in one line.
fn outside_code(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let definition = line.starts_with('[').then(|| line.split_once("]: ")).flatten();
    if let Some((_, target)) = definition {
        found.extend(target.split_whitespace().next());
    }
    // A code span hides what is in it, but the text of a link may be code: only a target that
    // starts while no span is open counts.
    let mut in_code = false;
    let mut rest = line;
    while let Some(at) = rest.find(['`', ']']) {
        let (mark, after) = rest[at..].split_at(1);
        rest = after;
        if mark == "`" {
            in_code = !in_code;
        } else if !in_code && let Some(target) = after.strip_prefix('(') {
            let inside = target.split(')').next().unwrap_or("");
            found.extend(inside.split_whitespace().next());
        }
    }
    found.into_iter().map(|target| target.trim_matches(['<', '>'])).collect()
}

/// Whether the target is meant as a path: no address, and no path of an item in rustdoc.
fn is_file(target: &str) -> bool {
    !target.contains("://") && !target.contains("::") && !target.starts_with("mailto:")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{files, fixture::tree};

    fn findings(text: &str) -> Vec<String> {
        let root = tree(&[("docs/page.md", text), ("docs/other.md", ""), ("README.md", "")]);
        let mut findings = Vec::new();
        for file in files(root.path()).unwrap() {
            check(root.path(), &file, &mut findings);
        }
        findings
    }

    #[test]
    fn links_to_files_and_folders_are_followed() {
        let text = "[a](other.md) [b](../README.md#top) [c](/docs/) [d](#here) [`e`](other.md)\n\
                    ![f](<other.md> \"title\")\n[g]: other.md\n";
        assert_eq!(findings(text), Vec::<String>::new());
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let text = "x\n[a](none.md) and [`b`](../docs/none.md#x)\n[c]: gone.md\n[d](README.md)\n";
        assert_eq!(
            findings(text),
            [
                "docs/page.md:2: the link to `none.md` leads nowhere",
                "docs/page.md:2: the link to `../docs/none.md#x` leads nowhere",
                "docs/page.md:3: the link to `gone.md` leads nowhere",
                "docs/page.md:4: the link to `README.md` leads nowhere",
            ]
        );
    }

    #[test]
    fn the_web_rustdoc_and_code_are_left_alone() {
        let text = "[a](https://example.org/x) [b](crate::Key) [c](mailto:a@b.c) `[d](none.md)`\n\
                    ```text\n[e](none.md)\n~~~\n[f](none.md)\n```\n[g](other.md)\n";
        assert_eq!(findings(text), Vec::<String>::new());
    }
}
