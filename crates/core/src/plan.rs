//! Locators and plans: who may move which bytes where, in which life. Never an address.

use crate::canary::{self, Canary};
use crate::extent::Extent;
use crate::ids::{
    Generation, GroupId, HostId, Incarnation, LeaderEpoch, NodeId, ObjectId, PutToken, SegmentId,
    Slot, Stamp, TenantId, ZoneId,
};
use crate::label::Label;
use crate::limits::STRIPES_MAX;
use crate::seal::Seal;
use std::fmt;
use std::str::FromStr;

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

impl Medium {
    /// All of them, in the order of their codes.
    pub const ALL: [Self; 3] = [Self::Vram, Self::Dram, Self::Ssd];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vram => "vram",
            Self::Dram => "dram",
            Self::Ssd => "ssd",
        }
    }

    /// What its owner calls it, in sentences.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Vram => "VRAM",
            Self::Dram => "host memory",
            Self::Ssd => "a disk",
        }
    }
}

impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No medium has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no medium {0:?}; choose vram, dram or ssd")]
pub struct UnknownMedium(pub String);

impl FromStr for Medium {
    type Err = UnknownMedium;

    fn from_str(name: &str) -> Result<Self, UnknownMedium> {
        let found = Self::ALL.into_iter().find(|medium| medium.name() == name);
        found.ok_or_else(|| UnknownMedium(name.to_owned()))
    }
}

/// How dear an object is to its owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// Evicted when its turn comes.
    #[default]
    Normal,
    /// Evicted only when nothing else is left, for this long after the put or the last lookup.
    Soft {
        /// How long.
        ttl_ms: u32,
    },
    /// Never evicted: it goes by a remove only. Bounded by [`crate::catalog::Config::hard_permille`].
    Hard,
}

/// How a value is cut into stripes: all have `stripe_bytes`, the last one has the rest. Each stripe is
/// placed, replicated, moved and verified on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Striping {
    /// Bytes of the whole value.
    pub len: u64,
    /// Bytes of a stripe.
    pub stripe_bytes: u64,
}

impl Striping {
    /// A value in one stripe.
    pub const fn whole(len: u64) -> Self {
        Self { len, stripe_bytes: len }
    }

    /// A cut that makes sense: at least two stripes, at most [`STRIPES_MAX`].
    pub const fn checked(len: u64, stripe_bytes: u64) -> Option<Self> {
        if stripe_bytes == 0 || stripe_bytes >= len {
            return None;
        }
        let cut = Self { len, stripe_bytes };
        if cut.stripes() > STRIPES_MAX { None } else { Some(cut) }
    }

    /// Number of stripes; one for an empty value.
    pub const fn stripes(&self) -> usize {
        if self.len <= self.stripe_bytes {
            1
        } else {
            self.len.div_ceil(self.stripe_bytes) as usize
        }
    }

    /// Where a stripe starts in the value.
    pub const fn start(&self, stripe: u8) -> u64 {
        self.stripe_bytes * stripe as u64
    }

    /// Bytes of a stripe.
    pub const fn stripe_len(&self, stripe: u8) -> u64 {
        let rest = self.len.saturating_sub(self.start(stripe));
        if rest < self.stripe_bytes { rest } else { self.stripe_bytes }
    }
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
    /// Which stripe of the value it holds; 0 for a value that is not striped.
    pub stripe: u8,
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
    /// The value, and how it is cut.
    pub striping: Striping,
    /// Where to write: every copy of every stripe.
    pub replicas: Vec<Locator>,
}

/// Where a finished object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// The put that stored it.
    pub object: ObjectId,
    /// The value, and how it is cut.
    pub striping: Striping,
    /// What the bytes must add up to; for a striped value that of its first stripe.
    pub seal: Seal,
    /// The seals of the other stripes, in order.
    pub more_seals: Vec<Seal>,
    /// The lease that was granted, in milliseconds from the moment the request was sent; 0: none.
    pub lease_ms: u32,
    /// Copies, best first; those of one stripe stand together, stripes in order.
    pub replicas: Vec<Locator>,
}

/// Reads of one object that asked nobody where it is, as the client that made them tells the master: they
/// count in the eviction order as if it had been asked. A mark changes that order and nothing else, so it
/// names a life of a slot without the mount: one that meets another object by chance does no harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadMark {
    /// The first copy that the client knows: its segment, …
    pub segment: SegmentId,
    /// … its header …
    pub slot: Slot,
    /// … and the life of that header.
    pub generation: Generation,
    /// Reads since the client last told of this object; at least one.
    pub reads: u32,
    /// Copies that the client knows, over all stripes. If there are more or fewer by now, the master says so.
    pub copies: u16,
    /// The client's own word for the object. The master only repeats it.
    pub tag: u64,
}

impl Located {
    /// A mark of so many reads under this locator; `None` if it names no copy.
    pub fn read_mark(&self, reads: u32, tag: u64) -> Option<ReadMark> {
        let &Locator { segment, slot, generation, .. } = self.replicas.first()?;
        let copies = u16::try_from(self.replicas.len()).unwrap_or(u16::MAX);
        Some(ReadMark { segment, slot, generation, reads, copies, tag })
    }

    /// Bytes of the value.
    pub const fn len(&self) -> u64 {
        self.striping.len
    }

    /// Whether the value is empty.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The seal of a stripe.
    pub fn seal_of(&self, stripe: u8) -> Option<Seal> {
        match stripe {
            0 => Some(self.seal),
            stripe => self.more_seals.get(usize::from(stripe) - 1).copied(),
        }
    }

    /// The copies of each stripe, in order.
    pub fn stripes(&self) -> impl Iterator<Item = &[Locator]> {
        self.replicas.chunk_by(|a, b| a.stripe == b.stripe)
    }
}

/// What is known of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Looked {
    /// It has no value.
    Missing,
    /// Its value is being written: nobody can read it yet.
    Writing,
    /// It has a value.
    Here {
        /// Bytes of it.
        len: u64,
        /// What it is evicted with; 0: nothing.
        group: GroupId,
    },
    /// It has a value, and it is there. Held for `lease_ms`, if that was asked for.
    At(Located),
}

/// Wishes of a put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutConfig {
    /// Copies, on distinct nodes.
    pub replicas: u8,
    /// Fewer copies are fine where too few nodes exist; otherwise such a put is refused.
    pub best_effort: bool,
    /// Copies on each medium, in the order of [`Medium::ALL`]. Where they add up to more than
    /// `replicas`, their sum counts, as in Mooncake Store's `media_replica_num`.
    pub media: [u8; 3],
    /// Segments to try first, in this order.
    pub preferred: Vec<SegmentId>,
    /// Segments that just failed the writer: not these.
    pub avoid: Vec<SegmentId>,
    /// The host of the writer, for placement near it.
    pub host: HostId,
    /// The zone of the writer.
    pub zone: ZoneId,
    /// How dear the object is.
    pub keep: Keep,
    /// What it is evicted with; 0: nothing.
    pub group: GroupId,
    /// Removed so long after its first get, in milliseconds; 0: not.
    pub expire_ms: u32,
    /// Replace a value that is there, as a new object; otherwise it stays (R12).
    pub upsert: bool,
}

impl Default for PutConfig {
    fn default() -> Self {
        Self {
            replicas: 1,
            best_effort: false,
            media: [0; 3],
            preferred: Vec::new(),
            avoid: Vec::new(),
            host: HostId(0),
            zone: ZoneId(0),
            keep: Keep::Normal,
            group: GroupId(0),
            expire_ms: 0,
            upsert: false,
        }
    }
}

impl PutConfig {
    /// Copies in all, those on disks included: the larger of the two wishes.
    pub fn copies(&self) -> u32 {
        let by_medium: u32 = self.media.iter().map(|count| u32::from(*count)).sum();
        by_medium.max(self.replicas.into())
    }

    /// Copies on disks. They are made when the put has ended, as far as disks take them.
    pub fn disk_copies(&self) -> u32 {
        self.media[Medium::Ssd as usize].into()
    }

    /// Copies that its writer writes; at least one, so that there is something to copy from.
    pub fn memory_copies(&self) -> u32 {
        let copies = self.copies();
        if copies == 0 { 0 } else { copies.saturating_sub(self.disk_copies()).max(1) }
    }

    /// The same wishes, with all of its `replicas` asked for on one medium. Memory of a host is where
    /// they go without this, and VRAM is used only where it is asked for; a copy on a disk is made when
    /// the put has ended, from one in memory.
    #[must_use]
    pub fn on(mut self, medium: Medium) -> Self {
        self.media = [0; 3];
        self.media[medium as usize] = self.replicas;
        self
    }

    /// Copies that its writer writes to VRAM; the others go to memory of hosts.
    pub fn vram_copies(&self) -> u32 {
        u32::from(self.media[Medium::Vram as usize]).min(self.memory_copies())
    }

    /// What an owner keeps beside the header of one stripe of such a put.
    pub fn label(&self, tenant: TenantId, key: crate::key::Key, of: Striping, stripe: u8) -> Label {
        let striped = of.stripes() > 1;
        Label {
            tenant,
            key,
            keep: self.keep,
            group: self.group,
            expire_ms: self.expire_ms,
            stripe: striped.then_some(crate::label::StripeOf { stripe, striping: of }),
            copies: self.memory_copies() as u8,
        }
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
    /// The only tenant whose objects it takes; `None`: everybody's.
    pub tenant: Option<TenantId>,
    /// What shows that its content is current.
    pub evidence: Evidence,
}

impl SegmentOffer {
    /// The stamp that a durable list names it by from this mount on.
    pub fn stamp(&self) -> Stamp {
        if self.medium == Medium::Ssd { self.evidence.stamp } else { Stamp(self.incarnation.0) }
    }

    /// Whether a list that names `stamp` speaks of this very content.
    pub fn has_stamp(&self, stamp: Stamp) -> bool {
        let ignored = canary::on(Canary::StampIgnored) && self.medium == Medium::Ssd;
        ignored || self.evidence.names(stamp) || stamp != Stamp(0) && stamp == self.stamp()
    }
}

/// What an owner shows for its claim that a segment's content is current.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Of a disk: the stamp that its directory got when this process opened it.
    pub stamp: Stamp,
    /// Of a disk: the stamps that the directory had before, newest first, until a master has confirmed
    /// the new one. A crash in between leaves a list that names one of these.
    pub before: (Stamp, Stamp),
    /// The serving lease of the segment has ended, by the owner's clock: a leader may have given keys of it up,
    /// or counted the owner as gone.
    pub lapsed: bool,
}

impl Evidence {
    /// Whether a list that names `stamp` speaks of this disk as it is.
    pub fn names(&self, stamp: Stamp) -> bool {
        let known = [self.stamp, self.before.0, self.before.1];
        stamp != Stamp(0) && known.contains(&stamp)
    }
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

/// What became of an order. `Freed` also comes unasked, when a range leaves its wait later; `Bad` and
/// `Holds` always do.
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
    /// Comes unasked: the owner has summed the replica, and its bytes are not those that were sealed
    /// (G15). No new reader can enter. The slot stays so until the master orders its end, because only
    /// the master knows which leases are out.
    Bad,
    /// Comes unasked: a reader did not find there what the master had told it, and this is what the owner
    /// holds under that life (G15). The owner has changed nothing; the master compares.
    Holds {
        /// What the owner's own sum of a published value is; `None`: nothing was published.
        seal: Option<Seal>,
    },
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
    /// Whose, under which key, with which wishes.
    pub label: Label,
    /// The put that stored it.
    pub object: ObjectId,
    /// Bytes of the value, or of the stripe of it.
    pub len: u64,
    /// Its seal.
    pub seal: Seal,
}

impl AnnouncedObject {
    /// Which stripe of the value it is.
    pub fn stripe(&self) -> u8 {
        self.label.stripe.map_or(0, |of| of.stripe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_have_names() {
        for medium in Medium::ALL {
            assert_eq!(medium.to_string().parse(), Ok(medium));
        }
        let refused = "gpu".parse::<Medium>().unwrap_err();
        assert!(refused.to_string().contains("vram, dram or ssd"));
    }

    #[test]
    fn a_put_asks_for_its_medium() {
        let two = PutConfig { replicas: 2, ..PutConfig::default() };
        assert_eq!((two.vram_copies(), two.memory_copies()), (0, 2));
        let vram = two.clone().on(Medium::Vram);
        assert_eq!((vram.vram_copies(), vram.memory_copies(), vram.copies()), (2, 2, 2));
        let host = vram.on(Medium::Dram);
        assert_eq!((host.vram_copies(), host.memory_copies()), (0, 2));
        let disk = host.on(Medium::Ssd);
        assert_eq!((disk.vram_copies(), disk.memory_copies(), disk.disk_copies()), (0, 1, 2));
        let mixed = PutConfig { media: [1, 0, 1], ..two };
        assert_eq!((mixed.vram_copies(), mixed.memory_copies()), (1, 1));
    }
}
