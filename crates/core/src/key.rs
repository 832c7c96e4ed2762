//! Keys: 1 to 8,192 bytes that name a value. Hashed for speed, compared in full for identity.

use crate::ids::TenantId;
use crate::limits::KEY_BYTES_MAX;
use std::fmt;

/// The full identity of an object: a key means nothing without its tenant. Tenants cannot name each
/// other's objects, and equal keys of two tenants have unrelated hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name<'a> {
    /// Whose.
    pub tenant: TenantId,
    /// Which.
    pub key: &'a [u8],
}

impl<'a> Name<'a> {
    /// A key of a tenant.
    pub const fn new(tenant: TenantId, key: &'a [u8]) -> Self {
        Self { tenant, key }
    }

    /// The routing hash, salted by the tenant.
    pub fn hash(self) -> KeyHash {
        KeyHash(xxhash_rust::xxh64::xxh64(self.key, self.tenant.0.into()))
    }
}

/// A key of the default tenant.
impl<'a> From<&'a [u8]> for Name<'a> {
    fn from(key: &'a [u8]) -> Self {
        Self::new(TenantId::DEFAULT, key)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Name<'a> {
    fn from(key: &'a [u8; N]) -> Self {
        Self::new(TenantId::DEFAULT, key)
    }
}

impl<'a> From<&'a Vec<u8>> for Name<'a> {
    fn from(key: &'a Vec<u8>) -> Self {
        Self::new(TenantId::DEFAULT, key)
    }
}

/// 64-bit hash of a key (xxh64): it routes and indexes, it never identifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash(pub u64);

/// 128-bit fingerprint of a key (xxh3), for headers that cannot hold the whole key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub u128);

/// A valid key. Not always text: tools print it escaped.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Box<[u8]>);

/// Why some bytes are not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// No bytes at all.
    #[error("the key is empty; a key has 1 to {KEY_BYTES_MAX} bytes")]
    Empty,
    /// More bytes than a key may have.
    #[error(
        "the key has {bytes} bytes; a key has 1 to {KEY_BYTES_MAX} bytes, so hash longer names"
    )]
    TooLong {
        /// How many it had.
        bytes: usize,
    },
}

impl Key {
    /// Checks the length and takes a copy.
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<Self, KeyError> {
        let bytes = bytes.as_ref();
        check(bytes)?;
        Ok(Self(bytes.into()))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The routing hash.
    pub fn hash(&self) -> KeyHash {
        hash(&self.0)
    }

    /// The identity in a header.
    pub fn fingerprint(&self) -> Fingerprint {
        fingerprint(&self.0)
    }
}

/// Whether these bytes may be a key.
pub const fn check(bytes: &[u8]) -> Result<(), KeyError> {
    if bytes.is_empty() {
        Err(KeyError::Empty)
    } else if bytes.len() > KEY_BYTES_MAX {
        Err(KeyError::TooLong { bytes: bytes.len() })
    } else {
        Ok(())
    }
}

/// The routing hash of key bytes.
pub fn hash(bytes: &[u8]) -> KeyHash {
    KeyHash(xxhash_rust::xxh64::xxh64(bytes, 0))
}

/// The fingerprint of key bytes.
pub fn fingerprint(bytes: &[u8]) -> Fingerprint {
    Fingerprint(xxhash_rust::xxh3::xxh3_128(bytes))
}

/// Shows key bytes: text as it is, everything else escaped.
pub fn show(bytes: &[u8]) -> impl fmt::Display + '_ {
    crate::shown::shown_bytes(bytes)
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(&self.0).fmt(f)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

impl From<Key> for Box<[u8]> {
    fn from(key: Key) -> Self {
        key.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_1_to_8192_bytes() {
        assert_eq!(Key::new(b"").unwrap_err(), KeyError::Empty);
        assert!(Key::new(vec![7; 8192]).is_ok());
        assert_eq!(Key::new(vec![7; 8193]).unwrap_err(), KeyError::TooLong { bytes: 8193 });
    }

    #[test]
    fn keys_that_are_not_text_are_shown_escaped() {
        assert_eq!(Key::new(b"a\xff\n\\b\xc3\xa9").unwrap().to_string(), "a\\xff\\n\\\\b\u{e9}");
    }

    /// The hashes are part of the header format: they may never change.
    #[test]
    fn hashes_are_pinned() {
        let key = Key::new("mooncrate").unwrap();
        assert_eq!(key.hash().0, 0xeba0_4d88_e48e_616a, "xxh64");
        assert_eq!(key.fingerprint().0, 0x769d_f062_00b2_3265_12e3_9508_35d4_7502, "xxh3");
    }
}
