//! Disks that come back: what of that which they hold is still true.
//!
//! Memory forgets with its process; a disk does not. A node may be away for a day and come back with values
//! that were removed or replaced meanwhile, perhaps at another leader. What must stay true: a value whose
//! removal, or whose replacement, somebody was told of never comes back (G6).
//!
//! * While a disk is known, its records are parts of entries, and nothing is told before its owner has
//!   said that they are gone.
//! * When it is counted as gone, a ledger keeps what it held: hash of the key, and object. Whatever ends or
//!   replaces a value strikes its hash. A disk that returns keeps what stands in the ledger, and what the
//!   index has anyway; the rest is told to go, and its key waits for that.
//! * A new leader has no ledger. It believes the disks on a durable list ([`Catalog::disks`]) but for keys
//!   that it has struck itself. So a leader takes a disk off that list, durably, before it strikes
//!   anything that the disk could hold: before the replicas of a disk that has left are swept out, and
//!   before a rebuild ends without a disk that was on the list. Until then keys wait as they wait for the
//!   fence of a mount that is over. A disk gets onto the list when it is open and has let go of everything
//!   that it should not have.
//! * A disk that neither a ledger nor the list knows starts over empty.

use super::Catalog;
use super::objects::{EntryId, Part, SegmentIndex, Stage};
use super::segments::Phase;
use crate::canary::{self, Canary};
use crate::extent::Extent;
use crate::ids::{Incarnation, LeaderEpoch, ObjectId, SegmentId, Slot, TenantId};
use crate::plan::{Action, AnnouncedObject};
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

/// Which of the objects that a disk announces are kept, beside those that the index has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// None.
    Nothing,
    /// Those in the ledger.
    Ledger,
    /// Those whose key was not struck since this leader came.
    NotStruck,
}

/// What is remembered of disks that are not here.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// What disks that are away held, by the hash of the key, and how many tenants had been struck as a
    /// whole by then. One value per key: an older one was struck.
    objects: BTreeMap<u64, (ObjectId, u64)>,
    /// Disks that left, and when they are forgotten.
    away: BTreeMap<SegmentId, Now>,
    /// Disks that the last leader believed and that have not mounted here yet; forgotten alike.
    late: BTreeMap<SegmentId, Now>,
    /// Keys that ended or got a value while disks are late.
    struck: BTreeSet<u64>,
    /// Tenants of whom keys have ended that nobody can name, and when, counted in such ends.
    whole: BTreeMap<TenantId, u64>,
    wholes: u64,
    /// Disks that may be on the durable list.
    listed: BTreeSet<SegmentId>,
    /// Those that must not be.
    doubted: BTreeSet<SegmentId>,
}

impl Ledger {
    /// What a leader begins with: the durable list.
    pub(super) fn new(now: Now, disks: Vec<SegmentId>) -> Self {
        let late = disks.iter().map(|disk| (*disk, now.plus(REMEMBER))).collect();
        Self { late, listed: disks.into_iter().collect(), ..Self::default() }
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
    /// Disks that the next leader may believe. To be written down whenever it changes:
    /// [`Catalog::disks_listing`], then the write, then [`Catalog::disks_listed`].
    pub fn disks(&self) -> Vec<SegmentId> {
        let ledger = &self.ledger;
        let settled = self.segments.iter().filter(|(_, book)| book.is_disk() && book.is_open());
        let settled = settled.filter(|(_, book)| book.unwanted == 0);
        let settled = settled.map(|(_, book)| book.offer.segment);
        let all: BTreeSet<SegmentId> = settled.chain(ledger.listed.iter().copied()).collect();
        all.into_iter().filter(|disk| !ledger.doubted.contains(disk)).collect()
    }

    /// Whether the durable list says something else than [`Catalog::disks`].
    pub fn disks_changed(&self) -> bool {
        !self.ledger.listed.iter().copied().eq(self.disks())
    }

    /// This list is about to be written: from now on it may be read by the next leader.
    pub fn disks_listing(&mut self, disks: &[SegmentId]) {
        self.ledger.listed.extend(disks);
    }

    /// This list is written, and no other can be read any more.
    pub fn disks_listed(&mut self, disks: &[SegmentId]) {
        self.ledger.listed = disks.iter().copied().collect();
    }

    /// Disks that are away and remembered, and the values that they are remembered with.
    pub fn away(&self) -> (usize, usize) {
        (self.ledger.away.len() + self.ledger.late.len(), self.ledger.objects.len())
    }

    /// How far a disk that mounts is believed.
    pub(super) fn trust_of(&self, disk: SegmentId) -> Trust {
        if self.ledger.away.contains_key(&disk) {
            Trust::Ledger
        } else if self.ledger.late.contains_key(&disk) {
            Trust::NotStruck
        } else {
            Trust::Nothing
        }
    }

    /// A disk leaves. One that was still telling is remembered as it was before.
    pub(super) fn remember(&mut self, index: SegmentIndex, from: Now) {
        let book = self.segments.book(index);
        if book.is_disk() && book.is_open() {
            self.ledger.away.insert(book.offer.segment, from.plus(REMEMBER));
        }
    }

    /// Whether a disk that left may be swept out: the next leader must not believe it any more, unless it
    /// is back already and has told everything.
    pub(super) fn may_sweep(&mut self, index: SegmentIndex) -> bool {
        let book = self.segments.book(index);
        let disk = book.offer.segment;
        let back = |index| {
            let book = self.segments.book(index);
            book.is_open() && book.unwanted == 0
        };
        if !book.is_disk() || self.segments.find(disk).is_some_and(back) {
            return true;
        }
        self.ledger.doubted.insert(disk);
        !self.ledger.listed.contains(&disk) || canary::on(Canary::DiskBelievedTooLong)
    }

    /// Whether a rebuild may end: the next leader must not believe disks that have not come, because
    /// from then on their keys can be struck.
    pub(super) fn may_end_rebuild(&mut self) -> bool {
        let Self { ledger, segments, .. } = self;
        let open =
            |disk: &SegmentId| segments.find(*disk).is_some_and(|i| segments.book(i).is_open());
        let missing = ledger.late.keys().filter(|disk| !open(disk)).copied();
        ledger.doubted.extend(missing);
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
        ledger.away.retain(|_, at| *at > now);
        ledger.late.retain(|_, at| *at > now);
        ledger.trim();
    }

    /// A disk has told everything: it is not away any more.
    pub(super) fn returned(&mut self, index: SegmentIndex) {
        let book = self.segments.book(index);
        if !book.is_disk() {
            return;
        }
        let (disk, unwanted) = (book.offer.segment, book.unwanted);
        let away = self.ledger.away.remove(&disk).is_some();
        let late = self.ledger.late.remove(&disk).is_some();
        self.counters.disks_returned += u64::from(away || late);
        if unwanted == 0 {
            self.ledger.doubted.remove(&disk);
        }
    }

    /// A disk has let go of a record that it should not have.
    pub(super) fn let_go(&mut self, index: SegmentIndex) {
        let book = self.segments.book_mut(index);
        book.unwanted -= 1;
        if book.unwanted == 0 && book.is_open() {
            self.ledger.doubted.remove(&book.offer.segment);
        }
    }

    /// Whether what a disk tells is kept, if the index has not the same object anyway.
    pub(super) fn believes(&self, index: SegmentIndex, told: &AnnouncedObject) -> bool {
        let hash = told.label.name().hash().0;
        let book = self.segments.book(index);
        let whole = self.ledger.whole.get(&told.label.tenant);
        match book.trust {
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

    /// The order to let a record go that was announced is out: its disk is not believed before it has. So
    /// it is with one whose key was not told, because it was on its way out already.
    pub(super) fn unwanted(&mut self, part: &Part) {
        let book = self.segments.book_mut(part.segment);
        if !book.is_disk() {
            return;
        }
        if let Some(ending) = book.ending.get_mut(&part.slot) {
            ending.unwanted = true;
            book.unwanted += 1;
            self.ledger.doubted.insert(book.offer.segment);
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

    /// A disk tells of an object that is not kept, under a key that has no value. The key waits until the
    /// record is gone: otherwise it could come back at the next leader, after a put and a remove.
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
        self.counters.disk_dropped += 1;
        self.order(now, part, extent, Action::Retire { free_after_ms: 0 }, Some(id));
        self.unwanted(part);
    }
}
