//! TCP with several clients and several nodes, beside as many bare sockets; one large value over several
//! links ([`lanes`]); and what small gets notice of large transfers on the same node ([`beside`]).
//!
//! What must stay true: shared memory is off; clients share nothing with each other, neither links nor
//! caches; the floor has one connection per client, spread over as many processes as there are nodes;
//! each value that a get brought is looked at. Nobody is bound to a core: with more processes than
//! cores that would measure the binding.

mod beside;
mod lanes;

use crate::control::side_by_side;
use crate::cores::{Allowed, Placement};
use crate::effort::Effort;
use crate::measure::{Lap, Series, take_turns};
use crate::paths::{put, remove};
use crate::peer::Peer;
use crate::plain::{Plain, Session};
use crate::render::{bytes, note};
use crate::report::{Row, Table, duel_json, spread};
use crate::workload::{BenchKey, Rotation, Value, is_value, key};
use anyhow::{Context, Result, ensure};
use mooncrate::{ConnectOptions, Lanes, Store};
use serde_json::json;
use std::path::Path;

const NODES: [usize; 3] = [1, 2, 4];
const CLIENTS: [usize; 4] = [1, 2, 4, 8];
const SIZES: [u64; 2] = [4 << 10, 1 << 20];
/// Bytes of values that are read, and that each client writes before it removes them.
const READ_BYTES: u64 = 128 << 20;
const WRITE_BYTES: u64 = 16 << 20;
/// Values that are read at most.
const READ_VALUES: u64 = 4096;
/// Bytes of each node's segment: room for all values on one of them, so that nothing is evicted.
const SEGMENT_BYTES: u64 = 768 << 20;
/// Keys of different clients are this far apart.
const APART: u64 = 1 << 32;

/// A master and its nodes, each a process of its own, and as many plain servers as nodes.
struct Cluster {
    /// Before the master: they say farewell to it.
    _nodes: Vec<Peer>,
    master: Peer,
    plain: Vec<Peer>,
    _folder: tempfile::TempDir,
}

impl Cluster {
    fn start(nodes: usize) -> Result<Self> {
        let place = Allowed::default().apart();
        let folder = tempfile::tempdir()?;
        let state = folder.path().join("master.state");
        let state = state.to_str().context("a temporary folder with an odd name")?;
        let listen = ["state-master-for-bench", "--listen", "127.0.0.1:0", "--state", state];
        let master = Peer::start(&place, &listen)?;
        let start = |number: usize| node(&place, &master, folder.path(), number);
        let nodes: Vec<Peer> = (0..nodes).map(start).collect::<Result<_>>()?;
        let pool = READ_BYTES.to_string();
        let plain = |_| Peer::start(&place, &["floor-for-bench", "--bytes", &pool]);
        let plain = nodes.iter().map(plain).collect::<Result<_>>()?;
        Ok(Self { _nodes: nodes, master, plain, _folder: folder })
    }

    /// A client of its own, with links and a cache of its own.
    fn client(&self, shared_memory: bool) -> Result<Store> {
        let master = self.master.said().parse().map_err(anyhow::Error::msg)?;
        Ok(Store::connect(ConnectOptions { master, shared_memory, ..ConnectOptions::default() })?)
    }

    /// A client whose large values travel over so many links.
    fn laned(&self, count: usize) -> Result<Store> {
        let master = self.master.said().parse().map_err(anyhow::Error::msg)?;
        let lanes = Lanes { count, ..Lanes::default() };
        let options =
            ConnectOptions { master, shared_memory: false, lanes, ..ConnectOptions::default() };
        Ok(Store::connect(options)?)
    }

    fn plain(&self, number: usize, session: Session) -> Result<Plain> {
        Plain::connect(self.plain[number % self.plain.len()].said(), session)
    }
}

fn node(place: &Placement, master: &Peer, folder: &Path, number: usize) -> Result<Peer> {
    let socket = folder.join(format!("node-{number}.sock"));
    let socket = socket.to_str().context("a temporary folder with an odd name")?;
    let (name, segment) = (format!("node-{number}"), SEGMENT_BYTES.to_string());
    let start = ["node-for-bench", "--name", &name, "--master", master.said(), "--unix", socket];
    Peer::start(place, &[&start[..], &["--bytes", &segment]].concat())
}

pub(crate) fn run(effort: &Effort) -> Result<Vec<Table>> {
    let mut rows = Vec::new();
    for nodes in NODES {
        note(&format!("scale: {nodes} nodes"));
        let cluster = Cluster::start(nodes)?;
        for size in SIZES {
            let keys = fill(&cluster, size)?;
            for clients in CLIENTS {
                let (subject, floor) = gets(effort, &cluster, size, clients, &keys)?;
                rows.push(row("get", size, nodes, clients, &subject, &floor));
            }
            remove(&cluster.client(false)?, &keys)?;
            for clients in CLIENTS {
                let (subject, floor) = puts(effort, &cluster, size, clients)?;
                rows.push(row("put", size, nodes, clients, &subject, &floor));
            }
        }
    }
    Ok(vec![table(rows), lanes::run(effort)?, beside::run(effort)?])
}

/// Stores the values that are read.
fn fill(cluster: &Cluster, size: u64) -> Result<Vec<BenchKey>> {
    let store = cluster.client(false)?;
    let keys: Vec<BenchKey> = (0..(READ_BYTES / size).min(READ_VALUES)).map(key).collect();
    let mut value = Value::new(size as usize);
    for (number, key) in keys.iter().enumerate() {
        put(&store, key, value.stamp(number))?;
    }
    Ok(keys)
}

fn gets(
    effort: &Effort,
    cluster: &Cluster,
    size: u64,
    clients: usize,
    keys: &[BenchKey],
) -> Result<(Series, Series)> {
    let len = size as usize;
    let mut ours = Vec::new();
    let mut bare = Vec::new();
    for number in 0..clients {
        let mut turn = Rotation::new(keys.len());
        // Not all at the same place at the same time.
        for _ in 0..number * keys.len() / clients {
            turn.next();
        }
        ours.push((cluster.client(false)?, turn.clone(), vec![0; len]));
        let session = Session::Get { size: len };
        bare.push((cluster.plain(number, session)?, turn, vec![0; len]));
    }
    let mut floor = |lap: &mut Lap| {
        side_by_side(lap, &mut bare, |(plain, turn, target), lap| {
            while lap.going() {
                let at = turn.next();
                lap.time(|| plain.get(at, target))?;
            }
            Ok(())
        })
    };
    let mut subject = |lap: &mut Lap| {
        side_by_side(lap, &mut ours, |(store, turn, target), lap| {
            while lap.going() {
                let at = turn.next();
                let got = lap.time(|| store.get_into(&keys[at], target))?;
                ensure!(got == Some(len), "value {at} is gone: {got:?}");
                ensure!(is_value(target, at), "WRONG BYTES for value {at}");
            }
            Ok(())
        })
    };
    let [floor, subject] = take_turns(effort, [&mut floor, &mut subject])?;
    Ok((subject, floor))
}

/// One client that puts: what it has stored, and its next number.
struct Writer {
    store: Store,
    value: Value,
    live: Vec<BenchKey>,
    next: u64,
}

impl Writer {
    fn new(store: Store, size: u64, number: usize) -> Self {
        let next = APART * (number as u64 + 1);
        Self { store, value: Value::new(size as usize), live: Vec::new(), next }
    }

    fn lap(&mut self, live_max: usize, lap: &mut Lap) -> Result<()> {
        while lap.going() {
            // Removing is not what is measured.
            if self.live.len() >= live_max {
                remove(&self.store, &self.live)?;
                self.live.clear();
            }
            self.next += 1;
            let (key, value) = (key(self.next), self.value.stamp(self.next as usize));
            lap.time(|| put(&self.store, &key, value))?;
            self.live.push(key);
        }
        Ok(())
    }
}

fn puts(effort: &Effort, cluster: &Cluster, size: u64, clients: usize) -> Result<(Series, Series)> {
    let len = size as usize;
    let live_max = (WRITE_BYTES / size) as usize;
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for number in 0..clients {
        ours.push(Writer::new(cluster.client(false)?, size, number));
        let session = Session::Put { size: len };
        let value = Value::new(len).stamp(0).to_vec();
        bare.push((cluster.plain(number, session)?, Rotation::new(live_max), value));
    }
    let mut floor = |lap: &mut Lap| {
        side_by_side(lap, &mut bare, |(plain, turn, value), lap| {
            while lap.going() {
                let at = turn.next();
                lap.time(|| plain.put(at, value))?;
            }
            Ok(())
        })
    };
    let mut subject =
        |lap: &mut Lap| side_by_side(lap, &mut ours, |writer, lap| writer.lap(live_max, lap));
    let [floor, subject] = take_turns(effort, [&mut floor, &mut subject])?;
    for writer in &ours {
        remove(&writer.store, &writer.live)?;
    }
    Ok((subject, floor))
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn row(
    call: &str,
    size: u64,
    nodes: usize,
    clients: usize,
    subject: &Series,
    floor: &Series,
) -> Row {
    let rate = |series: &Series| spread(series.per_call().map(|ns| size as f64 / ns), "");
    let rate_k = |series: &Series| format!("{:.1}", 1e6 / series.per_call().median);
    let of_floor = floor.over(subject).map(|ratio| 100.0 * ratio);
    let mut values = duel_json(subject, floor);
    values["call"] = json!(call);
    values["value_bytes"] = json!(size);
    values["nodes"] = json!(nodes);
    values["clients"] = json!(clients);
    let cells = vec![
        call.to_owned(),
        bytes(size),
        nodes.to_string(),
        clients.to_string(),
        rate_k(subject),
        rate(subject),
        rate_k(floor),
        rate(floor),
        spread(of_floor, "%"),
    ];
    Row { cells, values, verdict: None }
}

fn table(rows: Vec<Row>) -> Table {
    let columns =
        ["CALL", "VALUE", "NODES", "CLIENTS", "k/s", "GB/s", "FLOOR k/s", "FLOOR GB/s", "OF FLOOR"];
    Table {
        name: "scale",
        title: "TCP: clients and nodes, beside as many bare sockets",
        notes: [
            "Shared memory is off. Each client is a thread with links and a cache of its own; each \
             node and the master are processes. All clients together: calls and bytes per second.",
            "Floor: one bare connection per client, spread over as many processes as there are \
             nodes; one small header, no checksum. A put of ours is a write, a signal and two calls \
             to the master; a bare one is a write and its echo.",
        ]
        .map(str::to_owned)
        .to_vec(),
        columns: columns.map(str::to_owned).to_vec(),
        rows,
    }
}
