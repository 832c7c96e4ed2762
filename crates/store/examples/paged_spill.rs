//! What it costs to save blocks of a paged cache into a store of the same process and to load them again, beside
//! a `memcpy` of as many bytes: `paged_spill [BLOCKS]`.
//!
//! What must stay true: every load begins with an empty cache and is compared with what was saved; a save begins
//! with an empty store. The physical bound of both is half of the `memcpy`, because the bytes are copied twice:
//! between the arena and a buffer, and between the buffer and the store, which also computes checksums.
#![expect(clippy::print_stdout, reason = "it prints its result")]

use mooncrate::paged::{Spill, SpillConfig};
use mooncrate::{EmbeddedOptions, Store};
use mooncrate_core::Now;
use mooncrate_paged::{
    Admission, Arena, ArenaShape, AttentionSpec, Cache, CacheConfig, DType, Geometry, HostArena,
    Layout, Order, Pages, Part, Prompt,
};
use mooncrate_wire::clock::boottime;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

const ROUNDS: usize = 7;
const LONG: Duration = Duration::from_mins(5);

fn main() -> Result<(), Box<dyn Error>> {
    let blocks: u32 = std::env::args().nth(1).map_or(Ok(512), |blocks| blocks.parse())?;
    let spec = AttentionSpec {
        layers: 8,
        kv_heads: 8,
        head_dim: 128,
        block_tokens: 16,
        dtype: DType::Bf16,
    };
    let geometry = Geometry::attention(spec)?;
    let bytes = u64::from(blocks) * geometry.block_bytes();
    println!("machine  {}", machine());
    println!(
        "blocks   {blocks} of {} bytes ({} MiB), store in this process, {ROUNDS} rounds: median (least to most) GB/s",
        geometry.block_bytes(),
        bytes >> 20
    );
    println!("memcpy       {}", memcpy(bytes));
    for layout in [Layout::BlockFirst, Layout::Nhd, Layout::Hnd] {
        let (save, load) = spill(geometry, layout, blocks)?;
        println!("{:<12} save {save}   load {load}", layout.to_string());
    }
    Ok(())
}

/// GB/s of saves and of loads.
fn spill(
    geometry: Geometry,
    layout: Layout,
    blocks: u32,
) -> Result<(String, String), Box<dyn Error>> {
    let shape = ArenaShape::new(geometry, layout, blocks + 1)?;
    let bytes = u64::from(blocks) * geometry.block_bytes();
    let arena = Arc::new(HostArena::anonymous(shape, blocks + 1, Pages::Small)?);
    let cache = Cache::new(CacheConfig::new("bench"), Arc::clone(&arena) as _)?;
    let store = Store::embedded(EmbeddedOptions {
        segment_bytes: bytes + bytes / 2,
        ..EmbeddedOptions::default()
    })?;
    let spill = Spill::new(&store, &cache, &SpillConfig::default())?;
    let prompt: Vec<u32> = (0..=blocks * geometry.block_tokens()).collect();
    let (mut saves, mut loads, mut table) = (Vec::new(), Vec::new(), Vec::new());
    let mut block = vec![0_u8; geometry.block_bytes() as usize];
    for round in 0..ROUNDS {
        store.remove_prefix(b"paged/2/", true)?;
        cache.allocate_for("a", Prompt::Tokens(&prompt))?;
        cache.block_table("a", &mut table)?;
        if round == 0 {
            for (n, id) in table.iter().enumerate() {
                block.fill(n as u8);
                arena.write(&Part::block(*id), Order::Tokens, &block)?;
            }
        }
        cache.publish("a", prompt.len() as u64)?;
        let began = boottime();
        let done = spill.save("a")?.wait(LONG).map_err(|_| "the save did not end")?;
        saves.push(rate(bytes, began));
        assert_eq!(done.stored, blocks as usize, "{done:?}");
        cache.free_for("a")?;
        cache.pool().evict(u32::MAX);

        let began = boottime();
        let loaded = spill.load(&prompt, &Admission::default());
        loads.push(rate(bytes, began));
        assert_eq!(loaded.fetched, blocks as usize, "{:?}", loaded.ended);
        cache.allocate_for("b", Prompt::Tokens(&prompt))?;
        cache.block_table("b", &mut table)?;
        for (n, id) in table[..blocks as usize].iter().enumerate() {
            arena.read(&Part::block(*id), Order::Tokens, &mut block)?;
            assert!(block.iter().all(|byte| *byte == n as u8), "block {n}");
        }
        drop(loaded);
        cache.free_for("b")?;
    }
    Ok((spread(saves), spread(loads)))
}

fn memcpy(bytes: u64) -> String {
    let (source, mut target) = (vec![1_u8; bytes as usize], vec![2_u8; bytes as usize]);
    let rates = (0..ROUNDS).map(|_| {
        let began = boottime();
        target.copy_from_slice(std::hint::black_box(&source));
        std::hint::black_box(&mut target);
        rate(bytes, began)
    });
    spread(rates.collect())
}

/// Bytes per nanosecond, which are GB/s.
#[expect(clippy::cast_precision_loss, reason = "a figure of three digits")]
fn rate(bytes: u64, began: Now) -> f64 {
    bytes as f64 / boottime().since(began).as_nanos() as f64
}

fn spread(mut rates: Vec<f64>) -> String {
    rates.sort_by(f64::total_cmp);
    let (least, most) = (rates[0], rates[rates.len() - 1]);
    format!("{:5.2} ({least:.2} to {most:.2})", rates[rates.len() / 2])
}

fn machine() -> String {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{}, {cores} cores", model.map_or("unknown processor", |(_, name)| name))
}
