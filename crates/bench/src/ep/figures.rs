//! How long rounds take where ranks are processes of their own: `mooncrate-ep-check` measures them all in one.

use super::checks::same;
use super::team::{Seat, Team};
use super::{EpArgs, FIGURE};
use crate::nano::Backend;
use crate::render::say;
use anyhow::{Context, Result};
use mooncrate_ep::EpError;
use mooncrate_ep::seat::{CudaSeat, Replay};
use mooncrate_ep::workload::Routing;
use mooncrate_gpu::Event;
use std::rc::Rc;

/// Rounds of a graph, and replays of it.
const ROUNDS: u64 = 60;
const REPLAYS: u64 = 25;

/// Few steps are for a machine without a GPU: a small shape and few rounds show that everything runs.
pub(super) fn is_short(args: &EpArgs) -> bool {
    args.steps < ROUNDS
}

/// Short rounds and full paths as graphs, timed by the GPU; outputs are compared before and afterwards.
pub(super) fn rounds(team: &mut Team) -> Result<()> {
    let Some(stream) = team.stream.clone() else { return Ok(()) };
    let drawn = team.draw(Routing::Full, 1);
    for (drawn, out) in drawn.iter().zip(team.layer(|_| 1, &drawn)) {
        same(team, drawn, &out?)?;
    }
    let seats: Vec<Rc<CudaSeat>> = team.seats.iter().filter_map(Seat::cuda).cloned().collect();
    let short: fn(&[Rc<CudaSeat>]) -> Result<(), EpError> = |seats| {
        seats.iter().try_for_each(|seat| seat.dispatch(2))?;
        seats.iter().try_for_each(|seat| seat.await_both())?;
        seats.iter().try_for_each(|seat| seat.combine())
    };
    let full: fn(&[Rc<CudaSeat>]) -> Result<(), EpError> = |seats| Replay::calls(seats, 2);
    // A short round of ranks that share a process needs kernels that run at the same time; the emulator has none.
    let at_once = team.args.backend == Backend::CudaIpc || stream.gpu().name() != "emulator";
    let (rounds, replays) = if is_short(&team.args) { (2, 2) } else { (ROUNDS, REPLAYS) };
    for (name, round, runs) in
        [("short round", short, at_once), ("layer with the experts of tests", full, true)]
    {
        if !runs {
            continue;
        }
        let graph =
            Replay::record(&stream, &seats, |seats| (0..rounds).try_for_each(|_| round(seats)))?;
        seats.iter().try_for_each(|seat| seat.spoil_output())?;
        let (began, ended) = (Event::new(stream.gpu())?, Event::new(stream.gpu())?);
        let mut times = Vec::new();
        for _ in 0..replays {
            team.together("replay")?;
            began.record(&stream)?;
            graph.queue()?;
            ended.record(&stream)?;
            graph.wait()?;
            #[expect(clippy::cast_precision_loss, reason = "a small number")]
            times.push(ended.micros_since(&began)? / rounds as f64);
        }
        for (seat, drawn) in seats.iter().zip(&drawn) {
            same(team, drawn, &seat.output()?).context(name)?;
        }
        times.sort_by(f64::total_cmp);
        say(&format!("{FIGURE}{name}: {}", times[times.len() / 2]))?;
    }
    Ok(())
}
