//! One blocking connection. The thread that calls writes the frame and reads the reply itself: no
//! background thread, no queue, no wake-up between a caller and its answer.
//!
//! ```text
//!   caller:   connect ─ call | send … recv ─ (send_part …) ─ (recv_attachment …)
//!   called:   accept  ─ recv_request ─ (recv_attachment …) ─ send_reply ─ (send_part …)
//! ```
//!
//! What must stay true: any error closes the link for good, because nobody knows how far the stream
//! got; a reply is matched with a request that is in flight, by number and kind, before anybody
//! sees it; a frame of the other kind of link is refused; an attachment is taken (or skipped)
//! completely before the next frame; what was queued leaves before this side waits for the peer.

mod channel;
mod data;
pub(crate) mod probe;
mod session;

use crate::address::Address;
use crate::auth::{Access, Credential, Gate, Meeting, Seat};
use crate::clock::{answer_by, boottime, budget_ms};
use crate::error::{CallError, DecodeError, Refusal, RefusalCode};
use crate::frame::{Frame, MAGIC, RequestId, Stamp, VERSION_HELLO, encode_frame};
use crate::inbox::Inbox;
use crate::kind::{Kind, LinkKind};
use crate::message::{
    Challenge, Claim, Hello, HelloAck, Proof, Reply, Request, ServerProof, agree,
};
use crate::tcp::SILENCE;
use crate::tls;
use channel::Channel;
use mooncrate_core::ids::TenantId;
use mooncrate_core::time::Deadline;
use mooncrate_rt as rt;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use data::Asked;

/// An outbox that a large frame stretched beyond this is given back.
const KEEP_BYTES_MAX: usize = 256 << 10;

/// Settings of a link.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// Longest wait for a connection, within the deadline of the call that needs it.
    pub connect_time: Duration,
    /// TCP: how long sent bytes, or the question whether it is there, may stay unacknowledged before
    /// the peer counts as gone.
    pub user_timeout: Duration,
    /// TCP: local address to connect from, for machines with several networks, and for tests.
    pub source: Option<IpAddr>,
    /// Requests that may be in flight at once; the peer stops reading beyond its own limit.
    pub in_flight_max: usize,
    /// What is shown to the called side.
    pub access: Access,
    /// Ends every wait on the links that were made with it.
    pub hang_up: HangUp,
}

/// A word to all links that were made with it: nobody waits for them any more. Whoever does comes back
/// within a second, as if the peer had closed the link.
#[derive(Clone, Debug, Default)]
pub struct HangUp(Arc<AtomicBool>);

impl HangUp {
    /// Says it.
    pub fn now(&self) {
        // Relaxed, as in `said`: a flag that orders nothing.
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was said.
    pub fn said(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self {
            connect_time: Duration::from_secs(1),
            user_timeout: SILENCE,
            source: None,
            in_flight_max: 256,
            access: Access::default(),
            hang_up: HangUp::default(),
        }
    }
}

/// One connection.
#[derive(Debug)]
pub struct Link {
    channel: Channel,
    kind: LinkKind,
    version: u8,
    /// What the called side said of itself.
    peer: HelloAck,
    inbox: Inbox,
    /// The frame being sent, behind those that were queued. Empty after every send, and kept for its memory.
    outbox: Vec<u8>,
    last_request: u64,
    in_flight: Vec<(RequestId, Kind)>,
    in_flight_max: usize,
    /// Bytes of the current attachment that are still to be received.
    attached_in: u64,
    /// Bytes of the current attachment that are still to be sent.
    attached_out: u64,
    /// Descriptors that came and were not taken yet; at most [`crate::fds::FDS_MAX`].
    fds: Vec<OwnedFd>,
    /// An error was met: nothing goes over this link any more.
    broken: bool,
}

impl Link {
    /// Connects, says hello, and proves who we are if that is asked for.
    pub fn connect(
        address: &Address,
        hello: &Hello,
        config: &LinkConfig,
        deadline: Deadline,
    ) -> Result<Self, CallError> {
        let mut channel = Channel::connect(address, config, deadline)?;
        if let Some(tls) = config.access.tls.as_ref().filter(|_| !channel.is_unix()) {
            channel.encrypt(tls.session(hello.link), deadline)?;
        }
        let hello = config.access.hello(hello);
        let mut link = Self::over(channel, hello.link, config);
        let ack = link.introduce(&hello, &config.access, deadline)?;
        if !(hello.version_min..=hello.version_max).contains(&ack.version) {
            let value = u64::from(ack.version);
            let what = "the version that the peer chose";
            return Err(DecodeError::BadValue { what, value }.into());
        }
        (link.version, link.peer) = (ack.version, ack);
        if hello.link == LinkKind::Control && config.access.tenant != TenantId::DEFAULT {
            link.claim(config.access.tenant, deadline)?;
        }
        Ok(link)
    }

    /// Says whose keys this link asks for.
    fn claim(&mut self, tenant: TenantId, deadline: Deadline) -> Result<(), CallError> {
        let id = self.next_id();
        self.write(Kind::Claim, id, false, deadline, |out| Claim { tenant }.encode(out))?;
        match self.read_greeting(deadline)? {
            (Kind::Claim, _) => Ok(()),
            (kind, _) => Err(DecodeError::Unexpected { kind }.into()),
        }
    }

    /// The caller's half of the hello.
    fn introduce(
        &mut self,
        hello: &Hello,
        access: &Access,
        deadline: Deadline,
    ) -> Result<HelloAck, CallError> {
        let id = self.next_id();
        self.write(Kind::Hello, id, false, deadline, |out| hello.encode(out))?;
        let (kind, body) = self.read_greeting(deadline)?;
        if kind != Kind::Challenge {
            // A CA that vouches for the server does what its proof would do.
            access.unasked(self.channel.is_encrypted())?;
            return expect_ack(kind, &body);
        }
        let challenge = Challenge::decode(&body)?;
        let (proof, expected) = access.prove(hello, &challenge)?;
        let id = self.next_id();
        self.write(Kind::Proof, id, false, deadline, |out| proof.encode(out))?;
        let (kind, body) = self.read_greeting(deadline)?;
        if kind != Kind::Proof {
            return Err(DecodeError::Unexpected { kind }.into());
        }
        Access::confirm(&expected, &ServerProof::decode(&body)?)?;
        let (kind, body) = self.read_greeting(deadline)?;
        expect_ack(kind, &body)
    }

    /// One frame of the server's half; a refusal is an error.
    fn read_greeting(&mut self, deadline: Deadline) -> Result<(Kind, Vec<u8>), CallError> {
        let frame = self.read_frame(deadline, "the reply to hello")?;
        let (kind, body) = (frame.header.kind(), self.inbox.bytes(frame.body));
        if kind == Kind::Refuse {
            return Err(crate::codec::decode::<Refusal>(body)?.into());
        }
        Ok((kind, body.to_vec()))
    }

    /// Takes over an accepted connection: reads the hello, asks for what the gate asks for, and
    /// answers. `answer` says who we are, with the version that both speak.
    pub fn accept(
        socket: impl Into<OwnedFd>,
        serves: LinkKind,
        config: &LinkConfig,
        gate: &Gate,
        deadline: Deadline,
        answer: impl FnOnce(&Hello, u8) -> HelloAck,
    ) -> Result<Accepted, CallError> {
        let mut channel = Channel::accepted(socket.into(), config)?;
        let tls = gate.tls().filter(|_| !channel.is_unix());
        // A plain frame where TLS is wanted is answered as plainly, and with nothing else.
        let plain = tls.is_some() && channel.next_byte(deadline)? == MAGIC[0];
        let names = match tls.filter(|_| !plain) {
            Some(tls) => channel.encrypt(tls.session(), deadline)?,
            None => Vec::new(),
        };
        let mut link = Self::over(channel, serves, config);
        if plain {
            return Err(link.refuse_plain(deadline));
        }
        let frame = link.read_frame(deadline, "a hello")?;
        let id = frame.header.request();
        if frame.header.kind() != Kind::Hello {
            let refusal = Refusal::new(RefusalCode::Protocol, "a link starts with a hello");
            link.refuse(id, &refusal, deadline);
            return Err(DecodeError::Unexpected { kind: frame.header.kind() }.into());
        }
        let hello = Hello::decode(link.inbox.bytes(frame.body))?;
        let met = agree(&hello, serves).map_err(CallError::from).and_then(|version| {
            let credential = link.examine(id, gate, &hello, &names, deadline)?;
            Ok((version, credential, gate.seat(credential)?))
        });
        match met {
            Ok((version, credential, seat)) => {
                let ack = answer(&hello, version);
                link.write(Kind::Hello, id, true, deadline, |out| ack.encode(out))?;
                (link.version, link.peer) = (version, ack);
                Ok(Accepted { link, hello, credential, seat })
            }
            Err(error) => {
                if let CallError::Refused { code, message } = &error {
                    if *code == RefusalCode::Denied {
                        // Whoever guesses tokens shall not do it fast.
                        rt::sleep(crate::auth::DENIED_PAUSE);
                    }
                    link.refuse(id, &Refusal::new(*code, message.clone()), deadline);
                }
                Err(error)
            }
        }
    }

    /// The called side: a caller does not encrypt, and should.
    fn refuse_plain(&mut self, deadline: Deadline) -> CallError {
        match self.read_frame(deadline, "a hello") {
            Ok(frame) => {
                let refusal = Refusal::new(RefusalCode::Denied, tls::PLAIN);
                self.refuse(frame.header.request(), &refusal, deadline);
                refusal.into()
            }
            Err(error) => error,
        }
    }

    /// The called side: who is this?
    fn examine(
        &mut self,
        id: RequestId,
        gate: &Gate,
        hello: &Hello,
        names: &[Credential],
        deadline: Deadline,
    ) -> Result<Credential, CallError> {
        let challenge = match gate.meet(hello, names)? {
            Meeting::Known(credential) => return Ok(credential),
            Meeting::Prove(challenge) => challenge,
        };
        self.write(Kind::Challenge, id, true, deadline, |out| challenge.encode(out))?;
        let frame = self.read_frame(deadline, "a proof")?;
        let kind = frame.header.kind();
        if kind != Kind::Proof {
            return Err(DecodeError::Unexpected { kind }.into());
        }
        let (id, proof) = (frame.header.request(), Proof::decode(self.inbox.bytes(frame.body))?);
        let (credential, own) = gate.verify(hello, &challenge, &proof)?;
        self.write(Kind::Proof, id, true, deadline, |out| own.encode(out))?;
        Ok(credential)
    }

    /// The user at the other end of a Unix socket, as the kernel knows it.
    pub fn peer_user(&self) -> Option<u32> {
        let known = rustix::net::sockopt::socket_peercred(self.channel.socket());
        known.ok().filter(|_| self.channel.is_unix()).map(|user| user.uid.as_raw())
    }

    fn over(channel: Channel, kind: LinkKind, config: &LinkConfig) -> Self {
        Self {
            channel,
            kind,
            version: VERSION_HELLO,
            peer: HelloAck {
                version: VERSION_HELLO,
                name: String::new(),
                epoch: mooncrate_core::ids::LeaderEpoch(0),
                host: mooncrate_core::ids::HostId(0),
            },
            inbox: Inbox::default(),
            outbox: Vec::new(),
            last_request: 0,
            in_flight: Vec::new(),
            in_flight_max: config.in_flight_max,
            attached_in: 0,
            attached_out: 0,
            fds: Vec::new(),
            broken: false,
        }
    }

    /// What the called side said of itself in the hello.
    pub fn peer(&self) -> &HelloAck {
        &self.peer
    }

    /// From here on no wait on this link in which nothing moves is longer than this, whatever its deadline.
    pub fn set_silence_max(&mut self, silence_max: Duration) {
        self.channel.set_silence_max(silence_max);
    }

    /// Whether it can still be used.
    pub fn is_open(&self) -> bool {
        !self.broken
    }

    /// Requests whose replies have not been received.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Whether it can be used and nothing is under way on it.
    pub fn at_rest(&self) -> bool {
        !self.broken
            && self.in_flight.is_empty()
            && self.inbox.held() == 0
            && self.attached_in == 0
            && self.attached_out == 0
            && self.outbox.is_empty()
            && self.fds.is_empty()
    }

    /// Whether it is at rest, and the peer has not hung up. One system call.
    pub fn is_idle(&self) -> bool {
        self.at_rest() && self.channel.quiet()
    }

    /// Sends nothing more, and waits until the peer has hung up; whether it has by then. What it still says is
    /// dropped: the link is over.
    pub fn await_end(&mut self, until: Deadline) -> bool {
        self.broken = true;
        self.channel.linger(until)
    }

    /// A handle with which another thread ends this link, and every wait on it.
    pub fn closer(&self) -> io::Result<Closer> {
        Ok(Closer { socket: self.channel.socket().try_clone()? })
    }

    /// Asks a master and waits for its answer. Nothing else may be in flight. The master is given a
    /// little less time than we wait, so that its word comes, even if it is that time is over.
    pub fn call(&mut self, request: &Request<'_>, deadline: Deadline) -> Result<Reply, CallError> {
        assert!(
            self.broken || self.in_flight.is_empty(),
            "call needs a link of its own; use send and recv"
        );
        self.send(request, answer_by(deadline, boottime()))?;
        Ok(self.recv_for(deadline, request.kind().awaited())?.1)
    }

    /// Sends a request; its reply comes out of [`Link::recv`], in any order.
    pub fn send(
        &mut self,
        request: &Request<'_>,
        deadline: Deadline,
    ) -> Result<RequestId, CallError> {
        let id = self.reserve(request.kind())?;
        self.write(request.kind(), id, false, deadline, |out| request.encode(out))?;
        Ok(id)
    }

    /// The next reply. A refusal is a `Reply::Refuse` here, so that one of many does not end them
    /// all; [`Link::call`] turns it into an error.
    pub fn recv(&mut self, deadline: Deadline) -> Result<(RequestId, Reply), CallError> {
        self.recv_reply(deadline, "a reply", Reply::decode)
    }

    /// Sends a request for whose answer nobody waits: it leaves by `deadline`, and the peer may take `time`
    /// to answer.
    pub fn send_ahead(
        &mut self,
        request: &Request<'_>,
        time: Duration,
        deadline: Deadline,
    ) -> Result<(), CallError> {
        let id = self.reserve(request.kind())?;
        let until = boottime().deadline_in(time);
        if let Err(error) = self.stage(request.kind(), id, false, until, |out| request.encode(out))
        {
            self.in_flight.retain(|(asked, _)| *asked != id);
            return Err(error);
        }
        self.flush(deadline)
    }

    /// The next reply, if one has begun to arrive; a hang-up of the peer is an error. One system call if
    /// there is none.
    pub fn try_recv(&mut self, deadline: Deadline) -> Result<Option<Reply>, CallError> {
        if !self.broken && self.inbox.held() == 0 && self.channel.quiet() {
            return Ok(None);
        }
        self.recv(deadline).map(|(_, reply)| Some(reply))
    }

    fn recv_for(
        &mut self,
        deadline: Deadline,
        awaited: &'static str,
    ) -> Result<(RequestId, Reply), CallError> {
        match self.recv_reply(deadline, awaited, Reply::decode)? {
            (_, Reply::Refuse(refusal)) => Err(refusal.into()),
            answer => Ok(answer),
        }
    }

    /// Reads a frame that must answer a request that is in flight.
    fn recv_reply<R>(
        &mut self,
        deadline: Deadline,
        awaited: &'static str,
        decode: impl FnOnce(Kind, &[u8]) -> Result<R, DecodeError>,
    ) -> Result<(RequestId, R), CallError> {
        let frame = self.read_frame(deadline, awaited)?;
        let (id, kind) = (frame.header.request(), frame.header.kind());
        let asked = self.in_flight.iter().position(|(asked, _)| *asked == id);
        let expected = asked.map(|at| self.in_flight.swap_remove(at).1);
        if !frame.header.is_reply() || (kind != Kind::Refuse && expected != Some(kind)) {
            self.broken = true;
            return Err(DecodeError::Unexpected { kind }.into());
        }
        let reply = decode(kind, self.inbox.bytes(frame.body));
        self.broken |= reply.is_err();
        // A refusal of something that is not in flight is about the link itself.
        self.broken |= expected.is_none();
        self.attached_in = frame.attached;
        Ok((id, reply?))
    }

    /// Books a request that is about to be sent.
    fn reserve(&mut self, kind: Kind) -> Result<RequestId, CallError> {
        assert!(kind.link() == Some(self.kind), "a {kind} frame on a {} link", self.kind);
        if self.broken {
            return Err(self.channel.closed(kind.awaited()));
        }
        if self.in_flight.len() >= self.in_flight_max {
            return Err(CallError::Busy {
                peer: self.channel.peer().to_owned(),
                links: 1,
                after_ms: 1,
            });
        }
        let id = self.next_id();
        self.in_flight.push((id, kind));
        Ok(id)
    }

    fn next_id(&mut self) -> RequestId {
        self.last_request += 1;
        RequestId(self.last_request)
    }

    /// Puts one frame into the outbox, behind those that wait there.
    fn stage(
        &mut self,
        kind: Kind,
        request: RequestId,
        reply: bool,
        deadline: Deadline,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), CallError> {
        if self.broken {
            return Err(self.channel.closed(kind.awaited()));
        }
        assert!(self.attached_out == 0, "the last attachment was not sent completely");
        let deadline_ms = if reply { 0 } else { budget_ms(deadline, boottime()) };
        let stamp = Stamp { version: self.version, kind, reply, request, deadline_ms };
        encode_frame(&mut self.outbox, stamp, encode)?;
        Ok(())
    }

    /// Sends what was queued. No system call if there is nothing.
    pub fn flush(&mut self, deadline: Deadline) -> Result<(), CallError> {
        self.send_outbox(&[], deadline)
    }

    /// Sends the outbox and the first parts of an attachment.
    fn send_outbox(&mut self, parts: &[IoSlice<'_>], deadline: Deadline) -> Result<(), CallError> {
        if self.outbox.is_empty() {
            return Ok(());
        }
        let sent = self.channel.write_parts(&self.outbox, parts, deadline, "room to send");
        self.outbox.clear();
        if self.outbox.capacity() > KEEP_BYTES_MAX {
            self.outbox = Vec::new();
        }
        self.broken |= sent.is_err();
        sent
    }

    /// Sends one frame in one piece.
    fn write(
        &mut self,
        kind: Kind,
        request: RequestId,
        reply: bool,
        deadline: Deadline,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), CallError> {
        self.write_with_fds(kind, request, reply, deadline, &[], encode)
    }

    fn write_with_fds(
        &mut self,
        kind: Kind,
        request: RequestId,
        reply: bool,
        deadline: Deadline,
        fds: &[BorrowedFd<'_>],
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), CallError> {
        if !fds.is_empty() {
            // They travel with the first byte, which is to be one of their frame.
            self.flush(deadline)?;
        }
        if let Err(error) = self.stage(kind, request, reply, deadline, encode) {
            // Nothing was sent, so the link is as good as before.
            self.in_flight.retain(|(asked, _)| *asked != request);
            return Err(error);
        }
        if fds.is_empty() {
            return self.flush(deadline);
        }
        let sent = self.channel.write_all(&self.outbox, fds, deadline, "room to send");
        self.outbox.clear();
        self.broken |= sent.is_err();
        sent
    }

    /// Says why, if the peer still listens, and closes the link.
    fn refuse(&mut self, id: RequestId, refusal: &Refusal, deadline: Deadline) {
        use crate::codec::Field;
        // The link ends with an error anyway; this one would only hide the cause.
        let _ = self.write(Kind::Refuse, id, true, deadline, |out| refusal.put(out));
        self.broken = true;
    }

    /// The next frame, of any kind that may travel here.
    fn read_frame(
        &mut self,
        deadline: Deadline,
        awaited: &'static str,
    ) -> Result<Frame, CallError> {
        if self.broken {
            return Err(self.channel.closed(awaited));
        }
        assert!(self.attached_in == 0, "the last attachment was not received completely");
        let found = self.find_frame(deadline, awaited);
        self.broken |= found.is_err();
        found
    }

    fn find_frame(
        &mut self,
        deadline: Deadline,
        awaited: &'static str,
    ) -> Result<Frame, CallError> {
        loop {
            match self.inbox.next_frame() {
                Ok(Some(frame)) => return Ok(frame),
                Ok(None) => self.flush(deadline)?,
                Err(error) => {
                    // What was answered before is told; what comes of that is not the cause.
                    let _ = self.flush(deadline);
                    return Err(error.into());
                }
            }
            // Descriptors travel on data links only; elsewhere a plain read drops them.
            let fds = (self.kind == LinkKind::Data).then_some(&mut self.fds);
            let count = self.channel.read(self.inbox.space(), fds, deadline, awaited)?;
            self.inbox.filled(count);
        }
    }
}

fn expect_ack(kind: Kind, body: &[u8]) -> Result<HelloAck, CallError> {
    match kind {
        Kind::Hello => Ok(HelloAck::decode(body)?),
        kind => Err(DecodeError::Unexpected { kind }.into()),
    }
}

/// A caller that came in.
#[derive(Debug)]
pub struct Accepted {
    /// The link to it.
    pub link: Link,
    /// What it said of itself.
    pub hello: Hello,
    /// What it proved; at an open gate, what it said.
    pub credential: Credential,
    /// Its place among the connections of its tenant.
    pub seat: Seat,
}

/// Ends a link from another thread.
#[derive(Debug)]
pub struct Closer {
    socket: socket2::Socket,
}

impl Closer {
    /// One for a connection that was accepted, before there is a link over it.
    pub fn of(socket: &OwnedFd) -> io::Result<Self> {
        Ok(Self { socket: socket.try_clone()?.into() })
    }

    /// Every wait on the link ends with an error; the peer sees the end of the stream.
    pub fn close(&self) {
        if let Some(world) = rt::world() {
            world.closing(self.socket.as_fd());
        }
        // Not connected any more: then it is closed already, which is what was asked for.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }
}
