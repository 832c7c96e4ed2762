//! Threads that read a disk for whoever wants something of it. A read that hangs cannot be called back, so who
//! wants it must not be the one who makes it: he waits until his deadline, and leaves (C1, G9).
//!
//! What must stay true: a read writes to memory that it owns, or that outlives it, because its caller may be
//! gone when it ends. Threads and what waits for them are bounded; a disk whose oldest read is a second old
//! counts as one that hangs, and takes nothing new.

use mooncrate_core::Now;
use mooncrate_core::time::Deadline;
use mooncrate_lock::{Condvar, Mutex, interrupt};
use mooncrate_mem::clock::boottime;
use mooncrate_rt as rt;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Reads of one disk at a time. Each can be a batch.
const THREADS_MAX: usize = 16;
/// Reads that wait for a thread.
const QUEUE_MAX: usize = 1024;
/// A disk whose oldest read is older hangs.
const HANGS_AFTER: Duration = Duration::from_secs(1);
/// How long a thread waits for work before it ends.
const IDLE: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

/// The threads of one disk.
#[derive(Default)]
pub(super) struct Loaders {
    state: Mutex<State>,
    work: Condvar,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    /// When each read that is under way began, in that order.
    running: BTreeMap<u64, Now>,
    begun: u64,
    stopping: bool,
}

/// The disk hangs, or has more to do than it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Overdue;

/// Where a result will be.
type Shelf<T> = Arc<(Mutex<Option<T>>, Condvar)>;

/// A read that is under way.
pub(super) struct Under<T>(Shelf<T>);

impl<T> Under<T> {
    /// What it gave; `None`: not in time. Then it ends alone.
    pub(super) fn wait(self, deadline: Deadline) -> Option<T> {
        let (place, ready) = &*self.0;
        let mut result = place.lock();
        loop {
            if let Some(result) = result.take() {
                return Some(result);
            }
            let left = deadline.left(boottime());
            if left.is_zero() || interrupt::ended() {
                return None;
            }
            // A reader in this process may be interrupted; it is asked without the lock.
            if ready.wait_for(&mut result, interrupt::slice(left)).timed_out() {
                drop(result);
                interrupt::ask();
                result = place.lock();
            }
        }
    }
}

impl fmt::Debug for Loaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        write!(f, "Loaders({} threads, {} reads)", state.threads, state.running.len())
    }
}

impl Loaders {
    /// Has something read. What nobody waits for any more when its turn comes is not read.
    pub(super) fn begin<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Under<T>, Overdue> {
        let place = Shelf::<T>::default();
        let theirs = Arc::clone(&place);
        let job = move || {
            if Arc::strong_count(&theirs) > 1 {
                let result = read();
                let (slot, ready) = &*theirs;
                *slot.lock() = Some(result);
                ready.notify_one();
            }
        };
        let mut state = self.state.lock();
        if state.stopping || state.hangs(boottime()) || state.jobs.len() >= QUEUE_MAX {
            return Err(Overdue);
        }
        let grows = state.jobs.len() >= state.idle && state.threads < THREADS_MAX;
        state.threads += usize::from(grows);
        state.jobs.push_back(Box::new(job));
        drop(state);
        // Without the lock: others need not wait for the system.
        if grows && !self.start_thread() {
            // Whoever comes next finds what is queued, and skips it: nobody waits for it.
            return Err(Overdue);
        }
        self.work.notify_one();
        Ok(Under(place))
    }

    /// Starts a thread that is counted already; whether there is any.
    fn start_thread(self: &Arc<Self>) -> bool {
        let this = Arc::clone(self);
        if rt::spawn("disk-load", move || this.work()).is_ok() {
            return true;
        }
        let mut state = self.state.lock();
        state.threads -= 1;
        let left = state.threads;
        drop(state);
        self.ended.notify_all();
        left > 0
    }

    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            let Some(job) = state.jobs.pop_front() else {
                if state.stopping {
                    break;
                }
                state.idle += 1;
                let waited = self.work.wait_for(&mut state, IDLE);
                state.idle -= 1;
                if waited.timed_out() && state.jobs.is_empty() {
                    break;
                }
                continue;
            };
            state.begun += 1;
            let number = state.begun;
            state.running.insert(number, boottime());
            drop(state);
            // A read that dies must not look like one that hangs.
            let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)).is_err();
            if died {
                tracing::error!("a read from a disk died");
            }
            state = self.state.lock();
            state.running.remove(&number);
        }
        state.threads -= 1;
        drop(state);
        self.ended.notify_all();
    }

    /// Takes nothing new; whether all threads have ended in time.
    pub(super) fn stop(&self, deadline: Deadline) -> bool {
        let mut state = self.state.lock();
        state.stopping = true;
        let waiting = std::mem::take(&mut state.jobs);
        drop(state);
        drop(waiting);
        self.work.notify_all();
        let mut state = self.state.lock();
        while state.threads > 0 {
            let left = deadline.left(boottime());
            if left.is_zero() {
                return false;
            }
            self.ended.wait_for(&mut state, left);
        }
        true
    }
}

impl State {
    fn hangs(&self, now: Now) -> bool {
        self.running.values().next().is_some_and(|began| now.since(*began) > HANGS_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_mins(1);

    /// Who is taken is served, by however many threads.
    #[test]
    fn what_is_taken_is_read() {
        let loaders = Arc::<Loaders>::default();
        let ask = |n: u64| {
            let deadline = boottime().deadline_in(PATIENCE);
            loaders.begin(move || n * 3).map(|under| under.wait(deadline))
        };
        std::thread::scope(|scope| {
            let all = || (0..200).map(ask).collect::<Vec<_>>();
            let asking: Vec<_> = (0..6).map(|_| scope.spawn(all)).collect();
            for asked in asking {
                let wanted: Vec<_> = (0..200).map(|n| Ok(Some(n * 3))).collect();
                assert_eq!(asked.join().unwrap(), wanted);
            }
        });
        assert!((1..=THREADS_MAX).contains(&loaders.state.lock().threads), "{loaders:?}");
        assert!(loaders.stop(boottime().deadline_in(PATIENCE)));
        assert_eq!(ask(1), Err(Overdue), "it has stopped");
    }

    /// Who comes when it stops is read or refused. No thread stays, and nothing that no thread will ever see.
    #[test]
    fn a_stop_leaves_nothing() {
        for round in 0..500 {
            let loaders = Arc::<Loaders>::default();
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| (0..100_000).all(|_| loaders.begin(|| ()).is_ok()));
                }
                assert!(loaders.stop(boottime().deadline_in(PATIENCE)), "round {round}");
            });
            assert!(loaders.stop(boottime().deadline_in(PATIENCE)), "round {round}: a thread");
            let state = loaders.state.lock();
            assert_eq!((state.threads, state.jobs.len()), (0, 0), "round {round}");
        }
    }
}
