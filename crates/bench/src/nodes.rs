//! What the number of nodes costs: calls of one client beside clusters of 1 to 200 nodes, and what a node takes
//! that nobody uses.
//!
//! The master is a process of its own and all nodes are another one, each node with its own threads, sockets and
//! links, as `mooncrate node` runs it; but for the guard, a process beside each such node that looks around once a
//! second (every 20 ms where the kernel has no pidfd) and is not counted here. One cluster is measured after the other: nodes of another one that rest
//! on the same cores would show in its figures.

use crate::effort::Effort;
use crate::measure::{Lap, Series, Spread, take_turns};
use crate::peer::{Peer, until_the_end};
use crate::render::note;
use crate::report::{Row, Table, Verdict, spread};
use crate::workload::{BenchKey, key, noise};
use anyhow::{Context, Result, ensure};
use mooncrate::{Address, ConnectOptions, MasterOptions, NodeOptions, PutConfig, Store, Stored};
use mooncrate::{Running, run_master, run_node};
use mooncrate_core::{NodeId, SegmentId};
use mooncrate_mem::clock::boottime;
use serde_json::json;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Goal: time per call with the most nodes over that with the fewest.
const FLAT: f64 = 1.5;
/// Goal: what a node that nobody uses takes of a core, in per cent.
const IDLE_PERCENT: f64 = 0.05;
/// Bytes of a node's segment.
const SEGMENT_BYTES: u64 = 8 << 20;
/// Bytes of a value.
const VALUE_BYTES: usize = 4 << 10;
/// Rest before what an idle node takes is counted: what the calls have left to do ends meanwhile.
const SETTLE: Duration = Duration::from_secs(1);
/// How often that is counted anew because a thread ended meanwhile: one of a link that had not been used for long.
const RESTS: usize = 8;
/// Keys that are there all the time.
const SEEN: u64 = 64;
/// Numbers of keys that come and go.
const FRESH: u64 = 1 << 40;

/// What is timed.
#[derive(Clone, Copy, Debug)]
enum Call {
    /// Of keys that the client remembers.
    Seen,
    /// Of keys that are not there: the master answers.
    Asked,
    Put,
    Remove,
}

const CALLS: [(Call, &str); 4] = [
    (Call::Seen, "exists, seen in memory"),
    (Call::Asked, "exists, asked for"),
    (Call::Put, "put, 4 KiB"),
    (Call::Remove, "remove"),
];

/// A master, its nodes and a client that has met all of them.
struct Cluster {
    store: Store,
    value: Vec<u8>,
    next: u64,
    // Dropped in this order: nodes say farewell to their master.
    nodes: Peer,
    master: Peer,
    _folder: tempfile::TempDir,
}

/// What one size of a cluster came to.
struct Measured {
    nodes: u64,
    calls: [Series; CALLS.len()],
    idle: Idle,
}

/// What was counted while nobody called.
#[derive(Clone, Copy)]
struct Idle {
    /// Per cent of a core: a node, and the master for each node.
    node_percent: f64,
    master_percent: f64,
    /// How often a thread of a node was woken, per second.
    node_wakes: f64,
}

pub(crate) fn run(effort: &Effort, counts: &[u64], idle: Duration) -> Result<Vec<Table>> {
    let mut all = Vec::new();
    for &nodes in counts {
        note(&format!("nodes: {nodes}"));
        let mut cluster = Cluster::start(effort, nodes)?;
        let calls = cluster.measure(effort)?;
        std::thread::sleep(SETTLE.min(idle));
        all.push(Measured { nodes, calls, idle: cluster.rest(nodes, idle)? });
    }
    Ok(vec![calls_table(&all), idle_table(&all, idle)])
}

impl Cluster {
    fn start(effort: &Effort, nodes: u64) -> Result<Self> {
        let placement = effort.cores.apart();
        placement.enter()?;
        let folder = tempfile::tempdir()?;
        let master = Peer::start(&placement, &["plain-master-for-bench"])?;
        let (count, path) = (nodes.to_string(), folder.path().display().to_string());
        let arguments =
            ["nodes-for-bench", "--master", master.said(), "--count", &count, "--folder", &path];
        let peer = Peer::start(&placement, &arguments)?;
        let address: Address = master.said().parse().map_err(anyhow::Error::msg)?;
        let options = ConnectOptions { master: address.into(), ..ConnectOptions::default() };
        let store = Store::connect(options)?;
        let value = noise(VALUE_BYTES);
        let cluster = Self { store, value, next: FRESH, nodes: peer, master, _folder: folder };
        cluster.meet_all(nodes)?;
        for number in 0..SEEN {
            ensure!(
                cluster.store.put(&key(number), &cluster.value)? == Stored::New,
                "a key was there"
            );
        }
        Ok(cluster)
    }

    /// Stores something at every node and reads it: links are open and memory is mapped before anything is timed.
    fn meet_all(&self, nodes: u64) -> Result<()> {
        for number in 0..nodes {
            let preferred = vec![SegmentId::of(NodeId::named(&name(number)), 0)];
            let config = PutConfig { preferred, ..self.store.put_config() };
            let key = key(FRESH - 1 - number);
            self.store.put_parts(&key, &[&self.value], &config)?;
            ensure!(
                self.store.get(&key)?.as_ref() == Some(&self.value),
                "WRONG BYTES at node {number}"
            );
            ensure!(self.store.remove(&key, true)?, "a value was gone");
        }
        Ok(())
    }

    fn measure(&mut self, effort: &Effort) -> Result<[Series; CALLS.len()]> {
        let shared = std::cell::RefCell::new(self);
        let lap = |call| {
            let shared = &shared;
            move |lap: &mut Lap| shared.borrow_mut().lap(call, lap)
        };
        let [mut seen, mut asked, mut put, mut remove] = CALLS.map(|(call, _)| lap(call));
        take_turns(effort, [&mut seen, &mut asked, &mut put, &mut remove])
    }

    /// One round of a call. What is needed before or left after it is not timed.
    fn lap(&mut self, call: Call, lap: &mut Lap) -> Result<()> {
        let Self { store, value, next, .. } = self;
        let put = |key: &BenchKey| store.put(key, value);
        while lap.going() {
            *next += 1;
            let fresh = key(*next);
            match call {
                Call::Seen => {
                    let seen = key(*next % SEEN);
                    ensure!(lap.time(|| store.exists(&seen))?, "a value is gone");
                }
                Call::Asked => {
                    ensure!(!lap.time(|| store.exists(&fresh))?, "a key was there");
                }
                Call::Put => {
                    ensure!(lap.time(|| put(&fresh))? == Stored::New, "a key was there");
                    ensure!(store.remove(&fresh, false)?, "a value is gone");
                }
                Call::Remove => {
                    ensure!(put(&fresh)? == Stored::New, "a key was there");
                    ensure!(lap.time(|| store.remove(&fresh, false))?, "a value is gone");
                }
            }
        }
        Ok(())
    }

    /// Counts what the servers do while nobody calls.
    fn rest(&self, nodes: u64, time: Duration) -> Result<Idle> {
        let mut counted = self.rest_once(nodes, time);
        for _ in 1..RESTS {
            let Err(error) = &counted else { break };
            note(&format!("once more: {error:#}"));
            counted = self.rest_once(nodes, time);
        }
        counted
    }

    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    fn rest_once(&self, nodes: u64, time: Duration) -> Result<Idle> {
        let (nodes_before, master_before) =
            (Look::at(self.nodes.id())?, Look::at(self.master.id())?);
        let began = boottime();
        std::thread::sleep(time);
        let (nodes_after, master_after) = (Look::at(self.nodes.id())?, Look::at(self.master.id())?);
        let seconds = boottime().since(began).as_secs_f64() * nodes as f64;
        let (of_nodes, of_master) =
            (nodes_after.since(&nodes_before)?, master_after.since(&master_before)?);
        let percent = |used: Used| used.cpu_ns as f64 / 1e9 / seconds * 100.0;
        Ok(Idle {
            node_percent: percent(of_nodes),
            master_percent: percent(of_master),
            node_wakes: of_nodes.wakes as f64 / seconds,
        })
    }
}

/// What a thread has used so far, or threads have between two looks.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    cpu_ns: u64,
    /// How often it slept, and so was woken.
    wakes: u64,
}

impl Used {
    /// In nanoseconds: the ticks of a process are too coarse for one that sleeps. `None`: the thread has ended, or
    /// the kernel does not count.
    fn of(task: &Path) -> Option<Self> {
        let cpu = std::fs::read_to_string(task.join("schedstat")).ok()?;
        let status = std::fs::read_to_string(task.join("status")).ok()?;
        let sleeps = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"))?;
        let cpu_ns = cpu.split_whitespace().next()?.parse().ok()?;
        Some(Self { cpu_ns, wakes: sleeps.trim().parse().ok()? })
    }
}

/// The threads of a process at one moment, by their ids.
#[derive(Debug)]
struct Look(BTreeMap<OsString, Used>);

impl Look {
    fn at(process: u32) -> Result<Self> {
        let tasks = format!("/proc/{process}/task");
        let mut threads = BTreeMap::new();
        for task in std::fs::read_dir(&tasks).with_context(|| format!("reading {tasks}"))? {
            let task = task?;
            if let Some(used) = Used::of(&task.path()) {
                threads.insert(task.file_name(), used);
            }
        }
        let counted = threads.values().any(|used| used.cpu_ns > 0);
        ensure!(counted, "the kernel does not count what threads use");
        Ok(Self(threads))
    }

    /// What was used since an earlier look, by threads that were there both times. What one that has ended had used
    /// is lost with it, so a figure without it would be too good: then there is none.
    fn since(&self, before: &Self) -> Result<Used> {
        let mut sum = Used::default();
        for (id, was) in &before.0 {
            let is = self.0.get(id).with_context(|| {
                format!("thread {} ended while idle threads were counted", id.display())
            })?;
            sum.cpu_ns += is.cpu_ns.saturating_sub(was.cpu_ns);
            sum.wakes += is.wakes.saturating_sub(was.wakes);
        }
        Ok(sum)
    }
}

fn name(number: u64) -> String {
    format!("node-{number}")
}

/// A peer with a master and nothing else.
pub(crate) fn serve_master() -> Result<()> {
    let listen = Address::Tcp("127.0.0.1:0".into());
    let running = run_master(MasterOptions { listen, ..MasterOptions::default() })?;
    let address = running.master_address().context("it runs a master")?;
    until_the_end(&address.to_string())?;
    running.stop();
    Ok(())
}

/// A peer with so many nodes.
pub(crate) fn serve_nodes(master: &str, count: u64, folder: &Path) -> Result<()> {
    let node = |number: u64| -> Result<Running> {
        let unix: PathBuf = folder.join(name(number)).with_extension("sock");
        Ok(run_node(NodeOptions {
            name: name(number),
            master: master.parse().map_err(anyhow::Error::msg)?,
            listen: Some(Address::Tcp("127.0.0.1:0".into())),
            unix: Some(unix),
            segment_bytes: SEGMENT_BYTES,
            ..NodeOptions::default()
        })?)
    };
    let nodes: Vec<Running> = (0..count).map(node).collect::<Result<_>>()?;
    until_the_end("ready")?;
    nodes.into_iter().for_each(Running::stop);
    Ok(())
}

fn calls_table(all: &[Measured]) -> Table {
    let row = |at: usize, name: &str| {
        let (first, last) = (&all[0].calls[at], &all[all.len() - 1].calls[at]);
        let growth = last.over(first);
        let micros = |series: &Series| -> Spread { series.per_call().map(|ns| ns / 1e3) };
        let mut cells = vec![name.to_owned()];
        cells.extend(all.iter().map(|one| spread(micros(&one.calls[at]), "")));
        cells.push(spread(growth, "×"));
        let sizes: Vec<_> = all
            .iter()
            .map(|one| json!({ "nodes": one.nodes, "cost": one.calls[at].json() }))
            .collect();
        Row {
            cells,
            values: json!({ "call": name, "sizes": sizes, "growth": growth.json() }),
            verdict: Some(Verdict::at_most(growth.median, FLAT, "<= 1.5×")),
        }
    };
    let mut columns = vec!["CALL, µs".to_owned()];
    columns.extend(all.iter().map(|one| match one.nodes {
        1 => "1 NODE".to_owned(),
        nodes => format!("{nodes} NODES"),
    }));
    columns.push("GROWTH (MIN..MAX)".to_owned());
    Table {
        name: "nodes",
        title: "Cost per call as the number of nodes grows: one client, links open",
        notes: vec![
            "Floor: the same calls with the fewest nodes. A put goes to a node that placement draws, \
             its bytes through shared memory; a remove is answered when the node has obeyed."
                .to_owned(),
            "Nodes of 8 MiB, all in one process, the master in another; both on one half of the cores \
             and the client on the other, unless --any-core was given."
                .to_owned(),
        ],
        columns,
        rows: CALLS.iter().enumerate().map(|(at, (_, name))| row(at, name)).collect(),
    }
}

fn idle_table(all: &[Measured], time: Duration) -> Table {
    let row = |one: &Measured| {
        let Idle { node_percent, master_percent, node_wakes } = one.idle;
        Row {
            cells: vec![
                one.nodes.to_string(),
                format!("{node_percent:.4}"),
                format!("{master_percent:.4}"),
                format!("{node_wakes:.1}"),
            ],
            values: json!({
                "nodes": one.nodes,
                "node_percent": node_percent,
                "master_percent_per_node": master_percent,
                "node_wakes_per_second": node_wakes,
            }),
            verdict: Some(Verdict::at_most(node_percent, IDLE_PERCENT, "< 0.05 % of a core")),
        }
    };
    Table {
        name: "nodes_idle",
        title: "What a node takes that nobody uses",
        notes: vec![format!(
            "CPU time of all threads over {} s, by the kernel's count, divided by the number of nodes. \
             The master's contains its own clock, which ticks for one node as for 200.",
            time.as_secs_f64()
        )],
        columns: ["NODES", "NODE, % OF A CORE", "MASTER, % PER NODE", "WAKE-UPS/s OF A NODE"]
            .map(str::to_owned)
            .to_vec(),
        rows: all.iter().map(row).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a thread that nobody else uses: those of other tests come and go.
    #[test]
    fn what_a_thread_uses_is_counted() {
        let task = Path::new("/proc/thread-self").canonicalize().unwrap();
        let before = Used::of(&task).unwrap();
        std::thread::sleep(Duration::from_millis(1));
        let after = Used::of(&task).unwrap();
        assert!(after.wakes > before.wakes, "{before:?} {after:?}");
        assert!(Look::at(std::process::id()).unwrap().0.contains_key(task.file_name().unwrap()));
    }

    /// The story: threads that ended took what they had used out of the sum, which came out as 0, and met its goal.
    #[test]
    fn a_thread_that_has_ended_leaves_no_figure() {
        let look = |threads: &[(&str, u64)]| {
            let used = |n: u64| Used { cpu_ns: 1000 * n, wakes: n };
            Look(threads.iter().map(|(id, n)| (OsString::from(id), used(*n))).collect())
        };
        let before = look(&[("1", 5), ("2", 900)]);
        let used = look(&[("1", 7), ("2", 901), ("3", 400)]).since(&before).unwrap();
        assert_eq!((used.cpu_ns, used.wakes), (3000, 3), "what came meanwhile was not idle");
        let error = look(&[("1", 7), ("3", 400)]).since(&before).unwrap_err();
        assert!(error.to_string().contains("thread 2 ended"), "{error}");
    }
}
