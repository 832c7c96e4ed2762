//! Every call, over every path.

use crate::fleet::{
    CALL_TIME, Fleet, connect, judge, master, node, patiently, segment, stamped, until,
};
use crate::judge::Judge;
use mooncrate::{
    Advice, ClientConfig, ConnectOptions, Error, Path, PutConfig, Running, Store, Stored, run_both,
    run_master, run_node,
};
use mooncrate_core::TenantId;
use mooncrate_core::plan::{Action, Locator, Order};
use mooncrate_core::rng::Rng;
use mooncrate_core::time::Deadline;
use mooncrate_wire::MasterApi;
use mooncrate_wire::clock::boottime;
use std::collections::BTreeSet;
use std::time::Duration;

const LENGTHS: [usize; 9] = [0, 1, 64, 4097, 40_000, 70_000, 1 << 20, (1 << 20) + 1, 3_000_001];

fn both() -> (Running, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let master = master();
    let node = node("both", &master.listen, folder.path());
    (run_both(master, node).unwrap(), folder)
}

fn every_call(shared_memory: bool) {
    let (running, _folder) = both();
    let store = connect(&running.master_address().unwrap(), shared_memory);
    let path = if shared_memory { Path::Shared } else { Path::Stream };
    for (n, len) in LENGTHS.into_iter().enumerate() {
        let (name, n) = (format!("k{len}"), n as u32);
        let name = name.as_bytes();
        let value = stamped(name, n, len);
        assert_eq!(store.put(name, &value).unwrap(), Stored::New);
        assert_eq!(store.put(name, b"other").unwrap(), Stored::AlreadyThere);
        assert_eq!(store.path(name).unwrap(), Some(path));
        judge(name, n, len, &store.get(name).unwrap().unwrap());
        let mut buffer = vec![0; len + 3];
        assert_eq!(store.get_into(name, &mut buffer).unwrap(), Some(len));
        judge(name, n, len, &buffer[..len]);
        let view = store.view(name).unwrap().unwrap();
        assert_eq!(view.is_in_place(), shared_memory);
        judge(name, n, len, &view);
        assert_eq!(store.size(name).unwrap(), Some(len as u64));
        assert!(store.exists(name).unwrap());
        assert!(store.remove(name, false).unwrap());
        assert!(!store.remove(name, false).unwrap());
        assert_eq!(store.get(name).unwrap(), None);
        assert!(store.view(name).unwrap().is_none());
        // The view outlives the object, and another one comes under its key.
        assert_eq!(store.put(name, &stamped(name, n + 100, len)).unwrap(), Stored::New);
        judge(name, n, len, &view);
        judge(name, n + 100, len, &store.get(name).unwrap().unwrap());
    }
    batches(&store);
    running.master().unwrap().audit().unwrap();
    let stat = store.stat().unwrap();
    assert_eq!((stat.nodes, stat.objects as usize, stat.open_puts), (1, LENGTHS.len(), 0));
    until("views that were dropped are unpinned", Duration::from_secs(1), || {
        running.node().unwrap().segments().all().iter().all(|segment| segment.pins() == 0)
    });
}

/// Larger than one frame takes, with bad keys in between.
fn batches(store: &Store) {
    let names: Vec<Vec<u8>> = (0..5000).map(|n| format!("b/{n}").into_bytes()).collect();
    let values: Vec<Vec<u8>> = (0..5000).map(|n| stamped(&names[n], n as u32, n % 700)).collect();
    let mut items: Vec<(&[u8], &[u8])> =
        names.iter().zip(&values).map(|(name, value)| (&name[..], &value[..])).collect();
    items.insert(4200, (b"", b"no key"));
    for (n, stored) in store.put_batch(&items).into_iter().enumerate() {
        match stored {
            Ok(stored) => assert!(n != 4200 && stored == Stored::New),
            Err(error) => assert!(n == 4200 && error.advice() == Advice::GiveUp, "{n}: {error}"),
        }
    }
    let mut asked: Vec<&[u8]> = names.iter().map(|name| &name[..]).collect();
    asked.insert(17, b"missing");
    for (n, found) in store.get_batch(&asked).into_iter().enumerate() {
        match (found.unwrap(), n) {
            (None, 17) => {}
            (Some(value), n) => {
                let at = if n < 17 { n } else { n - 1 };
                judge(&names[at], at as u32, at % 700, &value);
            }
            (None, n) => panic!("{n} is missing"),
        }
    }
    let (mut listed, mut cursor) = (BTreeSet::new(), 0);
    loop {
        let page = store.list(b"b/", cursor, 500).unwrap();
        listed.extend(page.entries.into_iter().map(|entry| entry.key.as_bytes().to_vec()));
        match page.next {
            Some(next) => cursor = next,
            None => break,
        }
    }
    assert_eq!(listed, names.iter().cloned().collect());
    let there = store.exists_batch(&asked).unwrap();
    assert!(there.iter().enumerate().all(|(n, there)| *there.as_ref().unwrap() == (n != 17)));
    let removed = store.remove_batch(&asked, false).unwrap();
    assert!(removed.iter().enumerate().all(|(n, gone)| *gone.as_ref().unwrap() == (n != 17)));
    assert_eq!(store.list(b"b/", 0, 10).unwrap().entries, []);
}

#[test]
fn every_call_over_shared_memory() {
    every_call(true);
}

#[test]
fn every_call_over_tcp() {
    every_call(false);
}

fn three() -> (Running, Vec<Running>, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let master = run_master(master()).unwrap();
    let address = master.master_address().unwrap();
    let nodes = ["a", "b", "c"].map(|name| run_node(node(name, &address, folder.path())).unwrap());
    (master, nodes.into(), folder)
}

fn near(store: &Store, node: &str) -> PutConfig {
    PutConfig { preferred: vec![segment(node)], ..store.put_config() }
}

#[test]
fn three_nodes_hold_two_copies_each() {
    let (master, nodes, _folder) = three();
    let store = connect(&master.master_address().unwrap(), true);
    let config = PutConfig { replicas: 2, ..store.put_config() };
    for n in 0..60_u32 {
        let name = format!("r/{n}");
        let len = n as usize * 3000;
        let value = stamped(name.as_bytes(), n, len);
        assert_eq!(
            store.put_parts(name.as_bytes(), &[&value], &config).unwrap(),
            Stored::New,
            "{name}"
        );
        judge(name.as_bytes(), n, len, &store.get(name.as_bytes()).unwrap().unwrap());
    }
    let stat = store.stat().unwrap();
    assert_eq!((stat.nodes, stat.objects), (3, 60));
    assert_eq!(stat.segments.iter().map(|row| row.objects).sum::<u64>(), 120);
    assert!(stat.segments.iter().all(|row| row.objects > 10), "{:?}", stat.segments);
    let page = store.list(b"r/", 0, 100).unwrap();
    assert!(page.entries.len() == 60 && page.entries.iter().all(|entry| entry.replicas == 2));
    let too_many = PutConfig { replicas: 4, ..store.put_config() };
    let error = store.put_parts(b"x", &[b"v"], &too_many).unwrap_err();
    assert!(error.to_string().contains("3 nodes"), "{error}");
    // A node that leaves in good order takes its copies along; the others serve.
    let mut nodes = nodes.into_iter();
    nodes.next().unwrap().stop();
    for n in 0..60_u32 {
        let name = format!("r/{n}");
        let found = patiently(|| store.get(name.as_bytes())).unwrap();
        judge(name.as_bytes(), n, n as usize * 3000, &found);
    }
    assert_eq!(store.stat().unwrap().nodes, 2);
    master.master().unwrap().audit().unwrap();
}

/// C4: a get that starts after a remove has returned never sees the old value, whatever locators
/// the client remembers, and a put elsewhere is found.
#[test]
fn a_cached_locator_never_brings_an_old_value_back() {
    let (master, _nodes, _folder) = three();
    let address = master.master_address().unwrap();
    let writer = connect(&address, true);
    let readers = [connect(&address, true), connect(&address, false)];
    for n in 0..60_u32 {
        let len = [900, 50_000, 1_200_000][n as usize % 3];
        let config = near(&writer, ["a", "b", "c"][n as usize / 2 % 3]);
        let value = stamped(b"k", n, len);
        assert_eq!(writer.put_parts(b"k", &[&value], &config).unwrap(), Stored::New);
        for reader in &readers {
            // From the master, then from the reader's own memory of where it is.
            for _ in 0..2 {
                judge(b"k", n, len, &reader.get(b"k").unwrap().unwrap());
            }
            let found = reader.get_batch(&[b"k", b"other", b"k"]);
            judge(b"k", n, len, found[0].as_ref().unwrap().as_ref().unwrap());
            judge(b"k", n, len, found[2].as_ref().unwrap().as_ref().unwrap());
        }
        assert!(writer.remove(b"k", false).unwrap());
        for reader in readers.iter().chain([&writer]) {
            // A buffer that was too small for the old value, too: its length is gone as well.
            assert_eq!(reader.get_into(b"k", &mut [0; 10]).unwrap(), None, "round {n}");
            assert_eq!(reader.get(b"k").unwrap(), None);
            assert!(reader.view(b"k").unwrap().is_none());
        }
    }
    assert!(readers.iter().all(|reader| reader.counts().stale > 0));
    assert!(readers.iter().all(|reader| reader.counts().corrupt == 0));
}

/// Several clients over both paths, pools that are too small, two copies each; every answer judged.
#[test]
fn many_clients_are_judged() {
    let folder = tempfile::tempdir().unwrap();
    let master = run_master(master()).unwrap();
    let address = master.master_address().unwrap();
    let small = |name| mooncrate::NodeOptions {
        segment_bytes: 4 << 20,
        ..node(name, &address, folder.path())
    };
    let _nodes = ["a", "b"].map(|name| run_node(small(name)).unwrap());
    let rig = Judge::default();
    let end = boottime().deadline_in(Duration::from_secs(3));
    std::thread::scope(|scope| {
        for client in 0..4_u64 {
            let (rig, address) = (&rig, &address);
            scope.spawn(move || {
                let store = connect(address, client % 2 == 0);
                let mut rng = Rng::new(client);
                let mut view = None;
                while !end.passed(boottime()) {
                    let name = format!("j/{}", rng.below(200)).into_bytes();
                    let replicas = 1 + rng.below(2) as u8;
                    let config = PutConfig { replicas, ..store.put_config() };
                    match rng.below(8) {
                        0..3 => {
                            let len = 64 << rng.below(15);
                            let stored = rig
                                .put(&name, len, |value| store.put_parts(&name, &[value], &config));
                            allowed(stored);
                        }
                        3..6 => allowed(rig.get(&name, || store.get(&name))),
                        6 => view = rig.get(&name, || store.view(&name)).unwrap_or(None),
                        _ => drop(rig.remove(&name, || store.remove(&name, false))),
                    }
                }
                drop(view);
            });
        }
    });
    assert_eq!(rig.violations(), Vec::<String>::new());
    let counts = rig.counts();
    assert!(counts.hits > 100 && counts.puts > 100 && counts.removes > 20, "{counts:?}");
    let stat = connect(&address, true).stat().unwrap();
    assert!(stat.counters.evicted > 0, "{stat:?}");
    master.master().unwrap().audit().unwrap();
}

/// Nothing failed in this cluster, so only "not now" is an excuse.
fn allowed<T>(answer: Result<T, Error>) {
    if let Err(error) = answer {
        assert!(matches!(error.advice(), Advice::Retry { .. }), "{error}");
    }
}

/// The counts of a client add up to what it did, path by path.
#[test]
fn clients_count_what_they_did_by_path() {
    let (running, _folder) = both();
    let at = running.master_address().unwrap();
    for shared_memory in [true, false] {
        let store = connect(&at, shared_memory);
        let name = format!("counted/{shared_memory}").into_bytes();
        assert_eq!(store.put(&name, &vec![7; 50_000]).unwrap(), Stored::New);
        assert_eq!(store.put(&name, b"other").unwrap(), Stored::AlreadyThere);
        store.get(&name).unwrap().unwrap();
        store.view(&name).unwrap().unwrap();
        store.get_batch(&[&name, b"absent"]);
        assert_eq!(store.get(b"absent").unwrap(), None);
        let counts = store.counts();
        let by_path = (counts.local, counts.shared, counts.stream);
        assert_eq!(by_path, if shared_memory { (0, 3, 0) } else { (0, 0, 3) });
        assert_eq!((counts.hits(), counts.misses, counts.cached), (3, 2, 3), "{counts:?}");
        assert_eq!((counts.puts, counts.bytes_written), (1, 50_000));
        assert_eq!(counts.bytes_read, 150_000);
        assert_eq!((counts.fallbacks, counts.stale, counts.corrupt), (0, 0, 0));
    }
}

/// A life that its owner has ended is named by the master for some milliseconds more. Who reads meanwhile
/// hears of the miss, not of a riddle.
#[test]
fn a_life_that_its_owner_ended_is_a_miss() {
    let (running, _folder) = both();
    let address = running.master_address().unwrap();
    let (store, master) = (connect(&address, false), running.master().unwrap());
    for n in 0..5 {
        store.put(b"k", &stamped(b"k", n, 5000)).unwrap();
        let scope = master.scope(TenantId::DEFAULT);
        let found = scope.locate(0, &[b"k"], Deadline::NEVER).unwrap().pop().unwrap().unwrap();
        let Locator { segment, incarnation, slot, generation, .. } = found.replicas[0];
        let action = Action::Retire { free_after_ms: 60 };
        let order = Order { segment, incarnation, slot, generation, action };
        let owned = running.node().unwrap().segments().get(segment).unwrap();
        let epoch = scope.ping(Deadline::NEVER).unwrap();
        owned.execute(boottime(), epoch, &order).unwrap();
        assert!(scope.locate(0, &[b"k"], Deadline::NEVER).unwrap()[0].is_ok(), "not known yet");
        assert_eq!(store.get(b"k").unwrap(), None);
    }
}

/// Nobody proves anything here; whoever names a tenant has keys of its own, for a new master too.
#[test]
fn tenants_of_an_open_cluster_do_not_meet() {
    let mut fleet = Fleet::start(&["a"]);
    let of = |fleet: &Fleet, tenant: &str| {
        let tenant = TenantId::named(tenant).unwrap();
        let client = ClientConfig { call_time: CALL_TIME, tenant, ..ClientConfig::default() };
        let master = fleet.address.clone().into();
        Store::connect(ConnectOptions { master, client, ..ConnectOptions::default() }).unwrap()
    };
    let everybody = ["", "acme", "other"];
    for tenant in everybody {
        let store = of(&fleet, tenant);
        assert_eq!(store.get(b"k").unwrap(), None);
        assert_eq!(store.put(b"k", tenant.as_bytes()).unwrap(), Stored::New);
    }
    for with_state in [true, false] {
        for tenant in everybody {
            let got = patiently(|| of(&fleet, tenant).get(b"k"));
            assert_eq!(got.as_deref(), Some(tenant.as_bytes()));
        }
        fleet.restart_master(with_state);
        let store = of(&fleet, "");
        until("the index is whole", Duration::from_secs(30), || {
            store.stat().is_ok_and(|stat| !stat.rebuilding && stat.objects == 3)
        });
    }
    // Everything is told, and the last segment may still be put in order.
    assert!(patiently(|| of(&fleet, "acme").remove(b"k", true)));
    assert_eq!(of(&fleet, "acme").get(b"k").unwrap(), None);
    assert_eq!(of(&fleet, "other").get(b"k").unwrap().as_deref(), Some(&b"other"[..]));
    fleet.audit();
}
