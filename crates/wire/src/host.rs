//! Which machine this is.

use mooncrate_core::ids::{HostId, name_hash};

/// A label that processes share exactly if they run under one kernel: the boot id, or the host name
/// where there is none.
pub fn this_host() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let name = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    boot.map_or_else(|_| name(), |id| id.trim().to_owned())
}

/// The same as a master says it in its hello, whatever label an operator gave the machine.
pub(crate) fn this_machine() -> HostId {
    HostId(name_hash(&this_host()))
}
