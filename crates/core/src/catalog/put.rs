//! put: reserve all or nothing, hand out a plan, make it visible at the end.

use super::objects::{Entry, EntryId, Part, Parts, SegmentIndex, Stage};
use super::segments::NOBODY;
use super::{Catalog, evict};
use crate::alloc::Allocation;
use crate::canary::{self, Canary};
use crate::error::PutError;
use crate::ids::{NodeId, ObjectId, PutToken};
use crate::key;
use crate::lease;
use crate::limits::{REPLICAS_MAX, VALUE_BYTES_MAX};
use crate::place::Ask;
use crate::plan::{Action, PutConfig, WritePlan};
use crate::seal::{self, Seal};
use crate::time::Now;
use std::collections::VecDeque;

/// Segments that placement may propose for one replica before the put counts as short of room.
const PICKS_MAX: usize = 8;
/// Hint for a caller that meets another put of its key.
const IN_PROGRESS_MS: u32 = 5;
/// Hint for a caller while owners free room.
const RECLAIM_MS: u32 = 1;

/// Open puts in the order of their start: the watchdog looks at the oldest only.
#[derive(Debug, Default)]
pub(super) struct OpenPuts {
    queue: VecDeque<(Now, EntryId, ObjectId)>,
    open: usize,
}

impl OpenPuts {
    pub(super) fn len(&self) -> usize {
        self.open
    }

    fn started(&mut self, deadline: Now, entry: EntryId, object: ObjectId) {
        self.queue.push_back((deadline, entry, object));
        self.open += 1;
    }

    /// One put ended. Its place in the queue is skipped when its time comes, or dropped early when
    /// it stands at the head.
    fn ended(&mut self) {
        self.open -= 1;
    }

    /// The oldest put whose time is over.
    pub(super) fn expired(&mut self, now: Now) -> Option<(EntryId, ObjectId)> {
        let &(deadline, entry, object) = self.queue.front()?;
        if deadline > now {
            return None;
        }
        self.queue.pop_front();
        Some((entry, object))
    }

    /// Drops finished puts from the head, so that the queue follows the open ones.
    fn trim(&mut self, still_open: impl Fn(EntryId, ObjectId) -> bool) {
        while let Some(&(_, entry, object)) = self.queue.front() {
            if still_open(entry, object) {
                return;
            }
            self.queue.pop_front();
        }
    }
}

/// A replica that was reserved for a put.
struct Reserved {
    segment: SegmentIndex,
    part: Part,
    allocation: Allocation,
}

/// What placement is asked for one replica.
fn ask<'a>(
    bytes: u64,
    config: &'a PutConfig,
    avoid_nodes: &'a [NodeId],
    tried: &'a [usize],
    need_free: bool,
) -> Ask<'a> {
    let PutConfig { preferred, host, zone, .. } = config;
    Ask { bytes, preferred, host: *host, zone: *zone, avoid_nodes, tried, need_free }
}

impl Catalog {
    /// Reserves room for a value and returns the plan to write it, or says why not. `Reclaiming`:
    /// evict orders are out; carry them out and call again.
    pub fn put_start(
        &mut self,
        now: Now,
        key: &[u8],
        len: u64,
        config: &PutConfig,
    ) -> Result<WritePlan, PutError> {
        self.check_put(now, key, len, config)?;
        let bytes = seal::extent_bytes(len);
        let reserved = self.reserve(now, bytes, config)?;

        self.sequence += 1;
        let object = ObjectId { epoch: self.epoch, sequence: self.sequence };
        let entry = Entry {
            key: key.into(),
            hash: key::hash(key).0,
            object,
            len,
            seal: Seal::default(),
            lease_end: Now(0),
            parts: Parts::new(reserved.iter().map(|r| r.part).collect()),
            stage: Stage::Writing,
        };
        let id = self.objects.insert(entry);
        let entry = self.objects.entry(id);
        let replicas = reserved
            .iter()
            .map(|r| {
                let book = self.segments.book_mut(r.segment);
                book.slots[r.part.slot.0].entry = id;
                entry.locator(&r.part, book)
            })
            .collect();
        self.open.started(now.plus(self.config.put_timeout), id, object);
        for r in &reserved {
            self.evict_above_high(now, r.segment);
        }
        Ok(WritePlan { object, token: self.token(object), epoch: self.epoch, len, replicas })
    }

    /// The value is written and published on every replica: makes it visible. Idempotent.
    pub fn put_end(
        &mut self,
        now: Now,
        key: &[u8],
        token: PutToken,
        seal: Seal,
    ) -> Result<(), PutError> {
        let id = self.open_put(key, token)?;
        let entry = self.objects.entry(id);
        if entry.stage == Stage::Ready {
            return Ok(());
        }
        let mut parts = entry.parts.as_slice().iter();
        if !parts.all(|part| self.segments.book(part.segment).is_open()) {
            // A copy left with its node: the plan cannot be kept.
            self.abort_put(now, id);
            return Err(PutError::NoSuchPut);
        }
        let entry = self.objects.entry_mut(id);
        entry.stage = Stage::Ready;
        entry.seal = seal;
        for part in entry.parts.as_slice() {
            self.segments.book_mut(part.segment).policy.insert(part.slot);
        }
        self.counters.puts += 1;
        self.close_put();
        Ok(())
    }

    /// Gives up a put: the key can be put again when the owners have confirmed it, the ranges return
    /// when the writer is fenced.
    pub fn put_revoke(&mut self, now: Now, key: &[u8], token: PutToken) -> Result<(), PutError> {
        let id = self.open_put(key, token)?;
        if self.objects.entry(id).stage != Stage::Writing {
            self.counters.stale_tokens += 1;
            return Err(PutError::NoSuchPut);
        }
        self.abort_put(now, id);
        Ok(())
    }

    /// Ends an open put without a value. Its key stays taken until every owner has said that no copy
    /// can be published any more: otherwise the key could get another value, and a copy that was
    /// published meanwhile could come back as a second one when a new leader asks the nodes (C2).
    pub(super) fn abort_put(&mut self, now: Now, id: EntryId) {
        let entry = self.objects.entry_mut(id);
        let parts = std::mem::replace(&mut entry.parts, Parts::new(Vec::new()));
        entry.stage = Stage::Removing(parts.as_slice().len() as u8);
        for part in parts.as_slice() {
            let extent = self.objects.entry(id).extent(part);
            // A segment that is leaving answers for its copy when it is fenced: `sweep`.
            if self.segments.book(part.segment).is_open() {
                self.end_life(now, part, extent, Action::Abort, Some(id));
            }
        }
        self.close_put();
    }

    /// Books that an open put is over.
    pub(super) fn close_put(&mut self) {
        self.open.ended();
        let objects = &self.objects;
        self.open.trim(|id, object| {
            objects.get(id).is_some_and(|e| e.object == object && e.stage == Stage::Writing)
        });
    }

    /// The entry of the put that this token belongs to.
    fn open_put(&mut self, key: &[u8], token: PutToken) -> Result<EntryId, PutError> {
        key::check(key)?;
        let found = self.objects.find(key::hash(key), key).filter(|&id| {
            let entry = self.objects.entry(id);
            let ours = self.token(entry.object) == token || canary::on(Canary::NoTokenCheck);
            ours && !matches!(entry.stage, Stage::Removing(_))
        });
        if found.is_none() {
            self.counters.stale_tokens += 1;
        }
        found.ok_or(PutError::NoSuchPut)
    }

    fn check_put(
        &self,
        now: Now,
        key: &[u8],
        len: u64,
        config: &PutConfig,
    ) -> Result<(), PutError> {
        key::check(key)?;
        if len > VALUE_BYTES_MAX {
            return Err(PutError::TooLarge { len });
        }
        let wanted = u32::from(config.replicas);
        if wanted == 0 || wanted as usize > REPLICAS_MAX {
            return Err(PutError::BadReplicas { wanted });
        }
        match self.objects.find(key::hash(key), key).map(|id| self.objects.entry(id)) {
            Some(entry) if entry.stage == Stage::Ready && self.readable(entry) => {
                return Err(PutError::Exists);
            }
            Some(entry) => return Err(self.occupied(now, entry)),
            None => {}
        }
        if let Some(rebuild) = &self.rebuild {
            // M9: the key may live on a node that has not announced yet.
            return Err(PutError::Rebuilding { after_ms: rebuild.hint_ms(now) });
        }
        if self.segments.largest == 0 {
            return Err(PutError::NoSegments);
        }
        let bytes = seal::extent_bytes(len);
        if bytes > self.segments.largest {
            let largest = self.segments.largest;
            return Err(PutError::LargerThanAnySegment { wanted: bytes, largest });
        }
        if wanted > self.segments.open_nodes {
            return Err(PutError::TooFewNodes { wanted, nodes: self.segments.open_nodes });
        }
        Ok(())
    }

    /// Why a key that cannot be read cannot be put either.
    fn occupied(&self, now: Now, entry: &Entry) -> PutError {
        let parts = entry.parts.as_slice().iter();
        let held = parts.filter_map(|part| self.segments.book(part.segment).fenced_at()).max();
        match held {
            Some(fenced_at) if entry.stage == Stage::Ready => {
                PutError::Held { after_ms: lease::left_ms(now, fenced_at).max(IN_PROGRESS_MS) }
            }
            _ => PutError::InProgress { after_ms: IN_PROGRESS_MS },
        }
    }

    /// A range per replica on distinct nodes, or none at all (M2).
    fn reserve(
        &mut self,
        now: Now,
        bytes: u64,
        config: &PutConfig,
    ) -> Result<Vec<Reserved>, PutError> {
        let mut reserved: Vec<Reserved> = Vec::with_capacity(config.replicas.into());
        let mut nodes: Vec<NodeId> = Vec::with_capacity(config.replicas.into());
        for _ in 0..config.replicas {
            let Some(one) = self.reserve_one(bytes, config, &nodes) else {
                let mut undo = reserved.into_iter();
                if canary::on(Canary::LeakOnFailedReserve) {
                    undo.next();
                }
                for one in undo {
                    let book = self.segments.book_mut(one.segment);
                    book.unreserve(one.part.slot, one.allocation);
                    self.segments.refresh(one.segment);
                }
                return Err(self.reclaim_for_put(now, bytes, config, &nodes));
            };
            nodes.push(self.segments.book(one.segment).offer.node);
            reserved.push(one);
        }
        Ok(reserved)
    }

    fn reserve_one(
        &mut self,
        bytes: u64,
        config: &PutConfig,
        avoid_nodes: &[NodeId],
    ) -> Option<Reserved> {
        let mut tried = [0_usize; PICKS_MAX];
        for picks in 0..PICKS_MAX {
            let ask = ask(bytes, config, avoid_nodes, &tried[..picks], true);
            let pick = self.placement.pick(&self.segments.loads, &ask)?;
            let segment = pick as SegmentIndex;
            let book = self.segments.book_mut(segment);
            if let Some((slot, generation, allocation)) = book.reserve(bytes, NOBODY) {
                self.segments.refresh(segment);
                let part = Part {
                    offset: allocation.extent.offset(),
                    slot,
                    generation,
                    handle: allocation.handle,
                    segment,
                    evicting: false,
                };
                return Some(Reserved { segment, part, allocation });
            }
            tried[picks] = pick;
        }
        None
    }

    /// No room: order evictions where placement would have put the replica, and say what to expect.
    fn reclaim_for_put(
        &mut self,
        now: Now,
        bytes: u64,
        config: &PutConfig,
        avoid_nodes: &[NodeId],
    ) -> PutError {
        let mut tried = [0_usize; PICKS_MAX];
        for picks in 0..PICKS_MAX {
            let ask = ask(bytes, config, avoid_nodes, &tried[..picks], false);
            let Some(pick) = self.placement.pick(&self.segments.loads, &ask) else { break };
            match self.reclaim(now, pick as SegmentIndex, bytes) {
                evict::Reclaim::Ordered => return PutError::Reclaiming { after_ms: RECLAIM_MS },
                evict::Reclaim::InUse => tried[picks] = pick,
            }
        }
        self.counters.busy += 1;
        PutError::Busy {
            after_ms: evict::BUSY_HINT_MS.max(lease::left_ms(now, self.grace_until).min(1000)),
        }
    }
}
