//! Names of full blocks: a hash of their tokens and of everything before them.
//!
//! ```text
//! root ── tokens 0..16 ──► h0 ── tokens 16..32 ──► h1 ── …      h = keyed BLAKE3(parent, tokens), 128 bits
//!                     image at 20 ──┘                          h = keyed BLAKE3(mixed, tokens)
//!                                                              mixed = BLAKE3 of parent and extras, another key
//! ```
//!
//! Two sequences share a block exactly if they agree in all tokens up to its end, in the extra bytes at those tokens
//! ([`Extra`]) and in their identity: model, shard and geometry of the cache, adapter, tenant and salt, from which
//! the keys are derived. The hash is
//! collision resistant, because a block that is found by a wrong name holds wrong bytes, and tokens come
//! from strangers. Hashes are the same in every process and on every machine, so a prefix that one engine
//! has computed is found by another.

use std::fmt;
use std::ops::Range;

/// Tokens that are hashed without a second buffer.
const TOKENS_AT_ONCE: usize = 256;

/// The name of a full block and of the chain that leads to it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct BlockHash(pub [u64; 2]);

impl BlockHash {
    /// No block has this name.
    pub const NONE: Self = Self([0, 0]);

    /// The bytes, for keys of a store.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.0[0].to_le_bytes());
        bytes[8..].copy_from_slice(&self.0[1].to_le_bytes());
        bytes
    }

    /// The name with these bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        let (low, high) = bytes.split_at(8);
        let half = |half: &[u8]| u64::from_le_bytes(half.try_into().expect("eight bytes"));
        Self([half(low), half(high)])
    }

    fn of(digest: &blake3::Hash) -> Self {
        let half = |at: usize| {
            u64::from_le_bytes(digest.as_bytes()[at..at + 8].try_into().expect("eight bytes"))
        };
        match Self([half(0), half(8)]) {
            Self::NONE => Self([1, 0]),
            hash => hash,
        }
    }
}

impl fmt::Debug for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.0[0], self.0[1])
    }
}

/// Bytes of one extra at most: hashes and short names.
pub const EXTRA_BYTES_MAX: usize = 1024;

/// Bytes that change the KV of a token and of all tokens after it, and that the token ids do not say: the hash of an
/// image whose placeholder tokens begin here. A block with such a token, and every block after it, is another one
/// with other bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extra {
    /// The token, counted from 0 in its sequence.
    pub token: u64,
    /// What to take into the name. Equal bytes at one token mean equal KV.
    pub bytes: Box<[u8]>,
}

impl Extra {
    /// These bytes at this token.
    pub fn new(token: u64, bytes: &[u8]) -> Self {
        Self { token, bytes: bytes.into() }
    }
}

/// Those of the extras, which are in the order of their tokens, that belong to one of these tokens.
pub(crate) fn extras_in(extras: &[Extra], tokens: Range<u64>) -> &[Extra] {
    let before = |end: u64| extras.partition_point(|extra| extra.token < end);
    &extras[before(tokens.start)..before(tokens.end)]
}

/// What two sequences must have in common to share blocks, apart from their tokens and extras.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    key: [u8; 32],
    /// Of the hash that takes extras in. Another one than `key`, so that no extras look like tokens.
    extra_key: [u8; 32],
}

impl Identity {
    /// The identity of a model whose cache has this geometry and shard ([`crate::CacheIdentity`]). `adapter` names a
    /// `LoRA` or is empty. Sequences of different `tenant` or `salt` share nothing.
    pub fn new(model: &str, adapter: &str, geometry: &[u8], tenant: u32, salt: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("mooncrate paged prefix identity v2");
        let tenant = tenant.to_le_bytes();
        for part in [model.as_bytes(), adapter.as_bytes(), geometry, &tenant, salt] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        let (mut keys, mut identity) =
            (hasher.finalize_xof(), Self { key: [0; 32], extra_key: [0; 32] });
        keys.fill(&mut identity.key);
        keys.fill(&mut identity.extra_key);
        identity
    }

    /// The name of the block with these tokens and extras that follows `parent`; the first block follows
    /// [`BlockHash::NONE`].
    pub fn child(&self, parent: BlockHash, tokens: &[u32], extras: &[Extra]) -> BlockHash {
        let parent = if extras.is_empty() { parent } else { self.mixed(parent, extras) };
        let mut buffer = [0; 16 + 4 * TOKENS_AT_ONCE];
        buffer[..16].copy_from_slice(&parent.to_bytes());
        let first = tokens.len().min(TOKENS_AT_ONCE);
        for (token, place) in tokens[..first].iter().zip(buffer[16..].chunks_exact_mut(4)) {
            place.copy_from_slice(&token.to_le_bytes());
        }
        if first == tokens.len() {
            return BlockHash::of(&blake3::keyed_hash(&self.key, &buffer[..16 + 4 * first]));
        }
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&buffer);
        for token in &tokens[first..] {
            hasher.update(&token.to_le_bytes());
        }
        BlockHash::of(&hasher.finalize())
    }

    /// What stands for `parent` in the name of a block with extras.
    #[cold]
    fn mixed(&self, parent: BlockHash, extras: &[Extra]) -> BlockHash {
        let mut hasher = blake3::Hasher::new_keyed(&self.extra_key);
        hasher.update(&parent.to_bytes());
        for Extra { token, bytes } in extras {
            hasher.update(&token.to_le_bytes());
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        }
        BlockHash::of(&hasher.finalize())
    }

    /// 128 bits that tell identities apart and do not give the key away.
    #[cfg(not(loom))]
    pub(crate) fn fingerprint(&self) -> BlockHash {
        self.child(BlockHash::NONE, &[], &[])
    }

    /// The names of all full blocks of a prompt, into `hashes`, which is emptied first. The extras are in the order
    /// of their tokens.
    pub fn chain(
        &self,
        tokens: &[u32],
        extras: &[Extra],
        block_size: usize,
        hashes: &mut Vec<BlockHash>,
    ) {
        hashes.clear();
        let (mut parent, mut first) = (BlockHash::NONE, 0);
        for block in tokens.chunks_exact(block_size) {
            let end = first + block.len() as u64;
            parent = self.child(parent, block, extras_in(extras, first..end));
            hashes.push(parent);
            first = end;
        }
    }
}

impl fmt::Debug for Identity {
    /// Not the key: whoever knows it can compute names of blocks.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity::new("model", "", b"geometry", 0, b"")
    }

    #[test]
    fn a_name_depends_on_all_tokens_before_it() {
        let one = identity();
        let (mut a, mut b) = (Vec::new(), Vec::new());
        let mut tokens: Vec<u32> = (0..64).collect();
        one.chain(&tokens, &[], 16, &mut a);
        assert_eq!(a.len(), 4);
        tokens[17] = 99;
        one.chain(&tokens, &[], 16, &mut b);
        assert_eq!(a[0], b[0]);
        assert!((1..4).all(|n| a[n] != b[n]));
        // A block that is not full has no name.
        one.chain(&tokens[..63], &[], 16, &mut a);
        assert_eq!(a, b[..3]);
    }

    /// Two images with the same placeholder tokens: equal names before them, others from there on.
    #[test]
    fn a_name_depends_on_all_extras_before_its_end() {
        let (one, tokens) = (identity(), [7; 64]);
        let names = |extras: &[Extra]| {
            let mut names = Vec::new();
            one.chain(&tokens, extras, 16, &mut names);
            names
        };
        let (cat, dog) = (Extra::new(20, b"cat"), Extra::new(20, b"dog"));
        let all = [
            names(&[]),
            names(std::slice::from_ref(&cat)),
            names(std::slice::from_ref(&dog)),
            names(&[Extra::new(21, b"cat")]),
            names(&[Extra::new(20, b"")]),
            // Two items at one token, in both orders, and their bytes as one item.
            names(&[cat.clone(), dog.clone()]),
            names(&[dog, cat]),
            names(&[Extra::new(20, b"catdog")]),
        ];
        for (n, one) in all.iter().enumerate() {
            for other in &all[..n] {
                assert_eq!(one[0], other[0]);
                assert!((1..4).all(|at| one[at] != other[at]));
            }
        }
        // Behind the last full block there is nothing to name.
        assert_eq!(names(&[Extra::new(64, b"cat")]), all[0]);
    }

    #[test]
    fn identities_share_nothing() {
        let tokens: Vec<u32> = (0..16).collect();
        let identities = [
            identity(),
            Identity::new("model2", "", b"geometry", 0, b""),
            Identity::new("model", "lora", b"geometry", 0, b""),
            Identity::new("model", "", b"other", 0, b""),
            Identity::new("model", "", b"geometry", 1, b""),
            Identity::new("model", "", b"geometry", 0, b"salt"),
            // Not to be confused with a shift of bytes from one part to the next.
            Identity::new("mode", "l", b"geometry", 0, b""),
        ];
        for extras in [&[][..], &[Extra::new(3, b"image")]] {
            let names =
                identities.each_ref().map(|one| one.child(BlockHash::NONE, &tokens, extras));
            for (n, name) in names.iter().enumerate() {
                assert!(!names[..n].contains(name));
            }
        }
    }

    /// Stores keep blocks under these names: they must not change.
    #[test]
    fn names_stay_the_same_for_ever() {
        let tokens: Vec<u32> = (0..16).collect();
        let name = identity().child(BlockHash::NONE, &tokens, &[]);
        assert_eq!(format!("{name:?}"), "4e2c471539a55c949db8ae5866bba69d");
        let name = identity().child(BlockHash::NONE, &tokens, &[Extra::new(3, b"image")]);
        assert_eq!(format!("{name:?}"), "34404823287b584784314d9670edb86e");
        let long: Vec<u32> = (0..1_000).collect();
        let mut bytes = vec![0; 16];
        bytes.extend(long.iter().flat_map(|token| token.to_le_bytes()));
        let whole = BlockHash::of(&blake3::keyed_hash(&identity().key, &bytes));
        assert_eq!(identity().child(BlockHash::NONE, &long, &[]), whole);
    }
}
