//! Whether memory at an address can be read or written, found out without touching it from here: the
//! kernel is asked, so that a bad address is an answer and not the end of the process.
//!
//! What must stay true: a range that is called usable could be used when it was looked at. Another thread
//! may unmap it at any time after that; nothing can be done about it here.
//!
//! The kernel populates the pages as the use itself would (`MADV_POPULATE_READ`, `_WRITE`, Linux 5.14). It
//! refuses mappings of devices, such as host memory that CUDA has pinned, and tells that by the same error
//! as a missing permission or an older kernel. There the table of mappings decides. That table does not
//! tell that a file has become shorter than its mapping, which an older kernel therefore does not find out.
//!
//! Memory that is registered is looked at by the table as well ([`access`]): to populate it all would take memory for
//! gigabytes that a caller has mapped and not touched. A file that was cut short lacks the end of its mapping,
//! so the last page of each file in the range is populated, and no other.

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
    let first = page_of(address);
    match populate(first, end - first, wanted) {
        Populated::All => true,
        Populated::Refused => false,
        Populated::Unknown => access(address, size).is_some_and(|access| access.allows(wanted)),
    }
}

/// What the kernel said when it was to populate pages.
enum Populated {
    All,
    /// Some of them cannot be used so.
    Refused,
    /// It does not do that for this mapping, or not at all.
    Unknown,
}

fn populate(first: usize, len: usize, wanted: Use) -> Populated {
    let advice = match wanted {
        Use::Read => libc::MADV_POPULATE_READ,
        Use::Write => libc::MADV_POPULATE_WRITE,
    };
    for _ in 0..TRIES {
        let start = std::ptr::without_provenance_mut(first);
        // SAFETY: populating changes no byte and moves no mapping; of what is not mapped the kernel says so.
        if unsafe { libc::madvise(start, len, advice) } == 0 {
            return Populated::All;
        }
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => {}
            Some(libc::EINVAL) => return Populated::Unknown,
            _ => return Populated::Refused,
        }
    }
    Populated::Refused
}

/// Where the page of an address begins.
fn page_of(address: usize) -> usize {
    let page = page_bytes();
    address / page * page
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

/// What all bytes may be used for; of each file in the range the last page is touched, and nothing else. `None` if the
/// kernel shows no table.
pub(crate) fn access(address: usize, size: usize) -> Option<Access> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let (access, last_of_files) = access_in(&maps, address, size);
    let is_there =
        |at: &usize| !matches!(populate(page_of(*at), page_bytes(), Use::Read), Populated::Refused);
    Some(if !access.read || last_of_files.iter().all(is_there) { access } else { NOTHING })
}

const NOTHING: Access = Access { read: false, write: false };

/// The same by this table alone, and the last byte of each file in the range.
fn access_in(maps: &str, address: usize, size: usize) -> (Access, Vec<usize>) {
    let nothing = (NOTHING, Vec::new());
    let Some(end) = address.checked_add(size) else { return nothing };
    let mut all = Access { read: true, write: true };
    let (mut next, mut last_of_files) = (address, Vec::new());
    // The kernel lists mappings in the order of their addresses.
    for Mapped { from, to, flags, is_file } in maps.lines().filter_map(mapping) {
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
        if is_file && next < end {
            last_of_files.push(to.min(end) - 1);
        }
        next = to;
    }
    if next < end { nothing } else { (all, last_of_files) }
}

struct Mapped<'a> {
    from: usize,
    to: usize,
    flags: &'a str,
    is_file: bool,
}

/// `7f00-7f10 rw-p 00000000 08:01 1234 …`: where a mapping lies, what it allows, and the inode of its file, or 0.
fn mapping(line: &str) -> Option<Mapped<'_>> {
    let mut words = line.split(' ');
    let (from, to) = words.next()?.split_once('-')?;
    let flags = words.next().filter(|flags| flags.len() == 4 && flags.is_ascii())?;
    let is_file = words.nth(2).is_some_and(|inode| inode != "0");
    let number = |text| usize::from_str_radix(text, 16).ok();
    Some(Mapped { from: number(from)?, to: number(to)?, flags, is_file })
}
