//! When a master writes down what the next leader must know, and what becomes of it if that fails.

use crate::kept::Kept;
use crate::service::Master;
use mooncrate_core::{LeaderEpoch, NodeId};
use mooncrate_wire::{CallError, Refusal, RefusalCode};
use std::io;

impl Master {
    /// Whether mounts are written down somewhere.
    pub(crate) fn keeps(&self) -> bool {
        self.keeper().keeps()
    }

    /// Writes down what the next leader must know, where that is kept.
    pub(crate) fn keep(&self) -> io::Result<()> {
        let mut keeper = self.keeper();
        if !keeper.keeps() {
            return Ok(());
        }
        let kept = {
            let mut mind = self.mind();
            if mind.catalog.waits_for_anybody() {
                // A master that comes meanwhile must not take these nodes for all there are.
                return Ok(());
            }
            let quotas = mind.catalog.tenants().filter_map(|(id, of)| Some((id, of.quota?)));
            let quotas = quotas.collect();
            let trusted = mind.catalog.trusted();
            mind.catalog.trust_writing(&trusted);
            let (epoch, nodes) = (mind.catalog.epoch(), mind.catalog.holders());
            Kept { epoch, serial: 0, nodes, trusted, quotas }
        };
        let (nodes, mut trusted) = (kept.nodes.clone(), kept.trusted.clone());
        let mut listed = self.listed.lock();
        match keeper.keep(kept) {
            Ok(true) => *listed = nodes,
            Ok(false) => {
                listed.clear();
                trusted.clear();
            }
            Err(error) => {
                // The write may have come through, and with it a list without some of these nodes.
                listed.retain(|node| nodes.contains(node));
                return Err(error);
            }
        }
        drop(listed);
        // From here on the next leader reads this list and no other: what is not on it may be struck.
        self.mind().catalog.trust_written(&trusted);
        Ok(())
    }

    /// After a mount: writes the list of nodes. If that fails, the mount of a node that is not on the list is refused:
    /// the next leader would not wait for that node, and would take its keys for absent.
    pub(crate) fn keep_mount(&self, node: NodeId) -> Result<(), CallError> {
        let kept = self.keep();
        match kept {
            Err(error) if self.keeper().must() || !self.listed.lock().contains(&node) => {
                Err(cannot_keep("the mount", &error))
            }
            kept => {
                self.say_kept(&kept);
                Ok(())
            }
        }
    }

    /// A node has obeyed the leader `seen`: an epoch above it is reserved before it is used.
    pub(crate) fn rise_above(&self, node: NodeId, seen: LeaderEpoch) -> Result<(), CallError> {
        if !self.mind().catalog.rises_above(node, seen) {
            return Ok(());
        }
        let above = LeaderEpoch(seen.0.saturating_add(1));
        self.keeper().raise(above).map_err(|error| cannot_keep("the epoch", &error))
    }

    /// Writes it down if it has changed. Serving goes on without it: the next leader would only wait for a node that
    /// has left. Called ten times a second while it leads.
    pub fn keep_or_say(&self) {
        self.say_kept(&self.keep());
    }

    /// Tells the operator once what is wrong, and when it is over: it is tried ten times a second.
    pub(crate) fn say_kept(&self, kept: &io::Result<()>) {
        let now = kept.as_ref().err().map(ToString::to_string);
        let before = std::mem::replace(&mut *self.unkept.lock(), now.clone());
        match now {
            Some(error) if before.as_ref() != Some(&error) => {
                tracing::error!(%error, "what the next leader must know cannot be written");
            }
            None if before.is_some() => tracing::info!("what the next leader must know is written"),
            _ => {}
        }
    }
}

/// What a caller hears when what must outlive this master could not be written.
pub(crate) fn cannot_keep(what: &str, error: &io::Error) -> CallError {
    let words = format!("{what} could not be written down: {error}; try again");
    Refusal::new(RefusalCode::Internal, words).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MasterConfig;
    use crate::admin::tests::{Lines, mount_of};
    use mooncrate_core::time::Deadline;
    use mooncrate_core::{Incarnation, TenantId};
    use mooncrate_wire::MasterApi;
    use mooncrate_wire::message::Mounted;
    use std::fs;
    use std::sync::Arc;

    fn mount(master: &Arc<Master>, node: u64, incarnation: u64) -> Result<Mounted, CallError> {
        let mount = mount_of(NodeId(node), Incarnation(incarnation));
        let scope = master.scope(TenantId::DEFAULT);
        scope.mount(&mount, Deadline::NEVER).map(Result::unwrap)
    }

    /// C2: while the file cannot be written, the next leader reads the list in it. A node that is not on that list must
    /// not serve: that leader would take its keys for absent. A node on the list may, also with new memory.
    #[test]
    fn a_node_that_cannot_be_listed_does_not_serve() {
        let folder = tempfile::tempdir().unwrap();
        let state_file = Some(folder.path().join("state"));
        let config = MasterConfig { state_file, ..MasterConfig::default() };
        let master = Master::new(config.clone(), LeaderEpoch(1)).unwrap();
        mount(&master, 1, 7).unwrap();
        let in_the_way = folder.path().join("state.new");
        fs::create_dir(&in_the_way).unwrap();
        let error = mount(&master, 2, 7).unwrap_err().to_string();
        assert!(error.contains("the mount could not be written down"), "{error}");
        mount(&master, 1, 8).unwrap();
        master.retired();
        fs::remove_dir(&in_the_way).unwrap();
        let next = Master::new(config, LeaderEpoch(1)).unwrap();
        assert_eq!(next.mind().catalog.holders(), [NodeId(1)]);
        mount(&next, 2, 7).unwrap();
    }

    /// A file that an operator named: what cannot be written is told, and the list stays as it was. Was: ten times a
    /// second.
    #[test]
    fn trouble_is_told_once() {
        let lines = Lines::default();
        let _listening = lines.listen();
        let folder = tempfile::tempdir().unwrap();
        let state_file = Some(folder.path().join("state"));
        let config = || MasterConfig { state_file: state_file.clone(), ..MasterConfig::default() };
        let master = Master::new(config(), LeaderEpoch(1)).unwrap();
        let before = fs::read(folder.path().join("state")).unwrap();
        let in_the_way = folder.path().join("state.new");
        fs::create_dir(&in_the_way).unwrap();
        master.set_tenant_quota(mooncrate_core::TenantId(1), Some(10)).unwrap_err();
        for _ in 0..10 {
            master.keep_or_say();
        }
        assert_eq!(lines.take().len(), 1, "{:?}", lines.take());
        assert_eq!(fs::read(folder.path().join("state")).unwrap(), before);
        fs::remove_dir(&in_the_way).unwrap();
        for _ in 0..10 {
            master.keep_or_say();
        }
        let said = lines.take();
        assert!(said.len() == 2 && said[1].contains("is written"), "{said:?}");
        // Nobody else has the file before it is let go.
        let error = Master::new(config(), LeaderEpoch(1)).unwrap_err().to_string();
        assert!(error.contains("in use by process"), "{error}");
        master.retired();
        Master::new(config(), LeaderEpoch(1)).unwrap();
    }
}
