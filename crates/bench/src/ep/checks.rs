//! The checks, and what each of them promises.

use super::team::{Seat, Team};
use super::{EpArgs, SAYS, deaths, figures};
use crate::nano::Backend;
use crate::render::say;
use anyhow::{Context, Result, bail, ensure};
use mooncrate_ep::barrier::{Fault, Kind};
use mooncrate_ep::layout::row;
use mooncrate_ep::oracle::{dense_of, test_expert};
use mooncrate_ep::workload::{Drawn, Routing};
use mooncrate_ep::{EpConfig, Payload};
use mooncrate_mem::clock::boottime;
use rustix::process::Signal;
use std::time::Duration;

type Check = (&'static str, fn(&mut Team) -> Result<()>);

const LIST: &[Check] = &[
    ("layers of every routing are equal to the dense reference bit for bit", steps),
    ("the same layers give the same bits again", repeat),
    ("graphs and plain calls share a communicator", graphs),
    ("an expert that does not exist is named to all", |team| spoil(team, Kind::BadExpert)),
    ("one expert twice is named to all", |team| spoil(team, Kind::TwiceExpert)),
    ("a weight that is no number is named to all", |team| spoil(team, Kind::BadWeight)),
    ("more tokens than fit are named to all", |team| spoil(team, Kind::TooManyTokens)),
    ("a rank in another layer is found, not combined", desync),
    ("a row that was not written in this step is found", stale),
    ("a rank that does not come is named in time", absent),
    ("calls out of order are refused and change nothing", order),
];
const NO_ROOM: &[Check] = &[("an expert without room is named to all", no_room)];
const FP8: &[Check] = &[
    ("layers of every routing are equal to the dense reference bit for bit", steps),
    ("an expert that does not exist is named to all", |team| spoil(team, Kind::BadExpert)),
];
const V3: &[Check] = &[("layers of DeepSeek-V3's shape are equal to the dense reference", v3)];
const FIGURES: &[Check] = &[("rounds that are timed are right", figures::rounds)];
const LEAVES: &[Check] = &[("a rank that closes between layers is named at once", deaths::closes)];
const KILLED: &[Check] =
    &[("a rank that is killed is named", |team| deaths::missing(team, Signal::KILL, Kind::Lost))];
const STOPPED: &[Check] = &[("a rank that is stopped is named in time", |team| {
    deaths::missing(team, Signal::STOP, Kind::Timeout)
})];

/// The rank whose input is bad.
const CULPRIT: u32 = 1;
/// How long a rank waits where somebody does not come; a tenth of it is what a busy machine may add.
const SHORT: Duration = Duration::from_secs(2);

fn config(args: &EpArgs, part: &str) -> EpConfig {
    let world = usize::from(args.world);
    let small = EpConfig {
        world,
        tokens_max: 8,
        top_k: 4,
        hidden: 256,
        experts: 8 * world,
        timeout: SHORT,
        ..EpConfig::default()
    };
    match part {
        "no-room" => EpConfig { rows_max: Some(3), ..small },
        "fp8" => EpConfig { payload: Payload::Fp8, ..small },
        // Its experts are shared by whole numbers.
        "figures" if figures::is_short(args) => small,
        "deepseek-v3" | "figures" => {
            let experts = 256usize.next_multiple_of(world);
            // With all rows that could come, eight processes would want 2 GB of the host.
            let rows_max = (args.backend == Backend::Cpu).then_some(8 * world);
            EpConfig { world, experts, rows_max, ..EpConfig::default() }
        }
        // Who waits for the timeout does not hear of it at once.
        "rank-leaves" => EpConfig { timeout: deaths::NEVER, first_timeout: deaths::NEVER, ..small },
        "rank-killed" | "rank-stopped" => EpConfig { timeout: deaths::TIMEOUT, ..small },
        _ => small,
    }
}

/// Does every check of a part, one after the other, and says how it went.
pub(super) fn run(args: &EpArgs) -> Result<()> {
    let part = args.part.as_deref().unwrap_or("checks");
    let list = match part {
        "checks" => LIST,
        "no-room" => NO_ROOM,
        "fp8" => FP8,
        "deepseek-v3" => V3,
        "figures" => FIGURES,
        "rank-leaves" => LEAVES,
        "rank-killed" => KILLED,
        "rank-stopped" => STOPPED,
        other => bail!("no part {other}"),
    };
    let team = &mut Team::join(args, &config(args, part))?;
    for (name, check) in list {
        if *name == LIST[2].0 && args.backend == Backend::Cpu {
            continue;
        }
        match check(team) {
            Ok(()) => say(&format!("{SAYS}{name}"))?,
            Err(error) => {
                let ranks: Vec<u32> = team.seats.iter().map(Seat::rank).collect();
                say(&format!("{SAYS}{name}: ranks {ranks:?}, seed {}: {error:#}", args.seed))?;
                // The other ranks may be anywhere, so this list is over.
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Layers of all routings; every output is compared. Gives all outputs of a few.
fn compare(team: &mut Team, steps: std::ops::Range<u64>, only: Option<Routing>) -> Result<()> {
    for step in steps {
        let routing = only.unwrap_or(Routing::ALL[step as usize % Routing::ALL.len()]);
        let drawn = team.draw(routing, step);
        let answers = team.layer(|_| (step % 61) as u16, &drawn);
        for (drawn, answer) in drawn.iter().zip(answers) {
            let out = answer.with_context(|| format!("step {step}, {routing:?}"))?;
            same(team, drawn, &out).with_context(|| format!("step {step}, {routing:?}"))?;
        }
    }
    Ok(())
}

pub(super) fn same(team: &Team, drawn: &Drawn, out: &[u16]) -> Result<()> {
    let expected = dense_of(&team.shape, &drawn.batch(), &test_expert(&team.shape));
    let differs = out.iter().zip(&expected).position(|(a, b)| a != b);
    ensure!(differs.is_none(), "WRONG BITS in element {differs:?}");
    let rest = out[expected.len()..].iter().all(|bits| *bits == 0xffff);
    ensure!(rest, "rows after the last token were written");
    Ok(())
}

fn steps(team: &mut Team) -> Result<()> {
    compare(team, 0..team.args.steps, None)
}

fn repeat(team: &mut Team) -> Result<()> {
    compare(team, 0..team.args.steps.min(14), None)
}

fn v3(team: &mut Team) -> Result<()> {
    compare(team, 0..2, Some(Routing::Random))?;
    compare(team, 2..4, Some(Routing::Full))
}

/// Layers in graphs, with other inputs each time, and plain ones between.
fn graphs(team: &mut Team) -> Result<()> {
    let mut graphs = Vec::new();
    for layer in 0..2 {
        graphs.extend(team.record(layer)?);
    }
    team.together("record")?;
    for step in 0..team.args.steps {
        if step % 5 == 4 {
            compare(team, step..step + 1, None)?;
            continue;
        }
        let drawn = team.draw(Routing::ALL[step as usize % Routing::ALL.len()], step);
        let seats = || team.seats.iter().filter_map(Seat::cuda);
        for (seat, drawn) in seats().zip(&drawn) {
            seat.upload(drawn)?;
        }
        let graph = &graphs[step as usize % 2];
        graph.queue()?;
        graph.wait()?;
        for (seat, drawn) in seats().zip(&drawn) {
            let out = seat.output().with_context(|| format!("replay {step}"))?;
            same(team, drawn, &out).with_context(|| format!("replay {step}"))?;
        }
    }
    Ok(())
}

/// The errors of all ranks of this process after a layer that must fail.
fn faults(team: &mut Team, layer: impl Fn(u32) -> u16, drawn: &[Drawn]) -> Result<Vec<Fault>> {
    let answers = team.layer(layer, drawn);
    let fault = |answer: Result<Vec<u16>, mooncrate_ep::EpError>| match answer {
        Ok(_) => bail!("the layer came to its end"),
        Err(error) => error.fault().copied().with_context(|| format!("another error: {error}")),
    };
    answers.into_iter().map(fault).collect()
}

/// After a failure: later calls repeat it, and after a reset everything is as before.
fn recover(team: &mut Team, faults: &[Fault]) -> Result<()> {
    let again: Vec<Option<Fault>> = team.seats.iter().map(Seat::fault).collect();
    let first: Vec<Option<Fault>> = faults.iter().copied().map(Some).collect();
    ensure!(again == first, "the first failure does not stay: {again:?}");
    team.reset()?;
    compare(team, 0..7, None).context("after the reset")
}

/// Rank 1 gives bad input; it knows the place, all others know the rank and the reason.
fn spoil(team: &mut Team, kind: Kind) -> Result<()> {
    let mut drawn = team.draw(Routing::Full, 3);
    for (seat, drawn) in team.seats.iter().zip(&mut drawn) {
        if seat.rank() != CULPRIT {
            continue;
        }
        match kind {
            Kind::BadExpert => drawn.experts[6] = team.shape.experts().cast_signed(),
            Kind::TwiceExpert => drawn.experts[6] = drawn.experts[5],
            Kind::BadWeight => drawn.weights[6] = f32::NAN,
            _ => drawn.tokens = team.shape.tokens_max() + 1,
        }
    }
    let faults = faults(team, |_| 5, &drawn)?;
    for fault in &faults {
        ensure!(fault.record.cause.kind == kind, "another reason: {fault}");
        ensure!(fault.ranks().bits() == 1 << CULPRIT, "others are blamed: {fault}");
        ensure!(fault.record.expected.layer() == 5, "another layer: {fault}");
        let own = u32::from(fault.rank.number()) == CULPRIT;
        let place = (fault.record.violation.at(), fault.record.violation.position());
        let expected = if kind == Kind::TooManyTokens { (0, 0) } else { (1, 2) };
        ensure!(!own || place == expected, "another place: {fault}");
    }
    recover(team, &faults)
}

fn desync(team: &mut Team) -> Result<()> {
    let drawn = team.draw(Routing::Full, 4);
    let faults = faults(team, |rank| if rank == CULPRIT { 9 } else { 8 }, &drawn)?;
    for fault in &faults {
        ensure!(fault.record.cause.kind == Kind::Desync, "another reason: {fault}");
    }
    recover(team, &faults)
}

/// Rank 0 finds that a row of rank 1 has the stamp of another phase.
fn stale(team: &mut Team) -> Result<()> {
    let drawn = team.draw(Routing::Empty, 5);
    let (slot, mut faults) = (team.shape.slot(CULPRIT, 2), Vec::new());
    for (seat, drawn) in team.seats.iter_mut().zip(&drawn) {
        seat.dispatch(7, drawn)?;
    }
    let mut ends = Vec::new();
    for seat in &mut team.seats {
        ends.push(seat.await_rows());
    }
    for (seat, end) in team.seats.iter_mut().zip(&mut ends) {
        if seat.rank() == 0 {
            let stamp = seat.layout().meta(slot) + row::STAMP as u64;
            seat.damage(stamp, &0xabcd_u32.to_le_bytes())?;
        }
        if end.is_ok() {
            *end = seat.pack();
        }
    }
    for phase in [Seat::give_back, Seat::await_results] {
        for (seat, end) in team.seats.iter_mut().zip(&mut ends) {
            if end.is_ok() {
                *end = phase(seat);
            }
        }
    }
    for (seat, end) in team.seats.iter_mut().zip(ends) {
        // On a GPU the error is known when the stream has come to its end.
        let end = end.and_then(|()| seat.combine().map(drop));
        let Err(error) = end else { bail!("the layer came to its end") };
        let fault = *error.fault().with_context(|| format!("another error: {error}"))?;
        ensure!(fault.record.cause.kind == Kind::StaleRow, "another reason: {fault}");
        ensure!(fault.ranks().bits() == 1 << CULPRIT, "others are blamed: {fault}");
        faults.push(fault);
    }
    recover(team, &faults)
}

/// Rank 1 makes no call; all others give it up in time, and it hears of that when it comes.
fn absent(team: &mut Team) -> Result<()> {
    let drawn = team.draw(Routing::Full, 6);
    let began = boottime();
    let here = |rank: u32| rank != CULPRIT;
    let mut faults = Vec::new();
    if team.seats.iter().any(|seat| here(seat.rank())) {
        faults = without(team, &drawn, here)?;
        let took = boottime().since(began);
        ensure!(took < SHORT + SHORT / 10, "after {took:?}, more than 1.1 times {SHORT:?}");
        ensure!(took > SHORT / 2, "after {took:?}, long before {SHORT:?}");
    }
    team.together("give up")?;
    if team.seats.iter().any(|seat| !here(seat.rank())) {
        faults.extend(without(team, &drawn, |rank| !here(rank))?);
        faults.sort_by_key(|fault| fault.rank);
    }
    for fault in &faults {
        ensure!(fault.record.cause.kind == Kind::Timeout, "another reason: {fault}");
        ensure!(fault.ranks().bits() == 1 << CULPRIT, "others are blamed: {fault}");
    }
    recover(team, &faults)
}

/// A layer of those ranks of this process alone.
fn without(team: &mut Team, drawn: &[Drawn], here: impl Fn(u32) -> bool) -> Result<Vec<Fault>> {
    let seats = || 0..drawn.len();
    let mut ends: Vec<_> = seats().map(|_| Ok(())).collect();
    for at in seats().filter(|at| here(team.seats[*at].rank())).collect::<Vec<_>>() {
        ends[at] = team.seats[at].dispatch(11, &drawn[at]);
    }
    for phase in [Seat::await_rows, Seat::pack, Seat::give_back, Seat::await_results] {
        for (seat, end) in team.seats.iter_mut().zip(&mut ends) {
            if end.is_ok() && here(seat.rank()) {
                *end = phase(seat);
            }
        }
    }
    let mut faults = Vec::new();
    for (seat, end) in team.seats.iter_mut().zip(ends) {
        if !here(seat.rank()) {
            continue;
        }
        let Err(error) = end.and_then(|()| seat.combine().map(drop)) else {
            bail!("the layer came to its end")
        };
        faults.push(*error.fault().with_context(|| format!("another error: {error}"))?);
    }
    Ok(faults)
}

fn order(team: &mut Team) -> Result<()> {
    for seat in &mut team.seats {
        for (name, answer) in [("pack", seat.pack()), ("await_rows", seat.await_rows())] {
            let Err(error) = answer else { bail!("{name} before dispatch was not refused") };
            ensure!(error.to_string().contains("after combine"), "in other words: {error}");
        }
    }
    compare(team, 20..27, None).context("afterwards")
}

/// Every token of every rank wants one expert, which has room for three.
fn no_room(team: &mut Team) -> Result<()> {
    let drawn = team.draw(Routing::OneExpert, 1);
    let faults = faults(team, |_| 1, &drawn)?;
    for fault in &faults {
        ensure!(fault.record.cause.kind == Kind::Overflow, "another reason: {fault}");
    }
    team.reset()?;
    compare(team, 0..1, Some(Routing::Empty)).context("after the reset")
}
