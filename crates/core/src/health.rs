//! What a caller remembers about peers that did not answer: whom it passes over, for how long, and which
//! caller asks again first.
//!
//! ```text
//!   owner    Sound ── no byte for a while ──► Slow ── nothing for a second ──► Silent
//!              ▲                               │ other replicas first            │ not waited for
//!              └── it answered ◄── one caller tries it, once its time is over ◄──┘
//!
//!   master   Closed ── refused, or silent for a second ──► Open: every call fails at once
//!              ▲                                              │
//!              └────────── a probe was answered ◄─────────────┘
//! ```
//!
//! Pure: time is an argument, and nothing here waits or sends. What must stay true: an owner is passed over
//! for a bounded time after its last failure, and at most one caller per window waits for it; memory is
//! bounded; an answer of the peer ends everything that was held against it.

use crate::ids::{Incarnation, SegmentId};
use crate::time::Now;
use std::collections::BTreeMap;
use std::time::Duration;

/// An owner as a locator names it. A restarted node has a new incarnation, and with it a clean record.
pub type Owner = (SegmentId, Incarnation);

/// Silence after which a peer counts as stopped, not as slow.
pub const SILENT_AFTER: Duration = Duration::from_secs(1);

/// How an owner is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// As any other.
    Sound,
    /// Other replicas are read first and values are put elsewhere.
    Slow,
    /// The same, and nobody waits for it.
    Silent,
}

/// How long an owner is passed over after it failed. Not shorter than the time after which a master
/// places nothing at a node that it has not heard (2 s).
const WINDOW_MIN: Duration = Duration::from_secs(2);
/// The longest, after it failed again and again: within a master's registration time.
const WINDOW_MAX: Duration = Duration::from_secs(8);
/// Owners that are remembered; the one that failed first makes room.
const OWNERS_MAX: usize = 1024;

/// Owners that failed their caller lately.
#[derive(Debug, Default)]
pub struct Owners {
    entries: BTreeMap<Owner, Trouble>,
}

#[derive(Debug)]
struct Trouble {
    standing: Standing,
    /// When the window began.
    since: Now,
    window: Duration,
    /// When a caller was last let through to try it.
    tried: Now,
}

impl Owners {
    /// Whether nothing is held against anybody.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How the owner is to be treated by the one who asks. After the window the first caller is told
    /// `Sound`: it finds out for the others, who are told so for another window.
    pub fn standing(&mut self, owner: Owner, now: Now) -> Standing {
        let Some(trouble) = self.entries.get_mut(&owner) else { return Standing::Sound };
        if now < trouble.since.plus(trouble.window) || now < trouble.tried.plus(trouble.window) {
            return trouble.standing;
        }
        trouble.tried = now;
        Standing::Sound
    }

    /// The owners that get nothing new. For these nobody tries: the master knows by itself after a while.
    pub fn avoided(&self, now: Now) -> impl Iterator<Item = SegmentId> + '_ {
        let within = move |trouble: &Trouble| now < trouble.since.plus(trouble.window);
        self.entries.iter().filter(move |(_, trouble)| within(trouble)).map(|((at, _), _)| *at)
    }

    /// The owner gave no answer: nothing came from it for `silent`.
    pub fn failed(&mut self, owner: Owner, silent: Duration, now: Now) {
        let standing = if silent >= SILENT_AFTER { Standing::Silent } else { Standing::Slow };
        if !self.entries.contains_key(&owner) && self.entries.len() >= OWNERS_MAX {
            let oldest = self.entries.iter().min_by_key(|(_, trouble)| trouble.since);
            let oldest = *oldest.expect("there are many").0;
            self.entries.remove(&oldest);
        }
        let trouble = self.entries.entry(owner).or_insert(Trouble {
            standing,
            since: now,
            window: WINDOW_MIN,
            tried: Now(0),
        });
        trouble.standing = trouble.standing.max(standing);
        // Calls that were under way together fail together, and count as one.
        if now >= trouble.since.plus(trouble.window) {
            trouble.since = now;
            trouble.window = (trouble.window * 2).min(WINDOW_MAX);
        }
    }

    /// The owner answered.
    pub fn answered(&mut self, owner: Owner) {
        self.entries.remove(&owner);
    }
}

/// Whether a master is asked at all: a circuit breaker.
#[derive(Debug, Default)]
pub struct Breaker {
    /// When the first of the calls was sent that got no answer; `None`: the last one was answered.
    unanswered_since: Option<Now>,
    /// Since when no call is sent.
    open_since: Option<Now>,
}

impl Breaker {
    /// Whether calls fail without being sent.
    pub const fn is_open(&self) -> bool {
        self.open_since.is_some()
    }

    /// How long the peer has not answered.
    pub fn away(&self, now: Now) -> Duration {
        self.unanswered_since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// A call that was sent at `sent` got no answer in its time. One short call proves nothing; when
    /// there was no answer for a second, the breaker opens.
    pub fn silent(&mut self, sent: Now, now: Now) {
        let since = *self.unanswered_since.get_or_insert(sent);
        if now.since(since) >= SILENT_AFTER {
            self.open_since.get_or_insert(now);
        }
    }

    /// A call was refused by the system: nobody listens there.
    pub fn unreachable(&mut self, sent: Now, now: Now) {
        self.unanswered_since.get_or_insert(sent);
        self.open_since.get_or_insert(now);
    }

    /// The peer answered: a call, or a probe.
    pub fn answered(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::NodeId;

    const T: Now = Now(1_000_000_000_000);

    fn owner(n: u64) -> Owner {
        (SegmentId::of(NodeId(n), 0), Incarnation(1))
    }

    fn at(ms: u64) -> Now {
        T.plus(Duration::from_millis(ms))
    }

    const SHORT: Duration = Duration::from_millis(250);

    #[test]
    fn an_owner_is_passed_over_for_a_window_and_then_tried_by_one() {
        let mut owners = Owners::default();
        assert_eq!(owners.standing(owner(1), T), Standing::Sound);
        owners.failed(owner(1), SHORT, T);
        assert_eq!(owners.standing(owner(1), at(1999)), Standing::Slow);
        assert_eq!(owners.standing(owner(2), at(1999)), Standing::Sound);
        assert_eq!(owners.avoided(at(1999)).count(), 1);
        assert_eq!(owners.avoided(at(2000)).count(), 0);
        // One tries, the others pass it over meanwhile.
        assert_eq!(owners.standing(owner(1), at(2000)), Standing::Sound);
        assert_eq!(owners.standing(owner(1), at(2000)), Standing::Slow);
        assert_eq!(owners.standing(owner(1), at(3999)), Standing::Slow);
        owners.answered(owner(1));
        assert_eq!(owners.standing(owner(1), at(2001)), Standing::Sound);
        assert!(owners.is_empty());
    }

    #[test]
    fn failures_make_the_window_longer_up_to_a_bound() {
        let mut owners = Owners::default();
        let mut now = T;
        owners.failed(owner(1), SHORT, now);
        for window in [2, 4, 8, 8, 8] {
            // Those that were on their way count as one.
            owners.failed(owner(1), SHORT, now);
            let end = now.plus(Duration::from_secs(window));
            assert_ne!(owners.standing(owner(1), Now(end.0 - 1)), Standing::Sound, "{window}");
            assert_eq!(owners.standing(owner(1), end), Standing::Sound, "{window}");
            owners.failed(owner(1), SILENT_AFTER, end);
            now = end;
        }
        assert_eq!(owners.standing(owner(1), now), Standing::Silent);
        // A new start of the node has nothing to do with it.
        assert_eq!(owners.standing((owner(1).0, Incarnation(2)), now), Standing::Sound);
    }

    #[test]
    fn a_caller_that_tried_in_vain_holds_nobody_up_for_ever() {
        let mut owners = Owners::default();
        owners.failed(owner(1), SILENT_AFTER, T);
        // The one that was let through never told.
        assert_eq!(owners.standing(owner(1), at(2000)), Standing::Sound);
        assert_eq!(owners.standing(owner(1), at(4000)), Standing::Sound);
    }

    #[test]
    fn memory_is_bounded() {
        let mut owners = Owners::default();
        for n in 0..5000 {
            owners.failed(owner(n), SHORT, at(n));
        }
        assert_eq!(owners.entries.len(), OWNERS_MAX);
        assert_eq!(owners.standing(owner(4999), at(5000)), Standing::Slow);
    }

    #[test]
    fn a_breaker_opens_after_a_second_of_silence_or_a_refusal() {
        let mut breaker = Breaker::default();
        breaker.silent(at(0), at(50));
        assert!(!breaker.is_open());
        breaker.answered();
        breaker.silent(at(900), at(1100));
        assert!(!breaker.is_open(), "the answer between them counts");
        breaker.silent(at(1850), at(1900));
        assert!(breaker.is_open());
        assert_eq!(breaker.away(at(2900)), Duration::from_secs(2));
        breaker.answered();
        assert!(!breaker.is_open());
        breaker.unreachable(at(3000), at(3001));
        assert!(breaker.is_open());
    }
}
