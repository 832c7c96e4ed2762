//! Stamped values, stores with disks, and waiting.

use mooncrate::{CatalogConfig, ClientConfig, EmbeddedOptions, Error, SsdConfig, Store};
use mooncrate_check::{PutId, payload};
use mooncrate_core::catalog::Offload;
use mooncrate_core::key;
use mooncrate_wire::clock::boottime;
use std::path::Path;
use std::time::Duration;

pub(crate) const KIB: usize = 1 << 10;
pub(crate) const MIB: usize = 1 << 20;
/// Generous: the machine may be busy, and nothing is measured.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

pub(crate) fn name(n: u32) -> Vec<u8> {
    format!("block/{n}").into_bytes()
}

pub(crate) fn value(n: u32, len: usize) -> Vec<u8> {
    let mut value = vec![0; len];
    payload::fill(&mut value, PutId::new(1, 1, n + 1), key::hash(&name(n)));
    value
}

/// A wrong byte says whose it is.
pub(crate) fn judge(n: u32, found: &[u8]) {
    payload::examine_as(found, PutId::new(1, 1, n + 1), key::hash(&name(n)))
        .unwrap_or_else(|bad| panic!("value {n}: {bad:?}"));
}

pub(crate) fn catalog(offload: Offload) -> CatalogConfig {
    CatalogConfig { offload, ..CatalogConfig::default() }
}

pub(crate) fn disk(folder: &Path, mib: u64) -> SsdConfig {
    SsdConfig::new(folder.join("ssd"), mib << 20)
}

pub(crate) fn embedded(ssd: Vec<SsdConfig>, memory: usize, offload: Offload) -> Store {
    let client = ClientConfig { call_time: Duration::from_secs(20), ..ClientConfig::default() };
    let options = EmbeddedOptions {
        segment_bytes: memory as u64,
        ssd,
        catalog: catalog(offload),
        client,
        ..EmbeddedOptions::default()
    };
    let store = Store::embedded(options).unwrap();
    until("the index is rebuilt", || !store.stat().unwrap().rebuilding);
    store
}

/// Puts with patience: a full memory says Busy until the disk has taken something.
pub(crate) fn put(store: &Store, n: u32, len: usize) {
    let value = value(n, len);
    let end = boottime().deadline_in(PATIENCE);
    loop {
        match store.put(&name(n), &value) {
            Ok(_) => return,
            Err(error) => assert!(!end.passed(boottime()), "value {n}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until `done`, or fails.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = boottime().deadline_in(PATIENCE);
    while !done() {
        assert!(!end.passed(boottime()), "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Replicas on disks, as the master counts them.
pub(crate) fn on_disks(store: &Store) -> u64 {
    let stat = store.stat().unwrap();
    let disk = |row: &&mooncrate::SegmentRow| row.offer.medium == mooncrate_core::plan::Medium::Ssd;
    stat.segments.iter().filter(disk).map(|row| row.objects).sum()
}

/// Copies that disks have made since the leader began: each is durable.
pub(crate) fn offloaded(store: &Store) -> u64 {
    store.stat().unwrap().counters.offloaded
}

/// What was found of so many values; wrong bytes end the test.
pub(crate) fn count(store: &Store, values: u32) -> u32 {
    let found = |n: &u32| match store.get(&name(*n)) {
        Ok(Some(value)) => {
            judge(*n, &value);
            true
        }
        Ok(None) => false,
        Err(error) => panic!("value {n}: {}", describe(&error)),
    };
    (0..values).filter(found).count() as u32
}

fn describe(error: &Error) -> String {
    format!("{error} ({error:?})")
}
