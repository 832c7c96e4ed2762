//! Who may use the admin HTTP: this machine only, and for changes the holder of an admin token.

use super::bearer::BearerDenied;
use super::gate::Gate;
use crate::message::Role;
use std::net::IpAddr;

/// Why an admin request is refused, in words for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdminDenied {
    /// Not from this machine.
    #[error("the admin HTTP answers this machine only; run the command there, or use a tunnel")]
    NotLocal,
    /// A change without a token, or with one that is none.
    #[error("changes need an admin token (`mooncrate token derive --role admin`): {0}")]
    Token(BearerDenied),
    /// A change with a token of another role.
    #[error("changes need an admin token, not one of a {0}; `mooncrate token derive --role admin`")]
    Role(Role),
}

/// Whether a request of the admin HTTP may be answered. `from`: its peer; `authorization`: that
/// header, as it came; `mutation`: whether it changes anything. Clusters without a secret ask for no
/// token: their admin HTTP is open to users of this machine.
pub fn admin_allowed(
    gate: &Gate,
    from: IpAddr,
    authorization: Option<&str>,
    mutation: bool,
) -> Result<(), AdminDenied> {
    if !from.to_canonical().is_loopback() {
        return Err(AdminDenied::NotLocal);
    }
    if !mutation || gate.secret().is_none() {
        return Ok(());
    }
    let shown = gate.bearer(authorization, &[], |_| true).map_err(AdminDenied::Token)?;
    if shown.role == Role::Admin { Ok(()) } else { Err(AdminDenied::Role(shown.role)) }
}

#[cfg(test)]
mod tests {
    use super::super::token::{ClusterSecret, Token};
    use super::*;

    #[test]
    fn security_the_admin_http_asks_for_an_admin_token_and_for_this_machine() {
        let secret = ClusterSecret::from_bytes([1; 32]);
        let gate = Gate::new(Some(secret.clone()), None);
        let (here, there) = ("127.0.0.1".parse().unwrap(), "10.0.0.9".parse().unwrap());
        let bearer = |token: Token| format!("Bearer {}", token.to_text());
        let admin = bearer(secret.derive(Role::Admin, "").unwrap());
        let client = bearer(secret.derive(Role::Client, "").unwrap());
        let foreign = bearer(ClusterSecret::from_bytes([2; 32]).derive(Role::Admin, "").unwrap());
        let itself = bearer(Token::Cluster(secret.clone()));
        let ask = |from, header: Option<&str>| admin_allowed(&gate, from, header, true);
        assert_eq!(ask(here, Some(&admin)), Ok(()));
        let denied = |why| Err(AdminDenied::Token(why));
        assert_eq!(ask(here, Some(&foreign)), denied(BearerDenied::Wrong));
        assert_eq!(ask(here, Some(&itself)), denied(BearerDenied::Secret));
        assert_eq!(ask(here, Some("Bearer x")), denied(BearerDenied::Wrong));
        assert_eq!(ask(here, None), denied(BearerDenied::Missing));
        assert_eq!(ask(here, Some(&client)), Err(AdminDenied::Role(Role::Client)));
        assert_eq!(ask(there, Some(&admin)), Err(AdminDenied::NotLocal));
        assert_eq!(admin_allowed(&gate, here, None, false), Ok(()));
        assert_eq!(admin_allowed(&Gate::default(), there, None, false), Err(AdminDenied::NotLocal));
        assert_eq!(admin_allowed(&Gate::default(), here, None, true), Ok(()));
    }
}
