//! Memory of GPUs that nodes lend as they ship: plain memory, whose copies take time, tear and may fail.
//!
//! What is judged (M14): in VRAM lies what asked for it. Every other key never does.

use super::{Plan, judge, tenants};
use crate::fibers;
use crate::swarm::pick;
use crate::{MS, Nanos};
use mooncrate_core::Extent;
use mooncrate_core::limits::SLICE_BYTES;
use mooncrate_core::plan::{Looked, Medium};
use mooncrate_core::rng::Rng;
use mooncrate_lock::Mutex;
use mooncrate_master::Master;
use mooncrate_mem::clock::boottime;
use mooncrate_mem::{FarShare, Room};
use mooncrate_node::{Gpus, NodeConfig, OpenVram, VramConfig, VramMemory};
use mooncrate_rt as rt;
use mooncrate_wire::MasterApi;
use mooncrate_wire::message::Look;
use std::borrow::Cow;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// What a seed draws about VRAM.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The nodes that have some, a bit each.
    nodes: u64,
    bytes: u64,
    rooms: usize,
    /// Puts that ask for it, of those of keys that may; in parts per thousand.
    pub(super) asked: u32,
    /// How long half of a copy takes, on average.
    nanos: Nanos,
    /// Keys, at least: so many that VRAM is full.
    keys: u64,
    /// Halves of copies that fail, in parts per million.
    fails: u64,
}

impl Load {
    /// From a stream of its own: the other choices of a seed stay the same. `None`: this seed has no VRAM.
    pub(super) fn draw(seed: u64, calm: bool) -> Option<Self> {
        let rng = &mut Rng::stream(seed, "vram");
        if !rng.chance(350) {
            return None;
        }
        let this = Self {
            nodes: 1 << rng.below(2) | rng.below(16),
            bytes: *pick(rng, &[4 << 10, 4 << 10, 8 << 10, 64 << 10]),
            rooms: *pick(rng, &[1, 2, 4]),
            asked: *pick(rng, &[200, 900]),
            nanos: *pick(rng, &[0, 20_000, MS]),
            keys: *pick(rng, &[0, 48, 96]),
            fails: *pick(rng, &[0, 0, 300, 3_000]),
        };
        Some(if calm { Self { bytes: 4 << 20, fails: 0, ..this } } else { this })
    }

    /// Lets values leave VRAM.
    pub(super) fn fit(&self, plan: &mut Plan) {
        plan.keys = plan.keys.max(self.keys);
        plan.value_bytes_max = plan.value_bytes_max.min(self.bytes / 2);
    }
}

/// Whether puts of a key may ask for VRAM.
pub(super) fn may_ask(key: usize) -> bool {
    key.is_multiple_of(2)
}

/// The settings of a node, with the VRAM that it lends.
pub(super) fn lend(plan: &Plan, node: usize, config: NodeConfig) -> NodeConfig {
    match plan.vram.filter(|load| load.nodes >> node & 1 == 1) {
        None => config,
        Some(load) => {
            let vram = vec![VramConfig { device: 0, bytes: load.bytes }];
            NodeConfig { vram, gpus: Arc::new(OfWorld(load)), ..config }
        }
    }
}

/// Looks at where a leader says that the other keys are.
pub(super) fn judge(plan: &Plan, master: &Arc<Master>) {
    if plan.vram.is_none() {
        return;
    }
    for tenant in 0..plan.tenants.count {
        let others = plan.tenants.keys(tenant, plan.keys).filter(|key| !may_ask(*key));
        let keys: Vec<judge::Key> = others.map(judge::key).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key.bytes[..]).collect();
        let look = Look { hold: false, places: true, reads: false, keys: Cow::Borrowed(&keys) };
        let deadline = boottime().deadline_in(plan.call_time);
        let found = master.scope(tenants::id(tenant)).look(&look, deadline);
        for located in found.into_iter().flatten().flatten() {
            if let Looked::At(located) = located
                && located.replicas.iter().any(|at| at.segment.medium() == Medium::Vram)
            {
                judge::fail("M14", format!("no put asked for VRAM: {located:?}"));
            }
        }
    }
}

/// GPUs of the world.
#[derive(Debug)]
struct OfWorld(Load);

impl Gpus for OfWorld {
    fn open(&self, wish: &VramConfig) -> Result<OpenVram, String> {
        fibers::note(16, wish.bytes, || "memory of a GPU is taken".to_owned());
        let mut seed = [0; 8];
        rt::random(&mut seed).map_err(|error| error.to_string())?;
        let rng = Mutex::new(Rng::new(u64::from_le_bytes(seed)));
        // What a GPU holds at first is whatever was there before.
        let bytes = Mutex::new(vec![0xdd; wish.bytes as usize]);
        let memory = Arc::new(Memory { load: self.0, rng, bytes });
        let room = || {
            let (memory, bytes) = (Arc::clone(&memory), vec![0; SLICE_BYTES as usize]);
            Box::new(Beside { memory, bytes }) as Box<dyn Room>
        };
        let rooms = (0..self.0.rooms).map(|_| room()).collect();
        Ok(OpenVram { memory, rooms })
    }
}

#[derive(Debug)]
struct Memory {
    load: Load,
    rng: Mutex<Rng>,
    bytes: Mutex<Vec<u8>>,
}

impl Memory {
    /// Copies two halves, one after the other.
    fn copy(&self, len: usize, mut go: impl FnMut(&mut [u8], Range<usize>)) -> io::Result<()> {
        for half in [0..len / 2, len / 2..len] {
            let (nanos, fails) = {
                let mut rng = self.rng.lock();
                (rng.below(2 * self.load.nanos + 1), rng.below(1_000_000) < self.load.fails)
            };
            rt::sleep(Duration::from_nanos(nanos));
            if fails {
                fibers::note(15, len as u64, || "a copy of a GPU fails".to_owned());
                return Err(io::Error::other("the GPU of the world fails"));
            }
            go(&mut self.bytes.lock(), half);
        }
        Ok(())
    }
}

impl VramMemory for Memory {
    fn zero(&self, extent: Extent) -> io::Result<()> {
        let at = extent.offset() as usize;
        self.copy(extent.len() as usize, |memory, half| memory[at..][half].fill(0))
    }

    fn zero_all(&self) -> io::Result<()> {
        let len = self.bytes.lock().len();
        self.copy(len, |memory, half| memory[half].fill(0))
    }

    fn share(&self) -> io::Result<Option<FarShare>> {
        Ok(None)
    }
}

#[derive(Debug)]
struct Beside {
    memory: Arc<Memory>,
    bytes: Vec<u8>,
}

impl Room for Beside {
    fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn store(&mut self, offset: u64, len: usize) -> io::Result<()> {
        let (at, from) = (offset as usize, &self.bytes);
        self.memory.copy(len, |memory, half| {
            memory[at..][half.clone()].copy_from_slice(&from[half]);
        })
    }

    fn load(&mut self, offset: u64, len: usize) -> io::Result<()> {
        let (at, into) = (offset as usize, &mut self.bytes);
        self.memory.copy(len, |memory, half| {
            into[half.clone()].copy_from_slice(&memory[at..][half]);
        })
    }
}
