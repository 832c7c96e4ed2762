//! The second mapping of device memory, by the driver's virtual memory management.
//!
//! The driver maps a physical allocation as a whole. So an arena whose blocks shall be mapped again consists of
//! one allocation per piece of each block, mapped one after the other to the addresses of the arena. Another
//! range maps some of them again, in another order.
//!
//! Both addresses reach the same bytes. The driver promises that across kernels: what one launch wrote through
//! one address, the next launch of the stream reads through the other. Within one kernel it promises nothing.

use super::{ArenaRef, BlockHold, Contiguous, RemapError, sealed};
use crate::arena::ArenaError;
use crate::claims::Claims;
use crate::cuda::CudaArena;
use crate::ids::BlockId;
use mooncrate_core::Extent;
use mooncrate_gpu::{AddressRange, Gpu, GpuError, SharedMemory, Span};
use std::iter;
use std::sync::Arc;

/// Device memory of an arena, one physical allocation per piece.
#[derive(Debug)]
pub(crate) struct PieceMemory {
    range: AddressRange,
    /// By their place in the arena.
    pieces: Box<[Arc<SharedMemory>]>,
    piece_bytes: u64,
}

impl PieceMemory {
    /// Memory of `bytes` bytes, a multiple of `piece_bytes`, which is one of the driver's granularity.
    pub(crate) fn new(gpu: &Gpu, bytes: u64, piece_bytes: u64) -> Result<Self, GpuError> {
        assert!(bytes.is_multiple_of(piece_bytes), "an arena has whole pieces");
        let mut range = AddressRange::reserve(gpu, bytes)?;
        let mut pieces = Vec::new();
        for place in 0..bytes / piece_bytes {
            let piece = SharedMemory::create(gpu, piece_bytes)?;
            range.map(place * piece_bytes, &piece)?;
            pieces.push(piece);
        }
        Ok(Self { range, pieces: pieces.into(), piece_bytes })
    }

    /// All of it.
    pub(crate) fn span(&self) -> Span<'_> {
        let whole = self.range.span(0..self.pieces.len() as u64 * self.piece_bytes);
        whole.expect("every piece was mapped when the memory was made")
    }

    pub(crate) const fn piece_bytes(&self) -> u64 {
        self.piece_bytes
    }

    /// A range in which the pieces at these offsets of the memory follow each other.
    fn map_again(
        &self,
        gpu: &Gpu,
        offsets: impl ExactSizeIterator<Item = u64>,
    ) -> Result<AddressRange, GpuError> {
        let mut range = AddressRange::reserve(gpu, offsets.len() as u64 * self.piece_bytes)?;
        for (place, offset) in offsets.enumerate() {
            let piece = &self.pieces[(offset / self.piece_bytes) as usize];
            range.map(place as u64 * self.piece_bytes, piece)?;
        }
        Ok(range)
    }
}

const REMAPPABLE: RemapError = RemapError::NotShared { instead: "CudaArena::remappable" };

impl<A: ArenaRef<Target = CudaArena>, B: BlockHold> Contiguous<A, B> {
    /// The memory of all blocks, for kernels and exporters. Work of the engine on it is ordered by the engine's
    /// streams, as for [`CudaArena::span`].
    pub fn span(&self) -> Span<'_> {
        let whole = self.mapping.span(0..self.bytes());
        whole.expect("every piece was mapped when the range was made")
    }
}

impl sealed::Mapper for CudaArena {
    type Mapping = AddressRange;

    fn remap_page_bytes(&self) -> Result<u64, RemapError> {
        // `CudaArena::remappable` made the pieces multiples of the driver's page.
        self.pieces().map(PieceMemory::piece_bytes).ok_or(REMAPPABLE)
    }

    fn map_pieces(
        &self,
        blocks: &[BlockId],
        start: u64,
        piece_bytes: u64,
    ) -> Result<AddressRange, RemapError> {
        let memory = self.pieces().ok_or(REMAPPABLE)?;
        let offsets = blocks.iter().map(|block| start + u64::from(block.0) * piece_bytes);
        let range = memory.map_again(self.span().gpu(), offsets);
        Ok(range.map_err(ArenaError::from)?)
    }

    unsafe fn copy_out(
        &self,
        mapping: &AddressRange,
        offset: u64,
        target: &mut [u8],
    ) -> Result<(), ArenaError> {
        let bytes = Extent::new(offset, target.len() as u64).expect("the caller checked the bytes");
        let device = mapping.span(0..mapping.bytes())?;
        self.copy_to(device, iter::once(bytes), target)
    }

    unsafe fn copy_in(
        &self,
        mapping: &AddressRange,
        offset: u64,
        source: &[u8],
    ) -> Result<(), ArenaError> {
        let bytes = Extent::new(offset, source.len() as u64).expect("the caller checked the bytes");
        let device = mapping.span(0..mapping.bytes())?;
        self.copy_from(device, iter::once(bytes), source)
    }

    fn remap_claims(&self) -> &Claims {
        self.claims()
    }
}

#[cfg(test)]
#[path = "cuda_tests.rs"]
mod tests;
