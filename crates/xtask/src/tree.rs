//! The files of the tree: what a fresh clone holds, without build outputs.

use anyhow::{Context, Result};
use std::fs;
use std::path::Path;

/// One text file.
#[derive(Debug)]
pub(crate) struct File {
    /// From the root, with `/`.
    pub(crate) path: String,
    /// What it says.
    pub(crate) text: String,
}

impl File {
    /// Whether its name ends so.
    pub(crate) fn ends_with(&self, extension: &str) -> bool {
        self.path.rsplit_once('.').is_some_and(|(_, found)| found == extension)
    }

    /// The folder below `crates/` that it belongs to.
    pub(crate) fn crate_folder(&self) -> Option<&str> {
        self.path.strip_prefix("crates/")?.split_once('/').map(|(folder, _)| folder)
    }
}

/// Folders that builds and tools write: kept in step with `.gitignore`.
fn is_output(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name == "target"
        || name.starts_with("target-")
        || matches!(path, ".git" | ".dev" | "fuzz/corpus" | "fuzz/artifacts")
        || matches!(name, "node_modules" | "__pycache__" | ".venv")
}

/// All text files below `root`, in the order of their paths.
pub(crate) fn files(root: &Path) -> Result<Vec<File>> {
    let mut found = Vec::new();
    visit(root, "", &mut found)?;
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

fn visit(root: &Path, folder: &str, found: &mut Vec<File>) -> Result<()> {
    let here = root.join(folder);
    for entry in fs::read_dir(&here).with_context(|| format!("reading {}", here.display()))? {
        let entry = entry?;
        let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
        let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
        let kind = entry.file_type()?;
        // In a worktree of git `.git` is a file.
        if is_output(&path) {
            continue;
        }
        if kind.is_dir() {
            visit(root, &path, found)?;
        } else if kind.is_file() {
            let bytes = fs::read(entry.path()).with_context(|| format!("reading {path}"))?;
            // Pictures and traces are not text: no rule speaks of them.
            if let Ok(text) = String::from_utf8(bytes) {
                found.push(File { path, text });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod fixture {
    //! Tiny trees for the tests of the rules.

    use super::Path;
    use std::fs;
    use tempfile::TempDir;

    /// A folder with these files.
    pub(crate) fn tree(files: &[(&str, &str)]) -> TempDir {
        let root = TempDir::new().unwrap();
        for (path, text) in files {
            add(root.path(), path, text);
        }
        root
    }

    /// One more file.
    pub(crate) fn add(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_and_pictures_are_left_out() {
        let root = fixture::tree(&[
            ("crates/core/src/lib.rs", "//! x"),
            ("target/debug/build.rs", ""),
            ("target-loom/x.rs", ""),
            (".git", "gitdir: elsewhere"),
            (".ci/run", ""),
            ("fuzz/corpus/frame/1", ""),
        ]);
        fs::write(root.path().join("plot.png"), [0xff, 0xfe]).unwrap();
        let found = files(root.path()).unwrap();
        let paths: Vec<&str> = found.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, [".ci/run", "crates/core/src/lib.rs"]);
        assert_eq!(found[1].crate_folder(), Some("core"));
        assert!(found[1].ends_with("rs") && !found[0].ends_with("rs"));
    }
}
