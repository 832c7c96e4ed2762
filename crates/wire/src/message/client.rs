//! Client to master: put, get, remove, and what tools ask.

use super::{NodeInfo, message};
use crate::codec::fields;
use mooncrate_core::ids::{Incarnation, LeaderEpoch, ObjectId, PutToken, SegmentId};
use mooncrate_core::key::Key;
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
}
fields!(PutItem<'a> { key: &'a [u8], len: u64 });

message! {
    /// Reserve room for values, with the same wishes for all.
    pub struct PutStart<'a> {
        /// The wishes.
        pub config: Cow<'a, PutConfig>,
        /// The values.
        pub items: Cow<'a, [PutItem<'a>]>,
    }
}

/// One written value to make visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutEndItem<'a> {
    /// Bytes of the key.
    pub key: &'a [u8],
    /// The right to end it.
    pub token: PutToken,
    /// What its bytes add up to.
    pub seal: Seal,
}
fields!(PutEndItem<'a> { key: &'a [u8], token: PutToken, seal: Seal });

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
    /// Remove objects.
    pub struct Remove<'a> {
        /// Retire leased objects too. Their bytes still wait for the leases (R13).
        pub force: bool,
        /// The keys.
        pub keys: Cow<'a, [&'a [u8]]>,
    }
}

message! {
    /// A page of keys.
    pub struct List<'a> {
        /// Only keys that start so.
        pub prefix: &'a [u8],
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
        /// Objects evicted since this leader began.
        pub evicted_objects: u64,
        /// Bytes evicted since this leader began.
        pub evicted_bytes: u64,
        /// Memory of the index.
        pub index_bytes: u64,
        /// One row per segment.
        pub segments: Vec<SegmentRow>,
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
