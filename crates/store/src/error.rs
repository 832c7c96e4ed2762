//! What can go wrong, for a program that uses the store or runs a part of it.

use crate::device_error::DeviceError;
use mooncrate_core::error::Advice;
use mooncrate_gpu::GpuError;
use mooncrate_wire::auth::TokenError;
use mooncrate_wire::tls::TlsError;
use std::io;

/// Why a call gave no result, or a server did not start. A missing key is not an error.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call of the client.
    #[error(transparent)]
    Client(#[from] mooncrate_client::Error),
    /// The way between a GPU and the store.
    #[error(transparent)]
    Device(#[from] DeviceError),
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
    /// A token file that cannot be used.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// A server with a derived token.
    #[error(
        "a server needs the cluster's secret, and the token file holds a derived token; give it the \
         file that `mooncrate token new` made"
    )]
    DerivedToken,
    /// Certificates that cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// An address that other machines reach, without credentials.
    #[error(
        "{address} can be reached from other machines, and nobody is asked for credentials; give \
         --token-file, or --tls-cert, --tls-key and --tls-ca, or accept the risk with --insecure-listen"
    )]
    OpenBind {
        /// Where it would listen.
        address: String,
    },
    /// A gRPC door that other machines reach, without credentials or in the clear.
    #[error(
        "gRPC at {address} can be reached from other machines, where its callers must send a token \
         and nobody else may read it; give --tls-cert and --tls-key, with --token-file or --tls-ca, \
         or choose --grpc 127.0.0.1:PORT, or --grpc off"
    )]
    GrpcInTheClear {
        /// Where it would listen.
        address: String,
    },
}

impl Error {
    /// What the caller does next.
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Client(error) => error.advice(),
            Self::Device(error) => error.advice(),
            Self::Node(_)
            | Self::Election(_)
            | Self::Io { .. }
            | Self::Token(_)
            | Self::DerivedToken
            | Self::Tls(_)
            | Self::OpenBind { .. }
            | Self::GrpcInTheClear { .. } => Advice::GiveUp,
        }
    }

    /// Whether the cluster was reached and did not let us in: its words name the way out.
    pub const fn is_denied(&self) -> bool {
        match self {
            Self::Client(mooncrate_client::Error::Master(error))
            | Self::Node(mooncrate_node::NodeError::Call(error)) => error.is_denied(),
            _ => false,
        }
    }

    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }
}

impl From<GpuError> for Error {
    fn from(error: GpuError) -> Self {
        DeviceError::from(error).into()
    }
}
