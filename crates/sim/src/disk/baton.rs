//! The baton: actors are threads, because the code under test blocks, but only the one with the baton runs.
//! Who gets it next follows from the seed, so one seed is one order of events.
//!
//! What must stay true: an actor gives the baton away only inside of [`Baton::pass`]; whoever ends hands it
//! on for good. When nobody can go on, waits that are bounded end first; then it is a deadlock, which is a
//! failure of the code under test.

use crate::swarm::pick;
use mooncrate_core::rng::Rng;
use mooncrate_rt::{self as rt, World};
use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::Thread;
use std::time::Duration;

/// Turns in a row in which nobody went on, after which nobody ever will.
const STUCK_TURNS: u32 = 2_000;
/// Nobody has the baton: everybody has ended.
const NOBODY: usize = usize::MAX;

/// Why a turn ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// The thread could go on.
    Step,
    /// The same, before it takes a lock: loops that poll take locks, too, so this is no sign of progress.
    Lock,
    /// Another thread has the lock.
    Taken,
    /// It waits for a change, for so long at most.
    Waits(Option<Duration>),
}

/// What the actors of one life share.
#[derive(Debug)]
pub struct Baton {
    /// Whose turn it is.
    turn: AtomicUsize,
    threads: Vec<OnceLock<Thread>>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    rng: Rng,
    /// Steps at which the baton goes to somebody else, in parts per thousand.
    switch: u32,
    /// Actors that have not ended.
    left: Vec<usize>,
    /// Turns since somebody could last go on.
    stuck: u32,
}

impl Inner {
    /// Who goes on, and for how many turns nobody could.
    fn draw(&mut self, actor: usize, why: Why) -> (usize, u32) {
        if matches!(why, Why::Step | Why::Lock) {
            if why == Why::Step {
                self.stuck = 0;
            }
            let stays = self.left.len() == 1 || !self.rng.chance(self.switch);
            return (if stays { actor } else { *pick(&mut self.rng, &self.left) }, self.stuck);
        }
        self.stuck += 1;
        // Somebody else, if there is anybody.
        let others = self.left.len() as u64 - 1;
        if others == 0 {
            return (actor, self.stuck);
        }
        let nth = self.rng.below(others) as usize;
        let other = self.left.iter().filter(|other| **other != actor).nth(nth);
        (*other.expect("counted"), self.stuck)
    }
}

thread_local! {
    static MINE: RefCell<Option<(Arc<Baton>, usize)>> = const { RefCell::new(None) };
}

impl Baton {
    /// For so many actors. The first turn is drawn, too.
    pub fn new(mut rng: Rng, actors: usize, switch: u32) -> Arc<Self> {
        let first = rng.below(actors as u64) as usize;
        let inner = Inner { rng, switch, left: (0..actors).collect(), stuck: 0 };
        Arc::new(Self {
            turn: AtomicUsize::new(first),
            threads: (0..actors).map(|_| OnceLock::new()).collect(),
            inner: Mutex::new(inner),
        })
    }

    /// Runs an actor on the calling thread, turn by turn. A panic hands the baton on, too.
    pub fn run<T>(self: &Arc<Self>, actor: usize, work: impl FnOnce() -> T) -> T {
        struct End(Arc<Baton>, usize);
        impl Drop for End {
            fn drop(&mut self) {
                rt::enter(None);
                MINE.take();
                self.0.leave(self.1);
            }
        }
        let _ = self.threads[actor].set(std::thread::current());
        // Pairs with the fence in `give`: whoever gives us the turn sees this thread, or we see the turn.
        fence(Ordering::SeqCst);
        self.wait(actor);
        MINE.with(|mine| mine.replace(Some((Arc::clone(self), actor))));
        rt::enter(Some(&TURNS));
        let _end = End(Arc::clone(self), actor);
        work()
    }

    fn wait(&self, actor: usize) {
        // Acquire: pairs with the Release in `give`; what others did happened before.
        while self.turn.load(Ordering::Acquire) != actor {
            std::thread::park();
        }
    }

    fn give(&self, next: usize) {
        self.turn.store(next, Ordering::Release);
        // A thread that has not started yet looks at the turn before it parks. Without the fence both could look
        // before the other one's store arrives, and the turn would be nobody's for ever.
        fence(Ordering::SeqCst);
        if let Some(thread) = self.threads.get(next).and_then(OnceLock::get) {
            thread.unpark();
        }
    }

    /// Ends a turn, perhaps. `true`: a bounded wait is over.
    fn pass(&self, actor: usize, why: Why) -> bool {
        let (next, stuck) = self.inner.lock().expect("nobody panics in it").draw(actor, why);
        let bounded = matches!(why, Why::Waits(Some(_)));
        if bounded && (stuck > STUCK_TURNS || next == actor) {
            return true;
        }
        assert!(stuck <= 2 * STUCK_TURNS, "deadlock: all wait for each other, this one: {why:?}");
        if next != actor {
            self.give(next);
            self.wait(actor);
        }
        matches!(why, Why::Waits(Some(time)) if time.is_zero())
    }

    fn leave(&self, actor: usize) {
        let next = {
            let mut inner = self.inner.lock().expect("nobody panics in it");
            let Inner { rng, left, stuck, .. } = &mut *inner;
            left.retain(|other| *other != actor);
            *stuck = 0;
            if left.is_empty() { NOBODY } else { *pick(rng, left) }
        };
        self.give(next);
    }
}

/// The world of the actors. Time is the system's; only the order is drawn.
struct Turns;

static TURNS: Turns = Turns;

impl Turns {
    fn end(why: Why) -> bool {
        let mine = MINE.with(|mine| mine.borrow().clone());
        let (baton, actor) = mine.expect("set before the world is entered");
        baton.pass(actor, why)
    }
}

impl World for Turns {
    fn step(&self) {
        Self::end(Why::Step);
    }

    fn before_lock(&self) {
        Self::end(Why::Lock);
    }

    fn taken(&self) {
        Self::end(Why::Taken);
    }

    fn wait(&self, _queue: usize, time: Option<Duration>) -> bool {
        Self::end(Why::Waits(time))
    }

    /// Waits end without it, to look again.
    fn wake(&self, _queue: usize, _all: bool) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use mooncrate_lock::{Condvar, Mutex};

    fn order_of(seed: u64) -> Vec<usize> {
        let baton = Baton::new(Rng::new(seed), 3, 500);
        let (order, change) = (Mutex::new(Vec::new()), Condvar::new());
        std::thread::scope(|scope| {
            for actor in 0..3 {
                let (baton, order, change) = (&baton, &order, &change);
                scope.spawn(move || {
                    baton.run(actor, || {
                        for _ in 0..20 {
                            let mut held = order.lock();
                            held.push(actor);
                            if held.len() % 7 == 0 {
                                // Others find the lock taken.
                                rt::step();
                            }
                            change.notify_all();
                            drop(held);
                            rt::step();
                        }
                        let mut held = order.lock();
                        while held.len() < 60 {
                            change.wait_for(&mut held, Duration::from_hours(1));
                        }
                    });
                });
            }
        });
        order.into_inner()
    }

    #[test]
    fn one_seed_is_one_order() {
        assert_eq!(order_of(1), order_of(1));
        assert_ne!(order_of(1), order_of(2));
    }

    #[test]
    fn a_deadlock_is_a_panic_and_not_a_hang() {
        let baton = Baton::new(Rng::new(1), 2, 1000);
        let locks = [Mutex::new(()), Mutex::new(())];
        let died = std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for actor in 0..2 {
                let (baton, locks) = (&baton, &locks);
                threads.push(scope.spawn(move || {
                    baton.run(actor, || {
                        let _first = locks[actor].lock();
                        (0..50).for_each(|_| rt::step());
                        let _second = locks[1 - actor].lock();
                    });
                }));
            }
            threads.into_iter().map(|thread| u8::from(thread.join().is_err())).sum::<u8>()
        });
        assert!(died >= 1);
    }
}
