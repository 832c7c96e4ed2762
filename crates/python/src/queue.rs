//! `Calls`: the calls of an asyncio loop, carried out by a few threads that never need the GIL.
//!
//! ```text
//!   loop        a call ──► fresh ──(once per turn)──► jobs ──► threads of ours, no GIL
//!     ▲                                                          │
//!     └── answers settled, at most BUNCH per turn ◄── bell ◄── done
//! ```
//!
//! One call wakes nobody: all calls of one turn of the loop go to the threads together, and the bell (an
//! eventfd that the loop reads) rings once for all that is done when the loop comes round. So a thousand
//! calls at once cost the loop what it takes to make a thousand answers ([`crate::answer`]).
//!
//! What must stay true: the loop's thread waits for nothing here; a job is dropped with the GIL, whatever
//! became of its answer; and a cancelled call keeps its buffers until it is done.

use crate::answer::{Answer, Home};
use crate::call::Call;
use crate::error::{closed, forked};
use crate::fork::Own;
use crate::store::{Live, Store};
use mooncrate_lock::{Condvar, Mutex};
use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::prelude::*;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Calls that are answered in one turn of the loop: with `gather`, a fifth of a millisecond of its time.
const BUNCH: usize = 128;

/// A call, and whom to tell.
struct Job {
    call: Box<dyn Queued>,
    answer: Py<Answer>,
}

/// A [`Call`] of any kind, between its two parts.
trait Queued: Send {
    fn work(&mut self);
    fn finish(self: Box<Self>, py: Python<'_>) -> PyResult<Py<PyAny>>;
}

struct Waiting<C: Call> {
    call: C,
    /// Let go of by the thread that did the work: closing a store takes its time.
    live: Option<Live>,
    done: Option<C::Done>,
}

impl<C: Call> Queued for Waiting<C> {
    fn work(&mut self) {
        let Some(live) = self.live.take() else { return };
        // A thread that died would take its share of all later calls with it.
        let done = catch_unwind(AssertUnwindSafe(|| self.call.work(&live)));
        self.done = done.ok();
    }

    fn finish(self: Box<Self>, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let done = self.done.ok_or_else(|| PyRuntimeError::new_err("the call panicked"))?;
        self.call.finish(py, done)
    }
}

/// What the threads and the loop share.
struct Shared {
    jobs: Mutex<Jobs>,
    more: Condvar,
    done: Mutex<VecDeque<Job>>,
    /// Readable while something is done.
    bell: OwnedFd,
}

#[derive(Default)]
struct Jobs {
    queue: VecDeque<Job>,
    /// Threads that wait for work.
    idle: usize,
    stop: bool,
}

impl Shared {
    /// What each thread does.
    fn serve(&self) {
        while let Some(mut job) = self.next() {
            job.call.work();
            let mut done = self.done.lock();
            done.push_back(job);
            if done.len() == 1 {
                // Any number but 0 rings; it fails only where it rings already.
                let _ = rustix::io::write(&self.bell, &[1; 8]);
            }
        }
    }

    fn next(&self) -> Option<Job> {
        let mut jobs = self.jobs.lock();
        loop {
            if jobs.stop {
                return None;
            }
            if let Some(job) = jobs.queue.pop_front() {
                return Some(job);
            }
            jobs.idle += 1;
            self.more.wait(&mut jobs);
            jobs.idle -= 1;
        }
    }

    fn add(&self, some: Vec<Job>) {
        let wake = {
            let mut jobs = self.jobs.lock();
            let wake = some.len().min(jobs.idle);
            jobs.queue.extend(some);
            wake
        };
        for _ in 0..wake {
            self.more.notify_one();
        }
    }

    /// What is done, as much as one turn may have. The bell rings on while there is more.
    fn take_done(&self) -> VecDeque<Job> {
        let mut done = self.done.lock();
        let some = done.len().min(BUNCH);
        let some = done.drain(..some).collect();
        if done.is_empty() {
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        }
        some
    }

    /// Leaves for the next turn what this one did not come to.
    fn put_back(&self, mut some: VecDeque<Job>) {
        if some.is_empty() {
            return;
        }
        let mut done = self.done.lock();
        some.append(&mut done);
        *done = some;
        let _ = rustix::io::write(&self.bell, &[1; 8]);
    }
}

/// The threads. They end when this is dropped, after the calls that are under way.
struct Threads {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Threads {
    fn start(count: usize) -> std::io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (jobs, done) = (Mutex::default(), Mutex::default());
        let shared = Arc::new(Shared { jobs, more: Condvar::new(), done, bell });
        let mut threads = Self { shared, threads: Vec::new() };
        for number in 0..count {
            let shared = Arc::clone(&threads.shared);
            let name = format!("mooncrate-call-{number}");
            let thread = std::thread::Builder::new().name(name).spawn(move || shared.serve())?;
            threads.threads.push(thread);
        }
        Ok(threads)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.jobs.lock().stop = true;
        self.shared.more.notify_all();
        for thread in self.threads.drain(..) {
            // It caught what panicked in it.
            let _ = thread.join();
        }
    }
}

/// What belongs to the loop's thread.
#[derive(Default)]
struct Turn {
    /// Calls of this turn, which go to the threads together.
    fresh: Vec<Job>,
    /// Calls that were made and not yet answered.
    under_way: usize,
    /// Who waits until none is.
    waiters: Vec<Py<Answer>>,
}

/// Internal: the calls that one loop makes of one store.
#[pyclass(module = "mooncrate", frozen)]
pub(crate) struct Calls {
    store: Py<Store>,
    home: Arc<Home>,
    turn: Mutex<Turn>,
    /// `None` after `stop`.
    held: Own<Mutex<Option<Threads>>>,
}

impl Calls {
    pub(crate) fn start(
        py: Python<'_>,
        store: Py<Store>,
        on: &Bound<'_, PyAny>,
        threads: usize,
    ) -> PyResult<Self> {
        store.get().live(py)?;
        let started = py.detach(|| Threads::start(threads)).map_err(|error| {
            PyOSError::new_err(format!("cannot start threads for the calls of a loop: {error}"))
        })?;
        let held = Own::new(Mutex::new(Some(started)));
        let home = Arc::new(Home::of(on)?);
        Ok(Self { store, home, turn: Mutex::default(), held })
    }

    pub(crate) fn store(&self) -> &Store {
        self.store.get()
    }

    pub(crate) fn on(&self) -> &Py<PyAny> {
        &self.home.on
    }

    /// The answer to a call, which begins in the next turn of the loop.
    pub(crate) fn submit<'py>(
        slf: &Bound<'py, Self>,
        call: impl Call,
    ) -> PyResult<Bound<'py, Answer>> {
        let (py, this) = (slf.py(), slf.get());
        let live = Some(this.store().live(py)?);
        let answer = Answer::new(py, &this.home)?;
        let first = {
            let mut turn = this.turn.lock();
            let job = Job {
                call: Box::new(Waiting { call, live, done: None }),
                answer: answer.clone().unbind(),
            };
            turn.fresh.push(job);
            turn.under_way += 1;
            turn.fresh.len() == 1
        };
        if first {
            this.home.call_soon.bind(py).call1((slf.getattr("_send")?,))?;
        }
        Ok(answer)
    }

    fn shared(&self, py: Python<'_>) -> PyResult<Arc<Shared>> {
        let held = self.held.get().ok_or_else(|| forked(py))?;
        // Apart from each other, as in `Store::live`.
        let shared = held.lock().as_ref().map(|threads| Arc::clone(&threads.shared));
        shared.ok_or_else(|| closed(py))
    }

    /// Hands the calls of the last turn to the threads.
    pub(crate) fn send(&self, py: Python<'_>) -> PyResult<()> {
        let shared = self.shared(py)?;
        let fresh = std::mem::take(&mut self.turn.lock().fresh);
        shared.add(fresh);
        Ok(())
    }

    /// Answers calls that are done.
    pub(crate) fn answer(&self, py: Python<'_>) -> PyResult<()> {
        let shared = self.shared(py)?;
        let mut some = shared.take_done();
        let (taken, mut told) = (some.len(), Ok(()));
        while let Some(Job { call, answer }) = some.pop_front() {
            told = Answer::settle(answer.bind(py), call.finish(py));
            if told.is_err() {
                break;
            }
        }
        let answered = taken - some.len();
        shared.put_back(some);
        let waiters = {
            let mut turn = self.turn.lock();
            turn.under_way -= answered;
            if turn.under_way == 0 { std::mem::take(&mut turn.waiters) } else { Vec::new() }
        };
        for waiter in waiters {
            Answer::settle(waiter.bind(py), Ok(py.None()))?;
        }
        told
    }

    /// An answer that comes when no call is under way.
    pub(crate) fn when_over<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, Answer>> {
        let answer = Answer::new(py, &self.home)?;
        let mut turn = self.turn.lock();
        if turn.under_way > 0 {
            turn.waiters.push(answer.clone().unbind());
            return Ok(answer);
        }
        drop(turn);
        Answer::settle(&answer, Ok(py.None()))?;
        Ok(answer)
    }

    /// What the loop reads to learn that calls are done.
    pub(crate) fn bell(&self, py: Python<'_>) -> PyResult<RawFd> {
        Ok(self.shared(py)?.bell.as_raw_fd())
    }

    /// Ends the threads.
    pub(crate) fn join(&self, py: Python<'_>) -> PyResult<()> {
        let held = self.held.get().ok_or_else(|| forked(py))?;
        let threads = held.lock().take();
        self.end(py, threads);
        Ok(())
    }

    /// Joins the threads without the GIL. Calls that nobody answered are answered afterwards: what they gave,
    /// or that the store is closed.
    fn end(&self, py: Python<'_>, threads: Option<Threads>) {
        let Some(threads) = threads else { return };
        let shared = Arc::clone(&threads.shared);
        py.detach(|| drop(threads));
        // Each in a statement of its own: no lock is held while Python may run.
        let done = std::mem::take(&mut *shared.done.lock());
        let mut never = std::mem::take(&mut shared.jobs.lock().queue);
        never.extend(std::mem::take(&mut self.turn.lock().fresh));
        for Job { call, answer } in done {
            Answer::leave(answer.bind(py), call.finish(py));
        }
        for Job { answer, .. } in never {
            Answer::leave(answer.bind(py), Err(closed(py)));
        }
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        let Some(held) = self.held.get() else { return };
        let threads = held.lock().take();
        // Without an interpreter there is no GIL to give up either.
        Python::try_attach(|py| self.end(py, threads));
    }
}
