//! Device memory before it is used: the heap of a rank, and what callers give. Kernels trust the lengths that are
//! checked here.

use crate::error::EpError;
use crate::layout::ctl;
use mooncrate_gpu::{Span, Stream};
use mooncrate_heap::Heap;

/// This rank's heap, on its GPU.
pub(crate) fn own(heap: &Heap) -> Result<Span<'_>, EpError> {
    heap.span(heap.rank()).ok_or_else(|| EpError::WrongHeap("CudaEp wants heaps on a GPU".into()))
}

/// Takes the heap, if nobody has taken it before. All of a rank's communicators are in its own process.
pub(crate) fn claim(heap: &Heap, stream: &Stream) -> Result<(), EpError> {
    let own = own(heap)?;
    let claim = own.part(ctl::CLAIM..ctl::CLAIM + 8)?;
    if claim.to_vec(stream)? != [0; 8] {
        return Err(EpError::InUse);
    }
    claim.write(&1u64.to_le_bytes(), stream)?;
    own.part(ctl::BAD..ctl::BAD + 8)?.write(&[0xff; 8], stream)?;
    Ok(())
}

pub(crate) fn on_gpu(stream: &Stream, memory: Span<'_>) -> Result<(), EpError> {
    if memory.gpu().is(stream.gpu()) {
        return Ok(());
    }
    let (there, here) = (memory.gpu().ordinal(), stream.gpu().ordinal());
    let text = format!("memory of GPU {there} on a stream of GPU {here}; use one GPU for a rank");
    Err(EpError::Shape(text))
}

/// Refuses memory that is too short, not aligned, or on another GPU.
pub(crate) fn device(
    what: &str,
    stream: &Stream,
    memory: Span<'_>,
    needed: u64,
    align: u64,
) -> Result<(), EpError> {
    on_gpu(stream, memory)?;
    if memory.len() < needed {
        let given = memory.len();
        return Err(EpError::Shape(format!(
            "{what}: {needed} bytes are needed, {given} are given"
        )));
    }
    if !memory.address().is_multiple_of(align) {
        let text = format!("{what}: the address is no multiple of {align}");
        return Err(EpError::Shape(text));
    }
    Ok(())
}
