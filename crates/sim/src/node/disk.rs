//! The disk of a node: a map of records by slot, which outlives its process.
//!
//! It is slow, refuses now and then, evicts by itself and loses records. What must stay true, for a real
//! one as well:
//!
//! * A copy is told as done when its record is durable. A crash may leave a record that was never told.
//! * `Freed` is told when the record is gone for good. A crash before that may bring it back.
//! * The owner evicts in two steps: hidden and told first, deleted when the master has answered.
//! * What is told unasked is told again until the slot is used again or the next mount.

use crate::swarm::Disks;
use crate::{MS, Nanos};
use mooncrate_core::catalog::Trusted;
use mooncrate_core::copy::CopyOrder;
use mooncrate_core::plan::{
    Announced, AnnouncedLife, AnnouncedObject, Evidence, Notice, Order, OrderResult, SegmentOffer,
};
use mooncrate_core::rng::Rng;
use mooncrate_core::{
    Extent, Generation, HostId, Incarnation, LeaderEpoch, Locator, Medium, NodeId, Now, SegmentId,
    Slot, Stamp, ZoneId, seal,
};
use std::collections::BTreeMap;

/// Records that one eviction hides.
const BUCKET: usize = 4;

/// How a record stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its bytes are on their way; perhaps all of them are on the disk.
    Writing { whole: bool },
    /// It can be read.
    Ready,
    /// Hidden; the master is to answer.
    Evicting,
    /// Gone for good then.
    Removing { at: Nanos },
}

/// A record, or one that is being written.
#[derive(Clone, Debug)]
struct Life {
    generation: Generation,
    state: State,
    told: AnnouncedObject,
    bytes: Vec<u8>,
}

/// A disk.
#[derive(Clone, Debug)]
pub struct Disk {
    /// Its segment.
    pub segment: SegmentId,
    /// The mount.
    pub incarnation: Incarnation,
    /// What it shows for being current.
    evidence: Evidence,
    bytes: u64,
    slots: u32,
    /// Longest time until a removal is durable, in milliseconds.
    removes_ms: u64,
    epoch: LeaderEpoch,
    /// It serves until then, on the node's clock.
    serve_until: Now,
    lives: BTreeMap<Slot, Life>,
    /// Where slots stand that were in use.
    generations: BTreeMap<Slot, Generation>,
    /// Lives that ended unasked.
    ended: BTreeMap<Slot, Generation>,
    rng: Rng,
}

/// Why a copy was not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotBegun {
    /// A leader that was replaced has ordered it.
    OldEpoch,
    /// It is there already.
    Done,
    /// The slot is in another life, or nobody may write.
    Refused,
}

impl Disk {
    /// An empty disk.
    pub fn new(segment: SegmentId, load: &Disks, rng: Rng) -> Self {
        Self {
            segment,
            incarnation: Incarnation(0),
            evidence: Evidence::default(),
            bytes: load.bytes,
            slots: load.slots,
            removes_ms: load.removes_ms,
            epoch: LeaderEpoch(0),
            serve_until: Now(0),
            lives: BTreeMap::new(),
            generations: BTreeMap::new(),
            ended: BTreeMap::new(),
            rng,
        }
    }

    /// An older copy takes its place. What is drawn from now on was never drawn before.
    /// A copy of its files has no stamp. One of its blocks has, and as long as the list names that stamp, or the
    /// leader remembers it, the two cannot be told apart (decision 0028): such a one is not put back.
    pub fn restore(&mut self, older: Self, listed: &[Trusted]) {
        let (rng, stamp) = (self.rng.clone(), older.evidence.stamp);
        let named = listed.iter().any(|one| one.segment == self.segment && one.stamp == stamp);
        let evidence = if named { Evidence::default() } else { older.evidence };
        *self = Self { evidence, rng, ..older };
    }

    /// What the node offers.
    pub fn offer(&self, node: NodeId, host: u8) -> SegmentOffer {
        SegmentOffer {
            segment: self.segment,
            incarnation: self.incarnation,
            node,
            medium: Medium::Ssd,
            bytes: self.bytes,
            slots: self.slots,
            host: HostId(host.into()),
            zone: ZoneId(u64::from(host) % 2),
            tenant: None,
            evidence: self.evidence,
        }
    }

    /// The process is gone, or has dropped everything: what is found again has a new mount.
    pub fn recover(&mut self, incarnation: Incarnation) {
        let rng = &mut self.rng;
        let found = std::mem::take(&mut self.lives).into_values().filter(|life| match life.state {
            State::Writing { whole } => whole && rng.chance(500),
            State::Ready | State::Evicting => true,
            State::Removing { .. } => rng.chance(500),
        });
        let mut lives = BTreeMap::new();
        for life in found {
            let slot = Slot(lives.len() as u32);
            let (generation, state) = (Generation(0), State::Ready);
            lives.insert(slot, Life { generation, state, ..life });
        }
        self.lives = lives;
        self.generations.clear();
        self.ended.clear();
        self.incarnation = incarnation;
        self.serve_until = Now(0);
        let before = (self.evidence.stamp, self.evidence.before.0);
        let stamp = Stamp(self.rng.below(u64::MAX) + 1);
        self.evidence = Evidence { stamp, before, lapsed: false };
    }

    /// A leader has taken it over: from now on only the stamp of this start counts.
    pub fn confirm(&mut self) {
        self.evidence.before = (Stamp(0), Stamp(0));
    }

    /// It serves until then; `Now(0)`: not at all.
    pub fn set_serve_until(&mut self, until: Now) {
        self.serve_until = until;
    }

    /// Whether it serves.
    pub fn serves(&self, now: Now) -> bool {
        now < self.serve_until
    }

    /// A leader is heard; false if it was replaced.
    pub fn witness(&mut self, epoch: LeaderEpoch) -> bool {
        let newest = epoch >= self.epoch;
        self.epoch = self.epoch.max(epoch);
        newest
    }

    /// What it holds, a page from a slot on, and where the next one starts.
    pub fn announce(&self, from: Slot, most: usize) -> (Vec<Announced>, Option<Slot>) {
        let end = self.lives.keys().chain(self.generations.keys()).map(|slot| slot.0 + 1).max();
        let end = end.unwrap_or(0);
        let last = from.0.saturating_add(most as u32).min(end);
        let page = (from.0..last).map(|slot| {
            let slot = Slot(slot);
            let Some(life) = self.lives.get(&slot) else {
                return Announced { slot, generation: self.generation(slot), life: None };
            };
            let extent = Extent::new(0, seal::extent_bytes(life.told.len));
            let extent = extent.expect("values are small");
            let object = (life.state == State::Ready).then(|| life.told.clone());
            let told = Some(AnnouncedLife { extent, object });
            Announced { slot, generation: life.generation, life: told }
        });
        (page.collect(), (last < end).then_some(Slot(last)))
    }

    fn generation(&self, slot: Slot) -> Generation {
        self.generations.get(&slot).copied().unwrap_or(Generation(0))
    }

    /// A copy is to be written.
    pub fn begin(&mut self, now: Now, order: &CopyOrder) -> Result<(), NotBegun> {
        let Locator { slot, generation, .. } = order.target;
        if !self.witness(order.epoch) {
            return Err(NotBegun::OldEpoch);
        }
        if let Some(life) = self.lives.get(&slot) {
            let same = life.generation == generation && life.state == State::Ready;
            return Err(if same { NotBegun::Done } else { NotBegun::Refused });
        }
        if self.generation(slot) != generation || !self.serves(now) {
            return Err(NotBegun::Refused);
        }
        self.ended.remove(&slot);
        self.generations.insert(slot, generation);
        let CopyOrder { label, object, len, seal, .. } = order.clone();
        let told = AnnouncedObject { label, object, len, seal };
        let state = State::Writing { whole: false };
        self.lives.insert(slot, Life { generation, state, told, bytes: Vec::new() });
        Ok(())
    }

    /// Whether a copy that was begun is still wanted.
    pub fn is_writing(&self, at: &Locator) -> bool {
        self.lives.get(&at.slot).is_some_and(|life| {
            life.generation == at.generation && matches!(life.state, State::Writing { .. })
        })
    }

    /// All bytes go to the disk now; after how long they are durable. `None`: it refuses.
    pub fn write(&mut self, at: &Locator, bytes: &[u8], refuses: u32) -> Option<Nanos> {
        if self.rng.chance(refuses) {
            return None;
        }
        let life = self.lives.get_mut(&at.slot)?;
        life.bytes = bytes.to_vec();
        life.state = State::Writing { whole: true };
        Some(match self.rng.below(100) {
            0..70 => self.rng.below(2 * MS),
            70..95 => self.rng.below(40 * MS),
            _ => self.rng.below(400 * MS),
        })
    }

    /// The bytes are durable: the record can be read.
    pub fn publish(&mut self, at: &Locator) {
        if let Some(life) = self.lives.get_mut(&at.slot) {
            life.state = State::Ready;
        }
    }

    /// A copy came to nothing.
    pub fn abandon(&mut self, at: &Locator) {
        if self.is_writing(at) {
            self.end(at.slot);
            self.ended.insert(at.slot, at.generation);
        }
    }

    /// The value, as it would be staged.
    pub fn read(&self, now: Now, at: &Locator) -> Option<Vec<u8>> {
        let life = self.lives.get(&at.slot)?;
        let fine = life.generation == at.generation && life.state == State::Ready;
        (fine && self.serves(now)).then(|| life.bytes.clone())
    }

    fn end(&mut self, slot: Slot) -> Generation {
        let life = self.lives.remove(&slot).expect("the caller has found it");
        let next = life.generation.next().expect("runs are short");
        self.generations.insert(slot, next);
        next
    }

    /// Does as it is told; `None`: the leader was replaced.
    pub fn execute(&mut self, now: Nanos, epoch: LeaderEpoch, order: &Order) -> Option<Notice> {
        if !self.witness(epoch) {
            return None;
        }
        let (slot, generation) = (order.slot, order.generation);
        let result = match self.lives.get_mut(&slot).filter(|life| life.generation == generation) {
            None => {
                let stands = self.generation(slot);
                if stands <= generation && !self.lives.contains_key(&slot) {
                    let next = generation.next().expect("runs are short");
                    self.generations.insert(slot, next);
                }
                OrderResult::Freed { next: self.generation(slot) }
            }
            Some(life) => match life.state {
                State::Writing { .. } => OrderResult::Freed { next: self.end(slot) },
                State::Ready | State::Evicting => {
                    let at = now + self.rng.below(self.removes_ms) * MS;
                    life.state = State::Removing { at };
                    OrderResult::Waiting
                }
                State::Removing { .. } => OrderResult::Waiting,
            },
        };
        Some(self.notice(slot, generation, result))
    }

    fn notice(&self, slot: Slot, generation: Generation, result: OrderResult) -> Notice {
        let Self { segment, incarnation, .. } = *self;
        Notice { segment, incarnation, slot, generation, result }
    }

    /// Time passes: removals become durable. Now and then it evicts, or finds a record damaged; what it
    /// did of that.
    pub fn tick(&mut self, now: Nanos, evicts: u32, loses: u32) -> (Vec<Notice>, bool, bool) {
        let due = |life: &Life| matches!(life.state, State::Removing { at } if at <= now);
        let gone: Vec<Slot> =
            self.lives.iter().filter(|(_, life)| due(life)).map(|(slot, _)| *slot).collect();
        let mut news = Vec::new();
        for slot in gone {
            let generation = self.lives[&slot].generation;
            let next = self.end(slot);
            news.push(self.notice(slot, generation, OrderResult::Freed { next }));
        }
        let held: u64 = self.lives.values().map(|life| seal::extent_bytes(life.told.len)).sum();
        let full = held > self.bytes / 10 * 8 || self.lives.len() as u32 > self.slots / 10 * 8;
        let evicted = (full || self.rng.chance(evicts)) && self.evict();
        let lost = self.rng.chance(loses) && self.lose();
        (news, evicted, lost)
    }

    fn evict(&mut self) -> bool {
        let mut oldest: Vec<_> = self.lives.iter_mut().map(|(_, life)| life).collect();
        oldest.retain(|life| life.state == State::Ready);
        oldest.sort_by_key(|life| life.told.object);
        let count = oldest.len().min(BUCKET);
        for life in oldest.into_iter().take(count) {
            life.state = State::Evicting;
        }
        count > 0
    }

    fn lose(&mut self) -> bool {
        let ready = self.lives.iter().filter(|(_, life)| life.state == State::Ready);
        let ready: Vec<Slot> = ready.map(|(slot, _)| *slot).collect();
        if ready.is_empty() {
            return false;
        }
        let slot = ready[self.rng.below(ready.len() as u64) as usize];
        let generation = self.lives[&slot].generation;
        self.end(slot);
        self.ended.insert(slot, generation);
        true
    }

    /// What the master is told unasked, again and again.
    pub fn unasked(&self) -> Vec<Notice> {
        let evicting = self.lives.iter().filter(|(_, life)| life.state == State::Evicting);
        let evicting =
            evicting.map(|(slot, life)| self.notice(*slot, life.generation, OrderResult::Waiting));
        let ended = self.ended.iter().map(|(slot, generation)| {
            let next = self.generation(*slot);
            self.notice(*slot, *generation, OrderResult::Freed { next })
        });
        evicting.chain(ended).collect()
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.lives.is_empty()
    }
}
