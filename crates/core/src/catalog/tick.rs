//! tick: what time alone brings about. Everything here works in bounded slices (G13).

use super::Catalog;
use super::objects::{SegmentIndex, Stage};
use super::segments::{NOBODY, Phase};
use crate::canary::{self, Canary};
use crate::ids::{NodeId, Slot};
use crate::lease;
use crate::time::Now;
use std::time::Duration;

/// Open puts ended in one tick.
const EXPIRED_MAX: usize = 1024;
/// Victims looked at per segment in one tick.
const VICTIMS_MAX: usize = 256;
/// Orders repeated per segment in one tick.
const RETRIES_MAX: usize = 256;
/// Slots swept out of a leaving segment in one tick.
const SWEEP_MAX: u32 = 4096;
/// A gap between ticks longer than this means that the master itself stood still.
const STALL: Duration = Duration::from_secs(1);

impl Catalog {
    /// Called every few milliseconds.
    pub fn tick(&mut self, now: Now) {
        self.forgive_own_stall(now);
        self.watch_nodes(now);
        self.watch_puts(now, EXPIRED_MAX);
        self.expire(now);
        self.drop_incomplete(now);
        self.evict_groups(now);
        self.watch_copies(now);
        self.repair(now);
        self.watch_heat(now);
        self.offload(now);
        self.promote(now);
        self.forget_ledgers(now);
        self.watch_rebuild(now);
        for index in self.segments.indexes() {
            self.strike_endings(index);
            match self.segments.book(index).phase {
                Phase::Open => {
                    self.end_soft_pins(now, index, VICTIMS_MAX);
                    self.evict_to_low(now, index, VICTIMS_MAX);
                    self.retry_orders(now, index, RETRIES_MAX);
                    self.drain_step(now, index);
                }
                // A disk obeys while it tells, which may take minutes.
                Phase::Announcing if self.segments.is_disk(index) => {
                    self.retry_orders(now, index, RETRIES_MAX);
                }
                Phase::Leaving { fenced_at, .. } if fenced_at <= now => self.sweep(now, index),
                _ => {}
            }
        }
    }

    /// A master that stood still heard nobody, which is nobody's fault but its own.
    fn forgive_own_stall(&mut self, now: Now) {
        let gap = now.since(self.last_tick);
        self.last_tick = now;
        if gap > STALL {
            for member in self.nodes.values_mut() {
                // Calls may have come through meanwhile: nobody is heard in the future.
                member.last_heard = member.last_heard.plus(gap).min(now);
            }
        }
    }

    fn watch_nodes(&mut self, now: Now) {
        let gone_after = lease::guarded(self.config.registration);
        let lapses_after = self.lapses_after();
        let mut silent: Vec<NodeId> = Vec::new();
        let mut lapsed: Vec<NodeId> = Vec::new();
        let mut gone: Vec<NodeId> = Vec::new();
        for (node, member) in &mut self.nodes {
            let quiet = now.since(member.last_heard);
            if quiet >= lapses_after && !member.lapsed {
                lapsed.push(*node);
            }
            if quiet >= gone_after {
                gone.push(*node);
            } else if quiet >= self.config.silent_after && !member.silent {
                member.silent = true;
                silent.push(*node);
            }
        }
        for node in silent {
            self.set_node_open(node, false);
        }
        for node in lapsed {
            self.set_lapsed(node, true);
        }
        for node in gone {
            let segments = self.nodes[&node].segments.clone();
            self.unmount(node, &segments);
            self.nodes.remove(&node);
            self.counters.nodes_lost += 1;
        }
    }

    /// Takes the replicas of a segment that nobody can read any more out of their objects.
    fn sweep(&mut self, now: Now, index: SegmentIndex) {
        let Phase::Leaving { fenced_at, next } = self.segments.book(index).phase else { return };
        if !self.may_sweep(index) {
            return;
        }
        let slots = self.segments.book(index).slots.len();
        let end = next.saturating_add(SWEEP_MAX).min(slots);
        for slot in next..end {
            let id = self.segments.book(index).slots[slot].entry;
            let writing = self.objects.get(id).filter(|e| e.stage == Stage::Writing);
            let writing = writing.map(|entry| entry.object);
            self.detach(now, index, Slot(slot));
            if let Some(object) = writing {
                if self.objects.get(id).is_some() {
                    self.abort_put(now, id);
                } else {
                    self.close_put(object);
                }
            }
        }
        if end == slots {
            self.segments.drop_book(index);
            if !canary::on(Canary::MoveOutlivesSegment) {
                self.copies.forget(index);
            }
        } else {
            self.segments.book_mut(index).phase = Phase::Leaving { fenced_at, next: end };
        }
    }

    /// Takes one slot's replica out of whatever names it, without asking the owner.
    pub(super) fn detach(&mut self, now: Now, index: SegmentIndex, slot: Slot) {
        self.detached += 1;
        if self.end_copy(now, index, slot).is_some() {
            self.copy_failed(now);
        }
        let book = self.segments.book_mut(index);
        if let Some(ending) = book.take_ending(slot) {
            self.discharge_ending(&ending);
            if !ending.settled {
                self.acknowledge(ending.removing);
            }
        }
        let book = self.segments.book_mut(index);
        let id = std::mem::replace(&mut book.slots[slot.0].entry, NOBODY);
        if id == NOBODY {
            return;
        }
        book.live -= 1;
        self.note_away(index, id);
        if let Stage::Removing(_) = self.objects.entry(id).stage {
            self.acknowledge(Some(id));
        } else {
            self.drop_part(now, id, index, slot);
        }
    }
}
