//! Several masters, of which one leads: where they are, and a call that finds the leader.
//!
//! ```text
//!   call ─► the master that answered last ─┬─ answer
//!             ▲                            ├─ "not the leader, it is at X" ─► X
//!             │                            ├─ refused, cut off, silent ─────► the next one
//!             └──────── small pause ◄──────┴─ nobody leads ─────────────────► the next one
//! ```
//!
//! What must stay true: a request that must not be handled twice goes out again only when it
//! certainly was not handled (nobody was connected, or the peer said that it does not lead), or when
//! another master leads by now: whatever the last leader made of it ended with its epoch. The
//! search ends with the caller's deadline. A hint is followed to masters that the caller named, and
//! to nobody else. With one master there is nothing to find, and nothing here costs anything.

use crate::address::Address;
use crate::clock::boottime;
use crate::error::{CallError, RefusalCode};
use crate::kind::Kind;
use crate::link::probe::Probe;
use crate::message::{Hello, Ping, Reply, Request};
use crate::pool::{LinkPool, PoolConfig, PooledLink};
use mooncrate_core::time::{Deadline, Now};
use mooncrate_lock::interrupt;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// How long one master may take for a request that it answers at once. A stopped process accepts
/// connections and never answers; without this, one call would spend its whole deadline there.
const QUICK: Duration = Duration::from_secs(1);
/// The same for requests that may wait for room, owners, orders or etcd.
const SLOW: Duration = Duration::from_secs(2);
/// For so long a master that did not answer is not tried while others are left, whatever they hint.
/// Longer than an election takes, or the search would come back to a stopped leader too early.
const SUSPECT: Duration = Duration::from_secs(3);
/// Between two looks while nobody leads.
const PAUSE: Duration = Duration::from_millis(50);

/// Where the masters of a cluster are: one, or several that elect a leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Masters(Vec<Address>);

impl Masters {
    /// The address, if there is only one.
    pub fn only(&self) -> Option<&Address> {
        match &self.0[..] {
            [only] => Some(only),
            _ => None,
        }
    }

    /// All of them; at least one.
    pub fn all(&self) -> &[Address] {
        &self.0
    }
}

impl From<Address> for Masters {
    fn from(address: Address) -> Self {
        Self(vec![address])
    }
}

impl fmt::Display for Masters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, address) in self.0.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{address}")?;
        }
        Ok(())
    }
}

impl FromStr for Masters {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all: Vec<Address> = text.split(',').map(str::parse).collect::<Result<_, _>>()?;
        for (index, address) in all.iter().enumerate() {
            if all[..index].contains(address) {
                return Err(format!("`{address}` is named twice"));
            }
        }
        Ok(Self(all))
    }
}

/// Links to every master of a cluster.
#[derive(Debug)]
pub struct MasterPools {
    members: Vec<Member>,
    /// The one that is asked first: it answered last, or was said to lead.
    current: AtomicUsize,
}

#[derive(Debug)]
struct Member {
    pool: LinkPool,
    /// When it last failed to answer; 0: never.
    failed: AtomicU64,
}

/// Why one master gave no answer.
enum Missed {
    /// It was not asked: another one is to be asked by now.
    Moved,
    /// It was not asked.
    Unsent(CallError),
    /// It was asked, and nobody knows what it made of it.
    Unknown(CallError),
}

/// Why a master is left for the next one.
enum Left<'a> {
    /// It did not answer.
    Failed,
    /// It does not lead; who does, as far as it knows.
    NotLeader(Option<&'a Address>),
}

impl From<LinkPool> for MasterPools {
    fn from(pool: LinkPool) -> Self {
        let member = Member { pool, failed: AtomicU64::new(0) };
        Self { members: vec![member], current: AtomicUsize::new(0) }
    }
}

impl fmt::Display for MasterPools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.is_lone() { "the master at" } else { "every master of" };
        let all: Vec<String> = self.members.iter().map(|m| m.pool.address().to_string()).collect();
        write!(f, "{name} {}", all.join(","))
    }
}

impl MasterPools {
    /// Pools without a connection yet.
    pub fn new(masters: &Masters, hello: &Hello, config: &PoolConfig) -> Self {
        let mut config = config.clone();
        if masters.all().len() > 1 {
            // A master that is gone is not waited for: another one leads, or will.
            config.reconnect_time = Duration::ZERO;
        }
        let pool =
            |address: &Address| LinkPool::new(address.clone(), hello.clone(), config.clone());
        let member = |address| Member { pool: pool(address), failed: AtomicU64::new(0) };
        let members = masters.all().iter().map(member).collect();
        Self { members, current: AtomicUsize::new(0) }
    }

    /// Links to the master that is asked first.
    pub fn current(&self) -> &LinkPool {
        &self.members[self.at()].pool
    }

    /// One control call, to whoever leads.
    pub fn call(&self, request: &Request<'_>, deadline: Deadline) -> Result<Reply, CallError> {
        self.call_within(request, Duration::MAX, deadline, || Ok(()), |_| ())
    }

    /// The same; a lone master has at most `time` to answer, and `admit` is asked when there is a place for the
    /// call. Several have times of their own. `note` is told the answer, before others have the place.
    pub(crate) fn call_within(
        &self,
        request: &Request<'_>,
        time: Duration,
        deadline: Deadline,
        admit: impl FnOnce() -> Result<(), CallError>,
        note: impl FnOnce(&Result<Reply, CallError>),
    ) -> Result<Reply, CallError> {
        if let [only] = &self.members[..] {
            return only.pool.call_within(request, time, deadline, admit, note);
        }
        let answer = self.call_leader(request, deadline);
        note(&answer);
        answer
    }

    fn call_leader(&self, request: &Request<'_>, deadline: Deadline) -> Result<Reply, CallError> {
        loop {
            let at = self.at();
            // Who stood in line for a master may have been overtaken by the news that another one is to be asked.
            let attempt = self.attempt(at, request, deadline, || self.at() == at);
            // The place is held until that news is out, so that the next in line hears of it.
            let (missed, place) = match attempt {
                Ok(reply) => return Ok(reply),
                Err(missed) => missed,
            };
            let error = match missed {
                Missed::Moved => continue,
                Missed::Unsent(error) if may_move(&error) => {
                    self.go_on(at, &Left::Failed, deadline);
                    error
                }
                Missed::Unknown(CallError::NotLeader { message, leader }) => {
                    self.go_on(at, &Left::NotLeader(leader.as_ref()), deadline);
                    CallError::NotLeader { message, leader }
                }
                // It is alive and slow: it leads, or it would have said so.
                Missed::Unknown(error) if is_slow(&error) && request.kind().repeatable() => error,
                Missed::Unknown(error) if may_move(&error) => {
                    self.go_on(at, &Left::Failed, deadline);
                    drop(place);
                    let refused = matches!(error, CallError::Refused { .. });
                    if !refused && !request.kind().repeatable() && !self.another_leads(at, deadline)
                    {
                        return Err(error);
                    }
                    error
                }
                Missed::Unsent(error) | Missed::Unknown(error) => return Err(error),
            };
            if deadline.passed(boottime()) {
                return Err(error);
            }
        }
    }

    /// Whether there is only one.
    pub(crate) fn is_lone(&self) -> bool {
        self.members.len() == 1
    }

    /// The pool of the only one.
    pub(crate) fn lone(&self) -> Option<&LinkPool> {
        self.members.first().filter(|_| self.is_lone()).map(|member| &member.pool)
    }

    /// Asks all of them whether they are there, without waiting; each with its place in the list.
    pub(crate) fn probe(&self) -> Vec<(usize, Probe)> {
        let each = self.members.iter().enumerate();
        each.flat_map(|(at, member)| member.pool.probe().into_iter().map(move |p| (at, p)))
            .collect()
    }

    /// Whether the master at this place leads; then it is asked first.
    pub(crate) fn leads(&self, at: usize, deadline: Deadline) -> bool {
        let leads = self.attempt(at, &Request::Ping(Ping {}), deadline, || true).is_ok();
        if leads {
            self.current.store(at, Ordering::Relaxed);
        }
        leads
    }

    fn at(&self) -> usize {
        // Relaxed: a hint where to begin, which orders nothing.
        self.current.load(Ordering::Relaxed)
    }

    /// Asks one master, for as long as one may take, if it is still the one to ask when there is a link for it.
    fn attempt(
        &self,
        at: usize,
        request: &Request<'_>,
        deadline: Deadline,
        still: impl FnOnce() -> bool,
    ) -> Result<Reply, (Missed, Option<Box<PooledLink<'_>>>)> {
        let pool = &self.members[at].pool;
        // Others of this process hold the places: that says nothing of the master.
        let place = pool.wait_for_place(deadline);
        let mut place = place.map_err(|error| (Missed::Unsent(error), None))?;
        if !still() {
            return Err((Missed::Moved, None));
        }
        let deadline = deadline.min(boottime().deadline_in(patience(request.kind())));
        let missed = match ask(&mut place, request, deadline) {
            Ok(reply) => return Ok(reply),
            Err(missed) => missed,
        };
        if let Missed::Unknown(CallError::Closed { .. } | CallError::Io { .. }) = missed {
            pool.forget_idle();
        }
        Err((missed, Some(Box::new(place))))
    }

    /// Chooses whom to ask after `at`, and pauses where haste would help nobody, but not beyond the
    /// deadline: the keys of a batch that is late would each add a pause.
    fn go_on(&self, at: usize, why: &Left<'_>, deadline: Deadline) {
        let now = boottime();
        let hint = match why {
            Left::Failed => {
                // Relaxed: see `at`.
                self.members[at].failed.store(now.0, Ordering::Relaxed);
                None
            }
            Left::NotLeader(leader) => *leader,
        };
        let hinted = hint.and_then(|leader| {
            self.members.iter().position(|member| member.pool.address() == leader)
        });
        if let Some(leader) = hinted.filter(|to| *to != at && !self.is_suspect(*to, now)) {
            return self.current.store(leader, Ordering::Relaxed);
        }
        let count = self.members.len();
        let next = (1..count).map(|step| (at + step) % count);
        let sound = next.clone().find(|to| !self.is_suspect(*to, now));
        if matches!(why, Left::NotLeader(_)) || sound.is_none() {
            interrupt::sleep(PAUSE.min(deadline.left(boottime())));
        }
        let to = sound.unwrap_or((at + 1) % count);
        // Another caller may have found the leader meanwhile; its word is newer.
        let _ = self.current.compare_exchange(at, to, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn is_suspect(&self, member: usize, now: Now) -> bool {
        let failed = self.members[member].failed.load(Ordering::Relaxed);
        failed != 0 && now.since(Now(failed)) < SUSPECT
    }

    /// Whether a master other than `old` leads, or comes to lead before the deadline.
    fn another_leads(&self, old: usize, deadline: Deadline) -> bool {
        let mut next = (old + 1) % self.members.len();
        while !deadline.passed(boottime()) && !interrupt::ended() {
            let ping = || self.attempt(next, &Request::Ping(Ping {}), deadline, || true);
            if next != old && ping().is_ok() {
                self.current.store(next, Ordering::Relaxed);
                return true;
            }
            next = (next + 1) % self.members.len();
            if next == old {
                interrupt::sleep(PAUSE.min(deadline.left(boottime())));
            }
        }
        false
    }
}

/// Asks over the link of this place.
fn ask(
    place: &mut PooledLink<'_>,
    request: &Request<'_>,
    deadline: Deadline,
) -> Result<Reply, Missed> {
    place.fill(deadline).map_err(Missed::Unsent)?;
    match place.call(request, deadline) {
        Err(CallError::Closed { .. } | CallError::Io { .. })
            if place.is_reused() && request.kind().repeatable() =>
        {
            // The link had rested and its peer may only have restarted: once more, over a new one.
            place.refill(deadline).map_err(Missed::Unsent)?;
            place.call(request, deadline).map_err(Missed::Unknown)
        }
        answer => answer.map_err(Missed::Unknown),
    }
}

/// Whether another master may do what this one did not.
fn may_move(error: &CallError) -> bool {
    match error {
        CallError::Io { .. } | CallError::Closed { .. } | CallError::Deadline { .. } => true,
        CallError::Refused { code, .. } => *code == RefusalCode::ShuttingDown,
        // `Away` is said above the pools, never by one of them.
        CallError::NotLeader { .. }
        | CallError::Away { .. }
        | CallError::Interrupted { .. }
        | CallError::Protocol(_)
        | CallError::Busy { .. }
        | CallError::Tls { .. } => false,
    }
}

/// Whether the master answered that its time was over.
fn is_slow(error: &CallError) -> bool {
    matches!(error, CallError::Refused { code: RefusalCode::Deadline, .. })
}

/// How long one master may take.
const fn patience(kind: Kind) -> Duration {
    match kind {
        Kind::PutStart
        | Kind::PutEnd
        | Kind::Remove
        | Kind::RemoveMatching
        | Kind::Orders
        | Kind::Mount
        | Kind::Unmount => SLOW,
        _ => QUICK,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_masters_are_read_and_shown() {
        let several: Masters = "a:1,b:2,unix:/run/c".parse().unwrap();
        assert_eq!((several.all().len(), several.only()), (3, None));
        assert_eq!(several.to_string(), "a:1,b:2,unix:/run/c");
        let one: Masters = "a:1".parse().unwrap();
        assert_eq!(one.only(), Some(&Address::Tcp("a:1".into())));
        for (text, says) in [("a:1,", "neither"), ("", "neither"), ("a:1,b:2,a:1", "twice")] {
            assert!(text.parse::<Masters>().unwrap_err().contains(says), "{text}");
        }
    }
}
