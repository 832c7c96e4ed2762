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
use crate::hash::{BlockHash, Identity};
use crate::live::Sequences;
use crate::part::BlockCopy;
use crate::pool::{Pool, TakeError};
use crate::sequence::{Sequence, Start};
use crate::stats::CacheTally;
use crate::{BlockId, Policy};
use mooncrate_lock::Mutex;
use std::cell::RefCell;
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
    /// The model whose KV it holds. Caches of different models share nothing.
    pub model: String,
    /// Which cached blocks go first when room is needed.
    pub policy: Policy,
    /// Whether sequences with equal prefixes share blocks.
    pub prefix_caching: bool,
}

impl CacheConfig {
    /// A cache of this model that shares prefixes and evicts what was not used for the longest time.
    pub fn new(model: &str) -> Self {
        Self { model: model.to_owned(), policy: Policy::Lru, prefix_caching: true }
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
    /// What a policy by rank goes by; higher stays longer.
    pub rank: u8,
    /// Whether the blocks should lie in a row where that costs nothing.
    pub contiguous: bool,
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
    /// Geometry and model, without the layout: names of blocks mean the same in every layout.
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
        let pool = Pool::new(arena.blocks(), shape.blocks(), config.policy)?;
        let id = CacheIdentity::of_tokens(shape.geometry(), &config.model);
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
                let identity = Arc::new(self.identity(how.tenant, &how.adapter));
                HASHES.with_borrow_mut(|hashes| {
                    let clean = |blocks: &[BlockId]| self.shared.arena.zero_blocks(blocks);
                    Sequence::of_prompt(&self.shared.pool, &start, &identity, tokens, hashes, clean)
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
                forked.free(&self.shared.pool);
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
        self.change(id, tokens.len() as u64, |sequence| {
            sequence
                .append(&self.shared.pool, tokens, |blocks| self.shared.arena.zero_blocks(blocks))
        })
    }

    /// The same for tokens that the cache does not know; the sequence is not shared from here on.
    pub fn append_count(&self, id: &str, tokens: u64) -> Result<usize, CacheError> {
        self.change(id, tokens, |sequence| {
            sequence.append_count(&self.shared.pool, tokens, |blocks| {
                self.shared.arena.zero_blocks(blocks)
            })
        })
    }

    fn change(
        &self,
        id: &str,
        tokens: u64,
        work: impl FnOnce(&mut Sequence) -> Result<usize, TakeError>,
    ) -> Result<usize, CacheError> {
        self.with(id, |sequence| {
            check_tokens(sequence.next_position().saturating_add(tokens))?;
            Ok(work(sequence)?)
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
        let before = pool.total_blocks();
        pool.resize(blocks)?;
        if let Err(error) = arena.resize(blocks) {
            // A view of a block that was freed a moment ago: the memory is still there.
            pool.resize(before)?;
            return Err(error.into());
        }
        Ok(())
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

    /// What sequences of this tenant and adapter must have in common to share blocks.
    pub fn identity(&self, tenant: u32, adapter: &str) -> Identity {
        let Shared { config, geometry_id, .. } = &*self.shared;
        Identity::new(&config.model, adapter, geometry_id, &tenant.to_le_bytes())
    }
}

fn check_tokens(tokens: u64) -> Result<(), CacheError> {
    match tokens {
        0 => Err(CacheError::NoTokens),
        _ if tokens > TOKENS_MAX => Err(CacheError::TooManyTokens { tokens }),
        _ => Ok(()),
    }
}
