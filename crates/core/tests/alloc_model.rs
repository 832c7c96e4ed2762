//! All allocators, judged by one naive oracle in any order of calls.

use mooncrate_core::Extent;
use mooncrate_core::alloc::model::IntervalSet;
use mooncrate_core::alloc::offset::LOOK;
use mooncrate_core::alloc::{Allocation, Allocator, Buddy, Bump, OffsetAllocator};
use mooncrate_core::rng::Rng;
use proptest::prelude::*;
use proptest::sample::Index;

const MIN_BLOCK: u64 = 256;

/// What an allocator's own rules add to the contract.
trait Subject: Allocator + Sized {
    fn build(capacity: u64) -> Self;
    /// Bytes that a request of `len` takes.
    fn footprint(len: u64) -> u64;
    /// Whether `len` may be refused in this situation.
    fn may_refuse(model: &IntervalSet, len: u64) -> bool;
    /// Whether `largest` is an answer that the documentation allows.
    fn truthful(model: &IntervalSet, largest: u64) -> bool;
}

fn rounded(len: u64) -> u64 {
    len.next_multiple_of(64)
}

impl Subject for OffsetAllocator {
    fn build(capacity: u64) -> Self {
        Self::new(capacity)
    }
    fn footprint(len: u64) -> u64 {
        rounded(len)
    }
    fn may_refuse(model: &IntervalSet, len: u64) -> bool {
        let sure = Self::sure_bytes(len);
        let (mut fitting, mut short) = (0, 0);
        for run in model.free_runs() {
            if run.len() >= sure {
                return false;
            }
            // Runs with the same sure length share the bin with the request.
            let same_bin = Self::sure_bytes(run.len() + 1) == Self::sure_bytes(rounded(len) + 1);
            fitting += usize::from(run.len() >= rounded(len));
            short += usize::from(same_bin && run.len() < rounded(len));
        }
        fitting == 0 || short >= LOOK
    }
    fn truthful(model: &IntervalSet, largest: u64) -> bool {
        let real = model.largest_free_run();
        let bin = |len: u64| Self::sure_bytes(len + 1);
        let in_top = model.free_runs().iter().filter(|run| bin(run.len()) == bin(real)).count();
        let exists = largest == 0 || model.free_runs().iter().any(|run| run.len() == largest);
        exists && if in_top <= LOOK { largest == real } else { bin(largest) == bin(real) }
    }
}

impl Subject for Bump {
    fn build(capacity: u64) -> Self {
        Self::new(capacity)
    }
    fn footprint(len: u64) -> u64 {
        rounded(len)
    }
    fn may_refuse(model: &IntervalSet, len: u64) -> bool {
        model.largest_free_run() < rounded(len)
    }
    fn truthful(model: &IntervalSet, largest: u64) -> bool {
        largest == model.largest_free_run()
    }
}

/// The largest block, aligned to its own size, that lies in a free run.
fn largest_block(model: &IntervalSet) -> u64 {
    let holds = |block: u64| {
        model
            .free_runs()
            .iter()
            .any(|run| run.offset().next_multiple_of(block) + block <= run.end())
    };
    (0..40).map(|order| MIN_BLOCK << order).filter(|block| holds(*block)).max().unwrap_or(0)
}

impl Subject for Buddy {
    fn build(capacity: u64) -> Self {
        Self::new(capacity, MIN_BLOCK)
    }
    fn footprint(len: u64) -> u64 {
        rounded(len).max(MIN_BLOCK).next_power_of_two()
    }
    fn may_refuse(model: &IntervalSet, len: u64) -> bool {
        largest_block(model) < Self::footprint(len)
    }
    fn truthful(model: &IntervalSet, largest: u64) -> bool {
        largest == largest_block(model)
    }
}

#[derive(Clone, Debug)]
enum Op {
    Allocate(u64),
    AllocateLargest,
    Free(Index),
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (1u64..6000).prop_map(Op::Allocate),
        // Few sizes that share a bin: the case in which the search must look at several runs.
        4 => (128u64..136).prop_map(|grains| Op::Allocate(grains * 64)),
        1 => prop_oneof![Just(1), Just(64), Just(65), Just(1 << 30), Just(u64::MAX)]
            .prop_map(Op::Allocate),
        1 => Just(Op::AllocateLargest),
        7 => any::<Index>().prop_map(Op::Free),
    ]
}

fn any_capacity() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..4096, 4096u64..300_000, (0u32..20).prop_map(|bits| 1 << bits)]
}

/// Runs the calls on both and stops at the first answer that the oracle does not accept.
fn drive<A: Subject>(real: &mut A, model: &mut IntervalSet, ops: &[Op]) -> Result<(), String> {
    for op in ops {
        let len = match op {
            Op::Free(index) => {
                let live = model.live().len();
                if live > 0 {
                    real.free(model.free(index.index(live)));
                }
                None
            }
            Op::Allocate(len) => Some(*len),
            // What is called the largest run must be there to be had.
            Op::AllocateLargest => match real.largest_free_run() {
                0 => None,
                len => {
                    let it = real.allocate(len).ok_or(format!("largest run {len} refused"))?;
                    model.allocated(len, it, A::footprint(len))?;
                    None
                }
            },
        };
        if let Some(len) = len {
            match real.allocate(len) {
                Some(it) => model.allocated(len, it, A::footprint(len))?,
                // Lengths that overflow when rounded can never be had.
                None if len > u64::MAX / 4 => {}
                None if A::may_refuse(model, len) => {}
                None => return Err(format!("{len} refused, runs: {:?}", model.free_runs())),
            }
        }
        check(real, model)?;
    }
    Ok(())
}

fn check<A: Subject>(real: &A, model: &IntervalSet) -> Result<(), String> {
    if real.free_bytes() != model.free_bytes() {
        return Err(format!("{} free, model says {}", real.free_bytes(), model.free_bytes()));
    }
    if real.live() != model.live().len() as u64 {
        return Err(format!("{} live, model says {}", real.live(), model.live().len()));
    }
    if !A::truthful(model, real.largest_free_run()) {
        return Err(format!("largest {}, {:?}", real.largest_free_run(), model.free_runs()));
    }
    let dust = real.fragmentation();
    if !(0.0..=1.0).contains(&dust) {
        return Err(format!("fragmentation {dust}"));
    }
    Ok(())
}

/// Frees what is left in a random order: nothing of the past may remain.
fn drain<A: Subject>(real: &mut A, model: &mut IntervalSet, seed: u64) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    while model.live().len() > 0 {
        let index = rng.below(model.live().len() as u64) as usize;
        real.free(model.free(index));
        check(real, model)?;
    }
    let fresh = A::build(real.capacity());
    if (real.free_bytes(), real.largest_free_run()) != (fresh.capacity(), fresh.largest_free_run())
    {
        return Err(format!("{real:?} is not as new"));
    }
    Ok(())
}

fn judge<A: Subject>(capacity: u64, ops: &[Op], seed: u64) -> Result<(), TestCaseError> {
    let mut real = A::build(capacity);
    prop_assert!(real.capacity() <= capacity);
    let mut model = IntervalSet::new(real.capacity());
    let verdict = check(&real, &model)
        .and_then(|()| drive(&mut real, &mut model, ops))
        .and_then(|()| drain(&mut real, &mut model, seed))
        // A second life in the same books: recycled nodes must be as good as new ones.
        .and_then(|()| drive(&mut real, &mut model, ops));
    prop_assert!(verdict.is_ok(), "{verdict:?}");
    Ok(())
}

proptest! {
    #[test]
    fn offset_allocator_satisfies_interval_set(
        capacity in any_capacity(), ops in prop::collection::vec(any_op(), 0..256), seed: u64,
    ) {
        judge::<OffsetAllocator>(capacity, &ops, seed)?;
    }

    #[test]
    fn bump_satisfies_interval_set(
        capacity in any_capacity(), ops in prop::collection::vec(any_op(), 0..256), seed: u64,
    ) {
        judge::<Bump>(capacity, &ops, seed)?;
    }

    #[test]
    fn buddy_satisfies_interval_set(
        capacity in any_capacity(), ops in prop::collection::vec(any_op(), 0..256), seed: u64,
    ) {
        judge::<Buddy>(capacity, &ops, seed)?;
    }

    /// A master that restarts rebuilds its books from what the owners announce, and goes on.
    #[test]
    fn books_rebuilt_from_live_extents_are_as_good(
        capacity in 4096u64..300_000, ops in prop::collection::vec(any_op(), 0..128), seed: u64,
    ) {
        let mut before = OffsetAllocator::new(capacity);
        let mut model = IntervalSet::new(before.capacity());
        drive(&mut before, &mut model, &ops).unwrap();
        let mut live: Vec<Extent> = model.live().map(|it| it.extent).collect();
        // Slots are announced in their order, which is not that of their offsets.
        let turn = seed as usize % live.len().max(1);
        live.rotate_left(turn);
        live[..turn].reverse();
        let (mut after, named) = OffsetAllocator::with_live(capacity, &live).unwrap();
        let mut model = IntervalSet::new(after.capacity());
        prop_assert!(named.iter().map(|it| it.extent).eq(live.iter().copied()));
        for it in named {
            model.allocated(it.extent.len(), it, it.extent.len()).unwrap();
        }
        let verdict = check(&after, &model)
            .and_then(|()| drive(&mut after, &mut model, &ops))
            .and_then(|()| drain(&mut after, &mut model, seed));
        prop_assert!(verdict.is_ok(), "{verdict:?}");
    }
}

fn all(capacity: u64) -> [Box<dyn Allocator>; 3] {
    [
        Box::new(OffsetAllocator::new(capacity)),
        Box::new(Buddy::new(capacity, 64)),
        Box::new(Bump::new(capacity)),
    ]
}

#[test]
fn the_whole_capacity_is_one_allocation() {
    // Odd bins: the run of the whole lies in the middle of its bin, not at its floor.
    for capacity in [64, 64 * 129, 1_000_000 * 64, (1 << 40) + 64, u64::MAX - 63] {
        for mut it in [
            Box::new(OffsetAllocator::new(capacity)) as Box<dyn Allocator>,
            Box::new(Bump::new(capacity)),
        ] {
            let whole = it.allocate(capacity - 63).unwrap();
            assert_eq!(whole.extent, Extent::new(0, capacity).unwrap());
            assert_eq!((it.free_bytes(), it.largest_free_run(), it.live()), (0, 0, 1));
            assert!(it.allocate(1).is_none() && it.fragmentation() == 0.0);
            it.free(whole);
            assert_eq!((it.free_bytes(), it.largest_free_run()), (capacity, capacity));
        }
    }
}

#[test]
fn a_segment_without_room_for_one_extent_refuses_calmly() {
    for capacity in [0, 1, 63] {
        for mut it in all(capacity) {
            assert!(it.allocate(1).is_none(), "{it:?}");
            assert_eq!((it.capacity(), it.free_bytes(), it.largest_free_run()), (0, 0, 0));
        }
    }
}

#[test]
fn buddies_serve_a_capacity_that_is_no_power_of_two() {
    let mut buddy = Buddy::new(7 * 4096 + 100, 4096);
    assert_eq!((buddy.capacity(), buddy.largest_free_run()), (7 * 4096, 4 * 4096));
    let sizes = [4, 2, 1].map(|blocks| buddy.allocate(blocks * 4096).unwrap());
    assert_eq!(buddy.free_bytes(), 0);
    for it in sizes {
        let block = it.extent.len();
        assert!(it.extent.offset().is_multiple_of(block), "{it:?} is not naturally aligned");
        buddy.free(it);
    }
    assert_eq!(buddy.largest_free_run(), 4 * 4096);
}

/// What a person of the pool sees: objects of few sizes come and go, and nothing is lost to dust.
#[test]
fn churn_of_equal_objects_leaves_no_dust() {
    let mut it = OffsetAllocator::new(1 << 30);
    // No bin starts at this length.
    let len = (1 << 20) + 12_345;
    let mut live: Vec<Allocation> = std::iter::from_fn(|| it.allocate(len)).collect();
    let full = live.len();
    let mut rng = Rng::new(7);
    for _ in 0..100_000 {
        let one = live.swap_remove(rng.below(live.len() as u64) as usize);
        it.free(one);
        live.push(it.allocate(len).expect("the run that was just freed fits"));
    }
    assert_eq!(live.len(), full);
    assert!(it.heap_bytes() < 256 * 1024, "{} bytes of books", it.heap_bytes());
}

#[test]
fn contradicting_announcements_are_refused() {
    let at = |offset, len| Extent::new(offset, len).unwrap();
    for wrong in [
        &[at(0, 128), at(64, 64)][..],
        &[at(64, 64), at(0, 128)],
        &[at(0, 64), at(0, 64)],
        &[at(32, 64)],
        &[at(0, 65)],
        &[at(64, 0)],
        &[at(960, 128)],
    ] {
        assert!(OffsetAllocator::with_live(1024, wrong).is_none(), "{wrong:?}");
    }
    let (whole, _) = OffsetAllocator::with_live(1024, &[at(0, 512), at(512, 512)]).unwrap();
    assert_eq!((whole.free_bytes(), whole.live()), (0, 2));
}

/// Each wrong free must stop the program: it would give one range to two objects later.
#[test]
fn wrong_frees_panic() {
    let wrong: [fn(&mut dyn Allocator); 5] = [
        |it| {
            let one = it.allocate(64).unwrap();
            it.free(one);
            it.free(one);
        },
        |it| {
            let one = it.allocate(128).unwrap();
            it.free(Allocation { handle: one.handle + 1, ..one });
        },
        |it| {
            let one = it.allocate(64).unwrap();
            it.free(Allocation { extent: Extent::new(64, 64).unwrap(), ..one });
        },
        |it| {
            let one = it.allocate(64).unwrap();
            it.free(Allocation { extent: Extent::new(0, 1024).unwrap(), ..one });
        },
        |it| it.free(Allocation { extent: Extent::new(0, 1 << 60).unwrap(), handle: u32::MAX }),
    ];
    for (number, free) in wrong.into_iter().enumerate() {
        for mut it in all(4096) {
            let name = format!("{it:?}");
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| free(&mut *it)));
            let reason = outcome.expect_err(&format!("wrong free {number} of {name}"));
            let reason = reason.downcast_ref::<String>().unwrap();
            assert!(reason.contains("is not live here"), "{number}, {name}: {reason}");
        }
    }
}
