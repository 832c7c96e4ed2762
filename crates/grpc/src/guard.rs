//! Who calls, and what it may do: decided by a credential, never by a field of a request.
//!
//! What must stay true: the rules are those of control links (`wire::auth`): the same tokens and
//! certificates, the same table of roles, the same wait for whoever guesses.

use crate::accept::Came;
use mooncrate_core::TenantId;
use mooncrate_wire::auth::{self, BearerDenied, DENIED_PAUSE};
use mooncrate_wire::{Credential, Gate, Kind, Role};
use tonic::Status;
use tonic::metadata::MetadataMap;

/// Who calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    /// Whose objects it sees.
    pub(crate) tenant: TenantId,
    /// What it has proved to be; `None`: this door asks nobody.
    pub(crate) role: Option<Role>,
}

impl Caller {
    /// Whoever calls with this, if it may send what stands for this call on a control link.
    pub(crate) async fn admit(
        gate: &Gate,
        came: &Came,
        metadata: &MetadataMap,
        kind: Kind,
    ) -> Result<Self, Status> {
        if !gate.is_guarded() {
            return Ok(Self { tenant: TenantId::DEFAULT, role: None });
        }
        let fit = |name: Credential| auth::may(name.role, kind);
        let header = metadata.get("authorization").map(|value| value.to_str().unwrap_or_default());
        match gate.bearer(header, &came.names, fit) {
            Ok(shown) if fit(shown) => {
                came.pulse.prove();
                Ok(Self { tenant: shown.tenant, role: Some(shown.role) })
            }
            Ok(Credential { role, .. }) => Err(Status::permission_denied(format!(
                "a {role} may not do this; use a token or certificate of the role that may"
            ))),
            Err(denied) => {
                // Whoever guesses waits, one guess after the other; nobody else waits with it.
                if denied == BearerDenied::Wrong {
                    let _turn = came.guess.lock().await;
                    tokio::time::sleep(DENIED_PAUSE).await;
                }
                Err(Status::unauthenticated(denied.to_string()))
            }
        }
    }

    /// Whether the audit log gets a line of this call.
    pub(crate) fn is_audited(self, kind: Kind) -> bool {
        let administers = self.role == Some(Role::Admin) || kind == Kind::Command;
        administers && auth::mutates(kind)
    }
}
