//! Nodes as the master meets them: mount, announce, heartbeat, the order poll; and the directory
//! that tells clients where segments are.

use crate::mail::Bell;
use crate::service::{Master, Mind};
use mooncrate_core::copy::CopyDone;
use mooncrate_core::error::MountError;
use mooncrate_core::plan::Notice;
use mooncrate_core::shown::shown;
use mooncrate_core::{Incarnation, LeaderEpoch, NodeId, Now, SegmentId};
use mooncrate_lock::MutexGuard;
use mooncrate_wire::clock::boottime;
use mooncrate_wire::message::{
    Announce, Heartbeat, Mount, Mounted, NodeEntry, NodeInfo, OrderBatch, Pulse,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// Announced slots that are taken in under one lock: some fifty microseconds.
const ANNOUNCED_MAX: usize = 64;

/// Where nodes can be reached.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    nodes: BTreeMap<NodeId, NodeInfo>,
}

impl Master {
    pub(crate) fn mount_node(&self, mount: &Mount) -> Result<Mounted, MountError> {
        let now = boottime();
        let mut mind = self.mind();
        let node = mount.info.node;
        mind.catalog.meet(now, node, mount.seen);
        mind.catalog.mount(now, node, &mount.offers)?;
        let left = mount.fence_ms.map(|ms| Duration::from_millis(ms.into()));
        let fence = mind.catalog.fence(now, node, left);
        mind.catalog.resume_drains(node, &mount.draining);
        mind.mail.open(node);
        mind.directory.nodes.insert(node, mount.info.clone());
        let epoch = mind.catalog.epoch();
        drop(mind);
        tracing::info!(node = %shown(&mount.info.name), segments = mount.offers.len(), "node mounted");
        let fence_ms = u32::try_from(fence.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX);
        Ok(Mounted { epoch, registration_ms: self.registration_ms(), fence_ms })
    }

    /// One page of an announcement, in slices between which others have the lock (G13).
    pub(crate) fn announce_page(&self, told: &Announce) -> Result<(), MountError> {
        let Announce { epoch, segment, incarnation, page, .. } = told;
        self.mind().catalog.is_told(*epoch)?;
        // An empty page is a page: whoever tells is heard.
        let slices = page.chunks(ANNOUNCED_MAX).chain(page.is_empty().then_some(&[][..]));
        for slice in slices {
            let mut mind = self.mind();
            let taken = mind.catalog.announce_page(boottime(), *segment, *incarnation, slice);
            let orders = self.sort_orders(&mut mind);
            // Fair: whoever waits comes next, and not this thread again.
            MutexGuard::unlock_fair(mind);
            self.carry_out(&orders);
            taken?;
        }
        Ok(())
    }

    /// The last page was taken. The lock is free while the ranges are put in order: for ten million
    /// of them that takes a second, and the master serves meanwhile.
    pub(crate) fn open_segment(
        &self,
        segment: SegmentId,
        incarnation: Incarnation,
    ) -> Result<(), MountError> {
        let told = self.mind().catalog.all_told(segment, incarnation)?;
        if let Some(told) = told {
            let opening = told.build()?;
            self.mind().catalog.open_segment(opening)?;
            // The next leader believes what this one has let in, however soon it comes.
            self.keep_or_say();
        }
        self.news.publish();
        Ok(())
    }

    pub(crate) fn unmount_segments(&self, node: NodeId, mounts: &[(SegmentId, Incarnation)]) {
        let mut mind = self.mind();
        let current = mounts.iter().filter(|(id, mount)| mind.catalog.mounts(*id, *mount));
        let segments: Vec<SegmentId> = current.map(|(id, _)| *id).collect();
        mind.catalog.unmount(node, &segments);
        for (segment, incarnation) in mounts {
            // The next start of the node may have come before the word that this one is dead.
            mind.catalog.unreadable(*segment, *incarnation);
        }
        let gone = !mind.catalog.knows(node);
        if gone {
            mind.directory.nodes.remove(&node);
            mind.mail.forget(node);
        }
        drop(mind);
        if gone {
            self.keep_or_say();
        }
        self.news.publish();
    }

    /// Nodes that the catalog has given up for their silence have neither mail nor a place in the directory.
    pub(crate) fn forget_lost(mind: &mut Mind) {
        let Mind { catalog, directory, mail } = mind;
        directory.nodes.retain(|node, _| catalog.knows(*node));
        mail.keep_only(|node| catalog.knows(node));
    }

    /// Whether a node was heard since then.
    pub(crate) fn has_heard(&self, node: NodeId, since: Now) -> bool {
        self.mind().catalog.last_heard(node).is_some_and(|heard| heard > since)
    }

    pub(crate) fn hear(&self, beat: &Heartbeat) -> Result<Pulse, MountError> {
        let mut mind = self.mind();
        mind.catalog.check_current(beat.node, beat.incarnation)?;
        mind.catalog.heartbeat(boottime(), beat.node)?;
        Ok(Pulse {
            epoch: mind.catalog.epoch(),
            registration_ms: self.registration_ms(),
            draining: mind.catalog.drains(beat.node),
            serve_ms: if mind.catalog.may_serve(beat.node) { self.serve_ms() } else { 0 },
        })
    }

    /// Orders that wait for a node now, and its bell for when there are none. The notices it brings are taken
    /// first.
    pub(crate) fn poll_orders(
        &self,
        node: NodeId,
        notices: &[Notice],
        copied: &[CopyDone],
    ) -> Result<(OrderBatch, Bell), MountError> {
        self.take_notices(notices);
        self.take_copied(copied);
        let mut mind = self.mind();
        if !mind.catalog.knows(node) {
            return Err(MountError::UnknownNode);
        }
        let epoch = mind.catalog.epoch();
        Ok(mind.mail.take(node, epoch))
    }

    pub(crate) fn node_entries(&self) -> Vec<NodeEntry> {
        let mind = self.mind();
        // In one walk: a walk per node would be the square of their number, under the lock.
        let mut own: BTreeMap<NodeId, Vec<(SegmentId, Incarnation)>> = BTreeMap::new();
        for stat in mind.catalog.segments() {
            let mount = (stat.offer.segment, stat.offer.incarnation);
            own.entry(stat.offer.node).or_default().push(mount);
        }
        let entry = |info: &NodeInfo| NodeEntry {
            info: info.clone(),
            segments: own.remove(&info.node).unwrap_or_default(),
        };
        mind.directory.nodes.values().map(entry).collect()
    }

    /// The nodes as an operator sees them: how long each has been silent goes with it.
    pub(crate) fn roll(&self) -> Vec<(NodeEntry, Option<Duration>)> {
        let entries = self.node_entries();
        let (now, mind) = (boottime(), self.mind());
        let silence = |node| mind.catalog.last_heard(node).map(|heard| now.since(heard));
        entries
            .into_iter()
            .map(|entry| {
                let silence = silence(entry.info.node);
                (entry, silence)
            })
            .collect()
    }

    /// Names of nodes by id.
    pub(crate) fn node_names(&self) -> BTreeMap<NodeId, String> {
        let mind = self.mind();
        mind.directory.nodes.iter().map(|(node, info)| (*node, info.name.clone())).collect()
    }

    /// The epoch it leads under.
    pub fn leader_epoch(&self) -> LeaderEpoch {
        self.mind().catalog.epoch()
    }

    fn serve_ms(&self) -> u32 {
        u32::try_from(self.config.catalog.serve_lease.as_millis()).unwrap_or(u32::MAX)
    }

    fn registration_ms(&self) -> u32 {
        u32::try_from(self.config.catalog.registration.as_millis()).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::tests::master;

    /// Pages for another leader are refused, whoever sent them: its orders are in nobody's books.
    #[test]
    fn an_announcement_names_its_leader() {
        let master = master(&[]);
        let leads = master.leader_epoch();
        let told = |epoch| {
            let page = Announce {
                epoch,
                segment: SegmentId::of(NodeId(u64::MAX), 0),
                incarnation: Incarnation(7),
                page: Vec::new(),
                last: false,
            };
            master.announce_page(&page)
        };
        for other in [LeaderEpoch(0), LeaderEpoch(leads.0 - 1), LeaderEpoch(leads.0 + 1)] {
            assert_eq!(told(other), Err(MountError::UnknownNode), "{other:?}");
        }
        assert_ne!(told(leads), Err(MountError::UnknownNode));
    }
}
