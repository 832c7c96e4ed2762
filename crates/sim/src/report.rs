//! What is printed: a calm line now and then, a table at the end, and on a failure everything that
//! is needed to repeat it.

use crate::runner::{Outcome, Sum, Tally};
use std::fmt::Write;

/// One line while seeds run.
pub fn progress<T: Tally>(sum: &Sum<T>, wanted: u64) -> String {
    let (ops, seeds, verified) = (sum.ops, sum.seeds, sum.tally.verified());
    let rate = per_second(sum);
    format!("{ops:>11} of {wanted} operations, {seeds} seeds, {verified} values verified, {rate}/s")
}

fn per_second<T>(sum: &Sum<T>) -> u64 {
    let ms = u64::try_from(sum.took.as_millis()).unwrap_or(u64::MAX).max(1);
    sum.ops * 1000 / ms
}

/// The table at the end.
pub fn table<T: Tally>(sum: &Sum<T>) -> String {
    let mut text = String::new();
    let mut row = |name: &str, value: String| {
        writeln!(text, "  {name:<28} {value:>14}").expect("a String takes everything");
    };
    row("seeds", sum.seeds.to_string());
    row("operations", sum.ops.to_string());
    for (name, count) in sum.tally.rows() {
        row(&name, count.to_string());
    }
    row("violations", u8::from(sum.failed.is_some()).to_string());
    row("operations/s", per_second(sum).to_string());
    row("combined trace hash", format!("{:016x}", sum.hash));
    text
}

/// One seed in a line.
pub fn line<T: Tally>(outcome: &Outcome<T>) -> String {
    format!(
        "seed 0x{:x}: {} operations, {} values verified, trace hash {:016x}",
        outcome.seed,
        outcome.ops,
        outcome.tally.verified(),
        outcome.hash
    )
}

/// Everything about a failure, and the command that repeats it.
pub fn failure<T>(outcome: &Outcome<T>, repeat: &str) -> String {
    let Some(failure) = &outcome.failure else {
        return "the seed does not fail again: what it does is not fixed by the seed\n".to_owned();
    };
    let lines = outcome.lines.join("\n");
    format!(
        "{lines}\n\nVIOLATION of {failure}\ntrace hash {:016x}\nREPRO: {repeat}\n",
        outcome.hash
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::Failure;

    #[test]
    fn a_failure_names_the_command_that_repeats_it() {
        let failure_of =
            Failure { rule: "C4".into(), text: "too late".into(), key: Some(3), op: 9 };
        let outcome = Outcome {
            failure: Some(failure_of),
            lines: vec!["a line".into()],
            ..Outcome::<()>::default()
        };
        let text = failure(&outcome, "./dev sim replay --seed 0xab --ops 50");
        assert!(text.contains("REPRO: ./dev sim replay --seed 0xab --ops 50"), "{text}");
        assert!(text.contains("C4 broken at operation 9: too late") && text.contains("a line"));
    }
}
