//! Stories of disks: what is evicted from memory stays on them, their owners evict there, and disks that
//! come back bring nothing that was removed. `disk_model.rs` does the same at random.

#![expect(clippy::unwrap_used, reason = "a test")]

use mooncrate_core::catalog::{Catalog, Config, Offload, Removal, Start};
use mooncrate_core::copy::{CopyDone, CopyOrder, DrainMode};
use mooncrate_core::error::{GetError, MountError, PutError, RemoveError};
use mooncrate_core::plan::{
    Announced, AnnouncedLife, AnnouncedObject, Notice, Order, OrderResult, SegmentOffer,
};
use mooncrate_core::{
    Extent, Generation, HostId, Incarnation, LeaderEpoch, Locator, Medium, NodeId, Now, ObjectId,
    PutConfig, Seal, SegmentId, Slot, TenantId, ZoneId,
};
use std::collections::BTreeMap;
use std::time::Duration;

const KIB: u64 = 1024;
const MEMORY: u64 = 16 * KIB;
const DISK: u64 = 64 * KIB;

fn ms(ms: u64) -> Now {
    Now(1_000_000_000).plus(Duration::from_millis(ms))
}

fn offer(node: u64, medium: Medium, incarnation: u64) -> SegmentOffer {
    SegmentOffer {
        segment: SegmentId::on(medium, NodeId(node), 0),
        incarnation: Incarnation(incarnation),
        node: NodeId(node),
        medium,
        bytes: if medium == Medium::Ssd { DISK } else { MEMORY },
        slots: 256,
        host: HostId(node),
        zone: ZoneId(0),
        tenant: None,
    }
}

fn memory(node: u64) -> SegmentId {
    SegmentId::on(Medium::Dram, NodeId(node), 0)
}

fn disk(node: u64) -> SegmentId {
    SegmentId::on(Medium::Ssd, NodeId(node), 0)
}

fn config(offload: Offload) -> Config {
    let order_retry = Duration::from_millis(100);
    Config { offload, order_retry, ..Config::default() }
}

/// A record of a disk, as its owner knows it.
#[derive(Clone, Debug)]
struct Record {
    order: CopyOrder,
}

/// Owners that do as they are told, as far as the story does not say otherwise.
struct Rig {
    catalog: Catalog,
    /// Records of each disk by slot, with the generation they live in.
    disks: BTreeMap<(SegmentId, Slot), Record>,
    /// Copies that were ordered and not carried out.
    copies: Vec<CopyOrder>,
    orders: Vec<Order>,
}

impl Rig {
    fn new(offload: Offload, nodes: u64) -> Self {
        Self::with(config(offload), nodes)
    }

    fn with(config: Config, nodes: u64) -> Self {
        let catalog = Catalog::new(config, LeaderEpoch(1), Start::Fresh, ms(0));
        let (disks, copies, orders) = (BTreeMap::new(), Vec::new(), Vec::new());
        let mut rig = Self { catalog, disks, copies, orders };
        for node in 1..=nodes {
            rig.mount(ms(0), node, Medium::Dram, 1, &[]).unwrap();
            rig.mount(ms(0), node, Medium::Ssd, 1, &[]).unwrap();
        }
        rig.keep();
        rig
    }

    fn mount(
        &mut self,
        now: Now,
        node: u64,
        medium: Medium,
        incarnation: u64,
        page: &[Announced],
    ) -> Result<(), MountError> {
        let offer = offer(node, medium, incarnation);
        self.catalog.mount(now, NodeId(node), std::slice::from_ref(&offer))?;
        self.catalog.announce(now, offer.segment, offer.incarnation, page, true)
    }

    /// The master writes its list down.
    fn keep(&mut self) {
        let disks = self.catalog.disks();
        self.catalog.disks_listing(&disks);
        self.catalog.disks_listed(&disks);
    }

    fn collect(&mut self) {
        self.copies.extend(self.catalog.take_copies().into_iter().map(|(_, copy)| copy));
        self.orders.extend(self.catalog.take_orders().into_iter().map(|(_, order)| order));
    }

    fn notice(&mut self, now: Now, at: &Locator, result: OrderResult) {
        let Locator { segment, incarnation, slot, generation, .. } = *at;
        self.catalog.notice(now, &Notice { segment, incarnation, slot, generation, result });
    }

    /// Owners carry out their orders.
    fn obey(&mut self, now: Now) {
        self.collect();
        while !self.orders.is_empty() {
            for order in std::mem::take(&mut self.orders) {
                let Order { segment, incarnation, slot, generation, .. } = order;
                self.disks.remove(&(segment, slot));
                let result = OrderResult::Freed { next: Generation(generation.0 + 1) };
                let notice = Notice { segment, incarnation, slot, generation, result };
                self.catalog.notice(now, &notice);
            }
            self.collect();
        }
        self.catalog.audit().unwrap();
    }

    /// Owners make the copies that were ordered; how many.
    fn copy(&mut self, now: Now, ok: bool) -> usize {
        self.collect();
        let copies = std::mem::take(&mut self.copies);
        for order in &copies {
            if ok && order.target.segment.medium() == Medium::Ssd {
                let place = (order.target.segment, order.target.slot);
                self.disks.insert(place, Record { order: order.clone() });
            }
            self.catalog.copied(now, &CopyDone::of(&order.target, ok));
        }
        self.catalog.audit().unwrap();
        copies.len()
    }

    /// Everything that is under way comes to its end.
    fn settle(&mut self, now: Now) {
        for _ in 0..100 {
            self.catalog.go_on(now);
            self.obey(now);
            if self.copy(now, true) == 0 {
                return;
            }
        }
        panic!("it never comes to rest");
    }

    fn start(
        &mut self,
        now: Now,
        key: &[u8],
        config: &PutConfig,
    ) -> Result<(ObjectId, Locator), PutError> {
        let plan = self.catalog.put_start(now, key, KIB, config)?;
        self.catalog.put_end(now, key, plan.token, &[Seal(plan.object.sequence)])?;
        Ok((plan.object, plan.replicas[0]))
    }

    /// A put that waits for room as a master lets it wait.
    fn put(&mut self, now: Now, key: &[u8]) -> ObjectId {
        for _ in 0..100 {
            match self.start(now, key, &PutConfig::default()) {
                Err(PutError::Reclaiming { .. }) => {
                    self.obey(now);
                    self.copy(now, true);
                    self.obey(now);
                }
                put => return put.unwrap().0,
            }
        }
        panic!("room never came");
    }

    fn located(&mut self, now: Now, key: &[u8]) -> Vec<Medium> {
        match self.catalog.locate(now, key, 0) {
            Ok(located) => located.replicas.iter().map(|at| at.segment.medium()).collect(),
            Err(GetError::NotFound) => Vec::new(),
            Err(error) => panic!("{error}"),
        }
    }

    fn place(&mut self, key: &[u8], medium: Medium) -> Locator {
        let located = self.catalog.peek(key).unwrap();
        *located.replicas.iter().find(|at| at.segment.medium() == medium).unwrap()
    }

    /// What a disk tells after a restart: its records, from slot 0 on.
    fn recovered(&self, segment: SegmentId) -> Vec<Announced> {
        let own = self.disks.iter().filter(|((disk, _), _)| *disk == segment);
        let told = own.enumerate().map(|(slot, (_, record))| {
            let order = &record.order;
            let CopyOrder { label, object, len, seal, .. } = order.clone();
            let extent = Extent::new(0, order.target.extent.len()).unwrap();
            let object = Some(AnnouncedObject { label, object, len, seal });
            let life = Some(AnnouncedLife { extent, object });
            Announced { slot: Slot(slot as u32), generation: Generation(0), life }
        });
        told.collect()
    }

    /// A node is not heard until it is counted as gone, and its mount can be read by nobody.
    fn lose(&mut self, from: u64, gone: u64, others: &[u64]) -> u64 {
        let to = from + 40_000;
        for at in (from..=to).step_by(100) {
            for node in others {
                self.catalog.heartbeat(ms(at), NodeId(*node)).unwrap();
            }
            self.catalog.tick(ms(at));
            self.obey(ms(at));
            self.keep();
        }
        assert!(!self.catalog.knows(NodeId(gone)));
        to
    }
}

fn key(n: u8) -> [u8; 2] {
    [b'k', n]
}

/// Four times as much as memory holds: everything is found, and what is gone from memory is on the disk.
#[test]
fn whatever_the_policy_nothing_is_lost_while_the_disk_has_room() {
    for offload in [Offload::Evict, Offload::Watermark, Offload::Eager] {
        let mut rig = Rig::new(offload, 1);
        for n in 0..48 {
            rig.put(ms(1), &key(n));
            rig.catalog.tick(ms(1));
            rig.settle(ms(1));
        }
        for n in 0..48 {
            assert_ne!(rig.located(ms(2), &key(n)), [], "{offload}: {n}");
            assert!(rig.catalog.exist(ms(2), &key(n)).unwrap());
        }
        let counters = rig.catalog.counters();
        assert_eq!(counters.evicted_unsaved, 0, "{offload}");
        assert!(counters.offloaded >= 32, "{offload}: {counters:?}");
        assert_eq!(counters.offloaded_bytes, counters.offloaded * KIB);
        let listed = rig.catalog.list(TenantId::DEFAULT, |_| true, 0, 100);
        assert_eq!(listed.entries.len(), 48);
    }
}

/// A victim whose copy is still on its way waits for that copy: it is not dropped for want of another disk.
#[test]
fn a_victim_waits_for_the_copy_that_was_begun_ahead() {
    for offload in [Offload::Watermark, Offload::Eager] {
        let mut rig = Rig::new(offload, 1);
        for n in 0..48 {
            // The disk has the orders and carries them out only when a put waits for room.
            rig.put(ms(1), &key(n));
            rig.catalog.tick(ms(1));
            rig.obey(ms(1));
        }
        rig.settle(ms(1));
        let counters = rig.catalog.counters();
        assert_eq!((counters.evicted_unsaved, counters.copies_failed), (0, 0), "{offload}");
        for n in 0..48 {
            assert_ne!(rig.located(ms(2), &key(n)), [], "{offload}: {n}");
        }
    }
}

#[test]
fn without_offload_what_is_evicted_is_gone() {
    let mut rig = Rig::new(Offload::Off, 1);
    for n in 0..48 {
        rig.put(ms(1), &key(n));
    }
    rig.settle(ms(1));
    assert_eq!(rig.catalog.counters().offloaded, 0);
    assert_eq!(rig.located(ms(2), &key(0)), []);
}

/// Every key that is asked for is found in memory, or on a disk, or not at all.
#[test]
fn memory_stands_before_disks_and_hits_are_counted_by_tier() {
    let mut rig = Rig::new(Offload::Eager, 1);
    rig.put(ms(1), b"both");
    rig.settle(ms(1));
    assert_eq!(rig.located(ms(2), b"both"), [Medium::Dram, Medium::Ssd]);
    for n in 0..30 {
        rig.put(ms(2), &key(n));
        rig.settle(ms(2));
    }
    assert_eq!(rig.located(ms(3), &key(0)), [Medium::Ssd]);
    assert_eq!(rig.located(ms(3), b"nobody"), []);
    let counters = rig.catalog.counters();
    assert_eq!((counters.hits, counters.hits_disk, counters.misses), (2, 1, 1));
}

/// A put never gets a place on a disk; a wish for one is a copy that follows.
#[test]
fn copies_on_disks_follow_a_put_that_wishes_them() {
    for media in [[0, 0, 1], [0, 1, 1]] {
        let mut rig = Rig::new(Offload::Off, 1);
        let wish = PutConfig { media, ..PutConfig::default() };
        let plan = rig.catalog.put_start(ms(1), b"wish", KIB, &wish).unwrap();
        assert_eq!(plan.replicas.len(), 1);
        assert_eq!(plan.replicas[0].segment, memory(1));
        rig.catalog.put_end(ms(1), b"wish", plan.token, &[Seal(1)]).unwrap();
        rig.settle(ms(1));
        assert_eq!(rig.located(ms(2), b"wish"), [Medium::Dram, Medium::Ssd]);
        // A tenant pays for memory only.
        assert_eq!(rig.catalog.tenant(TenantId::DEFAULT).used, KIB);
    }
}

/// While a disk is busy, puts wait; when it refuses, they go on and victims are dropped.
#[test]
fn a_slow_disk_holds_puts_back_and_one_that_refuses_does_not() {
    let mut rig = Rig::with(Config { offloads_per_disk_max: 2, ..config(Offload::Evict) }, 1);
    for n in 0..16 {
        rig.start(ms(1), &key(n), &PutConfig::default()).unwrap();
    }
    let plain = PutConfig::default();
    for again in 0..20 {
        let refused = rig.start(ms(2 + again), b"more", &plain);
        assert!(matches!(refused, Err(PutError::Reclaiming { .. })), "{refused:?}");
        rig.obey(ms(2 + again));
    }
    // Two victims are on their way, however often somebody asked; nothing was dropped.
    assert_eq!(rig.copies.len(), 2);
    assert_eq!(rig.catalog.copies_under_way(), 2);
    rig.copy(ms(30), false);
    assert_eq!(rig.catalog.counters().offloads_refused, 2);
    let put = loop {
        let put = rig.start(ms(31), b"more", &plain);
        rig.obey(ms(31));
        if !matches!(put, Err(PutError::Reclaiming { .. })) {
            break put;
        }
        assert_eq!(rig.catalog.copies_under_way(), 0, "a disk that refused is left alone");
    };
    put.unwrap();
    assert!(rig.catalog.counters().evicted_unsaved > 0);
    // After the pause it is asked again.
    rig.catalog.tick(ms(140));
    for n in 20..40 {
        let _ = rig.start(ms(140), &key(n), &plain);
    }
    rig.collect();
    assert!(!rig.copies.is_empty());
}

/// A disk that has its budget and moves nothing does not stop the cluster.
#[test]
fn a_disk_that_hangs_is_given_up() {
    let mut rig = Rig::with(Config { offloads_per_disk_max: 2, ..config(Offload::Evict) }, 1);
    for n in 0..16 {
        rig.start(ms(1), &key(n), &PutConfig::default()).unwrap();
    }
    let plain = PutConfig::default();
    assert!(matches!(rig.start(ms(2), b"more", &plain), Err(PutError::Reclaiming { .. })));
    rig.collect();
    for at in (100..6000).step_by(100) {
        rig.catalog.heartbeat(ms(at), NodeId(1)).unwrap();
        let _ = rig.start(ms(at), b"more", &plain);
        rig.obey(ms(at));
    }
    assert!(rig.catalog.exist(ms(6001), b"more").unwrap());
}

/// A victim that waits for its copy is readable all the time, and a candidate again if that fails.
#[test]
fn a_victim_is_readable_until_it_is_on_the_disk() {
    let mut rig = Rig::new(Offload::Evict, 1);
    for n in 0..16 {
        rig.start(ms(1), &key(n), &PutConfig::default()).unwrap();
    }
    let _ = rig.start(ms(2), b"more", &PutConfig::default());
    rig.collect();
    let moving: Vec<_> = rig.copies.iter().map(|copy| copy.label.key.clone()).collect();
    assert!(!moving.is_empty());
    for key in &moving {
        assert_eq!(rig.located(ms(3), key.as_bytes()), [Medium::Dram]);
    }
    rig.copy(ms(4), true);
    for key in &moving {
        assert_eq!(rig.located(ms(5), key.as_bytes()), [Medium::Ssd]);
    }
    rig.obey(ms(6));
    rig.start(ms(7), b"more", &PutConfig::default()).unwrap();
}

/// S1: the owner hides first, and the key waits until the record is gone.
#[test]
fn the_owner_evicts_from_its_disk() {
    let mut rig = Rig::new(Offload::Eager, 1);
    rig.put(ms(1), b"key");
    rig.settle(ms(1));
    // From memory at once, because the disk has it.
    rig.catalog.drop_copy(ms(2), b"key", memory(1)).unwrap();
    rig.obey(ms(2));
    assert_eq!(rig.located(ms(3), b"key"), [Medium::Ssd]);
    let at = rig.place(b"key", Medium::Ssd);
    for _ in 0..2 {
        rig.notice(ms(4), &at, OrderResult::Waiting);
        assert_eq!(rig.located(ms(5), b"key"), []);
        rig.catalog.audit().unwrap();
    }
    let put = rig.start(ms(6), b"key", &PutConfig::default());
    assert!(matches!(put, Err(PutError::InProgress { .. })), "{put:?}");
    for _ in 0..2 {
        rig.notice(ms(7), &at, OrderResult::Freed { next: Generation(at.generation.0 + 1) });
        rig.catalog.audit().unwrap();
    }
    assert_eq!(rig.catalog.counters().disk_evicted, 1);
    assert_eq!(rig.catalog.counters().disk_lost, 0);
    rig.start(ms(8), b"key", &PutConfig::default()).unwrap();
    // A late word about the life that is over changes nothing.
    rig.notice(ms(9), &at, OrderResult::Waiting);
    assert_eq!(rig.located(ms(9), b"key"), [Medium::Dram]);
}

/// A remove is answered when the record is gone, not when the owner says that it waits: a crash could
/// bring it back until then.
#[test]
fn a_remove_waits_for_the_end_of_the_record() {
    let mut rig = Rig::new(Offload::Eager, 1);
    let object = rig.put(ms(1), b"key");
    rig.settle(ms(1));
    let at = rig.place(b"key", Medium::Ssd);
    assert_eq!(rig.catalog.remove(ms(2), b"key", false), Ok(Removal::Waiting(object)));
    rig.collect();
    let (disk_orders, others): (Vec<_>, Vec<_>) =
        rig.orders.drain(..).partition(|order| order.segment == disk(1));
    assert_eq!(disk_orders.len(), 1);
    rig.orders = others;
    rig.obey(ms(3));
    rig.notice(ms(4), &at, OrderResult::Waiting);
    assert!(!rig.catalog.removed(object));
    rig.notice(ms(5), &at, OrderResult::Freed { next: Generation(at.generation.0 + 1) });
    assert!(rig.catalog.removed(object));
}

/// A record that was found damaged is gone at once; the object with it, if that was all.
#[test]
fn a_damaged_record_is_a_loss() {
    let mut rig = Rig::new(Offload::Eager, 1);
    rig.put(ms(1), b"both");
    rig.put(ms(1), b"alone");
    rig.settle(ms(1));
    rig.catalog.drop_copy(ms(2), b"alone", memory(1)).unwrap();
    rig.obey(ms(2));
    for key in [b"both".as_slice(), b"alone"] {
        let at = rig.place(key, Medium::Ssd);
        rig.notice(ms(3), &at, OrderResult::Freed { next: Generation(at.generation.0 + 1) });
    }
    rig.catalog.audit().unwrap();
    assert_eq!(rig.located(ms(4), b"both"), [Medium::Dram]);
    assert_eq!(rig.located(ms(4), b"alone"), []);
    assert_eq!(rig.catalog.counters().disk_lost, 2);
}

/// The second read within a while brings a value back into memory, where there is room.
#[test]
fn what_is_read_twice_comes_back_into_memory() {
    for promote in [true, false] {
        let mut rig = Rig::with(Config { promote, ..config(Offload::Eager) }, 1);
        rig.put(ms(1), b"key");
        rig.settle(ms(1));
        rig.catalog.drop_copy(ms(2), b"key", memory(1)).unwrap();
        rig.obey(ms(2));
        assert_eq!(rig.located(ms(3), b"key"), [Medium::Ssd]);
        rig.settle(ms(3));
        assert_eq!(rig.catalog.counters().promoted, 0);
        assert_eq!(rig.located(ms(4), b"key"), [Medium::Ssd]);
        rig.settle(ms(4));
        let expected: &[Medium] =
            if promote { &[Medium::Dram, Medium::Ssd] } else { &[Medium::Ssd] };
        assert_eq!(rig.located(ms(5), b"key"), expected);
        assert_eq!(rig.catalog.counters().promoted, u64::from(promote));
    }
}

/// In full memory the coldest make room, because the disk has them.
#[test]
fn a_promotion_takes_the_place_of_something_colder_and_drops_nothing() {
    let mut rig = Rig::new(Offload::Watermark, 1);
    for n in 0..40 {
        rig.put(ms(1), &key(n));
        rig.settle(ms(1));
    }
    assert_eq!(rig.located(ms(2), &key(0)), [Medium::Ssd]);
    assert_eq!(rig.located(ms(3), &key(0)), [Medium::Ssd]);
    for at in (4..200).step_by(10) {
        rig.catalog.heartbeat(ms(at), NodeId(1)).unwrap();
        rig.catalog.tick(ms(at));
        rig.settle(ms(at));
    }
    assert_eq!(rig.located(ms(201), &key(0)), [Medium::Dram, Medium::Ssd]);
    for n in 0..40 {
        assert_ne!(rig.located(ms(202), &key(n)), [], "{n}");
    }
    assert_eq!(rig.catalog.counters().evicted_unsaved, 0);
}

/// Memory that is drained goes to disks where other memory has no room, and disks go to other disks.
#[test]
fn drains_move_between_memory_and_disks() {
    let mut rig = Rig::new(Offload::Evict, 2);
    for n in 0..28 {
        rig.put(ms(1), &key(n));
        rig.settle(ms(1));
    }
    for at in (0..3000).step_by(10) {
        if at == 10 {
            rig.catalog.drain(NodeId(1), None, DrainMode::Move).unwrap();
        }
        for node in [1, 2] {
            rig.catalog.heartbeat(ms(at), NodeId(node)).unwrap();
        }
        rig.catalog.tick(ms(at));
        rig.settle(ms(at));
    }
    let stat = rig.catalog.drain_stat(NodeId(1), None).unwrap();
    assert!(stat.drained(), "{stat:?}");
    for n in 0..28 {
        let located = rig.catalog.locate(ms(3000), &key(n), 0).unwrap();
        let nodes = [memory(2), disk(2)];
        assert!(located.replicas.iter().all(|at| nodes.contains(&at.segment)), "{n}");
    }
}

/// G6: a disk that was away keeps what is still true, and nothing else.
#[test]
fn a_disk_that_returns_keeps_what_is_still_true() {
    let mut rig = Rig::new(Offload::Eager, 2);
    let keys = [b"kept", b"gone", b"anew", b"redo"];
    let near = PutConfig { preferred: vec![memory(1)], ..PutConfig::default() };
    for key in keys {
        rig.start(ms(1), key, &near).unwrap();
    }
    rig.settle(ms(1));
    assert_eq!(rig.recovered(disk(1)).len(), 4);
    let now = rig.lose(2, 1, &[2]);
    assert_eq!(rig.catalog.away(), (1, 4));
    for key in keys {
        assert_eq!(rig.located(ms(now), key), []);
    }
    assert_eq!(rig.catalog.remove(ms(now), b"gone", false), Err(RemoveError::NotFound));
    rig.put(ms(now), b"anew");
    rig.put(ms(now), b"redo");
    rig.settle(ms(now));
    assert!(matches!(rig.catalog.remove(ms(now), b"redo", false), Ok(Removal::Waiting(_))));
    rig.settle(ms(now));
    assert_eq!(rig.catalog.counters().ledger_struck, 3);

    let page = rig.recovered(disk(1));
    rig.mount(ms(now), 1, Medium::Ssd, 2, &page).unwrap();
    assert_eq!(rig.located(ms(now), b"kept"), [Medium::Ssd]);
    assert_eq!(rig.located(ms(now), b"gone"), []);
    assert_eq!(rig.located(ms(now), b"redo"), []);
    assert_eq!(rig.located(ms(now), b"anew"), [Medium::Dram, Medium::Ssd]);
    // Their keys wait until the records are gone, and the next leader believes the disk only then.
    let put = rig.start(ms(now), b"gone", &PutConfig::default());
    assert!(matches!(put, Err(PutError::InProgress { .. })), "{put:?}");
    assert!(!rig.catalog.disks().contains(&disk(1)));
    rig.settle(ms(now));
    rig.start(ms(now), b"gone", &PutConfig::default()).unwrap();
    assert!(rig.catalog.disks().contains(&disk(1)));
    let counters = rig.catalog.counters();
    assert_eq!((counters.disks_returned, counters.disk_dropped), (1, 3));
    assert_eq!(rig.catalog.away(), (0, 0));
}

/// A restart that nobody noticed as a loss: the new mount takes over what the old one had.
#[test]
fn a_quick_restart_of_a_disk_keeps_everything() {
    let mut rig = Rig::new(Offload::Eager, 1);
    for n in 0..8 {
        rig.put(ms(1), &key(n));
    }
    rig.settle(ms(1));
    let page = rig.recovered(disk(1));
    rig.mount(ms(100), 1, Medium::Dram, 2, &[]).unwrap();
    rig.mount(ms(100), 1, Medium::Ssd, 2, &page).unwrap();
    for n in 0..8 {
        assert_eq!(rig.located(ms(101), &key(n)), [Medium::Ssd]);
    }
    // The old mounts are swept out, and the new ones stay.
    for at in (200..40_000).step_by(100) {
        rig.catalog.heartbeat(ms(at), NodeId(1)).unwrap();
        rig.catalog.tick(ms(at));
        rig.obey(ms(at));
        rig.keep();
    }
    for n in 0..8 {
        assert_eq!(rig.located(ms(40_000), &key(n)), [Medium::Ssd]);
    }
    assert!(matches!(rig.catalog.remove(ms(40_000), &key(0), false), Ok(Removal::Waiting(_))));
    rig.obey(ms(40_000));
    assert_eq!(rig.catalog.remove(ms(40_000), &key(0), false), Err(RemoveError::NotFound));
}

/// A process that takes a node's name over and has no disk: the disk went with the one before, though its
/// node is heard as ever.
#[test]
fn a_node_that_comes_back_without_its_disk_leaves_it_behind() {
    let mut rig = Rig::new(Offload::Eager, 2);
    let near = PutConfig { preferred: vec![memory(1)], ..PutConfig::default() };
    for n in 0..4 {
        rig.start(ms(1), &key(n), &near).unwrap();
    }
    rig.settle(ms(1));
    assert_eq!(rig.recovered(disk(1)).len(), 4);
    rig.mount(ms(100), 1, Medium::Dram, 2, &[]).unwrap();
    for at in (200..30_000).step_by(100) {
        rig.catalog.heartbeat(ms(at), NodeId(1)).unwrap();
        rig.catalog.heartbeat(ms(at), NodeId(2)).unwrap();
        rig.catalog.tick(ms(at));
        rig.obey(ms(at));
        rig.keep();
    }
    for n in 0..4 {
        assert_eq!(rig.located(ms(30_000), &key(n)), []);
        rig.put(ms(30_000), &key(n));
    }
}

fn takeover(rig: &Rig, nodes: &[u64], disks: &[SegmentId]) -> Rig {
    let expected = nodes.iter().map(|node| NodeId(*node)).collect();
    let start = Start::Takeover { expected, disks: disks.to_vec() };
    let catalog = Catalog::new(config(Offload::Eager), LeaderEpoch(2), start, ms(0));
    Rig { catalog, disks: rig.disks.clone(), copies: Vec::new(), orders: Vec::new() }
}

/// A new leader believes the disks on its list; another disk starts over empty.
#[test]
fn a_new_leader_believes_the_disks_on_its_list() {
    let mut first = Rig::new(Offload::Eager, 1);
    for n in 0..4 {
        first.put(ms(1), &key(n));
    }
    first.settle(ms(1));
    let list = first.catalog.disks();
    assert_eq!(list, [disk(1)]);
    for believed in [true, false] {
        let list = if believed { &list[..] } else { &[] };
        let mut next = takeover(&first, &[1], list);
        let page = next.recovered(disk(1));
        next.mount(ms(1), 1, Medium::Dram, 2, &[]).unwrap();
        next.mount(ms(1), 1, Medium::Ssd, 2, &page).unwrap();
        next.catalog.tick(ms(2));
        next.keep();
        next.settle(ms(2));
        for n in 0..4 {
            let found = next.catalog.locate(ms(30_000), &key(n), 0).is_ok();
            assert_eq!(found, believed);
        }
        assert_eq!(next.catalog.counters().disk_dropped, if believed { 0 } else { 4 });
        assert_eq!(next.catalog.disks(), [disk(1)]);
    }
}

/// The trap: a disk on the list does not come, its keys are given up, and the leader after the next one
/// must not believe it. So the wait ends only when it is off the list.
#[test]
fn a_rebuild_ends_when_the_disks_that_are_missing_are_off_the_list() {
    let mut first = Rig::new(Offload::Eager, 1);
    first.put(ms(1), b"key");
    first.settle(ms(1));
    let mut next = takeover(&first, &[1], &first.catalog.disks());
    for at in (0..40_000).step_by(100) {
        next.catalog.tick(ms(at));
    }
    assert!(matches!(
        next.catalog.remove(ms(40_000), b"key", false),
        Err(RemoveError::Rebuilding { .. })
    ));
    assert!(next.catalog.disks_changed());
    assert_eq!(next.catalog.disks(), []);
    next.keep();
    next.catalog.tick(ms(40_001));
    assert_eq!(next.catalog.remove(ms(40_002), b"key", false), Err(RemoveError::NotFound));
    // It comes late: its other records are believed, the one that was removed is not.
    let page = next.recovered(disk(1));
    next.mount(ms(40_003), 1, Medium::Dram, 2, &[]).unwrap();
    next.mount(ms(40_003), 1, Medium::Ssd, 2, &page).unwrap();
    next.settle(ms(40_003));
    assert_eq!(next.located(ms(40_004), b"key"), []);
    assert_eq!(next.catalog.disks(), [disk(1)]);
}

/// The same trap while a leader lives: the replicas of a disk that left hold their keys until the disk
/// is off the list.
#[test]
fn a_disk_that_left_holds_its_keys_until_it_is_off_the_list() {
    let mut rig = Rig::new(Offload::Eager, 1);
    rig.put(ms(1), b"key");
    rig.settle(ms(1));
    rig.catalog.unmount(ms(2), NodeId(1), &[memory(1), disk(1)]);
    for at in (10..30_000).step_by(100) {
        rig.catalog.tick(ms(at));
    }
    rig.mount(ms(30_000), 2, Medium::Dram, 1, &[]).unwrap();
    let put = rig.start(ms(30_001), b"key", &PutConfig::default());
    assert!(matches!(put, Err(PutError::Held { .. })), "{put:?}");
    rig.keep();
    rig.catalog.tick(ms(30_002));
    rig.start(ms(30_003), b"key", &PutConfig::default()).unwrap();
}

#[test]
fn an_offer_whose_medium_is_not_that_of_its_id_is_refused() {
    let mut rig = Rig::new(Offload::Off, 0);
    let wrong = SegmentOffer { medium: Medium::Dram, ..offer(1, Medium::Ssd, 1) };
    let refused = rig.catalog.mount(ms(0), NodeId(1), &[wrong]);
    assert!(matches!(refused, Err(MountError::BadOffer { .. })), "{refused:?}");
}

/// What a node tells of its memory: one object, in slot 0.
fn in_memory(order: &CopyOrder) -> Announced {
    let CopyOrder { label, object, len, seal, .. } = order.clone();
    let extent = Extent::new(0, order.target.extent.len()).unwrap();
    let life = AnnouncedLife { extent, object: Some(AnnouncedObject { label, object, len, seal }) };
    Announced { slot: Slot(0), generation: Generation(0), life: Some(life) }
}

/// One object on the disk of node 1 and in the memory of node 2, under the last leader.
fn on_both() -> (Rig, CopyOrder) {
    let mut first = Rig::new(Offload::Eager, 1);
    first.put(ms(1), b"key");
    first.settle(ms(1));
    let order = first.disks.values().next().unwrap().order.clone();
    (first, order)
}

/// A record that is turned away keeps its key only from others: a good copy of it is welcome, and a
/// remove still waits for the record.
#[test]
fn a_record_that_is_turned_away_keeps_no_good_copy_out() {
    let (first, order) = on_both();
    let mut next = takeover(&first, &[1, 2], &[]);
    let page = next.recovered(disk(1));
    next.mount(ms(1), 1, Medium::Ssd, 2, &page).unwrap();
    next.mount(ms(1), 2, Medium::Dram, 1, &[in_memory(&order)]).unwrap();
    next.catalog.tick(ms(40_000));
    assert_eq!(next.located(ms(40_001), b"key"), [Medium::Dram]);
    assert_eq!(next.catalog.counters().announced_dropped, 0);
    assert_eq!(next.catalog.remove(ms(40_002), b"key", true), Ok(Removal::Waiting(order.object)));
    next.collect();
    let (record, others): (Vec<_>, Vec<_>) =
        next.orders.drain(..).partition(|order| order.segment == disk(1));
    next.orders = others;
    next.obey(ms(40_003));
    assert!(!next.catalog.removed(order.object), "the record is still there");
    next.orders = record;
    next.obey(ms(40_004));
    assert!(next.catalog.removed(order.object));
    next.catalog.audit().unwrap();
}

/// A disk evicts while others still tell: who has the same object in memory keeps it.
#[test]
fn an_eviction_during_a_rebuild_keeps_no_good_copy_out() {
    let (first, order) = on_both();
    let mut next = takeover(&first, &[1, 2], &[disk(1)]);
    let page = next.recovered(disk(1));
    next.mount(ms(1), 1, Medium::Ssd, 2, &page).unwrap();
    let at = next.place(b"key", Medium::Ssd);
    next.notice(ms(2), &at, OrderResult::Waiting);
    next.mount(ms(3), 2, Medium::Dram, 1, &[in_memory(&order)]).unwrap();
    next.catalog.tick(ms(40_000));
    next.keep();
    next.catalog.tick(ms(40_001));
    assert_eq!(next.located(ms(40_002), b"key"), [Medium::Dram]);
    assert_eq!(next.catalog.counters().announced_dropped, 0);
    next.catalog.audit().unwrap();
}

/// A disk may tell for minutes: what it has told can be replaced and removed meanwhile.
#[test]
fn a_disk_takes_orders_while_it_still_tells() {
    let mut rig = Rig::new(Offload::Eager, 2);
    let near = PutConfig { preferred: vec![memory(1)], ..PutConfig::default() };
    for key in [b"one", b"two"] {
        rig.start(ms(1), key, &near).unwrap();
    }
    rig.settle(ms(1));
    let page = rig.recovered(disk(1));
    let now = rig.lose(2, 1, &[2]);
    let offer = offer(1, Medium::Ssd, 2);
    rig.catalog.mount(ms(now), NodeId(1), std::slice::from_ref(&offer)).unwrap();
    rig.catalog.announce(ms(now), offer.segment, offer.incarnation, &page, false).unwrap();
    assert_eq!(rig.located(ms(now), b"one"), [Medium::Ssd]);
    let upsert = PutConfig { upsert: true, ..PutConfig::default() };
    let plan = rig.catalog.put_start(ms(now), b"one", KIB, &upsert).unwrap();
    let ended = rig.catalog.put_end(ms(now), b"one", plan.token, &[Seal(9)]).unwrap();
    assert!(matches!(ended, mooncrate_core::catalog::Ended::Replacing(_)), "{ended:?}");
    assert!(matches!(rig.catalog.remove(ms(now), b"two", false), Ok(Removal::Waiting(_))));
    rig.catalog.audit().unwrap();
    rig.obey(ms(now));
    assert_eq!(rig.located(ms(now), b"two"), []);
    rig.catalog.announce(ms(now), offer.segment, offer.incarnation, &[], true).unwrap();
    rig.settle(ms(now));
    assert_eq!(rig.located(ms(now), b"one")[0], Medium::Dram);
    rig.catalog.audit().unwrap();
}
