//! Where segments are, as the master last told: a cache, because a list of all nodes for every call
//! would cost the master more than the call.

use mooncrate_core::plan::Locator;
use mooncrate_core::time::Deadline;
use mooncrate_core::{Incarnation, SegmentId};
use mooncrate_lock::Mutex;
use mooncrate_wire::message::NodeInfo;
use mooncrate_wire::{CallError, MasterApi};
use std::collections::HashMap;
use std::sync::Arc;

type Known = HashMap<SegmentId, (Incarnation, Arc<NodeInfo>)>;

/// The cache.
#[derive(Debug, Default)]
pub(crate) struct Places(Mutex<Arc<Known>>);

/// What is known about the segments of some locators.
#[derive(Clone, Debug, Default)]
pub(crate) struct Owners(Arc<Known>);

impl Places {
    /// The owners of these replicas. A mount that is not known yet is asked for, once.
    pub(crate) fn owners(
        &self,
        api: &dyn MasterApi,
        replicas: &[Locator],
        deadline: Deadline,
    ) -> Result<Owners, CallError> {
        let owners = Owners(Arc::clone(&self.0.lock()));
        if replicas.iter().all(|replica| owners.of(replica).is_some()) {
            return Ok(owners);
        }
        let mut known = Known::new();
        for entry in api.nodes(deadline)? {
            let info = Arc::new(entry.info);
            for (segment, incarnation) in entry.segments {
                known.insert(segment, (incarnation, Arc::clone(&info)));
            }
        }
        let known = Arc::new(known);
        *self.0.lock() = Arc::clone(&known);
        Ok(Owners(known))
    }
}

impl Owners {
    /// Who owns this replica; `None`: a node that has left since.
    pub(crate) fn of(&self, replica: &Locator) -> Option<&NodeInfo> {
        let (incarnation, info) = self.0.get(&replica.segment)?;
        (*incarnation == replica.incarnation).then_some(&**info)
    }
}
