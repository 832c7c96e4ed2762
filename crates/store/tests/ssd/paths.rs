//! A server with a disk, read by clients over shared memory and over TCP.

use crate::rig::{KIB, MIB, count, disk, judge, name, offloaded, put, until, value};
use mooncrate::{
    Address, ClientConfig, ConnectOptions, MasterOptions, NodeOptions, Path, RangeInto, Running,
    Store, TierConfig, run_both, run_node,
};
use mooncrate_core::catalog::Offload;
use std::time::Duration;

fn any_port() -> Address {
    Address::Tcp("127.0.0.1:0".into())
}

fn server(folder: &std::path::Path, memory: usize, mib: u64) -> Running {
    let master = MasterOptions {
        listen: any_port(),
        catalog: crate::rig::catalog(Offload::Eager),
        ..MasterOptions::default()
    };
    let node = NodeOptions {
        listen: Some(any_port()),
        unix: Some(folder.join("node.sock")),
        segment_bytes: memory as u64,
        tier: TierConfig { disks: vec![disk(folder, mib)], ..TierConfig::default() },
        ..NodeOptions::default()
    };
    run_both(master, node).unwrap()
}

fn connect(running: &Running, shared_memory: bool) -> Store {
    let client = ClientConfig { call_time: Duration::from_secs(20), ..ClientConfig::default() };
    let master = running.master_address().unwrap().into();
    Store::connect(ConnectOptions { master, shared_memory, client, ..ConnectOptions::default() })
        .unwrap()
}

/// Reads values of these lengths by every call there is.
pub(crate) fn read_all_ways(store: &Store, lens: &[usize]) {
    let names: Vec<Vec<u8>> = (0..lens.len() as u32).map(name).collect();
    for (n, len) in (0..).zip(lens) {
        let found = store.get(&name(n)).unwrap().unwrap();
        assert_eq!(found.len(), *len);
        judge(n, &found);
        let mut into = vec![0; *len];
        assert_eq!(store.get_into(&name(n), &mut into).unwrap(), Some(*len));
        judge(n, &into);
        let view = store.view(&name(n)).unwrap().unwrap();
        judge(n, &view);
        let whole = value(n, *len);
        let cuts = [(0, 1), (len / 2, 77), (MIB - 3, 9), (len - len.min(&5), 5), (0, *len)];
        let cuts: Vec<(usize, usize)> =
            cuts.into_iter().filter(|(start, bytes)| start + bytes <= *len).collect();
        let mut parts: Vec<Vec<u8>> = cuts.iter().map(|(_, bytes)| vec![0; *bytes]).collect();
        let mut ranges: Vec<RangeInto<'_>> = cuts
            .iter()
            .zip(&mut parts)
            .map(|((start, _), into)| RangeInto { start: *start as u64, into })
            .collect();
        let read = store.get_ranges(&name(n), &mut ranges).unwrap().unwrap();
        assert!(read.iter().all(Result::is_ok), "{n}: {read:?}");
        for ((start, bytes), part) in cuts.iter().zip(&parts) {
            assert!(whole[*start..start + bytes] == part[..], "{n}: {bytes} bytes from {start}");
        }
        let session = store.get_session(&name(n), Duration::from_secs(5)).unwrap().unwrap();
        let mut part = vec![0; (*len).min(3000)];
        let start = len - part.len();
        let into = &mut [RangeInto { start: start as u64, into: &mut part }];
        session.read_ranges(into).unwrap();
        assert!(whole[start..] == part[..], "{n}: a session");
    }
    let keys: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    for (n, found) in (0..).zip(store.get_batch(&keys)) {
        judge(n, &found.unwrap().unwrap());
    }
}

/// All calls over both paths, from a disk that was recovered: nothing of it is in memory.
#[test]
fn clients_read_a_disk_over_every_path() {
    let lens = [0, 1, 5000, 256 * KIB, MIB, 3 * MIB + 77, 20 * MIB + 1];
    let folder = tempfile::tempdir().unwrap();
    let running = server(folder.path(), 64 * MIB, 256);
    let store = connect(&running, true);
    for (n, len) in (0..).zip(lens) {
        put(&store, n, len);
    }
    until("all are on the disk", || offloaded(&store) == lens.len() as u64);
    drop(store);
    running.stop();
    for (shared, path) in [(true, Path::Shared), (false, Path::Stream)] {
        let running = server(folder.path(), 64 * MIB, 256);
        let store = connect(&running, shared);
        assert_eq!(store.path(&name(3)).unwrap(), Some(path));
        read_all_ways(&store, &lens);
        assert!(store.counts().disk > 0, "{:?}", store.counts());
        running.stop();
    }
}

/// More threads than the staging memory has room for: they wait, and all get what they want.
#[test]
fn many_readers_share_the_staging_memory() {
    let folder = tempfile::tempdir().unwrap();
    let values = 40;
    {
        let running = server(folder.path(), 128 * MIB, 256);
        let store = connect(&running, true);
        for n in 0..values {
            put(&store, n, 2 * MIB);
        }
        until("all are on the disk", || offloaded(&store) == u64::from(values));
    }
    let mut catalog = crate::rig::catalog(Offload::Eager);
    catalog.promote = false;
    let master = MasterOptions { listen: any_port(), catalog, ..MasterOptions::default() };
    let tier = TierConfig {
        disks: vec![disk(folder.path(), 256)],
        // The least there is.
        staging_bytes: 1,
        ..TierConfig::default()
    };
    let node = NodeOptions {
        listen: Some(any_port()),
        unix: Some(folder.path().join("node.sock")),
        segment_bytes: 8 << 20,
        tier,
        ..NodeOptions::default()
    };
    let running = run_both(master, node).unwrap();
    std::thread::scope(|scope| {
        for shared in [true, false, true, false] {
            let running = &running;
            scope.spawn(move || {
                let store = connect(running, shared);
                let names: Vec<Vec<u8>> = (0..values).map(name).collect();
                let keys: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
                for (n, found) in (0..).zip(store.get_batch(&keys)) {
                    judge(n, &found.unwrap().unwrap());
                }
            });
        }
    });
}

/// A node without a disk beside one that has it: its values go there, too, and come back from there.
#[test]
fn a_disk_serves_the_memory_of_other_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let running = server(folder.path(), 8 * MIB, 512);
    let other = run_node(NodeOptions {
        name: "other".into(),
        master: running.master_address().unwrap().into(),
        listen: Some(any_port()),
        unix: Some(folder.path().join("other.sock")),
        segment_bytes: 8 << 20,
        ..NodeOptions::default()
    })
    .unwrap();
    let store = connect(&running, true);
    let values = 200;
    for n in 0..values {
        put(&store, n, 256 * KIB);
    }
    until("all are on the disk", || offloaded(&store) == u64::from(values));
    assert_eq!(count(&store, values), values);
    assert_eq!(count(&connect(&running, false), values), values);
    drop(other);
    assert_eq!(count(&connect(&running, true), values), values, "after one node has left");
}

/// Values that are on the disk only and are read again come back into memory, each after three reads, and
/// a client that remembers their place on the disk learns of the copy in memory.
#[test]
fn what_is_read_from_the_disk_again_comes_back_into_memory() {
    let folder = tempfile::tempdir().unwrap();
    let running = server(folder.path(), 16 * MIB, 256);
    let (values, hot) = (300, 20);
    let store = connect(&running, true);
    for n in 0..values {
        put(&store, n, 256 * KIB);
    }
    until("all are on the disk", || offloaded(&store) == u64::from(values));
    let reader = connect(&running, true);
    // The oldest: memory holds the youngest.
    for _ in 0..3 {
        for n in 0..hot {
            judge(n, &reader.get(&name(n)).unwrap().unwrap());
        }
    }
    let promoted = || reader.stat().unwrap().counters.promoted;
    until("all that was read is promoted", || promoted() >= u64::from(hot));
    until("all are read from memory", || {
        let before = reader.counts().disk;
        for n in 0..hot {
            judge(n, &reader.get(&name(n)).unwrap().unwrap());
        }
        reader.counts().disk == before
    });
}
