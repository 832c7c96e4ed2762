//! Owners that stop answering: every call ends by its deadline, and says what it waited for (G9).

use crate::rig::{Rig, SEGMENT, Value, attached, soon};
use mooncrate_core::time::Deadline;
use mooncrate_core::{HostId, LeaderEpoch};
use mooncrate_mem::clock::boottime;
use mooncrate_transfer::{
    EngineConfig, Path, Read, Shared, Stream, TransferError, Transport, Write,
};
use mooncrate_wire::address::Bound;
use mooncrate_wire::{Address, CallError, Gate, HelloAck, Link, LinkConfig, LinkKind, PoolConfig};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_millis(250);
/// A busy machine may be late; a call without an end would be caught all the same.
const SLACK: Duration = Duration::from_millis(1500);

/// A listener that takes connections and then says nothing, or nothing after its hello.
struct Mute {
    address: Address,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Mute {
    fn listen(at: &Address, greets: bool) -> Self {
        let bound = Bound::listen(at).unwrap();
        let address = bound.address().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = Arc::clone(&stop);
        let thread = Builder::new().spawn(move || {
            let (mut sockets, mut links) = (Vec::new(), Vec::new());
            while !stopping.load(Ordering::Relaxed) {
                let taken: Option<OwnedFd> = match &bound {
                    Bound::Tcp(tcp) => tcp.accept().ok().map(|(socket, _)| socket.into()),
                    Bound::Unix(unix) => unix.accept().ok().map(|(socket, _)| socket.into()),
                    Bound::World(_) => unreachable!("this is no world"),
                };
                match taken {
                    Some(socket) if greets => links.push(greet(socket)),
                    Some(socket) => sockets.push(socket),
                    None => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        });
        Self { address, stop, thread: Some(thread.unwrap()) }
    }
}

pub(crate) fn greet(socket: OwnedFd) -> Link {
    let ack = |_: &_, version| HelloAck {
        version,
        name: "mute".into(),
        epoch: LeaderEpoch(0),
        host: HostId(0),
    };
    Link::accept(socket, LinkKind::Data, &LinkConfig::default(), &Gate::default(), soon(), ack)
        .unwrap()
        .link
}

impl Drop for Mute {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Runs a call with a deadline near by; it must fail because of it, and in time.
fn times_out<T>(what: &str, call: impl FnOnce(Deadline) -> Result<T, TransferError>) {
    let began = boottime();
    let Err(error) = call(began.deadline_in(PATIENCE)) else { panic!("{what}: answered") };
    let took = boottime().since(began);
    assert!(
        matches!(error, TransferError::Call(CallError::Deadline { .. })),
        "{what}: {error:?} after {took:?}"
    );
    assert!(took >= PATIENCE / 2 && took < PATIENCE + SLACK, "{what}: after {took:?}");
}

fn every_call_times_out(transport: &dyn Transport, rig: &Rig) {
    for len in [100, 100_000, 3 << 20] {
        let value = rig.value(len);
        times_out("read", |deadline| {
            let mut into = vec![0; len as usize];
            let mut reads = [Read::new(value.locator, len, value.seal, &mut into)];
            transport.read(&mut reads, deadline);
            let [read] = reads;
            read.result
        });
        times_out("put", |deadline| put(transport, &value, deadline));
    }
}

fn put(transport: &dyn Transport, value: &Value, end: Deadline) -> Result<(), TransferError> {
    transport.write(&value.write(&[&value.bytes]), end)?.signal(end)
}

#[test]
fn a_stream_gives_up_at_its_deadline() {
    let rig = Rig::new(Path::Local);
    for greets in [false, true] {
        let mute = Mute::listen(&"127.0.0.1:0".parse().unwrap(), greets);
        let stream = Stream::new(mute.address.clone(), &PoolConfig::default());
        every_call_times_out(&stream, &rig);
    }
}

#[test]
fn a_batch_has_a_deadline_as_a_whole() {
    let rig = Rig::new(Path::Local);
    let mute = Mute::listen(&"127.0.0.1:0".parse().unwrap(), true);
    let stream = Stream::new(mute.address.clone(), &PoolConfig::default());
    let value = rig.value(100);
    let mut buffers = vec![vec![0; 100]; 100];
    let mut reads: Vec<Read<'_>> =
        buffers.iter_mut().map(|b| Read::new(value.locator, 100, value.seal, b)).collect();
    let began = boottime();
    stream.read(&mut reads, began.deadline_in(PATIENCE));
    assert!(boottime().since(began) < PATIENCE + SLACK);
    // One names the cause; the others were not tried and say so. None is Ok.
    assert!(reads.iter().all(|read| read.result.is_err()));
    let first = reads[0].result.as_ref().unwrap_err();
    assert!(matches!(first, TransferError::Call(CallError::Deadline { .. })), "{first:?}");
}

/// A caller with somewhere else to go waits for a sign of life, not until its deadline: also for many values,
/// of which one names the cause.
#[test]
fn a_hasty_way_gives_up_on_silence() {
    let rig = Rig::new(Path::Local);
    for greets in [false, true] {
        let mute = Mute::listen(&"127.0.0.1:0".parse().unwrap(), greets);
        let stream = Stream::new(mute.address.clone(), &PoolConfig::default()).hasty(PATIENCE);
        let far = boottime().deadline_in(Duration::from_mins(1));
        times_out("read", |_| {
            let value = rig.value(3 << 20);
            let mut into = vec![0; 3 << 20];
            let mut reads = [Read::new(value.locator, 3 << 20, value.seal, &mut into)];
            stream.read(&mut reads, far);
            let [read] = reads;
            read.result
        });
        times_out("send", |_| {
            let values: Vec<Value> = (0..100).map(|n| rig.value(n * 1000)).collect();
            let pieces: Vec<[&[u8]; 1]> = values.iter().map(|v| [&v.bytes[..]]).collect();
            let writes: Vec<Write<'_>> =
                values.iter().zip(&pieces).map(|(value, pieces)| value.write(pieces)).collect();
            let mut results = stream.send(&writes, far).finish(far).into_iter();
            let first = results.next().unwrap();
            let untried = |one: Result<_, _>| matches!(one, Err(TransferError::NotTried));
            assert!(results.len() == 99 && results.all(untried));
            first
        });
    }
}

/// Shared memory is read without asking; what has to be asked ends in time.
#[test]
fn shared_memory_gives_up_at_its_deadline() {
    let rig = Rig::new(Path::Shared);
    let value = rig.stored(100_000);
    let len = value.bytes.len() as u64;
    let folder = tempfile::tempdir().unwrap();
    for greets in [false, true] {
        let mute = Mute::listen(&Address::Unix(folder.path().join("mute")), greets);
        let shared = Shared::new(mute.address.clone(), &EngineConfig::default());
        times_out("attach", |deadline| shared.attach(SEGMENT, deadline));
    }
    // A server that goes silent after it has shared its memory: its own socket, taken over.
    let Address::Unix(path) = &rig.unix else { unreachable!() };
    let shared = attached(&rig.unix);
    std::fs::remove_file(path).unwrap();
    let _mute = Mute::listen(&rig.unix, true);
    let fresh = rig.value(100_000);
    times_out("view", |end| shared.view(&value.locator, len, value.seal, end));
    // The link that attached is still there and still answered; the second put needs a new one.
    let pieces = [&fresh.bytes[..]];
    let held = shared.write(&fresh.write(&pieces), soon()).unwrap();
    let other = rig.value(100_000);
    times_out("put", |deadline| put(&*shared, &other, deadline));
    let mut into = vec![0; len as usize];
    let mut reads = [Read::new(value.locator, len, value.seal, &mut into)];
    shared.read(&mut reads, boottime().deadline_in(PATIENCE));
    reads[0].result.as_ref().unwrap();
    value.judge(&into).unwrap();
    drop(held);
}

/// Fault row 3: nobody listens where the owner was. With it went its memory, so there is nothing to
/// wait for: the caller hears it at once and can go on to the next copy. Data links used to try for
/// two seconds, as links to a master do, and no test had killed an owner and looked at the clock.
#[test]
fn an_owner_that_is_gone_is_noticed_at_once() {
    let rig = Rig::new(Path::Local);
    let value = rig.value(100);
    let gone = Bound::listen(&"127.0.0.1:0".parse().unwrap()).unwrap().address().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let nowhere = Address::Unix(folder.path().join("nobody"));
    for address in [gone, nowhere] {
        let stream = Stream::new(address.clone(), &PoolConfig::default());
        let mut into = vec![0; 100];
        let mut reads = [Read::new(value.locator, 100, value.seal, &mut into)];
        let began = boottime();
        stream.read(&mut reads, soon());
        let took = boottime().since(began);
        let error = reads[0].result.as_ref().unwrap_err();
        assert!(matches!(error, TransferError::Call(CallError::Io { .. })), "{error:?}");
        assert!(took < Duration::from_secs(1), "{address} after {took:?}");
        assert!(error.to_string().contains(&address.to_string()), "{error}");
    }
}
