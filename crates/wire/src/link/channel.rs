//! A blocking socket whose every wait has a deadline, at no cost in system calls.
//!
//! The kernel's own timeouts (`SO_RCVTIMEO`, `SO_SNDTIMEO`) do the waiting, and they are set
//! rarely: a timeout that is shorter than the time left only wakes us early, and we wait again. So
//! any value that is not longer than what is left, and not absurdly shorter, stays as it is. A call
//! on a warm link is exactly one send and one read.
//!
//! A caller that can be interrupted wakes every 64 ms, and when a signal cuts its system call short
//! ([`mooncrate_lock::interrupt`]).

use super::session::Session;
use super::{HangUp, LinkConfig};
use crate::address::{Address, name_of};
use crate::auth::Credential;
use crate::clock::boottime;
use crate::error::CallError;
use crate::{fds, tcp};
use mooncrate_core::time::{Deadline, Now};
use mooncrate_lock::interrupt;
use mooncrate_rt::{self as rt, Way};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, send, sendmsg};
use rustix::process::{Pid, getpid};
use socket2::{Domain, SockAddr, Socket, Type};
use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Longest single wait; a deadline further away is reached in steps.
const STEP_MAX: Duration = Duration::from_secs(1);
/// Where a caller that can be interrupted has used a link, a timeout of this length is never made longer: such
/// callers need it so short, and others on the same link would change the timeout with every caller.
const STEP_KEPT: Duration = interrupt::SLICE;
/// How long the last words to a peer may take, and how long it may take to read them.
const LAST_WORDS_TIME: Duration = Duration::from_millis(100);
/// Parts that go out in one vectored send.
const PARTS_MAX: usize = 16;

/// A connected socket.
#[derive(Debug)]
pub(super) struct Channel {
    socket: Socket,
    peer: String,
    unix: bool,
    /// The timeouts the kernel has now; zero: none set yet.
    read_step: Duration,
    write_step: Duration,
    /// A caller that can be interrupted has waited here. Never on a server.
    interruptible: bool,
    /// Encrypts, on TCP where it was asked for.
    tls: Option<Box<Session>>,
    hang_up: HangUp,
    /// The longest wait in which nothing moves, within every deadline.
    silence_max: Duration,
    /// Since when we wait and nothing moves; `None`: nobody waits.
    waiting: Option<Now>,
    /// Who has the connection. A forked child has a copy of it, which is none of its business.
    process: Pid,
}

impl Channel {
    pub(super) fn connect(
        address: &Address,
        config: &LinkConfig,
        deadline: Deadline,
    ) -> Result<Self, CallError> {
        let peer = address.to_string();
        let failed = |source| CallError::Io { doing: "connecting to", peer: peer.clone(), source };
        let (began, mut last) = (boottime(), None);
        for target in address.resolve().map_err(failed)? {
            let left = deadline.left(boottime()).min(config.connect_time);
            if left.is_zero() {
                let silent = boottime().since(began);
                return Err(CallError::Deadline { awaited: "a connection", silent });
            }
            if interrupt::ask_at(boottime().0) {
                return Err(CallError::Interrupted { awaited: "a connection" });
            }
            match dial(&target, config, left) {
                Ok(socket) => return Ok(Self::new(socket, peer, config.hang_up.clone())),
                Err(error) => last = Some(error),
            }
        }
        let error = last.expect("resolve gives at least one address");
        match error.kind() {
            _ if interrupt::ended() => Err(CallError::Interrupted { awaited: "a connection" }),
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                let silent = boottime().since(began);
                Err(CallError::Deadline { awaited: "a connection", silent })
            }
            _ => Err(failed(error)),
        }
    }

    /// Takes over the socket of a connection that was accepted.
    pub(super) fn accepted(socket: OwnedFd, config: &LinkConfig) -> Result<Self, CallError> {
        let socket = Socket::from(socket);
        let peer = match socket.peer_addr().ok().and_then(|address| address.as_socket()) {
            Some(address) => address.to_string(),
            None => "a caller on this machine".to_owned(),
        };
        // In a world it is the world that waits.
        let ready =
            socket.set_nonblocking(rt::world().is_some()).and_then(|()| tune(&socket, config));
        ready.map_err(|source| CallError::Io { doing: "accepting", peer: peer.clone(), source })?;
        Ok(Self::new(socket, peer, config.hang_up.clone()))
    }

    fn new(socket: Socket, peer: String, hang_up: HangUp) -> Self {
        let unix = socket.domain().is_ok_and(|domain| domain == Domain::UNIX);
        Self {
            socket,
            peer,
            unix,
            read_step: Duration::ZERO,
            write_step: Duration::ZERO,
            interruptible: false,
            tls: None,
            hang_up,
            silence_max: Duration::MAX,
            waiting: None,
            process: getpid(),
        }
    }

    /// From here on no wait in which nothing moves is longer than this, whatever its deadline.
    pub(super) fn set_silence_max(&mut self, silence_max: Duration) {
        self.silence_max = silence_max;
    }

    pub(super) fn peer(&self) -> &str {
        &self.peer
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    pub(super) fn is_unix(&self) -> bool {
        self.unix
    }

    /// Whether what is sent is encrypted.
    pub(super) fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// The first byte that comes, which stays to be read.
    pub(super) fn next_byte(&mut self, deadline: Deadline) -> Result<u8, CallError> {
        let mut byte = [0_u8; 1];
        loop {
            self.arm(Way::Read, deadline, "a hello")?;
            match recv(&self.socket, &mut byte[..], RecvFlags::PEEK) {
                Ok((0, _)) => return Err(self.closed("a hello")),
                Ok(_) => {
                    self.waiting = None;
                    return Ok(byte[0]);
                }
                Err(error) => self.judge(error.into(), "reading from", "a hello")?,
            }
        }
    }

    /// Encrypts everything from here on. What the peer's certificate says of it.
    pub(super) fn encrypt(
        &mut self,
        connection: Result<rustls::Connection, rustls::Error>,
        deadline: Deadline,
    ) -> Result<Vec<Credential>, CallError> {
        let mut tls = Session::new(connection.map_err(|error| self.tls_error(&error))?);
        while tls.is_shaking() {
            self.flush_tls(&mut tls, deadline, "TLS")?;
            if tls.is_shaking() {
                self.digest_more(&mut tls, deadline, "TLS")?;
            }
        }
        self.flush_tls(&mut tls, deadline, "TLS")?;
        let credentials = tls.credentials();
        self.tls = Some(tls);
        Ok(credentials)
    }

    /// Reads at least one byte. With `fds`, on a Unix socket, descriptors are taken along.
    pub(super) fn read(
        &mut self,
        target: &mut [u8],
        mut fds: Option<&mut Vec<OwnedFd>>,
        deadline: Deadline,
        awaited: &'static str,
    ) -> Result<usize, CallError> {
        if let Some(mut tls) = self.tls.take() {
            let came = self.read_tls(&mut tls, target, deadline, awaited);
            self.tls = Some(tls);
            return came;
        }
        loop {
            self.arm(Way::Read, deadline, awaited)?;
            let came = match &mut fds {
                Some(fds) if self.unix => fds::recv_fds(&self.socket, target, fds),
                _ => rustix::io::read(&self.socket, &mut *target).map_err(io::Error::from),
            };
            match came {
                Ok(0) => return Err(self.closed(awaited)),
                Ok(count) => {
                    self.waiting = None;
                    return Ok(count);
                }
                Err(error) => self.judge(error, "reading from", awaited)?,
            }
        }
    }

    /// Sends all bytes; `fds` travel with the first.
    pub(super) fn write_all(
        &mut self,
        mut bytes: &[u8],
        mut fds: &[BorrowedFd<'_>],
        deadline: Deadline,
        awaited: &'static str,
    ) -> Result<(), CallError> {
        if self.tls.is_some() {
            return self.write_parts(bytes, &[], deadline, awaited);
        }
        while !bytes.is_empty() {
            self.arm(Way::Write, deadline, awaited)?;
            let sent = if fds.is_empty() {
                send(&self.socket, bytes, SendFlags::NOSIGNAL).map_err(io::Error::from)
            } else {
                fds::send_fds(&self.socket, bytes, fds)
            };
            match sent {
                Ok(count) => {
                    self.waiting = None;
                    bytes = &bytes[count..];
                    fds = &[];
                }
                Err(error) => self.judge(error, "writing to", awaited)?,
            }
        }
        Ok(())
    }

    /// Sends `head` and then all `parts`, in as few system calls as the socket's buffer allows.
    pub(super) fn write_parts(
        &mut self,
        head: &[u8],
        parts: &[IoSlice<'_>],
        deadline: Deadline,
        awaited: &'static str,
    ) -> Result<(), CallError> {
        if let Some(mut tls) = self.tls.take() {
            let sent = self.write_tls(&mut tls, head, parts, deadline, awaited);
            self.tls = Some(tls);
            return sent;
        }
        // (next part, bytes of it that went); the head is part 0.
        let (mut next, mut gone) = (0, 0);
        let part = |n: usize| if n == 0 { head } else { &*parts[n - 1] };
        loop {
            while next <= parts.len() && gone == part(next).len() {
                (next, gone) = (next + 1, 0);
            }
            if next > parts.len() {
                return Ok(());
            }
            let mut window = [IoSlice::new(&[]); PARTS_MAX];
            let count = (parts.len() + 1 - next).min(PARTS_MAX);
            for (n, slot) in window[..count].iter_mut().enumerate() {
                *slot = IoSlice::new(&part(next + n)[if n == 0 { gone } else { 0 }..]);
            }
            self.arm(Way::Write, deadline, awaited)?;
            let mut none = SendAncillaryBuffer::default();
            match sendmsg(&self.socket, &window[..count], &mut none, SendFlags::NOSIGNAL) {
                Ok(mut sent) => {
                    self.waiting = None;
                    while sent > 0 {
                        let step = sent.min(part(next).len() - gone);
                        (gone, sent) = (gone + step, sent - step);
                        if sent > 0 {
                            (next, gone) = (next + 1, 0);
                        }
                    }
                }
                Err(error) => self.judge(error.into(), "writing to", awaited)?,
            }
        }
    }

    /// Whether an idle peer is still there and silent. One system call that does not wait.
    pub(super) fn quiet(&self) -> bool {
        if self.tls.as_ref().is_some_and(|tls| !tls.is_quiet()) {
            return false;
        }
        let mut byte = [0_u8; 1];
        let peeked = recv(&self.socket, &mut byte[..], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        matches!(peeked, Err(Errno::AGAIN))
    }

    fn read_tls(
        &mut self,
        tls: &mut Session,
        target: &mut [u8],
        deadline: Deadline,
        awaited: &'static str,
    ) -> Result<usize, CallError> {
        loop {
            match tls.take(target) {
                Ok(Some(0)) => return Err(self.closed(awaited)),
                Ok(Some(count)) => return Ok(count),
                Ok(None) => self.digest_more(tls, deadline, awaited)?,
                Err(error) => self.judge(error, "reading from", awaited)?,
            }
        }
    }

    /// Waits for encrypted bytes, unless some are here, and decrypts them.
    fn digest_more(
        &mut self,
        tls: &mut Session,
        deadline: Deadline,
        awaited: &'static str,
    ) -> Result<(), CallError> {
        while !tls.space().is_empty() {
            self.arm(Way::Read, deadline, awaited)?;
            match rustix::io::read(&self.socket, tls.space()) {
                Ok(0) => return Err(self.closed(awaited)),
                Ok(count) => {
                    self.waiting = None;
                    tls.filled(count);
                    break;
                }
                Err(error) => self.judge(error.into(), "reading from", awaited)?,
            }
        }
        let Err(error) = tls.digest() else {
            // An answer of the protocol itself, as to a change of keys.
            return self.flush_tls(tls, deadline, awaited);
        };
        // The peer shall hear why, too.
        let soon = boottime().deadline_in(LAST_WORDS_TIME).min(deadline);
        let _ = self.flush_tls(tls, soon, awaited);
        // Closing a socket with unread bytes resets it, and a reset can overtake the words that say why.
        self.linger(soon);
        Err(self.tls_error(&error))
    }

    fn write_tls(
        &mut self,
        tls: &mut Session,
        head: &[u8],
        parts: &[IoSlice<'_>],
        deadline: Deadline,
        awaited: &'static str,
    ) -> Result<(), CallError> {
        let all = std::iter::once(head).chain(parts.iter().map(|part| &**part));
        for mut rest in all {
            while !rest.is_empty() {
                let taken = tls.give(rest).map_err(|source| CallError::Io {
                    doing: "encrypting for",
                    peer: self.peer.clone(),
                    source,
                })?;
                rest = &rest[taken..];
                if !rest.is_empty() {
                    self.flush_tls(tls, deadline, awaited)?;
                }
            }
        }
        self.flush_tls(tls, deadline, awaited)
    }

    /// Sends everything that is encrypted.
    fn flush_tls(
        &mut self,
        tls: &mut Session,
        deadline: Deadline,
        awaited: &'static str,
    ) -> Result<(), CallError> {
        while tls.wants_write() {
            self.arm(Way::Write, deadline, awaited)?;
            match tls.write(&self.socket) {
                Ok(_) => self.waiting = None,
                Err(error) => self.judge(error, "writing to", awaited)?,
            }
        }
        Ok(())
    }

    /// Says that nothing more comes from here, and reads on until the peer has hung up; whether it has by then. What
    /// it still says is dropped.
    pub(super) fn linger(&mut self, until: Deadline) -> bool {
        // Not connected any more: then the read says so.
        let _ = self.socket.shutdown(Shutdown::Write);
        let mut sink = [0_u8; 4096];
        while self.arm(Way::Read, until, "its end").is_ok() {
            match rustix::io::read(&self.socket, &mut sink[..]) {
                Ok(0) => return true,
                Err(error) if error != Errno::AGAIN && error != Errno::INTR => return true,
                _ => {}
            }
        }
        false
    }

    fn tls_error(&self, error: &rustls::Error) -> CallError {
        CallError::Tls { peer: self.peer.clone(), words: crate::tls::words(error) }
    }

    /// Makes sure that the next system call ends by itself no later than the deadline, and no later than
    /// the silence that is allowed.
    fn arm(
        &mut self,
        way: Way,
        deadline: Deadline,
        awaited: &'static str,
    ) -> Result<(), CallError> {
        let now = boottime();
        let silent = now.since(*self.waiting.get_or_insert(now));
        let left = deadline.left(now).min(self.silence_max.saturating_sub(silent));
        if left.is_zero() {
            return Err(CallError::Deadline { awaited, silent });
        }
        // Looked at between two waits, none of which is longer than a step.
        if self.hang_up.said() {
            return Err(self.closed(awaited));
        }
        if interrupt::ask_at(now.0) {
            return Err(CallError::Interrupted { awaited });
        }
        let longest = interrupt::slice(STEP_MAX);
        if let Some(world) = rt::world() {
            world.wait_for_socket(self.socket.as_fd(), way, left.min(STEP_MAX));
            return Ok(());
        }
        self.interruptible |= interrupt::is_on();
        let kept = if self.interruptible { STEP_KEPT } else { STEP_MAX };
        let set = match way {
            Way::Read => &mut self.read_step,
            Way::Write => &mut self.write_step,
        };
        if *set <= left.min(longest) && *set >= (left / 32).min(kept) {
            return Ok(());
        }
        *set = step(left.min(longest));
        let set = match way {
            Way::Read => self.socket.set_read_timeout(Some(*set)),
            Way::Write => self.socket.set_write_timeout(Some(*set)),
        };
        set.map_err(|source| CallError::Io {
            doing: "setting a timeout for",
            peer: self.peer.clone(),
            source,
        })
    }

    /// `Ok`: try again.
    fn judge(
        &self,
        error: io::Error,
        doing: &'static str,
        awaited: &'static str,
    ) -> Result<(), CallError> {
        match error.kind() {
            io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock if interrupt::ask() => {
                Err(CallError::Interrupted { awaited })
            }
            io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock => Ok(()),
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Err(self.closed(awaited)),
            _ => Err(CallError::Io { doing, peer: self.peer.clone(), source: error }),
        }
    }

    pub(super) fn closed(&self, awaited: &'static str) -> CallError {
        CallError::Closed { peer: self.peer.clone(), awaited }
    }
}

impl Drop for Channel {
    /// Hangs up. To close it is not enough: a child that was forked meanwhile keeps the connection open, and the peer
    /// would keep what is booked to it.
    fn drop(&mut self) {
        if getpid() == self.process {
            if let Some(world) = rt::world() {
                world.closing(self.socket.as_fd());
            }
            // Not connected any more: then the peer knows.
            let _ = self.socket.shutdown(Shutdown::Both);
        }
    }
}

/// The largest power of two milliseconds that is not longer than `left`, so that deadlines of
/// similar length share a timeout. The last step may be up to one millisecond too long.
fn step(left: Duration) -> Duration {
    if left >= STEP_MAX {
        return STEP_MAX;
    }
    let ms = u64::try_from(left.as_millis()).expect("less than a second").max(1);
    Duration::from_millis(1 << ms.ilog2())
}

fn dial(target: &SockAddr, config: &LinkConfig, left: Duration) -> io::Result<Socket> {
    if let Some(world) = rt::world() {
        return Ok(world.connect(&name_of(target), left)?.into());
    }
    let socket = Socket::new(target.domain(), Type::STREAM, None)?;
    tune(&socket, config)?;
    let until = boottime().deadline_in(left);
    if target.domain() == Domain::UNIX {
        // A full backlog makes connect wait, and this timeout ends that wait.
        socket.set_write_timeout(Some(interrupt::slice(left)))?;
        loop {
            match socket.connect(target) {
                Err(error) if is_cut_short(&error) && goes_on(until) => {}
                connected => return connected.map(|()| socket),
            }
        }
    }
    if let Some(source) = config.source {
        socket.bind(&std::net::SocketAddr::new(source, 0).into())?;
    }
    socket.set_nonblocking(true)?;
    match socket.connect(target) {
        Err(error) if error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => {
            await_connection(&socket, until)?;
        }
        connected => connected?,
    }
    socket.set_nonblocking(false)?;
    Ok(socket)
}

/// Whether a system call ended before anything happened.
fn is_cut_short(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

/// Whether a connection is still waited for, after a slice of that.
fn goes_on(until: Deadline) -> bool {
    !until.passed(boottime()) && !interrupt::ask()
}

/// Waits until a connection that was begun is there; its error if there will be none.
fn await_connection(socket: &Socket, until: Deadline) -> io::Result<()> {
    loop {
        let left = interrupt::slice(until.left(boottime()));
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(socket, PollFlags::OUT)], Some(&left)) {
            Ok(0) | Err(Errno::INTR) if goes_on(until) => {}
            Ok(0) | Err(Errno::INTR) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => return socket.take_error()?.map_or(Ok(()), Err),
            Err(error) => return Err(error.into()),
        }
    }
}

fn tune(socket: &Socket, config: &LinkConfig) -> io::Result<()> {
    if socket.domain()? == Domain::UNIX { Ok(()) } else { tcp::tune(socket, config.user_timeout) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_powers_of_two_below_what_is_left() {
        let ms = Duration::from_millis;
        assert_eq!(step(ms(1000)), ms(1000));
        assert_eq!(step(ms(999)), ms(512));
        assert_eq!(step(ms(3)), ms(2));
        assert_eq!(step(Duration::from_nanos(1)), ms(1));
        assert_eq!(step(Duration::MAX), ms(1000));
    }

    fn interrupted<T: std::fmt::Debug>(call: impl FnOnce() -> Result<T, CallError>) {
        let (ended, over) = interrupt::under(|_| true, call);
        assert!(matches!(ended, Err(CallError::Interrupted { .. })), "{ended:?}");
        assert!(over);
    }

    fn in_an_hour() -> Deadline {
        boottime().deadline_in(Duration::from_hours(1))
    }

    /// Was: the socket was closed and no more. Here a copy of the descriptor stands in for a forked child's.
    #[test]
    fn a_peer_hears_a_hang_up_while_a_forked_child_has_the_connection() {
        use std::io::Read;
        let (here, mut there) = std::os::unix::net::UnixStream::pair().unwrap();
        there.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let child = here.try_clone().unwrap();
        drop(Channel::new(Socket::from(here), "test".to_owned(), HangUp::default()));
        assert_eq!(there.read(&mut [0; 1]).unwrap(), 0);
        drop(child);
    }

    /// What a forked child drops is its parent's, which goes on.
    #[test]
    fn a_child_does_not_hang_up_for_its_parent() {
        use std::io::{Read, Write};
        let (here, mut there) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut parent = here.try_clone().unwrap();
        let mut child = Channel::new(Socket::from(here), "test".to_owned(), HangUp::default());
        child.process = Pid::INIT;
        drop(child);
        parent.write_all(b"x").unwrap();
        there.read_exact(&mut [0; 1]).unwrap();
    }

    /// An hour is never over here: whoever is not interrupted waits for the end of the test run.
    #[test]
    fn waits_end_when_the_caller_is_interrupted() {
        let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut channel = Channel::new(Socket::from(here), "test".to_owned(), HangUp::default());
        // Without a caller that can be interrupted a short timeout is made long again where there is time.
        channel.silence_max = STEP_KEPT + Duration::from_millis(1);
        channel.arm(Way::Read, in_an_hour(), "test").unwrap();
        assert_eq!(channel.read_step, STEP_KEPT);
        channel.silence_max = Duration::MAX;
        channel.arm(Way::Read, in_an_hour(), "test").unwrap();
        assert_eq!(channel.read_step, STEP_MAX);
        interrupted(|| channel.read(&mut [0; 8], None, in_an_hour(), "test"));
        interrupted(|| channel.write_all(&vec![0; 8 << 20], &[], in_an_hour(), "test"));
        let parts = [IoSlice::new(&[1; 100])];
        interrupted(|| channel.write_parts(&[2; 8], &parts, in_an_hour(), "test"));
        assert_eq!(channel.read_step, STEP_KEPT);
        // Nobody makes it longer again: the two would set it in turns.
        channel.arm(Way::Read, in_an_hour(), "test").unwrap();
        assert_eq!(channel.read_step, STEP_KEPT);
        drop(there);
    }

    #[test]
    fn connections_that_do_not_come_end_when_the_caller_is_interrupted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("full");
        let unix = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        unix.bind(&SockAddr::unix(&path).unwrap()).unwrap();
        let tcp = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        tcp.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let at = tcp.local_addr().unwrap().as_socket().unwrap().to_string();
        for (listener, address) in [(unix, Address::Unix(path)), (tcp, Address::Tcp(at))] {
            // Nobody accepts, so a few callers fill the queue.
            listener.listen(0).unwrap();
            let mut waiting = Vec::new();
            for _ in 0..8 {
                let target = address.resolve().unwrap().remove(0);
                let socket = Socket::new(target.domain(), Type::STREAM, None).unwrap();
                socket.set_nonblocking(true).unwrap();
                let _ = socket.connect(&target);
                waiting.push(socket);
            }
            let config = LinkConfig { connect_time: Duration::MAX, ..LinkConfig::default() };
            interrupted(|| Channel::connect(&address, &config, in_an_hour()));
        }
    }

    /// A send that the timeout cuts in the middle goes on where it stopped, also inside a part.
    #[test]
    fn a_send_in_pieces_repeats_and_skips_nothing() {
        use std::io::Read;
        let (here, mut there) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut channel = Channel::new(Socket::from(here), "test".to_owned(), HangUp::default());
        let within = |ms| boottime().deadline_in(Duration::from_millis(ms));
        // Leaves a timeout of 64 ms, which the long deadline below has no reason to change.
        channel.arm(Way::Write, within(65), "test").unwrap();
        assert_eq!(channel.write_step, Duration::from_millis(64));
        let bytes: Vec<u8> = (0..2_000_003_u32).map(|n| (n ^ (n >> 8) ^ (n >> 16)) as u8).collect();
        let parts: Vec<_> = bytes[7..].chunks(70_001).map(IoSlice::new).collect();
        std::thread::scope(|scope| {
            let reader = scope.spawn(move || {
                let mut came = Vec::new();
                // Nothing is taken for longer than the timeout, again and again.
                for _ in 0..3 {
                    std::thread::sleep(Duration::from_millis(100));
                    let mut piece = vec![0; 150_000];
                    there.read_exact(&mut piece).unwrap();
                    came.extend(piece);
                }
                there.read_to_end(&mut came).unwrap();
                came
            });
            channel.write_parts(&bytes[..7], &parts, within(2000), "test").unwrap();
            drop(channel);
            assert!(reader.join().unwrap() == bytes);
        });
    }
}
