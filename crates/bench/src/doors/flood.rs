//! Connections that show no credential. One thread holds them all; whoever is hung up on comes back a second
//! later.

use anyhow::{Context, Result};
use mooncrate::Address;
use mooncrate_core::Now;
use mooncrate_wire::clock::boottime;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Between two looks at all connections.
const SWEEP: Duration = Duration::from_millis(50);
/// How long whoever was hung up on stays away.
const AWAY: Duration = Duration::from_secs(1);
/// Longest wait until the flood has come once: a door that takes no more makes callers wait.
const COME_MAX: Duration = Duration::from_secs(5);

/// What they say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// Nothing.
    Silent,
    /// The beginning.
    Half,
    /// The beginning, one byte at every look, and then the same byte for ever.
    Slow,
}

impl Manner {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::Half => "half-open",
            Self::Slow => "slow",
        }
    }
}

/// A flood under way.
pub(super) struct Flood {
    over: Arc<AtomicBool>,
    /// Connections that were open at the last look, and whether all had come once.
    open: Arc<AtomicUsize>,
    came: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// One connection.
struct One {
    socket: OwnedFd,
    said: usize,
}

/// A place of the flood: taken, or free since then.
enum Seat {
    Taken(One),
    Free(Option<Now>),
}

impl Seat {
    fn look(&mut self, address: &Address, first: &[u8], manner: Manner) {
        match self {
            Self::Taken(one) => {
                if !one.look(first, manner) {
                    *self = Self::Free(Some(boottime()));
                }
            }
            Self::Free(Some(since)) if boottime().since(*since) < AWAY => {}
            Self::Free(_) => {
                *self = One::come(address).map_or(Self::Free(None), Self::Taken);
            }
        }
    }
}

impl Flood {
    pub(super) fn start(
        address: Address,
        first: &'static [u8],
        manner: Manner,
        count: usize,
    ) -> Result<Self> {
        let (over, open) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let came = Arc::<AtomicBool>::default();
        let (ends, shown, all) = (Arc::clone(&over), Arc::clone(&open), Arc::clone(&came));
        let work = move || {
            let mut seats: Vec<Seat> = Vec::new();
            seats.resize_with(count, || Seat::Free(None));
            while !ends.load(Ordering::Relaxed) {
                for seat in &mut seats {
                    if ends.load(Ordering::Relaxed) {
                        return;
                    }
                    seat.look(&address, first, manner);
                }
                let open = seats.iter().filter(|seat| matches!(seat, Seat::Taken(_))).count();
                shown.store(open, Ordering::Relaxed);
                all.store(true, Ordering::Relaxed);
                std::thread::sleep(SWEEP);
            }
        };
        let thread = Builder::new().name("flood".into()).spawn(work).context("a thread")?;
        Ok(Self { over, open, came, thread })
    }

    pub(super) fn wait_until_it_came(&self) {
        let until = boottime().deadline_in(COME_MAX);
        while !self.came.load(Ordering::Relaxed) && !until.passed(boottime()) {
            std::thread::sleep(SWEEP);
        }
    }

    /// Hangs up; how many were open at the last look.
    pub(super) fn end(self) -> usize {
        self.over.store(true, Ordering::Relaxed);
        let _ended = self.thread.join();
        self.open.load(Ordering::Relaxed)
    }
}

impl One {
    /// Connects without waiting: a queue that is full is met at the next look.
    fn come(address: &Address) -> Option<Self> {
        let new = |family| {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            socket_with(family, SocketType::STREAM, flags, None).ok()
        };
        let (socket, began) = match address {
            Address::Tcp(name) => {
                let socket = new(AddressFamily::INET)?;
                let began = connect(&socket, &name.parse::<SocketAddr>().ok()?);
                (socket, began)
            }
            Address::Unix(path) => {
                let socket = new(AddressFamily::UNIX)?;
                let began = connect(&socket, &SocketAddrUnix::new(path).ok()?);
                (socket, began)
            }
        };
        matches!(began, Ok(()) | Err(Errno::INPROGRESS)).then_some(Self { socket, said: 0 })
    }

    /// Says what its manner asks for; whether it is still connected, or not yet.
    fn look(&mut self, first: &[u8], manner: Manner) -> bool {
        let words = match manner {
            Manner::Silent => &[][..],
            Manner::Half => &first[self.said..],
            Manner::Slow => {
                let at = self.said.min(first.len() - 1);
                &first[at..=at]
            }
        };
        if !words.is_empty() {
            match send(&self.socket, words, SendFlags::NOSIGNAL) {
                Ok(count) => self.said = (self.said + count).min(first.len()),
                Err(Errno::AGAIN | Errno::NOTCONN) => {}
                Err(_) => return false,
            }
        }
        let mut answer = [0_u8; 256];
        match recv(&self.socket, &mut answer[..], RecvFlags::empty()) {
            Ok((0, _)) => false,
            Ok(_) | Err(Errno::AGAIN | Errno::NOTCONN) => true,
            Err(_) => false,
        }
    }
}
