//! Owners that did not answer this client lately: what one call learns, the next ones know.
//!
//! What must stay true: a client that is well pays one load of a flag. Only exchanges count: a read of
//! mapped memory succeeds however long its owner has been stopped, and proves nothing.

use mooncrate_core::SegmentId;
use mooncrate_core::health::{self, Standing};
use mooncrate_core::plan::Locator;
use mooncrate_lock::Mutex;
use mooncrate_mem::clock::boottime;
use mooncrate_transfer::TransferError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long an owner may be silent where another one has the value, too.
pub(crate) const HASTE: Duration = Duration::from_millis(250);

/// What is held against owners.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    /// Whether the table has an entry. Changed under its lock.
    any: AtomicBool,
    table: Mutex<health::Owners>,
}

impl Owners {
    /// Whether something is held against somebody.
    pub(crate) fn any(&self) -> bool {
        // Relaxed: a hint, which orders nothing.
        self.any.load(Ordering::Relaxed)
    }

    /// How the owner of this replica is to be treated.
    pub(crate) fn standing(&self, at: &Locator) -> Standing {
        if !self.any() {
            return Standing::Sound;
        }
        self.table.lock().standing((at.segment, at.incarnation), boottime())
    }

    /// The segments that get no new value.
    pub(crate) fn avoided(&self) -> Vec<SegmentId> {
        if !self.any() {
            return Vec::new();
        }
        self.table.lock().avoided(boottime()).collect()
    }

    /// An exchange with the owner of this replica has ended; with an error, or well.
    pub(crate) fn note(&self, at: &Locator, error: Option<&TransferError>) {
        let owner = (at.segment, at.incarnation);
        if let Some(silent) = error.and_then(TransferError::silence) {
            return self.change(|table| table.failed(owner, silent, boottime()));
        }
        // A refusal is an answer, too.
        let answered = matches!(error, None | Some(TransferError::Data(_)));
        if answered && self.any() {
            self.change(|table| table.answered(owner));
        }
    }

    fn change(&self, change: impl FnOnce(&mut health::Owners)) {
        let mut table = self.table.lock();
        change(&mut table);
        self.any.store(!table.is_empty(), Ordering::Relaxed);
    }
}
