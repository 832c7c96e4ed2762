//! The logical half: named sequences over one pool and one arena, for engines that want no more than that.
//!
//! ```
//! use mooncrate_paged::{
//!     ArenaShape, AttentionSpec, Cache, CacheConfig, DType, Geometry, HostArena, Layout, Pages,
//!     Prompt,
//! };
//! use std::sync::Arc;
//!
//! let geometry = Geometry::attention(AttentionSpec {
//!     layers: 2,
//!     kv_heads: 4,
//!     head_dim: 8,
//!     block_tokens: 16,
//!     dtype: DType::F32,
//! })?;
//! let shape = ArenaShape::new(geometry, Layout::Nhd, 64)?;
//! let arena = HostArena::anonymous(shape, 64, Pages::Small)?;
//! let cache = Cache::new(CacheConfig::new("tiny"), Arc::new(arena))?;
//!
//! let prompt: Vec<u32> = (0..512).collect();
//! let admitted = cache.allocate_for("first", Prompt::Tokens(&prompt))?;
//! assert_eq!((admitted.blocks, admitted.cached_tokens), (32, 0));
//! // … the engine computes the prompt, and then:
//! cache.publish("first", 512)?;
//! // Token 513, which has the index 512: slot 0 of a new block.
//! assert_eq!(cache.append_tokens("first", &[7])?, 1);
//! assert_eq!(cache.token_place("first")?.slot, 0);
//!
//! // The same prompt again: all but its last block is there.
//! let admitted = cache.allocate_for("second", Prompt::Tokens(&prompt))?;
//! assert_eq!(admitted.cached_tokens, 496);
//! cache.free_for("first")?;
//! cache.free_for("second")?;
//! assert_eq!(cache.stats().used_blocks, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Calls for different sequences run side by side; calls for one sequence wait for each other. A view keeps
//! the blocks of its sequence in use until it is dropped, whatever becomes of the sequence (B4).

use crate::arena::Arena;
use crate::error::CacheError;
use crate::geometry::{CacheIdentity, Geometry, TokenPlace};
use crate::hash::{BlockHash, EXTRA_BYTES_MAX, Extra, Identity};
use crate::kernels::Slot;
use crate::live::Sequences;
use crate::part::BlockCopy;
use crate::pool::Pool;
use crate::sequence::{Sequence, Start, Text};
use crate::shard::Shard;
use crate::stats::CacheTally;
use crate::{BlockId, Policy};
use mooncrate_lock::Mutex;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

/// Most tokens of one sequence: their number must fit the tables of engines.
pub const TOKENS_MAX: u64 = i32::MAX as u64;

thread_local! {
    /// Room for the names of a prompt.
    static HASHES: RefCell<Vec<BlockHash>> = const { RefCell::new(Vec::new()) };
}

/// What a cache is.
#[derive(Clone, Debug)]
pub struct CacheConfig {
    /// The model whose KV it holds, with everything that changes values: weights, revision, quantisation. Caches of
    /// different models share nothing.
    pub model: String,
    /// Which part of the model's KV it holds. `None`: not said, and then it is taken for all of it. A store that
    /// other caches of the model may use needs it said.
    pub shard: Option<Shard>,
    /// Which cached blocks go first when room is needed.
    pub policy: Policy,
    /// Whether sequences with equal prefixes share blocks.
    pub prefix_caching: bool,
}

impl CacheConfig {
    /// A cache of this model that shares prefixes and evicts what brings the fewest hits, as learned from the requests.
    pub fn new(model: &str) -> Self {
        Self { model: model.to_owned(), shard: None, policy: Policy::Density, prefix_caching: true }
    }
}

/// What a sequence begins with.
#[derive(Clone, Copy, Debug)]
pub enum Prompt<'a> {
    /// These tokens. Blocks with equal prefixes are shared.
    Tokens(&'a [u32]),
    /// So many tokens, which the cache does not know. Their blocks are not shared.
    Count(u64),
}

/// Options of [`Cache::allocate`].
#[derive(Clone, Debug, Default)]
pub struct Admission {
    /// Whose sequence it is. Tenants of different numbers share no blocks, and see no bytes of each other.
    pub tenant: u32,
    /// The name of the `LoRA` adapter; empty if there is none.
    pub adapter: String,
    /// Sequences of different salts share no blocks, and nobody who does not know the salt can find out what was
    /// asked with it.
    pub salt: Vec<u8>,
    /// What changes the KV beside token ids, in any order: hashes of images, at the first of their tokens. A token
    /// that the prompt does not have is refused.
    pub extras: Vec<Extra>,
    /// What a policy by rank goes by; higher stays longer. A block has the rank of the sequence that was admitted
    /// last among those that use it.
    pub rank: u8,
    /// Whether the blocks should lie in a row where that costs nothing.
    pub contiguous: bool,
}

/// How much of a block table a caller has copied; the default is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableMark {
    /// The number of the sequence; 0 is no one's.
    sequence: u64,
    blocks: usize,
}

impl TableMark {
    /// Blocks of the table up to here.
    pub const fn blocks(&self) -> usize {
        self.blocks
    }
}

/// A sequence that was admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Its blocks.
    pub blocks: usize,
    /// Tokens at the front whose KV is there already.
    pub cached_tokens: u64,
}

/// A KV cache in blocks. Clones are the same cache.
#[derive(Clone, Debug)]
pub struct Cache {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) pool: Pool,
    pub(crate) arena: Arc<dyn Arena>,
    pub(crate) config: CacheConfig,
    /// Geometry, model and shard, without the layout: names of blocks mean the same in every layout.
    pub(crate) geometry_id: [u8; 16],
    pub(crate) sequences: Sequences,
    pub(crate) tally: CacheTally,
    /// One call at a time changes the size of pool and arena.
    resizing: Mutex<()>,
}

impl Cache {
    /// An empty cache in this arena.
    pub fn new(config: CacheConfig, arena: Arc<dyn Arena>) -> Result<Self, CacheError> {
        let shape = arena.shape();
        let part = config.shard.unwrap_or(Shard::WHOLE);
        if !part.is_valid() {
            return Err(CacheError::BadShard { shard: part });
        }
        let pool = Pool::new(arena.blocks(), shape.blocks(), config.policy)?;
        let id = CacheIdentity::of_tokens(shape.geometry(), &config.model, &part);
        let shared = Shared {
            pool,
            geometry_id: id.bytes(),
            arena,
            config,
            sequences: Sequences::new(),
            tally: CacheTally::default(),
            resizing: Mutex::new(()),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Admits a sequence; see [`Cache::allocate`].
    pub fn allocate_for(&self, id: &str, prompt: Prompt<'_>) -> Result<Admitted, CacheError> {
        self.allocate(id, prompt, &Admission::default())
    }

    /// Admits a sequence: finds the longest prefix of it that is cached, and takes blocks for the rest.
    pub fn allocate(
        &self,
        id: &str,
        prompt: Prompt<'_>,
        how: &Admission,
    ) -> Result<Admitted, CacheError> {
        let tokens = match prompt {
            Prompt::Tokens(tokens) => tokens.len() as u64,
            Prompt::Count(count) => count,
        };
        check_tokens(tokens)?;
        let extras = sorted(&how.extras, 0..tokens)?;
        if self.shared.sequences.contains(id) {
            return Err(CacheError::Duplicate { id: id.to_owned() });
        }
        let start = Start {
            block_tokens: self.geometry().block_tokens(),
            tenant: how.tenant,
            rank: how.rank,
            contiguous: how.contiguous,
        };
        let sequence = match prompt {
            Prompt::Tokens(tokens) if self.shared.config.prefix_caching => {
                let identity = Arc::new(self.identity(how));
                let text = Text { tokens, extras: &extras };
                HASHES.with_borrow_mut(|hashes| {
                    let clean = |blocks: &[BlockId]| self.shared.arena.zero_blocks(blocks);
                    Sequence::of_prompt(&self.shared.pool, &start, &identity, text, hashes, clean)
                })
            }
            _ => Sequence::of_count(&self.shared.pool, &start, tokens, |blocks| {
                self.shared.arena.zero_blocks(blocks)
            }),
        }?;
        let admitted =
            Admitted { blocks: sequence.table().len(), cached_tokens: sequence.published_tokens() };
        let hit_blocks = sequence.published() as u64;
        self.admit(id, sequence)?;
        self.shared.tally.admitted(tokens, &admitted, hit_blocks);
        Ok(admitted)
    }

    /// A second sequence with the tokens of the first: full blocks that were published are shared, the others
    /// are copied. For beams and parallel samples.
    pub fn fork(&self, id: &str, child: &str) -> Result<(), CacheError> {
        let forked = self.with(id, |sequence| {
            let mut copies = Vec::new();
            let copy = |source, target| copies.push(BlockCopy { source, target });
            let clean = |blocks: &[BlockId]| self.shared.arena.zero_blocks(blocks);
            let forked = sequence.fork(&self.shared.pool, clean, copy)?;
            if let Err(error) = self.shared.arena.copy_blocks(&copies) {
                forked.undo(&self.shared.pool);
                return Err(CacheError::from(error));
            }
            Ok(forked)
        })??;
        let copied = forked.table().len() - forked.published();
        self.admit(child, forked)?;
        self.shared.tally.forks.one();
        self.shared.tally.copied_blocks.add(copied as u64);
        Ok(())
    }

    /// Adds a token whose KV is about to be written; how many blocks were added for it.
    pub fn append_token(&self, id: &str, token: u32) -> Result<usize, CacheError> {
        self.append_tokens(id, &[token])
    }

    /// Adds tokens whose KV is about to be written; how many blocks were added for them.
    pub fn append_tokens(&self, id: &str, tokens: &[u32]) -> Result<usize, CacheError> {
        self.append_with(id, tokens, &[])
    }

    /// The same with what changes their KV beside their ids. Extras count tokens from the start of the sequence, and
    /// name those that are appended.
    pub fn append_with(
        &self,
        id: &str,
        tokens: &[u32],
        extras: &[Extra],
    ) -> Result<usize, CacheError> {
        let more = tokens.len() as u64;
        self.with(id, |sequence| {
            check_tokens(sequence.next_position().saturating_add(more))?;
            let extras = sorted(extras, sequence.tokens()..sequence.tokens() + more)?;
            let text = Text { tokens, extras: &extras };
            let clean = |blocks: &[BlockId]| self.shared.arena.zero_blocks(blocks);
            Ok(sequence.append(&self.shared.pool, text, clean)?)
        })?
    }

    /// The same for tokens that the cache does not know; the sequence is not shared from here on.
    pub fn append_count(&self, id: &str, tokens: u64) -> Result<usize, CacheError> {
        self.with(id, |sequence| {
            check_tokens(sequence.next_position().saturating_add(tokens))?;
            let clean = |blocks: &[BlockId]| self.shared.arena.zero_blocks(blocks);
            Ok(sequence.append_count(&self.shared.pool, tokens, clean)?)
        })?
    }

    /// The engine has written the KV of the first `written` tokens: full blocks among them can be shared, and
    /// found by other sequences. How many blocks were published.
    pub fn publish(&self, id: &str, written: u64) -> Result<usize, CacheError> {
        self.with(id, |sequence| sequence.publish(&self.shared.pool, written))
    }

    /// Ends a sequence. Its blocks go back when the last view of it is dropped; those with names stay cached
    /// until their room is needed.
    pub fn free_for(&self, id: &str) -> Result<(), CacheError> {
        self.shared.sequences.remove(id).map(drop)
    }

    /// Tokens of a sequence.
    pub fn used_tokens(&self, id: &str) -> Result<u64, CacheError> {
        self.with(id, |sequence| sequence.tokens())
    }

    /// Where the last token of a sequence lies: its logical block, and its slot in it.
    pub fn token_place(&self, id: &str) -> Result<TokenPlace, CacheError> {
        let geometry = *self.geometry();
        self.with(id, |sequence| geometry.token_place(sequence.tokens() - 1))
    }

    /// Copies the block table of a sequence into `table`, which is emptied first; its tokens.
    pub fn block_table(&self, id: &str, table: &mut Vec<BlockId>) -> Result<u64, CacheError> {
        self.with(id, |sequence| {
            table.clear();
            table.extend_from_slice(sequence.table());
            sequence.tokens()
        })
    }

    /// Hands `add` the blocks that a sequence has beyond those that `mark` says the caller knows, and moves the mark
    /// to the end; where in the table they begin. That is 0 if the mark is of another sequence, or if tokens were
    /// dropped since. So a table that is kept up to date costs what is new, not what is there.
    pub fn table_since(
        &self,
        id: &str,
        mark: &mut TableMark,
        add: impl FnOnce(&[BlockId]),
    ) -> Result<usize, CacheError> {
        self.with_live(id, |live, sequence| {
            let table = sequence.table();
            let known = if mark.sequence == live.number { mark.blocks } else { 0 };
            add(&table[known..]);
            *mark = TableMark { sequence: live.number, blocks: table.len() };
            known
        })
    }

    /// Adds the slots of some tokens of a sequence, or of all, to `slots`: `block * block_tokens + slot`.
    pub fn slots(
        &self,
        id: &str,
        tokens: Option<Range<u64>>,
        slots: &mut Vec<i64>,
    ) -> Result<(), CacheError> {
        let geometry = *self.geometry();
        self.with(id, |sequence| {
            let Range { start, end } = tokens.unwrap_or(0..sequence.tokens());
            if end > sequence.tokens() || start > end {
                let (id, tokens) = (id.to_owned(), sequence.tokens());
                return Err(CacheError::Outside { id, start, end, tokens });
            }
            slots.extend((start..end).map(|token| {
                let TokenPlace { logical_block, slot } = geometry.token_place(token);
                let block = sequence.table()[logical_block as usize];
                Slot::new(block, slot, geometry.block_tokens()).0
            }));
            Ok(())
        })?
    }

    /// Changes the number of blocks while sequences use others. Cached blocks beyond the new end are evicted;
    /// blocks of sequences there keep the cache as it is.
    pub fn resize(&self, blocks: u32) -> Result<(), CacheError> {
        let _alone = self.shared.resizing.lock();
        let Shared { pool, arena, .. } = &*self.shared;
        if blocks > pool.total_blocks() {
            arena.resize(blocks)?;
            pool.resize(blocks)?;
            return Ok(());
        }
        // A view of a block that was freed a moment ago keeps the memory, and then the pool, too.
        pool.resize_with(blocks, || Ok(arena.resize(blocks)?))
    }

    /// Geometry of its blocks.
    pub fn geometry(&self) -> &Geometry {
        self.shared.arena.shape().geometry()
    }

    /// Where its bytes lie.
    pub fn arena(&self) -> &Arc<dyn Arena> {
        &self.shared.arena
    }

    /// Its blocks, for engines that manage some of them by themselves.
    pub fn pool(&self) -> &Pool {
        &self.shared.pool
    }

    /// What it was made with.
    pub fn config(&self) -> &CacheConfig {
        &self.shared.config
    }

    /// Whether the other one is a clone of this one.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// What sequences that are admitted so must have in common to share blocks, apart from tokens and extras.
    pub fn identity(&self, how: &Admission) -> Identity {
        let Shared { config, geometry_id, .. } = &*self.shared;
        Identity::new(&config.model, &how.adapter, geometry_id, how.tenant, &how.salt)
    }
}

fn check_tokens(tokens: u64) -> Result<(), CacheError> {
    match tokens {
        0 => Err(CacheError::NoTokens),
        _ if tokens > TOKENS_MAX => Err(CacheError::TooManyTokens { tokens }),
        _ => Ok(()),
    }
}

/// The extras in the order of their tokens, if all of these are among `tokens`. Of several at one token the order
/// of the caller does not count.
pub(crate) fn sorted(extras: &[Extra], tokens: Range<u64>) -> Result<Vec<Extra>, CacheError> {
    if let Some(extra) = extras.iter().find(|extra| extra.bytes.len() > EXTRA_BYTES_MAX) {
        return Err(CacheError::ExtraTooLong { token: extra.token, bytes: extra.bytes.len() });
    }
    let mut sorted = extras.to_vec();
    sorted.sort_unstable();
    match sorted.iter().find(|extra| !tokens.contains(&extra.token)) {
        Some(extra) => Err(CacheError::ExtraOutside {
            token: extra.token,
            start: tokens.start,
            end: tokens.end,
        }),
        None => Ok(sorted),
    }
}
