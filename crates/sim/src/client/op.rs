//! One operation of a client.

use super::get::GetOp;
use super::put::PutOp;
use crate::Nanos;
use crate::ctx::Ctx;
use crate::message::{Ask, OpRef};
use mooncrate_check::{Got, OpId, What};
use mooncrate_core::Now;

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Stores a new value.
    Put,
    /// Reads it.
    Get,
    /// Removes it.
    Remove {
        /// Even if somebody holds a lease.
        force: bool,
    },
    /// Asks for it.
    Exist,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// As wished.
    Done,
    /// The key is not there.
    Missed,
    /// Otherwise.
    Failed,
}

/// Whether an operation goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Goes,
    Ends(Outcome),
}

/// An operation under way.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) me: OpRef,
    pub(super) key: u16,
    pub(super) began: Nanos,
    pub(super) deadline: Nanos,
    /// Counts the calls to the master.
    pub(super) attempt: u8,
    /// What the master was asked, until it answers.
    pub(super) asking: Option<Ask>,
    /// When it was asked, on the client's clock.
    pub(super) sent: Now,
    /// When to do something about an answer that does not come.
    pub(super) wait_until: Nanos,
    pub(super) body: Body,
}

#[derive(Debug)]
pub(super) enum Body {
    Put(Box<PutOp>),
    Get(Box<GetOp>),
    Remove { remove: OpId },
    Exist,
}

impl Op {
    pub(super) fn new(me: OpRef, key: u16, began: Nanos, deadline: Nanos) -> Self {
        Self {
            me,
            key,
            began,
            deadline,
            attempt: 0,
            asking: None,
            sent: Now(0),
            wait_until: deadline,
            body: Body::Exist,
        }
    }

    pub(super) fn put(&mut self) -> &mut PutOp {
        match &mut self.body {
            Body::Put(put) => put,
            _ => unreachable!("the caller looked at the body"),
        }
    }

    pub(super) fn get(&mut self) -> &mut GetOp {
        match &mut self.body {
            Body::Get(get) => get,
            _ => unreachable!("the caller looked at the body"),
        }
    }

    /// The process died: what became of the operation is unknown for ever.
    pub(super) fn abandon_history(self, ctx: &mut Ctx) {
        let what = match self.body {
            Body::Put(put) if put.signalled => What::PutUnknown { put: put.id },
            Body::Put(put) => What::PutRefused { put: put.id },
            Body::Get(get) => What::GetEnded { get: get.id, got: Got::Failed },
            Body::Remove { remove } => What::RemoveUnknown { remove },
            Body::Exist => return,
        };
        ctx.observe(self.key, what);
    }
}
