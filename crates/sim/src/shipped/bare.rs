//! Readers that count on a lease alone: they look a value up with a lease, and look at its place in the memory of the
//! node on their machine until the lease is over. They verify nothing, so only the lease keeps them from reading a later
//! value in the same place.
//!
//! What is judged (G5): no place is given to another value under a lease that its holder counts as valid, while the
//! owner may serve.

use super::{Plan, judge};
use crate::MS;
use crate::swarm::pick;
use mooncrate_core::lease::holder_end;
use mooncrate_core::rng::Rng;
use mooncrate_core::time::Now;
use mooncrate_core::{Located, Locator};
use mooncrate_lock::Mutex;
use mooncrate_mem::Segment;
use mooncrate_mem::clock::boottime;
use mooncrate_rt as rt;
use mooncrate_wire::MasterLink;
use mooncrate_wire::api::MasterApi;
use std::sync::Arc;
use std::time::Duration;

/// Leases that are asked for, in milliseconds: most are short.
pub(super) const LEASES_MS: [u64; 4] = [200, 200, 2_000, 10_000];
/// The same in runs where many outlast the leader that granted them.
pub(super) const LONG_LEASES_MS: [u64; 4] = [10_000; 4];
/// Between two leases, at most.
const PAUSE_NANOS_MAX: u64 = 50 * MS;

/// The memory of a node, as it was registered last.
pub(super) type Memory = Arc<Mutex<Option<Arc<Segment>>>>;

pub(super) struct Bare {
    pub(super) master: MasterLink,
    pub(super) memory: Memory,
    pub(super) rng: Rng,
    pub(super) plan: Arc<Plan>,
}

impl Bare {
    /// Works until the run has had enough.
    pub(super) fn work(mut self) {
        while !judge::is_over() {
            self.hold();
            self.rest(PAUSE_NANOS_MAX);
        }
    }

    fn rest(&mut self, nanos_max: u64) {
        rt::sleep(Duration::from_nanos(self.rng.below(nanos_max)));
    }

    /// Takes a lease, and looks until it is over.
    fn hold(&mut self) {
        let keys: Vec<usize> = self.plan.tenants.keys(0, self.plan.keys).collect();
        let at = *pick(&mut self.rng, &keys);
        let key = judge::key(at);
        let most = *pick(&mut self.rng, &self.plan.bare_leases_ms);
        let lease_ms = 1 + self.rng.below(most) as u32;
        let sent = boottime();
        let deadline = sent.deadline_in(self.plan.call_time);
        let Ok(mut found) = self.master.locate(lease_ms, &[&key.bytes], deadline) else { return };
        let Some(Ok(located)) = found.pop() else { return };
        let until = holder_end(sent, located.lease_ms);
        let Some(segment) = self.memory.lock().clone() else { return };
        let places = places(&located, &segment);
        while !places.is_empty() && !judge::is_over() {
            for place in &places {
                let word = segment.one_sided().word(place.slot).expect("the slot is there");
                let serve_until = segment.serve_until();
                // After both: what they say was so under the lease.
                let now = boottime();
                if now >= until {
                    return;
                }
                if now < serve_until && word.generation() != place.generation {
                    let left = until.since(now).as_millis();
                    let text = format!("k{at}: {place:?} is {word:?} with {left} ms of its lease");
                    return judge::fail("G5", text);
                }
            }
            self.rest(pause(boottime(), until));
        }
    }
}

/// Those of its places that are in this segment, in the mount that it is now.
fn places(located: &Located, segment: &Segment) -> Vec<Locator> {
    let spec = segment.spec();
    let here = |at: &&Locator| at.segment == spec.segment && at.incarnation == spec.incarnation;
    located.replicas.iter().filter(here).copied().collect()
}

/// The longest pause between two looks: some looks come near the end of the lease.
fn pause(now: Now, until: Now) -> u64 {
    let left = u64::try_from(until.since(now).as_nanos()).unwrap_or(u64::MAX);
    (left / 2).max(MS)
}
