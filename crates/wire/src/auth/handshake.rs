//! The proof in the hello, without I/O: both kinds of server and the links drive it.
//!
//! ```text
//!   caller                                        server with a secret
//!     hello ──────────────────────────────────────►
//!     ◄────────────────────────────────── challenge   its nonce
//!     proof ──────────────────────────────────────►   role, tenant, own nonce, mac
//!     ◄────────────────────────────── proof, hello    mac of the server, then the usual answer
//! ```
//!
//! Both macs are keyed BLAKE3 under the key of (role, tenant), over a word for the side, both
//! nonces and the whole body of the hello. So a proof fits one link, one role and one kind of link,
//! and cannot be sent twice; and a server that does not know the secret cannot answer.

use super::gate::{Access, Credential, Gate};
use super::token::{SECRET_BYTES, Token, random};
use crate::error::{CallError, Refusal, RefusalCode};
use crate::message::{Challenge, Claim, Hello, Proof, ServerProof};
use crate::tls::TlsClient;
use mooncrate_core::ids::TenantId;

/// Bytes of a nonce.
const NONCE_BYTES: usize = 32;

/// What a gate makes of a hello.
pub(crate) enum Meeting {
    /// Come in.
    Known(Credential),
    /// Prove it first.
    Prove(Challenge),
}

pub(super) const OTHER_TENANT: &str = "the certificate is of another tenant than the token; show one of them, \
     or both of the same tenant";
const NO_TOKEN: &str = "this server asks for a token; give the cluster's with --token-file";
pub(super) const TWO_TENANTS: &str =
    "the certificate names two tenants, so nobody can tell whose it is; issue one for each";
const WRONG_TOKEN: &str = "the token is not of this cluster; use the secret that its servers have, \
     or one that `mooncrate token derive` made from it";

/// Whether a certificate does not say whose it is: it names two tenants for one role. A node that is also the
/// client of a tenant is told apart by the role in its hello.
pub(super) fn of_two_tenants(names: &[Credential]) -> bool {
    let other = |a: &Credential, b: &Credential| a.role == b.role && a.tenant != b.tenant;
    names.iter().any(|a| names.iter().any(|b| other(a, b)))
}

impl Gate {
    /// What to do with a caller; `names` are the roles that its certificate gives it.
    pub(crate) fn meet(&self, hello: &Hello, names: &[Credential]) -> Result<Meeting, Refusal> {
        if !self.is_guarded() {
            return Ok(Meeting::Known(Credential { role: hello.role, tenant: TenantId::DEFAULT }));
        }
        if of_two_tenants(names) {
            return Err(Refusal::new(RefusalCode::Denied, TWO_TENANTS));
        }
        let shown = names.iter().find(|name| name.role == hello.role).or(names.first());
        if let Some(shown) = shown {
            if shown.tenant != TenantId::DEFAULT && self.secret().is_none() {
                let words = "the certificate names a tenant, and this cluster has no token to keep \
                             tenants apart; start its servers with --token-file";
                return Err(Refusal::new(RefusalCode::Denied, words));
            }
            return Ok(Meeting::Known(*shown));
        }
        if self.secret().is_none() {
            let words = "the certificate names no role; issue one with a DNS name like \
                         client.mooncrate or client.TENANT.mooncrate";
            return Err(Refusal::new(RefusalCode::Denied, words));
        }
        let mut nonce = [0; NONCE_BYTES];
        random(&mut nonce)
            .map_err(|_| Refusal::new(RefusalCode::Internal, "the server got no random numbers"))?;
        Ok(Meeting::Prove(Challenge { nonce }))
    }

    /// Judges a proof; the credential, and the server's own proof.
    pub(crate) fn verify(
        &self,
        hello: &Hello,
        challenge: &Challenge,
        proof: &Proof,
    ) -> Result<(Credential, ServerProof), Refusal> {
        let denied = || Refusal::new(RefusalCode::Denied, WRONG_TOKEN);
        let secret = self.secret().ok_or_else(denied)?;
        let tenant = TenantId::named(&proof.tenant).map_err(|_| denied())?;
        let key = secret.token_key(proof.role, &proof.tenant);
        let expected = mac(&key, "caller", &challenge.nonce, &proof.nonce, hello);
        // `blake3::Hash` compares in constant time.
        if expected != blake3::Hash::from(proof.mac) {
            return Err(denied());
        }
        let own = mac(&key, "server", &challenge.nonce, &proof.nonce, hello);
        let credential = Credential { role: proof.role, tenant };
        Ok((credential, ServerProof { mac: *own.as_bytes() }))
    }
}

/// What the caller expects of the server.
pub(crate) struct Expected(blake3::Hash);

impl Access {
    /// The hello that this caller sends: a derived token has one role.
    pub(crate) fn hello(&self, hello: &Hello) -> Hello {
        let role = self.token.as_ref().map_or(hello.role, |token| token.show(hello.role).0);
        Hello { role, ..hello.clone() }
    }

    /// Answers a challenge.
    pub(crate) fn prove(
        &self,
        hello: &Hello,
        challenge: &Challenge,
    ) -> Result<(Proof, Expected), CallError> {
        let Some(token) = &self.token else {
            return Err(Refusal::new(RefusalCode::Denied, NO_TOKEN).into());
        };
        let (role, tenant, key) = token.show(hello.role);
        let mut nonce = [0; NONCE_BYTES];
        random(&mut nonce).map_err(|source| CallError::Io {
            doing: "asking the kernel for random numbers for",
            peer: "a proof".to_owned(),
            source,
        })?;
        let own = mac(&key, "caller", &challenge.nonce, &nonce, hello);
        let expected = Expected(mac(&key, "server", &challenge.nonce, &nonce, hello));
        let tenant = tenant.to_owned();
        Ok((Proof { role, tenant, nonce, mac: *own.as_bytes() }, expected))
    }

    /// Judges the server's proof.
    pub(crate) fn confirm(expected: &Expected, proof: &ServerProof) -> Result<(), CallError> {
        if expected.0 == blake3::Hash::from(proof.mac) {
            return Ok(());
        }
        let words = "the server could not prove that it knows the cluster's secret; it is not of \
                     this cluster";
        Err(Refusal::new(RefusalCode::Denied, words).into())
    }

    /// A server that asked for nothing. Whoever holds a token talks to nobody who cannot prove to
    /// know the secret, unless the cluster's CA vouches for the server: no downgrade.
    pub(crate) fn unasked(&self, vouched: bool) -> Result<(), CallError> {
        let Some(token) = &self.token else { return Ok(()) };
        if vouched {
            // The server went by the certificate. Acting as its tenant would be a surprise.
            let names = self.tls.as_ref().map_or(&[][..], TlsClient::names);
            let other = |tenant| names.iter().any(|name| Some(name.tenant) != tenant);
            return match &**token {
                Token::Derived { tenant, .. } if other(TenantId::named(tenant).ok()) => {
                    Err(Refusal::new(RefusalCode::Denied, OTHER_TENANT).into())
                }
                _ => Ok(()),
            };
        }
        let words = "the server did not ask for the token, so it is not of this cluster or runs \
                     without one; start it with --token-file, or leave the token away";
        Err(Refusal::new(RefusalCode::Denied, words).into())
    }
}

impl Gate {
    /// Judges whose keys a caller asks for, who has proved to be of `proved` where that is asked for.
    pub(crate) fn claimed(&self, proved: TenantId, claim: &Claim) -> Result<TenantId, Refusal> {
        if self.is_guarded() && claim.tenant != proved {
            let words = "the credentials are of another tenant than the one that was asked for; use a \
                         token or certificate of that tenant, or leave its name away";
            return Err(Refusal::new(RefusalCode::Denied, words));
        }
        Ok(claim.tenant)
    }
}

fn mac(
    key: &[u8; SECRET_BYTES],
    side: &str,
    server: &[u8; NONCE_BYTES],
    caller: &[u8; NONCE_BYTES],
    hello: &Hello,
) -> blake3::Hash {
    let mut body = Vec::new();
    hello.encode(&mut body);
    // Everything before the hello has a fixed length ("caller" and "server" have the same).
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(side.as_bytes()).update(server).update(caller).update(&body);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::super::token::ClusterSecret;
    use super::*;
    use crate::kind::LinkKind;
    use crate::message::Role;
    use std::sync::Arc;

    fn gate() -> Gate {
        Gate::new(Some(ClusterSecret::from_bytes([1; 32])), None)
    }

    fn holds(token: Token) -> Access {
        Access { token: Some(Arc::new(token)), ..Access::default() }
    }

    fn challenge(gate: &Gate, hello: &Hello) -> Challenge {
        match gate.meet(hello, &[]).unwrap() {
            Meeting::Prove(challenge) => challenge,
            Meeting::Known(_) => panic!("nobody is known without a proof"),
        }
    }

    #[test]
    fn both_sides_prove_and_the_credential_is_the_token_s() {
        let secret = ClusterSecret::from_bytes([1; 32]);
        let caller = holds(secret.derive(Role::Client, "acme").unwrap());
        // What the software would like to be does not count.
        let hello = caller.hello(&Hello::new(Role::Node, LinkKind::Control, "x"));
        let challenge = challenge(&gate(), &hello);
        let (proof, expected) = caller.prove(&hello, &challenge).unwrap();
        let (credential, own) = gate().verify(&hello, &challenge, &proof).unwrap();
        let tenant = TenantId::named("acme").unwrap();
        assert_eq!(credential, Credential { role: Role::Client, tenant });
        Access::confirm(&expected, &own).unwrap();
    }

    /// Whatever is changed on the way, the proof is worth nothing.
    #[test]
    fn security_a_changed_or_repeated_proof_is_denied() {
        let secret = ClusterSecret::from_bytes([1; 32]);
        let caller = holds(secret.derive(Role::Client, "acme").unwrap());
        let hello = Hello::new(Role::Client, LinkKind::Control, "x");
        let asked = challenge(&gate(), &hello);
        let (good, _) = caller.prove(&hello, &asked).unwrap();
        let denied = |hello: &Hello, asked: &Challenge, proof: &Proof| {
            let refusal = gate().verify(hello, asked, proof).unwrap_err();
            assert_eq!(refusal.code, RefusalCode::Denied);
            assert!(refusal.message.contains("token derive"), "{refusal}");
        };
        denied(&hello, &asked, &Proof { role: Role::Admin, ..good.clone() });
        denied(&hello, &asked, &Proof { tenant: "other".into(), ..good.clone() });
        denied(&hello, &asked, &Proof { tenant: "NO".into(), ..good.clone() });
        denied(&hello, &asked, &Proof { nonce: [9; 32], ..good.clone() });
        denied(&hello, &asked, &Proof { mac: [0; 32], ..good.clone() });
        denied(&hello, &challenge(&gate(), &hello), &good);
        let data = Hello { link: LinkKind::Data, ..hello.clone() };
        denied(&data, &asked, &good);
        let (foreign, _) = holds(Token::Cluster(ClusterSecret::from_bytes([2; 32])))
            .prove(&hello, &asked)
            .unwrap();
        denied(&hello, &asked, &foreign);
    }

    #[test]
    fn security_a_server_without_the_secret_is_not_believed() {
        let caller = holds(Token::Cluster(ClusterSecret::from_bytes([1; 32])));
        let hello = Hello::new(Role::Client, LinkKind::Control, "x");
        let (proof, expected) = caller.prove(&hello, &Challenge { nonce: [3; 32] }).unwrap();
        // It may send the caller's own mac back.
        for mac in [[0; 32], proof.mac] {
            let error = Access::confirm(&expected, &ServerProof { mac }).unwrap_err();
            assert!(error.to_string().contains("not of this cluster"), "{error}");
        }
        assert!(caller.unasked(false).is_err());
        assert!(Access::default().unasked(false).is_ok());
    }
}
