//! The models: what must hold, on the code that ships; what must fail, written out here.
#![expect(clippy::unwrap_used, reason = "a test may fail")]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicI64, AtomicU64, Ordering, fence};
use loom::thread;
use mooncrate_core::state::Event;
use mooncrate_core::word::Word;
use mooncrate_core::{Generation, ReplicaState};
use mooncrate_mem::word::{AtomicWord, before_first_byte};
use std::panic::{AssertUnwindSafe, catch_unwind};

const OLD: Generation = Generation(0);
const NEW: Generation = Generation(1);
const RECLAIM: Event = Event::Reclaim { pins: 0 };

/// Runs a model that must fail, and returns what it said.
fn fails(model: impl Fn() + Sync + Send + 'static) -> String {
    let result = catch_unwind(AssertUnwindSafe(|| loom::model(model)));
    let panic = result.expect_err("this protocol is broken, and the checker did not notice");
    match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
        (Some(text), _) => text.clone(),
        (None, Some(text)) => (*text).to_string(),
        (None, None) => String::new(),
    }
}

/// A slot with plain payload: loom reports any access that the word does not order.
struct Pinned {
    word: AtomicWord,
    bytes: UnsafeCell<u64>,
}

// SAFETY: this is what the model checks; loom finds any race on `bytes`.
unsafe impl Sync for Pinned {}

impl Pinned {
    fn store(&self, value: u64) {
        self.bytes.with_mut(|bytes| {
            // SAFETY: loom has just checked that nobody else is here.
            unsafe { *bytes = value }
        });
    }

    fn read(&self) -> u64 {
        self.bytes.with(|bytes| {
            // SAFETY: loom has just checked that nobody writes.
            unsafe { *bytes }
        })
    }

    fn step(&self, generation: Generation, event: Event) -> bool {
        self.word.apply(generation, event).is_ok()
    }
}

/// The packed word: pin, publish, evict, reuse, with two readers. Proves N1 and R1, and that Acquire and
/// Release suffice.
#[test]
fn pinned_readers_get_one_life() {
    loom::model(|| {
        let slot = Arc::new(Pinned {
            word: AtomicWord::store_new(Word::new(OLD, ReplicaState::Writing, 0)),
            bytes: UnsafeCell::new(0),
        });
        let readers: Vec<_> = [OLD, NEW]
            .into_iter()
            .map(|generation| {
                let slot = Arc::clone(&slot);
                thread::spawn(move || {
                    if slot.word.pin(generation).is_ok() {
                        assert_eq!(slot.read(), u64::from(generation.0) + 1, "foreign bytes");
                        slot.word.unpin();
                    }
                })
            })
            .collect();
        slot.store(1);
        assert!(slot.step(OLD, Event::Publish));
        if slot.step(OLD, RECLAIM) {
            assert!(slot.step(NEW, Event::Reserve) && slot.step(NEW, Event::Begin));
            slot.store(2);
            assert!(slot.step(NEW, Event::Publish));
        }
        for reader in readers {
            reader.join().unwrap();
        }
        assert_eq!(slot.word.load().pins(), 0);
    });
}

/// The same with a retiring slot: the last reader leaves while the owner waits for it.
#[test]
fn a_retiring_slot_is_freed_after_its_reader() {
    loom::model(|| {
        let slot = Arc::new(Pinned {
            word: AtomicWord::store_new(Word::new(OLD, ReplicaState::Ready, 0)),
            bytes: UnsafeCell::new(1),
        });
        let reader = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || {
                if slot.word.pin(OLD).is_ok() {
                    assert_eq!(slot.read(), 1);
                    slot.word.unpin();
                }
            })
        };
        assert!(slot.step(OLD, Event::Unlink));
        assert!(slot.word.pin(OLD).is_err(), "no new reader");
        if slot.step(OLD, RECLAIM) {
            slot.store(2);
        }
        reader.join().unwrap();
    });
}

/// State and reader count in two words. The reader looks at the state, then counts itself; the evictor
/// looks at the count, then changes the state.
#[test]
fn a_separate_reader_count_lets_a_reader_into_freed_memory() {
    let said = fails(|| {
        let slot = Arc::new((AtomicU64::new(1), AtomicI64::new(0), UnsafeCell::new(1_u64)));
        let reader = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || {
                let (ready, readers, bytes) = &*slot;
                if ready.load(Ordering::Acquire) == 1 {
                    readers.fetch_add(1, Ordering::AcqRel);
                    // SAFETY: none; that is what the model shows.
                    assert_eq!(bytes.with(|bytes| unsafe { *bytes }), 1, "foreign bytes");
                    readers.fetch_sub(1, Ordering::AcqRel);
                }
            })
        };
        let (ready, readers, bytes) = &*slot;
        if readers.load(Ordering::Acquire) == 0
            && ready.compare_exchange(1, 0, Ordering::AcqRel, Ordering::Acquire).is_ok()
        {
            // SAFETY: none; that is what the model shows.
            bytes.with_mut(|bytes| unsafe { *bytes = 2 });
        }
        reader.join().unwrap();
    });
    println!("a separate reader count: {said}");
}

/// Which fences of an unpinned read are there.
#[derive(Clone, Copy)]
struct Fences {
    reader: bool,
    writer: bool,
}

/// An unpinned reader that reads the word again, an eviction and the next writer, over two cells that
/// tear.
fn reread(fences: Fences) {
    let word = Arc::new(AtomicWord::store_new(Word::new(OLD, ReplicaState::Ready, 0)));
    let cells = Arc::new([AtomicU64::new(1), AtomicU64::new(1)]);
    let reader = {
        let (word, cells) = (Arc::clone(&word), Arc::clone(&cells));
        thread::spawn(move || {
            let before = word.load();
            if !before.readable(OLD) {
                return;
            }
            let copy = [cells[0].load(Ordering::Relaxed), cells[1].load(Ordering::Relaxed)];
            // `load_again` is fence and load; without its fence, a plain load, as long as the word
            // is only compared afterwards, is what is left of it.
            let after = if fences.reader { word.load_again(before) } else { relaxed(&word) };
            if after.readable(OLD) {
                assert_eq!(copy, [1, 1], "foreign or torn bytes passed");
            }
        })
    };
    word.apply(OLD, RECLAIM).unwrap();
    word.apply(NEW, Event::Reserve).unwrap();
    word.apply(NEW, Event::Begin).unwrap();
    if fences.writer {
        before_first_byte();
    }
    for cell in cells.iter() {
        cell.store(2, Ordering::Relaxed);
    }
    word.apply(NEW, Event::Publish).unwrap();
    reader.join().unwrap();
}

/// `load_again` without its fence. `AtomicWord` offers no such load, so this looks through it.
fn relaxed(word: &AtomicWord) -> Word {
    // SAFETY: `AtomicWord` is a transparent wrapper of this atomic.
    let raw = unsafe { &*std::ptr::from_ref(word).cast::<AtomicU64>() };
    Word(raw.load(Ordering::Relaxed))
}

/// Proves R3 with the fence of R1.
#[test]
fn unpinned_readers_notice_reuse() {
    loom::model(|| reread(Fences { reader: true, writer: true }));
}

/// Proves that the reader's fence is needed (canary 15).
#[test]
fn without_the_readers_fence_a_torn_copy_passes() {
    let said = fails(|| reread(Fences { reader: false, writer: true }));
    assert!(said.contains("foreign or torn bytes passed"), "{said}");
}

/// Proves that the writer's fence is needed (canary 15).
#[test]
fn without_the_writers_fence_a_torn_copy_passes() {
    let said = fails(|| reread(Fences { reader: true, writer: false }));
    assert!(said.contains("foreign or torn bytes passed"), "{said}");
}

/// The checker itself: a fence in the wrong place is none.
#[test]
fn a_fence_after_the_second_look_is_none() {
    let said = fails(|| {
        let flag = Arc::new(AtomicU64::new(0));
        let cell = Arc::new(AtomicU64::new(0));
        let writer = {
            let (flag, cell) = (Arc::clone(&flag), Arc::clone(&cell));
            thread::spawn(move || {
                flag.store(1, Ordering::Relaxed);
                fence(Ordering::Release);
                cell.store(1, Ordering::Relaxed);
            })
        };
        let seen = cell.load(Ordering::Relaxed);
        let after = flag.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        assert!(seen == 0 || after == 1, "the second look missed the change");
        writer.join().unwrap();
    });
    assert!(said.contains("missed the change"), "{said}");
}

/// Headers in VRAM: readers of two ranks pin by themselves, one of them dies with its pin, and the owner
/// reaps that rank. Proves N1 and N6: no foreign bytes, nothing freed under the other reader, no pin left.
#[test]
fn the_pins_of_a_dead_rank_are_reaped() {
    loom::model(|| {
        let slot = Arc::new(Pinned {
            word: AtomicWord::store_new(Word::new(OLD, ReplicaState::Ready, 0)),
            bytes: UnsafeCell::new(1),
        });
        let read = |rank: u8, dies: bool| {
            let slot = Arc::clone(&slot);
            thread::spawn(move || {
                if slot.word.pin_by(OLD, rank).is_ok() {
                    assert_eq!(slot.read(), 1, "foreign bytes");
                    if !dies {
                        slot.word.unpin_by(rank);
                    }
                }
            })
        };
        let (alive, dead) = (read(0, false), read(1, true));
        slot.step(OLD, Event::Unlink);
        // Its process is seen to be gone: everything it did happened before.
        dead.join().unwrap();
        assert_eq!(slot.word.reap(1).pins_of(1), 0);
        if slot.step(OLD, RECLAIM) {
            slot.store(2);
        }
        alive.join().unwrap();
        assert_eq!(slot.word.load().pins(), 0);
    });
}

/// A producer that comes late meets a watchdog that has given up on it: exactly one of the two wins, and the
/// range is handed out only after the producer was fenced.
#[test]
fn a_late_producer_cannot_publish_what_was_given_up() {
    loom::model(|| {
        let slot = Arc::new(Pinned {
            word: AtomicWord::store_new(Word::new(OLD, ReplicaState::Writing, 0)),
            bytes: UnsafeCell::new(0),
        });
        let producer = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || {
                slot.store(1);
                slot.step(OLD, Event::Publish)
            })
        };
        let given_up = slot.step(OLD, Event::Abort);
        let published = producer.join().unwrap();
        assert!(given_up != published);
        if given_up {
            assert_eq!(slot.word.load(), Word::new(NEW, ReplicaState::Failed, 0));
            assert!(slot.step(NEW, Event::Fence) && slot.step(NEW, Event::Reserve));
            slot.store(2);
        } else {
            assert_eq!(slot.word.pin_by(OLD, 3).unwrap().pins_of(3), 1);
        }
    });
}

/// Begins that a writer sends ahead here; more would show nothing else.
const AHEAD: usize = 3;

/// One link: ranges are begun one after the other, and the first of them are stored to meanwhile. At begin `n` the owner
/// fails, and answers nothing more. It gives the ranges to others at once, or when it has seen the writer's end.
fn owner_fails_at(n: usize, waits: bool) {
    let slot = || Pinned {
        word: AtomicWord::store_new(Word::new(OLD, ReplicaState::Dead, 0)),
        bytes: UnsafeCell::new(0),
    };
    let slots: Arc<[Pinned; AHEAD]> = Arc::new(std::array::from_fn(|_| slot()));
    let (answered, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let writer = {
        let (slots, answered, ended) =
            (Arc::clone(&slots), Arc::clone(&answered), Arc::clone(&ended));
        thread::spawn(move || {
            for slot in &slots[..answered.load(Ordering::Acquire) as usize] {
                slot.store(1);
            }
            // Hangs up, after its last store.
            ended.store(1, Ordering::Release);
        })
    };
    for (at, slot) in slots[..n].iter().enumerate() {
        assert!(slot.step(OLD, Event::Reserve) && slot.step(OLD, Event::Begin));
        if at + 1 < n {
            answered.store(at as u64 + 1, Ordering::Release);
        }
    }
    if !waits || ended.load(Ordering::Acquire) == 1 {
        for slot in &slots[..n] {
            assert!(slot.step(OLD, Event::Abort) && slot.step(NEW, Event::Fence));
            assert!(slot.step(NEW, Event::Reserve) && slot.step(NEW, Event::Begin));
            slot.store(2);
        }
    }
    writer.join().unwrap();
}

/// Proves R7 and G3 for an owner that fails while ranges of the link are being written.
#[test]
fn an_owner_that_fails_waits_for_the_end_of_its_writer() {
    for n in 1..=AHEAD {
        loom::model(move || owner_fails_at(n, true));
    }
}

/// As it was: a copy goes on in a range that another value was given.
#[test]
fn an_owner_that_does_not_wait_spoils_a_neighbour() {
    for n in 2..=AHEAD {
        println!("begin {n}: {}", fails(move || owner_fails_at(n, false)));
    }
}
