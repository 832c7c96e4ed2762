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
    let writable = segment.writable_fd().unwrap();
    let write = |value: &[u8]| mapping.write_value(writable, &at, value);
    assert!(matches!(write(&value), Err(StoreError::Stale)), "not begun");
    let guard = begin(segment, at, value.len() as u64);
    assert!(matches!(write(&value[1..500]), Err(StoreError::OutOfBounds)));
    let (_, readers) = segment.fds().unwrap();
    let refused = mapping.write_value(readers, &at, &value);
    assert!(matches!(refused, Err(StoreError::Map(_))), "readers cannot store");
    let other = self::segment(true);
    let refused = mapping.write_value(other.writable_fd().unwrap(), &at, &value);
    assert!(matches!(refused, Err(StoreError::Map(_))), "the memory of another segment");
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
