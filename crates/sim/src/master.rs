//! A master: the real catalog, with a clock, a term of office and a queue of calls that wait.
//!
//! What must stay true, for a real one as well: everything that a caller may rely on later (an ended
//! put, a removal, a lease, a heartbeat's acknowledgement, a mount) is granted only while the term
//! lasts, by the master's own earlier reckoning. Orders and plans need no such check, because nodes
//! refuse an epoch that was replaced: a zombie here goes on sending them.

use crate::ctx::Ctx;
use crate::marks::Mark;
use crate::message::{Actor, Answer, Ask, Call, Event, OpRef, ToClient, ToMaster, ToNode, writer};
use crate::swarm::{TERM, between};
use crate::{MS, Nanos};
use mooncrate_core::canary::{self, Canary};
use mooncrate_core::catalog::{
    Catalog, Counters, Ended, Mounted, Removal, Start, Writer, replacing,
};
use mooncrate_core::error::{GetError, PutError, RemoveError};
use mooncrate_core::key::Name;
use mooncrate_core::plan::OrderResult;
use mooncrate_core::plan::SegmentOffer;
use mooncrate_core::rng::Rng;
use mooncrate_core::{
    Incarnation, LeaderEpoch, Medium, NodeId, Now, ObjectId, PutConfig, SegmentId, TenantId,
    WritePlan,
};
use std::time::Duration;

/// The election service lets a term end a little later than its holder believes.
const TERM_GUARD: Nanos = TERM / 50 + MS;

/// A process that may lead.
#[derive(Debug)]
pub struct Master {
    /// Which one.
    pub ix: u8,
    /// Which life of the process.
    pub boot: u32,
    /// Whether the process runs.
    pub up: bool,
    /// It handles nothing until then.
    pub paused_until: Nanos,
    /// It cannot reach the election service until then.
    pub cut_until: Nanos,
    /// Its mind, while it leads or believes so.
    pub catalog: Option<Catalog>,
    /// End of its term, on its own clock.
    term_until: Now,
    /// When a replaced leader will notice.
    zombie_until: Nanos,
    waiting: Vec<Waiting>,
    /// The most that each tenant had while nodes announced: nobody refuses what is there.
    brought: Vec<u64>,
    counted: Counters,
    rng: Rng,
}

/// A call that is not answered yet.
#[derive(Debug)]
struct Waiting {
    call: Call,
    deadline: Nanos,
    /// What its owners must confirm to be gone: for a remove, or an upsert that replaced it. `None`: a
    /// put that waits for room.
    object: Option<ObjectId>,
    /// It was looked at before.
    waited: bool,
}

/// Removes a key: by its name, or first by a pattern that only this key matches.
fn remove(
    catalog: &mut Catalog,
    now: Now,
    name: Name<'_>,
    (force, pattern): (bool, bool),
) -> Result<Removal, RemoveError> {
    let mut cursor = pattern.then_some(0);
    while let Some(from) = cursor {
        let matches = |key: &[u8]| key == name.key;
        let page = catalog.remove_matching(now, name.tenant, matches, from, force)?;
        if let Some(object) = page.waiting.first() {
            return Ok(Removal::Waiting(*object));
        }
        cursor = page.next;
    }
    catalog.remove(now, name, force)
}

impl Master {
    /// A process that leads nobody.
    pub fn new(ix: u8, seed: u64) -> Self {
        Self {
            ix,
            boot: 0,
            up: true,
            paused_until: 0,
            cut_until: 0,
            catalog: None,
            term_until: Now(0),
            zombie_until: 0,
            waiting: Vec::new(),
            brought: Vec::new(),
            counted: Counters::default(),
            rng: Rng::stream(seed, &format!("master-{ix}")),
        }
    }

    /// Whether it could take office.
    pub fn eligible(&self, now: Nanos) -> bool {
        self.up && self.paused_until <= now && self.cut_until <= now && self.catalog.is_none()
    }

    /// Takes office under a new epoch.
    pub fn lead(&mut self, ctx: &mut Ctx) {
        let fresh = ctx.election.epoch == LeaderEpoch(0);
        let raised = u64::from(!canary::on(Canary::StandbyKeepsEpoch) || fresh);
        let epoch = LeaderEpoch(ctx.election.epoch.0 + raised);
        let expected: Vec<NodeId> = ctx.election.nodes.iter().copied().collect();
        ctx.say(|| format!("master {} leads under epoch {epoch}, expects {expected:?}", self.ix));
        let start = if fresh {
            Start::New
        } else if ctx.election.forgotten {
            ctx.mark(Mark::Forgotten);
            Start::Unknown
        } else {
            Start::Takeover { expected, trusted: ctx.election.trusted.clone() }
        };
        let now = ctx.lease_clock(ctx.master_host());
        let mut catalog = Catalog::new(ctx.swarm.catalog.clone(), epoch, start, now);
        for tenant in 1..ctx.swarm.tenants {
            catalog.set_quota(TenantId(tenant.into()), ctx.swarm.quota);
        }
        self.catalog = Some(catalog);
        self.brought = vec![0; ctx.swarm.tenants.into()];
        self.counted = Counters::default();
        self.waiting.clear();
        self.zombie_until = 0;
        ctx.election.leader = Some(self.ix);
        ctx.election.up = true;
        ctx.election.believed.clone_from(&ctx.election.trusted);
        ctx.election.epoch = epoch;
        self.renew(ctx);
    }

    /// The process dies; what it knew is gone.
    pub fn crash(&mut self, ctx: &mut Ctx) {
        self.count(ctx);
        self.up = false;
        if self.catalog.as_ref().is_some_and(|catalog| catalog.epoch() == ctx.election.epoch) {
            ctx.election.up = false;
        }
        self.boot += 1;
        self.catalog = None;
        self.waiting.clear();
    }

    /// The process starts again, as one that leads nobody.
    pub fn restart(&mut self, ctx: &mut Ctx) {
        self.up = true;
        ctx.after(MS, Event::MasterTick(self.ix, self.boot));
    }

    fn leading(&self, ctx: &Ctx) -> bool {
        ctx.mono(ctx.master_host()) < self.term_until
    }

    /// Holds its term, if it still is the one.
    fn renew(&mut self, ctx: &mut Ctx) {
        let mine =
            self.catalog.as_ref().is_some_and(|catalog| catalog.epoch() == ctx.election.epoch);
        if !mine || self.cut_until > ctx.now {
            return;
        }
        self.term_until = ctx.mono(ctx.master_host()).plus(Duration::from_nanos(TERM));
        ctx.election.until = ctx.now + TERM + TERM_GUARD;
    }

    /// Looks after itself: term, catalog, calls that wait.
    pub fn tick(&mut self, ctx: &mut Ctx) {
        let gap = between(&mut self.rng, 5, 15) * MS;
        ctx.after(gap, Event::MasterTick(self.ix, self.boot));
        self.renew(ctx);
        self.step_down(ctx);
        let now = ctx.lease_clock(ctx.master_host());
        let Some(catalog) = &mut self.catalog else { return };
        catalog.tick(now);
        if ctx.calm {
            // The finale clears one key after the other: what is left must not be in its way.
            (1..ctx.swarm.tenants).for_each(|t| catalog.set_quota(TenantId(t.into()), None));
        }
        let leads = catalog.epoch() == ctx.election.epoch;
        if leads && !catalog.waits_for_anybody() {
            ctx.election.forgotten = false;
        }
        let keeps = leads && !ctx.election.forgotten;
        if keeps && catalog.trust_changed() {
            // Writing takes time now and then; a leader that dies meanwhile has or has not written.
            let list = catalog.trusted();
            let fewer = ctx.election.trusted.iter().any(|trusted| !list.contains(trusted));
            catalog.trust_writing(&list);
            let chance = ctx.swarm.disks.map_or(1000, |disks| disks.listed);
            let written = ctx.calm || self.rng.chance(chance);
            ctx.say(|| format!("master {} lists {list:?}, and hears of it: {written}", self.ix));
            if written {
                ctx.marks.hit_times(Mark::DiskOffList, u64::from(fewer));
                catalog.trust_written(&list);
                ctx.election.trusted = list;
            } else if self.rng.chance(500) {
                // It failed for the leader, and came through all the same.
                ctx.election.trusted = list;
            }
        }
        if keeps && !catalog.rebuilding() {
            // Nodes that were counted out hold nothing any more.
            ctx.election.nodes = catalog.holders().into_iter().collect();
        }
        self.retry_waiting(ctx);
        self.flush(ctx);
        self.count(ctx);
    }

    /// A leader that was replaced notices after a while.
    fn step_down(&mut self, ctx: &mut Ctx) {
        let replaced =
            self.catalog.as_ref().is_some_and(|catalog| catalog.epoch() != ctx.election.epoch);
        if !replaced {
            return;
        }
        if self.zombie_until == 0 {
            self.zombie_until = ctx.now + between(&mut self.rng, 20, 900) * MS;
        } else if self.zombie_until <= ctx.now || ctx.calm {
            ctx.say(|| format!("master {} steps down", self.ix));
            self.count(ctx);
            self.catalog = None;
            self.waiting.clear();
        }
    }

    /// Takes in a message.
    pub fn handle(&mut self, ctx: &mut Ctx, message: ToMaster) {
        if self.catalog.is_none() {
            if let ToMaster::Call(call) = message {
                self.answer(ctx, call.op, call.attempt, Answer::NotLeader);
            }
            return;
        }
        match message {
            ToMaster::Call(call) => self.call(ctx, call),
            // What a node may rely on is granted while the term lasts.
            _ if !self.leading(ctx) => {}
            ToMaster::WriterGone(writer) => self.writer_gone(ctx, writer),
            ToMaster::Mount { node, round, fence, offers } => {
                self.mount(ctx, node, round, fence, &offers);
            }
            ToMaster::Announce { .. } => self.announce(ctx, message),
            ToMaster::Beat { node, sent } => {
                let now = ctx.lease_clock(ctx.master_host());
                let catalog = self.catalog.as_mut().expect("checked above");
                let result = catalog.heartbeat(now, crate::node::id(node));
                let serve = catalog.may_serve(crate::node::id(node));
                let reply = ToNode::BeatAck { sent, epoch: catalog.epoch(), result, serve };
                ctx.to_node(Actor::Master(self.ix), node, reply);
            }
            ToMaster::Unmount { node, segments } => {
                let catalog = self.catalog.as_mut().expect("checked above");
                // A late farewell must not end a later mount of the same segment.
                let still = |(id, mount): &&(SegmentId, Incarnation)| catalog.mounts(*id, *mount);
                let current: Vec<SegmentId> =
                    segments.iter().filter(still).map(|(id, _)| *id).collect();
                catalog.unmount(crate::node::id(node), &current);
                ctx.mark(if current.is_empty() {
                    Mark::DeathConfirmedLate
                } else {
                    Mark::DeathConfirmed
                });
                for (segment, incarnation) in segments {
                    catalog.unreadable(segment, incarnation);
                }
                ctx.say(|| format!("master {} lets n{node} go", self.ix));
            }
            ToMaster::Copied { list } => {
                let now = ctx.lease_clock(ctx.master_host());
                let catalog = self.catalog.as_mut().expect("checked above");
                for done in &list {
                    catalog.copied(now, done);
                }
                catalog.go_on(now);
            }
            ToMaster::Notices { list } => {
                let now = ctx.lease_clock(ctx.master_host());
                let catalog = self.catalog.as_mut().expect("checked above");
                for notice in &list {
                    catalog.notice(now, notice);
                    if notice.segment.medium() == Medium::Ssd || notice.result == OrderResult::Bad {
                        ctx.gone_from_owner(now, catalog, notice);
                    }
                    if let OrderResult::Freed { .. } = notice.result {
                        ctx.ledger.freed(notice);
                    }
                }
                self.retry_waiting(ctx);
            }
        }
        self.flush(ctx);
    }

    /// A client has no links any more: its puts are given back.
    fn writer_gone(&mut self, ctx: &mut Ctx, writer: Writer) {
        let now = ctx.lease_clock(ctx.master_host());
        let catalog = self.catalog.as_mut().expect("the caller has looked");
        let open = catalog.open_puts();
        catalog.writer_gone(now, writer, usize::MAX);
        ctx.marks.hit_times(Mark::WriterGone, (open - catalog.open_puts()) as u64);
    }

    /// A page of what a node holds.
    fn announce(&mut self, ctx: &mut Ctx, message: ToMaster) {
        let ToMaster::Announce { node, epoch, round, page, segment, incarnation, slots, last } =
            message
        else {
            return;
        };
        let now = ctx.lease_clock(ctx.master_host());
        let catalog = self.catalog.as_mut().expect("checked above");
        let result = catalog
            .is_told(epoch)
            .and_then(|()| catalog.announce(now, segment, incarnation, &slots, last));
        ctx.told((segment, incarnation), &slots);
        // What a node tells that came back late may be told to go, too.
        let told = catalog.takes_part(segment, incarnation);
        let whole = told && catalog.may_serve(crate::node::id(node));
        if segment.medium() == Medium::Ssd || !whole {
            ctx.turned_away((segment, incarnation), &slots);
        }
        for (tenant, known) in catalog.tenants() {
            let brought = &mut self.brought[tenant.0 as usize];
            *brought = known.used.max(*brought);
        }
        let reply = ToNode::Announced { round, page, epoch: catalog.epoch(), result };
        ctx.to_node(Actor::Master(self.ix), node, reply);
    }

    fn mount(
        &mut self,
        ctx: &mut Ctx,
        node: u8,
        round: u32,
        left: Option<Duration>,
        offers: &[SegmentOffer],
    ) {
        let now = ctx.lease_clock(ctx.master_host());
        let catalog = self.catalog.as_mut().expect("the caller looked");
        let result = catalog.mount(now, crate::node::id(node), offers);
        let mut fence = Duration::ZERO;
        if result.as_ref().is_ok_and(|answers| answers.contains(&Mounted::Known)) {
            ctx.mark(Mark::MountedTwice);
        }
        if result.is_ok() {
            fence = catalog.fence(now, crate::node::id(node), left);
            ctx.election.nodes.insert(crate::node::id(node));
        }
        ctx.say(|| format!("master {} mounts n{node}: {result:?}", self.ix));
        let reply = ToNode::Mounted { round, epoch: catalog.epoch(), fence, result };
        ctx.to_node(Actor::Master(self.ix), node, reply);
    }

    fn call(&mut self, ctx: &mut Ctx, call: Call) {
        let leading = self.leading(ctx);
        let granting = !matches!(call.ask, Ask::PutStart { .. } | Ask::Locate { lease_ms: 0 });
        if !leading && granting {
            ctx.mark(Mark::NotLeader);
            self.answer(ctx, call.op, call.attempt, Answer::NotLeader);
            return;
        }
        let now = ctx.lease_clock(ctx.master_host());
        let deadline = ctx.now + Nanos::from(call.budget_ms) * MS;
        let pattern = matches!(call.ask, Ask::Remove { .. })
            && ctx.swarm.disks.is_some_and(|disks| self.rng.chance(disks.patterns));
        let catalog = self.catalog.as_mut().expect("the caller looked");
        let key = ctx.keys[usize::from(call.key)].name();
        let answer = match call.ask {
            Ask::PutStart { .. } => {
                self.waiting.push(Waiting { call, deadline, object: None, waited: false });
                self.retry_waiting(ctx);
                return;
            }
            Ask::PutEnd { token, seals } => match catalog.put_end(now, key, token, seals.all()) {
                Ok(Ended::Replacing(old)) => {
                    ctx.mark(Mark::Replacing);
                    self.waiting.push(Waiting { call, deadline, object: Some(old), waited: false });
                    self.retry_waiting(ctx);
                    return;
                }
                ended => Answer::Ended(ended.map(|_| ())),
            },
            Ask::Replan { token, failed, wishes } => {
                let config = PutConfig { avoid: vec![failed], ..wishes.config() };
                let account = catalog.tenant(key.tenant);
                let plan = catalog.put_replan(now, key, token, &[failed], &config);
                if let Ok(plan) = &plan {
                    if account.quota.is_some_and(|quota| account.used > quota) {
                        let text = format!("{} has {account:?}, and a new plan", key.tenant);
                        ctx.fail("G16", Some(call.key), text);
                    }
                    judge_plan(ctx, call.key, plan);
                }
                Answer::Plan(plan)
            }
            Ask::Revoke { token } => Answer::Ended(catalog.put_revoke(now, key, token)),
            Ask::Locate { lease_ms } => match catalog.locate(now, key, lease_ms) {
                // Who leads no more knows what it knew, and not what it does not.
                Err(GetError::NotFound) if !leading => Answer::NotLeader,
                located => Answer::Located(located),
            },
            Ask::Reads { mark } => {
                let mut outdated = Vec::new();
                catalog.note_reads(now, key.tenant, &[mark], &mut outdated);
                ctx.mark(if outdated.is_empty() { Mark::ReadTold } else { Mark::ReadOutdated });
                return;
            }
            Ask::Exist => Answer::Exists(catalog.exist(now, key)),
            Ask::Remove { force } => match remove(catalog, now, key, (force, pattern)) {
                Ok(Removal::Waiting(object)) => {
                    let object = Some(object);
                    self.waiting.push(Waiting { call, deadline, object, waited: false });
                    self.retry_waiting(ctx);
                    return;
                }
                Ok(Removal::Done) => Answer::Removed(Ok(())),
                Err(error) => Answer::Removed(Err(error)),
            },
        };
        self.answer(ctx, call.op, call.attempt, answer);
    }

    fn answer(&self, ctx: &mut Ctx, op: OpRef, attempt: u8, answer: Answer) {
        let from = Actor::Master(self.ix);
        ctx.to_client(from, op.client, ToClient::Answer { op, attempt, answer });
    }

    /// Looks at the calls that wait: for room, or for owners that confirm a removal.
    fn retry_waiting(&mut self, ctx: &mut Ctx) {
        if self.waiting.is_empty() {
            return;
        }
        let leading = self.leading(ctx);
        let now = ctx.lease_clock(ctx.master_host());
        let mut at = 0;
        while at < self.waiting.len() {
            let one = &mut self.waiting[at];
            let late = one.deadline <= ctx.now;
            let waited = std::mem::replace(&mut one.waited, true);
            let (call, object) = (one.call, one.object);
            let answer = match object {
                Some(_) if !leading => Some(Answer::NotLeader),
                Some(object) => self.look_at_removal(object, call.ask, late),
                None => self.look_at_put(ctx, now, &call, (late, waited)),
            };
            match answer {
                Some(answer) => {
                    self.waiting.remove(at);
                    self.answer(ctx, call.op, call.attempt, answer);
                }
                None => at += 1,
            }
        }
    }

    fn look_at_removal(&mut self, object: ObjectId, ask: Ask, late: bool) -> Option<Answer> {
        let done = self.catalog.as_ref()?.removed(object);
        if !done && !late {
            return None;
        }
        Some(match ask {
            Ask::PutEnd { .. } if done => Answer::Ended(Ok(())),
            Ask::PutEnd { .. } => Answer::Ended(Err(replacing())),
            _ if done => Answer::Removed(Ok(())),
            _ => Answer::Removed(Err(RemoveError::Deferred { after_ms: 5 })),
        })
    }

    fn look_at_put(
        &mut self,
        ctx: &mut Ctx,
        now: Now,
        call: &Call,
        (late, waited): (bool, bool),
    ) -> Option<Answer> {
        let Ask::PutStart { len, wishes } = call.ask else {
            unreachable!("only puts and removes wait")
        };
        let zombie = !self.leading(ctx);
        let catalog = self.catalog.as_mut()?;
        let key = ctx.keys[usize::from(call.key)].name();
        let writer = writer(call.op.client, call.boot);
        // All that the tenant holds before the plan: evictions beside it may begin moves, which count twice.
        let account = catalog.tenant(key.tenant);
        let result = catalog.put_start_by(now, writer, key, len, &wishes.config());
        if let Ok(plan) = &result {
            let planned: u64 = plan.replicas.iter().map(|at| at.extent.len()).sum();
            if account.quota.is_some_and(|quota| account.used + planned > quota) {
                let text = format!("{} has {account:?}, and {planned} bytes more", key.tenant);
                ctx.fail("G16", Some(call.key), text);
            }
            if wishes.vram > 0 {
                ctx.mark(Mark::VramPut);
                ctx.in_vram.insert(plan.object);
            }
            judge_plan(ctx, call.key, plan);
        }
        match result {
            Err(PutError::Reclaiming { .. }) if !late => {
                let full = account.quota.is_some_and(|quota| account.used + len > quota);
                if full {
                    ctx.mark(Mark::QuotaWaited);
                }
                let moving = ctx.swarm.disks.is_some() && catalog.copies_under_way() > 0;
                if moving && !catalog.has_orders() {
                    ctx.mark(Mark::PutWaitedForDisk);
                }
                return None;
            }
            Err(PutError::Busy { .. }) => ctx.mark(Mark::Busy),
            Err(PutError::Quota { .. }) => ctx.mark(Mark::QuotaRefused),
            Ok(_) if zombie => ctx.mark(Mark::ZombiePlan),
            Ok(_) if waited => ctx.mark(Mark::PutReclaimed),
            _ => {}
        }
        Some(Answer::Plan(result))
    }

    /// Sends the catalog's orders to their owners.
    fn flush(&mut self, ctx: &mut Ctx) {
        self.let_go(ctx);
        let Some(catalog) = &mut self.catalog else { return };
        if !catalog.has_orders() {
            return;
        }
        let epoch = catalog.epoch();
        let now = ctx.lease_clock(ctx.master_host());
        for (node, order) in catalog.take_copies() {
            if let Some(key) = ctx.key_number(&order.label) {
                ctx.ledger.planned(key, &order.target);
            }
            ctx.judge_medium(order.object, &order.target);
            let copies = ToNode::Copies { list: vec![order] };
            ctx.to_node(Actor::Master(self.ix), crate::node::index(node), copies);
        }
        let mut orders = catalog.take_orders();
        for (_, order) in &orders {
            ctx.ending(now, catalog, order);
        }
        // One message per owner; within it the order stays.
        orders.sort_by_key(|(node, _)| *node);
        for same in orders.chunk_by(|a, b| a.0 == b.0) {
            let list = same.iter().map(|(_, order)| *order).collect();
            let node = crate::node::index(same[0].0);
            ctx.to_node_once(Actor::Master(self.ix), node, ToNode::Orders { epoch, list });
        }
    }

    /// Nodes may be gone, and with them what only they had.
    fn let_go(&self, ctx: &mut Ctx) {
        let Some(catalog) = &self.catalog else { return };
        if catalog.epoch() == ctx.election.epoch && !catalog.rebuilding() {
            ctx.let_go(ctx.lease_clock(ctx.master_host()), catalog);
        }
    }

    /// A tenant that has more than it may have, and how much (G16). Moves count twice while they last.
    pub fn over_quota(&self) -> Option<(TenantId, u64)> {
        let catalog = self.catalog.as_ref().filter(|leader| leader.copies_under_way() == 0)?;
        let mut over = catalog.tenants().filter_map(|(tenant, known)| {
            let most = known.quota?.max(self.brought[tenant.0 as usize]);
            // A replica that has moved away is paid for until it is free; puts wait for that.
            let live = known.used - known.ending;
            (live > most).then_some((tenant, live))
        });
        over.next()
    }

    /// Turns what the catalog counted into marks.
    fn count(&mut self, ctx: &mut Ctx) {
        let Some(catalog) = &self.catalog else { return };
        let (now, before) = (catalog.counters(), self.counted);
        let marks = &mut ctx.marks;
        marks.hit_times(Mark::StalePutEnd, now.stale_tokens - before.stale_tokens);
        marks.hit_times(Mark::WatchdogExpired, now.puts_expired - before.puts_expired);
        marks.hit_times(Mark::NodeGone, now.nodes_lost - before.nodes_lost);
        marks.hit_times(Mark::CopySettled, now.copied - before.copied);
        marks.hit_times(Mark::CopyGivenUp, now.copies_failed - before.copies_failed);
        marks.hit_times(Mark::HotCopies, u64::from(catalog.hot_objects() > 0));
        marks.hit_times(Mark::Replaced, now.replaced - before.replaced);
        marks.hit_times(Mark::Expired, now.expired - before.expired);
        marks.hit_times(Mark::Replanned, now.replanned - before.replanned);
        marks.hit_times(Mark::EvictSkipped, now.evict_skipped - before.evict_skipped);
        marks.hit_times(Mark::Promoted, now.promoted - before.promoted);
        marks.hit_times(Mark::DiskReturned, now.disks_returned - before.disks_returned);
        marks.hit_times(Mark::LateDropped, now.late_dropped - before.late_dropped);
        marks.hit_times(Mark::LapsedStruck, now.lapsed_struck - before.lapsed_struck);
        marks.hit_times(Mark::DiskLedgerStruck, now.ledger_struck - before.ledger_struck);
        marks.hit_times(Mark::DiskDroppedUnknown, now.disk_dropped - before.disk_dropped);
        marks.hit_times(Mark::Demoted, now.demoted - before.demoted);
        marks.hit_times(Mark::BadDropped, now.bad_replicas - before.bad_replicas);
        self.counted = now;
    }
}

/// Notes where a put may store its copies, and looks whether it may.
fn judge_plan(ctx: &mut Ctx, key: u16, plan: &WritePlan) {
    for locator in &plan.replicas {
        ctx.ledger.planned(key, locator);
        ctx.judge_medium(plan.object, locator);
    }
}
