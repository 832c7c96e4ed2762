//! Mail: what waits for a node to ask for it, in a box per node. Each box has a bell of its own, so that an
//! order wakes the poll of the node that it is for, and nobody else's: with 200 nodes that is one task in place
//! of 200.
//!
//! What must stay true: a poll that found its box empty is rung when something is put in. The bell is read
//! where the box is looked at, under the lock of the mind, and rung under the same lock when the box is no
//! longer empty; so nothing falls between look and wait. More mail in a box that is not empty rings nobody:
//! whoever saw it empty has been rung already.

use crate::news::News;
use mooncrate_core::copy::CopyOrder;
use mooncrate_core::plan::Order;
use mooncrate_core::{LeaderEpoch, NodeId};
use mooncrate_wire::message::{NodeCommand, OrderBatch};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Orders that wait for one node; beyond, they are dropped, and the catalog repeats what matters.
const ORDERS_WAITING_MAX: usize = 1 << 16;
/// Commands that wait for one node.
const COMMANDS_WAITING_MAX: usize = 64;
/// Orders in one answer of the poll.
const ORDERS_MAX: usize = 1024;
/// Copies in one answer of the poll: labels are long, frames are not.
const COPIES_MAX: usize = 64;

/// The boxes of all nodes.
#[derive(Debug, Default)]
pub(crate) struct Mail {
    boxes: BTreeMap<NodeId, Letters>,
}

/// What waits for one node. The catalog bounds the copies.
#[derive(Debug, Default)]
struct Letters {
    orders: VecDeque<Order>,
    copies: VecDeque<CopyOrder>,
    commands: Vec<NodeCommand>,
    bell: Arc<News>,
}

impl Letters {
    fn is_empty(&self) -> bool {
        self.orders.is_empty() && self.copies.is_empty() && self.commands.is_empty()
    }

    fn clear(&mut self) {
        let bell = Arc::clone(&self.bell);
        *self = Self { bell, ..Self::default() };
    }
}

/// The bell of a node as it was when its box was looked at.
#[derive(Debug)]
pub(crate) struct Bell {
    of: Arc<News>,
    seen: u64,
}

impl Bell {
    /// Blocks until the bell has rung since, or for so long.
    pub(crate) fn wait(&self, time: Duration) {
        self.of.wait_for(self.seen, time);
    }

    /// The same, in a task.
    pub(crate) async fn wait_async(&self, time: Duration) {
        self.of.wait_for_async(self.seen, time).await;
    }
}

impl Mail {
    pub(crate) fn add_order(&mut self, node: NodeId, order: Order) {
        self.add(node, |letters| {
            if letters.orders.len() < ORDERS_WAITING_MAX {
                letters.orders.push_back(order);
            }
        });
    }

    pub(crate) fn add_copy(&mut self, node: NodeId, order: CopyOrder) {
        self.add(node, |letters| letters.copies.push_back(order));
    }

    pub(crate) fn add_command(&mut self, node: NodeId, command: NodeCommand) {
        self.add(node, |letters| {
            if letters.commands.len() < COMMANDS_WAITING_MAX {
                letters.commands.push(command);
            }
        });
    }

    fn add(&mut self, node: NodeId, put: impl FnOnce(&mut Letters)) {
        // No box: the node is gone, and nobody would ever empty or forget one made now.
        let Some(letters) = self.boxes.get_mut(&node) else { return };
        let was_empty = letters.is_empty();
        put(letters);
        if was_empty {
            letters.bell.publish();
        }
    }

    /// What waits for a node, a part of it; and its bell, for when that is nothing.
    pub(crate) fn take(&mut self, node: NodeId, epoch: LeaderEpoch) -> (OrderBatch, Bell) {
        let letters = self.boxes.entry(node).or_default();
        let orders = letters.orders.len().min(ORDERS_MAX);
        let copies = letters.copies.len().min(COPIES_MAX);
        let batch = OrderBatch {
            epoch,
            orders: letters.orders.drain(..orders).collect(),
            copies: letters.copies.drain(..copies).collect(),
            commands: std::mem::take(&mut letters.commands),
        };
        let of = Arc::clone(&letters.bell);
        let seen = of.version();
        (batch, Bell { of, seen })
    }

    /// A node mounts and has a box from now on. What waited in it was meant for its earlier self, and the catalog
    /// repeats what still matters. Who waits at its bell waits on.
    pub(crate) fn open(&mut self, node: NodeId) {
        self.boxes.entry(node).or_default().clear();
    }

    /// A node is gone. Who waits for its mail hears so.
    pub(crate) fn forget(&mut self, node: NodeId) {
        if let Some(letters) = self.boxes.remove(&node) {
            letters.bell.publish();
        }
    }

    /// The same for all but these.
    pub(crate) fn keep_only(&mut self, stays: impl Fn(NodeId) -> bool) {
        for (_, letters) in self.boxes.extract_if(.., |node, _| !stays(*node)) {
            letters.bell.publish();
        }
    }
}

#[cfg(test)]
#[path = "mail_tests.rs"]
mod tests;
