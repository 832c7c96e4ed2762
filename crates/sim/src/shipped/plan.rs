//! What a seed draws before it runs.

use crate::swarm::{between, pick};
use crate::{MS, Nanos};
use mooncrate_core::catalog::Config;
use mooncrate_core::place::PlacementKind;
use mooncrate_core::rng::Rng;
use std::time::Duration;

/// Operations of a run whose seed may choose.
const OPS: (u64, u64) = (2_000, 12_000);

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
    /// Threads of each that make calls.
    pub lanes: usize,
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
    /// Shares of puts, gets, removes, questions about existence, batches, upserts, views, and copies that somebody
    /// asks for.
    pub shares: [u64; 8],
    /// Between two faults, on average; 0: none.
    pub fault_every: Nanos,
    /// The master's settings.
    pub catalog: Config,
    /// Between two heartbeats of a node.
    pub heartbeat: Duration,
}

impl Plan {
    /// What this seed draws. `ops`: so many operations.
    pub fn draw(seed: u64, ops: Option<u64>) -> Self {
        let rng = &mut Rng::stream(seed, "shipped");
        let serve_lease = Duration::from_millis(*pick(rng, &[200, 1_000, 5_000]));
        let high = between(rng, 700, 980) as u32;
        let catalog = Config {
            high_permille: high,
            low_permille: high - between(rng, 20, 200) as u32,
            registration: serve_lease * 4,
            serve_lease,
            put_timeout: serve_lease * 6,
            silent_after: serve_lease * 2 / 5,
            order_retry: serve_lease / 5,
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
        Self {
            seed,
            ops: ops.unwrap_or_else(|| between(rng, OPS.0, OPS.1)),
            nodes,
            segment_bytes: *pick(rng, &[64 << 10, 256 << 10, 1 << 20]),
            slots: *pick(rng, &[16, 64, 256]),
            clients,
            lanes: between(rng, 1, 3) as usize,
            keys: between(rng, 3, 48),
            value_bytes_max: *pick(rng, &[100, 3_000, 20_000, 60_000]),
            replicas: *pick(rng, &[1, 1, 2]),
            call_time: Duration::from_millis(*pick(rng, &[100, 1_000, 5_000])),
            pause: *pick(rng, &[0, MS, 10 * MS]),
            shares: [
                between(rng, 20, 60),
                between(rng, 20, 100),
                between(rng, 2, 30),
                between(rng, 0, 10),
                between(rng, 0, 20),
                *pick(rng, &[0, 0, 10, 60]),
                between(rng, 0, 30),
                *pick(rng, &[0, 0, 5]),
            ],
            fault_every: *pick(rng, &[0, 100 * MS, 500 * MS, 3_000 * MS]),
            heartbeat: serve_lease / 10,
            catalog,
        }
    }
}
