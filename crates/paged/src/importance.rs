//! The tokens of one sequence that matter most, kept; the others dropped, and their blocks given back.
//!
//! ```text
//! tokens    0 1 2 3 | 4 5 6 7 | 8 9                scores say: drop 2, 5, 6 and 8
//! before   [b7     ] [b3     ] [b9 ]               b7 is shared with others
//! after    [b5: 0 1 3 4] [b2: 7 9]                 new private blocks; b7, b3 and b9 are released
//! ```
//!
//! Engines compute the scores: attention that a token received, its distance, whatever they trust. What must stay
//! true: a block that others share or may find by its name never changes, so survivors move to new blocks. Full
//! published blocks at the front of which no token is dropped stay where they are, shared and with their names.
//! All other blocks of the sequence have no names from then on: its tokens are no prefix of any prompt.
//!
//! The sequence with fewer tokens is made beside the old one and then takes its place. So an error leaves
//! everything as it was, and views and suspensions of the old one keep its blocks.

use crate::BlockId;
use crate::cache::Cache;
use crate::error::CacheError;
use crate::sequence::Sequence;

/// What a sequence has after [`Cache::keep_important`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Its tokens.
    pub tokens: u64,
    /// Tokens that this call dropped.
    pub dropped: u64,
    /// Its blocks.
    pub blocks: usize,
}

impl Cache {
    /// Keeps the `keep` tokens of a sequence with the highest scores, one score for each token, and drops the
    /// others. Of equal scores the later token stays; a token that must stay gets `f32::INFINITY`. The survivors
    /// keep their order and move together to the front, so block table and token indices are new; where they
    /// came from is told by [`Cache::positions`].
    ///
    /// With `keep` at or above the number of tokens nothing changes. The call needs free blocks for the
    /// survivors that move; the old blocks are given back after it.
    pub fn keep_important(&self, id: &str, scores: &[f32], keep: u64) -> Result<Kept, CacheError> {
        if keep == 0 {
            return Err(CacheError::NoTokens);
        }
        if let Some(token) = scores.iter().position(|score| score.is_nan()) {
            return Err(CacheError::NotANumber { id: id.to_owned(), token: token as u64 });
        }
        let kept = self.replace(id, |sequence| {
            let (tokens, given) = (sequence.tokens(), scores.len() as u64);
            if given != tokens {
                return Err(CacheError::WrongScores { id: id.to_owned(), given, tokens });
            }
            if keep >= tokens {
                return Ok((None, Kept { tokens, dropped: 0, blocks: sequence.table().len() }));
            }
            let kept = self.compacted(sequence, &most_important(scores, keep as usize))?;
            let blocks = kept.table().len();
            Ok((Some(kept), Kept { tokens: keep, dropped: tokens - keep, blocks }))
        })?;
        self.shared.tally.dropped_tokens.add(kept.dropped);
        Ok(kept)
    }

    /// A sequence of these tokens alone, with their KV.
    fn compacted(&self, sequence: &Sequence, survivors: &[u32]) -> Result<Sequence, CacheError> {
        let (pool, arena) = (self.pool(), self.arena());
        let mut moves = Vec::new();
        let clean = |blocks: &[BlockId]| arena.zero_blocks(blocks);
        let kept = sequence.retain(pool, survivors, clean, |step| moves.push(step))?;
        if let Err(error) = arena.compact(&moves) {
            kept.free(pool);
            return Err(error.into());
        }
        Ok(kept)
    }

    /// Copies the position of each token in the text into `positions`, which is emptied first: 0, 1, 2 and so on
    /// unless tokens were dropped. The position of the next token.
    pub fn positions(&self, id: &str, positions: &mut Vec<u64>) -> Result<u64, CacheError> {
        self.with(id, |sequence| {
            positions.clear();
            positions.extend((0..sequence.tokens()).map(|token| sequence.position(token)));
            sequence.next_position()
        })
    }

    /// The position that the next token of a sequence will have: its tokens, and those that were dropped.
    pub fn next_position(&self, id: &str) -> Result<u64, CacheError> {
        self.with(id, |sequence| sequence.next_position())
    }
}

/// The tokens with the highest scores, none of which is NaN, in their order.
fn most_important(scores: &[f32], keep: usize) -> Vec<u32> {
    let mut tokens: Vec<u32> = (0..scores.len() as u32).collect();
    // The later one of two that are equal comes first.
    let order = |one: &u32, other: &u32| {
        let by_score = scores[*other as usize].partial_cmp(&scores[*one as usize]);
        by_score.expect("no score is NaN").then(other.cmp(one))
    };
    tokens.select_nth_unstable_by(keep - 1, order);
    tokens.truncate(keep);
    tokens.sort_unstable();
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn later_tokens_win_ties_and_infinity_wins_always() {
        assert_eq!(most_important(&[1.0, 1.0, 1.0, 1.0], 2), [2, 3]);
        assert_eq!(most_important(&[f32::INFINITY, 9.0, 8.0, f32::NEG_INFINITY], 2), [0, 1]);
        assert_eq!(most_important(&[0.0, -0.0, -1.0], 1), [1]);
    }

    proptest! {
        /// As a plain sort says.
        #[test]
        fn it_agrees_with_sorting(scores in vec(-4_i8..4, 1..60), pick in any::<usize>()) {
            let scores: Vec<f32> = scores.into_iter().map(f32::from).collect();
            let keep = 1 + pick % scores.len();
            let mut sorted: Vec<(f32, u32)> = scores.iter().copied().zip(0..).collect();
            sorted.sort_by(|one, other| other.partial_cmp(one).unwrap());
            let mut wanted: Vec<u32> = sorted[..keep].iter().map(|(_, token)| *token).collect();
            wanted.sort_unstable();
            prop_assert_eq!(most_important(&scores, keep), wanted);
        }
    }
}
