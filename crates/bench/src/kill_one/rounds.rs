//! `kill-one --rounds N`: how long the keys of a killed owner are blocked.
//!
//! ```text
//!   round   put keys with one copy on the victim, and keys with a second copy elsewhere; read all of
//!           them through shared memory, by two clients
//!   kill    kill -9 ─► every key with a second copy is read ─► every key with one copy is put anew
//!   then    the other client reads all of them: the new values, never the old ones; the victim starts again
//! ```

use crate::render;
use crate::servers::{Cluster, wait_until};
use anyhow::{Context, Result, ensure};
use mooncrate::{ClientConfig, ConnectOptions, PutConfig, Store, Stored};
use mooncrate_core::{NodeId, SegmentId};
use mooncrate_wire::clock::boottime;
use std::path::Path;
use std::time::Duration;

const NODES: [&str; 3] = ["a", "b", "c"];
const VICTIM: usize = 0;
/// Keys of each sort per round.
const KEYS: u32 = 100;
const VALUE_BYTES: usize = 64 << 10;
const CALL_TIME: Duration = Duration::from_secs(2);
/// What the keys of a killed owner may be blocked for.
const GOAL: Duration = Duration::from_secs(3);
/// Longer than any master waits for a node.
const GIVE_UP: Duration = Duration::from_mins(1);

/// Runs it; whether every round was within the goal.
pub(super) fn run(program: &Path, rounds: u32) -> Result<bool> {
    let mut cluster = Cluster::start(program, &NODES, "64MiB")?;
    let (mut read, mut put) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let (elsewhere, free) = one(&mut cluster, round)?;
        read.push(elsewhere);
        put.push(free);
        cluster.nodes[VICTIM].1 = cluster.start_node(NODES[VICTIM])?;
    }
    render::say(&format!(
        "3 nodes, shared memory; kill -9 of one owner, {rounds} rounds, {KEYS} keys of each sort, \
         {} KiB each",
        VALUE_BYTES >> 10
    ))?;
    render::say(&format!("all keys with another copy read:    {}", spread(&mut read)))?;
    render::say(&format!("all keys without another copy put:  {}", spread(&mut put)))?;
    let within = read.iter().chain(&put).all(|time| *time <= GOAL);
    render::say(&format!(
        "goal: {GOAL:?} at most, {}; no old value after a new one",
        if within { "reached" } else { "MISSED" }
    ))?;
    Ok(within)
}

/// One round: after the kill, how long until what has another copy was read, and until what has none was
/// put anew.
fn one(cluster: &mut Cluster, round: u32) -> Result<(Duration, Duration)> {
    let (writer, reader) = (connect(cluster)?, connect(cluster)?);
    let single = |n: u32| format!("one/{round}/{n}").into_bytes();
    let double = |n: u32| format!("two/{round}/{n}").into_bytes();
    let (old, new) = (vec![1; VALUE_BYTES], vec![2; VALUE_BYTES]);
    let on = |nodes: &[&str]| PutConfig {
        replicas: nodes.len() as u8,
        preferred: nodes.iter().map(|node| SegmentId::of(NodeId::named(node), 0)).collect(),
        ..writer.put_config()
    };
    let (alone, both) = (on(&NODES[..1]), on(&NODES[..2]));
    for n in 0..KEYS {
        for (key, config) in [(single(n), &alone), (double(n), &both)] {
            let stored = writer.put_parts(&key, &[&old], config)?;
            ensure!(stored == Stored::New, "round {round}: a key was there already");
            ensure!(reader.get(&key)?.as_ref() == Some(&old), "round {round}: a key was not read");
        }
    }
    let began = boottime();
    cluster.nodes[VICTIM].1.kill()?;
    for n in 0..KEYS {
        let read = || matches!(writer.get(&double(n)), Ok(Some(value)) if value == old);
        wait_until(GIVE_UP, read).context("a key with another copy was not read")?;
    }
    let elsewhere = boottime().since(began);
    for n in 0..KEYS {
        let free = || matches!(writer.put(&single(n), &new), Ok(Stored::New));
        wait_until(GIVE_UP, free).context("a key without another copy was not free")?;
    }
    let free = boottime().since(began);
    for n in 0..KEYS {
        let found = reader.get(&single(n))?;
        ensure!(found.as_ref() == Some(&new), "round {round}: an old value after a new one");
    }
    for n in 0..KEYS {
        writer.remove(&single(n), true)?;
        writer.remove(&double(n), true)?;
    }
    Ok((elsewhere, free))
}

fn connect(cluster: &Cluster) -> Result<Store> {
    Ok(Store::connect(ConnectOptions {
        master: cluster.master.clone().into(),
        client: ClientConfig { call_time: CALL_TIME, ..ClientConfig::default() },
        ..ConnectOptions::default()
    })?)
}

fn spread(times: &mut [Duration]) -> String {
    times.sort_unstable();
    let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
    format!("median {median:.1?}, worst {worst:.1?}")
}
