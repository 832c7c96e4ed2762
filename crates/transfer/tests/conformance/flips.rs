//! Fault row 13: bits flip on the way. A proxy between transport and owner changes one bit of one
//! direction; whatever it hits, no caller gets wrong bytes and no owner publishes them.

use crate::rig::{Rig, Value};
use mooncrate_core::rng::Rng;
use mooncrate_mem::clock::boottime;
use mooncrate_transfer::{Path, Read, Stream, TransferError, Transport};
use mooncrate_wire::{Address, PoolConfig};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

const TRIALS: u64 = 150;

#[derive(Clone, Copy, PartialEq)]
enum Way {
    ToOwner,
    ToCaller,
}

/// Carries one connection, with one bit changed.
struct Proxy {
    address: Address,
    /// Bytes carried, to the owner and to the caller.
    carried: Arc<[AtomicU64; 2]>,
    thread: JoinHandle<()>,
}

impl Proxy {
    /// `flip`: in which direction, and which bit of it.
    fn start(owner: &Address, flip: Option<(Way, u64)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().into();
        let carried: Arc<[AtomicU64; 2]> = Arc::default();
        let (counts, owner) = (Arc::clone(&carried), owner.to_string());
        let thread = Builder::new().spawn(move || {
            let caller = listener.accept().unwrap().0;
            let owner = TcpStream::connect(owner).unwrap();
            let bit = |way| flip.filter(|(flipped, _)| *flipped == way).map(|(_, bit)| bit);
            std::thread::scope(|scope| {
                scope.spawn(|| pump(&caller, &owner, &counts[0], bit(Way::ToOwner)));
                pump(&owner, &caller, &counts[1], bit(Way::ToCaller));
            });
        });
        Self { address, carried, thread: thread.unwrap() }
    }

    fn carried(self, way: Way) -> u64 {
        self.thread.join().unwrap();
        self.carried[usize::from(way == Way::ToCaller)].load(Ordering::Relaxed)
    }
}

fn pump(mut from: &TcpStream, mut to: &TcpStream, carried: &AtomicU64, bit: Option<u64>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let first = carried.fetch_add(count as u64, Ordering::Relaxed);
        if let Some(bit) = bit
            && let Some(at) = (bit / 8).checked_sub(first).filter(|at| *at < count as u64)
        {
            buffer[at as usize] ^= 1 << (bit % 8);
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}

fn stream(proxy: &Proxy) -> Stream {
    Stream::new(proxy.address.clone(), &PoolConfig::default())
}

fn read(stream: &Stream, value: &Value) -> Result<Vec<u8>, TransferError> {
    let len = value.bytes.len() as u64;
    let mut into = vec![0; len as usize];
    let mut reads = [Read::new(value.locator, len, value.seal, &mut into)];
    stream.read(&mut reads, boottime().deadline_in(Duration::from_secs(2)));
    let [read] = reads;
    read.result.map(|()| into)
}

fn put(stream: &Stream, value: &Value) -> Result<(), TransferError> {
    let deadline = boottime().deadline_in(Duration::from_secs(2));
    stream.write(&value.write(&[&value.bytes]), deadline)?.signal(deadline)
}

#[test]
fn a_read_over_a_bad_wire_is_an_error() {
    let rig = Rig::new(Path::Stream);
    let value = rig.stored(5000);
    for way in [Way::ToCaller, Way::ToOwner] {
        let clean = Proxy::start(&rig.tcp, None);
        value.judge(&read(&stream(&clean), &value).unwrap()).unwrap();
        let bytes = clean.carried(way);
        let mut rng = Rng::new(13);
        for _ in 0..TRIALS {
            let bit = rng.below(bytes * 8);
            let proxy = Proxy::start(&rig.tcp, Some((way, bit)));
            let found = read(&stream(&proxy), &value);
            assert!(found.is_err(), "bit {bit} of {bytes} bytes went unnoticed");
            proxy.thread.join().unwrap();
        }
    }
    rig.until("all readers have left", crate::rig::HANG_UP, |s| s.pins() == 0);
}

#[test]
fn a_put_over_a_bad_wire_is_never_published_wrong() {
    let rig = Rig::new(Path::Stream);
    for way in [Way::ToOwner, Way::ToCaller] {
        let clean = Proxy::start(&rig.tcp, None);
        put(&stream(&clean), &rig.value(5000)).unwrap();
        let bytes = clean.carried(way);
        let mut rng = Rng::new(14);
        for _ in 0..TRIALS {
            let bit = rng.below(bytes * 8);
            let value = rig.value(5000);
            let proxy = Proxy::start(&rig.tcp, Some((way, bit)));
            let stored = put(&stream(&proxy), &value);
            assert!(stored.is_err(), "bit {bit} of {bytes} bytes went unnoticed");
            proxy.thread.join().unwrap();
            let ready = rig.read_value(&value);
            match way {
                // The owner saw the damage, so there is no such life.
                Way::ToOwner => assert!(ready.unwrap_err().is_stale(), "bit {bit}"),
                // Only its answer was lost: the value may be there, and then it is right.
                Way::ToCaller => drop(ready),
            }
        }
    }
    rig.until("no put is left open", crate::rig::HANG_UP, |s| s.stats().writing == 0);
    assert_eq!(rig.segment.stats().failed, 0);
}
