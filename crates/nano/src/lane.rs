//! What one call on a GPU needs for itself, so that calls wait for nobody but their own stream.
//!
//! ```text
//! take a lane ─► queue steps and copies on the caller's stream, mark the end ─► look until the last kernel has told
//! ```
//!
//! What must stay true: a lane goes back when nothing that was queued uses it any more; until then nobody else has it.
//! Whoever drops one that is still on its way waits for it.

use crate::error::NanoError;
use crate::kernels::{Counter, Outcome, Outcomes};
use mooncrate_gpu::{DeviceBuffer, Event, Gpu, Span, Stream};
use mooncrate_lock::Mutex;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Lanes that no call has.
#[derive(Debug)]
pub(crate) struct Lanes {
    gpu: Gpu,
    idle: Mutex<Vec<Lane>>,
}

#[derive(Debug)]
pub(crate) struct Lane {
    /// For calls that name no stream of their own.
    pub(crate) stream: Stream,
    /// Of the step before a copy, which the copy looks at.
    pub(crate) outcomes: Outcomes,
    /// Of the copy: what became of the whole, which the host sees.
    pub(crate) counter: Counter,
    done: Event,
    /// Room for checksums, as long as was needed so far.
    pub(crate) sums: Option<DeviceBuffer>,
}

impl Lanes {
    pub(crate) fn new(gpu: &Gpu) -> Arc<Self> {
        Arc::new(Self { gpu: gpu.clone(), idle: Mutex::default() })
    }

    pub(crate) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// A lane for one call. There are as many as calls were ever under way at a time.
    pub(crate) fn take(self: &Arc<Self>) -> Result<Taken, NanoError> {
        let idle = self.idle.lock().pop();
        let lane = match idle {
            Some(lane) => lane,
            None => Lane {
                stream: Stream::new(&self.gpu)?,
                outcomes: Outcomes::new(&self.gpu, 1)?,
                counter: Counter::telling(&self.gpu)?,
                done: Event::untimed(&self.gpu)?,
                sums: None,
            },
        };
        Ok(Taken { lane: Some(lane), way: Way::Idle, lanes: Arc::clone(self) })
    }
}

/// Room for so many bytes of checksums.
pub(crate) fn room<'a>(
    sums: &'a mut Option<DeviceBuffer>,
    gpu: &Gpu,
    bytes: u64,
) -> Result<Span<'a>, NanoError> {
    if sums.as_ref().is_none_or(|room| room.span().len() < bytes) {
        *sums = Some(DeviceBuffer::new(gpu, bytes.next_power_of_two())?);
    }
    Ok(sums.as_ref().expect("it was made above").span().part(0..bytes)?)
}

/// A lane in the hands of one call.
#[derive(Debug)]
pub(crate) struct Taken {
    /// `None` only while it is dropped.
    lane: Option<Lane>,
    way: Way,
    lanes: Arc<Lanes>,
}

/// How far the work of a lane is known to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Nothing is queued.
    Idle,
    /// Something may be queued whose end is not marked.
    Queued,
    /// The event marks the end of all of it.
    Marked,
}

impl Taken {
    /// The lane for work that is queued now, and the stream for it: the caller's, or its own.
    pub(crate) fn queue<'a>(&'a mut self, on: Option<&'a Stream>) -> (&'a Lane, &'a Stream) {
        self.way = Way::Queued;
        let lane = &**self;
        lane.counter.expect();
        (lane, on.unwrap_or(&lane.stream))
    }

    /// Marks the end of all that was queued.
    pub(crate) fn mark(&mut self, on: Option<&Stream>) -> Result<(), NanoError> {
        let lane = &**self;
        lane.done.record(on.unwrap_or(&lane.stream))?;
        self.way = Way::Marked;
        Ok(())
    }

    /// What became of a copy that was queued, if the GPU has come so far.
    pub(crate) fn look(&mut self) -> Result<Option<Outcome>, NanoError> {
        let told = match self.counter.told() {
            // Where a kernel failed, nothing is told.
            None if self.done.is_passed()? => Some(self.counter.told().unwrap_or(Outcome::Missing)),
            told => told,
        };
        if told.is_some() {
            self.way = Way::Idle;
        }
        Ok(told)
    }

    /// What became of a step that was queued on the lane's own stream, which nothing else delays. It waits for it.
    pub(crate) fn step_outcome(&mut self) -> Result<Outcome, NanoError> {
        let outcomes = self.outcomes.read(1, &self.stream)?;
        self.way = Way::Idle;
        Ok(outcomes[0])
    }
}

impl Deref for Taken {
    type Target = Lane;

    fn deref(&self) -> &Lane {
        self.lane.as_ref().expect("only dropping takes it")
    }
}

impl DerefMut for Taken {
    fn deref_mut(&mut self) -> &mut Lane {
        self.lane.as_mut().expect("only dropping takes it")
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // A lane whose end cannot be seen is not used again; the memory that it is made of waits for the GPU.
        if self.way == Way::Queued || self.way == Way::Marked && self.done.synchronize().is_err() {
            return;
        }
        self.lanes.idle.lock().extend(self.lane.take());
    }
}
