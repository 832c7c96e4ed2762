//! One table of answers: every error of the master becomes a number of the proto, a sentence and an
//! advice. What the master did not answer at all becomes a gRPC status.

use crate::pb::{self, Detail, StatusCode};
use mooncrate_core::error::{Advice, GetError, MountError, PutError, RemoveError};
use mooncrate_wire::{CallError, RefusalCode};
use tonic::Status;

/// A call that was judged, and not in the caller's favour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// For programs.
    pub code: StatusCode,
    /// For people.
    pub message: String,
    /// What the caller does next.
    pub advice: Advice,
}

impl Judged {
    /// A judgement in words.
    pub fn new(code: StatusCode, advice: Advice, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), advice }
    }

    /// A field that makes no sense.
    pub fn argument(message: impl Into<String>) -> Self {
        Self::new(StatusCode::InvalidArgument, Advice::GiveUp, message)
    }

    /// What goes into a response beside the number.
    pub fn detail(&self) -> Detail {
        let (advice, after_ms) = match self.advice {
            Advice::GiveUp => (pb::Advice::GiveUp, None),
            Advice::TreatAsDone => (pb::Advice::TreatAsDone, None),
            Advice::Retry { after_ms } => (pb::Advice::Retry, Some(after_ms)),
            Advice::TreatAsMiss => (pb::Advice::TreatAsMiss, None),
        };
        Detail { message: Some(self.message.clone()), advice: Some(advice.into()), after_ms }
    }
}

impl From<PutError> for Judged {
    fn from(error: PutError) -> Self {
        use {PutError as E, StatusCode as C};
        let code = match error {
            E::Key(_) => C::InvalidKey,
            E::Exists => C::Exists,
            E::InProgress { .. } => C::InProgress,
            E::TooLarge { .. } | E::LargerThanAnySegment { .. } => C::TooLarge,
            E::BadReplicas { .. } => C::BadReplicas,
            E::TooFewNodes { .. } => C::TooFewNodes,
            E::NoSegments | E::NoMedium { .. } => C::NoSegments,
            E::Busy { .. } | E::Reclaiming { .. } | E::Held { .. } => C::Busy,
            E::Rebuilding { .. } => C::Rebuilding,
            E::Quota { .. } => C::Quota,
            E::HardFull { .. } => C::PinsFull,
            E::Replacing { .. } => C::Deferred,
            E::BadSeals { .. } => C::BadSeals,
            E::NoSuchPut => C::NoSuchPut,
        };
        Self::new(code, error.advice(), error.to_string())
    }
}

impl From<GetError> for Judged {
    fn from(error: GetError) -> Self {
        let code = match error {
            GetError::Key(_) => StatusCode::InvalidKey,
            GetError::NotFound => StatusCode::NotFound,
            GetError::Rebuilding { .. } => StatusCode::Rebuilding,
        };
        Self::new(code, error.advice(), error.to_string())
    }
}

impl From<RemoveError> for Judged {
    fn from(error: RemoveError) -> Self {
        use {RemoveError as E, StatusCode as C};
        let code = match error {
            E::Key(_) => C::InvalidKey,
            E::NotFound => C::NotFound,
            E::Leased { .. } => C::Leased,
            E::Deferred { .. } => C::Deferred,
            E::InProgress => C::InProgress,
            E::Rebuilding { .. } => C::Rebuilding,
        };
        Self::new(code, error.advice(), error.to_string())
    }
}

impl From<MountError> for Judged {
    fn from(error: MountError) -> Self {
        let code = match error {
            MountError::UnknownNode => StatusCode::UnknownNode,
            _ => StatusCode::BadSegment,
        };
        Self::new(code, error.advice(), error.to_string())
    }
}

/// The gRPC status of a call that was not judged.
pub fn unanswered(error: &CallError) -> Status {
    let words = error.sent();
    match error {
        CallError::Deadline { .. } => Status::deadline_exceeded(words),
        CallError::Busy { .. } => Status::resource_exhausted(words),
        CallError::Io { .. }
        | CallError::Closed { .. }
        | CallError::Away { .. }
        | CallError::NotLeader { .. } => Status::unavailable(words),
        CallError::Interrupted { .. } => Status::cancelled(words),
        CallError::Protocol(_) | CallError::Tls { .. } => Status::internal(words),
        CallError::Refused { code, .. } => match code {
            RefusalCode::Deadline => Status::deadline_exceeded(words),
            RefusalCode::TooMany => Status::resource_exhausted(words),
            RefusalCode::ShuttingDown | RefusalCode::NotLeader => Status::unavailable(words),
            RefusalCode::Denied => Status::permission_denied(words),
            RefusalCode::BadRequest => Status::invalid_argument(words),
            _ => Status::internal(words),
        },
    }
}

/// A response that can say no.
pub(crate) trait Answer: Send + 'static {
    /// The response that carries a judgement and nothing else.
    fn refused(judged: &Judged) -> Self;
}

macro_rules! answers {
    ($($response:ident),*) => {$(
        impl Answer for pb::$response {
            fn refused(judged: &Judged) -> Self {
                Self {
                    status_code: judged.code.into(),
                    detail: Some(judged.detail()),
                    ..Self::default()
                }
            }
        }
    )*};
}
answers!(GetReplicaListResponse, PutStartResponse, PutEndResponse, RemoveResponse);

macro_rules! bare_answers {
    ($($response:ident),*) => {$(
        impl Answer for pb::$response {
            fn refused(judged: &Judged) -> Self {
                Self { status_code: judged.code.into(), detail: Some(judged.detail()) }
            }
        }
    )*};
}
bare_answers!(MountSegmentResponse, UnmountSegmentResponse);

#[cfg(test)]
mod tests {
    use super::*;
    use mooncrate_core::{Incarnation, Medium};
    use tonic::Code;

    /// Numbers are a promise to programs that others have built.
    #[test]
    fn numbers_stay() {
        for (judged, code) in [
            (Judged::from(PutError::Exists), -4),
            (PutError::InProgress { after_ms: 5 }.into(), -5),
            (PutError::NoSuchPut.into(), -6),
            (PutError::TooLarge { len: 1 }.into(), -7),
            (PutError::LargerThanAnySegment { wanted: 2, largest: 1 }.into(), -7),
            (PutError::BadReplicas { wanted: 9 }.into(), -8),
            (PutError::TooFewNodes { wanted: 2, nodes: 1 }.into(), -9),
            (PutError::NoSegments.into(), -10),
            (PutError::NoMedium { medium: Medium::Vram }.into(), -10),
            (PutError::Busy { after_ms: 1 }.into(), -11),
            (PutError::Held { after_ms: 1 }.into(), -11),
            (PutError::Rebuilding { after_ms: 1 }.into(), -12),
            (PutError::Quota { quota: 1, total: 2 }.into(), -13),
            (PutError::HardFull { limit: 1, total: 2 }.into(), -14),
            (PutError::Replacing { after_ms: 1 }.into(), -15),
            (PutError::BadSeals { stripes: 1, seals: 2 }.into(), -16),
            (GetError::NotFound.into(), -3),
            (GetError::Rebuilding { after_ms: 1 }.into(), -12),
            (RemoveError::NotFound.into(), -3),
            (RemoveError::Leased { left_ms: 1 }.into(), -17),
            (RemoveError::Deferred { after_ms: 1 }.into(), -15),
            (RemoveError::InProgress.into(), -5),
            (MountError::UnknownNode.into(), -18),
            (MountError::StaleIncarnation { last: Incarnation(1), over: true }.into(), -20),
            (Judged::argument("x"), -2),
        ] {
            assert_eq!(i32::from(judged.code), code, "{judged:?}");
        }
    }

    #[test]
    fn the_advice_travels_with_the_number() {
        let detail = Judged::from(PutError::Busy { after_ms: 7 }).detail();
        assert_eq!((detail.advice(), detail.after_ms), (pb::Advice::Retry, Some(7)));
        let detail = Judged::from(GetError::NotFound).detail();
        assert_eq!((detail.advice(), detail.after_ms), (pb::Advice::TreatAsMiss, None));
        let detail = Judged::from(PutError::Exists).detail();
        assert_eq!(detail.advice(), pb::Advice::TreatAsDone);
        let refused = pb::RemoveResponse::refused(&RemoveError::NotFound.into());
        assert_eq!(refused.status_code, -3);
        assert_eq!(refused.detail.unwrap().message(), "no such key");
    }

    #[test]
    fn what_was_not_judged_is_a_grpc_status() {
        let refused = |code| CallError::Refused { code, message: "m".into() };
        for (error, code) in [
            (
                CallError::Deadline { awaited: "x", silent: std::time::Duration::ZERO },
                Code::DeadlineExceeded,
            ),
            (refused(RefusalCode::Deadline), Code::DeadlineExceeded),
            (refused(RefusalCode::NotLeader), Code::Unavailable),
            (refused(RefusalCode::TooMany), Code::ResourceExhausted),
            (refused(RefusalCode::Denied), Code::PermissionDenied),
            (refused(RefusalCode::BadRequest), Code::InvalidArgument),
            (refused(RefusalCode::Internal), Code::Internal),
        ] {
            assert_eq!(unanswered(&error).code(), code, "{error:?}");
        }
    }
}
