//! What a run came to, as the shipped roles themselves count it: a run that never met an eviction, a lapsed node or a
//! damaged record tests less than it claims.
//!
//! A killed process takes no locks any more, so masters are asked again and again while they live; the counters of a
//! client can be read at any time.

use mooncrate_client::{Client, Counts};
use mooncrate_core::catalog::Counters;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is counted, in the order of [`of_master`] and [`of_client`].
pub(super) const MET: [&str; MASTER + CLIENT] = [
    "keys found",
    "keys missed",
    "removed",
    "evicted",
    "eviction met a lease or a pin",
    "put refused as busy",
    "expired after its first get",
    "replaced by an upsert",
    "put planned anew",
    "open put given back",
    "end of a put with an old token",
    "node counted as gone",
    "announced and dropped",
    "copied",
    "copy given up",
    "found on a disk only",
    "taken by a disk",
    "refused by a disk",
    "evicted and nowhere else",
    "given back to memory",
    "evicted from a disk",
    "found damaged on a disk",
    "disk came back",
    "dropped by a disk that came back",
    "struck while its disk was away",
    "struck while its node was silent",
    "dropped by late memory",
    "found bad in memory",
    "found in VRAM",
    "moved out of VRAM",
    "read from a remembered place",
    "remembered place was stale",
    "bytes refused",
    "read from another copy",
    "read in the same process",
    "read in shared memory",
    "read over a socket",
    "read from a disk",
];
const MASTER: usize = 30;
const CLIENT: usize = 8;

/// How often each of [`MET`] was met.
pub(super) type Met = [u64; MET.len()];

#[derive(Default)]
struct Seen {
    /// What each leader had counted when it was last asked; by its number, its start and its epoch.
    leaders: BTreeMap<(usize, u64, u64), [u64; MASTER]>,
    /// All clients that there were.
    clients: Vec<Arc<Client>>,
}

thread_local! {
    static SEEN: RefCell<Seen> = RefCell::default();
}

/// What a leader has counted so far.
pub(super) fn leader(at: usize, start: u64, epoch: u64, counters: &Counters) {
    SEEN.with_borrow_mut(|seen| seen.leaders.insert((at, start, epoch), of_master(counters)));
}

/// A client has begun.
pub(super) fn client(client: &Arc<Client>) {
    SEEN.with_borrow_mut(|seen| seen.clients.push(Arc::clone(client)));
}

/// The sums; forgets what was seen.
pub(super) fn end() -> Met {
    let seen = SEEN.take();
    let mut met = [0; MET.len()];
    let (masters, clients) = met.split_at_mut(MASTER);
    for leader in seen.leaders.values() {
        add(masters, leader);
    }
    for client in seen.clients {
        add(clients, &of_client(&client.counts()));
        // Threads of its process, which never run again, have it too.
        std::mem::forget(client);
    }
    met
}

/// Adds what another run met.
pub(super) fn add(mine: &mut [u64], others: &[u64]) {
    for (mine, other) in mine.iter_mut().zip(others) {
        *mine += other;
    }
}

fn of_master(counters: &Counters) -> [u64; MASTER] {
    [
        counters.hits,
        counters.misses,
        counters.removed,
        counters.evicted,
        counters.evict_skipped,
        counters.busy,
        counters.expired,
        counters.replaced,
        counters.replanned,
        counters.puts_expired,
        counters.stale_tokens,
        counters.nodes_lost,
        counters.announced_dropped,
        counters.copied,
        counters.copies_failed,
        counters.hits_disk,
        counters.offloaded,
        counters.offloads_refused,
        counters.evicted_unsaved,
        counters.promoted,
        counters.disk_evicted,
        counters.disk_lost,
        counters.disks_returned,
        counters.disk_dropped,
        counters.ledger_struck,
        counters.lapsed_struck,
        counters.late_dropped,
        counters.bad_replicas,
        counters.hits_vram,
        counters.demoted,
    ]
}

fn of_client(counts: &Counts) -> [u64; CLIENT] {
    [
        counts.cached,
        counts.stale,
        counts.corrupt,
        counts.fallbacks,
        counts.local,
        counts.shared,
        counts.stream,
        counts.disk,
    ]
}
