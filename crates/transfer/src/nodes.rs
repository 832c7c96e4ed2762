//! Where segments are, as the master tells it; asked once per unknown mount. Clients and nodes that
//! fetch copies use the same list.

use crate::{Directory, Route};
use mooncrate_core::time::{Deadline, Now};
use mooncrate_core::{Incarnation, SegmentId};
use mooncrate_lock::RwLock;
use mooncrate_mem::clock::boottime;
use mooncrate_wire::message::NodeEntry;
use mooncrate_wire::{Address, CallError, MasterApi};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Between two times that the master is asked for its nodes on a hint's account.
const HINT_PAUSE: Duration = Duration::from_millis(500);

/// The master's list of nodes, remembered.
pub struct Nodes {
    master: Arc<dyn MasterApi>,
    known: RwLock<Vec<NodeEntry>>,
    /// When the master was last asked on a hint's account; 0: never. Nanoseconds.
    hinted: AtomicU64,
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nodes").field("known", &self.known.read().len()).finish_non_exhaustive()
    }
}

impl Nodes {
    /// The list of this master.
    pub fn new(master: Arc<dyn MasterApi>) -> Self {
        Self { master, known: RwLock::default(), hinted: AtomicU64::new(0) }
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

    /// The keys of a batch may have many copies at owners that nobody knows, and a master that does not
    /// answer would be waited for as often: it is asked once in a while.
    fn route_hint(
        &self,
        segment: SegmentId,
        incarnation: Incarnation,
        deadline: Deadline,
    ) -> Option<Route> {
        if let Some(route) = find(&self.known.read(), segment, incarnation) {
            return Some(route);
        }
        let now = boottime();
        // Relaxed: a hint; that two ask at once does no harm.
        let hinted = self.hinted.load(Ordering::Relaxed);
        if hinted != 0 && now.since(Now(hinted)) < HINT_PAUSE {
            return None;
        }
        self.hinted.store(now.0, Ordering::Relaxed);
        // What is only a hint must leave time for what it is for.
        let soon = Deadline(now.0.midpoint(deadline.0.max(now.0)));
        self.route(segment, incarnation, soon).ok().flatten()
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
