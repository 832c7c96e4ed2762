//! What is queued for a plan on streams of the caller: its value is published after all of it.
//!
//! What must stay true: a mark is an event and no handle. By the time of the commit a stream may be gone, or its handle may
//! be that of another one.

use crate::error::NanoError;
use mooncrate_gpu::{Event, Stream};
use mooncrate_lock::Mutex;

/// The ends of pushes, as many as there are streams with one under way.
#[derive(Debug, Default)]
pub struct Marks(Mutex<Vec<Mark>>);

#[derive(Debug)]
struct Mark {
    /// The handle that it was last set by.
    stream: u64,
    event: Event,
}

impl Marks {
    /// What is queued on the stream so far is part of the value.
    pub(crate) fn set(&self, stream: &Stream) -> Result<(), NanoError> {
        let (mut marks, handle) = (self.0.lock(), stream.raw());
        let of_stream = marks.iter().position(|mark| mark.stream == handle);
        let is_over = |mark: &Mark| mark.event.is_passed().unwrap_or(false);
        let Some(at) = of_stream.or_else(|| marks.iter().position(is_over)) else {
            let event = Event::untimed(stream.gpu())?;
            event.record(stream)?;
            marks.push(Mark { stream: handle, event });
            return Ok(());
        };
        let mark = &mut marks[at];
        // The handle may have been another stream's: what that one has yet to do stays part of the mark.
        stream.wait(&mark.event)?;
        mark.event.record(stream)?;
        mark.stream = handle;
        Ok(())
    }

    /// What is queued on the stream from now on begins after all pushes.
    pub(crate) fn precede(&self, stream: &Stream) -> Result<(), NanoError> {
        for mark in &*self.0.lock() {
            stream.wait(&mark.event)?;
        }
        Ok(())
    }
}
