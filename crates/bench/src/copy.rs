//! The copy that sums on the way, against the plain one: the same bytes out of the same memory.

use crate::effort::Effort;
use crate::measure::{Lap, take_turns};
use crate::paths::rate_cells;
use crate::render::{bytes, note};
use crate::report::{Row, Table, Verdict, duel_json, spread};
use crate::workload::{Rotation, Value};
use anyhow::{Context, Result};
use mooncrate_core::seal::extent_bytes;
use mooncrate_core::{
    Extent, Generation, Incarnation, LeaderEpoch, Locator, Now, ObjectId, PutToken, SegmentId, Slot,
};
use mooncrate_mem::clock::boottime;
use mooncrate_mem::{BeginWrite, LabelHash, PinGuard, Segment, SegmentSpec, crc};
use serde_json::json;
use std::hint::black_box;
use std::sync::Arc;

/// Goal for values of at least a MiB: a get can be no nearer to its floor than its copy is.
const OF_FLOOR: f64 = 0.9;
const LARGE_BYTES: u64 = 1 << 20;
const SEGMENT: SegmentId = SegmentId(1);
const INCARNATION: Incarnation = Incarnation(1);

pub(crate) fn run(effort: &Effort) -> Result<Vec<Table>> {
    let mut rows = Vec::new();
    for &size in effort.value_bytes {
        note(&format!("copy: {}", bytes(size)));
        let pins = values(size, effort.values(size))?;
        rows.push(row(effort, size, &pins[..1], "hot")?);
        rows.push(row(effort, size, &pins, "cold")?);
    }
    let columns = [
        "CACHE",
        "SIZE",
        "P50",
        "P99",
        "GB/s (MIN..MAX)",
        "FLOOR P50",
        "FLOOR P99",
        "FLOOR GB/s (MIN..MAX)",
        "OF FLOOR (MIN..MAX)",
    ];
    Ok(vec![Table {
        name: "copy",
        title: "The checksummed copy beside memcpy, one thread",
        notes: vec![
            format!(
                "Kernel: {}. Both copy the same pinned values into a buffer.",
                crc::kernel_name()
            ),
            "Hot: one value. Cold: rotating over the working set.".to_owned(),
        ],
        columns: columns.map(str::to_owned).to_vec(),
        rows,
    }])
}

fn row(effort: &Effort, size: u64, pins: &[PinGuard], cache: &str) -> Result<Row> {
    let (mut turn, mut floor_turn) = (Rotation::new(pins.len()), Rotation::new(pins.len()));
    let mut target = vec![1; size as usize];
    let mut floor_target = target.clone();
    let seals: Vec<_> = pins.iter().map(PinGuard::seal).collect();
    let [floor, subject] = take_turns(
        effort,
        [
            &mut |lap: &mut Lap| {
                while lap.going() {
                    let source = pins[floor_turn.next()].bytes();
                    lap.time(|| black_box(&mut floor_target[..]).copy_from_slice(source));
                }
                Ok(())
            },
            &mut |lap: &mut Lap| {
                while lap.going() {
                    let at = turn.next();
                    lap.time(|| pins[at].read_into(seals[at], &mut target))?;
                }
                Ok(())
            },
        ],
    )?;
    let of_floor = floor.over(&subject);
    let mut cells = vec![cache.to_owned(), bytes(size)];
    cells.extend(rate_cells(&subject, size));
    cells.extend(rate_cells(&floor, size));
    cells.push(spread(of_floor.map(|ratio| 100.0 * ratio), "%"));
    let mut values = duel_json(&subject, &floor);
    values["cache"] = json!(cache);
    values["value_bytes"] = json!(size);
    let verdict = (size >= LARGE_BYTES && cache == "cold")
        .then(|| Verdict::at_least(of_floor.median, OF_FLOOR, ">= 90% of the floor"));
    Ok(Row { cells, values, verdict })
}

/// Published and pinned values in a segment of their own.
fn values(size: u64, count: usize) -> Result<Vec<PinGuard>> {
    let each = extent_bytes(size);
    let spec = SegmentSpec {
        segment: SEGMENT,
        incarnation: INCARNATION,
        bytes: (each * count as u64).next_multiple_of(4096),
        slots: count as u32,
        shared: false,
        huge: false,
    };
    let segment = Segment::create(spec)?;
    segment.set_serve_until(Now(u64::MAX));
    let mut value = Value::new(size as usize);
    (0..count).map(|at| publish(&segment, at, value.stamp(at))).collect()
}

fn publish(segment: &Arc<Segment>, at: usize, value: &[u8]) -> Result<PinGuard> {
    let len = value.len() as u64;
    let extent = Extent::new(at as u64 * extent_bytes(len), extent_bytes(len))
        .context("the segment is too large")?;
    let (slot, generation) = (Slot(at as u32), Generation(0));
    let (incarnation, stripe, grant) = (INCARNATION, 0, None);
    let locator =
        Locator { segment: SEGMENT, incarnation, slot, generation, extent, stripe, grant };
    let token = PutToken(1);
    let put = BeginWrite {
        locator,
        token,
        object: ObjectId::default(),
        epoch: LeaderEpoch(1),
        len,
        label: b"\0\0\0\0\0copy",
        hash: LabelHash::of(b"copy"),
    };
    let mut guard = segment.begin(boottime(), &put)?;
    guard.write(0, value)?;
    let seal = guard.seal();
    guard.publish(boottime(), token, seal).map_err(|refused| refused.error)?;
    Ok(segment.pin(boottime(), &locator)?)
}
