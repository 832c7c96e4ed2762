//! The eviction policies, against versions so naive that they can be checked by eye.

mod naive;

use mooncrate_core::Slot;
use mooncrate_core::evict::{PolicyKind, RANKS, UnknownPolicy, WALK_MAX, Worth};
use mooncrate_core::rng::Rng;
use naive::Judged;
use proptest::prelude::*;
use std::collections::BTreeSet;

#[derive(Clone, Debug)]
enum Op {
    Insert(u32),
    InsertAs(u32, Worth),
    Touch(u32),
    Remove(u32),
    /// A candidate is named and stays.
    Next,
    Victim,
    /// A victim turns out to be pinned and goes back.
    Pinned,
}

/// Few keys, so that evicted ones come back; ranks beyond the highest, too.
fn any_worth() -> impl Strategy<Value = Worth> {
    (0..20u64, 0..RANKS + 3).prop_map(|(key, rank)| Worth { key, rank })
}

fn any_op(slots: u32) -> impl Strategy<Value = Op> {
    prop_oneof![
        1 => (0..slots).prop_map(Op::Insert),
        4 => (0..slots, any_worth()).prop_map(|(slot, worth)| Op::InsertAs(slot, worth)),
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
                naive.insert(Slot(slot), None);
            }
            Op::InsertAs(slot, worth) if !naive.slots().contains(&Slot(slot)) => {
                real.insert_as(Slot(slot), worth);
                naive.insert(Slot(slot), Some(worth));
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
                    let worth = Worth { key: slot.0.into(), rank: slot.0 };
                    real.insert_as(slot, worth);
                    naive.insert(slot, Some(worth));
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

    /// Forty slots: a small queue of four, and ghosts for thirty-six keys.
    #[test]
    fn victims_come_in_that_order_from_a_larger_cache_too(
        ops in prop::collection::vec(any_op(40), 0..800),
    ) {
        for judged in Judged::ALL {
            agree(judged, &ops)?;
        }
    }

    /// More slots than one call passes over, and all of them were read.
    #[test]
    fn the_bounded_walk_agrees_too(
        size in WALK_MAX as u32 - 2..WALK_MAX as u32 * 3,
        ops in prop::collection::vec(any_op(WALK_MAX as u32 * 3), 0..64),
    ) {
        let reads = (0..size).chain(0..size).map(Op::Touch);
        let all: Vec<Op> = (0..size).map(Op::Insert).chain(reads).chain(ops).collect();
        agree(Judged::Kind(PolicyKind::Sieve), &all)?;
        agree(Judged::Kind(PolicyKind::S3Fifo), &all)?;
    }

    /// Whatever is read, named, put in and taken out meanwhile: a slot that is a candidate during a whole
    /// round is met in it. SIEVE may begin at its hand, and then needs the next round for the rest.
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
                let worth = Worth { key: slot.0.into(), rank: slot.0 % 7 };
                policy.insert_as(*slot, worth);
                if n < 12 {
                    policy.insert_as(Slot(n), worth);
                }
            }
            let (mut ops, mut met) = (ops.iter(), Vec::new());
            let mut rounds = if judged == Judged::Kind(PolicyKind::Sieve) { 2 } else { 1 };
            while rounds > 0 {
                let Some((slot, _)) = policy.ahead() else {
                    rounds -= 1;
                    continue;
                };
                let there = slot.0 >= 100 || inside.contains(&slot.0);
                prop_assert!(there, "{:?} met {:?}, which is no candidate", judged, slot);
                met.push(slot);
                match ops.next() {
                    Some(Op::Insert(slot)) if inside.insert(*slot) => policy.insert(Slot(*slot)),
                    Some(Op::InsertAs(slot, worth)) if inside.insert(*slot) => {
                        policy.insert_as(Slot(*slot), *worth);
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

    /// If nothing changes, each candidate is met once, by FIFO, LRU and ranks in the order of the evictions.
    #[test]
    fn a_quiet_walk_ahead_meets_everybody_once(ops in prop::collection::vec(any_op(40), 0..200)) {
        for judged in Judged::ALL {
            let (mut policy, mut naive) = (judged.build(), judged.naive());
            for op in &ops {
                match *op {
                    Op::InsertAs(slot, worth) if !naive.slots().contains(&Slot(slot)) => {
                        policy.insert_as(Slot(slot), worth);
                        naive.insert(Slot(slot), Some(worth));
                    }
                    Op::Touch(slot) => policy.touch(Slot(slot)),
                    _ => {}
                }
            }
            let met: Vec<Slot> = std::iter::from_fn(|| policy.ahead()).map(|met| met.0).collect();
            let distinct: BTreeSet<u32> = met.iter().map(|slot| slot.0).collect();
            prop_assert_eq!((met.len(), distinct.len()), (policy.len(), policy.len()));
            if let Judged::Kind(PolicyKind::Fifo | PolicyKind::Lru) | Judged::Ranked = judged {
                let evicted: Vec<Slot> = std::iter::from_fn(|| policy.victim()).collect();
                prop_assert_eq!(met, evicted, "{:?}", judged);
            }
        }
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

/// A slot of the small queue needs two reads to stay, and one of main one.
#[test]
fn s3fifo_keeps_what_is_read_twice() {
    let mut policy = PolicyKind::S3Fifo.build();
    (0..4).map(Slot).for_each(|slot| policy.insert(slot));
    for slot in [0, 0, 2] {
        policy.touch(Slot(slot));
    }
    assert_eq!(policy.victim(), Some(Slot(1)), "slot 0 has moved to main");
    assert_eq!(policy.victim(), Some(Slot(2)), "one read is not enough");
    assert_eq!([policy.victim(), policy.victim()], [Some(Slot(3)), Some(Slot(0))]);
}

/// A slot alone in main gets its second chance in place: taken out and put back, it would be behind the walk
/// ahead that was about to meet it.
#[test]
fn the_walk_ahead_meets_a_slot_that_is_spared_alone() {
    let mut policy = PolicyKind::S3Fifo.build();
    for slot in [1, 0] {
        policy.insert(Slot(slot));
        policy.touch(Slot(slot));
        policy.touch(Slot(slot));
    }
    assert_eq!(policy.next(), Some(Slot(1)), "both have moved to main");
    assert_eq!(policy.ahead(), Some((Slot(1), false)));
    assert!(policy.remove(Slot(1)));
    policy.touch(Slot(0));
    assert_eq!(policy.next(), Some(Slot(0)), "spared once, and nobody else is there");
    assert_eq!(policy.ahead(), Some((Slot(0), false)));
    assert_eq!(policy.ahead(), None);
}

/// The point of the ghost: what comes back soon after its eviction is no newcomer, whichever slot it has now.
#[test]
fn s3fifo_recognises_what_it_evicted_a_short_while_ago() {
    let of = |key| Worth { key, ..Worth::default() };
    let mut policy = PolicyKind::S3Fifo.build();
    (0..20).for_each(|n| policy.insert_as(Slot(n), of(n.into())));
    assert_eq!(policy.victim(), Some(Slot(0)));
    policy.insert_as(Slot(50), of(0));
    // Slot 50 is in main; all the others are newcomers and go before it, while they are a tenth or more.
    let order: Vec<Slot> = std::iter::from_fn(|| policy.victim()).collect();
    assert_eq!(order[..19], (1..20).map(Slot).collect::<Vec<_>>());
    assert_eq!(order[19], Slot(50));
    // A removal that is no eviction leaves no ghost.
    let mut policy = PolicyKind::S3Fifo.build();
    (0..20).for_each(|n| policy.insert_as(Slot(n), of(n.into())));
    assert!(policy.remove(Slot(7)));
    policy.insert_as(Slot(50), of(7));
    assert_eq!(std::iter::from_fn(|| policy.victim()).last(), Some(Slot(50)));
    assert_eq!(policy.next(), None);
}

#[test]
fn ranks_go_from_the_lowest_and_beyond_the_highest_is_the_highest() {
    let mut policy = Judged::Ranked.build();
    for (slot, rank) in [(0, 63), (1, 5), (2, 900), (3, 0), (4, 5)] {
        policy.insert_as(Slot(slot), Worth { key: 0, rank });
    }
    policy.insert(Slot(5));
    policy.touch(Slot(1));
    policy.touch(Slot(3));
    let order: Vec<u32> = std::iter::from_fn(|| policy.victim()).map(|slot| slot.0).collect();
    assert_eq!(order, [5, 3, 4, 1, 0, 2]);
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

/// The same for S3-FIFO: so many move to main, and the next one goes although it was read.
#[test]
fn second_chances_stop_after_their_bound() {
    let mut policy = PolicyKind::S3Fifo.build();
    let slots = WALK_MAX as u32 * 4;
    (0..slots).map(Slot).for_each(|slot| policy.insert(slot));
    for _ in 0..3 {
        (0..slots).map(Slot).for_each(|slot| policy.touch(slot));
    }
    assert_eq!(policy.victim(), Some(Slot(WALK_MAX as u32)));
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
    for judged in Judged::ALL {
        for worth in [None, Some(Worth::default())] {
            let mut policy = judged.build();
            policy.insert(Slot(3));
            let twice = std::panic::AssertUnwindSafe(|| match worth {
                None => policy.insert(Slot(3)),
                Some(worth) => policy.insert_as(Slot(3), worth),
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
    let said = "there is no eviction policy \"LRU\"; choose fifo, lru, sieve, s3fifo or density";
    assert_eq!(wrong.to_string(), said);
}

#[test]
fn a_slot_costs_as_much_as_the_table_says() {
    for judged in Judged::ALL {
        let mut policy = judged.build();
        let slots = 100_000;
        for slot in 0..slots {
            policy.insert_as(Slot(slot), Worth { key: slot.into(), rank: 1 });
        }
        let at_most = match judged {
            Judged::Kind(PolicyKind::Fifo | PolicyKind::Lru | PolicyKind::Density) => 8,
            Judged::Kind(PolicyKind::Sieve) | Judged::Ranked => 9,
            Judged::Kind(PolicyKind::S3Fifo) => {
                // The first eviction brings the memory for ghosts.
                let slot = policy.victim().unwrap();
                policy.insert(slot);
                28
            }
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
        policy.insert_as(Slot(key), Worth { key: key.into(), rank: 0 });
    }
    hits
}

#[test]
fn skewed_traces_favour_policies_that_look_at_reads() {
    for seed in 0..5 {
        let [fifo, lru, sieve, s3fifo] = PolicyKind::ALONE.map(|kind| hits(kind, seed));
        println!("seed {seed}: fifo {fifo}, lru {lru}, sieve {sieve}, s3fifo {s3fifo} of 60000");
        assert!(sieve >= fifo && lru >= fifo, "fifo {fifo}, lru {lru}, sieve {sieve}");
        assert!(s3fifo >= lru, "s3fifo {s3fifo}, lru {lru}");
    }
}
