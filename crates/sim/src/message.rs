//! What travels between actors, and what an actor tells itself at a later time.

use crate::faults::Fault;
use crate::node::Store;
use mooncrate_check::PutId;
use mooncrate_core::catalog::{Mounted, Writer};
use mooncrate_core::copy::{CopyDone, CopyOrder};
use mooncrate_core::error::{GetError, MountError, PutError, RemoveError};
use mooncrate_core::plan::{Announced, Notice, Order, ReadMark, SegmentOffer, Striping};
use mooncrate_core::{
    Incarnation, LeaderEpoch, Located, Locator, Now, ObjectId, PutConfig, PutToken, Seal,
    SegmentId, WritePlan,
};
use std::sync::Arc;
use std::time::Duration;

/// Who sends and who receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actor {
    /// One of the processes that may lead.
    Master(u8),
    /// A process that owns segments.
    Node(u8),
    /// A process that asks.
    Client(u8),
}

/// One operation of one client: an answer to another one is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpRef {
    /// Which client.
    pub client: u8,
    /// Which of its lanes.
    pub lane: u8,
    /// Counts the operations of the client.
    pub id: u32,
}

/// A life of a client process, as masters know it by its links.
pub fn writer(client: u8, boot: u32) -> Writer {
    Writer((u64::from(client) + 1) << 32 | u64::from(boot))
}

/// A connection between a client and a node that serves one step of one operation. Messages of one
/// call keep their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallId {
    /// For which operation.
    pub op: OpRef,
    /// Which of its connections.
    pub part: u8,
    /// The life of the client process: all its connections end with it.
    pub boot: u32,
}

/// A copy that one life of a node process fetches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobId {
    /// Which node fetches.
    pub node: u8,
    /// Which life of it.
    pub boot: u32,
    /// Counts its copies.
    pub number: u32,
}

/// What a put wishes for.
#[derive(Clone, Copy, Debug)]
pub struct Wishes {
    /// Copies.
    pub replicas: u8,
    /// Fewer are fine where there are too few nodes.
    pub best_effort: bool,
    /// Replaces what is there.
    pub upsert: bool,
    /// Removed so long after its first get; 0: not.
    pub expire_ms: u32,
    /// Copies in VRAM.
    pub vram: u8,
}

/// Stripes of a value at most, here.
pub const STRIPES: usize = 4;

/// One seal per stripe.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seals {
    list: [Seal; STRIPES],
    count: u8,
}

impl Seals {
    /// One more.
    pub fn push(&mut self, seal: Seal) {
        self.list[usize::from(self.count)] = seal;
        self.count += 1;
    }

    /// All of them.
    pub fn all(&self) -> &[Seal] {
        &self.list[..self.count.into()]
    }
}

impl Wishes {
    /// In the master's words.
    pub fn config(self) -> PutConfig {
        let Self { replicas, best_effort, upsert, expire_ms, vram } = self;
        let media = [vram, 0, 0];
        PutConfig { replicas, best_effort, media, upsert, expire_ms, ..PutConfig::default() }
    }
}

/// What a client asks the master.
#[derive(Clone, Copy, Debug)]
pub enum Ask {
    /// Room for a value.
    PutStart {
        /// Bytes.
        len: u64,
        /// How it is to be kept.
        wishes: Wishes,
    },
    /// The value is in place everywhere.
    PutEnd {
        /// The right to say so.
        token: PutToken,
        /// Of the value.
        seals: Seals,
    },
    /// An owner failed its writer: elsewhere.
    Replan {
        /// The right to say so.
        token: PutToken,
        /// Where it failed.
        failed: SegmentId,
        /// How it is to be kept.
        wishes: Wishes,
    },
    /// The put is given up.
    Revoke {
        /// The right to say so.
        token: PutToken,
    },
    /// Where is it?
    Locate {
        /// And do not free it for so long.
        lease_ms: u32,
    },
    /// It was read from the cache. Nobody answers.
    Reads {
        /// How often, and where.
        mark: ReadMark,
    },
    /// Is it there?
    Exist,
    /// Away with it.
    Remove {
        /// Even if somebody holds a lease.
        force: bool,
    },
}

/// A call of a client to the master.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// For which operation.
    pub op: OpRef,
    /// In which life of its client.
    pub boot: u32,
    /// Which attempt: a late answer to an earlier one is ignored.
    pub attempt: u8,
    /// Which key, by its number in the run.
    pub key: u16,
    /// How long the caller waits.
    pub budget_ms: u32,
    /// What.
    pub ask: Ask,
}

/// What the master answers.
#[derive(Clone, Debug)]
pub enum Answer {
    /// To `PutStart` and `Replan`.
    Plan(Result<WritePlan, PutError>),
    /// To `PutEnd` and `Revoke`.
    Ended(Result<(), PutError>),
    /// To `Locate`.
    Located(Result<Located, GetError>),
    /// To `Exist`.
    Exists(Result<bool, GetError>),
    /// To `Remove`.
    Removed(Result<(), RemoveError>),
    /// Ask somebody else.
    NotLeader,
}

/// To a master.
#[derive(Clone, Debug)]
pub enum ToMaster {
    /// From a client.
    Call(Call),
    /// The last link of a client has ended, a while ago.
    WriterGone(Writer),
    /// A node offers its segments.
    Mount {
        /// Which node.
        node: u8,
        /// Which attempt.
        round: u32,
        /// How long an earlier mount of the node may still be readable, by a leader's word.
        fence: Option<Duration>,
        /// The segments.
        offers: Vec<SegmentOffer>,
    },
    /// A node tells what it holds.
    Announce {
        /// The leader that it is for.
        epoch: LeaderEpoch,
        /// Which node.
        node: u8,
        /// Of which mount attempt.
        round: u32,
        /// Which page of it.
        page: u32,
        /// About which segment.
        segment: SegmentId,
        /// Which mount of it.
        incarnation: Incarnation,
        /// Slots.
        slots: Vec<Announced>,
        /// No more of this segment follow.
        last: bool,
    },
    /// A node is alive.
    Beat {
        /// Which node.
        node: u8,
        /// On the node's clock.
        sent: Now,
    },
    /// A node says farewell.
    Unmount {
        /// Which node.
        node: u8,
        /// What it had mounted.
        segments: Vec<(SegmentId, Incarnation)>,
    },
    /// What became of copies.
    Copied {
        /// They.
        list: Vec<CopyDone>,
    },
    /// What became of orders and slots.
    Notices {
        /// They.
        list: Vec<Notice>,
    },
}

/// To a node.
#[derive(Clone, Debug)]
pub enum ToNode {
    /// Answer to `Mount`.
    Mounted {
        /// Which attempt.
        round: u32,
        /// Who answers.
        epoch: LeaderEpoch,
        /// How long an earlier mount of the node may still be readable.
        fence: Duration,
        /// What to do next.
        result: Result<Vec<Mounted>, MountError>,
    },
    /// Answer to `Announce`.
    Announced {
        /// Which attempt.
        round: u32,
        /// Which page.
        page: u32,
        /// Who answers.
        epoch: LeaderEpoch,
        /// Whether it was understood.
        result: Result<(), MountError>,
    },
    /// Answer to `Beat`.
    BeatAck {
        /// When the beat was sent.
        sent: Now,
        /// Who answers.
        epoch: LeaderEpoch,
        /// Whether the node is known.
        result: Result<(), MountError>,
        /// Whether it may serve.
        serve: bool,
    },
    /// What to do with slots.
    Orders {
        /// Who orders.
        epoch: LeaderEpoch,
        /// In this order.
        list: Vec<Order>,
    },
    /// Copies to fetch from other owners.
    Copies {
        /// They.
        list: Vec<CopyOrder>,
    },
    /// Another node wants bytes, or the memory they are in.
    Fetch {
        /// For which copy.
        job: JobId,
        /// Which.
        locator: Locator,
        /// Bytes of the value.
        len: u64,
        /// It runs on this host and reads by itself.
        mapped: bool,
    },
    /// Bytes of a copy.
    Fetched {
        /// For which copy.
        job: JobId,
        /// Where they belong.
        offset: u64,
        /// They.
        bytes: Vec<u8>,
        /// No more follow.
        last: bool,
    },
    /// The memory to copy from; `None`: nothing can be read there.
    Lent {
        /// For which copy.
        job: JobId,
        /// The mapping.
        store: Option<Arc<Store>>,
    },
    /// A client opens a slot for writing.
    Begin(Box<Begin>),
    /// The next bytes of a value. They are not carried: stamps can be made anywhere.
    Chunk {
        /// On which connection.
        call: CallId,
        /// Where they go.
        offset: u64,
        /// How many.
        len: u32,
    },
    /// The value is complete.
    Signal {
        /// On which connection.
        call: CallId,
        /// The right to say so.
        token: PutToken,
        /// Of the value.
        seal: Seal,
    },
    /// The connection is over.
    HangUp {
        /// Which.
        call: CallId,
    },
    /// A client process is gone, and all its connections with it.
    Gone {
        /// Which client.
        client: u8,
        /// Which life of it, and all earlier ones.
        boot: u32,
    },
    /// A client wants bytes.
    Read {
        /// On which connection.
        call: CallId,
        /// Which.
        locator: Locator,
        /// Bytes of the value.
        len: u64,
        /// In how many frames.
        frames: u8,
    },
    /// A client wants the owner to pin for it (R4).
    Pin {
        /// On which connection.
        call: CallId,
        /// What.
        locator: Locator,
    },
    /// A reader has found bytes that are not those that were sealed.
    Verify {
        /// Where.
        locator: Locator,
        /// What they should add up to.
        seal: Seal,
    },
    /// A client wants to map a segment.
    Attach {
        /// On which connection.
        call: CallId,
        /// Which segment.
        segment: SegmentId,
        /// Which mount of it.
        incarnation: Incarnation,
    },
}

/// How the bytes of a put travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// In one frame, published at once.
    Whole,
    /// In several frames, then a signal.
    Stream,
    /// Stored by the client into the mapped segment, then a signal.
    Direct,
}

/// A client opens a slot for writing.
#[derive(Clone, Debug)]
pub struct Begin {
    /// On which connection.
    pub call: CallId,
    /// How.
    pub path: Path,
    /// Where.
    pub locator: Locator,
    /// The right to write it.
    pub token: PutToken,
    /// The put, in the master's words.
    pub object: ObjectId,
    /// The leader that planned it.
    pub epoch: LeaderEpoch,
    /// The value, and how it is cut.
    pub striping: Striping,
    /// Which key.
    pub key: u16,
    /// How it is to be kept.
    pub wishes: Wishes,
    /// The put, in the oracle's words.
    pub put: PutId,
    /// Of the stripe; used when it comes whole.
    pub seal: Seal,
}

/// Why a node did not do what a client asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataError {
    /// The slot lives another life, or the segment is another mount.
    Stale,
    /// The node may not serve now.
    Fenced,
    /// The plan is that of a leader who was replaced.
    OldEpoch,
    /// The put was aborted.
    Aborted,
    /// Anything else.
    Refused,
}

/// To a client.
#[derive(Clone, Debug)]
pub enum ToClient {
    /// From the master.
    Answer {
        /// For which operation.
        op: OpRef,
        /// To which attempt.
        attempt: u8,
        /// What.
        answer: Answer,
    },
    /// A slot is open for direct stores.
    Begun {
        /// On which connection.
        call: CallId,
        /// The mapped segment.
        result: Result<Arc<Store>, DataError>,
    },
    /// A value was published, or not.
    Written {
        /// On which connection.
        call: CallId,
        /// Which.
        result: Result<(), DataError>,
    },
    /// Bytes of a value.
    Frame {
        /// On which connection.
        call: CallId,
        /// Where they belong.
        offset: u64,
        /// They.
        bytes: Vec<u8>,
        /// No more follow.
        last: bool,
    },
    /// A pin was taken, or a read was refused.
    Pinned {
        /// On which connection.
        call: CallId,
        /// Which.
        result: Result<(), DataError>,
    },
    /// A segment was mapped, or not.
    Attached {
        /// On which connection.
        call: CallId,
        /// The mapping.
        store: Option<Arc<Store>>,
    },
    /// A connection broke.
    Broken {
        /// Which.
        call: CallId,
    },
}

/// What happens at a point in time.
#[derive(Clone, Debug)]
pub enum Event {
    /// A message arrives at a master.
    Master(u8, ToMaster),
    /// A message arrives at a node.
    Node(u8, ToNode),
    /// A message arrives at a client.
    Client(u8, ToClient),
    /// A master looks after itself.
    MasterTick(u8, u32),
    /// A node looks after its segments.
    NodeTick(u8, u32),
    /// A node sends its heartbeat.
    NodeBeat(u8, u32),
    /// A node sends the next frame of a read.
    NodeFrame(u8, u32, CallId),
    /// A node takes the next step of a copy, if it is still at this turn of it.
    NodeCopy(JobId, u32),
    /// A client looks at its deadlines.
    ClientTick(u8, u32),
    /// A lane starts its next operation.
    Lane(u8, u32, u8),
    /// An operation takes its next step; `part` says which of its connections.
    Step(OpRef, u8),
    /// A put that was given up goes on storing.
    Zombie(u8, u32, u32),
    /// Somebody may become the leader.
    Election,
    /// Something breaks.
    Fault(Fault),
    /// A master stands still for this long.
    Stall(u8, u64),
    /// An actor that stood still goes on.
    Resume(Actor),
    /// A process starts again.
    Restart(Actor),
    /// The guard of a dead node process: which node, which life of it, which attempt.
    Guard(u8, u32, u8),
    /// A node with a disk is away for a while.
    Away,
    /// The operator looks after the drain.
    Operator,
    /// Everything is looked at.
    Audit,
    /// The finale takes its next step.
    Finale,
}
