//! Mounting by name. Memory belongs to running nodes: a mount or unmount here is a command to one of
//! them, by way of its master, and is answered when the master sees that it was carried out.
//!
//! What must stay true: nothing is mounted over something else; a node that does not obey costs the
//! caller its deadline and nothing more.

use crate::pb::StatusCode;
use crate::status::Judged;
use mooncrate_core::error::Advice;
use mooncrate_core::limits::SEGMENTS_PER_NODE_MAX;
use mooncrate_core::time::Deadline;
use mooncrate_core::{NodeId, SegmentId};
use mooncrate_wire::clock::boottime;
use mooncrate_wire::message::{Command, NodeCommand, SegmentRow};
use mooncrate_wire::{CallError, MasterApi};
use std::time::Duration;

/// Between two looks at what a node has mounted.
const LOOK: Duration = Duration::from_millis(20);
/// Segments are whole pages.
const PAGE_BYTES: u64 = 4096;

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
    #[error("{node} has not mounted segment {index}, so there is nothing to unmount")]
    UnknownSegment {
        /// The node.
        node: String,
        /// The segment.
        index: u16,
    },
    /// It is there already.
    #[error("{node} has mounted segment {index} with {bytes} bytes already")]
    Mounted {
        /// The node.
        node: String,
        /// The segment.
        index: u16,
        /// Its bytes.
        bytes: u64,
    },
    /// Another one is in its place.
    #[error(
        "{node} has mounted segment {index} with {bytes} bytes, and one of {wanted} bytes would \
         overlap it; unmount it first, or take another index"
    )]
    Overlaps {
        /// The node.
        node: String,
        /// The segment.
        index: u16,
        /// Its bytes.
        bytes: u64,
        /// Asked for.
        wanted: u64,
    },
    /// It cannot be so large, or so small.
    #[error("a segment of {wanted} bytes cannot be: whole pages of 4096 bytes are needed")]
    BadSize {
        /// Asked for.
        wanted: u64,
    },
    /// The node has as many as it may have.
    #[error("{node} has {count} segments, which is the limit; unmount one first")]
    TooMany {
        /// The node.
        node: String,
        /// Its segments.
        count: usize,
    },
}

impl From<SegmentError> for Judged {
    fn from(error: SegmentError) -> Self {
        use {SegmentError as E, StatusCode as C};
        let (code, advice) = match &error {
            E::UnknownNode { .. } => (C::UnknownNode, Advice::Retry { after_ms: 500 }),
            E::UnknownSegment { .. } => (C::UnknownSegment, Advice::GiveUp),
            E::Mounted { .. } => (C::Exists, Advice::TreatAsDone),
            E::Overlaps { .. } | E::TooMany { .. } => (C::BadSegment, Advice::GiveUp),
            E::BadSize { .. } => (C::InvalidArgument, Advice::GiveUp),
        };
        Self::new(code, advice, error.to_string())
    }
}

/// Outcome of a change: done, refused, or not heard.
pub(crate) type Mounting = Result<Result<(), SegmentError>, CallError>;

/// One segment of a node, as a caller names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named<'a> {
    pub(crate) node: &'a str,
    pub(crate) index: u16,
}

impl Named<'_> {
    fn id(self) -> (NodeId, SegmentId) {
        let node = NodeId::named(self.node);
        (node, SegmentId::of(node, self.index))
    }

    fn unknown_node(self) -> SegmentError {
        SegmentError::UnknownNode { node: self.node.to_owned() }
    }

    /// The segments of this node; an error if it is not registered.
    fn rows(
        self,
        api: &dyn MasterApi,
        deadline: Deadline,
    ) -> Result<Result<Vec<SegmentRow>, SegmentError>, CallError> {
        let (node, _) = self.id();
        if !api.nodes(deadline)?.iter().any(|entry| entry.info.node == node) {
            return Ok(Err(self.unknown_node()));
        }
        let mut rows = api.stat(deadline)?.segments;
        rows.retain(|row| row.offer.node == node);
        Ok(Ok(rows))
    }

    /// The row of this very segment.
    fn own(self, rows: &[SegmentRow]) -> Option<&SegmentRow> {
        let (_, id) = self.id();
        rows.iter().find(|row| row.offer.segment == id)
    }

    /// Sends a command, and looks until `done` says what came of it.
    fn command(
        self,
        api: &dyn MasterApi,
        command: NodeCommand,
        deadline: Deadline,
        done: impl Fn(Option<&SegmentRow>) -> Option<Result<(), SegmentError>>,
    ) -> Mounting {
        let (node, id) = self.id();
        if !api.command(&Command { node, command }, deadline)? {
            return Ok(Err(self.unknown_node()));
        }
        loop {
            let rows = api.stat(deadline)?.segments;
            if let Some(done) = done(rows.iter().find(|row| row.offer.segment == id)) {
                return Ok(done);
            }
            if deadline.passed(boottime()) {
                let awaited = "the node, which may still obey; if not, its log says why";
                return Err(CallError::Deadline { awaited, silent: Duration::ZERO });
            }
            std::thread::sleep(LOOK);
        }
    }

    /// After `Ok` the node offers this segment with exactly so many bytes, and did not before.
    pub(crate) fn mount(self, api: &dyn MasterApi, wanted: u64, deadline: Deadline) -> Mounting {
        let Self { node, index } = self;
        if wanted == 0 || !wanted.is_multiple_of(PAGE_BYTES) {
            return Ok(Err(SegmentError::BadSize { wanted }));
        }
        let rows = match self.rows(api, deadline)? {
            Ok(rows) => rows,
            Err(error) => return Ok(Err(error)),
        };
        let node = || node.to_owned();
        let overlaps = |bytes| SegmentError::Overlaps { node: node(), index, bytes, wanted };
        match self.own(&rows).map(|row| row.offer.bytes) {
            Some(bytes) if bytes == wanted => {
                return Ok(Err(SegmentError::Mounted { node: node(), index, bytes }));
            }
            Some(bytes) => return Ok(Err(overlaps(bytes))),
            None if rows.len() >= SEGMENTS_PER_NODE_MAX => {
                return Ok(Err(SegmentError::TooMany { node: node(), count: rows.len() }));
            }
            None => {}
        }
        let command = NodeCommand::Mount { index, bytes: wanted };
        self.command(api, command, deadline, |row| match row {
            // Somebody else was faster, with another wish.
            Some(row) if row.offer.bytes != wanted => Some(Err(overlaps(row.offer.bytes))),
            Some(row) if row.open => Some(Ok(())),
            _ => None,
        })
    }

    /// After `Ok` no replica of that mount can be found any more, and the node has given it up.
    pub(crate) fn unmount(self, api: &dyn MasterApi, deadline: Deadline) -> Mounting {
        let rows = match self.rows(api, deadline)? {
            Ok(rows) => rows,
            Err(error) => return Ok(Err(error)),
        };
        let Self { node, index } = self;
        let Some(row) = self.own(&rows) else {
            return Ok(Err(SegmentError::UnknownSegment { node: node.to_owned(), index }));
        };
        let was = row.offer.incarnation;
        self.command(api, NodeCommand::Unmount { index }, deadline, |row| {
            row.is_none_or(|row| row.offer.incarnation != was).then_some(Ok(()))
        })
    }
}
