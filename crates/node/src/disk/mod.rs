//! The disks of a node: each is a segment whose records a backend keeps.
//!
//! ```text
//!   copy orders ─► keep ──► Backend ◄── load ◄── readers: staged for others, copied for us
//!   orders ──────► ends ──►    ▲
//!                              ├── evict   unlink, tell the master, delete
//!                              └── scrub   read what nobody reads
//! ```
//!
//! Threads of their own do all of it, so neither heartbeats nor orders for memory wait for a disk (G13).
//! Queues are bounded; what does not fit is refused, and the master asks again later.
//!
//! What must stay true: a slot is Ready when its record is durable (S2); a life is told as freed when no
//! crash can bring its record back (G6); an evicted record is deleted when the master has heard of it (S1).

mod budget;
mod carried;
mod config;
mod ends;
mod evict;
mod full;
mod keep;
mod load;
mod loaders;
mod open;
mod places;
mod scrub;
mod stamp;
mod tally;
#[cfg(test)]
mod tests;

pub use config::{Given, Io, Listener, SsdConfig, Tier as TierConfig};
pub(crate) use load::Tier;
pub use open::{OnProgress, OpenDisks};
pub(crate) use tally::Tally;

use budget::Budget;
use carried::Carried;
use keep::Queue;
use loaders::Loaders;
use mooncrate_core::plan::{Evidence, Notice, Order};
use mooncrate_core::time::Deadline;
use mooncrate_core::{Label, LeaderEpoch, ObjectId, SegmentId};
use mooncrate_lock::{Condvar, Mutex};
use mooncrate_mem::{Segment, WriteGuard};
use mooncrate_ssd::{Backend, RecordId, Recovery};
use places::Places;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// One disk of a node.
pub(crate) struct Disk {
    pub(crate) id: SegmentId,
    pub(crate) config: SsdConfig,
    pub(crate) backend: Arc<dyn Backend>,
    /// What its files are read and written by.
    pub(crate) device: Arc<dyn mooncrate_ssd::Disk>,
    /// What the start found.
    pub(crate) recovery: Recovery,
    /// How long that took.
    pub(crate) recovery_seconds: f64,
    pub(crate) tally: Tally,
    /// What shows a master that its records are current.
    evidence: Mutex<Evidence>,
    /// A leader that has taken over what the disk holds, until that is written.
    confirmed_by: Mutex<Option<LeaderEpoch>>,
    /// Which record is in which slot.
    places: Mutex<Places>,
    /// Values that wait to be kept.
    queue: Mutex<Queue>,
    queued: Condvar,
    /// Orders that end lives, and records that went bad.
    ends: Mutex<VecDeque<End>>,
    ended: Condvar,
    /// Removals that the disk refused so far. Nothing is said about lives before they are durable (G6).
    undurable: Mutex<Vec<(RecordId, Held)>>,
    /// Lives of earlier mounts that are not over, each with a slot of this one that stands for it.
    carried: Mutex<Vec<Carried>>,
    /// Who reads it.
    loaders: Arc<Loaders>,
    /// Wakes the evictor.
    crowded: Mutex<bool>,
    crowd: Condvar,
    /// When the log told that the file system is full.
    said_full: Mutex<full::Said>,
    /// An eviction waits for its master: nothing new is taken meanwhile (S1).
    refusing: AtomicBool,
    /// It removes nothing any more, and is not mounted any more.
    lost: AtomicBool,
    budget: Mutex<Budget>,
}

/// What waits for a removal to be durable.
enum Held {
    /// Nothing.
    Nothing,
    /// A life that was begun, and ends with its guard.
    Life(WriteGuard),
    /// A slot that was retired.
    Retired(Arc<Segment>, places::Place),
}

/// Something that ends a life.
enum End {
    /// The master orders it.
    Order(LeaderEpoch, Order),
    /// The disk did not give back what was kept, or has it no more.
    Bad(RecordId),
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk")
            .field("id", &self.id)
            .field("path", &self.config.path)
            .finish_non_exhaustive()
    }
}

impl Disk {
    /// Whether nothing new is taken.
    fn refuses(&self) -> bool {
        // Acquire: pairs with the Release of the evictor.
        self.refusing.load(Ordering::Acquire) || self.is_lost()
    }

    /// Whether it was given up.
    pub(crate) fn is_lost(&self) -> bool {
        // Acquire: pairs with the Release of who gives it up.
        self.lost.load(Ordering::Acquire)
    }

    /// Values that wait to be kept, and their bytes.
    pub(crate) fn waiting(&self) -> (usize, u64) {
        let queue = self.queue.lock();
        (queue.len(), queue.bytes())
    }

    /// Takes an order for a life on this disk. Orders repeat: one too many is dropped.
    pub(crate) fn end(&self, epoch: LeaderEpoch, order: Order) {
        self.push_end(End::Order(epoch, order));
    }

    fn push_end(&self, end: End) {
        let mut ends = self.ends.lock();
        if ends.len() < ends::ENDS_MAX {
            ends.push_back(end);
            self.ended.notify_one();
        }
    }

    /// A record that cannot be read: it is not served again (G15).
    fn went_bad(&self, id: RecordId) {
        self.tally.corrupt.one();
        self.push_end(End::Bad(id));
    }

    /// Reads nothing new; whether all that was being read has ended in time.
    pub(crate) fn stop_loading(&self, deadline: Deadline) -> bool {
        self.loaders.stop(deadline)
    }

    /// Wakes whoever waits, because the node stops.
    pub(crate) fn wake(&self) {
        self.queued.notify_all();
        self.ended.notify_all();
        self.crowd.notify_all();
    }

    /// Retires the slots of records that are hidden already.
    fn retire(&self, ids: &[RecordId]) -> Retired {
        let now = mooncrate_mem::clock::boottime();
        let mut places = self.places.lock();
        let segment = Arc::clone(places.segment());
        let mut notices = Vec::with_capacity(ids.len());
        let mut records = Vec::with_capacity(ids.len());
        for id in ids {
            let Some(place) = places.remove(id) else { continue };
            if let Ok(notice) = segment.retire_unasked(now, place.slot, place.generation) {
                notices.push(notice);
                records.push((*id, place));
            }
        }
        Retired { segment, notices, records }
    }
}

/// Slots that their owner has retired by itself.
struct Retired {
    segment: Arc<Segment>,
    /// What the master is to be told.
    notices: Vec<Notice>,
    records: Vec<(RecordId, places::Place)>,
}

/// The name of the record that a replica with this label is.
fn record_of(object: ObjectId, label: &[u8]) -> RecordId {
    let stripe = Label::decode(label).and_then(|label| label.stripe);
    RecordId { object, stripe: stripe.map_or(0, |stripe| stripe.stripe) }
}
