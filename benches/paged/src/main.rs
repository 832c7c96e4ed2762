//! Figures of the block manager beside kvbm-logical, the one of NVIDIA Dynamo, in one run.
//!
//! A figure is the time that one thread takes for one block: wall time of all threads together, times their
//! number, divided by the blocks that they handled. Each is the median of five rounds. Both sides get names
//! of blocks that were computed before; what computing them costs is a row of its own.

mod ours;
mod theirs;

use mooncrate_paged::{Policy, Pool};
use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Counts heap allocations.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static HEAP: Counting = Counting;

const ROUNDS: usize = 5;
/// Blocks of a pool that is neither small nor large.
const BLOCKS: u32 = 65_536;
/// Blocks of a prefix.
const PREFIX: usize = 128;

/// A figure: nanoseconds per block, and heap allocations per call.
#[derive(Clone, Copy)]
struct Figure {
    ns: f64,
    heap: f64,
}

/// What one thread does in one call; it says how many blocks that were.
type Work<'a> = Box<dyn FnMut() -> usize + Send + 'a>;

/// Times what `make` gives for each thread.
fn time<'a>(threads: usize, make: impl Fn(usize) -> Work<'a>) -> Figure {
    let mut works: Vec<Work<'a>> = (0..threads).map(make).collect();
    let mut rounds: Vec<Figure> = (0..=ROUNDS).map(|_| round(&mut works)).collect();
    // The first one warms up.
    rounds.remove(0);
    rounds.sort_by(|a, b| a.ns.total_cmp(&b.ns));
    rounds[ROUNDS / 2]
}

fn round(works: &mut [Work<'_>]) -> Figure {
    let span = Duration::from_millis(150);
    let (start, threads) = (Barrier::new(works.len()), works.len() as f64);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    let sums: Vec<(usize, usize, Duration)> = std::thread::scope(|scope| {
        let running: Vec<_> = works
            .iter_mut()
            .map(|work| {
                scope.spawn(|| {
                    start.wait();
                    let begin = Instant::now();
                    let (mut blocks, mut calls) = (0, 0);
                    while begin.elapsed() < span {
                        // The clock is asked rarely.
                        for _ in 0..64 {
                            blocks += black_box(work());
                        }
                        calls += 64;
                    }
                    (blocks, calls, begin.elapsed())
                })
            })
            .collect();
        running.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let made = ALLOCATIONS.load(Ordering::Relaxed) - before;
    let blocks: usize = sums.iter().map(|sum| sum.0).sum();
    let calls: usize = sums.iter().map(|sum| sum.1).sum();
    let wall = sums.iter().map(|sum| sum.2).max().expect("a thread").as_secs_f64();
    // The threads themselves cost a few allocations each.
    let made = made.saturating_sub(8 * sums.len() as u64);
    Figure { ns: wall * 1e9 * threads / blocks as f64, heap: made as f64 / calls as f64 }
}

fn row(what: &str, threads: usize, goal: f64, ours: Figure, theirs: Option<Figure>) -> bool {
    let (peer, ratio) = match theirs {
        Some(peer) => (format!("{:.1}", peer.ns), peer.ns / ours.ns),
        None => ("–".into(), f64::INFINITY),
    };
    let held = ours.ns <= goal && ratio >= 4.0 && ours.heap < 0.01;
    let ratio = if ratio.is_finite() { format!("{ratio:.1} ×") } else { "–".into() };
    let mark = if held { "yes" } else { "**no**" };
    println!(
        "| {what} | {threads} | {:.1} | {peer} | {ratio} | {goal} | {mark} | {:.2} |",
        ours.ns, ours.heap
    );
    held
}

fn beside(threads_list: &[usize]) {
    println!(
        "| ns per block | threads | ours | kvbm-logical 1.6.1 | ratio | goal | held | heap allocations per call |"
    );
    println!("|---|---:|---:|---:|---:|---:|---|---:|");
    let mut held = Vec::new();
    for &threads in threads_list {
        for count in [1, 10, 100, 1000] {
            let (allocator, pool) = (ours::allocator(BLOCKS), ours::pool(BLOCKS));
            let peer = theirs::manager(BLOCKS as usize);
            let theirs = time(threads, |_| theirs::allocate(&peer, count));
            let mine = time(threads, |_| ours::allocate(&allocator, count));
            held.push(row(
                &format!("allocate + free of {count}"),
                threads,
                15.0,
                mine,
                Some(theirs),
            ));
            if count == 1 {
                let mine = time(threads, |_| ours::single(&allocator));
                held.push(row("the same from a magazine, 1", threads, 15.0, mine, Some(theirs)));
            }
            let mine = time(threads, |_| ours::take(&pool, count));
            held.push(row(
                &format!("the same in the pool, {count}"),
                threads,
                15.0,
                mine,
                Some(theirs),
            ));
        }
        for shared in [false, true] {
            let pool = ours::pool(BLOCKS);
            let peer = theirs::manager(BLOCKS as usize);
            let place = if shared { "the same by all threads" } else { "each thread its own" };
            let chain = |thread: usize| if shared { 0 } else { thread as u32 };
            let theirs = time(threads, |thread| theirs::matched(&peer, chain(thread)));
            let mine = time(threads, |thread| ours::matched(&pool, chain(thread)));
            let what = format!("match + release of {PREFIX}, {place}");
            held.push(row(&what, threads, 60.0, mine, Some(theirs)));
        }
        for count in [1, PREFIX] {
            let pool = ours::pool(BLOCKS);
            let peer = theirs::manager(BLOCKS as usize);
            let theirs = time(threads, |thread| theirs::register(&peer, thread as u32, count));
            let mine = time(threads, |thread| ours::register(&pool, thread as u32, count));
            let what = format!("allocate + register + release of {count}, evicting");
            held.push(row(&what, threads, 150.0, mine, Some(theirs)));
        }
    }
    let missed = held.iter().filter(|held| !**held).count();
    println!("\n{} of {} rows hold", held.len() - missed, held.len());
}

fn growth() {
    println!(
        "\n| ns per block, one thread | 2,048 blocks | 65,536 | 2,097,152 | largest / smallest |"
    );
    println!("|---|---:|---:|---:|---:|");
    type Make = fn(u32) -> f64;
    let rows: [(&str, Make); 7] = [
        ("allocate + free of 1", |n| time(1, |_| ours::allocate(&ours::allocator(n), 1)).ns),
        ("allocate + free of 100", |n| time(1, |_| ours::allocate(&ours::allocator(n), 100)).ns),
        ("contiguous run of 32", |n| time(1, |_| ours::run(&ours::allocator(n), 32)).ns),
        ("take + abandon of 10", |n| time(1, |_| ours::take(&ours::pool(n), 10)).ns),
        ("match + release of 128", |n| time(1, |_| ours::matched(&ours::pool(n), 0)).ns),
        ("match + release of 128, any of the pool", |n| {
            time(1, |_| ours::matched_any(&ours::pool(n))).ns
        }),
        ("register + release of 128, evicting", |n| {
            time(1, |_| ours::register(&ours::pool(n), 0, PREFIX)).ns
        }),
    ];
    for (what, make) in rows {
        let figures = [2_048, 65_536, 2_097_152].map(make);
        let most = figures.iter().copied().fold(0.0, f64::max);
        let least = figures.iter().copied().fold(f64::INFINITY, f64::min);
        let [a, b, c] = figures;
        println!("| {what} | {a:.1} | {b:.1} | {c:.1} | {:.2} |", most / least);
    }
    let word = AtomicU64::new(u64::MAX);
    let floor = time(1, |_| {
        Box::new(|| {
            word.fetch_and(!1, Ordering::Acquire);
            word.fetch_or(1, Ordering::Release);
            1
        })
    });
    println!("\nTwo locked instructions on a line that nobody shares: {:.1} ns", floor.ns);
    let naming = time(1, |_| ours::naming());
    println!("Naming a block of 16 tokens (keyed BLAKE3, 128 bits): {:.0} ns", naming.ns);
}

/// What a policy costs: the same calls on pools of each.
fn policies(threads_list: &[usize]) {
    println!("\n| ns per block | blocks | threads | lru | density | more |\n|---|---:|---:|---:|---:|---:|");
    type Make = fn(&Arc<Pool>, u32) -> Work<'static>;
    let rows: [(&str, Make); 2] = [
        ("match + release of 128", |pool, thread| ours::matched(pool, thread)),
        ("allocate + register + release of 128, evicting", |pool, thread| {
            ours::register(pool, thread, PREFIX)
        }),
    ];
    for blocks in [4_096, BLOCKS, 2_097_152] {
        for &threads in threads_list {
            for (what, make) in rows {
                let [lru, density] = [Policy::Lru, Policy::Density].map(|policy| {
                    let pool = ours::pool_by(policy, blocks);
                    time(threads, |thread| make(&pool, thread as u32)).ns
                });
                println!(
                    "| {what} | {blocks} | {threads} | {lru:.1} | {density:.1} | {:.1} |",
                    density - lru
                );
            }
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let threads: Vec<usize> = match &arguments[..] {
        [] => vec![1, 2, 8],
        [list] => list.split(',').map(|n| n.parse().expect("threads as in 1,2,8")).collect(),
        _ => panic!("usage: bench-paged [THREADS,…]"),
    };
    beside(&threads);
    policies(&threads);
    growth();
}
