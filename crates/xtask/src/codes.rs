//! Codes of invariants: whatever is cited in comments, strings and documents stands in `docs/invariants.md`.
//!
//! A code is one of the letters of that page and a number of one or two digits. In code only comments and
//! strings are read, so that names of types and constants are none. What looks like a code but is part of a
//! longer word, a flag, an escape or a path of Rust is none either.

use crate::tree::File;
use std::collections::BTreeSet;

/// Where codes are defined: a row of a table each, which begins with the code.
const PAGE: &str = "docs/invariants.md";

/// First letters: contract, global, master, ssd, nano, expert exchange, paged blocks, rules.
const LETTERS: &[u8] = b"CGMSNEBR";

/// Compares what is cited with what is defined.
pub(crate) fn check(files: &[File], findings: &mut Vec<String>) {
    let mut defined = BTreeSet::new();
    for (number, code) in files.iter().filter(|file| file.path == PAGE).flat_map(definitions) {
        if !defined.insert(code) {
            findings.push(format!("{PAGE}:{number}: {code} has a row already"));
        }
    }
    for file in files {
        let mut in_docstring = false;
        for (number, line) in (1..).zip(file.text.lines()) {
            let Some(prose) = prose(file, line, &mut in_docstring) else { continue };
            for code in prose.into_iter().flat_map(cited).filter(|code| !defined.contains(code)) {
                findings.push(format!(
                    "{}:{number}: {code} is cited, but {PAGE} has no row for it",
                    file.path
                ));
            }
        }
    }
}

fn definitions(page: &File) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(page.text.lines()).filter_map(|(number, line)| {
        let (first, _) = line.strip_prefix("| ")?.split_once(" |")?;
        cited(first).next().filter(|code| *code == first).map(|code| (number, code))
    })
}

/// The parts of a line that are prose; `None` for files that cite nothing.
fn prose<'a>(file: &File, line: &'a str, in_docstring: &mut bool) -> Option<Vec<&'a str>> {
    let comment = if file.ends_with("md") {
        return Some(vec![line]);
    } else if file.ends_with("rs") || file.ends_with("proto") {
        "//"
    } else if file.ends_with("py") || file.ends_with("pyi") {
        let quotes = line.matches("\"\"\"").count();
        let inside = *in_docstring || quotes > 0;
        *in_docstring ^= quotes % 2 == 1;
        if inside {
            return Some(vec![line]);
        }
        "#"
    } else {
        return None;
    };
    let comment = line.find(comment).map(|at| &line[at..]);
    // Every second part between quotes is a string.
    Some(line.split('"').skip(1).step_by(2).chain(comment).collect())
}

/// Words of a text that are codes.
fn cited(text: &str) -> impl Iterator<Item = &str> {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let bytes = text.as_bytes();
    (0..bytes.len()).filter(|at| LETTERS.contains(&bytes[*at])).filter_map(move |at| {
        let digits = bytes[at + 1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let end = at + 1 + digits;
        let before = at.checked_sub(1).map(|at| &bytes[at]);
        // `-N4` is a flag, `%C3` an escape, `Rule::C1` a name, `\x1b[E3` no word, `S3-compatible` a product.
        let alone = !before.is_some_and(|byte| is_word(byte) || b"-%:\\[.".contains(byte))
            && !bytes.get(end).is_some_and(|byte| is_word(byte) || *byte == b'-');
        ((1..=2).contains(&digits) && bytes[at + 1] != b'0' && alone).then(|| &text[at..end])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A code that the page of this project does not have, either: this file is checked as well.
    fn unknown() -> String {
        format!("G{}", 99)
    }

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<File> = files
            .iter()
            .map(|(path, text)| File { path: (*path).to_owned(), text: (*text).to_owned() })
            .collect();
        let mut findings = Vec::new();
        check(&files, &mut findings);
        findings
    }

    #[test]
    fn a_cited_code_has_a_row() {
        let page = (PAGE, "| code | invariant |\n|---|---|\n| G6 | text of C1 |\n| C1 | text |\n");
        let good = ("crates/core/src/x.rs", "//! x (G6, C1)\n// proves C1\nfail(\"C1/G6\");\n");
        assert_eq!(findings(&[page, good]), Vec::<String>::new());
        let code = unknown();
        for (path, text) in [
            ("crates/core/src/x.rs", format!("//! x\n/// proves {code}: no\n")),
            ("crates/core/src/x.rs", format!("//! x\nfail(\"{code}\", at);\n")),
            ("docs/x.md", format!("\n* rows ({code}).\n")),
            ("proto/x.proto", format!("\n// {code}\n")),
            ("tests/x.py", format!("\nx = 1  # {code}\n")),
            ("tests/x.py", format!("\"\"\"x\nproves {code}\n\"\"\"\n")),
        ] {
            let found = findings(&[page, (path, &text)]);
            let wanted = format!("{path}:2: {code} is cited, but {PAGE} has no row for it");
            assert_eq!(found, [wanted], "{text}");
        }
    }

    #[test]
    fn a_code_has_one_row() {
        let page = "| G6 | one |\n| G6 | two |\n";
        assert_eq!(findings(&[(PAGE, page)]), ["docs/invariants.md:2: G6 has a row already"]);
    }

    /// A prefix that is none of the letters, names in code, flags, escapes, products, seeds and numbers.
    #[test]
    fn what_only_looks_like_a_code_is_none() {
        let code = unknown();
        for text in [
            format!("type {code} = u8;"),
            format!("let x = {code}::new();"),
            format!(
                "// Rule::{code}, x{code}, {code}x, {code}_x, -{code}, %{code}, {code}-like, .{code}"
            ),
            "// K2, P99, F64, T1, Z3, seed 0xE5, 1E9, E4M3, FLOAT8_E5M2, S123, C0, B03".to_owned(),
        ] {
            assert_eq!(findings(&[("x.rs", &text)]), Vec::<String>::new(), "{text}");
        }
        assert_eq!(findings(&[("x.toml", &format!("# {code}"))]), Vec::<String>::new());
        assert_eq!(findings(&[("x.py", &format!("{code} = 1"))]), Vec::<String>::new());
    }
}
