//! One sequence: its tokens in blocks of a pool.
//!
//! ```text
//! tokens   0 ············ 15 | 16 ··········· 31 | 32 ····· 40
//! table    b7 (shared)       | b3 (shared)       | b9 (private)        token t: table[t / 16], slot t % 16
//!          └──── published: immutable, named ────┘ └ written by this sequence alone
//! ```
//!
//! A sequence has one owner and holds references to its blocks; the pool is shared. Blocks are published by
//! [`Sequence::publish`], once the engine says that the KV of their tokens is in place: a block that was found
//! by its name before would hold garbage. Appending needs a new block at each multiple of the block size and
//! fails only if the pool has none left, free or cached; the sequence is then as it was.
//!
//! deviates: the seed appends within a fixed allocation, and refuses token 513 of a prompt of 512 although
//! blocks are free.

use crate::BlockId;
use crate::arena::ArenaError;
use crate::hash::{BlockHash, Extra, Identity, extras_in};
use crate::kernels::{RowMove, Slot};
use crate::pool::{Full, Pool, TakeError};
use crate::positions::Positions;
use std::sync::Arc;

/// Names that are computed before the first of them is registered, so that the pool can fetch what it needs for
/// the later ones meanwhile. They lie on the stack: a call allocates nothing.
const NAMES_AT_ONCE: usize = 64;

/// What a sequence needs to know to share blocks with others by name.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    pub(crate) identity: Arc<Identity>,
    /// The name of the last published block.
    pub(crate) parent: BlockHash,
    /// Tokens after it.
    pub(crate) rest: Vec<u32>,
    /// Extras of those, in their order.
    pub(crate) extras: Vec<Extra>,
}

impl Names {
    /// Publishes the next blocks, the first of which begins with token `first`, under the names of what they hold.
    fn register(
        &mut self,
        pool: &Pool,
        blocks: &[BlockId],
        mut first: u64,
        block_tokens: usize,
        rank: u8,
    ) {
        let mut tokens = self.rest.chunks_exact(block_tokens);
        let mut names = [BlockHash::NONE; NAMES_AT_ONCE];
        for some in blocks.chunks(NAMES_AT_ONCE) {
            let names = &mut names[..some.len()];
            for name in &mut *names {
                let own = tokens.next().expect("a sequence knows the tokens of its full blocks");
                let end = first + own.len() as u64;
                let extras = extras_in(&self.extras, first..end);
                self.parent = self.identity.child(self.parent, own, extras);
                *name = self.parent;
                first = end;
            }
            // A duplicate or one without room in the index serves this sequence all the same.
            pool.register_all(some, names, rank);
        }
        self.rest.drain(..blocks.len() * block_tokens);
        let done = self.extras.partition_point(|extra| extra.token < first);
        self.extras.drain(..done);
    }
}

/// The blocks of one sequence. It must be [freed](Sequence::free): dropping it leaks its blocks.
#[derive(Debug)]
#[must_use = "the blocks stay in use until the sequence is freed"]
pub struct Sequence {
    table: Vec<BlockId>,
    tokens: u64,
    /// Blocks at the front that are published: shared, or ready to be.
    published: usize,
    block_tokens: u32,
    tenant: u32,
    /// What a policy by rank is told of its blocks.
    rank: u8,
    names: Option<Names>,
    positions: Positions,
}

/// Tokens, and what changes their KV beside their ids.
#[derive(Clone, Copy, Debug)]
pub struct Text<'a> {
    /// Their ids.
    pub tokens: &'a [u32],
    /// In the order of their tokens, which are counted from the start of the sequence.
    pub extras: &'a [Extra],
}

/// How a sequence begins.
#[derive(Clone, Debug)]
pub struct Start {
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Whose it is. Blocks that change their tenant are zeroed.
    pub tenant: u32,
    /// What a policy by rank goes by; higher stays longer.
    pub rank: u8,
    /// Whether its blocks should lie in a row where that costs nothing.
    pub contiguous: bool,
}

impl Sequence {
    /// A sequence of a prompt whose blocks can be shared. The longest prefix that is cached is used instead
    /// of new blocks, but never all of the prompt: an engine needs its last token to compute the next one.
    /// `hashes` is room for names, so that no call allocates it anew.
    pub fn of_prompt(
        pool: &Pool,
        start: &Start,
        identity: &Arc<Identity>,
        prompt: Text<'_>,
        hashes: &mut Vec<BlockHash>,
        clean: impl FnMut(&[BlockId]) -> Result<(), ArenaError>,
    ) -> Result<Self, TakeError> {
        let (size, Text { tokens, extras }) = (start.block_tokens as usize, prompt);
        check_room(pool, tokens.len() as u64, start.block_tokens)?;
        identity.chain(tokens, extras, size, hashes);
        let findable = tokens.len().saturating_sub(1) / size;
        let mut table = vec![BlockId::default(); tokens.len().div_ceil(size)];
        let matched = pool.match_prefix(&hashes[..findable.min(hashes.len())], &mut table);
        if let Err(full) = take(pool, start, &mut table[matched..], clean) {
            // No request has used them: a scheduler may retry a refused one many times a second.
            pool.put_back(&mut table[..matched]);
            return Err(full);
        }
        pool.set_rank(&table[..matched], start.rank);
        let first = (matched * size) as u64;
        let names = Names {
            identity: Arc::clone(identity),
            parent: if matched > 0 { hashes[matched - 1] } else { BlockHash::NONE },
            rest: tokens[matched * size..].to_vec(),
            extras: extras_in(extras, first..u64::MAX).to_vec(),
        };
        Ok(Self::new(table, tokens.len() as u64, matched, start, Some(names)))
    }

    /// A sequence of so many tokens that nobody names: its blocks are its own.
    pub fn of_count(
        pool: &Pool,
        start: &Start,
        tokens: u64,
        clean: impl FnMut(&[BlockId]) -> Result<(), ArenaError>,
    ) -> Result<Self, TakeError> {
        check_room(pool, tokens, start.block_tokens)?;
        let mut table =
            vec![BlockId::default(); tokens.div_ceil(start.block_tokens.into()) as usize];
        take(pool, start, &mut table, clean)?;
        Ok(Self::new(table, tokens, 0, start, None))
    }

    fn new(
        table: Vec<BlockId>,
        tokens: u64,
        published: usize,
        start: &Start,
        names: Option<Names>,
    ) -> Self {
        let Start { block_tokens, tenant, rank, .. } = *start;
        let positions = Positions::default();
        Self { table, tokens, published, block_tokens, tenant, rank, names, positions }
    }

    /// A sequence as it was before it was suspended. `names` are its identity and what comes after its last
    /// published block; `table` holds a reference to each of the first `published` blocks, the rest is private.
    pub(crate) fn restored(
        pool: &Pool,
        start: &Start,
        table: Vec<BlockId>,
        tokens: u64,
        published: usize,
        names: Option<(Arc<Identity>, Vec<u32>, Vec<Extra>)>,
        positions: Positions,
    ) -> Self {
        let names = names.map(|(identity, rest, extras)| {
            let last = published.checked_sub(1).and_then(|last| pool.hash(table[last]));
            Names { identity, parent: last.unwrap_or(BlockHash::NONE), rest, extras }
        });
        Self { positions, ..Self::new(table, tokens, published, start, names) }
    }

    /// What it needs to share blocks by name, if it can.
    pub(crate) const fn names(&self) -> Option<&Names> {
        self.names.as_ref()
    }

    /// Whose it is.
    pub(crate) const fn tenant(&self) -> u32 {
        self.tenant
    }

    /// Adds tokens whose KV is about to be written; how many blocks were added for them.
    pub fn append(
        &mut self,
        pool: &Pool,
        more: Text<'_>,
        clean: impl FnMut(&[BlockId]) -> Result<(), ArenaError>,
    ) -> Result<usize, TakeError> {
        let added = self.grow(pool, more.tokens.len() as u64, clean)?;
        if let Some(names) = &mut self.names {
            names.rest.extend_from_slice(more.tokens);
            names.extras.extend_from_slice(more.extras);
        }
        Ok(added)
    }

    /// The same for tokens that are not told: from here on the blocks of the sequence have no names.
    pub fn append_count(
        &mut self,
        pool: &Pool,
        tokens: u64,
        clean: impl FnMut(&[BlockId]) -> Result<(), ArenaError>,
    ) -> Result<usize, TakeError> {
        let added = self.grow(pool, tokens, clean)?;
        if tokens > 0 {
            self.names = None;
        }
        Ok(added)
    }

    fn grow(
        &mut self,
        pool: &Pool,
        tokens: u64,
        clean: impl FnMut(&[BlockId]) -> Result<(), ArenaError>,
    ) -> Result<usize, TakeError> {
        let before = self.table.len();
        let needed = (self.tokens + tokens).div_ceil(self.block_tokens.into()) as usize;
        if needed > before {
            check_room(pool, self.tokens + tokens, self.block_tokens)?;
            self.table.resize(needed, BlockId::default());
            if let Err(full) = pool.take(self.tenant, &mut self.table[before..], clean) {
                self.table.truncate(before);
                return Err(full);
            }
        }
        self.tokens += tokens;
        Ok(needed - before)
    }

    /// The KV of the first `written` tokens is in place: full blocks among them can be shared from now on, and
    /// found by others. How many were published.
    pub fn publish(&mut self, pool: &Pool, written: u64) -> usize {
        let full = (written.min(self.tokens) / u64::from(self.block_tokens)) as usize;
        let blocks = self.table.get(self.published..full).unwrap_or_default();
        match &mut self.names {
            Some(names) => {
                let first = self.published as u64 * u64::from(self.block_tokens);
                names.register(pool, blocks, first, self.block_tokens as usize, self.rank);
            }
            None => blocks.iter().for_each(|block| pool.publish(*block)),
        }
        let added = blocks.len();
        self.published += added;
        added
    }

    /// A second sequence with the same tokens. Published blocks are shared; `copy` is told of the others,
    /// which the new sequence has copies of.
    pub fn fork(
        &self,
        pool: &Pool,
        clean: impl FnMut(&[BlockId]) -> Result<(), ArenaError>,
        mut copy: impl FnMut(BlockId, BlockId),
    ) -> Result<Self, TakeError> {
        let mut table = self.table.clone();
        pool.take(self.tenant, &mut table[self.published..], clean)?;
        pool.share(&table[..self.published]);
        for (source, target) in self.table.iter().zip(&table).skip(self.published) {
            copy(*source, *target);
        }
        let (names, positions) = (self.names.clone(), self.positions.clone());
        Ok(Self { table, names, positions, ..*self })
    }

    /// A sequence of some tokens of this one, at least one, in ascending order. Published blocks at the front that
    /// lose no token are shared; `copy` is told of the tokens after them, which go to new private blocks. The new
    /// sequence has no names: its tokens are no prefix.
    pub fn retain(
        &self,
        pool: &Pool,
        survivors: &[u32],
        clean: impl FnMut(&[BlockId]) -> Result<(), ArenaError>,
        mut copy: impl FnMut(RowMove),
    ) -> Result<Self, TakeError> {
        let size = self.block_tokens;
        let unmoved = (0..).zip(survivors).take_while(|(at, token)| at == *token).count();
        let shared = (unmoved / size as usize).min(self.published);
        let mut table = self.table[..shared].to_vec();
        table.resize(survivors.len().div_ceil(size as usize), BlockId::default());
        pool.take(self.tenant, &mut table[shared..], clean)?;
        pool.share(&table[..shared]);
        let slot = |table: &[BlockId], token: u32| {
            Slot::new(table[(token / size) as usize], token % size, size)
        };
        for (at, token) in (0..).zip(survivors).skip(shared * size as usize) {
            copy(RowMove { source: slot(&self.table, *token), target: slot(&table, at) });
        }
        let positions = self.positions.retain(self.tokens, survivors);
        let tokens = survivors.len() as u64;
        Ok(Self { table, tokens, published: shared, names: None, positions, ..*self })
    }

    /// Gives all blocks back; those with names stay cached until their room is needed.
    pub fn free(mut self, pool: &Pool) {
        pool.abandon(&self.table[self.published..]);
        pool.release(&mut self.table[..self.published]);
    }

    /// The same for a sequence that was not admitted in the end: it counts as no request.
    pub(crate) fn undo(mut self, pool: &Pool) {
        pool.abandon(&self.table[self.published..]);
        pool.put_back(&mut self.table[..self.published]);
    }

    /// Tokens of it.
    pub const fn tokens(&self) -> u64 {
        self.tokens
    }

    /// The position of a token in the text: its index, unless tokens before it were dropped.
    pub fn position(&self, token: u64) -> u64 {
        self.positions.of(token)
    }

    /// The position that the next token will have.
    pub const fn next_position(&self) -> u64 {
        self.tokens + self.positions.dropped
    }

    /// The positions of all tokens.
    pub(crate) const fn positions(&self) -> &Positions {
        &self.positions
    }

    /// Tokens that its blocks have room for.
    pub fn capacity(&self) -> u64 {
        self.table.len() as u64 * u64::from(self.block_tokens)
    }

    /// Its blocks, in the order of its tokens.
    pub fn table(&self) -> &[BlockId] {
        &self.table
    }

    /// Blocks at the front that are published.
    pub const fn published(&self) -> usize {
        self.published
    }

    /// Tokens in those.
    pub const fn published_tokens(&self) -> u64 {
        self.published as u64 * self.block_tokens as u64
    }

    /// Tokens of a block.
    pub const fn block_tokens(&self) -> u32 {
        self.block_tokens
    }

    /// The first block and the number of blocks, if they lie in a row.
    pub fn run(&self) -> Option<(BlockId, u32)> {
        in_a_row(&self.table)
    }

    /// The same of the blocks that are not published: this sequence alone has them, and writes to them.
    pub fn own_run(&self) -> Option<(BlockId, u32)> {
        in_a_row(&self.table[self.published..])
    }
}

fn in_a_row(table: &[BlockId]) -> Option<(BlockId, u32)> {
    let first = *table.first()?;
    let in_row = |(n, block): (u32, &BlockId)| block.0 == first.0 + n;
    (0..).zip(table).all(in_row).then_some((first, table.len() as u32))
}

/// Refuses what cannot fit even into an empty pool, before memory for its table is taken.
pub(crate) fn check_room(pool: &Pool, tokens: u64, block_tokens: u32) -> Result<(), TakeError> {
    let needed = tokens.div_ceil(block_tokens.into());
    let total = pool.total_blocks();
    if needed <= total.into() {
        return Ok(());
    }
    let wanted = u32::try_from(needed).unwrap_or(u32::MAX);
    let (free, cached) = (pool.free_blocks(), pool.cached_blocks());
    Err(Full { wanted, free, cached, total }.into())
}

fn take(
    pool: &Pool,
    start: &Start,
    table: &mut [BlockId],
    clean: impl FnMut(&[BlockId]) -> Result<(), ArenaError>,
) -> Result<(), TakeError> {
    if start.contiguous {
        pool.take_run(start.tenant, table, clean)
    } else {
        pool.take(start.tenant, table, clean)
    }
}
