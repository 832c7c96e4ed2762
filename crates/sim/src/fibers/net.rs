//! The network of a world: socket pairs, with this file between the two ends of each connection.
//!
//! ```text
//!   process a ──[socket pair]── end ··· bytes on their way ··· end ──[socket pair]── process b
//! ```
//!
//! Shipped code has real sockets, so it makes its real system calls, descriptors and hang-ups included. What it writes
//! is taken over when it next calls the world, travels for a drawn time, and is written to the other end. Between
//! processes that are cut off from each other bytes wait, as TCP repeats them until its peer is back.
//!
//! What must stay true: bytes of one direction arrive in order, all of them or an end of the stream behind them.

use super::{Nanos, ProcessId, QUEUES};
use crate::{MS, US};
use mooncrate_core::rng::Rng;
use mooncrate_rt::Way;
use mooncrate_wire::fds::{recv_fds, send_fds};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair, sockopt,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// Between two looks at all connections.
pub(super) const SWEEP: Nanos = 100 * MS;
/// Bytes on their way in one direction, after which their sender waits.
const UNDER_WAY_MAX: usize = 256 << 10;
/// What the kernel keeps for one socket: the same on every machine.
const KERNEL_BYTES: usize = 128 << 10;
/// How long a peer may leave what was sent unanswered before the connection ends: as `wire` asks of TCP.
const SILENCE: Nanos = 2_000 * MS;
/// Between two attempts to reach a process that is cut off.
const REPEAT: Nanos = 50 * MS;
/// Connections that may wait for a listener.
const BACKLOG_MAX: usize = 128;
/// Queues of listeners are numbered from here.
const LISTENERS: usize = QUEUES | (1 << 61);

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EndId(pub(super) usize);

enum Chunk {
    Bytes {
        at: Nanos,
        bytes: Vec<u8>,
        gone: usize,
        fds: Vec<OwnedFd>,
    },
    /// The end of the stream.
    End {
        at: Nanos,
    },
    /// The peer is gone without a word, and TCP has noticed.
    Reset {
        at: Nanos,
    },
}

impl Chunk {
    fn at(&self) -> Nanos {
        match self {
            Self::Bytes { at, .. } | Self::End { at } | Self::Reset { at } => *at,
        }
    }
}

struct End {
    /// Our half of the socket pair; the process has the other one. `None`: the connection is over.
    ours: Option<OwnedFd>,
    process: ProcessId,
    other: EndId,
    /// On its way to this end.
    coming: VecDeque<Chunk>,
    coming_bytes: usize,
    /// The process has said that nothing more comes from it.
    finished: bool,
    /// When what was sent last to this end arrives.
    last_at: Nanos,
    /// How long bytes travel to this end.
    travel: Nanos,
    is_dirty: bool,
    /// Bits that flip in what is sent to it next.
    flips: u32,
    /// Both ends are on one machine: no network is between them, so nothing cuts or ends the connection by itself.
    near: bool,
}

struct Listener {
    process: ProcessId,
    queue: usize,
    backlog: VecDeque<OwnedFd>,
}

pub(super) struct Net {
    rng: Rng,
    ends: Vec<End>,
    /// Which end a descriptor of a process is.
    by_fd: BTreeMap<RawFd, EndId>,
    listeners: BTreeMap<String, Listener>,
    listeners_made: usize,
    /// Addresses of machines without power: nobody refuses there.
    silent: BTreeSet<String>,
    cuts: BTreeSet<(ProcessId, ProcessId)>,
    /// Where bytes are taken over.
    taken: Vec<u8>,
    /// Ends whose process may have written.
    dirty: Vec<EndId>,
    /// Ends at which something arrived, or got room.
    changed: Vec<EndId>,
    /// Ends, and when something arrives there.
    due: Vec<(EndId, Nanos)>,
    /// What moved, for the trace.
    moved: Vec<(u64, u64)>,
}

impl Net {
    pub(super) fn new(rng: Rng) -> Self {
        Self {
            rng,
            ends: Vec::new(),
            by_fd: BTreeMap::new(),
            listeners: BTreeMap::new(),
            listeners_made: 0,
            silent: BTreeSet::new(),
            cuts: BTreeSet::new(),
            taken: vec![0; 64 << 10],
            dirty: Vec::new(),
            changed: Vec::new(),
            due: Vec::new(),
            moved: Vec::new(),
        }
    }

    pub(super) fn cut(&mut self, one: ProcessId, other: ProcessId, is_cut: bool) {
        let pair = (one.min(other), one.max(other));
        if is_cut {
            self.cuts.insert(pair)
        } else {
            self.cuts.remove(&pair)
        };
    }

    /// Makes a connection; the caller's socket, and the queue of the listener.
    pub(super) fn connect(
        &mut self,
        process: ProcessId,
        address: &str,
    ) -> io::Result<(OwnedFd, usize)> {
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        if self.silent.contains(address) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let Some(listener) = self.listeners.get_mut(address) else { return Err(refused()) };
        if listener.backlog.len() >= BACKLOG_MAX {
            return Err(refused());
        }
        let ((caller, ours), (server, other)) = (pair()?, pair()?);
        let first = self.ends.len();
        let travel = 5 * US + self.rng.below(60 * US);
        let sides =
            [(ours, process, first + 1, &caller), (other, listener.process, first, &server)];
        for (ours, process, other, theirs) in sides {
            self.by_fd.insert(theirs.as_raw_fd(), EndId(self.ends.len()));
            self.ends.push(End {
                ours: Some(ours),
                process,
                other: EndId(other),
                coming: VecDeque::new(),
                coming_bytes: 0,
                finished: false,
                last_at: 0,
                travel,
                is_dirty: false,
                flips: 0,
                near: address.starts_with('/'),
            });
        }
        listener.backlog.push_back(server);
        self.moved.push((2, first as u64));
        Ok((caller, listener.queue))
    }

    /// The next connection at an address; its queue. From the first call on the process listens there.
    pub(super) fn accept(&mut self, process: ProcessId, address: &str) -> (usize, Option<OwnedFd>) {
        if !self.listeners.contains_key(address) {
            self.silent.remove(address);
            let queue = LISTENERS | self.listeners_made;
            self.listeners_made += 1;
            let listener = Listener { process, queue, backlog: VecDeque::new() };
            self.listeners.insert(address.to_owned(), listener);
        }
        let listener = self.listeners.get_mut(address).expect("it was made");
        (listener.queue, listener.backlog.pop_front())
    }

    pub(super) fn end_of(&self, socket: BorrowedFd<'_>) -> Option<EndId> {
        self.by_fd.get(&socket.as_raw_fd()).copied()
    }

    /// The process of this end may write now.
    pub(super) fn touch(&mut self, end: EndId) {
        let found = &mut self.ends[end.0];
        if !found.is_dirty && found.ours.is_some() {
            found.is_dirty = true;
            self.dirty.push(end);
        }
    }

    /// Touches all ends at which a process has written, or hung up: one call of the system for all of them.
    pub(super) fn touch_written(&mut self) {
        let open = self.ends.iter().enumerate();
        let (ids, mut fds): (Vec<EndId>, Vec<PollFd<'_>>) = open
            .filter_map(|(at, end)| {
                let ours = end.ours.as_ref()?;
                Some((EndId(at), PollFd::new(ours, PollFlags::IN)))
            })
            .unzip();
        poll(&mut fds, Some(&Timespec::default())).expect("the system looks at sockets");
        let written: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        for (end, _) in ids.into_iter().zip(written).filter(|(_, written)| *written) {
            self.touch(end);
        }
    }

    /// A process is about to end a connection, perhaps by a copy of its descriptor; the ends that may be meant.
    pub(super) fn closing(&mut self, process: ProcessId, socket: BorrowedFd<'_>) -> Vec<EndId> {
        let meant = match self.end_of(socket) {
            Some(end) => vec![end],
            None => self.open_ends(process),
        };
        for end in &meant {
            self.touch(*end);
        }
        meant
    }

    fn open_ends(&self, process: ProcessId) -> Vec<EndId> {
        let ends = self.ends.iter().enumerate();
        let open = ends.filter(|(_, end)| end.process == process && end.ours.is_some());
        open.map(|(at, _)| EndId(at)).collect()
    }

    /// Ends some connection of a process over the network.
    pub(super) fn reset_one(&mut self, process: ProcessId) {
        let mut open = self.open_ends(process);
        open.retain(|end| !self.ends[end.0].near);
        if !open.is_empty() {
            let end = open[self.rng.below(open.len() as u64) as usize];
            self.reset(end);
        }
    }

    /// Lets a bit flip in what a process that serves is sent next, over some connection.
    pub(super) fn garble_one(&mut self, process: ProcessId) {
        let mut open = self.open_ends(process);
        // The end that called is made before the one that accepted.
        open.retain(|end| self.ends[end.0].other.0 < end.0);
        if !open.is_empty() {
            let end = open[self.rng.below(open.len() as u64) as usize];
            self.ends[end.0].flips += 1;
        }
    }

    /// Ends a connection on both sides, with what is on its way.
    fn reset(&mut self, end: EndId) {
        self.moved.push((5, end.0 as u64));
        for end in [end, self.ends[end.0].other] {
            let found = &mut self.ends[end.0];
            if let Some(ours) = found.ours.take() {
                let _ = shutdown(&ours, Shutdown::Both);
                self.changed.push(end);
            }
            found.coming.clear();
            found.coming_bytes = 0;
            found.finished = true;
        }
    }

    /// The system ends what a killed process had open. `is_heard`: its peers hear of it; otherwise their own systems
    /// find out.
    pub(super) fn kill(&mut self, process: ProcessId, now: Nanos, is_heard: bool) {
        let ended = self.listeners.extract_if(.., |_, listener| listener.process == process);
        let addresses = ended.map(|(address, _)| address);
        if is_heard {
            addresses.for_each(drop);
        } else {
            self.silent.extend(addresses);
        }
        for end in self.open_ends(process) {
            let found = &mut self.ends[end.0];
            // Its descriptor leaks with its stack, so the end of the stream is ours to say.
            if let Some(ours) = found.ours.take() {
                let _ = shutdown(&ours, Shutdown::Both);
            }
            found.coming.clear();
            found.coming_bytes = 0;
            if !found.finished {
                found.finished = true;
                let other = found.other;
                if is_heard {
                    self.send(other, now, |at| Chunk::End { at });
                } else {
                    let noticed = now + SILENCE + self.rng.below(SILENCE);
                    self.send(other, noticed, |at| Chunk::Reset { at });
                }
            }
        }
    }

    /// Puts something on its way to an end, behind what is on its way already.
    fn send(&mut self, to: EndId, now: Nanos, chunk: impl FnOnce(Nanos) -> Chunk) {
        let late = if self.rng.chance(5) { self.rng.below(3 * MS) } else { 0 };
        let travel = self.ends[to.0].travel;
        let arrives = now + travel + self.rng.below(travel) + late;
        let end = &mut self.ends[to.0];
        if end.ours.is_none() {
            return;
        }
        end.last_at = end.last_at.max(arrives);
        let chunk = chunk(end.last_at);
        self.due.push((to, end.last_at));
        if let Chunk::Bytes { bytes, .. } = &chunk {
            end.coming_bytes += bytes.len();
        }
        end.coming.push_back(chunk);
    }

    /// Takes over what was written; ends and when something arrives there.
    pub(super) fn pump(&mut self, now: Nanos) -> Vec<(EndId, Nanos)> {
        while let Some(from) = self.dirty.pop() {
            self.ends[from.0].is_dirty = false;
            let to = self.ends[from.0].other;
            let mut moved = 0;
            while self.ends[to.0].coming_bytes < UNDER_WAY_MAX && !self.ends[from.0].finished {
                let Some(ours) = &self.ends[from.0].ours else { break };
                let mut fds = Vec::new();
                match recv_fds(ours, &mut self.taken, &mut fds) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Ok(count @ 1..) => {
                        if self.ends[to.0].flips > 0 {
                            self.ends[to.0].flips -= 1;
                            let bit = self.rng.below(8 * count as u64) as usize;
                            self.taken[bit / 8] ^= 1 << (bit % 8);
                            self.moved.push((6, to.0 as u64));
                        }
                        let bytes = self.taken[..count].to_vec();
                        moved += count;
                        self.send(to, now, |at| Chunk::Bytes { at, bytes, gone: 0, fds });
                    }
                    Ok(0) | Err(_) => {
                        self.ends[from.0].finished = true;
                        self.send(to, now, |at| Chunk::End { at });
                        moved += 1;
                    }
                }
            }
            if moved > 0 {
                self.moved.push((3, (from.0 as u64) << 32 | moved as u64));
                self.changed.push(from);
            }
        }
        std::mem::take(&mut self.due)
    }

    pub(super) fn has_arrived(&self, end: EndId, now: Nanos) -> bool {
        self.ends[end.0].coming.front().is_some_and(|chunk| chunk.at() <= now)
    }

    /// Writes what has arrived; when to do so again.
    pub(super) fn deliver(&mut self, to: EndId, now: Nanos) -> Option<Nanos> {
        let from = self.ends[to.0].other;
        let (a, b) = (self.ends[to.0].process, self.ends[from.0].process);
        let first = self.ends[to.0].coming.front().map(Chunk::at);
        if let Some(at) = first
            && !self.ends[to.0].near
            && self.cuts.contains(&(a.min(b), a.max(b)))
        {
            if at + SILENCE > now {
                return Some(now + REPEAT);
            }
            self.reset(to);
        }
        let mut moved = 0;
        let waits_for_room = self.ends[to.0].coming_bytes >= UNDER_WAY_MAX;
        while self.has_arrived(to, now) {
            let end = &mut self.ends[to.0];
            let Some(ours) = &end.ours else { break };
            match end.coming.front_mut().expect("it has arrived") {
                Chunk::Reset { .. } => {
                    self.reset(to);
                    break;
                }
                Chunk::End { .. } => {
                    let _ = shutdown(ours, Shutdown::Write);
                    moved += 1;
                    let over = end.finished && self.ends[from.0].coming.is_empty();
                    if over {
                        self.ends[to.0].ours = None;
                        self.ends[from.0].ours = None;
                    }
                }
                Chunk::Bytes { bytes, gone, fds, .. } => {
                    // Descriptors travel with the first byte.
                    let lent: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
                    let sent = send_fds(ours, &bytes[*gone..], &lent);
                    match sent {
                        Ok(count) => {
                            fds.clear();
                            (moved, *gone) = (moved + count, *gone + count);
                            end.coming_bytes -= count;
                            if *gone < bytes.len() {
                                continue;
                            }
                        }
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                        // The process has closed its end: drop what arrives, and end the sender's connection.
                        Err(_) => {
                            end.coming.clear();
                            end.coming_bytes = 0;
                            end.ours = None;
                            if let Some(sender) = self.ends[from.0].ours.take() {
                                let _ = shutdown(&sender, Shutdown::Both);
                            }
                            self.changed.push(from);
                            break;
                        }
                    }
                }
            }
            self.ends[to.0].coming.pop_front();
        }
        if moved > 0 {
            self.moved.push((4, (to.0 as u64) << 32 | moved as u64));
            self.changed.push(to);
            if waits_for_room {
                self.touch(from);
            }
        }
        let next = self.ends[to.0].coming.front()?;
        // What did not fit is delivered when its process reads.
        Some(next.at()).filter(|at| *at > now)
    }

    pub(super) fn take_changed(&mut self) -> Vec<EndId> {
        std::mem::take(&mut self.changed)
    }

    pub(super) fn take_moved(&mut self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.moved)
    }
}

/// Whether a call on a socket would not wait.
pub(super) fn is_ready(socket: BorrowedFd<'_>, way: Way) -> bool {
    let flags = match way {
        Way::Read => PollFlags::IN,
        Way::Write => PollFlags::OUT,
    };
    let mut fds = [PollFd::new(&socket, flags)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// A process's half, and ours.
fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (one, other) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    for socket in [&one, &other] {
        sockopt::set_socket_send_buffer_size(socket.as_fd(), KERNEL_BYTES)?;
    }
    Ok((one, other))
}
