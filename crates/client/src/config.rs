//! How a client behaves. Plain data.

use mooncrate_core::{TenantId, ZoneId};
use std::time::Duration;

/// Settings of a client.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Longest time of one call. One that moves 256 MiB or more in parts has eight times as much.
    pub call_time: Duration,
    /// Bytes that remembered places of values may take, their keys included; about 180 each with keys of
    /// 32 bytes.
    pub locator_bytes_max: usize,
    /// Its zone, for placement.
    pub zone: ZoneId,
    /// Copies of each object, unless a put says otherwise.
    pub replicas: u8,
    /// Fewer copies are fine where too few nodes exist; otherwise such a put is refused.
    pub best_effort: bool,
    /// Whose objects it names, where nobody asks for credentials; elsewhere its credential decides.
    pub tenant: TenantId,
    /// Whether every read and lookup holds what it finds, so that removes without force are refused for the
    /// master's `lease_ttl`. Then the master is asked each time, and remembered places are not used.
    pub holds: bool,
    /// Parts of one large value that travel at the same time.
    pub parallel_max: usize,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            call_time: Duration::from_secs(5),
            locator_bytes_max: 64 << 20,
            zone: ZoneId(0),
            replicas: 1,
            best_effort: false,
            tenant: TenantId::DEFAULT,
            holds: false,
            parallel_max: 8,
        }
    }
}
