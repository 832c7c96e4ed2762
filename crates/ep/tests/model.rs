//! The two phases of a layer as a model: every interleaving of few ranks, random schedules of many, with ranks
//! that die and waits that end early. What signals mean is the shipped code (`barrier::look`).
//!
//! Each store to another rank's memory is a step of its own. A finding is a hang, a value of another layer, a
//! row that was not rewritten, or ranks that disagree. The shipped rules give none; each broken rule gives one.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]

use mooncrate_core::rng::Rng;
use mooncrate_ep::barrier::{Kind, Look, Op, Record, Seen, Signal, Tag, give_up, look};
use mooncrate_heap::{Ranks, World};
use std::collections::{BTreeSet, HashSet};

/// What the ranks do. The shipped ones are `Rules::SHIPPED`; each test breaks one.
#[expect(clippy::struct_excessive_bools, reason = "each is a rule that a test breaks")]
#[derive(Clone, Copy, Debug)]
struct Rules {
    /// Ranks wait after their dispatch.
    wait_dispatch: bool,
    /// Ranks wait after their return.
    wait_return: bool,
    /// A rank without tokens rewrites its rows.
    rewrite_empty: bool,
    /// A rank without tokens takes part in the layer.
    empty_takes_part: bool,
    /// Words for each pair of ranks: one for all phases, or one for each parity.
    words: usize,
    /// A phase is reached if it is equal, instead of equal or more.
    exact: bool,
}

impl Rules {
    const SHIPPED: Self = Self {
        wait_dispatch: true,
        wait_return: true,
        rewrite_empty: true,
        empty_takes_part: true,
        words: 2,
        exact: false,
    };
}

#[derive(Clone, Copy, Debug)]
enum Act {
    /// A metadata row and its token, to one rank.
    PutRow(usize),
    Signal(usize, Op),
    Wait(Op),
    /// What a broken rank does in the place of a wait.
    DoNotWait,
    ReadRow(usize),
    PutResult(usize),
    ReadResult(usize),
}

/// One rank's program: acts with their layer.
type Program = Vec<(usize, Act)>;

/// Which ranks have tokens, by rank and layer.
type Tokens = Vec<Vec<bool>>;

fn program(rules: Rules, world: usize, tokens: &[bool]) -> Program {
    let mut program = Vec::new();
    for (layer, has) in tokens.iter().enumerate() {
        if !has && !rules.empty_takes_part {
            continue;
        }
        let mut add = |act| program.push((layer, act));
        let wait = |op, waits: bool| if waits { Act::Wait(op) } else { Act::DoNotWait };
        if *has || rules.rewrite_empty {
            (0..world).for_each(|to| add(Act::PutRow(to)));
        }
        (0..world).for_each(|to| add(Act::Signal(to, Op::Dispatch)));
        add(wait(Op::Dispatch, rules.wait_dispatch));
        (0..world).for_each(|from| add(Act::ReadRow(from)));
        (0..world).for_each(|to| add(Act::PutResult(to)));
        (0..world).for_each(|to| add(Act::Signal(to, Op::Return)));
        add(wait(Op::Return, rules.wait_return));
        (0..world).for_each(|from| add(Act::ReadResult(from)));
    }
    program
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Life {
    Runs,
    /// Has failed, and has told so many words of others.
    Poisons(usize),
    Failed,
    Dead,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct RankState {
    at: usize,
    phase: u32,
    life: Life,
    record: Option<[u64; 3]>,
}

/// Ranks and memory. `rows[at][from]` is (phase, layer, has a token); `results[at][from]` is the layer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    ranks: Vec<RankState>,
    rows: Vec<Vec<(u32, usize, bool)>>,
    results: Vec<Vec<Option<usize>>>,
    signals: Vec<[Vec<Signal>; 2]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Finding {
    Hang,
    WrongData,
    StaleRow,
    Desync,
}

struct Model {
    rules: Rules,
    tokens: Tokens,
    programs: Vec<Program>,
}

impl Model {
    fn new(rules: Rules, tokens: Tokens) -> Self {
        let world = tokens.len();
        let programs = tokens.iter().map(|tokens| program(rules, world, tokens)).collect();
        Self { rules, tokens, programs }
    }

    fn world(&self) -> usize {
        self.tokens.len()
    }

    fn start(&self) -> State {
        let world = self.world();
        let rank = RankState { at: 0, phase: 0, life: Life::Runs, record: None };
        State {
            ranks: vec![rank; world],
            rows: vec![vec![(0, usize::MAX, false); world]; world],
            results: vec![vec![None; world]; world],
            signals: vec![[vec![Signal::default(); world], vec![Signal::default(); world]]; world],
        }
    }

    fn parity(&self, phase: u32) -> usize {
        if self.rules.words == 2 { (phase & 1) as usize } else { 0 }
    }

    fn done(&self, state: &State, rank: usize) -> bool {
        state.ranks[rank].life == Life::Runs && state.ranks[rank].at == self.programs[rank].len()
    }

    /// What a rank that stands before a wait sees; `None`: it does not stand there.
    fn look(&self, state: &State, rank: usize) -> Option<(Look, Tag, u32)> {
        let (layer, act) = *self.programs[rank].get(state.ranks[rank].at)?;
        let Act::Wait(op) = act else { return None };
        let (tag, phase) = (Tag::new(layer as u16, op, 7), state.ranks[rank].phase + 1);
        let signals = &state.signals[rank][self.parity(phase)];
        if !self.rules.exact {
            return Some((look(signals, rank as u8, tag, phase), tag, phase));
        }
        let here =
            |signal: &Signal| signal.judge(tag, phase) == Seen::Here && signal.0 as u32 == phase;
        let missing = (0..self.world()).filter(|from| !here(&signals[*from]));
        let missing = missing.fold(0, |bits, from| bits | 1 << from);
        let look = if missing == 0 { Look::All } else { Look::Missing(Ranks::from_bits(missing)) };
        Some((look, tag, phase))
    }

    fn enabled(&self, state: &State, rank: usize) -> bool {
        match state.ranks[rank].life {
            Life::Dead | Life::Failed => false,
            Life::Poisons(_) => true,
            Life::Runs if self.done(state, rank) => false,
            Life::Runs => !matches!(self.look(state, rank), Some((Look::Missing(_), ..))),
        }
    }

    fn fail(state: &mut State, rank: usize, record: &Record) {
        state.ranks[rank].record = Some(record.to_words());
        state.ranks[rank].life = Life::Poisons(0);
    }

    /// One step of a rank that is enabled.
    fn step(&self, state: &mut State, rank: usize) -> Option<Finding> {
        if let Life::Poisons(told) = state.ranks[rank].life {
            let record = Record::from_words(state.ranks[rank].record.unwrap()).unwrap();
            let (target, parity) = (told / 2, told % 2);
            state.signals[target][parity][rank] =
                Signal::poison(record.cause, state.ranks[rank].phase, 0);
            let all = told + 1 == 2 * self.world();
            state.ranks[rank].life = if all { Life::Failed } else { Life::Poisons(told + 1) };
            return None;
        }
        let (layer, act) = self.programs[rank][state.ranks[rank].at];
        let phase = state.ranks[rank].phase;
        let mut finding = None;
        match act {
            Act::PutRow(to) => {
                state.rows[to][rank] = (phase + 1, layer, self.tokens[rank][layer]);
            }
            Act::Signal(to, op) => {
                let tag = Tag::new(layer as u16, op, 7);
                state.signals[to][self.parity(phase + 1)][rank] = Signal::at(tag, phase + 1);
            }
            Act::Wait(_) => match self.look(state, rank).unwrap().0 {
                Look::Failed(record) => {
                    Self::fail(state, rank, &record);
                    return (record.cause.kind == Kind::Desync).then_some(Finding::Desync);
                }
                _ => state.ranks[rank].phase += 1,
            },
            Act::DoNotWait => state.ranks[rank].phase += 1,
            Act::ReadRow(from) => {
                // What pack compares, and what it would be wrong about if nobody compared.
                let (stamp, written, has) = state.rows[rank][from];
                if stamp != phase {
                    finding = Some(Finding::StaleRow);
                } else if has && written != layer {
                    finding = Some(Finding::WrongData);
                }
            }
            Act::PutResult(to) => state.results[to][rank] = Some(layer),
            Act::ReadResult(from) => {
                let right = state.results[rank][from] == Some(layer);
                finding = (!right).then_some(Finding::WrongData);
            }
        }
        state.ranks[rank].at += 1;
        finding
    }

    /// Every interleaving, without deaths and early ends: what can go wrong, and how many states there are.
    fn explore(&self) -> (BTreeSet<Finding>, usize) {
        let (mut findings, mut seen) = (BTreeSet::new(), HashSet::new());
        let mut open = vec![self.start()];
        while let Some(state) = open.pop() {
            let able: Vec<usize> =
                (0..self.world()).filter(|rank| self.enabled(&state, *rank)).collect();
            let ended = |rank| self.done(&state, rank) || state.ranks[rank].life == Life::Failed;
            if able.is_empty() && !(0..self.world()).all(ended) {
                findings.insert(Finding::Hang);
            }
            for rank in able {
                let mut next = state.clone();
                match self.step(&mut next, rank) {
                    // What comes after a mistake says nothing more.
                    Some(finding) => drop(findings.insert(finding)),
                    None if seen.insert(next.clone()) => open.push(next),
                    None => {}
                }
            }
        }
        (findings, seen.len())
    }
}

/// All ways in which ranks can have tokens or not.
fn all_tokens(world: usize, layers: usize) -> impl Iterator<Item = Tokens> {
    (0..1u32 << (world * layers)).map(move |bits| {
        let has = |rank: usize, layer: usize| bits >> (rank * layers + layer) & 1 == 1;
        (0..world).map(|rank| (0..layers).map(|layer| has(rank, layer)).collect()).collect()
    })
}

#[test]
fn no_interleaving_of_two_ranks_and_three_layers_goes_wrong() {
    let mut states = 0;
    for tokens in all_tokens(2, 3) {
        let (findings, seen) = Model::new(Rules::SHIPPED, tokens.clone()).explore();
        assert!(findings.is_empty(), "{tokens:?}: {findings:?}");
        states += seen;
    }
    assert!(states > 10_000, "only {states} states were looked at");
}

#[test]
fn no_interleaving_of_three_ranks_and_two_layers_goes_wrong() {
    for tokens in all_tokens(3, 2) {
        let (findings, states) = Model::new(Rules::SHIPPED, tokens.clone()).explore();
        assert!(findings.is_empty(), "{tokens:?}: {findings:?}");
        assert!(states > 5_000, "only {states} states were looked at");
    }
}

/// What the model finds under broken rules, in any of the ways to have tokens.
fn found(rules: Rules) -> BTreeSet<Finding> {
    let mut findings = BTreeSet::new();
    for tokens in all_tokens(2, 3) {
        findings.extend(Model::new(rules, tokens).explore().0);
    }
    findings
}

#[test]
fn a_wait_that_is_dropped_is_caught() {
    let found_a = found(Rules { wait_dispatch: false, ..Rules::SHIPPED });
    assert!(found_a.contains(&Finding::StaleRow), "{found_a:?}");
    let found_b = found(Rules { wait_return: false, ..Rules::SHIPPED });
    assert!(found_b.contains(&Finding::WrongData), "{found_b:?}");
}

#[test]
fn rows_that_are_not_rewritten_are_caught() {
    let found = found(Rules { rewrite_empty: false, ..Rules::SHIPPED });
    assert_eq!(found, BTreeSet::from([Finding::StaleRow]));
}

#[test]
fn a_rank_without_tokens_that_stays_away_is_caught() {
    let found = found(Rules { empty_takes_part: false, ..Rules::SHIPPED });
    assert!(found.contains(&Finding::Hang) && found.contains(&Finding::Desync), "{found:?}");
}

/// One word for all phases: a rank that is ahead overwrites what nobody has seen yet. Waiting for equality
/// hangs then, and comparing tags sees ranks that disagree where none do.
#[test]
fn one_word_for_all_phases_is_caught() {
    let exact = found(Rules { words: 1, exact: true, ..Rules::SHIPPED });
    assert!(exact.contains(&Finding::Hang), "{exact:?}");
    let tags = found(Rules { words: 1, ..Rules::SHIPPED });
    assert!(tags.contains(&Finding::Desync), "{tags:?}");
}

/// Runs one random schedule: ranks may die, and waits may end early. Everybody who lives is done or knows why
/// not, and no value of another layer was used.
fn schedule(seed: u64) {
    let mut rng = Rng::new(seed);
    let world = 2 + rng.below(7) as usize;
    let layers = 1 + rng.below(5) as usize;
    let tokens = (0..world).map(|_| (0..layers).map(|_| rng.chance(700)).collect()).collect();
    let model = Model::new(Rules::SHIPPED, tokens);
    let mut state = model.start();
    let steps: usize = model.programs.iter().map(Vec::len).sum();
    // In a third of the runs somebody dies, in another third a wait ends before its time.
    let trouble = rng.below(3);
    let victim = rng.below(world as u64) as usize;
    let when = rng.below(steps as u64 / 2 + 1) as usize;
    for step in 0.. {
        assert!(step < 2 * steps + 64 * world, "seed {seed}: it goes on for ever");
        if trouble == 1 && step == when && !model.done(&state, victim) {
            state.ranks[victim].life = Life::Dead;
        }
        // The first one that can go on, from a random one on.
        let from = rng.below(world as u64) as usize;
        let mut turn = (from..from + world).map(|rank| rank % world);
        let able = turn.find(|rank| model.enabled(&state, *rank));
        let waits = |rank: &usize| match model.look(&state, *rank) {
            Some((Look::Missing(ranks), tag, phase)) if state.ranks[*rank].life == Life::Runs => {
                Some((*rank, give_up(Kind::Timeout, ranks, *rank as u8, tag, phase)))
            }
            _ => None,
        };
        let early = trouble == 2 && rng.chance(2);
        if able.is_none() || early {
            let late: Vec<(usize, Record)> = (0..world).filter_map(|rank| waits(&rank)).collect();
            if late.is_empty() && able.is_none() {
                break;
            }
            if !late.is_empty() {
                let (rank, record) = late[rng.below(late.len() as u64) as usize];
                Model::fail(&mut state, rank, &record);
                continue;
            }
        }
        let Some(rank) = able else { continue };
        assert_eq!(model.step(&mut state, rank), None, "seed {seed}, step {step}");
    }
    judge(seed, &model, &state, trouble, victim);
}

/// Nobody hangs in silence, and who is blamed is to blame.
fn judge(seed: u64, model: &Model, state: &State, trouble: u64, victim: usize) {
    let world = World::new(model.world()).unwrap();
    for (number, rank) in state.ranks.iter().enumerate() {
        match rank.life {
            Life::Dead => {}
            Life::Runs => assert!(model.done(state, number), "seed {seed}: rank {number} hangs"),
            Life::Poisons(_) => panic!("seed {seed}: rank {number} was able to go on"),
            Life::Failed => {
                let record = Record::from_words(rank.record.unwrap()).unwrap();
                assert!(trouble > 0, "seed {seed}: rank {number} failed without a reason");
                assert_eq!(record.cause.kind, Kind::Timeout, "seed {seed}");
                assert!(record.told_by.is_some() || record.cause.origin == number as u8);
                let blamed = record.cause.ranks;
                assert!(!blamed.is_empty() && blamed.without(world.all()).is_empty());
                assert!(record.cause.phase.abs_diff(rank.phase + 1) <= 1, "seed {seed}");
                let victim = world.rank(victim).unwrap();
                assert!(trouble == 2 || blamed.has(victim), "seed {seed}: {blamed} are blamed");
            }
        }
    }
}

#[test]
fn a_hundred_thousand_random_schedules_end_without_a_silent_hang() {
    for seed in 0..100_000 {
        schedule(seed);
    }
}
