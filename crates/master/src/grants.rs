//! The master's leave to move bytes, in every locator that leaves it.
//!
//! What must stay true: in a cluster with a secret no locator goes out without a grant, and the grant
//! is for the tenant that asked.

use crate::service::Master;
use mooncrate_core::TenantId;
use mooncrate_core::plan::{Locator, Right};
use mooncrate_wire::auth::GrantKey;
use mooncrate_wire::clock::wall_seconds;
use mooncrate_wire::{Answer, Reply};
use std::sync::Arc;

/// Puts grants into an answer, now or when it is there.
pub(crate) fn add(master: &Arc<Master>, tenant: TenantId, answer: Answer) -> Answer {
    let Some(key) = &master.config.grants else { return answer };
    match answer {
        Answer::Now(reply) => Answer::Now(granted(key, tenant, reply)),
        Answer::Later(waiting) => {
            let key = key.clone();
            Answer::Later(Box::pin(async move { granted(&key, tenant, waiting.await) }))
        }
    }
}

fn granted(key: &GrantKey, tenant: TenantId, mut reply: Reply) -> Reply {
    let now_s = wall_seconds();
    let mint = |right: Right, locators: &mut [Locator]| {
        for locator in locators {
            locator.grant = Some(key.mint(locator, tenant, right, now_s));
        }
    };
    match &mut reply {
        Reply::PutStart(plans) => {
            for plan in plans.iter_mut().flatten() {
                mint(Right::Write, &mut plan.replicas);
            }
        }
        Reply::PutReplan(Ok(plan)) => mint(Right::Write, &mut plan.replicas),
        Reply::Locate(found) => {
            for located in found.iter_mut().flatten() {
                mint(Right::Read, &mut located.replicas);
            }
        }
        _ => {}
    }
    reply
}
