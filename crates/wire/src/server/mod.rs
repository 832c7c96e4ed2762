//! This end of many control connections. Made for a `current_thread` runtime per worker thread: the
//! handler answers most requests at once, in the task of their connection, with no hand-over
//! between threads; only what must wait becomes a task of its own.
//!
//! What must stay true: nothing a peer does makes this side allocate before a limit was checked,
//! wait without an end, or spin: a hello has a time, a begun frame has a time, a reply that is not
//! taken has a time; at most so many connections, requests and bytes are held, and beyond them
//! nobody is read. Connections that have proved nothing make room for others (`door`). A shutdown finishes what is being handled and refuses the rest in words.

mod connection;

use crate::address::{Address, Bound};
use crate::auth::{Credential, Gate};
use crate::clock::boottime;
use crate::door::{self, Keeper, Place};
use crate::error::{Refusal, RefusalCode};
use crate::frame::MAGIC;
use crate::message::{Reply, Request, Role};
use crate::task::{TaskSet, WorldStream, sleep, timeout};
use crate::tcp;
use crate::tls::{self, TlsServer};
use mooncrate_core::door::{Limits, Origin};
use mooncrate_core::ids::{HostId, LeaderEpoch, TenantId};
use mooncrate_core::time::{Deadline, Now};
use mooncrate_rt::{self as rt, World};
use socket2::SockRef;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;

/// Limits and times of a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Its name in the hello.
    pub name: String,
    /// Its machine.
    pub host: HostId,
    /// Who may be connected. Clones of these settings share it, so workers of one door count together.
    pub keeper: Keeper,
    /// From the connection to the end of its hello, TLS included.
    pub handshake_time: Duration,
    /// From the first byte of a frame to its last.
    pub frame_time: Duration,
    /// How long a peer may leave replies untaken.
    pub write_time: Duration,
    /// How long a connection may rest; `None`: for ever.
    pub idle_time: Option<Duration>,
    /// Longest wait of a request that is answered later, whatever its own deadline says.
    pub later_time: Duration,
    /// Requests of one connection that are answered later, at once; beyond, it is not read.
    pub in_flight_max: usize,
    /// Bytes of their bodies; beyond, it is not read.
    pub in_flight_bytes_max: usize,
    /// How long a shutdown waits for what is being handled.
    pub drain_time: Duration,
    /// What callers must show.
    pub gate: Gate,
}

impl Default for ServerConfig {
    fn default() -> Self {
        let limits = Limits::proving(door::descriptor_share(4, 10_000));
        Self {
            name: "mooncrate".to_owned(),
            host: HostId(0),
            keeper: Keeper::new("the control port", limits, |_| ()),
            handshake_time: Duration::from_secs(3),
            frame_time: Duration::from_secs(10),
            write_time: Duration::from_secs(10),
            idle_time: Some(Duration::from_mins(10)),
            later_time: Duration::from_mins(1),
            in_flight_max: 256,
            in_flight_bytes_max: 256 << 20,
            drain_time: Duration::from_secs(2),
            gate: Gate::default(),
        }
    }
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// A number that no other connection of this process has had.
    pub connection: u64,
    /// What it is: proven where the server asks for credentials, else what it said.
    pub role: Role,
    /// Whose it is, by its credential; the default tenant where none is asked for.
    pub tenant: TenantId,
    /// What it said it is called.
    pub name: String,
}

/// Who asks, and until when.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// Who.
    pub peer: &'a Peer,
    /// When the request was here as a whole.
    pub arrived: Now,
    /// When the caller gives up.
    pub deadline: Deadline,
}

/// A reply that is not there yet.
pub type Waiting = Pin<Box<dyn Future<Output = Reply> + Send>>;

/// What a handler makes of a request.
#[expect(clippy::large_enum_variant, reason = "it goes from the handler straight to the socket")]
pub enum Answer {
    /// The reply.
    Now(Reply),
    /// It must wait for something. Other requests of the connection go on meanwhile; when the
    /// caller's deadline passes first, the caller is told so and the future is dropped.
    Later(Waiting),
}

/// What a server serves. Not one of the seams: every handler is a thin door in front of one.
pub trait Handler: Send + Sync + 'static {
    /// Who leads, for the hello; 0: nobody known.
    fn epoch(&self) -> LeaderEpoch;

    /// Answers a request. It runs on the server's thread, so it must not block.
    fn handle(&self, request: Request<'_>, caller: Caller<'_>) -> Answer;

    /// A connection is there: its hello is over.
    fn came(&self, peer: &Peer) {
        let _ = peer;
    }

    /// The connection is gone.
    fn gone(&self, peer: &Peer) {
        let _ = peer;
    }
}

/// Serves control links until `shutdown` turns true (or its sender is dropped), and returns when
/// the last connection has left. Call it inside a tokio runtime, once per worker, with clones of
/// one socket.
pub async fn serve_control<H: Handler>(
    bound: Bound,
    handler: Arc<H>,
    config: Arc<ServerConfig>,
    mut shutdown: watch::Receiver<bool>,
) -> io::Result<()> {
    let listener = Listener::new(bound)?;
    let mut connections = TaskSet::default();
    loop {
        tokio::select! {
            biased;
            () = down(&mut shutdown) => break,
            Some(_) = connections.next(), if !connections.is_empty() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, origin)) => {
                    // Whoever finds no place is hung up on: nobody waits for it in a queue.
                    let Some((place, displaced)) = config.keeper.admit_task(origin) else { continue };
                    let (handler, config) = (handler.clone(), config.clone());
                    let serving = stream.serve(handler, config, place, shutdown.clone());
                    connections.spawn(async move {
                        tokio::select! {
                            biased;
                            () = displaced => {}
                            () = serving => {}
                        }
                    });
                }
                // Out of descriptors or memory, or a caller that left at once: the queue is still
                // full, so trying again at once would spin.
                Err(error) => {
                    config.keeper.failed(&error);
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    // Each connection ends by itself within the drain time.
    while connections.next().await.is_some() {}
    Ok(())
}

/// Rest after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
    World(&'static dyn World, Address),
}

enum Stream {
    Tcp(tokio::net::TcpStream),
    Unix(tokio::net::UnixStream),
    World(WorldStream),
}

impl Listener {
    fn new(bound: Bound) -> io::Result<Self> {
        Ok(match bound {
            Bound::Tcp(listener) => Self::Tcp(TcpListener::from_std(listener)?),
            Bound::Unix(listener) => Self::Unix(UnixListener::from_std(listener)?),
            Bound::World(address) => {
                Self::World(rt::world().ok_or(io::ErrorKind::Unsupported)?, address)
            }
        })
    }

    async fn accept(&self) -> io::Result<(Stream, Origin)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, from) = listener.accept().await?;
                tcp::tune(&SockRef::from(&stream), tcp::SILENCE)?;
                Ok((Stream::Tcp(stream), Origin::of(from.ip())))
            }
            Self::Unix(listener) => {
                let stream = listener.accept().await?.0;
                let user = door::user_of(&stream);
                Ok((Stream::Unix(stream), user))
            }
            Self::World(world, address) => {
                let stream = WorldStream::accept(*world, &address.name_in_world()).await?;
                Ok((Stream::World(stream), Origin::User(0)))
            }
        }
    }
}

impl Stream {
    async fn serve<H: Handler>(
        self,
        handler: Arc<H>,
        config: Arc<ServerConfig>,
        place: Place,
        shutdown: watch::Receiver<bool>,
    ) {
        let until = boottime().plus(config.handshake_time);
        let came = |names| connection::Came { names, place, until };
        match self {
            Self::Tcp(stream) => match config.gate.tls().map(TlsServer::acceptor) {
                None => {
                    connection::serve(stream, came(Vec::new()), handler, config, shutdown).await;
                }
                Some(acceptor) => {
                    let Some((stream, names)) = encrypted(stream, acceptor, until).await else {
                        return;
                    };
                    connection::serve(stream, came(names), handler, config, shutdown).await;
                }
            },
            Self::Unix(stream) => {
                connection::serve(stream, came(Vec::new()), handler, config, shutdown).await;
            }
            Self::World(stream) => {
                connection::serve(stream, came(Vec::new()), handler, config, shutdown).await;
            }
        }
    }
}

/// Encrypts a connection; what the certificate of its caller says. A caller that fails is told why by
/// TLS itself.
async fn encrypted(
    mut stream: tokio::net::TcpStream,
    acceptor: tokio_rustls::TlsAcceptor,
    until: Now,
) -> Option<(tokio_rustls::server::TlsStream<tokio::net::TcpStream>, Vec<Credential>)> {
    let mut first = [0; 1];
    timeout(until.since(boottime()), stream.peek(&mut first)).await?.ok()?;
    if first[0] == MAGIC[0] {
        // A plain frame is answered as plainly, and with nothing else.
        connection::refuse_plain(&mut stream).await;
        return None;
    }
    match timeout(until.since(boottime()), acceptor.accept(stream).into_fallible()).await? {
        Ok(stream) => {
            let names = tls::credentials(stream.get_ref().1.peer_certificates());
            Some((stream, names))
        }
        Err((_, mut stream)) => {
            connection::last_words(&mut stream).await;
            None
        }
    }
}

/// Ends when the server shall: the flag turned true, or whoever could turn it is gone.
async fn down(shutdown: &mut watch::Receiver<bool>) {
    let _ = shutdown.wait_for(|down| *down).await;
}

fn refused(code: RefusalCode, message: impl Into<String>) -> Reply {
    Reply::Refuse(Refusal::new(code, message))
}
