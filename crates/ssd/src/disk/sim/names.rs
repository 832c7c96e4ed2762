//! The names of a simulated disk: as programs see them, and as a crash may leave them.
//!
//! A change of a name is **pending** until its directory is synced, a rename until both are. A crash picks any of
//! the pending changes; each of them happens whole or not at all, a rename too.

use mooncrate_core::rng::Rng;
use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::path::{Component, Path, PathBuf};

/// Changes without a sync after which the older half counts as written.
const PENDING_MAX: usize = 4096;

/// What has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    File(u64),
    Dir,
}

#[derive(Clone, Debug)]
enum Change {
    Add(PathBuf, Node),
    Remove(PathBuf, Node),
    Move(PathBuf, PathBuf, Node),
}

impl Change {
    fn is_about(&self, name: &Path) -> bool {
        match self {
            Self::Add(path, _) | Self::Remove(path, _) => path == name,
            Self::Move(from, to, _) => from == name || to == name,
        }
    }
}

#[derive(Clone, Debug)]
struct Pending {
    change: Change,
    /// Directories that are to be synced before it is on the disk.
    dirs: Vec<PathBuf>,
}

/// The names of a disk.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    seen: BTreeMap<PathBuf, Node>,
    synced: BTreeMap<PathBuf, Node>,
    pending: Vec<Pending>,
}

impl Names {
    pub(super) fn get(&self, path: &Path) -> Option<Node> {
        if path.as_os_str().is_empty() { Some(Node::Dir) } else { self.seen.get(path).copied() }
    }

    pub(super) fn file(&self, path: &Path) -> io::Result<u64> {
        beneath(path)?;
        match self.get(path) {
            Some(Node::File(file)) => Ok(file),
            Some(Node::Dir) => Err(io::ErrorKind::IsADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    pub(super) fn dir(&self, path: &Path) -> io::Result<()> {
        beneath(path)?;
        match self.get(path) {
            Some(Node::Dir) => Ok(()),
            Some(Node::File(_)) => Err(io::ErrorKind::NotADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    pub(super) fn add(&mut self, path: &Path, node: Node) -> io::Result<()> {
        beneath(path)?;
        self.dir(parent(path))?;
        if self.get(path).is_some() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.seen.insert(path.to_owned(), node);
        self.note(Change::Add(path.to_owned(), node), vec![parent(path).to_owned()]);
        Ok(())
    }

    pub(super) fn remove(&mut self, path: &Path) -> io::Result<u64> {
        let file = self.file(path)?;
        self.seen.remove(path);
        let change = Change::Remove(path.to_owned(), Node::File(file));
        self.note(change, vec![parent(path).to_owned()]);
        Ok(file)
    }

    /// Gives the file that had the new name before.
    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<Option<u64>> {
        let file = self.file(from)?;
        beneath(to)?;
        self.dir(parent(to))?;
        let replaced = match self.get(to) {
            Some(Node::Dir) => return Err(io::ErrorKind::IsADirectory.into()),
            Some(Node::File(old)) if old == file => return Ok(None),
            Some(Node::File(old)) => Some(old),
            None => None,
        };
        self.seen.remove(from);
        self.seen.insert(to.to_owned(), Node::File(file));
        let mut dirs = vec![parent(from).to_owned(), parent(to).to_owned()];
        dirs.dedup();
        self.note(Change::Move(from.to_owned(), to.to_owned(), Node::File(file)), dirs);
        Ok(replaced)
    }

    pub(super) fn list(&self, dir: &Path) -> io::Result<Vec<(String, Node)>> {
        self.dir(dir)?;
        // Paths are ordered by their parts, so what is in a directory follows it.
        let behind = self.seen.range((Bound::Excluded(dir.to_owned()), Bound::Unbounded));
        let entry = |(path, node): (&PathBuf, &Node)| {
            let name = (parent(path) == dir).then(|| path.file_name()?.to_str());
            Some((name??.to_owned(), *node))
        };
        Ok(behind.take_while(|(path, _)| path.starts_with(dir)).filter_map(entry).collect())
    }

    pub(super) fn sync(&mut self, dir: &Path) {
        let mut left: Vec<Pending> = Vec::new();
        for mut change in std::mem::take(&mut self.pending) {
            change.dirs.retain(|left| left != dir);
            if !change.dirs.is_empty() {
                left.push(change);
                continue;
            }
            // The names of one directory are written in order: what a rename from elsewhere brought here before is
            // over, although its own directory still has it.
            for earlier in &mut left {
                if let Change::Move(from, to, node) = &earlier.change
                    && change.change.is_about(to)
                {
                    earlier.change = Change::Remove(from.clone(), *node);
                }
            }
            apply(&mut self.synced, change.change);
        }
        self.pending = left;
    }

    /// The names that programs see, on the disk, with files whose numbers are higher by `shift`.
    pub(super) fn renumbered(&self, shift: u64) -> Self {
        let shifted = |node: &Node| match node {
            Node::File(file) => Node::File(file + shift),
            Node::Dir => Node::Dir,
        };
        let seen = self.seen.iter().map(|(path, node)| (path.clone(), shifted(node)));
        let seen: BTreeMap<PathBuf, Node> = seen.collect();
        Self { synced: seen.clone(), seen, pending: Vec::new() }
    }

    /// Files that a program or a later start can meet.
    pub(super) fn files(&self) -> impl Iterator<Item = u64> + '_ {
        let pending = self.pending.iter().map(|pending| match &pending.change {
            Change::Add(_, node) | Change::Remove(_, node) | Change::Move(_, _, node) => node,
        });
        let all = self.seen.values().chain(self.synced.values()).chain(pending);
        all.filter_map(|node| match node {
            Node::File(file) => Some(*file),
            Node::Dir => None,
        })
    }

    /// The names as the next start finds them, and how many changes are gone.
    pub(super) fn crash(mut self, rng: &mut Rng) -> (Self, u64) {
        let keep = match rng.below(4) {
            0 => 1000,
            1 => 0,
            _ => rng.below(1000) as u32,
        };
        let mut lost = 0;
        for change in self.pending {
            if rng.chance(keep) {
                apply(&mut self.synced, change.change);
            } else {
                lost += 1;
            }
        }
        let mut found: BTreeMap<PathBuf, Node> = BTreeMap::new();
        // A directory comes before what is in it; what was in a lost one is lost.
        for (path, node) in self.synced {
            let up = parent(&path);
            if up.as_os_str().is_empty() || found.get(up) == Some(&Node::Dir) {
                found.insert(path, node);
            }
        }
        (Self { seen: found.clone(), synced: found, pending: Vec::new() }, lost)
    }

    fn note(&mut self, change: Change, dirs: Vec<PathBuf>) {
        if self.pending.len() >= PENDING_MAX {
            for older in self.pending.drain(..PENDING_MAX / 2) {
                apply(&mut self.synced, older.change);
            }
        }
        self.pending.push(Pending { change, dirs });
    }
}

fn apply(names: &mut BTreeMap<PathBuf, Node>, change: Change) {
    match change {
        Change::Add(path, node) => {
            names.insert(path, node);
        }
        Change::Remove(path, node) => {
            if names.get(&path) == Some(&node) {
                names.remove(&path);
            }
        }
        Change::Move(from, to, node) => {
            if names.get(&from) == Some(&node) {
                names.remove(&from);
            }
            names.insert(to, node);
        }
    }
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

/// Paths stay beneath the disk's directory.
fn beneath(path: &Path) -> io::Result<()> {
    if path.components().all(|part| matches!(part, Component::Normal(_))) {
        Ok(())
    } else {
        Err(io::ErrorKind::InvalidInput.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(names: &Names) -> Vec<Vec<(String, Node)>> {
        let crash = |seed| names.clone().crash(&mut Rng::new(seed)).0;
        (0..100).map(|seed| crash(seed).list(Path::new("")).unwrap()).collect()
    }

    #[test]
    fn a_rename_happens_whole_or_not_at_all() {
        let mut names = Names::default();
        names.add(Path::new("new"), Node::File(1)).unwrap();
        names.add(Path::new("old"), Node::File(2)).unwrap();
        names.sync(Path::new(""));
        assert_eq!(names.rename(Path::new("new"), Path::new("old")).unwrap(), Some(2));
        let both = [("new".to_owned(), Node::File(1)), ("old".to_owned(), Node::File(2))].to_vec();
        let one = [("old".to_owned(), Node::File(1))].to_vec();
        let found_before = found(&names);
        assert!(found_before.iter().all(|names| *names == both || *names == one));
        assert!(found_before.contains(&both) && found_before.contains(&one));
        names.sync(Path::new(""));
        assert!(found(&names).iter().all(|names| *names == one));
    }

    #[test]
    fn names_can_be_lost_and_come_back() {
        let mut names = Names::default();
        names.add(Path::new("d"), Node::Dir).unwrap();
        names.sync(Path::new(""));
        let (kept, gone) = (Path::new("d/kept"), Path::new("d/gone"));
        names.add(gone, Node::File(1)).unwrap();
        names.sync(Path::new("d"));
        names.add(kept, Node::File(2)).unwrap();
        names.remove(gone).unwrap();
        let crash = |names: &Names, seed| names.clone().crash(&mut Rng::new(seed)).0;
        let has = |path| (0..100).filter(|seed| crash(&names, *seed).file(path).is_ok()).count();
        assert!((1..100).contains(&has(kept)) && (1..100).contains(&has(gone)));
    }

    #[test]
    fn what_was_in_a_lost_directory_is_lost_and_paths_stay_beneath() {
        let mut names = Names::default();
        names.add(Path::new("d"), Node::Dir).unwrap();
        names.add(Path::new("d/f"), Node::File(1)).unwrap();
        names.sync(Path::new("d"));
        for seed in 0..50 {
            let (found, _) = names.clone().crash(&mut Rng::new(seed));
            assert!(found.get(Path::new("d")).is_some() || found.get(Path::new("d/f")).is_none());
        }
        for path in ["/etc", "../x", "d/../../x"] {
            assert_eq!(
                names.file(Path::new(path)).unwrap_err().kind(),
                io::ErrorKind::InvalidInput
            );
        }
        assert!(names.add(Path::new("no/such"), Node::Dir).is_err());
        assert!(names.add(Path::new("d"), Node::Dir).is_err());
    }
}
