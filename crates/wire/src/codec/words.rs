//! How the vocabulary of `core` travels.

use super::{Field, Reader, fields, put_bytes, put_list, take_list};
use crate::error::DecodeError;
use mooncrate_core::extent::Extent;
use mooncrate_core::ids::{
    Generation, HostId, Incarnation, LeaderEpoch, NodeId, ObjectId, PutToken, SegmentId, Slot,
    TenantId, ZoneId,
};
use mooncrate_core::key::Key;
use mooncrate_core::limits::REPLICAS_MAX;
use mooncrate_core::plan::{
    Action, Announced, AnnouncedLife, AnnouncedObject, Grant, Located, Locator, Medium, Notice,
    Order, OrderResult, PutConfig, Right, SegmentOffer, WritePlan,
};
use mooncrate_core::seal::Seal;
use std::borrow::Cow;

macro_rules! newtypes {
    ($($name:ident($inner:ty))*) => {$(
        impl<'a> Field<'a> for $name {
            const BYTES_MIN: usize = <$inner as Field<'a>>::BYTES_MIN;
            fn put(&self, out: &mut Vec<u8>) {
                self.0.put(out);
            }
            fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
                Ok(Self(<$inner>::take(from)?))
            }
        }
    )*};
}
newtypes! {
    NodeId(u64) SegmentId(u64) Slot(u32) Generation(u32) Incarnation(u64) LeaderEpoch(u64)
    PutToken(u64) HostId(u64) ZoneId(u64) Seal(u64) TenantId(u32)
}

fields!(ObjectId { epoch: LeaderEpoch, sequence: u64 });
fields!(Locator {
    segment: SegmentId,
    incarnation: Incarnation,
    slot: Slot,
    generation: Generation,
    extent: Extent,
    grant: Option<Grant>,
});
fields!(Grant { tenant: TenantId, expires_s: u32, right: Right, mac: [u8; 16] });
fields!(SegmentOffer {
    segment: SegmentId,
    incarnation: Incarnation,
    node: NodeId,
    medium: Medium,
    bytes: u64,
    slots: u32,
    host: HostId,
    zone: ZoneId,
    tenant: Option<TenantId>,
});
fields!(Order {
    segment: SegmentId,
    incarnation: Incarnation,
    slot: Slot,
    generation: Generation,
    action: Action,
});
fields!(Notice {
    segment: SegmentId,
    incarnation: Incarnation,
    slot: Slot,
    generation: Generation,
    result: OrderResult,
});
fields!(Announced { slot: Slot, generation: Generation, life: Option<AnnouncedLife> });
fields!(AnnouncedLife { extent: Extent, object: Option<AnnouncedObject> });
fields!(AnnouncedObject { key: Key, object: ObjectId, len: u64, seal: Seal });
fields!(PutConfig { replicas: u8, preferred: Vec<SegmentId>, host: HostId, zone: ZoneId });

/// Replicas have a limit of their own, lower than that of a batch.
impl<'a> Field<'a> for WritePlan {
    const BYTES_MIN: usize = ObjectId::BYTES_MIN + 28;
    fn put(&self, out: &mut Vec<u8>) {
        self.object.put(out);
        self.token.put(out);
        self.epoch.put(out);
        self.len.put(out);
        put_list(&self.replicas, out);
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            object: ObjectId::take(from)?,
            token: PutToken::take(from)?,
            epoch: LeaderEpoch::take(from)?,
            len: u64::take(from)?,
            replicas: take_list(from, REPLICAS_MAX)?,
        })
    }
}

impl<'a> Field<'a> for Located {
    const BYTES_MIN: usize = ObjectId::BYTES_MIN + 24;
    fn put(&self, out: &mut Vec<u8>) {
        self.object.put(out);
        self.len.put(out);
        self.seal.put(out);
        self.lease_ms.put(out);
        put_list(&self.replicas, out);
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            object: ObjectId::take(from)?,
            len: u64::take(from)?,
            seal: Seal::take(from)?,
            lease_ms: u32::take(from)?,
            replicas: take_list(from, REPLICAS_MAX)?,
        })
    }
}

impl<'a> Field<'a> for Extent {
    const BYTES_MIN: usize = 16;
    fn put(&self, out: &mut Vec<u8>) {
        self.offset().put(out);
        self.len().put(out);
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let (offset, len) = <(u64, u64)>::take(from)?;
        Self::new(offset, len)
            .ok_or(DecodeError::BadValue { what: "the offset of an extent", value: offset })
    }
}

/// A key that is kept, so it is checked here. Keys in requests travel as plain bytes instead: a bad
/// one is an error of its item, not of the batch (G11).
impl<'a> Field<'a> for Key {
    const BYTES_MIN: usize = 5;
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(self.as_bytes(), out);
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let bytes = <&[u8]>::take(from)?;
        Self::new(bytes).map_err(|_| DecodeError::BadValue {
            what: "the length of a key",
            value: bytes.len() as u64,
        })
    }
}

impl<'a> Field<'a> for Medium {
    const BYTES_MIN: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(match u8::take(from)? {
            0 => Self::Vram,
            1 => Self::Dram,
            2 => Self::Ssd,
            value => {
                return Err(DecodeError::BadValue { what: "a medium", value: u64::from(value) });
            }
        })
    }
}

impl<'a> Field<'a> for Right {
    const BYTES_MIN: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(match u8::take(from)? {
            0 => Self::Read,
            1 => Self::Write,
            value => {
                return Err(DecodeError::BadValue { what: "a right", value: u64::from(value) });
            }
        })
    }
}

/// u8 0: evict; 1: retire, u32 `free_after_ms`; 2: abort.
impl<'a> Field<'a> for Action {
    const BYTES_MIN: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Evict => out.push(0),
            Self::Retire { free_after_ms } => {
                out.push(1);
                free_after_ms.put(out);
            }
            Self::Abort => out.push(2),
        }
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(match u8::take(from)? {
            0 => Self::Evict,
            1 => Self::Retire { free_after_ms: u32::take(from)? },
            2 => Self::Abort,
            value => {
                return Err(DecodeError::BadValue { what: "an action", value: u64::from(value) });
            }
        })
    }
}

/// u8 0: freed, u32 next generation; 1: pinned; 2: waiting.
impl<'a> Field<'a> for OrderResult {
    const BYTES_MIN: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Freed { next } => {
                out.push(0);
                next.put(out);
            }
            Self::Pinned => out.push(1),
            Self::Waiting => out.push(2),
        }
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(match u8::take(from)? {
            0 => Self::Freed { next: Generation::take(from)? },
            1 => Self::Pinned,
            2 => Self::Waiting,
            value => {
                let what = "the result of an order";
                return Err(DecodeError::BadValue { what, value: u64::from(value) });
            }
        })
    }
}

impl<'a> Field<'a> for Cow<'a, PutConfig> {
    const BYTES_MIN: usize = PutConfig::BYTES_MIN;
    fn put(&self, out: &mut Vec<u8>) {
        PutConfig::put(self, out);
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Cow::Owned(PutConfig::take(from)?))
    }
}
