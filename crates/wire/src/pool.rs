//! Links to one peer: a few wait for work, a bounded number is in use, and a lost one is replaced
//! within a budget. A caller has its link for itself, so the pool's lock is held for nanoseconds
//! and never over I/O.
//!
//! ```text
//!   checkout ─► a place is free ─► a link
//!            └► none is: the end of the line ─► a link came back: its place goes to the head of the line
//!                                            └► the deadline of the call: Busy
//! ```
//!
//! What must stay true: places are handed over, so nobody overtakes who waits; and nobody waits for a place
//! who holds one, or callers that hold all of them could wait for each other. Who holds one takes another
//! only where it is free ([`LinkPool::checkout_free`]).

use crate::address::Address;
use crate::clock::boottime;
use crate::error::CallError;
use crate::link::probe::Probe;
use crate::link::{Link, LinkConfig};
use crate::message::{Hello, Reply, Request};
use mooncrate_core::ids::HostId;
use mooncrate_core::time::{Deadline, Now};
use mooncrate_lock::{Condvar, Mutex, interrupt};
use std::collections::VecDeque;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// A link that rested longer than this is asked for its health before it is used again. Shorter
/// rests are too common to pay a system call for.
const TRUSTED: Duration = Duration::from_millis(100);
/// Pauses between attempts to connect.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// Settings of a pool.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// Of each link.
    pub link: LinkConfig,
    /// Links kept while nobody uses them.
    pub idle_max: usize,
    /// Links in use at once; beyond, callers wait for one in the order they came, and are told `Busy` at
    /// their deadline.
    pub links_max: usize,
    /// How long a caller keeps trying to connect, within its own deadline.
    pub reconnect_time: Duration,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            link: LinkConfig::default(),
            idle_max: 8,
            links_max: 64,
            reconnect_time: Duration::from_secs(2),
        }
    }
}

/// Links to one peer.
#[derive(Debug)]
pub struct LinkPool {
    address: Address,
    hello: Hello,
    config: PoolConfig,
    state: Mutex<State>,
    /// The machine of the peer that answered last, by its own word; 0: none has.
    peer_host: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// Resting links and since when, the latest last: it is the warmest.
    idle: Vec<(Link, Now)>,
    in_use: usize,
    /// Callers without a place, the first to come first. While there is one, all places are taken.
    line: VecDeque<Arc<Turn>>,
}

/// A caller who waits for a place.
#[derive(Debug, Default)]
struct Turn {
    /// A place is his. Written and read under the pool's lock, so all accesses are relaxed.
    come: AtomicBool,
    called: Condvar,
}

impl LinkPool {
    /// A pool without a connection yet: the first caller makes it.
    pub fn new(address: Address, hello: Hello, config: PoolConfig) -> Self {
        Self { address, hello, config, state: Mutex::default(), peer_host: AtomicU64::new(0) }
    }

    /// The machine of the peer that answered last; `None`: none has, or it did not say.
    pub fn peer_host(&self) -> Option<HostId> {
        // Relaxed: it orders nothing.
        Some(HostId(self.peer_host.load(Ordering::Relaxed))).filter(|host| host.0 != 0)
    }

    /// Where the peer is.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// A link of one's own; it comes back by being dropped, unless it is broken or busy.
    pub fn checkout(&self, deadline: Deadline) -> Result<PooledLink<'_>, CallError> {
        self.wait_for_place(deadline)?.with_link(deadline)
    }

    /// The same for a caller that may hold a link already; `None`: all of them are in use.
    pub fn checkout_free(&self, deadline: Deadline) -> Result<Option<PooledLink<'_>>, CallError> {
        let place = self.free_place(&mut self.state.lock());
        place.map(|place| place.with_link(deadline)).transpose()
    }

    /// A link outside of the pool, for work that outlives a call: it never comes back here.
    pub fn dedicated(&self, deadline: Deadline) -> Result<Link, CallError> {
        self.connect(deadline)
    }

    /// Takes the warmest resting link out of the pool for good; `None` if none rests.
    pub fn take_idle(&self) -> Option<Link> {
        self.state.lock().idle.pop().map(|(link, _)| link)
    }

    /// One control call. If a link that had rested turns out dead, a request that may be repeated
    /// goes out once more over a new one.
    pub fn call(&self, request: &Request<'_>, deadline: Deadline) -> Result<Reply, CallError> {
        self.call_within(request, Duration::MAX, deadline, || Ok(()), |_| ())
    }

    /// The same; the peer has at most `time` to answer, from when there is a place for the call. `admit` is
    /// asked then, and `note` is told the answer before the place is given on: who stands in line learns so
    /// that the peer has stopped, instead of finding out once more.
    pub(crate) fn call_within(
        &self,
        request: &Request<'_>,
        time: Duration,
        deadline: Deadline,
        admit: impl FnOnce() -> Result<(), CallError>,
        note: impl FnOnce(&Result<Reply, CallError>),
    ) -> Result<Reply, CallError> {
        let mut place = self.wait_for_place(deadline)?;
        admit()?;
        let until = deadline.min(boottime().deadline_in(time));
        let answer = place.call_once_more(request, until);
        note(&answer);
        drop(place);
        answer
    }

    /// Asks whether the peer is there, without waiting for it.
    pub(crate) fn probe(&self) -> Vec<Probe> {
        Probe::start(&self.address, &self.hello, &self.config.link)
    }

    /// Closes the links that nobody uses.
    pub fn forget_idle(&self) {
        // Closing is a system call each: not under the lock.
        let idle = std::mem::take(&mut self.state.lock().idle);
        drop(idle);
    }

    /// Links that rest.
    pub fn idle(&self) -> usize {
        self.state.lock().idle.len()
    }

    /// Links in use.
    pub fn in_use(&self) -> usize {
        self.state.lock().in_use
    }

    /// Callers that wait for a place.
    pub fn waiting(&self) -> usize {
        self.state.lock().line.len()
    }

    /// A place among the links in use; its link comes later.
    pub(crate) fn wait_for_place(&self, deadline: Deadline) -> Result<PooledLink<'_>, CallError> {
        let mut state = self.state.lock();
        if let Some(place) = self.free_place(&mut state) {
            return Ok(place);
        }
        let turn = Arc::<Turn>::default();
        state.line.push_back(Arc::clone(&turn));
        let mut interrupted = false;
        loop {
            let left = if interrupted { Duration::ZERO } else { deadline.left(boottime()) };
            let left = interrupt::slice(left);
            turn.called.wait_for(&mut state, left);
            if turn.come.load(Ordering::Relaxed) {
                return Ok(PooledLink { pool: self, link: None, reused: false });
            }
            if interrupted || deadline.passed(boottime()) {
                break;
            }
            // A handler may make calls, which use this pool. Meanwhile the turn may come: it is looked at again.
            drop(state);
            interrupted = interrupt::ask();
            state = self.state.lock();
        }
        state.line.retain(|other| !Arc::ptr_eq(other, &turn));
        if interrupted {
            return Err(CallError::Interrupted { awaited: "a link that others use" });
        }
        Err(CallError::Busy {
            peer: self.address.to_string(),
            links: self.config.links_max,
            after_ms: 5,
        })
    }

    fn free_place(&self, state: &mut State) -> Option<PooledLink<'_>> {
        let free = state.in_use < self.config.links_max;
        free.then(|| {
            state.in_use += 1;
            PooledLink { pool: self, link: None, reused: false }
        })
    }

    /// Connects, again and again within the budget: a peer that restarts is back soon.
    fn connect(&self, deadline: Deadline) -> Result<Link, CallError> {
        let budget = boottime().deadline_in(self.config.reconnect_time).min(deadline);
        let mut pause = PAUSE_MIN;
        loop {
            match Link::connect(&self.address, &self.hello, &self.config.link, deadline) {
                Err(error) if may_come_back(&error) && !self.config.link.hang_up.said() => {
                    if budget.left(boottime()) <= pause {
                        return Err(error);
                    }
                    interrupt::sleep(pause);
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                done => {
                    if let Ok(link) = &done {
                        // Relaxed: see `peer_host`.
                        self.peer_host.store(link.peer().host.0, Ordering::Relaxed);
                    }
                    return done;
                }
            }
        }
    }
}

/// Whether a failed connection is what a restarting peer looks like.
fn may_come_back(error: &CallError) -> bool {
    match error {
        CallError::Closed { .. } => true,
        CallError::Io { source, .. } => matches!(
            source.kind(),
            io::ErrorKind::ConnectionRefused
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::NotFound
        ),
        _ => false,
    }
}

/// A link that goes back to its pool.
#[derive(Debug)]
pub struct PooledLink<'a> {
    pool: &'a LinkPool,
    /// `None` only while it is being made.
    link: Option<Link>,
    reused: bool,
}

impl PooledLink<'_> {
    /// The place with a link.
    fn with_link(mut self, deadline: Deadline) -> Result<Self, CallError> {
        self.fill(deadline)?;
        Ok(self)
    }

    /// Fills the place: with a link that rests, or with a new one.
    pub(crate) fn fill(&mut self, deadline: Deadline) -> Result<(), CallError> {
        let rested = self.pool.state.lock().idle.pop();
        if let Some((link, since)) = rested {
            if boottime().since(since) < TRUSTED || link.is_idle() {
                self.link = Some(link);
                self.reused = true;
                return Ok(());
            }
            // The peer restarted, or hung up on idle links: the others rest no shorter.
            self.pool.forget_idle();
        }
        self.link = Some(self.pool.connect(deadline)?);
        Ok(())
    }

    /// Fills the place anew: its link was broken, and so are those that rest. Who has waited in line does not do
    /// so again.
    pub(crate) fn refill(&mut self, deadline: Deadline) -> Result<(), CallError> {
        self.link = None;
        self.reused = false;
        self.pool.forget_idle();
        self.fill(deadline)
    }

    /// Fills the place and calls; once more if the link had rested and is broken, and the request may be repeated.
    fn call_once_more(
        &mut self,
        request: &Request<'_>,
        deadline: Deadline,
    ) -> Result<Reply, CallError> {
        self.fill(deadline)?;
        match self.call(request, deadline) {
            Err(CallError::Closed { .. } | CallError::Io { .. })
                if self.reused && request.kind().repeatable() =>
            {
                self.refill(deadline)?;
                self.call(request, deadline)
            }
            answer => answer,
        }
    }

    /// Whether it had rested in the pool, so that its peer may be gone without our knowing.
    pub fn is_reused(&self) -> bool {
        self.reused
    }

    /// Closes it instead of keeping it for others: its peer gives back what is booked to it.
    pub fn hang_up(mut self) {
        self.link = None;
    }
}

impl Deref for PooledLink<'_> {
    type Target = Link;
    fn deref(&self) -> &Link {
        self.link.as_ref().expect("`fill` was called")
    }
}

impl DerefMut for PooledLink<'_> {
    fn deref_mut(&mut self) -> &mut Link {
        self.link.as_mut().expect("`fill` was called")
    }
}

impl Drop for PooledLink<'_> {
    fn drop(&mut self) {
        let rested = self.link.take().filter(Link::at_rest);
        let mut state = self.pool.state.lock();
        if let Some(next) = state.line.pop_front() {
            next.come.store(true, Ordering::Relaxed);
            next.called.notify_one();
        } else {
            state.in_use -= 1;
        }
        let mut surplus = None;
        if let Some(link) = rested {
            if state.idle.len() < self.pool.config.idle_max {
                state.idle.push((link, boottime()));
            } else {
                surplus = Some(link);
            }
        }
        drop(state);
        drop(surplus);
    }
}
