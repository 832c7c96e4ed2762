//! Drains, copies and commands as the master meets them. What owners must fetch travels with their
//! orders; what became of it comes back with their notices.

use crate::service::{Master, Mind};
use mooncrate_core::catalog::InUse;
use mooncrate_core::copy::{CopyDone, DrainMode, DrainStat};
use mooncrate_core::error::CopyError;
use mooncrate_core::{Name, TenantId};
use mooncrate_wire::clock::boottime;
use mooncrate_wire::message::{Command, CopyKey, Drain, DrainWish, DropCopy, Evict};

/// Hint when the deadline of a copy came before the copy did.
const NOT_YET_MS: u32 = 50;

impl Master {
    /// Copies for owners: into their mail, those of the node in this process straight to it. It
    /// only puts them into its own queue, so the lock may be held.
    pub(crate) fn sort_copies(&self, mind: &mut Mind) {
        for (node, order) in mind.catalog.take_copies() {
            if let Some(local) = self.local_node(node) {
                local.take(vec![order], Vec::new());
            } else {
                mind.mail.add_copy(node, order);
            }
        }
    }

    /// What became of copies.
    pub(crate) fn take_copied(&self, copied: &[CopyDone]) {
        if copied.is_empty() {
            return;
        }
        let now = boottime();
        let orders = {
            let mut mind = self.mind();
            for done in copied {
                mind.catalog.copied(now, done);
            }
            // The next ones need not wait for the clock.
            mind.catalog.go_on(now);
            self.sort_orders(&mut mind)
        };
        self.carry_out(&orders);
        self.news.publish();
    }

    pub(crate) fn drain_node(&self, ask: &Drain) -> Option<DrainStat> {
        let Drain { node, segment, wish } = *ask;
        let mut mind = self.mind();
        let catalog = &mut mind.catalog;
        let stat = match wish {
            DrainWish::Look => catalog.drain_stat(node, segment),
            DrainWish::Move => catalog.drain(node, segment, DrainMode::Move),
            DrainWish::Drop => catalog.drain(node, segment, DrainMode::Drop),
            DrainWish::Undo => catalog.undrain(node, segment),
        };
        drop(mind);
        if stat.is_some() && wish != DrainWish::Look {
            tracing::info!(%node, ?wish, "drain");
        }
        stat
    }

    pub(crate) fn evict_below(&self, ask: &Evict) -> Option<InUse> {
        let (left, orders) = {
            let mut mind = self.mind();
            let left = mind.catalog.evict_below(boottime(), ask.segment, ask.used_max);
            (left, self.sort_orders(&mut mind))
        };
        self.carry_out(&orders);
        left
    }

    /// One attempt at a copy; `None`: not yet.
    pub(crate) fn try_copy(
        &self,
        tenant: TenantId,
        ask: &CopyKey<'_>,
    ) -> Option<Result<(), CopyError>> {
        let name = Name::new(tenant, ask.key);
        let (copied, orders) = {
            let mut mind = self.mind();
            let copied = mind.catalog.copy(boottime(), name, ask.from, ask.to);
            (copied, self.sort_orders(&mut mind))
        };
        self.carry_out(&orders);
        match copied {
            Ok(true) => Some(Ok(())),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// Ends one copy of an object.
    pub(crate) fn drop_copy(&self, tenant: TenantId, ask: &DropCopy<'_>) -> Result<(), CopyError> {
        let name = Name::new(tenant, ask.key);
        let (dropped, orders) = {
            let mut mind = self.mind();
            let dropped = mind.catalog.drop_copy(boottime(), name, ask.segment);
            (dropped, self.sort_orders(&mut mind))
        };
        self.carry_out(&orders);
        dropped
    }

    /// What a copy answers when time is over.
    pub(crate) const fn copy_not_yet() -> CopyError {
        CopyError::Busy { after_ms: NOT_YET_MS }
    }

    pub(crate) fn command_node(&self, ask: &Command) -> bool {
        let mut mind = self.mind();
        if !mind.catalog.knows(ask.node) {
            return false;
        }
        if let Some(local) = self.local_node(ask.node) {
            local.take(Vec::new(), vec![ask.command]);
        } else {
            mind.mail.add_command(ask.node, ask.command);
        }
        true
    }
}
