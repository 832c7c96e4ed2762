//! What a process tells the others of its keys: a small file with two numbers per key, so that a
//! reader elsewhere can judge a value that it did not put.
//!
//! ```text
//!   file client-N:  { over u32 | begun u32 } per key, little-endian
//!   a get of key k by anybody:   over(k) read before the call  <  sequence  <=  begun(k) read after
//! ```
//!
//! What must stay true: `begun` is written before a put is called; `over` is written after a remove has
//! answered OK, and only covers puts that had settled before that remove began. Each number is written
//! by one process, in one aligned write of four bytes to a file in memory, and only grows.

use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const KEY_BYTES: u64 = 8;

/// The bounds of one process's keys.
#[derive(Debug)]
pub(crate) struct Bounds {
    file: File,
    keys: u64,
}

impl Bounds {
    /// The file of this process, or one that nobody else sees.
    pub(crate) fn create(folder: Option<&Path>, client: u16, keys: u64) -> Result<Self> {
        let file = match folder {
            Some(folder) => {
                let path = folder.join(name(client));
                OpenOptions::new().read(true).write(true).create_new(true).open(&path)
            }
            None => tempfile::tempfile(),
        };
        let file = file.with_context(|| format!("the bounds file of client {client}"))?;
        file.set_len(keys * KEY_BYTES).context("sizing the bounds file")?;
        Ok(Self { file, keys })
    }

    fn open(path: &Path) -> Result<Self> {
        let file = File::open(path)?;
        let keys = file.metadata()?.len() / KEY_BYTES;
        Ok(Self { file, keys })
    }

    /// Keys that it speaks of.
    pub(crate) fn keys(&self) -> u64 {
        self.keys
    }

    /// The highest put of this key that nobody may see any more.
    pub(crate) fn over(&self, key: u64) -> u32 {
        self.read(key * KEY_BYTES)
    }

    /// The highest put of this key that has begun.
    pub(crate) fn begun(&self, key: u64) -> u32 {
        self.read(key * KEY_BYTES + 4)
    }

    pub(crate) fn set_over(&self, key: u64, sequence: u32) {
        self.write(key * KEY_BYTES, sequence);
    }

    pub(crate) fn set_begun(&self, key: u64, sequence: u32) {
        self.write(key * KEY_BYTES + 4, sequence);
    }

    fn read(&self, at: u64) -> u32 {
        let mut bytes = [0; 4];
        self.file.read_exact_at(&mut bytes, at).expect("the file holds all its keys");
        u32::from_le_bytes(bytes)
    }

    fn write(&self, at: u64, number: u32) {
        self.file.write_all_at(&number.to_le_bytes(), at).expect("the file holds all its keys");
    }
}

fn name(client: u16) -> String {
    format!("client-{client}")
}

/// The other processes of a run, found by their files.
#[derive(Debug)]
pub(crate) struct Peers {
    folder: Option<PathBuf>,
    own: u16,
    known: BTreeMap<u16, Bounds>,
}

impl Peers {
    pub(crate) fn new(folder: Option<&Path>, own: u16) -> Self {
        Self { folder: folder.map(Path::to_owned), own, known: BTreeMap::new() }
    }

    /// Looks for processes that have come since.
    pub(crate) fn look(&mut self) {
        let Some(folder) = &self.folder else { return };
        let Ok(entries) = std::fs::read_dir(folder) else { return };
        for entry in entries.flatten() {
            let file = entry.file_name();
            let client = file.to_str().and_then(|name| name.strip_prefix("client-")?.parse().ok());
            let Some(client) = client.filter(|client| *client != self.own) else { continue };
            if !self.known.contains_key(&client)
                && let Ok(bounds) = Bounds::open(&entry.path())
                // One that is being made is found again, complete, next time.
                && bounds.keys() > 0
            {
                self.known.insert(client, bounds);
            }
        }
    }

    /// The `n`-th of the others, newest first: the newest are alive most likely.
    pub(crate) fn pick(&self, n: u64) -> Option<(u16, &Bounds)> {
        let count = self.known.len() as u64;
        let nth = n.checked_rem(count)? as usize;
        self.known.iter().rev().nth(nth).map(|(client, bounds)| (*client, bounds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_find_each_other_and_read_what_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let own = Bounds::create(Some(folder.path()), 7, 3).unwrap();
        let mut peers = Peers::new(Some(folder.path()), 8);
        peers.look();
        own.set_begun(2, 9);
        own.set_over(2, 5);
        let (client, bounds) = peers.pick(11).unwrap();
        assert_eq!((client, bounds.keys(), bounds.over(2), bounds.begun(2)), (7, 3, 5, 9));
        assert_eq!((bounds.over(1), bounds.begun(1)), (0, 0));
        let mut alone = Peers::new(Some(folder.path()), 7);
        alone.look();
        assert!(alone.pick(0).is_none(), "a process is not its own peer");
    }
}
