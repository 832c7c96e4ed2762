//! Messages between a rank and the hub, over a Unix socket, each with at most one descriptor.
//!
//! ```text
//! 0 magic u32 | 4 kind u8 | 5 rank u8 | 6 zero u16 | 8 round u32 | 12 body bytes u32 | body
//! ```

use mooncrate_core::Deadline;
use mooncrate_lock::interrupt;
use mooncrate_mem::clock::boottime;
use mooncrate_wire::fds::{recv_fds, send_fds};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Most bytes that one rank shares in one call.
pub(crate) const BODY_MAX: usize = 64 << 10;
/// "MCG1", little-endian: version 1 of these messages.
const MAGIC: u32 = 0x3147_434d;
const HEAD: usize = 16;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A rank introduces itself.
    Hello = 1,
    /// The hub: all are there.
    Welcome = 2,
    /// What a rank brings to a round.
    Share = 3,
    /// What one rank brought, from the hub to all.
    Gathered = 4,
    /// The hub: it is over, and why.
    Failed = 5,
}

#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    pub(crate) rank: u8,
    pub(crate) round: u32,
    pub(crate) body: Vec<u8>,
    pub(crate) fd: Option<OwnedFd>,
}

/// Why no message came or went.
#[derive(Debug)]
pub(crate) enum LinkEnd {
    /// Not in time.
    Late,
    /// The other side is gone, or says what this version does not understand.
    Gone,
}

impl From<io::Error> for LinkEnd {
    /// Whatever a Unix socket reports, this connection is of no use any more.
    fn from(_: io::Error) -> Self {
        Self::Gone
    }
}

/// Waits until one of `fds` has something to say; `false`: the deadline passed first, or the caller does not
/// wait any longer.
pub(crate) fn wait(fds: &mut [PollFd<'_>], until: Deadline) -> io::Result<bool> {
    loop {
        let left = interrupt::slice(until.left(boottime()));
        let left = Timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(fds, Some(&left)) {
            Ok(0) | Err(Errno::INTR) if interrupt::ask() => return Ok(false),
            Ok(0) if until.passed(boottime()) => return Ok(false),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
    }
}

fn wait_for(link: &UnixStream, what: PollFlags, until: Deadline) -> Result<(), LinkEnd> {
    if wait(&mut [PollFd::new(link, what)], until)? { Ok(()) } else { Err(LinkEnd::Late) }
}

/// Sends one message. The socket does not block.
pub(crate) fn send(
    link: &UnixStream,
    kind: Kind,
    (rank, round): (u8, u32),
    body: &[u8],
    fd: Option<BorrowedFd<'_>>,
    until: Deadline,
) -> Result<(), LinkEnd> {
    let mut bytes = Vec::with_capacity(HEAD + body.len());
    bytes.extend_from_slice(&MAGIC.to_le_bytes());
    bytes.extend_from_slice(&[kind as u8, rank, 0, 0]);
    bytes.extend_from_slice(&round.to_le_bytes());
    bytes.extend_from_slice(&u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend_from_slice(body);
    // The descriptor goes with the first byte.
    let (mut fds, mut rest) = (Vec::from_iter(fd), bytes.as_slice());
    while !rest.is_empty() {
        match send_fds(link, rest, &fds) {
            Ok(sent) => {
                fds.clear();
                rest = &rest[sent..];
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                wait_for(link, PollFlags::OUT, until)?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Receives one message. The socket does not block.
pub(crate) fn receive(link: &UnixStream, until: Deadline) -> Result<Frame, LinkEnd> {
    let mut fds = Vec::new();
    let mut head = [0; HEAD];
    fill(link, &mut head, &mut fds, until)?;
    let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
    let kinds = [Kind::Hello, Kind::Welcome, Kind::Share, Kind::Gathered, Kind::Failed];
    let kind = kinds.into_iter().find(|kind| *kind as u8 == head[4]).ok_or(LinkEnd::Gone)?;
    let len = word(12) as usize;
    if word(0) != MAGIC || len > BODY_MAX {
        return Err(LinkEnd::Gone);
    }
    let mut body = vec![0; len];
    fill(link, &mut body, &mut fds, until)?;
    Ok(Frame { kind, rank: head[5], round: word(8), body, fd: fds.pop() })
}

fn fill(
    link: &UnixStream,
    mut target: &mut [u8],
    fds: &mut Vec<OwnedFd>,
    until: Deadline,
) -> Result<(), LinkEnd> {
    while !target.is_empty() {
        match recv_fds(link, target, fds) {
            Ok(0) => return Err(LinkEnd::Gone),
            Ok(came) => target = &mut target[came..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                wait_for(link, PollFlags::IN, until)?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
