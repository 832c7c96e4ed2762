//! Tenants that share a cluster. Keys and clients are dealt out among them in turn, so tenants have keys of the same
//! bytes; the first tenant has no name and no quota.
//!
//! What is judged (G16): no tenant has more than its quota, once it has had as little.

use super::Plan;
use super::hurts::Hurts;
use super::load::Deed;
use super::processes::{AGAIN, client_over, master_link};
use crate::swarm::pick;
use mooncrate_core::TenantId;
use mooncrate_core::rng::Rng;
use mooncrate_master::Master;
use mooncrate_rt as rt;
use mooncrate_wire::Role;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Between two looks at what tenants have: replicas move all the time, and while one does nothing can be said.
const LOOK: Duration = Duration::from_millis(5);

/// What a seed draws about tenants.
#[derive(Clone, Copy, Debug)]
pub struct Tenants {
    /// How many there are.
    pub(super) count: u64,
    /// What each but the first may use; `None`: everything.
    pub(super) quota: Option<u64>,
    /// No node dies, and replicas move often: then what tenants have can be judged.
    pub(super) judged: bool,
}

impl Default for Tenants {
    fn default() -> Self {
        Self { count: 1, quota: None, judged: false }
    }
}

impl Tenants {
    /// From a stream of its own: the other choices of a seed stay the same.
    pub(super) fn draw(plan: &Plan) -> Self {
        let rng = &mut Rng::stream(plan.seed, "tenants");
        if !rng.chance(250) {
            return Self::default();
        }
        let count = *pick(rng, &[2, 2, 3]);
        let quota = *pick(rng, &[0, 1_500, 4_000, 20_000]);
        let quota = (quota > 0 && !plan.calm).then_some(quota);
        Self { count, quota, judged: quota.is_some() && rng.chance(700) }
    }

    /// Lets replicas move, and nodes stay, where what tenants have is judged.
    pub(super) fn fit(self, plan: &mut Plan) {
        if !self.judged {
            return;
        }
        // Nodes stand still for a moment, so that moves meet: no serving lease ends in that.
        plan.hurts = Hurts::short_stops();
        // Replicas of few keys, and several places to move them to.
        plan.nodes = plan.nodes.max(3);
        plan.keys = plan.keys.min(6 * self.count);
        plan.operator = true;
        for (deed, share) in &mut plan.shares {
            match deed {
                Deed::Copy => *share = 40,
                Deed::Remove => *share = 2,
                Deed::RemoveMatching => *share = 0,
                _ => {}
            }
        }
    }

    /// Between two looks at a leader.
    pub(super) fn look(&self, usual: Duration) -> Duration {
        if self.judged { LOOK } else { usual }
    }

    /// The tenant of the client of this number.
    pub(super) fn of_client(&self, client: usize) -> u64 {
        client as u64 % self.count
    }

    /// The keys of a tenant.
    pub(super) fn keys(&self, tenant: u64, keys: u64) -> impl Iterator<Item = usize> + use<> {
        (tenant as usize..keys as usize).step_by(self.count as usize)
    }

    /// Which tenant has this key, and which of its keys it is.
    pub(super) fn of_key(&self, key: u64) -> (u64, u64) {
        (key % self.count, key / self.count)
    }
}

/// The name of a tenant.
pub(super) fn name(tenant: u64) -> String {
    if tenant == 0 { String::new() } else { format!("tenant-{tenant}") }
}

/// The id of a tenant.
pub(super) fn id(tenant: u64) -> TenantId {
    TenantId::named(&name(tenant)).expect("a plain name")
}

/// Gives each tenant its quota.
pub(super) fn limit(plan: &Plan) {
    let master = Arc::new(master_link(plan, Role::Admin, 0, "limits"));
    let client = client_over(plan, ("limits", 0), false, master, Arc::default());
    for tenant in 1..plan.tenants.count {
        while client.set_quota(id(tenant), plan.tenants.quota).is_err() {
            rt::sleep(AGAIN);
        }
    }
}

/// What tenants had when a leader was last looked at, where that is more than their quota.
pub(super) type Above = BTreeMap<(u64, TenantId), u64>;

/// Looks whether a tenant has more than its quota, and more than it had. While a replica moves it counts twice, and
/// what has ended counts until it is free; nodes that come back bring what they hold.
pub(super) fn judge(plan: &Plan, master: &Master, above: &mut Above) -> Option<String> {
    if !plan.tenants.judged {
        return None;
    }
    master.inspect(|catalog| {
        if catalog.rebuilding() || catalog.copies_under_way() > 0 {
            return None;
        }
        let mut wrong = None;
        for (tenant, known) in catalog.tenants() {
            let place = (catalog.epoch().0, tenant);
            let Some(quota) = known.quota else {
                above.remove(&place);
                continue;
            };
            let has = known.used - known.ending;
            let most = above.insert(place, has.max(quota)).unwrap_or(has).max(quota);
            if has > most {
                wrong = Some(format!("{tenant} has {has} bytes of {quota}, and had {most}"));
            }
        }
        wrong
    })
}
