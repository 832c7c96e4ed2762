//! The thread of the door: one runtime for the connections, a bounded pool for calls into the
//! master, health and reflection beside the service.

use crate::accept::{Came, accept};
use crate::answers::{Answers, CountedAnswers, NAME_BYTES};
use crate::door::{Door, Parts};
use crate::pb::master_service_server::MasterServiceServer;
use mooncrate_wire::address::Bound;
use mooncrate_wire::door::{Times, descriptor_share};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::InterceptorLayer;
use tonic::transport::Server;
use tonic::{Request, Status};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tower::layer::layer_fn;

/// How long calls under way may go on when the door closes.
const STOP_GRACE: Duration = Duration::from_secs(3);
/// Time between looks at the master's health.
const PROBE: Duration = Duration::from_secs(1);
/// A silent connection is asked after so long whether it is still there, and has so long to answer.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));
/// A connection is closed that asks nothing for so long: at first; later.
const TIMES: Times = Times {
    first: Duration::from_secs(10),
    idle: Duration::from_mins(10),
    write: Duration::from_secs(10),
};
/// Connections that are accepted but not yet served.
const ACCEPTED: usize = 16;
const OWN: &str = "descriptors that this build has compiled itself are well-formed";
/// The service's name in health checks, beside the empty one for the whole server.
const SERVICE: &str = "mooncrate.v1.MasterService";

/// Bounds of a door. Plain data.
#[derive(Clone, Debug)]
pub struct GrpcConfig {
    /// Calls under way at a time; beyond, `RESOURCE_EXHAUSTED`.
    pub calls: usize,
    /// Connections open at a time; beyond, those that have proved nothing make room.
    pub connections: usize,
    /// How long they may rest, and leave an answer unread.
    pub times: Times,
    /// Room for the unread answers of all connections, beside 64 KiB for each; beyond, `RESOURCE_EXHAUSTED`.
    pub answer_bytes: u32,
    /// Calls under way on one connection; beyond, they wait.
    pub calls_per_connection: u32,
    /// Bytes of a message, either way.
    pub message_bytes: usize,
    /// Longest time for a call, whatever the caller says.
    pub call_max: Duration,
    /// Puts that began here and are open.
    pub open_puts: usize,
    /// How long the master keeps a put open.
    pub put_timeout: Duration,
}

impl Default for GrpcConfig {
    fn default() -> Self {
        Self {
            calls: 64,
            connections: descriptor_share(2, 4096),
            times: TIMES,
            answer_bytes: 64 << 20,
            calls_per_connection: 64,
            message_bytes: 8 << 20,
            call_max: Duration::from_secs(30),
            open_puts: 4096,
            put_timeout: Duration::from_secs(30),
        }
    }
}

/// A door at work. Dropping it closes it.
#[derive(Debug)]
pub struct GrpcServing {
    address: SocketAddr,
    answers: Arc<Answers>,
    shutdown: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl GrpcServing {
    /// Where it listens really.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Bytes of memory that answers take which their callers have not read, of all connections.
    pub fn unsent_bytes(&self) -> u64 {
        self.answers.unsent_bytes()
    }

    /// Takes no new calls, lets those under way end for a moment, and returns when its threads have
    /// ended.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.shutdown.send(true);
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

impl Drop for GrpcServing {
    fn drop(&mut self) {
        self.end();
    }
}

/// Opens the door on a TCP socket.
pub fn serve_grpc(socket: Bound, parts: Parts, config: GrpcConfig) -> io::Result<GrpcServing> {
    let Bound::Tcp(listener) = socket else {
        let message = "gRPC listens on host:port, not on a path";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    };
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_name("grpc-call")
        // One more: the probe of health must not wait for calls.
        .max_blocking_threads(config.calls + 1)
        .build()?;
    let (shutdown, down) = watch::channel(false);
    let answers = Arc::new(Answers::new(config.answer_bytes, config.times.write));
    let counted = Arc::clone(&answers);
    let thread = Builder::new().name("grpc".into()).spawn(move || {
        runtime.block_on(async {
            match TcpListener::from_std(listener) {
                Ok(listener) => run(listener, parts, config, counted, down).await,
                Err(error) => tracing::error!(%error, "the gRPC listener cannot be used"),
            }
        });
        // A call that does not come back must not keep the process.
        runtime.shutdown_background();
    })?;
    Ok(GrpcServing { address, answers, shutdown, thread: Some(thread) })
}

async fn run(
    listener: TcpListener,
    parts: Parts,
    config: GrpcConfig,
    answers: Arc<Answers>,
    down: watch::Receiver<bool>,
) {
    let (reporter, health) = tonic_health::server::health_reporter();
    let (give, take) = mpsc::channel(ACCEPTED);
    let (gate, bounds) = (parts.gate.clone(), config.clone());
    let connections = async move { accept(listener, &bounds, &gate, &answers, give).await };
    let probe = watch_health(reporter.clone(), Arc::clone(&parts.leads), down.clone());
    let beside = async move {
        tokio::join!(connections, probe);
        // Whoever is still being served decides when all is over.
        std::future::pending::<()>().await;
    };
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(crate::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let message_bytes = config.message_bytes;
    let server = Server::builder()
        .timeout(config.call_max)
        .max_concurrent_streams(config.calls_per_connection)
        .http2_keepalive_interval(Some(KEEPALIVE.0))
        .http2_keepalive_timeout(Some(KEEPALIVE.1))
        .layer(InterceptorLayer::new(heard))
        .layer(layer_fn(CountedAnswers))
        .add_service(health.max_decoding_message_size(NAME_BYTES))
        .add_service(reflection().build_v1().expect(OWN).max_decoding_message_size(NAME_BYTES))
        .add_service(reflection().build_v1alpha().expect(OWN).max_decoding_message_size(NAME_BYTES))
        .add_service(
            MasterServiceServer::new(Door::new(parts, config))
                .max_decoding_message_size(message_bytes)
                .max_encoding_message_size(message_bytes),
        );
    let closing = {
        let (reporter, down) = (reporter, down.clone());
        async move {
            closed(down).await;
            set_health(&reporter, ServingStatus::NotServing).await;
        }
    };
    let too_long = async {
        closed(down).await;
        tokio::time::sleep(STOP_GRACE).await;
    };
    tokio::select! {
        ended = server.serve_with_incoming_shutdown(ReceiverStream::new(take), closing) => {
            if let Err(error) = ended {
                tracing::error!(%error, "the gRPC door ended");
            }
        }
        () = beside => {}
        () = too_long => tracing::debug!("gRPC calls under way were cut off"),
    }
}

/// Every call is a sign of life, those of health and reflection, which ask for nothing, too.
#[expect(clippy::unnecessary_wraps, reason = "others of its kind refuse")]
fn heard(request: Request<()>) -> Result<Request<()>, Status> {
    if let Some(came) = request.extensions().get::<Came>() {
        drop(came.pulse.visit());
    }
    Ok(request)
}

/// Until the door is told to close, or whoever could tell it is gone.
async fn closed(mut down: watch::Receiver<bool>) {
    let _ = down.wait_for(|down| *down).await;
}

/// Serving exactly while the master answers: one that does not lead refuses.
async fn watch_health(
    reporter: HealthReporter,
    leads: Arc<dyn Fn() -> bool + Send + Sync>,
    down: watch::Receiver<bool>,
) {
    let mut known = None;
    while !*down.borrow() {
        let leads = Arc::clone(&leads);
        let asked = tokio::task::spawn_blocking(move || leads());
        let status = match asked.await {
            Ok(true) => ServingStatus::Serving,
            _ => ServingStatus::NotServing,
        };
        // The reporter sends an update to every watcher each time it is set, so it is set for a change only.
        if known != Some(status) && !*down.borrow() {
            set_health(&reporter, status).await;
            known = Some(status);
        }
        tokio::time::sleep(PROBE).await;
    }
}

async fn set_health(reporter: &HealthReporter, status: ServingStatus) {
    reporter.set_service_status("", status).await;
    reporter.set_service_status(SERVICE, status).await;
}
