//! Locators and plans: who may move which bytes where, in which life. Never an address.

use crate::extent::Extent;
use crate::ids::{
    Generation, HostId, Incarnation, LeaderEpoch, NodeId, ObjectId, PutToken, SegmentId, Slot,
    TenantId, ZoneId,
};
use crate::seal::Seal;

/// What a segment is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Medium {
    /// Memory of a GPU.
    Vram = 0,
    /// Memory of a host.
    Dram = 1,
    /// A disk.
    Ssd = 2,
}

/// What a grant allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Right {
    /// Read and pin.
    Read = 0,
    /// Begin, write, publish and abandon; and read what was written.
    Write = 1,
}

/// Leave of the master to use one locator, which the owner of the bytes checks without asking
/// anybody. It exists where a cluster has a secret. It bounds abuse and protects no bytes: that is
/// the work of the generation and the checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// Whose it is; only connections of that tenant may use it.
    pub tenant: TenantId,
    /// Until when, in seconds of wall time since 1970.
    pub expires_s: u32,
    /// What for.
    pub right: Right,
    /// Keyed hash over all of this and the locator.
    pub mac: [u8; 16],
}

/// How one replica is reached: a life of a slot, and its bytes. Dead as soon as the slot's
/// generation or the segment's incarnation moved on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Locator {
    /// Which segment.
    pub segment: SegmentId,
    /// Which mount of it.
    pub incarnation: Incarnation,
    /// Which header.
    pub slot: Slot,
    /// Which life of that header.
    pub generation: Generation,
    /// Value, slice table and padding.
    pub extent: Extent,
    /// The master's leave, in a cluster with a secret.
    pub grant: Option<Grant>,
}

/// Leave to write one object: the same bytes to every replica, then publish, then `put_end`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WritePlan {
    /// The put.
    pub object: ObjectId,
    /// Presented by every data frame, by `put_end` and by `put_revoke`.
    pub token: PutToken,
    /// The leader that planned it; owners refuse an older one than they know.
    pub epoch: LeaderEpoch,
    /// Bytes of the value.
    pub len: u64,
    /// Where to write.
    pub replicas: Vec<Locator>,
}

/// Where a finished object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// The put that stored it.
    pub object: ObjectId,
    /// Bytes of the value.
    pub len: u64,
    /// What the bytes must add up to.
    pub seal: Seal,
    /// The lease that was granted, in milliseconds from the moment the request was sent; 0: none.
    pub lease_ms: u32,
    /// Copies, best first.
    pub replicas: Vec<Locator>,
}

/// Wishes of a put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutConfig {
    /// Copies, on distinct nodes while enough exist.
    pub replicas: u8,
    /// Segments to try first, in this order.
    pub preferred: Vec<SegmentId>,
    /// The host of the writer, for placement near it.
    pub host: HostId,
    /// The zone of the writer.
    pub zone: ZoneId,
}

impl Default for PutConfig {
    fn default() -> Self {
        Self { replicas: 1, preferred: Vec::new(), host: HostId(0), zone: ZoneId(0) }
    }
}

/// What a node offers when it mounts a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentOffer {
    /// The segment.
    pub segment: SegmentId,
    /// The mount.
    pub incarnation: Incarnation,
    /// Its owner.
    pub node: NodeId,
    /// What it is made of.
    pub medium: Medium,
    /// Bytes of payload.
    pub bytes: u64,
    /// Headers in its table.
    pub slots: u32,
    /// Machine of the owner.
    pub host: HostId,
    /// Zone of the owner.
    pub zone: ZoneId,
    /// The only tenant whose objects may lie here; `None`: everybody's.
    pub tenant: Option<TenantId>,
}

/// What the master tells an owner to do with a slot. Idempotent: (segment, slot, generation) names
/// one life, and a repeated order finds that life over (G10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Which segment.
    pub segment: SegmentId,
    /// Which mount.
    pub incarnation: Incarnation,
    /// Which header.
    pub slot: Slot,
    /// Which life.
    pub generation: Generation,
    /// What to do.
    pub action: Action,
}

/// The three ways a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Free it now, or answer `Pinned` and leave it as it is.
    Evict,
    /// No new readers from now on; free it when the last pin is gone and this many milliseconds
    /// (the rest of the longest lease) have passed.
    Retire {
        /// Counted by the owner from receipt (R8).
        free_after_ms: u32,
    },
    /// The put failed: quarantine until the writer is fenced, then free.
    Abort,
}

/// What became of an order. `Freed` also comes unasked, when a range leaves its wait later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderResult {
    /// The life is over; the slot now stands at `next`, and the range may be handed out.
    Freed {
        /// The slot's generation now.
        next: Generation,
    },
    /// Readers are inside; nothing was changed.
    Pinned,
    /// No new reader or writer can enter; `Freed` follows later.
    Waiting,
}

/// An order's answer, or news of a slot, from an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Which segment.
    pub segment: SegmentId,
    /// Which mount.
    pub incarnation: Incarnation,
    /// Which header.
    pub slot: Slot,
    /// Which life the notice is about.
    pub generation: Generation,
    /// What happened.
    pub result: OrderResult,
}

/// One slot as its owner tells it to a master that lost its index. A page of these, in slot order,
/// rebuilds the book of the segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announced {
    /// Which header.
    pub slot: Slot,
    /// Its generation now.
    pub generation: Generation,
    /// What lives there; `None`: nothing, the slot is free to use at this generation.
    pub life: Option<AnnouncedLife>,
}

/// A slot that is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnouncedLife {
    /// Its bytes.
    pub extent: Extent,
    /// A finished object, or `None` if the range is being written, retiring or in quarantine:
    /// then it only blocks its range until the owner says `Freed`.
    pub object: Option<AnnouncedObject>,
}

/// A finished object, complete enough to index it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnouncedObject {
    /// The full key.
    pub key: crate::key::Key,
    /// The put that stored it.
    pub object: ObjectId,
    /// Bytes of the value.
    pub len: u64,
    /// Its seal.
    pub seal: Seal,
}
