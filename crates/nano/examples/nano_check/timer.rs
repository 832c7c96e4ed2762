//! Time per round from replays of one graph, and the spread of single launches.

use mooncrate_gpu::{Event, Gpu, GpuError, Graph, Stream};
use mooncrate_nano::kernels::KernelError;

/// Rounds of one graph, at least: the launch of a graph costs some microseconds, which vanish among so many.
pub(crate) const ROUNDS: usize = 60;
/// Replays that are not timed.
pub(crate) const WARM_UPS: usize = 3;
/// An odd number, so that the median is one of them.
pub(crate) const REPLAYS: usize = 25;
/// Launches whose times are taken one by one, in batches between which headers are set up again.
pub(crate) const LAUNCHES: usize = 10_000;
pub(crate) const BATCH: usize = 50;

/// Microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Time {
    /// The middle one.
    pub(crate) median: f64,
    /// The fastest one.
    pub(crate) least: f64,
    /// The slowest one; of single launches the 99th of 100.
    pub(crate) most: f64,
}

/// Records `begin` once and `work` for each round into one graph and replays it: microseconds per round.
///
/// # Safety
///
/// Everything that they queue stays alive, and host memory that it reaches is left alone, until this
/// function has returned.
pub(crate) unsafe fn time(
    stream: &Stream,
    rounds: usize,
    begin: impl Fn(&Stream) -> Result<(), KernelError>,
    work: impl Fn(&Stream, usize) -> Result<(), KernelError>,
) -> Result<Time, KernelError> {
    let graph = Graph::record(stream, |stream| {
        begin(stream)?;
        (0..rounds).try_for_each(|round| work(stream, round))
    })?;
    let (started, ended) = (Event::new(stream.gpu())?, Event::new(stream.gpu())?);
    let mut times = Vec::with_capacity(REPLAYS);
    for replay in 0..WARM_UPS + REPLAYS {
        started.record(stream)?;
        // SAFETY: the caller keeps everything alive until this function has returned, and it waits below.
        unsafe { graph.launch(stream) }?;
        ended.record(stream)?;
        stream.synchronize()?;
        if replay >= WARM_UPS {
            times.push(ended.micros_since(&started)? / number(rounds));
        }
    }
    spread(times, 1.0)
}

/// The time of each of many launches, taken by events around it: the median, and the 99th of 100.
pub(crate) fn launches(
    gpu: &Gpu,
    stream: &Stream,
    begin: impl Fn(&Stream) -> Result<(), KernelError>,
    work: impl Fn(&Stream, usize) -> Result<(), KernelError>,
) -> Result<Time, KernelError> {
    let events: Result<Vec<Event>, GpuError> = (0..2 * BATCH).map(|_| Event::new(gpu)).collect();
    let events = events?;
    let mut times = Vec::with_capacity(LAUNCHES);
    while times.len() < LAUNCHES {
        begin(stream)?;
        for (round, pair) in events.chunks_exact(2).enumerate() {
            pair[0].record(stream)?;
            work(stream, round)?;
            pair[1].record(stream)?;
        }
        stream.synchronize()?;
        for pair in events.chunks_exact(2) {
            times.push(pair[1].micros_since(&pair[0])?);
        }
    }
    spread(times, 0.99)
}

fn spread(mut times: Vec<f64>, most: f64) -> Result<Time, KernelError> {
    times.sort_by(f64::total_cmp);
    let last = times.len().checked_sub(1);
    let last = last.ok_or_else(|| GpuError::Invalid("nothing was timed".into()))?;
    #[expect(clippy::cast_sign_loss, reason = "a share of a length")]
    let high = (number(last) * most).round() as usize;
    Ok(Time { median: times[last / 2], least: times[0], most: times[high] })
}

#[expect(clippy::cast_precision_loss, reason = "a small number")]
fn number(count: usize) -> f64 {
    count as f64
}
