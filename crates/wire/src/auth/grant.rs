//! Grants: the master's leave to use one locator, checked by the owner of the bytes without state
//! and without asking. What a grant allows cannot be widened: its mac covers the tenant, the whole
//! locator, the right and the end.
//!
//! The end is a wall time, because two machines compare it. It bounds abuse and protects no bytes;
//! clocks that are minutes apart do no harm.

use super::gate::Credential;
use super::token::{ClusterSecret, SECRET_BYTES};
use crate::message::Role;
use mooncrate_core::ids::TenantId;
use mooncrate_core::plan::{Grant, Locator, Right};
use std::fmt;

/// How long a grant lasts.
pub const GRANT_SECONDS: u32 = 3600;
const MAC_BYTES: usize = 16;

/// Mints and checks grants.
#[derive(Clone)]
pub struct GrantKey([u8; SECRET_BYTES]);

/// Why a grant does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantError {
    /// It was good once: ask the master for another.
    Expired,
    /// There is none, it is forged, or it is for somebody or something else.
    Denied,
}

impl GrantKey {
    /// The key of a cluster.
    pub fn new(secret: &ClusterSecret) -> Self {
        Self(secret.key_for("mooncrate 2026-11 grant"))
    }

    /// What the tokens of puts are made from: the same at every master of a cluster, so the next leader knows
    /// the tokens of the last.
    pub fn for_put_tokens(&self) -> [u64; 2] {
        let key = blake3::derive_key("mooncrate 2026-11 put token", &self.0);
        let word =
            |at: usize| u64::from_le_bytes(*key[at..].first_chunk().expect("a key has 32 bytes"));
        [word(0), word(8)]
    }

    /// Leave for `tenant` to use a locator until `now_s` plus an hour.
    pub fn mint(&self, locator: &Locator, tenant: TenantId, right: Right, now_s: u32) -> Grant {
        let expires_s = now_s.saturating_add(GRANT_SECONDS);
        let grant = Grant { tenant, expires_s, right, mac: [0; MAC_BYTES] };
        Grant { mac: self.mac(locator, &grant), ..grant }
    }

    /// Whether a peer may use a locator so; who may write it may read it. Nodes and masters are trusted: they hold the secret.
    pub fn check(
        &self,
        locator: &Locator,
        right: Right,
        peer: Credential,
        now_s: u32,
    ) -> Result<(), GrantError> {
        if matches!(peer.role, Role::Node | Role::Master) {
            return Ok(());
        }
        let grant = locator.grant.ok_or(GrantError::Denied)?;
        // A mac of 16 bytes, compared without an early end.
        let expected = self.mac(locator, &grant);
        let differ = expected.iter().zip(&grant.mac).fold(0, |all, (a, b)| all | (a ^ b));
        // Whoever wrote a value may read it back: its client remembers where it put it.
        let allowed = grant.right == right || grant.right == Right::Write;
        if std::hint::black_box(differ) != 0 || !allowed || grant.tenant != peer.tenant {
            return Err(GrantError::Denied);
        }
        if grant.expires_s < now_s {
            return Err(GrantError::Expired);
        }
        Ok(())
    }

    fn mac(&self, locator: &Locator, grant: &Grant) -> [u8; MAC_BYTES] {
        let mut text = [0; 49];
        let mut rest = &mut text[..];
        let mut put = |bytes: &[u8]| {
            let (head, tail) = std::mem::take(&mut rest).split_at_mut(bytes.len());
            head.copy_from_slice(bytes);
            rest = tail;
        };
        put(&grant.tenant.0.to_le_bytes());
        put(&locator.segment.0.to_le_bytes());
        put(&locator.incarnation.0.to_le_bytes());
        put(&locator.slot.0.to_le_bytes());
        put(&locator.generation.0.to_le_bytes());
        put(&locator.extent.offset().to_le_bytes());
        put(&locator.extent.len().to_le_bytes());
        put(&[grant.right as u8]);
        put(&grant.expires_s.to_le_bytes());
        let hash = blake3::keyed_hash(&self.0, &text);
        *hash.as_bytes().first_chunk().expect("a hash has 32 bytes")
    }
}

impl fmt::Debug for GrantKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GrantKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mooncrate_core::extent::Extent;
    use mooncrate_core::ids::{Generation, Incarnation, SegmentId, Slot};

    const NOW: u32 = 1_000_000;
    const ACME: Credential = Credential { role: Role::Client, tenant: TenantId(7) };

    fn granted(key: &GrantKey, right: Right) -> Locator {
        let bare = Locator {
            segment: SegmentId(1),
            incarnation: Incarnation(2),
            slot: Slot(3),
            generation: Generation(4),
            extent: Extent::new(64, 128).unwrap(),
            stripe: 0,
            grant: None,
        };
        Locator { grant: Some(key.mint(&bare, ACME.tenant, right, NOW)), ..bare }
    }

    /// Each field, changed alone, makes the grant worthless.
    #[test]
    fn security_a_grant_cannot_be_widened() {
        let key = GrantKey::new(&ClusterSecret::from_bytes([1; 32]));
        let good = granted(&key, Right::Read);
        assert_eq!(key.check(&good, Right::Read, ACME, NOW), Ok(()));
        let grant = good.grant.unwrap();
        let with = |grant: Grant| Locator { grant: Some(grant), ..good };
        let mut flipped = grant;
        flipped.mac[15] ^= 1;
        for bad in [
            Locator { segment: SegmentId(9), ..good },
            Locator { incarnation: Incarnation(9), ..good },
            Locator { slot: Slot(9), ..good },
            Locator { generation: Generation(9), ..good },
            Locator { extent: Extent::new(0, 128).unwrap(), ..good },
            Locator { extent: Extent::new(64, 192).unwrap(), ..good },
            Locator { grant: None, ..good },
            with(Grant { tenant: TenantId(8), ..grant }),
            with(Grant { expires_s: grant.expires_s + 1, ..grant }),
            with(flipped),
        ] {
            assert_eq!(key.check(&bad, Right::Read, ACME, NOW), Err(GrantError::Denied), "{bad:?}");
        }
        let write = with(Grant { right: Right::Write, ..grant });
        assert_eq!(key.check(&write, Right::Write, ACME, NOW), Err(GrantError::Denied));
        assert_eq!(key.check(&good, Right::Write, ACME, NOW), Err(GrantError::Denied));
        let other = Credential { tenant: TenantId(8), ..ACME };
        assert_eq!(key.check(&good, Right::Read, other, NOW), Err(GrantError::Denied));
        let foreign = GrantKey::new(&ClusterSecret::from_bytes([2; 32]));
        assert_eq!(foreign.check(&good, Right::Read, ACME, NOW), Err(GrantError::Denied));
    }

    #[test]
    fn security_a_grant_ends() {
        let key = GrantKey::new(&ClusterSecret::from_bytes([1; 32]));
        let good = granted(&key, Right::Write);
        let end = NOW + GRANT_SECONDS;
        assert_eq!(key.check(&good, Right::Write, ACME, end), Ok(()));
        assert_eq!(key.check(&good, Right::Read, ACME, end), Ok(()), "the writer reads back");
        assert_eq!(key.check(&good, Right::Write, ACME, end + 1), Err(GrantError::Expired));
    }
}
