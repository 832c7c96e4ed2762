//! The segments that live in this process, by id.

use mooncrate_core::plan::Locator;
use mooncrate_core::{Incarnation, SegmentId};
use mooncrate_lock::RwLock;
use mooncrate_mem::Segment;
use mooncrate_wire::DataError;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Segments of this process. A node fills it; servers and local readers look things up.
#[derive(Debug, Default)]
pub struct Segments {
    by_id: RwLock<BTreeMap<SegmentId, Arc<Segment>>>,
}

impl Segments {
    /// Adds a segment, or replaces an earlier mount of it.
    pub fn insert(&self, segment: Arc<Segment>) {
        self.by_id.write().insert(segment.spec().segment, segment);
    }

    /// Takes a segment out: nobody finds it any more.
    pub fn remove(&self, id: SegmentId) -> Option<Arc<Segment>> {
        self.by_id.write().remove(&id)
    }

    /// The segment, whatever its mount.
    pub fn get(&self, id: SegmentId) -> Option<Arc<Segment>> {
        self.by_id.read().get(&id).cloned()
    }

    /// Whether this very mount is here.
    pub fn holds(&self, id: SegmentId, incarnation: Incarnation) -> bool {
        self.by_id.read().get(&id).is_some_and(|segment| segment.spec().incarnation == incarnation)
    }

    /// The segment that a locator names, in the mount that it names.
    pub fn find(&self, locator: &Locator) -> Result<Arc<Segment>, DataError> {
        let segment = self.get(locator.segment).ok_or(DataError::UnknownSegment)?;
        if segment.spec().incarnation == locator.incarnation {
            Ok(segment)
        } else {
            Err(DataError::Stale)
        }
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<Segment>> {
        self.by_id.read().values().cloned().collect()
    }
}
