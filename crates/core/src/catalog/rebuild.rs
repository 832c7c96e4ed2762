//! The wait of a new leader: for nodes that the last one knew, and for what can still be read of their
//! earlier starts. Until it is over, an unknown key is not known to be absent (M9, C2).
//!
//! The fence: a node serves its memory until its serving lease ends, which it counts from the last heartbeat
//! that a leader acknowledged. A start that has ended stays readable for that long in mappings that nobody
//! can take back, and nobody announces what it holds. What must stay true: no leader takes a key for absent
//! before the fence of every start that could hold it. Leaders tell nodes, and nodes the next leader.
//!
//! ```text
//! takeover ─► serving leases of earlier leaders run (2.6 s) ─► nodes that have not come are not waited for
//!                                                            └► nodes that are announcing are, for a registration,
//!                                                               while they are heard
//! ```
//!
//! A node that comes later serves nothing before this leader lets it, and keeps what was not struck if the
//! durable list names it (`trust.rs`).

use super::Catalog;
use super::segments::Book;
use crate::ids::NodeId;
use crate::lease;
use crate::plan::SegmentOffer;
use crate::time::Now;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// When a span that another clock has measured is surely over; a span of nothing is over at once.
fn after(now: Now, span: Duration) -> Now {
    if span.is_zero() { now } else { now.plus(lease::guarded(span)) }
}

/// Nodes that a new leader still waits for.
#[derive(Clone, Debug)]
pub(super) struct Rebuild {
    expected: Vec<NodeId>,
    /// It is not known which nodes there are: until `fenced_at` any node may come.
    anybody: bool,
    /// Nodes that have not come by `fenced_at` were taken off.
    fenced: bool,
    /// Whether nodes may bring what they hold.
    believes: bool,
    /// Until when an earlier mount of a node may be readable, where that is not over.
    fences: BTreeMap<NodeId, Now>,
    /// Nodes that have announced before that time.
    told: Vec<NodeId>,
    /// Nodes that have mounted since it began, whether they are still here or not.
    pub(super) met: BTreeSet<NodeId>,
    /// From then on no mount that ended before the takeover can be read.
    fenced_at: Now,
    until: Now,
}

impl Rebuild {
    /// `listed`: whether disks are on the durable list. Then even a leader that waits for no node must
    /// take those off it that do not come.
    pub(super) fn new(
        expected: Vec<NodeId>,
        listed: bool,
        fenced_at: Now,
        until: Now,
    ) -> Option<Self> {
        let (fences, told, met) = (BTreeMap::new(), Vec::new(), BTreeSet::new());
        let waits = !expected.is_empty() || listed;
        waits.then_some(Self {
            expected,
            anybody: false,
            fenced: false,
            believes: true,
            fences,
            told,
            met,
            fenced_at,
            until,
        })
    }

    /// The wait of a leader that does not know whom to wait for.
    pub(super) fn of_anybody(fenced_at: Now, until: Now) -> Self {
        let (expected, fences, told) = (Vec::new(), BTreeMap::new(), Vec::new());
        let met = BTreeSet::new();
        Self {
            expected,
            anybody: true,
            fenced: false,
            believes: true,
            fences,
            told,
            met,
            fenced_at,
            until,
        }
    }

    /// The wait of a leader that took itself for the first one, and has met a node of an earlier one. It has
    /// taken keys for absent, so it believes none of them: it only waits for their leases to end.
    pub(super) fn of_strangers(fenced_at: Now) -> Self {
        Self { believes: false, ..Self::of_anybody(fenced_at, fenced_at) }
    }

    /// Whether any node may come.
    pub(super) fn of_any(&self) -> bool {
        self.anybody
    }

    fn expects(&self, node: NodeId) -> bool {
        self.anybody || self.expected.contains(&node)
    }

    /// A node has announced everything; whether all have.
    pub(super) fn announced(&mut self, node: NodeId) -> bool {
        if self.fences.contains_key(&node) {
            self.told.push(node);
        } else {
            self.expected.retain(|expected| *expected != node);
        }
        self.all_told()
    }

    fn all_told(&self) -> bool {
        self.expected.is_empty() && !self.anybody
    }

    /// How long the wait lasts at most, as far as that is known.
    pub(super) fn left_ms(&self, now: Now) -> u32 {
        let end = if self.fenced { self.until } else { self.fenced_at };
        lease::left_ms(now, end).max(1)
    }

    /// The serving leases of earlier leaders have ended: of the nodes that have not told everything only those
    /// are waited for that have come, and only while they tell.
    fn fence_passed(
        &mut self,
        here: impl Iterator<Item = NodeId>,
        telling: impl Fn(&NodeId) -> bool,
    ) {
        self.fenced = true;
        if std::mem::take(&mut self.anybody) {
            self.expected = here.collect();
        }
        self.expected.retain(telling);
    }

    /// Whether the wait is over: everybody has announced, or must have given up.
    pub(super) fn over(&mut self, now: Now) -> bool {
        self.fences.retain(|_, fenced_at| *fenced_at > now);
        let Self { expected, fences, told, .. } = self;
        told.retain(|node| {
            let waits = fences.contains_key(node);
            if !waits {
                expected.retain(|expected| expected != node);
            }
            waits
        });
        self.all_told() || now >= self.until
    }

    /// Until when an earlier mount of `node`, which the last leader knew, may be readable; `left`: for
    /// how long by the word of the node itself.
    fn fence(&mut self, now: Now, node: NodeId, left: Option<Duration>) -> Now {
        let unknown = if self.expects(node) { self.fenced_at } else { now };
        let until = left.map_or(unknown, |left| after(now, left)).min(self.fenced_at);
        if until > now {
            self.fences.insert(node, until);
        } else {
            self.fences.remove(&node);
        }
        until
    }
}

impl Catalog {
    /// Looks whether the wait is over.
    pub(super) fn watch_rebuild(&mut self, now: Now) {
        let lapses_after = self.lapses_after();
        let Self { rebuild: Some(rebuild), nodes, segments, .. } = self else { return };
        if now >= rebuild.fenced_at {
            let open = |id| segments.find(id).is_some_and(|index| segments.book(index).is_open());
            let telling = |node: &NodeId| {
                nodes.get(node).is_some_and(|member| {
                    now.since(member.last_heard) < lapses_after
                        && !member.segments.iter().all(|id| open(*id))
                })
            };
            rebuild.fence_passed(nodes.keys().copied(), telling);
        }
        if rebuild.over(now) {
            self.end_rebuild();
        }
    }

    /// All nodes have announced, or must have given up: the wait is over, unless a disk of the list may still come,
    /// or the next leader could believe one that has not. A node that stopped in order is not waited for; its disks are.
    pub(super) fn end_rebuild(&mut self) {
        let in_time = self.rebuild.as_ref().is_some_and(|rebuild| !rebuild.fenced);
        if !(in_time && self.ledger.awaits_disk()) && self.may_end_rebuild() {
            self.rebuild = None;
        }
    }

    /// How long an earlier mount of a node that mounts now may still be readable in shared memory, under
    /// keys that nobody will announce: until then its announcement alone does not prove that an unknown
    /// key is absent. `left` is what the node says of that, by the word of an earlier leader; `None`: no
    /// leader has told it yet. The answer is for the node to pass on to the next leader.
    ///
    /// A leader that waits for nobody knows all mounts there were: one that it has not seen leave is over.
    pub fn fence(&mut self, now: Now, node: NodeId, left: Option<Duration>) -> Duration {
        let told = match &mut self.rebuild {
            Some(rebuild) => rebuild.fence(now, node, left),
            None => left.map_or(now, |left| after(now, left)),
        };
        let own = self.segments.iter().filter(|(_, book)| book.offer.node == node);
        let leaving = own.filter_map(|(_, book)| book.fenced_at());
        leaving.fold(told, Now::max).since(now)
    }

    /// Whether the owner of this memory may bring all its objects along: unknown keys still count as perhaps
    /// there, the last leader may have known the owner, and cannot have given it up. Later its keys may have
    /// other values already, while readers that kept a locator still find the old ones (C2).
    pub(super) fn awaited(&self, offer: &SegmentOffer) -> bool {
        let rebuild = self.rebuild.as_ref();
        let expected = |rebuild: &Rebuild| rebuild.believes && rebuild.expects(offer.node);
        !offer.evidence.lapsed && rebuild.is_some_and(expected)
    }

    /// Nodes that may hold objects, in order: those that are mounted, those that a rebuild still waits
    /// for, and those of which a mount that is over can still be read. A leader that comes before they
    /// have announced must wait for them, too (M9).
    pub fn holders(&self) -> Vec<NodeId> {
        let awaited = self.rebuild.iter().flat_map(|rebuild| &rebuild.expected).copied();
        let readable = |book: &Book| book.fenced_at().is_some_and(|at| at > self.last_tick);
        let leaving = self.segments.iter().filter(|(_, book)| readable(book));
        let leaving = leaving.map(|(_, book)| book.offer.node);
        let mut holders: Vec<NodeId> =
            self.nodes.keys().copied().chain(awaited).chain(leaving).collect();
        holders.sort_unstable();
        holders.dedup();
        holders
    }
}
