//! The book of each segment: its allocator, its slots, its eviction policy, and the slots whose
//! life is ending.

use super::demote::{self, Waits};
use super::drain::Drain;
use super::objects::{EntryId, SegmentIndex};
use super::offload;
use super::room::{Room, Told};
use super::trust::Trust;
use crate::alloc::Allocation;
use crate::chunked::Chunked;
use crate::copy::DrainMode;
use crate::evict::{EvictPolicy, PolicyKind};
use crate::ids::{Generation, Incarnation, SegmentId, Slot, TenantId};
use crate::place::SegmentLoad;
use crate::plan::{Action, Keep, Medium, SegmentOffer};
use crate::time::Now;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// No entry.
pub(super) const NOBODY: EntryId = EntryId::MAX;

/// What the master knows of one slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotBook {
    /// The generation the slot stands at (free), or lives in (used).
    pub generation: Generation,
    /// The entry whose replica lives there.
    pub entry: EntryId,
}

/// A slot whose life is ending: ordered, not yet freed.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each says another thing about the order")]
pub(super) struct Ending {
    pub generation: Generation,
    pub action: Action,
    pub allocation: Allocation,
    /// The owner has said that nobody new can enter.
    pub settled: bool,
    /// The order was sent more than once: an answer may be that to an older copy.
    pub repeated: bool,
    /// When it will be sent again.
    pub retry_at: Now,
    /// The entry that waits for that word, if a remove does.
    pub removing: Option<EntryId>,
    /// On whose account its bytes are until they are free.
    pub payer: Payer,
    /// Told to go when it was announced: until all of those are gone, the next leader must not believe
    /// this disk.
    pub unwanted: bool,
    /// Its key was given up while the node was lapsed: until it is gone, the node gets no serving lease.
    pub struck: bool,
}

/// On whose account the bytes of a life are that is ending. A reader or a writer may keep them for long: if
/// nobody paid for them, a tenant could hold the whole pool beside its quota (G16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Payer {
    /// An eviction: the entry still has the replica, and pays for it.
    Entry,
    /// Taken off its entry; its tenant goes on paying.
    Tenant(TenantId),
    /// An owner announced it without a name: nobody knows whose it is.
    Unnamed,
    /// Nobody: it lies on a disk.
    Nobody,
}

/// How well a disk takes what is copied to it, and memory of a host what VRAM lets go of.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Intake {
    /// Copies on their way in …
    pub coming: u32,
    /// … and their bytes.
    pub coming_bytes: u64,
    /// When the last one was done, or the first of them begun.
    pub moved_at: Now,
    /// It has refused one, and is left alone until then.
    pub closed_until: Now,
    /// For how long, the last time.
    pub pause: Duration,
}

/// A walk over the candidates of a segment, over and over.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ahead {
    /// Copies begun since it last started over.
    pub begun: u32,
    /// There was nothing to do.
    pub rests_until: Now,
}

/// How far a segment is on its way in or out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The owner is announcing what it holds. What it has told can be read already.
    Announcing,
    /// In use.
    Open,
    /// Unmounted, replaced, or its node is gone.
    Leaving {
        /// From then on nobody can read it: replicas are swept out, removes are answered.
        fenced_at: Now,
        /// The slot to sweep next.
        next: u32,
    },
}

/// The book of one segment.
#[derive(Debug)]
pub(super) struct Book {
    pub offer: SegmentOffer,
    pub phase: Phase,
    /// Which announcement this book is filled by: one that starts over has another number.
    pub round: u64,
    /// Ranges that were announced so far; taken out when all are, to become the allocator.
    pub told: Option<Told>,
    /// Of memory: slots told in this round. `slots` may know more, from an earlier round.
    pub told_slots: u32,
    pub allocator: Room,
    pub policy: Box<dyn EvictPolicy>,
    /// The order among soft pins: they go when nothing else can.
    pub soft: Box<dyn EvictPolicy>,
    /// When to look whether a soft pin is over, about oldest first.
    pub soft_ends: VecDeque<(Now, Slot, Generation)>,
    pub slots: Chunked<SlotBook>,
    pub free_slots: Vec<Slot>,
    pub ending: BTreeMap<Slot, Ending>,
    /// Those of them for whose owner's word an entry waits.
    pub awaited: BTreeSet<Slot>,
    /// Bytes in `ending` and in evict orders that are out.
    pub ending_bytes: u64,
    /// Evict orders that are out.
    pub evicting: u32,
    /// When to send unsettled orders again, oldest first.
    pub retry: VecDeque<(Now, Slot, Generation)>,
    /// Victims in a row that could not be evicted, and when the last one was met.
    pub pinned_streak: u32,
    pub pinned_at: Now,
    /// Replicas that live here.
    pub live: u64,
    /// What lives here is moved elsewhere, and nothing new comes.
    pub drain: Option<Drain>,
    /// A drain that begins when the owner has announced everything.
    pub wish: Option<DrainMode>,
    /// Victims that are being copied down before they go, and their bytes.
    pub moving: u32,
    pub moving_bytes: u64,
    /// When the last of them was done with, or the first begun.
    pub moving_at: Now,
    /// The walk that makes copies on disks ahead of evictions.
    pub ahead: Ahead,
    /// How well it takes what is moved down to it.
    pub intake: Intake,
    /// Of VRAM: victims that wait until something takes them.
    pub waits: Waits,
    /// Whether what it announces is kept.
    pub trust: Trust,
    /// Objects that it announced and was told to drop.
    pub unwanted: u64,
    /// The serving lease of its node has ended: nothing here can be read.
    pub lapsed: bool,
    /// Copies whose key was given up meanwhile, and that are not gone yet.
    pub struck: u64,
    /// Of a disk: lives that its owner ended before it told of them.
    pub early: BTreeSet<(Slot, Generation)>,
}

impl Book {
    /// The owner tells everything once more. Ranges are collected anew, because their handles are numbers
    /// within one round.
    pub(super) fn tell_again(&mut self, round: u64) {
        self.round = round;
        self.told = Some(Told::new(self.offer.bytes, self.is_disk()));
        if !self.is_disk() {
            self.told_slots = 0;
            self.free_slots = Vec::new();
        }
    }

    /// A book whose owner is about to announce.
    pub(super) fn new(offer: SegmentOffer, policy: PolicyKind, round: u64, trust: Trust) -> Self {
        let disk = offer.medium == Medium::Ssd;
        Self {
            allocator: Room::new(offer.bytes, disk),
            told: Some(Told::new(offer.bytes, disk)),
            offer,
            phase: Phase::Announcing,
            round,
            told_slots: 0,
            policy: policy.build(),
            soft: policy.build(),
            soft_ends: VecDeque::new(),
            slots: Chunked::new(),
            free_slots: Vec::new(),
            ending: BTreeMap::new(),
            awaited: BTreeSet::new(),
            ending_bytes: 0,
            evicting: 0,
            retry: VecDeque::new(),
            pinned_streak: 0,
            pinned_at: Now(0),
            live: 0,
            drain: None,
            wish: None,
            moving: 0,
            moving_bytes: 0,
            moving_at: Now(0),
            ahead: Ahead::default(),
            intake: Intake::default(),
            waits: Waits::default(),
            trust,
            early: BTreeSet::new(),
            unwanted: 0,
            lapsed: false,
            struck: 0,
        }
    }

    /// Whether it is on a disk: then its owner evicts, and its bytes are only counted.
    pub(super) fn is_disk(&self) -> bool {
        self.offer.medium == Medium::Ssd
    }

    /// Whether its owner must start over empty if it brings objects. A disk is judged record by record.
    pub(super) fn refuses(&self) -> bool {
        self.trust == Trust::Nothing && !self.is_disk()
    }

    /// Whether everything was told, and ranges may come and go.
    pub(super) fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Whether its owner takes orders about what it has told. A disk does from the first page on, because
    /// its bytes are only counted; it may tell for minutes.
    pub(super) fn takes_orders(&self) -> bool {
        self.is_open() || self.is_disk() && self.is_announcing()
    }

    /// Whether its replicas may be located. What was announced is as good before the last page as
    /// after it: the owner judges every read by the word of the slot.
    pub(super) fn is_readable(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::Announcing) && !self.lapsed
    }

    /// Whether a later leader may believe it: it has told everything, and holds nothing that it should not.
    pub(super) fn is_settled(&self) -> bool {
        self.is_open() && self.unwanted == 0 && self.struck == 0
    }

    /// When nobody can read a leaving segment any more.
    pub(super) fn fenced_at(&self) -> Option<Now> {
        match self.phase {
            Phase::Leaving { fenced_at, .. } => Some(fenced_at),
            _ => None,
        }
    }

    pub(super) fn is_announcing(&self) -> bool {
        self.phase == Phase::Announcing
    }

    /// A range and a slot for `bytes`, or nothing.
    pub(super) fn reserve(
        &mut self,
        bytes: u64,
        entry: EntryId,
    ) -> Option<(Slot, Generation, Allocation)> {
        let fresh = self.slots.len() < self.offer.slots;
        if self.free_slots.is_empty() && !fresh {
            return None;
        }
        let allocation = self.allocator.allocate(bytes)?;
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            Slot(self.slots.push(SlotBook { generation: Generation(0), entry: NOBODY }))
        });
        let book = &mut self.slots[slot.0];
        book.entry = entry;
        self.live += 1;
        Some((slot, book.generation, allocation))
    }

    /// Undoes `reserve` before anybody was told of it: the slot keeps its generation.
    pub(super) fn unreserve(&mut self, slot: Slot, allocation: Allocation) {
        self.slots[slot.0].entry = NOBODY;
        self.free_slots.push(slot);
        self.allocator.free(allocation);
        self.live -= 1;
    }

    /// The owner says that the slot stands at `next`: range and slot may be used again.
    pub(super) fn release(&mut self, slot: Slot, next: Generation, allocation: Allocation) {
        self.allocator.free(allocation);
        let book = &mut self.slots[slot.0];
        book.generation = next;
        book.entry = NOBODY;
        // A slot at the last generation is used up for good (G4).
        if next < Generation::MAX {
            self.free_slots.push(slot);
        }
    }

    /// The life of a slot is ending from now on; returns an earlier order.
    pub(super) fn add_ending(&mut self, slot: Slot, ending: Ending) -> Option<Ending> {
        if ending.removing.is_some() {
            self.awaited.insert(slot);
        }
        self.ending.insert(slot, ending)
    }

    /// It has ended, or goes on.
    pub(super) fn take_ending(&mut self, slot: Slot) -> Option<Ending> {
        self.awaited.remove(&slot);
        self.ending.remove(&slot)
    }

    /// Whether the awaited endings are those that an entry waits for.
    pub(super) fn awaits_its_endings(&self) -> bool {
        let waits = |ending: &Ending| ending.removing.is_some() && !ending.settled;
        let waiting = self.ending.iter().filter(|(_, ending)| waits(ending));
        waiting.map(|(slot, _)| slot).eq(&self.awaited)
    }

    /// The slot may be evicted from now on, as its `keep` says. `covered`: something in memory follows it. On a disk its
    /// owner evicts.
    pub(super) fn offer_victim(&mut self, slot: Slot, covered: bool, keep: Keep) {
        if self.is_disk() {
            return;
        }
        match keep {
            Keep::Normal => self.policy.insert(slot),
            Keep::Soft { .. } => self.soft.insert(slot),
            Keep::Hard => {}
        }
        if covered {
            self.cover(slot, true);
        }
    }

    /// The slot was read.
    pub(super) fn touch(&mut self, slot: Slot) {
        self.policy.touch(slot);
        if !self.soft.is_empty() {
            self.soft.touch(slot);
        }
    }

    /// Something in memory follows what the slot holds from now on, or nothing does.
    pub(super) fn cover(&mut self, slot: Slot, covered: bool) {
        self.policy.cover(slot, covered);
        self.soft.cover(slot, covered);
    }

    /// The slot may no longer be evicted.
    pub(super) fn spare(&mut self, slot: Slot) {
        if !self.policy.remove(slot) {
            self.soft.remove(slot);
        }
    }

    pub(super) fn used_bytes(&self) -> u64 {
        // While its owner still tells, the allocator does not know all that ends.
        self.allocator.used_bytes().saturating_sub(self.ending_bytes)
    }

    /// Bytes of victims that go when their copy is there. Not those that nothing happens with: nobody waits
    /// for a disk that hangs.
    pub(super) fn moving_out(&self, now: Now) -> u64 {
        let vram = self.offer.medium == Medium::Vram;
        let patience = if vram { demote::PATIENCE } else { offload::PATIENCE };
        if now.since(self.moving_at) > patience { 0 } else { self.moving_bytes }
    }

    /// So many parts per thousand of it.
    pub(super) fn share(&self, permille: u32) -> u64 {
        (u128::from(self.offer.bytes) * u128::from(permille) / 1000) as u64
    }
}

/// A segment as an operator sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct SegmentStat {
    /// What it offered.
    pub offer: SegmentOffer,
    /// Bytes of live replicas and open puts.
    pub used: u64,
    /// Bytes that wait for readers, writers or owners before they are free.
    pub ending: u64,
    /// Free bytes.
    pub free: u64,
    /// The longest run of them.
    pub largest_run: u64,
    /// 0: one run; near 1: crumbs.
    pub fragmentation: f64,
    /// Replicas.
    pub replicas: u64,
    /// Whether it gets new objects.
    pub open: bool,
}

/// All books, and the short view of them that placement reads.
#[derive(Debug, Default)]
pub(super) struct Segments {
    books: Vec<Option<Book>>,
    pub loads: Vec<SegmentLoad>,
    by_id: BTreeMap<SegmentId, SegmentIndex>,
    /// The last mount that left, by segment: an older one never comes back (M8).
    left: BTreeMap<SegmentId, Incarnation>,
    /// What is open, in the order of [`Medium::ALL`]. Apart, because a put goes to the medium that it asks
    /// for: what another one could hold says nothing about it.
    open: [Open; 3],
    /// Nodes with open memory, of a host or of a GPU.
    pub memory_nodes: u32,
}

/// The open segments of one medium.
#[derive(Debug, Default)]
pub(super) struct Open {
    /// Which ones.
    pub segments: Vec<SegmentIndex>,
    /// Bytes of the largest.
    pub largest: u64,
    /// Bytes of all.
    pub bytes: u64,
    /// Slots of all.
    pub slots: u64,
    /// Nodes that have one.
    pub nodes: u32,
}

impl Segments {
    /// What is open on a medium.
    pub(super) fn open_on(&self, medium: Medium) -> &Open {
        &self.open[medium as usize]
    }

    /// So many parts per thousand of all open memory, of hosts and of GPUs.
    pub(super) fn share_of_memory(&self, permille: u32) -> u64 {
        let bytes = self.open_on(Medium::Dram).bytes + self.open_on(Medium::Vram).bytes;
        (u128::from(bytes) * u128::from(permille) / 1000) as u64
    }

    /// The same of their slots.
    pub(super) fn share_of_slots(&self, permille: u32) -> u64 {
        let slots = self.open_on(Medium::Dram).slots + self.open_on(Medium::Vram).slots;
        slots * u64::from(permille) / 1000
    }

    /// Disks that are open.
    pub(super) fn disks(&self) -> &[SegmentIndex] {
        &self.open_on(Medium::Ssd).segments
    }

    pub(super) fn find(&self, segment: SegmentId) -> Option<SegmentIndex> {
        self.by_id.get(&segment).copied()
    }

    pub(super) fn book(&self, index: SegmentIndex) -> &Book {
        self.books[index as usize].as_ref().expect("parts name segments that exist")
    }

    pub(super) fn book_mut(&mut self, index: SegmentIndex) -> &mut Book {
        self.books[index as usize].as_mut().expect("parts name segments that exist")
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (SegmentIndex, &Book)> {
        self.books.iter().enumerate().filter_map(|(i, b)| Some((i as SegmentIndex, b.as_ref()?)))
    }

    /// What a segment is made of.
    pub(super) fn medium(&self, index: SegmentIndex) -> Medium {
        self.loads[usize::from(index)].medium
    }

    /// Whether a segment is on a disk.
    pub(super) fn is_disk(&self, index: SegmentIndex) -> bool {
        self.medium(index) == Medium::Ssd
    }

    pub(super) fn indexes(&self) -> Vec<SegmentIndex> {
        self.iter().map(|(index, _)| index).collect()
    }

    /// Adds a book under its id; an older book of that id must be leaving.
    pub(super) fn add(&mut self, book: Book) -> SegmentIndex {
        let offer = &book.offer;
        let load = SegmentLoad {
            segment: offer.segment,
            node: offer.node,
            host: offer.host,
            zone: offer.zone,
            medium: offer.medium,
            tenant: offer.tenant,
            capacity: offer.bytes,
            free: offer.bytes,
            open: false,
        };
        let id = offer.segment;
        let vacant = self.books.iter().position(Option::is_none);
        let index = vacant.unwrap_or(self.books.len());
        if vacant.is_some() {
            self.books[index] = Some(book);
            self.loads[index] = load;
        } else {
            self.books.push(Some(book));
            self.loads.push(load);
        }
        let index =
            SegmentIndex::try_from(index).expect("at most 64 segments on at most 1000 nodes");
        self.by_id.insert(id, index);
        self.refresh(index);
        index
    }

    /// Forgets a book that was swept out.
    pub(super) fn drop_book(&mut self, index: SegmentIndex) {
        self.books[index as usize] = None;
    }

    /// A book is leaving: its id is free for a later mount.
    pub(super) fn retire_id(&mut self, index: SegmentIndex) {
        let offer = &self.book(index).offer;
        let (segment, incarnation) = (offer.segment, offer.incarnation);
        self.left.insert(segment, incarnation);
        if self.by_id.get(&segment) == Some(&index) {
            self.by_id.remove(&segment);
        }
    }

    /// The latest mount of a segment, and whether it has left.
    pub(super) fn last_incarnation(&self, segment: SegmentId) -> Option<(Incarnation, bool)> {
        let mounted = self.find(segment).map(|index| (self.book(index).offer.incarnation, false));
        mounted.or_else(|| self.left.get(&segment).map(|incarnation| (*incarnation, true)))
    }

    /// Tells placement what has changed in one book.
    pub(super) fn refresh(&mut self, index: SegmentIndex) {
        let book = self.books[index as usize].as_ref().expect("refreshed while it exists");
        self.loads[index as usize].free = book.allocator.free_bytes();
    }

    /// Opens or closes a segment for new objects.
    pub(super) fn set_open(&mut self, index: SegmentIndex, open: bool) {
        if self.loads[index as usize].open == open {
            return;
        }
        self.loads[index as usize].open = open;
        self.refresh(index);
        self.open = Medium::ALL.map(|medium| self.count_open(medium));
        let memory = self.loads.iter().filter(|load| load.open && load.medium != Medium::Ssd);
        self.memory_nodes = memory.map(|load| load.node).collect::<BTreeSet<_>>().len() as u32;
    }

    fn count_open(&self, medium: Medium) -> Open {
        let loads = self.loads.iter().enumerate();
        let open = loads.filter(|(_, load)| load.open && load.medium == medium);
        let nodes: BTreeSet<_> = open.clone().map(|(_, load)| load.node).collect();
        let segments: Vec<_> = open.clone().map(|(at, _)| at as SegmentIndex).collect();
        Open {
            slots: segments.iter().map(|at| u64::from(self.book(*at).offer.slots)).sum(),
            segments,
            largest: open.clone().map(|(_, load)| load.capacity).max().unwrap_or(0),
            bytes: open.map(|(_, load)| load.capacity).sum(),
            nodes: nodes.len() as u32,
        }
    }

    pub(super) fn stats(&self) -> Vec<SegmentStat> {
        self.iter()
            .map(|(index, book)| SegmentStat {
                offer: book.offer.clone(),
                used: book.used_bytes(),
                ending: book.ending_bytes,
                free: book.allocator.free_bytes(),
                largest_run: book.allocator.largest_free_run(),
                fragmentation: book.allocator.fragmentation(),
                replicas: book.live,
                open: self.loads[index as usize].open,
            })
            .collect()
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.iter()
            .map(|(_, book)| {
                book.allocator.heap_bytes()
                    + book.policy.heap_bytes()
                    + book.soft.heap_bytes()
                    + book.soft_ends.capacity() * size_of::<(Now, Slot, Generation)>()
                    + book.slots.heap_bytes()
                    + book.free_slots.capacity() * size_of::<Slot>()
                    + book.retry.capacity() * size_of::<(Now, Slot, Generation)>()
            })
            .sum()
    }
}
