//! What a node offers to programs that were written for Mooncake: the HTTP of its client, and the door at
//! which its dummy stores learn where the cluster is.
//!
//! ```text
//!   GET /health           {"status":"healthy","code":0}, or 503 and why not
//!   GET /metrics          for Prometheus
//!   GET /metrics/summary  one line
//!
//!   a dummy store ── {"mooncrate_client":1}\n ──► door
//!                 ◄── {"mooncrate_client":1,"master":…,"segment":…,"tenant":…}\n ──
//! ```
//!
//! A dummy store then is a client like others, and reads the memory of this node where it may.
//!
//! What must stay true: it shows no key and changes nothing; a caller of the door costs a bounded
//! number of bytes and a bounded time; whoever is not on this machine gets nothing.

use crate::duty::Node;
use crate::metrics::Health;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use mooncrate_admin::Registry;
use mooncrate_core::door::{Limits, Origin};
use mooncrate_core::shown::shown;
use mooncrate_wire::door::{Keeper, Turned};
use serde_json::{Value, json};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// A master that has not answered for this long is not there. Heartbeats are much more frequent.
const MASTER_GONE_SECONDS: f64 = 3.0;
/// Bytes of a question at the door.
const QUESTION_BYTES_MAX: u64 = 256;
/// How long a caller of the door may take.
const CALLER_TIME: Duration = Duration::from_secs(2);
/// Callers of the door at a time; of more, those that came first make room.
const CALLERS_MAX: usize = 64;
/// How long the door rests when the system has nothing left to accept a caller with.
const REST: Duration = Duration::from_millis(50);
/// The field by which both sides know each other, and its value.
const WORD: &str = "mooncrate_client";

/// The routes of a node's admin HTTP with those of Mooncake's client beside them.
pub fn routes(node: Arc<Node>, registry: Arc<Registry>) -> Router {
    let (well, line) = (Arc::clone(&node), Arc::clone(&node));
    let more = Router::new()
        .route("/health", get(move || async move { health(&well) }))
        .route("/metrics/summary", get(move || async move { summary(&line) }))
        .method_not_allowed_fallback(nothing_here);
    let metrics =
        get(move || async move { mooncrate_admin::metrics_older(String::new(), &registry) });
    crate::admin::own_routes(node).merge(more).route("/metrics", metrics).fallback(nothing_here)
}

async fn nothing_here() -> (StatusCode, &'static str) {
    (StatusCode::NOT_FOUND, "404 Not Found")
}

/// How a node is, in the words of that API.
fn standing(health: &Health) -> (StatusCode, &'static str, u8) {
    if health.heartbeat_age > MASTER_GONE_SECONDS {
        (StatusCode::SERVICE_UNAVAILABLE, "master_unreachable", 2)
    } else if !health.mounted {
        (StatusCode::SERVICE_UNAVAILABLE, "not_initialized", 1)
    } else {
        (StatusCode::OK, "healthy", 0)
    }
}

fn health(node: &Node) -> Response {
    let (status, words, code) = standing(&Health::of(node));
    (status, Json(json!({ "status": words, "code": code }))).into_response()
}

fn summary(node: &Node) -> String {
    let (_, words, _) = standing(&Health::of(node));
    let data = &node.tally().data;
    let segments = node.segments().all();
    let bytes: u64 = segments.iter().map(|segment| segment.spec().bytes).sum();
    format!(
        "role=client, health={words}, segment={}, memory={bytes} B, connections={}, read={} B, \
         published={} replicas, {} B\n",
        shown(&node.info().name),
        data.connections.value(),
        data.read_bytes.value(),
        data.published.value(),
        data.published_bytes.value(),
    )
}

/// What the door answers.
pub fn introduction(master: &str, segment: &str, tenant: &str) -> Value {
    json!({ WORD: 1, "master": master, "segment": segment, "tenant": tenant })
}

/// Answers at the door until `stop` is done.
pub async fn serve_door(listener: TcpListener, answer: Value, stop: impl Future<Output = ()>) {
    let answer: Arc<str> = format!("{answer}\n").into();
    let crowded = |turned: &Turned| tracing::warn!("{turned}");
    let limits = Limits { all: CALLERS_MAX, strangers: CALLERS_MAX, per_origin: CALLERS_MAX };
    let keeper = Keeper::new("the door for dummy stores", limits, crowded);
    let mut callers = JoinSet::new();
    tokio::pin!(stop);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut stop => return,
            Some(_) = callers.join_next(), if !callers.is_empty() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) if peer.ip().to_canonical().is_loopback() => {
                let answer = Arc::clone(&answer);
                let Some((place, displaced)) = keeper.admit_task(Origin::of(peer.ip())) else {
                    continue;
                };
                callers.spawn(async move {
                    let _place = place;
                    // A caller that is too slow or talks nonsense is hung up on.
                    tokio::select! {
                        biased;
                        () = displaced => {}
                        _ = timeout(CALLER_TIME, introduce(stream, &answer)) => {}
                    }
                });
            }
            Ok(_) => {}
            Err(error) => {
                keeper.failed(&error);
                tokio::time::sleep(REST).await;
            }
        }
    }
}

async fn introduce(stream: TcpStream, answer: &str) -> io::Result<()> {
    let mut line = Vec::new();
    let mut reader = BufReader::new(stream).take(QUESTION_BYTES_MAX);
    reader.read_until(b'\n', &mut line).await?;
    let asked: Value = serde_json::from_slice(&line).unwrap_or_default();
    let mut stream = reader.into_inner().into_inner();
    if asked[WORD] == json!(1) {
        stream.write_all(answer.as_bytes()).await?;
    } else {
        let words = "{\"error\":\"this is the door of a mooncrate client, version 1\"}\n";
        stream.write_all(words.as_bytes()).await?;
    }
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_has_three_words() {
        let of = |mounted, heartbeat_age| {
            let (status, _, code) = standing(&Health { mounted, heartbeat_age, serve_left: 1.0 });
            (status.as_u16(), code)
        };
        assert_eq!(of(true, 0.1), (200, 0));
        assert_eq!(of(false, 0.1), (503, 1));
        assert_eq!([of(true, 9.0), of(false, 9.0)], [(503, 2); 2]);
    }

    /// What is sent, and what comes back until the door hangs up.
    fn ask(questions: &'static [&'static [u8]]) -> Vec<String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
            let answer = introduction("127.0.0.1:1", "here:2", "default");
            let door = serve_door(listener, answer, async move { drop(stopped.await) });
            let asking = async move {
                let mut answers = Vec::new();
                for question in questions {
                    let mut stream = TcpStream::connect(address).await.unwrap();
                    stream.write_all(question).await.unwrap();
                    let mut answer = String::new();
                    // Bytes that nobody read end the connection with an error.
                    let _ = stream.read_to_string(&mut answer).await;
                    answers.push(answer);
                }
                stop.send(()).unwrap();
                answers
            };
            let all = async { tokio::join!(door, asking) };
            timeout(Duration::from_secs(20), all).await.unwrap().1
        })
    }

    #[test]
    fn the_door_answers_its_own_and_hangs_up_on_others() {
        let answers = ask(&[
            b"{\"mooncrate_client\":1}\n",
            b"GET / HTTP/1.1\r\n\r\n",
            b"{\"mooncrate_client\":1",
            b"{\"mooncrate_client\":1}\n",
        ]);
        let told: Value = serde_json::from_str(&answers[0]).unwrap();
        assert_eq!(told, introduction("127.0.0.1:1", "here:2", "default"));
        assert!(answers[1].contains("error"), "{answers:?}");
        assert_eq!(answers[2], "", "half a question has no answer, and an end");
        assert_eq!(answers[3], answers[0], "the door goes on");
    }
}
