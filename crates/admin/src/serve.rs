//! The sockets of a window. Whoever connects and asks nothing makes room for others, and so does whoever asks and
//! does not take the answer.
//!
//! What must stay true: a connection costs one descriptor for a bounded time; a request has a time for its
//! head and another for the rest; there are at most so many connections, whoever opens them. A connection has
//! one answer at a time, because HTTP/1.1 is all that is spoken: in HTTP/2 one could ask for hundreds and take none.
//! Answers that wait to be taken have a bound over the whole port ([`Answers`]).

use crate::Refused;
use crate::answers::Answers;
use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use mooncrate_core::door::{Limits, Origin};
use mooncrate_wire::door::{Keeper, KeptStream, Pulse, Times, Turned, descriptor_share};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tower::ServiceExt;

/// Longest time for a request whose head is here: its body, and the answer. It must exceed every time that a
/// handler sets itself (the longest: 30 s for removing all keys in the master), or the request is cut before
/// the handler has said what it did, and the change leaves no audit line.
const REQUEST_TIME: Duration = Duration::from_secs(45);
/// Rest after an accept that failed: the system lacks something, and asking at once would spin.
const PAUSE: Duration = Duration::from_millis(50);
/// Looks (GET) that are being answered at a time; more wait. Each has its answer in memory.
const LOOKS: usize = 16;

/// Bounds of a window. Plain data.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What the log calls it.
    pub name: &'static str,
    /// Connections at once.
    pub connections: usize,
    /// How long they may rest.
    pub times: Times,
    /// Bytes of large answers that wait to be taken, of all connections.
    pub answer_bytes: u32,
}

impl Settings {
    /// The usual ones.
    pub fn new(name: &'static str) -> Self {
        let (first, idle) = (Duration::from_secs(10), Duration::from_mins(1));
        let times = Times { first, idle, write: first };
        Self { name, connections: descriptor_share(1, 1024), times, answer_bytes: 64 << 20 }
    }
}

/// Answers until `stop` is done, then finishes the requests under way. The caller bounds that wait.
/// `routes` come from [`window`](crate::window) or [`metrics_only`](crate::metrics_only).
pub async fn serve(
    listener: TcpListener,
    routes: Router,
    settings: Settings,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let crowded = |turned: &Turned| tracing::warn!("{turned}");
    let keeper = Keeper::new(settings.name, Limits::open(settings.connections), crowded);
    let desk = Desk {
        looks: Arc::new(Semaphore::new(LOOKS)),
        answers: Answers::new(settings.answer_bytes),
    };
    let routes = routes.layer(from_fn_with_state(desk, visit));
    let (closing, closes) = watch::channel(());
    let mut guests = JoinSet::new();
    tokio::pin!(stop);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = guests.join_next() => continue,
            () = &mut stop => break,
        };
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                keeper.failed(&error);
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let Some(place) = keeper.admit_task(Origin::of(from.ip())) else { continue };
        // Nobody has to prove anything to look.
        let stream = KeptStream::new(stream, place, settings.times);
        guests.spawn(converse(stream, from, routes.clone(), closes.clone()));
    }
    drop((listener, closing));
    while guests.join_next().await.is_some() {}
    Ok(())
}

/// One connection. What it ends with is its own affair.
async fn converse(
    stream: KeptStream<TcpStream>,
    from: SocketAddr,
    routes: Router,
    mut closes: watch::Receiver<()>,
) {
    let came = Came { from, pulse: stream.pulse() };
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(came.clone());
        routes.clone().oneshot(request)
    });
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    tokio::select! {
        _ended = connection.as_mut() => return,
        // Nothing is ever sent: the other end is gone.
        _closing = closes.changed() => connection.as_mut().graceful_shutdown(),
    }
    let _ended = connection.await;
}

/// From where a connection came, and its life.
#[derive(Clone, Debug)]
struct Came {
    from: SocketAddr,
    pulse: Arc<Pulse>,
}

/// What all requests of a window share.
#[derive(Clone, Debug)]
struct Desk {
    looks: Arc<Semaphore>,
    answers: Answers,
}

/// Stands before everything: the connection does not rest while a request is under way, and no request
/// lasts for ever. Routes see the peer as they would without us, and its life.
async fn visit(State(desk): State<Desk>, mut request: Request, next: Next) -> Response {
    let came = request.extensions_mut().remove::<Came>().expect("each connection tells who came");
    let _visit = came.pulse.visit();
    request.extensions_mut().insert(ConnectInfo(came.from));
    request.extensions_mut().insert(Arc::clone(&came.pulse));
    let looks = request.method() == Method::GET;
    let answered = async {
        // Changes read what their caller sends, and wait for nobody who does not.
        let _look = if looks { desk.looks.acquire().await.ok() } else { None };
        next.run(request).await
    };
    if let Ok(answer) = tokio::time::timeout(REQUEST_TIME, answered).await {
        return desk.answers.bounded(answer, came.pulse.sends());
    }
    let message = format!("the request was not complete and answered within {REQUEST_TIME:?}");
    Refused(StatusCode::REQUEST_TIMEOUT, message).into_response()
}
