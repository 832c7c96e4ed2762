//! Why a command did not do what was asked: one sentence, the next step, and an exit code.

use mooncrate_core::Advice;
use std::fmt;

/// What the shell sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It was tried and did not work.
    Failed = 1,
    /// It was not tried: arguments or configuration are wrong, or an address is not to be had.
    Usage = 2,
    /// A key is not there.
    NoSuchKey = 3,
}

/// A failure as people read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// For the shell.
    pub(crate) exit: Exit,
    /// One sentence. Empty: everything has been said already.
    pub(crate) message: String,
    /// The next step.
    pub(crate) hint: Option<String>,
}

impl Failure {
    /// It did not work.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self { exit: Exit::Failed, message: message.into(), hint: None }
    }

    /// It was not tried.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, ..Self::failed(message) }
    }

    /// There is no such key.
    pub(crate) fn no_such_key(message: impl Into<String>) -> Self {
        Self { exit: Exit::NoSuchKey, ..Self::failed(message) }
    }

    /// Whoever read our output has gone; there is nobody to tell.
    pub(crate) fn silent() -> Self {
        Self::failed("")
    }

    /// With the next step.
    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.hint.as_ref().map_or(Ok(()), |hint| write!(f, "; {hint}"))
    }
}

/// What to do about an error of the store.
pub(crate) fn hint_of(advice: Advice) -> Option<String> {
    match advice {
        Advice::Retry { after_ms: 0 } => Some("the same command again may succeed".to_owned()),
        Advice::Retry { after_ms } => {
            Some(format!("the same command again in {after_ms} ms may succeed"))
        }
        Advice::GiveUp | Advice::TreatAsDone | Advice::TreatAsMiss => None,
    }
}
