//! How the last start of a node ended, kept on its disk. A node that stopped in order has fenced its memory:
//! nobody can read it any more, in no mapping, so its master need not wait for that. A killed one has not.
//!
//! What must stay true: the mark is gone, for good, before the next start serves anything.

use super::Disk;
use mooncrate_core::NodeId;
use mooncrate_ssd::Open;
use std::io;
use std::path::Path;

fn mark(node: NodeId) -> String {
    format!("stopped-{:x}", node.0)
}

impl Disk {
    /// Notes that the node has stopped in order.
    pub(crate) fn say_stopped(&self, node: NodeId) -> io::Result<()> {
        self.device.open(Path::new(&mark(node)), Open::Create)?;
        self.device.sync_dir(Path::new(""))
    }

    /// Whether the last start of the node stopped in order. Asking forgets it.
    pub(crate) fn had_stopped(&self, node: NodeId) -> io::Result<bool> {
        let mark = mark(node);
        let found = self.device.list(Path::new(""))?.iter().any(|entry| entry.name == mark);
        if found {
            self.device.remove(Path::new(&mark))?;
            self.device.sync_dir(Path::new(""))?;
        }
        Ok(found)
    }
}
