//! Connections, kept (`wire::door`), and encrypted where the cluster is. When as many are open as may be,
//! one that has proved nothing makes room for the next.

use crate::answers::{Answers, Unsent};
use crate::serve::GrpcConfig;
use mooncrate_core::door::{Limits, Origin};
use mooncrate_wire::door::{Keeper, KeptStream, Pulse, Turned};
use mooncrate_wire::tls::TlsServer;
use mooncrate_wire::{Credential, Gate};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::transport::server::Connected;

/// Pause after a failed accept: the system lacks descriptors or memory, and asking at once again
/// would only burn a core.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a caller may take to agree on a key.
const HANDSHAKE: Duration = Duration::from_secs(3);
/// Handshakes at a time whose tasks have not ended: those of displaced callers are about to.
const HANDSHAKES_MAX: usize = 4096;
/// What HTTP/2 is called in that handshake.
const PROTOCOL: &[u8] = b"h2";

/// What carries a connection: a socket, or TLS over one.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// What is known of a connection, for every call on it.
#[derive(Clone, Debug)]
pub(crate) struct Came {
    /// From where.
    pub(crate) peer: SocketAddr,
    /// What the caller's certificate says of it.
    pub(crate) names: Arc<[Credential]>,
    /// Its life at this door.
    pub(crate) pulse: Arc<Pulse>,
    /// Held while a wrong credential waits for its refusal: one guess at a time.
    pub(crate) guess: Arc<Mutex<()>>,
    /// Frames of its answers that are not sent yet.
    pub(crate) unsent: Arc<Unsent>,
}

/// A connection in its place.
pub(crate) struct Counted {
    stream: Box<dyn Stream>,
    came: Came,
    /// Wakes the connection when an unsent frame may be due.
    timer: Pin<Box<Sleep>>,
}

impl Counted {
    fn new(stream: Box<dyn Stream>, came: Came) -> Self {
        let timer = Box::pin(sleep_until(came.unsent.next_look(Instant::now())));
        Self { stream, came, timer }
    }

    /// Ready when the peer has not taken a frame by its deadline.
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            let (now, due) = (Instant::now(), self.came.unsent.due());
            if due.is_some_and(|due| due <= now) {
                return Poll::Ready(io::ErrorKind::TimedOut.into());
            }
            let look = self.came.unsent.next_look(now);
            let until = due.map_or(look, |due| due.min(look));
            if self.timer.is_elapsed() || until < self.timer.deadline() {
                self.timer.as_mut().reset(until);
            }
            ready!(self.timer.as_mut().poll(cx));
        }
    }
}

/// Accepts until nobody takes the connections any more.
pub(crate) async fn accept(
    listener: TcpListener,
    config: &GrpcConfig,
    gate: &Gate,
    answers: &Arc<Answers>,
    give: mpsc::Sender<io::Result<Counted>>,
) {
    // Where nobody has anything to prove, everybody is a stranger.
    let limits = if gate.is_guarded() { Limits::proving } else { Limits::open };
    let crowded = |turned: &Turned| tracing::warn!("{turned}");
    let keeper = Keeper::new("the gRPC port", limits(config.connections), crowded);
    let tls = gate.tls().map(|tls| tls.speaking(PROTOCOL));
    let mut handshakes = JoinSet::new();
    loop {
        while handshakes.try_join_next().is_some() {}
        if handshakes.len() >= HANDSHAKES_MAX {
            handshakes.join_next().await;
        }
        let (stream, peer) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    keeper.failed(&error);
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            },
            () = give.closed() => return,
        };
        let Some(place) = keeper.admit_task(Origin::of(peer.ip())) else { continue };
        // Answers are small; waiting to fill a packet would cost more than sending one.
        let _ = stream.set_nodelay(true);
        let stream = KeptStream::new(stream, place, config.times);
        let (tls, give) = (tls.clone(), give.clone());
        let unsent = Unsent::new(Arc::clone(answers));
        handshakes.spawn(async move {
            let pulse = stream.pulse();
            let Some((stream, names)) = encrypted(stream, tls).await else { return };
            if !names.is_empty() {
                pulse.prove();
            }
            let came = Came { peer, names: names.into(), pulse, guess: Arc::default(), unsent };
            let _ = give.send(Ok(Counted::new(stream, came))).await;
        });
    }
}

/// The stream that calls travel on; `None`: the caller does not speak TLS, or not ours. TLS itself
/// tells it why.
async fn encrypted(
    stream: KeptStream<TcpStream>,
    tls: Option<TlsServer>,
) -> Option<(Box<dyn Stream>, Vec<Credential>)> {
    let Some(tls) = tls else { return Some((Box::new(stream), Vec::new())) };
    match tokio::time::timeout(HANDSHAKE, tls.accept(stream)).await {
        Ok(Ok((stream, names))) => Some((Box::new(stream), names)),
        Ok(Err(error)) => {
            tracing::debug!(%error, "a gRPC connection was not encrypted");
            None
        }
        Err(_) => None,
    }
}

impl Connected for Counted {
    type ConnectInfo = Came;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.came.clone()
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // Before what was received: no ping and no window of a few bytes extends a deadline.
        if let Poll::Ready(error) = self.poll_late(cx) {
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
