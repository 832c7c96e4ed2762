//! How the vocabulary of `core` travels.

use super::{Field, Reader, fields, put_bytes, put_list, take_list};
use crate::error::DecodeError;
use mooncrate_core::catalog::Counters;
use mooncrate_core::catalog::InUse;
use mooncrate_core::copy::{CopyDone, CopyOrder, DrainStat};
use mooncrate_core::extent::Extent;
use mooncrate_core::ids::{
    Generation, GroupId, HostId, Incarnation, LeaderEpoch, NodeId, ObjectId, PutToken, SegmentId,
    Slot, Stamp, TenantId, ZoneId,
};
use mooncrate_core::key::Key;
use mooncrate_core::label::Label;
use mooncrate_core::limits::{REPLICAS_MAX, STRIPES_MAX};
use mooncrate_core::plan::{
    Action, Announced, AnnouncedLife, AnnouncedObject, Evidence, Grant, Keep, Located, Locator,
    Looked, Medium, Notice, Order, OrderResult, PutConfig, ReadMark, Right, SegmentOffer, Striping,
    WritePlan,
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
    PutToken(u64) Stamp(u64) HostId(u64) ZoneId(u64) Seal(u64) TenantId(u32) GroupId(u64)
}

fields!(ObjectId { epoch: LeaderEpoch, sequence: u64 });
fields!(Locator {
    segment: SegmentId,
    incarnation: Incarnation,
    slot: Slot,
    generation: Generation,
    extent: Extent,
    stripe: u8,
    grant: Option<Grant>,
});
fields!(ReadMark {
    segment: SegmentId,
    slot: Slot,
    generation: Generation,
    reads: u32,
    copies: u16,
    tag: u64,
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
    evidence: Evidence,
});
fields!(Evidence { stamp: Stamp, before: (Stamp, Stamp), lapsed: bool });
fields!(Counters {
    puts: u64,
    hits: u64,
    misses: u64,
    removed: u64,
    evicted: u64,
    evicted_bytes: u64,
    evict_skipped: u64,
    busy: u64,
    expired: u64,
    replaced: u64,
    replanned: u64,
    puts_expired: u64,
    stale_tokens: u64,
    nodes_lost: u64,
    announced_dropped: u64,
    copied: u64,
    copied_bytes: u64,
    copies_failed: u64,
    hits_disk: u64,
    offloaded: u64,
    offloaded_bytes: u64,
    offloads_refused: u64,
    evicted_unsaved: u64,
    promoted: u64,
    promoted_bytes: u64,
    disk_evicted: u64,
    disk_lost: u64,
    disks_returned: u64,
    disk_dropped: u64,
    ledger_struck: u64,
    lapsed_struck: u64,
    late_dropped: u64,
    bad_replicas: u64,
    hits_vram: u64,
    demoted: u64,
    demoted_bytes: u64,
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
fields!(CopyDone {
    segment: SegmentId,
    incarnation: Incarnation,
    slot: Slot,
    generation: Generation,
    ok: bool,
});
fields!(DrainStat {
    draining: u32,
    start_bytes: u64,
    start_replicas: u64,
    left_bytes: u64,
    left_replicas: u64,
    moved: u64,
    dropped: u64,
    stuck: u64,
});
fields!(InUse { used_bytes: u64, ending_bytes: u64 });
fields!(Announced { slot: Slot, generation: Generation, life: Option<AnnouncedLife> });
fields!(AnnouncedLife { extent: Extent, object: Option<AnnouncedObject> });
fields!(AnnouncedObject { label: Label, object: ObjectId, len: u64, seal: Seal });
fields!(PutConfig {
    replicas: u8,
    best_effort: bool,
    media: [u8; 3],
    preferred: Vec<SegmentId>,
    avoid: Vec<SegmentId>,
    host: HostId,
    zone: ZoneId,
    keep: Keep,
    group: GroupId,
    expire_ms: u32,
    upsert: bool,
});

/// Locators of one object.
const PARTS_MAX: usize = REPLICAS_MAX * STRIPES_MAX;

/// Replicas have a limit of their own, lower than that of a batch.
impl<'a> Field<'a> for WritePlan {
    const BYTES_MIN: usize = ObjectId::BYTES_MIN + 36;
    fn put(&self, out: &mut Vec<u8>) {
        self.object.put(out);
        self.token.put(out);
        self.epoch.put(out);
        self.striping.put(out);
        put_list(&self.replicas, out);
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            object: ObjectId::take(from)?,
            token: PutToken::take(from)?,
            epoch: LeaderEpoch::take(from)?,
            striping: Striping::take(from)?,
            replicas: take_list(from, PARTS_MAX)?,
        })
    }
}

/// Sources have a limit of their own: an object has no more copies.
impl<'a> Field<'a> for CopyOrder {
    const BYTES_MIN: usize = Locator::BYTES_MIN + ObjectId::BYTES_MIN + Label::BYTES_MIN + 40;
    fn put(&self, out: &mut Vec<u8>) {
        self.target.put(out);
        put_list(&self.sources, out);
        self.token.put(out);
        self.object.put(out);
        self.epoch.put(out);
        self.len.put(out);
        self.seal.put(out);
        self.label.put(out);
        self.time_ms.put(out);
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            target: Locator::take(from)?,
            sources: take_list(from, REPLICAS_MAX)?,
            token: PutToken::take(from)?,
            object: ObjectId::take(from)?,
            epoch: LeaderEpoch::take(from)?,
            len: u64::take(from)?,
            seal: Seal::take(from)?,
            label: Label::take(from)?,
            time_ms: u32::take(from)?,
        })
    }
}

impl<'a> Field<'a> for Located {
    const BYTES_MIN: usize = ObjectId::BYTES_MIN + 36;
    fn put(&self, out: &mut Vec<u8>) {
        self.object.put(out);
        self.striping.put(out);
        self.seal.put(out);
        put_list(&self.more_seals, out);
        self.lease_ms.put(out);
        put_list(&self.replicas, out);
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            object: ObjectId::take(from)?,
            striping: Striping::take(from)?,
            seal: Seal::take(from)?,
            more_seals: take_list(from, STRIPES_MAX - 1)?,
            lease_ms: u32::take(from)?,
            replicas: take_list(from, PARTS_MAX)?,
        })
    }
}

/// u8 0: missing; 1: being written; 2: here, u64 bytes, u64 group, u32 ms held; 3: at a place, located.
impl<'a> Field<'a> for Looked {
    const BYTES_MIN: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Missing => out.push(0),
            Self::Writing => out.push(1),
            Self::Here { len, group } => {
                out.push(2);
                len.put(out);
                group.put(out);
            }
            Self::At(located) => {
                out.push(3);
                located.put(out);
            }
        }
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(match u8::take(from)? {
            0 => Self::Missing,
            1 => Self::Writing,
            2 => Self::Here { len: u64::take(from)?, group: GroupId::take(from)? },
            3 => Self::At(Located::take(from)?),
            value => {
                return Err(DecodeError::BadValue { what: "what is known", value: value.into() });
            }
        })
    }
}

/// u64 bytes of the value, u64 bytes of a stripe: equal for a value in one stripe.
impl<'a> Field<'a> for Striping {
    const BYTES_MIN: usize = 16;
    fn put(&self, out: &mut Vec<u8>) {
        self.len.put(out);
        self.stripe_bytes.put(out);
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let (len, stripe_bytes) = <(u64, u64)>::take(from)?;
        if len == stripe_bytes {
            return Ok(Self::whole(len));
        }
        let what = "the length of a stripe";
        Self::checked(len, stripe_bytes).ok_or(DecodeError::BadValue { what, value: stripe_bytes })
    }
}

/// u8 0: normal; 1: soft, u32 ttl in milliseconds; 2: hard.
impl<'a> Field<'a> for Keep {
    const BYTES_MIN: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Normal => out.push(0),
            Self::Soft { ttl_ms } => {
                out.push(1);
                ttl_ms.put(out);
            }
            Self::Hard => out.push(2),
        }
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(match u8::take(from)? {
            0 => Self::Normal,
            1 => Self::Soft { ttl_ms: u32::take(from)? },
            2 => Self::Hard,
            value => {
                return Err(DecodeError::BadValue { what: "a pin", value: u64::from(value) });
            }
        })
    }
}

/// As its owner keeps it, so that no field can be lost on the way.
impl<'a> Field<'a> for Label {
    const BYTES_MIN: usize = 10;
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(&self.encode(), out);
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let bytes = <&[u8]>::take(from)?;
        let label = Self::decode(bytes).filter(|label| label.encode() == bytes);
        let value = bytes.len() as u64;
        label.ok_or(DecodeError::BadValue { what: "a label", value })
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

/// u8 0: freed, u32 next generation; 1: pinned; 2: waiting; 3: bad.
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
            Self::Bad => out.push(3),
            Self::Holds { seal } => {
                out.push(4);
                seal.put(out);
            }
        }
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(match u8::take(from)? {
            0 => Self::Freed { next: Generation::take(from)? },
            1 => Self::Pinned,
            2 => Self::Waiting,
            3 => Self::Bad,
            4 => Self::Holds { seal: Field::take(from)? },
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
