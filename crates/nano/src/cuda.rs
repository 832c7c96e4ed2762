//! Heaps in the memory of GPUs: every step on a word is a kernel, and so is every sum.
//!
//! A put or a get is a chain of kernels on the caller's stream, each of which looks at what became of the one before
//! ([`crate::lane`]): nothing waits for it but its caller. What the rank does as an owner follows each other on a stream of
//! its own. Memory that kernels cannot move, on the host or not a multiple of 16, goes step by step.

use crate::error::NanoError;
use crate::kernels::{self, Action, Counts, Kernels, Outcome, Outcomes, Push, Read, Steps, Value};
use crate::lane::{Lane, Lanes, Taken, room};
use crate::layout::{HeapLayout, PIECE};
use crate::marks::Marks;
use crate::plan::Place;
use crate::reach::{Flight, Landed, Reach, Source, Step, Stepped, Target, Touch, When, wait_until};
use mooncrate_core::header::{HEADER_BYTES, Header};
use mooncrate_core::limits::SLICE_BYTES;
use mooncrate_core::state::Event as StateEvent;
use mooncrate_core::word::{Word, WordError};
use mooncrate_core::{Deadline, Extent, Generation, Medium, Slot};
use mooncrate_gpu::{Event, Gpu, Peer, Span, Stream};
use mooncrate_heap::{Heap, Rank};
use mooncrate_lock::Mutex;
use mooncrate_mem::crc::crc;
use mooncrate_mem::region::OutOfBounds;
use std::sync::Arc;

/// Steps of one launch.
const BATCH: usize = 1024;
/// How often a step is tried again that others kept from happening.
const TRIES: usize = 8;
/// Up to so many words are read one by one; for more, all headers are.
const FEW_WORDS: usize = 4;

/// The hands of a rank on a GPU.
#[derive(Debug)]
pub struct CudaReach {
    heap: Heap,
    layout: HeapLayout,
    kernels: Kernels,
    /// Of calls that move values.
    lanes: Arc<Lanes>,
    /// Of the owner's steps.
    work: Mutex<Work>,
}

#[derive(Debug)]
struct Work {
    stream: Stream,
    steps: Steps,
    outcomes: Outcomes,
    counts: Counts,
}

impl CudaReach {
    /// The hands of the rank whose heap this is, which must be on this GPU.
    pub fn new(gpu: &Gpu, heap: Heap, layout: HeapLayout) -> Result<Self, NanoError> {
        // A word that two GPUs change is only trusted where a compare-and-swap is one.
        let without = |rank: &Rank| heap.peer(*rank) == Peer::NoAtomics;
        if let Some(rank) = heap.world().ranks().find(without) {
            return Err(NanoError::NoAtomics(rank));
        }
        let kernels = Kernels::load(gpu, layout)?;
        let work = Work {
            stream: Stream::new(gpu)?,
            steps: Steps::new(gpu, BATCH as u32)?,
            outcomes: Outcomes::new(gpu, BATCH as u32)?,
            counts: Counts::new(gpu)?,
        };
        let (lanes, work) = (Lanes::new(gpu), Mutex::new(work));
        Ok(Self { heap, layout, kernels, lanes, work })
    }

    fn span(&self, owner: Rank) -> Result<Span<'_>, NanoError> {
        self.heap.span(owner).ok_or(NanoError::OtherMemory(Medium::Dram))
    }

    /// A part of a heap.
    fn part(&self, owner: Rank, offset: u64, len: u64) -> Result<Span<'_>, NanoError> {
        let span = self.span(owner)?;
        let end = offset.checked_add(len).filter(|end| *end <= span.len());
        let Some(end) = end else {
            let extent = Extent::new(offset, len).or(Extent::new(offset, u64::MAX - offset));
            let extent = extent.expect("the second one never overflows");
            return Err(OutOfBounds { extent, len: span.len() }.into());
        };
        Ok(span.part(offset..end)?)
    }

    /// One batch; each step is tried again while others keep it from happening.
    fn batch(&self, owner: Rank, steps: &[Step]) -> Result<Vec<Stepped>, NanoError> {
        let asked: Vec<kernels::Step> = steps.iter().map(asked).collect();
        let mut results: Vec<Option<Stepped>> = vec![None; steps.len()];
        let mut left: Vec<usize> = (0..steps.len()).collect();
        for _ in 0..TRIES {
            let batch: Vec<kernels::Step> = left.iter().map(|at| asked[*at]).collect();
            let outcomes = self.launch(owner, &batch)?;
            let busy = left.into_iter().zip(outcomes).filter_map(|(at, outcome)| {
                results[at] = judge(&steps[at], outcome);
                results[at].is_none().then_some(at)
            });
            left = busy.collect();
            if left.is_empty() {
                break;
            }
        }
        results.into_iter().map(|result| result.ok_or(NanoError::Unsettled)).collect()
    }

    fn launch(&self, owner: Rank, batch: &[kernels::Step]) -> Result<Vec<Outcome>, NanoError> {
        let Work { stream, steps, outcomes, .. } = &mut *self.work.lock();
        if batch.len() <= kernels::FEW {
            self.kernels.act(stream, &self.heap, owner, batch, outcomes)?;
        } else {
            steps.set(batch, &self.layout, stream)?;
            self.kernels.words(stream, &self.heap, owner, steps, outcomes)?;
        }
        Ok(outcomes.read(batch.len() as u32, stream)?)
    }

    /// The sums of the slices of device memory; of memory that no kernel can read 16 bytes at a time, by the
    /// processor.
    fn sum(&self, value: Span<'_>) -> Result<Vec<u64>, NanoError> {
        let mut lane = self.lanes.take()?;
        let Lane { stream, sums, .. } = &mut *lane;
        if !value.address().is_multiple_of(PIECE) {
            let bytes = value.to_vec(stream)?;
            return Ok(bytes.chunks(SLICE_BYTES as usize).map(crc).collect());
        }
        let slices = value.len().div_ceil(SLICE_BYTES);
        if slices == 0 {
            return Ok(Vec::new());
        }
        let sums = room(sums, value.gpu(), slices * 8)?;
        self.kernels.sums(stream, value, SLICE_BYTES as u32, sums)?;
        let bytes = sums.to_vec(stream)?;
        let sums = bytes.chunks_exact(8);
        Ok(sums.map(|sum| u64::from_le_bytes(sum.try_into().expect("eight bytes"))).collect())
    }
}

impl CudaReach {
    /// The caller's stream. One that is recorded into a graph would never come to what is queued on it.
    fn stream_of(&self, handle: Option<u64>) -> Result<Option<Stream>, NanoError> {
        let Some(handle) = handle else { return Ok(None) };
        // SAFETY: who names a stream keeps it alive until its call has returned, as `When` asks.
        let stream = unsafe { Stream::of_others(self.lanes.gpu(), handle) };
        stream.not_recording("move a value")?;
        Ok(Some(stream))
    }

    fn value(place: &Place) -> Value {
        Value {
            owner: place.owner,
            slot: place.slot.0,
            generation: Generation(place.epoch),
            payload: place.payload_offset,
            pages: place.pages,
        }
    }

    /// One step on the lane's own stream, until it has ended.
    fn step_now(&self, lane: &mut Taken, owner: Rank, step: &Step) -> Result<Stepped, NanoError> {
        for _ in 0..TRIES {
            let (parts, stream) = lane.queue(None);
            self.kernels.act(stream, &self.heap, owner, &[asked(step)], &parts.outcomes)?;
            if let Some(stepped) = judge(step, lane.step_outcome()?) {
                return Ok(stepped);
            }
        }
        Err(NanoError::Unsettled)
    }

    /// Copies the value to memory of the caller, and waits for it.
    fn copy_out(
        &self,
        place: &Place,
        target: &mut Target<'_>,
        stream: &Stream,
    ) -> Result<(), NanoError> {
        if target.is_empty() {
            return Ok(());
        }
        let source = self.part(place.owner, place.payload_offset, target.len())?;
        match target {
            Target::Host(bytes) => source.read(bytes, stream)?,
            Target::Device(span) => {
                span.copy_from(source, stream)?;
                stream.synchronize()?;
            }
        }
        Ok(())
    }

    /// Lets the caller's stream come so far: what follows is done step by step.
    fn arrive(on: Option<&Stream>, until: Deadline) -> Result<(), NanoError> {
        let Some(on) = on else { return Ok(()) };
        let mark = Event::untimed(on.gpu())?;
        mark.record(on)?;
        wait_until(until, || Ok(mark.is_passed()?.then_some(())))?.ok_or(NanoError::Late)
    }
}

/// Whether kernels can move this memory.
fn is_even(span: &Span<'_>) -> bool {
    span.is_empty() || span.address().is_multiple_of(PIECE)
}

/// A chain of kernels on its way.
#[derive(Debug)]
struct Chain {
    lane: Taken,
    /// What the end of it means.
    step: Step,
}

impl Flight for Chain {
    fn look(&mut self) -> Result<Option<Stepped>, NanoError> {
        match self.lane.look()? {
            None => Ok(None),
            Some(outcome) => judge(&self.step, outcome).map(Some).ok_or(NanoError::Unsettled),
        }
    }
}

fn asked(step: &Step) -> kernels::Step {
    let action = match &step.touch {
        Touch::Begin(header) => Action::Open(**header),
        Touch::Apply(event) => Action::Event(*event),
        Touch::Pin(rank) => Action::Pin(*rank),
        Touch::Unpin(rank) => Action::Unpin(*rank),
    };
    kernels::Step { slot: step.slot.0, generation: step.generation, action }
}

/// What an outcome means; `None`: ask again. Why a step was refused is what `Word` says of the word found.
fn judge(step: &Step, outcome: Outcome) -> Option<Stepped> {
    let found = match outcome {
        Outcome::Done(word) => return Some(Ok(word)),
        Outcome::Refused(word) => word,
        Outcome::Busy(_) | Outcome::Missing => return None,
    };
    let refused = match &step.touch {
        Touch::Apply(event) => found.after(step.generation, *event).err(),
        Touch::Pin(rank) => found.pinned_by(step.generation, rank.number()).err(),
        Touch::Begin(_) | Touch::Unpin(_) => None,
    };
    Some(Err(refused.unwrap_or(WordError::Stale { wanted: step.generation, found })))
}

impl Reach for CudaReach {
    fn heap(&self) -> &Heap {
        &self.heap
    }

    fn medium(&self) -> Medium {
        Medium::Vram
    }

    fn step(&self, owner: Rank, steps: &[Step]) -> Result<Vec<Stepped>, NanoError> {
        let mut results = Vec::with_capacity(steps.len());
        for batch in steps.chunks(BATCH) {
            results.extend(self.batch(owner, batch)?);
        }
        Ok(results)
    }

    fn words(&self, owner: Rank, slots: &[Slot]) -> Result<Vec<Word>, NanoError> {
        let place = |slot: &Slot| self.layout.word(slot.0).unwrap_or(u64::MAX - 7);
        let word =
            |bytes: &[u8]| Word(bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)));
        if slots.len() <= FEW_WORDS {
            let one = |slot: &Slot| {
                let span = self.part(owner, place(slot), 8)?;
                Ok(word(&span.to_vec(&self.work.lock().stream)?))
            };
            return slots.iter().map(one).collect();
        }
        let all = u64::from(self.layout.slots()) * HEADER_BYTES as u64;
        let headers = self.part(owner, 0, all)?.to_vec(&self.work.lock().stream)?;
        let one = |slot: &Slot| {
            let bytes = usize::try_from(place(slot)).ok().and_then(|at| headers.get(at..));
            bytes.map(word).ok_or_else(|| {
                let extent = Extent::new(place(slot), 7).expect("it ends with the numbers");
                OutOfBounds { extent, len: all }.into()
            })
        };
        slots.iter().map(one).collect()
    }

    fn reap(&self, owner: Rank, gone: Rank) -> Result<(), NanoError> {
        let Work { stream, counts, .. } = &*self.work.lock();
        for _ in 0..TRIES {
            counts.clear(stream)?;
            self.kernels.reap(stream, &self.heap, owner, 0..self.layout.slots(), gone, counts)?;
            if let [_, 0] = counts.read(stream)? {
                return Ok(());
            }
        }
        Err(NanoError::Unsettled)
    }

    fn header(&self, owner: Rank, slot: Slot) -> Result<Header, NanoError> {
        let place = self.layout.header(slot.0).map_or(u64::MAX, Extent::offset);
        let span = self.part(owner, place, HEADER_BYTES as u64)?;
        let bytes = span.to_vec(&self.work.lock().stream)?;
        let mut fields = [0; HEADER_BYTES / 8];
        for (field, bytes) in fields.iter_mut().zip(bytes.chunks_exact(8)) {
            *field = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        }
        Ok(Header::from_words(&fields))
    }

    fn check(&self, stream: Option<u64>) -> Result<(), NanoError> {
        self.stream_of(stream).map(drop)
    }

    fn write(
        &self,
        owner: Rank,
        offset: u64,
        source: Source<'_>,
        when: When,
        marks: &Marks,
    ) -> Result<(), NanoError> {
        if source.is_empty() {
            return Ok(());
        }
        let target = self.part(owner, offset, source.len())?;
        let (lane, on) = (self.lanes.take()?, self.stream_of(when.stream)?);
        match (source, &on) {
            (Source::Host(bytes), _) => target.write(bytes, &lane.stream)?,
            (Source::Device(span), Some(stream)) => {
                target.copy_from(span, stream)?;
                marks.set(stream)?;
            }
            (Source::Device(span), None) => {
                target.copy_from(span, &lane.stream)?;
                lane.stream.synchronize()?;
            }
        }
        Ok(())
    }

    fn put(
        &self,
        place: &Place,
        header: &Header,
        source: Source<'_>,
        when: When,
    ) -> Result<Box<dyn Flight>, NanoError> {
        let (mut lane, on) = (self.lanes.take()?, self.stream_of(when.stream)?);
        let (owner, value) = (place.owner, Self::value(place));
        let open = place.step(Touch::Begin(Box::new(*header)));
        match source {
            Source::Device(source) if is_even(&source) => {
                let (parts, stream) = lane.queue(on.as_ref());
                self.kernels.act(stream, &self.heap, owner, &[asked(&open)], &parts.outcomes)?;
                let begun = Some(parts.outcomes.at(0)?);
                let (pages, publish) = (0..value.pages.count(), Some(&parts.counter));
                let push = Push { value, pages, source, begun, publish };
                self.kernels.push(stream, &self.heap, &push)?;
                lane.mark(on.as_ref())?;
            }
            source => {
                Self::arrive(on.as_ref(), when.until)?;
                let begun = self.step_now(&mut lane, owner, &open)?;
                if begun.is_err() {
                    return Ok(Box::new(Landed(begun)));
                }
                let (when, none) = (When { stream: None, ..when }, Marks::default());
                self.write(owner, place.payload_offset, source, when, &none)?;
                let (parts, stream) = lane.queue(None);
                self.kernels.commit(stream, &self.heap, value, &parts.counter)?;
                lane.mark(None)?;
            }
        }
        Ok(Box::new(Chain { lane, step: place.step(Touch::Apply(StateEvent::Publish)) }))
    }

    fn get(
        &self,
        place: &Place,
        target: &mut Target<'_>,
        when: When,
    ) -> Result<Box<dyn Flight>, NanoError> {
        let (mut lane, on) = (self.lanes.take()?, self.stream_of(when.stream)?);
        let (owner, value, me) = (place.owner, Self::value(place), self.heap.rank());
        let pin = place.step(Touch::Pin(me));
        if let Target::Device(target) = target
            && is_even(target)
        {
            let (parts, stream) = lane.queue(on.as_ref());
            self.kernels.act(stream, &self.heap, owner, &[asked(&pin)], &parts.outcomes)?;
            let (bytes, unpin) = (0..value.pages.bytes_total, Some(&parts.counter));
            let read = Read { value, bytes, target: *target, pin: parts.outcomes.at(0)?, unpin };
            self.kernels.read(stream, &self.heap, &read)?;
            lane.mark(on.as_ref())?;
            return Ok(Box::new(Chain { lane, step: pin }));
        }
        Self::arrive(on.as_ref(), when.until)?;
        let pinned = self.step_now(&mut lane, owner, &pin)?;
        if pinned.is_ok() {
            let copied = self.copy_out(place, target, &lane.stream);
            // Also after an error: the pin is ours.
            let _ = self.step_now(&mut lane, owner, &place.step(Touch::Unpin(me)))?;
            copied?;
        }
        Ok(Box::new(Landed(pinned)))
    }

    fn publish(
        &self,
        place: &Place,
        when: When,
        marks: &Marks,
    ) -> Result<Box<dyn Flight>, NanoError> {
        let (mut lane, on) = (self.lanes.take()?, self.stream_of(when.stream)?);
        marks.precede(on.as_ref().unwrap_or(&lane.stream))?;
        let (parts, stream) = lane.queue(on.as_ref());
        self.kernels.commit(stream, &self.heap, Self::value(place), &parts.counter)?;
        lane.mark(on.as_ref())?;
        Ok(Box::new(Chain { lane, step: place.step(Touch::Apply(StateEvent::Publish)) }))
    }

    fn settle(&self) -> Result<(), NanoError> {
        Ok(self.lanes.gpu().synchronize()?)
    }

    fn sums(&self, owner: Rank, offset: u64, len: u64) -> Result<Vec<u64>, NanoError> {
        self.sum(self.part(owner, offset, len)?)
    }

    fn sums_of(&self, target: &Target<'_>) -> Result<Vec<u64>, NanoError> {
        match target {
            Target::Host(bytes) => Ok(bytes.chunks(SLICE_BYTES as usize).map(crc).collect()),
            Target::Device(span) => self.sum(*span),
        }
    }
}

#[cfg(test)]
#[path = "cuda_tests.rs"]
mod tests;
