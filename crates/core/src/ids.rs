//! Identifiers and epochs. Never a bare `u64`: a slot is not a segment, a generation is not an
//! incarnation.

use crate::plan::Medium;
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
    /// Which state of a segment a durable list speaks of: of memory its incarnation, of a disk a number
    /// that its directory gets at each start. 0: none, which no list can name.
    Stamp(u64)
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
    /// Whose keys, bytes and connections these are: hash of the tenant's name, 0 for the default
    /// tenant, which has none. It belongs to a link, never to a request: proven by a credential, or in
    /// a cluster that asks for none, claimed.
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

/// Bytes of the longest tenant name.
pub const TENANT_BYTES_MAX: usize = 64;

/// Why a text names no tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a tenant's name has 1 to {TENANT_BYTES_MAX} of A-Z, a-z, 0-9, - and _; choose another one"
)]
pub struct BadTenant;

impl TenantId {
    /// Everybody without a tenant of their own.
    pub const DEFAULT: Self = Self(0);

    /// The tenant of this name; the empty name is the default tenant. Names are compared byte by byte:
    /// `Acme` and `acme` are two tenants. A name that hashes to the default tenant is refused, because
    /// its keys would be everybody's.
    pub fn named(name: &str) -> Result<Self, BadTenant> {
        if name.is_empty() {
            return Ok(Self::DEFAULT);
        }
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if name.len() > TENANT_BYTES_MAX || !name.bytes().all(fits) {
            return Err(BadTenant);
        }
        let hash = name_hash(name);
        match Self((hash ^ (hash >> 32)) as u32) {
            Self::DEFAULT => Err(BadTenant),
            tenant => Ok(tenant),
        }
    }
}

impl NodeId {
    /// The id of the node with this configured name.
    pub fn named(name: &str) -> Self {
        Self(name_hash(name))
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
    /// The id of a node's `index`-th segment of host memory.
    pub fn of(node: NodeId, index: u16) -> Self {
        Self::on(Medium::Dram, node, index)
    }

    /// The id of a node's `index`-th segment on a medium. The medium stands in the two highest bits, so
    /// that whoever holds a locator knows how it is read, without asking anybody.
    pub fn on(medium: Medium, node: NodeId, index: u16) -> Self {
        // Odd multiplier: distinct indexes of one node give distinct ids.
        let id = node.0 ^ (u64::from(index) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let bits = match medium {
            Medium::Dram => 0,
            Medium::Ssd => 1,
            Medium::Vram => 2,
        };
        Self(id << 2 >> 2 | bits << 62)
    }

    /// The id of a disk: the identity of its directory, whichever node has it at whichever position.
    pub const fn disk(token: u64) -> Self {
        Self(token << 2 >> 2 | 1 << 62)
    }

    /// The id of the memory that a node loads from its disks into. No master knows it: what is there is
    /// read by whoever asked for it.
    pub fn staging(node: NodeId) -> Self {
        Self::on(Medium::Dram, node, u16::MAX)
    }

    /// What it lies on.
    pub const fn medium(self) -> Medium {
        match self.0 >> 62 {
            1 => Medium::Ssd,
            2 => Medium::Vram,
            _ => Medium::Dram,
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_tells_its_medium() {
        let node = NodeId::named("a");
        for medium in Medium::ALL {
            assert_eq!(SegmentId::on(medium, node, 3).medium(), medium);
        }
        assert_eq!(SegmentId::of(node, 3), SegmentId::on(Medium::Dram, node, 3));
        assert_ne!(SegmentId::on(Medium::Ssd, node, 3), SegmentId::on(Medium::Ssd, node, 4));
    }

    #[test]
    fn tenants_have_plain_names() {
        assert_eq!(TenantId::named(""), Ok(TenantId::DEFAULT));
        let acme = TenantId::named("acme").unwrap();
        assert_ne!(acme, TenantId::DEFAULT);
        assert_ne!(acme, TenantId::named("acme-2").unwrap());
        assert_ne!(acme, TenantId::named("Acme").unwrap(), "the case of letters counts");
        for bad in ["a b", "a.b", "a/b", "é", &"x".repeat(65)] {
            assert_eq!(TenantId::named(bad), Err(BadTenant), "{bad}");
        }
    }
}
