//! More callers than links: they wait in line, and nobody who holds a link waits for another one.

use crate::far::engine_with;
use crate::rig::{Rig, SEGMENT, Value, soon};
use mooncrate_mem::clock::boottime;
use mooncrate_transfer::{
    EngineConfig, Path, Read, Shared, Stream, TransferError, Transport, Write,
};
use mooncrate_wire::{CallError, PoolConfig};
use std::time::Duration;

fn links(links_max: usize) -> PoolConfig {
    PoolConfig { links_max, ..PoolConfig::default() }
}

fn one_link(rig: &Rig) -> Stream {
    Stream::new(rig.tcp.clone(), &links(1))
}

/// Eight readers share one link. All but one were refused before, whatever time they had.
#[test]
fn readers_wait_for_a_link_that_others_use() {
    let rig = Rig::new(Path::Stream);
    let stream = one_link(&rig);
    let value = rig.stored(50_000);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let mut into = vec![0; value.bytes.len()];
                    let mut reads = [Read::new(value.locator, 50_000, value.seal, &mut into)];
                    stream.read(&mut reads, soon());
                    let [done] = reads;
                    done.result.unwrap();
                    value.judge(&into).unwrap();
                }
            });
        }
    });
}

/// A caller sends to two segments of one owner, as a batch of puts does, and there is one link. It must not wait
/// for the second one while it holds the first.
#[test]
fn who_holds_a_link_does_not_wait_for_another() {
    let rig = Rig::new(Path::Stream);
    let stream = one_link(&rig);
    let values: Vec<Value> = (0..3).map(|_| rig.value(5000)).collect();
    let pieces: Vec<[&[u8]; 1]> = values.iter().map(|value| [&value.bytes[..]]).collect();
    let writes: Vec<[Write<'_>; 1]> =
        values.iter().zip(&pieces).map(|(value, pieces)| [value.write(pieces)]).collect();
    let mut sent: Vec<_> = writes.iter().map(|writes| stream.send(writes, soon())).collect();
    let begun: Vec<bool> = sent.iter().map(|sent| sent.has_begun()).collect();
    assert_eq!(begun, [true, false, false]);
    for (sent, value) in sent.drain(..).zip(&values) {
        let published = sent.finish(soon());
        assert_eq!(*published[0].as_ref().unwrap(), value.seal);
    }
    for value in &values {
        rig.read_value(value).unwrap();
    }
}

/// The same on one host, where large values need a link to begin with, and lanes have values of both kinds. It
/// waited for itself here, until its deadline.
#[test]
fn who_holds_a_link_does_not_wait_to_store_directly() {
    let rig = Rig::new(Path::Local);
    let config = EngineConfig { links: links(1), ..EngineConfig::default() };
    let shared = Shared::new(rig.unix.clone(), &config);
    shared.attach(SEGMENT, soon()).unwrap();
    let lanes = [&[5000, 6000][..], &[100_000, 5000, 200_000], &[7000], &[90_000]];
    let values: Vec<Vec<Value>> =
        lanes.iter().map(|lane| lane.iter().map(|len| rig.value(*len)).collect()).collect();
    let pieces: Vec<Vec<[&[u8]; 1]>> =
        values.iter().map(|lane| lane.iter().map(|value| [&value.bytes[..]]).collect()).collect();
    let writes: Vec<Vec<Write<'_>>> = values
        .iter()
        .zip(&pieces)
        .map(|(lane, pieces)| lane.iter().zip(pieces).map(|(v, p)| v.write(p)).collect())
        .collect();
    let sent: Vec<_> = writes.iter().map(|lane| shared.send(lane, soon())).collect();
    let begun: Vec<bool> = sent.iter().map(|sent| sent.has_begun()).collect();
    assert_eq!(begun, [true, false, false, false]);
    for (sent, lane) in sent.into_iter().zip(&values) {
        let published = sent.finish(soon());
        assert_eq!(published.len(), lane.len());
        for (published, value) in published.iter().zip(lane) {
            assert_eq!(*published.as_ref().unwrap(), value.seal);
            rig.read_value(value).unwrap();
        }
    }
    // Whoever holds nothing stores at once, over one link.
    let alone = rig.value(100_000);
    let pieces = [&alone.bytes[..]];
    let writes = [alone.write(&pieces)];
    let sent = shared.send(&writes, soon());
    assert!(sent.has_begun());
    assert_eq!(*sent.finish(soon())[0].as_ref().unwrap(), alone.seal);
}

/// All links to an owner on this host are in use: that is no reason to go over the network from then on.
#[test]
fn a_crowd_at_the_socket_turns_nobody_to_the_network() {
    let rig = Rig::new(Path::Local);
    let value = rig.stored(5000);
    let none = engine_with(&rig, EngineConfig { links: links(0), ..EngineConfig::default() });
    for _ in 0..2 {
        let told = none.transport(&value.locator, boottime().deadline_in(Duration::from_millis(5)));
        assert!(matches!(told, Err(TransferError::Call(CallError::Busy { .. }))), "{told:?}");
    }
}
