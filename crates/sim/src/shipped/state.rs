//! Where the masters of a run keep their state: real files, in a folder of the run's own. Each start has a file of its
//! own, because a killed master is not unwound and so holds the lock of its file until the worker ends.
//!
//! A start finds the state of the one before, or, as the seed says, none or an older one.

use super::Plan;
use super::disks::Load;
use crate::fibers;
use mooncrate_core::LeaderEpoch;
use mooncrate_core::rng::Rng;
use mooncrate_master::MasterConfig;
use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// In memory, so that a sync costs nothing.
const FOLDER: &str = "/dev/shm";

struct Places {
    folder: TempDir,
    load: Load,
    rng: Rng,
}

thread_local! {
    static PLACES: RefCell<Option<Places>> = const { RefCell::new(None) };
}

pub(super) fn begin(plan: &Plan) {
    let load = plan.disks.clone().filter(|load| load.keeps_state);
    PLACES.set(load.map(|load| {
        let folder = tempfile::tempdir_in(FOLDER).or_else(|_| tempfile::tempdir());
        let folder = folder.expect("the system has room for a folder");
        Places { folder, load, rng: Rng::stream(plan.seed, "state") }
    }));
}

pub(super) fn end() {
    drop(PLACES.take());
}

/// A master's settings with the place of its state. What an earlier start has kept is there.
pub(super) fn kept(config: MasterConfig, start: u64) -> MasterConfig {
    let kept = PLACES.with_borrow_mut(|places| {
        let places = places.as_mut()?;
        Some((places.of(start), places.load.names_state))
    });
    match kept {
        None => config,
        Some((path, true)) => MasterConfig { state_file: Some(path), ..config },
        Some((path, false)) => MasterConfig { usual_state: vec![path], ..config },
    }
}

/// From now on everything can be written.
pub(super) fn heal() {
    PLACES.with_borrow_mut(|places| {
        if let Some(places) = places {
            places.load.unwritable = 0;
        }
    });
}

/// Something may stand where the next state is to be written: then it cannot be.
pub(super) fn trouble(start: u64) {
    PLACES.with_borrow_mut(|places| {
        let Some(places) = places else { return };
        let in_the_way = places.path(start).with_extension("new");
        if places.rng.chance(places.load.unwritable) {
            let _ = fs::create_dir(in_the_way);
        } else {
            let _ = fs::remove_dir(in_the_way);
        }
    });
}

/// The epoch of a master that finds no state. As shipped, where it is the time of the start, it is far above those of
/// earlier masters.
pub(super) fn epoch(start: u64) -> LeaderEpoch {
    LeaderEpoch(start << 20)
}

/// What the state says now; empty: there is none.
pub(super) fn text(start: u64) -> String {
    PLACES.with_borrow(|places| {
        let path = places.as_ref().map(|places| places.path(start));
        path.and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default()
    })
}

impl Places {
    fn path(&self, start: u64) -> PathBuf {
        self.folder.path().join(format!("state-{start}"))
    }

    fn of(&mut self, start: u64) -> PathBuf {
        let (before, path) = (self.path(start.saturating_sub(1)), self.path(start));
        let older = self.folder.path().join("older");
        if self.rng.chance(self.load.forgets) {
            fibers::note(10, start, || "the master's state is lost".to_owned());
        } else if self.rng.chance(self.load.older_state) && older.exists() {
            fibers::note(10, start, || "the master's state is an older one".to_owned());
            copy(&older, &path);
        } else if before.exists() {
            copy(&before, &path);
        }
        if self.rng.chance(300) && path.exists() {
            copy(&path, &older);
        }
        path
    }
}

fn copy(from: &Path, to: &Path) {
    fs::copy(from, to).expect("a folder in memory takes a small file");
}
