//! What owners tell of lives that readers doubt.

use super::*;

fn told(segment: &Segment, now: Now) -> Vec<OrderResult> {
    tick(segment, now).iter().map(|notice| notice.result).collect()
}

/// A reader that was told of another seal, or of a life that was never published, makes the owner tell what it holds;
/// its word changes nothing here (G16).
#[test]
fn what_is_held_otherwise_is_told_and_stays() {
    let segment = segment(true);
    let (at, seal) = put(&segment, 0, 0, &value(77));
    let told = || told(&segment, T);
    assert_eq!(segment.verify(T, &at, seal), Ok(true));
    assert_eq!(told(), []);
    assert_eq!(segment.verify(T, &at, Seal(1)), Ok(false));
    assert_eq!(told(), [OrderResult::Holds { seal: Some(seal) }]);
    assert!(segment.pin(T, &at).is_ok() && segment.stats().bad == 0);
    let never = locator(1, 0, 77);
    assert_eq!(segment.verify(T, &never, seal), Ok(false));
    assert_eq!(told(), [OrderResult::Holds { seal: None }]);
    // Of another life nothing is known.
    assert!(segment.verify(T, &Locator { generation: Generation(5), ..at }, seal).is_err());
    assert_eq!(told(), []);
}

/// A reader asks for a life whose writer is still at it, and the value is published before anybody was told. Was: the
/// master heard that nothing was published, after the put had ended, and gave the good value up.
#[test]
fn a_value_that_was_published_meanwhile_is_not_told_as_missing() {
    let segment = segment(true);
    let at = locator(0, 0, 77);
    let mut guard = begin(&segment, at, 77);
    assert_eq!(segment.verify(T, &at, Seal(1)), Ok(false));
    guard.write(0, &value(77)).unwrap();
    let seal = guard.seal();
    guard.publish(T, TOKEN, seal).unwrap();
    assert_eq!(told(&segment, T), []);
    // One that its writer gave up is over.
    let at = locator(1, 0, 77);
    let guard = begin(&segment, at, 77);
    assert_eq!(segment.verify(T, &at, seal), Ok(false));
    drop(guard);
    assert_eq!(told(&segment, T), [freed(1)]);
    assert_eq!(segment.next_look(), None);
}

/// Peers ask as often as they like. Was: each question left a notice behind, until the next tick.
#[test]
fn a_slot_has_one_notice_however_often_it_is_asked_for() {
    let segment = segment(true);
    let (at, seal) = put(&segment, 0, 0, &value(77));
    let never = locator(1, 0, 77);
    for wrong in 0..1000 {
        assert_eq!(segment.verify(T, &at, Seal(wrong)), Ok(false));
        assert_eq!(segment.verify(T, &never, seal), Ok(false));
    }
    assert_eq!(segment.stats().news, 2);
    assert_eq!(segment.next_look(), Some(Now(0)));
    let holds = |seal| OrderResult::Holds { seal };
    assert_eq!(told(&segment, T), [holds(Some(seal)), holds(None)]);
    assert_eq!((segment.stats().news, segment.next_look()), (0, None));
}
