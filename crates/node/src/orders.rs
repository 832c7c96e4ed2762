//! Orders of the master, carried out; and what happened without one, told.

use crate::duty::Node;
use mooncrate_core::LeaderEpoch;
use mooncrate_core::copy::{CopyDone, CopyOrder};
use mooncrate_core::plan::{Medium, Notice, Order};
use mooncrate_mem::clock::boottime;
use mooncrate_wire::NodeApi;
use mooncrate_wire::message::{NodeCommand, Orders};
use std::time::Duration;

/// How long a poll waits at the master.
const POLL_TIME: Duration = Duration::from_millis(500);
/// How long a poll may take beyond that.
const CALL_TIME: Duration = Duration::from_secs(2);
/// Pause after a master that did not answer.
const PAUSE: Duration = Duration::from_millis(100);

impl NodeApi for Node {
    fn execute(&self, epoch: LeaderEpoch, orders: &[Order]) -> Vec<Notice> {
        let now = boottime();
        let mut notices = Vec::with_capacity(orders.len());
        for order in orders {
            // What ends on a disk is told when the disk has it: by threads of its own.
            if let Some(disk) = self.tier().and_then(|tier| tier.disk(order.segment)) {
                disk.end(epoch, *order);
                continue;
            }
            let Some(segment) = self.segments().get(order.segment) else { continue };
            match segment.execute(now, epoch, order) {
                Ok(notice) => {
                    self.tally().orders.one();
                    notices.push(notice);
                }
                // An old leader or an old mount: no notice, so the master learns nothing from it.
                Err(error) => {
                    self.tally().orders_refused.one();
                    tracing::debug!(%error, ?order, "order refused");
                }
            }
        }
        notices
    }

    fn take(&self, copies: Vec<CopyOrder>, commands: Vec<NodeCommand>) {
        let (disk, memory) = copies
            .into_iter()
            .partition(|order: &CopyOrder| order.target.segment.medium() == Medium::Ssd);
        self.copier().add(memory, commands);
        self.offload(disk);
    }
}

impl Node {
    /// Hands copies to the disks they are for; what they do not take is refused.
    fn offload(&self, orders: Vec<CopyOrder>) {
        let mut refused = false;
        for order in orders {
            if !self.copier().begin(&order) {
                continue;
            }
            let disk = self.tier().and_then(|tier| tier.disk(order.target.segment));
            let no = CopyDone::of(&order.target, false);
            if !disk.is_some_and(|disk| disk.offer(order)) {
                refused = true;
                self.copier().remember(no, 0);
            }
        }
        if refused {
            self.copier().wake();
        }
    }

    /// Frees what may be freed by now and tells the master.
    pub(crate) fn tick(&self) {
        let mut notices = Vec::new();
        for segment in self.segments().all() {
            segment.tick(boottime(), &mut notices);
        }
        if let Some(tier) = self.tier() {
            tier.staging.sweep(boottime());
        }
        if !notices.is_empty() {
            self.deliver(notices);
        }
    }

    /// Brings notices to the master and carries out what it orders in turn. What cannot be delivered
    /// is lost without harm: the master repeats its orders, and the answers repeat.
    pub(crate) fn deliver(&self, mut notices: Vec<Notice>) {
        while !notices.is_empty() && !self.stopping() {
            match self.poll(std::mem::take(&mut notices), Vec::new(), Duration::ZERO) {
                Some(next) => notices = next,
                None => return,
            }
        }
    }

    /// Tells a master of notices; whether it has heard them.
    pub(crate) fn tell(&self, notices: &[Notice]) -> bool {
        match self.poll(notices.to_vec(), Vec::new(), Duration::ZERO) {
            Some(next) => {
                self.deliver(next);
                true
            }
            None => false,
        }
    }

    /// Waits for orders at a master in another process, for as long as the node lives.
    pub(crate) fn follow_orders(&self) {
        let mut notices = Vec::new();
        while !self.stopping() {
            if let Some(next) = self.poll(std::mem::take(&mut notices), Vec::new(), POLL_TIME) {
                notices = next;
            } else {
                self.alarm();
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Tells what became of copies. What was not heard is told again with the next ones.
    pub(crate) fn tell_copies(&self) {
        let copied = self.copier().take_untold();
        if copied.is_empty() {
            return;
        }
        match self.poll(Vec::new(), copied.clone(), Duration::ZERO) {
            Some(notices) => {
                self.copier().told(&copied);
                self.deliver(notices);
            }
            None => self.copier().put_back(copied),
        }
    }

    /// One poll: notices there, orders back, carried out; the notices that follow from them.
    fn poll(
        &self,
        notices: Vec<Notice>,
        copied: Vec<CopyDone>,
        wait: Duration,
    ) -> Option<Vec<Notice>> {
        let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        let ask = Orders { node: self.id(), notices, copied, wait_ms };
        let deadline = boottime().deadline_in(wait + CALL_TIME);
        let batch = self.master().orders(&ask, deadline).ok()?.ok()?;
        if !batch.copies.is_empty() || !batch.commands.is_empty() {
            self.take(batch.copies, batch.commands);
        }
        Some(self.execute(batch.epoch, &batch.orders))
    }
}
