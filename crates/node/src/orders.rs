//! Orders of the master, carried out; and what happened without one, told.

use crate::duty::Node;
use mooncrate_core::copy::{CopyDone, CopyOrder};
use mooncrate_core::plan::{Medium, Notice, Order};
use mooncrate_core::time::Deadline;
use mooncrate_core::{LeaderEpoch, Now, SegmentId, Slot};
use mooncrate_mem::clock::boottime;
use mooncrate_rt as rt;
use mooncrate_wire::NodeApi;
use mooncrate_wire::message::{NodeCommand, Orders};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long a poll waits at the master.
const POLL_TIME: Duration = Duration::from_millis(500);
/// How long a poll may take beyond that.
const CALL_TIME: Duration = Duration::from_secs(2);
/// Pause after a master that did not answer.
const PAUSE: Duration = Duration::from_millis(100);

/// Words about disks that no master has heard. Nobody asks for the end of a record that its owner evicts or
/// finds damaged, so nobody would ask again; until the master hears of it, readers are sent there in vain.
#[derive(Debug, Default)]
pub(crate) struct Unheard(BTreeMap<(SegmentId, Slot), Notice>);

impl Unheard {
    fn take(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.0).into_values().collect()
    }

    /// The last word about a slot stands for those before it.
    fn put_back(&mut self, notices: Vec<Notice>) {
        for notice in notices {
            if notice.segment.medium() == Medium::Ssd {
                let older = |known: &Notice| {
                    (known.incarnation, known.generation) <= (notice.incarnation, notice.generation)
                };
                let place = (notice.segment, notice.slot);
                if self.0.get(&place).is_none_or(older) {
                    self.0.insert(place, notice);
                }
            }
        }
    }
}

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

    /// Looks after the segments for as long as the node lives: whenever there is something to do, and no more
    /// often than [`crate::NodeConfig::tick`]. An idle node sleeps.
    pub(crate) fn tend(&self) {
        while !self.stopping() {
            self.tick();
            rt::sleep(self.config().tick);
            let left = self.next_look().map(|due| Deadline(due.0).left(boottime()));
            self.segments().bell().wait(left);
        }
    }

    /// When there will be something to tend, if nothing happens before.
    fn next_look(&self) -> Option<Now> {
        let near = self.segments().all().into_iter().filter(|segment| segment.far().is_none());
        let staged = self.tier().and_then(|tier| tier.staging.next_sweep());
        near.filter_map(|segment| segment.next_look()).chain(staged).min()
    }

    /// Frees what may be freed by now and tells the master.
    pub(crate) fn tick(&self) {
        let mut notices = Vec::new();
        for segment in self.segments().all() {
            if segment.far().is_none() {
                segment.tick(boottime(), &mut notices);
            }
        }
        if let Some(tier) = self.tier() {
            tier.staging.sweep(boottime());
        }
        if !notices.is_empty() {
            self.deliver(notices);
        }
    }

    /// Brings notices to the master and carries out what it orders in turn. What cannot be delivered
    /// is lost without harm: the master repeats its orders, and the answers repeat. Words about disks, which
    /// may be no answers, go with the next poll.
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
                self.nap(PAUSE);
            }
        }
    }

    /// Tells what became of copies; whether that was heard. What was not is told again with the next ones.
    pub(crate) fn tell_copies(&self) -> bool {
        let copied = self.copier().take_untold();
        if copied.is_empty() {
            return true;
        }
        let heard = self.poll(Vec::new(), copied.clone(), Duration::ZERO);
        let Some(notices) = heard else {
            self.copier().put_back(copied);
            return false;
        };
        self.copier().told(&copied);
        self.deliver(notices);
        true
    }

    /// One poll: notices there, orders back, carried out; the notices that follow from them.
    fn poll(
        &self,
        notices: Vec<Notice>,
        copied: Vec<CopyDone>,
        wait: Duration,
    ) -> Option<Vec<Notice>> {
        let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        let mut all = self.unheard().lock().take();
        all.extend(notices);
        let ask = Orders { node: self.id(), notices: all, copied, wait_ms };
        let deadline = boottime().deadline_in(wait + CALL_TIME);
        let Ok(Ok(batch)) = self.master().orders(&ask, deadline) else {
            self.unheard().lock().put_back(ask.notices);
            return None;
        };
        if !batch.copies.is_empty() || !batch.commands.is_empty() {
            self.take(batch.copies, batch.commands);
        }
        Some(self.execute(batch.epoch, &batch.orders))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mooncrate_core::plan::OrderResult;
    use mooncrate_core::{Generation, Incarnation, NodeId};

    #[test]
    fn the_last_word_about_each_slot_of_a_disk_is_kept() {
        let word = |medium, slot, generation, result| Notice {
            segment: SegmentId::on(medium, NodeId(1), 0),
            incarnation: Incarnation(1),
            slot: Slot(slot),
            generation: Generation(generation),
            result,
        };
        let gone = |generation: u32| OrderResult::Freed { next: Generation(generation + 1) };
        let mut unheard = Unheard::default();
        unheard.put_back(vec![
            word(Medium::Ssd, 1, 5, OrderResult::Waiting),
            word(Medium::Dram, 1, 5, gone(5)),
            word(Medium::Ssd, 2, 0, OrderResult::Waiting),
            word(Medium::Ssd, 1, 5, gone(5)),
            word(Medium::Ssd, 1, 4, gone(4)),
        ]);
        let kept =
            [word(Medium::Ssd, 1, 5, gone(5)), word(Medium::Ssd, 2, 0, OrderResult::Waiting)];
        assert_eq!(unheard.take(), kept);
        assert_eq!(unheard.take(), []);
    }
}
