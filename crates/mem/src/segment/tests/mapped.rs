//! A client that maps a segment: what it may map, and what it may store.

use super::*;

#[test]
fn a_client_stores_directly_and_the_owner_publishes() {
    let segment = segment(true);
    stores_directly(&segment, &map(&segment));
}

#[test]
fn a_client_without_keys_stores_directly() {
    let segment = segment(true);
    stores_directly(&segment, &map(&segment).without_key());
}

fn stores_directly(segment: &Arc<Segment>, mapping: &Mapping) {
    let value = value((1 << 20) + 77);
    let at = locator(1, 0, value.len() as u64);
    let write = |value: &[u8]| mapping.write_value(&at, value);
    assert!(matches!(write(&value), Err(StoreError::Stale)), "not begun");
    let guard = begin(segment, at, value.len() as u64);
    assert!(matches!(write(&value[1..500]), Err(StoreError::OutOfBounds)));
    assert!(matches!(write(&value), Err(StoreError::Map(_))), "not handed over");
    let allow = |fd: BorrowedFd<'_>| mapping.allow_stores(fd.try_clone_to_owned().unwrap());
    let (_, readers) = segment.fds().unwrap();
    assert!(allow(readers).is_err(), "readers cannot store");
    let other = self::segment(true);
    assert!(allow(other.writable_fd().unwrap()).is_err(), "the memory of another segment");
    assert!(!mapping.takes_stores());
    allow(segment.writable_fd().unwrap()).unwrap();
    assert!(mapping.takes_stores());
    let seal = write(&value).unwrap();
    let refused = guard.publish_direct(T, PutToken(1), seal).unwrap_err();
    assert_eq!(refused.error, PublishError::BadToken);
    refused.guard.publish_direct(T, TOKEN, seal).unwrap();
    assert!(matches!(write(&value), Err(StoreError::Stale)), "published for good");
    let pin = segment.pin(T, &at).unwrap();
    let mut part = [0; 100];
    pin.read_part_into(seal, 1 << 20, &mut part[..77]).unwrap();
    assert_eq!(pin.bytes(), value);
}

/// Was: every direct put failed where the payload could not be mapped a second time (`ulimit -v`, a sandbox).
#[test]
fn a_client_without_room_for_a_second_mapping_stores_through_a_window() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let spec = SegmentSpec { bytes: 4 << 30, ..*segment(true).spec() };
    let segment = Segment::create(spec).unwrap();
    segment.set_serve_until(Now(u64::MAX));
    let mapping = map(&segment);
    let writable = segment.writable_fd().unwrap().try_clone_to_owned().unwrap();
    mapping.allow_stores(writable).unwrap();
    let value = value(40_000);
    let at = locator(1, 0, value.len() as u64);
    let guard = begin(&segment, at, value.len() as u64);
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').next().unwrap().parse().unwrap();
    let limit = getrlimit(Resource::As);
    // Room for what other tests of this process map meanwhile, and not for the payload.
    let current = Some(pages * rustix::param::page_size() as u64 + (2 << 30));
    setrlimit(Resource::As, Rlimit { current, ..limit }).unwrap();
    let stored = [0, 1].map(|_| mapping.write_value(&at, &value));
    setrlimit(Resource::As, limit).unwrap();
    let [first, second] = stored.map(Result::unwrap);
    assert_eq!(first, second);
    guard.publish_direct(T, TOKEN, first).unwrap();
    assert_eq!(segment.pin(T, &at).unwrap().bytes(), value);
}

#[test]
fn a_mapping_of_something_else_is_refused() {
    let segment = segment(true);
    let (headers, payload) = segment.fds().unwrap();
    let identity = segment.spec().identity();
    let other = Identity { incarnation: Incarnation(99), ..identity };
    assert!(Mapping::new(headers, payload, None, other).is_err());
    let larger = Identity { bytes: identity.bytes * 2, ..identity };
    assert!(Mapping::new(headers, payload, None, larger).is_err());
    assert!(Mapping::new(payload, headers, None, identity).is_err());
}
