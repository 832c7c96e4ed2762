//! Out of descriptors: the server pauses, does not spin, and goes on when there are some again. A
//! program of its own, because the limit is the process's.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use mooncrate_core::ids::LeaderEpoch;
use mooncrate_wire::address::Bound;
use mooncrate_wire::clock::boottime;
use mooncrate_wire::message::{Hello, Ping, Pong, Reply, Request, Role};
use mooncrate_wire::{Answer, Caller, Handler, Link, LinkConfig, LinkKind, serve_control};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

struct Pings;

impl Handler for Pings {
    fn epoch(&self) -> LeaderEpoch {
        LeaderEpoch(1)
    }
    fn handle(&self, _: Request<'_>, _: Caller<'_>) -> Answer {
        Answer::Now(Reply::Ping(Pong { epoch: LeaderEpoch(1) }))
    }
}

/// CPU time of the whole process.
fn busy() -> Duration {
    let t = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(t.tv_sec.try_into().unwrap(), t.tv_nsec.try_into().unwrap())
}

#[test]
fn accepting_pauses_without_descriptors_and_goes_on() {
    let bound = Bound::listen(&"127.0.0.1:0".parse().unwrap()).unwrap();
    let address = bound.address().unwrap();
    let (stop, stopped) = watch::channel(false);
    let server = std::thread::Builder::new().spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let serve = serve_control(bound, Arc::new(Pings), Arc::default(), stopped);
        runtime.unwrap().block_on(async { serve.await.unwrap() });
    });
    let hello = Hello::new(Role::Client, LinkKind::Control, "test");
    let within = |ms| boottime().deadline_in(Duration::from_millis(ms));
    let dial = |ms| Link::connect(&address, &hello, &LinkConfig::default(), within(ms));
    let mut first = dial(1000).unwrap();

    // A caller whose socket exists already, and then no descriptor left for the server's side.
    let before = getrlimit(Resource::Nofile);
    let caller = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    setrlimit(Resource::Nofile, Rlimit { current: Some(3), maximum: before.maximum }).unwrap();
    caller.connect(&address.resolve().unwrap()[0]).unwrap();
    let cpu = busy();
    std::thread::sleep(Duration::from_millis(500));
    let spent = busy().saturating_sub(cpu);
    assert!(spent < Duration::from_millis(100), "{spent:?} of 500 ms were spent spinning");
    assert!(first.call(&Request::Ping(Ping {}), within(1000)).is_ok(), "others are served");

    setrlimit(Resource::Nofile, before).unwrap();
    let mut late = dial(2000).unwrap();
    assert!(late.call(&Request::Ping(Ping {}), within(1000)).is_ok());
    stop.send_replace(true);
    server.unwrap().join().unwrap();
}
