//! Callers without a credential that ask for answers and do not read them, and answer every ping.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]
#![expect(clippy::disallowed_methods, reason = "the runtime of a test ends its tasks")]

#[expect(dead_code, reason = "each test binary uses a part of it")]
mod support;

use h2::client::SendRequest;
use h2::{Ping, RecvStream};
use mooncrate_grpc::{DESCRIPTORS, GrpcConfig, Times};
use mooncrate_wire::Gate;
use prost::Message;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use support::{Cluster, secret};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tonic::Code;
use tonic::codegen::{Bytes, http};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;

const HOUR: Duration = Duration::from_hours(1);
/// Longest wait, on a machine that is busy with other things.
const LONG: Duration = Duration::from_secs(30);
/// A deadline that passes while a test runs.
const SOON: Duration = Duration::from_secs(1);
/// A flow-control window for everything in these tests.
const WIDE: u32 = 1 << 20;
const CHECK: &str = "/grpc.health.v1.Health/Check";
const WATCH: &str = "/grpc.health.v1.Health/Watch";
const REFLECT: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
/// Bytes of an answer of health: the head of a message, and one field.
const HEALTH_BYTES: u32 = 7;

fn cluster(write: Duration, answer_bytes: u32, leads: &Arc<AtomicBool>) -> Cluster {
    let times = Times { first: HOUR, idle: HOUR, write };
    let leads = Arc::clone(leads);
    Cluster::start_with(Gate::new(Some(secret()), None), |mut parts| {
        parts.leads = Arc::new(move || leads.load(Ordering::SeqCst));
        (parts, GrpcConfig { times, answer_bytes, ..GrpcConfig::default() })
    })
}

fn in_runtime(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { timeout(LONG, test).await.expect("the server did nothing in time") });
}

/// A connection that sends pings and answers them, but grants no more window than the test sets.
struct Peer {
    send: SendRequest<Bytes>,
    connection: JoinHandle<()>,
    pongs: Arc<AtomicU64>,
}

impl Peer {
    async fn connect(at: SocketAddr, window: u32) -> Self {
        let stream = TcpStream::connect(at).await.unwrap();
        let mut client = h2::client::Builder::new();
        client.initial_window_size(window).initial_connection_window_size(WIDE);
        let (send, mut connection) = client.handshake(stream).await.unwrap();
        let pongs = Arc::new(AtomicU64::new(0));
        let (mut ping, counted) = (connection.ping_pong().unwrap(), Arc::clone(&pongs));
        tokio::spawn(async move {
            while ping.ping(Ping::opaque()).await.is_ok() {
                counted.fetch_add(1, Ordering::SeqCst);
                sleep(Duration::from_millis(10)).await;
            }
        });
        let connection = tokio::spawn(async move { drop(connection.await) });
        Self { send, connection, pongs }
    }

    /// Asks, and waits for the head of the answer.
    async fn ask(&mut self, path: &str, message: &impl Message) -> RecvStream {
        let request = http::Request::post(format!("http://localhost{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        let mut send = self.send.clone().ready().await.unwrap();
        let (answer, mut body) = send.send_request(request.body(()).unwrap(), false).unwrap();
        let mut framed = vec![0];
        framed.extend(u32::try_from(message.encoded_len()).unwrap().to_be_bytes());
        message.encode(&mut framed).unwrap();
        body.send_data(framed.into(), true).unwrap();
        answer.await.unwrap().into_body()
    }

    /// The status of a health check.
    async fn status(&mut self, check: &HealthCheckRequest) -> Code {
        taken(self.ask(CHECK, check).await).await.1
    }

    /// Waits until the server closes the connection; it answered pings until then.
    async fn closed(self) {
        self.connection.await.unwrap();
        assert!(self.pongs.load(Ordering::SeqCst) > 0);
    }
}

/// Reads an answer to its end: its bytes and the status in its trailers.
async fn taken(mut answer: RecvStream) -> (Vec<u8>, Code) {
    let mut bytes = Vec::new();
    while let Some(Ok(data)) = answer.data().await {
        answer.flow_control().release_capacity(data.len()).unwrap();
        bytes.extend_from_slice(&data);
    }
    let trailers = answer.trailers().await.ok().flatten().unwrap_or_default();
    (
        bytes,
        trailers.get("grpc-status").map_or(Code::Unknown, |code| Code::from_bytes(code.as_bytes())),
    )
}

fn about_the_service(host: String) -> ServerReflectionRequest {
    let symbol = MessageRequest::FileContainingSymbol("mooncrate.v1.MasterService".into());
    ServerReflectionRequest { host, message_request: Some(symbol) }
}

fn health() -> HealthCheckRequest {
    HealthCheckRequest::default()
}

async fn until(mut so: impl FnMut() -> bool) {
    while !so() {
        sleep(Duration::from_millis(10)).await;
    }
}

/// The server refuses what goes beyond its room; a small answer to another connection still fits, and the room is free
/// again when the connection has ended.
#[test]
fn security_answers_that_are_not_read_have_a_bound() {
    const STREAMS: usize = 64;
    let room = 512 << 10;
    let most = u64::from(room) + (64 << 10);
    let cluster = cluster(HOUR, room, &Arc::new(AtomicBool::new(true)));
    in_runtime(async {
        let mut peer = Peer::connect(cluster.door_address(), 0).await;
        let (tell, mut refused) = mpsc::unbounded_channel();
        for _ in 0..STREAMS {
            let answer = peer.ask(REFLECT, &about_the_service(String::new())).await;
            let tell = tell.clone();
            tokio::spawn(async move { tell.send(taken(answer).await) });
        }
        let fit = usize::try_from(most).unwrap() / DESCRIPTORS.len();
        for _ in fit..STREAMS {
            assert_eq!(refused.recv().await.unwrap(), (Vec::new(), Code::ResourceExhausted));
        }
        let unsent = cluster.unsent_bytes();
        assert!(unsent > DESCRIPTORS.len() as u64 && unsent <= most, "{unsent} of {most}");

        let mut other = Peer::connect(cluster.door_address(), WIDE).await;
        let (bytes, code) = taken(other.ask(CHECK, &health()).await).await;
        assert_eq!((bytes.len(), code), (HEALTH_BYTES as usize, Code::Ok));

        peer.connection.abort();
        until(|| cluster.unsent_bytes() == 0).await;
        let answer = other.ask(REFLECT, &about_the_service(String::new())).await;
        let (bytes, code) = taken(answer).await;
        assert!(bytes.len() > DESCRIPTORS.len() / 2 && code == Code::Ok, "{} {code}", bytes.len());
        until(|| cluster.unsent_bytes() == 0).await;
    });
}

/// No window at all, and one byte at a time: pings and bytes do not extend the deadline.
#[test]
fn security_a_peer_that_does_not_read_is_disconnected() {
    let cluster = cluster(SOON, WIDE, &Arc::new(AtomicBool::new(true)));
    in_runtime(async {
        let mut none = Peer::connect(cluster.door_address(), 0).await;
        let _answer = none.ask(CHECK, &health()).await;
        none.closed().await;
        until(|| cluster.unsent_bytes() == 0).await;

        let mut trickle = Peer::connect(cluster.door_address(), 1).await;
        let mut answer = trickle.ask(REFLECT, &about_the_service(String::new())).await;
        let mut bytes = 0;
        while let Some(Ok(data)) = answer.data().await {
            bytes += data.len();
            sleep(Duration::from_millis(10)).await;
            let _ = answer.flow_control().release_capacity(data.len());
        }
        assert!(bytes < DESCRIPTORS.len() / 2, "all of it was read");
        trickle.closed().await;
        until(|| cluster.unsent_bytes() == 0).await;
    });
}

/// The library drops the body when it has passed its last frame on, whether the peer has read that frame or not.
#[test]
fn security_a_frame_counts_until_it_is_read_and_not_until_its_body_ends() {
    let cluster = cluster(SOON, WIDE, &Arc::new(AtomicBool::new(true)));
    in_runtime(async {
        let mut peer = Peer::connect(cluster.door_address(), 1).await;
        let mut answer = peer.ask(CHECK, &health()).await;
        assert_eq!(answer.data().await.unwrap().unwrap().len(), 1);
        peer.closed().await;
        until(|| cluster.unsent_bytes() == 0).await;
    });
}

/// A watch has nothing to send for hours. It stays; one whose update is not read does not.
#[test]
fn security_a_watch_stays_while_its_updates_are_read() {
    let leads = Arc::new(AtomicBool::new(true));
    let cluster = cluster(SOON, WIDE, &leads);
    let status = |data: Bytes| HealthCheckResponse::decode(&data[5..]).unwrap().status();
    in_runtime(async {
        let mut reader = Peer::connect(cluster.door_address(), WIDE).await;
        // The first probe of the master adds this name, and is the last update while nothing changes.
        let named = HealthCheckRequest { service: "mooncrate.v1.MasterService".into() };
        while reader.status(&named).await != Code::Ok {}
        let mut read = reader.ask(WATCH, &health()).await;
        assert_eq!(status(read.data().await.unwrap().unwrap()), ServingStatus::Serving);
        // This one grants window for one message.
        let mut once = Peer::connect(cluster.door_address(), HEALTH_BYTES).await;
        let mut unread = once.ask(WATCH, &health()).await;
        assert_eq!(status(unread.data().await.unwrap().unwrap()), ServingStatus::Serving);

        sleep(4 * SOON).await;
        assert!(!reader.connection.is_finished() && !once.connection.is_finished());
        leads.store(false, Ordering::SeqCst);
        assert_eq!(status(read.data().await.unwrap().unwrap()), ServingStatus::NotServing);
        once.closed().await;
        assert_eq!(reader.status(&health()).await, Code::Ok);
    });
}

/// Reflection repeats its request in the answer, twice: a long one would make long answers, and three of them at a time.
#[test]
fn security_reflection_repeats_no_long_request() {
    let cluster = cluster(HOUR, WIDE, &Arc::new(AtomicBool::new(true)));
    in_runtime(async {
        let mut peer = Peer::connect(cluster.door_address(), WIDE).await;
        let answer = peer.ask(REFLECT, &about_the_service("h".repeat(64 << 10))).await;
        assert_eq!(taken(answer).await.0.len(), 0);
    });
}
