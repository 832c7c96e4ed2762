//! A disk tells for minutes what it holds: what happens meanwhile, and what gets lost on the way.

use crate::rig::{KIB, Rig, config, disk, key, memory, ms, offer, trusted};
use mooncrate_core::catalog::{Catalog, Mounted, Offload, Removal, Start};
use mooncrate_core::error::RemoveError;
use mooncrate_core::key::Name;
use mooncrate_core::plan::{Announced, AnnouncedLife, Notice, OrderResult};
use mooncrate_core::{
    Generation, Incarnation, LeaderEpoch, Medium, NodeId, PutConfig, Seal, Slot, TenantId,
};

const OTHER: TenantId = TenantId(9);

/// A leader that has not waited for the disk of node 1, which is about to come with six values.
fn late() -> (Rig, Vec<Announced>) {
    let mut first = Rig::new(Offload::Eager, 1);
    for n in 0..6 {
        first.put(ms(1), &key(n));
    }
    first.settle(ms(1));
    let page = first.recovered(disk(1));
    assert_eq!(page.len(), 6);
    let start = Start::Takeover { expected: Vec::new(), trusted: vec![trusted(1)] };
    let config = crate::rig::config(Offload::Eager);
    let catalog = Catalog::new(config, LeaderEpoch(2), start, ms(0));
    let mut rig = Rig { catalog, disks: first.disks, copies: Vec::new(), orders: Vec::new() };
    for at in (0..40_000).step_by(100) {
        rig.catalog.tick(ms(at));
        rig.keep();
    }
    assert!(!rig.catalog.rebuilding());
    (rig, page)
}

fn mount(rig: &mut Rig, now: u64) -> Mounted {
    let offer = offer(1, Medium::Ssd, 2);
    rig.catalog.mount(ms(now), NodeId(1), std::slice::from_ref(&offer)).unwrap()[0]
}

fn tell(rig: &mut Rig, now: u64, page: &[Announced], last: bool) {
    rig.catalog.announce(ms(now), disk(1), Incarnation(2), page, last).unwrap();
    rig.catalog.audit().unwrap();
}

fn names(page: &[Announced]) -> Vec<Vec<u8>> {
    let label = |slot: &Announced| slot.life.clone().unwrap().object.unwrap().label;
    page.iter().map(|slot| label(slot).key.as_bytes().to_vec()).collect()
}

/// G6: a removal by pattern, of anybody, does not make a leader forget what was removed by name.
#[test]
fn what_was_removed_stays_removed_while_a_disk_tells() {
    let (mut rig, page) = late();
    let names = names(&page);
    let now = 40_001;
    let removed = rig.catalog.remove(ms(now), &names[4], false);
    assert_eq!(removed, Err(RemoveError::NotFound));
    assert_eq!(mount(&mut rig, now), Mounted::Announce);
    tell(&mut rig, now, &page[..3], false);
    rig.catalog.remove_matching(ms(now), OTHER, |_| false, 0, false).unwrap();
    tell(&mut rig, now, &page[3..], true);
    assert_eq!(rig.located(ms(now), &names[4]), []);
    // Whose tenant asked for nothing keeps the rest.
    for n in [0, 1, 2, 3, 5] {
        assert_eq!(rig.located(ms(now), &names[n]), [Medium::Ssd], "{n}");
    }
}

/// C4: a node that has only lost its master has its disk as it was, and clients remember places on it. It must not
/// serve before it has dropped what was struck meanwhile.
#[test]
fn a_late_disk_drops_what_was_struck_before_its_node_serves() {
    let (mut rig, page) = late();
    let now = 40_001;
    let removed = rig.catalog.remove(ms(now), &names(&page)[4], false);
    assert_eq!(removed, Err(RemoveError::NotFound));
    mount(&mut rig, now);
    assert!(rig.catalog.may_serve(NodeId(1)), "nothing of it was told yet");
    tell(&mut rig, now, &page, true);
    assert!(!rig.catalog.may_serve(NodeId(1)), "the removed value can be read there");
    rig.obey(ms(now));
    assert!(rig.catalog.may_serve(NodeId(1)));
}

/// C4: the same of a disk that no leader remembers. Its node stood still, and clients remember places under its number;
/// a disk that has just been opened has no such clients. Was: neither waited.
#[test]
fn an_unknown_disk_that_was_served_drops_all_before_its_node_serves() {
    for lapsed in [false, true] {
        let mut rig = Rig::new(Offload::Eager, 2);
        rig.start(ms(1), &key(0), &PutConfig::default()).unwrap();
        rig.settle(ms(1));
        let page = [1, 2].map(|node| rig.recovered(disk(node))).concat();
        rig.catalog = Catalog::new(config(Offload::Eager), LeaderEpoch(2), Start::New, ms(0));
        let mut offer = offer(1, Medium::Ssd, 1);
        offer.evidence.lapsed = lapsed;
        rig.catalog.mount(ms(2), NodeId(1), &[offer]).unwrap();
        rig.catalog.announce(ms(2), disk(1), Incarnation(1), &page, true).unwrap();
        assert_ne!(rig.catalog.may_serve(NodeId(1)), lapsed);
        rig.obey(ms(3));
        assert!(rig.catalog.may_serve(NodeId(1)));
    }
}

/// G6: what a pattern has removed does not come with a later page.
#[test]
fn a_pattern_counts_for_what_is_told_later() {
    let (mut rig, page) = late();
    let (names, now) = (names(&page), 40_001);
    mount(&mut rig, now);
    tell(&mut rig, now, &page[..3], false);
    let own = TenantId::DEFAULT;
    let waiting = rig.catalog.remove_matching(ms(now), own, |_| true, 0, false).unwrap().waiting;
    assert_eq!(waiting.len(), 3);
    tell(&mut rig, now, &page[3..], true);
    rig.obey(ms(now));
    assert!(names.iter().all(|name| rig.located(ms(now), name).is_empty()));
}

/// A pattern strikes what was away when it came, of its tenant. What went away later is remembered.
#[test]
fn a_pattern_does_not_count_for_disks_that_leave_after_it() {
    for (tenant, kept) in [(TenantId::DEFAULT, 3), (OTHER, 6)] {
        let mut rig = Rig::new(Offload::Eager, 3);
        for (n, node) in [(0, 1), (1, 1), (2, 1), (3, 2), (4, 2), (5, 2)] {
            let near = PutConfig { preferred: vec![memory(node)], ..PutConfig::default() };
            rig.start(ms(1), &key(n), &near).unwrap();
        }
        rig.settle(ms(1));
        let pages = [rig.recovered(disk(1)), rig.recovered(disk(2))];
        assert_eq!((pages[0].len(), pages[1].len()), (3, 3));
        let now = rig.lose(2, 1, &[2, 3]);
        rig.catalog.remove_matching(ms(now), tenant, |_| false, 0, false).unwrap();
        let now = rig.lose(now, 2, &[3]);
        for (node, page) in [(1, &pages[0]), (2, &pages[1])] {
            rig.mount(ms(now), node, Medium::Ssd, 2, page).unwrap();
        }
        let found = (0..6).filter(|n| !rig.located(ms(now), &key(*n)).is_empty()).count();
        assert_eq!(found, kept, "{tenant}");
        // The index has what the ledger had; the rest goes some at a time.
        rig.catalog.tick(ms(now));
        assert_eq!(rig.catalog.away(), (0, 0));
    }
}

/// The ledger does not keep what has come back, while another disk is away.
#[test]
fn a_disk_that_is_back_is_not_remembered_any_more() {
    let mut rig = Rig::new(Offload::Eager, 3);
    for (n, node) in [(0, 1), (1, 2)] {
        let near = PutConfig { preferred: vec![memory(node)], ..PutConfig::default() };
        rig.start(ms(1), &key(n), &near).unwrap();
    }
    rig.settle(ms(1));
    let page = rig.recovered(disk(1));
    let now = rig.lose(2, 1, &[2, 3]);
    let now = rig.lose(now, 2, &[3]);
    assert_eq!(rig.catalog.away(), (2, 2));
    rig.mount(ms(now), 1, Medium::Ssd, 2, &page).unwrap();
    assert_eq!(rig.catalog.away(), (1, 1));
}

/// A mount that came twice, or a page that took too long: the disk tells all again, and what it has told
/// stays readable. What it has let go of meanwhile is gone, although its word of that was lost.
#[test]
fn a_disk_that_tells_again_hides_nothing() {
    let (mut rig, page) = late();
    let (names, now) = (names(&page), 40_001);
    mount(&mut rig, now);
    tell(&mut rig, now, &page[..4], false);
    assert_eq!(mount(&mut rig, now), Mounted::Announce);
    for name in &names[..4] {
        assert_eq!(rig.located(ms(now), name), [Medium::Ssd]);
    }
    let mut again = page.clone();
    let AnnouncedLife { extent, .. } = again[1].life.clone().unwrap();
    again[1].life = Some(AnnouncedLife { extent, object: None });
    (again[2].generation, again[2].life) = (Generation(1), None);
    tell(&mut rig, now, &again[..3], false);
    tell(&mut rig, now, &again[3..], true);
    for (n, name) in names.iter().enumerate() {
        let gone = n == 1 || n == 2;
        assert_eq!(rig.located(ms(now), name).is_empty(), gone, "{n}");
    }
    // A page of the first time that comes late changes nothing.
    tell(&mut rig, now, &page[..4], false);
    assert_eq!(rig.located(ms(now), &names[2]), []);
}

/// A record may end before the page is taken in that tells of it.
#[test]
fn a_record_that_ended_before_it_was_told_is_not_given_out() {
    let (mut rig, page) = late();
    let (names, now) = (names(&page), 40_001);
    mount(&mut rig, now);
    tell(&mut rig, now, &page[..2], false);
    let ends = [(4, OrderResult::Waiting), (5, OrderResult::Freed { next: Generation(1) })];
    for (slot, result) in ends {
        let (segment, incarnation) = (disk(1), Incarnation(2));
        let (slot, generation) = (Slot(slot), Generation(0));
        rig.catalog.notice(ms(now), &Notice { segment, incarnation, slot, generation, result });
    }
    tell(&mut rig, now, &page[2..], true);
    let found: Vec<bool> = names.iter().map(|n| !rig.located(ms(now), n).is_empty()).collect();
    assert_eq!(found, [true, true, true, true, false, false]);
    assert!(!rig.believed().contains(&disk(1)), "what they hold is not known to be gone");
    rig.obey(ms(now));
    assert!(rig.believed().contains(&disk(1)));
}

/// An order to a disk that still tells may be lost like any other: it is repeated.
#[test]
fn orders_to_a_disk_that_tells_are_repeated() {
    let (mut rig, page) = late();
    let (names, now) = (names(&page), 40_001);
    mount(&mut rig, now);
    tell(&mut rig, now, &page[..3], false);
    let removal = rig.catalog.remove(ms(now), &names[0], false);
    let Ok(Removal::Waiting(object)) = removal else { panic!("{removal:?}") };
    assert_eq!(rig.catalog.take_orders().len(), 1, "and it is lost");
    rig.catalog.tick(ms(now + 1000));
    rig.obey(ms(now + 1000));
    assert!(rig.catalog.removed(object));
}

/// Who drops the copy on the disk wants it there no more, and as many in memory as before.
#[test]
fn a_dropped_copy_on_a_disk_is_not_made_again() {
    let mut rig = Rig::new(Offload::Watermark, 3);
    let wish = PutConfig { media: [0, 2, 1], ..PutConfig::default() };
    let plan = rig.catalog.put_start(ms(1), b"key", KIB, &wish).unwrap();
    rig.catalog.put_end(ms(1), b"key", plan.token, &[Seal(1)]).unwrap();
    rig.settle(ms(1));
    let at = rig.place(b"key", Medium::Ssd);
    rig.catalog.drop_copy(ms(2), b"key", at.segment).unwrap();
    rig.settle(ms(2));
    let gone = plan.replicas[0].segment;
    let node = (1..=3).find(|node| memory(*node) == gone).unwrap();
    let others: Vec<u64> = (1..=3).filter(|other| *other != node).collect();
    let now = rig.lose(3, node, &others);
    rig.settle(ms(now));
    assert_eq!(rig.located(ms(now), b"key"), [Medium::Dram, Medium::Dram]);
}

/// A disk that belongs to a tenant takes what is the tenant's ahead of evictions, too.
#[test]
fn a_tenants_own_disk_is_used_ahead_of_evictions() {
    let mut rig = Rig::new(Offload::Watermark, 0);
    rig.mount(ms(0), 1, Medium::Dram, 1, &[]).unwrap();
    let own =
        mooncrate_core::plan::SegmentOffer { tenant: Some(OTHER), ..offer(1, Medium::Ssd, 1) };
    rig.catalog.mount(ms(0), NodeId(1), std::slice::from_ref(&own)).unwrap();
    rig.catalog.announce(ms(0), own.segment, own.incarnation, &[], true).unwrap();
    for n in 0..12 {
        let name = key(n);
        let name = Name::new(if n % 2 == 0 { OTHER } else { TenantId::DEFAULT }, &name);
        let plan = rig.catalog.put_start(ms(1), name, KIB, &PutConfig::default()).unwrap();
        rig.catalog.put_end(ms(1), name, plan.token, &[Seal(1)]).unwrap();
    }
    rig.catalog.tick(ms(1));
    rig.settle(ms(1));
    assert_eq!(rig.catalog.counters().offloaded, 6);
}
