//! A long run of the pool and the allocator against what a stranger would expect, by command:
//! `./dev paged-model [--millions N] [--threads T] [--seed S]`.
//!
//! Real threads make random calls. Beside each block the model keeps who owns it, how many sequences read it
//! and which name its bytes were written for, and judges every answer: a block that is taken belongs to
//! nobody and has no reader, a block that is found holds the bytes of its name until it is released. A second pool has
//! room for all small requests at any time, and gets requests that are too large as well: no small one is refused. After
//! each round of calls all threads stop, everything is evicted, and every block must be free exactly once. One round is
//! for pools that evict by density, as caches do by default, and the next for pools that evict by LRU.
//!
//! A seed repeats the calls of every thread, not their order in time: repeat a failure several times.

#![expect(clippy::print_stdout, reason = "a program that prints what it did")]

use mooncrate_core::rng::Rng;
use mooncrate_paged::{
    Allocator, BlockHash, BlockId, Contiguity, Handle, Policy, Pool, Registered, TakeError,
};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const USAGE: &str = "usage: pool_model [--millions N] [--threads T] [--seed S]";
/// Calls of all threads between two audits.
const ROUND: u64 = 500_000;
/// Blocks of the pool and of the allocator: few enough to evict all the time, enough for several lists.
const BLOCKS: u32 = 12_000;
/// Different chains of names, and the blocks of each.
const CHAINS: u64 = 600;
const CHAIN: usize = 48;
/// Blocks of a small request to the pool that always has room, at most; a thread has one such request at a time.
const SMALL: u64 = 8;
/// Most sequences and allocations that one thread holds at a time.
const HELD: usize = 64;

/// What the command line asks for.
#[derive(Clone, Copy, Debug)]
struct Options {
    millions: u64,
    threads: u64,
    seed: u64,
}

/// What the model knows of a block.
#[derive(Debug, Default)]
struct Mark {
    /// 1 + the thread that took it; 0: it is free, or published.
    owner: AtomicU32,
    /// Sequences that use it.
    readers: AtomicU32,
    /// The name that its bytes were written for.
    bytes: AtomicU64,
}

/// The parts that all threads share.
#[derive(Debug)]
struct World {
    pool: Pool,
    blocks: Vec<Mark>,
    /// Two of its blocks are never given back, so nobody can have all but one.
    roomy: Pool,
    allocator: Allocator,
    owners: Vec<AtomicU32>,
}

/// What one thread holds.
#[derive(Debug)]
struct Worker<'a> {
    world: &'a World,
    me: u32,
    rng: Rng,
    /// Published blocks with their names.
    sequences: Vec<(Vec<BlockHash>, Vec<BlockId>)>,
    handles: Vec<(Handle, Vec<BlockId>)>,
}

fn name(chain: u64, at: usize) -> BlockHash {
    let mixed = (chain * CHAIN as u64 + at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    BlockHash([mixed, mixed.rotate_left(32) ^ chain])
}

impl Worker<'_> {
    fn call(&mut self) {
        match self.rng.below(18) {
            0..=5 if self.sequences.len() < HELD => self.admit(),
            0..=7 => self.finish(),
            8 => self.fork(),
            9..=10 => self.private(),
            11..=14 => self.allocate_or_free(),
            16 if self.rng.chance(20) => self.impossible(),
            16..=17 => self.small(),
            _ if self.rng.chance(20) => drop(self.world.pool.resize(BLOCKS - 64 * (self.me % 2))),
            _ if self.rng.chance(100) => drop(self.world.pool.evict(100)),
            _ => self.finish(),
        }
    }

    /// Finds the prefix of a chain and publishes the rest of it.
    fn admit(&mut self) {
        let (chain, len) = (self.rng.below(CHAINS), 1 + self.rng.below(CHAIN as u64) as usize);
        let names: Vec<BlockHash> = (0..len).map(|at| name(chain, at)).collect();
        let mut table = vec![BlockId::default(); len];
        let pool = &self.world.pool;
        let found = pool.match_prefix(&names, &mut table);
        for (block, name) in table[..found].iter().zip(&names) {
            self.world.begin_reading(*block, *name);
        }
        let taken = if self.rng.chance(200) {
            pool.take_run(1, &mut table[found..], |_| Ok(()))
        } else {
            pool.take(1, &mut table[found..], |_| Ok(()))
        };
        match taken {
            Ok(()) => {
                for (block, name) in table[found..].iter().zip(&names[found..]) {
                    self.world.own(self.me, *block);
                    let mark = &self.world.blocks[block.0 as usize];
                    mark.bytes.store(name.0[0], Ordering::Relaxed);
                    mark.readers.fetch_add(1, Ordering::Relaxed);
                    mark.owner.store(0, Ordering::Relaxed);
                }
                if self.rng.chance(500) {
                    pool.register_all(&table[found..], &names[found..], 0);
                } else {
                    for (block, name) in table[found..].iter().zip(&names[found..]) {
                        let _: Registered = pool.register(*block, *name, 0);
                    }
                }
                self.sequences.push((names, table));
            }
            Err(TakeError::Full(_)) => {
                table.truncate(found);
                self.sequences.push((names[..found].to_vec(), table));
            }
            Err(TakeError::Arena(error)) => panic!("nothing was zeroed: {error}"),
        }
    }

    fn finish(&mut self) {
        if self.sequences.is_empty() {
            return;
        }
        let at = self.rng.below(self.sequences.len() as u64) as usize;
        let (names, mut table) = self.sequences.swap_remove(at);
        for (block, name) in table.iter().zip(&names) {
            self.world.end_reading(*block, *name);
        }
        self.world.pool.release(&mut table);
    }

    fn fork(&mut self) {
        if let Some((names, table)) = self.sequences.last().filter(|_| self.sequences.len() < HELD)
        {
            self.world.pool.share(table);
            for (block, name) in table.iter().zip(names) {
                self.world.begin_reading(*block, *name);
            }
            self.sequences.push((names.clone(), table.clone()));
        }
    }

    /// Takes private blocks and ends them, mostly one.
    fn private(&mut self) {
        let count = if self.rng.chance(700) { 1 } else { 1 + self.rng.below(80) as usize };
        let mut table = vec![BlockId::default(); count];
        if self.world.pool.take(1, &mut table, |_| Ok(())).is_ok() {
            for block in &table {
                self.world.own(self.me, *block);
            }
            for block in &table {
                self.world.blocks[block.0 as usize].owner.store(0, Ordering::Relaxed);
            }
            self.world.pool.abandon(&table);
        }
    }

    /// Takes a few blocks where there is always room for them, and leaves some of them cached.
    fn small(&mut self) {
        let count = if self.rng.chance(500) { 1 } else { 1 + self.rng.below(SMALL) as usize };
        let (pool, mut table) = (&self.world.roomy, vec![BlockId::default(); count]);
        let taken = pool.take(1, &mut table, |_| Ok(()));
        taken.unwrap_or_else(|full| panic!("a small request was refused: {full}"));
        if self.rng.chance(500) {
            return pool.abandon(&table);
        }
        for block in &table {
            let _: Registered = pool.register(*block, name(self.rng.below(1 << 40), 0), 0);
        }
        pool.release(&mut table);
    }

    /// Asks for more blocks than there can be.
    fn impossible(&self) {
        let mut table = vec![BlockId::default(); BLOCKS as usize - 1];
        assert!(self.world.roomy.take(1, &mut table, |_| Ok(())).is_err(), "two are never free");
    }

    fn allocate_or_free(&mut self) {
        let World { allocator, owners, .. } = self.world;
        if self.rng.chance(500) && self.handles.len() < HELD {
            let count = if self.rng.chance(600) { 1 } else { 1 + self.rng.below(300) as usize };
            let how = [Contiguity::None, Contiguity::Preferred, Contiguity::Required]
                [self.rng.below(3) as usize];
            let mut table = vec![BlockId::default(); count];
            let Ok(handle) = allocator.allocate(&mut table, how) else { return };
            for block in &table {
                let before = owners[block.0 as usize].swap(self.me + 1, Ordering::Relaxed);
                assert_eq!(before, 0, "{block:?} of the allocator was handed out twice");
            }
            let in_a_row = table.windows(2).all(|pair| pair[0].0 + 1 == pair[1].0);
            assert!(in_a_row || how != Contiguity::Required, "{table:?}");
            self.handles.push((handle, table));
        } else if !self.handles.is_empty() {
            let at = self.rng.below(self.handles.len() as u64) as usize;
            let (handle, table) = self.handles.swap_remove(at);
            for block in &table {
                owners[block.0 as usize].store(0, Ordering::Relaxed);
            }
            allocator.free(handle, &table).expect("the handle owns these blocks");
        }
    }
}

impl World {
    fn new(policy: Policy) -> Self {
        let roomy = Pool::new(BLOCKS, BLOCKS, policy).expect("a size");
        roomy.take(1, &mut [BlockId::default(); 2], |_| Ok(())).expect("room");
        Self {
            roomy,
            pool: Pool::new(BLOCKS, BLOCKS, policy).expect("a size"),
            blocks: (0..BLOCKS).map(|_| Mark::default()).collect(),
            allocator: Allocator::new(BLOCKS).expect("a size"),
            owners: (0..BLOCKS).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// A block that was taken: nobody else has it.
    fn own(&self, me: u32, block: BlockId) {
        let mark = &self.blocks[block.0 as usize];
        assert_eq!(mark.owner.swap(me + 1, Ordering::Relaxed), 0, "{block:?} has two owners");
        assert_eq!(mark.readers.load(Ordering::Relaxed), 0, "{block:?} was taken from readers");
    }

    fn begin_reading(&self, block: BlockId, name: BlockHash) {
        self.blocks[block.0 as usize].readers.fetch_add(1, Ordering::Relaxed);
        self.judge(block, name);
    }

    fn end_reading(&self, block: BlockId, name: BlockHash) {
        self.judge(block, name);
        self.blocks[block.0 as usize].readers.fetch_sub(1, Ordering::Relaxed);
    }

    fn judge(&self, block: BlockId, name: BlockHash) {
        let mark = &self.blocks[block.0 as usize];
        assert_eq!(mark.owner.load(Ordering::Relaxed), 0, "{block:?} is written while it is read");
        let found = mark.bytes.load(Ordering::Relaxed);
        assert_eq!(found, name.0[0], "{block:?} holds the bytes of another name");
    }

    /// Nobody holds anything: each block is free once it is evicted, and can be taken once.
    fn audit(&self) {
        let World { pool, allocator, .. } = self;
        pool.resize(BLOCKS).expect("larger is possible");
        let (free, cached) = (pool.free_blocks(), pool.cached_blocks());
        assert_eq!(free + cached, BLOCKS, "{free} blocks are free, {cached} cached");
        let mut table = vec![BlockId::default(); BLOCKS as usize];
        pool.take(1, &mut table, |_| Ok(())).expect("all blocks can be had");
        assert_eq!((pool.free_blocks(), pool.cached_blocks()), (0, 0));
        table.sort_unstable();
        assert!(table.iter().zip(0..).all(|(block, n)| block.0 == n), "each block once");
        pool.abandon(&table);
        assert_eq!(self.roomy.free_blocks() + self.roomy.cached_blocks(), BLOCKS - 2);
        let handle = allocator.allocate(&mut table, Contiguity::Required).expect("all of them");
        allocator.free_run(handle).expect("the handle owns them");
    }
}

/// Makes the calls of one thread for one round, and gives everything back.
fn work(world: &World, me: u32, seed: u64, calls: u64) {
    let rng = Rng::stream(seed, &format!("thread {me}"));
    let mut worker = Worker { world, me, rng, sequences: Vec::new(), handles: Vec::new() };
    (0..calls).for_each(|_| worker.call());
    while !worker.sequences.is_empty() {
        worker.finish();
    }
    for (handle, table) in worker.handles.drain(..) {
        for block in &table {
            world.owners[block.0 as usize].store(0, Ordering::Relaxed);
        }
        world.allocator.free(handle, &table).expect("the handle owns these blocks");
    }
}

fn options(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options { millions: 20, threads: 8, seed: 1 };
    while let Some(argument) = arguments.next() {
        let value = arguments.next().and_then(|value| value.parse().ok());
        let value: u64 = value.ok_or(format!("{argument} wants a number; {USAGE}"))?;
        match argument.as_str() {
            "--millions" => options.millions = value,
            "--threads" if (1..=256).contains(&value) => options.threads = value,
            "--seed" => options.seed = value,
            _ => return Err(format!("{argument} {value} is not understood; {USAGE}")),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    let options = match options(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    let Options { millions, threads, seed } = options;
    println!("{millions} million calls, {threads} threads, seed {seed}");
    let worlds = [Policy::Density, Policy::Lru].map(World::new);
    for round in 0..(millions * 1_000_000).div_ceil(ROUND) {
        let world = &worlds[(round % 2) as usize];
        let whole = std::thread::scope(|scope| {
            let work = |me| work(world, me, seed + round, ROUND / threads);
            let running: Vec<_> =
                (0..threads as u32).map(|me| scope.spawn(move || work(me))).collect();
            // All are joined before the answer: a thread that nobody joins panics in the scope.
            let ended: Vec<_> = running.into_iter().map(|thread| thread.join().is_ok()).collect();
            ended.into_iter().all(|whole| whole)
        });
        if !whole || std::panic::catch_unwind(|| world.audit()).is_err() {
            println!(
                "FAILED in round {round}; repeat it with\n  ./dev paged-model --millions 1 --threads {threads} --seed {}",
                seed + round
            );
            return ExitCode::FAILURE;
        }
    }
    let evicted: u64 = worlds.iter().map(|world| world.pool.evicted_blocks()).sum();
    println!("every answer was right; {evicted} blocks were evicted on the way");
    ExitCode::SUCCESS
}
