//! `fill` and `verify`: lines that say whose they are, for tests of races.

use super::launch::THREADS;
use super::stamp_oracle::LINE_BYTES;
use super::value::{aligned, on_gpu_of};
use super::{Counts, KernelError, Kernels};
use mooncrate_gpu::{Launch, Span, Stream};

/// Compiled from `stamp.cu` by `./dev kernels`.
pub(super) const PTX: &str = include_str!("stamp.ptx");

impl Kernels {
    /// Queues a fill of all of `target` with lines of 64 bytes that carry `id` and their index.
    pub fn fill(&self, stream: &Stream, target: Span<'_>, id: u64) -> Result<(), KernelError> {
        on_gpu_of(stream, &[target])?;
        aligned("the address of the target", target.address())?;
        let Some(launch) = lines(target.len())? else { return Ok(()) };
        let (address, bytes) = (target.address(), target.len());
        let params = [(&address).into(), (&bytes).into(), (&id).into()];
        // SAFETY: the parameters are those of `fill_lines`, which writes the bytes of the target. That is
        // device memory, whose owner waits for the device before it frees.
        Ok(unsafe { self.fill.launch(stream, launch, &params) }?)
    }

    /// Queues a comparison of all of `source` with what `fill` writes, and adds the number of lines that
    /// differ to the first count.
    pub fn verify(
        &self,
        stream: &Stream,
        source: Span<'_>,
        id: u64,
        wrong: &Counts,
    ) -> Result<(), KernelError> {
        on_gpu_of(stream, &[source, wrong.memory()])?;
        aligned("the address of the source", source.address())?;
        let Some(launch) = lines(source.len())? else { return Ok(()) };
        let (address, bytes) = (source.address(), source.len());
        let count = wrong.memory().address();
        let params = [(&address).into(), (&bytes).into(), (&id).into(), (&count).into()];
        // SAFETY: the parameters are those of `verify_lines`, which reads the bytes of the source and adds
        // to one number. Both are device memory, as above.
        Ok(unsafe { self.verify.launch(stream, launch, &params) }?)
    }
}

/// A thread for each line; `None`: there are none.
fn lines(bytes: u64) -> Result<Option<Launch>, KernelError> {
    let blocks = bytes.div_ceil(LINE_BYTES as u64 * u64::from(THREADS));
    let blocks = i32::try_from(blocks).map_err(|_| {
        KernelError::Shape(format!("{bytes} bytes are too many for one launch; split them"))
    })?;
    Ok((blocks > 0).then(|| Launch::linear(blocks.unsigned_abs(), THREADS)))
}
