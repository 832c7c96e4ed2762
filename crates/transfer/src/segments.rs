//! The segments that live in this process, by id.

use crate::Stager;
use mooncrate_core::plan::Locator;
use mooncrate_core::{Incarnation, SegmentId};
use mooncrate_lock::RwLock;
use mooncrate_mem::{Bell, Life, Segment};
use mooncrate_wire::DataError;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// Segments of this process. A node fills it; servers and local readers look things up.
#[derive(Debug, Default)]
pub struct Segments {
    by_id: RwLock<BTreeMap<SegmentId, Arc<Segment>>>,
    /// Memory that no master knows: what is staged from disks.
    private: RwLock<BTreeMap<SegmentId, Arc<Segment>>>,
    stager: RwLock<Option<Arc<dyn Stager>>>,
    /// Tells processes that map these segments whether this one is dead.
    life: OnceLock<Arc<Life>>,
    /// Rung when one of them has something to be tended.
    bell: Arc<Bell>,
}

impl Segments {
    /// Adds a segment, or replaces an earlier mount of it.
    pub fn insert(&self, segment: Arc<Segment>) {
        segment.set_bell(&self.bell);
        self.by_id.write().insert(segment.spec().segment, segment);
        // It may have come with something to do.
        self.bell.ring();
    }

    /// Adds memory that readers find and no master knows, or replaces it.
    pub fn insert_private(&self, segment: Arc<Segment>) {
        segment.set_bell(&self.bell);
        self.private.write().insert(segment.spec().segment, segment);
        self.bell.ring();
    }

    /// Memory that no master knows.
    pub fn private(&self) -> Vec<Arc<Segment>> {
        self.private.read().values().cloned().collect()
    }

    /// Rung when one of the segments has something for its `tick` to do.
    pub fn bell(&self) -> &Bell {
        &self.bell
    }

    /// Says who loads from the disks of this process; `None`: nobody any more.
    pub fn set_stager(&self, stager: Option<Arc<dyn Stager>>) {
        *self.stager.write() = stager;
    }

    /// Who loads from the disks of this process, if it has some.
    pub fn stager(&self) -> Option<Arc<dyn Stager>> {
        self.stager.read().clone()
    }

    /// Has somebody who will know when this process is dead, and say so in `life`. Once, before any
    /// segment is shared: whoever maps one without it could read on.
    pub fn set_life(&self, life: Arc<Life>) {
        let first = self.life.set(life).is_ok();
        debug_assert!(first, "a process has one life");
    }

    /// What tells whether this process is dead, if anything does.
    pub fn life(&self) -> Option<&Arc<Life>> {
        self.life.get()
    }

    /// Takes a segment out: nobody finds it any more.
    pub fn remove(&self, id: SegmentId) -> Option<Arc<Segment>> {
        self.by_id.write().remove(&id)
    }

    /// Takes all of them out.
    pub fn clear(&self) {
        // Unmapped outside of the locks: that may take long.
        let (ours, private) =
            (std::mem::take(&mut *self.by_id.write()), std::mem::take(&mut *self.private.write()));
        drop((ours, private));
    }

    /// The segment, whatever its mount.
    pub fn get(&self, id: SegmentId) -> Option<Arc<Segment>> {
        let found = self.by_id.read().get(&id).cloned();
        found.or_else(|| self.private.read().get(&id).cloned())
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

    /// All that a master knows.
    pub fn all(&self) -> Vec<Arc<Segment>> {
        self.by_id.read().values().cloned().collect()
    }
}
