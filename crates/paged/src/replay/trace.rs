//! Request traces: read from JSON lines, or made of generated requests.
//!
//! ```text
//!   {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, …, 2353]}
//! ```
//!
//! Each of `hash_ids` names a prefix of the input that ends with one block: the same number means the same
//! tokens from the very first to the end of that block. So equal numbers have equal predecessors, and the
//! last block may be a partial one. Requests are replayed in the order of the file.
//!
//! What must stay true: a trace that exists is whole. A line that cannot be read is an error, unless the
//! caller asked for such lines to be counted and left out; nothing is guessed.

use serde::Deserialize;
use std::collections::HashMap;
use std::io::{self, BufRead, Read};

/// Bytes of the longest line: a context of millions of tokens in small blocks.
const LINE_BYTES_MAX: u64 = 16 << 20;
/// Most blocks of a whole trace, counted with repetitions.
const BLOCKS_MAX: usize = u32::MAX as usize - 1;

/// A distinct block of a trace, numbered in the order of first use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TraceBlock(pub u32);

/// What to do with a line that is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The whole trace is refused.
    Refuse,
    /// It is counted and left out.
    Skip,
}

/// Why there is no trace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file could not be read.
    #[error("line {line} cannot be read: {source}")]
    Io {
        /// Counted from 1.
        line: u64,
        /// What the system said.
        source: io::Error,
    },
    /// A line is no request.
    #[error("line {line} is no request: {why}")]
    Broken {
        /// Counted from 1.
        line: u64,
        /// What is wrong with it.
        why: String,
    },
    /// There is nothing to replay.
    #[error("the trace holds no requests ({skipped} broken lines were left out)")]
    Empty {
        /// Lines that were left out.
        skipped: u64,
    },
    /// There are more blocks than can be numbered.
    #[error("line {line}: the trace has more than {BLOCKS_MAX} blocks; cut the file")]
    TooLong {
        /// Counted from 1.
        line: u64,
    },
}

/// One line.
#[derive(Debug, Deserialize)]
struct Line {
    /// Required, because a file without arrival times is probably something else. Not used: requests run
    /// one after the other.
    #[serde(rename = "timestamp")]
    _timestamp: f64,
    input_length: u32,
    output_length: u32,
    hash_ids: Vec<u64>,
}

/// The requests of a trace, with their blocks numbered densely.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The blocks of all requests, one request after the other.
    blocks: Vec<TraceBlock>,
    /// Where the blocks of each request end, and how many tokens its input has.
    requests: Vec<(usize, u32)>,
    distinct: u32,
    block_tokens: u32,
    output_tokens: u64,
    skipped: u64,
}

/// One request of a trace.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The blocks of its input, from the first.
    pub blocks: &'a [TraceBlock],
    /// The tokens of its input.
    pub tokens: u32,
}

impl Trace {
    /// Reads a whole trace. Blank lines are passed over.
    pub fn read(
        mut from: impl BufRead,
        block_tokens: u32,
        broken: Broken,
    ) -> Result<Self, TraceError> {
        let mut numbers = HashMap::new();
        let mut trace = Self::empty(block_tokens);
        let mut bytes = Vec::new();
        for line in 1.. {
            bytes.clear();
            let mut limited = from.by_ref().take(LINE_BYTES_MAX);
            let read = limited.read_until(b'\n', &mut bytes);
            if read.map_err(|source| TraceError::Io { line, source })? == 0 {
                break;
            }
            if bytes.len() as u64 == LINE_BYTES_MAX && bytes.last() != Some(&b'\n') {
                // The rest of it would be taken for the next line.
                let why = format!("it has more than {LINE_BYTES_MAX} bytes");
                return Err(TraceError::Broken { line, why });
            }
            if bytes.trim_ascii().is_empty() {
                continue;
            }
            match (parse(&bytes, block_tokens), broken) {
                (Ok(request), _) => {
                    if trace.blocks.len() + request.hash_ids.len() > BLOCKS_MAX {
                        return Err(TraceError::TooLong { line });
                    }
                    trace.add(&request.hash_ids, request.input_length, &mut numbers);
                    trace.output_tokens += u64::from(request.output_length);
                }
                (Err(_), Broken::Skip) => trace.skipped += 1,
                (Err(why), Broken::Refuse) => return Err(TraceError::Broken { line, why }),
            }
        }
        if trace.requests.is_empty() {
            return Err(TraceError::Empty { skipped: trace.skipped });
        }
        Ok(trace)
    }

    /// A trace of requests whose blocks are all full, without outputs. Each request is the keys of its blocks, from the
    /// first; as in a file, equal keys have equal predecessors.
    ///
    /// # Panics
    ///
    /// Without requests, and with more blocks than can be numbered.
    pub(super) fn of_full_blocks<'a>(
        block_tokens: u32,
        requests: impl IntoIterator<Item = &'a [u64]>,
    ) -> Self {
        let (mut trace, mut numbers) = (Self::empty(block_tokens), HashMap::new());
        for keys in requests {
            assert!(trace.blocks.len() + keys.len() <= BLOCKS_MAX, "too many blocks");
            // A prompt of more tokens than can be counted counts as one of 2^32 - 1.
            let tokens = u32::try_from(keys.len()).unwrap_or(u32::MAX).saturating_mul(block_tokens);
            trace.add(keys, tokens, &mut numbers);
        }
        assert!(!trace.is_empty(), "a trace has requests");
        trace
    }

    fn empty(block_tokens: u32) -> Self {
        assert!(block_tokens > 0, "a block has tokens");
        Self {
            blocks: Vec::new(),
            requests: Vec::new(),
            distinct: 0,
            block_tokens,
            output_tokens: 0,
            skipped: 0,
        }
    }

    fn add(&mut self, keys: &[u64], input_tokens: u32, numbers: &mut HashMap<u64, u32>) {
        for key in keys {
            let number = *numbers.entry(*key).or_insert(self.distinct);
            self.distinct = self.distinct.max(number + 1);
            self.blocks.push(TraceBlock(number));
        }
        self.requests.push((self.blocks.len(), input_tokens));
    }

    /// The requests in their order.
    pub fn requests(&self) -> impl Iterator<Item = Request<'_>> {
        let mut begin = 0;
        self.requests.iter().map(move |(end, tokens)| {
            let blocks = &self.blocks[std::mem::replace(&mut begin, *end)..*end];
            Request { blocks, tokens: *tokens }
        })
    }

    /// The blocks of all requests, one request after the other.
    pub fn blocks(&self) -> &[TraceBlock] {
        &self.blocks
    }

    /// Number of requests.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Never: a trace without requests is refused.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Number of distinct blocks.
    pub const fn distinct(&self) -> u32 {
        self.distinct
    }

    /// Tokens of a full block.
    pub const fn block_tokens(&self) -> u32 {
        self.block_tokens
    }

    /// Tokens of all inputs.
    pub fn input_tokens(&self) -> u64 {
        self.requests.iter().map(|(_, tokens)| u64::from(*tokens)).sum()
    }

    /// Tokens of all outputs; they are not cached.
    pub const fn output_tokens(&self) -> u64 {
        self.output_tokens
    }

    /// Lines that were left out.
    pub const fn skipped(&self) -> u64 {
        self.skipped
    }
}

impl Request<'_> {
    /// Tokens of the block at `index`: the last one may be partial.
    pub fn tokens_of(&self, index: usize, block_tokens: u32) -> u64 {
        let block = u64::from(block_tokens);
        u64::from(self.tokens).saturating_sub(index as u64 * block).min(block)
    }
}

fn parse(bytes: &[u8], block_tokens: u32) -> Result<Line, String> {
    let line: Line = serde_json::from_slice(bytes.trim_ascii_end()).map_err(|error| {
        // The parser saw one line and counts from its beginning.
        let text = error.to_string();
        let what = text.split(" at line ").next().unwrap_or(&text);
        format!("{what} (column {})", error.column())
    })?;
    let (blocks, given) = (line.input_length.div_ceil(block_tokens), line.hash_ids.len());
    if given != blocks as usize {
        return Err(format!(
            "an input of {} tokens has {blocks} blocks of {block_tokens} tokens, but hash_ids has {given}",
            line.input_length,
        ));
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str =
        r#"{"timestamp": 0, "input_length": 1000, "output_length": 7, "hash_ids": [9, 4]}"#;

    fn read(text: &str, broken: Broken) -> Result<Trace, TraceError> {
        Trace::read(text.as_bytes(), 512, broken)
    }

    #[test]
    fn blocks_are_numbered_by_first_use_and_the_last_may_be_partial() {
        let more = r#"{"timestamp": 1.5, "input_length": 1537, "output_length": 1, "hash_ids": [9, 4, 18446744073709551615, 7], "more": 1}"#;
        let trace = read(&format!("{GOOD}\n\n{more}\n"), Broken::Refuse).unwrap();
        let requests: Vec<Request<'_>> = trace.requests().collect();
        assert_eq!((trace.len(), trace.distinct(), trace.blocks().len()), (2, 4, 6));
        assert_eq!(requests[0].blocks, [TraceBlock(0), TraceBlock(1)]);
        assert_eq!(requests[1].blocks, [0, 1, 2, 3].map(TraceBlock));
        assert_eq!((trace.input_tokens(), trace.output_tokens()), (2537, 8));
        let tokens: Vec<u64> = (0..4).map(|at| requests[1].tokens_of(at, 512)).collect();
        assert_eq!(tokens, [512, 512, 512, 1]);
    }

    #[test]
    fn a_broken_line_is_named_with_its_number_and_what_is_wrong() {
        for (bad, words) in [
            ("{", "EOF while parsing an object (column 1)"),
            ("[1]", "invalid"),
            (
                r#"{"timestamp": 0, "input_length": 5, "output_length": 7}"#,
                "missing field `hash_ids`",
            ),
            (&GOOD.replace("[9, 4]", "[9, -4]"), "invalid value: integer `-4`"),
            (&GOOD.replace("[9, 4]", "[9]"), "2 blocks of 512 tokens, but hash_ids has 1"),
            (&GOOD.replace("1000", "1e3"), "invalid type: floating point"),
            ("\u{1}", "expected value"),
        ] {
            let text = format!("{GOOD}\n{GOOD}\n{bad}\n{GOOD}");
            let error = read(&text, Broken::Refuse).unwrap_err().to_string();
            assert!(error.starts_with("line 3 is no request: "), "{error}");
            assert!(error.contains(words) && !error.contains("line 1"), "{bad}: {error}");
            let trace = read(&text, Broken::Skip).unwrap();
            assert_eq!((trace.len(), trace.skipped()), (3, 1), "{bad}");
        }
    }

    #[test]
    fn nothing_to_replay_is_an_error() {
        for (text, skipped) in [("", 0), ("\n \n", 0), ("x\ny\n", 2)] {
            let error = read(text, Broken::Skip).unwrap_err();
            assert!(matches!(error, TraceError::Empty { skipped: n } if n == skipped), "{error}");
        }
    }

    #[test]
    fn a_line_without_an_end_is_not_read_for_ever() {
        let endless = io::BufReader::new(io::repeat(b' '));
        let error = Trace::read(endless, 512, Broken::Skip).unwrap_err().to_string();
        assert!(error.contains("line 1") && error.contains("16777216 bytes"), "{error}");
    }

    #[test]
    fn a_file_that_cannot_be_read_says_where() {
        struct Bad;
        impl Read for Bad {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("the disk is gone"))
            }
        }
        let from = io::BufReader::new(GOOD.as_bytes().chain(&b"\n"[..]).chain(Bad));
        let error = Trace::read(from, 512, Broken::Skip).unwrap_err().to_string();
        assert_eq!(error, "line 2 cannot be read: the disk is gone");
    }
}
