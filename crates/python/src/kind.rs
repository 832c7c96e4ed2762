//! What kind of error it was, in one or two words: for programs that need to tell more than the class
//! and the advice do, such as packages with codes of their own.
//!
//! What must stay true: a word means the same for ever; a new error may get a new word.

use mooncrate::{DeviceError, Error, SessionError};
use mooncrate_client::Error as ClientError;
use mooncrate_core::error::{CopyError, GetError, PutError, RemoveError};
use mooncrate_node::NodeError;
use mooncrate_transfer::TransferError;
use mooncrate_wire::{CallError, DataError, RefusalCode};
use std::io::ErrorKind;

/// The word for an error.
pub(crate) fn kind(error: &Error) -> &'static str {
    if error.is_denied() {
        return "denied";
    }
    match error {
        Error::Client(error) => of_client(error),
        Error::Device(error) => match error {
            DeviceError::Gpu(_) => "gpu",
            DeviceError::Late { .. } => "late stream",
            DeviceError::NoRoom { .. } => "no pinned room",
        },
        Error::Node(NodeError::Memory(_)) => "too large",
        Error::Node(NodeError::Disk { source, .. }) if source.kind() == ErrorKind::ResourceBusy => {
            "disk in use"
        }
        Error::Node(NodeError::Disk { .. }) => "no disk",
        Error::Node(_) => "node",
        Error::Election(_) => "election",
        Error::Io { .. } => "io",
        Error::Token(_) | Error::Tls(_) | Error::DerivedToken => "denied",
        Error::OpenBind { .. } | Error::GrpcInTheClear { .. } => "open bind",
    }
}

const fn of_client(error: &ClientError) -> &'static str {
    match error {
        ClientError::Put(error) => of_put(error),
        ClientError::Get(error) => match error {
            GetError::Key(_) => "bad key",
            GetError::NotFound => "missing",
            GetError::Rebuilding { .. } => "rebuilding",
        },
        ClientError::Remove(error) => match error {
            RemoveError::Key(_) => "bad key",
            RemoveError::NotFound => "missing",
            RemoveError::Leased { .. } => "leased",
            RemoveError::Deferred { .. } => "deferred",
            RemoveError::InProgress => "in progress",
            RemoveError::Rebuilding { .. } => "rebuilding",
        },
        ClientError::Copy(error) => match error {
            CopyError::Key(_) => "bad key",
            CopyError::NotFound => "missing",
            CopyError::NoSource => "no source",
            CopyError::NoTarget => "no target",
            CopyError::NoRoom { .. } => "no room",
            CopyError::Busy { .. } => "busy",
        },
        ClientError::Master(error) => of_call(error),
        ClientError::Transfer(error) | ClientError::Restless { last: error, .. } => {
            of_transfer(error)
        }
        ClientError::Session(error) => of_session(*error),
        ClientError::BufferTooSmall { .. } => "too small",
        ClientError::OutOfRange { .. } => "out of range",
    }
}

const fn of_put(error: &PutError) -> &'static str {
    match error {
        PutError::Key(_) => "bad key",
        PutError::Exists => "exists",
        PutError::InProgress { .. } => "in progress",
        PutError::TooLarge { .. } => "too large",
        PutError::LargerThanAnySegment { .. }
        | PutError::Busy { .. }
        | PutError::Reclaiming { .. }
        | PutError::NoSegments
        | PutError::NoMedium { .. }
        | PutError::HardFull { .. } => "no room",
        PutError::BadReplicas { .. } | PutError::TooFewNodes { .. } => "bad replicas",
        PutError::Rebuilding { .. } => "rebuilding",
        PutError::Held { .. } => "held",
        PutError::Quota { .. } => "quota",
        PutError::Replacing { .. } => "replacing",
        PutError::BadSeals { .. } | PutError::NoSuchPut => "no such put",
    }
}

const fn of_transfer(error: &TransferError) -> &'static str {
    match error {
        TransferError::Data(DataError::Corrupt) => "corrupt",
        TransferError::Data(DataError::Denied) => "denied",
        TransferError::Unrouted(error) => of_call(error),
        // An owner that did not answer; a master that did not is "unreachable".
        TransferError::Call(_)
        | TransferError::Data(_)
        | TransferError::Fenced
        | TransferError::Length { .. }
        | TransferError::NoRoute
        | TransferError::Silent
        | TransferError::Map(_)
        | TransferError::NotTried => "transfer",
    }
}

const fn of_call(error: &CallError) -> &'static str {
    match error {
        CallError::Deadline { .. } => "deadline",
        CallError::Refused { code: RefusalCode::BadRequest, .. } => "bad request",
        CallError::Refused { code: RefusalCode::Denied, .. } => "denied",
        _ => "unreachable",
    }
}

const fn of_session(error: SessionError) -> &'static str {
    match error {
        SessionError::Over => "over",
        SessionError::Broken => "broken",
        SessionError::TimedOut => "timed out",
        SessionError::Overlap { .. } => "overlap",
        SessionError::Gap { .. } => "gap",
        SessionError::OutOfRange { .. } => "out of range",
        SessionError::Scattered { .. } => "scattered",
        SessionError::LeaseOver => "lease over",
    }
}
