//! Node to master: offer segments, tell what is in them, stay alive, obey.

use super::{NodeCommand, message};
use mooncrate_core::copy::{CopyDone, CopyOrder, DrainMode};
use mooncrate_core::ids::{HostId, Incarnation, LeaderEpoch, NodeId, SegmentId, ZoneId};
use mooncrate_core::plan::{Announced, Notice, Order, SegmentOffer};

message! {
    /// Who a node is and where its data links are.
    pub struct NodeInfo {
        /// Its id.
        pub node: NodeId,
        /// Its configured name.
        pub name: String,
        /// `host:port` of its data listener; empty: none.
        pub tcp: String,
        /// Path of its Unix socket; empty: none.
        pub unix: String,
        /// Its machine.
        pub host: HostId,
        /// Its failure zone.
        pub zone: ZoneId,
    }
}

message! {
    /// A node offers segments. Idempotent by (segment, incarnation) (M8).
    pub struct Mount {
        /// Who.
        pub info: NodeInfo,
        /// The highest leader epoch it obeyed; a master without an election starts above it (R9).
        pub seen: LeaderEpoch,
        /// What it offers.
        pub offers: Vec<SegmentOffer>,
        /// How long an earlier start of it may still be readable, by the word of the last master that it
        /// mounted at; `None`: this process has not mounted anywhere yet.
        pub fence_ms: Option<u32>,
        /// What the last master was draining.
        pub draining: Vec<(SegmentId, DrainMode)>,
    }
}

message! {
    /// The segments are known.
    pub struct Mounted {
        /// Who leads.
        pub epoch: LeaderEpoch,
        /// How long one heartbeat keeps the node registered.
        pub registration_ms: u32,
        /// How long an earlier start of the node may still be readable; to be told to the next master.
        pub fence_ms: u32,
    }
}

message! {
    /// A page of what is in a segment, in the order of its slots (M11).
    pub struct Announce {
        /// The leader that it is for: the one that answered the mount. Before its first page the node has
        /// witnessed this epoch, so no plan of an older leader can come in behind a page.
        pub epoch: LeaderEpoch,
        /// Which segment.
        pub segment: SegmentId,
        /// Which mount.
        pub incarnation: Incarnation,
        /// The slots.
        pub page: Vec<Announced>,
        /// No page follows: from here on the segment takes part.
        pub last: bool,
    }
}

message! {
    /// A node takes segments back.
    pub struct Unmount {
        /// Who.
        pub node: NodeId,
        /// Which mounts; one that is over is ignored.
        pub segments: Vec<(SegmentId, Incarnation)>,
    }
}

message! {
    /// A node is alive. It counts its registration from before it sent this (R10).
    pub struct Heartbeat {
        /// Who.
        pub node: NodeId,
        /// Its latest mount: a process whose name another one has taken over is not heard.
        pub incarnation: Incarnation,
    }
}

message! {
    /// The heartbeat was heard.
    pub struct Pulse {
        /// Who leads.
        pub epoch: LeaderEpoch,
        /// How long it keeps the node registered.
        pub registration_ms: u32,
        /// Which of its segments empty themselves; to be told to the next master.
        pub draining: Vec<(SegmentId, DrainMode)>,
        /// The serving lease: how long the node may serve what it had told all of when it sent the heartbeat,
        /// counted from then. 0: none, because something that it must drop is still readable.
        pub serve_ms: u32,
    }
}

message! {
    /// A node delivers notices and waits for orders: the reply comes when there are some, or when
    /// the wait is over.
    pub struct Orders {
        /// Who.
        pub node: NodeId,
        /// What became of earlier orders, and news.
        pub notices: Vec<Notice>,
        /// What became of copies that were ordered.
        pub copied: Vec<CopyDone>,
        /// Longest wait.
        pub wait_ms: u32,
    }
}

message! {
    /// What the node shall do.
    pub struct OrderBatch {
        /// Who orders; nodes refuse a lower one than they know (G7).
        pub epoch: LeaderEpoch,
        /// The orders.
        pub orders: Vec<Order>,
        /// Copies to fetch.
        pub copies: Vec<CopyOrder>,
        /// Commands of administrators.
        pub commands: Vec<NodeCommand>,
    }
}
