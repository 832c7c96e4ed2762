//! The front page: `README.md` is short, and a test runs each of its programs exactly as it stands there.
//!
//! A Python program begins with a comment that names it, `# store.py: …`. `tests/python/test_readme.py` runs every
//! Python program of the page and compares what it prints with what `readme.py` beside it has under that name. A Rust program
//! runs as a doctest of the crate that includes the page. So a program without a test is one whose name the Python
//! test does not know, or a Rust block that rustdoc is told to leave alone.

use crate::tree::File;

const PAGE: &str = "README.md";
const LINES_MAX: usize = 120;
/// What the Python programs print, by their names in quotes; the test runs those and no others.
const PYTHON_TEST: &str = "tests/python/readme.py";
/// Runs the Rust programs, by this line.
const RUST_TEST: &str = "crates/store/src/lib.rs";
const RUST_INCLUDE: &str = "#[doc = include_str!(\"../../../README.md\")]";

/// A block of code: where it begins, its language with all that stands behind it, its first line.
struct Block<'a> {
    number: usize,
    language: &'a str,
    first: &'a str,
}

/// Compares the page with the tests.
pub(crate) fn check(files: &[File], findings: &mut Vec<String>) {
    let find = |path: &str| files.iter().find(|file| file.path == path);
    let Some(page) = find(PAGE) else { return };
    let lines = page.text.lines().count();
    if lines > LINES_MAX {
        findings
            .push(format!("{PAGE}: {lines} lines, at most {LINES_MAX}; move details below docs/"));
    }
    let python = find(PYTHON_TEST).map_or("", |file| file.text.as_str());
    let rust = find(RUST_TEST).is_some_and(|file| file.text.contains(RUST_INCLUDE));
    let mut names: Vec<&str> = Vec::new();
    for Block { number, language, first } in blocks(&page.text) {
        match language {
            "python" => {
                let Some(name) = name(first) else {
                    findings.push(format!(
                        "{PAGE}:{number}: a program without a name; begin with `# NAME.py: what it shows`"
                    ));
                    continue;
                };
                if names.contains(&name) {
                    findings.push(format!("{PAGE}:{number}: `{name}` names another program already"));
                }
                names.push(name);
                if !python.contains(&format!("\"{name}\"")) {
                    findings.push(format!(
                        "{PAGE}:{number}: no test runs `{name}`; add what it prints to {PYTHON_TEST}"
                    ));
                }
            }
            "rust" if !rust => findings.push(format!(
                "{PAGE}:{number}: no test runs this program; {RUST_TEST} lacks `{RUST_INCLUDE}`"
            )),
            "rust" | "console" | "text" => {}
            other => findings.push(format!(
                "{PAGE}:{number}: no test runs a block of `{other}`; use python, rust, console or text"
            )),
        }
    }
}

/// `# store.py: values by key` is called `store.py`.
fn name(first: &str) -> Option<&str> {
    let (name, _) = first.strip_prefix("# ")?.split_once(": ")?;
    let stem = name.strip_suffix(".py")?;
    stem.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_').then_some(name)
}

fn blocks(text: &str) -> Vec<Block<'_>> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    let mut open = false;
    for (at, line) in lines.iter().enumerate() {
        let Some(language) = line.trim_start().strip_prefix("```") else { continue };
        if !open {
            let first = lines.get(at + 1).copied().unwrap_or("");
            found.push(Block { number: at + 1, language, first });
        }
        open = !open;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(page: &str) -> Vec<String> {
        let file = |path: &str, text: &str| File { path: path.into(), text: text.into() };
        let files = [
            file(PAGE, page),
            file(PYTHON_TEST, "PRINTS = {\"store.py\": \"\"}"),
            file(RUST_TEST, &format!("{RUST_INCLUDE}\nstruct Readme;\n")),
        ];
        let mut findings = Vec::new();
        check(&files, &mut findings);
        findings
    }

    #[test]
    fn programs_that_tests_run_pass() {
        let page = "```text\npicture\n```\n```python\n# store.py: values\nprint()\n```\n\
                    ```rust\nfn main() {}\n```\n```console\n$ ls\n```\n";
        assert_eq!(findings(page), Vec::<String>::new());
    }

    #[test]
    fn a_program_that_no_test_runs_is_refused() {
        let found = findings("x\n```python\n# other.py: values\nprint()\n```\n");
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("README.md:2: no test runs `other.py`"), "{found:?}");
        for first in ["print()", "# store: values", "# a b.py: values", "# store.py"] {
            let found = findings(&format!("```python\n{first}\n```\n"));
            assert!(found[0].contains("a program without a name"), "{found:?}");
        }
        let found = findings("```rust,ignore\nfn main() {}\n```\n");
        assert!(found[0].contains("no test runs a block of `rust,ignore`"), "{found:?}");
        let twice = "```python\n# store.py: values\n```\n".repeat(2);
        assert!(findings(&twice)[0].contains("README.md:4: `store.py` names another"));
    }

    #[test]
    fn rust_runs_only_where_the_page_is_included() {
        let page = File { path: PAGE.into(), text: "```rust\nfn main() {}\n```\n".into() };
        let mut findings = Vec::new();
        check(&[page], &mut findings);
        assert!(findings[0].contains("no test runs this program"), "{findings:?}");
    }

    #[test]
    fn the_page_is_short() {
        assert_eq!(findings(&"\n".repeat(LINES_MAX)), Vec::<String>::new());
        assert!(findings(&"\n".repeat(LINES_MAX + 1))[0].contains("121 lines, at most 120"));
    }
}
