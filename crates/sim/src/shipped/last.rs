//! The end of a run: when all faults are over, every client reads every key once more, by what it remembers of its
//! places. The oracle judges what is read, and a key that cannot be read for long is a fault by itself. Then the leader
//! comes to know what the owners hold, and nothing else (M10, M11), and when everything is removed nothing is left
//! anywhere (G8).

use super::cluster::Registered;
use super::judge;
use super::load::{Lane, is_corrupt, judged};
use crate::fibers;
use mooncrate_client::Client;
use mooncrate_core::catalog::Counters;
use mooncrate_mem::SegmentStats;
use mooncrate_mem::clock::boottime;
use mooncrate_rt as rt;
use mooncrate_wire::message::{ClusterStat, SegmentRow};
use std::cell::RefCell;
use std::time::Duration;

/// How long a key may not be readable: masters elect a leader, and wait for nodes.
const PATIENCE: Duration = Duration::from_mins(1);
/// Longer than the master rests between two walks that copy replicas to disks.
const QUIET: Duration = Duration::from_secs(3);
/// How long a value may not be readable whose bytes are wrong: its owner ends it as soon as a reader doubts it.
const PATIENCE_WITH_WRONG_BYTES: Duration = Duration::from_secs(5);

thread_local! {
    /// What was not right when it was last looked at.
    static WRONG: RefCell<String> = RefCell::default();
}

/// What is not right yet.
pub(super) fn wrong() -> String {
    WRONG.take()
}

/// Whether what a leader knows of memory is what the owners hold.
pub(super) fn agree(client: &Client, nodes: &[Registered]) -> bool {
    right(compare(client, nodes, |row, held| {
        let SegmentStats { ready, writing, .. } = held;
        let same = row.objects == ready && writing == 0;
        (!same).then(|| format!("the leader knows {} replicas, {held:?}", row.objects))
    }))
}

/// Whether no replica is copied for a while, in which no client calls.
pub(super) fn is_quiet(client: &Client) -> bool {
    let copied = || {
        let Counters { copied, offloaded, promoted, .. } = client.stat().ok()?.counters;
        Some((copied, offloaded, promoted))
    };
    let before = copied();
    rt::sleep(QUIET);
    let now = copied();
    right(match (before, now) {
        (Some(before), Some(now)) if before == now => Ok(()),
        _ => Err(format!("replicas are copied, with no client at work: {before:?}, then {now:?}")),
    })
}

/// Whether nothing is left: no object, no put, no byte, no pin, and no tenant pays.
pub(super) fn is_empty(client: &Client, nodes: &[Registered]) -> bool {
    let empty = compare(client, nodes, |row, held| {
        let SegmentStats { ready, writing, retiring, failed, .. } = held;
        let left = row.used_bytes + row.quarantined_bytes + ready + writing + retiring + failed;
        (left > 0).then(|| format!("{} bytes are used, {held:?}", row.used_bytes))
    });
    right(empty.and_then(|stat| {
        let paid: u64 = stat.tenants.iter().map(|row| row.used_bytes).sum();
        let ClusterStat { objects, open_puts, used_bytes, .. } = stat;
        let left = objects + open_puts + used_bytes + paid;
        let text = || {
            format!("{objects} objects, {open_puts} puts, {used_bytes} bytes are left, {paid} paid")
        };
        if left == 0 { Ok(()) } else { Err(text()) }
    }))
}

fn right<T>(looked: Result<T, String>) -> bool {
    let (is_right, wrong) = looked.map_or_else(|wrong| (false, wrong), |_| (true, String::new()));
    WRONG.set(wrong);
    is_right
}

/// Compares each segment of memory with its owner; the numbers of the cluster, or what differs.
fn compare(
    client: &Client,
    nodes: &[Registered],
    differs: impl Fn(&SegmentRow, SegmentStats) -> Option<String>,
) -> Result<ClusterStat, String> {
    let stat = client.stat().map_err(|error| error.to_string())?;
    if stat.rebuilding {
        return Err("the index is being rebuilt".to_owned());
    }
    for node in nodes {
        let Some(node) = node.lock().clone() else { return Err("a node is not there".to_owned()) };
        for segment in node.segments().all() {
            let id = segment.spec().segment;
            let row = stat.segments.iter().find(|row| row.offer.segment == id);
            let Some(row) = row else { return Err(format!("{id} does not take part")) };
            if let Some(text) = differs(row, segment.stats()) {
                return Err(format!("{id}, {} pins: {text}", segment.pins()));
            }
        }
    }
    Ok(stat)
}

impl Lane {
    /// Reads every key: its value, or that there is none.
    pub(super) fn read_all(&self) {
        for at in self.keys() {
            let began = boottime();
            loop {
                let key = judge::key(at);
                let number = judge::get_begins(self.process, at);
                let got = self.client.get(&key.bytes);
                self.say(at, &got);
                let error = got.as_ref().err().map(|error| {
                    let wrong = is_corrupt(error);
                    (if wrong { PATIENCE_WITH_WRONG_BYTES } else { PATIENCE }, error.to_string())
                });
                judge::get_ended(number, judged(self.plan.flips, got, &key));
                let Some((patience, error)) = error else { break };
                if boottime().since(began) > patience {
                    let threads = fibers::threads().join("\n  ");
                    let text = format!(
                        "k{at} cannot be read {patience:?} after all faults: {error}\n  {threads}"
                    );
                    return judge::fail("liveness", text);
                }
                rt::sleep(self.plan.catalog.serve_lease / 4);
            }
        }
    }
}
