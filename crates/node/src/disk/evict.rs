//! Making room: the owner of a disk evicts by itself, in two steps. Records are hidden, their slots
//! retired, and the master told; when it has answered, and the last reader has left, files are deleted (S1).

use super::{Disk, Retired};
use crate::duty::Node;
use mooncrate_core::plan::Notice;
use mooncrate_mem::clock::boottime;
use mooncrate_ssd::{Ticket, Usage};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Room is made above this share of the limit, in percent …
const HIGH_PERCENT: u64 = 95;
/// … down to this one.
const LOW_PERCENT: u64 = 90;
/// How often the evictor looks by itself.
const NAP: Duration = Duration::from_millis(500);
/// Between two attempts to reach the master.
const RETRY: Duration = Duration::from_millis(200);
/// How long readers of deleted files may take; then the files stay as orphans until the next start.
const DRAIN_TIME: Duration = Duration::from_secs(10);

/// Bytes that should go.
fn surplus(usage: &Usage, at_once: bool) -> u64 {
    let share = |percent: u64| usage.limit / 100 * percent;
    if at_once || usage.used > share(HIGH_PERCENT) {
        usage.used.saturating_sub(share(LOW_PERCENT)).max(1)
    } else {
        0
    }
}

impl Disk {
    /// Wakes the evictor if there is need.
    pub(super) fn look_for_room(&self) {
        if surplus(&self.backend.usage(), false) > 0 {
            self.crowd.notify_one();
        }
    }

    /// Wakes the evictor: something did not fit.
    pub(super) fn make_room(&self) {
        *self.crowded.lock() = true;
        self.crowd.notify_one();
    }

    fn wait_for_crowd(&self) -> bool {
        let mut crowded = self.crowded.lock();
        if !*crowded && surplus(&self.backend.usage(), false) == 0 {
            self.crowd.wait_for(&mut crowded, NAP);
        }
        std::mem::take(&mut *crowded)
    }
}

impl Disk {
    /// Deletes what the master has heard of. Where that fails, a crash could bring the records back: then they
    /// are removed like all others, as often as it takes, before their slots are free.
    pub(super) fn delete_evicted(&self, ticket: Box<dyn Ticket>, retired: Retired) {
        let (records, bytes) = (ticket.records().len() as u64, ticket.bytes());
        match ticket.finish(DRAIN_TIME) {
            Ok(()) => {
                self.tally.evicted.add(records);
                self.tally.evicted_bytes.add(bytes);
                let now = boottime();
                for (_, place) in retired.records {
                    retired.segment.settle(now, place.slot, place.generation);
                }
            }
            Err(error) => {
                self.tally.errors.one();
                let path = self.config.path.display();
                tracing::error!(%error, %path, "evicted files were not deleted");
                self.hold_retired(&retired.segment, retired.records);
            }
        }
    }
}

impl Node {
    /// A thread that makes room on a disk, for as long as the node lives.
    pub(crate) fn evict_records(&self, disk: &Disk) {
        while !self.stopping() {
            let at_once = disk.wait_for_crowd();
            let bytes = surplus(&disk.backend.usage(), at_once);
            if bytes == 0 || self.stopping() {
                continue;
            }
            let Some(ticket) = disk.backend.unlink(bytes) else {
                self.nap(RETRY);
                continue;
            };
            self.evict_ticket(disk, ticket);
        }
    }

    fn evict_ticket(&self, disk: &Disk, ticket: Box<dyn Ticket>) {
        let retired = disk.retire(ticket.records());
        // Dropped, the ticket links its records again; their slots are over, and the next start tells
        // of them anew.
        if self.tell_evicted(disk, &retired.notices) {
            disk.delete_evicted(ticket, retired);
        }
    }

    /// Tells the master what was hidden, until it has heard. Nothing new is taken meanwhile.
    fn tell_evicted(&self, disk: &Disk, notices: &[Notice]) -> bool {
        loop {
            if notices.is_empty() || self.tell(notices) {
                // Release: pairs with the Acquire in `refuses`.
                disk.refusing.store(false, Ordering::Release);
                return true;
            }
            disk.refusing.store(true, Ordering::Release);
            if self.stopping() {
                return false;
            }
            self.nap(RETRY);
        }
    }
}
