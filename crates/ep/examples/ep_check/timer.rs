//! Time per round from replays of one graph, and the spread of single replays.

use mooncrate_ep::EpError;
use mooncrate_ep::seat::Replay;
use mooncrate_gpu::{Event, Stream};

/// Replays that are not timed.
pub(crate) const WARM_UPS: usize = 3;

/// How often things are done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Rounds of one graph: its launch costs some microseconds, which vanish among so many.
    pub(crate) rounds: usize,
    /// Timed replays: an odd number, so that the median is one of them.
    pub(crate) replays: usize,
    /// Replays whose times are taken one by one.
    pub(crate) singles: usize,
}

/// Microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Time {
    /// The middle one.
    pub(crate) median: f64,
    /// The fastest one.
    pub(crate) least: f64,
    /// The slowest one; of single replays the 99th of 100.
    pub(crate) most: f64,
}

/// Replays a graph of so many rounds: microseconds per round.
pub(crate) fn time(
    stream: &Stream,
    graph: &Replay<'_>,
    rounds: usize,
    replays: usize,
) -> Result<Time, EpError> {
    let (started, ended) = (Event::new(stream.gpu())?, Event::new(stream.gpu())?);
    let mut times = Vec::with_capacity(replays);
    for replay in 0..WARM_UPS + replays {
        started.record(stream)?;
        graph.queue()?;
        ended.record(stream)?;
        graph.wait()?;
        if replay >= WARM_UPS {
            times.push(ended.micros_since(&started)? / number(rounds));
        }
    }
    Ok(spread(times, 1.0))
}

/// Times, of which the given share is below `most`.
pub(crate) fn spread(mut times: Vec<f64>, most: f64) -> Time {
    times.sort_by(f64::total_cmp);
    let last = times.len() - 1;
    #[expect(clippy::cast_sign_loss, reason = "a share of a length")]
    let high = (number(last) * most).round() as usize;
    Time { median: times[last / 2], least: times[0], most: times[high] }
}

#[expect(clippy::cast_precision_loss, reason = "a small number")]
fn number(count: usize) -> f64 {
    count as f64
}
