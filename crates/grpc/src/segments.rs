//! Mounting by name. Memory belongs to running nodes; whoever composes a server says what can be
//! done about it.

use crate::pb::StatusCode;
use crate::status::Judged;
use mooncrate_core::error::{Advice, MountError};
use mooncrate_core::time::Deadline;
use mooncrate_core::{NodeId, SegmentId};
use mooncrate_wire::message::{SegmentRow, Unmount};
use mooncrate_wire::{CallError, MasterApi};

/// Why a segment was not mounted or unmounted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SegmentError {
    /// Nobody of this name.
    #[error("no node named {node} is registered; start it: mooncrate node --node-name {node}")]
    UnknownNode {
        /// The name.
        node: String,
    },
    /// The node runs, but has no such segment.
    #[error("{node} has not mounted segment {index}; it is given its memory when it starts")]
    UnknownSegment {
        /// The node.
        node: String,
        /// The segment.
        index: u16,
    },
    /// It is mounted, but not so.
    #[error("{node} has mounted segment {index} with {bytes} bytes, not with {wanted}")]
    OtherSize {
        /// The node.
        node: String,
        /// The segment.
        index: u16,
        /// Its bytes.
        bytes: u64,
        /// Asked for.
        wanted: u64,
    },
    /// The master, or the node, refused.
    #[error(transparent)]
    Mount(#[from] MountError),
}

impl From<SegmentError> for Judged {
    fn from(error: SegmentError) -> Self {
        let (code, advice) = match &error {
            SegmentError::UnknownNode { .. } => {
                (StatusCode::UnknownNode, Advice::Retry { after_ms: 500 })
            }
            SegmentError::UnknownSegment { .. } => (StatusCode::UnknownSegment, Advice::GiveUp),
            SegmentError::OtherSize { .. } => (StatusCode::BadSegment, Advice::GiveUp),
            SegmentError::Mount(error) => return (*error).into(),
        };
        Self::new(code, advice, error.to_string())
    }
}

/// Outcome of a change: done, refused, or not heard.
pub type Mounting = Result<Result<(), SegmentError>, CallError>;

/// What mounts and unmounts segments of running nodes. `api` is the master as the caller sees it.
pub trait SegmentAdmin: Send + Sync {
    /// After `Ok` the node offers its `index`-th segment with exactly so many bytes. One that it
    /// offers so already is a success.
    fn mount(
        &self,
        api: &dyn MasterApi,
        node: &str,
        index: u16,
        bytes: u64,
        deadline: Deadline,
    ) -> Mounting;

    /// After `Ok` no replica of that mount can be found any more. One that is not mounted is an
    /// error.
    fn unmount(&self, api: &dyn MasterApi, node: &str, index: u16, deadline: Deadline) -> Mounting;
}

/// Segments as the nodes have mounted them by themselves: a mount is confirmed, never made; an
/// unmount takes the mount out of the index, after which a node that runs on comes back with an
/// empty one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mounted;

fn find(
    api: &dyn MasterApi,
    node: &str,
    index: u16,
    deadline: Deadline,
) -> Result<Result<SegmentRow, SegmentError>, CallError> {
    let id = NodeId::named(node);
    let segment = SegmentId::of(id, index);
    let rows = api.stat(deadline)?.segments;
    let mut own = rows.into_iter().filter(|row| row.offer.node == id).peekable();
    if own.peek().is_none() {
        return Ok(Err(SegmentError::UnknownNode { node: node.to_owned() }));
    }
    let found = own.find(|row| row.offer.segment == segment);
    Ok(found.ok_or(SegmentError::UnknownSegment { node: node.to_owned(), index }))
}

impl SegmentAdmin for Mounted {
    fn mount(
        &self,
        api: &dyn MasterApi,
        node: &str,
        index: u16,
        wanted: u64,
        deadline: Deadline,
    ) -> Mounting {
        Ok(find(api, node, index, deadline)?.and_then(|row| match row.offer.bytes {
            bytes if bytes == wanted => Ok(()),
            bytes => Err(SegmentError::OtherSize { node: node.to_owned(), index, bytes, wanted }),
        }))
    }

    fn unmount(&self, api: &dyn MasterApi, node: &str, index: u16, deadline: Deadline) -> Mounting {
        let row = match find(api, node, index, deadline)? {
            Ok(row) => row,
            Err(error) => return Ok(Err(error)),
        };
        let mounts = vec![(row.offer.segment, row.offer.incarnation)];
        let unmount = Unmount { node: row.offer.node, segments: mounts };
        Ok(api.unmount(&unmount, deadline)?.map_err(SegmentError::Mount))
    }
}
