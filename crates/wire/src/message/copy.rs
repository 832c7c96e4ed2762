//! Copies and segments as administrators order them, and what clients tell of their reads.

use super::message;
use crate::codec::{Field, Reader};
use crate::error::DecodeError;
use mooncrate_core::copy::DrainMode;
use mooncrate_core::ids::{NodeId, SegmentId};
use mooncrate_core::plan::ReadMark;
use std::borrow::Cow;

/// What is wanted of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DrainWish {
    /// Only tell how far it is.
    Look = 0,
    /// Copy everything elsewhere.
    Move = 1,
    /// Drop everything but hard pins, which are moved.
    Drop = 2,
    /// End it: the segments get objects again.
    Undo = 3,
}

impl<'a> Field<'a> for DrainWish {
    const BYTES_MIN: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(match u8::take(from)? {
            0 => Self::Look,
            1 => Self::Move,
            2 => Self::Drop,
            3 => Self::Undo,
            value => {
                let what = "what is wanted of a drain";
                return Err(DecodeError::BadValue { what, value: u64::from(value) });
            }
        })
    }
}

impl<'a> Field<'a> for DrainMode {
    const BYTES_MIN: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        let wish = match self {
            Self::Move => DrainWish::Move,
            Self::Drop => DrainWish::Drop,
        };
        wish.put(out);
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match DrainWish::take(from)? {
            DrainWish::Move => Ok(Self::Move),
            DrainWish::Drop => Ok(Self::Drop),
            other => {
                Err(DecodeError::BadValue { what: "the mode of a drain", value: other as u64 })
            }
        }
    }
}

message! {
    /// Empty the segments of a node, or tell how far that is. Asking twice is asking once.
    pub struct Drain {
        /// Whose.
        pub node: NodeId,
        /// Which of them; `None`: all.
        pub segment: Option<SegmentId>,
        /// What is wanted.
        pub wish: DrainWish,
    }
}

message! {
    /// An object shall have a copy in a segment.
    pub struct CopyKey<'a> {
        /// Bytes of the key.
        pub key: &'a [u8],
        /// The copy that goes when the new one is there; `None`: one copy more.
        pub from: Option<SegmentId>,
        /// Where the copy shall be.
        pub to: SegmentId,
    }
}

message! {
    /// The copy of an object in one segment shall go.
    pub struct DropCopy<'a> {
        /// Bytes of the key.
        pub key: &'a [u8],
        /// Where the copy is.
        pub segment: SegmentId,
    }
}

message! {
    /// Evict from a segment, in the order that it evicts in anyway, a bounded step. The caller comes again
    /// until enough is gone.
    pub struct Evict {
        /// Which.
        pub segment: SegmentId,
        /// Bytes that may stay in use.
        pub used_max: u64,
    }
}

message! {
    /// What a client has read without asking where it is. Only the eviction order depends on it, so a
    /// report that is lost is not repeated.
    pub struct ReadMarks<'a> {
        /// One mark per object.
        pub marks: Cow<'a, [ReadMark]>,
    }
}

message! {
    /// The answer to [`ReadMarks`].
    pub struct MarksHeard {
        /// The client shall not report again for so long.
        pub pause_ms: u32,
        /// Marks of objects that are gone, or have other copies than the client knows: it asks again.
        pub outdated: Vec<ReadMark>,
    }
}

/// What a node shall do with its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeCommand {
    /// Mount one more segment.
    Mount {
        /// Its number on the node.
        index: u16,
        /// Its bytes.
        bytes: u64,
    },
    /// Give a segment up, with what it holds: drain it first.
    Unmount {
        /// Its number on the node.
        index: u16,
    },
}

/// u8 0: mount, u16 index, u64 bytes; 1: unmount, u16 index.
impl<'a> Field<'a> for NodeCommand {
    const BYTES_MIN: usize = 3;
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Mount { index, bytes } => {
                out.push(0);
                index.put(out);
                bytes.put(out);
            }
            Self::Unmount { index } => {
                out.push(1);
                index.put(out);
            }
        }
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(match u8::take(from)? {
            0 => Self::Mount { index: u16::take(from)?, bytes: u64::take(from)? },
            1 => Self::Unmount { index: u16::take(from)? },
            value => {
                let what = "a command for a node";
                return Err(DecodeError::BadValue { what, value: u64::from(value) });
            }
        })
    }
}

message! {
    /// A command for a node, by way of its master. `stat` shows when it is carried out.
    pub struct Command {
        /// Who.
        pub node: NodeId,
        /// What.
        pub command: NodeCommand,
    }
}
