//! Tokens for doors that speak no frames: gRPC and the admin HTTP. Their callers send the token itself
//! in `authorization: Bearer TOKEN`, so such a door is on loopback or behind TLS.
//!
//! What must stay true: a header that is there must be right, whatever else the caller shows; the
//! cluster's secret is never taken as a bearer token, because its holder would get used to sending it.

use super::gate::{Credential, Gate};
use super::handshake::{OTHER_TENANT, TWO_TENANTS, of_two_tenants};
use super::token::Token;
use mooncrate_core::ids::TenantId;

/// Why nobody was let in, in words for the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BearerDenied {
    /// Nothing was shown.
    #[error(
        "this cluster asks for `authorization: Bearer TOKEN`; make a token with `mooncrate token \
         derive`"
    )]
    Missing,
    /// The secret itself.
    #[error(
        "the cluster's secret is for servers and is never sent; make a token from it with \
         `mooncrate token derive`"
    )]
    Secret,
    /// No token, or one of another cluster.
    #[error(
        "the token is not of this cluster; use one that `mooncrate token derive` made from its \
         secret"
    )]
    Wrong,
    /// There is no secret to compare a token with.
    #[error(
        "this cluster has no tokens; show a certificate that names a role, as in \
         client.mooncrate, and leave the `authorization` away"
    )]
    NoTokens,
    /// Token and certificate do not agree.
    #[error("{OTHER_TENANT}")]
    OtherTenant,
    /// The certificate does not say whose it is.
    #[error("{TWO_TENANTS}")]
    TwoTenants,
}

impl Gate {
    /// Who this is: by its `authorization`, as it came, or else by the roles that its certificate
    /// gives it, of which the first that is `fit` counts. Only for a gate that is guarded.
    pub fn bearer(
        &self,
        authorization: Option<&str>,
        names: &[Credential],
        fit: impl Fn(Credential) -> bool,
    ) -> Result<Credential, BearerDenied> {
        if of_two_tenants(names) {
            return Err(BearerDenied::TwoTenants);
        }
        let Some(header) = authorization else {
            let shown = names.iter().find(|name| fit(**name)).or(names.first());
            let missing = if self.secret().is_some() {
                BearerDenied::Missing
            } else {
                BearerDenied::NoTokens
            };
            let shown = *shown.ok_or(missing)?;
            // Grants keep tenants apart, and they are made from the secret.
            if shown.tenant != TenantId::DEFAULT && self.secret().is_none() {
                return Err(BearerDenied::NoTokens);
            }
            return Ok(shown);
        };
        let secret = self.secret().ok_or(BearerDenied::NoTokens)?;
        let text = header.split_once(' ').filter(|(word, _)| word.eq_ignore_ascii_case("bearer"));
        let (_, text) = text.ok_or(BearerDenied::Missing)?;
        let Token::Derived { role, tenant, key } =
            text.trim().parse().map_err(|_| BearerDenied::Wrong)?
        else {
            return Err(BearerDenied::Secret);
        };
        let id = TenantId::named(&tenant).map_err(|_| BearerDenied::Wrong)?;
        // `blake3::Hash` compares in constant time.
        if blake3::Hash::from(secret.token_key(role, &tenant)) != blake3::Hash::from(key) {
            return Err(BearerDenied::Wrong);
        }
        if !names.is_empty() && names.iter().all(|name| name.tenant != id) {
            return Err(BearerDenied::OtherTenant);
        }
        Ok(Credential { role, tenant: id })
    }
}

#[cfg(test)]
mod tests {
    use super::super::token::ClusterSecret;
    use super::*;
    use crate::message::Role;

    fn ask(
        gate: &Gate,
        header: Option<&str>,
        names: &[Credential],
    ) -> Result<Credential, BearerDenied> {
        gate.bearer(header, names, |name| name.role == Role::Client)
    }

    #[test]
    fn security_a_bearer_token_is_derived_from_the_secret_or_worth_nothing() {
        let secret = ClusterSecret::from_bytes([1; 32]);
        let gate = Gate::new(Some(secret.clone()), None);
        let acme = Credential { role: Role::Client, tenant: TenantId::named("acme").unwrap() };
        let token = secret.derive(Role::Client, "acme").unwrap().to_text();
        for scheme in ["Bearer", "bearer"] {
            assert_eq!(ask(&gate, Some(&format!("{scheme} {token}")), &[]), Ok(acme));
        }
        // The key of one role or tenant does not do for another.
        let digits = token.rsplit_once('.').unwrap().1;
        let flipped = if digits.starts_with('0') { "1" } else { "0" };
        for wrong in [
            format!("Bearer admin.acme.{digits}"),
            format!("Bearer client.zeta.{digits}"),
            format!("Bearer client..{digits}"),
            format!("Bearer client.acme.{flipped}{}", &digits[1..]),
            format!("Bearer {}", &token[..token.len() - 1]),
            "Bearer".to_owned() + " ",
        ] {
            assert_eq!(ask(&gate, Some(&wrong), &[]), Err(BearerDenied::Wrong), "{wrong}");
        }
        let other = ClusterSecret::from_bytes([2; 32]).derive(Role::Client, "acme").unwrap();
        let other = format!("Bearer {}", other.to_text());
        assert_eq!(ask(&gate, Some(&other), &[]), Err(BearerDenied::Wrong));
        let own = format!("Bearer {}", secret.to_hex());
        assert_eq!(ask(&gate, Some(&own), &[]), Err(BearerDenied::Secret));
        for missing in [None, Some(""), Some("Basic abc"), Some(&*token)] {
            assert_eq!(ask(&gate, missing, &[]), Err(BearerDenied::Missing), "{missing:?}");
        }
    }

    #[test]
    fn security_a_certificate_counts_unless_a_token_is_shown() {
        let secret = ClusterSecret::from_bytes([1; 32]);
        let with = Gate::new(Some(secret.clone()), None);
        let node = Credential { role: Role::Node, tenant: TenantId::DEFAULT };
        let client = Credential { role: Role::Client, ..node };
        let acme = Credential { tenant: TenantId::named("acme").unwrap(), ..client };
        assert_eq!(ask(&with, None, &[node, client]), Ok(client));
        assert_eq!(ask(&with, None, &[node]), Ok(node));
        assert_eq!(ask(&with, None, &[acme]), Ok(acme));
        // A wrong token is not made good by a certificate.
        assert_eq!(ask(&with, Some("Bearer client.acme.00"), &[client]), Err(BearerDenied::Wrong));
        // Nor does one of another tenant act as either.
        let token = |tenant| secret.derive(Role::Client, tenant).unwrap().to_text();
        let ask_as = |tenant, names: &[Credential]| {
            ask(&with, Some(&format!("Bearer {}", token(tenant))), names)
        };
        assert_eq!(ask_as("acme", &[acme]), Ok(acme));
        assert_eq!(ask_as("zeta", &[acme]), Err(BearerDenied::OtherTenant));
        assert_eq!(ask_as("acme", &[client]), Err(BearerDenied::OtherTenant));
        assert_eq!(ask(&with, None, &[client, acme]), Err(BearerDenied::TwoTenants));
        let without = Gate::default();
        assert_eq!(ask(&without, None, &[client]), Ok(client));
        assert_eq!(ask(&without, None, &[acme]), Err(BearerDenied::NoTokens));
        assert_eq!(ask(&without, None, &[]), Err(BearerDenied::NoTokens));
        let token = format!("Bearer {}", secret.derive(Role::Client, "").unwrap().to_text());
        assert_eq!(ask(&without, Some(&token), &[client]), Err(BearerDenied::NoTokens));
    }
}
