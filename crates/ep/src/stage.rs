//! Where in a layer a communicator is: calls in another order are refused before anything is sent.

use crate::error::EpError;

/// The last call of a layer that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Nothing of the next layer.
    Combined,
    Dispatched,
    Arrived,
    Packed,
    GivenBack,
    Returned,
}

impl Stage {
    const fn name(self) -> &'static str {
        match self {
            Self::Combined => "combine",
            Self::Dispatched => "dispatch",
            Self::Arrived => "await_rows",
            Self::Packed => "pack",
            Self::GivenBack => "give_back",
            Self::Returned => "await_results",
        }
    }

    /// The stage that must come before this one.
    const fn before(self) -> Self {
        match self {
            Self::Dispatched => Self::Combined,
            Self::Arrived => Self::Dispatched,
            Self::Packed => Self::Arrived,
            Self::GivenBack => Self::Packed,
            Self::Returned => Self::GivenBack,
            Self::Combined => Self::Returned,
        }
    }

    /// Refuses to come to `next` from here.
    pub(crate) fn may(self, next: Self) -> Result<(), EpError> {
        if self == next.before() {
            return Ok(());
        }
        Err(EpError::Order { called: next.name(), before: self.name() })
    }
}
