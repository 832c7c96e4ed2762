//! Every request and reply as a plain value. A request knows its kind; its reply has the same one.
//! `encode` appends a body, `decode` reads one and consumes it completely.
//!
//! Requests borrow: keys point into the buffer they arrived in, and lists are encoded from the
//! caller's own slices, so that a batch of a thousand keys costs one allocation on either side.

mod client;
mod copy;
mod data;
mod hello;
mod node;

pub use client::{
    ClusterStat, Exist, List, Listed, Listing, Locate, Look, NodeEntry, Nodes, Pattern, Ping, Pong,
    PutEnd, PutEndItem, PutItem, PutReplan, PutRevoke, PutRevokeItem, PutStart, Remove,
    RemoveMatching, Removed, SealList, SegmentRow, SetQuota, Stat, TenantRow,
};
pub use copy::{
    Command, CopyKey, Drain, DrainWish, DropCopy, Evict, MarksHeard, NodeCommand, ReadMarks,
};
pub use data::{
    Abandon, Attach, Attached, Begin, BeginWrite, Lend, Lent, Open, Pin, PinId, Read, ReadReply,
    Release, Signal, Stage, StageItem, Staged, Unpin, Verify, Write, WritePart,
};
pub use hello::{
    Challenge, Claim, Hello, HelloAck, NAME_BYTES_MAX, Proof, Role, ServerProof, agree,
};
pub use node::{Announce, Heartbeat, Mount, Mounted, NodeInfo, OrderBatch, Orders, Pulse, Unmount};

use crate::codec::{Field, Reader};
use crate::error::{DataError, DecodeError, Refusal};
use crate::kind::Kind;
use mooncrate_core::catalog::InUse;
use mooncrate_core::copy::DrainStat;
use mooncrate_core::error::{CopyError, GetError, MountError, PutError, RemoveError};
use mooncrate_core::plan::{Located, Looked, WritePlan};

/// A struct whose fields travel in the order in which they stand.
macro_rules! message {
    (
        $(#[$meta:meta])*
        pub struct $name:ident $(<$lt:lifetime>)? {
            $($(#[$doc:meta])* pub $field:ident: $ty:ty,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name $(<$lt>)? { $($(#[$doc])* pub $field: $ty,)* }

        $crate::codec::fields!($name $(<$lt>)? { $($field: $ty),* });

        impl $(<$lt>)? $name $(<$lt>)? {
            /// Appends the body.
            pub fn encode(&self, out: &mut Vec<u8>) {
                $crate::codec::Field::put(self, out);
            }

            /// Reads a whole body.
            pub fn decode(body: &$($lt)? [u8]) -> Result<Self, $crate::error::DecodeError> {
                $crate::codec::decode(body)
            }
        }
    };
}
use message;

/// All messages of one direction of one kind of link.
macro_rules! family {
    (
        $(#[$meta:meta])*
        pub enum $name:ident $(<$lt:lifetime>)? {
            $($(#[$doc:meta])* $variant:ident($ty:ty),)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum $name $(<$lt>)? { $($(#[$doc])* $variant($ty),)* }

        impl $(<$lt>)? $name $(<$lt>)? {
            /// The kind of the frame that carries it.
            pub const fn kind(&self) -> Kind {
                match self { $(Self::$variant(_) => Kind::$variant,)* }
            }

            /// Appends the body.
            pub fn encode(&self, out: &mut Vec<u8>) {
                match self { $(Self::$variant(message) => message.put(out),)* }
            }

            /// Reads the whole body of a frame of this kind.
            pub fn decode(kind: Kind, body: &$($lt)? [u8]) -> Result<Self, DecodeError> {
                let mut reader = Reader::new(body);
                let message = match kind {
                    $(Kind::$variant => Self::$variant(Field::take(&mut reader)?),)*
                    kind => return Err(DecodeError::Unexpected { kind }),
                };
                reader.finish()?;
                Ok(message)
            }
        }
    };
}

family! {
    /// What a client or a node asks a master.
    pub enum Request<'a> {
        /// Is it there, and who leads?
        Ping(Ping),
        /// Reserve room.
        PutStart(PutStart<'a>),
        /// Make written values visible.
        PutEnd(PutEnd<'a>),
        /// Give reserved room back.
        PutRevoke(PutRevoke<'a>),
        /// Where are these objects?
        Locate(Locate<'a>),
        /// Are these keys there? Grants no lease (M12).
        Exist(Exist<'a>),
        /// What is known of these keys?
        Look(Look<'a>),
        /// Remove objects.
        Remove(Remove<'a>),
        /// A page of keys.
        List(List<'a>),
        /// Numbers of the cluster.
        Stat(Stat),
        /// Where nodes can be reached.
        Nodes(Nodes),
        /// Plan failed copies anew.
        PutReplan(PutReplan<'a>),
        /// Remove what matches, a step.
        RemoveMatching(RemoveMatching<'a>),
        /// Set what a tenant may use.
        SetQuota(SetQuota),
        /// Empty segments, or look how far that is.
        Drain(Drain),
        /// Evict from a segment.
        Evict(Evict),
        /// Copy or move an object.
        Copy(CopyKey<'a>),
        /// End one copy of an object.
        DropCopy(DropCopy<'a>),
        /// A command for a node.
        Command(Command),
        /// A node offers segments.
        Mount(Mount),
        /// A node tells what is in a segment.
        Announce(Announce),
        /// A node takes segments back.
        Unmount(Unmount),
        /// A node is alive.
        Heartbeat(Heartbeat),
        /// A node delivers notices and waits for orders.
        Orders(Orders),
        /// Reads that asked nobody.
        ReadMarks(ReadMarks<'a>),
    }
}

family! {
    /// What a master answers. Lists hold one result per item of the request, in its order (G11).
    #[expect(clippy::large_enum_variant, reason = "replies are made and sent one at a time")]
    pub enum Reply {
        /// It is there.
        Ping(Pong),
        /// Plans.
        PutStart(Vec<Result<WritePlan, PutError>>),
        /// Visible, or not.
        PutEnd(Vec<Result<(), PutError>>),
        /// Given back, or not.
        PutRevoke(Vec<Result<(), PutError>>),
        /// Locators.
        Locate(Vec<Result<Located, GetError>>),
        /// There, or not.
        Exist(Vec<Result<bool, GetError>>),
        /// What is known.
        Look(Vec<Result<Looked, GetError>>),
        /// Removed, or not.
        Remove(Vec<Result<(), RemoveError>>),
        /// A page.
        List(Listing),
        /// Numbers.
        Stat(ClusterStat),
        /// The directory.
        Nodes(Vec<NodeEntry>),
        /// A plan for the copies that failed.
        PutReplan(Result<WritePlan, PutError>),
        /// What the step did.
        RemoveMatching(Result<Removed, RemoveError>),
        /// Set.
        SetQuota(()),
        /// How far it is; `None`: there is no such node or segment.
        Drain(Option<DrainStat>),
        /// How it stands then; `None`: there is no such segment in memory.
        Evict(Option<InUse>),
        /// The copy is there, or not.
        Copy(Result<(), CopyError>),
        /// The copy is gone, or not.
        DropCopy(Result<(), CopyError>),
        /// On its way; false: there is no such node.
        Command(bool),
        /// Mounted, or not.
        Mount(Result<Mounted, MountError>),
        /// Taken in, or not.
        Announce(Result<(), MountError>),
        /// Unmounted, or not.
        Unmount(Result<(), MountError>),
        /// Heard, or not.
        Heartbeat(Result<Pulse, MountError>),
        /// Orders, or none within the wait.
        Orders(Result<OrderBatch, MountError>),
        /// Heard; what the client should look up again.
        ReadMarks(MarksHeard),
        /// The request was not handled at all.
        Refuse(Refusal),
    }
}

family! {
    /// What a client asks a node.
    pub enum DataRequest<'a> {
        /// Descriptors of a segment in shared memory.
        Attach(Attach),
        /// A put through shared memory begins.
        Begin(Begin<'a>),
        /// A put whose value is attached.
        Write(Write<'a>),
        /// The bytes are in place: publish.
        Signal(Signal),
        /// Bytes of a replica.
        Read(Read),
        /// Keep these replicas in place.
        Pin(Pin<'a>),
        /// Let them go.
        Unpin(Unpin<'a>),
        /// The writer gave up.
        Abandon(Abandon),
        /// A put in parts begins.
        Open(Open<'a>),
        /// A part of it, attached.
        WritePart(WritePart),
        /// Load values from a disk.
        Stage(Stage<'a>),
        /// They were read.
        Release(Release<'a>),
        /// Sum a replica that a reader found wrong.
        Verify(Verify),
        /// Descriptor of a segment in memory of a GPU.
        Lend(Lend),
    }
}

family! {
    /// What a node answers.
    pub enum DataReply {
        /// The segment; its descriptors travel with the frame.
        Attach(Result<Attached, DataError>),
        /// The slot is the writer's.
        Begin(Result<(), DataError>),
        /// The bytes are in place at the owner.
        Write(Result<(), DataError>),
        /// Published.
        Signal(Result<(), DataError>),
        /// The bytes are attached.
        Read(ReadReply),
        /// One pin per locator.
        Pin(Vec<Result<PinId, DataError>>),
        /// Gone; unknown ids are gone already.
        Unpin(()),
        /// The slot is the owner's again.
        Abandon(Result<(), DataError>),
        /// The slot is the writer's.
        Open(Result<(), DataError>),
        /// The part is in place at the owner.
        WritePart(Result<(), DataError>),
        /// Where each value was loaded to.
        Stage(Vec<Result<Staged, DataError>>),
        /// Gone; what is unknown is gone already.
        Release(()),
        /// Whether the bytes are those that were sealed, under that seal; `false`: the owner has retired the
        /// replica, or told the master what it holds instead.
        Verify(Result<bool, DataError>),
        /// The memory; its descriptor travels with the frame.
        Lend(Result<Lent, DataError>),
        /// The request was not handled at all.
        Refuse(Refusal),
    }
}
