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
/// The seat of a call that is about to be refused, whichever thread makes it. Of each pool one such call runs at a time
/// ([`super::bits`]), so it can tell its own announcements from those of all others.
pub(crate) const SETTLING: usize = SEATS;
/// Parts of what is kept by seat.
pub(crate) const PARTS: usize = SEATS + 1;
const NONE: usize = usize::MAX;

/// The seats of this process.
static BOARD: Board = Board::new();

/// One bit for each seat that was ever taken: what the others count is zero.
static EVER: AtomicU64 = AtomicU64::new(1 << SHARED);

thread_local! {
    static SEAT: Cell<usize> = const { Cell::new(NONE) };
    /// Gives the seat back at the end of the thread.
    static LEAVING: Leaving = const { Leaving(Cell::new(NONE)) };
}

/// One bit for each seat that is taken. The shared one always is.
struct Board(AtomicU64);

impl Board {
    const fn new() -> Self {
        Self(AtomicU64::new(1 << SHARED))
    }

    /// The lowest free seat, or the shared one.
    fn take(&self) -> usize {
        let mut taken = self.0.load(Ordering::Relaxed);
        loop {
            let free = (!taken).trailing_zeros() as usize;
            if free >= SHARED {
                return SHARED;
            }
            // Acquire: pairs with the Release of the thread that left this seat.
            let claimed = taken | 1 << free;
            match self.0.compare_exchange_weak(taken, claimed, Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(_) => return free,
                Err(now) => taken = now,
            }
        }
    }

    /// Gives a seat back.
    fn leave(&self, seat: usize) {
        if seat < SHARED {
            // Release: pairs with the Acquire in `take`, so the next thread at this seat goes on from the
            // last value of each counter.
            self.0.fetch_and(!(1 << seat), Ordering::Release);
        }
    }
}

struct Leaving(Cell<usize>);

impl Drop for Leaving {
    fn drop(&mut self) {
        let seat = self.0.get();
        if seat < SHARED {
            // Destructors of other thread-locals may still allocate or free.
            SEAT.set(SHARED);
            BOARD.leave(seat);
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
    let seat = BOARD.take();
    // A thread whose thread-locals are gone already cannot give a seat back later.
    if seat < SHARED && LEAVING.try_with(|leaving| leaving.0.set(seat)).is_err() {
        BOARD.leave(seat);
        SEAT.set(SHARED);
        return SHARED;
    }
    EVER.fetch_or(1 << seat, Ordering::Relaxed);
    SEAT.set(seat);
    seat
}

/// The seats that threads have sat at so far, and that of calls that are about to be refused.
pub(crate) fn ever() -> impl Iterator<Item = usize> {
    let mut ever = if cfg!(loom) { (1 << SEATS) - 1 } else { EVER.load(Ordering::Relaxed) };
    let sat = std::iter::from_fn(move || {
        let seat = (ever != 0).then(|| ever.trailing_zeros() as usize);
        ever &= ever.wrapping_sub(1);
        seat
    });
    sat.chain([SETTLING])
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
        Self((0..PARTS).map(|_| Part(AtomicI64::new(0))).collect())
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

    /// What calls have added that are not about to be refused.
    pub(crate) fn sum_of_others(&self) -> i64 {
        let others = ever().filter(|seat| *seat != SETTLING);
        others.map(|seat| self.0[seat].0.load(Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    /// The seats that so many threads have at the same time.
    fn together(threads: usize, seat: impl Fn() -> usize + Sync) -> Vec<usize> {
        let all_sit = Barrier::new(threads);
        std::thread::scope(|scope| {
            let sit = || {
                let own = seat();
                all_sit.wait();
                own
            };
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(sit)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    // Tests of one process run side by side and hold seats, so what depends on how many are free has a board of
    // its own.
    #[test]
    fn threads_that_run_together_sit_apart_and_seats_return() {
        let board = Board::new();
        for _ in 0..3 {
            let mut seats = together(40, || board.take());
            seats.sort_unstable();
            assert!(seats.iter().copied().eq(0..40), "the lowest ones, each once: {seats:?}");
            for seat in seats {
                board.leave(seat);
            }
        }
    }

    #[test]
    fn more_threads_than_seats_share_the_last_one() {
        let board = Board::new();
        let mut seats = together(SEATS + 8, || board.take());
        seats.sort_unstable();
        assert!(seats.iter().copied().eq((0..SHARED).chain([SHARED; 9])), "{seats:?}");
        board.leave(SHARED);
        assert_eq!(board.take(), SHARED, "nobody gives the shared seat away");
    }

    #[test]
    fn a_thread_keeps_its_seat_and_no_other_has_it() {
        let mut own = together(40, || {
            let own = seat();
            assert_eq!(own, seat(), "a seat is kept");
            own
        });
        own.retain(|seat| *seat < SHARED);
        own.sort_unstable();
        assert!(own.windows(2).all(|pair| pair[0] != pair[1]), "{own:?}");
    }

    #[test]
    fn a_thread_that_ends_gives_its_seat_back() {
        // Threads of other tests may hold every seat for a while, so this goes on until twice as many threads as
        // there are seats have had one of their own. If seats did not return, that would never come.
        let mut had_their_own = 0;
        for _ in 0..1_000_000 {
            had_their_own += usize::from(together(1, seat)[0] < SHARED);
            if had_their_own == 2 * SEATS {
                return;
            }
        }
        panic!("of a million threads only {had_their_own} had a seat of their own");
    }
}
