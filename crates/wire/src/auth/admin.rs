//! Who may use the admin HTTP: this machine only, and for changes the holder of an admin token.

use super::gate::Gate;
use super::token::Token;
use crate::message::Role;
use std::net::IpAddr;

/// Why an admin request is refused, in words for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdminDenied {
    /// Not from this machine.
    #[error("the admin HTTP answers this machine only; run the command there, or use a tunnel")]
    NotLocal,
    /// A change without a token.
    #[error(
        "changes need `Authorization: Bearer TOKEN` with an admin token; make one with \
         `mooncrate token derive --role admin`"
    )]
    NoToken,
    /// A change with a token of another cluster or role.
    #[error(
        "the token is not an admin token of this cluster; make one with `mooncrate token derive --role admin`"
    )]
    WrongToken,
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
    let Some(secret) = gate.secret().filter(|_| mutation) else { return Ok(()) };
    let bearer = authorization.and_then(|text| text.strip_prefix("Bearer "));
    let token: Token =
        bearer.ok_or(AdminDenied::NoToken)?.trim().parse().map_err(|_| AdminDenied::WrongToken)?;
    let (role, tenant, key) = token.show(Role::Admin);
    let expected = blake3::Hash::from(secret.token_key(Role::Admin, tenant));
    // Compared in constant time, whatever the role is.
    if expected == blake3::Hash::from(key) && role == Role::Admin {
        Ok(())
    } else {
        Err(AdminDenied::WrongToken)
    }
}

#[cfg(test)]
mod tests {
    use super::super::token::ClusterSecret;
    use super::*;

    #[test]
    fn security_the_admin_http_asks_for_an_admin_token_and_for_this_machine() {
        let secret = ClusterSecret::from_bytes([1; 32]);
        let gate = Gate::new(Some(secret.clone()), None);
        let (here, there) = ("127.0.0.1".parse().unwrap(), "10.0.0.9".parse().unwrap());
        let bearer = |token: Token| format!("Bearer {}", token.to_text());
        let admin = bearer(secret.derive(Role::Admin, "").unwrap());
        let client = bearer(secret.derive(Role::Client, "").unwrap());
        let foreign = bearer(Token::Cluster(ClusterSecret::from_bytes([2; 32])));
        let ask = |from, header: Option<&str>| admin_allowed(&gate, from, header, true);
        assert_eq!(ask(here, Some(&admin)), Ok(()));
        assert_eq!(ask(here, Some(&bearer(Token::Cluster(secret.clone())))), Ok(()));
        assert_eq!(ask(here, Some(&client)), Err(AdminDenied::WrongToken));
        assert_eq!(ask(here, Some(&foreign)), Err(AdminDenied::WrongToken));
        assert_eq!(ask(here, Some("Bearer x")), Err(AdminDenied::WrongToken));
        assert_eq!(ask(here, None), Err(AdminDenied::NoToken));
        assert_eq!(ask(there, Some(&admin)), Err(AdminDenied::NotLocal));
        assert_eq!(admin_allowed(&gate, here, None, false), Ok(()));
        assert_eq!(admin_allowed(&Gate::default(), there, None, false), Err(AdminDenied::NotLocal));
        assert_eq!(admin_allowed(&Gate::default(), here, None, true), Ok(()));
    }
}
