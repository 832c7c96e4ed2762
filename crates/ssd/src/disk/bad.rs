//! Files whose sync failed. Such a file is bad for good (S12): the kernel reports the failure once and may
//! have dropped what it could not write, so a second sync would succeed and lie. Every disk keeps this
//! list by what identifies a file, not by its handle: opening it again does not wash the mark off.

use mooncrate_core::canary::{self, Canary};
use mooncrate_lock::Mutex;
use std::collections::BTreeSet;
use std::io;

/// The list.
#[derive(Debug)]
pub(super) struct BadFiles<I>(Mutex<BTreeSet<I>>);

impl<I> Default for BadFiles<I> {
    fn default() -> Self {
        Self(Mutex::new(BTreeSet::new()))
    }
}

impl<I: Copy + Ord> BadFiles<I> {
    /// Refuses changes of a bad file.
    pub(super) fn check(&self, file: I) -> io::Result<()> {
        if self.0.lock().contains(&file) {
            return Err(io::Error::other("an earlier sync of this file failed; it is lost"));
        }
        Ok(())
    }

    /// Syncs a file, unless it is bad, and takes the outcome down.
    pub(super) fn sync(&self, file: I, sync: impl Fn() -> io::Result<()>) -> io::Result<()> {
        self.check(file)?;
        if canary::on(Canary::NoFdatasync) {
            return Ok(());
        }
        let outcome = sync();
        if outcome.is_err() && canary::on(Canary::FailedSyncRetried) {
            return sync();
        }
        self.synced(file, outcome)
    }

    /// Takes down how a sync of a file ended that was not bad when it began.
    pub(super) fn synced(&self, file: I, outcome: io::Result<()>) -> io::Result<()> {
        if outcome.is_err() {
            self.0.lock().insert(file);
            return outcome;
        }
        // Somebody else's sync failed meanwhile: that failure may have been about these bytes.
        self.check(file)
    }

    /// A new file has what identified one that is gone.
    pub(super) fn forget(&self, file: I) {
        self.0.lock().remove(&file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves S12: a failed sync is final, also for those who were syncing at the same time.
    #[test]
    fn a_failed_sync_is_final() {
        let bad = BadFiles::default();
        let fails = || Err(io::Error::from_raw_os_error(5));
        bad.sync(1, || Ok(())).unwrap();
        bad.sync(1, fails).unwrap_err();
        bad.sync(1, || Ok(())).unwrap_err();
        bad.check(1).unwrap_err();
        bad.check(2).unwrap();
        let both = bad.sync(2, || {
            bad.sync(2, fails).unwrap_err();
            Ok(())
        });
        both.unwrap_err();
        bad.forget(1);
        bad.sync(1, || Ok(())).unwrap();
    }
}
