//! Manifests: each crate says what it is, and takes the license and the other package fields from the workspace.
//!
//! A crate without these fields cannot be published. The check finds that today, not on the day of a release.

use crate::tree::File;

/// Fields that a crate takes from `[workspace.package]`.
const INHERITED: &[&str] =
    &["version", "edition", "rust-version", "license", "repository", "keywords", "categories"];

/// Looks at one file; only manifests of crates count.
pub(crate) fn check(file: &File, findings: &mut Vec<String>) {
    let Some(folder) = file.crate_folder() else { return };
    if file.path != format!("crates/{folder}/Cargo.toml") {
        return;
    }
    let path = &file.path;
    let lines: Vec<&str> = file.text.lines().map(str::trim).collect();
    for field in INHERITED {
        let wanted = format!("{field}.workspace = true");
        if !lines.contains(&wanted.as_str()) {
            findings.push(format!("{path}: lacks `{wanted}`"));
        }
    }
    let described = |line: &&str| line.starts_with("description = \"") && line.len() > 20;
    if !lines.iter().any(described) {
        findings.push(format!("{path}: lacks a `description` of one sentence"));
    }
    if !takes_lints(&file.text) {
        findings.push(format!("{path}: lacks `lints.workspace = true`"));
    }
}

fn takes_lints(text: &str) -> bool {
    let spaceless: String = text.chars().filter(|c| *c != ' ').collect();
    spaceless.contains("[lints]\nworkspace=true") || spaceless.contains("lints.workspace=true")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(text: &str) -> Vec<String> {
        let file = File { path: "crates/x/Cargo.toml".into(), text: text.into() };
        let mut findings = Vec::new();
        check(&file, &mut findings);
        findings
    }

    fn whole() -> String {
        let fields = INHERITED.iter().map(|field| format!("{field}.workspace = true\n"));
        let fields: String = fields.collect();
        format!(
            "[package]\ndescription = \"What the crate is for\"\n{fields}[lints]\nworkspace = true\n"
        )
    }

    #[test]
    fn a_manifest_with_all_fields_passes() {
        assert_eq!(findings(&whole()), Vec::<String>::new());
        let short = whole().replace("[lints]\nworkspace = true", "lints.workspace = true");
        assert_eq!(findings(&short), Vec::<String>::new());
    }

    #[test]
    fn each_missing_field_is_named() {
        for field in INHERITED {
            let text = whole().replace(&format!("\n{field}.workspace = true\n"), "\n");
            let found = findings(&text);
            assert_eq!(found, [format!("crates/x/Cargo.toml: lacks `{field}.workspace = true`")]);
        }
        let found = findings(&whole().replace("What the crate is for", "x"));
        assert_eq!(found, ["crates/x/Cargo.toml: lacks a `description` of one sentence"]);
        let found = findings(&whole().replace("[lints]", "[other]"));
        assert_eq!(found, ["crates/x/Cargo.toml: lacks `lints.workspace = true`"]);
    }
}
