//! The operator: empties nodes while everything goes on, lets them leave when they are empty, and asks
//! for copies of single keys. A drain is forgotten with its leader, so it is begun again.
//!
//! What is judged: a node that counts as drained holds no finished value, and when it leaves nothing is
//! missed that it once had.

use crate::faults::span;
use crate::marks::Mark;
use crate::message::{Actor, Event};
use crate::node;
use crate::world::World;
use crate::{MS, Nanos};
use mooncrate_check::What;
use mooncrate_core::catalog::Catalog;
use mooncrate_core::copy::{DrainMode, DrainStat};
use mooncrate_core::error::CopyError;
use mooncrate_core::{LeaderEpoch, Medium, SegmentId, Slot};

/// Between two looks.
const LOOK: Nanos = 15 * MS;

/// A node that is emptied.
#[derive(Clone, Copy, Debug)]
pub struct Draining {
    node: u8,
    mode: DrainMode,
    /// The leader that knows of it.
    epoch: LeaderEpoch,
    /// Given up then.
    until: Nanos,
    /// What follows when it is empty.
    leaves: bool,
}

impl World {
    /// The catalog of a leader that does its work.
    fn leading(&mut self) -> Option<&mut Catalog> {
        let (now, epoch) = (self.ctx.now, self.ctx.election.epoch);
        let master = &mut self.masters[usize::from(self.ctx.election.leader?)];
        if !master.up || master.paused_until > now {
            return None;
        }
        master.catalog.as_mut().filter(|leader| leader.epoch() == epoch && !leader.rebuilding())
    }

    /// Chooses a node to empty, unless one is being emptied.
    pub fn begin_drain(&mut self) {
        if self.drain.is_some() {
            return;
        }
        let drops = self.rng.chance(150);
        self.drain = Some(Draining {
            node: self.rng.below(self.nodes.len() as u64) as u8,
            mode: if drops { DrainMode::Drop } else { DrainMode::Move },
            epoch: LeaderEpoch(0),
            until: self.ctx.now + span(&mut self.rng, 50, 2500),
            leaves: self.rng.chance(600),
        });
    }

    /// Looks how far the drain is.
    pub fn operate(&mut self) {
        self.ctx.after(LOOK, Event::Operator);
        let Some(drain) = self.drain else { return };
        let over = self.ctx.calm || drain.until <= self.ctx.now;
        let swarm = &self.ctx.swarm;
        let vram = swarm.vram.is_some_and(|vram| vram.on(drain.node));
        let others = u32::from(swarm.disks.is_some()) + u32::from(vram);
        let (id, segments) = (node::id(drain.node), u32::from(swarm.segments) + others);
        let Some(catalog) = self.leading() else { return };
        let epoch = catalog.epoch();
        if over {
            catalog.undrain(id, None);
            self.drain = None;
            self.ctx.mark(Mark::Undrained);
            return;
        }
        // A segment that was still announcing has not heard of the drain.
        let known = catalog.drain_stat(id, None).filter(|stat| stat.draining == segments);
        let Some(stat) = known.filter(|_| drain.epoch == epoch) else {
            if catalog.drain(id, None, drain.mode).is_some() {
                self.drained_anew(epoch);
            }
            return;
        };
        self.watch_drain(drain, &stat);
    }

    /// A leader has heard of the drain.
    fn drained_anew(&mut self, epoch: LeaderEpoch) {
        let Some(drain) = &mut self.drain else { return };
        if drain.epoch != LeaderEpoch(0) && drain.epoch != epoch {
            self.ctx.mark(Mark::DrainBegunAgain);
        }
        drain.epoch = epoch;
        let (node, mode) = (drain.node, drain.mode);
        self.ctx.say(|| format!("n{node} is drained: {mode:?}"));
        if mode == DrainMode::Drop {
            for key in 0..self.ctx.keys.len() as u16 {
                self.ctx.observe(key, What::MayVanish);
            }
        }
    }

    fn watch_drain(&mut self, drain: Draining, stat: &DrainStat) {
        if stat.moved > 0 {
            self.ctx.mark(Mark::DrainMoved);
        }
        if stat.stuck > 0 {
            self.ctx.mark(Mark::DrainStuck);
        }
        if !stat.drained() {
            return;
        }
        let node = &self.nodes[usize::from(drain.node)];
        let mut finished = node.stores.iter().flat_map(|store| {
            let (slots, _) = store.segment.announce(Slot(0), usize::MAX);
            slots.into_iter().filter_map(|slot| slot.life?.object)
        });
        if let Some(left) = finished.find(|told| self.ctx.finished.contains(&told.object)) {
            let text = format!("n{} counts as drained and holds {}", drain.node, left.label.key);
            self.ctx.fail("drain", None, text);
        }
        if drain.leaves && node.up && node.paused_until <= self.ctx.now {
            self.leave_drained(drain.node);
        }
    }

    /// The node goes: nothing of it may be missed.
    fn leave_drained(&mut self, at: u8) {
        let node = &mut self.nodes[usize::from(at)];
        for store in &node.stores {
            let spec = store.segment.spec();
            self.ctx.ledger.forget(spec.segment, spec.incarnation);
        }
        node.leave(&mut self.ctx);
        self.ctx.mark(Mark::DrainedLeft);
        let down = span(&mut self.rng, 5, 900);
        self.ctx.after(down, Event::Restart(Actor::Node(at)));
        self.drain = None;
    }

    /// Asks for a copy of some key in some segment, perhaps instead of the one it has.
    pub fn ask_for_copy(&mut self) {
        let segments: Vec<SegmentId> = self.ctx.owners.iter().map(|(id, _)| *id).collect();
        let to = segments[self.rng.below(segments.len() as u64) as usize];
        let moves = self.rng.chance(600);
        let key = self.ctx.keys[self.rng.below(self.ctx.keys.len() as u64) as usize].clone();
        let now = self.ctx.lease_clock(self.ctx.master_host());
        let Some(catalog) = self.leading() else { return };
        // By name VRAM is asked for as by a put.
        let asked = catalog.peek(key.name()).filter(|_| to.medium() == Medium::Vram);
        let begun = if moves {
            let mut from =
                segments.iter().map(|from| catalog.copy(now, key.name(), Some(*from), to));
            from.find(|begun| *begun != Err(CopyError::NoSource)).unwrap_or(Ok(false))
        } else {
            catalog.copy(now, key.name(), None, to)
        };
        self.ctx.in_vram.extend(asked.map(|at| at.object));
        self.ctx.say(|| format!("{:?} to {to}, moves: {moves}: {begun:?}", key.bytes));
        match begun {
            Ok(true) => self.ctx.mark(Mark::CopyThere),
            Ok(false) => self.ctx.mark(Mark::CopyAsked),
            Err(_) => {}
        }
    }
}
