//! A master is killed with so many objects in its index and started again: when does it answer, and
//! when does it know everything? Real processes: a master with a state file, nodes that filled their
//! own segments, and this one, which asks.
//!
//! What must stay true: the clock starts before the new master's process does; "full" means that the
//! master says so and counts every object; afterwards every key is asked for, and a sample is read and
//! compared byte by byte.

mod peers;
mod watch;

pub(crate) use peers::{serve_master, serve_node};

use crate::cores::Allowed;
use crate::growth::{master_at, soon};
use crate::measure::Spread;
use crate::peer::{Peer, cpu_ms};
use crate::render::{count, note};
use crate::report::{Row, Table, Verdict, spread, time};
use anyhow::{Context, Result, ensure};
use mooncrate::{Address, ConnectOptions, Store};
use mooncrate_core::limits::BATCH_ITEMS_MAX;
use mooncrate_mem::clock::boottime;
use mooncrate_wire::{MasterApi, MasterLink};
use serde_json::json;
use std::path::Path;
use std::time::Duration;
use watch::Watched;

/// Keys that are read and compared after a rebuild.
const SAMPLE: u64 = 20_000;
/// How long a rebuild may take before the bench gives up.
const PATIENCE: Duration = Duration::from_mins(5);

/// What to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Task {
    /// Objects of all nodes together.
    pub(crate) objects: u64,
    pub(crate) nodes: u64,
    /// How often the master is killed.
    pub(crate) rounds: usize,
}

/// What one round showed.
struct Round {
    watched: Watched,
    /// The same locates when nothing else goes on.
    idle_p99: f64,
    master_cpu_ms: f64,
    nodes_cpu_ms: f64,
}

pub(crate) fn run(task: Task) -> Result<Vec<Table>> {
    let anywhere = Allowed::default().apart();
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("master.state");
    let born = boottime();
    let mut master = start_master(&anywhere, "127.0.0.1:0", &state)?;
    let address = master.said().to_owned();
    note(&format!("rebuild: {} nodes fill {} objects", task.nodes, count(task.objects)));
    let nodes = start_nodes(&anywhere, task, &address, folder.path())?;
    note(&format!("rebuild: filled in {:.1} s", boottime().since(born).as_secs_f64()));

    let link = master_at(&address)?;
    ensure!(link.stat(soon())?.objects == task.objects, "not all objects were stored");
    let mut rounds = Vec::new();
    for number in 0..task.rounds as u64 {
        let target: Address = address.parse().map_err(anyhow::Error::msg)?;
        let store =
            Store::connect(ConnectOptions { master: target.into(), ..ConnectOptions::default() })?;
        let before: f64 = nodes.iter().map(|node| cpu_ms(node.id())).sum();
        master.kill()?;
        let start = boottime();
        master = start_master(&anywhere, strip(&address), &state)?;
        // Each round adds the one object that it puts.
        let watched = watch::watch(&store, &address, start, task, number).context("the rebuild")?;
        let after: f64 = nodes.iter().map(|node| cpu_ms(node.id())).sum();
        let master_cpu_ms = cpu_ms(master.id());
        note(&format!("rebuild: full after {:.2} s", watched.full.as_secs_f64()));
        verify(&link, &store, task)?;
        let idle_p99 = watch::idle_p99(&address, watched.full)?;
        rounds.push(Round { watched, idle_p99, master_cpu_ms, nodes_cpu_ms: after - before });
    }
    Ok(vec![table(task, &rounds)])
}

fn strip(address: &str) -> &str {
    address.strip_prefix("tcp://").unwrap_or(address)
}

fn start_master(place: &crate::cores::Placement, listen: &str, state: &Path) -> Result<Peer> {
    let state = state.to_str().context("a temporary folder with an odd name")?;
    Peer::start(place, &["state-master-for-bench", "--listen", listen, "--state", state])
}

fn start_nodes(
    place: &crate::cores::Placement,
    task: Task,
    master: &str,
    folder: &Path,
) -> Result<Vec<Peer>> {
    let mut nodes = Vec::new();
    for number in 0..task.nodes {
        let (first, last) = share(task, number);
        let socket = folder.join(format!("node-{number}.sock"));
        let socket = socket.to_str().context("a temporary folder with an odd name")?;
        let bytes = peers::segment_bytes(last - first).to_string();
        let (first, objects) = (first.to_string(), (last - first).to_string());
        let name = format!("node-{number}");
        nodes.push(Peer::spawn(
            place,
            &[
                &["node-for-bench", "--name", &name, "--master", master, "--unix", socket][..],
                &["--bytes", &bytes, "--first", &first, "--objects", &objects],
            ]
            .concat(),
        )?);
    }
    for node in &mut nodes {
        node.await_ready()?;
    }
    Ok(nodes)
}

/// The numbers of the keys that a node fills in.
fn share(task: Task, node: u64) -> (u64, u64) {
    (task.objects * node / task.nodes, task.objects * (node + 1) / task.nodes)
}

/// All keys are there, and a sample has its bytes.
fn verify(link: &MasterLink, store: &Store, task: Task) -> Result<()> {
    let mut number = 0;
    while number < task.objects {
        let end = task.objects.min(number + BATCH_ITEMS_MAX as u64);
        let keys: Vec<_> = (number..end).map(crate::workload::key).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        let found = link.exist(&keys, soon())?;
        let lost = found.iter().filter(|one| **one != Ok(true)).count();
        ensure!(lost == 0, "{lost} of {} keys from {number} on are LOST", keys.len());
        number = end;
    }
    let step = (task.objects / SAMPLE).max(1);
    let sample: Vec<u64> = (0..task.objects).step_by(step as usize).collect();
    for part in sample.chunks(1024) {
        let keys: Vec<_> = part.iter().map(|number| crate::workload::key(*number)).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        for (number, got) in part.iter().zip(store.get_batch(&keys)) {
            let value = got?.with_context(|| format!("value {number} is LOST"))?;
            ensure!(value == peers::value(*number), "WRONG BYTES for value {number}");
        }
    }
    note(&format!("rebuild: all keys there, {} read and compared", count(sample.len() as u64)));
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn table(task: Task, rounds: &[Round]) -> Table {
    let of = |figure: &dyn Fn(&Round) -> f64| Spread::of(rounds.iter().map(figure).collect());
    let nanos = |time: Duration| mooncrate_core::time::nanos(time) as f64;
    let row = |name: &str, figure: Spread, text: String, verdict: Option<Verdict>| Row {
        cells: vec![name.to_owned(), text],
        values: json!({ "figure": name, "value": figure.json() }),
        verdict,
    };
    let timed = |name: &str, figure: Spread, verdict: Option<Verdict>| {
        let text = format!("{} ({}..{})", time(figure.median), time(figure.min), time(figure.max));
        row(name, figure, text, verdict)
    };
    let full = of(&|round| nanos(round.watched.full));
    let goal_s = (task.objects as f64 / 1e6).max(2.0);
    let in_time = Verdict::at_most(full.median, goal_s * 1e9, format!("<= {goal_s:.0} s"));
    // Of the time in which headers came in, not of the time in which the master started.
    let telling =
        |round: &Round| nanos(round.watched.full.saturating_sub(round.watched.begun)).max(1.0);
    let rate = of(&|round| task.objects as f64 / task.nodes as f64 / (telling(round) / 1e9) / 1e6);
    let ratio = of(&|round| round.watched.locate_p99 / round.idle_p99);
    let cpu = |ms: f64| ms * 1e6;
    let rows = vec![
        timed("master answers a ping", of(&|r| nanos(r.watched.up)), None),
        timed("first headers indexed", of(&|r| nanos(r.watched.begun)), None),
        timed("first get of an announced key", of(&|r| nanos(r.watched.first_get)), None),
        timed("first put accepted", of(&|r| nanos(r.watched.first_put)), None),
        timed("full index", full, Some(in_time)),
        row("million headers/s per node", rate, spread(rate, ""), None),
        timed("p99 of locates meanwhile", of(&|r| r.watched.locate_p99), None),
        timed("longest locate meanwhile", of(&|r| r.watched.locate_max), None),
        timed("p99 of locates when idle", of(&|r| r.idle_p99), None),
        row("p99 meanwhile / idle", ratio, spread(ratio, "×"), None),
        timed("CPU time of the master", of(&|r| cpu(r.master_cpu_ms)), None),
        timed("CPU time of the nodes", of(&|r| cpu(r.nodes_cpu_ms)), None),
    ];
    Table {
        name: "rebuild",
        title: "A killed master rebuilds its index from the nodes' headers",
        notes: vec![
            format!(
                "{} objects of 16 to 64 bytes on {} nodes; kill -9 and restart, {} times; median and \
                 span of the rounds, counted from before the start of the new process.",
                count(task.objects),
                task.nodes,
                rounds.len()
            ),
            "After each rebuild every key was found, and a sample was read and compared. Locates \
             meanwhile: one thread asks for one announced key after the other."
                .to_owned(),
        ],
        columns: ["FIGURE", "MEDIAN (MIN..MAX)"].map(str::to_owned).to_vec(),
        rows,
    }
}
