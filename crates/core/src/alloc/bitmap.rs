//! A set of small numbers as bits, with summaries above: finds its least member in a few steps.
//!
//! A word of each level is summed up by one bit of the level above, set while any bit of the word
//! is. So a set of `n` numbers has log64(n) levels, and every call touches one word of each.

/// A set of numbers below a fixed bound.
#[derive(Clone, Debug, Default)]
pub struct Bitmap {
    /// Lowest first; the topmost is one word.
    levels: Vec<Box<[u64]>>,
}

impl Bitmap {
    /// The empty set of numbers below `bound`.
    pub fn new(bound: u64) -> Self {
        let mut levels = Vec::new();
        let mut words = bound;
        while words > 1 || levels.is_empty() {
            words = words.div_ceil(64).max(1);
            levels.push(vec![0; words as usize].into_boxed_slice());
        }
        Self { levels }
    }

    /// Whether `number` is a member; one at or above the bound is not.
    pub fn contains(&self, number: u64) -> bool {
        self.levels[0]
            .get((number / 64) as usize)
            .is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    /// Adds `number`, which is below the bound.
    pub fn insert(&mut self, mut number: u64) {
        for level in &mut self.levels {
            level[(number / 64) as usize] |= 1 << (number % 64);
            number /= 64;
        }
    }

    /// Removes `number`, which is below the bound.
    pub fn remove(&mut self, mut number: u64) {
        for level in &mut self.levels {
            let word = &mut level[(number / 64) as usize];
            *word &= !(1 << (number % 64));
            if *word != 0 {
                return;
            }
            number /= 64;
        }
    }

    /// The least member.
    pub fn first(&self) -> Option<u64> {
        let mut number = 0;
        for level in self.levels.iter().rev() {
            let word = level[number as usize];
            if word == 0 {
                return None;
            }
            number = number * 64 + u64::from(word.trailing_zeros());
        }
        Some(number)
    }

    /// Bytes of memory that it holds.
    pub fn heap_bytes(&self) -> usize {
        self.levels.iter().map(|level| size_of_val(&**level)).sum::<usize>()
            + self.levels.capacity() * size_of::<Box<[u64]>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use std::collections::BTreeSet;

    #[test]
    fn it_agrees_with_an_ordered_set() {
        for bound in [1, 63, 64, 65, 4096, 4097, 300_000] {
            let (mut real, mut model) = (Bitmap::new(bound), BTreeSet::new());
            let mut rng = Rng::new(bound);
            for _ in 0..4000 {
                let number = rng.below(bound);
                // Removing the least one often empties the words from below, as the buddies do.
                let number = if rng.chance(400) { real.first().unwrap_or(number) } else { number };
                if rng.chance(500) {
                    real.insert(number);
                    model.insert(number);
                } else {
                    real.remove(number);
                    model.remove(&number);
                }
                assert_eq!(real.first(), model.first().copied());
                assert_eq!(real.contains(number), model.contains(&number));
            }
            assert!(!real.contains(bound) && !real.contains(u64::MAX));
        }
    }
}
