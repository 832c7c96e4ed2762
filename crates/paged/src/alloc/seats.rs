//! Seats: a small number for each thread, so that counters and hints need not be shared.
//!
//! A thread takes the lowest free seat at its first call and gives it back when it ends. While it holds
//! the seat nobody else writes what belongs to it, so a counter of a seat changes by a plain load and store
//! instead of a locked instruction. When all seats are taken, further threads share the last one, whose
//! counters change by read-modify-write.
//!
//! No lock: a child forked while another thread took its seat must not inherit a locked one.

use crate::atomic::{AtomicI64, Ordering::Relaxed};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Seats there are; the last one is shared.
pub(crate) const SEATS: usize = if cfg!(loom) { 4 } else { 64 };
/// The seat of threads that found no other.
pub(crate) const SHARED: usize = SEATS - 1;
const NONE: usize = usize::MAX;

/// One bit for each seat that is taken.
static TAKEN: AtomicU64 = AtomicU64::new(1 << SHARED);

/// One bit for each seat that was ever taken: what the others count is zero.
static EVER: AtomicU64 = AtomicU64::new(1 << SHARED);

thread_local! {
    static SEAT: Cell<usize> = const { Cell::new(NONE) };
    /// Gives the seat back at the end of the thread.
    static LEAVING: Leaving = const { Leaving(Cell::new(NONE)) };
}

struct Leaving(Cell<usize>);

impl Drop for Leaving {
    fn drop(&mut self) {
        let seat = self.0.get();
        if seat < SHARED {
            // Destructors of other thread-locals may still allocate or free.
            SEAT.set(SHARED);
            // Release: pairs with the Acquire in `sit`, so the next thread at this seat goes on from the
            // last value of each counter.
            TAKEN.fetch_and(!(1 << seat), Ordering::Release);
        }
    }
}

/// The seat of the calling thread.
#[inline]
pub(crate) fn seat() -> usize {
    let seat = SEAT.get();
    if seat == NONE { sit() } else { seat }
}

#[cold]
fn sit() -> usize {
    let mut taken = TAKEN.load(Ordering::Relaxed);
    let seat = loop {
        let free = (!taken).trailing_zeros() as usize;
        if free >= SHARED {
            break SHARED;
        }
        // Acquire: pairs with the Release of the thread that left this seat.
        let claimed = taken | 1 << free;
        match TAKEN.compare_exchange_weak(taken, claimed, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => break free,
            Err(now) => taken = now,
        }
    };
    // A thread whose thread-locals are gone already cannot give a seat back later.
    if seat < SHARED && LEAVING.try_with(|leaving| leaving.0.set(seat)).is_err() {
        TAKEN.fetch_and(!(1 << seat), Ordering::Release);
        SEAT.set(SHARED);
        return SHARED;
    }
    EVER.fetch_or(1 << seat, Ordering::Relaxed);
    SEAT.set(seat);
    seat
}

/// The seats that threads have sat at so far.
pub(crate) fn ever() -> impl Iterator<Item = usize> {
    let ever = if cfg!(loom) { (1 << SEATS) - 1 } else { EVER.load(Ordering::Relaxed) };
    (0..SEATS).filter(move |seat| ever >> seat & 1 == 1)
}

/// A number that all threads change and few read: a part for each seat, which only its threads write.
#[derive(Debug)]
pub(crate) struct Tally(Box<[Part]>);

/// On a cache line of its own; two, because processors fetch lines in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Part(AtomicI64);

impl Tally {
    /// Zero.
    pub(crate) fn new() -> Self {
        Self((0..SEATS).map(|_| Part(AtomicI64::new(0))).collect())
    }

    /// Changes the number, for a thread at `seat`.
    #[inline]
    pub(crate) fn add(&self, seat: usize, change: i64) {
        let part = &self.0[seat].0;
        if seat == SHARED {
            part.fetch_add(change, Relaxed);
        } else {
            part.store(part.load(Relaxed) + change, Relaxed);
        }
    }

    /// The number. While others change it, an estimate: the parts are read one after the other.
    pub(crate) fn sum(&self) -> i64 {
        ever().map(|seat| self.0[seat].0.load(Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn threads_that_run_together_sit_apart_and_seats_return() {
        for _ in 0..3 {
            let together = Barrier::new(40);
            let seats: Vec<usize> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..40)
                    .map(|_| {
                        scope.spawn(|| {
                            let seat = seat();
                            together.wait();
                            assert_eq!(seat, super::seat(), "a seat is kept");
                            seat
                        })
                    })
                    .collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let mut own: Vec<usize> = seats.into_iter().filter(|seat| *seat < SHARED).collect();
            own.sort_unstable();
            // Other tests of this process may hold some seats, but not as many as there are.
            assert!(own.len() >= 20, "{own:?}");
            assert!(own.windows(2).all(|pair| pair[0] != pair[1]), "{own:?}");
        }
    }

    #[test]
    fn more_threads_than_seats_share_the_last_one() {
        let together = Barrier::new(SEATS + 8);
        let shared = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..SEATS + 8)
                .map(|_| {
                    scope.spawn(|| {
                        let seat = seat();
                        together.wait();
                        seat
                    })
                })
                .collect();
            let seats = threads.into_iter().map(|thread| thread.join().unwrap());
            seats.filter(|seat| *seat == SHARED).count()
        });
        assert!(shared >= 9, "{shared}");
    }
}
