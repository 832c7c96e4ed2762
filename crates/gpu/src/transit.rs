//! Bytes on their way between the host and a GPU: a pinned buffer with a stream of its own.
//!
//! ```text
//!   wait_for(mark of a caller) ─► download / upload … ─► poll until it is done ─► bytes
//! ```
//!
//! What must stay true: while a copy may be under way, nobody sees the bytes. Who asks for them then has
//! made a mistake, and is stopped.

use crate::device::Gpu;
use crate::error::GpuError;
use crate::pinned::PinnedBuffer;
use crate::span::Span;
use crate::stream::{Event, Stream};
use std::ops::Range;

/// A pinned buffer, and the copies from and to it.
#[derive(Debug)]
pub struct Transit {
    /// Dropping it waits for the GPU, so no copy meets freed memory.
    buffer: PinnedBuffer,
    stream: Stream,
    /// Passed when the last copy has ended.
    done: Event,
    flight: Flight,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flight {
    /// No copy is under way.
    Landed,
    /// Copies were queued after the last record of the event.
    Unmarked,
    /// The event marks the end of all copies.
    Marked,
}

impl Transit {
    /// Locks `len` bytes, which is slow: make it once and use it often.
    pub fn new(gpu: &Gpu, len: usize) -> Result<Self, GpuError> {
        let (stream, done) = (Stream::new(gpu)?, Event::untimed(gpu)?);
        Ok(Self { buffer: PinnedBuffer::new(gpu, len)?, stream, done, flight: Flight::Landed })
    }

    /// The GPU whose copies it carries.
    pub fn gpu(&self) -> &Gpu {
        self.stream.gpu()
    }

    /// Bytes of the buffer.
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Whether it has no bytes, which none has.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Its stream, for work that belongs to the same order: waits for the buffer are for that work, too.
    pub fn stream(&mut self) -> &Stream {
        self.flight = Flight::Unmarked;
        &self.stream
    }

    /// Copies that are queued from now on begin after what the event marks.
    pub fn wait_for(&self, event: &Event) -> Result<(), GpuError> {
        self.stream.wait(event)
    }

    /// Queues a copy of device memory into the buffer, from byte `at` on.
    pub fn download(&mut self, source: Span<'_>, at: usize) -> Result<(), GpuError> {
        let range = self.range(at, source.len())?;
        // Before the call: the driver may report an earlier error from one that did queue the copy.
        self.flight = Flight::Unmarked;
        let target = &mut self.buffer[range];
        // SAFETY: the buffer is ours, and `flight` keeps everybody from its bytes until the copy has ended.
        unsafe { source.enqueue_download(target, &self.stream) }
    }

    /// Queues a copy of these bytes of the buffer to device memory of the same length.
    pub fn upload(&mut self, from: Range<usize>, target: Span<'_>) -> Result<(), GpuError> {
        let range = self.range(from.start, from.len() as u64)?;
        if target.len() != from.len() as u64 {
            let text = format!("a copy of {} bytes to {}", from.len(), target.len());
            return Err(GpuError::Invalid(text));
        }
        self.flight = Flight::Unmarked;
        // SAFETY: as in `download`.
        unsafe { target.enqueue_upload(&self.buffer[range], &self.stream) }
    }

    /// The end of all copies that were queued so far, for streams that shall wait for it.
    pub fn mark(&mut self) -> Result<&Event, GpuError> {
        if self.flight == Flight::Unmarked {
            self.done.record(&self.stream)?;
            self.flight = Flight::Marked;
        }
        Ok(&self.done)
    }

    /// Whether all copies have ended. An error is one of the GPU: the bytes are lost, and so is the buffer.
    pub fn poll(&mut self) -> Result<bool, GpuError> {
        if self.flight == Flight::Landed {
            return Ok(true);
        }
        self.mark()?;
        let passed = self.done.is_passed()?;
        if passed {
            self.flight = Flight::Landed;
        }
        Ok(passed)
    }

    /// Waits until all copies have ended, however long that is.
    pub fn synchronize(&mut self) -> Result<(), GpuError> {
        if self.flight != Flight::Landed {
            self.stream.synchronize()?;
            self.flight = Flight::Landed;
        }
        Ok(())
    }

    /// The bytes, when no copy is under way.
    pub fn bytes(&self) -> &[u8] {
        assert!(self.flight == Flight::Landed, "bytes were asked for while they are on their way");
        &self.buffer
    }

    /// The same, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(self.flight == Flight::Landed, "bytes were asked for while they are on their way");
        &mut self.buffer
    }

    fn range(&self, at: usize, len: u64) -> Result<Range<usize>, GpuError> {
        let end = usize::try_from(len).ok().and_then(|len| at.checked_add(len));
        match end {
            Some(end) if end <= self.buffer.len() => Ok(at..end),
            _ => Err(GpuError::OutOfBounds {
                what: "a pinned buffer",
                offset: at as u64,
                len,
                size: self.buffer.len() as u64,
            }),
        }
    }
}
