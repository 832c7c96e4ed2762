//! Parts of values: every class of offset, verified alone on every path (R11), all parts of one
//! read from one life (G17).

use crate::rig::{HANG_UP, Rig, Value, soon};
use crate::suite::expect;
use mooncrate_core::Generation;
use mooncrate_core::limits::SLICE_BYTES;
use mooncrate_core::plan::{Action, OrderResult};
use mooncrate_core::seal::table;
use mooncrate_core::time::Now;
use mooncrate_mem::clock::boottime;
use mooncrate_transfer::{Read, TransferError};
use mooncrate_wire::DataError;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

const MIB: u64 = SLICE_BYTES;

fn read_part(rig: &Rig, value: &Value, start: u64, len: u64) -> Result<Vec<u8>, TransferError> {
    let mut into = vec![0xee; len as usize];
    let of = value.bytes.len() as u64;
    let mut reads = [Read::part(value.locator, of, value.seal, start, &mut into)];
    rig.transport.read(&mut reads, soon());
    let [read] = reads;
    read.result.map(|()| into)
}

fn judge_part(value: &Value, start: u64, found: &[u8]) {
    let want = &value.bytes[start as usize..][..found.len()];
    assert!(found == want, "{} bytes from {start} of {}", found.len(), value.bytes.len());
}

/// Starts and ends of parts: around each border of a value of this length.
fn cuts(len: u64) -> Vec<(u64, u64)> {
    let near = |at: u64| [at.saturating_sub(1), at, at + 1];
    let marks = [0, 77, len / 3, MIB, MIB + MIB / 2, 2 * MIB, 3 * MIB, len];
    let mut marks: Vec<u64> = marks.into_iter().flat_map(near).filter(|at| *at <= len).collect();
    marks.sort_unstable();
    marks.dedup();
    let pairs = marks.iter().flat_map(|from| marks.iter().map(move |to| (*from, *to)));
    pairs.filter(|(from, to)| from <= to).collect()
}

pub(crate) fn every_part_is_bit_exact(rig: &mut Rig) {
    for len in [0, 1, 100, 5000, 70_000, MIB, MIB + 1, 3 * MIB + 4321] {
        let value = rig.stored(len);
        // All of them in one batch, so that their answers follow each other on one link.
        let cuts = cuts(len);
        for cuts in cuts.chunks(40) {
            let mut buffers: Vec<Vec<u8>> =
                cuts.iter().map(|(from, to)| vec![0xee; (to - from) as usize]).collect();
            let part = |((from, _), into): (&(u64, u64), _)| {
                Read::part(value.locator, len, value.seal, *from, into)
            };
            let mut reads: Vec<Read<'_>> =
                cuts.iter().zip(buffers.iter_mut().map(Vec::as_mut_slice)).map(part).collect();
            rig.transport.read(&mut reads, soon());
            for (read, (from, to)) in reads.iter().zip(cuts) {
                assert!(read.result.is_ok(), "{from}..{to} of {len}: {:?}", read.result);
                judge_part(&value, *from, read.into);
            }
        }
    }
    rig.no_pins();
}

pub(crate) fn a_part_past_the_end_is_out_of_bounds(rig: &mut Rig) {
    for len in [0, 1, 5000, MIB, 2 * MIB + 5] {
        let value = rig.stored(len);
        let cases = [(0, len + 1), (len, 1), (len + 1, 0), (u64::MAX, 1), (u64::MAX - 1, 2)];
        for (start, bytes) in cases {
            expect(read_part(rig, &value, start, bytes), DataError::OutOfBounds);
        }
        rig.read_value(&value).unwrap();
    }
}

/// A flip in a slice that is touched, or in the table, is found; one in another slice is not asked for.
pub(crate) fn flips_in_parts_are_found(rig: &mut Rig) {
    let len = 3 * MIB + 99;
    let value = rig.stored(len);
    let base = value.locator.extent.offset();
    let (start, bytes) = (MIB + 1000, 5000);
    for at in [start, start + bytes - 1, start - 1, start + bytes, MIB, 2 * MIB - 1] {
        rig.flip(base + at);
        expect(read_part(rig, &value, start, bytes), DataError::Corrupt);
        rig.flip(base + at);
    }
    for entry in 0..4 {
        rig.flip(base + table(len).0 + 8 * entry);
        expect(read_part(rig, &value, start, bytes), DataError::Corrupt);
        expect(read_part(rig, &value, start, 0), DataError::Corrupt);
        rig.flip(base + table(len).0 + 8 * entry);
    }
    for at in [0, MIB - 1, 2 * MIB, len - 1] {
        rig.flip(base + at);
        judge_part(&value, start, &read_part(rig, &value, start, bytes).unwrap());
        expect(rig.read(value.locator, len, value.seal), DataError::Corrupt);
        rig.flip(base + at);
    }
    // The one slice of a small value is summed for every part of it.
    let small = rig.stored(5000);
    rig.flip(small.locator.extent.offset() + 4999);
    expect(read_part(rig, &small, 0, 1), DataError::Corrupt);
    rig.no_pins();
}

pub(crate) fn parts_of_what_is_gone_are_refused(rig: &mut Rig) {
    for len in [5000, 2 * MIB + 7] {
        let value = rig.stored(len);
        let mut other = value.clone();
        other.seal.0 ^= 1;
        expect(read_part(rig, &other, 10, 20), DataError::Corrupt);
        other = value.clone();
        other.locator.generation = Generation(1);
        for bytes in [0, 20] {
            expect(read_part(rig, &other, 10, bytes), DataError::Stale);
        }
        rig.segment.set_serve_until(Now(1));
        assert!(read_part(rig, &value, 10, 20).unwrap_err().is_stale());
        rig.segment.set_serve_until(Now(u64::MAX));
        judge_part(&value, 10, &read_part(rig, &value, 10, 20).unwrap());
        rig.order(&value.locator, Action::Retire { free_after_ms: 0 });
        for bytes in [0, 20] {
            expect(read_part(rig, &value, 10, bytes), DataError::Stale);
        }
    }
    rig.no_pins();
}

/// Good parts, bad parts and whole values in one batch: each has its own result (G11).
pub(crate) fn a_batch_may_mix_parts_and_wholes(rig: &mut Rig) {
    let values = [100, 2 * MIB + 5, 70_000].map(|len| rig.stored(len));
    let mut buffers: Vec<Vec<u8>> = (0..60)
        .map(|n| vec![0xee; if n % 5 == 0 { values[n % 3].bytes.len() } else { n }])
        .collect();
    let mut reads: Vec<Read<'_>> = Vec::new();
    for (n, into) in buffers.iter_mut().enumerate() {
        let Value { locator, seal, bytes, .. } = &values[n % 3];
        let len = bytes.len() as u64;
        reads.push(match n % 5 {
            0 => Read::new(*locator, len, *seal, into),
            4 => Read::part(*locator, len, *seal, len, into),
            _ => Read::part(*locator, len, *seal, n as u64 / 2, into),
        });
        if n % 5 == 3 {
            reads[n].locator.generation = Generation(9);
        }
    }
    rig.transport.read(&mut reads, soon());
    for (n, read) in reads.into_iter().enumerate() {
        match n % 5 {
            3 => expect(read.result, DataError::Stale),
            4 => expect(read.result, DataError::OutOfBounds),
            _ => {
                read.result.unwrap();
                let start = if n % 5 == 0 { 0 } else { n as u64 / 2 };
                judge_part(&values[n % 3], start, read.into);
            }
        }
    }
}

/// Slots are freed and written anew while parts of them are read: a part is of the life that was
/// asked for, or it is refused.
pub(crate) fn parts_never_come_from_another_life(rig: &mut Rig) {
    const LEN: u64 = MIB + 300_000;
    let end = soon();
    let (done, now) = (AtomicBool::new(false), Mutex::new(rig.stored(LEN)));
    let rig = &*rig;
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut good = 0;
            while !done.load(Ordering::Acquire) || good == 0 {
                let known = now.lock().unwrap().clone();
                let start = MIB - 70_000 + good % 1000;
                match read_part(rig, &known, start, 200_000) {
                    Ok(found) => {
                        judge_part(&known, start, &found);
                        good += 1;
                    }
                    Err(TransferError::Data(DataError::Stale | DataError::Corrupt)) => {}
                    Err(error) => panic!("{error}"),
                }
                assert!(!end.passed(boottime()), "{good} parts were good");
            }
        });
        for _ in 0..60 {
            let old = now.lock().unwrap().clone();
            let next = match rig.order(&old.locator, Action::Retire { free_after_ms: 0 }) {
                OrderResult::Freed { next } => next,
                _ => rig.freed_within(&old.locator, HANG_UP),
            };
            let new = old.next(next);
            rig.put(&new).unwrap();
            *now.lock().unwrap() = new;
        }
        done.store(true, Ordering::Release);
        reader.join().unwrap();
    });
}
