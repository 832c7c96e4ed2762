//! Worker processes: what a run leaves behind (stacks that were never unwound, descriptors, mappings) ends with the
//! process that ran it.
//!
//! A worker gets a range of seeds in its arguments and prints a line for each.

use super::runner::{Outcome, Tally};
use super::{FAULTS, run_seed, tripwire};
use crate::judge::Failure;
use crate::runner::seed_at;
use crate::world::Watch;
use mooncrate_check::oracle::Counts;
use mooncrate_core::canary::Canary;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use std::fmt::Write;
use std::io;
use std::process::Command;

/// The first word of a worker's arguments.
pub const WORKER: &str = "shipped-worker";

/// Processor time that a seed may take.
const SEED_SECONDS: u64 = 120;

/// What a worker does.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    /// The first seed of the whole run; those of this worker follow from it.
    pub first: u64,
    /// The number of its first seed.
    pub from: u64,
    /// How many seeds.
    pub count: u64,
    /// Operations of each; `None`: as many as the seed says.
    pub ops: Option<u64>,
    /// The bug on purpose that is switched on.
    pub canary: Option<Canary>,
}

impl Task {
    /// Runs it in a process of its own.
    pub(super) fn run(&self) -> io::Result<Vec<Outcome>> {
        let numbers = [
            self.first,
            self.from,
            self.count,
            self.ops.map_or(0, |ops| ops + 1),
            self.canary.map_or(0, Canary::number).into(),
        ];
        let mut worker = Command::new(std::env::current_exe()?);
        worker.arg(WORKER).args(numbers.map(|number| number.to_string()));
        let output = worker.output()?;
        let told = String::from_utf8_lossy(&output.stdout);
        let outcomes: Vec<Outcome> = told.lines().filter_map(read).collect();
        if !output.status.success() {
            // It died in the seed after the last one that it printed.
            let seed = seed_at(self.first, self.from + outcomes.len() as u64);
            let words = String::from_utf8_lossy(&output.stderr);
            let text = format!("the worker ended with {}: {words}", output.status);
            let failure = Failure { rule: "panic".to_owned(), text, key: None, op: 0 };
            let died = Outcome { seed, failure: Some(failure), ..Outcome::default() };
            return Ok(outcomes.into_iter().chain([died]).collect());
        }
        Ok(outcomes)
    }

    /// A worker's arguments behind the first word.
    pub fn parse(words: &[String]) -> Option<Self> {
        let numbers: Vec<u64> = words.iter().filter_map(|word| word.parse().ok()).collect();
        let [first, from, count, ops, bug] = numbers[..] else { return None };
        let canary = Canary::ALL.into_iter().find(|canary| u64::from(canary.number()) == bug);
        Some(Self { first, from, count, ops: ops.checked_sub(1), canary })
    }

    /// Does it in this process; `tell` gets a line for each seed. Ends with the first that fails.
    pub fn work(&self, mut tell: impl FnMut(&str)) {
        #[cfg(canary)]
        mooncrate_core::canary::choose(self.canary);
        tripwire::set();
        for at in self.from..self.from + self.count {
            limit_time();
            let outcome = run_seed(seed_at(self.first, at), self.ops, Watch::default());
            tell(&write(&outcome));
            if outcome.failure.is_some() {
                return;
            }
        }
    }
}

/// The kernel ends this process when it has used up the processor time of a seed: a run that does not end has failed, and
/// its worker is not waited for.
fn limit_time() {
    let used = clock_gettime(ClockId::ProcessCPUTime).tv_sec.cast_unsigned();
    let limits = Rlimit { current: Some(used + SEED_SECONDS), ..getrlimit(Resource::Cpu) };
    // Where it is refused there is no limit.
    let _ = setrlimit(Resource::Cpu, limits);
}

/// An outcome as a line: numbers, then the failure, if there is one.
fn write(outcome: &Outcome) -> String {
    let Tally { judged, faults, met, virtual_ns } = outcome.tally;
    let mut numbers = vec![outcome.seed, outcome.hash, outcome.ops, virtual_ns];
    numbers.extend([judged.puts, judged.puts_unknown, judged.puts_refused, judged.removes]);
    numbers.extend([judged.hits, judged.misses, judged.gets_failed]);
    numbers.extend(faults);
    numbers.extend(met);
    let mut line = String::new();
    for number in numbers {
        write!(line, "{number} ").expect("a String takes everything");
    }
    if let Some(Failure { rule, text, op, .. }) = &outcome.failure {
        let text = text.replace('\\', "\\\\").replace('\n', "\\n");
        write!(line, "failed {op} {rule} {text}").expect("a String takes everything");
    }
    line
}

fn read(line: &str) -> Option<Outcome> {
    let (numbers, failed) = line.split_once("failed ").map_or((line, None), |(n, f)| (n, Some(f)));
    let numbers: Vec<u64> = numbers.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    let [seed, hash, ops, virtual_ns, p, pu, pr, r, h, m, gf, ref rest @ ..] = numbers[..] else {
        return None;
    };
    let judged = Counts {
        puts: p,
        puts_unknown: pu,
        puts_refused: pr,
        removes: r,
        hits: h,
        misses: m,
        gets_failed: gf,
    };
    let failure = failed.and_then(|failed| {
        let mut parts = failed.splitn(3, ' ');
        let (op, rule, text) = (parts.next()?, parts.next()?, parts.next()?);
        let text = text.replace("\\n", "\n").replace("\\\\", "\\");
        Some(Failure { rule: rule.to_owned(), text, key: None, op: op.parse().ok()? })
    });
    let (faults, met) = rest.split_at_checked(FAULTS.len())?;
    let (faults, met) = (faults.try_into().ok()?, met.try_into().ok()?);
    let tally = Tally { judged, faults, met, virtual_ns };
    Some(Outcome { seed, hash, ops, tally, failure, lines: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_is_the_same_on_the_other_side() {
        let failure = Failure {
            rule: "C2".to_owned(),
            text: "two\nlines, and a \\".to_owned(),
            key: None,
            op: 7,
        };
        for failure in [None, Some(failure)] {
            let judged = Counts { puts: 1, hits: 5, gets_failed: 9, ..Counts::default() };
            let outcome = Outcome {
                seed: 42,
                hash: u64::MAX,
                ops: 3,
                tally: Tally {
                    judged,
                    faults: [1, 2, 3, 4, 5, 6, 7, 8, 9],
                    met: std::array::from_fn(|at| at as u64),
                    virtual_ns: 4,
                },
                failure,
                lines: Vec::new(),
            };
            assert_eq!(format!("{:?}", read(&write(&outcome)).unwrap()), format!("{outcome:?}"));
        }
    }
}
