//! Whether memory at an address can be read or written, found out without touching it from here: the
//! kernel is asked, so that a bad address is an answer and not the end of the process.
//!
//! What must stay true: a range that is called usable could be used when it was looked at. Another thread
//! may unmap it at any time after that; nothing can be done about it here.
//!
//! The kernel populates the pages as the use itself would (`MADV_POPULATE_READ`, `_WRITE`, Linux 5.14). It
//! refuses mappings of devices, such as host memory that CUDA has pinned, and tells that by the same error
//! as a missing permission or an older kernel. There the table of mappings decides. That table does not
//! tell that a file has become shorter than its mapping.

use std::io;

/// What memory is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Read,
    Write,
}

/// Times that the kernel is asked again when a signal or a busy page came in between.
const TRIES: usize = 100;

/// Whether all bytes can be used so.
pub(crate) fn is_usable(address: usize, size: usize, wanted: Use) -> bool {
    if size == 0 {
        return true;
    }
    let Some(end) = address.checked_add(size) else { return false };
    let page = page_bytes();
    let first = address / page * page;
    let advice = match wanted {
        Use::Read => libc::MADV_POPULATE_READ,
        Use::Write => libc::MADV_POPULATE_WRITE,
    };
    for _ in 0..TRIES {
        let start = std::ptr::without_provenance_mut(first);
        // SAFETY: populating changes no byte and moves no mapping; of what is not mapped the kernel says so.
        if unsafe { libc::madvise(start, end - first, advice) } == 0 {
            return true;
        }
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => {}
            Some(libc::EINVAL) => {
                return access(address, size).is_some_and(|access| access.allows(wanted));
            }
            _ => return false,
        }
    }
    false
}

fn page_bytes() -> usize {
    // SAFETY: it reads a constant of the system.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).ok().filter(|bytes| *bytes > 0).unwrap_or(4096)
}

/// What a range may be used for, by the table of mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) read: bool,
    pub(crate) write: bool,
}

impl Access {
    const fn allows(self, wanted: Use) -> bool {
        match wanted {
            Use::Read => self.read,
            Use::Write => self.write,
        }
    }
}

/// What all bytes may be used for; nothing is touched. `None` if the kernel shows no table.
pub(crate) fn access(address: usize, size: usize) -> Option<Access> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    Some(access_in(&maps, address, size))
}

fn access_in(maps: &str, address: usize, size: usize) -> Access {
    let nothing = Access { read: false, write: false };
    let Some(end) = address.checked_add(size) else { return nothing };
    let mut all = Access { read: true, write: true };
    let mut next = address;
    // The kernel lists mappings in the order of their addresses.
    for (from, to, flags) in maps.lines().filter_map(mapping) {
        if next >= end {
            break;
        }
        if to <= next {
            continue;
        }
        if from > next {
            return nothing;
        }
        all.read &= flags.starts_with('r');
        all.write &= flags[1..].starts_with('w');
        next = to;
    }
    if next < end { nothing } else { all }
}

/// `7f00-7f10 rw-p …`: where a mapping lies, and what it allows.
fn mapping(line: &str) -> Option<(usize, usize, &str)> {
    let mut words = line.split(' ');
    let (from, to) = words.next()?.split_once('-')?;
    let flags = words.next().filter(|flags| flags.len() == 4 && flags.is_ascii())?;
    Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?, flags))
}
