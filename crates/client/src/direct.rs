//! The direct way of GPU processes: whoever has a GPU moves the bytes of replicas in VRAM itself. Here is
//! what is the client's part of that: places, plans, and the end of a put.
//!
//! What must stay true: what a caller stored counts as a put only when every replica was signalled; what a
//! caller could not move goes the ordinary way, from the beginning.

use crate::client::Client;
use crate::error::Error;
use crate::put::{Stored, Written};
use mooncrate_core::Seal;
use mooncrate_core::error::PutError;
use mooncrate_core::key::Key;
use mooncrate_core::plan::{Located, Medium, PutConfig};
use mooncrate_core::time::Deadline;
use mooncrate_transfer::{Engine, TransferError};
use mooncrate_wire::message::{BeginWrite, PutItem};

impl Client {
    /// Finds an object and lets `work` read it by a way of its own; `None`: there is none. A place that was
    /// stale is looked up again, as for every get.
    pub fn reach<T>(
        &self,
        key: &[u8],
        mut work: impl FnMut(&Located, &Engine, Deadline) -> Result<T, TransferError>,
    ) -> Result<Option<T>, Error> {
        let deadline = self.deadline();
        self.find(key, deadline, |located| work(located, &self.engine, deadline))
    }

    /// Plans a put and lets `write` store and signal each replica, which gives its seal. `None`: a replica is
    /// not in VRAM, or `write` could not store it, and nothing is left of the put.
    pub fn put_directly(
        &self,
        key: &[u8],
        len: u64,
        config: &PutConfig,
        mut write: impl FnMut(&Engine, &BeginWrite<'_>, Deadline) -> Option<Seal>,
    ) -> Result<Option<Stored>, Error> {
        let deadline = self.deadline();
        let mut plans = self.plan(config, &[PutItem::new(key, len)], deadline);
        let plan = match plans.pop().expect("one result per item") {
            Err(Error::Put(PutError::Exists)) => return Ok(Some(Stored::AlreadyThere)),
            plan => plan?,
        };
        let direct = plan.striping.stripes() == 1
            && plan.replicas.iter().all(|at| at.segment.medium() == Medium::Vram);
        let mut seal = None;
        for locator in plan.replicas.iter().filter(|_| direct) {
            let known = Key::new(key).expect("the master planned it, so it is a key");
            let label = config.label(self.config.tenant, known, plan.striping, locator.stripe);
            let label = label.encode();
            let put = BeginWrite {
                locator: *locator,
                token: plan.token,
                object: plan.object,
                epoch: plan.epoch,
                len,
                label: &label,
            };
            let written = write(&self.engine, &put, deadline);
            // All copies are of the same bytes, or the caller changed them meanwhile.
            if written.is_none() || seal.is_some_and(|seal| Some(seal) != written) {
                seal = None;
                break;
            }
            seal = written;
        }
        let Some(seal) = seal else {
            self.revoke(key, plan.token, deadline);
            return Ok(None);
        };
        let mut results = [None];
        let remember = config.expire_ms == 0;
        let ends = vec![Written { index: 0, plan, seals: vec![seal], remember }];
        self.end(&[(key, &[])], ends, &mut results, deadline);
        let [ended] = results;
        ended.expect("the one item was decided").map(Some)
    }
}
