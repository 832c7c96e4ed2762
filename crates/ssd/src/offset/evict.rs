//! Letting records go: zeros over their first block, synced, then their space (S1, S6).

use super::{Held, Shared};
use crate::ALIGN;
use crate::backend::{RecordId, Ticket};
use crate::disk::WriteAt;
use crate::points::point;
use crate::room::Room;
use mooncrate_mem::clock::boottime;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// How often a ticket looks whether the last reader has left.
const LOOK: Duration = Duration::from_millis(2);

/// Records that are hidden.
struct Hidden {
    all: Arc<Shared>,
    held: Vec<Arc<Held>>,
    records: Vec<RecordId>,
    bytes: u64,
}

impl std::fmt::Debug for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hidden({} records, {} bytes)", self.records.len(), self.bytes)
    }
}

/// A block that is no head.
pub(super) fn zeros() -> Room {
    let mut zeros = Room::new(ALIGN);
    zeros.set_len(ALIGN);
    zeros.fill(0);
    zeros
}

impl Shared {
    pub(super) fn unlink_some(self: &Arc<Self>, bytes: u64) -> Option<Box<dyn Ticket>> {
        let (held, records) = (Vec::new(), Vec::new());
        let mut hidden = Hidden { all: Arc::clone(self), held, records, bytes: 0 };
        while hidden.records.is_empty() || hidden.bytes < bytes {
            let oldest = self.space.lock().order.first_key_value().map(|(s, id)| (*s, *id));
            let Some((serial, id)) = oldest else { break };
            // It may be gone meanwhile; then another one is the oldest.
            if let Some(held) = self.hide(id, Some(serial), false) {
                hidden.bytes += held.bytes();
                hidden.records.push(id);
                hidden.held.push(held);
            }
        }
        point("evict.unlinked");
        (!hidden.records.is_empty()).then(|| Box::new(hidden) as Box<dyn Ticket>)
    }

    /// No start will find these.
    pub(super) fn mark_dead(&self, going: &[Arc<Held>]) -> io::Result<()> {
        if going.is_empty() {
            return Ok(());
        }
        let zeros = zeros();
        let pieces = [&zeros[..]];
        let writes = going.iter().map(|held| {
            let (file, offset, result) = (&self.file, held.offset(), Ok(()));
            WriteAt { file, offset, pieces: &pieces, result }
        });
        let mut writes: Vec<WriteAt<'_>> = writes.collect();
        point("offset.before_dead");
        if self.is_bad() {
            return self.sync();
        }
        self.identity.write_many(&mut writes);
        point("offset.dead_written");
        let written = writes.into_iter().map(|write| write.result).fold(Ok(()), io::Result::and);
        let synced = self.sync();
        point("offset.dead_synced");
        written.and(synced)
    }

    /// Lets hidden records go. Their space is free as soon as nobody reads it.
    pub(super) fn kill(&self, going: Vec<Arc<Held>>) -> io::Result<()> {
        self.mark_dead(&going)?;
        let mut space = self.space.lock();
        for held in going {
            // Another call may have been faster.
            if space.hidden.remove(&(held.id, held.serial)).is_some() {
                space.leaving.push(held);
            }
        }
        space.sweep();
        Ok(())
    }
}

impl Ticket for Hidden {
    fn records(&self) -> &[RecordId] {
        &self.records
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn finish(mut self: Box<Self>, wait: Duration) -> io::Result<()> {
        let held = std::mem::take(&mut self.held);
        let deadline = boottime().deadline_in(wait);
        // One count is in `hidden`, one is ours.
        while held.iter().any(|held| Arc::strong_count(held) > 2) {
            let left = deadline.left(boottime());
            if left.is_zero() {
                break;
            }
            let mut space = self.all.space.lock();
            self.all.pause.wait_for(&mut space, left.min(LOOK));
        }
        point("evict.drained");
        // What is removed already needs no second death: its space may be somebody else's.
        let space = self.all.space.lock();
        let still = |held: &Arc<Held>| space.hidden.contains_key(&(held.id, held.serial));
        let going: Vec<Arc<Held>> = held.into_iter().filter(still).collect();
        drop(space);
        self.all.kill(going)
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        for held in self.held.drain(..) {
            let mut shard = self.all.shard(held.id).lock();
            let mut space = self.all.space.lock();
            let key = (held.id, held.serial);
            // Being removed, or a newer copy is served: it stays hidden.
            let back = space.hidden.get(&key).is_some_and(|copy| !copy.stays);
            if back && !shard.contains_key(&held.id) {
                space.hidden.remove(&key);
                space.value_bytes += held.shape.value;
                space.order.insert(held.serial, held.id);
                shard.insert(held.id, held);
            }
        }
    }
}
