//! The bytes of others.

use crate::cluster::{Guarded, ask, link, secret};
use mooncrate::{Path, Stored};
use mooncrate_core::plan::{Grant, Locator, Right};
use mooncrate_core::{Seal, TenantId};
use mooncrate_wire::auth::{GRANT_SECONDS, GrantKey};
use mooncrate_wire::clock::wall_seconds;
use mooncrate_wire::message::{
    Abandon, Attach, Begin, BeginWrite, DataRequest, Open, Pin, Read, Role, Signal, WritePart,
};
use mooncrate_wire::{DataError, LinkKind};
use std::borrow::Cow;
use std::time::Duration;

fn read(locator: Locator) -> DataRequest<'static> {
    DataRequest::Read(Read { locator, start: 0, len: 8 })
}

fn pin(locator: Locator) -> DataRequest<'static> {
    DataRequest::Pin(Pin { locators: Cow::Owned(vec![locator]) })
}

/// The library finds its way in a guarded cluster, over TCP and over the Unix socket.
#[test]
fn security_clients_with_a_token_are_served() {
    let cluster = Guarded::start(None);
    for (key, shared_memory) in [(b"a", false), (b"b", true)] {
        let store = cluster.store("acme", shared_memory);
        for len in [0, 5000, 300_000] {
            let value = vec![7; len];
            assert_eq!(store.put(key, &value).unwrap(), Stored::New);
            assert_eq!(store.get(key).unwrap(), Some(value));
            // The place that the put remembered was good for the get.
            assert_eq!(store.counts().stale, 0);
            // Its memory holds values of all tenants, so nobody maps it.
            assert_eq!(store.path(key).unwrap(), Some(Path::Stream));
            assert!(store.remove(key, false).unwrap());
        }
    }
}

/// A locator is worth nothing without the master's grant to the tenant that uses it.
#[test]
fn security_a_locator_of_another_tenant_reads_nothing() {
    let cluster = Guarded::start(None);
    cluster.store("acme", false).put(b"k", b"a secret of acme").unwrap();
    let good = cluster.locate("acme", b"k").unwrap();
    assert_eq!(ask(&mut cluster.data("acme"), &read(good)), Ok(()));
    assert_eq!(ask(&mut cluster.data("acme"), &pin(good)), Err(DataError::Unsupported));

    let mut thief = cluster.data("evil");
    let grant = good.grant.unwrap();
    let evil = TenantId::named("evil").unwrap();
    let renamed = Grant { tenant: evil, ..grant };
    for locator in [good, Locator { grant: None, ..good }, Locator { grant: Some(renamed), ..good }]
    {
        assert_eq!(ask(&mut thief, &read(locator)), Err(DataError::Denied));
        assert_eq!(ask(&mut thief, &pin(locator)), Err(DataError::Denied));
    }
    // A grant of its own, moved to somebody else's bytes.
    cluster.store("evil", false).put(b"mine", b"some bait").unwrap();
    let own = cluster.locate("evil", b"mine").unwrap();
    assert_eq!(ask(&mut thief, &read(own)), Ok(()));
    for moved in [
        Locator { slot: good.slot, ..own },
        Locator { extent: good.extent, ..own },
        Locator { grant: own.grant, ..good },
    ] {
        assert_eq!(ask(&mut thief, &read(moved)), Err(DataError::Denied));
    }
}

/// Whether a place is free, used or unknown: without a grant all look the same.
#[test]
fn security_probing_tells_nothing() {
    let cluster = Guarded::start(None);
    cluster.store("acme", false).put(b"k", b"v").unwrap();
    let good = cluster.locate("acme", b"k").unwrap();
    let mut thief = cluster.data("evil");
    for slot in [good.slot.0, 77, u32::MAX] {
        let probe = Locator { slot: mooncrate_core::Slot(slot), grant: None, ..good };
        assert_eq!(ask(&mut thief, &read(probe)), Err(DataError::Denied));
        let segment = mooncrate_core::SegmentId(1);
        assert_eq!(ask(&mut thief, &read(Locator { segment, ..probe })), Err(DataError::Denied));
    }
}

#[test]
fn security_a_read_grant_does_not_write_and_nobody_reads_what_is_not_published() {
    let cluster = Guarded::start(None);
    cluster.store("acme", false).put(b"k", b"value").unwrap();
    let readable = cluster.locate("acme", b"k").unwrap();
    let plan = cluster.plan("acme", b"next", 8);
    let mut data = cluster.data("acme");
    // Who may write a range may read it; but nothing is there yet.
    assert_eq!(ask(&mut data, &read(plan.replicas[0])), Err(DataError::Stale));
    // And who cannot map it learns nothing by a pin.
    assert_eq!(ask(&mut data, &pin(plan.replicas[0])), Err(DataError::Unsupported));
    let put = |locator| BeginWrite {
        locator,
        token: plan.token,
        object: plan.object,
        epoch: plan.epoch,
        len: 8,
        label: b"\0\0\0\0\0next",
    };
    let token = plan.token;
    let begin = DataRequest::Begin(Begin { put: put(readable) });
    let signal = DataRequest::Signal(Signal { locator: readable, token, seal: Seal(1) });
    let abandon = DataRequest::Abandon(Abandon { locator: readable, token });
    assert_eq!(ask(&mut data, &signal), Err(DataError::Denied));
    assert_eq!(ask(&mut data, &abandon), Err(DataError::Denied));
    let mut unix = link(LinkKind::Data, &cluster.unix(), Role::Client, "acme");
    assert_eq!(ask(&mut unix, &begin), Err(DataError::Unsupported), "no memory to write to");
    let mut thief = cluster.data("evil");
    let stolen = DataRequest::Abandon(Abandon { locator: plan.replicas[0], token });
    assert_eq!(ask(&mut thief, &stolen), Err(DataError::Denied));
    // Puts in parts need the same leave, for the put and for each part.
    let open = |locator| DataRequest::Open(Open { put: put(locator) });
    let part = |locator| DataRequest::WritePart(WritePart { len: 0, locator, token, offset: 0 });
    assert_eq!(ask(&mut data, &open(readable)), Err(DataError::Denied));
    assert_eq!(ask(&mut data, &part(readable)), Err(DataError::Denied));
    assert_eq!(ask(&mut thief, &open(plan.replicas[0])), Err(DataError::Denied));
    assert_eq!(ask(&mut data, &open(plan.replicas[0])), Ok(()));
    assert_eq!(ask(&mut thief, &part(plan.replicas[0])), Err(DataError::Denied));
    assert_eq!(ask(&mut data, &part(plan.replicas[0])), Ok(()));
    let other = WritePart {
        len: 0,
        locator: plan.replicas[0],
        token: mooncrate_core::PutToken(token.0 ^ 1),
        offset: 0,
    };
    assert_eq!(ask(&mut data, &DataRequest::WritePart(other)), Err(DataError::BadToken));
}

#[test]
fn security_sessions_work_with_credentials() {
    let cluster = Guarded::start(None);
    let store = cluster.store("acme", false);
    let session = store.put_session(b"layers", 10, &store.put_config()).unwrap();
    session.write(5, b"world").unwrap();
    session.write(0, b"hello").unwrap();
    session.end().unwrap();
    let reading = store.get_session(b"layers", Duration::from_secs(5)).unwrap().unwrap();
    let mut part = [0; 4];
    assert_eq!(reading.read(3, &mut part).unwrap(), 4);
    assert_eq!(&part, b"lowo");
    assert!(cluster.store("evil", false).get_session(b"layers", Duration::ZERO).unwrap().is_none());
}

/// The client asks the master again, and goes on.
#[test]
fn security_a_grant_that_ended_is_told_as_such() {
    let cluster = Guarded::start(None);
    cluster.store("acme", false).put(b"k", b"value123").unwrap();
    let good = cluster.locate("acme", b"k").unwrap();
    let long_ago = wall_seconds() - 2 * GRANT_SECONDS;
    let tenant = good.grant.unwrap().tenant;
    let old = GrantKey::new(&secret()).mint(&good, tenant, Right::Read, long_ago);
    let stale = Locator { grant: Some(old), ..good };
    assert_eq!(ask(&mut cluster.data("acme"), &read(stale)), Err(DataError::Expired));
}

/// One memfd never holds values of two tenants.
#[test]
fn security_memory_is_shared_with_the_tenant_it_is_dedicated_to() {
    let mixed = Guarded::start(None);
    let dedicated = Guarded::start(Some("acme"));
    let attach = |cluster: &Guarded, tenant: &str| {
        let mut unix = link(LinkKind::Data, &cluster.unix(), Role::Client, tenant);
        let segment = cluster.running.node().unwrap().segment();
        ask(&mut unix, &DataRequest::Attach(Attach { segment, stores: false }))
    };
    assert_eq!(attach(&mixed, "acme"), Err(DataError::Unsupported));
    assert_eq!(attach(&mixed, ""), Err(DataError::Unsupported));
    assert_eq!(attach(&dedicated, "evil"), Err(DataError::Unsupported));
    assert_eq!(attach(&dedicated, ""), Err(DataError::Unsupported));
    assert_eq!(attach(&dedicated, "acme"), Ok(()));
    let store = dedicated.store("acme", true);
    store.put(b"k", &vec![3; 100_000]).unwrap();
    assert_eq!(store.path(b"k").unwrap(), Some(Path::Shared));
    assert_eq!(store.get(b"k").unwrap().unwrap(), vec![3; 100_000]);
    // Nobody else's bytes come here: the master plans none, and the node takes none.
    let refused = dedicated.store("evil", false).put(b"e", b"value").unwrap_err();
    assert!(refused.to_string().contains("no segment is mounted"), "{refused}");
    let foreign = dedicated.plan("acme", b"e", 8).replicas[0];
    let abandon = Abandon { locator: foreign, token: mooncrate_core::PutToken(1) };
    let abandon = DataRequest::Abandon(abandon);
    assert_eq!(ask(&mut dedicated.data("evil"), &abandon), Err(DataError::Denied));
}

/// What one tenant removed is gone before another can get the place.
#[test]
fn security_the_bytes_of_a_removed_value_are_zeroed() {
    let cluster = Guarded::start(None);
    let store = cluster.store("acme", false);
    store.put(b"k", &vec![0xa5; 200_000]).unwrap();
    let segment = cluster.running.node().unwrap().segments().all().remove(0);
    let at = cluster.locate("acme", b"k").unwrap();
    let left = || {
        // As the next owner of the place would find it.
        let mut memory = vec![0; at.extent.len() as usize];
        segment.one_sided().copy(at.extent, &mut memory).unwrap();
        memory.into_iter().filter(|byte| *byte == 0xa5).count()
    };
    assert!(left() >= 200_000);
    assert!(store.remove(b"k", false).unwrap());
    let mut waited = 0;
    while left() > 0 {
        assert!(waited < 2000, "{} bytes are left", left());
        std::thread::sleep(Duration::from_millis(5));
        waited += 1;
    }
}
