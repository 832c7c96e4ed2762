//! A trace through a real store: a master, a node and clients, over sockets. What ships is what is judged.
//!
//! Each client takes the next request, gets all its blocks in one batch, and puts those that are missing in another
//! one, as an engine does. Each value tells its block, and is checked. Below the memory there may be a disk.

use crate::failure::Failure;
use mooncrate::{
    Address, CatalogConfig, ConnectOptions, MasterOptions, NodeOptions, Running, SsdConfig, Store,
    TierConfig, run_both,
};
use mooncrate_core::error::PutError;
use mooncrate_core::evict::PolicyKind;
use mooncrate_core::seal::extent_bytes;
use mooncrate_paged::Policy;
use mooncrate_paged::replay::{Outcome, Trace, TraceBlock};
use std::error::Error as _;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of a value: its policy does not care, and 100,000 of them fit into a small machine.
const VALUE_BYTES: usize = 1024;
/// Values are larger where all of them together would take less. A node rounds its memory to whole pages, which would be
/// a good part of a small cache.
const MEMORY_BYTES_MIN: u32 = 1 << 20;

/// Bytes of a value in a cache of so many.
fn value_bytes(capacity: u32) -> usize {
    VALUE_BYTES.max((MEMORY_BYTES_MIN / capacity).next_power_of_two() as usize)
}

/// The policy of a store that has this name.
pub(super) fn policy_of(policy: Policy) -> Result<PolicyKind, Failure> {
    policy.name().parse().map_err(|error| {
        Failure::usage(format!("a store cannot replay this: {error}"))
            .hint("--store takes the first of --policy: density, lru or fifo")
    })
}

/// Replays a trace through an empty store of so many blocks, and bytes of a disk, with so many clients. Returns the
/// bytes that were written to the disk as well.
pub(super) fn replay_store(
    trace: &Trace,
    policy: PolicyKind,
    capacity: u32,
    (clients, disk): (u32, Option<u64>),
) -> Result<(Outcome, u64), Failure> {
    let folder = tempfile::tempdir()
        .map_err(|error| Failure::failed(format!("no folder for the store's socket: {error}")))?;
    let running = start(policy, capacity, disk, folder.path())?;
    let master = running.master_address().expect("it was started with one");
    let requests: Vec<_> = trace.requests().collect();
    let next = AtomicUsize::new(0);
    let connect = || {
        let options = ConnectOptions { master: master.clone().into(), ..ConnectOptions::default() };
        Store::connect(options).map_err(|error| failed(&error))
    };
    let client = || -> Result<Outcome, Failure> {
        let store = connect()?;
        let mut outcome = Outcome { blocks: 0, hits: 0, saved_tokens: 0 };
        while let Some(request) = requests.get(next.fetch_add(1, Ordering::Relaxed)) {
            let found = serve(&store, request.blocks, value_bytes(capacity))? as u64;
            outcome.blocks += request.blocks.len() as u64;
            outcome.hits += found;
            let tokens = found * u64::from(trace.block_tokens());
            outcome.saved_tokens += tokens.min(request.tokens.into());
        }
        Ok(outcome)
    };
    let outcomes: Vec<Result<Outcome, Failure>> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        running.into_iter().map(|thread| thread.join().expect("a client does not panic")).collect()
    });
    let mut sum = Outcome { blocks: 0, hits: 0, saved_tokens: 0 };
    for outcome in outcomes {
        let Outcome { blocks, hits, saved_tokens } = outcome?;
        sum.blocks += blocks;
        sum.hits += hits;
        sum.saved_tokens += saved_tokens;
    }
    let counters = connect()?.stat().map_err(|error| failed(&error))?.counters;
    Ok((sum, counters.offloaded_bytes))
}

/// A store whose memory holds so many values, as far as it lets itself be filled on average.
fn start(
    policy: PolicyKind,
    capacity: u32,
    disk: Option<u64>,
    folder: &Path,
) -> Result<Running, Failure> {
    let catalog = CatalogConfig { policy, ..CatalogConfig::default() };
    let filled = u64::from(catalog.high_permille + catalog.low_permille) / 2;
    let values = u64::from(capacity) * extent_bytes(value_bytes(capacity) as u64);
    let any_port = || Address::Tcp("127.0.0.1:0".into());
    let master = MasterOptions { listen: any_port(), catalog, ..MasterOptions::default() };
    let node = NodeOptions {
        name: "replay".into(),
        listen: Some(any_port()),
        unix: Some(folder.join("node.sock")),
        segment_bytes: values * 1000 / filled,
        slots: Some(capacity.saturating_mul(2).saturating_add(1024)),
        tier: TierConfig {
            disks: disk
                .map(|bytes| SsdConfig::new(folder.join("disk"), bytes))
                .into_iter()
                .collect(),
            ..TierConfig::default()
        },
        ..NodeOptions::default()
    };
    run_both(master, node).map_err(|error| failed(&error))
}

/// One request; the blocks found, from the first on.
fn serve(store: &Store, blocks: &[TraceBlock], bytes: usize) -> Result<usize, Failure> {
    let keys: Vec<[u8; 4]> = blocks.iter().map(|block| block.0.to_be_bytes()).collect();
    let names: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    let mut missing = Vec::new();
    let mut found = None;
    for (at, value) in store.get_batch(&names).into_iter().enumerate() {
        match value.map_err(|error| failed(&error))? {
            Some(value) if value == value_of(blocks[at], bytes) => {}
            Some(_) => {
                return Err(Failure::failed(format!(
                    "block {} has the bytes of another",
                    blocks[at].0
                )));
            }
            None => {
                found.get_or_insert(at);
                missing.push(at);
            }
        }
    }
    let values: Vec<Vec<u8>> = missing.iter().map(|at| value_of(blocks[*at], bytes)).collect();
    let items: Vec<(&[u8], &[u8])> =
        missing.iter().zip(&values).map(|(at, value)| (names[*at], &value[..])).collect();
    let mut refused = store.put_batch(&items).into_iter().filter_map(Result::err);
    if let Some(error) = refused.find(|error| !is_expected(error)) {
        return Err(failed(&error));
    }
    Ok(found.unwrap_or(blocks.len()))
}

/// Whether a put may be refused like that. A request that is longer than the cache does not keep its tail. Another client
/// may have put the same block meanwhile, or may be putting it; its last value may not be free yet.
fn is_expected(error: &mooncrate::Error) -> bool {
    use PutError::{Busy, Exists, Held, InProgress, Reclaiming};
    let refused = error.source().and_then(|source| source.downcast_ref::<PutError>());
    matches!(
        refused,
        Some(Exists | InProgress { .. } | Held { .. } | Busy { .. } | Reclaiming { .. })
    )
}

fn failed(error: &mooncrate::Error) -> Failure {
    Failure::failed(format!("the replay through a store: {error}"))
}

fn value_of(block: TraceBlock, bytes: usize) -> Vec<u8> {
    block.0.to_be_bytes().repeat(bytes / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_caches_have_large_values() {
        assert_eq!(
            [1, 16, 1000, 1024, 100_000].map(value_bytes),
            [1 << 20, 65_536, 2048, 1024, 1024]
        );
        for capacity in [1, 3, 7, 100, 999, 1000, 5000] {
            let (bytes, page) = (u64::from(capacity) * value_bytes(capacity) as u64, 4096);
            assert!(bytes / page >= 255, "a page less is less than half a percent");
        }
    }
}
