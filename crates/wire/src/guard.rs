//! Calls to a master that does not answer fail at once: a circuit breaker before the pools, for clients.
//!
//! ```text
//!   call ─► closed: send it ─┬─ answered
//!                            └─ refused, or silent for a second ─► open
//!   call ─► open: did a probe come back? ─┬─ yes ─► closed, send it
//!                                         └─ no ──► fail now; the next probe is on its way
//! ```
//!
//! The probe is a socket, not a thread: one caller begins it and does not wait for it, later callers look
//! at it. So a client has no thread that a fork or an exit would have to know of, and an idle client costs
//! a dead master nothing. The caller that begins a probe gives it half a millisecond, which a master on
//! this machine needs to answer: the first call after an outage usually goes through.
//!
//! What must stay true: while it is open no caller waits longer than that, and callers do not wait for each
//! other. Nodes have no breaker: their heartbeats are the probe.

use crate::clock::boottime;
use crate::error::{CallError, RefusalCode};
use crate::kind::Kind;
use crate::link::probe::{Probe, Seen};
use crate::masters::MasterPools;
use mooncrate_core::health::Breaker;
use mooncrate_core::time::Now;
use mooncrate_lock::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What the caller gives a probe that it has begun.
const GRACE: Duration = Duration::from_micros(500);
/// Between two probes that were refused.
const PAUSE: Duration = Duration::from_millis(10);
/// A probe without an answer is begun anew after this long: its packets may be lost.
const PROBE_TIME_MAX: Duration = Duration::from_secs(2);
/// How long one of several masters may take to say whether it leads; its process has just answered.
const LEADS_TIME: Duration = Duration::from_millis(50);
/// How long a lone master may take for a request that it answers at once. A stopped process never does;
/// without this, the first call of an outage would spend its whole deadline. Less than a serving lease, so that what
/// is remembered can still be read then.
const QUICK_MAX: Duration = Duration::from_millis(1500);

/// The breaker before the masters of a client.
#[derive(Debug, Default)]
pub(crate) struct Guard {
    /// Whether the breaker has anything to say. Changed under its lock.
    troubled: AtomicBool,
    /// Held for nanoseconds.
    breaker: Mutex<Breaker>,
    /// Held while probes are looked at. Nobody waits for it: whoever finds it taken fails at once.
    probes: Mutex<Probes>,
}

#[derive(Debug, Default)]
struct Probes {
    /// Questions that are on their way, to the master of this place in the list.
    sent: Vec<(usize, Probe)>,
    /// No probe is begun before.
    next: Now,
}

impl Guard {
    /// Whether a call may be sent.
    pub(crate) fn admit(&self, pools: &MasterPools) -> Result<(), CallError> {
        // Relaxed, here and below: a hint; the lock orders what it stands for.
        if !self.troubled.load(Ordering::Relaxed) || !self.breaker.lock().is_open() {
            return Ok(());
        }
        if self.probes.try_lock().is_some_and(|mut probes| probes.reached(pools)) {
            self.breaker.lock().answered();
            return Ok(());
        }
        let away = self.breaker.lock().away(boottime());
        let for_ms = u64::try_from(away.as_millis()).unwrap_or(u64::MAX);
        Err(CallError::Away { peer: pools.to_string(), for_ms })
    }

    /// How long a master may take for a call.
    pub(crate) fn limit(pools: &MasterPools, kind: Kind) -> Duration {
        match kind {
            Kind::Locate | Kind::Look | Kind::Exist | Kind::Nodes | Kind::Ping
                if pools.is_lone() =>
            {
                QUICK_MAX
            }
            _ => Duration::MAX,
        }
    }

    /// A call that was sent at `sent` has ended.
    pub(crate) fn note<T>(&self, pools: &MasterPools, sent: Now, answer: &Result<T, CallError>) {
        match answer {
            Err(CallError::Deadline { silent, .. }) => {
                // A call that first waited for a link gave the master less than its whole time.
                let now = boottime();
                let silent = u64::try_from(silent.as_nanos()).unwrap_or(u64::MAX);
                let sent = sent.max(Now(now.0.saturating_sub(silent)));
                self.trouble(|breaker| breaker.silent(sent, now));
            }
            // Several masters, and none leads: that was looked for until the deadline.
            Err(CallError::NotLeader { .. }) if !pools.is_lone() => {
                self.trouble(|breaker| breaker.silent(sent, boottime()));
            }
            Err(
                CallError::Io { .. }
                | CallError::Closed { .. }
                | CallError::Refused { code: RefusalCode::ShuttingDown, .. },
            ) => self.trouble(|breaker| breaker.unreachable(sent, boottime())),
            // It said nothing of the master, or what was known of it.
            Err(
                CallError::Busy { .. } | CallError::Away { .. } | CallError::Interrupted { .. },
            ) => {}
            _ => self.answered(),
        }
    }

    fn trouble(&self, note: impl FnOnce(&mut Breaker)) {
        let mut breaker = self.breaker.lock();
        note(&mut breaker);
        self.troubled.store(true, Ordering::Relaxed);
    }

    fn answered(&self) {
        if self.troubled.load(Ordering::Relaxed) {
            let mut breaker = self.breaker.lock();
            breaker.answered();
            self.troubled.store(false, Ordering::Relaxed);
        }
    }
}

impl Probes {
    /// Looks at the probes, begins new ones where that is due; whether a master was reached.
    fn reached(&mut self, pools: &MasterPools) -> bool {
        // Before old probes are dropped: a client that calls rarely looks late.
        if self.look(pools) {
            return true;
        }
        let now = boottime();
        self.sent.retain(|(_, probe)| probe.age(now) < PROBE_TIME_MAX);
        if self.sent.is_empty() && now >= self.next {
            self.next = now.plus(PAUSE);
            self.sent = pools.probe();
            // Twice: until there is a connection, and until there is an answer.
            for _ in 0..2 {
                if self.look(pools) {
                    return true;
                }
                let left = GRACE.saturating_sub(boottime().since(now));
                Probe::wait(self.sent.iter().map(|(_, probe)| probe), left);
            }
            return self.look(pools);
        }
        false
    }

    fn look(&mut self, pools: &MasterPools) -> bool {
        let mut alive = Vec::new();
        self.sent.retain_mut(|(at, probe)| match probe.look() {
            Seen::Alive => {
                alive.push(*at);
                false
            }
            Seen::Nothing => true,
            Seen::Gone => false,
        });
        let leads =
            |at: usize| pools.is_lone() || pools.leads(at, boottime().deadline_in(LEADS_TIME));
        let leads = alive.into_iter().any(leads);
        if leads {
            // Others that are on their way would only be old by the next outage.
            self.sent.clear();
        }
        leads
    }
}
