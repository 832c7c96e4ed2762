//! Errors of the expert exchange as exceptions: each says what to do about it.

use crate::error::{Class, by_advice, make, of_gpu};
use mooncrate::Advice;
use mooncrate_ep::EpError;
use mooncrate_ep::barrier::{Fault, Kind};
use mooncrate_heap::{GroupError, HeapError, Rank};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// The class of an error, and its kind in words for programs.
fn sorted(error: &EpError) -> (Class, &'static str) {
    match error {
        EpError::Config(_) => (Class::Invalid, "invalid"),
        EpError::Shape(_) => (Class::Invalid, "wrong memory"),
        EpError::Order { .. } | EpError::OtherStream { .. } | EpError::OtherRecording { .. } => {
            (Class::Invalid, "order")
        }
        EpError::OtherShape(_) => (Class::Invalid, "other shape"),
        EpError::InUse | EpError::WrongHeap(_) => (Class::Invalid, "wrong heap"),
        EpError::Gpu(error) | EpError::Heap(HeapError::Gpu(error)) => (of_gpu(error), "gpu"),
        EpError::Heap(HeapError::Group(error)) | EpError::Group(error) => of_group(error),
        EpError::Heap(_) => (Class::Unavailable, "no heap"),
        EpError::Fault(fault) => of_fault(fault),
        other => (by_advice(other.advice()), ""),
    }
}

fn of_group(error: &GroupError) -> (Class, &'static str) {
    match error {
        GroupError::BadRank { .. } => (Class::Invalid, "invalid"),
        _ => (Class::Unavailable, "ranks did not meet"),
    }
}

/// A failed step: ranks that are not there are unavailable; bad input is the mistake of the rank that gave it.
fn of_fault(fault: &Fault) -> (Class, &'static str) {
    let of_input = if fault.ranks().has(fault.rank) { Class::Invalid } else { Class::Error };
    match fault.record.cause.kind {
        Kind::Timeout => (Class::Unavailable, "timeout"),
        Kind::Lost => (Class::Unavailable, "lost"),
        Kind::Left => (Class::Unavailable, "left"),
        Kind::Desync => (Class::Error, "desync"),
        Kind::StaleRow => (Class::Error, "stale row"),
        Kind::Overflow => (Class::Error, "overflow"),
        Kind::OutOfOrder => (Class::Error, "out of order"),
        Kind::BadPlace => (Class::Error, "bad place"),
        Kind::TooManyTokens => (of_input, "too many tokens"),
        Kind::BadExpert => (of_input, "bad expert"),
        Kind::TwiceExpert => (of_input, "expert twice"),
        Kind::BadWeight => (of_input, "bad weight"),
    }
}

/// What ends a failed step, and whether it can be done again.
const fn way_out(kind: Kind) -> (&'static str, Advice) {
    let again = Advice::Retry { after_ms: 0 };
    match kind {
        Kind::Lost | Kind::Left => {
            ("start that rank again and make a new Communicator in every rank", Advice::GiveUp)
        }
        Kind::Timeout => ("call reset() in every rank, or start anew if one is gone", again),
        Kind::Desync => {
            ("call the same layers in the same order, after reset() in every rank", again)
        }
        Kind::Overflow => ("make the communicators with a larger rows_max", Advice::GiveUp),
        Kind::OutOfOrder => (
            "capture whole layers, and replay them between layers only, after reset() in every rank",
            again,
        ),
        Kind::StaleRow | Kind::BadPlace => ("call reset() in every rank", again),
        Kind::TooManyTokens | Kind::BadExpert | Kind::TwiceExpert | Kind::BadWeight => {
            ("mend the input, and call reset() in every rank", again)
        }
    }
}

/// The calls of Python, where the exchange names those of Rust.
fn out_of_order(called: &str) -> &'static str {
    if called == "dispatch" {
        "a layer is under way: call combine before the next dispatch, or reset() in every rank"
    } else {
        "nothing was dispatched: call dispatch before combine"
    }
}

// The halves of a layer are one call of Python each, so it is always the second that goes astray.
const OTHER_STREAM: &str = "combine is on another stream than the dispatch of this layer, and nothing else keeps \
                            their order: give both the same stream";
const OTHER_RECORDING: &str = "combine is in another capture than the dispatch of this layer, or outside of it: \
                               capture whole layers. If the capture failed, begin again with dispatch: nothing of \
                               it was done";

/// A failed call as an exception.
#[expect(clippy::needless_pass_by_value, reason = "it is what `map_err` hands over")]
pub(crate) fn exception(py: Python<'_>, error: EpError) -> PyErr {
    let (class, kind) = sorted(&error);
    let (words, advice) = match &error {
        EpError::Fault(fault) => {
            let (way, advice) = way_out(fault.record.cause.kind);
            (format!("{error}: {way}"), advice)
        }
        EpError::Order { called, .. } => (out_of_order(called).to_owned(), Advice::GiveUp),
        EpError::OtherStream { .. } => (OTHER_STREAM.to_owned(), Advice::GiveUp),
        EpError::OtherRecording { .. } => (OTHER_RECORDING.to_owned(), Advice::GiveUp),
        other => (other.to_string(), other.advice()),
    };
    let made = make(py, class, &words, advice);
    let value = made.value(py);
    // A class that takes no attributes has none: nothing else depends on them.
    let _ = value.setattr("kind", kind);
    if let Some(fault) = error.fault() {
        let ranks = fault.ranks().iter().map(Rank::number).collect::<Vec<u8>>();
        let _ = PyTuple::new(py, ranks).and_then(|ranks| value.setattr("ranks", ranks));
    }
    made
}

/// What a call gets after `close`.
pub(crate) fn closed(py: Python<'_>) -> PyErr {
    let words = "this communicator is closed; make a new one in every rank";
    make(py, Class::Closed, words, Advice::GiveUp)
}

/// What a call gets in a child of the process that joined.
pub(crate) fn forked(py: Python<'_>) -> PyErr {
    let words = "this communicator was made before a fork; start the processes of ranks first, and make one \
                 in each";
    make(py, Class::Closed, words, Advice::GiveUp)
}
