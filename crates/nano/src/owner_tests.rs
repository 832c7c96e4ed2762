//! The owner's side, without a master: orders as the catalog gives them, on heaps in host memory.

use super::*;
use crate::layout::HeapLayout;
use crate::reach::HostReach;
use mooncrate_core::header::Header;
use mooncrate_core::{Medium, NodeId};
use mooncrate_heap::{Heap, World};

const EPOCH: LeaderEpoch = LeaderEpoch(3);
const G: Generation = Generation(0);

/// Two ranks in one process: rank 0 owns, rank 1 writes and reads.
struct Rig {
    owner: Owner,
    writer: HostReach,
}

fn rig() -> Rig {
    rig_with(Duration::ZERO)
}

fn rig_with(grace: Duration) -> Rig {
    let world = World::new(2).unwrap();
    let layout = HeapLayout::new(8, 1 << 20).unwrap();
    let mut heaps = Heap::host_ranks(world, 1 << 20).unwrap().into_iter();
    let owner = Arc::new(HostReach::new(heaps.next().unwrap(), layout));
    let writer = HostReach::new(heaps.next().unwrap(), layout);
    let segment = SegmentId::on(Medium::Vram, NodeId(1), 0);
    let offered = Offered { segment, incarnation: Incarnation(1), slots: 8, grace };
    Rig { owner: Owner::new(owner, offered), writer }
}

impl Rig {
    fn order(&self, slot: u32, generation: Generation, action: Action) -> Order {
        let Offered { segment, incarnation, .. } = self.owner.offered;
        Order { segment, incarnation, slot: Slot(slot), generation, action }
    }

    fn obey(&self, now: u64, orders: &[Order]) -> Vec<OrderResult> {
        let notices = self.owner.execute(Now(now), EPOCH, orders).unwrap();
        notices.into_iter().map(|notice| notice.result).collect()
    }

    fn tick(&self, now: u64, gone: Ranks) -> Vec<OrderResult> {
        let notices = self.owner.tick(Now(now), gone).unwrap();
        notices.into_iter().map(|notice| notice.result).collect()
    }

    /// What rank 1 does to a header of rank 0.
    fn touch(&self, slot: u32, generation: Generation, touch: Touch) -> Stepped {
        let step = Step { slot: Slot(slot), generation, touch };
        self.writer.step(Rank::HUB, &[step]).unwrap().remove(0)
    }

    fn begin(&self, slot: u32, generation: Generation) -> Stepped {
        let header =
            Header { producer_rank: 1, bytes_total: 7, epoch: generation.0, ..Header::default() };
        self.touch(slot, generation, Touch::Begin(Box::new(header)))
    }

    fn put(&self, slot: u32, generation: Generation) {
        self.begin(slot, generation).unwrap();
        self.touch(slot, generation, Touch::Apply(Event::Publish)).unwrap();
    }
}

fn one() -> Rank {
    World::new(2).unwrap().rank(1).unwrap()
}

const fn freed(next: u32) -> OrderResult {
    OrderResult::Freed { next: Generation(next) }
}

#[test]
fn a_value_without_readers_is_evicted_at_once() {
    let rig = rig();
    rig.put(2, G);
    assert_eq!(rig.writer.header(Rank::HUB, Slot(2)).unwrap().bytes_total, 7);
    let evict = rig.order(2, G, Action::Evict);
    assert_eq!(rig.obey(1, &[evict]), [freed(1)]);
    assert_eq!(rig.obey(2, &[evict]), [freed(1)], "asked again, the same answer");
    assert!(rig.touch(2, G, Touch::Pin(one())).is_err());
    rig.put(2, Generation(1));
}

#[test]
fn a_pinned_value_is_not_evicted_and_retires_later() {
    let rig = rig();
    rig.put(0, G);
    rig.touch(0, G, Touch::Pin(one())).unwrap();
    assert_eq!(rig.obey(1, &[rig.order(0, G, Action::Evict)]), [OrderResult::Pinned]);
    let retire = rig.order(0, G, Action::Retire { free_after_ms: 5 });
    assert_eq!(rig.obey(1, &[retire]), [OrderResult::Waiting]);
    assert!(rig.touch(0, G, Touch::Pin(one())).is_err(), "no new reader");
    assert_eq!(rig.tick(6_000_001, Ranks::default()), [], "the last reader is inside");
    rig.touch(0, G, Touch::Unpin(one())).unwrap();
    assert_eq!(rig.tick(6_000_001, Ranks::default()), [freed(1)]);
    assert_eq!(rig.owner.waiting(), 0);
}

#[test]
fn a_promise_of_time_is_kept() {
    let rig = rig();
    rig.put(0, G);
    assert_eq!(
        rig.obey(0, &[rig.order(0, G, Action::Retire { free_after_ms: 10 })]),
        [OrderResult::Waiting]
    );
    // A second order never shortens it.
    rig.obey(1, &[rig.order(0, G, Action::Retire { free_after_ms: 0 })]);
    assert_eq!(rig.tick(9_999_999, Ranks::default()), []);
    assert_eq!(rig.tick(10_000_000, Ranks::default()), [freed(1)]);
}

#[test]
fn what_a_producer_may_still_store_to_waits_until_it_says_so_or_is_gone() {
    let rig = rig();
    for slot in [0, 1] {
        rig.begin(slot, G).unwrap();
        let abort = rig.order(slot, G, Action::Abort);
        assert_eq!(rig.obey(1, &[abort]), [OrderResult::Waiting]);
        assert!(rig.touch(slot, G, Touch::Apply(Event::Publish)).is_err(), "it comes too late");
    }
    assert_eq!(rig.tick(9, Ranks::default()), [], "it may still store");
    rig.touch(0, Generation(1), Touch::Apply(Event::Fence)).unwrap();
    assert_eq!(rig.tick(10, Ranks::default()), [freed(1)], "it has said that it does not");
    assert_eq!(rig.tick(11, Ranks::only(Rank::HUB)), [], "another one's end says nothing");
    assert_eq!(rig.tick(12, Ranks::only(one())), [freed(1)], "it is gone");
    assert_eq!(rig.owner.waiting(), 0);
}

/// Under MPS the kernel of a process that was killed may still store, as the store has it for its own writers.
#[test]
fn the_gpu_of_a_dead_producer_may_store_for_a_while() {
    let rig = rig_with(Duration::from_secs(5));
    rig.begin(0, G).unwrap();
    assert_eq!(rig.obey(1, &[rig.order(0, G, Action::Abort)]), [OrderResult::Waiting]);
    let second = 1_000_000_000;
    assert_eq!(rig.tick(2 * second, Ranks::only(one())), [], "its process has just ended");
    assert_eq!(rig.tick(7 * second - 1, Ranks::only(one())), []);
    assert_eq!(rig.tick(7 * second, Ranks::only(one())), [freed(1)]);
}

#[test]
fn pins_of_the_dead_are_taken_back_once() {
    let rig = rig();
    rig.put(3, G);
    rig.touch(3, G, Touch::Pin(one())).unwrap();
    rig.obey(1, &[rig.order(3, G, Action::Retire { free_after_ms: 0 })]);
    assert_eq!(rig.tick(2, Ranks::default()), []);
    assert_eq!(rig.tick(3, Ranks::only(one())), [freed(1)]);
}

/// Under MPS a kernel that pins may run after the process that launched it has ended, and nothing would unpin.
#[test]
fn pins_that_the_gpu_of_the_dead_takes_are_taken_back_too() {
    let rig = rig_with(Duration::from_secs(5));
    rig.put(3, G);
    let second = 1_000_000_000;
    assert_eq!(rig.tick(2 * second, Ranks::only(one())), [], "its process has just ended");
    rig.touch(3, G, Touch::Pin(one())).unwrap();
    let retire = rig.order(3, G, Action::Retire { free_after_ms: 0 });
    assert_eq!(rig.obey(3 * second, &[retire]), [OrderResult::Waiting]);
    assert_eq!(rig.tick(7 * second - 1, Ranks::only(one())), []);
    assert_eq!(rig.tick(7 * second, Ranks::only(one())), [freed(1)]);
}

#[test]
fn a_life_that_never_began_is_passed_over() {
    let rig = rig();
    assert_eq!(rig.obey(1, &[rig.order(4, G, Action::Abort)]), [freed(1)]);
    assert!(rig.begin(4, G).is_err(), "a late producer is refused");
    rig.put(4, Generation(1));
}

#[test]
fn orders_of_another_time_or_place_are_not_obeyed() {
    let rig = rig();
    rig.put(0, G);
    let evict = rig.order(0, G, Action::Evict);
    assert_eq!(rig.obey(1, &[Order { incarnation: Incarnation(2), ..evict }]), []);
    assert_eq!(rig.obey(1, &[Order { slot: Slot(8), ..evict }]), []);
    assert_eq!(rig.obey(1, &[Order { generation: Generation(1), ..evict }]), []);
    let old = rig.owner.execute(Now(1), LeaderEpoch(2), &[evict]).unwrap();
    assert!(old.is_empty(), "a leader that was replaced");
    assert_eq!(rig.obey(1, &[evict]), [freed(1)]);
}
