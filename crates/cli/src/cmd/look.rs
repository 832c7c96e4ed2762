//! One look at a cluster: its numbers, and the names of its nodes.

use mooncrate::{ClusterStat, Error, SegmentRow, Store};
use mooncrate_core::{NodeId, Now};
use mooncrate_wire::clock::boottime;
use std::collections::BTreeMap;

/// What `stat` shows once, and `top` again and again.
#[derive(Clone, Debug)]
pub(crate) struct Look {
    pub(crate) at: Now,
    pub(crate) stat: ClusterStat,
    pub(crate) names: BTreeMap<NodeId, String>,
}

impl Look {
    pub(crate) fn take(store: &Store) -> Result<Self, Error> {
        let stat = store.stat()?;
        let nodes = store.nodes()?;
        let names = nodes.into_iter().map(|entry| (entry.info.node, entry.info.name)).collect();
        Ok(Self { at: boottime(), stat, names })
    }

    /// The name of a segment's node, as its owner chose it; its number, if it left between the two questions.
    pub(crate) fn node(&self, row: &SegmentRow) -> String {
        let known = self.names.get(&row.offer.node).cloned();
        known.unwrap_or_else(|| row.offer.node.to_string())
    }
}
