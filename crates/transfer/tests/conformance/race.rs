//! Many threads over one transport.

use crate::rig::{Rig, Value, soon};
use mooncrate_core::plan::{Action, OrderResult};
use mooncrate_core::rng::Rng;
use mooncrate_transfer::{Path, TransferError};
use mooncrate_wire::CallError;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const READERS: usize = 4;
const LIVES: u64 = 400;

/// Proves G1 and G4 over each path: slots and ranges are evicted and written anew all the time, and
/// readers use locators that may be several lives old. Every read is the value of its own life, or
/// says that this life is over.
pub(crate) fn readers_never_see_another_life(rig: &mut Rig) {
    let rig = &*rig;
    let lengths = [100, 5000, 70_000, (1 << 20) + 100];
    let current: Vec<Mutex<Value>> =
        lengths.iter().map(|len| Mutex::new(rig.stored(*len))).collect();
    let (done, seen, stale) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for reader in 0..READERS {
            let (current, done, seen, stale) = (&current, &done, &seen, &stale);
            scope.spawn(move || {
                let mut rng = Rng::new(reader as u64);
                while !done.load(Ordering::Relaxed) {
                    let at = rng.below(current.len() as u64) as usize;
                    let value = current[at].lock().unwrap().clone();
                    for _ in 0..rng.below(20) {
                        match look(rig, &value, rng.below(2) == 0) {
                            Ok(()) => seen.fetch_add(1, Ordering::Relaxed),
                            Err(error) if error.is_stale() => stale.fetch_add(1, Ordering::Relaxed),
                            Err(error) => panic!("{error:?}"),
                        };
                    }
                }
            });
        }
        for life in 0..LIVES {
            let mut current = current[life as usize % current.len()].lock().unwrap();
            let next = loop {
                match rig.order(&current.locator, Action::Evict) {
                    OrderResult::Freed { next } => break next,
                    OrderResult::Pinned => std::thread::yield_now(),
                    other => unreachable!("nobody writes it: {other:?}"),
                }
            };
            let value = current.next(next);
            rig.put(&value).unwrap();
            *current = value;
        }
        done.store(true, Ordering::Relaxed);
    });
    // A test that met no stale locator, or no value, has shown nothing.
    let (seen, stale) = (seen.into_inner(), stale.into_inner());
    assert!(seen > 0 && stale > 0, "{seen} seen, {stale} stale");
    rig.no_pins();
}

/// By copy, or in place where the path can.
fn look(rig: &Rig, value: &Value, in_place: bool) -> Result<(), TransferError> {
    let len = value.bytes.len() as u64;
    if in_place
        && !rig.copies()
        && let Some(view) = rig.transport.view(&value.locator, len, value.seal, soon())?
    {
        value.judge(&view).expect("a view that was granted is the value, to its end");
        return Ok(());
    }
    rig.read_value(value)
}

pub(crate) fn many_threads_store_and_read(rig: &mut Rig) {
    let rig = &*rig;
    let all = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let all = &all;
            scope.spawn(move || {
                let mut rng = Rng::new(100 + thread);
                for turn in 0..40 {
                    let value = rig.value(rng.below(120_000));
                    let pieces = [&value.bytes[..]];
                    let written = rig.transport.write(&value.write(&pieces), soon()).unwrap();
                    if turn % 8 == 7 {
                        drop(written);
                        continue;
                    }
                    written.signal(soon()).unwrap();
                    rig.read_value(&value).unwrap();
                    all.lock().unwrap().push(value);
                    let one = {
                        let all = all.lock().unwrap();
                        all[rng.below(all.len() as u64) as usize].clone()
                    };
                    rig.read_value(&one).unwrap();
                }
            });
        }
    });
    let all = all.into_inner().unwrap();
    assert_eq!(all.len(), 8 * 35);
    for value in &all {
        rig.read_value(value).unwrap();
    }
    rig.until("dropped puts end", crate::rig::HANG_UP, |s| s.stats().writing == 0);
    let mut news = Vec::new();
    rig.segment.tick(mooncrate_mem::clock::boottime(), &mut news);
    assert_eq!(news.len(), 8 * 5);
    let stats = rig.segment.stats();
    assert_eq!((stats.ready, stats.failed), (8 * 35, 0));
}

/// More callers than links: the surplus is told so at once, and the rest goes on.
#[test]
fn callers_beyond_the_links_are_told_so() {
    let rig = Rig::new(Path::Stream);
    let value = rig.stored(5000);
    let open: Vec<Value> = (0..64).map(|_| rig.value(0)).collect();
    let writes = open.iter().map(|value| value.write(&[]));
    let held: Vec<_> = writes.map(|write| rig.transport.write(&write, soon()).unwrap()).collect();
    let refused = rig.read_value(&value).unwrap_err();
    assert!(matches!(refused, TransferError::Call(CallError::Busy { links: 64, .. })));
    drop(held);
    rig.read_value(&value).unwrap();
}
