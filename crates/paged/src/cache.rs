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

use crate::arena::{Arena, ArenaError};
use crate::geometry::{CacheIdentity, Geometry, Half, TokenPlace};
use crate::hash::{BlockHash, Identity};
use crate::layout::ArenaShape;
use crate::part::{BlockCopy, BlockRun};
use crate::pool::{Full, Pool, TakeError};
use crate::sequence::{Sequence, Start};
use crate::view::{BlockView, View, ViewError};
use crate::{BlockId, Policy, ResizeError};
use mooncrate_lock::Mutex;
use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Write;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

/// Parts of the table of sequences; each has a lock.
const SHARDS: usize = 16;
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

/// Why a call of a cache failed. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// No sequence has this id.
    #[error("there is no sequence {id:?}; it was never allocated, or freed")]
    Unknown {
        /// The id.
        id: String,
    },
    /// A sequence has this id already.
    #[error("there is a sequence {id:?} already; free it first, or choose another id")]
    Duplicate {
        /// The id.
        id: String,
    },
    /// A sequence of no tokens.
    #[error("a sequence needs at least one token")]
    NoTokens,
    /// More tokens than fit the tables of engines.
    #[error("a sequence of {tokens} tokens is too long; at most {TOKENS_MAX} fit")]
    TooManyTokens {
        /// Tokens that it would have.
        tokens: u64,
    },
    /// No room, even after evicting what nobody uses.
    #[error(transparent)]
    Full(#[from] Full),
    /// The arena refused.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// The layout has no such view.
    #[error(transparent)]
    View(#[from] ViewError),
    /// The blocks of the sequence do not lie in a row.
    #[error("the blocks of {id:?} do not lie in a row; use its block table, or map them in a row")]
    Paged {
        /// The id.
        id: String,
    },
    /// All blocks of the sequence are published, so it has none of its own.
    #[error("all blocks of {id:?} are published and never change; append tokens, and write those")]
    NoneOwn {
        /// The id.
        id: String,
    },
    /// A write to a published block.
    #[error(
        "token {token} of {id:?} is in a published block, which never changes; write from token {own} on"
    )]
    Published {
        /// The id.
        id: String,
        /// The first token of the write.
        token: u64,
        /// The first token that may be written.
        own: u64,
    },
    /// Tokens that the sequence does not have.
    #[error("tokens {start} to {end} of {id:?} were asked for, it has {tokens}; append them first")]
    Outside {
        /// The id.
        id: String,
        /// The first token asked for.
        start: u64,
        /// The token after the last one.
        end: u64,
        /// Tokens that there are.
        tokens: u64,
    },
    /// The sequence got tokens, or was freed, while it was being suspended.
    #[error("the sequence {id:?} changed while it was suspended, and goes on; suspend it again")]
    Changed {
        /// The id.
        id: String,
    },
    /// The cache did not change its size.
    #[error(transparent)]
    Resize(#[from] ResizeError),
}

impl From<TakeError> for CacheError {
    fn from(error: TakeError) -> Self {
        match error {
            TakeError::Full(full) => Self::Full(full),
            TakeError::Arena(error) => Self::Arena(error),
        }
    }
}

/// How full a cache is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheStats {
    /// Sequences in it.
    pub sequences: usize,
    /// Blocks there are.
    pub total_blocks: u32,
    /// Blocks that hold nothing.
    pub free_blocks: u32,
    /// Blocks that nobody uses, kept for their names.
    pub cached_blocks: u32,
    /// Blocks of sequences; one that several share counts once.
    pub used_blocks: u32,
    /// Blocks that were evicted so far.
    pub evicted_blocks: u64,
    /// Bytes of a block, keys and values.
    pub block_bytes: u64,
}

impl CacheStats {
    /// Whether no sequence can get a block.
    pub const fn is_full(&self) -> bool {
        self.free_blocks == 0 && self.cached_blocks == 0
    }
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
    shards: [Mutex<HashMap<Box<str>, Arc<Live>>>; SHARDS],
    hasher: RandomState,
    /// One call at a time changes the size of pool and arena.
    resizing: Mutex<()>,
}

/// A sequence in the cache. Its blocks go back when the last one who uses it is done.
#[derive(Debug)]
pub(crate) struct Live {
    cache: Arc<Shared>,
    pub(crate) sequence: Mutex<Option<Sequence>>,
}

impl Live {
    fn with<T>(&self, work: impl FnOnce(&mut Sequence) -> T) -> T {
        work(self.sequence.lock().as_mut().expect("a live sequence has blocks"))
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if let Some(sequence) = self.sequence.get_mut().take() {
            sequence.free(&self.cache.pool);
        }
    }
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
            shards: std::array::from_fn(|_| Mutex::new(HashMap::new())),
            hasher: RandomState::new(),
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
        if self.shared.shard(id).lock().contains_key(id) {
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
        self.admit(id, sequence)?;
        Ok(admitted)
    }

    /// A second sequence with the tokens of the first: full blocks that were published are shared, the others
    /// are copied. For beams and parallel samples.
    pub fn fork(&self, id: &str, child: &str) -> Result<(), CacheError> {
        let live = self.find(id)?;
        let guard = live.sequence.lock();
        let sequence = guard.as_ref().expect("a live sequence has blocks");
        let mut copies = Vec::new();
        let copy = |source, target| copies.push(BlockCopy { source, target });
        let forked = sequence.fork(
            &self.shared.pool,
            |blocks| self.shared.arena.zero_blocks(blocks),
            copy,
        )?;
        if let Err(error) = self.shared.arena.copy_blocks(&copies) {
            forked.free(&self.shared.pool);
            return Err(error.into());
        }
        drop(guard);
        self.admit(child, forked)
    }

    /// Puts a sequence into the table, or gives its blocks back.
    pub(crate) fn admit(&self, id: &str, sequence: Sequence) -> Result<(), CacheError> {
        let live = Live { cache: Arc::clone(&self.shared), sequence: Mutex::new(Some(sequence)) };
        // An error drops `live`, and that frees the blocks.
        match self.shared.shard(id).lock().entry(id.into()) {
            Entry::Vacant(place) => {
                place.insert(Arc::new(live));
                Ok(())
            }
            Entry::Occupied(_) => Err(CacheError::Duplicate { id: id.to_owned() }),
        }
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
        let live = self.find(id)?;
        let mut guard = live.sequence.lock();
        let sequence = guard.as_mut().expect("a live sequence has blocks");
        check_tokens(sequence.tokens().saturating_add(tokens))?;
        Ok(work(sequence)?)
    }

    /// The engine has written the KV of the first `written` tokens: full blocks among them can be shared, and
    /// found by other sequences. How many blocks were published.
    pub fn publish(&self, id: &str, written: u64) -> Result<usize, CacheError> {
        self.with(id, |sequence| sequence.publish(&self.shared.pool, written))
    }

    /// Ends a sequence. Its blocks go back when the last view of it is dropped; those with names stay cached
    /// until their room is needed.
    pub fn free_for(&self, id: &str) -> Result<(), CacheError> {
        let gone = self.shared.shard(id).lock().remove(id);
        gone.map(drop).ok_or_else(|| unknown(id))
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

    /// A view `[heads, blocks, block tokens, dim]` of a sequence whose blocks lie in a row.
    pub fn blocks_view(
        &self,
        id: &str,
        layer: u32,
        half: Half,
    ) -> Result<SequenceView, CacheError> {
        self.view(id, |shape, run, _| shape.blocks_view(run, layer, half))
    }

    /// A view `[heads, tokens, dim]` of a sequence whose blocks lie in a row, where the layout has one.
    pub fn tokens_view(
        &self,
        id: &str,
        layer: u32,
        half: Half,
    ) -> Result<SequenceView, CacheError> {
        self.view(id, |shape, run, tokens| shape.tokens_view(run, tokens, layer, half))
    }

    /// The same two of the blocks that are not published, as far as those lie in a row: what this sequence
    /// alone has, and may write to. Their first token is the first one after the published blocks.
    pub fn own_blocks_view(
        &self,
        id: &str,
        layer: u32,
        half: Half,
    ) -> Result<SequenceView, CacheError> {
        self.own_view(id, |shape, run, _| shape.blocks_view(run, layer, half))
    }

    /// See [`Cache::own_blocks_view`].
    pub fn own_tokens_view(
        &self,
        id: &str,
        layer: u32,
        half: Half,
    ) -> Result<SequenceView, CacheError> {
        self.own_view(id, |shape, run, tokens| shape.tokens_view(run, tokens, layer, half))
    }

    fn view(&self, id: &str, make: impl MakeView) -> Result<SequenceView, CacheError> {
        let live = self.find(id)?;
        let (run, tokens) = live.with(|sequence| (sequence.run(), sequence.tokens()));
        self.view_of(live, id, run, tokens, make)
    }

    fn own_view(&self, id: &str, make: impl MakeView) -> Result<SequenceView, CacheError> {
        let live = self.find(id)?;
        let (run, tokens, has_own) = live.with(|sequence| {
            let tokens = sequence.tokens() - sequence.published_tokens();
            (sequence.own_run(), tokens, sequence.published() < sequence.table().len())
        });
        if !has_own {
            return Err(CacheError::NoneOwn { id: id.to_owned() });
        }
        self.view_of(live, id, run, tokens, make)
    }

    fn view_of(
        &self,
        live: Arc<Live>,
        id: &str,
        run: Option<(BlockId, u32)>,
        tokens: u64,
        make: impl MakeView,
    ) -> Result<SequenceView, CacheError> {
        let (first, count) = run.ok_or_else(|| CacheError::Paged { id: id.to_owned() })?;
        let view = make(self.shared.arena.shape(), BlockRun { first, count }, tokens)?;
        Ok(SequenceView { live, view })
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

    /// How full it is.
    pub fn stats(&self) -> CacheStats {
        let pool = &self.shared.pool;
        let (total, free, cached) = (pool.total_blocks(), pool.free_blocks(), pool.cached_blocks());
        CacheStats {
            sequences: self.shared.shards.iter().map(|shard| shard.lock().len()).sum(),
            total_blocks: total,
            free_blocks: free,
            cached_blocks: cached,
            used_blocks: total.saturating_sub(free).saturating_sub(cached),
            evicted_blocks: pool.evicted_blocks(),
            block_bytes: self.geometry().block_bytes(),
        }
    }

    /// The cache in words, one line for each sequence.
    pub fn dump(&self) -> String {
        let (geometry, stats) = (self.geometry(), self.stats());
        // Hundredths of a MiB, rounded, in integers. An arena has at most 2^46 bytes, so nothing overflows.
        let mib = |blocks: u32| {
            let bytes = u64::from(blocks) * stats.block_bytes;
            let hundredths = (bytes * 100 + (1 << 19)) >> 20;
            format!("{}.{:02}", hundredths / 100, hundredths % 100)
        };
        let mut text = format!(
            "=== KV cache of {} ===\n\
             Configuration:\n  Layers: {}, KV heads: {}, Head dim: {}\n  Block: {} tokens, {} bytes (K and V), {} blocks\n\n\
             Allocation:\n  Sequences: {}\n  Used: {} MiB\n  Cached: {} MiB\n  Free: {} MiB\n  Evicted so far: {} blocks\n\n\
             Sequences:\n",
            self.shared.config.model,
            geometry.layers(),
            geometry.kv_heads(),
            geometry.head_dim(),
            geometry.block_tokens(),
            stats.block_bytes,
            stats.total_blocks,
            stats.sequences,
            mib(stats.used_blocks),
            mib(stats.cached_blocks),
            mib(stats.free_blocks),
            stats.evicted_blocks,
        );
        let mut lines: Vec<String> = Vec::new();
        for shard in &self.shared.shards {
            let live: Vec<(Box<str>, Arc<Live>)> =
                shard.lock().iter().map(|(id, live)| (id.clone(), Arc::clone(live))).collect();
            for (id, live) in live {
                if let Some(sequence) = live.sequence.lock().as_ref() {
                    lines.push(format!("  {id}: {}", describe(sequence)));
                }
            }
        }
        lines.sort();
        for line in lines {
            let _ = writeln!(text, "{line}");
        }
        text
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

    pub(crate) fn with<T>(
        &self,
        id: &str,
        work: impl FnOnce(&mut Sequence) -> T,
    ) -> Result<T, CacheError> {
        Ok(self.find(id)?.with(work))
    }

    pub(crate) fn find(&self, id: &str) -> Result<Arc<Live>, CacheError> {
        let found = self.shared.shard(id).lock().get(id).cloned();
        found.ok_or_else(|| unknown(id))
    }
}

impl Shared {
    pub(crate) fn shard(&self, id: &str) -> &Mutex<HashMap<Box<str>, Arc<Live>>> {
        &self.shards[(self.hasher.hash_one(id) % SHARDS as u64) as usize]
    }
}

/// A view of a sequence. Its blocks stay while it lives, also after the sequence was freed.
#[derive(Debug)]
pub struct SequenceView {
    /// Keeps the blocks.
    live: Arc<Live>,
    view: BlockView,
}

impl SequenceView {
    /// Shape, strides and place in the arena.
    pub const fn view(&self) -> &BlockView {
        &self.view
    }

    /// The bytes, where the processor can address them; `None` for memory of a device. Until the result is
    /// dropped, the blocks of the view cannot be written.
    pub fn bind(&self) -> Result<Option<View<'_>>, ArenaError> {
        self.live.cache.arena.host().map(|host| host.view(&self.view)).transpose()
    }

    /// The arena that it is in.
    pub fn arena(&self) -> &Arc<dyn Arena> {
        &self.live.cache.arena
    }
}

/// Makes the descriptor of a run of blocks that holds so many tokens.
trait MakeView: FnOnce(&ArenaShape, BlockRun, u64) -> Result<BlockView, ViewError> {}
impl<F: FnOnce(&ArenaShape, BlockRun, u64) -> Result<BlockView, ViewError>> MakeView for F {}

fn describe(sequence: &Sequence) -> String {
    let place = match sequence.run() {
        Some((first, count)) => format!("blocks [{}, +{count}]", first.0),
        None => format!("{} blocks, paged", sequence.table().len()),
    };
    let (tokens, capacity) = (sequence.tokens(), sequence.capacity());
    format!("{tokens}/{capacity} tokens, {place}, {} published", sequence.published())
}

fn check_tokens(tokens: u64) -> Result<(), CacheError> {
    match tokens {
        0 => Err(CacheError::NoTokens),
        _ if tokens > TOKENS_MAX => Err(CacheError::TooManyTokens { tokens }),
        _ => Ok(()),
    }
}

pub(crate) fn unknown(id: &str) -> CacheError {
    CacheError::Unknown { id: id.to_owned() }
}
