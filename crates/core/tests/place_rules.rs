//! The rules of placement, one by one, and that no strategy ever picks what it may not.

use mooncrate_core::place::{Ask, Placement, PlacementKind, SegmentLoad, UnknownPlacement};
use mooncrate_core::{HostId, Medium, NodeId, SegmentId, TenantId, ZoneId};
use proptest::prelude::*;

const GIB: u64 = 1 << 30;

/// Load `i` of a pool: a node and a host of its own, zone `i % zones`, half full.
fn load(i: u64, zones: u64) -> SegmentLoad {
    SegmentLoad {
        segment: SegmentId(1000 + i),
        node: NodeId(i),
        host: HostId(i),
        zone: ZoneId(i % zones),
        medium: Medium::Dram,
        tenant: None,
        capacity: GIB,
        free: GIB / 2,
        open: true,
    }
}

fn pool(segments: u64, zones: u64) -> Vec<SegmentLoad> {
    (0..segments).map(|i| load(i, zones)).collect()
}

/// A small replica for a writer that is nowhere near.
const ASK: Ask<'static> = Ask {
    bytes: 4096,
    preferred: &[],
    host: HostId(u64::MAX),
    zone: ZoneId(u64::MAX),
    tenant: TenantId::DEFAULT,
    medium: Medium::Dram,
    avoid_nodes: &[],
    avoid: &[],
    tried: &[],
    need_free: true,
};

/// How many of `puts` each load gets.
fn spread(it: &mut dyn Placement, loads: &[SegmentLoad], ask: &Ask<'_>, puts: usize) -> Vec<usize> {
    let mut counts = vec![0; loads.len()];
    for _ in 0..puts {
        counts[it.pick(loads, ask).expect("the pool has room")] += 1;
    }
    counts
}

fn may_serve(load: &SegmentLoad, index: usize, ask: &Ask<'_>) -> bool {
    let room = if ask.need_free { load.free } else { load.capacity };
    load.open
        && load.capacity >= ask.bytes
        && room >= ask.bytes
        && !ask.tried.contains(&index)
        && !ask.avoid_nodes.contains(&load.node)
        && !ask.avoid.contains(&load.segment)
        && load.medium == ask.medium
        && load.tenant.is_none_or(|tenant| tenant == ask.tenant)
}

fn any_medium() -> impl Strategy<Value = Medium> {
    prop_oneof![6 => Just(Medium::Dram), 2 => Just(Medium::Vram), 1 => Just(Medium::Ssd)]
}

prop_compose! {
    fn any_load()(
        segment in 0u64..50, node in 0u64..12, host in 0u64..6, zone in 0u64..3,
        capacity in 0u64..1000, free in 0u64..1000, open in prop::bool::weighted(0.7),
        medium in any_medium(), tenant in prop::option::weighted(0.2, 0u32..3),
    ) -> SegmentLoad {
        SegmentLoad {
            segment: SegmentId(segment), node: NodeId(node), host: HostId(host),
            zone: ZoneId(zone), capacity, free: free.min(capacity), open,
            medium, tenant: tenant.map(TenantId),
        }
    }
}

proptest! {
    /// Whatever the pool looks like, and however it changed since the last call.
    #[test]
    fn picks_are_eligible_and_found_whenever_there_is_one(
        pools in prop::collection::vec(prop::collection::vec(any_load(), 0..40), 1..6),
        bytes in 1u64..1000,
        preferred in prop::collection::vec((0u64..50).prop_map(SegmentId), 0..3),
        avoid in prop::collection::vec((0u64..12).prop_map(NodeId), 0..4),
        tried in prop::collection::vec(0usize..40, 0..6),
        host in 0u64..7, zone in 0u64..4, need_free: bool, seed: u64,
        failed in prop::collection::vec((0u64..50).prop_map(SegmentId), 0..3),
        tenant in 0u32..3, medium in any_medium(),
    ) {
        for kind in PlacementKind::ALL {
            let (mut it, mut twin) = (kind.build(seed), kind.build(seed));
            for loads in pools.iter().chain(&pools) {
                let ask = Ask {
                    bytes, preferred: &preferred, host: HostId(host), zone: ZoneId(zone),
                    avoid_nodes: &avoid, avoid: &failed, tried: &tried, need_free,
                    tenant: TenantId(tenant), medium,
                };
                let pick = it.pick(loads, &ask);
                prop_assert_eq!(pick, twin.pick(loads, &ask), "{} must follow its seed", kind);
                match pick {
                    Some(at) => prop_assert!(may_serve(&loads[at], at, &ask), "{} {}", kind, at),
                    None => prop_assert!(
                        loads.iter().enumerate().all(|(at, load)| !may_serve(load, at, &ask)),
                        "{} found nothing", kind
                    ),
                }
            }
        }
    }
}

#[test]
fn preferred_segments_come_first_in_every_strategy() {
    let mut loads = pool(1000, 4);
    // The best wish is closed, the next one full: the third is it.
    loads[700].open = false;
    loads[20].free = 0;
    let wishes = [SegmentId(1700), SegmentId(9), SegmentId(1020), SegmentId(1500), SegmentId(1001)];
    for kind in PlacementKind::ALL {
        let mut it = kind.build(1);
        let ask = Ask { preferred: &wishes, ..ASK };
        assert_eq!(it.pick(&loads, &ask), Some(500), "{kind}");
        assert_eq!(it.pick(&loads, &Ask { tried: &[500], ..ask }), Some(1), "{kind}");
        let avoid = [NodeId(500), NodeId(1)];
        let other = it.pick(&loads, &Ask { avoid_nodes: &avoid, ..ask }).unwrap();
        assert!(![500, 1, 700, 20].contains(&other), "{kind} took {other}");
        // Full ones are fine for a caller that makes room.
        let evicting = Ask { need_free: false, ..ask };
        assert_eq!(it.pick(&loads, &evicting), Some(20), "{kind}");
    }
}

/// A segment that took the place of another in the list is preferred from its first call on.
#[test]
fn a_preferred_segment_that_was_just_mounted_is_found() {
    for kind in PlacementKind::ALL {
        let (mut it, mut loads) = (kind.build(1), pool(1000, 4));
        it.pick(&loads, &ASK).unwrap();
        loads[321].segment = SegmentId(77);
        let ask = Ask { preferred: &[SegmentId(77)], ..ASK };
        assert_eq!(it.pick(&loads, &ask), Some(321), "{kind}");
    }
}

#[test]
fn random_treats_all_alike() {
    let mut loads = pool(20, 2);
    loads[3].free = GIB;
    loads[7].open = false;
    let counts = spread(&mut *PlacementKind::Random.build(5), &loads, &ASK, 19_000);
    assert_eq!(counts[7], 0);
    for (at, count) in counts.into_iter().enumerate().filter(|(at, _)| *at != 7) {
        assert!((800..1200).contains(&count), "load {at} got {count} of about 1000");
    }
}

#[test]
fn seeds_differ() {
    let loads = pool(100, 2);
    let picks = |seed| -> Vec<_> {
        let mut it = PlacementKind::Random.build(seed);
        (0..20).map(|_| it.pick(&loads, &ASK)).collect()
    };
    assert_eq!(picks(1), picks(1));
    assert_ne!(picks(1), picks(2));
}

#[test]
fn least_loaded_favours_the_emptier_and_starves_nobody() {
    // From 5 % used in steps of 5 %.
    let mut loads = pool(10, 1);
    for (at, load) in loads.iter_mut().enumerate() {
        load.free = GIB - GIB / 20 * (at as u64 + 1);
    }
    let counts = spread(&mut *PlacementKind::LeastLoaded.build(3), &loads, &ASK, 10_000);
    assert!(counts[0] > 2 * counts[9], "{counts:?}");
    assert!(counts.is_sorted_by(|emptier, fuller| *emptier + 150 > *fuller), "{counts:?}");
    assert!(counts.iter().all(|count| *count > 300), "{counts:?}");
}

/// A node joins a pool that is nearly full. It must not carry all new traffic alone.
#[test]
fn a_new_empty_node_does_not_attract_all_writes() {
    for others in [1u64, 3, 9, 99] {
        let mut loads = pool(others + 1, 1);
        for load in &mut loads {
            load.free = GIB / 10;
        }
        loads[0].free = GIB;
        for kind in [PlacementKind::LeastLoaded, PlacementKind::LocalFirst, PlacementKind::ByZone] {
            let counts = spread(&mut *kind.build(9), &loads, &ASK, 20_000);
            let fair = counts[1..].iter().sum::<usize>() / others as usize;
            let tenths = counts[0] * 10 / fair;
            assert!((15..45).contains(&tenths), "{kind}, {others} others: {tenths} tenths of fair");
        }
    }
}

/// Left alone, the rule evens the use out instead of overshooting.
#[test]
fn least_loaded_evens_out() {
    let mut loads = pool(8, 1);
    loads[0].free = GIB;
    let mut it = PlacementKind::LeastLoaded.build(4);
    let bytes = GIB / 2000;
    for _ in 0..6000 {
        let at = it.pick(&loads, &Ask { bytes, ..ASK }).unwrap();
        loads[at].free -= bytes;
    }
    let used: Vec<u64> = loads.iter().map(|load| (GIB - load.free) * 100 / GIB).collect();
    let (least, most) = (used.iter().min().unwrap(), used.iter().max().unwrap());
    assert!(most - least <= 5, "percent used: {used:?}");
}

#[test]
fn local_first_takes_host_then_zone_then_others() {
    let mut loads = pool(1000, 10);
    loads[123].host = HostId(42);
    let ask = Ask { host: HostId(42), zone: ZoneId(7), ..ASK };
    let mut it = PlacementKind::LocalFirst.build(2);
    // Two of a thousand are on this host; draws from everybody would hardly ever meet one.
    for _ in 0..200 {
        assert!([42, 123].contains(&it.pick(&loads, &ask).unwrap()));
    }
    loads[42].free = 0;
    loads[123].open = false;
    for _ in 0..200 {
        let at = it.pick(&loads, &ask).unwrap();
        assert_eq!(at % 10, 7, "load {at} is not in the zone");
    }
    loads.iter_mut().filter(|load| load.zone == ZoneId(7)).for_each(|load| load.free = 0);
    assert_ne!(it.pick(&loads, &ask).unwrap() % 10, 7);
    // With nothing free anywhere, a caller that makes room does so at home.
    for load in &mut loads {
        load.free = 0;
    }
    assert_eq!(it.pick(&loads, &ask), None);
    assert_eq!(it.pick(&loads, &Ask { need_free: false, ..ask }), Some(42));
}

/// Nearness is remembered, and what was exchanged in place is noticed soon.
#[test]
fn a_segment_that_moved_to_the_host_is_found_after_some_calls() {
    let mut loads = pool(1000, 10);
    let ask = Ask { host: HostId(5000), ..ASK };
    let mut it = PlacementKind::LocalFirst.build(2);
    it.pick(&loads, &ask).unwrap();
    loads[600] = SegmentLoad { host: HostId(5000), ..load(600, 10) };
    (0..1000 / 8).for_each(|_| assert!(it.pick(&loads, &ask).is_some()));
    assert_eq!(it.pick(&loads, &ask), Some(600));
    // The list got shorter: the memory of its tail must go.
    loads.truncate(600);
    assert!(it.pick(&loads, &ask).unwrap() < 600);
}

#[test]
fn by_zone_leaves_the_zones_in_use_while_it_can() {
    // 997 segments in zone 0, three in zone 1: draws from everybody nearly always miss zone 1.
    let mut loads = pool(1000, 1);
    loads[995..998].iter_mut().for_each(|load| load.zone = ZoneId(1));
    let mut it = PlacementKind::ByZone.build(8);
    let ask = Ask { avoid_nodes: &[NodeId(1), NodeId(2)], ..ASK };
    for _ in 0..200 {
        let at = it.pick(&loads, &ask).unwrap();
        assert!((995..998).contains(&at), "load {at} is in zone 0 again");
    }
    // Both zones hold a replica: any other node is better than none.
    let both = Ask { avoid_nodes: &[NodeId(1), NodeId(996)], ..ASK };
    for _ in 0..200 {
        assert!(![1, 996].contains(&it.pick(&loads, &both).unwrap()));
    }
}

#[test]
fn the_only_eligible_of_a_thousand_is_found() {
    for kind in PlacementKind::ALL {
        let mut loads = pool(1000, 10);
        for load in &mut loads {
            load.free = 0;
        }
        loads[777].free = 4096;
        assert_eq!(kind.build(6).pick(&loads, &ASK), Some(777), "{kind}");
        assert_eq!(kind.build(6).pick(&loads, &Ask { tried: &[777], ..ASK }), None, "{kind}");
        assert_eq!(kind.build(6).pick(&[], &ASK), None, "{kind}");
    }
}

#[test]
fn names_are_read_as_they_are_written() {
    for kind in PlacementKind::ALL {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    let wrong = "nearest".parse::<PlacementKind>().unwrap_err();
    assert_eq!(wrong, UnknownPlacement("nearest".into()));
    assert!(wrong.to_string().ends_with("random, least-loaded, local-first or by-zone"));
}
