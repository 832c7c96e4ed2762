//! The operator: empties nodes and segments while everything goes on, lets nodes leave that are empty, gives nodes
//! more memory, and limits what may be used.
//!
//! What is judged: a node that has left is none of the master's. In a calm run the oracle judges the rest: what was
//! moved away must be found.

use super::{Plan, judge};
use crate::fibers;
use mooncrate_client::Client;
use mooncrate_core::rng::Rng;
use mooncrate_core::{NodeId, SegmentId, TenantId};
use mooncrate_lock::Mutex;
use mooncrate_rt as rt;
use mooncrate_wire::message::{DrainWish, NodeCommand, NodeEntry};
use std::sync::Arc;
use std::time::Duration;

/// Looks at a drain before it is given up.
const LOOKS: u32 = 40;

/// Which node shall leave, has stopped, and has left.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    pub(super) asked: Option<usize>,
    pub(super) stopped: Option<usize>,
    pub(super) left: Option<usize>,
}

pub(super) struct Operator {
    pub(super) client: Client,
    pub(super) rng: Rng,
    pub(super) plan: Arc<Plan>,
    pub(super) leaving: Arc<Mutex<Leaving>>,
}

impl Operator {
    /// Works until the run has had enough.
    pub(super) fn work(mut self) {
        while !judge::is_over() {
            self.rest();
            let at = self.rng.below(self.plan.nodes as u64) as usize;
            let node = NodeId::named(&format!("node-{at}"));
            match self.rng.below(4) {
                0 => self.resize(node),
                1 if !self.plan.calm => {
                    let quota = self.rng.below(self.plan.segment_bytes);
                    let _ = self.client.set_quota(TenantId::DEFAULT, Some(quota));
                    self.rest();
                    let _ = self.client.set_quota(TenantId::DEFAULT, None);
                }
                2 if !self.plan.calm => {
                    let _ = self.client.drain(node, None, DrainWish::Drop);
                    self.rest();
                    let _ = self.client.drain(node, None, DrainWish::Undo);
                }
                _ => {
                    let leaves = self.empty(node, None) && self.rng.chance(600);
                    // One that comes back brings what its disks hold.
                    if leaves && !self.plan.tenants.judged {
                        self.let_go(at, node);
                    }
                    let _ = self.client.drain(node, None, DrainWish::Undo);
                }
            }
        }
    }

    fn rest(&mut self) {
        let lease = self.plan.catalog.serve_lease.as_nanos() as u64;
        rt::sleep(Duration::from_nanos(self.rng.below(2 * lease)));
    }

    /// Moves everything elsewhere; whether nothing is left in the end.
    fn empty(&self, node: NodeId, segment: Option<SegmentId>) -> bool {
        for _ in 0..LOOKS {
            let drained = self.client.drain(node, segment, DrainWish::Move);
            if drained.is_ok_and(|stat| stat.is_some_and(|stat| stat.drained())) {
                return true;
            }
            rt::sleep(self.plan.catalog.serve_lease / 8);
        }
        false
    }

    /// The node leaves. Nobody may count on it then.
    fn let_go(&self, at: usize, node: NodeId) {
        fibers::note(11, at as u64, || format!("node {at} is empty and leaves"));
        {
            let mut leaving = self.leaving.lock();
            // An earlier node may have left after the wait for it had ended.
            leaving.left = None;
            leaving.asked = Some(at);
        }
        for _ in 0..LOOKS {
            rt::sleep(self.plan.catalog.serve_lease / 8);
            if self.leaving.lock().left.take_if(|left| *left == at).is_some() {
                let nodes = self.client.nodes();
                let listed =
                    |nodes: &[_]| nodes.iter().any(|entry: &NodeEntry| entry.info.node == node);
                // A master that dies may have heard it, and not the next one.
                let heard = self.plan.calm && self.plan.hurts.every == 0;
                let in_time = self.plan.late.permille == 0;
                // At the end of a run all nodes come back at once.
                let away = !judge::is_over();
                if heard && in_time && away && nodes.is_ok_and(|nodes| listed(&nodes)) {
                    judge::fail("farewell", format!("node {at} has left, and is listed"));
                }
                return;
            }
        }
    }

    /// One more segment, or one less.
    fn resize(&mut self, node: NodeId) {
        let bytes = self.plan.segment_bytes;
        let mounted = self.client.command(node, NodeCommand::Mount { index: 1, bytes });
        if mounted.is_ok_and(|known| known) {
            self.rest();
            if self.empty(node, Some(SegmentId::of(node, 1))) {
                let _ = self.client.command(node, NodeCommand::Unmount { index: 1 });
            }
        }
    }
}
