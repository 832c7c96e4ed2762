//! Ten thousand connections that say nothing, or half a hello, and stay.

use crate::chaos::dice::now;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Connections of one flood.
pub(crate) const CONNECTIONS: u64 = 10_000;
const THREADS: u64 = 4;
/// How long the connecting may take; a full backlog makes it slow.
const CONNECT_TIME: Duration = Duration::from_secs(6);
/// The first bytes of a frame's header, and no more.
const HALF_HELLO: &[u8] = b"MCR1\x01\x01\x00\x00";

/// Lets this process open as many files as it may.
pub(crate) fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Connects with the network of the calling thread and keeps the connections until told to stop; how
/// many there were.
pub(crate) fn flood(target: SocketAddr, hello: bool, stop: &AtomicBool) -> u64 {
    let made = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let began = now();
                let mut open = Vec::new();
                while (open.len() as u64) < CONNECTIONS / THREADS
                    && began.elapsed() < CONNECT_TIME
                    && !stop.load(Ordering::Relaxed)
                {
                    let connected = TcpStream::connect_timeout(&target, Duration::from_millis(200));
                    let Ok(mut stream) = connected else { continue };
                    if hello {
                        let _ = stream.write_all(HALF_HELLO);
                    }
                    made.fetch_add(1, Ordering::Relaxed);
                    open.push(stream);
                }
                while !stop.load(Ordering::Relaxed) && began.elapsed() < 2 * CONNECT_TIME {
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
        }
    });
    made.into_inner()
}
