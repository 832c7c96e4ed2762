//! What the oracle knows about a record.

use super::harm::{is_stale, meets};
use mooncrate_check::{PutId, payload};
use mooncrate_core::{KeyHash, Seal};
use mooncrate_ssd::disk::sim::{Fault, Harm, Span};

/// Whose bytes a record holds.
#[derive(Clone, PartialEq, Eq)]
pub struct Facts {
    /// The stamp.
    pub put: PutId,
    /// The other stamp.
    pub key: KeyHash,
    /// Bytes.
    pub len: u64,
    /// What they add up to.
    pub seal: Seal,
    /// The label.
    pub label: Vec<u8>,
}

impl std::fmt::Debug for Facts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { put, len, seal, label, .. } = self;
        write!(f, "put {put}, {len} bytes, {seal:?}, label of {} bytes", label.len())
    }
}

impl Facts {
    /// The bytes of a part.
    pub fn fill(&self, part: &mut [u8], start: u64) {
        payload::fill_range(part, start, self.put, self.key);
    }
}

/// Whether a record was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// It is being kept.
    Under,
    Yes,
    /// No, and it must never be found.
    No,
    /// No, because the disk failed: not found in this life, perhaps in the next one.
    Failed,
}

#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Entry {
    pub(super) facts: Facts,
    pub(super) kept: Kept,
    /// Removals and deletions that are under way, or whose outcome nobody knows.
    pub(super) going: u32,
    pub(super) removed: bool,
    pub(super) evicted: bool,
    /// By this eviction.
    pub(super) hidden: Option<u64>,
    /// Told as corrupt: not served again in this life.
    pub(super) bad: bool,
    /// When harm last hit it; 0: never.
    pub(super) harmed: u64,
    /// A write that was meant for another place hit it.
    pub(super) covered: bool,
    /// When a read of it last returned something else, in this life; 0: never.
    pub(super) stale: u64,
    /// The next opening may not find it, because harm lies before it in its file.
    pub(super) shadowed: bool,
    /// It was never told as kept, and a sync failed before its process ended: what shows it may be in the memory
    /// of the kernel only (S12).
    pub(super) unsure: bool,
    /// When something last happened to it.
    pub(super) changed: u64,
    /// When it last could be found, if it cannot be now.
    pub(super) until: u64,
    /// When it first began to go.
    pub(super) going_since: Option<u64>,
    /// Its keep.
    pub(super) keep: u64,
    /// An earlier keep of it failed with the disk, and may have left something.
    pub(super) failed_once: bool,
    /// The disk failed while it was kept or let go. Until the power fails nobody can tell what is on the disk: the
    /// kernel may show other bytes, and a later sync says that they are safe (S12).
    pub(super) doubted: bool,
    pub(super) footprint: Vec<Span>,
    /// Where it may lie, and no removal knows of it: an opening did not tell it, because a stale read showed free space
    /// there, or a write that was not synced covered it; or it was let go there, which harm hit, and kept again elsewhere.
    pub(super) overlooked: Vec<Span>,
}

impl Entry {
    /// It must be found.
    pub(super) fn sure(&self) -> bool {
        let whole = self.harmed == 0 && self.stale == 0 && !self.unsure;
        self.may() && self.kept == Kept::Yes && self.going == 0 && whole
    }

    /// It may be found.
    pub(super) fn may(&self) -> bool {
        matches!(self.kept, Kept::Yes | Kept::Under)
            && !self.removed
            && !self.evicted
            && self.hidden.is_none()
            && !self.bad
    }

    /// What is on the disk may be something else.
    pub(super) fn is_weak(&self) -> bool {
        self.harmed > 0 || self.unsure
    }

    /// It was let go.
    pub(super) fn is_gone(&self) -> bool {
        self.removed || self.evicted || self.kept == Kept::No
    }

    /// It was let go, and then harm hit it: where the former is bytes over the record, these may be gone.
    pub(super) fn was_let_go_before(&self, harm: u64) -> bool {
        self.is_gone() && harm > 0 && harm >= self.going_since.unwrap_or(0)
    }

    /// Something happens to it now: to be called before that.
    pub(super) fn touch(&mut self, now: u64) {
        if self.may() {
            self.until = now;
        }
        self.changed = now;
    }

    /// Takes down what hit these bytes of it.
    pub(super) fn hit(&mut self, harms: &[(u64, Harm)], since: u64, spans: &[Span]) {
        let later = harms.iter().rev().take_while(|(at, _)| *at > since);
        later
            .filter(|(_, harm)| meets(spans, &harm.span))
            .for_each(|(at, harm)| self.note(*at, harm));
    }

    pub(super) fn note(&mut self, at: u64, harm: &Harm) {
        let last = if is_stale(harm) { &mut self.stale } else { &mut self.harmed };
        *last = (*last).max(at);
        self.covered |= harm.fault == Fault::Misdirected;
    }
}
