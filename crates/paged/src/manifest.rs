//! What a suspended sequence consists of, as bytes in a store, and the ticket that names them.
//!
//! ```text
//! manifest    little-endian
//!   0     4        8           24            40       44             48       56        64      68     72    76
//!   ├magic┼version─┼ identity ─┼ names' key ─┼ tenant ┼ block tokens ┼ tokens ┼ written ┼ named ┼ rest ┼ own ┤
//!   76     80        88            96
//!   ├ kept ┼ dropped ┼ extra bytes ┤
//!   named x 16: names of blocks     rest x 4: tokens after the last full block     own x 16: digests of own blocks
//!   kept x 4: positions, if tokens were dropped      extras of the rest, each  token:8 length:4 bytes
//! ticket      the first 128 bits of BLAKE3(manifest)
//! ```
//!
//! `written` is the number of tokens whose KV is in place. The ticket is a hash of the manifest and the manifest
//! holds hashes of the own blocks, so a ticket names one state of one sequence: two engines cannot overwrite each
//! other, and bytes are verified on the way back. Names of blocks say all that is known of the tokens before the
//! last full block: a [`crate::Sequence`] does not keep those either.
//!
//! What must stay true: whatever the bytes are, a [`Manifest`] that exists adds up.

use crate::error::CacheError;
use crate::hash::{BlockHash, Extra};
use crate::positions::Positions;
use std::fmt;
use std::str::FromStr;

const MAGIC: &[u8; 4] = b"MCPS";
const VERSION: u32 = 3;
const HEAD_BYTES: usize = 96;
/// Bytes of an extra before its own: token and length.
const EXTRA_HEAD_BYTES: u64 = 12;

/// Names a suspended sequence, in any process. As text it has 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket([u8; 16]);

impl Ticket {
    pub(crate) fn of(manifest: &[u8]) -> Self {
        Self(digest("mooncrate paged ticket v1", &[manifest]))
    }

    pub(crate) const fn bytes(&self) -> [u8; 16] {
        self.0
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
    /// A sequence of another model, shard, geometry, adapter, salt or tenant.
    #[error("the sequence belongs to another model, shard, geometry, adapter, salt or tenant")]
    Foreign,
    /// The cache refused.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// What a suspended sequence consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) identity: [u8; 16],
    /// [`crate::Identity::fingerprint`], which names adapter and salt too; `None` for a sequence without names.
    pub(crate) fingerprint: Option<BlockHash>,
    pub(crate) tenant: u32,
    pub(crate) block_tokens: u32,
    pub(crate) tokens: u64,
    pub(crate) written: u64,
    pub(crate) names: Vec<BlockHash>,
    pub(crate) rest: Vec<u32>,
    pub(crate) own: Vec<[u8; 16]>,
    pub(crate) positions: Positions,
    /// Of the tokens in `rest`, in their order.
    pub(crate) extras: Vec<Extra>,
}

impl Manifest {
    /// Blocks without names that hold KV.
    pub(crate) fn own_blocks(&self) -> usize {
        self.written.div_ceil(self.block_tokens.into()) as usize - self.names.len()
    }

    /// Tokens in place in an own block.
    pub(crate) fn own_tokens(&self, at: usize) -> u32 {
        let size = u64::from(self.block_tokens);
        (self.written - (self.names.len() + at) as u64 * size).min(size) as u32
    }

    /// The hash by which an own block with this payload is found.
    pub(crate) fn own_digest(&self, payload: &[u8]) -> [u8; 16] {
        // The tenant too: what one tenant has stored tells another one nothing.
        let tenant = self.tenant.to_le_bytes();
        digest("mooncrate paged own block v1", &[&self.identity, &tenant, payload])
    }

    /// Full blocks.
    pub(crate) fn published(&self) -> usize {
        (self.written / u64::from(self.block_tokens)) as usize
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.identity);
        bytes.extend_from_slice(&self.fingerprint.unwrap_or(BlockHash::NONE).to_bytes());
        bytes.extend_from_slice(&self.tenant.to_le_bytes());
        bytes.extend_from_slice(&self.block_tokens.to_le_bytes());
        bytes.extend_from_slice(&self.tokens.to_le_bytes());
        bytes.extend_from_slice(&self.written.to_le_bytes());
        let Positions { kept, dropped } = &self.positions;
        for count in [self.names.len(), self.rest.len(), self.own.len(), kept.len()] {
            bytes.extend_from_slice(&small(count).to_le_bytes());
        }
        bytes.extend_from_slice(&dropped.to_le_bytes());
        let extra_bytes =
            self.extras.iter().map(|extra| EXTRA_HEAD_BYTES + extra.bytes.len() as u64);
        bytes.extend_from_slice(&extra_bytes.sum::<u64>().to_le_bytes());
        bytes.extend(self.names.iter().flat_map(|name| name.to_bytes()));
        bytes.extend(self.rest.iter().flat_map(|token| token.to_le_bytes()));
        bytes.extend(self.own.iter().flatten());
        bytes.extend(kept.iter().flat_map(|position| position.to_le_bytes()));
        for extra in &self.extras {
            bytes.extend_from_slice(&extra.token.to_le_bytes());
            bytes.extend_from_slice(&small(extra.bytes.len()).to_le_bytes());
            bytes.extend_from_slice(&extra.bytes);
        }
        bytes
    }

    /// Bytes that a ticket names were written by this code: what does not fit is a version to come.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, ResumeError> {
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
        let mut counts = [0; 4];
        for count in &mut counts {
            *count = u64::from(u32::from_le_bytes(front(&mut rest)?));
        }
        let dropped = u64::from_le_bytes(front(&mut rest)?);
        let extra_bytes = u64::from_le_bytes(front(&mut rest)?);
        // Before anything is allocated by these numbers.
        let sizes = [16, 4, 16, 4];
        let needed: u64 = counts.iter().zip(sizes).map(|(count, size)| count * size).sum();
        if needed.checked_add(extra_bytes) != Some(rest.len() as u64) {
            return Err(ResumeError::Damaged);
        }
        let (names, rest) = rest.split_at(counts[0] as usize * 16);
        let (tail, rest) = rest.split_at(counts[1] as usize * 4);
        let (own, rest) = rest.split_at(counts[2] as usize * 16);
        let (kept, rest) = rest.split_at(counts[3] as usize * 4);
        let numbers = |bytes: &[u8]| -> Vec<u32> {
            bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()
        };
        let manifest = Self {
            identity,
            fingerprint: Some(fingerprint).filter(|name| *name != BlockHash::NONE),
            tenant,
            block_tokens,
            tokens,
            written,
            names: names.as_chunks().0.iter().copied().map(BlockHash::from_bytes).collect(),
            rest: numbers(tail),
            own: own.as_chunks().0.to_vec(),
            positions: Positions { kept: numbers(kept), dropped },
            extras: read_extras(rest)?,
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
            && self.positions.fit(self.tokens)
            && self.extras.is_sorted()
            && self.extras.iter().all(|extra| (full * size..self.tokens).contains(&extra.token))
            && match self.fingerprint {
                // Tokens of which some were dropped are no prefix, so no block after them has a name.
                Some(_) => {
                    self.positions.dropped == 0
                        && full == self.written / size
                        && self.rest.len() as u64 == self.tokens - full * size
                }
                None => self.rest.is_empty() && self.extras.is_empty(),
            };
        if agree { Ok(self) } else { Err(ResumeError::Damaged) }
    }
}

fn read_extras(mut bytes: &[u8]) -> Result<Vec<Extra>, ResumeError> {
    let mut extras = Vec::new();
    while !bytes.is_empty() {
        let token = u64::from_le_bytes(front(&mut bytes)?);
        let len = u32::from_le_bytes(front(&mut bytes)?) as usize;
        let (own, after) = bytes.split_at_checked(len).ok_or(ResumeError::Damaged)?;
        extras.push(Extra::new(token, own));
        bytes = after;
    }
    Ok(extras)
}

fn small(count: usize) -> u32 {
    u32::try_from(count).expect("a sequence has less than 2^31 tokens, an extra less bytes")
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
        Admission, ArenaShape, AttentionSpec, Cache, CacheConfig, DType, Geometry, HostArena,
        Layout, Pages, Prompt,
    };
    use std::sync::Arc;

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
        let extras = vec![Extra::new(9, b"image"), Extra::new(2, b"old"), Extra::new(9, b"")];
        let how = Admission { extras, ..Admission::default() };
        cache.allocate("a", Prompt::Tokens(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]), &how).unwrap();
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
        assert_eq!(parsed.extras, [Extra::new(9, b""), Extra::new(9, b"image")]);
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
        newer[4] = 4;
        assert!(matches!(resume(&newer), Err(ResumeError::Version { found: 4 })));
        // Every number of the head, one bit after the other; the names and tokens behind it are free.
        for bit in 0..HEAD_BYTES * 8 {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(resume(&other).is_err(), "bit {bit}");
        }
        // Of a sequence that dropped tokens. How many it dropped, and how many it has beyond those that are
        // written, is free: nothing else in the manifest says so.
        let bytes = dropped(&cache);
        assert_eq!(Manifest::parse(&bytes).unwrap().to_bytes(), bytes);
        for len in 0..bytes.len() {
            assert!(matches!(resume(&bytes[..len]), Err(ResumeError::Damaged)), "{len}");
        }
        for bit in (0..48 * 8).chain(56 * 8..80 * 8).chain(88 * 8..HEAD_BYTES * 8) {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(resume(&other).is_err(), "bit {bit}");
        }
        cache.pool().evict(u32::MAX);
        assert_eq!(cache.stats().free_blocks, 16);
    }

    /// The manifest of a sequence of ten tokens that lost four.
    fn dropped(cache: &Cache) -> Vec<u8> {
        cache.allocate_for("b", Prompt::Tokens(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10])).unwrap();
        let scores = [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0];
        cache.publish("b", 4).unwrap();
        cache.keep_important("b", &scores, 6).unwrap();
        let mut suspension = cache.suspend("b", 6).unwrap();
        assert_eq!((suspension.named().len(), suspension.own_blocks()), (1, 1));
        suspension.read_own(&mut [0; 4 * 64]).unwrap();
        let (_, _, bytes) = suspension.manifest();
        suspension.finish().unwrap();
        let parsed = Manifest::parse(&bytes).unwrap();
        assert_eq!(
            (&parsed.positions.kept[..], parsed.positions.dropped),
            (&[0, 1, 2, 3, 7, 9][..], 4)
        );
        bytes
    }
}
