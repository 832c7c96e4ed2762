//! Being known: mount, announce, heartbeat. A node without a master stops serving in time and keeps what it
//! holds; the master that returns says what of it is current.
//!
//! ```text
//! mount ─► memory, VRAM: pages … last ─► heartbeat ─► served   (each segment by itself)
//!          disks:        pages … pages … pages … last ─► heartbeat ─► served
//!                          └ heartbeat ┘ └ heartbeat ┘   memory stays served meanwhile
//! ```
//!
//! What must stay true: leave to serve covers a segment only if the leader that gives it had acknowledged the
//! last page of that segment before the heartbeat was sent. What a leader has not heard of it may give to
//! others, so a segment that is still being told keeps the end that an earlier leave gave it.

#[cfg(test)]
mod leader;
#[cfg(test)]
mod tests;

use crate::duty::{Node, NodeError};
use mooncrate_core::canary::{self, Canary};
use mooncrate_core::copy::DrainMode;
use mooncrate_core::error::MountError;
use mooncrate_core::plan::{Evidence, SegmentOffer};
use mooncrate_core::{Incarnation, LeaderEpoch, Medium, Now, SegmentId, Slot, lease};
use mooncrate_mem::clock::boottime;
use mooncrate_mem::{Segment, SegmentSpec};
use mooncrate_wire::CallError;
use mooncrate_wire::message::{Announce, Heartbeat, Mount, Mounted, Pulse};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How long a call of registration may take.
const CALL_TIME: Duration = Duration::from_secs(2);
/// How long one heartbeat may take: others must be possible before the serving lease ends.
const BEAT_TIME: Duration = Duration::from_secs(1);
/// Pause after a heartbeat that was not acknowledged.
const RETRY: Duration = Duration::from_millis(100);
/// How often a start that looks older than an earlier one takes a later number: each of its segments may have been
/// mounted under another one.
const LATER: u32 = 32;
/// Slots in one page of an announcement: a worker of the master decodes one at a time.
const PAGE_SLOTS: usize = 512;

type Segments = Vec<Arc<Segment>>;

/// When what is told is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Serve {
    /// Each segment when all of it is told.
    Each,
    /// Memory when all of it is told; disks are not told yet. For the first mount of a process: its memory is empty, and
    /// the threads that carry out orders start before its disks are told, which may take minutes.
    Memory,
}

/// What the node knows of its standing with the master.
#[derive(Debug)]
pub(crate) struct Standing {
    /// When the last acknowledged heartbeat (or mount) was *sent*.
    pub(crate) acknowledged: Now,
    /// When the last heartbeat was *sent* whose answer granted a serving lease.
    pub(crate) leave: Now,
    /// How long a serving lease lasts. Zero until the first lease is granted: the master's length is not known.
    pub(crate) lease: Duration,
    /// How long the master keeps a silent node.
    pub(crate) registration: Duration,
    pub(crate) incarnation: Incarnation,
    /// Until when an earlier start of this node may be readable in shared memory, by a master's word;
    /// `None`: no master has given it for this incarnation.
    pub(crate) fence: Option<Now>,
    /// What is being drained, by a master's word.
    pub(crate) draining: Vec<(SegmentId, DrainMode)>,
    /// The leader that has heard everything about this incarnation. Another one knows nothing, even if
    /// it knows the node: a mount that was given up may have reached it late.
    pub(crate) mounted: Option<LeaderEpoch>,
    /// When this incarnation began, empty.
    pub(crate) began: Now,
    /// Segments that a leader has heard all of.
    pub(crate) told: BTreeMap<SegmentId, Told>,
    /// When each mount was last known to hold nothing that is not current: when its serving lease was last
    /// granted or extended, counted as the lease is, or when it was made.
    pub(crate) current: BTreeMap<SegmentId, (Incarnation, Now)>,
}

/// The last page of a segment was acknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    incarnation: Incarnation,
    /// By this leader.
    epoch: LeaderEpoch,
    /// When the answer was here: a heartbeat that was sent before may have been answered before.
    at: Now,
}

impl Standing {
    /// A leader has acknowledged the last page of a segment.
    pub(crate) fn heard_all(&mut self, spec: &SegmentSpec, epoch: LeaderEpoch) {
        let told = Told { incarnation: spec.incarnation, epoch, at: boottime() };
        self.told.insert(spec.segment, told);
    }

    /// A segment was made just now, empty.
    pub(crate) fn made(&mut self, spec: &SegmentSpec) {
        self.current.insert(spec.segment, (spec.incarnation, boottime()));
    }

    /// Whether the leader of `epoch` has heard all of a segment.
    fn has_told(&self, spec: &SegmentSpec, epoch: LeaderEpoch) -> bool {
        let told = self.told.get(&spec.segment);
        told.is_some_and(|told| told.incarnation == spec.incarnation && told.epoch == epoch)
    }

    /// Whether the answer of the leader of `epoch` to a heartbeat that was sent then covers a segment.
    fn covers(&self, spec: &SegmentSpec, sent: Now, epoch: LeaderEpoch) -> bool {
        let in_time = self.told.get(&spec.segment).is_some_and(|told| told.at <= sent);
        in_time && self.has_told(spec, epoch)
    }

    /// How long an earlier start of this node may be readable, if that is known.
    pub(crate) fn fence_ms(&self, now: Now) -> Option<u32> {
        self.fence.map(|fence| lease::left_ms(now, fence))
    }

    /// Whether a leader may have given keys of a segment up (R10): its serving lease has ended. The node counts
    /// from when it *sent* what was answered, so it knows before its master does. It serves nobody by then, and
    /// keeps what it holds: the next master may know that it is still current. Each segment by itself: a leader
    /// that heard one of them may not have heard of another. A disk that was never served under its current
    /// incarnation has not lapsed, however long it took to open: no client has a locator of it.
    pub(crate) fn has_lapsed(&self, spec: &SegmentSpec, now: Now) -> bool {
        if canary::on(Canary::LateOnlyOnce) {
            return now.since(self.acknowledged) >= self.lease;
        }
        let current = self.current.get(&spec.segment);
        let served = current.filter(|(mount, _)| *mount == spec.incarnation).map(|(_, at)| *at);
        let is_disk = spec.segment.medium() == Medium::Ssd;
        let since = served.or((!is_disk).then_some(self.began));
        since.is_some_and(|since| now.since(since) >= self.lease)
    }
}

impl Node {
    /// Mounts for the first time in this process, and tells of its memory. Wall time numbers the starts of a node, and clocks are
    /// set back: then this start looks older than the last one, although it is the one that lives. It
    /// holds nothing yet, so it takes the number after the last one instead of giving up.
    pub(crate) fn mount_first(&self) -> Result<(), NodeError> {
        for _ in 0..LATER {
            match self.mount(Serve::Memory) {
                Err(NodeError::Mount(MountError::StaleIncarnation { last, .. })) => {
                    self.begin(last);
                }
                mounted => return mounted,
            }
        }
        self.mount(Serve::Memory)
    }

    /// Offers the segments and announces what they hold.
    pub(crate) fn mount(&self, serve: Serve) -> Result<(), NodeError> {
        let mut segments = self.segments().all();
        // Memory first: a disk may have millions of records to tell of, and takes minutes.
        segments.sort_by_key(|segment| segment.spec().segment.medium() == Medium::Ssd);
        let (sent, mounted) = self.offer_all(&segments)?;
        let (known, untold) = self.known_to(&mounted, &segments);
        for segment in &segments {
            // Before the announcement: no plan of an older leader can come in behind it.
            segment.witness(mounted.epoch).map_err(NodeError::Segment)?;
        }
        // The mount was heard, and gives no leave to serve.
        self.acknowledged(sent, mounted.registration_ms, mounted.epoch, 0);
        if !known.is_empty() && serve == Serve::Each {
            self.beat_while_telling(mounted.epoch)?;
        }
        for segment in &known {
            self.confirm_disk(segment.spec().segment, mounted.epoch);
        }
        let is_disk = |segment: &Arc<Segment>| segment.spec().segment.medium() == Medium::Ssd;
        let (later, now): (Segments, Segments) =
            untold.into_iter().partition(|segment| serve == Serve::Memory && is_disk(segment));
        for segment in &now {
            self.announce(segment, mounted.epoch)?;
            self.confirm_disk(segment.spec().segment, mounted.epoch);
            if serve == Serve::Each {
                self.may_serve(std::slice::from_ref(segment), mounted.epoch)?;
            }
        }
        if serve == Serve::Memory
            && let Err(error) = self.may_serve(&now, mounted.epoch)
        {
            // All is told. The thread that sends heartbeats asks again, and mounts again if it must.
            tracing::warn!(%error, "no leave to serve yet");
        }
        if later.is_empty() {
            let mut standing = self.standing().lock();
            // A segment that was added during the mount may not be announced: the next heartbeat mounts again.
            let told = |segment: &Arc<Segment>| standing.has_told(segment.spec(), mounted.epoch);
            standing.mounted = self.segments().all().iter().all(told).then_some(mounted.epoch);
        }
        Ok(())
    }

    /// Offers segments; returns when the request was sent, and the reply. If a serving lease ends during the call, the
    /// offer is repeated: another leader may have led in between, and have given keys of this node up.
    fn offer_all(&self, segments: &[Arc<Segment>]) -> Result<(Now, Mounted), NodeError> {
        loop {
            let sent = boottime();
            let lapsed = self.lapsed(segments, sent);
            let (fence_ms, draining) = {
                let standing = self.standing().lock();
                (standing.fence_ms(sent), standing.draining.clone())
            };
            let offers = segments.iter().zip(&lapsed);
            let offers = offers.map(|(segment, lapsed)| self.offer(segment.spec(), *lapsed));
            let mount = Mount {
                info: self.info().clone(),
                seen: segments.iter().map(|s| s.epoch()).max().unwrap_or_default(),
                offers: offers.collect(),
                fence_ms,
                draining,
            };
            let mounted = {
                let _mounting = self.mounting().lock();
                if self.stopping() {
                    return Err(MountError::UnknownNode.into());
                }
                self.master().mount(&mount, sent.deadline_in(CALL_TIME))??
            };
            if self.lapsed(segments, boottime()) == lapsed {
                return Ok((sent, mounted));
            }
        }
    }

    /// For each segment, whether its serving lease has ended.
    fn lapsed(&self, segments: &[Arc<Segment>], now: Now) -> Vec<bool> {
        let standing = self.standing().lock();
        segments.iter().map(|segment| standing.has_lapsed(segment.spec(), now)).collect()
    }

    /// A mount was answered: the segments that this leader has heard all of, and those that are to be told. It
    /// holds the books of the former, or it would have refused the mount: one that was given up never comes back
    /// under its number (M8). So a link that breaks while a disk is told costs memory nothing. What an earlier
    /// leader heard does not count; it stays served until its leave ends.
    fn known_to(&self, mounted: &Mounted, segments: &[Arc<Segment>]) -> (Segments, Segments) {
        let mut standing = self.standing().lock();
        standing.fence = Some(fence_of(boottime(), mounted.fence_ms));
        standing.told.retain(|_, told| told.epoch == mounted.epoch);
        let told = |segment: &Arc<Segment>| standing.has_told(segment.spec(), mounted.epoch);
        segments.iter().cloned().partition(told)
    }

    /// All of these segments is told. Only now does the master know whether something readable must be dropped
    /// before they are served. It is asked at once, and with each heartbeat from now on.
    fn may_serve(&self, told: &[Arc<Segment>], epoch: LeaderEpoch) -> Result<(), NodeError> {
        let mut standing = self.standing().lock();
        for segment in told {
            standing.heard_all(segment.spec(), epoch);
        }
        drop(standing);
        self.beat_while_telling(epoch)
    }

    /// The leader of `epoch` knows all that a disk holds, if that is one.
    fn confirm_disk(&self, id: SegmentId, epoch: LeaderEpoch) {
        let Some(disk) = self.tier().and_then(|tier| tier.disk(id)) else { return };
        disk.confirm_later(epoch);
    }

    /// A heartbeat between a mount and its last page: what is told already is served meanwhile. An error: this
    /// leader does not count any more, or does not know this node, so there is no use in telling it the rest.
    fn beat_while_telling(&self, epoch: LeaderEpoch) -> Result<(), NodeError> {
        let sent = boottime();
        match self.beat(sent) {
            Ok(Ok(pulse)) if pulse.epoch == epoch => self.heard(sent, pulse),
            // Another leader, which has heard nothing.
            Ok(Ok(_)) => return Err(MountError::UnknownNode.into()),
            Ok(Err(error)) => return Err(error.into()),
            Err(error) => {
                // Pages have a link of their own, and may still get through.
                self.tally().heartbeats_failed.one();
                tracing::warn!(%error, "no heartbeat");
            }
        }
        Ok(())
    }

    pub(crate) fn offer(&self, spec: &SegmentSpec, lapsed: bool) -> SegmentOffer {
        let disk = self.tier().and_then(|tier| tier.disk(spec.segment));
        let stamped = disk.map_or(Evidence::default(), |disk| disk.evidence());
        let evidence = Evidence { lapsed, ..stamped };
        SegmentOffer {
            segment: spec.segment,
            incarnation: spec.incarnation,
            node: self.id(),
            medium: spec.segment.medium(),
            bytes: spec.bytes,
            slots: spec.slots,
            host: self.info().host,
            zone: self.info().zone,
            tenant: self.config().tenant,
            evidence,
        }
    }

    /// Tells the leader of `epoch` all that a segment holds. The master hears a node that tells, as it hears a
    /// heartbeat; but only the answer to a heartbeat gives leave to serve, so they go on between pages.
    pub(crate) fn announce(&self, segment: &Segment, epoch: LeaderEpoch) -> Result<(), NodeError> {
        let SegmentSpec { segment: id, incarnation, .. } = *segment.spec();
        let (mut from, mut beaten) = (Some(Slot(0)), boottime());
        let mut given_up = None;
        let mut pages = std::iter::from_fn(|| {
            let slot = from?;
            if self.stopping() {
                given_up = Some(MountError::UnknownNode.into());
                return None;
            }
            if boottime().since(beaten) >= self.config().heartbeat {
                beaten = boottime();
                given_up = self.beat_while_telling(epoch).err();
                if given_up.is_some() {
                    return None;
                }
            }
            let (page, next) = segment.announce(slot, PAGE_SLOTS);
            from = next;
            Some(Announce { epoch, segment: id, incarnation, page, last: next.is_none() })
        });
        self.master().announce_all(&mut pages, CALL_TIME)??;
        given_up.map_or(Ok(()), Err)
    }

    /// Heartbeats, for as long as the node lives. After one that nobody acknowledged the next comes soon:
    /// a new leader waits for this node before it takes puts of unknown keys.
    pub(crate) fn stay_known(&self) {
        let pause = self.config().heartbeat;
        let mut away = false;
        while !self.stopping() {
            let began = boottime();
            let proved = || canary::on(Canary::ExtendsUnproved) || self.master().nobody_listens();
            if away && proved() {
                self.tally().heartbeats_failed.one();
                self.extend_leases(began, boottime());
            } else {
                self.heartbeat();
            }
            // Here because a heart always has a next beat: threads without work sleep, and keep no time.
            self.copier().let_go();
            let known = {
                let standing = self.standing().lock();
                standing.mounted.is_some() && standing.acknowledged >= began
            };
            away = !known;
            if known && let Err(error) = self.tell_unmounted() {
                tracing::warn!(%error, "the master has not heard of a segment that is gone");
            }
            self.rest(if known { pause } else { pause.min(RETRY) });
        }
    }

    /// One heartbeat, and whatever its answer, or its absence, asks for.
    fn heartbeat(&self) {
        let Some(told) = self.standing().lock().mounted else {
            return self.mount_again();
        };
        let sent = boottime();
        match self.beat(sent) {
            Ok(Ok(pulse)) if pulse.epoch > told => self.mount_again(),
            Ok(Ok(pulse)) => self.heard(sent, pulse),
            Ok(Err(MountError::UnknownNode)) => self.mount_again(),
            Ok(Err(error)) => tracing::error!(%error, "the master refuses this node"),
            Err(error) => {
                self.tally().heartbeats_failed.one();
                tracing::warn!(%error, "no heartbeat");
            }
        }
    }

    fn beat(&self, sent: Now) -> Result<Result<Pulse, MountError>, CallError> {
        let incarnation = self.standing().lock().incarnation;
        let beat = Heartbeat { node: self.id(), incarnation };
        self.master().heartbeat(&beat, sent.deadline_in(BEAT_TIME))
    }

    /// Extends the serving leases of segments while it is proved that no master leads: nobody listened at the
    /// master's address at a time between `asked` and `refused`, so a master that comes begins later, and waits for
    /// as long as the lease lasts from then. So an outage of the master does not end reads at once. For half a
    /// registration after the last heartbeat that a master answered, and only a lease that had not ended when the
    /// refusal was here: once it has, the last master may have given keys of this node up, and died since.
    fn extend_leases(&self, asked: Now, refused: Now) {
        let mut standing = self.standing().lock();
        let limit = standing.leave.plus(standing.registration / 2);
        if self.stopping() {
            return;
        }
        let until = asked.plus(standing.lease).min(limit);
        let segments = self.segments().all();
        let extends = |segment: &&Arc<Segment>| {
            segment.serving(refused).is_ok() && segment.serve_until() < until
        };
        for segment in segments.iter().filter(extends) {
            segment.set_serve_until(until);
            let SegmentSpec { segment, incarnation, .. } = *segment.spec();
            standing.current.insert(segment, (incarnation, asked));
        }
        for staged in self.segments().private().iter().filter(extends) {
            staged.set_serve_until(until);
        }
    }

    /// The answer to a heartbeat that was sent then.
    fn heard(&self, sent: Now, pulse: Pulse) {
        if self.acknowledged(sent, pulse.registration_ms, pulse.epoch, pulse.serve_ms) {
            self.standing().lock().draining = pulse.draining;
        }
    }

    fn mount_again(&self) {
        self.standing().lock().mounted = None;
        match self.mount(Serve::Each) {
            Ok(()) => tracing::info!("mounted again"),
            // The master has given this mount up: its keys may have other values already.
            Err(NodeError::Mount(MountError::StaleIncarnation { last, over })) => {
                // Not above another process that is alive: the two would take the name from each other for ever.
                self.start_over(if over { last } else { Incarnation(0) });
            }
            Err(error) => tracing::warn!(%error, "could not mount again"),
        }
    }

    /// Drops everything and begins an incarnation after `last`, empty; the next heartbeat mounts it.
    fn start_over(&self, last: Incarnation) {
        tracing::warn!("the master has given this node up: starting over, empty");
        self.tally().given_up.one();
        self.begin(last);
    }

    /// Begins the incarnation after this one and `last`, empty and not mounted.
    fn begin(&self, last: Incarnation) {
        let mut standing = self.standing().lock();
        standing.incarnation = Incarnation(standing.incarnation.max(last).0.saturating_add(1));
        let incarnation = standing.incarnation;
        let anew = |old: &Arc<Segment>| {
            let spec = old.spec();
            if let Some(disk) = self.tier().and_then(|tier| tier.disk(spec.segment)) {
                // Its records outlive the mount: the master keeps them or tells them to go (S4).
                return disk.remount(incarnation);
            }
            self.config().create_anew(SegmentSpec { incarnation, ..*spec })
        };
        let old = self.segments().all();
        for old in &old {
            // Before it is looked at: what is published there from now on is lost.
            old.set_serve_until(Now(0));
        }
        if let Some(tier) = self.tier() {
            tier.staging.segment().set_serve_until(Now(0));
            tier.staging.clear(boottime());
        }
        let (far, near): (Vec<_>, Vec<_>) = old.into_iter().partition(|old| old.far().is_some());
        for old in far {
            // By a thread that may wait for the GPU; here a heart beats.
            self.lend_later(old);
        }
        match near.iter().map(anew).collect::<Result<Vec<_>, _>>() {
            Ok(fresh) => {
                for segment in fresh {
                    self.segments().insert(segment);
                }
                // Whoever had the name meanwhile may be readable: the next master knows.
                standing.fence = None;
                standing.acknowledged = boottime();
                standing.began = boottime();
                standing.mounted = None;
                standing.told.clear();
                standing.current.clear();
            }
            Err(error) => tracing::error!(%error, "no memory for a new segment"),
        }
    }

    /// A master has heard what was sent then, and says for how long the node may serve what it has told all of,
    /// 0 if not at all; whether it is a master that counts.
    pub(crate) fn acknowledged(
        &self,
        sent: Now,
        registration_ms: u32,
        epoch: LeaderEpoch,
        serve_ms: u32,
    ) -> bool {
        let registration = Duration::from_millis(u64::from(registration_ms));
        for segment in self.segments().all() {
            if segment.witness(epoch).is_err() {
                // A leader that was replaced: its word gives no leave to serve.
                return false;
            }
        }
        let mut standing = self.standing().lock();
        standing.acknowledged = standing.acknowledged.max(sent);
        standing.registration = registration;
        if self.stopping() {
            return false;
        }
        // Looked up under the lock: what was unmounted or replaced meanwhile must stay closed.
        let mounted = self.segments().all();
        if let Some(life) = self.segments().life() {
            let mounts: Vec<_> =
                mounted.iter().map(|s| (s.spec().segment, s.spec().incarnation)).collect();
            life.set_mounts(self.id(), &mounts);
        }
        if serve_ms == 0 {
            return true;
        }
        standing.leave = standing.leave.max(sent);
        standing.lease = Duration::from_millis(u64::from(serve_ms));
        let until = standing.leave.plus(standing.lease);
        let mut told = mounted;
        told.retain(|segment| standing.covers(segment.spec(), sent, epoch));
        // What was loaded from disks is read when a disk may be.
        let disks = told.iter().any(|segment| segment.spec().segment.medium() == Medium::Ssd);
        let staged = if disks { self.segments().private() } else { Vec::new() };
        for segment in told.iter().chain(&staged) {
            segment.set_serve_until(until);
        }
        let leave = standing.leave;
        for segment in &told {
            let SegmentSpec { segment, incarnation, .. } = *segment.spec();
            standing.current.insert(segment, (incarnation, leave));
        }
        true
    }
}

/// When a fence that a master counts with its own clock is surely over.
fn fence_of(now: Now, left_ms: u32) -> Now {
    if left_ms == 0 {
        return now;
    }
    now.plus(lease::guarded(Duration::from_millis(left_ms.into())))
}
