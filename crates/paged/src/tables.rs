//! The tables that attention kernels read, filled in place.
//!
//! ```text
//!   FlashInfer, three arrays (CSR)                      vLLM, a row per sequence, and a slot per new token
//!   kv_indptr         0     3  4     6                  block table   7 2 9 · ·     slot mapping
//!   kv_indices        7 2 9 │4 │ 1 8                                  4 · · · ·     7*16+5, 4*16+0, -1, …
//!   kv_last_page_len  5      16  1                                    1 8 · · ·
//! ```
//!
//! A captured graph has the addresses of these arrays in it. So they belong to the caller and never move;
//! nothing is allocated here per call. Each call checks all of its input before it writes the first number:
//! an error leaves the arrays as they were. Each call tells which elements it changed, so that a copy of the
//! arrays on a device can follow by copying only these.

use crate::geometry::Geometry;
use crate::ids::BlockId;
use std::ops::Range;

/// A sequence as the tables need it.
#[derive(Clone, Copy, Debug)]
pub struct SequenceBlocks<'a> {
    /// Its blocks in order. There may be more than its tokens need; those are left out.
    pub blocks: &'a [BlockId],
    /// Tokens that are in the cache.
    pub tokens: u64,
}

/// New tokens of a sequence: those whose K and V the next step writes.
#[derive(Clone, Debug)]
pub struct NewTokens<'a> {
    /// The blocks of the sequence, in order.
    pub blocks: &'a [BlockId],
    /// Which tokens, as indices into the sequence from 0.
    pub tokens: Range<u64>,
}

/// Why a table was not written. It is as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The caller's array is too short.
    #[error("{array} has room for {room} numbers, {needed} are needed; make it larger")]
    TooSmall {
        /// Which array.
        array: &'static str,
        /// Numbers that fit.
        room: usize,
        /// Numbers that are needed.
        needed: u64,
    },
    /// A sequence has fewer blocks than its tokens need.
    #[error("sequence {sequence} has {blocks} blocks, its {tokens} tokens need {needed}")]
    TooFewBlocks {
        /// Its place in the call.
        sequence: usize,
        /// Blocks that it has.
        blocks: usize,
        /// Tokens that it has.
        tokens: u64,
        /// Blocks that these need.
        needed: u64,
    },
    /// The call starts behind the sequences that the table has.
    #[error("an update from sequence {from} on needs the {from} before it; the table has {filled}")]
    Gap {
        /// The first sequence of the update.
        from: usize,
        /// Sequences in the table.
        filled: usize,
    },
    /// A number that the table's integers cannot hold.
    #[error("{block:?} or its slots are beyond what the table's integers hold")]
    TooLarge {
        /// Which block.
        block: BlockId,
    },
    /// A table with rows of no length.
    #[error(
        "rows have {width} blocks and the array {room} numbers; use a positive width that fits"
    )]
    BadWidth {
        /// Blocks per row.
        width: usize,
        /// Numbers in the array.
        room: usize,
    },
    /// A row outside the table.
    #[error("row {row} is outside of 0..{rows}")]
    NoRow {
        /// Which row.
        row: usize,
        /// How many there are.
        rows: usize,
    },
}

/// Which elements of the three arrays a call changed: each range reaches from the first to the last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CsrChange {
    /// Of `kv_indptr`.
    pub indptr: Range<usize>,
    /// Of `kv_indices`.
    pub indices: Range<usize>,
    /// Of `kv_last_page_len`.
    pub last_page_len: Range<usize>,
}

/// `FlashInfer`'s page table for a batch of at most so many sequences.
///
/// ```
/// use mooncrate_paged::{AttentionSpec, BlockId, CsrTable, DType, Geometry, SequenceBlocks};
///
/// let spec = AttentionSpec { layers: 1, kv_heads: 1, head_dim: 8, block_tokens: 16, dtype: DType::F16 };
/// let geometry = Geometry::attention(spec)?;
/// let (mut indptr, mut indices, mut last) = ([0; 3], [0; 8], [0; 2]);
/// let mut table = CsrTable::new(&geometry, &mut indptr, &mut indices, &mut last)?;
/// let long = SequenceBlocks { blocks: &[BlockId(7), BlockId(2), BlockId(9)], tokens: 37 };
/// let short = SequenceBlocks { blocks: &[BlockId(4)], tokens: 16 };
/// table.fill(&[long, short])?;
/// assert_eq!(indptr, [0, 3, 4]);
/// assert_eq!(indices[..4], [7, 2, 9, 4]);
/// assert_eq!(last, [5, 16]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct CsrTable<'a> {
    indptr: &'a mut [i32],
    indices: &'a mut [i32],
    last_page_len: &'a mut [i32],
    block_tokens: u32,
    /// Sequences in the table; the rest of the batch is empty sequences.
    filled: usize,
}

impl<'a> CsrTable<'a> {
    /// A table over the caller's arrays, at first of empty sequences. `kv_last_page_len` says how many
    /// sequences fit; `kv_indptr` has one number more.
    pub fn new(
        geometry: &Geometry,
        indptr: &'a mut [i32],
        indices: &'a mut [i32],
        last_page_len: &'a mut [i32],
    ) -> Result<Self, TableError> {
        let needed = last_page_len.len() as u64 + 1;
        room("kv_indptr", indptr.len(), needed)?;
        let block_tokens = geometry.block_tokens();
        indptr.fill(0);
        last_page_len.fill(to_i32(block_tokens));
        Ok(Self { indptr, indices, last_page_len, block_tokens, filled: 0 })
    }

    /// Writes the whole batch. Places behind its last sequence become empty sequences, so that a graph that
    /// was captured for a larger batch reads nothing there.
    pub fn fill(&mut self, sequences: &[SequenceBlocks<'_>]) -> Result<CsrChange, TableError> {
        self.update(0, sequences)
    }

    /// Writes the tail of the batch: `sequences` take the places from `from` on, those before stay and are not
    /// even read again. Appending a block to the last sequence touches only its own numbers.
    pub fn update(
        &mut self,
        from: usize,
        sequences: &[SequenceBlocks<'_>],
    ) -> Result<CsrChange, TableError> {
        if from > self.filled {
            return Err(TableError::Gap { from, filled: self.filled });
        }
        self.check(from, sequences)?;
        let mut change = CsrChange::default();
        let mut page = self.pages_before(from);
        for (place, sequence) in (from..).zip(sequences) {
            let pages = blocks_for(sequence.tokens, self.block_tokens) as usize;
            for block in &sequence.blocks[..pages] {
                put(self.indices, &mut change.indices, page, to_i32(block.0));
                page += 1;
            }
            put(self.indptr, &mut change.indptr, place + 1, page_number(page));
            let last = last_page_len(sequence.tokens, self.block_tokens);
            put(self.last_page_len, &mut change.last_page_len, place, to_i32(last));
        }
        let filled = from + sequences.len();
        for place in filled..self.filled.max(filled) {
            put(self.last_page_len, &mut change.last_page_len, place, to_i32(self.block_tokens));
        }
        for place in filled..self.last_page_len.len() {
            put(self.indptr, &mut change.indptr, place + 1, page_number(page));
        }
        self.filled = filled;
        Ok(change)
    }

    /// Sequences that the table has.
    pub const fn sequences(&self) -> usize {
        self.filled
    }

    fn pages_before(&self, place: usize) -> usize {
        usize::try_from(self.indptr[place]).expect("only this table writes here, and from 0 up")
    }

    fn check(&self, from: usize, sequences: &[SequenceBlocks<'_>]) -> Result<(), TableError> {
        let batch = from as u64 + sequences.len() as u64;
        room("kv_last_page_len", self.last_page_len.len(), batch)?;
        let mut pages = self.pages_before(from) as u64;
        for (sequence, one) in sequences.iter().enumerate() {
            pages += one.check(sequence, self.block_tokens)?;
        }
        // Page counts are written as i32, however long the array is.
        room("kv_indices", self.indices.len().min(i32::MAX as usize), pages)
    }
}

impl SequenceBlocks<'_> {
    /// How many blocks the tokens need, if the sequence has them and their ids fit `i32`.
    fn check(&self, sequence: usize, block_tokens: u32) -> Result<u64, TableError> {
        let (blocks, tokens) = (self.blocks.len(), self.tokens);
        let needed = blocks_for(tokens, block_tokens);
        if needed > blocks as u64 {
            return Err(TableError::TooFewBlocks { sequence, blocks, tokens, needed });
        }
        let too_large = |block: &&BlockId| i32::try_from(block.0).is_err();
        match self.blocks[..needed as usize].iter().find(too_large) {
            Some(block) => Err(TableError::TooLarge { block: *block }),
            None => Ok(needed),
        }
    }
}

/// vLLM's block table: a row of `i32` per sequence, padded.
///
/// ```
/// use mooncrate_paged::{BlockId, BlockTable};
///
/// let mut array = [0; 8];
/// let mut table = BlockTable::new(&mut array, 4, -1)?;
/// table.set_row(1, &[BlockId(7), BlockId(2)])?;
/// let changed = table.append(1, &[BlockId(9)])?; // a new block: one number, at the same address
/// assert_eq!(changed, 6..7);
/// assert_eq!(array, [-1, -1, -1, -1, 7, 2, 9, -1]);
/// # Ok::<(), mooncrate_paged::TableError>(())
/// ```
#[derive(Debug)]
pub struct BlockTable<'a> {
    array: &'a mut [i32],
    width: usize,
    pad: i32,
    /// Blocks of each row; kept here so that an update need not search for the padding.
    lengths: Box<[u32]>,
}

impl<'a> BlockTable<'a> {
    /// A table of rows of `width` blocks over the caller's array, filled with `pad`.
    pub fn new(array: &'a mut [i32], width: usize, pad: i32) -> Result<Self, TableError> {
        let room = array.len();
        if width == 0 || room < width || u32::try_from(width).is_err() {
            return Err(TableError::BadWidth { width, room });
        }
        array.fill(pad);
        let lengths = vec![0; room / width].into_boxed_slice();
        Ok(Self { array, width, pad, lengths })
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.lengths.len()
    }

    /// Makes a row these blocks. Only numbers that differ are written; the result says where, in the whole
    /// array.
    pub fn set_row(&mut self, row: usize, blocks: &[BlockId]) -> Result<Range<usize>, TableError> {
        self.replace_tail(row, 0, blocks)
    }

    /// Adds blocks to the end of a row.
    pub fn append(&mut self, row: usize, blocks: &[BlockId]) -> Result<Range<usize>, TableError> {
        let length = self.length(row)?;
        self.replace_tail(row, length, blocks)
    }

    /// Keeps the first `blocks` blocks of a row and pads the rest.
    pub fn truncate(&mut self, row: usize, blocks: usize) -> Result<Range<usize>, TableError> {
        let keep = self.length(row)?.min(blocks);
        self.replace_tail(row, keep, &[])
    }

    fn length(&self, row: usize) -> Result<usize, TableError> {
        let rows = self.rows();
        self.lengths.get(row).map(|length| *length as usize).ok_or(TableError::NoRow { row, rows })
    }

    fn replace_tail(
        &mut self,
        row: usize,
        keep: usize,
        blocks: &[BlockId],
    ) -> Result<Range<usize>, TableError> {
        let before = self.length(row)?;
        room("a row of the block table", self.width, keep as u64 + blocks.len() as u64)?;
        if let Some(block) = blocks.iter().find(|block| i32::try_from(block.0).is_err()) {
            return Err(TableError::TooLarge { block: *block });
        }
        let mut changed = 0..0;
        let first = row * self.width;
        for (place, block) in (first + keep..).zip(blocks) {
            put(self.array, &mut changed, place, to_i32(block.0));
        }
        let length = keep + blocks.len();
        for place in length..before {
            put(self.array, &mut changed, first + place, self.pad);
        }
        self.lengths[row] = length as u32;
        Ok(changed)
    }
}

/// A slot that no token is written to.
pub const NO_SLOT: i64 = -1;

/// Fills vLLM's slot mapping: for each new token `block * block tokens + slot`, in the order of the list, and
/// [`NO_SLOT`] behind them. Returns how many tokens there are.
///
/// ```
/// use mooncrate_paged::{AttentionSpec, BlockId, DType, Geometry, NewTokens, fill_slots};
///
/// let spec = AttentionSpec { layers: 1, kv_heads: 1, head_dim: 8, block_tokens: 16, dtype: DType::F16 };
/// let geometry = Geometry::attention(spec)?;
/// let mut slots = [0; 4];
/// let prompt = NewTokens { blocks: &[BlockId(7), BlockId(2)], tokens: 15..17 };
/// let decode = NewTokens { blocks: &[BlockId(4)], tokens: 3..4 };
/// assert_eq!(fill_slots(&geometry, &[prompt, decode], &mut slots)?, 3);
/// assert_eq!(slots, [7 * 16 + 15, 2 * 16, 4 * 16 + 3, -1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn fill_slots(
    geometry: &Geometry,
    new: &[NewTokens<'_>],
    slots: &mut [i64],
) -> Result<usize, TableError> {
    let block_tokens = geometry.block_tokens();
    let mut total = 0_u64;
    for (sequence, one) in new.iter().enumerate() {
        let tokens = one.tokens.end;
        SequenceBlocks { blocks: one.blocks, tokens }.check(sequence, block_tokens)?;
        total = total.saturating_add(tokens.saturating_sub(one.tokens.start));
    }
    room("the slot mapping", slots.len(), total)?;
    let mut places = slots.iter_mut();
    for one in new {
        for token in one.tokens.clone() {
            let at = geometry.token_place(token);
            let block = one.blocks[at.logical_block as usize];
            // Both factors are below 2^32 and the id below 2^31, so this fits `i64`.
            let slot = i64::from(block.0) * i64::from(block_tokens) + i64::from(at.slot);
            *places.next().expect("the room was checked") = slot;
        }
    }
    places.for_each(|place| *place = NO_SLOT);
    Ok(total as usize)
}

/// Tokens on the last page, in `1..=block_tokens`. A sequence without tokens has no page; there the value is a
/// full page, so that `(pages - 1) * page + last` is its length as well: 0.
fn last_page_len(tokens: u64, block_tokens: u32) -> u32 {
    match (tokens % u64::from(block_tokens)) as u32 {
        0 => block_tokens,
        rest => rest,
    }
}

fn blocks_for(tokens: u64, block_tokens: u32) -> u64 {
    tokens.div_ceil(u64::from(block_tokens))
}

fn room(array: &'static str, room: usize, needed: u64) -> Result<(), TableError> {
    if needed <= room as u64 { Ok(()) } else { Err(TableError::TooSmall { array, room, needed }) }
}

/// Stores a number if it differs, and widens the range of changes. Callers go upwards through an array.
fn put(array: &mut [i32], changed: &mut Range<usize>, place: usize, value: i32) {
    assert!(changed.end <= place || changed.start == changed.end, "upwards");
    if array[place] == value {
        return;
    }
    array[place] = value;
    if changed.start == changed.end {
        changed.start = place;
    }
    changed.end = place + 1;
}

fn page_number(page: usize) -> i32 {
    i32::try_from(page).expect("checked before the first write")
}

/// Of a number that was checked to be in range: ids by the call, tokens of a block by the geometry.
fn to_i32(number: u32) -> i32 {
    i32::try_from(number).expect("checked before the first write")
}

#[cfg(test)]
#[path = "tables_tests.rs"]
mod tests;
