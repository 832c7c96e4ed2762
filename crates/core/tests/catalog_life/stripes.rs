//! Large values lie in stripes over several segments, and labels bring them back.

use super::*;

fn striped() -> Config {
    Config { stripe_bytes: MIB, ..Config::default() }
}

#[test]
fn a_large_value_is_striped_over_segments_and_goes_as_one() {
    let mut rig = Rig::with(3, 16 * MIB, striped());
    let two = with(|config| config.replicas = 2);
    let plan = rig.put(key(b"k"), 3 * MIB + 5, &two).unwrap();
    assert_eq!(plan.striping, Striping { len: 3 * MIB + 5, stripe_bytes: MIB });
    assert_eq!(plan.replicas.len(), 8, "four stripes, two copies each");
    for stripe in 0..4 {
        let of: Vec<_> = plan.replicas.iter().filter(|at| at.stripe == stripe).collect();
        assert_eq!(of.len(), 2);
        assert_ne!(of[0].segment, of[1].segment, "copies of a stripe are on distinct nodes");
    }
    let found = rig.catalog.locate(ms(2), key(b"k"), 0).unwrap();
    assert_eq!((found.len(), found.more_seals.len()), (3 * MIB + 5, 3));
    assert_eq!(found.stripes().count(), 4);
    // Too few seals end nothing.
    let other = rig.start(key(b"o"), 2 * MIB, &PutConfig::default()).unwrap();
    let refused = rig.catalog.put_end(ms(2), key(b"o"), other.token, &[Seal(1)]);
    assert_eq!(refused, Err(PutError::BadSeals { stripes: 2, seals: 1 }));
    rig.catalog.remove(ms(2), key(b"k"), false).unwrap();
    rig.catalog.put_revoke(ms(2), key(b"o"), other.token).unwrap();
    rig.obey(ms(2));
    assert_eq!(rig.catalog.tenant(TenantId::DEFAULT).used, 0);
}

#[test]
fn a_striped_value_that_lost_a_stripe_is_gone() {
    let mut rig = Rig::with(2, 4 * MIB, striped());
    rig.put(key(b"k"), 3 * MIB, &PutConfig::default()).unwrap();
    // Room for two more values of this size at most: something of the first one goes.
    for n in 0..8_u8 {
        rig.put(key(&[n]), MIB, &PutConfig::default()).unwrap();
        rig.tick(ms(3));
    }
    assert!(!rig.has(key(b"k")));
    assert_eq!(rig.catalog.locate(ms(3), key(b"k"), 0), Err(GetError::NotFound));
    rig.tick(ms(4));
    // And its key is free.
    rig.put(key(b"k"), 10, &PutConfig::default()).unwrap();
}

/// Proves M11 for wishes: what an owner keeps beside its headers brings pins, groups, tenants and
/// stripes back.
#[test]
fn labels_bring_everything_back() {
    let start = Start::Takeover { expected: vec![NodeId(1), NodeId(2)], trusted: Vec::new() };
    let mut catalog = Catalog::new(striped(), LeaderEpoch(2), start, ms(0));
    let object = |sequence| mooncrate_core::ObjectId { epoch: LeaderEpoch(1), sequence };
    let group = GroupId::named(b"g");
    let wishes = with(|config| {
        config.keep = Keep::Hard;
        config.group = group;
    });
    let cut = Striping { len: MIB + 100, stripe_bytes: MIB };
    let big = |stripe| {
        let name = mooncrate_core::Key::new(b"big").unwrap();
        wishes.label(ACME, name, cut, stripe)
    };
    let told = |slot, at, len, label: Label, seal| Announced {
        slot: Slot(slot),
        generation: Generation(3),
        life: Some(AnnouncedLife {
            extent: mooncrate_core::Extent::new(at, mooncrate_core::seal::extent_bytes(len))
                .unwrap(),
            object: Some(AnnouncedObject { label, object: object(5), len, seal: Seal(seal) }),
        }),
    };
    let mut pages = BTreeMap::new();
    pages.insert(1, vec![told(0, 0, MIB, big(0), 70)]);
    pages.insert(2, vec![told(0, 0, 100, big(1), 71)]);
    for (node, page) in pages {
        let name = Name::new(ACME, b"big");
        assert!(catalog.locate(ms(1), name, 0).is_err(), "one stripe is no value");
        let offer = offer(node, 4 * MIB);
        catalog.mount(ms(1), NodeId(node), std::slice::from_ref(&offer)).unwrap();
        catalog.announce(ms(1), offer.segment, offer.incarnation, &page, true).unwrap();
    }
    let found = catalog.locate(ms(1), Name::new(ACME, b"big"), 0).unwrap();
    assert_eq!((found.striping, found.seal, found.seal_of(1)), (cut, Seal(70), Some(Seal(71))));
    assert_eq!(catalog.group_len(ACME, group), 1);
    assert_eq!(catalog.tenant(ACME).hard, catalog.tenant(ACME).used);
    assert!(catalog.tenant(ACME).used > MIB);
    catalog.audit().unwrap();
}

#[test]
fn half_of_a_striped_value_is_dropped_when_the_rest_does_not_come() {
    let start = Start::Takeover { expected: vec![NodeId(1)], trusted: Vec::new() };
    let mut catalog = Catalog::new(striped(), LeaderEpoch(2), start, ms(0));
    let cut = Striping { len: 2 * MIB, stripe_bytes: MIB };
    let name = mooncrate_core::Key::new(b"big").unwrap();
    let label = PutConfig::default().label(TenantId::DEFAULT, name, cut, 1);
    let object = mooncrate_core::ObjectId { epoch: LeaderEpoch(1), sequence: 5 };
    let told = Announced {
        slot: Slot(0),
        generation: Generation(3),
        life: Some(AnnouncedLife {
            extent: mooncrate_core::Extent::new(0, MIB).unwrap(),
            object: Some(AnnouncedObject { label, object, len: MIB, seal: Seal(1) }),
        }),
    };
    let offer = offer(1, 4 * MIB);
    catalog.mount(ms(0), NodeId(1), std::slice::from_ref(&offer)).unwrap();
    catalog.announce(ms(0), offer.segment, offer.incarnation, &[told], true).unwrap();
    let mut rig = Rig { catalog, held: Vec::new() };
    assert!(!rig.has(key(b"big")));
    for at in (500..25_000).step_by(500) {
        rig.tick(ms(at));
    }
    assert_eq!(rig.catalog.len(), 0);
    rig.put(key(b"big"), 10, &PutConfig::default()).unwrap();
}
