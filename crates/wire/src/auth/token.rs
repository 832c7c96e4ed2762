//! The cluster secret and the tokens derived from it. Nobody keeps a list of tokens: whoever holds
//! the secret derives the same one again and compares. Replacing the secret ends all of them.

use crate::files::is_private;
use crate::message::Role;
use mooncrate_core::ids::{BadTenant, TenantId};
use mooncrate_rt as rt;
use std::fmt;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::str::FromStr;

/// Bytes of a secret, and of a token's key.
pub const SECRET_BYTES: usize = 32;
/// A token file is one line; more is something else.
const FILE_BYTES_MAX: u64 = 4096;

/// The one secret of a cluster: its holder is trusted with everything.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterSecret([u8; SECRET_BYTES]);

/// What a caller holds.
#[derive(Clone, PartialEq, Eq)]
pub enum Token {
    /// The secret itself: any role, the default tenant.
    Cluster(ClusterSecret),
    /// One role, one tenant.
    Derived {
        /// The role.
        role: Role,
        /// The tenant's name; empty: the default tenant.
        tenant: String,
        /// What the secret gives for them.
        key: [u8; SECRET_BYTES],
    },
}

/// Why a file or a text is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file could not be read.
    #[error("the token file {path} cannot be read: {source}")]
    Io {
        /// Which file.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// Others could read the file.
    #[error("the token file {path} can be read by others (mode {mode:o}); run `chmod 600 {path}`")]
    Mode {
        /// Which file.
        path: String,
        /// Its permissions.
        mode: u32,
    },
    /// The text is no token.
    #[error(
        "this is no token: expected 64 hexadecimal digits (`mooncrate token new` makes them) or \
         ROLE.TENANT.DIGITS (`mooncrate token derive`)"
    )]
    Text,
    /// The tenant's name is none.
    #[error(transparent)]
    Tenant(#[from] BadTenant),
}

impl ClusterSecret {
    /// A fresh one, from the kernel's random numbers.
    pub fn generate() -> io::Result<Self> {
        let mut bytes = [0; SECRET_BYTES];
        random(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// A secret of these bytes.
    pub fn from_bytes(bytes: [u8; SECRET_BYTES]) -> Self {
        Self(bytes)
    }

    /// The token of a role and a tenant.
    pub fn derive(&self, role: Role, tenant: &str) -> Result<Token, BadTenant> {
        TenantId::named(tenant)?;
        let key = self.token_key(role, tenant);
        Ok(Token::Derived { role, tenant: tenant.to_owned(), key })
    }

    /// The key of a role and a tenant: what the two sides of a handshake share.
    pub(crate) fn token_key(&self, role: Role, tenant: &str) -> [u8; SECRET_BYTES] {
        let key = self.key_for("mooncrate 2026-11 token");
        // The role has a fixed length, so no two pairs share an encoding.
        let mut hasher = blake3::Hasher::new_keyed(&key);
        hasher.update(&[role as u8]).update(tenant.as_bytes());
        *hasher.finalize().as_bytes()
    }

    /// A key for one purpose; no two purposes share one.
    pub(crate) fn key_for(&self, purpose: &str) -> [u8; SECRET_BYTES] {
        blake3::derive_key(purpose, &self.0)
    }

    /// As a file holds it. The only way in which a secret leaves as text.
    pub fn to_hex(&self) -> String {
        hex(&self.0)
    }
}

impl Token {
    /// Reads a file that other users cannot read.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let shown = path.display().to_string();
        let io = |source| TokenError::Io { path: shown.clone(), source };
        let file = std::fs::File::open(path).map_err(io)?;
        let about = file.metadata().map_err(io)?;
        if about.is_file() && !is_private(&about) {
            let mode = about.permissions().mode() & 0o777;
            return Err(TokenError::Mode { path: shown, mode });
        }
        let mut text = String::new();
        let mut limited = io::Read::take(file, FILE_BYTES_MAX);
        io::Read::read_to_string(&mut limited, &mut text).map_err(io)?;
        text.trim().parse()
    }

    /// As a file holds it: 64 digits, or `role.tenant.digits`.
    pub fn to_text(&self) -> String {
        match self {
            Self::Cluster(secret) => secret.to_hex(),
            Self::Derived { role, tenant, key } => format!("{role}.{tenant}.{}", hex(key)),
        }
    }

    /// What a caller that is a `wanted` shows: role, tenant and key. A derived token has one role,
    /// whatever its holder would like to be.
    pub(crate) fn show(&self, wanted: Role) -> (Role, &str, [u8; SECRET_BYTES]) {
        match self {
            Self::Cluster(secret) => (wanted, "", secret.token_key(wanted, "")),
            Self::Derived { role, tenant, key } => (*role, tenant, *key),
        }
    }

    /// The secret, if this is one: servers need it.
    pub fn secret(&self) -> Option<&ClusterSecret> {
        match self {
            Self::Cluster(secret) => Some(secret),
            Self::Derived { .. } => None,
        }
    }
}

impl FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        if let Some(secret) = unhex(text) {
            return Ok(Self::Cluster(ClusterSecret(secret)));
        }
        let mut parts = text.split('.');
        let (Some(role), Some(tenant), Some(key), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(TokenError::Text);
        };
        let role = Role::named(role).ok_or(TokenError::Text)?;
        TenantId::named(tenant)?;
        let key = unhex(key).ok_or(TokenError::Text)?;
        Ok(Self::Derived { role, tenant: tenant.to_owned(), key })
    }
}

impl fmt::Debug for ClusterSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterSecret(…)")
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cluster(_) => f.write_str("Token(cluster, …)"),
            Self::Derived { role, tenant, .. } => write!(f, "Token({role}.{tenant}, …)"),
        }
    }
}

/// Fills `bytes` with random numbers of the kernel.
pub fn random(bytes: &mut [u8]) -> io::Result<()> {
    rt::random(bytes)
}

fn hex(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from_digit(value.into(), 16).expect("below 16");
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

fn unhex(text: &str) -> Option<[u8; SECRET_BYTES]> {
    if text.len() != 2 * SECRET_BYTES {
        return None;
    }
    let mut bytes = [0; SECRET_BYTES];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        let digit = |c: u8| char::from(c).to_digit(16);
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back_from_their_text() {
        let secret = ClusterSecret::generate().unwrap();
        let cluster = Token::Cluster(secret.clone());
        assert_eq!(cluster.to_text().parse::<Token>().unwrap(), cluster);
        for tenant in ["", "acme", "a-b_9"] {
            let token = secret.derive(Role::Client, tenant).unwrap();
            assert_eq!(token.to_text().parse::<Token>().unwrap(), token);
        }
        for bad in ["", "abc", "client.acme", "king.acme.00", "client.A.00", "client..zz"] {
            assert!(bad.parse::<Token>().is_err(), "{bad}");
        }
    }

    #[test]
    fn tokens_differ_by_secret_role_and_tenant() {
        let (one, two) = (ClusterSecret([1; 32]), ClusterSecret([2; 32]));
        let key = one.token_key(Role::Client, "acme");
        assert_ne!(key, two.token_key(Role::Client, "acme"));
        assert_ne!(key, one.token_key(Role::Admin, "acme"));
        assert_ne!(key, one.token_key(Role::Client, "acme2"));
        assert_ne!(key, one.key_for("mooncrate 2026-11 token"));
    }

    #[test]
    fn security_no_secret_is_shown_by_accident() {
        let secret = ClusterSecret([0xab; 32]);
        let token = secret.derive(Role::Client, "acme").unwrap();
        let shown = format!("{secret:?} {token:?} {:?}", Token::Cluster(secret.clone()));
        assert!(!shown.contains("abab") && !shown.contains(&token.to_text()[14..30]), "{shown}");
    }

    #[test]
    fn security_a_token_file_that_others_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cluster.token");
        std::fs::write(&path, ClusterSecret([7; 32]).to_hex() + "\n").unwrap();
        for mode in [0o644, 0o640, 0o604, 0o620] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            let error = Token::read(&path).unwrap_err().to_string();
            assert!(error.contains("chmod 600"), "{error}");
        }
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        assert_eq!(Token::read(&path).unwrap(), Token::Cluster(ClusterSecret([7; 32])));
    }
}
