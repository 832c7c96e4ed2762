//! What a caller shows and what a server asks for.

use super::grant::GrantKey;
use super::token::{ClusterSecret, Token};
use crate::error::{Refusal, RefusalCode};
use crate::message::Role;
use crate::tls::{TlsClient, TlsServer};
use mooncrate_core::ids::TenantId;
use mooncrate_lock::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Connections of one tenant at one server; more are refused.
const TENANT_CONNECTIONS_MAX: usize = 1024;

/// Connections by tenant.
type Census = Arc<Mutex<BTreeMap<TenantId, usize>>>;

/// What a caller shows. The default shows nothing.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Its token.
    pub token: Option<Arc<Token>>,
    /// How TCP links are encrypted; `None`: not at all. Unix sockets never are.
    pub tls: Option<TlsClient>,
    /// Whose keys it asks a master for. A server that asks for no proof believes it; any other wants
    /// it to be the tenant of the proof.
    pub tenant: TenantId,
}

/// What a server asks for. The default asks for nothing.
#[derive(Clone, Debug)]
pub struct Gate {
    secret: Option<Arc<ClusterSecret>>,
    tls: Option<TlsServer>,
    grants: Option<GrantKey>,
    census: Census,
    tenant_connections_max: usize,
}

/// What a peer has proved, or, at an open gate, what it said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credential {
    /// What it is.
    pub role: Role,
    /// Whose it is.
    pub tenant: TenantId,
}

impl Default for Gate {
    fn default() -> Self {
        Self::new(None, None)
    }
}

impl Gate {
    /// A gate of one server. Clones share the count of connections.
    pub fn new(secret: Option<ClusterSecret>, tls: Option<TlsServer>) -> Self {
        Self {
            grants: secret.as_ref().map(GrantKey::new),
            secret: secret.map(Arc::new),
            tls,
            census: Arc::default(),
            tenant_connections_max: TENANT_CONNECTIONS_MAX,
        }
    }

    /// The same gate at one door of so many places: connections are counted there alone, and a tenant gets no more
    /// than half of them, however few there are.
    #[must_use]
    pub fn at_door(&self, places: usize) -> Self {
        let most = TENANT_CONNECTIONS_MAX.min((places / 2).max(1));
        Self { census: Arc::default(), tenant_connections_max: most, ..self.clone() }
    }

    /// Whether peers must prove who they are.
    pub fn is_guarded(&self) -> bool {
        self.secret.is_some() || self.tls.as_ref().is_some_and(TlsServer::is_mutual)
    }

    /// The key of grants, if the cluster has a secret.
    pub fn grants(&self) -> Option<&GrantKey> {
        self.grants.as_ref()
    }

    /// How TCP links are encrypted.
    pub fn tls(&self) -> Option<&TlsServer> {
        self.tls.as_ref()
    }

    /// The secret, if there is one.
    pub fn secret(&self) -> Option<&ClusterSecret> {
        self.secret.as_deref()
    }

    /// A place among the connections of a tenant, for as long as it is kept. Open gates know no
    /// tenants and count nobody; nodes and masters, which hold the secret, are not counted either.
    pub fn seat(&self, peer: Credential) -> Result<Seat, Refusal> {
        let Credential { role, tenant } = peer;
        if !self.is_guarded() || matches!(role, Role::Node | Role::Master) {
            return Ok(Seat(None));
        }
        let mut census = self.census.lock();
        let taken = census.entry(tenant).or_default();
        if *taken >= self.tenant_connections_max {
            let words = format!("this tenant has {taken} connections here, which is the limit");
            return Err(Refusal::new(RefusalCode::TooMany, words));
        }
        *taken += 1;
        Ok(Seat(Some((Arc::clone(&self.census), tenant))))
    }
}

/// A connection that counts.
#[derive(Debug)]
#[must_use = "dropping it gives the place away"]
pub struct Seat(Option<(Census, TenantId)>);

impl Drop for Seat {
    fn drop(&mut self) {
        let Some((census, tenant)) = &self.0 else { return };
        let mut census = census.lock();
        if let Some(taken) = census.get_mut(tenant) {
            *taken -= 1;
            if *taken == 0 {
                census.remove(tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_a_tenant_cannot_take_all_connections() {
        let secret = ClusterSecret::from_bytes([1; 32]);
        let whole = Gate::new(Some(secret), None);
        let gate = whole.at_door(4);
        let client = |id| Credential { role: Role::Client, tenant: TenantId(id) };
        let (a, b) = (client(1), client(2));
        let _first = gate.seat(a).unwrap();
        let second = gate.clone().seat(a).unwrap();
        assert_eq!(gate.seat(a).unwrap_err().code, RefusalCode::TooMany);
        let _other = gate.seat(b).unwrap();
        drop(second);
        let _again = gate.seat(a).unwrap();
        // Another door counts for itself; nodes are as many as there are.
        let _elsewhere = whole.at_door(1).seat(a).unwrap();
        let node = Credential { role: Role::Node, ..a };
        let nodes: Result<Vec<_>, _> = (0..9).map(|_| gate.seat(node)).collect();
        assert!(nodes.is_ok());
    }
}
