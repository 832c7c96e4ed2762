//! One large value over several links to the same node: when does that pay? Beside one bare socket, which
//! is what a single link could reach at best.

use super::Cluster;
use crate::effort::Effort;
use crate::measure::{Lap, Series, take_turns};
use crate::paths::put;
use crate::plain::{Plain, Session};
use crate::render::{bytes, note};
use crate::report::{Row, Table, duel_json, spread};
use crate::workload::{Rotation, Value, is_value, key};
use anyhow::{Result, ensure};
use mooncrate::Store;
use serde_json::json;

const LANES: [usize; 4] = [1, 2, 4, 8];
const VALUE_BYTES: [usize; 2] = [16 << 20, 64 << 20];
/// Values of each size.
const VALUES: u64 = 2;

pub(super) fn run(effort: &Effort) -> Result<Table> {
    note("scale: large values over several links");
    let cluster = Cluster::start(1)?;
    let mut rows = Vec::new();
    let mut first = 0;
    for size in VALUE_BYTES {
        let store = cluster.laned(1)?;
        let mut value = Value::new(size);
        for number in first..first + VALUES {
            put(&store, &key(number), value.stamp(number as usize))?;
        }
        let mut plain = cluster.plain(0, Session::Get { size })?;
        for lanes in LANES {
            let (subject, floor) = gets(effort, &cluster.laned(lanes)?, &mut plain, size, first)?;
            rows.push(row(size, lanes, &subject, &floor));
        }
        first += VALUES;
    }
    Ok(table(rows))
}

fn gets(
    effort: &Effort,
    store: &Store,
    plain: &mut Plain,
    size: usize,
    first: u64,
) -> Result<(Series, Series)> {
    let mut turn = Rotation::new(VALUES as usize);
    let (mut target, mut floor_target) = (vec![0; size], vec![0; size]);
    let mut floor = |lap: &mut Lap| {
        while lap.going() {
            lap.time(|| plain.get(0, &mut floor_target))?;
        }
        Ok(())
    };
    let mut subject = |lap: &mut Lap| {
        while lap.going() {
            let number = first + turn.next() as u64;
            let got = lap.time(|| store.get_into(&key(number), &mut target))?;
            ensure!(got == Some(size) && is_value(&target, number as usize), "WRONG or gone");
        }
        Ok(())
    };
    let [floor, subject] = take_turns(effort, [&mut floor, &mut subject])?;
    Ok((subject, floor))
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn row(size: usize, lanes: usize, subject: &Series, floor: &Series) -> Row {
    let rate = |series: &Series| spread(series.per_call().map(|ns| size as f64 / ns), "");
    let of_floor = floor.over(subject).map(|ratio| 100.0 * ratio);
    let mut values = duel_json(subject, floor);
    values["value_bytes"] = json!(size);
    values["lanes"] = json!(lanes);
    let cells = vec![
        bytes(size as u64),
        lanes.to_string(),
        rate(subject),
        rate(floor),
        spread(of_floor, "%"),
    ];
    Row { cells, values, verdict: None }
}

fn table(rows: Vec<Row>) -> Table {
    let columns = ["GET OF", "LINKS", "GB/s", "ONE BARE SOCKET GB/s", "OF FLOOR"];
    Table {
        name: "lanes",
        title: "One large value over several links, TCP, one client, one node",
        notes: vec![
            "Verified: each link carries whole slices, and the sums of all of them make the seal. The \
             bare socket verifies nothing. A client takes a quarter of its cores as links, four at \
             most."
                .to_owned(),
        ],
        columns: columns.map(str::to_owned).to_vec(),
        rows,
    }
}
