//! Put and get of whole values: in the same process, on the same host through shared memory, over TCP.
//!
//! What must stay true: floor and subject visit as many distinct values in the same order, into or out
//! of one buffer that is used again; the path that was measured is the one that the row names; each
//! value that a get brought is looked at.

use crate::effort::Effort;
use crate::measure::{Lap, Series, take_turns};
use crate::peer::Peer;
use crate::plain::{Plain, Session};
use crate::render::{bytes, note};
use crate::report::{Row, Table, Verdict, duel_json, spread, time};
use crate::workload::{BenchKey, Pool, Rotation, Value, is_value, key};
use anyhow::{Context, Result, bail, ensure};
use mooncrate::{Advice, ConnectOptions, EmbeddedOptions, Path, Store, Stored};
use serde_json::json;
use std::hint::black_box;
use std::time::Duration;

/// Goal for gets of at least [`LARGE_BYTES`].
const OF_FLOOR: f64 = 0.9;
const LARGE_BYTES: u64 = 1 << 20;
/// Goal for the hot get of [`HOT_BYTES`] on the same host.
const HOT_NS: f64 = 1000.0;
const HOT_BYTES: u64 = 4 << 10;
/// Keys of one remove.
const REMOVE_KEYS: usize = 1024;
/// Values that touch a whole segment before anything is timed.
const TOUCH_BYTES: usize = 4 << 20;
/// Tries of a put that finds no room for a moment.
const TRIES_MAX: u32 = 1000;

/// A store, and how it is reached.
struct Way<'a> {
    name: &'static str,
    path: Path,
    store: &'a Store,
}

/// What is shared by all rows.
struct Bench<'a> {
    effort: &'a Effort,
    /// The plain program's memory, for copies.
    pool: Pool,
    /// The plain program's other end, for sockets.
    plain: Peer,
    rows: Vec<(RowKey, Row)>,
}

/// Path, call, size: the order of the table.
type RowKey = (usize, &'static str, u64);

pub(crate) fn run(effort: &Effort) -> Result<Vec<Table>> {
    let apart = effort.cores.apart();
    apart.enter()?;
    let segment_bytes = segment_bytes(effort);
    note("paths: starting the servers");
    let embedded = EmbeddedOptions { segment_bytes, ..EmbeddedOptions::default() };
    let embedded = Store::embedded(embedded)?;
    let server = Peer::start(&apart, &["serve-for-bench", "--bytes", &segment_bytes.to_string()])?;
    let connect = |shared_memory| -> Result<Store> {
        let master = server.said().parse().map_err(anyhow::Error::msg)?;
        Ok(Store::connect(ConnectOptions { master, shared_memory, ..ConnectOptions::default() })?)
    };
    let (shared, tcp) = (connect(true)?, connect(false)?);
    let pool_bytes = effort.pool_bytes();
    let plain = Peer::start(&apart, &["floor-for-bench", "--bytes", &pool_bytes.to_string()])?;
    let mut bench = Bench { effort, pool: Pool::new(pool_bytes), plain, rows: Vec::new() };

    let way = |name, path, store| Way { name, path, store };
    let groups = [
        vec![way("same process", Path::Local, &embedded)],
        vec![way("same host", Path::Shared, &shared), way("TCP", Path::Stream, &tcp)],
    ];
    for ways in &groups {
        for way in ways {
            touch(way.store, segment_bytes)?;
        }
        for &size in effort.value_bytes {
            bench.values(ways, size)?;
        }
    }
    let mut rows = bench.rows;
    rows.sort_by_key(|(key, _)| *key);
    Ok(vec![table(rows.into_iter().map(|(_, row)| row).collect())])
}

/// Room for the values of one size twice over: nothing is evicted.
pub(crate) fn segment_bytes(effort: &Effort) -> u64 {
    2 * effort.pool_bytes() as u64 + (64 << 20)
}

/// Writes nearly all of a segment once, so that no timed call meets a page for the first time.
fn touch(store: &Store, segment_bytes: u64) -> Result<()> {
    // Below the mark where eviction starts.
    let count = segment_bytes as usize * 9 / 10 / TOUCH_BYTES;
    let keys: Vec<BenchKey> = (0..count as u64).map(|n| key(u64::MAX - n)).collect();
    let value = Value::new(TOUCH_BYTES).stamp(0).to_vec();
    for key in &keys {
        put(store, key, &value)?;
    }
    remove(store, &keys)
}

impl Bench<'_> {
    /// All rows of one size.
    fn values(&mut self, ways: &[Way<'_>], size: u64) -> Result<()> {
        let count = self.effort.values(size);
        let keys: Vec<BenchKey> = (0..count as u64).map(key).collect();
        let mut value = Value::new(size as usize);
        for (number, key) in keys.iter().enumerate() {
            put(ways[0].store, key, value.stamp(number))?;
        }
        for way in ways {
            note(&format!("paths: {} get {}", way.name, bytes(size)));
            check(way, &keys, &mut value)?;
            self.get(way, size, &keys, false)?;
            if size == HOT_BYTES && way.path != Path::Stream {
                self.get(way, size, &keys[..1], true)?;
            }
        }
        remove(ways[0].store, &keys)?;
        for way in ways {
            note(&format!("paths: {} put {}", way.name, bytes(size)));
            self.put(way, &keys, &mut value, size)?;
        }
        Ok(())
    }

    fn get(&mut self, way: &Way<'_>, size: u64, keys: &[BenchKey], hot: bool) -> Result<()> {
        let len = size as usize;
        let (mut turn, mut floor_turn) = (Rotation::new(keys.len()), Rotation::new(keys.len()));
        let (mut target, mut floor_target) = (vec![0; len], vec![0; len]);
        let mut subject = |lap: &mut Lap| {
            while lap.going() {
                let at = turn.next();
                let got = lap.time(|| way.store.get_into(&keys[at], &mut target))?;
                ensure!(got == Some(len), "{}: value {at} is gone: {got:?}", way.name);
                ensure!(is_value(&target, at), "{}: WRONG BYTES for value {at}", way.name);
            }
            Ok(())
        };
        let [floor, subject] = if way.path == Path::Stream {
            let mut plain = Plain::connect(self.plain.said(), Session::Get { size: len })?;
            let mut floor = |lap: &mut Lap| {
                while lap.going() {
                    let at = floor_turn.next();
                    lap.time(|| plain.get(at, &mut floor_target))?;
                }
                Ok(())
            };
            take_turns(self.effort, [&mut floor, &mut subject])?
        } else {
            let pool = &self.pool;
            let mut floor = |lap: &mut Lap| {
                while lap.going() {
                    let source = pool.place(len, floor_turn.next());
                    lap.time(|| black_box(&mut floor_target[..]).copy_from_slice(source));
                }
                Ok(())
            };
            take_turns(self.effort, [&mut floor, &mut subject])?
        };
        let call = if hot { "get, hot" } else { "get" };
        self.row(way, call, size, keys.len(), &subject, &floor);
        Ok(())
    }

    fn put(
        &mut self,
        way: &Way<'_>,
        keys: &[BenchKey],
        value: &mut Value,
        size: u64,
    ) -> Result<()> {
        let len = size as usize;
        let (mut turn, mut floor_turn) = (Rotation::new(keys.len()), Rotation::new(keys.len()));
        let floor_value = value.stamp(0).to_vec();
        let mut live: Vec<BenchKey> = Vec::with_capacity(keys.len());
        let mut subject = |lap: &mut Lap| {
            while lap.going() {
                // Removing is not what is measured.
                if live.len() == keys.len() {
                    remove(way.store, &live)?;
                    live.clear();
                }
                let at = turn.next();
                let value = value.stamp(at);
                let stored = lap.time(|| way.store.put(&keys[at], value))?;
                ensure!(stored == Stored::New, "{}: value {at} was there", way.name);
                live.push(keys[at]);
            }
            Ok(())
        };
        let [floor, subject] = if way.path == Path::Stream {
            let mut plain = Plain::connect(self.plain.said(), Session::Put { size: len })?;
            let mut floor = |lap: &mut Lap| {
                while lap.going() {
                    let at = floor_turn.next();
                    lap.time(|| plain.put(at, &floor_value))?;
                }
                Ok(())
            };
            take_turns(self.effort, [&mut floor, &mut subject])?
        } else {
            let pool = &mut self.pool;
            let mut floor = |lap: &mut Lap| {
                while lap.going() {
                    let target = pool.place_mut(len, floor_turn.next());
                    lap.time(|| black_box(target).copy_from_slice(&floor_value));
                }
                Ok(())
            };
            take_turns(self.effort, [&mut floor, &mut subject])?
        };
        remove(way.store, &live)?;
        self.row(way, "put", size, keys.len(), &subject, &floor);
        Ok(())
    }

    fn row(
        &mut self,
        way: &Way<'_>,
        call: &'static str,
        size: u64,
        values: usize,
        subject: &Series,
        floor: &Series,
    ) {
        let of_floor = floor.over(subject);
        let verdict = match call {
            "get" if size >= LARGE_BYTES => {
                Some(Verdict::at_least(of_floor.median, OF_FLOOR, ">= 90% of the floor"))
            }
            "get, hot" if way.path == Path::Shared => {
                Some(Verdict::at_most(subject.percentile(50.0), HOT_NS, "p50 <= 1 µs"))
            }
            _ => None,
        };
        let mut cells = vec![way.name.to_owned(), call.to_owned(), bytes(size)];
        for series in [subject, floor] {
            cells.extend(rate_cells(series, size));
        }
        cells.push(spread(of_floor.map(|ratio| 100.0 * ratio), "%"));
        let mut values_json = duel_json(subject, floor);
        values_json["path"] = json!(way.name);
        values_json["call"] = json!(call);
        values_json["value_bytes"] = json!(size);
        values_json["values"] = json!(values);
        let path = [Path::Local, Path::Shared, Path::Stream].iter().position(|p| *p == way.path);
        let key = (path.expect("there are three"), call, size);
        self.rows.push((key, Row { cells, values: values_json, verdict }));
    }
}

/// P50, P99 and gigabytes per second.
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
pub(crate) fn rate_cells(series: &Series, size: u64) -> [String; 3] {
    [
        time(series.percentile(50.0)),
        time(series.percentile(99.0)),
        spread(series.per_call().map(|ns| size as f64 / ns), ""),
    ]
}

/// That the store is reached on the right path and holds the values, byte for byte.
fn check(way: &Way<'_>, keys: &[BenchKey], value: &mut Value) -> Result<()> {
    let path = way.store.path(&keys[0])?.context("a value that was put is gone")?;
    ensure!(path == way.path, "{} would measure {path:?}, not {:?}", way.name, way.path);
    let mut target = vec![0; value.stamp(0).len()];
    for (number, key) in keys.iter().enumerate() {
        let got = way.store.get_into(key, &mut target)?;
        ensure!(got == Some(target.len()), "{}: value {number} is gone", way.name);
        ensure!(target == value.stamp(number), "{}: WRONG BYTES for value {number}", way.name);
    }
    Ok(())
}

/// Puts a new value; room that is on its way is waited for.
pub(crate) fn put(store: &Store, key: &BenchKey, value: &[u8]) -> Result<()> {
    for _ in 0..TRIES_MAX {
        match store.put(key, value) {
            Ok(Stored::New) => return Ok(()),
            Ok(Stored::AlreadyThere) => bail!("a key of the bench was there before"),
            Err(error) => match error.advice() {
                Advice::Retry { .. } => std::thread::sleep(Duration::from_millis(1)),
                _ => return Err(error.into()),
            },
        }
    }
    bail!("no room for a value, {TRIES_MAX} times in a row")
}

pub(crate) fn remove(store: &Store, keys: &[BenchKey]) -> Result<()> {
    for keys in keys.chunks(REMOVE_KEYS) {
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        for removed in store.remove_batch(&keys, true)? {
            ensure!(removed?, "a value that was put is gone: was it evicted?");
        }
    }
    Ok(())
}

fn table(rows: Vec<Row>) -> Table {
    let columns = [
        "PATH",
        "CALL",
        "SIZE",
        "P50",
        "P99",
        "GB/s (MIN..MAX)",
        "FLOOR P50",
        "FLOOR P99",
        "FLOOR GB/s (MIN..MAX)",
        "OF FLOOR (MIN..MAX)",
    ];
    Table {
        name: "paths",
        title: "Put and get beside their floors, one thread",
        notes: [
            "Checksums are on. Gets go into one buffer that is used again, their locators are \
             cached; puts come out of one buffer, and what was put is removed between timed calls.",
            "Floor in the same process and on the same host: one memcpy to or from as many \
             distinct places of plain private memory, visited in the same order.",
            "Floor over TCP: a plain program with blocking sockets, TCP_NODELAY, a 32-byte header, \
             vectored writes and reads of 256 KiB, with its other end in a second process.",
            "The bench runs on one half of the cores, servers and the plain program's other end on \
             the other half, unless --any-core was given.",
            "Hot: the same value again and again; floor and subject stay in cache.",
            "OF FLOOR: the floor's time per call over ours, round by round.",
        ]
        .map(str::to_owned)
        .to_vec(),
        columns: columns.map(str::to_owned).to_vec(),
        rows,
    }
}
