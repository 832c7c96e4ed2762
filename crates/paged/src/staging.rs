//! Bytes of scattered runs of device memory, to and from ordinary host memory through two pinned buffers.
//!
//! A GPU copies from and to pinned memory only; a copy of other memory makes the driver stage it, one call at
//! a time, while the caller waits. Here the processor empties (or fills) one buffer while the GPU works on the
//! other:
//!
//! ```text
//!   runs on the GPU ──copies of a stream──► [ buffer 0 ] ──memcpy──► the caller's slice
//!                                           [ buffer 1 ]
//! ```
//!
//! A slice that is pinned already needs no staging: its runs are copied straight, and awaited once.
//!
//! What must stay true: no buffer and no slice of the caller is touched by a copy after the call has returned,
//! whatever its result. Each call therefore waits for the stream before it returns, also after an error.

use mooncrate_core::Extent;
use mooncrate_gpu::{Event, Gpu, GpuError, PinnedBuffer, Span, Stream};

/// Bytes of each of the two buffers. Copies of this length run at the speed of the link; longer ones only
/// take more memory that cannot be swapped.
pub(crate) const STAGING_BYTES: usize = 4 << 20;

/// Two pinned buffers.
#[derive(Debug)]
pub(crate) struct Staging {
    buffers: [Buffer; 2],
}

#[derive(Debug)]
struct Buffer {
    memory: PinnedBuffer,
    /// The end of the last copy from or to the memory.
    copied: Event,
}

impl Staging {
    pub(crate) fn new(gpu: &Gpu, bytes: usize) -> Result<Self, GpuError> {
        let buffer = || -> Result<Buffer, GpuError> {
            Ok(Buffer { memory: PinnedBuffer::new(gpu, bytes)?, copied: Event::new(gpu)? })
        };
        Ok(Self { buffers: [buffer()?, buffer()?] })
    }

    /// Copies `runs` of `device` to `target`, which has exactly their length.
    pub(crate) fn read(
        &mut self,
        device: Span<'_>,
        runs: impl Iterator<Item = Extent>,
        target: &mut [u8],
        stream: &Stream,
    ) -> Result<(), GpuError> {
        let mut pieces = Pieces::of(runs);
        let copied = if device.gpu().is_pinned(target) {
            // SAFETY: the wait below ends before this call does, and `target` is borrowed until then.
            unsafe { download(device, &mut pieces, target, stream) }
        } else {
            self.read_staged(device, &mut pieces, target, stream)
        };
        let ended = stream.synchronize();
        copied.and(ended)
    }

    fn read_staged(
        &mut self,
        device: Span<'_>,
        pieces: &mut Pieces<impl Iterator<Item = Extent>>,
        target: &mut [u8],
        stream: &Stream,
    ) -> Result<(), GpuError> {
        let bytes = self.buffers[0].memory.len();
        // The part of the target whose bytes are on their way, and the buffer that they come to.
        let mut under_way: Option<(usize, &mut [u8])> = None;
        for (turn, part) in target.chunks_mut(bytes).enumerate() {
            let Buffer { memory, copied } = &mut self.buffers[turn % 2];
            // SAFETY: `take` waits for the event before anybody reads the buffer, and the next copy to it
            // is queued after that. An error ends in the wait of `read`.
            unsafe { download(device, pieces, &mut memory[..part.len()], stream) }?;
            copied.record(stream)?;
            if let Some((before, part)) = under_way.replace((turn % 2, part)) {
                self.buffers[before].take(part)?;
            }
        }
        under_way.map_or(Ok(()), |(last, part)| self.buffers[last].take(part))
    }

    /// Copies `source`, which has exactly their length, to `runs` of `device`.
    pub(crate) fn write(
        &mut self,
        device: Span<'_>,
        runs: impl Iterator<Item = Extent>,
        source: &[u8],
        stream: &Stream,
    ) -> Result<(), GpuError> {
        let mut pieces = Pieces::of(runs);
        let copied = if device.gpu().is_pinned(source) {
            // SAFETY: the wait below ends before this call does, and `source` is borrowed until then.
            unsafe { upload(device, &mut pieces, source, stream) }
        } else {
            self.write_staged(device, &mut pieces, source, stream)
        };
        let ended = stream.synchronize();
        copied.and(ended)
    }

    fn write_staged(
        &mut self,
        device: Span<'_>,
        pieces: &mut Pieces<impl Iterator<Item = Extent>>,
        source: &[u8],
        stream: &Stream,
    ) -> Result<(), GpuError> {
        let bytes = self.buffers[0].memory.len();
        for (turn, part) in source.chunks(bytes).enumerate() {
            let Buffer { memory, copied } = &mut self.buffers[turn % 2];
            if turn > 1 {
                copied.synchronize()?;
            }
            memory[..part.len()].copy_from_slice(part);
            // SAFETY: the wait above, or that of `write`, comes before the buffer is written again.
            unsafe { upload(device, pieces, &memory[..part.len()], stream) }?;
            copied.record(stream)?;
        }
        Ok(())
    }
}

impl Buffer {
    /// Waits for the copy to here, then hands its bytes on.
    fn take(&self, target: &mut [u8]) -> Result<(), GpuError> {
        self.copied.synchronize()?;
        target.copy_from_slice(&self.memory[..target.len()]);
        Ok(())
    }
}

/// Queues copies of the next pieces of device memory until `target` is full.
///
/// # Safety
/// Until the stream has ended them, `target` stays alive and nobody reads or writes it.
unsafe fn download(
    device: Span<'_>,
    pieces: &mut Pieces<impl Iterator<Item = Extent>>,
    mut target: &mut [u8],
    stream: &Stream,
) -> Result<(), GpuError> {
    while !target.is_empty() {
        let piece = pieces.next(target.len());
        let (now, rest) = target.split_at_mut(piece.len() as usize);
        // SAFETY: the caller's promise.
        unsafe { device.part(piece.offset()..piece.end())?.enqueue_download(now, stream) }?;
        target = rest;
    }
    Ok(())
}

/// Queues copies of `source` to the next pieces of device memory.
///
/// # Safety
/// Until the stream has ended them, `source` stays alive and nobody writes to it.
unsafe fn upload(
    device: Span<'_>,
    pieces: &mut Pieces<impl Iterator<Item = Extent>>,
    mut source: &[u8],
    stream: &Stream,
) -> Result<(), GpuError> {
    while !source.is_empty() {
        let piece = pieces.next(source.len());
        let (now, rest) = source.split_at(piece.len() as usize);
        // SAFETY: the caller's promise.
        unsafe { device.part(piece.offset()..piece.end())?.enqueue_upload(now, stream) }?;
        source = rest;
    }
    Ok(())
}

/// Runs, cut where a buffer is full.
struct Pieces<I> {
    runs: I,
    /// What the last piece left of its run: the next offset, and the bytes.
    rest: (u64, u64),
}

impl<I: Iterator<Item = Extent>> Pieces<I> {
    fn of(runs: I) -> Self {
        Self { runs, rest: (0, 0) }
    }

    /// The next piece, of `bytes_max` bytes at most. The caller asks for no more bytes than there are.
    fn next(&mut self, bytes_max: usize) -> Extent {
        if self.rest.1 == 0 {
            let run = self.runs.next().expect("the buffer has the length of the runs");
            self.rest = (run.offset(), run.len());
        }
        let (offset, left) = self.rest;
        let len = left.min(bytes_max as u64);
        self.rest = (offset + len, left - len);
        Extent::new(offset, len).expect("a part of a run")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::shape;
    use crate::ids::BlockId;
    use crate::layout::Layout;
    use crate::part::{Order, Part};

    /// However the buffers cut them, the pieces are the bytes of the runs in their order.
    #[test]
    fn pieces_are_the_bytes_of_the_runs() {
        let shape = shape(Layout::Hnd, 8);
        let runs = shape.runs(&Part::block(BlockId(3)), Order::Tokens).unwrap();
        assert_eq!(runs.run_bytes(), 16);
        let wanted: Vec<u64> = runs.clone().flat_map(|run| run.offset()..run.end()).collect();
        for bytes_max in [1, 7, 16, 100] {
            let mut pieces = Pieces::of(runs.clone());
            let mut found = Vec::new();
            while found.len() < wanted.len() {
                let mut room = bytes_max.min(wanted.len() - found.len());
                while room > 0 {
                    let piece = pieces.next(room);
                    assert!((1..=16).contains(&piece.len()));
                    found.extend(piece.offset()..piece.end());
                    room -= piece.len() as usize;
                }
            }
            assert_eq!(found, wanted, "{bytes_max}");
        }
    }
}
