//! One word of the free blocks: 64 bits, 1 = free, and the windows and runs in it.

use crate::BlockId;
use std::iter::Peekable;
use std::slice::Iter;

/// Blocks of one word.
pub(super) const WORD: u32 = 64;
/// The hint of a word that is free as a whole: 1 + log2(64).
pub(super) const WHOLE: u8 = 7;

/// The bits of those blocks, the next ones of a list in ascending order, that are in this word.
pub(super) fn of_word(blocks: &mut Peekable<Iter<'_, BlockId>>, word: u32) -> u64 {
    let mut bits = 0;
    while let Some(block) = blocks.next_if(|block| block.0 / WORD == word) {
        bits |= 1 << (block.0 % WORD);
    }
    bits
}

/// The blocks of `word` at which an aligned window of 2^order free blocks begins.
pub(super) fn windows(word: u64, order: u32) -> u64 {
    /// Bits at multiples of 2, 4, 8, 16, 32 and 64.
    const STARTS: [u64; 6] = [
        0x5555_5555_5555_5555,
        0x1111_1111_1111_1111,
        0x0101_0101_0101_0101,
        0x0001_0001_0001_0001,
        0x0000_0001_0000_0001,
        1,
    ];
    let halves = STARTS.iter().take(order as usize).enumerate();
    halves.fold(word, |word, (half, starts)| word & (word >> (1 << half)) & starts)
}

/// 1 + the order of the largest aligned window of free blocks; 0: no block is free.
pub(super) fn order_hint(word: u64) -> u8 {
    (0..u32::from(WHOLE))
        .rev()
        .find(|order| windows(word, *order) != 0)
        .map_or(0, |order| order as u8 + 1)
}

/// The words of a run of blocks, and which of their bits belong to it.
pub(super) fn masks(first: u32, count: u32) -> impl Iterator<Item = (u32, u64)> {
    let end = u64::from(first) + u64::from(count);
    let mut at = u64::from(first);
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let (word, low) = (at / u64::from(WORD), at % u64::from(WORD));
        let bits = (end - at).min(u64::from(WORD) - low);
        at += bits;
        Some((word as u32, (u64::MAX >> (u64::from(WORD) - bits)) << low))
    })
}
