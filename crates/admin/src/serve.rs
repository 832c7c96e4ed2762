//! The sockets of a window. Whoever connects and asks nothing makes room for others.
//!
//! What must stay true: a connection costs one descriptor for a bounded time; a request has a time for its
//! head and another for the rest; there are at most so many connections, whoever opens them.

use crate::Refused;
use axum::Router;
use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, Request};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::serve::{IncomingStream, Listener};
use mooncrate_core::door::{Limits, Origin};
use mooncrate_wire::door::{Keeper, KeptStream, Pulse, Times, Turned, descriptor_share};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

/// Longest time for a request whose head is here: its body, and the answer. It must exceed every time that a
/// handler sets itself (the longest: 30 s for removing all keys in the master), or the request is cut before
/// the handler has said what it did, and the change leaves no audit line.
const REQUEST_TIME: Duration = Duration::from_secs(45);
/// Rest after an accept that failed: the system lacks something, and asking at once would spin.
const PAUSE: Duration = Duration::from_millis(50);

/// Bounds of a window. Plain data.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What the log calls it.
    pub name: &'static str,
    /// Connections at once.
    pub connections: usize,
    /// How long they may rest.
    pub times: Times,
}

impl Settings {
    /// The usual ones.
    pub fn new(name: &'static str) -> Self {
        let (first, idle) = (Duration::from_secs(10), Duration::from_mins(1));
        let times = Times { first, idle, write: first };
        Self { name, connections: descriptor_share(1, 1024), times }
    }
}

/// Answers until `stop` is done, then finishes the requests under way. The caller bounds that wait.
/// `routes` come from [`window`](crate::window).
pub async fn serve(
    listener: TcpListener,
    routes: Router,
    settings: Settings,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let crowded = |turned: &Turned| tracing::warn!("{turned}");
    let keeper = Keeper::new(settings.name, Limits::open(settings.connections), crowded);
    let kept = Kept { listener, keeper, times: settings.times };
    let routes = routes.layer(from_fn(visit)).into_make_service_with_connect_info::<Came>();
    axum::serve(kept, routes).with_graceful_shutdown(stop).await
}

/// From where a connection came, and its life.
#[derive(Clone, Debug)]
struct Came {
    from: SocketAddr,
    /// `None`: this is the address of the listener itself.
    pulse: Option<Arc<Pulse>>,
}

struct Kept {
    listener: TcpListener,
    keeper: Keeper,
    times: Times,
}

impl Listener for Kept {
    type Io = KeptStream<TcpStream>;
    type Addr = Came;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, from) = match self.listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    self.keeper.failed(&error);
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let Some(place) = self.keeper.admit_task(Origin::of(from.ip())) else { continue };
            // Nobody has to prove anything to look.
            let stream = KeptStream::new(stream, place, self.times).that_sends();
            let pulse = Some(stream.pulse());
            return (stream, Came { from, pulse });
        }
    }

    fn local_addr(&self) -> io::Result<Came> {
        Ok(Came { from: self.listener.local_addr()?, pulse: None })
    }
}

impl Connected<IncomingStream<'_, Kept>> for Came {
    fn connect_info(stream: IncomingStream<'_, Kept>) -> Self {
        stream.remote_addr().clone()
    }
}

/// Stands before everything: the connection does not rest while a request is under way, and no request
/// lasts for ever. Routes see the peer as they would without us, and its life.
async fn visit(ConnectInfo(came): ConnectInfo<Came>, mut request: Request, next: Next) -> Response {
    let _visit = came.pulse.as_ref().map(Pulse::visit);
    request.extensions_mut().insert(ConnectInfo(came.from));
    if let Some(pulse) = came.pulse {
        request.extensions_mut().insert(pulse);
    }
    if let Ok(answer) = tokio::time::timeout(REQUEST_TIME, next.run(request)).await {
        return answer;
    }
    let message = format!("the request was not complete and answered within {REQUEST_TIME:?}");
    Refused(StatusCode::REQUEST_TIMEOUT, message).into_response()
}
