//! What a seed draws before it runs.

use super::hurts::Hurts;
use super::load::Deed;
use super::tenants::{self, Tenants};
use super::{bare, disks, guards, vram};
use crate::fibers::Late;
use crate::swarm::{between, pick};
use crate::{MS, Nanos};
use mooncrate_core::catalog::{Config, Offload};
use mooncrate_core::evict::PolicyKind;
use mooncrate_core::place::PlacementKind;
use mooncrate_core::rng::Rng;
use mooncrate_wire::auth::{Access, ClusterSecret, Gate, SECRET_BYTES, Token};
use mooncrate_wire::{LinkConfig, PoolConfig, Role};
use std::sync::Arc;
use std::time::Duration;

/// Operations of a run whose seed may choose.
const OPS: (u64, u64) = (2_000, 12_000);

/// Seeds in a thousand that are about nodes and disks that come back.
const ABSENCES: u32 = 250;

fn secret() -> ClusterSecret {
    ClusterSecret::from_bytes([7; SECRET_BYTES])
}

/// A run before it begins.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// Operations after which no new one begins.
    pub ops: u64,
    /// Nodes.
    pub nodes: usize,
    /// Bytes of each node's memory.
    pub segment_bytes: u64,
    /// Objects that a node has headers for.
    pub slots: u32,
    /// Client processes; the number of the node on whose machine each of them is, so that it maps its memory.
    pub clients: Vec<Option<usize>>,
    /// So many of them, the first ones, hold what they read.
    pub holders: usize,
    /// Threads of each that make calls.
    pub lanes: usize,
    /// The same in the process of each node, and in that of a master that stands alone; 0: it has no client.
    pub lanes_of_nodes: usize,
    /// The master's.
    pub lanes_of_master: usize,
    /// Keys.
    pub keys: u64,
    /// Bytes of the longest value.
    pub value_bytes_max: u64,
    /// Copies of each value.
    pub replicas: u8,
    /// How long a call may take.
    pub call_time: Duration,
    /// Between two calls of a lane, on average.
    pub pause: Nanos,
    /// How often each deed happens, among all.
    pub(super) shares: Vec<(Deed, u64)>,
    /// Which faults befall whom, and how often.
    pub hurts: Hurts,
    /// Threads that run late.
    pub late: Late,
    /// Readers on the machine of each node that count on leases alone.
    pub bare: u64,
    /// For how long they ask.
    pub bare_leases_ms: [u64; 4],
    /// Whether bits in the memory of nodes flip.
    pub flips: bool,
    /// Whether somebody empties nodes, lets them leave, and gives them memory.
    pub operator: bool,
    /// Whether what is put stays: no faults, room enough, and nobody ends a copy. Then every miss is judged.
    pub calm: bool,
    /// The secret of the cluster; `None`: it has none.
    pub secret: Option<ClusterSecret>,
    /// Who shares the cluster, and what each may use.
    pub tenants: Tenants,
    /// Masters; more than one of them elect a leader.
    pub masters: usize,
    /// How long the lease of a leader in etcd lasts.
    pub term: Duration,
    /// Threads of a master that answer.
    pub workers: usize,
    /// The disks of nodes; `None`: they have none.
    pub disks: Option<disks::Load>,
    /// The guards of nodes; `None`: they have none.
    pub guards: Option<guards::Load>,
    /// The VRAM of nodes; `None`: they have none.
    pub vram: Option<vram::Load>,
    /// The master's settings.
    pub catalog: Config,
}

impl Plan {
    /// What servers ask for.
    pub(super) fn gate(&self) -> Gate {
        Gate::new(self.secret.clone(), None)
    }

    /// Settings of links that show the secret, and so can prove every role; those of clients of another tenant than the
    /// first show its token.
    pub(super) fn links(&self, tenant: u64) -> PoolConfig {
        let token = self.secret.clone().map(|secret| match tenant {
            0 => Token::Cluster(secret),
            _ => secret.derive(Role::Client, &tenants::name(tenant)).expect("a plain name"),
        });
        let access = Access { token: token.map(Arc::new), ..Access::default() };
        PoolConfig { link: LinkConfig { access, ..LinkConfig::default() }, ..PoolConfig::default() }
    }

    /// What this seed draws. `ops`: so many operations.
    pub fn draw(seed: u64, ops: Option<u64>) -> Self {
        let rng = &mut Rng::stream(seed, "shipped");
        let serve_lease = Duration::from_millis(*pick(rng, &[200, 1_000, 5_000]));
        let high = between(rng, 700, 980) as u32;
        let catalog = Config {
            high_permille: high,
            low_permille: high - between(rng, 20, 200) as u32,
            policy: *pick(rng, &PolicyKind::ALL),
            placement: *pick(rng, &[PlacementKind::Random, PlacementKind::LeastLoaded]),
            stripe_bytes: *pick(rng, &[8 << 10, 64 << 20]),
            seed,
            ..Config::default()
        };
        let nodes = between(rng, 1, 4) as usize;
        let near = *pick(rng, &[0, 0, 500, 1000]);
        let mut client = || rng.chance(near).then(|| rng.below(nodes as u64) as usize);
        let clients = std::iter::repeat_with(&mut client).take(4).collect::<Vec<_>>();
        let clients = clients[..between(rng, 1, 4) as usize].to_vec();
        let flips = rng.chance(150);
        let long_leases = Rng::stream(seed, "leases").chance(300);
        let mut this = Self {
            seed,
            ops: ops.unwrap_or_else(|| between(rng, OPS.0, OPS.1)),
            nodes,
            segment_bytes: *pick(rng, &[64 << 10, 256 << 10, 1 << 20]),
            slots: *pick(rng, &[16, 64, 256]),
            clients,
            lanes: between(rng, 1, 3) as usize,
            lanes_of_nodes: *pick(rng, &[0, 0, 0, 1, 2]),
            lanes_of_master: *pick(rng, &[0, 0, 0, 1, 2]),
            keys: if rng.chance(300) { between(rng, 2, 6) } else { between(rng, 3, 48) },
            value_bytes_max: *pick(rng, &[100, 3_000, 20_000, 60_000]),
            replicas: *pick(rng, &[1, 1, 2]),
            call_time: Duration::from_millis(*pick(rng, &[100, 1_000, 5_000])),
            pause: *pick(rng, &[0, MS, 10 * MS]),
            shares: Deed::ALL.map(|deed| (deed, *pick(rng, deed.shares()))).into(),
            hurts: Hurts::draw(seed, flips),
            late: Late::default(),
            bare: *pick(rng, &[0, 1, 3]),
            bare_leases_ms: if long_leases { bare::LONG_LEASES_MS } else { bare::LEASES_MS },
            flips,
            operator: rng.chance(300) && nodes > 1,
            calm: rng.chance(200),
            holders: *pick(rng, &[0, 0, 1, 4]),
            secret: rng.chance(250).then(secret),
            tenants: Tenants::default(),
            masters: *pick(rng, &[1, 1, 2, 3]),
            term: Duration::from_secs(between(rng, 1, 3)),
            workers: between(rng, 1, 2) as usize,
            disks: None,
            guards: guards::Load::draw(seed),
            vram: None,
            catalog,
        };
        if flips {
            // A get that meets wrong bytes tries again until its time is over.
            this.call_time = Duration::from_millis(100);
        }
        this.equip();
        this.share();
        this.set_lease(serve_lease, rng);
        if this.calm {
            this.calm_down(rng);
        } else {
            this.draw_absences();
        }
        this.keys = this.keys.max(2 * this.tenants.count);
        this.draw_late();
        this
    }

    /// Several tenants, some with a quota of less than there is. From a stream of its own.
    fn share(&mut self) {
        let tenants = Tenants::draw(self);
        self.tenants = tenants;
        tenants.fit(self);
        if tenants.count > 1 {
            self.secret.get_or_insert_with(secret);
            let clients = self.clients.len().max(tenants.count as usize);
            self.clients.resize(clients, None);
        }
    }

    /// Disks, VRAM and guards, and what else must be so that they matter.
    fn equip(&mut self) {
        self.disks = disks::Load::draw(self.seed, self.calm);
        if let Some(load) = self.disks.clone() {
            load.fit(self);
        }
        self.vram = vram::Load::draw(self.seed, self.calm);
        if let Some(load) = self.vram {
            load.fit(self);
        }
        if let Some(load) = self.guards {
            load.fit(self);
        }
        if self.hurts.is_garbled() && self.vram.is_none() {
            self.fit_to_garbles();
        }
    }

    /// Clients that store long values straight into the memory of nodes, several at once.
    fn fit_to_garbles(&mut self) {
        for (client, near) in self.clients.iter_mut().enumerate() {
            near.get_or_insert(client % self.nodes);
        }
        self.value_bytes_max = 60_000;
        self.catalog.stripe_bytes = 64 << 20;
        for (deed, share) in &mut self.shares {
            if matches!(deed, Deed::Batch | Deed::Upsert) {
                *share = 60;
            }
        }
    }

    /// Some runs are about nodes and disks that come back when their values were removed or replaced: few nodes and
    /// keys, short leases, values that lie on disks, and masters that die while a node is away. From a stream of its own.
    fn draw_absences(&mut self) {
        let rng = &mut Rng::stream(self.seed, "absences");
        if self.flips || self.tenants.judged || !rng.chance(ABSENCES) {
            return;
        }
        let nodes = self.nodes.min(2);
        (self.nodes, self.bare) = (nodes, 0);
        self.clients.iter_mut().for_each(|near| *near = near.filter(|node| *node < nodes));
        if rng.chance(500) {
            self.masters = 1;
        }
        let load = disks::Load::of_absences(self.seed, rng);
        load.fit(self);
        self.keys = if load.is_small() { between(rng, 12, 60) } else { between(rng, 2, 12) };
        self.catalog.offload = Offload::Eager;
        if load.is_small() && rng.chance(500) {
            (self.catalog.offload, self.catalog.offload_permille) = (Offload::Watermark, 0);
        }
        self.disks = Some(load);
        self.hurts = Hurts::of_absences(rng, self.masters);
        // Some twenty seconds, and a node goes three times in each.
        self.pause = 6 * MS * (self.clients.len() * self.lanes) as u64;
        self.call_time = self.call_time.min(Duration::from_secs(1));
        self.set_lease(Duration::from_millis(200), rng);
        for (deed, share) in &mut self.shares {
            match deed {
                Deed::Put | Deed::Get | Deed::Remove => *share = 60,
                Deed::Upsert => *share = *pick(rng, &[0, 60]),
                _ => {}
            }
        }
    }

    /// Threads are late often for a moment, or now and then for longer than any lease.
    fn draw_late(&mut self) {
        if self.tenants.judged {
            return;
        }
        let rng = &mut Rng::stream(self.seed, "late");
        let lease = self.catalog.serve_lease.as_nanos() as Nanos;
        let draws = [(0, 0), (0, 0), (20, lease / 50), (5, lease / 4), (1, lease * 10)];
        // A node that stands still for long is forgotten, with what it holds.
        let draws = if self.calm { &draws[..4] } else { &draws[..] };
        let (mut permille, mut nanos_max) = *pick(rng, draws);
        if self.hurts.is_garbled() {
            // A writer stands still in the middle of a copy.
            (permille, nanos_max) = (20, lease / 4);
        }
        self.late = Late { permille, nanos_max };
    }

    /// A serving lease, and the times that follow from it. Some puts end by the master before a slow writer ends them.
    fn set_lease(&mut self, serve_lease: Duration, rng: &mut Rng) {
        self.catalog.serve_lease = serve_lease;
        self.catalog.registration = serve_lease * 4;
        self.catalog.put_timeout = serve_lease * *pick(rng, &[1, 6, 6]);
        self.catalog.silent_after = serve_lease * 2 / 5;
        self.catalog.order_retry = serve_lease / 5;
    }

    /// Nothing that may take a value away: no faults of nodes, and room also for what was removed or replaced and waits
    /// for leases.
    fn calm_down(&mut self, rng: &mut Rng) {
        self.hurts.calm_down();
        self.flips = false;
        self.nodes = self.nodes.max(2);
        (self.segment_bytes, self.slots) = (4 << 20, 4_096);
        self.keys = self.keys.min(16);
        self.value_bytes_max = self.value_bytes_max.min(600);
        self.pause = self.pause.max(MS);
        self.set_lease(Duration::from_millis(200), rng);
        if self.hurts.one_by_one && self.hurts.every > 0 {
            // Another master leads, and knows all nodes, before the lease of one is over.
            self.set_lease(Duration::from_secs(5), rng);
            (self.masters, self.term) = (3, Duration::from_secs(1));
        }
        (self.catalog.high_permille, self.catalog.low_permille) = (980, 960);
        self.shares.retain(|(deed, _)| *deed != Deed::DropCopy);
    }

    /// What a lane does next.
    pub(super) fn deed(&self, rng: &mut Rng) -> Deed {
        let mut draw = rng.below(self.shares.iter().map(|(_, share)| share).sum());
        let here = |(_, share): &&(Deed, u64)| {
            let here = draw < *share;
            draw = draw.saturating_sub(*share);
            here
        };
        self.shares.iter().find(here).expect("shares add up").0
    }
}
