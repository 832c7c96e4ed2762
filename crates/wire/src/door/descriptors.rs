//! Descriptors of this process: every connection needs one, and so does every file.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;

/// Where the system names no limit.
const PLENTY: u64 = 1 << 20;

/// Raises the limit to what the system allows us; how many that is. The soft limit is 1,024 on most systems,
/// for the sake of programs that use `select`; we are none.
pub fn raise_descriptors() -> io::Result<u64> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    }
    Ok(limit.maximum.unwrap_or(PLENTY))
}

/// So many sixteenths of the descriptors that this process may have, at most `most`: doors that keep to their
/// shares leave some for files and for one another. The hard limit counts: whoever starts a server raises the
/// soft one to it, in a process of Python as well, where a node would else have room for a few dozen.
pub fn descriptor_share(sixteenths: u64, most: usize) -> usize {
    let all = getrlimit(Resource::Nofile).maximum.unwrap_or(PLENTY);
    most.min(usize::try_from(all / 16 * sixteenths).unwrap_or(most))
}
