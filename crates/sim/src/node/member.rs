//! A node as a member of the cluster: mounting, announcing, heartbeats.

use super::{BEAT, Node};
use crate::ctx::Ctx;
use crate::marks::Mark;
use crate::message::{Actor, Event, ToMaster};
use crate::swarm::REGISTRATION;
use mooncrate_core::canary::{self, Canary};
use mooncrate_core::catalog::Mounted;
use mooncrate_core::error::MountError;
use mooncrate_core::plan::{Evidence, SegmentOffer};
use mooncrate_core::{HostId, LeaderEpoch, Now, Slot, ZoneId, lease};
use std::collections::BTreeMap;
use std::time::Duration;

/// Slots told in one message.
const PAGE_SLOTS: usize = 12;
/// Beats without an answer after which a node asks who leads.
const DEAF_BEATS: u32 = 2;

/// How a node stands with the master.
#[derive(Debug)]
pub(super) struct Standing {
    /// Whom it takes for the leader.
    pub(super) leader: u8,
    /// The highest epoch it has heard.
    pub(super) epoch: LeaderEpoch,
    /// The leader that answered the last mount: to this one it tells what it holds, or has told it.
    told: LeaderEpoch,
    /// Segments that this leader has heard all of, by their place in the offers, and since when.
    heard: BTreeMap<usize, Now>,
    /// Sending time of the last heartbeat whose answer gave leave to serve each of its stores.
    current: BTreeMap<usize, Now>,
    /// Sending time of the last heartbeat whose answer gave leave to serve.
    leave: Now,
    /// It has never been open to writers: nothing can be lost, nothing can be wrong.
    pub(super) empty: bool,
    born: Now,
    /// Until when an earlier mount may be readable, by a leader's word.
    fence: Option<Now>,
    round: u32,
    phase: Phase,
    unanswered: u32,
}

#[derive(Debug, PartialEq, Eq)]
enum Phase {
    Mounting,
    /// Stop and wait: one page is out. Segments still to be told, the first slot of the page, its
    /// number, and where the next one starts.
    Announcing {
        segments: Vec<usize>,
        from: Slot,
        page: u32,
        next: Option<Slot>,
    },
    Mounted,
}

impl Standing {
    pub(super) fn new(now: Now) -> Self {
        Self {
            leader: 0,
            epoch: LeaderEpoch(0),
            told: LeaderEpoch(0),
            heard: BTreeMap::new(),
            current: BTreeMap::new(),
            leave: Now(0),
            empty: true,
            born: now,
            fence: None,
            round: 0,
            phase: Phase::Mounting,
            unanswered: 0,
        }
    }
}

impl Node {
    /// Sends what is due: an offer, a page again, a heartbeat, notices that nobody took in.
    pub fn beat(&mut self, ctx: &mut Ctx) {
        let jitter = self.rng.below(BEAT / 8);
        ctx.after(BEAT - BEAT / 16 + jitter, Event::NodeBeat(self.ix, self.boot));
        self.standing.unanswered += 1;
        if self.standing.unanswered > DEAF_BEATS {
            self.find_leader(ctx);
        }
        let deaf = self.standing.unanswered > 1;
        if !ctx.election.up || deaf && canary::on(Canary::ExtendsUnproved) {
            self.extend_leases(ctx);
        }
        match self.standing.phase {
            Phase::Mounting => self.send_mount(ctx),
            // What is told already is served while the rest is told.
            Phase::Announcing { .. } => {
                self.send_page(ctx);
                self.send_beat(ctx);
            }
            Phase::Mounted => {
                let unasked = self.disk.as_ref().map(super::Disk::unasked).unwrap_or_default();
                self.send_notices(ctx, unasked);
                self.send_beat(ctx);
            }
        }
    }

    fn send_beat(&self, ctx: &mut Ctx) {
        let beat = ToMaster::Beat { node: self.ix, sent: ctx.mono(self.host) };
        ctx.to_master(Actor::Node(self.ix), self.standing.leader, beat);
    }

    fn find_leader(&mut self, ctx: &Ctx) {
        if let Some(leader) = ctx.election.leader {
            self.standing.leader = leader;
        }
    }

    fn send_mount(&mut self, ctx: &mut Ctx) {
        self.standing.round += 1;
        // The answer says what the leader has heard. What is served stays so, until its leave ends.
        self.standing.heard.clear();
        let now = ctx.mono(self.host);
        // It serves nobody by now, and keeps what it holds: a leader that knows it may still believe it. Each
        // segment by itself: a leader that heard one of them may not have heard of another.
        let Standing { current, born, .. } = &self.standing;
        let lease = ctx.swarm.catalog.serve_lease;
        let lapsed = |at: usize| now.since(*current.get(&at).unwrap_or(born)) >= lease;
        if !self.standing.empty && (0..self.stores.len()).any(lapsed) {
            ctx.mark(Mark::NodeLapsed);
        }
        let offers = self.stores.iter().enumerate().map(|(at, store)| {
            let spec = store.segment.spec();
            SegmentOffer {
                segment: spec.segment,
                incarnation: spec.incarnation,
                node: super::id(self.ix),
                medium: spec.segment.medium(),
                bytes: spec.bytes,
                slots: spec.slots,
                host: HostId(self.host.into()),
                zone: ZoneId(u64::from(self.host) % 2),
                tenant: None,
                evidence: Evidence { lapsed: lapsed(at), ..Evidence::default() },
            }
        });
        let disk = self.disk.iter().map(|disk| disk.offer(super::id(self.ix), self.host));
        let message = ToMaster::Mount {
            node: self.ix,
            round: self.standing.round,
            fence: self.standing.fence.map(|fence| fence.since(now)),
            offers: offers.chain(disk).collect(),
        };
        ctx.to_master(Actor::Node(self.ix), self.standing.leader, message);
    }

    /// Whether this is the word of the newest leader; notes its epoch.
    fn witness(&mut self, ctx: &mut Ctx, epoch: LeaderEpoch) -> bool {
        let disk = self.disk.as_mut().is_none_or(|disk| disk.witness(epoch));
        if self.stores.iter().any(|store| store.segment.witness(epoch).is_err()) || !disk {
            ctx.mark(Mark::OldEpochRefused);
            return false;
        }
        self.standing.epoch = self.standing.epoch.max(epoch);
        self.standing.unanswered = 0;
        true
    }

    pub(super) fn mounted(
        &mut self,
        ctx: &mut Ctx,
        round: u32,
        epoch: LeaderEpoch,
        fence: Duration,
        result: Result<Vec<Mounted>, MountError>,
    ) {
        if round != self.standing.round || self.standing.phase != Phase::Mounting {
            return;
        }
        if !self.witness(ctx, epoch) {
            return;
        }
        let now = ctx.mono(self.host);
        self.standing.told = epoch;
        let over = if fence.is_zero() { now } else { now.plus(lease::guarded(fence)) };
        self.standing.fence = Some(over);
        match result {
            Ok(answers) => {
                let (segments, known): (Vec<usize>, Vec<usize>) =
                    (0..answers.len()).rev().partition(|at| answers[*at] == Mounted::Announce);
                for at in known {
                    self.standing.heard.insert(at, now);
                    self.confirm_disk(at);
                }
                if !self.standing.empty {
                    ctx.mark(Mark::Remounted);
                }
                self.standing.phase =
                    Phase::Announcing { segments, from: Slot(0), page: 0, next: None };
                self.all_told(ctx);
                self.send_page(ctx);
            }
            Err(error) => {
                ctx.say(|| format!("n{} cannot mount: {error}", self.ix));
                self.bury(ctx);
                self.start(ctx);
            }
        }
    }

    /// Sends the page that is due, perhaps again.
    fn send_page(&mut self, ctx: &mut Ctx) {
        let Phase::Announcing { segments, from, page, next } = &mut self.standing.phase else {
            return;
        };
        let Some(at) = segments.last() else { return };
        let (segment, incarnation, slots);
        if let Some(store) = self.stores.get(*at) {
            let spec = store.segment.spec();
            (segment, incarnation) = (spec.segment, spec.incarnation);
            (slots, *next) = store.segment.announce(*from, PAGE_SLOTS);
        } else {
            let disk = self.disk.as_ref().expect("it was offered");
            (segment, incarnation) = (disk.segment, disk.incarnation);
            (slots, *next) = disk.announce(*from, PAGE_SLOTS);
        }
        let message = ToMaster::Announce {
            node: self.ix,
            epoch: self.standing.told,
            round: self.standing.round,
            page: *page,
            segment,
            incarnation,
            slots,
            last: next.is_none(),
        };
        ctx.to_master(Actor::Node(self.ix), self.standing.leader, message);
    }

    pub(super) fn announced(
        &mut self,
        ctx: &mut Ctx,
        round: u32,
        answered: u32,
        epoch: LeaderEpoch,
        result: Result<(), MountError>,
    ) {
        if round != self.standing.round || !self.witness(ctx, epoch) {
            return;
        }
        let Phase::Announcing { segments, from, page, next } = &mut self.standing.phase else {
            return;
        };
        if answered != *page {
            return;
        }
        if let Err(error) = result {
            ctx.say(|| format!("n{} announced in vain: {error}", self.ix));
            if matches!(error, MountError::StaleIncarnation { .. }) {
                self.bury(ctx);
                self.start(ctx);
            } else {
                self.standing.phase = Phase::Mounting;
            }
            return;
        }
        *page += 1;
        let whole = next.is_none().then(|| segments.pop()).flatten();
        *from = next.unwrap_or(Slot(0));
        if let Some(at) = whole {
            self.heard_all(ctx, at);
        }
        self.all_told(ctx);
        self.send_page(ctx);
    }

    /// The leader has acknowledged the last page of a segment, and can say whether it may be served.
    fn heard_all(&mut self, ctx: &mut Ctx, at: usize) {
        self.standing.heard.insert(at, ctx.mono(self.host));
        self.standing.empty = false;
        self.confirm_disk(at);
        self.send_beat(ctx);
    }

    /// The leader knows all that the disk holds, if that is what was offered there.
    fn confirm_disk(&mut self, at: usize) {
        if at >= self.stores.len()
            && let Some(disk) = &mut self.disk
        {
            disk.confirm();
        }
    }

    fn all_told(&mut self, ctx: &mut Ctx) {
        if let Phase::Announcing { segments, .. } = &self.standing.phase
            && segments.is_empty()
        {
            self.standing.phase = Phase::Mounted;
            self.standing.empty = false;
            self.send_beat(ctx);
        }
    }

    pub(super) fn beat_ack(
        &mut self,
        ctx: &mut Ctx,
        sent: Now,
        epoch: LeaderEpoch,
        result: Result<(), MountError>,
        serve: bool,
    ) {
        // An answer to an earlier life of this node, or from an earlier leader.
        if sent < self.standing.born || !self.witness(ctx, epoch) {
            return;
        }
        match result {
            Ok(()) if epoch == self.standing.told && serve => self.serve(ctx, sent),
            Ok(()) if epoch == self.standing.told => {}
            // A leader that does not know it, or knows it by a mount that reached it late.
            _ if self.standing.phase != Phase::Mounting => {
                ctx.say(|| format!("n{} is unknown to the leader", self.ix));
                self.standing.phase = Phase::Mounting;
                self.send_mount(ctx);
            }
            _ => {}
        }
    }

    /// No process leads: one that comes later waits for a whole lease. Only leases that have not ended are
    /// extended, for half a registration after the last answer of a leader.
    fn extend_leases(&mut self, ctx: &mut Ctx) {
        let now = ctx.mono(self.host);
        let lease = ctx.swarm.catalog.serve_lease;
        let until = now.plus(lease).min(self.standing.leave.plus(REGISTRATION / 2));
        for (at, store) in self.stores.iter().enumerate() {
            if store.segment.serving(now).is_ok() && store.segment.serve_until() < until {
                store.segment.set_serve_until(until);
                self.standing.current.insert(at, now);
                ctx.mark(Mark::LeaseExtended);
            }
        }
        let extends = |disk: &&mut super::Disk| disk.serves(now) && !disk.serves(until);
        if let Some(disk) = self.disk.as_mut().filter(extends) {
            disk.set_serve_until(until);
        }
    }

    /// A leader has heard what was sent then, and lets the node serve what it had told all of by then.
    fn serve(&mut self, ctx: &mut Ctx, sent: Now) {
        self.standing.leave = self.standing.leave.max(sent);
        let until = self.standing.leave.plus(ctx.swarm.catalog.serve_lease);
        let told = |at: usize| self.standing.heard.get(&at).is_some_and(|since| *since <= sent);
        let covered: Vec<usize> = (0..=self.stores.len()).filter(|at| told(*at)).collect();
        for at in &covered {
            match (self.stores.get(*at), &mut self.disk) {
                (Some(store), _) => store.segment.set_serve_until(until),
                (None, Some(disk)) => disk.set_serve_until(until),
                (None, None) => {}
            }
            let current = self.standing.current.entry(*at).or_insert(sent);
            *current = sent.max(*current);
        }
        if !covered.is_empty() && matches!(self.standing.phase, Phase::Announcing { .. }) {
            ctx.mark(Mark::ServedWhileTelling);
        }
    }
}
