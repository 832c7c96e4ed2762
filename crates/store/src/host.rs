//! Which machine this is, and which start of a process: the two labels that a door must supply.

use mooncrate_core::Incarnation;
use std::time::{SystemTime, UNIX_EPOCH};

/// A label that processes share exactly if they run under one kernel: the boot id, or the host name
/// where there is none.
pub fn this_host() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let name = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    boot.map_or_else(|_| name(), |id| id.trim().to_owned())
}

/// A number that grows from start to start. Wall time orders starts, and nothing else: no lease and no
/// deadline hangs on it.
#[expect(clippy::disallowed_methods, reason = "orders the starts of a process, across reboots")]
pub(crate) fn this_start() -> Incarnation {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Incarnation(u64::try_from(since.as_micros()).unwrap_or(u64::MAX).max(1))
}
