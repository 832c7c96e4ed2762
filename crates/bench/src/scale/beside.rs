//! What a small get notices of a large transfer on the same node: its p99 when nothing else goes on,
//! and while another client reads or writes large values. Bare sockets doing the same show how much of
//! that is the machine's own.

use super::Cluster;
use crate::effort::Effort;
use crate::measure::{Lap, Series, take_turns};
use crate::paths::{put, remove};
use crate::plain::Session;
use crate::render::{bytes, note};
use crate::report::{Row, Table, Verdict, time};
use crate::workload::{BenchKey, Rotation, Value, is_value, key};
use anyhow::{Result, ensure};
use mooncrate::Store;
use serde_json::json;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const SMALL_BYTES: usize = 4 << 10;
const SMALL_VALUES: u64 = 1024;
const LARGE_BYTES: usize = 64 << 20;
/// Numbers of the keys of large values.
const LARGE: u64 = 1 << 48;
/// Goal: the p99 beside a large transfer over that without one.
const TIMES_IDLE: f64 = 2.0;

/// What the other client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Other {
    Nothing,
    Reads,
    Writes,
}

pub(super) fn run(effort: &Effort) -> Result<Table> {
    note("scale: small gets beside large transfers");
    let cluster = Cluster::start(1)?;
    let (shared, tcp) = (cluster.client(true)?, cluster.client(false)?);
    let keys: Vec<BenchKey> = (0..SMALL_VALUES).map(key).collect();
    let mut value = Value::new(SMALL_BYTES);
    for (number, key) in keys.iter().enumerate() {
        put(&tcp, key, value.stamp(number))?;
    }
    put(&tcp, &key(LARGE), &vec![7; LARGE_BYTES])?;

    let mut small = cluster.plain(0, Session::Get { size: SMALL_BYTES })?;
    let mut turn = Rotation::new(keys.len());
    let mut target = vec![0; SMALL_BYTES];
    let mut bare = |lap: &mut Lap| {
        while lap.going() {
            let at = turn.next();
            lap.time(|| small.get(at, &mut target))?;
        }
        Ok(())
    };
    let others = [Other::Nothing, Other::Reads, Other::Writes];
    let floors: Vec<Series> = others
        .iter()
        .map(|other| floor(effort, &cluster, *other, &mut bare))
        .collect::<Result<_>>()?;
    let mut rows = Vec::new();
    for (name, store) in [("TCP", &tcp), ("same host", &shared)] {
        let mut idle = None;
        for (other, floor) in others.iter().zip(&floors) {
            let series = subject(effort, &cluster, store, &keys, *other)?;
            let idle = idle.get_or_insert_with(|| series.percentile(99.0));
            rows.push(row(name, *other, &series, *idle, (floor, &floors[0])));
        }
    }
    Ok(table(rows))
}

/// Small gets of ours while the other client is at work.
fn subject(
    effort: &Effort,
    cluster: &Cluster,
    store: &Store,
    keys: &[BenchKey],
    other: Other,
) -> Result<Series> {
    let client = cluster.client(false)?;
    let mut turn = Rotation::new(keys.len());
    let mut target = vec![0; SMALL_BYTES];
    let mut gets = |lap: &mut Lap| {
        while lap.going() {
            let at = turn.next();
            let got = lap.time(|| store.get_into(&keys[at], &mut target))?;
            ensure!(
                got == Some(SMALL_BYTES) && is_value(&target, at),
                "value {at} is gone or WRONG"
            );
        }
        Ok(())
    };
    let (mut large, mut number) = (vec![7; LARGE_BYTES], LARGE);
    beside(other, &mut gets, effort, move || {
        if other == Other::Reads {
            let got = client.get_into(&key(LARGE), &mut large)?;
            ensure!(got == Some(LARGE_BYTES), "the large value is gone");
        } else {
            number += 1;
            put(&client, &key(number), &large)?;
            remove(&client, &[key(number)])?;
        }
        Ok(())
    })
}

/// Small gets over bare sockets while another one is at work.
fn floor(
    effort: &Effort,
    cluster: &Cluster,
    other: Other,
    bare: &mut dyn FnMut(&mut Lap) -> Result<()>,
) -> Result<Series> {
    let size = LARGE_BYTES;
    let session =
        if other == Other::Writes { Session::Put { size } } else { Session::Get { size } };
    let mut plain = cluster.plain(0, session)?;
    let mut large = vec![7; LARGE_BYTES];
    beside(other, bare, effort, move || {
        if other == Other::Reads {
            plain.get(0, &mut large)?;
        } else {
            plain.put(0, &large)?;
        }
        Ok(())
    })
}

/// Runs `gets` while `large` is repeated in another thread, unless there is nothing to do there.
fn beside(
    other: Other,
    gets: &mut dyn FnMut(&mut Lap) -> Result<()>,
    effort: &Effort,
    mut large: impl FnMut() -> Result<()> + Send,
) -> Result<Series> {
    let end = AtomicBool::new(false);
    thread::scope(|scope| {
        let busy = scope.spawn(|| {
            // Acquire: pairs with the Release below.
            while other != Other::Nothing && !end.load(Ordering::Acquire) {
                large()?;
            }
            Ok::<(), anyhow::Error>(())
        });
        let series = take_turns(effort, [&mut |lap: &mut Lap| gets(lap)]);
        // Release: the other thread ends after the transfer that it is at.
        end.store(true, Ordering::Release);
        busy.join().expect("a transfer does not panic")?;
        let [series] = series?;
        Ok(series)
    })
}

fn row(name: &str, other: Other, series: &Series, idle: f64, floors: (&Series, &Series)) -> Row {
    let p99 = series.percentile(99.0);
    let (floor, floor_idle) = (floors.0.percentile(99.0), floors.1.percentile(99.0));
    let (times, floor_times) = (p99 / idle, floor / floor_idle);
    let verdict = (other != Other::Nothing)
        .then(|| Verdict::at_most(times, TIMES_IDLE, format!("<= {TIMES_IDLE:.0}× idle")));
    let what = match other {
        Other::Nothing => "nothing".to_owned(),
        Other::Reads => format!("reads {}", bytes(LARGE_BYTES as u64)),
        Other::Writes => format!("writes {}", bytes(LARGE_BYTES as u64)),
    };
    let values = json!({
        "path": name,
        "other": what,
        "subject": series.json(),
        "floor": floors.0.json(),
        "times_idle": times,
        "floor_times_idle": floor_times,
    });
    let cells = vec![
        name.to_owned(),
        what,
        time(series.percentile(50.0)),
        time(p99),
        format!("{times:.2}×"),
        time(floors.0.percentile(50.0)),
        time(floor),
        format!("{floor_times:.2}×"),
    ];
    Row { cells, values, verdict }
}

fn table(rows: Vec<Row>) -> Table {
    let columns = [
        "SMALL GETS",
        "ANOTHER CLIENT",
        "P50",
        "P99",
        "OF IDLE",
        "BARE P50",
        "BARE P99",
        "OF IDLE",
    ];
    Table {
        name: "beside",
        title: "Gets of 4 KiB while another client moves large values over TCP, same node",
        notes: [
            "Bare: a bare socket that fetches 4 KiB, while another one moves the same large values \
             to or from the same process. Where there are no more cores than busy threads, that is \
             what the scheduler alone costs.",
        ]
        .map(str::to_owned)
        .to_vec(),
        columns: columns.map(str::to_owned).to_vec(),
        rows,
    }
}
