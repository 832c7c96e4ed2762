//! The judge: was this answer legal? Online, per key, without storing a single value.
//!
//! Vanishing is always legal, so a miss proves nothing and no search over orders is needed. What
//! is left is decidable from begins and ends alone. A put is *settled* when it can no longer take
//! effect later: it answered OK, or it is of unknown outcome and was seen since. Three things
//! prove that a settled put is over, because a key has at most one value at a time:
//!
//! ```text
//!   settled put p ──┤   ├── remove ──┤ OK    nothing was there     gets from here on: not p (C4)
//!   settled put p ──┤   ├── put q ───┤ OK    q was there instead   gets from here on: not p (C2)
//!   settled put p ──┤   ├── get ─────┤ of q  q was there instead   gets from here on: not p (C2)
//! ```
//!
//! And a value must come from a put of this key that had begun, that was not refused, and be as
//! long as what was put (C1). A put of unknown outcome counts until one of the proofs above.
//!
//! What must stay true: no false alarm. Where the order of two calls is unknown (they overlap) the
//! judge lets both orders pass. Not decidable here, so not judged: whether a second put should
//! have been refused (its forerunner may have vanished a moment ago), and whether a miss was
//! honest. In a rig where nothing may vanish, or that says what may, `no_loss` judges both.
//!
//! An upsert lets two values be seen for a while: the one it replaces until it has answered OK, its own
//! from when its owners published it. So an upsert that was seen proves nothing before its answer, and one that was
//! never answered is not over because the older value was seen.
//!
//! Memory per key: the operations that are open, the puts that a get may still legally return, and
//! a few graves to name old puts by. A put that is over is dropped when the gets that began before
//! its end have ended.

use crate::history::{Event, Got, OpId, What};
use crate::payload::{NAMED_BYTES_MIN, PutId};
use mooncrate_core::{KeyHash, Now};
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

/// Puts per key whose end is remembered, only to name them in a report.
const GRAVES_MAX: usize = 2;

/// What the rig promises, beyond what the store does.
#[derive(Clone, Copy, Debug, Default)]
pub struct OracleConfig {
    /// Nothing is evicted and nothing dies, unless [`What::MayVanish`] says so: a finished put is found
    /// until somebody removes it.
    pub no_loss: bool,
    /// After this long an unanswered put has taken effect or never will (the store's put timeout
    /// and more). `None`: it may count for ever, and is kept for ever.
    pub unknown_settles_after: Option<Duration>,
    /// After this long an unanswered remove strikes no more. `None`: it may for ever, so that `no_loss`
    /// expects nothing of this key again.
    pub remove_settles_after: Option<Duration>,
}

/// The clause of the contract that an answer broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// A get returns the complete, bit-exact bytes of one put under that key.
    C1,
    /// Between completion and removal a key has exactly one value.
    C2,
    /// A get sees what was put and never what was removed before it began.
    C4,
}

/// An answer that the contract forbids.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{rule:?} broken for key {:016x}: {why}{}", .key.0, listed(.events))]
pub struct Violation {
    /// Which clause.
    pub rule: Rule,
    /// Which key.
    pub key: KeyHash,
    /// What is wrong, in a sentence.
    pub why: String,
    /// The events that prove it, in order.
    pub events: Vec<Event>,
}

fn listed(events: &[Event]) -> String {
    events.iter().fold(String::new(), |mut text, event| {
        write!(text, "\n  {event}").expect("a String takes everything");
        text
    })
}

/// What was judged, so that a rig can show that it tested something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Puts that answered OK.
    pub puts: u64,
    /// Puts of unknown outcome.
    pub puts_unknown: u64,
    /// Puts that were refused.
    pub puts_refused: u64,
    /// Removes that answered OK.
    pub removes: u64,
    /// Gets that returned a value.
    pub hits: u64,
    /// Gets that found nothing.
    pub misses: u64,
    /// Gets that failed.
    pub gets_failed: u64,
}

/// What several oracles judged, each its own keys.
impl std::iter::Sum for Counts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            puts: sum.puts + one.puts,
            puts_unknown: sum.puts_unknown + one.puts_unknown,
            puts_refused: sum.puts_refused + one.puts_refused,
            removes: sum.removes + one.removes,
            hits: sum.hits + one.hits,
            misses: sum.misses + one.misses,
            gets_failed: sum.gets_failed + one.gets_failed,
        })
    }
}

/// The judge of one run.
#[derive(Debug, Default)]
pub struct Oracle {
    config: OracleConfig,
    /// Looked up, never walked: its order decides nothing.
    keys: HashMap<KeyHash, Life>,
    /// Counts events. Their order decides; their times may be equal.
    tick: Tick,
    counts: Counts,
}

type Tick = u64;
type Verdict = Result<(), Box<Violation>>;

impl Oracle {
    /// A judge who has seen nothing.
    pub fn new(config: OracleConfig) -> Self {
        Self { config, ..Self::default() }
    }

    /// Takes the next event and judges it. Go on after a violation only to collect more of them.
    ///
    /// # Panics
    /// When the rig tells an end without a begin, or uses an id twice.
    pub fn observe(&mut self, event: &Event) -> Verdict {
        self.tick += 1;
        self.count(event.what);
        let life = self.keys.entry(event.key).or_default();
        let verdict = life.observe(self.config, self.tick, *event);
        if life.is_empty() {
            self.keys.remove(&event.key);
        }
        verdict
    }

    /// What was judged so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Open operations and puts that are remembered for `key`.
    pub fn held(&self, key: KeyHash) -> usize {
        self.keys.get(&key).map_or(0, |life| life.puts.len() + life.open.len())
    }

    fn count(&mut self, what: What) {
        let counts = &mut self.counts;
        let one = match what {
            What::PutEnded { .. } => &mut counts.puts,
            What::PutUnknown { .. } => &mut counts.puts_unknown,
            What::PutRefused { .. } => &mut counts.puts_refused,
            What::RemoveEnded { .. } => &mut counts.removes,
            What::GetEnded { got: Got::Value { .. } | Got::Bad(_), .. } => &mut counts.hits,
            What::GetEnded { got: Got::Miss, .. } => &mut counts.misses,
            What::GetEnded { got: Got::Failed, .. } => &mut counts.gets_failed,
            What::PutBegan { .. }
            | What::PutReplaces { .. }
            | What::MayVanish
            | What::RemoveBegan { .. }
            | What::RemoveUnknown { .. }
            | What::GetBegan { .. } => return,
        };
        *one += 1;
    }
}

/// What still matters of one key.
#[derive(Debug, Default)]
struct Life {
    puts: Vec<Put>,
    /// Gets and removes under way.
    open: Vec<Open>,
    /// Puts that no get may return any more, newest last.
    graves: Vec<Put>,
    /// A remove of unknown outcome may strike at any time; the end of the last one.
    remove_unknown: Option<Now>,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    op: OpId,
    is_get: bool,
    began: Tick,
    event: Event,
}

#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not states")]
struct Put {
    id: PutId,
    len: u64,
    began: Tick,
    /// Its begin, and its end once there is one: kept for reports.
    events: (Event, Option<Event>),
    answered_ok: bool,
    /// A get has returned it.
    seen: bool,
    /// An upsert: before it has answered OK, the value that it replaces may still be seen.
    replaces: bool,
    /// From here on it has taken effect or never will.
    settled: Option<Tick>,
    /// A remove may have struck it, so that `no_loss` expects nothing of it.
    perhaps_removed: bool,
    over: Option<Over>,
}

/// The proof that a put is over: gets that begin after `since` must not return it.
#[derive(Clone, Debug)]
struct Over {
    since: Tick,
    rule: Rule,
    why: &'static str,
    /// The begin and the end of the operation that proves it; shared by all that it proves over.
    proof: Option<Arc<[Event; 2]>>,
}

impl Put {
    fn over_for(&self, get: &Open) -> Option<&Over> {
        self.over.as_ref().filter(|over| over.since < get.began)
    }

    /// In a rig without loss: whether anybody who began at `tick` must find it.
    fn must_be_there(&self, tick: Tick) -> bool {
        self.answered_ok
            && !self.perhaps_removed
            && self.over.is_none()
            && self.settled.is_some_and(|settled| settled < tick)
    }

    fn events(&self) -> impl Iterator<Item = Event> {
        [Some(self.events.0), self.events.1].into_iter().flatten()
    }
}

impl Life {
    fn observe(&mut self, config: OracleConfig, tick: Tick, event: Event) -> Verdict {
        if let Some(after) = config.unknown_settles_after {
            self.settle_unknown(tick, event.at, after);
        }
        if let Some(after) = config.remove_settles_after {
            self.remove_unknown.take_if(|ended| event.at.since(*ended) >= after);
        }
        let verdict = match event.what {
            What::PutBegan { put, len } => {
                self.put_began(tick, event, put, len);
                Ok(())
            }
            What::PutReplaces { put } => {
                self.vanish();
                self.put_mut(put, event).replaces = true;
                Ok(())
            }
            What::MayVanish => {
                self.vanish();
                Ok(())
            }
            What::PutEnded { put } => self.put_ended(config, tick, event, put),
            What::PutRefused { put } => self.put_refused(tick, event, put),
            What::PutUnknown { put } => {
                let put = self.put_mut(put, event);
                put.events.1 = Some(event);
                put.settled = (put.seen && !put.replaces).then_some(tick);
                Ok(())
            }
            What::RemoveBegan { remove } => {
                self.vanish();
                self.begin(remove, false, tick, event);
                Ok(())
            }
            What::RemoveEnded { remove } => {
                let open = self.end(remove, false, event);
                let why = "it had been removed before the get began";
                self.prove_over(open.began, tick, |_| false, Rule::C4, why, [open.event, event]);
                Ok(())
            }
            What::RemoveUnknown { remove } => {
                self.end(remove, false, event);
                self.remove_unknown = Some(event.at);
                Ok(())
            }
            What::GetBegan { get } => {
                self.begin(get, true, tick, event);
                Ok(())
            }
            What::GetEnded { get, got } => {
                let open = self.end(get, true, event);
                self.judge(config, tick, open, event, got)
            }
        };
        self.bury();
        verdict
    }

    /// What is there now need not be found any more.
    fn vanish(&mut self) {
        self.puts.iter_mut().for_each(|put| put.perhaps_removed = true);
    }

    fn put_began(&mut self, tick: Tick, event: Event, put: PutId, len: u64) {
        let known = self.puts.iter().chain(&self.graves).any(|known| known.id == put);
        assert!(!known, "the rig began put {put} twice: {event}");
        let removes = self.open.iter().any(|open| !open.is_get);
        self.puts.push(Put {
            id: put,
            len,
            began: tick,
            events: (event, None),
            answered_ok: false,
            seen: false,
            replaces: false,
            settled: None,
            perhaps_removed: removes || self.remove_unknown.is_some(),
            over: None,
        });
    }

    fn put_ended(&mut self, config: OracleConfig, tick: Tick, event: Event, id: PutId) -> Verdict {
        let put = self.put_mut(id, event);
        put.events.1 = Some(event);
        put.answered_ok = true;
        put.settled = Some(tick);
        let put = put.clone();
        let first = self.puts.iter().find(|first| config.no_loss && first.must_be_there(put.began));
        let verdict = match first {
            Some(first) => {
                let why = format!("put {id} was accepted although put {} was there", first.id);
                violation(Rule::C2, event, why, first.events().chain(put.events()))
            }
            None => Ok(()),
        };
        let why = "a later put had answered OK before the get began";
        let itself = |put: &Put| put.id == id;
        self.prove_over(put.began, tick, itself, Rule::C2, why, [put.events.0, event]);
        verdict
    }

    fn put_refused(&mut self, tick: Tick, event: Event, id: PutId) -> Verdict {
        let put = self.put_mut(id, event);
        put.events.1 = Some(event);
        put.settled = Some(tick);
        let why = "that put was refused, so its bytes must never be seen";
        // From the start: not even a get that is under way may see it.
        put.over = Some(Over { since: 0, rule: Rule::C1, why, proof: None });
        if put.seen {
            let why = format!("put {id} was refused, but a get had returned it");
            return violation(Rule::C1, event, why, put.events());
        }
        Ok(())
    }

    /// Something else, or nothing, was there at some moment between `began` and `tick`; so every
    /// put that had settled before is over, unless it is `spared`.
    fn prove_over(
        &mut self,
        began: Tick,
        tick: Tick,
        spared: impl Fn(&Put) -> bool,
        rule: Rule,
        why: &'static str,
        proof: [Event; 2],
    ) {
        let over = |put: &&mut Put| {
            let settled = put.settled.is_some_and(|settled| settled < began);
            settled && put.over.is_none() && !spared(put)
        };
        let mut over = self.puts.iter_mut().filter(over).peekable();
        if over.peek().is_some() {
            let proof = Arc::new(proof);
            for put in over {
                put.over = Some(Over { since: tick, rule, why, proof: Some(proof.clone()) });
            }
        }
    }

    fn judge(
        &mut self,
        config: OracleConfig,
        tick: Tick,
        get: Open,
        ended: Event,
        got: Got,
    ) -> Verdict {
        let get_events = [get.event, ended].into_iter();
        match got {
            Got::Bad(bad) => violation(Rule::C1, ended, bad.to_string(), get_events),
            Got::Miss if config.no_loss => {
                match self.puts.iter().find(|put| put.must_be_there(get.began)) {
                    None => Ok(()),
                    Some(put) => {
                        let why = format!("put {} was there, but the get missed", put.id);
                        violation(Rule::C4, ended, why, put.events().chain(get_events))
                    }
                }
            }
            Got::Miss | Got::Failed => Ok(()),
            Got::Value { put: None, len } => self.judge_unnamed(get, ended, len),
            Got::Value { put: Some(put), len } => self.judge_named(tick, get, ended, put, len),
        }
    }

    fn judge_named(&mut self, tick: Tick, get: Open, ended: Event, id: PutId, len: u64) -> Verdict {
        let get_events = [get.event, ended].into_iter();
        // A grave is over for every get: it was dug when the last get that might see it ended.
        let known = self.puts.iter_mut().chain(&mut self.graves).find(|put| put.id == id);
        let Some(put) = known else {
            let why = format!("put {id} never began under this key, or was over long ago");
            return violation(Rule::C1, ended, why, get_events);
        };
        if let Some(over) = put.over_for(&get) {
            let why = format!("the get returned put {id}, but {}", over.why);
            let proof = over.proof.iter().flat_map(|proof| **proof);
            let events = put.events().chain(proof).chain(get_events);
            return violation(over.rule, ended, why, events);
        }
        if put.len != len {
            let why = format!("put {id} stored {} bytes, the get returned {len}", put.len);
            return violation(Rule::C1, ended, why, put.events().chain(get_events));
        }
        put.seen = true;
        if put.replaces && !put.answered_ok {
            // Readers that kept a locator may still see what it replaces.
            return Ok(());
        }
        // While the put is open its client may try again, so it settles only with its answer.
        if put.events.1.is_some() && put.settled.is_none() {
            put.settled = Some(tick);
        }
        let why = "another put had been seen since, before the get began";
        let began = put.began;
        // What an unanswered upsert replaces may be all that the next leader knows for a while.
        let spared =
            |put: &Put| put.id == id || put.replaces && !put.answered_ok && began < put.began;
        self.prove_over(get.began, tick, spared, Rule::C2, why, [get.event, ended]);
        Ok(())
    }

    /// Too short to name its put: some put of this length must be possible.
    fn judge_unnamed(&self, get: Open, ended: Event, len: u64) -> Verdict {
        assert!(len < NAMED_BYTES_MIN as u64, "a value of {len} bytes names its put: {ended}");
        if self.puts.iter().any(|put| put.len == len && put.over_for(&get).is_none()) {
            return Ok(());
        }
        let why = format!("no put that the get may see stored {len} bytes");
        violation(Rule::C1, ended, why, [get.event, ended])
    }

    /// Unanswered puts whose time is over have taken effect or never will.
    fn settle_unknown(&mut self, tick: Tick, now: Now, after: Duration) {
        for put in self.puts.iter_mut().filter(|put| put.settled.is_none()) {
            if put.events.1.is_some_and(|ended| now.since(ended.at) >= after) {
                put.settled = Some(tick);
            }
        }
    }

    /// Moves the puts that no get can legally return any more to the graves.
    fn bury(&mut self) {
        let oldest_get = self.open.iter().filter(|open| open.is_get).map(|get| get.began).min();
        let oldest_get = oldest_get.unwrap_or(Tick::MAX);
        let done = |put: &mut Put| put.over.as_ref().is_some_and(|over| over.since < oldest_get);
        self.graves.extend(self.puts.extract_if(.., done));
        let surplus = self.graves.len().saturating_sub(GRAVES_MAX);
        self.graves.drain(..surplus);
    }

    fn begin(&mut self, op: OpId, is_get: bool, tick: Tick, event: Event) {
        let known = self.open.iter().any(|open| open.op == op && open.is_get == is_get);
        assert!(!known, "the rig began an operation twice: {event}");
        self.open.push(Open { op, is_get, began: tick, event });
    }

    fn end(&mut self, op: OpId, is_get: bool, event: Event) -> Open {
        let at = self.open.iter().position(|open| open.op == op && open.is_get == is_get);
        let at = at.unwrap_or_else(|| panic!("the rig ended what it had not begun: {event}"));
        self.open.swap_remove(at)
    }

    fn put_mut(&mut self, id: PutId, event: Event) -> &mut Put {
        let put = self.puts.iter_mut().find(|put| put.id == id && put.events.1.is_none());
        put.unwrap_or_else(|| panic!("the rig ended a put that is not open: {event}"))
    }

    fn is_empty(&self) -> bool {
        self.puts.is_empty()
            && self.open.is_empty()
            && self.graves.is_empty()
            && self.remove_unknown.is_none()
    }
}

fn violation(
    rule: Rule,
    at: Event,
    why: String,
    events: impl IntoIterator<Item = Event>,
) -> Verdict {
    let mut events: Vec<Event> = events.into_iter().collect();
    events.sort_by_key(|event| event.at);
    Err(Box::new(Violation { rule, key: at.key, why, events }))
}
