//! The eviction policies, against versions so naive that they can be checked by eye.

use mooncrate_core::Slot;
use mooncrate_core::evict::{PolicyKind, UnknownPolicy, WALK_MAX};
use mooncrate_core::rng::Rng;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Slots from the oldest to the youngest, whether each was read, and SIEVE's hand as an index.
#[derive(Debug)]
struct Naive {
    kind: PolicyKind,
    queue: Vec<(Slot, bool)>,
    hand: usize,
}

impl Naive {
    fn new(kind: PolicyKind) -> Self {
        Self { kind, queue: Vec::new(), hand: 0 }
    }

    fn find(&self, slot: Slot) -> Option<usize> {
        self.queue.iter().position(|(other, _)| *other == slot)
    }

    fn insert(&mut self, slot: Slot) {
        if self.hand == self.queue.len() {
            // The hand fell off the young end; it starts over at the oldest, not at the newcomer.
            self.hand = 0;
        }
        self.queue.push((slot, false));
    }

    fn touch(&mut self, slot: Slot) {
        let Some(at) = self.find(slot) else { return };
        match self.kind {
            PolicyKind::Fifo => {}
            PolicyKind::Lru => {
                let entry = self.queue.remove(at);
                self.queue.push(entry);
            }
            PolicyKind::Sieve => self.queue[at].1 = true,
        }
    }

    fn remove(&mut self, slot: Slot) -> bool {
        let Some(at) = self.find(slot) else { return false };
        self.queue.remove(at);
        if self.hand > at {
            self.hand -= 1;
        }
        true
    }

    fn victim(&mut self) -> Option<Slot> {
        if self.queue.is_empty() {
            return None;
        }
        if self.kind != PolicyKind::Sieve {
            return Some(self.queue.remove(0).0);
        }
        let mut at = self.hand % self.queue.len();
        for _ in 0..WALK_MAX {
            if !self.queue[at].1 {
                break;
            }
            self.queue[at].1 = false;
            at = (at + 1) % self.queue.len();
        }
        self.hand = at;
        Some(self.queue.remove(at).0)
    }
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u32),
    Touch(u32),
    Remove(u32),
    Victim,
    /// A victim turns out to be pinned and goes back.
    Pinned,
}

fn any_op(slots: u32) -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..slots).prop_map(Op::Insert),
        4 => (0..slots + 10).prop_map(Op::Touch),
        1 => (0..slots + 10).prop_map(Op::Remove),
        2 => Just(Op::Victim),
        1 => Just(Op::Pinned),
    ]
}

fn agree(kind: PolicyKind, ops: &[Op]) -> Result<(), TestCaseError> {
    let (mut real, mut naive) = (kind.build(), Naive::new(kind));
    for op in ops {
        match *op {
            Op::Insert(slot) if naive.find(Slot(slot)).is_none() => {
                real.insert(Slot(slot));
                naive.insert(Slot(slot));
            }
            Op::Insert(slot) | Op::Touch(slot) => {
                real.touch(Slot(slot));
                naive.touch(Slot(slot));
            }
            Op::Remove(slot) => {
                prop_assert_eq!(real.remove(Slot(slot)), naive.remove(Slot(slot)));
            }
            Op::Victim | Op::Pinned => {
                let victim = real.victim();
                prop_assert_eq!(victim, naive.victim(), "{} after {:?}", kind, op);
                if let (Op::Pinned, Some(slot)) = (op, victim) {
                    real.insert(slot);
                    naive.insert(slot);
                }
            }
        }
        prop_assert_eq!(real.len(), naive.queue.len());
        prop_assert_eq!(real.is_empty(), naive.queue.is_empty());
    }
    while let Some(slot) = naive.victim() {
        prop_assert_eq!(real.victim(), Some(slot), "{} while emptied", kind);
    }
    prop_assert_eq!(real.victim(), None);
    Ok(())
}

proptest! {
    #[test]
    fn victims_come_in_the_order_of_the_naive_version(
        ops in prop::collection::vec(any_op(12), 0..400),
    ) {
        for kind in PolicyKind::ALL {
            agree(kind, &ops)?;
        }
    }

    /// More slots than the hand walks in one call.
    #[test]
    fn the_bounded_hand_agrees_too(
        size in WALK_MAX as u32 - 2..WALK_MAX as u32 * 3,
        ops in prop::collection::vec(any_op(WALK_MAX as u32 * 3), 0..64),
    ) {
        let fill = (0..size).map(Op::Insert).chain((0..size).map(Op::Touch));
        let all: Vec<Op> = fill.chain(ops).collect();
        agree(PolicyKind::Sieve, &all)?;
    }
}

#[test]
fn fifo_ignores_reads_lru_moves_and_sieve_spares_once() {
    let order = |kind: PolicyKind| {
        let mut policy = kind.build();
        (0..4).map(Slot).for_each(|slot| policy.insert(slot));
        policy.touch(Slot(0));
        policy.touch(Slot(2));
        std::iter::from_fn(move || policy.victim()).map(|slot| slot.0).collect::<Vec<_>>()
    };
    assert_eq!(order(PolicyKind::Fifo), [0, 1, 2, 3]);
    assert_eq!(order(PolicyKind::Lru), [1, 3, 0, 2]);
    assert_eq!(order(PolicyKind::Sieve), [1, 3, 0, 2]);
}

/// With every object read, a victim must still cost a bounded walk and not a whole turn.
#[test]
fn the_hand_stops_after_its_bound() {
    let mut sieve = PolicyKind::Sieve.build();
    let slots = WALK_MAX as u32 * 4;
    (0..slots).map(Slot).for_each(|slot| sieve.insert(slot));
    (0..slots).map(Slot).for_each(|slot| sieve.touch(slot));
    assert_eq!(sieve.victim(), Some(Slot(WALK_MAX as u32)));
}

#[test]
fn a_mark_does_not_survive_its_object() {
    let mut sieve = PolicyKind::Sieve.build();
    sieve.insert(Slot(5));
    sieve.touch(Slot(5));
    assert!(sieve.remove(Slot(5)));
    sieve.touch(Slot(5));
    // The slot holds another object now; the reads of the old one must not protect it.
    sieve.insert(Slot(5));
    sieve.insert(Slot(6));
    assert_eq!(sieve.victim(), Some(Slot(5)));
}

#[test]
fn inserting_twice_panics() {
    for kind in PolicyKind::ALL {
        let mut policy = kind.build();
        policy.insert(Slot(3));
        let twice = std::panic::AssertUnwindSafe(|| policy.insert(Slot(3)));
        assert!(std::panic::catch_unwind(twice).is_err(), "{kind} took slot 3 twice");
    }
}

#[test]
fn names_are_read_as_they_are_written() {
    for kind in PolicyKind::ALL {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    let wrong = "LRU".parse::<PolicyKind>().unwrap_err();
    assert_eq!(wrong, UnknownPolicy("LRU".into()));
    assert_eq!(wrong.to_string(), "there is no eviction policy \"LRU\"; choose fifo, lru or sieve");
}

#[test]
fn a_slot_costs_at_most_twelve_bytes() {
    for kind in PolicyKind::ALL {
        let mut policy = kind.build();
        let slots = 100_000;
        (0..slots).map(Slot).for_each(|slot| policy.insert(slot));
        let each = policy.heap_bytes() / slots as usize;
        assert!(each <= 12, "{kind}: {each} bytes per slot");
    }
}

/// Hits of a cache of `room` slots on a trace in which few keys are asked for often.
fn hits(kind: PolicyKind, seed: u64) -> usize {
    let (mut rng, mut policy, mut cached) = (Rng::new(seed), kind.build(), BTreeSet::new());
    let (room, mut hits) = (200, 0);
    for _ in 0..60_000 {
        // A product of uniform numbers is skewed as real asks are: three fifths of them go to a
        // tenth of the keys, and the tail is long.
        let key = (rng.below(1000) * rng.below(1000) * rng.below(4000) / 1_000_000) as u32;
        if cached.contains(&key) {
            hits += 1;
            policy.touch(Slot(key));
            continue;
        }
        if cached.len() == room {
            let victim = policy.victim().expect("the cache is full");
            assert!(cached.remove(&victim.0));
        }
        cached.insert(key);
        policy.insert(Slot(key));
    }
    hits
}

#[test]
fn sieve_hits_at_least_as_often_as_fifo_on_skewed_traces() {
    for seed in 0..5 {
        let [fifo, lru, sieve] = PolicyKind::ALL.map(|kind| hits(kind, seed));
        println!("seed {seed}: fifo {fifo}, lru {lru}, sieve {sieve} of 60000");
        assert!(sieve >= fifo && lru >= fifo, "fifo {fifo}, lru {lru}, sieve {sieve}");
    }
}
