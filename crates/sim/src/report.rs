//! What is printed: a calm line now and then, a table at the end, and on a failure everything that
//! is needed to repeat it.

use crate::faults::Fault;
use crate::marks::Mark;
use crate::runner::Sum;
use crate::world::Outcome;
use std::fmt::Write;

/// Operations from which on every mark must have been hit.
pub const MARKS_FROM_OPS: u64 = 1_000_000;

/// One line while seeds run.
pub fn progress(sum: &Sum, wanted: u64) -> String {
    format!(
        "{:>11} of {wanted} operations, {} seeds, {} gets verified, {} operations/s",
        sum.stats.ops,
        sum.seeds,
        sum.judged.hits,
        per_second(sum)
    )
}

fn per_second(sum: &Sum) -> u64 {
    let ms = u64::try_from(sum.took.as_millis()).unwrap_or(u64::MAX).max(1);
    sum.stats.ops * 1000 / ms
}

/// The table at the end.
pub fn table(sum: &Sum) -> String {
    let mut text = String::new();
    let mut row = |name: &str, value: String| {
        writeln!(text, "  {name:<28} {value:>14}").expect("a String takes everything");
    };
    let judged = sum.judged;
    row("seeds", sum.seeds.to_string());
    row("operations", sum.stats.ops.to_string());
    row("gets verified (hits)", judged.hits.to_string());
    row("misses", judged.misses.to_string());
    row("gets failed", judged.gets_failed.to_string());
    row("puts finished", judged.puts.to_string());
    row("puts refused", judged.puts_refused.to_string());
    row("puts of unknown outcome", judged.puts_unknown.to_string());
    row("removes finished", judged.removes.to_string());
    row("events", sum.stats.events.to_string());
    row("virtual seconds", (sum.stats.virtual_ns / 1_000_000_000).to_string());
    for fault in Fault::ALL {
        row(&format!("fault: {}", fault.name()), sum.stats.faults[fault as usize].to_string());
    }
    for mark in Mark::ALL {
        row(&format!("mark: {}", mark.name()), sum.marks.count(*mark).to_string());
    }
    row("violations", u8::from(sum.failed.is_some()).to_string());
    row("operations/s", per_second(sum).to_string());
    row("combined trace hash", format!("{:016x}", sum.hash));
    text
}

/// Everything about a failure, and the command that repeats it.
pub fn failure(outcome: &Outcome, ops: Option<u64>) -> String {
    let mut text = String::new();
    for line in &outcome.lines {
        writeln!(text, "{line}").expect("a String takes everything");
    }
    if let Some(failure) = &outcome.failure {
        writeln!(text, "\nVIOLATION of {failure}").expect("a String takes everything");
    }
    writeln!(text, "trace hash {:016x}", outcome.hash).expect("a String takes everything");
    let ops = ops.map(|ops| format!(" --ops {ops}")).unwrap_or_default();
    writeln!(text, "REPRO: ./dev sim replay --seed 0x{:x}{ops}", outcome.seed)
        .expect("a String takes everything");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::Failure;
    use crate::marks::Marks;

    #[test]
    fn a_failure_names_the_command_that_repeats_it() {
        let failure_of =
            Failure { rule: "C4".into(), text: "too late".into(), key: Some(3), op: 9 };
        let outcome = Outcome {
            seed: 0xab,
            hash: 1,
            stats: crate::ctx::Stats::default(),
            judged: mooncrate_check::oracle::Counts::default(),
            marks: Marks::default(),
            failure: Some(failure_of),
            lines: vec!["a line".into()],
        };
        let text = failure(&outcome, Some(50));
        assert!(text.contains("REPRO: ./dev sim replay --seed 0xab --ops 50"), "{text}");
        assert!(text.contains("C4 broken at operation 9: too late") && text.contains("a line"));
    }

    #[test]
    fn the_table_has_a_row_per_mark() {
        let text = table(&Sum::default());
        assert!(Mark::ALL.iter().all(|mark| text.contains(mark.name())));
    }
}
