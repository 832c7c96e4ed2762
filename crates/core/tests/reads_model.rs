//! Reads that clients tell of late, against the same policy that sees every read at once.
//!
//! Two clients read blocks, put what they missed, remember locators and tell their marks in reports. Few
//! blocks are read often, and scans read blocks that nobody reads again. The judge is the policy itself,
//! over as many blocks as the segment holds, told of each read when it is made.
#![expect(clippy::cast_precision_loss, reason = "shares of small numbers")]
#![expect(clippy::unwrap_used, reason = "a test's helpers may panic as its tests do")]

use mooncrate_core::catalog::{Catalog, Config, Start};
use mooncrate_core::error::{GetError, PutError};
use mooncrate_core::evict::PolicyKind;
use mooncrate_core::ids::{Slot, TenantId};
use mooncrate_core::plan::{Evidence, Located, Notice, Order, OrderResult, ReadMark, SegmentOffer};
use mooncrate_core::rng::Rng;
use mooncrate_core::{
    Generation, HostId, Incarnation, LeaderEpoch, Medium, NodeId, Now, PutConfig, Seal, SegmentId,
    ZoneId, seal,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const BLOCK: u64 = 4096;
/// Blocks that the segment holds.
const ROOM: u64 = 2000;
const REQUESTS: usize = 6000;
const CLIENTS: usize = 2;
/// Requests of one client between two of its reports; together the clients put about a hundred blocks
/// meanwhile, a twentieth of the room.
const REPORT_EVERY: usize = 10;

/// Requests of eight blocks each, and now and then a scan of forty.
fn trace(seed: u64) -> Vec<Vec<u32>> {
    let (mut rng, mut fresh) = (Rng::new(seed), 1 << 20);
    (0..REQUESTS)
        .map(|n| {
            if n % 10 == 9 {
                fresh += 40;
                return (fresh - 40..fresh).collect();
            }
            // A product of uniform numbers: few are drawn often, and the tail is long.
            let block = |rng: &mut Rng| (rng.below(200) * rng.below(200) * rng.below(200)) as u32;
            (0..8).map(|_| block(&mut rng) / 4000).collect()
        })
        .collect()
}

/// Hits if every read is seen at once.
fn exact_hits(kind: PolicyKind, trace: &[Vec<u32>]) -> usize {
    let (mut policy, mut held, mut hits) = (kind.build(), BTreeSet::new(), 0);
    for request in trace {
        let (found, missed): (Vec<u32>, Vec<u32>) = request.iter().partition(|b| held.contains(*b));
        hits += found.len();
        for block in &found {
            policy.touch(Slot(*block));
        }
        for block in missed {
            if held.contains(&block) {
                continue;
            }
            if held.len() as u64 == ROOM {
                held.remove(&policy.victim().unwrap().0);
            }
            held.insert(block);
            policy.insert(Slot(block));
        }
    }
    hits
}

#[derive(Default)]
struct Client {
    known: BTreeMap<u32, Located>,
    marks: BTreeMap<u32, ReadMark>,
}

struct Rig {
    catalog: Catalog,
    now: Now,
    clients: [Client; CLIENTS],
}

fn name(block: u32) -> [u8; 4] {
    block.to_le_bytes()
}

impl Rig {
    fn new(policy: PolicyKind) -> Self {
        // The room between the watermarks is not what is judged here.
        let (high_permille, low_permille) = (990, 980);
        let config = Config { policy, high_permille, low_permille, ..Config::default() };
        let now = Now(1_000_000_000);
        let mut catalog = Catalog::new(config, LeaderEpoch(1), Start::New, now);
        let offer = SegmentOffer {
            segment: SegmentId(1),
            incarnation: Incarnation(1),
            node: NodeId(1),
            medium: Medium::Dram,
            bytes: ROOM * seal::extent_bytes(BLOCK),
            slots: 2 * ROOM as u32,
            host: HostId(1),
            zone: ZoneId(0),
            tenant: None,
            evidence: Evidence::default(),
        };
        catalog.mount(now, NodeId(1), std::slice::from_ref(&offer)).unwrap();
        catalog.announce(now, offer.segment, offer.incarnation, &[], true).unwrap();
        Self { catalog, now, clients: Default::default() }
    }

    fn obey(&mut self) {
        for (_, order) in self.catalog.take_orders() {
            let Order { segment, incarnation, slot, generation, .. } = order;
            let result = OrderResult::Freed { next: Generation(generation.0 + 1) };
            let notice = Notice { segment, incarnation, slot, generation, result };
            self.catalog.notice(self.now, &notice);
        }
    }

    fn put(&mut self, block: u32) {
        let config = PutConfig::default();
        let plan = loop {
            match self.catalog.put_start(self.now, &name(block), BLOCK, &config) {
                Err(PutError::Reclaiming { .. }) => self.obey(),
                Err(PutError::Exists) => return,
                decided => break decided.unwrap(),
            }
        };
        self.catalog.put_end(self.now, &name(block), plan.token, &[Seal(1)]).unwrap();
        self.obey();
    }

    /// Whether the block is found, by a remembered place or by asking.
    fn read(&mut self, client: usize, block: u32) -> bool {
        let client = &mut self.clients[client];
        let lives = |at: &Located| {
            self.catalog.peek(&name(block)).is_some_and(|found| found.object == at.object)
        };
        if let Some(at) = client.known.get(&block).filter(|at| lives(at)) {
            let fresh = || at.read_mark(0, block.into()).unwrap();
            client.marks.entry(block).or_insert_with(fresh).reads += 1;
            return true;
        }
        match self.catalog.locate(self.now, &name(block), 0) {
            Ok(located) => {
                client.known.insert(block, located);
                true
            }
            Err(GetError::NotFound) => {
                client.known.remove(&block);
                false
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn report(&mut self, client: usize) {
        let client = &mut self.clients[client];
        let marks: Vec<ReadMark> = std::mem::take(&mut client.marks).into_values().collect();
        let mut outdated = Vec::new();
        self.catalog.note_reads(self.now, TenantId::DEFAULT, &marks, &mut outdated);
        for mark in outdated {
            client.known.remove(&(mark.tag as u32));
        }
    }

    fn hits(&mut self, trace: &[Vec<u32>], tells: bool) -> usize {
        let mut hits = 0;
        for (n, request) in trace.iter().enumerate() {
            let client = n % CLIENTS;
            self.now = self.now.plus(Duration::from_millis(1));
            let missed: Vec<u32> =
                request.iter().copied().filter(|block| !self.read(client, *block)).collect();
            hits += request.len() - missed.len();
            if tells && (n / CLIENTS).is_multiple_of(REPORT_EVERY) {
                self.report(client);
            }
            for block in missed {
                self.put(block);
            }
        }
        self.catalog.audit().unwrap();
        hits
    }
}

#[test]
fn reads_that_are_told_late_hit_as_often() {
    let points = |hits: usize, blocks: usize| 100.0 * hits as f64 / blocks as f64;
    for seed in 0..3 {
        let trace = trace(seed);
        let blocks = trace.iter().map(Vec::len).sum();
        for kind in [PolicyKind::Fifo, PolicyKind::Lru] {
            let exact = points(exact_hits(kind, &trace), blocks);
            let told = points(Rig::new(kind).hits(&trace, true), blocks);
            let untold = points(Rig::new(kind).hits(&trace, false), blocks);
            println!("seed {seed}, {kind}: {told:.2} % of {exact:.2} %; untold {untold:.2} %");
            assert!((exact - told).abs() < 1.0, "{kind}: {told:.2} % instead of {exact:.2} %");
            if kind == PolicyKind::Lru {
                assert!(told > untold + 1.0, "a trace that sees no difference judges nothing");
            }
        }
    }
}
