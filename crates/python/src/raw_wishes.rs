//! The wishes of a raw put, as one `dict`: a package with a calling convention of its own makes it once
//! and hands it on.

use mooncrate_core::SegmentId;
use mooncrate_core::ids::GroupId;
use mooncrate_core::plan::{Keep, PutConfig};
use pyo3::prelude::*;

/// Every key but `replicas` may be left out.
#[derive(Debug, Default, FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct RawWishes {
    /// Copies, as many of them as there are nodes.
    replicas: u8,
    #[pyo3(default)]
    soft_pin_ms: Option<u32>,
    #[pyo3(default)]
    hard_pin: bool,
    /// Empty: none.
    #[pyo3(default)]
    group: String,
    /// Ids of segments to try first.
    #[pyo3(default)]
    preferred: Vec<u64>,
    #[pyo3(default)]
    upsert: bool,
}

impl RawWishes {
    /// `config` with these wishes.
    pub(crate) fn onto(&self, mut config: PutConfig) -> PutConfig {
        config.replicas = self.replicas;
        config.best_effort = true;
        config.keep = match self.soft_pin_ms {
            _ if self.hard_pin => Keep::Hard,
            Some(ttl_ms) => Keep::Soft { ttl_ms },
            None => Keep::Normal,
        };
        if !self.group.is_empty() {
            config.group = GroupId::named(self.group.as_bytes());
        }
        config.preferred = self.preferred.iter().map(|id| SegmentId(*id)).collect();
        config.upsert = self.upsert;
        config
    }
}
