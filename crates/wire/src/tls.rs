//! TLS for TCP links: TLS 1.3 by rustls. Messages do not know about it: the stream is wrapped.
//!
//! A cluster has a CA of its own. Its certificates say what their holder is by a DNS name:
//! `ROLE.mooncrate`, or `ROLE.TENANT.mooncrate`. A server's must be named `master.mooncrate` (control
//! links) or `node.mooncrate` (data links), whatever its address is, so a client's certificate can
//! not pose as a server. Unix sockets are never encrypted: who can read them can read our memory.

use crate::auth::Credential;
use crate::files::is_private;
use crate::kind::LinkKind;
use crate::message::Role;
use mooncrate_core::ids::TenantId;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{AlertDescription, CertificateError, RootCertStore};
use std::fmt;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};

/// An encrypted connection of a server.
pub use tokio_rustls::server::TlsStream;

/// Where keys and certificates are, in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Our certificate, with those that lead to the CA.
    pub cert: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
    /// Whom we believe.
    pub ca: Option<PathBuf>,
}

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is missing or is no PEM.
    #[error("{what} {path}: {why}")]
    File {
        /// What it should be.
        what: &'static str,
        /// Which file.
        path: String,
        /// What is wrong.
        why: String,
    },
    /// Not all files that are needed were named.
    #[error("{0}")]
    Missing(&'static str),
    /// The parts do not fit.
    #[error("the certificate cannot be used: {0}; are certificate and key a pair?")]
    Unfit(#[from] rustls::Error),
}

/// How a caller encrypts.
#[derive(Clone)]
pub struct TlsClient {
    config: Arc<rustls::ClientConfig>,
    /// What our certificate says of us.
    names: Arc<[Credential]>,
}

/// How a server encrypts.
#[derive(Clone)]
pub struct TlsServer {
    config: Arc<rustls::ServerConfig>,
    mutual: bool,
}

impl TlsFiles {
    /// Whether nothing was named.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The caller's side: believes servers of the CA, shows the certificate if there is one.
    pub fn client(&self) -> Result<TlsClient, TlsError> {
        let ca = self.ca.as_deref().ok_or(TlsError::Missing(
            "--tls-ca is missing: without it nobody knows which servers to believe",
        ))?;
        let builder = rustls::ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots(ca)?);
        let mut names = Vec::new();
        let mut config = match (&self.cert, &self.key) {
            (None, None) => builder.with_no_client_auth(),
            (Some(cert), Some(key)) => {
                let chain = chain(cert)?;
                names = credentials(Some(&chain));
                builder.with_client_auth_cert(chain, private(key)?)?
            }
            _ => return Err(PAIR),
        };
        config.resumption = rustls::client::Resumption::disabled();
        Ok(TlsClient { config: Arc::new(config), names: names.into() })
    }

    /// The server's side: with a CA, callers must show a certificate of it.
    pub fn server(&self) -> Result<TlsServer, TlsError> {
        let (Some(cert), Some(key)) = (&self.cert, &self.key) else { return Err(PAIR) };
        let builder = rustls::ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])?;
        let builder = match &self.ca {
            None => builder.with_no_client_auth(),
            Some(ca) => {
                let roots = Arc::new(roots(ca)?);
                let verifier =
                    rustls::server::WebPkiClientVerifier::builder_with_provider(roots, provider())
                        .build()
                        .map_err(|error| file("the CA", ca, error))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_single_cert(chain(cert)?, private(key)?)?;
        // A ticket would arrive unasked, and a resting link that holds bytes looks broken.
        config.send_tls13_tickets = 0;
        Ok(TlsServer { config: Arc::new(config), mutual: self.ca.is_some() })
    }
}

impl TlsFiles {
    /// Whether callers will accept the certificate of a server: it carries the name of one, its time is now,
    /// and the CA has signed it. Without this a server starts well and nobody can reach it.
    pub fn check_server(&self) -> Result<(), TlsError> {
        let Some(path) = &self.cert else { return Err(PAIR) };
        acceptable(path, &chain(path)?, self.ca.as_deref())
    }
}

const PAIR: TlsError =
    TlsError::Missing("--tls-cert and --tls-key belong together: give both, or none");

impl TlsClient {
    /// What our certificate says of us; nothing, if we show none.
    pub(crate) fn names(&self) -> &[Credential] {
        &self.names
    }

    pub(crate) fn session(&self, link: LinkKind) -> Result<rustls::Connection, rustls::Error> {
        let name = ServerName::try_from(server_name(link)).expect("a constant DNS name");
        Ok(rustls::ClientConnection::new(Arc::clone(&self.config), name)?.into())
    }
}

impl TlsServer {
    /// Whether callers must show a certificate.
    pub fn is_mutual(&self) -> bool {
        self.mutual
    }

    pub(crate) fn session(&self) -> Result<rustls::Connection, rustls::Error> {
        Ok(rustls::ServerConnection::new(Arc::clone(&self.config))?.into())
    }

    /// The same for a door whose protocol is agreed upon in the handshake (ALPN), as HTTP/2 is.
    #[must_use]
    pub fn speaking(&self, protocol: &[u8]) -> Self {
        let mut config = rustls::ServerConfig::clone(&self.config);
        config.alpn_protocols = vec![protocol.to_vec()];
        Self { config: Arc::new(config), mutual: self.mutual }
    }

    /// Encrypts a connection, and tells what the certificate of its caller says of it. The caller
    /// bounds the wait.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> io::Result<(TlsStream<S>, Vec<Credential>)> {
        let stream = self.acceptor().accept(stream).await?;
        let names = credentials(stream.get_ref().1.peer_certificates());
        Ok((stream, names))
    }

    pub(crate) fn acceptor(&self) -> tokio_rustls::TlsAcceptor {
        tokio_rustls::TlsAcceptor::from(Arc::clone(&self.config))
    }
}

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsClient(…)")
    }
}

impl fmt::Debug for TlsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsServer").field("mutual", &self.mutual).finish_non_exhaustive()
    }
}

/// To a caller that does not encrypt.
pub(crate) const PLAIN: &str = "this server speaks TLS; give its CA with --tls-ca";

/// What a server of these links must be called.
const fn server_name(link: LinkKind) -> &'static str {
    match link {
        LinkKind::Control => "master.mooncrate",
        LinkKind::Data => "node.mooncrate",
    }
}

/// What a verified certificate says of its holder; the first in the chain is its own.
pub(crate) fn credentials(chain: Option<&[CertificateDer<'_>]>) -> Vec<Credential> {
    let Some(own) = chain.and_then(<[_]>::first) else { return Vec::new() };
    let Ok(certificate) = webpki::EndEntityCert::try_from(own) else { return Vec::new() };
    certificate.valid_dns_names().filter_map(credential).collect()
}

/// `role.mooncrate` or `role.tenant.mooncrate`, in lower case: to whoever signs names of DNS, `Acme` and `acme` are one,
/// and here they are two tenants.
fn credential(name: &str) -> Option<Credential> {
    let name = name.strip_suffix(".mooncrate")?;
    if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return None;
    }
    let (role, tenant) = match name.split_once('.') {
        Some((role, tenant)) if !tenant.is_empty() => (role, TenantId::named(tenant).ok()?),
        Some(_) => return None,
        None => (name, TenantId::DEFAULT),
    };
    Some(Credential { role: Role::named(role)?, tenant })
}

/// Why TLS failed, and what to do about it.
pub(crate) fn words(error: &rustls::Error) -> String {
    use rustls::Error as E;
    match error {
        E::InvalidCertificate(why) => format!("its certificate is refused: {}", certificate(why)),
        E::NoCertificatesPresented => "it showed no certificate; give it one of the cluster's CA \
             with --tls-cert and --tls-key"
            .to_owned(),
        E::AlertReceived(alert) => format!("it refused ours: {}", alerted(*alert)),
        E::InvalidMessage(_) => "it does not speak TLS here; start it with --tls-cert and \
             --tls-key, or leave --tls-ca away"
            .to_owned(),
        other => other.to_string(),
    }
}

fn certificate(why: &CertificateError) -> String {
    use CertificateError as C;
    match why {
        C::Expired | C::ExpiredContext { .. } => {
            "it has expired; issue a new one and restart its owner".to_owned()
        }
        C::NotValidYet | C::NotValidYetContext { .. } => {
            "it is not valid yet; compare the clocks of the machines".to_owned()
        }
        C::UnknownIssuer | C::BadSignature => {
            "it is not signed by the CA of --tls-ca; give all sides the same CA".to_owned()
        }
        C::NotValidForName | C::NotValidForNameContext { .. } => "it does not carry the DNS name \
             of a server (master.mooncrate for control, node.mooncrate for data); issue one that \
             does"
            .to_owned(),
        other => other.to_string(),
    }
}

fn alerted(alert: AlertDescription) -> String {
    use AlertDescription as A;
    match alert {
        A::CertificateExpired => "our certificate has expired; issue a new one".to_owned(),
        A::UnknownCA | A::DecryptError => {
            "it does not know the CA of our certificate; give all sides the same CA".to_owned()
        }
        A::CertificateRequired => {
            "it asks for a certificate; give one with --tls-cert and --tls-key".to_owned()
        }
        other => format!("alert {other:?}"),
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn file(what: &'static str, path: &Path, why: impl fmt::Display) -> TlsError {
    TlsError::File { what, path: path.display().to_string(), why: why.to_string() }
}

fn chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bad = |why| file("the certificate", path, why);
    let found: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).map_err(|error| bad(error.to_string()))?.collect();
    let found = found.map_err(|error| bad(error.to_string()))?;
    if found.is_empty() { Err(bad("it holds no certificate".to_owned())) } else { Ok(found) }
}

fn private(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let bad = |why: String| file("the key", path, why);
    let about = std::fs::metadata(path).map_err(|error| bad(error.to_string()))?;
    if !is_private(&about) {
        let (mode, shown) = (about.permissions().mode() & 0o777, path.display());
        return Err(bad(format!("others may read it (mode {mode:03o}); chmod 600 {shown}")));
    }
    PrivateKeyDer::from_pem_file(path).map_err(|error| bad(error.to_string()))
}

fn acceptable(
    path: &Path,
    chain: &[CertificateDer<'static>],
    ca: Option<&Path>,
) -> Result<(), TlsError> {
    let bad =
        |why: String| file("the certificate", path, format!("no client will accept it: {why}"));
    let (own, rest) = chain.split_first().expect("a chain is not empty");
    let names = [LinkKind::Control, LinkKind::Data].map(server_name);
    let Some(ca) = ca else {
        let parsed =
            webpki::EndEntityCert::try_from(own).map_err(|error| bad(error.to_string()))?;
        let fits = names.into_iter().any(|name| {
            let name = ServerName::try_from(name).expect("a constant DNS name");
            parsed.verify_is_valid_for_subject_name(&name).is_ok()
        });
        return if fits {
            Ok(())
        } else {
            Err(bad(certificate(&CertificateError::NotValidForName)))
        };
    };
    let verifier = rustls::client::WebPkiServerVerifier::builder_with_provider(
        Arc::new(roots(ca)?),
        provider(),
    )
    .build()
    .map_err(|error| file("the CA", ca, error))?;
    let now = rustls::pki_types::UnixTime::now();
    let mut why = None;
    for name in names {
        let name = ServerName::try_from(name).expect("a constant DNS name");
        match verifier.verify_server_cert(own, rest, &name, &[], now) {
            Ok(_) => return Ok(()),
            Err(error) => why = Some(error),
        }
    }
    Err(bad(match why {
        Some(rustls::Error::InvalidCertificate(why)) => certificate(&why),
        other => other.map_or_else(String::new, |error| error.to_string()),
    }))
}

fn roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in chain(path)? {
        roots.add(certificate).map_err(|error| file("the CA", path, error))?;
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_certificates_are_roles_and_tenants() {
        let acme = TenantId::named("acme").unwrap();
        assert_eq!(
            credential("client.acme.mooncrate"),
            Some(Credential { role: Role::Client, tenant: acme })
        );
        assert_eq!(
            credential("node.mooncrate"),
            Some(Credential { role: Role::Node, tenant: TenantId::DEFAULT })
        );
        for no in [
            "mooncrate",
            ".mooncrate",
            "king.mooncrate",
            "client..mooncrate",
            "client.a.b.mooncrate",
            "client.acme.example",
            "client.ACME.mooncrate",
        ] {
            assert_eq!(credential(no), None, "{no}");
        }
    }
}
