//! The catalog alone, without sockets and locks: what an indexed object costs in memory, and what a
//! call costs as the index grows.

use crate::effort::Effort;
use crate::fleet::{PaperNode, VALUE_BYTES, obey};
use crate::measure::{Lap, Series, take_turns};
use crate::peer::patient;
use crate::render::{count, note};
use crate::report::{Row, Table, Verdict, spread};
use crate::workload::{BenchKey, KEY_BYTES, key};
use anyhow::{Context, Result, bail, ensure};
use mooncrate_core::catalog::{Catalog, Removal, Start};
use mooncrate_core::plan::PutConfig;
use mooncrate_core::rng::Rng;
use mooncrate_core::{LeaderEpoch, Now, Seal};
use serde_json::json;
use std::hint::black_box;

/// Goal: bytes per indexed object beyond its key.
const OBJECT_BYTES: f64 = 200.0;
/// Goal: cost per call on the largest index over that on the smallest.
pub(crate) const FLAT: f64 = 1.5;
/// Calls between two readings of the clock.
const CALLS: u64 = 256;

/// A catalog of a known size.
struct Index {
    catalog: Catalog,
    objects: u64,
    /// Growth of this process while it was filled.
    resident_bytes: u64,
    rng: Rng,
    put_config: PutConfig,
    /// Time stands still: no call here depends on it.
    now: Now,
}

pub(crate) fn run(effort: &Effort) -> Result<Vec<Table>> {
    let mut indexes = Vec::new();
    // All of them stay: memory that one gave back would hide what the next one takes.
    for &objects in effort.index_objects {
        note(&format!("index: filling {} objects", count(objects)));
        indexes.push(Index::fill(objects)?);
    }
    let memory = memory_table(&indexes);
    note("index: calls on the catalog alone");
    let cost = cost_table(effort, &mut indexes)?;
    for index in &indexes {
        ensure!(index.catalog.len() as u64 == index.objects, "the calls changed the size");
    }
    Ok(vec![memory, cost])
}

impl Index {
    fn fill(objects: u64) -> Result<Self> {
        let before = resident_bytes()?;
        let now = Now(1);
        let mut catalog = Catalog::new(patient(), LeaderEpoch(1), Start::New, now);
        let paper = PaperNode::new(objects);
        catalog.mount(now, paper.node(), &paper.offers)?;
        for offer in &paper.offers {
            catalog.announce(now, offer.segment, offer.incarnation, &[], true)?;
        }
        let put_config = PutConfig::default();
        let rng = Rng::new(objects);
        let mut index = Self { catalog, objects, resident_bytes: 0, rng, put_config, now };
        for number in 0..objects {
            index.put(&key(number))?;
        }
        index.resident_bytes = resident_bytes()?.saturating_sub(before);
        Ok(index)
    }

    fn put(&mut self, key: &BenchKey) -> Result<()> {
        let plan = self.catalog.put_start(self.now, key, VALUE_BYTES, &self.put_config)?;
        self.catalog.put_end(self.now, key, plan.token, &[Seal(1)])?;
        Ok(())
    }

    fn remove(&mut self, key: &BenchKey) -> Result<()> {
        let Removal::Waiting(_) = self.catalog.remove(self.now, key, false)? else {
            bail!("a remove that waits for nobody");
        };
        for (_, order) in self.catalog.take_orders() {
            self.catalog.notice(self.now, &obey(&order));
        }
        Ok(())
    }

    /// Keys at random; no key twice.
    fn keys(&mut self) -> Vec<BenchKey> {
        let mut numbers: Vec<u64> = (0..CALLS).map(|_| self.rng.below(self.objects)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        // In the order of the keys, which is random again.
        let mut keys: Vec<BenchKey> = numbers.into_iter().map(key).collect();
        keys.sort_unstable();
        keys
    }

    fn lap(&mut self, call: Call, lap: &mut Lap) -> Result<()> {
        while lap.going() {
            let keys = self.keys();
            let calls = keys.len() as u64;
            match call {
                Call::Locate => lap.time_many(calls, || {
                    for key in &keys {
                        black_box(self.catalog.locate(self.now, key, 0)?);
                    }
                    anyhow::Ok(())
                })?,
                // Every remove is followed by a put, so that the size stays.
                Call::Put => {
                    keys.iter().try_for_each(|key| self.remove(key))?;
                    lap.time_many(calls, || keys.iter().try_for_each(|key| self.put(key)))?;
                }
                Call::Remove => {
                    lap.time_many(calls, || keys.iter().try_for_each(|key| self.remove(key)))?;
                    keys.iter().try_for_each(|key| self.put(key))?;
                }
            }
        }
        Ok(())
    }
}

/// What is timed.
#[derive(Clone, Copy, Debug)]
enum Call {
    Locate,
    Put,
    Remove,
}

impl Call {
    const ALL: [(Self, &str); 3] = [
        (Self::Locate, "locate"),
        (Self::Put, "put_start + put_end"),
        (Self::Remove, "remove + notice"),
    ];
}

/// Bytes of this process that are in memory.
fn resident_bytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).context("no VmRSS")?;
    Ok(kib.parse::<u64>()? << 10)
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn memory_table(indexes: &[Index]) -> Table {
    let rows = indexes.iter().map(|index| {
        let per_object = |bytes: u64| bytes as f64 / index.objects as f64;
        let counted = per_object(index.catalog.heap_bytes() as u64);
        let resident = per_object(index.resident_bytes);
        let beyond_key = resident - KEY_BYTES as f64;
        // A small index is within the granularity of what the kernel tells.
        let judged = index.objects >= 1_000_000;
        let verdict = Verdict::at_most(beyond_key, OBJECT_BYTES, "<= 200 B beyond the key");
        Row {
            cells: vec![
                count(index.objects),
                format!("{counted:.1} B"),
                format!("{resident:.1} B"),
                format!("{beyond_key:.1} B"),
            ],
            values: json!({
                "objects": index.objects,
                "counted_bytes_per_object": counted,
                "resident_bytes_per_object": resident,
                "resident_bytes_per_object_beyond_key": beyond_key,
            }),
            verdict: judged.then_some(verdict),
        }
    });
    Table {
        name: "index_memory",
        title: "Memory per indexed object",
        notes: vec![
            format!("One replica each, keys of {KEY_BYTES} bytes, all objects finished."),
            "COUNTED: what the catalog says of itself, without keys. RESIDENT: growth of the \
             process while it was filled (VmRSS), with keys and the allocator's own costs."
                .to_owned(),
        ],
        columns: ["OBJECTS", "COUNTED", "RESIDENT", "RESIDENT BEYOND KEY"]
            .map(str::to_owned)
            .to_vec(),
        rows: rows.collect(),
    }
}

fn cost_table(effort: &Effort, indexes: &mut [Index]) -> Result<Table> {
    let mut rows = Vec::new();
    for (call, name) in Call::ALL {
        let series = match indexes {
            [a, b] => Vec::from(take_turns(
                effort,
                [&mut |lap: &mut Lap| a.lap(call, lap), &mut |lap: &mut Lap| b.lap(call, lap)],
            )?),
            [a, b, c] => Vec::from(take_turns(
                effort,
                [
                    &mut |lap: &mut Lap| a.lap(call, lap),
                    &mut |lap: &mut Lap| b.lap(call, lap),
                    &mut |lap: &mut Lap| c.lap(call, lap),
                ],
            )?),
            _ => bail!("an effort names two or three sizes"),
        };
        rows.push(growth_row(name, effort.index_objects, &series));
    }
    Ok(Table {
        name: "index_cost",
        title: "Cost per call as the index grows: the catalog alone",
        notes: vec![
            format!(
                "Random keys, {CALLS} calls per reading of the clock, no socket and no lock. The \
                 smallest index is the floor: it stays in cache, the largest does not."
            ),
            "Put and remove take turns, so that the size stays; only the named half is timed."
                .to_owned(),
        ],
        columns: growth_columns(effort.index_objects),
        rows,
    })
}

/// A call, its time at every size, and how much it grew.
pub(crate) fn growth_columns(objects: &[u64]) -> Vec<String> {
    let sizes = objects.iter().map(|objects| format!("ns AT {}", count(*objects)));
    std::iter::once("CALL".to_owned()).chain(sizes).chain(["GROWTH".to_owned()]).collect()
}

/// The row of such a table; the first series is the floor, the last is judged.
pub(crate) fn growth_row(name: &str, objects: &[u64], series: &[Series]) -> Row {
    let (first, last) = (&series[0], &series[series.len() - 1]);
    let growth = last.over(first);
    let figures = series.iter().map(|series| spread(series.per_call(), ""));
    let by_size: Vec<_> = objects
        .iter()
        .zip(series)
        .map(|(objects, series)| json!({ "objects": objects, "cost": series.json() }))
        .collect();
    let cells =
        std::iter::once(name.to_owned()).chain(figures).chain([spread(growth, "×")]).collect();
    Row {
        cells,
        values: json!({ "call": name, "sizes": by_size, "growth": growth.json() }),
        verdict: Some(Verdict::at_most(growth.median, FLAT, "<= 1.5×")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_keeps_its_size_and_its_books() {
        let mut index = Index::fill(300).unwrap();
        let effort = Effort::smoke();
        for (call, _) in Call::ALL {
            let [series] =
                take_turns(&effort, [&mut |lap: &mut Lap| index.lap(call, lap)]).unwrap();
            assert!(series.per_call().median > 0.0);
        }
        assert_eq!(index.catalog.len(), 300);
        index.catalog.audit().unwrap();
        index.catalog.locate(index.now, &key(299), 0).unwrap();
    }
}
