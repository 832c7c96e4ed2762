//! The walks of `ARCHITECTURE.md`: numbered lists of stops, each a file and a function that stands in it.
//!
//! ```text
//! ## Walk: one value, from Python to another process
//! 1. `crates/python/src/methods.rs` `put`: takes the key and a buffer.
//! ```
//!
//! What must stay true: a reader who follows a walk finds every file and every function by its name. Whether one stop
//! calls the next is for people to read; the numbers follow each other, so a stop that is taken out shows.
//!
//! The tables of the page are complete, too: each crate has a row, and each public trait of a crate that ships is named.

use crate::tree::File;

const PAGE: &str = "ARCHITECTURE.md";
const HEADING: &str = "## Walk: ";
/// Crates that do not ship: their traits serve tests and figures.
const PROOF: &[&str] = &["bench", "check", "sim", "xtask"];

/// Compares the walks with the tree.
pub(crate) fn check(files: &[File], findings: &mut Vec<String>) {
    let Some(page) = files.iter().find(|file| file.path == PAGE) else { return };
    tables(&page.text, files, findings);
    // Stops of the walk that the line belongs to; `None`: the line is in no walk.
    let mut stops: Option<usize> = None;
    for (number, line) in (1..).zip(page.text.lines()) {
        if line.starts_with("## ") {
            stops = line.starts_with(HEADING).then_some(0);
            continue;
        }
        let Some(count) = &mut stops else { continue };
        let Some((digits, rest)) = line.split_once(". ") else { continue };
        let Ok(found) = digits.parse::<usize>() else { continue };
        *count += 1;
        if found != *count {
            findings.push(format!("{PAGE}:{number}: stop {found} of this walk is number {count}"));
        }
        let Some((path, name)) = stop(rest) else {
            findings.push(format!(
                "{PAGE}:{number}: a stop is a file, a function and a sentence: `path` `name`: …"
            ));
            continue;
        };
        match files.iter().find(|file| file.path == path) {
            None => findings.push(format!("{PAGE}:{number}: there is no file `{path}`")),
            Some(file) if !defines(file, name) => {
                findings.push(format!("{PAGE}:{number}: `{path}` has no function `{name}`"));
            }
            Some(_) => {}
        }
    }
}

/// Compares the tables of crates and traits with the tree.
fn tables(page: &str, files: &[File], findings: &mut Vec<String>) {
    for file in files {
        let Some(folder) = file.crate_folder() else { continue };
        let manifest = file.path == format!("crates/{folder}/Cargo.toml");
        if manifest && !page.contains(&format!("\n| `{folder}` | ")) {
            findings.push(format!("{PAGE}: the map has no row for the crate `{folder}`"));
        }
        let ships =
            file.path.starts_with(&format!("crates/{folder}/src/")) && !PROOF.contains(&folder);
        if !ships || !file.ends_with("rs") {
            continue;
        }
        // Indented ones are sealed: nothing outside of their module can name them.
        for line in file.text.lines().filter_map(|line| line.strip_prefix("pub trait ")) {
            let end = line.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(line.len());
            let name = &line[..end];
            if !page.contains(&format!("`{name}`")) {
                findings.push(format!(
                    "{PAGE}: the public trait `{name}` of {} is not named",
                    file.path
                ));
            }
        }
    }
}

/// File and function of "`path` `name`: a sentence".
fn stop(text: &str) -> Option<(&str, &str)> {
    let (path, rest) = text.strip_prefix('`')?.split_once("` `")?;
    let (name, sentence) = rest.split_once("`: ")?;
    (!sentence.is_empty()).then_some((path, name))
}

/// Whether a function of this name stands in the file: `fn` in Rust, `def` in Python, any name before a parenthesis
/// elsewhere (CUDA).
fn defines(file: &File, name: &str) -> bool {
    let keyword = match file.path.rsplit_once('.').map(|(_, extension)| extension) {
        Some("rs") => "fn ",
        Some("py") => "def ",
        _ => "",
    };
    let wanted = format!("{keyword}{name}");
    file.text.match_indices(&wanted).any(|(at, _)| {
        let before = file.text[..at].chars().next_back();
        let alone = !before.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
        alone && file.text[at + wanted.len()..].starts_with(['(', '<'])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "# Architecture\n\n## Walk: one value\n\n";

    fn findings(page: &str) -> Vec<String> {
        let file = |path: &str, text: &str| File { path: path.into(), text: text.into() };
        let files = [
            file(PAGE, page),
            file("a.rs", "pub(crate) fn put<'a>(x: u8) {}\nfn get() {}\n"),
            file("b.py", "class X:\n    def put(self):\n"),
            file("c.cu", "__global__ void push(int x) {}\n"),
        ];
        let mut findings = Vec::new();
        check(&files, &mut findings);
        findings
    }

    #[test]
    fn stops_that_exist_pass() {
        let page = "1. `b.py` `put`: asks.\n2. `a.rs` `put`: puts,\n   and more.\n3. `c.cu` `push`: pushes.\n";
        assert_eq!(findings(&format!("{HEAD}{page}")), Vec::<String>::new());
        let other = "## Rules\n1. One rule.\n";
        assert_eq!(
            findings(&format!("{HEAD}1. `a.rs` `get`: gets.\n{other}")),
            Vec::<String>::new()
        );
    }

    #[test]
    fn what_is_not_there_is_found() {
        let one = |line: &str| {
            let found = findings(&format!("{HEAD}{line}\n"));
            assert_eq!(found.len(), 1, "{found:?}");
            found.into_iter().next().unwrap()
        };
        assert!(one("1. `d.rs` `put`: puts.").ends_with("there is no file `d.rs`"));
        assert!(one("1. `a.rs` `ge`: gets.").ends_with("`a.rs` has no function `ge`"));
        assert!(one("1. `b.py` `get`: gets.").ends_with("`b.py` has no function `get`"));
        assert!(one("2. `a.rs` `get`: gets.").ends_with("stop 2 of this walk is number 1"));
        for line in ["1. `a.rs`: gets.", "1. a.rs `get`: gets.", "1. `a.rs` `get`: "] {
            assert!(one(line).contains("a stop is a file"), "{line}");
        }
    }

    #[test]
    fn the_tables_are_complete() {
        let file = |path: &str, text: &str| File { path: path.into(), text: text.into() };
        let code = "pub trait Disk: Send {\n    pub trait Sealed {}\n}\n";
        let check = |page: &str| {
            let files = [
                file(PAGE, page),
                file("crates/ssd/Cargo.toml", ""),
                file("crates/ssd/src/disk.rs", code),
                file("crates/ssd/tests/disk.rs", "pub trait Other {}\n"),
                file("crates/sim/src/lib.rs", "pub trait Other {}\n"),
            ];
            let mut findings = Vec::new();
            check(&files, &mut findings);
            findings
        };
        assert_eq!(check("\n| `ssd` | records |\n`Disk`\n"), Vec::<String>::new());
        assert_eq!(
            check("`ssd`"),
            [
                "ARCHITECTURE.md: the map has no row for the crate `ssd`",
                "ARCHITECTURE.md: the public trait `Disk` of crates/ssd/src/disk.rs is not named",
            ]
        );
    }
}
