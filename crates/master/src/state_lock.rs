//! One master per state file. Two that write one file would each put their own list in place of the other's: homes are
//! shared between machines and containers, and all masters listen at the same port by default.
//!
//! The lock is a file beside the state, because the state itself is replaced with each write. It stays when its master
//! ends; the kernel lets go of it then, however that was.

use mooncrate_core::time::Deadline;
use mooncrate_rt as rt;
use mooncrate_wire::clock::boottime;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a master that is ending is waited for: its port is free a moment before its lock is.
pub(crate) const HANDOVER: Duration = Duration::from_secs(2);
const STEP: Duration = Duration::from_millis(20);
/// Enough for a number and the name of a machine.
const HOLDER_BYTES_MAX: u64 = 512;

/// Held for as long as this lives.
#[derive(Debug)]
pub(crate) struct StateLock(#[expect(dead_code, reason = "the lock goes with it")] File);

impl StateLock {
    /// Takes the lock of a state file. [`io::ErrorKind::ResourceBusy`]: another master has it, and the words say who.
    pub(crate) fn take(state: &Path, until: Deadline) -> io::Result<Self> {
        let about = |error: io::Error| {
            let text = format!("{} cannot be locked: {error}", state.display());
            io::Error::new(error.kind(), text)
        };
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = open(path(state), flags, Mode::RUSR | Mode::WUSR);
        let mut file = File::from(file.map_err(|error| about(error.into()))?);
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) if !until.passed(boottime()) => rt::sleep(STEP),
                Err(Errno::WOULDBLOCK) => {
                    let text = format!("{} is in use by {}", state.display(), holder(&file));
                    return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
                }
                Err(error @ (Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP)) => {
                    let path = state.display();
                    tracing::warn!(%path, %error, "no locks there: nothing keeps a second master away");
                    return Ok(Self(file));
                }
                Err(error) => return Err(about(error.into())),
                Ok(()) => {
                    // For people; a disk that is full need not take it.
                    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
                    let name = format!("process {} on {host}\n", std::process::id());
                    let _signed = file.set_len(0).and_then(|()| file.write_all(name.as_bytes()));
                    return Ok(Self(file));
                }
            }
        }
    }
}

fn path(state: &Path) -> PathBuf {
    let mut name = OsString::from(state);
    name.push(".lock");
    name.into()
}

/// Who has it, as far as it signed.
fn holder(file: &File) -> String {
    let mut name = String::new();
    match file.take(HOLDER_BYTES_MAX).read_to_string(&mut name) {
        Ok(_) if !name.trim().is_empty() => name.trim().to_owned(),
        _ => "another process".to_owned(),
    }
}
