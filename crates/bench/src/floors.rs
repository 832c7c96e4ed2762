//! The floors alone: what this machine gives to a plain program.

use crate::effort::Effort;
use crate::measure::{Lap, Series, take_turns};
use crate::paths::rate_cells;
use crate::peer::Peer;
use crate::plain::{Plain, Session};
use crate::render::{bytes, note};
use crate::report::{Row, Table};
use crate::workload::{Pool, Rotation, noise};
use anyhow::Result;
use serde_json::json;
use std::hint::black_box;

/// Bytes of a small control call, there and back.
const SMALL: [usize; 2] = [72, 40];

pub(crate) fn run(effort: &Effort) -> Result<Vec<Table>> {
    let apart = effort.cores.apart();
    apart.enter()?;
    let pool_bytes = effort.pool_bytes();
    let plain = Peer::start(&apart, &["floor-for-bench", "--bytes", &pool_bytes.to_string()])?;
    let mut pool = Pool::new(pool_bytes);
    let mut rows = Vec::new();
    for &size in effort.value_bytes {
        note(&format!("floors: {}", bytes(size)));
        let (len, places) = (size as usize, effort.values(size));
        let [copy, hot] = copies(effort, &mut pool, len, places)?;
        rows.push(row("memcpy, cold", size, &copy));
        rows.push(row("memcpy, hot", size, &hot));
        let [get, put] = sockets(effort, plain.said(), len, places)?;
        rows.push(row("TCP get", size, &get));
        rows.push(row("TCP put", size, &put));
    }
    let [there, back] = SMALL;
    let mut link = Plain::connect(plain.said(), Session::PingPong { there, back })?;
    let [ping_pong] = take_turns(
        effort,
        [&mut |lap: &mut Lap| {
            while lap.going() {
                lap.time(|| link.ping_pong())?;
            }
            Ok(())
        }],
    )?;
    rows.push(row("TCP round trip", (there + back) as u64, &ping_pong));
    Ok(vec![table(rows)])
}

/// Out of many places into one buffer, and within the cache.
fn copies(effort: &Effort, pool: &mut Pool, len: usize, places: usize) -> Result<[Series; 2]> {
    let mut target = noise(len);
    let (source, mut hot_target) = (noise(len), noise(len));
    let mut turn = Rotation::new(places);
    take_turns(
        effort,
        [
            &mut |lap: &mut Lap| {
                while lap.going() {
                    let source = pool.place(len, turn.next());
                    lap.time(|| black_box(&mut target[..]).copy_from_slice(source));
                }
                Ok(())
            },
            &mut |lap: &mut Lap| {
                while lap.going() {
                    let source = black_box(&source[..]);
                    lap.time(|| black_box(&mut hot_target[..]).copy_from_slice(source));
                }
                Ok(())
            },
        ],
    )
}

/// One after the other: both sessions want the peer's memory.
fn sockets(effort: &Effort, peer: &str, len: usize, places: usize) -> Result<[Series; 2]> {
    let mut value = noise(len);
    let mut turn = Rotation::new(places);
    let mut plain = Plain::connect(peer, Session::Get { size: len })?;
    let [get] = take_turns(
        effort,
        [&mut |lap: &mut Lap| {
            while lap.going() {
                let at = turn.next();
                lap.time(|| plain.get(at, &mut value))?;
            }
            Ok(())
        }],
    )?;
    drop(plain);
    let mut plain = Plain::connect(peer, Session::Put { size: len })?;
    let [put] = take_turns(
        effort,
        [&mut |lap: &mut Lap| {
            while lap.going() {
                let at = turn.next();
                lap.time(|| plain.put(at, &value))?;
            }
            Ok(())
        }],
    )?;
    Ok([get, put])
}

fn row(name: &str, size: u64, series: &Series) -> Row {
    let mut cells = vec![name.to_owned(), bytes(size)];
    cells.extend(rate_cells(series, size));
    let values = json!({ "floor": name, "value_bytes": size, "figures": series.json() });
    Row { cells, values, verdict: None }
}

fn table(rows: Vec<Row>) -> Table {
    let columns = ["FLOOR", "SIZE", "P50", "P99", "GB/s (MIN..MAX)"];
    Table {
        name: "floors",
        title: "The floors of this machine, one thread",
        notes: vec![
            "Plain programs without Mooncrate: what the other tables are measured against. Sockets \
             connect two processes on different cores."
                .to_owned(),
        ],
        columns: columns.map(str::to_owned).to_vec(),
        rows,
    }
}
