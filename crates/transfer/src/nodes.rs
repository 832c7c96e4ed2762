//! Where segments are, as the master tells it; asked once per unknown mount. Clients and nodes that
//! fetch copies use the same list.

use crate::{Directory, Route};
use mooncrate_core::time::Deadline;
use mooncrate_core::{Incarnation, SegmentId};
use mooncrate_lock::RwLock;
use mooncrate_wire::message::NodeEntry;
use mooncrate_wire::{Address, CallError, MasterApi};
use std::fmt;
use std::sync::Arc;

/// The master's list of nodes, remembered.
pub struct Nodes {
    master: Arc<dyn MasterApi>,
    known: RwLock<Vec<NodeEntry>>,
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nodes").field("known", &self.known.read().len()).finish_non_exhaustive()
    }
}

impl Nodes {
    /// The list of this master.
    pub fn new(master: Arc<dyn MasterApi>) -> Self {
        Self { master, known: RwLock::default() }
    }
}

impl Directory for Nodes {
    fn route(
        &self,
        segment: SegmentId,
        incarnation: Incarnation,
        deadline: Deadline,
    ) -> Result<Option<Route>, CallError> {
        if let Some(route) = find(&self.known.read(), segment, incarnation) {
            return Ok(Some(route));
        }
        let fresh = self.master.nodes(deadline)?;
        let route = find(&fresh, segment, incarnation);
        *self.known.write() = fresh;
        Ok(route)
    }
}

fn find(nodes: &[NodeEntry], segment: SegmentId, incarnation: Incarnation) -> Option<Route> {
    let entry = nodes.iter().find(|entry| entry.segments.contains(&(segment, incarnation)))?;
    let info = &entry.info;
    Some(Route {
        node: info.node,
        host: info.host,
        tcp: (!info.tcp.is_empty()).then(|| Address::Tcp(info.tcp.clone())),
        unix: (!info.unix.is_empty()).then(|| Address::Unix(info.unix.clone().into())),
    })
}
