//! The memory that values of disks are loaded into: places in it, leases, and taking them back.
//!
//! ```text
//! room ─► WriteGuard ─ the disk fills it ─ publish ─► Staged ─ release, or the lease is over ─► room again
//! ```
//!
//! A staged value is an ordinary life of an ordinary segment that no master knows, so it is read, pinned
//! and fenced as all others, and its range is used again only after its generation was bumped (R1).
//! Rooms start at and extend to whole pages: a disk can write into them directly.

use mooncrate_core::alloc::{Allocation, Allocator, OffsetAllocator};
use mooncrate_core::plan::{Action, Locator, Order, OrderResult};
use mooncrate_core::seal::extent_bytes;
use mooncrate_core::time::Now;
use mooncrate_core::{Extent, Generation, LeaderEpoch, ObjectId, PutToken, Seal, Slot};
use mooncrate_lock::Mutex;
use mooncrate_mem::{BeginWrite, LabelHash, Segment, WriteGuard};
use mooncrate_wire::DataError;
use mooncrate_wire::message::Staged;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Rooms are whole pages.
const PAGE: u64 = 4096;
/// Hint when there is no room.
const BUSY_MS: u32 = 2;
/// Nobody else publishes here, so the right to do so needs no secret.
const TOKEN: PutToken = PutToken(0);

/// Staging memory.
pub struct Staging {
    segment: Arc<Segment>,
    lease: Duration,
    books: Mutex<Books>,
}

impl fmt::Debug for Staging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Staging").field("segment", &self.segment.spec()).finish_non_exhaustive()
    }
}

struct Books {
    allocator: OffsetAllocator,
    /// Slots whose life is over, and the next one.
    free: Vec<(Slot, Generation)>,
    /// Slots that were never used start here.
    unused: u32,
    lives: BTreeMap<Slot, Life>,
    /// When leases end.
    ends: BTreeSet<(Now, Slot, Generation)>,
}

struct Life {
    generation: Generation,
    allocation: Allocation,
    until: Option<Now>,
}

impl Staging {
    /// Over a segment of memory that nothing else uses.
    pub fn new(segment: Arc<Segment>, lease: Duration) -> Self {
        let books = Books {
            allocator: OffsetAllocator::new(segment.spec().bytes),
            free: Vec::new(),
            unused: 0,
            lives: BTreeMap::new(),
            ends: BTreeSet::new(),
        };
        Self { segment, lease, books: Mutex::new(books) }
    }

    /// Its memory.
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Bytes that are taken.
    pub fn used(&self) -> u64 {
        let books = self.books.lock();
        books.allocator.capacity() - books.allocator.free_bytes()
    }

    /// Room for a value of `len` bytes. No room is `Busy`; a value that can never have it is refused.
    pub fn room(
        &self,
        now: Now,
        len: u64,
        label: &[u8],
        object: ObjectId,
    ) -> Result<WriteGuard, DataError> {
        let bytes = extent_bytes(len).next_multiple_of(PAGE);
        if bytes > self.segment.spec().bytes {
            return Err(DataError::Unsupported);
        }
        let (locator, room) = if let Some(place) = self.place(bytes, len) {
            place
        } else {
            // What was given back meanwhile may be enough.
            self.sweep(now);
            self.place(bytes, len).ok_or(DataError::Busy { after_ms: BUSY_MS })?
        };
        let wanted = BeginWrite {
            locator,
            token: TOKEN,
            object,
            epoch: LeaderEpoch(0),
            len,
            label,
            hash: LabelHash::of(label),
        };
        self.segment.begin_in(now, &wanted, room).map_err(|error| {
            // Nothing lives there: the range is ours again at once.
            self.books.lock().forget(locator.slot, locator.generation, locator.generation);
            crate::error::refusal(&error)
        })
    }

    fn place(&self, bytes: u64, len: u64) -> Option<(Locator, Extent)> {
        let mut books = self.books.lock();
        let spec = self.segment.spec();
        if books.free.is_empty() && books.unused >= spec.slots {
            return None;
        }
        let allocation = books.allocator.allocate(bytes)?;
        let (slot, generation) = books.free.pop().unwrap_or_else(|| {
            let slot = Slot(books.unused);
            books.unused += 1;
            (slot, Generation(0))
        });
        books.lives.insert(slot, Life { generation, allocation, until: None });
        let room = allocation.extent;
        let extent = room.part(0, extent_bytes(len)).expect("the room was made for it");
        let (segment, incarnation) = (spec.segment, spec.incarnation);
        let locator =
            Locator { segment, incarnation, slot, generation, extent, stripe: 0, grant: None };
        Some((locator, room))
    }

    /// Makes what was loaded readable, for as long as a lease. The bytes must have the seal.
    pub fn publish(&self, now: Now, guard: WriteGuard, seal: Seal) -> Result<Staged, DataError> {
        let (locator, len) = (*guard.locator(), guard.value_len());
        guard
            .publish_placed(now, TOKEN, seal)
            .map_err(|refused| crate::error::unpublished(&refused.error))?;
        let until = now.plus(self.lease);
        let mut books = self.books.lock();
        if let Some(life) = books.lives.get_mut(&locator.slot) {
            life.until = Some(until);
            books.ends.insert((until, locator.slot, locator.generation));
            if books.ends.first().is_some_and(|(first, ..)| *first == until) {
                self.segment.ring();
            }
        }
        let lease_ms = u32::try_from(self.lease.as_millis()).unwrap_or(u32::MAX);
        Ok(Staged { locator, len, seal, lease_ms })
    }

    /// Takes staged values back. Who still reads them ends well: the range waits for the last reader.
    pub fn release(&self, now: Now, locators: &[Locator]) {
        for locator in locators {
            self.end(now, locator.slot, locator.generation);
        }
    }

    /// Takes everything back.
    pub fn clear(&self, now: Now) {
        let all: Vec<(Slot, Generation)> = {
            let books = self.books.lock();
            books.lives.iter().map(|(slot, life)| (*slot, life.generation)).collect()
        };
        for (slot, generation) in all {
            self.end(now, slot, generation);
        }
    }

    /// Takes back what was held for longer than its lease, and what its last reader has left.
    pub fn sweep(&self, now: Now) {
        loop {
            let over = self.books.lock().ends.first().copied();
            let Some((until, slot, generation)) = over.filter(|(until, ..)| *until <= now) else {
                break;
            };
            self.books.lock().ends.remove(&(until, slot, generation));
            self.end(now, slot, generation);
        }
        let mut news = Vec::new();
        self.segment.tick(now, &mut news);
        let mut books = self.books.lock();
        for notice in news {
            if let OrderResult::Freed { next } = notice.result {
                books.forget(notice.slot, notice.generation, next);
            }
        }
    }

    /// When there will be something to sweep, if nothing happens before; `None`: never.
    pub fn next_sweep(&self) -> Option<Now> {
        let ends = self.books.lock().ends.first().map(|(until, ..)| *until);
        ends.into_iter().chain(self.segment.next_look()).min()
    }

    fn end(&self, now: Now, slot: Slot, generation: Generation) {
        let spec = self.segment.spec();
        let order = Order {
            segment: spec.segment,
            incarnation: spec.incarnation,
            slot,
            generation,
            action: Action::Retire { free_after_ms: 0 },
        };
        // A life that nobody has begun must not be skipped over: only those in the books are ended.
        let mut books = self.books.lock();
        if books.lives.get(&slot).is_none_or(|life| life.generation != generation) {
            return;
        }
        if let Ok(notice) = self.segment.execute(now, LeaderEpoch(0), &order)
            && let OrderResult::Freed { next } = notice.result
        {
            books.forget(slot, generation, next);
        }
    }
}

impl Books {
    /// A life is over: its range and its slot are free.
    fn forget(&mut self, slot: Slot, generation: Generation, next: Generation) {
        if self.lives.get(&slot).is_none_or(|life| life.generation != generation) {
            return;
        }
        let life = self.lives.remove(&slot).expect("it was there a line ago");
        self.allocator.free(life.allocation);
        if let Some(until) = life.until {
            self.ends.remove(&(until, slot, generation));
        }
        if next < Generation::MAX {
            self.free.push((slot, next));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mooncrate_core::{Incarnation, SegmentId};
    use mooncrate_mem::sums::seal_of;
    use mooncrate_mem::{Bell, SegmentSpec};

    const T: Now = Now(1_000_000_000);
    const LABEL: &[u8] = b"\0\0\0\0\0a key";

    fn staging(bytes: u64) -> Staging {
        let segment = Segment::create(SegmentSpec {
            segment: SegmentId(5),
            incarnation: Incarnation(1),
            bytes,
            slots: 4,
            shared: false,
            huge: false,
        });
        let segment = segment.unwrap();
        segment.set_serve_until(Now(u64::MAX));
        Staging::new(segment, Duration::from_secs(5))
    }

    fn stage(staging: &Staging, len: u64) -> Result<Staged, DataError> {
        let mut guard = staging.room(T, len, LABEL, ObjectId::default())?;
        let room = guard.room().unwrap();
        assert_eq!((room.as_ptr().addr() % 4096, room.len() % 4096), (0, 0));
        room.fill(7);
        staging.publish(T, guard, seal_of(&vec![7; len as usize]))
    }

    /// Whatever way a staged value ends, its room and its slot are used again, under a new generation.
    #[test]
    fn rooms_come_back_by_release_by_lease_and_by_failure() {
        let staging = staging(16384);
        for turn in 0..20 {
            let one = stage(&staging, 9000).unwrap();
            assert!(matches!(stage(&staging, 9000), Err(DataError::Busy { .. })), "{turn}");
            let guard = staging.room(T, 100, LABEL, ObjectId::default()).unwrap();
            // What the disk did not give is not published.
            assert_eq!(staging.publish(T, guard, Seal(1)), Err(DataError::Corrupt));
            staging.release(T, &[one.locator]);
            staging.release(T, &[one.locator]);
            assert!(staging.segment().pin(T, &one.locator).is_err());
            let two = stage(&staging, 9000).unwrap();
            assert_ne!(one.locator, two.locator);
            let later = T.plus(Duration::from_secs(5));
            staging.sweep(later);
            assert!(staging.segment().pin(later, &two.locator).is_err(), "its lease is over");
            assert_eq!(staging.used(), 0);
        }
        assert_eq!(stage(&staging, 20_000), Err(DataError::Unsupported), "never");
    }

    /// Whoever sweeps sleeps until the first lease ends, and is woken when there is something sooner.
    #[test]
    fn whoever_sweeps_is_told_when() {
        let (staging, bell) = (staging(65536), Arc::<Bell>::default());
        staging.segment().set_bell(&bell);
        let rung = || bell.wait(Some(Duration::ZERO));
        assert_eq!((staging.next_sweep(), rung()), (None, false));
        let one = stage(&staging, 5000).unwrap();
        let end = T.plus(Duration::from_secs(5));
        assert_eq!((staging.next_sweep(), rung()), (Some(end), true));
        let pin = staging.segment().pin(T, &one.locator).unwrap();
        staging.release(T, &[one.locator]);
        assert!(rung() && staging.next_sweep() < Some(end), "looked at until its reader leaves");
        drop(pin);
        staging.sweep(T.plus(Duration::from_millis(10)));
        assert_eq!(staging.next_sweep(), None);
        drop(staging.room(T, 100, LABEL, ObjectId::default()).unwrap());
        assert!(rung() && staging.next_sweep().is_some(), "a room that nobody filled");
        staging.sweep(T);
        assert_eq!((staging.next_sweep(), staging.used()), (None, 0));
    }

    /// A reader that is inside keeps its range, whatever the lease says.
    #[test]
    fn a_reader_keeps_its_range() {
        let staging = staging(8192);
        let one = stage(&staging, 5000).unwrap();
        let pin = staging.segment().pin(T, &one.locator).unwrap();
        staging.release(T, &[one.locator]);
        assert!(matches!(stage(&staging, 5000), Err(DataError::Busy { .. })));
        assert_eq!(pin.bytes(), [7; 5000]);
        drop(pin);
        staging.sweep(T.plus(Duration::from_millis(10)));
        assert!(stage(&staging, 5000).is_ok());
        staging.clear(T);
        assert_eq!(staging.used(), 0);
    }
}
