//! The master's leave to move bytes, in every locator that leaves it.
//!
//! What must stay true: in a cluster with a secret no locator goes out without a grant, and the grant
//! is for the tenant that asked. So grants are added where plans and locators leave [`Master`], below
//! every door: frames, gRPC and calls in the same process.

use crate::service::Master;
use mooncrate_core::TenantId;
use mooncrate_core::plan::{Located, Locator, Right, WritePlan};
use mooncrate_wire::clock::wall_seconds;

impl Master {
    /// A plan as its tenant gets it.
    pub(crate) fn grant_plan(&self, tenant: TenantId, mut plan: WritePlan) -> WritePlan {
        self.grant(tenant, Right::Write, &mut plan.replicas);
        plan
    }

    /// Places as the tenant that asked for them gets them.
    pub(crate) fn grant_located(&self, tenant: TenantId, mut located: Located) -> Located {
        self.grant(tenant, Right::Read, &mut located.replicas);
        located
    }

    fn grant(&self, tenant: TenantId, right: Right, locators: &mut [Locator]) {
        let Some(key) = &self.config.grants else { return };
        let now_s = wall_seconds();
        for locator in locators {
            locator.grant = Some(key.mint(locator, tenant, right, now_s));
        }
    }
}
