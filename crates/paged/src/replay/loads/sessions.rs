//! Loads of sessions, conversations of people or runs of agents: a request repeats what the session said before and
//! appends to it, and the next one comes some time after it.

use super::chance::{Chance, whole};
use super::{Arrival, Prompt, Text};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Most blocks that one turn of a conversation appends.
const TURN_BLOCKS_MAX: f64 = 120.0;

/// The load of one tenant in `flood` is on in every second period of this length.
const FLOOD_MS: u64 = 200_000;

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A new session begins.
    Begin,
    /// The session with this number makes its next request.
    Continue(usize),
}

/// What will happen, by time; at the same time in the order in which it was planned.
#[derive(Debug, Default)]
struct Agenda {
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    planned: u64,
}

impl Agenda {
    #[expect(clippy::cast_precision_loss, reason = "milliseconds of a day are exact")]
    fn plan(&mut self, now_ms: u64, after_ms: f64, event: Event) {
        self.planned += 1;
        self.events.push(Reverse((whole(now_ms as f64 + after_ms), self.planned, event)));
    }

    /// The next event and its time.
    fn next(&mut self) -> (u64, Event) {
        let Reverse((at_ms, _, event)) = self.events.pop().expect("every beginning plans another");
        (at_ms, event)
    }
}

/// How people talk.
#[derive(Clone, Copy, Debug)]
struct Habits {
    /// Turns of all conversations together.
    turns: usize,
    /// Chance of another turn.
    goes_on: f64,
    /// Median of the time between two turns, and how much it varies: see [`Chance::log_normal`].
    pause_ms: f64,
    pause_sigma: f64,
}

/// Conversations. A new one begins every 800 ms with one of three system prompts of 2 blocks. Each turn appends a
/// question and the answer before it: 10 blocks at first and 3 later on (medians). The last block of a turn is partial,
/// so the next turn has another block in its place. `between` may add requests of others after each turn.
fn conversations(
    habits: Habits,
    mut chance: Chance,
    mut between: impl FnMut(&mut Chance, u64, &mut Vec<Arrival>),
) -> Vec<Arrival> {
    let (mut agenda, mut requests) = (Agenda::default(), Vec::new());
    let mut talks: Vec<Prompt> = Vec::new();
    agenda.plan(0, 0.0, Event::Begin);
    for _ in 0..habits.turns {
        let (now_ms, event) = agenda.next();
        let (talk, median) = match event {
            Event::Begin => {
                agenda.plan(now_ms, chance.exponential(800.0), Event::Begin);
                talks.push(Prompt::default().then(Text(1 + chance.below(3)), 2));
                (talks.len() - 1, 10.0)
            }
            Event::Continue(talk) => {
                talks[talk].0.pop();
                (talk, 3.0)
            }
        };
        let blocks = whole(chance.log_normal(median, 0.9).min(TURN_BLOCKS_MAX)).max(1);
        talks[talk].append(chance.new_text(), blocks);
        requests.push(Arrival { at_ms: now_ms, prompt: talks[talk].clone() });
        between(&mut chance, now_ms, &mut requests);
        if chance.unit() < habits.goes_on {
            let pause = chance.log_normal(habits.pause_ms, habits.pause_sigma);
            agenda.plan(now_ms, pause, Event::Continue(talk));
        }
    }
    requests
}

/// Conversations with about a minute between two turns, often several minutes.
pub(super) fn turns(chance: Chance) -> Vec<Arrival> {
    let habits = Habits { turns: 10_000, goes_on: 0.7, pause_ms: 60_000.0, pause_sigma: 1.0 };
    conversations(habits, chance, |_, _, _| ())
}

/// Conversations, and in every second period of 200 seconds a tenant that sends two requests after each turn: 3 blocks
/// that all of its requests share, and 15 to 44 that are not used again.
pub(super) fn flood(chance: Chance) -> Vec<Arrival> {
    let habits = Habits { turns: 6_000, goes_on: 0.75, pause_ms: 40_000.0, pause_sigma: 0.8 };
    conversations(habits, chance, |chance, now_ms, requests| {
        if now_ms / FLOOD_MS % 2 == 1 {
            for _ in 0..2 {
                let prompt = Prompt::default().then(Text(999), 3);
                let prompt = prompt.then(chance.new_text(), 15 + chance.below(30));
                requests.push(Arrival { at_ms: now_ms, prompt });
            }
        }
    })
}

/// Runs of agents. A new one begins every 6 seconds with one of 12 prefixes of 8 to 30 blocks, and makes 5 to 40 steps
/// that each append one to four blocks. A step waits for a tool: for seconds, one time in ten for minutes.
pub(super) fn agents(mut chance: Chance) -> Vec<Arrival> {
    let (mut agenda, mut requests) = (Agenda::default(), Vec::new());
    let mut runs: Vec<(Prompt, u64)> = Vec::new();
    agenda.plan(0, 0.0, Event::Begin);
    for _ in 0..9_000 {
        let (now_ms, event) = agenda.next();
        let run = match event {
            Event::Begin => {
                agenda.plan(now_ms, chance.exponential(6_000.0), Event::Begin);
                let kind = chance.below(12);
                let prefix = Prompt::default().then(Text(kind), 8 + 2 * kind);
                runs.push((prefix, 5 + chance.below(36)));
                runs.len() - 1
            }
            Event::Continue(run) => run,
        };
        let (prompt, steps_left) = &mut runs[run];
        let blocks = 1 + chance.below(4);
        prompt.append(chance.new_text(), blocks);
        requests.push(Arrival { at_ms: now_ms, prompt: prompt.clone() });
        *steps_left -= 1;
        if *steps_left > 0 {
            let is_quick = chance.unit() < 0.9;
            let (median, sigma) = if is_quick { (5_000.0, 0.7) } else { (180_000.0, 0.8) };
            agenda.plan(now_ms, chance.log_normal(median, sigma), Event::Continue(run));
        }
    }
    requests
}
