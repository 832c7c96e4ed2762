//! Which keys a caller means. Regular expressions come from peers, so they run in a linear-time engine
//! with bounds on what they may compile to; a prefix is the normal way.

use mooncrate_wire::CallError;
use mooncrate_wire::error::{Refusal, RefusalCode};
use mooncrate_wire::message::Pattern;
use regex::bytes::{Regex, RegexBuilder};

/// Bytes of an expression.
const TEXT_BYTES_MAX: usize = 4096;
/// Bytes that its program may take.
const PROGRAM_BYTES_MAX: usize = 1 << 20;
/// Bytes that its automata may take while they are at work.
const AUTOMATON_BYTES_MAX: usize = 1 << 20;
/// Depth of its brackets.
const NEST_MAX: u32 = 64;

/// A pattern, ready to be asked.
#[derive(Debug)]
pub(crate) enum Matcher<'a> {
    Prefix(&'a [u8]),
    Regex(Box<Regex>),
}

impl<'a> Matcher<'a> {
    /// Compiles a pattern, or says why it is none.
    pub(crate) fn new(pattern: &Pattern<'a>) -> Result<Self, CallError> {
        let text = match pattern {
            Pattern::Prefix(prefix) => return Ok(Self::Prefix(prefix)),
            Pattern::Regex(text) => text,
        };
        let refuse = |words: String| CallError::from(Refusal::new(RefusalCode::BadRequest, words));
        if text.len() > TEXT_BYTES_MAX {
            let words = format!(
                "the regular expression has {} bytes, the limit is {TEXT_BYTES_MAX}; use a prefix, \
                 or several shorter expressions",
                text.len()
            );
            return Err(refuse(words));
        }
        RegexBuilder::new(text)
            .size_limit(PROGRAM_BYTES_MAX)
            .dfa_size_limit(AUTOMATON_BYTES_MAX)
            .nest_limit(NEST_MAX)
            .build()
            .map(|regex| Self::Regex(Box::new(regex)))
            .map_err(|error| match error {
                regex::Error::CompiledTooBig(_) => refuse(format!(
                    "the regular expression needs more than {PROGRAM_BYTES_MAX} bytes when it is \
                     compiled; use smaller counts in its repetitions"
                )),
                other => refuse(format!("no regular expression: {other}")),
            })
    }

    /// What every key begins with that is meant; comparing it costs next to nothing.
    pub(crate) fn prefix(&self) -> &[u8] {
        match self {
            Self::Prefix(prefix) => prefix,
            Self::Regex(_) => b"",
        }
    }

    /// Whether a key is meant.
    pub(crate) fn matches(&self, key: &[u8]) -> bool {
        match self {
            Self::Prefix(prefix) => key.starts_with(prefix),
            Self::Regex(regex) => regex.is_match(key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(pattern: &str) -> String {
        Matcher::new(&Pattern::Regex(pattern)).unwrap_err().to_string()
    }

    #[test]
    fn expressions_that_would_explode_are_refused_in_words() {
        assert!(words("(a{1000}){1000}{1000}").contains("smaller counts"));
        assert!(words("(a").contains("no regular expression"));
        assert!(words(&"a".repeat(5000)).contains("limit is 4096"));
        assert!(words(&"(".repeat(100)).contains("no regular expression"));
    }

    /// One that takes exponential time elsewhere: 8 KiB of `a` and no `b`.
    #[test]
    fn nested_repetitions_take_linear_time() {
        let matcher = Matcher::new(&Pattern::Regex("^(a+)+$")).unwrap();
        let mut key = vec![b'a'; 8191];
        assert!(matcher.matches(&key));
        key.push(b'b');
        assert!(!matcher.matches(&key));
    }

    #[test]
    fn keys_need_not_be_text() {
        let matcher = Matcher::new(&Pattern::Regex(r"^k(?-u)\xff")).unwrap();
        assert!(matcher.matches(b"k\xff\xfe"));
        assert!(Matcher::new(&Pattern::Prefix(b"")).unwrap().matches(b"anything"));
    }
}
