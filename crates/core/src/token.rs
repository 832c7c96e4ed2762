//! Tokens of puts. A token is the right to store, to end and to give up one put, so nobody may guess
//! another's: it is a keyed hash (SipHash-2-4) of the put's object id. It can be computed again, so the index
//! does not store it. The key never leaves the masters of a cluster; one without a secret draws it anew
//! for each leader.

use crate::ids::{ObjectId, PutToken};
use std::fmt;

/// What tokens are made from. Nobody else may guess it; a simulation draws it from its seed.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenKey(pub [u64; 2]);

impl fmt::Debug for TokenKey {
    /// Not in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenKey")
    }
}

impl TokenKey {
    /// The token of a put.
    pub fn token(&self, object: ObjectId) -> PutToken {
        PutToken(sip(self.0, &[object.epoch.0, object.sequence], 16))
    }
}

/// SipHash-2-4 of whole words, `bytes` in all.
fn sip(key: [u64; 2], words: &[u64], bytes: u64) -> u64 {
    let mut v = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    for word in words.iter().chain([&(bytes << 56)]) {
        v[3] ^= word;
        round(&mut v);
        round(&mut v);
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    for _ in 0..4 {
        round(&mut v);
    }
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[2] = v[2].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[1]);
    v[0] = v[0].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::LeaderEpoch;

    /// The vectors of the paper: key 00 01 … 0f, messages 00 01 … of 0, 8 and 16 bytes.
    #[test]
    fn the_hash_is_the_published_one() {
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        assert_eq!(sip(key, &[], 0), 0x726f_db47_dd0e_0e31);
        assert_eq!(sip(key, &key[..1], 8), 0x93f5_f579_9a93_2462);
        assert_eq!(sip(key, &key, 16), 0x3f2a_cc7f_57c2_9bdb);
    }

    #[test]
    fn another_key_gives_other_tokens() {
        let object = ObjectId { epoch: LeaderEpoch(1), sequence: 1 };
        let tokens = [[0, 0], [0, 1], [1, 0]].map(|key| TokenKey(key).token(object));
        assert!(tokens[0] != tokens[1] && tokens[1] != tokens[2] && tokens[0] != tokens[2]);
        assert!(!format!("{:?}", TokenKey([7, 7])).contains('7'));
    }
}
