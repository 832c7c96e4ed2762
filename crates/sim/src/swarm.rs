//! What one seed chooses: the size of the cluster, the shape of the load, and which faults happen how
//! often. Each seed leaves most of the space out and looks closely at the rest.

use crate::faults::Fault;
use crate::network::Quality;
use crate::{MS, Nanos, US};
use mooncrate_core::catalog::{Config, Offload};
use mooncrate_core::evict::PolicyKind;
use mooncrate_core::place::PlacementKind;
use mooncrate_core::rng::Rng;
use mooncrate_core::token::TokenKey;
use std::time::Duration;

/// How long a node is known after its last heartbeat. Short, so that runs are short.
pub const REGISTRATION: Duration = Duration::from_millis(400);
/// How long a put may stay open.
pub const PUT_TIMEOUT: Duration = Duration::from_millis(300);
/// How long an election holds without being renewed.
pub const TERM: Nanos = 60 * MS;

/// The choices of one seed.
#[derive(Clone, Debug)]
pub struct Swarm {
    /// The seed itself.
    pub seed: u64,
    /// Operations before the finale.
    pub ops: u64,
    /// Machines with nodes and clients.
    pub hosts: u8,
    /// Processes that own segments.
    pub nodes: u8,
    /// Processes that ask.
    pub clients: u8,
    /// Operations that a client has under way at a time.
    pub lanes: u8,
    /// Segments of a node.
    pub segments: u8,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Headers of a segment.
    pub slots: u32,
    /// Keys in use.
    pub keys: u16,
    /// Who has keys: each of them has keys of the same bytes.
    pub tenants: u8,
    /// Bytes that each tenant but the first may use.
    pub quota: Option<u64>,
    /// Longest pause between two operations of a lane.
    pub think: Nanos,
    /// Largest value.
    pub value_max: u64,
    /// The network.
    pub quality: Quality,
    /// The master's settings.
    pub catalog: Config,
    /// Mean time between two faults of a kind; `None`: never.
    pub faults: [Option<Nanos>; Fault::ALL.len()],
    /// What clients do.
    pub load: Load,
    /// Each node has a disk; `None`: none has.
    pub disks: Option<Disks>,
    /// Some nodes have VRAM; `None`: none has.
    pub vram: Option<Vram>,
    /// Leaders that are killed and whose state is lost with them, in parts per thousand.
    pub forgets: u32,
}

/// What VRAM is like.
#[derive(Clone, Copy, Debug)]
pub struct Vram {
    /// Bytes of a segment.
    pub bytes: u64,
    /// Its headers.
    pub slots: u32,
    /// Nodes that have one, as bits.
    pub nodes: u8,
    /// Puts that ask for it, in parts per thousand.
    pub asked: u32,
}

impl Vram {
    /// Whether a node has VRAM.
    pub const fn on(&self, node: u8) -> bool {
        self.nodes & 1 << node != 0
    }
}

/// What disks are like; chances in parts per thousand.
#[derive(Clone, Copy, Debug)]
pub struct Disks {
    /// Bytes of one.
    pub bytes: u64,
    /// Its headers.
    pub slots: u32,
    /// Copies that it refuses.
    pub refuses: u32,
    /// Ticks in which it evicts without need.
    pub evicts: u32,
    /// Ticks in which it loses a record.
    pub loses: u32,
    /// Longest time until a removal is durable, in milliseconds.
    pub removes_ms: u64,
    /// Mean time between two absences of nodes; `None`: there are none.
    pub away: Option<Nanos>,
    /// Ticks in which the leader succeeds in writing its list of disks.
    pub listed: u32,
    /// Removes that come as a pattern, which strikes what disks that are away hold of the whole tenant.
    pub patterns: u32,
    /// Starts of a node without its disk, which comes back at a later start.
    pub pulled: u32,
    /// Starts of a node with an older copy of its disk.
    pub restored: u32,
}

/// What clients do, in parts per thousand.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Operations that put.
    pub put: u32,
    /// Puts that replace what is there.
    pub upsert: u32,
    /// Puts of values that expire.
    pub expire: u32,
    /// That remove.
    pub remove: u32,
    /// That only ask.
    pub exist: u32,
    /// That repeat what an older put said.
    pub late: u32,
    /// Puts that store into mapped memory, where that is possible.
    pub direct: u32,
    /// Gets that read mapped memory, where that is possible.
    pub one_sided: u32,
    /// Gets that use a cached locator, where there is one.
    pub cached: u32,
    /// Gets that are content with a pin or a second look at the word.
    pub pinned: u32,
    /// Gets that rely on their lease alone.
    pub lease_only: u32,
    /// Steps that take much longer than usual.
    pub slow: u32,
    /// Bits are flipped in memory: only readers that verify may read.
    pub flips: bool,
}

impl Swarm {
    /// The choices of a seed, for a run of `ops` operations, or of 20 to 50 thousand.
    pub fn draw(seed: u64, ops: Option<u64>) -> Self {
        let rng = &mut Rng::stream(seed, "swarm");
        let faults = draw_faults(rng);
        let flips = faults[Fault::BitFlip as usize].is_some();
        let slots = *pick(rng, &[16, 24, 48, 96, 256]);
        let (tenants, share) = (*pick(rng, &[1, 1, 2, 3]), *pick(rng, &[0, 50, 150, 300]));
        let own_ops = 20_000 + rng.below(30_000);
        let mut swarm = Self {
            seed,
            // A shorter run is the beginning of the longer one.
            ops: ops.unwrap_or(own_ops),
            hosts: between(rng, 2, 3) as u8,
            nodes: between(rng, 3, 5) as u8,
            clients: between(rng, 4, 8) as u8,
            lanes: between(rng, 1, 4) as u8,
            segments: between(rng, 1, 2) as u8,
            segment_bytes: *pick(rng, &[32 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10]),
            slots,
            keys: *pick(rng, &[8, 24, 64, 96, 160]),
            tenants,
            quota: None,
            think: *pick(rng, &[200 * US, 2 * MS, 5 * MS, 20 * MS]),
            value_max: *pick(rng, &[600, 2048, 2048, 6000]),
            quality: draw_quality(rng),
            catalog: draw_config(rng, seed),
            faults,
            load: draw_load(rng, flips),
            disks: None,
            vram: None,
            forgets: 0,
        };
        swarm.draw_disks();
        swarm.draw_vram();
        swarm.draw_losses();
        swarm.draw_open();
        swarm.draw_tokens();
        let pool = u64::from(swarm.nodes) * u64::from(swarm.segments) * swarm.segment_bytes;
        swarm.quota = (share > 0).then_some(pool * share / 1000);
        swarm
    }

    /// Disks, from a stream of their own: the other choices of a seed stay the same.
    fn draw_disks(&mut self) {
        let rng = &mut Rng::stream(self.seed, "disks");
        let disks = Disks {
            bytes: *pick(rng, &[32 << 10, 128 << 10, 512 << 10]),
            slots: *pick(rng, &[16, 64, 256]),
            refuses: *pick(rng, &[0, 0, 20, 300]),
            evicts: *pick(rng, &[0, 1, 10]),
            loses: *pick(rng, &[0, 0, 5]),
            removes_ms: *pick(rng, &[5, 30, 300]),
            away: *pick(rng, &[None, Some(300 * MS), Some(1_500 * MS)]),
            listed: *pick(rng, &[1000, 300, 15]),
            patterns: 0,
            pulled: 0,
            restored: 0,
        };
        let policies = [Offload::Evict, Offload::Watermark, Offload::Eager, Offload::Eager];
        let catalog = Config {
            offload: *pick(rng, &policies),
            offload_permille: between(rng, 0, 900) as u32,
            offloads_per_disk_max: *pick(rng, &[1, 4, 64]),
            offload_bytes_per_disk_max: *pick(rng, &[4 << 10, 256 << 10]),
            promote: rng.chance(700),
            ..self.catalog.clone()
        };
        if rng.chance(600) {
            let patterns = *pick(rng, &[0, 0, 5, 100]);
            // From a stream of its own: what else is drawn stays as it was.
            let promote_reads = *pick(&mut Rng::stream(self.seed, "promote"), &[2, 2, 1, 5]);
            (self.disks, self.catalog) =
                (Some(Disks { patterns, ..disks }), Config { promote_reads, ..catalog });
        }
    }

    /// VRAM, from a stream of its own.
    fn draw_vram(&mut self) {
        let rng = &mut Rng::stream(self.seed, "vram");
        let some = rng.chance(350);
        let vram = Vram {
            bytes: *pick(rng, &[16 << 10, 32 << 10, 64 << 10]),
            slots: *pick(rng, &[8, 24, 96]),
            // At least one node, and rarely all.
            nodes: (between(rng, 1, 31) & between(rng, 1, 31)) as u8 | 1 << rng.below(3),
            asked: *pick(rng, &[100, 400, 800]),
        };
        let off = rng.chance(150);
        if some {
            self.vram = Some(vram);
            if off {
                self.catalog.offload = Offload::Off;
            }
        }
    }

    /// What is lost beside values, from a stream of its own.
    fn draw_losses(&mut self) {
        let rng = &mut Rng::stream(self.seed, "losses");
        self.forgets = *pick(rng, &[0, 0, 0, 300, 1000]);
        let (pulled, restored) = (*pick(rng, &[0, 0, 100, 400]), *pick(rng, &[0, 0, 100, 400]));
        if let Some(disks) = &mut self.disks {
            (disks.pulled, disks.restored) = (pulled, restored);
        }
    }

    /// What tenants may have open, from a stream of its own.
    fn draw_open(&mut self) {
        let rng = &mut Rng::stream(self.seed, "open");
        self.catalog.open_puts_max = *pick(rng, &[16_384, 16_384, 16_384, 6]);
        self.catalog.open_permille = *pick(rng, &[500, 500, 100]);
    }

    /// The key of put tokens, which all leaders of a run share, from a stream of its own: what a token of one
    /// run is worth in another must not be the same for all of them.
    fn draw_tokens(&mut self) {
        let rng = &mut Rng::stream(self.seed, "tokens");
        self.catalog.token_key = TokenKey([rng.next(), rng.next()]);
    }

    /// Bytes of a new value: mostly small, now and then empty or large.
    pub fn value_len(&self, rng: &mut Rng) -> u64 {
        match rng.below(100) {
            0..3 => 0,
            3..8 => rng.below(64),
            8..20 => 64 * rng.below(self.value_max / 64),
            20..97 => rng.below(self.value_max),
            _ => rng.below(16 << 10),
        }
    }
}

fn draw_faults(rng: &mut Rng) -> [Option<Nanos>; Fault::ALL.len()] {
    let calm = rng.chance(80);
    Fault::ALL.map(|fault| {
        let (chance, shortest, longest) = fault.rate();
        // Drawn even when calm, so that the choices behind it stay the same.
        let (on, gap) = (rng.chance(chance), between(rng, shortest, longest));
        (on && !calm).then_some(gap)
    })
}

fn draw_quality(rng: &mut Rng) -> Quality {
    let mut some = |most: u64| if rng.chance(500) { rng.below(most) } else { 0 };
    Quality {
        loss_ppm: some(20_000),
        twice_ppm: some(40_000),
        late_ppm: some(60_000),
        very_late_ppm: some(4_000),
    }
}

fn draw_config(rng: &mut Rng, seed: u64) -> Config {
    let high = between(rng, 700, 980) as u32;
    Config {
        high_permille: high,
        low_permille: high - between(rng, 20, 200) as u32,
        put_timeout: PUT_TIMEOUT,
        registration: REGISTRATION,
        silent_after: Duration::from_millis(between(rng, 90, 200)),
        order_retry: Duration::from_millis(*pick(rng, &[10, 30, 80, 300])),
        policy: *pick(rng, &[PolicyKind::Fifo, PolicyKind::Lru, PolicyKind::Density]),
        placement: *pick(
            rng,
            &[
                PlacementKind::Random,
                PlacementKind::LeastLoaded,
                PlacementKind::LocalFirst,
                PlacementKind::ByZone,
            ],
        ),
        stripe_bytes: *pick(rng, &[4 << 10, 8 << 10, 64 << 20]),
        copies_max: *pick(rng, &[0, 2, 8, 256, 256]),
        copies_per_node_max: *pick(rng, &[1, 4, 32]),
        copy_bytes_per_node_max: *pick(rng, &[4 << 10, 256 << 10]),
        hot_samples: *pick(rng, &[2, 6, 64]),
        hot_replicas_max: between(rng, 0, 2) as u8,
        hot_objects_max: *pick(rng, &[1, 16]),
        // As of a master alone, and as of one that is elected.
        serve_lease: *pick(rng, &[REGISTRATION / 4, REGISTRATION / 2]),
        seed,
        ..Config::default()
    }
}

fn draw_load(rng: &mut Rng, flips: bool) -> Load {
    Load {
        put: between(rng, 20, 250) as u32,
        upsert: *pick(rng, &[0, 0, 150, 500]),
        expire: *pick(rng, &[0, 0, 0, 80]),
        remove: between(rng, 10, 200) as u32,
        exist: between(rng, 0, 50) as u32,
        late: between(rng, 0, 40) as u32,
        direct: between(rng, 0, 900) as u32,
        one_sided: between(rng, 0, 1000) as u32,
        cached: between(rng, 0, 950) as u32,
        pinned: if flips { 0 } else { between(rng, 0, 500) as u32 },
        lease_only: if flips { 0 } else { between(rng, 0, 500) as u32 },
        slow: *pick(rng, &[0, 10, 40, 150]),
        flips,
    }
}

/// A number in `low..=high`.
pub fn between(rng: &mut Rng, low: u64, high: u64) -> u64 {
    low + rng.below(high - low + 1)
}

/// One of these.
pub fn pick<'a, T>(rng: &mut Rng, from: &'a [T]) -> &'a T {
    &from[rng.below(from.len() as u64) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_differ_and_repeat() {
        let text = |seed| format!("{:?}", Swarm::draw(seed, None));
        assert_eq!(text(7), text(7));
        assert_ne!(text(7), text(8));
        // Keys of tokens are shown to nobody.
        let key = |seed| Swarm::draw(seed, None).catalog.token_key;
        assert!(key(7) == key(7) && key(7) != key(8) && key(7) != TokenKey::default());
    }

    #[test]
    fn every_fault_is_on_in_some_seed_and_off_in_another() {
        for (at, fault) in Fault::ALL.iter().enumerate() {
            let on = (0..200).filter(|seed| Swarm::draw(*seed, None).faults[at].is_some()).count();
            assert!((10..190).contains(&on), "{fault:?} is on in {on} of 200 seeds");
        }
    }

    #[test]
    fn unverified_reads_and_bit_flips_never_meet() {
        for seed in 0..200 {
            let load = Swarm::draw(seed, None).load;
            assert!(!load.flips || load.pinned + load.lease_only == 0);
        }
    }
}
