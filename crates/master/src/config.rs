//! How a master is set up. Plain data; live parts enter by constructor.

use mooncrate_core::SegmentId;
use mooncrate_core::catalog;
use mooncrate_core::plan::Evidence;
use mooncrate_wire::auth::GrantKey;
use std::path::PathBuf;
use std::time::Duration;

/// Settings of a master.
#[derive(Clone, Debug)]
pub struct MasterConfig {
    /// How its mind works.
    pub catalog: catalog::Config,
    /// Where epoch, known nodes and quotas are kept; `None`: on the disks beside it, if there are some, or
    /// in a usual place.
    pub state_file: Option<PathBuf>,
    /// Files to try in turn where nobody named one. If none can be written, a restart forgets what was kept.
    pub usual_state: Vec<PathBuf>,
    /// Disks of a node in the same process, where the state is kept if no file is named.
    pub disks: Vec<StateDisk>,
    /// Where it leaves a trace that a master led at its address, for the next one that finds no state; `None`:
    /// nowhere, because it listens nowhere.
    pub trace: Option<PathBuf>,
    /// Disks beside it show that a master led before. Like a trace, this is asked where no state is found: then
    /// unknown keys wait for the end of serving leases that an earlier master may have granted.
    pub had_leader: bool,
    /// Time between two ticks of the catalog.
    pub tick: Duration,
    /// How long a put may wait for room when its caller gave no deadline.
    pub put_wait_max: Duration,
    /// The key of grants, in a cluster with a secret.
    pub grants: Option<GrantKey>,
    /// The directory in which stores of the drop-in keep their disks, unless they name one; empty: none.
    pub disk_root: String,
}

/// A disk that carries a copy of the state.
#[derive(Clone, Debug)]
pub struct StateDisk {
    /// The copy.
    pub file: PathBuf,
    /// The disk.
    pub segment: SegmentId,
    /// What it shows for being current.
    pub evidence: Evidence,
}

impl Default for MasterConfig {
    fn default() -> Self {
        Self {
            catalog: catalog::Config::default(),
            state_file: None,
            usual_state: Vec::new(),
            disks: Vec::new(),
            trace: None,
            had_leader: false,
            tick: Duration::from_millis(10),
            put_wait_max: Duration::from_secs(1),
            grants: None,
            disk_root: String::new(),
        }
    }
}
