//! The eviction policies, against versions so naive that they can be checked by eye.

mod naive;

use mooncrate_core::Slot;
use mooncrate_core::evict::{PolicyKind, RANKS, UnknownPolicy};
use mooncrate_core::rng::Rng;
use naive::Judged;
use proptest::prelude::*;
use std::collections::BTreeSet;

#[derive(Clone, Debug)]
enum Op {
    Insert(u32),
    InsertAs(u32, u32),
    Touch(u32),
    Remove(u32),
    /// A candidate is named and stays.
    Next,
    Victim,
    /// A victim turns out to be pinned and goes back.
    Pinned,
}

/// Ranks beyond the highest, too.
fn any_rank() -> impl Strategy<Value = u32> {
    0..RANKS + 3
}

fn any_op(slots: u32) -> impl Strategy<Value = Op> {
    prop_oneof![
        1 => (0..slots).prop_map(Op::Insert),
        4 => (0..slots, any_rank()).prop_map(|(slot, rank)| Op::InsertAs(slot, rank)),
        4 => (0..slots + 10).prop_map(Op::Touch),
        1 => (0..slots + 10).prop_map(Op::Remove),
        1 => Just(Op::Next),
        2 => Just(Op::Victim),
        1 => Just(Op::Pinned),
    ]
}

fn agree(judged: Judged, ops: &[Op]) -> Result<(), TestCaseError> {
    let (mut real, mut naive) = (judged.build(), judged.naive());
    for op in ops {
        match *op {
            Op::Insert(slot) if !naive.slots().contains(&Slot(slot)) => {
                real.insert(Slot(slot));
                naive.insert(Slot(slot), 0);
            }
            Op::InsertAs(slot, rank) if !naive.slots().contains(&Slot(slot)) => {
                real.insert_as(Slot(slot), rank);
                naive.insert(Slot(slot), rank);
            }
            Op::Insert(slot) | Op::InsertAs(slot, _) | Op::Touch(slot) => {
                real.touch(Slot(slot));
                naive.touch(Slot(slot));
            }
            Op::Remove(slot) => {
                prop_assert_eq!(real.remove(Slot(slot)), naive.remove(Slot(slot)));
            }
            Op::Next => prop_assert_eq!(real.next(), naive.next(), "{:?}", judged),
            Op::Victim | Op::Pinned => {
                let victim = real.victim();
                prop_assert_eq!(victim, naive.next(), "{:?} after {:?}", judged, op);
                let Some(slot) = victim else { continue };
                prop_assert!(naive.remove(slot));
                if let Op::Pinned = op {
                    real.insert_as(slot, slot.0);
                    naive.insert(slot, slot.0);
                }
            }
        }
        prop_assert_eq!(real.len(), naive.slots().len());
        prop_assert_eq!(real.is_empty(), naive.slots().is_empty());
    }
    while let Some(slot) = naive.next() {
        prop_assert!(naive.remove(slot));
        prop_assert_eq!(real.victim(), Some(slot), "{:?} while emptied", judged);
    }
    prop_assert_eq!(real.victim(), None);
    Ok(())
}

proptest! {
    #[test]
    fn victims_come_in_the_order_of_the_naive_version(
        ops in prop::collection::vec(any_op(12), 0..400),
    ) {
        for judged in Judged::ALL {
            agree(judged, &ops)?;
        }
    }

    /// Whatever is read, named, put in and taken out meanwhile: a slot that is a candidate during a whole
    /// round is met in it.
    #[test]
    fn the_walk_ahead_meets_everybody_who_stays(
        size in 1..30u32,
        ops in prop::collection::vec(any_op(12), 0..200),
    ) {
        for judged in Judged::ALL {
            let mut policy = judged.build();
            // Slots from 100 on stay; those below 12 come and go, and some stand between the others.
            let stays: Vec<Slot> = (0..size).map(|n| Slot(100 + n)).collect();
            let mut inside: BTreeSet<u32> = (0..size.min(12)).collect();
            for (n, slot) in (0..).zip(&stays) {
                let rank = slot.0 % 7;
                policy.insert_as(*slot, rank);
                if n < 12 {
                    policy.insert_as(Slot(n), rank);
                }
            }
            let (mut ops, mut met) = (ops.iter(), Vec::new());
            while let Some(slot) = policy.ahead() {
                let there = slot.0 >= 100 || inside.contains(&slot.0);
                prop_assert!(there, "{:?} met {:?}, which is no candidate", judged, slot);
                met.push(slot);
                match ops.next() {
                    Some(Op::Insert(slot)) if inside.insert(*slot) => policy.insert(Slot(*slot)),
                    Some(Op::InsertAs(slot, rank)) if inside.insert(*slot) => {
                        policy.insert_as(Slot(*slot), *rank);
                    }
                    Some(Op::Touch(n)) => policy.touch(stays[*n as usize % stays.len()]),
                    Some(Op::Remove(slot)) => {
                        prop_assert_eq!(policy.remove(Slot(*slot)), inside.remove(slot));
                    }
                    Some(_) => drop(policy.next()),
                    None => {}
                }
            }
            for slot in &stays {
                prop_assert!(met.contains(slot), "{:?} did not meet {:?}", judged, slot);
            }
        }
    }

    /// If nothing changes, each candidate is met once, in the order of the evictions.
    #[test]
    fn a_quiet_walk_ahead_meets_everybody_once(ops in prop::collection::vec(any_op(40), 0..200)) {
        for judged in Judged::ALL {
            let (mut policy, mut naive) = (judged.build(), judged.naive());
            for op in &ops {
                match *op {
                    Op::InsertAs(slot, rank) if !naive.slots().contains(&Slot(slot)) => {
                        policy.insert_as(Slot(slot), rank);
                        naive.insert(Slot(slot), rank);
                    }
                    Op::Touch(slot) => policy.touch(Slot(slot)),
                    _ => {}
                }
            }
            let met: Vec<Slot> = std::iter::from_fn(|| policy.ahead()).collect();
            let distinct: BTreeSet<u32> = met.iter().map(|slot| slot.0).collect();
            prop_assert_eq!((met.len(), distinct.len()), (policy.len(), policy.len()));
            let evicted: Vec<Slot> = std::iter::from_fn(|| policy.victim()).collect();
            prop_assert_eq!(met, evicted, "{:?}", judged);
        }
    }
}

#[test]
fn fifo_ignores_reads_and_lru_moves() {
    let order = |kind: PolicyKind| {
        let mut policy = kind.build();
        (0..4).map(Slot).for_each(|slot| policy.insert(slot));
        policy.touch(Slot(0));
        policy.touch(Slot(2));
        std::iter::from_fn(move || policy.victim()).map(|slot| slot.0).collect::<Vec<_>>()
    };
    assert_eq!(order(PolicyKind::Fifo), [0, 1, 2, 3]);
    assert_eq!(order(PolicyKind::Lru), [1, 3, 0, 2]);
}

#[test]
fn ranks_go_from_the_lowest_and_beyond_the_highest_is_the_highest() {
    let mut policy = Judged::Ranked.build();
    for (slot, rank) in [(0, 63), (1, 5), (2, 900), (3, 0), (4, 5)] {
        policy.insert_as(Slot(slot), rank);
    }
    policy.insert(Slot(5));
    policy.touch(Slot(1));
    policy.touch(Slot(3));
    let order: Vec<u32> = std::iter::from_fn(|| policy.victim()).map(|slot| slot.0).collect();
    assert_eq!(order, [5, 3, 4, 1, 0, 2]);
}

#[test]
fn inserting_twice_panics() {
    for judged in Judged::ALL {
        for rank in [None, Some(0)] {
            let mut policy = judged.build();
            policy.insert(Slot(3));
            let twice = std::panic::AssertUnwindSafe(|| match rank {
                None => policy.insert(Slot(3)),
                Some(rank) => policy.insert_as(Slot(3), rank),
            });
            assert!(std::panic::catch_unwind(twice).is_err(), "{judged:?} took slot 3 twice");
        }
    }
}

#[test]
fn names_are_read_as_they_are_written() {
    for kind in PolicyKind::ALL {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    let wrong = "LRU".parse::<PolicyKind>().unwrap_err();
    assert_eq!(wrong, UnknownPolicy("LRU".into()));
    let said = "there is no eviction policy \"LRU\"; choose density, lru or fifo";
    assert_eq!(wrong.to_string(), said);
}

#[test]
fn a_slot_costs_as_much_as_the_table_says() {
    for judged in Judged::ALL {
        let mut policy = judged.build();
        let slots = 100_000;
        for slot in 0..slots {
            policy.insert_as(Slot(slot), 1);
        }
        let at_most = match judged {
            Judged::Kind(_) => 8,
            Judged::Ranked => 9,
        };
        let each = policy.heap_bytes() / slots as usize;
        assert!(each <= at_most, "{judged:?}: {each} bytes per slot");
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
fn skewed_traces_favour_policies_that_look_at_reads() {
    for seed in 0..5 {
        let [fifo, lru] = [PolicyKind::Fifo, PolicyKind::Lru].map(|kind| hits(kind, seed));
        println!("seed {seed}: fifo {fifo}, lru {lru} of 60000");
        assert!(lru >= fifo, "fifo {fifo}, lru {lru}");
    }
}
