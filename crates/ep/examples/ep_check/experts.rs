//! The products of experts at decode sizes: how much of the memory's bandwidth their weights get, and what a whole
//! layer takes. All ranks use the same weights here, which are far larger than any cache.

use crate::report::Figure;
use crate::team::Team;
use crate::timer::{Effort, time};
use mooncrate_core::rng::Rng;
use mooncrate_ep::seat::CudaSeat;
use mooncrate_ep::{CudaWeights, EpConfig, EpError, Shape, Tuning};
use mooncrate_gpu::{DeviceBuffer, Gpu, Stream};
use std::rc::Rc;

/// Random bytes that are drawn; the weights repeat them.
const DRAWN: u64 = 1 << 20;
/// Microseconds that 70 % of 4.17 TB/s leave for a byte.
const GOAL_MICROS_PER_BYTE: f64 = 1e6 / (0.7 * 4.17e12);

/// One rank's products, and whole layers of all ranks.
pub(crate) fn figures(
    gpu: &Gpu,
    config: &EpConfig,
    effort: Effort,
    inter: u32,
    tuning: Tuning,
) -> Result<Vec<Figure>, String> {
    let text = |error: EpError| error.to_string();
    let tokens = config.tokens_max as u32;
    let team = Team::new(gpu, config, 1, tokens, tuning).map_err(text)?;
    let shape = team.shape;
    let (w13, w2, act) = memory(gpu, &shape, inter).map_err(text)?;
    let weights = CudaWeights { inter, w13: w13.span(), w2: w2.span() };
    let layer = |seats: &[Rc<CudaSeat>], layer: u16| {
        let each = |call: &dyn Fn(&CudaSeat) -> Result<(), EpError>| {
            seats.iter().try_for_each(|seat| call(seat))
        };
        each(&|seat| seat.dispatch(layer))?;
        each(&CudaSeat::await_rows)?;
        each(&CudaSeat::pack)?;
        each(&|seat| {
            let act = &act[usize::from(seat.ep.rank().number())];
            seat.products(&weights, act.span())
        })?;
        each(&CudaSeat::give_back)?;
        each(&CudaSeat::await_results)?;
        each(&CudaSeat::combine)
    };
    let rounds = effort.rounds.div_ceil(10);
    let graph = team.record(rounds, layer).map_err(text)?;
    let whole = time(&team.stream, &graph, rounds, effort.replays).map_err(text)?;
    let first = outputs(&team).map_err(text)?;
    graph.queue().and_then(|()| graph.wait()).map_err(text)?;
    if outputs(&team).map_err(text)? != first {
        return Err("two runs of the same layers gave different bits".into());
    }
    let seat = &team.sets[0][0];
    let alone = team.record(rounds, |seats, _| seats[0].products(&weights, act[0].span()));
    let products =
        time(&team.stream, &alone.map_err(text)?, rounds, effort.replays).map_err(text)?;
    let expert = 3 * u64::from(inter) * shape.row_bytes();
    let used = |seat: &CudaSeat| -> Result<u64, EpError> {
        Ok(seat.counts()?.iter().filter(|count| **count > 0).count() as u64 * expert)
    };
    let one = used(seat).map_err(text)?;
    let mut all = 0;
    for seat in &team.sets[0] {
        all += used(seat).map_err(text)?;
    }
    #[expect(clippy::cast_precision_loss, reason = "a goal with two digits")]
    let goal = (shape.row_bytes() > 4096).then_some(one as f64 * GOAL_MICROS_PER_BYTE);
    let of = (shape.ranks(), tokens.into());
    let figure = |name: &str, bytes, time, goal| Figure {
        name: name.into(),
        mode: "weights in memory",
        of,
        bytes,
        time,
        floor: None,
        goal,
    };
    Ok(vec![
        figure("products of one rank's experts, bytes of weights", one, products, goal),
        figure("whole layers with experts, bytes of weights", all, whole, None),
    ])
}

/// Weights of all experts of a rank, and what lies between the products, for each rank.
fn memory(
    gpu: &Gpu,
    shape: &Shape,
    inter: u32,
) -> Result<(DeviceBuffer, DeviceBuffer, Vec<DeviceBuffer>), EpError> {
    let stream = Stream::new(gpu)?;
    let matrix = u64::from(shape.local_experts()) * u64::from(inter) * shape.row_bytes();
    let mut rng = Rng::new(9);
    // bf16 of any sign between 2^-8 and 2^-4.
    let one =
        |bits: u64| (bits & 0x8000 | (119 + (bits >> 20 & 3)) << 7 | bits >> 32 & 0x7f) as u16;
    let drawn: Vec<u8> = (0..DRAWN / 2).flat_map(|_| one(rng.next()).to_le_bytes()).collect();
    let fill = |bytes: u64| -> Result<DeviceBuffer, EpError> {
        let buffer = DeviceBuffer::new(gpu, bytes)?;
        let whole = buffer.span();
        let first = whole.part(0..bytes.min(DRAWN))?;
        first.write(&drawn[..first.len() as usize], &stream)?;
        let mut done = first.len();
        while done < bytes {
            let next = done.min(bytes - done);
            whole.part(done..done + next)?.copy_from(whole.part(0..next)?, &stream)?;
            done += next;
        }
        stream.synchronize()?;
        Ok(buffer)
    };
    let rows = u64::from(shape.local_experts()) * u64::from(shape.rows_max());
    let act = |_| Ok(DeviceBuffer::new(gpu, rows * u64::from(inter) * 2)?);
    Ok((
        fill(2 * matrix)?,
        fill(matrix)?,
        (0..shape.ranks()).map(act).collect::<Result<_, EpError>>()?,
    ))
}

fn outputs(team: &Team) -> Result<Vec<Vec<u16>>, EpError> {
    team.sets[0].iter().map(|seat| seat.output()).collect()
}
