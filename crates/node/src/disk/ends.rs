//! Ends of lives on a disk: the master's orders, and records that went bad. First the record goes, for
//! good; then the slot; then its end is told (G6).

use super::places::Place;
use super::{Disk, End, Held, Retired};
use crate::duty::Node;
use crate::metrics::Tally as NodeTally;
use mooncrate_core::plan::{Action, Notice, Order};
use mooncrate_core::{LeaderEpoch, Now};
use mooncrate_mem::Segment;
use mooncrate_mem::clock::boottime;
use mooncrate_ssd::{RecordId, is_full};
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Ends that wait for one disk. Orders repeat, so one too many is lost without harm.
pub(super) const ENDS_MAX: usize = 1 << 16;
/// Ends that are carried out together: one removal for all of them.
const TOGETHER_MAX: usize = 1024;
/// How long the thread waits before it looks whether the node stops.
const NAP: Duration = Duration::from_millis(100);
/// Pause after a removal that the disk refused.
const FAILED_PAUSE: Duration = Duration::from_millis(200);
/// A disk that fails every removal for so long is given up: the next start may fare better.
const LOST_AFTER: Duration = Duration::from_secs(30);

impl Disk {
    pub(super) fn next_ends(&self) -> Vec<End> {
        let mut ends = self.ends.lock();
        if ends.is_empty() && self.undurable.lock().is_empty() {
            self.ended.wait_for(&mut ends, NAP);
        }
        let count = ends.len().min(TOGETHER_MAX);
        ends.drain(..count).collect()
    }

    /// A removal failed, and is tried again. One that had no room gets some.
    pub(super) fn not_removed(&self, error: &io::Error) {
        self.tally.errors.one();
        if is_full(error) {
            self.no_room();
        } else {
            tracing::error!(%error, path = %self.config.path.display(), "records were not removed");
        }
    }

    /// Removes these and what could not be removed before.
    fn remove(&self, ids: &[RecordId]) -> io::Result<()> {
        let late: BTreeSet<RecordId> = self.undurable.lock().iter().map(|(id, _)| *id).collect();
        let all: Vec<RecordId> = ids.iter().chain(&late).copied().collect();
        if all.is_empty() {
            return Ok(());
        }
        self.backend.remove(&all)?;
        self.tally.removed.add(ids.len() as u64);
        let mut undurable = self.undurable.lock();
        let (gone, left) = undurable.drain(..).partition::<Vec<_>, _>(|(id, _)| late.contains(id));
        *undurable = left;
        drop(undurable);
        let now = boottime();
        for (_, held) in gone {
            match held {
                Held::Nothing => {}
                // Its end says that the slot is free.
                Held::Life(guard) => drop(guard),
                Held::Retired(segment, place) => {
                    segment.settle(now, place.slot, place.generation);
                }
            }
        }
        Ok(())
    }
}

impl Node {
    /// A thread that ends lives on a disk, for as long as the node lives.
    pub(crate) fn end_lives(&self, disk: &Disk) {
        let mut failing = Failing::default();
        while !self.stopping() {
            let ends = disk.next_ends();
            disk.write_confirmed();
            disk.let_carried_go();
            if ends.is_empty() && disk.undurable.lock().is_empty() {
                continue;
            }
            let (notices, removed) = disk.end_together(&ends, self.tally());
            self.deliver(notices);
            let Err(error) = removed else {
                failing = Failing::default();
                continue;
            };
            // Nothing was said of these, so the master repeats its orders; bad records come up again.
            disk.not_removed(&error);
            if failing.for_good(boottime()) {
                self.give_disk_up(disk);
                return;
            }
            self.nap(FAILED_PAUSE);
        }
    }

    /// A disk that removes nothing any more would hold the keys of its records for ever: it is unmounted, as if
    /// it were gone. Its master lets the keys go when no leader can believe the disk any more (0022).
    fn give_disk_up(&self, disk: &Disk) {
        disk.lost.store(true, Ordering::Release);
        let path = disk.config.path.display();
        tracing::error!(
            %path,
            "no record could be removed for {LOST_AFTER:?}: the disk is given up; look at it, and start the \
             node again"
        );
        if let Err(error) = self.unmount(disk.id) {
            // It is told again until it has heard.
            tracing::debug!(%error, "the master did not hear that a disk is given up");
        }
    }
}

impl Disk {
    /// Ends lives; what the master is to be told, and whether the disk did its part. What went bad is told
    /// in any case, because nobody can read it any more.
    pub(super) fn end_together(
        &self,
        ends: &[End],
        tally: &NodeTally,
    ) -> (Vec<Notice>, io::Result<()>) {
        let mut going = BTreeSet::new();
        let mut bad = Vec::new();
        let segment = {
            let places = self.places.lock();
            for end in ends {
                match end {
                    End::Order(epoch, order) if obeys(places.segment(), *epoch, order) => {
                        going.extend(places.at(order.incarnation, order.slot, order.generation));
                    }
                    End::Order(..) => {}
                    End::Bad(id) => bad.push(*id),
                }
            }
            Arc::clone(places.segment())
        };
        let mut notices = self.retire_bad(&bad);
        let gone: Vec<RecordId> = going.iter().copied().collect();
        if let Err(error) = self.remove(&gone) {
            return (notices, Err(error));
        }
        let now = boottime();
        // Held over the looks and the orders: what is kept meanwhile gets its place first, and is found.
        let mut places = self.places.lock();
        if !Arc::ptr_eq(places.segment(), &segment) {
            // A new mount has taken over what is gone by now. The orders were for the one before.
            drop(places);
            for id in going {
                self.push_end(End::Bad(id));
            }
            return (notices, Ok(()));
        }
        let mut refused = Vec::new();
        for end in ends {
            let End::Order(epoch, order) = end else { continue };
            let here = places.at(order.incarnation, order.slot, order.generation);
            if here.is_some_and(|id| !going.contains(&id)) {
                // Kept while others were removed: it is still on the disk. The master repeats the order.
                continue;
            }
            match carry_out(&segment, now, *epoch, order, tally) {
                Some(notice) => {
                    notices.push(notice);
                    if let Some(id) = here {
                        going.remove(&id);
                        places.remove(&id);
                    }
                }
                None => refused.extend(here),
            }
        }
        drop(places);
        // A new leader took over during the removal. This node may have announced these records to it.
        refused.retain(|id| going.contains(id));
        notices.extend(self.retire_bad(&refused));
        (notices, Ok(()))
    }

    /// Ends the lives of records that are not served any more; they are to be removed.
    fn retire_bad(&self, ids: &[RecordId]) -> Vec<Notice> {
        let Retired { segment, notices, records } = self.retire(ids);
        self.hold_retired(&segment, records);
        notices
    }

    /// The records of these slots are to be removed before the slots are free.
    pub(super) fn hold_retired(&self, segment: &Arc<Segment>, records: Vec<(RecordId, Place)>) {
        if records.is_empty() {
            return;
        }
        let held = |(id, place)| (id, Held::Retired(Arc::clone(segment), place));
        self.undurable.lock().extend(records.into_iter().map(held));
        self.ended.notify_one();
    }
}

/// Carries out an order for a life whose record is gone, or was never there.
fn carry_out(
    segment: &Segment,
    now: Now,
    epoch: LeaderEpoch,
    order: &Order,
    tally: &NodeTally,
) -> Option<Notice> {
    // A record that is gone is not spared, whoever reads it: the slot waits for the last reader.
    let action = match order.action {
        Action::Evict => Action::Retire { free_after_ms: 0 },
        action => action,
    };
    match segment.execute(now, epoch, &Order { action, ..*order }) {
        Ok(notice) => {
            tally.orders.one();
            Some(notice)
        }
        Err(error) => {
            tally.orders_refused.one();
            tracing::debug!(%error, ?order, "order refused");
            None
        }
    }
}

/// How long removals have failed, all of them.
#[derive(Debug, Default)]
struct Failing {
    since: Option<Now>,
}

impl Failing {
    /// One more failed; whether the disk is to be taken for lost.
    fn for_good(&mut self, now: Now) -> bool {
        now.since(*self.since.get_or_insert(now)) >= LOST_AFTER
    }
}

/// Whether an order will be carried out: only then may its record go.
fn obeys(segment: &Segment, epoch: LeaderEpoch, order: &Order) -> bool {
    segment.spec().incarnation == order.incarnation && segment.witness(epoch).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_lost_when_it_fails_for_long_without_a_break() {
        let start = Now(1_000_000_000);
        let mut failing = Failing::default();
        assert!(!failing.for_good(start));
        assert!(!failing.for_good(start.plus(LOST_AFTER / 2)));
        assert!(failing.for_good(start.plus(LOST_AFTER)));
        // It worked once.
        failing = Failing::default();
        assert!(!failing.for_good(start.plus(LOST_AFTER * 2)));
    }
}
