//! Whole sequences that leave the cache and come back, with their last block, which is not full.
//!
//! ```text
//! blocks      b0 b1 … | named: spilled under their names     b7 b8 | without names: "own" blocks, by content
//! manifest    little-endian
//!   0     4        8           24            40       44             48       56        64      68     72    76
//!   ├magic┼version─┼ identity ─┼ names' key ─┼ tenant ┼ block tokens ┼ tokens ┼ written ┼ named ┼ rest ┼ own ┤
//!   named x 16: names of blocks     rest x 4: tokens after the last full block     own x 16: digests of own blocks
//! ticket      the first 128 bits of BLAKE3(manifest)
//! ```
//!
//! `written` is the number of tokens whose KV is in place. A sequence of a prompt has one own block at most: the
//! last one, with `written % block_tokens` tokens in it. A sequence whose tokens the cache does not know has own
//! blocks only. The ticket is a hash of the manifest and the manifest holds hashes of the own blocks, so a ticket
//! names one state of one sequence: two engines cannot overwrite each other, and bytes are verified on the way
//! back. Names of blocks say all that is known of the tokens before the last full block: a [`Sequence`] does not
//! keep those either.

use crate::BlockId;
use crate::arena::ArenaError;
use crate::cache::{Admission, Admitted, Cache, CacheError, Live, Zeroing, unknown};
use crate::hash::BlockHash;
use crate::part::{Order, Part};
use crate::sequence::{Sequence, Start};
use crate::spill::{Fetch, KeyKind, PinnedBlocks, SpillKey};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

const MAGIC: &[u8; 4] = b"MCPS";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 76;

/// Names a suspended sequence, in any process. As text it has 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket([u8; 16]);

impl Ticket {
    fn of(manifest: &[u8]) -> Self {
        Self(digest("mooncrate paged ticket v1", &[manifest]))
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket({self})")
    }
}

impl FromStr for Ticket {
    type Err = ResumeError;

    fn from_str(text: &str) -> Result<Self, ResumeError> {
        let digits = text.len() == 32 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        let bits = u128::from_str_radix(text, 16).ok().filter(|_| digits);
        bits.map(|bits| Self(bits.to_be_bytes())).ok_or(ResumeError::NoTicket)
    }
}

/// Why a suspended sequence cannot come back here. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResumeError {
    /// Text that is no ticket.
    #[error("a ticket has 32 hexadecimal digits")]
    NoTicket,
    /// Bytes that are not what the ticket names.
    #[error("the bytes are not those that the ticket names; the sequence has to be computed anew")]
    Damaged,
    /// A manifest of another version of this program.
    #[error("the sequence was suspended in format {found}, this program reads format {VERSION}")]
    Version {
        /// Its version.
        found: u32,
    },
    /// A sequence of another model, geometry, adapter or tenant.
    #[error("the sequence belongs to another model, geometry, adapter or tenant")]
    Foreign,
    /// The cache refused.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// One block without a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnBlock {
    /// Its key in a store.
    pub key: SpillKey,
    /// Bytes of its payload: those of the tokens that are in place.
    pub bytes: u64,
}

/// What a suspended sequence consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Manifest {
    identity: [u8; 16],
    /// [`crate::Identity::fingerprint`], which names the adapter too; `None` for a sequence without names.
    fingerprint: Option<BlockHash>,
    tenant: u32,
    block_tokens: u32,
    tokens: u64,
    written: u64,
    names: Vec<BlockHash>,
    rest: Vec<u32>,
    own: Vec<[u8; 16]>,
}

impl Manifest {
    fn own_blocks(&self) -> usize {
        self.written.div_ceil(self.block_tokens.into()) as usize - self.names.len()
    }

    /// Tokens in place in an own block.
    fn own_tokens(&self, at: usize) -> u32 {
        let size = u64::from(self.block_tokens);
        (self.written - (self.names.len() + at) as u64 * size).min(size) as u32
    }

    fn published(&self) -> usize {
        (self.written / u64::from(self.block_tokens)) as usize
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.identity);
        bytes.extend_from_slice(&self.fingerprint.unwrap_or(BlockHash::NONE).to_bytes());
        bytes.extend_from_slice(&self.tenant.to_le_bytes());
        bytes.extend_from_slice(&self.block_tokens.to_le_bytes());
        bytes.extend_from_slice(&self.tokens.to_le_bytes());
        bytes.extend_from_slice(&self.written.to_le_bytes());
        for count in [self.names.len(), self.rest.len(), self.own.len()] {
            let count = u32::try_from(count).expect("a sequence has less than 2^31 tokens");
            bytes.extend_from_slice(&count.to_le_bytes());
        }
        bytes.extend(self.names.iter().flat_map(|name| name.to_bytes()));
        bytes.extend(self.rest.iter().flat_map(|token| token.to_le_bytes()));
        bytes.extend(self.own.iter().flatten());
        bytes
    }

    /// Bytes that a ticket names were written by this code: what does not fit is a version to come.
    fn parse(bytes: &[u8]) -> Result<Self, ResumeError> {
        let mut rest = bytes;
        let magic: [u8; 4] = front(&mut rest)?;
        let version = u32::from_le_bytes(front(&mut rest)?);
        if magic != *MAGIC {
            return Err(ResumeError::Damaged);
        }
        if version != VERSION {
            return Err(ResumeError::Version { found: version });
        }
        let identity = front(&mut rest)?;
        let fingerprint = BlockHash::from_bytes(front(&mut rest)?);
        let tenant = u32::from_le_bytes(front(&mut rest)?);
        let block_tokens = u32::from_le_bytes(front(&mut rest)?);
        let tokens = u64::from_le_bytes(front(&mut rest)?);
        let written = u64::from_le_bytes(front(&mut rest)?);
        let mut counts = [0; 3];
        for count in &mut counts {
            *count = u64::from(u32::from_le_bytes(front(&mut rest)?));
        }
        // Before anything is allocated by these numbers.
        if counts[0] * 16 + counts[1] * 4 + counts[2] * 16 != rest.len() as u64 {
            return Err(ResumeError::Damaged);
        }
        let (names, rest) = rest.split_at(counts[0] as usize * 16);
        let (tail, own) = rest.split_at(counts[1] as usize * 4);
        let token = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes);
        let manifest = Self {
            identity,
            fingerprint: Some(fingerprint).filter(|name| *name != BlockHash::NONE),
            tenant,
            block_tokens,
            tokens,
            written,
            names: names.as_chunks().0.iter().copied().map(BlockHash::from_bytes).collect(),
            rest: tail.as_chunks().0.iter().map(token).collect(),
            own: own.as_chunks().0.to_vec(),
        };
        manifest.check()
    }

    /// The numbers agree with each other.
    fn check(self) -> Result<Self, ResumeError> {
        let size = u64::from(self.block_tokens);
        let full = self.names.len() as u64;
        let agree = size > 0
            && self.written <= self.tokens
            && (1..=crate::TOKENS_MAX).contains(&self.tokens)
            && full <= self.written / size
            && self.own.len() as u64 == self.written.div_ceil(size) - full
            && match self.fingerprint {
                Some(_) => {
                    full == self.written / size
                        && self.rest.len() as u64 == self.tokens - full * size
                }
                None => self.rest.is_empty(),
            };
        if agree { Ok(self) } else { Err(ResumeError::Damaged) }
    }
}

/// A sequence that is being suspended. It stays in the cache, with all its blocks, until
/// [`Suspension::finish`]; dropping this changes nothing.
#[derive(Debug)]
pub struct Suspension {
    cache: Cache,
    id: String,
    pinned: PinnedBlocks,
    /// Blocks without names. `live` keeps them.
    own: Vec<BlockId>,
    manifest: Manifest,
    live: Arc<Live>,
}

impl Suspension {
    /// Its blocks that have names.
    pub const fn named(&self) -> &PinnedBlocks {
        &self.pinned
    }

    /// How many blocks it has besides.
    pub fn own_blocks(&self) -> usize {
        self.own.len()
    }

    /// Reads the next block without a name into the front of `target`, which has room for a block. To be called
    /// once for each.
    pub fn read_own(&mut self, target: &mut [u8]) -> Result<OwnBlock, ArenaError> {
        let at = self.manifest.own.len();
        let tokens = self.manifest.own_tokens(at);
        let bytes = own_bytes(&self.cache, tokens);
        let part = Part::block(self.own[at]).tokens(0..tokens);
        let target = &mut target[..bytes as usize];
        self.cache.arena().read(&part, Order::Tokens, target)?;
        let digest = own_digest(&self.manifest, target);
        self.manifest.own.push(digest);
        Ok(OwnBlock { key: self.cache.own_key(digest), bytes })
    }

    /// What has to be stored last, once all blocks are: the ticket, its key, and the bytes under it.
    pub fn manifest(&self) -> (Ticket, SpillKey, Vec<u8>) {
        assert_eq!(self.manifest.own.len(), self.own.len(), "all own blocks were read");
        let bytes = self.manifest.to_bytes();
        let ticket = Ticket::of(&bytes);
        (ticket, self.cache.ticket_key(&ticket), bytes)
    }

    /// Everything is stored: frees the sequence, unless it has changed meanwhile.
    pub fn finish(self) -> Result<(), CacheError> {
        let mut shard = self.cache.shared.shard(&self.id).lock();
        let same = shard.get(&*self.id).is_some_and(|live| Arc::ptr_eq(live, &self.live));
        let tokens = self.live.sequence.lock().as_ref().map(Sequence::tokens);
        if !same || tokens != Some(self.manifest.tokens) {
            return Err(CacheError::Changed { id: self.id.clone() });
        }
        let gone = shard.remove(&*self.id);
        drop(shard);
        gone.map(drop).ok_or_else(|| unknown(&self.id))
    }
}

/// A suspended sequence on its way back. Dropping it keeps blocks with names in the cache and gives the others
/// up.
#[derive(Debug)]
pub struct Resuming {
    fetch: Fetch,
    manifest: Manifest,
    /// Private blocks with the bytes of the first own blocks.
    own: Vec<BlockId>,
    how: Admission,
}

impl Resuming {
    /// Its blocks that have names, to be fetched first.
    pub fn named(&mut self) -> &mut Fetch {
        &mut self.fetch
    }

    /// The next block without a name; `None`: they are all there.
    pub fn own_wanted(&self) -> Option<OwnBlock> {
        let at = self.own.len();
        let digest = *self.manifest.own.get(at)?;
        let cache = self.fetch.cache();
        let bytes = own_bytes(cache, self.manifest.own_tokens(at));
        Some(OwnBlock { key: cache.own_key(digest), bytes })
    }

    /// Takes the bytes of that block, if they are the ones that were suspended.
    pub fn accept_own(&mut self, payload: &[u8]) -> Result<(), ResumeError> {
        let at = self.own.len();
        if own_digest(&self.manifest, payload) != self.manifest.own[at] {
            return Err(ResumeError::Damaged);
        }
        let part = |block| Part::block(block).tokens(0..self.manifest.own_tokens(at));
        let (cache, mut taken) = (self.fetch.cache(), [BlockId::default()]);
        let mut zeroing = Zeroing::new(&**cache.arena());
        let clean = |block| zeroing.zero(block);
        cache.pool().take(self.manifest.tenant, &mut taken, clean).map_err(CacheError::from)?;
        let [block] = taken;
        let arena = cache.arena();
        let written =
            zeroing.result.and_then(|()| arena.write(&part(block), Order::Tokens, payload));
        if let Err(error) = written {
            cache.pool().abandon(&taken);
            return Err(CacheError::from(error).into());
        }
        self.own.push(block);
        Ok(())
    }

    /// Tokens of the whole sequence.
    pub const fn tokens(&self) -> u64 {
        self.manifest.tokens
    }

    /// Whether all blocks have come back.
    pub fn is_whole(&self) -> bool {
        self.fetch.blocks() == self.manifest.names.len()
            && self.own.len() == self.manifest.own.len()
    }

    /// All blocks are there: the sequence goes on under this id. Its `cached_tokens` are those whose KV is in
    /// place.
    pub fn finish(mut self, id: &str) -> Result<Admitted, CacheError> {
        assert!(self.is_whole(), "all blocks have come back");
        let cache = self.fetch.cache().clone();
        let (pool, manifest) = (cache.pool(), &self.manifest);
        let blocks = manifest.tokens.div_ceil(manifest.block_tokens.into()) as usize;
        let have = self.fetch.blocks() + self.own.len();
        let mut more = vec![BlockId::default(); blocks - have];
        let mut zeroing = Zeroing::new(&**cache.arena());
        pool.take(manifest.tenant, &mut more, |block| zeroing.zero(block))?;
        let mut table = self.fetch.take_table();
        table.append(&mut self.own);
        for block in &table[manifest.names.len()..manifest.published()] {
            pool.publish(*block);
        }
        table.append(&mut more);
        let start = Start {
            block_tokens: manifest.block_tokens,
            tenant: manifest.tenant,
            rank: self.how.rank,
            contiguous: false,
        };
        let identity = || Arc::new(cache.identity(self.how.tenant, &self.how.adapter));
        let names = manifest.fingerprint.map(|_| (identity(), manifest.rest.clone()));
        let sequence =
            Sequence::restored(pool, &start, table, manifest.tokens, manifest.published(), names);
        cache.admit(id, sequence, zeroing)?;
        Ok(Admitted { blocks, cached_tokens: manifest.written })
    }
}

impl Drop for Resuming {
    fn drop(&mut self) {
        self.fetch.cache().pool().abandon(&self.own);
    }
}

impl Cache {
    /// Begins to suspend a sequence of whose tokens the first `written` have their KV in place; full blocks
    /// among them are published. Nobody may append to it until the suspension is finished or dropped.
    pub fn suspend(&self, id: &str, written: u64) -> Result<Suspension, CacheError> {
        let live = self.find(id)?;
        let mut guard = live.sequence.lock();
        let sequence = guard.as_mut().expect("a live sequence has blocks");
        sequence.publish(self.pool(), written);
        let (size, published) = (u64::from(sequence.block_tokens()), sequence.published());
        let written = written.min(sequence.tokens()).max(published as u64 * size);
        let pinned = self.pin_published(&sequence.table()[..published]);
        let names = sequence.names();
        let manifest = Manifest {
            identity: self.shared.geometry_id,
            fingerprint: names.map(|(identity, _)| identity.fingerprint()),
            tenant: sequence.tenant(),
            block_tokens: sequence.block_tokens(),
            tokens: sequence.tokens(),
            written,
            names: pinned.names().to_vec(),
            rest: names.map(|(_, rest)| rest.to_vec()).unwrap_or_default(),
            own: Vec::new(),
        };
        let first = pinned.len();
        let own = sequence.table()[first..first + manifest.own_blocks()].to_vec();
        drop(guard);
        Ok(Suspension { cache: self.clone(), id: id.to_owned(), pinned, own, manifest, live })
    }

    /// Begins to bring a suspended sequence back, from the bytes that were stored under its ticket. `how` names
    /// the tenant and the adapter that it had.
    pub fn resume(
        &self,
        ticket: &Ticket,
        manifest: &[u8],
        how: &Admission,
    ) -> Result<Resuming, ResumeError> {
        if Ticket::of(manifest) != *ticket {
            return Err(ResumeError::Damaged);
        }
        let manifest = Manifest::parse(manifest)?;
        let fingerprint = self.identity(how.tenant, &how.adapter).fingerprint();
        let ours = manifest.identity == self.shared.geometry_id
            && manifest.tenant == how.tenant
            && manifest.block_tokens == self.geometry().block_tokens()
            && manifest.fingerprint.is_none_or(|theirs| theirs == fingerprint);
        if !ours {
            return Err(ResumeError::Foreign);
        }
        let fetch = Fetch::new(self, manifest.names.clone(), how);
        Ok(Resuming { fetch, manifest, own: Vec::new(), how: how.clone() })
    }

    /// The key under which the manifest of a suspended sequence lies in a store.
    pub fn ticket_key(&self, ticket: &Ticket) -> SpillKey {
        SpillKey::new(KeyKind::Suspended, &self.shared.geometry_id, ticket.0)
    }

    fn own_key(&self, digest: [u8; 16]) -> SpillKey {
        SpillKey::new(KeyKind::Own, &self.shared.geometry_id, digest)
    }
}

fn own_bytes(cache: &Cache, tokens: u32) -> u64 {
    cache.geometry().token_bytes() * u64::from(tokens)
}

fn own_digest(manifest: &Manifest, payload: &[u8]) -> [u8; 16] {
    // The tenant too: what one tenant has stored tells another one nothing.
    let tenant = manifest.tenant.to_le_bytes();
    digest("mooncrate paged own block v1", &[&manifest.identity, &tenant, payload])
}

fn digest(context: &str, parts: &[&[u8]]) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new_derive_key(context);
    for part in parts {
        hasher.update(part);
    }
    let mut bytes = [0; 16];
    hasher.finalize_xof().fill(&mut bytes);
    bytes
}

/// Takes the first bytes off.
fn front<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], ResumeError> {
    let (first, after) = rest.split_first_chunk().ok_or(ResumeError::Damaged)?;
    *rest = after;
    Ok(*first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ArenaShape, AttentionSpec, CacheConfig, DType, Geometry, HostArena, Layout, Pages, Prompt,
    };

    fn cache() -> Cache {
        let spec = AttentionSpec {
            layers: 1,
            kv_heads: 2,
            head_dim: 4,
            block_tokens: 4,
            dtype: DType::F32,
        };
        let shape = ArenaShape::new(Geometry::attention(spec).unwrap(), Layout::Nhd, 16).unwrap();
        let arena = HostArena::anonymous(shape, 16, Pages::Small).unwrap();
        Cache::new(CacheConfig::new("test"), Arc::new(arena)).unwrap()
    }

    fn manifest(cache: &Cache) -> Vec<u8> {
        cache.allocate_for("a", Prompt::Tokens(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10])).unwrap();
        let mut suspension = cache.suspend("a", 9).unwrap();
        assert_eq!((suspension.named().len(), suspension.own_blocks()), (2, 1));
        let mut payload = vec![0; 4 * 64];
        assert_eq!(suspension.read_own(&mut payload).unwrap().bytes, 64);
        let (ticket, _, bytes) = suspension.manifest();
        assert_eq!(ticket, Ticket::of(&bytes));
        suspension.finish().unwrap();
        bytes
    }

    #[test]
    fn a_manifest_reads_back() {
        let bytes = manifest(&cache());
        let parsed = Manifest::parse(&bytes).unwrap();
        assert_eq!((parsed.tokens, parsed.written, &parsed.rest[..]), (10, 9, &[9, 10][..]));
        assert_eq!((parsed.published(), parsed.own_tokens(0)), (2, 1));
        assert_eq!(parsed.to_bytes(), bytes);
    }

    /// Whoever knows the format can make a ticket for any bytes: none of them may do harm.
    #[test]
    fn manifests_that_do_not_add_up_are_refused() {
        let cache = cache();
        let bytes = manifest(&cache);
        let resume = |bytes: &[u8]| cache.resume(&Ticket::of(bytes), bytes, &Admission::default());
        assert!(resume(&bytes).is_ok());
        for len in 0..bytes.len() {
            assert!(matches!(resume(&bytes[..len]), Err(ResumeError::Damaged)), "{len}");
        }
        assert!(matches!(resume(&[&bytes[..], b"x"].concat()), Err(ResumeError::Damaged)));
        let mut newer = bytes.clone();
        newer[4] = 2;
        assert!(matches!(resume(&newer), Err(ResumeError::Version { found: 2 })));
        // Every number of the head, one bit after the other; the names and tokens behind it are free.
        for bit in 0..HEAD_BYTES * 8 {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(resume(&other).is_err(), "bit {bit}");
        }
        cache.pool().evict(u32::MAX);
        assert_eq!(cache.stats().free_blocks, 16);
    }
}
