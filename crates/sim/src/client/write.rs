//! The way of the bytes to one replica, and what goes on when a put was given up on the way.

use super::Client;
use crate::ctx::{Ctx, Link};
use crate::marks::Mark;
use crate::message::{CallId, Event, Path, Seals, ToNode};
use crate::node::Store;
use mooncrate_check::{PutId, payload};
use mooncrate_core::plan::Striping;
use mooncrate_core::{LeaderEpoch, Locator};
use mooncrate_mem::sums::seal_of;
use std::sync::Arc;

/// The way of the bytes to one replica.
#[derive(Debug)]
pub(super) struct Copying {
    pub(super) path: Path,
    pub(super) node: u8,
    pub(super) call: CallId,
    pub(super) link: Link,
    pub(super) locator: Locator,
    /// The leader that planned it.
    pub(super) epoch: LeaderEpoch,
    /// Where the stripe starts in the value.
    pub(super) base: u64,
    /// Bytes of the stripe.
    pub(super) len: u64,
    /// Bytes of it sent or stored so far.
    pub(super) next: u64,
    /// Bytes per step.
    pub(super) chunk: u64,
    pub(super) slow: bool,
    pub(super) store: Option<Arc<Store>>,
    pub(super) progress: Progress,
}

/// How far the owner of a replica is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It takes bytes, or will.
    Open,
    /// It was told to publish.
    Told,
    /// It said no, for good.
    Refused,
    /// The copy can be read.
    Published,
}

/// A direct put that was given up while its copy loop was running: the loop goes on, and only its end
/// tells the owner that nobody will store any more (R7).
#[derive(Debug)]
pub(super) struct Zombie {
    id: u32,
    put: PutId,
    key: u16,
    copy: Copying,
}

impl Client {
    /// Gives the way to one replica up. A copy loop that runs goes on.
    pub(super) fn give_up(&mut self, ctx: &mut Ctx, put: PutId, key: u16, mut copy: Copying) {
        let storing = copy.path == Path::Direct && copy.store.is_some();
        if storing && copy.progress == Progress::Open && copy.next < copy.len {
            self.next_op += 1;
            let id = self.next_op;
            let gap = self.gap(copy.slow);
            ctx.after(gap, Event::Zombie(self.ix, self.boot, id));
            self.zombies.push(Zombie { id, put, key, copy });
        } else if !copy.closed() {
            ctx.hang_up(&mut copy.link, copy.node, copy.call);
        }
    }

    /// The next step of such a loop; after the last one the owner is told.
    pub fn zombie(&mut self, ctx: &mut Ctx, id: u32) {
        let Some(at) = self.zombies.iter().position(|zombie| zombie.id == id) else { return };
        let zombie = &mut self.zombies[at];
        let store = zombie.copy.store.as_ref().expect("only direct puts become zombies");
        let word = store.segment.one_sided().word(zombie.copy.locator.slot);
        if word.is_ok_and(|word| word.generation() != zombie.copy.locator.generation) {
            ctx.mark(Mark::ZombieWriterQuarantined);
        }
        zombie.copy.advance(ctx, zombie.put, zombie.key);
        if zombie.copy.next < zombie.copy.len {
            let slow = zombie.copy.slow;
            let gap = self.gap(slow);
            ctx.after(gap, Event::Zombie(self.ix, self.boot, id));
        } else {
            let mut copy = self.zombies.swap_remove(at).copy;
            ctx.hang_up(&mut copy.link, copy.node, copy.call);
        }
    }
}

impl Copying {
    pub(super) fn published(&self) -> bool {
        self.progress == Progress::Published
    }

    /// The owner has answered for the last time.
    pub(super) fn closed(&self) -> bool {
        matches!(self.progress, Progress::Published | Progress::Refused)
    }

    /// The next bytes, as a frame or straight into the mapping.
    pub(super) fn advance(&mut self, ctx: &mut Ctx, put: PutId, key: u16) {
        let take = self.chunk.min(self.len - self.next);
        if take == 0 {
            return;
        }
        if let Some(store) = &self.store {
            let mut bytes = std::mem::take(&mut ctx.scratch);
            bytes.resize(take as usize, 0);
            let hash = ctx.keys[usize::from(key)].hash;
            payload::fill_range(&mut bytes, self.base + self.next, put, hash);
            store.poke(self.locator.extent.offset() + self.next, &bytes);
            ctx.scratch = bytes;
        } else {
            let chunk = ToNode::Chunk { call: self.call, offset: self.next, len: take as u32 };
            ctx.call_node(&mut self.link, self.node, self.call, chunk);
        }
        self.next += take;
    }
}

/// What the writer seals, before the first byte leaves.
pub(super) fn value_seals(ctx: &mut Ctx, put: PutId, key: u16, striping: Striping) -> Seals {
    let mut bytes = std::mem::take(&mut ctx.scratch);
    bytes.resize(striping.len as usize, 0);
    payload::fill(&mut bytes, put, ctx.keys[usize::from(key)].hash);
    let mut seals = Seals::default();
    for stripe in 0..striping.stripes() as u8 {
        let start = striping.start(stripe) as usize;
        let end = start + striping.stripe_len(stripe) as usize;
        seals.push(seal_of(&bytes[start..end]));
    }
    ctx.scratch = bytes;
    seals
}
