//! A trace of requests through a real server, by several clients, beside the same policy simulated exactly.
//!
//! A trace is a file of JSON lines with a list `hash_ids`: the blocks of one request. Mooncake publishes such
//! traces (`FAST25-release/traces` in kvcache-ai/Mooncake). A client gets all blocks of a request in one
//! batch and puts those that it missed in another one.
//!
//! The simulation has the room that the server's memory really offers, as many blocks as fit between its
//! first and its last byte, evicts one block for one, and sees every read at once. The server keeps its
//! memory between its watermarks, 95 % and 90 %, so it holds fewer blocks.

use super::{Home, Reads, is_right, name, value};
use crate::render;
use anyhow::{Context, Result, bail, ensure};
use mooncrate::Store;
use mooncrate_core::evict::PolicyKind;
use mooncrate_core::ids::Slot;
use mooncrate_core::seal;
use mooncrate_wire::clock::boottime;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// The default memory, and the default bytes of a block.
const MEMORY: u64 = 256 << 20;
const BLOCK: u64 = 16_000;
/// Points of the hit rate that the server may be away from the simulation.
const POINTS_MAX: f64 = 1.0;
/// How long a put may be told to come again.
const PATIENCE: Duration = Duration::from_secs(30);

/// What to replay.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Trace {
    /// The trace: JSON lines with a list `hash_ids` each
    #[arg(long, value_name = "FILE")]
    file: PathBuf,
    /// Clients that share the requests
    #[arg(long, value_name = "COUNT", default_value_t = 4)]
    clients: usize,
    /// Only so many requests
    #[arg(long, value_name = "COUNT")]
    requests: Option<usize>,
}

/// Blocks by number, in the order of their first request.
type Requests = Vec<Vec<u32>>;

pub(super) fn run(wanted: &Reads, trace: &Trace) -> Result<bool> {
    let requests = load(&trace.file, trace.requests.unwrap_or(usize::MAX))?;
    let blocks: usize = requests.iter().map(Vec::len).sum();
    ensure!(blocks > 0, "{} holds no blocks", trace.file.display());
    let memory = wanted.memory.map_or(MEMORY, |memory| memory.0);
    let len = wanted.value.map_or(BLOCK, |value| value.0);
    let room = (memory / seal::extent_bytes(len)) as usize;
    render::say(&format!(
        "{} requests, {blocks} blocks of {len} bytes, {} clients; {memory} bytes of memory hold {room} blocks",
        requests.len(),
        trace.clients,
    ))?;
    let policies = match &wanted.policy {
        Some(name) => vec![name.parse::<PolicyKind>()?],
        None => vec![PolicyKind::Fifo, PolicyKind::Lru],
    };
    ensure!(
        !policies.contains(&PolicyKind::Density),
        "density learns, so there is no exact order to compare with; `mooncrate replay --store` compares it"
    );
    let mut all_near = true;
    for policy in policies {
        let home = Home::serve(wanted, memory, policy.name(), None)?;
        let began = boottime();
        let (hits, asked) = replay(&home, trace.clients.max(1), &requests, len as usize)?;
        let took = boottime().since(began);
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let points = |hits: usize| 100.0 * hits as f64 / blocks as f64;
        let (real, exact) = (points(hits), points(exact_hits(policy, room, &requests)));
        all_near &= (real - exact).abs() <= POINTS_MAX;
        render::say(&format!(
            "{policy}: {real:.2} % of the blocks found, {exact:.2} % by exact simulation, {:+.2} points; {asked} reads asked nobody; {:.1} s",
            real - exact,
            took.as_secs_f64(),
        ))?;
    }
    Ok(all_near)
}

fn load(file: &Path, most: usize) -> Result<Requests> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let mut numbers: BTreeMap<u64, u32> = BTreeMap::new();
    let mut requests = Vec::new();
    for (at, line) in text.lines().enumerate().take(most) {
        let bad = || format!("{}, line {}: no list hash_ids", file.display(), at + 1);
        let line: serde_json::Value = serde_json::from_str(line).with_context(bad)?;
        let ids = line["hash_ids"].as_array().with_context(bad)?;
        let request = ids.iter().map(|id| {
            let id = id.as_u64().with_context(bad)?;
            let next = numbers.len() as u32;
            Ok(*numbers.entry(id).or_insert(next))
        });
        requests.push(request.collect::<Result<Vec<u32>>>()?);
    }
    Ok(requests)
}

/// Blocks that the server had, and reads that asked nobody.
fn replay(home: &Home, clients: usize, requests: &Requests, len: usize) -> Result<(usize, u64)> {
    let (next, hits, cached) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicU64::new(0));
    let work = || -> Result<()> {
        let store = home.client()?;
        // In the order of the trace, one request of each client at a time.
        while let Some(request) = requests.get(next.fetch_add(1, Relaxed)) {
            hits.fetch_add(serve(&store, request, len)?, Relaxed);
        }
        cached.fetch_add(store.counts().cached, Relaxed);
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..clients).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|one| one.join().expect("workers do not panic"))
    })?;
    Ok((hits.into_inner(), cached.into_inner()))
}

/// Gets the blocks of a request and puts what is missing; how many were there.
fn serve(store: &Store, request: &[u32], len: usize) -> Result<usize> {
    let names: Vec<Vec<u8>> = request.iter().map(|block| name(*block)).collect();
    let keys: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    let mut missed = Vec::new();
    for (block, found) in request.iter().zip(store.get_batch(&keys)) {
        match found? {
            Some(found) => ensure!(is_right(*block, len, &found), "block {block} is wrong"),
            None => missed.push((name(*block), value(*block, len))),
        }
    }
    let hits = request.len() - missed.len();
    let end = boottime().deadline_in(PATIENCE);
    while !missed.is_empty() {
        let items: Vec<(&[u8], &[u8])> = missed.iter().map(|(key, v)| (&key[..], &v[..])).collect();
        let stored = store.put_batch(&items);
        // What another client is putting just now, or what finds no room, is tried again.
        let mut stored = stored.iter();
        missed.retain(|_| stored.next().is_some_and(Result::is_err));
        if end.passed(boottime()) {
            bail!("{} blocks could not be put", missed.len());
        }
    }
    Ok(hits)
}

/// Blocks that a cache of so many finds, if its policy sees every read at once.
fn exact_hits(kind: PolicyKind, room: usize, requests: &Requests) -> usize {
    let (mut policy, mut held, mut hits) = (kind.build(), BTreeSet::new(), 0);
    for request in requests {
        let (found, missed): (Vec<u32>, Vec<u32>) = request.iter().partition(|b| held.contains(*b));
        hits += found.len();
        for block in &found {
            policy.touch(Slot(*block));
        }
        for block in missed {
            if held.len() == room && !held.contains(&block) {
                let victim = policy.victim().expect("the cache is full");
                held.remove(&victim.0);
            }
            if held.insert(block) {
                policy.insert(Slot(block));
            }
        }
    }
    hits
}
