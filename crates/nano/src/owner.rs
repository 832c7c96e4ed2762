//! A rank as the owner of its heap: it carries out the master's orders and frees what had to wait. Only the
//! owner ends lives; producers and readers of other ranks write, publish, pin and unpin by themselves.
//!
//! ```text
//! order Evict   Ready, no pins ─► Dead g+1                 told Freed
//! order Retire  Ready ─► Retiring ─ tick: pins gone ─► Dead g+1
//! order Abort   Writing ─► Failed g+1 ─ the producer fences itself, or is gone, and its GPU with it ─► Dead g+1
//! ```

use crate::error::NanoError;
use crate::reach::{Reach, Step, Stepped, Touch};
use mooncrate_core::plan::{Action, Notice, Order, OrderResult};
use mooncrate_core::state::Event;
use mooncrate_core::tally::Count;
use mooncrate_core::word::{Word, WordError};
use mooncrate_core::{Generation, Incarnation, LeaderEpoch, Now, ReplicaState, SegmentId, Slot};
use mooncrate_heap::{Rank, Ranks};
use mooncrate_lock::Mutex;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Duration;

/// Slots that one tick looks at, so that a tick stays short.
const TICK_SLOTS_MAX: usize = 1024;
const RECLAIM: Event = Event::Reclaim { pins: 0 };

/// What this rank offers to the cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offered {
    pub(crate) segment: SegmentId,
    pub(crate) incarnation: Incarnation,
    pub(crate) slots: u32,
    /// How long a producer may still store after its process has ended.
    pub(crate) grace: Duration,
}

#[derive(Debug)]
pub(crate) struct Owner {
    reach: Arc<dyn Reach>,
    offered: Offered,
    state: Mutex<State>,
    pub(crate) counts: Counts,
}

/// What became of lives in this heap.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// All that ended.
    pub(crate) freed: Count,
    /// Values that were evicted to make room.
    pub(crate) evicted: Count,
    /// Victims that were pinned.
    pub(crate) in_use: Count,
    /// Puts that were still being written when the master gave them up. Who gives up its own put has ended it before.
    pub(crate) rescued: Count,
}

#[derive(Debug, Default)]
struct State {
    /// The highest leader that was obeyed (G7).
    epoch: LeaderEpoch,
    /// Lives that wait for their end, by the slot they are in.
    waiting: BTreeMap<Slot, Waiting>,
    /// Where the next tick goes on.
    next: Slot,
    /// Ranks whose processes have ended.
    gone: BTreeMap<Rank, Ended>,
}

/// A process that has ended. Its pins are taken back at once, and again when its GPU has done its last step, too: a kernel
/// that was on its way may have pinned in between.
#[derive(Clone, Copy, Debug)]
struct Ended {
    since: Now,
    silent: bool,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// The life that the order named.
    ordered: Generation,
    why: Why,
}

#[derive(Clone, Copy, Debug)]
enum Why {
    /// Readers are inside, or were promised time until then.
    Retiring(Now),
    /// The producer may still store.
    Quarantined,
}

/// What an order means for a word.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// Nothing is left to do.
    Answer(OrderResult),
    /// One step.
    Step(Event),
    /// The life was planned and never begun: pass over it, so that a late producer is refused.
    Skip,
    /// The order is of another time.
    Refuse,
}

/// The one decision: what the word says, and which life shall end how.
fn next(word: Word, generation: Generation, action: Action) -> Next {
    if word.generation() > generation {
        let quarantined =
            word.state() == ReplicaState::Failed && Some(word.generation()) == generation.next();
        let over = OrderResult::Freed { next: word.generation() };
        return Next::Answer(if quarantined { OrderResult::Waiting } else { over });
    }
    if word.generation() < generation {
        return Next::Refuse;
    }
    match (word.state(), action) {
        (ReplicaState::Dead, _) => Next::Skip,
        (ReplicaState::Reserved | ReplicaState::Writing, _) => Next::Step(Event::Abort),
        (ReplicaState::Ready, Action::Evict) => Next::Step(RECLAIM),
        (ReplicaState::Ready, _) => Next::Step(Event::Unlink),
        (ReplicaState::Retiring, _) => Next::Answer(OrderResult::Waiting),
        // Quarantine of the life before: the one that was asked about has not begun.
        (ReplicaState::Failed, _) => Next::Refuse,
    }
}

impl Owner {
    pub(crate) fn new(reach: Arc<dyn Reach>, offered: Offered) -> Self {
        Self { reach, offered, state: Mutex::default(), counts: Counts::default() }
    }

    fn me(&self) -> Rank {
        self.reach.heap().rank()
    }

    fn steps(&self, steps: &[Step]) -> Result<Vec<Stepped>, NanoError> {
        if steps.is_empty() { Ok(Vec::new()) } else { self.reach.step(self.me(), steps) }
    }

    fn words(&self, slots: impl Iterator<Item = Slot>) -> Result<Vec<Word>, NanoError> {
        let slots: Vec<Slot> = slots.collect();
        if slots.is_empty() { Ok(Vec::new()) } else { self.reach.words(self.me(), &slots) }
    }

    /// Carries out orders of the leader of `epoch`; one notice per order that was obeyed. Orders of an older
    /// leader, or of another mount, give none.
    pub(crate) fn execute(
        &self,
        now: Now,
        epoch: LeaderEpoch,
        orders: &[Order],
    ) -> Result<Vec<Notice>, NanoError> {
        let mut state = self.state.lock();
        if epoch < state.epoch {
            return Ok(Vec::new());
        }
        state.epoch = epoch;
        let ours: Vec<&Order> = orders.iter().filter(|order| self.is_ours(order)).collect();
        let words = self.words(ours.iter().map(|order| order.slot))?;
        let (mut notices, mut stepping) = (Vec::with_capacity(ours.len()), Vec::new());
        for (order, word) in ours.into_iter().zip(words) {
            match next(word, order.generation, order.action) {
                Next::Answer(OrderResult::Waiting) => {
                    notices.push(self.wait(&mut state, now, order, word));
                }
                Next::Answer(result) => {
                    notices.push(self.notice(order.slot, order.generation, result));
                }
                Next::Step(event) => stepping.push((order, event)),
                Next::Skip => {
                    let next = self.skip(order)?;
                    if let Some(next) = next {
                        let freed = OrderResult::Freed { next };
                        notices.push(self.notice(order.slot, order.generation, freed));
                    }
                }
                Next::Refuse => {}
            }
        }
        let steps: Vec<Step> = stepping
            .iter()
            .map(|(order, event)| step(order.slot, order.generation, Touch::Apply(*event)))
            .collect();
        for ((order, event), stepped) in stepping.into_iter().zip(self.steps(&steps)?) {
            match stepped {
                Ok(word) if event == RECLAIM => {
                    self.counts.evicted.one();
                    let freed = OrderResult::Freed { next: word.generation() };
                    notices.push(self.notice(order.slot, order.generation, freed));
                }
                Ok(word) => {
                    if event == Event::Abort {
                        self.counts.rescued.one();
                    }
                    notices.push(self.wait(&mut state, now, order, word));
                }
                Err(WordError::Pinned { .. }) => {
                    self.counts.in_use.one();
                    notices.push(self.notice(order.slot, order.generation, OrderResult::Pinned));
                }
                // A producer or reader was faster. No notice: the master asks again.
                Err(WordError::Stale { .. }) => {}
            }
        }
        Ok(notices)
    }

    fn is_ours(&self, order: &Order) -> bool {
        (order.segment, order.incarnation) == (self.offered.segment, self.offered.incarnation)
            && order.slot.0 < self.offered.slots
    }

    /// Passes over a life that never began; `None`: it began meanwhile.
    fn skip(&self, order: &Order) -> Result<Option<Generation>, NanoError> {
        let mut generation = order.generation;
        for event in [Event::Reserve, Event::Abort, Event::Fence] {
            let one = step(order.slot, generation, Touch::Apply(event));
            match self.steps(&[one])?.remove(0) {
                Ok(word) => generation = word.generation(),
                Err(_) => return Ok(None),
            }
        }
        Ok(Some(generation))
    }

    /// Notes that a life waits for its end. A second order never shortens what the first one promised.
    fn wait(&self, state: &mut State, now: Now, order: &Order, word: Word) -> Notice {
        let mut due = match order.action {
            Action::Retire { free_after_ms } => {
                now.plus(Duration::from_millis(free_after_ms.into()))
            }
            Action::Evict | Action::Abort => now,
        };
        if let Some(Waiting { ordered, why: Why::Retiring(before) }) =
            state.waiting.get(&order.slot)
            && *ordered == order.generation
        {
            due = due.max(*before);
        }
        let why = if word.state() == ReplicaState::Failed {
            Why::Quarantined
        } else {
            Why::Retiring(due)
        };
        state.waiting.insert(order.slot, Waiting { ordered: order.generation, why });
        self.notice(order.slot, order.generation, OrderResult::Waiting)
    }

    /// Frees what may be freed by now: retiring slots without readers, and quarantined ones whose producer
    /// has fenced itself or stores no more. Takes back the pins of ranks that are gone.
    pub(crate) fn tick(&self, now: Now, gone: Ranks) -> Result<Vec<Notice>, NanoError> {
        let mut state = self.state.lock();
        for rank in gone.iter() {
            if let Entry::Vacant(place) = state.gone.entry(rank) {
                self.reach.reap(self.me(), rank)?;
                place.insert(Ended { since: now, silent: self.offered.grace.is_zero() });
            }
        }
        for (rank, ended) in &mut state.gone {
            if !ended.silent && ended.since.plus(self.offered.grace) <= now {
                self.reach.reap(self.me(), *rank)?;
                ended.silent = true;
            }
        }
        let silent = state.gone.iter().filter(|(_, ended)| ended.silent);
        let silent: Ranks = silent.map(|(rank, _)| *rank).collect();
        let from = state.next;
        let mut looked: Vec<(Slot, Waiting)> = state
            .waiting
            .range(from..)
            .chain(state.waiting.range(..from))
            .take(TICK_SLOTS_MAX)
            .map(|(slot, waiting)| (*slot, *waiting))
            .collect();
        state.next = looked.last().map_or(Slot(0), |(slot, _)| Slot(slot.0.wrapping_add(1)));
        looked.retain(|(_, waiting)| !matches!(waiting.why, Why::Retiring(due) if due > now));
        // Who retires is asked by the step itself.
        let quarantined =
            looked.iter().filter(|(_, waiting)| matches!(waiting.why, Why::Quarantined));
        let mut words = self.words(quarantined.map(|(slot, _)| *slot))?.into_iter();
        let mut steps = Vec::new();
        for (slot, waiting) in &looked {
            let (generation, event) = match waiting.why {
                Why::Retiring(_) => (waiting.ordered, RECLAIM),
                Why::Quarantined => {
                    let word = words.next().expect("a word for each that was asked for");
                    let after = waiting.ordered.next().unwrap_or(Generation::MAX);
                    if word == Word::new(after, ReplicaState::Failed, word.pins())
                        && !self.producer_is_silent(*slot, waiting.ordered, silent)?
                    {
                        continue;
                    }
                    (after, Event::Fence)
                }
            };
            steps.push((step(*slot, generation, Touch::Apply(event)), *waiting));
        }
        let only: Vec<Step> = steps.iter().map(|(step, _)| step.clone()).collect();
        let mut notices = Vec::new();
        for ((step, waiting), stepped) in steps.into_iter().zip(self.steps(&only)?) {
            let next = match stepped {
                Ok(word) => word.generation(),
                // The producer has fenced itself: the slot is dead, or has begun its next life already.
                Err(WordError::Stale { found, .. }) if found.generation() > waiting.ordered => {
                    found.generation()
                }
                Err(_) => continue,
            };
            state.waiting.remove(&step.slot);
            let freed = OrderResult::Freed { next };
            notices.push(self.notice(step.slot, waiting.ordered, freed));
        }
        Ok(notices)
    }

    /// Whether nobody can store to that life any more. A header that was written for another life does not tell
    /// who its producer is: then all others must be gone.
    fn producer_is_silent(
        &self,
        slot: Slot,
        life: Generation,
        silent: Ranks,
    ) -> Result<bool, NanoError> {
        if silent.is_empty() {
            return Ok(false);
        }
        let (header, world) = (self.reach.header(self.me(), slot)?, self.reach.heap().world());
        let producer = world.rank(header.producer_rank as usize);
        Ok(match producer.filter(|_| header.epoch == life.0) {
            Some(rank) => silent.has(rank),
            None => world.all().without(Ranks::only(self.me())).without(silent).is_empty(),
        })
    }

    fn notice(&self, slot: Slot, generation: Generation, result: OrderResult) -> Notice {
        if matches!(result, OrderResult::Freed { .. }) {
            self.counts.freed.one();
        }
        let Offered { segment, incarnation, .. } = self.offered;
        Notice { segment, incarnation, slot, generation, result }
    }

    /// Lives that wait for their end.
    pub(crate) fn waiting(&self) -> usize {
        self.state.lock().waiting.len()
    }
}

fn step(slot: Slot, generation: Generation, touch: Touch) -> Step {
    Step { slot, generation, touch }
}

#[cfg(test)]
#[path = "owner_tests.rs"]
mod tests;
