//! A tenant cannot evade its quota, nor fill the pool with what it never finishes (G16).

use super::*;
use mooncrate_core::catalog::Writer;
use mooncrate_core::copy::CopyDone;

const POOL: u64 = 64 * MIB;

/// Owners that have readers: they say that nobody new can enter, and free nothing.
fn wait_for_readers(rig: &mut Rig) {
    for (_, order) in rig.catalog.take_orders() {
        let Order { segment, incarnation, slot, generation, .. } = order;
        let result = OrderResult::Waiting;
        rig.catalog.notice(ms(2), &Notice { segment, incarnation, slot, generation, result });
        rig.held.push(order);
    }
}

/// Owners have fetched what they were told to copy.
fn finish_copies(rig: &mut Rig) {
    for (_, order) in rig.catalog.take_copies() {
        rig.catalog.copied(ms(2), &CopyDone::of(&order.target, true));
    }
}

/// The story: a tenant with 8 MiB put 1 MiB, viewed it, removed it by force, and began again. Its account
/// said 0 bytes, and it held all 64 MiB of the pool until its links closed.
#[test]
fn security_removed_bytes_that_are_pinned_stay_on_the_account() {
    let mut rig = Rig::new(1, POOL);
    rig.catalog.set_quota(ACME, Some(8 * MIB));
    let mut rounds = 0;
    let refused = loop {
        let (name, key) = (Name::new(ACME, b"k"), PutConfig::default());
        let plan = match rig.catalog.put_start(ms(1), name, MIB - 4096, &key) {
            Ok(plan) => plan,
            Err(refused) => break refused,
        };
        rig.catalog.put_end(ms(1), name, plan.token, &[Seal(1)]).unwrap();
        rig.catalog.remove(ms(2), name, true).unwrap();
        wait_for_readers(&mut rig);
        rig.catalog.audit().unwrap();
        rounds += 1;
    };
    let stat = &rig.catalog.segments()[0];
    let tenant = rig.catalog.tenant(ACME);
    println!(
        "rounds {rounds}, held {} of {POOL} bytes, on the account {}, refused: {refused}",
        stat.ending, tenant.used
    );
    assert_eq!(rounds, 8);
    assert_eq!((tenant.used, tenant.ending), (stat.ending, stat.ending));
    assert!(matches!(refused, PutError::Reclaiming { .. }), "there is room when its readers leave");
    assert!(rig.put(key(b"others"), MIB, &PutConfig::default()).is_ok());
    rig.obey(ms(3));
    assert_eq!(rig.catalog.tenant(ACME).used, 0);
    rig.put(Name::new(ACME, b"k"), MIB, &PutConfig::default()).unwrap();
}

/// The story: a writer began 1 MiB at its owner, said that the place had failed it, began at the next, and so
/// on. Each old range waited for the writer's link, and nobody asked for the quota.
#[test]
fn security_plans_made_anew_stay_within_the_quota() {
    let mut rig = Rig::new(2, POOL);
    rig.catalog.set_quota(ACME, Some(8 * MIB));
    let (name, wishes) = (Name::new(ACME, b"k"), PutConfig::default());
    let mut plan = rig.catalog.put_start(ms(1), name, MIB - 4096, &wishes).unwrap();
    let (token, extent) = (plan.token, plan.replicas[0].extent.len());
    let mut rounds = 0;
    let refused = loop {
        let failed = [plan.replicas[0].segment];
        plan = match rig.catalog.put_replan(ms(1), name, token, &failed, &wishes) {
            Ok(plan) => plan,
            Err(refused) => break refused,
        };
        wait_for_readers(&mut rig);
        rig.catalog.audit().unwrap();
        rounds += 1;
        assert!(rounds < 100, "it holds {} bytes", rig.catalog.tenant(ACME).used);
    };
    assert!(matches!(refused, PutError::Reclaiming { .. }), "there is room when its writer leaves");
    let used = rig.catalog.tenant(ACME).used;
    assert!(used > 8 * MIB && used <= 8 * MIB + extent, "one value more at most: {used}");
    // When the old ranges are free, it goes on; a tenant at its quota may plan anew.
    rig.obey(ms(2));
    rig.catalog.set_quota(ACME, Some(extent));
    let failed = [plan.replicas[0].segment];
    let plan = rig.catalog.put_replan(ms(2), name, token, &failed, &wishes).unwrap();
    rig.obey(ms(3));
    rig.catalog.put_end(ms(3), name, plan.token, &[Seal(1)]).unwrap();
    // Nothing will make room where nothing ends.
    let name = Name::new(ACME, b"more");
    rig.catalog.set_quota(ACME, None);
    let plan = rig.catalog.put_start(ms(4), name, MIB, &wishes).unwrap();
    rig.catalog.set_quota(ACME, Some(MIB));
    let failed = [plan.replicas[0].segment];
    let refused = rig.catalog.put_replan(ms(4), name, plan.token, &failed, &wishes);
    assert!(matches!(refused, Err(PutError::Quota { .. })), "{refused:?}");
}

/// The story: a client viewed a value, moved it, viewed it there, moved it back: each place it left was kept
/// by a view, and a move did not ask for the quota.
#[test]
fn security_moves_that_a_client_asks_for_stay_within_the_quota() {
    let mut rig = Rig::new(2, POOL);
    rig.catalog.set_quota(ACME, Some(8 * MIB));
    let name = Name::new(ACME, b"k");
    let plan = rig.put(name, MIB - 4096, &PutConfig::default()).unwrap();
    let extent = plan.replicas[0].extent.len();
    let (mut from, mut rounds) = (plan.replicas[0].segment, 0);
    let refused = loop {
        let to = SegmentId(3 - from.0);
        match rig.catalog.copy(ms(2), name, Some(from), to) {
            Ok(done) => assert!(!done),
            Err(refused) => break refused,
        }
        finish_copies(&mut rig);
        wait_for_readers(&mut rig);
        rig.catalog.audit().unwrap();
        (from, rounds) = (to, rounds + 1);
        assert!(rounds < 100, "it holds {} bytes", rig.catalog.tenant(ACME).used);
    };
    assert!(matches!(refused, CopyError::NoRoom { .. }), "{refused}");
    let used = rig.catalog.tenant(ACME).used;
    assert!(used > 8 * MIB && used <= 8 * MIB + extent, "one value more at most: {used}");
    // A tenant at its quota may move; who is asked by nobody moves in any case: see the tests of drains.
    rig.obey(ms(3));
    rig.catalog.set_quota(ACME, Some(extent));
    assert_eq!(rig.catalog.copy(ms(3), name, Some(from), SegmentId(3 - from.0)), Ok(false));
    finish_copies(&mut rig);
    rig.obey(ms(4));
    assert_eq!(rig.catalog.tenant(ACME).used, extent);
}

/// The bytes of a segment that leaves are nobody's any more.
#[test]
fn what_ends_in_a_segment_that_leaves_is_not_paid_for() {
    let mut rig = Rig::new(1, POOL);
    rig.catalog.set_quota(ACME, Some(8 * MIB));
    rig.put(Name::new(ACME, b"k"), MIB, &PutConfig::default()).unwrap();
    rig.catalog.remove(ms(2), Name::new(ACME, b"k"), true).unwrap();
    wait_for_readers(&mut rig);
    assert!(rig.catalog.tenant(ACME).used > 0);
    rig.catalog.unmount(NodeId(1), &[SegmentId(1)]);
    rig.catalog.tick(ms(4));
    assert_eq!(rig.catalog.tenant(ACME).used, 0);
    rig.catalog.audit().unwrap();
}

/// The story: 10,024 puts that one link began and never wrote filled the memory.
#[test]
fn security_open_puts_of_a_tenant_are_bounded() {
    let config = Config { open_puts_max: 100, ..Config::default() };
    let mut rig = Rig::with(1, POOL, config);
    let name = |n: &u16| n.to_le_bytes();
    let plain = PutConfig::default();
    let begin = |rig: &mut Rig, n: u16, len| {
        rig.catalog.put_start(ms(1), Name::new(ACME, &name(&n)), len, &plain)
    };
    let first = begin(&mut rig, 0, 64).unwrap();
    for n in 1..100 {
        begin(&mut rig, n, 64).unwrap();
    }
    assert!(matches!(begin(&mut rig, 100, 64), Err(PutError::Busy { .. })));
    assert_eq!(rig.catalog.open_of(ACME).puts, 100);
    // Others are not bothered, and whoever ends one may begin another.
    rig.catalog.put_start(ms(1), key(b"others"), 64, &plain).unwrap();
    rig.catalog.put_end(ms(2), Name::new(ACME, &name(&0)), first.token, &[Seal(1)]).unwrap();
    begin(&mut rig, 100, 64).unwrap();
    rig.catalog.audit().unwrap();
}

#[test]
fn security_open_puts_leave_room_where_others_want_it() {
    let mut rig = Rig::new(1, POOL);
    let plain = PutConfig::default();
    let fill = |rig: &mut Rig| {
        let mut begin = |n: &u8| rig.catalog.put_start(ms(1), Name::new(ACME, &[*n]), MIB, &plain);
        (0..60_u8).take_while(|n| begin(n).is_ok()).count()
    };
    // Alone it may have it all; beside others, half. One put always has room.
    assert_eq!(fill(&mut rig), 60);
    let mut rig = Rig::new(1, POOL);
    rig.catalog.set_quota(TenantId(9), Some(MIB));
    let begun = fill(&mut rig);
    assert!((30..=32).contains(&begun), "{begun}");
    let mut rig = Rig::new(1, POOL);
    rig.catalog.set_quota(TenantId(9), Some(MIB));
    let large = rig.catalog.put_start(ms(1), Name::new(ACME, b"large"), 40 * MIB, &plain);
    assert!(large.is_ok());
}

/// The story: 16,384 open puts of no bytes took all slots of a node of 64 MiB; nobody else could put for as long
/// as they were open. Bytes were counted, slots were not.
#[test]
fn security_open_puts_of_no_bytes_leave_slots_to_others() {
    let plain = PutConfig::default();
    let fill = |rig: &mut Rig| {
        let mut begin =
            |n: &u16| rig.catalog.put_start(ms(1), Name::new(ACME, &n.to_le_bytes()), 0, &plain);
        (0..2000_u16).take_while(|n| begin(n).is_ok()).count()
    };
    // A newcomer finds a slot, and from then on half of the 1,024 are the most.
    let mut rig = Rig::new(1, POOL);
    let alone = fill(&mut rig);
    assert!((512..1000).contains(&alone), "{alone}");
    rig.put(key(b"newcomer"), 64, &plain).unwrap();
    let mut rig = Rig::new(1, POOL);
    rig.put(key(b"others"), 64, &plain).unwrap();
    assert_eq!(fill(&mut rig), 512);
    // Those that were given up count until they are free.
    let begin_and_revoke = |rig: &mut Rig, n: u16| {
        let key = n.to_le_bytes();
        let name = Name::new(ACME, &key);
        let begun = rig.catalog.put_start(ms(1), name, 0, &plain);
        begun.map(|put| rig.catalog.put_revoke(ms(1), name, put.token).unwrap())
    };
    let mut rig = Rig::new(1, POOL);
    rig.put(key(b"others"), 64, &plain).unwrap();
    let mut given_up = 0;
    while begin_and_revoke(&mut rig, given_up).is_ok() {
        wait_for_readers(&mut rig);
        given_up += 1;
        assert!(given_up <= 512, "{given_up}");
    }
    assert_eq!(rig.catalog.tenant(ACME).aborted_slots, u64::from(given_up));
    rig.obey(ms(2));
    assert_eq!(rig.catalog.tenant(ACME).aborted_slots, 0);
}

/// Hard pins of empty values are bounded as those of large ones are.
#[test]
fn security_hard_pins_of_no_bytes_leave_slots_to_others() {
    let mut rig = Rig::new(1, POOL);
    let hard = with(|config| config.keep = Keep::Hard);
    let mut pin = |n: &u16| rig.put(Name::new(ACME, &n.to_le_bytes()), 0, &hard);
    let pinned = (0..2000_u16).map_while(|n| pin(&n).ok()).count();
    let refused = rig.put(Name::new(ACME, b"one more"), 0, &hard);
    assert!(matches!(refused, Err(PutError::HardFull { .. })), "{refused:?} after {pinned}");
    assert!(pinned < 1024, "{pinned}");
    rig.put(key(b"others"), 64, &PutConfig::default()).unwrap();
}

/// The story: who gave its puts up had none open, and the memory that they had begun in was still theirs.
#[test]
fn security_puts_that_were_given_up_count_as_open_until_they_are_free() {
    let mut rig = Rig::new(1, POOL);
    rig.catalog.set_quota(TenantId(9), Some(MIB));
    let (name, wishes) = (Name::new(ACME, b"k"), PutConfig::default());
    let mut rounds = 0;
    let refused = loop {
        let plan = match rig.catalog.put_start(ms(1), name, MIB - 4096, &wishes) {
            Ok(plan) => plan,
            Err(refused) => break refused,
        };
        rig.catalog.put_revoke(ms(1), name, plan.token).unwrap();
        wait_for_readers(&mut rig);
        rounds += 1;
    };
    assert!(matches!(refused, PutError::Busy { .. }), "{refused} after {rounds} rounds");
    let tenant = rig.catalog.tenant(ACME);
    assert_eq!((tenant.used, tenant.ending), (tenant.aborted, tenant.aborted));
    assert!(tenant.aborted <= POOL / 2, "it holds {} of {POOL} bytes", tenant.aborted);
    rig.obey(ms(2));
    assert_eq!(rig.catalog.tenant(ACME).aborted, 0);
    // A plan made anew is bounded alike, also without a quota. What was finished and removed is no open put.
    let mut plan = rig.start(name, MIB - 4096, &wishes).unwrap();
    let refused = loop {
        let failed = [plan.replicas[0].segment];
        plan = match rig.catalog.put_replan(ms(3), name, plan.token, &failed, &wishes) {
            Ok(plan) => plan,
            Err(refused) => break refused,
        };
        wait_for_readers(&mut rig);
    };
    assert!(matches!(refused, PutError::Busy { .. }), "{refused}");
    assert!(rig.catalog.tenant(ACME).used <= POOL / 2 + MIB);
    rig.obey(ms(4));
    rig.catalog.put_end(ms(4), name, plan.token, &[Seal(1)]).unwrap();
    rig.catalog.remove(ms(4), name, true).unwrap();
    assert_eq!(rig.catalog.tenant(ACME).aborted, 0);
    rig.obey(ms(5));
}

/// Puts of a writer that is gone are given back at once: those that nobody began at their owner are free,
/// those that somebody may still store to wait for the owner's word.
#[test]
fn puts_of_a_writer_that_is_gone_are_given_back() {
    let mut rig = Rig::new(1, POOL);
    let plain = PutConfig::default();
    let begin = |rig: &mut Rig, writer, name: &[u8]| {
        rig.catalog.put_start_by(ms(1), Writer(writer), Name::new(ACME, name), MIB, &plain)
    };
    for n in 0..10_u8 {
        begin(&mut rig, 1, &[n]).unwrap();
    }
    let other = begin(&mut rig, 2, b"other").unwrap();
    let unseen = rig.catalog.put_start(ms(1), Name::new(ACME, b"unseen"), MIB, &plain).unwrap();
    assert!(!rig.catalog.writer_gone(ms(2), Writer(1), 4), "in slices");
    assert!(rig.catalog.writer_gone(ms(2), Writer(1), 100));
    assert!(rig.catalog.writer_gone(ms(2), Writer(7), 100), "nobody knows it");
    assert_eq!(rig.catalog.open_of(ACME).puts, 2);
    assert!(matches!(begin(&mut rig, 3, &[0]), Err(PutError::InProgress { .. })));
    rig.obey(ms(3));
    let extent = other.replicas[0].extent.len();
    assert_eq!(rig.catalog.tenant(ACME).used, 2 * extent);
    begin(&mut rig, 3, &[0]).unwrap();
    for (name, plan) in [(&b"other"[..], other), (b"unseen", unseen)] {
        rig.catalog.put_end(ms(4), Name::new(ACME, name), plan.token, &[Seal(1)]).unwrap();
    }
    // An ended put is not its writer's any more.
    assert!(rig.catalog.writer_gone(ms(5), Writer(2), 100));
    assert!(rig.has(Name::new(ACME, b"other")));
    rig.catalog.audit().unwrap();
}

#[test]
fn security_tokens_depend_on_the_key() {
    use mooncrate_core::token::TokenKey;
    let tokens = [[0, 0], [1, 2], [1, 2]].map(|key| {
        let config = Config { token_key: TokenKey(key), ..Config::default() };
        Rig::with(1, MIB, config).put(super::key(b"k"), 1, &PutConfig::default()).unwrap().token
    });
    assert_ne!(tokens[0], tokens[1]);
    assert_eq!(tokens[1], tokens[2]);
}
