//! Segments that come back: which of their objects are still current.
//!
//! A disk keeps its records while it is away, and a node without a master keeps its memory. Meanwhile
//! values are removed or replaced, perhaps at another leader. What must stay true: a value whose removal or
//! replacement was acknowledged never comes back (G6).
//!
//! * While a segment is mounted, its replicas are parts of entries, and a removal is acknowledged only after
//!   the owner has freed them.
//! * A durable list ([`Catalog::trusted`]) names the segments that the next leader may believe, each with a
//!   [`Stamp`]: the incarnation of memory, or the number that the directory of a disk gets at every start. A
//!   segment is known by its own identity, so it does not matter at which node or position it comes back; an
//!   old copy of a directory shows an old stamp, and is not believed.
//! * A leader takes a segment off that list, durably, before it acknowledges anything that the segment could
//!   contradict: before the replicas of a segment that has left are swept out, and before a rebuild ends
//!   without a segment that was on the list. Until then its keys wait. A segment gets onto the list when it
//!   is open and has dropped everything that it should not have.
//! * For disks that leave under the same leader a ledger in memory keeps what they held: hash of the key, and
//!   object. Whatever ends or replaces a value strikes its hash. A disk that returns keeps what stands in
//!   the ledger and what the index has anyway; it is told to drop the rest, and those keys wait for that.
//! * A segment of the list that returns after the rebuild keeps what this leader has not struck.
//! * A list that is older than the segments proves nothing: if an owner has obeyed a leader that is later than
//!   the list, the whole list is forgotten ([`Catalog::follow`]).
//! * A disk that neither the ledger nor the list knows starts over empty, and so does memory.

use super::Catalog;
use super::objects::{EntryId, Part, SegmentIndex, Stage};
use super::segments::{Ending, Phase};
use crate::canary::{self, Canary};
use crate::extent::Extent;
use crate::ids::{Incarnation, LeaderEpoch, NodeId, ObjectId, SegmentId, Slot, Stamp, TenantId};
use crate::lease;
use crate::plan::{Action, AnnouncedObject, Medium, SegmentOffer};
use crate::time::Now;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Values of disks that are away, and hashes that a new leader has struck. Beyond, disks are forgotten.
const LEDGER_MAX: usize = 1 << 22;
/// The epoch of the object of an entry that only keeps its key: no leader has it. The object that was turned
/// away may be in memory all the same, so the entry does not have its name.
const NOBODYS: LeaderEpoch = LeaderEpoch(0);
/// Values that are forgotten in one tick when nobody needs them any more: the index stands still meanwhile.
const FORGET_MAX: usize = 4096;
/// For how long a disk that is away is remembered.
const REMEMBER: Duration = Duration::from_hours(24);

/// A segment that the next leader may believe, if it shows this stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Trusted {
    /// Which segment.
    pub segment: SegmentId,
    /// Which state of it.
    pub stamp: Stamp,
}

impl Trusted {
    /// What an offer is listed as.
    pub fn of(offer: &SegmentOffer) -> Self {
        Self { segment: offer.segment, stamp: offer.stamp() }
    }
}

/// Which of the objects that a segment announces are kept, beside those that the index has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// None.
    Nothing,
    /// Those in the ledger.
    Ledger,
    /// Those whose key was not struck since this leader came.
    NotStruck,
    /// All: no leader can have given its owner up, and no key was struck yet.
    All,
}

/// A segment of the list that has not mounted here yet.
#[derive(Debug)]
struct Late {
    stamps: BTreeSet<Stamp>,
    forget_at: Now,
}

/// What is remembered of segments that are not here.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// What disks that are away held, by the hash of the key, and how many tenants had been struck as a
    /// whole by then. One value per key: an older one was struck.
    objects: BTreeMap<u64, (ObjectId, u64)>,
    /// Disks that left, with their stamp, and when they are forgotten.
    away: BTreeMap<SegmentId, (Stamp, Now)>,
    /// Segments that the last leader believed and that have not mounted here yet; forgotten alike.
    late: BTreeMap<SegmentId, Late>,
    /// Keys that ended or got a value while segments are late.
    struck: BTreeSet<u64>,
    /// Tenants of whom keys have ended that nobody can name, and when, counted in such ends.
    whole: BTreeMap<TenantId, u64>,
    wholes: u64,
    /// What may be on the durable list.
    listed: BTreeSet<Trusted>,
    /// What may be on it and must not be.
    doubted: BTreeSet<Trusted>,
}

impl Ledger {
    /// What a leader begins with: the durable list.
    pub(super) fn new(now: Now, list: Vec<Trusted>) -> Self {
        let mut late: BTreeMap<SegmentId, Late> = BTreeMap::new();
        for Trusted { segment, stamp } in &list {
            let forget_at = now.plus(REMEMBER);
            let late = late.entry(*segment);
            late.or_insert(Late { stamps: BTreeSet::new(), forget_at }).stamps.insert(*stamp);
        }
        Self { late, listed: list.into_iter().collect(), ..Self::default() }
    }

    /// The list is older than what owners have seen: nothing of it is believed.
    pub(super) fn forget_list(&mut self) {
        self.late.clear();
    }

    /// Whether the durable list may name a segment.
    pub(super) fn lists(&self, told: &Trusted) -> bool {
        self.listed.contains(told)
    }

    /// Whether a disk of the list that this leader began with has not mounted yet.
    pub(super) fn awaits_disk(&self) -> bool {
        self.late.keys().any(|segment| segment.medium() == Medium::Ssd)
    }

    /// The durable list must not name a segment any more.
    pub(super) fn doubt(&mut self, told: Trusted) {
        self.doubted.insert(told);
    }

    fn is_late(&self, offer: &SegmentOffer) -> bool {
        let late = self.late.get(&offer.segment);
        late.is_some_and(|late| late.stamps.iter().any(|stamp| offer.has_stamp(*stamp)))
    }

    /// Memory of what is remembered, about.
    pub(super) fn heap_bytes(&self) -> usize {
        self.objects.len() * size_of::<(u64, (ObjectId, u64))>()
            + self.struck.len() * size_of::<u64>()
    }

    /// Lets go, some at a time, of what no disk that is away needs. What is left of it is true all the same:
    /// whatever ends a value strikes it here.
    fn trim(&mut self) {
        if self.away.is_empty() {
            (0..FORGET_MAX).take_while(|_| self.objects.pop_first().is_some()).for_each(drop);
        }
        if self.late.is_empty() {
            (0..FORGET_MAX).take_while(|_| self.struck.pop_first().is_some()).for_each(drop);
        }
        if self.away.is_empty() && self.late.is_empty() && self.objects.is_empty() {
            self.whole.clear();
        }
    }
}

impl Catalog {
    /// Segments that the next leader may believe. To be written down whenever it changes:
    /// [`Catalog::trust_writing`], then the write, then [`Catalog::trust_written`].
    pub fn trusted(&self) -> Vec<Trusted> {
        let ledger = &self.ledger;
        let settled = self.segments.iter().filter(|(_, book)| book.is_settled());
        let settled = settled.map(|(_, book)| Trusted::of(&book.offer));
        let settled = settled.filter(|trusted| trusted.stamp != Stamp(0));
        let all: BTreeSet<Trusted> = settled.chain(ledger.listed.iter().copied()).collect();
        all.into_iter().filter(|trusted| !ledger.doubted.contains(trusted)).collect()
    }

    /// Whether the durable list says something else than [`Catalog::trusted`].
    pub fn trust_changed(&self) -> bool {
        !self.ledger.listed.iter().copied().eq(self.trusted())
    }

    /// This list is about to be written: from now on it may be read by the next leader.
    pub fn trust_writing(&mut self, list: &[Trusted]) {
        self.ledger.listed.extend(list);
    }

    /// This list is written, and no other can be read any more.
    pub fn trust_written(&mut self, list: &[Trusted]) {
        let Ledger { listed, doubted, .. } = &mut self.ledger;
        *listed = list.iter().copied().collect();
        doubted.retain(|trusted| listed.contains(trusted));
    }

    /// Segments that are away and remembered, and the values that they are remembered with.
    pub fn away(&self) -> (usize, usize) {
        (self.ledger.away.len() + self.ledger.late.len(), self.ledger.objects.len())
    }

    /// Whether the durable list that this leader began with names a segment that has not come yet.
    pub fn awaits(&self, segment: SegmentId) -> bool {
        self.ledger.late.contains_key(&segment)
    }

    /// How far a segment that mounts is believed.
    pub(super) fn trust_of(&self, offer: &SegmentOffer) -> Trust {
        let away = self.ledger.away.get(&offer.segment);
        if away.is_some_and(|(stamp, _)| offer.has_stamp(*stamp)) {
            Trust::Ledger
        } else if self.ledger.is_late(offer) {
            Trust::NotStruck
        } else {
            Trust::Nothing
        }
    }

    /// A segment leaves. A disk is remembered, and stays on the list until it is swept out, because it may be
    /// back soon; one that was still telling is remembered as it was before.
    pub(super) fn remember(&mut self, index: SegmentIndex, from: Now) {
        let book = self.segments.book(index);
        let left = Trusted::of(&book.offer);
        if !book.is_disk() {
            if self.ledger.listed.contains(&left) {
                self.ledger.doubted.insert(left);
            }
        } else if book.is_open() {
            self.ledger.away.insert(left.segment, (left.stamp, from.plus(REMEMBER)));
        }
    }

    /// Whether a segment that left may be swept out: the next leader must not believe it any more, unless
    /// it is back already, by the same stamp, and has told everything.
    pub(super) fn may_sweep(&mut self, index: SegmentIndex) -> bool {
        let left = Trusted::of(&self.segments.book(index).offer);
        let back = |index| {
            let book = self.segments.book(index);
            book.is_settled() && Trusted::of(&book.offer) == left
        };
        if self.segments.find(left.segment).is_some_and(back) {
            return true;
        }
        if !self.ledger.listed.contains(&left) {
            return true;
        }
        self.ledger.doubted.insert(left);
        canary::on(Canary::DiskBelievedTooLong)
    }

    /// Whether a rebuild may end: the next leader must not believe segments that have not come, because
    /// from then on their keys can be struck.
    pub(super) fn may_end_rebuild(&mut self) -> bool {
        let Self { ledger, segments, .. } = self;
        let here = |trusted: &Trusted| {
            let book = segments.find(trusted.segment).map(|index| segments.book(index));
            book.is_some_and(|book| book.is_open() && Trusted::of(&book.offer) == *trusted)
        };
        let missing = ledger.listed.iter().filter(|trusted| !here(trusted)).copied();
        ledger.doubted.extend(missing.collect::<Vec<_>>());
        ledger.listed.is_disjoint(&ledger.doubted) || canary::on(Canary::DiskBelievedTooLong)
    }

    /// A replica of a disk that left is swept out: the ledger keeps what it was.
    pub(super) fn note_away(&mut self, index: SegmentIndex, id: EntryId) {
        let book = self.segments.book(index);
        let entry = self.objects.entry(id);
        let swept = matches!(book.phase, Phase::Leaving { .. }) && book.is_disk();
        let away = swept && self.ledger.away.contains_key(&book.offer.segment);
        if !away || entry.stage != Stage::Ready || entry.hidden {
            return;
        }
        if self.ledger.objects.len() >= LEDGER_MAX {
            self.ledger.away.remove(&book.offer.segment);
            return;
        }
        self.ledger.objects.insert(entry.hash, (entry.object, self.ledger.wholes));
    }

    /// A key has ended, or has another value: what disks that are away hold of it is not true any more.
    pub(super) fn strike(&mut self, hash: u64) {
        if canary::on(Canary::LedgerNotStruck) {
            return;
        }
        if self.ledger.objects.remove(&hash).is_some() {
            self.counters.ledger_struck += 1;
        }
        if !self.ledger.late.is_empty() {
            self.ledger.struck.insert(hash);
            if self.ledger.struck.len() > LEDGER_MAX {
                self.ledger.late.clear();
            }
        }
    }

    /// Keys of a tenant have ended that nobody can name: no disk that is away is believed about this tenant.
    pub(super) fn strike_whole(&mut self, tenant: TenantId) {
        let ledger = &mut self.ledger;
        if !ledger.away.is_empty() || !ledger.late.is_empty() {
            ledger.wholes += 1;
            ledger.whole.insert(tenant, ledger.wholes);
        }
    }

    /// Disks that were away for too long.
    pub(super) fn forget_ledgers(&mut self, now: Now) {
        let ledger = &mut self.ledger;
        ledger.away.retain(|_, (_, at)| *at > now);
        ledger.late.retain(|_, late| late.forget_at > now);
        ledger.trim();
    }

    /// A segment has told everything: it is not away any more.
    pub(super) fn returned(&mut self, index: SegmentIndex) {
        let book = self.segments.book(index);
        let (offer, settled) = (book.offer.clone(), book.is_settled());
        let away = self.ledger.away.remove(&offer.segment).is_some();
        let late = self.ledger.late.remove(&offer.segment).is_some();
        if offer.medium == Medium::Ssd {
            self.counters.disks_returned += u64::from(away || late);
        }
        if settled {
            self.ledger.doubted.remove(&Trusted::of(&offer));
        }
    }

    /// A segment has dropped an object that it should not have.
    pub(super) fn let_go(&mut self, index: SegmentIndex, ending: &Ending) {
        let book = self.segments.book_mut(index);
        book.unwanted -= u64::from(ending.unwanted);
        book.struck -= u64::from(ending.struck);
        if book.is_settled() {
            self.ledger.doubted.remove(&Trusted::of(&book.offer));
        }
    }

    /// Whether a node may let others read the memory that it has told all of: not while a value that it was
    /// told to drop is readable there, by locators of an earlier leader. Which segments it has told the node
    /// knows best: it serves a segment from the first heartbeat on that it sends after the last page was
    /// acknowledged. So no segment waits for another. Memory waits for a disk only if clients may still
    /// have locators of it: the node served the disk under its current incarnation before the serving lease ended, or
    /// the durable list names the disk.
    pub fn may_serve(&self, node: NodeId) -> bool {
        let Some(member) = self.nodes.get(&node) else { return false };
        if canary::on(Canary::LateMemoryServes) {
            return true;
        }
        let mut mounts = member.segments.iter().filter_map(|id| self.segments.find(*id));
        mounts.all(|index| {
            let book = self.segments.book(index);
            let struck = book.struck > 0 && !canary::on(Canary::StruckServes);
            let ran_on = book.offer.evidence.lapsed || book.trust == Trust::NotStruck;
            let unread = book.is_disk() && !ran_on;
            (unread || book.unwanted == 0) && !struck
        })
    }

    /// Whether what a segment tells is kept, if the index has not the same object anyway.
    pub(super) fn believes(&self, index: SegmentIndex, told: &AnnouncedObject) -> bool {
        let hash = told.label.name().hash().0;
        let book = self.segments.book(index);
        let whole = self.ledger.whole.get(&told.label.tenant);
        match book.trust {
            Trust::All => true,
            Trust::Nothing => false,
            Trust::Ledger => self.ledger.objects.get(&hash).is_some_and(|(object, wholes)| {
                *object == told.object && whole.is_none_or(|at| at <= wholes)
            }),
            // One that is late no more, while it still tells, is not believed: what was struck is forgotten.
            Trust::NotStruck => {
                self.ledger.late.contains_key(&book.offer.segment)
                    && !self.ledger.struck.contains(&hash)
                    && whole.is_none()
            }
        }
    }

    /// A record that the ledger knows is in the index again, which remembers it from now on.
    pub(super) fn remembered(&mut self, hash: u64) {
        self.ledger.objects.remove(&hash);
    }

    /// The order to drop an announced object is out: its segment is not believed before it has. So it is
    /// with a record whose key was not told, because it was on its way out already. Memory that never
    /// stopped serving is left out: what it was told to drop is superseded, and its owner answers soon.
    pub(super) fn unwanted(&mut self, part: &Part) {
        self.unwanted_at(part.segment, part.slot);
    }

    /// The same by its slot; nothing if it counts already.
    pub(super) fn unwanted_at(&mut self, index: SegmentIndex, slot: Slot) {
        let book = self.segments.book_mut(index);
        if book.trust == Trust::All {
            return;
        }
        if let Some(ending) = book.ending.get_mut(&slot).filter(|ending| !ending.unwanted) {
            ending.unwanted = true;
            book.unwanted += 1;
            let told = Trusted::of(&book.offer);
            if self.ledger.listed.contains(&told) {
                self.ledger.doubted.insert(told);
            }
        }
    }

    /// Whether a record that a disk announced was told to go, and is not gone: nobody was told where it is.
    pub fn turned_away(&self, disk: SegmentId, incarnation: Incarnation, slot: Slot) -> bool {
        let book = self.segments.find(disk).map(|index| self.segments.book(index));
        let book = book.filter(|book| book.offer.incarnation == incarnation);
        book.and_then(|book| book.ending.get(&slot)).is_some_and(|ending| ending.unwanted)
    }

    /// An object is gone, by no wish of anybody, and some of its copies could come back: the entry keeps
    /// its key until their owners have answered.
    pub(super) fn keep_key(&mut self, id: EntryId) {
        self.placeholders += 1;
        let object = ObjectId { epoch: NOBODYS, sequence: self.placeholders };
        let entry = self.objects.entry_mut(id);
        entry.stage = Stage::Removing(entry.orphans());
        entry.object = object;
        // An upsert that takes the key over waits for it, as for every value that is going.
        self.removing.insert(object);
    }

    /// Whether an entry only keeps its key. Whoever announces a good copy is welcome all the same.
    pub(super) fn is_placeholder(&self, id: EntryId) -> bool {
        self.objects.entry(id).object.epoch == NOBODYS
    }

    /// An announced object was told to go.
    pub(super) fn count_dropped(&mut self, part: &Part) {
        let book = self.segments.book(part.segment);
        let count = match book.trust {
            _ if book.is_disk() => &mut self.counters.disk_dropped,
            Trust::All => &mut self.counters.announced_dropped,
            _ => &mut self.counters.late_dropped,
        };
        *count += 1;
    }

    /// A segment tells of an object that is not kept, under a key that has no value. The key waits until the
    /// record is gone: otherwise it could come back at the next leader, after a put and a remove. Readers
    /// may hold leases of an earlier leader.
    pub(super) fn turn_away(
        &mut self,
        now: Now,
        part: &Part,
        extent: Extent,
        told: &AnnouncedObject,
    ) {
        let id = self.insert_announced(now, told, Now(0));
        self.objects.entry_mut(id).extra_mut().orphans = 1;
        self.keep_key(id);
        self.count_dropped(part);
        let whose = (Some(id), Some(told.label.tenant));
        let at_once = canary::on(Canary::LateDroppedAtOnce);
        let free_after_ms = if at_once { 0 } else { lease::left_ms(now, self.granted_before()) };
        self.order(now, part, extent, Action::Retire { free_after_ms }, whose);
        self.unwanted(part);
    }
}
