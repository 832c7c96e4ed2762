#![cfg(not(loom))]
//! Real threads on one shared segment: writers, an evictor, pinning readers, and readers that read
//! through a second mapping as another process would. Every accepted value is checked byte by byte:
//! it names its put in every 8 bytes, apart from seal and word.
#![expect(clippy::unwrap_used, reason = "a test may fail")]

use mooncrate_core::plan::{Action, Notice, Order, OrderResult};
use mooncrate_core::rng::Rng;
use mooncrate_core::seal::extent_bytes;
use mooncrate_core::{
    Extent, Generation, Incarnation, LeaderEpoch, Locator, Now, ObjectId, PutToken, Seal,
    SegmentId, Slot,
};
use mooncrate_mem::clock::boottime;
use mooncrate_mem::{
    BeginWrite, LabelHash, Mapping, ReadError, Segment, SegmentError, SegmentSpec,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SLOTS: u32 = 4;
const ROOM: u64 = 16 << 10;
const EPOCH: LeaderEpoch = LeaderEpoch(1);
const RUN: Duration = Duration::from_millis(1500);

/// The last object that was published in a slot, as an index would know it.
#[derive(Clone, Copy)]
struct Entry {
    locator: Locator,
    put: u64,
    len: u64,
    seal: Seal,
}

struct Shared {
    segment: Arc<Segment>,
    index: [Mutex<Option<Entry>>; SLOTS as usize],
    puts: AtomicU64,
    reads: AtomicU64,
    stale: AtomicU64,
    stop: AtomicBool,
}

impl Shared {
    fn running(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn entry(&self, rng: &mut Rng) -> Option<Entry> {
        *self.index[rng.below(u64::from(SLOTS)) as usize].lock().unwrap()
    }
}

fn fill(value: &mut [u8], put: u64) {
    for (i, word) in value.chunks_mut(8).enumerate() {
        let stamp = (put << 20 | i as u64).to_le_bytes();
        word.copy_from_slice(&stamp[..word.len()]);
    }
}

fn check(value: &[u8], put: u64) {
    for (i, word) in value.chunks(8).enumerate() {
        let stamp = (put << 20 | i as u64).to_le_bytes();
        assert_eq!(word, &stamp[..word.len()], "put {put}, word {i}: wrong bytes were accepted");
    }
}

/// Owns one slot: writes it, lets it be read, ends its life in one of the three ways, again.
fn own(shared: &Shared, slot: u32) {
    let mut rng = Rng::new(u64::from(slot));
    let mut generation = Generation(0);
    let mut value = vec![0; ROOM as usize];
    let mut news = Vec::new();
    while shared.running() {
        let put = shared.puts.fetch_add(1, Ordering::Relaxed);
        let len = 1 + rng.below(ROOM);
        let value = &mut value[..len as usize];
        fill(value, put);
        let extent = Extent::new(u64::from(slot) * ROOM, extent_bytes(len)).unwrap();
        let spec = shared.segment.spec();
        let (segment, incarnation) = (spec.segment, spec.incarnation);
        let locator = Locator {
            segment,
            incarnation,
            slot: Slot(slot),
            generation,
            extent,
            stripe: 0,
            grant: None,
        };
        let begin = BeginWrite {
            locator,
            token: PutToken(put),
            object: ObjectId { epoch: EPOCH, sequence: put },
            epoch: EPOCH,
            len,
            label: b"\0\0\0\0\0label",
            hash: LabelHash::default(),
        };
        let mut guard = shared.segment.begin(boottime(), &begin).unwrap();
        guard.write(0, value).unwrap();
        let seal = guard.seal();
        guard.publish(boottime(), PutToken(put), seal).unwrap();
        *shared.index[slot as usize].lock().unwrap() = Some(Entry { locator, put, len, seal });
        for _ in 0..rng.below(4) {
            std::thread::yield_now();
        }
        // The index keeps the old entry: readers must find out by themselves.
        generation = end(shared, &mut rng, &locator, &mut news);
    }
}

fn end(shared: &Shared, rng: &mut Rng, at: &Locator, news: &mut Vec<Notice>) -> Generation {
    let Locator { segment, incarnation, slot, generation, .. } = *at;
    let retire = rng.chance(500);
    loop {
        let action = if retire { Action::Retire { free_after_ms: 0 } } else { Action::Evict };
        let order = Order { segment, incarnation, slot, generation, action };
        let answer = shared.segment.execute(boottime(), EPOCH, &order).unwrap();
        if let OrderResult::Freed { next } = answer.result {
            assert_eq!(next, generation.next().unwrap());
            return next;
        }
        // Another owner's tick may free it: then the order, asked again, says so.
        shared.segment.tick(boottime(), news);
        std::thread::yield_now();
    }
}

/// More threads than cores: without this the readers leave the owners no time.
fn take_turns(rng: &mut Rng) {
    if rng.chance(200) {
        std::thread::yield_now();
    }
}

fn read_pinned(shared: &Shared, seed: u64) {
    let mut rng = Rng::new(seed);
    let mut copy = vec![0; ROOM as usize];
    while shared.running() {
        let Some(entry) = shared.entry(&mut rng) else { continue };
        match shared.segment.pin(boottime(), &entry.locator) {
            Ok(pin) => {
                check(pin.bytes(), entry.put);
                let copy = &mut copy[..entry.len as usize];
                pin.read_into(entry.seal, copy).unwrap();
                check(copy, entry.put);
                shared.reads.fetch_add(1, Ordering::Relaxed);
            }
            Err(SegmentError::Stale { .. }) => {
                shared.stale.fetch_add(1, Ordering::Relaxed);
            }
            Err(other) => panic!("{other}"),
        }
        take_turns(&mut rng);
    }
}

fn read_one_sided(shared: &Shared, mapping: &Mapping, seed: u64) {
    let mut rng = Rng::new(seed);
    let mut copy = vec![0; ROOM as usize];
    while shared.running() {
        let Some(entry) = shared.entry(&mut rng) else { continue };
        let copy = &mut copy[..entry.len as usize];
        match mapping.read_into(&entry.locator, entry.seal, copy, boottime) {
            Ok(()) => {
                check(copy, entry.put);
                shared.reads.fetch_add(1, Ordering::Relaxed);
            }
            Err(ReadError::Stale) => {
                shared.stale.fetch_add(1, Ordering::Relaxed);
            }
            Err(other) => panic!("the word did not notice what the seal did: {other}"),
        }
        take_turns(&mut rng);
    }
}

/// Proves G1 on this machine's memory: nothing but the object or a miss.
#[test]
fn readers_get_the_object_or_a_miss() {
    let spec = SegmentSpec {
        segment: SegmentId(1),
        incarnation: Incarnation(1),
        bytes: u64::from(SLOTS) * ROOM,
        slots: SLOTS,
        shared: true,
        huge: false,
    };
    let segment = Segment::create(spec).unwrap();
    segment.set_serve_until(Now(u64::MAX));
    let (headers, payload) = segment.fds().unwrap();
    let mapping = Mapping::new(headers, payload, None, spec.identity()).unwrap();
    let shared = Shared {
        segment: Arc::clone(&segment),
        index: Default::default(),
        puts: AtomicU64::new(1),
        reads: AtomicU64::new(0),
        stale: AtomicU64::new(0),
        stop: AtomicBool::new(false),
    };
    std::thread::scope(|scope| {
        let (shared, mapping) = (&shared, &mapping);
        for slot in 0..SLOTS {
            scope.spawn(move || own(shared, slot));
        }
        for seed in 100..102 {
            scope.spawn(move || read_pinned(shared, seed));
            scope.spawn(move || read_one_sided(shared, mapping, seed + 100));
        }
        // On a busy machine the threads may hardly meet: go on until they have.
        for _ in 0..20 {
            std::thread::sleep(RUN);
            if shared.stale.load(Ordering::Relaxed) > 0 {
                break;
            }
        }
        shared.stop.store(true, Ordering::Relaxed);
    });
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (puts, reads, stale) = (count(&shared.puts), count(&shared.reads), count(&shared.stale));
    println!("{puts} puts, {reads} reads, {stale} stale");
    assert!(puts > 20 && reads > 20 && stale > 0, "the test reaches nothing");
    assert_eq!(segment.pins(), 0);
    let stats = segment.stats();
    assert_eq!((stats.ready, stats.writing, stats.retiring, stats.failed), (0, 0, 0, 0));
}
