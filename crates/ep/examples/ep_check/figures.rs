//! What is measured: the exchange alone, the full path, and their parts, beside their floor.

use crate::experts;
use crate::report::{Figure, Report};
use crate::team::Team;
use crate::timer::{Effort, Time, spread, time};
use mooncrate_core::rng::Rng;
use mooncrate_ep::seat::CudaSeat;
use mooncrate_ep::{EpConfig, EpError, Payload, Tuning};
use mooncrate_gpu::{DeviceBuffer, Event, Gpu, Stream};
use std::fmt::Display;
use std::rc::Rc;

/// Inputs that replays take turns with.
const CASES: u64 = 64;
/// Packs in one round where their time is the question.
const PACKS: u64 = 10;
/// A barrier of eight blocks that spin in one kernel, at system scope, on an H200: measured with a prototype, because no
/// kernel here does nothing else.
const BARRIER_MICROS: f64 = 1.47;
/// What one copy moves where the rate of the memory is the question.
const COPIED: u64 = 256 << 20;
const MODES: [(&str, usize); 2] = [("hot", 1), ("rotating", 6)];

/// What is repeated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Round {
    /// Dispatch, both waits, combine.
    Short,
    /// The same with pack and return.
    Full,
    /// The full path with ten packs instead of one: the difference is what packs take.
    Packs,
    Dispatch,
    Combine,
}

/// Measures everything, and goes on where something fails.
pub(crate) fn all(gpu: &Gpu, report: &mut Report, quick: bool) {
    let effort = if quick {
        Effort { rounds: 3, replays: 3, singles: 20 }
    } else {
        Effort { rounds: 60, replays: 25, singles: 10_000 }
    };
    let config = if quick {
        EpConfig {
            world: 4,
            tokens_max: 4,
            hidden: 64,
            experts: 16,
            top_k: 4,
            ..EpConfig::default()
        }
    } else {
        EpConfig::default()
    };
    let rate = match rate(gpu, if quick { 1 << 20 } else { COPIED }, effort) {
        Ok(rate) => rate,
        Err(error) => return report.add("a large copy", Err(text(error))),
    };
    report.note(format!(
        "One large copy on the device reads and writes {:.0} GB/s; floors are with that rate.",
        rate / 1e3
    ));
    let bench = Bench { gpu, effort, config, rate };
    let full = bench.config.tokens_max as u32;
    // A short round waits twice in one kernel, so ranks must run at the same time; the emulator has no such time.
    let tuning = if quick { Tuning::default() } else { bench.tune(report) };
    for (mode, sets) in MODES {
        report.add("full path", bench.figure(Round::Full, mode, sets, full, tuning));
    }
    for round in [Round::Dispatch, Round::Packs, Round::Combine] {
        for (mode, sets) in MODES {
            report.add("part", bench.figure(round, mode, sets, full, tuning));
        }
    }
    if !quick {
        for round in [Round::Short, Round::Full] {
            for tokens in [0, 1, 8, 64, 128] {
                report.add("tokens", bench.with_tokens(round, tokens, tuning));
            }
        }
        let config = EpConfig { payload: Payload::Fp8, ..bench.config.clone() };
        let fp8 = Bench { config, ..bench };
        for (mode, sets) in MODES {
            report.add("fp8", fp8.figure(Round::Short, mode, sets, full, tuning));
        }
        for world in [2, 4] {
            let config = EpConfig { world, ..bench.config.clone() };
            let bench = Bench { config, ..bench };
            report.add("world", bench.figure(Round::Short, "rotating", 6, full, tuning));
            // The blocks of eight ranks, and what is taken for so many.
            for tuning in [tuning, Tuning::shared(gpu.sm_count(), world as u32)] {
                report.add("world", bench.figure(Round::Full, "rotating", 6, full, tuning));
            }
        }
    }
    let inter = if quick { 32 } else { 2048 };
    match experts::figures(gpu, &bench.config, effort, inter, tuning) {
        Ok(figures) => figures.into_iter().for_each(|figure| report.add("experts", Ok(figure))),
        Err(error) => report.add("experts", Err(error)),
    }
    match bench.replays(tuning) {
        Ok(text) => report.note(text),
        Err(error) => report.add("single replays", Err(error)),
    }
}

#[derive(Clone)]
struct Bench<'a> {
    gpu: &'a Gpu,
    effort: Effort,
    config: EpConfig,
    /// Bytes that a large copy reads and writes in a microsecond.
    rate: f64,
}

/// Bytes that one large copy on the device reads and writes in a microsecond.
fn rate(gpu: &Gpu, bytes: u64, effort: Effort) -> Result<f64, EpError> {
    let stream = Stream::new(gpu)?;
    let (from, to) = (DeviceBuffer::new(gpu, bytes)?, DeviceBuffer::new(gpu, bytes)?);
    let (started, ended) = (Event::new(gpu)?, Event::new(gpu)?);
    let mut times = Vec::new();
    for replay in 0..crate::timer::WARM_UPS + effort.replays {
        started.record(&stream)?;
        to.span().copy_from(from.span(), &stream)?;
        ended.record(&stream)?;
        stream.synchronize()?;
        if replay >= crate::timer::WARM_UPS {
            times.push(ended.micros_since(&started)?);
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "a rate with three digits")]
    let both = 2.0 * bytes as f64;
    Ok(both / spread(times, 1.0).median)
}

fn name_of(tuning: Tuning) -> String {
    let early = if tuning.early { "early start" } else { "no early start" };
    format!("{} blocks per row, {} to pack, {early}", tuning.parts, tuning.blocks)
}

fn each(
    seats: &[Rc<CudaSeat>],
    call: impl Fn(&CudaSeat) -> Result<(), EpError>,
) -> Result<(), EpError> {
    seats.iter().try_for_each(|seat| call(seat))
}

/// The calls of one round of all ranks.
fn calls(round: Round, seats: &[Rc<CudaSeat>], layer: u16) -> Result<(), EpError> {
    match round {
        Round::Dispatch => return each(seats, |seat| seat.dispatch_alone(layer)),
        Round::Combine => return each(seats, CudaSeat::combine_alone),
        Round::Short => {
            each(seats, |seat| seat.dispatch(layer))?;
            each(seats, CudaSeat::await_both)?;
        }
        Round::Full | Round::Packs => {
            each(seats, |seat| seat.dispatch(layer))?;
            each(seats, CudaSeat::await_rows)?;
            for _ in 1..if round == Round::Packs { PACKS } else { 1 } {
                each(seats, CudaSeat::pack_alone)?;
            }
            each(seats, CudaSeat::pack)?;
            if seats.iter().all(|seat| seat.ep.shape().payload() == Payload::Bf16) {
                each(seats, CudaSeat::give_back_packed)?;
            } else {
                each(seats, CudaSeat::experts)?;
                each(seats, CudaSeat::give_back)?;
            }
            each(seats, CudaSeat::await_results)?;
        }
    }
    each(seats, CudaSeat::combine)
}

impl Bench<'_> {
    /// Short rounds and full paths with all ways to make launches, at the size that the goals are about; gives the
    /// fastest.
    fn tune(&self, report: &mut Report) -> Tuning {
        let each = |parts| [false, true].map(|early| Tuning { parts, early, ..Tuning::default() });
        let (tuning, short) =
            self.fastest(report, Round::Short, [1, 2, 4].into_iter().flat_map(each));
        let each = |blocks| [1, 2].map(|parts| Tuning { parts, blocks, early: true });
        let blocks = [66, 99, 132, 528];
        let (full, whole) = self.fastest(report, Round::Full, blocks.into_iter().flat_map(each));
        let (step, whole) = (58.0 * short / 1000.0, 58.0 * whole / 1000.0);
        let verdict = if step <= 1.2 { "met" } else { "MISSED" };
        report.note(format!(
            "58 layers, rotating: full paths without experts take {whole:.2} ms of a step. Short rounds take {step:.2} \
             ms, goal 1.2 ms: {verdict}; they leave out pack, return, the second kernel that waits and the fence \
             before the second signal, so no step is made of them."
        ));
        let tuning = Tuning { blocks: full.blocks, ..tuning };
        report.note(format!("The other rows are with {}.", name_of(tuning)));
        tuning
    }

    /// The way to make launches that gives the fastest rotating round, and how long that takes.
    fn fastest(
        &self,
        report: &mut Report,
        round: Round,
        ways: impl Iterator<Item = Tuning>,
    ) -> (Tuning, f64) {
        let mut best = (Tuning::default(), f64::MAX);
        for tuning in ways {
            for (mode, sets) in MODES {
                let tokens = self.config.tokens_max as u32;
                let figure = self.figure(round, mode, sets, tokens, tuning);
                if let Ok(figure) = &figure
                    && mode == "rotating"
                    && figure.time.median < best.1
                {
                    best = (tuning, figure.time.median);
                }
                report.add("ways to launch", figure);
            }
        }
        best
    }

    fn figure(
        &self,
        round: Round,
        mode: &'static str,
        sets: usize,
        tokens: u32,
        tuning: Tuning,
    ) -> Result<Figure, String> {
        let team = Team::new(self.gpu, &self.config, sets, tokens, tuning).map_err(text)?;
        // One full layer in each set puts results in place, which short rounds and sums need.
        let first = team.record(sets, |seats, layer| calls(Round::Full, seats, layer));
        first.and_then(|graph| graph.queue().and_then(|()| graph.wait())).map_err(text)?;
        team.check()?;
        if round != Round::Dispatch {
            // What is compared afterwards is what the rounds have made.
            team.spoil().map_err(text)?;
        }
        let rounds = self.effort.rounds;
        let graph = team.record(rounds, |seats, layer| calls(round, seats, layer)).map_err(text)?;
        let time = time(&team.stream, &graph, rounds, self.effort.replays).map_err(text)?;
        team.check()?;
        let (token, row) = (team.shape.token_bytes(), team.shape.row_bytes());
        let (copies, own) = (team.copies(), team.tokens());
        // Each token is read once and stored at every rank that it goes to; results the other way round.
        let (there, back) = ((own + copies) * token, (own + copies) * row);
        let routes = own * u64::from(team.shape.top_k());
        let bytes = match round {
            Round::Dispatch => there,
            Round::Combine => back,
            Round::Short => there + back,
            // Pack reads what came and stores it for each expert; the return reads that and stores sums.
            Round::Full => there + back + (copies + routes) * (token + row),
            Round::Packs => there + back + (copies + routes) * (PACKS * token + row),
        };
        let goal = match (round, mode, self.is_default(tokens)) {
            (Round::Short, "hot", true) => Some(17.0),
            (Round::Short, _, true) => Some(20.0),
            (Round::Full, _, true) => Some(1.3 * 38.0),
            _ => None,
        };
        let name = match round {
            Round::Short if team.shape.payload() == Payload::Fp8 => {
                "short round, fp8 tokens".into()
            }
            Round::Short => format!("short round, {}", name_of(tuning)),
            Round::Full => format!("full path without experts, {}", name_of(tuning)),
            Round::Packs => format!("the same with {PACKS} packs"),
            Round::Dispatch => "dispatch alone, no wait".into(),
            Round::Combine => "combine alone, no wait".into(),
        };
        let floor = matches!(round, Round::Short | Round::Full).then(|| self.floor(bytes));
        let of = (team.shape.ranks(), tokens.into());
        Ok(Figure { name, mode, of, bytes, time, floor, goal })
    }

    fn is_default(&self, tokens: u32) -> bool {
        self.config == EpConfig::default() && tokens as usize == self.config.tokens_max
    }

    /// Rounds with another number of tokens, and room for as many.
    fn with_tokens(&self, round: Round, tokens: u32, tuning: Tuning) -> Result<Figure, String> {
        let tokens_max = self.config.tokens_max.max(tokens as usize);
        let bench = Self { config: EpConfig { tokens_max, ..self.config.clone() }, ..self.clone() };
        bench.figure(round, "rotating", 6, tokens, tuning)
    }

    /// What the bytes of a round take at the rate of one large copy, and two barriers.
    fn floor(&self, bytes: u64) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a floor with three digits")]
        let moved = bytes as f64 / self.rate;
        moved + 2.0 * BARRIER_MICROS
    }

    /// Many replays of one layer, each timed, with other tokens, routes and weights each time, from none to as many
    /// as fit; every output is compared on the GPU.
    fn replays(&self, tuning: Tuning) -> Result<String, String> {
        let tokens_max = self.config.tokens_max as u32;
        let team = Team::new(self.gpu, &self.config, 1, tokens_max, tuning).map_err(text)?;
        let graph =
            team.record(1, |seats, layer| calls(Round::Full, seats, layer)).map_err(text)?;
        let cases = team.cases(self.gpu, CASES).map_err(text)?;
        let (started, ended) = (Event::new(self.gpu), Event::new(self.gpu));
        let (started, ended) = (started.map_err(text)?, ended.map_err(text)?);
        let (mut rng, mut times) = (Rng::new(7), Vec::new());
        for replay in 0..self.effort.singles {
            // Every case comes first or last now and then: what the one before left behind differs.
            let number = if replay < CASES as usize { replay } else { rng.below(CASES) as usize };
            cases.iter().try_for_each(|rank| rank.load(number, &team.stream)).map_err(text)?;
            started.record(&team.stream).map_err(text)?;
            graph.queue().map_err(text)?;
            ended.record(&team.stream).map_err(text)?;
            cases.iter().try_for_each(|rank| rank.compare(number, &team.stream)).map_err(text)?;
            graph.wait().map_err(text)?;
            times.push(ended.micros_since(&started).map_err(text)?);
            for seat in &team.sets[0] {
                seat.ep.status().map_err(text)?;
            }
        }
        let mut wrong = 0;
        for rank in &cases {
            wrong += rank.mismatches(&team.stream).map_err(text)?;
        }
        if wrong > 0 {
            return Err(format!("{wrong} WRONG PIECES in the outputs of {} replays", times.len()));
        }
        let Time { median, most, .. } = spread(times, 0.99);
        let verdict = if most <= 1.5 * median { "met" } else { "MISSED" };
        Ok(format!(
            "{} replays of a full layer as one graph, {CASES} inputs in random order, 0 to {tokens_max} tokens of each \
             rank: p50 {median:.2} µs, p99 {most:.2} µs, goal p99 at most 1.5 × p50: {verdict}; error words 0, every \
             output compared: 0 mismatches.",
            self.effort.singles
        ))
    }
}

fn text(error: impl Display) -> String {
    error.to_string()
}
