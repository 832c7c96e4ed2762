//! Reads that ask nobody count for the life of what they read.
//!
//! A client that remembers where a value is reads it in shared memory, and no server sees that. The values
//! that were read most were evicted first: told was one read in 64, so most values were never told of, and
//! every policy evicted in the order of the puts.

use crate::fleet::{any_port, connect, judge, master, node, stamped};
use mooncrate::{CatalogConfig, MasterOptions, NodeOptions, Running, Store, run_both};
use mooncrate_core::evict::PolicyKind;
use mooncrate_core::rng::Rng;
use mooncrate_core::{Slot, seal};
use std::collections::BTreeSet;
use std::time::Duration;

const LEN: usize = 64 << 10;
const HOT: u32 = 50;
/// Two and a half times what the memory of the node holds.
const ROUNDS: u32 = 50;
const COLD_PER_ROUND: u32 = 25;
/// So that a fast machine does not turn the memory over between two reports of a client, which are 10 ms
/// apart. A slow one turns it over more slowly.
const PAUSE: Duration = Duration::from_millis(4);

fn name(n: u32) -> String {
    format!("hot/{n}")
}

/// A master and a node of so many bytes.
fn serve(policy: PolicyKind, segment_bytes: u64) -> (tempfile::TempDir, Running) {
    let folder = tempfile::tempdir().unwrap();
    let options = master();
    let catalog = CatalogConfig { policy, ..options.catalog.clone() };
    let options = MasterOptions { catalog, ..options };
    let owner = node("a", &any_port(), folder.path());
    let running = run_both(options, NodeOptions { segment_bytes, ..owner }).unwrap();
    (folder, running)
}

/// Misses among the reads of the hot values, while another client puts cold ones.
fn misses(policy: PolicyKind, shared_memory: bool) -> u32 {
    let (_folder, running) = serve(policy, 32 << 20);
    let address = running.master_address().unwrap();
    let (reader, writer) = (connect(&address, shared_memory), connect(&address, true));
    for n in 0..HOT {
        writer.put(name(n).as_bytes(), &stamped(name(n).as_bytes(), n, LEN)).unwrap();
    }
    let mut missed = 0;
    for round in 0..ROUNDS {
        missed += (0..HOT).filter(|n| !read(&reader, *n)).count() as u32;
        for n in 0..COLD_PER_ROUND {
            let cold = format!("cold/{round}/{n}");
            writer.put(cold.as_bytes(), &[7; LEN]).unwrap();
        }
        std::thread::sleep(PAUSE);
    }
    let stat = writer.stat().unwrap();
    assert!(stat.counters.evicted > u64::from(ROUNDS * COLD_PER_ROUND) / 2, "{stat:?}");
    if missed == 0 {
        // All but the first reads were of remembered places.
        assert_eq!(reader.counts().cached, u64::from(HOT * (ROUNDS - 1)));
    }
    missed
}

/// Whether the value is there; if so, it is the right one.
fn read(store: &Store, n: u32) -> bool {
    let found = store.get(name(n).as_bytes()).unwrap();
    if let Some(found) = &found {
        judge(name(n).as_bytes(), n, LEN, found);
    }
    found.is_some()
}

#[test]
fn what_is_read_most_stays() {
    for policy in [PolicyKind::Lru, PolicyKind::Sieve] {
        for shared_memory in [true, false] {
            let missed = misses(policy, shared_memory);
            let reads = HOT * ROUNDS;
            assert!(
                missed <= reads / 100,
                "{policy}, shared memory {shared_memory}: {missed} of {reads} hot reads missed"
            );
        }
    }
}

const BLOCK: usize = 4000;
/// Blocks that the memory of the node holds.
const ROOM: usize = 2000;

/// Requests of eight blocks, few of which are asked for often, and scans of forty that nobody reads again.
fn trace(requests: usize) -> Vec<Vec<u32>> {
    let (mut rng, mut fresh) = (Rng::new(1), 1 << 20);
    let request = |n: usize| {
        if n % 10 == 9 {
            fresh += 40;
            return (fresh - 40..fresh).collect();
        }
        let mut draw = || rng.below(200);
        (0..8).map(|_| (draw() * draw() * draw() / 4000) as u32).collect()
    };
    (0..requests).map(request).collect()
}

/// Blocks found if the policy sees every read at once and has all of the room.
fn exact_hits(kind: PolicyKind, trace: &[Vec<u32>]) -> usize {
    let (mut policy, mut held, mut hits) = (kind.build(), BTreeSet::new(), 0);
    for request in trace {
        let (found, missed): (Vec<u32>, Vec<u32>) = request.iter().partition(|b| held.contains(*b));
        hits += found.len();
        found.iter().for_each(|block| policy.touch(Slot(*block)));
        for block in missed {
            if held.len() == ROOM && !held.contains(&block) {
                held.remove(&policy.victim().unwrap().0);
            }
            if held.insert(block) {
                policy.insert(Slot(block));
            }
        }
    }
    hits
}

/// Requests of a trace, dealt to two clients in turn, find about as much as LRU with every read in sight,
/// and more than a queue would.
#[test]
fn a_trace_is_served_as_its_policy_says() {
    let (_folder, running) = serve(PolicyKind::Lru, ROOM as u64 * seal::extent_bytes(BLOCK as u64));
    let address = running.master_address().unwrap();
    let clients = [connect(&address, true), connect(&address, true)];
    let trace = trace(4000);
    let mut hits = 0;
    for (n, request) in trace.iter().enumerate() {
        let client = &clients[n % clients.len()];
        let names: Vec<String> = request.iter().map(|block| name(*block)).collect();
        let keys: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
        let mut missed: Vec<(&[u8], &[u8])> = Vec::new();
        for (key, found) in keys.iter().zip(client.get_batch(&keys)) {
            match found.unwrap() {
                Some(found) => assert_eq!(found, [7; BLOCK]),
                None => missed.push((*key, &[7; BLOCK])),
            }
        }
        hits += keys.len() - missed.len();
        client.put_batch(&missed).into_iter().for_each(|stored| drop(stored.unwrap()));
    }
    let blocks: usize = trace.iter().map(Vec::len).sum();
    let points = |hits: usize| 100.0 * hits as f64 / blocks as f64;
    let [fifo, lru] =
        [PolicyKind::Fifo, PolicyKind::Lru].map(|kind| points(exact_hits(kind, &trace)));
    let real = points(hits);
    println!("{real:.2} %; by exact simulation lru {lru:.2} %, fifo {fifo:.2} %");
    // The watermarks cost about a point, and what a fast machine puts between two reports another one.
    assert!(real > lru - 3.0 && real > fifo + 1.0, "{real:.2} %; lru {lru:.2} %, fifo {fifo:.2} %");
}
