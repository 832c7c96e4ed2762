//! A trace that a master led at an address of this machine. A master that finds no state cannot tell a new cluster
//! from one whose state was deleted: nodes of the second one may be stopped and still serve by the leases of its last
//! master. The trace lies apart from the state, in memory of this boot, so whoever deletes the state leaves it.
//!
//! ```text
//! 4f1c…-boot-id 123456789      the boot, and when its master last ticked on the boot's clock, in nanoseconds
//! ```
//!
//! What must stay true: it is there before the first lease is granted, and an older time is never written later. The
//! format is in `docs/formats/state.md`.

use mooncrate_core::Now;
use mooncrate_wire::Address;
use mooncrate_wire::clock::boottime;
use mooncrate_wire::files::read_small;
use rustix::process::geteuid;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often it says that its master lives.
const RENEW: Duration = Duration::from_secs(1);
/// After this long without its master no node serves by that master's leases: nodes of this machine extend them for
/// half a registration (10 s) while nobody listens at the address, and two seconds are for a tick that came late.
const OVER: Duration = Duration::from_secs(15);
/// A boot id and a number.
const BYTES_MAX: u64 = 256;

/// The file, while its master leads.
#[derive(Debug)]
pub(crate) struct Trace {
    file: File,
    path: PathBuf,
    boot: String,
    renewed: Now,
}

/// Where the master at this address leaves its trace: in memory where the system has some, named by user and address.
pub fn path(address: &Address) -> PathBuf {
    let shared = Path::new("/dev/shm");
    let runtime = || std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let folder = if shared.is_dir() { Some(shared.into()) } else { runtime() };
    let name: String = address.to_string().replace('/', "_");
    let user = geteuid().as_raw();
    folder.unwrap_or_else(std::env::temp_dir).join(format!("mooncrate-{user}-master-{name}"))
}

impl Trace {
    /// Leaves a trace; and whether a master led there whose nodes may still serve. A file that cannot be read or
    /// written proves nothing, so it counts as one.
    pub(crate) fn leave(path: &Path) -> (Option<Self>, bool) {
        match Self::open(path) {
            Ok((trace, followed)) => (Some(trace), followed),
            Err(error) => {
                let path = path.display();
                tracing::warn!(%error, %path, "no trace for the next master can be left");
                (None, true)
            }
        }
    }

    fn open(path: &Path) -> io::Result<(Self, bool)> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
        let found = match read_small(path, BYTES_MAX) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let no_link = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or_default();
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).mode(0o600).custom_flags(no_link).open(path)?;
        if file.metadata()?.uid() != geteuid().as_raw() {
            let words = "it belongs to another user";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, words));
        }
        let now = boottime();
        let followed = found.is_some_and(|text| match text.trim().split_once(' ') {
            // All processes of an earlier boot are gone, and other machines have waited for the reboot.
            Some((of, at)) => of == boot && at.parse().map_or(true, |at| now.since(Now(at)) < OVER),
            None => true,
        });
        let mut trace = Self { file, path: path.into(), boot, renewed: Now(0) };
        trace.write(now)?;
        Ok((trace, followed))
    }

    /// The master lives.
    pub(crate) fn renew(&mut self, now: Now) {
        if now.since(self.renewed) < RENEW {
            return;
        }
        if let Err(error) = self.write(now) {
            let path = self.path.display();
            tracing::warn!(%error, %path, "the trace for the next master cannot be renewed");
        }
    }

    fn write(&mut self, now: Now) -> io::Result<()> {
        self.renewed = now;
        // Of one length, so that it is replaced as a whole.
        self.file.write_all_at(format!("{} {:020}\n", self.boot, now.0).as_bytes(), 0)
    }

    /// Nobody needs it.
    pub(crate) fn remove(self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!(%error, "the trace of this master stays");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_master_is_followed_until_its_leases_are_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        let (trace, followed) = Trace::leave(&path);
        assert!(!followed, "nobody led here");
        let (mut trace, boot) = (trace.unwrap(), std::fs::read_to_string(&path).unwrap());
        let boot = boot.split_once(' ').unwrap().0.to_owned();
        let follows = || Trace::leave(&path).1;
        assert!(follows());
        for (seconds, follows_then) in [(14, true), (16, false)] {
            let before = Now(boottime().0.saturating_sub(seconds * 1_000_000_000));
            trace.write(before).unwrap();
            assert_eq!(follows(), follows_then, "{seconds} s");
        }
        for (text, follows_then) in [
            (format!("{boot} x"), true),
            (format!("another {}", boottime().0), false),
            (String::new(), true),
        ] {
            std::fs::write(&path, &text).unwrap();
            assert_eq!(follows(), follows_then, "{text:?}");
        }
        trace.remove();
        assert!(!follows());
        // What cannot be written proves nothing.
        assert!(Trace::leave(folder.path()).1);
        assert!(Trace::leave(Path::new("/nowhere/trace")).1);
    }
}
