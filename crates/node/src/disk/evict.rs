//! Making room: the owner of a disk evicts by itself, in two steps. Records are hidden, their slots
//! retired, and the master told; when it has answered, and the last reader has left, files are deleted (S1).

use super::{Disk, Retired};
use crate::duty::Node;
use mooncrate_core::plan::Notice;
use mooncrate_mem::clock::boottime;
use mooncrate_ssd::{Backend, Ticket};
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

/// Bytes to evict. Promised bytes count, because what is kept next must fit beside them: of small values more is
/// promised, for their removal, than their files take. Records count as well: the master sends nothing to a disk whose
/// slots are used up, and small values use them up before the bytes.
fn surplus(backend: &dyn Backend, slots: u64, at_once: bool) -> u64 {
    let usage = backend.usage();
    let bytes = above(backend.promised(), usage.limit, at_once);
    let record = usage.used.div_ceil(usage.records.max(1));
    bytes.max(above(usage.records, slots, false) * record)
}

/// What of `used` is above the lower share of `limit`, once it is above the higher one, or where something did not fit.
fn above(used: u64, limit: u64, at_once: bool) -> u64 {
    let share = |percent: u64| limit / 100 * percent;
    if at_once || used > share(HIGH_PERCENT) {
        used.saturating_sub(share(LOW_PERCENT)).max(1)
    } else {
        0
    }
}

impl Disk {
    fn surplus(&self, at_once: bool) -> u64 {
        let slots = self.places.lock().segment().spec().slots;
        surplus(self.backend.as_ref(), slots.into(), at_once)
    }

    /// Wakes the evictor if there is need.
    pub(super) fn look_for_room(&self) {
        if self.surplus(false) > 0 {
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
        if !*crowded && self.surplus(false) == 0 {
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
            let bytes = disk.surplus(at_once);
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

#[cfg(test)]
mod tests {
    use super::*;
    use mooncrate_core::{LeaderEpoch, ObjectId};
    use mooncrate_mem::sums::seal_of;
    use mooncrate_ssd::disk::sim::{Rates, SimDisk};
    use mooncrate_ssd::{Config, Kind, NewRecord, RecordId};
    use std::sync::Arc;

    /// Values of any size wake the evictor before the first of them is refused for want of room: a refusal would
    /// make the master leave the disk alone for a while.
    #[test]
    fn room_is_made_before_something_is_refused() {
        const LIMIT: u64 = 8 << 20;
        for (kind, len) in [Kind::Bucket, Kind::PerKey, Kind::Offset]
            .into_iter()
            .flat_map(|kind| [0, 100, 5000, 60_000].map(|len| (kind, len)))
        {
            let disk = Arc::new(SimDisk::new(1, 4 * LIMIT, Rates::default()));
            let config = Config::new(kind, LIMIT);
            let (backend, _) = mooncrate_ssd::open(disk, &config, &mut drop, &mut drop).unwrap();
            let value = vec![7; len];
            let seal = seal_of(&value);
            // As in a group, but for groups that are larger than what is left of the disk by then.
            let together = (100_000 / (len as u64 + 1)).clamp(1, 32);
            let mut next = 0;
            loop {
                let woken = surplus(backend.as_ref(), u64::MAX, false) > 0;
                let record = |sequence| {
                    let object = ObjectId { epoch: LeaderEpoch(1), sequence };
                    let id = RecordId { object, stripe: 0 };
                    NewRecord { id, label: b"label", seal, value: &value }
                };
                let group: Vec<NewRecord<'_>> = (next..next + together).map(record).collect();
                next += together;
                if backend.keep(&group).iter().any(Result::is_err) {
                    assert!(woken, "{kind:?}, {len} bytes: refused at {:?}", backend.usage());
                    break;
                }
            }
        }
    }

    /// Was: small values used up the slots, at half the bytes of the disk or less, and from then on the disk took
    /// nothing new.
    #[test]
    fn records_go_before_the_last_slot_is_used() {
        const SLOTS: u64 = 1000;
        for kind in [Kind::Bucket, Kind::PerKey, Kind::Offset] {
            let disk = Arc::new(SimDisk::new(1, 64 << 20, Rates::default()));
            let config = Config::new(kind, 32 << 20);
            let (backend, _) = mooncrate_ssd::open(disk, &config, &mut drop, &mut drop).unwrap();
            let value = [7; 1000];
            let seal = seal_of(&value);
            let record = |sequence| {
                let object = ObjectId { epoch: LeaderEpoch(1), sequence };
                let id = RecordId { object, stripe: 0 };
                NewRecord { id, label: b"label", seal, value: &value }
            };
            let of = || surplus(backend.as_ref(), SLOTS, false);
            for first in (0..950).step_by(50) {
                assert_eq!(of(), 0, "{kind:?}, {first} records");
                let group: Vec<NewRecord<'_>> = (first..first + 50).map(record).collect();
                assert!(backend.keep(&group).iter().all(Result::is_ok));
            }
            assert!(backend.keep(&[record(950)])[0].is_ok());
            let ticket = backend.unlink(of()).expect("some are to go");
            assert!(ticket.records().len() >= 51, "{kind:?}: {}", ticket.records().len());
        }
    }
}
