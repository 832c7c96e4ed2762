//! More callers than links: they wait in line, and nobody who holds a link waits for another one.

use crate::rig::{Rig, Value, soon};
use mooncrate_transfer::{Path, Read, Stream, Transport, Write};
use mooncrate_wire::PoolConfig;

fn one_link(rig: &Rig) -> Stream {
    Stream::new(rig.tcp.clone(), &PoolConfig { links_max: 1, ..PoolConfig::default() })
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
