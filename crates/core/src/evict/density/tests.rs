//! The learned density against its naive definition and against LRU, the sample of keys, the choice of leaves.

use super::leaves::REMEMBERED;
use super::*;
use crate::evict::PolicyKind;
use crate::ids::Slot;
use crate::rng::Rng;
use proptest::prelude::*;

fn at(key: u64, now: u32) -> Use {
    Use { key, depth: 30, blocks: 60, now }
}

#[test]
fn bins_follow_each_other_and_begin_where_they_say() {
    for bin_of in 0..BINS {
        assert_eq!(bin(start(bin_of)), bin_of);
        assert_eq!(bin(start(bin_of + 1) - 1), bin_of);
    }
    assert_eq!(bin(AGE_MASK), BINS - 1);
}

#[test]
fn a_usage_keeps_what_it_was_made_of() {
    let usage = Usage::new(AGE_MASK + 3, USES_MAX, 8);
    assert_eq!((usage.last(), usage.uses(), usage.class()), (2, USES_MAX, CLASSES - 1));
    assert_eq!(usage.age(AGE_MASK + 10), 7);
    assert_eq!(Usage::new(AGE_MASK, 0, 0).age(AGE_MASK + 3), 3, "request numbers may wrap");
}

#[test]
fn places_tell_the_head_and_the_end_of_a_request() {
    assert_eq!([place(0, 1), place(0, 100), place(99, 100), place(50, 100)], [0, 6, 2, 8]);
    assert!((0..40).all(|depth| (place(depth, 40) as usize) < PLACES));
}

/// Before anything was counted the order is that of LRU, in each class.
#[test]
fn without_counts_the_older_block_is_worth_less() {
    let density = Density::new(1000);
    for uses in [0, 1, 2, 5, 127] {
        for place in 0..PLACES as u32 {
            let worth = |age: u32| {
                density.learned().worth(Usage::new(1 << 20, uses, place), (1 << 20) + age)
            };
            for age in 0..5000 {
                assert!(worth(age) > worth(age + 1), "{uses} uses, place {place}, age {age}");
            }
        }
    }
}

proptest! {
    /// The naive definition: the best ratio of hits to time over all ends, by trying each end.
    #[test]
    fn densities_are_the_best_over_all_horizons(
        chances in proptest::collection::vec(prop_oneof![Just(0.0_f32), 0.0_f32..1.0], BINS),
    ) {
        let chances: [f32; BINS] = chances.try_into().expect("a chance for each bin");
        let fast = densities(&chances);
        for (from, fast) in fast.iter().enumerate() {
            let (mut hits, mut time, mut left, mut best) = (0.0_f64, 0.0_f64, 1.0_f64, 0.0_f64);
            for (bin, chance) in chances.iter().enumerate().skip(from) {
                let chance = f64::from(*chance);
                hits += left * chance;
                time += left * (1.0 - chance / 2.0) * f64::from(start(bin + 1) - start(bin));
                left *= 1.0 - chance;
                best = best.max(hits / time);
            }
            let error = (f64::from(*fast) - best).abs();
            prop_assert!(error <= 1e-4 * best + 1e-12, "bin {from}: {fast} and {best}");
        }
    }
}

/// Keys of one class come back after 100 requests, those of the other never do.
#[test]
fn what_comes_back_is_worth_more_than_what_does_not() {
    let mut density = Density::new(1000);
    let mut back = [Usage::default(); 100];
    let mut scanned = Usage::default();
    for now in 1..20_000_u32 {
        let slot = now as usize % back.len();
        let before = (now > 100).then_some(back[slot]);
        back[slot] = density.touch(at(slot as u64, now), before);
        let scan = Use { key: 1_000_000 + u64::from(now), depth: 59, blocks: 60, now };
        scanned = density.touch(scan, None);
    }
    let now = 20_000;
    assert!(
        density.learned().worth(back[(now - 90) % 100], now as u32)
            > density.learned().worth(scanned, now as u32)
    );
    // A block of the same class that did not come back at its time is worth less again.
    let late = Usage::new(now as u32 - 400, back[0].uses(), place(30, 60));
    let due = Usage::new(now as u32 - 90, back[0].uses(), place(30, 60));
    assert!(density.learned().worth(late, now as u32) < density.learned().worth(due, now as u32));
}

/// As long as its key is followed, and all keys of a small cache are.
#[test]
fn a_block_that_comes_back_keeps_its_uses() {
    let mut density = Density::new(10);
    let uses: Vec<u32> = (1..4).map(|now| density.touch(at(1, now), None).uses()).collect();
    assert_eq!(uses, [0, 1, 2]);
}

#[test]
fn the_same_calls_give_the_same_worths() {
    let run = || {
        let (mut density, mut rng) = (Density::new(100_000), Rng::new(7));
        let touch = |now| {
            let usage = density.touch(at(rng.below(50_000), now), None);
            density.learned().worth(usage, now + 9)
        };
        (1..50_000).map(touch).fold(0_u64, |sum, worth| sum.rotate_left(5) ^ worth)
    };
    assert_eq!(run(), run());
}

/// A key is followed by its hash alone: whether it is resident makes no difference.
#[test]
fn the_share_of_followed_keys_is_what_the_ghosts_have_room_for() {
    assert!((0..10_000).all(|key| mix(key) <= ghosts::highest(1000)));
    let highest = ghosts::highest(1_000_000);
    let followed = (0..1_000_000).filter(|key| mix(*key) <= highest).count();
    assert!((5_000..7_500).contains(&followed), "{followed} of a million keys");
}

#[test]
fn a_full_bucket_gives_the_place_of_its_oldest_ghost() {
    let mut ghosts = Ghosts::new();
    let same_bucket: Vec<u64> = {
        let first = ghosts.room(mix(0), 0) / 8;
        (0..).map(mix).filter(|hash| ghosts.room(*hash, 0) / 8 == first).take(9).collect()
    };
    for (now, hash) in (1..).zip(&same_bucket[..8]) {
        let way = ghosts.room(*hash, now);
        ghosts[way] = Ghost::new(*hash, Usage::new(now, 1, 0));
    }
    let oldest = ghosts.find(same_bucket[0]).expect("it is there");
    assert_eq!(ghosts.room(same_bucket[8], 9), oldest);
}

#[test]
fn memory_is_bounded_whatever_the_capacity() {
    for blocks in [0, 1, 1 << 20, u64::MAX] {
        assert!(Density::new(blocks).heap_bytes() < 256 << 10);
    }
}

/// Threads that only ask see what one that tells has learned.
#[test]
fn a_key_outside_the_sample_needs_nobody_to_be_told() {
    let mut density = Density::new(1_000_000);
    let learned = Arc::clone(density.learned());
    let mut told = 0;
    for key in 0..10_000 {
        let (of, before) = (at(key, 9), Some(Usage::new(3, 2, 1)));
        let alone = learned.touch(&of, before);
        told += u32::from(alone.is_none());
        assert_eq!(alone.unwrap_or_else(|| density.touch(of, before)), density.touch(of, before));
    }
    assert!((40..90).contains(&told), "{told} of 10,000");
}

#[test]
fn a_step_of_the_clock_is_a_request_unless_the_cache_is_large() {
    assert_eq!([0, 1, 1 << 17, 1 << 20, 3 << 20].map(requests_per_step), [1, 1, 1, 8, 32]);
}

fn leaves(count: u32) -> Leaves {
    let mut leaves = Leaves::new(1);
    (0..count).map(Slot).for_each(|slot| leaves.insert(slot));
    leaves
}

#[test]
fn each_leaf_goes_once_and_those_in_use_stay() {
    let mut leaves = leaves(9);
    let mut gone = Vec::new();
    let worth = |slot: Slot| (slot.0 != 4).then(|| u64::from(slot.0 ^ 5));
    while let Some(slot) = leaves.next(worth) {
        assert_eq!(leaves.next(worth), Some(slot), "it stays until it is taken out");
        assert!(leaves.remove(slot) && !leaves.remove(slot) && !leaves.contains(slot));
        gone.push(slot.0);
    }
    gone.sort_unstable();
    assert_eq!((gone, leaves.len()), (vec![0, 1, 2, 3, 5, 6, 7, 8], 1));
    assert_eq!(
        (leaves.ahead(), leaves.ahead(), leaves.ahead()),
        (Some(Slot(4)), None, Some(Slot(4)))
    );
    assert_eq!(Leaves::new(1).next(|_| Some(0)), None);
}

/// What was seen and not evicted is remembered, also where chance does not find it again.
#[test]
fn leaves_of_little_worth_are_remembered() {
    let mut leaves = leaves(100_000);
    let odd = [Slot(100_001), Slot(100_007)];
    leaves.insert(odd[0]);
    leaves.uncover(odd[1]);
    let worth = |slot: Slot| Some(if odd.contains(&slot) { 0 } else { 1 + u64::from(slot.0) });
    assert_eq!(leaves.next(worth), Some(odd[1]));
    assert!(leaves.remove(odd[1]));
    let worst = leaves.next(worth).expect("there are leaves");
    assert_ne!(worst, odd[0], "chance alone does not find it");
    assert_eq!(leaves.next(|slot| (slot == odd[0]).then_some(0)), None);
}

/// A sample that becomes smaller forgets whom it followed: others would seem to be never used again.
#[test]
fn the_sample_follows_the_capacity() {
    let mut density = Density::new(10);
    density.touch(at(1, 1), None);
    let sample = |density: &Density| density.learned().highest.load(Ordering::Relaxed);
    density.set_blocks(6144);
    assert_eq!(sample(&density), u64::MAX, "all keys");
    // Two thirds of them, which is not half as many: as it was.
    density.set_blocks(9000);
    assert_eq!(density.touch(at(1, 2), None).uses(), 1);
    assert_eq!(sample(&density), u64::MAX);
    density.set_blocks(1 << 20);
    assert_eq!(sample(&density), ghosts::highest(1 << 20));
    density.set_blocks(10);
    assert_eq!(density.touch(at(1, 3), None).uses(), 0, "the table is empty");
}

#[test]
fn a_use_of_unknown_place_keeps_the_place() {
    let mut density = Density::new(10);
    let before = density.touch(Use { key: 1, depth: 0, blocks: 100, now: 1 }, None);
    let usage = density.touch_again(1, 5, before);
    assert_eq!((usage.last(), usage.uses(), usage.place()), (5, 1, before.place()));
}

/// A sampled key that is not used for more than the range of ages does not look new.
#[test]
fn an_old_ghost_stays_old() {
    const STEP: u32 = 16;
    let mut density = Density::new(10);
    density.touch(at(0, 1), None);
    for n in 1..=5 * AGE_END / STEP {
        density.touch(at(1 + u64::from(n % 500), n * STEP), None);
        if n.is_multiple_of(4096) {
            let ghost = density.ghosts.find(mix(0)).expect("its bucket has room");
            let age = density.ghosts[ghost].usage().age(n * STEP);
            let least = (n * STEP - 1).min(AGE_END / 2);
            assert!((least..AGE_END).contains(&age), "age {age} after {} steps", n * STEP);
        }
    }
}

/// What is covered goes only where no leaf can, and each is asked in turn.
#[test]
fn covered_slots_are_the_last_ones_to_go() {
    let mut policy = PolicyKind::Density.build();
    (0..9).map(Slot).for_each(|slot| policy.insert(slot));
    (0..8).map(Slot).for_each(|slot| policy.cover(slot, true));
    assert_eq!((policy.len(), policy.next()), (9, Some(Slot(8))));
    assert_eq!(
        [Slot(8), Slot(3), Slot(9)].map(|slot| policy.covers(slot)),
        [Some(false), Some(true), None]
    );
    let only = |which: u32| move |slot: Slot| (slot == Slot(which)).then_some(1);
    assert_eq!((0..9).filter(|n| policy.next_by(&only(*n)) == Some(Slot(*n))).count(), 9);
    policy.cover(Slot(2), false);
    assert_eq!(policy.next_by(&|slot| Some(slot.0.into())), Some(Slot(2)));
    assert_eq!(std::iter::from_fn(|| policy.ahead()).count(), 2, "leaves only");
    assert_eq!(std::iter::from_fn(|| policy.victim()).count(), 9);
    assert!(!policy.remove(Slot(3)) && policy.is_empty());
}

/// Two threads may end requests in another order than they drew the numbers: a block that was used by a later request
/// than the one that looks is young, and not two million requests old.
#[test]
fn a_use_by_a_later_request_is_no_old_one() {
    let usage = Usage::new(10, 0, 0);
    assert_eq!([9, 10, 11].map(|now| usage.age(now)), [0, 0, 1]);
    assert_eq!(Usage::new(3, 0, 0).age(AGE_MASK - 2), 0, "request numbers may wrap");
    let density = Density::new(1000);
    let worth = |used_at| density.learned().worth(Usage::new(used_at, 1, 0), 10);
    assert!(worth(12) >= worth(10) && worth(10) > worth(9));
}

/// What is learned from requests that end in another order is what is learned from them in order.
#[test]
fn requests_out_of_order_teach_no_great_ages() {
    let mut density = Density::new(1000);
    for now in [10, 9, 12, 11] {
        density.touch(at(1, now), None);
    }
    let old: f32 = density.reached.iter().flat_map(|row| &row[bin(100)..]).sum();
    assert!(old < 0.5, "{old} blocks were used a hundred requests ago");
}

/// The walk ahead begins with the leaves that the evictions would choose, as far as they are known.
#[test]
fn the_walk_ahead_begins_with_the_worst_leaves_that_are_remembered() {
    let mut leaves = leaves(1000);
    let worth = |slot: Slot| Some(u64::from(slot.0 ^ 0x155));
    for _ in 0..50 {
        let worst = leaves.next(worth).expect("there are leaves");
        leaves.remove(worst);
    }
    let next = leaves.next(worth);
    let round: Vec<Slot> = std::iter::from_fn(|| leaves.ahead()).collect();
    assert_eq!(round.first().copied(), next);
    let worths: Vec<_> = round[..REMEMBERED].iter().map(|slot| worth(*slot)).collect();
    assert!(worths.is_sorted(), "the worst ones first: {worths:?}");
    let distinct: std::collections::BTreeSet<u32> = round.iter().map(|slot| slot.0).collect();
    assert_eq!((round.len(), distinct.len()), (950, 950), "each once");
    assert_eq!(std::iter::from_fn(|| leaves.ahead()).collect::<Vec<_>>(), round, "and again");
    // Those that evictions remember later are met before the walk goes on.
    let walked: Vec<Slot> = (0..100).filter_map(|_| leaves.ahead()).collect();
    leaves.remove(walked[0]);
    let late = Slot(2000);
    leaves.uncover(late);
    assert_eq!(leaves.ahead(), Some(late));
}
