//! `tidy`: rules about files that no compiler knows.
//!
//! What must stay true: a rule is about the tree that a fresh clone shows, and a finding names the
//! line and the way out. The forbidden words are spelled in two halves here, so that this file
//! passes its own rules.

use crate::tree::{self, File};
use crate::{codes, front, links, metadata, pages, proof, records, runtime, walk};
use anyhow::Result;
use std::path::Path;

/// Lines of the longest file. The aim is 300; beyond 600 think again; here it is over.
const LINES_MAX: usize = 700;

/// Crates that may hold unsafe code: they touch memory, the kernel or another language.
const MAY_BE_UNSAFE: &[&str] =
    &["mem", "gpu", "heap", "transfer", "ssd", "paged", "ep", "nano", "python"];

const FORBID: &str = "#![forbid(unsafe_code)]";

/// Marks of unfinished work.
const UNFINISHED_CALLS: &[&str] = &[concat!("to", "do!("), concat!("unimple", "mented!(")];
const UNFINISHED_WORDS: &[&str] = &[concat!("FIX", "ME"), concat!("XX", "X")];

/// Where only one machine has files.
const MACHINE_PATHS: &[&str] =
    &[concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/wo", "rk/")];

/// What the host names of package registries and their mirrors contain.
const REGISTRIES: &[&str] = &["crates", "pypi", "npmjs"];

/// All findings of all rules.
pub(crate) fn check(root: &Path) -> Result<Vec<String>> {
    let files = tree::files(root)?;
    let mut findings = Vec::new();
    for file in &files {
        if file.ends_with("rs") {
            opening(file, &mut findings);
            length(file, &mut findings);
            ignored_tests(file, &mut findings);
            unsafe_code(file, &mut findings);
            runtime::check(file, &mut findings);
        }
        if is_code(file) {
            unfinished(file, &mut findings);
        }
        machine_paths(file, &mut findings);
        metadata::check(file, &mut findings);
        if file.ends_with("md") {
            links::check(root, file, &mut findings);
        }
    }
    records::check(&files, &mut findings);
    codes::check(&files, &mut findings);
    pages::check(&files, &mut findings);
    front::check(&files, &mut findings);
    proof::check(&files, &mut findings);
    walk::check(&files, &mut findings);
    Ok(findings)
}

fn is_code(file: &File) -> bool {
    ["rs", "py", "pyi", "cu", "cuh", "sh", "js", "toml"].iter().any(|e| file.ends_with(e))
        || matches!(file.path.as_str(), "dev" | ".ci/run")
}

fn numbered(file: &File) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(file.text.lines())
}

/// A file says what it is before it does anything; only attributes may come first.
fn opening(file: &File, findings: &mut Vec<String>) {
    let mut lines = file.text.lines().filter(|line| !line.trim().is_empty());
    let first = lines.find(|line| !line.starts_with("#!["));
    if !first.is_some_and(|line| line.starts_with("//!")) {
        findings.push(format!(
            "{}:1: opens without `//!`; say what the file is, why, and what must stay true",
            file.path
        ));
    }
}

fn length(file: &File, findings: &mut Vec<String>) {
    let lines = file.text.lines().count();
    if lines > LINES_MAX {
        findings.push(format!(
            "{}: {lines} lines, at most {LINES_MAX}; cut it along its ideas",
            file.path
        ));
    }
}

fn ignored_tests(file: &File, findings: &mut Vec<String>) {
    for (number, line) in numbered(file) {
        let Some((_, rest)) = line.split_once(concat!("#[ign", "ore")) else { continue };
        let reason = rest.trim_start().strip_prefix('=').map(str::trim_start);
        if !reason.is_some_and(|reason| reason.starts_with('"') && !reason.starts_with("\"\"")) {
            findings.push(format!(
                "{}:{number}: a test is skipped without a reason; write it as `= \"reason\"`",
                file.path
            ));
        }
    }
}

/// The compiler enforces the attribute; what it cannot see from there (tests, examples and
/// benches are crates of their own) is searched.
fn unsafe_code(file: &File, findings: &mut Vec<String>) {
    let Some(folder) = file.crate_folder() else { return };
    if MAY_BE_UNSAFE.contains(&folder) {
        return;
    }
    let inside = file.path.split_once(&format!("crates/{folder}/")).map_or("", |(_, rest)| rest);
    let is_root = matches!(inside, "src/lib.rs" | "src/main.rs") || inside.starts_with("src/bin/");
    if is_root && !file.text.lines().any(|line| line.trim() == FORBID) {
        findings.push(format!("{}: lacks `{FORBID}`", file.path));
    }
    for (number, line) in numbered(file) {
        if opens_unsafe(line) {
            findings.push(format!(
                "{}:{number}: unsafe code; it lives in {} only",
                file.path,
                MAY_BE_UNSAFE.join(", ")
            ));
        }
    }
}

/// Whether the keyword stands before something that it makes unsafe; prose about it does not.
fn opens_unsafe(line: &str) -> bool {
    let code = line.split_once("//").map_or(line, |(code, _)| code);
    words(code, concat!("uns", "afe")).any(|(_, rest)| {
        let rest = rest.trim_start();
        rest.starts_with('{')
            || rest.starts_with('(')
            || ["fn ", "impl", "extern", "trait "].iter().any(|next| rest.starts_with(next))
    })
}

fn unfinished(file: &File, findings: &mut Vec<String>) {
    for (number, line) in numbered(file) {
        let call = UNFINISHED_CALLS.iter().find(|call| line.contains(**call));
        let word = UNFINISHED_WORDS.iter().find(|word| words(line, word).next().is_some());
        if let Some(mark) = call.or(word) {
            findings.push(format!(
                "{}:{number}: `{mark}`: finish it, or write an issue and take the mark out",
                file.path
            ));
        }
    }
}

fn machine_paths(file: &File, findings: &mut Vec<String>) {
    for (number, line) in numbered(file) {
        if let Some(path) = MACHINE_PATHS.iter().find(|path| starts_path(line, path)) {
            findings.push(format!(
                "{}:{number}: `{path}…` exists on one machine only; use a relative path",
                file.path
            ));
        }
        if let Some(host) = registry_host(line) {
            findings.push(format!(
                "{}:{number}: `{host}` is a package registry; name the package, not the place",
                file.path
            ));
        }
    }
}

/// Whether an absolute path starts so; `docs` before it makes it a relative one.
fn starts_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
    })
}

fn registry_host(line: &str) -> Option<&str> {
    line.match_indices("://").find_map(|(at, slashes)| {
        let rest = &line[at + slashes.len()..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '.' && c != '-');
        let host = &rest[..end.unwrap_or(rest.len())];
        REGISTRIES.iter().any(|name| host.contains(name)).then_some(host)
    })
}

/// Where `word` stands as a whole word: its place and what follows it.
fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.match_indices(word).filter_map(move |(at, _)| {
        let rest = &text[at + word.len()..];
        let alone = !text[..at].ends_with(is_part) && !rest.starts_with(is_part);
        alone.then_some((at, rest))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::fixture::tree;

    const KEYWORD: &str = concat!("uns", "afe");

    /// The findings about one file of an otherwise empty tree.
    fn findings(path: &str, text: &str) -> Vec<String> {
        check(tree(&[(path, text)]).path()).unwrap()
    }

    fn one(path: &str, text: &str) -> String {
        let found = findings(path, text);
        assert_eq!(found.len(), 1, "{found:?}");
        found.into_iter().next().unwrap()
    }

    fn none(path: &str, text: &str) {
        assert_eq!(findings(path, text), Vec::<String>::new());
    }

    #[test]
    fn a_file_opens_with_what_it_is() {
        none("crates/mem/src/x.rs", "//! x\n");
        none("crates/mem/tests/x.rs", "#![cfg(loom)]\n\n//! x\n");
        assert!(one("crates/mem/src/x.rs", "use x;\n//! x\n").contains("x.rs:1: opens without"));
        assert!(one("crates/mem/src/x.rs", "").contains("opens without"));
        assert!(one("crates/mem/src/x.rs", "/// x\n").contains("opens without"));
    }

    #[test]
    fn a_file_is_one_idea_long() {
        none("fuzz/x.rs", &format!("//! x\n{}", "\n".repeat(LINES_MAX - 1)));
        let long = format!("//! x\n{}", "\n".repeat(LINES_MAX));
        assert!(one("fuzz/x.rs", &long).contains("701 lines, at most 700"));
    }

    #[test]
    fn unfinished_marks_are_found() {
        for mark in UNFINISHED_CALLS {
            assert!(one("fuzz/x.rs", &format!("//! x\n    {mark});")).contains("x.rs:2: `"));
        }
        for mark in UNFINISHED_WORDS {
            assert!(one("dev", &format!("# {mark}: later")).contains("dev:1: `"));
            none("dev", &format!("mktemp /tmp/dev.{mark}{mark}"));
            none("notes.md", mark);
        }
    }

    #[test]
    fn a_skipped_test_has_a_reason() {
        let skip = |reason: &str| format!("//! x\n{}{reason}]\n", concat!("#[ign", "ore"));
        none("fuzz/x.rs", &skip(" = \"needs a GPU\""));
        assert!(one("fuzz/x.rs", &skip("")).contains("x.rs:2: a test is skipped"));
        assert!(one("fuzz/x.rs", &skip(" = \"\"")).contains("a test is skipped"));
    }

    #[test]
    fn machine_paths_and_registries_are_found() {
        for path in MACHINE_PATHS {
            assert!(one("README.md", &format!("see {path}x")).contains("README.md:1: `/"));
            assert!(one("Cargo.toml", &format!("path = \"{path}x\"")).contains("Cargo.toml:1"));
            none("README.md", &format!("see docs{path}x"));
        }
        for host in ["index.crates.io", "crates.io", "mirror-pypi.example", "registry.npmjs.org"] {
            let found = one("x.toml", &format!("a = 1\nurl = \"https:{}{host}/x\"", "//"));
            assert!(found.starts_with(&format!("x.toml:2: `{host}`")), "{found}");
        }
        none("Cargo.lock", "source = \"registry+https://github.com/rust-lang/crates.io-index\"");
    }

    #[test]
    fn unsafe_code_stays_where_it_may_be() {
        let block = format!("//! x\nlet x = {KEYWORD} {{ y }};\n");
        none("crates/mem/src/x.rs", &block);
        assert!(one("crates/core/src/x.rs", &block).contains("x.rs:2: unsafe code; it lives in"));
        assert!(one("crates/core/tests/x.rs", &block).contains("x.rs:2"));
        for item in ["fn x()", "impl Send for X {}", "extern \"C\" {}", "trait X {}"] {
            assert!(opens_unsafe(&format!("pub {KEYWORD} {item}")), "{item}");
        }
        assert!(opens_unsafe(&format!("#[{KEYWORD}(no_mangle)]")));
        assert!(!opens_unsafe(&format!("// {KEYWORD} {{ in prose }}")));
        assert!(!opens_unsafe(&format!("the word {KEYWORD} and {KEYWORD}_code(x)")));
    }

    #[test]
    fn roots_of_the_other_crates_forbid_it() {
        for path in ["src/lib.rs", "src/main.rs", "src/bin/tool.rs"] {
            let path = format!("crates/wire/{path}");
            assert!(one(&path, "//! x\n").contains("lacks `#![forbid"));
            none(&path, &format!("//! x\n{FORBID}\n"));
        }
        none("crates/mem/src/lib.rs", "//! x\n");
        none("crates/wire/src/frame.rs", "//! x\n");
    }
}
