//! Which machine this is, and which start of a process: the two labels that a door must supply.

use mooncrate_core::Incarnation;
pub use mooncrate_wire::host::this_host;
use std::time::{SystemTime, UNIX_EPOCH};

/// A number that grows from start to start. Wall time orders starts, and nothing else: no lease and no
/// deadline hangs on it.
#[expect(clippy::disallowed_methods, reason = "orders the starts of a process, across reboots")]
pub(crate) fn this_start() -> Incarnation {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Incarnation(u64::try_from(since.as_micros()).unwrap_or(u64::MAX).max(1))
}
