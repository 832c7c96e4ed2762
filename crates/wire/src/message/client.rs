//! Client to master: put, get, remove, and what tools ask.

use super::{NodeInfo, message};
use crate::codec::{Field, Reader, fields};
use crate::error::DecodeError;
use mooncrate_core::catalog::Counters;
use mooncrate_core::ids::{
    GroupId, Incarnation, LeaderEpoch, ObjectId, PutToken, SegmentId, TenantId,
};
use mooncrate_core::key::Key;
use mooncrate_core::limits::STRIPES_MAX;
use mooncrate_core::plan::{PutConfig, SegmentOffer};
use mooncrate_core::seal::Seal;
use std::borrow::Cow;

message! {
    /// Is the master there?
    pub struct Ping {}
}

message! {
    /// It is.
    pub struct Pong {
        /// Who leads.
        pub epoch: LeaderEpoch,
    }
}

/// One value to make room for. The key is checked by the master: a bad one is an error of this item
/// only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutItem<'a> {
    /// Bytes of the key.
    pub key: &'a [u8],
    /// Bytes of the value.
    pub len: u64,
    /// What it is evicted with; 0: the group of the wishes.
    pub group: GroupId,
}
fields!(PutItem<'a> { key: &'a [u8], len: u64, group: GroupId });

impl<'a> PutItem<'a> {
    /// A value with the group of the wishes.
    pub const fn new(key: &'a [u8], len: u64) -> Self {
        Self { key, len, group: GroupId(0) }
    }
}

message! {
    /// Reserve room for values, with the same wishes for all but for their groups.
    pub struct PutStart<'a> {
        /// The wishes.
        pub config: Cow<'a, PutConfig>,
        /// The values.
        pub items: Cow<'a, [PutItem<'a>]>,
    }
}

message! {
    /// Copies of an open put failed their writer: plan them anew, elsewhere.
    pub struct PutReplan<'a> {
        /// The wishes of the put.
        pub config: Cow<'a, PutConfig>,
        /// Bytes of the key.
        pub key: &'a [u8],
        /// The right to write it.
        pub token: PutToken,
        /// Segments that failed.
        pub failed: Vec<SegmentId>,
    }
}

/// Seals of the stripes of a value, one after the other as they travel: nothing is copied to look at
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealList<'a>(&'a [u8]);

impl<'a> SealList<'a> {
    /// From their encoding; see [`SealList::encode`].
    pub const fn of(encoded: &'a [u8]) -> Self {
        Self(encoded)
    }

    /// The encoding of some seals.
    pub fn encode(seals: &[Seal]) -> Vec<u8> {
        seals.iter().flat_map(|seal| seal.0.to_le_bytes()).collect()
    }

    /// The seals.
    pub fn seals(self) -> Vec<Seal> {
        let (words, _) = self.0.as_chunks();
        words.iter().map(|word| Seal(u64::from_le_bytes(*word))).collect()
    }
}

impl<'a> Field<'a> for SealList<'a> {
    const BYTES_MIN: usize = 4;
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let bytes = <&[u8]>::take(from)?;
        if bytes.is_empty() || !bytes.len().is_multiple_of(8) || bytes.len() > STRIPES_MAX * 8 {
            let what = "the length of a list of seals";
            return Err(DecodeError::BadValue { what, value: bytes.len() as u64 });
        }
        Ok(Self(bytes))
    }
}

/// One written value to make visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutEndItem<'a> {
    /// Bytes of the key.
    pub key: &'a [u8],
    /// The right to end it.
    pub token: PutToken,
    /// What the bytes of each stripe add up to.
    pub seals: SealList<'a>,
}
fields!(PutEndItem<'a> { key: &'a [u8], token: PutToken, seals: SealList<'a> });

message! {
    /// Make written values visible.
    pub struct PutEnd<'a> {
        /// The values.
        pub items: Cow<'a, [PutEndItem<'a>]>,
    }
}

/// One put to take back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutRevokeItem<'a> {
    /// Bytes of the key.
    pub key: &'a [u8],
    /// The right to revoke it.
    pub token: PutToken,
}
fields!(PutRevokeItem<'a> { key: &'a [u8], token: PutToken });

message! {
    /// Give reserved room back.
    pub struct PutRevoke<'a> {
        /// The puts.
        pub items: Cow<'a, [PutRevokeItem<'a>]>,
    }
}

message! {
    /// Where are these objects?
    pub struct Locate<'a> {
        /// Lease wished for, from before this request was sent; 0: none.
        pub lease_ms: u32,
        /// The keys.
        pub keys: Cow<'a, [&'a [u8]]>,
    }
}

message! {
    /// Are these keys there?
    pub struct Exist<'a> {
        /// The keys.
        pub keys: Cow<'a, [&'a [u8]]>,
    }
}

message! {
    /// What is known of these keys: not there, not yet there, there, and where.
    pub struct Look<'a> {
        /// Refuse removes without force of what is found, for the master's `lease_ttl`.
        pub hold: bool,
        /// Return where they are.
        pub places: bool,
        /// The caller is about to read what is found: count it as a read.
        pub reads: bool,
        /// The keys.
        pub keys: Cow<'a, [&'a [u8]]>,
    }
}

message! {
    /// Remove objects.
    pub struct Remove<'a> {
        /// Retire leased objects too. Their bytes still wait for the leases (R13).
        pub force: bool,
        /// The keys.
        pub keys: Cow<'a, [&'a [u8]]>,
    }
}

/// Which keys are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern<'a> {
    /// Those that start so.
    Prefix(&'a [u8]),
    /// Those in which this regular expression finds a match; in the syntax of the `regex` crate,
    /// which needs time in proportion to the key, whatever the expression.
    Regex(&'a str),
}

/// u8 0: prefix; 1: regular expression; then its bytes.
impl<'a> Field<'a> for Pattern<'a> {
    const BYTES_MIN: usize = 5;
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Prefix(bytes) => {
                out.push(0);
                bytes.put(out);
            }
            Self::Regex(text) => {
                out.push(1);
                text.as_bytes().put(out);
            }
        }
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let code = u8::take(from)?;
        let bytes = <&[u8]>::take(from)?;
        match code {
            0 => Ok(Self::Prefix(bytes)),
            1 => Ok(Self::Regex(std::str::from_utf8(bytes).map_err(|_| DecodeError::NotText)?)),
            code => Err(DecodeError::BadValue { what: "a pattern", value: code.into() }),
        }
    }
}

message! {
    /// Remove the objects whose keys match: one bounded step of it.
    pub struct RemoveMatching<'a> {
        /// Which.
        pub pattern: Pattern<'a>,
        /// Retire leased objects too. Their bytes still wait for the leases (R13).
        pub force: bool,
        /// Where the last step ended; 0: at the beginning.
        pub cursor: u64,
    }
}

message! {
    /// What one step did.
    pub struct Removed {
        /// Objects that nobody can read any more.
        pub removed: u64,
        /// Hidden, but an owner has not confirmed it yet.
        pub deferred: u64,
        /// Matched, but leased: they stay.
        pub leased: u64,
        /// Where the next step starts; `None`: this was the last.
        pub next: Option<u64>,
    }
}

message! {
    /// Set what a tenant may use.
    pub struct SetQuota {
        /// Who.
        pub tenant: TenantId,
        /// Bytes of all its replicas; `None`: no limit.
        pub quota: Option<u64>,
    }
}

/// One tenant in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantRow {
    /// Who.
    pub tenant: TenantId,
    /// Bytes of its replicas and open puts.
    pub used_bytes: u64,
    /// The part of them that is pinned hard.
    pub hard_bytes: u64,
    /// What it may use; `None`: no limit.
    pub quota: Option<u64>,
}
fields!(@list ROWS_MAX, TenantRow {
    tenant: TenantId,
    used_bytes: u64,
    hard_bytes: u64,
    quota: Option<u64>,
});

message! {
    /// A page of keys.
    pub struct List<'a> {
        /// Which.
        pub pattern: Pattern<'a>,
        /// Where the last page ended; 0: at the beginning.
        pub cursor: u64,
        /// Most entries.
        pub limit: u32,
    }
}

message! {
    /// One finished object.
    pub struct Listed {
        /// Its key.
        pub key: Key,
        /// Bytes of the value.
        pub len: u64,
        /// The put that stored it.
        pub object: ObjectId,
        /// Copies.
        pub replicas: u8,
    }
}

message! {
    /// A page.
    pub struct Listing {
        /// What was found; may be empty although more follows.
        pub entries: Vec<Listed>,
        /// Where the next page starts; `None`: this was the last.
        pub next: Option<u64>,
    }
}

message! {
    /// How is the cluster?
    pub struct Stat {}
}

/// Most rows of a stat, and most nodes of a directory, in one frame.
const ROWS_MAX: usize = 32_768;

/// One segment in numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentRow {
    /// What its node offered.
    pub offer: SegmentOffer,
    /// Whether new objects are placed on it.
    pub open: bool,
    /// Bytes of live objects and open puts.
    pub used_bytes: u64,
    /// Bytes that wait for readers, writers or leases.
    pub quarantined_bytes: u64,
    /// Largest run of free bytes.
    pub largest_free_run: u64,
    /// Replicas on it.
    pub objects: u64,
}
fields!(@list ROWS_MAX, SegmentRow {
    offer: SegmentOffer,
    open: bool,
    used_bytes: u64,
    quarantined_bytes: u64,
    largest_free_run: u64,
    objects: u64,
});

message! {
    /// The cluster in numbers.
    pub struct ClusterStat {
        /// Under which epoch the leader leads.
        pub epoch: LeaderEpoch,
        /// Who leads, for people; empty where there is no election.
        pub leader: String,
        /// Whether nodes are still to announce what they hold.
        pub rebuilding: bool,
        /// Nodes that are registered.
        pub nodes: u32,
        /// Finished objects.
        pub objects: u64,
        /// Puts under way.
        pub open_puts: u64,
        /// Bytes of all segments.
        pub capacity_bytes: u64,
        /// Bytes of live objects and open puts.
        pub used_bytes: u64,
        /// Bytes that wait for readers, writers or leases.
        pub quarantined_bytes: u64,
        /// Largest run of free bytes anywhere.
        pub largest_free_run: u64,
        /// What this leader has counted since it began.
        pub counters: Counters,
        /// Memory of the index.
        pub index_bytes: u64,
        /// One row per segment.
        pub segments: Vec<SegmentRow>,
        /// One row per tenant that has something, or a quota.
        pub tenants: Vec<TenantRow>,
        /// The directory in which stores of the drop-in keep their disks, unless they name one; empty: none.
        pub disk_root: String,
    }
}

message! {
    /// Where can nodes be reached?
    pub struct Nodes {}
}

/// One node of the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEntry {
    /// Who and where.
    pub info: NodeInfo,
    /// What it has mounted.
    pub segments: Vec<(SegmentId, Incarnation)>,
}
fields!(@list ROWS_MAX, NodeEntry { info: NodeInfo, segments: Vec<(SegmentId, Incarnation)> });
