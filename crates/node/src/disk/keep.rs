//! Offloading: values that the master wants on a disk are read as every copy is, written in groups, and
//! told as copied when they are durable (S2).
//!
//! A group goes out when it has 32 records, 8 MiB, or an order that is 20 ms old: nothing waits for a
//! bucket to fill. What lies in this node's memory is written from there, pinned until that is done (S9).

use super::places::Place;
use super::{Disk, Held, record_of};
use crate::duty::Node;
use mooncrate_core::Now;
use mooncrate_core::copy::{CopyDone, CopyOrder};
use mooncrate_core::time::Deadline;
use mooncrate_mem::clock::boottime;
use mooncrate_mem::{BeginWrite, LabelHash, PinGuard, SegmentError, WriteGuard};
use mooncrate_ssd::{GROUP_BYTES, KeepError, NewRecord, RecordId, Room, is_full};
use mooncrate_transfer::TransferError;
use std::collections::VecDeque;
use std::time::Duration;

/// Orders that wait for one disk, and their bytes.
const QUEUE_MAX: usize = 1024;
const QUEUE_BYTES_MAX: u64 = 256 << 20;
/// What is written together.
const GROUP_MAX: usize = 32;
const GROUP_AGE: Duration = Duration::from_millis(20);
/// How long a thread waits before it looks whether the node stops.
const NAP: Duration = Duration::from_millis(100);
/// Pause after the disk had no room or failed: the next try would fare no better.
const FAILED_PAUSE: Duration = Duration::from_millis(50);

/// Orders that wait, oldest first.
#[derive(Default)]
pub(super) struct Queue {
    orders: VecDeque<(Now, Box<CopyOrder>)>,
    bytes: u64,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.orders.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How long until a group is due; `None`: nothing waits.
    fn due_in(&self, now: Now) -> Option<Duration> {
        let (oldest, _) = self.orders.front()?;
        let full = self.orders.len() >= GROUP_MAX || self.bytes >= GROUP_BYTES;
        Some(if full { Duration::ZERO } else { GROUP_AGE.saturating_sub(now.since(*oldest)) })
    }

    fn take_group(&mut self) -> Vec<(Now, Box<CopyOrder>)> {
        let (mut group, mut bytes) = (Vec::new(), 0);
        while group.len() < GROUP_MAX && (group.is_empty() || bytes < GROUP_BYTES) {
            let Some(next) = self.orders.pop_front() else { break };
            bytes += next.1.len;
            group.push(next);
        }
        self.bytes -= bytes;
        group
    }
}

/// Where the bytes of a record are until they are written.
pub(super) enum Source {
    /// In our own memory, pinned.
    Pinned(PinGuard),
    /// Fetched.
    Fetched(Room),
}

impl Source {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Pinned(pin) => pin.bytes(),
            Self::Fetched(room) => room,
        }
    }
}

/// A value on its way to the disk.
pub(super) struct Going {
    pub(super) order: Box<CopyOrder>,
    pub(super) guard: WriteGuard,
    pub(super) label: Vec<u8>,
    pub(super) id: RecordId,
    pub(super) source: Source,
}

impl Disk {
    /// Takes an order, or refuses it.
    pub(crate) fn offer(&self, order: CopyOrder) -> bool {
        let now = boottime();
        if self.refuses() {
            self.tally.refused_full.one();
            return false;
        }
        if !self.budget.lock().allows(now, self.backend.usage().written) {
            self.tally.refused_budget.one();
            return false;
        }
        let mut queue = self.queue.lock();
        let after = queue.bytes + order.len;
        let full = queue.len() >= QUEUE_MAX || (after > QUEUE_BYTES_MAX && queue.len() > 0);
        if full {
            self.tally.refused_queue.one();
            return false;
        }
        queue.bytes = after;
        queue.orders.push_back((now, Box::new(order)));
        self.queued.notify_one();
        true
    }

    /// The next group, or none within a nap.
    fn next_group(&self) -> Vec<(Now, Box<CopyOrder>)> {
        let mut queue = self.queue.lock();
        match queue.due_in(boottime()) {
            Some(Duration::ZERO) => queue.take_group(),
            Some(wait) => {
                self.queued.wait_for(&mut queue, wait);
                match queue.due_in(boottime()) {
                    Some(Duration::ZERO) => queue.take_group(),
                    _ => Vec::new(),
                }
            }
            None => {
                self.queued.wait_for(&mut queue, NAP);
                Vec::new()
            }
        }
    }
}

impl Node {
    /// A thread that keeps values on a disk, for as long as the node lives.
    pub(crate) fn keep_values(&self, disk: &Disk) {
        while !self.stopping() {
            let group = disk.next_group();
            if group.is_empty() {
                continue;
            }
            let mut done = Vec::with_capacity(group.len());
            let mut going = Vec::with_capacity(group.len());
            for (came, order) in group {
                let target = order.target;
                match self.prepare(disk, came, order) {
                    Ok(one) => going.push(one),
                    Err(error) => {
                        disk.tally.refused_other.one();
                        tracing::debug!(%error, ?target, "offload failed");
                        done.push(CopyDone::of(&target, false));
                    }
                }
            }
            let failed = disk.keep_group(going, &mut done);
            for one in done {
                self.copier().remember(one, 0);
            }
            if !self.tell_copies() {
                // Those who copy tell it again; here the next group may be long in coming.
                self.copier().wake();
            }
            if failed {
                self.nap(FAILED_PAUSE);
            }
        }
    }

    /// Opens the slot and holds the bytes.
    fn prepare(
        &self,
        disk: &Disk,
        came: Now,
        order: Box<CopyOrder>,
    ) -> Result<Going, TransferError> {
        let now = boottime();
        let end = came.deadline_in(Duration::from_millis(u64::from(order.time_ms)));
        if end.passed(now) {
            return Err(TransferError::NotTried);
        }
        let label = order.label.encode();
        let begin = BeginWrite {
            locator: order.target,
            token: order.token,
            object: order.object,
            epoch: order.epoch,
            len: order.len,
            label: &label,
            hash: LabelHash::of(&label),
        };
        let guard = disk.begin(&begin)?;
        let source = self.hold(&guard, &order, end)?;
        let id = record_of(order.object, &label);
        Ok(Going { order, guard, label, id, source })
    }

    fn hold(
        &self,
        guard: &WriteGuard,
        order: &CopyOrder,
        end: Deadline,
    ) -> Result<Source, TransferError> {
        for source in &order.sources {
            let pinned = self.segments().find(source).ok().filter(|segment| segment.is_in_place());
            if let Some(Ok(pin)) = pinned.map(|segment| segment.pin(boottime(), source))
                && pin.value_len() == order.len
            {
                return Ok(Source::Pinned(pin));
            }
        }
        let mut room = Room::new(order.len as usize);
        room.set_len(order.len as usize);
        self.fetch_into(order, &mut room, end, || guard.aborted())?;
        Ok(Source::Fetched(room))
    }
}

impl Disk {
    /// Opens a slot of the segment that is mounted. A mount that ends takes it along.
    pub(super) fn begin(&self, begin: &BeginWrite<'_>) -> Result<WriteGuard, SegmentError> {
        self.places.lock().segment().begin(boottime(), begin)
    }

    /// Writes a group and publishes what is durable; whether the disk should be left alone for a moment.
    pub(super) fn keep_group(&self, going: Vec<Going>, done: &mut Vec<CopyDone>) -> bool {
        if going.is_empty() {
            return false;
        }
        let records: Vec<NewRecord<'_>> = going
            .iter()
            .map(|one| NewRecord {
                id: one.id,
                label: &one.label,
                seal: one.order.seal,
                value: one.source.bytes(),
            })
            .collect();
        let began = boottime();
        let results = self.backend.keep(&records);
        self.tally.keeps.note(boottime().since(began));
        drop(records);
        let mut failed = false;
        for (one, result) in going.into_iter().zip(results) {
            let target = one.order.target;
            let ok = match result {
                Ok(()) => self.publish_record(one),
                Err(error) => {
                    failed |= self.not_kept(one, &error);
                    false
                }
            };
            done.push(CopyDone::of(&target, ok));
        }
        self.look_for_room();
        failed
    }

    /// The record is durable: makes its slot readable. A put that was given up meanwhile leaves nothing.
    fn publish_record(&self, one: Going) -> bool {
        let Going { order, guard, id, source, .. } = one;
        drop(source);
        let place = Place { slot: order.target.slot, generation: order.target.generation };
        // One step for whoever looks at places: no mount ends, and no order comes, between the two halves.
        let mut places = self.places.lock();
        let refused = if places.insert(order.target.incarnation, id, place) {
            match guard.publish_kept(boottime(), order.token, order.seal) {
                Ok(()) => {
                    drop(places);
                    self.tally.kept.one();
                    self.tally.kept_bytes.add(order.len);
                    return true;
                }
                Err(refused) => {
                    places.remove(&id);
                    refused.guard
                }
            }
        } else {
            guard
        };
        drop(places);
        self.tally.refused_other.one();
        // Before the guard ends, which says that the slot is free.
        self.remove_for_good(id, Held::Life(refused));
        false
    }

    fn not_kept(&self, one: Going, error: &KeepError) -> bool {
        match error {
            KeepError::Full { limit, .. } => {
                self.tally.refused_full.one();
                // Of the file system, not of the disk.
                if *limit < self.backend.usage().limit {
                    self.no_room();
                } else {
                    self.make_room();
                }
                true
            }
            KeepError::Exists => {
                self.tally.refused_other.one();
                // Left over from a life that was given up; the next try finds it gone.
                if !self.places.lock().holds(&one.id) {
                    self.remove_for_good(one.id, Held::Nothing);
                }
                false
            }
            KeepError::Corrupt => {
                self.tally.refused_other.one();
                tracing::error!(object = %one.order.object, "the bytes in memory are not those that were put");
                false
            }
            error => {
                if matches!(error, KeepError::Disk(error) if is_full(error)) {
                    self.tally.refused_full.one();
                    self.no_room();
                } else {
                    self.tally.refused_failed.one();
                    self.tally.errors.one();
                    let path = self.config.path.display();
                    tracing::error!(%error, %path, "a record was not written");
                }
                // What was written of it may be found by a start: the slot is free when that is not so.
                self.remove_for_good(one.id, Held::Life(one.guard));
                true
            }
        }
    }

    /// Removes a record whose life is not to be; what is held ends when that is durable.
    fn remove_for_good(&self, id: RecordId, held: Held) {
        match self.backend.remove(&[id]) {
            Ok(()) => drop(held),
            Err(error) => {
                self.not_removed(&error);
                self.undurable.lock().push((id, held));
                self.ended.notify_one();
            }
        }
    }
}
