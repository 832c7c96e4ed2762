//! The allocator against a naive set of blocks: one thread with everything judged, eight threads with
//! every block owned by one of them at a time, and the refusals.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]

use mooncrate_core::rng::Rng;
use mooncrate_paged::{AllocError, Allocator, BlockId, Contiguity, FreeError, Handle, ResizeError};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};

/// Sizes around the borders of words and of levels.
const TOTALS: [u32; 8] = [1, 63, 64, 65, 100, 2_048, 4_097, 20_000];

/// What is in use, by the simplest means.
struct Model {
    total: u32,
    used: BTreeSet<BlockId>,
}

impl Model {
    fn took(&mut self, table: &[BlockId], contiguous: bool) {
        for block in table {
            assert!(block.0 < self.total, "{block:?} of {}", self.total);
            assert!(self.used.insert(*block), "{block:?} was in use");
        }
        if contiguous {
            assert!(table.windows(2).all(|pair| pair[1].0 == pair[0].0 + 1), "{table:?}");
        }
    }

    fn gave(&mut self, table: &[BlockId]) {
        for block in table {
            assert!(self.used.remove(block), "{block:?} was free");
        }
    }

    fn free(&self) -> u32 {
        self.total - self.used.len() as u32
    }

    fn largest_run(&self) -> u32 {
        let (mut longest, mut run) = (0, 0);
        for block in 0..self.total {
            run = if self.used.contains(&BlockId(block)) { 0 } else { run + 1 };
            longest = longest.max(run);
        }
        longest
    }
}

struct Live {
    handle: Handle,
    table: Vec<BlockId>,
}

/// One allocation of a random size and kind; it must fail exactly when the model says so.
fn allocate(blocks: &Allocator, model: &mut Model, rng: &mut Rng) -> Option<Live> {
    let most = [1, 4, 70, u64::from(model.total) + 1][rng.below(4) as usize];
    let count = 1 + rng.below(most) as u32;
    let how =
        [Contiguity::None, Contiguity::Preferred, Contiguity::Required][rng.below(3) as usize];
    let mut table = vec![BlockId::default(); count as usize];
    match blocks.allocate(&mut table, how) {
        Ok(handle) => {
            model.took(&table, handle.first().is_some());
            assert_eq!(handle.count(), count);
            assert!(how != Contiguity::Required || handle.first() == Some(table[0]));
            Some(Live { handle, table })
        }
        Err(AllocError::Full { wanted, free, total }) => {
            assert_eq!((wanted, free, total), (count, model.free(), model.total));
            assert!(free < wanted, "{free} are free, {wanted} were refused");
            None
        }
        Err(AllocError::Fragmented { wanted, longest }) => {
            assert_eq!(how, Contiguity::Required);
            assert_eq!(longest, model.largest_run());
            assert!(longest < wanted, "a run of {longest} is there, {wanted} were refused");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn extend(blocks: &Allocator, model: &mut Model, live: &mut Live, rng: &mut Rng) {
    let mut more = vec![BlockId::default(); rng.below(5) as usize];
    let fits = model.free() as usize >= more.len();
    let extended = blocks.extend(&mut live.handle, &mut more);
    assert_eq!(extended.is_ok(), fits, "{extended:?}");
    if fits {
        model.took(&more, false);
        live.table.extend(&more);
        assert_eq!(live.handle.count() as usize, live.table.len());
    }
}

fn resize(blocks: &Allocator, model: &mut Model, max: u32, rng: &mut Rng) {
    let total = 1 + rng.below(u64::from(max)) as u32;
    let beyond: Vec<BlockId> = model.used.iter().copied().filter(|b| b.0 >= total).collect();
    match blocks.resize(total) {
        Ok(()) => {
            assert!(beyond.is_empty());
            model.total = total;
        }
        Err(ResizeError::InUse { wanted, blocks, highest }) => {
            assert_eq!(wanted, total);
            assert_eq!((blocks as usize, Some(&highest)), (beyond.len(), beyond.last()));
        }
        Err(error) => panic!("{error}"),
    }
}

fn run(seed: u64, total: u32, steps: u32) {
    let mut rng = Rng::new(seed);
    let max = total + total / 2;
    let blocks = Allocator::with_max(total, max).unwrap();
    let mut model = Model { total, used: BTreeSet::new() };
    let mut live: Vec<Live> = Vec::new();
    for _ in 0..steps {
        match rng.below(10) {
            0..4 => live.extend(allocate(&blocks, &mut model, &mut rng)),
            4 if !live.is_empty() => {
                let at = rng.below(live.len() as u64) as usize;
                extend(&blocks, &mut model, &mut live[at], &mut rng);
            }
            5 if rng.below(20) == 0 => resize(&blocks, &mut model, max, &mut rng),
            _ if !live.is_empty() => {
                let gone = live.swap_remove(rng.below(live.len() as u64) as usize);
                model.gave(&gone.table);
                if gone.handle.first().is_some() && rng.below(2) == 0 {
                    blocks.free_run(gone.handle).unwrap();
                } else {
                    blocks.free(gone.handle, &gone.table).unwrap();
                }
            }
            _ => {}
        }
        assert_eq!(blocks.free_blocks(), model.free());
    }
    assert_eq!(blocks.largest_run(), model.largest_run());
    for gone in live {
        blocks.free(gone.handle, &gone.table).unwrap();
    }
    assert_eq!((blocks.used_blocks(), blocks.largest_run()), (0, blocks.total_blocks()));
}

/// B1: disjoint, counted, contiguous where promised, all or nothing.
#[test]
fn it_agrees_with_a_set_of_blocks() {
    let rounds = if cfg!(debug_assertions) { 4 } else { 40 };
    for total in TOTALS {
        for seed in 0..rounds {
            println!("seed {seed}, {total} blocks");
            run(seed, total, 3_000);
        }
    }
}

/// Eight threads; each block that a thread holds carries its mark, so a block of two owners is seen.
#[test]
fn eight_threads_never_share_a_block() {
    const TOTAL: u32 = 3_000;
    let blocks = Allocator::new(TOTAL).unwrap();
    let marks: Vec<AtomicU32> = (0..TOTAL).map(|_| AtomicU32::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 1..=8u32 {
            let (blocks, marks) = (&blocks, &marks);
            scope.spawn(move || {
                let mut rng = Rng::new(u64::from(thread));
                let mut live: Vec<Live> = Vec::new();
                for _ in 0..40_000 {
                    let most = [1, 8, 130][rng.below(3) as usize];
                    let count = 1 + rng.below(most) as usize;
                    let mut table = vec![BlockId::default(); count];
                    let how = [Contiguity::None, Contiguity::Preferred, Contiguity::Required];
                    if let Ok(handle) = blocks.allocate(&mut table, how[rng.below(3) as usize]) {
                        for block in &table {
                            let before = marks[block.0 as usize].swap(thread, Ordering::Relaxed);
                            assert_eq!(before, 0, "{block:?} has an owner");
                        }
                        live.push(Live { handle, table });
                    }
                    if live.len() > rng.below(12) as usize {
                        let gone = live.swap_remove(rng.below(live.len() as u64) as usize);
                        for block in &gone.table {
                            let before = marks[block.0 as usize].swap(0, Ordering::Relaxed);
                            assert_eq!(before, thread, "{block:?} was taken from its owner");
                        }
                        blocks.free(gone.handle, &gone.table).unwrap();
                    }
                }
                for gone in live {
                    for block in &gone.table {
                        marks[block.0 as usize].store(0, Ordering::Relaxed);
                    }
                    blocks.free(gone.handle, &gone.table).unwrap();
                }
            });
        }
    });
    assert_eq!((blocks.used_blocks(), blocks.largest_run()), (0, TOTAL));
}

/// B2: what is not owned is refused, and nothing is lost by it.
#[test]
fn handles_of_others_are_refused() {
    let (one, other) = (Allocator::new(64).unwrap(), Allocator::new(64).unwrap());
    let (mut a, mut b) = ([BlockId::default(); 3], [BlockId::default(); 3]);
    let first = one.allocate(&mut a, Contiguity::None).unwrap();
    let second = one.allocate(&mut b, Contiguity::None).unwrap();

    let Err(FreeError::Foreign(mut first)) = other.free(first, &a) else { panic!() };
    assert_eq!(other.extend(&mut first, &mut []), Err(AllocError::Foreign));
    // Blocks of another handle, a block twice, too few, one that does not exist.
    let mixed = [a[0], a[1], b[0]];
    let Err(FreeError::NotOwned { handle: first, block }) = one.free(first, &mixed) else {
        panic!()
    };
    assert_eq!(block, b[0]);
    let twice = [a[0], a[1], a[0]];
    let Err(FreeError::NotOwned { handle: first, block }) = one.free(first, &twice) else {
        panic!()
    };
    assert_eq!(block, a[0]);
    let Err(FreeError::Length { handle: first, found: 2 }) = one.free(first, &a[..2]) else {
        panic!()
    };
    let beyond = [a[0], a[1], BlockId(4_000_000)];
    let Err(FreeError::NotOwned { handle: first, .. }) = one.free(first, &beyond) else { panic!() };
    assert_eq!(one.used_blocks(), 6);

    one.free(first, &a).unwrap();
    one.free(second, &b).unwrap();
    assert_eq!(one.free_blocks(), 64);
}

#[test]
fn bad_sizes_are_refused_in_words() {
    let blocks = Allocator::with_max(10, 20).unwrap();
    let nothing = blocks.allocate(&mut [], Contiguity::None).unwrap_err();
    assert_eq!(nothing.to_string(), "an allocation needs at least one block");
    let full = blocks.allocate(&mut [BlockId::default(); 11], Contiguity::None).unwrap_err();
    assert_eq!(
        full.to_string(),
        "11 blocks were asked for, 10 of 10 are free; free some, or grow the arena"
    );
    assert_eq!(blocks.resize(21), Err(ResizeError::TooLarge { wanted: 21, max: 20 }));
    assert_eq!(blocks.resize(0), Err(ResizeError::Empty));
    assert!(matches!(Allocator::new(0), Err(ResizeError::Empty)));
    assert!(matches!(Allocator::new(u32::MAX), Err(ResizeError::TooLarge { .. })));
}

/// Contiguous allocation does fragment: free blocks need not lie in a row.
#[test]
fn a_run_that_is_not_there_is_refused_and_a_table_is_found() {
    let blocks = Allocator::new(128).unwrap();
    let mut all = vec![BlockId::default(); 128];
    let mut handles: Vec<_> = all
        .iter_mut()
        .map(|one| (blocks.allocate(std::slice::from_mut(one), Contiguity::None).unwrap(), *one))
        .collect();
    handles.sort_by_key(|(_, block)| *block);
    let (even, odd): (Vec<_>, Vec<_>) = handles.into_iter().partition(|(_, b)| b.0 % 2 == 0);
    for (handle, block) in even {
        blocks.free(handle, &[block]).unwrap();
    }
    assert_eq!(blocks.largest_run(), 1);
    assert!((blocks.fragmentation() - (1.0 - 1.0 / 64.0)).abs() < 1e-9);
    let mut table = [BlockId::default(); 2];
    assert_eq!(
        blocks.allocate(&mut table, Contiguity::Required),
        Err(AllocError::Fragmented { wanted: 2, longest: 1 })
    );
    let handle = blocks.allocate(&mut table, Contiguity::Preferred).unwrap();
    assert_eq!(handle.first(), None);
    blocks.free(handle, &table).unwrap();
    drop(odd);
}

#[test]
fn the_map_shows_what_is_used() {
    let blocks = Allocator::new(130).unwrap();
    let mut table = [BlockId::default(); 64];
    let _kept = blocks.allocate(&mut table, Contiguity::Required).unwrap();
    let map = blocks.block_map();
    assert!(map.contains("Total blocks: 130\n  Used: 64 Free: 66\n"), "{map}");
    let cells: String = map.lines().skip(5).map(str::trim).collect();
    assert_eq!(cells.len(), 130);
    assert_eq!(cells.matches('X').count(), 64);
    let svg = blocks.block_map_svg();
    assert_eq!(svg.matches("class=\"u\"").count(), 64);
    assert_eq!(svg.matches("class=\"f\"").count(), 66);
    // A large arena is drawn with several blocks to a cell.
    let large = Allocator::new(100_000).unwrap();
    let _kept = large.allocate(&mut table, Contiguity::None).unwrap();
    let map = large.block_map();
    assert!(map.contains("+ = some of 25"), "{map}");
    assert!(map.matches('.').count() > 3_900);
}

/// A magazine hands out single blocks of its own, and takes any single block back.
#[test]
fn a_magazine_agrees_with_a_set_of_blocks() {
    let blocks = Allocator::new(300).unwrap();
    let other = Allocator::new(300).unwrap();
    let mut model = Model { total: 300, used: BTreeSet::new() };
    let mut rng = Rng::new(5);
    let mut magazine = blocks.magazine();
    let mut live: Vec<Handle> = Vec::new();
    for _ in 0..20_000 {
        if rng.below(2) == 0 {
            let mut table = [BlockId::default()];
            let taken = if rng.below(4) == 0 {
                blocks.allocate(&mut table, Contiguity::None)
            } else {
                magazine.allocate()
            };
            match taken {
                Ok(handle) => {
                    model.took(&[handle.first().unwrap()], true);
                    live.push(handle);
                }
                // Blocks in the magazine are not free for the allocator.
                Err(error) => {
                    assert!(matches!(error, AllocError::Full { wanted: 1, .. }), "{error}");
                    assert!(live.len() + magazine.len() == 300, "{error}");
                }
            }
        } else if !live.is_empty() {
            let handle = live.swap_remove(rng.below(live.len() as u64) as usize);
            model.gave(&[handle.first().unwrap()]);
            if rng.below(3) == 0 {
                blocks.free_run(handle).unwrap();
            } else {
                magazine.free(handle).unwrap();
            }
        }
        assert_eq!(blocks.used_blocks() as usize, live.len() + magazine.len());
    }
    let foreign = other.magazine().allocate().unwrap();
    assert!(matches!(magazine.free(foreign), Err(FreeError::Foreign(_))));
    for handle in live {
        magazine.free(handle).unwrap();
    }
    drop(magazine);
    assert_eq!((blocks.used_blocks(), blocks.largest_run()), (0, 300));
}
