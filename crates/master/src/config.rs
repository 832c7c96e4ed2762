//! How a master is set up. Plain data; live parts enter by constructor.

use mooncrate_core::catalog;
use mooncrate_wire::auth::GrantKey;
use std::path::PathBuf;
use std::time::Duration;

/// Settings of a master.
#[derive(Clone, Debug)]
pub struct MasterConfig {
    /// How its mind works.
    pub catalog: catalog::Config,
    /// Where epoch, known nodes and quotas are kept; `None`: a restart forgets them.
    pub state_file: Option<PathBuf>,
    /// Time between two ticks of the catalog.
    pub tick: Duration,
    /// How long a put may wait for room when its caller gave no deadline.
    pub put_wait_max: Duration,
    /// The key of grants, in a cluster with a secret.
    pub grants: Option<GrantKey>,
}

impl Default for MasterConfig {
    fn default() -> Self {
        Self {
            catalog: catalog::Config::default(),
            state_file: None,
            tick: Duration::from_millis(10),
            put_wait_max: Duration::from_secs(1),
            grants: None,
        }
    }
}
