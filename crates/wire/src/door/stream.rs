//! A connection whose protocol a library reads, with an end for whoever says nothing.
//!
//! ```text
//!   came ── first ──► a request ── idle ──► the next …        at rest too long: an error to the library
//!   bytes that the peer does not take ── write ──► an error      displaced: an error
//! ```
//!
//! The library does not tell when a request begins and ends, so the door does ([`Pulse::visit`]). A head or
//! a body that trickles in is no request yet, so it is rest.

use super::{Displaced, Place};
use crate::clock::boottime;
use mooncrate_core::time::Now;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// Times of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Until the first request.
    pub first: Duration,
    /// Between two requests.
    pub idle: Duration,
    /// For bytes that the peer does not take. Whoever takes less than [`RATE`] in the long run uses it up as well.
    pub write: Duration,
}

/// Bytes a second that a peer must take of what waits for it: one that takes a byte now and then would keep an
/// answer for ever.
pub const RATE: u64 = 256 << 10;

/// The life of a connection, as its door sees it.
#[derive(Debug)]
pub struct Pulse {
    place: Place,
    visits: AtomicUsize,
    /// Answers that are being sent.
    sending: AtomicUsize,
    heard: AtomicBool,
    proved: AtomicBool,
    /// When the last request ended, or the connection came.
    rests_since: AtomicU64,
}

impl Pulse {
    /// A request begins; it lasts until the result is dropped.
    pub fn visit(self: &Arc<Self>) -> Visit {
        // All Relaxed: these are numbers of their own, and a limit of time may be off by a moment.
        self.visits.fetch_add(1, Ordering::Relaxed);
        self.heard.store(true, Ordering::Relaxed);
        Visit(Arc::clone(self))
    }

    /// An answer is being sent, until the result is dropped: that is no rest, and its peer has to take the bytes.
    pub fn sends(self: &Arc<Self>) -> Sending {
        self.sending.fetch_add(1, Ordering::Relaxed);
        Sending(self.visit())
    }

    /// The caller has proved who it is.
    pub fn prove(&self) {
        if !self.proved.swap(true, Ordering::Relaxed) {
            // One that was displaced meanwhile ends by its next read.
            self.place.prove();
        }
    }

    /// What is left until it has rested too long.
    fn left(&self, times: Times) -> Duration {
        if self.visits.load(Ordering::Relaxed) > 0 {
            return times.first.min(times.idle);
        }
        // A stranger's calls count as well (a health check may watch for hours): it makes room when others come.
        let limit = if self.heard.load(Ordering::Relaxed) { times.idle } else { times.first };
        limit.saturating_sub(boottime().since(Now(self.rests_since.load(Ordering::Relaxed))))
    }
}

/// A request under way.
#[derive(Debug)]
pub struct Visit(Arc<Pulse>);

impl Drop for Visit {
    fn drop(&mut self) {
        self.0.rests_since.store(boottime().0, Ordering::Relaxed);
        self.0.visits.fetch_sub(1, Ordering::Relaxed);
        if !self.0.proved.load(Ordering::Relaxed) {
            self.0.place.hear();
        }
    }
}

/// An answer on its way.
#[derive(Debug)]
pub struct Sending(Visit);

impl Drop for Sending {
    fn drop(&mut self) {
        self.0.0.sending.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A stream that ends with the patience of its door.
#[derive(Debug)]
pub struct KeptStream<S> {
    stream: S,
    pulse: Arc<Pulse>,
    displaced: Displaced,
    times: Times,
    timer: Pin<Box<Sleep>>,
    /// Since when the peer takes nothing, or when that would have begun at [`RATE`].
    stuck: Option<Instant>,
    /// Why it has ended.
    ended: Option<io::ErrorKind>,
}

impl<S> KeptStream<S> {
    /// Keeps `stream` in its place.
    pub fn new(stream: S, (place, displaced): (Place, Displaced), times: Times) -> Self {
        let pulse = Arc::new(Pulse {
            place,
            visits: AtomicUsize::new(0),
            sending: AtomicUsize::new(0),
            heard: AtomicBool::new(false),
            proved: AtomicBool::new(false),
            rests_since: AtomicU64::new(boottime().0),
        });
        // The shorter one: a library need not read again when a request has ended.
        let patience = Box::pin(sleep(times.first.min(times.idle)));
        Self { stream, pulse, displaced, times, timer: patience, stuck: None, ended: None }
    }

    /// Its life, for its door.
    pub fn pulse(&self) -> Arc<Pulse> {
        Arc::clone(&self.pulse)
    }

    /// Whether it must end.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        if let Some(why) = self.ended {
            return Poll::Ready(why.into());
        }
        if Pin::new(&mut self.displaced).poll(cx).is_ready() {
            self.ended = Some(io::ErrorKind::ConnectionAborted);
            return Poll::Ready(io::ErrorKind::ConnectionAborted.into());
        }
        loop {
            let rest = self.pulse.left(self.times);
            let stuck = self.stuck.map(|since| self.times.write.saturating_sub(since.elapsed()));
            let left = rest.min(stuck.unwrap_or(rest));
            if left.is_zero() {
                self.ended = Some(io::ErrorKind::TimedOut);
                return Poll::Ready(io::ErrorKind::TimedOut.into());
            }
            // A request that has ended since may have made the limit shorter, or longer.
            let until = Instant::now() + left;
            if self.timer.is_elapsed() || until < self.timer.deadline() {
                self.timer.as_mut().reset(until);
            }
            if self.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Bytes were taken: a peer that takes them fast catches up, one that trickles comes no nearer.
    fn moved(&mut self, sent: &Poll<io::Result<usize>>) {
        if let (Poll::Ready(Ok(bytes)), Some(since)) = (sent, self.stuck) {
            let worth = Duration::from_micros(*bytes as u64 * 1_000_000 / RATE);
            self.stuck = Some(since + worth).filter(|since| *since < Instant::now());
        }
    }

    /// The result of an attempt to send.
    fn sent<T>(&mut self, cx: &mut Context<'_>, sent: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if sent.is_ready() {
            return sent;
        }
        self.stuck.get_or_insert_with(Instant::now);
        self.poll_end(cx).map(Err)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for KeptStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // Before what has come: a peer that trickles bytes shall not put its end off.
        if let Poll::Ready(error) = self.poll_end(cx) {
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for KeptStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.moved(&sent);
        self.sent(cx, sent)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let sent = Pin::new(&mut self.stream).poll_flush(cx);
        if sent.is_ready() && self.pulse.sending.load(Ordering::Relaxed) == 0 {
            // All is out, and no answer has more.
            self.stuck = None;
        }
        self.sent(cx, sent)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let sent = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.sent(cx, sent)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.moved(&sent);
        self.sent(cx, sent)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
