//! Decision records: `docs/decisions/NNNN-title.md`, each with a status, all of them in the index.
//!
//! A folder of decisions is worth reading only if one page says which of them still hold.

use crate::tree::File;

const FOLDER: &str = "docs/decisions/";
const INDEX: &str = "docs/decisions/README.md";
const STATES: &[&str] = &["proposed", "accepted", "superseded"];

/// Compares the records with their index.
pub(crate) fn check(files: &[File], findings: &mut Vec<String>) {
    let index = files.iter().find(|file| file.path == INDEX);
    let mut last_number = None;
    for file in files.iter().filter(|file| file.ends_with("md") && file.path != INDEX) {
        let Some(name) = file.path.strip_prefix(FOLDER) else { continue };
        let path = &file.path;
        let Some(number) = number(name) else {
            findings.push(format!("{path}: is no record; name it NNNN-title.md"));
            continue;
        };
        // The files come in the order of their names, so equal numbers are neighbours.
        if last_number.replace(number) == Some(number) {
            findings.push(format!("{path}: {number} is taken; a record has a number of its own"));
        }
        let Some(status) = status(&file.text) else {
            findings.push(format!("{path}: says no status; one of: {}", STATES.join(", ")));
            continue;
        };
        let row = index.and_then(|index| index.text.lines().find(|line| line.contains(name)));
        match row {
            None => findings.push(format!("{path}: is missing in {INDEX}")),
            Some(row) if !row.contains(status) => {
                findings.push(format!("{path}: says `{status}`, but its row in {INDEX} does not"));
            }
            Some(_) => {}
        }
    }
}

fn number(name: &str) -> Option<&str> {
    let (number, _) = name.split_once('-')?;
    (number.len() == 4 && number.bytes().all(|b| b.is_ascii_digit())).then_some(number)
}

/// `accepted`, or `superseded by 0012` as a whole, because the index shows that too.
fn status(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("Status:")?;
    let status = rest.lines().next()?.trim_matches([' ', '*', '|']);
    STATES.iter().any(|state| status.starts_with(state)).then_some(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<File> = files
            .iter()
            .map(|(name, text)| File { path: format!("{FOLDER}{name}"), text: (*text).to_owned() })
            .collect();
        let mut findings = Vec::new();
        check(&files, &mut findings);
        findings
    }

    #[test]
    fn a_record_stands_in_the_index_with_its_status() {
        let found = findings(&[
            ("0001-word.md", "# 0001 One word   Status: accepted\n"),
            ("0002-old.md", "# 0002 Old\n\n**Status:** superseded by 0001\n"),
            ("README.md", "| 0001-word.md | accepted |\n| 0002-old.md | superseded by 0001 |\n"),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn what_the_index_lacks_is_found() {
        let record = ("0001-word.md", "# 0001 One word   Status: accepted\n");
        let missing = "docs/decisions/0001-word.md: is missing in docs/decisions/README.md";
        assert_eq!(findings(&[record]), [missing]);
        assert_eq!(findings(&[record, ("README.md", "0002-x.md accepted\n")]), [missing]);
        let found = findings(&[record, ("README.md", "0001-word.md proposed\n")]);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("says `accepted`, but its row"), "{found:?}");
    }

    #[test]
    fn a_record_has_a_number_and_a_status() {
        let index = ("README.md", "0001-a.md accepted\n0001-b.md accepted\n");
        let found = findings(&[
            ("0001-a.md", "Status: accepted"),
            ("0001-b.md", "Status: accepted"),
            ("0003-c.md", "Status: perhaps"),
            ("notes.md", ""),
            index,
        ]);
        assert_eq!(
            found,
            [
                "docs/decisions/0001-b.md: 0001 is taken; a record has a number of its own",
                "docs/decisions/0003-c.md: says no status; one of: proposed, accepted, superseded",
                "docs/decisions/notes.md: is no record; name it NNNN-title.md",
            ]
        );
    }
}
