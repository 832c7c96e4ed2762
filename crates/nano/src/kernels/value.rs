//! What a launch checks before it is queued: values, ranks, addresses, lengths.

use super::{KernelError, Kernels};
use crate::layout::{HeapLayout, PIECE, Pages};
use mooncrate_core::Generation;
use mooncrate_gpu::{Plain, Span, Stream};
use mooncrate_heap::{Bases, Heap, RANKS_MAX, Rank};
use std::ops::Range;

/// A value in the heap of a rank, as plans and headers describe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// Whose heap it is in.
    pub owner: Rank,
    /// Its header.
    pub slot: u32,
    /// Which life of the header.
    pub generation: Generation,
    /// Where its bytes begin in that heap.
    pub payload: u64,
    /// How long it is, and how it is cut.
    pub pages: Pages,
}

impl Value {
    /// Where a part of it lies in the heap, once it is clear that value and header are where they may be.
    pub(super) fn place(
        &self,
        layout: &HeapLayout,
        from: u64,
        bytes: u64,
    ) -> Result<u64, KernelError> {
        let total = self.pages.bytes_total;
        inside("a part of the value", from, bytes, 0..total)?;
        let room = layout.payload();
        inside("the value in its heap", self.payload, total, room.offset()..room.end())?;
        if self.slot >= layout.slots() {
            let (slot, slots) = (self.slot, layout.slots());
            return Err(KernelError::Shape(format!(
                "header {slot} does not exist: there are {slots}"
            )));
        }
        aligned("the offset of the value", self.payload)?;
        aligned("the offset in the value", from)?;
        Ok(self.payload + from)
    }
}

/// The table of heaps as a kernel takes it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct RawBases([u64; RANKS_MAX]);

// SAFETY: eight numbers, and no padding: `Bases` in `nano.cuh`.
unsafe impl Plain for RawBases {}

impl Kernels {
    /// The table of heaps, once it is clear that the GPU of `stream` reaches that of `owner`, and that
    /// headers and payload of the layout lie in it.
    pub(super) fn reach(
        &self,
        heap: &Heap,
        owner: Rank,
        stream: &Stream,
    ) -> Result<RawBases, KernelError> {
        let Some(span) = heap.span(owner) else {
            return Err(KernelError::NoHeap(owner));
        };
        on_gpu_of(stream, &[span])?;
        let (needed, given) = (self.layout.payload().end(), heap.bytes());
        if needed > given {
            return Err(KernelError::TooShort { what: "the heap of the layout", needed, given });
        }
        let Bases(bases) = heap.bases();
        Ok(RawBases(bases))
    }
}

/// Refuses what a thread cannot move 16 bytes at a time.
pub(super) fn aligned(what: &'static str, value: u64) -> Result<(), KernelError> {
    if value.is_multiple_of(PIECE) {
        return Ok(());
    }
    Err(KernelError::Misaligned { what, value })
}

/// Refuses a run of bytes that is not inside of `room`.
pub(super) fn inside(
    what: &'static str,
    offset: u64,
    bytes: u64,
    room: Range<u64>,
) -> Result<(), KernelError> {
    let end = offset.checked_add(bytes);
    if offset >= room.start && end.is_some_and(|end| end <= room.end) {
        return Ok(());
    }
    Err(KernelError::OutOfBounds { what, offset, bytes, begin: room.start, end: room.end })
}

/// Refuses memory that is shorter than needed.
pub(super) fn holds(what: &'static str, memory: Span<'_>, needed: u64) -> Result<(), KernelError> {
    if needed <= memory.len() {
        return Ok(());
    }
    Err(KernelError::TooShort { what, needed, given: memory.len() })
}

/// Refuses two runs of device memory that have a byte in common.
pub(super) fn apart(one: Span<'_>, other: Span<'_>) -> Result<(), KernelError> {
    if one.is_empty() || other.is_empty() || !one.overlaps(&other) {
        return Ok(());
    }
    Err(KernelError::Shape("source and target overlap".into()))
}

/// Refuses memory that the GPU of `stream` may not reach.
pub(super) fn on_gpu_of(stream: &Stream, memory: &[Span<'_>]) -> Result<(), KernelError> {
    match memory.iter().find(|span| !span.gpu().is(stream.gpu())) {
        None => Ok(()),
        Some(span) => Err(KernelError::Shape(format!(
            "memory of GPU {} in a launch on GPU {}",
            span.gpu().ordinal(),
            stream.gpu().ordinal()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mooncrate_heap::World;

    fn value(slot: u32, payload: u64, bytes: u64) -> Value {
        let owner = World::new(1).and_then(|world| world.rank(0)).unwrap();
        let pages = Pages::new(bytes, 64).unwrap();
        Value { owner, slot, generation: Generation(1), payload, pages }
    }

    #[test]
    fn values_lie_in_the_payload() {
        let layout = HeapLayout::new(2, 4096).unwrap();
        assert_eq!(value(1, 256, 3840).place(&layout, 0, 3840), Ok(256));
        assert_eq!(value(1, 512, 100).place(&layout, 64, 36), Ok(576));
        assert_eq!(value(1, 512, 0).place(&layout, 0, 0), Ok(512));
        for (value, from, bytes, said) in [
            (value(2, 256, 16), 0, 16, "header 2 does not exist: there are 2"),
            (
                value(0, 128, 16),
                0,
                16,
                "the value in its heap: 16 bytes at 128 reach outside of 256..4096",
            ),
            (value(0, 256, 3856), 0, 1, "3856 bytes at 256 reach outside of 256..4096"),
            (value(0, u64::MAX - 15, 64), 0, 1, "reach outside"),
            (
                value(0, 256, 64),
                48,
                17,
                "a part of the value: 17 bytes at 48 reach outside of 0..64",
            ),
            (value(0, 256, 64), u64::MAX, 2, "reach outside"),
            (
                value(0, 264, 64),
                0,
                64,
                "the offset of the value is 264, which is no multiple of 16",
            ),
            (value(0, 256, 64), 8, 8, "the offset in the value is 8, which is no multiple of 16"),
        ] {
            let error = value.place(&layout, from, bytes).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
