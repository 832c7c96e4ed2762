//! A node is drained while readers run: how fast, beside a plain copy of the same bytes, and whether
//! any read failed.
//!
//! Master and readers are in this process, the two nodes in processes of their own on this host, so
//! bytes move through shared memory: once by the node that fetches them, checksummed on the way.

use crate::effort::Effort;
use crate::peer::{Peer, until_the_end};
use crate::render::{bytes as shown, note};
use crate::report::{Row, Table, Verdict};
use crate::workload::noise;
use anyhow::{Context, Result, ensure};
use mooncrate::{Address, ConnectOptions, DrainMode, MasterOptions, NodeOptions, PutConfig, Store};
use mooncrate::{run_master, run_node};
use mooncrate_core::{NodeId, SegmentId};
use mooncrate_mem::clock::boottime;
use serde_json::json;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Between two looks at the drain.
const LOOK: Duration = Duration::from_millis(100);
/// How far a drain of the bench may take; it is far less.
const PATIENCE: Duration = Duration::from_mins(30);
/// Bytes that the floor copies into at a time: pages that nobody has touched, as the drain does.
const FRESH: u64 = 256 << 20;

/// What to drain, and under which load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) bytes: u64,
    pub(crate) value: u64,
    pub(crate) readers: u32,
}

/// What readers saw.
#[derive(Debug, Default)]
struct Reads {
    over: AtomicBool,
    done: AtomicU64,
    failed: AtomicU64,
}

/// A peer with a node.
pub(crate) fn serve_node(name: &str, master: &str, bytes: u64, folder: &Path) -> Result<()> {
    let running = run_node(NodeOptions {
        name: name.to_owned(),
        master: master.parse().map_err(anyhow::Error::msg)?,
        listen: Some(Address::Tcp("127.0.0.1:0".into())),
        unix: Some(folder.join(format!("{name}.sock"))),
        segment_bytes: bytes,
        ..NodeOptions::default()
    })?;
    until_the_end("ready")?;
    running.stop();
    Ok(())
}

pub(crate) fn run(effort: &Effort, load: Load) -> Result<Vec<Table>> {
    let folder = tempfile::tempdir()?;
    let listen = Address::Tcp("127.0.0.1:0".into());
    let master = run_master(MasterOptions { listen, ..MasterOptions::default() })?;
    let address = master.master_address().context("it runs a master")?;
    // Below the high watermark, so that nothing is evicted.
    let room = (load.bytes + load.bytes / 4 + (64 << 20)).to_string();
    let (at, path) = (address.to_string(), folder.path().display().to_string());
    // Readers and nodes do not take each other's cores, as on the machines of a cluster.
    let placement = effort.cores.apart();
    let node = |name| {
        let arguments = [
            "drain-node-for-bench",
            "--name",
            name,
            "--master",
            &at,
            "--bytes",
            &room,
            "--folder",
            &path,
        ];
        Peer::start(&placement, &arguments)
    };
    let (_a, _b) = (node("a")?, node("b")?);
    let store = connect(&address)?;
    note(&format!("drain: storing {} in node a", shown(load.bytes)));
    let count = fill(&store, load)?;
    let floor = [copy_floor(load), copy_floor(load)];
    let reads = Reads::default();
    let (moved, took) = std::thread::scope(|scope| {
        for reader in 0..load.readers {
            let (reads, address) = (&reads, &address);
            scope.spawn(move || read(reads, address, count, load.value, reader));
        }
        let drained = drain(&store, load.bytes);
        reads.over.store(true, Ordering::Relaxed);
        drained
    })?;
    ensure!(moved == count, "{moved} of {count} values were moved");
    master.stop();
    Ok(vec![table(load, floor, took, &reads)])
}

fn connect(master: &Address) -> Result<Store> {
    let options = ConnectOptions { master: master.clone().into(), ..ConnectOptions::default() };
    Ok(Store::connect(options)?)
}

fn key(n: u64) -> [u8; 8] {
    n.to_be_bytes()
}

/// Stores values in node a; how many.
fn fill(store: &Store, load: Load) -> Result<u64> {
    let count = load.bytes / load.value;
    let preferred = vec![SegmentId::of(NodeId::named("a"), 0)];
    let config = PutConfig { preferred, ..store.put_config() };
    let mut value = noise(load.value as usize);
    for n in 0..count {
        value[..8].copy_from_slice(&key(n));
        store.put_parts(&key(n), &[&value], &config)?;
    }
    Ok(count)
}

/// Reads until told to end. A value that is missing, or not the one that was stored, is a failure.
fn read(reads: &Reads, master: &Address, count: u64, len: u64, reader: u32) {
    let Ok(store) = connect(master) else {
        reads.failed.fetch_add(1, Ordering::Relaxed);
        return;
    };
    let mut into = vec![0; len as usize];
    let mut n = u64::from(reader) * 7919;
    while !reads.over.load(Ordering::Relaxed) {
        n = (n + 7919) % count;
        let found = store.get_into(&key(n), &mut into);
        let right = matches!(found, Ok(Some(found)) if found == into.len() && into[..8] == key(n));
        let counter = if right { &reads.done } else { &reads.failed };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Drains node a to the end; replicas moved, and the time it took.
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn drain(store: &Store, bytes: u64) -> Result<(u64, Duration)> {
    let (node, began) = (NodeId::named("a"), boottime());
    store.drain(node, None, DrainMode::Move)?.context("node a is mounted")?;
    let end = began.deadline_in(PATIENCE);
    let mut said = began;
    for stat in store.drain_progress(node, None, LOOK) {
        let (stat, now) = (stat?, boottime());
        ensure!(!end.passed(now), "not drained within {PATIENCE:?}: {stat:?}");
        if now.since(said) >= Duration::from_secs(1) || stat.drained() {
            said = now;
            let gone = stat.start_bytes.saturating_sub(stat.left_bytes);
            let rate = gone as f64 / now.since(began).as_secs_f64() / 1e6;
            note(&format!("drain: {} of {}, {rate:.0} MB/s", shown(gone), shown(bytes)));
        }
        if stat.drained() {
            return Ok((stat.moved, now.since(began)));
        }
    }
    anyhow::bail!("the drain was ended by somebody")
}

/// Seconds that a plain copy of the same bytes takes, value by value, into fresh pages.
fn copy_floor(load: Load) -> Duration {
    let source = noise(FRESH.min(load.bytes) as usize);
    let began = boottime();
    let mut left = load.bytes;
    while left > 0 {
        let round = left.min(source.len() as u64) as usize;
        let mut target: Vec<u8> = Vec::with_capacity(round);
        for value in source[..round].chunks(load.value as usize) {
            target.extend_from_slice(value);
        }
        std::hint::black_box(&target);
        left -= round as u64;
    }
    boottime().since(began)
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn table(load: Load, floor: [Duration; 2], took: Duration, reads: &Reads) -> Table {
    let rate = |took: Duration| load.bytes as f64 / took.as_secs_f64() / 1e6;
    let best = rate(floor[0]).max(rate(floor[1]));
    let (done, failed) = (reads.done.load(Ordering::Relaxed), reads.failed.load(Ordering::Relaxed));
    let row = |what: &str, took: Duration, reads: [String; 2], verdict| Row {
        cells: [
            what.to_owned(),
            format!("{:.2}", took.as_secs_f64()),
            format!("{:.0}", rate(took)),
            format!("{:.2}", rate(took) / best),
        ]
        .into_iter()
        .chain(reads)
        .collect(),
        values: json!({ "what": what, "seconds": took.as_secs_f64(), "mb_per_s": rate(took) }),
        verdict,
    };
    let none = || [String::new(), String::new()];
    let verdict = Verdict::at_most(failed as f64, 0.0, "no failed read");
    let per_second = format!("{:.0}", done as f64 / took.as_secs_f64());
    let rows = vec![
        row("plain copy, alone", floor[0], none(), None),
        row("plain copy, alone, again", floor[1], none(), None),
        row("drain", took, [per_second, failed.to_string()], Some(verdict)),
    ];
    Table {
        name: "drain",
        title: "A node is drained while readers run",
        notes: vec![
            format!(
                "{} in values of {}, {} readers over shared memory for the whole time",
                shown(load.bytes),
                shown(load.value),
                load.readers
            ),
            "floor: a plain copy of as many bytes into fresh pages, without any reader".to_owned(),
        ],
        columns: ["", "s", "MB/s", "of the floor", "reads/s", "failed reads"]
            .map(str::to_owned)
            .to_vec(),
        rows,
    }
}
