//! Who may come in, and what for.
//!
//! ```text
//!   cluster secret ──┬─► token of (role, tenant) ──► proof in the hello ──► Credential of a peer
//!   (32 bytes, file) └─► grant key ──► a mac in every locator, checked by the owner of the bytes
//!   certificate of the cluster's CA, which names a role and a tenant ──► Credential of a peer
//! ```
//!
//! [`Access`] is what a caller shows, [`Gate`] is what a server asks for. A server without a secret
//! and without a CA is open: everybody is what it says it is, of the tenant that it claims; only
//! loopback addresses are served like that.
//!
//! What must stay true: where a proof is asked for, role and tenant of a peer come from what it
//! proved, never from a field that nobody checked; a caller with a token never talks to a server
//! that does not know the secret; all macs are compared in constant time; no secret appears in a
//! message, an error or a log.

mod admin;
mod bearer;
mod gate;
mod grant;
mod handshake;
mod rules;
mod token;

use std::time::Duration;

/// How long a refused credential waits for its refusal: whoever guesses shall not guess fast.
pub const DENIED_PAUSE: Duration = Duration::from_millis(100);

pub use admin::{AdminDenied, admin_allowed};
pub use bearer::BearerDenied;
pub use gate::{Access, Credential, Gate, Seat};
pub use grant::{GRANT_SECONDS, GrantError, GrantKey};
pub(crate) use handshake::Meeting;
pub use rules::{may, mutates};
pub use token::{ClusterSecret, SECRET_BYTES, Token, TokenError, random};
