//! Which positions of the text the tokens of a sequence have, once some were dropped.
//!
//! ```text
//! positions   0 1 2 3 4 5 6 7 8 9 | 10 11          a sequence of ten tokens keeps 0, 1, 6 and 9, and goes on
//! tokens      0 1         2     3 |  4  5          kept = [0, 1, 6, 9], dropped = 6
//! ```
//!
//! K of most models is rotated by its position before it is cached, and stays so. A token that comes later has
//! the position that it would have had without the drop, so that its distances to the kept tokens are right.

/// The positions of the tokens of a sequence. The default is that of one that has all its tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Positions {
    /// Those of the tokens that were there when tokens were dropped last; empty if none were.
    pub(crate) kept: Vec<u32>,
    /// Tokens that were dropped so far.
    pub(crate) dropped: u64,
}

impl Positions {
    /// The position of a token.
    pub(crate) fn of(&self, token: u64) -> u64 {
        match self.kept.get(token as usize) {
            Some(position) => u64::from(*position),
            None => token + self.dropped,
        }
    }

    /// Those that remain if of `tokens` tokens only these are kept.
    pub(crate) fn retain(&self, tokens: u64, survivors: &[u32]) -> Self {
        let kept = survivors.iter().map(|token| self.of(u64::from(*token)) as u32).collect();
        Self { kept, dropped: self.dropped + tokens - survivors.len() as u64 }
    }

    /// Whether a sequence of so many tokens can have these.
    pub(crate) fn fit(&self, tokens: u64) -> bool {
        let Some(last) = self.kept.last() else { return self.dropped == 0 };
        let count = self.kept.len() as u64;
        self.dropped > 0
            && count <= tokens
            && tokens.checked_add(self.dropped).is_some_and(|end| end <= crate::TOKENS_MAX)
            && self.kept.is_sorted_by(|one, next| one < next)
            && u64::from(*last) < count + self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_stay_what_they_were() {
        let all = Positions::default();
        assert_eq!((all.of(0), all.of(7)), (0, 7));
        let some = all.retain(10, &[0, 1, 6, 9]);
        assert_eq!([0, 1, 2, 3, 4, 5].map(|token| some.of(token)), [0, 1, 6, 9, 10, 11]);
        // Of these six the first, the third, the fourth and the last stay.
        let fewer = some.retain(6, &[0, 2, 3, 5]);
        assert_eq!([0, 1, 2, 3, 4].map(|token| fewer.of(token)), [0, 6, 9, 11, 12]);
        assert!(all.fit(10) && some.fit(4) && some.fit(9) && fewer.fit(4));
    }

    #[test]
    fn positions_that_cannot_be_do_not_fit() {
        let positions = |kept: &[u32], dropped| Positions { kept: kept.to_vec(), dropped };
        assert!(!positions(&[], 1).fit(1), "dropped tokens leave some");
        assert!(!positions(&[0, 1], 0).fit(2), "nothing was dropped");
        assert!(!positions(&[0, 1, 5], 3).fit(2), "more than there are");
        assert!(!positions(&[1, 1], 3).fit(2), "twice the same");
        assert!(!positions(&[0, 5], 3).fit(2), "beyond the end");
        assert!(!positions(&[0], u64::MAX).fit(1), "more than fit");
    }
}
