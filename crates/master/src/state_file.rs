//! What a master keeps across a restart: its epoch, and the nodes that may hold objects. Nothing
//! else: the index is rebuilt from the nodes' headers.
//!
//! A text file, replaced as a whole: written beside, synced, renamed, directory synced.
//!
//! ```text
//! mooncrate-master 1
//! epoch 7
//! node 4b1f…
//! end
//! ```

use mooncrate_core::{LeaderEpoch, NodeId};
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// What was kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) epoch: LeaderEpoch,
    pub(crate) nodes: Vec<NodeId>,
}

/// The file, and what it says now.
#[derive(Debug)]
pub(crate) struct StateFile {
    path: PathBuf,
    kept: Kept,
}

impl StateFile {
    /// Reads the file; `None` in place of what was kept if there is none yet.
    pub(crate) fn open(path: &Path) -> io::Result<(Self, Option<Kept>)> {
        let kept = match fs::read_to_string(path) {
            Ok(text) => Some(parse(&text).ok_or_else(|| {
                let name = path.display();
                let fix = "it is damaged; move it away to start without it (nodes that hold objects are then not waited for)";
                io::Error::new(io::ErrorKind::InvalidData, format!("{name}: {fix}"))
            })?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        Ok((Self { path: path.into(), kept: kept.clone().unwrap_or_default() }, kept))
    }

    /// Makes the file say `kept`; a no-op if it does.
    pub(crate) fn keep(&mut self, kept: Kept) -> io::Result<()> {
        if kept == self.kept {
            return Ok(());
        }
        if let Some(parent) = self.path.parent() {
            fs::create_dir_all(parent)?;
        }
        let beside = self.path.with_extension("new");
        let mut file = fs::File::create(&beside)?;
        file.write_all(render(&kept).as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, &self.path)?;
        if let Some(parent) = self.path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            fs::File::open(parent)?.sync_all()?;
        }
        self.kept = kept;
        Ok(())
    }
}

fn render(kept: &Kept) -> String {
    let mut text = format!("mooncrate-master 1\nepoch {}\n", kept.epoch.0);
    for node in &kept.nodes {
        writeln!(text, "node {:x}", node.0).expect("a String takes it");
    }
    text.push_str("end\n");
    text
}

fn parse(text: &str) -> Option<Kept> {
    let mut lines = text.lines();
    if lines.next()? != "mooncrate-master 1" {
        return None;
    }
    let epoch = LeaderEpoch(lines.next()?.strip_prefix("epoch ")?.parse().ok()?);
    let mut nodes = Vec::new();
    loop {
        match lines.next()? {
            "end" => return Some(Kept { epoch, nodes }),
            line => {
                let hex = line.strip_prefix("node ")?;
                nodes.push(NodeId(u64::from_str_radix(hex, 16).ok()?));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_comes_back_and_a_cut_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/master.state");
        let (mut file, none) = StateFile::open(&path).unwrap();
        assert_eq!(none, None);
        let kept = Kept { epoch: LeaderEpoch(7), nodes: vec![NodeId(1), NodeId(u64::MAX)] };
        file.keep(kept.clone()).unwrap();
        assert_eq!(StateFile::open(&path).unwrap().1, Some(kept.clone()));

        let text = render(&kept);
        for cut in 0..text.len() - 1 {
            assert_eq!(parse(&text[..cut]), None, "cut at {cut}");
        }
        fs::write(&path, &text[..20]).unwrap();
        assert!(StateFile::open(&path).unwrap_err().to_string().contains("damaged"));
    }
}
