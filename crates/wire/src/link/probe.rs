//! Whether anybody is there, asked without waiting: a connection is begun, a hello is sent when it is
//! made, and any byte that comes back says that a process runs there and reads its sockets.
//!
//! A connection alone proves nothing: the kernel of a stopped process goes on making them.

use super::LinkConfig;
use crate::address::{Address, name_of};
use crate::clock::boottime;
use crate::frame::{RequestId, Stamp, VERSION_HELLO, encode_frame};
use crate::kind::Kind;
use crate::message::Hello;
use mooncrate_core::time::Now;
use mooncrate_rt::{self as rt, Way};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use socket2::{SockAddr, Socket, Type};
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

/// A question that is on its way to one address.
#[derive(Debug)]
pub(crate) struct Probe {
    socket: Socket,
    /// What is sent once there is a connection; empty: it was sent.
    hello: Vec<u8>,
    /// When it was begun, and then when the hello was sent.
    began: Now,
}

/// What is known of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// It came.
    Alive,
    /// Nothing came yet.
    Nothing,
    /// None will come.
    Gone,
}

impl Probe {
    /// Asks at every address that a name has. Waits for nothing but the lookup of the name.
    pub(crate) fn start(address: &Address, hello: &Hello, config: &LinkConfig) -> Vec<Self> {
        let words = |target: &SockAddr| first_words(target, hello, config);
        let targets = address.resolve().unwrap_or_default();
        targets
            .iter()
            .filter_map(|target| {
                let socket = begin(target, config).ok()?;
                Some(Self { socket, hello: words(target)?, began: boottime() })
            })
            .collect()
    }

    /// How long ago its last step was.
    pub(crate) fn age(&self, now: Now) -> Duration {
        now.since(self.began)
    }

    /// What is known now.
    pub(crate) fn look(&mut self) -> Seen {
        if !self.hello.is_empty() {
            if !self.is_connected() {
                return Seen::Nothing;
            }
            if self.socket.take_error().ok().flatten().is_some() {
                return Seen::Gone;
            }
            // A hello is smaller than the empty buffer of a new socket.
            match send(&self.socket, &self.hello, SendFlags::NOSIGNAL) {
                Ok(count) if count == self.hello.len() => {
                    self.hello.clear();
                    self.began = boottime();
                }
                Err(Errno::AGAIN) => return Seen::Nothing,
                _ => return Seen::Gone,
            }
        }
        let mut byte = [0_u8; 1];
        match recv(&self.socket, &mut byte[..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((1.., _)) => Seen::Alive,
            Err(Errno::AGAIN | Errno::INTR) => Seen::Nothing,
            _ => Seen::Gone,
        }
    }

    /// Whether there is a connection, or will be none.
    fn is_connected(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::OUT)];
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Waits until something happened to one of these, and no longer than `time`.
    pub(crate) fn wait<'a>(probes: impl Iterator<Item = &'a Self>, time: Duration) {
        let flags = |probe: &Self| {
            if probe.hello.is_empty() { PollFlags::IN } else { PollFlags::OUT }
        };
        let mut fds: Vec<PollFd<'_>> =
            probes.map(|probe| PollFd::new(&probe.socket, flags(probe))).collect();
        let Some(first) = fds.first() else { return };
        if let Some(world) = rt::world() {
            // The others are looked at when the time is over.
            return world.wait_for_socket(first.as_fd(), Way::Read, time);
        }
        // Too long a time, or a signal, is no harm: whoever called looks anyway.
        let _ = poll(&mut fds, Timespec::try_from(time).ok().as_ref());
    }
}

fn begin(target: &SockAddr, config: &LinkConfig) -> io::Result<Socket> {
    if let Some(world) = rt::world() {
        return Ok(world.connect(&name_of(target), Duration::ZERO)?.into());
    }
    let socket = Socket::new(target.domain(), Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    if let Some(source) = config.source.filter(|_| !target.is_unix()) {
        socket.bind(&std::net::SocketAddr::new(source, 0).into())?;
    }
    match socket.connect(target) {
        Err(error) if error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => Ok(socket),
        connected => connected.map(|()| socket),
    }
}

/// What a caller says first on such a connection.
fn first_words(target: &SockAddr, hello: &Hello, config: &LinkConfig) -> Option<Vec<u8>> {
    let mut words = Vec::new();
    if let Some(tls) = config.access.tls.as_ref().filter(|_| !target.is_unix()) {
        tls.session(hello.link).ok()?.write_tls(&mut words).ok()?;
        return Some(words);
    }
    let hello = config.access.hello(hello);
    let stamp = Stamp {
        version: VERSION_HELLO,
        kind: Kind::Hello,
        reply: false,
        request: RequestId(1),
        deadline_ms: crate::clock::NO_DEADLINE_MS,
    };
    encode_frame(&mut words, stamp, |out| hello.encode(out)).ok()?;
    Some(words)
}
