//! Reads that ask nobody count for the life of what they read.
//!
//! A client that remembers where a value is reads it in shared memory, and no server sees that. The values
//! that were read most were evicted first: told was one read in 64, so most values were never told of, and
//! every policy evicted in the order of the puts.
//!
//! A client that holds what it reads, as the drop-in does, asked the master at each read, though the hold of the
//! read before lasted still.
//!
//! A value that is replaced all the time is still read: each read beside a loop of upserts gets a value, and
//! never an older one than the read before it. Readers used to pause longer and longer while the value moved,
//! and gave up after half a second.

use crate::fleet::{CALL_TIME, Fleet, connect, judge, master, node, stamped, until};
use mooncrate::{
    CatalogConfig, ClientConfig, ConnectOptions, MappedMemory, MasterOptions, PutConfig, Store,
    run_both, run_master, run_node,
};
use mooncrate_core::evict::PolicyKind;
use mooncrate_wire::clock::boottime;
use rustix::process::Signal;
use std::time::Duration;

const LEN: usize = 64 << 10;
/// More than any machine needs.
const TIME: Duration = Duration::from_mins(1);
const HOT: u32 = 50;
/// Two and a half times what the memory of the node holds.
const ROUNDS: u32 = 50;
const COLD_PER_ROUND: u32 = 25;
/// So that a fast machine does not turn the memory over between two reports of a client, which are 10 ms
/// apart. A slow one turns it over more slowly.
const PAUSE: Duration = Duration::from_millis(4);

fn name(n: u32) -> String {
    format!("hot/{n}")
}

/// Misses among the reads of the hot values, while another client puts cold ones.
fn misses(policy: PolicyKind, shared_memory: bool) -> u32 {
    let folder = tempfile::tempdir().unwrap();
    let options = master();
    let catalog = CatalogConfig { policy, ..options.catalog.clone() };
    let options = MasterOptions { catalog, ..options };
    let running = run_both(options, node("a", &crate::fleet::any_port(), folder.path())).unwrap();
    let address = running.master_address().unwrap();
    let (reader, writer) = (connect(&address, shared_memory), connect(&address, true));
    for n in 0..HOT {
        writer.put(name(n).as_bytes(), &stamped(name(n).as_bytes(), n, LEN)).unwrap();
    }
    let mut missed = 0;
    for round in 0..ROUNDS {
        missed += (0..HOT).filter(|n| !read(&reader, *n)).count() as u32;
        for n in 0..COLD_PER_ROUND {
            let cold = format!("cold/{round}/{n}");
            writer.put(cold.as_bytes(), &vec![7; LEN]).unwrap();
        }
        std::thread::sleep(PAUSE);
    }
    let stat = writer.stat().unwrap();
    assert!(stat.counters.evicted > u64::from(ROUNDS * COLD_PER_ROUND) / 2, "{stat:?}");
    if missed == 0 {
        // All but the first reads were of remembered places.
        assert_eq!(reader.counts().cached, u64::from(HOT * (ROUNDS - 1)));
    }
    missed
}

/// Whether the value is there; if so, it is the right one.
fn read(store: &Store, n: u32) -> bool {
    let found = store.get(name(n).as_bytes()).unwrap();
    if let Some(found) = &found {
        judge(name(n).as_bytes(), n, LEN, found);
    }
    found.is_some()
}

#[test]
fn what_is_read_most_stays() {
    for policy in [PolicyKind::Lru, PolicyKind::Density] {
        for shared_memory in [true, false] {
            let missed = misses(policy, shared_memory);
            let reads = HOT * ROUNDS;
            assert!(
                missed <= reads / 100,
                "{policy}, shared memory {shared_memory}: {missed} of {reads} hot reads missed"
            );
        }
    }
}

/// Values that a writer stores under one key, each over the one before.
const UPSERTS: u32 = 3_000;
const UPSERT_LEN: usize = 4 << 10;

/// Reads beside a loop of upserts, until that ends. The first word of a value is its number.
fn read_beside_upserts(reader: &Store, writer: &Store, batch: bool) {
    let upsert = PutConfig { upsert: true, ..writer.put_config() };
    let put = |n: u32| {
        let mut value = vec![n as u8; UPSERT_LEN];
        value[..4].copy_from_slice(&n.to_le_bytes());
        writer.put_parts(b"k", &[&value], &upsert).unwrap();
    };
    put(0);
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| (1..=UPSERTS).for_each(put));
        let (mut last, mut reads) = (0, 0);
        while !writing.is_finished() {
            let found =
                if batch { reader.get_batch(&[b"k"]).pop().unwrap() } else { reader.get(b"k") };
            let value = found.unwrap().expect("there is a value at every moment");
            let n = u32::from_le_bytes(value[..4].try_into().unwrap());
            assert!(n >= last, "{n} after {last}");
            assert!(value[4..].iter().all(|byte| *byte == n as u8), "a value of two puts");
            (last, reads) = (n, reads + 1);
        }
        assert!(reads > 0);
    });
}

#[test]
fn a_value_that_is_replaced_all_the_time_is_read() {
    let fleet = Fleet::start(&["a", "b"]);
    for shared_memory in [true, false] {
        let (reader, writer) =
            (connect(&fleet.address, shared_memory), connect(&fleet.address, true));
        read_beside_upserts(&reader, &writer, false);
        read_beside_upserts(&reader, &writer, true);
    }
    fleet.audit();
}

/// A value that is replaced makes what its readers remember stale. They find the new one in the memory that is
/// mapped: each such read mapped all of it again. When the node is gone, the next calls let go of its memory, which
/// they kept for as long as they lived.
#[test]
fn stale_places_map_nothing_and_a_node_that_is_gone_leaves_nothing_mapped() {
    let folder = tempfile::tempdir().unwrap();
    let running = run_master(master()).unwrap();
    let address = running.master_address().unwrap();
    let owner = run_node(node("a", &address, folder.path())).unwrap();
    let (reader, writer) = (connect(&address, true), connect(&address, true));
    let config = PutConfig { upsert: true, ..writer.put_config() };
    for n in 0..20 {
        writer.put_parts(b"k", &[&stamped(b"k", n, LEN)], &config).unwrap();
        judge(b"k", n, LEN, &reader.get(b"k").unwrap().unwrap());
    }
    // Some may have been told to be outdated before they were read.
    assert!(reader.counts().stale > 0, "{:?}", reader.counts());
    let (maps, mounts, bytes) = (1, 1, 32 << 20);
    assert_eq!(reader.mapped(), MappedMemory { maps, mounts, bytes });
    owner.stop();
    until("its memory is let go of", Duration::from_mins(1), || {
        let _ = reader.exists(b"another");
        reader.mapped().bytes == 0
    });
    assert_eq!(reader.mapped(), MappedMemory { maps, mounts: 0, bytes: 0 });
}

/// A cluster whose holds last for so long: one that holds what it reads, and another client.
fn holding(lease_ttl: Duration) -> (tempfile::TempDir, mooncrate::Running, Store, Store) {
    let folder = tempfile::tempdir().unwrap();
    let options = master();
    let catalog = CatalogConfig { lease_ttl, ..options.catalog.clone() };
    let options = MasterOptions { catalog, ..options };
    let running = run_both(options, node("a", &crate::fleet::any_port(), folder.path())).unwrap();
    let address = running.master_address().unwrap();
    let client = ClientConfig { holds: true, ..ClientConfig::default() };
    let holder = ConnectOptions { master: address.clone().into(), client, ..Default::default() };
    (folder, running, Store::connect(holder).unwrap(), connect(&address, true))
}

#[test]
fn a_hold_that_lasts_is_not_asked_for_again() {
    let (_folder, _running, holder, other) = holding(Duration::from_mins(10));
    other.put(b"k", &stamped(b"k", 1, LEN)).unwrap();
    for _ in 0..10 {
        judge(b"k", 1, LEN, &holder.get(b"k").unwrap().unwrap());
        assert!(holder.exists(b"k").unwrap());
    }
    // All but the first, and but those that found that it is time to tell the master of the others.
    let cached = holder.counts().cached;
    assert!((10..20).contains(&cached), "{cached} of 20 calls asked nobody");
    assert!(other.remove(b"k", false).is_err(), "it is held");
    assert!(other.remove(b"k", true).unwrap());
    assert!(!holder.exists(b"k").unwrap());
    assert_eq!(holder.get(b"k").unwrap(), None);
    // What it wrote itself nobody has held for it yet: it asks once.
    holder.put(b"own", &stamped(b"own", 2, LEN)).unwrap();
    let before = holder.counts().cached;
    assert!(holder.exists(b"own").unwrap());
    assert_eq!(holder.counts().cached, before);
    assert!(other.remove(b"own", false).is_err(), "it is held");
    until("it asks nobody", TIME, || {
        assert!(holder.exists(b"own").unwrap());
        holder.counts().cached > before
    });
}

#[test]
fn a_hold_that_is_half_over_is_asked_for_again() {
    let hold = Duration::from_millis(20);
    let (_folder, _running, holder, other) = holding(hold);
    other.put(b"k", &stamped(b"k", 1, LEN)).unwrap();
    for _ in 0..5 {
        judge(b"k", 1, LEN, &holder.get(b"k").unwrap().unwrap());
        std::thread::sleep(hold / 2);
    }
    assert_eq!(holder.counts().cached, 0);
}

/// Whoever asks often whether a key is there makes nothing hot and keeps nothing; who holds what it finds does.
#[test]
fn to_ask_whether_a_key_is_there_is_no_read() {
    let fleet = Fleet::start(&["a"]);
    let store = connect(&fleet.address, true);
    store.put(b"k", &stamped(b"k", 1, LEN)).unwrap();
    judge(b"k", 1, LEN, &store.get(b"k").unwrap().unwrap());
    let read = store.counts().cached;
    until("its memory is mapped", TIME, || store.exists_near(&[b"k"])[0]);
    for _ in 0..10 {
        assert!(store.exists(b"k").unwrap());
    }
    assert_eq!(store.counts().cached, read);
}

/// The master's answer to "does this key exist" names the place of the value, which the client remembers, and its
/// memory is mapped: the next question about the key and the first read of it ask nobody, also of a client that has
/// read nothing yet.
#[test]
fn existence_that_was_asked_for_is_remembered() {
    let fleet = Fleet::start(&["a"]);
    let (store, other) = (connect(&fleet.address, true), connect(&fleet.address, true));
    other.put(b"k", &stamped(b"k", 1, LEN)).unwrap();
    assert!(!store.exists_near(&[b"k"])[0], "its place is not known");
    until("it is seen", TIME, || {
        assert!(store.exists(b"k").unwrap());
        store.exists_near(&[b"k"])[0]
    });
    until("its length is seen", TIME, || {
        store.lengths_near(&[b"k"]) == [Some(LEN as u64)] || !store.exists(b"k").unwrap()
    });
    let sized = connect(&fleet.address, true);
    until("its length is seen by another client", TIME, || {
        assert_eq!(sized.size(b"k").unwrap(), Some(LEN as u64));
        sized.lengths_near(&[b"k"]) == [Some(LEN as u64)]
    });
    let before = store.counts().cached;
    judge(b"k", 1, LEN, &store.get(b"k").unwrap().unwrap());
    assert_eq!(store.counts().cached, before + 1, "its first read asks nobody");
    assert!(other.remove(b"k", true).unwrap());
    assert!(!store.exists(b"k").unwrap());
    assert_eq!(store.size(b"k").unwrap(), None);
}

/// The master has answered before memory is mapped, so an owner that stands still keeps nobody who only asks
/// whether a key exists.
#[test]
fn existence_is_answered_beside_a_stopped_owner() {
    let fleet = Fleet::start(&["a"]);
    let other = connect(&fleet.address, true);
    other.put(b"k", &stamped(b"k", 1, LEN)).unwrap();
    let store = connect(&fleet.address, true);
    fleet.nodes[0].stop();
    let start = boottime();
    // One call that waited for the owner would use up all of this.
    while boottime().since(start) < CALL_TIME / 4 {
        let asked = boottime();
        assert!(store.exists(b"k").unwrap());
        assert_eq!(store.size(b"k").unwrap(), Some(LEN as u64));
        let took = boottime().since(asked);
        assert!(took < CALL_TIME / 2, "it waited for the owner: {took:?}");
    }
    fleet.nodes[0].signal(Signal::CONT);
    until("it is seen", TIME, || store.exists(b"k").unwrap() && store.exists_near(&[b"k"])[0]);
}

/// Calls that wait for nobody: they see what is remembered and mapped, and have no answer for anything else.
#[test]
fn what_is_near_is_read_without_waiting() {
    let fleet = Fleet::start(&["a"]);
    let (near, far) = (connect(&fleet.address, true), connect(&fleet.address, false));
    let mut target = vec![0; LEN];
    far.put(b"k", &stamped(b"k", 1, LEN)).unwrap();
    assert!(!near.exists_near(&[b"k"])[0], "its place is not known");
    assert_eq!(near.get_into_near(b"k", LEN, &mut target), None);
    for store in [&near, &far] {
        judge(b"k", 1, LEN, &store.get(b"k").unwrap().unwrap());
    }
    // Now and then such a call leaves it to an ordinary one to tell the master of the reads.
    until("it is seen", TIME, || near.exists_near(&[b"k"])[0] || !near.exists(b"k").unwrap());
    until("it is read", TIME, || {
        near.get_into_near(b"k", LEN, &mut target).is_some() || !near.exists(b"k").unwrap()
    });
    judge(b"k", 1, LEN, &target);
    until("it is read into new memory", TIME, || {
        let read = near.get_near(b"k", LEN, |len| vec![0; len]);
        read.is_some_and(|read| {
            judge(b"k", 1, LEN, &read);
            true
        }) || !near.exists(b"k").unwrap()
    });
    assert_eq!(near.get_into_near(b"k", LEN - 1, &mut target), None, "it is larger");
    assert_eq!(near.get_into_near(b"k", LEN, &mut target[1..]), None, "it has no room");
    assert!(!far.exists_near(&[b"k"])[0], "its memory is not mapped");
    assert_eq!(far.get_into_near(b"k", LEN, &mut target), None);
    assert!(far.remove(b"k", true).unwrap());
    assert!(!near.exists_near(&[b"k"])[0]);
    assert_eq!(near.get_into_near(b"k", LEN, &mut target), None);
}
