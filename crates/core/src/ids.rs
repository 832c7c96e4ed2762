//! Identifiers and epochs. Never a bare `u64`: a slot is not a segment, a generation is not an
//! incarnation.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:x})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:x}", self.0)
            }
        }
    };
}

id!(
    /// One node: a process that owns segments. Derived from the node's configured name.
    NodeId(u64)
);
id!(
    /// One segment of one node. It stays the same when the node restarts; the incarnation does not.
    SegmentId(u64)
);
id!(
    /// Index of a header in the header table of a segment.
    Slot(u32)
);
id!(
    /// Which life of a header slot this is. It only grows, and grows before the range is reused.
    Generation(u32)
);
id!(
    /// Which mount of a segment this is. Every mount is a new one, later ones are larger.
    Incarnation(u64)
);
id!(
    /// Which master leads. Nodes refuse orders of a lower one.
    LeaderEpoch(u64)
);
id!(
    /// The right to write and finish one put. Minted by `put_start`.
    PutToken(u64)
);
id!(
    /// The machine a process runs on, for placement: hash of the host label.
    HostId(u64)
);
id!(
    /// The failure zone of a machine, for placement: hash of the zone label.
    ZoneId(u64)
);

id!(
    /// Whose objects these are. Derived from the tenant's name; 0 is the tenant without a name.
    TenantId(u32)
);
id!(
    /// Objects that are evicted together: hash of the group's name within its tenant; 0: no group.
    GroupId(u64)
);

/// Hash of a name given by an operator: node names, host and zone labels.
pub fn name_hash(name: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(name.as_bytes())
}

impl NodeId {
    /// The id of the node with this configured name.
    pub fn named(name: &str) -> Self {
        Self(name_hash(name))
    }
}

impl TenantId {
    /// The tenant of clients that prove no other.
    pub const DEFAULT: Self = Self(0);

    /// The id of the tenant with this name; `None` for a name that is too long, has other characters
    /// than `a-z`, `0-9`, `-` and `_`, or hashes to the default tenant.
    pub fn named(name: &str) -> Option<Self> {
        let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
        let good = !name.is_empty() && name.len() <= 64 && name.chars().all(fine);
        let id = Self(name_hash(name) as u32);
        (good && id != Self::DEFAULT).then_some(id)
    }
}

impl GroupId {
    /// The group with this name.
    pub fn named(name: &[u8]) -> Self {
        // Never 0, which says that there is no group.
        Self(xxhash_rust::xxh3::xxh3_64(name).max(1))
    }
}

impl SegmentId {
    /// The id of a node's `index`-th segment.
    pub fn of(node: NodeId, index: u16) -> Self {
        // Odd multiplier: distinct indexes of one node give distinct ids.
        Self(node.0 ^ (u64::from(index) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

impl Generation {
    /// The last usable generation; a slot that reaches it is retired for good (G4).
    pub const MAX: Self = Self(u32::MAX);

    /// The next life, or `None` when the slot is used up.
    pub fn next(self) -> Option<Self> {
        self.0.checked_add(1).map(Self)
    }
}

/// One finished or running put: unique for ever, because leaders never share an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ObjectId {
    /// The leader that granted the put.
    pub epoch: LeaderEpoch,
    /// Counts the puts of that leader.
    pub sequence: u64,
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch.0, self.sequence)
    }
}
