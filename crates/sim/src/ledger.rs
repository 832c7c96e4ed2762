//! The ledger: which lives the leaders planned, and so which keys may vanish with a mount.
//!
//! A finished value may be missed only if somebody let it go: its last copy was evicted, or a mount
//! with a copy of it is gone and the leader has no other. A leader that was replaced and does not know it
//! sees the nodes that follow another as gone, and takes what it cannot read any more from those that
//! still follow it. Everything else that is missed was lost by mistake. What must stay true: what is told to the oracle here is what the store is allowed to lose,
//! no more; a mount is asked about once.

use crate::ctx::Ctx;
use mooncrate_check::What;
use mooncrate_core::catalog::Catalog;
use mooncrate_core::label::Label;
use mooncrate_core::plan::{Action, Announced, Notice, Order};
use mooncrate_core::{Generation, Incarnation, Locator, Now, SegmentId, Slot};
use std::collections::{BTreeMap, BTreeSet};

type Mount = (SegmentId, Incarnation);

/// Lives that were planned or told, by the mount they are in. A leader that was replaced may plan a life
/// that its successor gives to another key.
#[derive(Debug, Default)]
pub struct Ledger {
    mounts: BTreeMap<Mount, BTreeSet<(Slot, Generation, u16)>>,
    /// Lives that their owner found bad. The word of it may be lost with a leader; the next one is told
    /// of a range in use without a value.
    bad: BTreeSet<(Mount, Slot, Generation)>,
    /// Keys to look for when a leader has heard everybody.
    doubtful: BTreeSet<u16>,
}

impl Ledger {
    /// A copy of this key may come to be here.
    pub fn planned(&mut self, key: u16, at: &Locator) {
        self.lives((at.segment, at.incarnation)).insert((at.slot, at.generation, key));
    }

    fn lives(&mut self, mount: Mount) -> &mut BTreeSet<(Slot, Generation, u16)> {
        self.mounts.entry(mount).or_default()
    }

    /// The owner has found these bytes bad.
    pub fn found_bad(&mut self, at: &Locator) {
        self.bad.insert(((at.segment, at.incarnation), at.slot, at.generation));
    }

    /// A life is over.
    pub fn freed(&mut self, notice: &Notice) {
        let mount = (notice.segment, notice.incarnation);
        self.bad.remove(&(mount, notice.slot, notice.generation));
        if let Some(lives) = self.mounts.get_mut(&mount) {
            lives.retain(|life| (life.0, life.1) != (notice.slot, notice.generation));
        }
    }

    /// Nothing that is here may be missed from now on: it was moved.
    pub fn forget(&mut self, segment: SegmentId, incarnation: Incarnation) {
        self.mounts.remove(&(segment, incarnation));
    }

    fn keys_of(&self, order: &Order) -> Vec<u16> {
        self.keys_at((order.segment, order.incarnation), order.slot, order.generation)
    }

    fn keys_at(&self, mount: Mount, slot: Slot, generation: Generation) -> Vec<u16> {
        let lives = self.mounts.get(&mount).into_iter().flatten();
        let same = lives.filter(|life| (life.0, life.1) == (slot, generation));
        same.map(|life| life.2).collect()
    }
}

impl Ctx {
    /// The number of a key, by its label.
    pub fn key_number(&self, label: &Label) -> Option<u16> {
        let found = self.keys.iter().position(|key| key.name() == label.name());
        found.map(|at| at as u16)
    }

    /// An owner tells what it holds, and so that what it found bad is gone.
    pub fn told(&mut self, mount: Mount, slots: &[Announced]) {
        for slot in slots {
            let object = slot.life.as_ref().and_then(|life| life.object.as_ref());
            if let Some(key) = object.and_then(|object| self.key_number(&object.label)) {
                self.ledger.lives(mount).insert((slot.slot, slot.generation, key));
            }
            if self.ledger.bad.contains(&(mount, slot.slot, slot.generation)) {
                let keys = self.ledger.keys_at(mount, slot.slot, slot.generation);
                self.ledger.doubtful.extend(keys);
            }
        }
    }

    /// Orders leave the leader: what is evicted and has no other copy may vanish, and so may what a
    /// replaced leader ends.
    pub fn ending(&mut self, now: Now, catalog: &Catalog, order: &Order) {
        let replaced = catalog.epoch() != self.election.epoch;
        let lets_go = match order.action {
            Action::Evict => true,
            Action::Retire { .. } => replaced,
            Action::Abort => false,
        };
        if !lets_go {
            return;
        }
        for key in self.ledger.keys_of(order) {
            self.may_vanish(now, catalog, key);
        }
    }

    /// What a disk has told, and the leader does not give out, was told to go: it may vanish. So may what
    /// the disk has evicted or lost since an earlier leader knew of it: no word of that reached anybody.
    /// Whether it is gone is known when everybody has told.
    pub fn turned_away(&mut self, mount: Mount, slots: &[Announced]) {
        for slot in slots {
            let object = slot.life.as_ref().and_then(|life| life.object.as_ref());
            let told = object.and_then(|object| self.key_number(&object.label));
            let lives = self.ledger.mounts.get(&mount).into_iter().flatten();
            let before = lives.filter(|life| life.0 == slot.slot).map(|life| life.2);
            let keys: Vec<u16> = before.chain(told).collect();
            self.ledger.doubtful.extend(keys);
        }
    }

    /// The owner of a disk has evicted or lost a record, or one of memory has found a replica bad: what
    /// has no other copy may vanish.
    pub fn gone_from_owner(&mut self, now: Now, catalog: &Catalog, notice: &Notice) {
        let mount = (notice.segment, notice.incarnation);
        for key in self.ledger.keys_at(mount, notice.slot, notice.generation) {
            self.may_vanish(now, catalog, key);
        }
    }

    /// Mounts that do not take part: what the leader cannot find without them may vanish.
    pub fn let_go(&mut self, now: Now, catalog: &Catalog) {
        for key in std::mem::take(&mut self.ledger.doubtful) {
            self.may_vanish(now, catalog, key);
        }
        let gone = |mount: &&Mount| !catalog.serves(mount.0, mount.1);
        let gone: Vec<Mount> = self.ledger.mounts.keys().filter(gone).copied().collect();
        for mount in gone {
            let lives = self.ledger.mounts.remove(&mount).unwrap_or_default();
            // Who still tells has told a part: that may be given out, and vanish later. So may what a node holds
            // that is silent for longer than its serving lease.
            if catalog.mounts(mount.0, mount.1) {
                self.ledger.mounts.insert(mount, lives.clone());
            }
            for (_, _, key) in lives {
                self.may_vanish(now, catalog, key);
            }
        }
    }

    fn known(&self, now: Now, catalog: &Catalog, key: u16) -> bool {
        catalog.exist(now, self.keys[usize::from(key)].name()) == Ok(true)
    }

    fn may_vanish(&mut self, now: Now, catalog: &Catalog, key: u16) {
        if !self.known(now, catalog, key) {
            self.observe(key, What::MayVanish);
        }
    }
}
