//! Callers that say nothing at the gRPC port, and those who do.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

#[expect(dead_code, reason = "each test binary uses a part of it")]
mod support;

use mooncrate_grpc::{GrpcConfig, Times};
use mooncrate_wire::{Gate, Role};
use std::io::Read;
use std::net::TcpStream;
use std::time::Duration;
use support::{Cluster, secret};

const HOUR: Duration = Duration::from_hours(1);

fn cluster(first: Duration, idle: Duration) -> Cluster {
    let gate = Gate::new(Some(secret()), None);
    let times = Times { first, idle, write: HOUR };
    Cluster::start_with(gate, |parts| {
        (parts, GrpcConfig { connections: 32, times, ..GrpcConfig::default() })
    })
}

fn silent(cluster: &Cluster) -> TcpStream {
    let stream = TcpStream::connect(cluster.door_address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    stream
}

/// Waits until the server hangs up; it may have sent its settings before.
fn ended(stream: &mut TcpStream) {
    match stream.read_to_end(&mut Vec::new()) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("{error}"),
    }
}

/// More than may be here say nothing, and have an hour to do so: a caller with a token is let in, and one that
/// has shown its token stays.
#[test]
fn security_silent_callers_do_not_keep_others_out() {
    let cluster = cluster(HOUR, HOUR);
    let mut known = cluster.client_as(Role::Client, "acme");
    assert_ne!(known.find("k", 0).status_code, 0);
    let mut crowd: Vec<TcpStream> = (0..100).map(|_| silent(&cluster)).collect();
    let mut late = cluster.client_as(Role::Client, "acme");
    assert_ne!(late.find("k", 0).status_code, 0);
    assert_ne!(known.find("k", 0).status_code, 0);
    ended(&mut crowd[0]);
}

/// Whoever says nothing, or half of a beginning, is closed by the time for the first call.
#[test]
fn security_whoever_proves_nothing_is_hung_up_on() {
    let soon = Duration::from_millis(300);
    let cluster = cluster(soon, HOUR);
    ended(&mut silent(&cluster));
    let mut half = silent(&cluster);
    std::io::Write::write_all(&mut half, b"PRI * HTTP/2.0\r\n").unwrap();
    ended(&mut half);
}
