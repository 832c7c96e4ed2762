//! Links to one peer: a few wait for work, a bounded number is in use, and a lost one is replaced
//! within a budget. A caller has its link for itself, so the pool's lock is held for nanoseconds
//! and never over I/O.

use crate::address::Address;
use crate::clock::boottime;
use crate::error::CallError;
use crate::link::probe::Probe;
use crate::link::{Link, LinkConfig};
use crate::message::{Hello, Reply, Request};
use mooncrate_core::time::{Deadline, Now};
use mooncrate_lock::interrupt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
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
    /// Links in use at once; beyond, callers wait for one, and are told `Busy` if none comes back.
    pub links_max: usize,
    /// How long a caller keeps trying to connect, or waits for a link that others use, within its own
    /// deadline.
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
    /// A link came back.
    back: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Resting links and since when, the latest last: it is the warmest.
    idle: Vec<(Link, Now)>,
    in_use: usize,
}

impl LinkPool {
    /// A pool without a connection yet: the first caller makes it.
    pub fn new(address: Address, hello: Hello, config: PoolConfig) -> Self {
        Self { address, hello, config, state: Mutex::default(), back: Condvar::new() }
    }

    /// Where the peer is.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// A link of one's own; it comes back by being dropped, unless it is broken or busy.
    pub fn checkout(&self, deadline: Deadline) -> Result<PooledLink<'_>, CallError> {
        let (mut held, found) = self.claim(deadline)?;
        if let Some((link, since)) = found {
            if boottime().since(since) < TRUSTED || link.is_idle() {
                held.link = Some(link);
                held.reused = true;
                return Ok(held);
            }
            // The peer restarted, or hung up on idle links: the others rest no shorter.
            self.forget_idle();
        }
        held.link = Some(self.connect(deadline)?);
        Ok(held)
    }

    /// A link outside of the pool, for work that outlives a call: it never comes back here.
    pub fn dedicated(&self, deadline: Deadline) -> Result<Link, CallError> {
        self.connect(deadline)
    }

    /// Takes the warmest resting link out of the pool for good; `None` if none rests.
    pub fn take_idle(&self) -> Option<Link> {
        self.lock().idle.pop().map(|(link, _)| link)
    }

    /// One control call. If a link that had rested turns out dead, a request that may be repeated
    /// goes out once more over a new one.
    pub fn call(&self, request: &Request<'_>, deadline: Deadline) -> Result<Reply, CallError> {
        let mut link = self.checkout(deadline)?;
        match link.call(request, deadline) {
            Err(CallError::Closed { .. } | CallError::Io { .. })
                if link.reused && request.kind().repeatable() =>
            {
                drop(link);
                self.forget_idle();
                self.checkout(deadline)?.call(request, deadline)
            }
            answer => answer,
        }
    }

    /// Asks whether the peer is there, without waiting for it.
    pub(crate) fn probe(&self) -> Vec<Probe> {
        Probe::start(&self.address, &self.hello, &self.config.link)
    }

    /// Closes the links that nobody uses.
    pub fn forget_idle(&self) {
        // Closing is a system call each: not under the lock.
        let idle = std::mem::take(&mut self.lock().idle);
        drop(idle);
    }

    /// Links that rest.
    pub fn idle(&self) -> usize {
        self.lock().idle.len()
    }

    /// Links in use.
    pub fn in_use(&self) -> usize {
        self.lock().in_use
    }

    /// A place among the links in use, and a resting link if there is one.
    fn claim(
        &self,
        deadline: Deadline,
    ) -> Result<(PooledLink<'_>, Option<(Link, Now)>), CallError> {
        let mut state = self.lock();
        if state.in_use >= self.config.links_max {
            let budget = boottime().deadline_in(self.config.reconnect_time).min(deadline);
            let full = |state: &mut State| state.in_use >= self.config.links_max;
            loop {
                let left = interrupt::slice(budget.left(boottime()));
                let waited = self.back.wait_timeout_while(state, left, full);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                if !full(&mut state) || budget.passed(boottime()) {
                    break;
                }
                // A handler may make calls, which use this pool.
                drop(state);
                if interrupt::ask() {
                    return Err(CallError::Interrupted { awaited: "a link that others use" });
                }
                state = self.lock();
            }
        }
        if state.in_use >= self.config.links_max {
            return Err(CallError::Busy {
                peer: self.address.to_string(),
                links: self.config.links_max,
                after_ms: 5,
            });
        }
        state.in_use += 1;
        let found = state.idle.pop();
        Ok((PooledLink { pool: self, link: None, reused: false }, found))
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
                done => return done,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No caller's code runs under the lock, so a poisoned state is still whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
    /// Whether it had rested in the pool, so that its peer may be gone without our knowing.
    pub fn is_reused(&self) -> bool {
        self.reused
    }
}

impl Deref for PooledLink<'_> {
    type Target = Link;
    fn deref(&self) -> &Link {
        self.link.as_ref().expect("checkout fills it")
    }
}

impl DerefMut for PooledLink<'_> {
    fn deref_mut(&mut self) -> &mut Link {
        self.link.as_mut().expect("checkout fills it")
    }
}

impl Drop for PooledLink<'_> {
    fn drop(&mut self) {
        let rested = self.link.take().filter(Link::at_rest);
        let mut state = self.pool.lock();
        state.in_use -= 1;
        self.pool.back.notify_one();
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
