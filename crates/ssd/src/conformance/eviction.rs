//! Two steps: hidden, then deleted; and back again if nobody was told (S1, S6).

use super::rig::{Rig, Thing, load_part};
use super::{everywhere, simulated};
use crate::disk::sim::Rates;
use crate::{Evict, KeepError, Kind, LoadError};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

const WAIT: Duration = Duration::from_secs(10);

fn filled(rig: &Rig, count: u32) -> Vec<Thing> {
    let things: Vec<Thing> = (0..count).map(|number| Thing::new(number, 50_000)).collect();
    things.chunks(4).for_each(|chunk| rig.keep_all(chunk));
    things
}

#[test]
fn a_dropped_ticket_puts_everything_back() {
    everywhere(|rig| {
        let things = filled(rig, 30);
        let before = rig.backend().usage();
        let ticket = rig.backend().unlink(300_000).unwrap();
        assert!(ticket.bytes() >= 300_000);
        let hidden: BTreeSet<_> = ticket.records().iter().copied().collect();
        assert!(!hidden.is_empty());
        for thing in &things {
            let missing = matches!(rig.load(thing), Err(LoadError::Missing));
            assert_eq!(missing, hidden.contains(&thing.id), "{:?}", thing.id);
        }
        drop(ticket);
        rig.has_all(&things);
        assert_eq!(rig.backend().usage(), before);
        rig.balanced();
        rig.reopen();
        rig.found_exactly(&things);
    });
}

#[test]
fn a_finished_ticket_gives_the_bytes_back_oldest_first() {
    everywhere(|rig| {
        let things = filled(rig, 30);
        let before = rig.backend().usage();
        let ticket = rig.backend().unlink(300_000).unwrap();
        let (bytes, hidden) = (ticket.bytes(), ticket.records().len());
        assert_eq!(ticket.records(), things[..hidden].iter().map(|t| t.id).collect::<Vec<_>>());
        ticket.finish(WAIT).unwrap();
        assert_eq!(before.used - rig.backend().usage().used, bytes);
        let (gone, left) = things.split_at(hidden);
        rig.has_none(gone);
        rig.has_all(left);
        rig.balanced();
        rig.reopen();
        rig.found_exactly(left);
        // What was evicted may be kept again.
        rig.keep_all(gone);
        rig.has_all(&things);
        rig.reopen();
        rig.found_exactly(&things);
    });
}

#[test]
fn everything_can_be_evicted_and_nothing_is_left() {
    everywhere(|rig| {
        assert!(rig.backend().unlink(1).is_none(), "nothing can go");
        filled(rig, 30);
        while let Some(ticket) = rig.backend().unlink(1 << 20) {
            ticket.finish(WAIT).unwrap();
        }
        let usage = rig.balanced();
        assert_eq!((usage.records, usage.value_bytes), (0, 0));
        rig.reopen();
        rig.found_exactly(&[]);
        filled(rig, 5);
    });
}

/// A record that is not gone for good exists; once it is, it can be kept again at once.
#[test]
fn a_record_on_its_way_out_exists_until_it_is_gone() {
    everywhere(|rig| {
        for finish in [true, false] {
            let thing = Thing::new(u32::from(finish), 50_000);
            rig.keep_all(std::slice::from_ref(&thing));
            let ticket = rig.backend().unlink(1).unwrap();
            rig.has_none(std::slice::from_ref(&thing));
            let kept = rig.keep(std::slice::from_ref(&thing)).remove(0);
            assert!(matches!(kept, Err(KeepError::Exists)), "{kept:?}");
            if finish {
                ticket.finish(WAIT).unwrap();
                rig.keep_all(std::slice::from_ref(&thing));
            } else {
                drop(ticket);
            }
            rig.has_all(std::slice::from_ref(&thing));
            rig.reopen();
            rig.found_exactly(std::slice::from_ref(&thing));
            rig.has_all(std::slice::from_ref(&thing));
            rig.backend().remove(&[thing.id]).unwrap();
            rig.keep_all(std::slice::from_ref(&thing));
            rig.backend().remove(&[thing.id]).unwrap();
            rig.reopen();
            rig.found_exactly(&[]);
        }
        rig.balanced();
    });
}

/// Nobody reads it, so an eviction does not wait, whatever failed before.
#[test]
fn an_eviction_does_not_wait_for_a_removal_that_failed() {
    simulated(1, |rig| {
        let things = filled(rig, 4);
        let ticket = rig.backend().unlink(1).unwrap();
        let rates = Rates { sync_error: 1_000_000, ..Rates::default() };
        rig.home.sim().unwrap().set_rates(rates);
        rig.backend().remove(&[things[0].id]).unwrap_err();
        rig.home.sim().unwrap().set_rates(Rates::default());
        let (done, ended) = std::sync::mpsc::channel();
        let finish = move || done.send(ticket.finish(Duration::from_hours(1)).is_ok());
        thread::Builder::new().spawn(finish).unwrap();
        ended
            .recv_timeout(Duration::from_mins(1))
            .expect("it waits for a reader that is not there");
    });
}

#[test]
fn what_is_removed_while_it_is_hidden_stays_removed() {
    everywhere(|rig| {
        let things = filled(rig, 10);
        let ticket = rig.backend().unlink(1).unwrap();
        let gone = ticket.records()[0];
        rig.backend().remove(&[gone]).unwrap();
        drop(ticket);
        let (removed, left): (Vec<_>, Vec<_>) = things.into_iter().partition(|t| t.id == gone);
        rig.has_none(&removed);
        rig.has_all(&left);
        rig.reopen();
        rig.found_exactly(&left);
    });
}

#[test]
fn eviction_under_readers_gives_right_bytes_or_none() {
    everywhere(|rig| {
        rig.set(|config| config.limit_bytes = 8 << 20);
        let backend = rig.backend();
        let (stop, loaded) = (AtomicBool::new(false), AtomicU64::new(0));
        let newest = AtomicU64::new(0);
        thread::scope(|scope| {
            for reader in 0..3 {
                let (stop, loaded, newest) = (&stop, &loaded, &newest);
                scope.spawn(move || {
                    let mut number = reader;
                    while !stop.load(Ordering::Relaxed) {
                        let newest = newest.load(Ordering::Relaxed).max(1);
                        number = (number * 7 + 3) % newest;
                        let thing = Thing::new(number as u32, 50_000);
                        match load_part(backend, &thing, number % 9, 45_000) {
                            Ok(()) => drop(loaded.fetch_add(1, Ordering::Relaxed)),
                            Err(LoadError::Missing) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                });
            }
            let mut evicted = 0;
            for number in 0..400 {
                let thing = Thing::new(number, 50_000);
                loop {
                    match backend.keep(&[thing.record()]).remove(0) {
                        Ok(()) => break,
                        Err(KeepError::Full { need, .. }) => {
                            let ticket = backend.unlink(need).expect("something can go");
                            evicted += ticket.records().len();
                            ticket.finish(WAIT).unwrap();
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                newest.store(u64::from(number) + 1, Ordering::Relaxed);
            }
            stop.store(true, Ordering::Relaxed);
            assert!(evicted > 100, "{evicted}");
        });
        assert!(loaded.into_inner() > 0);
        rig.balanced();
    });
}

#[test]
fn buckets_that_nobody_read_go_first() {
    everywhere(|rig| {
        if rig.config.kind != Kind::Bucket {
            return;
        }
        rig.set(|config| config.evict = Evict::Lru);
        let things = filled(rig, 32);
        rig.has_all(&things[..8]);
        let ticket = rig.backend().unlink(1).unwrap();
        assert!(!ticket.records().contains(&things[0].id), "the first bucket was read");
        assert!(ticket.records().contains(&things[8].id), "the oldest of the others");
        drop(ticket);
        rig.has_all(&things[8..]);
        assert!(rig.backend().unlink(1).unwrap().records().contains(&things[0].id));
    });
}

/// A record that is being put back is in one place or in the other for a removal, and never in none (G6).
#[test]
fn a_removal_is_not_lost_while_evictions_are_taken_back() {
    everywhere(|rig| {
        for round in 0..40 {
            let things: Vec<Thing> =
                (0..50).map(|number| Thing::new(round * 50 + number, 100)).collect();
            rig.keep_all(&things);
            let (backend, done) = (rig.backend(), AtomicBool::new(false));
            let removed = thread::scope(|scope| {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        drop(backend.unlink(u64::MAX));
                        thread::yield_now();
                    }
                });
                let removed: Vec<_> =
                    things.iter().map(|thing| backend.remove(&[thing.id])).collect();
                done.store(true, Ordering::Relaxed);
                removed
            });
            for removed in removed {
                removed.unwrap();
            }
            rig.has_none(&things);
        }
        rig.balanced();
    });
}
