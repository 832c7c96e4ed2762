//! `words`: a batch of steps on control words, one thread for each.

use super::launch::{THREADS, early};
use super::value::on_gpu_of;
use super::{Counts, KernelError, Kernels, Outcomes};
use crate::layout::HeapLayout;
use mooncrate_core::Generation;
use mooncrate_core::header::{HEADER_BYTES, Header};
use mooncrate_core::state::Event;
use mooncrate_gpu::{DeviceBuffer, Gpu, Launch, Plain, Stream};
use mooncrate_heap::{Heap, Rank};
use std::ops::Range;

/// Compiled from `words.cu` by `./dev kernels`.
pub(super) const PTX: &str = include_str!("words.ptx");
/// Bytes of a step in device memory: slot, generation, event and rank, 4 bytes each.
const STEP_BYTES: usize = 16;

/// What is done to a control word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// One event of the table. A reclaim looks at the pins of the word, whatever the event says of them.
    Event(Event),
    /// Reserve, write the header, begin: the header is complete before the word says that it is written
    /// to. The control word of the header given here is not used.
    Open(Header),
    /// One more pin of a rank, if the value is ready.
    Pin(Rank),
    /// One pin of a rank less. Refused where it has none, such as after it was reaped.
    Unpin(Rank),
}

/// One step on the header of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Which header.
    pub slot: u32,
    /// Which life of it; the step is refused in any other.
    pub generation: Generation,
    /// What to do.
    pub action: Action,
}

impl Step {
    /// As `Step` in `words.cu`.
    fn to_bytes(self) -> [u8; STEP_BYTES] {
        let (event, rank) = match self.action {
            Action::Event(Event::Reserve) => (0, 0),
            Action::Event(Event::Begin) => (1, 0),
            Action::Event(Event::Publish) => (2, 0),
            Action::Event(Event::Unlink) => (3, 0),
            Action::Event(Event::Reclaim { .. }) => (4, 0),
            Action::Event(Event::Abort) => (5, 0),
            Action::Event(Event::Fence) => (6, 0),
            Action::Pin(rank) => (7, rank.number()),
            Action::Unpin(rank) => (8, rank.number()),
            Action::Open(_) => (9, 0),
        };
        let mut bytes = [0; STEP_BYTES];
        let words = [self.slot, self.generation.0, event, u32::from(rank)];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// Most steps that travel with a launch.
pub const FEW: usize = 8;

/// Steps as a parameter of a launch: `Few` in `words.cu`.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
struct Few {
    steps: [[u8; STEP_BYTES]; FEW],
    headers: [[u8; HEADER_BYTES]; FEW],
}

// SAFETY: bytes, and no padding: both arrays are multiples of 16 bytes.
unsafe impl Plain for Few {}

/// A batch of steps in device memory.
#[derive(Debug)]
pub struct Steps {
    batch: DeviceBuffer,
    /// A header for each step; used by those that open a slot.
    headers: DeviceBuffer,
    capacity: u32,
    count: u32,
}

impl Steps {
    /// Room for so many.
    pub fn new(gpu: &Gpu, capacity: u32) -> Result<Self, KernelError> {
        let bytes = u64::from(capacity);
        Ok(Self {
            batch: DeviceBuffer::new(gpu, bytes * STEP_BYTES as u64)?,
            headers: DeviceBuffer::new(gpu, bytes * HEADER_BYTES as u64)?,
            capacity,
            count: 0,
        })
    }

    /// Replaces the batch, once all work on `stream` that uses it has ended. Steps on the same word in one
    /// batch happen in any order.
    pub fn set(
        &mut self,
        steps: &[Step],
        layout: &HeapLayout,
        stream: &Stream,
    ) -> Result<(), KernelError> {
        let needed = steps.len() as u64;
        if needed > u64::from(self.capacity) {
            let given = u64::from(self.capacity);
            return Err(KernelError::TooShort { what: "a batch of steps", needed, given });
        }
        exist(steps, layout)?;
        // Until all of it has arrived, there is no batch.
        self.count = 0;
        let bytes: Vec<u8> = steps.iter().flat_map(|step| step.to_bytes()).collect();
        self.batch.span().write(&bytes, stream)?;
        if steps.iter().any(|step| matches!(step.action, Action::Open(_))) {
            let headers: Vec<u8> = steps
                .iter()
                .flat_map(|step| match &step.action {
                    Action::Open(header) => header_bytes(header),
                    _ => [0; HEADER_BYTES],
                })
                .collect();
            self.headers.span().write(&headers, stream)?;
        }
        self.count = steps.len() as u32;
        Ok(())
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.count
    }
}

impl Kernels {
    /// Queues a batch of steps on the headers of `owner`; what became of each goes to `outcomes`.
    pub fn words(
        &self,
        stream: &Stream,
        heap: &Heap,
        owner: Rank,
        steps: &Steps,
        outcomes: &Outcomes,
    ) -> Result<(), KernelError> {
        let bases = self.reach(heap, owner, stream)?;
        let (batch, headers) = (steps.batch.span(), steps.headers.span());
        on_gpu_of(stream, &[batch, headers, outcomes.memory()])?;
        let (count, room) = (steps.count, outcomes.capacity());
        if count > room {
            let (needed, given) = (count.into(), room.into());
            return Err(KernelError::TooShort { what: "the room for outcomes", needed, given });
        }
        if count == 0 {
            return Ok(());
        }
        let (owner, slots) = (u32::from(owner.number()), self.layout.slots());
        let (batch, headers) = (batch.address(), headers.address());
        let results = outcomes.memory().address();
        let params = [
            (&bases).into(),
            (&owner).into(),
            (&slots).into(),
            (&batch).into(),
            (&headers).into(),
            (&count).into(),
            (&results).into(),
        ];
        // SAFETY: the parameters are those of `word_steps`. It reads `count` steps and headers, which
        // `set` wrote, writes as many outcomes, for which there is room, and touches headers of slots
        // below `slots` only, which lie in the owner's heap. All of it is device memory, whose owners wait
        // for the device before they free.
        Ok(unsafe { self.words.launch(stream, early(threads(count)), &params) }?)
    }

    /// Queues up to [`FEW`] steps that travel with the launch: nothing is copied before, and nobody waits.
    pub fn act(
        &self,
        stream: &Stream,
        heap: &Heap,
        owner: Rank,
        steps: &[Step],
        outcomes: &Outcomes,
    ) -> Result<(), KernelError> {
        let bases = self.reach(heap, owner, stream)?;
        on_gpu_of(stream, &[outcomes.memory()])?;
        exist(steps, &self.layout)?;
        let (needed, given) = (steps.len() as u64, u64::from(outcomes.capacity()).min(FEW as u64));
        if needed > given {
            return Err(KernelError::TooShort { what: "the room for outcomes", needed, given });
        }
        if steps.is_empty() {
            return Ok(());
        }
        let mut few = Few { steps: [[0; STEP_BYTES]; FEW], headers: [[0; HEADER_BYTES]; FEW] };
        for (index, step) in steps.iter().enumerate() {
            few.steps[index] = step.to_bytes();
            if let Action::Open(header) = &step.action {
                few.headers[index] = header_bytes(header);
            }
        }
        let (owner, slots) = (u32::from(owner.number()), self.layout.slots());
        let (count, results) = (steps.len() as u32, outcomes.memory().address());
        let params = [
            (&bases).into(),
            (&owner).into(),
            (&slots).into(),
            (&few).into(),
            (&count).into(),
            (&results).into(),
        ];
        // SAFETY: the parameters are those of `few_steps`. It writes `count` outcomes, for which there is
        // room, and touches headers of slots below `slots` only, as `word_steps` does.
        Ok(unsafe { self.few.launch(stream, early(Launch::linear(1, FEW as u32)), &params) }?)
    }

    /// Queues the end of all pins of `gone`, a rank that reads no more, in the given headers of `owner`.
    /// Adds to `counts` how many pins that were, and how many words could not be changed.
    pub fn reap(
        &self,
        stream: &Stream,
        heap: &Heap,
        owner: Rank,
        slots: Range<u32>,
        gone: Rank,
        counts: &Counts,
    ) -> Result<(), KernelError> {
        let bases = self.reach(heap, owner, stream)?;
        on_gpu_of(stream, &[counts.memory()])?;
        if slots.end > self.layout.slots() {
            let (last, all) = (slots.end, self.layout.slots());
            return Err(KernelError::Shape(format!("headers up to {last}: there are {all}")));
        }
        if slots.is_empty() {
            return Ok(());
        }
        let (owner, gone) = (u32::from(owner.number()), u32::from(gone.number()));
        let (first, count) = (slots.start, slots.end - slots.start);
        let reaped = counts.memory().address();
        let params = [
            (&bases).into(),
            (&owner).into(),
            (&first).into(),
            (&count).into(),
            (&gone).into(),
            (&reaped).into(),
        ];
        // SAFETY: the parameters are those of `reap_pins`. It touches words of slots that exist, in the
        // owner's heap, and two numbers; all of it is device memory, as above.
        Ok(unsafe { self.reap.launch(stream, threads(count), &params) }?)
    }
}

/// Refuses steps on headers that do not exist.
fn exist(steps: &[Step], layout: &HeapLayout) -> Result<(), KernelError> {
    match steps.iter().find(|step| step.slot >= layout.slots()) {
        None => Ok(()),
        Some(step) => {
            let (slot, slots) = (step.slot, layout.slots());
            Err(KernelError::Shape(format!("header {slot} does not exist: there are {slots}")))
        }
    }
}

/// A thread for each of so many.
fn threads(count: u32) -> Launch {
    Launch::linear(count.div_ceil(THREADS), count.min(THREADS))
}

/// A header as it lies in memory, field by field. Heaps are little-endian, as GPUs are.
pub(super) fn header_bytes(header: &Header) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    for (place, word) in bytes.chunks_exact_mut(8).zip(header.to_words()) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}
