//! Answers that wait until their caller takes them.
//!
//! ```text
//!   a frame of an answer ─► fits the connection's 64 KiB? ─► HTTP/2          needs no room
//!                        └► room at this port? ─┬─► HTTP/2                   the room is held until it is sent
//!                                               └─► RESOURCE_EXHAUSTED
//!   a frame that is not sent by its deadline ─► the connection is closed
//! ```
//!
//! HTTP/2 keeps a frame until the peer grants flow-control window for it. A peer that answers pings, and makes a call now
//! and then, can grant none for hours. The library does not poll the body meanwhile, so the body cannot end the stream. It may also drop the body
//! while HTTP/2 still keeps the last frame, so the body's end does not show that its bytes were sent. Therefore each
//! frame owns its reservation (`Bytes::from_owner`): HTTP/2 drops a frame when its last byte was written to
//! the socket, or when its stream or connection has ended.
//!
//! What must stay true: the unsent frames of a port hold no more than 64 KiB per connection and the room of the port;
//! every unsent frame has a deadline, and nothing that the peer sends extends it.

use crate::DESCRIPTORS;
use crate::accept::Came;
use http_body::{Body as HttpBody, Frame, SizeHint};
use mooncrate_lock::Mutex;
use mooncrate_wire::door::RATE;
use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Bytes, Service, http};

/// Unsent bytes of a connection that need no room. So a crowd that fills the room keeps no other connection from a
/// small answer.
const SMALL_BYTES: u64 = 64 << 10;
/// Counted with every frame: the library's buffer of 8 KiB, and the state of its stream.
const STREAM_BYTES: u64 = 16 << 10;
/// Longest request to health and reflection, which ask for no credential: the name of a service, a file or a symbol.
/// Reflection repeats its request in the answer.
pub(crate) const NAME_BYTES: usize = 4 << 10;
/// Counted with a frame of reflection: its service makes two more answers while the frame is unsent.
const AHEAD_BYTES: u64 = 2 * (DESCRIPTORS.len() + 3 * NAME_BYTES) as u64;
const REFLECTION: &str = "/grpc.reflection.";

/// The unsent answers of a port.
#[derive(Debug)]
pub(crate) struct Answers {
    room: Arc<Semaphore>,
    room_bytes: u32,
    /// Time for a frame, beside its bytes at [`RATE`].
    write: Duration,
    /// All that is counted, with and without room.
    unsent_bytes: AtomicU64,
}

impl Answers {
    pub(crate) fn new(room_bytes: u32, write: Duration) -> Self {
        let room = Arc::new(Semaphore::new(room_bytes as usize));
        Self { room, room_bytes, write, unsent_bytes: AtomicU64::new(0) }
    }

    /// Bytes that are counted now.
    pub(crate) fn unsent_bytes(&self) -> u64 {
        // Relaxed: a number of its own.
        self.unsent_bytes.load(Ordering::Relaxed)
    }

    fn room(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(self.room_bytes);
        Arc::clone(&self.room).try_acquire_many_owned(bytes).ok()
    }
}

/// The unsent frames of one connection.
#[derive(Debug)]
pub(crate) struct Unsent {
    port: Arc<Answers>,
    frames: Mutex<Frames>,
}

#[derive(Debug, Default)]
struct Frames {
    /// Bytes that hold no room.
    small_bytes: u64,
    all_bytes: u64,
    /// Deadlines, each with a number that makes it unique.
    due: BTreeSet<(Instant, u64)>,
    count: u64,
}

impl Unsent {
    pub(crate) fn new(port: Arc<Answers>) -> Arc<Self> {
        Arc::new(Self { port, frames: Mutex::default() })
    }

    /// The earliest deadline.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.frames.lock().due.first().map(|(due, _)| *due)
    }

    /// When to look at [`due`](Self::due) again at the latest: a frame that is made after `now` is due later.
    pub(crate) fn next_look(&self, now: Instant) -> Instant {
        now + self.port.write
    }

    /// Counts a frame until the result is dropped; `None`: the room of the port is full.
    fn reserve(self: &Arc<Self>, bytes: u64) -> Option<Reserved> {
        let mut frames = self.frames.lock();
        let small = frames.small_bytes + bytes <= SMALL_BYTES;
        let room = if small { None } else { Some(self.port.room(bytes)?) };
        if small {
            frames.small_bytes += bytes;
        }
        frames.all_bytes += bytes;
        frames.count += 1;
        // The frames of a connection share its bandwidth, so those before this one lengthen its time.
        let rated = Duration::from_micros(frames.all_bytes * 1_000_000 / RATE);
        let due = (Instant::now() + self.port.write + rated, frames.count);
        frames.due.insert(due);
        drop(frames);
        self.port.unsent_bytes.fetch_add(bytes, Ordering::Relaxed);
        Some(Reserved { unsent: Arc::clone(self), bytes, room, due })
    }
}

/// The part of a frame in the counts of its connection and its port.
struct Reserved {
    unsent: Arc<Unsent>,
    bytes: u64,
    room: Option<OwnedSemaphorePermit>,
    due: (Instant, u64),
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut frames = self.unsent.frames.lock();
        if self.room.is_none() {
            frames.small_bytes -= self.bytes;
        }
        frames.all_bytes -= self.bytes;
        frames.due.remove(&self.due);
        drop(frames);
        self.unsent.port.unsent_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The bytes of a frame, with their reservation.
struct ReservedBytes {
    bytes: Bytes,
    _reserved: Reserved,
}

impl AsRef<[u8]> for ReservedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A service whose answers are counted.
#[derive(Clone, Debug)]
pub(crate) struct CountedAnswers<S>(pub(crate) S);

impl<S> Service<http::Request<Body>> for CountedAnswers<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<S::Response, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let came =
            request.extensions().get::<Came>().expect("tonic adds the connection to every request");
        let unsent = Arc::clone(&came.unsent);
        let ahead = if request.uri().path().starts_with(REFLECTION) { AHEAD_BYTES } else { 0 };
        let answer = self.0.call(request);
        Box::pin(async move {
            let beside_bytes = STREAM_BYTES + ahead;
            Ok(answer.await?.map(|body| Body::new(CountedBody { body, unsent, beside_bytes })))
        })
    }
}

/// The body of an answer, whose frames are counted.
struct CountedBody {
    body: Body,
    unsent: Arc<Unsent>,
    /// Counted with every frame.
    beside_bytes: u64,
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
            Some(Ok(frame)) => frame,
            ended => return Poll::Ready(ended),
        };
        let bytes = match frame.into_data() {
            Ok(bytes) => bytes,
            Err(other) => return Poll::Ready(Some(Ok(other))),
        };
        let counted_bytes = bytes.len() as u64 + self.beside_bytes;
        let Some(reserved) = self.unsent.reserve(counted_bytes) else {
            self.body = Body::empty();
            return Poll::Ready(Some(Ok(Frame::trailers(full()))));
        };
        let bytes = Bytes::from_owner(ReservedBytes { bytes, _reserved: reserved });
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The end of an answer that found no room.
fn full() -> http::HeaderMap {
    let status = Status::resource_exhausted(
        "answers that other callers do not take fill the room for answers at this port; try again in some seconds",
    );
    let mut trailers = http::HeaderMap::new();
    status.add_header(&mut trailers).expect("a message in ASCII fits a header");
    trailers
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE: Duration = Duration::from_secs(10);

    #[test]
    fn each_connection_has_room_for_small_answers_and_all_share_the_rest() {
        let port = Arc::new(Answers::new(100_000, WRITE));
        let (one, other) = (Unsent::new(Arc::clone(&port)), Unsent::new(Arc::clone(&port)));
        let small = one.reserve(SMALL_BYTES).unwrap();
        let large = one.reserve(90_000).unwrap();
        assert!(one.reserve(20_000).is_none() && other.reserve(SMALL_BYTES + 1).is_none());
        assert!(other.reserve(SMALL_BYTES).is_some(), "small answers need no room");
        assert_eq!(port.unsent_bytes(), SMALL_BYTES + 90_000);
        drop(small);
        assert!(one.reserve(20_000).is_some());
        drop(large);
        assert!(other.reserve(1 << 30).is_some(), "the room is given back, and one answer fits it");
        assert_eq!((port.unsent_bytes(), one.due(), other.due()), (0, None, None));
    }

    #[test]
    fn the_frames_of_a_connection_share_its_bandwidth() {
        let unsent = Unsent::new(Arc::new(Answers::new(1 << 20, WRITE)));
        let now = Instant::now();
        let first = unsent.reserve(RATE).unwrap();
        let due = unsent.due().unwrap();
        assert!(due >= now + WRITE + Duration::from_secs(1));
        let _second = unsent.reserve(RATE).unwrap();
        assert_eq!(unsent.due(), Some(due), "a later frame does not extend it");
        drop(first);
        assert!(unsent.due().unwrap() >= now + WRITE + Duration::from_secs(2));
    }
}
