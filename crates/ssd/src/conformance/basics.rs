//! Keeping and loading, sizes and parts, batches, limits, and starting again.

use super::rig::{Rig, Thing};
use super::{everywhere, simulated};
use crate::{ALIGN, KeepError, LoadError, OpenError, Room};
use mooncrate_mem::sums::seal_of;
use std::thread;

const SLICE: usize = 1 << 20;

fn sizes() -> Vec<usize> {
    let small = [0, 1, 7, 63, 64, 511, 4095, 4096, 4097, 32_767, 32_768, 32_769, 65_536];
    let large = [SLICE - 1, SLICE, SLICE + 1, 3 * SLICE + 5, 8 * SLICE];
    small.into_iter().chain(large).collect()
}

fn things(from: u32, sizes: &[usize]) -> Vec<Thing> {
    (from..).zip(sizes).map(|(number, &len)| Thing::new(number, len)).collect()
}

#[test]
fn what_is_kept_comes_back_in_all_sizes_also_after_a_restart() {
    everywhere(|rig| {
        let things = things(0, &sizes());
        // In one batch, and one by one.
        rig.keep_all(&things[..9]);
        things[9..].iter().for_each(|thing| rig.keep_all(std::slice::from_ref(thing)));
        rig.has_all(&things);
        rig.balanced();
        rig.has_all(&things);
        rig.reopen();
        rig.found_exactly(&things);
        rig.has_all(&things);
        rig.backend().settle().unwrap();
        rig.reopen();
        rig.found_exactly(&things);
        rig.has_all(&things);
        let usage = rig.balanced();
        assert_eq!(usage.value_bytes, sizes().iter().map(|&len| len as u64).sum::<u64>());
    });
}

#[test]
fn parts_are_parts_of_the_value() {
    everywhere(|rig| {
        let things = things(0, &[0, 5000, 40_000, SLICE, 3 * SLICE + 5]);
        rig.keep_all(&things);
        for thing in &things {
            let len = thing.value.len();
            let marks = [0, 1, 100, 4096, len / 2, SLICE - 1, SLICE, SLICE + 1, 2 * SLICE, len];
            for start in marks.into_iter().filter(|&start| start <= len) {
                for end in marks.into_iter().filter(|&end| (start..=len).contains(&end)) {
                    let part = rig.part(thing, start as u64, (end - start) as u64);
                    part.unwrap_or_else(|error| panic!("{start}..{end} of {len}: {error}"));
                }
            }
        }
    });
}

#[test]
fn loads_into_room_and_outside_of_bounds() {
    everywhere(|rig| {
        let thing = Thing::new(1, 100_000);
        rig.keep_all(std::slice::from_ref(&thing));
        let mut room = Room::new(100_000);
        room.set_len(room.capacity());
        let (mut small, mut tail, mut far) = ([0; 10], [0; 2], [0; 2]);
        let mut loads = [
            thing.load(0, &mut room, 100_000),
            thing.load(0, &mut small, 11),
            thing.load(99_999, &mut tail, 2),
            thing.load(u64::MAX, &mut far, 2),
        ];
        rig.backend().load(&mut loads);
        let [whole, rest @ ..] = loads;
        whole.result.unwrap();
        for load in rest {
            assert!(matches!(load.result, Err(LoadError::OutOfBounds)), "{:?}", load.result);
        }
        assert!(room[..100_000] == thing.value[..]);
        assert_eq!(room.as_ptr().addr() % ALIGN, 0);
    });
}

#[test]
fn a_failing_item_of_a_batch_is_alone() {
    everywhere(|rig| {
        let mut things = things(0, &[10, 5000, 40_000, 10, 100_000]);
        things[1].seal = seal_of(b"something else");
        things[3].id = things[0].id;
        let results = rig.keep(&things);
        assert!(matches!(results[1], Err(KeepError::Corrupt)), "{results:?}");
        assert!(matches!(results[3], Err(KeepError::Exists)), "{results:?}");
        assert!([0, 2, 4].into_iter().all(|at| results[at].is_ok()), "{results:?}");
        assert!(matches!(rig.keep(&things[..1])[0], Err(KeepError::Exists)));
        let mut into: Vec<Vec<u8>> =
            things.iter().map(|thing| vec![0; thing.value.len()]).collect();
        let mut loads: Vec<_> = (things.iter().zip(&mut into))
            .map(|(thing, into)| thing.load(0, into, thing.value.len() as u64))
            .collect();
        rig.backend().load(&mut loads);
        let ended: Vec<_> = loads.into_iter().map(|load| load.result).collect();
        assert!(matches!(ended[1], Err(LoadError::Missing)), "{ended:?}");
        for at in [0, 2, 4] {
            assert!(ended[at].is_ok() && into[at] == things[at].value, "{at}: {ended:?}");
        }
    });
}

#[test]
fn one_key_may_have_two_objects_and_an_object_stripes() {
    everywhere(|rig| {
        let things = [
            Thing::named(1, 0, b"key", 1000),
            Thing::named(2, 0, b"key", 1000),
            Thing::named(3, 0, b"striped", 50_000),
            Thing::named(3, 1, b"striped", 50_000),
            Thing::named(3, 31, b"striped", 7),
        ];
        rig.keep_all(&things);
        rig.has_all(&things);
        rig.backend().remove(&[things[0].id, things[3].id]).unwrap();
        rig.reopen();
        rig.has_none(&[things[0].clone(), things[3].clone()]);
        let left = [things[1].clone(), things[2].clone(), things[4].clone()];
        rig.has_all(&left);
        rig.found_exactly(&left);
    });
}

#[test]
fn the_label_must_be_the_one_that_was_kept() {
    everywhere(|rig| {
        let thing = Thing::named(1, 0, b"mine", 1000);
        rig.keep_all(std::slice::from_ref(&thing));
        let other = Thing { label: Thing::named(1, 0, b"your", 0).label, ..thing.clone() };
        assert!(matches!(rig.load(&other), Err(LoadError::Corrupt)));
    });
}

#[test]
fn labels_of_all_lengths() {
    everywhere(|rig| {
        let mut things = Vec::new();
        for (number, bytes) in (0..).zip([1, 8, 100, 4000, 4096, 8191, 8192]) {
            for (stripe, len) in [(0, 10), (1, 40_000), (2, 2 * SLICE + 9)] {
                things.push(Thing::named(number, stripe, &vec![b'k'; bytes], len));
            }
        }
        rig.keep_all(&things);
        rig.has_all(&things);
        rig.reopen();
        rig.found_exactly(&things);
        rig.has_all(&things);
    });
}

#[test]
fn a_full_backend_refuses_and_stays_below_its_limit() {
    everywhere(|rig| {
        rig.set(|config| config.limit_bytes = 4 << 20);
        let (mut kept, mut refused) = (Vec::new(), 0);
        for number in 0..200 {
            let thing = Thing::new(number, 60_000);
            match rig.keep(std::slice::from_ref(&thing)).remove(0) {
                Ok(()) => kept.push(thing),
                Err(KeepError::Full { need, limit, .. }) => {
                    assert!(need > 60_000 && limit <= 4 << 20);
                    refused += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(kept.len() > 40 && refused > 0, "{} kept, {refused} refused", kept.len());
        rig.balanced();
        rig.has_all(&kept);
        // Removals need room, too, and find it.
        let gone = kept.split_off(kept.len() / 2);
        for thing in &gone {
            rig.backend().remove(&[thing.id]).unwrap();
            assert!(rig.backend().usage().on_disk <= 4 << 20);
        }
        rig.balanced();
        rig.reopen();
        rig.found_exactly(&kept);
    });
}

#[test]
fn an_empty_directory_and_one_of_another_kind_or_version() {
    simulated(1, |rig| {
        rig.reopen();
        rig.found_exactly(&[]);
        let kind = rig.config.kind;
        for other in crate::Kind::ALL.into_iter().filter(|other| *other != kind) {
            rig.config.kind = other;
            assert!(matches!(rig.open(), Err(OpenError::Kind { .. })));
        }
        rig.config.kind = kind;
        rig.config.limit_bytes = 1;
        assert!(matches!(rig.open(), Err(OpenError::TooSmall { .. })));
    });
}

#[test]
fn many_threads_keep_load_and_remove() {
    everywhere(|rig| {
        let backend = rig.backend();
        let mine = |thread: u32| -> Vec<Thing> {
            let sizes = [100, 5000, 33_000, 70_000];
            (0..24).map(|n| Thing::new(thread * 100 + n, sizes[n as usize % 4])).collect()
        };
        thread::scope(|scope| {
            for number in 0..4 {
                scope.spawn(move || {
                    let things = mine(number);
                    for chunk in things.chunks(3) {
                        let records: Vec<_> = chunk.iter().map(Thing::record).collect();
                        for result in backend.keep(&records) {
                            result.unwrap();
                        }
                        for thing in chunk {
                            let len = thing.value.len() as u64;
                            super::rig::load_part(backend, thing, 0, len).unwrap();
                        }
                        backend.remove(&[chunk[1].id]).unwrap();
                    }
                });
            }
        });
        let left: Vec<Thing> = (0..4)
            .flat_map(|thread| mine(thread).into_iter().enumerate())
            .filter_map(|(at, thing)| (at % 3 != 1).then_some(thing))
            .collect();
        rig.has_all(&left);
        rig.balanced();
        rig.reopen();
        rig.found_exactly(&left);
        rig.has_all(&left);
    });
}

#[test]
fn values_are_verified_at_the_start_if_asked() {
    simulated(3, |rig: &mut Rig| {
        let things = things(0, &[10, 40_000, 2 * SLICE]);
        rig.keep_all(&things);
        rig.backend().settle().unwrap();
        rig.set(|config| config.verify_values = true);
        rig.found_exactly(&things);
    });
}
