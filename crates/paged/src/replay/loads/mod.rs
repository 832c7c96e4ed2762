//! Generated request loads of nine forms, because one published trace shows one kind of use only.
//!
//! | name   | requests | what is asked for                                                                     |
//! |--------|---------:|---------------------------------------------------------------------------------------|
//! | scans  |    9,000 | 400 popular prompts by Zipf's law; every second request is a prompt that is used once |
//! | loop   |   12,000 | 420 documents one after the other, again and again: 5,040 blocks                      |
//! | shift  |   12,000 | 500 prompts by Zipf's law; in the second third 500 others, then the first ones again  |
//! | flood  |   12,000 | conversations, and a tenant that sends prompts used once in bursts of 200 seconds     |
//! | zipf   |   10,000 | 300 system prompts by Zipf's law in a tree of shared beginnings, with ends used once  |
//! | turns  |   10,000 | conversations with minutes between their turns; partial last blocks are not shared    |
//! | agents |    9,000 | runs of 5 to 40 quick steps, each longer than the last, behind 12 shared prefixes     |
//! | rag    |    9,000 | one to three of 3,000 documents by Zipf's law, in any order, and a question           |
//! | mixed  |   41,000 | the first 25 minutes of all of them but shift, at the same time                       |
//!
//! The numbers of requests of flood and mixed depend a little on the seed. A load is a list of prompts in the order of
//! their arrival. All blocks count as full, and there are no outputs: an answer is part of the next prompt of its
//! conversation. Requests of prompts arrive every 300 ms on average; when sessions begin, see `sessions`. The times
//! themselves are not part of the trace.
//!
//! What must stay true: a load and a seed give the same trace on every machine and in every release, so that figures
//! can be compared. So the functions that C libraries compute differently are not used (see `chance`), and a test
//! fixes a checksum of each load.

mod chance;
mod prompts;
mod sessions;
#[cfg(test)]
mod tests;

use super::trace::Trace;
use chance::Chance;
use mooncrate_core::rng::mix;
use std::fmt;
use std::str::FromStr;

/// Mean time between two requests.
const GAP_MS: f64 = 300.0;

/// How much of the other loads the mixed one holds.
const MIXED_MS: u64 = 25 * 60 * 1000;

/// A form of load; the table of this module says what each is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Popular prompts among prompts that are used once.
    Scans,
    /// Documents one after the other, again and again.
    Loop,
    /// Popular prompts that others replace for a while.
    Shift,
    /// Conversations, and a tenant that sends prompts used once in bursts.
    Flood,
    /// System prompts in a tree of shared beginnings.
    Zipf,
    /// Conversations.
    Turns,
    /// Runs of quick steps behind a few shared prefixes.
    Agents,
    /// Documents in any order and a question.
    Rag,
    /// All of them but `Shift` at the same time.
    Mixed,
}

impl Load {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Scans,
        Self::Loop,
        Self::Shift,
        Self::Flood,
        Self::Zipf,
        Self::Turns,
        Self::Agents,
        Self::Rag,
        Self::Mixed,
    ];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scans => "scans",
            Self::Loop => "loop",
            Self::Shift => "shift",
            Self::Flood => "flood",
            Self::Zipf => "zipf",
            Self::Turns => "turns",
            Self::Agents => "agents",
            Self::Rag => "rag",
            Self::Mixed => "mixed",
        }
    }

    /// The trace of this load that `seed` fixes. The size of a block does not change what is asked for.
    pub fn trace(self, seed: u64, block_tokens: u32) -> Trace {
        let requests = self.requests(seed);
        Trace::of_full_blocks(block_tokens, requests.iter().map(|one| one.prompt.keys()))
    }

    fn requests(self, seed: u64) -> Vec<Arrival> {
        let chance = Chance::new(seed);
        match self {
            Self::Scans => prompts::scans(chance),
            Self::Loop => prompts::documents_in_turn(chance),
            Self::Shift => prompts::shift(chance),
            Self::Flood => sessions::flood(chance),
            Self::Zipf => prompts::zipf(chance),
            Self::Turns => sessions::turns(chance),
            Self::Agents => sessions::agents(chance),
            Self::Rag => prompts::rag(chance),
            Self::Mixed => mixed(seed),
        }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No load has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no load {0:?}; choose scans, loop, shift, flood, zipf, turns, agents, rag or mixed"
)]
pub struct UnknownLoad(pub String);

impl FromStr for Load {
    type Err = UnknownLoad;

    fn from_str(name: &str) -> Result<Self, UnknownLoad> {
        let found = Self::ALL.into_iter().find(|load| load.name() == name);
        found.ok_or_else(|| UnknownLoad(name.to_owned()))
    }
}

/// A request and when it arrives.
#[derive(Clone, Debug)]
struct Arrival {
    at_ms: u64,
    prompt: Prompt,
}

/// A piece of text that prompts are put together of. Equal numbers are the same text.
#[derive(Clone, Copy, Debug)]
struct Text(u64);

/// The input of a request as a prefix cache sees it: the key of a block stands for the block and all blocks before it.
#[derive(Clone, Debug, Default)]
struct Prompt(Vec<u64>);

impl Prompt {
    /// Appends a text of so many blocks.
    fn append(&mut self, text: Text, blocks: u64) {
        for index in 0..blocks {
            let before = self.0.last().copied().unwrap_or_default();
            self.0.push(mix(before ^ mix(mix(text.0).wrapping_add(index + 1))));
        }
    }

    /// The same prompt with a text of so many blocks appended.
    fn then(mut self, text: Text, blocks: u64) -> Self {
        self.append(text, blocks);
        self
    }

    fn keys(&self) -> &[u64] {
        &self.0
    }
}

/// The first 25 minutes of all loads but `Shift`, each with a seed of its own, in the order of their arrival.
fn mixed(seed: u64) -> Vec<Arrival> {
    let loads =
        [Load::Scans, Load::Loop, Load::Flood, Load::Zipf, Load::Turns, Load::Agents, Load::Rag];
    let mut all = Vec::new();
    for (number, load) in (1..).zip(loads) {
        let requests = load.requests(seed ^ number).into_iter();
        let early = requests.filter(|one| one.at_ms < MIXED_MS);
        all.extend(early.map(|mut one| {
            // Two loads share no block, even if they number their texts alike.
            one.prompt.0.iter_mut().for_each(|key| *key = mix(*key ^ number));
            one
        }));
    }
    // Stable: requests that arrive at the same time keep the order of the loads, and of each load.
    all.sort_by_key(|one| one.at_ms);
    all
}
