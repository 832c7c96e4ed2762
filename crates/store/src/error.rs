//! What can go wrong, for a program that uses the store or runs a part of it.

use mooncrate_core::error::Advice;
use std::io;

/// Why a call gave no result, or a server did not start. A missing key is not an error.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call of the client.
    #[error(transparent)]
    Client(#[from] mooncrate_client::Error),
    /// A node could not start.
    #[error("node: {0}")]
    Node(#[from] mooncrate_node::NodeError),
    /// A master could not stand for election.
    #[error("election: {0}")]
    Election(#[from] mooncrate_master::ElectionError),
    /// A socket, a file or a thread.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: String,
        /// What the system said.
        source: io::Error,
    },
}

impl Error {
    /// What the caller does next.
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Client(error) => error.advice(),
            Self::Node(_) | Self::Election(_) | Self::Io { .. } => Advice::GiveUp,
        }
    }

    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }
}
