//! The trace: a hash over everything that happened, in order, and on request the last lines in words.

use crate::Nanos;
use std::collections::VecDeque;
use std::fmt::Write;

/// Lines that are kept for a report.
const LINES_MAX: usize = 4_000;

/// What happened, as a number and perhaps in words.
#[derive(Debug)]
pub struct Trace {
    hash: u64,
    lines: Option<VecDeque<String>>,
    aloud: bool,
}

impl Trace {
    /// A trace; `words` keeps the last lines, `aloud` prints each to standard error as it comes.
    pub fn new(words: bool, aloud: bool) -> Self {
        Self { hash: 0x6d6f_6f6e, lines: (words || aloud).then(VecDeque::new), aloud }
    }

    /// Adds numbers that say what happened.
    pub fn mix(&mut self, tag: u64, at: Nanos, detail: u64) {
        let x = (self.hash ^ at.wrapping_add(tag << 56)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.hash = (x ^ (x >> 29) ^ detail).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        self.hash ^= self.hash >> 32;
    }

    /// Says it in words, if anybody listens.
    pub fn say(&mut self, at: Nanos, text: impl FnOnce() -> String) {
        let Some(lines) = &mut self.lines else { return };
        if lines.len() == LINES_MAX {
            lines.pop_front();
        }
        let mut line = String::new();
        let (ms, ns) = (at / 1_000_000, at % 1_000_000);
        write!(line, "{ms:6}.{ns:06} ms  {}", text()).expect("a String takes everything");
        if self.aloud {
            eprintln!("{line}");
        }
        lines.push_back(line);
    }

    /// The hash so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The last lines in which one of `words` occurs, at most `most`.
    pub fn last_lines(&self, words: &[String], most: usize) -> Vec<String> {
        let Some(lines) = &self.lines else { return Vec::new() };
        let wanted = |line: &&String| {
            words.is_empty() || words.iter().any(|word| line.split(' ').any(|part| part == word))
        };
        let mut last: Vec<String> = lines.iter().rev().filter(wanted).take(most).cloned().collect();
        last.reverse();
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_time_and_detail_matter() {
        let hash = |steps: &[(u64, u64, u64)]| {
            let mut trace = Trace::new(false, false);
            for (tag, at, detail) in steps {
                trace.mix(*tag, *at, *detail);
            }
            trace.hash()
        };
        let base = hash(&[(1, 2, 3), (4, 5, 6)]);
        assert_eq!(base, hash(&[(1, 2, 3), (4, 5, 6)]));
        for other in [[(4, 5, 6), (1, 2, 3)], [(1, 2, 3), (4, 5, 7)], [(1, 2, 3), (4, 6, 6)]] {
            assert_ne!(base, hash(&other));
        }
    }

    #[test]
    fn lines_are_found_by_word() {
        let mut trace = Trace::new(true, false);
        trace.say(5, || "put k1 begins".into());
        trace.say(6, || "put k12 begins".into());
        assert_eq!(trace.last_lines(&["k1".into()], 9).len(), 1);
        assert_eq!(trace.last_lines(&[], 9).len(), 2);
    }
}
