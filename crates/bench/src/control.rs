//! Control calls against a bare round trip of the same number of bytes on the same kind of socket.

use crate::cores::Placement;
use crate::effort::Effort;
use crate::growth::{master_at, soon};
use crate::measure::{Lap, Series, Spread, take_turns};
use crate::peer::Peer;
use crate::plain::{Plain, Session};
use crate::render::note;
use crate::report::{Row, Table, Verdict, duel_json, spread, time};
use crate::workload::{BenchKey, key};
use anyhow::{Context, Result, ensure};
use mooncrate::{ConnectOptions, Store, Stored};
use mooncrate_core::rng::Rng;
use mooncrate_wire::frame::FRAME_HEADER_BYTES;
use mooncrate_wire::message::{Exist, Locate, Ping, Pong};
use mooncrate_wire::{MasterApi, MasterLink, Reply, Request};
use serde_json::json;
use std::borrow::Cow;
use std::thread;

/// Goal: time per call over that of the bare round trip.
const TIMES_FLOOR: f64 = 1.3;
/// Objects that are asked for.
const OBJECTS: u64 = 4096;
/// Threads and keys of the rows.
const THREADS: [usize; 2] = [1, 8];
const KEYS: [usize; 2] = [1, 128];

/// A call that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Ping,
    Exist,
    Locate,
}

/// What a row measures.
#[derive(Clone, Copy, Debug)]
struct Load {
    call: Call,
    keys: usize,
    threads: usize,
    placement: &'static str,
}

/// Some keys, drawn at random.
type Batch = Vec<BenchKey>;

pub(crate) fn run(effort: &Effort) -> Result<Vec<Table>> {
    let mut rows = Vec::new();
    for placement in effort.cores.placements() {
        rows.extend(placed(effort, &placement)?);
    }
    Ok(vec![table(rows)])
}

/// All rows of one placement.
fn placed(effort: &Effort, placement: &Placement) -> Result<Vec<Row>> {
    placement.enter()?;
    let segment = (64_u64 << 20).to_string();
    let server = Peer::start(placement, &["serve-for-bench", "--bytes", &segment])?;
    let plain = Peer::start(placement, &["floor-for-bench", "--bytes", "4096"])?;
    fill(&server)?;
    let master = master_at(server.said())?;
    let mut rows = Vec::new();
    for call in [Call::Ping, Call::Exist, Call::Locate] {
        for keys in KEYS {
            if call == Call::Ping && keys != KEYS[0] {
                continue;
            }
            for threads in THREADS {
                let load = Load { call, keys, threads, placement: placement.name };
                note(&format!("control: {load:?}"));
                rows.push(row(effort, &master, plain.said(), load)?);
            }
        }
    }
    Ok(rows)
}

fn fill(server: &Peer) -> Result<()> {
    let master = server.said().parse().map_err(anyhow::Error::msg)?;
    let store = Store::connect(ConnectOptions { master, ..ConnectOptions::default() })?;
    let keys: Vec<BenchKey> = (0..OBJECTS).map(key).collect();
    for keys in keys.chunks(512) {
        let items: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (&key[..], &key[..])).collect();
        for stored in store.put_batch(&items) {
            ensure!(stored? == Stored::New, "a key of the bench was there before");
        }
    }
    Ok(())
}

fn row(effort: &Effort, master: &MasterLink, plain: &str, load: Load) -> Result<Row> {
    let Load { call, keys, threads, .. } = load;
    let mut rng = Rng::new(keys as u64);
    let mut draw = || -> Vec<Batch> {
        (0..64).map(|_| (0..keys).map(|_| key(rng.below(OBJECTS))).collect()).collect()
    };
    let batches: Vec<Vec<Batch>> = (0..threads).map(|_| draw()).collect();
    let (there, back) = frame_bytes(master, call, &batches[0][0])?;
    let session = Session::PingPong { there, back };
    let mut links: Vec<Plain> =
        (0..threads).map(|_| Plain::connect(plain, session)).collect::<Result<_>>()?;

    let mut floor = |lap: &mut Lap| {
        side_by_side(lap, &mut links, |link, lap| {
            while lap.going() {
                lap.time(|| link.ping_pong())?;
            }
            Ok(())
        })
    };
    let mut asks: Vec<&[Batch]> = batches.iter().map(Vec::as_slice).collect();
    let mut subject = |lap: &mut Lap| {
        side_by_side(lap, &mut asks, |batches, lap| {
            let mut batches = batches.iter().cycle();
            while lap.going() {
                let batch = batches.next().expect("a cycle does not end");
                let keys: Vec<&[u8]> = batch.iter().map(|key| &key[..]).collect();
                lap.time(|| ask(master, call, &keys))?;
            }
            Ok(())
        })
    };
    let [floor, subject] = take_turns(effort, [&mut floor, &mut subject])?;
    Ok(shown(load, (there, back), &subject, &floor))
}

/// Lets one thread work on each of `parts`, and joins their laps.
pub(crate) fn side_by_side<T: Send>(
    lap: &mut Lap,
    parts: &mut [T],
    work: impl Fn(&mut T, &mut Lap) -> Result<()> + Sync,
) -> Result<()> {
    let work = &work;
    let laps: Vec<Lap> = thread::scope(|scope| {
        let running: Vec<_> = parts
            .iter_mut()
            .map(|part| {
                let mut own = lap.like();
                let started = thread::Builder::new().name("load".into()).spawn_scoped(
                    scope,
                    move || -> Result<Lap> {
                        work(part, &mut own)?;
                        Ok(own)
                    },
                );
                started.context("cannot start a thread")
            })
            .collect();
        running
            .into_iter()
            .map(|thread| thread?.join().expect("a lap does not panic"))
            .collect::<Result<_>>()
    })?;
    lap.join(&laps);
    Ok(())
}

fn ask(master: &MasterLink, call: Call, keys: &[&[u8]]) -> Result<()> {
    match call {
        Call::Ping => {
            master.ping(soon())?;
        }
        Call::Exist => {
            let found = master.exist(keys, soon())?;
            ensure!(found.iter().all(|one| *one == Ok(true)), "an object is gone");
        }
        Call::Locate => {
            let found = master.locate(0, keys, soon())?;
            ensure!(found.iter().all(Result::is_ok), "an object is gone");
        }
    }
    Ok(())
}

/// Bytes of the frames of a call, there and back.
fn frame_bytes(master: &MasterLink, call: Call, batch: &Batch) -> Result<(usize, usize)> {
    let keys: Vec<&[u8]> = batch.iter().map(|key| &key[..]).collect();
    let (request, reply) = match call {
        Call::Ping => {
            let epoch = master.ping(soon())?;
            (Request::Ping(Ping {}), Reply::Ping(Pong { epoch }))
        }
        Call::Exist => {
            let reply = Reply::Exist(master.exist(&keys, soon())?);
            (Request::Exist(Exist { keys: Cow::Borrowed(&keys) }), reply)
        }
        Call::Locate => {
            let reply = Reply::Locate(master.locate(0, &keys, soon())?);
            (Request::Locate(Locate { lease_ms: 0, keys: Cow::Borrowed(&keys) }), reply)
        }
    };
    let (mut there, mut back) = (Vec::new(), Vec::new());
    request.encode(&mut there);
    reply.encode(&mut back);
    Ok((FRAME_HEADER_BYTES + there.len(), FRAME_HEADER_BYTES + back.len()))
}

fn shown(load: Load, (there, back): (usize, usize), subject: &Series, floor: &Series) -> Row {
    let Load { call, keys, threads, placement } = load;
    let times = subject.over(floor);
    let name = match call {
        Call::Ping => "ping",
        Call::Exist => "exist",
        Call::Locate => "locate",
    };
    let keys = if call == Call::Ping { 0 } else { keys };
    let per_second = |series: &Series| -> Spread { series.per_call().map(|ns| 1e6 / ns) };
    let mut cells = vec![
        name.to_owned(),
        keys.to_string(),
        threads.to_string(),
        placement.to_owned(),
        format!("{there} / {back}"),
    ];
    for series in [subject, floor] {
        cells.push(time(series.percentile(50.0)));
        cells.push(time(series.percentile(99.0)));
        cells.push(spread(per_second(series), ""));
    }
    cells.push(spread(times, "×"));
    let mut values = duel_json(subject, floor);
    values["call"] = json!(name);
    values["keys"] = json!(keys);
    values["threads"] = json!(threads);
    values["placement"] = json!(placement);
    values["request_bytes"] = json!(there);
    values["reply_bytes"] = json!(back);
    let verdict = Some(Verdict::at_most(times.median, TIMES_FLOOR, "<= 1.3× the floor"));
    Row { cells, values, verdict }
}

fn table(rows: Vec<Row>) -> Table {
    let columns = [
        "CALL",
        "KEYS",
        "THREADS",
        "CORES",
        "BYTES",
        "P50",
        "P99",
        "k CALLS/s (MIN..MAX)",
        "FLOOR P50",
        "FLOOR P99",
        "FLOOR k CALLS/s (MIN..MAX)",
        "TIMES FLOOR (MIN..MAX)",
    ];
    Table {
        name: "control",
        title: "Control calls over TCP beside a bare round trip",
        notes: [
            "Floor: blocking ping-pong of the same number of bytes (request / reply) over TCP \
             loopback between two processes, one connection and one thread on either side each.",
            "CORES: on one core nothing hides what a call costs beyond the round trip; apart (callers \
             on one half of the cores, servers on the other) waking the other core costs most.",
            "TIMES FLOOR: our time per call over the floor's, all threads together.",
        ]
        .map(str::to_owned)
        .to_vec(),
        columns: columns.map(str::to_owned).to_vec(),
        rows,
    }
}
