//! Blocks that leave the cache and come back: their keys in a store, the pins that hold them while they are
//! read, and the admission of bytes that were fetched. Nothing here knows a store: a door carries this out.
//!
//! ```text
//! key      "paged/2/" kind:1 identity:16 name:16       identity: geometry, model and shard, without the layout
//! payload  one block in Order::Tokens, no header       Geometry::block_bytes() bytes, no other length is taken
//! ```
//!
//! A payload means the same in every layout, so engines of different layouts share. What must stay true: a
//! block is registered under a name only after all bytes of that name were written, and the blocks of one
//! prefix are admitted in order, as far as they came back. A gap ends the prefix, because a block after a gap
//! cannot be used.

use crate::BlockId;
use crate::arena::ArenaError;
use crate::cache::{Admission, Cache};
use crate::error::CacheError;
use crate::hash::BlockHash;
use crate::part::{Order, Part};
use crate::records::Registered;
use std::fmt;

const PREFIX: &[u8; 8] = b"paged/2/";
const KEY_BYTES: usize = PREFIX.len() + 1 + 16 + 16;

/// What a key of a store names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyKind {
    /// A block, by the name of its prefix.
    Block,
    /// A block without a name, which belongs to a suspended sequence; by its content.
    Own,
    /// What a suspended sequence consists of, by its content.
    Suspended,
}

/// The key of a spilled block, or of a suspended sequence, in a store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpillKey([u8; KEY_BYTES]);

impl SpillKey {
    pub(crate) fn new(kind: KeyKind, identity: &[u8; 16], name: [u8; 16]) -> Self {
        let mut bytes = [0; KEY_BYTES];
        let kind = match kind {
            KeyKind::Block => b'b',
            KeyKind::Own => b'o',
            KeyKind::Suspended => b's',
        };
        bytes[..8].copy_from_slice(PREFIX);
        bytes[8] = kind;
        bytes[9..25].copy_from_slice(identity);
        bytes[25..].copy_from_slice(&name);
        Self(bytes)
    }

    /// Its bytes.
    pub const fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SpillKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SpillKey({})", self.0.escape_ascii())
    }
}

/// Published blocks that stay in the cache while this lives: they can be read, and nothing can evict them. Dropping
/// it gives the references back, and counts as no use of the blocks: those that were cold stay cold.
#[derive(Debug)]
pub struct PinnedBlocks {
    cache: Cache,
    names: Vec<BlockHash>,
    /// One reference to each is held.
    table: Vec<BlockId>,
}

impl PinnedBlocks {
    pub(crate) fn new(cache: &Cache, names: Vec<BlockHash>, table: Vec<BlockId>) -> Self {
        debug_assert_eq!(names.len(), table.len());
        Self { cache: cache.clone(), names, table }
    }

    /// Their names; of a prefix, in its order.
    pub fn names(&self) -> &[BlockHash] {
        &self.names
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The key of one of them in a store.
    pub fn key(&self, at: usize) -> SpillKey {
        self.cache.block_key(self.names[at])
    }

    /// Copies the payload of one of them; `target` has the bytes of a block.
    pub fn read(&self, at: usize, target: &mut [u8]) -> Result<(), ArenaError> {
        self.cache.arena().read(&Part::block(self.table[at]), Order::Tokens, target)?;
        self.cache.shared.tally.spilled(target.len() as u64);
        Ok(())
    }
}

impl Drop for PinnedBlocks {
    fn drop(&mut self) {
        self.cache.pool().put_back(&mut self.table);
    }
}

/// A prefix that is being fetched: the blocks that are in the cache already, and the names of those to come.
/// Dropping it releases its blocks. They stay cached, under their names, until their room is needed.
#[derive(Debug)]
pub struct Fetch {
    cache: Cache,
    names: Vec<BlockHash>,
    /// Blocks of the first names; one reference to each is held, so that the front of the prefix cannot be
    /// evicted while its end is on the way.
    table: Vec<BlockId>,
    tenant: u32,
    rank: u8,
}

impl Fetch {
    pub(crate) fn new(cache: &Cache, names: Vec<BlockHash>, how: &Admission) -> Self {
        let mut fetch = Self {
            cache: cache.clone(),
            table: Vec::new(),
            names,
            tenant: how.tenant,
            rank: how.rank,
        };
        fetch.find();
        fetch
    }

    /// Pins what the pool has of the names after the last block.
    fn find(&mut self) {
        let (pool, have) = (self.cache.pool(), self.table.len());
        self.table.resize(self.names.len(), BlockId::default());
        let found = pool.match_prefix(&self.names[have..], &mut self.table[have..]);
        self.table.truncate(have + found);
        pool.set_rank(&self.table[have..], self.rank);
    }

    /// The next names, at most `most`, whose blocks are to be fetched. None: all blocks of the prefix are there.
    pub fn wanted(&mut self, most: usize) -> &[BlockHash] {
        self.find();
        let left = &self.names[self.table.len()..];
        let pool = self.cache.pool();
        let absent = |name: &&BlockHash| pool.count_prefix(&[**name]) == 0;
        // The first one is wanted even if it has just appeared: an empty answer means the end.
        let wanted = left.iter().skip(1).take(most.saturating_sub(1)).take_while(absent).count();
        &left[..left.len().min(1 + wanted)]
    }

    /// Admits the next block of the prefix. False: its bytes were written, and the pool did not keep the name.
    /// The prefix ends before it.
    ///
    /// An error leaves the prefix as it was: too many or too few bytes, or no room in the pool.
    pub fn accept(&mut self, payload: &[u8]) -> Result<bool, CacheError> {
        let name = self.names[self.table.len()];
        let block = self.write(payload)?;
        self.cache.shared.tally.fetched(payload.len() as u64);
        let pool = self.cache.pool();
        if pool.register(block, name, self.rank) == Registered::Named {
            self.table.push(block);
            return Ok(true);
        }
        // Another sequence published the same block meanwhile, or the index is full.
        pool.put_back(&mut [block]);
        let mut other = [BlockId::default()];
        let found = pool.match_prefix(&[name], &mut other) == 1;
        self.table.extend(other.iter().filter(|_| found));
        Ok(found)
    }

    /// A private block with these bytes.
    fn write(&self, payload: &[u8]) -> Result<BlockId, CacheError> {
        let (pool, arena) = (self.cache.pool(), self.cache.arena());
        let (part_bytes, buffer_bytes) =
            (self.cache.geometry().block_bytes(), payload.len() as u64);
        if part_bytes != buffer_bytes {
            return Err(ArenaError::WrongLength { part_bytes, buffer_bytes }.into());
        }
        let mut taken = [BlockId::default()];
        pool.take(self.tenant, &mut taken, |blocks| arena.zero_blocks(blocks))?;
        let [block] = taken;
        if let Err(error) = arena.write(&Part::block(block), Order::Tokens, payload) {
            pool.abandon(&taken);
            return Err(error.into());
        }
        Ok(block)
    }

    /// The key of a block in a store.
    pub fn key(&self, name: BlockHash) -> SpillKey {
        self.cache.block_key(name)
    }

    /// Blocks of the prefix that are in the cache.
    pub fn blocks(&self) -> usize {
        self.table.len()
    }

    /// Tokens of the prefix that are in the cache.
    pub fn tokens(&self) -> u64 {
        self.table.len() as u64 * u64::from(self.cache.geometry().block_tokens())
    }

    /// Blocks that the whole prefix has.
    pub fn blocks_in_all(&self) -> usize {
        self.names.len()
    }

    /// The cache that it is for.
    pub const fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Its blocks, with their references: the caller releases them.
    pub(crate) fn take_table(&mut self) -> Vec<BlockId> {
        std::mem::take(&mut self.table)
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        // The request is the sequence that is admitted with them.
        self.cache.pool().release_loaded(&mut self.table);
    }
}

impl Cache {
    /// The names of all full blocks of these tokens, in a sequence that is admitted so. Extras for tokens behind
    /// them name nothing.
    pub fn block_names(&self, tokens: &[u32], how: &Admission) -> Vec<BlockHash> {
        let (mut names, mut extras) = (Vec::new(), how.extras.clone());
        extras.sort_unstable();
        let block_tokens = self.geometry().block_tokens() as usize;
        self.identity(how).chain(tokens, &extras, block_tokens, &mut names);
        names
    }

    /// The key of a block in a store.
    pub fn block_key(&self, name: BlockHash) -> SpillKey {
        SpillKey::new(KeyKind::Block, &self.shared.geometry_id, name.to_bytes())
    }

    /// Pins the published blocks of a sequence, from the first on, as far as they have names.
    pub fn pin_sequence(&self, id: &str) -> Result<PinnedBlocks, CacheError> {
        self.with(id, |sequence| self.pin_published(&sequence.table()[..sequence.published()]))
    }

    /// Pins blocks to which the caller holds references, as far as they have names.
    pub(crate) fn pin_published(&self, published: &[BlockId]) -> PinnedBlocks {
        let pool = self.pool();
        let names: Vec<BlockHash> = published.iter().map_while(|block| pool.hash(*block)).collect();
        let table = published[..names.len()].to_vec();
        pool.share(&table);
        PinnedBlocks::new(self, names, table)
    }

    /// Pins the longest run of these names, from the first on, that has blocks in the cache.
    pub fn pin_names(&self, names: &[BlockHash]) -> PinnedBlocks {
        let mut table = vec![BlockId::default(); names.len()];
        let found = self.pool().match_prefix(names, &mut table);
        table.truncate(found);
        PinnedBlocks::new(self, names[..found].to_vec(), table)
    }

    /// Pins cached blocks that would be evicted next, of which `wanted` says that they are to be: at most about
    /// `most`, in the order of [`crate::Pool::ahead`]. Each call goes on where the last one ended, and at the end of that order
    /// the next one starts over.
    pub fn cold_blocks(&self, most: usize, wanted: impl FnMut(&BlockHash) -> bool) -> PinnedBlocks {
        let (mut names, mut table) = (Vec::new(), Vec::new());
        self.pool().ahead(most, &mut names);
        names.retain(wanted);
        names.retain(|name| {
            let mut block = [BlockId::default()];
            let found = self.pool().match_prefix(&[*name], &mut block) == 1;
            table.extend(block.iter().filter(|_| found));
            found
        });
        PinnedBlocks::new(self, names, table)
    }

    /// Begins to fetch the blocks of a prompt that are not in the cache. As for [`Cache::allocate`] the block of
    /// the last token is not among them. A cache that shares no prefixes wants none.
    pub fn fetch(&self, prompt: &[u32], how: &Admission) -> Fetch {
        let findable =
            if self.shared.config.prefix_caching { prompt.len().saturating_sub(1) } else { 0 };
        let names = self.block_names(&prompt[..findable], how);
        Fetch::new(self, names, how)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stores keep blocks under these keys: they must not change.
    #[test]
    fn keys_stay_the_same_for_ever() {
        let key = SpillKey::new(KeyKind::Block, &[0xab; 16], BlockHash([1, 2]).to_bytes());
        let mut expected = b"paged/2/b".to_vec();
        expected.extend([0xab; 16]);
        expected.extend([1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(key.as_bytes(), expected);
        let others = [KeyKind::Own, KeyKind::Suspended]
            .map(|kind| SpillKey::new(kind, &[0xab; 16], BlockHash([1, 2]).to_bytes()));
        assert!(others[0] != others[1] && !others.contains(&key));
    }
}
