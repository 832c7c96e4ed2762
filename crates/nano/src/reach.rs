//! What a rank does to heaps: steps on headers, and moving bytes. One seam, because the processor cannot
//! change a word in VRAM: there every step is a kernel.

use crate::error::NanoError;
use crate::layout::HeapLayout;
use crate::marks::Marks;
use crate::plan::Place;
use mooncrate_core::header::{HEADER_BYTES, Header, WORD_OFFSET};
use mooncrate_core::limits::SLICE_BYTES;
use mooncrate_core::state::Event;
use mooncrate_core::word::{Word, WordError};
use mooncrate_core::{Deadline, Extent, Generation, Medium, Slot};
use mooncrate_gpu::Span;
use mooncrate_heap::{Heap, Rank};
use mooncrate_lock::interrupt;
use mooncrate_mem::Region;
use mooncrate_mem::atomic::Ordering;
use mooncrate_mem::clock::boottime;
use mooncrate_mem::crc::crc;
use mooncrate_mem::word::{AtomicWord, before_first_byte};
use std::fmt;
use std::time::Duration;

/// What happens to a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Touch {
    /// A writer takes a dead slot: the fields are stored, then the word says Writing.
    Begin(Box<Header>),
    /// A step of the one state table.
    Apply(Event),
    /// One more pin of this rank.
    Pin(Rank),
    /// One pin less.
    Unpin(Rank),
}

/// A step on the header of one slot, in one of its lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Which header.
    pub slot: Slot,
    /// Which life.
    pub generation: Generation,
    /// What happens.
    pub touch: Touch,
}

/// The word after a step, or why it was refused.
pub type Stepped = Result<Word, WordError>;

/// Memory of the caller that bytes come from.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// On the host.
    Host(&'a [u8]),
    /// On the GPU.
    Device(Span<'a>),
}

/// Memory of the caller that bytes go to.
#[derive(Debug)]
pub enum Target<'a> {
    /// On the host.
    Host(&'a mut [u8]),
    /// On the GPU.
    Device(Span<'a>),
}

/// When a call is done: after the work of a stream, and before a deadline.
#[derive(Clone, Copy, Debug)]
pub struct When {
    /// The handle of a stream of the caller, who keeps it alive until the call has returned; `None`: nothing that was
    /// queued matters.
    pub stream: Option<u64>,
    /// What has not ended by then is late.
    pub until: Deadline,
}

/// Looks again and again until there is an answer; `None`: not before the deadline, or Ctrl-C. Most answers come within
/// microseconds, so the first looks follow each other at once.
pub(crate) fn wait_until<T>(
    until: Deadline,
    mut look: impl FnMut() -> Result<Option<T>, NanoError>,
) -> Result<Option<T>, NanoError> {
    let began = boottime();
    loop {
        if let Some(answer) = look()? {
            return Ok(Some(answer));
        }
        let now = boottime();
        if until.passed(now) {
            return Ok(None);
        }
        if now.since(began) < SPIN {
            std::hint::spin_loop();
        } else if interrupt::sleep(NAP) {
            return Ok(None);
        }
    }
}

/// How long looks follow each other at once, and the pause between two later on.
const SPIN: Duration = Duration::from_micros(300);
pub(crate) const NAP: Duration = Duration::from_micros(50);

/// Work on a GPU that was queued, and what becomes of it.
pub trait Flight: Send + fmt::Debug {
    /// The word after it or why it was refused, if it has ended. It does not wait.
    fn look(&mut self) -> Result<Option<Stepped>, NanoError>;
}

/// Work that has ended.
#[derive(Debug)]
pub(crate) struct Landed(pub(crate) Stepped);

impl Flight for Landed {
    fn look(&mut self) -> Result<Option<Stepped>, NanoError> {
        Ok(Some(self.0))
    }
}

/// The hands of a rank. Calls are complete when they return, but for those that give a [`Flight`].
///
/// Those are queued on a stream of the caller, or on one of the rank's own where there is none. What is queued on it before
/// has ended before they begin, and they before what is queued later.
pub trait Reach: Send + Sync + fmt::Debug {
    /// The heaps that it reaches.
    fn heap(&self) -> &Heap;

    /// What the heaps are made of.
    fn medium(&self) -> Medium;

    /// Does each step, in no particular order, on headers of `owner`.
    fn step(&self, owner: Rank, steps: &[Step]) -> Result<Vec<Stepped>, NanoError>;

    /// What the words of these headers of `owner` say.
    fn words(&self, owner: Rank, slots: &[Slot]) -> Result<Vec<Word>, NanoError>;

    /// Takes back all pins that a rank whose process is gone has on values of `owner`.
    fn reap(&self, owner: Rank, gone: Rank) -> Result<(), NanoError>;

    /// The fields of a header. They are those of a life only while it cannot end.
    fn header(&self, owner: Rank, slot: Slot) -> Result<Header, NanoError>;

    /// Refuses a stream on which nothing can be queued now.
    fn check(&self, stream: Option<u64>) -> Result<(), NanoError>;

    /// Copies bytes into the heap of `owner`, at that offset of its heap. From device memory that is queued on the stream,
    /// and its end marked.
    fn write(
        &self,
        owner: Rank,
        offset: u64,
        source: Source<'_>,
        when: When,
        marks: &Marks,
    ) -> Result<(), NanoError>;

    /// Begins a life, copies all its bytes from `source` and makes it ready. Nothing is written if it was not begun.
    fn put(
        &self,
        place: &Place,
        header: &Header,
        source: Source<'_>,
        when: When,
    ) -> Result<Box<dyn Flight>, NanoError>;

    /// Pins a value, copies all of it and unpins it. Nothing is written if it was not pinned.
    fn get(
        &self,
        place: &Place,
        target: &mut Target<'_>,
        when: When,
    ) -> Result<Box<dyn Flight>, NanoError>;

    /// Makes the value of a life that was begun ready, after all that is marked.
    fn publish(
        &self,
        place: &Place,
        when: When,
        marks: &Marks,
    ) -> Result<Box<dyn Flight>, NanoError>;

    /// Waits until everything that this process has queued on its GPU has ended.
    fn settle(&self) -> Result<(), NanoError>;

    /// The checksum of each slice of what lies there in the heap of `owner`, as [`mooncrate_core::seal`]
    /// cuts a value.
    fn sums(&self, owner: Rank, offset: u64, len: u64) -> Result<Vec<u64>, NanoError>;

    /// The same of memory of the caller.
    fn sums_of(&self, target: &Target<'_>) -> Result<Vec<u64>, NanoError>;
}

impl Source<'_> {
    /// Bytes of it.
    pub fn len(&self) -> u64 {
        match self {
            Self::Host(bytes) => bytes.len() as u64,
            Self::Device(span) => span.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Target<'_> {
    /// Bytes of it.
    pub fn len(&self) -> u64 {
        match self {
            Self::Host(bytes) => bytes.len() as u64,
            Self::Device(span) => span.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Heaps in host memory: the processor does everything. This one is the specification.
#[derive(Debug)]
pub struct HostReach {
    heap: Heap,
    layout: HeapLayout,
}

impl HostReach {
    /// The hands of the rank whose heap this is.
    pub fn new(heap: Heap, layout: HeapLayout) -> Self {
        Self { heap, layout }
    }

    fn region(&self, owner: Rank) -> Result<&Region, NanoError> {
        self.heap.region(owner).ok_or(NanoError::OtherMemory(Medium::Vram))
    }

    fn word(&self, owner: Rank, slot: Slot) -> Result<&AtomicWord, NanoError> {
        // A slot that does not exist has no place, so asking for it fails.
        let place = self.layout.word(slot.0).unwrap_or(u64::MAX - 7);
        Ok(AtomicWord::of(self.region(owner)?.atomic(place)?))
    }

    fn begin(&self, owner: Rank, step: &Step, header: &Header) -> Result<Stepped, NanoError> {
        let word = self.word(owner, step.slot)?;
        let found = word.load();
        if found.generation() != step.generation {
            return Ok(Err(WordError::Stale { wanted: step.generation, found }));
        }
        // Nobody else takes this life: the master planned it for one put. Reserved keeps the owner's
        // orders away from the fields until they stand.
        let reserved = match word.apply(step.generation, Event::Reserve) {
            Ok(_) => word,
            Err(refused) => return Ok(Err(refused)),
        };
        let region = self.region(owner)?;
        let place = self.layout.header(step.slot.0).expect("its word has a place").offset();
        for (at, field) in header.to_words().into_iter().enumerate() {
            let at = 8 * at as u64;
            if at != WORD_OFFSET as u64 {
                // Relaxed: whoever reads the fields has read the word after they were there.
                region.atomic(place + at)?.store(field, Ordering::Relaxed);
            }
        }
        before_first_byte();
        Ok(reserved.apply(step.generation, Event::Begin))
    }

    fn touch(&self, owner: Rank, step: &Step) -> Result<Stepped, NanoError> {
        let word = self.word(owner, step.slot)?;
        Ok(match &step.touch {
            Touch::Begin(header) => return self.begin(owner, step, header),
            Touch::Apply(event) => word.apply(step.generation, *event),
            Touch::Pin(rank) => word.pin_by(step.generation, rank.number()),
            Touch::Unpin(rank) => Ok(word.unpin_by(rank.number())),
        })
    }
}

impl Reach for HostReach {
    fn heap(&self) -> &Heap {
        &self.heap
    }

    fn medium(&self) -> Medium {
        Medium::Dram
    }

    fn step(&self, owner: Rank, steps: &[Step]) -> Result<Vec<Stepped>, NanoError> {
        steps.iter().map(|step| self.touch(owner, step)).collect()
    }

    fn words(&self, owner: Rank, slots: &[Slot]) -> Result<Vec<Word>, NanoError> {
        slots.iter().map(|slot| Ok(self.word(owner, *slot)?.load())).collect()
    }

    fn reap(&self, owner: Rank, gone: Rank) -> Result<(), NanoError> {
        for slot in 0..self.layout.slots() {
            self.word(owner, Slot(slot))?.reap(gone.number());
        }
        Ok(())
    }

    fn header(&self, owner: Rank, slot: Slot) -> Result<Header, NanoError> {
        let place = self.layout.header(slot.0).map_or(u64::MAX - 7, Extent::offset);
        let region = self.region(owner)?;
        let mut fields = [0; HEADER_BYTES / 8];
        for (at, field) in fields.iter_mut().enumerate() {
            *field = region.atomic(place.saturating_add(8 * at as u64))?.load(Ordering::Relaxed);
        }
        Ok(Header::from_words(&fields))
    }

    fn check(&self, _stream: Option<u64>) -> Result<(), NanoError> {
        Ok(())
    }

    fn write(
        &self,
        owner: Rank,
        offset: u64,
        source: Source<'_>,
        _when: When,
        _marks: &Marks,
    ) -> Result<(), NanoError> {
        let Source::Host(bytes) = source else { return Err(NanoError::OtherMemory(self.medium())) };
        Ok(self.region(owner)?.store(offset, bytes)?)
    }

    fn put(
        &self,
        place: &Place,
        header: &Header,
        source: Source<'_>,
        when: When,
    ) -> Result<Box<dyn Flight>, NanoError> {
        let begun = self.touch(place.owner, &place.step(Touch::Begin(Box::new(*header))))?;
        if begun.is_err() {
            return Ok(Box::new(Landed(begun)));
        }
        let none = Marks::default();
        self.write(place.owner, place.payload_offset, source, when, &none)?;
        self.publish(place, when, &none)
    }

    fn get(
        &self,
        place: &Place,
        target: &mut Target<'_>,
        _when: When,
    ) -> Result<Box<dyn Flight>, NanoError> {
        let Target::Host(bytes) = target else { return Err(NanoError::OtherMemory(self.medium())) };
        let me = self.heap.rank();
        let pinned = self.touch(place.owner, &place.step(Touch::Pin(me)))?;
        if pinned.is_ok() {
            let copied = self.region(place.owner)?.load(place.payload_offset, bytes);
            // Also after an error: the pin is ours.
            let _ = self.touch(place.owner, &place.step(Touch::Unpin(me)))?;
            copied?;
        }
        Ok(Box::new(Landed(pinned)))
    }

    fn publish(
        &self,
        place: &Place,
        _when: When,
        _marks: &Marks,
    ) -> Result<Box<dyn Flight>, NanoError> {
        let published = self.touch(place.owner, &place.step(Touch::Apply(Event::Publish)))?;
        Ok(Box::new(Landed(published)))
    }

    fn settle(&self) -> Result<(), NanoError> {
        Ok(())
    }

    fn sums(&self, owner: Rank, offset: u64, len: u64) -> Result<Vec<u64>, NanoError> {
        let (region, mut sums) = (self.region(owner)?, Vec::new());
        let mut slice = vec![0; len.min(SLICE_BYTES) as usize];
        for start in (0..len).step_by(SLICE_BYTES as usize) {
            let slice = &mut slice[..(len - start).min(SLICE_BYTES) as usize];
            region.load(offset + start, slice)?;
            sums.push(crc(slice));
        }
        Ok(sums)
    }

    fn sums_of(&self, target: &Target<'_>) -> Result<Vec<u64>, NanoError> {
        let Target::Host(bytes) = target else { return Err(NanoError::OtherMemory(self.medium())) };
        Ok(bytes.chunks(SLICE_BYTES as usize).map(crc).collect())
    }
}
