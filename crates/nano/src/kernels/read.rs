//! `read`: bytes of a pinned value in any rank's heap go to memory of this rank.

use super::launch::{cover, device_blocks};
use super::value::{aligned, apart, holds, on_gpu_of};
use super::{Counter, KernelError, Kernels, OutcomeAt, Value};
use mooncrate_gpu::{Span, Stream};
use mooncrate_heap::Heap;
use std::ops::Range;

/// Compiled from `read.cu` by `./dev kernels`.
pub(super) const PTX: &str = include_str!("read.ptx");

/// A part of a value, and where its bytes go.
#[derive(Clone, Debug)]
pub struct Read<'a> {
    /// Where they are.
    pub value: Value,
    /// Which of its bytes; they begin at a multiple of 16.
    pub bytes: Range<u64>,
    /// Where they go; aligned to 16 bytes.
    pub target: Span<'a>,
    /// What became of the pin: without one that was done for this generation, nothing is written.
    pub pin: OutcomeAt<'a>,
    /// Takes one pin of this rank back after the last byte was read. The outcome is in the counter.
    pub unpin: Option<&'a Counter>,
}

impl Kernels {
    /// Queues a read.
    pub fn read(&self, stream: &Stream, heap: &Heap, read: &Read<'_>) -> Result<(), KernelError> {
        let Read { value, bytes: range, target, pin, unpin } = read;
        let bases = self.reach(heap, value.owner, stream)?;
        let bytes = range.end.saturating_sub(range.start);
        let offset = value.place(&self.layout, range.start, bytes)?;
        on_gpu_of(stream, &[*target, pin.0])?;
        holds("the target of a read", *target, bytes)?;
        aligned("the address of the target", target.address())?;
        let source = heap.span(value.owner).ok_or(KernelError::NoHeap(value.owner))?;
        apart(target.part(0..bytes)?, source.part(offset..offset + bytes)?)?;
        let counter = unpin.map_or(Ok(0), |counter| counter.address(stream))?;
        if bytes == 0 && counter == 0 {
            return Ok(());
        }
        let (launch, share) = cover(bytes, device_blocks(stream.gpu().sm_count()));
        let (owner, me) = (u32::from(value.owner.number()), u32::from(heap.rank().number()));
        let (generation, target, pin) = (value.generation.0, target.address(), pin.0.address());
        let params = [
            (&bases).into(),
            (&owner).into(),
            (&value.slot).into(),
            (&generation).into(),
            (&offset).into(),
            (&bytes).into(),
            (&target).into(),
            (&share).into(),
            (&pin).into(),
            (&me).into(),
            (&counter).into(),
        ];
        // SAFETY: the parameters are those of `read_value`. It reads `bytes` bytes at `offset` of the
        // owner's heap and writes as many to the target; both were checked to be there, and so was the
        // outcome of the pin. The header of `slot` is in that heap, too, and the counter belongs to this
        // stream, in which launches follow each other. All of it is device memory, whose owners wait for
        // the device before they free.
        Ok(unsafe { self.read.launch(stream, launch, &params) }?)
    }
}
