//! The judge is judged: every rule fires on its smallest history, and legal histories pass.

use mooncrate_check::{Event, Got, OpId, Oracle, OracleConfig, PutId, Rule, Violation, What};
use mooncrate_core::{KeyHash, Now};
use std::time::Duration;

const KEY: KeyHash = KeyHash(7);
const A: PutId = PutId::new(1, 1, 1);
const B: PutId = PutId::new(1, 2, 1);
const LEN: u64 = 100;

/// Tells one key's history, one event per nanosecond.
struct Story {
    oracle: Oracle,
    at: Now,
}

impl Story {
    fn new(config: OracleConfig) -> Self {
        Self { oracle: Oracle::new(config), at: Now(0) }
    }

    fn tell(&mut self, what: What) -> Result<(), Box<Violation>> {
        self.at.0 += 1;
        self.oracle.observe(&Event { at: self.at, key: KEY, what })
    }

    fn all(&mut self, whats: &[What]) {
        for what in whats {
            self.tell(*what).expect("a legal history");
        }
    }

    fn broken(&mut self, what: What) -> (Rule, usize) {
        let violation = self.tell(what).expect_err("an illegal answer");
        assert_eq!(violation.key, KEY);
        assert!(violation.events.is_sorted_by_key(|event| event.at), "{violation}");
        (violation.rule, violation.events.len())
    }
}

fn story() -> Story {
    Story::new(OracleConfig::default())
}

fn lossless() -> Story {
    Story::new(OracleConfig { no_loss: true, ..OracleConfig::default() })
}

fn put_began(put: PutId) -> What {
    What::PutBegan { put, len: LEN }
}

fn put(put: PutId) -> [What; 2] {
    [put_began(put), What::PutEnded { put }]
}

fn remove_began(n: u64) -> What {
    What::RemoveBegan { remove: OpId(n) }
}

fn remove_ended(n: u64) -> What {
    What::RemoveEnded { remove: OpId(n) }
}

fn get_began(n: u64) -> What {
    What::GetBegan { get: OpId(n) }
}

fn got(n: u64, put: PutId) -> What {
    What::GetEnded { get: OpId(n), got: Got::Value { put: Some(put), len: LEN } }
}

fn missed(n: u64) -> What {
    What::GetEnded { get: OpId(n), got: Got::Miss }
}

#[test]
fn a_finished_put_is_seen_until_it_is_removed() {
    let mut story = story();
    story.all(&put(A));
    story.all(&[get_began(1), got(1, A), get_began(2), missed(2), get_began(3), got(3, A)]);
    story.all(&[remove_began(1), remove_ended(1), get_began(4), missed(4)]);
    let counts = story.oracle.counts();
    assert_eq!((counts.puts, counts.hits, counts.misses, counts.removes), (1, 2, 2, 1));
}

// proves C1
#[test]
fn a_value_that_nobody_put_is_caught() {
    let mut story = story();
    story.all(&put(A));
    story.all(&[get_began(1)]);
    assert_eq!(story.broken(got(1, B)), (Rule::C1, 2));
}

// proves C1
#[test]
fn a_put_is_not_seen_before_it_begins() {
    let mut story = story();
    story.all(&[get_began(1)]);
    assert_eq!(story.broken(got(1, A)), (Rule::C1, 2));
    story.all(&[get_began(2), put_began(A), got(2, A)]);
}

// proves C1
#[test]
fn a_short_value_and_a_bad_line_are_caught() {
    let mut story = story();
    story.all(&put(A));
    story.all(&[get_began(1), get_began(2)]);
    let short = Got::Value { put: Some(A), len: LEN - 1 };
    assert_eq!(story.broken(What::GetEnded { get: OpId(1), got: short }), (Rule::C1, 4));
    let bad = Got::of(&[0; 64], KEY);
    assert_eq!(story.broken(What::GetEnded { get: OpId(2), got: bad }), (Rule::C1, 2));
}

// proves C1
#[test]
fn a_refused_put_is_never_seen() {
    let mut after = story();
    after.all(&[get_began(1), put_began(A), What::PutRefused { put: A }]);
    assert_eq!(after.broken(got(1, A)), (Rule::C1, 4));
    let mut before = story();
    before.all(&[put_began(A), get_began(1), got(1, A)]);
    assert_eq!(before.broken(What::PutRefused { put: A }), (Rule::C1, 2));
}

// proves C4
#[test]
fn a_removed_value_is_not_seen_by_a_get_that_begins_later() {
    let mut story = story();
    story.all(&put(A));
    story.all(&[remove_began(1), remove_ended(1), get_began(1)]);
    let violation = story.tell(got(1, A)).unwrap_err();
    assert_eq!(violation.rule, Rule::C4);
    let text = violation.to_string();
    assert!(text.starts_with("C4 broken for key 0000000000000007: the get returned put 1.1.1"));
    let told: Vec<&str> = text.lines().skip(1).collect();
    assert_eq!(told.len(), 6, "put, remove and get, each with its end: {text}");
    assert!(told[2].contains("remove_began") && told[3].contains("remove_ended"), "{text}");
}

/// Overlap in any form lets both orders pass.
#[test]
fn a_remove_kills_only_what_surely_came_before_it() {
    // The get began before the remove ended.
    let mut story = story();
    story.all(&put(A));
    story.all(&[remove_began(1), get_began(1), remove_ended(1), got(1, A)]);
    // The put ended after the remove began.
    let mut other = self::story();
    other.all(&[put_began(A), remove_began(1), What::PutEnded { put: A }, remove_ended(1)]);
    other.all(&[get_began(1), got(1, A)]);
    // The remove never answered.
    let mut third = self::story();
    third.all(&put(A));
    third.all(&[remove_began(1), What::RemoveUnknown { remove: OpId(1) }]);
    third.all(&[get_began(1), got(1, A)]);
}

/// A put that nobody answered may take effect after a remove; but once seen, it is as good as
/// answered (G6: a removed value does not come back).
#[test]
fn an_unknown_put_counts_until_it_was_seen_and_removed() {
    let mut story = story();
    story.all(&[put_began(A), What::PutUnknown { put: A }, remove_began(1), remove_ended(1)]);
    story.all(&[get_began(1), got(1, A), remove_began(2), remove_ended(2), get_began(2)]);
    assert_eq!(story.broken(got(2, A)).0, Rule::C4);
}

/// The same, when it was seen before its client gave up.
#[test]
fn an_unknown_put_that_was_seen_while_open_is_as_good_as_answered() {
    let mut story = story();
    story.all(&[put_began(A), get_began(1), got(1, A), What::PutUnknown { put: A }]);
    story.all(&[remove_began(1), remove_ended(1), get_began(2)]);
    assert_eq!(story.broken(got(2, A)).0, Rule::C4);
}

/// While a put is open, its client may try again after a remove: seeing it proves nothing yet.
#[test]
fn an_open_put_that_was_seen_may_come_back_after_a_remove() {
    let mut story = story();
    story.all(&[put_began(A), get_began(1), got(1, A), remove_began(1), remove_ended(1)]);
    story.all(&[get_began(2), got(2, A), What::PutEnded { put: A }]);
    story.all(&[get_began(3), got(3, A), remove_began(2), remove_ended(2), get_began(4)]);
    assert_eq!(story.broken(got(4, A)).0, Rule::C4);
}

// proves C2
#[test]
fn the_value_before_a_later_put_is_over() {
    let mut story = story();
    story.all(&put(A));
    story.all(&[get_began(1), put_began(B), get_began(2), What::PutEnded { put: B }]);
    // Both began before B had answered, so both may still see A.
    story.all(&[got(1, A), got(2, A), get_began(3)]);
    assert_eq!(story.broken(got(3, A)).0, Rule::C2);
    story.all(&[get_began(4), got(4, B)]);
}

// proves C2
#[test]
fn two_values_do_not_take_turns() {
    let mut story = story();
    // The puts overlap: which one is there is open until a get has seen it.
    story.all(&[put_began(A), put_began(B), What::PutEnded { put: A }, What::PutEnded { put: B }]);
    story.all(&[get_began(1), got(1, B), get_began(2)]);
    assert_eq!(story.broken(got(2, A)).0, Rule::C2);
    story.all(&[get_began(3), got(3, B)]);
}

#[test]
fn values_too_short_to_name_their_put_are_judged_by_length() {
    let empty = |n| What::GetEnded { get: OpId(n), got: Got::of(&[], KEY) };
    let mut story = story();
    story.all(&put(A));
    story.all(&[get_began(1)]);
    assert_eq!(story.broken(empty(1)), (Rule::C1, 2));
    story.all(&[What::PutBegan { put: B, len: 0 }, get_began(2), empty(2)]);
    story.all(&[What::PutEnded { put: B }, remove_began(1), remove_ended(1), get_began(3)]);
    assert_eq!(story.broken(empty(3)).0, Rule::C1);
}

// proves C4, where nothing may vanish
#[test]
fn without_loss_a_miss_needs_a_remove() {
    let mut story = lossless();
    story.all(&[get_began(1), put_began(A), missed(1), get_began(2), What::PutEnded { put: A }]);
    story.all(&[missed(2), get_began(3)]);
    assert_eq!(story.broken(missed(3)), (Rule::C4, 4));
    story.all(&[get_began(4), remove_began(1), missed(4), get_began(5), missed(5)]);
    // A put that a running remove may strike promises nothing.
    story.all(&put(B));
    story.all(&[remove_ended(1), get_began(6), missed(6)]);
}

// proves C2, where nothing may vanish
#[test]
fn without_loss_a_second_put_is_refused() {
    let mut story = lossless();
    story.all(&put(A));
    story.all(&[put_began(B)]);
    assert_eq!(story.broken(What::PutEnded { put: B }), (Rule::C2, 4));
    let mut legal = lossless();
    legal.all(&put(A));
    legal.all(&[put_began(B), What::PutRefused { put: B }, remove_began(1), remove_ended(1)]);
    legal.all(&put(PutId::new(1, 2, 2)));
    let mut unknown = lossless();
    unknown.all(&put(A));
    unknown.all(&[remove_began(1), What::RemoveUnknown { remove: OpId(1) }]);
    unknown.all(&put(B));
}

#[test]
fn what_can_no_longer_matter_is_dropped() {
    let mut story = story();
    for n in 0..1000 {
        story.all(&put(PutId::new(1, 1, n)));
        assert!(story.oracle.held(KEY) <= 2, "{}", story.oracle.held(KEY));
    }
    // An open get keeps what it may see, and no longer.
    story.all(&[get_began(1)]);
    for n in 0..10 {
        story.all(&put(PutId::new(1, 2, n)));
    }
    assert_eq!(story.oracle.held(KEY), 12);
    story.all(&[missed(1)]);
    assert_eq!(story.oracle.held(KEY), 1);
    story.all(&[remove_began(1), remove_ended(1)]);
    assert_eq!(story.oracle.held(KEY), 0);
}

#[test]
fn unknown_puts_settle_when_their_time_is_over() {
    let after = Some(Duration::from_nanos(100));
    let config = OracleConfig { unknown_settles_after: after, ..OracleConfig::default() };
    let mut story = Story::new(config);
    for n in 0..50 {
        let put = PutId::new(1, 1, n);
        story.all(&[put_began(put), What::PutUnknown { put }]);
    }
    assert_eq!(story.oracle.held(KEY), 50);
    // Too early: they may still come.
    story.all(&[remove_began(1), remove_ended(1), get_began(1), got(1, PutId::new(1, 1, 49))]);
    story.at.0 += 100;
    story.all(&[get_began(2), missed(2), remove_began(2), remove_ended(2)]);
    assert_eq!(story.oracle.held(KEY), 0);
    story.all(&[get_began(3)]);
    assert_eq!(story.broken(got(3, PutId::new(1, 1, 49))).0, Rule::C4);
}

/// An upsert: both values may be seen until it has answered, only its own from then on.
#[test]
fn the_old_value_is_over_when_its_upsert_has_answered() {
    let mut story = story();
    story.all(&put(A));
    story.all(&[put_began(B), What::PutReplaces { put: B }]);
    story.all(&[get_began(1), got(1, B), get_began(2), got(2, A), get_began(3), got(3, B)]);
    story.all(&[get_began(4), What::PutEnded { put: B }, got(4, A)]);
    story.all(&[get_began(5)]);
    assert_eq!(story.broken(got(5, A)), (Rule::C2, 6));
}

/// An upsert that nobody answered for may or may not have taken effect.
#[test]
fn an_unknown_upsert_proves_nothing() {
    let mut story = lossless();
    story.all(&put(A));
    story.all(&[put_began(B), What::PutReplaces { put: B }, get_began(1), got(1, B)]);
    story.all(&[What::PutUnknown { put: B }, get_began(2), got(2, A), get_began(3), got(3, B)]);
    story.all(&[get_began(4), missed(4), get_began(5), got(5, A)]);
}

/// The leader that accepted an upsert dies, and the next leader indexes the old value first. A later acknowledged remove
/// ends both values.
#[test]
fn an_unknown_upsert_is_not_over_because_the_old_value_was_seen() {
    let after = Some(Duration::from_nanos(100));
    let config = OracleConfig { unknown_settles_after: after, ..OracleConfig::default() };
    let mut story = Story::new(config);
    story.all(&put(A));
    story.all(&[put_began(B), What::PutReplaces { put: B }, What::PutUnknown { put: B }]);
    story.at.0 += 100;
    story.all(&[get_began(4), missed(4)]);
    story.all(&[get_began(1), got(1, A), get_began(2), got(2, B)]);
    story.all(&[remove_began(1), remove_ended(1), get_began(3)]);
    assert_eq!(story.broken(got(3, B)).0, Rule::C4);
}

/// What the rig lets go need not be found; what came after it must be.
#[test]
fn a_miss_is_legal_only_after_a_loss() {
    let mut story = lossless();
    story.all(&put(A));
    story.all(&[What::MayVanish, get_began(1), missed(1)]);
    story.all(&put(B));
    story.all(&[get_began(2)]);
    assert_eq!(story.broken(missed(2)), (Rule::C4, 4));
}

#[test]
fn unknown_removes_settle_when_their_time_is_over() {
    let remove_settles_after = Some(Duration::from_nanos(100));
    let config = OracleConfig { no_loss: true, remove_settles_after, ..OracleConfig::default() };
    let mut story = Story::new(config);
    story.all(&[remove_began(1), What::RemoveUnknown { remove: OpId(1) }]);
    story.all(&put(A));
    story.all(&[get_began(1), missed(1)]);
    story.at.0 += 100;
    story.all(&put(B));
    story.all(&[get_began(2)]);
    assert_eq!(story.broken(missed(2)).0, Rule::C4);
}

#[test]
#[should_panic(expected = "ended what it had not begun")]
fn an_end_without_a_begin_is_the_rigs_fault() {
    let _ = story().tell(missed(9));
}
