//! More memory, less memory, none: segments that come and go while the node serves, and a node that
//! hands everything over before it stops.

use crate::duty::{Node, NodeError};
use mooncrate_core::canary::{self, Canary};
use mooncrate_core::copy::DrainStat;
use mooncrate_core::error::MountError;
use mooncrate_core::limits::SEGMENTS_PER_NODE_MAX;
use mooncrate_core::{Incarnation, Now, SegmentId};
use mooncrate_mem::Segment;
use mooncrate_mem::clock::boottime;
use mooncrate_rt as rt;
use mooncrate_wire::message::{Drain, DrainWish, Mount, Unmount};
use std::sync::Arc;
use std::time::Duration;

/// How long a call to the master may take.
const CALL_TIME: Duration = Duration::from_secs(2);
/// Between two looks at a drain.
const LOOK: Duration = Duration::from_millis(100);

impl Node {
    /// Mounts one more segment of `bytes`, as the `index`-th of this node. Asking for one that is
    /// there changes nothing.
    pub fn mount_segment(&self, index: u16, bytes: u64) -> Result<SegmentId, NodeError> {
        let id = SegmentId::of(self.id(), index);
        if self.segments().get(id).is_some() {
            return Ok(id);
        }
        if self.segments().all().len() >= SEGMENTS_PER_NODE_MAX {
            let count = SEGMENTS_PER_NODE_MAX as u32;
            return Err(MountError::TooManySegments { count }.into());
        }
        let spec = self.config().spec_of(index, bytes, self.next_mount());
        self.mount_one(&self.config().create(spec)?)?;
        Ok(id)
    }

    /// The number of a mount to come.
    pub(crate) fn next_mount(&self) -> Incarnation {
        let mut standing = self.standing().lock();
        // A mount that was given up never comes back under its number (M8).
        standing.incarnation = Incarnation(standing.incarnation.0 + 1);
        standing.incarnation
    }

    /// Mounts a segment that is new, and announces it. All others are offered with it: a leader that has given them up
    /// refuses, and would otherwise take this one for all that the node has, and its heartbeats for theirs.
    pub(crate) fn mount_one(&self, segment: &Arc<Segment>) -> Result<(), NodeError> {
        let sent = boottime();
        let mut others = self.segments().all();
        others.retain(|other| other.spec().segment != segment.spec().segment);
        if canary::on(Canary::AddedStandsForAll) {
            others.clear();
        }
        let (fence_ms, mut offers) = {
            let standing = self.standing().lock();
            let offer = |other: &Arc<Segment>| {
                self.offer(other.spec(), standing.has_lapsed(other.spec(), sent))
            };
            (standing.fence_ms(sent), others.iter().map(offer).collect::<Vec<_>>())
        };
        offers.push(self.offer(segment.spec(), false));
        let mount = Mount {
            info: self.info().clone(),
            seen: others.iter().map(|other| other.epoch()).max().unwrap_or_default(),
            offers,
            fence_ms,
            // It is new: what was drained under its name is gone.
            draining: Vec::new(),
        };
        let mounted = match self.master().mount(&mount, sent.deadline_in(CALL_TIME))? {
            // Its own number is new: it is the others that were given up. The next heartbeat finds out.
            Err(MountError::StaleIncarnation { .. }) => return Err(MountError::UnknownNode.into()),
            mounted => mounted?,
        };
        segment.witness(mounted.epoch).map_err(NodeError::Segment)?;
        self.standing().lock().made(segment.spec());
        self.segments().insert(Arc::clone(segment));
        let told = self.announce(segment, mounted.epoch);
        let mut standing = self.standing().lock();
        if told.is_ok() {
            standing.heard_all(segment.spec(), mounted.epoch);
        }
        if told.is_err() || standing.mounted != Some(mounted.epoch) {
            // The next heartbeat mounts all of them again: this leader may know of this one alone.
            standing.mounted = None;
            return told;
        }
        drop(standing);
        // It serves from the next heartbeat on, if the node does.
        self.acknowledged(sent, mounted.registration_ms, mounted.epoch, 0);
        self.alarm();
        Ok(())
    }

    /// Gives a segment up, with what it still holds. A drain before it loses nothing.
    pub fn unmount_segment(&self, index: u16) -> Result<(), NodeError> {
        self.unmount(SegmentId::of(self.id(), index))
    }

    /// The same for any segment, of memory or of a disk.
    pub(crate) fn unmount(&self, id: SegmentId) -> Result<(), NodeError> {
        match self.take_out(id) {
            Some(mount) => self.say_unmounted(id, mount),
            // It may be gone already, and its master not have heard of that.
            None => self.tell_unmounted(),
        }
    }

    /// Nobody finds a segment any more, and nobody is served from it; which mount that was.
    pub(crate) fn take_out(&self, id: SegmentId) -> Option<Incarnation> {
        // Under the lock: no heartbeat on its way may give leave to serve it again.
        let mut standing = self.standing().lock();
        standing.draining.retain(|(drained, _)| *drained != id);
        standing.told.remove(&id);
        standing.current.remove(&id);
        let segment = self.segments().remove(id)?;
        segment.set_serve_until(Now(0));
        Some(segment.spec().incarnation)
    }

    /// Tells the master of a segment that is gone already. What it does not hear now is told again, after the next
    /// heartbeat that it answers.
    pub(crate) fn say_unmounted(&self, id: SegmentId, mount: Incarnation) -> Result<(), NodeError> {
        {
            let mut gone = self.gone().lock();
            if !gone.contains(&(id, mount)) {
                gone.push((id, mount));
            }
        }
        self.tell_unmounted()
    }

    /// Tells the master of all segments that are gone and that it has not heard of.
    pub(crate) fn tell_unmounted(&self) -> Result<(), NodeError> {
        let segments = self.gone().lock().clone();
        if segments.is_empty() {
            return Ok(());
        }
        let unmount = Unmount { node: self.id(), segments };
        let heard = self.master().unmount(&unmount, boottime().deadline_in(CALL_TIME))?;
        self.gone().lock().retain(|one| !unmount.segments.contains(one));
        Ok(heard?)
    }

    /// Drains before a stop, and says how that went; the stop goes on in any case.
    pub fn hand_over(&self, limit: Duration) {
        match self.drain(limit) {
            Ok(stat) if stat.drained() => tracing::info!(moved = stat.moved, "drained"),
            Ok(stat) => tracing::warn!(left = stat.left_replicas, "not drained in time"),
            Err(error) => tracing::warn!(%error, "not drained"),
        }
    }

    /// Hands everything over to other nodes, for at most `limit`; how far it came. The node serves
    /// meanwhile, and takes nothing new.
    pub fn drain(&self, limit: Duration) -> Result<DrainStat, NodeError> {
        let end = boottime().deadline_in(limit);
        let mut wish = DrainWish::Move;
        loop {
            let ask = Drain { node: self.id(), segment: None, wish };
            let now = boottime();
            let stat = self.master().drain(&ask, now.deadline_in(CALL_TIME).min(end))?;
            let stat = stat.ok_or(MountError::UnknownNode)?;
            if stat.drained() || end.passed(now) {
                return Ok(stat);
            }
            wish = DrainWish::Look;
            rt::sleep(LOOK.min(end.left(now)));
        }
    }
}
