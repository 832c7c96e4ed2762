//! The exceptions, which follow the advice of the errors below.
//!
//! The classes are written in Python (`mooncrate/errors.py`), where people read them; here an error
//! finds its class.

use mooncrate::{Advice, DeviceError, Error};
use mooncrate_client::Error as ClientError;
use mooncrate_core::error::{GetError, PutError, RemoveError};
use mooncrate_gpu::GpuError;
use mooncrate_node::NodeError;
use mooncrate_transfer::TransferError;
use mooncrate_wire::{CallError, DataError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};

/// The classes of `mooncrate.errors`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Error,
    Busy,
    Full,
    Unavailable,
    Denied,
    TooLarge,
    Invalid,
    UnknownSequence,
    Closed,
}

impl Class {
    const ALL: [(Self, &'static str); 9] = [
        (Self::Error, "Error"),
        (Self::Busy, "Busy"),
        (Self::Full, "Full"),
        (Self::Unavailable, "Unavailable"),
        (Self::Denied, "Denied"),
        (Self::TooLarge, "TooLarge"),
        (Self::Invalid, "Invalid"),
        (Self::UnknownSequence, "UnknownSequence"),
        (Self::Closed, "Closed"),
    ];

    fn of(error: &Error) -> Self {
        if error.is_denied() {
            return Self::Denied;
        }
        match error {
            Error::Client(error) => of_client(error),
            Error::Device(error) => of_device(error),
            Error::Token(_) | Error::Tls(_) | Error::DerivedToken => Self::Denied,
            Error::OpenBind { .. } | Error::GrpcInTheClear { .. } => Self::Invalid,
            Error::Node(NodeError::Memory(_)) => Self::TooLarge,
            Error::Node(_) | Error::Election(_) | Error::Io { .. } => by_advice(error.advice()),
        }
    }

    fn object(self, py: Python<'_>) -> PyResult<Bound<'_, PyType>> {
        static CLASSES: PyOnceLock<Vec<Py<PyType>>> = PyOnceLock::new();
        let classes = CLASSES.get_or_try_init(py, || {
            let module = py.import("mooncrate.errors")?;
            let class = |name| Ok(module.getattr(name)?.cast_into::<PyType>()?.unbind());
            Self::ALL.iter().map(|(_, name)| class(*name)).collect::<PyResult<Vec<_>>>()
        })?;
        let index = Self::ALL.iter().position(|(class, _)| *class == self);
        Ok(classes[index.expect("all classes are in the list")].bind(py).clone())
    }
}

/// A GPU that is not there may come; memory or a stream that cannot be used is a mistake of the caller.
fn of_device(error: &DeviceError) -> Class {
    match error {
        DeviceError::Gpu(error) => of_gpu(error),
        DeviceError::Late { .. } | DeviceError::NoRoom { .. } => Class::Busy,
    }
}

pub(crate) const fn of_gpu(error: &GpuError) -> Class {
    match error {
        GpuError::NoDriver | GpuError::NoDevice { .. } | GpuError::OldDriver { .. } => {
            Class::Unavailable
        }
        GpuError::Invalid(_) | GpuError::OutOfBounds { .. } | GpuError::Recording { .. } => {
            Class::Invalid
        }
        _ => Class::Error,
    }
}

fn of_client(error: &ClientError) -> Class {
    match error {
        ClientError::BufferTooSmall { .. }
        | ClientError::Put(PutError::TooLarge { .. } | PutError::LargerThanAnySegment { .. }) => {
            Class::TooLarge
        }
        ClientError::OutOfRange { .. }
        | ClientError::Put(PutError::Key(_) | PutError::BadReplicas { .. })
        | ClientError::Get(GetError::Key(_))
        | ClientError::Remove(RemoveError::Key(_)) => Class::Invalid,
        ClientError::Master(error)
        | ClientError::Transfer(TransferError::Call(error) | TransferError::Unrouted(error)) => {
            of_call(error)
        }
        ClientError::Transfer(TransferError::Data(DataError::Denied)) => Class::Denied,
        ClientError::Transfer(TransferError::Map(_) | TransferError::Silent) => Class::Unavailable,
        other => by_advice(other.advice()),
    }
}

/// Who did not answer is not there; who answered that it has no time is busy.
pub(crate) fn of_call(error: &CallError) -> Class {
    match error {
        CallError::Io { .. }
        | CallError::Deadline { .. }
        | CallError::Closed { .. }
        | CallError::Away { .. }
        | CallError::NotLeader { .. } => Class::Unavailable,
        other => by_advice(other.advice()),
    }
}

pub(crate) const fn by_advice(advice: Advice) -> Class {
    match advice {
        Advice::Retry { .. } => Class::Busy,
        Advice::GiveUp | Advice::TreatAsDone | Advice::TreatAsMiss => Class::Error,
    }
}

/// Finds the classes, when the module is loaded: a fork while that is under way would leave a child that
/// waits for its end.
pub(crate) fn load(py: Python<'_>) -> PyResult<()> {
    Class::Error.object(py).map(drop)
}

/// An error of the store as an exception.
#[expect(clippy::needless_pass_by_value, reason = "it is what `map_err` hands over")]
pub(crate) fn exception(py: Python<'_>, error: Error) -> PyErr {
    let class = Class::of(&error);
    let made = make(py, class, &error.to_string(), error.advice());
    // A class that takes no attributes has no kind: nothing else depends on it.
    let _ = made.value(py).setattr("kind", crate::kind::kind(&error));
    made
}

/// An exception of ours as an object, for lists of results. Making one runs Python, and a signal handler there may
/// raise something else: that is no result, and whoever took it for one would count a failed put as done.
pub(crate) fn listed(py: Python<'_>, made: PyErr) -> PyResult<Py<PyAny>> {
    if made.is_instance(py, Class::Error.object(py)?.as_any()) {
        return Ok(made.into_value(py).into_any());
    }
    Err(made)
}

/// An exception of one of our classes, with advice.
pub(crate) fn make(py: Python<'_>, class: Class, words: &str, advice: Advice) -> PyErr {
    let (name, after) = match advice {
        Advice::GiveUp => ("give up", None),
        Advice::TreatAsDone => ("treat as done", None),
        Advice::TreatAsMiss => ("treat as miss", None),
        Advice::Retry { after_ms } => ("retry", Some(f64::from(after_ms) / 1000.0)),
    };
    let made = class.object(py).and_then(|class| {
        let more = PyDict::new(py);
        more.set_item("advice", name)?;
        more.set_item("retry_after", after)?;
        class.call((words,), Some(&more))
    });
    made.map_or_else(|error| error, PyErr::from_value)
}

/// What a call gets after `close`.
pub(crate) fn closed(py: Python<'_>) -> PyErr {
    make(py, Class::Closed, "the store is closed; open another one", Advice::GiveUp)
}

/// What a call gets in a child of the process that opened the store.
pub(crate) fn forked(py: Python<'_>) -> PyErr {
    let words = "this was opened before a fork, and its threads stayed in the parent process; open a \
                 Store in this process";
    make(py, Class::Closed, words, Advice::GiveUp)
}

/// An argument that makes no sense.
pub(crate) fn invalid(py: Python<'_>, words: &str) -> PyErr {
    make(py, Class::Invalid, words, Advice::GiveUp)
}
