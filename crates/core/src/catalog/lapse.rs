//! Keys of nodes whose serving lease has ended while they are still registered: a process that is dead, stopped or
//! cut off.
//!
//! ```text
//! last heartbeat ─► serving lease (2.5 s, guarded) ─► lapsed: reads miss, single keys can be given up
//!                └► registration (20 s, guarded) ───────────────────────────────► gone as a whole
//! ```
//!
//! A node whose serving lease has ended (*lapsed*) answers no read. If a value cannot be read without that node, a put
//! or a remove of its key does not wait for the node. The key is *struck*: the order to free the copy stays booked, and
//! the caller gets its answer. Live nodes that hold other stripes or copies of the value free theirs first; the key
//! waits for them. Every other value of the lapsed node is kept, and is readable again when the node is back.
//!
//! What must stay true (C2, G6):
//! * The node gets no serving lease before it has ended every copy that was struck ([`Catalog::may_serve`]).
//! * No later leader believes the segment meanwhile: it is off the durable list before the first key is struck.
//!   A node that comes to a leader without a list says that its lease has ended ([`Evidence::lapsed`]), and
//!   starts over empty.
//!
//! [`Evidence::lapsed`]: crate::plan::Evidence::lapsed

use super::Catalog;
use super::objects::{EntryId, Part, PartState, SegmentIndex, Stage};
use super::trust::Trusted;
use crate::canary::{self, Canary};
use crate::ids::{NodeId, Slot};
use crate::lease;
use crate::time::Now;
use std::time::Duration;

/// Orders of one lapsed segment that are struck in one tick (G13).
const STRIKES_MAX: usize = 4096;

impl Catalog {
    /// How long after it was last heard a node surely serves nobody.
    pub(super) fn lapses_after(&self) -> Duration {
        if canary::on(Canary::LapsesAtOnce) {
            return self.config.silent_after / 4;
        }
        lease::guarded(self.config.serve_lease)
    }

    /// The serving lease of a node has surely ended, or the node was heard again.
    pub(super) fn set_lapsed(&mut self, node: NodeId, lapsed: bool) {
        let Some(member) = self.nodes.get_mut(&node) else { return };
        member.lapsed = lapsed;
        for id in &member.segments {
            if let Some(index) = self.segments.find(*id) {
                self.segments.book_mut(index).lapsed = lapsed;
            }
        }
    }

    /// Whether a finished object cannot be read now: some of it is on lapsed nodes, is still being copied, or was never
    /// announced. The owners of all its parts take orders, so everything can be freed. A part whose eviction is ordered
    /// counts as readable: its owner may keep it.
    pub(super) fn is_cut_off(&self, id: EntryId) -> bool {
        let entry = self.objects.entry(id);
        let book = |part: &Part| self.segments.book(part.segment);
        let there = |part: &Part| part.state != PartState::Copying && !book(part).lapsed;
        let mut parts = entry.parts.as_slice().iter();
        entry.stage == Stage::Ready
            && !entry.complete(there)
            && parts.all(|part| book(part).takes_orders())
    }

    /// Frees an object that cannot be read. Its key is free when the live owners have answered. False: a segment must
    /// leave the durable list first.
    pub(super) fn give_up(&mut self, now: Now, id: EntryId) -> bool {
        let parts = self.objects.entry(id).parts.as_slice().iter();
        let lapsed = parts.filter(|part| self.segments.book(part.segment).lapsed);
        let lapsed: Vec<(SegmentIndex, Slot)> = lapsed.map(Part::slot_of).collect();
        let unlisted = lapsed.iter().map(|(index, _)| self.take_off_list(*index));
        // All of them, so that one write is enough.
        if unlisted.filter(|off| !off).count() > 0 {
            return false;
        }
        self.objects.entry_mut(id).extra_mut().given_up = true;
        self.retire(now, id);
        for (index, slot) in lapsed {
            self.strike_ending(index, slot);
        }
        true
    }

    /// Orders that are out to a lapsed segment, and for which a call waits: their keys are struck, some at a time.
    pub(super) fn strike_endings(&mut self, index: SegmentIndex) {
        let book = self.segments.book(index);
        if !book.lapsed || book.awaited.is_empty() || !self.take_off_list(index) {
            return;
        }
        let awaited = self.segments.book(index).awaited.iter().take(STRIKES_MAX);
        for slot in awaited.copied().collect::<Vec<_>>() {
            self.lapse_looks += 1;
            self.strike_ending(index, slot);
        }
    }

    /// The copy in a slot counts as gone, and withholds the serving lease of its node until it is.
    fn strike_ending(&mut self, index: SegmentIndex, slot: Slot) {
        let book = self.segments.book_mut(index);
        // What its owner has settled was answered for, and nobody can begin to read it.
        let Some(ending) = book.ending.get_mut(&slot).filter(|ending| !ending.settled) else {
            return;
        };
        let removing = ending.removing.take();
        book.awaited.remove(&slot);
        if !ending.struck {
            ending.struck = true;
            book.struck += 1;
            self.counters.lapsed_struck += 1;
        }
        self.acknowledge(removing);
    }

    /// Whether no later leader can believe a segment. If one could, the list is to be written without it.
    fn take_off_list(&mut self, index: SegmentIndex) -> bool {
        let told = Trusted::of(&self.segments.book(index).offer);
        let listed = self.ledger.lists(&told);
        if listed {
            self.ledger.doubt(told);
        }
        !listed || canary::on(Canary::DiskBelievedTooLong)
    }
}
