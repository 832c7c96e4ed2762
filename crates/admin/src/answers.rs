//! Answers that wait until their caller takes them.
//!
//! ```text
//!   a small answer ──────────────► in pieces to the socket        at most one per connection
//!   a large one ─► room for it? ─┬─► in pieces to the socket, the room is held until the last one
//!                                └─► 503
//! ```
//!
//! What must stay true: all large answers of a port together hold no more than its room; what the library keeps of
//! an answer that was handed to it is a few pieces, copied out, so that nothing else is kept alive by them.

use crate::Refused;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use hyper::body::{Frame, SizeHint};
use mooncrate_wire::door::Sending;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes handed over at a time; the library queues sixteen such pieces.
const PIECE_BYTES: usize = 4096;
/// An answer of no more needs no room: there is one per connection. So a crowd that takes nothing keeps no
/// operator from the answer to a change.
const SMALL_BYTES: u64 = 64 << 10;

/// Room for the large answers of a port.
#[derive(Clone, Debug)]
pub(crate) struct Answers {
    room: Arc<Semaphore>,
    most: u32,
}

impl Answers {
    /// Room for so many bytes.
    pub(crate) fn new(bytes: u32) -> Self {
        Self { room: Arc::new(Semaphore::new(bytes as usize)), most: bytes }
    }

    /// An answer that keeps to the room, or why it cannot be given now.
    pub(crate) fn bounded(self, answer: Response, sending: Sending) -> Response {
        // Of an answer that is made while it is sent each part asks for itself.
        let whole = answer.body().size_hint().exact().unwrap_or(0);
        let Some(held) = self.take(whole) else {
            let message = "answers that others have asked for and do not take fill the room for answers; \
                           try again in some seconds";
            return Refused(StatusCode::SERVICE_UNAVAILABLE, message.to_owned()).into_response();
        };
        let known = whole > 0;
        answer.map(|body| {
            let rest = Bytes::new();
            Body::new(Pieces { body, rest, answers: self, held, known, _sending: sending })
        })
    }

    /// Room for an answer or a part of one, for as long as the result is kept; `None`: there is none.
    #[expect(clippy::option_option, reason = "a small one is given without any")]
    fn take(&self, bytes: u64) -> Option<Option<OwnedSemaphorePermit>> {
        if bytes <= SMALL_BYTES {
            return Some(None);
        }
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(self.most);
        Arc::clone(&self.room).try_acquire_many_owned(bytes).ok().map(Some)
    }
}

/// A body in pieces, and the room that it holds.
struct Pieces {
    body: Body,
    rest: Bytes,
    answers: Answers,
    held: Option<OwnedSemaphorePermit>,
    /// Whether the room for all of it was taken at once.
    known: bool,
    /// The connection does not rest meanwhile, and its peer has to take bytes.
    _sending: Sending,
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        while self.rest.is_empty() {
            let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx)?) else {
                return Poll::Ready(None);
            };
            let data = match frame.into_data() {
                Ok(data) => data,
                Err(other) => return Poll::Ready(Some(Ok(other))),
            };
            if !self.known {
                self.held = None;
                let Some(held) = self.answers.take(data.len() as u64) else {
                    let message = "there is no room for the rest of the answer";
                    return Poll::Ready(Some(Err(axum::Error::new(message))));
                };
                self.held = held;
            }
            self.rest = data;
        }
        let len = self.rest.len().min(PIECE_BYTES);
        let piece = Bytes::copy_from_slice(&self.rest.split_to(len));
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, inner) = (self.rest.len() as u64, self.body.size_hint());
        let mut all = SizeHint::new();
        all.set_lower(inner.lower() + rest);
        if let Some(upper) = inner.upper() {
            all.set_upper(upper + rest);
        }
        all
    }
}
