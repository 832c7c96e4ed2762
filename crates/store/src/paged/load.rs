//! Loading: blocks of a prefix from the store into the cache, in order, as far as they come back.

use super::{Link, Spill, SpillError};
use crate::Error;
use mooncrate_paged::{Admission, Admitted, Fetch, Resuming, SpillKey, Ticket};

/// Why a load ended where it did.
#[derive(Debug)]
#[non_exhaustive]
pub enum Ended {
    /// All blocks of the prefix are in the cache.
    Whole,
    /// The store does not have the next block.
    Missing,
    /// The caller said so.
    Cancelled,
    /// The next block came, and the index of the cache had no room for its name.
    IndexFull,
    /// The next block could not be read, was not as long as a block, or the cache has no room for it.
    Failed(SpillError),
}

/// A prefix of a prompt that is in the cache. Its blocks cannot be evicted while this lives: allocate the
/// sequence, then drop it.
#[derive(Debug)]
#[must_use = "allocate the sequence before its blocks may be evicted"]
pub struct Loaded {
    fetch: Fetch,
    /// Why it is not longer.
    pub ended: Ended,
    /// Blocks that came from the store.
    pub fetched: usize,
}

impl Loaded {
    /// Tokens at the front whose KV is in the cache.
    pub fn tokens(&self) -> u64 {
        self.fetch.tokens()
    }
}

/// What became of a suspended sequence.
#[derive(Debug)]
#[must_use]
pub enum Resumed {
    /// It goes on where it was.
    Whole(Admitted),
    /// Only a prefix of it came back. There is no sequence; allocate one with all its tokens, and compute
    /// those after the prefix again.
    Prefix {
        /// Tokens of the prefix, which is in the cache.
        cached_tokens: u64,
        /// Tokens that the sequence had.
        tokens: u64,
        /// Why it is not longer.
        ended: Ended,
    },
    /// The store has nothing under this ticket. Blocks of the sequence may still be there: allocate it with all
    /// its tokens after a [`Spill::load`] of them.
    Miss,
}

impl Spill {
    /// Brings the blocks of a prompt that are not in the cache from the store: the longest prefix that there is.
    /// As for [`mooncrate_paged::Cache::allocate`] the block of the last token is not among them.
    pub fn load(&self, prompt: &[u32], how: &Admission) -> Loaded {
        self.load_while(prompt, how, |_| true)
    }

    /// The same while `goes_on` says so. It is asked before each batch, with the tokens that are there.
    pub fn load_while(
        &self,
        prompt: &[u32],
        how: &Admission,
        goes_on: impl FnMut(u64) -> bool,
    ) -> Loaded {
        let mut fetch = self.link.cache.fetch(prompt, how);
        let mut fetched = 0;
        let ended = self.link.fetch_all(&mut fetch, goes_on, &mut fetched);
        Loaded { fetch, ended, fetched }
    }

    /// Brings a suspended sequence back under this id, which need not be the one that it had. `how` names the
    /// tenant and the adapter that it had.
    pub fn resume(
        &self,
        id: &str,
        ticket: &Ticket,
        how: &Admission,
    ) -> Result<Resumed, SpillError> {
        let link = &self.link;
        let key = link.cache.ticket_key(ticket);
        let Some(manifest) = link.store.get(key.as_bytes())? else { return Ok(Resumed::Miss) };
        let mut resuming = link.cache.resume(ticket, &manifest, how)?;
        let mut ended = link.fetch_all(resuming.named(), |_| true, &mut 0);
        if matches!(ended, Ended::Whole) {
            ended = link.fetch_own(&mut resuming);
        }
        if resuming.is_whole() {
            return Ok(Resumed::Whole(resuming.finish(id)?));
        }
        let (cached_tokens, tokens) = (resuming.named().tokens(), resuming.tokens());
        Ok(Resumed::Prefix { cached_tokens, tokens, ended })
    }
}

impl Link {
    /// Fetches batch after batch up to the first block that does not come.
    fn fetch_all(
        &self,
        fetch: &mut Fetch,
        mut goes_on: impl FnMut(u64) -> bool,
        fetched: &mut usize,
    ) -> Ended {
        loop {
            let keys: Vec<_> = {
                let names = fetch.wanted(self.batch_blocks).to_vec();
                names.into_iter().map(|name| fetch.key(name)).collect()
            };
            if keys.is_empty() {
                return Ended::Whole;
            }
            if !goes_on(fetch.tokens()) {
                return Ended::Cancelled;
            }
            let block_bytes = self.block_bytes();
            let mut buffer = match self.buffers.take(keys.len() * block_bytes) {
                Ok(buffer) => buffer,
                Err(busy) => return Ended::Failed(busy),
            };
            let targets = buffer.chunks_exact_mut(block_bytes);
            let mut items: Vec<(&[u8], &mut [u8])> =
                keys.iter().map(SpillKey::as_bytes).zip(targets).collect();
            let found = self.store.get_into_batch(&mut items);
            for (found, payload) in found.into_iter().zip(buffer.chunks_exact(block_bytes)) {
                match judge(found, block_bytes) {
                    Ok(true) => {}
                    Ok(false) => return Ended::Missing,
                    Err(error) => return Ended::Failed(error),
                }
                match fetch.accept(payload) {
                    Ok(true) => *fetched += 1,
                    Ok(false) => return Ended::IndexFull,
                    Err(error) => return Ended::Failed(error.into()),
                }
            }
        }
    }

    /// Fetches the blocks without names of a suspended sequence, one by one: as a rule there is one.
    fn fetch_own(&self, resuming: &mut Resuming) -> Ended {
        while let Some(own) = resuming.own_wanted() {
            let mut buffer = match self.buffers.take(own.bytes as usize) {
                Ok(buffer) => buffer,
                Err(busy) => return Ended::Failed(busy),
            };
            let found = self.store.get_into(own.key.as_bytes(), &mut buffer);
            match judge(found, own.bytes as usize) {
                Ok(true) => {}
                Ok(false) => return Ended::Missing,
                Err(error) => return Ended::Failed(error),
            }
            if let Err(error) = resuming.accept_own(&buffer) {
                return Ended::Failed(error.into());
            }
        }
        Ended::Whole
    }
}

/// Whether a value came, of exactly this length.
fn judge(found: Result<Option<usize>, Error>, wanted: usize) -> Result<bool, SpillError> {
    let wrong = |found| Err(SpillError::WrongLength { found, wanted: wanted as u64 });
    match found {
        Ok(None) => Ok(false),
        Ok(Some(len)) if len == wanted => Ok(true),
        Ok(Some(len)) => wrong(len as u64),
        Err(Error::Client(mooncrate_client::Error::BufferTooSmall { need, .. })) => wrong(need),
        Err(error) => Err(error.into()),
    }
}
