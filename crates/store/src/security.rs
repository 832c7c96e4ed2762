//! Credentials, from the files that an operator names.

use crate::error::Error;
use mooncrate_wire::auth::Token;
use mooncrate_wire::tls::TlsFiles;
use mooncrate_wire::{Access, Address, Gate};
use std::path::PathBuf;
use std::sync::Arc;

/// The files. All are optional; without any, nobody is asked for anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// The cluster's secret, or a token derived from it.
    pub token_file: Option<PathBuf>,
    /// Certificate, key and CA.
    pub tls: TlsFiles,
}

/// What a server asks for, and what it shows to others.
#[derive(Clone, Debug, Default)]
pub struct Security {
    /// For its callers.
    pub gate: Gate,
    /// For those it calls.
    pub access: Access,
    /// Whether it may listen where other machines reach it although nobody is asked for anything.
    pub insecure_listen: bool,
}

impl Security {
    /// Protected mode: without credentials a server listens where only this machine can reach it.
    pub fn check_listen(&self, address: &Address) -> Result<(), Error> {
        if self.insecure_listen || self.gate.is_guarded() {
            return Ok(());
        }
        let reached = address.is_loopback().map_err(Error::io(format!("looking up {address}")))?;
        if reached { Ok(()) } else { Err(Error::OpenBind { address: address.to_string() }) }
    }

    /// Beyond loopback the gRPC door asks for credentials and is encrypted: a bearer token is sent as
    /// it is.
    pub fn check_grpc(&self, address: &Address) -> Result<(), Error> {
        if self.gate.is_guarded() && self.gate.tls().is_some() {
            return Ok(());
        }
        let local = address.is_loopback().map_err(Error::io(format!("looking up {address}")))?;
        if local { Ok(()) } else { Err(Error::GrpcInTheClear { address: address.to_string() }) }
    }
}

impl Credentials {
    /// What a client shows.
    pub fn access(&self) -> Result<Access, Error> {
        let token = self.token()?.map(Arc::new);
        let tls = if self.tls.is_empty() { None } else { Some(self.tls.client()?) };
        Ok(Access { token, tls, ..Access::default() })
    }

    /// What one server asks for and shows. A server needs the secret itself: with a derived token it
    /// could not tell good tokens from bad ones.
    pub fn security(&self) -> Result<Security, Error> {
        let token = self.token()?;
        let secret = match &token {
            None => None,
            Some(token) => Some(token.secret().ok_or(Error::DerivedToken)?.clone()),
        };
        let tls = if self.tls.is_empty() {
            None
        } else {
            self.tls.check_server()?;
            Some(self.tls.server()?)
        };
        let gate = Gate::new(secret, tls);
        // Without a CA a server cannot verify others, so it calls nobody over TLS.
        let tls = if self.tls.ca.is_some() { Some(self.tls.client()?) } else { None };
        let access = Access { token: token.map(Arc::new), tls, ..Access::default() };
        Ok(Security { gate, access, insecure_listen: false })
    }

    fn token(&self) -> Result<Option<Token>, Error> {
        Ok(self.token_file.as_deref().map(Token::read).transpose()?)
    }
}
