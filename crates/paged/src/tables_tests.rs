//! The tables decoded again by the rules of the engines that read them, and errors that write nothing.

use super::*;
use crate::dtype::DType;
use crate::geometry::AttentionSpec;
use proptest::collection::vec;
use proptest::prelude::*;

const PAGE: u32 = 4;

fn geometry() -> Geometry {
    Geometry::attention(AttentionSpec {
        layers: 1,
        kv_heads: 1,
        head_dim: 1,
        block_tokens: PAGE,
        dtype: DType::I8,
    })
    .unwrap()
}

fn ids(blocks: &[u32]) -> Vec<BlockId> {
    blocks.iter().copied().map(BlockId).collect()
}

fn sequence(blocks: &[BlockId], tokens: u64) -> SequenceBlocks<'_> {
    SequenceBlocks { blocks, tokens }
}

/// The three arrays of a caller, and their copy on a device that follows by changes only.
struct Arrays {
    indptr: Vec<i32>,
    indices: Vec<i32>,
    last: Vec<i32>,
}

impl Arrays {
    fn new(batch: usize, pages: usize) -> Self {
        Self { indptr: vec![-7; batch + 1], indices: vec![-7; pages], last: vec![-7; batch] }
    }

    fn table(&mut self) -> CsrTable<'_> {
        CsrTable::new(&geometry(), &mut self.indptr, &mut self.indices, &mut self.last).unwrap()
    }

    /// Pages and length of a sequence, as a kernel finds them.
    fn decode(&self, place: usize) -> (Vec<BlockId>, u64) {
        let at = |place: usize| usize::try_from(self.indptr[place]).unwrap();
        let pages = at(place)..at(place + 1);
        let last = u64::try_from(self.last[place]).unwrap();
        assert!((1..=u64::from(PAGE)).contains(&last), "{last}");
        let length = pages.len() as u64 * u64::from(PAGE) + last - u64::from(PAGE);
        (self.indices[pages].iter().map(|id| BlockId(id.cast_unsigned())).collect(), length)
    }
}

#[test]
fn page_borders() {
    let blocks = ids(&[5, 6, 7]);
    let mut arrays = Arrays::new(6, 20);
    let lengths = [0, 1, 3, 4, 5, 12];
    let all: Vec<_> = lengths.iter().map(|tokens| sequence(&blocks, *tokens)).collect();
    arrays.table().fill(&all).unwrap();
    for (place, tokens) in lengths.iter().enumerate() {
        let pages = tokens.div_ceil(4) as usize;
        assert_eq!(arrays.decode(place), (blocks[..pages].to_vec(), *tokens));
    }
    assert_eq!(arrays.last, [4, 1, 3, 4, 1, 4]);
}

#[test]
fn an_appended_block_changes_the_tail_only() {
    let mut arrays = Arrays::new(3, 8);
    let (one, two) = (ids(&[1, 2]), ids(&[3, 4]));
    let mut table = arrays.table();
    table.fill(&[sequence(&one, 8), sequence(&two, 4)]).unwrap();
    let change = table.update(1, &[sequence(&two, 5)]).unwrap();
    assert_eq!(change, CsrChange { indptr: 2..4, indices: 3..4, last_page_len: 1..2 });
    let change = table.update(1, &[sequence(&two, 6)]).unwrap();
    assert_eq!(change, CsrChange { last_page_len: 1..2, ..CsrChange::default() });
    let change = table.update(1, &[sequence(&two, 6)]).unwrap();
    assert_eq!(change, CsrChange::default());
    assert_eq!(table.sequences(), 2);
    assert_eq!(arrays.indptr, [0, 2, 4, 4]);
}

#[test]
fn errors_write_nothing() {
    let mut arrays = Arrays::new(2, 3);
    let (one, two) = (ids(&[1, 2]), ids(&[3, 4]));
    let huge = ids(&[1 << 31]);
    let mut table = arrays.table();
    table.fill(&[sequence(&one, 8)]).unwrap();
    let errors = [
        table.fill(&[sequence(&two, 1), sequence(&one, 9)]).unwrap_err(),
        table.fill(&[sequence(&two, 8), sequence(&one, 8)]).unwrap_err(),
        table.fill(&[sequence(&two, 1); 3]).unwrap_err(),
        table.fill(&[sequence(&two, 1), sequence(&huge, 1)]).unwrap_err(),
        table.update(2, &[]).unwrap_err(),
    ];
    let wanted = [
        TableError::TooFewBlocks { sequence: 1, blocks: 2, tokens: 9, needed: 3 },
        TableError::TooSmall { array: "kv_indices", room: 3, needed: 4 },
        TableError::TooSmall { array: "kv_last_page_len", room: 2, needed: 3 },
        TableError::TooLarge { block: BlockId(1 << 31) },
        TableError::Gap { from: 2, filled: 1 },
    ];
    assert_eq!(errors, wanted);
    assert_eq!(arrays.indptr, [0, 2, 2]);
    assert_eq!(arrays.indices, [1, 2, -7]);
    let (mut short, mut indices, mut last) = ([0; 2], [0; 1], [0; 2]);
    let error = CsrTable::new(&geometry(), &mut short, &mut indices, &mut last).unwrap_err();
    assert_eq!(error, TableError::TooSmall { array: "kv_indptr", room: 2, needed: 3 });
}

#[test]
fn rows_are_padded_and_keep_their_place() {
    let mut array = [9; 10];
    let at = array.as_ptr();
    let mut table = BlockTable::new(&mut array, 4, 0).unwrap();
    assert_eq!(table.rows(), 2, "the last two numbers are no row");
    assert_eq!(table.set_row(1, &ids(&[5, 6, 7])).unwrap(), 4..7);
    assert_eq!(table.append(1, &ids(&[8])).unwrap(), 7..8);
    assert_eq!(table.truncate(1, 2).unwrap(), 6..8);
    assert_eq!(table.truncate(1, 3).unwrap(), 0..0, "shorter than that already");
    assert_eq!(table.set_row(1, &ids(&[5, 1])).unwrap(), 5..6);
    let full = table.append(1, &ids(&[1, 2, 3])).unwrap_err();
    assert_eq!(
        full,
        TableError::TooSmall { array: "a row of the block table", room: 4, needed: 5 }
    );
    assert_eq!(table.append(2, &[]), Err(TableError::NoRow { row: 2, rows: 2 }));
    let large = BlockId(1 << 31);
    assert_eq!(table.set_row(0, &[BlockId(1), large]), Err(TableError::TooLarge { block: large }));
    assert_eq!(array, [0, 0, 0, 0, 5, 1, 0, 0, 0, 0]);
    assert_eq!(array.as_ptr(), at);
    assert!(matches!(BlockTable::new(&mut array, 0, 0), Err(TableError::BadWidth { .. })));
    let wide = BlockTable::new(&mut array, 11, 0).unwrap_err();
    assert_eq!(wide, TableError::BadWidth { width: 11, room: 10 });
}

#[test]
fn slots_of_new_tokens() {
    let blocks = ids(&[7, 2]);
    let new = |tokens| NewTokens { blocks: &blocks, tokens };
    let mut slots = [5; 4];
    assert_eq!(fill_slots(&geometry(), &[new(3..5), new(0..1)], &mut slots), Ok(3));
    assert_eq!(slots, [31, 8, 28, NO_SLOT]);
    let before = slots;
    let few = fill_slots(&geometry(), &[new(0..1), new(7..9)], &mut slots).unwrap_err();
    assert_eq!(few, TableError::TooFewBlocks { sequence: 1, blocks: 2, tokens: 9, needed: 3 });
    let small = fill_slots(&geometry(), &[new(0..5)], &mut slots).unwrap_err();
    assert_eq!(small, TableError::TooSmall { array: "the slot mapping", room: 4, needed: 5 });
    assert_eq!(slots, before);
    assert_eq!(fill_slots(&geometry(), &[], &mut slots), Ok(0));
    assert_eq!(slots, [NO_SLOT; 4]);
}

proptest! {
    /// After any history of updates the table decodes to the sequences, and a copy that only followed the
    /// reported changes is the same.
    #[test]
    fn csr_decodes_and_its_changes_suffice(
        history in vec((any::<usize>(), vec((vec(0..100_u32, 0..6), any::<u64>()), 0..5)), 1..6),
    ) {
        let mut arrays = Arrays::new(8, 64);
        let mut copy = Arrays::new(8, 64);
        let mut model: Vec<(Vec<BlockId>, u64)> = Vec::new();
        copy.table().fill(&[]).unwrap();
        let mut table = arrays.table();
        let mut changes = Vec::new();
        for (from, tail) in history {
            let from = from % (model.len() + 1);
            let tail: Vec<_> = tail.into_iter()
                .map(|(blocks, tokens)| (ids(&blocks), tokens % (blocks.len() as u64 * 4 + 1)))
                .collect();
            let sequences: Vec<_> = tail.iter().map(|(blocks, tokens)| sequence(blocks, *tokens)).collect();
            let fits = from + tail.len() <= 8;
            match table.update(from, &sequences) {
                Ok(change) => {
                    prop_assert!(fits);
                    let CsrTable { indptr, indices, last_page_len, .. } = &table;
                    copy.indptr[change.indptr.clone()].copy_from_slice(&indptr[change.indptr.clone()]);
                    copy.indices[change.indices.clone()].copy_from_slice(&indices[change.indices.clone()]);
                    copy.last[change.last_page_len.clone()]
                        .copy_from_slice(&last_page_len[change.last_page_len.clone()]);
                    model.truncate(from);
                    model.extend(tail);
                    changes.push(change);
                }
                Err(_) => prop_assert!(!fits),
            }
        }
        prop_assert_eq!(&copy.indptr, &arrays.indptr);
        prop_assert_eq!(&copy.indices, &arrays.indices);
        prop_assert_eq!(&copy.last, &arrays.last);
        for place in 0..8 {
            let (blocks, tokens) = model.get(place).cloned().unwrap_or_default();
            let pages = tokens.div_ceil(4) as usize;
            prop_assert_eq!(arrays.decode(place), (blocks[..pages].to_vec(), tokens));
        }
    }
}
