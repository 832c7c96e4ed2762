//! A node that fetches copies from other owners, as the leader orders.
//!
//! ```text
//! queued ─► the slot is open ─► asks a source ─┬► frames ───────────────┬► whole, verified ─► published
//!                                              └► mapped, in steps ─────┘        any failure: the next source
//! ```
//!
//! What must stay true, for a real one as well: nothing is told as copied before it is published, and a
//! copy that fails leaves nothing that can be read. Reports may be lost and told twice.

use super::disk::NotBegun;
use super::{Disk, Node, Store};
use crate::ctx::{Ctx, Link};
use crate::marks::Mark;
use crate::message::{Actor, Event, JobId, ToMaster, ToNode};
use crate::swarm::between;
use crate::{MS, Nanos, US};
use mooncrate_core::canary::{self, Canary};
use mooncrate_core::copy::{CopyDone, CopyOrder};
use mooncrate_core::word::Word;
use mooncrate_core::{Locator, Medium};
use mooncrate_mem::read::{self, Reading};
use mooncrate_mem::sums::seal_of;
use mooncrate_mem::{BeginWrite, LabelHash, SegmentError, WriteGuard};
use std::sync::Arc;

/// Reports that wait to be told.
const UNTOLD_MAX: usize = 256;

/// A copy under way.
#[derive(Debug)]
pub struct CopyJob {
    id: JobId,
    order: CopyOrder,
    guard: Option<WriteGuard>,
    stage: Stage,
    /// Which source is read.
    source: usize,
    /// Bytes of this source so far.
    buffer: Vec<u8>,
    /// Counts the steps, so that one that was planned for an earlier stage is passed over.
    turn: u32,
}

#[derive(Debug)]
enum Stage {
    Queued,
    /// Waits for an answer of the source.
    Asked,
    /// Reads the memory of another process of this host.
    Mapped(Arc<Store>, Word),
    /// All bytes are here and verified.
    Whole,
    /// They are on their way to the disk.
    OnDisk,
}

impl Node {
    /// Takes orders to copy. Some wait long for their turn.
    pub(super) fn take_copies(&mut self, ctx: &mut Ctx, list: Vec<CopyOrder>) {
        for order in list {
            let to_disk = order.target.segment.medium() == Medium::Ssd;
            if to_disk && self.copies.iter().any(|job| job.order.target == order.target) {
                // It is at it.
                continue;
            }
            self.jobs += 1;
            let id = JobId { node: self.ix, boot: self.boot, number: self.jobs };
            ctx.say(|| {
                format!("n{} is to copy {:?} from {:?}", self.ix, order.target, order.sources)
            });
            if canary::on(Canary::CopyToldEarly) {
                self.untold.push(CopyDone::of(&order.target, true));
            }
            let (stage, buffer) = (Stage::Queued, Vec::new());
            self.copies.push(CopyJob { id, order, guard: None, stage, source: 0, buffer, turn: 0 });
            let wait = match self.rng.below(100) {
                0..80 => self.rng.below(MS),
                80..97 => self.rng.below(40 * MS),
                _ => self.rng.below(400 * MS),
            };
            ctx.after(wait, Event::NodeCopy(id, 0));
        }
    }

    /// A copy takes its next step.
    pub fn copy_step(&mut self, ctx: &mut Ctx, id: JobId, turn: u32) {
        let Some(at) = self.copies.iter().position(|job| job.id == id) else { return };
        if self.copies[at].turn != turn {
            return;
        }
        let job = &self.copies[at];
        let begun = !matches!(job.stage, Stage::Queued);
        let mut aborted = job.guard.as_ref().is_some_and(WriteGuard::aborted);
        if let Some(disk) = self.disk_of(at) {
            let target = self.copies[at].order.target;
            aborted = begun && !disk.is_some_and(|disk| disk.is_writing(&target));
        }
        if aborted {
            ctx.mark(Mark::CopyAborted);
            self.copy_over(ctx, at, false);
            return;
        }
        match &self.copies[at].stage {
            Stage::Queued => self.copy_begin(ctx, at),
            // The source does not answer.
            Stage::Asked => self.next_source(ctx, at),
            Stage::Mapped(..) => self.copy_mapped(ctx, at),
            Stage::Whole => self.copy_publish(ctx, at),
            Stage::OnDisk => {
                let target = self.copies[at].order.target;
                if let Some(disk) = &mut self.disk {
                    disk.publish(&target);
                }
                ctx.mark(Mark::Offloaded);
                self.copy_over(ctx, at, true);
            }
        }
    }

    /// `Some`: the copy goes to a disk; to this one, if that mount is not over.
    #[expect(clippy::option_option, reason = "a disk, no disk any more, and no disk at all")]
    fn disk_of(&self, at: usize) -> Option<Option<&Disk>> {
        let target = &self.copies[at].order.target;
        let same =
            |disk: &&Disk| disk.segment == target.segment && disk.incarnation == target.incarnation;
        let to_disk = target.segment.medium() == Medium::Ssd;
        to_disk.then(|| self.disk.as_ref().filter(same))
    }

    fn copy_begin_on_disk(&mut self, ctx: &mut Ctx, at: usize) {
        let (order, now) = (self.copies[at].order.clone(), ctx.mono(self.host));
        let disk = self.disk_at(order.target.segment, order.target.incarnation);
        match disk.map(|disk| disk.begin(now, &order)) {
            Some(Ok(())) => self.ask_source(ctx, at),
            refused => {
                if refused == Some(Err(NotBegun::OldEpoch)) {
                    ctx.mark(Mark::OldCopyRefused);
                }
                let done = refused == Some(Err(NotBegun::Done));
                self.copy_over(ctx, at, done);
            }
        }
    }

    fn copy_begin(&mut self, ctx: &mut Ctx, at: usize) {
        if self.disk_of(at).is_some() {
            self.copy_begin_on_disk(ctx, at);
            return;
        }
        let order = &self.copies[at].order;
        let label = order.label.encode();
        let wanted = BeginWrite {
            locator: order.target,
            token: order.token,
            object: order.object,
            epoch: order.epoch,
            len: order.len,
            label: &label,
            hash: LabelHash::of(&label),
        };
        let store = self.store(order.target.segment, order.target.incarnation);
        let begun = store.map(|store| store.segment.begin(ctx.mono(self.host), &wanted));
        match begun {
            Some(Ok(guard)) => {
                self.copies[at].guard = Some(guard);
                self.ask_source(ctx, at);
            }
            refused => {
                if let Some(Err(SegmentError::OldEpoch { .. })) = refused {
                    ctx.mark(Mark::OldCopyRefused);
                }
                self.copy_over(ctx, at, false);
            }
        }
    }

    /// Asks the source whose turn it is; a node of this host for its memory, if it likes.
    fn ask_source(&mut self, ctx: &mut Ctx, at: usize) {
        let job = &mut self.copies[at];
        let Some(source) = job.order.sources.get(job.source).copied() else {
            self.copy_over(ctx, at, false);
            return;
        };
        let owner = ctx.owner(source.segment);
        let near = owner % ctx.swarm.hosts == self.host;
        let from_memory = source.segment.medium() == Medium::Dram;
        job.buffer = vec![0; job.order.len as usize];
        job.stage = Stage::Asked;
        job.turn += 1;
        let (id, turn, len) = (job.id, job.turn, job.order.len);
        let mapped = near && from_memory && self.rng.chance(ctx.swarm.load.one_sided);
        let fetch = ToNode::Fetch { job: id, locator: source, len, mapped };
        ctx.call_peer(&mut Link::new(near), self.ix, owner, fetch);
        ctx.after(between(&mut self.rng, 20, 90) * MS, Event::NodeCopy(id, turn));
    }

    fn next_source(&mut self, ctx: &mut Ctx, at: usize) {
        self.copies[at].source += 1;
        if self.copies[at].source < self.copies[at].order.sources.len() {
            ctx.mark(Mark::CopyOtherSource);
        }
        self.ask_source(ctx, at);
    }

    /// Another node fetches: pins, sends everything, unpins; or lends its memory.
    pub(super) fn serve_copy(
        &mut self,
        ctx: &mut Ctx,
        job: JobId,
        locator: &Locator,
        len: u64,
        mapped: bool,
    ) {
        let mut link = Link::new(job.node % ctx.swarm.hosts == self.host);
        if locator.segment.medium() == Medium::Ssd {
            let now = ctx.mono(self.host);
            let disk = self.disk_at(locator.segment, locator.incarnation);
            let message = match disk.and_then(|disk| disk.read(now, locator)) {
                Some(bytes) => ToNode::Fetched { job, offset: 0, bytes, last: true },
                None => ToNode::Lent { job, store: None },
            };
            ctx.call_peer(&mut link, self.ix, job.node, message);
            return;
        }
        let store = self.store(locator.segment, locator.incarnation).cloned();
        let pin = store.as_ref().map(|store| store.segment.pin(ctx.mono(self.host), locator));
        if mapped && store.is_some() {
            ctx.call_peer(&mut link, self.ix, job.node, ToNode::Lent { job, store });
            return;
        }
        let Some(Ok(pin)) = pin else {
            ctx.call_peer(&mut link, self.ix, job.node, ToNode::Lent { job, store: None });
            return;
        };
        let value = pin.bytes();
        let frame = if self.rng.chance(500) { len } else { len.div_ceil(3) }.max(1);
        let mut start = 0;
        loop {
            let end = (start + frame).min(value.len() as u64);
            let last = end == value.len() as u64;
            let bytes = value[start as usize..end as usize].to_vec();
            let message = ToNode::Fetched { job, offset: start, bytes, last };
            if !ctx.call_peer(&mut link, self.ix, job.node, message) || last {
                return;
            }
            link.last += self.rng.below(200 * US);
            start = end;
        }
    }

    /// Bytes of a source.
    pub(super) fn fetched(
        &mut self,
        ctx: &mut Ctx,
        id: JobId,
        offset: u64,
        bytes: &[u8],
        last: bool,
    ) {
        let Some(at) = self.copies.iter().position(|job| job.id == id) else { return };
        let job = &mut self.copies[at];
        if !matches!(job.stage, Stage::Asked) {
            return;
        }
        let start = (offset as usize).min(job.buffer.len());
        let end = (start + bytes.len()).min(job.buffer.len());
        job.buffer[start..end].copy_from_slice(&bytes[..end - start]);
        if last {
            let sealed = seal_of(&job.buffer) == job.order.seal;
            self.copy_read(ctx, at, sealed);
        }
    }

    /// The memory of a source of this host, or a refusal.
    pub(super) fn lent(&mut self, ctx: &mut Ctx, id: JobId, store: Option<Arc<Store>>) {
        let Some(at) = self.copies.iter().position(|job| job.id == id) else { return };
        if !matches!(self.copies[at].stage, Stage::Asked) {
            return;
        }
        let job = &mut self.copies[at];
        let word = store.as_ref().and_then(|store| {
            store.segment.one_sided().word(job.order.sources[job.source].slot).ok()
        });
        let (Some(store), Some(word)) = (store, word) else {
            self.next_source(ctx, at);
            return;
        };
        job.stage = Stage::Mapped(store, word);
        // Half of it now, half of it later: everything may happen in between.
        let half = job.buffer.len() / 2 / 64 * 64;
        if !self.copy_from_memory(at, 0, half) {
            self.next_source(ctx, at);
            return;
        }
        let gap = self.copy_gap(ctx);
        self.turn(ctx, at, gap);
    }

    fn copy_gap(&mut self, ctx: &Ctx) -> Nanos {
        if self.rng.chance(ctx.swarm.load.slow) {
            self.rng.below(60 * MS)
        } else {
            self.rng.below(90 * US)
        }
    }

    fn turn(&mut self, ctx: &mut Ctx, at: usize, gap: Nanos) {
        let job = &mut self.copies[at];
        job.turn += 1;
        ctx.after(gap, Event::NodeCopy(job.id, job.turn));
    }

    fn copy_from_memory(&mut self, at: usize, start: usize, end: usize) -> bool {
        let job = &mut self.copies[at];
        let Stage::Mapped(store, _) = &job.stage else { return false };
        if start == end {
            return true;
        }
        let extent = job.order.sources[job.source].extent;
        let part = extent.part(start as u64, (end - start) as u64);
        let target = &mut job.buffer[start..end];
        part.is_some_and(|part| store.segment.one_sided().copy(part, target).is_ok())
    }

    /// The rest of the bytes, and the second look.
    fn copy_mapped(&mut self, ctx: &mut Ctx, at: usize) {
        let len = self.copies[at].buffer.len();
        let whole = self.copy_from_memory(at, len / 2 / 64 * 64, len);
        let job = &self.copies[at];
        let Stage::Mapped(store, before) = &job.stage else { return };
        let (memory, source) = (store.segment.one_sided(), &job.order.sources[job.source]);
        let sealed = seal_of(&job.buffer) == job.order.seal;
        let good = whole
            && memory.word_again(source.slot, *before).is_ok_and(|after| {
                let (serve_until, now) = (memory.serve_until(), ctx.mono(self.host));
                let reading = Reading { before: *before, after, serve_until, now, sealed };
                read::judge(source.generation, &reading).is_ok()
            });
        if good {
            ctx.mark(Mark::CopyFromMemory);
        }
        self.copy_read(ctx, at, good);
    }

    /// A source was read: its bytes are good, or the next one is asked.
    fn copy_read(&mut self, ctx: &mut Ctx, at: usize, good: bool) {
        if !good {
            let job = &self.copies[at];
            let source = job.order.sources[job.source];
            if source.segment.medium() != Medium::Ssd && seal_of(&job.buffer) != job.order.seal {
                // Perhaps only torn: its owner knows.
                let (me, owner) = (Actor::Node(self.ix), ctx.owner(source.segment));
                let seal = job.order.seal;
                ctx.to_node_once(me, owner, ToNode::Verify { locator: source, seal });
            }
            self.next_source(ctx, at);
            return;
        }
        self.copies[at].stage = Stage::Whole;
        let gap = self.copy_gap(ctx);
        self.turn(ctx, at, gap);
    }

    fn copy_publish(&mut self, ctx: &mut Ctx, at: usize) {
        if let (Some(disk), Some(load), true) =
            (&mut self.disk, ctx.swarm.disks, self.copies[at].guard.is_none())
        {
            let job = &mut self.copies[at];
            let refuses = if ctx.calm { 0 } else { load.refuses };
            let Some(takes) = disk.write(&job.order.target, &job.buffer, refuses) else {
                ctx.mark(Mark::OffloadRefused);
                self.copy_over(ctx, at, false);
                return;
            };
            job.stage = Stage::OnDisk;
            self.turn(ctx, at, takes);
            return;
        }
        let job = &mut self.copies[at];
        let (token, seal) = (job.order.token, job.order.seal);
        let mut guard = job.guard.take().expect("it was opened before the first byte");
        let written = guard.write(0, &job.buffer).is_ok();
        let published = written && guard.publish(ctx.mono(self.host), token, seal).is_ok();
        if published {
            ctx.mark(Mark::CopyPublished);
        }
        self.copy_over(ctx, at, published);
    }

    /// A copy is over; its guard, if it still has one, gives the slot back.
    fn copy_over(&mut self, ctx: &mut Ctx, at: usize, ok: bool) {
        let job = self.copies.swap_remove(at);
        let target = &job.order.target;
        if !ok && let Some(disk) = self.disk_at(target.segment, target.incarnation) {
            disk.abandon(target);
        }
        ctx.say(|| format!("n{} copied {:?}: {ok}", self.ix, job.order.target));
        if self.untold.len() < UNTOLD_MAX {
            self.untold.push(CopyDone::of(&job.order.target, ok));
        }
    }

    /// Tells what became of copies; some of it once more later, as if the answer had been lost.
    pub(super) fn tell_copies(&mut self, ctx: &mut Ctx) {
        if self.untold.is_empty() {
            return;
        }
        let list = std::mem::take(&mut self.untold);
        if self.rng.chance(150) {
            self.untold.clone_from(&list);
        }
        ctx.to_master(Actor::Node(self.ix), self.standing.leader, ToMaster::Copied { list });
    }
}
