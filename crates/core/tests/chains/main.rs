//! Eviction by density: the keys of a batch are a chain, and its end goes first.

#![expect(clippy::unwrap_used, reason = "a test's helpers may panic as its tests do")]

mod rig;

use mooncrate_core::evict::PolicyKind;
use mooncrate_core::plan::{Keep, Notice, OrderResult};
use mooncrate_core::{Generation, Incarnation, PutConfig, SegmentId, Slot};
use proptest::collection::vec;
use proptest::prelude::*;
use rig::{BLOCK, Rig, key, keys};

/// Prompts as paths of a tree: the key of a block is its path, so only one block can be before it.
fn prompt(steps: &[u8]) -> Vec<Vec<u8>> {
    (1..=steps.len()).map(|len| steps[..len].to_vec()).collect()
}

fn any_prompt() -> impl Strategy<Value = Vec<Vec<u8>>> {
    vec(0..3_u8, 1..7).prop_map(|steps| prompt(&steps))
}

/// A value is evicted only if nothing follows it, unless something follows all others of its segment. The value that
/// the put follows goes only if nothing else is in the segment.
fn leaves_first(rig: &Rig, life: &(SegmentId, Slot, Generation)) {
    let followed = |key: &Vec<u8>| rig.follows.values().any(|before| before == key);
    let Some(victim) = rig.held.get(life) else { return };
    let is_kept = |key: &Vec<u8>| rig.kept.as_ref() == Some(key);
    let in_segment = rig.held.iter().filter(|((segment, ..), _)| *segment == life.0);
    for (_, other) in in_segment.filter(|(_, other)| *other != victim) {
        let first = !is_kept(victim) && (!followed(victim) || followed(other) || is_kept(other));
        assert!(first, "{victim:?} went before {other:?}: {:?}, {:?}", rig.held, rig.follows);
    }
}

#[derive(Clone, Debug)]
enum Op {
    Put(Vec<u8>),
    Get(Vec<u8>),
    Remove(u8),
    Kill(u8),
    Pin(u8),
    Unpin,
    Pass(u16),
}

/// Few keys in any order, also twice in a batch: most of these batches contradict each other.
fn any_op() -> impl Strategy<Value = Op> {
    let batch = || vec(0..24_u8, 1..8);
    prop_oneof![
        6 => batch().prop_map(Op::Put),
        6 => batch().prop_map(Op::Get),
        2 => (0..24_u8).prop_map(Op::Remove),
        1 => (0..3_u8).prop_map(Op::Kill),
        1 => (0..24_u8).prop_map(Op::Pin),
        1 => Just(Op::Unpin),
        1 => (0..2000_u16).prop_map(Op::Pass),
    ]
}

/// Keys in the order of their evictions.
fn run(seed: u64, ops: &[Op]) -> Result<Vec<Vec<u8>>, TestCaseError> {
    let mut rig = Rig::new(seed, 3, 5);
    for op in ops {
        match op {
            Op::Put(batch) => rig.put(&keys(batch.iter().copied())),
            Op::Get(batch) => drop(rig.locate(&keys(batch.iter().copied()))),
            Op::Remove(n) => {
                let _ = rig.catalog.remove(rig.now, &key(*n)[..], true);
                rig.obey(|_, _| {});
            }
            Op::Kill(node) => rig.kill((*node).into()),
            Op::Pin(n) => drop(rig.pinned.insert(key(*n))),
            Op::Unpin => rig.pinned.clear(),
            Op::Pass(ms) => rig.pass((*ms).into()),
        }
        if let Err(error) = rig.catalog.audit() {
            return Err(TestCaseError::fail(format!("after {op:?}: {error}")));
        }
    }
    let evicted = rig.evicted.clone();
    rig.empty();
    Ok(evicted)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn what_has_a_successor_stays_while_a_leaf_can_go(
        seed: u64,
        slots in 1..9_u32,
        prompts in vec((any_prompt(), any::<bool>(), any::<bool>()), 1..80),
    ) {
        let mut rig = Rig::new(seed, 2, slots);
        for (prompt, look, in_turn) in &prompts {
            if *look {
                rig.locate(prompt);
            }
            if *in_turn {
                rig.put_in_turn(prompt, leaves_first);
            } else {
                rig.put_seen(prompt, BLOCK, leaves_first);
            }
            rig.catalog.audit().unwrap();
        }
        rig.empty();
    }

    #[test]
    fn links_add_up_whatever_happens_and_nothing_stays_for_ever(
        seed: u64,
        ops in vec(any_op(), 1..120),
    ) {
        let evicted = run(seed, &ops)?;
        prop_assert_eq!(run(seed, &ops)?, evicted, "the same calls give the same evictions");
    }
}

/// A client asks the master only for keys whose places it does not remember: a batch of some keys of a prompt must
/// not decide for good what follows what.
#[test]
fn a_whole_batch_corrects_what_a_part_of_it_linked() {
    let mut rig = Rig::new(1, 1, 4);
    rig.put(&keys([0, 3]));
    rig.put(&keys([0, 1, 2, 3]));
    rig.locate(&keys([0, 1, 2, 3]));
    // A part of the batch again: 3 stays behind 2.
    rig.locate(&keys([0, 3]));
    rig.catalog.audit().unwrap();
    (0..8).for_each(|_| drop(rig.locate(&keys([3]))));
    rig.put(&keys([10, 11]));
    assert_eq!(rig.evicted, keys([3, 2]), "3 is read most, and follows 2");
    rig.empty();
}

/// Which of two keys goes first when room for one is needed.
fn first_to_go(rig: &mut Rig, pair: [u8; 2]) -> u8 {
    rig.put(&keys([200]));
    assert!(rig.has(&key(200)));
    let gone: Vec<u8> = pair.into_iter().filter(|n| !rig.has(&key(*n))).collect();
    assert_eq!(gone.len(), 1, "{:?} went", rig.evicted);
    gone[0]
}

#[test]
fn the_end_of_a_chain_goes_first() {
    let mut rig = Rig::new(1, 1, 5);
    rig.put(&keys([0, 1, 2, 3, 4]));
    rig.put(&keys([10, 11]));
    assert_eq!(rig.evicted, keys([4, 3]));
    rig.put(&keys([20]));
    assert_eq!(rig.evicted, keys([4, 3, 2]));
}

/// A put of the rest of a prompt does not name what it goes on from; the lookup before it did.
#[test]
fn a_put_of_what_was_missed_goes_on_from_what_was_found() {
    let mut rig = Rig::new(1, 1, 6);
    rig.put(&keys([0, 1]));
    assert_eq!(rig.locate(&keys([0, 1, 2, 3])), [true, true, false, false]);
    rig.put(&keys([2, 3]));
    rig.put(&keys([10, 11, 12, 13]));
    assert_eq!(rig.evicted, keys([3, 2]));
}

/// The value that a put follows is evicted for it where nothing else can be.
#[test]
fn a_put_that_can_only_displace_the_value_it_follows_does_so() {
    let mut rig = Rig::new(1, 1, 1);
    rig.put_in_turn(&keys([0, 1, 2]), leaves_first);
    assert_eq!((&rig.evicted, rig.has(&key(2))), (&keys([0, 1]), true));
    // An earlier lookup may say which value the put follows.
    assert_eq!(rig.locate(&keys([2, 3])), [true, false]);
    rig.put(&keys([3]));
    assert_eq!((&rig.evicted, rig.has(&key(3))), (&keys([0, 1, 2]), true));
    rig.catalog.audit().unwrap();
    rig.empty();
}

/// An ordinary value goes before a soft pin, also if the put follows it.
#[test]
fn a_soft_pin_outlives_the_value_that_a_put_follows() {
    let mut rig = Rig::new(1, 1, 2);
    let soft = PutConfig { keep: Keep::Soft { ttl_ms: 30_000 }, ..PutConfig::default() };
    rig.put_with(&keys([5]), &soft);
    rig.put_in_turn(&keys([0, 1]), |_, _| {});
    assert_eq!((&rig.evicted, rig.has(&key(5)), rig.has(&key(1))), (&keys([0]), true, true));
    rig.empty();
}

/// A batch that is read in another order than it was put in must not tie a knot.
#[test]
fn two_batches_that_contradict_each_other_make_no_circle() {
    let mut rig = Rig::new(1, 1, 6);
    rig.put(&keys([0, 1, 2]));
    for batch in [[2, 1, 0], [1, 0, 2], [2, 2, 0], [0, 2, 1]] {
        rig.locate(&keys(batch));
        rig.put(&keys(batch));
        rig.catalog.audit().unwrap();
    }
    rig.empty();
}

/// The bytes of a value are not those that were sealed.
fn lose(rig: &mut Rig, n: u8) {
    let (life, _) = rig.held.iter().find(|(_, held)| **held == key(n)).unwrap();
    let (segment, slot, generation) = *life;
    let (incarnation, result) = (Incarnation(1), OrderResult::Bad);
    let notice = Notice { segment, incarnation, slot, generation, result };
    rig.catalog.notice(rig.now, &notice);
    rig.obey(|_, _| {});
}

#[test]
fn what_follows_a_lost_value_is_worth_nothing() {
    let mut rig = Rig::new(1, 1, 3);
    rig.put(&keys([5]));
    rig.put(&keys([0, 1]));
    lose(&mut rig, 0);
    rig.put(&keys([9]));
    assert_eq!(rig.evicted, Vec::<Vec<u8>>::new());
    assert_eq!(first_to_go(&mut rig, [5, 1]), 1, "5 is older, and whole");
    rig.empty();
}

/// A batch may be of keys that have nothing to do with each other.
#[test]
fn what_follows_a_removed_value_is_an_ordinary_one() {
    let mut rig = Rig::new(1, 1, 3);
    rig.put(&keys([5]));
    rig.put(&keys([0, 1]));
    rig.catalog.remove(rig.now, &key(0)[..], false).unwrap();
    rig.obey(|_, _| {});
    rig.put(&keys([9]));
    assert_eq!(first_to_go(&mut rig, [5, 1]), 5);
    rig.empty();
}

/// What was lost comes back, and with it the worth of what follows it.
#[test]
fn a_value_that_is_put_again_takes_its_place_in_the_chain() {
    let mut rig = Rig::new(1, 1, 4);
    rig.put(&keys([5]));
    rig.put(&keys([0, 1, 2]));
    lose(&mut rig, 0);
    rig.put(&keys([0]));
    rig.locate(&keys([0, 1, 2]));
    rig.catalog.audit().unwrap();
    assert_eq!(first_to_go(&mut rig, [5, 2]), 5);
    rig.put(&keys([6, 7, 8]));
    assert_eq!(rig.evicted[1..3], keys([2, 1]), "0 is before both");
    rig.empty();
}

#[test]
fn a_large_value_goes_before_small_ones_of_the_same_worth() {
    let mut rig = Rig::new(1, 1, 8);
    rig.put_seen(&keys([5]), 10, |_, _| {});
    rig.put_seen(&keys([1]), 6 * BLOCK, |_, _| {});
    rig.put(&keys([6, 7, 8]));
    assert!(rig.has(&key(5)) && !rig.has(&key(1)), "5 is older: {:?}", rig.evicted);
    rig.empty();
}

/// Readers hold all but one of the candidates: that one goes, and soon.
#[test]
fn what_readers_hold_does_not_stop_evictions() {
    let mut rig = Rig::new(1, 1, 40);
    (0..40).for_each(|n| rig.put(&keys([n])));
    rig.pinned.extend(keys((0..40).filter(|n| *n != 33)));
    for _ in 0..40 {
        rig.put(&keys([200]));
        rig.pass(1);
    }
    assert!(rig.has(&key(200)) && !rig.has(&key(33)));
    rig.empty();
}

/// Chains whose ends lie elsewhere: a segment without any leaf gives room all the same.
#[test]
fn a_segment_without_leaves_makes_room() {
    let mut rig = Rig::new(3, 1, 6);
    rig.put(&keys([0, 1, 2, 3, 4, 5]));
    rig.catalog.locate(rig.now, &key(5)[..], 60_000).unwrap();
    rig.put(&keys([10]));
    assert!(rig.has(&key(10)) && rig.has(&key(5)), "the only leaf is leased");
    rig.catalog.audit().unwrap();
    rig.empty();
}

/// A link of 16 bytes per entry, and of a slot as much as LRU takes; the rest is the same whatever the number.
#[test]
fn memory_is_what_the_table_of_policies_says() {
    let bytes = |policy| {
        let mut rig = Rig::with(policy, 1, 1, 20_000);
        let batch: Vec<Vec<u8>> = (0..16_384_u32).map(|n| n.to_be_bytes().to_vec()).collect();
        rig.put_seen(&batch, 10, |_, _| {});
        rig.catalog.heap_bytes()
    };
    let more = bytes(PolicyKind::Density) - bytes(PolicyKind::Lru);
    let fixed = 512 << 10;
    assert!(more < 16_384 * 24 + fixed, "{more} bytes");
}
