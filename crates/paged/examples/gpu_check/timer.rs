//! Time per round, taken from replays of one graph.

use mooncrate_gpu::{Event, Gpu, GpuError, Graph, Stream};
use mooncrate_paged::kernels::KernelError;

/// Rounds of one graph: the launch of a graph costs some microseconds, which vanish among so many.
pub(crate) const ROUNDS: usize = 60;
/// Replays that are not timed.
pub(crate) const WARM_UPS: usize = 3;
/// An odd number, so that the median is one of them.
pub(crate) const REPLAYS: usize = 25;

/// Microseconds per round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Time {
    /// The middle one of all replays.
    pub(crate) median: f64,
    /// The fastest replay.
    pub(crate) least: f64,
    /// The slowest replay.
    pub(crate) most: f64,
}

/// Records `work` for each round into one graph and replays it. `work` gets the number of the round, by
/// which it takes turns among its buffers.
///
/// # Safety
///
/// Everything that `work` queues stays alive, and host memory that it reaches is left alone, until this
/// function has returned.
pub(crate) unsafe fn time(
    gpu: &Gpu,
    work: impl Fn(&Stream, usize) -> Result<(), KernelError>,
) -> Result<Time, KernelError> {
    let stream = Stream::new(gpu)?;
    let graph =
        Graph::record(&stream, |stream| (0..ROUNDS).try_for_each(|round| work(stream, round)))?;
    let (begun, ended) = (Event::new(gpu)?, Event::new(gpu)?);
    let mut times = Vec::with_capacity(REPLAYS);
    for replay in 0..WARM_UPS + REPLAYS {
        begun.record(&stream)?;
        // SAFETY: the caller keeps everything alive until this function has returned, and it waits below.
        unsafe { graph.launch(&stream) }?;
        ended.record(&stream)?;
        stream.synchronize()?;
        if replay >= WARM_UPS {
            times.push(ended.micros_since(&begun)? / rounds());
        }
    }
    times.sort_by(f64::total_cmp);
    let last = times.len().checked_sub(1);
    let last = last.ok_or_else(|| GpuError::Invalid("no replay was timed".into()))?;
    Ok(Time { median: times[last / 2], least: times[0], most: times[last] })
}

#[expect(clippy::cast_precision_loss, reason = "a small number")]
fn rounds() -> f64 {
    ROUNDS as f64
}
