//! Open files of buckets, a bounded number of them: opening one for each load would cost more than a small
//! load. What is forgotten here closes when the last load that uses it ends.

use crate::disk::{Disk, File, Open};
use mooncrate_lock::Mutex;
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct Handles {
    open: Mutex<Cache>,
    max: usize,
}

#[derive(Debug, Default)]
struct Cache {
    files: HashMap<u64, (Arc<dyn File>, u64)>,
    /// Counts uses, so that the one that was used least recently can be told.
    uses: u64,
}

impl Handles {
    pub(super) fn new(max: usize) -> Self {
        Self { open: Mutex::default(), max: max.max(1) }
    }

    /// The file of a bucket that the caller has pinned.
    pub(super) fn get(&self, disk: &dyn Disk, id: u64, path: &Path) -> io::Result<Arc<dyn File>> {
        if let Some(file) = self.open.lock().used(id) {
            return Ok(file);
        }
        let file = disk.open(path, Open::Read)?;
        let mut cache = self.open.lock();
        if let Some(file) = cache.used(id) {
            return Ok(file);
        }
        while cache.files.len() >= self.max {
            let oldest = cache.files.iter().min_by_key(|(_, (_, used))| *used);
            let Some(oldest) = oldest.map(|(id, _)| *id) else { break };
            cache.files.remove(&oldest);
        }
        let used = cache.uses;
        cache.files.insert(id, (Arc::clone(&file), used));
        Ok(file)
    }

    /// The file of this bucket goes.
    pub(super) fn forget(&self, id: u64) {
        let gone = self.open.lock().files.remove(&id);
        drop(gone);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.open.lock().files.len()
    }
}

impl Cache {
    fn used(&mut self, id: u64) -> Option<Arc<dyn File>> {
        self.uses += 1;
        let (file, used) = self.files.get_mut(&id)?;
        *used = self.uses;
        Some(Arc::clone(file))
    }
}
