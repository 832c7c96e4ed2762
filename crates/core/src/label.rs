//! What an owner keeps beside a header so that announcing headers rebuilds the index: the full
//! tenant and key, and the wishes that outlive a master. Opaque to the memory that holds it.
//!
//! ```text
//!   0 tenant u32   4 flags u8: 1 hard, 2 soft, 4 group, 8 expires, 16 striped, 32 copies
//!   then, each only if its flag is set, little-endian:
//!   soft_ttl_ms u32 | group u64 | expire_ms u32 | stripe u8, len u64, stripe_bytes u64 | copies u8
//!   then the key, to the end
//! ```

use crate::ids::{GroupId, TenantId};
use crate::key::{self, Key, Name};
use crate::limits::REPLICAS_MAX;
use crate::plan::{Keep, Striping};

const HARD: u8 = 1;
const SOFT: u8 = 2;
const GROUP: u8 = 4;
const EXPIRES: u8 = 8;
const STRIPED: u8 = 16;
const COPIES: u8 = 32;

/// A label, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Whose object.
    pub tenant: TenantId,
    /// Its key.
    pub key: Key,
    /// How dear it is.
    pub keep: Keep,
    /// What it is evicted with; 0: nothing.
    pub group: GroupId,
    /// Removed so long after its first get, in milliseconds; 0: not.
    pub expire_ms: u32,
    /// Which part of the value this is; `None`: all of it.
    pub stripe: Option<StripeOf>,
    /// Copies that its put asked for: a new leader knows how many there should be.
    pub copies: u8,
}

/// Which part of a striped value a replica holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeOf {
    /// Its number.
    pub stripe: u8,
    /// The whole value.
    pub striping: Striping,
}

impl Label {
    /// The label of an object without special wishes.
    pub fn plain(name: Name<'_>) -> Result<Self, key::KeyError> {
        Ok(Self {
            tenant: name.tenant,
            key: Key::new(name.key)?,
            keep: Keep::Normal,
            group: GroupId(0),
            expire_ms: 0,
            stripe: None,
            copies: 1,
        })
    }

    /// The identity.
    pub fn name(&self) -> Name<'_> {
        Name::new(self.tenant, self.key.as_bytes())
    }

    /// As the owner keeps it.
    pub fn encode(&self) -> Vec<u8> {
        let mut flags = match self.keep {
            Keep::Normal => 0,
            Keep::Soft { .. } => SOFT,
            Keep::Hard => HARD,
        };
        flags |= if self.group == GroupId(0) { 0 } else { GROUP };
        flags |= if self.expire_ms == 0 { 0 } else { EXPIRES };
        flags |= if self.stripe.is_some() { STRIPED } else { 0 };
        flags |= if self.copies == 1 { 0 } else { COPIES };
        let mut out = Vec::with_capacity(self.key.as_bytes().len() + 40);
        out.extend(self.tenant.0.to_le_bytes());
        out.push(flags);
        if let Keep::Soft { ttl_ms } = self.keep {
            out.extend(ttl_ms.to_le_bytes());
        }
        if self.group != GroupId(0) {
            out.extend(self.group.0.to_le_bytes());
        }
        if self.expire_ms != 0 {
            out.extend(self.expire_ms.to_le_bytes());
        }
        if let Some(StripeOf { stripe, striping }) = self.stripe {
            out.push(stripe);
            out.extend(striping.len.to_le_bytes());
            out.extend(striping.stripe_bytes.to_le_bytes());
        }
        if self.copies != 1 {
            out.push(self.copies);
        }
        out.extend(self.key.as_bytes());
        out
    }

    /// Reads a label; `None` if it is none.
    pub fn decode(mut bytes: &[u8]) -> Option<Self> {
        let bytes = &mut bytes;
        let tenant = TenantId(u32::from_le_bytes(take(bytes)?));
        let [flags] = take(bytes)?;
        let known = HARD | SOFT | GROUP | EXPIRES | STRIPED | COPIES;
        if flags & !known != 0 || flags & 3 == HARD | SOFT {
            return None;
        }
        let keep = match flags & (HARD | SOFT) {
            HARD => Keep::Hard,
            SOFT => Keep::Soft { ttl_ms: u32::from_le_bytes(take(bytes)?) },
            _ => Keep::Normal,
        };
        let mut group = GroupId(0);
        if flags & GROUP != 0 {
            group = GroupId(u64::from_le_bytes(take(bytes)?));
        }
        let mut expire_ms = 0;
        if flags & EXPIRES != 0 {
            expire_ms = u32::from_le_bytes(take(bytes)?);
        }
        let mut stripe = None;
        if flags & STRIPED != 0 {
            let [number] = take(bytes)?;
            let len = u64::from_le_bytes(take(bytes)?);
            let stripe_bytes = u64::from_le_bytes(take(bytes)?);
            let striping = Striping::checked(len, stripe_bytes)?;
            if usize::from(number) >= striping.stripes() {
                return None;
            }
            stripe = Some(StripeOf { stripe: number, striping });
        }
        let mut copies = 1;
        if flags & COPIES != 0 {
            [copies] = take(bytes)?;
            if copies == 1 || copies == 0 || usize::from(copies) > REPLICAS_MAX {
                return None;
            }
        }
        let key = Key::new(*bytes).ok()?;
        Some(Self { tenant, key, keep, group, expire_ms, stripe, copies })
    }
}

/// The tenant of a label, without a look at the rest: who checks rights needs no more.
pub fn tenant(label: &[u8]) -> Option<TenantId> {
    Some(TenantId(u32::from_le_bytes(*label.first_chunk()?)))
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_label() -> impl Strategy<Value = Label> {
        let keep = prop_oneof![
            Just(Keep::Normal),
            any::<u32>().prop_map(|ttl_ms| Keep::Soft { ttl_ms }),
            Just(Keep::Hard)
        ];
        let stripe = proptest::option::of((0..4_u8, 4_u64..1000).prop_map(|(stripe, unit)| {
            let striping = Striping { len: unit * 4, stripe_bytes: unit };
            StripeOf { stripe, striping }
        }));
        let key = proptest::collection::vec(any::<u8>(), 1..64);
        (any::<u32>(), key, keep, any::<u64>(), any::<u32>(), stripe, 1..=8_u8).prop_map(
            |(tenant, key, keep, group, expire_ms, stripe, copies)| Label {
                tenant: TenantId(tenant),
                key: Key::new(key).expect("1 to 63 bytes"),
                keep,
                group: GroupId(group),
                expire_ms,
                stripe,
                copies,
            },
        )
    }

    proptest! {
        #[test]
        fn labels_come_back(label in any_label()) {
            let bytes = label.encode();
            prop_assert_eq!(tenant(&bytes), Some(label.tenant));
            prop_assert_eq!(Label::decode(&bytes), Some(label));
        }

        #[test]
        fn any_bytes_are_a_label_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Some(label) = Label::decode(&bytes) {
                prop_assert_eq!(Label::decode(&label.encode()), Some(label));
            }
        }
    }

    #[test]
    fn a_label_without_a_key_is_none() {
        assert_eq!(Label::decode(&[0, 0, 0, 0, 0]), None);
        assert_eq!(Label::decode(&[0, 0, 0, 0, 0x80, b'k']), None);
        let plain = Label::plain(Name::from(b"k")).unwrap();
        assert_eq!(plain.encode(), [0, 0, 0, 0, 0, b'k']);
    }
}
