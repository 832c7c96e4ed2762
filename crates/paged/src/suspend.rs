//! Whole sequences that leave the cache and come back, with their last block, which is not full.
//!
//! ```text
//! blocks   b0 b1 b2 b3 b4 | b5 ···        b0 to b4 have names: spilled under them, and shared with others
//!                                         b5 has none: an "own" block, spilled under a hash of its content
//! ```
//!
//! A sequence of a prompt has one own block at most: the last one, with `written % block_tokens` tokens in it. A
//! sequence whose tokens the cache does not know has own blocks only. What belongs together is in a manifest
//! ([`crate::manifest`]), which the ticket names.

use crate::BlockId;
use crate::arena::ArenaError;
use crate::cache::{Admission, Admitted, Cache};
use crate::error::CacheError;
use crate::live::Live;
use crate::manifest::{Manifest, ResumeError, Ticket};
use crate::part::{Order, Part};
use crate::sequence::{Sequence, Start, check_room};
use crate::spill::{Fetch, KeyKind, PinnedBlocks, SpillKey};
use std::sync::Arc;

/// One block without a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnBlock {
    /// Its key in a store.
    pub key: SpillKey,
    /// Bytes of its payload: those of the tokens that are in place.
    pub bytes: u64,
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
        let digest = self.manifest.own_digest(target);
        self.manifest.own.push(digest);
        self.cache.shared.tally.spilled(bytes);
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
        let tokens = self.manifest.tokens;
        self.cache.remove_same(&self.id, &self.live, |sequence| sequence.tokens() == tokens)?;
        self.cache.shared.tally.suspended_sequences.one();
        Ok(())
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
        if self.manifest.own_digest(payload) != self.manifest.own[at] {
            return Err(ResumeError::Damaged);
        }
        let part = |block| Part::block(block).tokens(0..self.manifest.own_tokens(at));
        let (cache, mut taken) = (self.fetch.cache(), [BlockId::default()]);
        let clean = |blocks: &[BlockId]| cache.arena().zero_blocks(blocks);
        cache.pool().take(self.manifest.tenant, &mut taken, clean).map_err(CacheError::from)?;
        let [block] = taken;
        if let Err(error) = cache.arena().write(&part(block), Order::Tokens, payload) {
            cache.pool().abandon(&taken);
            return Err(CacheError::from(error).into());
        }
        cache.shared.tally.fetched(payload.len() as u64);
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
        check_room(pool, manifest.tokens, manifest.block_tokens)?;
        let mut more = vec![BlockId::default(); blocks - have];
        pool.take(manifest.tenant, &mut more, |blocks| cache.arena().zero_blocks(blocks))?;
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
        let identity = || Arc::new(cache.identity(&self.how));
        let rest = || (identity(), manifest.rest.clone(), manifest.extras.clone());
        let names = manifest.fingerprint.map(|_| rest());
        let (tokens, published) = (manifest.tokens, manifest.published());
        let positions = manifest.positions.clone();
        let sequence = Sequence::restored(pool, &start, table, tokens, published, names, positions);
        cache.admit(id, sequence)?;
        cache.shared.tally.resumed_sequences.one();
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
        self.with_live(id, |live, sequence| self.suspension(id, live, sequence, written))
    }

    fn suspension(
        &self,
        id: &str,
        live: &Arc<Live>,
        sequence: &mut Sequence,
        written: u64,
    ) -> Suspension {
        sequence.publish(self.pool(), written);
        let (size, published) = (u64::from(sequence.block_tokens()), sequence.published());
        let written = written.min(sequence.tokens()).max(published as u64 * size);
        let pinned = self.pin_published(&sequence.table()[..published]);
        let names = sequence.names();
        let manifest = Manifest {
            identity: self.shared.geometry_id,
            fingerprint: names.map(|names| names.identity.fingerprint()),
            tenant: sequence.tenant(),
            block_tokens: sequence.block_tokens(),
            tokens: sequence.tokens(),
            written,
            names: pinned.names().to_vec(),
            rest: names.map(|names| names.rest.clone()).unwrap_or_default(),
            extras: names.map(|names| names.extras.clone()).unwrap_or_default(),
            own: Vec::new(),
            positions: sequence.positions().clone(),
        };
        let first = pinned.len();
        let own = sequence.table()[first..first + manifest.own_blocks()].to_vec();
        let (cache, live) = (self.clone(), Arc::clone(live));
        Suspension { cache, id: id.to_owned(), pinned, own, manifest, live }
    }

    /// Begins to bring a suspended sequence back, from the bytes that were stored under its ticket. `how` names
    /// the tenant, the adapter and the salt that it had; its extras are in the manifest.
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
        let fingerprint = self.identity(how).fingerprint();
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
        SpillKey::new(KeyKind::Suspended, &self.shared.geometry_id, ticket.bytes())
    }

    fn own_key(&self, digest: [u8; 16]) -> SpillKey {
        SpillKey::new(KeyKind::Own, &self.shared.geometry_id, digest)
    }
}

fn own_bytes(cache: &Cache, tokens: u32) -> u64 {
    cache.geometry().token_bytes() * u64::from(tokens)
}
