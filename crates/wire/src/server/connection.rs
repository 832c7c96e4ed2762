//! The life of one control connection: hello, then frames in and replies out, then an end in words.
//!
//! ```text
//!   read ─► every complete frame: decode, handle ─► replies into one buffer ─► one write ─┐
//!    ▲                                └─ later: a task, its reply joins the next write      │
//!    └──────────────────────────────────────────────────────────────────────────────────┘
//! ```

use super::{Answer, Caller, Handler, Peer, ServerConfig, down, refused};
use crate::auth::{self, Credential, Meeting, Seat};
use crate::clock::{NO_DEADLINE_MS, boottime, deadline_of};
use crate::door::Place;
use crate::error::{DecodeError, FrameError, Refusal, RefusalCode};
use crate::frame::{Frame, RequestId, Stamp, VERSION_HELLO, encode_frame};
use crate::inbox::Inbox;
use crate::kind::{Kind, LinkKind};
use crate::message::{Challenge, Claim, Hello, HelloAck, Proof, Reply, Request, agree};
use crate::task::{Panicked, TaskId, TaskSet, sleep, timeout};
use mooncrate_core::time::Now;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;

/// Replies are written at the latest when this many bytes wait.
const OUTBOX_BYTES: usize = 256 << 10;
/// A connection that has kept its worker busy for this long lets the others of that worker go first
/// (G13): a node that announces millions of headers shall not hold up those who ask.
const TURN_TIME: Duration = Duration::from_micros(200);
/// How long a peer that was refused may take to read why.
const LAST_WORDS_TIME: Duration = Duration::from_millis(100);
/// Bytes of it that are still read meanwhile.
const LAST_WORDS_BYTES: usize = 1 << 20;
const SHUTTING_DOWN: &str = "the server is shutting down";

/// Numbers connections. Relaxed: only uniqueness matters.
static CONNECTIONS: AtomicU64 = AtomicU64::new(1);

/// Why a connection ends. Nobody is told but the peer, who was told in a frame where that helps.
enum End {
    Closed,
    Io,
    Protocol,
    TooSlow,
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> Self {
        Self::Io
    }
}

/// A request that is answered later.
struct Pending {
    task: TaskId,
    request: RequestId,
    body_bytes: usize,
}

struct Connection<S, H> {
    stream: S,
    handler: Arc<H>,
    config: Arc<ServerConfig>,
    peer: Peer,
    /// What the certificate of the caller says of it.
    names: Vec<Credential>,
    /// Its place among the connections of its tenant.
    seat: Option<Seat>,
    version: u8,
    inbox: Inbox,
    outbox: Vec<u8>,
    /// Answers that wait, and whose they are. A connection holds at most `in_flight_max` of them.
    later: TaskSet<Reply>,
    pending: Vec<Pending>,
    /// Until when the frame whose first bytes are here must be complete.
    frame_until: Option<Now>,
    /// New requests are refused.
    closing: bool,
}

/// What is known of a connection before its first frame.
pub(super) struct Came {
    /// What the certificate of the caller says of it.
    pub(super) names: Vec<Credential>,
    /// Its place at the door.
    pub(super) place: Place,
    /// When its hello must be over.
    pub(super) until: Now,
}

/// Serves one connection to its end.
pub(super) async fn serve<S, H>(
    stream: S,
    came: Came,
    handler: Arc<H>,
    config: Arc<ServerConfig>,
    mut shutdown: watch::Receiver<bool>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send,
    H: Handler,
{
    let connection = CONNECTIONS.fetch_add(1, Ordering::Relaxed);
    let nobody = Peer {
        connection,
        role: crate::message::Role::Client,
        tenant: mooncrate_core::ids::TenantId::DEFAULT,
        name: String::new(),
    };
    let mut this = Connection {
        stream,
        handler,
        config,
        peer: nobody,
        names: came.names,
        seat: None,
        version: VERSION_HELLO,
        inbox: Inbox::default(),
        outbox: Vec::new(),
        later: TaskSet::default(),
        pending: Vec::new(),
        frame_until: None,
        closing: false,
    };
    let greeted = tokio::select! {
        biased;
        greeted = timeout(came.until.since(boottime()), this.greet(&came.place)) => greeted,
        () = down(&mut shutdown) => return,
    };
    match greeted {
        Some(Ok(())) => {}
        Some(Err(End::Protocol)) => {
            let _ = timeout(LAST_WORDS_TIME, this.stream.shutdown()).await;
            return linger(&mut this.stream).await;
        }
        Some(Err(_)) | None => return,
    }
    this.handler.came(&this.peer);
    let _present = Present { handler: this.handler.clone(), peer: this.peer.clone() };
    let ended = this.run(&mut shutdown).await;
    if matches!(ended, Err(End::Protocol) | Ok(())) {
        // The last words; a peer that does not take them is not waited for.
        let _ = this.flush().await;
    }
    let _ = timeout(LAST_WORDS_TIME, this.stream.shutdown()).await;
    if matches!(ended, Err(End::Protocol)) {
        linger(&mut this.stream).await;
    }
}

/// However a connection ends, by a panic of its handler too, the handler learns that the peer is
/// gone.
struct Present<H: Handler> {
    handler: Arc<H>,
    peer: Peer,
}

impl<H: Handler> Drop for Present<H> {
    fn drop(&mut self) {
        self.handler.gone(&self.peer);
    }
}

impl<S, H> Connection<S, H>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
    H: Handler,
{
    /// Reads the hello, asks for a proof where the gate wants one, and answers.
    async fn greet(&mut self, place: &Place) -> Result<(), End> {
        let frame = self.greeting().await?;
        let request = frame.header.request();
        let agreed = if frame.header.kind() == Kind::Hello && !frame.header.is_reply() {
            match Hello::decode(self.inbox.bytes(frame.body)) {
                Ok(hello) => agree(&hello, LinkKind::Control).map(|version| (hello, version)),
                Err(error) => Err(Refusal::new(RefusalCode::Protocol, error.to_string())),
            }
        } else {
            Err(Refusal::new(RefusalCode::Protocol, "a link starts with a hello"))
        };
        let met = match agreed {
            Ok((hello, version)) => {
                self.examine(request, &hello).await?.map(|credential| (hello, version, credential))
            }
            Err(refusal) => Err(refusal),
        };
        match met {
            Ok((hello, version, credential)) => {
                // Where nobody has to prove anything, a hello is what tells a peer from a flood of silence;
                // a poll that rests for seconds must not leave for one.
                if !place.prove() {
                    return Err(End::Closed);
                }
                let ack = HelloAck {
                    version,
                    name: self.config.name.clone(),
                    epoch: self.handler.epoch(),
                    host: self.config.host,
                };
                (self.peer.role, self.peer.tenant) = (credential.role, credential.tenant);
                self.peer.name = hello.name;
                self.stage(Kind::Hello, request, |out| ack.encode(out));
                self.version = version;
                self.flush().await
            }
            Err(refusal) => {
                if refusal.code == RefusalCode::Denied {
                    sleep(auth::DENIED_PAUSE).await;
                }
                self.refuse(request, refusal.code, refusal.message);
                self.flush().await?;
                Err(End::Protocol)
            }
        }
    }

    /// The next frame of a hello.
    async fn greeting(&mut self) -> Result<Frame, End> {
        loop {
            match self.inbox.next_frame() {
                Ok(Some(frame)) => return Ok(frame),
                Ok(None) => self.fill().await?,
                Err(error) => {
                    self.refuse(RequestId(0), RefusalCode::Protocol, error.to_string());
                    self.flush().await?;
                    return Err(End::Protocol);
                }
            }
        }
    }

    /// Who is this? A credential and a place, or why not.
    async fn examine(
        &mut self,
        request: RequestId,
        hello: &Hello,
    ) -> Result<Result<Credential, Refusal>, End> {
        let known = match self.config.gate.meet(hello, &self.names) {
            Ok(Meeting::Known(credential)) => Ok(credential),
            Ok(Meeting::Prove(challenge)) => self.challenge(request, hello, &challenge).await?,
            Err(refusal) => Err(refusal),
        };
        let seated = known.and_then(|credential| {
            self.seat = Some(self.config.gate.seat(credential)?);
            Ok(credential)
        });
        Ok(seated)
    }

    async fn challenge(
        &mut self,
        request: RequestId,
        hello: &Hello,
        challenge: &Challenge,
    ) -> Result<Result<Credential, Refusal>, End> {
        self.stage(Kind::Challenge, request, |out| challenge.encode(out));
        self.flush().await?;
        let frame = self.greeting().await?;
        let (request, kind) = (frame.header.request(), frame.header.kind());
        if kind != Kind::Proof || frame.header.is_reply() {
            let words = "a proof is awaited";
            return Ok(Err(Refusal::new(RefusalCode::Protocol, words)));
        }
        let proof = match Proof::decode(self.inbox.bytes(frame.body)) {
            Ok(proof) => proof,
            Err(error) => {
                return Ok(Err(Refusal::new(RefusalCode::Protocol, error.to_string())));
            }
        };
        Ok(self.config.gate.verify(hello, challenge, &proof).map(|(credential, own)| {
            self.stage(Kind::Proof, request, |out| own.encode(out));
            credential
        }))
    }

    /// Frames in, replies out, until one side has had enough.
    async fn run(&mut self, shutdown: &mut watch::Receiver<bool>) -> Result<(), End> {
        // Made once: enlisting for the shutdown anew for every frame would cost more than a frame.
        let mut down = std::pin::pin!(down(shutdown));
        loop {
            self.handle_frames().await?;
            self.flush().await?;
            let has_room = self.has_room();
            let rested = self.config.idle_time.filter(|_| self.later.is_empty());
            let until = self.frame_until.or_else(|| rested.map(|idle| boottime().plus(idle)));
            // What may happen next. Each branch can be dropped half-way without losing anything.
            tokio::select! {
                biased;
                () = &mut down => return self.drain().await,
                Some((task, done)) = self.later.next(), if !self.later.is_empty() => {
                    self.finish(task, done);
                }
                came = self.stream.read(self.inbox.space()), if has_room => match came? {
                    0 => return Err(End::Closed),
                    count => self.inbox.filled(count),
                },
                () = reached(until) => return Err(End::TooSlow),
            }
        }
    }

    /// Whether another request may be taken.
    fn has_room(&self) -> bool {
        self.later.len() < self.config.in_flight_max
            && self.pending.iter().map(|one| one.body_bytes).sum::<usize>()
                < self.config.in_flight_bytes_max
    }

    /// Handles every complete frame that is here, while there is room for its answer.
    async fn handle_frames(&mut self) -> Result<(), End> {
        let mut turn = boottime();
        while self.has_room() {
            match self.inbox.next_frame() {
                Ok(Some(frame)) => {
                    self.frame_until = None;
                    self.handle(&frame)?;
                }
                Ok(None) => {
                    if self.inbox.held() == 0 {
                        self.frame_until = None;
                    } else if self.frame_until.is_none() {
                        let limit = self.config.frame_time;
                        self.frame_until = Some(boottime().plus(limit));
                    }
                    return Ok(());
                }
                Err(error) => {
                    self.refuse(RequestId(0), RefusalCode::Protocol, error.to_string());
                    return Err(End::Protocol);
                }
            }
            if self.outbox.len() > OUTBOX_BYTES {
                self.flush().await?;
            }
            if boottime().since(turn) >= TURN_TIME {
                tokio::task::yield_now().await;
                turn = boottime();
            }
        }
        // Not reading is our own doing: the sender of a half frame is not to blame for the time.
        self.frame_until = None;
        Ok(())
    }

    /// One request: answered, refused, or given to a task.
    fn handle(&mut self, frame: &Frame) -> Result<(), End> {
        let (request, kind) = (frame.header.request(), frame.header.kind());
        if kind == Kind::Claim && !frame.header.is_reply() {
            return self.claim(frame);
        }
        if frame.header.is_reply() || kind.link() != Some(LinkKind::Control) {
            let error = DecodeError::Unexpected { kind };
            self.refuse(request, RefusalCode::WrongLink, format!("a control link: {error}"));
            return Err(End::Protocol);
        }
        if self.closing {
            self.refuse(request, RefusalCode::ShuttingDown, SHUTTING_DOWN);
            return Ok(());
        }
        if self.config.gate.is_guarded() && !auth::may(self.peer.role, kind) {
            let role = self.peer.role;
            let words = format!(
                "a {role} may not send {kind}; use a token or certificate of the role that may"
            );
            self.refuse(request, RefusalCode::Denied, words);
            return Ok(());
        }
        let budget_ms = frame.header.deadline_ms();
        if budget_ms == 0 {
            self.refuse(request, RefusalCode::Deadline, "the deadline had passed already");
            return Ok(());
        }
        let message = match Request::decode(kind, self.inbox.bytes(frame.body.clone())) {
            Ok(message) => message,
            Err(error) => {
                // The frame was whole, so the stream is in step; but who sends this is broken.
                self.refuse(request, RefusalCode::Protocol, error.to_string());
                return Err(End::Protocol);
            }
        };
        let arrived = boottime();
        let deadline = deadline_of(budget_ms, arrived);
        match self.handler.handle(message, Caller { peer: &self.peer, arrived, deadline }) {
            Answer::Now(reply) => self.reply(request, &reply),
            Answer::Later(waiting) => {
                let limit = match budget_ms {
                    NO_DEADLINE_MS => self.config.later_time,
                    ms => self.config.later_time.min(Duration::from_millis(ms.into())),
                };
                let task = self.later.spawn(async move {
                    timeout(limit, waiting).await.unwrap_or_else(|| {
                        let words = format!("the deadline passed while {kind} waited");
                        refused(RefusalCode::Deadline, words)
                    })
                });
                let body_bytes = frame.body.len();
                self.pending.push(Pending { task, request, body_bytes });
            }
        }
        Ok(())
    }

    /// The caller says whose keys it asks for; what it asked for before was its own tenant's.
    fn claim(&mut self, frame: &Frame) -> Result<(), End> {
        let request = frame.header.request();
        let claim = Claim::decode(self.inbox.bytes(frame.body.clone()));
        let judged = claim
            .map_err(|error| Refusal::new(RefusalCode::Protocol, error.to_string()))
            .and_then(|claim| self.config.gate.claimed(self.peer.tenant, &claim));
        match judged {
            Ok(tenant) => {
                self.peer.tenant = tenant;
                self.stage(Kind::Claim, request, |_| {});
                Ok(())
            }
            Err(refusal) => {
                self.refuse(request, refusal.code, refusal.message);
                Err(End::Protocol)
            }
        }
    }

    /// A waiting request has its reply.
    fn finish(&mut self, task: TaskId, done: Result<Reply, Panicked>) {
        let reply = done.unwrap_or_else(|Panicked| {
            refused(RefusalCode::Internal, "the server failed at this request")
        });
        let at = self.pending.iter().position(|one| one.task == task);
        let at = at.expect("every task is booked when it is started");
        let request = self.pending.swap_remove(at).request;
        self.reply(request, &reply);
    }

    /// Ends in order: what is being handled is finished, everything new is refused.
    async fn drain(&mut self) -> Result<(), End> {
        self.closing = true;
        let until = boottime().plus(self.config.drain_time);
        while let Some(Some((task, done))) =
            timeout(until.since(boottime()), self.later.next()).await
        {
            self.finish(task, done);
        }
        // Long polls that nobody answered in time.
        self.later = TaskSet::default();
        for one in std::mem::take(&mut self.pending) {
            self.refuse(one.request, RefusalCode::ShuttingDown, SHUTTING_DOWN);
        }
        // What arrived in the meantime is told why it is not handled.
        let _ = timeout(Duration::from_millis(1), self.fill()).await;
        self.handle_frames().await
    }

    async fn fill(&mut self) -> Result<(), End> {
        match self.stream.read(self.inbox.space()).await? {
            0 => Err(End::Closed),
            count => {
                self.inbox.filled(count);
                Ok(())
            }
        }
    }

    async fn flush(&mut self) -> Result<(), End> {
        if self.outbox.is_empty() {
            return Ok(());
        }
        let (stream, outbox) = (&mut self.stream, &self.outbox);
        let written = timeout(self.config.write_time, async {
            stream.write_all(outbox).await?;
            // TLS may still hold the end of it.
            stream.flush().await
        })
        .await;
        written.ok_or(End::TooSlow)??;
        self.outbox.clear();
        if self.outbox.capacity() > 4 * OUTBOX_BYTES {
            self.outbox = Vec::new();
        }
        Ok(())
    }

    fn reply(&mut self, request: RequestId, reply: &Reply) {
        if let Err(error) = self.try_stage(reply.kind(), request, |out| reply.encode(out)) {
            let words = format!("the answer does not fit into a frame, ask for less: {error}");
            self.refuse(request, RefusalCode::TooLarge, words);
        }
    }

    fn refuse(&mut self, request: RequestId, code: RefusalCode, message: impl Into<String>) {
        let reply = refused(code, message);
        self.stage(Kind::Refuse, request, |out| reply.encode(out));
    }

    fn stage(&mut self, kind: Kind, request: RequestId, encode: impl FnOnce(&mut Vec<u8>)) {
        self.try_stage(kind, request, encode).expect("refusals and hellos are small");
    }

    fn try_stage(
        &mut self,
        kind: Kind,
        request: RequestId,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), FrameError> {
        let stamp = Stamp { version: self.version, kind, reply: true, request, deadline_ms: 0 };
        encode_frame(&mut self.outbox, stamp, encode)
    }
}

/// Tells a caller that does not encrypt that it should.
pub(super) async fn refuse_plain<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S) {
    let reply = refused(RefusalCode::Denied, crate::tls::PLAIN);
    let (version, kind, request) = (VERSION_HELLO, Kind::Refuse, RequestId(0));
    let stamp = Stamp { version, kind, reply: true, request, deadline_ms: 0 };
    let mut bytes = Vec::new();
    encode_frame(&mut bytes, stamp, |out| reply.encode(out)).expect("refusals are small");
    let _ = timeout(LAST_WORDS_TIME, stream.write_all(&bytes)).await;
    last_words(stream).await;
}

/// Closes a stream so that what was said last arrives.
pub(super) async fn last_words<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S) {
    let _ = timeout(LAST_WORDS_TIME, stream.shutdown()).await;
    linger(stream).await;
}

/// Reads on for a moment: closing a socket with unread bytes resets it, and a reset can overtake the
/// words that say why.
async fn linger<S: AsyncRead + Unpin>(stream: &mut S) {
    let mut sink = [0; 4096];
    let mut left = LAST_WORDS_BYTES;
    let until = boottime().plus(LAST_WORDS_TIME);
    while left > 0 {
        match timeout(until.since(boottime()), stream.read(&mut sink)).await {
            Some(Ok(count)) if count > 0 => left = left.saturating_sub(count),
            _ => return,
        }
    }
}

/// Ends when the time has come; never, if there is none.
async fn reached(until: Option<Now>) {
    match until {
        Some(until) => sleep(until.since(boottime())).await,
        None => std::future::pending().await,
    }
}
