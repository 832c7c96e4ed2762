//! Names of full blocks: a hash of their tokens and of everything before them.
//!
//! ```text
//! root ── tokens 0..16 ──► h0 ── tokens 16..32 ──► h1 ── …      h = keyed BLAKE3(parent, tokens), 128 bits
//! ```
//!
//! Two sequences share a block exactly if they agree in all tokens up to its end and in their identity:
//! model, adapter, cache geometry and the tenant's salt, from which the key is derived. The hash is
//! collision resistant, because a block that is found by a wrong name holds wrong bytes, and tokens come
//! from strangers. Hashes are the same in every process and on every machine, so a prefix that one engine
//! has computed is found by another.

use std::fmt;

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

/// What two sequences must have in common to share blocks, apart from their tokens.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    key: [u8; 32],
}

impl Identity {
    /// The identity of a model whose cache has this geometry. `adapter` names a `LoRA` or is empty. Sequences
    /// of different `salt` share nothing: a tenant's own, if tenants must not learn what others have asked.
    pub fn new(model: &str, adapter: &str, geometry: &[u8], salt: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("mooncrate paged prefix identity v1");
        for part in [model.as_bytes(), adapter.as_bytes(), geometry, salt] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Self { key: *hasher.finalize().as_bytes() }
    }

    /// The name of the block with these tokens that follows `parent`; the first block follows
    /// [`BlockHash::NONE`].
    pub fn child(&self, parent: BlockHash, tokens: &[u32]) -> BlockHash {
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

    /// 128 bits that tell identities apart and do not give the key away.
    #[cfg(not(loom))]
    pub(crate) fn fingerprint(&self) -> BlockHash {
        self.child(BlockHash::NONE, &[])
    }

    /// The names of all full blocks of a prompt, into `hashes`, which is emptied first.
    pub fn chain(&self, tokens: &[u32], block_size: usize, hashes: &mut Vec<BlockHash>) {
        hashes.clear();
        let mut parent = BlockHash::NONE;
        for block in tokens.chunks_exact(block_size) {
            parent = self.child(parent, block);
            hashes.push(parent);
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
        Identity::new("model", "", b"geometry", b"")
    }

    #[test]
    fn a_name_depends_on_all_tokens_before_it() {
        let one = identity();
        let (mut a, mut b) = (Vec::new(), Vec::new());
        let mut tokens: Vec<u32> = (0..64).collect();
        one.chain(&tokens, 16, &mut a);
        assert_eq!(a.len(), 4);
        tokens[17] = 99;
        one.chain(&tokens, 16, &mut b);
        assert_eq!(a[0], b[0]);
        assert!((1..4).all(|n| a[n] != b[n]));
        // A block that is not full has no name.
        one.chain(&tokens[..63], 16, &mut a);
        assert_eq!(a, b[..3]);
    }

    #[test]
    fn identities_share_nothing() {
        let tokens: Vec<u32> = (0..16).collect();
        let names = [
            identity(),
            Identity::new("model2", "", b"geometry", b""),
            Identity::new("model", "lora", b"geometry", b""),
            Identity::new("model", "", b"other", b""),
            Identity::new("model", "", b"geometry", b"salt"),
            // Not to be confused with a shift of bytes from one part to the next.
            Identity::new("mode", "l", b"geometry", b""),
        ]
        .map(|identity| identity.child(BlockHash::NONE, &tokens));
        for (n, name) in names.iter().enumerate() {
            assert!(!names[..n].contains(name));
        }
    }

    /// Stores keep blocks under these names: they must not change.
    #[test]
    fn names_stay_the_same_for_ever() {
        let tokens: Vec<u32> = (0..16).collect();
        let name = identity().child(BlockHash::NONE, &tokens);
        assert_eq!(format!("{name:?}"), "55133e90357c5aba1bc48d0ee83ab182");
        let long: Vec<u32> = (0..1_000).collect();
        let mut bytes = vec![0; 16];
        bytes.extend(long.iter().flat_map(|token| token.to_le_bytes()));
        let whole = BlockHash::of(&blake3::keyed_hash(&identity().key, &bytes));
        assert_eq!(identity().child(BlockHash::NONE, &long), whole);
    }
}
