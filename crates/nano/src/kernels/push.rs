//! `push`: bytes of this rank go to a value in the heap of another one, and make it ready.

use super::launch::{cover, device_blocks};
use super::value::{aligned, apart, holds, on_gpu_of};
use super::{Counter, KernelError, Kernels, OutcomeAt, Value};
use mooncrate_gpu::{Launch, Span, Stream};
use mooncrate_heap::Heap;
use std::ops::Range;

/// Compiled from `push.cu` by `./dev kernels`.
pub(super) const PTX: &str = include_str!("push.ptx");

/// Longer pushes do not start early: the blocks of the next one, while they wait, cost more than its launch.
const EARLY_BYTES_MAX: u64 = 1 << 20;

/// Some pages of a value, and where their bytes come from.
#[derive(Clone, Debug)]
pub struct Push<'a> {
    /// Where they go.
    pub value: Value,
    /// Which pages. The last one of a value may be short; nothing after it is written.
    pub pages: Range<u32>,
    /// Their bytes, from the first byte of the first page on; aligned to 16 bytes.
    pub source: Span<'a>,
    /// What became of the step that opened the slot, queued before on the same stream: without one that was done for
    /// this generation, nothing is written.
    pub begun: Option<OutcomeAt<'a>>,
    /// Makes the value ready after the last byte of *this* launch. Pages that other launches push must be
    /// there before: in the same stream, or by an event.
    pub publish: Option<&'a Counter>,
}

impl Kernels {
    /// Queues a push. The outcome of publishing is in the counter: done, or refused because the value is
    /// gone.
    pub fn push(&self, stream: &Stream, heap: &Heap, push: &Push<'_>) -> Result<(), KernelError> {
        let pages = push.value.pages;
        if push.pages.start > push.pages.end || push.pages.end > pages.count() {
            let (given, count) = (&push.pages, pages.count());
            return Err(KernelError::Shape(format!("pages {given:?} of a value that has {count}")));
        }
        let start =
            |page: u32| (u64::from(page) * u64::from(pages.page_bytes)).min(pages.bytes_total);
        if push.pages.is_empty() {
            // Also at the end of a value, which may lie anywhere.
            return self.send(stream, heap, push, 0, 0);
        }
        let (from, to) = (start(push.pages.start), start(push.pages.end));
        self.send(stream, heap, push, from, to - from)
    }

    /// Queues the publishing of a value whose bytes are there already, such as by kernels of others.
    pub fn commit(
        &self,
        stream: &Stream,
        heap: &Heap,
        value: Value,
        publish: &Counter,
    ) -> Result<(), KernelError> {
        let source = heap.span(value.owner).ok_or(KernelError::NoHeap(value.owner))?.part(0..0)?;
        let push = Push { value, pages: 0..0, source, begun: None, publish: Some(publish) };
        self.send(stream, heap, &push, 0, 0)
    }

    fn send(
        &self,
        stream: &Stream,
        heap: &Heap,
        push: &Push<'_>,
        from: u64,
        bytes: u64,
    ) -> Result<(), KernelError> {
        let Push { value, source, begun, publish, .. } = push;
        let bases = self.reach(heap, value.owner, stream)?;
        let offset = value.place(&self.layout, from, bytes)?;
        on_gpu_of(stream, &[*source])?;
        let begun = match begun {
            None => 0,
            Some(OutcomeAt(place)) => {
                on_gpu_of(stream, &[*place])?;
                place.address()
            }
        };
        holds("the source of a push", *source, bytes)?;
        if bytes > 0 {
            aligned("the address of the source", source.address())?;
        }
        let target = heap.span(value.owner).ok_or(KernelError::NoHeap(value.owner))?;
        apart(source.part(0..bytes)?, target.part(offset..offset + bytes)?)?;
        let counter = publish.map_or(Ok(0), |counter| counter.address(stream))?;
        if bytes == 0 && counter == 0 {
            return Ok(());
        }
        let (launch, share) = cover(bytes, device_blocks(stream.gpu().sm_count()));
        let launch = Launch { dependent: bytes <= EARLY_BYTES_MAX, ..launch };
        let (owner, generation) = (u32::from(value.owner.number()), value.generation.0);
        let source = source.address();
        let params = [
            (&bases).into(),
            (&owner).into(),
            (&value.slot).into(),
            (&generation).into(),
            (&offset).into(),
            (&bytes).into(),
            (&source).into(),
            (&share).into(),
            (&begun).into(),
            (&counter).into(),
        ];
        // SAFETY: the parameters are those of `push_pages`. It reads `bytes` bytes of the source and writes
        // as many at `offset` of the owner's heap; both were checked to be there. The header of `slot` is
        // in that heap, too, `begun` is an outcome or nothing, and launches with the counter follow each other.
        // All of it is device memory, whose owners wait for the device before they free.
        Ok(unsafe { self.push.launch(stream, launch, &params) }?)
    }
}
