//! Who stands where: the segments of a list of loads by id, node, host, zone and medium.
//!
//! A strategy that wants "a segment of this host" cannot walk a thousand loads for every put. So it
//! remembers their places and compares only [`STEP`] of them per call, in turn, besides all that
//! are new at the end. What must stay true: memory is a hint. Whoever uses an index checks the load
//! itself; an entry that was exchanged in place is noticed after at most `len / STEP` calls, and
//! until then costs nearness, never correctness.

use super::SegmentLoad;
use crate::ids::{HostId, NodeId, SegmentId, ZoneId};
use crate::plan::Medium;
use std::collections::BTreeMap;

/// Loads that are compared with memory in one call.
const STEP: usize = 8;

/// The part of a load that changes only when segments come and go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    segment: SegmentId,
    node: NodeId,
    host: HostId,
    zone: ZoneId,
    medium: Medium,
}

impl Place {
    const fn of(load: &SegmentLoad) -> Self {
        let SegmentLoad { segment, node, host, zone, medium, .. } = *load;
        Self { segment, node, host, zone, medium }
    }
}

/// Indexes of loads by what an ask may want. The maps are ordered: one seed is one run.
#[derive(Debug, Default)]
pub(super) struct Topology {
    places: Vec<Place>,
    by_segment: BTreeMap<SegmentId, usize>,
    by_node: BTreeMap<NodeId, Vec<usize>>,
    by_host: BTreeMap<HostId, Vec<usize>>,
    by_zone: BTreeMap<ZoneId, Vec<usize>>,
    by_medium: BTreeMap<Medium, Vec<usize>>,
    /// Where the next comparison starts.
    cursor: usize,
}

impl Topology {
    /// Brings memory closer to `loads`: wholly where the length differs, else some steps.
    pub(super) fn learn(&mut self, loads: &[SegmentLoad]) {
        while self.places.len() > loads.len() {
            self.forget(self.places.len() - 1);
            self.places.pop();
        }
        for load in &loads[self.places.len()..] {
            self.places.push(Place::of(load));
            self.remember(self.places.len() - 1);
        }
        for _ in 0..STEP.min(loads.len()) {
            self.cursor = if self.cursor + 1 < loads.len() { self.cursor + 1 } else { 0 };
            self.compare(self.cursor, loads);
        }
    }

    /// Where this segment stands.
    pub(super) fn segment(&self, segment: SegmentId) -> Option<usize> {
        self.by_segment.get(&segment).copied()
    }

    /// The zone of a node, if it has a segment here.
    pub(super) fn zone_of(&self, node: NodeId) -> Option<ZoneId> {
        let first = self.by_node.get(&node)?.first()?;
        Some(self.places[*first].zone)
    }

    /// Loads of a host.
    pub(super) fn on_host(&self, host: HostId) -> &[usize] {
        self.by_host.get(&host).map_or(&[], Vec::as_slice)
    }

    /// Loads of a zone.
    pub(super) fn in_zone(&self, zone: ZoneId) -> &[usize] {
        self.by_zone.get(&zone).map_or(&[], Vec::as_slice)
    }

    /// Loads of a medium.
    pub(super) fn on_medium(&self, medium: Medium) -> &[usize] {
        self.by_medium.get(&medium).map_or(&[], Vec::as_slice)
    }

    /// All zones from `from` on, then those before it.
    pub(super) fn zones_from(&self, from: ZoneId) -> impl Iterator<Item = (ZoneId, &[usize])> {
        let zones = self.by_zone.range(from..).chain(self.by_zone.range(..from));
        zones.map(|(zone, members)| (*zone, members.as_slice()))
    }

    fn compare(&mut self, index: usize, loads: &[SegmentLoad]) {
        let now = Place::of(&loads[index]);
        if self.places[index] != now {
            self.forget(index);
            self.places[index] = now;
            self.remember(index);
        }
    }

    fn remember(&mut self, index: usize) {
        let Place { segment, node, host, zone, medium } = self.places[index];
        self.by_segment.insert(segment, index);
        self.by_node.entry(node).or_default().push(index);
        self.by_host.entry(host).or_default().push(index);
        self.by_zone.entry(zone).or_default().push(index);
        self.by_medium.entry(medium).or_default().push(index);
    }

    fn forget(&mut self, index: usize) {
        let Place { segment, node, host, zone, medium } = self.places[index];
        // The same segment may have been mounted again elsewhere in the list meanwhile.
        if self.by_segment.get(&segment) == Some(&index) {
            self.by_segment.remove(&segment);
        }
        leave(&mut self.by_node, &node, index);
        leave(&mut self.by_host, &host, index);
        leave(&mut self.by_zone, &zone, index);
        leave(&mut self.by_medium, &medium, index);
    }
}

fn leave<K: Ord>(groups: &mut BTreeMap<K, Vec<usize>>, key: &K, index: usize) {
    if let Some(members) = groups.get_mut(key) {
        members.retain(|member| *member != index);
        if members.is_empty() {
            groups.remove(key);
        }
    }
}
