//! Taking more than one's share.

use crate::cluster::{Guarded, SEGMENT_BYTES, any_port, ask, link, within};
use mooncrate::{CatalogConfig, ConnectOptions, MasterOptions, NodeOptions, Store, run_both};
use mooncrate_core::plan::PutConfig;
use mooncrate_wire::clock::boottime;
use mooncrate_wire::message::{
    BeginWrite, DataReply, DataRequest, Hello, List, Pattern, Pin, PutItem, PutStart, Reply,
    Request, Role, Stat, Write,
};
use mooncrate_wire::{DataError, Link, LinkConfig, LinkKind};
use std::borrow::Cow;
use std::io::IoSlice;
use std::time::Duration;

#[test]
fn security_pins_of_one_connection_are_bounded() {
    let cluster = Guarded::start(Some("acme"));
    let store = cluster.store("acme", false);
    let mut link = link(LinkKind::Data, &cluster.unix(), Role::Client, "acme");
    let (mut pinned, mut refused) = (0, false);
    for n in 0..10_u8 {
        store.put(&[n + 1], &vec![n; 1 << 20]).unwrap();
        let locator = cluster.locate("acme", &[n + 1]).unwrap();
        let pin = DataRequest::Pin(Pin { locators: Cow::Owned(vec![locator]) });
        match ask(&mut link, &pin) {
            Ok(()) => pinned += locator.extent.len(),
            Err(error) => {
                assert!(matches!(error, DataError::Busy { .. }), "{error}");
                refused = true;
            }
        }
    }
    assert!(refused && pinned <= SEGMENT_BYTES / 4, "{pinned}");
}

#[test]
fn security_unfinished_puts_of_one_connection_are_bounded() {
    let cluster = Guarded::start(None);
    let mut link = cluster.data("acme");
    let value = vec![1; 700_000];
    let mut outcomes = Vec::new();
    for n in 0..4_u8 {
        let key = [n + 1];
        let plan = cluster.plan("acme", &key, value.len() as u64);
        let label = [&[0; 5][..], &key[..]].concat();
        let put = BeginWrite {
            locator: plan.replicas[0],
            token: plan.token,
            object: plan.object,
            epoch: plan.epoch,
            len: value.len() as u64,
            label: &label,
        };
        let request = DataRequest::Write(Write { put });
        match link.call_data(&request, &[IoSlice::new(&value)], within(10_000)).unwrap() {
            DataReply::Write(result) => outcomes.push(result),
            other => panic!("{other:?}"),
        }
    }
    // A tenth of 16 MiB holds two of them.
    assert_eq!(outcomes[..2], [Ok(()), Ok(())]);
    for outcome in &outcomes[2..] {
        assert!(matches!(outcome, Err(DataError::Busy { .. })), "{outcome:?}");
    }
}

/// Whoever cannot map the memory has nothing to keep in place, and gets no pin: it could only keep the memory
/// from others.
#[test]
fn security_only_those_who_map_memory_may_pin() {
    let cluster = Guarded::start(None);
    cluster.store("acme", false).put(b"k", &[7; 5000]).unwrap();
    let locator = cluster.locate("acme", b"k").unwrap();
    let pin = DataRequest::Pin(Pin { locators: Cow::Owned(vec![locator]) });
    assert_eq!(ask(&mut cluster.data("acme"), &pin), Err(DataError::Unsupported));
    let mut unix = link(LinkKind::Data, &cluster.unix(), Role::Client, "acme");
    assert_eq!(ask(&mut unix, &pin), Err(DataError::Unsupported));
}

/// The story: an open cluster with a node of 64 MiB and a tenant with a quota of 8 MiB. It put 1 MiB, pinned
/// it, removed it by force, and began again over five links: it held 64 MiB, `quota` said 0 bytes, and all
/// others were refused.
#[test]
fn security_pins_and_removes_do_not_evade_a_quota() {
    const MIB: u64 = 1 << 20;
    let folder = tempfile::tempdir().unwrap();
    let unix = folder.path().join("n.sock");
    let master = MasterOptions { listen: any_port(), ..MasterOptions::default() };
    let node = NodeOptions {
        name: "n".into(),
        listen: Some(any_port()),
        unix: Some(unix.clone()),
        segment_bytes: 64 * MIB,
        ..NodeOptions::default()
    };
    let running = run_both(master, node).unwrap();
    let connect = |tenant: &str, admin| {
        let mut options = ConnectOptions { admin, ..ConnectOptions::default() };
        options.master = running.master_address().unwrap().into();
        options.client.tenant = mooncrate_core::TenantId::named(tenant).unwrap();
        options.client.call_time = Duration::from_secs(20);
        Store::connect(options).unwrap()
    };
    let (evil, other, admin) = (connect("evil", false), connect("other", false), connect("", true));
    let tenant = mooncrate_core::TenantId::named("evil").unwrap();
    admin.set_quota(tenant, Some(8 * MIB)).unwrap();
    let mut views = Vec::new();
    let refused = loop {
        if let Err(refused) = evil.put(b"k", &vec![7; MIB as usize]) {
            break refused;
        }
        let view = evil.view(b"k").unwrap().unwrap();
        assert!(view.is_in_place());
        views.push(view);
        assert!(evil.remove(b"k", true).unwrap());
    };
    let stat = admin.stat().unwrap();
    let row = stat.tenants.iter().find(|row| row.tenant == tenant).unwrap();
    println!(
        "{} rounds: {} bytes of 64 MiB wait for readers, {} are on the account; {refused}",
        views.len(),
        stat.quarantined_bytes,
        row.used_bytes
    );
    assert_eq!(views.len(), 8);
    assert_eq!(row.used_bytes, stat.quarantined_bytes);
    assert!(views.iter().all(|view| view.iter().all(|byte| *byte == 7)), "nothing is read wrong");
    other.put(b"k", &vec![1; 40 * MIB as usize]).unwrap();
    // A tenant hears of its own account only.
    let seen: Vec<_> = evil.stat().unwrap().tenants.iter().map(|row| row.tenant).collect();
    assert_eq!(seen, [tenant]);
    assert!(admin.stat().unwrap().tenants.len() >= 2);
    drop(views);
    let until = within(60_000);
    while evil.put(b"k", &vec![7; MIB as usize]).is_err() {
        assert!(!until.passed(boottime()), "the account is never given back");
    }
}

/// The story: a tenant opened 16,384 puts of no bytes at a node of 64 MiB, which has as many slots: no slot was left
/// for others for as long as they were open. It did so over its own links, before anybody else had anything there.
#[test]
fn security_open_puts_of_no_bytes_leave_slots_to_others() {
    let catalog =
        CatalogConfig { put_timeout: Duration::from_mins(10), ..CatalogConfig::default() };
    let master = MasterOptions { listen: any_port(), catalog, ..MasterOptions::default() };
    let node = NodeOptions {
        name: "n".into(),
        listen: Some(any_port()),
        segment_bytes: 64 << 20,
        ..NodeOptions::default()
    };
    let running = run_both(master, node).unwrap();
    let address = running.master_address().unwrap();
    let hello = Hello::new(Role::Client, LinkKind::Control, "evil");
    let mut evil = Link::connect(&address, &hello, &LinkConfig::default(), within(10_000)).unwrap();
    let keys: Vec<[u8; 4]> = (0..16_384_u32).map(u32::to_le_bytes).collect();
    let mut begun = 0;
    for keys in keys.chunks(4096) {
        let items: Vec<_> = keys.iter().map(|key| PutItem::new(key, 0)).collect();
        let config = Cow::Owned(PutConfig::default());
        let ask = Request::PutStart(PutStart { config, items: Cow::Owned(items) });
        let Reply::PutStart(plans) = evil.call(&ask, within(60_000)).unwrap() else { panic!() };
        begun += plans.iter().filter(|plan| plan.is_ok()).count();
    }
    let mut options = ConnectOptions { master: address.into(), ..ConnectOptions::default() };
    options.client.tenant = mooncrate_core::TenantId::named("other").unwrap();
    options.client.call_time = Duration::from_secs(5);
    let other = Store::connect(options).unwrap();
    let stored = other.put(b"k", b"value");
    assert!(stored.is_ok(), "{stored:?}, beside {begun} open puts of another tenant");
    assert_eq!(other.get(b"k").unwrap().as_deref(), Some(&b"value"[..]));
}

/// The story: 10,024 puts that one link began and never wrote filled the memory, and its end freed nothing
/// for half a minute. Here the watchdog comes after ten minutes, so nothing but the end of the link can
/// have given them back.
#[test]
fn security_puts_of_a_link_that_ended_are_given_back() {
    let catalog = CatalogConfig {
        put_timeout: Duration::from_mins(10),
        open_puts_max: 1000,
        ..CatalogConfig::default()
    };
    let master = MasterOptions { listen: any_port(), catalog, ..MasterOptions::default() };
    let node = NodeOptions {
        name: "n".into(),
        listen: Some(any_port()),
        segment_bytes: SEGMENT_BYTES,
        slots: Some(4096),
        ..NodeOptions::default()
    };
    let running = run_both(master, node).unwrap();
    let address = running.master_address().unwrap();
    let hello = |name| Hello::new(Role::Client, LinkKind::Control, name);
    let dial = |name| {
        Link::connect(&address, &hello(name), &LinkConfig::default(), within(10_000)).unwrap()
    };
    let mut evil = dial("evil");
    let keys: Vec<[u8; 2]> = (0..2000_u16).map(u16::to_le_bytes).collect();
    let items: Vec<_> = keys.iter().map(|key| PutItem::new(key, 4096)).collect();
    let config = Cow::Owned(PutConfig::default());
    let ask = Request::PutStart(PutStart { config, items: Cow::Owned(items) });
    let Reply::PutStart(plans) = evil.call(&ask, within(60_000)).unwrap() else { panic!() };
    assert_eq!(plans.iter().filter(|plan| plan.is_ok()).count(), 1000);
    let mut calm = dial("calm");
    let mut stat = || match calm.call(&Request::Stat(Stat {}), within(10_000)).unwrap() {
        Reply::Stat(stat) => stat,
        other => panic!("{other:?}"),
    };
    assert_eq!(stat().open_puts, 1000);
    drop(evil);
    let until = within(120_000);
    loop {
        let now = stat();
        if (now.open_puts, now.used_bytes, now.quarantined_bytes) == (0, 0, 0) {
            break;
        }
        assert!(!until.passed(boottime()), "{} puts are open", now.open_puts);
        std::thread::sleep(Duration::from_millis(20));
    }
    // A regular expression is answered, in a thread of its own.
    let ask = Request::List(List { pattern: Pattern::Regex("^a+$"), cursor: 0, limit: 10 });
    assert!(
        matches!(calm.call(&ask, within(60_000)).unwrap(), Reply::List(page) if page.next.is_none())
    );
}
