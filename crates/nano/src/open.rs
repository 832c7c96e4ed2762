//! Plans that this process has not committed or given up.
//!
//! What must stay true: a key has one plan at most, so that a late thread cannot end the plan of another one. While a call
//! works on a key its place is taken: only that call puts a plan there, or lets the key go.

use crate::error::NanoError;
use crate::marks::Marks;
use crate::plan::WritePlan;
use mooncrate_core::error::PutError;
use mooncrate_core::{PutToken, key};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

#[derive(Debug, Default)]
pub(crate) struct Open {
    /// `None`: a call works on the key.
    plans: HashMap<Vec<u8>, Option<WritePlan>>,
    /// Only these may be written to; with the ends of what is queued for them.
    live: HashMap<PutToken, Arc<Marks>>,
    /// Keys whose last plan was committed, so that a second commit of it is no mistake.
    committed: HashSet<u128>,
}

/// Keys that are remembered as committed.
const COMMITTED_MAX: usize = 1 << 16;

impl Open {
    /// Takes a key for one put of this process.
    pub(crate) fn claim(&mut self, key: &[u8]) -> Result<(), NanoError> {
        match self.plans.entry(key.to_vec()) {
            Entry::Vacant(place) => place.insert(None),
            Entry::Occupied(_) => return Err(PutError::InProgress { after_ms: 1 }.into()),
        };
        self.committed.remove(&key::fingerprint(key).0);
        Ok(())
    }

    /// Takes the plan of a key, for a call that ends it.
    pub(crate) fn take(&mut self, key: &[u8]) -> Option<(WritePlan, Arc<Marks>)> {
        let plan = self.plans.get_mut(key)?.take()?;
        let marks = self.live.remove(&plan.token).unwrap_or_default();
        Some((plan, marks))
    }

    /// A plan of a key that the caller has taken: new, or back after a commit that can be tried again.
    pub(crate) fn put_back(&mut self, key: &[u8], plan: WritePlan, marks: Arc<Marks>) {
        self.plans.insert(key.to_vec(), Some(plan));
        self.live.insert(plan.token, marks);
    }

    /// Lets a key go that the caller has taken, and whose plan has ended.
    pub(crate) fn release(&mut self, key: &[u8]) {
        self.plans.remove(key);
    }

    /// What is queued for a plan; `None`: it may not be written to.
    pub(crate) fn marks(&self, plan: &WritePlan) -> Option<Arc<Marks>> {
        self.live.get(&plan.token).map(Arc::clone)
    }

    pub(crate) fn note_committed(&mut self, key: &[u8]) {
        if self.committed.len() >= COMMITTED_MAX {
            self.committed.clear();
        }
        self.committed.insert(key::fingerprint(key).0);
    }

    pub(crate) fn was_committed(&self, key: &[u8]) -> bool {
        self.committed.contains(&key::fingerprint(key).0)
    }

    /// All plans, for a rank that leaves.
    pub(crate) fn into_plans(self) -> impl Iterator<Item = (Vec<u8>, WritePlan)> {
        self.plans.into_iter().filter_map(|(key, plan)| Some((key, plan?)))
    }
}
